//! Rules about triggers that every store follows, one sentence per case.

use super::Case;
use super::fixtures::*;
use bytes::Bytes;
use kernel::{OrgId, Timestamp};
use std::sync::Arc;
use store::DeliveryOutcome::{Queued, Rejected, Skipped, Started};
use store::WriteVerdict::Committed;
use store::{
    Changed, DELIVERIES_KEPT, DeliveryRow, IdempotencyKey, NameTaken, NewTrigger, NewWorkflow, REQUESTS_KEPT,
    RunInsert, RunWrite, ScheduleAdvance, Store, TriggerChange, TriggerFilter, TriggerLog, TriggerRow, TriggerTaken,
    WorkflowFilter,
};

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: |store| Box::pin($name(store)) }),*];
    };
}

cases![
    a_trigger_reads_back_as_it_was_written,
    a_path_belongs_to_one_trigger,
    an_idempotency_key_makes_one_trigger,
    a_trigger_change_needs_the_current_revision,
    triggers_are_listed_and_found_when_due,
    a_delivery_log_is_numbered_and_drops_the_oldest,
    a_delivery_log_advances_only_its_own_schedule,
    a_run_and_its_delivery_are_written_together,
    queued_deliveries_keep_their_order,
    deleting_a_trigger_deletes_its_log,
    a_workflow_and_its_own_trigger_are_created_together,
];

async fn create(store: &Arc<dyn Store>, row: TriggerRow) -> Result<(), TriggerTaken> {
    store.create_trigger(&NewTrigger { row, idempotency: None }).await.expect("the store answers")
}

/// Creates workflows 1 and 2.
async fn create_two_workflows(store: &Arc<dyn Store>) {
    for (n, name) in [(1, "one"), (2, "two")] {
        store.create_workflow(&new_workflow(n, name, name)).await.unwrap().unwrap();
    }
}

async fn log(store: &Arc<dyn Store>, rows: Vec<DeliveryRow>, advance: Option<ScheduleAdvance>) -> bool {
    store.log_deliveries(&TriggerLog { org: ORG, trigger: trigger_id(1), rows, advance }).await.unwrap()
}

async fn delivery_ids(store: &Arc<dyn Store>, before: Option<u64>, limit: usize) -> Vec<(u64, String)> {
    let rows = store.deliveries(ORG, trigger_id(1), before, limit).await.unwrap();
    rows.into_iter().map(|row| (row.seq, row.id)).collect()
}

async fn a_trigger_reads_back_as_it_was_written(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    let full = TriggerRow {
        note: Some("it's \u{0} noted".into()),
        enabled: false,
        is_owned: true,
        last_run: Some(run(9)),
        last_run_at: Some(at(-9)),
        ..hook(1, 1, "a/b")
    };
    assert_eq!(create(&store, full.clone()).await, Ok(()));
    assert_eq!(create(&store, trigger(2, 1)).await, Ok(()));
    assert_eq!(store.trigger(ORG, trigger_id(1)).await, Ok(Some(full.clone())));
    assert_eq!(store.trigger_at("a/b").await, Ok(Some(full.clone())));
    assert_eq!(store.owned_trigger(ORG, workflow_id(1)).await, Ok(Some(full)));
    assert_eq!(store.trigger(ORG, trigger_id(2)).await, Ok(Some(trigger(2, 1))));
    assert_eq!(store.trigger(OTHER_ORG, trigger_id(1)).await, Ok(None));
    assert_eq!(store.trigger_at("a").await, Ok(None));
    assert_eq!(create(&store, trigger(3, 7)).await, Err(TriggerTaken::Workflow));
    let foreign = TriggerRow { org: OTHER_ORG, ..trigger(3, 1) };
    assert_eq!(create(&store, foreign).await, Err(TriggerTaken::Workflow));
}

async fn a_path_belongs_to_one_trigger(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    let mut other = new_workflow(3, "three", "three");
    other.row.org = OTHER_ORG;
    store.create_workflow(&other).await.unwrap().unwrap();
    assert_eq!(create(&store, hook(1, 1, "p")).await, Ok(()));
    assert_eq!(create(&store, hook(2, 1, "p")).await, Err(TriggerTaken::Path));
    let foreign = TriggerRow { org: OTHER_ORG, ..hook(2, 3, "p") };
    assert_eq!(create(&store, foreign).await, Err(TriggerTaken::Path), "also across organisations");
    assert_eq!(create(&store, hook(2, 1, "q")).await, Ok(()));
    let moved = TriggerRow { revision: 2, ..hook(2, 1, "p") };
    assert_eq!(store.change_trigger(&TriggerChange { row: moved, restarts: false }).await, Ok(Changed::PathTaken));
    let same = TriggerRow { revision: 2, ..hook(2, 1, "q") };
    assert_eq!(store.change_trigger(&TriggerChange { row: same, restarts: false }).await, Ok(Changed::Done));
}

async fn an_idempotency_key_makes_one_trigger(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    let key = |f: u8| Some(IdempotencyKey { scope: "triggers".into(), ..key("k", f) });
    let new = |n, f| NewTrigger { row: trigger(n, 1), idempotency: key(f) };
    assert_eq!(store.create_trigger(&new(1, 5)).await, Ok(Ok(())));
    let taken = TriggerTaken::Key { trigger: trigger_id(1), fingerprint: [5; 32] };
    assert_eq!(store.create_trigger(&new(2, 6)).await, Ok(Err(taken)));
    assert_eq!(store.trigger(ORG, trigger_id(2)).await, Ok(None));
}

async fn a_trigger_change_needs_the_current_revision(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    create(&store, trigger(1, 1)).await.unwrap();
    let change = |row: TriggerRow, restarts| TriggerChange { row, restarts };
    let renamed = TriggerRow {
        name: "new".into(),
        workflow: workflow_id(2),
        enabled: false,
        note: Some("n".into()),
        config: "{}".into(),
        revision: 2,
        updated_at: at(70),
        cursor: None,
        next_at: None,
        ..trigger(1, 1)
    };
    assert_eq!(store.change_trigger(&change(renamed.clone(), false)).await, Ok(Changed::Done));
    let kept = TriggerRow { cursor: Some(at(60)), next_at: Some(at(120)), ..renamed.clone() };
    assert_eq!(store.trigger(ORG, trigger_id(1)).await, Ok(Some(kept)), "the schedule's position stays");
    assert_eq!(store.change_trigger(&change(renamed.clone(), true)).await, Ok(Changed::Stale));
    let restarted = TriggerRow { revision: 3, ..renamed };
    assert_eq!(store.change_trigger(&change(restarted.clone(), true)).await, Ok(Changed::Done));
    assert_eq!(store.trigger(ORG, trigger_id(1)).await, Ok(Some(restarted.clone())));
    let lost = TriggerRow { workflow: workflow_id(9), revision: 4, ..restarted };
    assert_eq!(store.change_trigger(&change(lost, true)).await, Ok(Changed::NoWorkflow));
    let missing = TriggerRow { revision: 2, ..trigger(7, 1) };
    assert_eq!(store.change_trigger(&change(missing, true)).await, Ok(Changed::Stale));
}

async fn triggers_are_listed_and_found_when_due(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    assert_eq!(store.next_trigger().await, Ok(None));
    let due = |n, workflow, next: Option<i64>| TriggerRow { next_at: next.map(at), ..trigger(n, workflow) };
    for row in [due(1, 1, Some(300)), due(2, 2, Some(100)), due(3, 1, None), hook(4, 1, "p")] {
        create(&store, row).await.unwrap();
    }
    let listed = |filter: TriggerFilter| {
        let store = store.clone();
        async move { store.triggers(ORG, &filter).await.unwrap().iter().map(|t| t.id).collect::<Vec<_>>() }
    };
    let all = TriggerFilter { limit: 10, ..Default::default() };
    assert_eq!(listed(all.clone()).await, [4, 3, 2, 1].map(trigger_id));
    assert_eq!(listed(TriggerFilter { limit: 2, ..all.clone() }).await, [4, 3].map(trigger_id));
    assert_eq!(listed(TriggerFilter { before: Some(trigger_id(3)), ..all.clone() }).await, [2, 1].map(trigger_id));
    assert_eq!(listed(TriggerFilter { workflow: Some(workflow_id(2)), ..all.clone() }).await, [trigger_id(2)]);
    let hooks = TriggerFilter { kind: Some(kernel::event::TriggerKind::Webhook), ..all.clone() };
    assert_eq!(listed(hooks).await, [trigger_id(4)]);
    assert_eq!(store.triggers(OrgId(2), &all).await, Ok(vec![]));
    let due = |until, limit| {
        let store = store.clone();
        async move { store.due_triggers(until, limit).await.unwrap().iter().map(|t| t.id).collect::<Vec<_>>() }
    };
    assert_eq!(due(at(99), 10).await, []);
    assert_eq!(due(at(100), 10).await, [trigger_id(2)]);
    assert_eq!(due(Timestamp::NEVER, 10).await, [2, 1].map(trigger_id));
    assert_eq!(due(Timestamp::NEVER, 1).await, [trigger_id(2)]);
    assert_eq!(store.next_trigger().await, Ok(Some(at(100))));
}

async fn a_delivery_log_is_numbered_and_drops_the_oldest(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    create(&store, hook(1, 1, "p")).await.unwrap();
    let body = Bytes::from_static(b"request");
    let line = |n: u64| DeliveryRow {
        request: Some(body.clone()),
        ..delivery(1, &format!("d{n}"), if n == 3 { Queued } else { Rejected })
    };
    assert!(log(&store, (1..=4).map(line).collect(), None).await);
    assert_eq!(delivery_ids(&store, None, 2).await, [(4, "d4".into()), (3, "d3".into())]);
    assert_eq!(delivery_ids(&store, Some(3), 10).await, [(2, "d2".into()), (1, "d1".into())]);
    let found = store.delivery(ORG, trigger_id(1), "d2").await.unwrap().unwrap();
    assert_eq!(found, DeliveryRow { seq: 2, ..line(2) });
    assert!(store.deliveries(ORG, trigger_id(1), None, 9).await.unwrap().iter().all(|row| row.request.is_none()));
    assert_eq!(store.delivery(ORG, trigger_id(1), "d9").await, Ok(None));
    assert_eq!(store.delivery(OTHER_ORG, trigger_id(1), "d2").await, Ok(None));
    // A delivery that is logged again keeps its number and its request.
    let again = DeliveryRow { outcome: Skipped, request: None, reason: "late".into(), ..line(2) };
    assert!(log(&store, vec![again.clone()], None).await);
    let found = store.delivery(ORG, trigger_id(1), "d2").await.unwrap().unwrap();
    assert_eq!(found, DeliveryRow { seq: 2, request: Some(body.clone()), ..again });
    let many = 4 + DELIVERIES_KEPT;
    assert!(log(&store, (5..=many).map(line).collect(), None).await);
    let left = delivery_ids(&store, None, 2 * many as usize).await;
    assert_eq!(left.len() as u64, DELIVERIES_KEPT + 1, "queued deliveries are kept");
    assert_eq!((left[0].0, left.last().unwrap().0), (many, 3));
    let kept = |n: u64| {
        let store = store.clone();
        async move { store.delivery(ORG, trigger_id(1), &format!("d{n}")).await.unwrap().unwrap().request.is_some() }
    };
    assert!(kept(many).await && kept(many - REQUESTS_KEPT + 1).await && !kept(many - REQUESTS_KEPT).await);
}

async fn a_delivery_log_advances_only_its_own_schedule(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    create(&store, trigger(1, 1)).await.unwrap();
    let advance = |revision| Some(ScheduleAdvance { revision, cursor: Some(at(120)), next_at: Some(at(180)) });
    assert!(log(&store, vec![delivery(1, "t1", Skipped)], advance(1)).await);
    let moved = TriggerRow { cursor: Some(at(120)), next_at: Some(at(180)), ..trigger(1, 1) };
    assert_eq!(store.trigger(ORG, trigger_id(1)).await, Ok(Some(moved)));
    assert!(!log(&store, vec![delivery(1, "t2", Skipped)], advance(2)).await, "the schedule has another revision");
    assert_eq!(delivery_ids(&store, None, 9).await.len(), 1, "nothing was written");
    let stray = TriggerLog { org: ORG, trigger: trigger_id(5), rows: vec![delivery(5, "x", Skipped)], advance: None };
    assert_eq!(store.log_deliveries(&stray).await, Ok(false));
    assert_eq!(store.deliveries(ORG, trigger_id(5), None, 9).await, Ok(vec![]));
}

async fn a_run_and_its_delivery_are_written_together(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    create(&store, trigger(1, 1)).await.unwrap();
    let line = |n: u64| DeliveryRow { run: Some(run(n)), ..delivery(1, "tick", Started) };
    let started = |n: u64, line: DeliveryRow| {
        let advance = Some(ScheduleAdvance { revision: 1, cursor: Some(at(180)), next_at: Some(at(240)) });
        let run_insert =
            RunInsert { idempotency: Some(key("tick", 1)), delivery: Some(line), advance, ..Default::default() };
        born(start(run(n)), run_insert)
    };
    let commit = |write: RunWrite| {
        let store = store.clone();
        async move { store.commit(&batch([write])).await.unwrap().remove(0) }
    };
    assert_eq!(commit(started(1, line(1))).await, Committed);
    let found = store.delivery(ORG, trigger_id(1), "tick").await.unwrap().unwrap();
    assert_eq!(found, DeliveryRow { seq: 1, ..line(1) });
    let row = store.trigger(ORG, trigger_id(1)).await.unwrap().unwrap();
    assert_eq!((row.last_run, row.last_run_at), (Some(run(1)), Some(at(200))));
    assert_eq!((row.cursor, row.next_at), (Some(at(180)), Some(at(240))), "the schedule advanced");
    // A delivery that started a run stays `started`, even if it is logged again.
    assert!(log(&store, vec![delivery(1, "tick", Skipped)], None).await);
    assert_eq!(store.delivery(ORG, trigger_id(1), "tick").await.unwrap().unwrap(), DeliveryRow { seq: 1, ..line(1) });
    // If the key is taken, no delivery is logged.
    assert_ne!(commit(started(2, line(2))).await, Committed);
    assert_eq!(store.delivery(ORG, trigger_id(1), "tick").await.unwrap().unwrap().run, Some(run(1)));
    // A delivery that names another run is invalid.
    let run_insert = RunInsert { delivery: Some(line(1)), ..Default::default() };
    assert_ne!(commit(born(start(run(3)), run_insert)).await, Committed);
    // The trigger may be deleted meanwhile; the run starts anyway.
    let stray = DeliveryRow { trigger: trigger_id(9), run: Some(run(4)), ..delivery(1, "x", Started) };
    let run_insert = RunInsert { delivery: Some(stray), ..Default::default() };
    assert_eq!(commit(born(start(run(4)), run_insert)).await, Committed);
    assert_eq!(store.deliveries(ORG, trigger_id(9), None, 9).await, Ok(vec![]));
}

async fn queued_deliveries_keep_their_order(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    create(&store, trigger(1, 1)).await.unwrap();
    create(&store, trigger(2, 1)).await.unwrap();
    log(&store, vec![delivery(1, "a", Queued), delivery(1, "b", Skipped), delivery(1, "c", Queued)], None).await;
    let other = TriggerLog { org: ORG, trigger: trigger_id(2), rows: vec![delivery(2, "d", Queued)], advance: None };
    assert_eq!(store.log_deliveries(&other).await, Ok(true));
    let queued = |of, limit| {
        let store = store.clone();
        async move { store.queued_deliveries(of, limit).await.unwrap().into_iter().map(|row| row.id).collect::<Vec<_>>() }
    };
    assert_eq!(queued(None, 10).await, ["a", "c", "d"]);
    assert_eq!(queued(Some((ORG, trigger_id(1))), 10).await, ["a", "c"]);
    assert_eq!(queued(Some((OTHER_ORG, trigger_id(1))), 10).await, Vec::<String>::new());
    log(&store, vec![delivery(1, "a", Started)], None).await;
    assert_eq!(queued(None, 1).await, ["c"]);
}

async fn deleting_a_trigger_deletes_its_log(store: Arc<dyn Store>) {
    create_two_workflows(&store).await;
    create(&store, hook(1, 1, "p")).await.unwrap();
    log(&store, vec![DeliveryRow { request: Some("x".into()), ..delivery(1, "a", Queued) }], None).await;
    assert_eq!(store.delete_trigger(OTHER_ORG, trigger_id(1)).await, Ok(false));
    assert_eq!(store.delete_trigger(ORG, trigger_id(1)).await, Ok(true));
    assert_eq!(store.delete_trigger(ORG, trigger_id(1)).await, Ok(false));
    assert_eq!(store.trigger_at("p").await, Ok(None));
    assert_eq!(store.queued_deliveries(None, 9).await, Ok(vec![]));
    create(&store, hook(1, 1, "p")).await.unwrap();
    assert_eq!(store.deliveries(ORG, trigger_id(1), None, 9).await, Ok(vec![]));
}

async fn a_workflow_and_its_own_trigger_are_created_together(store: Arc<dyn Store>) {
    let own = |n: u64, name: &str, path: &str| NewWorkflow {
        trigger: Some(TriggerRow { is_owned: true, ..hook(n, n, path) }),
        ..new_workflow(n, name, name)
    };
    assert_eq!(store.create_workflow(&own(1, "one", "p")).await, Ok(Ok(())));
    assert_eq!(store.owned_trigger(ORG, workflow_id(1)).await.unwrap().unwrap().path.as_deref(), Some("p"));
    let all = WorkflowFilter { limit: 9, ..Default::default() };
    assert_eq!(store.create_workflow(&own(2, "two", "p")).await, Ok(Err(NameTaken::Path)));
    assert_eq!(store.workflows(ORG, &all).await.unwrap().len(), 1, "neither was created");
    assert_eq!(store.create_workflow(&own(2, "one", "q")).await, Ok(Err(NameTaken::Name)));
    assert_eq!(store.trigger_at("q").await, Ok(None));
}
