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
    pub word: &'static str,
    pub code: Option<u16>,
}

struct KnownStates<'a> {
    standings: &'a [StepState],
    flag: bool,
}

impl Facts for KnownStates<'_> {
    fn word(&self, step: usize) -> &'static str {
        match &self.standings[step] {
            StepState::Settled(ending) => ending.word,
            StepState::Skipped(_) => "skipped",
            StepState::Blocked | StepState::Ready => "open",
        }
    }
    fn code(&self, step: usize) -> Option<u16> {
        match &self.standings[step] {
            StepState::Settled(ending) => ending.code,
            _ => None,
        }
    }
    fn flag(&self) -> bool {
        self.flag
    }
}

/// Where every step stands, given what those that were started have answered.
pub fn evaluate(shape: &TestWorkflow, flag: bool, endings: &[Option<StepOutcome>]) -> Vec<StepState> {
    let mut standings: Vec<StepState> = Vec::new();
    for (step, ending) in shape.steps.iter().zip(endings) {
        let seen = KnownStates { standings: &standings, flag };
        let is_unsuccessful = |n: &&usize| seen.word(**n) != "success";
        let unsuccessful: Vec<usize> = step.needs.iter().filter(is_unsuccessful).copied().collect();
        let standing = match (&step.guard, step.kind) {
            _ if step.needs.iter().any(|n| seen.word(*n) == "open") => StepState::Blocked,
            (None, _) if !unsuccessful.is_empty() => StepState::Skipped(unsuccessful),
            (Some(guard), _) if !guard.holds(&seen) => StepState::Skipped(Vec::new()),
            (_, StepKind::Set { is_broken: true }) => {
                StepState::Settled(StepOutcome { word: "template_error", code: None })
            }
            (_, StepKind::Set { is_broken: false }) => StepState::Settled(StepOutcome { word: "success", code: None }),
            _ => ending.map_or(StepState::Ready, StepState::Settled),
        };
        standings.push(standing);
    }
    standings
}

/// Does the run fail? By the letter: a failure is handled when a step with a condition that needs it
/// ran; it counts when it is not handled and blocked a step, directly or by a chain of skipped ones, or
/// when nothing succeeded. A strict graph fails by any failure that is not handled.
pub fn has_failed(shape: &TestWorkflow, standings: &[StepState]) -> bool {
    let all = 0..standings.len();
    let has_run = |i: usize| matches!(standings[i], StepState::Settled(_));
    let succeeded = |i: usize| matches!(&standings[i], StepState::Settled(ending) if ending.word == "success");
    let failures: Vec<usize> = all.clone().filter(|i| has_run(*i) && !succeeded(*i)).collect();
    let is_handled = |f: usize| {
        all.clone().any(|d| shape.steps[d].needs.contains(&f) && shape.steps[d].guard.is_some() && has_run(d))
    };
    let blocks = |f: usize| {
        let mut chain = vec![f];
        for (d, standing) in standings.iter().enumerate() {
            match standing {
                StepState::Skipped(needs) if needs.iter().any(|n| chain.contains(n)) => chain.push(d),
                _ => {}
            }
        }
        chain.len() > 1
    };
    let is_fruitless = !all.clone().any(succeeded);
    failures.iter().any(|f| match shape.is_strict {
        true => !is_handled(*f),
        false => is_fruitless || !is_handled(*f) && blocks(*f),
    })
}
