//! Who has which task until when, judged from outside: from what the journals say and what each process was told.
//!
//! Two books. One holds what is leased by the journals, and against it every new grant is held: never more at once than
//! the type's limits allow. The other plays the expiry of leases in each process: a lease runs from the record that
//! granted it, anew from when a process read its run, and on from every heartbeat that was answered. Against it the
//! answers to heartbeats are held, and every lease that is taken away.
//!
//! Limits are kept by the one process that has the store, so only one that has been alone since it started is held to
//! them (see [`crowd`](super::concurrency_model)).

use super::concurrency_model::BatchWriter;
use super::violation::{CheckResult, ViolationKind, require};
use kernel::event::Event;
use kernel::{Record, Run, RunId, Span, Timestamp};
use std::collections::BTreeMap;
use store::{Batch, TypeRow, Verdict};

/// What a process was about to hand over when a rule changed may still land so much later.
const TYPE_CHANGE_GRACE: Span = Span::from_secs(60);

/// A worker that was given something knows of it after so long.
const DELIVERY_MAX: Span = Span::from_secs(20);

/// A step of a run.
pub type RunStep = (RunId, u32);

/// What a record says about a lease.
#[derive(Clone, Debug)]
pub enum LeaseChange {
    Granted { task: RunStep, fence: u64, name: &'static str, key: String },
    Ended { task: RunStep },
}

#[derive(Clone, Debug)]
struct JournalLease {
    fence: u64,
    name: &'static str,
    key: String,
}

/// A lease as a process knows it.
#[derive(Clone, Copy, Debug)]
struct ProcessLease {
    fence: u64,
    length: Span,
    until: Timestamp,
    /// Since when its worker should know that it has it, until it does.
    undelivered_since: Option<Timestamp>,
}

#[derive(Default)]
pub struct LeaseModel {
    journal_leases: BTreeMap<RunStep, JournalLease>,
    process_leases: BTreeMap<(usize, RunStep), ProcessLease>,
    /// The latest lease of a task that a process has seen: its fence and its length.
    latest: BTreeMap<RunStep, (u64, Span)>,
    /// What each process was told of each type, and when.
    type_rows: BTreeMap<(usize, String), Vec<(Timestamp, TypeRow)>>,
}

impl LeaseModel {
    /// The fence under which a task is leased, if it is.
    pub fn fence(&self, task: RunStep) -> Option<u64> {
        self.journal_leases.get(&task).map(|lease| lease.fence)
    }

    /// Nobody can go on with the run: what is leased of it keeps nobody else.
    pub fn forget_run(&mut self, run: RunId) {
        self.journal_leases.retain(|(of, _), _| *of != run);
    }

    /// A process is told about a type.
    pub fn type_changed(&mut self, process: usize, row: &TypeRow, now: Timestamp) {
        self.type_rows.entry((process, row.name.clone())).or_default().push((now, row.clone()));
    }

    /// Takes in what a batch of `process` did.
    pub fn apply_batch(
        &mut self,
        changes: Vec<LeaseChange>,
        process: Option<usize>,
        writer: BatchWriter,
        now: Timestamp,
    ) -> CheckResult {
        let mut granted = Vec::new();
        for change in changes {
            match change {
                LeaseChange::Ended { task } => drop(self.journal_leases.remove(&task)),
                LeaseChange::Granted { task, fence, name, key } => {
                    granted.push((name, key.clone()));
                    let other = self.journal_leases.insert(task, JournalLease { fence, name, key });
                    ViolationKind::Duplicated
                        .unless(other.is_none(), || format!("{task:?} is leased twice: {other:?}"))?;
                }
            }
        }
        let Some(process) = process.filter(|_| writer.is_only_writer && writer.knows_all_commits) else {
            return Ok(());
        };
        granted.iter().try_for_each(|(name, key)| self.check_type_limits(process, name, key, now))
    }

    /// Of every rule that was in force lately, one at least must allow it.
    fn check_type_limits(&self, process: usize, name: &str, key: &str, now: Timestamp) -> CheckResult {
        let Some(type_rows) = self.type_rows.get(&(process, name.to_owned())) else { return Ok(()) };
        let of_type = self.journal_leases.values().filter(|lease| lease.name == name);
        let of_key = of_type.clone().filter(|lease| lease.key == key).count() as u32;
        let of_type = of_type.count() as u32;
        let is_within = |limit: Option<u32>, count: u32| limit.is_none_or(|limit| count <= limit);
        let permits = |row: &TypeRow| {
            let is_open = row.enabled && row.paused.is_none();
            is_open && is_within(row.limit, of_type) && is_within(row.limit_per_key, of_key)
        };
        let is_over = |i: usize| type_rows.get(i + 1).is_some_and(|(next, _)| next.after(TYPE_CHANGE_GRACE) < now);
        let mut lately = type_rows.iter().enumerate().filter(|(i, _)| !is_over(*i)).map(|(_, (_, row))| row);
        ViolationKind::Duplicated.unless(lately.any(permits), || {
            format!("{of_type} of {name} are leased at once, {of_key} of key {key:?}: {:?}", type_rows.last())
        })
    }

    /// A process has a run in its hands again: leases it did not know begin now, those that a later one hears of are
    /// not its own.
    pub fn run_loaded(&mut self, (process, epoch): (usize, u64), run: RunId, state: &Run, now: Timestamp) {
        self.latest.extend(state.leased().map(|l| ((run, l.step), (l.fence, l.lease))));
        let own = state.leased().filter(|lease| lease.epoch <= epoch);
        let leased: BTreeMap<u32, (u64, Span)> = own.map(|l| (l.step, (l.fence, l.lease))).collect();
        let range = (process, (run, 0))..=(process, (run, u32::MAX));
        let known: Vec<(u32, u64)> =
            self.process_leases.range(range).map(|((_, (_, step)), r)| (*step, r.fence)).collect();
        for (step, fence) in known {
            if leased.get(&step).is_none_or(|(current, _)| *current != fence) {
                self.process_leases.remove(&(process, (run, step)));
            }
        }
        for (step, (fence, lease)) in leased {
            let begun = ProcessLease { fence, length: lease, until: now.after(lease), undelivered_since: None };
            self.process_leases.entry((process, (run, step))).or_insert(begun);
        }
    }

    /// A process learns what became of its batch. What it counts are its own times, from when it learns of it on (`own`); those
    /// of records are never before the ones of records before them, whoever wrote those.
    pub fn batch_settled(
        &mut self,
        process: usize,
        batch: &Batch,
        verdicts: &[Verdict],
        (process_time, now): (Timestamp, Timestamp),
    ) -> CheckResult {
        let landed = batch.runs.iter().zip(verdicts).filter(|(_, verdict)| **verdict == Verdict::Committed);
        for (write, _) in landed {
            let record = Record::open(&write.record).map_err(|e| format!("a record cannot be read: {e}"))?;
            for (event, fence) in record.events.iter().zip(record.first..) {
                let Some(step) = event.step() else { continue };
                let place = (process, (write.run, step));
                if is_lease_expiry(event) {
                    let lease = self.process_leases.get(&place);
                    let is_over = lease.is_none_or(|lease| lease.until <= batch.at);
                    ViolationKind::Early
                        .unless(is_over, || format!("s{step} of {} was taken away: {lease:?}", write.run))?;
                }
                match event {
                    // It hears of the worker from now on.
                    Event::Kept { .. } => {
                        let Some((fence, lease)) = self.latest.get(&place.1).copied() else { continue };
                        let until = process_time.after(lease);
                        self.process_leases.entry(place).or_insert(ProcessLease {
                            fence,
                            length: lease,
                            until,
                            undelivered_since: None,
                        });
                    }
                    Event::Leased { lease, .. } => {
                        let (until, undelivered_since) = (process_time.after(*lease), Some(now));
                        self.latest.insert(place.1, (fence, *lease));
                        self.process_leases
                            .insert(place, ProcessLease { fence, length: *lease, until, undelivered_since });
                    }
                    _ if ends_lease(event) => drop(self.process_leases.remove(&place)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A worker is given what was leased to it.
    pub fn lease_delivered(&mut self, process: usize, task: RunStep) {
        if let Some(lease) = self.process_leases.get_mut(&(process, task)) {
            lease.undelivered_since = None;
        }
    }

    /// Nothing stays leased to somebody who is never told.
    pub fn check_all_delivered(&self, now: Timestamp) -> CheckResult {
        let is_overdue = |r: &&ProcessLease| r.undelivered_since.is_some_and(|since| since.after(DELIVERY_MAX) < now);
        let overdue = self.process_leases.values().find(is_overdue);
        ViolationKind::Lost.unless(overdue.is_none(), || format!("nobody was told of a lease: {overdue:?}"))
    }

    /// Has whoever comes with this fence the task, as the process knows it? Nothing where that cannot be said.
    pub fn is_live(&self, process: usize, task: RunStep, fence: u64, now: Timestamp) -> Option<bool> {
        let lease = self.process_leases.get(&(process, task))?;
        Some(lease.fence == fence && lease.until > now)
    }

    /// A heartbeat is answered: until when the lease runs now, unless it ended in the same turn.
    pub fn heartbeat_answered(
        &mut self,
        process: usize,
        task: RunStep,
        fence: u64,
        (extension, asked_at): (Option<Span>, Timestamp),
        until: Timestamp,
    ) -> CheckResult {
        let lease = self.process_leases.get_mut(&(process, task)).filter(|lease| lease.fence == fence);
        let Some(lease) = lease else { return Ok(()) };
        let expected = lease.until.max(asked_at.after(extension.unwrap_or(lease.length)));
        lease.until = until;
        require(until == expected, || format!("{task:?} is leased until {until:?}, it should be {expected:?}"))
    }

    /// The process is gone with its book.
    pub fn process_died(&mut self, process: usize) {
        self.process_leases.retain(|(of, _), _| *of != process);
        self.type_rows.retain(|(of, _), _| *of != process);
    }
}

fn is_lease_expiry(event: &Event) -> bool {
    match event {
        Event::Retrying { died, .. } => *died,
        Event::Failed { failure, .. } => ["lease_lost", "quarantined"].contains(&failure.code.as_str()),
        _ => false,
    }
}

/// Does a lease of its step end with it?
pub fn ends_lease(event: &Event) -> bool {
    matches!(
        event,
        Event::Retrying { .. }
            | Event::Succeeded { .. }
            | Event::Failed { .. }
            | Event::TimedOut { .. }
            | Event::Cancelled { .. }
    )
}
