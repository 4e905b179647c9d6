//! How an attempt ended, and what that means for its step: success, another try, or failure.

use super::{Answer, Turn};
use crate::event::{Event, Failure, Pair, Response};
use crate::payload::Payload;
use crate::plan::{Body, StatusRange};
use crate::planted::{self, Bug};
use crate::retry;
use crate::run::Phase;
use crate::time::{Span, Timestamp};

/// What an executor brings back. It reports; the kernel judges.
#[derive(Clone, Debug)]
pub enum TaskResult {
    /// Done, with this output.
    Done { body: Option<Payload>, took: Span },
    /// A server answered.
    Response { status: u16, headers: Vec<Pair>, body: Payload, retry_after: Option<Span>, took: Span },
    /// There is no answer: the network, a bad address.
    Failed { failure: Failure, retryable: bool, took: Span },
    /// The attempt's own time limit passed.
    TimedOut { message: String, took: Span },
    /// Nothing was done, because this is not the time for it; come back at `until`.
    Blocked { until: Timestamp, failure: Failure },
}

/// Is this status a success for the step?
pub fn is_expected(status: u16, expected: &[StatusRange]) -> bool {
    match expected {
        [] => (200..300).contains(&status),
        ranges => ranges.iter().any(|r| (r.from..=r.to).contains(&status)),
    }
}

/// Worth another try: the server's trouble, or its request to slow down.
fn is_retryable(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

impl Turn<'_> {
    pub(super) fn finished(&mut self, step: u32, fence: u64, result: TaskResult) -> Answer {
        if step as usize >= self.run.state.steps.len() {
            return Answer::Unknown;
        }
        if self.run.is_terminal() {
            if planted::is(Bug::LateResultApplied)
                && matches!(result, TaskResult::Done { .. } | TaskResult::Response { .. })
            {
                self.emit(Event::Succeeded { step, attempt: 1, response: Response::default(), seen: Vec::new() });
                return Answer::Applied;
            }
            return self.late(step, &result);
        }
        match self.run.step(step).phase {
            Phase::Running { fence: current, .. } if current == fence => {}
            _ => return Answer::Stale,
        }
        match result {
            TaskResult::Done { body, took } => {
                let response = Response { body, took, ..Default::default() };
                self.succeed(step, response);
            }
            TaskResult::Response { status, headers, body, retry_after, took } => {
                let response =
                    Response { status_code: Some(status), headers, body: Some(body), took, ..Default::default() };
                self.judge(step, status, response, retry_after);
            }
            TaskResult::Failed { failure, retryable, took } => {
                if !(retryable && self.retry(step, failure.clone(), None, None)) {
                    let response = Response { took, ..Default::default() };
                    self.fail(step, failure, response);
                }
            }
            TaskResult::TimedOut { message, took } => {
                let failure = Failure::new("timeout", message);
                if !self.retry(step, failure.clone(), None, None) {
                    let attempt = self.run.step(step).attempt;
                    self.emit(Event::TimedOut { step, attempt, failure, took });
                }
            }
            TaskResult::Blocked { until, failure } => self.hold_back(step, until, failure),
        }
        Answer::Applied
    }

    fn judge(&mut self, step: u32, status: u16, response: Response, retry_after: Option<Span>) {
        let expected = match &self.plan.node(step).body {
            Some(Body::Http { request }) => request.expected.as_slice(),
            _ => &[],
        };
        if is_expected(status, expected) {
            return self.succeed(step, response);
        }
        let failure = Failure::new("http_status", format!("the server answered {status}"));
        if is_retryable(status) && self.retry(step, failure.clone(), Some(status), retry_after) {
            return;
        }
        self.fail(step, failure, response);
    }

    fn succeed(&mut self, step: u32, mut response: Response) {
        if response.body.as_ref().is_some_and(|body| self.is_over_size(body)) {
            response.body = None;
            return self.fail(step, super::start::over_size(), response);
        }
        response.body = response.body.map(|body| self.keep(body));
        let attempt = self.run.step(step).attempt;
        self.emit(Event::Succeeded { step, attempt, response, seen: Vec::new() });
    }

    fn fail(&mut self, step: u32, failure: Failure, mut response: Response) {
        response.body = response.body.filter(|body| !self.is_over_size(body)).map(|body| self.keep(body));
        let attempt = self.run.step(step).attempt;
        self.emit(Event::Failed { step, attempt, failure, response: Some(response), seen: Vec::new() });
    }

    /// Schedules another charged attempt, if the policy has one left.
    fn retry(&mut self, step: u32, failure: Failure, status_code: Option<u16>, retry_after: Option<Span>) -> bool {
        let policy = &self.plan.node(step).retry;
        let state = self.run.step(step);
        let seed = retry::seed(&self.context.run.0, step, state.attempt);
        let Some(delay) = retry::delay(policy, state.charged, retry_after, seed) else { return false };
        let (attempt, next) = (state.attempt, self.context.now.after(delay));
        self.emit(Event::Retrying { step, attempt, next, failure, charged: true, status_code });
        true
    }

    /// Nothing was sent, so nothing is charged, and a step that may be tried only once still has its try.
    fn hold_back(&mut self, step: u32, until: Timestamp, failure: Failure) {
        let (attempt, next) = (self.run.step(step).attempt, until.max(self.context.now));
        self.emit(Event::Retrying { step, attempt, next, failure, charged: false, status_code: None });
    }

    /// The process that ran it is gone. Its attempt is not charged, unless the step asked to be tried at
    /// most once: then nobody can know whether it happened.
    pub(super) fn lost(&mut self, step: u32, fence: u64) -> Answer {
        let (current, attempt) = match self.run.state.steps.get(step as usize) {
            Some(state) => match state.phase {
                Phase::Running { fence, .. } => (fence, state.attempt),
                _ => return Answer::Stale,
            },
            None => return Answer::Unknown,
        };
        if current != fence || self.run.is_terminal() {
            return Answer::Stale;
        }
        if self.plan.node(step).retry.never {
            let message = "the server stopped while this step ran, and it may be tried only once";
            let failure = Failure::new("outcome_unknown", message);
            self.emit(Event::Failed { step, attempt, failure, response: None, seen: Vec::new() });
            return Answer::Applied;
        }
        let failure = Failure::new("server_stopped", "the server stopped while this attempt ran");
        self.emit(Event::Retrying {
            step,
            attempt,
            next: self.context.now,
            failure,
            charged: false,
            status_code: None,
        });
        Answer::Applied
    }

    /// Notes that a result came after the run had ended; it changes nothing.
    fn late(&mut self, step: u32, result: &TaskResult) -> Answer {
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
