//! Schemas of fields whose values come from a fixed list of the kernel, and of other fields without a Rust type.

use kernel::run::WaitKind;
use kernel::{EventType, Reason, RunStatus, Span, StepStatus, TaskStatus};
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

pub fn recovery_status(_: &mut SchemaGenerator) -> Schema {
    one_of(["running", "completed", "failed"].into_iter())
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

pub fn decision(_: &mut SchemaGenerator) -> Schema {
    one_of(kernel::plan::Decision::ALL.iter().map(|s| s.as_str()))
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
    one_of(["started", "queued", "skipped", "rejected", "signalled"].into_iter())
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

/// The id of a task: of the only step of its run, or with the number of the step.
pub fn task_id(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^task_[0-7][0-9a-hjkmnp-tv-z]{25}(-(0|[1-9][0-9]{0,9}))?$";
    json_schema!({ "type": "string", "pattern": pattern })
}

/// The name of a worker, or what it says about itself.
pub fn name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$", "minLength": 1, "maxLength": 200 })
}

pub fn optional_name(generator: &mut SchemaGenerator) -> Schema {
    or_null(name(generator))
}

/// The code of an error.
pub fn optional_code(_: &mut SchemaGenerator) -> Schema {
    or_null(
        json_schema!({ "type": "string", "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$", "minLength": 1, "maxLength": 100 }),
    )
}

/// Task types and prefixes of types.
pub fn type_patterns(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^([A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*|[A-Za-z0-9._-]*%)$";
    let item = json_schema!({ "type": "string", "pattern": pattern, "maxLength": 200 });
    json_schema!({ "type": "array", "items": item, "minItems": 1, "maxItems": 100 })
}

const LABEL_KEY: &str = "[A-Za-z0-9._-]{1,64}";
const LABEL_VALUE: &str = "[^\\x00-\\x1f\\x7f-\\x9f]{0,256}";

/// A label in a query or a filter.
pub fn label() -> Schema {
    json_schema!({ "type": "string", "pattern": format!("^{LABEL_KEY}:{LABEL_VALUE}$") })
}

pub fn optional_label(_: &mut SchemaGenerator) -> Schema {
    or_null(label())
}

pub fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "propertyNames": { "pattern": format!("^{LABEL_KEY}$") },
        "additionalProperties": { "type": "string", "pattern": format!("^{LABEL_VALUE}$") },
    })
}

pub fn optional_log_level(_: &mut SchemaGenerator) -> Schema {
    or_null(one_of(["debug", "info", "warning", "error"].into_iter()))
}

/// How long a worker may keep a task without a heartbeat.
pub fn optional_lease(_: &mut SchemaGenerator) -> Schema {
    or_null(duration_between(Span::from_secs(1), Span::from_secs(3_600)))
}

/// How long a claim waits.
pub fn optional_wait(_: &mut SchemaGenerator) -> Schema {
    or_null(duration_between(Span(0), Span::from_secs(60)))
}

/// How long a task is put off.
pub fn delay(_: &mut SchemaGenerator) -> Schema {
    duration_between(Span(0), Span::from_days(30))
}

pub fn optional_delay(generator: &mut SchemaGenerator) -> Schema {
    or_null(delay(generator))
}

/// The period of a rate.
pub fn period(_: &mut SchemaGenerator) -> Schema {
    duration_between(Span::from_millis(1), Span::from_days(30))
}

/// A duration within bounds, as text or in seconds.
pub fn duration_between(min: Span, max: Span) -> Schema {
    let units = [("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];
    let counts = |micros: u64| (min.0.div_ceil(micros), max.0 / micros);
    let text = units.iter().filter(|(_, micros)| counts(*micros).0 <= counts(*micros).1).map(|(unit, micros)| {
        let (from, to) = counts(*micros);
        format!("({}){unit}", numbers(from, to))
    });
    let (from, to) = counts(1_000_000);
    json_schema!({
        "description": format!("a duration from {min} to {max}: a count and a unit (500ms, 30s, 5m, 2h, 13d), or a whole number of seconds"),
        "type": ["string", "integer"],
        "pattern": format!("^0*({})$", text.collect::<Vec<_>>().join("|")),
        "minimum": from,
        "maximum": to,
    })
}

/// A regular expression for the whole numbers between two, both included, without leading zeros.
fn numbers(from: u64, to: u64) -> String {
    let mut parts = Vec::new();
    if from == 0 {
        parts.push("0".to_owned());
    }
    let mut next = from.max(1);
    while next <= to {
        // The largest block of numbers that differ in their last digits only.
        let (mut size, mut free) = (1_u64, 0);
        while next.is_multiple_of(size * 10) && next + size * 10 - 1 <= to {
            (size, free) = (size * 10, free + 1);
        }
        let (head, first) = (next / size / 10, next / size % 10);
        let last = (first..=9).take_while(|digit| (head * 10 + digit + 1) * size - 1 <= to).last().unwrap_or(first);
        let head = if head > 0 { head.to_string() } else { String::new() };
        let digit = if first == last { first.to_string() } else { format!("[{first}-{last}]") };
        let tail = if free > 0 { format!("[0-9]{{{free}}}") } else { String::new() };
        parts.push(format!("{head}{digit}{tail}"));
        next = (next / size + last - first + 1) * size;
    }
    parts.join("|")
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

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn numbers_between_two_have_a_pattern() {
        for (from, to, expected) in [
            (0, 60, "0|[1-9]|[1-5][0-9]{1}|60"),
            (1, 1, "1"),
            (1, 30, "[1-9]|[1-2][0-9]{1}|30"),
            (1_000, 3_600, "[1-2][0-9]{3}|3[0-5][0-9]{2}|3600"),
            (98, 101, "9[8-9]|10[0-1]"),
        ] {
            assert_eq!(numbers(from, to), expected, "{from} to {to}");
        }
    }
}
