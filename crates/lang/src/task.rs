//! A plain task: a run with one step, made from a type and a few settings instead of a document.
//!
//! ```text
//!   fields of a request ──settings──▶ Settings ──define──▶ Definition { layout, source, hash }
//! ```
//!
//! Two tasks whose type and settings are the same have the same definition and so the same hash, whether a default
//! was written out or left out: nothing in a definition depends on what a later release takes for granted.

pub use crate::step::task::Timeouts;

use crate::codes;
use crate::diagnostic::{Diagnostic, Draft, Problems};
use crate::fields::{self, Fields};
use crate::step::{retry, task};
use crate::tree::Value;
use crate::{Syntax, read};
use kernel::plan::{Body, Form, Group, Layout, Node, Retry, Verdict};
use kernel::time::Span;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

/// The key of a plain task's only step.
pub const STEP: &str = "task";

const ATTEMPTS_MAX: i64 = 100;

/// How a plain task is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub retry: Retry,
    pub timeouts: Timeouts,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { retry: retry::task_default(), timeouts: Timeouts::default() }
    }
}

/// What a type and settings make: one version, like that of a workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub layout: Layout,
    /// Canonical as it stands; [`settings`] reads it back.
    pub source: Json,
    pub hash: [u8; 32],
}

/// What is wrong with the name of a type. Its path is empty: the caller knows where the name stands.
pub fn check_type(name: &str) -> Result<(), Diagnostic> {
    match task::fault(name) {
        None => Ok(()),
        Some((message, hint)) => Err(Draft::new(codes::INVALID_TYPE, 0..0, message).hint(hint).place("")),
    }
}

/// The definition of tasks of this type that are tried like this. The name has been checked.
pub fn define(name: &str, settings: &Settings) -> Definition {
    let source = source(name, settings);
    let hash = Sha256::digest(source.to_string().as_bytes()).into();
    let node = Node {
        key: STEP.to_owned(),
        body: Some(Body::Task { task: Box::new(settings.timeouts.task(name)) }),
        retry: settings.retry.clone(),
        ..Default::default()
    };
    let layout = Layout {
        form: Form::Task,
        groups: vec![Group { nodes: vec![0], verdict: Verdict::Strict, ..Default::default() }],
        nodes: vec![node],
        // It waits for a worker as long as it takes, unless its own limits say otherwise.
        max_duration: Span(u64::MAX),
        ..Default::default()
    };
    Definition { layout, source, hash }
}

/// Keys are written in canonical order, so that printing it is all there is to do.
fn source(name: &str, settings: &Settings) -> Json {
    let Timeouts { queue, attempt, heartbeat, total } = settings.timeouts;
    let limits = [("attempt", attempt), ("heartbeat", heartbeat), ("queue", queue), ("total", total)];
    let limits: Map<String, Json> = limits
        .into_iter()
        .filter_map(|(name, limit)| limit.map(|span| (name.to_owned(), json!(span.to_string()))))
        .collect();
    let mut source = Map::new();
    source.insert("retry".into(), retry::to_json(&settings.retry));
    if !limits.is_empty() {
        source.insert("timeouts".into(), Json::Object(limits));
    }
    source.insert("type".into(), json!(name));
    Json::Object(source)
}

/// Reads `max_attempts`, `retry` and `timeouts` of a request for a task; its other fields are somebody else's. Problems are
/// placed by their path within the request (`retry.backoff.type`); their line and column mean nothing.
pub fn settings(request: &Map<String, Json>) -> Result<Settings, Vec<Diagnostic>> {
    let given = |(name, value): (&String, &Json)| {
        ["max_attempts", "retry", "timeouts"].contains(&name.as_str()).then(|| (name.clone(), value.clone()))
    };
    let given: Map<String, Json> = request.iter().filter_map(given).collect();
    if given.is_empty() {
        return Ok(Settings::default());
    }
    let text = Json::Object(given).to_string();
    let tree = read(text.as_bytes(), Syntax::Json).map_err(|malformed| malformed.0)?;
    let mut problems = Problems::new(tree.source());
    tree.root().check_numbers(&mut problems);
    let settings = fields::object(tree.root(), "a task", &mut problems).and_then(|f| settle(&f, &mut problems));
    match settings {
        Some(settings) if problems.is_empty() => Ok(settings),
        _ => Err(problems.finish(Some(tree.root()))),
    }
}

fn settle(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Settings> {
    let mut retry = retry::read(fields, retry::task_default(), problems);
    if let Some(node) = fields.get("max_attempts") {
        if let Some(second) = counts_too(fields) {
            let message = format!("`max_attempts` and `{second}` cannot both be given");
            let draft = Draft::new(codes::EXCLUSIVE_FIELDS, node.span.clone(), message);
            problems.push(draft.hint("both say how often it is tried; keep one of them"));
        }
        retry.max_attempts = fields::whole(node, "max_attempts", 1..=ATTEMPTS_MAX, problems)? as u32;
    }
    let timeouts = fields.get("timeouts").map_or(Some(Timeouts::default()), |node| Timeouts::read(node, problems))?;
    Some(Settings { retry, timeouts })
}

/// What of `retry` says how often, like `max_attempts` beside it.
fn counts_too(fields: &Fields<'_>) -> Option<&'static str> {
    match &fields.get("retry")?.value {
        Value::Text(_) => Some("retry: never"),
        Value::Object(policy) if policy.iter().any(|e| e.key == "max_attempts") => Some("retry.max_attempts"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
