//! Which steps of a run did something that must not happen again (M27): a replay would repeat it.

use crate::plan::{Node, Plan};
use crate::run::Run;
use crate::status::Outcome;
use std::collections::BTreeSet;

/// A step that did something, or may have, that can be neither undone nor repeated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnrepeatableStep {
    /// Its key. A step whose iterations have left the state is named once, without their numbers: `each/pay`.
    pub key: String,
    pub is_irreversible: bool,
}

/// The steps that are marked `irreversible` or not compensatable, and succeeded or may have.
pub fn unrepeatable_steps(plan: &Plan, run: &Run) -> Vec<UnrepeatableStep> {
    let is_marked = |node: &Node| node.is_irreversible || node.is_not_compensatable;
    if !plan.nodes().iter().any(is_marked) {
        return Vec::new();
    }
    let mut found = BTreeSet::new();
    for (step, state) in run.steps() {
        let node = run.node(plan, step);
        let is_unknown = state.failure.as_ref().is_some_and(|failure| failure.is_unknown_outcome());
        if is_marked(node) && run.iteration(step).is_none() && (state.outcome() == Some(Outcome::Ok) || is_unknown) {
            let key = run.key(plan, step).into_owned();
            found.insert(UnrepeatableStep { key, is_irreversible: node.is_irreversible });
        }
    }
    // Of iterations that have left the state it is only known that they succeeded.
    for number in 0..plan.nodes().len() as u32 {
        let (node, Some(of)) = (plan.node_at(number), plan.loops_around(number).last().copied()) else { continue };
        let has_succeeded = |of: u32| {
            let iterations = run.step(of).iterations.iter().flat_map(|iterations| iterations.settled.values());
            iterations.filter(|iteration| iteration.status.outcome() == Some(Outcome::Ok)).count() > 0
        };
        if is_marked(node) && run.steps_of(number).next().is_none() && run.steps_of(of).any(has_succeeded) {
            let key = std::iter::successors(Some(number), |number| plan.around(*number));
            let mut names: Vec<&str> = key.map(|number| plan.node_at(number).key.as_str()).collect();
            names.reverse();
            found.insert(UnrepeatableStep { key: names.join("/"), is_irreversible: node.is_irreversible });
        }
    }
    found.into_iter().collect()
}
