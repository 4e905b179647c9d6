//! Conditions as step lists may write them: an expression, true or false, or `{variable, equals}`.
//!
//! All of them become the text of an expression, which the reader of conditions parses.

use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::fields::{self, Shape};
use crate::tree::{TreeNode, Value};
use kernel::path;
use std::collections::BTreeSet;

/// The condition as a text in the same place; with `negated`, the opposite of it.
pub(super) fn rewrite(
    node: &TreeNode,
    outputs: &BTreeSet<String>,
    negated: bool,
    problems: &mut Problems<'_>,
) -> Option<TreeNode> {
    let text = match &node.value {
        Value::Text(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Object(_) => equality(node, outputs, problems)?,
        _ => {
            let draft = fields::wrong_type(node, "condition", "an expression, true or false, or `{variable, equals}`");
            problems.push(draft);
            return None;
        }
    };
    let text = if negated { format!("!({text})") } else { text };
    Some(TreeNode { span: node.span.clone(), value: Value::Text(text) })
}

/// A variable is looked up in the variables and then in the outputs.
fn equality(node: &TreeNode, outputs: &BTreeSet<String>, problems: &mut Problems<'_>) -> Option<String> {
    let own = fields::object(node, "condition", problems)?;
    own.check(&Shape { known: &["variable", "equals"], later: &[], synonyms: &[("value", "equals")] }, problems);
    let variable = own.require("variable", "a condition", &node.span, problems);
    let variable = variable.and_then(|node| variable_of(node, outputs, problems));
    let value = own.get("equals").map(|node| literal(node, problems));
    match value {
        None => variable,
        Some(value) => Some(format!("{} == {}", variable?, value?)),
    }
}

fn variable_of(node: &TreeNode, outputs: &BTreeSet<String>, problems: &mut Problems<'_>) -> Option<String> {
    let text = fields::text(node, "variable", problems)?;
    if outputs.contains(text) {
        // An id may have brackets, which mean something else in a path.
        return Some(format!("(variables['{text}'] ?? outputs['{text}'])"));
    }
    let read = path::read(text, 0).ok().filter(|(_, end)| *end == text.len());
    let Some((path, _)) = read else {
        let message = format!("{} is not the name of a variable", quoted(text));
        let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
        problems.push(draft.hint("write a name, or a path such as `order.status`; anything else is an expression"));
        return None;
    };
    let is_output = path.segments.first().is_some_and(|first| outputs.contains(&first.name));
    Some(if is_output { format!("(variables.{text} ?? outputs.{text})") } else { format!("variables.{text}") })
}

fn literal(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    match &node.value {
        Value::Text(text) => {
            let escaped = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n").replace('\t', "\\t");
            Some(format!("'{escaped}'"))
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Real(_) => Some(node.to_json().to_string()),
        Value::List(_) | Value::Object(_) => {
            problems.push(fields::wrong_type(node, "equals", "a text, a number, true, false or null"));
            None
        }
    }
}
