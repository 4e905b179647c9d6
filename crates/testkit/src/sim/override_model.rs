//! The part of the [`run_model`](super::run_model) that knows what operators decide about open steps (M32).

use super::run_model::{ModelPhase, RunModel};
use super::violation::{CheckResult, ViolationKind, require};
use kernel::Timestamp;
use kernel::event::{Because, Event, Override};

impl RunModel {
    /// An operator decides about a step that has not settled; what follows from that is the next event of the step.
    pub(super) fn override_step(&mut self, i: usize, verb: Override, at: Timestamp) -> CheckResult {
        let phase = self.steps[i].phase;
        let illegal = || format!("an operator decides about s{i} in phase {phase:?}: {verb}");
        ViolationKind::Duplicated.unless(!matches!(phase, ModelPhase::Done(_)), illegal)?;
        require(self.steps[i].iteration.is_none(), illegal)?;
        require(!self.is_undoing() || self.steps[i].undoes.is_some(), illegal)?;
        require(verb != Override::RunNow || self.may_run_now(i), illegal)?;
        let is_at_work = |step: &super::run_model::StepModel| {
            let is_idle = matches!(step.phase, ModelPhase::Idle | ModelPhase::Done(_));
            step.parent == Some(i) && !step.is_gone && !is_idle
        };
        let is_quiet = verb == Override::RunNow || !self.steps.iter().any(is_at_work);
        require(is_quiet, || format!("{}, and something inside of it is at work", illegal()))?;
        if verb != Override::RunNow {
            self.call_off(i, at);
        }
        self.steps[i].overriding = Some(verb);
        Ok(())
    }

    /// Has an operator decided how the step ended?
    pub fn was_overridden(&self, step: u32) -> bool {
        let seen = &self.steps[step as usize];
        seen.overridden.is_some() && !seen.is_gone
    }

    fn may_run_now(&self, i: usize) -> bool {
        match self.steps[i].phase {
            ModelPhase::Sleeping(_) => true,
            ModelPhase::Retrying(_) => !self.is_held(),
            _ => false,
        }
    }

    /// What follows from the decision about a step. Returns false for an event that has nothing to do with it.
    pub(super) fn carry_out_override(&mut self, i: usize, event: &Event, at: Timestamp) -> Result<bool, String> {
        let Some(verb) = self.steps[i].overriding else { return Ok(false) };
        let illegal = || format!("{} for s{i}, which an operator decided: {verb}", event.name().unwrap_or("?"));
        match (verb, event) {
            // The attempt that was called off had not begun.
            (Override::Skip | Override::Result, Event::Returned { .. }) => return Ok(false),
            (Override::Skip, Event::Skipped { because: Because::Operator { .. }, .. }) => {
                self.steps[i].phase = ModelPhase::Done("skipped");
            }
            (Override::Result, Event::Succeeded { attempt, .. }) => {
                let seen = &mut self.steps[i];
                // A step that had not begun counts as attempted once.
                (seen.attempts, seen.phase) = (seen.attempts.max(1), ModelPhase::Done("success"));
                if *attempt != seen.attempts {
                    return Err(illegal());
                }
            }
            (Override::RunNow, Event::Woken { .. }) => self.steps[i].phase = ModelPhase::Done("success"),
            (Override::RunNow, Event::RetryDue { .. }) => self.steps[i].phase = ModelPhase::Retrying(at),
            _ => return Err(illegal()),
        }
        self.steps[i].overriding = None;
        if verb != Override::RunNow {
            self.steps[i].overridden = Some(verb);
            self.steps[i].code = None;
        }
        Ok(true)
    }
}
