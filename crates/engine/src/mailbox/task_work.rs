//! Between runs and the task queue: ready tasks, claims, leases and limit slots.

use super::live_run::{EvictPolicy, LiveRun, ready_row};
use super::{Mailbox, QueueQuery, QueuedInput, Reply, Turn};
use crate::nodes::Nodes;
use crate::task_queue::{ClaimRequest, ClaimedTask, HeldLease, RecordedLease, TaskQueue};
use kernel::advance::{Assignment, Offer, OfferedTask};
use kernel::plan::Form;
use kernel::planted_bugs::{self, Bug};
use kernel::run::Lease;
use kernel::{Advance, Answer, Effect, Input, OrgId, Run, RunId, Span, Timestamp};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{LimitSlotRow, QueueKey};

impl<T> Mailbox<T> {
    /// Hides the ready tasks of a run that is about to be read again: on a shared store they may be gone.
    pub(super) fn hide_tasks(&mut self, live: Option<&LiveRun>) {
        let is_shared = self.task_queue.is_shared();
        for row in live.filter(|_| is_shared).iter().flat_map(|live| &live.stored) {
            self.task_queue.hide(&row.queue, row.position, self.now);
        }
    }

    pub(super) fn open_claim(&mut self, request: ClaimRequest<T>) {
        match self.is_draining || self.is_suspended {
            true => self.replies.push((request.reply_to, Reply::Claimed(Box::default()))),
            false => self.task_queue.open_claim(request, self.now),
        }
    }

    /// Gives expired leases to their runs, before every other input.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        if self.is_suspended {
            return;
        }
        for (org, run, step, fence) in self.task_queue.advance_time(now) {
            self.push(org, run, QueuedInput::internal(Input::Lost { step, fence }));
            if let Some(entry) = self.runs.get_mut(&run).filter(|_| !planted_bugs::is(Bug::LeaseRevived)) {
                entry.inbox.rotate_right(1);
                entry.is_due = true;
            }
        }
    }

    /// Matches open claims with ready tasks. True if runs have inputs to advance after it.
    pub(super) fn match_claims(&mut self, now: Timestamp) -> bool {
        if self.is_draining || self.is_suspended {
            return false;
        }
        for claim in self.task_queue.pair(now) {
            let (step, offer) = (claim.step, claim.offer);
            self.push(claim.org, claim.run, QueuedInput::internal(Input::Claim { step, offer }));
        }
        !self.queue.is_empty()
    }

    pub(super) fn answer_workers(&mut self, replies: &mut Vec<(T, Reply)>) {
        let answers = self.task_queue.answers();
        replies.extend(answers.into_iter().map(|(reply_to, reply)| (reply_to, Reply::Claimed(Box::new(reply)))));
    }

    /// Revokes the pending leases of a record that was not committed.
    pub(super) fn undo_leases(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::LeaseTask { offer_id, .. } = effect {
                self.task_queue.revoke(*offer_id, self.now);
            }
        }
    }

    /// Drops the claims of a run that cannot be read, for good or for now.
    pub(super) fn drop_claims(&mut self, claims: Vec<Input>, for_good: bool) {
        for claim in claims {
            match claim {
                Input::Claim { offer, .. } if for_good => self.task_queue.refuse(offer.offer_id, self.now),
                Input::Claim { offer, .. } => self.task_queue.retry_later(offer.offer_id, self.now),
                _ => {}
            }
        }
    }

    pub(super) fn query(&mut self, query: QueueQuery) -> Reply {
        let now = self.now;
        match query {
            QueueQuery::ClaimStatus(queue) => Reply::ClaimStatus(Box::new(self.task_queue.claim_status(&queue, now))),
            QueueQuery::Leases(tasks) => {
                Reply::Leases(tasks.into_iter().map(|(run, step)| self.task_queue.lease_until(run, step)).collect())
            }
            QueueQuery::Types(org, names) => {
                Reply::Types(names.iter().map(|name| self.task_queue.tally(org, name, now)).collect())
            }
            QueueQuery::Workers(org) => Reply::Workers(self.task_queue.workers(org)),
            QueueQuery::ChangedWorkers { all, since } => {
                self.task_queue.forget_workers(since);
                Reply::Workers(self.task_queue.changed_workers(all).into_iter().map(|row| (row, 0)).collect())
            }
        }
    }

    /// A bug on purpose: the worker gets a task before its lease is durable.
    pub(super) fn deliver_early(&mut self, run: RunId, turn: &mut Turn<T>) {
        let (Some(pending), Some(live)) = (turn.pending.last(), self.runs.get(&run).and_then(|s| s.live.as_ref()))
        else {
            return;
        };
        for effect in &pending.effects {
            if let Effect::LeaseTask { step, attempt, fence, offer_id, task } = effect {
                let task = assignment(live, run, (*step, *attempt, *fence), task, self.now);
                self.task_queue.deliver_early(*offer_id, task);
            }
        }
    }
}

/// Returns claims that wait for a payload to the run's inbox.
pub(super) fn defer_claims<T>(
    items: &mut Vec<QueuedInput<T>>,
    answers: &mut Vec<Answer>,
    inbox: &mut Vec<QueuedInput<T>>,
) {
    if !answers.contains(&Answer::Later) {
        return;
    }
    let (old_items, old_answers) = (std::mem::take(items), std::mem::take(answers));
    for (item, answer) in old_items.into_iter().zip(old_answers) {
        match answer {
            Answer::Later => inbox.push(item),
            answer => {
                items.push(item);
                answers.push(answer);
            }
        }
    }
}

/// Offers open claims to a run while it is being advanced, and keeps track of the pending leases.
pub(super) struct ClaimOffers<'a, T> {
    task_queue: RefCell<&'a mut TaskQueue<T>>,
    org: OrgId,
    now: Timestamp,
    is_new: bool,
    /// The worker that has just finished a step of this run.
    worker: Option<String>,
    /// Pending leases by offer id. Each becomes a lease in the record, or is dropped.
    offered: RefCell<Vec<u64>>,
}

impl<'a, T> ClaimOffers<'a, T> {
    pub fn new(
        task_queue: &'a mut TaskQueue<T>,
        org: OrgId,
        run: &Run,
        items: &[QueuedInput<T>],
        now: Timestamp,
    ) -> Self {
        let mut worker = None;
        let mut offered = Vec::new();
        for item in items {
            match &item.input {
                Input::Finished { step, fence, .. } => {
                    let lease = run.lease(*step).filter(|lease| lease.fence == *fence);
                    worker = lease.map(|lease| lease.worker.to_owned());
                }
                Input::Claim { offer, .. } => offered.push(offer.offer_id),
                _ => {}
            }
        }
        let is_new = run.state.seq == 0;
        ClaimOffers { task_queue: RefCell::new(task_queue), org, now, is_new, worker, offered: RefCell::new(offered) }
    }

    pub fn offer(&self, wanted: OfferedTask<'_>) -> Option<Offer> {
        let offer =
            self.task_queue.borrow_mut().offer(self.org, &wanted, self.worker.as_deref(), self.is_new, self.now)?;
        self.offered.borrow_mut().push(offer.offer_id);
        Some(offer)
    }

    /// Drops the pending leases that did not become a lease, unless the claim only waits for a payload.
    pub fn close(self, items: &[QueuedInput<T>], advanced: Option<&Advance>, now: Timestamp) {
        let (effects, answers) = advanced.map_or((&[][..], &[][..]), |a| (&a.effects[..], &a.answers[..]));
        let deferred = items.iter().zip(answers).filter_map(|(item, answer)| match (&item.input, answer) {
            (Input::Claim { offer, .. }, Answer::Later) => Some(offer.offer_id),
            _ => None,
        });
        let leased = effects.iter().filter_map(|effect| match effect {
            Effect::LeaseTask { offer_id, .. } => Some(*offer_id),
            _ => None,
        });
        let kept: BTreeSet<u64> = deferred.chain(leased).collect();
        let task_queue = self.task_queue.into_inner();
        for offer_id in self.offered.into_inner() {
            if !kept.contains(&offer_id) {
                task_queue.refuse(offer_id, now);
            }
        }
    }
}

/// Applies an effect of a committed record to the task queue.
pub(super) fn apply_effect<T>(
    task_queue: &mut TaskQueue<T>,
    org: OrgId,
    run: RunId,
    live: &LiveRun,
    effect: Effect,
    now: Timestamp,
) {
    match effect {
        Effect::Enqueue { task } => {
            let ready_row = ready_row(org, run, task);
            task_queue.enqueue(&ready_row.queue, ready_row.position, now);
        }
        Effect::Dequeue { task } => {
            let ready_row = ready_row(org, run, task);
            task_queue.dequeue(&ready_row.queue, ready_row.position, now);
        }
        Effect::LeaseEnded { step, fence } => task_queue.lease_ended(run, step, fence, now),
        Effect::LeaseTask { step, attempt, fence, offer_id, task } => {
            let claimed = assignment(live, run, (step, attempt, fence), &task, now);
            let Assignment { name, key, worker, lease, max_lease, .. } = *task;
            let (name, key, until) = (Arc::from(name), Arc::from(key), claimed.until);
            let held = HeldLease { org, worker, name, key, fence, lease, max_lease, until, noted_at: now };
            task_queue.lease_granted(run, step, held);
            task_queue.deliver(offer_id, claimed);
        }
        Effect::Execute { .. } | Effect::Abort { .. } | Effect::AdoptLease => {}
    }
}

/// The most that one heartbeat can extend the lease of a step by.
fn max_lease(live: &LiveRun, step: u32) -> Span {
    live.run.node(&live.version.plan, step).task().and_then(|task| task.heartbeat).unwrap_or(Span(u64::MAX))
}

fn assignment(
    live: &LiveRun,
    run: RunId,
    (step, attempt, fence): (u32, u32, u64),
    task: &Assignment,
    now: Timestamp,
) -> ClaimedTask {
    let plan = &live.version.plan;
    ClaimedTask {
        org: live.row.org,
        run,
        step,
        step_key: task.step_key.clone(),
        name: task.name.clone(),
        workflow: live.row.workflow_name.clone(),
        is_plain: plan.layout().form == Form::Task,
        attempt,
        max_attempts: task.max_attempts,
        fence,
        lease: task.lease,
        until: now.after(task.lease),
        input: task.input.clone(),
        progress: task.progress.clone(),
        repeats: task.repeats,
    }
}

/// Adds the ready tasks and leases of a run that was read to the task queue. Returns inputs for the leases that have
/// expired meanwhile.
pub(super) fn restore_tasks<T>(
    task_queue: &mut TaskQueue<T>,
    nodes: &Nodes,
    org: OrgId,
    run: RunId,
    live: &mut LiveRun,
    now: Timestamp,
) -> Vec<Input> {
    let tasks = live.tasks(org, run);
    if task_queue.is_shared() || live.row.evicted && live.row.status.may_have_tasks() {
        live.stored.clone_from(&tasks);
    }
    for ready_row in &tasks {
        task_queue.restore_ready(&ready_row.queue, ready_row.position, task_queue.is_shared() || live.row.evicted, now);
    }
    live.limit_slots = live.limit_slots(org, run);
    adopt_leases(task_queue, nodes, org, run, live, now);
    task_queue.overdue(run, now).into_iter().map(|(step, fence)| Input::Lost { step, fence }).collect()
}

/// Sends a cancellation to workers of this node whose leases have ended, unless they have reported the result.
fn cancel_lost_leases<T>(task_queue: &mut TaskQueue<T>, run: RunId, live: &LiveRun) {
    let is_plain = live.version.plan.layout().form == Form::Task;
    for (step, fence) in task_queue.leases_of(run) {
        let is_held = live.run.lease(step).is_some_and(|lease| lease.fence == fence);
        let has_reported = live.run.reported(step).is_some_and(|report| report.fence == fence && report.digest != 0);
        if !is_held && !has_reported {
            task_queue.cancel_lease(run, step, fence, is_plain);
        }
    }
}

/// Watches the deadlines of a run's leases: those that this node granted, and those of nodes that are gone.
pub(super) fn adopt_leases<T>(
    task_queue: &mut TaskQueue<T>,
    nodes: &Nodes,
    org: OrgId,
    run: RunId,
    live: &LiveRun,
    now: Timestamp,
) {
    cancel_lost_leases(task_queue, run, live);
    let mut leases = Vec::new();
    let is_watched_here = |lease: &Lease<'_>| lease.epoch == nodes.own() || nodes.is_gone(lease.epoch);
    for lease in live.run.leased().filter(is_watched_here) {
        let name = live.run.type_of(&live.version.plan, lease.step);
        let (key, max_lease) = (live.run.step(lease.step).key.as_str(), max_lease(live, lease.step));
        leases.push(RecordedLease { lease, name, key, max_lease });
    }
    task_queue.reconcile(org, run, &leases, now);
}

pub(super) fn evict_policy<T>(task_queue: &TaskQueue<T>) -> EvictPolicy {
    match (task_queue.is_shared(), task_queue.should_evict()) {
        (true, _) => EvictPolicy::Always,
        (false, true) => EvictPolicy::Now,
        (false, false) => EvictPolicy::No,
    }
}

/// The limit slots that the leases among these effects take.
pub(super) fn limit_slots<T>(
    task_queue: &mut TaskQueue<T>,
    org: OrgId,
    run: RunId,
    effects: &[Effect],
    now: Timestamp,
) -> Vec<LimitSlotRow> {
    let taken = |effect: &Effect| match effect {
        Effect::LeaseTask { step, offer_id, .. } => task_queue.slots_of(*offer_id, org, run, *step, now),
        _ => Vec::new(),
    };
    effects.iter().flat_map(taken).collect()
}

/// Frees limit slots. Returns the key queues for which no claim is open on this node.
pub(super) fn free_slots<T>(task_queue: &mut TaskQueue<T>, rows: &[LimitSlotRow], now: Timestamp) -> Vec<QueueKey> {
    let mut queues = Vec::new();
    for LimitSlotRow { slot, .. } in rows {
        task_queue.slot_freed(slot, now);
        let queue = QueueKey { org: slot.org, name: slot.name.clone(), key: slot.key.clone() };
        queues.extend((!task_queue.has_claim_for(&queue, now)).then_some(queue));
    }
    queues
}

/// The key queue of a new ready task, if nodes share the store and no claim for it is open on this node.
pub(super) fn queue_without_claim<T>(
    task_queue: &mut TaskQueue<T>,
    org: OrgId,
    effect: &Effect,
    now: Timestamp,
) -> Option<QueueKey> {
    let Effect::Enqueue { task } = effect else { return None };
    let queue = QueueKey { org, name: task.name.clone(), key: task.key.clone() };
    (task_queue.is_shared() && !task_queue.has_claim_for(&queue, now)).then_some(queue)
}

impl<T> QueuedInput<T> {
    /// A lease or an attempt that ended without a report. It is found again whenever the run is read.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self.input, Input::Lost { .. })
    }

    pub(super) fn is_claim(&self) -> bool {
        matches!(self.input, Input::Claim { .. })
    }
}
