//! The expected result of a workflow, computed from the outcomes of its steps: which steps are ready, which
//! are skipped and why, and how the run ends.
//!
//! It is slow and simple on purpose: two passes over the [`TestWorkflow`], no state, no index, no code shared
//! with the kernel. The simulator asks it at the end of every run, `tests/graphs` after every single result.

use super::condition::Facts;
use super::workflow_generator::{GeneratedStep, StepKind, TestWorkflow};
use kernel::plan::Verdict;

/// The state of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepState {
    /// One of its needs has not settled.
    Blocked,
    /// It may be running.
    Ready,
    Settled(StepOutcome),
    /// Skipped because these needs did not succeed; empty if its condition was false.
    Skipped(Vec<usize>),
}

/// How a step ended: its status as conditions see it, and the status code from its upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    pub status: &'static str,
    pub code: Option<u16>,
}

struct KnownStates<'a> {
    states: &'a [StepState],
    /// The number of the first step; the others follow.
    first: usize,
    flag: bool,
}

impl Facts for KnownStates<'_> {
    fn step_status(&self, step: usize) -> &'static str {
        match &self.states[step - self.first] {
            StepState::Settled(outcome) => outcome.status,
            StepState::Skipped(_) => "skipped",
            StepState::Blocked | StepState::Ready => "open",
        }
    }
    fn status_code(&self, step: usize) -> Option<u16> {
        match &self.states[step - self.first] {
            StepState::Settled(outcome) => outcome.code,
            _ => None,
        }
    }
    fn flag(&self) -> bool {
        self.flag
    }
}

/// The state of every step of a group, given the outcomes of the steps that have finished, in the order of the group.
/// `decided` gives the state of a step by its place, if that does not follow from other steps.
pub fn evaluate(
    workflow: &TestWorkflow,
    group: usize,
    flag: bool,
    outcomes: &[Option<StepOutcome>],
    decided: &dyn Fn(usize) -> Option<StepState>,
) -> Vec<StepState> {
    let members = &workflow.groups[group];
    let first = members.first().copied().unwrap_or_default();
    let mut states: Vec<StepState> = Vec::new();
    for (step, outcome) in members.iter().map(|member| &workflow.steps[*member]).zip(outcomes) {
        let known = KnownStates { states: &states, first, flag };
        let is_unsuccessful = |n: &&usize| known.step_status(**n) != "success";
        let unsuccessful: Vec<usize> = step.needs.iter().filter(is_unsuccessful).copied().collect();
        let decided = decided(states.len());
        let state = match &step.guard {
            _ if decided.is_some() => decided.unwrap_or(StepState::Blocked),
            _ if starts_at_first(step, &known) => ran(step, *outcome),
            _ if step.needs.iter().any(|n| known.step_status(*n) == "open") => StepState::Blocked,
            None if !unsuccessful.is_empty() => StepState::Skipped(unsuccessful),
            Some(guard) if !guard.holds(&known) => StepState::Skipped(Vec::new()),
            _ => ran(step, *outcome),
        };
        states.push(state);
    }
    states
}

/// A first-join with a need that succeeded does not wait for the others.
fn starts_at_first(step: &GeneratedStep, known: &KnownStates<'_>) -> bool {
    step.is_first_join && step.needs.iter().any(|need| known.step_status(*need) == "success")
}

/// The state of a step that may run.
fn ran(step: &GeneratedStep, outcome: Option<StepOutcome>) -> StepState {
    match step.kind {
        StepKind::Set { is_broken: true } => StepState::Settled(StepOutcome { status: "template_error", code: None }),
        StepKind::Set { is_broken: false } => StepState::Settled(StepOutcome { status: "success", code: None }),
        _ => outcome.map_or(StepState::Ready, StepState::Settled),
    }
}

/// The failures that fail the run. A failure is handled if its step allows it, or if a step ran that needs it and has a
/// condition or starts at the first of its needs, directly or (unless the plan has one of the earlier rules) through skipped steps. An unhandled failure counts if it
/// blocks a step, directly or through a chain of skipped steps. If no step succeeded, every failure counts that its step
/// does not allow. Where the rule is about unhandled failures, each of them counts.
///
/// The same holds for a group inside of the run, with the rule of unhandled failures. While steps of it are open, they may
/// still handle a failure.
pub fn culprits(workflow: &TestWorkflow, group: usize, states: &[StepState]) -> Vec<usize> {
    let members = &workflow.groups[group];
    let first = members.first().copied().unwrap_or_default();
    let step = |i: usize| &workflow.steps[members[i]];
    let verdict = if group == 0 { workflow.verdict } else { Verdict::Unhandled };
    let unhandled = unhandled(workflow, group, states);
    let blocks_a_step = |f: usize| {
        let mut chain = vec![f];
        for (d, state) in states.iter().enumerate() {
            match state {
                StepState::Skipped(needs) if needs.iter().any(|n| chain.contains(&(n - first))) => chain.push(d),
                _ => {}
            }
        }
        chain.len() > 1
    };
    let nothing_succeeded = !(0..states.len()).any(|i| has_succeeded(&states[i]));
    let counts = |f: &usize| match verdict {
        Verdict::Unhandled | Verdict::DirectUnhandled => unhandled.contains(f),
        Verdict::Blocked | Verdict::DirectBlocked => match nothing_succeeded {
            true => !step(*f).allow_failure,
            false => unhandled.contains(f) && blocks_a_step(*f),
        },
    };
    failures(states).into_iter().filter(counts).collect()
}

fn has_run(state: &StepState) -> bool {
    matches!(state, StepState::Settled(outcome) if outcome.status != "cancelled")
}

fn has_succeeded(state: &StepState) -> bool {
    matches!(state, StepState::Settled(outcome) if outcome.status == "success")
}

fn failures(states: &[StepState]) -> Vec<usize> {
    (0..states.len()).filter(|i| has_run(&states[*i]) && !has_succeeded(&states[*i])).collect()
}

/// The failures in a group that nothing in it handles.
pub fn unhandled(workflow: &TestWorkflow, group: usize, states: &[StepState]) -> Vec<usize> {
    let members = &workflow.groups[group];
    let first = members.first().copied().unwrap_or_default();
    let step = |i: usize| &workflow.steps[members[i]];
    let verdict = if group == 0 { workflow.verdict } else { Verdict::Unhandled };
    let is_direct = matches!(verdict, Verdict::DirectBlocked | Verdict::DirectUnhandled);
    let is_handled = |f: usize| {
        // Steps need only earlier steps, so one pass reaches everything that depends on the failed one.
        let mut reached = vec![f];
        let mut is_found = step(f).allow_failure;
        for (d, state) in states.iter().enumerate().skip(f + 1) {
            if step(d).needs.iter().any(|n| reached.contains(&(n - first))) {
                let handles_failures = step(d).guard.is_some() || step(d).is_first_join;
                let is_open = matches!(state, StepState::Blocked | StepState::Ready);
                is_found |= handles_failures && (has_run(state) || is_open);
                if !is_direct && (is_open || matches!(state, StepState::Skipped(_))) {
                    reached.push(d);
                }
            }
        }
        is_found
    };
    failures(states).into_iter().filter(|f| !is_handled(*f)).collect()
}
