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
const IN_HAND: Span = Span::from_secs(60);

/// A worker that was given something knows of it after so long.
const TELLING: Span = Span::from_secs(20);

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
    lease: Span,
    until: Timestamp,
    /// Since when its worker should know that it has it, until it does.
    unseen_since: Option<Timestamp>,
}

#[derive(Default)]
pub struct LeaseModel {
    held: BTreeMap<RunStep, JournalLease>,
    running: BTreeMap<(usize, RunStep), ProcessLease>,
    /// The latest lease of a task that a process has seen: its fence and its length.
    seen: BTreeMap<RunStep, (u64, Span)>,
    /// What each process was told of each type, and when.
    rules: BTreeMap<(usize, String), Vec<(Timestamp, TypeRow)>>,
}

impl LeaseModel {
    /// The fence under which a task is leased, if it is.
    pub fn fence(&self, task: RunStep) -> Option<u64> {
        self.held.get(&task).map(|held| held.fence)
    }

    /// Nobody can go on with the run: what is leased of it keeps nobody else.
    pub fn forget(&mut self, run: RunId) {
        self.held.retain(|(of, _), _| *of != run);
    }

    /// A process is told about a type.
    pub fn rule(&mut self, process: usize, row: &TypeRow, now: Timestamp) {
        self.rules.entry((process, row.name.clone())).or_default().push((now, row.clone()));
    }

    /// Takes in what a batch of `process` did.
    pub fn judge(
        &mut self,
        changes: Vec<LeaseChange>,
        process: Option<usize>,
        writer: BatchWriter,
        now: Timestamp,
    ) -> CheckResult {
        let mut granted = Vec::new();
        for change in changes {
            match change {
                LeaseChange::Ended { task } => drop(self.held.remove(&task)),
                LeaseChange::Granted { task, fence, name, key } => {
                    granted.push((name, key.clone()));
                    let other = self.held.insert(task, JournalLease { fence, name, key });
                    ViolationKind::Duplicated
                        .unless(other.is_none(), || format!("{task:?} is leased twice: {other:?}"))?;
                }
            }
        }
        let Some(process) = process.filter(|_| writer.is_alone && writer.is_sure) else { return Ok(()) };
        granted.iter().try_for_each(|(name, key)| self.allows(process, name, key, now))
    }

    /// Of every rule that was in force lately, one at least must allow it.
    fn allows(&self, process: usize, name: &str, key: &str, now: Timestamp) -> CheckResult {
        let Some(rules) = self.rules.get(&(process, name.to_owned())) else { return Ok(()) };
        let of_type = self.held.values().filter(|held| held.name == name);
        let of_key = of_type.clone().filter(|held| held.key == key).count() as u32;
        let of_type = of_type.count() as u32;
        let is_within = |limit: Option<u32>, count: u32| limit.is_none_or(|limit| count <= limit);
        let permits = |row: &TypeRow| {
            let is_open = row.enabled && row.paused.is_none();
            is_open && is_within(row.limit, of_type) && is_within(row.limit_per_key, of_key)
        };
        let is_over = |i: usize| rules.get(i + 1).is_some_and(|(next, _)| next.after(IN_HAND) < now);
        let mut lately = rules.iter().enumerate().filter(|(i, _)| !is_over(*i)).map(|(_, (_, row))| row);
        ViolationKind::Duplicated.unless(lately.any(permits), || {
            format!("{of_type} of {name} are leased at once, {of_key} of key {key:?}: {:?}", rules.last())
        })
    }

    /// A process has a run in its hands again: leases it did not know begin now, those that a later one hears of are
    /// not its own.
    pub fn read(&mut self, (process, epoch): (usize, u64), run: RunId, state: &Run, now: Timestamp) {
        self.seen.extend(state.leased().map(|l| ((run, l.step), (l.fence, l.lease))));
        let own = state.leased().filter(|lease| lease.epoch <= epoch);
        let leased: BTreeMap<u32, (u64, Span)> = own.map(|l| (l.step, (l.fence, l.lease))).collect();
        let range = (process, (run, 0))..=(process, (run, u32::MAX));
        let known: Vec<(u32, u64)> = self.running.range(range).map(|((_, (_, step)), r)| (*step, r.fence)).collect();
        for (step, fence) in known {
            if leased.get(&step).is_none_or(|(current, _)| *current != fence) {
                self.running.remove(&(process, (run, step)));
            }
        }
        for (step, (fence, lease)) in leased {
            let begun = ProcessLease { fence, lease, until: now.after(lease), unseen_since: None };
            self.running.entry((process, (run, step))).or_insert(begun);
        }
    }

    /// A process learns what became of its batch. What it counts are its own times, from when it learns of it on (`own`); those
    /// of records are never before the ones of records before them, whoever wrote those.
    pub fn settled(
        &mut self,
        process: usize,
        batch: &Batch,
        verdicts: &[Verdict],
        (own, now): (Timestamp, Timestamp),
    ) -> CheckResult {
        let landed = batch.runs.iter().zip(verdicts).filter(|(_, verdict)| **verdict == Verdict::Committed);
        for (write, _) in landed {
            let record = Record::open(&write.record).map_err(|e| format!("a record cannot be read: {e}"))?;
            for (event, fence) in record.events.iter().zip(record.first..) {
                let Some(step) = event.step() else { continue };
                let place = (process, (write.run, step));
                if has_died(event) {
                    let running = self.running.get(&place);
                    let is_over = running.is_none_or(|running| running.until <= batch.at);
                    ViolationKind::Early
                        .unless(is_over, || format!("s{step} of {} was taken away: {running:?}", write.run))?;
                }
                match event {
                    // It hears of the worker from now on.
                    Event::Kept { .. } => {
                        let Some((fence, lease)) = self.seen.get(&place.1).copied() else { continue };
                        let until = own.after(lease);
                        self.running.entry(place).or_insert(ProcessLease { fence, lease, until, unseen_since: None });
                    }
                    Event::Leased { lease, .. } => {
                        let (until, unseen_since) = (own.after(*lease), Some(now));
                        self.seen.insert(place.1, (fence, *lease));
                        self.running.insert(place, ProcessLease { fence, lease: *lease, until, unseen_since });
                    }
                    _ if ends(event) => drop(self.running.remove(&place)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A worker is given what was leased to it.
    pub fn seen(&mut self, process: usize, task: RunStep) {
        if let Some(running) = self.running.get_mut(&(process, task)) {
            running.unseen_since = None;
        }
    }

    /// Nothing stays leased to somebody who is never told.
    pub fn check(&self, now: Timestamp) -> CheckResult {
        let is_forgotten = |r: &&ProcessLease| r.unseen_since.is_some_and(|since| since.after(TELLING) < now);
        let forgotten = self.running.values().find(is_forgotten);
        ViolationKind::Lost.unless(forgotten.is_none(), || format!("nobody was told of a lease: {forgotten:?}"))
    }

    /// Has whoever comes with this fence the task, as the process knows it? Nothing where that cannot be said.
    pub fn is_running(&self, process: usize, task: RunStep, fence: u64, now: Timestamp) -> Option<bool> {
        let running = self.running.get(&(process, task))?;
        Some(running.fence == fence && running.until > now)
    }

    /// A heartbeat is answered: until when the lease runs now, unless it ended in the same turn.
    pub fn extended(
        &mut self,
        process: usize,
        task: RunStep,
        fence: u64,
        (by, asked): (Option<Span>, Timestamp),
        until: Timestamp,
    ) -> CheckResult {
        let running = self.running.get_mut(&(process, task)).filter(|running| running.fence == fence);
        let Some(running) = running else { return Ok(()) };
        let expected = running.until.max(asked.after(by.unwrap_or(running.lease)));
        running.until = until;
        require(until == expected, || format!("{task:?} is leased until {until:?}, it should be {expected:?}"))
    }

    /// The process is gone with its book.
    pub fn lose(&mut self, process: usize) {
        self.running.retain(|(of, _), _| *of != process);
        self.rules.retain(|(of, _), _| *of != process);
    }
}

fn has_died(event: &Event) -> bool {
    match event {
        Event::Retrying { died, .. } => *died,
        Event::Failed { failure, .. } => ["lease_lost", "quarantined"].contains(&failure.code.as_str()),
        _ => false,
    }
}

/// Does a lease of its step end with it?
pub fn ends(event: &Event) -> bool {
    matches!(
        event,
        Event::Retrying { .. }
            | Event::Succeeded { .. }
            | Event::Failed { .. }
            | Event::TimedOut { .. }
            | Event::Cancelled { .. }
    )
}
