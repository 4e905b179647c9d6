//! Rules about limit slots that every store follows. The limits of a type give a number of slots, and each
//! slot is held by one step of one run at a time.

use super::Case;
use super::cases::{cases, commit};
use super::fixtures::*;
use kernel::{OrgId, RunId, Timestamp};
use std::num::NonZeroU32;
use std::sync::Arc;
use store::WriteVerdict::{Committed, Conflict, Full, KeyTaken, Undone};
use store::{Batch, LimitScope, LimitSlot, LimitSlotChange, LimitSlotRow, RunInsert, RunWrite, Store};

cases![
    a_limit_slot_is_taken_once,
    only_its_holder_frees_a_limit_slot,
    a_limit_slot_changes_hands_within_a_batch,
    an_expired_limit_slot_is_free,
    a_write_without_its_limit_slot_changes_nothing,
    an_atomic_group_needs_all_its_limit_slots,
    other_conflicts_are_reported_before_limit_slots,
    limit_slots_are_separate_by_type_key_and_kind,
];

fn slot(number: u32) -> LimitSlot {
    LimitSlot { org: ORG, name: "mail".into(), of: LimitScope::Type, key: String::new(), number }
}

fn row(slot: LimitSlot, run: RunId) -> LimitSlotRow {
    LimitSlotRow { slot, run, step: 0, until: LimitSlotRow::FREED }
}

fn take(write: RunWrite, rows: Vec<LimitSlotRow>) -> RunWrite {
    RunWrite { limit_slots: LimitSlotChange { take: rows, ..Default::default() }, ..write }
}

fn free(write: RunWrite, rows: Vec<LimitSlotRow>) -> RunWrite {
    RunWrite { limit_slots: LimitSlotChange { free: rows, ..Default::default() }, ..write }
}

/// The runs that hold limit slots of the type.
async fn holders(store: &Arc<dyn Store>) -> Vec<(u32, RunId)> {
    let rows = store.limit_slots(ORG, "mail").await.unwrap();
    rows.into_iter().map(|row| (row.slot.number, row.run)).collect()
}

async fn a_limit_slot_is_taken_once(store: Arc<dyn Store>) {
    assert_eq!(store.limit_slots(ORG, "mail").await, Ok(vec![]));
    let first = take(start(run(1)), vec![row(slot(0), run(1))]);
    let second = take(start(run(2)), vec![row(slot(0), run(2))]);
    assert_eq!(commit(&store, [first, second.clone(), start(run(3))]).await, [Committed, Full, Committed]);
    assert_eq!(commit(&store, [second, start(run(4))]).await, [Full, Committed]);
    assert_eq!(holders(&store).await, [(0, run(1))]);
    let another = take(start(run(2)), vec![row(slot(1), run(2))]);
    assert_eq!(commit(&store, [another]).await, [Committed]);
    assert_eq!(holders(&store).await, [(0, run(1)), (1, run(2))]);
    let again = take(append(run(1), 1), vec![row(slot(0), run(1))]);
    assert_eq!(commit(&store, [again]).await, [Full], "also if the run holds it already");
}

async fn only_its_holder_frees_a_limit_slot(store: Arc<dyn Store>) {
    commit(&store, [take(start(run(1)), vec![row(slot(0), run(1))]), start(run(2))]).await;
    let mistaken = free(append(run(2), 1), vec![row(slot(0), run(2))]);
    let stranger = free(append(run(2), 2), vec![row(slot(0), run(1))]);
    let another_step = LimitSlotRow { step: 1, ..row(slot(0), run(1)) };
    let another_step = free(append(run(1), 1), vec![another_step]);
    let verdicts = commit(&store, [mistaken, stranger, another_step]).await;
    assert_eq!(verdicts, [Committed, Conflict, Committed]);
    assert_eq!(holders(&store).await, [(0, run(1))]);
    assert_eq!(commit(&store, [free(append(run(1), 1), vec![row(slot(0), run(1))])]).await, [Conflict]);
    assert_eq!(holders(&store).await, [(0, run(1))], "a record that conflicts frees nothing");
    assert_eq!(commit(&store, [free(append(run(1), 2), vec![row(slot(0), run(1))])]).await, [Committed]);
    assert_eq!(holders(&store).await, []);
    assert_eq!(commit(&store, [take(append(run(2), 2), vec![row(slot(0), run(2))])]).await, [Committed]);
}

async fn a_limit_slot_changes_hands_within_a_batch(store: Arc<dyn Store>) {
    commit(&store, [take(start(run(1)), vec![row(slot(0), run(1))])]).await;
    let frees = free(append(run(1), 1), vec![row(slot(0), run(1))]);
    let takes = take(start(run(2)), vec![row(slot(0), run(2))]);
    let frees_too = free(append(run(2), 1), vec![row(slot(0), run(2))]);
    let late = take(append(run(1), 2), vec![row(slot(0), run(1))]);
    let verdicts = commit(&store, [frees, takes, late.clone(), frees_too, late]).await;
    assert_eq!(verdicts, [Committed, Committed, Full, Committed, Committed]);
    assert_eq!(holders(&store).await, [(0, run(1))]);
    let moves =
        LimitSlotChange { free: vec![row(slot(0), run(1))], take: vec![row(slot(1), run(1)), row(slot(0), run(1))] };
    assert_eq!(commit(&store, [RunWrite { limit_slots: moves, ..append(run(1), 3) }]).await, [Committed]);
    assert_eq!(holders(&store).await, [(0, run(1)), (1, run(1))]);
}

async fn an_expired_limit_slot_is_free(store: Arc<dyn Store>) {
    let rate = |run: RunId, until: i64| LimitSlotRow {
        slot: LimitSlot { of: LimitScope::Rate, ..slot(0) },
        run,
        step: 0,
        until: at(until),
    };
    let at_time = async |time: i64, write: RunWrite| {
        let batch = Batch { at: at(time), epoch: 1, runs: vec![write] };
        store.commit(&batch).await.unwrap()
    };
    assert_eq!(at_time(10, take(start(run(1)), vec![rate(run(1), 20)])).await, [Committed]);
    assert_eq!(at_time(19, take(start(run(2)), vec![rate(run(2), 29)])).await, [Full]);
    assert_eq!(at_time(20, take(start(run(2)), vec![rate(run(2), 30)])).await, [Committed]);
    assert_eq!(store.limit_slots(ORG, "mail").await, Ok(vec![rate(run(2), 30)]));
    store.delete_expired_limit_slots(at(29)).await.unwrap();
    assert_eq!(holders(&store).await, [(0, run(2))]);
    store.delete_expired_limit_slots(at(30)).await.unwrap();
    assert_eq!(holders(&store).await, []);
    assert_eq!(at_time(31, take(start(run(3)), vec![row(slot(0), run(3))])).await, [Committed]);
    store.delete_expired_limit_slots(Timestamp(i64::MAX - 1)).await.unwrap();
    assert_eq!(holders(&store).await, [(0, run(3))], "a slot without an expiry is not removed");
}

async fn a_write_without_its_limit_slot_changes_nothing(store: Arc<dyn Store>) {
    commit(&store, [take(start(run(1)), vec![row(slot(1), run(1))]), start(run(2))]).await;
    let tasks = vec![task(run(2), 0, "mail", 1)];
    let wants = vec![row(slot(0), run(2)), row(slot(1), run(2))];
    assert_eq!(commit(&store, [take(offer(run(2), 1, tasks), wants)]).await, [Full]);
    assert_eq!(holders(&store).await, [(1, run(1))]);
    assert_eq!(store.ready_types().await, Ok(vec![]));
    assert_eq!(store.load(ORG, run(2)).await.unwrap().unwrap().seq, 1);
    let born = take(start(run(3)), vec![row(slot(1), run(3))]);
    let run_insert = RunInsert { idempotency: Some(key("k", 1)), ..Default::default() };
    assert_eq!(commit(&store, [created_with(&born, &run_insert)]).await, [Full]);
    assert_eq!(store.run(ORG, run(3)).await, Ok(None));
    assert_eq!(commit(&store, [created_with(&start(run(4)), &run_insert)]).await, [Committed], "the key is free");
}

fn created_with(write: &RunWrite, run_insert: &RunInsert) -> RunWrite {
    born(write.clone(), run_insert.clone())
}

async fn an_atomic_group_needs_all_its_limit_slots(store: Arc<dyn Store>) {
    commit(&store, [take(start(run(1)), vec![row(slot(0), run(1))])]).await;
    let in_group = |write: RunWrite| RunWrite { atomic_group: NonZeroU32::new(7), ..write };
    let atomic_group = [in_group(start(run(2))), in_group(take(start(run(3)), vec![row(slot(0), run(3))]))];
    let alone = take(start(run(4)), vec![row(slot(1), run(4))]);
    let batch: Vec<RunWrite> = atomic_group.into_iter().chain([alone]).collect();
    assert_eq!(commit(&store, batch).await, [Undone, Full, Committed]);
    assert_eq!(store.run(ORG, run(2)).await, Ok(None));
    assert_eq!(holders(&store).await, [(0, run(1)), (1, run(4))]);
}

async fn other_conflicts_are_reported_before_limit_slots(store: Arc<dyn Store>) {
    let run_insert = RunInsert { idempotency: Some(key("k", 1)), ..Default::default() };
    let holder = take(born(start(run(1)), run_insert.clone()), vec![row(slot(0), run(1))]);
    commit(&store, [holder, start(run(2))]).await;
    let wants = |write: RunWrite| {
        let rows = vec![row(slot(0), write.run)];
        take(write, rows)
    };
    let taken = KeyTaken { run: run(1), fingerprint: key("k", 1).fingerprint };
    assert_eq!(commit(&store, [wants(born(start(run(3)), run_insert))]).await, [taken]);
    assert_eq!(commit(&store, [wants(append(run(2), 7))]).await, [Conflict]);
    assert_eq!(commit(&store, [wants(start(run(2)))]).await, [Conflict]);
    let twice = take(append(run(2), 1), vec![row(slot(1), run(2)), row(slot(1), run(2))]);
    let anothers = take(append(run(2), 1), vec![row(slot(1), run(1))]);
    let elsewhere = take(append(run(2), 1), vec![row(LimitSlot { org: OTHER_ORG, ..slot(1) }, run(2))]);
    for wrong in [twice, anothers, elsewhere] {
        assert_eq!(commit(&store, [wrong]).await, [Conflict]);
    }
}

async fn limit_slots_are_separate_by_type_key_and_kind(store: Arc<dyn Store>) {
    let kinds = [
        slot(0),
        LimitSlot { of: LimitScope::Key, ..slot(0) },
        LimitSlot { of: LimitScope::Key, key: "k".into(), ..slot(0) },
        LimitSlot { of: LimitScope::Rate, ..slot(0) },
    ];
    let mut rows: Vec<LimitSlotRow> = kinds.into_iter().map(|slot| row(slot, run(1))).collect();
    let other_type = row(LimitSlot { name: "mail.urgent".into(), ..slot(0) }, run(1));
    let all = rows.iter().cloned().chain([other_type.clone()]).collect();
    let elsewhere = take(start_in(OTHER_ORG, run(2)), vec![row(LimitSlot { org: OTHER_ORG, ..slot(0) }, run(2))]);
    assert_eq!(commit(&store, [take(start(run(1)), all), elsewhere]).await, [Committed, Committed]);
    rows.sort();
    assert_eq!(store.limit_slots(ORG, "mail").await, Ok(rows));
    assert_eq!(store.limit_slots(ORG, "mail.urgent").await, Ok(vec![other_type]));
    assert_eq!(store.limit_slots(OTHER_ORG, "mail").await.unwrap().len(), 1);
    assert_eq!(store.limit_slots(OrgId(77), "mail").await, Ok(vec![]));
}
