//! What the runs do that subworkflow steps start: a scripted end, or the real definition, run with a script of its own.

use super::places::{ByStep, CasePlace};
use super::{Given, Reader};
use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::document::Compiled;
use crate::fields::{self, Fields, Shape};
use crate::tree::{Entry, Tree, TreeNode, Value};
use kernel::plan::{Body, ChildBody};
use kernel::{RunStatus, Span};
use std::collections::BTreeMap;

/// The runs that a subworkflow step starts.
#[derive(Clone, Debug, PartialEq)]
pub enum GivenChild {
    /// How each attempt's run ends; the last one repeats. Never empty.
    Scripted(Vec<ScriptedChild>),
    Real(Box<RealChild>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ScriptedChild {
    pub status: RunStatus,
    pub output: serde_json::Value,
    /// Why it failed.
    pub error: String,
    /// From its start to its end.
    pub took: Span,
}

/// The real definition.
#[derive(Clone, Debug, PartialEq)]
pub struct RealChild {
    /// As the test file names it.
    pub file: String,
    pub given: Given,
}

/// The definitions that a test file names, by the path as it is written.
pub type Definitions = BTreeMap<String, Compiled>;

const OUTCOME: Shape = Shape {
    known: &["status", "output", "error", "took"],
    later: &[],
    synonyms: &[
        ("body", "output"),
        ("result", "output"),
        ("delay", "took"),
        ("workflow", "file"),
        ("message", "error"),
    ],
};
const REAL: Shape = Shape {
    known: &["file", "http", "tasks", "callbacks", "signals", "approvals", "pauses", "children"],
    later: &[],
    synonyms: &[("workflow", "file"), ("definition", "file"), ("workers", "tasks")],
};

/// The definitions of real children that a test file names, with their places, also those inside of others.
pub fn files_of(tree: &Tree) -> Vec<(String, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    collect(tree.root(), false, &mut found);
    found
}

fn collect(node: &TreeNode, is_child: bool, found: &mut Vec<(String, std::ops::Range<usize>)>) {
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| collect(item, false, found)),
        Value::Object(entries) => {
            for entry in entries {
                match (&entry.value.value, entry.key.as_str()) {
                    (Value::Text(path), "file") if is_child => found.push((path.clone(), entry.value.span.clone())),
                    (Value::Object(children), "children") => {
                        children.iter().for_each(|child| collect(&child.value, true, found));
                    }
                    (_, "cases") => collect(&entry.value, false, found),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// A definition that a test file names cannot be used.
pub fn refuse_file(tree: &Tree, span: std::ops::Range<usize>, why: &str) -> Vec<crate::Diagnostic> {
    let mut problems = Problems::new(tree.source());
    problems.add(codes::UNUSABLE_FILE, &span, why);
    problems.finish(Some(tree.root()))
}

impl Reader<'_> {
    /// `children: {step or workflow: …}`. An entry for a step takes precedence over one for its workflow.
    pub(super) fn children(&mut self, fields: &Fields<'_>) -> ByStep<GivenChild> {
        let mut by_step = ByStep::default();
        let mut by_workflow = ByStep::default();
        for entry in fields.get("children").map(|node| self.entries(node, "children")).unwrap_or_default() {
            let steps = self.steps_of_workflow(&entry.key);
            if self.plan.find(&entry.key).is_none() && !steps.is_empty() {
                let bodies: Vec<ChildBody> =
                    steps.iter().filter_map(|node| child_body(self.plan, *node).cloned()).collect();
                if let Some(child) = self.child(entry, &bodies) {
                    for node in steps {
                        by_workflow.insert(CasePlace { node, key: None }, child.clone());
                    }
                }
                continue;
            }
            if self.plan.find(&entry.key).is_none() && !entry.key.contains('/') {
                self.unknown_workflow(entry);
                continue;
            }
            let Some(place) = self.place(&entry.key, &entry.key_span) else { continue };
            match child_body(self.plan, place.node).cloned() {
                None => self.not_for_kind(place.node, &entry.key_span, "starts no run", "only subworkflow steps do"),
                Some(body) => {
                    if let Some(child) = self.child(entry, &[body]) {
                        by_step.insert(place, child);
                    }
                }
            }
        }
        by_step.add_defaults(&by_workflow);
        by_step
    }

    fn unknown_workflow(&mut self, entry: &Entry) {
        let children = || {
            self.plan.nodes().iter().filter_map(|node| match &node.body {
                Some(Body::Child { child }) => Some((node, child)),
                _ => None,
            })
        };
        let names = children().flat_map(|(node, child)| std::iter::once(node.key.as_str()).chain(workflows(child)));
        let hint = crate::suggest::hint(&entry.key, names);
        let message = format!("{} is neither a subworkflow step nor a workflow that one starts", quoted(&entry.key));
        self.problems.push(Draft::new(codes::UNKNOWN_CASE_STEP, entry.key_span.clone(), message).maybe_hint(hint));
    }

    /// The steps that may start a run of this workflow.
    fn steps_of_workflow(&self, name: &str) -> Vec<u32> {
        let nodes = self.plan.nodes().iter().zip(0u32..);
        let starts =
            |node: &u32| child_body(self.plan, *node).is_some_and(|child| workflows(child).any(|one| one == name));
        nodes.map(|(_, node)| node).filter(starts).collect()
    }

    fn child(&mut self, entry: &Entry, bodies: &[ChildBody]) -> Option<GivenChild> {
        let node = &entry.value;
        let is_real = match &node.value {
            Value::Object(fields) => fields.iter().any(|field| field.key == "file"),
            _ => false,
        };
        if is_real {
            return self.real_child(node, bodies).map(|real| GivenChild::Real(Box::new(real)));
        }
        let ends = self.attempts(node);
        let ends: Vec<ScriptedChild> = ends.iter().filter_map(|node| self.scripted_child(node)).collect();
        let timeouts: std::collections::BTreeSet<Span> =
            ends.iter().filter(|end| end.status == RunStatus::Timeout).map(|end| end.took).collect();
        if timeouts.len() > 1 {
            let message = "the timeouts of a workflow cannot differ";
            let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
            self.problems.push(draft.hint("`took` of a timeout is the `max_duration` of the workflow"));
        }
        (!ends.is_empty()).then_some(GivenChild::Scripted(ends))
    }

    fn scripted_child(&mut self, node: &TreeNode) -> Option<ScriptedChild> {
        if !matches!(node.value, Value::Object(_)) {
            let draft = fields::wrong_type(node, "how a child ends", "an object");
            let hint = "write `{ output: … }`, `{ status: failed, error: … }` or `{ file: child.yaml }`";
            self.problems.push(draft.hint(hint));
            return None;
        }
        let end = fields::object(node, "how a child ends", &mut self.problems)?;
        end.check(&OUTCOME, &mut self.problems);
        let ends: Vec<(&str, RunStatus)> =
            RunStatus::ALL.iter().filter(|s| s.is_terminal()).map(|s| (s.as_str(), *s)).collect();
        let status = match end.get("status") {
            Some(node) => fields::word(node, "status", &ends, &mut self.problems)?,
            None if end.get("error").is_some() => RunStatus::Failed,
            None => RunStatus::Completed,
        };
        for (field, of) in [("output", RunStatus::Completed), ("error", RunStatus::Failed)] {
            if let Some(entry) = end.entry(field).filter(|_| status != of) {
                let message = format!("a run that ends as `{status}` has no `{field}`");
                self.problems.add(codes::INVALID_VALUE, &entry.key_span, message);
            }
        }
        let took = match end.get("took") {
            Some(node) => self.span(node, "took")?,
            None if status == RunStatus::Timeout => {
                let draft = Draft::new(codes::MISSING_FIELD, node.span.clone(), "a child that times out needs `took`");
                self.problems.push(draft.hint("it is the `max_duration` of the workflow"));
                return None;
            }
            None => Span(0),
        };
        let error = match end.get("error") {
            Some(node) => fields::text(node, "error", &mut self.problems)?.to_owned(),
            None => "as the test file says".to_owned(),
        };
        let output = end.get("output").map_or(serde_json::Value::Null, TreeNode::to_json);
        Some(ScriptedChild { status, output, error, took })
    }

    /// A definition in a file, and what its steps meet.
    fn real_child(&mut self, node: &TreeNode, bodies: &[ChildBody]) -> Option<RealChild> {
        let fields = fields::object(node, "a child", &mut self.problems)?;
        fields.check(&REAL, &mut self.problems);
        let path = fields.get("file")?;
        let file = fields::text(path, "file", &mut self.problems)?;
        let compiled = self.definitions.get(file)?;
        let (name, slug) = (&compiled.meta.name, compiled.meta.slug.as_deref());
        for body in bodies {
            if !workflows(body).any(|wanted| wanted == name || Some(wanted) == slug) {
                let wanted: Vec<&str> = workflows(body).collect();
                let message =
                    format!("{} defines {}, and the step starts {}", quoted(file), quoted(name), one_of(&wanted));
                self.problems.add(codes::UNUSABLE_FILE, &path.span, message);
                return None;
            }
        }
        let outer = std::mem::replace(&mut self.plan, &compiled.plan);
        let given = self.given(&fields);
        self.plan = outer;
        Some(RealChild { file: file.to_owned(), given })
    }
}

fn child_body(plan: &kernel::Plan, node: u32) -> Option<&ChildBody> {
    match &plan.node_at(node).body {
        Some(Body::Child { child }) => Some(child),
        _ => None,
    }
}

/// The workflows that a step may start.
pub fn workflows(child: &ChildBody) -> impl Iterator<Item = &str> {
    let literal = match child.workflow.as_slice() {
        [only] if only.path.is_none() => Some(only.text.as_str()),
        _ => None,
    };
    let listed = if literal.is_some() { &[] } else { child.allow.as_slice() };
    literal.into_iter().chain(listed.iter().map(String::as_str))
}
