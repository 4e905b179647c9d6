//! The head of each active run: the number and position of its last record.
//!
//! A commit compares with this map, so it needs no SQL read. The keys are exactly the runs whose row says neither
//! evicted nor ended; the rows of all other runs hold the exact head. Readers use this map too, because the rows of
//! active runs lag behind.
//!
//! Invariant: a head enters the map only after the commit that wrote it is durable. At start the map is rebuilt from
//! the rows and from the journal after the recovery position.

use super::columns::{count, org, run_id, sql};
use super::errors::on_read;
use crate::id_map::IdMap;
use crate::{Error, Result};
use kernel::{OrgId, RunId};
use rusqlite::{Connection, OptionalExtension};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The setting that holds the recovery position: the rows of all runs account for every record up to it.
pub(super) const RECOVERY_POS: &str = "recovery_pos";

pub(super) type Key = (OrgId, RunId);

/// Number and position of a run's last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub seq: u64,
    pub pos: i64,
}

#[derive(Debug, Default)]
pub(super) struct Heads(RwLock<IdMap<Key, Head>>);

impl Heads {
    /// The writer holds this guard while it writes a batch; it does not block readers.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, IdMap<Key, Head>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Head> {
        self.read().get(key).copied()
    }

    /// Applies the changes of a durable batch: a new head, or `None` for a run that was evicted or ended.
    pub(super) fn publish(&self, changes: impl Iterator<Item = (Key, Option<Head>)>) {
        let mut heads = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (key, head) in changes {
            match head {
                Some(head) => heads.insert(key, head),
                None => heads.remove(&key),
            };
        }
    }

    /// The active runs, sorted.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.read().keys().copied().collect();
        keys.sort_unstable();
        keys
    }
}

/// The part of the journal after the recovery position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    pub recovery_pos: i64,
    pub records: u64,
    pub bytes: u64,
    /// Position of the newest record; 0 in an empty journal.
    pub last_pos: i64,
}

/// Rebuilds the map from the rows and the journal.
pub(super) fn recover(connection: &Connection) -> Result<(Heads, Tail)> {
    let recovery_pos = recovery_pos(connection)?;
    let mut heads = rows(connection).map_err(on_read)?;
    let mut tail = Tail { recovery_pos, last_pos: recovery_pos, ..Tail::default() };
    let mut statement = connection.prepare(sql!("journal_tail")).map_err(on_read)?;
    let mut records = statement.query([recovery_pos]).map_err(on_read)?;
    while let Some(row) = records.next().map_err(on_read)? {
        let read = || Ok((row.get(0)?, (org(row, 1)?, run_id(row, 2)?), count(row, 3)?, row.get(4)?, count(row, 5)?));
        let (pos, key, seq, prev, bytes): (i64, Key, u64, i64, u64) = read().map_err(on_read)?;
        tail.records += 1;
        tail.bytes += bytes;
        tail.last_pos = pos;
        // An empty record belongs to a deleted run. A run that is not in the map was evicted or ended later, and its
        // row is exact.
        if bytes > 0
            && let Some(head) = heads.get_mut(&key)
            && seq > head.seq
        {
            if (seq, prev) != (head.seq + 1, head.pos) {
                return Err(Error::Corrupt(format!("record {seq} of {} does not follow the one before it", key.1)));
            }
            *head = Head { seq, pos };
        }
    }
    Ok((Heads(RwLock::new(heads)), tail))
}

fn rows(connection: &Connection) -> rusqlite::Result<IdMap<Key, Head>> {
    let mut statement = connection.prepare(sql!("runs_active"))?;
    let rows = statement
        .query_map([], |row| Ok(((org(row, 0)?, run_id(row, 1)?), Head { seq: count(row, 2)?, pos: row.get(3)? })))?;
    rows.collect()
}

pub(super) fn recovery_pos(connection: &Connection) -> Result<i64> {
    let stored: Option<String> =
        connection.query_row(sql!("setting"), [RECOVERY_POS], |row| row.get(0)).optional().map_err(on_read)?;
    match stored {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| Error::Corrupt(format!("the recovery position is `{text}`"))),
    }
}
