//! What undoes a step, and which steps cannot be undone.
//!
//! `compensate` is a step inside of a step: it has a kind and the fields of that kind, and neither conditions nor
//! dependencies, because it runs when the run undoes what it did.

use super::{COMMON, Kind, KindInfo, ParsedStep, StepFields, retry, task};
use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::fields::{self, Fields};
use crate::step::group::{ReadFrom, ReadPath};
use crate::tree::{TreeNode, Value};
use kernel::path::RawPath;
use kernel::plan::{Body, Retry};
use kernel::run::UNDO_NAME;

/// The kinds that can undo a step.
const UNDOING: [Kind; 6] = [Kind::Http, Kind::Task, Kind::Bash, Kind::Tool, Kind::Log, Kind::Noop];
/// The kinds that do nothing outside of their run.
const WITHOUT_EFFECT: [Kind; 5] = [Kind::Sleep, Kind::Set, Kind::Log, Kind::Noop, Kind::Pause];
/// The kinds whose outcome can be unknown.
pub(crate) const WITH_ATTEMPTS: [Kind; 6] =
    [Kind::Http, Kind::Task, Kind::Bash, Kind::Tool, Kind::Agent, Kind::AgentMessage];

/// What a step says about undoing it.
#[derive(Default)]
pub(crate) struct Undo {
    pub body: Option<(Body, Retry)>,
    pub is_irreversible: bool,
    pub is_not_compensatable: bool,
    pub if_unknown: bool,
}

impl Undo {
    pub(super) fn read(step: &ParsedStep<'_>, paths: &ReadPath<'_>, problems: &mut Problems<'_>) -> Undo {
        let Some(fields) = &step.fields else { return Undo::default() };
        let mut flag = |name: &str| fields.get(name).and_then(|node| fields::boolean(node, name, problems));
        let (irreversible, compensatable) = (flag("irreversible"), flag("compensatable"));
        let if_unknown = flag("compensate_on_unknown");
        let is_irreversible = irreversible == Some(true);
        if is_irreversible && compensatable == Some(true) {
            exclude(fields, "compensatable", "irreversible", "what is irreversible cannot be undone", problems);
        }
        let is_not_compensatable = compensatable == Some(false);
        if fields.get("compensate").is_some() {
            if is_irreversible {
                exclude(fields, "compensate", "irreversible", "what is irreversible cannot be undone", problems);
            } else if is_not_compensatable {
                exclude(
                    fields,
                    "compensate",
                    "compensatable",
                    "`compensatable: false` says it cannot be undone",
                    problems,
                );
            }
        } else if let Some(entry) = fields.entry("compensate_on_unknown").filter(|_| if_unknown == Some(true)) {
            let message = "`compensate_on_unknown` has a meaning only beside `compensate`";
            problems.push(Draft::new(codes::INVALID_VALUE, entry.key_span.clone(), message));
        }
        check_names(step, problems);
        if let Some(info) = step.kind {
            let of_kind = |kinds: &[Kind]| kinds.contains(&info.kind);
            if of_kind(&WITHOUT_EFFECT) {
                refuse_for_kind(
                    step.name,
                    info,
                    fields,
                    "compensate",
                    "it does nothing that could be undone",
                    problems,
                );
            }
            if !of_kind(&WITH_ATTEMPTS) {
                let why = "its outcome is always known";
                refuse_for_kind(step.name, info, fields, "compensate_on_unknown", why, problems);
            }
        }
        Undo {
            body: fields.entry("compensate").and_then(|entry| {
                let undo = ParsedStep::new(entry, problems);
                lower(&undo, paths, problems)
            }),
            is_irreversible,
            is_not_compensatable,
            if_unknown: if_unknown == Some(true),
        }
    }
}

/// Lowers a `compensate`. What it reads exists when the step has ended, so also the result of the step.
fn lower(undo: &ParsedStep<'_>, paths: &ReadPath<'_>, problems: &mut Problems<'_>) -> Option<(Body, Retry)> {
    let fields = undo.fields.as_ref()?;
    let info = undo.kind?;
    if !UNDOING.contains(&info.kind) {
        let words: Vec<&str> = super::KINDS.iter().filter(|i| UNDOING.contains(&i.kind)).map(|i| i.word).collect();
        let message = format!("a step cannot be undone by {} step", info.with_article());
        let draft = Draft::new(codes::FIELD_NOT_FOR_KIND, undo.entry.key_span.clone(), message);
        problems.push(draft.hint(format!("use one of {}", one_of(&words))));
        return None;
    }
    for entry in fields.iter().filter(|entry| COMMON.contains(&&*entry.name()) && entry.name() != "description") {
        let message = format!("`compensate` has no `{}`: it runs when the run undoes what it did", entry.name());
        problems.push(Draft::new(codes::UNKNOWN_FIELD, entry.key_span.clone(), message));
    }
    fields.get("description").map(|node| fields::text(node, "description", problems));
    undo.check_fields(info, COMMON, fields, problems);
    let policy = info.retry.map_or_else(retry::once, |default| retry::read(fields, default(), problems));
    let paths = |_: ReadFrom, raw: &RawPath<'_>| paths(ReadFrom::Undo, raw);
    let entry = fields.entry(info.field)?;
    let mut body =
        (info.read)(&StepFields { name: undo.name, info, entry, fields, paths: &paths, group: 0 }, problems)?;
    if let (Kind::Task, Body::Task { task }) = (info.kind, &mut body)
        && fields.get(task::INPUT).is_none()
    {
        // The worker gets what there is to know about the step, see `advance::undo`.
        task.input = None;
    }
    Some((body, policy))
}

/// `pay/compensate` undoes `pay`, so a group `pay` that is undone has no step of that name.
fn check_names(step: &ParsedStep<'_>, problems: &mut Problems<'_>) {
    let is_undone = step.fields.as_ref().is_some_and(|fields| fields.get("compensate").is_some());
    let Some((TreeNode { value: Value::Object(inside), .. }, _)) = step.inside().filter(|_| is_undone) else { return };
    if let Some(entry) = inside.iter().find(|entry| entry.key == UNDO_NAME) {
        let message = format!("{} is undone by `{}/{UNDO_NAME}`", quoted(step.name), step.name);
        let draft = Draft::new(codes::DUPLICATE_STEP, entry.key_span.clone(), message);
        problems.push(draft.hint("give the step inside of it another name"));
    }
}

fn exclude(fields: &Fields<'_>, field: &str, other: &str, why: &str, problems: &mut Problems<'_>) {
    if let Some(entry) = fields.entry(field) {
        let message = format!("`{field}` and `{other}` exclude each other here: {why}");
        problems.push(Draft::new(codes::EXCLUSIVE_FIELDS, entry.key_span.clone(), message));
    }
}

fn refuse_for_kind(
    name: &str,
    info: &KindInfo,
    fields: &Fields<'_>,
    field: &str,
    why: &str,
    problems: &mut Problems<'_>,
) {
    if let Some(entry) = fields.entry(field) {
        let message = format!("{} is {} step: {why}", quoted(name), info.with_article());
        problems.push(Draft::new(codes::FIELD_NOT_FOR_KIND, entry.key_span.clone(), message));
    }
}
