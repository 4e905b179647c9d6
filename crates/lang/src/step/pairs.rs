//! The names and values of a query or a form: `{q: "{{trigger.body.q}}", tag: [a, b]}`.

use super::templates;
use crate::codes;
use crate::diagnostic::{Problems, grouped};
use crate::fields;
use crate::tree::{TreeNode, Value};
use kernel::path::Resolve;
use kernel::template::Template;

/// The most names in one query or form.
const PAIRS_MAX: usize = 256;

/// A value is plain, or a list of plain values. The values of templates are checked when they are filled in.
pub(super) fn read(
    node: &TreeNode,
    what: &str,
    scope: &mut Resolve<'_>,
    problems: &mut Problems<'_>,
) -> Option<Template> {
    let pairs = fields::object(node, what, problems)?;
    if pairs.len() > PAIRS_MAX {
        let message = format!("`{what}` has {} names, the limit is {PAIRS_MAX}", grouped(pairs.len()));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let mut is_good = true;
    for value in pairs.iter().map(|entry| &entry.value) {
        let items = match &value.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(value),
        };
        for item in items.iter().filter(|item| !is_plain(item)) {
            let expected = "a text, a number, true, false or a list of these";
            problems.push(fields::wrong_type(item, &format!("a value of `{what}`"), expected));
            is_good = false;
        }
    }
    let template = templates::template(node, scope, problems)?;
    is_good.then_some(template)
}

fn is_plain(node: &TreeNode) -> bool {
    matches!(node.value, Value::Text(_) | Value::Bool(_) | Value::Int(_) | Value::Real(_))
}
