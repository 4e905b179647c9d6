//! The ceiling: what the bare store reaches when it writes the same rows and bytes as the engine does for a chain of
//! steps, with as many runs in flight. The difference to the engine's rate is the cost of the engine itself.

use super::{BenchStore, ORG, flow};
use engine::mailbox::{Command, Mailbox, StartRun, Turn};
use engine::version::Version;
use kernel::advance::TaskResult;
use kernel::event::Origin;
use kernel::{Input, Payload, RunId, Span, Timestamp, WorkflowId};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use store::{Batch, Location, RunInsert, RunWrite, WriteVerdict};

pub async fn steps_per_second(
    storage: &BenchStore,
    steps: usize,
    in_flight: usize,
    seconds: u64,
) -> Result<f64, String> {
    let writes = writes_of_one_run(steps)?;
    let store = storage.store("ceiling").await?.open().await.map_err(|e| e.to_string())?;
    let (mut next, now) = (0u64, now());
    let mut next_id = || {
        next += 1;
        numbered(now, next)
    };
    let mut at = Vec::new();
    let (began, until) = (Instant::now(), Instant::now() + Duration::from_secs(seconds));
    let mut written = 0u64;
    while Instant::now() < until {
        next_round(&mut at, in_flight, writes.len(), &mut next_id);
        let runs = at.iter().map(|(run, stage)| rewrite(&writes[*stage], *run)).collect();
        let batch = Batch { at: now, epoch: 1, runs };
        let verdicts = store.commit(&batch).await.map_err(|e| e.to_string())?;
        if verdicts.iter().any(|v| *v != WriteVerdict::Committed) {
            return Err("the store refused a record".into());
        }
        written += batch.runs.len() as u64;
    }
    // One record of a run only starts it; the others each carry one step.
    let per_step = steps as f64 / writes.len() as f64;
    Ok(written as f64 * per_step / began.elapsed().as_secs_f64())
}

/// Moves the runs in flight, each with the number of its next record, to the next round. The first rounds start a part
/// of the runs each, so that every later round writes records of all stages, as the engine does.
fn next_round(at: &mut Vec<(RunId, usize)>, in_flight: usize, stages: usize, next_id: &mut impl FnMut() -> RunId) {
    for (run, stage) in at.iter_mut() {
        *stage += 1;
        if *stage == stages {
            (*run, *stage) = (next_id(), 0);
        }
    }
    let more = in_flight.div_ceil(stages).min(in_flight - at.len());
    at.extend((0..more).map(|_| (next_id(), 0)));
}

/// Writes this many finished runs of one step.
pub async fn fill(location: &Location, runs: u64) -> Result<(), String> {
    const BATCH: u64 = 1_000;
    let writes = writes_of_one_run(1)?;
    let store = location.open().await.map_err(|e| e.to_string())?;
    let at = now();
    for first in (0..runs).step_by(BATCH as usize) {
        let ids: Vec<RunId> = (first..runs.min(first + BATCH)).map(|n| numbered(at, n)).collect();
        for write in &writes {
            let batch = Batch { at, epoch: 1, runs: ids.iter().map(|run| rewrite(write, *run)).collect() };
            store.commit(&batch).await.map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// Runs must be of this month: the journal in Postgres has a partition for each month.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(since.as_millis() as i64)
}

/// Ids that sort by their numbers, a hundred for each millisecond.
fn numbered(from: Timestamp, number: u64) -> RunId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    RunId::new(from.after(Span::from_millis(number / 100)), random)
}

/// The writes of one run, recorded from a mailbox that runs it.
fn writes_of_one_run(steps: usize) -> Result<Vec<RunWrite>, String> {
    let compiled = flow::compile(&flow::chain(steps))?;
    let version = Arc::new(Version {
        org: ORG,
        workflow: WorkflowId([1; 16]),
        name: compiled.meta.name,
        number: 1,
        hash: compiled.hash,
        lowering: lang::LOWERING,
        order: Version::order(&compiled.plan, None),
        plan: Arc::new(compiled.plan),
        input: Default::default(),
    });
    let origin = Origin {
        workflow: version.workflow,
        workflow_name: version.name.clone(),
        version: 1,
        hash: bytes::Bytes::copy_from_slice(&version.hash),
        body: Payload::json(r#"{"order_id":123,"email":"someone@example.com"}"#),
        ..Default::default()
    };
    let run = RunId([9; 16]);
    let mut mailbox: Mailbox<()> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let start = Box::new(StartRun {
        org: ORG,
        run,
        version,
        origin,
        copied: Vec::new(),
        concurrency_group: None,
        run_insert: RunInsert::default(),
        source: None,
    });
    mailbox.accept(Command::Start { start, reply_to: (), ended: None });
    let mut writes = Vec::new();
    let now = Timestamp::from_millis(1_700_000_000_000);
    while writes.len() <= steps {
        let mut turn = Turn::default();
        mailbox.turn(now, &mut turn);
        writes.extend(turn.batch.runs.iter().cloned());
        let count = turn.batch.runs.len();
        let released = mailbox.settle(turn, Ok(vec![WriteVerdict::Committed; count]));
        if released.dispatch.is_empty() {
            break;
        }
        for dispatch in released.dispatch {
            let result = TaskResult::Done { body: None, took: Span(0) };
            let input = Input::Finished { step: dispatch.step, fence: dispatch.fence, result, digest: 0 };
            mailbox.accept(Command::Give { org: ORG, run, input, reply_to: None });
        }
    }
    Ok(writes)
}

fn rewrite(write: &RunWrite, run: RunId) -> RunWrite {
    let mut write = write.clone();
    write.run = run;
    if let Some(row) = &mut write.row {
        row.id = run;
    }
    write
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_flight_are_spread_over_all_stages() {
        let (mut at, mut ids, stages) = (Vec::new(), 0u64, 11);
        let mut next_id = || {
            ids += 1;
            numbered(Timestamp(0), ids)
        };
        for round in 0..50 {
            next_round(&mut at, 44, stages, &mut next_id);
            let at_stage = |stage: usize| at.iter().filter(|(_, at)| *at == stage).count();
            let expected = |stage: usize| if stage <= round { 4 } else { 0 };
            assert!((0..stages).all(|stage| at_stage(stage) == expected(stage)), "round {round}: {at:?}");
        }
    }
}
