//! What one run may do, judged event by event by a model that shares no code with the kernel.
//!
//! It is naive on purpose: no index, no frontier, every rule looked up in the [`Shape`] again for each
//! event. It refuses what a correct run never does (I6–I9, I11, I19, I21, I28), asks the
//! [`oracle`](super::oracle) at the end what the whole run should have come to, and knows nothing of
//! stores, nodes or time but what the events say.

use super::condition::Facts;
use super::oracle::{self, StepOutcome, StepState};
use super::trigger::Trigger;
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::{ConcurrencyLimit, Step, StepKind, TestWorkflow, WorkerTask};
use engine::board::Task;
use engine::mailbox::Dispatch;
use kernel::advance::Work;
use kernel::event::{Because, Event, Failure, Gate, OnConflict, Queue};
use kernel::{RunStatus, Span, Timestamp};
use std::rc::Rc;

pub struct RunModel {
    shape: Rc<TestWorkflow>,
    /// A large one lies in the store, so a decision may wait for a read.
    trigger: Trigger,
    steps: Vec<StepModel>,
    status: Option<RunStatus>,
    expires_at: Timestamp,
    /// Nothing may start: it is paused, or its turn has not come.
    is_paused: bool,
    is_queued: bool,
    /// It waits for the time it was given.
    is_early: bool,
    /// Only its creation was seen.
    is_new: bool,
    /// Steps are being cancelled: only the run's end may follow.
    is_closing: bool,
}

/// What was seen of one step.
#[derive(Clone, Default)]
struct StepModel {
    phase: Phase,
    attempts: u32,
    charged: u32,
    code: Option<u16>,
    has_callback: bool,
    /// When a task became ready or was leased, and when it first was.
    since: Timestamp,
    ready_at: Option<Timestamp>,
    /// Workers that were silent until their lease ended.
    deaths: u32,
}

/// So many are enough.
const DEATHS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    #[default]
    Idle,
    /// It may start, but the process that would have started it starts nothing any more.
    Ready,
    Running,
    /// A worker has it.
    Leased,
    Retrying(Timestamp),
    Sleeping(Timestamp),
    Waiting(Timestamp),
    Done(&'static str),
}

impl RunModel {
    pub fn new(shape: Rc<TestWorkflow>, trigger: Trigger) -> RunModel {
        let steps = vec![StepModel::default(); shape.steps.len()];
        RunModel {
            shape,
            trigger,
            steps,
            status: None,
            expires_at: Timestamp::NEVER,
            is_paused: false,
            is_queued: false,
            is_early: false,
            is_new: false,
            is_closing: false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.status.is_some_and(|s| s.is_terminal())
    }

    /// Why nothing may start, if nothing may.
    fn hold(&self) -> Option<&'static str> {
        if self.is_paused {
            return Some("it is paused");
        }
        self.is_queued.then_some("its turn has not come")
    }

    /// When time alone moves the run on. In a run that may start nothing the time of a retry has no meaning.
    pub fn due(&self) -> Timestamp {
        let turn = self.trigger.run_at.filter(|_| self.is_early).unwrap_or(Timestamp::NEVER);
        let due = (0..self.steps.len()).filter_map(|i| self.step_due(i));
        due.fold(self.expires_at.min(turn), Timestamp::min)
    }

    fn step_due(&self, i: usize) -> Option<Timestamp> {
        let own = match self.steps[i].phase {
            Phase::Retrying(_) if self.hold().is_some() => return None,
            Phase::Retrying(at) | Phase::Sleeping(at) | Phase::Waiting(at) => Some(at),
            Phase::Ready => self.ends(i, |errand| errand.queue),
            Phase::Leased => self.ends(i, |errand| errand.attempt),
            Phase::Idle | Phase::Running | Phase::Done(_) => return None,
        };
        own.into_iter().chain(self.ends_for_good(i)).min()
    }

    /// When the limit on where a task stands now ends.
    fn ends(&self, i: usize, limit: fn(&WorkerTask) -> Option<Span>) -> Option<Timestamp> {
        Some(self.steps[i].since.after(limit(self.shape.steps[i].kind.errand()?)?))
    }

    /// When the limit on everything ends.
    fn ends_for_good(&self, i: usize) -> Option<Timestamp> {
        Some(self.steps[i].ready_at?.after(self.shape.steps[i].kind.errand()?.total?))
    }

    /// How many must be told of the end, if it has come.
    pub fn owes(&self, has_listener: bool) -> u32 {
        let has_failed = matches!(self.status, Some(RunStatus::Failed | RunStatus::Timeout));
        let told = self.shape.tells.iter().filter(|tell| has_failed || !tell.only_failures).count();
        if self.is_over() { told as u32 + u32::from(has_listener) } else { 0 }
    }

    /// Has the step's completion been recorded?
    pub fn is_done(&self, step: u32) -> bool {
        matches!(self.steps[step as usize].phase, Phase::Done(_))
    }

    /// I8, I35: could a step have had this many effects? A step that succeeded by an executor had one
    /// at least, and none has more than it had attempts.
    pub fn allows_effects(&self, step: u32, effects: u32) -> CheckResult {
        let (seen, step_shape) = (&self.steps[step as usize], &self.shape.steps[step as usize]);
        let is_task = step_shape.kind.errand().is_some();
        let is_owed = (is_task || step_shape.kind.is_executed()) && seen.phase == Phase::Done("success");
        ViolationKind::Lost.unless(!is_owed || effects > 0, || format!("s{step} succeeded without an effect"))?;
        let most = if step_shape.retry.never && !is_task { seen.attempts.min(1) } else { seen.attempts };
        ViolationKind::Duplicated
            .unless(effects <= most, || format!("s{step} had {effects} effects, {most} are allowed"))
    }

    /// Is this how a step of its kind can end?
    pub fn allows_ending(&self, step: u32) -> CheckResult {
        let Phase::Done(word) = self.steps[step as usize].phase else { return Ok(()) };
        let shape = &self.shape.steps[step as usize];
        let is_allowed = match (word, shape.kind) {
            ("skipped" | "cancelled", _) => true,
            ("template_error", kind) => kind == StepKind::Set { is_broken: true },
            ("success", kind) => kind != StepKind::Set { is_broken: true },
            ("failed", StepKind::Http(_) | StepKind::Task(_)) => true,
            // Nobody knows whether it was done, and it may be done only once.
            ("failed", StepKind::Noop) => shape.retry.never,
            ("timeout", StepKind::Task(WorkerTask { queue, attempt, total, .. })) => {
                queue.or(attempt).or(total).is_some()
            }
            ("timeout", kind) => matches!(kind, StepKind::Http(_) | StepKind::Wait(_)),
            _ => false,
        };
        require(is_allowed, || format!("s{step} is {:?} and ended as {word}", shape.kind))
    }

    /// T8: what a step sends is what its template says, filled once.
    pub fn explains(&self, dispatch: &Dispatch) -> CheckResult {
        let is_right = match self.shape.steps[dispatch.step as usize].kind {
            StepKind::Http(reads) => self.trigger.explains(reads, &dispatch.work),
            kind => kind.is_executed() && dispatch.work == Work::Noop,
        };
        require(is_right, || format!("s{} sends what nobody wrote: {:?}", dispatch.step, dispatch.work))
    }

    /// What a worker is given is what the task says, filled once.
    pub fn explains_task(&self, task: &Task) -> CheckResult {
        let Some(errand) = self.shape.steps[task.step as usize].kind.errand() else {
            return Err(format!("s{} is no task", task.step).into());
        };
        let is_right = errand.name == task.name && self.trigger.input(errand.reads) == task.input;
        require(is_right, || format!("a worker is given what nobody wrote: {task:?}"))
    }

    /// Takes one event in, or says why it cannot have happened.
    pub fn observe(&mut self, event: &Event, at: Timestamp) -> CheckResult {
        if self.is_over() {
            let is_note = matches!(event, Event::LateResult { .. });
            return ViolationKind::Duplicated.unless(is_note, || "something follows the end of the run".into());
        }
        require(self.status.is_some() == !matches!(event, Event::Created { .. }), || {
            "a run is created once, first".into()
        })?;
        let ends = matches!(event, Event::Cancelled { .. } | Event::RunCancelled { .. } | Event::RunTimeout {});
        require(!self.is_closing || ends, || "a step was cancelled and the run went on".into())?;
        let is_new = std::mem::take(&mut self.is_new);
        match event {
            Event::Created { origin } => {
                self.expires_at = origin.expires_at;
                self.status = Some(RunStatus::Running);
                self.is_new = true;
                self.comes_under(origin.gate.as_ref())
            }
            Event::Queued { reason } => {
                (self.is_queued, self.status) = (true, Some(RunStatus::Pending));
                self.is_early = *reason == Queue::Later;
                let may_wait = match reason {
                    Queue::Limit => self.shape.gate.is_some_and(|limit| limit.on_conflict != OnConflict::Skip),
                    Queue::WorkflowPaused => true,
                    Queue::Later => self.trigger.run_at.is_some_and(|run_at| run_at > at),
                };
                require(is_new && may_wait, || "it may not wait for a turn".into())
            }
            Event::Admitted {} => {
                let was_queued = std::mem::take(&mut self.is_queued);
                require(was_queued, || "its turn has come, and it did not wait for one".into())?;
                let is_time = !std::mem::take(&mut self.is_early) || self.trigger.run_at.is_some_and(|due| at >= due);
                ViolationKind::Early.unless(is_time, || "it is not to start yet".into())?;
                self.turn(RunStatus::Pending, RunStatus::Running)
            }
            Event::Paused { .. } => {
                let was_paused = std::mem::replace(&mut self.is_paused, true);
                require(!was_paused, || "it was paused twice".into())
            }
            Event::Unpaused { .. } => {
                let was_paused = std::mem::take(&mut self.is_paused);
                require(was_paused, || "it was resumed and not paused".into())
            }
            Event::RunWaiting {} => self.turn(RunStatus::Running, RunStatus::Waiting),
            Event::RunResumed {} => self.turn(RunStatus::Waiting, RunStatus::Running),
            Event::RunCompleted {} => self.end(RunStatus::Completed),
            Event::RunFailed { .. } => self.end(RunStatus::Failed),
            Event::RunCancelled { actor, reason } => {
                self.status = Some(RunStatus::Cancelled);
                let policy = self.shape.gate.map(|limit| limit.on_conflict);
                let is_explained = match reason.as_str() {
                    _ if actor != "onward" => true,
                    "concurrency_limit" => (is_new || self.is_queued) && policy == Some(OnConflict::Skip),
                    // By a later edition, perhaps; whether there is one is for the crowd to say.
                    "superseded" => policy.is_some(),
                    _ => false,
                };
                require(is_explained, || format!("it was cancelled by {actor}: {reason}"))
            }
            Event::RunTimeout {} => {
                self.status = Some(RunStatus::Timeout);
                ViolationKind::Early.unless(at >= self.expires_at, || "the run expired early".into())
            }
            _ => match event.step() {
                Some(step) if (step as usize) < self.steps.len() => self.observe_step(step as usize, event, at),
                step => Err(format!("step {step:?} is not of this plan").into()),
            },
        }
    }

    /// What must hold between two records.
    pub fn rest(&self) -> CheckResult {
        if self.is_over() {
            return Ok(());
        }
        let is_held = self.hold().is_some();
        let is_active =
            |s: &StepModel| matches!(s.phase, Phase::Running | Phase::Leased) || s.phase == Phase::Ready && !is_held;
        let is_running = self.steps.iter().any(is_active);
        let is_undecided = |i: &usize| !is_held && self.steps[*i].phase == Phase::Idle && self.needs_settled(*i);
        let undecided = (0..self.steps.len()).find(is_undecided);
        if let (Some(step), false) = (undecided, self.trigger.is_large) {
            return Err(format!("s{step} could be decided and was not").into());
        }
        if self.is_queued {
            return require(self.status == Some(RunStatus::Pending), || format!("{:?} while queued", self.status));
        }
        let is_waiting = !is_running && undecided.is_none();
        let agrees = is_waiting == (self.status == Some(RunStatus::Waiting)) || self.trigger.is_large && !is_running;
        require(agrees, || format!("the run is {:?} with a step running: {is_running}", self.status))
    }

    fn turn(&mut self, from: RunStatus, to: RunStatus) -> CheckResult {
        let was = self.status.replace(to);
        require(was == Some(from), || format!("from {was:?} to {to}"))
    }

    fn end(&mut self, status: RunStatus) -> CheckResult {
        self.status = Some(status);
        require(self.steps.iter().all(|s| matches!(s.phase, Phase::Done(_))), || {
            "the run ended before its steps".into()
        })?;
        let standings = self.prediction();
        for (i, standing) in standings.iter().enumerate() {
            let word = match standing {
                StepState::Settled(ending) => ending.word,
                StepState::Skipped(_) => "skipped",
                StepState::Blocked | StepState::Ready => "open",
            };
            require(word == self.word(i), || format!("s{i} ended as {}, the oracle says {word}", self.word(i)))?;
        }
        let expected =
            if oracle::has_failed(&self.shape, &standings) { RunStatus::Failed } else { RunStatus::Completed };
        require(status == expected, || format!("the run ended as {status}, its steps add up to {expected}"))
    }

    fn observe_step(&mut self, i: usize, event: &Event, at: Timestamp) -> CheckResult {
        let shape = self.shape.clone();
        let Step { kind, retry, .. } = &shape.steps[i];
        if let StepKind::Task(errand) = kind {
            return self.observe_task(i, errand, event, at);
        }
        let phase = self.steps[i].phase;
        let matches_attempt = event.attempt().is_none_or(|a| a == self.steps[i].attempts);
        let is_running = phase == Phase::Running && matches_attempt;
        let illegal = || format!("{} for s{i}, which is {phase:?}", event.name().unwrap_or("?"));
        match event {
            Event::Scheduled { attempt, .. } => {
                self.may_try(i, at)?;
                self.steps[i].phase = Phase::Ready;
                require(kind.is_executed() && *attempt == self.steps[i].attempts + 1, illegal)
            }
            Event::RetryDue { .. } => {
                self.may_start(i)?;
                self.steps[i].phase = Phase::Retrying(at);
                require(matches!(phase, Phase::Retrying(_)), illegal)
            }
            Event::Started { attempt, .. } => {
                match phase {
                    Phase::Ready => self.may_start(i)?,
                    _ => self.may_try(i, at)?,
                }
                require(kind.is_executed(), illegal)?;
                let seen = &mut self.steps[i];
                (seen.attempts, seen.charged, seen.phase) = (seen.attempts + 1, seen.charged + 1, Phase::Running);
                require(*attempt == seen.attempts, || format!("s{i}: attempt {attempt} is number {}", seen.attempts))?;
                let most = if retry.never { 1 } else { retry.max_attempts };
                require(seen.charged <= most, || format!("s{i}: attempt {} of {most}", seen.charged))
            }
            Event::Retrying { next, charged, failure, .. } => {
                // What was held back never happened, so it may happen later.
                let is_allowed = !retry.never || (!charged && failure.code == "host_backoff");
                require(is_running && is_allowed && *next >= at, illegal)?;
                self.steps[i].charged -= u32::from(!charged);
                self.steps[i].phase = Phase::Retrying(*next);
                Ok(())
            }
            Event::Succeeded { response, .. } => {
                match kind {
                    StepKind::Set { is_broken: false } => self.may_begin(i)?,
                    _ => require(is_running, illegal)?,
                }
                self.steps[i].code = response.status_code;
                self.done(i, "success")
            }
            Event::Failed { failure: Failure { code, .. }, response, .. } => {
                match kind {
                    StepKind::Set { is_broken: true } => self.may_begin(i)?,
                    _ => require(is_running && code != "template_error", illegal)?,
                }
                self.steps[i].code = response.as_ref().and_then(|r| r.status_code);
                self.done(i, if code == "template_error" { "template_error" } else { "failed" })
            }
            Event::TimedOut { .. } => {
                match phase {
                    Phase::Waiting(deadline) => {
                        ViolationKind::Early.unless(at >= deadline, || format!("s{i} timed out early"))?
                    }
                    _ => require(is_running, illegal)?,
                }
                self.done(i, "timeout")
            }
            Event::Skipped { because, .. } => self.skipped(i, because),
            Event::Cancelled { .. } => {
                require(!matches!(phase, Phase::Idle | Phase::Done(_)), illegal)?;
                self.is_closing = true;
                self.done(i, "cancelled")
            }
            Event::TimerSet { at: until, .. } => {
                let StepKind::Sleep(span) = kind else { return Err(illegal().into()) };
                self.may_begin(i)?;
                self.steps[i].phase = Phase::Sleeping(*until);
                require(*until == at.after(*span), || format!("s{i} sleeps until {until:?}"))
            }
            Event::Woken { .. } => {
                let Phase::Sleeping(until) = phase else { return Err(illegal().into()) };
                ViolationKind::Early.unless(at >= until, || format!("s{i} woke early"))?;
                self.done(i, "success")
            }
            Event::WaitOpened { deadline, .. } => {
                let StepKind::Wait(timeout) = kind else { return Err(illegal().into()) };
                self.may_begin(i)?;
                self.steps[i].phase = Phase::Waiting(*deadline);
                let is_right = *deadline == timeout.map_or(self.expires_at, |t| at.after(t));
                require(is_right && !self.steps[i].has_callback, illegal)
            }
            Event::WaitClosed { .. } => {
                let is_early = phase == Phase::Idle && matches!(kind, StepKind::Wait(_)) && !self.steps[i].has_callback;
                self.steps[i].has_callback = true;
                require(is_early, illegal)
            }
            Event::Received { callback, .. } => {
                match (callback, phase) {
                    (Some(_), Phase::Waiting(deadline)) => require(at < deadline, illegal)?,
                    (None, Phase::Idle) if self.steps[i].has_callback => self.may_begin(i)?,
                    _ => return Err(illegal().into()),
                }
                self.done(i, "success")
            }
            _ => Err(illegal().into()),
        }
    }

    /// The same for a step that is done outside.
    fn observe_task(&mut self, i: usize, errand: &WorkerTask, event: &Event, at: Timestamp) -> CheckResult {
        let shape = self.shape.clone();
        let retry = &shape.steps[i].retry;
        let phase = self.steps[i].phase;
        let seen = &self.steps[i];
        let is_leased = phase == Phase::Leased && event.attempt().is_none_or(|a| a == seen.attempts);
        let illegal = || format!("{} for s{i}, which is {phase:?}", event.name().unwrap_or("?"));
        let most = if retry.never { 1 } else { retry.max_attempts };
        let (deaths, has_more) = (seen.deaths, !retry.never && seen.charged < most);
        let has_ended = |due: Option<Timestamp>| due.is_some_and(|due| at >= due);
        let attempt_is_over = phase == Phase::Leased && has_ended(self.ends(i, |errand| errand.attempt));
        let queue_is_over = phase == Phase::Ready && has_ended(self.ends(i, |errand| errand.queue));
        let all_is_over = has_ended(self.ends_for_good(i));
        let in_time = || {
            let is_in_time = !(attempt_is_over || queue_is_over || all_is_over);
            ViolationKind::Duplicated
                .unless(is_in_time, || format!("s{i}: {} after its limit", event.name().unwrap_or("?")))
        };
        match event {
            Event::Scheduled { attempt, key, .. } => {
                in_time()?;
                self.may_try(i, at)?;
                self.shares_limits(i, errand, key)?;
                require(*attempt == self.steps[i].attempts + 1, illegal)?;
                self.stand(i, Phase::Ready, at)
            }
            Event::Leased { attempt, lease, key, .. } => {
                in_time()?;
                match phase {
                    Phase::Ready => self.may_start(i)?,
                    _ => self.may_try(i, at)?,
                }
                self.shares_limits(i, errand, key)?;
                require(errand.heartbeat.is_none_or(|most| *lease <= most), || format!("s{i} is leased for {lease}"))?;
                let seen = &mut self.steps[i];
                (seen.attempts, seen.charged) = (seen.attempts + 1, seen.charged + 1);
                require(*attempt == seen.attempts, || format!("s{i}: attempt {attempt} is number {}", seen.attempts))?;
                require(seen.charged <= most, || format!("s{i}: attempt {} of {most}", seen.charged))?;
                self.stand(i, Phase::Leased, at)
            }
            Event::RetryDue { .. } => {
                self.may_start(i)?;
                self.steps[i].phase = Phase::Retrying(at);
                require(matches!(phase, Phase::Retrying(_)), illegal)
            }
            Event::Retrying { next, charged, died, failure, digest, .. } => {
                require(is_leased && *next >= at, illegal)?;
                match (died, failure.code.as_str()) {
                    (true, "lease_lost") => require(*next == at && has_more && deaths + 1 < DEATHS_MAX, illegal)?,
                    (false, "timeout") => require(*charged && has_more && attempt_is_over, illegal)?,
                    (false, "snoozed" | "not_delivered") => require(!charged && *digest > 0, illegal)?,
                    (false, "worker") => require(*charged && has_more && *digest > 0, illegal)?,
                    _ => return Err(illegal().into()),
                }
                if *digest > 0 {
                    in_time()?;
                }
                let seen = &mut self.steps[i];
                seen.charged -= u32::from(!charged);
                seen.deaths += u32::from(*died);
                seen.phase = Phase::Retrying(*next);
                Ok(())
            }
            Event::Progress { .. } | Event::Kept { .. } => {
                in_time()?;
                require(is_leased, illegal)
            }
            Event::Succeeded { digest, .. } => {
                in_time()?;
                require(is_leased && *digest > 0, illegal)?;
                self.done(i, "success")
            }
            Event::Failed { failure: Failure { code, message, .. }, digest, .. } => {
                let is_final = message.contains("\"final\":true");
                let is_right = match code.as_str() {
                    "worker" => *digest > 0 && (is_final || !has_more),
                    "quarantined" => deaths + 1 == DEATHS_MAX && !retry.never,
                    "lease_lost" => !has_more && deaths + 1 < DEATHS_MAX && !retry.never,
                    "outcome_unknown" => retry.never,
                    _ => false,
                };
                if *digest > 0 {
                    in_time()?;
                }
                require(is_leased && is_right, || format!("{}: {code} {message}", illegal()))?;
                self.done(i, "failed")
            }
            Event::TimedOut { failure, .. } => {
                let is_time = match failure.code.as_str() {
                    "total_timeout" => all_is_over,
                    "queue_timeout" => queue_is_over,
                    "timeout" => attempt_is_over && !has_more,
                    _ => false,
                };
                ViolationKind::Early.unless(is_time, || format!("{}: {}", illegal(), failure.code))?;
                self.done(i, "timeout")
            }
            Event::Skipped { because, .. } => self.skipped(i, because),
            Event::Cancelled { .. } => {
                require(!matches!(phase, Phase::Idle | Phase::Done(_)), illegal)?;
                self.is_closing = true;
                self.done(i, "cancelled")
            }
            _ => Err(illegal().into()),
        }
    }

    fn stand(&mut self, i: usize, phase: Phase, at: Timestamp) -> CheckResult {
        let seen = &mut self.steps[i];
        (seen.phase, seen.since) = (phase, at);
        seen.ready_at.get_or_insert(at);
        Ok(())
    }

    fn shares_limits(&self, i: usize, errand: &WorkerTask, key: &str) -> CheckResult {
        let written = if errand.is_laned { format!("lane-{}", self.trigger.lane) } else { self.trigger.key.into() };
        require(key == written, || format!("s{i} shares limits with {key:?}, {written:?} was written"))
    }

    fn done(&mut self, i: usize, word: &'static str) -> CheckResult {
        self.steps[i].phase = Phase::Done(word);
        Ok(())
    }

    fn skipped(&mut self, i: usize, because: &Because) -> CheckResult {
        let step = &self.shape.steps[i];
        require(self.steps[i].phase == Phase::Idle && self.needs_settled(i), || format!("s{i} is skipped too soon"))?;
        self.may_start(i)?;
        let dead = self.dead(i);
        let is_right = match because {
            Because::Needs { steps } => {
                !dead.is_empty() && steps.len() == dead.len() && dead.iter().all(|d| steps.contains(d))
            }
            Because::Condition { .. } => dead.is_empty() && step.guard.as_ref().is_some_and(|g| !g.holds(self)),
            Because::Unknown { .. } => false,
        };
        require(is_right, || format!("s{i} is skipped because {because:?}; the model has {dead:?}"))?;
        self.done(i, "skipped")
    }

    /// The limit it comes under is the one that was written.
    fn comes_under(&self, gate: Option<&Gate>) -> CheckResult {
        let seen = gate.map(|g| (g.key.clone(), ConcurrencyLimit { most: g.limit, on_conflict: g.on_conflict }));
        let written = self.shape.gate.map(|limit| (format!("lane-{}", self.trigger.lane), limit));
        require(seen == written, || format!("it comes under {seen:?}, {written:?} was written"))
    }

    /// Nothing starts in a run that is held back.
    fn may_start(&self, i: usize) -> CheckResult {
        ViolationKind::Early
            .unless(self.hold().is_none(), || format!("s{i} goes on although {}", self.hold().unwrap_or("?")))
    }

    /// The next attempt, or the first.
    fn may_try(&self, i: usize, at: Timestamp) -> CheckResult {
        match self.steps[i].phase {
            Phase::Retrying(due) => {
                self.may_start(i)?;
                ViolationKind::Early.unless(at >= due, || format!("s{i} is tried again early"))
            }
            _ => self.may_begin(i),
        }
    }

    fn may_begin(&self, i: usize) -> CheckResult {
        self.may_start(i)?;
        let guard = &self.shape.steps[i].guard;
        require(self.steps[i].phase == Phase::Idle, || format!("s{i} begins and is {:?}", self.steps[i].phase))?;
        require(self.needs_settled(i), || format!("s{i} begins before its needs have settled"))?;
        require(self.dead(i).is_empty(), || format!("s{i} begins although its needs failed"))?;
        require(guard.as_ref().is_none_or(|g| g.holds(self)), || format!("s{i} begins against its condition"))
    }

    fn needs_settled(&self, i: usize) -> bool {
        self.shape.steps[i].needs.iter().all(|n| matches!(self.steps[*n].phase, Phase::Done(_)))
    }

    /// Needs whose links are not taken. A step with a condition listens to every outcome.
    fn dead(&self, i: usize) -> Vec<u32> {
        let step = &self.shape.steps[i];
        let is_dead = |n: &&usize| step.guard.is_none() && self.word(**n) != "success";
        step.needs.iter().filter(is_dead).map(|n| *n as u32).collect()
    }

    /// What the oracle makes of the answers that were recorded.
    fn prediction(&self) -> Vec<StepState> {
        let ending = |(i, seen): (usize, &StepModel)| match (seen.phase, self.shape.steps[i].kind) {
            (Phase::Done(word), kind) if word != "skipped" && !matches!(kind, StepKind::Set { .. }) => {
                Some(StepOutcome { word, code: seen.code })
            }
            _ => None,
        };
        let endings: Vec<Option<StepOutcome>> = self.steps.iter().enumerate().map(ending).collect();
        oracle::evaluate(&self.shape, self.trigger.flag, &endings)
    }
}

impl Facts for RunModel {
    fn word(&self, step: usize) -> &'static str {
        match self.steps[step].phase {
            Phase::Done(word) => word,
            _ => "open",
        }
    }
    fn code(&self, step: usize) -> Option<u16> {
        self.steps[step].code
    }
    fn flag(&self) -> bool {
        self.trigger.flag
    }
}
