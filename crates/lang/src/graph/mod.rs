//! The graph form: `tasks: {name: {needs, if, url | sleep | …}}`. A step list is rewritten as a graph whose dependencies
//! follow from its order (see [`list`](crate::list)), and has outputs ([`outputs`]); all else is the same for both.
//!
//! There are three passes, because a step may mention any other step: first the name and kind of every step, also of
//! those inside of groups and loops ([`scopes`]), then the dependencies ([`needs`]), then the contents of each step,
//! whose paths may only read what is certain to exist ([`paths`]). The order of the steps in the document is kept for
//! display and has no other meaning.

mod needs;
mod outputs;
mod paths;
mod scopes;
mod warnings;

use crate::diagnostic::Problems;
use crate::step::group::{ReadFrom, StepOrder};
use crate::step::{self, Lowered, ParsedStep};
use crate::tree::TreeNode;
use kernel::path::{RawPath, Ref, Root};
use kernel::plan::{self, Form, Group, Join, Link, Outcomes, OutputName, Verdict};
use kernel::run::UNDO_NAME;
use kernel::template::Template;
use needs::Needs;
use outputs::Outputs;
use paths::Paths;
pub(crate) use paths::trigger_path;
use scopes::Scopes;

/// What a graph lowers to: the nodes of the root group come first.
pub(crate) struct LoweredGraph {
    pub nodes: Vec<plan::Node>,
    pub groups: Vec<Group>,
    pub output: Option<Template>,
    /// Of a step list: what its steps write.
    pub outputs: Vec<OutputName>,
}

/// Checks the steps of a graph and the `output` of its workflow, and lowers them. The result is only valid when no
/// problem was reported.
pub(crate) fn lower(
    tasks: &TreeNode,
    output: Option<&TreeNode>,
    verdict: Verdict,
    form: Form,
    problems: &mut Problems<'_>,
) -> Option<LoweredGraph> {
    let scopes = Scopes::read(tasks, form, problems)?;
    let outputs = (form == Form::Steps).then(|| Outputs::read(&scopes, problems));
    let paths = Paths::new(&scopes, outputs.as_ref());
    let mut nodes = Vec::with_capacity(scopes.count());
    // What undoes a step is a node behind those of all groups.
    let mut undos = Vec::new();
    for (number, scope) in scopes.all.iter().enumerate() {
        for (index, step) in scope.steps.iter().enumerate() {
            let resolve = |from: ReadFrom, raw: &RawPath<'_>| paths.resolve((number, index), from, raw);
            let mut lowered = step.lower(&resolve, scope.groups[index], problems);
            undos.extend(lowered.undo.body.take().map(|undo| (nodes.len(), undo)));
            let node = node(step, scope.graph.needs(index), scope.first, lowered);
            let links = match scope.order {
                Some(order) => links_in_order(order, index, &node.links, &nodes),
                None => node.links,
            };
            nodes.push(plan::Node { group: number as u32, links, ..node });
        }
    }
    for (step, (body, retry)) in undos {
        nodes[step].undo = Some(nodes.len() as u32);
        let (key, group, body) = (UNDO_NAME.to_owned(), nodes[step].group, Some(body));
        nodes.push(plan::Node { key, group, body, retry, ..Default::default() });
    }
    let output = match output {
        Some(node) => step::template(node, &mut |raw| paths.resolve_at_end(raw), problems),
        None => outputs.as_ref().filter(|outputs| outputs.has_variables()).map(|_| all_outputs()),
    };
    if let Some(outputs) = &outputs {
        let steps = scopes.all.iter().flat_map(|scope| &scope.steps);
        for (step, node) in steps.zip(&mut nodes) {
            node.writes = outputs.written_by(step);
        }
    }
    let steps: Vec<&ParsedStep<'_>> = scopes.all.iter().flat_map(|scope| &scope.steps).collect();
    warnings::check(&steps, &nodes, form, problems);
    let group = |scope: &scopes::StepScope<'_>| Group {
        nodes: (scope.first..scope.first + scope.steps.len() as u32).collect(),
        verdict,
        ..Default::default()
    };
    let groups = scopes.all.iter().map(group).collect();
    drop(steps);
    let outputs = outputs.map(Outputs::into_names).unwrap_or_default();
    Some(LoweredGraph { nodes, groups, output, outputs })
}

/// The output of a run of a step list, unless its definition says otherwise.
fn all_outputs() -> Template {
    let path = Ref { root: Root::Outputs, text: "outputs".to_owned(), ..Default::default() };
    Template::Value { path }
}

/// The links of a step of a list. Its predecessor must have succeeded, or may fail; the first step of the other branch of
/// a `conditional` comes instead of a step that is skipped.
fn links_in_order(order: StepOrder, place: usize, needs: &[Link], nodes: &[plan::Node]) -> Vec<Link> {
    let on = |from: u32| match order {
        StepOrder::Branches(then) if place == then => Outcomes::SKIPPED,
        _ if nodes[from as usize].allow_failure => Outcomes::ENDED,
        _ => Outcomes::OK,
    };
    needs.iter().map(|link| Link { from: link.from, on: on(link.from), ..Default::default() }).collect()
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
