//! What operators decide about a step of an open run (M32): skip it, give its result, or let what it waits for be due.
//!
//! The step must not have settled. Its attempt is called off, and so is everything inside of it; then it settles as any
//! other step does, and what needs it follows. In a run that undoes what it did, only the steps that undo others can be
//! decided about.

use super::{AdvanceState, Answer};
use crate::event::{Because, Event, Override, Response};
use crate::payload::Payload;
use crate::planted_bugs::{self, Bug};
use crate::run::Phase;
use crate::status::RunStatus;
use crate::time::Span;

/// A decision about a step, and who made it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOverride {
    pub verb: Override,
    /// The result, for [`Override::Result`].
    pub body: Option<Payload>,
    pub actor: String,
    pub reason: String,
}

impl AdvanceState<'_> {
    pub(super) fn override_step(&mut self, step: u32, decision: StepOverride) -> Answer {
        let Some(state) = self.run.get(step) else { return self.answer_without_step(step, Answer::Gone) };
        let is_undo = self.run.undoes(self.plan, step).is_some();
        if self.is_ending() && !(is_undo && self.run.status() == RunStatus::Compensating) {
            return Answer::Ended(self.run.status());
        }
        if state.outcome().is_some() && !planted_bugs::is(Bug::OverriddenTwice) {
            return Answer::Gone;
        }
        if self.run.iteration(step).is_some() {
            return Answer::Unknown;
        }
        match decision.verb {
            Override::RunNow => self.run_now(step, decision),
            Override::Skip => {
                let (actor, reason) = (decision.actor.clone(), decision.reason.clone());
                self.take_over(step, decision);
                self.applied(Event::Skipped { step, because: Because::Operator { actor, reason } })
            }
            Override::Result => {
                let Some(body) = decision.body.clone() else { return Answer::Unknown };
                if self.is_over_size(&body) {
                    return Answer::TooLarge;
                }
                self.take_over(step, decision);
                let state = self.run.step(step);
                let attempt = state.attempt.max(1);
                let took = state.started_at.map_or(Span::default(), |at| self.context.now.since(at));
                let response = Response { body: Some(self.store_if_large(body)), took, ..Default::default() };
                self.applied(Event::Succeeded { step, attempt, response, seen: Vec::new(), digest: 0 })
            }
        }
    }

    /// Calls off what the step does, and what is at work inside of it.
    fn take_over(&mut self, step: u32, decision: StepOverride) {
        let mut inside = self.run.descendants(step);
        inside.reverse();
        self.cancel_begun(inside);
        let StepOverride { verb, actor, reason, .. } = decision;
        let mut was_dispatched = true;
        match self.run.step(step).phase {
            Phase::Running { fence, .. } | Phase::Leased { fence, .. } => {
                was_dispatched = self.abort_attempt(step, fence);
            }
            Phase::Child {} => self.open_child(step).into_iter().for_each(|child| self.close_child(child)),
            _ => {}
        }
        self.emit(Event::Overridden { step, verb, actor, reason });
        self.note_unsent(step, was_dispatched);
    }

    /// The end of a sleep or of the time between two attempts.
    fn run_now(&mut self, step: u32, decision: StepOverride) -> Answer {
        let StepOverride { verb, actor, reason, .. } = decision;
        match self.run.step(step).phase {
            Phase::Sleeping { .. } => {
                self.emit(Event::Overridden { step, verb, actor, reason });
                self.applied(Event::Woken { step })
            }
            Phase::Retrying { .. } if !self.run.is_held() => {
                self.emit(Event::Overridden { step, verb, actor: actor.clone(), reason });
                self.applied(Event::RetryDue { step, actor })
            }
            _ => Answer::Conflict,
        }
    }
}
