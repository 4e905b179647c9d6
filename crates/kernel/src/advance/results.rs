//! How an attempt ended, and what that means for its step: success, another attempt, or failure.

use super::{AdvanceState, Answer};
use crate::event::{Event, Failure, Pair, Response};
use crate::payload::Payload;
use crate::plan::{Body, StatusRange};
use crate::planted_bugs::{self, Bug};
use crate::retry;
use crate::run::Phase;
use crate::time::{Span, Timestamp};

/// What an executor reports about an attempt. The kernel judges it.
#[derive(Clone, Debug)]
pub enum TaskResult {
    /// Done, with this output.
    Done { body: Option<Payload>, took: Span },
    /// A server answered.
    Response { status: u16, headers: Vec<Pair>, body: Payload, retry_after: Option<Span>, took: Span },
    /// There is no response, for example because of the network or a bad address.
    Failed { failure: Failure, retryable: bool, retry_after: Option<Span>, took: Span },
    /// The attempt's own time limit passed.
    TimedOut { message: String, took: Span },
    /// Nothing was done; try again at `until`.
    Blocked { until: Timestamp, failure: Failure },
}

/// What is recorded about an attempt that another attempt follows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NextAttempt {
    pub status_code: Option<u16>,
    pub retry_after: Option<Span>,
    /// The worker was silent until its lease ended: the next attempt starts without a delay.
    pub died: bool,
    /// It does not count against the retry policy: the server has stopped, and not the work itself.
    pub is_free: bool,
    pub digest: u64,
}

/// Whether this status is a success for the step.
pub fn is_expected(status: u16, expected: &[StatusRange]) -> bool {
    match expected {
        [] => (200..300).contains(&status),
        ranges => ranges.iter().any(|r| (r.from..=r.to).contains(&status)),
    }
}

/// Whether another attempt may help: the server had a problem, or asked the client to slow down.
fn is_retryable(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

impl AdvanceState<'_> {
    pub(super) fn finished(&mut self, step: u32, fence: u64, result: TaskResult, digest: u64) -> Answer {
        if self.run.get(step).is_none() {
            return match self.run.reported(step) {
                Some(report) if (report.fence, report.digest) == (fence, digest) => Answer::Repeated,
                _ => self.answer_without_step(step, Answer::Stale),
            };
        }
        if let Some(attempt) = self.called_off(step, fence) {
            return self.returned(step, attempt, result, digest);
        }
        if let Some(answer) = self.answer_to_repeat(step, fence, digest) {
            return answer;
        }
        if self.is_closed() {
            if planted_bugs::is(Bug::LateResultApplied)
                && matches!(result, TaskResult::Done { .. } | TaskResult::Response { .. })
            {
                let (response, seen) = (Response::default(), Vec::new());
                self.emit(Event::Succeeded { step, attempt: 1, response, seen, digest: 0 });
                return Answer::Applied;
            }
            return self.record_late_result(step, &result);
        }
        // How long a worker held the step; `None` for an executor of this process, which measures by itself.
        let leased_for = match &self.run.step(step).phase {
            Phase::Running { fence: current, .. } if *current == fence => None,
            Phase::Leased { fence: current, .. } if *current == fence || planted_bugs::is(Bug::FenceDropped) => {
                Some(self.context.now.since(self.run.step(step).since))
            }
            _ => return Answer::Stale,
        };
        match result {
            TaskResult::Done { body, took } => {
                let response = Response { body, took: leased_for.unwrap_or(took), ..Default::default() };
                self.succeed(step, response, digest);
            }
            TaskResult::Response { status, headers, body, retry_after, took } => {
                let response =
                    Response { status_code: Some(status), headers, body: Some(body), took, ..Default::default() };
                self.judge_response(step, status, response, retry_after);
            }
            TaskResult::Failed { failure, retryable, retry_after, took } => {
                let again = NextAttempt { retry_after, digest, ..Default::default() };
                if !(retryable && self.retry(step, failure.clone(), again)) {
                    let response = Response { took: leased_for.unwrap_or(took), ..Default::default() };
                    self.fail(step, failure, response, digest);
                }
            }
            TaskResult::TimedOut { message, took } => {
                let failure = Failure::new("timeout", message);
                if !self.retry(step, failure.clone(), NextAttempt::default()) {
                    let attempt = self.run.step(step).attempt;
                    self.emit(Event::TimedOut { step, attempt, failure, took });
                }
            }
            TaskResult::Blocked { until, failure } => self.retry_uncharged(step, until, failure, digest),
        }
        Answer::Applied
    }

    fn judge_response(&mut self, step: u32, status: u16, response: Response, retry_after: Option<Span>) {
        let expected = match &self.run.node(self.plan, step).body {
            Some(Body::Http { request }) => request.expected.as_slice(),
            _ => &[],
        };
        if is_expected(status, expected) {
            return self.succeed(step, response, 0);
        }
        let failure = Failure::new("http_status", format!("the server answered {status}"));
        let retry_after = retry_after.map(|asked| asked.min(retry::RETRY_AFTER_MAX));
        let again = NextAttempt { status_code: Some(status), retry_after, ..Default::default() };
        if is_retryable(status) && self.retry(step, failure.clone(), again) {
            return;
        }
        self.fail(step, failure, response, 0);
    }

    fn succeed(&mut self, step: u32, mut response: Response, digest: u64) {
        if response.body.as_ref().is_some_and(|body| self.is_over_size(body)) {
            response.body = None;
            return self.fail(step, super::start::over_size_failure(), response, digest);
        }
        response.body = response.body.map(|body| self.store_if_large(body));
        let attempt = self.run.step(step).attempt;
        self.emit(Event::Succeeded { step, attempt, response, seen: Vec::new(), digest });
    }

    fn fail(&mut self, step: u32, failure: Failure, mut response: Response, digest: u64) {
        response.body = response.body.filter(|body| !self.is_over_size(body)).map(|body| self.store_if_large(body));
        let attempt = self.run.step(step).attempt;
        self.emit(Event::Failed { step, attempt, failure, response: Some(response), seen: Vec::new(), digest });
    }

    /// Schedules another charged attempt, if the policy has one left.
    pub(super) fn retry(&mut self, step: u32, failure: Failure, again: NextAttempt) -> bool {
        let NextAttempt { status_code, retry_after, died, is_free, digest } = again;
        let policy = &self.run.node(self.plan, step).retry;
        let state = self.run.step(step);
        let seed = retry::seed(&self.context.run.0, step, state.attempt);
        let delay = match is_free && !policy.never {
            true => Some(Span::default()),
            false => retry::delay(policy, state.charged, retry_after, seed),
        };
        let Some(delay) = delay else { return false };
        let delay = if died { Span::default() } else { delay };
        let (attempt, next) = (state.attempt, self.context.now.after(delay));
        self.emit(Event::Retrying { step, attempt, next, failure, charged: !is_free, status_code, died, digest });
        true
    }

    /// Schedules another attempt without charging this one: nothing was sent, so a step that may be attempted
    /// only once still has its attempt.
    fn retry_uncharged(&mut self, step: u32, until: Timestamp, failure: Failure, digest: u64) {
        let (attempt, next) = (self.run.step(step).attempt, until.max(self.context.now));
        let (charged, status_code, died) = (false, None, false);
        self.emit(Event::Retrying { step, attempt, next, failure, charged, status_code, died, digest });
    }

    /// The process that executed the attempt is gone. The attempt is not charged. If the step may be attempted at
    /// most once, it fails instead, because its outcome is unknown.
    pub(super) fn lost(&mut self, step: u32, fence: u64) -> Answer {
        let (current, attempt) = match self.run.get(step) {
            Some(state) => match state.phase {
                Phase::Running { fence, .. } => (fence, state.attempt),
                Phase::Leased { fence: current, .. } => return self.lease_lost(step, current == fence),
                _ => return Answer::Stale,
            },
            None => return self.answer_without_step(step, Answer::Stale),
        };
        if current != fence || self.run.is_terminal() {
            return Answer::Stale;
        }
        if self.run.node(self.plan, step).retry.never {
            let message = "the server stopped while this step ran, and it may be tried only once";
            let failure = Failure::new("outcome_unknown", message);
            self.emit(Event::Failed { step, attempt, failure, response: None, seen: Vec::new(), digest: 0 });
            return Answer::Applied;
        }
        let failure = Failure::new("server_stopped", "the server stopped while this attempt ran");
        self.retry_uncharged(step, self.context.now, failure, 0);
        Answer::Applied
    }

    /// Records that a result arrived after the run had ended, or while it is being cancelled; it changes nothing.
    pub(super) fn record_late_result(&mut self, step: u32, result: &TaskResult) -> Answer {
        let state = self.run.step(step);
        if !state.late && state.attempt > 0 {
            let summary = match result {
                TaskResult::Done { .. } => "done".to_owned(),
                TaskResult::Response { status, .. } => format!("the server answered {status}"),
                TaskResult::Failed { failure, .. } | TaskResult::Blocked { failure, .. } => failure.message.clone(),
                TaskResult::TimedOut { message, .. } => message.clone(),
            };
            self.emit(Event::LateResult { step, attempt: state.attempt, summary });
        }
        Answer::Ended(self.run.status())
    }
}
