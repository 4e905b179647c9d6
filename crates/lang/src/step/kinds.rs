//! Steps of kind sleep, wait_for_webhook, set, log and noop.

use super::{inner, templates};
use crate::codes;
use crate::diagnostic::Problems;
use crate::fields::{self, DURATION_MAX, Fields, Shape, Unit, duration};
use kernel::path::Resolve;
use kernel::plan::{Body, Level};
use kernel::time::Span;

pub(super) fn sleep(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Body> {
    let node = fields.get("sleep")?;
    let span = duration(node, "sleep", Unit::Seconds, (Span(0), DURATION_MAX), problems)?;
    Some(Body::Sleep { span })
}

pub(super) fn webhook(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Body> {
    let inner = inner(fields.get("wait_for_webhook")?, "wait_for_webhook", "{}` or `{timeout: 1h}", problems)?;
    inner.check(&Shape::only(&["timeout"]), problems);
    let Some(node) = inner.get("timeout") else { return Some(Body::Webhook { timeout: None }) };
    let timeout = duration(node, "timeout", Unit::Seconds, (Span::from_millis(1), DURATION_MAX), problems)?;
    Some(Body::Webhook { timeout: Some(timeout) })
}

pub(super) fn set(fields: &Fields<'_>, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Body> {
    let node = fields.get("set")?;
    let inner = inner(node, "set", "{total: \"{{tasks.charge.body.amount}}\"}", problems)?;
    if inner.len() == 0 {
        problems.add(codes::OUT_OF_RANGE, &node.span, "`set` needs at least one value");
        return None;
    }
    let values = templates::template(node, scope, problems)?;
    Some(Body::Set { values: Some(values) })
}

pub(super) fn log(fields: &Fields<'_>, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Body> {
    let node = fields.get("log")?;
    let inner = inner(node, "log", "{message: \"…\"}", problems)?;
    inner.check(&Shape::only(&["message", "level"]), problems);
    let words: Vec<(&str, Level)> = Level::ALL.iter().map(|level| (level.as_str(), *level)).collect();
    let level = inner.get("level").map_or(Some(Level::Info), |node| fields::word(node, "level", &words, problems));
    let place = &fields.entry("log")?.key_span;
    let message = inner.require("message", "`log`", place, problems)?;
    let message = templates::parts(message, "message", scope, problems)?;
    Some(Body::Log { level: level?, message })
}

pub(super) fn noop(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Body> {
    inner(fields.get("noop")?, "noop", "{}", problems)?.check(&Shape::only(&[]), problems);
    Some(Body::Noop {})
}
