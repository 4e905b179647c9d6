//! Templates in the fields of a step: placeholders in string values. Keys are always literal.

use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::fields;
use crate::tree::{TreeNode, Value};
use kernel::path::Resolve;
use kernel::template::{Part, Template, TemplateEntry, parse_text};

/// A field that is filled in as text.
pub(super) fn parts(
    node: &TreeNode,
    what: &str,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<Vec<Part>> {
    let text = fields::text(node, what, problems)?;
    leaf(node, text, scope, problems)
}

/// A concurrency key: runs or tasks with equal keys share a limit. A path without braces is refused, because it would
/// be the same text for all of them.
pub(crate) fn key(
    node: &TreeNode,
    what: &str,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<Vec<Part>> {
    let text = fields::text(node, what, problems)?;
    if text.starts_with("trigger.") || text.starts_with("tasks.") {
        let message = format!("{} is the same text for every run", quoted(text));
        let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
        problems.push(draft.hint(format!("write `{{{{{text}}}}}` to use the value")));
        return None;
    }
    leaf(node, text, scope, problems)
}

/// A field that is filled in as JSON. A value without placeholders becomes one literal.
pub(crate) fn template(node: &TreeNode, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Template> {
    if !has_placeholders(node) {
        return Some(Template::literal(&node.to_json()));
    }
    match &node.value {
        Value::Text(text) => leaf(node, text, scope, problems).map(Template::from_parts),
        Value::List(items) => {
            let items: Vec<_> = items.iter().map(|item| template(item, scope, problems)).collect();
            Some(Template::List { items: items.into_iter().collect::<Option<_>>()? })
        }
        Value::Object(entries) => {
            let entry = |e: &crate::tree::Entry| {
                let value = template(&e.value, scope, problems)?;
                Some(TemplateEntry { key: e.key.clone(), value: Some(value), ..Default::default() })
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            Some(Template::Object { entries: entries.into_iter().collect::<Option<_>>()? })
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Real(_) => Some(Template::literal(&node.to_json())),
    }
}

fn leaf(node: &TreeNode, text: &str, scope: &mut Resolve<'_>, problems: &mut Problems<'_>) -> Option<Vec<Part>> {
    match parse_text(text, scope) {
        Ok(parts) => Some(parts),
        Err(found) => {
            found.into_iter().for_each(|problem| problems.push_inside(node, text, problem));
            None
        }
    }
}

fn has_placeholders(node: &TreeNode) -> bool {
    match &node.value {
        Value::Text(text) => text.contains("{{"),
        Value::List(items) => items.iter().any(has_placeholders),
        Value::Object(entries) => entries.iter().any(|e| has_placeholders(&e.value)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Real(_) => false,
    }
}
