//! Held leases: which worker has which task, and until when.

use super::{PendingCancellation, TaskQueue, TypeKey, WorkerKey};
use kernel::planted_bugs::{self, Bug};
use kernel::run::Lease;
use kernel::{OrgId, RunId, Span, Timestamp};
use std::sync::Arc;

/// A durable lease.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldLease {
    pub org: OrgId,
    pub worker: String,
    pub name: Arc<str>,
    pub key: Arc<str>,
    pub fence: u64,
    pub lease: Span,
    /// The most that one heartbeat can extend the lease by.
    pub max_lease: Span,
    pub until: Timestamp,
    /// When the run last recorded that the worker is alive.
    pub noted_at: Timestamp,
}

/// The run records that its worker is alive at most once in this time: most tasks are done sooner and cost nothing.
const NOTED_EVERY: Span = Span::from_secs(60);

/// A lease as its run records it, with the type and key of its task.
pub struct RecordedLease<'a> {
    pub lease: Lease<'a>,
    pub name: &'a str,
    pub key: &'a str,
    pub max_lease: Span,
}

/// Why the tasks of a type cannot be leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockedReason {
    Disabled,
    Paused {
        since: Timestamp,
        note: String,
    },
    Limit(u32),
    KeyLimit(u32),
    /// Until then.
    Rate(Timestamp),
}

/// Why no worker has a ready task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStatus {
    /// Present workers that claim its type.
    pub workers: u32,
    /// When a worker that claims it last sent something.
    pub last_seen: Option<Timestamp>,
    pub blocked_reason: Option<BlockedReason>,
}

impl<T> TaskQueue<T> {
    /// A lease is durable.
    pub fn lease_granted(&mut self, run: RunId, step: u32, held: HeldLease) {
        self.expiries.insert((held.until, run, step));
        self.count_worker(held.org, &held.worker, 1);
        if let Some(old) = self.leases.insert((run, step), held) {
            self.expiries.remove(&(old.until, run, step));
            self.count_worker(old.org, &old.worker, -1);
        }
    }

    /// A run was read: replaces what is known of its leases. A lease that is new to the queue begins now.
    pub fn reconcile(&mut self, org: OrgId, run: RunId, leases: &[RecordedLease<'_>], now: Timestamp) {
        let known: Vec<(u32, u64)> = self.leases_of(run);
        for (step, fence) in known {
            if !leases.iter().any(|held| held.lease.step == step && held.lease.fence == fence) {
                self.lease_ended(run, step, fence, now);
            }
        }
        for RecordedLease { lease, name, key, max_lease } in leases {
            if self.leases.contains_key(&(run, lease.step)) {
                continue;
            }
            let type_queue: TypeKey = (org, Arc::from(*name));
            let state = self.type_queue(type_queue.clone());
            state.held += 1;
            state.key_queue(key).held += 1;
            let held = HeldLease {
                org,
                worker: lease.worker.to_owned(),
                name: type_queue.1.clone(),
                key: Arc::from(*key),
                fence: lease.fence,
                lease: lease.lease,
                max_lease: *max_lease,
                until: now.after(lease.lease),
                noted_at: now,
            };
            self.lease_granted(run, lease.step, held);
            self.refresh(&type_queue, key, now);
        }
    }

    /// Ends the leases of a run that this node can no longer read.
    pub fn forget_run(&mut self, org: OrgId, run: RunId, now: Timestamp) {
        for (step, fence) in self.leases_of(run) {
            if self.leases.get(&(run, step)).is_some_and(|held| held.org == org) {
                self.lease_ended(run, step, fence, now);
            }
        }
    }

    /// Does this node watch the deadline of a lease of this run?
    pub fn has_leases(&self, run: RunId) -> bool {
        self.leases.range((run, 0)..=(run, u32::MAX)).next().is_some()
    }

    pub fn leases_of(&self, run: RunId) -> Vec<(u32, u64)> {
        self.leases.range((run, 0)..=(run, u32::MAX)).map(|((_, step), held)| (*step, held.fence)).collect()
    }

    /// The lease with this fence has ended.
    pub fn lease_ended(&mut self, run: RunId, step: u32, fence: u64, now: Timestamp) {
        if self.leases.get(&(run, step)).is_none_or(|held| held.fence != fence) {
            return;
        }
        let Some(held) = self.leases.remove(&(run, step)) else { return };
        if let Some(claim_id) = self.undelivered.remove(&(run, step)) {
            self.change_claim(claim_id, |claim| claim.tasks.retain(|_, task| (task.run, task.step) != (run, step)));
        }
        self.expiries.remove(&(held.until, run, step));
        self.count_worker(held.org, &held.worker, -1);
        let key: TypeKey = (held.org, held.name);
        if !(planted_bugs::is(Bug::SlotLeaked) && held.until <= now) {
            let type_queue = self.type_queue(key.clone());
            type_queue.held = type_queue.held.saturating_sub(1);
            let key_queue = type_queue.key_queue(&held.key);
            key_queue.held = key_queue.held.saturating_sub(1);
        }
        self.refresh(&key, &held.key, now);
        self.changed_types.insert(key);
    }

    /// Leases that have expired, for inputs to their runs. Each stays in the queue until its run has recorded the end.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<(OrgId, RunId, u32, u64)> {
        let mut lost = Vec::new();
        while let Some(&(at, run, step)) = self.expiries.first().filter(|(at, ..)| *at <= now) {
            self.expiries.remove(&(at, run, step));
            lost.extend(self.leases.get(&(run, step)).map(|held| (held.org, run, step, held.fence)));
        }
        lost
    }

    /// Leases of a run that have expired and whose end the run has not recorded.
    pub fn overdue(&self, run: RunId, now: Timestamp) -> Vec<(u32, u64)> {
        let of_run = self.leases.range((run, 0)..=(run, u32::MAX));
        of_run.filter(|(_, held)| held.until <= now).map(|((_, step), held)| (*step, held.fence)).collect()
    }

    /// A heartbeat of the holder of `fence`: returns the new deadline, or `None` if the lease has ended.
    pub fn extend(
        &mut self,
        org: OrgId,
        (run, step): (RunId, u32),
        fence: u64,
        by: Option<Span>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let held = self.leases.get_mut(&(run, step)).filter(|held| held.org == org)?;
        let is_holder = held.fence == fence || planted_bugs::is(Bug::HeartbeatById);
        let is_alive = held.until > now || planted_bugs::is(Bug::LeaseRevived);
        if !(is_holder && is_alive) {
            return None;
        }
        let until = held.until.max(now.after(by.unwrap_or(held.lease).min(held.max_lease)));
        self.expiries.remove(&(held.until, run, step));
        self.expiries.insert((until, run, step));
        held.until = until;
        let worker = (org, held.worker.clone());
        if let Some(worker) = self.workers.get_mut(&worker) {
            (worker.row.last_seen, worker.is_local) = (now, true);
        }
        Some(until)
    }

    /// Whether it is time to record that the worker of a lease is alive; once it is, the next time is a while later.
    pub fn is_note_due(&mut self, run: RunId, step: u32, now: Timestamp) -> bool {
        let Some(held) = self.leases.get_mut(&(run, step)) else { return false };
        let is_due = now.since(held.noted_at) >= NOTED_EVERY;
        if is_due {
            held.noted_at = now;
        }
        is_due
    }

    /// The deadline of a task's lease.
    pub fn lease_until(&self, run: RunId, step: u32) -> Option<Timestamp> {
        self.leases.get(&(run, step)).map(|held| held.until)
    }

    /// The run does not need the task any more: tells its worker, at once if the worker has an open claim.
    pub fn cancel_lease(&mut self, run: RunId, step: u32, fence: u64, is_plain: bool) {
        let Some(held) = self.leases.get(&(run, step)).filter(|held| held.fence == fence) else { return };
        // A worker that has not received the task yet does not need to know.
        if self.undelivered.contains_key(&(run, step)) {
            return;
        }
        let (worker_key, until) = ((held.org, held.worker.clone()), held.until);
        self.notify_worker(worker_key, PendingCancellation { run, step, fence, is_plain, until, is_delivered: false });
    }

    /// Adds a cancellation to the worker's open claim, or keeps it for the next claim.
    pub(super) fn notify_worker(&mut self, worker_key: WorkerKey, pending: PendingCancellation) {
        let claim_id = self.claim_index.of_worker(&worker_key).next();
        match claim_id.and_then(|claim_id| self.open_claims.get_mut(&claim_id)) {
            Some(claim) => {
                claim.cancellations.push(pending);
                claim.is_immediate = true;
                self.urgent.insert(claim.claim_id);
            }
            None => self.cancellations.entry(worker_key).or_default().push(pending),
        }
    }

    /// The worker was told once and has a new lease of the task since, which is not cancelled.
    pub(super) fn is_outdated(&self, pending: &PendingCancellation, worker: &str) -> bool {
        let current = self.leases.get(&(pending.run, pending.step));
        pending.is_delivered && current.is_some_and(|held| held.fence != pending.fence && held.worker == worker)
    }

    fn count_worker(&mut self, org: OrgId, worker: &str, change: i32) {
        let worker_key = (org, worker.to_owned());
        let held = self.held_by.get(&worker_key).map_or(0, |held| *held).saturating_add_signed(change);
        match held {
            0 => self.held_by.remove(&worker_key),
            held => self.held_by.insert(worker_key, held),
        };
    }
}
