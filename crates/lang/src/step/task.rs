//! Task steps: work for a worker, which claims it by its type.
//!
//! Single tasks and task steps share the type name and the four time limits; this module reads them for both.

use super::{StepFields, http::all_or_nothing, names, templates};
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields::{self, DURATION_MAX, Fields, Shape, Unit, duration};
use crate::tree::{TreeNode, Value};
use kernel::path::Resolve;
use kernel::plan::{Body, TaskBody};
use kernel::template::{Part, Template};
use kernel::time::Span;

pub(super) const INPUT: &str = "input";

/// The fields beside `task`.
pub(super) const FIELDS: &[&str] =
    &[INPUT, "timeouts", "priority", "concurrency_key", "allow", "timeout", "retries", "retry"];

const TYPE_MAX: usize = 200;
const PRIORITY_MAX: i64 = 1_000_000;
const TIMEOUT_MIN: Span = Span::from_millis(1);
/// A worker needs some time between heartbeats.
const HEARTBEAT_MIN: Span = Span::from_secs(1);

/// The time limits of a task. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// From ready to claimed.
    pub queue: Option<Span>,
    /// One attempt.
    pub attempt: Option<Span>,
    /// Between two heartbeats of its worker.
    pub heartbeat: Option<Span>,
    /// All attempts together, from when the task could first be claimed.
    pub total: Option<Span>,
}

impl Timeouts {
    /// A task of this type with these limits and no other settings.
    pub(crate) fn task(self, name: &str) -> TaskBody {
        let Timeouts { queue, attempt, heartbeat, total } = self;
        TaskBody { name: name.to_owned(), queue, attempt, heartbeat, total, ..Default::default() }
    }

    /// Reads `{queue, attempt, heartbeat, total}`.
    pub(crate) fn read(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Timeouts> {
        let fields = fields::object(node, "timeouts", problems)?;
        fields.check(&TIMEOUTS, problems);
        let mut read = |name: &str, least: Span| {
            all_or_nothing(
                fields.get(name).map(|node| duration(node, name, Unit::Seconds, (least, DURATION_MAX), problems)),
            )
        };
        let (queue, attempt) = (read("queue", TIMEOUT_MIN), read("attempt", TIMEOUT_MIN));
        let (heartbeat, total) = (read("heartbeat", HEARTBEAT_MIN), read("total", TIMEOUT_MIN));
        Some(Timeouts { queue: queue?, attempt: attempt?, heartbeat: heartbeat?, total: total? })
    }
}

const TIMEOUTS: Shape = Shape {
    known: &["queue", "attempt", "heartbeat", "total"],
    later: &[],
    synonyms: &[("run", "attempt"), ("execution", "attempt"), ("lease", "heartbeat"), ("start", "queue")],
};

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let fields = &step.fields;
    let scope: &mut Resolve<'_> = &mut step.scope();
    let allow = fields.get("allow").map(|node| types(node, problems));
    let name = match &allow {
        // With an invalid list, the type is not checked: it would be reported for lacking a list.
        Some(None) => None,
        Some(Some(allow)) => type_of(step.value(), Some(allow), scope, problems),
        None => type_of(step.value(), None, scope, problems),
    };
    let limits = limits(fields, step, problems);
    let input = match fields.get(INPUT) {
        Some(node) => templates::template(node, scope, problems),
        // The default is not the trigger body: a step lists what it passes on.
        None => Some(Template::literal(&serde_json::json!({}))),
    };
    let (name, of_type) = name?;
    Some(Body::Task {
        task: Box::new(TaskBody {
            allow: allow.flatten().filter(|_| !of_type.is_empty()).unwrap_or_default(),
            name,
            of_type,
            input: Some(input?),
            ..limits?
        }),
    })
}

/// What all work for workers has: its time limits, and its place in the queue.
pub(super) fn limits(fields: &Fields<'_>, step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<TaskBody> {
    let timeouts = timeouts(fields, problems);
    let settings = settings(fields, step, problems);
    let TaskBody { queue, attempt, heartbeat, total, .. } = timeouts?.task("");
    Some(TaskBody { queue, attempt, heartbeat, total, ..settings? })
}

/// Its place in the queue.
pub(super) fn settings(
    fields: &Fields<'_>,
    step: &StepFields<'_, '_>,
    problems: &mut Problems<'_>,
) -> Option<TaskBody> {
    let priority = fields.get("priority").map(|node| fields::whole(node, "priority", 0..=PRIORITY_MAX, problems));
    let key = fields.get("concurrency_key").map(|node| key(node, &mut step.scope(), problems));
    Some(TaskBody {
        priority: all_or_nothing(priority)?.map(|n| n as u32),
        key: all_or_nothing(key)?.unwrap_or_default(),
        ..Default::default()
    })
}

/// `timeout` is short for `timeouts: {attempt}`.
fn timeouts(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Timeouts> {
    let short = fields.get("timeout").map(|node| {
        let range = (TIMEOUT_MIN, DURATION_MAX);
        duration(node, "timeout", Unit::Seconds, range, problems)
    });
    let timeouts = fields.get("timeouts").map_or(Some(Timeouts::default()), |node| Timeouts::read(node, problems));
    if let (Some(_), Some(Value::Object(limits))) = (&short, fields.get("timeouts").map(|node| &node.value))
        && let Some(second) = limits.iter().find(|entry| entry.key == "attempt")
    {
        let message = "`timeout` and `timeouts.attempt` cannot both be given";
        let draft = Draft::new(codes::EXCLUSIVE_FIELDS, second.key_span.clone(), message);
        problems.push(draft.hint("both limit one attempt; keep one of them"));
    }
    let (short, timeouts) = (all_or_nothing(short)?, timeouts?);
    Some(Timeouts { attempt: short.or(timeouts.attempt), ..timeouts })
}

fn key(node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Vec<kernel::template::Part>> {
    if matches!(&node.value, Value::Text(text) if text.is_empty()) {
        let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), "`concurrency_key` is empty");
        problems.push(draft.hint("leave it out if the task shares no limit"));
        return None;
    }
    templates::key(node, "concurrency_key", scope, problems)
}

/// The types that a template may form.
fn types(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let names = names::read(node, "allow", problems)?;
    let Value::List(items) = &node.value else { return None };
    let mut is_good = true;
    for (name, item) in names.iter().zip(items) {
        if let Some((message, hint)) = type_name_problem(name) {
            problems.push(Draft::new(codes::INVALID_TYPE, item.span.clone(), message).hint(hint));
            is_good = false;
        }
    }
    is_good.then_some(names)
}

/// The type of a task step: written out, or the parts of a template that forms one of `allow`.
fn type_of(
    node: &TreeNode,
    allow: Option<&[String]>,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<(String, Vec<Part>)> {
    if matches!(&node.value, Value::Text(text) if text.contains("{{")) {
        if allow.is_none() {
            let draft =
                Draft::new(codes::TEMPLATE_IN_TYPE, node.span.clone(), "a template may not form the type of a task");
            problems.push(draft.hint("write the type out, or list the types it may be in `allow`"));
            return None;
        }
        return templates::parts(node, "task", scope, problems).map(|parts| (String::new(), parts));
    }
    let name = name(node, problems)?;
    if allow.is_some_and(|allow| !allow.contains(&name)) {
        let message = format!("the type {} is not in `allow`", quoted(&name));
        let draft = Draft::new(codes::TYPE_NOT_ALLOWED, node.span.clone(), message);
        problems.push(draft.hint("add it, or remove `allow`: without templates it is not needed"));
        return None;
    }
    Some((name, Vec::new()))
}

/// The type of a task step that is written out.
fn name(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let Value::Text(name) = &node.value else {
        let draft = fields::wrong_type(node, "task", "the type of a task");
        problems.push(draft.hint("write `task: billing.invoice.v1`, and what the worker gets as `input`"));
        return None;
    };
    if let Some((message, hint)) = type_name_problem(name) {
        problems.push(Draft::new(codes::INVALID_TYPE, node.span.clone(), message).hint(hint));
        return None;
    }
    Some(name.clone())
}

/// The work that the engine does itself has types that begin like this.
const RESERVED: &str = "onward.";

/// Whether only the engine makes and does tasks of this type.
pub fn is_reserved_type(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// What is wrong with a type name, and a hint.
pub(crate) fn type_name_problem(name: &str) -> Option<(String, &'static str)> {
    const GRAMMAR: &str = "a type is a dotted name such as `billing.invoice.v1`, of letters, digits, `_`, `-` and `.`";
    let invalid = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    Some(match invalid {
        _ if name.is_empty() => ("the type of a task is empty".to_owned(), GRAMMAR),
        _ if name.contains("{{") => {
            let hint = "workers find tasks by their type, so write it out; data goes into `input`";
            (format!("{} would be a type made from data", quoted(name)), hint)
        }
        Some('%') => {
            let hint = "a worker that claims may end a type in `%`; a task has exactly one";
            (format!("{} is not one type but many", quoted(name)), hint)
        }
        Some(c) => (format!("{} contains {}, which a type cannot", quoted(name), quoted(&c.to_string())), GRAMMAR),
        None if name.len() > TYPE_MAX => {
            let message = format!("this type has {} characters, the limit is {TYPE_MAX}", grouped(name.len()));
            (message, "shorten it")
        }
        None if is_reserved_type(name) => {
            let message = format!("types that begin with `{RESERVED}` belong to the engine, {} does", quoted(name));
            (message, "choose another type, or use a step of that kind")
        }
        None if name.split('.').any(str::is_empty) => (format!("{} has an empty part", quoted(name)), GRAMMAR),
        None => return None,
    })
}
