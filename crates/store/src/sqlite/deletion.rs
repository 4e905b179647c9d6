//! Deleting a run that has ended with every row that refers to it, or only hiding it.
//!
//! The records are emptied in place: positions stay contiguous, the recovery scan counts them as before, and an
//! inspection can tell an emptied position from a lost one. The idempotency key stays, so that a repeated request
//! cannot do the work again.
//!
//! Invariant: one transaction, which first checks that the run has ended. The head in the row of an ended run is exact,
//! and the compare-and-swap of a commit refuses a late record.

use super::columns::sql;
use super::errors::{Failure, on_read};
use super::run_heads::{Head, Key};
use super::{catalog, inbox, journal, notifications};
use crate::crash::{self, Point};
use crate::rows::{Erased, Erasure, RunRow};
use crate::{Error, Result};
use kernel::{Record, Timestamp};
use rusqlite::{Connection, params};

/// The setting that holds the time of the newest deleted record. Engine time stays ahead of it even if the journal has
/// only older records left.
const ERASED_UNTIL: &str = "erased_until_us";

pub(super) fn erase(connection: &Connection, erasure: &Erasure) -> std::result::Result<Erased, Failure> {
    let Erasure { org, run, seq, labels } = erasure;
    let key = (*org, *run);
    let (row, head) = match ended(connection, key)? {
        Ok(found) => found,
        Err(why) => return Ok(why),
    };
    if head.seq != *seq {
        return Ok(Erased::Changed);
    }
    let (positions, newest) = journal::positions(connection, key, head).map_err(Failure::Other)?;
    let execute = |statement: &str, params: &[&dyn rusqlite::ToSql]| -> std::result::Result<(), Failure> {
        connection.prepare_cached(statement)?.execute(params)?;
        Ok(())
    };
    for pos in positions {
        execute(sql!("journal_empty"), params![pos])?;
    }
    crash::point(Point::RecordsEmptied);
    if let Some(at) = row.wake_at {
        execute(sql!("timer_delete"), params![at.0, org.0, run.0])?;
    }
    for (name, value) in labels {
        execute(sql!("label_delete"), params![org.0, name, value, run.0])?;
    }
    for table in [sql!("waits_delete"), sql!("snapshot_delete"), sql!("payloads_delete"), sql!("run_delete")] {
        execute(table, params![org.0, run.0])?;
    }
    let last = newest.and_then(|body| Record::open(&body).ok()).map(|record| record.at);
    let until = last.max(high_water(connection).map_err(Failure::Other)?);
    if let Some(until) = until {
        catalog::set_setting(connection, ERASED_UNTIL, &until.0.to_string())?;
    }
    Ok(Erased::Done)
}

/// Hides a run from every list. All of its rows stay.
pub(super) fn hide(connection: &Connection, key: Key, at: Timestamp) -> std::result::Result<Erased, Failure> {
    match ended(connection, key)? {
        Ok((row, _)) if row.deleted_at.is_some() => Ok(Erased::NotFound),
        Ok(_) => {
            connection.prepare_cached(sql!("run_hide"))?.execute(params![at.0, key.0.0, key.1.0])?;
            Ok(Erased::Done)
        }
        Err(why) => Ok(why),
    }
}

/// The row and head of a run that may be deleted or hidden, or why it may not.
fn ended(
    connection: &Connection,
    key: Key,
) -> std::result::Result<std::result::Result<(RunRow, Head), Erased>, Failure> {
    let Some((row, head)) = journal::row(connection, key).map_err(Failure::Other)? else {
        return Ok(Err(Erased::NotFound));
    };
    if !row.status.is_terminal() {
        return Ok(Err(Erased::NotEnded));
    }
    if !notifications::run_notifications(connection, key.0, key.1).map_err(Failure::Other)?.is_empty() {
        return Ok(Err(Erased::NotificationsPending));
    }
    if inbox::has_rows(connection, key)? {
        return Ok(Err(Erased::InboxPending));
    }
    Ok(Ok((row, head)))
}

/// Time of the newest record that was deleted.
pub(super) fn high_water(connection: &Connection) -> Result<Option<Timestamp>> {
    let stored: Option<String> = catalog::value(connection, sql!("setting"), [ERASED_UNTIL]).map_err(on_read)?;
    let damaged = |text: &String| Error::Corrupt(format!("the setting `{ERASED_UNTIL}` is `{text}`"));
    stored.map(|text| text.parse().map(Timestamp).map_err(|_| damaged(&text))).transpose()
}
