//! How a run ends once every step has settled: `completed` or `failed`.
//!
//! A failure is *handled* when its step has `allow_failure`, or when a step ran that has a condition and needs the
//! failed step, directly or through skipped steps. By default a run fails when any failure is unhandled. The plan can
//! choose that it fails only when an unhandled failure blocked a dependent, or when a step failed and none succeeded.

use crate::event::{Because, Event, Failure};
use crate::plan::{Plan, Verdict};
use crate::run::{Run, Step};
use crate::status::Outcome;

pub(super) fn verdict(plan: &Plan, run: &Run) -> Event {
    let unhandled = unhandled_steps(plan, run);
    let culprit = match plan.verdict() {
        Verdict::Unhandled | Verdict::DirectUnhandled => unhandled.first().copied(),
        Verdict::Blocked | Verdict::DirectBlocked => {
            let is_ok = |s: &Step| s.outcome() == Some(Outcome::Ok);
            match run.state.steps.iter().any(is_ok) {
                true => unhandled.into_iter().find(|f| blocks(plan, run, *f)),
                false => failed_steps(run).into_iter().find(|f| !plan.node(*f).allow_failure),
            }
        }
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
    let has_failed = |step: &u32| matches!(run.step(*step).outcome(), Some(Outcome::Failed | Outcome::TimedOut));
    (0..run.state.steps.len() as u32).filter(has_failed).collect()
}

/// The failed steps that nothing has handled, in plan order.
pub fn unhandled_steps(plan: &Plan, run: &Run) -> Vec<u32> {
    let failed = failed_steps(run);
    if failed.is_empty() {
        return failed;
    }
    let handled = handled_steps(plan, run);
    failed.into_iter().filter(|step| !plan.node(*step).allow_failure && !handled[*step as usize]).collect()
}

/// The failed steps of a run that has ended, as its row keeps them for lists: `ship! notify` are two failed steps, of
/// which nothing handled the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedSteps {
    pub failed: Vec<String>,
    pub unhandled: Vec<String>,
}

impl FailedSteps {
    /// The most steps that are kept.
    pub const MAX: usize = 20;

    pub fn of(plan: &Plan, run: &Run) -> FailedSteps {
        let keys = |steps: Vec<u32>| steps.iter().map(|step| plan.node(*step).key.clone()).collect();
        let mut failed = failed_steps(run);
        failed.truncate(FailedSteps::MAX);
        let mut unhandled = unhandled_steps(plan, run);
        unhandled.retain(|step| failed.contains(step));
        FailedSteps { failed: keys(failed), unhandled: keys(unhandled) }
    }

    pub fn parse(text: &str) -> FailedSteps {
        let mut steps = FailedSteps::default();
        for word in text.split_whitespace() {
            let name = word.trim_end_matches('!');
            steps.failed.push(name.to_owned());
            if name != word {
                steps.unhandled.push(name.to_owned());
            }
        }
        steps
    }
}

impl std::fmt::Display for FailedSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, name) in self.failed.iter().enumerate() {
            let (space, mark) = (if i > 0 { " " } else { "" }, if self.unhandled.contains(name) { "!" } else { "" });
            write!(f, "{space}{name}{mark}")?;
        }
        Ok(())
    }
}

/// For every step: would its failure be handled by a step that ran? Goes from those steps up to what they need, and on
/// through what was skipped.
fn handled_steps(plan: &Plan, run: &Run) -> Vec<bool> {
    let through_skipped = match plan.verdict() {
        Verdict::Unhandled | Verdict::Blocked => true,
        Verdict::DirectUnhandled | Verdict::DirectBlocked => false,
    };
    let outcome = |step: u32| run.step(step).outcome();
    let has_run = |step: &u32| matches!(outcome(*step), Some(Outcome::Ok | Outcome::Failed | Outcome::TimedOut));
    let is_handler = |step: &u32| plan.node(*step).guard.is_some() && has_run(step);
    let mut open: Vec<u32> = (0..run.state.steps.len() as u32).filter(is_handler).collect();
    let mut handled = vec![false; run.state.steps.len()];
    while let Some(step) = open.pop() {
        for link in &plan.node(step).links {
            let is_new = !std::mem::replace(&mut handled[link.from as usize], true);
            if is_new && through_skipped && outcome(link.from) == Some(Outcome::Skipped) {
                open.push(link.from);
            }
        }
    }
    handled
}

/// Was a step skipped because this one failed? A chain of skipped steps always begins with such a step.
fn blocks(plan: &Plan, run: &Run, failed: u32) -> bool {
    let was_blocked =
        |d: &u32| matches!(run.step(*d).because.as_deref(), Some(Because::Needs { steps }) if steps.contains(&failed));
    plan.dependents(failed).iter().any(was_blocked)
}
