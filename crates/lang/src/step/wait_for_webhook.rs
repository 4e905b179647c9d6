//! `wait_for_webhook`: ends when the callback URL of the step is called, or at its deadline.

use super::StepFields;
use crate::diagnostic::Problems;
use crate::fields::{DURATION_MAX, Fields, Shape, Unit, duration};
use kernel::plan::Body;
use kernel::time::Span;

pub(super) const FIELDS: Shape = Shape::only(&["timeout"]);

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    Some(Body::Webhook { timeout: timeout(&own, problems)? })
}

/// How long a step waits; without it, until the run expires. `None` after a problem.
pub(super) fn timeout(own: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Option<Span>> {
    let Some(node) = own.get("timeout") else { return Some(None) };
    duration(node, "timeout", Unit::Seconds, (Span::from_millis(1), DURATION_MAX), problems).map(Some)
}
