//! One try at writing a batch, inside a transaction that is already open.
//!
//! Each run's last record is checked before anything of it is written; what happens in the batch is
//! remembered beside the published heads, so a run may stand in it twice. New runs and idempotency
//! keys are checked by inserting them, which saves the read.
//!
//! The rule that keeps it right: nothing here is remembered for a run until all of its rows are in, and
//! a run that is refused after its first row makes the whole try fail ([`Failure::Row`]) unless a
//! savepoint guards it.

use super::columns::{count, group_bytes, int, sql, time};
use super::errors::Failure;
use super::run_heads::{Head, Key, Known, RECOVERY_POS};
use super::unlisted::Born;
use crate::crash::{self, Point};
use crate::near::IdMap;
use crate::rows::{Batch, IdempotencyKey, LimitSlotRow, ReadyRow, RunInsert, RunRow, RunWrite, Verdict};
use crate::write_validation::{is_sound, undo_group};
use kernel::{RunId, RunStatus, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

/// Runs in a batch that share the pages of an index. Listing one of fewer later, which writes its row again, costs less.
const LARGE: usize = 8;

pub(super) struct Attempt<'a> {
    connection: &'a Connection,
    /// Used in this batch, with their texts. A handful at most.
    statements: Vec<(&'static str, CachedStatement<'a>)>,
    heads: &'a IdMap<Key, Known>,
    /// Of the batch.
    at: Timestamp,
    /// It has so many runs that listing them is cheap.
    is_large: bool,
    /// What this batch changes in `heads`; `None` for a run that is parked or ended by it.
    staged: &'a mut IdMap<Key, Option<Known>>,
    /// Runs it made and did not list.
    pub born: Vec<Born>,
    pub done: Done,
}

/// What a try has come to so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Of the newest record.
    pub last_pos: i64,
    pub records: u64,
    pub bytes: u64,
    /// Reads it could not avoid.
    pub reads: u64,
}

/// Where the writer found a run's last record.
enum Found {
    /// Among the heads in memory.
    Unparked(Known),
    /// In its row, which therefore has to follow every record.
    Parked(Known, Rest),
}

impl Found {
    fn run(&self) -> Known {
        let (Found::Unparked(run) | Found::Parked(run, _)) = self;
        *run
    }
}

/// What the row of a parked run says besides.
struct Rest {
    /// It runs, and there is nothing else to say.
    is_plain: bool,
    expires_at: Timestamp,
}

impl Rest {
    /// Is this row the same, but for the run being taken up?
    fn is_taken_up_by(&self, row: &RunRow) -> bool {
        let is_plain = row.status == RunStatus::Running && row.wake_at.is_none() && row.finished_at.is_none();
        let is_awake = !row.evicted && row.waiting == 0;
        self.is_plain && is_plain && is_awake && row.error_code.is_none() && row.expires_at == self.expires_at
    }
}

/// Its last record is remembered in memory.
fn is_unparked(row: &RunRow) -> bool {
    !row.evicted && !row.status.is_terminal()
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        heads: &'a IdMap<Key, Known>,
        staged: &'a mut IdMap<Key, Option<Known>>,
        last_pos: i64,
        batch: &Batch,
    ) -> Attempt<'a> {
        let done = Done { last_pos, ..Done::default() };
        let (at, is_large) = (batch.at, batch.runs.len() >= LARGE);
        Attempt { connection, statements: Vec::new(), heads, at, is_large, staged, born: Vec::new(), done }
    }

    /// Like [`write`](Self::write), but a run whose rows are refused takes back only its own.
    pub(super) fn write_guarded(&mut self, write: &RunWrite) -> Result<Verdict, Failure> {
        self.execute("SAVEPOINT run", [])?;
        let verdict = match self.write(write) {
            Err(Failure::Row) => {
                self.execute("ROLLBACK TO run", [])?;
                Verdict::Conflict
            }
            other => other?,
        };
        self.execute("RELEASE run", [])?;
        Ok(verdict)
    }

    /// All writes of a unit, or none of them.
    pub(super) fn write_group(&mut self, atomic_group: &[RunWrite]) -> Result<Vec<Verdict>, Failure> {
        let (done, born) = (self.done, self.born.len());
        let keys = atomic_group.iter().map(|write| (write.org, write.run));
        let staged: Vec<(Key, Option<Option<Known>>)> = keys.map(|key| (key, self.staged.get(&key).copied())).collect();
        self.execute("SAVEPOINT unit", [])?;
        let mut verdicts = Vec::with_capacity(atomic_group.len());
        for write in atomic_group {
            verdicts.push(match self.write(write) {
                Err(Failure::Row) => Verdict::Conflict,
                other => other?,
            });
            if verdicts.last() == Some(&Verdict::Conflict) {
                break;
            }
        }
        if undo_group(atomic_group, &mut verdicts) {
            self.execute("ROLLBACK TO unit", [])?;
            self.done = Done { reads: self.done.reads, ..done };
            self.born.truncate(born);
            for (key, run) in staged {
                match run {
                    Some(run) => self.staged.insert(key, run),
                    None => self.staged.remove(&key),
                };
            }
        }
        self.execute("RELEASE unit", [])?;
        Ok(verdicts)
    }

    pub(super) fn write(&mut self, write: &RunWrite) -> Result<Verdict, Failure> {
        if !is_sound(write) {
            return Ok(Verdict::Conflict);
        }
        let key = (write.org, write.run);
        if self.is_full(write)? {
            return Ok(Verdict::Full);
        }
        let run_insert = write.run_insert.as_deref();
        let idempotency = run_insert.and_then(|run_insert| run_insert.idempotency.as_ref());
        if let Some(wanted) = idempotency
            && let Some((run, fingerprint)) = self.claim(key, wanted)?
        {
            return Ok(Verdict::KeyTaken { run, fingerprint });
        }
        if idempotency.is_some() {
            crash::point(Point::KeyClaimed);
        }
        let found = if write.after == 0 { None } else { self.find(&key)? };
        let prev = found.as_ref().map_or(Head::default(), |found| found.run().head);
        let head = Head { seq: write.after + 1, pos: self.done.last_pos + 1 };
        let is_as_seen =
            prev.seq == write.after && (write.after > 0 || self.insert_run(&key, write.row.as_ref(), head)?);
        if !is_as_seen {
            // The key's row is in already and has to go.
            return if idempotency.is_some() { Err(Failure::Row) } else { Ok(Verdict::Conflict) };
        }
        let record = &*write.record;
        self.execute(sql!("journal_insert"), params![head.pos, key.0.0, key.1.0, int(head.seq), prev.pos, record])?;
        crash::point(Point::RecordWritten);
        let run = match (&write.row, &found) {
            (Some(row), None) => is_unparked(row).then_some(Known { head, is_listed: false, is_taken: false }),
            (Some(row), Some(Found::Parked(run, rest))) if rest.is_taken_up_by(row) => {
                Some(Known { head, is_taken: true, ..*run })
            }
            (Some(row), Some(found)) => {
                self.update_run(row, head, found.run().is_listed)?;
                is_unparked(row).then_some(Known { head, is_listed: true, is_taken: false })
            }
            (None, Some(Found::Parked(..))) => {
                self.execute(sql!("run_head_update"), params![head.pos, int(head.seq), key.0.0, key.1.0])?;
                None
            }
            (None, Some(Found::Unparked(run))) => Some(Known { head, ..*run }),
            // It could not have been made.
            (None, None) => None,
        };
        self.write_sides(write, head)?;
        if let Some(run_insert) = run_insert {
            self.write_run_insert(key, run_insert)?;
        }
        if let (None, Some(row)) = (&found, &write.row)
            && !self.is_listed_at_birth(row)
        {
            self.born.push(Born { key, is_evicted: row.evicted });
        }
        self.staged.insert(key, run);
        self.done.last_pos = head.pos;
        self.done.records += 1;
        self.done.bytes += record.len() as u64;
        Ok(Verdict::Committed)
    }

    /// Rewrites the rows of unparked runs that lag behind, so that a start need not read what came
    /// before this point.
    pub(super) fn advance_recovery_pos(
        &mut self,
        from: i64,
        unlisted: impl Iterator<Item = Born>,
    ) -> Result<(), Failure> {
        let published = self.heads.iter().filter(|(key, _)| !self.staged.contains_key(*key));
        let staged = self.staged.iter().filter_map(|(key, run)| run.as_ref().map(|run| (key, run)));
        // A head at or before the last recovery position was written to its row by that one.
        let lagging = published.chain(staged).filter(|(_, run)| run.head.pos > from);
        let lagging: Vec<(Key, Known)> = lagging.map(|(key, run)| (*key, *run)).collect();
        for (key, run) in lagging {
            let update = if run.is_taken { sql!("run_take") } else { sql!("run_head_update") };
            self.execute(update, params![run.head.pos, int(run.head.seq), key.0.0, key.1.0])?;
            if run.is_taken {
                self.staged.insert(key, Some(Known { is_taken: false, ..run }));
            }
        }
        let born = std::mem::take(&mut self.born);
        self.list(unlisted.chain(born))?;
        crash::point(Point::RecoveryRows);
        self.execute(sql!("setting_put"), params![RECOVERY_POS, self.done.last_pos.to_string()])?;
        Ok(())
    }

    /// Lists those that are not listed yet.
    pub(super) fn list(&mut self, runs: impl Iterator<Item = Born>) -> Result<(), Failure> {
        for Born { key, is_evicted } in runs {
            let run = self.in_memory(&key);
            // A run that was born unparked is listed by whatever parks or ends it. One that was born parked may be as it was.
            if run.map_or(!is_evicted, |run| run.is_listed) {
                continue;
            }
            if self.execute(sql!("run_list"), params![key.0.0, key.1.0])? > 0 {
                crash::point(Point::RunListed);
            }
            if let Some(run) = run {
                self.staged.insert(key, Some(Known { is_listed: true, ..run }));
            }
        }
        Ok(())
    }

    /// Nothing will change the row of a run that is over, and what will wait is as well listed now if there are many.
    fn is_listed_at_birth(&self, row: &RunRow) -> bool {
        row.status.is_terminal() || row.evicted && self.is_large
    }

    fn in_memory(&self, key: &Key) -> Option<Known> {
        match self.staged.get(key) {
            Some(staged) => *staged,
            None => self.heads.get(key).copied(),
        }
    }

    fn find(&mut self, key: &Key) -> Result<Option<Found>, Failure> {
        if let Some(run) = self.in_memory(key) {
            return Ok(Some(Found::Unparked(run)));
        }
        self.done.reads += 1;
        let statement = self.prepared(sql!("run_head"))?;
        let read = |row: &rusqlite::Row<'_>| {
            let head = Head { seq: count(row, 0)?, pos: row.get(1)? };
            let rest = Rest { is_plain: row.get(3)?, expires_at: time(row, 4)? };
            Ok(Found::Parked(Known { head, is_listed: row.get(2)?, is_taken: false }, rest))
        };
        Ok(statement.query_row((key.0.0, key.1.0), read).optional()?)
    }

    /// Is a seat taken that the write wants? Nothing else may stand in its way that would be noticed first.
    fn is_full(&mut self, write: &RunWrite) -> Result<bool, Failure> {
        let mut is_taken = false;
        for want in &write.limit_slots.take {
            let slot = &want.slot;
            let statement = self.prepared(sql!("seat"))?;
            let read = |row: &rusqlite::Row<'_>| Ok((RunId(row.get(0)?), row.get::<_, u32>(1)?, row.get::<_, i64>(2)?));
            let params = params![slot.org.0, slot.name, slot.of as u8, slot.key, slot.number];
            let found = statement.query_row(params, read).optional()?;
            let is_freed = |run, step| {
                write.limit_slots.free.iter().any(|free| free.slot == *slot && (free.run, free.step) == (run, step))
            };
            is_taken |= found.is_some_and(|(run, step, until)| until > self.at.0 && !is_freed(run, step));
        }
        if !is_taken {
            return Ok(false);
        }
        let wanted = write.run_insert.as_ref().and_then(|run_insert| run_insert.idempotency.as_ref());
        if let Some(wanted) = wanted
            && super::catalog::holder(self.connection, write.org, &wanted.scope, &wanted.key)?.is_some()
        {
            return Ok(false);
        }
        let head = self.find(&(write.org, write.run))?.map_or(Head::default(), |found| found.run().head);
        Ok(head.seq == write.after)
    }

    /// Takes the idempotency key, or answers who has it.
    fn claim(&mut self, key: Key, wanted: &IdempotencyKey) -> Result<Option<(RunId, [u8; 32])>, Failure> {
        let IdempotencyKey { scope, key: name, fingerprint, created_at } = wanted;
        let row = params![key.0.0, scope, name, key.1.0, fingerprint, created_at.0];
        if self.execute(sql!("idempotency_insert"), row)? > 0 {
            return Ok(None);
        }
        self.done.reads += 1;
        let holder = super::catalog::holder(self.connection, key.0, &wanted.scope, &wanted.key)?;
        Ok(holder.map(|(made, fingerprint)| (RunId(made), fingerprint)))
    }

    /// False when the run exists already.
    fn insert_run(&mut self, key: &Key, row: Option<&RunRow>, head: Head) -> Result<bool, Failure> {
        let Some(row) = row else { return Ok(false) };
        let is_listed = self.is_listed_at_birth(row);
        let inserted = self.execute(
            sql!("run_insert"),
            params![
                key.0.0,
                key.1.0,
                row.workflow.0,
                row.workflow_name,
                row.version,
                row.hash,
                row.form.as_str(),
                row.status.as_str(),
                row.waiting,
                row.wake_at.map(|at| at.0),
                row.created_at.0,
                row.expires_at.0,
                row.finished_at.map(|at| at.0),
                row.error_code,
                head.pos,
                int(head.seq),
                row.concurrency_group.as_ref().map(group_bytes),
                row.evicted,
                is_listed,
            ],
        )?;
        Ok(inserted > 0)
    }

    fn update_run(&mut self, row: &RunRow, head: Head, is_listed: bool) -> Result<(), Failure> {
        self.execute(
            if is_listed { sql!("run_update") } else { sql!("run_update_unlisted") },
            params![
                row.status.as_str(),
                row.waiting,
                row.wake_at.map(|at| at.0),
                row.expires_at.0,
                row.finished_at.map(|at| at.0),
                row.error_code,
                row.evicted,
                head.pos,
                int(head.seq),
                row.org.0,
                row.id.0,
            ],
        )?;
        Ok(())
    }

    fn write_sides(&mut self, write: &RunWrite, head: Head) -> Result<(), Failure> {
        let (org, run) = (write.org.0, write.run.0);
        if let Some(state) = &write.snapshot {
            crash::point(Point::BeforeSnapshot);
            self.execute(sql!("snapshot_put"), params![org, run, int(head.seq), head.pos, &**state])?;
            crash::point(Point::AfterSnapshot);
        }
        if let Some(at) = write.timer.remove {
            self.execute(sql!("timer_delete"), params![at.0, org, run])?;
            crash::point(Point::TimerRemoved);
        }
        if let Some(at) = write.timer.insert {
            self.execute(sql!("timer_insert"), params![at.0, org, run])?;
            crash::point(Point::TimerWritten);
        }
        for (number, body) in &write.payloads {
            self.execute(sql!("payload_insert"), params![org, run, number, &**body])?;
        }
        for row in &write.ready.remove {
            self.write_ready(sql!("ready_delete"), row)?;
            crash::point(Point::ReadyRemoved);
        }
        for row in &write.ready.insert {
            self.write_ready(sql!("ready_insert"), row)?;
            crash::point(Point::ReadyWritten);
        }
        for LimitSlotRow { slot, run, step, .. } in &write.limit_slots.free {
            let of = slot.of as u8;
            let row = params![slot.org.0, slot.name, of, slot.key, slot.number, run.0, step];
            self.execute(sql!("seat_free"), row)?;
        }
        for LimitSlotRow { slot, run, step, until, .. } in &write.limit_slots.take {
            let of = slot.of as u8;
            let row = params![slot.org.0, slot.name, of, slot.key, slot.number, run.0, step, until.0];
            self.execute(sql!("seat_put"), row)?;
        }
        for number in 0..write.notifications {
            self.execute(sql!("notice_insert"), params![org, run, number])?;
        }
        Ok(())
    }

    fn write_ready(&mut self, statement: &'static str, ReadyRow { queue, position }: &ReadyRow) -> Result<(), Failure> {
        let row = params![queue.org.0, queue.name, queue.key, position.priority, position.run.0, position.step];
        self.execute(statement, row)?;
        Ok(())
    }

    fn write_run_insert(&mut self, key: Key, run_insert: &RunInsert) -> Result<(), Failure> {
        let (org, run) = (key.0.0, key.1.0);
        for wait in &run_insert.waits {
            self.execute(sql!("wait_insert"), params![wait.token_hash, org, run, wait.step, wait.kind])?;
        }
        for (name, value) in &run_insert.labels {
            self.execute(sql!("label_insert"), params![org, name, value, run])?;
        }
        if let Some(delivery) = &run_insert.delivery {
            super::triggers::put_delivery(self.connection, delivery)?;
            if let Some(advance) = run_insert.advance {
                super::triggers::advance(self.connection, (delivery.org, delivery.trigger), advance)?;
            }
        }
        if let Some((of, number)) = run_insert.notification {
            self.execute(sql!("notice_delete"), params![org, of.0, number])?;
        }
        Ok(())
    }

    /// How many rows changed.
    fn execute(&mut self, text: &'static str, params: impl rusqlite::Params) -> Result<usize, Failure> {
        Ok(self.prepared(text)?.execute(params)?)
    }

    /// Looking into the connection's own cache reads the whole text each time; this compares addresses.
    fn prepared(&mut self, text: &'static str) -> Result<&mut CachedStatement<'a>, Failure> {
        let found = self.statements.iter().position(|(known, _)| std::ptr::eq(*known, text));
        let at = match found {
            Some(at) => at,
            None => {
                self.statements.push((text, self.connection.prepare_cached(text)?));
                self.statements.len() - 1
            }
        };
        Ok(&mut self.statements[at].1)
    }
}
