//! Steps that hold other steps: `group` runs them once, `loop` once for each item of a list or while a condition holds.
//! In step lists there are also `parallel` and `conditional`, which are groups, too.

use super::templates;
use super::{StepFields, expression};
use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::{TreeNode, Value};
use kernel::path::{Problem, RawPath, Ref};
use kernel::plan::{Body, GroupBody, GroupKind, Guard, OnError, Repeat};

/// The most iterations of a loop (M5).
const ITERATIONS_MAX: i64 = 10_000;
/// The default for a loop with a condition (M14). A list is as long as it is.
const WHILE_MAX: i64 = 1_000;
const CONCURRENCY_MAX: i64 = 1_000;

/// Where a path of a step that holds others is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFrom {
    /// Beside the step, before it starts.
    Step,
    /// Beside it, before an iteration: the condition of a loop.
    Iteration,
    /// Inside of it, after its steps: its `output`.
    Inside,
    /// Beside it, when it has ended and is undone: its `compensate`.
    Undo,
}

/// Resolves the paths of one step.
pub(crate) type ReadPath<'a> = dyn Fn(ReadFrom, &RawPath<'_>) -> Result<Ref, Problem> + 'a;

/// What the paths of the steps inside of a loop can begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopNames<'t> {
    /// What the author calls an item; `None` for a loop with a condition.
    pub item: Option<&'t str>,
}

pub(super) const GROUP: Shape = Shape::only(&["tasks", "on_error", "concurrency", "output"]);
/// The steps of `tasks` do not depend on each other.
pub(super) const PARALLEL: Shape = GROUP;
/// The first `then` steps of `tasks` are one branch, the others are the other one.
pub(super) const CONDITIONAL: Shape = Shape::only(&["tasks", "then", "on_error"]);
pub(super) const LOOP: Shape = Shape {
    known: &["items", "while", "as", "concurrency", "max_iterations", "on_error", "tasks", "output"],
    later: &[],
    synonyms: &[
        ("steps", "tasks"),
        ("each", "items"),
        ("for_each", "items"),
        ("list", "items"),
        ("until", "while"),
        ("condition", "while"),
        ("limit", "max_iterations"),
        ("max_concurrency", "concurrency"),
        ("parallel", "concurrency"),
        ("item", "as"),
    ],
};

/// How the steps inside of a step of a list follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepOrder {
    #[default]
    Sequence,
    Parallel,
    /// Two sequences of which one runs: this many steps are the first.
    Branches(usize),
}

/// The order that a step of a list gives to the steps inside of it.
pub(super) fn order(own: &TreeNode) -> StepOrder {
    let Value::Object(entries) = &own.value else { return StepOrder::default() };
    match entries.iter().find(|entry| entry.key == "then").map(|entry| &entry.value.value) {
        Some(Value::Int(count)) => StepOrder::Branches(*count as usize),
        _ => StepOrder::Sequence,
    }
}

/// The steps inside of a step, and the names that a loop has for its items.
pub(super) fn inside<'t>(own: &'t TreeNode, is_loop: bool) -> Option<(&'t TreeNode, Option<LoopNames<'t>>)> {
    let Value::Object(entries) = &own.value else { return None };
    let find = |name: &str| entries.iter().find(|entry| entry.name() == name).map(|entry| &entry.value);
    let name = match find("as").map(|node| &node.value) {
        Some(Value::Text(name)) => name.as_str(),
        _ => "item",
    };
    let names = LoopNames { item: Some(name).filter(|_| find("while").is_none()) };
    Some((find("tasks")?, Some(names).filter(|_| is_loop)))
}

pub(super) fn group(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let group = body(&own, step, OnError::Fail, problems)?;
    let concurrency = own.get("concurrency").map(|node| concurrency(node, problems));
    Some(Body::Group { group: GroupBody { concurrency: concurrency.unwrap_or(Some(0))?, ..group } })
}

/// A28: all branches end before the failure of one counts.
pub(super) fn parallel(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let group = body(&own, step, OnError::Finish, problems)?;
    let concurrency = own.get("concurrency").map(|node| concurrency(node, problems));
    let (concurrency, kind) = (concurrency.unwrap_or(Some(0))?, GroupKind::Parallel);
    Some(Body::Group { group: GroupBody { concurrency, kind, ..group } })
}

/// A27: its condition is that of its first step.
pub(super) fn conditional(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let group = body(&own, step, OnError::Finish, problems)?;
    Some(Body::Group { group: GroupBody { kind: GroupKind::Conditional, ..group } })
}

pub(super) fn repeat(step: &StepFields<'_, '_>, problems: &mut Problems<'_>) -> Option<Body> {
    let own = step.object(problems)?;
    let paths = step.paths;
    own.exclusive("items", "while", problems);
    if own.get("items").is_none() && own.get("while").is_none() {
        let place = step.entry.key_span.clone();
        let draft = Draft::new(codes::MISSING_FIELD, place, "`loop` needs `items` or `while`");
        problems.push(draft.hint("`items` names a list, such as `trigger.body.orders`; `while` is a condition"));
    }
    let is_while = own.get("while").is_some();
    let (mut items, mut list) = (Some(None), Some(None));
    match own.get("items") {
        Some(node) if matches!(node.value, Value::List(_)) => {
            list = templates::template(node, &mut |raw| paths(ReadFrom::Step, raw), problems).map(Some);
        }
        Some(node) => {
            items =
                expression(node, "items", &mut |raw| paths(ReadFrom::Step, raw), problems).map(|(expr, _)| Some(expr));
        }
        None => {}
    }
    let condition = match own.get("while") {
        None => Some(None),
        Some(node) => expression(node, "while", &mut |raw| paths(ReadFrom::Iteration, raw), problems)
            .map(|(expr, text)| Some(Guard { expr: Some(expr), text, ..Default::default() })),
    };
    if let Some(node) = own.get("as") {
        item_name(node, is_while, problems);
    }
    let at_once = own.get("concurrency").map(|node| {
        let most = concurrency(node, problems)?;
        if most > 1 && is_while {
            let message = "a loop with `while` runs one iteration after the other";
            let draft = Draft::new(codes::UNSUPPORTED_SETTING, node.span.clone(), message);
            problems.push(draft.hint("remove `concurrency`, or loop over `items`"));
        }
        Some(most)
    });
    let most =
        own.get("max_iterations").map(|node| fields::whole(node, "max_iterations", 1..=ITERATIONS_MAX, problems));
    let body = body(&own, step, OnError::Fail, problems);
    let default_max = if is_while { WHILE_MAX } else { ITERATIONS_MAX };
    let repeat = Repeat {
        body: body?,
        items: items?,
        list: list?,
        condition: condition?,
        concurrency: at_once.unwrap_or(Some(1))?,
        max_iterations: most.unwrap_or(Some(default_max))? as u32,
        name: inside(step.value(), true).and_then(|(_, names)| names?.item).unwrap_or_default().to_owned(),
        ..Default::default()
    };
    Some(Body::Loop { repeat: Box::new(repeat) })
}

/// What groups and loops have in common. The steps inside are read by the form.
fn body(
    own: &Fields<'_>,
    step: &StepFields<'_, '_>,
    default: OnError,
    problems: &mut Problems<'_>,
) -> Option<GroupBody> {
    own.require("tasks", &format!("`{}`", step.info.field), &step.entry.key_span, problems);
    let words: Vec<(&str, OnError)> = OnError::ALL.iter().map(|on| (on.as_str(), *on)).collect();
    let on_error = own.get("on_error").map(|node| fields::word(node, "on_error", &words, problems));
    let output = match own.get("output") {
        None => Some(None),
        Some(node) => templates::template(node, &mut |raw| (step.paths)(ReadFrom::Inside, raw), problems).map(Some),
    };
    Some(GroupBody {
        group: step.group,
        on_error: on_error.unwrap_or(Some(default))?,
        output: output?,
        ..Default::default()
    })
}

fn concurrency(node: &TreeNode, problems: &mut Problems<'_>) -> Option<u32> {
    fields::whole(node, "concurrency", 1..=CONCURRENCY_MAX, problems).map(|most| most as u32)
}

/// Checks the name in `as`.
fn item_name(node: &TreeNode, is_while: bool, problems: &mut Problems<'_>) {
    const TAKEN: &[&str] = &[
        "trigger",
        "tasks",
        "wait",
        "secrets",
        "index",
        "last",
        "variables",
        "outputs",
        "context",
        "payload",
        "true",
        "false",
        "null",
    ];
    let Some(name) = fields::text(node, "as", problems) else { return };
    let is_name = name.len() <= 80
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let (message, hint) = if is_while {
        ("a loop with `while` has no items".to_owned(), "remove `as`; its paths can read `index` and `last`".to_owned())
    } else if TAKEN.contains(&name) {
        (
            format!("{} already has a meaning in paths", quoted(name)),
            format!("choose a name other than {}", one_of(TAKEN)),
        )
    } else if !is_name {
        let hint = "a name begins with a letter and has up to 80 letters, digits and `_`";
        (format!("{} cannot begin a path", quoted(name)), hint.to_owned())
    } else {
        return;
    };
    problems.push(Draft::new(codes::INVALID_VALUE, node.span.clone(), message).hint(hint));
}
