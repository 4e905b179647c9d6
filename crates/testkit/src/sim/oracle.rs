//! What a graph comes to, worked out naively from what its steps answered: which steps are ready, which
//! are skipped and why, and how the run ends.
//!
//! Two passes over the [`Shape`], no state, no index, no code shared with the kernel; slow on purpose.
//! The simulator asks it once at the end of every run, `tests/graphs` after every single result.

use super::condition::Facts;
use super::workflow_generator::{StepKind, TestWorkflow};

/// Where a step stands.
#[derive(Clone, Debug, PartialEq)]
pub enum StepState {
    /// Something it needs has not settled.
    Blocked,
    /// It may be under way.
    Ready,
    Settled(StepOutcome),
    /// These needs did not succeed; none when its condition was false.
    Skipped(Vec<usize>),
}

/// What a step answered: the word conditions know it by, and the code of its upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    pub status: &'static str,
    pub code: Option<u16>,
}

struct KnownStates<'a> {
    states: &'a [StepState],
    flag: bool,
}

impl Facts for KnownStates<'_> {
    fn step_status(&self, step: usize) -> &'static str {
        match &self.states[step] {
            StepState::Settled(outcome) => outcome.status,
            StepState::Skipped(_) => "skipped",
            StepState::Blocked | StepState::Ready => "open",
        }
    }
    fn status_code(&self, step: usize) -> Option<u16> {
        match &self.states[step] {
            StepState::Settled(outcome) => outcome.code,
            _ => None,
        }
    }
    fn flag(&self) -> bool {
        self.flag
    }
}

/// Where every step stands, given what those that were started have answered.
pub fn evaluate(workflow: &TestWorkflow, flag: bool, outcomes: &[Option<StepOutcome>]) -> Vec<StepState> {
    let mut states: Vec<StepState> = Vec::new();
    for (step, outcome) in workflow.steps.iter().zip(outcomes) {
        let known = KnownStates { states: &states, flag };
        let is_unsuccessful = |n: &&usize| known.step_status(**n) != "success";
        let unsuccessful: Vec<usize> = step.needs.iter().filter(is_unsuccessful).copied().collect();
        let state = match (&step.guard, step.kind) {
            _ if step.needs.iter().any(|n| known.step_status(*n) == "open") => StepState::Blocked,
            (None, _) if !unsuccessful.is_empty() => StepState::Skipped(unsuccessful),
            (Some(guard), _) if !guard.holds(&known) => StepState::Skipped(Vec::new()),
            (_, StepKind::Set { is_broken: true }) => {
                StepState::Settled(StepOutcome { status: "template_error", code: None })
            }
            (_, StepKind::Set { is_broken: false }) => {
                StepState::Settled(StepOutcome { status: "success", code: None })
            }
            _ => outcome.map_or(StepState::Ready, StepState::Settled),
        };
        states.push(state);
    }
    states
}

/// Does the run fail? By the letter: a failure is handled when a step with a condition that needs it
/// ran; it counts when it is not handled and blocked a step, directly or by a chain of skipped ones, or
/// when nothing succeeded. A strict graph fails by any failure that is not handled.
pub fn has_failed(workflow: &TestWorkflow, states: &[StepState]) -> bool {
    let all = 0..states.len();
    let has_run = |i: usize| matches!(states[i], StepState::Settled(_));
    let succeeded = |i: usize| matches!(&states[i], StepState::Settled(outcome) if outcome.status == "success");
    let failures: Vec<usize> = all.clone().filter(|i| has_run(*i) && !succeeded(*i)).collect();
    let is_handled = |f: usize| {
        all.clone().any(|d| workflow.steps[d].needs.contains(&f) && workflow.steps[d].guard.is_some() && has_run(d))
    };
    let blocks_a_step = |f: usize| {
        let mut chain = vec![f];
        for (d, state) in states.iter().enumerate() {
            match state {
                StepState::Skipped(needs) if needs.iter().any(|n| chain.contains(n)) => chain.push(d),
                _ => {}
            }
        }
        chain.len() > 1
    };
    let nothing_succeeded = !all.clone().any(succeeded);
    failures.iter().any(|f| match workflow.is_strict {
        true => !is_handled(*f),
        false => nothing_succeeded || !is_handled(*f) && blocks_a_step(*f),
    })
}
