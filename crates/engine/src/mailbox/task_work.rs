//! Tasks that are done outside: between the runs they belong to and the board where workers find them.

use super::live_run::{EvictPolicy, LiveRun};
use super::{Mailbox, Query, QueuedInput, Reply, Turn};
use crate::nodes::Nodes;
use crate::task_queue::{ClaimRequest, HeldLease, RecordedLease, Task, TaskQueue};
use kernel::advance::{Assignment, Offer, Wanted};
use kernel::plan::Form;
use kernel::planted_bugs::{self, Bug};
use kernel::run::Lease;
use kernel::{Advance, Answer, Effect, Input, OrgId, Run, RunId, Span, Timestamp};
use std::cell::RefCell;
use std::sync::Arc;
use store::{LimitSlotRow, QueueKey};

impl<T> Mailbox<T> {
    /// A run leaves memory to be read again. On a shared store what was on offer may be gone.
    pub(super) fn hide_tasks(&mut self, live: Option<&LiveRun>) {
        let is_shared = self.task_queue.is_shared();
        for row in live.filter(|_| is_shared).iter().flat_map(|live| &live.stored) {
            self.task_queue.hide(&row.queue, row.position, self.now);
        }
    }

    pub(super) fn ask(&mut self, ask: ClaimRequest<T>) {
        match self.is_draining {
            true => self.replies.push((ask.reply_to, Reply::Claimed(Box::default()))),
            false => self.task_queue.open(ask, self.now),
        }
    }

    /// Whoever was silent for too long has lost what it had; the run hears of that before anything else.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        for (org, run, step, fence) in self.task_queue.advance_time(now) {
            self.push(org, run, QueuedInput::inside(Input::Lost { step, fence }));
            if let Some(slot) = self.slots.get_mut(&run).filter(|_| !planted_bugs::is(Bug::LeaseRevived)) {
                slot.inbox.rotate_right(1);
                slot.is_due = true;
            }
        }
    }

    /// Lets workers claim what waits for them. False when there is nothing to advance after it.
    pub(super) fn match_claims(&mut self, now: Timestamp) -> bool {
        if self.is_draining {
            return false;
        }
        for claim in self.task_queue.pair(now) {
            let (step, offer) = (claim.step, claim.offer);
            self.push(claim.org, claim.run, QueuedInput::inside(Input::Claim { step, offer }));
        }
        !self.queue.is_empty()
    }

    pub(super) fn answer_workers(&mut self, replies: &mut Vec<(T, Reply)>) {
        let answers = self.task_queue.answers();
        replies.extend(answers.into_iter().map(|(reply_to, handed)| (reply_to, Reply::Claimed(Box::new(handed)))));
    }

    /// What was to be handed over is not: nothing of it is durable.
    pub(super) fn undo_leases(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::LeaseTask { offer_id, .. } = effect {
                self.task_queue.revoke(*offer_id, self.now);
            }
        }
    }

    /// The run these are claims of cannot be read; for good, or not just now.
    pub(super) fn drop_claims(&mut self, claims: Vec<Input>, for_good: bool) {
        for claim in claims {
            match claim {
                Input::Claim { offer, .. } if for_good => self.task_queue.refuse(offer.offer_id, self.now),
                Input::Claim { offer, .. } => self.task_queue.retry_later(offer.offer_id, self.now),
                _ => {}
            }
        }
    }

    pub(super) fn query(&mut self, query: Query) -> Reply {
        let now = self.now;
        match query {
            Query::ClaimStatus(queue) => Reply::ClaimStatus(Box::new(self.task_queue.claim_status(&queue, now))),
            Query::Leases(tasks) => {
                Reply::Leases(tasks.into_iter().map(|(run, step)| self.task_queue.lease_until(run, step)).collect())
            }
            Query::Types(org, names) => {
                Reply::Types(names.iter().map(|name| self.task_queue.tally(org, name, now)).collect())
            }
            Query::Workers(org) => Reply::Workers(self.task_queue.workers(org)),
            Query::ChangedWorkers { all, since } => {
                self.task_queue.forget_workers(since);
                Reply::Workers(self.task_queue.changed_workers(all).into_iter().map(|row| (row, 0)).collect())
            }
        }
    }

    /// A bug on purpose: the worker gets what nobody will remember giving.
    pub(super) fn deliver_early(&mut self, run: RunId, turn: &mut Turn<T>) {
        let (Some(pending), Some(live)) = (turn.pending.last(), self.slots.get(&run).and_then(|s| s.live.as_ref()))
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

/// Claims that have to wait for a payload stay in the run's inbox until it is here.
pub(super) fn defer_claims<T>(
    items: &mut Vec<QueuedInput<T>>,
    answers: &mut Vec<Answer>,
    inbox: &mut Vec<QueuedInput<T>>,
) {
    if !answers.contains(&Answer::Later) {
        return;
    }
    let (given, said) = (std::mem::take(items), std::mem::take(answers));
    for (item, answer) in given.into_iter().zip(said) {
        match answer {
            Answer::Later => inbox.push(item),
            answer => {
                items.push(item);
                answers.push(answer);
            }
        }
    }
}

/// Where a run asks for workers while it is being advanced, and who was promised something there.
pub(super) struct ClaimOffers<'a, T> {
    task_queue: RefCell<&'a mut TaskQueue<T>>,
    org: OrgId,
    now: Timestamp,
    is_new: bool,
    /// Who has just done something for this run.
    worker: Option<String>,
    /// Promises that must come to a grant, or are taken back.
    promised: RefCell<Vec<u64>>,
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
        let mut promised = Vec::new();
        for item in items {
            match &item.input {
                Input::Finished { fence, .. } => {
                    worker = run.leased().find(|lease| lease.fence == *fence).map(|lease| lease.worker.to_owned());
                }
                Input::Claim { offer, .. } => promised.push(offer.offer_id),
                _ => {}
            }
        }
        let is_new = run.state.seq == 0;
        ClaimOffers { task_queue: RefCell::new(task_queue), org, now, is_new, worker, promised: RefCell::new(promised) }
    }

    pub fn offer(&self, wanted: Wanted<'_>) -> Option<Offer> {
        let offer =
            self.task_queue.borrow_mut().offer(self.org, &wanted, self.worker.as_deref(), self.is_new, self.now)?;
        self.promised.borrow_mut().push(offer.offer_id);
        Some(offer)
    }

    /// Whoever was promised something and got nothing waits on, unless it only comes later.
    pub fn close(self, items: &[QueuedInput<T>], advanced: Option<&Advance>, now: Timestamp) {
        let (effects, answers) = advanced.map_or((&[][..], &[][..]), |a| (&a.effects[..], &a.answers[..]));
        let comes_later = |promise: u64| {
            let is_it =
                |item: &QueuedInput<T>| matches!(&item.input, Input::Claim { offer, .. } if offer.offer_id == promise);
            items.iter().zip(answers).any(|(item, answer)| *answer == Answer::Later && is_it(item))
        };
        let task_queue = self.task_queue.into_inner();
        let is_granted = |promise: u64| {
            effects.iter().any(|effect| matches!(effect, Effect::LeaseTask { offer_id, .. } if *offer_id == promise))
        };
        for promise in self.promised.into_inner() {
            if !is_granted(promise) && !comes_later(promise) {
                task_queue.refuse(promise, now);
            }
        }
    }
}

/// What an effect means for the board.
pub(super) fn apply_effect<T>(
    task_queue: &mut TaskQueue<T>,
    org: OrgId,
    run: RunId,
    live: &LiveRun,
    effect: Effect,
    now: Timestamp,
) {
    match effect {
        Effect::Enqueue { step } => {
            let ready_row = live.ready_row(org, run, step);
            task_queue.enqueue(&ready_row.queue, ready_row.position, now);
        }
        Effect::Dequeue { step } => {
            let ready_row = live.ready_row(org, run, step);
            task_queue.dequeue(&ready_row.queue, ready_row.position, now);
        }
        Effect::LeaseEnded { step, fence } => task_queue.ended(run, step, fence, now),
        Effect::LeaseTask { step, attempt, fence, offer_id, task } => {
            let given = assignment(live, run, (step, attempt, fence), &task, now);
            let Assignment { name, key, worker, lease, .. } = *task;
            let (name, key, until) = (Arc::from(name), Arc::from(key), given.until);
            let longest = longest(live, step);
            task_queue.lease_granted(run, step, HeldLease { org, worker, name, key, fence, lease, longest, until });
            task_queue.deliver(offer_id, given);
        }
        Effect::Execute { .. } | Effect::Abort { .. } | Effect::AdoptLease => {}
    }
}

/// How long a step's worker may be silent, whatever it asks for.
fn longest(live: &LiveRun, step: u32) -> Span {
    live.version.plan.node(step).task().and_then(|task| task.heartbeat).unwrap_or(Span(u64::MAX))
}

fn assignment(
    live: &LiveRun,
    run: RunId,
    (step, attempt, fence): (u32, u32, u64),
    task: &Assignment,
    now: Timestamp,
) -> Task {
    let plan = &live.version.plan;
    Task {
        org: live.row.org,
        run,
        step,
        step_key: plan.node(step).key.clone(),
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
    }
}

/// Tells the board about a run that was read: what it has on offer, and who holds what. Answers what the run has
/// to hear: leases that ended while it was away.
pub(super) fn restore_tasks<T>(
    task_queue: &mut TaskQueue<T>,
    nodes: &Nodes,
    org: OrgId,
    run: RunId,
    live: &mut LiveRun,
    now: Timestamp,
) -> Vec<Input> {
    let tasks = live.tasks(org, run);
    if task_queue.is_shared() || live.row.evicted && live.row.status == kernel::RunStatus::Running {
        live.stored.clone_from(&tasks);
    }
    for ready_row in &tasks {
        task_queue.restore_ready(&ready_row.queue, ready_row.position, task_queue.is_shared() || live.row.evicted, now);
    }
    live.limit_slots = live.limit_slots(org, run);
    keep_leases(task_queue, nodes, org, run, live, now);
    task_queue.overdue(run, now).into_iter().map(|(step, fence)| Input::Lost { step, fence }).collect()
}

/// Workers that this node gave a task to and that have it no longer hear of it, unless they have said how it ended.
fn cancel_lost_leases<T>(task_queue: &mut TaskQueue<T>, run: RunId, live: &LiveRun) {
    let is_plain = live.version.plan.layout().form == Form::Task;
    for (step, fence) in task_queue.leases_of(run) {
        let state = live.run.step(step);
        let has_it = live.run.leased().any(|lease| (lease.step, lease.fence) == (step, fence));
        let has_reported = state.fence == fence && state.digest != 0;
        if !has_it && !has_reported {
            task_queue.cancel_lease(run, step, fence, is_plain);
        }
    }
}

/// Counts the time of a run's leases: those that this node gave or hears of, and those nobody does any more.
pub(super) fn keep_leases<T>(
    task_queue: &mut TaskQueue<T>,
    nodes: &Nodes,
    org: OrgId,
    run: RunId,
    live: &LiveRun,
    now: Timestamp,
) {
    cancel_lost_leases(task_queue, run, live);
    let mut leases = Vec::new();
    let is_kept_here = |lease: &Lease<'_>| lease.epoch == nodes.own() || nodes.is_gone(lease.epoch);
    for lease in live.run.leased().filter(is_kept_here) {
        let task = live.version.plan.node(lease.step).task();
        let name = task.map_or("", |task| task.name.as_str());
        let (key, longest) = (live.run.step(lease.step).key.as_str(), longest(live, lease.step));
        leases.push(RecordedLease { lease, name, key, longest });
    }
    task_queue.reconcile(org, run, &leases, now);
}

pub(super) fn leave<T>(task_queue: &TaskQueue<T>) -> EvictPolicy {
    match (task_queue.is_shared(), task_queue.is_crowded()) {
        (true, _) => EvictPolicy::Always,
        (false, true) => EvictPolicy::Now,
        (false, false) => EvictPolicy::No,
    }
}

/// What the hand-overs among these effects take up of limits.
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

/// Seats are nobody's any more: the lanes of those that nobody here takes.
pub(super) fn freed<T>(task_queue: &mut TaskQueue<T>, rows: &[LimitSlotRow], now: Timestamp) -> Vec<QueueKey> {
    let mut queues = Vec::new();
    for LimitSlotRow { slot, .. } in rows {
        task_queue.freed(slot, now);
        let queue = QueueKey { org: slot.org, name: slot.name.clone(), key: slot.key.clone() };
        queues.extend((!task_queue.is_wanted(&queue, now)).then_some(queue));
    }
    queues
}

/// The lane of a task that was posted and nobody here takes.
pub(super) fn unwanted<T>(
    task_queue: &mut TaskQueue<T>,
    org: OrgId,
    run: RunId,
    live: &LiveRun,
    effect: &Effect,
    now: Timestamp,
) -> Option<QueueKey> {
    let Effect::Enqueue { step } = effect else { return None };
    let queue = live.ready_row(org, run, *step).queue;
    (task_queue.is_shared() && !task_queue.is_wanted(&queue, now)).then_some(queue)
}

impl<T> QueuedInput<T> {
    /// A lease, or an attempt, that ended without anybody saying so. Whoever reads the run finds it again.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self.input, Input::Lost { .. })
    }

    pub(super) fn is_claim(&self) -> bool {
        matches!(self.input, Input::Claim { .. })
    }
}
