//! The one connection that writes, and the transactions it makes.
//!
//! ```text
//!   commit ──▶ try without savepoints ──▶ COMMIT ──▶ publish the heads
//!                     │ a row was refused
//!                     └──▶ ROLLBACK, try again with a savepoint for each run
//! ```
//!
//! The rule that keeps it right: whatever is in memory changes only after `COMMIT` said yes. When it
//! said neither yes nor no, nothing is written any more until the database has been opened anew.

use super::checkpoints;
use super::checkpoints::Log;
use super::commit::{Attempt, Done};
use super::errors::Failure;
use super::open;
use super::run_heads::{Head, Heads, Key, Tail};
use super::{Options, Tally};
use crate::crash::{self, Point};
use crate::id_map::IdMap;
use crate::rows::{Batch, Verdict};
use crate::write_validation::is_same_group;
use crate::{Error, Result};
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) struct Writer {
    connection: Connection,
    log: Log,
    heads: Arc<Heads>,
    /// Empty between batches; kept for its capacity.
    staged: IdMap<Key, Option<Head>>,
    tail: Tail,
    options: Options,
    tally: Arc<Tally>,
    /// Why the outcome of a transaction is not known.
    unknown: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    None,
    Savepoints,
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        log: Log,
        (heads, tail): (Arc<Heads>, Tail),
        options: Options,
        tally: Arc<Tally>,
    ) -> Writer {
        Writer { connection, log, heads, staged: IdMap::default(), tail, options, tally, unknown: None }
    }

    pub(super) fn commit(&mut self, batch: &Batch) -> Result<Vec<Verdict>> {
        self.refuse_if_unknown()?;
        if batch.runs.is_empty() {
            return Ok(Vec::new());
        }
        self.log.tend(&self.connection);
        crash::point(Point::BeforeBegin);
        let mut outcome = self.attempt(batch, Guard::None);
        if let Err(Failure::Row) = outcome {
            self.roll_back()?;
            outcome = self.attempt(batch, Guard::Savepoints);
        }
        match outcome {
            Ok((verdicts, done)) => {
                self.publish(done);
                Ok(verdicts)
            }
            Err(failure) => Err(self.give_up(failure)),
        }
    }

    /// A transaction about something other than runs.
    pub(super) fn transact<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        self.refuse_if_unknown()?;
        let outcome = begin(&self.connection).and_then(|()| {
            let answer = work(&self.connection)?;
            end(&self.connection)?;
            Ok(answer)
        });
        outcome.map_err(|failure| self.give_up(failure))
    }

    /// A transaction after which nothing of what it removed can be found in the file, whether or not the
    /// process gets to close it. (The log beside it is overwritten later, or removed at a clean end.)
    pub(super) fn transact_cleanly<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        open::set_secure_delete(&self.connection, true)?;
        let outcome = self.transact(work);
        open::set_secure_delete(&self.connection, false)?;
        if outcome.is_ok() {
            checkpoints::copy(&self.connection);
        }
        outcome
    }

    /// Can the write lock be had, and a table be read?
    pub(super) fn check(&mut self) -> Result<()> {
        self.refuse_if_unknown()?;
        let probe = begin(&self.connection).and_then(|()| {
            self.connection.query_row("SELECT count(*) FROM schema_migrations", [], |_| Ok(()))?;
            Ok(())
        });
        match probe {
            Ok(()) => self.roll_back(),
            Err(failure) => Err(self.give_up(failure)),
        }
    }

    /// Makes the database full at this many pages.
    pub(super) fn set_page_count_max(&mut self, pages: u32) -> Result<()> {
        let set = self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
        set.map_err(super::errors::on_read)
    }

    fn attempt(&mut self, batch: &Batch, guard: Guard) -> std::result::Result<(Vec<Verdict>, Done), Failure> {
        begin(&self.connection)?;
        let heads = self.heads.read();
        let mut attempt = Attempt::new(&self.connection, &heads, &mut self.staged, self.tail.last_pos, batch.at);
        let mut verdicts = Vec::with_capacity(batch.runs.len());
        for atomic_group in batch.runs.chunk_by(is_same_group) {
            match (atomic_group, guard) {
                ([write], Guard::None) => verdicts.push(attempt.write(write)?),
                ([write], Guard::Savepoints) => verdicts.push(attempt.write_guarded(write)?),
                (atomic_group, _) => verdicts.extend(attempt.write_group(atomic_group)?),
            }
        }
        let is_tail_long = self.tail.records + attempt.done.records >= self.options.recovery_records
            || self.tail.bytes + attempt.done.bytes >= self.options.recovery_bytes;
        if is_tail_long {
            attempt.advance_recovery_pos(self.tail.recovery_pos)?;
        }
        let done = attempt.done;
        drop(attempt);
        crash::point(Point::BeforeCommit);
        end(&self.connection)?;
        crash::point(Point::AfterCommit);
        self.tail.last_pos = done.last_pos;
        if is_tail_long {
            crash::point(Point::RecoveryMoved);
            self.tail = Tail { recovery_pos: done.last_pos, last_pos: done.last_pos, ..Tail::default() };
        } else {
            self.tail.records += done.records;
            self.tail.bytes += done.bytes;
        }
        Ok((verdicts, done))
    }

    fn publish(&mut self, done: Done) {
        self.heads.publish(self.staged.drain());
        self.tally.commits.fetch_add(u64::from(done.records > 0), Relaxed);
        self.tally.records.fetch_add(done.records, Relaxed);
        self.tally.commit_reads.fetch_add(done.reads, Relaxed);
    }

    /// Ends a transaction that failed, and says what that means.
    fn give_up(&mut self, failure: Failure) -> Error {
        let error = match failure.is_refused_write() && open::is_read_only(&self.connection) {
            true => Error::Unavailable("the file system is read-only".into()),
            false => failure.into_error(),
        };
        if let Error::Unknown(why) = &error {
            self.unknown = Some(why.clone());
        }
        match self.roll_back() {
            Ok(()) => error,
            Err(unknown) => unknown,
        }
    }

    fn roll_back(&mut self) -> Result<()> {
        self.staged.clear();
        // SQLite has often done it by itself.
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.connection.execute_batch("ROLLBACK").map_err(|e| {
            self.unknown.get_or_insert_with(|| e.to_string());
            Error::Unknown(e.to_string())
        })
    }

    fn refuse_if_unknown(&self) -> Result<()> {
        match &self.unknown {
            None => Ok(()),
            Some(why) => Err(Error::Unknown(why.clone())),
        }
    }
}

fn begin(connection: &Connection) -> std::result::Result<(), Failure> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    Ok(())
}

fn end(connection: &Connection) -> std::result::Result<(), Failure> {
    let committed = connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
    committed.map(drop).map_err(Failure::Commit)
}
