//! What became of a transaction whose answer is missing.
//!
//! A session that is gone for us may live on for the server, with our `COMMIT` still to come. So it is ended, and
//! its lock is waited for, which is free when everything the session did is over. After that there is an answer,
//! and it does not change.

use super::Inner;
use super::batch_columns::Journal;
use super::columns::{Attempted, count, sql, text};
use super::errors::Failure;
use super::pool::PooledSession;
use super::session::{Session, Standing};
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// How long it may take to find out.
const PATIENCE: Duration = Duration::from_secs(10);

/// What there is to find out.
enum Question<'a> {
    /// Are the records of a batch there, all of them and as they were sent? All, because one alone might be
    /// another node's that decided the same; then the others of this batch are not.
    Records(&'a Journal),
    /// Was the transaction of this number committed?
    Transaction(&'a str),
}

/// Is the batch with these records there?
pub(super) async fn has_records(inner: &Inner, lost: PooledSession, journal: &Journal) -> Result<bool> {
    answer(inner, lost, Question::Records(journal)).await
}

/// Was the transaction of this number committed?
pub(super) async fn is_committed(inner: &Inner, lost: PooledSession, transaction: &str) -> Result<bool> {
    answer(inner, lost, Question::Transaction(transaction)).await
}

/// Asks until there is an answer: who took one session may well take the next.
async fn answer(inner: &Inner, lost: PooledSession, question: Question<'_>) -> Result<bool> {
    let (old, until) = (lost.standing.clone(), Instant::now() + PATIENCE);
    drop(lost);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let session = inner.connector.connect_within(left).await?;
        match ask(&session, &old, &question).await {
            Err(Failure::Lost(_) | Failure::Again(_)) if Instant::now() < until => {}
            answer => return answer.map_err(Failure::unwritten),
        }
    }
}

async fn ask(session: &Session, old: &Standing, question: &Question<'_>) -> Attempted<bool> {
    session.batch("SET lock_timeout = '5s'").await?;
    session.query(sql!("postgres/session_held"), &[&old.key]).await?;
    session.query("SELECT pg_advisory_xact_lock($1)", &[&old.key]).await?;
    match question {
        Question::Records(Journal { orgs, runs, seqs, bodies, .. }) => {
            let found = session.first(sql!("postgres/journal_has"), &[orgs, runs, seqs, bodies]).await?;
            Ok(found.map_or(Ok(0), |row| count(&row, 0))? == orgs.len() as u64)
        }
        Question::Transaction(number) => {
            // A server that took over counts transactions from where it stood: the number may be another's.
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
