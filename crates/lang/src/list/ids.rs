//! The ids of steps: those that the author chose, and path ids such as `step[0].then[1]` for all others (A5).

use crate::step::is_step_name;
use crate::tree::{Entry, TreeNode, Value};

/// The lists of steps inside of a step.
pub(crate) const BRANCHES: [&str; 3] = ["then", "else", "steps"];

/// The id of a step that has none: where it is.
pub(crate) fn path_id(list: &str, place: usize) -> String {
    format!("{list}[{place}]")
}

/// The id that the author gave a step.
pub(crate) fn id_of(step: &TreeNode) -> Option<&str> {
    let Value::Object(entries) = &step.value else { return None };
    match &entries.iter().find(|entry| entry.key == "id")?.value.value {
        Value::Text(id) => Some(id),
        _ => None,
    }
}

/// The names of what a definition writes to `outputs`: variables and ids.
pub(super) fn output_names(steps: &TreeNode) -> Vec<String> {
    let mut names = Vec::new();
    let mut lists = vec![(steps, "step".to_owned())];
    while let Some((list, path)) = lists.pop() {
        let Value::List(items) = &list.value else { continue };
        for (place, item) in items.iter().enumerate() {
            let own = path_id(&path, place);
            let id = id_of(item).filter(|id| is_step_name(id));
            names.push(id.map_or_else(|| own.clone(), str::to_owned));
            let Value::Object(entries) = &item.value else { continue };
            let is_variable = |entry: &&Entry| entry.name() == crate::step::OUTPUT_VARIABLE;
            if let Some(Value::Text(name)) = entries.iter().find(is_variable).map(|entry| &entry.value.value) {
                names.extend(Some(name).filter(|name| is_output_name(name)).cloned());
            }
            let inner = entries.iter().filter(|entry| BRANCHES.contains(&entry.key.as_str()));
            lists.extend(inner.map(|entry| (&entry.value, format!("{own}.{}", entry.key))));
        }
    }
    names
}

/// A name in `outputs` can begin the rest of a path.
pub(crate) fn is_output_name(name: &str) -> bool {
    name.len() <= 80
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
