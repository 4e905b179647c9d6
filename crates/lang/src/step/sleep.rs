//! `sleep`: ends when the time has passed.

use super::StepFields;
use crate::diagnostic::Problems;
use crate::fields::{DURATION_MAX, Unit, duration};
use kernel::plan::Body;
use kernel::time::Span;

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let span = duration(step.value(), "sleep", Unit::Seconds, (Span(0), DURATION_MAX), problems)?;
    Some(Body::Sleep { span })
}
