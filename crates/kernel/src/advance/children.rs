//! Runs that a step starts, and what parents and children tell each other (M17–M19).
//!
//! ```text
//!   parent: ChildStarted ──StartChild──▶ child: Created
//!   parent ◀──ChildBegan (detached)──── child: Created
//!   parent ◀──ChildEnded (attached)──── child: its end
//!   parent: its end, or the end of its step ──ParentClosed──▶ child: cancelled
//! ```
//!
//! Each arrow is a row of the inbox of the run it leads to. It is written with the record that causes it and removed
//! by the record that consumes it, so neither a crash nor a repeat starts a child twice or loses its end. The id of a
//! child follows from its parent, the step and the attempt.

use super::results::{NextAttempt, TaskResult};
use super::{AdvanceState, Answer};
use crate::event::{Event, Failure, Parent, Response};
use crate::expr::{self, Seen};
use crate::id::{InboxId, RunId};
use crate::inbox::{ChildOutcome, InboxKind, StartChild, StoredInput};
use crate::payload::Payload;
use crate::plan::{ChildBody, OnParentClose};
use crate::planted_bugs::{self, Bug};
use crate::retry;
use crate::run::{CHILDREN_MAX, CalledOff, ChildLink, Phase};
use crate::status::RunStatus;
use crate::template;
use crate::time::Span;
use bytes::Bytes;
use serde_json::{Value, json};

/// How deep runs may call runs (M5).
pub const CALL_DEPTH_MAX: u32 = 8;
/// The largest input of a child.
const INPUT_MAX: u64 = 256 * 1024;

/// What a run does to the runs that it started and that end with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedBy {
    Cancel,
    /// They undo what they did first.
    Undo,
}

/// A row for the inbox of another run, written with the record that causes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingRow {
    pub to: RunId,
    pub id: InboxId,
    pub kind: InboxKind,
    pub body: Bytes,
}

impl AdvanceState<'_> {
    /// Starts the run of another workflow. False when a payload is missing.
    pub(super) fn start_child(&mut self, step: u32, child: &ChildBody, seen: Vec<Seen>) -> bool {
        let view = self.view().of(step);
        let input = match &child.input {
            Some(input) => template::render(input, &view).map_err(super::Stop::from),
            None => view.trigger_body().map_err(super::Stop::from),
        };
        let workflow = template::render_text(&child.workflow, &view).map_err(super::Stop::from);
        let (workflow, input) = match (workflow, input) {
            (Ok(workflow), Ok(input)) => (workflow, input),
            (Err(stop), _) | (_, Err(stop)) => return self.stop(step, stop, seen),
        };
        let input = Payload::json(input.to_string());
        let origin = &self.run.state.origin;
        let (above, spent) = origin.parent.as_ref().map_or((0, 0), |parent| (parent.depth, parent.spent));
        // What this run and those above it are known to have started. Children that are open count only as themselves.
        let (depth, spent) = (above + 1, spent.saturating_add(self.run.state.children));
        let failure = if !child.allow.is_empty() && !child.allow.contains(&workflow) {
            let allowed = child.allow.join(", ");
            Some(Failure::new("workflow_not_allowed", format!("`{workflow}` is not one of: {allowed}")))
        } else if depth > CALL_DEPTH_MAX {
            Some(Failure::new("too_deep", format!("workflows call each other at most {CALL_DEPTH_MAX} deep")))
        } else if spent >= CHILDREN_MAX {
            let message = "a run and its children start at most 10,000 runs together";
            Some(Failure::new("too_many_children", message))
        } else if input.len > INPUT_MAX {
            Some(Failure::new("input_too_large", "the input of a child is at most 256 KiB"))
        } else {
            None
        };
        if let Some(failure) = failure {
            return self.stop(step, super::Stop::Failed(failure), seen);
        }
        let attempt = self.run.step(step).attempt + 1;
        let id = self.child_id(step, attempt);
        let is_closed_with_parent = child.on_parent_close == OnParentClose::Cancel;
        let start = StartChild {
            workflow: workflow.clone(),
            input,
            parent: Some(Parent {
                run: self.context.run,
                step,
                attempt,
                key: self.run.key(self.plan, step).into_owned(),
                workflow: origin.workflow_name.clone(),
                depth,
                is_detached: child.detached,
                actor: origin.actor.clone(),
                spent: spent + 1,
                ..Default::default()
            }),
            ..Default::default()
        };
        self.emit(Event::ChildStarted {
            step,
            attempt,
            child: id,
            workflow,
            is_detached: child.detached,
            is_closed_with_parent,
            seen,
        });
        self.send(id, InboxKind::StartChild, crate::wire::seal(&start).into());
        true
    }

    /// M17: one child for each attempt, whatever crashes.
    fn child_id(&self, step: u32, attempt: u32) -> RunId {
        RunId::new(self.context.now, self.digest(step, attempt))
    }

    /// A hash of this run and two numbers. Each word is mixed in by itself: the ids of runs that are created together
    /// differ as little as the numbers do.
    fn digest(&self, a: u32, b: u32) -> [u8; 10] {
        let (high, low) = self.context.run.0.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        let words = [word(high), word(low), u64::from(a), u64::from(b)];
        let first = words.into_iter().fold(0, |hash, word| retry::mix(hash ^ word));
        let second = retry::mix(first);
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes()[..2]);
        bytes
    }

    fn send(&mut self, to: RunId, kind: InboxKind, body: Bytes) {
        let number = self.out.outgoing.len() as u32;
        // The number of the first event that this advance emits: another advance may send at the same time, and before its
        // first event.
        let first = self.run.state.seq - self.events.len() as u64 + 1;
        let id = InboxId::new(self.context.now, self.digest(first as u32, !number));
        self.out.outgoing.push(OutgoingRow { to, id, kind, body });
    }

    fn give(&mut self, to: RunId, input: StoredInput) {
        self.send(to, InboxKind::Input, input.seal());
    }

    /// M19: a child exists, so the step of a parent that does not wait for its end has succeeded.
    pub(super) fn child_began(&mut self, step: u32, attempt: u32) -> Answer {
        if let Some((child, called_off)) = self.called_off_child(step, attempt) {
            let (child, status, never_began, descendants) = (child.run, None, false, 0);
            self.emit(Event::ChildEnded { step, attempt, child, status, never_began, descendants });
            let body = Some(Payload::json(json!({ "run_id": child.to_string() }).to_string()));
            return self.returned(step, called_off, TaskResult::Done { body, took: Span::default() }, 0);
        }
        let Some(child) = self.awaited_child(step, attempt) else { return Answer::Gone };
        self.emit(Event::ChildEnded {
            step,
            attempt,
            child: child.run,
            status: None,
            never_began: false,
            descendants: 0,
        });
        if self.run.status() == RunStatus::Cancelling {
            self.emit(Event::Cancelled { step });
            self.finish_cancelling();
            return Answer::Applied;
        }
        self.settle_child(step, attempt, Some(Payload::json(json!({ "run_id": child.run.to_string() }).to_string())));
        Answer::Applied
    }

    /// M18: the end of a child ends the attempt.
    pub(super) fn child_ended(&mut self, step: u32, attempt: u32, outcome: ChildOutcome) -> Answer {
        let called_off = self.called_off_child(step, attempt);
        let awaited = || self.awaited_child(step, attempt);
        let Some(child) = called_off.as_ref().map(|(child, _)| child.clone()).or_else(awaited) else {
            return Answer::Gone;
        };
        let ChildOutcome { status, output, failure, is_refused, never_began, descendants, .. } = outcome;
        let never_began = never_began || is_refused;
        let status_now = Some(status);
        self.emit(Event::ChildEnded { step, attempt, child: child.run, status: status_now, never_began, descendants });
        if let Some((_, called_off)) = called_off {
            let took = Span::default();
            let failure = Failure::new("child_cancelled", format!("{} {status}", child.run));
            let result = match status {
                RunStatus::Completed => TaskResult::Done { body: output, took },
                _ => TaskResult::Failed { failure, retryable: false, retry_after: None, took },
            };
            return self.returned(step, called_off, result, 0);
        }
        if self.run.status() == RunStatus::Cancelling {
            self.emit(Event::Cancelled { step });
            self.finish_cancelling();
            return Answer::Applied;
        }
        if output.as_ref().is_some_and(|output| self.is_over_size(output)) {
            let _ = self.stop(step, super::Stop::Failed(super::over_size_failure()), Vec::new());
            return Answer::Applied;
        }
        let code = match status {
            RunStatus::Completed => {
                self.settle_child(step, attempt, output);
                return Answer::Applied;
            }
            RunStatus::Cancelled => "child_cancelled",
            RunStatus::Timeout => "child_timeout",
            _ => "child_failed",
        };
        let inner = failure.as_ref().map_or(Value::Null, |f| json!({ "code": f.code, "message": f.message }));
        let (failure, body) = match failure {
            Some(failure) if never_began => (failure, json!({ "status": status.as_str(), "error": inner })),
            failure => {
                let cause = failure.map_or(String::new(), |f| format!(": {}", f.message));
                let message = expr::cut(format!("{} of `{}` {status}{cause}", child.run, child.workflow));
                let body = json!({ "run_id": child.run.to_string(), "status": status.as_str(), "error": inner });
                (Failure::new(code, message), body)
            }
        };
        if is_refused || !self.retry(step, failure.clone(), NextAttempt::default()) {
            let took = self.run.step(step).started_at.map_or(Span::default(), |at| self.context.now.since(at));
            let body = Some(self.store_if_large(Payload::json(body.to_string())));
            let response = Some(Response { body, took, ..Default::default() });
            self.emit(Event::Failed { step, attempt, failure, response, seen: Vec::new(), digest: 0 });
        }
        Answer::Applied
    }

    /// The child that a step waits for, if this is its attempt.
    fn awaited_child(&self, step: u32, attempt: u32) -> Option<ChildLink> {
        let state = self.run.get(step)?;
        let is_awaited = matches!(state.phase, Phase::Child {}) && state.attempt == attempt && self.is_open();
        state.child.as_deref().filter(|_| is_awaited).cloned()
    }

    /// The child of an attempt that was called off and has not come to its end.
    fn called_off_child(&self, step: u32, attempt: u32) -> Option<(ChildLink, CalledOff)> {
        let called_off = self.called_off(step, 0).filter(|called_off| called_off.attempt == attempt)?;
        Some((self.run.get(step)?.child.as_deref()?.clone(), called_off))
    }

    fn settle_child(&mut self, step: u32, attempt: u32, body: Option<Payload>) {
        let took = self.run.step(step).started_at.map_or(Span::default(), |at| self.context.now.since(at));
        let body = body.map(|body| self.store_if_large(body));
        let response = Response { body, took, ..Default::default() };
        self.emit(Event::Succeeded { step, attempt, response, seen: Vec::new(), digest: 0 });
    }

    /// The run exists now: its parent learns so, if it does not wait for the end.
    pub(super) fn tell_parent_of_start(&mut self) {
        if let Some(parent) = self.run.state.origin.parent.clone().filter(|parent| parent.is_detached) {
            self.give(parent.run, StoredInput::ChildBegan { step: parent.step, attempt: parent.attempt });
        }
    }

    /// The run has ended: its parent learns how, and its children that end with it are cancelled.
    pub(super) fn tell_others_of_end(&mut self) {
        let is_buggy = planted_bugs::is(Bug::ChildEndLost) && self.run.status() == RunStatus::Cancelled;
        if let Some(parent) = self.run.state.origin.parent.clone().filter(|parent| !parent.is_detached && !is_buggy) {
            let state = &self.run.state;
            let output = state.output.as_ref().map(|output| self.whole(output));
            let failure = match state.status {
                RunStatus::Cancelled => Some(Failure::new("cancelled", state.cancel_reason.clone())),
                RunStatus::Timeout => Some(Failure::new("run_timeout", "it did not finish within `max_duration`")),
                _ => state.failure.clone(),
            };
            let (status, descendants) = (state.status, state.children);
            let outcome = ChildOutcome { status, output, failure, descendants, ..Default::default() };
            let input = StoredInput::ChildEnded { step: parent.step, attempt: parent.attempt, outcome: Some(outcome) };
            self.give(parent.run, input);
        }
        for child in self.run.state.closing.clone() {
            self.close_child(child);
        }
    }

    /// A payload with its bytes, for a row of another run.
    fn whole(&self, payload: &Payload) -> Payload {
        let bytes = payload.bytes(&self.fresh).or_else(|_| payload.bytes(self.context.payloads));
        match bytes {
            Ok(bytes) => Payload { inline: bytes.clone(), stored: None, ..payload.clone() },
            Err(_) => payload.clone(),
        }
    }

    pub(super) fn close_child(&mut self, child: RunId) {
        if planted_bugs::is(Bug::GrandchildMissed) && self.run.state.origin.parent.is_some() {
            return;
        }
        let parent = self.context.run;
        self.give(
            child,
            match self.closes_children_by() {
                ClosedBy::Cancel => StoredInput::ParentClosed { parent },
                ClosedBy::Undo => StoredInput::ParentUndone { parent },
            },
        );
    }

    /// M19: the parent has ended, or no longer needs the result.
    pub(super) fn parent_closed(&mut self, parent: RunId, compensate: bool) -> Answer {
        match &self.run.state.origin.parent {
            Some(of) if of.run == parent => self.cancel(format!("{parent}"), "parent_closed".to_owned(), compensate),
            _ => Answer::Unknown,
        }
    }

    /// Whether a step waits for a child that ends with it.
    pub(super) fn open_child(&self, step: u32) -> Option<RunId> {
        let state = self.run.get(step)?;
        let child = state.child.as_ref().filter(|child| child.is_closed_with_parent)?;
        matches!(state.phase, Phase::Child {}).then_some(child.run)
    }

    /// The steps that wait for children that end with this run.
    pub(super) fn open_children(&self) -> impl Iterator<Item = u32> + '_ {
        self.run.index.child_waits.iter().copied().filter(|step| self.open_child(*step).is_some())
    }

    /// Ends a run that is being cancelled once its last child has ended.
    pub(super) fn finish_cancelling(&mut self) {
        if self.run.status() == RunStatus::Cancelling && self.open_children().next().is_none() {
            let (actor, reason) = (self.run.state.cancelled_by.clone(), self.run.state.cancel_reason.clone());
            self.emit(Event::RunCancelled { actor, reason });
        }
    }
}
