//! A plan as nodes and edges, with or without the state of a run.

use api::{GraphEdgeView, GraphNodeView, GraphView};
use engine::Version;
use engine::services::Reading;
use kernel::StepStatus;
use kernel::plan::Outcomes;
use kernel::run::Step;
use std::collections::BTreeMap;

pub fn of_version(version: &Version) -> GraphView {
    graph(version)
}

pub fn of_run(reading: &Reading) -> GraphView {
    let mut graph = graph(&reading.version);
    for (node, view) in in_order(&reading.version).zip(&mut graph.nodes) {
        let steps: Vec<&Step> = reading.run.steps_of(node).map(|step| reading.run.step(step)).collect();
        if reading.version.plan.loops_around(node).is_empty()
            && let [only] = steps.as_slice()
        {
            (view.status, view.attempt) = (Some(only.status().as_str().into()), Some(only.attempt));
        }
        view.counts = counts(reading, node, &steps);
    }
    let status = Some(reading.run.status().as_str().into());
    GraphView { run_id: Some(reading.row.id.to_string()), status, ..graph }
}

/// The nodes in the order of the definition; those inside of another one after those of the root group.
fn in_order(version: &Version) -> impl Iterator<Item = u32> + '_ {
    let (root, all) = (version.plan.root().len() as u32, version.plan.nodes().len() as u32);
    version.order.iter().copied().chain(root..all)
}

/// How many iterations a loop has, and how many steps there are now of a node inside of a loop, by status.
fn counts(reading: &Reading, node: u32, steps: &[&Step]) -> Option<BTreeMap<String, u32>> {
    let plan = &reading.version.plan;
    let is_loop = plan.node_at(node).repeat().is_some();
    if !is_loop && plan.loops_around(node).is_empty() {
        return None;
    }
    let mut counts = BTreeMap::new();
    let mut count = |status: StepStatus| *counts.entry(status.as_str().to_owned()).or_insert(0) += 1;
    match is_loop {
        true => {
            let iterations = steps.iter().filter_map(|step| step.iterations.as_deref());
            for iterations in iterations {
                iterations.settled.values().for_each(|iteration| count(iteration.status));
                (iterations.settled.len() as u32..iterations.opened).for_each(|_| count(StepStatus::Running));
            }
        }
        false => steps.iter().for_each(|step| count(step.status())),
    }
    Some(counts)
}

fn graph(version: &Version) -> GraphView {
    let plan = &version.plan;
    let key = |node: u32| plan.node_at(node).key.clone();
    let mut edges = Vec::new();
    let nodes = in_order(version).enumerate().map(|(position, number)| {
        let node = plan.node_at(number);
        edges.extend(node.links.iter().map(|link| GraphEdgeView {
            from: key(link.from),
            to: node.key.clone(),
            on: if link.on == Outcomes::OK { "ok" } else { "any" }.into(),
        }));
        GraphNodeView {
            step: node.key.clone(),
            kind: node.body.as_ref().map_or("unknown", |body| body.kind()).into(),
            parent: plan.around(number).map(key),
            status: None,
            attempt: None,
            counts: None,
            needs: node.links.iter().map(|link| key(link.from)).collect(),
            condition: node.guard.as_ref().map(|guard| guard.text.clone()),
            position,
        }
    });
    let nodes = nodes.collect();
    GraphView { run_id: None, status: None, nodes, edges }
}
