//! The part of the [`run_model`](super::run_model) that knows steps which wait for something from outside of the run:
//! signals, approvals, being resumed, and the ends of runs that they started.

use super::run_model::{Decided, ModelPhase, RunModel, StepModel};
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::{ChildCall, Gate, StepKind};
use kernel::event::Event;
use kernel::plan::Decision;
use kernel::{RunStatus, Span, Timestamp};

impl RunModel {
    /// Applies an event of a step that starts a run.
    pub(super) fn observe_child(&mut self, i: usize, call: &ChildCall, event: &Event, at: Timestamp) -> CheckResult {
        let phase = self.steps[i].phase;
        let illegal = || format!("{} for s{i} in phase {phase:?}", event.name().unwrap_or("?"));
        let retry = &self.step(i).retry;
        let most = if retry.never { 1 } else { retry.max_attempts };
        let ended_badly = |status: Option<RunStatus>| {
            status.is_some_and(|status| status.is_terminal() && status != RunStatus::Completed)
        };
        match event {
            Event::ChildStarted { attempt, is_detached, is_closed_with_parent, .. } => {
                self.check_may_attempt(i, at)?;
                let is_written =
                    (*is_detached, *is_closed_with_parent) == (call.is_detached, call.is_closed_with_parent);
                let seen = &mut self.steps[i];
                (seen.attempts, seen.charged, seen.phase) = (seen.attempts + 1, seen.charged + 1, ModelPhase::Child);
                require(*attempt == seen.attempts && seen.charged <= most && is_written, illegal)
            }
            Event::ChildEnded { attempt, status, .. } => {
                require(phase == ModelPhase::Child && *attempt == self.steps[i].attempts, illegal)?;
                require(status.is_none_or(|status| status.is_terminal()), illegal)?;
                self.steps[i].phase = ModelPhase::ChildEnded(*status);
                Ok(())
            }
            Event::RetryDue { .. } => {
                self.check_not_held(i)?;
                self.steps[i].phase = ModelPhase::Retrying(at);
                require(matches!(phase, ModelPhase::Retrying(_)), illegal)
            }
            Event::Retrying { next, charged: true, .. } => {
                let may_retry = matches!(phase, ModelPhase::ChildEnded(status) if ended_badly(status));
                require(may_retry && self.steps[i].charged < most && *next >= at, illegal)?;
                self.steps[i].phase = ModelPhase::Retrying(*next);
                Ok(())
            }
            Event::Succeeded { .. } => {
                let expected = if call.is_detached { None } else { Some(RunStatus::Completed) };
                require(phase == ModelPhase::ChildEnded(expected), illegal)?;
                self.settle(i, "success")
            }
            Event::Failed { failure, .. } => {
                let ModelPhase::ChildEnded(status) = phase else { return Err(illegal().into()) };
                let is_right = match failure.code.as_str() {
                    // The family model knows whether the workflow was there.
                    "unknown_workflow" => true,
                    "child_cancelled" => status == Some(RunStatus::Cancelled),
                    "child_timeout" => status == Some(RunStatus::Timeout),
                    "child_failed" => status == Some(RunStatus::Failed),
                    _ => false,
                };
                require(is_right && ended_badly(status), || format!("{}: {}", illegal(), failure.code))?;
                self.settle(i, "failed")
            }
            Event::Skipped { because, .. } => self.skip(i, because),
            Event::Cancelled { .. } => {
                require(!matches!(phase, ModelPhase::Idle | ModelPhase::Done(_)), illegal)?;
                self.cancelled(i);
                self.settle(i, "cancelled")
            }
            _ => Err(illegal().into()),
        }
    }

    /// Applies an event of a step that waits for a signal, an approval, or to be resumed.
    pub(super) fn observe_wait(&mut self, i: usize, event: &Event, number: u64, at: Timestamp) -> CheckResult {
        let (kind, phase) = (self.step(i).kind, self.steps[i].phase);
        let illegal = || format!("{} for s{i} in phase {phase:?}", event.name().unwrap_or("?"));
        let deadline_after = |timeout: Option<Span>| timeout.map_or(self.expires_at, |t| at.after(t));
        // What arrives exactly at a deadline is late.
        let is_in_time = matches!(phase, ModelPhase::Waiting(deadline) if at < deadline);
        let check_late = |deadline: Timestamp| {
            ViolationKind::Early.unless(at >= deadline, || format!("the deadline of s{i} has not passed"))
        };
        match (event, kind) {
            (Event::WaitOpened { deadline, .. }, StepKind::Signal(_, timeout) | StepKind::Pause(timeout))
            | (Event::ApprovalRequested { deadline, .. }, StepKind::Approval(Gate { timeout, .. })) => {
                require(*deadline == deadline_after(timeout), illegal)?;
                self.check_may_begin(i)?;
                (self.steps[i].phase, self.steps[i].waits_since) = (ModelPhase::Waiting(*deadline), number);
                Ok(())
            }
            (Event::SignalConsumed { signal, .. }, StepKind::Signal(name, _)) => {
                match phase {
                    ModelPhase::Idle => self.check_may_begin(i)?,
                    _ => require(is_in_time, illegal)?,
                }
                let oldest = self.unread.iter().position(|(_, unread)| unread == name);
                let is_oldest = oldest.is_some_and(|oldest| self.unread[oldest].0 == *signal);
                ViolationKind::Duplicated
                    .unless(is_oldest, || format!("s{i} reads signal {signal}, unread are {:?}", self.unread))?;
                let is_first = |other: &StepModel| other.waits_since >= self.steps[i].waits_since;
                let waits = |other: &&StepModel| {
                    let is_for_it = self.workflow.steps[other.node].kind.signal() == Some(name);
                    is_for_it && matches!(other.phase, ModelPhase::Waiting(_))
                };
                let has_waited_longest = phase == ModelPhase::Idle || self.steps.iter().filter(waits).all(is_first);
                require(has_waited_longest, || format!("s{i} reads a signal for which another step waits longer"))?;
                oldest.map(|oldest| self.unread.remove(oldest));
                self.steps[i].phase = ModelPhase::Decided(Decided::Signal);
                Ok(())
            }
            (Event::Received { callback: None, .. }, StepKind::Signal(..)) => {
                ViolationKind::Duplicated.unless(phase == ModelPhase::Decided(Decided::Signal), illegal)?;
                self.settle(i, "success")
            }
            (Event::Continued { .. }, StepKind::Pause(_)) => {
                require(is_in_time, illegal)?;
                self.settle(i, "success")
            }
            (Event::ApprovalDecided { decision, actor, .. }, StepKind::Approval(Gate { default, .. })) => {
                let ModelPhase::Waiting(deadline) = phase else {
                    return ViolationKind::Duplicated.unless(false, illegal);
                };
                let is_late = actor.is_empty();
                if is_late {
                    check_late(deadline)?;
                    require(*decision == default.unwrap_or(Decision::Denied), illegal)?;
                } else {
                    require(is_in_time, illegal)?;
                }
                let decided = match decision {
                    Decision::Approved => Decided::Approved,
                    _ => Decided::Denied { is_late: is_late && default.is_none() },
                };
                self.steps[i].phase = ModelPhase::Decided(decided);
                Ok(())
            }
            (Event::Succeeded { .. }, StepKind::Approval(_)) => {
                require(phase == ModelPhase::Decided(Decided::Approved), illegal)?;
                self.settle(i, "success")
            }
            (Event::Failed { failure, .. }, StepKind::Approval(_)) => {
                let is_late = failure.code == "approval_timeout";
                require(is_late || failure.code == "approval_denied", illegal)?;
                require(phase == ModelPhase::Decided(Decided::Denied { is_late }), illegal)?;
                self.steps[i].is_denied = true;
                self.settle(i, "failed")
            }
            (Event::TimedOut { .. }, StepKind::Signal(..) | StepKind::Pause(_)) => {
                let ModelPhase::Waiting(deadline) = phase else { return Err(illegal().into()) };
                check_late(deadline)?;
                self.settle(i, "timeout")
            }
            (Event::Skipped { because, .. }, _) => self.skip(i, because),
            (Event::Cancelled { .. }, _) => {
                require(!matches!(phase, ModelPhase::Idle | ModelPhase::Done(_)), illegal)?;
                self.cancelled(i);
                self.settle(i, "cancelled")
            }
            _ => Err(illegal().into()),
        }
    }
}
