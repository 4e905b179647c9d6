//! The rules that decide what happens next in a run.
//!
//! [`advance`] takes every input that waits for a run and returns one record. The order inside an advance is
//! fixed. First, due timers fire, so an input that arrives exactly at a deadline is late. Then the inputs are
//! applied in order of arrival. Then the [`planner`](crate::planner) says what comes next, until nothing does. The work
//! is bounded by the number of steps, and advancing an unchanged run yields nothing.
//!
//! Attempts, leases, timers, waits and payloads are handled here. Why a step exists and what its end leads to is the
//! planner's business: another form of workflow brings its own planner, and nothing here changes.

mod children;
mod concurrency_and_notifications;
mod fork;
mod overrides;
mod relocation;
mod repair;
mod replay_safety;
mod results;
mod start;
mod tasks;
mod undo;
mod view;
mod waits;

#[cfg(test)]
mod tests;

pub use crate::planner::{
    FailedSteps, failed_steps, handled_by, is_taken, lost_steps, unhandled_in_group, unhandled_steps,
};
pub use children::{CALL_DEPTH_MAX, OutgoingRow};
pub use concurrency_and_notifications::{NotificationNumber, concurrency_group, notifications};
pub use fork::{Fork, fork};
pub use overrides::StepOverride;
pub use relocation::{Misfit, MoveOrder, misfit};
pub use repair::{Repair, repair};
pub use replay_safety::{UnrepeatableStep, unrepeatable_steps};
pub use results::{TaskResult, is_expected};
pub(crate) use start::over_size_failure;
pub use start::{HeldBack, NextRequest, Request, Stop, Work};
pub use view::{ParsedBodies, View, errors};
pub(crate) use waits::is_denial;
pub use waits::{APPROVAL_DENIED, APPROVAL_TIMEOUT, ApprovalDecision, IncomingSignal};

use crate::event::{Because, CopiedStep, EndAfterUndo, Event, LogLine, Origin, Queue, Record, StepPlace};
use crate::id::RunId;
use crate::inbox::ChildOutcome;
use crate::payload::{INLINE_MAX, Payload, Payloads};
use crate::plan::Plan;
use crate::planted_bugs::{self, Bug};
use crate::run::{Phase, ReadyTask, Run};
use crate::status::RunStatus;
use crate::time::{Span, Timestamp};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// All payloads of a run together may not exceed this.
pub const STATE_MAX: u64 = 16 * 1024 * 1024;

/// An input of a run.
#[derive(Clone, Debug)]
pub enum Input {
    /// Creates the run. A fork takes over how these steps of the root group ended.
    Start {
        origin: Box<Origin>,
        admission: Admission,
        copied: Vec<(u32, CopiedStep)>,
    },
    /// Admits a queued run: its concurrency group has room, or its workflow was resumed.
    Admit,
    /// Start no step until `Resume`.
    Pause {
        actor: String,
        note: String,
    },
    Resume {
        actor: String,
    },
    /// Start the next attempt now, for one step or for every step that waits for a retry.
    RetryNow {
        step: Option<u32>,
        actor: String,
    },
    /// An operator decides about a step.
    Override {
        step: u32,
        decision: Box<StepOverride>,
    },
    /// The executor that holds `fence` reports how an attempt ended. The report of a worker has a digest, so
    /// that the worker can safely repeat it.
    Finished {
        step: u32,
        fence: u64,
        result: TaskResult,
        digest: u64,
    },
    /// A worker claims this step.
    Claim {
        step: u32,
        offer: Offer,
    },
    /// The worker that holds `fence` is alive, and may report its progress.
    Heartbeat {
        step: u32,
        fence: u64,
        progress: Option<Payload>,
    },
    /// The worker that holds `fence` has been alive for a while, which is to be recorded.
    StillAlive {
        step: u32,
        fence: u64,
    },
    /// Log lines from the worker that holds `fence`.
    Log {
        step: u32,
        fence: u64,
        lines: Vec<LogLine>,
    },
    /// The executor that held `fence` is gone: its process stopped, or the lease of its worker ended.
    Lost {
        step: u32,
        fence: u64,
    },
    /// A request to a step's callback URL.
    Callback {
        step: u32,
        body: Payload,
        digest: Bytes,
    },
    Signal(Box<IncomingSignal>),
    /// Approves or denies a step; without a step, the only one that waits for an approval.
    Decide {
        step: Option<u32>,
        verdict: ApprovalDecision,
    },
    /// Resumes a `pause` step; without a step, the only one that waits.
    Continue {
        step: Option<u32>,
        actor: String,
    },
    /// From a child that was started for this attempt: it exists.
    ChildBegan {
        step: u32,
        attempt: u32,
    },
    /// From a child that was started for this attempt: it has ended, or cannot be started.
    ChildEnded {
        step: u32,
        attempt: u32,
        outcome: Box<ChildOutcome>,
    },
    /// From the parent: it has ended, or no longer needs the result of this run.
    ParentClosed {
        parent: RunId,
        /// What the run did is to be undone.
        compensate: bool,
    },
    Cancel {
        actor: String,
        reason: String,
        /// What the run did is to be undone.
        compensate: bool,
    },
    /// Goes on with a run that failed or timed out.
    Reopen {
        /// This step runs again, and so does what depends on it.
        from: Option<u32>,
        /// Irreversible steps that succeeded may run again.
        allow_irreversible: bool,
        actor: String,
        reason: String,
        /// Whether its concurrency group has room for it.
        admission: Admission,
    },
    /// Goes on with another version of the workflow. It is given alone: the plan changes.
    Move(Box<MoveOrder>),
    /// Time has passed, or a payload that was missing is in memory now.
    Wake,
}

/// A worker that is ready to take a task. `offer_id` is the caller's own reference to the worker's open claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    pub worker: String,
    pub lease: Span,
    pub offer_id: u64,
    /// The limit slots of the type and of the key that the task takes, see [`Event::Leased`].
    pub slot: u32,
    pub key_slot: u32,
}

/// A task that has just become ready, as the task queue sees it when it looks for a waiting worker.
#[derive(Clone, Copy, Debug)]
pub struct OfferedTask<'a> {
    pub step: u32,
    pub name: &'a str,
    pub key: &'a str,
    pub priority: u32,
}

/// Whether a new run may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    #[default]
    Open,
    /// The run is queued.
    Queue(Queue),
    /// The run is cancelled at once.
    Refuse,
}

/// The answer to an input. The engine releases it only once the record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Applied,
    /// The same input was applied before; nothing changed.
    Repeated,
    /// Another payload was accepted before.
    Conflict,
    /// The step no longer accepts a callback: it timed out, was skipped or cancelled, or the run has ended.
    Gone,
    /// The fence is not the current one, or another worker holds the step.
    Stale,
    /// A payload must be fetched first.
    Later,
    /// The run had already ended, with this status.
    Ended(RunStatus),
    /// The payload would exceed the run's total size.
    TooLarge,
    /// Too many signals wait to be read.
    Full,
    /// The actor may not decide about the step.
    Forbidden,
    /// Several steps wait for such an input: it must name one.
    Ambiguous,
    /// An irreversible step that succeeded would run again, see [`repair`].
    Unsafe,
    /// The run's concurrency group is full, and its runs do not queue.
    NoRoom,
    /// The run or the step does not exist, or nothing waits for this input.
    Unknown,
}

/// What must be done once the record is durable. Timers, rows and notifications follow from the run.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Do this work and report the result as an [`Input::Finished`] with this fence.
    /// `repeats` is part of its idempotency key, see [`idempotency_key`](crate::run::idempotency_key).
    Execute { step: u32, key: String, attempt: u32, repeats: u32, fence: u64, work: Work },
    /// The result is no longer needed: stop the attempt. A worker may hold it.
    Abort { step: u32, fence: u64, is_leased: bool },
    /// Give the step to the worker whose claim is `offer_id`.
    LeaseTask { step: u32, attempt: u32, fence: u64, offer_id: u64, task: Box<Assignment> },
    /// A worker may claim this step now.
    Enqueue { task: ReadyTask },
    /// The step can no longer be claimed: it is leased, or its run does not need it now.
    Dequeue { task: ReadyTask },
    /// The lease with this fence has ended.
    LeaseEnded { step: u32, fence: u64 },
    /// A worker heartbeats through this node, but another node tracked its lease so far.
    AdoptLease,
}

/// The task that a worker receives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assignment {
    pub step_key: String,
    /// The task's type.
    pub name: String,
    /// The concurrency key: tasks with the same key share limits.
    pub key: String,
    pub worker: String,
    pub lease: Span,
    /// The most that one heartbeat can extend the lease by.
    pub max_lease: Span,
    /// JSON.
    pub input: Bytes,
    pub max_attempts: u32,
    /// The progress that an earlier attempt saved.
    pub progress: Option<Bytes>,
    /// Part of its idempotency key, see [`idempotency_key`](crate::run::idempotency_key).
    pub repeats: u32,
}

/// What a decision may read besides the plan, the run and the inputs.
pub struct Context<'a> {
    pub run: RunId,
    pub now: Timestamp,
    /// The process that will execute the steps that start.
    pub epoch: u64,
    /// That process is shutting down: steps that become ready wait for the next process.
    pub is_draining: bool,
    /// The callback URL of a wait step.
    pub wait_url: &'a dyn Fn(&str) -> String,
    /// Stored payloads that were fetched for this advance.
    pub payloads: &'a Payloads,
    /// Returns a worker that waits for such a task, if there is one.
    pub offer: &'a dyn Fn(OfferedTask<'_>) -> Option<Offer>,
    /// Says whether a request must wait because of its host. If not, the attempt starts.
    pub hold: &'a dyn Fn(NextRequest<'_>) -> Option<HeldBack>,
}

#[derive(Debug, Default)]
pub struct Advance {
    /// `None` when nothing happened.
    pub record: Option<Record>,
    pub effects: Vec<Effect>,
    /// One for each input, in order.
    pub answers: Vec<Answer>,
    /// Payloads to store beside the record.
    pub payloads: Vec<(u32, Bytes)>,
    /// Stored payloads that a decision needs: fetch them and advance again.
    pub missing: Vec<u32>,
    /// Rows for the inboxes of other runs, to store beside the record.
    pub outgoing: Vec<OutgoingRow>,
}

/// Applies `inputs` and decides what follows. `run` is changed in place and is then ahead of the journal: when
/// the record cannot be committed, discard the run and load it again.
pub fn advance(plan: &Plan, run: &mut Run, inputs: Vec<Input>, context: &Context<'_>) -> Advance {
    if let [Input::Move(order)] = inputs.as_slice() {
        return relocation::relocate(plan, run, order, context);
    }
    let mut state = AdvanceState::new(plan, run, context);
    state.fire_due();
    for input in inputs {
        let answer = state.input(input);
        state.out.answers.push(answer);
    }
    state.decide_all();
    state.done()
}

/// One advance in progress.
struct AdvanceState<'a> {
    plan: &'a Plan,
    run: &'a mut Run,
    context: &'a Context<'a>,
    events: Vec<Event>,
    /// Where the inner steps are that the events name.
    inner: BTreeMap<u32, StepPlace>,
    out: Advance,
    /// Payloads that arrived in this advance and are too large to stay in memory.
    fresh: Payloads,
    parsed: ParsedBodies,
}

impl<'a> AdvanceState<'a> {
    fn new(plan: &'a Plan, run: &'a mut Run, context: &'a Context<'a>) -> AdvanceState<'a> {
        AdvanceState {
            plan,
            run,
            context,
            events: Vec::new(),
            inner: BTreeMap::new(),
            out: Advance::default(),
            fresh: Payloads::new(),
            parsed: ParsedBodies::default(),
        }
    }

    fn done(self) -> Advance {
        let AdvanceState { run, context, events, inner, mut out, .. } = self;
        if !events.is_empty() {
            let first = run.state.seq + 1 - events.len() as u64;
            out.record = Some(Record { at: context.now, first, events, inner, ..Default::default() });
        }
        out
    }
}

impl AdvanceState<'_> {
    fn emit(&mut self, event: Event) {
        let step = event.step();
        self.note_places(&event);
        let dequeued = step.filter(|step| self.is_claimable(*step)).map(|step| self.run.ready_task(self.plan, step));
        let old_fence = step.and_then(|step| self.fence(step));
        // These events make every ready task of the run claimable, or none.
        let affects_all = matches!(event, Event::Paused { .. } | Event::Unpaused { .. } | Event::Admitted {});
        if affects_all {
            self.out.effects.extend(self.run.ready_tasks(self.plan).map(|task| Effect::Dequeue { task }));
        }
        let applied = self.run.apply(self.plan, &event, self.context.now);
        debug_assert!(applied.is_ok(), "the kernel applies every event that it emits: {applied:?}");
        if affects_all {
            self.out.effects.extend(self.run.ready_tasks(self.plan).map(|task| Effect::Enqueue { task }));
        }
        if matches!(event, Event::Opened { .. }) {
            self.note_places(&event);
        }
        if let Some(step) = step {
            self.parsed.forget(step);
            match (dequeued, self.is_claimable(step)) {
                (None, true) => {
                    let task = self.run.ready_task(self.plan, step);
                    self.out.effects.push(Effect::Enqueue { task });
                }
                (Some(task), false) => self.out.effects.push(Effect::Dequeue { task }),
                _ => {}
            }
            if let Some(fence) = old_fence.filter(|fence| self.fence(step) != Some(*fence)) {
                self.out.effects.push(Effect::LeaseEnded { step, fence });
            }
        }
        let is_end = event.is_end();
        self.events.push(event);
        if is_end {
            self.tell_others_of_end();
        }
    }

    /// Notes where the inner steps are that the event names.
    fn note_places(&mut self, event: &Event) {
        let others: &[u32] = match event {
            Event::Skipped { because: Because::Needs { steps }, .. } => steps,
            Event::Opened { parent, .. } => std::slice::from_ref(parent),
            Event::RunRetried { steps, .. } => steps,
            _ => &[],
        };
        for step in event.step().into_iter().chain(others.iter().copied()) {
            if self.run.get(step).is_some_and(|state| state.place.is_some()) {
                self.inner.entry(step).or_insert_with(|| self.run.place(step));
            }
        }
    }

    /// The fence of a leased step.
    fn fence(&self, step: u32) -> Option<u64> {
        match self.run.get(step)?.phase {
            Phase::Leased { fence, .. } => Some(fence),
            _ => None,
        }
    }

    fn is_claimable(&self, step: u32) -> bool {
        let ready = self.run.get(step).is_some_and(|s| matches!(s.phase, Phase::Ready {}));
        ready && self.is_open() && !self.run.is_held() && self.run.node(self.plan, step).task().is_some()
    }

    fn is_open(&self) -> bool {
        self.run.state.seq > 0 && !self.run.is_terminal()
    }

    /// Whether nothing but the end of its children can change the run.
    fn is_closed(&self) -> bool {
        self.run.is_terminal() || self.run.status() == RunStatus::Cancelling
    }

    /// Whether no signal and no decision can change what the run does: it has ended, or is about to.
    fn is_ending(&self) -> bool {
        self.is_closed() || self.run.status() == RunStatus::Compensating
    }

    fn input(&mut self, input: Input) -> Answer {
        match input {
            Input::Start { origin, admission, copied } => self.create(origin, admission, copied),
            Input::Wake => Answer::Applied,
            Input::Move(_) => Answer::Later,
            _ if self.run.state.seq == 0 => Answer::Unknown,
            Input::Finished { step, fence, result, digest } => self.finished(step, fence, result, digest),
            Input::Claim { step, offer } => self.claim(step, offer),
            Input::Heartbeat { step, fence, progress } => self.heartbeat(step, fence, progress),
            Input::StillAlive { step, fence } => self.still_alive(step, fence),
            Input::Log { step, fence, lines } => self.log(step, fence, lines),
            Input::Override { step, decision } => self.override_step(step, *decision),
            Input::Lost { step, fence } => self.lost(step, fence),
            Input::Callback { step, body, digest } => self.callback(step, body, digest),
            Input::Signal(signal) => self.signal(*signal),
            Input::Decide { step, verdict } => self.decide_approval(step, verdict),
            Input::Continue { step, actor } => self.continue_step(step, actor),
            Input::Cancel { actor, reason, compensate } => self.cancel(actor, reason, compensate),
            Input::ChildBegan { step, attempt } => self.child_began(step, attempt),
            Input::ChildEnded { step, attempt, outcome } => self.child_ended(step, attempt, *outcome),
            Input::ParentClosed { parent, compensate } => self.parent_closed(parent, compensate),
            Input::Reopen { from, allow_irreversible, actor, reason, admission } => {
                self.reopen(from, allow_irreversible, (actor, reason), admission)
            }
            // An undo can be paused, and retried at once.
            Input::Pause { .. } | Input::Resume { .. } | Input::RetryNow { .. } if self.is_closed() => {
                Answer::Ended(self.run.status())
            }
            Input::Admit if self.is_ending() => Answer::Ended(self.run.status()),
            Input::Admit => match self.run.state.queued {
                Some(Queue::Limit | Queue::WorkflowPaused) => self.applied(Event::Admitted {}),
                // A run that waits for its start time is admitted by its timer alone.
                Some(Queue::Later) | None => Answer::Repeated,
            },
            Input::Pause { actor, note } => match self.run.state.paused {
                None => self.applied(Event::Paused { actor, note }),
                Some(_) => Answer::Repeated,
            },
            Input::Resume { actor } => match self.run.state.paused {
                Some(_) => self.applied(Event::Unpaused { actor }),
                None => Answer::Repeated,
            },
            Input::RetryNow { step, actor } => self.retry_now(step, &actor),
        }
    }

    fn applied(&mut self, event: Event) -> Answer {
        self.emit(event);
        Answer::Applied
    }

    fn create(&mut self, mut origin: Box<Origin>, admission: Admission, copied: Vec<(u32, CopiedStep)>) -> Answer {
        if self.run.state.seq > 0 {
            return Answer::Repeated;
        }
        let begins = origin.run_at.map_or(self.context.now, |at| at.max(self.context.now));
        origin.expires_at = begins.after(self.plan.layout().max_duration);
        origin.body = self.store_if_large(origin.body);
        self.emit(Event::Created { origin });
        self.take_over_copies(copied);
        self.tell_parent_of_start();
        match admission {
            Admission::Open if begins > self.context.now => self.emit(Event::Queued { reason: Queue::Later }),
            Admission::Open => {}
            Admission::Queue(reason) => self.emit(Event::Queued { reason }),
            Admission::Refuse => {
                let (actor, reason) = ("onward".to_owned(), Queue::Limit.as_str().to_owned());
                self.emit(Event::RunCancelled { actor, reason });
            }
        }
        Answer::Applied
    }

    /// Makes retries due now. `Unknown` when no step waits for a retry, or when the run may start nothing.
    fn retry_now(&mut self, step: Option<u32>, actor: &str) -> Answer {
        let retrying = self.run.steps().filter(|(_, state)| matches!(state.phase, Phase::Retrying { .. }));
        let steps: Vec<u32> = retrying.map(|(s, _)| s).filter(|s| step.is_none_or(|only| only == *s)).collect();
        if steps.is_empty() || self.run.is_held() {
            return Answer::Unknown;
        }
        for step in steps {
            self.emit(Event::RetryDue { step, actor: actor.to_owned() });
        }
        Answer::Applied
    }

    /// Decides steps and fires timers until nothing more follows at this instant.
    fn decide_all(&mut self) {
        loop {
            self.make_moves();
            self.start_ready();
            if !self.fire_due() {
                break;
            }
        }
        let is_due = self.run.first_timer().is_some_and(|(at, _)| at <= self.context.now);
        if self.run.is_held() || self.run.is_idle() && !is_due {
            // No step may start, or the one that needed a payload has ended meanwhile.
            self.out.missing.clear();
        }
        if self.is_open() {
            self.update_run_status();
        }
    }

    /// Fires the timers that are due, earliest first. Returns whether any fired.
    fn fire_due(&mut self) -> bool {
        let mut fired = false;
        let mut stalled: Vec<(Timestamp, u32)> = Vec::new();
        while self.is_open() {
            let expiry = self.run.expires_at();
            if self.run.admit_at().is_some_and(|at| at <= self.context.now) {
                self.emit(Event::Admitted {});
                fired = true;
                continue;
            }
            let (at, step) = self.run.first_timer().unwrap_or((Timestamp::NEVER, 0));
            if at.min(expiry) > self.context.now {
                break;
            }
            if expiry <= at {
                match self.run.status() {
                    RunStatus::Cancelling => {
                        self.cancel_open_steps();
                        let (actor, reason) =
                            (self.run.state.cancelled_by.clone(), self.run.state.cancel_reason.clone());
                        self.emit(Event::RunCancelled { actor, reason });
                    }
                    _ => {
                        let end = EndAfterUndo { status: RunStatus::Timeout, ..Default::default() };
                        self.stop_and_end(end, false);
                    }
                }
                fired = true;
                break;
            }
            match self.fire_timer(step) {
                true => fired = true,
                // The step needs a payload first; other timers do not wait for it.
                false => stalled.extend(self.run.index.timers.take(&(at, step))),
            }
        }
        if self.is_open() {
            // The expiry of a run that undoes what it did has cancelled them.
            stalled.retain(|(_, step)| matches!(self.run.step(*step).phase, Phase::Retrying { .. }));
            self.run.index.timers.extend(stalled);
        }
        fired
    }

    /// False when the step needs a payload first.
    fn fire_timer(&mut self, step: u32) -> bool {
        if self.run.state.called_off.contains_key(&step) {
            self.give_up(step);
            return true;
        }
        let total_deadline = self.run.step(step).total_deadline(self.run.node(self.plan, step));
        if total_deadline.is_some_and(|at| at <= self.context.now) {
            self.end_timed_out(step, "total_timeout", "all attempts together took too long");
            return true;
        }
        match self.run.step(step).phase {
            Phase::Ready {} => self.end_timed_out(step, "queue_timeout", "no worker claimed it in time"),
            Phase::Leased { fence, .. } => self.attempt_timed_out(step, fence),
            Phase::Sleeping { .. } => self.emit(Event::Woken { step }),
            Phase::Waiting { .. } => self.end_wait(step),
            Phase::Retrying { .. } => return self.start_attempt(step, Vec::new()),
            // Only these phases have timers; a timer of another one would be a bug in `Step::due`.
            _ => debug_assert!(false, "a timer of a step that has none"),
        }
        true
    }

    fn cancel(&mut self, actor: String, reason: String, compensate: bool) -> Answer {
        // An earlier input of this advance may have ended the run. Then the cancellation is too late, exactly as
        // it would be in the next advance.
        if !self.events.is_empty() && self.is_open() {
            self.decide_all();
        }
        match self.run.status() {
            RunStatus::Cancelled | RunStatus::Cancelling => Answer::Repeated,
            RunStatus::Compensating => match self.run.state.compensating.as_ref().map(|end| end.status) {
                Some(RunStatus::Cancelled) => Answer::Repeated,
                _ => Answer::Ended(RunStatus::Compensating),
            },
            status if status.is_terminal() && !planted_bugs::is(Bug::TerminalOverwritten) => Answer::Ended(status),
            _ if compensate => {
                let status = RunStatus::Cancelled;
                let end = EndAfterUndo { status, actor, reason, undoes_children: true, ..Default::default() };
                self.stop_and_end(end, true);
                Answer::Applied
            }
            _ => {
                self.begin_cancelling(actor, reason);
                Answer::Applied
            }
        }
    }

    /// Ends the run, at once or when the children that end with it have.
    fn begin_cancelling(&mut self, actor: String, reason: String) {
        let children: Vec<u32> = self.open_children().collect();
        if children.is_empty() {
            self.cancel_open_steps();
            return self.emit(Event::RunCancelled { actor, reason });
        }
        self.emit(Event::RunCancelling { actor, reason });
        // These wait for their children, and with them the groups around them.
        let mut kept = BTreeSet::new();
        for step in children {
            self.open_child(step).into_iter().for_each(|child| self.close_child(child));
            kept.extend(std::iter::successors(Some(step), |step| self.run.parent(*step)));
        }
        let steps: Vec<u32> = self.run.steps().rev().map(|(step, _)| step).filter(|s| !kept.contains(s)).collect();
        self.cancel_begun(steps);
    }

    /// Cancels every step that has begun and aborts its attempt. Steps that never began end with the run, without
    /// an event each.
    fn cancel_open_steps(&mut self) {
        let inner = self.run.state.inner.keys().rev();
        let steps = inner.copied().chain(0..self.run.state.steps.len() as u32).collect();
        self.cancel_begun(steps);
    }

    /// The answer about a step that is not in the state: `settled` if it was there and has settled.
    fn answer_without_step(&self, step: u32, settled: Answer) -> Answer {
        match self.run.has_left(step) {
            true if self.is_closed() && settled == Answer::Stale => Answer::Ended(self.run.status()),
            true => settled,
            false => Answer::Unknown,
        }
    }

    /// An attempt that this advance itself started is simply not dispatched; an older one is aborted.
    /// Returns whether the attempt was dispatched.
    fn abort_attempt(&mut self, step: u32, fence: u64) -> bool {
        let unsent = |e: &Effect| match e {
            Effect::Execute { fence: f, .. } | Effect::LeaseTask { fence: f, .. } => *f == fence,
            _ => false,
        };
        // Only a grant of this advance can be among its effects.
        let is_new = fence > self.run.state.seq - self.events.len() as u64;
        match self.out.effects.iter().position(|effect| is_new && unsent(effect)) {
            Some(i) => {
                self.out.effects.remove(i);
                false
            }
            None => {
                let is_leased = self.fence(step) == Some(fence);
                // What a run waits for goes on in this process: its result says whether there is anything to undo.
                if is_leased || !self.run.awaits_called_off(self.plan) {
                    self.out.effects.push(Effect::Abort { step, fence, is_leased });
                }
                true
            }
        }
    }

    fn is_over_size(&self, payload: &Payload) -> bool {
        self.run.state.bytes.saturating_add(payload.len) > STATE_MAX
    }

    /// Moves a large payload out of the record into a row of its own. The caller must emit the event that carries
    /// it at once: only that event marks the payload's number as used.
    fn store_if_large(&mut self, mut payload: Payload) -> Payload {
        if payload.inline.len() > INLINE_MAX {
            self.store_as(&mut payload, self.run.state.payloads + 1);
        }
        payload
    }

    /// Moves a payload into a row with this number.
    fn store_as(&mut self, payload: &mut Payload, number: u32) {
        let bytes = std::mem::take(&mut payload.inline);
        self.fresh.insert(number, bytes.clone());
        self.out.payloads.push((number, bytes));
        payload.stored = Some(number);
    }

    /// An open run is running or waiting.
    fn update_run_status(&mut self) {
        let is_waiting = self.run.is_idle() && self.out.missing.is_empty();
        match self.run.status() {
            RunStatus::Pending | RunStatus::Cancelling | RunStatus::Compensating => {}
            RunStatus::Running if is_waiting => self.emit(Event::RunWaiting {}),
            RunStatus::Waiting if !is_waiting => self.emit(Event::RunResumed {}),
            _ => {}
        }
    }
}
