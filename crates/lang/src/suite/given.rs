//! The inputs of a case: the trigger, scripted responses, scripted workers, what people and other systems do, the runs of
//! other workflows, and when the run is cancelled.

use super::places::ByStep;
use super::waits::GivenSignals;
use super::{GivenCallback, GivenChild, GivenDecision, GivenResume, Reader, WorkerAttempt};
use crate::codes;
use crate::diagnostic::Draft;
use crate::fields::{self, DURATION_MAX, Fields, Shape, Unit};
use crate::tree::{TreeNode, Value};
use kernel::Span;
use kernel::plan::Body;
use std::collections::BTreeMap;

/// The inputs of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// The trigger's body as JSON.
    pub input: Option<serde_json::Value>,
    pub headers: Option<Vec<(String, String)>>,
    /// By step: the response to each attempt; the last one repeats. Never empty.
    pub http: ByStep<Vec<Scripted>>,
    /// By step: the report of a worker for each attempt; the last one repeats. Never empty.
    pub tasks: ByStep<Vec<WorkerAttempt>>,
    pub callbacks: ByStep<GivenCallback>,
    /// By name.
    pub signals: BTreeMap<String, GivenSignals>,
    pub approvals: ByStep<GivenDecision>,
    pub pauses: ByStep<GivenResume>,
    pub children: ByStep<GivenChild>,
    pub cancel_after: Option<Span>,
}

/// The scripted response to one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Scripted {
    pub reply: Reply,
    /// The time from the request to the response.
    pub took: Span,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Response {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    Network(String),
    /// No response within the step's timeout.
    Nothing,
}

const ANSWER: Shape = Shape {
    known: &["status", "headers", "body", "took", "timeout", "network"],
    later: &[],
    synonyms: &[("status_code", "status"), ("delay", "took"), ("error", "network"), ("json", "body")],
};
impl Given {
    /// Takes the inputs that are not set here from `shared`.
    pub(super) fn with_defaults(mut self, shared: &Given) -> Given {
        self.input = self.input.or_else(|| shared.input.clone());
        self.headers = self.headers.or_else(|| shared.headers.clone());
        self.http.add_defaults(&shared.http);
        self.tasks.add_defaults(&shared.tasks);
        self.callbacks.add_defaults(&shared.callbacks);
        self.approvals.add_defaults(&shared.approvals);
        self.pauses.add_defaults(&shared.pauses);
        self.children.add_defaults(&shared.children);
        for (name, signals) in &shared.signals {
            self.signals.entry(name.clone()).or_insert_with(|| signals.clone());
        }
        self
    }
}

impl Reader<'_> {
    pub(super) fn given(&mut self, fields: &Fields<'_>) -> Given {
        let mut given = Given { input: fields.get("input").map(TreeNode::to_json), ..Given::default() };
        if let Some(node) = fields.get("headers") {
            given.headers = Some(self.trigger_headers(node));
        }
        for entry in fields.get("http").map(|node| self.entries(node, "http")).unwrap_or_default() {
            let Some(place) = self.place(&entry.key, &entry.key_span) else { continue };
            if !self.is_http(place.node) {
                let hint = "only http steps send something that is answered";
                self.not_for_kind(place.node, &entry.key_span, "sends nothing", hint);
                continue;
            }
            let scripted = self.script(place.node, &entry.value);
            if !scripted.is_empty() {
                given.http.insert(place, scripted);
            }
        }
        given.tasks = self.worker_reports(fields);
        given.signals = self.signals(fields);
        given.children = self.children(fields);
        for entry in fields.get("callbacks").map(|node| self.entries(node, "callbacks")).unwrap_or_default() {
            let Some(place) = self.place(&entry.key, &entry.key_span) else { continue };
            if !matches!(self.body_of(place.node), Some(Body::Webhook { .. })) {
                self.not_for_kind(
                    place.node,
                    &entry.key_span,
                    "waits for no callback",
                    "only wait_for_webhook steps do",
                );
            } else if let Some(callback) = self.callback(entry, self.plan.around(place.node).is_some()) {
                given.callbacks.insert(place, callback);
            }
        }
        for entry in fields.get("approvals").map(|node| self.entries(node, "approvals")).unwrap_or_default() {
            let Some(place) = self.place(&entry.key, &entry.key_span) else { continue };
            if !matches!(self.body_of(place.node), Some(Body::Approval { .. })) {
                self.not_for_kind(place.node, &entry.key_span, "asks for no approval", "only approval steps do");
            } else if let Some(decision) = self.decision(entry) {
                given.approvals.insert(place, decision);
            }
        }
        for entry in fields.get("pauses").map(|node| self.entries(node, "pauses")).unwrap_or_default() {
            let Some(place) = self.place(&entry.key, &entry.key_span) else { continue };
            if !matches!(self.body_of(place.node), Some(Body::Pause { .. })) {
                self.not_for_kind(place.node, &entry.key_span, "does not pause", "only pause steps do");
            } else if let Some(resume) = self.resume(entry) {
                given.pauses.insert(place, resume);
            }
        }
        given.cancel_after = fields.get("cancel_after").and_then(|node| self.span(node, "cancel_after"));
        given
    }

    fn trigger_headers(&mut self, node: &TreeNode) -> Vec<(String, String)> {
        let read = self.headers(node);
        for entry in self.entries(node, "headers") {
            if !(self.world.keeps_header)(&entry.key.to_ascii_lowercase()) {
                let message = format!("the server does not show `{}` to a run", entry.key.to_ascii_lowercase());
                let draft = Draft::new(codes::RESERVED_HEADER, entry.key_span.clone(), message);
                self.problems.push(draft.hint("headers that authorise, sign or transport a request are never stored"));
            }
        }
        read
    }

    fn script(&mut self, step: u32, node: &TreeNode) -> Vec<Scripted> {
        let attempts = self.attempts(node);
        attempts.iter().filter_map(|attempt| self.answer(step, attempt)).collect()
    }

    /// The answers: one, or a list of at least one.
    pub(super) fn attempts<'t>(&mut self, node: &'t TreeNode) -> &'t [TreeNode] {
        match &node.value {
            Value::List(items) => {
                if items.is_empty() {
                    self.problems.add(codes::MISSING_FIELD, &node.span, "a list of answers needs at least one answer");
                }
                items
            }
            _ => std::slice::from_ref(node),
        }
    }

    fn answer(&mut self, step: u32, node: &TreeNode) -> Option<Scripted> {
        if let Value::Int(_) = node.value {
            let status = self.status(step, node)?;
            return Some(Scripted { reply: Reply::Response { status, headers: vec![], body: vec![] }, took: Span(0) });
        }
        if !matches!(node.value, Value::Object(_)) {
            let draft = fields::wrong_type(node, "an answer", "an object or a status");
            self.problems.push(draft.hint("write `503`, or `{ status: 200, body: { … } }`"));
            return None;
        }
        let answer = fields::object(node, "an answer", &mut self.problems)?;
        answer.check(&ANSWER, &mut self.problems);
        for (one, other) in [
            ("timeout", "network"),
            ("timeout", "status"),
            ("timeout", "headers"),
            ("timeout", "body"),
            ("timeout", "took"),
            ("network", "status"),
            ("network", "headers"),
            ("network", "body"),
        ] {
            answer.exclusive(one, other, &mut self.problems);
        }
        let took = match answer.get("took") {
            Some(node) => self.span(node, "took")?,
            None => Span(0),
        };
        if let Some(node) = answer.get("timeout") {
            return self.must_be_true(node, "timeout").then_some(Scripted { reply: Reply::Nothing, took });
        }
        if let Some(node) = answer.get("network") {
            let why = fields::text(node, "network", &mut self.problems)?;
            return Some(Scripted { reply: Reply::Network(why.to_owned()), took });
        }
        let status = match answer.get("status") {
            Some(node) => self.status(step, node)?,
            None => 200,
        };
        let mut headers = answer.get("headers").map(|node| self.headers(node)).unwrap_or_default();
        let body = answer.get("body");
        let is_json = body.is_some_and(|node| !matches!(node.value, Value::Text(_)));
        if is_json && !headers.iter().any(|(name, _)| name == "content-type") {
            headers.push(("content-type".into(), "application/json".into()));
        }
        Some(Scripted { reply: Reply::Response { status, headers, body: bytes(body) }, took })
    }

    fn status(&mut self, step: u32, node: &TreeNode) -> Option<u16> {
        let status = fields::whole(node, "status", 200..=599, &mut self.problems)?;
        let follows = matches!(self.body_of(step), Some(Body::Http { request }) if request.redirects > 0);
        if follows && matches!(status, 301 | 302 | 303 | 307 | 308) {
            let message = format!("`{}` follows redirects", self.plan.node_at(step).key);
            let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
            self.problems.push(draft.hint("script the final response instead"));
            return None;
        }
        u16::try_from(status).ok()
    }

    pub(super) fn must_be_true(&mut self, node: &TreeNode, what: &str) -> bool {
        match fields::boolean(node, what, &mut self.problems) {
            Some(false) => {
                let message = format!("`{what}` can only be true");
                self.problems
                    .push(Draft::new(codes::INVALID_VALUE, node.span.clone(), message).hint("leave it out otherwise"));
                false
            }
            is_true => is_true.is_some(),
        }
    }

    pub(super) fn span(&mut self, node: &TreeNode, what: &str) -> Option<Span> {
        fields::duration(node, what, Unit::Seconds, (Span(0), DURATION_MAX), &mut self.problems)
    }
}

/// The bytes of a body: a text as it is, anything else as JSON.
pub(super) fn bytes(node: Option<&TreeNode>) -> Vec<u8> {
    match node.map(|node| &node.value) {
        None => Vec::new(),
        Some(Value::Text(text)) => text.clone().into_bytes(),
        Some(_) => node.map(|node| node.to_json().to_string()).unwrap_or_default().into_bytes(),
    }
}
