//! A run: the state that its events add up to.
//!
//! [`State`] is the fold of the journal; snapshots store it. [`Run`] adds an index and the planner's view of the run,
//! both derived from the state and the plan, so that the cost of an advance depends on what changed and not on the
//! size of the run. Only [`Run::apply`] changes a run.
//!
//! The steps of the root group exist from the start, and have the numbers of their nodes. Inner steps, those of groups
//! and loops, are opened later and get the next free number. An iteration of a loop is a step itself: its parent is
//! the loop, and its children are the nodes of the loop's group. When an iteration has settled, its steps leave the
//! state, and the loop keeps its result.
//!
//! ```text
//!   Pending ─▶ Ready ─▶ Running, Leased ─▶ Done          Sleeping, Waiting ─▶ Done
//!                ▲        │ failed, lost
//!                └─────── Retrying
//! ```

use crate::event::{Because, Callback, Event, Failure, Origin, Queue, Record, Response, StepPlace};
use crate::expr::Seen;
use crate::id::RunId;
use crate::payload::Payload;
use crate::plan::{Body, Decision, GroupBody, Node, Plan, TaskBody};
use crate::planner::{self, Planner};
use crate::planted_bugs::{self, Bug};
use crate::status::{Outcome, RunStatus, StepStatus};
use crate::time::{Span, Timestamp};
use crate::wire;
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The newest snapshot format this release writes and reads.
pub const FORMAT: u8 = 2;

/// The most steps that a run may open, inner ones included (M5).
pub const STEPS_MAX: u32 = 100_000;
/// The most runs that a run may start (M5).
pub const CHILDREN_MAX: u32 = 10_000;
/// What the key of a signal counts as, among the payloads of the run.
const SIGNAL_KEY_BYTES: u64 = 64;
/// The most signals that wait to be read (M5).
pub const SIGNALS_MAX: usize = 1_000;
/// The most reports of steps that have left the state that are remembered, to recognise repeats.
const REPORTS_MAX: usize = 1_000;

message! {
    pub struct State {
        /// Number of the last event.
        1 => seq: u64,
        2 => status: RunStatus,
        3 => origin: Origin,
        4 => created_at: Timestamp,
        5 => finished_at: Option<Timestamp>,
        6 => failure: Option<Failure>,
        /// One per node of the root group, in its order.
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
        /// Inner steps, by number.
        16 since 2 => inner: BTreeMap<u32, Step>,
        /// One more than the highest number of an inner step; 0 before there was one.
        17 since 2 => opened: u32,
        /// What workers reported about inner steps that have left the state, by step.
        18 since 2 => reports: BTreeMap<u32, Report>,
        /// The output of a completed run.
        19 since 2 => output: Option<Payload>,
        /// Signals that no step has read, in the order of their arrival.
        20 since 2 => signals: Vec<Signal>,
        /// The keys of all signals that had one, to recognise repeats.
        21 since 2 => signal_keys: Vec<SignalKey>,
        /// How many runs it has started.
        22 since 2 => children: u32,
        /// Those that no step waits for and that are cancelled when this run ends.
        23 since 2 => closing: Vec<RunId>,
    }
}

message! {
    /// The last report of a worker about a step, to recognise an identical repeat.
    pub struct Report {
        1 => fence: u64,
        2 => digest: u64,
    }
}

message! {
    /// A signal that no step has read.
    pub struct Signal {
        /// The event with which it arrived.
        1 => number: u64,
        2 => name: String,
        3 => body: Payload,
    }
}

message! {
    /// The key that the sender of a signal chose, and the request that had it: digests of both.
    pub struct SignalKey {
        1 => key: Bytes,
        2 => fingerprint: Bytes,
    }
}

message! {
    /// What the approvers of a step are shown.
    pub struct ApprovalRequest {
        1 => prompt: String,
        2 => items: Option<Payload>,
        3 => decision: Option<Decision>,
    }
}

message! {
    /// A run that a step started.
    pub struct ChildLink {
        1 => run: RunId,
        /// Its workflow, as the step names it.
        2 => workflow: String,
        3 => is_detached: bool,
        /// It is cancelled when the run that started it ends.
        4 => is_closed_with_parent: bool,
        /// How it ended, if the step waited for that.
        5 => status: Option<RunStatus>,
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
        /// Where an inner step is.
        22 since 2 => place: Option<Box<Place>>,
        /// What a loop knows of its iterations.
        23 since 2 => iterations: Option<Box<Iterations>>,
        /// Of a wait for a signal: the event that opened it.
        24 since 2 => opened: u64,
        25 since 2 => approval: Option<Box<ApprovalRequest>>,
        /// The run that its latest attempt started.
        26 since 2 => child: Option<Box<ChildLink>>,
    }
}

message! {
    /// Where an inner step is.
    pub struct Place {
        /// Its node. An iteration has the node of its loop.
        1 => node: u32,
        /// The step that it is a part of: a group, an iteration, or the loop of an iteration.
        2 => parent: u32,
        /// The number of an iteration, from 0.
        3 => index: u32,
    }
}

message! {
    /// What a loop knows of its iterations.
    pub struct Iterations {
        /// The length of its list; `None` for a loop with a condition.
        1 => count: Option<u32>,
        /// The list in pieces, by the number of the first item of each.
        2 => pages: BTreeMap<u32, Payload>,
        /// The number of iterations that have been opened.
        3 => opened: u32,
        /// The iterations that have settled, by number.
        4 => settled: BTreeMap<u32, Iteration>,
    }
}

message! {
    /// How an iteration ended.
    pub struct Iteration {
        1 => status: StepStatus,
        2 => body: Option<Payload>,
        3 => failure: Option<Failure>,
        /// The name of the step that made it fail.
        4 => culprit: String,
        5 => started_at: Timestamp,
        6 => finished_at: Timestamp,
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
        /// A group, a loop or an iteration: its inner steps are at work.
        9 since 2 => Open {},
        /// The run that it started is open, or does not exist yet.
        10 since 2 => Child {},
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
            Phase::Pending {}
            | Phase::Running { .. }
            | Phase::Open {}
            | Phase::Child {}
            | Phase::Done { .. }
            | Phase::Unknown { .. } => None,
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
            Phase::Running { .. } | Phase::Leased { .. } | Phase::Open {} => StepStatus::Running,
            Phase::Retrying { .. } => StepStatus::Retrying,
            Phase::Sleeping { .. } => StepStatus::Sleeping,
            Phase::Waiting { .. } | Phase::Child {} => StepStatus::Waiting,
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

/// A task that a worker may claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadyTask {
    pub step: u32,
    /// The task's type.
    pub name: String,
    /// The concurrency key.
    pub key: String,
    pub priority: u32,
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

#[derive(Debug, Default)]
pub struct Run {
    pub state: State,
    pub(crate) index: Index,
    /// What the planner knows of the run. `None` before the run is created, and while the planner is asked.
    pub(crate) planner: Option<Box<dyn Planner>>,
    /// No step leaves the state. For a reader who wants to see all of them; such a run is not advanced.
    is_whole: bool,
}

impl Clone for Run {
    fn clone(&self) -> Run {
        let planner = self.planner.as_ref().map(|planner| planner.boxed());
        Run { state: self.state.clone(), index: self.index.clone(), planner, is_whole: self.is_whole }
    }
}

/// Derived from the plan and the state; never stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Index {
    /// The number of steps that are ready, running or leased.
    active: u32,
    pub timers: BTreeSet<(Timestamp, u32)>,
    /// Steps that wait for an executor or a worker, by number.
    pub ready: BTreeSet<u32>,
    /// Inner steps, by parent and by node; iterations by their loop and their index.
    pub children: BTreeMap<(u32, u32), u32>,
    /// Steps that wait for a signal, by its name, in the order in which they began to wait.
    pub signal_waits: BTreeMap<String, BTreeSet<(u64, u32)>>,
    /// The fingerprint of each signal that had a key.
    pub signal_keys: BTreeMap<Bytes, Bytes>,
    /// Steps that wait for their child, by number.
    pub child_waits: BTreeSet<u32>,
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
            if run.state.steps.len() != plan.root().len() {
                return Err(LoadError::Damaged("the snapshot and the plan have different steps".into()));
            }
        }
        run.reindex(plan);
        run.fold(plan, records)?;
        Ok(run)
    }

    /// Loads a run from all its records, and keeps the steps of iterations that have settled.
    pub fn load_whole(plan: &Plan, records: &[Bytes]) -> Result<Run, LoadError> {
        let mut run = Run { is_whole: true, ..Run::default() };
        run.fold(plan, records)?;
        Ok(run)
    }

    fn fold(&mut self, plan: &Plan, records: &[Bytes]) -> Result<(), LoadError> {
        for bytes in records {
            let record = Record::open(bytes)?;
            if record.first != self.state.seq + 1 {
                return Err(LoadError::Damaged(format!("event {} follows event {}", record.first, self.state.seq)));
            }
            if wire::Value::is_newer(&record) && !planted_bugs::is(Bug::UnknownEventDropped) {
                return Err(LoadError::Newer);
            }
            for event in &record.events {
                self.apply(plan, event, record.at)?;
            }
        }
        Ok(())
    }

    pub fn snapshot(&self) -> Bytes {
        wire::seal(&self.state).into()
    }

    pub fn status(&self) -> RunStatus {
        self.state.status
    }

    pub fn is_terminal(&self) -> bool {
        self.state.seq > 0 && self.state.status.is_terminal()
    }

    /// A step that is in the state.
    pub fn step(&self, step: u32) -> &Step {
        self.get(step).unwrap_or_else(|| panic!("step {step} is not in the state"))
    }

    /// A step, if it is in the state: it was opened, and its iteration has not settled.
    pub fn get(&self, step: u32) -> Option<&Step> {
        self.state.steps.get(step as usize).or_else(|| self.state.inner.get(&step))
    }

    fn step_mut(&mut self, step: u32) -> &mut Step {
        let State { steps, inner, .. } = &mut self.state;
        match steps.get_mut(step as usize) {
            Some(step) => step,
            None => inner.get_mut(&step).unwrap_or_else(|| panic!("step {step} is not in the state")),
        }
    }

    /// The steps in the state, by number.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = (u32, &Step)> {
        let root = self.state.steps.iter().enumerate().map(|(i, step)| (i as u32, step));
        root.chain(self.state.inner.iter().map(|(number, step)| (*number, step)))
    }

    /// The number that the next inner step gets.
    pub(crate) fn next_step(&self) -> u32 {
        self.state.opened.max(self.state.steps.len() as u32)
    }

    /// Whether the step existed and has left the state since.
    pub fn has_left(&self, step: u32) -> bool {
        step < self.next_step() && self.get(step).is_none()
    }

    /// The place of the step's node in the plan.
    pub fn node_number(&self, step: u32) -> u32 {
        self.step(step).place.as_ref().map_or(step, |place| place.node)
    }

    pub fn node<'p>(&self, plan: &'p Plan, step: u32) -> &'p Node {
        plan.node_at(self.node_number(step))
    }

    /// The steps of a node, without the iterations of a loop.
    pub fn steps_of(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let root = Some(node).filter(|node| (*node as usize) < self.state.steps.len());
        let inner =
            self.state.inner.iter().filter(move |(_, step)| step.place.as_ref().is_some_and(|p| p.node == node));
        root.into_iter().chain(inner.map(|(step, _)| *step)).filter(|step| self.iteration(*step).is_none())
    }

    /// The step that an inner step is a part of.
    pub fn parent(&self, step: u32) -> Option<u32> {
        self.step(step).place.as_ref().map(|place| place.parent)
    }

    /// The loop and the number of an iteration.
    pub fn iteration(&self, step: u32) -> Option<(u32, u32)> {
        let place = self.step(step).place.as_ref()?;
        (self.node_number(place.parent) == place.node).then_some((place.parent, place.index))
    }

    /// The inner nodes of a step that has any and is not a loop: of a group or of an iteration.
    pub(crate) fn group_body<'p>(&self, plan: &'p Plan, step: u32) -> Option<&'p GroupBody> {
        let node = self.node(plan, step);
        node.inner().filter(|_| node.repeat().is_none() || self.iteration(step).is_some())
    }

    /// The step of a node in a group: in the root group, or among the inner steps of `group`.
    pub fn step_in(&self, group: Option<u32>, node: u32) -> Option<u32> {
        match group {
            None => Some(node).filter(|node| (*node as usize) < self.state.steps.len()),
            Some(group) => self.index.children.get(&(group, node)).copied(),
        }
    }

    /// The inner steps of a step, by node or by number of the iteration; not theirs in turn.
    pub fn children(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        self.index.children.range((step, 0)..=(step, u32::MAX)).map(|(_, child)| *child)
    }

    /// The inner steps of a step, and theirs in turn; each after the step it is a part of.
    pub fn descendants(&self, step: u32) -> Vec<u32> {
        let mut found: Vec<u32> = self.children(step).collect();
        let mut at = 0;
        while let Some(next) = found.get(at).copied() {
            found.extend(self.children(next));
            at += 1;
        }
        found
    }

    /// Where a step is in the plan.
    pub fn place(&self, step: u32) -> StepPlace {
        let mut indices = Vec::new();
        let mut at = Some(step);
        while let Some(step) = at {
            indices.extend(self.iteration(step).map(|(_, index)| index));
            at = self.parent(step);
        }
        indices.reverse();
        StepPlace { node: self.node_number(step), indices, ..Default::default() }
    }

    /// The key of a step: its name, after the keys of the steps around it, such as `orders[3]/charge`.
    pub fn key<'p>(&self, plan: &'p Plan, step: u32) -> Cow<'p, str> {
        plan.key(&self.place(step))
    }

    /// The step with this key, if it is in the state.
    pub fn find(&self, plan: &Plan, key: &str) -> Option<u32> {
        let mut group = None;
        let mut found = None;
        for part in key.split('/') {
            let (name, index) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
                Some((name, index)) => (name, Some(index.parse().ok()?)),
                None => (part, None),
            };
            let mut step = self.step_in(group, plan.find(name)?)?;
            if let Some(index) = index {
                step =
                    self.index.children.get(&(step, index)).copied().filter(|step| self.iteration(*step).is_some())?;
            }
            (group, found) = (Some(step), Some(step));
        }
        found
    }

    /// The latest lease of a step and the digest of the report that ended it, also of a step that has left the state.
    pub fn reported(&self, step: u32) -> Option<Report> {
        let of_state = |step: &Step| Report { fence: step.fence, digest: step.digest, ..Default::default() };
        self.get(step).map(of_state).or_else(|| self.state.reports.get(&step).cloned())
    }

    /// The step that has waited longest for a signal of this name.
    pub(crate) fn first_signal_wait(&self, name: &str) -> Option<u32> {
        self.index.signal_waits.get(name)?.first().map(|(_, step)| *step)
    }

    /// The fingerprint of the signal that had this key.
    pub(crate) fn signal_fingerprint(&self, key: &Bytes) -> Option<&Bytes> {
        self.index.signal_keys.get(key)
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

    /// Whether no step is ready, executing or about to be decided.
    pub(crate) fn is_idle(&self) -> bool {
        match self.is_held() {
            // Ready steps do not count while they may not start.
            true => self.index.active == self.index.ready.len() as u32,
            false => self.index.active == 0 && !self.has_moves(),
        }
    }

    /// Whether the planner has something to decide.
    fn has_moves(&self) -> bool {
        self.planner.as_ref().is_some_and(|planner| planner.has_moves())
    }

    /// Steps that an executor works on: step, fence and the epoch of its process.
    pub fn running(&self) -> Vec<(u32, u64, u64)> {
        let running = |(number, step): (u32, &Step)| match step.phase {
            Phase::Running { fence, epoch } => Some((number, fence, epoch)),
            _ => None,
        };
        self.steps().filter_map(running).collect()
    }

    /// Steps that workers hold leases on.
    pub fn leased(&self) -> impl Iterator<Item = Lease<'_>> {
        self.steps().filter_map(|(step, _)| self.lease(step))
    }

    /// The lease on a step, if a worker holds one.
    pub fn lease(&self, step: u32) -> Option<Lease<'_>> {
        match &self.get(step)?.phase {
            Phase::Leased { fence, worker, lease, epoch } => {
                Some(Lease { step, fence: *fence, worker, lease: *lease, epoch: *epoch })
            }
            _ => None,
        }
    }

    /// A task step as the task queue sees it.
    pub fn ready_task(&self, plan: &Plan, step: u32) -> ReadyTask {
        let name = self.node(plan, step).task().map(|task| task.name.clone()).unwrap_or_default();
        ReadyTask { step, name, key: self.step(step).key.clone(), priority: self.priority(plan, step) }
    }

    pub fn ready_tasks<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = ReadyTask> + 'a {
        self.claimable(plan).map(|step| self.ready_task(plan, step))
    }

    /// Steps that a worker may claim, by number.
    pub fn claimable<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = u32> + 'a {
        let open = !self.is_held() && !self.is_terminal();
        self.index.ready.iter().copied().filter(move |step| open && self.node(plan, *step).task().is_some())
    }

    /// Whether this process has nothing to do for the run: it waits for workers, timers or callbacks.
    pub fn waits_for_others(&self, plan: &Plan) -> bool {
        let is_task = |step: &u32| self.node(plan, *step).task().is_some();
        let unclaimed = self.index.ready.len() as u32;
        self.index.active == unclaimed && !self.has_moves() && self.index.ready.iter().all(is_task)
    }

    /// The priority of a task: tasks with a lower number are claimed first.
    pub fn priority(&self, plan: &Plan, step: u32) -> u32 {
        let own = self.node(plan, step).task().and_then(|task| task.priority);
        own.or(self.state.origin.priority).unwrap_or(PRIORITY)
    }

    /// What an open run waits for, by number of the step.
    pub fn waiting_for(&self, plan: &Plan) -> Vec<Waiting> {
        let mut list = Vec::new();
        if self.state.paused.is_some() && !self.is_terminal() {
            list.push(Waiting { kind: WaitKind::Pause, step: None, until: None });
        }
        if let Some(at) = self.admit_at() {
            list.push(Waiting { kind: WaitKind::Sleep, step: None, until: Some(at) });
        }
        for (number, step) in self.steps() {
            let (kind, until) = match &step.phase {
                Phase::Sleeping { until } => (WaitKind::Sleep, Some(*until)),
                Phase::Waiting { deadline } => match self.node(plan, number).wait_kind() {
                    Some(kind) => (kind, Some(*deadline)),
                    None => continue,
                },
                Phase::Retrying { at } => (WaitKind::Retry, Some(*at)),
                Phase::Child {} => (WaitKind::Child, None),
                Phase::Ready {} => (WaitKind::Worker, None),
                Phase::Pending {} if self.waits_for_upgrade(plan, number) => (WaitKind::Upgrade, None),
                _ => continue,
            };
            list.push(Waiting { kind, step: Some(number), until });
        }
        list
    }

    /// Whether a step could be decided now, but only a later release understands it.
    fn waits_for_upgrade(&self, plan: &Plan, step: u32) -> bool {
        let (node, group) = (self.node_number(step), self.parent(step));
        let has_settled = |node: u32| self.step_in(group, node).is_some_and(|step| self.step(step).outcome().is_some());
        !plan.is_known(node) && plan.node_at(node).links.iter().all(|link| has_settled(link.from))
    }

    /// Whether a step can be decided or started without any input. That is so after a crash between two advances,
    /// when a stored payload was missing, or when the process was draining.
    pub fn has_undecided(&self) -> bool {
        (self.has_moves() || !self.index.ready.is_empty()) && !self.is_terminal() && !self.is_held()
    }

    /// Applies one event. This is the only way the state changes. An event of a later release is refused, not
    /// ignored.
    pub fn apply(&mut self, plan: &Plan, event: &Event, at: Timestamp) -> Result<(), LoadError> {
        if let Some(step) = event.step() {
            let is_next = matches!(event, Event::Opened { .. }) && step == self.next_step();
            if !is_next && self.get(step).is_none() {
                return Err(LoadError::Damaged(format!("an event names step {step} of {}", self.next_step())));
            }
        }
        self.state.seq += 1;
        self.state.at = at;
        match event {
            Event::Created { origin } => {
                self.state.origin = Origin::clone(origin);
                self.state.status = RunStatus::Running;
                self.state.created_at = at;
                self.state.steps = vec![Step::default(); plan.root().len()];
                self.count_payload(&origin.body);
                self.reindex(plan);
            }
            Event::RunWaiting {} => self.state.status = RunStatus::Waiting,
            Event::RunResumed {} => self.state.status = RunStatus::Running,
            Event::RunCompleted {} => self.end(plan, RunStatus::Completed, at),
            Event::RunFinished { output } => {
                self.count_payload(output);
                self.state.output = Some(output.clone());
                self.end(plan, RunStatus::Completed, at);
            }
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
                self.step_mut(*step).key.clone_from(key);
                self.enter_phase(plan, *step, Phase::Ready {}, at)?;
            }
            Event::Leased { step, attempt, worker, lease, seen, key, epoch, slot, key_slot } => {
                self.record_seen(*step, seen);
                let fence = self.state.seq;
                self.begin_attempt(*step, *attempt, at);
                let state = self.step_mut(*step);
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
                let state = self.step_mut(*step);
                if !charged {
                    state.charged = state.charged.saturating_sub(1);
                }
                state.deaths += u32::from(*died);
                state.digest = *digest;
                state.failure = Some(Box::new(failure.clone()));
                self.enter_phase(plan, *step, Phase::Retrying { at: *next }, at)?;
            }
            Event::RetryDue { step, .. } => {
                self.step_mut(*step).is_forced = self.node(plan, *step).http().is_some();
                self.enter_phase(plan, *step, Phase::Retrying { at }, at)?;
            }
            Event::HeldBack { step, until, failure, seen } => {
                self.record_seen(*step, seen);
                self.step_mut(*step).failure = Some(Box::new(failure.clone()));
                self.enter_phase(plan, *step, Phase::Retrying { at: *until }, at)?;
            }
            Event::Succeeded { step, attempt, response, seen, digest } => {
                self.record_seen(*step, seen);
                let is_shared = self.is_result_of_last_step(plan, *step, response);
                let state = self.step_mut(*step);
                state.attempt = *attempt;
                state.digest = *digest;
                state.failure = None;
                match is_shared {
                    true => state.response = Some(Box::new(response.clone())),
                    false => self.set_response(*step, Some(response)),
                }
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
                self.step_mut(*step).digest = *digest;
                self.step_mut(*step).failure = Some(Box::new(failure.clone()));
                // A worker may report any code, with a response; a template error is the engine's own, without one.
                let is_template_error = failure.code == "template_error" && response.is_none();
                let status = if is_template_error { StepStatus::TemplateError } else { StepStatus::Failed };
                self.settle(plan, *step, status, at);
            }
            Event::TimedOut { step, failure, .. } => {
                self.step_mut(*step).failure = Some(Box::new(failure.clone()));
                self.settle(plan, *step, StepStatus::Timeout, at);
            }
            Event::Skipped { step, because } => {
                self.step_mut(*step).because = Some(Box::new(because.clone()));
                self.settle(plan, *step, StepStatus::Skipped, at);
            }
            Event::Cancelled { step } => self.settle(plan, *step, StepStatus::Cancelled, at),
            Event::Opened { step, node, parent, index } => self.open(plan, *step, *node, *parent, *index, at)?,
            Event::GroupStarted { step, seen } => {
                self.record_seen(*step, seen);
                self.step_mut(*step).started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Open {}, at)?;
                self.tell(|planner, run| planner.started(plan, run, *step));
            }
            Event::LoopStarted { step, seen, count, pages } => {
                self.record_seen(*step, seen);
                pages.values().for_each(|page| self.count_payload(page));
                let iterations = Iterations { count: *count, pages: pages.clone(), ..Default::default() };
                let state = self.step_mut(*step);
                state.iterations = Some(Box::new(iterations));
                state.started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Open {}, at)?;
                self.tell(|planner, run| planner.started(plan, run, *step));
            }
            Event::TimerSet { step, at: until, seen } => {
                self.record_seen(*step, seen);
                self.step_mut(*step).started_at = Some(at);
                self.enter_phase(plan, *step, Phase::Sleeping { until: *until }, at)?;
            }
            Event::WaitOpened { step, deadline, seen } => {
                if self.node(plan, *step).wait_kind() == Some(WaitKind::Signal) {
                    self.step_mut(*step).opened = self.state.seq;
                }
                self.open_wait(plan, *step, *deadline, seen, at)?;
            }
            Event::SignalReceived { name, body, key, fingerprint, .. } => {
                self.count_payload(body);
                let (number, name) = (self.state.seq, name.clone());
                self.state.signals.push(Signal { number, name, body: body.clone(), ..Default::default() });
                if !key.is_empty() {
                    self.state.bytes = self.state.bytes.saturating_add(SIGNAL_KEY_BYTES);
                    self.index.signal_keys.insert(key.clone(), fingerprint.clone());
                    let (key, fingerprint) = (key.clone(), fingerprint.clone());
                    self.state.signal_keys.push(SignalKey { key, fingerprint, ..Default::default() });
                }
            }
            Event::SignalConsumed { step, signal } => {
                let unread = self.state.signals.iter().position(|unread| unread.number == *signal);
                let Some(place) = unread else {
                    return Err(LoadError::Damaged(format!("step {step} reads signal {signal}, which is not unread")));
                };
                let body = self.state.signals.remove(place).body;
                self.step_mut(*step).callback = Some(Box::new(Callback { body, ..Default::default() }));
            }
            Event::ApprovalRequested { step, deadline, prompt, items, seen } => {
                items.iter().for_each(|items| self.count_payload(items));
                let request = ApprovalRequest { prompt: prompt.clone(), items: items.clone(), ..Default::default() };
                self.step_mut(*step).approval = Some(Box::new(request));
                self.open_wait(plan, *step, *deadline, seen, at)?;
            }
            Event::ChildStarted { step, attempt, child, workflow, is_detached, is_closed_with_parent, seen } => {
                self.record_seen(*step, seen);
                self.begin_attempt(*step, *attempt, at);
                self.state.children += 1;
                if *is_detached && *is_closed_with_parent {
                    self.state.closing.push(*child);
                }
                self.step_mut(*step).child = Some(Box::new(ChildLink {
                    run: *child,
                    workflow: workflow.clone(),
                    is_detached: *is_detached,
                    is_closed_with_parent: *is_closed_with_parent,
                    ..Default::default()
                }));
                self.enter_phase(plan, *step, Phase::Child {}, at)?;
            }
            Event::ChildEnded { step, status, .. } => {
                if let Some(child) = &mut self.step_mut(*step).child {
                    child.status = *status;
                }
            }
            Event::RunCancelling { actor, reason } => {
                self.state.cancelled_by = actor.clone();
                self.state.cancel_reason = reason.clone();
                self.state.status = RunStatus::Cancelling;
                self.state.paused = None;
                self.state.queued = None;
                self.tell(|planner, _| planner.ended());
            }
            Event::ApprovalDecided { step, decision, .. } => {
                if let Some(approval) = &mut self.step_mut(*step).approval {
                    approval.decision = Some(*decision);
                }
            }
            Event::Continued { step, .. } => self.settle(plan, *step, StepStatus::Success, at),
            Event::WaitClosed { step, callback } => self.keep_callback(*step, callback),
            Event::LateResult { step, .. } => self.step_mut(*step).late = true,
            Event::Progress { step, progress, .. } => {
                let old = self.step_mut(*step).progress.replace(Box::new(progress.clone()));
                self.state.bytes = self.state.bytes.saturating_sub(old.map_or(0, |old| old.len));
                self.count_payload(progress);
            }
            Event::Kept { step, epoch: through, .. } => {
                if let Phase::Leased { epoch, .. } = &mut self.step_mut(*step).phase {
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

    fn open_wait(
        &mut self,
        plan: &Plan,
        step: u32,
        deadline: Timestamp,
        seen: &[Seen],
        at: Timestamp,
    ) -> Result<(), LoadError> {
        self.record_seen(step, seen);
        self.step_mut(step).started_at = Some(at);
        self.enter_phase(plan, step, Phase::Waiting { deadline }, at)
    }

    fn begin_attempt(&mut self, step: u32, attempt: u32, at: Timestamp) {
        let state = self.step_mut(step);
        state.attempt = attempt;
        state.charged += 1;
        state.is_forced = false;
        state.started_at.get_or_insert(at);
    }

    fn record_seen(&mut self, step: u32, seen: &[Seen]) {
        if !seen.is_empty() {
            self.step_mut(step).seen = seen.to_vec();
        }
    }

    fn set_response(&mut self, step: u32, response: Option<&Response>) {
        if let Some(response) = response {
            if let Some(body) = &response.body {
                self.count_payload(body);
            }
            self.step_mut(step).response = Some(Box::new(response.clone()));
        }
    }

    fn keep_callback(&mut self, step: u32, callback: &Callback) {
        self.count_payload(&callback.body);
        self.step_mut(step).callback = Some(Box::new(callback.clone()));
    }

    fn count_payload(&mut self, payload: &Payload) {
        self.state.bytes = self.state.bytes.saturating_add(payload.len);
        self.state.payloads = self.state.payloads.max(payload.stored.unwrap_or(0));
    }

    /// Opens an inner step.
    fn open(
        &mut self,
        plan: &Plan,
        step: u32,
        node: u32,
        parent: u32,
        index: u32,
        at: Timestamp,
    ) -> Result<(), LoadError> {
        let damaged = |what: &str| LoadError::Damaged(format!("step {step} is opened {what}"));
        let around = self.get(parent).ok_or_else(|| damaged("inside a step that is not there"))?;
        if !matches!(around.phase, Phase::Open {}) || node as usize >= plan.nodes().len() {
            return Err(damaged("inside a step that is not open"));
        }
        let is_iteration = self.node_number(parent) == node;
        let place = Place { node, parent, index, ..Default::default() };
        let phase = if is_iteration { Phase::Open {} } else { Phase::Pending {} };
        let started_at = is_iteration.then_some(at);
        let new = Step { phase, started_at, place: Some(Box::new(place)), ..Default::default() };
        self.state.opened = step + 1;
        self.state.inner.insert(step, new);
        self.index.children.insert((parent, if is_iteration { index } else { node }), step);
        if let Some(iterations) = self.step_mut(parent).iterations.as_mut().filter(|_| is_iteration) {
            iterations.opened = iterations.opened.max(index + 1);
        }
        self.tell(|planner, run| planner.opened(plan, run, step));
        Ok(())
    }

    /// Tells the planner what has changed.
    fn tell(&mut self, what: impl FnOnce(&mut dyn Planner, &Run)) {
        if let Some(mut planner) = self.planner.take() {
            what(&mut *planner, self);
            self.planner = Some(planner);
        }
    }

    /// Whether a group passes on the body of its only last step: the payload exists once, and counts once.
    fn is_result_of_last_step(&self, plan: &Plan, step: u32, response: &Response) -> bool {
        let (Some(group), Some(body)) = (self.group_body(plan, step), &response.body) else { return false };
        let mut last = plan.last_nodes(group);
        let only = last.next().filter(|_| last.next().is_none());
        let of = only.and_then(|node| self.step_in(Some(step), node));
        of.is_some_and(|of| self.step(of).body() == Some(body))
    }

    /// Settles a step. What is open inside of it is cancelled with it.
    fn settle(&mut self, plan: &Plan, step: u32, status: StepStatus, at: Timestamp) {
        for inner in self.descendants(step).into_iter().rev() {
            if self.step(inner).outcome().is_none() {
                self.finish_step(plan, inner, StepStatus::Cancelled, at);
            }
        }
        self.finish_step(plan, step, status, at);
        if let Some((of, index)) = self.iteration(step) {
            self.fold_iteration(plan, step, of, index);
        }
    }

    fn finish_step(&mut self, plan: &Plan, step: u32, status: StepStatus, at: Timestamp) {
        let state = self.step_mut(step);
        if status != StepStatus::Skipped && status != StepStatus::Cancelled {
            state.started_at.get_or_insert(at);
        }
        state.finished_at = Some(at);
        self.set_phase(plan, step, Phase::Done { status }, at);
    }

    /// Keeps the result of an iteration with its loop. Its steps leave the state, except those that failed and those
    /// around them (M4).
    fn fold_iteration(&mut self, plan: &Plan, step: u32, of: u32, index: u32) {
        let culprit = planner::unhandled_in(plan, self, Some(step)).first().copied();
        let state = self.step(step);
        let iteration = Iteration {
            status: state.status(),
            body: state.body().cloned(),
            failure: state.failure.as_deref().cloned(),
            culprit: culprit.map(|step| self.node(plan, step).key.clone()).unwrap_or_default(),
            started_at: state.started_at.unwrap_or_default(),
            finished_at: state.finished_at.unwrap_or_default(),
            ..Default::default()
        };
        if let Some(iterations) = &mut self.step_mut(of).iterations {
            iterations.settled.insert(index, iteration);
        }
        if self.is_whole {
            return;
        }
        let mut inside = self.descendants(step);
        inside.insert(0, step);
        let mut kept = BTreeSet::new();
        for step in inside.iter().rev() {
            let has_failed = matches!(self.step(*step).outcome(), Some(Outcome::Failed | Outcome::TimedOut));
            if kept.contains(step) || has_failed && self.iteration(*step).is_none() {
                kept.insert(*step);
                kept.extend(self.parent(*step));
            }
        }
        for step in inside.into_iter().rev().filter(|step| !kept.contains(step)) {
            self.forget_step(step);
        }
    }

    /// Removes a step that has settled from the state.
    fn forget_step(&mut self, step: u32) {
        let Some(place) = self.step(step).place.clone() else { return };
        let key = if self.iteration(step).is_some() { place.index } else { place.node };
        self.index.children.remove(&(place.parent, key));
        if let Some(planner) = &mut self.planner {
            planner.left(step);
        }
        if let Some(state) = self.state.inner.remove(&step).filter(|state| state.digest != 0) {
            let report = Report { fence: state.fence, digest: state.digest, ..Default::default() };
            self.state.reports.insert(step, report);
            if self.state.reports.len() > REPORTS_MAX {
                self.state.reports.pop_first();
            }
        }
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
        self.tell(|planner, _| planner.ended());
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
        let node = self.node(plan, step);
        let state = self.step_mut(step);
        let due_before = state.due(node);
        let old = std::mem::replace(&mut state.phase, phase);
        if matches!(state.phase, Phase::Ready {} | Phase::Leased { .. }) {
            state.since = at;
            state.ready_at.get_or_insert(at);
        }
        let due = state.due(node);
        let (is_active, is_ready) = (state.phase.is_active(), matches!(state.phase, Phase::Ready {}));
        let is_child_wait = matches!(state.phase, Phase::Child {});
        let signal_wait = signal_wait(node, state, step);
        let ended_wait = matches!(old, Phase::Waiting { .. }).then_some((state.opened, step));
        let has_settled = matches!(state.phase, Phase::Done { .. }) && !matches!(old, Phase::Done { .. });
        let index = &mut self.index;
        if due != due_before {
            due_before.map(|due| index.timers.remove(&(due, step)));
            due.map(|due| index.timers.insert((due, step)));
        }
        index.active = index.active + u32::from(is_active) - u32::from(old.is_active());
        match is_ready {
            true => index.ready.insert(step),
            false => index.ready.remove(&step),
        };
        match is_child_wait {
            true => index.child_waits.insert(step),
            false => matches!(old, Phase::Child {}) && index.child_waits.remove(&step),
        };
        if let (Some(Body::Signal { name, .. }), Some(wait)) = (&node.body, ended_wait)
            && let Some(waits) = index.signal_waits.get_mut(name)
        {
            waits.remove(&wait);
            if waits.is_empty() {
                index.signal_waits.remove(name);
            }
        }
        if let Some((name, wait)) = signal_wait {
            index.signal_waits.entry(name.to_owned()).or_default().insert(wait);
        }
        if has_settled {
            self.tell(|planner, run| planner.settled(plan, run, step));
        } else if matches!(old, Phase::Pending {}) {
            self.tell(|planner, run| planner.begun(plan, run, step));
        }
    }

    /// Builds the index and the planner's view from scratch.
    fn reindex(&mut self, plan: &Plan) {
        let signal_keys = self.state.signal_keys.iter().map(|key| (key.key.clone(), key.fingerprint.clone()));
        let mut index = Index { signal_keys: signal_keys.collect(), ..Index::default() };
        for (number, step) in self.steps() {
            index.active += u32::from(step.phase.is_active());
            if matches!(step.phase, Phase::Ready {}) {
                index.ready.insert(number);
            }
            if matches!(step.phase, Phase::Child {}) {
                index.child_waits.insert(number);
            }
            if let Some(due) = step.due(self.node(plan, number)) {
                index.timers.insert((due, number));
            }
            if let Some((name, wait)) = signal_wait(self.node(plan, number), step, number) {
                index.signal_waits.entry(name.to_owned()).or_default().insert(wait);
            }
            if let Some(place) = &step.place {
                let key = if self.iteration(number).is_some() { place.index } else { place.node };
                index.children.insert((place.parent, key), number);
            }
        }
        self.index = index;
        let mut planner = plan.planner();
        match self.state.status {
            RunStatus::Cancelling => planner.ended(),
            _ => planner.rebuild(plan, self),
        }
        self.planner = Some(planner);
    }

    /// Whether the index and the planner's view match the state. For tests and checkers.
    pub fn index_matches_state(&self, plan: &Plan) -> bool {
        let mut fresh = self.clone();
        fresh.reindex(plan);
        if self.is_terminal() {
            fresh.tell(|planner, _| planner.ended());
        }
        let mut own = self.clone();
        own.tell(|planner, run| planner.tidy(plan, run));
        fresh.index == own.index && format!("{:?}", fresh.planner) == format!("{:?}", own.planner)
    }
}

/// The name of the signal that a step waits for, and its place in the order of those that wait for the same.
fn signal_wait<'p>(node: &'p Node, step: &Step, number: u32) -> Option<(&'p str, (u64, u32))> {
    match (&node.body, &step.phase) {
        (Some(Body::Signal { name, .. }), Phase::Waiting { .. }) => Some((name, (step.opened, number))),
        _ => None,
    }
}
