//! Single tasks: a run with one step, defined by a type and a few settings instead of a document.
//!
//! ```text
//!   fields of a request ──settings──▶ TaskSettings ──define──▶ TaskDefinition { layout, source, hash }
//! ```
//!
//! Tasks with the same type and settings have the same definition and the same hash, whether a default was written out
//! or left out. A definition writes every default out, so it does not change when a later release changes a default.

pub use crate::step::task::{Timeouts, is_reserved_type};

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

/// The key of a single task's only step.
pub const STEP: &str = "task";

/// The lowering of single tasks, see [`crate::LOWERING`].
pub const LOWERING: u32 = 0;

const ATTEMPTS_MAX: i64 = 100;

/// The retry policy and time limits of a single task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSettings {
    pub retry: Retry,
    pub timeouts: Timeouts,
}

impl Default for TaskSettings {
    fn default() -> Self {
        TaskSettings { retry: retry::task_default(), timeouts: Timeouts::default() }
    }
}

/// The definition of a type with settings: one version, like that of a workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskDefinition {
    pub layout: Layout,
    /// Canonical JSON; [`settings`] reads it back.
    pub source: Json,
    pub hash: [u8; 32],
}

/// Checks a type name. The path of the diagnostic is empty: only the caller knows the field.
pub fn check_type(name: &str) -> Result<(), Diagnostic> {
    match task::type_name_problem(name) {
        None => Ok(()),
        Some((message, hint)) => Err(Draft::new(codes::INVALID_TYPE, 0..0, message).hint(hint).place("")),
    }
}

/// The definition of tasks of this type with these settings. The caller has checked the name.
pub fn define(name: &str, settings: &TaskSettings) -> TaskDefinition {
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
        // With one step every rule says the same. This one keeps the plans of tasks as they are stored.
        groups: vec![Group { nodes: vec![0], verdict: Verdict::DirectUnhandled, ..Default::default() }],
        nodes: vec![node],
        // The task waits for a worker without a limit, unless it has limits of its own.
        max_duration: Span(u64::MAX),
        ..Default::default()
    };
    TaskDefinition { layout, source, hash }
}

/// Inserts keys in canonical order, so that printing the value gives canonical JSON.
fn source(name: &str, settings: &TaskSettings) -> Json {
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

/// Reads `max_attempts`, `retry` and `timeouts` of a request that creates a task; the server reads the other fields. A
/// problem has a path within the request (`retry.backoff.type`); its line and column have no meaning.
pub fn settings(request: &Map<String, Json>) -> Result<TaskSettings, Vec<Diagnostic>> {
    let given = |(name, value): (&String, &Json)| {
        ["max_attempts", "retry", "timeouts"].contains(&name.as_str()).then(|| (name.clone(), value.clone()))
    };
    let given: Map<String, Json> = request.iter().filter_map(given).collect();
    if given.is_empty() {
        return Ok(TaskSettings::default());
    }
    let text = Json::Object(given).to_string();
    let tree = read(text.as_bytes(), Syntax::Json).map_err(|malformed| malformed.0)?;
    let mut problems = Problems::new(tree.source());
    tree.root().check_numbers(&mut problems);
    let settings = fields::object(tree.root(), "a task", &mut problems).and_then(|f| read_fields(&f, &mut problems));
    match settings {
        Some(settings) if problems.is_empty() => Ok(settings),
        _ => Err(problems.finish(Some(tree.root()))),
    }
}

fn read_fields(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<TaskSettings> {
    let mut retry = retry::read(fields, retry::task_default(), problems);
    if let Some(node) = fields.get("max_attempts") {
        if let Some(second) = attempts_in_retry(fields) {
            let message = format!("`max_attempts` and `{second}` cannot both be given");
            let draft = Draft::new(codes::EXCLUSIVE_FIELDS, node.span.clone(), message);
            problems.push(draft.hint("both say how often it is tried; keep one of them"));
        }
        retry.max_attempts = fields::whole(node, "max_attempts", 1..=ATTEMPTS_MAX, problems)? as u32;
    }
    let timeouts = fields.get("timeouts").map_or(Some(Timeouts::default()), |node| Timeouts::read(node, problems))?;
    Some(TaskSettings { retry, timeouts })
}

/// The part of `retry` that also sets the number of attempts.
fn attempts_in_retry(fields: &Fields<'_>) -> Option<&'static str> {
    match &fields.get("retry")?.value {
        Value::Text(_) => Some("retry: never"),
        Value::Object(policy) if policy.iter().any(|e| e.name() == "max_attempts") => Some("retry.max_attempts"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
