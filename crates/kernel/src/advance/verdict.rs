//! How a run ends once every step has settled: `completed` or `failed`.
//!
//! In a graph, a failure is *handled* when a step ran that needs the failed step and has a condition. The run fails
//! when an unhandled failure blocked a dependent, or when a step failed and none succeeded. A chain of skipped steps
//! always begins with a step that was skipped because of the failure itself, so checking direct dependents is
//! enough.

use crate::event::{Because, Event, Failure};
use crate::plan::{Plan, Verdict};
use crate::run::{Run, Step};
use crate::status::Outcome;

pub(super) fn verdict(plan: &Plan, run: &Run) -> Event {
    let steps = &run.state.steps;
    let failed: Vec<u32> = failed_steps(run);
    let Some(&first) = failed.first() else { return Event::RunCompleted {} };
    let succeeded = steps.iter().any(|s| s.outcome() == Some(Outcome::Ok));
    let unhandled = failed.iter().copied().filter(|f| !is_handled(plan, run, *f));
    let culprit = match plan.verdict() {
        Verdict::Strict => unhandled.into_iter().next(),
        Verdict::Blocked if !succeeded => Some(first),
        Verdict::Blocked => unhandled.into_iter().find(|f| blocks(plan, run, *f)),
    };
    match culprit {
        None => Event::RunCompleted {},
        Some(step) => {
            let cause = run.step(step).failure.as_ref().map_or("", |f| f.message.as_str());
            let message = format!("`{}` {}: {cause}", plan.node(step).key, run.step(step).status());
            Event::RunFailed { failure: Failure::new("step_failed", message), step: Some(step) }
        }
    }
}

/// Steps that failed, timed out or had a template error, in plan order.
pub fn failed_steps(run: &Run) -> Vec<u32> {
    let failed = |s: &Step| matches!(s.outcome(), Some(Outcome::Failed | Outcome::TimedOut));
    run.state.steps.iter().enumerate().filter(|(_, s)| failed(s)).map(|(i, _)| i as u32).collect()
}

fn is_handled(plan: &Plan, run: &Run, failed: u32) -> bool {
    let ran = |d: &u32| matches!(run.step(*d).outcome(), Some(Outcome::Ok | Outcome::Failed | Outcome::TimedOut));
    plan.dependents(failed).iter().any(|d| plan.node(*d).guard.is_some() && ran(d))
}

fn blocks(plan: &Plan, run: &Run, failed: u32) -> bool {
    let was_blocked =
        |d: &u32| matches!(run.step(*d).because.as_deref(), Some(Because::Needs { steps }) if steps.contains(&failed));
    plan.dependents(failed).iter().any(was_blocked)
}
