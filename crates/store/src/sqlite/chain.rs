//! A run's records, found by following each one to the one before it.
//!
//! The journal has no index by run. A read starts at the head and goes backwards; it knows which
//! number, run and direction to expect at every hop, so a broken chain is noticed and said.
//!
//! The rule that keeps it right: the head is the latest of three, namely the one in memory *before* the
//! read transaction began, the one in the row and the one under the snapshot. All three are of the
//! past, so their records are there; and nothing in the transaction is newer than their latest.

use super::columns::{count, org, run_id, run_row, sql};
use super::fault::on_read;
use super::heads::{Head, Heads, Key};
use crate::rows::{Loaded, RunRow};
use crate::{Error, Result};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Statement};

/// A chain this long is read without growing the list.
const CAPACITY_MAX: u64 = 4_096;

pub(super) fn load(connection: &Connection, heads: &Heads, key: Key) -> Result<Option<Loaded>> {
    let known = heads.get(&key);
    let view = connection.unchecked_transaction().map_err(on_read)?;
    let Some((row, stored)) = row(&view, key)? else { return Ok(None) };
    let snapshot = view
        .prepare_cached(sql!("snapshot"))
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| {
                Ok((Head { seq: count(row, 0)?, pos: row.get(1)? }, Bytes::from(row.get::<_, Vec<u8>>(2)?)))
            };
            statement.query_row((key.0.0, key.1.0), read).optional()
        })
        .map_err(on_read)?;
    let base = snapshot.as_ref().map_or(Head::default(), |(at, _)| *at);
    let head = stored.max(base).max(known.unwrap_or_default());
    let records = follow(&view, key, head, base)?;
    Ok(Some(Loaded { snapshot: snapshot.map(|(at, state)| (at.seq, state)), records, seq: head.seq, row }))
}

pub(super) fn history(connection: &Connection, heads: &Heads, key: Key) -> Result<Option<Vec<Bytes>>> {
    let known = heads.get(&key);
    let view = connection.unchecked_transaction().map_err(on_read)?;
    let Some((_, stored)) = row(&view, key)? else { return Ok(None) };
    let head = stored.max(known.unwrap_or_default());
    follow(&view, key, head, Head::default()).map(Some)
}

fn row(connection: &Connection, key: Key) -> Result<Option<(RunRow, Head)>> {
    let mut statement = connection.prepare_cached(sql!("run")).map_err(on_read)?;
    let read = |row: &rusqlite::Row<'_>| Ok((run_row(row)?, Head { seq: count(row, 15)?, pos: row.get(16)? }));
    statement.query_row((key.0.0, key.1.0), read).optional().map_err(on_read)
}

/// The records after `base` up to `head`, oldest first.
fn follow(connection: &Connection, key: Key, head: Head, base: Head) -> Result<Vec<Bytes>> {
    let mut statement = connection.prepare_cached(sql!("journal_at")).map_err(on_read)?;
    let mut records = Vec::with_capacity((head.seq - base.seq).min(CAPACITY_MAX) as usize);
    let mut at = head;
    while at.seq > base.seq {
        match place(&mut statement, key, at)? {
            Place::Found { before, body } => {
                records.push(body);
                at = before;
            }
            Place::Wrong(_) => return Err(broken(key, at)),
        }
    }
    if at != base {
        return Err(broken(key, at));
    }
    records.reverse();
    Ok(records)
}

/// What is at a place where a run's record should be.
pub(super) enum Place {
    Found { before: Head, body: Bytes },
    Wrong(&'static str),
}

/// Looks at one place of a run's chain; `journal_at` is the statement of that name.
pub(super) fn place(journal_at: &mut Statement<'_>, key: Key, at: Head) -> Result<Place> {
    let read = |row: &rusqlite::Row<'_>| {
        let body: Vec<u8> = row.get(4)?;
        Ok(((org(row, 0)?, run_id(row, 1)?), count(row, 2)?, row.get::<_, i64>(3)?, Bytes::from(body)))
    };
    let found = match journal_at.query_row([at.pos], read).optional() {
        // A column that cannot be understood, not a file that cannot be read.
        Err(error) if error.sqlite_error_code().is_none() => return Ok(Place::Wrong("it cannot be read")),
        found => found.map_err(on_read)?,
    };
    Ok(match found {
        None => Place::Wrong("there is none"),
        Some((owner, ..)) if owner != key => Place::Wrong("it is another run's"),
        Some((_, seq, ..)) if seq != at.seq || seq == 0 => Place::Wrong("it has another number"),
        Some((_, _, prev, _)) if prev >= at.pos => Place::Wrong("the one before it comes later"),
        Some((_, seq, prev, body)) => Place::Found { before: Head { seq: seq - 1, pos: prev }, body },
    })
}

fn broken(key: Key, at: Head) -> Error {
    Error::Corrupt(format!("record {} of {} is not where it should be", at.seq, key.1))
}
