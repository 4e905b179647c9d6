//! Applying events: how each one changes the state, the index and the planner's view.

use super::{
    AnsweredWait, ApprovalRequest, CalledOff, ChildLink, Copied, Index, Iteration, Iterations, LastReport, LoadError,
    Pause, Phase, Place, Run, Signal, SignalKey, Step, WaitKind,
};
use crate::event::{Callback, CopiedStep, Event, Failure, Origin, Override, Response};
use crate::expr::Seen;
use crate::payload::Payload;
use crate::plan::{Body, GroupKind, Node, OnError, Plan};
use crate::planner::{self, Planner};
use crate::planted_bugs::{self, Bug};
use crate::status::{Outcome, RunStatus, StepStatus};
use crate::time::{Span, Timestamp};
use std::collections::BTreeSet;

/// What the key of a signal counts as, among the payloads of the run.
const SIGNAL_KEY_BYTES: u64 = 64;
/// How long an executor of this process may take for what has no time limit of its own.
const EXECUTOR_LIMIT: Span = Span::from_secs(10);
/// The most reports of workers, and the most answers to waits, that are remembered of steps that have left the state.
const REPORTS_MAX: usize = 1_000;

/// Which of the last steps of a group makes its result, see [`Run::last_step`].
pub(crate) enum LastStep {
    /// This one; `None` if it did not run.
    Only(Option<u32>),
    Several,
}

impl Run {
    /// Applies one event. This is the only way the state changes. An event of a later release is refused, not
    /// ignored.
    pub fn apply(&mut self, plan: &Plan, event: &Event, at: Timestamp) -> Result<(), LoadError> {
        if let Some(step) = event.step() {
            let is_next = matches!(event, Event::Opened { .. }) && step == self.next_step();
            if !is_next && self.get(step).is_none() {
                return Err(LoadError::Damaged(format!("an event names step {step} of {}", self.next_step())));
            }
        }
        self.state.seq += 1;
        self.state.at = at;
        match event {
            Event::Created { origin } => {
                self.state.origin = Origin::clone(origin);
                self.state.status = RunStatus::Running;
                self.state.created_at = at;
                self.state.steps = vec![Step::default(); plan.root().len()];
                self.count_payload(&origin.body);
                self.reindex(plan);
            }
            Event::RunWaiting {} => self.state.status = RunStatus::Waiting,
            Event::RunResumed {} => self.state.status = RunStatus::Running,
            Event::RunCompleted {} => self.end(plan, RunStatus::Completed, at),
            Event::RunFinished { output } => {
                self.count_payload(output);
                self.state.output = Some(output.clone());
                self.end(plan, RunStatus::Completed, at);
            }
            Event::RunFailed { failure, step } => {
                self.state.culprit = *step;
                self.state.failure = Some(failure.clone());
                self.end(plan, RunStatus::Failed, at);
            }
            Event::Queued { reason } => {
                self.state.queued = Some(*reason);
                self.state.status = RunStatus::Pending;
            }
            Event::Admitted {} => {
                self.state.queued = None;
                self.state.status = RunStatus::Running;
            }
            Event::Paused { actor, note } => {
                let (actor, note) = (actor.clone(), note.clone());
                self.state.paused = Some(Pause { actor, note, at, ..Default::default() });
            }
            Event::Unpaused { .. } => self.state.paused = None,
            Event::RunCancelled { actor, reason } => {
                self.state.cancelled_by = actor.clone();
                self.state.cancel_reason = reason.clone();
                self.end(plan, RunStatus::Cancelled, at);
            }
            Event::RunTimeout {} => self.end(plan, RunStatus::Timeout, at),
            Event::Scheduled { step, seen, key, of_type, .. } => {
                self.record_seen(*step, seen);
                let state = self.step_mut(*step);
                state.key.clone_from(key);
                state.of_type.clone_from(of_type);
                self.enter_phase(plan, *step, Phase::Ready {}, at)?;
            }
            Event::Leased { step, attempt, worker, lease, seen, key, epoch, slot, key_slot, of_type } => {
                self.record_seen(*step, seen);
                let fence = self.state.seq;
                self.begin_attempt(*step, *attempt, at);
                let state = self.step_mut(*step);
                (state.fence, state.digest) = (fence, 0);
                (state.slot, state.key_slot) = (*slot, *key_slot);
                state.key.clone_from(key);
                state.of_type.clone_from(of_type);
                let (worker, lease, epoch) = (worker.clone(), *lease, *epoch);
                self.enter_phase(plan, *step, Phase::Leased { fence, worker, lease, epoch }, at)?;
            }
            Event::Started { step, attempt, epoch, seen } => {
                self.record_seen(*step, seen);
                let fence = self.state.seq;
                self.begin_attempt(*step, *attempt, at);
                self.enter_phase(plan, *step, Phase::Running { fence, epoch: *epoch }, at)?;
            }
            Event::Retrying { step, next, failure, charged, died, digest, .. } => {
                let state = self.step_mut(*step);
                if !charged {
                    state.charged = state.charged.saturating_sub(1);
                }
                state.deaths += u32::from(*died);
                state.digest = *digest;
                state.failure = Some(Box::new(failure.clone()));
                self.enter_phase(plan, *step, Phase::Retrying { at: *next }, at)?;
            }
            Event::RetryDue { step, .. } => {
                self.step_mut(*step).is_forced = self.node(plan, *step).http().is_some();
                self.enter_phase(plan, *step, Phase::Retrying { at }, at)?;
            }
            Event::HeldBack { step, until, failure, seen } => {
                self.record_seen(*step, seen);
                self.step_mut(*step).failure = Some(Box::new(failure.clone()));
                self.enter_phase(plan, *step, Phase::Retrying { at: *until }, at)?;
            }
            Event::Succeeded { step, attempt, response, seen, digest } => {
                self.record_seen(*step, seen);
                let is_shared = self.is_result_of_last_step(plan, *step, response);
                let state = self.step_mut(*step);
                state.attempt = *attempt;
                state.digest = *digest;
                state.failure = None;
                match is_shared {
                    true => state.response = Some(Box::new(response.clone())),
                    false => self.set_response(*step, Some(response)),
                }
                self.settle(plan, *step, StepStatus::Success, at);
            }
            Event::Woken { step } => self.settle(plan, *step, StepStatus::Success, at),
            Event::Received { step, callback } => {
                if let Some(callback) = callback {
                    self.keep_callback(*step, callback);
                }
                self.settle(plan, *step, StepStatus::Received, at);
            }
            Event::Failed { step, failure, response, seen, digest, .. } => {
                self.record_seen(*step, seen);
                self.set_response(*step, response.as_ref());
                self.step_mut(*step).digest = *digest;
                self.step_mut(*step).failure = Some(Box::new(failure.clone()));
                // A worker may report any code, with a response; a template error is the engine's own, without one.
                let is_template_error = failure.code == "template_error" && response.is_none();
                let status = if is_template_error { StepStatus::TemplateError } else { StepStatus::Failed };
                self.settle(plan, *step, status, at);
            }
            Event::TimedOut { step, failure, .. } => {
                self.step_mut(*step).failure = Some(Box::new(failure.clone()));
                self.settle(plan, *step, StepStatus::Timeout, at);
            }
            Event::Skipped { step, because } => {
                self.step_mut(*step).because = Some(Box::new(because.clone()));
                self.settle(plan, *step, StepStatus::Skipped, at);
            }
            Event::Cancelled { step } => {
                let attempt = self.attempt_called_off(plan, *step, at);
                self.settle(plan, *step, StepStatus::Cancelled, at);
                self.keep_called_off(*step, attempt);
            }
            Event::Overridden { step, verb, .. } => {
                if *verb != Override::RunNow {
                    let attempt = self.attempt_called_off(plan, *step, at);
                    self.keep_called_off(*step, attempt);
                }
                self.step_mut(*step).overridden = Some(*verb);
            }
            Event::Returned { step, response, failure, digest, .. } => {
                self.forget_called_off(*step);
                // What an operator decided stays.
                let is_cancelled =
                    self.step(*step).status() == StepStatus::Cancelled || planted_bugs::is(Bug::LateResultOverrides);
                match is_cancelled {
                    true => self.set_response(*step, response.as_ref()),
                    false => response.iter().flat_map(|it| &it.body).for_each(|body| self.count_payload(body)),
                }
                let undo_if_unknown = self.node(plan, *step).undo_if_unknown;
                let is_unknown = failure.as_ref().is_some_and(Failure::is_unknown_outcome);
                let state = self.step_mut(*step);
                (state.late, state.digest) = (true, *digest);
                let has_succeeded = response.is_some() && !planted_bugs::is(Bug::LateSuccessKept);
                if has_succeeded || is_unknown && undo_if_unknown {
                    self.note_undoable(plan, *step);
                }
            }
            Event::RunCompensating { end } => {
                self.state.status = RunStatus::Compensating;
                self.state.compensating = Some(end.clone());
                self.state.paused = None;
                self.state.queued = None;
                self.tell(|planner, _| planner.ended());
            }
            Event::RunRetried { steps, around, expires_at, .. } => self.reopen(plan, steps, around, *expires_at)?,
            Event::Moved { version, hash, lowering, nodes, outputs, .. } => {
                self.move_to(plan, (*version, hash, *lowering), nodes)?;
                self.move_outputs(outputs);
            }
            Event::Copied { step, ended } => self.copy(plan, *step, ended, at),
            Event::Opened { step, node, parent, index } => self.open(plan, *step, *node, *parent, *index, at)?,
            Event::GroupStarted { step, seen } => {
                self.record_seen(*step, seen);
                self.step_mut(*step).started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Open {}, at)?;
                self.tell(|planner, run| planner.started(plan, run, *step));
            }
            Event::LoopStarted { step, seen, count, pages } => {
                self.record_seen(*step, seen);
                pages.values().for_each(|page| self.count_payload(page));
                let iterations = Iterations { count: *count, pages: pages.clone(), ..Default::default() };
                let state = self.step_mut(*step);
                state.iterations = Some(Box::new(iterations));
                state.started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Open {}, at)?;
                self.tell(|planner, run| planner.started(plan, run, *step));
            }
            Event::TimerSet { step, at: until, seen } => {
                self.record_seen(*step, seen);
                self.step_mut(*step).started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Sleeping { until: *until }, at)?;
            }
            Event::WaitOpened { step, deadline, seen } => {
                if self.node(plan, *step).wait_kind() == Some(WaitKind::Signal) {
                    self.step_mut(*step).opened = self.state.seq;
                }
                self.open_wait(plan, *step, *deadline, seen, at)?;
            }
            Event::SignalReceived { name, body, key, fingerprint, .. } => {
                self.count_payload(body);
                let (number, name) = (self.state.seq, name.clone());
                self.state.signals.push(Signal { number, name, body: body.clone(), ..Default::default() });
                if !key.is_empty() {
                    self.state.bytes = self.state.bytes.saturating_add(SIGNAL_KEY_BYTES);
                    self.index.signal_keys.insert(key.clone(), fingerprint.clone());
                    let (key, fingerprint) = (key.clone(), fingerprint.clone());
                    self.state.signal_keys.push(SignalKey { key, fingerprint, ..Default::default() });
                }
            }
            Event::SignalConsumed { step, signal } => {
                let unread = self.state.signals.iter().position(|unread| unread.number == *signal);
                let Some(place) = unread else {
                    return Err(LoadError::Damaged(format!("step {step} reads signal {signal}, which is not unread")));
                };
                let body = self.state.signals.remove(place).body;
                self.step_mut(*step).callback = Some(Box::new(Callback { body, ..Default::default() }));
            }
            Event::ApprovalRequested { step, deadline, prompt, items, seen } => {
                items.iter().for_each(|items| self.count_payload(items));
                let request = ApprovalRequest { prompt: prompt.clone(), items: items.clone(), ..Default::default() };
                self.step_mut(*step).approval = Some(Box::new(request));
                self.open_wait(plan, *step, *deadline, seen, at)?;
            }
            Event::ChildStarted { step, attempt, child, workflow, is_detached, is_closed_with_parent, seen } => {
                self.record_seen(*step, seen);
                self.begin_attempt(*step, *attempt, at);
                self.state.children += 1;
                if *is_detached && *is_closed_with_parent {
                    self.state.closing.push(*child);
                }
                self.step_mut(*step).child = Some(Box::new(ChildLink {
                    run: *child,
                    workflow: workflow.clone(),
                    is_detached: *is_detached,
                    is_closed_with_parent: *is_closed_with_parent,
                    ..Default::default()
                }));
                self.enter_phase(plan, *step, Phase::Child {}, at)?;
            }
            Event::ChildEnded { step, never_began: true, .. } => self.step_mut(*step).child = None,
            Event::ChildEnded { step, status, descendants, .. } => {
                self.state.children = self.state.children.saturating_add(*descendants);
                if let Some(child) = &mut self.step_mut(*step).child {
                    child.status = *status;
                }
            }
            Event::RunCancelling { actor, reason } => {
                self.state.cancelled_by = actor.clone();
                self.state.cancel_reason = reason.clone();
                self.state.status = RunStatus::Cancelling;
                self.state.paused = None;
                self.state.queued = None;
                self.tell(|planner, _| planner.ended());
            }
            Event::ApprovalDecided { step, decision, .. } => {
                if let Some(approval) = &mut self.step_mut(*step).approval {
                    approval.decision = Some(*decision);
                }
            }
            Event::Continued { step, .. } => self.settle(plan, *step, StepStatus::Success, at),
            Event::WaitClosed { step, callback } => self.keep_callback(*step, callback),
            Event::LateResult { step, .. } => self.step_mut(*step).late = true,
            Event::Progress { step, progress, .. } => {
                let old = self.step_mut(*step).progress.replace(Box::new(progress.clone()));
                self.state.bytes = self.state.bytes.saturating_sub(old.map_or(0, |old| old.len));
                self.count_payload(progress);
            }
            Event::Kept { step, epoch: through, .. } => {
                if let Phase::Leased { epoch, .. } = &mut self.step_mut(*step).phase {
                    *epoch = *through;
                }
            }
            Event::Logged { lines, .. } => {
                let bytes = lines.iter().map(|line| line.message.len() as u64).sum();
                self.state.bytes = self.state.bytes.saturating_add(bytes);
            }
            Event::Unknown { .. } if planted_bugs::is(Bug::UnknownEventDropped) => {}
            Event::Unknown { .. } => return Err(LoadError::Newer),
        }
        Ok(())
    }

    /// A copied step is never undone by this run: it is not noted as what can be.
    fn copy(&mut self, plan: &Plan, step: u32, ended: &CopiedStep, at: Timestamp) {
        let CopiedStep { status, response, callback, failure, because, errors, is_given, writes, outputs, .. } = ended;
        self.set_response(step, response.as_ref());
        callback.iter().for_each(|callback| self.keep_callback(step, callback));
        errors.iter().chain(outputs.values()).for_each(|payload| self.count_payload(payload));
        let copied = Copied { errors: errors.clone(), is_given: *is_given, ..Default::default() };
        let state = self.step_mut(step);
        state.failure = failure.clone().map(Box::new);
        state.because = because.clone().map(Box::new);
        state.copied = Some(Box::new(copied));
        self.finish_step(plan, step, *status, at);
        self.copy_outputs(step, writes, outputs);
    }

    fn open_wait(
        &mut self,
        plan: &Plan,
        step: u32,
        deadline: Timestamp,
        seen: &[Seen],
        at: Timestamp,
    ) -> Result<(), LoadError> {
        self.record_seen(step, seen);
        self.step_mut(step).started_at = Some(at);
        self.enter_phase(plan, step, Phase::Waiting { deadline }, at)
    }

    /// The attempt at work that is called off with its step, if the run waits for its end.
    fn attempt_called_off(&self, plan: &Plan, step: u32, at: Timestamp) -> Option<CalledOff> {
        if !self.awaits_called_off(plan) {
            return None;
        }
        let state = self.step(step);
        let (fence, until) = match &state.phase {
            Phase::Leased { fence, lease, .. } => (*fence, at.after(*lease)),
            Phase::Running { fence, .. } => {
                let limit = self.node(plan, step).http().map_or(EXECUTOR_LIMIT, |http| http.timeout);
                (*fence, at.after(limit))
            }
            Phase::Child {} => (0, Timestamp::NEVER),
            _ => return None,
        };
        Some(CalledOff { attempt: state.attempt, fence, until, ..Default::default() })
    }

    fn keep_called_off(&mut self, step: u32, attempt: Option<CalledOff>) {
        let Some(attempt) = attempt else { return };
        if attempt.until < Timestamp::NEVER {
            self.index.timers.insert((attempt.until, step));
        }
        self.state.called_off.insert(step, attempt);
    }

    fn forget_called_off(&mut self, step: u32) {
        if let Some(attempt) = self.state.called_off.remove(&step) {
            self.index.timers.remove(&(attempt.until, step));
        }
    }

    /// The step did something, or may have, that can be undone. An iteration has the node of its loop and is not undone by
    /// itself.
    fn note_undoable(&mut self, plan: &Plan, step: u32) {
        if self.node(plan, step).undo.is_none() || self.iteration(step).is_some() {
            return;
        }
        let seq = self.state.seq;
        // An operator may have given its result before the attempt that was called off succeeded.
        let earlier = std::mem::replace(&mut self.step_mut(step).done_with, seq);
        self.index.undoable.remove(&(earlier, step));
        self.index.undoable.insert((seq, step));
    }

    fn begin_attempt(&mut self, step: u32, attempt: u32, at: Timestamp) {
        let state = self.step_mut(step);
        state.attempt = attempt;
        state.charged += 1;
        state.is_forced = false;
        state.started_at.get_or_insert(at);
    }

    fn record_seen(&mut self, step: u32, seen: &[Seen]) {
        if !seen.is_empty() {
            self.step_mut(step).seen = seen.to_vec();
        }
    }

    fn set_response(&mut self, step: u32, response: Option<&Response>) {
        if let Some(response) = response {
            if let Some(body) = &response.body {
                self.count_payload(body);
            }
            self.step_mut(step).response = Some(Box::new(response.clone()));
        }
    }

    fn keep_callback(&mut self, step: u32, callback: &Callback) {
        self.count_payload(&callback.body);
        self.step_mut(step).callback = Some(Box::new(callback.clone()));
    }

    fn count_payload(&mut self, payload: &Payload) {
        self.state.bytes = self.state.bytes.saturating_add(payload.len);
        self.state.payloads = self.state.payloads.max(payload.stored.unwrap_or(0));
    }

    /// Opens an inner step.
    fn open(
        &mut self,
        plan: &Plan,
        step: u32,
        node: u32,
        parent: u32,
        index: u32,
        at: Timestamp,
    ) -> Result<(), LoadError> {
        let damaged = |what: &str| LoadError::Damaged(format!("step {step} is opened {what}"));
        if plan.undoes(node).is_some() {
            let undone = self.get(parent).map(|undone| (undone.done_with, parent));
            if !undone.is_some_and(|undone| self.index.undoable.remove(&undone)) || self.index.undoing.is_some() {
                return Err(damaged("to undo a step that cannot be undone now"));
            }
            let place = Place { node, parent, index, ..Default::default() };
            self.state.opened = step + 1;
            self.state.inner.insert(step, Step { place: Some(Box::new(place)), ..Default::default() });
            self.index.undos.insert(parent, step);
            self.index.undoing = Some(step);
            return Ok(());
        }
        if parent == Place::ROOT && !self.state.moves.is_empty() && (node as usize) < plan.root().len() {
            let place = Place { node, parent, ..Default::default() };
            self.state.opened = step + 1;
            self.state.inner.insert(step, Step { place: Some(Box::new(place)), ..Default::default() });
            self.index.children.insert((parent, node), step);
            self.tell(|planner, run| planner.opened(plan, run, step));
            return Ok(());
        }
        let around = self.get(parent).ok_or_else(|| damaged("inside a step that is not there"))?;
        if !matches!(around.phase, Phase::Open {}) || node as usize >= plan.nodes().len() {
            return Err(damaged("inside a step that is not open"));
        }
        let is_iteration = self.node_number(parent) == node;
        let place = Place { node, parent, index, ..Default::default() };
        let phase = if is_iteration { Phase::Open {} } else { Phase::Pending {} };
        let started_at = is_iteration.then_some(at);
        let new = Step { phase, started_at, place: Some(Box::new(place)), ..Default::default() };
        self.state.opened = step + 1;
        self.state.inner.insert(step, new);
        self.index.children.insert((parent, if is_iteration { index } else { node }), step);
        if let Some(iterations) = self.step_mut(parent).iterations.as_mut().filter(|_| is_iteration) {
            iterations.opened = iterations.opened.max(index + 1);
        }
        self.tell(|planner, run| planner.opened(plan, run, step));
        Ok(())
    }

    /// Tells the planner what has changed.
    pub(super) fn tell(&mut self, what: impl FnOnce(&mut dyn Planner, &Run)) {
        if let Some(mut planner) = self.planner.take() {
            what(&mut *planner, self);
            self.planner = Some(planner);
        }
    }

    /// Whether a group passes on the body of its only last step: the payload exists once, and counts once.
    fn is_result_of_last_step(&self, plan: &Plan, step: u32, response: &Response) -> bool {
        let Some(body) = &response.body else { return false };
        let LastStep::Only(Some(of)) = self.last_step(plan, step) else { return false };
        self.step(of).body() == Some(body)
    }

    /// The step whose result is that of a group or an iteration.
    pub(crate) fn last_step(&self, plan: &Plan, step: u32) -> LastStep {
        let Some(group) = self.group_body(plan, step) else { return LastStep::Only(None) };
        let mut last = plan.last_nodes(group).map(|node| self.step_in(Some(step), node));
        if group.kind == GroupKind::Conditional {
            let has_run = |of: &u32| self.step(*of).outcome() != Some(Outcome::Skipped);
            return LastStep::Only(last.flatten().find(has_run));
        }
        match (last.next(), last.next()) {
            (only, None) => LastStep::Only(only.flatten()),
            _ => LastStep::Several,
        }
    }

    /// Settles a step. What is open inside of it is cancelled with it.
    fn settle(&mut self, plan: &Plan, step: u32, status: StepStatus, at: Timestamp) {
        for inner in self.descendants(step).into_iter().rev() {
            if self.step(inner).outcome().is_none() {
                self.finish_step(plan, inner, StepStatus::Cancelled, at);
            }
        }
        self.finish_step(plan, step, status, at);
        self.write_outputs(plan, step);
        let has_failed = matches!(status.outcome(), Some(Outcome::Failed | Outcome::TimedOut));
        let is_unknown = || {
            let failure = self.step(step).failure.as_deref();
            self.node(plan, step).undo_if_unknown && failure.is_some_and(Failure::is_unknown_outcome)
        };
        if status.outcome() == Some(Outcome::Ok) || has_failed && is_unknown() {
            self.note_undoable(plan, step);
        }
        if let Some((of, index)) = self.iteration(step) {
            self.fold_iteration(plan, step, of, index);
        }
    }

    fn finish_step(&mut self, plan: &Plan, step: u32, status: StepStatus, at: Timestamp) {
        let state = self.step_mut(step);
        if status != StepStatus::Skipped && status != StepStatus::Cancelled {
            state.started_at.get_or_insert(at);
        }
        state.finished_at = Some(at);
        self.set_phase(plan, step, Phase::Done { status }, at);
    }

    /// Keeps the result of an iteration with its loop. Its steps leave the state, except those that failed and those
    /// around them (M4). All of them stay while a retry of the run may open the iteration again.
    fn fold_iteration(&mut self, plan: &Plan, step: u32, of: u32, index: u32) {
        let culprit = planner::unhandled_in(plan, self, Some(step)).first().copied();
        let state = self.step(step);
        let goes_on = || self.node(plan, of).repeat().is_some_and(|repeat| repeat.body.on_error == OnError::Continue);
        let can_be_reopened = match state.outcome() {
            Some(Outcome::Cancelled) => true,
            Some(Outcome::Failed | Outcome::TimedOut) => !goes_on(),
            Some(Outcome::Ok | Outcome::Skipped) | None => false,
        };
        let iteration = Iteration {
            status: state.status(),
            body: state.body().cloned(),
            failure: state.failure.as_deref().cloned(),
            culprit: culprit.map(|step| self.node(plan, step).key.clone()).unwrap_or_default(),
            started_at: state.started_at.unwrap_or_default(),
            finished_at: state.finished_at.unwrap_or_default(),
            ..Default::default()
        };
        if let Some(iterations) = &mut self.step_mut(of).iterations {
            iterations.settled.insert(index, iteration);
        }
        if self.is_whole || can_be_reopened {
            return;
        }
        let mut inside = self.descendants(step);
        inside.insert(0, step);
        // To undo one of them, the others are read: its templates name them.
        let is_needed = |step: &u32| self.step(*step).done_with > 0 || self.state.called_off.contains_key(step);
        if inside.iter().any(is_needed) {
            return;
        }
        let mut kept = BTreeSet::new();
        for step in inside.iter().rev() {
            let has_failed = matches!(self.step(*step).outcome(), Some(Outcome::Failed | Outcome::TimedOut));
            if kept.contains(step) || has_failed && self.iteration(*step).is_none() {
                kept.insert(*step);
                kept.extend(self.parent(*step));
            }
        }
        self.note_handled(plan, &kept);
        for step in inside.into_iter().rev().filter(|step| !kept.contains(step)) {
            self.forget_step(plan, step);
        }
    }

    /// Marks the failures among these steps that are handled, before what handled them leaves the state.
    fn note_handled(&mut self, plan: &Plan, steps: &BTreeSet<u32>) {
        let groups = steps.iter().copied().filter(|step| self.group_body(plan, *step).is_some());
        let unhandled: BTreeSet<u32> =
            groups.flat_map(|group| planner::unhandled_in(plan, self, Some(group))).collect();
        for step in steps.difference(&unhandled) {
            let has_failed = matches!(self.step(*step).outcome(), Some(Outcome::Failed | Outcome::TimedOut));
            if has_failed && self.iteration(*step).is_none() {
                self.step_mut(*step).is_handled = true;
            }
        }
    }

    /// Removes a step that has settled from the state.
    pub(super) fn forget_step(&mut self, plan: &Plan, step: u32) {
        let Some(place) = self.step(step).place.clone() else { return };
        self.keep_outputs(plan, step);
        if let Some(answered) = self.answered_wait(plan, step) {
            self.state.answered.insert(step, answered);
            if self.state.answered.len() > REPORTS_MAX {
                self.state.answered.pop_first();
            }
        }
        let key = if self.iteration(step).is_some() { place.index } else { place.node };
        self.index.children.remove(&(place.parent, key));
        if let Some(planner) = &mut self.planner {
            planner.left(step);
        }
        if let Some(state) = self.state.inner.remove(&step).filter(|state| state.digest != 0) {
            let report = LastReport { fence: state.fence, digest: state.digest, ..Default::default() };
            self.state.reports.insert(step, report);
            if self.state.reports.len() > REPORTS_MAX {
                self.state.reports.pop_first();
            }
        }
    }

    /// What ended a wait from outside.
    fn answered_wait(&self, plan: &Plan, step: u32) -> Option<AnsweredWait> {
        let state = self.step(step);
        let decision = state.approval.as_ref().and_then(|approval| approval.decision);
        let is_resumed =
            self.node(plan, step).wait_kind() == Some(WaitKind::Pause) && state.status() == StepStatus::Success;
        // The body of a signal has no digest: signals are recognised by their keys.
        let digest = state.callback.as_ref().map(|callback| callback.digest.clone()).unwrap_or_default();
        let is_answered = decision.is_some() || is_resumed || !digest.is_empty();
        is_answered.then(|| AnsweredWait { digest, decision, is_resumed, ..Default::default() })
    }

    /// Ends the run. Steps that have not settled are cancelled.
    fn end(&mut self, plan: &Plan, status: RunStatus, at: Timestamp) {
        self.state.status = status;
        self.state.finished_at = Some(at);
        self.state.paused = None;
        self.state.queued = None;
        for step in self.state.called_off.keys().copied().collect::<Vec<_>>() {
            self.forget_called_off(step);
        }
        for step in self.roots().collect::<Vec<_>>() {
            if self.step(step).outcome().is_none() {
                self.settle(plan, step, StepStatus::Cancelled, at);
            }
        }
        self.tell(|planner, _| planner.ended());
    }

    /// Moves a step that has not settled to another phase. Only `run.retried` reopens a step.
    fn enter_phase(&mut self, plan: &Plan, step: u32, phase: Phase, at: Timestamp) -> Result<(), LoadError> {
        if self.step(step).outcome().is_some() {
            return Err(LoadError::Damaged(format!("an event reopens step {step}, which has settled")));
        }
        self.set_phase(plan, step, phase, at);
        Ok(())
    }

    /// Sets the phase of a step and updates the index.
    pub(super) fn set_phase(&mut self, plan: &Plan, step: u32, phase: Phase, at: Timestamp) {
        let node = self.node(plan, step);
        let state = self.step_mut(step);
        let due_before = state.due(node);
        let old = std::mem::replace(&mut state.phase, phase);
        if matches!(state.phase, Phase::Ready {} | Phase::Leased { .. }) {
            state.since = at;
            state.ready_at.get_or_insert(at);
        }
        let due = state.due(node);
        let (is_active, is_ready) = (state.phase.is_active(), matches!(state.phase, Phase::Ready {}));
        let is_child_wait = matches!(state.phase, Phase::Child {});
        let signal_wait = signal_wait(node, state, step);
        let ended_wait = matches!(old, Phase::Waiting { .. }).then_some((state.opened, step));
        let has_settled = matches!(state.phase, Phase::Done { .. }) && !matches!(old, Phase::Done { .. });
        let called_off = self.state.called_off.get(&step).map(|attempt| attempt.until);
        let called_off = called_off.filter(|until| *until < Timestamp::NEVER);
        let index = &mut self.index;
        if due != due_before {
            due_before.map(|due| index.timers.remove(&(due, step)));
            due.map(|due| index.timers.insert((due, step)));
        }
        // The timer of an attempt that was called off can be at the same time.
        index.timers.extend(called_off.map(|until| (until, step)));
        index.active = index.active + u32::from(is_active) - u32::from(old.is_active());
        match is_ready {
            true => index.ready.insert(step),
            false => index.ready.remove(&step),
        };
        match is_child_wait {
            true => index.child_waits.insert(step),
            false => matches!(old, Phase::Child {}) && index.child_waits.remove(&step),
        };
        if let (Some(Body::Signal { name, .. }), Some(wait)) = (&node.body, ended_wait)
            && let Some(waits) = index.signal_waits.get_mut(name)
        {
            waits.remove(&wait);
            if waits.is_empty() {
                index.signal_waits.remove(name);
            }
        }
        if let Some((name, wait)) = signal_wait {
            index.signal_waits.entry(name.to_owned()).or_default().insert(wait);
        }
        if matches!(old, Phase::Pending {}) {
            self.count_begun(plan, step);
        }
        if has_settled {
            self.index.undoing.take_if(|undo| *undo == step);
            self.tell(|planner, run| planner.settled(plan, run, step));
        } else if matches!(old, Phase::Pending {}) {
            self.tell(|planner, run| planner.begun(plan, run, step));
        }
    }

    /// Counts the steps that have begun, if the plan limits them.
    fn count_begun(&mut self, plan: &Plan, step: u32) {
        let has_begun = !matches!(self.step(step).outcome(), Some(Outcome::Skipped | Outcome::Cancelled));
        let is_counted = || self.node(plan, step).inner().is_none() && self.undoes(plan, step).is_none();
        if plan.layout().max_steps > 0 && has_begun && is_counted() {
            self.state.begun += 1;
        }
    }

    /// Builds the index and the planner's view from scratch.
    pub(super) fn reindex(&mut self, plan: &Plan) {
        let signal_keys = self.state.signal_keys.iter().map(|key| (key.key.clone(), key.fingerprint.clone()));
        let mut index = Index { signal_keys: signal_keys.collect(), ..Index::default() };
        for (number, step) in self.steps() {
            index.active += u32::from(step.phase.is_active());
            if matches!(step.phase, Phase::Ready {}) {
                index.ready.insert(number);
            }
            if matches!(step.phase, Phase::Child {}) {
                index.child_waits.insert(number);
            }
            if let Some(due) = step.due(self.node(plan, number)) {
                index.timers.insert((due, number));
            }
            if let Some((name, wait)) = signal_wait(self.node(plan, number), step, number) {
                index.signal_waits.entry(name.to_owned()).or_default().insert(wait);
            }
            if step.done_with > 0 {
                index.undoable.insert((step.done_with, number));
            }
            match &step.place {
                Some(place) if plan.undoes(place.node).is_some() => {
                    index.undos.insert(place.parent, number);
                    if step.outcome().is_none() {
                        index.undoing = Some(number);
                    }
                }
                Some(place) => {
                    let key = if self.iteration(number).is_some() { place.index } else { place.node };
                    index.children.insert((place.parent, key), number);
                }
                None => {}
            }
        }
        index.undoable.retain(|(_, step)| !index.undos.contains_key(step) || planted_bugs::is(Bug::UndoneTwice));
        let called_off = self.state.called_off.iter().filter(|(_, attempt)| attempt.until < Timestamp::NEVER);
        index.timers.extend(called_off.map(|(step, attempt)| (attempt.until, *step)));
        self.index = index;
        let mut planner = plan.planner();
        match self.state.status {
            RunStatus::Cancelling | RunStatus::Compensating => planner.ended(),
            _ => planner.rebuild(plan, self),
        }
        self.planner = Some(planner);
    }

    /// The run with what its planner has noted and cannot decide set aside, as after an advance. For tests and checkers.
    pub fn tidied(&self, plan: &Plan) -> Run {
        let mut tidied = self.clone();
        tidied.tell(|planner, run| planner.tidy(plan, run));
        tidied
    }

    /// Whether the index and the planner's view match the state. For tests and checkers.
    pub fn index_matches_state(&self, plan: &Plan) -> bool {
        let mut fresh = self.clone();
        fresh.reindex(plan);
        if self.is_terminal() {
            fresh.tell(|planner, _| planner.ended());
        }
        let own = self.tidied(plan);
        fresh.index == own.index && format!("{:?}", fresh.planner) == format!("{:?}", own.planner)
    }
}

/// The name of the signal that a step waits for, and its place in the order of those that wait for the same.
fn signal_wait<'p>(node: &'p Node, step: &Step, number: u32) -> Option<(&'p str, (u64, u32))> {
    match (&node.body, &step.phase) {
        (Some(Body::Signal { name, .. }), Phase::Waiting { .. }) => Some((name, (step.opened, number))),
        _ => None,
    }
}
