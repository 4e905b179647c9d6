//! Applying `run.retried`: a run that had ended goes on.
//!
//! ```text
//!   Done ──in `steps`──▶ Pending, as if it had never begun, except for the number of its latest attempt
//!   Done ──in `around`──▶ Open: a group, a loop or an iteration with such a step inside of it
//! ```
//!
//! This module does not know which steps these are, see [`repair`](crate::advance::repair). Invariant: nothing else of
//! the run changes, so that no work is done twice that the event does not name.

use super::{LoadError, Phase, Run, Step};
use crate::plan::Plan;
use crate::planted_bugs::{self, Bug};
use crate::status::{Outcome, RunStatus, StepStatus};
use crate::time::Timestamp;
use std::borrow::Cow;

impl Run {
    pub(super) fn reopen(
        &mut self,
        plan: &Plan,
        steps: &[u32],
        around: &[u32],
        expires_at: Timestamp,
    ) -> Result<(), LoadError> {
        if !self.is_terminal() || steps.iter().chain(around).any(|step| self.get(*step).is_none()) {
            return Err(LoadError::Damaged("a retry names a step that is not there, or the run is open".into()));
        }
        self.state.retries += 1;
        self.state.retried = self.state.seq;
        self.forget_outputs(plan, steps);
        self.state.begun = 0;
        for step in steps {
            self.reopen_step(plan, *step);
        }
        for step in around {
            if let Some((of, index)) = self.iteration(*step)
                && let Some(iterations) = &mut self.step_mut(of).iterations
            {
                iterations.settled.remove(&index);
            }
            // What undid it belongs to its earlier end: it is undone again if it succeeds again.
            self.forget_undo(plan, *step);
            let state = self.step_mut(*step);
            state.phase = Phase::Open {};
            (state.finished_at, state.failure, state.response) = (None, None, None);
            state.done_with = 0;
        }
        let state = &mut self.state;
        state.status = RunStatus::Running;
        state.origin.expires_at = expires_at;
        (state.finished_at, state.failure, state.culprit, state.output) = (None, None, None, None);
        state.compensating = None;
        state.cancelled_by.clear();
        state.cancel_reason.clear();
        // Its end has closed these.
        state.closing.clear();
        self.reindex(plan);
        Ok(())
    }

    fn reopen_step(&mut self, plan: &Plan, step: u32) {
        let is_container = self.node(plan, step).inner().is_some();
        let has_inside = self.step(step).iterations.is_some() || self.children(step).next().is_some();
        for inner in self.descendants(step).into_iter().rev() {
            self.forget_undo(plan, inner);
            self.forget_step(plan, inner);
        }
        let was_undone = self.forget_undo(plan, step) == Some(Outcome::Ok);
        let inherited = self.inherited_repeats(step);
        let retries = self.state.retries;
        let old = std::mem::take(self.step_mut(step));
        let has_succeeded = old.outcome() == Some(Outcome::Ok);
        let repeats = match is_container {
            // No step inside of it has begun again more often than the run: this makes the keys of the new ones new.
            true if has_inside => retries.saturating_sub(inherited),
            true => old.repeats,
            false => {
                let is_new = has_succeeded || was_undone || planted_bugs::is(Bug::KeyChangedByRetry);
                old.repeats + u32::from(is_new)
            }
        };
        // A payload that no step has read is kept, as an unread signal is.
        let is_unread = matches!(old.status(), StepStatus::Skipped | StepStatus::Cancelled);
        *self.step_mut(step) = Step {
            attempt: old.attempt,
            place: old.place,
            callback: old.callback.filter(|_| is_unread),
            progress: old.progress.filter(|_| !has_succeeded && !was_undone),
            repeats,
            ..Step::default()
        };
    }

    /// The step that undoes this one leaves the state. Returns how it ended.
    fn forget_undo(&mut self, plan: &Plan, step: u32) -> Option<Outcome> {
        let undo = self.index.undos.remove(&step)?;
        let outcome = self.step(undo).outcome();
        self.forget_step(plan, undo);
        outcome
    }

    /// How often the step began again although it had succeeded: part of its idempotency key. What is inside of a group
    /// or loop that began again counts with it, and what undoes a step counts with that.
    pub fn repeats(&self, step: u32) -> u32 {
        self.step(step).repeats + self.inherited_repeats(step)
    }

    fn inherited_repeats(&self, step: u32) -> u32 {
        std::iter::successors(self.parent(step), |step| self.parent(*step)).map(|step| self.step(step).repeats).sum()
    }

    /// What the callback URL of a step is made from: its key. When a group or loop around it has begun again, the step is
    /// another one, and so is its URL.
    pub fn callback_key<'p>(&self, plan: &'p Plan, step: u32) -> Cow<'p, str> {
        match self.inherited_repeats(step) {
            0 => self.key(plan, step),
            repeats => Cow::Owned(format!("{}:r{repeats}", self.key(plan, step))),
        }
    }
}
