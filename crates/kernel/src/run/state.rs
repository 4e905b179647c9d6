//! What a run's events add up to, as snapshots store it.

use crate::event::{Because, Callback, EndAfterUndo, Failure, Origin, Override, Queue, Response};
use crate::expr::Seen;
use crate::id::RunId;
use crate::payload::Payload;
use crate::plan::{Decision, Node, TaskBody};
use crate::status::{Outcome, RunStatus, StepStatus};
use crate::time::{Span, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;

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
        18 since 2 => reports: BTreeMap<u32, LastReport>,
        /// The output of a completed run.
        19 since 2 => output: Option<Payload>,
        /// Signals that no step has read, in the order of their arrival.
        20 since 2 => signals: Vec<Signal>,
        /// The keys of all signals that had one, to recognise repeats.
        21 since 2 => signal_keys: Vec<SignalKey>,
        /// How many runs it has started, with those that children which have ended started in turn.
        22 since 2 => children: u32,
        /// Those that no step waits for and that are cancelled when this run ends.
        23 since 2 => closing: Vec<RunId>,
        /// Set once the run undoes what it did: how it ends afterwards.
        24 since 2 => compensating: Option<Box<EndAfterUndo>>,
        /// Attempts that were called off and have not come to their end, by step. Only if a step can be undone: then
        /// the run learns whether they did something.
        25 since 2 => called_off: BTreeMap<u32, CalledOff>,
        /// How often it went on after it had failed or timed out.
        26 since 2 => retries: u32,
        /// The event with which it last did.
        27 since 2 => retried: u64,
        /// What ended waits that have left the state, by step.
        28 since 2 => answered: BTreeMap<u32, AnsweredWait>,
        /// The outputs that steps have written, by their place in [`Layout::outputs`](crate::plan::Layout).
        29 since 2 => outputs: BTreeMap<u32, Output>,
        /// How many steps have begun since the run began or was retried. Only of plans that limit it.
        30 since 2 => begun: u32,
        /// The versions that it went on with after the one that it was created with, in order.
        31 since 2 => moves: Vec<MovedTo>,
    }
}

message! {
    /// A version that a run was moved to.
    pub struct MovedTo {
        /// The event that moved it: that one and all later ones belong to this version.
        1 => seq: u64,
        2 => version: u32,
        3 => hash: Bytes,
        4 => lowering: u32,
    }
}

message! {
    /// The step that wrote an output last.
    pub struct Output {
        1 => step: u32,
        /// Its result, once the step has left the state: until then, the step has it.
        2 => body: Option<Payload>,
        /// The node of the step.
        3 => node: u32,
    }
}

message! {
    /// An attempt that was called off.
    pub struct CalledOff {
        1 => attempt: u32,
        /// What its report carries; 0 of one that waits for a child.
        2 => fence: u64,
        /// When it is given up: its lease or its own time limit has ended by then.
        3 => until: Timestamp,
    }
}

message! {
    /// The last report of a worker about a step, to recognise an identical repeat.
    pub struct LastReport {
        1 => fence: u64,
        2 => digest: u64,
    }
}

message! {
    /// What ended a wait, to recognise an identical repeat.
    pub struct AnsweredWait {
        /// Of a callback.
        1 => digest: Bytes,
        2 => decision: Option<Decision>,
        /// A `pause` step was resumed.
        3 => is_resumed: bool,
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
        22 since 2 => place: Option<Box<Place>>,
        /// What a loop knows of its iterations.
        23 since 2 => iterations: Option<Box<Iterations>>,
        /// Of a wait for a signal: the event that opened it.
        24 since 2 => opened: u64,
        25 since 2 => approval: Option<Box<ApprovalRequest>>,
        /// The run that its latest attempt started.
        26 since 2 => child: Option<Box<ChildLink>>,
        /// The type of the task, if a template formed it.
        27 since 2 => of_type: String,
        /// Of a step that can be undone: the event with which it succeeded, or with which it became clear that its
        /// outcome stays unknown.
        28 since 2 => done_with: u64,
        /// How often it began again although it had succeeded, see [`Run::repeats`](super::Run::repeats).
        29 since 2 => repeats: u32,
        /// An operator decided how it ends.
        30 since 2 => overridden: Option<Override>,
        /// It failed, and what handled that has left the state with its iteration.
        32 since 2 => is_handled: bool,
        /// The run is a fork, and took over how the step ended.
        33 since 2 => copied: Option<Box<Copied>>,
    }
}

message! {
    /// What a fork knows of a step that it did not run.
    pub struct Copied {
        /// What failed inside of it.
        1 => errors: Option<Payload>,
        /// The caller gave its result.
        2 => is_given: bool,
    }
}

message! {
    /// Where a step is, if its number alone does not say so: an inner step, or any step of a run that was moved to another
    /// version.
    pub struct Place {
        /// Its node. An iteration has the node of its loop.
        1 => node: u32,
        /// The step that it is a part of: a group, an iteration, or the loop of an iteration. [`Place::ROOT`] for a step of
        /// the root group.
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

impl Place {
    pub const ROOT: u32 = u32::MAX;
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
    pub(super) fn is_active(&self) -> bool {
        matches!(self, Phase::Ready {} | Phase::Running { .. } | Phase::Leased { .. })
    }
}

impl Step {
    /// When the step's next timer fires, if it has one.
    pub(super) fn due(&self, node: &Node) -> Option<Timestamp> {
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
