//! The worker of a case: it claims every task the moment there is one, and reports what the script says.

use engine::Engine;
use engine::services::{Heartbeat, ReportOutcome, Reported, TaskKey, TaskReport, WorkRequest};
use engine::task_queue::Task;
use kernel::event::Failure;
use kernel::{OrgId, Span};
use lang::suite::{Report, Worked};
use std::time::Duration;

const NAME: &str = "onward test";
/// Longer than any run lasts. Steps that want to hear of their worker more often get shorter ones.
const LEASE: Span = Span::from_days(1_000);
/// More than a run has steps.
const CREDITS: u32 = 100_000;

/// Everything that can be claimed now.
pub async fn claim(engine: &Engine, org: OrgId) -> Result<Vec<Task>, engine::Error> {
    let request = WorkRequest {
        worker: NAME.into(),
        types: vec!["%".into()],
        runtime: None,
        version: None,
        slots: None,
        credits: CREDITS,
        lease: LEASE,
        wait: Duration::ZERO,
        reports: Vec::new(),
        heartbeats: Vec::new(),
    };
    Ok(engine.tasks.work(org, request).await?.handed.tasks)
}

/// How long a worker may be silent before it is taken for dead, if that is less than the report takes.
pub fn beat(task: &Task, took: Span) -> Option<Span> {
    Some(Span(task.lease.0 / 2)).filter(|_| took >= task.lease)
}

/// Nobody may have the task any more; then nothing is kept alive.
pub async fn stay_alive(engine: &Engine, task: &Task) -> Result<(), engine::Error> {
    let (extend, progress) = (None, None);
    let heartbeat = Heartbeat { task: key(task), fence: Some(task.fence), extend, progress };
    engine.tasks.heartbeat(task.org, heartbeat).await.map(drop)
}

/// Says how the attempt ended. Nobody may want to know any more; then it is not missed.
pub async fn report(engine: &Engine, task: &Task, worked: &Worked) -> Result<(), engine::Error> {
    let outcome = match &worked.report {
        Report::Result(result) => ReportOutcome::Done(result.to_string().into()),
        Report::Error { message, code, is_final, retry_after } => {
            let code = code.as_deref().unwrap_or("worker_error");
            let failure = Failure::new(code, message.clone());
            ReportOutcome::Failed { failure, is_final: *is_final, retry_after: *retry_after }
        }
        Report::Snooze(span) => ReportOutcome::Snoozed(*span),
    };
    match engine.tasks.report(task.org, TaskReport { task: key(task), fence: Some(task.fence), outcome }).await? {
        Reported::TooLarge => Err(engine::Error::Refused(format!(
            "the result of `{}` would make the run larger than it may be",
            task.step_key
        ))),
        _ => Ok(()),
    }
}

fn key(task: &Task) -> TaskKey {
    TaskKey { run: task.run, step: (!task.is_plain).then_some(task.step) }
}
