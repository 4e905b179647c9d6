//! `log`: a line in the log of the server.

use super::{StepFields, templates};
use crate::diagnostic::Problems;
use crate::fields::{self, Shape};
use kernel::plan::{Body, Level};

pub(super) const FIELDS: Shape = Shape::only(&["message", "level"]);

pub(super) fn read(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let words: Vec<(&str, Level)> = Level::ALL.iter().map(|level| (level.as_str(), *level)).collect();
    let level = own.get("level").map_or(Some(Level::Info), |node| fields::word(node, "level", &words, problems));
    let message = own.require("message", "`log`", &step.entry.key_span, problems)?;
    let message = templates::parts(message, "message", &mut step.scope(), problems)?;
    Some(Body::Log { level: level?, message })
}
