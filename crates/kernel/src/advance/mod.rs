//! The rules: what happens next.
//!
//! [`advance`] takes every input waiting for a run at once and answers with one record. Order inside
//! an advance is fixed: timers that are due go off (so an input that arrives at a deadline is late),
//! the inputs are applied in the order they came, then everything that became decidable is decided
//! until nothing is. It is bounded by the number of steps, and advancing an unchanged run yields
//! nothing.
//!
//! A planner for scripts will fit beside `start` and `verdict`: same events, same moves, another way of
//! finding what is next.

mod concurrency_and_notifications;
mod results;
mod start;
mod tasks;
mod verdict;
mod view;

#[cfg(test)]
mod tests;

pub use concurrency_and_notifications::{concurrency_group, notifications};
pub use results::{TaskResult, is_expected};
pub use start::{Request, Work};
pub use verdict::failed_steps;
pub use view::View;

use crate::event::{Callback, Event, Failure, Line, Origin, Queue, Record};
use crate::id::RunId;
use crate::payload::{INLINE_MAX, Payload, Payloads};
use crate::plan::Plan;
use crate::planted_bugs::{self, Bug};
use crate::run::{Phase, Run};
use crate::status::RunStatus;
use crate::time::{Span, Timestamp};
use bytes::Bytes;

/// All payloads of a run together may not exceed this.
pub const STATE_MAX: u64 = 16 * 1024 * 1024;

/// What arrives at a run.
#[derive(Clone, Debug)]
pub enum Input {
    /// Creates it.
    Start(Box<Origin>, Admission),
    /// The turn of a queued run has come.
    Admit,
    /// Nothing new is to start, until somebody says `Resume`.
    Pause {
        actor: String,
        note: String,
    },
    Resume {
        actor: String,
    },
    /// Steps that wait for their next attempt (or this one) need not wait any longer.
    RetryNow {
        step: Option<u32>,
        actor: String,
    },
    /// The executor that holds `fence` says how an attempt ended. What a worker outside says has a digest, so
    /// that it may say it twice.
    Finished {
        step: u32,
        fence: u64,
        result: TaskResult,
        digest: u64,
    },
    /// A worker outside would do this step.
    Claim {
        step: u32,
        offer: Offer,
    },
    /// The worker that holds `fence` is alive, and perhaps says how far it is.
    Heartbeat {
        step: u32,
        fence: u64,
        progress: Option<Payload>,
    },
    /// The worker that holds `fence` wants this to be read.
    Log {
        step: u32,
        fence: u64,
        lines: Vec<Line>,
    },
    /// The executor that held `fence` is gone without a word.
    Lost {
        step: u32,
        fence: u64,
    },
    /// Somebody called a step's callback URL.
    Callback {
        step: u32,
        body: Payload,
        digest: Bytes,
    },
    Cancel {
        actor: String,
        reason: String,
    },
    /// Time has passed, or a payload that was missing is here.
    Wake,
}

/// A worker's readiness to do something: who, for how long at most, and the caller's mark for the place it
/// was offered at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    pub worker: String,
    pub lease: Span,
    pub offer_id: u64,
    /// What it takes up of the limits of its type and of its key, see [`Event::Leased`].
    pub slot: u32,
    pub key_slot: u32,
}

/// A task that has just become ready, as somebody who may know a worker for it sees it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub step: u32,
    pub name: &'a str,
    pub key: &'a str,
    pub priority: u32,
}

/// Is there room for a new run?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    #[default]
    Open,
    /// It waits for its turn.
    Queue(Queue),
    /// It is not to run at all.
    Refuse,
}

/// What an input came to. Released only once the record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Applied,
    /// It had been applied before; nothing changed.
    Repeated,
    /// Another payload was accepted before.
    Conflict,
    /// The door is closed: timed out, skipped, cancelled, or the run is over.
    Gone,
    /// The fence is not the current one, or somebody else has it.
    Stale,
    /// Not before a payload is fetched.
    Later,
    /// The run had ended with this status.
    Ended(RunStatus),
    /// It would exceed the run's total size.
    TooLarge,
    /// There is nothing there to apply it to.
    Unknown,
}

/// What must be done once the record is durable. Timers, rows and notifications follow from the run.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Do this work and bring back an [`Input::Finished`] with this fence.
    Execute { step: u32, attempt: u32, fence: u64, work: Work },
    /// Nobody wants the result any more.
    Abort { step: u32, fence: u64 },
    /// The worker whose offer was at `offer_id` has this step.
    LeaseTask { step: u32, attempt: u32, fence: u64, offer_id: u64, task: Box<Assignment> },
    /// A worker may claim this step now…
    Enqueue { step: u32 },
    /// …and now no longer, because somebody has it or nobody needs to.
    Dequeue { step: u32 },
    /// The holder of `fence` has the step no longer.
    LeaseEnded { step: u32, fence: u64 },
    /// This node hears of a worker whose lease another had.
    AdoptLease,
}

/// What a worker is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assignment {
    /// The task's type.
    pub name: String,
    /// What it shares limits with.
    pub key: String,
    pub worker: String,
    pub lease: Span,
    /// JSON.
    pub input: Bytes,
    pub max_attempts: u32,
    /// What an earlier attempt saved.
    pub progress: Option<Bytes>,
}

/// What a decision may look at besides plan, run and inputs.
pub struct Context<'a> {
    pub run: RunId,
    pub now: Timestamp,
    /// The process that will execute what is started.
    pub epoch: u64,
    /// That process starts nothing any more: what becomes ready waits for the next one.
    pub is_draining: bool,
    /// The callback URL of a wait step.
    pub wait_url: &'a dyn Fn(&str) -> String,
    /// Stored payloads that were fetched for this advance.
    pub payloads: &'a Payloads,
    /// Does a worker wait for such a task?
    pub offer: &'a dyn Fn(Wanted<'_>) -> Option<Offer>,
}

#[derive(Debug, Default)]
pub struct Advance {
    /// `None` when nothing happened.
    pub record: Option<Record>,
    pub effects: Vec<Effect>,
    /// One for each input, in order.
    pub answers: Vec<Answer>,
    /// Payloads to be stored beside the record.
    pub payloads: Vec<(u32, Bytes)>,
    /// Stored payloads that decisions are waiting for: fetch them and advance again.
    pub missing: Vec<u32>,
}

/// Applies `inputs` and decides what follows. `run` is changed in place and is then ahead of the
/// journal: when the record cannot be committed, throw it away and load it again.
pub fn advance(plan: &Plan, run: &mut Run, inputs: Vec<Input>, context: &Context<'_>) -> Advance {
    let first = run.state.seq + 1;
    let mut turn =
        AdvanceState { plan, run, context, events: Vec::new(), out: Advance::default(), fresh: Payloads::new() };
    turn.fire_due();
    for input in inputs {
        let answer = turn.input(input);
        turn.out.answers.push(answer);
    }
    turn.settle_down();
    let AdvanceState { events, mut out, .. } = turn;
    if !events.is_empty() {
        out.record = Some(Record { at: context.now, first, events, ..Default::default() });
    }
    out
}

/// One advance in progress.
struct AdvanceState<'a> {
    plan: &'a Plan,
    run: &'a mut Run,
    context: &'a Context<'a>,
    events: Vec<Event>,
    out: Advance,
    /// Payloads that arrived in this advance and are too large to stay in memory.
    fresh: Payloads,
}

impl AdvanceState<'_> {
    fn emit(&mut self, event: Event) {
        let step = event.step();
        let was = step.is_some_and(|step| self.is_claimable(step));
        let held = step.and_then(|step| self.fence(step));
        let is_turning = matches!(event, Event::Paused { .. } | Event::Unpaused { .. } | Event::Admitted {});
        if is_turning {
            self.out.effects.extend(self.run.claimable(self.plan).map(|step| Effect::Dequeue { step }));
        }
        let applied = self.run.apply(self.plan, &event, self.context.now);
        debug_assert!(applied.is_ok(), "the kernel understands what it says: {applied:?}");
        if is_turning {
            self.out.effects.extend(self.run.claimable(self.plan).map(|step| Effect::Enqueue { step }));
        }
        if let Some(step) = step {
            match (was, self.is_claimable(step)) {
                (false, true) => self.out.effects.push(Effect::Enqueue { step }),
                (true, false) => self.out.effects.push(Effect::Dequeue { step }),
                _ => {}
            }
            if let Some(fence) = held.filter(|fence| self.fence(step) != Some(*fence)) {
                self.out.effects.push(Effect::LeaseEnded { step, fence });
            }
        }
        self.events.push(event);
    }

    /// Of the lease a step is under.
    fn fence(&self, step: u32) -> Option<u64> {
        match self.run.state.steps.get(step as usize)?.phase {
            Phase::Leased { fence, .. } => Some(fence),
            _ => None,
        }
    }

    fn is_claimable(&self, step: u32) -> bool {
        let ready = self.run.state.steps.get(step as usize).is_some_and(|s| matches!(s.phase, Phase::Ready {}));
        ready && self.is_open() && !self.run.is_held() && self.plan.node(step).task().is_some()
    }

    fn is_open(&self) -> bool {
        self.run.state.seq > 0 && !self.run.is_terminal()
    }

    fn input(&mut self, input: Input) -> Answer {
        match input {
            Input::Start(origin, admission) => self.create(origin, admission),
            Input::Wake => Answer::Applied,
            _ if self.run.state.seq == 0 => Answer::Unknown,
            Input::Finished { step, fence, result, digest } => self.finished(step, fence, result, digest),
            Input::Claim { step, offer } => self.claim(step, offer),
            Input::Heartbeat { step, fence, progress } => self.heartbeat(step, fence, progress),
            Input::Log { step, fence, lines } => self.log(step, fence, lines),
            Input::Lost { step, fence } => self.lost(step, fence),
            Input::Callback { step, body, digest } => self.callback(step, body, digest),
            Input::Cancel { actor, reason } => self.cancel(actor, reason),
            Input::Admit | Input::Pause { .. } | Input::Resume { .. } | Input::RetryNow { .. }
                if self.run.is_terminal() =>
            {
                Answer::Ended(self.run.status())
            }
            Input::Admit => match self.run.state.queued {
                Some(Queue::Limit | Queue::WorkflowPaused) => self.applied(Event::Admitted {}),
                // Only time brings the turn of one that waits for it.
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

    fn create(&mut self, mut origin: Box<Origin>, admission: Admission) -> Answer {
        if self.run.state.seq > 0 {
            return Answer::Repeated;
        }
        let begins = origin.run_at.map_or(self.context.now, |at| at.max(self.context.now));
        origin.expires_at = begins.after(self.plan.layout().max_duration);
        origin.body = self.keep(origin.body);
        self.emit(Event::Created { origin });
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

    /// Makes retries due now. `Unknown` when nothing waits for one, or the run may start nothing.
    fn retry_now(&mut self, step: Option<u32>, actor: &str) -> Answer {
        let retries = |s: &u32| matches!(self.run.step(*s).phase, Phase::Retrying { .. });
        let asked = 0..self.run.state.steps.len() as u32;
        let steps: Vec<u32> = asked.filter(|s| step.is_none_or(|only| only == *s)).filter(retries).collect();
        if steps.is_empty() || self.run.is_held() {
            return Answer::Unknown;
        }
        for step in steps {
            self.emit(Event::RetryDue { step, actor: actor.to_owned() });
        }
        Answer::Applied
    }

    /// Decides and fires until nothing more follows at this instant.
    fn settle_down(&mut self) {
        loop {
            self.decide_frontier();
            self.start_ready();
            if !self.fire_due() {
                break;
            }
        }
        if self.run.is_held() {
            // What may not start needs nothing.
            self.out.missing.clear();
        }
        if self.is_open() {
            self.conclude();
        }
    }

    /// Timers due by now go off, earliest first; answers whether any did.
    fn fire_due(&mut self) -> bool {
        let mut fired = false;
        let mut stalled = Vec::new();
        while self.is_open() {
            let expiry = self.run.state.origin.expires_at;
            if self.run.turn_at().is_some_and(|at| at <= self.context.now) {
                self.emit(Event::Admitted {});
                fired = true;
                continue;
            }
            let (at, step) = self.run.first_timer(&stalled).unwrap_or((Timestamp::NEVER, 0));
            if at.min(expiry) > self.context.now {
                break;
            }
            if expiry <= at {
                self.close_open_steps();
                self.emit(Event::RunTimeout {});
                fired = true;
                break;
            }
            match self.fire(step) {
                true => fired = true,
                // Its payload is being fetched; the others do not wait for it.
                false => stalled.push(step),
            }
        }
        fired
    }

    /// False when the step cannot go on before a payload is fetched.
    fn fire(&mut self, step: u32) -> bool {
        let given_up_at = self.run.step(step).given_up_at(self.plan.node(step));
        if given_up_at.is_some_and(|at| at <= self.context.now) {
            self.give_up(step, "total_timeout", "all attempts together took too long");
            return true;
        }
        match self.run.step(step).phase {
            Phase::Ready {} => self.give_up(step, "queue_timeout", "no worker claimed it in time"),
            Phase::Leased { fence, .. } => self.overrun(step, fence),
            Phase::Sleeping { .. } => self.emit(Event::Woken { step }),
            Phase::Waiting { .. } => {
                let failure = Failure::new("wait_timeout", "nobody called before the deadline");
                let attempt = self.run.step(step).attempt;
                self.emit(Event::TimedOut { step, attempt, failure, took: Default::default() });
            }
            Phase::Retrying { .. } => return self.hand_out(step, Vec::new()),
            // Only these have timers; a timer of another phase would be a bug in `Step::due`.
            _ => debug_assert!(false, "a timer of a step that has none"),
        }
        true
    }

    fn callback(&mut self, step: u32, body: Payload, digest: Bytes) -> Answer {
        if step as usize >= self.run.state.steps.len() {
            return Answer::Unknown;
        }
        let state = self.run.step(step);
        if let Some(earlier) = &state.callback {
            return match earlier.digest == digest {
                true => Answer::Repeated,
                false if self.run.is_terminal() => Answer::Gone,
                false => Answer::Conflict,
            };
        }
        let early = match state.phase {
            Phase::Waiting { .. } => false,
            Phase::Pending {} => true,
            _ => return Answer::Gone,
        };
        if self.is_over_size(&body) {
            return Answer::TooLarge;
        }
        if early && planted_bugs::is(Bug::EarlyCallbackDropped) {
            return Answer::Applied;
        }
        let callback = Callback { body: self.keep(body), digest, ..Default::default() };
        match early {
            true => self.emit(Event::WaitClosed { step, callback }),
            false => self.emit(Event::Received { step, callback: Some(callback) }),
        }
        Answer::Applied
    }

    fn cancel(&mut self, actor: String, reason: String) -> Answer {
        // What came right before it may have been the end: then it is too late, as it would be a moment later.
        if !self.events.is_empty() && self.is_open() {
            self.settle_down();
        }
        match self.run.status() {
            RunStatus::Cancelled => Answer::Repeated,
            status if status.is_terminal() && !planted_bugs::is(Bug::TerminalOverwritten) => Answer::Ended(status),
            _ => {
                self.close_open_steps();
                self.emit(Event::RunCancelled { actor, reason });
                Answer::Applied
            }
        }
    }

    /// Says of every step that was under way that it is cancelled, and calls its executor off. Steps
    /// that never began end with the run, without a line each.
    fn close_open_steps(&mut self) {
        for step in 0..self.run.state.steps.len() as u32 {
            match self.run.step(step).phase {
                Phase::Pending {} | Phase::Done { .. } | Phase::Unknown { .. } => continue,
                Phase::Running { fence, .. } | Phase::Leased { fence, .. } => self.call_off(step, fence),
                Phase::Ready {} | Phase::Retrying { .. } | Phase::Sleeping { .. } | Phase::Waiting { .. } => {}
            }
            self.emit(Event::Cancelled { step });
        }
    }

    /// What this advance itself started is simply not dispatched; an older attempt is called off.
    fn call_off(&mut self, step: u32, fence: u64) {
        let unsent = |e: &Effect| match e {
            Effect::Execute { fence: f, .. } | Effect::LeaseTask { fence: f, .. } => *f == fence,
            _ => false,
        };
        match self.out.effects.iter().position(unsent) {
            Some(i) => drop(self.out.effects.remove(i)),
            None => self.out.effects.push(Effect::Abort { step, fence }),
        }
    }

    fn is_over_size(&self, payload: &Payload) -> bool {
        self.run.state.bytes.saturating_add(payload.len) > STATE_MAX
    }

    /// Moves a large payload out of the record into a row of its own. The event that carries it must
    /// follow at once: its number counts as given only then.
    fn keep(&mut self, mut payload: Payload) -> Payload {
        if payload.inline.len() > INLINE_MAX {
            let bytes = std::mem::take(&mut payload.inline);
            let number = self.run.state.payloads + 1;
            self.fresh.insert(number, bytes.clone());
            self.out.payloads.push((number, bytes));
            payload.stored = Some(number);
        }
        payload
    }

    /// When everything has settled the run ends; until then it is running or waiting.
    fn conclude(&mut self) {
        if self.run.is_settled() {
            let end = verdict::verdict(self.plan, self.run);
            return self.emit(end);
        }
        let is_waiting = self.run.is_idle() && self.out.missing.is_empty();
        match self.run.status() {
            RunStatus::Pending => {}
            RunStatus::Running if is_waiting => self.emit(Event::RunWaiting {}),
            RunStatus::Waiting if !is_waiting => self.emit(Event::RunResumed {}),
            _ => {}
        }
    }
}
