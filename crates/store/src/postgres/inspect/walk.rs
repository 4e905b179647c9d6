//! The walk of an inspection: every run with all rows that refer to it, then every record in the order of the journal.
//!
//! The records of a run are in the order of the journal's primary key. The order of all records is the list of keys
//! in `positions`, followed by those in `arrivals`, which have no positions yet. A key without a record belongs to a
//! deleted run. Its idempotency key stays, and a record that another node was appending during the deletion may stay
//! too.

use super::super::batch_columns;
use super::super::columns::{
    Attempted, Id, blob, count, get, hash, named, number, org, run_id, run_row, seq, sql, text, time,
};
use super::super::errors::Failure;
use super::cursor::{Cursor, Key, Owners, decoded, fetch, key};
use super::{PostgresInspection, owner, unreadable};
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, InspectedRow, SnapshotRow, StoredRun};
use crate::rows::{OpenWait, QueueKey, QueuePosition, ReadyRow, Wait};
use bytes::Bytes;
use kernel::RunId;
use kernel::run::WaitKind;
use std::collections::{HashMap, HashSet};
use tokio_postgres::Row;

pub(super) fn walk(inspection: &PostgresInspection, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
    let mut pending = Pending::default();
    let counted = runs(inspection, &mut pending, each)?;
    journal(inspection, counted, pending, each)
}

/// Anomalies that are dropped if the journal shows that their run was deleted.
#[derive(Default)]
struct Pending(HashMap<Key, Vec<Anomaly>>);

impl Pending {
    fn add(&mut self, key: Key, anomaly: Anomaly) {
        self.0.entry(key).or_default().push(anomaly);
    }
}

/// Declares a cursor for every table.
macro_rules! cursors {
    ($inspection:ident; $($name:ident: $table:literal, $sql:literal, $read:expr;)*) => {
        $(let mut $name = Cursor::new($inspection, $table, sql!($sql), fetch!($table), $read)?;)*
    };
}

/// Returns how many records there are.
fn runs(inspection: &PostgresInspection, pending: &mut Pending, each: &mut dyn FnMut(InspectedRow)) -> Result<u64> {
    cursors! { inspection;
        found: "runs", "postgres/inspect_runs", run_row;
        records: "journal", "postgres/inspect_records", record;
        snapshots: "snapshots", "postgres/inspect_snapshots", snapshot;
        timers: "timers", "inspect_timers", |row| time(row, 2);
        waits: "waits", "inspect_waits", wait;
        open_waits: "open_waits", "inspect_open_waits", open_wait;
        ready: "ready", "inspect_ready", ready_row;
        notifications: "notices", "inspect_notifications", |row| count(row, 2);
        payloads: "payloads", "inspect_payloads", payload;
        labels: "labels", "inspect_labels", |row| Ok((text(row, 2)?, text(row, 3)?));
        keys: "idempotency", "inspect_run_keys", |row| Ok((text(row, 2)?, text(row, 3)?));
    }
    let owners = Owners::of(inspection)?;
    let mut counted = 0;
    loop {
        let next = found.next(inspection)?;
        let at = next.as_ref().map(key).transpose().map_err(Failure::unwritten)?;
        let mut strays = Vec::new();
        let mut later = Vec::new();
        let mut dangling = |table: &'static str, key: Key, _: &Row| {
            strays.push(owners.stray(table, key)?);
            Ok(())
        };
        let mut maybe_deleted = |table: &'static str, key: Key, row: &Row| {
            let anomaly = owners.stray(table, key)?;
            let anomaly = match table {
                "journal" => {
                    counted += 1;
                    let what = format!("record {} belongs to no run", get::<i32>(row, 2).unwrap_or_default());
                    Anomaly { kind: AnomalyKind::Orphan, what, ..anomaly }
                }
                _ => anomaly,
            };
            later.push((key, anomaly));
            Ok(())
        };
        let Some((row, at)) = next.zip(at) else {
            records.rest(inspection, &mut maybe_deleted)?;
            snapshots.rest(inspection, &mut dangling)?;
            timers.rest(inspection, &mut dangling)?;
            waits.rest(inspection, &mut dangling)?;
            open_waits.rest(inspection, &mut dangling)?;
            ready.rest(inspection, &mut dangling)?;
            notifications.rest(inspection, &mut dangling)?;
            payloads.rest(inspection, &mut dangling)?;
            labels.rest(inspection, &mut dangling)?;
            keys.rest(inspection, &mut maybe_deleted)?;
            strays.into_iter().for_each(|anomaly| each(InspectedRow::Anomaly(anomaly)));
            later.into_iter().for_each(|(key, anomaly)| pending.add(key, anomaly));
            return Ok(counted);
        };
        let records = records.take(inspection, at, &mut maybe_deleted, each)?;
        let snapshots = snapshots.take(inspection, at, &mut dangling, each)?;
        let timers = timers.take(inspection, at, &mut dangling, each)?;
        let waits = waits.take(inspection, at, &mut dangling, each)?;
        let open_waits = open_waits.take(inspection, at, &mut dangling, each)?;
        let ready = ready.take(inspection, at, &mut dangling, each)?;
        let notifications = notifications.take(inspection, at, &mut dangling, each)?;
        let payloads = payloads.take(inspection, at, &mut dangling, each)?;
        let labels = labels.take(inspection, at, &mut dangling, each)?;
        let keys = keys.take(inspection, at, &mut maybe_deleted, each)?;
        strays.into_iter().for_each(|anomaly| each(InspectedRow::Anomaly(anomaly)));
        later.into_iter().for_each(|(key, anomaly)| pending.add(key, anomaly));
        counted += records.len() as u64;
        let row = match run_row(&row) {
            Ok(row) => row,
            Err(failure) => {
                let (org, run) = decoded(at);
                each(InspectedRow::Anomaly(unreadable("runs", org, run, failure)));
                continue;
            }
        };
        let (records, broken) = contiguous(records);
        let version = version(inspection, &row)?;
        let row_seq = records.len() as u64;
        each(InspectedRow::Run(Box::new(StoredRun {
            row,
            records,
            broken,
            row_seq,
            version,
            snapshots,
            timers,
            waits,
            open_waits,
            ready,
            notifications,
            payloads,
            labels,
            keys,
        })));
    }
}

/// The records up to the first missing one, each with its number as its position, and why the chain is broken, if it
/// is.
fn contiguous(records: Vec<(i64, Bytes)>) -> (Vec<(i64, Bytes)>, Option<String>) {
    let missing = (1..).zip(&records).find(|(expected, (found, _))| expected != found);
    let broken = match (missing, records.is_empty()) {
        (Some((expected, (found, _))), _) => Some(format!("record {expected} is missing, the next is {found}")),
        (None, true) => Some("it has no record".to_owned()),
        (None, false) => None,
    };
    let whole = missing.map_or(records.len(), |(expected, _)| expected as usize - 1);
    (records.into_iter().take(whole).collect(), broken)
}

/// The hash of the run's version.
fn version(inspection: &PostgresInspection, row: &crate::rows::RunRow) -> Result<Option<[u8; 32]>> {
    let (owner, workflow, version) = (owner(row.org), Id(row.workflow.0), i64::from(row.version));
    let found = inspection.query(sql!("inspect_version"), &[&owner, &workflow, &version])?;
    found.first().map(|row| hash(row, 0)).transpose().map_err(Failure::unwritten)
}

fn record(row: &Row) -> Attempted<(i64, Bytes)> {
    Ok((i64::try_from(seq(row, 2)?).unwrap_or(i64::MAX), blob(row, 3)?))
}

fn snapshot(row: &Row) -> Attempted<SnapshotRow> {
    let seq = seq(row, 2)?;
    Ok(SnapshotRow { seq, pos: i64::try_from(seq).unwrap_or(i64::MAX), body: blob(row, 3)? })
}

fn wait(row: &Row) -> Attempted<Wait> {
    let (org, run, step) = (org(row, 0)?, run_id(row, 1)?, number(row, 2)?);
    Ok(Wait { org, run, step, token_hash: hash(row, 3)?, kind: text(row, 4)? })
}

fn open_wait(row: &Row) -> Attempted<OpenWait> {
    let (org, run, step, deadline) = (org(row, 0)?, run_id(row, 1)?, number(row, 2)?, time(row, 5)?);
    let (kind, name) = (named(row, 3, WaitKind::parse)?, text(row, 4)?);
    Ok(OpenWait { org, kind, name, run, step, deadline })
}

fn ready_row(row: &Row) -> Attempted<ReadyRow> {
    let queue = QueueKey { org: org(row, 0)?, name: text(row, 2)?, key: text(row, 3)? };
    Ok(ReadyRow {
        queue,
        position: QueuePosition { run: run_id(row, 1)?, priority: number(row, 4)?, step: number(row, 5)? },
    })
}

/// The number and the length of a payload.
fn payload(row: &Row) -> Attempted<(u32, u64)> {
    Ok((number(row, 2)?, u64::from(get::<i32>(row, 3)?.unsigned_abs())))
}

/// Yields every record in the order of the journal. `counted` is how many records there are.
fn journal(
    inspection: &PostgresInspection,
    counted: u64,
    mut pending: Pending,
    each: &mut dyn FnMut(InspectedRow),
) -> Result<()> {
    let mut rows =
        Cursor::new(inspection, "positions", sql!("postgres/inspect_positions"), fetch!("positions"), |_| Ok(()))?;
    let mut expected = 1i64;
    let mut found_records = 0;
    while let Some(row) = rows.next(inspection)? {
        let (first, keys): (Option<i64>, &[u8]) =
            get(&row, 0).and_then(|first| Ok((first, get(&row, 1)?))).map_err(Failure::unwritten)?;
        let first = first.unwrap_or(expected);
        if first != expected {
            let what = format!("the journal has no record at {expected}, the next is at {first}");
            each(InspectedRow::Anomaly(Anomaly::new(AnomalyKind::Gap, what)));
        }
        let keyed: Vec<(i64, Key, i32)> = (first..)
            .zip(batch_columns::parse_record_keys(keys))
            .map(|(pos, (org, run, seq))| (pos, (owner(org), run.0), seq))
            .collect();
        expected = first.saturating_add(keyed.len() as i64);
        let positions: Vec<i64> = keyed.iter().map(|(pos, ..)| *pos).collect();
        let orgs: Vec<i32> = keyed.iter().map(|(_, key, _)| key.0).collect();
        let runs: Vec<Id> = keyed.iter().map(|(_, key, _)| Id(key.1)).collect();
        let seqs: Vec<i32> = keyed.iter().map(|(.., seq)| *seq).collect();
        let mut bodies = HashMap::new();
        for row in inspection.query(sql!("postgres/inspect_by_key"), &[&positions, &orgs, &runs, &seqs])? {
            let (pos, body): (i64, Bytes) =
                get(&row, 0).and_then(|pos| Ok((pos, blob(&row, 1)?))).map_err(Failure::unwritten)?;
            bodies.insert(pos, body);
        }
        let missing = keyed.iter().filter(|(pos, ..)| !bodies.contains_key(pos)).map(|(_, key, _)| *key);
        let existing = existing_runs(inspection, missing.collect())?;
        for (pos, key, seq) in keyed {
            let (org, run) = decoded(key);
            match (bodies.remove(&pos), org, run) {
                (Some(body), Some(org), Some(run)) => {
                    found_records += 1;
                    each(InspectedRow::Record { pos, org, run, body });
                }
                _ if existing.contains(&key) => {
                    let what = format!("record {seq} of {} at position {pos} is missing", RunId(key.1));
                    each(InspectedRow::Anomaly(Anomaly::new(AnomalyKind::Gap, what).of(org, run)));
                }
                // The run was deleted, so its remaining rows are no damage.
                _ => drop(pending.0.remove(&key)),
            }
        }
    }
    if found_records != counted {
        let what = format!("the journal has {counted} records, and its order lists {found_records} of them");
        each(InspectedRow::Anomaly(Anomaly::new(AnomalyKind::Orphan, what)));
    }
    pending.0.into_values().flatten().for_each(|anomaly| each(InspectedRow::Anomaly(anomaly)));
    Ok(())
}

/// Which of these runs exist.
fn existing_runs(inspection: &PostgresInspection, mut runs: Vec<Key>) -> Result<HashSet<Key>> {
    runs.dedup();
    if runs.is_empty() {
        return Ok(HashSet::new());
    }
    let (orgs, ids): (Vec<i32>, Vec<Id>) = runs.into_iter().map(|(org, id)| (org, Id(id))).unzip();
    let rows = inspection.query(sql!("postgres/inspect_runs_existing"), &[&orgs, &ids])?;
    rows.iter().map(key).collect::<Attempted<_>>().map_err(Failure::unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_followed_up_to_the_first_that_is_missing() {
        let numbered = |numbers: &[i64]| numbers.iter().map(|n| (*n, Bytes::new())).collect::<Vec<_>>();
        for (numbers, whole, is_broken) in
            [(&[1, 2, 3][..], 3, false), (&[], 0, true), (&[2, 3], 0, true), (&[1, 2, 4], 2, true)]
        {
            let (records, broken) = contiguous(numbered(numbers));
            assert_eq!((records.len(), broken.is_some()), (whole, is_broken), "{numbers:?}");
        }
    }
}
