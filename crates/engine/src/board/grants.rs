//! Who has what, until when.

use super::{Board, Key, Notice, WorkerKey};
use kernel::planted::{self, Bug};
use kernel::run::Lease;
use kernel::{OrgId, RunId, Span, Timestamp};
use std::sync::Arc;

/// A task in the hands of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    pub org: OrgId,
    pub worker: String,
    pub name: Arc<str>,
    pub key: Arc<str>,
    pub fence: u64,
    pub lease: Span,
    /// No sign of life keeps it for longer than this.
    pub longest: Span,
    pub until: Timestamp,
}

/// A lease as a run has it: its type, the key it shares limits with, and how long its worker may be silent.
pub struct Held<'a> {
    pub lease: Lease<'a>,
    pub name: &'a str,
    pub key: &'a str,
    pub longest: Span,
}

/// What keeps a type's tasks from being handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
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

/// Why a task that waits has nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stance {
    /// Workers that claim its type and are there.
    pub workers: u32,
    /// When one that claims it was last heard of.
    pub last_seen: Option<Timestamp>,
    pub hold: Option<Hold>,
}

impl<T> Board<T> {
    /// A hand-over is durable.
    pub fn granted(&mut self, run: RunId, step: u32, grant: Grant) {
        self.expiries.insert((grant.until, run, step));
        self.count_worker(grant.org, &grant.worker, 1);
        if let Some(old) = self.grants.insert((run, step), grant) {
            self.expiries.remove(&(old.until, run, step));
            self.count_worker(old.org, &old.worker, -1);
        }
    }

    /// A run was read: its leases are those it has. One that is new to the board begins now.
    pub fn reconcile(&mut self, org: OrgId, run: RunId, leases: &[Held<'_>], now: Timestamp) {
        let known: Vec<(u32, u64)> = self.grants_of(run);
        for (step, fence) in known {
            if !leases.iter().any(|held| held.lease.step == step && held.lease.fence == fence) {
                self.ended(run, step, fence, now);
            }
        }
        for Held { lease, name, key, longest } in leases {
            if self.grants.contains_key(&(run, lease.step)) {
                continue;
            }
            let line: Key = (org, Arc::from(*name));
            let state = self.line(line.clone());
            state.held += 1;
            state.lane(key).held += 1;
            let grant = Grant {
                org,
                worker: lease.worker.to_owned(),
                name: line.1.clone(),
                key: Arc::from(*key),
                fence: lease.fence,
                lease: lease.lease,
                longest: *longest,
                until: now.after(lease.lease),
            };
            self.granted(run, lease.step, grant);
            self.refresh(&line, key, now);
        }
    }

    /// Nobody will say of this run's leases that they have ended.
    pub fn forget(&mut self, org: OrgId, run: RunId, now: Timestamp) {
        for (step, fence) in self.grants_of(run) {
            if self.grants.get(&(run, step)).is_some_and(|grant| grant.org == org) {
                self.ended(run, step, fence, now);
            }
        }
    }

    /// Is the time of a lease of this run counted here?
    pub fn keeps(&self, run: RunId) -> bool {
        self.grants.range((run, 0)..=(run, u32::MAX)).next().is_some()
    }

    pub fn grants_of(&self, run: RunId) -> Vec<(u32, u64)> {
        self.grants.range((run, 0)..=(run, u32::MAX)).map(|((_, step), grant)| (*step, grant.fence)).collect()
    }

    /// The holder of `fence` has the task no longer.
    pub fn ended(&mut self, run: RunId, step: u32, fence: u64, now: Timestamp) {
        if self.grants.get(&(run, step)).is_none_or(|grant| grant.fence != fence) {
            return;
        }
        let Some(grant) = self.grants.remove(&(run, step)) else { return };
        if let Some(poll) = self.pockets.remove(&(run, step)).and_then(|place| self.polls.get_mut(&place)) {
            poll.tasks.retain(|_, task| (task.run, task.step) != (run, step));
        }
        self.expiries.remove(&(grant.until, run, step));
        self.count_worker(grant.org, &grant.worker, -1);
        let key: Key = (grant.org, grant.name);
        if !(planted::is(Bug::SlotLeaked) && grant.until <= now) {
            let line = self.line(key.clone());
            line.held = line.held.saturating_sub(1);
            let lane = line.lane(&grant.key);
            lane.held = lane.held.saturating_sub(1);
        }
        self.refresh(&key, &grant.key, now);
        self.stirred.insert(key);
    }

    /// Whose lease has ended: the run is to be told. The grant stays until the run agrees.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<(OrgId, RunId, u32, u64)> {
        let mut lost = Vec::new();
        while let Some(&(at, run, step)) = self.expiries.first().filter(|(at, ..)| *at <= now) {
            self.expiries.remove(&(at, run, step));
            lost.extend(self.grants.get(&(run, step)).map(|grant| (grant.org, run, step, grant.fence)));
        }
        lost
    }

    /// Leases of a run that have ended without the run having heard of it.
    pub fn overdue(&self, run: RunId, now: Timestamp) -> Vec<(u32, u64)> {
        let of_run = self.grants.range((run, 0)..=(run, u32::MAX));
        of_run.filter(|(_, grant)| grant.until <= now).map(|((_, step), grant)| (*step, grant.fence)).collect()
    }

    /// The holder of `fence` is alive; answers until when it has the task now. Nothing if it has it no longer.
    pub fn extend(
        &mut self,
        org: OrgId,
        (run, step): (RunId, u32),
        fence: u64,
        by: Option<Span>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let grant = self.grants.get_mut(&(run, step)).filter(|grant| grant.org == org)?;
        let is_holder = grant.fence == fence || planted::is(Bug::HeartbeatById);
        let is_alive = grant.until > now || planted::is(Bug::LeaseRevived);
        if !(is_holder && is_alive) {
            return None;
        }
        let until = grant.until.max(now.after(by.unwrap_or(grant.lease).min(grant.longest)));
        self.expiries.remove(&(grant.until, run, step));
        self.expiries.insert((until, run, step));
        grant.until = until;
        let worker = (org, grant.worker.clone());
        if let Some(worker) = self.workers.get_mut(&worker) {
            (worker.row.last_seen, worker.is_local) = (now, true);
        }
        Some(until)
    }

    /// Until when a task is leased.
    pub fn lease_until(&self, run: RunId, step: u32) -> Option<Timestamp> {
        self.grants.get(&(run, step)).map(|grant| grant.until)
    }

    /// Nobody wants the result any more: its worker is to hear of it, at once if it asks for something.
    pub fn call_off(&mut self, run: RunId, step: u32, fence: u64, is_plain: bool) {
        let Some(grant) = self.grants.get(&(run, step)).filter(|grant| grant.fence == fence) else { return };
        // Whoever was not given it yet need not hear of it.
        if self.pockets.contains_key(&(run, step)) {
            return;
        }
        let (who, until) = ((grant.org, grant.worker.clone()), grant.until);
        self.tell(who, Notice { run, step, fence, is_plain, until, is_told: false });
    }

    /// On the open question of a worker, or the next.
    pub(super) fn tell(&mut self, who: WorkerKey, notice: Notice) {
        match self.polls.values_mut().find(|poll| poll.org == who.0 && poll.worker == who.1) {
            Some(poll) => {
                poll.called_off.push(notice);
                poll.is_hasty = true;
                self.hasty.push(poll.place);
            }
            None => self.called_off.entry(who).or_default().push(notice),
        }
    }

    /// It was told once, and has the task again since: that it may keep.
    pub(super) fn is_outdated(&self, notice: &Notice, worker: &str) -> bool {
        let again = self.grants.get(&(notice.run, notice.step));
        notice.is_told && again.is_some_and(|grant| grant.fence != notice.fence && grant.worker == worker)
    }

    fn count_worker(&mut self, org: OrgId, worker: &str, change: i32) {
        if let Some(worker) = self.workers.get_mut(&(org, worker.to_owned())) {
            worker.leased = worker.leased.saturating_add_signed(change);
        }
    }
}
