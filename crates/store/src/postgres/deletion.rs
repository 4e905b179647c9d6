//! Deleting a run that has ended with every row that refers to it, or only hiding it.
//!
//! The records are deleted, and their positions in the journal stay without a record. The idempotency key stays too, so
//! that a repeated request cannot do the work again.
//!
//! Invariant: one transaction, which first locks the run's row and checks that the run has ended. (A record that
//! another node appends at the same time may be left without its run. It is never read, because every read of a run
//! starts with its row.)

use super::columns::{Attempted, EscapedText, Id, org_of, run_row, sql};
use super::journal::{self, ERASED_UNTIL};
use super::session::Session;
use crate::rows::{Erased, Erasure, RunRow};
use kernel::{OrgId, Record, RunId, Timestamp};

pub(super) async fn erase(session: &Session, erasure: &Erasure) -> Attempted<Erased> {
    let Erasure { org, run, seq, labels } = erasure;
    let row = match ended(session, *org, *run).await? {
        Ok(row) => row,
        Err(why) => return Ok(why),
    };
    let (owner, id) = (org_of(*org), Id(run.0));
    let newest = journal::last(session, *org, *run).await?;
    if newest.as_ref().map_or(0, |(seq, _)| *seq) != *seq {
        return Ok(Erased::Changed);
    }
    if let Some(at) = row.wake_at {
        session.execute(sql!("timer_delete"), &[&at.0, &owner, &id]).await?;
    }
    for (key, value) in labels {
        session.execute(sql!("label_delete"), &[&owner, &EscapedText::of(key), &EscapedText::of(value), &id]).await?;
    }
    let tables = [
        sql!("waits_delete"),
        sql!("postgres/journal_delete"),
        sql!("snapshot_delete"),
        sql!("payloads_delete"),
        sql!("run_delete"),
    ];
    for table in tables {
        session.execute(table, &[&owner, &id]).await?;
    }
    if let Some(record) = newest.and_then(|(_, body)| Record::open(&body).ok()) {
        let until = EscapedText(record.at.0.to_string());
        session.execute(sql!("postgres/setting_raise"), &[&ERASED_UNTIL, &until]).await?;
    }
    Ok(Erased::Done)
}

/// Hides a run from every list. All of its rows stay.
pub(super) async fn hide(session: &Session, org: OrgId, run: RunId, at: Timestamp) -> Attempted<Erased> {
    match ended(session, org, run).await? {
        Ok(row) if row.deleted_at.is_some() => Ok(Erased::NotFound),
        Ok(_) => {
            session.execute(sql!("run_hide"), &[&at.0, &org_of(org), &Id(run.0)]).await?;
            Ok(Erased::Done)
        }
        Err(why) => Ok(why),
    }
}

/// The row of a run that may be deleted or hidden, or why it may not.
async fn ended(session: &Session, org: OrgId, run: RunId) -> Attempted<Result<RunRow, Erased>> {
    let key: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&org_of(org), &Id(run.0)];
    let found = session.first(sql!("postgres/run_locked"), &key).await?;
    let Some(row) = found.map(|row| run_row(&row)).transpose()? else { return Ok(Err(Erased::NotFound)) };
    if !row.status.is_terminal() {
        return Ok(Err(Erased::NotEnded));
    }
    if session.first(sql!("notifications_of_run"), &key).await?.is_some() {
        return Ok(Err(Erased::NotificationsPending));
    }
    if session.first(sql!("inbox_of_run"), &key).await?.is_some() {
        return Ok(Err(Erased::InboxPending));
    }
    Ok(Ok(row))
}
