//! Schemas of fields whose values come from a fixed list of the kernel, and of other fields without a Rust type.

use kernel::run::WaitKind;
use kernel::{EventType, Reason, RunStatus, StepStatus, TaskStatus};
use schemars::{Schema, SchemaGenerator, json_schema};

fn one_of(values: impl Iterator<Item = &'static str>) -> Schema {
    json_schema!({ "type": "string", "enum": values.collect::<Vec<_>>() })
}

pub fn run_status(_: &mut SchemaGenerator) -> Schema {
    one_of(RunStatus::ALL.iter().map(|s| s.as_str()))
}

pub fn step_status(_: &mut SchemaGenerator) -> Schema {
    one_of(StepStatus::ALL.iter().map(|s| s.as_str()))
}

/// An event that a later release wrote is `unknown`.
pub fn event_type(_: &mut SchemaGenerator) -> Schema {
    one_of(EventType::ALL.iter().map(|e| e.as_str()).chain(["unknown"]))
}

pub fn reason(_: &mut SchemaGenerator) -> Schema {
    one_of(Reason::ALL.iter().map(|r| r.as_str()))
}

pub fn wait_kind(_: &mut SchemaGenerator) -> Schema {
    one_of(WaitKind::ALL.iter().map(|s| s.as_str()))
}

pub fn wait_kinds(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": wait_kind(generator) })
}

pub fn form(_: &mut SchemaGenerator) -> Schema {
    one_of(kernel::plan::Form::ALL.iter().map(|s| s.as_str()))
}

pub fn trigger_kind(_: &mut SchemaGenerator) -> Schema {
    one_of(kernel::event::TriggerKind::ALL.iter().map(|s| s.as_str()))
}

/// The types that a request may create a trigger with; `cron` means `schedule`.
pub fn trigger_type(_: &mut SchemaGenerator) -> Schema {
    one_of(["schedule", "cron", "webhook", "manual"].into_iter())
}

pub fn delivery_outcome(_: &mut SchemaGenerator) -> Schema {
    one_of(["started", "queued", "skipped", "rejected"].into_iter())
}

pub fn task_status(_: &mut SchemaGenerator) -> Schema {
    one_of(TaskStatus::ALL.iter().map(|s| s.as_str()))
}

pub fn optional_task_status(generator: &mut SchemaGenerator) -> Schema {
    or_null(task_status(generator))
}

/// `null` means the same as a missing field.
fn or_null(schema: Schema) -> Schema {
    json_schema!({ "anyOf": [schema, { "type": "null" }] })
}

/// `deleted`: the task that was created with the same idempotency key has been deleted.
pub fn submitted_status(_: &mut SchemaGenerator) -> Schema {
    one_of(TaskStatus::ALL.iter().map(|s| s.as_str()).chain(["deleted"]))
}

/// How the server took a worker's report.
pub fn ack(_: &mut SchemaGenerator) -> Schema {
    one_of(["recorded", "stale_claim", "cancelled", "too_large"].into_iter())
}

pub fn optional_attempts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "null"], "minimum": 1, "maximum": 100 })
}

pub fn optional_duration(generator: &mut SchemaGenerator) -> Schema {
    or_null(duration(generator))
}

/// A duration as text or in seconds.
pub fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "a count and a unit (500ms, 30s, 5m, 2h, 13d), or a whole number of seconds",
        "type": ["string", "integer"],
        "pattern": "^[0-9]+(ms|s|m|h|d)$",
        "minimum": 0,
    })
}
