//! The inputs of a case: the trigger, scripted responses, scripted workers, callbacks, and when the run is cancelled.

use super::{Reader, WorkerAttempt};
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
    pub http: BTreeMap<u32, Vec<Scripted>>,
    /// By step: the report of a worker for each attempt; the last one repeats. Never empty.
    pub tasks: BTreeMap<u32, Vec<WorkerAttempt>>,
    pub callbacks: BTreeMap<u32, GivenCallback>,
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

#[derive(Clone, Debug, PartialEq)]
pub struct GivenCallback {
    pub when: When,
    pub body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// This long after the step began to wait.
    After(Span),
    /// This long after the run started, whether or not it has reached the step.
    At(Span),
    Never,
}

const ANSWER: Shape = Shape {
    known: &["status", "headers", "body", "took", "timeout", "network"],
    later: &[],
    synonyms: &[("status_code", "status"), ("delay", "took"), ("error", "network"), ("json", "body")],
};
const CALLBACK: Shape = Shape {
    known: &["after", "at", "never", "body"],
    later: &[],
    synonyms: &[("delay", "after"), ("payload", "body")],
};

impl Given {
    /// Takes the inputs that are not set here from `shared`.
    pub(super) fn with_defaults(mut self, shared: &Given) -> Given {
        self.input = self.input.or_else(|| shared.input.clone());
        self.headers = self.headers.or_else(|| shared.headers.clone());
        for (step, scripted) in &shared.http {
            self.http.entry(*step).or_insert_with(|| scripted.clone());
        }
        for (step, worked) in &shared.tasks {
            self.tasks.entry(*step).or_insert_with(|| worked.clone());
        }
        for (step, callback) in &shared.callbacks {
            self.callbacks.entry(*step).or_insert_with(|| callback.clone());
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
            let Some(step) = self.step(entry) else { continue };
            if !self.is_http(step) {
                let hint = "only http steps send something that is answered";
                self.not_for_kind(step, &entry.key_span, "sends nothing", hint);
                continue;
            }
            let scripted = self.script(step, &entry.value);
            if !scripted.is_empty() {
                given.http.insert(step, scripted);
            }
        }
        given.tasks = self.worker_reports(fields);
        for entry in fields.get("callbacks").map(|node| self.entries(node, "callbacks")).unwrap_or_default() {
            let Some(step) = self.step(entry) else { continue };
            if !matches!(self.body_of(step), Some(Body::Webhook { .. })) {
                self.not_for_kind(step, &entry.key_span, "waits for no callback", "only wait_for_webhook steps do");
            } else if let Some(callback) = self.callback(&entry.value) {
                given.callbacks.insert(step, callback);
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

    fn callback(&mut self, node: &TreeNode) -> Option<GivenCallback> {
        let callback = fields::object(node, "a callback", &mut self.problems)?;
        callback.check(&CALLBACK, &mut self.problems);
        for (one, other) in [("after", "at"), ("never", "after"), ("never", "at"), ("never", "body")] {
            callback.exclusive(one, other, &mut self.problems);
        }
        let when = match (callback.get("after"), callback.get("at"), callback.get("never")) {
            (_, _, Some(node)) => self.must_be_true(node, "never").then_some(When::Never)?,
            (_, Some(node), _) => When::At(self.span(node, "at")?),
            (Some(node), _, _) => When::After(self.span(node, "after")?),
            (None, None, None) => When::After(Span(0)),
        };
        Some(GivenCallback { when, body: bytes(callback.get("body")) })
    }

    fn must_be_true(&mut self, node: &TreeNode, what: &str) -> bool {
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
fn bytes(node: Option<&TreeNode>) -> Vec<u8> {
    match node.map(|node| &node.value) {
        None => Vec::new(),
        Some(Value::Text(text)) => text.clone().into_bytes(),
        Some(_) => node.map(|node| node.to_json().to_string()).unwrap_or_default().into_bytes(),
    }
}
