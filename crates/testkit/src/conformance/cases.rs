//! Rules about runs, timers, payloads, lists and workflows that every store follows, one sentence per case.

use super::Case;
use super::fixtures::*;
use bytes::Bytes;
use kernel::{RunStatus, Timestamp};
use std::sync::Arc;
use std::task::Poll;
use store::WriteVerdict::{Committed, Conflict};
use store::{
    Batch, Error, IdempotencyKey, NameTaken, NewWorkflow, RunFilter, RunInsert, RunRow, RunWrite, Store, Timer,
    TimerChange, WorkflowFilter, WorkflowKey, WriteVerdict, listed_id,
};

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(super) const CASES: &[Case] =
            &[$(Case { name: stringify!($name), run: |store| Box::pin($name(store)) }),*];
    };
}
pub(super) use cases;

cases![
    a_new_store_is_empty,
    a_new_run_reads_back_as_it_was_written,
    only_records_after_the_snapshot_are_loaded,
    m32_the_version_of_a_run_changes_only_with_a_move,
    a_write_that_saw_an_older_record_conflicts,
    a_run_is_created_once,
    only_an_existing_run_accepts_records,
    a_taken_key_returns_its_run,
    a_refused_run_does_not_use_up_its_key,
    a_run_may_appear_twice_in_a_batch,
    a_bad_row_fails_only_its_run,
    an_invalid_write_is_refused,
    an_evicted_run_has_a_timer_until_it_wakes,
    timers_are_returned_earliest_first,
    an_evicted_run_accepts_a_record_without_a_row,
    a_finished_run_accepts_a_late_record,
    what_a_run_pins_at_creation_never_changes,
    payloads_are_returned_in_the_requested_order,
    a_wait_is_found_by_its_token,
    organisations_do_not_see_each_other,
    lists_filter_and_page,
    a_list_is_a_consistent_snapshot,
    workflow_names_and_slugs_are_unique,
    generated_slugs_count_up,
    a_definition_is_stored_once,
    an_idempotency_key_makes_one_workflow,
    settings_and_epochs_are_kept,
    high_water_is_the_newest_record,
    counters_count,
];

pub(super) async fn commit(store: &Arc<dyn Store>, runs: impl Into<Vec<RunWrite>>) -> Vec<WriteVerdict> {
    let batch = batch(runs);
    store.commit(&batch).await.expect("the commit succeeds")
}

fn all_workflows() -> WorkflowFilter {
    WorkflowFilter { limit: 9, ..Default::default() }
}

async fn seq(store: &Arc<dyn Store>, n: u64) -> Option<u64> {
    store.load(ORG, run(n)).await.expect("the run loads").map(|loaded| loaded.seq)
}

async fn a_new_store_is_empty(store: Arc<dyn Store>) {
    assert_eq!(store.commit(&Batch::default()).await, Ok(vec![]));
    assert_eq!(store.load(ORG, run(1)).await, Ok(None));
    assert_eq!(store.history(ORG, run(1), 0, usize::MAX).await, Ok(None));
    assert_eq!(store.payloads(ORG, run(1), &[1, 2]).await, Ok(vec![]));
    assert_eq!(store.run(ORG, run(1)).await, Ok(None));
    assert_eq!(store.runs(ORG, &RunFilter { limit: 10, ..Default::default() }).await, Ok(vec![]));
    assert_eq!(store.active_runs().await, Ok(vec![]));
    assert_eq!(store.timers(Timestamp::NEVER, None, 10).await, Ok(vec![]));
    assert_eq!(store.next_timer().await, Ok(None));
    assert_eq!(store.wait(&[1; 32]).await, Ok(None));
    assert_eq!(store.workflow(ORG, &WorkflowKey::Name("x".into())).await, Ok(None));
    assert_eq!(store.workflows(ORG, &all_workflows()).await, Ok(vec![]));
    assert_eq!(store.definition(ORG, [1; 32], None).await, Ok(None));
    assert_eq!(store.setting("x").await, Ok(None));
    assert_eq!(store.high_water().await, Ok(None));
    assert_eq!(store.check().await, Ok(()));
}

async fn a_new_run_reads_back_as_it_was_written(store: Arc<dyn Store>) {
    let full = RunRow {
        waiting: u32::MAX,
        wake_at: Some(at(-5)),
        finished_at: Some(at(7)),
        error_code: Some("it's".into()),
        failed_steps: Some("ship! notify".into()),
        ..row(ORG, run(1), RunStatus::Compensating)
    };
    let first = RunWrite { row: Some(full.clone()), ..start(run(1)) };
    assert_eq!(commit(&store, [first.clone()]).await, [Committed]);
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.seq, &loaded.row, &loaded.snapshot), (1, &full, &None));
    assert_eq!(loaded.records, [first.record]);
    assert_eq!(store.run(ORG, run(1)).await, Ok(Some(full)));
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(1))]));
    for (n, status) in (2..).zip(RunStatus::ALL) {
        commit(&store, [RunWrite { row: Some(row(ORG, run(n), *status)), ..start(run(n)) }]).await;
        assert_eq!(store.run(ORG, run(n)).await, Ok(Some(row(ORG, run(n), *status))));
    }
}

async fn only_records_after_the_snapshot_are_loaded(store: Arc<dyn Store>) {
    commit(&store, [start(run(1))]).await;
    for after in 1..5 {
        let snapshot = (after % 2 == 0).then(|| state(run(1), after + 1));
        assert_eq!(commit(&store, [RunWrite { snapshot, ..append(run(1), after) }]).await, [Committed]);
    }
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.snapshot, loaded.records.len(), loaded.seq), (Some((5, state(run(1), 5))), 0, 5));
    commit(&store, [append(run(1), 5)]).await;
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.snapshot, loaded.seq), (Some((5, state(run(1), 5))), 6));
    assert_eq!(loaded.records, [record(run(1), 6, at(1_000))]);
    let history = store.history(ORG, run(1), 0, usize::MAX).await.unwrap().unwrap();
    assert!(history.into_iter().eq((1..=6).map(|seq| record(run(1), seq, at(1_000)))));
}

async fn m32_the_version_of_a_run_changes_only_with_a_move(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2))]).await;
    let other = |n: u64| RunRow { version: 7, hash: [8; 32], lowering: 4, ..row(ORG, run(n), RunStatus::Running) };
    let plain = |n: u64| RunWrite { row: Some(other(n)), ..append(run(n), 1) };
    let moved = RunWrite { is_moved: true, snapshot: Some(state(run(2), 2)), ..plain(2) };
    assert_eq!(commit(&store, [plain(1), moved]).await, [Committed, Committed]);
    let pinned = |row: RunRow| (row.version, row.hash, row.lowering);
    let read = async |n: u64| pinned(store.run(ORG, run(n)).await.unwrap().unwrap());
    assert_eq!([read(1).await, read(2).await], [(3, [9; 32], 3), (7, [8; 32], 4)]);
    let loaded = store.load(ORG, run(2)).await.unwrap().unwrap();
    assert_eq!((pinned(loaded.row), loaded.snapshot.map(|(seq, _)| seq)), ((7, [8; 32], 4), Some(2)));
    commit(&store, [turn(run(2), 2, RunStatus::Waiting)]).await;
    assert_eq!(read(2).await, (7, [8; 32], 4), "a later record changes none of it");
    assert_eq!(commit(&store, [RunWrite { is_moved: true, ..append(run(1), 2) }]).await, [Conflict], "without a row");
}

async fn a_write_that_saw_an_older_record_conflicts(store: Arc<dyn Store>) {
    commit(&store, [start(run(1))]).await;
    commit(&store, [append(run(1), 1)]).await;
    for after in [1, 3, u64::MAX / 4] {
        let stale = RunWrite {
            snapshot: Some(state(run(1), 9)),
            payloads: vec![(1, Bytes::from_static(b"x"))],
            timer: TimerChange { remove: None, insert: Some(at(1)) },
            ..turn(run(1), after, RunStatus::Failed)
        };
        assert_eq!(commit(&store, [stale]).await, [Conflict], "after {after}");
    }
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.seq, loaded.row.status, loaded.snapshot), (2, RunStatus::Running, None));
    assert_eq!(store.payloads(ORG, run(1), &[1]).await, Ok(vec![]));
    assert_eq!(store.next_timer().await, Ok(None));
}

async fn a_run_is_created_once(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2)), start(run(3))]).await;
    commit(&store, [turn(run(2), 1, RunStatus::Waiting), turn(run(3), 1, RunStatus::Completed)]).await;
    let keyed = born(start(run(3)), RunInsert { idempotency: Some(key("new", 1)), ..Default::default() });
    let again = [start(run(1)), start(run(2)), start(run(3)), keyed, start(run(4)), start(run(4))];
    let expected = [Conflict, Conflict, Conflict, Conflict, Committed, Conflict];
    assert_eq!(commit(&store, again).await, expected);
    assert_eq!([seq(&store, 1).await, seq(&store, 2).await, seq(&store, 4).await], [Some(1), Some(2), Some(1)]);
}

async fn only_an_existing_run_accepts_records(store: Arc<dyn Store>) {
    assert_eq!(commit(&store, [append(run(1), 1), turn(run(2), 5, RunStatus::Failed)]).await, [Conflict, Conflict]);
    assert_eq!(store.load(ORG, run(1)).await, Ok(None));
    assert_eq!(store.run(ORG, run(2)).await, Ok(None));
}

async fn a_taken_key_returns_its_run(store: Arc<dyn Store>) {
    let keyed = |n: u64, name: &str| {
        born(start(run(n)), RunInsert { idempotency: Some(key(name, n as u8)), ..Default::default() })
    };
    let taken = WriteVerdict::KeyTaken { run: run(1), fingerprint: [1; 32] };
    let verdicts = commit(&store, [keyed(1, "a"), keyed(2, "a"), keyed(3, "b")]).await;
    assert_eq!(verdicts, [Committed, taken.clone(), Committed]);
    let elsewhere = RunWrite { run_insert: keyed(4, "a").run_insert, ..start_in(OTHER_ORG, run(4)) };
    assert_eq!(commit(&store, [keyed(5, "a"), start(run(6)), elsewhere]).await, [taken, Committed, Committed]);
    assert_eq!([seq(&store, 2).await, seq(&store, 5).await, seq(&store, 6).await], [None, None, Some(1)]);
}

async fn a_refused_run_does_not_use_up_its_key(store: Arc<dyn Store>) {
    let keyed = |n: u64, tokens| {
        let run_insert = RunInsert { idempotency: Some(key("k", n as u8)), ..Default::default() };
        RunWrite { tokens, ..born(start(run(n)), run_insert) }
    };
    let twice = vec![wait(ORG, run(1), 0, 1), wait(ORG, run(1), 1, 1)];
    assert_eq!(commit(&store, [keyed(1, twice), keyed(2, vec![])]).await, [Conflict, Committed]);
    assert_eq!(store.wait(&[1; 32]).await, Ok(None));
}

async fn a_run_may_appear_twice_in_a_batch(store: Arc<dyn Store>) {
    let verdicts = commit(
        &store,
        [
            start(run(1)),
            append(run(1), 1),
            park(run(1), 2, at(50)),
            append(run(1), 2),
            turn(run(1), 3, RunStatus::Running),
            append(run(1), 4),
        ],
    )
    .await;
    assert_eq!(verdicts, [Committed, Committed, Committed, Conflict, Committed, Committed]);
    assert_eq!(store.history(ORG, run(1), 0, usize::MAX).await.unwrap().unwrap().len(), 5);
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.seq, loaded.row.status, loaded.records.len()), (5, RunStatus::Running, 2));
    assert_eq!(commit(&store, [append(run(1), 5)]).await, [Committed]);
}

async fn a_bad_row_fails_only_its_run(store: Arc<dyn Store>) {
    let payload = |number| vec![(number, Bytes::from_static(b"body"))];
    commit(&store, [RunWrite { payloads: payload(1), ..start(run(1)) }, start(run(2))]).await;
    let with_wait = |n: u64, token| RunWrite { tokens: vec![wait(ORG, run(n), 0, token)], ..start(run(n)) };
    let verdicts = commit(
        &store,
        [
            RunWrite { payloads: payload(2), ..append(run(2), 1) },
            RunWrite { payloads: payload(1), ..turn(run(1), 1, RunStatus::Failed) },
            with_wait(3, 7),
            with_wait(4, 7),
            append(run(2), 2),
            with_wait(5, 8),
        ],
    )
    .await;
    assert_eq!(verdicts, [Committed, Conflict, Committed, Conflict, Committed, Committed]);
    assert_eq!([seq(&store, 1).await, seq(&store, 2).await, seq(&store, 4).await], [Some(1), Some(3), None]);
    assert_eq!(store.run(ORG, run(1)).await.unwrap().unwrap().status, RunStatus::Running);
    assert_eq!(store.wait(&[7; 32]).await.unwrap().map(|wait| wait.run), Some(run(3)));
    assert_eq!(commit(&store, [append(run(1), 1), append(run(2), 3)]).await, [Committed, Committed]);
}

async fn an_invalid_write_is_refused(store: Arc<dyn Store>) {
    let rowless = RunWrite { row: None, ..start(run(1)) };
    let row_of_another_run = RunWrite { row: Some(row(ORG, run(9), RunStatus::Running)), ..start(run(2)) };
    let row_of_another_org = RunWrite { row: Some(row(OTHER_ORG, run(3), RunStatus::Running)), ..start(run(3)) };
    commit(&store, [start(run(4))]).await;
    let late_birth = born(append(run(4), 1), RunInsert::default());
    let verdicts =
        commit(&store, [rowless, row_of_another_run, row_of_another_org, late_birth, append(run(4), 1)]).await;
    assert_eq!(verdicts, [Conflict, Conflict, Conflict, Conflict, Committed]);
}

async fn an_evicted_run_has_a_timer_until_it_wakes(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2))]).await;
    assert_eq!(commit(&store, [park(run(1), 1, at(60))]).await, [Committed]);
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(2))]));
    assert_eq!(store.next_timer().await, Ok(Some(at(60))));
    assert_eq!(store.timers(at(59), None, 9).await, Ok(vec![]));
    assert_eq!(store.timers(at(60), None, 9).await, Ok(vec![Timer { at: at(60), org: ORG, run: run(1) }]));
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.snapshot, loaded.row.wake_at), (Some((2, state(run(1), 2))), Some(at(60))));
    let later = TimerChange { remove: Some(at(60)), insert: Some(at(90)) };
    commit(&store, [RunWrite { timer: later, ..turn(run(1), 2, RunStatus::Waiting) }]).await;
    assert_eq!(store.timers(at(100), None, 9).await.unwrap().len(), 1);
    let gone = TimerChange { remove: Some(at(90)), insert: None };
    assert_eq!(commit(&store, [RunWrite { timer: gone, ..turn(run(1), 3, RunStatus::Running) }]).await, [Committed]);
    assert_eq!(store.next_timer().await, Ok(None));
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(1)), (ORG, run(2))]));
}

async fn timers_are_returned_earliest_first(store: Arc<dyn Store>) {
    for (n, seconds) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, -40)] {
        commit(&store, [start(run(n)), park(run(n), 1, at(seconds))]).await;
    }
    let due = |timers: Vec<Timer>| timers.into_iter().map(|timer| timer.run).collect::<Vec<_>>();
    assert_eq!(due(store.timers(at(20), None, 9).await.unwrap()), [run(5), run(2), run(4), run(3)]);
    let first = store.timers(at(99), None, 2).await.unwrap();
    assert_eq!(due(store.timers(at(99), first.last().copied(), 2).await.unwrap()), [run(4), run(3)]);
    assert_eq!(
        due(store.timers(at(20), Some(Timer { at: at(15), org: ORG, run: run(9) }), 9).await.unwrap()),
        [run(3)]
    );
    assert_eq!(due(first), [run(5), run(2)]);
    assert_eq!(store.next_timer().await, Ok(Some(at(-40))));
}

async fn an_evicted_run_accepts_a_record_without_a_row(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), park(run(1), 1, at(9))]).await;
    assert_eq!(commit(&store, [append(run(1), 2)]).await, [Committed]);
    assert_eq!(commit(&store, [append(run(1), 2)]).await, [Conflict]);
    assert_eq!(commit(&store, [append(run(1), 3)]).await, [Committed]);
    let loaded = store.load(ORG, run(1)).await.unwrap().unwrap();
    assert_eq!((loaded.seq, loaded.records.len(), loaded.row.status), (4, 2, RunStatus::Waiting));
    assert_eq!(store.active_runs().await, Ok(vec![]));
}

async fn a_finished_run_accepts_a_late_record(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), turn(run(1), 1, RunStatus::Completed)]).await;
    assert_eq!(commit(&store, [append(run(1), 2)]).await, [Committed]);
    assert_eq!(store.history(ORG, run(1), 0, usize::MAX).await.unwrap().unwrap().len(), 3);
    assert_eq!(store.active_runs().await, Ok(vec![]));
}

async fn what_a_run_pins_at_creation_never_changes(store: Arc<dyn Store>) {
    commit(&store, [start(run(1))]).await;
    let other = RunRow {
        workflow: workflow_id(77),
        workflow_name: "another".into(),
        version: 99,
        hash: [1; 32],
        created_at: at(0),
        expires_at: at(5),
        ..row(ORG, run(1), RunStatus::Failed)
    };
    commit(&store, [RunWrite { row: Some(other), ..append(run(1), 1) }]).await;
    let expected = RunRow { expires_at: at(5), ..row(ORG, run(1), RunStatus::Failed) };
    assert_eq!(store.run(ORG, run(1)).await, Ok(Some(expected)));
}

async fn payloads_are_returned_in_the_requested_order(store: Arc<dyn Store>) {
    let body = |number: u32| Bytes::from(vec![number as u8; 10_000 * number as usize]);
    let payloads = vec![(3, body(3)), (0, body(0)), (1, body(1))];
    commit(&store, [RunWrite { payloads, ..start(run(1)) }]).await;
    let found = store.payloads(ORG, run(1), &[1, 2, 3, 0, 1]).await.unwrap();
    assert_eq!(found, [1, 3, 0, 1].map(|number| (number, body(number))));
    assert_eq!(store.payloads(ORG, run(2), &[1]).await, Ok(vec![]));
}

async fn a_wait_is_found_by_its_token(store: Arc<dyn Store>) {
    let tokens = vec![wait(ORG, run(1), 0, 1), wait(ORG, run(1), 4, 2)];
    commit(&store, [RunWrite { tokens, ..start(run(1)) }]).await;
    assert_eq!(store.wait(&[2; 32]).await, Ok(Some(wait(ORG, run(1), 4, 2))));
    assert_eq!(store.wait(&[3; 32]).await, Ok(None));
}

async fn organisations_do_not_see_each_other(store: Arc<dyn Store>) {
    let labels = vec![("k".to_owned(), "v".to_owned())];
    let run_insert = RunInsert { labels, idempotency: Some(key("a", 1)), ..Default::default() };
    commit(&store, [RunWrite { payloads: vec![(1, Bytes::new())], ..born(start(run(1)), run_insert) }]).await;
    store.create_workflow(&new_workflow(1, "n", "s")).await.unwrap().unwrap();
    assert_eq!(store.load(OTHER_ORG, run(1)).await, Ok(None));
    assert_eq!(store.history(OTHER_ORG, run(1), 0, usize::MAX).await, Ok(None));
    assert_eq!(store.run(OTHER_ORG, run(1)).await, Ok(None));
    assert_eq!(store.payloads(OTHER_ORG, run(1), &[1]).await, Ok(vec![]));
    assert_eq!(store.definition(OTHER_ORG, [1; 32], None).await, Ok(None));
    assert_eq!(store.workflows(OTHER_ORG, &all_workflows()).await, Ok(vec![]));
    for by in [WorkflowKey::Id(workflow_id(1)), WorkflowKey::Name("n".into()), WorkflowKey::Name("s".into())] {
        assert_eq!(store.workflow(OTHER_ORG, &by).await, Ok(None), "{by:?}");
    }
    for labels in [vec![], vec![("k".to_owned(), "v".to_owned())]] {
        let filter = RunFilter { labels, limit: 9, ..Default::default() };
        assert_eq!(store.runs(OTHER_ORG, &filter).await, Ok(vec![]));
        assert_eq!(store.runs(ORG, &filter).await.unwrap().len(), 1);
    }
    assert_eq!(commit(&store, [append_in(OTHER_ORG, run(1), 1)]).await, [Conflict]);
    assert_eq!(commit(&store, [start_in(OTHER_ORG, run(1))]).await, [Committed], "each organisation has its own ids");
    assert_eq!(commit(&store, [append(run(1), 1), append_in(OTHER_ORG, run(1), 1)]).await, [Committed, Committed]);
    let mut elsewhere = new_workflow(1, "n", "s");
    elsewhere.row.org = OTHER_ORG;
    assert_eq!(store.create_workflow(&elsewhere).await, Ok(Ok(())));
}

/// A run that changes between two statuses appears exactly once in a list of both, at any time.
async fn a_list_is_a_consistent_snapshot(store: Arc<dyn Store>) {
    const CHANGES: u64 = 60;
    commit(&store, [start(run(1))]).await;
    let changes = async {
        for after in 1..=CHANGES {
            let status = if after % 2 == 0 { RunStatus::Running } else { RunStatus::Cancelling };
            commit(&store, [turn(run(1), after, status)]).await;
        }
    };
    let looks = async {
        let statuses = vec![RunStatus::Pending, RunStatus::Running, RunStatus::Cancelling];
        let filter = RunFilter { statuses, limit: 9, ..Default::default() };
        for _ in 0..CHANGES {
            let rows = store.runs(ORG, &filter).await.expect("the list is read");
            assert_eq!(rows.iter().map(listed_id).collect::<Vec<_>>(), [run(1)]);
        }
    };
    join_both(changes, looks).await;
}

/// Polls both futures until both are done. With a store that never waits, one runs after the other.
async fn join_both(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut is_a_done, mut is_b_done) = (false, false);
    std::future::poll_fn(|context| {
        is_a_done = is_a_done || a.as_mut().poll(context).is_ready();
        is_b_done = is_b_done || b.as_mut().poll(context).is_ready();
        if is_a_done && is_b_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn lists_filter_and_page(store: Arc<dyn Store>) {
    for n in 0..12 {
        let labels = vec![("parity".to_owned(), (n % 2).to_string()), ("all".to_owned(), "' OR 1=1 --".to_owned())];
        commit(&store, [born(start(run(n)), RunInsert { labels, ..Default::default() })]).await;
        let status = RunStatus::ALL[n as usize % RunStatus::ALL.len()];
        commit(&store, [turn(run(n), 1, status)]).await;
    }
    let list = async |filter: RunFilter| {
        let rows = store.runs(ORG, &RunFilter { limit: filter.limit.max(1), ..filter }).await.unwrap();
        rows.iter().map(|row| (0..12).find(|n| run(*n) == listed_id(row)).unwrap()).collect::<Vec<u64>>()
    };
    let all = RunFilter { limit: 100, ..Default::default() };
    let label = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    assert_eq!(list(all.clone()).await, (0..12).rev().collect::<Vec<_>>());
    assert_eq!(list(RunFilter { limit: 3, before: Some(run(7)), ..all.clone() }).await, [6, 5, 4]);
    let open = vec![RunStatus::Waiting, RunStatus::Pending, RunStatus::Waiting];
    assert_eq!(list(RunFilter { statuses: open.clone(), ..all.clone() }).await, [11, 9, 2, 0]);
    assert_eq!(list(RunFilter { statuses: open, limit: 2, before: Some(run(11)), ..all.clone() }).await, [9, 2]);
    let done = vec![RunStatus::Completed, RunStatus::Failed];
    assert_eq!(list(RunFilter { statuses: done.clone(), ..all.clone() }).await, [6, 5]);
    let workflow = Some(workflow_id(0));
    assert_eq!(list(RunFilter { workflow, ..all.clone() }).await, [9, 6, 3, 0]);
    assert_eq!(list(RunFilter { workflow, statuses: done, ..all.clone() }).await, [6]);
    assert_eq!(list(RunFilter { workflow, labels: label("parity", "1"), ..all.clone() }).await, [9, 3]);
    assert_eq!(
        list(RunFilter { labels: label("parity", "0"), limit: 2, before: Some(run(8)), ..all.clone() }).await,
        [6, 4]
    );
    assert_eq!(list(RunFilter { labels: label("all", "' OR 1=1 --"), ..all.clone() }).await.len(), 12);
    assert!(list(RunFilter { labels: label("parity", "2"), ..all.clone() }).await.is_empty());
    let both = || [label("all", "' OR 1=1 --"), label("parity", "1")].concat();
    assert_eq!(list(RunFilter { labels: both(), limit: 2, before: Some(run(9)), ..all.clone() }).await, [7, 5]);
    assert!(list(RunFilter { labels: [both(), label("parity", "0")].concat(), ..all.clone() }).await.is_empty());
    let (since, until) = (Some(at(103)), Some(at(105)));
    assert_eq!(list(RunFilter { since, until, ..all.clone() }).await, [4, 3]);
    assert_eq!(list(RunFilter { since, until, labels: label("parity", "1"), ..all }).await, [3]);
}

async fn workflow_names_and_slugs_are_unique(store: Arc<dyn Store>) {
    let first = new_workflow(1, "Order", "order");
    assert_eq!(store.create_workflow(&first).await, Ok(Ok(())));
    assert_eq!(store.create_workflow(&new_workflow(2, "Order", "other")).await, Ok(Err(NameTaken::Name)));
    assert_eq!(store.create_workflow(&new_workflow(3, "Other", "order")).await, Ok(Err(NameTaken::Slug)));
    assert_eq!(store.create_workflow(&new_workflow(4, "order", "o")).await, Ok(Err(NameTaken::NameIsSlug)));
    assert_eq!(store.create_workflow(&new_workflow(4, "o", "Order")).await, Ok(Err(NameTaken::SlugIsName)));
    assert_eq!(store.create_workflow(&new_workflow(4, "same", "same")).await, Ok(Ok(())));
    assert!(matches!(store.create_workflow(&new_workflow(1, "New", "new")).await, Err(Error::Refused(_))));
    let named = async |name: &str| store.workflow(ORG, &WorkflowKey::Name(name.into())).await.unwrap().map(|w| w.id);
    assert_eq!(store.workflow(ORG, &WorkflowKey::Id(workflow_id(1))).await, Ok(Some(first.row)));
    assert_eq!(named("Order").await, Some(workflow_id(1)));
    assert_eq!(named("order").await, Some(workflow_id(1)));
    assert_eq!(named("Other").await, None);
    let listed = store.workflows(ORG, &all_workflows()).await.unwrap();
    assert_eq!(listed.iter().map(|w| w.id).collect::<Vec<_>>(), [workflow_id(4), workflow_id(1)]);
    let older = WorkflowFilter { before: Some(workflow_id(4)), limit: 1, ..Default::default() };
    assert_eq!(store.workflows(ORG, &older).await.unwrap().len(), 1);
    let begun = |name: &str| WorkflowFilter { name: name.into(), ..all_workflows() };
    for (name, count) in [("Or", 1), ("Order", 1), ("s", 1), ("Orders", 0), ("%", 0)] {
        assert_eq!(store.workflows(ORG, &begun(name)).await.unwrap().len(), count, "{name}");
    }
    assert_eq!(store.definition(ORG, [3; 32], None).await, Ok(None), "a refused workflow leaves no definition");
}

async fn generated_slugs_count_up(store: Arc<dyn Store>) {
    let long = "s".repeat(80);
    store.create_workflow(&new_workflow(9, "order-4", "four")).await.unwrap().unwrap();
    for (n, wish) in ["order", "order", "order-2", "order", "order", &long, &long].into_iter().enumerate() {
        let n = n as u64 + 1;
        let new = NewWorkflow { slug_is_given: false, ..new_workflow(n, &format!("name {n}"), wish) };
        assert_eq!(store.create_workflow(&new).await, Ok(Ok(())));
    }
    let mut slugs: Vec<String> =
        store.workflows(ORG, &all_workflows()).await.unwrap().into_iter().map(|w| w.slug).collect();
    slugs.reverse();
    let cut = format!("{}-2", &long[..78]);
    assert_eq!(slugs, ["order", "order-2", "order-2-2", "order-3", "order-5", &long, &cut, "four"]);
}

async fn a_definition_is_stored_once(store: Arc<dyn Store>) {
    let first = new_workflow(1, "a", "a");
    let mut second = new_workflow(2, "b", "b");
    second.row.hash = first.row.hash;
    second.definition.hash = first.row.hash;
    store.create_workflow(&first).await.unwrap().unwrap();
    store.create_workflow(&second).await.unwrap().unwrap();
    assert_eq!(store.definition(ORG, first.row.hash, Some(first.row.lowering)).await, Ok(Some(first.definition)));
}

async fn an_idempotency_key_makes_one_workflow(store: Arc<dyn Store>) {
    let keyed = |n, name, fingerprint| {
        let key = IdempotencyKey {
            scope: "workflows".into(),
            key: "k".into(),
            fingerprint: [fingerprint; 32],
            created_at: Timestamp::default(),
        };
        NewWorkflow { idempotency: Some(key), ..new_workflow(n, name, name) }
    };
    assert_eq!(store.create_workflow(&keyed(1, "a", 7)).await, Ok(Ok(())));
    let taken = Err(NameTaken::Key { workflow: workflow_id(1), fingerprint: [7; 32] });
    assert_eq!(store.create_workflow(&keyed(2, "a", 7)).await, Ok(taken), "the key is checked before the name");
    assert_eq!(store.create_workflow(&keyed(3, "b", 8)).await, Ok(taken));
    assert_eq!(store.workflows(ORG, &all_workflows()).await.unwrap().len(), 1);
}

async fn settings_and_epochs_are_kept(store: Arc<dyn Store>) {
    store.set_setting("zone", "UTC").await.unwrap();
    store.set_setting("zone", "").await.unwrap();
    assert_eq!(store.setting("zone").await, Ok(Some(String::new())));
    assert_eq!(store.setting("Zone").await, Ok(None));
    assert_eq!([store.next_epoch().await, store.next_epoch().await], [Ok(1), Ok(2)]);
}

async fn high_water_is_the_newest_record(store: Arc<dyn Store>) {
    let timed = |n: u64, seconds| RunWrite { record: record(run(n), 1, at(seconds)), ..start(run(n)) };
    commit(&store, [timed(1, 70), timed(2, 80)]).await;
    assert_eq!(store.high_water().await, Ok(Some(at(80))));
    assert_eq!(commit(&store, [timed(1, 90)]).await, [Conflict]);
    assert_eq!(store.high_water().await, Ok(Some(at(80))));
    commit(&store, [RunWrite { record: Bytes::from_static(b"no record"), ..start(run(3)) }]).await;
    assert!(matches!(store.high_water().await, Err(Error::Corrupt(_))));
}

async fn counters_count(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2)), append(run(1), 1)]).await;
    assert_eq!(store.counters().commit_reads, 0, "the hot path does no reads");
    commit(&store, [start(run(1)), append(run(1), 2), append(run(2), 1)]).await;
    commit(&store, [append(run(1), 1)]).await;
    store.load(ORG, run(1)).await.unwrap();
    store.payloads(ORG, run(1), &[1]).await.unwrap();
    let counters = store.counters();
    assert_eq!((counters.commits, counters.records, counters.loads), (2, 5, 2));
}
