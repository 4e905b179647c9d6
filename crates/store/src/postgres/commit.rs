//! Writing a batch.
//!
//! ```text
//!   batch ──▶ one transaction, one round trip ──▶ committed
//!                  │ a row was refused                 ▲
//!                  ├──▶ look what stands in the way ───┤ the rest, the same way
//!                  │ again and again, or somebody      │
//!                  │ holds a run and does not let go   │
//!                  ├──▶ unit by unit, a savepoint each ┤
//!                  │ the answer is missing             │
//!                  └──▶ is it there? ──────────────────┘
//! ```
//!
//! The compare-and-swap is the primary key of the journal, `(org, run, seq)`, together with the look for the
//! record before in the same statement: a record goes in only as the next one of its run. All rows of a batch
//! are one transaction, so a batch is there or it is not.
//!
//! The rule that keeps it right: `Committed` is said when the server said so, or when every record of the
//! transaction was found in the journal after the session that sent it was over.

use super::Inner;
use super::batch_columns::{BatchColumns, Journal, has_room};
use super::columns::Attempted;
use super::commit_outcome;
use super::conflict_check::ConflictFacts;
use super::errors::Failure;
use super::pool::{Pool, PooledSession};
use super::session::{Ended, Session};
use crate::crash::{self, Point};
use crate::rows::{Batch, LimitSlotChange, RunWrite, Verdict};
use crate::write_validation::{is_same_group, is_sound};
use crate::{Error, Result};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Tries before a batch is written unit by unit, and before it is given up.
const SIFTS_MAX: usize = 4;
const TRIES_MAX: usize = 8;

/// What one try came to.
enum Try {
    Done,
    /// Nothing was written; a row was refused.
    Row,
    /// Nothing was written; somebody holds one of the runs.
    Busy,
    /// Nothing was written; the same again may succeed.
    Again(Error),
}

pub(super) async fn commit(inner: &Inner, writers: &Arc<Pool>, batch: &Batch) -> Result<Vec<Verdict>> {
    if batch.runs.is_empty() {
        return Ok(Vec::new());
    }
    let mut verdicts = vec![Verdict::Committed; batch.runs.len()];
    let mut must_sift = !batch.runs.iter().all(|write| is_sound(write) && has_room(write)) || is_tangled(&batch.runs);
    let (mut sifts, mut last) = (0, Error::Unavailable("the runs of this batch are changing too fast".into()));
    for _ in 0..TRIES_MAX {
        if must_sift {
            if sifts == SIFTS_MAX {
                return one_by_one(inner, writers, batch).await;
            }
            sifts += 1;
            inner.tally.commit_reads.fetch_add(1, Relaxed);
            let session = writers.take().await?;
            let facts = session.end_read(&batch.runs).await?;
            verdicts = facts.judge(&batch.runs, batch.at);
        }
        let writes: Vec<&RunWrite> =
            batch.runs.iter().zip(&verdicts).filter(|(_, v)| **v == Verdict::Committed).map(|(w, _)| w).collect();
        if writes.is_empty() {
            return Ok(verdicts);
        }
        match attempt(inner, writers, batch, &writes).await? {
            Try::Done => {
                inner.committed(&writes);
                return Ok(verdicts);
            }
            Try::Row => must_sift = true,
            Try::Busy => return one_by_one(inner, writers, batch).await,
            Try::Again(why) => last = why,
        }
    }
    Err(last)
}

/// Does a write want something with a seat that one before it takes? Then what is left in the end does not say
/// whether each of them could be had.
fn is_tangled(writes: &[RunWrite]) -> bool {
    let mut taken = HashSet::new();
    let is_met = |write: &RunWrite| {
        let is_met = write.limit_slots.free.iter().chain(&write.limit_slots.take).any(|row| taken.contains(&row.slot));
        taken.extend(write.limit_slots.take.iter().map(|row| row.slot.clone()));
        is_met
    };
    writes.iter().filter(|write| write.limit_slots != LimitSlotChange::default()).any(is_met)
}

/// Writes all of it, or nothing.
async fn attempt(inner: &Inner, writers: &Arc<Pool>, batch: &Batch, writes: &[&RunWrite]) -> Result<Try> {
    let session = writers.take().await?;
    inner.connector.rollback_detector.admit()?;
    let batch_columns = BatchColumns::new(batch, writes);
    let (texts, params): (Vec<_>, Vec<_>) = batch_columns.statements().unzip();
    let statements = match session.prepare(&texts).await {
        Ok(statements) => statements.into_iter().zip(params).collect::<Vec<_>>(),
        // Nothing was sent, and the next session may be better.
        Err(failure @ Failure::Lost(_)) => return Ok(Try::Again(failure.unwritten())),
        Err(failure) => return Err(failure.unwritten()),
    };
    crash::point(Point::BeforeBegin);
    let ended = session.transaction(&statements).await;
    drop(statements);
    conclude(inner, session, ended, &batch_columns.journal).await
}

async fn conclude(inner: &Inner, session: PooledSession, ended: Ended, journal: &Journal) -> Result<Try> {
    match ended {
        Ended::Committed => {
            crash::point(Point::AfterCommit);
            session.bring_back();
            Ok(Try::Done)
        }
        Ended::NotWritten(failure) => {
            let answer = match failure {
                Failure::Row(_) => Ok(Try::Row),
                Failure::Busy(_) => Ok(Try::Busy),
                failure @ (Failure::Again(_) | Failure::Lost(_)) => Ok(Try::Again(failure.unwritten())),
                other => Err(other.unwritten()),
            };
            session.bring_back();
            answer
        }
        Ended::Open(why) => match commit_outcome::has_records(inner, session, journal).await {
            Ok(true) => Ok(Try::Done),
            Ok(false) => Ok(Try::Again(Error::Unavailable(why))),
            Err(unsure) => Err(Error::Unknown(format!("{why}; and then: {unsure}"))),
        },
    }
}

/// The slow way: every unit on its own, in one transaction. Whatever is wrong with one of them, known to us or
/// not, is its own trouble.
async fn one_by_one(inner: &Inner, writers: &Arc<Pool>, batch: &Batch) -> Result<Vec<Verdict>> {
    let session = writers.take().await?;
    inner.connector.rollback_detector.admit()?;
    let (mut verdicts, mut written) = (Vec::with_capacity(batch.runs.len()), Vec::new());
    let outcome = async {
        session.batch("BEGIN").await?;
        for atomic_group in batch.runs.chunk_by(is_same_group) {
            inner.tally.commit_reads.fetch_add(1, Relaxed);
            let judged = ConflictFacts::find(&session, atomic_group).await?.judge(atomic_group, batch.at);
            let passed = || atomic_group.iter().zip(&judged).filter(|(_, v)| **v == Verdict::Committed).map(|(w, _)| w);
            if passed().next().is_none() {
                verdicts.extend(judged);
                continue;
            }
            session.batch("SAVEPOINT unit").await?;
            match write(&session, &BatchColumns::new(batch, &passed().collect::<Vec<_>>())).await {
                Ok(()) => {
                    session.batch("RELEASE unit").await?;
                    written.extend(passed());
                    verdicts.extend(judged);
                }
                // Whoever holds a run is writing its next record, or was stopped in the middle of it. A run that
                // does not exist yet is nobody's, so then it is something else they hold.
                Err(Failure::Busy(why)) if atomic_group.iter().any(|write| write.after == 0) => {
                    return Err(Failure::Busy(why));
                }
                Err(Failure::Row(_) | Failure::Busy(_)) => {
                    session.batch("ROLLBACK TO unit; RELEASE unit").await?;
                    verdicts.push(Verdict::Conflict);
                    verdicts.extend((1..atomic_group.len()).map(|_| Verdict::Undone));
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    };
    let outcome: Attempted<()> = outcome.await;
    if let Err(failure) = outcome {
        return Err(failure.unwritten());
    }
    let journal = BatchColumns::new(batch, &written).journal;
    let ended = match session.batch("COMMIT").await {
        Ok(()) => Ended::Committed,
        Err(Failure::Lost(why)) => Ended::Open(why),
        Err(failure) => Ended::NotWritten(failure),
    };
    match conclude(inner, session, ended, &journal).await? {
        Try::Done => {
            if !written.is_empty() {
                inner.committed(&written);
            }
            Ok(verdicts)
        }
        Try::Row | Try::Busy => Err(Error::Unavailable("a row was refused".into())),
        Try::Again(why) => Err(why),
    }
}

async fn write(session: &Session, batch_columns: &BatchColumns) -> Attempted<()> {
    for (text, params) in batch_columns.statements() {
        session.execute(text, &params).await?;
    }
    Ok(())
}

impl PooledSession {
    async fn end_read(self, writes: &[RunWrite]) -> Result<ConflictFacts> {
        let facts = ConflictFacts::find(&self, writes).await;
        self.end(facts)
    }
}

impl Inner {
    fn committed(&self, writes: &[&RunWrite]) {
        self.tally.commits.fetch_add(1, Relaxed);
        self.tally.records.fetch_add(writes.len() as u64, Relaxed);
        if let Some(last) = writes.last() {
            self.connector.rollback_detector.note(last);
        }
    }
}
