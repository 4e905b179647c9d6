//! One attempt at writing a batch, inside a transaction that is already open.
//!
//! A run's last record is checked before any row of the run is written. The heads that the batch changes are staged
//! beside the published ones, so a batch may contain several records of one run. New runs and idempotency keys are
//! checked by inserting them, which saves a read.
//!
//! Invariant: the head of a run is staged only after all rows of the run are written. A run that is refused after its
//! first row makes the whole attempt fail ([`Failure::Row`]), unless a savepoint guards it.

use super::columns::{count, group_bytes, int, sql};
use super::errors::Failure;
use super::run_heads::{Head, Key, RECOVERY_POS};
use crate::crash::{self, Point};
use crate::id_map::IdMap;
use crate::rows::{ConsumedRow, IdempotencyKey, LimitSlotRow, ReadyRow, RunInsert, RunRow, RunWrite, WriteVerdict};
use crate::write_validation::{is_valid, undo_group};
use kernel::{RunId, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

pub(super) struct Attempt<'a> {
    connection: &'a Connection,
    /// The prepared statements of this batch with their texts. A handful at most.
    statements: Vec<(&'static str, CachedStatement<'a>)>,
    heads: &'a IdMap<Key, Head>,
    /// Engine time of the batch.
    at: Timestamp,
    /// What this batch changes in `heads`; `None` for a run that it evicts or ends.
    staged: &'a mut IdMap<Key, Option<Head>>,
    pub done: Done,
}

/// What an attempt has written so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Position of the newest record.
    pub last_pos: i64,
    pub records: u64,
    pub bytes: u64,
    /// SQL reads of the attempt.
    pub reads: u64,
}

/// Where the writer found a run's last record.
enum Found {
    /// Among the heads in memory: the run is active.
    Active(Head),
    /// In the `runs` row: the run is evicted or ended, and its row must be updated with every record.
    Evicted(Head),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        heads: &'a IdMap<Key, Head>,
        staged: &'a mut IdMap<Key, Option<Head>>,
        last_pos: i64,
        at: Timestamp,
    ) -> Attempt<'a> {
        Attempt { connection, statements: Vec::new(), heads, at, staged, done: Done { last_pos, ..Done::default() } }
    }

    /// Like [`write`](Self::write), but if a row of the run is refused, only the rows of this run are rolled back.
    pub(super) fn write_guarded(&mut self, write: &RunWrite) -> Result<WriteVerdict, Failure> {
        self.execute("SAVEPOINT run", [])?;
        let verdict = match self.write(write) {
            Err(Failure::Row) => {
                self.execute("ROLLBACK TO run", [])?;
                WriteVerdict::Conflict
            }
            other => other?,
        };
        self.execute("RELEASE run", [])?;
        Ok(verdict)
    }

    /// Writes all runs of an atomic group, or none of them.
    pub(super) fn write_group(&mut self, atomic_group: &[RunWrite]) -> Result<Vec<WriteVerdict>, Failure> {
        let done = self.done;
        let keys = atomic_group.iter().map(|write| (write.org, write.run));
        let staged: Vec<(Key, Option<Option<Head>>)> = keys.map(|key| (key, self.staged.get(&key).copied())).collect();
        self.execute("SAVEPOINT atomic_group", [])?;
        let mut verdicts = Vec::with_capacity(atomic_group.len());
        for write in atomic_group {
            verdicts.push(match self.write(write) {
                Err(Failure::Row) => WriteVerdict::Conflict,
                other => other?,
            });
            if verdicts.last() == Some(&WriteVerdict::Conflict) {
                break;
            }
        }
        if undo_group(atomic_group, &mut verdicts) {
            self.execute("ROLLBACK TO atomic_group", [])?;
            self.done = Done { reads: self.done.reads, ..done };
            for (key, head) in staged {
                match head {
                    Some(head) => self.staged.insert(key, head),
                    None => self.staged.remove(&key),
                };
            }
        }
        self.execute("RELEASE atomic_group", [])?;
        Ok(verdicts)
    }

    pub(super) fn write(&mut self, write: &RunWrite) -> Result<WriteVerdict, Failure> {
        if !is_valid(write) {
            return Ok(WriteVerdict::Conflict);
        }
        let key = (write.org, write.run);
        if self.is_full(write)? {
            return Ok(WriteVerdict::Full);
        }
        let run_insert = write.run_insert.as_deref();
        let idempotency = run_insert.and_then(|run_insert| run_insert.idempotency.as_ref());
        if let Some(wanted) = idempotency
            && let Some((run, fingerprint)) = self.claim(key, wanted)?
        {
            return Ok(WriteVerdict::KeyTaken { run, fingerprint });
        }
        if idempotency.is_some() {
            crash::point(Point::KeyClaimed);
        }
        let found = if write.after == 0 { None } else { self.find(&key)? };
        let prev = match &found {
            None => Head::default(),
            Some(Found::Active(head) | Found::Evicted(head)) => *head,
        };
        let head = Head { seq: write.after + 1, pos: self.done.last_pos + 1 };
        let is_as_seen =
            prev.seq == write.after && (write.after > 0 || self.insert_run(&key, write.row.as_ref(), head)?);
        if !is_as_seen {
            // The row of the idempotency key is inserted already and has to be rolled back.
            return if idempotency.is_some() { Err(Failure::Row) } else { Ok(WriteVerdict::Conflict) };
        }
        let record = &*write.record;
        self.execute(sql!("journal_insert"), params![head.pos, key.0.0, key.1.0, int(head.seq), prev.pos, record])?;
        crash::point(Point::RecordWritten);
        let is_active = match (&write.row, &found) {
            (Some(row), _) => {
                if write.after > 0 {
                    self.update_run(row, head)?;
                }
                if write.is_moved {
                    let version = params![row.version, row.hash, row.lowering, row.org.0, row.id.0];
                    self.execute(sql!("run_move"), version)?;
                }
                !row.evicted && !row.status.is_terminal()
            }
            (None, Some(Found::Evicted(_))) => {
                self.execute(sql!("run_head_update"), params![head.pos, int(head.seq), key.0.0, key.1.0])?;
                false
            }
            (None, _) => true,
        };
        self.write_side_rows(write, head)?;
        if let Some(run_insert) = run_insert {
            self.write_run_insert(key, run_insert)?;
        }
        self.staged.insert(key, is_active.then_some(head));
        self.done.last_pos = head.pos;
        self.done.records += 1;
        self.done.bytes += record.len() as u64;
        Ok(WriteVerdict::Committed)
    }

    /// Updates the rows of active runs that lag behind, so that recovery need not read the journal before this
    /// position.
    pub(super) fn advance_recovery_pos(&mut self, from: i64) -> Result<(), Failure> {
        let mut update = self.connection.prepare_cached(sql!("run_head_update"))?;
        let published = self.heads.iter().filter(|(key, _)| !self.staged.contains_key(*key));
        let staged = self.staged.iter().filter_map(|(key, head)| head.as_ref().map(|head| (key, head)));
        // Heads up to the last recovery position were written to their rows when that position was set.
        for ((org, run), head) in published.chain(staged).filter(|(_, head)| head.pos > from) {
            update.execute(params![head.pos, int(head.seq), org.0, run.0])?;
        }
        crash::point(Point::RecoveryRows);
        self.execute(sql!("setting_put"), params![RECOVERY_POS, self.done.last_pos.to_string()])?;
        Ok(())
    }

    fn find(&mut self, key: &Key) -> Result<Option<Found>, Failure> {
        let in_memory = match self.staged.get(key) {
            Some(staged) => *staged,
            None => self.heads.get(key).copied(),
        };
        if let Some(head) = in_memory {
            return Ok(Some(Found::Active(head)));
        }
        self.done.reads += 1;
        let statement = self.prepared(sql!("run_head"))?;
        let read = |row: &rusqlite::Row<'_>| Ok(Head { seq: count(row, 0)?, pos: row.get(1)? });
        Ok(statement.query_row((key.0.0, key.1.0), read).optional()?.map(Found::Evicted))
    }

    /// Is a limit slot that the write takes held by another task? False if the write will be refused for a reason that
    /// the other stores check first: a taken idempotency key or a conflict.
    fn is_full(&mut self, write: &RunWrite) -> Result<bool, Failure> {
        let mut is_taken = false;
        for want in &write.limit_slots.take {
            let slot = &want.slot;
            let statement = self.prepared(sql!("slot"))?;
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
        let head = match self.find(&(write.org, write.run))? {
            None => Head::default(),
            Some(Found::Active(head) | Found::Evicted(head)) => head,
        };
        Ok(head.seq == write.after)
    }

    /// Takes the idempotency key, or returns the run that holds it.
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
                row.lowering,
                row.failed_steps,
            ],
        )?;
        Ok(inserted > 0)
    }

    fn update_run(&mut self, row: &RunRow, head: Head) -> Result<(), Failure> {
        self.execute(
            sql!("run_update"),
            params![
                row.status.as_str(),
                row.waiting,
                row.wake_at.map(|at| at.0),
                row.expires_at.0,
                row.finished_at.map(|at| at.0),
                row.error_code,
                row.failed_steps,
                row.evicted,
                head.pos,
                int(head.seq),
                row.org.0,
                row.id.0,
            ],
        )?;
        Ok(())
    }

    fn write_side_rows(&mut self, write: &RunWrite, head: Head) -> Result<(), Failure> {
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
            self.execute(sql!("slot_free"), row)?;
        }
        for LimitSlotRow { slot, run, step, until, .. } in &write.limit_slots.take {
            let of = slot.of as u8;
            let row = params![slot.org.0, slot.name, of, slot.key, slot.number, run.0, step, until.0];
            self.execute(sql!("slot_put"), row)?;
        }
        for token in &write.tokens {
            self.execute(sql!("wait_insert"), params![token.token_hash, org, run, token.step, token.kind])?;
        }
        for wait in &write.waits.remove {
            let row = params![org, wait.kind.as_str(), wait.name, run, wait.step];
            self.execute(sql!("open_wait_delete"), row)?;
            crash::point(Point::WaitRemoved);
        }
        for wait in &write.waits.insert {
            let row = params![org, wait.kind.as_str(), wait.name, run, wait.step, wait.deadline.0];
            self.execute(sql!("open_wait_insert"), row)?;
            crash::point(Point::WaitWritten);
        }
        for ConsumedRow { key: (org, run, id), answer } in &write.consumed {
            let changed = match answer {
                Some(answer) => self.execute(sql!("inbox_answer"), params![&**answer, org.0, run.0, id.0])?,
                None => self.execute(sql!("inbox_delete"), params![org.0, run.0, id.0])?,
            };
            if changed == 0 {
                return Err(Failure::Row);
            }
            crash::point(Point::InboxConsumed);
        }
        for row in &write.outgoing {
            super::inbox::insert(self.prepared(sql!("inbox_insert"))?, row)?;
            crash::point(Point::InboxSent);
        }
        for number in &write.notifications {
            self.execute(sql!("notification_insert"), params![org, run, int(*number)])?;
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
            self.execute(sql!("notification_delete"), params![org, of.0, int(number)])?;
        }
        Ok(())
    }

    /// Returns how many rows changed.
    fn execute(&mut self, text: &'static str, params: impl rusqlite::Params) -> Result<usize, Failure> {
        Ok(self.prepared(text)?.execute(params)?)
    }

    /// The connection's own statement cache hashes the whole text on every lookup; this compares addresses.
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
