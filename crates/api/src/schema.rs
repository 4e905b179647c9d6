//! Schemas of what has no Rust type of its own: words from the kernel's lists.

use kernel::run::WaitKind;
use kernel::{EventType, Reason, RunStatus, StepStatus, TaskStatus};
use schemars::{Schema, SchemaGenerator, json_schema};

fn words(words: impl Iterator<Item = &'static str>) -> Schema {
    json_schema!({ "type": "string", "enum": words.collect::<Vec<_>>() })
}

pub fn run_status(_: &mut SchemaGenerator) -> Schema {
    words(RunStatus::ALL.iter().map(|s| s.as_str()))
}

pub fn step_status(_: &mut SchemaGenerator) -> Schema {
    words(StepStatus::ALL.iter().map(|s| s.as_str()))
}

/// An event of a later release is `unknown`.
pub fn event_type(_: &mut SchemaGenerator) -> Schema {
    words(EventType::ALL.iter().map(|e| e.as_str()).chain(["unknown"]))
}

pub fn reason(_: &mut SchemaGenerator) -> Schema {
    words(Reason::ALL.iter().map(|r| r.as_str()))
}

pub fn wait_kind(_: &mut SchemaGenerator) -> Schema {
    words(WaitKind::ALL.iter().map(|s| s.as_str()))
}

pub fn wait_kinds(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": wait_kind(generator) })
}

pub fn form(_: &mut SchemaGenerator) -> Schema {
    words(kernel::plan::Form::ALL.iter().map(|s| s.as_str()))
}

pub fn trigger_kind(_: &mut SchemaGenerator) -> Schema {
    words(kernel::event::TriggerKind::ALL.iter().map(|s| s.as_str()))
}

/// What a trigger may be asked to be.
pub fn trigger_type(_: &mut SchemaGenerator) -> Schema {
    words(["schedule", "cron", "webhook", "manual"].into_iter())
}

pub fn delivery_outcome(_: &mut SchemaGenerator) -> Schema {
    words(["started", "queued", "skipped", "rejected"].into_iter())
}

pub fn task_status(_: &mut SchemaGenerator) -> Schema {
    words(TaskStatus::ALL.iter().map(|s| s.as_str()))
}

pub fn optional_task_status(generator: &mut SchemaGenerator) -> Schema {
    or_null(task_status(generator))
}

/// `null` is as good as nothing.
fn or_null(schema: Schema) -> Schema {
    json_schema!({ "anyOf": [schema, { "type": "null" }] })
}

/// A task may also have been deleted since its key was first used.
pub fn submitted_status(_: &mut SchemaGenerator) -> Schema {
    words(TaskStatus::ALL.iter().map(|s| s.as_str()).chain(["deleted"]))
}

/// What became of a worker's report.
pub fn ack(_: &mut SchemaGenerator) -> Schema {
    words(["recorded", "stale_claim", "cancelled"].into_iter())
}

pub fn optional_attempts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "null"], "minimum": 1, "maximum": 100 })
}

pub fn optional_duration(generator: &mut SchemaGenerator) -> Schema {
    or_null(duration(generator))
}

/// A duration in either spelling.
pub fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "a count and a unit (500ms, 30s, 5m, 2h, 13d), or a whole number of seconds",
        "type": ["string", "integer"],
        "pattern": "^[0-9]+(ms|s|m|h|d)$",
        "minimum": 0,
    })
}
