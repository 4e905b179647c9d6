//! A merge join of two sorted tables: for each run, the rows of another table that refer to it.
//!
//! Rows are read in the order of the runs. A row between two runs refers to no run and is reported as an anomaly, and
//! so is a row that cannot be read. Keys are compared as SQLite compares them, before they are decoded, so a damaged
//! key cannot get the two tables out of step.

use super::super::columns::sql;
use super::super::errors::on_read;
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, InspectedRow};
use kernel::{OrgId, RunId};
use rusqlite::{Connection, Row, Rows};

/// Organisation and run as they are stored.
pub(super) type RawKey = (i64, Vec<u8>);

pub(super) fn raw_key(row: &Row<'_>, column: usize) -> rusqlite::Result<RawKey> {
    Ok((row.get(column)?, row.get(column + 1)?))
}

/// The parts of a key that can be decoded.
pub(super) fn decoded(key: &RawKey) -> (Option<OrgId>, Option<RunId>) {
    (u32::try_from(key.0).ok().map(OrgId), key.1.as_slice().try_into().ok().map(RunId))
}

/// Finds out whether a run belongs to another organisation.
pub(super) struct Owners<'c> {
    pub connection: &'c Connection,
    pub orgs: Vec<i64>,
}

impl Owners<'_> {
    fn stray(&self, table: &str, key: &RawKey) -> Anomaly {
        let has = |org: &&i64| {
            let mut statement = self.connection.prepare_cached(sql!("inspect_run_exists"))?;
            statement.exists((org, &key.1))
        };
        let (org, run) = decoded(key);
        let elsewhere = self.orgs.iter().find(|org| has(org).unwrap_or(false));
        let anomaly = match elsewhere {
            Some(other) => Anomaly::new(
                AnomalyKind::OtherOrganisation,
                format!("a row of `{table}` is organisation {}'s, its run is organisation {other}'s", key.0),
            ),
            None => Anomaly::new(AnomalyKind::Dangling, format!("a row of `{table}` names a run that does not exist")),
        };
        anomaly.of(org, run)
    }
}

pub(super) struct Cursor<'s, T> {
    table: &'static str,
    rows: Rows<'s>,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
    next: Option<(RawKey, rusqlite::Result<T>)>,
}

impl<'s, T> Cursor<'s, T> {
    pub(super) fn new(
        table: &'static str,
        rows: Rows<'s>,
        read: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Cursor<'s, T>> {
        let mut cursor = Cursor { table, rows, read, next: None };
        cursor.step()?;
        Ok(cursor)
    }

    fn step(&mut self) -> Result<()> {
        self.next = match self.rows.next().map_err(on_read)? {
            None => None,
            Some(row) => Some((raw_key(row, 0).map_err(on_read)?, (self.read)(row))),
        };
        Ok(())
    }

    /// The rows of this run. Rows before them refer to no run and are reported.
    pub(super) fn take(
        &mut self,
        key: &RawKey,
        owners: &Owners<'_>,
        each: &mut dyn FnMut(InspectedRow),
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        while let Some((found, row)) = self.next.take_if(|(found, _)| *found <= *key) {
            match row {
                _ if found < *key => each(InspectedRow::Anomaly(owners.stray(self.table, &found))),
                Ok(row) => rows.push(row),
                Err(error) => each(InspectedRow::Anomaly(unreadable(self.table, &found, &error))),
            }
            self.step()?;
        }
        Ok(rows)
    }

    /// Called after the last run: reports the remaining rows, which refer to no run.
    pub(super) fn rest(&mut self, owners: &Owners<'_>, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
        while let Some((found, _)) = self.next.take() {
            each(InspectedRow::Anomaly(owners.stray(self.table, &found)));
            self.step()?;
        }
        Ok(())
    }
}

pub(super) fn unreadable(table: &str, key: &RawKey, error: &rusqlite::Error) -> Anomaly {
    let (org, run) = decoded(key);
    Anomaly::new(AnomalyKind::Unreadable, format!("a row of `{table}`: {error}")).of(org, run)
}
