//! The paths that a step of a graph may read: the trigger, the results of ancestors, callback urls.
//!
//! A result can only be read where it is certain to exist, so in `tasks.x` the step `x` must be an ancestor. A callback
//! url exists from the start of the run (R32), so in `wait.x.url` the step `x` must only be a `wait_for_webhook` step.

use super::outputs::{Outputs, may_precede};
use super::scopes::Scopes;
use crate::codes;
use crate::diagnostic::{one_of, quoted};
use crate::step::group::{LoopNames, ReadFrom};
use crate::step::{Kind, ParsedStep};
use crate::suggest;
use kernel::path::{Problem, RawPath, Ref, Root, Segment, TaskField};
use std::cell::Cell;

/// The most misspelt names that get a suggestion; see `Problems::suggest`.
const SUGGESTED_MAX: u32 = 50;
const ROOTS: &[&str] = &["trigger", "tasks", "wait"];

const ROOTS_OF_LISTS: &[&str] = &["trigger", "variables", "outputs", "tasks", "wait"];

pub(super) struct Paths<'a, 't> {
    scopes: &'a Scopes<'t>,
    /// Of a step list.
    outputs: Option<&'a Outputs<'t>>,
    suggested: Cell<u32>,
}

/// Who reads a path.
#[derive(Clone, Copy)]
struct PathReader {
    scope: usize,
    /// A step of the scope; `None` for a reader after all of them.
    step: Option<usize>,
    /// The loop whose iteration is about to begin: its scope, and its place there.
    repeats: Option<(usize, usize)>,
    /// It undoes the step, and reads its result, too.
    undoes: bool,
}

impl<'a, 't> Paths<'a, 't> {
    pub fn new(scopes: &'a Scopes<'t>, outputs: Option<&'a Outputs<'t>>) -> Self {
        Paths { scopes, outputs, suggested: Cell::new(0) }
    }

    fn roots(&self) -> &'static [&'static str] {
        if self.outputs.is_some() { ROOTS_OF_LISTS } else { ROOTS }
    }

    /// Resolves a path of a step: its scope, and its place there.
    pub fn resolve(&self, at: (usize, usize), from: ReadFrom, raw: &RawPath<'_>) -> Result<Ref, Problem> {
        let beside = PathReader { scope: at.0, step: Some(at.1), repeats: None, undoes: from == ReadFrom::Undo };
        self.read(
            match (from, self.scopes.inside(at)) {
                (ReadFrom::Step | ReadFrom::Undo, _) => beside,
                (ReadFrom::Iteration, _) => PathReader { repeats: Some(at), ..beside },
                (ReadFrom::Inside, inside) => inside.map_or(beside, |scope| PathReader { scope, step: None, ..beside }),
            },
            raw,
        )
    }

    /// Resolves a path that is read when all steps have ended.
    pub fn resolve_at_end(&self, raw: &RawPath<'_>) -> Result<Ref, Problem> {
        self.read(PathReader { scope: 0, step: None, repeats: None, undoes: false }, raw)
    }

    fn read(&self, reader: PathReader, raw: &RawPath<'_>) -> Result<Ref, Problem> {
        let Some((root, rest)) = raw.segments.split_first() else {
            return Err(Problem::new(codes::INCOMPLETE_PATH, "this path is empty", raw.at, raw.text.len()));
        };
        let found = match root.name.as_str() {
            "trigger" => trigger(raw, rest),
            "tasks" => self.task(reader, raw, rest),
            "wait" => self.wait(reader, raw, rest),
            "variables" if self.outputs.is_some() => {
                Ok(Ref { root: Root::Variables, keys: names(rest), ..Default::default() })
            }
            "outputs" if self.outputs.is_some() => self.output(reader, raw, rest),
            "secrets" => {
                let problem = at(root, codes::UNSUPPORTED_SETTING, "`secrets` is not supported in this release");
                Err(problem.hint("send the value with the trigger"))
            }
            name => self.of_loop(reader, root, rest).unwrap_or_else(|| {
                let problem = at(root, codes::UNKNOWN_ROOT, format!("a path cannot begin with {}", quoted(name)));
                let of_loops = self.loops(reader).filter_map(|(names, _)| names.item);
                let hint = match name {
                    "item" | "index" | "last" => Some(format!("`{name}` has a meaning only inside of a loop")),
                    "variables" | "outputs" => Some(format!("only step lists have `{name}`")),
                    _ => suggest::hint(name, self.roots().iter().copied().chain(of_loops)),
                };
                let of_list = || self.of_list(name);
                let hint = hint.or_else(of_list);
                Err(problem.hint(hint.unwrap_or_else(|| format!("a path begins with {}", one_of(self.roots())))))
            }),
        }?;
        Ok(Ref { text: raw.text.to_owned(), ..found })
    }

    /// The loops that a reader is inside of, from the innermost: their names, and the number of their node.
    fn loops(&self, reader: PathReader) -> impl Iterator<Item = (LoopNames<'t>, u32)> + '_ {
        let node = |(scope, place): (usize, usize)| self.scopes.all[scope].first + place as u32;
        // A loop whose condition is read has no items.
        let own = reader.repeats.map(|at| (LoopNames { item: None }, node(at)));
        let around = self.scopes.outwards(reader.scope).filter_map(move |scope| {
            let scope = &self.scopes.all[scope];
            Some((scope.names?, node(scope.around?)))
        });
        own.into_iter().chain(around)
    }

    /// `item` or the name in `as`, `index` and `last`. `None` if the root is none of these here.
    fn of_loop(&self, reader: PathReader, root: &Segment, rest: &[Segment]) -> Option<Result<Ref, Problem>> {
        let of = |root, node| Ref { root, node, keys: names(rest), ..Default::default() };
        let name = root.name.as_str();
        if let Some((_, node)) = self.loops(reader).find(|(names, _)| names.item == Some(name)) {
            return Some(Ok(of(Root::Item, node)));
        }
        let (innermost, node) = self.loops(reader).next()?;
        match (name, rest) {
            ("index", []) => Some(Ok(of(Root::Index, node))),
            ("index", [key, ..]) => Some(Err(too_long(key, "index"))),
            ("last", _) if innermost.item.is_none() => Some(Ok(of(Root::Last, node))),
            ("last", _) => {
                let message = "`last` has a meaning only in a loop with `while`, whose iterations follow each other";
                Some(Err(at(root, codes::UNKNOWN_ROOT, message)))
            }
            ("item", _) => {
                let message = match innermost.item {
                    Some(name) => format!("the items of this loop are called {}", quoted(name)),
                    None => "a loop with `while` has no items, only `index` and `last`".to_owned(),
                };
                Some(Err(at(root, codes::UNKNOWN_ROOT, message)))
            }
            _ => None,
        }
    }

    fn task(&self, reader: PathReader, raw: &RawPath<'_>, rest: &[Segment]) -> Result<Ref, Problem> {
        let [step, rest @ ..] = rest else { return Err(incomplete(raw, "tasks.<step>.body")) };
        let found = self.step(step)?;
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
            TaskField::Body | TaskField::Headers | TaskField::Error | TaskField::Errors => false,
        };
        if let (true, Some(key)) = (is_plain, keys.first()) {
            return Err(too_long(key, &field.name));
        }
        if known == TaskField::Errors
            && !matches!(
                self.parsed(found).kind.map(|info| info.kind),
                Some(Kind::Group | Kind::Loop | Kind::Conditional | Kind::Parallel) | None
            )
        {
            let message = format!("{} is no group and no loop", quoted(&step.name));
            return Err(at(field, codes::UNKNOWN_TASK_FIELD, message).hint("read `error`"));
        }
        self.check_scope(reader, raw, step, found)?;
        let node = self.scopes.all[found.0].first + found.1;
        let keys = if known == TaskField::Headers { header_keys(keys) } else { names(keys) };
        Ok(Ref { root: Root::Task, node, field: known, keys, ..Default::default() })
    }

    /// Whether a step is certain to have ended when the reader reads it, or need not be looked at.
    fn check_scope(
        &self,
        reader: PathReader,
        raw: &RawPath<'_>,
        step: &Segment,
        (scope, place): (usize, u32),
    ) -> Result<(), Problem> {
        let mut next = Some((reader.scope, reader.step));
        while let Some((at, reads)) = next {
            if at != scope {
                next = self.scopes.all[at].around.map(|(outer, place)| (outer, Some(place)));
                continue;
            }
            let Some(reads) = reads else { return Ok(()) };
            let is_ancestor = self.scopes.all[at].graph.is_ancestor(place, reads);
            let is_undone = reader.undoes && at == reader.scope && reads == place as usize;
            return if is_ancestor || is_undone {
                Ok(())
            } else {
                Err(self.not_an_ancestor(reader, (at, reads), raw, step))
            };
        }
        let group = self.scopes.step_around(scope).map_or("", |step| step.name);
        let message = format!("{} is inside of {}, and can only be read there", quoted(&step.name), quoted(group));
        let problem = Problem::new(codes::NOT_IN_SCOPE, message, raw.at, raw.text.len());
        Err(problem.hint(format!("read `tasks.{group}.body`, the result of {}", quoted(group))))
    }

    /// A name that a step list has without the root before it.
    fn of_list(&self, name: &str) -> Option<String> {
        let is_output = self.outputs?.writers(name).is_some() || self.scopes.index.contains_key(name);
        Some(format!("write `{}.{name}`", if is_output { "outputs" } else { "variables" }))
    }

    /// `outputs.<name>`, where the name is an `outputVariable` or the id of a step.
    fn output(&self, reader: PathReader, raw: &RawPath<'_>, rest: &[Segment]) -> Result<Ref, Problem> {
        let Some(outputs) = self.outputs else { return Err(incomplete(raw, "outputs.total")) };
        let Some((segment, keys)) = rest.split_first() else {
            return Ok(Ref { root: Root::Outputs, ..Default::default() });
        };
        let name = segment.name.as_str();
        let step = self.scopes.index.get_key_value(name).map(|(name, place)| (*name, *place));
        let one = |node| Ref { root: Root::Output, node, keys: names(keys), ..Default::default() };
        let variable = outputs.variables().find(|variable| *variable == name);
        if let Some((variable, writers)) = variable.and_then(|name| Some((name, outputs.writers(name)?))) {
            let by_id = step.map(|(_, place)| place);
            let is_written = writers.iter().chain(by_id.as_ref()).any(|writer| self.may_read(reader, *writer));
            return match is_written {
                true => Ok(one(outputs.number(variable, false))),
                false => Err(self.too_early(raw, name, writers[0])),
            };
        }
        let Some((id, place)) = step else {
            let message = format!("no step writes `outputs.{}`", segment.name);
            let problem = at(segment, codes::UNKNOWN_STEP, message);
            let known = outputs.variables().chain(self.scopes.index.keys().copied());
            return Err(Problem { hint: suggest::hint(name, known), ..problem });
        };
        if self.check_scope(reader, raw, segment, place).is_ok() {
            let node = self.scopes.all[place.0].first + place.1;
            return Ok(Ref { root: Root::Task, node, field: TaskField::Body, keys: names(keys), ..Default::default() });
        }
        match self.may_read(reader, place) {
            true => Ok(one(outputs.number(id, true))),
            false => Err(self.too_early(raw, name, place)),
        }
    }

    /// Whether a step may have written its result before a reader reads it.
    fn may_read(&self, reader: PathReader, writer: (usize, u32)) -> bool {
        match (reader.step, reader.repeats) {
            // The condition of a loop is read after each iteration, too.
            (_, Some((scope, place))) if self.is_inside(writer.0, (scope, place)) => true,
            (Some(step), _) => may_precede(self.scopes, writer, (reader.scope, step as u32)),
            (None, _) => match self.scopes.all[reader.scope].around {
                _ if self.scopes.outwards(writer.0).any(|scope| scope == reader.scope) => true,
                Some((scope, place)) => may_precede(self.scopes, writer, (scope, place as u32)),
                None => true,
            },
        }
    }

    /// Whether a scope is inside of a step.
    fn is_inside(&self, scope: usize, step: (usize, usize)) -> bool {
        self.scopes.inside(step).is_some_and(|inside| self.scopes.outwards(scope).any(|outer| outer == inside))
    }

    fn too_early(&self, raw: &RawPath<'_>, name: &str, (scope, place): (usize, u32)) -> Problem {
        let step = self.scopes.all[scope].steps[place as usize].name;
        let message = format!("`outputs.{name}` is written by {}, which ends only after this is read", quoted(step));
        Problem::new(codes::NOT_AN_ANCESTOR, message, raw.at, raw.text.len()).hint("move that step before this one")
    }

    /// `reads` is the reader, or the step of an outer group that the reader is inside of.
    fn not_an_ancestor(&self, reader: PathReader, reads: (usize, usize), raw: &RawPath<'_>, step: &Segment) -> Problem {
        let name = self.scopes.all[reads.0].steps[reads.1].name;
        let is_inside = (reader.scope, reader.step) != (reads.0, Some(reads.1));
        let problem = |message| Problem::new(codes::NOT_AN_ANCESTOR, message, raw.at, raw.text.len());
        match (step.name == name, is_inside) {
            (true, false) => {
                problem(format!("{} reads its own result, which does not exist before it ends", quoted(name)))
            }
            (true, true) => problem(format!("{} has no result before the steps inside of it end", quoted(name))),
            _ if self.outputs.is_some() => {
                let message = format!("{} reads `tasks.{}`, which does not come before it", quoted(name), step.name);
                problem(message).hint("move that step before this one")
            }
            _ => {
                let message = format!("{} reads `tasks.{}`, but does not need it", quoted(name), step.name);
                problem(message).hint(format!("add {} to the `needs` of {}", quoted(&step.name), quoted(name)))
            }
        }
    }

    fn wait(&self, reader: PathReader, raw: &RawPath<'_>, rest: &[Segment]) -> Result<Ref, Problem> {
        let [step, rest @ ..] = rest else { return Err(incomplete(raw, "wait.<step>.url")) };
        let found = self.step(step)?;
        if !self.scopes.outwards(reader.scope).any(|scope| scope == found.0) {
            let group = self.scopes.step_around(found.0).map_or("", |step| step.name);
            let message = format!("{} is inside of {}, and can only be read there", quoted(&step.name), quoted(group));
            return Err(Problem::new(codes::NOT_IN_SCOPE, message, raw.at, raw.text.len()));
        }
        let node = self.scopes.all[found.0].first + found.1;
        // A step of unknown kind has been reported already.
        if let Some(info) = self.parsed(found).kind
            && info.kind != Kind::WaitForWebhook
        {
            let message = format!("{} is {} step and has no callback url", quoted(&step.name), info.with_article());
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

    fn parsed(&self, (scope, place): (usize, u32)) -> &ParsedStep<'t> {
        &self.scopes.all[scope].steps[place as usize]
    }

    /// Where a step is.
    fn step(&self, segment: &Segment) -> Result<(usize, u32), Problem> {
        self.scopes.index.get(segment.name.as_str()).copied().ok_or_else(|| {
            let problem =
                at(segment, codes::UNKNOWN_STEP, format!("{} is not a step of this workflow", quoted(&segment.name)));
            self.suggested.set(self.suggested.get() + 1);
            let hint = (self.suggested.get() <= SUGGESTED_MAX)
                .then(|| suggest::hint(&segment.name, self.scopes.index.keys().copied()))
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
