//! Reading a table page by page, and a merge join of two tables: for each run, the rows of another table that refer to
//! it.
//!
//! Rows are read in the order of the runs. A row between two runs refers to no run and is reported as an anomaly, and
//! so is a row that cannot be read.

use super::super::columns::{Attempted, get, id, org, sql};
use super::super::errors::Failure;
use super::{PostgresInspection, unreadable};
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, InspectedRow};
use kernel::{OrgId, RunId};
use std::collections::VecDeque;
use tokio_postgres::Row;

/// The statement that fetches the next page of an open cursor.
macro_rules! fetch {
    ($name:literal) => {
        concat!("FETCH 512 FROM inspect_", $name)
    };
}
pub(super) use fetch;

/// Organisation and run as they are stored, in the order of the tables.
pub(super) type Key = (i32, [u8; 16]);

pub(super) fn key(row: &Row) -> Attempted<Key> {
    Ok((get(row, 0)?, id(row, 1)?))
}

pub(super) fn decoded(key: Key) -> (Option<OrgId>, Option<RunId>) {
    (Some(OrgId(key.0.cast_unsigned())), Some(RunId(key.1)))
}

pub(super) struct Cursor<T> {
    pub(super) table: &'static str,
    fetch: &'static str,
    page: VecDeque<Row>,
    is_over: bool,
    pub(super) read: fn(&Row) -> Attempted<T>,
}

impl<T> Cursor<T> {
    pub(super) fn new(
        inspection: &PostgresInspection,
        table: &'static str,
        statement: &'static str,
        fetch: &'static str,
        read: fn(&Row) -> Attempted<T>,
    ) -> Result<Cursor<T>> {
        let open = format!("DECLARE inspect_{table} NO SCROLL CURSOR FOR {statement}");
        inspection.wait(inspection.session.batch(&open))?;
        Ok(Cursor { table, fetch, page: VecDeque::new(), is_over: false, read })
    }

    fn fill(&mut self, inspection: &PostgresInspection) -> Result<()> {
        if self.page.is_empty() && !self.is_over {
            self.page = inspection.query(self.fetch, &[])?.into();
            self.is_over = self.page.is_empty();
        }
        Ok(())
    }

    pub(super) fn next(&mut self, inspection: &PostgresInspection) -> Result<Option<Row>> {
        self.fill(inspection)?;
        Ok(self.page.pop_front())
    }

    /// The next row, if it refers to a run up to `last`.
    fn next_until(&mut self, inspection: &PostgresInspection, last: Option<Key>) -> Result<Option<(Key, Row)>> {
        self.fill(inspection)?;
        let Some(found) = self.page.front().map(key).transpose().map_err(Failure::unwritten)? else { return Ok(None) };
        match last {
            Some(last) if found > last => Ok(None),
            _ => Ok(self.page.pop_front().map(|row| (found, row))),
        }
    }

    /// The rows of this run. Rows before them refer to no run and are passed to `stray`.
    pub(super) fn take(
        &mut self,
        inspection: &PostgresInspection,
        run: Key,
        stray: &mut dyn FnMut(&'static str, Key, &Row) -> Result<()>,
        each: &mut dyn FnMut(InspectedRow),
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        while let Some((found, row)) = self.next_until(inspection, Some(run))? {
            if found < run {
                stray(self.table, found, &row)?;
                continue;
            }
            match (self.read)(&row) {
                Ok(row) => rows.push(row),
                Err(failure) => {
                    let (org, run) = decoded(found);
                    each(InspectedRow::Anomaly(unreadable(self.table, org, run, failure)));
                }
            }
        }
        Ok(rows)
    }

    /// Called after the last run: passes the remaining rows, which refer to no run, to `stray`.
    pub(super) fn rest(
        &mut self,
        inspection: &PostgresInspection,
        stray: &mut dyn FnMut(&'static str, Key, &Row) -> Result<()>,
    ) -> Result<()> {
        while let Some((found, row)) = self.next_until(inspection, None)? {
            stray(self.table, found, &row)?;
        }
        Ok(())
    }
}

/// Finds out whether a run belongs to another organisation.
pub(super) struct Owners<'a> {
    inspection: &'a PostgresInspection,
    orgs: Vec<i32>,
}

impl<'a> Owners<'a> {
    pub(super) fn of(inspection: &'a PostgresInspection) -> Result<Owners<'a>> {
        let rows = inspection.query(sql!("inspect_orgs"), &[])?;
        let orgs = rows.iter().map(|row| Ok(super::owner(org(row, 0)?))).collect::<Attempted<_>>();
        Ok(Owners { inspection, orgs: orgs.map_err(Failure::unwritten)? })
    }

    /// The anomaly of a row whose run does not exist.
    pub(super) fn stray(&self, table: &str, key: Key) -> Result<Anomaly> {
        let (org, run) = decoded(key);
        for other in &self.orgs {
            if self.inspection.exists(sql!("inspect_run_exists"), *other, key.1)? {
                let (mine, theirs) = (key.0.cast_unsigned(), other.cast_unsigned());
                let what = format!("a row of `{table}` is organisation {mine}'s, its run is organisation {theirs}'s");
                return Ok(Anomaly::new(AnomalyKind::OtherOrganisation, what).of(org, run));
            }
        }
        let what = format!("a row of `{table}` names a run that does not exist");
        Ok(Anomaly::new(AnomalyKind::Dangling, what).of(org, run))
    }
}
