//! What can be wrong with a story, by the harm it does.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Something that was acknowledged, stored or owed is gone.
    Lost,
    /// Something that happens once happened again.
    Doubled,
    /// Something never ends.
    Stuck,
    /// Something came before its time, or time ran backwards.
    Early,
    /// Any other broken rule.
    Wrong,
}

/// A harm and its story in a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub harm: Harm,
    pub what: String,
}

/// What is wrong, if anything is; the first thing that is ends the story.
pub type Judgement = Result<(), Failure>;

impl Harm {
    /// This harm was done unless `is_so`.
    pub fn unless(self, is_so: bool, otherwise: impl FnOnce() -> String) -> Judgement {
        if is_so { Ok(()) } else { Err(Failure { harm: self, what: otherwise() }) }
    }
}

pub fn require(is_so: bool, otherwise: impl FnOnce() -> String) -> Judgement {
    Harm::Wrong.unless(is_so, otherwise)
}

impl Failure {
    pub fn about(self, whom: impl fmt::Display) -> Failure {
        Failure { what: format!("{whom}: {}", self.what), ..self }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Failure { harm: Harm::Wrong, what }
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.harm, self.what)
    }
}
