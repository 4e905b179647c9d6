//! Makes the moves of the planner: starts steps, settles groups and loops, ends the run.

use super::{AdvanceState, Effect, View};
use crate::event::{EndAfterUndo, Event, Failure, Response};
use crate::expr::{self, Seen};
use crate::payload::{INLINE_MAX, Payload};
use crate::plan::{Body, GroupBody, Http, Level, Repeat};
use crate::planner::{Finish, Move, Next, Settlement, StartTarget};
use crate::planted_bugs::{self, Bug};
use crate::run::{Phase, STEPS_MAX};
use crate::scope::Unresolved;
use crate::status::RunStatus;
use crate::template::{self, Failure as Unfilled};
use crate::time::{Span, Timestamp};
use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;

/// About how large a piece of the list of a loop is. Larger than [`INLINE_MAX`], so that only the last piece can stand in
/// the record and the snapshots of the run.
const PAGE_BYTES: usize = 8 * 1024;

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
pub enum Stop {
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
    /// Makes the moves of the planner until it has none.
    pub(super) fn make_moves(&mut self) {
        while self.is_open() {
            if self.run.status() == RunStatus::Compensating {
                match self.undo_next() {
                    true => continue,
                    false => break,
                }
            }
            let Some(mut planner) = self.run.planner.take() else { break };
            let next = planner.next(&self.view(), self.run.is_held());
            self.run.planner = Some(planner);
            match next {
                Next::Nothing => break,
                Next::Missing(numbers) => self.note_missing(numbers),
                Next::Move(Move::Start { target: StartTarget::Opened(step), seen }) => {
                    if !self.start(step, seen)
                        && let Some(planner) = &mut self.run.planner
                    {
                        planner.stalled(step);
                    }
                }
                Next::Move(Move::Start { target: StartTarget::New { node, parent, index }, .. }) => {
                    let step = self.run.next_step();
                    self.emit(Event::Opened { step, node, parent, index });
                    self.open_inner_steps(step);
                }
                Next::Move(Move::Settle { step, settlement }) => self.settle(step, settlement),
                Next::Move(Move::Cancel { step }) => self.call_off(step),
                Next::Move(Move::Finish(finish)) => self.finish(finish),
            }
        }
        if let Some(planner) = self.run.planner.as_mut().filter(|_| !self.run.state.status.is_terminal()) {
            planner.unstall();
        }
    }

    fn settle(&mut self, step: u32, settlement: Settlement) {
        match settlement {
            Settlement::Skipped(because) => self.emit(Event::Skipped { step, because }),
            Settlement::Failed { failure, seen } => drop(self.stop(step, Stop::Failed(failure), seen)),
            Settlement::Ok { body, seen } => {
                let attempt = self.run.step(step).attempt.max(1);
                let took = self.run.step(step).started_at.map_or(Span::default(), |at| self.context.now.since(at));
                let body = body.map(|body| self.store_if_large(body));
                let response = Response { body, took, ..Default::default() };
                self.emit(Event::Succeeded { step, attempt, response, seen, digest: 0 });
            }
        }
    }

    fn finish(&mut self, finish: Finish) {
        match finish {
            Finish::Completed { output: None } => self.emit(Event::RunCompleted {}),
            Finish::Completed { output: Some(output) } => {
                let output = self.store_if_large(output);
                self.emit(Event::RunFinished { output });
            }
            Finish::Failed { failure, step } => {
                let (status, failure) = (RunStatus::Failed, Some(failure));
                self.end_run(EndAfterUndo { status, failure, step, ..Default::default() });
            }
            Finish::Stopped { failure } => {
                let (status, failure) = (RunStatus::Failed, Some(failure));
                self.stop_and_end(EndAfterUndo { status, failure, ..Default::default() }, false);
            }
            Finish::Cancelled { actor, reason } => {
                let status = RunStatus::Cancelled;
                self.end_run(EndAfterUndo { status, actor, reason, ..Default::default() });
            }
        }
    }

    /// Cancels a step and everything inside of it.
    pub(super) fn call_off(&mut self, step: u32) {
        let mut inside = self.run.descendants(step);
        inside.reverse();
        inside.push(step);
        self.cancel_begun(inside);
    }

    /// Cancels those of these steps that have begun, and aborts their attempts. A step inside another one comes before
    /// it, because it is settled with it.
    pub(super) fn cancel_begun(&mut self, steps: Vec<u32>) {
        for step in steps {
            let mut was_dispatched = true;
            match self.run.step(step).phase {
                Phase::Pending {} | Phase::Done { .. } | Phase::Unknown { .. } => continue,
                Phase::Running { fence, .. } | Phase::Leased { fence, .. } => {
                    was_dispatched = self.abort_attempt(step, fence);
                }
                Phase::Ready {}
                | Phase::Retrying { .. }
                | Phase::Sleeping { .. }
                | Phase::Waiting { .. }
                | Phase::Open {} => {}
                Phase::Child {} => self.open_child(step).into_iter().for_each(|child| self.close_child(child)),
            }
            self.emit(Event::Cancelled { step });
            self.note_unsent(step, was_dispatched);
        }
    }

    /// An attempt that was called off before it was dispatched has come to its end.
    pub(super) fn note_unsent(&mut self, step: u32, was_dispatched: bool) {
        let called_off = self.run.state.called_off.get(&step).filter(|_| !was_dispatched);
        if let Some(attempt) = called_off.map(|called_off| called_off.attempt) {
            self.emit(Event::Returned { step, attempt, response: None, failure: None, digest: 0 });
        }
    }

    /// Opens the steps of a group or an iteration.
    fn open_inner_steps(&mut self, step: u32) {
        let Some(group) = self.run.group_body(self.plan, step) else { return };
        for node in self.plan.group(group) {
            self.emit(Event::Opened { step: self.run.next_step(), node: *node, parent: step, index: 0 });
        }
    }

    /// What the root group can read.
    pub(super) fn view(&self) -> View<'_> {
        View {
            plan: self.plan,
            run: self.run,
            context: self.context,
            fresh: Some(&self.fresh),
            parsed: &self.parsed,
            group: None,
            next_iteration: None,
        }
    }

    fn note_missing(&mut self, numbers: Vec<u32>) {
        for number in numbers {
            if !self.out.missing.contains(&number) {
                self.out.missing.push(number);
            }
        }
    }

    pub(super) fn stop(&mut self, step: u32, stop: Stop, seen: Vec<Seen>) -> bool {
        match stop {
            Stop::Missing(numbers) => {
                self.note_missing(numbers);
                false
            }
            Stop::Failed(failure) => {
                let attempt = self.run.step(step).attempt;
                self.emit(Event::Failed { step, attempt, failure, response: None, seen, digest: 0 });
                true
            }
        }
    }

    pub(super) fn start(&mut self, step: u32, seen: Vec<Seen>) -> bool {
        let now = self.context.now;
        match self.run.node(self.plan, step).body.as_ref() {
            Some(Body::Http { .. } | Body::Log { .. } | Body::Noop {} | Body::Task { .. }) => {
                return self.start_attempt(step, seen);
            }
            Some(Body::Set { values }) => {
                let values = values.as_ref().map_or(Ok(Value::Null), |t| template::render(t, &self.view().of(step)));
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
                    self.open_wait(step, *timeout, seen);
                }
            }
            Some(Body::Signal { name, timeout }) => self.start_signal_wait(step, name, *timeout, seen),
            Some(Body::Approval { approval }) => return self.request_approval(step, approval, seen),
            Some(Body::Pause { timeout }) => self.open_wait(step, *timeout, seen),
            Some(Body::Child { child }) => return self.start_child(step, child, seen),
            Some(Body::Group { group }) => return self.start_group(step, group, seen),
            Some(Body::Loop { repeat }) => return self.start_loop(step, repeat, seen),
            Some(Body::Unknown { .. }) | None => debug_assert!(false, "never decided, see `Plan::is_known`"),
        }
        true
    }

    fn start_group(&mut self, step: u32, group: &GroupBody, seen: Vec<Seen>) -> bool {
        if self.run.next_step().saturating_add(self.plan.group(group).len() as u32) > STEPS_MAX {
            let failure = Failure::new("too_many_steps", "the run would have more than 100,000 steps");
            return self.stop(step, Stop::Failed(failure), seen);
        }
        self.emit(Event::GroupStarted { step, seen });
        self.open_inner_steps(step);
        true
    }

    /// M13: the list of a loop is read once and stored in pieces, so that no iteration has to parse all of it.
    fn start_loop(&mut self, step: u32, repeat: &Repeat, seen: Vec<Seen>) -> bool {
        let view = self.view().of(step);
        let items = match (&repeat.items, &repeat.list) {
            (Some(items), _) => expr::value(items, &view).map_err(Stop::from),
            (None, Some(list)) => template::render(list, &view).map_err(Stop::from),
            (None, None) => {
                self.emit(Event::LoopStarted { step, seen, count: None, pages: BTreeMap::new() });
                return true;
            }
        };
        let list = match items {
            Ok(Value::Array(list)) => list,
            Ok(other) => {
                let message = format!("`items` is {}, not a list", kind_of(&other));
                return self.stop(step, Stop::Failed(Failure::new("not_a_list", message)), seen);
            }
            Err(stop) => return self.stop(step, stop, seen),
        };
        if list.len() > repeat.max_iterations as usize {
            let message = format!("`items` has {} items, the limit is {}", list.len(), repeat.max_iterations);
            return self.stop(step, Stop::Failed(Failure::new("max_iterations", message)), seen);
        }
        let count = list.len() as u32;
        let pages = pages_of(&list);
        let bytes = pages.values().map(String::len).sum::<usize>() as u64;
        if self.is_over_size(&Payload { len: bytes, ..Default::default() }) {
            return self.stop(step, Stop::Failed(over_size_failure()), seen);
        }
        let mut stored = BTreeMap::new();
        let mut number = self.run.state.payloads;
        for (first, text) in pages {
            let mut page = Payload::json(text);
            if page.inline.len() > INLINE_MAX {
                number += 1;
                self.store_as(&mut page, number);
            }
            stored.insert(first, page);
        }
        self.emit(Event::LoopStarted { step, seen, count: Some(count), pages: stored });
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
        match &self.run.node(self.plan, step).body {
            Some(Body::Task { task }) => return self.lease_or_enqueue(step, task, seen),
            Some(Body::Child { child }) => return self.start_child(step, child, seen),
            _ => {}
        }
        if !self.context.is_draining {
            return self.execute(step, seen);
        }
        let attempt = self.run.step(step).attempt + 1;
        self.emit(Event::Scheduled { step, attempt, seen, key: String::new(), of_type: String::new() });
        true
    }

    /// Starts the steps that a draining process left ready.
    pub(super) fn start_ready(&mut self) {
        if self.context.is_draining || !self.is_open() || self.run.is_held() {
            return;
        }
        let is_executed_here = |step: &u32| self.run.node(self.plan, *step).task().is_none();
        let ready: Vec<u32> = self.run.index.ready.iter().copied().filter(is_executed_here).collect();
        for step in ready {
            self.execute(step, Vec::new());
        }
    }

    /// Gives the next attempt to an executor of this process. False when a payload is missing.
    fn execute(&mut self, step: u32, seen: Vec<Seen>) -> bool {
        let view = self.view().of(step);
        let work = match self.run.node(self.plan, step).body.as_ref() {
            Some(Body::Http { request }) => fill_request(request, &view).map(|r| Work::Http(Box::new(r))),
            Some(Body::Log { level, message }) => {
                let message = template::render_text(message, &view).map_err(Stop::from);
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
                let (key, repeats) = (self.run.key(self.plan, step).into_owned(), self.run.repeats(step));
                self.out.effects.push(Effect::Execute { step, key, attempt, repeats, fence, work });
                true
            }
        }
    }

    /// Asks whether the host of a request is down. Neither a step with a retry policy of its own nor an operator who asks
    /// for an attempt waits for that.
    fn held_back(&self, step: u32, work: &Work) -> Option<HeldBack> {
        let Work::Http(request) = work else { return None };
        let ignores_host = self.run.node(self.plan, step).http().is_some_and(|http| http.ignores_host_backoff);
        if ignores_host || self.run.step(step).is_forced {
            return None;
        }
        let fence = self.run.state.seq + 1;
        (self.context.hold)(NextRequest { step, fence, request }).filter(|held| held.until > self.context.now)
    }
}

/// A list as JSON in pieces of about [`PAGE_BYTES`], by the number of the first item of each.
fn pages_of(list: &[Value]) -> BTreeMap<u32, String> {
    let mut pages = BTreeMap::new();
    let mut page = String::new();
    let mut first = 0;
    for (index, item) in list.iter().enumerate() {
        page.push(if page.is_empty() { '[' } else { ',' });
        page += &item.to_string();
        if page.len() >= PAGE_BYTES || index + 1 == list.len() {
            page.push(']');
            pages.insert(first, std::mem::take(&mut page));
            first = index as u32 + 1;
        }
    }
    pages
}

/// A value in a message: what kind it is.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub(crate) fn over_size_failure() -> Failure {
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
