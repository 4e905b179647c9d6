//! Reading a run's records by following each one to the one before it.
//!
//! The journal has no index by run. A read starts at the head, which is the position of the last record, and goes
//! backwards. It checks the run, the number and the direction of every record, so it detects a broken chain.
//!
//! Invariant: the head is the latest of three: the one in memory *before* the read transaction began, the one in the
//! `runs` row, and the one in the snapshot row. All three were committed before, so their records exist, and the
//! transaction sees no record of the run that is newer than the latest of them.

use super::catalog::value;
use super::columns::{self, count, org, run_id, run_row, sql};
use super::errors::on_read;
use super::run_heads::{Head, Heads, Key};
use crate::rows::{JournalEntry, JournalPage, Loaded, RunRow};
use crate::{Error, Result};
use bytes::Bytes;
use kernel::OrgId;
use rusqlite::{Connection, OptionalExtension, Statement};

/// Most records for which a list is allocated in advance.
const CAPACITY_MAX: u64 = 4_096;

pub(super) fn load(connection: &Connection, heads: &Heads, key: Key) -> Result<Option<Loaded>> {
    let known = heads.get(&key).unwrap_or_default();
    let view = connection.unchecked_transaction().map_err(on_read)?;
    load_in(&view, known, key)
}

/// Loads several runs in one read transaction.
pub(super) fn load_all(connection: &Connection, heads: &Heads, keys: &[Key]) -> Result<Vec<Result<Option<Loaded>>>> {
    let known: Vec<Head> = keys.iter().map(|key| heads.get(key).unwrap_or_default()).collect();
    let view = connection.unchecked_transaction().map_err(on_read)?;
    Ok(keys.iter().zip(known).map(|(key, known)| load_in(&view, known, *key)).collect())
}

fn load_in(view: &Connection, known: Head, key: Key) -> Result<Option<Loaded>> {
    let Some((row, stored)) = visible_run(view, key)? else { return Ok(None) };
    let snapshot = snapshot(view, key).map_err(on_read)?;
    let base = snapshot.as_ref().map_or(Head::default(), |(at, _)| *at);
    let head = stored.max(base).max(known);
    let records = follow(view, key, head, base)?;
    Ok(Some(Loaded { snapshot: snapshot.map(|(at, state)| (at.seq, state)), records, seq: head.seq, row }))
}

fn snapshot(view: &Connection, key: Key) -> rusqlite::Result<Option<(Head, Bytes)>> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok((Head { seq: count(row, 0)?, pos: row.get(1)? }, Bytes::from(row.get::<_, Vec<u8>>(2)?)))
    };
    view.prepare_cached(sql!("snapshot"))?.query_row((key.0.0, key.1.0), read).optional()
}

/// The records after number `after`, at most `limit`. Records that are not part of the answer are passed by their links
/// alone, so memory holds no more than the answer.
pub(super) fn history(
    connection: &Connection,
    heads: &Heads,
    key: Key,
    after: u64,
    limit: usize,
) -> Result<Option<Vec<Bytes>>> {
    let known = heads.get(&key);
    let view = connection.unchecked_transaction().map_err(on_read)?;
    let Some((_, stored)) = visible_run(&view, key)? else { return Ok(None) };
    let mut at = stored.max(known.unwrap_or_default());
    let last = after.saturating_add(u64::try_from(limit).unwrap_or(u64::MAX)).min(at.seq);
    let mut links = view.prepare_cached(sql!("journal_link")).map_err(on_read)?;
    while at.seq > last {
        let read =
            |row: &rusqlite::Row<'_>| Ok(((org(row, 0)?, run_id(row, 1)?), count(row, 2)?, row.get::<_, i64>(3)?));
        at = match links.query_row([at.pos], read).optional().map_err(on_read)? {
            Some((owner, seq, prev)) if owner == key && seq == at.seq && prev < at.pos => {
                Head { seq: seq - 1, pos: prev }
            }
            _ => return Err(broken(key, at)),
        };
    }
    if at.seq <= after {
        return Ok(Some(Vec::new()));
    }
    match follow_to(&view, key, at, after)? {
        (_, end) if after == 0 && end != Head::default() => Err(broken(key, end)),
        (records, _) => Ok(Some(records)),
    }
}

/// Reads at most `limit` positions after `after`, and returns the records there that belong to the organisation.
pub(super) fn journal_page(
    connection: &Connection,
    org: OrgId,
    after: Option<u64>,
    limit: usize,
) -> Result<JournalPage> {
    let view = connection.unchecked_transaction().map_err(on_read)?;
    let newest: Option<Option<i64>> = value(&view, sql!("journal_end"), []).map_err(on_read)?;
    let newest = newest.flatten().unwrap_or(0);
    let mut end = after.and_then(|after| i64::try_from(after).ok()).unwrap_or(newest).min(newest);
    let mut statement = view.prepare_cached(sql!("journal_positions")).map_err(on_read)?;
    let mut rows = statement.query([end, columns::limit(limit)]).map_err(on_read)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next().map_err(on_read)? {
        end = row.get(0).map_err(on_read)?;
        let body = row.get_ref(3).and_then(|body| Ok(body.as_blob()?)).map_err(on_read)?;
        let is_hidden: bool = row.get(4).map_err(on_read)?;
        if !body.is_empty() && !is_hidden && columns::org(row, 1).map_err(on_read)? == org {
            let (pos, run) = (columns::int_back(end), run_id(row, 2).map_err(on_read)?);
            records.push(JournalEntry { pos, run, record: Bytes::copy_from_slice(body) });
        }
    }
    Ok(JournalPage { records, end: columns::int_back(end) })
}

/// The position of each record of a run, newest first, and the newest record itself.
pub(super) fn positions(connection: &Connection, key: Key, head: Head) -> Result<(Vec<i64>, Option<Bytes>)> {
    let mut statement = connection.prepare_cached(sql!("journal_at")).map_err(on_read)?;
    let (mut positions, mut newest) = (Vec::new(), None);
    let mut at = head;
    while at.seq > 0 {
        let JournalSlot::Found { before, body } = journal_slot(&mut statement, key, at)? else {
            return Err(broken(key, at));
        };
        newest.get_or_insert(body);
        positions.push(at.pos);
        at = before;
    }
    Ok((positions, newest))
}

pub(super) fn row(connection: &Connection, key: Key) -> Result<Option<(RunRow, Head)>> {
    let mut statement = connection.prepare_cached(sql!("run")).map_err(on_read)?;
    let read = |row: &rusqlite::Row<'_>| Ok((run_row(row)?, Head { seq: count(row, 19)?, pos: row.get(20)? }));
    statement.query_row((key.0.0, key.1.0), read).optional().map_err(on_read)
}

/// The row of a run that is not hidden.
fn visible_run(connection: &Connection, key: Key) -> Result<Option<(RunRow, Head)>> {
    Ok(row(connection, key)?.filter(|(row, _)| row.deleted_at.is_none()))
}

pub(super) fn is_hidden(connection: &Connection, key: Key) -> Result<bool> {
    let mut statement = connection.prepare_cached(sql!("run_is_hidden")).map_err(on_read)?;
    statement.exists((key.0.0, key.1.0)).map_err(on_read)
}

/// The records after `base` up to `head`, oldest first.
fn follow(connection: &Connection, key: Key, head: Head, base: Head) -> Result<Vec<Bytes>> {
    match follow_to(connection, key, head, base.seq)? {
        (records, end) if end == base => Ok(records),
        (_, end) => Err(broken(key, end)),
    }
}

/// The records after number `after` up to `head`, oldest first, and the head of the record before them.
fn follow_to(connection: &Connection, key: Key, head: Head, after: u64) -> Result<(Vec<Bytes>, Head)> {
    let mut statement = connection.prepare_cached(sql!("journal_at")).map_err(on_read)?;
    let mut records = Vec::with_capacity((head.seq - after).min(CAPACITY_MAX) as usize);
    let mut at = head;
    while at.seq > after {
        match journal_slot(&mut statement, key, at)? {
            JournalSlot::Found { before, body } => {
                records.push(body);
                at = before;
            }
            JournalSlot::Wrong(_) => return Err(broken(key, at)),
        }
    }
    records.reverse();
    Ok((records, at))
}

/// What is at a position where a record of a run is expected.
pub(super) enum JournalSlot {
    Found { before: Head, body: Bytes },
    Wrong(&'static str),
}

/// Reads one record of a run's chain; `journal_at` is the prepared statement of that name.
pub(super) fn journal_slot(journal_at: &mut Statement<'_>, key: Key, at: Head) -> Result<JournalSlot> {
    let read = |row: &rusqlite::Row<'_>| {
        let body: Vec<u8> = row.get(4)?;
        Ok(((org(row, 0)?, run_id(row, 1)?), count(row, 2)?, row.get::<_, i64>(3)?, Bytes::from(body)))
    };
    let found = match journal_at.query_row([at.pos], read).optional() {
        // A column has an unexpected value; the file itself can be read.
        Err(error) if error.sqlite_error_code().is_none() => return Ok(JournalSlot::Wrong("it cannot be read")),
        found => found.map_err(on_read)?,
    };
    Ok(match found {
        None => JournalSlot::Wrong("there is none"),
        Some((owner, ..)) if owner != key => JournalSlot::Wrong("it is another run's"),
        Some((_, seq, ..)) if seq != at.seq || seq == 0 => JournalSlot::Wrong("it has another number"),
        Some((_, _, prev, _)) if prev >= at.pos => JournalSlot::Wrong("the one before it comes later"),
        Some((_, seq, prev, body)) => JournalSlot::Found { before: Head { seq: seq - 1, pos: prev }, body },
    })
}

fn broken(key: Key, at: Head) -> Error {
    Error::Corrupt(format!("record {} of {} is not where it should be", at.seq, key.1))
}
