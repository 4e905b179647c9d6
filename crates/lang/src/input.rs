//! `input` of a workflow: the JSON Schema (2020-12) that the body of every trigger must fit.
//!
//! ```text
//!   definition ──schema::read──▶ problems with positions, or an InputSchema ──check──▶ problems of one body
//! ```
//!
//! A schema refers only to itself, so reading it needs nothing from outside. Checking a body has a bounded cost: patterns
//! are matched in linear time, recursion is bounded by [`LEVELS_MAX`], and evaluations are counted ([`Budget`]), because a
//! schema that refers to itself twice would otherwise double the work with each level of the body.

mod message;
mod schema;

pub(crate) use schema::read;

use crate::diagnostic::{Diagnostic, Problems};
use crate::tree::Syntax;
use jsonschema::{Keyword, ValidationError, Validator};
use message::problem;
use serde_json::Value as Json;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The most problems of one body that are listed; the others are counted.
const LISTED_MAX: usize = 1_000;
/// Evaluations of subschemas that decide whether a body fits.
const CHECK_MAX: u32 = 1_000_000;
/// Evaluations that find all problems of a body that does not fit.
const LIST_MAX: u32 = 100_000;
/// How deep a check may recurse: subschemas on top of each other at one value, times the depth of the body. Twice as much
/// still fits the stack of a thread of 2 MiB in a debug build.
const LEVELS_MAX: usize = 512;

/// The schema of trigger bodies, compiled.
pub struct InputSchema {
    validator: Validator,
    /// The most subschemas that apply on top of each other to one value.
    in_place: usize,
}

/// What is wrong with a body.
#[derive(Clone, Debug, PartialEq)]
pub struct InputProblem {
    /// The JSON pointer of the value in the body; empty for the body itself.
    pub pointer: String,
    pub message: String,
    pub hint: Option<String>,
}

/// How much work the checks of one request may be. The bodies of a batch share it.
pub struct Budget {
    checks: u32,
    lists: u32,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { checks: CHECK_MAX, lists: LIST_MAX }
    }
}

impl Budget {
    /// For the bodies of a batch, which together may be many times as large as a single body.
    pub fn of_batch() -> Budget {
        Budget { checks: 16 * CHECK_MAX, lists: 4 * LIST_MAX }
    }
}

impl fmt::Debug for InputSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputSchema").field("in_place", &self.in_place).finish_non_exhaustive()
    }
}

impl InputSchema {
    /// The schema of a definition that was stored.
    pub fn stored(schema: &[u8]) -> Result<InputSchema, String> {
        let first = |found: &[Diagnostic]| found.first().map_or_else(String::new, |problem| problem.message.clone());
        let tree = crate::tree::read(schema, Syntax::Json).map_err(|malformed| first(&malformed.0))?;
        let mut problems = Problems::new(tree.source());
        read(tree.root(), &mut problems).ok_or_else(|| first(&problems.finish(Some(tree.root()))))
    }

    /// Checks a body; the problems are in the order of the schema.
    pub fn check(&self, body: &[u8], budget: &mut Budget) -> Result<(), Vec<InputProblem>> {
        let whole =
            |message: &str| Err(vec![InputProblem { pointer: String::new(), message: message.into(), hint: None }]);
        let Ok(body) = serde_json::from_slice::<Json>(body) else {
            return whole("the body is nested too deep");
        };
        if depth(&body) * self.in_place > LEVELS_MAX {
            return whole("the body is nested too deep for a schema whose parts refer to each other so often");
        }
        match within(&mut budget.checks, || self.validator.is_valid(&body)) {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => return whole("the body is too large to be checked against the `input` schema"),
        }
        let listed = within(&mut budget.lists, || {
            let mut errors = self.validator.iter_errors(&body);
            let mut problems: Vec<InputProblem> =
                errors.by_ref().take(LISTED_MAX).map(|error| problem(&error)).collect();
            let more = errors.count();
            if more > 0 {
                let message = format!("there are {more} more problems");
                problems.push(InputProblem { pointer: String::new(), message, hint: None });
            }
            problems
        });
        match listed {
            Some(problems) if !problems.is_empty() => Err(problems),
            _ => whole("the body does not fit the `input` schema, in too many ways to list"),
        }
    }
}

fn depth(value: &Json) -> usize {
    match value {
        Json::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Json::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

thread_local! {
    /// Evaluations that the running check may still make.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Ends a check that has used up its budget.
struct Exhausted;

/// Runs a check; `None` if it needed more evaluations than were left. The validator has no way to stop early, so its
/// stack is unwound: it changes nothing that outlives the check.
fn within<T>(left: &mut u32, check: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(*left);
    let result = catch_unwind(AssertUnwindSafe(check));
    *left = LEFT.get();
    match result {
        Ok(result) => Some(result),
        Err(payload) if payload.is::<Exhausted>() => None,
        Err(bug) => resume_unwind(bug),
    }
}

/// The keyword that [`schema::read`] adds to every subschema: it fits every value and counts the evaluation.
struct Count;

impl Keyword<'_> for Count {
    fn validate(&self, value: &Json) -> Result<(), ValidationError<'static>> {
        self.is_valid(value);
        Ok(())
    }

    fn is_valid(&self, _: &Json) -> bool {
        match LEFT.get().checked_sub(1) {
            Some(left) => LEFT.set(left),
            None => resume_unwind(Box::new(Exhausted)),
        }
        true
    }
}

#[cfg(test)]
mod tests;
