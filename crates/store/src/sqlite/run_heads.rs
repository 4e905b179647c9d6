//! Where the last record of each unparked run is.
//!
//! The compare-and-swap of a commit is against this map, so the hot path reads nothing. Its keys are
//! exactly the runs that are neither parked nor ended; of all others the row itself holds the
//! exact head. Readers take a head from here too, since the rows of unparked runs lag behind.
//!
//! So do they in one more respect: a task that waits is parked, and whoever takes it is done with it a moment later. That it was
//! taken up is not written to its row meanwhile. Its row says that it is parked, and has an older head than there is; that is how
//! it can be told from one that is ([`take_up_after`]).
//!
//! The rule that keeps it right: a head enters only after the commit that made it is durable. At
//! start the map is rebuilt from the rows and from the journal after the recovery position.

use super::columns::{count, org, run_id, sql};
use super::errors::on_read;
use crate::near::IdMap;
use crate::rows::RunRow;
use crate::{Error, Result};
use kernel::{OrgId, RunId, RunStatus};
use rusqlite::{Connection, OptionalExtension};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The setting that holds the recovery position: for every record up to it, the row of its run is
/// either exact or was rewritten.
pub(super) const RECOVERY_POS: &str = "recovery_pos";

pub(super) type Key = (OrgId, RunId);

/// Number and place of a run's last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub seq: u64,
    pub pos: i64,
}

/// What the writer knows of a run: of an unparked one from memory, of any other from its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub head: Head,
    /// See [`unlisted`](super::unlisted).
    pub is_listed: bool,
    /// It was taken up, and its row says that it is parked.
    pub is_taken: bool,
}

/// Lets a row with this head say that its run was taken up, if its last record shows that.
pub(super) fn take_up_after(row: &mut RunRow, stored: Head, last: Head) {
    if may_be_taken(row) && last > stored {
        take_up(row);
    }
}

fn take_up(row: &mut RunRow) {
    (row.evicted, row.waiting) = (false, 0);
}

/// Could it have been taken up without its row saying so?
pub(super) fn may_be_taken(row: &RunRow) -> bool {
    row.evicted && row.status == RunStatus::Running
}

#[derive(Debug, Default)]
pub(super) struct Heads {
    runs: RwLock<IdMap<Key, Known>>,
    /// No run with a smaller id is unlisted.
    unlisted_from: RwLock<Option<RunId>>,
}

impl Heads {
    /// Held by the writer while it writes a batch: other readers are not kept out.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, IdMap<Key, Known>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Head> {
        self.read().get(key).map(|run| run.head)
    }

    /// A row that was read a moment ago, as what is in memory has it.
    pub(super) fn corrected(&self, mut row: RunRow) -> RunRow {
        if may_be_taken(&row) && self.read().contains_key(&(row.org, row.id)) {
            take_up(&mut row);
        }
        row
    }

    /// To be asked before a view of the database is taken: what is listed later is listed in that.
    pub(super) fn unlisted_from(&self) -> Option<RunId> {
        *self.unlisted_from.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what a durable batch changed: a new head, or that the run was parked or ended.
    pub(super) fn publish(&self, changes: impl Iterator<Item = (Key, Option<Known>)>, unlisted_from: Option<RunId>) {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        for (key, run) in changes {
            match run {
                Some(run) => runs.insert(key, run),
                None => runs.remove(&key),
            };
        }
        drop(runs);
        *self.unlisted_from.write().unwrap_or_else(PoisonError::into_inner) = unlisted_from;
    }

    /// In a stable order.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.read().keys().copied().collect();
        keys.sort_unstable();
        keys
    }
}

/// How far the journal goes beyond the recovery position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    pub recovery_pos: i64,
    pub records: u64,
    pub bytes: u64,
    /// Of the newest record; 0 in an empty journal.
    pub last_pos: i64,
}

/// Rebuilds the map from what is stored. Rows that lag behind in other respects than their head do not after this: runs that were
/// not listed are, those that were taken up are not parked.
pub(super) fn recover(connection: &Connection) -> Result<(Heads, Tail)> {
    let recovery_pos = recovery_pos(connection)?;
    connection.execute(sql!("runs_list_tail"), [recovery_pos]).map_err(on_read)?;
    connection.execute(sql!("runs_take_tail"), [recovery_pos]).map_err(on_read)?;
    let mut runs = rows(connection).map_err(on_read)?;
    let mut tail = Tail { recovery_pos, last_pos: recovery_pos, ..Tail::default() };
    let mut statement = connection.prepare(sql!("journal_tail")).map_err(on_read)?;
    let mut records = statement.query([recovery_pos]).map_err(on_read)?;
    while let Some(row) = records.next().map_err(on_read)? {
        let read = || Ok((row.get(0)?, (org(row, 1)?, run_id(row, 2)?), count(row, 3)?, row.get(4)?, count(row, 5)?));
        let (pos, key, seq, prev, bytes): (i64, Key, u64, i64, u64) = read().map_err(on_read)?;
        tail.records += 1;
        tail.bytes += bytes;
        tail.last_pos = pos;
        // An empty record is the place of a run that was erased. A run that is not in the map was parked or
        // ended later, and its row is exact.
        if bytes > 0
            && let Some(Known { head, .. }) = runs.get_mut(&key)
            && seq > head.seq
        {
            if (seq, prev) != (head.seq + 1, head.pos) {
                return Err(Error::Corrupt(format!("record {seq} of {} does not follow the one before it", key.1)));
            }
            *head = Head { seq, pos };
        }
    }
    Ok((Heads { runs: RwLock::new(runs), ..Heads::default() }, tail))
}

fn rows(connection: &Connection) -> rusqlite::Result<IdMap<Key, Known>> {
    let mut statement = connection.prepare(sql!("runs_unparked"))?;
    let rows = statement.query_map([], |row| {
        let head = Head { seq: count(row, 2)?, pos: row.get(3)? };
        Ok(((org(row, 0)?, run_id(row, 1)?), Known { head, is_listed: true, is_taken: false }))
    })?;
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
