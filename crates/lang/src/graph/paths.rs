//! The paths that a step of a graph may read: the trigger, the results of ancestors, callback urls.
//!
//! A result can only be read where it is certain to exist, so in `tasks.x` the step `x` must be an ancestor. A callback
//! url exists from the start of the run (R32), so in `wait.x.url` the step `x` must only be a `wait_for_webhook` step.

use super::needs::Graph;
use crate::codes;
use crate::diagnostic::{one_of, quoted};
use crate::step::{Kind, ParsedStep};
use crate::suggest;
use kernel::path::{Problem, RawPath, Ref, Root, Segment, TaskField};
use std::cell::Cell;

/// The most misspelt names that get a suggestion; see `Problems::suggest`.
const SUGGESTED_MAX: u32 = 50;
const ROOTS: &[&str] = &["trigger", "tasks", "wait"];

pub(super) struct Paths<'a, 't> {
    steps: &'a [ParsedStep<'t>],
    graph: &'a Graph<'t>,
    suggested: Cell<u32>,
}

impl<'a, 't> Paths<'a, 't> {
    pub fn new(steps: &'a [ParsedStep<'t>], graph: &'a Graph<'t>) -> Self {
        Paths { steps, graph, suggested: Cell::new(0) }
    }

    /// Resolves a path in step `reader`.
    pub fn resolve(&self, reader: usize, raw: &RawPath<'_>) -> Result<Ref, Problem> {
        let Some((root, rest)) = raw.segments.split_first() else {
            return Err(Problem::new(codes::INCOMPLETE_PATH, "this path is empty", raw.at, raw.text.len()));
        };
        let found = match root.name.as_str() {
            "trigger" => trigger(raw, rest),
            "tasks" => self.task(reader, raw, rest),
            "wait" => self.wait(raw, rest),
            "secrets" => {
                let problem = at(root, codes::UNSUPPORTED_SETTING, "`secrets` is not supported in this release");
                Err(problem.hint("send the value with the trigger"))
            }
            other => {
                let problem = at(root, codes::UNKNOWN_ROOT, format!("a path cannot begin with {}", quoted(other)));
                let hint = suggest::hint(other, ROOTS.iter().copied());
                Err(problem.hint(hint.unwrap_or_else(|| format!("a path begins with {}", one_of(ROOTS)))))
            }
        }?;
        Ok(Ref { text: raw.text.to_owned(), ..found })
    }

    fn task(&self, reader: usize, raw: &RawPath<'_>, rest: &[Segment]) -> Result<Ref, Problem> {
        let [step, rest @ ..] = rest else { return Err(incomplete(raw, "tasks.<step>.body")) };
        let node = self.step(step)?;
        let Some((field, keys)) = rest.split_first() else {
            return Err(incomplete(raw, &format!("tasks.{}.body", step.name)));
        };
        let words: Vec<&str> = TaskField::ALL.iter().map(|f| f.as_str()).collect();
        let Some(known) = TaskField::parse(&field.name) else {
            let message = format!("a step has no {}, only {}", quoted(&field.name), one_of(&words));
            let problem = at(field, codes::UNKNOWN_TASK_FIELD, message);
            return Err(Problem { hint: suggest::hint(&field.name, words), ..problem });
        };
        let is_plain = match known {
            TaskField::Status | TaskField::StatusCode | TaskField::Ok | TaskField::Failed => true,
            TaskField::Body | TaskField::Headers | TaskField::Error => false,
        };
        if let (true, Some(key)) = (is_plain, keys.first()) {
            return Err(too_long(key, &field.name));
        }
        if !self.graph.is_ancestor(node, reader) {
            return Err(self.not_an_ancestor(reader, raw, step));
        }
        let keys = if known == TaskField::Headers { header_keys(keys) } else { names(keys) };
        Ok(Ref { root: Root::Task, node, field: known, keys, ..Default::default() })
    }

    fn not_an_ancestor(&self, reader: usize, raw: &RawPath<'_>, step: &Segment) -> Problem {
        let name = self.steps.get(reader).map_or("", |s| s.name);
        if step.name == name {
            let message = format!("{} reads its own result, which does not exist before it ends", quoted(name));
            return Problem::new(codes::NOT_AN_ANCESTOR, message, raw.at, raw.text.len());
        }
        let message = format!("{} reads `tasks.{}`, but does not need it", quoted(name), step.name);
        let problem = Problem::new(codes::NOT_AN_ANCESTOR, message, raw.at, raw.text.len());
        problem.hint(format!("add {} to the `needs` of {}", quoted(&step.name), quoted(name)))
    }

    fn wait(&self, raw: &RawPath<'_>, rest: &[Segment]) -> Result<Ref, Problem> {
        let [step, rest @ ..] = rest else { return Err(incomplete(raw, "wait.<step>.url")) };
        let node = self.step(step)?;
        // A step of unknown kind has been reported already.
        if let Some(kind) = self.steps.get(node as usize).and_then(|s| s.kind)
            && kind != Kind::WaitForWebhook
        {
            let message = format!("{} is a {} step and has no callback url", quoted(&step.name), kind.word());
            return Err(at(step, codes::NOT_A_WAIT, message).hint("name a step with `wait_for_webhook`"));
        }
        match rest {
            [] => Err(incomplete(raw, &format!("wait.{}.url", step.name))),
            [field, ..] if field.name != "url" => {
                let message = format!("a wait has no {}, only `url`", quoted(&field.name));
                Err(at(field, codes::UNKNOWN_TASK_FIELD, message))
            }
            [_, key, ..] => Err(too_long(key, "url")),
            [_] => Ok(Ref { root: Root::WaitUrl, node, ..Default::default() }),
        }
    }

    fn step(&self, segment: &Segment) -> Result<u32, Problem> {
        self.graph.index.get(segment.name.as_str()).copied().ok_or_else(|| {
            let problem =
                at(segment, codes::UNKNOWN_STEP, format!("{} is not a step of this workflow", quoted(&segment.name)));
            self.suggested.set(self.suggested.get() + 1);
            let hint = (self.suggested.get() <= SUGGESTED_MAX)
                .then(|| suggest::hint(&segment.name, self.graph.index.keys().copied()))
                .flatten();
            Problem { hint, ..problem }
        })
    }
}

/// Resolves a path where only the trigger can be read.
pub(crate) fn trigger_path(raw: &RawPath<'_>) -> Result<Ref, Problem> {
    match raw.segments.split_first() {
        Some((root, rest)) if root.name == "trigger" => Ok(Ref { text: raw.text.to_owned(), ..trigger(raw, rest)? }),
        Some((root, _)) => {
            let message = format!("only `trigger` can be read here, not {}", quoted(&root.name));
            Err(at(root, codes::UNKNOWN_ROOT, message))
        }
        None => Err(incomplete(raw, "trigger.body.id")),
    }
}

fn trigger(raw: &RawPath<'_>, rest: &[Segment]) -> Result<Ref, Problem> {
    let Some((field, keys)) = rest.split_first() else { return Err(incomplete(raw, "trigger.body")) };
    match (field.name.as_str(), keys) {
        ("body", keys) => Ok(Ref { root: Root::TriggerBody, keys: names(keys), ..Default::default() }),
        ("headers", []) => Err(incomplete(raw, "trigger.headers.x-request-id")),
        ("headers", [_]) => Ok(Ref { root: Root::TriggerHeaders, keys: header_keys(keys), ..Default::default() }),
        ("headers", [name, key, ..]) => Err(too_long(key, &name.name)),
        ("scheduled_for", []) => Ok(Ref { root: Root::TriggerScheduledFor, ..Default::default() }),
        ("scheduled_for", [key, ..]) => Err(too_long(key, "scheduled_for")),
        (other, _) => {
            let known = ["body", "headers", "scheduled_for"];
            let message = format!("a trigger has no {}, only {}", quoted(other), one_of(&known));
            let problem = at(field, codes::UNKNOWN_ROOT, message);
            Err(Problem { hint: suggest::hint(other, known), ..problem })
        }
    }
}

fn at(segment: &Segment, code: &'static str, message: impl Into<String>) -> Problem {
    Problem::new(code, message, segment.at, segment.name.len())
}

fn incomplete(raw: &RawPath<'_>, example: &str) -> Problem {
    let message = format!("{} names no value yet", quoted(raw.text));
    Problem::new(codes::INCOMPLETE_PATH, message, raw.at, raw.text.len()).hint(format!("write for example `{example}`"))
}

fn too_long(key: &Segment, field: &str) -> Problem {
    at(key, codes::PATH_TOO_LONG, format!("{} is a plain value and has nothing inside", quoted(field)))
}

fn names(keys: &[Segment]) -> Vec<String> {
    keys.iter().map(|s| s.name.clone()).collect()
}

/// Header names are in lower case, as the engine stores them.
fn header_keys(keys: &[Segment]) -> Vec<String> {
    keys.iter().map(|s| s.name.to_ascii_lowercase()).collect()
}
