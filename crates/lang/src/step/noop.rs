//! `noop`: joins other steps, and does nothing.

use super::StepFields;
use crate::diagnostic::Problems;
use crate::fields::Shape;
use kernel::plan::Body;

pub(super) const FIELDS: Shape = Shape::only(&[]);

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    step.object(problems)?;
    Some(Body::Noop {})
}
