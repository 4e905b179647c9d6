//! A batch turned on its side: one list per column, as `UNNEST` takes them, and one statement per kind of row.
//!
//! A run may stand in a batch several times. Its records all go in; of what is replaced (its row, its
//! snapshot) only the last goes in, and of what comes and goes (timers, tasks, notices) what is left at the end.
//!
//! The rule that keeps it right: rows are in the order of their keys in every list, so that two batches never
//! wait for each other in a circle.

use super::columns::{Blob, Id, Words, group_bytes, int, org_of, sql};
use super::session::Params;
use crate::rows::{Batch, LimitSlotRow, ReadyRow, RunRow, RunWrite, Wait};
use crate::triggers::{DELIVERIES_KEPT, DeliveryRow, REQUESTS_KEPT, ScheduleAdvance};
use bytes::{BufMut, Bytes, BytesMut};
use kernel::{OrgId, RunId, Timestamp, TriggerId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use tokio_postgres::types::ToSql;

type Key = (OrgId, RunId);
/// Bytes of a record's name in `arrivals`.
pub(super) const NAME_BYTES: usize = 24;

/// Statements with their parameters, in the order in which they are sent.
#[derive(Default)]
pub(super) struct BatchColumns {
    statements: Vec<(&'static str, Vec<Box<dyn ToSql + Sync + Send>>)>,
    pub journal: Journal,
}

/// The records, kept apart: they are asked for when nobody knows whether they were written.
#[derive(Default)]
pub(super) struct Journal {
    pub orgs: Vec<i32>,
    pub runs: Vec<Id>,
    pub seqs: Vec<i32>,
    follows: Vec<bool>,
    pub bodies: Vec<Blob>,
}

impl BatchColumns {
    /// The writes must be sound, and none of them may stand in the way of another.
    pub(super) fn new(batch: &Batch, writes: &[&RunWrite]) -> BatchColumns {
        let mut batch_columns = BatchColumns { journal: Journal::new(writes), ..BatchColumns::default() };
        batch_columns.runs(writes);
        batch_columns.snapshots(writes);
        batch_columns.timers(writes);
        batch_columns.payloads(writes);
        batch_columns.ready(writes);
        batch_columns.limit_slots(batch, writes);
        batch_columns.births(writes);
        batch_columns.notifications(writes);
        batch_columns.deliveries(writes);
        let written = names(writes.iter().map(|write| (write.org, write.run, write.after + 1)));
        batch_columns.add(sql!("postgres/arrival_insert"), vec![Box::new(int(batch.epoch)), Box::new(Blob(written))]);
        batch_columns
    }

    /// What is to be prepared and sent, the journal first.
    pub(super) fn statements(&self) -> impl Iterator<Item = (&'static str, Params<'_>)> {
        let Journal { orgs, runs, seqs, follows, bodies } = &self.journal;
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
        let born: Vec<(&RunRow, &RunRow)> =
            last.values().filter_map(|(born, turned)| born.map(|born| (born, turned.unwrap_or(born)))).collect();
        if !born.is_empty() {
            self.add(
                sql!("postgres/runs_insert"),
                vec![
                    list(&born, |(row, _)| org_of(row.org)),
                    list(&born, |(row, _)| Id(row.id.0)),
                    list(&born, |(row, _)| Id(row.workflow.0)),
                    list(&born, |(row, _)| Words::of(&row.workflow_name)),
                    list(&born, |(row, _)| i64::from(row.version)),
                    list(&born, |(row, _)| row.hash.to_vec()),
                    list(&born, |(row, _)| row.form.as_str()),
                    list(&born, |(_, now)| now.status.as_str()),
                    list(&born, |(_, now)| i64::from(now.waiting)),
                    list(&born, |(_, now)| time(now.wake_at)),
                    list(&born, |(row, _)| row.created_at.0),
                    list(&born, |(_, now)| now.expires_at.0),
                    list(&born, |(_, now)| time(now.finished_at)),
                    list(&born, |(_, now)| Words::maybe(now.error_code.as_deref())),
                    list(&born, |(row, _)| row.concurrency_group.as_ref().map(group_bytes)),
                    list(&born, |(_, now)| now.evicted),
                ],
            );
        }
        let turned: Vec<&RunRow> =
            last.values().filter_map(|(born, turned)| turned.filter(|_| born.is_none())).collect();
        if !turned.is_empty() {
            self.add(
                sql!("postgres/runs_update"),
                vec![
                    list(&turned, |row| org_of(row.org)),
                    list(&turned, |row| Id(row.id.0)),
                    list(&turned, |row| row.status.as_str()),
                    list(&turned, |row| i64::from(row.waiting)),
                    list(&turned, |row| time(row.wake_at)),
                    list(&turned, |row| row.expires_at.0),
                    list(&turned, |row| time(row.finished_at)),
                    list(&turned, |row| Words::maybe(row.error_code.as_deref())),
                    list(&turned, |row| row.evicted),
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
        let mut left: Left<(Timestamp, OrgId, RunId)> = Left::default();
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
        let mut left: Left<&ReadyRow> = Left::default();
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
                    list(&rows, |row| Words::of(&row.queue.name)),
                    list(&rows, |row| Words::of(&row.queue.key)),
                    list(&rows, |row| i64::from(row.position.priority)),
                    list(&rows, |row| Id(row.position.run.0)),
                    list(&rows, |row| i64::from(row.position.step)),
                ];
                self.add(text, columns);
            }
        }
    }

    /// Whoever takes a seat takes it at the time of the batch.
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
                list(rows, |row| Words::of(&row.slot.name)),
                list(rows, |row| row.slot.of as i16),
                list(rows, |row| Words::of(&row.slot.key)),
                list(rows, |row| i64::from(row.slot.number)),
                list(rows, |row| Id(row.run.0)),
                list(rows, |row| i64::from(row.step)),
            ]
        };
        if !freed.is_empty() {
            self.add(sql!("postgres/seats_free"), columns(&freed));
        }
        let taken: Vec<&LimitSlotRow> = taken.into_values().collect();
        if !taken.is_empty() {
            let mut columns = columns(&taken);
            columns.push(list(&taken, |row| row.until.0));
            columns.push(Box::new(batch.at.0));
            self.add(sql!("postgres/seats_take"), columns);
        }
    }

    fn births(&mut self, writes: &[&RunWrite]) {
        let births = || writes.iter().filter_map(|w| Some((w, w.run_insert.as_deref()?)));
        let mut waits: Vec<&Wait> = births().flat_map(|(_, run_insert)| &run_insert.waits).collect();
        waits.sort_by_key(|wait| wait.token_hash);
        if !waits.is_empty() {
            self.add(
                sql!("postgres/waits_insert"),
                vec![
                    list(&waits, |wait| wait.token_hash.to_vec()),
                    list(&waits, |wait| org_of(wait.org)),
                    list(&waits, |wait| Id(wait.run.0)),
                    list(&waits, |wait| i64::from(wait.step)),
                    list(&waits, |wait| Words::of(&wait.kind)),
                ],
            );
        }
        let labels = births()
            .flat_map(|(w, run_insert)| run_insert.labels.iter().map(move |(key, value)| (w.org, key, value, w.run)));
        let labels: Vec<(OrgId, &String, &String, RunId)> = labels.collect::<BTreeSet<_>>().into_iter().collect();
        if !labels.is_empty() {
            self.add(
                sql!("postgres/labels_insert"),
                vec![
                    list(&labels, |label| org_of(label.0)),
                    list(&labels, |label| Words::of(label.1)),
                    list(&labels, |label| Words::of(label.2)),
                    list(&labels, |label| Id(label.3.0)),
                ],
            );
        }
        let mut keys: Vec<_> =
            births().filter_map(|(w, run_insert)| Some((w.org, w.run, run_insert.idempotency.as_ref()?))).collect();
        keys.sort_by_key(|(org, _, key)| (*org, &key.scope, &key.key));
        if !keys.is_empty() {
            self.add(
                sql!("postgres/keys_insert"),
                vec![
                    list(&keys, |(org, _, _)| org_of(*org)),
                    list(&keys, |(_, _, key)| Words::of(&key.scope)),
                    list(&keys, |(_, _, key)| Words::of(&key.key)),
                    list(&keys, |(_, run, _)| Id(run.0)),
                    list(&keys, |(_, _, key)| key.fingerprint.to_vec()),
                    list(&keys, |(_, _, key)| key.created_at.0),
                ],
            );
        }
    }

    fn notifications(&mut self, writes: &[&RunWrite]) {
        let mut left: Left<(OrgId, RunId, u32)> = Left::default();
        for write in writes {
            left.insert((0..write.notifications).map(|number| (write.org, write.run, number)));
            let told = write.run_insert.as_ref().and_then(|run_insert| run_insert.notification);
            left.remove(told.map(|(of, number)| (write.org, of, number)));
        }
        for (text, rows) in
            [(sql!("postgres/notices_delete"), left.removed), (sql!("postgres/notices_insert"), left.inserted)]
        {
            let rows = Vec::from_iter(rows);
            if !rows.is_empty() {
                let columns = vec![
                    list(&rows, |row| org_of(row.0)),
                    list(&rows, |row| Id(row.1.0)),
                    list(&rows, |row| i64::from(row.2)),
                ];
                self.add(text, columns);
            }
        }
    }

    fn deliveries(&mut self, writes: &[&RunWrite]) {
        let births = || writes.iter().filter_map(|w| w.run_insert.as_deref());
        let lines: Vec<(&DeliveryRow, Option<ScheduleAdvance>)> =
            births().filter_map(|run_insert| Some((run_insert.delivery.as_ref()?, run_insert.advance))).collect();
        self.lock_triggers(lines.iter().map(|(line, _)| (line.org, line.trigger)));
        for (line, advance) in lines {
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

/// For `delivery_put`.
pub(super) fn delivery_params(row: &DeliveryRow) -> Vec<Box<dyn ToSql + Sync + Send>> {
    vec![
        Box::new(org_of(row.org)),
        Box::new(Id(row.trigger.0)),
        Box::new(Words::of(&row.id)),
        Box::new(row.at.0),
        Box::new(row.outcome.as_str()),
        Box::new(Words::of(&row.reason)),
        Box::new(row.run.map(|run| Id(run.0))),
        Box::new(time(row.nominal)),
        Box::new(row.request.clone().map(Blob)),
        Box::new(int(REQUESTS_KEPT)),
        Box::new(int(DELIVERIES_KEPT)),
    ]
}

impl Journal {
    fn new(writes: &[&RunWrite]) -> Journal {
        let mut sorted: Vec<&&RunWrite> = writes.iter().collect();
        sorted.sort_by_key(|w| (w.org, w.run, w.after));
        let here: HashSet<(OrgId, RunId, u64)> = match sorted.windows(2).any(|two| two[0].run == two[1].run) {
            true => sorted.iter().map(|w| (w.org, w.run, w.after + 1)).collect(),
            false => HashSet::new(),
        };
        Journal {
            orgs: sorted.iter().map(|w| org_of(w.org)).collect(),
            runs: sorted.iter().map(|w| Id(w.run.0)).collect(),
            seqs: sorted.iter().map(|w| small(w.after + 1)).collect(),
            follows: sorted.iter().map(|w| w.after > 0 && !here.contains(&(w.org, w.run, w.after))).collect(),
            bodies: sorted.iter().map(|w| Blob(w.record.clone())).collect(),
        }
    }
}

/// Does a record's number have room in its column? A run with more records than that does not exist.
pub(super) fn has_room(write: &RunWrite) -> bool {
    write.after < i32::MAX as u64
}

/// The names of records, in their order.
pub(super) fn names(records: impl IntoIterator<Item = (OrgId, RunId, u64)>) -> Bytes {
    let records = records.into_iter();
    let mut names = BytesMut::with_capacity(records.size_hint().0 * NAME_BYTES);
    for (org, run, seq) in records {
        names.put_u32(org.0);
        names.put_slice(&run.0);
        names.put_i32(small(seq));
    }
    names.freeze()
}

/// The way back from [`names`].
pub(super) fn named(records: &[u8]) -> impl DoubleEndedIterator<Item = (OrgId, RunId, i32)> + ExactSizeIterator {
    records.as_chunks::<NAME_BYTES>().0.iter().map(|name| {
        let [a, b, c, d, run @ .., w, x, y, z] = *name;
        (OrgId(u32::from_be_bytes([a, b, c, d])), RunId(run), i32::from_be_bytes([w, x, y, z]))
    })
}

/// What is left of rows that came and went: all that were ever removed are, then those are inserted that came
/// after their removal.
struct Left<T> {
    removed: BTreeSet<T>,
    inserted: BTreeSet<T>,
}

impl<T> Default for Left<T> {
    fn default() -> Left<T> {
        Left { removed: BTreeSet::new(), inserted: BTreeSet::new() }
    }
}

impl<T: Ord + Clone> Left<T> {
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

/// [`has_room`] was asked before.
fn small(seq: u64) -> i32 {
    i32::try_from(seq).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_a_row_counts() {
        let mut left = Left::default();
        left.insert([1, 2]);
        left.remove([2, 3]);
        left.insert([3]);
        assert_eq!(Vec::from_iter(left.removed), [2, 3]);
        assert_eq!(Vec::from_iter(left.inserted), [1, 3], "3 came back, 2 did not");
    }
}
