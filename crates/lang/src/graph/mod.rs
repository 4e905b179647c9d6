//! The graph form: `tasks: {name: {needs, if, url | sleep | …}}`.
//!
//! There are three passes, because a step may mention any other step: first the name and kind of every step, then the
//! dependencies ([`needs`]), then the contents of each step, whose paths may only read its ancestors ([`paths`]).
//! The order of the steps in the document is kept for display and has no other meaning.

mod needs;
mod paths;
mod warnings;

use crate::codes;
use crate::diagnostic::{Problems, grouped};
use crate::fields;
use crate::step::{Lowered, ParsedStep};
use crate::tree::TreeNode;
use kernel::plan::{self, Join, Link, NODES_MAX, Outcomes};
use needs::Graph;
use paths::Paths;
pub(crate) use paths::trigger_path;

/// Checks the steps of a graph and lowers them to the nodes of one group. The result is only valid when no problem was
/// reported.
pub(crate) fn lower(tasks: &TreeNode, problems: &mut Problems<'_>) -> Vec<plan::Node> {
    let Some(fields) = fields::object(tasks, "tasks", problems) else { return Vec::new() };
    if fields.len() == 0 {
        problems.add(codes::OUT_OF_RANGE, &tasks.span, "`tasks` needs at least one step");
    }
    if fields.len() > NODES_MAX {
        let (count, limit) = (grouped(fields.len()), grouped(NODES_MAX));
        let message = format!("this workflow has {count} steps, the limit is {limit}");
        problems.add(codes::LIMIT_EXCEEDED, &tasks.span, message);
        return Vec::new();
    }
    let steps: Vec<ParsedStep<'_>> = fields.iter().map(|entry| ParsedStep::new(entry, problems)).collect();
    let graph = Graph::read(&steps, problems);
    let paths = Paths::new(&steps, &graph);
    let nodes = steps.iter().enumerate().map(|(index, step)| {
        let lowered = step.lower(&mut |raw| paths.resolve(index, raw), problems);
        node(step, graph.needs(index), lowered)
    });
    let nodes: Vec<plan::Node> = nodes.collect();
    warnings::check(&steps, &nodes, problems);
    nodes
}

fn node(step: &ParsedStep<'_>, needs: &[u32], lowered: Lowered) -> plan::Node {
    let Lowered { guard, body, retry, allow_failure } = lowered;
    // R18–R20: without a condition, every need must have succeeded; with a condition, the condition alone decides.
    let on = if guard.is_some() { Outcomes::ANY } else { Outcomes::OK };
    let links = needs.iter().map(|from| Link { from: *from, on, ..Default::default() }).collect();
    let key = step.name.to_owned();
    plan::Node { key, links, join: Join::All, guard, body, retry, allow_failure, ..Default::default() }
}

#[cfg(test)]
mod tests;
