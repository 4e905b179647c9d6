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
use super::columns::Attempted;
use super::fate;
use super::fault::Trouble;
use super::pool::{Lease, Pool};
use super::session::{Ended, Session};
use super::sheet::{Journal, Sheet, has_room};
use super::sift::Facts;
use crate::crash::{self, Point};
use crate::rows::{Batch, RunWrite, SeatChange, Verdict};
use crate::sound::{is_same_unit, is_sound};
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
        let is_met = write.seats.free.iter().chain(&write.seats.take).any(|row| taken.contains(&row.seat));
        taken.extend(write.seats.take.iter().map(|row| row.seat.clone()));
        is_met
    };
    writes.iter().filter(|write| write.seats != SeatChange::default()).any(is_met)
}

/// Writes all of it, or nothing.
async fn attempt(inner: &Inner, writers: &Arc<Pool>, batch: &Batch, writes: &[&RunWrite]) -> Result<Try> {
    let lease = writers.take().await?;
    inner.connector.witness.admit()?;
    let sheet = Sheet::new(batch, writes);
    let (texts, params): (Vec<_>, Vec<_>) = sheet.statements().unzip();
    let statements = match lease.prepare(&texts).await {
        Ok(statements) => statements.into_iter().zip(params).collect::<Vec<_>>(),
        // Nothing was sent, and the next session may be better.
        Err(trouble @ Trouble::Lost(_)) => return Ok(Try::Again(trouble.unwritten())),
        Err(trouble) => return Err(trouble.unwritten()),
    };
    crash::point(Point::BeforeBegin);
    let ended = lease.transaction(&statements).await;
    drop(statements);
    conclude(inner, lease, ended, &sheet.journal).await
}

async fn conclude(inner: &Inner, lease: Lease, ended: Ended, journal: &Journal) -> Result<Try> {
    match ended {
        Ended::Committed => {
            crash::point(Point::AfterCommit);
            lease.bring_back();
            Ok(Try::Done)
        }
        Ended::NotWritten(trouble) => {
            let answer = match trouble {
                Trouble::Row(_) => Ok(Try::Row),
                Trouble::Busy(_) => Ok(Try::Busy),
                trouble @ (Trouble::Again(_) | Trouble::Lost(_)) => Ok(Try::Again(trouble.unwritten())),
                other => Err(other.unwritten()),
            };
            lease.bring_back();
            answer
        }
        Ended::Open(why) => match fate::has_records(inner, lease, journal).await {
            Ok(true) => Ok(Try::Done),
            Ok(false) => Ok(Try::Again(Error::Unavailable(why))),
            Err(unsure) => Err(Error::Unknown(format!("{why}; and then: {unsure}"))),
        },
    }
}

/// The slow way: every unit on its own, in one transaction. Whatever is wrong with one of them, known to us or
/// not, is its own trouble.
async fn one_by_one(inner: &Inner, writers: &Arc<Pool>, batch: &Batch) -> Result<Vec<Verdict>> {
    let lease = writers.take().await?;
    inner.connector.witness.admit()?;
    let (mut verdicts, mut written) = (Vec::with_capacity(batch.runs.len()), Vec::new());
    let outcome = async {
        lease.batch("BEGIN").await?;
        for unit in batch.runs.chunk_by(is_same_unit) {
            inner.tally.commit_reads.fetch_add(1, Relaxed);
            let judged = Facts::find(&lease, unit).await?.judge(unit, batch.at);
            let passed = || unit.iter().zip(&judged).filter(|(_, v)| **v == Verdict::Committed).map(|(w, _)| w);
            if passed().next().is_none() {
                verdicts.extend(judged);
                continue;
            }
            lease.batch("SAVEPOINT unit").await?;
            match write(&lease, &Sheet::new(batch, &passed().collect::<Vec<_>>())).await {
                Ok(()) => {
                    lease.batch("RELEASE unit").await?;
                    written.extend(passed());
                    verdicts.extend(judged);
                }
                // Whoever holds a run is writing its next record, or was stopped in the middle of it. A run that
                // does not exist yet is nobody's, so then it is something else they hold.
                Err(Trouble::Busy(why)) if unit.iter().any(|write| write.after == 0) => return Err(Trouble::Busy(why)),
                Err(Trouble::Row(_) | Trouble::Busy(_)) => {
                    lease.batch("ROLLBACK TO unit; RELEASE unit").await?;
                    verdicts.push(Verdict::Conflict);
                    verdicts.extend((1..unit.len()).map(|_| Verdict::Undone));
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    };
    let outcome: Attempted<()> = outcome.await;
    if let Err(trouble) = outcome {
        return Err(trouble.unwritten());
    }
    let journal = Sheet::new(batch, &written).journal;
    let ended = match lease.batch("COMMIT").await {
        Ok(()) => Ended::Committed,
        Err(Trouble::Lost(why)) => Ended::Open(why),
        Err(trouble) => Ended::NotWritten(trouble),
    };
    match conclude(inner, lease, ended, &journal).await? {
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

async fn write(session: &Session, sheet: &Sheet) -> Attempted<()> {
    for (text, params) in sheet.statements() {
        session.execute(text, &params).await?;
    }
    Ok(())
}

impl Lease {
    async fn end_read(self, writes: &[RunWrite]) -> Result<Facts> {
        let facts = Facts::find(&self, writes).await;
        self.end(facts)
    }
}

impl Inner {
    fn committed(&self, writes: &[&RunWrite]) {
        self.tally.commits.fetch_add(1, Relaxed);
        self.tally.records.fetch_add(writes.len() as u64, Relaxed);
        if let Some(last) = writes.last() {
            self.connector.witness.note(last);
        }
    }
}
