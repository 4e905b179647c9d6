//! Rules about the inbox that every store follows: a row is written without a record of its run, consumed by at most
//! one record, and kept with its answer until the answer is taken.

use super::Case;
use super::cases::{cases, commit};
use super::fixtures::*;
use bytes::Bytes;
use kernel::RunStatus;
use kernel::inbox::InboxKind;
use std::num::NonZeroU32;
use std::sync::Arc;
use store::WriteVerdict::{Committed, Conflict, Undone};
use store::{Erased, InboxKey, RunInsert, RunWrite, Store};

cases![
    an_inbox_row_is_consumed_once,
    an_inbox_row_is_consumed_with_its_record_or_not_at_all,
    two_records_of_a_batch_cannot_consume_the_same_row,
    an_atomic_group_consumes_all_its_rows_or_none,
    inbox_rows_are_read_in_order_page_by_page,
    an_answer_is_taken_once_and_only_by_its_key,
    a_row_is_answered_without_a_record_unless_it_has_an_answer,
    only_old_answers_are_deleted,
    a_run_with_an_unconsumed_row_is_not_erased,
];

async fn unanswered(store: &Arc<dyn Store>) -> Vec<InboxKey> {
    let rows = store.inbox(InboxKind::Input, None, 100).await.unwrap();
    rows.into_iter().map(|row| row.key).collect()
}

async fn taken(store: &Arc<dyn Store>, keys: &[InboxKey]) -> Vec<(InboxKey, Bytes)> {
    store.take_inbox_answers(keys).await.unwrap()
}

async fn an_inbox_row_is_consumed_once(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2))]).await;
    store.put_inbox(&[inbox_row(ORG, run(1), 1), inbox_row(ORG, run(1), 2)]).await.unwrap();
    assert_eq!(unanswered(&store).await, [inbox_key(ORG, run(1), 1), inbox_key(ORG, run(1), 2)]);
    let other_run = consume(append(run(2), 1), &[1]);
    assert_eq!(commit(&store, [other_run, append(run(2), 1)]).await, [Conflict, Committed], "a row of another run");
    let first = consume(append(run(1), 1), &[1]);
    assert_eq!(commit(&store, [first, append(run(2), 2)]).await, [Committed, Committed]);
    let again = consume(append(run(1), 2), &[1]);
    assert_eq!(commit(&store, [again.clone(), append(run(2), 3)]).await, [Conflict, Committed]);
    assert_eq!(store.load(ORG, run(1)).await.unwrap().unwrap().seq, 2, "nothing of the refused record is written");
    assert_eq!(taken(&store, &[inbox_key(ORG, run(1), 1)]).await.len(), 1);
    assert_eq!(commit(&store, [again]).await, [Conflict], "also once the row is gone");
    assert_eq!(unanswered(&store).await, [inbox_key(ORG, run(1), 2)]);
}

async fn an_inbox_row_is_consumed_with_its_record_or_not_at_all(store: Arc<dyn Store>) {
    commit(&store, [start(run(1))]).await;
    store.put_inbox(&[inbox_row(ORG, run(1), 1)]).await.unwrap();
    assert_eq!(commit(&store, [consume(append(run(1), 7), &[1])]).await, [Conflict], "another record was first");
    assert_eq!(unanswered(&store).await, [inbox_key(ORG, run(1), 1)]);
    assert_eq!(commit(&store, [consume(append(run(1), 1), &[1, 9])]).await, [Conflict], "one row does not exist");
    assert_eq!(commit(&store, [consume(append(run(1), 1), &[1, 1])]).await, [Conflict], "the same row twice");
    assert_eq!(unanswered(&store).await, [inbox_key(ORG, run(1), 1)]);
    assert_eq!(commit(&store, [consume(append(run(1), 1), &[1])]).await, [Committed]);
    assert_eq!(taken(&store, &[inbox_key(ORG, run(1), 1)]).await, [(inbox_key(ORG, run(1), 1), inbox_answer(1))]);
}

async fn two_records_of_a_batch_cannot_consume_the_same_row(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), start(run(2))]).await;
    store.put_inbox(&[inbox_row(ORG, run(1), 1)]).await.unwrap();
    let twice = [consume(append(run(1), 1), &[1]), consume(append(run(1), 2), &[1]), append(run(2), 1)];
    assert_eq!(commit(&store, twice).await, [Committed, Conflict, Committed]);
}

async fn an_atomic_group_consumes_all_its_rows_or_none(store: Arc<dyn Store>) {
    store.put_inbox(&[inbox_row(ORG, run(1), 1)]).await.unwrap();
    let group = |write: RunWrite| RunWrite { atomic_group: NonZeroU32::new(1), ..write };
    let (first, second) = (group(consume(start(run(1)), &[1])), group(consume(start(run(2)), &[2])));
    assert_eq!(commit(&store, [first.clone(), second]).await, [Undone, Conflict]);
    assert_eq!(unanswered(&store).await, [inbox_key(ORG, run(1), 1)]);
    let second = group(born(start(run(2)), RunInsert::default()));
    assert_eq!(commit(&store, [first, second]).await, [Committed, Committed], "the row was there before its run");
    assert_eq!(unanswered(&store).await, []);
}

async fn inbox_rows_are_read_in_order_page_by_page(store: Arc<dyn Store>) {
    let rows = [
        inbox_row(ORG, run(1), 1),
        inbox_row(ORG, run(1), 2),
        inbox_row(ORG, run(2), 0),
        inbox_row(OTHER_ORG, run(1), 1),
    ];
    let mut shuffled = rows.to_vec();
    shuffled.swap(0, 3);
    shuffled.swap(1, 2);
    store.put_inbox(&shuffled).await.unwrap();
    let changed = store::InboxRow { body: Bytes::from_static(b"other"), ..rows[0].clone() };
    store.put_inbox(&[changed]).await.unwrap();
    let (mut after, mut read) = (None, Vec::new());
    loop {
        let page = store.inbox(InboxKind::Input, after, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.key);
        read.extend(page);
    }
    assert_eq!(read, rows, "and a row that exists is not written again");
}

async fn an_answer_is_taken_once_and_only_by_its_key(store: Arc<dyn Store>) {
    let keys = [inbox_key(ORG, run(1), 1), inbox_key(ORG, run(1), 2), inbox_key(ORG, run(1), 3)];
    store.put_inbox(&[1, 2, 3].map(|n| inbox_row(ORG, run(1), n))).await.unwrap();
    commit(&store, [consume(start(run(1)), &[1, 2])]).await;
    assert_eq!(taken(&store, &[inbox_key(OTHER_ORG, run(1), 1), inbox_key(ORG, run(2), 1)]).await, []);
    let reversed = [keys[2], keys[1], keys[0]];
    assert_eq!(taken(&store, &reversed).await, [(keys[1], inbox_answer(2)), (keys[0], inbox_answer(1))]);
    assert_eq!(taken(&store, &keys).await, []);
    assert_eq!(unanswered(&store).await, [keys[2]]);
}

async fn a_row_is_answered_without_a_record_unless_it_has_an_answer(store: Arc<dyn Store>) {
    let (key, late) = (inbox_key(ORG, run(1), 1), Bytes::from_static(b"late"));
    store.put_inbox(&[inbox_row(ORG, run(1), 1)]).await.unwrap();
    let gone = answered_row(inbox_key(ORG, run(1), 9), late.clone());
    store.answer_inbox(&[answered_row(key, inbox_answer(1)), gone]).await.unwrap();
    store.answer_inbox(&[answered_row(key, late)]).await.unwrap();
    assert_eq!(unanswered(&store).await, []);
    assert_eq!(commit(&store, [consume(start(run(1)), &[1])]).await, [Conflict]);
    assert_eq!(taken(&store, &[key]).await, [(key, inbox_answer(1))]);
}

async fn only_old_answers_are_deleted(store: Arc<dyn Store>) {
    let rows = [1, 2, 3].map(|n| inbox_row(ORG, run(1), n));
    store.put_inbox(&rows).await.unwrap();
    commit(&store, [consume(start(run(1)), &[1, 3])]).await;
    store.delete_inbox_answers(rows[2].written_at).await.unwrap();
    assert_eq!(unanswered(&store).await, [rows[1].key], "a row without an answer stays, however old it is");
    let answers = taken(&store, &rows.map(|row| row.key)).await;
    assert_eq!(answers, [(inbox_key(ORG, run(1), 3), inbox_answer(3))]);
}

async fn a_run_with_an_unconsumed_row_is_not_erased(store: Arc<dyn Store>) {
    commit(&store, [start(run(1)), turn(run(1), 1, RunStatus::Completed)]).await;
    let erasure = store::Erasure { org: ORG, run: run(1), seq: 3, labels: Vec::new() };
    store.put_inbox(&[inbox_row(ORG, run(1), 1), inbox_row(OTHER_ORG, run(1), 1)]).await.unwrap();
    assert_eq!(store.erase(&erasure).await, Ok(Erased::InboxPending));
    assert_eq!(store.hide(ORG, run(1), at(1)).await, Ok(Erased::InboxPending));
    assert!(store.run(ORG, run(1)).await.unwrap().is_some());
    commit(&store, [consume(append(run(1), 2), &[1])]).await;
    assert_eq!(store.erase(&erasure).await, Ok(Erased::Done), "an answer does not keep the run");
    assert_eq!(taken(&store, &[inbox_key(ORG, run(1), 1)]).await.len(), 1);
}
