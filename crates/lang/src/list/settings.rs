//! The fields of a definition that only step lists have: `variables`, `runtime` and `constraints`.

use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, quoted};
use crate::fields::{self, Fields, Shape};
use crate::tree::TreeNode;

pub(crate) const FIELDS: &[&str] = &["steps", "variables", "runtime", "constraints"];

/// The most steps that a run begins, unless the definition says otherwise (A24).
const STEPS: u32 = 50;
const STEPS_MAX: i64 = 100_000;
const VARIABLES_MAX: usize = 1_000;

#[derive(Default)]
pub(crate) struct ListSettings {
    /// JSON: the defaults of the variables.
    pub variables: String,
    pub max_steps: u32,
}

/// `None` after a problem.
pub(crate) fn settings(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<ListSettings> {
    let variables = fields.get("variables").map_or(Some(String::new()), |node| variables(node, problems));
    let max_steps = fields.get("runtime").map_or(Some(STEPS), |node| max_steps(node, problems));
    fields.get("constraints").map(|node| constraints(node, problems));
    if let Some(entry) = fields.entry("fail_when") {
        let message = "`fail_when` is for graphs: a list fails at the first failure that is not allowed";
        let draft = Draft::new(codes::UNSUPPORTED_SETTING, entry.key_span.clone(), message);
        problems.push(draft.hint("remove it, or give steps that may fail `allow_failure: true`"));
    }
    Some(ListSettings { variables: variables?, max_steps: max_steps? })
}

/// The defaults are values, and no templates: the trigger is what varies.
fn variables(node: &TreeNode, problems: &mut Problems<'_>) -> Option<String> {
    let own = fields::object(node, "variables", problems)?;
    if own.len() > VARIABLES_MAX {
        let message = format!("there are {} variables, the limit is {}", grouped(own.len()), grouped(VARIABLES_MAX));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    Some(node.to_json().to_string())
}

/// `runtime: {policy: {max_steps}}`.
fn max_steps(node: &TreeNode, problems: &mut Problems<'_>) -> Option<u32> {
    let runtime = fields::object(node, "runtime", problems)?;
    runtime
        .check(&Shape { known: &["policy"], later: &[], synonyms: &[("maxSteps", "policy: {maxSteps: …}")] }, problems);
    let Some(policy) = runtime.get("policy") else { return Some(STEPS) };
    let policy = fields::object(policy, "policy", problems)?;
    policy.check(&Shape::only(&["max_steps"]), problems);
    let most = policy.get("max_steps").map(|node| fields::whole(node, "max_steps", 1..=STEPS_MAX, problems));
    Some(most.unwrap_or(Some(i64::from(STEPS)))? as u32)
}

/// What proposals for this workflow may change. Nothing else reads it.
fn constraints(node: &TreeNode, problems: &mut Problems<'_>) -> Option<()> {
    let own = fields::object(node, "constraints", problems)?;
    own.check(&Shape::only(&["allow_self_modification"]), problems);
    own.get("allow_self_modification").map(|node| fields::boolean(node, "allow_self_modification", problems));
    Some(())
}

/// What is wrong with the name of an output, reported where it stands.
pub(super) fn check_output_name(node: &TreeNode, problems: &mut Problems<'_>) -> bool {
    let Some(name) = fields::text(node, "output_variable", problems) else { return false };
    if super::is_output_name(name) {
        return true;
    }
    let message = format!("{} cannot be read as `outputs.…`", quoted(name));
    let draft = Draft::new(codes::INVALID_VALUE, node.span.clone(), message);
    problems.push(draft.hint("a name begins with a letter or `_` and has up to 80 letters, digits, `_` and `-`"));
    false
}
