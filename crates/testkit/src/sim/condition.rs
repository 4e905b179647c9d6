//! Step conditions in two forms: as text that the kernel parses and evaluates, and as a value that the model
//! evaluates itself.
//!
//! Invariant: nothing here calls the kernel. Otherwise both evaluations would share the same bugs.

use super::random::Random;
use std::fmt;

const STATUSES: [&str; 5] = ["success", "failed", "timeout", "skipped", "template_error"];
const CODES: [u16; 4] = [200, 404, 500, 503];

#[derive(Clone, Debug)]
pub enum Condition {
    /// The final status of a step.
    Status {
        step: usize,
        status: &'static str,
        is: bool,
    },
    /// `ok` or `failed` of a step.
    Ended {
        step: usize,
        well: bool,
    },
    /// The status code from the upstream of a step.
    Code {
        step: usize,
        is: Comparison,
        code: u16,
    },
    /// The `flag` of the trigger.
    Flag(bool),
    Not(Box<Condition>),
    Both(Box<Condition>, Box<Condition>),
    Either(Box<Condition>, Box<Condition>),
}

#[derive(Clone, Copy, Debug)]
pub enum Comparison {
    Equal,
    Different,
    AtLeast,
    Below,
}

/// What a condition can refer to.
pub trait Facts {
    fn step_status(&self, step: usize) -> &'static str;
    fn status_code(&self, step: usize) -> Option<u16>;
    fn flag(&self) -> bool;
}

impl Condition {
    /// A condition on `needs` and the trigger, with at most `depth` nested operators.
    pub fn draw(random: &mut Random, needs: &[usize], depth: u32) -> Condition {
        let inner = |random: &mut Random| Box::new(Condition::draw(random, needs, depth - 1));
        match random.below(10) {
            0 if depth > 0 => Condition::Not(inner(random)),
            1 if depth > 0 => Condition::Both(inner(random), inner(random)),
            2 if depth > 0 => Condition::Either(inner(random), inner(random)),
            3 if !needs.is_empty() => Condition::Ended { step: random.pick(needs), well: random.coin() },
            4..=6 if !needs.is_empty() => {
                Condition::Status { step: random.pick(needs), status: random.pick(&STATUSES), is: random.chance(700) }
            }
            7..=8 if !needs.is_empty() => {
                use Comparison::*;
                let is = random.pick(&[Equal, Different, AtLeast, Below]);
                Condition::Code { step: random.pick(needs), is, code: random.pick(&CODES) }
            }
            _ => Condition::Flag(random.coin()),
        }
    }

    pub fn holds(&self, facts: &dyn Facts) -> bool {
        match self {
            Condition::Status { step, status, is } => (facts.step_status(*step) == *status) == *is,
            Condition::Ended { step, well: true } => facts.step_status(*step) == "success",
            Condition::Ended { step, well: false } => {
                ["failed", "timeout", "template_error"].contains(&facts.step_status(*step))
            }
            Condition::Code { step, is, code } => {
                let seen = facts.status_code(*step);
                match is {
                    Comparison::Equal => seen == Some(*code),
                    Comparison::Different => seen != Some(*code),
                    Comparison::AtLeast => seen.is_some_and(|c| c >= *code),
                    Comparison::Below => seen.is_some_and(|c| c < *code),
                }
            }
            Condition::Flag(flag) => facts.flag() == *flag,
            Condition::Not(a) => !a.holds(facts),
            Condition::Both(a, b) => a.holds(facts) && b.holds(facts),
            Condition::Either(a, b) => a.holds(facts) || b.holds(facts),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Status { step, status, is } => {
                write!(f, "tasks.s{step}.status {} '{status}'", if *is { "==" } else { "!=" })
            }
            Condition::Ended { step, well } => write!(f, "tasks.s{step}.{}", if *well { "ok" } else { "failed" }),
            Condition::Code { step, is, code } => {
                let sign = match is {
                    Comparison::Equal => "==",
                    Comparison::Different => "!=",
                    Comparison::AtLeast => ">=",
                    Comparison::Below => "<",
                };
                write!(f, "tasks.s{step}.status_code {sign} {code}")
            }
            Condition::Flag(flag) => write!(f, "trigger.body.flag == {flag}"),
            Condition::Not(a) => write!(f, "!({a})"),
            Condition::Both(a, b) => write!(f, "({a}) && ({b})"),
            Condition::Either(a, b) => write!(f, "({a}) || ({b})"),
        }
    }
}
