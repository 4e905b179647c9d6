//! Decides a step whose parents have settled, and starts it.

use super::{AdvanceState, Effect, View};
use crate::event::{Because, Event, Failure, Response};
use crate::expr::{self, Seen};
use crate::payload::Payload;
use crate::plan::{Body, Guard, Http, Level};
use crate::planted_bugs::{self, Bug};
use crate::scope::Unresolved;
use crate::status::Outcome;
use crate::template::{self, Failure as Unfilled};
use crate::time::{Span, Timestamp};
use bytes::Bytes;
use serde_json::Value;

/// Work with every template filled in, ready for an executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Http(Box<Request>),
    Log { level: Level, message: String },
    Noop,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// The bytes, and their content type unless a header sets another.
    pub body: Option<(Bytes, &'static str)>,
    pub timeout: Span,
    /// When not empty, the host must be one of these, also after a redirect.
    pub allow_hosts: Vec<String>,
    /// The most redirects to follow.
    pub redirects: u32,
}

/// The request of an attempt that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct NextRequest<'a> {
    pub step: u32,
    /// The fence that the attempt will have.
    pub fence: u64,
    pub request: &'a Request,
}

/// A request that is not sent before `until`, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldBack {
    pub until: Timestamp,
    pub failure: Failure,
}

/// What keeps a step from starting now.
pub(super) enum Stop {
    /// These payloads must be fetched first.
    Missing(Vec<u32>),
    /// The step fails.
    Failed(Failure),
}

impl From<Unfilled> for Stop {
    fn from(failure: Unfilled) -> Self {
        match failure {
            Unfilled::Stored(numbers) => Stop::Missing(numbers),
            Unfilled::Message(message) => Stop::Failed(Failure::new("template_error", message)),
        }
    }
}

impl From<Unresolved> for Stop {
    fn from(unresolved: Unresolved) -> Self {
        match unresolved {
            Unresolved::Stored(number) => Stop::Missing(vec![number]),
            Unresolved::Truncated { step, keys } => Stop::Failed(Failure::new(
                "template_error",
                format!(
                    "Cannot read '{keys}' because the response from '{step}' exceeded the 256KB limit and was truncated"
                ),
            )),
        }
    }
}

impl AdvanceState<'_> {
    /// Decides every pending step whose parents have settled, including the steps that this makes decidable.
    pub(super) fn decide_frontier(&mut self) {
        let mut stalled = Vec::new();
        while self.is_open() && !self.run.is_held() {
            let Some(step) = self.run.index.frontier.pop_first() else { break };
            if !self.decide(step) {
                stalled.push(step);
            }
        }
        if self.is_open() {
            self.run.index.frontier.extend(stalled);
        }
    }

    /// False when the step must stay undecided until a payload is fetched.
    fn decide(&mut self, step: u32) -> bool {
        let node = self.plan.node(step);
        let outcome = |from: u32| self.run.step(from).outcome();
        let mut dead: Vec<u32> = Vec::new();
        for link in &node.links {
            let is_taken = outcome(link.from).is_some_and(|o| link.on.contains(o));
            let is_buggy = planted_bugs::is(Bug::CascadeIgnoresIf) && outcome(link.from) != Some(Outcome::Ok);
            if (!is_taken || is_buggy) && !dead.contains(&link.from) {
                dead.push(link.from);
            }
        }
        if !dead.is_empty() {
            self.emit(Event::Skipped { step, because: Because::Needs { steps: dead } });
            return true;
        }
        let mut seen = Vec::new();
        let condition = match &node.guard {
            Some(Guard { expr: Some(expr), .. }) => expr::truth(expr, &self.view(), &mut seen).map_err(Stop::from),
            _ => Ok(true),
        };
        match condition {
            Ok(true) => self.start(step, seen),
            Ok(false) => {
                self.emit(Event::Skipped { step, because: Because::Condition { seen } });
                true
            }
            Err(stop) => self.stop(step, stop, seen),
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View { plan: self.plan, run: self.run, context: self.context, fresh: Some(&self.fresh), parsed: &self.parsed }
    }

    pub(super) fn stop(&mut self, step: u32, stop: Stop, seen: Vec<Seen>) -> bool {
        match stop {
            Stop::Missing(numbers) => {
                for number in numbers {
                    if !self.out.missing.contains(&number) {
                        self.out.missing.push(number);
                    }
                }
                false
            }
            Stop::Failed(failure) => {
                let attempt = self.run.step(step).attempt;
                self.emit(Event::Failed { step, attempt, failure, response: None, seen, digest: 0 });
                true
            }
        }
    }

    fn start(&mut self, step: u32, seen: Vec<Seen>) -> bool {
        let now = self.context.now;
        match self.plan.node(step).body.as_ref() {
            Some(Body::Http { .. } | Body::Log { .. } | Body::Noop {} | Body::Task { .. }) => {
                return self.start_attempt(step, seen);
            }
            Some(Body::Set { values }) => {
                let values = values.as_ref().map_or(Ok(Value::Null), |t| template::render(t, &self.view()));
                return match values {
                    Err(unfilled) => self.stop(step, unfilled.into(), seen),
                    Ok(values) => self.set(step, values, seen),
                };
            }
            Some(Body::Sleep { span }) => self.emit(Event::TimerSet { step, at: now.after(*span), seen }),
            Some(Body::Webhook { timeout }) => {
                if self.run.step(step).callback.is_some() {
                    self.emit(Event::Received { step, callback: None });
                } else {
                    let deadline = timeout.map_or(self.run.state.origin.expires_at, |t| now.after(t));
                    self.emit(Event::WaitOpened { step, deadline, seen });
                }
            }
            Some(Body::Unknown { .. }) | None => debug_assert!(false, "never in the frontier, see `Plan::is_known`"),
        }
        true
    }

    /// A `set` step is pure, so it settles in the record that decides it.
    fn set(&mut self, step: u32, values: Value, seen: Vec<Seen>) -> bool {
        let body = Payload::json(values.to_string());
        if self.is_over_size(&body) {
            return self.stop(step, Stop::Failed(over_size_failure()), seen);
        }
        let response = Response { body: Some(self.store_if_large(body)), ..Default::default() };
        self.emit(Event::Succeeded { step, attempt: 1, response, seen, digest: 0 });
        true
    }

    /// Starts the next attempt, or schedules it for the next process while this one drains. False when a payload
    /// is missing.
    pub(super) fn start_attempt(&mut self, step: u32, seen: Vec<Seen>) -> bool {
        if let Some(task) = self.plan.node(step).task() {
            return self.lease_or_enqueue(step, task, seen);
        }
        if !self.context.is_draining {
            return self.execute(step, seen);
        }
        let attempt = self.run.step(step).attempt + 1;
        self.emit(Event::Scheduled { step, attempt, seen, key: String::new() });
        true
    }

    /// Starts the steps that a draining process left ready.
    pub(super) fn start_ready(&mut self) {
        if self.context.is_draining || !self.is_open() || self.run.is_held() {
            return;
        }
        let is_executed_here = |step: &u32| self.plan.node(*step).task().is_none();
        let ready: Vec<u32> = self.run.index.ready.iter().copied().filter(is_executed_here).collect();
        for step in ready {
            self.execute(step, Vec::new());
        }
    }

    /// Gives the next attempt to an executor of this process. False when a payload is missing.
    fn execute(&mut self, step: u32, seen: Vec<Seen>) -> bool {
        let work = match self.plan.node(step).body.as_ref() {
            Some(Body::Http { request }) => fill_request(request, &self.view()).map(|r| Work::Http(Box::new(r))),
            Some(Body::Log { level, message }) => {
                let message = template::render_text(message, &self.view()).map_err(Stop::from);
                message.map(|message| Work::Log { level: *level, message })
            }
            _ => Ok(Work::Noop),
        };
        match work {
            Err(stop) => self.stop(step, stop, seen),
            Ok(work) => {
                if let Some(HeldBack { until, failure }) = self.held_back(step, &work) {
                    self.emit(Event::HeldBack { step, until, failure, seen });
                    return true;
                }
                let state = self.run.step(step);
                let counted = if planted_bugs::is(Bug::AttemptOnFailureOnly) { state.charged } else { state.attempt };
                let attempt = counted + 1;
                self.emit(Event::Started { step, attempt, epoch: self.context.epoch, seen });
                let fence = self.run.state.seq;
                self.out.effects.push(Effect::Execute { step, attempt, fence, work });
                true
            }
        }
    }

    /// Asks whether the host of a request is down. Neither a step with a retry policy of its own nor an operator who asks
    /// for an attempt waits for that.
    fn held_back(&self, step: u32, work: &Work) -> Option<HeldBack> {
        let Work::Http(request) = work else { return None };
        let ignores_host = self.plan.node(step).http().is_some_and(|http| http.ignores_host_backoff);
        if ignores_host || self.run.step(step).is_forced {
            return None;
        }
        let fence = self.run.state.seq + 1;
        (self.context.hold)(NextRequest { step, fence, request }).filter(|held| held.until > self.context.now)
    }
}

pub(super) fn over_size_failure() -> Failure {
    Failure::new("state_limit", "this would make the run's payloads larger than 16 MiB together")
}

fn fill_request(http: &Http, view: &View<'_>) -> Result<Request, Stop> {
    let mut url = template::render_url(&http.url, view)?;
    if let Some(query) = &http.query {
        url = template::add_query(url, &template::render_pairs("query", query, view)?)?;
    }
    let mut headers = Vec::with_capacity(http.headers.len());
    for header in &http.headers {
        headers.push((header.name.clone(), template::render_header(&header.name, &header.value, view)?));
    }
    let body = match (&http.body, &http.form) {
        (None, None) => None,
        (Some(body), _) => Some(match template::render(body, view)? {
            Value::String(text) => (Bytes::from(text), "text/plain; charset=utf-8"),
            value => (Bytes::from(value.to_string()), "application/json"),
        }),
        (None, Some(form)) => {
            // A form encodes a space as `+`. The replacement is safe: a `%` of the text itself is `%25` by now.
            let fields = template::render_pairs("form", form, view)?.replace("%20", "+");
            Some((Bytes::from(fields), "application/x-www-form-urlencoded"))
        }
    };
    let (method, timeout, allow_hosts) = (http.method.clone(), http.timeout, http.allow_hosts.clone());
    Ok(Request { method, url, headers, body, timeout, allow_hosts, redirects: http.redirects })
}
