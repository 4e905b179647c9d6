//! The expectations of a case. Everything listed must hold; anything else is not checked.

use super::Reader;
use crate::codes;
use crate::diagnostic::{Draft, quoted};
use crate::fields::{self, DURATION_MAX, Shape, Unit};
use crate::tree::{TreeNode, Value};
use kernel::plan::Body;
use kernel::{RunStatus, Span, StepStatus};

/// An expected value, and its byte offset in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected<T> {
    pub value: T,
    pub at: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expect {
    pub status: Option<Expected<RunStatus>>,
    /// The steps that start, in this order, and no others.
    pub path: Option<Expected<Vec<String>>>,
    /// By key; the node in the plan.
    pub steps: Vec<(String, u32, StepExpect)>,
    /// The status of every step that is not in `steps`.
    pub other_steps: Option<Expected<StepStatus>>,
    pub took: Vec<Expected<Bound>>,
    pub output: Option<Expected<serde_json::Value>>,
    /// The error code of the request that was to start the run.
    pub refused: Option<Expected<String>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepExpect {
    pub status: Option<Expected<StepStatus>>,
    pub attempts: Option<Expected<u32>>,
    pub status_code: Option<Expected<u16>>,
    /// The code of the failure.
    pub error: Option<Expected<String>>,
    pub body: Option<Expected<serde_json::Value>>,
    /// The input that the worker got, or the body of the trigger that the child got.
    pub input: Option<Expected<serde_json::Value>>,
    /// One for each request, in order.
    pub requests: Option<Expected<Vec<RequestExpect>>>,
}

impl StepExpect {
    /// Where the expectations are in the file.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        let StepExpect { status, attempts, status_code, error, body, input, requests } = self;
        [
            status.as_ref().map(|e| e.at),
            attempts.as_ref().map(|e| e.at),
            status_code.as_ref().map(|e| e.at),
            error.as_ref().map(|e| e.at),
            body.as_ref().map(|e| e.at),
            input.as_ref().map(|e| e.at),
            requests.as_ref().map(|e| e.at),
        ]
        .into_iter()
        .flatten()
    }
}

/// What a request must have; fields that are `None` are not checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestExpect {
    pub method: Option<Expected<String>>,
    pub url: Option<Expected<String>>,
    /// Names in lowercase.
    pub headers: Vec<(String, Expected<String>)>,
    pub body: Option<Expected<serde_json::Value>>,
}

/// A bound on the duration of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    pub order: Order,
    pub span: Span,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Exactly,
    AtMost,
    AtLeast,
    Less,
    More,
}

impl Order {
    const SIGNS: [(&'static str, Order); 5] =
        [("<=", Order::AtMost), (">=", Order::AtLeast), ("==", Order::Exactly), ("<", Order::Less), (">", Order::More)];
}

impl Bound {
    pub fn holds(&self, took: Span) -> bool {
        match self.order {
            Order::Exactly => took == self.span,
            Order::AtMost => took <= self.span,
            Order::AtLeast => took >= self.span,
            Order::Less => took < self.span,
            Order::More => took > self.span,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = Order::SIGNS.iter().find(|(_, order)| *order == self.order && self.order != Order::Exactly);
        sign.iter().try_for_each(|(sign, _)| write!(f, "{sign} "))?;
        write!(f, "{}", self.span)
    }
}

const EXPECT: Shape = Shape {
    known: &["status", "path", "steps", "other_steps", "took", "output", "refused"],
    later: &[],
    synonyms: &[("tasks", "steps"), ("others", "other_steps"), ("duration", "took")],
};
const STEP: Shape = Shape {
    known: &["status", "attempts", "status_code", "error", "body", "requests", "input"],
    later: &[],
    synonyms: &[("request", "requests"), ("attempt", "attempts"), ("output", "body"), ("sent", "requests")],
};
/// Why a run may be refused that a case starts.
const REFUSALS: &[&str] = &["invalid_input", "concurrency_key_unresolved"];
const REQUEST: Shape = Shape::only(&["method", "url", "headers", "body"]);

fn expected<T>(node: &TreeNode, value: T) -> Expected<T> {
    Expected { value, at: node.span.start }
}

impl Reader<'_> {
    pub(super) fn expect(&mut self, node: &TreeNode) -> Option<Expect> {
        let fields = fields::object(node, "expect", &mut self.problems)?;
        fields.check(&EXPECT, &mut self.problems);
        let mut expect = Expect::default();
        if let Some(node) = fields.get("status") {
            let ends: Vec<(&str, RunStatus)> =
                RunStatus::ALL.iter().filter(|s| s.is_terminal()).map(|s| (s.as_str(), *s)).collect();
            expect.status = fields::word(node, "status", &ends, &mut self.problems).map(|s| expected(node, s));
        }
        if let Some(node) = fields.get("path") {
            let items = fields::list(node, "path", &mut self.problems).unwrap_or_default();
            let keys = items.iter().filter_map(|item| {
                let key = fields::text(item, "a step", &mut self.problems)?;
                self.one_step(key, &item.span).map(|(_, key)| key)
            });
            expect.path = Some(expected(node, keys.collect()));
        }
        for entry in fields.get("steps").map(|node| self.entries(node, "steps")).unwrap_or_default() {
            let Some((node, key)) = self.one_step(&entry.key, &entry.key_span) else { continue };
            if let Some(read) = self.step_expect(node, &entry.value) {
                expect.steps.push((key, node, read));
            }
        }
        if let Some(node) = fields.get("other_steps") {
            expect.other_steps = self.step_status(node, "other_steps");
        }
        if let Some(node) = fields.get("took") {
            let bounds = match &node.value {
                Value::List(items) => items.as_slice(),
                _ => std::slice::from_ref(node),
            };
            expect.took = bounds.iter().filter_map(|node| self.bound(node)).collect();
        }
        expect.output = fields.get("output").map(|node| expected(node, node.to_json()));
        if let Some(node) = fields.get("refused") {
            let codes: Vec<(&str, &str)> = REFUSALS.iter().map(|code| (*code, *code)).collect();
            let code = fields::word(node, "refused", &codes, &mut self.problems);
            expect.refused = code.map(|code| expected(node, code.to_owned()));
            if fields.len() > 1 {
                let message = "a run that is refused does nothing else to expect";
                self.problems.add(codes::EXCLUSIVE_FIELDS, &node.span, message);
            }
        }
        let is_empty = fields.len() == 0 || expect == Expect::default() && self.problems.is_empty();
        if is_empty {
            let draft = Draft::new(codes::EMPTY_EXPECTATION, node.span.clone(), "`expect` expects nothing");
            self.problems.push(draft.hint("a case that cannot fail proves nothing; begin with `status: completed`"));
        }
        Some(expect)
    }

    fn step_expect(&mut self, step: u32, node: &TreeNode) -> Option<StepExpect> {
        if let Value::Text(_) = node.value {
            let key = self.plan.node_at(step).key.clone();
            return Some(StepExpect { status: self.step_status(node, &key), ..StepExpect::default() });
        }
        if !matches!(node.value, Value::Object(_)) {
            let draft = fields::wrong_type(node, "what is expected of a step", "a status or an object");
            self.problems.push(draft.hint("write `success`, or `{ status: failed, attempts: 3 }`"));
            return None;
        }
        let fields = fields::object(node, "a step", &mut self.problems)?;
        fields.check(&STEP, &mut self.problems);
        let is_task = self.plan.node_at(step).task().is_some();
        let is_child = matches!(self.body_of(step), Some(Body::Child { .. }));
        for (name, has, hint) in [
            (
                "attempts",
                self.is_http(step) || is_task || is_child,
                "only http, task and subworkflow steps are attempted",
            ),
            ("status_code", self.is_http(step), "only http steps send requests"),
            ("requests", self.is_http(step), "only http steps send requests"),
            ("input", is_task || is_child, "only task steps have a worker, and only subworkflow steps a child"),
        ] {
            if let Some(entry) = fields.entry(name).filter(|_| !has) {
                self.not_for_kind(step, &entry.key_span, &format!("has no `{name}`"), hint);
            }
        }
        if fields.len() == 0 {
            self.problems.add(codes::EMPTY_EXPECTATION, &node.span, "nothing is expected of this step");
        }
        let mut read = StepExpect::default();
        if let Some(node) = fields.get("status") {
            read.status = self.step_status(node, "status");
        }
        if let Some(node) = fields.get("attempts") {
            let count = fields::whole(node, "attempts", 0..=1_000_000, &mut self.problems);
            read.attempts = count.map(|n| expected(node, n as u32));
        }
        if let Some(node) = fields.get("status_code") {
            let code = fields::whole(node, "status_code", 100..=599, &mut self.problems);
            read.status_code = code.map(|n| expected(node, n as u16));
        }
        if let Some(node) = fields.get("error") {
            read.error = self.words(node, "error");
        }
        read.body = fields.get("body").map(|node| expected(node, node.to_json()));
        read.input = fields.get("input").map(|node| expected(node, node.to_json()));
        if let Some(node) = fields.get("requests") {
            let sent = match &node.value {
                Value::List(items) => items.as_slice(),
                _ => std::slice::from_ref(node),
            };
            let sent = sent.iter().filter_map(|node| self.request(node)).collect();
            read.requests = Some(expected(node, sent));
        }
        Some(read)
    }

    fn request(&mut self, node: &TreeNode) -> Option<RequestExpect> {
        let fields = fields::object(node, "a request", &mut self.problems)?;
        fields.check(&REQUEST, &mut self.problems);
        let mut read = RequestExpect {
            method: fields.get("method").and_then(|node| self.words(node, "method")),
            url: fields.get("url").and_then(|node| self.words(node, "url")),
            headers: Vec::new(),
            body: fields.get("body").map(|node| expected(node, node.to_json())),
        };
        if let Some(method) = &mut read.method {
            method.value.make_ascii_uppercase();
        }
        if let Some(node) = fields.get("headers") {
            let places: Vec<usize> = self.entries(node, "headers").iter().map(|entry| entry.value.span.start).collect();
            let headers = self.headers(node).into_iter().zip(places);
            read.headers = headers.map(|((name, value), at)| (name, Expected { value, at })).collect();
        }
        Some(read)
    }

    fn step_status(&mut self, node: &TreeNode, what: &str) -> Option<Expected<StepStatus>> {
        let all: Vec<(&str, StepStatus)> = StepStatus::ALL.iter().map(|s| (s.as_str(), *s)).collect();
        fields::word(node, what, &all, &mut self.problems).map(|status| expected(node, status))
    }

    fn words(&mut self, node: &TreeNode, what: &str) -> Option<Expected<String>> {
        fields::text(node, what, &mut self.problems).map(|text| expected(node, text.to_owned()))
    }

    fn bound(&mut self, node: &TreeNode) -> Option<Expected<Bound>> {
        let Value::Text(text) = &node.value else {
            let span = fields::duration(node, "took", Unit::Seconds, (Span(0), DURATION_MAX), &mut self.problems)?;
            return Some(expected(node, Bound { order: Order::Exactly, span }));
        };
        let sign = Order::SIGNS.iter().find(|(sign, _)| text.starts_with(sign));
        let (order, rest) = sign.map_or((Order::Exactly, text.as_str()), |(sign, order)| (*order, &text[sign.len()..]));
        let span = Span::parse(rest.trim());
        if span.is_none() {
            let message = format!("`took` is {}, which is not a duration", quoted(text));
            let draft = Draft::new(codes::INVALID_DURATION, node.span.clone(), message);
            self.problems.push(draft.hint("write `14d`, `<= 3h` or a list such as `[\">= 1h\", \"< 2h\"]`"));
        }
        span.map(|span| expected(node, Bound { order, span }))
    }
}
