//! What the ends of steps mean for what is around them: for a group, and for the run.
//!
//! A failure is *handled* (M8) when its step has `allow_failure`; when a step ran that has a condition, a first-join or an
//! error route, and needs the failed step, directly or through skipped steps; or when a loop or group around it goes on
//! after errors. By default a run fails when any failure is unhandled. The plan can choose that it fails only when an
//! unhandled failure blocked a dependent, or when a step failed and none succeeded.

use crate::advance::is_denial;
use crate::event::{Because, Failure};
use crate::plan::{Join, Link, Node, OnError, Outcomes, Plan, Verdict};
use crate::run::{Run, Step};
use crate::status::Outcome;
use std::collections::BTreeSet;

/// Whether the end of a step leads on to the step with this link. An alternative does not begin because an operator
/// skipped the step that it is the alternative of: then neither runs.
pub fn is_taken(run: &Run, group: Option<u32>, link: &Link) -> bool {
    let Some(from) = run.step_in(group, link.from).map(|from| run.step(from)) else { return false };
    let by_hand = || matches!(from.because.as_deref(), Some(Because::Operator { .. }));
    from.outcome().is_some_and(|outcome| link.on.contains(outcome)) && !(link.on == Outcomes::SKIPPED && by_hand())
}

/// The step that makes the run fail, and the failure of the run; `None` for a run that completes.
pub(super) fn verdict(plan: &Plan, run: &Run) -> Option<(u32, Failure)> {
    let unhandled = unhandled_among(plan, run, None, PendingSteps::HandlesNothing);
    let culprit = match plan.verdict() {
        Verdict::Unhandled | Verdict::DirectUnhandled => worst(run, unhandled),
        Verdict::Blocked | Verdict::DirectBlocked => {
            let is_ok = |s: &Step| s.outcome() == Some(Outcome::Ok);
            match run.roots().any(|step| is_ok(run.step(step))) {
                true => worst(run, unhandled.into_iter().filter(|f| blocks(plan, run, *f)).collect()),
                false => {
                    let failed = failed_among(run, None, plan).into_iter();
                    worst(run, failed.filter(|f| !run.node(plan, *f).allow_failure).collect())
                }
            }
        }
    }?;
    let cause = run.step(culprit).failure.as_ref().map_or("", |f| f.message.as_str());
    let message = format!("`{}` {}: {cause}", run.node(plan, culprit).key, run.step(culprit).status());
    Some((culprit, Failure::new("step_failed", message)))
}

/// The first of these failures; a denied approval only if there is no other one.
fn worst(run: &Run, failures: Vec<u32>) -> Option<u32> {
    failures.iter().copied().find(|step| !is_denial(run, *step)).or(failures.first().copied())
}

fn has_failed(step: &Step) -> bool {
    matches!(step.outcome(), Some(Outcome::Failed | Outcome::TimedOut))
}

/// The steps in the state that failed, timed out or had a template error, by number. Without those that undo others: what
/// became of them is the recovery of the run.
pub fn failed_steps(plan: &Plan, run: &Run) -> Vec<u32> {
    let is_forward = |step: u32| run.undoes(plan, step).is_none();
    run.steps().filter(|(step, state)| has_failed(state) && is_forward(*step)).map(|(step, _)| step).collect()
}

/// The failed steps that nothing has handled, by number.
pub fn unhandled_steps(plan: &Plan, run: &Run) -> Vec<u32> {
    unhandled_anywhere(plan, run, PendingSteps::HandlesNothing)
}

/// The failed steps of an open run that nothing around them handles any more, by number. What comes after their group
/// may still handle the failure of the group.
pub fn lost_steps(plan: &Plan, run: &Run) -> Vec<u32> {
    unhandled_anywhere(plan, run, PendingSteps::MayHandle)
}

fn unhandled_anywhere(plan: &Plan, run: &Run, pending: PendingSteps) -> Vec<u32> {
    let failed = failed_steps(plan, run);
    if failed.is_empty() {
        return failed;
    }
    let groups: BTreeSet<Option<u32>> = failed.iter().map(|step| run.parent(*step)).collect();
    let unhandled: BTreeSet<u32> =
        groups.into_iter().flat_map(|group| unhandled_among(plan, run, group, pending)).collect();
    failed.into_iter().filter(|step| is_unhandled(plan, run, &unhandled, *step)).collect()
}

/// The step that handled a failure. `None` if none did, or if a setting such as `allow_failure` handles it.
pub fn handled_by(plan: &Plan, run: &Run, failed: u32) -> Option<u32> {
    let group = run.parent(failed);
    let mut open = vec![run.node_number(failed)];
    let mut seen: BTreeSet<u32> = open.iter().copied().collect();
    while let Some(node) = open.pop() {
        for next in plan.dependents(node).iter().copied().filter(|next| seen.insert(*next)) {
            let Some(step) = run.step_in(group, next) else { continue };
            match run.step(step).outcome() {
                Some(Outcome::Ok | Outcome::Failed | Outcome::TimedOut) if handles_failures(plan.node_at(next)) => {
                    return Some(step);
                }
                Some(Outcome::Skipped) => open.push(next),
                _ => {}
            }
        }
    }
    None
}

/// Whether a failure is unhandled in its group, and so are those that it caused around it.
fn is_unhandled(plan: &Plan, run: &Run, unhandled: &BTreeSet<u32>, step: u32) -> bool {
    let mut at = step;
    loop {
        // An iteration is no failure of its own: the loop decides.
        if run.iteration(at).is_none() && !unhandled.contains(&at) && has_failed(run.step(at)) {
            return false;
        }
        let Some(parent) = run.parent(at) else { return true };
        let goes_on = run.node(plan, parent).inner().is_some_and(|inner| inner.on_error == OnError::Continue);
        // What succeeded had no unhandled failure in it; what handled one may have left the state.
        if goes_on || run.step(parent).outcome() == Some(Outcome::Ok) {
            return false;
        }
        at = parent;
    }
}

/// The failures in a group that nothing in the group handles any more, by number.
pub(crate) fn unhandled_in(plan: &Plan, run: &Run, group: Option<u32>) -> Vec<u32> {
    unhandled_among(plan, run, group, PendingSteps::MayHandle)
}

/// The failures in a group that nothing in it has handled, by number: what is still pending does not count.
pub(crate) fn unhandled_at_end(plan: &Plan, run: &Run, group: Option<u32>) -> Vec<u32> {
    unhandled_among(plan, run, group, PendingSteps::HandlesNothing)
}

/// The failures among the steps of a group or an iteration that nothing in it handles any more, by number.
pub fn unhandled_in_group(plan: &Plan, run: &Run, group: u32) -> Vec<u32> {
    unhandled_in(plan, run, Some(group))
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
        let keys = |steps: Vec<u32>| steps.iter().map(|step| run.key(plan, *step).into_owned()).collect();
        let mut failed = failed_steps(plan, run);
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

/// Whether a step that has not settled counts as one that handles failures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingSteps {
    MayHandle,
    HandlesNothing,
}

/// The steps of a group: node and number.
fn members<'a>(plan: &'a Plan, run: &'a Run, group: Option<u32>) -> impl Iterator<Item = (u32, u32)> + 'a {
    let number = match group.and_then(|group| run.group_body(plan, group)) {
        Some(body) => body.group as usize,
        None => 0,
    };
    plan.layout().groups[number].nodes.iter().filter_map(move |node| Some((*node, run.step_in(group, *node)?)))
}

fn failed_among(run: &Run, group: Option<u32>, plan: &Plan) -> Vec<u32> {
    members(plan, run, group).filter(|(_, step)| has_failed(run.step(*step))).map(|(_, step)| step).collect()
}

/// The failures in a group that nothing in the group handles. Goes from the steps that handle failures up to what they
/// need, and on through what was skipped.
fn unhandled_among(plan: &Plan, run: &Run, group: Option<u32>, pending: PendingSteps) -> Vec<u32> {
    let failed = failed_among(run, group, plan);
    if failed.is_empty() {
        return failed;
    }
    let through_skipped = match plan.verdict() {
        Verdict::Unhandled | Verdict::Blocked => true,
        Verdict::DirectUnhandled | Verdict::DirectBlocked => group.is_some(),
    };
    let outcome = |node: u32| run.step_in(group, node).and_then(|step| run.step(step).outcome());
    let counts = |outcome: Option<Outcome>| match outcome {
        Some(Outcome::Ok | Outcome::Failed | Outcome::TimedOut) => true,
        Some(Outcome::Skipped | Outcome::Cancelled) => false,
        None => pending == PendingSteps::MayHandle,
    };
    let passes_on = |outcome: Option<Outcome>| match outcome {
        Some(outcome) => outcome == Outcome::Skipped,
        None => pending == PendingSteps::MayHandle,
    };
    let mut open: Vec<u32> = Vec::new();
    let mut handled = BTreeSet::new();
    for (node, _) in members(plan, run, group) {
        if counts(outcome(node)) && handles_failures(plan.node_at(node)) {
            open.push(node);
        }
    }
    while let Some(node) = open.pop() {
        for link in &plan.node_at(node).links {
            if handled.insert(link.from) && through_skipped && passes_on(outcome(link.from)) {
                open.push(link.from);
            }
        }
    }
    let is_unhandled = |step: &u32| {
        let node = run.node_number(*step);
        !plan.node_at(node).allow_failure && !handled.contains(&node) && !run.step(*step).is_handled
    };
    failed.into_iter().filter(is_unhandled).collect()
}

/// Whether a step that runs handles the failures of what it needs: it has a condition, it needs only one of several
/// steps, or it is what comes after a failure.
fn handles_failures(node: &Node) -> bool {
    let is_error_route = |link: &Link| link.on.contains(Outcome::Failed) && !link.on.contains(Outcome::Ok);
    node.guard.is_some() || node.join == Join::Any || node.links.iter().any(is_error_route)
}

/// Was a step skipped because this one failed? A chain of skipped steps always begins with such a step.
fn blocks(plan: &Plan, run: &Run, failed: u32) -> bool {
    let was_blocked =
        |d: u32| matches!(run.step(d).because.as_deref(), Some(Because::Needs { steps }) if steps.contains(&failed));
    plan.dependents(run.node_number(failed)).iter().filter_map(|node| run.step_in(None, *node)).any(was_blocked)
}
