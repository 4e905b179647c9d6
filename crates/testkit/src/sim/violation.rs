//! Broken invariants: what kind, and a sentence that describes the case.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// Something acknowledged, stored or promised is missing.
    Lost,
    /// Something that must happen once happened twice.
    Duplicated,
    /// Something never ends.
    Stuck,
    /// Something happened too early, or time ran backwards.
    Early,
    /// Any other broken rule.
    Other,
}

/// One broken invariant.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub kind: ViolationKind,
    pub message: String,
}

/// The result of a check. The first violation ends the simulation.
pub type CheckResult = Result<(), Violation>;

impl ViolationKind {
    /// A violation of this kind, unless `holds`.
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
