//! Every run with all that names it, then every record in the order of the journal: the walk of an inspection.
//!
//! A run's records are numbered, and stand beside it in the order of the key. The order of all of them is a list of
//! names; that of what has arrived since it was last made follows it here as it would there. A name without a record
//! is of a run that was erased: its idempotency key may be left, and so may a record that was on its way
//! at that moment.

use super::super::batch_columns;
use super::super::columns::{Attempted, Id, blob, get, hash, number, org, run_id, run_row, seq, sql, text, time};
use super::super::errors::Failure;
use super::cursor::{Cursor, Key, Owners, fetch, key, understood};
use super::{PostgresInspection, owner, unreadable};
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, Seen, SnapshotRow, StoredRun};
use crate::rows::{QueueKey, QueuePosition, ReadyRow, Wait};
use bytes::Bytes;
use kernel::RunId;
use std::collections::{HashMap, HashSet};
use tokio_postgres::Row;

pub(super) fn walk(look: &PostgresInspection, each: &mut dyn FnMut(Seen)) -> Result<()> {
    let mut pending = Pending::default();
    let counted = runs(look, &mut pending, each)?;
    journal(look, counted, pending, each)
}

/// What is damage unless its run turns out to have been erased.
#[derive(Default)]
struct Pending(HashMap<Key, Vec<Anomaly>>);

impl Pending {
    fn add(&mut self, key: Key, anomaly: Anomaly) {
        self.0.entry(key).or_default().push(anomaly);
    }
}

/// `let mut name = cursor;` for every table.
macro_rules! cursors {
    ($look:ident; $($name:ident: $table:literal, $sql:literal, $read:expr;)*) => {
        $(let mut $name = Cursor::new($look, $table, sql!($sql), fetch!($table), $read)?;)*
    };
}

/// Answers how many records were met.
fn runs(look: &PostgresInspection, pending: &mut Pending, each: &mut dyn FnMut(Seen)) -> Result<u64> {
    cursors! { look;
        found: "runs", "postgres/inspect_runs", run_row;
        records: "journal", "postgres/inspect_records", record;
        snapshots: "snapshots", "postgres/inspect_snapshots", snapshot;
        timers: "timers", "inspect_timers", |row| time(row, 2);
        waits: "waits", "inspect_waits", wait;
        ready: "ready", "inspect_ready", ready_row;
        payloads: "payloads", "inspect_payloads", payload;
        labels: "labels", "inspect_labels", |row| Ok((text(row, 2)?, text(row, 3)?));
        keys: "idempotency", "inspect_run_keys", |row| Ok((text(row, 2)?, text(row, 3)?));
    }
    let owners = Owners::of(look)?;
    let mut counted = 0;
    loop {
        let next = found.next(look)?;
        let at = next.as_ref().map(key).transpose().map_err(Failure::unwritten)?;
        let mut strays = Vec::new();
        let mut later = Vec::new();
        let mut nobodys = |table: &'static str, key: Key, _: &Row| {
            strays.push(owners.stray(table, key)?);
            Ok(())
        };
        let mut perhaps_erased = |table: &'static str, key: Key, row: &Row| {
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
            records.rest(look, &mut perhaps_erased)?;
            snapshots.rest(look, &mut nobodys)?;
            timers.rest(look, &mut nobodys)?;
            waits.rest(look, &mut nobodys)?;
            ready.rest(look, &mut nobodys)?;
            payloads.rest(look, &mut nobodys)?;
            labels.rest(look, &mut nobodys)?;
            keys.rest(look, &mut perhaps_erased)?;
            strays.into_iter().for_each(|anomaly| each(Seen::Anomaly(anomaly)));
            later.into_iter().for_each(|(key, anomaly)| pending.add(key, anomaly));
            return Ok(counted);
        };
        let records = records.take(look, at, &mut perhaps_erased, each)?;
        let snapshots = snapshots.take(look, at, &mut nobodys, each)?;
        let timers = timers.take(look, at, &mut nobodys, each)?;
        let waits = waits.take(look, at, &mut nobodys, each)?;
        let ready = ready.take(look, at, &mut nobodys, each)?;
        let payloads = payloads.take(look, at, &mut nobodys, each)?;
        let labels = labels.take(look, at, &mut nobodys, each)?;
        let keys = keys.take(look, at, &mut perhaps_erased, each)?;
        strays.into_iter().for_each(|anomaly| each(Seen::Anomaly(anomaly)));
        later.into_iter().for_each(|(key, anomaly)| pending.add(key, anomaly));
        counted += records.len() as u64;
        let row = match run_row(&row) {
            Ok(row) => row,
            Err(failure) => {
                let (org, run) = understood(at);
                each(Seen::Anomaly(unreadable("runs", org, run, failure)));
                continue;
            }
        };
        let (records, broken) = in_a_row(records);
        let version = version(look, &row)?;
        let row_seq = records.len() as u64;
        each(Seen::Run(Box::new(StoredRun {
            row,
            records,
            broken,
            row_seq,
            version,
            snapshots,
            timers,
            waits,
            ready,
            payloads,
            labels,
            keys,
        })));
    }
}

/// Records up to the first that is missing, each with its number for a place.
fn in_a_row(records: Vec<(i64, Bytes)>) -> (Vec<(i64, Bytes)>, Option<String>) {
    let missing = (1..).zip(&records).find(|(expected, (found, _))| expected != found);
    let broken = match (missing, records.is_empty()) {
        (Some((expected, (found, _))), _) => Some(format!("record {expected} is missing, the next is {found}")),
        (None, true) => Some("it has no record".to_owned()),
        (None, false) => None,
    };
    let whole = missing.map_or(records.len(), |(expected, _)| expected as usize - 1);
    (records.into_iter().take(whole).collect(), broken)
}

/// The hash of the version a run has.
fn version(look: &PostgresInspection, row: &crate::rows::RunRow) -> Result<Option<[u8; 32]>> {
    let (owner, workflow, version) = (owner(row.org), Id(row.workflow.0), i64::from(row.version));
    let found = look.query(sql!("inspect_version"), &[&owner, &workflow, &version])?;
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

fn ready_row(row: &Row) -> Attempted<ReadyRow> {
    let queue = QueueKey { org: org(row, 0)?, name: text(row, 2)?, key: text(row, 3)? };
    Ok(ReadyRow {
        queue,
        position: QueuePosition { run: run_id(row, 1)?, priority: number(row, 4)?, step: number(row, 5)? },
    })
}

/// Its number and its length.
fn payload(row: &Row) -> Attempted<(u32, u64)> {
    Ok((number(row, 2)?, u64::from(get::<i32>(row, 3)?.unsigned_abs())))
}

/// Every record in the order of the journal. `counted` is how many there are.
fn journal(look: &PostgresInspection, counted: u64, mut pending: Pending, each: &mut dyn FnMut(Seen)) -> Result<()> {
    let mut rows = Cursor::new(look, "positions", sql!("postgres/inspect_positions"), fetch!("positions"), |_| Ok(()))?;
    let mut expected = 1i64;
    let mut met = 0;
    while let Some(row) = rows.next(look)? {
        let (first, names): (Option<i64>, &[u8]) =
            get(&row, 0).and_then(|first| Ok((first, get(&row, 1)?))).map_err(Failure::unwritten)?;
        let first = first.unwrap_or(expected);
        if first != expected {
            let what = format!("the journal has no record at {expected}, the next is at {first}");
            each(Seen::Anomaly(Anomaly::new(AnomalyKind::Gap, what)));
        }
        let named: Vec<(i64, Key, i32)> = (first..)
            .zip(batch_columns::named(names))
            .map(|(pos, (org, run, seq))| (pos, (owner(org), run.0), seq))
            .collect();
        expected = first.saturating_add(named.len() as i64);
        let places: Vec<i64> = named.iter().map(|(pos, ..)| *pos).collect();
        let orgs: Vec<i32> = named.iter().map(|(_, key, _)| key.0).collect();
        let runs: Vec<Id> = named.iter().map(|(_, key, _)| Id(key.1)).collect();
        let seqs: Vec<i32> = named.iter().map(|(.., seq)| *seq).collect();
        let mut bodies = HashMap::new();
        for row in look.query(sql!("postgres/inspect_named"), &[&places, &orgs, &runs, &seqs])? {
            let (pos, body): (i64, Bytes) =
                get(&row, 0).and_then(|pos| Ok((pos, blob(&row, 1)?))).map_err(Failure::unwritten)?;
            bodies.insert(pos, body);
        }
        let missing = named.iter().filter(|(pos, ..)| !bodies.contains_key(pos)).map(|(_, key, _)| *key);
        let there = there(look, missing.collect())?;
        for (pos, key, seq) in named {
            let (org, run) = understood(key);
            match (bodies.remove(&pos), org, run) {
                (Some(body), Some(org), Some(run)) => {
                    met += 1;
                    each(Seen::Record { pos, org, run, body });
                }
                _ if there.contains(&key) => {
                    let what = format!("record {seq} of {} at position {pos} is missing", RunId(key.1));
                    each(Seen::Anomaly(Anomaly::new(AnomalyKind::Gap, what).of(org, run)));
                }
                // The run was erased, and with it what would be damage otherwise.
                _ => drop(pending.0.remove(&key)),
            }
        }
    }
    if met != counted {
        let what = format!("{counted} records are there, and the journal's order names {met} of them");
        each(Seen::Anomaly(Anomaly::new(AnomalyKind::Orphan, what)));
    }
    pending.0.into_values().flatten().for_each(|anomaly| each(Seen::Anomaly(anomaly)));
    Ok(())
}

/// Which of these runs exist.
fn there(look: &PostgresInspection, mut runs: Vec<Key>) -> Result<HashSet<Key>> {
    runs.dedup();
    if runs.is_empty() {
        return Ok(HashSet::new());
    }
    let (orgs, ids): (Vec<i32>, Vec<Id>) = runs.into_iter().map(|(org, id)| (org, Id(id))).unzip();
    let rows = look.query(sql!("postgres/inspect_runs_there"), &[&orgs, &ids])?;
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
            let (records, broken) = in_a_row(numbered(numbers));
            assert_eq!((records.len(), broken.is_some()), (whole, is_broken), "{numbers:?}");
        }
    }
}
