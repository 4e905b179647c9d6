//! What people and other systems do in a case: callbacks, signals, decisions about approvals, resuming.

use super::Reader;
use super::given::bytes;
use crate::codes;
use crate::diagnostic::{Draft, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, TreeNode, Value};
use kernel::Span;
use kernel::plan::Body;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub struct GivenCallback {
    pub when: When,
    pub body: Vec<u8>,
}

/// The signals of one name: one for each wait for it, in order; the last one repeats. Never empty.
pub type GivenSignals = Vec<GivenSignal>;

#[derive(Clone, Debug, PartialEq)]
pub struct GivenSignal {
    pub when: When,
    /// JSON.
    pub body: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GivenDecision {
    /// Approved, or denied.
    pub approves: bool,
    /// `None` for the first of the step's approvers.
    pub actor: Option<String>,
    pub comment: String,
    pub when: When,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GivenResume {
    pub when: When,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// This long after the step began to wait.
    After(Span),
    /// This long after the run started, whether or not it has reached the step.
    At(Span),
    Never,
}

const CALLBACK: Shape = Shape {
    known: &["after", "at", "never", "body"],
    later: &[],
    synonyms: &[("delay", "after"), ("payload", "body")],
};
const DECISION: Shape = Shape {
    known: &["decision", "actor", "comment", "after", "never"],
    later: &[],
    synonyms: &[("approve", "decision"), ("delay", "after"), ("by", "actor"), ("notes", "comment")],
};
const RESUME: Shape = Shape { known: &["after", "never"], later: &[], synonyms: &[("delay", "after")] };
const DECISIONS: &[(&str, bool)] = &[("approve", true), ("reject", false)];

impl Reader<'_> {
    pub(super) fn callback(&mut self, entry: &Entry, is_inner: bool) -> Option<GivenCallback> {
        let callback = fields::object(&entry.value, "a callback", &mut self.problems)?;
        callback.check(&CALLBACK, &mut self.problems);
        let when = self.when(&callback)?;
        if let (true, Some(at)) = (is_inner, callback.entry("at")) {
            let message = "a callback for a step inside of a group or loop cannot be early";
            let draft = Draft::new(codes::INVALID_VALUE, at.key_span.clone(), message);
            self.problems.push(draft.hint("write `after`: its URL exists from when the step begins to wait"));
        }
        Some(GivenCallback { when, body: bytes(callback.get("body")) })
    }

    /// `signals: {name: signal or signals}`.
    pub(super) fn signals(&mut self, fields: &Fields<'_>) -> BTreeMap<String, GivenSignals> {
        let mut signals = BTreeMap::new();
        for entry in fields.get("signals").map(|node| self.entries(node, "signals")).unwrap_or_default() {
            let names = || {
                self.plan.nodes().iter().filter_map(|node| match &node.body {
                    Some(Body::Signal { name, .. }) => Some(name.as_str()),
                    _ => None,
                })
            };
            if !names().any(|name| name == entry.key) {
                let hint = crate::suggest::hint(&entry.key, names());
                let message = format!("no step of this workflow waits for the signal {}", quoted(&entry.key));
                let hint = hint.or_else(|| {
                    let is_step = self.plan.find(&entry.key).is_some();
                    is_step.then(|| "write the name of the signal, not of the step".to_owned())
                });
                let draft = Draft::new(codes::UNKNOWN_CASE_SIGNAL, entry.key_span.clone(), message);
                self.problems.push(draft.maybe_hint(hint));
                continue;
            }
            let listed = self.attempts(&entry.value);
            let given: Vec<GivenSignal> = listed.iter().filter_map(|node| self.signal(node)).collect();
            if !given.is_empty() {
                signals.insert(entry.key.clone(), given);
            }
        }
        signals
    }

    fn signal(&mut self, node: &TreeNode) -> Option<GivenSignal> {
        let signal = fields::object(node, "a signal", &mut self.problems)?;
        signal.check(&CALLBACK, &mut self.problems);
        let body = signal.get("body").map_or(serde_json::Value::Null, TreeNode::to_json);
        Some(GivenSignal { when: self.when(&signal)?, body })
    }

    /// `approve`, `reject`, or `{decision, actor, comment, after}`.
    pub(super) fn decision(&mut self, entry: &Entry) -> Option<GivenDecision> {
        let node = &entry.value;
        let mut given =
            GivenDecision { approves: true, actor: None, comment: String::new(), when: When::After(Span(0)) };
        if let Value::Text(_) = node.value {
            given.approves = fields::word(node, "a decision", DECISIONS, &mut self.problems)?;
            return Some(given);
        }
        if !matches!(node.value, Value::Object(_)) {
            let draft = fields::wrong_type(node, "a decision", "`approve`, `reject` or an object");
            self.problems.push(draft.hint("write `approve`, or `{ decision: reject, actor: ann, after: 2h }`"));
            return None;
        }
        let decision = fields::object(node, "a decision", &mut self.problems)?;
        decision.check(&DECISION, &mut self.problems);
        decision.exclusive("never", "decision", &mut self.problems);
        given.when = self.when(&decision)?;
        if given.when != When::Never {
            let word = decision.require("decision", "a decision", &node.span, &mut self.problems)?;
            given.approves = fields::word(word, "decision", DECISIONS, &mut self.problems)?;
        }
        if let Some(node) = decision.get("actor") {
            given.actor = Some(fields::text(node, "actor", &mut self.problems)?.to_owned());
        }
        if let Some(node) = decision.get("comment") {
            fields::text(node, "comment", &mut self.problems)?.clone_into(&mut given.comment);
        }
        Some(given)
    }

    /// `2h`, or `{after}`.
    pub(super) fn resume(&mut self, entry: &Entry) -> Option<GivenResume> {
        let node = &entry.value;
        if !matches!(node.value, Value::Object(_)) {
            return self.span(node, &entry.key).map(|span| GivenResume { when: When::After(span) });
        }
        let resume = fields::object(node, "when a pause ends", &mut self.problems)?;
        resume.check(&RESUME, &mut self.problems);
        Some(GivenResume { when: self.when(&resume)? })
    }

    /// `after`, `at` or `never`; at once without any.
    fn when(&mut self, fields: &Fields<'_>) -> Option<When> {
        for (one, other) in [("after", "at"), ("never", "after"), ("never", "at"), ("never", "body")] {
            fields.exclusive(one, other, &mut self.problems);
        }
        Some(match (fields.get("after"), fields.get("at"), fields.get("never")) {
            (_, _, Some(node)) => self.must_be_true(node, "never").then_some(When::Never)?,
            (_, Some(node), _) => When::At(self.span(node, "at")?),
            (Some(node), _, _) => When::After(self.span(node, "after")?),
            (None, None, None) => When::After(Span(0)),
        })
    }
}
