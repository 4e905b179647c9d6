//! Steps that wait for something from outside: a callback, a signal, an approval, or to be resumed.
//!
//! ```text
//!   WaitOpened, ApprovalRequested ─▶ Waiting ─┬─ callback, signal, decision, resume ─▶ Done
//!                                             └─ the deadline passes ─▶ Done
//! ```
//!
//! Due timers fire before the inputs of an advance are applied, so what arrives exactly at a deadline is late, and
//! exactly one of the two ends the wait.

use super::{AdvanceState, Answer};
use crate::event::{Callback, Event, Failure, Response};
use crate::expr::Seen;
use crate::payload::Payload;
use crate::plan::{ApprovalBody, Decision};
use crate::planted_bugs::{self, Bug};
use crate::run::{Phase, Run, SIGNALS_MAX, WaitKind};
use crate::status::StepStatus;
use crate::template;
use crate::time::{Span, Timestamp};
use bytes::Bytes;
use serde_json::{Value, json};

/// The code of a step that was denied.
pub const APPROVAL_DENIED: &str = "approval_denied";
/// The code of a step whose approval did not arrive in time.
pub const APPROVAL_TIMEOUT: &str = "approval_timeout";

/// Whether a step failed because it was not approved, or something inside of it. The code alone says nothing: workers
/// choose any.
pub(crate) fn is_denial(run: &Run, step: u32) -> bool {
    let state = run.step(step);
    if let Some(approval) = &state.approval {
        return approval.decision == Some(Decision::Denied);
    }
    let has_code = state.failure.as_ref().is_some_and(|f| f.code == APPROVAL_DENIED || f.code == APPROVAL_TIMEOUT);
    has_code && run.children(step).any(|inner| is_denial(run, inner))
}

/// A decision about an approval.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalDecision {
    pub decision: Decision,
    pub actor: String,
    pub comment: String,
    /// A digest of what the actor was shown.
    pub shown: String,
}

/// A signal for a run.
#[derive(Clone, Debug, PartialEq)]
pub struct IncomingSignal {
    pub name: String,
    pub body: Payload,
    pub actor: String,
    /// The digest of the key that the sender chose, or empty.
    pub key: Bytes,
    /// The digest of the request, to tell a repeat from another request with the same key.
    pub fingerprint: Bytes,
}

impl AdvanceState<'_> {
    pub(super) fn callback(&mut self, step: u32, body: Payload, digest: Bytes) -> Answer {
        let repeated = |earlier: &Bytes| match *earlier == digest {
            true => Answer::Repeated,
            false if self.run.is_terminal() => Answer::Gone,
            false => Answer::Conflict,
        };
        let Some(state) = self.run.get(step) else {
            let earlier = self.run.state.answered.get(&step).filter(|earlier| !earlier.digest.is_empty());
            return earlier
                .map_or_else(|| self.answer_without_step(step, Answer::Gone), |earlier| repeated(&earlier.digest));
        };
        if let Some(earlier) = &state.callback {
            return repeated(&earlier.digest);
        }
        let early = match state.phase {
            Phase::Waiting { .. } => false,
            Phase::Pending {} => true,
            _ => return Answer::Gone,
        };
        if self.is_over_size(&body) {
            return Answer::TooLarge;
        }
        if early && planted_bugs::is(Bug::EarlyCallbackDropped) {
            return Answer::Applied;
        }
        let callback = Callback { body: self.store_if_large(body), digest, ..Default::default() };
        match early {
            true => self.emit(Event::WaitClosed { step, callback }),
            false => self.emit(Event::Received { step, callback: Some(callback) }),
        }
        Answer::Applied
    }

    /// M20: a signal is kept in order until a step reads it; the step that has waited longest gets it.
    pub(super) fn signal(&mut self, signal: IncomingSignal) -> Answer {
        let IncomingSignal { name, body, actor, key, fingerprint } = signal;
        if let Some(earlier) = self.run.signal_fingerprint(&key) {
            return if *earlier == fingerprint { Answer::Repeated } else { Answer::Conflict };
        }
        if self.is_ending() {
            return Answer::Ended(self.run.status());
        }
        if self.run.state.signals.len() >= SIGNALS_MAX {
            return Answer::Full;
        }
        if self.is_over_size(&body) {
            return Answer::TooLarge;
        }
        let body = self.store_if_large(body);
        let waiting = self.run.first_signal_wait(&name);
        self.emit(Event::SignalReceived { name, body, actor, key, fingerprint });
        let number = self.run.state.seq;
        if let Some(step) = waiting {
            self.consume_signal(step, number);
        }
        Answer::Applied
    }

    /// Ends a step with a signal that no step has read.
    fn consume_signal(&mut self, step: u32, signal: u64) {
        if !planted_bugs::is(Bug::SignalReadTwice) {
            self.emit(Event::SignalConsumed { step, signal });
        }
        self.emit(Event::Received { step, callback: None });
    }

    /// Waits for a signal, unless one has arrived already.
    pub(super) fn start_signal_wait(&mut self, step: u32, name: &str, timeout: Option<Span>, seen: Vec<Seen>) {
        let unread = self.run.state.signals.iter().find(|signal| signal.name == name);
        match unread.map(|signal| signal.number).filter(|_| !planted_bugs::is(Bug::EarlySignalLost)) {
            Some(signal) => self.consume_signal(step, signal),
            None => self.open_wait(step, timeout, seen),
        }
    }

    /// Waits until `timeout` from now, or until the run expires.
    pub(super) fn open_wait(&mut self, step: u32, timeout: Option<Span>, seen: Vec<Seen>) {
        let deadline = self.deadline(timeout);
        self.emit(Event::WaitOpened { step, deadline, seen });
    }

    fn deadline(&self, timeout: Option<Span>) -> Timestamp {
        timeout.map_or(self.run.state.origin.expires_at, |timeout| self.context.now.after(timeout))
    }

    /// False when a payload is missing.
    pub(super) fn request_approval(&mut self, step: u32, approval: &ApprovalBody, seen: Vec<Seen>) -> bool {
        let view = self.view().of(step);
        let prompt = template::render_text(&approval.prompt, &view);
        let items = approval.items.as_ref().map(|items| template::render(items, &view)).transpose();
        let (prompt, items) = match (prompt, items) {
            (Ok(prompt), Ok(items)) => (prompt, items),
            (Err(unfilled), _) | (_, Err(unfilled)) => return self.stop(step, unfilled.into(), seen),
        };
        let items = items.map(|items| Payload::json(items.to_string()));
        if items.as_ref().is_some_and(|items| self.is_over_size(items)) {
            return self.stop(step, super::Stop::Failed(super::over_size_failure()), seen);
        }
        let items = items.map(|items| self.store_if_large(items));
        let deadline = self.deadline(approval.timeout);
        self.emit(Event::ApprovalRequested { step, deadline, prompt, items, seen });
        true
    }

    /// M22: the first decision counts. Without a step, the only open approval is meant.
    pub(super) fn decide_approval(&mut self, step: Option<u32>, verdict: ApprovalDecision) -> Answer {
        let repeated = |decided: Decision| match decided == verdict.decision {
            true => Answer::Repeated,
            false => Answer::Conflict,
        };
        if let Some(decided) = step.and_then(|step| self.run.state.answered.get(&step)?.decision) {
            return repeated(decided);
        }
        let step = match self.only_wait(step, WaitKind::Approval) {
            Ok(step) => step,
            Err(answer) => return answer,
        };
        let state = self.run.step(step);
        let Phase::Waiting { .. } = state.phase else {
            let is_decided = state.approval.as_ref().is_some_and(|approval| approval.decision.is_some());
            if planted_bugs::is(Bug::DecisionAfterDeadline) && is_decided && self.is_open() {
                self.end_approval(step, verdict, APPROVAL_DENIED);
                return Answer::Applied;
            }
            let decided = state.approval.as_ref().and_then(|approval| approval.decision);
            return decided.map_or(Answer::Gone, repeated);
        };
        let Some(approval) = self.run.node(self.plan, step).approval() else { return Answer::Unknown };
        let is_listed = approval.approvers.is_empty() || approval.approvers.contains(&verdict.actor);
        let is_initiator = approval.exclude_initiator && self.run.state.origin.actor == verdict.actor;
        if !is_listed || is_initiator {
            return Answer::Forbidden;
        }
        self.end_approval(step, verdict, APPROVAL_DENIED);
        Answer::Applied
    }

    fn end_approval(&mut self, step: u32, verdict: ApprovalDecision, code: &str) {
        let ApprovalDecision { decision, actor, comment, shown } = verdict;
        let or_null = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
        let body = json!({
            "decision": decision.as_str(),
            "actor": or_null(&actor),
            "at": self.context.now.to_string(),
            "comment": or_null(&comment),
            "shown_hash": or_null(&shown),
        });
        let message = match (code, comment.as_str()) {
            (APPROVAL_TIMEOUT, _) => "it was not approved before the deadline".to_owned(),
            (_, "") if actor.is_empty() => "denied, because the deadline passed".to_owned(),
            (_, "") => format!("denied by {actor}"),
            (_, comment) => format!("denied by {actor}: {comment}"),
        };
        self.emit(Event::ApprovalDecided { step, decision, actor, comment });
        let took = self.run.step(step).started_at.map_or(Span::default(), |at| self.context.now.since(at));
        let body = Some(self.store_if_large(Payload::json(body.to_string())));
        let response = Response { body, took, ..Default::default() };
        let (attempt, seen, digest) = (1, Vec::new(), 0);
        match decision {
            Decision::Approved => self.emit(Event::Succeeded { step, attempt, response, seen, digest }),
            Decision::Denied => {
                let failure = Failure::new(code, message);
                self.emit(Event::Failed { step, attempt, failure, response: Some(response), seen, digest });
            }
        }
    }

    /// Resumes a `pause` step. Without a step, the only one that waits is meant.
    pub(super) fn continue_step(&mut self, step: Option<u32>, actor: String) -> Answer {
        if step.and_then(|step| self.run.state.answered.get(&step)).is_some_and(|earlier| earlier.is_resumed) {
            return Answer::Repeated;
        }
        match self.only_wait(step, WaitKind::Pause) {
            Ok(step) if matches!(self.run.step(step).phase, Phase::Waiting { .. }) => {
                self.applied(Event::Continued { step, actor })
            }
            Ok(step) if self.run.step(step).status() == StepStatus::Success => Answer::Repeated,
            Ok(_) if self.run.is_terminal() => Answer::Ended(self.run.status()),
            Ok(_) => Answer::Unknown,
            Err(answer) => answer,
        }
    }

    /// The step that an input means: the named one if it is of this kind, or the only one of its kind that waits.
    fn only_wait(&self, step: Option<u32>, kind: WaitKind) -> Result<u32, Answer> {
        let is_of_kind = |step: u32| self.run.node(self.plan, step).wait_kind() == Some(kind);
        match step {
            Some(step) if self.run.get(step).is_none() => Err(self.answer_without_step(step, Answer::Gone)),
            Some(step) if is_of_kind(step) => Ok(step),
            Some(_) => Err(Answer::Unknown),
            None if self.run.is_terminal() => Err(Answer::Ended(self.run.status())),
            None => {
                let is_waiting = |step: &u32| matches!(self.run.step(*step).phase, Phase::Waiting { .. });
                let mut waiting =
                    self.run.steps().map(|(step, _)| step).filter(|step| is_waiting(step) && is_of_kind(*step));
                match (waiting.next(), waiting.next()) {
                    (Some(step), None) => Ok(step),
                    (Some(_), Some(_)) => Err(Answer::Ambiguous),
                    (None, _) => Err(Answer::Unknown),
                }
            }
        }
    }

    /// The deadline of a wait has passed.
    pub(super) fn end_wait(&mut self, step: u32) {
        let node = self.run.node(self.plan, step);
        if let Some(approval) = node.approval() {
            let code = if approval.default.is_some() { APPROVAL_DENIED } else { APPROVAL_TIMEOUT };
            let decision = approval.default.unwrap_or(Decision::Denied);
            let (actor, comment, shown) = Default::default();
            return self.end_approval(step, ApprovalDecision { decision, actor, comment, shown }, code);
        }
        let message = match node.wait_kind() {
            Some(WaitKind::Signal) => "no signal arrived before the deadline",
            Some(WaitKind::Pause) => "it was not resumed before the deadline",
            _ => "no callback arrived before the deadline",
        };
        let attempt = self.run.step(step).attempt;
        let failure = Failure::new("wait_timeout", message);
        self.emit(Event::TimedOut { step, attempt, failure, took: Default::default() });
    }
}
