//! `set`: an object of values that later steps can read.

use super::{StepFields, templates};
use crate::codes;
use crate::diagnostic::Problems;
use kernel::plan::Body;

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    if step.object(problems)?.len() == 0 {
        problems.add(codes::OUT_OF_RANGE, &step.value().span, "`set` needs at least one value");
        return None;
    }
    let values = templates::template(step.value(), &mut step.scope(), problems)?;
    Some(Body::Set { values: Some(values) })
}
