//! Finding out whether a transaction committed when the server's answer was lost.
//!
//! The server may still run a session that is lost for the client, with the `COMMIT` yet to be processed. So another
//! session terminates it and waits for its advisory lock, which is released when everything the session did has ended.
//! After that the outcome is final and can be read.

use super::Inner;
use super::batch_columns::JournalColumns;
use super::columns::{Attempted, count, sql, text};
use super::errors::Failure;
use super::pool::PooledSession;
use super::session::{Session, SessionId};
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// How long to try to find out.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How to recognise the transaction.
enum OutcomeCheck<'a> {
    /// Does the journal contain the records of the batch, all of them and exactly as they were sent? A single record is
    /// no proof: another node may have made the same decision and written an identical one. In that case the other
    /// records of the batch are missing.
    Records(&'a JournalColumns),
    /// Was the transaction with this id committed?
    Transaction(&'a str),
}

/// Was the batch with these records committed?
pub(super) async fn has_records(inner: &Inner, lost: PooledSession, journal: &JournalColumns) -> Result<bool> {
    find_out(inner, lost, OutcomeCheck::Records(journal)).await
}

/// Was the transaction with this id committed?
pub(super) async fn is_committed(inner: &Inner, lost: PooledSession, transaction: &str) -> Result<bool> {
    find_out(inner, lost, OutcomeCheck::Transaction(transaction)).await
}

/// Retries until there is an answer: the cause that ended one session may end the next one too.
async fn find_out(inner: &Inner, lost: PooledSession, question: OutcomeCheck<'_>) -> Result<bool> {
    let (old, until) = (lost.standing.clone(), Instant::now() + TIMEOUT);
    drop(lost);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let session = inner.connector.connect_within(left).await?;
        match check_once(&session, &old, &question).await {
            Err(Failure::Lost(_) | Failure::Again(_)) if Instant::now() < until => {}
            answer => return answer.map_err(Failure::unwritten),
        }
    }
}

async fn check_once(session: &Session, old: &SessionId, question: &OutcomeCheck<'_>) -> Attempted<bool> {
    session.batch("SET lock_timeout = '5s'").await?;
    session.query(sql!("postgres/session_held"), &[&old.key]).await?;
    session.query("SELECT pg_advisory_xact_lock($1)", &[&old.key]).await?;
    match question {
        OutcomeCheck::Records(JournalColumns { orgs, runs, seqs, bodies, .. }) => {
            let found = session.first(sql!("postgres/journal_has"), &[orgs, runs, seqs, bodies]).await?;
            Ok(found.map_or(Ok(0), |row| count(&row, 0))? == orgs.len() as u64)
        }
        OutcomeCheck::Transaction(number) => {
            // A server that took over continues the transaction ids from its own position: the id may belong to
            // another transaction.
            let unsure = |why: &str| Failure::Other(Error::Unavailable(why.into()));
            if session.standing.timeline != old.timeline {
                return Err(unsure("another server has taken over"));
            }
            let row = session.first("SELECT COALESCE(pg_xact_status($1::text::xid8), '')", &[number]).await?;
            match row.map(|row| text(&row, 0)).transpose()?.as_deref() {
                Some("committed") => Ok(true),
                Some("aborted") => Ok(false),
                _ => Err(unsure("the server does not remember the transaction")),
            }
        }
    }
}
