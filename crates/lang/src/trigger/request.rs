//! Requests that create or change a trigger.

use super::{Spec, spec};
use crate::codes;
use crate::diagnostic::{Diagnostic, Draft, Problems, is_hostile, normalized, quoted};
use crate::fields::{self, Shape};
use crate::tree::{Entry, Tree, TreeNode, Value};
use kernel::event::TriggerKind;
use serde_json::{Map, Value as Json, json};

const NAME_MAX: usize = 80;
const NOTE_MAX: usize = 1_024;

/// A valid `{name, type, workflow, enabled?, note?, config, variable_mapping?, input?, signal?}`.
#[derive(Clone, Debug)]
pub struct TriggerRequest {
    pub name: String,
    /// Id, name or slug.
    pub workflow: String,
    pub enabled: bool,
    pub note: Option<String>,
    pub spec: Spec,
}

const KINDS: &[(&str, TriggerKind)] = &[
    ("schedule", TriggerKind::Schedule),
    ("webhook", TriggerKind::Webhook),
    ("manual", TriggerKind::Manual),
    ("cron", TriggerKind::Schedule),
];

const SHAPE: Shape = Shape {
    known: &["name", "type", "workflow", "enabled", "note", "config", "variable_mapping", "input", "signal"],
    later: &[],
    synonyms: &[("kind", "type"), ("workflow_id", "workflow"), ("trigger", "type")],
};

/// The fields that a change may have.
const CHANGEABLE: Shape =
    Shape::only(&["name", "workflow", "enabled", "note", "config", "variable_mapping", "input", "signal"]);

/// Reads a request for a new trigger.
pub fn request(tree: &Tree) -> Result<TriggerRequest, Vec<Diagnostic>> {
    let mut problems = Problems::new(tree.source());
    let read = read(tree.root(), &mut problems);
    match read {
        Some(request) if problems.is_empty() => Ok(request),
        _ => Err(problems.finish(Some(tree.root()))),
    }
}

fn read(root: &TreeNode, problems: &mut Problems<'_>) -> Option<TriggerRequest> {
    root.check_numbers(problems);
    let fields = fields::object(root, "a trigger", problems)?;
    fields.check(&SHAPE, problems);
    let what = "a trigger";
    let name = fields.require("name", what, &root.span, problems).and_then(|node| name(node, problems));
    let workflow = fields.require("workflow", what, &root.span, problems);
    let workflow = workflow.and_then(|node| fields::text(node, "workflow", problems)).map(str::to_owned);
    let enabled = fields.get("enabled").map_or(Some(true), |node| fields::boolean(node, "enabled", problems));
    let note = fields.get("note").map(|node| note(node, problems));
    let kind = fields.require("type", what, &root.span, problems);
    let kind = kind.and_then(|node| fields::word(node, "type", KINDS, problems))?;
    let mut spec = spec(kind, fields.get("config"), &root.span, problems);
    if let Some(entry) = fields.entry("variable_mapping") {
        match &mut spec {
            Some(Spec::Webhook(webhook)) => webhook.mapping = super::webhook::mapping(&entry.value, problems)?,
            Some(_) => {
                let message = format!("a {} trigger has no payload to map variables from", kind.as_str());
                problems.add(codes::FIELD_NOT_FOR_TRIGGER, &entry.key_span, message);
            }
            None => {}
        }
    }
    if let Some(entry) = fields.entry("signal") {
        match &mut spec {
            Some(Spec::Webhook(webhook)) => webhook.signal = Some(super::webhook::signal(&entry.value, problems)?),
            Some(_) => {
                let message = format!("a {} trigger has no payload to find runs by", kind.as_str());
                problems.add(codes::FIELD_NOT_FOR_TRIGGER, &entry.key_span, message);
            }
            None => {}
        }
    }
    if let (Some(entry), Some(spec)) = (fields.entry("input"), &mut spec) {
        if spec.input().is_some() {
            let message = "`input` and `config.input` cannot both be given";
            problems.add(codes::EXCLUSIVE_FIELDS, &entry.key_span, message);
        }
        *spec.input_mut() = Some(super::input(&entry.value, problems)?);
    }
    Some(TriggerRequest {
        name: name?,
        workflow: workflow?,
        enabled: enabled?,
        note: note.unwrap_or_default(),
        spec: spec?,
    })
}

fn name(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let name = normalized(fields::text(node, "name", problems)?);
    if name.is_empty() || name.chars().count() > NAME_MAX || name.contains(is_hostile) {
        let draft = Draft::new(codes::INVALID_NAME, node.span.clone(), format!("{} is not a name", quoted(&name)));
        problems.push(draft.hint("a name has 1 to 80 visible characters"));
        return None;
    }
    Some(name)
}

fn note(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let note = fields::text(node, "note", problems)?;
    if note.len() > NOTE_MAX {
        let message = format!("`note` has {} bytes, the limit is {NOTE_MAX}", note.len());
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    Some(note.to_owned())
}

/// The trigger that a change applies to.
pub struct CurrentTrigger<'a> {
    pub name: &'a str,
    pub kind: TriggerKind,
    pub workflow: &'a str,
    pub enabled: bool,
    pub note: Option<&'a str>,
    /// As stored.
    pub config: &'a str,
}

/// Merges a change into a trigger and validates the result. Fields of `config` are merged one by one, so a secret that
/// is not in the change stays; `null` removes a field. Only the path of a problem is meaningful: no user wrote the
/// merged text, so its lines mean nothing.
pub fn change(tree: &Tree, current: &CurrentTrigger<'_>) -> Result<TriggerRequest, Vec<Diagnostic>> {
    let mut problems = Problems::new(tree.source());
    let given = fields::object(tree.root(), "a change", &mut problems);
    let unknown: Vec<&Entry> = given.iter().flat_map(|given| given.unknown(&CHANGEABLE, &mut problems)).collect();
    for entry in unknown {
        match entry.key.as_str() {
            "type" => {
                let message = "the type of a trigger cannot be changed; make a new one";
                problems.add(codes::FIELD_NOT_FOR_TRIGGER, &entry.key_span, message);
            }
            _ => CHANGEABLE.refuse(entry, &mut problems),
        }
    }
    let (Some(given), true) = (given, problems.is_empty()) else { return Err(problems.finish(Some(tree.root()))) };
    let mut whole = Map::new();
    whole.insert("name".into(), json!(current.name));
    whole.insert("type".into(), json!(current.kind.as_str()));
    whole.insert("workflow".into(), json!(current.workflow));
    whole.insert("enabled".into(), json!(current.enabled));
    if let Some(note) = current.note {
        whole.insert("note".into(), json!(note));
    }
    let mut config: Json = serde_json::from_str(current.config).unwrap_or_default();
    for entry in given.iter() {
        match (&*entry.name(), &entry.value.value) {
            ("config", Value::Object(changes)) => {
                for change in changes {
                    merge_field(config.as_object_mut(), &change.name(), change.value.to_json());
                }
            }
            ("config", _) => config = entry.value.to_json(),
            (name @ ("variable_mapping" | "input" | "signal"), _) => {
                merge_field(config.as_object_mut(), name, entry.value.to_json());
            }
            (name, _) => merge_field(Some(&mut whole), name, entry.value.to_json()),
        }
    }
    whole.insert("config".into(), config);
    let whole = Json::Object(whole).to_string();
    let tree = crate::read(whole.as_bytes(), crate::Syntax::Json).map_err(|malformed| malformed.0)?;
    request(&tree)
}

fn merge_field(fields: Option<&mut Map<String, Json>>, name: &str, value: Json) {
    let Some(fields) = fields else { return };
    match value {
        Json::Null => drop(fields.shift_remove(name)),
        // `has_secret: true` keeps the stored secret.
        Json::Bool(true) if name == "has_secret" => {}
        value => drop(fields.insert(name.to_owned(), value)),
    }
}
