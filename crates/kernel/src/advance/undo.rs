//! Undo: a run that cannot complete takes back what it did (M24–M26).
//!
//! ```text
//!   a failure, a denial, the expiry, a cancellation ──RunCompensating──▶ compensating ──▶ failed, cancelled, timeout
//!                                                     │        ▲
//!                               one undo at a time ──▶└─ Opened, … Done
//! ```
//!
//! What undoes a step is a step of its own, opened when its turn comes: its attempts, retries and leases are those of
//! any other step. The order follows from the state: the step that succeeded last and has no undo yet is next. Nothing
//! is undone while an attempt of the run may still be at work: an attempt that was called off is awaited until it reports
//! or its time is over, and if it succeeded after all, it is undone, too.

use super::children::ClosedBy;
use super::results::{TaskResult, is_expected};
use super::{AdvanceState, Answer, Stop};
use crate::event::{EndAfterUndo, Event, Failure, Response};
use crate::plan::{Body, Http, TaskBody};
use crate::planted_bugs::{self, Bug};
use crate::run::{CalledOff, Phase};
use crate::status::{Outcome, RunStatus};
use crate::template;
use bytes::Bytes;
use serde_json::{Value, json};

impl AdvanceState<'_> {
    /// Ends the run, or lets it undo first what it did.
    pub(super) fn end_run(&mut self, end: EndAfterUndo) {
        match self.must_undo() {
            true => self.emit(Event::RunCompensating { end: Box::new(end) }),
            false => self.emit(final_event(&end)),
        }
    }

    /// Whether there is anything to undo, or an attempt at work that may turn out to be.
    fn must_undo(&self) -> bool {
        let can_be_undone = |step: u32| self.run.node(self.plan, step).undo.is_some();
        self.plan.can_undo()
            && (self.run.still_to_undo().next().is_some()
                || self.run.state.called_off.keys().any(|step| can_be_undone(*step)))
    }

    /// Calls off what is at work and ends the run, after undoing what it did and what that may still turn out to do.
    /// `awaits_children` lets the runs that it started undo first what they did.
    pub(super) fn stop_and_end(&mut self, end: EndAfterUndo, awaits_children: bool) {
        let is_at_work =
            |phase: &Phase| matches!(phase, Phase::Running { .. } | Phase::Leased { .. } | Phase::Child {});
        let may_be_undone =
            |step: u32| is_at_work(&self.run.step(step).phase) && self.run.node(self.plan, step).undo.is_some();
        let waits = awaits_children && self.open_children().next().is_some();
        if waits || self.must_undo() || self.run.steps().any(|(step, _)| may_be_undone(step)) {
            // First the event: from it on, the run keeps what it calls off.
            self.emit(Event::RunCompensating { end: Box::new(end) });
            return self.cancel_open_steps();
        }
        self.cancel_open_steps();
        self.emit(final_event(&end));
    }

    /// Does the next thing of a run that undoes what it did. False when it must wait, or has ended.
    pub(super) fn undo_next(&mut self) -> bool {
        let is_beside = !self.run.state.called_off.is_empty() && !planted_bugs::is(Bug::UndoBesideAttempt);
        if is_beside || self.run.is_held() {
            return false;
        }
        if let Some(undo) = self.run.index.undoing {
            // It was opened, and a payload was missing to start it.
            return matches!(self.run.step(undo).phase, Phase::Pending {}) && self.start(undo, Vec::new());
        }
        let next = match planted_bugs::is(Bug::UndoInOrder) {
            true => self.run.still_to_undo().last(),
            false => self.run.still_to_undo().next(),
        };
        let has_failed = |undo: u32| self.run.step(undo).outcome() == Some(Outcome::Failed);
        let is_given_up =
            planted_bugs::is(Bug::UndoStopsAtFailure) && self.run.undos().iter().any(|(_, undo)| has_failed(*undo));
        match next.filter(|_| !is_given_up) {
            Some(undone) => {
                let Some(node) = self.run.node(self.plan, undone).undo else { return false };
                let step = self.run.next_step();
                self.emit(Event::Opened { step, node, parent: undone, index: 0 });
            }
            None => {
                let Some(end) = self.run.state.compensating.clone() else { return false };
                self.emit(final_event(&end));
            }
        }
        true
    }

    /// The attempt of this step that was called off, if this is its fence.
    pub(super) fn called_off(&self, step: u32, fence: u64) -> Option<CalledOff> {
        self.run.state.called_off.get(&step).filter(|attempt| attempt.fence == fence && self.is_open()).cloned()
    }

    /// An attempt that was called off reports.
    pub(super) fn returned(&mut self, step: u32, attempt: CalledOff, result: TaskResult, digest: u64) -> Answer {
        let expected = self.run.node(self.plan, step).http().map_or(&[][..], |http| http.expected.as_slice());
        let (response, failure) = match result {
            TaskResult::Done { body, took } => (Some(Response { body, took, ..Default::default() }), None),
            TaskResult::Response { status, headers, body, took, .. } if is_expected(status, expected) => {
                let response =
                    Response { status_code: Some(status), headers, body: Some(body), took, ..Default::default() };
                (Some(response), None)
            }
            TaskResult::Response { status, .. } => {
                (None, Some(Failure::new("http_status", format!("the server answered {status}"))))
            }
            TaskResult::Failed { failure, .. } | TaskResult::Blocked { failure, .. } => (None, Some(failure)),
            TaskResult::TimedOut { message, .. } => (None, Some(Failure::new("timeout", message))),
        };
        // What it did is done, however large the answer is.
        let response = response.map(|response| {
            let body = response.body.filter(|body| !self.is_over_size(body)).map(|body| self.store_if_large(body));
            Response { body, ..response }
        });
        self.emit(Event::Returned { step, attempt: attempt.attempt, response, failure, digest });
        Answer::Applied
    }

    /// An attempt that was called off has not reported in time.
    pub(super) fn give_up(&mut self, step: u32) {
        let Some(attempt) = self.run.state.called_off.get(&step).map(|attempt| attempt.attempt) else { return };
        let failure = Failure::new("outcome_unknown", "it was called off, and did not report in time");
        self.emit(Event::Returned { step, attempt, response: None, failure: Some(failure), digest: 0 });
    }

    /// Whether the runs that this one started undo what they did when it closes them.
    pub(super) fn closes_children_by(&self) -> ClosedBy {
        let end = self.run.state.compensating.as_ref();
        match end.is_some_and(|end| end.status == RunStatus::Cancelled && end.undoes_children) {
            true => ClosedBy::Undo,
            false => ClosedBy::Cancel,
        }
    }

    /// S27: what a worker gets that undoes a step and has no `input` of its own.
    pub(super) fn undo_input(&self, undone: u32) -> Result<Bytes, Stop> {
        let view = self.view();
        let mut missing = Vec::new();
        let mut output = String::new();
        view.append_json(self.run.step(undone).body(), &mut output, &mut missing)?;
        let input = match self.run.node(self.plan, undone).body.as_ref() {
            Some(Body::Task { task }) => self.input_of(undone, task),
            Some(Body::Http { request }) => self.body_of(undone, request),
            _ => Ok(Value::Null),
        };
        let (input, payload) = match (input, view.trigger_body().map_err(Stop::from)) {
            (Ok(input), Ok(payload)) => (input, payload),
            (Err(stop), _) | (_, Err(stop)) => return Err(stop),
        };
        if !missing.is_empty() {
            return Err(Stop::Missing(missing));
        }
        let output: Value = serde_json::from_str(&output).unwrap_or(Value::Null);
        let end = self.run.state.compensating.as_deref();
        let failed = end.and_then(|end| end.step).map(|step| self.run.key(self.plan, step).into_owned());
        let failure = end.map(|end| match &end.failure {
            Some(failure) => json!({ "code": failure.code, "message": failure.message, "step": failed }),
            None => json!({ "code": end.status.as_str(), "message": end.reason, "step": failed }),
        });
        let context = json!({
            "run_id": self.context.run.to_string(),
            "workflow": self.run.state.origin.workflow_name,
        });
        let step = json!({ "key": self.run.key(self.plan, undone), "input": input, "output": output });
        Ok(json!({ "payload": payload, "context": context, "step": step, "failure": failure }).to_string().into())
    }

    fn input_of(&self, step: u32, task: &TaskBody) -> Result<Value, Stop> {
        match &task.input {
            Some(input) => Ok(template::render(input, &self.view().of(step))?),
            None => Ok(self.view().trigger_body()?),
        }
    }

    fn body_of(&self, step: u32, request: &Http) -> Result<Value, Stop> {
        match &request.body {
            Some(body) => Ok(template::render(body, &self.view().of(step))?),
            None => Ok(Value::Null),
        }
    }
}

/// The last event of a run that ends like this.
fn final_event(end: &EndAfterUndo) -> Event {
    match (end.status, &end.failure) {
        (RunStatus::Cancelled, _) => Event::RunCancelled { actor: end.actor.clone(), reason: end.reason.clone() },
        (RunStatus::Timeout, _) => Event::RunTimeout {},
        (_, failure) => {
            let failure = failure.clone().unwrap_or_else(|| Failure::new("step_failed", ""));
            Event::RunFailed { failure, step: end.step }
        }
    }
}
