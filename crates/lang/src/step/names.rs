//! A list of names that the author writes out, such as the approvers of a step.

use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, is_hostile, quoted};
use crate::fields;
use crate::tree::TreeNode;

const NAMES_MAX: usize = 100;

/// One to [`NAMES_MAX`] different names. `None` after a problem.
pub(super) fn read(node: &TreeNode, what: &str, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let items = fields::list(node, what, problems)?;
    if items.is_empty() || items.len() > NAMES_MAX {
        let message = format!("`{what}` has {} entries, allowed is 1 to {NAMES_MAX}", grouped(items.len()));
        problems.add(codes::OUT_OF_RANGE, &node.span, message);
        return None;
    }
    let mut names: Vec<String> = Vec::with_capacity(items.len());
    let mut is_good = true;
    for item in items {
        let name = fields::text(item, what, problems);
        let (message, hint) = match name {
            None => {
                is_good = false;
                continue;
            }
            Some(name) if name.contains("{{") => {
                (format!("`{what}` may not contain a template"), "write the names out: data cannot extend the list")
            }
            Some(name) if name.trim().is_empty() => (format!("`{what}` has an empty name"), "remove it"),
            Some(name) if name.trim() != name || name.contains(is_hostile) => {
                let message = format!("{} has characters that cannot be seen", quoted(name));
                (message, "a name has no space around it, and visible characters only")
            }
            Some(name) if names.iter().any(|other| other == name) => {
                (format!("`{what}` has {} twice", quoted(name)), "remove one of them")
            }
            Some(name) => {
                names.push(name.to_owned());
                continue;
            }
        };
        problems.push(Draft::new(codes::INVALID_VALUE, item.span.clone(), message).hint(hint));
        is_good = false;
    }
    is_good.then_some(names)
}
