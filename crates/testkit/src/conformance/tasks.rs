//! Rules about tasks, task types, workers and hidden runs that every store follows, one sentence per case.

use super::Case;
use super::cases::{cases, commit};
use super::fixtures::*;
use bytes::Bytes;
use kernel::plan::Form;
use kernel::{OrgId, RunStatus, Span};
use std::sync::Arc;
use store::WriteVerdict::{Committed, Conflict, KeyTaken, Undone};
use store::{
    Erased, Erasure, QueuePosition, Rate, ReadyChange, ReadyRow, RunFilter, RunInsert, RunRow, RunWrite, Store,
    StoredDefinition, TypePause, TypeRow, WorkerRow, listed_id,
};

cases![
    an_evicted_runs_tasks_can_be_claimed,
    the_record_that_claims_a_task_removes_it,
    a_refused_write_changes_no_ready_task,
    ready_tasks_are_ordered_by_priority_then_age,
    key_queues_are_listed_in_order_with_counts,
    a_run_in_memory_may_have_ready_tasks,
    only_an_open_run_can_add_ready_tasks,
    a_running_run_may_be_evicted,
    a_list_by_status_includes_evicted_runs,
    runs_can_be_filtered_by_form,
    a_delayed_task_is_not_in_a_concurrency_group,
    a_hidden_run_is_not_found,
    only_a_finished_run_can_be_hidden,
    an_idempotency_key_returns_the_run_it_created,
    a_type_is_registered_once,
    types_are_listed_by_prefix,
    types_with_settings_are_listed,
    silent_workers_are_forgotten,
];

async fn positions(store: &Arc<dyn Store>, name: &str) -> Vec<QueuePosition> {
    store.ready_tasks(&queue(ORG, name, ""), None, 100).await.unwrap()
}

async fn an_evicted_runs_tasks_can_be_claimed(store: Arc<dyn Store>) {
    assert_eq!(store.key_queues(None, 9).await, Ok(vec![]));
    assert_eq!(positions(&store, "mail").await, []);
    let tasks = vec![task(run(1), 0, "mail", 5), task(run(1), 2, "sms", 5)];
    assert_eq!(commit(&store, [start(run(1)), offer(run(1), 1, tasks.clone())]).await, [Committed, Committed]);
    assert_eq!(positions(&store, "mail").await, [tasks[0].position]);
    assert_eq!(positions(&store, "sms").await, [tasks[1].position]);
    let born_parked = RunWrite { after: 0, record: start(run(2)).record, ..offer(run(2), 0, vec![]) };
    let ready = ReadyChange { remove: vec![], insert: vec![task(run(2), 0, "mail", 4)] };
    assert_eq!(commit(&store, [RunWrite { ready, ..born_parked }]).await, [Committed], "with its first record");
    assert_eq!(positions(&store, "mail").await.len(), 2);
    assert_eq!(store.active_runs().await, Ok(vec![]));
}

async fn the_record_that_claims_a_task_removes_it(store: Arc<dyn Store>) {
    let tasks = vec![task(run(1), 0, "mail", 5), task(run(1), 2, "mail", 5)];
    commit(&store, [start(run(1)), offer(run(1), 1, tasks.clone())]).await;
    let ready = ReadyChange { remove: tasks.clone(), insert: vec![] };
    assert_eq!(commit(&store, [RunWrite { ready, ..turn(run(1), 2, RunStatus::Running) }]).await, [Committed]);
    assert_eq!(positions(&store, "mail").await, []);
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(1))]));
    // A row that is removed and inserted in one write exists afterwards: removal comes first.
    let ready = ReadyChange { remove: tasks.clone(), insert: vec![tasks[1].clone()] };
    assert_eq!(commit(&store, [RunWrite { ready, ..offer(run(1), 3, vec![]) }]).await, [Committed]);
    assert_eq!(positions(&store, "mail").await, [tasks[1].position]);
}

async fn a_refused_write_changes_no_ready_task(store: Arc<dyn Store>) {
    let old = task(run(1), 0, "mail", 5);
    commit(&store, [start(run(1)), offer(run(1), 1, vec![old.clone()]), start(run(2))]).await;
    let change = || ReadyChange { remove: vec![old.clone()], insert: vec![task(run(1), 1, "mail", 1)] };
    let stale = RunWrite { ready: change(), ..offer(run(1), 1, vec![]) };
    assert_eq!(commit(&store, [stale]).await, [Conflict]);
    let fine = RunWrite { ready: change(), ..offer(run(1), 2, vec![]) };
    assert_eq!(commit(&store, atomic_group(1, [fine.clone(), start(run(2))])).await, [Undone, Conflict]);
    assert_eq!(positions(&store, "mail").await, [old.position]);
    assert_eq!(commit(&store, atomic_group(2, [fine, start(run(3))])).await, [Committed, Committed]);
    assert_eq!(positions(&store, "mail").await, [task(run(1), 1, "mail", 1).position]);
}

async fn ready_tasks_are_ordered_by_priority_then_age(store: Arc<dyn Store>) {
    for (n, priority) in [(3, 100), (1, 100), (2, 7), (4, u32::MAX), (5, 0)] {
        let tasks = vec![task(run(n), 1, "mail", priority), task(run(n), 0, "mail", priority)];
        commit(&store, [start(run(n)), offer(run(n), 1, tasks)]).await;
    }
    let all = positions(&store, "mail").await;
    let order: Vec<(u32, u32)> = all.iter().map(|position| (position.priority, position.step)).collect();
    assert_eq!(order[..6], [(0, 0), (0, 1), (7, 0), (7, 1), (100, 0), (100, 1)]);
    assert_eq!((all[4].run, all[6].run), (run(1), run(3)), "the older run comes first");
    let page = async |after, limit| store.ready_tasks(&queue(ORG, "mail", ""), after, limit).await.unwrap();
    assert_eq!(page(Some(all[2]), 3).await, all[3..6]);
    assert_eq!(
        page(Some(QueuePosition { step: 9, ..all[2] }), 1).await,
        [all[4]],
        "a cursor may name a task that does not exist"
    );
    assert_eq!(page(all.last().copied(), 9).await, []);
    assert_eq!(page(None, 0).await, []);
    assert_eq!(store.ready_tasks(&queue(OTHER_ORG, "mail", ""), None, 9).await, Ok(vec![]));
    assert_eq!(store.ready_tasks(&queue(ORG, "mail", "k"), None, 9).await, Ok(vec![]));
}

async fn key_queues_are_listed_in_order_with_counts(store: Arc<dyn Store>) {
    let queues = [("a", "", 1), ("a", "k", 2), ("a.b", "", 3), ("é", "", 1)];
    let mut n = 0;
    for (name, key, count) in queues.iter().rev() {
        for step in 0..*count {
            n += 1;
            let row = ReadyRow { queue: queue(ORG, name, key), ..task(run(n), step, name, 100 - step) };
            commit(&store, [start(run(n)), offer(run(n), 1, vec![row])]).await;
        }
    }
    let elsewhere = ReadyRow { queue: queue(OTHER_ORG, "a", ""), ..task(run(90), 0, "a", 1) };
    let row = RunRow { evicted: true, ..row(OTHER_ORG, run(90), RunStatus::Running) };
    let ready = ReadyChange { remove: vec![], insert: vec![elsewhere] };
    commit(&store, [RunWrite { row: Some(row), ready, ..start_in(OTHER_ORG, run(90)) }]).await;

    let mut all: Vec<_> = queues.iter().map(|(name, key, count)| (queue(ORG, name, key), u64::from(*count))).collect();
    all.push((queue(OTHER_ORG, "a", ""), 1));
    assert_eq!(store.key_queues(None, 99).await.as_deref(), Ok(&all[..]));
    assert_eq!(store.key_queues(None, 2).await.as_deref(), Ok(&all[..2]));
    assert_eq!(store.key_queues(Some(&all[1].0), 2).await.as_deref(), Ok(&all[2..4]));
    assert_eq!(store.key_queues(Some(&queue(ORG, "a", "z")), 1).await.as_deref(), Ok(&all[2..3]));
    assert_eq!(store.key_queues(Some(&all[4].0), 9).await, Ok(vec![]));
    let types = store.ready_types().await.unwrap();
    assert_eq!(types[..3], [(ORG, "a".into()), (ORG, "a.b".into()), (ORG, "é".into())]);
    let counts = store.ready_counts().await.unwrap();
    assert_eq!(counts[..3], [(ORG, "a".into(), 3), (ORG, "a.b".into(), 3), (ORG, "é".into(), 1)]);
    assert_eq!((types.len(), counts.len()), (4, 4), "other organisations come last");
    assert_eq!(store.ready_keys(ORG, "a", None, 9).await, Ok(vec![String::new(), "k".into()]));
    assert_eq!(store.ready_keys(ORG, "a", None, 1).await, Ok(vec![String::new()]));
    assert_eq!(store.ready_keys(ORG, "a", Some(""), 9).await, Ok(vec!["k".into()]));
    assert_eq!(store.ready_keys(ORG, "a", Some("k"), 9).await, Ok(vec![]));
    assert_eq!(store.ready_keys(ORG, "b", None, 9).await, Ok(vec![]));
}

async fn a_run_in_memory_may_have_ready_tasks(store: Arc<dyn Store>) {
    let (first, second) = (task(run(1), 0, "mail", 1), task(run(1), 1, "mail", 1));
    let born = RunWrite { ready: ReadyChange { remove: vec![], insert: vec![first.clone()] }, ..start(run(1)) };
    let turned = ReadyChange { remove: vec![first.clone()], insert: vec![second.clone()] };
    assert_eq!(commit(&store, [born]).await, [Committed]);
    assert_eq!(positions(&store, "mail").await, [first.position]);
    assert_eq!(commit(&store, [RunWrite { ready: turned, ..append(run(1), 1) }]).await, [Committed]);
    assert_eq!(positions(&store, "mail").await, [second.position]);
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(1))]));
}

async fn only_an_open_run_can_add_ready_tasks(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2))]).await;
    let ready = |insert| ReadyChange { remove: vec![], insert };
    let own = || ready(vec![task(run(1), 0, "mail", 1)]);
    let finished = RunRow { evicted: true, ..row(ORG, run(1), RunStatus::Completed) };
    let finished = RunWrite { ready: own(), row: Some(finished), ..append(run(1), 1) };
    let task_of_another_run = offer(run(1), 1, vec![task(run(2), 0, "mail", 1)]);
    let elsewhere = ReadyRow { queue: queue(OTHER_ORG, "mail", ""), ..task(run(1), 0, "mail", 1) };
    let removes_task_of_another_run = ReadyChange { remove: vec![task(run(2), 0, "mail", 1)], insert: vec![] };
    let removes_task_of_another_run = RunWrite { ready: removes_task_of_another_run, ..append(run(1), 1) };
    for write in [finished, task_of_another_run, offer(run(1), 1, vec![elsewhere]), removes_task_of_another_run] {
        assert_eq!(commit(&store, [write]).await, [Conflict]);
    }
    assert_eq!(store.key_queues(None, 9).await, Ok(vec![]));
    assert_eq!(commit(&store, [append(run(1), 1)]).await, [Committed]);
}

async fn a_running_run_may_be_evicted(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2)), offer(run(1), 1, vec![])]).await;
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(2))]));
    let found = store.run(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((found.status, found.evicted), (RunStatus::Running, true));
    assert_eq!(commit(&store, [append(run(1), 2), append(run(1), 2)]).await, [Committed, Conflict]);
    assert_eq!(store.load(ORG, run(1)).await.unwrap().unwrap().seq, 3);
    assert_eq!(commit(&store, [turn(run(1), 3, RunStatus::Running)]).await, [Committed]);
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(1)), (ORG, run(2))]));
    // The writer decides whether a run is in memory, whatever its status.
    let awake = RunRow { evicted: false, ..row(ORG, run(2), RunStatus::Waiting) };
    commit(&store, [RunWrite { row: Some(awake), ..append(run(2), 1) }]).await;
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(1)), (ORG, run(2))]));
}

async fn a_list_by_status_includes_evicted_runs(store: Arc<dyn Store>) {
    for n in 0..9 {
        commit(&store, [start(run(n))]).await;
        if n % 3 != 0 {
            commit(&store, [offer(run(n), 1, vec![])]).await;
        }
    }
    let list = async |before, limit| {
        let filter = RunFilter { statuses: vec![RunStatus::Running], before, limit, ..Default::default() };
        let rows = store.runs(ORG, &filter).await.unwrap();
        rows.iter().map(|row| (0..9).find(|n| run(*n) == listed_id(row)).unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(list(None, 99).await, [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(list(None, 4).await, [8, 7, 6, 5]);
    assert_eq!(list(Some(run(5)), 3).await, [4, 3, 2]);
}

async fn runs_can_be_filtered_by_form(store: Arc<dyn Store>) {
    for n in 1..5 {
        let form = if n % 2 == 0 { Form::Task } else { Form::Graph };
        let labels = vec![("k".to_owned(), "v".to_owned())];
        let first = RunWrite { row: Some(RunRow { form, ..row(ORG, run(n), RunStatus::Failed) }), ..start(run(n)) };
        commit(&store, [born(first, RunInsert { labels, ..Default::default() })]).await;
    }
    let tasks = RunFilter { forms: vec![Form::Task], limit: 9, ..Default::default() };
    let ids = async |filter| store.runs(ORG, &filter).await.unwrap().iter().map(listed_id).collect::<Vec<_>>();
    assert_eq!(ids(tasks.clone()).await, [run(4), run(2)]);
    assert_eq!(ids(RunFilter { statuses: vec![RunStatus::Failed], ..tasks.clone() }).await, [run(4), run(2)]);
    assert_eq!(ids(RunFilter { labels: vec![("k".into(), "v".into())], ..tasks.clone() }).await, [run(4), run(2)]);
    assert_eq!(
        ids(RunFilter { workflow: Some(row(ORG, run(2), RunStatus::Failed).workflow), ..tasks.clone() }).await,
        [run(2)]
    );
    let both = vec![Form::Graph, Form::Task];
    assert_eq!(ids(RunFilter { forms: both, ..tasks.clone() }).await, [run(4), run(3), run(2), run(1)]);
    assert_eq!(ids(RunFilter { forms: vec![Form::Script], limit: 9, ..Default::default() }).await, []);
}

async fn a_delayed_task_is_not_in_a_concurrency_group(store: Arc<dyn Store>) {
    for (n, form) in [(1, Form::Task), (2, Form::Graph)] {
        let pending = RunRow { form, ..row(ORG, run(n), RunStatus::Pending) };
        commit(&store, [RunWrite { row: Some(pending), ..start(run(n)) }]).await;
    }
    let grouped_runs = store.grouped_runs().await.unwrap();
    assert_eq!(grouped_runs.iter().map(|g| (g.run, g.is_queued)).collect::<Vec<_>>(), [(run(2), true)]);
}

/// Creates a finished run with every kind of row that a run can have, and a second run.
async fn finished_run(store: &Arc<dyn Store>) {
    let run_insert =
        RunInsert { labels: vec![("k".into(), "v".into())], idempotency: Some(key("a", 1)), ..Default::default() };
    let first = RunWrite {
        payloads: vec![(1, Bytes::from_static(b"x"))],
        snapshot: Some(state(run(1), 1)),
        tokens: vec![wait(ORG, run(1), 0, 3)],
        ..born(start(run(1)), run_insert)
    };
    commit(store, [first, start(run(2)), turn(run(1), 1, RunStatus::Failed)]).await;
}

async fn a_hidden_run_is_not_found(store: Arc<dyn Store>) {
    finished_run(&store).await;
    assert_eq!(store.hide(OTHER_ORG, run(1), at(9)).await, Ok(Erased::NotFound));
    assert_eq!(store.hide(ORG, run(1), at(9)).await, Ok(Erased::Done));
    assert_eq!(store.hide(ORG, run(1), at(10)).await, Ok(Erased::NotFound));
    assert_eq!(store.load(ORG, run(1)).await, Ok(None));
    assert_eq!(store.run(ORG, run(1)).await, Ok(None));
    assert_eq!(store.history(ORG, run(1), 0, 9).await, Ok(None));
    assert_eq!(store.payloads(ORG, run(1), &[1]).await, Ok(vec![]));
    assert_eq!(store.wait(&[3; 32]).await, Ok(None));
    let all = RunFilter { limit: 9, ..Default::default() };
    let labels = vec![("k".to_owned(), "v".to_owned())];
    let workflow = Some(row(ORG, run(1), RunStatus::Failed).workflow);
    for filter in [
        RunFilter { labels, ..all.clone() },
        RunFilter { workflow, ..all.clone() },
        RunFilter { statuses: vec![RunStatus::Failed], ..all.clone() },
    ] {
        assert_eq!(store.runs(ORG, &filter).await, Ok(vec![]), "{filter:?}");
    }
    assert_eq!(store.runs(ORG, &all).await.unwrap().len(), 1);
    let journal_page = store.journal_page(ORG, Some(0), 9).await.unwrap();
    assert_eq!((journal_page.records.iter().map(|r| r.pos).collect::<Vec<_>>(), journal_page.end), (vec![2], 3));
    let taken = KeyTaken { run: run(1), fingerprint: [1; 32] };
    let again = born(start(run(5)), RunInsert { idempotency: Some(key("a", 1)), ..Default::default() });
    assert_eq!(commit(&store, [again, start(run(1))]).await, [taken, Conflict], "its key and its id stay taken");
    let late = RunWrite { record: record(run(1), 3, at(2_000)), ..append(run(1), 2) };
    assert_eq!(commit(&store, [late]).await, [Committed]);
    assert_eq!(store.high_water().await, Ok(Some(at(2_000))));
    let erasure = Erasure { org: ORG, run: run(1), seq: 3, labels: vec![("k".into(), "v".into())] };
    assert_eq!(store.erase(&erasure).await, Ok(Erased::Done), "a hidden run can be erased");
}

async fn only_a_finished_run_can_be_hidden(store: Arc<dyn Store>) {
    assert_eq!(store.hide(ORG, run(1), at(9)).await, Ok(Erased::NotFound));
    for (n, status) in (1..).zip(RunStatus::ALL) {
        commit(&store, [start(run(n)), turn(run(n), 1, *status)]).await;
        let expected = if status.is_terminal() { Erased::Done } else { Erased::NotEnded };
        assert_eq!(store.hide(ORG, run(n), at(9)).await, Ok(expected), "{status}");
        assert_eq!(store.run(ORG, run(n)).await.unwrap().is_some(), !status.is_terminal());
    }
    commit(&store, [start(run(90)), RunWrite { notifications: vec![0], ..turn(run(90), 1, RunStatus::Failed) }]).await;
    assert_eq!(store.hide(ORG, run(90), at(9)).await, Ok(Erased::NotificationsPending));
    let hidden = RunRow { deleted_at: Some(at(5)), ..row(ORG, run(91), RunStatus::Completed) };
    commit(&store, [RunWrite { row: Some(hidden), ..start(run(91)) }]).await;
    assert!(store.run(ORG, run(91)).await.unwrap().is_some(), "a record cannot hide its run");
}

async fn an_idempotency_key_returns_the_run_it_created(store: Arc<dyn Store>) {
    finished_run(&store).await;
    let made = Some((run(1).0, [1; 32]));
    assert_eq!(store.idempotency_record(ORG, "order", "a").await, Ok(made));
    assert_eq!(store.idempotency_record(OTHER_ORG, "order", "a").await, Ok(None));
    assert_eq!(store.idempotency_record(ORG, "other", "a").await, Ok(None));
    assert_eq!(store.idempotency_record(ORG, "order", "b").await, Ok(None));
    store.hide(ORG, run(1), at(9)).await.unwrap();
    assert_eq!(store.idempotency_record(ORG, "order", "a").await, Ok(made), "also when the run is hidden");
}

/// A type with all settings.
fn full_type(org: OrgId, name: &str) -> TypeRow {
    TypeRow {
        runtime: Some("python".into()),
        description: Some("sends \u{0} mail".into()),
        enabled: false,
        paused: Some(TypePause { at: at(3), actor: "ada".into(), note: "it's late".into() }),
        limit: Some(u32::MAX),
        limit_per_key: Some(0),
        rate: Some(Rate { limit: 7, per: Span::from_secs(60), per_key: true }),
        updated_at: at(8),
        ..plain_type(org, name)
    }
}

async fn a_type_is_registered_once(store: Arc<dyn Store>) {
    let definition = |mark: u8| StoredDefinition {
        hash: [mark; 32],
        lowering: 0,
        source: vec![mark].into(),
        plan: vec![mark, 1].into(),
    };
    assert_eq!(store.task_type(ORG, "mail").await, Ok(None));
    store.ensure_type(&plain_type(ORG, "mail"), Some(&definition(1))).await.unwrap();
    assert_eq!(store.task_type(ORG, "mail").await, Ok(Some(plain_type(ORG, "mail"))));
    assert_eq!(store.definition(ORG, [1; 32], None).await, Ok(Some(definition(1))));
    store.put_type(&full_type(ORG, "mail")).await.unwrap();
    assert_eq!(store.task_type(ORG, "mail").await, Ok(Some(full_type(ORG, "mail"))));
    let other = StoredDefinition { source: Bytes::new(), ..definition(1) };
    store.ensure_type(&plain_type(ORG, "mail"), Some(&other)).await.unwrap();
    assert_eq!(store.task_type(ORG, "mail").await, Ok(Some(full_type(ORG, "mail"))), "the existing row stays");
    assert_eq!(store.definition(ORG, [1; 32], None).await, Ok(Some(definition(1))), "the existing definition stays");
    store.ensure_type(&plain_type(ORG, "mail"), Some(&definition(2))).await.unwrap();
    assert_eq!(
        store.definition(ORG, [2; 32], None).await,
        Ok(Some(definition(2))),
        "a second definition of a registered type"
    );
    assert_eq!(store.task_type(OTHER_ORG, "mail").await, Ok(None));
    assert_eq!(store.definition(OTHER_ORG, [1; 32], None).await, Ok(None));
    store.put_type(&plain_type(ORG, "mail")).await.unwrap();
    assert_eq!(store.task_type(ORG, "mail").await, Ok(Some(plain_type(ORG, "mail"))), "all settings are removed");
}

async fn types_are_listed_by_prefix(store: Arc<dyn Store>) {
    for name in ["mail.sent", "mail", "mail.", "sms", "mailbox", "mail.\u{10ffff}", "Mail"] {
        store.ensure_type(&plain_type(ORG, name), None).await.unwrap();
    }
    store.ensure_type(&plain_type(OTHER_ORG, "mail.theirs"), None).await.unwrap();
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let rows = store.task_types(ORG, prefix, after, limit).await.unwrap();
        rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    assert_eq!(list("", None, 99).await, ["Mail", "mail", "mail.", "mail.sent", "mail.\u{10ffff}", "mailbox", "sms"]);
    assert_eq!(list("mail.", None, 99).await, ["mail.", "mail.sent", "mail.\u{10ffff}"]);
    assert_eq!(list("mail.", Some("mail."), 1).await, ["mail.sent"]);
    assert_eq!(list("mail.", Some("a"), 1).await, ["mail."], "a cursor before the prefix");
    assert_eq!(list("mail.", Some("mail.sf"), 9).await, ["mail.\u{10ffff}"], "a cursor that names no type");
    assert!(list("mail.", Some("sms"), 9).await.is_empty());
    assert!(list("%", None, 9).await.is_empty());
    assert!(list("", None, 0).await.is_empty());
}

async fn types_with_settings_are_listed(store: Arc<dyn Store>) {
    let full = full_type(ORG, "g");
    let plain = |name: &str| plain_type(ORG, name);
    let ruled = [
        TypeRow { runtime: full.runtime.clone(), ..plain("a") },
        TypeRow { enabled: false, ..plain("b") },
        TypeRow { paused: full.paused.clone(), ..plain("c") },
        TypeRow { limit: full.limit, ..plain("d") },
        TypeRow { limit_per_key: full.limit_per_key, ..plain("e") },
        TypeRow { rate: full.rate, ..plain("f") },
        full,
        TypeRow { description: Some(String::new()), ..plain("h") },
        full_type(OTHER_ORG, "a"),
    ];
    for row in ruled.iter().rev() {
        store.put_type(row).await.unwrap();
    }
    store.put_type(&plain("plain")).await.unwrap();
    assert_eq!(store.configured_types().await.as_deref(), Ok(&ruled[..]));
}

async fn silent_workers_are_forgotten(store: Arc<dyn Store>) {
    let bare = WorkerRow { runtime: Some("go".into()), version: None, slots: None, ..worker(ORG, "bare", at(50)) };
    let all = [bare.clone(), worker(ORG, "w1", at(40)), worker(OTHER_ORG, "w1", at(45))];
    store.put_workers(&[all[2].clone(), all[0].clone(), all[1].clone()], at(0)).await.unwrap();
    assert_eq!(store.workers().await.as_deref(), Ok(&all[..]));
    let again = WorkerRow { types: "[]".into(), last_seen: at(60), ..bare };
    store.put_workers(std::slice::from_ref(&again), at(45)).await.unwrap();
    assert_eq!(store.workers().await, Ok(vec![again, all[2].clone()]));
    store.put_workers(&[], at(100)).await.unwrap();
    assert_eq!(store.workers().await, Ok(vec![]));
}
