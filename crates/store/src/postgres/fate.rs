//! What became of a transaction whose answer is missing.
//!
//! A session that is gone for us may live on for the server, with our `COMMIT` still to come. So it is ended, and
//! its lock is waited for, which is free when everything the session did is over. After that there is an answer,
//! and it does not change.

use super::Inner;
use super::columns::{Attempted, sql, text};
use super::fault::Trouble;
use super::pool::Lease;
use super::session::{Session, Standing};
use super::sheet::Journal;
use crate::Result;
use std::time::Duration;

/// How long it may take to find out.
const PATIENCE: Duration = Duration::from_secs(8);

/// Are the records of a batch there, all of them and as they were sent?
///
/// All, because one alone might be another node's that decided the same; then the others of this batch are not.
pub(super) async fn has_records(inner: &Inner, lost: Lease, journal: &Journal) -> Result<bool> {
    let session = after(inner, lost).await?.0;
    let Journal { orgs, runs, seqs, bodies, .. } = journal;
    let found = async {
        let found = session.first(sql!("postgres/journal_has"), &[orgs, runs, seqs, bodies]).await?;
        found.map_or(Ok(0), |row| super::columns::count(&row, 0))
    };
    Ok(found.await.map_err(Trouble::unwritten)? == orgs.len() as u64)
}

/// Was a transaction committed? None when the server is another one than it was, which counts transactions
/// from where it stood when it took over.
pub(super) async fn is_committed(inner: &Inner, lost: Lease, transaction: &str) -> Result<Option<bool>> {
    let (session, before) = after(inner, lost).await?;
    if session.standing.timeline != before.timeline {
        return Ok(None);
    }
    let status: Attempted<Option<String>> = async {
        let row = session.first("SELECT COALESCE(pg_xact_status($1::text::xid8), '')", &[&transaction]).await?;
        row.map(|row| text(&row, 0)).transpose()
    }
    .await;
    Ok(match status.map_err(Trouble::unwritten)?.as_deref() {
        Some("committed") => Some(true),
        Some("aborted") => Some(false),
        _ => None,
    })
}

/// A new session, opened for the time after an old one.
async fn after(inner: &Inner, lost: Lease) -> Result<(Session, Standing)> {
    let old = lost.standing.clone();
    drop(lost);
    let session = inner.connector.connect_within(PATIENCE).await?;
    let ended: Attempted<()> = async {
        session.query(sql!("postgres/session_held"), &[&old.key]).await?;
        session.query("SELECT pg_advisory_xact_lock($1)", &[&old.key]).await.map(drop)
    }
    .await;
    ended.map_err(Trouble::unwritten)?;
    Ok((session, old))
}
