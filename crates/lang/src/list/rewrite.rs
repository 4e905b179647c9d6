//! From the spelling of step lists to that of graphs: `{type: log, message: hi}` becomes `log: {message: hi}`.
//!
//! Which fields a step may have follows from the table of kinds: what a graph has inside of the field of the kind and
//! what it has beside it stand together in a list. Every value keeps its position.

use super::condition;
use super::ids::{output_names, path_id};
use super::settings::check_output_name;
use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::fields::{self, Fields, Shape};
use crate::step::{COMMON, KINDS, Kind, KindInfo, LATER_KINDS, OUTPUT_VARIABLE, WAIT, is_step_name};
use crate::tree::{Entry, TreeNode, Value};
use std::collections::BTreeSet;
use std::ops::Range;

/// Fields of every step, beside those in [`COMMON`] that a list has.
const OWN: &[&str] = &["id", "type", OUTPUT_VARIABLE];
/// Fields of every step of a graph that lists say in another way.
const NOT_IN_LISTS: &[(&str, &str)] = &[
    ("needs", "the steps of a list run in their order; `parallel` runs them at the same time"),
    ("if", "put the step into a `conditional`"),
];
/// Fields that a graph has under another name.
const RENAMED: &[(&str, &str)] =
    &[("timeout_ms", "timeout"), ("duration_ms", "duration"), ("max_concurrency", "concurrency")];

const STEP: Shape = Shape {
    known: &[],
    later: &["labels", "recovery", "queue", "cache", "callback_url"],
    synonyms: &[
        ("name", "id"),
        ("run", "command"),
        ("cmd", "command"),
        ("args", "arguments"),
        ("params", "arguments"),
        ("output", OUTPUT_VARIABLE),
        ("as_variable", OUTPUT_VARIABLE),
        ("on_deny", "allow_failure"),
        ("retry_attempts", "retries"),
        ("tasks", "steps"),
        ("branches", "steps"),
        ("undo", "compensate"),
        ("message", "prompt"),
        ("seconds", "duration"),
        ("signal", "name"),
    ],
};

/// The steps of a list by their ids, spelled as those of a graph. What is wrong with them has been reported.
pub(crate) fn rewrite(steps: &TreeNode, problems: &mut Problems<'_>) -> TreeNode {
    let outputs = output_names(steps).into_iter().collect();
    let mut rewriter = Rewriter { outputs, problems };
    let entries = rewriter.list(steps, "steps", "step");
    if entries.is_empty() && matches!(steps.value, Value::List(_)) {
        rewriter.problems.add(codes::OUT_OF_RANGE, &steps.span, "`steps` needs at least one step");
    }
    TreeNode { span: steps.span.clone(), value: Value::Object(entries) }
}

struct Rewriter<'p, 's> {
    outputs: BTreeSet<String>,
    problems: &'p mut Problems<'s>,
}

/// A field and where it stands.
fn field(key: &str, key_span: &Range<usize>, value: TreeNode) -> Entry {
    Entry { key: key.to_owned(), key_span: key_span.clone(), value }
}

/// The fields of one step, sorted by where a graph has them.
#[derive(Default)]
struct Sorted {
    /// The value of the field of the kind.
    value: Option<TreeNode>,
    inside: Vec<Entry>,
    beside: Vec<Entry>,
}

impl Rewriter<'_, '_> {
    fn list(&mut self, node: &TreeNode, what: &str, path: &str) -> Vec<Entry> {
        let items = fields::list(node, what, self.problems).unwrap_or_default();
        items.iter().enumerate().map(|(place, item)| self.step(item, path_id(path, place))).collect()
    }

    fn step(&mut self, item: &TreeNode, path: String) -> Entry {
        let fields = fields::object(item, "a step", self.problems);
        let id = fields.as_ref().and_then(|fields| self.id(fields, &path));
        let id_span = fields.as_ref().and_then(|fields| fields.get("id")).map_or(&item.span, |node| &node.span);
        let name = id.unwrap_or_else(|| path.clone());
        let entries = fields.map_or_else(Vec::new, |fields| self.step_fields(item, &fields, (&name, &path)));
        let value = TreeNode { span: item.span.clone(), value: Value::Object(entries) };
        // A problem of the step as a whole points at its id, or at the whole step.
        Entry { key: name, key_span: id_span.clone(), value }
    }

    /// The id that the author chose, if it is one. The path id itself may be written out.
    fn id(&mut self, fields: &Fields<'_>, path: &str) -> Option<String> {
        let node = fields.get("id")?;
        let id = fields::text(node, "id", self.problems)?;
        let (message, hint) = match id {
            // Iterations of a loop with this name would be called like path ids.
            "step" => (
                "`step` cannot be an id: steps without one are called `step[0]`, `step[1]`, …".to_owned(),
                "choose another id",
            ),
            id if id == path || is_step_name(id) => return Some(id.to_owned()),
            id => (
                format!("{} is not an id", quoted(id)),
                "an id begins with a letter and has up to 80 letters, digits, `_` and `-`",
            ),
        };
        self.problems.push(Draft::new(codes::INVALID_STEP_NAME, node.span.clone(), message).hint(hint));
        None
    }

    /// The fields as a graph has them, that of the kind first. Empty without a valid kind.
    fn step_fields(&mut self, item: &TreeNode, fields: &Fields<'_>, (name, path): (&str, &str)) -> Vec<Entry> {
        let Some((info, type_span)) = self.kind(item, fields) else {
            // What is inside is checked all the same.
            for entry in fields.iter().filter(|entry| super::BRANCHES.contains(&&*entry.name())) {
                self.list(&entry.value, &entry.name(), &format!("{path}.{}", entry.name()));
            }
            return Vec::new();
        };
        let mut sorted = self.sort(fields, info, name);
        self.steps_inside(item, fields, info, path, &mut sorted);
        let value = match info.inside {
            Some(_) => TreeNode { span: item.span.clone(), value: Value::Object(sorted.inside) },
            None => match sorted.value {
                Some(value) => value,
                None => {
                    let message = format!("`{}` needs a field `{}`", info.word, info.list_field);
                    self.problems.add(codes::MISSING_FIELD, &type_span, message);
                    return Vec::new();
                }
            },
        };
        let mut entries = vec![field(info.field, &type_span, value)];
        entries.append(&mut sorted.beside);
        entries
    }

    /// The kind that `type` names, and where.
    fn kind(&mut self, item: &TreeNode, fields: &Fields<'_>) -> Option<(&'static KindInfo, Range<usize>)> {
        let Some(node) = fields.get("type") else {
            let draft = Draft::new(codes::NO_STEP_KIND, item.span.clone(), "a step of a list needs a `type`");
            let kind = KINDS.iter().find(|info| fields.get(info.field).is_some());
            let hint = kind.map(|info| format!("write `type: {}`, with its fields beside it", info.word));
            self.problems.push(draft.maybe_hint(hint));
            return None;
        };
        let word = fields::text(node, "type", self.problems)?;
        let known = if word == WAIT { "sleep" } else { word };
        if let Some(info) = KINDS.iter().find(|info| info.word == known) {
            return Some((info, node.span.clone()));
        }
        let words: Vec<&str> = KINDS.iter().map(|info| info.word).chain([WAIT]).collect();
        let draft = match LATER_KINDS.contains(&word) {
            true => {
                let message = format!("`{word}` steps are not supported in this release");
                Draft::new(codes::UNSUPPORTED_STEP_KIND, node.span.clone(), message)
            }
            false => {
                let hint = self.problems.suggest(word, words.iter().copied());
                let message = format!("{} is not a type of step", quoted(word));
                let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
                draft.hint(hint.unwrap_or_else(|| format!("it is one of {}", one_of(&words))))
            }
        };
        self.problems.push(draft);
        None
    }

    /// Sorts the fields of a step, and reports those that this kind does not have.
    fn sort(&mut self, fields: &Fields<'_>, info: &'static KindInfo, name: &str) -> Sorted {
        let mut sorted = Sorted::default();
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for entry in fields.iter() {
            let written = entry.name();
            let Some((known, value)) = self.known(&written, entry, info, name) else { continue };
            if let Some((_, other)) = seen.iter().find(|(same, _)| *same == known) {
                let message = format!("`{other}` and `{}` are the same field", entry.key);
                let draft = Draft::new(codes::EXCLUSIVE_FIELDS, entry.key_span.clone(), message);
                self.problems.push(draft.hint("keep one of them"));
                continue;
            }
            seen.push((known, &entry.key));
            let Some(value) = value else { continue };
            if known == info.list_field {
                sorted.value = Some(value);
            } else if info.inside.is_some_and(|inside| inside.known.contains(&known)) {
                sorted.inside.push(field(known, &entry.key_span, value));
            } else {
                sorted.beside.push(field(known, &entry.key_span, value));
            }
        }
        sorted
    }

    /// The name that a graph has for a field, and its value if the readers of graphs need it. `None` for a field that
    /// has been reported.
    fn known(
        &mut self,
        written: &str,
        entry: &Entry,
        info: &'static KindInfo,
        name: &str,
    ) -> Option<(&'static str, Option<TreeNode>)> {
        let of_kind = flat(info);
        let has = |name: &str| of_kind.iter().copied().find(|known| *known == name);
        if let Some(known) = has(written) {
            let is_list = super::BRANCHES.contains(&known) || known == "condition";
            return Some((known, (!is_list).then(|| entry.value.clone())));
        }
        if let Some((_, of_graph)) = RENAMED.iter().find(|(of_list, _)| *of_list == written)
            && let Some(known) = has(of_graph)
        {
            let value = match written.ends_with("_ms") {
                true => self.millis(&entry.value, written)?,
                false => entry.value.clone(),
            };
            return Some((known, Some(value)));
        }
        if let Some(own) = OWN.iter().find(|own| **own == written) {
            let is_output = *own == OUTPUT_VARIABLE && check_output_name(&entry.value, self.problems);
            return Some((own, is_output.then(|| entry.value.clone())));
        }
        let is_graph_only = |name: &str| NOT_IN_LISTS.iter().any(|(only, _)| *only == name);
        if let Some(common) = COMMON.iter().find(|common| **common == written && !is_graph_only(written)) {
            let value = match *common {
                "compensate" => self.compensate(&entry.value)?,
                _ => entry.value.clone(),
            };
            return Some((common, Some(value)));
        }
        self.refuse(written, entry, info, name);
        None
    }

    fn refuse(&mut self, written: &str, entry: &Entry, info: &'static KindInfo, name: &str) {
        if let Some((_, hint)) = NOT_IN_LISTS.iter().find(|(only, _)| *only == written) {
            let message = format!("a step of a list has no `{written}`");
            self.problems.push(Draft::new(codes::UNKNOWN_FIELD, entry.key_span.clone(), message).hint(*hint));
            return;
        }
        let owners: Vec<&str> =
            KINDS.iter().filter(|other| flat(other).contains(&written)).map(|other| other.word).collect();
        if owners.is_empty() {
            let common = COMMON.iter().filter(|field| !NOT_IN_LISTS.iter().any(|(only, _)| only == *field));
            let known: Vec<&str> = OWN.iter().chain(common).copied().chain(flat(info)).collect();
            return STEP.refuse_among(&known, entry, self.problems);
        }
        let message = format!(
            "`{}` belongs to steps of type {}, {} is {}",
            entry.key,
            one_of(&owners),
            quoted(name),
            info.with_article()
        );
        self.problems.push(Draft::new(codes::FIELD_NOT_FOR_KIND, entry.key_span.clone(), message));
    }

    /// A number of milliseconds as a duration.
    fn millis(&mut self, node: &TreeNode, what: &str) -> Option<TreeNode> {
        match node.value {
            Value::Int(count) if count >= 0 => {
                Some(TreeNode { span: node.span.clone(), value: Value::Text(format!("{count}ms")) })
            }
            _ => {
                self.problems.push(fields::wrong_type(node, what, "a whole number of milliseconds"));
                None
            }
        }
    }

    /// What undoes a step is spelled like a step, too.
    fn compensate(&mut self, node: &TreeNode) -> Option<TreeNode> {
        let fields = fields::object(node, "compensate", self.problems)?;
        for entry in fields.iter().filter(|entry| ["id", OUTPUT_VARIABLE].contains(&&*entry.name())) {
            let message = format!("`compensate` has no `{}`", entry.key);
            self.problems.push(Draft::new(codes::UNKNOWN_FIELD, entry.key_span.clone(), message));
        }
        let entries = self.step_fields(node, &fields, ("compensate", "compensate"));
        (!entries.is_empty()).then(|| TreeNode { span: node.span.clone(), value: Value::Object(entries) })
    }

    /// Rewrites the steps inside of a step.
    fn steps_inside(
        &mut self,
        item: &TreeNode,
        fields: &Fields<'_>,
        info: &'static KindInfo,
        path: &str,
        sorted: &mut Sorted,
    ) {
        let place = fields.get("type").map_or(&item.span, |node| &node.span);
        let (tasks, span) = match info.kind {
            Kind::Conditional => {
                let mut branch = |name: &str| {
                    fields.get(name).map_or_else(Vec::new, |list| self.list(list, name, &format!("{path}.{name}")))
                };
                let (then, other) = (branch("then"), branch("else"));
                if then.is_empty() && other.is_empty() {
                    let message = "`conditional` needs steps in `then` or in `else`";
                    self.problems.add(codes::OUT_OF_RANGE, place, message);
                }
                let count = TreeNode { span: item.span.clone(), value: Value::Int(then.len() as i64) };
                sorted.inside.push(field("then", place, count));
                let is_negated = then.is_empty();
                let mut tasks: Vec<Entry> = then.into_iter().chain(other).collect();
                self.guard(fields, is_negated, place, tasks.first_mut());
                (tasks, item.span.clone())
            }
            Kind::Group | Kind::Loop | Kind::Parallel => {
                let what = format!("`{}`", info.word);
                let Some(list) = fields.require("steps", &what, place, self.problems) else { return };
                let tasks = self.list(list, "steps", &format!("{path}.steps"));
                if tasks.is_empty() && matches!(list.value, Value::List(_)) {
                    self.problems.add(codes::OUT_OF_RANGE, &list.span, "`steps` needs at least one step");
                }
                (tasks, list.span.clone())
            }
            _ => return,
        };
        if info.kind == Kind::Group && fields.get("on_error").is_none() {
            // The steps after a failure are skipped, as at the top of the list.
            let finish = TreeNode { span: item.span.clone(), value: Value::Text("finish".to_owned()) };
            sorted.inside.push(field("on_error", place, finish));
        }
        sorted.inside.push(field("tasks", place, TreeNode { span, value: Value::Object(tasks) }));
    }

    /// The condition of a `conditional` is that of its first step: the first step of `else` comes instead of it.
    fn guard(&mut self, fields: &Fields<'_>, is_negated: bool, place: &Range<usize>, first: Option<&mut Entry>) {
        let Some(entry) = fields.entry("condition") else {
            fields.require("condition", "`conditional`", place, self.problems);
            return;
        };
        let guard = condition::rewrite(&entry.value, &self.outputs, is_negated, self.problems);
        if let (Some(guard), Some(Entry { value: TreeNode { value: Value::Object(own), .. }, .. })) = (guard, first) {
            own.push(field("if", &entry.key_span, guard));
        }
    }
}

/// Every type of step in step lists, and the fields of each beside those of every step.
pub fn types() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    KINDS.iter().map(|info| (info.word, flat(info)))
}

/// The fields that a list gives to steps of a kind, beside those of every step.
fn flat(info: &'static KindInfo) -> Vec<&'static str> {
    let holds: &[&str] = match info.kind {
        Kind::Conditional => return vec!["condition", "then", "else", "on_error"],
        Kind::Group => return vec!["steps", "on_error", "output"],
        Kind::Loop | Kind::Parallel => &["steps"],
        _ => &[],
    };
    let inside = info.inside.map_or(&[][..], |inside| inside.known).iter().filter(|name| **name != "tasks");
    let value = Some(info.list_field).filter(|name| !name.is_empty());
    value.into_iter().chain(holds.iter().chain(inside).chain(info.beside).copied()).collect()
}
