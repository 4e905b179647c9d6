//! Every run with all that names it, then every record: the walk of an inspection.
//!
//! A run's records are followed from the newest to the oldest, as the engine would. Of a parked or ended
//! run the row knows the newest; of the others it may lie in the journal after the recovery position.
//! Positions that were visited are marked, one bit each, so that the pass over the journal at the end
//! finds the records nobody leads to. An empty record of a run that is not there is a place the run left
//! behind when it was erased.

use super::super::columns::{count, org, run_id, run_row, sql, time};
use super::super::errors::on_read;
use super::super::journal::{JournalSlot, journal_slot};
use super::super::run_heads::{self, Head};
use super::cursor::{Cursor, Owners, RawKey, raw_key, understood, unreadable};
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, Seen, SnapshotRow, StoredRun};
use crate::rows::{QueueKey, QueuePosition, ReadyRow, RunRow, Wait};
use bytes::Bytes;
use kernel::{OrgId, RunId};
use rusqlite::{Connection, OptionalExtension, Row, Statement, params};
use std::collections::{HashMap, HashSet};

pub(super) fn walk(connection: &Connection, each: &mut dyn FnMut(Seen)) -> Result<()> {
    let mut journal = Journal::open(connection)?;
    let owners = Owners { connection, orgs: orgs(connection)? };
    let unowned = runs(connection, &owners, &mut journal, each)?;
    journal.pass(connection, unowned, each)
}

fn prepare<'c>(connection: &'c Connection, statement: &str) -> Result<Statement<'c>> {
    connection.prepare(statement).map_err(on_read)
}

/// `let mut name = cursor over a statement;`, the statement kept alive beside it.
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
    journal: &mut Journal<'_>,
    each: &mut dyn FnMut(Seen),
) -> Result<Unowned> {
    cursors! { connection;
        snapshots: "snapshots", "inspect_snapshots", snapshot;
        timers: "timers", "inspect_timers", |row| time(row, 2);
        waits: "waits", "inspect_waits", wait;
        ready: "ready", "inspect_ready", ready_row;
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
            ready.take(&key, owners, each)?,
            payloads.take(&key, owners, each)?,
            labels.take(&key, owners, each)?,
            keys.take(&key, owners, &mut |seen| set_aside(seen, &mut unowned, each))?,
        );
        let (row, head) = match read_run(row) {
            Ok(read) => read,
            Err(error) => {
                each(Seen::Anomaly(unreadable("runs", &key, &error)));
                journal.excused.insert(key);
                continue;
            }
        };
        let version = versions.query_row(params![row.org.0, row.workflow.0, row.version], |row| row.get(0));
        let version = version.optional().map_err(on_read)?;
        let (records, broken) = journal.follow(key, &row, head)?;
        let (snapshots, timers, waits, ready, payloads, labels, keys) = sides;
        each(Seen::Run(Box::new(StoredRun {
            row,
            records,
            broken,
            row_seq: head.seq,
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
    snapshots.rest(owners, each)?;
    timers.rest(owners, each)?;
    waits.rest(owners, each)?;
    ready.rest(owners, each)?;
    payloads.rest(owners, each)?;
    labels.rest(owners, each)?;
    keys.rest(owners, &mut |seen| set_aside(seen, &mut unowned, each))?;
    Ok(unowned)
}

/// Idempotency keys whose run is not there: damage, unless the journal shows that it was erased.
type Unowned = HashMap<(OrgId, RunId), Vec<Anomaly>>;

fn set_aside(seen: Seen, unowned: &mut Unowned, each: &mut dyn FnMut(Seen)) {
    match seen {
        Seen::Anomaly(Anomaly { kind: AnomalyKind::Dangling, org: Some(org), run: Some(run), what }) => {
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
    Ok((run_row(row)?, Head { seq: count(row, 17)?, pos: row.get(18)? }))
}

fn snapshot(row: &Row<'_>) -> rusqlite::Result<SnapshotRow> {
    Ok(SnapshotRow { seq: count(row, 2)?, pos: row.get(3)?, body: Bytes::from(row.get::<_, Vec<u8>>(4)?) })
}

fn wait(row: &Row<'_>) -> rusqlite::Result<Wait> {
    let (org, run) = (org(row, 0)?, run_id(row, 1)?);
    Ok(Wait { org, run, step: row.get(2)?, token_hash: row.get(3)?, kind: row.get(4)? })
}

fn ready_row(row: &Row<'_>) -> rusqlite::Result<ReadyRow> {
    let queue = QueueKey { org: org(row, 0)?, name: row.get(2)?, key: row.get(3)? };
    Ok(ReadyRow { queue, position: QueuePosition { run: run_id(row, 1)?, priority: row.get(4)?, step: row.get(5)? } })
}

/// A run's records with their positions, oldest first, and why they are not all if they are not.
type History = (Vec<(i64, Bytes)>, Option<String>);

/// The journal while it is walked.
struct Journal<'c> {
    at: Statement<'c>,
    /// Of every run with a record after the recovery position, its last one there.
    tails: HashMap<RawKey, Head>,
    visited: Marks,
    /// Runs whose records cannot all be reached, which is said once and not for every record.
    excused: HashSet<RawKey>,
}

impl<'c> Journal<'c> {
    fn open(connection: &'c Connection) -> Result<Journal<'c>> {
        let mut tails = HashMap::new();
        // A setting that cannot be read is reported with the settings; here the whole journal is the tail.
        let recovery_pos = run_heads::recovery_pos(connection).unwrap_or(0);
        let mut statement = prepare(connection, sql!("journal_tail"))?;
        let mut rows = statement.query([recovery_pos]).map_err(on_read)?;
        while let Some(row) = rows.next().map_err(on_read)? {
            // What was erased is nobody's.
            let is_there = count(row, 5).is_ok_and(|bytes| bytes > 0);
            if let (Ok(key), Ok(seq), Ok(pos), true) = (raw_key(row, 1), count(row, 3), row.get(0), is_there) {
                tails.insert(key, Head { seq, pos });
            }
        }
        let at = prepare(connection, sql!("journal_at"))?;
        Ok(Journal { at, tails, visited: Marks::default(), excused: HashSet::new() })
    }

    /// Goes from a run's last record to its first.
    fn follow(&mut self, key: RawKey, row: &RunRow, stored: Head) -> Result<History> {
        let is_unparked = !row.evicted && !row.status.is_terminal();
        let tail = self.tails.get(&key).copied().filter(|_| is_unparked).unwrap_or_default();
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
            self.excused.insert(key);
        }
        Ok((records, broken))
    }

    /// Every record in the order it was written.
    fn pass(&self, connection: &Connection, mut unowned: Unowned, each: &mut dyn FnMut(Seen)) -> Result<()> {
        let mut exists = prepare(connection, sql!("inspect_run_exists"))?;
        let mut statement = prepare(connection, sql!("inspect_journal"))?;
        let mut rows = statement.query([]).map_err(on_read)?;
        let mut expected = 1;
        while let Some(row) = rows.next().map_err(on_read)? {
            let (pos, key): (i64, RawKey) = (row.get(0).map_err(on_read)?, raw_key(row, 1).map_err(on_read)?);
            let (org, run) = understood(&key);
            if pos != expected {
                let what = format!("the journal has no record at {expected}, the next is at {pos}");
                each(Seen::Anomaly(Anomaly::new(AnomalyKind::Gap, what)));
            }
            expected = pos.saturating_add(1);
            let body = Bytes::from(row.get::<_, Vec<u8>>(4).map_err(on_read)?);
            let is_visited = self.visited.has(pos);
            // The empty place of a run that is not there: it was erased, and its key may have stayed.
            if body.is_empty() && !is_visited && !exists.exists((key.0, &key.1)).map_err(on_read)? {
                if let (Some(org), Some(run)) = (org, run) {
                    unowned.remove(&(org, run));
                }
                continue;
            }
            if !is_visited && !self.excused.contains(&key) {
                let seq: i64 = row.get(3).map_err(on_read)?;
                let what = format!("record {seq} at position {pos} belongs to no run's history");
                each(Seen::Anomaly(Anomaly::new(AnomalyKind::Orphan, what).of(org, run)));
            }
            if let (Some(org), Some(run)) = (org, run) {
                each(Seen::Record { pos, org, run, body });
            }
        }
        unowned.into_values().flatten().for_each(|anomaly| each(Seen::Anomaly(anomaly)));
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
