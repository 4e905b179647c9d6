//! Task steps: a worker claims one, holds a lease on it, and reports its result.
//!
//! ```text
//!   ready ──offer, claim──▶ leased ──finished──▶ done
//!     ▲                       │ failed, snoozed, lease lost
//!     └──────── retrying ◀────┘
//! ```
//!
//! The number of the event that leased a step is its *fence*. A worker that reports with another fence no longer
//! holds the step. The kernel does not track when a lease ends, because a heartbeat must not cost a write; the end
//! of a lease arrives as [`Input::Lost`](super::Input::Lost).

use super::results::NextAttempt;
use super::start::Stop;
use super::{AdvanceState, Answer, Assignment, Effect, Offer, OfferedTask, TaskResult};
use crate::event::{Event, Failure, LogLine};
use crate::expr::{self, Seen};
use crate::payload::Payload;
use crate::plan::{TaskBody, TaskKind};
use crate::planted_bugs::{self, Bug};
use crate::run::Phase;
use crate::status::StepStatus;
use crate::template;
use crate::time::{Span, Timestamp};
use bytes::Bytes;
use serde_json::Value;

/// A step fails as `quarantined` after this many of its workers went silent.
const DEATHS_MAX: u32 = 3;

impl AdvanceState<'_> {
    /// Leases a step to a worker that waits for such a task, or makes it ready. False when a payload is missing.
    pub(super) fn lease_or_enqueue(&mut self, step: u32, task: &TaskBody, seen: Vec<Seen>) -> bool {
        let input = match self.task_input(step, task) {
            // The trigger body is only needed once a worker claims the task.
            Err(Stop::Missing(_)) if task.input.is_none() => None,
            Err(stop) => return self.stop(step, stop, seen),
            Ok(input) => Some(input),
        };
        let key = match self.task_key(step, task) {
            Err(stop) => return self.stop(step, stop, seen),
            Ok(key) => key,
        };
        let of_type = match self.task_type(step, task) {
            Err(stop) => return self.stop(step, stop, seen),
            Ok(of_type) => of_type,
        };
        let name = if of_type.is_empty() { &task.name } else { &of_type };
        let priority = self.run.priority(self.plan, step);
        let wanted = OfferedTask { step, name, key: &key, priority };
        let may_lease = !self.context.is_draining && !self.run.is_held();
        match input.filter(|_| may_lease).and_then(|input| Some((input, (self.context.offer)(wanted)?))) {
            Some((input, offer)) => self.lease(step, task, offer, input, (key, of_type), seen),
            None => {
                let attempt = self.run.step(step).attempt + 1;
                self.emit(Event::Scheduled { step, attempt, seen, key, of_type });
            }
        }
        true
    }

    pub(super) fn claim(&mut self, step: u32, offer: Offer) -> Answer {
        if self.run.get(step).is_none() {
            return self.answer_without_step(step, Answer::Stale);
        }
        if !self.is_claimable(step) || self.context.is_draining {
            return Answer::Stale;
        }
        let Some(task) = self.run.node(self.plan, step).task() else { return Answer::Unknown };
        match self.task_input(step, task) {
            Ok(input) => {
                let state = self.run.step(step);
                let queue = (state.key.clone(), state.of_type.clone());
                self.lease(step, task, offer, input, queue, Vec::new());
                Answer::Applied
            }
            Err(stop @ Stop::Missing(_)) => {
                self.stop(step, stop, Vec::new());
                Answer::Later
            }
            Err(stop) => {
                self.stop(step, stop, Vec::new());
                Answer::Stale
            }
        }
    }

    /// Leases a step. `key` and `of_type` are those of the queue it comes from.
    fn lease(
        &mut self,
        step: u32,
        task: &TaskBody,
        offer: Offer,
        input: Bytes,
        (key, of_type): (String, String),
        seen: Vec<Seen>,
    ) {
        let name = if of_type.is_empty() { task.name.clone() } else { of_type.clone() };
        let Offer { worker, lease, offer_id, slot, key_slot } = offer;
        let lease = task.heartbeat.map_or(lease, |limit| limit.min(lease));
        let attempt = self.run.step(step).attempt + 1;
        let epoch = self.context.epoch;
        let leased = Event::Leased {
            step,
            attempt,
            worker: worker.clone(),
            lease,
            seen,
            key: key.clone(),
            epoch,
            slot,
            key_slot,
            of_type,
        };
        self.emit(leased);
        let assignment = Assignment {
            step_key: self.run.key(self.plan, step).into_owned(),
            max_lease: task.heartbeat.unwrap_or(Span(u64::MAX)),
            name,
            key,
            worker,
            lease,
            input,
            max_attempts: self.run.node(self.plan, step).retry.max_attempts,
            progress: self.run.step(step).progress.as_ref().map(|progress| progress.inline.clone()),
            repeats: self.run.repeats(step),
        };
        let (fence, task) = (self.run.state.seq, Box::new(assignment));
        self.out.effects.push(Effect::LeaseTask { step, attempt, fence, offer_id, task });
    }

    /// The input that the worker gets.
    fn task_input(&self, step: u32, task: &TaskBody) -> Result<Bytes, Stop> {
        let undone = self.run.undoes(self.plan, step);
        let Some(input) = &task.input else {
            return undone.map_or_else(|| self.trigger_body(), |undone| self.undo_input(undone));
        };
        Ok(template::render(input, &self.view().of(step))?.to_string().into())
    }

    /// The concurrency key of the task.
    fn task_key(&self, step: u32, task: &TaskBody) -> Result<String, Stop> {
        match task.key.is_empty() {
            true => Ok(self.run.state.origin.key.clone()),
            false => Ok(template::render_text(&task.key, &self.view().of(step))?),
        }
    }

    /// The type of the task if a template forms it, else nothing. It is one of those that the step lists: data never
    /// chooses the workers freely.
    fn task_type(&self, step: u32, task: &TaskBody) -> Result<String, Stop> {
        if task.of_type.is_empty() {
            return Ok(String::new());
        }
        let name = template::render_text(&task.of_type, &self.view().of(step))?;
        match task.allow.contains(&name) {
            true => Ok(name),
            false => {
                let message = expr::cut(format!("`{name}` is not one of: {}", task.allow.join(", ")));
                Err(Stop::Failed(Failure::new("type_not_allowed", message)))
            }
        }
    }

    fn trigger_body(&self) -> Result<Bytes, Stop> {
        let body = &self.run.state.origin.body;
        let is_fresh = body.stored.is_some_and(|number| self.fresh.contains_key(&number));
        let payloads = if is_fresh { &self.fresh } else { self.context.payloads };
        let bytes = body.bytes(payloads).map_err(|number| Stop::Missing(vec![number]))?;
        match body.text {
            true => Ok(Value::String(String::from_utf8_lossy(bytes).into_owned()).to_string().into()),
            false => Ok(bytes.clone()),
        }
    }

    pub(super) fn heartbeat(&mut self, step: u32, fence: u64, progress: Option<Payload>) -> Answer {
        let answer = self.check_fence(step, fence, planted_bugs::is(Bug::HeartbeatById));
        if answer != Answer::Applied {
            return answer;
        }
        let attempt = self.run.step(step).attempt;
        if let Some(progress) = progress {
            if self.is_over_size(&progress) {
                return Answer::TooLarge;
            }
            self.emit(Event::Progress { step, attempt, progress });
        }
        if self.is_tracked_elsewhere(step) {
            self.record_alive(step);
        }
        answer
    }

    /// Does another node track the lease of this step so far?
    fn is_tracked_elsewhere(&self, step: u32) -> bool {
        matches!(self.run.step(step).phase, Phase::Leased { epoch, .. } if epoch != self.context.epoch)
    }

    /// The node that receives a worker's heartbeats tracks its lease. When another node tracked it so far, the
    /// event takes the lease over.
    fn record_alive(&mut self, step: u32) {
        if self.is_tracked_elsewhere(step) {
            self.out.effects.push(Effect::AdoptLease);
        }
        let (attempt, epoch) = (self.run.step(step).attempt, self.context.epoch);
        self.emit(Event::Kept { step, attempt, epoch });
    }

    pub(super) fn still_alive(&mut self, step: u32, fence: u64) -> Answer {
        let answer = self.check_fence(step, fence, false);
        if answer == Answer::Applied {
            self.record_alive(step);
        }
        answer
    }

    pub(super) fn log(&mut self, step: u32, fence: u64, lines: Vec<LogLine>) -> Answer {
        let answer = self.check_fence(step, fence, false);
        if answer != Answer::Applied {
            return answer;
        }
        let len = lines.iter().map(|line| line.message.len() as u64).sum();
        if self.is_over_size(&Payload { len, ..Default::default() }) {
            return Answer::TooLarge;
        }
        let attempt = self.run.step(step).attempt;
        self.applied(Event::Logged { step, attempt, lines })
    }

    /// `Applied` when `fence` is the fence of the step's current lease.
    fn check_fence(&self, step: u32, fence: u64, ignore_fence: bool) -> Answer {
        let Some(state) = self.run.get(step) else { return self.answer_without_step(step, Answer::Stale) };
        match state.phase {
            Phase::Leased { fence: current, .. } if current == fence || ignore_fence => Answer::Applied,
            _ if self.called_off(step, fence).is_some() => Answer::Ended(self.run.status()),
            _ if self.is_closed() && state.fence == fence => Answer::Ended(self.run.status()),
            _ => Answer::Stale,
        }
    }

    /// The answer to a report that repeats or contradicts an earlier one. `None` when the report must be judged.
    /// Once the run ends, only the worker that held the step at the end gets more than `Stale`.
    pub(super) fn answer_to_repeat(&self, step: u32, fence: u64, digest: u64) -> Option<Answer> {
        let state = self.run.step(step);
        if self.run.node(self.plan, step).task().is_none() || planted_bugs::is(Bug::FenceDropped) {
            return None;
        }
        if state.fence != fence {
            return Some(Answer::Stale);
        }
        match state.digest {
            0 if self.is_closed() && state.status() != StepStatus::Cancelled => Some(Answer::Stale),
            0 => None,
            earlier if earlier == digest => Some(Answer::Repeated),
            _ => Some(Answer::Stale),
        }
    }

    /// A worker was silent until its lease ended. The attempt is charged, unless the worker was part of a server, and
    /// after [`DEATHS_MAX`] such attempts the step fails.
    pub(super) fn lease_lost(&mut self, step: u32, is_current: bool) -> Answer {
        if !is_current || self.run.is_terminal() {
            return Answer::Stale;
        }
        let state = self.run.step(step);
        let (attempt, deaths) = (state.attempt, state.deaths + 1);
        let policy = &self.run.node(self.plan, step).retry;
        let failure = Failure::new("lease_lost", "its worker was silent until the lease ended");
        let is_free = self.run.node(self.plan, step).task().is_some_and(|task| task.kind == TaskKind::Bash);
        let again = NextAttempt { died: true, is_free, ..Default::default() };
        let failure = match (policy.never, deaths >= DEATHS_MAX) {
            (true, _) => {
                let message = "its worker was silent until the lease ended, and it may be tried only once";
                Failure::new("outcome_unknown", message)
            }
            (_, true) => Failure::new("quarantined", format!("{deaths} workers died or fell silent doing this")),
            _ if self.retry(step, failure.clone(), again) => return Answer::Applied,
            _ => failure,
        };
        self.emit(Event::Failed { step, attempt, failure, response: None, seen: Vec::new(), digest: 0 });
        Answer::Applied
    }

    /// An attempt exceeded its time limit.
    pub(super) fn attempt_timed_out(&mut self, step: u32, fence: u64) {
        self.abort_attempt(step, fence);
        let failure = Failure::new("timeout", "the attempt took longer than its limit");
        if !self.retry(step, failure.clone(), NextAttempt::default()) {
            self.emit_timed_out(step, failure);
        }
    }

    /// Ends the step because of a time limit that no further attempt can meet.
    pub(super) fn end_timed_out(&mut self, step: u32, code: &str, message: &str) {
        if let Phase::Leased { fence, .. } = self.run.step(step).phase {
            self.abort_attempt(step, fence);
        }
        self.emit_timed_out(step, Failure::new(code, message));
    }

    fn emit_timed_out(&mut self, step: u32, failure: Failure) {
        let state = self.run.step(step);
        let (attempt, took) = (state.attempt, state.ready_at.map_or(Span::default(), |at| self.context.now.since(at)));
        self.emit(Event::TimedOut { step, attempt, failure, took });
    }
}

impl TaskResult {
    /// The worker asked to retry the task later.
    pub fn snoozed(until: Timestamp) -> TaskResult {
        TaskResult::Blocked { until, failure: Failure::new("snoozed", "the worker asked to try it later") }
    }
}
