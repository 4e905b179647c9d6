//! A plan as nodes and edges, with or without the state of a run.

use api::{GraphEdgeView, GraphNodeView, GraphView};
use engine::Version;
use engine::services::Reading;
use kernel::plan::Outcomes;
use kernel::run::Step;

pub fn of_version(version: &Version) -> GraphView {
    graph(version, |_| None)
}

pub fn of_run(reading: &Reading) -> GraphView {
    let graph = graph(&reading.version, |step| Some(reading.run.step(step)));
    let status = Some(reading.run.status().as_str().into());
    GraphView { run_id: Some(reading.row.id.to_string()), status, ..graph }
}

fn graph<'a>(version: &Version, state: impl Fn(u32) -> Option<&'a Step>) -> GraphView {
    let plan = &version.plan;
    let key = |step: u32| plan.node(step).key.clone();
    let mut edges = Vec::new();
    let nodes = version.order.iter().enumerate().map(|(position, step)| {
        let node = plan.node(*step);
        edges.extend(node.links.iter().map(|link| GraphEdgeView {
            from: key(link.from),
            to: node.key.clone(),
            on: if link.on == Outcomes::OK { "ok" } else { "any" }.into(),
        }));
        let state = state(*step);
        GraphNodeView {
            step: node.key.clone(),
            kind: node.body.as_ref().map_or("unknown", |body| body.kind()).into(),
            status: state.map(|step| step.status().as_str().into()),
            attempt: state.map(|step| step.attempt),
            needs: node.links.iter().map(|link| key(link.from)).collect(),
            condition: node.guard.as_ref().map(|guard| guard.text.clone()),
            position,
        }
    });
    let nodes = nodes.collect();
    GraphView { run_id: None, status: None, nodes, edges }
}
