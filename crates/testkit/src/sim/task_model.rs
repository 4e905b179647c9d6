//! The part of the [`run_model`](super::run_model) that knows tasks: who holds which, and when their time is over.

use super::run_model::{ModelPhase, RunModel};
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::WorkerTask;
use kernel::event::{Event, Failure};
use kernel::{Span, Timestamp};

/// After so many lost leases a task is quarantined.
const LEASES_LOST_MAX: u32 = 3;

impl RunModel {
    /// Applies an event of a step that a worker performs.
    pub(super) fn observe_task(&mut self, i: usize, task: &WorkerTask, event: &Event, at: Timestamp) -> CheckResult {
        let workflow = self.workflow.clone();
        let retry = &workflow.steps[self.steps[i].node].retry;
        let phase = self.steps[i].phase;
        let seen = &self.steps[i];
        let is_leased = phase == ModelPhase::Leased && event.attempt().is_none_or(|a| a == seen.attempts);
        let illegal = || format!("{} for s{i} in phase {phase:?}", event.name().unwrap_or("?"));
        let most = if retry.never { 1 } else { retry.max_attempts };
        let (leases_lost, has_more) = (seen.leases_lost, !retry.never && seen.charged < most);
        let has_ended = |due: Option<Timestamp>| due.is_some_and(|due| at >= due);
        let attempt_timed_out = phase == ModelPhase::Leased && has_ended(self.timeout_at(i, |task| task.attempt));
        let queue_timed_out = phase == ModelPhase::Ready && has_ended(self.timeout_at(i, |task| task.queue));
        let total_timed_out = has_ended(self.total_timeout_at(i));
        let check_in_time = || {
            let is_in_time = !(attempt_timed_out || queue_timed_out || total_timed_out);
            ViolationKind::Duplicated
                .unless(is_in_time, || format!("s{i}: {} after its timeout", event.name().unwrap_or("?")))
        };
        match event {
            Event::Scheduled { attempt, key, .. } => {
                check_in_time()?;
                self.check_may_attempt(i, at)?;
                self.check_task_key(i, task, key)?;
                require(*attempt == self.steps[i].attempts + 1, illegal)?;
                self.enter_phase(i, ModelPhase::Ready, at)
            }
            Event::Leased { attempt, lease, key, .. } => {
                check_in_time()?;
                match phase {
                    ModelPhase::Ready => self.check_not_held(i)?,
                    _ => self.check_may_attempt(i, at)?,
                }
                self.check_task_key(i, task, key)?;
                require(task.heartbeat.is_none_or(|most| *lease <= most), || format!("s{i} is leased for {lease}"))?;
                let seen = &mut self.steps[i];
                (seen.attempts, seen.charged, seen.lease) = (seen.attempts + 1, seen.charged + 1, *lease);
                require(*attempt == seen.attempts, || format!("s{i}: attempt {attempt} has number {}", seen.attempts))?;
                require(seen.charged <= most, || format!("s{i}: attempt {} of {most}", seen.charged))?;
                self.enter_phase(i, ModelPhase::Leased, at)
            }
            Event::RetryDue { .. } => {
                self.check_not_held(i)?;
                self.steps[i].phase = ModelPhase::Retrying(at);
                require(matches!(phase, ModelPhase::Retrying(_)), illegal)
            }
            Event::Retrying { next, charged, died, failure, digest, .. } => {
                require(is_leased && *next >= at, illegal)?;
                match (died, failure.code.as_str()) {
                    (true, "lease_lost") => {
                        require(*next == at && has_more && leases_lost + 1 < LEASES_LOST_MAX, illegal)?
                    }
                    (false, "timeout") => require(*charged && has_more && attempt_timed_out, illegal)?,
                    (false, "snoozed" | "not_delivered") => require(!charged && *digest > 0, illegal)?,
                    (false, "worker") => require(*charged && has_more && *digest > 0, illegal)?,
                    _ => return Err(illegal().into()),
                }
                if *digest > 0 {
                    check_in_time()?;
                }
                let seen = &mut self.steps[i];
                seen.charged -= u32::from(!charged);
                seen.leases_lost += u32::from(*died);
                seen.phase = ModelPhase::Retrying(*next);
                Ok(())
            }
            Event::Progress { .. } | Event::Kept { .. } => {
                check_in_time()?;
                require(is_leased, illegal)
            }
            Event::Succeeded { digest, .. } => {
                check_in_time()?;
                require(is_leased && *digest > 0, illegal)?;
                self.settle(i, "success")
            }
            Event::Failed { failure: Failure { code, message, .. }, digest, .. } => {
                let is_final = message.contains("\"final\":true");
                let is_right = match code.as_str() {
                    "worker" => *digest > 0 && (is_final || !has_more),
                    "quarantined" => leases_lost + 1 == LEASES_LOST_MAX && !retry.never,
                    "lease_lost" => !has_more && leases_lost + 1 < LEASES_LOST_MAX && !retry.never,
                    "outcome_unknown" => retry.never,
                    _ => false,
                };
                if *digest > 0 {
                    check_in_time()?;
                }
                require(is_leased && is_right, || format!("{}: {code} {message}", illegal()))?;
                self.settle(i, "failed")
            }
            Event::TimedOut { failure, .. } => {
                let is_time = match failure.code.as_str() {
                    "total_timeout" => total_timed_out,
                    "queue_timeout" => queue_timed_out,
                    "timeout" => attempt_timed_out && !has_more,
                    _ => false,
                };
                ViolationKind::Early.unless(is_time, || format!("{}: {}", illegal(), failure.code))?;
                self.settle(i, "timeout")
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

    fn enter_phase(&mut self, i: usize, phase: ModelPhase, at: Timestamp) -> CheckResult {
        let seen = &mut self.steps[i];
        (seen.phase, seen.phase_since) = (phase, at);
        seen.ready_at.get_or_insert(at);
        Ok(())
    }

    fn check_task_key(&self, i: usize, task: &WorkerTask, key: &str) -> CheckResult {
        let written = if task.is_keyed_by_group { self.trigger.group_key() } else { self.trigger.key.into() };
        require(key == written, || format!("s{i} has the key {key:?}, the definition says {written:?}"))
    }

    /// When a task's timeout for its current phase ends.
    pub(super) fn timeout_at(&self, i: usize, limit: fn(&WorkerTask) -> Option<Span>) -> Option<Timestamp> {
        Some(self.steps[i].phase_since.after(limit(self.step(i).kind.task()?)?))
    }

    /// When a task's total timeout ends.
    pub(super) fn total_timeout_at(&self, i: usize) -> Option<Timestamp> {
        Some(self.steps[i].ready_at?.after(self.step(i).kind.task()?.total?))
    }
}
