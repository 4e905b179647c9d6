//! A run: the state that its events add up to.
//!
//! [`State`] is the fold of the journal; snapshots store it. [`Run`] adds an index, derived from the state and the
//! plan, so that the cost of an advance depends on what changed and not on the size of the run. Only [`Run::apply`]
//! changes a run.
//!
//! ```text
//!   Pending ─▶ Ready ─▶ Running, Leased ─▶ Done          Sleeping, Waiting ─▶ Done
//!                ▲        │ failed, lost
//!                └─────── Retrying
//! ```

use crate::event::{Because, Callback, Event, Failure, Origin, Queue, Record, Response};
use crate::expr::Seen;
use crate::payload::Payload;
use crate::plan::{Node, Plan, TaskBody, distinct_parents};
use crate::planted_bugs::{self, Bug};
use crate::status::{Outcome, RunStatus, StepStatus};
use crate::time::{Span, Timestamp};
use crate::wire;
use bytes::Bytes;
use std::collections::BTreeSet;

/// The newest snapshot format this release writes and reads.
pub const FORMAT: u8 = 1;

message! {
    pub struct State {
        /// Number of the last event.
        1 => seq: u64,
        2 => status: RunStatus,
        3 => origin: Origin,
        4 => created_at: Timestamp,
        5 => finished_at: Option<Timestamp>,
        6 => failure: Option<Failure>,
        /// One per node of the plan, in its order.
        7 => steps: Vec<Step>,
        /// Highest number given to a stored payload.
        8 => payloads: u32,
        /// Bytes of all payloads together.
        9 => bytes: u64,
        10 => cancelled_by: String,
        /// The step that made the run fail.
        11 => culprit: Option<u32>,
        /// Set while the run is paused: no step starts.
        12 => paused: Option<Pause>,
        /// Set while the run is queued: the reason.
        13 => queued: Option<Queue>,
        /// The reason given for the cancellation.
        14 => cancel_reason: String,
        /// Time of the last event. The next event is no earlier, even when a node with another clock writes it.
        15 => at: Timestamp,
    }
}

message! {
    pub struct Pause {
        1 => actor: String,
        2 => note: String,
        3 => at: Timestamp,
    }
}

message! {
    pub struct Step {
        1 => phase: Phase,
        /// Number of the latest attempt; counted when it starts.
        2 => attempt: u32,
        /// Attempts that count against the retry policy.
        3 => charged: u32,
        4 => started_at: Option<Timestamp>,
        5 => finished_at: Option<Timestamp>,
        6 => response: Option<Box<Response>>,
        /// Of the latest attempt; once the step has settled, of the step.
        7 => failure: Option<Box<Failure>>,
        8 => because: Option<Box<Because>>,
        9 => callback: Option<Box<Callback>>,
        /// The values that its condition read.
        10 => seen: Vec<Seen>,
        /// A late result was recorded; only the first one is.
        11 => late: bool,
        /// The progress that a worker saved for the next attempt.
        12 => progress: Option<Box<Payload>>,
        /// Fence of the latest lease.
        13 => fence: u64,
        /// Digest of the report that ended that lease; 0 until then.
        14 => digest: u64,
        /// Workers that were silent until their lease ended.
        15 => deaths: u32,
        /// When the step last became ready or was leased.
        16 => since: Timestamp,
        /// When the task could first be claimed.
        17 => ready_at: Option<Timestamp>,
        /// The concurrency key of the task.
        18 => key: String,
        /// The limit slots that the task takes while it is leased, see [`Event::Leased`].
        19 => slot: u32,
        20 => key_slot: u32,
        /// An operator asked for the next attempt now, so it is not held back.
        21 => is_forced: bool,
    }
}

choice! {
    pub enum Phase {
        1 => Pending {},
        /// Waits for an executor or a worker.
        2 => Ready {},
        /// An executor of node `epoch` works on it. Only the holder of `fence` can end the attempt.
        3 => Running { 1 => fence: u64, 2 => epoch: u64 },
        4 => Retrying { 1 => at: Timestamp },
        5 => Sleeping { 1 => until: Timestamp },
        6 => Waiting { 1 => deadline: Timestamp },
        7 => Done { 1 => status: StepStatus },
        /// A worker holds a lease on it. Only the holder of `fence` can end the attempt.
        8 => Leased { 1 => fence: u64, 2 => worker: String, 3 => lease: Span, 4 => epoch: u64 },
    }
}

impl Default for Phase {
    fn default() -> Self {
        Phase::Pending {}
    }
}

impl Phase {
    fn is_active(&self) -> bool {
        matches!(self, Phase::Ready {} | Phase::Running { .. } | Phase::Leased { .. })
    }
}

impl Step {
    /// When the step's next timer fires, if it has one.
    fn due(&self, node: &Node) -> Option<Timestamp> {
        let after = |limit: fn(&TaskBody) -> Option<Span>| Some(self.since.after(limit(node.task()?)?));
        let own = match &self.phase {
            Phase::Retrying { at } => Some(*at),
            Phase::Sleeping { until } => Some(*until),
            Phase::Waiting { deadline } => Some(*deadline),
            Phase::Ready {} => after(|task| task.queue),
            Phase::Leased { .. } => after(|task| task.attempt),
            Phase::Pending {} | Phase::Running { .. } | Phase::Done { .. } | Phase::Unknown { .. } => None,
        };
        own.into_iter().chain(self.total_deadline(node)).min()
    }

    /// The deadline of all attempts together.
    pub(crate) fn total_deadline(&self, node: &Node) -> Option<Timestamp> {
        match self.phase {
            Phase::Ready {} | Phase::Leased { .. } | Phase::Retrying { .. } => {
                Some(self.ready_at?.after(node.task()?.total?))
            }
            _ => None,
        }
    }
}

impl Step {
    pub fn status(&self) -> StepStatus {
        match &self.phase {
            Phase::Pending {} | Phase::Ready {} | Phase::Unknown { .. } => StepStatus::Pending,
            Phase::Running { .. } | Phase::Leased { .. } => StepStatus::Running,
            Phase::Retrying { .. } => StepStatus::Retrying,
            Phase::Sleeping { .. } => StepStatus::Sleeping,
            Phase::Waiting { .. } => StepStatus::Waiting,
            Phase::Done { status } => *status,
        }
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.status().outcome()
    }

    /// What a path reads as `body`: the body of the response, or of the callback.
    pub fn body(&self) -> Option<&Payload> {
        let callback = || self.callback.as_ref().filter(|_| self.status() == StepStatus::Received).map(|c| &c.body);
        self.response.as_ref().and_then(|r| r.body.as_ref()).or_else(callback)
    }
}

names! {
    /// What a run can wait for.
    pub enum WaitKind {
        Approval = 1 "approval",
        Webhook = 2 "webhook",
        Signal = 3 "signal",
        Sleep = 4 "sleep",
        Pause = 5 "pause",
        Retry = 6 "retry",
        Child = 7 "child",
        Worker = 8 "worker",
        Upgrade = 9 "upgrade",
    }
}

/// The priority of tasks that do not set one.
pub const PRIORITY: u32 = 100;

/// The lease of a worker on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    pub step: u32,
    pub fence: u64,
    pub worker: &'a str,
    pub lease: Span,
    /// The node that tracks the lease.
    pub epoch: u64,
}

/// One thing a run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub kind: WaitKind,
    /// `None` when the run as a whole waits.
    pub step: Option<u32>,
    pub until: Option<Timestamp>,
}

/// Why a stored run cannot be used by this release.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadError {
    /// A later release wrote part of it. The run waits for an upgrade; nothing is lost.
    Newer,
    Damaged(String),
}

impl From<wire::Error> for LoadError {
    fn from(error: wire::Error) -> Self {
        match error {
            wire::Error::Format(_) | wire::Error::Newer(_) => LoadError::Newer,
            other => LoadError::Damaged(other.to_string()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Run {
    pub state: State,
    pub(crate) index: Index,
}

/// Derived from the plan and the state; never stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Index {
    /// For each node, the number of distinct parents that have not settled.
    parents_left: Vec<u32>,
    /// The number of steps that are ready, running or leased.
    active: u32,
    unsettled: u32,
    pub timers: BTreeSet<(Timestamp, u32)>,
    /// Steps that wait for an executor or a worker, in plan order.
    pub ready: BTreeSet<u32>,
    /// Pending steps whose parents have all settled, in plan order. They must be decided next.
    pub frontier: BTreeSet<u32>,
}

impl Run {
    /// Loads a stored run from its snapshot, if it has one, and the records after it.
    pub fn load(plan: &Plan, snapshot: Option<&[u8]>, records: &[Bytes]) -> Result<Run, LoadError> {
        let mut run = Run::default();
        if let Some(bytes) = snapshot {
            run.state = wire::open(FORMAT, bytes)?;
            if wire::Value::is_newer(&run.state) {
                return Err(LoadError::Newer);
            }
            if run.state.steps.len() != plan.nodes().len() {
                return Err(LoadError::Damaged("the snapshot and the plan have different steps".into()));
            }
        }
        run.reindex(plan);
        for bytes in records {
            let record = Record::open(bytes)?;
            if record.first != run.state.seq + 1 {
                return Err(LoadError::Damaged(format!("event {} follows event {}", record.first, run.state.seq)));
            }
            if wire::Value::is_newer(&record) && !planted_bugs::is(Bug::UnknownEventDropped) {
                return Err(LoadError::Newer);
            }
            for event in &record.events {
                run.apply(plan, event, record.at)?;
            }
        }
        Ok(run)
    }

    pub fn snapshot(&self) -> Bytes {
        wire::seal(FORMAT, &self.state).into()
    }

    pub fn status(&self) -> RunStatus {
        self.state.status
    }

    pub fn is_terminal(&self) -> bool {
        self.state.seq > 0 && self.state.status.is_terminal()
    }

    pub fn step(&self, step: u32) -> &Step {
        &self.state.steps[step as usize]
    }

    /// When the run must be advanced even without an input: its earliest timer, its start time or its expiry.
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.state.seq == 0 || self.is_terminal() {
            return None;
        }
        let timer = self.first_timer().map_or(Timestamp::NEVER, |(at, _)| at);
        let start = self.admit_at().unwrap_or(Timestamp::NEVER);
        Some(timer.min(start).min(self.state.origin.expires_at)).filter(|at| *at < Timestamp::NEVER)
    }

    /// The start time of a run that waits for it.
    pub(crate) fn admit_at(&self) -> Option<Timestamp> {
        self.state.origin.run_at.filter(|_| self.state.queued == Some(Queue::Later))
    }

    /// The earliest timer of a step. The retry timers of a held run do not count: they would start an attempt.
    pub(crate) fn first_timer(&self) -> Option<(Timestamp, u32)> {
        let is_held = self.is_held() && !planted_bugs::is(Bug::PauseForgetsRetries);
        let retries = |step: u32| matches!(self.step(step).phase, Phase::Retrying { .. });
        self.index.timers.iter().find(|(_, step)| !(is_held && retries(*step))).copied()
    }

    /// Whether no step may start, because the run is paused or queued.
    pub fn is_held(&self) -> bool {
        self.state.paused.is_some() || self.state.queued.is_some()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.index.unsettled == 0
    }

    /// Whether no step is ready, executing or about to be decided.
    pub(crate) fn is_idle(&self) -> bool {
        match self.is_held() {
            // Ready steps do not count while they may not start.
            true => self.index.active == self.index.ready.len() as u32,
            false => self.index.active == 0 && self.index.frontier.is_empty(),
        }
    }

    /// Steps that an executor works on: step, fence and the epoch of its process.
    pub fn running(&self) -> Vec<(u32, u64, u64)> {
        let running = |(i, step): (usize, &Step)| match step.phase {
            Phase::Running { fence, epoch } => Some((i as u32, fence, epoch)),
            _ => None,
        };
        self.state.steps.iter().enumerate().filter_map(running).collect()
    }

    /// Steps that workers hold leases on.
    pub fn leased(&self) -> impl Iterator<Item = Lease<'_>> {
        (0..self.state.steps.len() as u32).filter_map(|step| self.lease(step))
    }

    /// The lease on a step, if a worker holds one.
    pub fn lease(&self, step: u32) -> Option<Lease<'_>> {
        match &self.state.steps.get(step as usize)?.phase {
            Phase::Leased { fence, worker, lease, epoch } => {
                Some(Lease { step, fence: *fence, worker, lease: *lease, epoch: *epoch })
            }
            _ => None,
        }
    }

    /// Steps that a worker may claim, in plan order.
    pub fn claimable<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = u32> + 'a {
        let open = !self.is_held() && !self.is_terminal();
        self.index.ready.iter().copied().filter(move |step| open && plan.node(*step).task().is_some())
    }

    /// Whether this process has nothing to do for the run: it waits for workers, timers or callbacks.
    pub fn waits_for_others(&self, plan: &Plan) -> bool {
        let is_task = |step: &u32| plan.node(*step).task().is_some();
        let unclaimed = self.index.ready.len() as u32;
        self.index.active == unclaimed && self.index.frontier.is_empty() && self.index.ready.iter().all(is_task)
    }

    /// The priority of a task: tasks with a lower number are claimed first.
    pub fn priority(&self, plan: &Plan, step: u32) -> u32 {
        let own = plan.node(step).task().and_then(|task| task.priority);
        own.or(self.state.origin.priority).unwrap_or(PRIORITY)
    }

    /// What an open run waits for, in plan order.
    pub fn waiting_for(&self, plan: &Plan) -> Vec<Waiting> {
        let mut list = Vec::new();
        if self.state.paused.is_some() && !self.is_terminal() {
            list.push(Waiting { kind: WaitKind::Pause, step: None, until: None });
        }
        if let Some(at) = self.admit_at() {
            list.push(Waiting { kind: WaitKind::Sleep, step: None, until: Some(at) });
        }
        for (i, step) in self.state.steps.iter().enumerate() {
            let (kind, until) = match (&step.phase, &plan.node(i as u32).body) {
                (Phase::Sleeping { until }, _) => (WaitKind::Sleep, Some(*until)),
                (Phase::Waiting { deadline }, _) => (WaitKind::Webhook, Some(*deadline)),
                (Phase::Retrying { at }, _) => (WaitKind::Retry, Some(*at)),
                (Phase::Ready {}, _) => (WaitKind::Worker, None),
                (Phase::Pending {}, _) if self.index.parents_left[i] == 0 && !plan.is_known(i as u32) => {
                    (WaitKind::Upgrade, None)
                }
                _ => continue,
            };
            list.push(Waiting { kind, step: Some(i as u32), until });
        }
        list
    }

    /// Whether a step can be decided or started without any input. That is so after a crash between two advances,
    /// when a stored payload was missing, or when the process was draining.
    pub fn has_undecided(&self) -> bool {
        let has_any = !self.index.frontier.is_empty() || !self.index.ready.is_empty();
        has_any && !self.is_terminal() && !self.is_held()
    }

    /// Applies one event. This is the only way the state changes. An event of a later release is refused, not
    /// ignored.
    pub fn apply(&mut self, plan: &Plan, event: &Event, at: Timestamp) -> Result<(), LoadError> {
        if let Some(step) = event.step()
            && step as usize >= self.state.steps.len()
        {
            return Err(LoadError::Damaged(format!("an event names step {step} of {}", self.state.steps.len())));
        }
        self.state.seq += 1;
        self.state.at = at;
        match event {
            Event::Created { origin } => {
                self.state.origin = Origin::clone(origin);
                self.state.status = RunStatus::Running;
                self.state.created_at = at;
                self.state.steps = vec![Step::default(); plan.nodes().len()];
                self.count_payload(&origin.body);
                self.reindex(plan);
            }
            Event::RunWaiting {} => self.state.status = RunStatus::Waiting,
            Event::RunResumed {} => self.state.status = RunStatus::Running,
            Event::RunCompleted {} => self.end(plan, RunStatus::Completed, at),
            Event::RunFailed { failure, step } => {
                self.state.culprit = *step;
                self.state.failure = Some(failure.clone());
                self.end(plan, RunStatus::Failed, at);
            }
            Event::Queued { reason } => {
                self.state.queued = Some(*reason);
                self.state.status = RunStatus::Pending;
            }
            Event::Admitted {} => {
                self.state.queued = None;
                self.state.status = RunStatus::Running;
            }
            Event::Paused { actor, note } => {
                let (actor, note) = (actor.clone(), note.clone());
                self.state.paused = Some(Pause { actor, note, at, ..Default::default() });
            }
            Event::Unpaused { .. } => self.state.paused = None,
            Event::RunCancelled { actor, reason } => {
                self.state.cancelled_by = actor.clone();
                self.state.cancel_reason = reason.clone();
                self.end(plan, RunStatus::Cancelled, at);
            }
            Event::RunTimeout {} => self.end(plan, RunStatus::Timeout, at),
            Event::Scheduled { step, seen, key, .. } => {
                self.record_seen(*step, seen);
                self.state.steps[*step as usize].key.clone_from(key);
                self.enter_phase(plan, *step, Phase::Ready {}, at)?;
            }
            Event::Leased { step, attempt, worker, lease, seen, key, epoch, slot, key_slot } => {
                self.record_seen(*step, seen);
                let fence = self.state.seq;
                self.begin_attempt(*step, *attempt, at);
                let state = &mut self.state.steps[*step as usize];
                (state.fence, state.digest) = (fence, 0);
                (state.slot, state.key_slot) = (*slot, *key_slot);
                state.key.clone_from(key);
                let (worker, lease, epoch) = (worker.clone(), *lease, *epoch);
                self.enter_phase(plan, *step, Phase::Leased { fence, worker, lease, epoch }, at)?;
            }
            Event::Started { step, attempt, epoch, seen } => {
                self.record_seen(*step, seen);
                let fence = self.state.seq;
                self.begin_attempt(*step, *attempt, at);
                self.enter_phase(plan, *step, Phase::Running { fence, epoch: *epoch }, at)?;
            }
            Event::Retrying { step, next, failure, charged, died, digest, .. } => {
                let state = &mut self.state.steps[*step as usize];
                if !charged {
                    state.charged = state.charged.saturating_sub(1);
                }
                state.deaths += u32::from(*died);
                state.digest = *digest;
                state.failure = Some(Box::new(failure.clone()));
                self.enter_phase(plan, *step, Phase::Retrying { at: *next }, at)?;
            }
            Event::RetryDue { step, .. } => {
                self.state.steps[*step as usize].is_forced = plan.node(*step).http().is_some();
                self.enter_phase(plan, *step, Phase::Retrying { at }, at)?;
            }
            Event::HeldBack { step, until, failure, seen } => {
                self.record_seen(*step, seen);
                self.state.steps[*step as usize].failure = Some(Box::new(failure.clone()));
                self.enter_phase(plan, *step, Phase::Retrying { at: *until }, at)?;
            }
            Event::Succeeded { step, attempt, response, seen, digest } => {
                self.record_seen(*step, seen);
                let state = &mut self.state.steps[*step as usize];
                state.attempt = *attempt;
                state.digest = *digest;
                state.failure = None;
                self.set_response(*step, Some(response));
                self.settle(plan, *step, StepStatus::Success, at);
            }
            Event::Woken { step } => self.settle(plan, *step, StepStatus::Success, at),
            Event::Received { step, callback } => {
                if let Some(callback) = callback {
                    self.keep_callback(*step, callback);
                }
                self.settle(plan, *step, StepStatus::Received, at);
            }
            Event::Failed { step, failure, response, seen, digest, .. } => {
                self.record_seen(*step, seen);
                self.set_response(*step, response.as_ref());
                self.state.steps[*step as usize].digest = *digest;
                self.state.steps[*step as usize].failure = Some(Box::new(failure.clone()));
                // A worker may report any code, with a response; a template error is the engine's own, without one.
                let is_template_error = failure.code == "template_error" && response.is_none();
                let status = if is_template_error { StepStatus::TemplateError } else { StepStatus::Failed };
                self.settle(plan, *step, status, at);
            }
            Event::TimedOut { step, failure, .. } => {
                self.state.steps[*step as usize].failure = Some(Box::new(failure.clone()));
                self.settle(plan, *step, StepStatus::Timeout, at);
            }
            Event::Skipped { step, because } => {
                self.state.steps[*step as usize].because = Some(Box::new(because.clone()));
                self.settle(plan, *step, StepStatus::Skipped, at);
            }
            Event::Cancelled { step } => self.settle(plan, *step, StepStatus::Cancelled, at),
            Event::TimerSet { step, at: until, seen } => {
                self.record_seen(*step, seen);
                self.state.steps[*step as usize].started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Sleeping { until: *until }, at)?;
            }
            Event::WaitOpened { step, deadline, seen } => {
                self.record_seen(*step, seen);
                self.state.steps[*step as usize].started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Waiting { deadline: *deadline }, at)?;
            }
            Event::WaitClosed { step, callback } => self.keep_callback(*step, callback),
            Event::LateResult { step, .. } => self.state.steps[*step as usize].late = true,
            Event::Progress { step, progress, .. } => {
                let old = self.state.steps[*step as usize].progress.replace(Box::new(progress.clone()));
                self.state.bytes = self.state.bytes.saturating_sub(old.map_or(0, |old| old.len));
                self.count_payload(progress);
            }
            Event::Kept { step, epoch: through, .. } => {
                if let Phase::Leased { epoch, .. } = &mut self.state.steps[*step as usize].phase {
                    *epoch = *through;
                }
            }
            Event::Logged { lines, .. } => {
                let bytes = lines.iter().map(|line| line.message.len() as u64).sum();
                self.state.bytes = self.state.bytes.saturating_add(bytes);
            }
            Event::Unknown { .. } if planted_bugs::is(Bug::UnknownEventDropped) => {}
            Event::Unknown { .. } => return Err(LoadError::Newer),
        }
        Ok(())
    }

    fn begin_attempt(&mut self, step: u32, attempt: u32, at: Timestamp) {
        let state = &mut self.state.steps[step as usize];
        state.attempt = attempt;
        state.charged += 1;
        state.is_forced = false;
        state.started_at.get_or_insert(at);
    }

    fn record_seen(&mut self, step: u32, seen: &[Seen]) {
        if !seen.is_empty() {
            self.state.steps[step as usize].seen = seen.to_vec();
        }
    }

    fn set_response(&mut self, step: u32, response: Option<&Response>) {
        if let Some(response) = response {
            if let Some(body) = &response.body {
                self.count_payload(body);
            }
            self.state.steps[step as usize].response = Some(Box::new(response.clone()));
        }
    }

    fn keep_callback(&mut self, step: u32, callback: &Callback) {
        self.count_payload(&callback.body);
        self.state.steps[step as usize].callback = Some(Box::new(callback.clone()));
    }

    fn count_payload(&mut self, payload: &Payload) {
        self.state.bytes = self.state.bytes.saturating_add(payload.len);
        self.state.payloads = self.state.payloads.max(payload.stored.unwrap_or(0));
    }

    fn settle(&mut self, plan: &Plan, step: u32, status: StepStatus, at: Timestamp) {
        let state = &mut self.state.steps[step as usize];
        if status != StepStatus::Skipped && status != StepStatus::Cancelled {
            state.started_at.get_or_insert(at);
        }
        state.finished_at = Some(at);
        self.set_phase(plan, step, Phase::Done { status }, at);
    }

    /// Ends the run. Steps that have not settled are cancelled.
    fn end(&mut self, plan: &Plan, status: RunStatus, at: Timestamp) {
        self.state.status = status;
        self.state.finished_at = Some(at);
        self.state.paused = None;
        self.state.queued = None;
        for step in 0..self.state.steps.len() as u32 {
            if self.step(step).outcome().is_none() {
                self.settle(plan, step, StepStatus::Cancelled, at);
            }
        }
        self.index.frontier.clear();
    }

    /// Moves a step that has not settled to another phase. No history reopens a step.
    fn enter_phase(&mut self, plan: &Plan, step: u32, phase: Phase, at: Timestamp) -> Result<(), LoadError> {
        if self.step(step).outcome().is_some() {
            return Err(LoadError::Damaged(format!("an event reopens step {step}, which has settled")));
        }
        self.set_phase(plan, step, phase, at);
        Ok(())
    }

    /// Sets the phase of a step and updates the index.
    fn set_phase(&mut self, plan: &Plan, step: u32, phase: Phase, at: Timestamp) {
        let index = &mut self.index;
        let (state, node) = (&mut self.state.steps[step as usize], plan.node(step));
        if let Some(due) = state.due(node) {
            index.timers.remove(&(due, step));
        }
        let old = std::mem::replace(&mut state.phase, phase);
        if matches!(state.phase, Phase::Ready {} | Phase::Leased { .. }) {
            state.since = at;
            state.ready_at.get_or_insert(at);
        }
        if let Some(due) = state.due(node) {
            index.timers.insert((due, step));
        }
        let new = &self.state.steps[step as usize].phase;
        index.active = index.active + u32::from(new.is_active()) - u32::from(old.is_active());
        index.frontier.remove(&step);
        match new {
            Phase::Ready {} => index.ready.insert(step),
            _ => index.ready.remove(&step),
        };
        let was_done = matches!(old, Phase::Done { .. });
        if matches!(new, Phase::Done { .. }) && !was_done {
            index.unsettled -= 1;
            for d in plan.dependents(step) {
                let left = &mut index.parents_left[*d as usize];
                *left -= 1;
                let join_early = planted_bugs::is(Bug::JoinPerParent);
                let is_pending = matches!(self.state.steps[*d as usize].phase, Phase::Pending {});
                if (*left == 0 || join_early) && is_pending && plan.is_known(*d) {
                    index.frontier.insert(*d);
                }
            }
        }
    }

    /// Builds the index from scratch.
    fn reindex(&mut self, plan: &Plan) {
        let steps = &self.state.steps;
        let done = |step: u32| matches!(steps[step as usize].phase, Phase::Done { .. });
        let mut index = Index::default();
        for (i, step) in steps.iter().enumerate() {
            let node = plan.node(i as u32);
            let mut settled: Vec<u32> = node.links.iter().map(|l| l.from).filter(|f| done(*f)).collect();
            settled.sort_unstable();
            settled.dedup();
            let left = distinct_parents(node) - settled.len();
            index.parents_left.push(left as u32);
            index.active += u32::from(step.phase.is_active());
            index.unsettled += u32::from(!done(i as u32));
            if matches!(step.phase, Phase::Ready {}) {
                index.ready.insert(i as u32);
            }
            if let Some(due) = step.due(node) {
                index.timers.insert((due, i as u32));
            }
            if left == 0 && matches!(step.phase, Phase::Pending {}) && plan.is_known(i as u32) {
                index.frontier.insert(i as u32);
            }
        }
        self.index = index;
    }

    /// Whether the index matches the state. For tests and checkers.
    pub fn index_matches_state(&self, plan: &Plan) -> bool {
        let mut fresh = self.clone();
        fresh.reindex(plan);
        if self.is_terminal() {
            fresh.index.frontier.clear();
        }
        fresh.index == self.index
    }
}
