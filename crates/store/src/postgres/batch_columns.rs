//! A batch as columns: one list per column, as `UNNEST` takes them, and one statement per table.
//!
//! A batch may contain several records of one run. All of them are inserted. Of rows that are replaced (the run's row,
//! its snapshot) only the last version is written, and of rows that are inserted and removed (timers, ready tasks,
//! notifications) only the final state.
//!
//! Invariant: the rows of every list are in the order of their keys, so that two batches cannot deadlock.

use super::columns::{Blob, EscapedText, Id, group_bytes, int, org_of, sql};
use super::inbox;
use super::session::Params;
use crate::rows::{Batch, ConsumedRow, InboxRow, LimitSlotRow, OpenWait, ReadyRow, RunRow, RunWrite, Wait};
use crate::triggers::{DELIVERIES_KEPT, DeliveryRow, REQUESTS_KEPT, ScheduleAdvance};
use bytes::{BufMut, Bytes, BytesMut};
use kernel::{OrgId, RunId, Timestamp, TriggerId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use tokio_postgres::types::ToSql;

type Key = (OrgId, RunId);
/// Bytes of a record's key in `arrivals`: organisation, run and number.
pub(super) const RECORD_KEY_BYTES: usize = 24;

/// Statements with their parameters, in the order in which they are sent.
#[derive(Default)]
pub(super) struct BatchColumns {
    statements: Vec<(&'static str, Vec<Box<dyn ToSql + Sync + Send>>)>,
    pub journal: JournalColumns,
}

/// The columns of the records. Separate, because they are also looked up when the outcome of a commit is unknown.
#[derive(Default)]
pub(super) struct JournalColumns {
    pub orgs: Vec<i32>,
    pub runs: Vec<Id>,
    pub seqs: Vec<i32>,
    follows: Vec<bool>,
    pub bodies: Vec<Blob>,
}

impl BatchColumns {
    /// The writes must be valid and must not conflict with each other.
    pub(super) fn new(batch: &Batch, writes: &[&RunWrite]) -> BatchColumns {
        let mut batch_columns = BatchColumns { journal: JournalColumns::new(writes), ..BatchColumns::default() };
        batch_columns.runs(writes);
        batch_columns.snapshots(writes);
        batch_columns.timers(writes);
        batch_columns.payloads(writes);
        batch_columns.ready(writes);
        batch_columns.limit_slots(batch, writes);
        batch_columns.inbox(writes);
        batch_columns.waits(writes);
        batch_columns.run_inserts(writes);
        batch_columns.notifications(writes);
        batch_columns.deliveries(writes);
        let written = record_keys(writes.iter().map(|write| (write.org, write.run, write.after + 1)));
        batch_columns.add(sql!("postgres/arrival_insert"), vec![Box::new(int(batch.epoch)), Box::new(Blob(written))]);
        batch_columns
    }

    /// The statements and their parameters, the journal first.
    pub(super) fn statements(&self) -> impl Iterator<Item = (&'static str, Params<'_>)> {
        let JournalColumns { orgs, runs, seqs, follows, bodies } = &self.journal;
        let journal: Params<'_> = vec![orgs, runs, seqs, follows, bodies];
        let others = self.statements.iter().map(|(text, params)| {
            (*text, params.iter().map(|param| -> &(dyn ToSql + Sync) { &**param }).collect::<Params<'_>>())
        });
        std::iter::once((sql!("postgres/journal_append"), journal)).chain(others)
    }

    fn add(&mut self, text: &'static str, params: Vec<Box<dyn ToSql + Sync + Send>>) {
        self.statements.push((text, params));
    }

    fn runs(&mut self, writes: &[&RunWrite]) {
        let mut last: BTreeMap<Key, (Option<&RunRow>, Option<&RunRow>)> = BTreeMap::new();
        for write in writes {
            let Some(row) = &write.row else { continue };
            let entry = last.entry((write.org, write.run)).or_default();
            match write.after {
                0 => *entry = (Some(row), None),
                _ => entry.1 = Some(row),
            }
        }
        let created: Vec<(&RunRow, &RunRow)> = last
            .values()
            .filter_map(|(created, updated)| created.map(|created| (created, updated.unwrap_or(created))))
            .collect();
        if !created.is_empty() {
            self.add(
                sql!("postgres/runs_insert"),
                vec![
                    list(&created, |(row, _)| org_of(row.org)),
                    list(&created, |(row, _)| Id(row.id.0)),
                    list(&created, |(row, _)| Id(row.workflow.0)),
                    list(&created, |(row, _)| EscapedText::of(&row.workflow_name)),
                    list(&created, |(row, _)| i64::from(row.version)),
                    list(&created, |(row, _)| row.hash.to_vec()),
                    list(&created, |(row, _)| row.form.as_str()),
                    list(&created, |(_, now)| now.status.as_str()),
                    list(&created, |(_, now)| i64::from(now.waiting)),
                    list(&created, |(_, now)| time(now.wake_at)),
                    list(&created, |(row, _)| row.created_at.0),
                    list(&created, |(_, now)| now.expires_at.0),
                    list(&created, |(_, now)| time(now.finished_at)),
                    list(&created, |(_, now)| EscapedText::maybe(now.error_code.as_deref())),
                    list(&created, |(row, _)| row.concurrency_group.as_ref().map(group_bytes)),
                    list(&created, |(_, now)| now.evicted),
                    list(&created, |(row, _)| i64::from(row.lowering)),
                    list(&created, |(_, now)| EscapedText::maybe(now.failed_steps.as_deref())),
                ],
            );
        }
        let updated: Vec<&RunRow> =
            last.values().filter_map(|(created, updated)| updated.filter(|_| created.is_none())).collect();
        let moved: BTreeMap<Key, &RunRow> = writes
            .iter()
            .filter(|write| write.is_moved)
            .filter_map(|write| Some(((write.org, write.run), write.row.as_ref()?)))
            .collect();
        if !moved.is_empty() {
            let moved: Vec<&RunRow> = moved.into_values().collect();
            self.add(
                sql!("postgres/runs_move"),
                vec![
                    list(&moved, |row| org_of(row.org)),
                    list(&moved, |row| Id(row.id.0)),
                    list(&moved, |row| i64::from(row.version)),
                    list(&moved, |row| row.hash.to_vec()),
                    list(&moved, |row| i64::from(row.lowering)),
                ],
            );
        }
        if !updated.is_empty() {
            self.add(
                sql!("postgres/runs_update"),
                vec![
                    list(&updated, |row| org_of(row.org)),
                    list(&updated, |row| Id(row.id.0)),
                    list(&updated, |row| row.status.as_str()),
                    list(&updated, |row| i64::from(row.waiting)),
                    list(&updated, |row| time(row.wake_at)),
                    list(&updated, |row| row.expires_at.0),
                    list(&updated, |row| time(row.finished_at)),
                    list(&updated, |row| EscapedText::maybe(row.error_code.as_deref())),
                    list(&updated, |row| row.evicted),
                    list(&updated, |row| EscapedText::maybe(row.failed_steps.as_deref())),
                ],
            );
        }
    }

    fn snapshots(&mut self, writes: &[&RunWrite]) {
        let states = writes.iter().filter_map(|w| Some(((w.org, w.run), (w.after + 1, w.snapshot.as_ref()?))));
        let last: Vec<(Key, (u64, &Bytes))> = states.collect::<BTreeMap<_, _>>().into_iter().collect();
        if last.is_empty() {
            return;
        }
        self.add(
            sql!("postgres/snapshots_put"),
            vec![
                list(&last, |((org, _), _)| org_of(*org)),
                list(&last, |((_, run), _)| Id(run.0)),
                list(&last, |(_, (seq, _))| small(*seq)),
                list(&last, |(_, (_, state))| Blob((*state).clone())),
            ],
        );
    }

    fn timers(&mut self, writes: &[&RunWrite]) {
        let mut left: NetChange<(Timestamp, OrgId, RunId)> = NetChange::default();
        for write in writes {
            left.remove(write.timer.remove.map(|at| (at, write.org, write.run)));
            left.insert(write.timer.insert.map(|at| (at, write.org, write.run)));
        }
        for (text, rows) in
            [(sql!("postgres/timers_delete"), left.removed), (sql!("postgres/timers_insert"), left.inserted)]
        {
            let rows = Vec::from_iter(rows);
            if !rows.is_empty() {
                let columns = vec![
                    list(&rows, |(at, _, _)| at.0),
                    list(&rows, |(_, org, _)| org_of(*org)),
                    list(&rows, |(_, _, run)| Id(run.0)),
                ];
                self.add(text, columns);
            }
        }
    }

    fn payloads(&mut self, writes: &[&RunWrite]) {
        let all =
            writes.iter().flat_map(|w| w.payloads.iter().map(move |(number, body)| (w.org, w.run, *number, body)));
        let mut rows: Vec<(OrgId, RunId, u32, &Bytes)> = all.collect();
        rows.sort_by_key(|(org, run, number, _)| (*org, *run, *number));
        if rows.is_empty() {
            return;
        }
        self.add(
            sql!("postgres/payloads_insert"),
            vec![
                list(&rows, |row| org_of(row.0)),
                list(&rows, |row| Id(row.1.0)),
                list(&rows, |row| i64::from(row.2)),
                list(&rows, |row| Blob(row.3.clone())),
            ],
        );
    }

    fn ready(&mut self, writes: &[&RunWrite]) {
        let mut left: NetChange<&ReadyRow> = NetChange::default();
        for write in writes {
            left.remove(&write.ready.remove);
            left.insert(&write.ready.insert);
        }
        for (text, rows) in
            [(sql!("postgres/ready_delete"), left.removed), (sql!("postgres/ready_insert"), left.inserted)]
        {
            let rows = Vec::from_iter(rows);
            if !rows.is_empty() {
                let columns = vec![
                    list(&rows, |row| org_of(row.queue.org)),
                    list(&rows, |row| EscapedText::of(&row.queue.name)),
                    list(&rows, |row| EscapedText::of(&row.queue.key)),
                    list(&rows, |row| i64::from(row.position.priority)),
                    list(&rows, |row| Id(row.position.run.0)),
                    list(&rows, |row| i64::from(row.position.step)),
                ];
                self.add(text, columns);
            }
        }
    }

    /// A slot that expired at the time of the batch counts as free.
    fn limit_slots(&mut self, batch: &Batch, writes: &[&RunWrite]) {
        let (mut freed, mut taken) = (BTreeSet::new(), BTreeMap::new());
        for write in writes {
            for row in &write.limit_slots.free {
                if taken.get(&row.slot).is_some_and(|by: &&LimitSlotRow| (by.run, by.step) == (row.run, row.step)) {
                    taken.remove(&row.slot);
                }
                freed.insert(row);
            }
            taken.extend(write.limit_slots.take.iter().map(|row| (&row.slot, row)));
        }
        let freed = Vec::from_iter(freed);
        let columns = |rows: &[&LimitSlotRow]| -> Vec<Box<dyn ToSql + Sync + Send>> {
            vec![
                list(rows, |row| org_of(row.slot.org)),
                list(rows, |row| EscapedText::of(&row.slot.name)),
                list(rows, |row| row.slot.of as i16),
                list(rows, |row| EscapedText::of(&row.slot.key)),
                list(rows, |row| i64::from(row.slot.number)),
                list(rows, |row| Id(row.run.0)),
                list(rows, |row| i64::from(row.step)),
            ]
        };
        if !freed.is_empty() {
            self.add(sql!("postgres/slots_free"), columns(&freed));
        }
        let taken: Vec<&LimitSlotRow> = taken.into_values().collect();
        if !taken.is_empty() {
            let mut columns = columns(&taken);
            columns.push(list(&taken, |row| row.until.0));
            columns.push(Box::new(batch.at.0));
            self.add(sql!("postgres/slots_take"), columns);
        }
    }

    fn inbox(&mut self, writes: &[&RunWrite]) {
        let mut consumed: Vec<&ConsumedRow> = writes.iter().flat_map(|w| &w.consumed).collect();
        consumed.sort_by_key(|row| row.key);
        if !consumed.is_empty() {
            let (orgs, runs, ids) = inbox::columns(consumed.iter().map(|row| row.key));
            let answers = list(&consumed, |row| row.answer.clone().map(Blob));
            self.add(sql!("postgres/inbox_consume"), vec![Box::new(orgs), Box::new(runs), Box::new(ids), answers]);
        }
        let mut outgoing: Vec<&InboxRow> = writes.iter().flat_map(|w| &w.outgoing).collect();
        outgoing.sort_by_key(|row| row.key);
        if !outgoing.is_empty() {
            let (orgs, runs, ids) = inbox::columns(outgoing.iter().map(|row| row.key));
            self.add(
                sql!("postgres/inbox_send"),
                vec![
                    Box::new(orgs),
                    Box::new(runs),
                    Box::new(ids),
                    list(&outgoing, |row| row.kind.as_str()),
                    list(&outgoing, |row| Blob(row.body.clone())),
                    list(&outgoing, |row| row.written_at.0),
                    list(&outgoing, |row| row.sender.map(|sender| Id(sender.0))),
                ],
            );
        }
    }

    fn waits(&mut self, writes: &[&RunWrite]) {
        let mut tokens: Vec<&Wait> = writes.iter().flat_map(|w| &w.tokens).collect();
        tokens.sort_by_key(|token| token.token_hash);
        if !tokens.is_empty() {
            self.add(
                sql!("postgres/waits_insert"),
                vec![
                    list(&tokens, |token| token.token_hash.to_vec()),
                    list(&tokens, |token| org_of(token.org)),
                    list(&tokens, |token| Id(token.run.0)),
                    list(&tokens, |token| i64::from(token.step)),
                    list(&tokens, |token| EscapedText::of(&token.kind)),
                ],
            );
        }
        let mut left: NetChange<&OpenWait> = NetChange::default();
        for write in writes {
            left.remove(&write.waits.remove);
            left.insert(&write.waits.insert);
        }
        let columns = |rows: &[&OpenWait]| -> Vec<Box<dyn ToSql + Sync + Send>> {
            vec![
                list(rows, |row| org_of(row.org)),
                list(rows, |row| row.kind.as_str()),
                list(rows, |row| EscapedText::of(&row.name)),
                list(rows, |row| Id(row.run.0)),
                list(rows, |row| i64::from(row.step)),
            ]
        };
        let (removed, inserted) = (Vec::from_iter(left.removed), Vec::from_iter(left.inserted));
        if !removed.is_empty() {
            self.add(sql!("postgres/open_waits_delete"), columns(&removed));
        }
        if !inserted.is_empty() {
            let mut columns = columns(&inserted);
            columns.push(list(&inserted, |row| row.deadline.0));
            self.add(sql!("postgres/open_waits_insert"), columns);
        }
    }

    fn run_inserts(&mut self, writes: &[&RunWrite]) {
        let run_inserts = || writes.iter().filter_map(|w| Some((w, w.run_insert.as_deref()?)));
        let labels = run_inserts()
            .flat_map(|(w, run_insert)| run_insert.labels.iter().map(move |(key, value)| (w.org, key, value, w.run)));
        let labels: Vec<(OrgId, &String, &String, RunId)> = labels.collect::<BTreeSet<_>>().into_iter().collect();
        if !labels.is_empty() {
            self.add(
                sql!("postgres/labels_insert"),
                vec![
                    list(&labels, |label| org_of(label.0)),
                    list(&labels, |label| EscapedText::of(label.1)),
                    list(&labels, |label| EscapedText::of(label.2)),
                    list(&labels, |label| Id(label.3.0)),
                ],
            );
        }
        let mut keys: Vec<_> = run_inserts()
            .filter_map(|(w, run_insert)| Some((w.org, w.run, run_insert.idempotency.as_ref()?)))
            .collect();
        keys.sort_by_key(|(org, _, key)| (*org, &key.scope, &key.key));
        if !keys.is_empty() {
            self.add(
                sql!("postgres/keys_insert"),
                vec![
                    list(&keys, |(org, _, _)| org_of(*org)),
                    list(&keys, |(_, _, key)| EscapedText::of(&key.scope)),
                    list(&keys, |(_, _, key)| EscapedText::of(&key.key)),
                    list(&keys, |(_, run, _)| Id(run.0)),
                    list(&keys, |(_, _, key)| key.fingerprint.to_vec()),
                    list(&keys, |(_, _, key)| key.created_at.0),
                ],
            );
        }
    }

    fn notifications(&mut self, writes: &[&RunWrite]) {
        let mut left: NetChange<(OrgId, RunId, u64)> = NetChange::default();
        for write in writes {
            left.insert(write.notifications.iter().map(|number| (write.org, write.run, *number)));
            let delivered = write.run_insert.as_ref().and_then(|run_insert| run_insert.notification);
            left.remove(delivered.map(|(of, number)| (write.org, of, number)));
        }
        for (text, rows) in [
            (sql!("postgres/notifications_delete"), left.removed),
            (sql!("postgres/notifications_insert"), left.inserted),
        ] {
            let rows = Vec::from_iter(rows);
            if !rows.is_empty() {
                let columns = vec![
                    list(&rows, |row| org_of(row.0)),
                    list(&rows, |row| Id(row.1.0)),
                    list(&rows, |row| int(row.2)),
                ];
                self.add(text, columns);
            }
        }
    }

    fn deliveries(&mut self, writes: &[&RunWrite]) {
        let run_inserts = || writes.iter().filter_map(|w| w.run_insert.as_deref());
        let deliveries: Vec<(&DeliveryRow, Option<ScheduleAdvance>)> =
            run_inserts().filter_map(|run_insert| Some((run_insert.delivery.as_ref()?, run_insert.advance))).collect();
        self.lock_triggers(deliveries.iter().map(|(line, _)| (line.org, line.trigger)));
        for (line, advance) in deliveries {
            self.delivery(line);
            if let Some(to) = advance {
                self.advance((line.org, line.trigger), to);
            }
        }
    }

    fn lock_triggers(&mut self, triggers: impl Iterator<Item = (OrgId, TriggerId)>) {
        let rows: Vec<(OrgId, TriggerId)> = triggers.collect::<BTreeSet<_>>().into_iter().collect();
        if !rows.is_empty() {
            let columns = vec![list(&rows, |row| org_of(row.0)), list(&rows, |row| Id(row.1.0))];
            self.add(sql!("postgres/triggers_lock"), columns);
        }
    }

    fn delivery(&mut self, row: &DeliveryRow) {
        self.add(sql!("postgres/delivery_put"), delivery_params(row));
    }

    fn advance(&mut self, (org, trigger): (OrgId, TriggerId), to: ScheduleAdvance) {
        let params: Vec<Box<dyn ToSql + Sync + Send>> = vec![
            Box::new(time(to.cursor)),
            Box::new(time(to.next_at)),
            Box::new(org_of(org)),
            Box::new(Id(trigger.0)),
            Box::new(i64::from(to.revision)),
        ];
        self.add(sql!("trigger_advance"), params);
    }
}

/// The parameters of `delivery_put`.
pub(super) fn delivery_params(row: &DeliveryRow) -> Vec<Box<dyn ToSql + Sync + Send>> {
    vec![
        Box::new(org_of(row.org)),
        Box::new(Id(row.trigger.0)),
        Box::new(EscapedText::of(&row.id)),
        Box::new(row.at.0),
        Box::new(row.outcome.as_str()),
        Box::new(EscapedText::of(&row.reason)),
        Box::new(row.run.map(|run| Id(run.0))),
        Box::new(time(row.nominal)),
        Box::new(row.request.clone().map(Blob)),
        Box::new(int(REQUESTS_KEPT)),
        Box::new(int(DELIVERIES_KEPT)),
    ]
}

impl JournalColumns {
    fn new(writes: &[&RunWrite]) -> JournalColumns {
        let mut sorted: Vec<&&RunWrite> = writes.iter().collect();
        sorted.sort_by_key(|w| (w.org, w.run, w.after));
        let in_batch: HashSet<(OrgId, RunId, u64)> = match sorted.windows(2).any(|two| two[0].run == two[1].run) {
            true => sorted.iter().map(|w| (w.org, w.run, w.after + 1)).collect(),
            false => HashSet::new(),
        };
        JournalColumns {
            orgs: sorted.iter().map(|w| org_of(w.org)).collect(),
            runs: sorted.iter().map(|w| Id(w.run.0)).collect(),
            seqs: sorted.iter().map(|w| small(w.after + 1)).collect(),
            follows: sorted.iter().map(|w| w.after > 0 && !in_batch.contains(&(w.org, w.run, w.after))).collect(),
            bodies: sorted.iter().map(|w| Blob(w.record.clone())).collect(),
        }
    }
}

/// Does the number of the record fit into its column? A run never has more records than that.
pub(super) fn fits_seq_column(write: &RunWrite) -> bool {
    write.after < i32::MAX as u64
}

/// The encoded keys of records, in their order.
pub(super) fn record_keys(records: impl IntoIterator<Item = (OrgId, RunId, u64)>) -> Bytes {
    let records = records.into_iter();
    let mut record_keys = BytesMut::with_capacity(records.size_hint().0 * RECORD_KEY_BYTES);
    for (org, run, seq) in records {
        record_keys.put_u32(org.0);
        record_keys.put_slice(&run.0);
        record_keys.put_i32(small(seq));
    }
    record_keys.freeze()
}

/// The inverse of [`record_keys`].
pub(super) fn parse_record_keys(
    records: &[u8],
) -> impl DoubleEndedIterator<Item = (OrgId, RunId, i32)> + ExactSizeIterator {
    records.as_chunks::<RECORD_KEY_BYTES>().0.iter().map(|name| {
        let [a, b, c, d, run @ .., w, x, y, z] = *name;
        (OrgId(u32::from_be_bytes([a, b, c, d])), RunId(run), i32::from_be_bytes([w, x, y, z]))
    })
}

/// The net effect of inserting and removing rows in turn: first delete every row that was ever removed, then insert
/// those that were inserted after their last removal.
struct NetChange<T> {
    removed: BTreeSet<T>,
    inserted: BTreeSet<T>,
}

impl<T> Default for NetChange<T> {
    fn default() -> NetChange<T> {
        NetChange { removed: BTreeSet::new(), inserted: BTreeSet::new() }
    }
}

impl<T: Ord + Clone> NetChange<T> {
    fn remove(&mut self, rows: impl IntoIterator<Item = T>) {
        for row in rows {
            self.inserted.remove(&row);
            self.removed.insert(row);
        }
    }

    fn insert(&mut self, rows: impl IntoIterator<Item = T>) {
        self.inserted.extend(rows);
    }
}

fn list<T, C: ToSql + Sync + Send + 'static>(rows: &[T], column: impl Fn(&T) -> C) -> Box<dyn ToSql + Sync + Send> {
    Box::new(rows.iter().map(column).collect::<Vec<C>>())
}

fn time(at: Option<Timestamp>) -> Option<i64> {
    at.map(|at| at.0)
}

/// The caller has checked [`fits_seq_column`].
fn small(seq: u64) -> i32 {
    i32::try_from(seq).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_a_row_wins() {
        let mut left = NetChange::default();
        left.insert([1, 2]);
        left.remove([2, 3]);
        left.insert([3]);
        assert_eq!(Vec::from_iter(left.removed), [2, 3]);
        assert_eq!(Vec::from_iter(left.inserted), [1, 3], "3 was inserted again, 2 was not");
    }
}
