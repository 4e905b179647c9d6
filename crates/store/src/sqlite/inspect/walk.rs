//! The walk of an inspection: every run with all rows that refer to it, then every record.
//!
//! A run's records are followed from the newest to the oldest, as a load does. The row of an evicted or ended run holds
//! the position of its newest record; the newest record of an active run may be in the journal after the recovery
//! position. The walk marks the positions it visited, one bit each, so that the pass over the journal at the end finds
//! the records that no run leads to. An empty record without a run is what remains of a deleted run.

use super::super::columns::{count, named, org, run_id, run_row, sql, time};
use super::super::errors::on_read;
use super::super::journal::{JournalSlot, journal_slot};
use super::super::run_heads::{self, Head};
use super::cursor::{Cursor, Owners, RawKey, decoded, raw_key, unreadable};
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, InspectedRow, SnapshotRow, StoredRun};
use crate::rows::{OpenWait, QueueKey, QueuePosition, ReadyRow, RunRow, Wait};
use bytes::Bytes;
use kernel::run::WaitKind;
use kernel::{OrgId, RunId};
use rusqlite::{Connection, OptionalExtension, Row, Statement, params};
use std::collections::{HashMap, HashSet};

pub(super) fn walk(connection: &Connection, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
    let mut journal = JournalWalk::open(connection)?;
    let owners = Owners { connection, orgs: orgs(connection)? };
    let unowned = runs(connection, &owners, &mut journal, each)?;
    journal.pass(connection, unowned, each)
}

fn prepare<'c>(connection: &'c Connection, statement: &str) -> Result<Statement<'c>> {
    connection.prepare(statement).map_err(on_read)
}

/// Declares cursors over statements, and variables that keep the statements alive.
macro_rules! cursors {
    ($connection:ident; $($name:ident: $table:literal, $sql:literal, $read:expr;)*) => {
        $(
            let mut statement = prepare($connection, sql!($sql))?;
            let mut $name = Cursor::new($table, statement.query([]).map_err(on_read)?, $read)?;
        )*
    };
}

fn runs(
    connection: &Connection,
    owners: &Owners<'_>,
    journal: &mut JournalWalk<'_>,
    each: &mut dyn FnMut(InspectedRow),
) -> Result<Unowned> {
    cursors! { connection;
        snapshots: "snapshots", "inspect_snapshots", snapshot;
        timers: "timers", "inspect_timers", |row| time(row, 2);
        waits: "waits", "inspect_waits", wait;
        open_waits: "open_waits", "inspect_open_waits", open_wait;
        ready: "ready", "inspect_ready", ready_row;
        notifications: "notices", "inspect_notifications", |row| count(row, 2);
        payloads: "payloads", "inspect_payloads", |row| Ok((row.get(2)?, count(row, 3)?));
        labels: "labels", "inspect_labels", |row| Ok((row.get(2)?, row.get(3)?));
        keys: "idempotency", "inspect_run_keys", |row| Ok((row.get(2)?, row.get(3)?));
    }
    let mut unowned: Unowned = HashMap::new();
    let mut versions = prepare(connection, sql!("inspect_version"))?;
    let mut statement = prepare(connection, sql!("inspect_runs"))?;
    let mut rows = statement.query([]).map_err(on_read)?;
    while let Some(row) = rows.next().map_err(on_read)? {
        let key = raw_key(row, 0).map_err(on_read)?;
        let sides = (
            snapshots.take(&key, owners, each)?,
            timers.take(&key, owners, each)?,
            waits.take(&key, owners, each)?,
            open_waits.take(&key, owners, each)?,
            ready.take(&key, owners, each)?,
            notifications.take(&key, owners, each)?,
            payloads.take(&key, owners, each)?,
            labels.take(&key, owners, each)?,
            keys.take(&key, owners, &mut |seen| defer_dangling_key(seen, &mut unowned, each))?,
        );
        let (row, head) = match read_run(row) {
            Ok(read) => read,
            Err(error) => {
                each(InspectedRow::Anomaly(unreadable("runs", &key, &error)));
                journal.broken_runs.insert(key);
                continue;
            }
        };
        let version = versions.query_row(params![row.org.0, row.workflow.0, row.version], |row| row.get(0));
        let version = version.optional().map_err(on_read)?;
        let (records, broken) = journal.follow(key, &row, head)?;
        let (snapshots, timers, waits, open_waits, ready, notifications, payloads, labels, keys) = sides;
        each(InspectedRow::Run(Box::new(StoredRun {
            row,
            records,
            broken,
            row_seq: head.seq,
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
    snapshots.rest(owners, each)?;
    timers.rest(owners, each)?;
    waits.rest(owners, each)?;
    open_waits.rest(owners, each)?;
    ready.rest(owners, each)?;
    notifications.rest(owners, each)?;
    payloads.rest(owners, each)?;
    labels.rest(owners, each)?;
    keys.rest(owners, &mut |seen| defer_dangling_key(seen, &mut unowned, each))?;
    Ok(unowned)
}

/// Idempotency keys whose run does not exist: damage, unless the journal shows that the run was deleted.
type Unowned = HashMap<(OrgId, RunId), Vec<Anomaly>>;

fn defer_dangling_key(seen: InspectedRow, unowned: &mut Unowned, each: &mut dyn FnMut(InspectedRow)) {
    match seen {
        InspectedRow::Anomaly(Anomaly { kind: AnomalyKind::Dangling, org: Some(org), run: Some(run), what }) => {
            let (kind, key) = (AnomalyKind::Dangling, (org, run));
            unowned.entry(key).or_default().push(Anomaly { kind, org: Some(org), run: Some(run), what });
        }
        other => each(other),
    }
}

fn orgs(connection: &Connection) -> Result<Vec<i64>> {
    let mut statement = prepare(connection, sql!("inspect_orgs"))?;
    let rows = statement.query_map([], |row| row.get(0)).map_err(on_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(on_read)
}

fn read_run(row: &Row<'_>) -> rusqlite::Result<(RunRow, Head)> {
    Ok((run_row(row)?, Head { seq: count(row, 19)?, pos: row.get(20)? }))
}

fn snapshot(row: &Row<'_>) -> rusqlite::Result<SnapshotRow> {
    Ok(SnapshotRow { seq: count(row, 2)?, pos: row.get(3)?, body: Bytes::from(row.get::<_, Vec<u8>>(4)?) })
}

fn wait(row: &Row<'_>) -> rusqlite::Result<Wait> {
    let (org, run) = (org(row, 0)?, run_id(row, 1)?);
    Ok(Wait { org, run, step: row.get(2)?, token_hash: row.get(3)?, kind: row.get(4)? })
}

fn open_wait(row: &Row<'_>) -> rusqlite::Result<OpenWait> {
    let (org, run, step, deadline) = (org(row, 0)?, run_id(row, 1)?, row.get(2)?, time(row, 5)?);
    Ok(OpenWait { org, kind: named(row, 3, WaitKind::parse)?, name: row.get(4)?, run, step, deadline })
}

fn ready_row(row: &Row<'_>) -> rusqlite::Result<ReadyRow> {
    let queue = QueueKey { org: org(row, 0)?, name: row.get(2)?, key: row.get(3)? };
    Ok(ReadyRow { queue, position: QueuePosition { run: run_id(row, 1)?, priority: row.get(4)?, step: row.get(5)? } })
}

/// A run's records with their positions, oldest first, and why the chain is broken, if it is.
type History = (Vec<(i64, Bytes)>, Option<String>);

/// The state of a walk over the journal.
struct JournalWalk<'c> {
    at: Statement<'c>,
    /// The last record of every run that has records after the recovery position.
    tails: HashMap<RawKey, Head>,
    visited: Marks,
    /// Runs with a broken chain, which is reported once and not for every record that cannot be reached.
    broken_runs: HashSet<RawKey>,
}

impl<'c> JournalWalk<'c> {
    fn open(connection: &'c Connection) -> Result<JournalWalk<'c>> {
        let mut tails = HashMap::new();
        // An unreadable setting is reported with the settings; here it means to read the whole journal.
        let recovery_pos = run_heads::recovery_pos(connection).unwrap_or(0);
        let mut statement = prepare(connection, sql!("journal_tail"))?;
        let mut rows = statement.query([recovery_pos]).map_err(on_read)?;
        while let Some(row) = rows.next().map_err(on_read)? {
            // An empty record belongs to a deleted run.
            let has_body = count(row, 5).is_ok_and(|bytes| bytes > 0);
            if let (Ok(key), Ok(seq), Ok(pos), true) = (raw_key(row, 1), count(row, 3), row.get(0), has_body) {
                tails.insert(key, Head { seq, pos });
            }
        }
        let at = prepare(connection, sql!("journal_at"))?;
        Ok(JournalWalk { at, tails, visited: Marks::default(), broken_runs: HashSet::new() })
    }

    /// Follows a run's records from the last to the first.
    fn follow(&mut self, key: RawKey, row: &RunRow, stored: Head) -> Result<History> {
        let is_active = !row.evicted && !row.status.is_terminal();
        let tail = self.tails.get(&key).copied().filter(|_| is_active).unwrap_or_default();
        let head = stored.max(tail);
        let mut records = Vec::new();
        let mut passed_row = false;
        let mut at = head;
        let broken = loop {
            if at == Head::default() {
                break (!passed_row).then(|| format!("its row's last record ({}) is not among them", stored.seq));
            }
            match journal_slot(&mut self.at, (row.org, row.id), at)? {
                JournalSlot::Found { before, body } => {
                    passed_row |= at == stored;
                    self.visited.mark(at.pos);
                    records.push((at.pos, body));
                    at = before;
                }
                JournalSlot::Wrong(why) => break Some(format!("record {} at position {}: {why}", at.seq, at.pos)),
            }
        };
        records.reverse();
        if broken.is_some() {
            self.broken_runs.insert(key);
        }
        Ok((records, broken))
    }

    /// Yields every record in the order it was written.
    fn pass(&self, connection: &Connection, mut unowned: Unowned, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
        let mut exists = prepare(connection, sql!("inspect_run_exists"))?;
        let mut statement = prepare(connection, sql!("inspect_journal"))?;
        let mut rows = statement.query([]).map_err(on_read)?;
        let mut expected = 1;
        while let Some(row) = rows.next().map_err(on_read)? {
            let (pos, key): (i64, RawKey) = (row.get(0).map_err(on_read)?, raw_key(row, 1).map_err(on_read)?);
            let (org, run) = decoded(&key);
            if pos != expected {
                let what = format!("the journal has no record at {expected}, the next is at {pos}");
                each(InspectedRow::Anomaly(Anomaly::new(AnomalyKind::Gap, what)));
            }
            expected = pos.saturating_add(1);
            let body = Bytes::from(row.get::<_, Vec<u8>>(4).map_err(on_read)?);
            let is_visited = self.visited.has(pos);
            // An empty record without a run: the run was deleted, and its idempotency key stays.
            if body.is_empty() && !is_visited && !exists.exists((key.0, &key.1)).map_err(on_read)? {
                if let (Some(org), Some(run)) = (org, run) {
                    unowned.remove(&(org, run));
                }
                continue;
            }
            if !is_visited && !self.broken_runs.contains(&key) {
                let seq: i64 = row.get(3).map_err(on_read)?;
                let what = format!("record {seq} at position {pos} belongs to no run's history");
                each(InspectedRow::Anomaly(Anomaly::new(AnomalyKind::Orphan, what).of(org, run)));
            }
            if let (Some(org), Some(run)) = (org, run) {
                each(InspectedRow::Record { pos, org, run, body });
            }
        }
        unowned.into_values().flatten().for_each(|anomaly| each(InspectedRow::Anomaly(anomaly)));
        Ok(())
    }
}

/// Positions, one bit each, in blocks so that a damaged position costs no memory.
#[derive(Default)]
struct Marks(HashMap<i64, Box<[u64; Marks::WORDS]>>);

impl Marks {
    const WORDS: usize = 64;
    const BITS: i64 = 64 * Marks::WORDS as i64;

    fn slot(pos: i64) -> (i64, usize, u64) {
        let (block, bit) = (pos.div_euclid(Marks::BITS), pos.rem_euclid(Marks::BITS));
        (block, bit as usize / 64, 1 << (bit % 64))
    }

    fn mark(&mut self, pos: i64) {
        let (block, word, bit) = Marks::slot(pos);
        self.0.entry(block).or_insert_with(|| Box::new([0; Marks::WORDS]))[word] |= bit;
    }

    fn has(&self, pos: i64) -> bool {
        let (block, word, bit) = Marks::slot(pos);
        self.0.get(&block).is_some_and(|words| words[word] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_for_one_position() {
        let mut marks = Marks::default();
        for pos in [1, 63, 64, 4_096, 1 << 60, -1] {
            assert!(!marks.has(pos));
            marks.mark(pos);
            assert!(marks.has(pos) && !marks.has(pos + 7), "{pos}");
        }
    }
}
