//! What can be wrong with a story, by the harm it does.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// Something that was acknowledged, stored or owed is gone.
    Lost,
    /// Something that happens once happened again.
    Duplicated,
    /// Something never ends.
    Stuck,
    /// Something came before its time, or time ran backwards.
    Early,
    /// Any other broken rule.
    Other,
}

/// A harm and its story in a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub kind: ViolationKind,
    pub message: String,
}

/// What is wrong, if anything is; the first thing that is ends the story.
pub type CheckResult = Result<(), Violation>;

impl ViolationKind {
    /// This harm was done unless `is_so`.
    pub fn unless(self, holds: bool, describe: impl FnOnce() -> String) -> CheckResult {
        if holds { Ok(()) } else { Err(Violation { kind: self, message: describe() }) }
    }
}

pub fn require(holds: bool, describe: impl FnOnce() -> String) -> CheckResult {
    ViolationKind::Other.unless(holds, describe)
}

impl Violation {
    pub fn about(self, subject: impl fmt::Display) -> Violation {
        Violation { message: format!("{subject}: {}", self.message), ..self }
    }
}

impl From<String> for Violation {
    fn from(message: String) -> Self {
        Violation { kind: ViolationKind::Other, message }
    }
}

impl From<&str> for Violation {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}
