//! The single connection that writes, and its transactions.
//!
//! ```text
//!   commit ──▶ attempt without savepoints ──▶ COMMIT ──▶ publish the heads
//!                     │ a row was refused
//!                     └──▶ ROLLBACK, attempt again with a savepoint for each run
//! ```
//!
//! Invariant: state in memory changes only after `COMMIT` succeeded. When the outcome of `COMMIT` is unknown, the
//! writer refuses all further writes until the database is opened again.

use super::checkpoints;
use super::checkpoints::Log;
use super::commit::{Attempt, Done};
use super::errors::Failure;
use super::open;
use super::run_heads::{Head, Heads, Key, Tail};
use super::{Options, Tally};
use crate::crash::{self, Point};
use crate::id_map::IdMap;
use crate::rows::{Batch, WriteVerdict};
use crate::write_validation::is_same_group;
use crate::{Error, Result};
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) struct StoreWriter {
    connection: Connection,
    log: Log,
    heads: Arc<Heads>,
    /// Empty between batches; kept for its capacity.
    staged: IdMap<Key, Option<Head>>,
    tail: Tail,
    options: Options,
    tally: Arc<Tally>,
    /// Set when the outcome of a transaction is unknown: the error that caused it.
    unknown: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Isolation {
    None,
    Savepoints,
}

impl StoreWriter {
    pub(super) fn new(
        connection: Connection,
        log: Log,
        (heads, tail): (Arc<Heads>, Tail),
        options: Options,
        tally: Arc<Tally>,
    ) -> StoreWriter {
        StoreWriter { connection, log, heads, staged: IdMap::default(), tail, options, tally, unknown: None }
    }

    pub(super) fn commit(&mut self, batch: &Batch) -> Result<Vec<WriteVerdict>> {
        self.refuse_if_unknown()?;
        if batch.runs.is_empty() {
            return Ok(Vec::new());
        }
        self.log.checkpoint_if_long(&self.connection);
        crash::point(Point::BeforeBegin);
        let mut outcome = self.attempt(batch, Isolation::None);
        if let Err(Failure::Row) = outcome {
            self.roll_back()?;
            outcome = self.attempt(batch, Isolation::Savepoints);
        }
        match outcome {
            Ok((verdicts, done)) => {
                self.publish(done);
                Ok(verdicts)
            }
            Err(failure) => Err(self.give_up(failure)),
        }
    }

    /// Runs a transaction other than a commit of runs.
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

    /// Runs a transaction and overwrites the bytes of the rows it deletes in the database file, even if the process is
    /// killed afterwards. (The write-ahead log is overwritten later, or removed at a clean shutdown.)
    pub(super) fn transact_with_secure_delete<T>(
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

    /// Can the writer take the write lock and read a table?
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

    /// Limits the database to this many pages.
    pub(super) fn set_page_count_max(&mut self, pages: u32) -> Result<()> {
        let set = self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
        set.map_err(super::errors::on_read)
    }

    fn attempt(&mut self, batch: &Batch, guard: Isolation) -> std::result::Result<(Vec<WriteVerdict>, Done), Failure> {
        begin(&self.connection)?;
        let heads = self.heads.read();
        let mut attempt = Attempt::new(&self.connection, &heads, &mut self.staged, self.tail.last_pos, batch.at);
        let mut verdicts = Vec::with_capacity(batch.runs.len());
        for atomic_group in batch.runs.chunk_by(is_same_group) {
            match (atomic_group, guard) {
                ([write], Isolation::None) => verdicts.push(attempt.write(write)?),
                ([write], Isolation::Savepoints) => verdicts.push(attempt.write_guarded(write)?),
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

    /// Rolls back a transaction that failed, and returns the error for the caller.
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
        // SQLite has often rolled back by itself.
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
