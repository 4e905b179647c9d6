//! A definition that a later release lowers differently: runs keep the plan they began with (M7).

use super::sample::{ORG, ended, open, start};
use super::{assert_clean, verify_store};
use crate::support::Place;
use engine::{Engine, WorkflowChange};
use kernel::plan::Verdict;
use kernel::{Plan, RunStatus, WorkflowId};
use lang::Compiled;
use serde_json::json;
use store::{NewWorkflow, StoredDefinition, WorkflowKey};
use tokio::runtime::Runtime;

/// `b` fails, and no step handles that.
fn compiled(name: &str) -> Compiled {
    let broken = json!({ "needs": ["a"], "set": { "x": "{{trigger.body.missing}}" } });
    let definition = json!({ "name": name, "tasks": { "a": { "noop": {} }, "b": broken } });
    lang::compile(&lang::read(definition.to_string().as_bytes(), lang::Syntax::Json).unwrap()).unwrap()
}

/// Stores the workflow as the first releases lowered it: this failure did not fail the run.
async fn create_as_before(engine: &Engine, compiled: &Compiled) {
    engine.workflows.create(ORG, compiled, None).await.unwrap();
    let row = engine.workflows.get(ORG, &compiled.meta.name).await.unwrap().unwrap();
    engine.workflows.edit(ORG, &compiled.meta.name, &WorkflowChange::Delete, None).await.unwrap();
    let mut layout = compiled.plan.layout().clone();
    layout.groups[0].verdict = Verdict::DirectBlocked;
    let (source, plan) = (compiled.source.to_string().into(), Plan::new(layout).unwrap().encode().into());
    let definition = StoredDefinition { hash: row.hash, lowering: 0, source, plan };
    let row = store::WorkflowRow { id: WorkflowId([9; 16]), lowering: 0, ..row };
    let new = NewWorkflow { row, definition, slug_is_given: true, idempotency: None, trigger: None };
    engine.store().create_workflow(&new).await.unwrap().unwrap();
}

/// When it returns, no thread has the database open.
fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = Runtime::new().unwrap();
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    result
}

#[test]
fn m7_runs_keep_their_lowering_and_an_unchanged_definition_pins_todays() {
    let place = Place::new();
    let (first, after) = in_runtime(async {
        let engine = open(&place).await;
        create_as_before(&engine, &compiled("old")).await;
        let first = start(&engine, ORG, "old", &json!({})).await;
        ended(&engine, ORG, first, RunStatus::Completed).await;

        // The same text under another name is a new workflow, with the lowering of this release.
        engine.workflows.create(ORG, &compiled("new"), None).await.unwrap();
        let other = start(&engine, ORG, "new", &json!({})).await;
        ended(&engine, ORG, other, RunStatus::Failed).await;
        let still = start(&engine, ORG, "old", &json!({})).await;
        ended(&engine, ORG, still, RunStatus::Completed).await;

        let edited = engine.workflows.edit(ORG, "old", &WorkflowChange::Replace(&compiled("old")), None).await.unwrap();
        assert_eq!((edited.version, edited.lowering), (1, lang::LOWERING), "no new version");
        let stored = engine.store().workflow(ORG, &WorkflowKey::Id(edited.id)).await.unwrap();
        assert_eq!(stored, Some(edited));
        let after = start(&engine, ORG, "old", &json!({})).await;
        ended(&engine, ORG, after, RunStatus::Failed).await;
        engine.stop().await;
        (first, after)
    });
    // A restart reads each run with its own plan.
    in_runtime(async {
        let engine = open(&place).await;
        for (run, lowering, status) in [(first, 0, RunStatus::Completed), (after, lang::LOWERING, RunStatus::Failed)] {
            let reading = engine.runs.read(ORG, run).await.unwrap().unwrap();
            assert_eq!((reading.version.lowering, reading.row.status), (lowering, status));
            assert_eq!(reading.unhandled_steps(), ["b"]);
        }
        engine.stop().await;
    });
    assert_clean(&verify_store(&place));
}
