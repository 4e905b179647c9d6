//! A model of leases: which worker has which task until when. It uses the journals and what each process was
//! told.
//!
//! It keeps two tables. The first has the leases in the journals. Each new lease is checked against it: a
//! type never has more leases than its limits allow. The second has the leases as each process counts them. A
//! lease runs from the record that granted it, again from when a process loads its run, and is extended by
//! each accepted heartbeat. Answers to heartbeats and expired leases are checked against it.
//!
//! With a local store, one process keeps the counts for type limits in its memory. So only a process that has
//! been the only writer since its start is held to them (see
//! [`concurrency_model`](super::concurrency_model)).

use super::concurrency_model::BatchWriter;
use super::violation::{CheckResult, ViolationKind};
use kernel::event::Event;
use kernel::{Record, Run, RunId, Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use store::{Batch, TypeRow, WriteVerdict};

/// A task that was claimed under old type settings may be committed this long after they changed.
const TYPE_CHANGE_GRACE: Span = Span::from_secs(60);

/// A worker gets its task at most this long after the lease was committed.
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

/// A lease as one process counts it.
#[derive(Clone, Copy, Debug)]
struct ProcessLease {
    fence: u64,
    length: Span,
    until: Timestamp,
    /// It may end this early: the process may have counted from when it first loaded the lease.
    ends_after: Timestamp,
    /// When the lease was committed; `None` once the worker has its task.
    undelivered_since: Option<Timestamp>,
}

#[derive(Default)]
pub struct LeaseModel {
    /// Runs that each process has asked the store for, and not been given. It ignores what it did not ask for.
    wanted: BTreeSet<(usize, RunId)>,
    /// When each process first loaded a lease, by run and fence.
    seen: BTreeMap<(usize, RunId, u64), Timestamp>,
    journal_leases: BTreeMap<RunStep, JournalLease>,
    process_leases: BTreeMap<(usize, RunStep), ProcessLease>,
    /// The latest lease of each task that any process has seen: its fence and its length.
    latest: BTreeMap<RunStep, (u64, Span)>,
    /// The type settings that each process was told, and when.
    type_rows: BTreeMap<(usize, String), Vec<(Timestamp, TypeRow)>>,
}

impl LeaseModel {
    /// The fence of the current lease of a task.
    pub fn fence(&self, task: RunStep) -> Option<u64> {
        self.journal_leases.get(&task).map(|lease| lease.fence)
    }

    /// A run that needs an upgrade cannot advance, so its leases no longer count towards limits.
    pub fn forget_run(&mut self, run: RunId) {
        self.journal_leases.retain(|(of, _), _| *of != run);
    }

    /// A process gets the settings of a type.
    pub fn type_changed(&mut self, process: usize, row: &TypeRow, now: Timestamp) {
        self.type_rows.entry((process, row.name.clone())).or_default().push((now, row.clone()));
    }

    /// Applies the lease changes in a batch of `process`.
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

    /// Checks a new lease: at least one of the recent settings of its type must allow it.
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
            format!(
                "type {name} has {of_type} leases at once, {of_key} of them with key {key:?}: {:?}",
                type_rows.last()
            )
        })
    }

    /// A process asks the store for a run.
    pub fn run_wanted(&mut self, process: usize, run: RunId) {
        self.wanted.insert((process, run));
    }

    /// The store gave no answer; the process asks again if it still needs the run.
    pub fn run_unread(&mut self, process: usize, run: RunId) {
        self.wanted.remove(&(process, run));
    }

    /// A process has loaded a run. A lease that it did not know runs from now. It counts its own leases and those of
    /// nodes that are gone; another node gets the heartbeats for its leases itself.
    pub fn run_loaded(
        &mut self,
        (process, is_own): (usize, &dyn Fn(u64) -> bool),
        run: RunId,
        state: &Run,
        now: Timestamp,
    ) {
        // A fenced process has forgotten what it asked for under its old epoch.
        if !self.wanted.remove(&(process, run)) {
            return;
        }
        self.latest.extend(state.leased().map(|l| ((run, l.step), (l.fence, l.lease))));
        let (mut first_seen, mut leased) = (BTreeMap::new(), BTreeMap::new());
        for lease in state.leased() {
            // It may be that of a node which is found to be gone later, without another load.
            let seen = self.seen.get(&(process, run, lease.fence)).copied().unwrap_or(now);
            first_seen.insert((process, run, lease.fence), seen);
            if is_own(lease.epoch) {
                leased.insert(lease.step, (lease.fence, lease.lease, seen));
            }
        }
        let of_run = (process, run, 0)..=(process, run, u64::MAX);
        self.seen.extract_if(of_run, |_, _| true).for_each(drop);
        self.seen.extend(first_seen);
        let range = (process, (run, 0))..=(process, (run, u32::MAX));
        let known: Vec<(u32, u64)> =
            self.process_leases.range(range).map(|((_, (_, step)), r)| (*step, r.fence)).collect();
        for (step, fence) in known {
            if leased.get(&step).is_none_or(|(current, ..)| *current != fence) {
                self.process_leases.remove(&(process, (run, step)));
            }
        }
        for (step, (fence, lease, seen)) in leased {
            let (until, ends_after) = (now.after(lease), seen.after(lease));
            let begun = ProcessLease { fence, length: lease, until, ends_after, undelivered_since: None };
            self.process_leases.entry((process, (run, step))).or_insert(begun);
        }
    }

    /// A process learns the outcome of its batch. It counts leases from that moment on its own clock
    /// (`process_time`), not from the times of records: a record never has an earlier time than the one
    /// before it, even if a process whose clock was ahead wrote that one.
    pub fn batch_settled(
        &mut self,
        process: usize,
        batch: &Batch,
        verdicts: &[WriteVerdict],
        (process_time, now): (Timestamp, Timestamp),
    ) -> CheckResult {
        let landed = batch.runs.iter().zip(verdicts).filter(|(_, verdict)| **verdict == WriteVerdict::Committed);
        for (write, _) in landed {
            let record = Record::open(&write.record).map_err(|e| format!("a record cannot be read: {e}"))?;
            for (event, fence) in record.events.iter().zip(record.first..) {
                let Some(step) = event.step() else { continue };
                let place = (process, (write.run, step));
                if is_lease_expiry(event) {
                    let lease = self.process_leases.get(&place);
                    let is_over = lease.is_none_or(|lease| lease.ends_after <= batch.at);
                    ViolationKind::Early.unless(is_over, || {
                        format!("the lease of s{step} of {} was ended early: {lease:?}", write.run)
                    })?;
                }
                match event {
                    // From now on this process gets the heartbeats.
                    Event::Kept { .. } => {
                        let Some((fence, lease)) = self.latest.get(&place.1).copied() else { continue };
                        let until = process_time.after(lease);
                        self.process_leases.entry(place).or_insert(ProcessLease {
                            fence,
                            length: lease,
                            until,
                            ends_after: until,
                            undelivered_since: None,
                        });
                    }
                    Event::Leased { lease, .. } => {
                        let (until, undelivered_since) = (process_time.after(*lease), Some(now));
                        self.latest.insert(place.1, (fence, *lease));
                        let (length, ends_after) = (*lease, until);
                        self.process_leases
                            .insert(place, ProcessLease { fence, length, until, ends_after, undelivered_since });
                    }
                    _ if ends_lease(event) => drop(self.process_leases.remove(&place)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A worker got its task.
    pub fn lease_delivered(&mut self, process: usize, task: RunStep) {
        if let Some(lease) = self.process_leases.get_mut(&(process, task)) {
            lease.undelivered_since = None;
        }
    }

    /// Checks that every worker with a lease gets its task.
    pub fn check_all_delivered(&self, now: Timestamp) -> CheckResult {
        let is_overdue = |r: &&ProcessLease| r.undelivered_since.is_some_and(|since| since.after(DELIVERY_MAX) < now);
        let overdue = self.process_leases.values().find(is_overdue);
        ViolationKind::Lost
            .unless(overdue.is_none(), || format!("a lease was never delivered to its worker: {overdue:?}"))
    }

    /// A process accepts a heartbeat, which extends a live lease at once: the next heartbeat may be accepted before
    /// this one is answered. Returns the new end of the lease, or `None` inside if the lease is not live; nothing if
    /// that is unknown.
    pub fn heartbeat_accepted(
        &mut self,
        process: usize,
        task: RunStep,
        fence: u64,
        extension: Option<Span>,
        now: Timestamp,
    ) -> Option<Option<Timestamp>> {
        let lease = self.process_leases.get_mut(&(process, task))?;
        let is_live = lease.fence == fence && lease.until > now;
        Some(is_live.then(|| {
            let end = now.after(extension.unwrap_or(lease.length));
            (lease.until, lease.ends_after) = (lease.until.max(end), lease.ends_after.max(end));
            lease.until
        }))
    }

    /// The process died, or was fenced, and lost its counts.
    pub fn process_died(&mut self, process: usize) {
        self.wanted.retain(|(of, _)| *of != process);
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

/// Does this event end the lease of its step?
pub fn ends_lease(event: &Event) -> bool {
    matches!(
        event,
        Event::Retrying { .. }
            | Event::Succeeded { .. }
            | Event::Failed { .. }
            | Event::TimedOut { .. }
            | Event::Cancelled { .. }
            | Event::Skipped { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::run::{Phase, Step};

    #[test]
    fn a_run_that_was_asked_for_before_the_process_was_fenced_brings_no_leases() {
        let (run, task, now, lease) = (RunId([1; 16]), (RunId([1; 16]), 0), Timestamp(1_000_000), Span::from_secs(30));
        let phase = Phase::Leased { fence: 2, worker: "w".into(), lease, epoch: 1 };
        let mut state = Run::default();
        state.state.steps = vec![Step { phase, ..Default::default() }];
        let own: &dyn Fn(u64) -> bool = &|_| true;
        let mut model = LeaseModel::default();
        model.run_wanted(7, run);
        model.process_died(7);
        model.run_loaded((7, own), run, &state, now);
        assert_eq!(model.heartbeat_accepted(7, task, 2, None, now), None, "the new mailbox drops what was read");
        model.run_wanted(7, run);
        model.run_loaded((7, own), run, &state, now);
        assert_eq!(model.heartbeat_accepted(7, task, 2, None, now), Some(Some(now.after(lease))));
    }
}
