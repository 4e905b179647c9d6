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

use crate::event::{Queue, Record, StepPlace};
use crate::id::RunId;
use crate::plan::{GroupBody, Node, Plan};
use crate::planner::Planner;
use crate::planted_bugs::{self, Bug};
use crate::status::RunStatus;
use crate::time::{Span, Timestamp};
use crate::wire;
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The newest snapshot format this release writes and reads.
pub const FORMAT: u8 = 2;

/// The most steps that a run may open, inner ones included (M5).
pub const STEPS_MAX: u32 = 100_000;
/// The most runs that a run may start, with those that its children start in turn (M5).
pub const CHILDREN_MAX: u32 = 10_000;
/// The most signals that wait to be read (M5).
pub const SIGNALS_MAX: usize = 1_000;

mod fold;
mod moved;
mod outputs;
mod reopen;
mod state;

pub(crate) use fold::LastStep;
pub use moved::Plans;
pub use state::{
    AnsweredWait, ApprovalRequest, CalledOff, ChildLink, Copied, Iteration, Iterations, LastReport, MovedTo, Output,
    Pause, Phase, Place, Signal, SignalKey, State, Step,
};

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

/// The name of every step that undoes another one: `reserve/compensate` undoes `reserve`.
pub const UNDO_NAME: &str = "compensate";

/// The idempotency key of the attempts of a step. It stays the same until the step has succeeded and runs again all the
/// same.
pub fn idempotency_key(run: RunId, step: &str, repeats: u32) -> String {
    match repeats {
        0 => format!("{run}:{step}"),
        repeats => format!("{run}:{step}:r{repeats}"),
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
    /// Steps that can be undone and are not yet, in the order in which they succeeded.
    pub undoable: BTreeSet<(u64, u32)>,
    /// The steps that undo others, by the step that they undo.
    pub undos: BTreeMap<u32, u32>,
    /// The one of them that has not settled.
    pub undoing: Option<u32>,
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
            if !run.fits(plan) {
                return Err(LoadError::Damaged("the snapshot and the plan have different steps".into()));
            }
        }
        run.reindex(plan);
        run.fold(&Plans::only(plan), records, u64::MAX)?;
        Ok(run)
    }

    /// Loads a run from all its records as it was right after event `seq`.
    pub fn load_at(plans: &Plans<'_>, records: &[Bytes], seq: u64) -> Result<Run, LoadError> {
        let mut run = Run::default();
        run.fold(plans, records, seq)?;
        Ok(run)
    }

    /// The same, with the steps of iterations that had settled.
    pub fn load_whole_at(plans: &Plans<'_>, records: &[Bytes], seq: u64) -> Result<Run, LoadError> {
        let mut run = Run { is_whole: true, ..Run::default() };
        run.fold(plans, records, seq)?;
        Ok(run)
    }

    /// Applies the events of these records, up to and including the one with the number `until`.
    fn fold(&mut self, plans: &Plans<'_>, records: &[Bytes], until: u64) -> Result<(), LoadError> {
        for bytes in records {
            let record = Record::open(bytes)?;
            if record.first != self.state.seq + 1 {
                return Err(LoadError::Damaged(format!("event {} follows event {}", record.first, self.state.seq)));
            }
            if wire::Value::is_newer(&record) && !planted_bugs::is(Bug::UnknownEventDropped) {
                return Err(LoadError::Newer);
            }
            for event in &record.events {
                if self.state.seq == until {
                    return Ok(());
                }
                self.apply(plans.at(self.state.seq + 1), event, record.at)?;
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

    /// The version that it has now: its number, hash and lowering.
    pub fn version(&self) -> (u32, &Bytes, u32) {
        match self.state.moves.last() {
            Some(moved) => (moved.version, &moved.hash, moved.lowering),
            None => {
                let origin = &self.state.origin;
                (origin.version, &origin.hash, origin.lowering)
            }
        }
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
        let root = self.step_in(None, node).filter(|step| (*step as usize) < self.state.steps.len());
        let inner =
            self.state.inner.iter().filter(move |(_, step)| step.place.as_ref().is_some_and(|p| p.node == node));
        root.into_iter().chain(inner.map(|(step, _)| *step)).filter(|step| self.iteration(*step).is_none())
    }

    /// The step that an inner step is a part of.
    pub fn parent(&self, step: u32) -> Option<u32> {
        self.step(step).place.as_ref().map(|place| place.parent).filter(|parent| *parent != Place::ROOT)
    }

    /// The loop and the number of an iteration.
    pub fn iteration(&self, step: u32) -> Option<(u32, u32)> {
        let place = self.step(step).place.as_ref().filter(|place| place.parent != Place::ROOT)?;
        (self.node_number(place.parent) == place.node).then_some((place.parent, place.index))
    }

    /// The step that this one undoes.
    pub fn undoes(&self, plan: &Plan, step: u32) -> Option<u32> {
        plan.undoes(self.node_number(step)).and(self.parent(step))
    }

    /// The steps that undo others: what each undoes, and its own number. In the order in which they were opened.
    pub fn undos(&self) -> Vec<(u32, u32)> {
        let mut undos: Vec<(u32, u32)> = self.index.undos.iter().map(|(undone, undo)| (*undone, *undo)).collect();
        undos.sort_unstable_by_key(|(_, undo)| *undo);
        undos
    }

    /// The steps that are still to be undone, in the order in which they will be.
    pub fn still_to_undo(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.undoable.iter().rev().map(|(_, step)| *step)
    }

    /// Whether the run waits for the end of an attempt that is called off: it undoes what it did, or may have to (M24).
    pub(crate) fn awaits_called_off(&self, plan: &Plan) -> bool {
        plan.can_undo() || self.state.status == RunStatus::Compensating
    }

    /// The inner nodes of a step that has any and is not a loop: of a group or of an iteration.
    pub(crate) fn group_body<'p>(&self, plan: &'p Plan, step: u32) -> Option<&'p GroupBody> {
        let node = self.node(plan, step);
        node.inner().filter(|_| node.repeat().is_none() || self.iteration(step).is_some())
    }

    /// The step of a node in a group: in the root group, or among the inner steps of `group`.
    pub fn step_in(&self, group: Option<u32>, node: u32) -> Option<u32> {
        match group {
            None if self.state.moves.is_empty() => Some(node).filter(|node| (*node as usize) < self.state.steps.len()),
            None => self.index.children.get(&(Place::ROOT, node)).copied(),
            Some(group) => self.index.children.get(&(group, node)).copied(),
        }
    }

    /// The steps of the root group.
    pub fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        let unmoved = if self.state.moves.is_empty() { self.state.steps.len() as u32 } else { 0 };
        (0..unmoved).chain(self.children(Place::ROOT))
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
            // A step list has steps that are called `step[0]`.
            let iteration = || part.strip_suffix(']').and_then(|part| part.rsplit_once('['));
            let (name, index) = match plan.find(part).is_none().then(iteration).flatten() {
                Some((name, index)) => (name, Some(index.parse().ok()?)),
                None => (part, None),
            };
            let inner = plan.find(name).and_then(|node| self.step_in(group, node));
            let undo = || group.filter(|_| name == UNDO_NAME).and_then(|step| self.index.undos.get(&step).copied());
            let mut step = inner.or_else(undo)?;
            if let Some(index) = index {
                step =
                    self.index.children.get(&(step, index)).copied().filter(|step| self.iteration(*step).is_some())?;
            }
            (group, found) = (Some(step), Some(step));
        }
        found
    }

    /// The latest lease of a step and the digest of the report that ended it, also of a step that has left the state.
    pub fn reported(&self, step: u32) -> Option<LastReport> {
        let of_state = |step: &Step| LastReport { fence: step.fence, digest: step.digest, ..Default::default() };
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
        Some(timer.min(start).min(self.expires_at())).filter(|at| *at < Timestamp::NEVER)
    }

    /// When an open run ends by itself. One that undoes what it did takes as long as it needs (M26).
    pub(crate) fn expires_at(&self) -> Timestamp {
        match self.state.status {
            RunStatus::Compensating => Timestamp::NEVER,
            _ => self.state.origin.expires_at,
        }
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
    pub fn is_idle(&self) -> bool {
        match self.is_held() {
            // Ready steps do not count while they may not start.
            true => self.index.active == self.index.ready.len() as u32,
            false => self.index.active == 0 && !self.has_moves(),
        }
    }

    /// Whether the planner has something to decide, or an undo was opened that needs a payload to start.
    fn has_moves(&self) -> bool {
        let is_pending = |undo: u32| matches!(self.step(undo).phase, Phase::Pending {});
        self.planner.as_ref().is_some_and(|planner| planner.has_moves()) || self.index.undoing.is_some_and(is_pending)
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

    /// The type of a task step. One that a template forms is known from when a worker may claim it.
    pub fn type_of<'a>(&'a self, plan: &'a Plan, step: u32) -> &'a str {
        let formed = self.get(step).map_or("", |state| state.of_type.as_str());
        if formed.is_empty() { self.node(plan, step).task().map_or("", |task| task.name.as_str()) } else { formed }
    }

    /// A task step as the task queue sees it.
    pub fn ready_task(&self, plan: &Plan, step: u32) -> ReadyTask {
        let name = self.type_of(plan, step).to_owned();
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
        for (step, attempt) in &self.state.called_off {
            let (kind, until) = match attempt.until {
                Timestamp::NEVER => (WaitKind::Child, None),
                until => (WaitKind::Worker, Some(until)),
            };
            list.push(Waiting { kind, step: Some(*step), until });
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
}
