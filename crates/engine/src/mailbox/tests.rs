//! Tests of the mailbox without an engine loop: what leaves it, and when.

use super::*;
use crate::task_queue::ClaimRequest;
use crate::version::Version;
use bytes::Bytes;
use kernel::event::OnConflict;
use kernel::event::Origin;
use kernel::{Payload, WorkflowId};
use std::num::NonZeroU32;
use store::{ConcurrencyGroupRow, ConsumedRow, RunInsert, TypeRow};

pub(crate) fn start(run: RunId) -> Box<StartRun> {
    start_of(run, r#"{"name": "one", "tasks": {"a": {"noop": {}}}}"#)
}

fn start_of(run: RunId, source: &str) -> Box<StartRun> {
    let tree = lang::read(source.as_bytes(), lang::Syntax::Json).expect("a document");
    let compiled = lang::compile(&tree).expect("a definition");
    let version = Version {
        org: OrgId::DEFAULT,
        workflow: WorkflowId([1; 16]),
        name: "one".into(),
        number: 1,
        hash: compiled.hash,
        lowering: lang::LOWERING,
        order: Version::order(&compiled.plan, None),
        plan: Arc::new(compiled.plan),
        input: Default::default(),
    };
    let origin = Origin { body: Payload::json("1"), ..Default::default() };
    Box::new(StartRun {
        org: OrgId::DEFAULT,
        run,
        version: Arc::new(version),
        origin,
        copied: Vec::new(),
        concurrency_group: None,
        run_insert: RunInsert::default(),
        source: None,
    })
}

fn turn<T>(mailbox: &mut Mailbox<T>, now: Timestamp) -> Turn<T> {
    let mut turn = Turn::default();
    mailbox.turn(now, &mut turn);
    turn
}

/// Reply channel 1 starts the run, reply channel 2 waits for its end.
fn replies_when(result: impl Fn() -> Result<Vec<WriteVerdict>, store::Error>) -> Vec<(u32, Reply)> {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([7; 16])), reply_to: 1, ended: Some(2) });
    let turn = turn(&mut mailbox, Timestamp(1));
    assert_eq!(turn.batch.runs.len(), 1);
    let mut replies = mailbox.settle(turn, result()).replies;
    replies.sort_by_key(|(reply_to, _)| *reply_to);
    replies
}

#[test]
fn a_refused_start_answers_every_caller() {
    let why = || store::Error::Unavailable("full".into());
    let unavailable = Reply::Unavailable(why().to_string());
    assert_eq!(replies_when(|| Err(why())), [(1, unavailable), (2, Reply::NotFound)]);
    let taken = || WriteVerdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let reply = Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    assert_eq!(replies_when(|| Ok(vec![taken()])), [(1, reply), (2, Reply::NotFound)]);
}

#[test]
fn an_atomic_group_is_adjacent_in_the_batch_and_refused_as_a_whole() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([1; 16])), reply_to: 1, ended: None });
    for reply_channels in [[2, 3], [4, 5]] {
        mailbox.accept(Command::StartAll(reply_channels.map(|t| (*start(RunId([t; 16])), u32::from(t))).into()));
    }
    let turn = turn(&mut mailbox, Timestamp(1));
    let atomic_groups: Vec<Option<u32>> =
        turn.batch.runs.iter().map(|write| write.atomic_group.map(NonZeroU32::get)).collect();
    assert_eq!(atomic_groups, [None, Some(1), Some(1), Some(2), Some(2)]);
    let taken = WriteVerdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let verdicts = [WriteVerdict::Committed, WriteVerdict::Undone, taken, WriteVerdict::Conflict, WriteVerdict::Undone];
    let mut replies = mailbox.settle(turn, Ok(verdicts.into())).replies;
    replies.sort_by_key(|(reply_to, _)| *reply_to);
    assert!(matches!(&replies[0], (1, Reply::Answer { .. })));
    assert_eq!(replies[1..3], [(2, Reply::Undone), (3, Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] })]);
    assert!(matches!(&replies[3..], [(4, Reply::Unavailable(_)), (5, Reply::Undone)]));
    assert_eq!(mailbox.resident(), 1, "no run of a refused group is retried alone");
}

#[test]
fn nothing_is_answered_or_dispatched_before_the_commit() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([7; 16])), reply_to: 1, ended: None });
    let turn = turn(&mut mailbox, Timestamp(1));
    assert!(turn.ready.is_empty());
    assert_eq!(mailbox.executing(), 0);
    let released = mailbox.settle(turn, Ok(vec![WriteVerdict::Committed]));
    assert_eq!((released.replies.len(), released.dispatch.len(), released.started), (1, 1, 1));
    assert!(!mailbox.is_quiet(0), "a step is under way");
}

const ONE: [u8; 16] = [5; 16];

/// A run in a concurrency group with a limit of one.
fn grouped_start(run: RunId, on_conflict: OnConflict) -> Box<StartRun> {
    let concurrency_group = Some(ConcurrencyGroupRow { id: ONE, limit: 1, on_conflict });
    Box::new(StartRun { concurrency_group, ..*start(run) })
}

/// A mailbox and its written records, with commits whose outcome can be unknown.
struct Unlucky {
    mailbox: Mailbox<u32>,
    records: BTreeMap<RunId, (Vec<Bytes>, RunRow)>,
}

impl Unlucky {
    fn new() -> Self {
        let mailbox = Mailbox::new(1, Arc::new(|_, _| String::new()));
        Unlucky { mailbox, records: BTreeMap::new() }
    }

    /// Turns until nothing is left to do, and returns the runs that were written. The first commit with a record of
    /// `unknown` succeeds with an unknown outcome.
    fn run_until_idle(&mut self, mut unknown: Option<RunId>) -> Vec<(RunId, RunStatus)> {
        let mut written = Vec::new();
        for _ in 0..20 {
            let turn = turn(&mut self.mailbox, Timestamp(1));
            let loads = turn.loads.clone();
            for write in &turn.batch.runs {
                let row = write.row.clone().or_else(|| Some(self.records.get(&write.run)?.1.clone()));
                let row = row.expect("the first record has a row");
                written.push((write.run, row.status));
                let entry = self.records.entry(write.run).or_insert_with(|| (Vec::new(), row.clone()));
                entry.0.push(write.record.clone());
                entry.1 = row;
            }
            let is_unknown = turn.batch.runs.iter().any(|write| Some(write.run) == unknown);
            unknown = unknown.filter(|_| !is_unknown);
            let verdicts = vec![WriteVerdict::Committed; turn.batch.runs.len()];
            let result = if is_unknown { Err(store::Error::Unknown("lost".into())) } else { Ok(verdicts) };
            self.mailbox.settle(turn, result);
            self.load(&loads);
            if !self.mailbox.has_work() {
                return written;
            }
        }
        panic!("the mailbox never becomes idle: {written:?}");
    }

    fn load(&mut self, runs: &[(OrgId, RunId)]) {
        for (_, run) in runs {
            let (records, row) = &self.records[run];
            let version = start(*run).version;
            let folded = Run::load(&version.plan, None, records).expect("it folds");
            let (seq, row, stored_bytes) = (records.len() as u64, row.clone(), StoredBytes::new(None, records));
            let resumed = Resumed { version, run: folded, seq, row, stored_bytes };
            self.mailbox.accept(Command::Loaded { run: *run, result: Ok(Some(Box::new(resumed))) });
        }
    }

    /// A turn whose records all meet a conflict. Runs are read again at once.
    fn conflict(&mut self) -> Released<u32> {
        let turn = turn(&mut self.mailbox, Timestamp(1));
        let (loads, verdicts) = (turn.loads.clone(), vec![WriteVerdict::Conflict; turn.batch.runs.len()]);
        let released = self.mailbox.settle(turn, Ok(verdicts));
        self.load(&loads);
        released
    }

    fn start(&mut self, run: RunId, on_conflict: OnConflict) {
        self.mailbox.accept(Command::Start { start: grouped_start(run, on_conflict), reply_to: 1, ended: None });
    }
}

#[test]
fn a_run_that_ended_with_an_unknown_outcome_leaves_its_group() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut unlucky = Unlucky::new();
    unlucky.start(first, OnConflict::Queue);
    assert_eq!(unlucky.run_until_idle(None), [(first, RunStatus::Running)]);
    unlucky.start(second, OnConflict::Queue);
    assert_eq!(unlucky.run_until_idle(None), [(second, RunStatus::Pending)]);
    let input = Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false };
    unlucky.mailbox.accept(Command::Give { org: OrgId::DEFAULT, run: first, input, reply_to: None });
    assert_eq!(unlucky.run_until_idle(Some(first)), [(first, RunStatus::Cancelled), (second, RunStatus::Running)]);
}

#[test]
fn a_run_created_with_an_unknown_outcome_supersedes_older_runs() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut unlucky = Unlucky::new();
    unlucky.start(first, OnConflict::CancelRunning);
    unlucky.run_until_idle(None);
    unlucky.start(second, OnConflict::CancelRunning);
    let (superseded, admitted) = ((first, RunStatus::Cancelled), (second, RunStatus::Running));
    assert_eq!(unlucky.run_until_idle(Some(second)), [(second, RunStatus::Pending), superseded, admitted]);
}

#[test]
fn m4_a_large_run_writes_a_snapshot_after_as_many_bytes_as_the_last_one_has() {
    let sets: String = (0..60).map(|n| format!(r#""s{n}": {{"set": {{"text": "{}"}}}},"#, "x".repeat(4_000))).collect();
    let source = format!(r#"{{"name": "one", "tasks": {{{sets} "a": {{"noop": {{}}}}}}}}"#);
    let (run, org) = (RunId([7; 16]), OrgId::DEFAULT);
    let version = start_of(run, &source).version;
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start_of(run, &source), reply_to: 1, ended: None });
    let (begun, _) = turn_and_commit(&mut mailbox, Timestamp(1));
    let row = begun.batch.runs[0].row.clone().expect("a new run has a row");
    let mut snapshot = begun.batch.runs[0].snapshot.clone().expect("the first record is long");
    assert!(snapshot.len() > 240_000);
    let (mut seq, mut records, mut intervals) = (1, Vec::new(), Vec::new());
    while intervals.len() < 2 {
        assert!(records.len() < 1_000, "no snapshot");
        let actor = String::new();
        let pause = Input::Pause { actor: actor.clone(), note: String::new() };
        let input = if seq % 2 == 0 { Input::Resume { actor } } else { pause };
        mailbox.accept(Command::Give { org, run, input, reply_to: None });
        if intervals.len() == 1 && records.len() == 100 {
            // A conflict: the run is read again.
            let refused = turn(&mut mailbox, Timestamp(1));
            mailbox.settle(refused, Ok(vec![WriteVerdict::Conflict]));
            turn_and_commit(&mut mailbox, Timestamp(1));
            let state = Run::load(&version.plan, Some(&snapshot), &records).expect("it folds");
            let stored_bytes = StoredBytes::new(Some(&snapshot), &records);
            let (version, row) = (version.clone(), row.clone());
            let resumed = Resumed { version, run: state, seq, row, stored_bytes };
            mailbox.accept(Command::Loaded { run, result: Ok(Some(Box::new(resumed))) });
        }
        let (turn, _) = turn_and_commit(&mut mailbox, Timestamp(1));
        let write = &turn.batch.runs[0];
        seq += 1;
        records.push(write.record.clone());
        if let Some(newer) = &write.snapshot {
            snapshot = newer.clone();
            intervals.push(std::mem::take(&mut records).len());
        }
    }
    assert!(intervals[0] > 100, "a snapshot of {} bytes after {} short records", snapshot.len(), intervals[0]);
    assert_eq!(intervals[0], intervals[1], "the same after it was read again");
}

#[test]
fn m4_a_record_makes_rows_for_the_ready_tasks_that_changed_not_for_all() {
    let steps: Vec<String> = (0..500).map(|n| format!(r#""s{n}": {{"task": "mail.send"}}"#)).collect();
    let source = format!(r#"{{"name": "one", "tasks": {{{}}}}}"#, steps.join(","));
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start_of(RunId([7; 16]), &source), reply_to: 1, ended: None });
    turn_and_commit(&mut mailbox, Timestamp(1));
    for n in 2..12 {
        mailbox.accept(claim(n, 1, false));
        let before = live_run::READY_ROWS.get();
        let (turn, _) = turn_and_commit(&mut mailbox, Timestamp(1));
        assert_eq!(turn.batch.runs.len(), 1, "one lease");
        assert!(live_run::READY_ROWS.get() - before < 5);
    }
}

#[test]
fn a_start_whose_key_is_taken_answers_every_caller() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let (run, org) = (RunId([7; 16]), OrgId::DEFAULT);
    mailbox.accept(Command::Start { start: start(run), reply_to: 1, ended: None });
    mailbox.accept(Command::Give { org, run, input: Input::Wake, reply_to: Some(2) });
    let turn = turn(&mut mailbox, Timestamp(1));
    mailbox.accept(Command::Give { org, run, input: Input::Wake, reply_to: Some(3) });
    let taken = WriteVerdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let replies = mailbox.settle(turn, Ok(vec![taken])).replies;
    let reply = Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    assert_eq!(replies, [(1, reply), (2, Reply::NotFound), (3, Reply::NotFound)]);
}

/// A run with one task; its trigger does not fit into a record.
fn task(run: RunId) -> Box<StartRun> {
    let source = r#"{"name": "one", "tasks": {"a": {"task": "mail.send", "input": "{{trigger.body}}"}}}"#;
    let mut start = start_of(run, source);
    start.origin.body = Payload::json(format!("\"{}\"", "x".repeat(kernel::payload::INLINE_MAX)));
    start
}

fn claim(claim_id: u64, credits: u32, is_immediate: bool) -> Command<u32> {
    Command::Claim(Box::new(ClaimRequest {
        claim_id,
        reply_to: claim_id as u32,
        org: OrgId::DEFAULT,
        worker: "ada".into(),
        types: vec!["%".into()],
        patterns: vec![crate::task_queue::Pattern::Prefix("".into())],
        runtime: None,
        version: None,
        slots: None,
        credits,
        lease: Span::from_secs(30),
        is_immediate,
        is_strict: false,
    }))
}

/// Turns once and commits everything.
fn turn_and_commit(mailbox: &mut Mailbox<u32>, now: Timestamp) -> (Turn<u32>, Released<u32>) {
    let mut turn = turn(mailbox, now);
    let (loads, fetches) = (std::mem::take(&mut turn.loads), std::mem::take(&mut turn.fetches));
    let (batch, refills) = (turn.batch.clone(), std::mem::take(&mut turn.refills));
    let verdicts = vec![WriteVerdict::Committed; turn.batch.runs.len()];
    let released = mailbox.settle(turn, Ok(verdicts));
    (
        Turn {
            batch,
            loads,
            fetches,
            refills,
            key_reads: Vec::new(),
            slot_reads: Vec::new(),
            pending: Vec::new(),
            ready: Vec::new(),
        },
        released,
    )
}

fn claimed(released: &Released<u32>) -> Vec<(u32, usize)> {
    let count = |(reply_to, reply): &(u32, Reply)| match reply {
        Reply::Claimed(reply) => Some((*reply_to, reply.tasks.len())),
        _ => None,
    };
    released.replies.iter().filter_map(count).collect()
}

#[test]
fn a_claim_that_waits_for_a_payload_still_reaches_its_worker() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let run = RunId([7; 16]);
    mailbox.accept(Command::Start { start: task(run), reply_to: 1, ended: None });
    let (turn, _) = turn_and_commit(&mut mailbox, Timestamp(1));
    let payloads = turn.batch.runs[0].payloads.clone();
    mailbox.accept(claim(2, 1, false));
    mailbox.accept(claim(3, 1, true));
    let (turn, released) = turn_and_commit(&mut mailbox, Timestamp(2));
    assert_eq!((turn.fetches.len(), turn.batch.runs.len()), (1, 0));
    assert_eq!(claimed(&released), [(3, 0)], "the older claim gets the only task");
    mailbox.accept(Command::Fetched { run, result: Ok(payloads) });
    let (turn, released) = turn_and_commit(&mut mailbox, Timestamp(3));
    assert_eq!(turn.batch.runs.len(), 1);
    assert_eq!(claimed(&released), [(2, 1)]);
    assert_eq!(mailbox.tasks().1, 1);
}

fn limited(limit: u32) -> TypeRow {
    TypeRow {
        org: OrgId::DEFAULT,
        name: "mail.send".into(),
        runtime: None,
        description: None,
        enabled: true,
        paused: None,
        limit: Some(limit),
        limit_per_key: None,
        rate: None,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    }
}

#[test]
fn leases_count_against_limits_before_recovery_has_read_them() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut before: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    before.accept(claim(1, 1, false));
    before.accept(Command::Start { start: task(first), reply_to: 2, ended: None });
    let (turn, released) = turn_and_commit(&mut before, Timestamp(1));
    assert_eq!(claimed(&released), [(1, 1)]);
    let write = &turn.batch.runs[0];
    let (records, row) = (vec![write.record.clone()], write.row.clone().expect("the first record has a row"));

    let mut after: Mailbox<u32> = Mailbox::new(2, Arc::new(|_, _| String::new()));
    after.accept(Command::RestoreTaskQueue { queues: Vec::new(), types: vec![limited(1)], workers: Vec::new() });
    after.accept(Command::Recover { org: OrgId::DEFAULT, run: first });
    after.accept(claim(3, 1, false));
    after.accept(Command::Start { start: task(second), reply_to: 4, ended: None });
    let (turn, released) = turn_and_commit(&mut after, Timestamp(2));
    assert_eq!(turn.loads.len(), 1);
    assert!(claimed(&released).is_empty(), "the number of leased tasks is not known yet");
    let payloads = turn.batch.runs[0].payloads.clone();

    let version = task(first).version;
    let run = Run::load(&version.plan, None, &records).expect("it folds");
    let resumed = Resumed { version, run, seq: 1, row, stored_bytes: StoredBytes::new(None, &records) };
    after.accept(Command::Loaded { run: first, result: Ok(Some(Box::new(resumed))) });
    let (_, released) = turn_and_commit(&mut after, Timestamp(3));
    assert!(claimed(&released).is_empty(), "one is leased, and the limit is one");

    let result = kernel::advance::TaskResult::Done { body: None, took: Span(0) };
    let input = Input::Finished { step: 0, fence: 2, result, digest: 5 };
    after.accept(Command::Give { org: OrgId::DEFAULT, run: first, input, reply_to: None });
    turn_and_commit(&mut after, Timestamp(4));
    turn_and_commit(&mut after, Timestamp(5));
    after.accept(Command::Fetched { run: second, result: Ok(payloads) });
    let (_, released) = turn_and_commit(&mut after, Timestamp(6));
    assert_eq!(claimed(&released), [(3, 1)]);
}

/// On a shared store the slot is a row, which another node waits for.
#[test]
fn a_task_whose_type_data_chose_frees_the_slot_of_that_type() {
    let run = RunId([1; 16]);
    let source = r#"{"name": "one", "tasks": {"a": {"task": "mail.{{trigger.body}}", "allow": ["mail.send"]}}}"#;
    let mut before: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    before.accept(Command::Start { start: start_of(run, source), reply_to: 1, ended: None });
    let (turn, _) = turn_and_commit(&mut before, Timestamp(1));
    let row = turn.batch.runs[0].row.clone().expect("the first record has a row");
    let origin = Origin { body: Payload::json("\"send\""), expires_at: Timestamp::NEVER, ..Default::default() };
    let leased = kernel::Event::Leased {
        step: 0,
        attempt: 1,
        worker: "ada".into(),
        lease: Span::from_secs(30),
        seen: Vec::new(),
        key: String::new(),
        epoch: 1,
        slot: 1,
        key_slot: 0,
        of_type: "mail.send".into(),
    };
    let events = vec![kernel::Event::Created { origin: Box::new(origin) }, leased];
    let records = vec![kernel::Record { at: Timestamp(1), first: 1, events, ..Default::default() }.seal()];

    let mut after: Mailbox<u32> = Mailbox::new(2, Arc::new(|_, _| String::new()));
    after.accept(Command::Recover { org: OrgId::DEFAULT, run });
    turn_and_commit(&mut after, Timestamp(2));
    let version = start_of(run, source).version;
    let folded = Run::load(&version.plan, None, &records).expect("it folds");
    let resumed = Resumed { version, run: folded, seq: 2, row, stored_bytes: StoredBytes::new(None, &records) };
    after.accept(Command::Loaded { run, result: Ok(Some(Box::new(resumed))) });
    turn_and_commit(&mut after, Timestamp(3));
    let result = kernel::advance::TaskResult::Done { body: None, took: Span(0) };
    let input = Input::Finished { step: 0, fence: 2, result, digest: 5 };
    after.accept(Command::Give { org: OrgId::DEFAULT, run, input, reply_to: None });
    let (turn, _) = turn_and_commit(&mut after, Timestamp(4));
    let freed = turn.batch.runs.iter().flat_map(|write| &write.limit_slots.free);
    assert_eq!(freed.map(|row| row.slot.name.as_str()).collect::<Vec<_>>(), ["mail.send"]);
}

#[test]
fn a_run_that_cannot_be_read_frees_its_limits() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::TypeChanged(Box::new(limited(1))));
    mailbox.accept(claim(1, 2, false));
    mailbox.accept(Command::Start { start: task(first), reply_to: 2, ended: None });
    assert_eq!(claimed(&turn_and_commit(&mut mailbox, Timestamp(1)).1), [(1, 1)]);
    let input = Input::Heartbeat { step: 0, fence: 2, progress: Some(Payload::json("1")) };
    mailbox.accept(Command::Give { org: OrgId::DEFAULT, run: first, input, reply_to: None });
    let turn = turn(&mut mailbox, Timestamp(2));
    mailbox.settle(turn, Ok(vec![WriteVerdict::Conflict]));
    assert_eq!(turn_and_commit(&mut mailbox, Timestamp(3)).0.loads.len(), 1);
    assert_eq!(mailbox.tasks().1, 1);
    mailbox.accept(Command::Loaded { run: first, result: Err(LoadFailure::Newer) });
    assert_eq!(mailbox.tasks().1, 0, "a later release has it, and its worker reports there");
    mailbox.accept(claim(3, 1, false));
    mailbox.accept(Command::Start { start: task(second), reply_to: 4, ended: None });
    assert_eq!(claimed(&turn_and_commit(&mut mailbox, Timestamp(4)).1), [(3, 1)]);
}

#[test]
fn a_task_that_ends_in_the_turn_of_the_reply_is_not_delivered() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: task(first), reply_to: 1, ended: None });
    mailbox.accept(Command::Start { start: task(second), reply_to: 2, ended: None });
    let (turn, _) = turn_and_commit(&mut mailbox, Timestamp(1));
    let payloads = turn.batch.runs[0].payloads.clone();
    mailbox.accept(claim(3, 2, false));
    turn_and_commit(&mut mailbox, Timestamp(2));
    mailbox.accept(Command::Fetched { run: first, result: Ok(payloads) });
    assert!(claimed(&turn_and_commit(&mut mailbox, Timestamp(3)).1).is_empty(), "the other lease is pending");
    let cancel = |run| {
        let input = Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false };
        Command::Give { org: OrgId::DEFAULT, run, input, reply_to: None }
    };
    mailbox.accept(cancel(second));
    assert!(claimed(&turn_and_commit(&mut mailbox, Timestamp(4)).1).is_empty());
    // Now the claim no longer waits for the second task.
    mailbox.accept(cancel(first));
    assert_eq!(claimed(&turn_and_commit(&mut mailbox, Timestamp(5)).1), [(3, 0)]);
}

#[test]
fn a_needed_run_is_read_until_that_succeeds_even_if_callers_get_errors() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let (org, run) = (OrgId::DEFAULT, RunId([7; 16]));
    mailbox.accept(Command::Start { start: task(run), reply_to: 1, ended: None });
    turn_and_commit(&mut mailbox, Timestamp(1));
    let pause = |mailbox: &mut Mailbox<u32>| {
        let input = Input::Pause { actor: "ada".into(), note: String::new() };
        mailbox.accept(Command::Give { org, run, input, reply_to: Some(2) });
    };
    pause(&mut mailbox);
    let turn = turn(&mut mailbox, Timestamp(2));
    mailbox.settle(turn, Err(store::Error::Unavailable("away".into())));
    let away = || Command::Loaded { run, result: Err(LoadFailure::Store("away".into())) };
    assert_eq!(turn_and_commit(&mut mailbox, Timestamp(3)).0.loads.len(), 1);
    mailbox.accept(away());
    turn_and_commit(&mut mailbox, Timestamp(4));
    // A caller comes meanwhile and gets the error.
    pause(&mut mailbox);
    assert_eq!(turn_and_commit(&mut mailbox, Timestamp(5)).0.loads.len(), 1);
    mailbox.accept(away());
    let (_, released) = turn_and_commit(&mut mailbox, Timestamp(6));
    assert!(matches!(&released.replies[..], [(2, Reply::LoadFailure(_))]));
    assert_eq!(
        turn_and_commit(&mut mailbox, Timestamp(7).after(READ_PAUSE)).0.loads.len(),
        1,
        "its task waits for a worker"
    );
}

fn inbox_input(run: RunId, n: u8, input: Input) -> InboxInput {
    let source = InboxSource { rows: vec![(OrgId::DEFAULT, run, kernel::InboxId([n; 16]))], is_from_run: false };
    InboxInput { org: OrgId::DEFAULT, run, input, source }
}

fn pause(note: &str) -> Input {
    Input::Pause { actor: "ada".into(), note: note.into() }
}

/// A mailbox with one run in memory.
fn with_one_run(run: RunId) -> Unlucky {
    let mut unlucky = Unlucky::new();
    unlucky.start(run, OnConflict::Queue);
    unlucky.run_until_idle(None);
    unlucky
}

fn stored_answer(row: &ConsumedRow) -> Result<StoredAnswer, kernel::wire::Error> {
    StoredAnswer::open(row.answer.as_deref().unwrap_or_default())
}

/// The stored answer of an inbox row.
fn answer_of(row: &ConsumedRow) -> Option<kernel::Answer> {
    match stored_answer(row) {
        Ok(StoredAnswer::Run { answer, ended, .. }) => Some(answer.answer(ended)),
        _ => None,
    }
}

#[test]
fn an_input_that_meets_too_many_conflicts_goes_to_the_inbox_and_is_answered_from_there() {
    let (org, run) = (OrgId::DEFAULT, RunId([1; 16]));
    let mut unlucky = with_one_run(run);
    unlucky.mailbox.accept(Command::Give { org, run, input: pause("first"), reply_to: Some(5) });
    let mut deferred = Vec::new();
    for conflicts in 1..=u32::MAX {
        if conflicts == CONFLICTS_MAX {
            // It came later, but must not overtake the other.
            unlucky.mailbox.accept(Command::Give { org, run, input: pause("second"), reply_to: Some(6) });
        }
        let mut released = unlucky.conflict();
        while unlucky.mailbox.queue.is_empty() && released.deferred.is_empty() {
            released = unlucky.conflict();
        }
        assert!(released.replies.is_empty(), "no caller is refused: {:?}", released.replies);
        if !released.deferred.is_empty() {
            deferred = released.deferred;
            break;
        }
        assert!(conflicts <= CONFLICTS_MAX);
    }
    let callers: Vec<u32> = deferred.iter().map(|input| input.reply_to).collect();
    assert_eq!(callers, [5, 6]);

    let rows = |deferred: &[DeferredInput<u32>]| -> Vec<InboxInput> {
        let open = |input: &DeferredInput<u32>| StoredInput::open(&input.body).expect("a stored input");
        (1..).zip(deferred).map(|(n, input)| inbox_input(run, n, open(input))).collect()
    };
    unlucky.mailbox.accept(Command::GiveInbox(rows(&deferred)));
    // The rows are read again before they are consumed.
    unlucky.mailbox.accept(Command::GiveInbox(rows(&deferred)));
    let mut consumed = Vec::new();
    for _ in 0..3 {
        let (turn, released) = turn_and_commit(&mut unlucky.mailbox, Timestamp(1));
        unlucky.load(&turn.loads);
        assert!(released.deferred.is_empty() && released.inbox_answers.is_empty());
        consumed.extend(turn.batch.runs.into_iter().flat_map(|write| write.consumed));
    }
    let ids: Vec<u8> = consumed.iter().map(|row| row.key.2.0[0]).collect();
    assert_eq!(ids, [1, 2], "each row is consumed once, in order");
    let answers: Vec<_> = consumed.iter().map(answer_of).collect();
    assert_eq!(answers[0], Some(kernel::Answer::Applied));
}

#[test]
fn an_inbox_row_whose_record_is_refused_is_read_again() {
    let run = RunId([1; 16]);
    let mut unlucky = with_one_run(run);
    let rows = || vec![inbox_input(run, 1, pause(""))];
    unlucky.mailbox.accept(Command::GiveInbox(rows()));
    let released = unlucky.conflict();
    assert!(released.reads_inbox && released.deferred.is_empty());
    for _ in 0..2 {
        let (turn, _) = turn_and_commit(&mut unlucky.mailbox, Timestamp(1));
        assert!(turn.batch.runs.is_empty(), "another node may have consumed the row");
        unlucky.load(&turn.loads);
    }
    unlucky.mailbox.accept(Command::GiveInbox(rows()));
    let (turn, _) = turn_and_commit(&mut unlucky.mailbox, Timestamp(1));
    assert_eq!(turn.batch.runs[0].consumed.len(), 1);
}

#[test]
fn an_inbox_row_that_changes_nothing_is_answered_without_a_record() {
    let (run, missing) = (RunId([1; 16]), RunId([9; 16]));
    let mut unlucky = with_one_run(run);
    let resume = Input::Resume { actor: "ada".into() };
    unlucky.mailbox.accept(Command::GiveInbox(vec![inbox_input(run, 1, resume), inbox_input(missing, 2, pause(""))]));
    let (turn, released) = turn_and_commit(&mut unlucky.mailbox, Timestamp(1));
    assert!(turn.batch.runs.is_empty());
    let [row] = &released.inbox_answers[..] else { panic!("{:?}", released.inbox_answers) };
    assert_eq!((row.key.1, answer_of(row).is_some()), (run, true));
    assert_eq!(turn.loads, [(OrgId::DEFAULT, missing)]);
    unlucky.mailbox.accept(Command::Loaded { run: missing, result: Ok(None) });
    let (_, released) = turn_and_commit(&mut unlucky.mailbox, Timestamp(1));
    let [row] = &released.inbox_answers[..] else { panic!("{:?}", released.inbox_answers) };
    assert_eq!((row.key.1, stored_answer(row)), (missing, Ok(StoredAnswer::NotFound {})));
}

#[test]
fn m4_a_node_alone_does_not_read_a_run_that_it_has_just_evicted() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let (org, runs) = (OrgId::DEFAULT, [RunId([1; 16]), RunId([2; 16]), RunId([3; 16])]);
    for run in runs {
        let sleeps = start_of(run, r#"{"name": "one", "tasks": {"a": {"sleep": "1h"}}}"#);
        mailbox.accept(Command::Start { start: sleeps, reply_to: 1, ended: None });
    }
    turn_and_commit(&mut mailbox, Timestamp(1));
    assert_eq!(mailbox.resident(), 0, "all wait");

    mailbox.accept(Command::Give { org, run: runs[0], input: pause("first"), reply_to: Some(2) });
    let (turn, released) = turn_and_commit(&mut mailbox, Timestamp(2));
    assert!(turn.loads.is_empty());
    assert!(matches!(released.replies[..], [(2, Reply::Answer { answer: kernel::Answer::Applied, .. })]));
    assert_eq!(turn.batch.runs[0].after, 1, "its record follows the one it was evicted with");

    mailbox.accept(Command::Give { org: OrgId(9), run: runs[2], input: pause("stranger"), reply_to: Some(2) });
    let (_, released) = turn_and_commit(&mut mailbox, Timestamp(2));
    assert!(matches!(released.replies[..], [(2, Reply::NotFound)]));

    let other = Nodes::of(1, &[(2, Span::default())]);
    mailbox.accept(Command::Nodes(other));
    mailbox.accept(Command::Give { org, run: runs[1], input: pause("second"), reply_to: Some(3) });
    let (turn, _) = turn_and_commit(&mut mailbox, Timestamp(3));
    assert_eq!(turn.loads, [(org, runs[1])], "another node may have advanced it");
}

#[test]
fn the_row_of_a_child_stays_when_its_first_record_is_not_applied() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new())).sharing();
    let run = RunId([1; 16]);
    let child = |reply_to| {
        let source = InboxSource { rows: vec![(OrgId::DEFAULT, run, kernel::InboxId([1; 16]))], is_from_run: true };
        let start = Box::new(StartRun { source: Some(Box::new(source)), ..*start(run) });
        Command::Start { start, reply_to, ended: None }
    };
    mailbox.accept(child(1));
    let first = turn(&mut mailbox, Timestamp(1));
    // The stored rows are read now and then, and this one is still there.
    mailbox.accept(child(2));
    mailbox.settle(first, Err(store::Error::Unknown("no answer".into())));
    let (read, _) = turn_and_commit(&mut mailbox, Timestamp(2));
    assert_eq!(read.loads, [(OrgId::DEFAULT, run)]);
    mailbox.accept(Command::Loaded { run, result: Ok(None) });
    let (_, released) = turn_and_commit(&mut mailbox, Timestamp(3));
    assert!(matches!(released.replies[..], [(2, Reply::NotFound)]), "{:?}", released.replies);
    assert!(released.inbox_answers.is_empty(), "{:?}", released.inbox_answers);
}

#[test]
fn a_row_is_not_consumed_because_of_an_old_copy_in_memory() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new())).sharing();
    let run = RunId([1; 16]);
    let sleeps = start_of(run, r#"{"name": "one", "tasks": {"a": {"sleep": "1h"}}}"#);
    mailbox.accept(Command::Start { start: sleeps, reply_to: 1, ended: None });
    turn_and_commit(&mut mailbox, Timestamp(1));
    // A node that this one does not know of may have advanced the run so far that the input means something.
    let resume = Input::Resume { actor: "ada".into() };
    mailbox.accept(Command::GiveInbox(vec![inbox_input(run, 1, resume)]));
    let (turn, released) = turn_and_commit(&mut mailbox, Timestamp(2));
    assert_eq!(turn.loads, [(OrgId::DEFAULT, run)]);
    assert!(released.inbox_answers.is_empty(), "{:?}", released.inbox_answers);
}

#[test]
fn tasks_that_may_not_be_claimed_do_not_keep_the_loop_busy() {
    for stop in [Command::Suspend(true), Command::Drain] {
        let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new())).sharing();
        mailbox.accept(stop);
        let one = start_of(RunId([1; 16]), r#"{"name": "one", "tasks": {"a": {"task": "mail.send"}}}"#);
        mailbox.accept(Command::Start { start: one, reply_to: 1, ended: None });
        turn_and_commit(&mut mailbox, Timestamp(1));
        mailbox.accept(Command::TypesWithTasks(vec![(OrgId::DEFAULT, "mail.send".into())]));
        (0..3).for_each(|_| drop(turn_and_commit(&mut mailbox, Timestamp(2))));
        assert!(!mailbox.has_work());
    }
}

#[test]
fn m4_the_runs_evicted_longest_ago_make_room_for_others() {
    let mut unlucky = with_one_run(RunId([1; 16]));
    let (_, row) = unlucky.records.pop_first().expect("it was written").1;
    let mut recent = RecentRuns::default();
    let mut put = |n: u8, bytes: usize| {
        let stored_bytes = StoredBytes::new(Some(&vec![0; bytes].into()), &[]);
        let version = start(RunId([n; 16])).version;
        let resumed = Resumed { version, run: Run::default(), seq: 1, row: row.clone(), stored_bytes };
        recent.put(RunId([n; 16]), resumed);
    };
    let third = recent_runs::BYTES_MAX / 3;
    for n in [1, 2, 3, 1, 4] {
        put(n, third);
    }
    put(5, recent_runs::BYTES_MAX + 1);
    let kept: Vec<u8> = (1..=5).filter(|n| recent.take(RunId([*n; 16])).is_some()).collect();
    assert_eq!(kept, [1, 3, 4], "the second was evicted before the first was evicted again");
}

/// A host that is down is not asked again because the node was fenced.
#[test]
fn a_node_that_begins_empty_still_holds_requests_back() {
    let failure = kernel::event::Failure::new("host_backoff", "the host is down");
    let hold = move |_: OrgId, _: RunId, _: NextRequest<'_>, now: Timestamp| {
        Some(HeldBack { until: now.after(Span::from_secs(60)), failure: failure.clone() })
    };
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new())).holding(Arc::new(hold));
    mailbox.abandon(Nodes::alone(2));
    let source = r#"{"name": "one", "tasks": {"a": {"url": "http://127.0.0.1:9/", "method": "GET"}}}"#;
    mailbox.accept(Command::Start { start: start_of(RunId([7; 16]), source), reply_to: 1, ended: None });
    let turn = turn(&mut mailbox, Timestamp(1));
    let released = mailbox.settle(turn, Ok(vec![WriteVerdict::Committed]));
    assert!(released.dispatch.is_empty(), "the request waits");
}
