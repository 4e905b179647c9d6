//! The graph form: `tasks: {name: {needs, if, url | sleep | …}}`.
//!
//! There are three passes, because a step may mention any other step: first the name and kind of every step, also of
//! those inside of groups and loops ([`scopes`]), then the dependencies ([`needs`]), then the contents of each step,
//! whose paths may only read what is certain to exist ([`paths`]). The order of the steps in the document is kept for
//! display and has no other meaning.

mod needs;
mod paths;
mod scopes;
mod warnings;

use crate::diagnostic::Problems;
use crate::step::group::ReadFrom;
use crate::step::{self, Lowered, ParsedStep};
use crate::tree::TreeNode;
use kernel::path::RawPath;
use kernel::plan::{self, Group, Join, Link, Outcomes, Verdict};
use kernel::run::UNDO_NAME;
use kernel::template::Template;
use needs::Needs;
use paths::Paths;
pub(crate) use paths::trigger_path;
use scopes::Scopes;

/// What a graph lowers to: the nodes of the root group come first.
pub(crate) struct LoweredGraph {
    pub nodes: Vec<plan::Node>,
    pub groups: Vec<Group>,
    pub output: Option<Template>,
}

/// Checks the steps of a graph and the `output` of its workflow, and lowers them. The result is only valid when no
/// problem was reported.
pub(crate) fn lower(
    tasks: &TreeNode,
    output: Option<&TreeNode>,
    verdict: Verdict,
    problems: &mut Problems<'_>,
) -> Option<LoweredGraph> {
    let scopes = Scopes::read(tasks, problems)?;
    let paths = Paths::new(&scopes);
    let mut nodes = Vec::with_capacity(scopes.count());
    // What undoes a step is a node behind those of all groups.
    let mut undos = Vec::new();
    for (number, scope) in scopes.all.iter().enumerate() {
        for (index, step) in scope.steps.iter().enumerate() {
            let resolve = |from: ReadFrom, raw: &RawPath<'_>| paths.resolve((number, index), from, raw);
            let mut lowered = step.lower(&resolve, scope.groups[index], problems);
            undos.extend(lowered.undo.body.take().map(|undo| (nodes.len(), undo)));
            let node = node(step, scope.graph.needs(index), scope.first, lowered);
            nodes.push(plan::Node { group: number as u32, ..node });
        }
    }
    for (step, (body, retry)) in undos {
        nodes[step].undo = Some(nodes.len() as u32);
        let (key, group, body) = (UNDO_NAME.to_owned(), nodes[step].group, Some(body));
        nodes.push(plan::Node { key, group, body, retry, ..Default::default() });
    }
    let output = output.and_then(|node| step::template(node, &mut |raw| paths.resolve_at_end(raw), problems));
    let steps: Vec<&ParsedStep<'_>> = scopes.all.iter().flat_map(|scope| &scope.steps).collect();
    warnings::check(&steps, &nodes, problems);
    let group = |scope: &scopes::StepScope<'_>| Group {
        nodes: (scope.first..scope.first + scope.steps.len() as u32).collect(),
        verdict,
        ..Default::default()
    };
    let groups = scopes.all.iter().map(group).collect();
    Some(LoweredGraph { nodes, groups, output })
}

fn node(step: &ParsedStep<'_>, needs: &Needs, first: u32, lowered: Lowered) -> plan::Node {
    let Lowered { guard, body, retry, allow_failure, undo } = lowered;
    let (is_irreversible, is_not_compensatable) = (undo.is_irreversible, undo.is_not_compensatable);
    let undo_if_unknown = undo.if_unknown;
    // R18–R20: without a condition, every need must have succeeded; with a condition, the condition alone decides. A
    // first-join waits for a success in any case.
    let on = if guard.is_some() && !needs.is_any { Outcomes::ANY } else { Outcomes::OK };
    let links = needs.of.iter().map(|from| Link { from: first + from, on, ..Default::default() }).collect();
    let join = if needs.is_any { Join::Any } else { Join::All };
    let key = step.name.to_owned();
    plan::Node {
        key,
        links,
        join,
        guard,
        body,
        retry,
        allow_failure,
        is_irreversible,
        is_not_compensatable,
        undo_if_unknown,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
