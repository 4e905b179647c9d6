//! Test files for `onward test`: the cases of one workflow, each with its inputs and its expectations.
//!
//! ```text
//!   bytes ──read──▶ Tree ──workflow_of──▶ which definition ──compile──▶ Plan
//!                    └──────────────read_suite(tree, plan)──▶ Suite, or every problem with its position
//! ```
//!
//! A case may only name steps of its workflow, and only use fields that the kind of the step has. So a script for a
//! step that was renamed is a problem, not a line that is silently unused. Nothing runs here.

mod answers;
mod children;
mod expect;
mod given;
mod places;
#[cfg(test)]
mod tests;
mod waits;

pub use answers::{GivenReport, WorkerAttempt};
pub use children::{Definitions, GivenChild, RealChild, ScriptedChild, files_of, refuse_file, workflows};
pub use expect::{Bound, Expect, Expected, Order, RequestExpect, StepExpect};
pub use given::{Given, Reply, Scripted};
pub use places::ByStep;
pub use waits::{GivenCallback, GivenDecision, GivenResume, GivenSignal, GivenSignals, When};

use crate::codes;
use crate::diagnostic::{Diagnostic, Draft, Problems, is_hostile, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, Tree, TreeNode};
use kernel::plan::Body;
use kernel::{Plan, Timestamp};

const NAME_MAX: usize = 200;

/// The cases of one file.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The virtual time at which runs start.
    pub now: Option<Timestamp>,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// The byte offset in the file.
    pub at: usize,
    pub given: Given,
    pub expect: Expect,
}

/// Functions that the caller provides, because this crate does not know times and headers.
pub struct World {
    /// Reads an RFC 3339 time.
    pub time: fn(&str) -> Option<Timestamp>,
    /// Whether the run sees the trigger header with this (lowercase) name.
    pub keeps_header: fn(&str) -> bool,
}

const FILE: Shape = Shape {
    known: &[
        "workflow",
        "now",
        "input",
        "headers",
        "http",
        "tasks",
        "callbacks",
        "signals",
        "approvals",
        "pauses",
        "children",
        "cases",
    ],
    later: &[],
    synonyms: &[("definition", "workflow"), ("tests", "cases"), ("clock_start", "now"), ("body", "input")],
};
const CASE: Shape = Shape {
    known: &[
        "name",
        "input",
        "headers",
        "http",
        "tasks",
        "callbacks",
        "signals",
        "approvals",
        "pauses",
        "children",
        "cancel_after",
        "expect",
    ],
    later: &[],
    synonyms: &[
        ("body", "input"),
        ("webhooks", "callbacks"),
        ("workers", "tasks"),
        ("subworkflows", "children"),
        ("workflows", "children"),
        ("decisions", "approvals"),
        ("resumes", "pauses"),
        ("expected", "expect"),
        ("cancel", "cancel_after"),
    ],
};

/// The workflow file that the test file names, if it does: a path relative to the folder of the test file.
pub fn workflow_of(tree: &Tree) -> Result<Option<&str>, Vec<Diagnostic>> {
    let mut problems = Problems::new(tree.source());
    let named = fields::object(tree.root(), "a test file", &mut problems)
        .and_then(|file| file.get("workflow"))
        .and_then(|node| fields::text(node, "workflow", &mut problems));
    match problems.is_empty() {
        true => Ok(named),
        false => Err(problems.finish(Some(tree.root()))),
    }
}

/// Reads the cases of a workflow with this plan, or returns all problems. `definitions` are those of [`files_of`].
pub fn read_suite(
    tree: &Tree,
    plan: &Plan,
    definitions: &Definitions,
    world: &World,
) -> Result<Suite, Vec<Diagnostic>> {
    let mut reader = Reader { plan, definitions, world, problems: Problems::new(tree.source()) };
    tree.root().check_numbers(&mut reader.problems);
    let suite = reader.file(tree.root());
    match suite {
        Some(suite) if reader.problems.is_empty() => Ok(suite),
        _ => Err(reader.problems.finish(Some(tree.root()))),
    }
}

struct Reader<'a> {
    /// Of the workflow whose steps are read about now.
    plan: &'a Plan,
    /// Those of real children.
    definitions: &'a Definitions,
    world: &'a World,
    problems: Problems<'a>,
}

impl Reader<'_> {
    fn file(&mut self, root: &TreeNode) -> Option<Suite> {
        let file = fields::object(root, "a test file", &mut self.problems)?;
        file.check(&FILE, &mut self.problems);
        let now = file.get("now").and_then(|node| self.time(node));
        let shared = self.given(&file);
        let start = root.span.start..root.span.start;
        let cases = file.require("cases", "a test file", &start, &mut self.problems)?;
        let list = fields::list(cases, "cases", &mut self.problems)?;
        if list.is_empty() {
            self.problems.add(codes::MISSING_FIELD, &cases.span, "`cases` is empty");
        }
        let mut read: Vec<Case> = Vec::new();
        for node in list {
            let Some(case) = self.case(node, &shared) else { continue };
            if read.iter().any(|other| other.name == case.name) {
                let message = format!("there are two cases {}", quoted(&case.name));
                self.problems.add(codes::DUPLICATE_CASE, &(case.at..case.at + 1), message);
            }
            read.push(case);
        }
        Some(Suite { now, cases: read })
    }

    fn case(&mut self, node: &TreeNode, shared: &Given) -> Option<Case> {
        let case = fields::object(node, "a case", &mut self.problems)?;
        case.check(&CASE, &mut self.problems);
        let start = node.span.start..node.span.start;
        let name = case.require("name", "a case", &start, &mut self.problems);
        let name = name.and_then(|node| self.name(node));
        let given = self.given(&case).with_defaults(shared);
        let expect = case.require("expect", "a case", &start, &mut self.problems);
        let expect = expect.and_then(|node| self.expect(node));
        let (name, at) = name?;
        Some(Case { name, at, given, expect: expect? })
    }

    fn name(&mut self, node: &TreeNode) -> Option<(String, usize)> {
        let name = fields::text(node, "name", &mut self.problems)?;
        let is_fine = (1..=NAME_MAX).contains(&name.chars().count()) && !name.contains(is_hostile);
        if !is_fine {
            let message = format!("the name of a case has 1 to {NAME_MAX} visible characters, on one line");
            self.problems.add(codes::INVALID_VALUE, &node.span, message);
        }
        is_fine.then(|| (name.to_owned(), node.span.start))
    }

    fn time(&mut self, node: &TreeNode) -> Option<Timestamp> {
        let text = fields::text(node, "now", &mut self.problems)?;
        let time = (self.world.time)(text).filter(|at| at.0 >= 0);
        if time.is_none() {
            let draft = Draft::new(codes::INVALID_TIME, node.span.clone(), format!("{} is not a time", quoted(text)));
            self.problems.push(draft.hint("write it like 2027-03-28T00:00:00Z; it may not lie before 1970"));
        }
        time
    }

    fn body_of(&self, step: u32) -> Option<&Body> {
        self.plan.node_at(step).body.as_ref()
    }

    fn is_http(&self, step: u32) -> bool {
        matches!(self.body_of(step), Some(Body::Http { .. }))
    }

    /// Reports a field that the kind of the step does not have.
    fn not_for_kind(&mut self, step: u32, span: &std::ops::Range<usize>, lacks: &str, hint: &str) {
        let (key, kind) = (&self.plan.node_at(step).key, self.body_of(step).map_or("unknown", Body::kind));
        let message = format!("`{key}` is of kind `{kind}` and {lacks}");
        self.problems.push(Draft::new(codes::CASE_STEP_KIND, span.clone(), message).hint(hint));
    }

    /// Header names, in lower case, and their values.
    fn headers(&mut self, node: &TreeNode) -> Vec<(String, String)> {
        let Some(headers) = fields::object(node, "headers", &mut self.problems) else { return Vec::new() };
        let mut read = Vec::new();
        for entry in headers.iter() {
            let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            let value = fields::text(&entry.value, "a header", &mut self.problems);
            if entry.key.is_empty() || !entry.key.bytes().all(is_token) {
                let message = format!("{} is not the name of a header", quoted(&entry.key));
                self.problems.add(codes::INVALID_HEADER, &entry.key_span, message);
            } else if let Some(value) = value {
                read.push((entry.key.to_ascii_lowercase(), value.to_owned()));
            }
        }
        read
    }

    fn entries<'t>(&mut self, node: &'t TreeNode, what: &str) -> Vec<&'t Entry> {
        let found = fields::object(node, what, &mut self.problems);
        found.map(|fields: Fields<'t>| fields.iter().collect()).unwrap_or_default()
    }
}
