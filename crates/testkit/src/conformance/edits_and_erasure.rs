//! Rules about atomic groups, workflow edits, erasure and the order of the journal that every store follows,
//! one sentence per case.

use super::Case;
use super::cases::{cases, commit};
use super::fixtures::*;
use bytes::Bytes;
use kernel::{RunId, RunStatus};
use std::sync::Arc;
use store::WriteVerdict::{Committed, Conflict, KeyTaken, Undone};
use store::{
    Edited, Erased, Erasure, NameTaken, OwnTrigger, RunFilter, RunInsert, RunWrite, Store, StoredDefinition,
    VersionKey, WorkflowEdit, WorkflowKey, WorkflowRow,
};

cases![
    an_atomic_group_commits_as_a_whole,
    one_conflict_rolls_back_its_atomic_group,
    a_repeated_request_does_not_roll_back_its_atomic_group,
    a_key_of_another_request_rolls_back_its_atomic_group,
    a_rolled_back_group_leaves_other_writes_alone,
    a_workflow_edit_needs_the_current_row,
    versions_are_numbered_and_kept,
    m7_lowerings_of_a_definition_are_kept_side_by_side,
    a_name_is_free_once_its_workflow_is_deleted,
    erasing_a_finished_run_removes_all_its_data,
    an_open_run_is_not_erased,
    a_run_is_erased_only_as_it_was_read,
    an_erased_run_keeps_its_key_and_journal_positions,
    a_page_of_history_begins_after_a_record,
    a_stretch_has_the_records_after_a_position,
];

fn keyed(n: u64, name: &str, fingerprint: u8) -> RunWrite {
    born(start(run(n)), RunInsert { idempotency: Some(key(name, fingerprint)), ..Default::default() })
}

async fn do_exist(store: &Arc<dyn Store>, numbers: impl IntoIterator<Item = u64>) -> Vec<bool> {
    let mut found = Vec::new();
    for n in numbers {
        found.push(store.run(ORG, run(n)).await.unwrap().is_some());
    }
    found
}

async fn an_atomic_group_commits_as_a_whole(store: Arc<dyn Store>) {
    let writes = atomic_group(1, [start(run(1)), keyed(2, "a", 1), start(run(3))]);
    assert_eq!(commit(&store, writes).await, [Committed, Committed, Committed]);
    assert_eq!(do_exist(&store, 1..4).await, [true; 3]);
    assert_eq!(commit(&store, atomic_group(1, [append(run(1), 1), append(run(2), 1)])).await, [Committed, Committed]);
}

async fn one_conflict_rolls_back_its_atomic_group(store: Arc<dyn Store>) {
    commit(&store, [start(run(2)), start(run(7))]).await;
    let with_wait = |n: u64, token| {
        let run_insert = RunInsert { labels: vec![("k".into(), "v".into())], ..Default::default() };
        RunWrite { tokens: vec![wait(ORG, run(n), 0, token)], ..born(start(run(n)), run_insert) }
    };
    let payloads = vec![(1, Bytes::from_static(b"x"))];
    let timer = store::TimerChange { remove: None, insert: Some(at(3)) };
    let going_on = RunWrite { payloads, timer, ..turn(run(7), 1, RunStatus::Waiting) };
    let writes = atomic_group(5, [with_wait(1, 1), going_on, start(run(2)), start(run(3))]);
    assert_eq!(commit(&store, writes).await, [Undone, Undone, Conflict, Undone]);
    assert_eq!(do_exist(&store, [1, 2, 3]).await, [false, true, false]);
    assert_eq!(store.wait(&[1; 32]).await, Ok(None));
    assert_eq!(store.payloads(ORG, run(7), &[1]).await, Ok(vec![]));
    assert_eq!(store.next_timer().await, Ok(None));
    assert_eq!(store.active_runs().await, Ok(vec![(ORG, run(2)), (ORG, run(7))]));
    let labelled = RunFilter { labels: vec![("k".into(), "v".into())], limit: 9, ..Default::default() };
    assert_eq!(store.runs(ORG, &labelled).await, Ok(vec![]));
    let twice = atomic_group(6, [with_wait(4, 9), with_wait(5, 9), start(run(6))]);
    assert_eq!(commit(&store, twice).await, [Undone, Conflict, Undone]);
    assert_eq!(commit(&store, atomic_group(7, [with_wait(1, 1), append(run(7), 1)])).await, [Committed, Committed]);
}

async fn a_repeated_request_does_not_roll_back_its_atomic_group(store: Arc<dyn Store>) {
    commit(&store, [keyed(1, "a", 1)]).await;
    let taken = |n| KeyTaken { run: run(n), fingerprint: [1; 32] };
    let writes = atomic_group(1, [keyed(2, "a", 1), keyed(3, "b", 1), keyed(4, "b", 1), start(run(5))]);
    assert_eq!(commit(&store, writes).await, [taken(1), Committed, taken(3), Committed]);
    assert_eq!(do_exist(&store, 1..6).await, [true, false, true, false, true]);
}

async fn a_key_of_another_request_rolls_back_its_atomic_group(store: Arc<dyn Store>) {
    commit(&store, [keyed(1, "a", 1)]).await;
    let taken = |n, fingerprint| KeyTaken { run: run(n), fingerprint: [fingerprint; 32] };
    let writes =
        atomic_group(1, [keyed(2, "b", 1), keyed(3, "a", 2), keyed(4, "b", 9), keyed(5, "a", 1), start(run(6))]);
    assert_eq!(commit(&store, writes).await, [Undone, taken(1, 1), taken(2, 1), Undone, Undone]);
    assert_eq!(do_exist(&store, 1..7).await, [true, false, false, false, false, false]);
    assert_eq!(commit(&store, atomic_group(2, [keyed(4, "b", 9), start(run(6))])).await, [Committed, Committed]);
}

async fn a_rolled_back_group_leaves_other_writes_alone(store: Arc<dyn Store>) {
    let mut writes = vec![start(run(1))];
    writes.extend(atomic_group(1, [append(run(1), 1), start(run(2)), start(run(2))]));
    writes.extend(atomic_group(2, [append(run(1), 1), start(run(3))]));
    writes.push(append(run(1), 2));
    let expected = [Committed, Undone, Undone, Conflict, Committed, Committed, Committed];
    assert_eq!(commit(&store, writes).await, expected);
    assert_eq!(store.history(ORG, run(1), 0, 9).await.unwrap().unwrap().len(), 3);
    assert_eq!(
        store.journal_page(ORG, Some(0), 9).await.unwrap().end,
        4,
        "a rolled-back write takes no journal position"
    );
    assert_eq!(commit(&store, [append(run(1), 3), append(run(3), 1)]).await, [Committed, Committed]);
}

fn edit(seen: &WorkflowRow, change: impl FnOnce(&mut WorkflowRow)) -> WorkflowEdit {
    let mut row = seen.clone();
    change(&mut row);
    WorkflowEdit {
        seen: seen.clone(),
        row,
        definition: None,
        version_from: None,
        source: None,
        trigger: OwnTrigger::Keep,
    }
}

async fn a_workflow_edit_needs_the_current_row(store: Arc<dyn Store>) {
    for (n, name) in [(1, "a"), (2, "b")] {
        store.create_workflow(&new_workflow(n, name, name)).await.unwrap().unwrap();
    }
    let seen = new_workflow(1, "a", "a").row;
    let first = edit(&seen, |row| {
        (row.name, row.slug, row.description) = ("c".into(), "c-c".into(), None);
        (row.tags, row.enabled, row.updated_at) = ("[]".into(), false, at(50));
    });
    assert_eq!(store.edit_workflow(&first).await, Ok(Edited::Done));
    let by_id = WorkflowKey::Id(workflow_id(1));
    assert_eq!(store.workflow(ORG, &by_id).await, Ok(Some(first.row.clone())));
    assert_eq!(store.workflow(ORG, &WorkflowKey::Name("a".into())).await, Ok(None));
    assert_eq!(store.edit_workflow(&edit(&seen, |row| row.enabled = true)).await, Ok(Edited::Changed));
    let to_b = edit(&first.row, |row| row.name = "b".into());
    assert_eq!(store.edit_workflow(&to_b).await, Ok(Edited::Taken(NameTaken::Name)));
    let to_b = edit(&first.row, |row| row.slug = "b".into());
    assert_eq!(store.edit_workflow(&to_b).await, Ok(Edited::Taken(NameTaken::Slug)));
    store.create_workflow(&new_workflow(3, "D", "d")).await.unwrap().unwrap();
    let to_d = edit(&first.row, |row| row.name = "d".into());
    assert_eq!(store.edit_workflow(&to_d).await, Ok(Edited::Taken(NameTaken::NameIsSlug)));
    let to_d = edit(&first.row, |row| row.slug = "D".into());
    assert_eq!(store.edit_workflow(&to_d).await, Ok(Edited::Taken(NameTaken::SlugIsName)));
    let unknown = WorkflowRow { id: workflow_id(9), ..seen.clone() };
    assert_eq!(store.edit_workflow(&edit(&unknown, |_| {})).await, Ok(Edited::Changed));
    let elsewhere = WorkflowRow { org: OTHER_ORG, ..first.row.clone() };
    assert_eq!(store.edit_workflow(&edit(&elsewhere, |_| {})).await, Ok(Edited::Changed));
    let pinned = edit(&first.row, |row| row.created_at = at(999));
    assert_eq!(store.edit_workflow(&pinned).await, Ok(Edited::Done));
    assert_eq!(store.workflow(ORG, &by_id).await, Ok(Some(first.row)), "the creation time stays");
}

async fn versions_are_numbered_and_kept(store: Arc<dyn Store>) {
    let first = new_workflow(1, "a", "a");
    store.create_workflow(&first).await.unwrap().unwrap();
    let mut seen = first.row.clone();
    for (number, mark) in [(2, 50), (3, 60), (4, 50)] {
        let definition = StoredDefinition {
            hash: [mark; 32],
            lowering: 0,
            source: Bytes::from(vec![number as u8]),
            plan: Bytes::new(),
        };
        let mut next = edit(&seen, |row| {
            (row.version, row.hash, row.updated_at) = (number, [mark; 32], at(100 + i64::from(number)));
        });
        (next.definition, next.version_from) = (Some(definition), Some("update"));
        assert_eq!(store.edit_workflow(&next).await, Ok(Edited::Done));
        seen = next.row;
    }
    let id = workflow_id(1);
    let numbers = async |before, limit| {
        let versions = store.versions(ORG, id, before, limit).await.unwrap();
        versions.iter().map(|v| (v.number, v.hash[0], v.source.clone(), v.at)).collect::<Vec<_>>()
    };
    let updated = |number: u32, mark| (number, mark, "update".to_owned(), at(100 + i64::from(number)));
    let created = (1, 1, "create".to_owned(), at(1));
    assert_eq!(numbers(None, 9).await, [updated(4, 50), updated(3, 60), updated(2, 50), created.clone()]);
    assert_eq!(numbers(Some(3), 1).await, [updated(2, 50)]);
    assert_eq!(numbers(Some(2), 9).await, [created]);
    let number = async |by| store.version(ORG, id, by).await.unwrap().map(|v| v.number);
    assert_eq!(number(VersionKey::Number(2)).await, Some(2));
    assert_eq!(number(VersionKey::Number(5)).await, None);
    assert_eq!(number(VersionKey::Hash([50; 32])).await, Some(4), "the latest version with this hash");
    assert_eq!(number(VersionKey::Hash([51; 32])).await, None);
    assert_eq!(store.version(OTHER_ORG, id, VersionKey::Number(1)).await, Ok(None));
    assert_eq!(
        store.definition(ORG, [50; 32], None).await.unwrap().unwrap().source,
        Bytes::from_static(&[2]),
        "stored once"
    );
    assert_eq!(store.definition(ORG, [60; 32], None).await.unwrap().unwrap().source, Bytes::from_static(&[3]));
}

async fn m7_lowerings_of_a_definition_are_kept_side_by_side(store: Arc<dyn Store>) {
    let first = new_workflow(1, "a", "a");
    store.create_workflow(&first).await.unwrap().unwrap();
    let again = StoredDefinition { lowering: 2, plan: Bytes::from_static(b"again"), ..first.definition.clone() };
    let next = edit(&first.row, |row| row.lowering = 2);
    let own = Bytes::from_static(b"in another order");
    assert_eq!(store.version_source(ORG, workflow_id(1), 1).await, Ok(Some(first.definition.source.clone())));
    let next = WorkflowEdit { definition: Some(again.clone()), source: Some(own.clone()), ..next };
    assert_eq!(store.edit_workflow(&next).await, Ok(Edited::Done));
    assert_eq!(store.version_source(ORG, workflow_id(1), 1).await, Ok(Some(own)), "the text of a version");
    assert_eq!(store.version_source(ORG, workflow_id(1), 2).await, Ok(None));
    assert_eq!(store.workflow(ORG, &WorkflowKey::Id(workflow_id(1))).await, Ok(Some(next.row)));
    let hash = first.row.hash;
    assert_eq!(store.definition(ORG, hash, Some(first.row.lowering)).await, Ok(Some(first.definition)));
    assert_eq!(store.definition(ORG, hash, Some(1)).await, Ok(None));
    assert_eq!(store.definition(ORG, hash, Some(2)).await, Ok(Some(again.clone())));
    assert_eq!(store.definition(ORG, hash, None).await, Ok(Some(again)), "the latest");
    assert_eq!(store.versions(ORG, workflow_id(1), None, 9).await.unwrap().len(), 1, "no new version");
}

async fn a_name_is_free_once_its_workflow_is_deleted(store: Arc<dyn Store>) {
    let first = new_workflow(1, "a", "a");
    store.create_workflow(&first).await.unwrap().unwrap();
    let delete = edit(&first.row, |row| row.deleted_at = Some(at(70)));
    assert_eq!(store.edit_workflow(&delete).await, Ok(Edited::Done));
    assert_eq!(store.edit_workflow(&delete).await, Ok(Edited::Changed));
    assert_eq!(store.edit_workflow(&edit(&delete.row, |row| row.deleted_at = None)).await, Ok(Edited::Changed));
    let id = workflow_id(1);
    assert_eq!(store.workflow(ORG, &WorkflowKey::Id(id)).await, Ok(None));
    assert_eq!(store.workflow(ORG, &WorkflowKey::IdOrDeleted(id)).await, Ok(Some(delete.row)));
    assert_eq!(store.workflow(OTHER_ORG, &WorkflowKey::IdOrDeleted(id)).await, Ok(None));
    assert_eq!(store.workflows(ORG, &store::WorkflowFilter { limit: 9, ..Default::default() }).await, Ok(vec![]));
    assert_eq!(store.versions(ORG, id, None, 9).await.unwrap().len(), 1);
    assert_eq!(store.create_workflow(&new_workflow(2, "a", "a")).await, Ok(Ok(())));
    assert!(matches!(store.create_workflow(&new_workflow(1, "x", "x")).await, Err(store::Error::Refused(_))));
}

/// Deletes a run as it was after its second record.
fn erasure(run: RunId) -> Erasure {
    Erasure { org: ORG, run, seq: 2, labels: vec![("k".into(), "v".into())] }
}

/// Creates a run with every kind of row that a run can have.
async fn create_full_run(store: &Arc<dyn Store>) {
    let run_insert =
        RunInsert { labels: vec![("k".into(), "v".into())], idempotency: Some(key("a", 1)), ..Default::default() };
    let first = RunWrite {
        payloads: vec![(1, Bytes::from_static(b"x"))],
        snapshot: Some(state(run(1), 1)),
        tokens: vec![wait(ORG, run(1), 0, 3)],
        ..born(start(run(1)), run_insert)
    };
    commit(store, [first, start(run(2)), turn(run(1), 1, RunStatus::Completed), append(run(2), 1)]).await;
}

async fn erasing_a_finished_run_removes_all_its_data(store: Arc<dyn Store>) {
    create_full_run(&store).await;
    assert_eq!(store.erase(&Erasure { org: OTHER_ORG, ..erasure(run(1)) }).await, Ok(Erased::NotFound));
    assert_eq!(store.erase(&erasure(run(1))).await, Ok(Erased::Done));
    assert_eq!(store.erase(&erasure(run(1))).await, Ok(Erased::NotFound));
    assert_eq!(store.load(ORG, run(1)).await, Ok(None));
    assert_eq!(store.run(ORG, run(1)).await, Ok(None));
    assert_eq!(store.history(ORG, run(1), 0, 9).await, Ok(None));
    assert_eq!(store.payloads(ORG, run(1), &[1]).await, Ok(vec![]));
    assert_eq!(store.wait(&[3; 32]).await, Ok(None));
    let labelled = RunFilter { labels: vec![("k".into(), "v".into())], limit: 9, ..Default::default() };
    assert_eq!(store.runs(ORG, &labelled).await, Ok(vec![]));
    assert_eq!(
        commit(&store, [append(run(1), 2), append(run(2), 2)]).await,
        [Conflict, Committed],
        "an erased run accepts no late record"
    );
}

async fn an_open_run_is_not_erased(store: Arc<dyn Store>) {
    for (n, status) in (1..).zip(RunStatus::ALL) {
        commit(&store, [start(run(n)), turn(run(n), 1, *status)]).await;
        let expected = if status.is_terminal() { Erased::Done } else { Erased::NotEnded };
        assert_eq!(store.erase(&erasure(run(n))).await, Ok(expected), "{status}");
        assert_eq!(store.run(ORG, run(n)).await.unwrap().is_some(), !status.is_terminal());
    }
    commit(&store, [start(run(90)), RunWrite { notifications: vec![0], ..turn(run(90), 1, RunStatus::Failed) }]).await;
    assert_eq!(store.erase(&erasure(run(90))).await, Ok(Erased::NotificationsPending));
    let notification_run = born(start(run(91)), RunInsert { notification: Some((run(90), 0)), ..Default::default() });
    assert_eq!(commit(&store, [notification_run]).await, [Committed]);
    assert_eq!(store.erase(&erasure(run(90))).await, Ok(Erased::Done));
}

/// M30: a run that went on after it was read, and ended again, is another one.
async fn a_run_is_erased_only_as_it_was_read(store: Arc<dyn Store>) {
    let number = (7 << 16) + 1;
    commit(&store, [start(run(1)), RunWrite { notifications: vec![number], ..turn(run(1), 1, RunStatus::Failed) }])
        .await;
    let sender = born(start(run(2)), RunInsert { notification: Some((run(1), number)), ..Default::default() });
    commit(&store, [sender, turn(run(1), 2, RunStatus::Running)]).await;
    assert_eq!(store.erase(&erasure(run(1))).await, Ok(Erased::NotEnded));
    commit(&store, [turn(run(1), 3, RunStatus::Failed)]).await;
    assert_eq!(store.erase(&erasure(run(1))).await, Ok(Erased::Changed));
    assert!(store.load(ORG, run(1)).await.unwrap().is_some());
    assert_eq!(store.erase(&Erasure { seq: 4, ..erasure(run(1)) }).await, Ok(Erased::Done));
}

async fn an_erased_run_keeps_its_key_and_journal_positions(store: Arc<dyn Store>) {
    create_full_run(&store).await;
    let late = RunWrite { record: record(run(1), 3, at(2_000)), ..append(run(1), 2) };
    commit(&store, [late]).await;
    assert_eq!(store.erase(&Erasure { seq: 3, ..erasure(run(1)) }).await, Ok(Erased::Done));
    assert_eq!(store.high_water().await, Ok(Some(at(2_000))), "high water does not go back");
    let taken = KeyTaken { run: run(1), fingerprint: [1; 32] };
    assert_eq!(commit(&store, [keyed(5, "a", 1), append(run(2), 2)]).await, [taken, Committed]);
    let journal_page = store.journal_page(ORG, Some(0), 99).await.unwrap();
    assert_eq!(
        journal_page.records.iter().map(|r| (r.pos, r.run)).collect::<Vec<_>>(),
        [2, 4, 6].map(|pos| (pos, run(2)))
    );
    assert_eq!(journal_page.end, 6);
}

async fn a_page_of_history_begins_after_a_record(store: Arc<dyn Store>) {
    commit(&store, [start(run(1))]).await;
    for after in 1..6 {
        commit(&store, [append(run(1), after), start(run(10 + after))]).await;
    }
    let page = async |after, limit| store.history(ORG, run(1), after, limit).await.unwrap().unwrap();
    let records = |numbers: std::ops::RangeInclusive<u64>| numbers.map(|n| record(run(1), n, at(1_000)));
    for (after, limit, expected) in
        [(0, 2, 1..=2), (2, 2, 3..=4), (4, 2, 5..=6), (3, usize::MAX, 4..=6), (5, 1, 6..=6), (0, 99, 1..=6)]
    {
        assert!(page(after, limit).await.into_iter().eq(records(expected)), "{limit} after {after}");
    }
    for (after, limit) in [(6, 9), (7, 9), (u64::MAX, usize::MAX), (0, 0)] {
        assert!(page(after, limit).await.is_empty(), "{limit} after {after}");
    }
}

async fn a_stretch_has_the_records_after_a_position(store: Arc<dyn Store>) {
    assert_eq!(store.journal_page(ORG, None, 9).await, Ok(store::JournalPage::default()));
    assert_eq!(store.journal_page(ORG, Some(7), 9).await.unwrap().end, 0, "a position that was never assigned");
    commit(&store, [start(run(1)), start_in(OTHER_ORG, run(1)), start(run(2))]).await;
    assert_eq!(commit(&store, [start(run(1)), append(run(1), 1)]).await, [Conflict, Committed]);
    let look = async |org, after, limit| {
        let journal_page = store.journal_page(org, after, limit).await.unwrap();
        (journal_page.records.iter().map(|r| (r.pos, r.run)).collect::<Vec<_>>(), journal_page.end)
    };
    assert_eq!(look(ORG, None, 9).await, (vec![], 4), "only the end position");
    assert_eq!(look(ORG, Some(0), 9).await, (vec![(1, run(1)), (3, run(2)), (4, run(1))], 4));
    assert_eq!(look(ORG, Some(0), 2).await, (vec![(1, run(1))], 2), "two positions, one of another organisation");
    assert_eq!(look(ORG, Some(2), 2).await, (vec![(3, run(2)), (4, run(1))], 4));
    assert_eq!(look(OTHER_ORG, Some(0), 9).await, (vec![(2, run(1))], 4));
    assert_eq!(look(ORG, Some(4), 9).await, (vec![], 4));
    let last = store.journal_page(ORG, Some(3), 9).await.unwrap();
    assert_eq!(last.records[0].record, record(run(1), 2, at(1_000)));
}
