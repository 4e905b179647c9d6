//! Retry policies: `retries: n`, `retry: never`, or `retry: {max_attempts, backoff}`.

use crate::codes;
use crate::diagnostic::{Draft, Problems};
use crate::fields::{self, DURATION_MAX, Fields, Shape, Unit, duration};
use crate::tree::{TreeNode, Value};
use kernel::plan::{Backoff, Retry};
use kernel::time::Span;
use serde_json::{Map, Value as Json, json};

const ATTEMPTS_MAX: i64 = 100;

/// One attempt, for kinds that have no temporary failures.
pub(super) fn once() -> Retry {
    Retry { max_attempts: 1, ..Default::default() }
}

/// Six attempts, 1 s doubling up to 5 min, with a tenth of jitter.
pub(super) fn http_default() -> Retry {
    Retry {
        max_attempts: 6,
        backoff: Backoff::Exponential,
        min: Span::from_secs(1),
        max: Span::from_secs(300),
        jitter: 100,
        ..Default::default()
    }
}

/// Three attempts; the delay in minutes is the square of the attempt's number, with a tenth of jitter.
pub(crate) fn task_default() -> Retry {
    Retry { max_attempts: 3, backoff: Backoff::Quadratic, min: Span::from_secs(60), jitter: 100, ..Default::default() }
}

/// One attempt. If the author asks for more, the delays are those of http steps.
pub(super) fn child_default() -> Retry {
    Retry { max_attempts: 1, ..http_default() }
}

/// The policy of a step; the default after a problem.
pub(crate) fn read(fields: &Fields<'_>, default: Retry, problems: &mut Problems<'_>) -> Retry {
    fields.exclusive("retries", "retry", problems);
    if let Some(node) = fields.get("retries") {
        let retries = fields::whole(node, "retries", 0..=ATTEMPTS_MAX, problems);
        return Retry { max_attempts: retries.map_or(1, |n| n as u32 + 1), ..default };
    }
    let Some(node) = fields.get("retry") else { return default };
    match &node.value {
        Value::Text(word) if word == "never" => Retry { never: true, ..once() },
        Value::Object(_) => policy(node, default, problems),
        _ => {
            let draft = fields::wrong_type(node, "retry", "`never` or an object");
            problems.push(draft.hint("write `retry: never`, `retry: {max_attempts: 3}` or `retries: 2`"));
            default
        }
    }
}

fn policy(node: &TreeNode, default: Retry, problems: &mut Problems<'_>) -> Retry {
    let Some(fields) = fields::object(node, "retry", problems) else { return default };
    fields.check(&Shape::only(&["max_attempts", "backoff"]), problems);
    let attempts = fields.get("max_attempts");
    let attempts = attempts.and_then(|node| fields::whole(node, "max_attempts", 1..=ATTEMPTS_MAX, problems));
    let policy = Retry { max_attempts: attempts.map_or(default.max_attempts, |n| n as u32), ..default };
    match fields.entry("backoff") {
        None => policy,
        Some(entry) => backoff(entry, &policy, problems).unwrap_or(policy),
    }
}

fn backoff(entry: &crate::tree::Entry, policy: &Retry, problems: &mut Problems<'_>) -> Option<Retry> {
    let fields = fields::object(&entry.value, "backoff", problems)?;
    fields.check(&Shape::only(&["type", "min", "max", "jitter"]), problems);
    let words: Vec<(&str, Backoff)> = Backoff::ALL.iter().map(|b| (b.as_str(), *b)).collect();
    let kind = fields.require("type", "`backoff`", &entry.key_span, problems);
    let kind = kind.and_then(|node| fields::word(node, "type", &words, problems));
    // A backoff that grows from zero stays zero, so only a fixed delay may be zero.
    let least = if kind.is_some_and(|k| k != Backoff::Fixed) { Span::from_millis(1) } else { Span(0) };
    let range = (least, DURATION_MAX);
    let min = fields.require("min", "`backoff`", &entry.key_span, problems);
    let min = min.and_then(|node| duration(node, "min", Unit::Seconds, range, problems));
    let max = fields.get("max").map(|node| (node, duration(node, "max", Unit::Seconds, range, problems)));
    if let (Some(min), Some((node, Some(max)))) = (min, &max)
        && min > *max
    {
        let message = format!("`max` is {max}, which is less than `min`, {min}");
        problems.push(Draft::new(codes::OUT_OF_RANGE, node.span.clone(), message));
    }
    let jitter = fields.get("jitter").map_or(Some(0), |node| jitter(node, problems));
    // A stored zero means no maximum.
    let max = max.map_or(Some(Span(0)), |(_, max)| max);
    Some(Retry { backoff: kind?, min: min?, max: max?, jitter: jitter?, ..policy.clone() })
}

/// A fraction from 0 to 1, stored in thousandths.
fn jitter(node: &TreeNode, problems: &mut Problems<'_>) -> Option<u32> {
    let share = match node.value {
        Value::Int(n) => n as f64,
        Value::Real(n) => n,
        _ => {
            problems.push(fields::wrong_type(node, "jitter", "a number from 0 to 1"));
            return None;
        }
    };
    if !(0.0..=1.0).contains(&share) {
        problems.add(codes::OUT_OF_RANGE, &node.span, format!("`jitter` is {share}, allowed is 0 to 1"));
        return None;
    }
    Some((share * 1_000.0).round() as u32)
}

/// The JSON that [`read`] reads back, with every default written out and keys in canonical order.
pub(crate) fn to_json(retry: &Retry) -> Json {
    if retry.never {
        return json!("never");
    }
    let mut backoff = Map::new();
    match retry.jitter {
        0 => {}
        1_000 => drop(backoff.insert("jitter".into(), json!(1))),
        share => drop(backoff.insert("jitter".into(), json!(f64::from(share) / 1_000.0))),
    }
    if retry.max.0 > 0 {
        backoff.insert("max".into(), json!(retry.max.to_string()));
    }
    backoff.insert("min".into(), json!(retry.min.to_string()));
    backoff.insert("type".into(), json!(retry.backoff.as_str()));
    json!({ "backoff": backoff, "max_attempts": retry.max_attempts })
}
