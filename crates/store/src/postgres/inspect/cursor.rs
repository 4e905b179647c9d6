//! A table read page by page, in order; and two of them side by side: for each run, the rows of another table that
//! name it.
//!
//! Rows are asked for in the order of the runs. One that stands between two runs names none, which makes it an anomaly;
//! so does one that cannot be read.

use super::super::columns::{Attempted, get, id, org, sql};
use super::super::errors::Failure;
use super::{PostgresInspection, unreadable};
use crate::Result;
use crate::inspect::{Anomaly, AnomalyKind, Seen};
use kernel::{OrgId, RunId};
use std::collections::VecDeque;
use tokio_postgres::Row;

/// Asks an open cursor for its next page.
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

pub(super) fn understood(key: Key) -> (Option<OrgId>, Option<RunId>) {
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
        look: &PostgresInspection,
        table: &'static str,
        statement: &'static str,
        fetch: &'static str,
        read: fn(&Row) -> Attempted<T>,
    ) -> Result<Cursor<T>> {
        let open = format!("DECLARE inspect_{table} NO SCROLL CURSOR FOR {statement}");
        look.wait(look.session.batch(&open))?;
        Ok(Cursor { table, fetch, page: VecDeque::new(), is_over: false, read })
    }

    fn fill(&mut self, look: &PostgresInspection) -> Result<()> {
        if self.page.is_empty() && !self.is_over {
            self.page = look.query(self.fetch, &[])?.into();
            self.is_over = self.page.is_empty();
        }
        Ok(())
    }

    pub(super) fn next(&mut self, look: &PostgresInspection) -> Result<Option<Row>> {
        self.fill(look)?;
        Ok(self.page.pop_front())
    }

    /// The next row, if it is of a run up to this one.
    fn next_until(&mut self, look: &PostgresInspection, last: Option<Key>) -> Result<Option<(Key, Row)>> {
        self.fill(look)?;
        let Some(found) = self.page.front().map(key).transpose().map_err(Failure::unwritten)? else { return Ok(None) };
        match last {
            Some(last) if found > last => Ok(None),
            _ => Ok(self.page.pop_front().map(|row| (found, row))),
        }
    }

    /// The rows of this run. Whatever comes before them is nobody's.
    pub(super) fn take(
        &mut self,
        look: &PostgresInspection,
        run: Key,
        stray: &mut dyn FnMut(&'static str, Key, &Row) -> Result<()>,
        each: &mut dyn FnMut(Seen),
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        while let Some((found, row)) = self.next_until(look, Some(run))? {
            if found < run {
                stray(self.table, found, &row)?;
                continue;
            }
            match (self.read)(&row) {
                Ok(row) => rows.push(row),
                Err(failure) => {
                    let (org, run) = understood(found);
                    each(Seen::Anomaly(unreadable(self.table, org, run, failure)));
                }
            }
        }
        Ok(rows)
    }

    /// After the last run, everything that is left is nobody's.
    pub(super) fn rest(
        &mut self,
        look: &PostgresInspection,
        stray: &mut dyn FnMut(&'static str, Key, &Row) -> Result<()>,
    ) -> Result<()> {
        while let Some((found, row)) = self.next_until(look, None)? {
            stray(self.table, found, &row)?;
        }
        Ok(())
    }
}

/// Tells whether a run is another organisation's.
pub(super) struct Owners<'a> {
    look: &'a PostgresInspection,
    orgs: Vec<i32>,
}

impl<'a> Owners<'a> {
    pub(super) fn of(look: &'a PostgresInspection) -> Result<Owners<'a>> {
        let rows = look.query(sql!("inspect_orgs"), &[])?;
        let orgs = rows.iter().map(|row| Ok(super::owner(org(row, 0)?))).collect::<Attempted<_>>();
        Ok(Owners { look, orgs: orgs.map_err(Failure::unwritten)? })
    }

    /// What to say of a row whose run is not there.
    pub(super) fn stray(&self, table: &str, key: Key) -> Result<Anomaly> {
        let (org, run) = understood(key);
        for other in &self.orgs {
            if self.look.is_there(sql!("inspect_run_exists"), *other, key.1)? {
                let (mine, theirs) = (key.0.cast_unsigned(), other.cast_unsigned());
                let what = format!("a row of `{table}` is organisation {mine}'s, its run is organisation {theirs}'s");
                return Ok(Anomaly::new(AnomalyKind::OtherOrganisation, what).of(org, run));
            }
        }
        let what = format!("a row of `{table}` names a run that does not exist");
        Ok(Anomaly::new(AnomalyKind::Dangling, what).of(org, run))
    }
}
