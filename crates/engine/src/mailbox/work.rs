//! Tasks that are done outside: between the runs they belong to and the board where workers find them.

use super::live::{Leave, Live};
use super::{Item, Look, Mailbox, Reply, Turn};
use crate::board::{Ask, Board, Grant, Held, Task};
use crate::nodes::Nodes;
use kernel::advance::{Assignment, Offer, Wanted};
use kernel::plan::Form;
use kernel::planted::{self, Bug};
use kernel::run::Lease;
use kernel::{Advance, Answer, Effect, Input, OrgId, Run, RunId, Span, Timestamp};
use std::cell::RefCell;
use std::sync::Arc;
use store::{Lane, SeatRow};

impl<T> Mailbox<T> {
    /// A run leaves memory to be read again. On a shared store what was on offer may be gone.
    pub(super) fn withhold(&mut self, live: Option<&Live>) {
        let is_shared = self.board.is_shared();
        for row in live.filter(|_| is_shared).iter().flat_map(|live| &live.stored) {
            self.board.withhold(&row.lane, row.place, self.now);
        }
    }

    pub(super) fn ask(&mut self, ask: Ask<T>) {
        match self.is_draining {
            true => self.replies.push((ask.ticket, Reply::Handed(Box::default()))),
            false => self.board.open(ask, self.now),
        }
    }

    /// Whoever was silent for too long has lost what it had; the run hears of that before anything else.
    pub(super) fn lose_leases(&mut self, now: Timestamp) {
        for (org, run, step, fence) in self.board.pass(now) {
            self.push(org, run, Item::inside(Input::Lost { step, fence }));
            if let Some(slot) = self.slots.get_mut(&run).filter(|_| !planted::is(Bug::LeaseRevived)) {
                slot.inbox.rotate_right(1);
                slot.is_due = true;
            }
        }
    }

    /// Lets workers claim what waits for them. False when there is nothing to advance after it.
    pub(super) fn hand_out(&mut self, now: Timestamp) -> bool {
        if self.is_draining {
            return false;
        }
        for claim in self.board.pair(now) {
            let (step, offer) = (claim.step, claim.offer);
            self.push(claim.org, claim.run, Item::inside(Input::Claim { step, offer }));
        }
        !self.queue.is_empty()
    }

    pub(super) fn answer_workers(&mut self, replies: &mut Vec<(T, Reply)>) {
        let answers = self.board.answers();
        replies.extend(answers.into_iter().map(|(ticket, handed)| (ticket, Reply::Handed(Box::new(handed)))));
    }

    /// What was to be handed over is not: nothing of it is durable.
    pub(super) fn take_back(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Grant { place, .. } = effect {
                self.board.revoke(*place, self.now);
            }
        }
    }

    /// The run these are claims of cannot be read; for good, or not just now.
    pub(super) fn drop_claims(&mut self, claims: Vec<Input>, for_good: bool) {
        for claim in claims {
            match claim {
                Input::Claim { offer, .. } if for_good => self.board.refuse(offer.place, self.now),
                Input::Claim { offer, .. } => self.board.mistrust(offer.place, self.now),
                _ => {}
            }
        }
    }

    pub(super) fn look(&mut self, look: Look) -> Reply {
        let now = self.now;
        match look {
            Look::Stance(lane) => Reply::Stance(Box::new(self.board.stance(&lane, now))),
            Look::Leases(tasks) => {
                Reply::Leases(tasks.into_iter().map(|(run, step)| self.board.lease_until(run, step)).collect())
            }
            Look::Types(org, names) => {
                Reply::Types(names.iter().map(|name| self.board.tally(org, name, now)).collect())
            }
            Look::Workers(org) => Reply::Workers(self.board.workers(org)),
            Look::News { all, since } => {
                self.board.forget_workers(since);
                Reply::Workers(self.board.news(all).into_iter().map(|row| (row, 0)).collect())
            }
        }
    }

    /// A bug on purpose: the worker gets what nobody will remember giving.
    pub(super) fn hand_early(&mut self, run: RunId, turn: &mut Turn<T>) {
        let (Some(pending), Some(live)) = (turn.pending.last(), self.slots.get(&run).and_then(|s| s.live.as_ref()))
        else {
            return;
        };
        for effect in &pending.effects {
            if let Effect::Grant { step, attempt, fence, place, task } = effect {
                let task = assignment(live, run, (*step, *attempt, *fence), task, self.now);
                self.board.hand_early(*place, task);
            }
        }
    }
}

/// Claims that have to wait for a payload stay in the run's inbox until it is here.
pub(super) fn keep_waiting<T>(items: &mut Vec<Item<T>>, answers: &mut Vec<Answer>, inbox: &mut Vec<Item<T>>) {
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
pub(super) struct Counter<'a, T> {
    board: RefCell<&'a mut Board<T>>,
    org: OrgId,
    now: Timestamp,
    is_new: bool,
    /// Who has just done something for this run.
    worker: Option<String>,
    /// Promises that must come to a grant, or are taken back.
    promised: RefCell<Vec<u64>>,
}

impl<'a, T> Counter<'a, T> {
    pub fn new(board: &'a mut Board<T>, org: OrgId, run: &Run, items: &[Item<T>], now: Timestamp) -> Self {
        let mut worker = None;
        let mut promised = Vec::new();
        for item in items {
            match &item.input {
                Input::Finished { fence, .. } => {
                    worker = run.leased().find(|lease| lease.fence == *fence).map(|lease| lease.worker.to_owned());
                }
                Input::Claim { offer, .. } => promised.push(offer.place),
                _ => {}
            }
        }
        let is_new = run.state.seq == 0;
        Counter { board: RefCell::new(board), org, now, is_new, worker, promised: RefCell::new(promised) }
    }

    pub fn offer(&self, wanted: Wanted<'_>) -> Option<Offer> {
        let offer = self.board.borrow_mut().offer(self.org, &wanted, self.worker.as_deref(), self.is_new, self.now)?;
        self.promised.borrow_mut().push(offer.place);
        Some(offer)
    }

    /// Whoever was promised something and got nothing waits on, unless it only comes later.
    pub fn close(self, items: &[Item<T>], advanced: Option<&Advance>, now: Timestamp) {
        let (effects, answers) = advanced.map_or((&[][..], &[][..]), |a| (&a.effects[..], &a.answers[..]));
        let comes_later = |promise: u64| {
            let is_it = |item: &Item<T>| matches!(&item.input, Input::Claim { offer, .. } if offer.place == promise);
            items.iter().zip(answers).any(|(item, answer)| *answer == Answer::Later && is_it(item))
        };
        let board = self.board.into_inner();
        let is_granted = |promise: u64| {
            effects.iter().any(|effect| matches!(effect, Effect::Grant { place, .. } if *place == promise))
        };
        for promise in self.promised.into_inner() {
            if !is_granted(promise) && !comes_later(promise) {
                board.refuse(promise, now);
            }
        }
    }
}

/// What an effect means for the board.
pub(super) fn carry_out<T>(board: &mut Board<T>, org: OrgId, run: RunId, live: &Live, effect: Effect, now: Timestamp) {
    match effect {
        Effect::Post { step } => {
            let card = live.card(org, run, step);
            board.post(&card.lane, card.place, now);
        }
        Effect::Unpost { step } => {
            let card = live.card(org, run, step);
            board.unpost(&card.lane, card.place, now);
        }
        Effect::Ended { step, fence } => board.ended(run, step, fence, now),
        Effect::Grant { step, attempt, fence, place, task } => {
            let given = assignment(live, run, (step, attempt, fence), &task, now);
            let Assignment { name, key, worker, lease, .. } = *task;
            let (name, key, until) = (Arc::from(name), Arc::from(key), given.until);
            let longest = longest(live, step);
            board.granted(run, step, Grant { org, worker, name, key, fence, lease, longest, until });
            board.hand(place, given);
        }
        Effect::Execute { .. } | Effect::Abort { .. } | Effect::Keep => {}
    }
}

/// How long a step's worker may be silent, whatever it asks for.
fn longest(live: &Live, step: u32) -> Span {
    live.version.plan.node(step).task().and_then(|task| task.heartbeat).unwrap_or(Span(u64::MAX))
}

fn assignment(
    live: &Live,
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
pub(super) fn take_up<T>(
    board: &mut Board<T>,
    nodes: &Nodes,
    org: OrgId,
    run: RunId,
    live: &mut Live,
    now: Timestamp,
) -> Vec<Input> {
    let tasks = live.tasks(org, run);
    if board.is_shared() || live.row.parked && live.row.status == kernel::RunStatus::Running {
        live.stored.clone_from(&tasks);
    }
    for card in &tasks {
        board.recall(&card.lane, card.place, board.is_shared() || live.row.parked, now);
    }
    live.seats = live.seats(org, run);
    keep_leases(board, nodes, org, run, live, now);
    board.overdue(run, now).into_iter().map(|(step, fence)| Input::Lost { step, fence }).collect()
}

/// Workers that this node gave a task to and that have it no longer hear of it, unless they have said how it ended.
fn call_off_lost<T>(board: &mut Board<T>, run: RunId, live: &Live) {
    let is_plain = live.version.plan.layout().form == Form::Task;
    for (step, fence) in board.grants_of(run) {
        let state = live.run.step(step);
        let has_it = live.run.leased().any(|lease| (lease.step, lease.fence) == (step, fence));
        let has_reported = state.fence == fence && state.digest != 0;
        if !has_it && !has_reported {
            board.call_off(run, step, fence, is_plain);
        }
    }
}

/// Counts the time of a run's leases: those that this node gave or hears of, and those nobody does any more.
pub(super) fn keep_leases<T>(board: &mut Board<T>, nodes: &Nodes, org: OrgId, run: RunId, live: &Live, now: Timestamp) {
    call_off_lost(board, run, live);
    let mut leases = Vec::new();
    let is_kept_here = |lease: &Lease<'_>| lease.epoch == nodes.own() || nodes.is_gone(lease.epoch);
    for lease in live.run.leased().filter(is_kept_here) {
        let task = live.version.plan.node(lease.step).task();
        let name = task.map_or("", |task| task.name.as_str());
        let (key, longest) = (live.run.step(lease.step).key.as_str(), longest(live, lease.step));
        leases.push(Held { lease, name, key, longest });
    }
    board.reconcile(org, run, &leases, now);
}

pub(super) fn leave<T>(board: &Board<T>) -> Leave {
    match (board.is_shared(), board.is_crowded()) {
        (true, _) => Leave::Always,
        (false, true) => Leave::Now,
        (false, false) => Leave::No,
    }
}

/// What the hand-overs among these effects take up of limits.
pub(super) fn seats<T>(
    board: &mut Board<T>,
    org: OrgId,
    run: RunId,
    effects: &[Effect],
    now: Timestamp,
) -> Vec<SeatRow> {
    let taken = |effect: &Effect| match effect {
        Effect::Grant { step, place, .. } => board.seats_of(*place, org, run, *step, now),
        _ => Vec::new(),
    };
    effects.iter().flat_map(taken).collect()
}

/// Seats are nobody's any more: the lanes of those that nobody here takes.
pub(super) fn freed<T>(board: &mut Board<T>, rows: &[SeatRow], now: Timestamp) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for SeatRow { seat, .. } in rows {
        board.freed(seat, now);
        let lane = Lane { org: seat.org, name: seat.name.clone(), key: seat.key.clone() };
        lanes.extend((!board.is_wanted(&lane, now)).then_some(lane));
    }
    lanes
}

/// The lane of a task that was posted and nobody here takes.
pub(super) fn unwanted<T>(
    board: &mut Board<T>,
    org: OrgId,
    run: RunId,
    live: &Live,
    effect: &Effect,
    now: Timestamp,
) -> Option<Lane> {
    let Effect::Post { step } = effect else { return None };
    let lane = live.card(org, run, *step).lane;
    (board.is_shared() && !board.is_wanted(&lane, now)).then_some(lane)
}

impl<T> Item<T> {
    /// A lease, or an attempt, that ended without anybody saying so. Whoever reads the run finds it again.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self.input, Input::Lost { .. })
    }

    pub(super) fn is_claim(&self) -> bool {
        matches!(self.input, Input::Claim { .. })
    }
}
