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
    /// The step of the root group that it is, or is inside of.
    pub root: u32,
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
            let root = std::iter::successors(Some(step), |step| run.parent(*step)).last().unwrap_or(step);
            found.insert(UnrepeatableStep { key, is_irreversible: node.is_irreversible, root });
        }
    }
    // Of iterations that have left the state it is only known that they succeeded.
    let has_left = |of: u32| {
        let kept: BTreeSet<u32> = run.children(of).filter_map(|step| Some(run.iteration(step)?.1)).collect();
        let settled = run.step(of).iterations.iter().flat_map(|iterations| &iterations.settled);
        let mut ok = settled.filter(|(_, iteration)| iteration.status.outcome() == Some(Outcome::Ok));
        ok.any(|(index, _)| !kept.contains(index))
    };
    for (node, number) in plan.nodes().iter().zip(0u32..).filter(|(node, _)| is_marked(node)) {
        if plan.loops_around(number).into_iter().any(|of| run.steps_of(of).any(has_left)) {
            let mut path: Vec<u32> = std::iter::successors(Some(number), |number| plan.around(*number)).collect();
            path.reverse();
            let names: Vec<&str> = path.iter().map(|number| plan.node_at(*number).key.as_str()).collect();
            let key = names.join("/");
            found.insert(UnrepeatableStep { key, is_irreversible: node.is_irreversible, root: path[0] });
        }
    }
    found.into_iter().collect()
}
