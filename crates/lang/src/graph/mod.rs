//! The graph form: `tasks: {name: {needs, if, url | sleep | …}}`.
//!
//! Three passes, because a step may mention any other: first every step's name and kind, then who needs
//! whom ([`needs`]), then what each step says, with paths that may only reach its ancestors ([`paths`]).
//! Declaration order is kept for display and means nothing else.

mod needs;
mod paths;

use crate::codes;
use crate::diagnostic::{Problems, grouped};
use crate::fields;
use crate::step::{Lowered, Step};
use crate::tree::Node;
use kernel::plan::{self, Join, Link, NODES_MAX, Outcomes};
use needs::Graph;
use paths::Paths;
pub(crate) use paths::trigger_path;

/// Checks the steps of a graph and lowers them to the nodes of one group. What comes back is only worth
/// something when no problem was reported.
pub(crate) fn lower(tasks: &Node, problems: &mut Problems<'_>) -> Vec<plan::Node> {
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
    let steps: Vec<Step<'_>> = fields.iter().map(|entry| Step::new(entry, problems)).collect();
    let graph = Graph::read(&steps, problems);
    let paths = Paths::new(&steps, &graph);
    let nodes = steps.iter().enumerate().map(|(index, step)| {
        let lowered = step.lower(&mut |raw| paths.resolve(index, raw), problems);
        node(step, graph.needs(index), lowered)
    });
    nodes.collect()
}

fn node(step: &Step<'_>, needs: &[u32], lowered: Lowered) -> plan::Node {
    let Lowered { guard, body, retry } = lowered;
    // R18–R20: without a condition every need must have succeeded; with one, it decides alone.
    let on = if guard.is_some() { Outcomes::ANY } else { Outcomes::OK };
    let links = needs.iter().map(|from| Link { from: *from, on, ..Default::default() }).collect();
    plan::Node { key: step.name.to_owned(), group: 0, links, join: Join::All, guard, body, retry, ..Default::default() }
}

#[cfg(test)]
mod tests;
