//! The differences between two definitions: by step and field, and as text.

use api::{FieldDiffView, StepDiffView, StepsDiffView};
use serde_json::{Map, Value};
use similar::TextDiff;
use std::time::Duration;

/// A text diff that takes longer becomes coarser.
const TEXT_TIME_MAX: Duration = Duration::from_millis(500);
/// Fields that name or describe a workflow without changing what it does.
const NAMES: &[&str] = &["name", "slug", "description", "tags", "enabled", "version"];
const STEPS: &str = "tasks";

pub fn steps(old: &Value, new: &Value) -> StepsDiffView {
    let empty = Map::new();
    let (old, new) = (member(old, STEPS).unwrap_or(&empty), member(new, STEPS).unwrap_or(&empty));
    let changed = old.iter().filter_map(|(step, before)| {
        let fields = fields(before, new.get(step)?);
        (!fields.is_empty()).then(|| StepDiffView { step: step.clone(), fields })
    });
    StepsDiffView {
        added: new.keys().filter(|step| !old.contains_key(*step)).cloned().collect(),
        removed: old.keys().filter(|step| !new.contains_key(*step)).cloned().collect(),
        changed: changed.collect(),
    }
}

fn member<'v>(value: &'v Value, name: &str) -> Option<&'v Map<String, Value>> {
    value.get(name)?.as_object()
}

/// Differences other than those in the steps and names.
pub fn settings(old: &Value, new: &Value) -> Vec<FieldDiffView> {
    let rest = |value: &Value| match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| *name != STEPS && !NAMES.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
        }
        other => other.clone(),
    };
    fields(&rest(old), &rest(new))
}

/// The innermost fields that differ. Lists are compared as a whole, because their items have no names.
fn fields(old: &Value, new: &Value) -> Vec<FieldDiffView> {
    let mut found = Vec::new();
    compare(String::new(), Some(old), Some(new), &mut found);
    found
}

fn compare(path: String, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<FieldDiffView>) {
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let added = new.keys().filter(|name| !old.contains_key(*name));
            for name in old.keys().chain(added) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                compare(path, old.get(name), new.get(name), found);
            }
        }
        (old, new) if old == new => {}
        (old, new) => found.push(FieldDiffView { path, old: old.cloned(), new: new.cloned() }),
    }
}

/// A unified diff of both definitions as indented JSON; empty if they are equal.
pub fn text(old: (&str, &Value), new: (&str, &Value)) -> String {
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    let (before, after) = (pretty(old.1), pretty(new.1));
    let diff = TextDiff::configure().timeout(TEXT_TIME_MAX).diff_lines(&before, &after);
    diff.unified_diff().context_radius(3).header(old.0, new.0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_compared_at_any_depth() {
        let row = |path: &str, old: Option<Value>, new: Option<Value>| FieldDiffView { path: path.into(), old, new };
        for (old, new, expected) in [
            (json!({ "a": 1 }), json!({ "a": 1 }), vec![]),
            (json!({ "a": 1, "b": 2 }), json!({ "b": 2, "a": 1 }), vec![]),
            (json!({ "a": 1 }), json!({ "a": 2 }), vec![row("a", Some(json!(1)), Some(json!(2)))]),
            (json!({ "a": { "b": 1 } }), json!({ "a": {} }), vec![row("a.b", Some(json!(1)), None)]),
            (json!({}), json!({ "a": null }), vec![row("a", None, Some(json!(null)))]),
            (json!({ "a": [1] }), json!({ "a": [1, 2] }), vec![row("a", Some(json!([1])), Some(json!([1, 2])))]),
            (json!({ "a": {} }), json!({ "a": 1 }), vec![row("a", Some(json!({})), Some(json!(1)))]),
        ] {
            assert_eq!(fields(&old, &new), expected, "{old} → {new}");
        }
    }

    #[test]
    fn added_removed_and_changed_steps_are_found() {
        let old = json!({ "name": "x", "tasks": { "a": { "noop": {} }, "b": { "sleep": "1s" } } });
        let new =
            json!({ "name": "y", "max_duration": "1d", "tasks": { "b": { "sleep": "2s" }, "c": { "noop": {} } } });
        let found = steps(&old, &new);
        assert_eq!((found.added, found.removed), (vec!["c".to_owned()], vec!["a".to_owned()]));
        assert_eq!(found.changed[0].step, "b");
        assert_eq!(settings(&old, &new).iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["max_duration"]);
        let text_diff = text(("1", &old), ("2", &new));
        assert!(
            text_diff.starts_with("--- 1\n+++ 2\n") && text_diff.contains("+      \"sleep\": \"2s\""),
            "{text_diff}"
        );
        assert_eq!(text(("1", &old), ("1", &old)), "");
    }
}
