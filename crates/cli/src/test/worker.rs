//! The worker of a case. It claims every task as soon as it is ready, and reports what the script says.

use engine::Engine;
use engine::services::{Heartbeat, ReportOutcome, Reported, TaskKey, TaskReport, WorkRequest};
use engine::task_queue::ClaimedTask;
use kernel::event::Failure;
use kernel::{OrgId, Span};
use lang::suite::{GivenReport, WorkerAttempt};
use std::time::Duration;

const NAME: &str = "onward test";
/// Longer than any run lasts. A step with a heartbeat timeout gets a shorter lease.
const LEASE: Span = Span::from_days(1_000);
/// More than a run has steps.
const CREDITS: u32 = 100_000;

/// Claims every ready task.
pub async fn claim(engine: &Engine, org: OrgId) -> Result<Vec<ClaimedTask>, engine::Error> {
    let request = WorkRequest {
        worker: NAME.into(),
        types: vec!["%".into(), lang::BASH_TYPE.into()],
        runtime: None,
        version: None,
        slots: None,
        credits: CREDITS,
        lease: LEASE,
        wait: Duration::ZERO,
        reports: Vec::new(),
        heartbeats: Vec::new(),
    };
    Ok(engine.tasks.work(org, request).await?.claimed.tasks)
}

/// The time between two heartbeats, if the task takes longer than its lease.
pub fn heartbeat_interval(task: &ClaimedTask, took: Span) -> Option<Span> {
    Some(Span(task.lease.0 / 2)).filter(|_| took >= task.lease)
}

/// Sends a heartbeat. It has no effect if the lease has been lost.
pub async fn send_heartbeat(engine: &Engine, task: &ClaimedTask) -> Result<(), engine::Error> {
    let (extend, progress) = (None, None);
    let heartbeat = Heartbeat { task: key(task), fence: Some(task.fence), extend, progress };
    engine.tasks.heartbeat(task.org, heartbeat).await.map(drop)
}

/// Reports how the attempt ended. The report has no effect if the lease has been lost.
pub async fn report(engine: &Engine, task: &ClaimedTask, worked: &WorkerAttempt) -> Result<(), engine::Error> {
    let outcome = match &worked.report {
        GivenReport::Result(result) => ReportOutcome::Done(result.to_string().into()),
        GivenReport::Error { message, code, is_final, retry_after } => {
            let code = code.as_deref().unwrap_or("worker_error");
            let failure = Failure::new(code, message.clone());
            ReportOutcome::Failed { failure, is_final: *is_final, retry_after: *retry_after }
        }
        GivenReport::Snooze(span) => ReportOutcome::Snoozed(*span),
    };
    match engine.tasks.report(task.org, TaskReport { task: key(task), fence: Some(task.fence), outcome }).await? {
        Reported::TooLarge => {
            Err(engine::Error::Refused(format!("the result of `{}` makes the run larger than 16 MiB", task.step_key)))
        }
        _ => Ok(()),
    }
}

fn key(task: &ClaimedTask) -> TaskKey {
    TaskKey { run: task.run, step: (!task.is_plain).then_some(task.step) }
}
