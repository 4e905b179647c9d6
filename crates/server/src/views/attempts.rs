//! Every attempt at the steps of a run, from its history (A21).

use super::failure;
use api::{AttemptView, rfc3339};
use engine::services::{Reading, StoredEvent};
use kernel::event::Failure;
use kernel::{Event, Span, StepStatus, Timestamp};
use std::collections::BTreeMap;

/// The attempts at these steps, in order.
pub fn attempts(reading: &Reading, steps: &[u32], history: &[StoredEvent]) -> BTreeMap<u32, Vec<AttemptView>> {
    let is_attempted = |step: &u32| reading.run.node(&reading.version.plan, *step).inner().is_none();
    let attempted = steps.iter().copied().filter(is_attempted);
    let mut all: BTreeMap<u32, Vec<AttemptView>> = attempted.map(|step| (step, Vec::new())).collect();
    for StoredEvent { at, event, .. } in history {
        let Some(of_step) = event.step().and_then(|step| all.get_mut(&step)) else { continue };
        match event {
            Event::Started { attempt, .. } => of_step.push(started(*attempt, *at, None)),
            Event::Leased { attempt, worker, .. } => of_step.push(started(*attempt, *at, Some(worker.clone()))),
            Event::ChildStarted { attempt, child, .. } => {
                of_step.push(AttemptView { run_id: Some(child.to_string()), ..started(*attempt, *at, None) });
            }
            Event::ChildEnded { attempt, never_began: true, .. } => {
                let asked = of_step.iter_mut().rfind(|one| one.attempt == *attempt);
                asked.into_iter().for_each(|one| one.run_id = None);
            }
            Event::Retrying { attempt, failure, charged, status_code, .. } => {
                let one = ended(of_step, *attempt, *at, StepStatus::Failed, None, Some(failure));
                (one.status_code, one.charged) = (*status_code, *charged);
            }
            Event::Succeeded { attempt, response, .. } => {
                let one = ended(of_step, *attempt, *at, StepStatus::Success, Some(response.took), None);
                one.status_code = response.status_code;
            }
            Event::Failed { attempt, failure, response, .. } => {
                let took = response.as_ref().map(|response| response.took);
                let one = ended(of_step, *attempt, *at, StepStatus::Failed, took, Some(failure));
                one.status_code = response.as_ref().and_then(|response| response.status_code);
            }
            Event::TimedOut { attempt, failure, took, .. } => {
                ended(of_step, *attempt, *at, StepStatus::Timeout, Some(*took), Some(failure));
            }
            _ => {}
        }
    }
    // An attempt that was open when the run ended has no event of its own.
    for (step, of_step) in &mut all {
        let state = reading.run.step(*step);
        if let (Some(last), Some(at)) = (of_step.last_mut().filter(|one| one.finished_at.is_none()), state.finished_at)
        {
            (last.status, last.finished_at) = (state.status().as_str().into(), Some(rfc3339(at)));
        }
    }
    all
}

fn started(attempt: u32, at: Timestamp, worker: Option<String>) -> AttemptView {
    AttemptView {
        attempt,
        status: StepStatus::Running.as_str().into(),
        charged: true,
        worker,
        run_id: None,
        status_code: None,
        duration_ms: None,
        started_at: Some(rfc3339(at)),
        finished_at: None,
        error: None,
    }
}

/// Ends the attempt of this number. One that failed before it started, such as a template error, has no start.
fn ended<'a>(
    of_step: &'a mut Vec<AttemptView>,
    attempt: u32,
    at: Timestamp,
    status: StepStatus,
    took: Option<Span>,
    why: Option<&Failure>,
) -> &'a mut AttemptView {
    let index = of_step.iter().rposition(|one| one.attempt == attempt).unwrap_or_else(|| {
        of_step.push(AttemptView { started_at: None, ..started(attempt, at, None) });
        of_step.len() - 1
    });
    let one = &mut of_step[index];
    let measured = took.filter(|took| took.0 > 0).map(Span::millis);
    let between = || {
        let from = api::parse_rfc3339(one.started_at.as_deref()?)?;
        Some(at.since(from).millis())
    };
    one.duration_ms = measured.or_else(between);
    (one.status, one.finished_at) = (status.as_str().into(), Some(rfc3339(at)));
    one.error = why.map(|why| failure(why, None));
    one
}
