//! Writing a batch.
//!
//! ```text
//!   batch ──▶ one transaction, one round trip ──────▶ committed
//!                  │ a row was refused                    ▲
//!                  ├──▶ conflict check ───────────────────┤ the other runs, the same way
//!                  │ refused several times, or another    │
//!                  │ node holds the lock of a run         │
//!                  ├──▶ group by group, a savepoint each ─┤
//!                  │ no answer from the server            │
//!                  └──▶ look for the records ─────────────┘
//! ```
//!
//! The compare-and-swap is the primary key of the journal, `(org, run, seq)`, together with a check for the preceding
//! record in the same statement: a record is inserted only as the next one of its run. All rows of a batch are in one
//! transaction, so the whole batch is committed or nothing of it.
//!
//! Invariant: a write is reported as `Committed` only if the server confirmed the commit, or if every record of the
//! transaction was found in the journal after the session that sent it had ended.

use super::Inner;
use super::batch_columns::{BatchColumns, JournalColumns, fits_seq_column};
use super::columns::Attempted;
use super::commit_outcome;
use super::conflict_check::ConflictFacts;
use super::errors::Failure;
use super::pool::{Pool, PooledSession};
use super::session::{Ended, Session};
use crate::crash::{self, Point};
use crate::rows::{Batch, LimitSlotChange, RunWrite, WriteVerdict};
use crate::write_validation::{is_same_group, is_valid};
use crate::{Error, Result};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Conflict checks before a batch is written group by group.
const CONFLICT_CHECKS_MAX: usize = 4;
/// Attempts before a commit fails.
const TRIES_MAX: usize = 8;

/// The outcome of one attempt.
enum Try {
    Done,
    /// Nothing was written; a row was refused.
    Row,
    /// Nothing was written; another transaction holds a lock on one of the runs.
    Busy,
    /// Nothing was written; the same attempt may succeed the next time.
    Again(Error),
}

pub(super) async fn commit(inner: &Inner, writers: &Arc<Pool>, batch: &Batch) -> Result<Vec<WriteVerdict>> {
    if batch.runs.is_empty() {
        return Ok(Vec::new());
    }
    let mut verdicts = vec![WriteVerdict::Committed; batch.runs.len()];
    let mut must_check =
        !batch.runs.iter().all(|write| is_valid(write) && fits_seq_column(write)) || has_slot_overlap(&batch.runs);
    let (mut conflict_checks, mut last) =
        (0, Error::Unavailable("the runs of this batch are changing too fast".into()));
    for _ in 0..TRIES_MAX {
        if must_check {
            if conflict_checks == CONFLICT_CHECKS_MAX {
                return group_by_group(inner, writers, batch).await;
            }
            conflict_checks += 1;
            inner.tally.commit_reads.fetch_add(1, Relaxed);
            let session = writers.take().await?;
            let facts = session.find_conflicts(&batch.runs).await?;
            verdicts = facts.judge(&batch.runs, batch.at);
        }
        let writes: Vec<&RunWrite> =
            batch.runs.iter().zip(&verdicts).filter(|(_, v)| **v == WriteVerdict::Committed).map(|(w, _)| w).collect();
        if writes.is_empty() {
            return Ok(verdicts);
        }
        match attempt(inner, writers, batch, &writes).await? {
            Try::Done => {
                inner.committed(&writes);
                return Ok(verdicts);
            }
            Try::Row => must_check = true,
            Try::Busy => return group_by_group(inner, writers, batch).await,
            Try::Again(why) => last = why,
        }
    }
    Err(last)
}

/// Does a write free or take a limit slot that an earlier write of the batch takes? If so, the final state of the slots
/// does not show whether each of the writes was possible.
fn has_slot_overlap(writes: &[RunWrite]) -> bool {
    let mut taken = HashSet::new();
    let overlaps = |write: &RunWrite| {
        let overlaps =
            write.limit_slots.free.iter().chain(&write.limit_slots.take).any(|row| taken.contains(&row.slot));
        taken.extend(write.limit_slots.take.iter().map(|row| row.slot.clone()));
        overlaps
    };
    writes.iter().filter(|write| write.limit_slots != LimitSlotChange::default()).any(overlaps)
}

/// Writes all of these runs in one transaction, or none.
async fn attempt(inner: &Inner, writers: &Arc<Pool>, batch: &Batch, writes: &[&RunWrite]) -> Result<Try> {
    let session = writers.take().await?;
    inner.connector.rollback_detector.check_not_fenced()?;
    let batch_columns = BatchColumns::new(batch, writes);
    let (texts, params): (Vec<_>, Vec<_>) = batch_columns.statements().unzip();
    let statements = match session.prepare(&texts).await {
        Ok(statements) => statements.into_iter().zip(params).collect::<Vec<_>>(),
        // Nothing was sent, and another session may work.
        Err(failure @ Failure::Lost(_)) => return Ok(Try::Again(failure.unwritten())),
        Err(failure) => return Err(failure.unwritten()),
    };
    crash::point(Point::BeforeBegin);
    let ended = session.transaction(&statements).await;
    drop(statements);
    conclude(inner, session, ended, &batch_columns.journal).await
}

async fn conclude(inner: &Inner, session: PooledSession, ended: Ended, journal: &JournalColumns) -> Result<Try> {
    match ended {
        Ended::Committed => {
            crash::point(Point::AfterCommit);
            session.return_to_pool();
            Ok(Try::Done)
        }
        Ended::NotWritten(failure) => {
            let answer = match failure {
                Failure::Row(_) => Ok(Try::Row),
                Failure::Busy(_) => Ok(Try::Busy),
                failure @ (Failure::Again(_) | Failure::Lost(_)) => Ok(Try::Again(failure.unwritten())),
                other => Err(other.unwritten()),
            };
            session.return_to_pool();
            answer
        }
        Ended::Open(why) => match commit_outcome::has_records(inner, session, journal).await {
            Ok(true) => Ok(Try::Done),
            Ok(false) => Ok(Try::Again(Error::Unavailable(why))),
            Err(unsure) => Err(Error::Unknown(format!("{why}; and then: {unsure}"))),
        },
    }
}

/// The slow path: writes every atomic group with its own savepoint, in one transaction. A group that fails, for
/// whatever reason, does not affect the others.
async fn group_by_group(inner: &Inner, writers: &Arc<Pool>, batch: &Batch) -> Result<Vec<WriteVerdict>> {
    let session = writers.take().await?;
    inner.connector.rollback_detector.check_not_fenced()?;
    let (mut verdicts, mut written) = (Vec::with_capacity(batch.runs.len()), Vec::new());
    let outcome = async {
        session.batch("BEGIN").await?;
        for atomic_group in batch.runs.chunk_by(is_same_group) {
            inner.tally.commit_reads.fetch_add(1, Relaxed);
            let judged = ConflictFacts::find(&session, atomic_group).await?.judge(atomic_group, batch.at);
            let passed =
                || atomic_group.iter().zip(&judged).filter(|(_, v)| **v == WriteVerdict::Committed).map(|(w, _)| w);
            if passed().next().is_none() {
                verdicts.extend(judged);
                continue;
            }
            session.batch("SAVEPOINT atomic_group").await?;
            match write(&session, &BatchColumns::new(batch, &passed().collect::<Vec<_>>())).await {
                Ok(()) => {
                    session.batch("RELEASE atomic_group").await?;
                    written.extend(passed());
                    verdicts.extend(judged);
                }
                // The transaction that holds the lock of a run is writing its next record, or was stopped while doing
                // so. No transaction can hold the lock of a run that does not exist yet, so in that case the lock is
                // on another row.
                Err(Failure::Busy(why)) if atomic_group.iter().any(|write| write.after == 0) => {
                    return Err(Failure::Busy(why));
                }
                Err(Failure::Row(_) | Failure::Busy(_)) => {
                    session.batch("ROLLBACK TO atomic_group; RELEASE atomic_group").await?;
                    verdicts.push(WriteVerdict::Conflict);
                    verdicts.extend((1..atomic_group.len()).map(|_| WriteVerdict::Undone));
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
    async fn find_conflicts(self, writes: &[RunWrite]) -> Result<ConflictFacts> {
        let facts = ConflictFacts::find(&self, writes).await;
        self.end(facts)
    }
}

impl Inner {
    fn committed(&self, writes: &[&RunWrite]) {
        self.tally.commits.fetch_add(1, Relaxed);
        self.tally.records.fetch_add(writes.len() as u64, Relaxed);
        if let Some(last) = writes.last() {
            self.connector.rollback_detector.record_acknowledged(last);
        }
    }
}
