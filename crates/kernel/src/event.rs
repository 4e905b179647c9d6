//! Events: the history of a run, and the only way a run changes.
//!
//! A [`Record`] holds the events of one advance. The journal stores records, append-only, sealed with a format
//! number and a CRC. The events of a run are numbered from 1 without gaps, so a record stores only the number of its
//! first event. The field numbers in this file are stored forever: never reuse one.

use crate::expr::Seen;
use crate::id::{RunId, TriggerId, WorkflowId};
use crate::payload::Payload;
use crate::plan::{Decision, Level};
use crate::status::{RunStatus, StepStatus};
use crate::time::{Span, Timestamp};
use crate::wire;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The newest stored format this release writes and reads.
pub const FORMAT: u8 = 2;

message! {
    /// The events of one advance of one run.
    pub struct Record {
        1 => at: Timestamp,
        /// Number of the first event.
        2 => first: u64,
        3 => events: Vec<Event>,
        /// Where the inner steps are that the events name: the step may have left the state when the record is read.
        4 since 2 => inner: BTreeMap<u32, StepPlace>,
    }
}

message! {
    /// Where a step is in the plan. Together with the plan it gives the key of the step.
    pub struct StepPlace {
        1 => node: u32,
        /// The numbers of the iterations that it is inside of, from the outermost. Of an iteration, its own comes last.
        2 => indices: Vec<u32>,
    }
}

impl StepPlace {
    /// The place of a step of the root group.
    pub fn root(step: u32) -> StepPlace {
        StepPlace { node: step, ..Default::default() }
    }
}

impl Record {
    /// Where a step is that one of the events names.
    pub fn place(&self, step: u32) -> StepPlace {
        self.inner.get(&step).cloned().unwrap_or_else(|| StepPlace::root(step))
    }

    pub fn seal(&self) -> Bytes {
        wire::seal(self).into()
    }
    pub fn open(bytes: &[u8]) -> Result<Record, wire::Error> {
        wire::open(FORMAT, bytes)
    }
}

choice! {
    pub enum Event {
        1 => Created { 1 => origin: Box<Origin> },
        2 => RunWaiting {},
        3 => RunResumed {},
        4 => RunCompleted {},
        5 => RunFailed { 1 => failure: Failure, 2 => step: Option<u32> },
        6 => RunCancelled { 1 => actor: String, 2 => reason: String },
        7 => RunTimeout {},

        /// The attempt is ready and has no executor yet.
        8 => Scheduled {
            1 => step: u32, 2 => attempt: u32, 3 => seen: Vec<Seen>,
            /// The concurrency key of the task.
            4 => key: String,
            /// The type of the task, if a template formed it.
            5 since 2 => of_type: String,
        },
        /// Leased to a worker.
        9 => Leased {
            1 => step: u32, 2 => attempt: u32, 3 => worker: String, 4 => lease: Span, 5 => seen: Vec<Seen>,
            6 => key: String,
            /// The node that tracks the lease.
            7 => epoch: u64,
            /// The limit slots of its type and of its key that the task takes; counted from 1, 0 for none.
            8 => slot: u32, 9 => key_slot: u32,
            10 since 2 => of_type: String,
        },
        /// Given to an executor of node `epoch`, which starts once this event is durable.
        10 => Started { 1 => step: u32, 2 => attempt: u32, 3 => epoch: u64, 4 => seen: Vec<Seen> },
        /// The attempt ended without an outcome for the step; the next one starts at `next`.
        11 => Retrying {
            1 => step: u32, 2 => attempt: u32, 3 => next: Timestamp, 4 => failure: Failure,
            /// False when the attempt does not count against the retry policy.
            5 => charged: bool,
            6 => status_code: Option<u16>,
            /// The worker was silent until its lease ended.
            7 => died: bool,
            /// Of the worker's report, to recognise an identical repeat.
            8 => digest: u64,
        },
        12 => Succeeded {
            1 => step: u32, 2 => attempt: u32, 3 => response: Response, 4 => seen: Vec<Seen>, 5 => digest: u64,
        },
        13 => Received { 1 => step: u32, 2 => callback: Option<Callback> },
        14 => Failed {
            1 => step: u32, 2 => attempt: u32, 3 => failure: Failure, 4 => response: Option<Response>,
            5 => seen: Vec<Seen>, 6 => digest: u64,
        },
        15 => TimedOut { 1 => step: u32, 2 => attempt: u32, 3 => failure: Failure, 4 => took: Span },
        16 => Skipped { 1 => step: u32, 2 => because: Because },
        17 => Cancelled { 1 => step: u32 },
        18 => TimerSet { 1 => step: u32, 2 => at: Timestamp, 3 => seen: Vec<Seen> },
        19 => WaitOpened { 1 => step: u32, 2 => deadline: Timestamp, 3 => seen: Vec<Seen> },
        /// A callback arrived before the run reached the step; it is kept for it.
        20 => WaitClosed { 1 => step: u32, 2 => callback: Callback },
        /// A result arrived after the run had ended, or while it was being cancelled; it changes nothing.
        21 => LateResult { 1 => step: u32, 2 => attempt: u32, 3 => summary: String },
        /// The timer of a sleep fired.
        22 => Woken { 1 => step: u32 },
        /// The new run may not start yet.
        23 => Queued { 1 => reason: Queue },
        /// The queued run starts.
        24 => Admitted {},
        /// An operator paused the run: no step starts until it is resumed.
        25 => Paused { 1 => actor: String, 2 => note: String },
        26 => Unpaused { 1 => actor: String },
        /// An operator asked for the next attempt now.
        27 => RetryDue { 1 => step: u32, 2 => actor: String },
        /// A worker reported its progress.
        28 => Progress { 1 => step: u32, 2 => attempt: u32, 3 => progress: Payload },
        29 => Logged { 1 => step: u32, 2 => attempt: u32, 3 => lines: Vec<LogLine> },
        /// The worker is alive and heartbeats through node `epoch`, which tracks its lease from here on. Recorded when
        /// that is another node than before, and otherwise at most once a minute.
        30 => Kept { 1 => step: u32, 2 => attempt: u32, 3 => epoch: u64 },
        /// The next attempt does not start before `until`, because its host is down or asked for a pause. It has no number
        /// yet.
        31 => HeldBack { 1 => step: u32, 2 => until: Timestamp, 3 => failure: Failure, 4 => seen: Vec<Seen> },
        /// A step inside another one exists now. An iteration of a loop has the node of the loop.
        32 since 2 => Opened { 1 => step: u32, 2 => node: u32, 3 => parent: u32, 4 => index: u32 },
        /// A group started; its steps are opened next.
        33 since 2 => GroupStarted { 1 => step: u32, 2 => seen: Vec<Seen> },
        /// A loop started.
        34 since 2 => LoopStarted {
            1 => step: u32, 2 => seen: Vec<Seen>,
            /// The length of its list; `None` for a loop with a condition.
            3 => count: Option<u32>,
            /// The list in pieces, by the number of the first item of each.
            4 => pages: BTreeMap<u32, Payload>,
        },
        /// The run completed with this output.
        35 since 2 => RunFinished { 1 => output: Payload },
        /// A signal arrived. It stays unread until a step consumes it. This event's number identifies it.
        36 since 2 => SignalReceived {
            1 => name: String, 2 => body: Payload, 3 => actor: String,
            /// To recognise a repeat: the digest of the sender's key, and of the request.
            4 => key: Bytes, 5 => fingerprint: Bytes,
        },
        /// The step has read an unread signal.
        37 since 2 => SignalConsumed { 1 => step: u32, 2 => signal: u64 },
        38 since 2 => ApprovalRequested {
            1 => step: u32, 2 => deadline: Timestamp, 3 => prompt: String, 4 => items: Option<Payload>,
            5 => seen: Vec<Seen>,
        },
        /// The step was approved or denied; its end follows.
        39 since 2 => ApprovalDecided {
            1 => step: u32, 2 => decision: Decision,
            /// Empty when the deadline passed.
            3 => actor: String, 4 => comment: String,
        },
        /// A `pause` step was resumed.
        40 since 2 => Continued { 1 => step: u32, 2 => actor: String },
        /// A run of another workflow is started for an attempt at the step.
        41 since 2 => ChildStarted {
            1 => step: u32, 2 => attempt: u32, 3 => child: RunId, 4 => workflow: String, 5 => is_detached: bool,
            6 => is_closed_with_parent: bool, 7 => seen: Vec<Seen>,
        },
        /// The child ended with this status, or without one: it exists, and the step does not wait for its end.
        42 since 2 => ChildEnded {
            1 => step: u32, 2 => attempt: u32, 3 => child: RunId, 4 => status: Option<RunStatus>,
            /// It could not be started: no such run exists.
            5 => never_began: bool,
            /// How many runs it has started in turn.
            6 => descendants: u32,
        },
        /// The run is being cancelled: it ends when its children have.
        43 since 2 => RunCancelling { 1 => actor: String, 2 => reason: String },
        /// The run undoes what it did, and then ends as `end` says.
        44 since 2 => RunCompensating { 1 => end: Box<EndAfterUndo> },
        /// An attempt that was called off has come to its end.
        45 since 2 => Returned {
            1 => step: u32, 2 => attempt: u32,
            /// Of an attempt that succeeded all the same.
            3 => response: Option<Response>,
            4 => failure: Option<Failure>,
            5 => digest: u64,
        },
        /// An operator decides about the step; what follows from that comes next.
        46 since 2 => Overridden { 1 => step: u32, 2 => verb: Override, 3 => actor: String, 4 => reason: String },
        /// A run that had failed or timed out goes on.
        47 since 2 => RunRetried {
            1 => actor: String, 2 => reason: String,
            /// The steps that are pending again. A group or a loop among them starts from scratch: what was inside of it
            /// leaves the state.
            3 => steps: Vec<u32>,
            4 => expires_at: Timestamp,
            /// The groups, loops and iterations around those steps: they are at work again.
            5 => around: Vec<u32>,
        },
        /// The run is a fork: it takes over how the step ended in the run that it was forked from.
        48 since 2 => Copied { 1 => step: u32, 2 => ended: Box<CopiedStep> },
        /// The run goes on with another version of its workflow.
        49 since 2 => Moved {
            1 => actor: String, 2 => reason: String,
            3 => version: u32,
            4 => hash: Bytes,
            5 => lowering: u32,
            /// The node of each step in the state, in the plan of that version.
            6 => nodes: BTreeMap<u32, u32>,
            /// The outputs of the run that the version has, too.
            7 => outputs: Vec<MovedOutput>,
        },
    }
}

message! {
    /// An output that keeps its value when a run is moved to another version.
    pub struct MovedOutput {
        /// Its place in the plan before, and in the plan of the version.
        1 => from: u32,
        2 => to: u32,
        /// The node of the step that wrote it, in the plan of the version.
        3 => node: u32,
    }
}

message! {
    /// How a step ended in another run of the same version.
    pub struct CopiedStep {
        1 => status: StepStatus,
        2 => response: Option<Response>,
        3 => callback: Option<Callback>,
        4 => failure: Option<Failure>,
        /// Why it was skipped.
        5 => because: Option<Because>,
        /// What failed inside of it (M15): the steps inside are not copied.
        6 => errors: Option<Payload>,
        /// The caller gave this result; the step did not end so.
        7 => is_given: bool,
        /// The outputs of the run that the step wrote last: its result.
        8 => writes: Vec<u32>,
        /// The outputs of the run that a step inside of it wrote last, and their values.
        9 => outputs: BTreeMap<u32, Payload>,
    }
}

names! {
    /// What an operator can decide about a step that has not settled.
    pub enum Override {
        /// It is skipped.
        Skip = 1 "skip",
        /// It succeeds with a given result.
        Result = 2 "result",
        /// What it waits for is due now.
        RunNow = 3 "run_now",
    }
}

message! {
    /// How a run ends that undoes what it did first.
    pub struct EndAfterUndo {
        1 => status: RunStatus,
        2 => failure: Option<Failure>,
        /// The step that made it fail.
        3 => step: Option<u32>,
        /// Who cancelled it, and why.
        4 => actor: String,
        5 => reason: String,
        /// The runs that it started undo what they did when it ends.
        6 => undoes_children: bool,
    }
}

names! {
    /// Why a new run is queued.
    pub enum Queue {
        /// Its concurrency group is full.
        Limit = 1 "concurrency_limit",
        /// Its workflow is paused.
        WorkflowPaused = 2 "workflow_paused",
        /// It has a start time in the future.
        Later = 3 "run_at",
    }
}

message! {
    /// A log line of a worker.
    pub struct LogLine {
        1 => level: Level,
        2 => message: String,
    }
}

message! {
    /// What started a run, and with which input.
    pub struct Origin {
        1 => workflow: WorkflowId,
        2 => workflow_name: String,
        3 => version: u32,
        /// SHA-256 of the canonical definition.
        4 => hash: Bytes,
        5 => trigger: TriggerKind,
        6 => body: Payload,
        7 => headers: Vec<Pair>,
        /// Set when the run is created.
        8 => expires_at: Timestamp,
        9 => labels: Vec<Pair>,
        /// The schedule or webhook that started it.
        10 => trigger_id: Option<TriggerId>,
        /// The fire time of the schedule, which may be earlier than the time at which the run was created.
        11 => nominal: Option<Timestamp>,
        /// The delivery id that the sender of a webhook request chose.
        12 => delivery: String,
        /// The run whose input this one repeats.
        13 => replayed_from: Option<RunId>,
        /// The run whose end started this one through a notification. Such a run sends no notifications itself.
        14 => caused_by: Option<RunId>,
        /// The user or API key that started the run, if known.
        15 => actor: String,
        /// Called when the run has ended.
        16 => callback_url: String,
        /// Runs of the same group share a limit.
        17 => concurrency_group: Option<ConcurrencyGroup>,
        /// The priority of tasks that do not set their own; lower goes first.
        18 => priority: Option<u32>,
        /// No step starts before this time.
        19 => run_at: Option<Timestamp>,
        /// The concurrency key of tasks that do not set their own.
        20 => key: String,
        /// Which lowering of the definition made the run's plan.
        21 => lowering: u32,
        /// The step that started it.
        22 since 2 => parent: Option<Box<Parent>>,
        /// The run whose results this one took over, and the step from which it goes on.
        23 since 2 => forked_from: Option<Box<ForkPoint>>,
    }
}

message! {
    /// Where a fork begins.
    pub struct ForkPoint {
        1 => run: RunId,
        /// The key of the first step that runs again.
        2 => step: String,
        3 => reason: String,
    }
}

message! {
    /// The step that started a run.
    pub struct Parent {
        1 => run: RunId,
        2 => step: u32,
        3 => attempt: u32,
        /// The key of the step.
        4 => key: String,
        /// The name of the parent's workflow.
        5 => workflow: String,
        /// How many runs are above this one.
        6 => depth: u32,
        /// The step does not wait for the end of the run.
        7 => is_detached: bool,
        /// The person who started the parent, if known.
        8 => actor: String,
        /// How many runs the runs above had started when they asked for this one, it included.
        9 => spent: u32,
    }
}

message! {
    /// A limit on the number of open runs, as it was when the run was created.
    pub struct ConcurrencyGroup {
        /// The key that the runs share, filled in from the trigger.
        1 => key: String,
        2 => limit: u32,
        /// What happens to a new run when the group is full.
        3 => on_conflict: OnConflict,
    }
}

names! {
    pub enum OnConflict {
        /// The new run is queued.
        Queue = 1 "queue",
        /// The new run is cancelled at once.
        Skip = 2 "skip",
        /// The oldest open run is cancelled, and the new one starts.
        CancelRunning = 3 "cancel_running",
    }
}

names! {
    pub enum TriggerKind {
        Api = 1 "api",
        Schedule = 2 "schedule",
        Webhook = 3 "webhook",
        Manual = 4 "manual",
        /// A step of another run.
        Subworkflow = 5 since 2 "subworkflow",
    }
}

message! {
    /// A name and a value: a header, a label.
    pub struct Pair {
        1 => name: String,
        2 => value: String,
    }
}

message! {
    /// Why an attempt, a step or a run failed: a code for programs and a message for users.
    pub struct Failure {
        1 => code: String,
        2 => message: String,
    }
}

impl Failure {
    /// Whether the attempt may have done its work: its end is not known.
    pub fn is_unknown_outcome(&self) -> bool {
        let codes = ["outcome_unknown", "quarantined", "lease_lost", "timeout", "total_timeout", "network"];
        codes.contains(&self.code.as_str()) || self.code.starts_with("bash_timeout:")
    }

    pub fn new(code: &str, message: impl Into<String>) -> Failure {
        Failure { code: code.to_owned(), message: message.into(), ..Default::default() }
    }
}

message! {
    /// The response to an attempt.
    pub struct Response {
        1 => status_code: Option<u16>,
        2 => headers: Vec<Pair>,
        3 => body: Option<Payload>,
        4 => took: Span,
    }
}

message! {
    pub struct Callback {
        1 => body: Payload,
        /// SHA-256 of the bytes, to recognise an identical repeat.
        2 => digest: Bytes,
    }
}

choice! {
    /// Why a step was skipped.
    pub enum Because {
        /// Its condition was false.
        1 => Condition { 1 => seen: Vec<Seen> },
        /// These needs did not succeed.
        2 => Needs { 1 => steps: Vec<u32> },
        /// An operator skipped it.
        3 since 2 => Operator { 1 => actor: String, 2 => reason: String },
    }
}

impl Default for Because {
    fn default() -> Self {
        Because::Needs { steps: Vec::new() }
    }
}

words! {
    /// What the API calls an event.
    pub enum EventType {
        /// The run exists. Always the first event.
        RunCreated = "run.created",
        /// No step of the run executes: it waits for a time, a callback or a worker. With `data.reason`, a new run waits to start (`concurrency_limit`, `workflow_paused` or `run_at`).
        RunWaiting = "run.waiting",
        /// The run continues, or a new run that waited starts.
        RunResumed = "run.resumed",
        /// The run ended and its outcome is `completed`.
        RunCompleted = "run.completed",
        /// The run ended because of `data.error`; `step` is the step that failed it.
        RunFailed = "run.failed",
        /// The run was cancelled by `actor`, for `data.reason`.
        RunCancelled = "run.cancelled",
        /// The run did not finish within `max_duration`.
        RunTimeout = "run.timeout",
        /// The step is ready and waits for a node or a worker.
        StepScheduled = "step.scheduled",
        /// The worker `data.worker` claimed the task, for the time in `data.lease`.
        StepLeased = "step.leased",
        /// A step inside a group, a loop or an iteration exists now: `data.parent` is the step around it, `data.index` the number of the iteration.
        StepOpened = "step.opened",
        /// An attempt started.
        StepStarted = "step.started",
        /// An attempt failed; the next one starts at `data.next_attempt_at`. With `data.reason` `retry_now`, `actor` asked for it at once. With `host_backoff`, the next attempt waits until then because its host is down or asked for a pause.
        StepRetrying = "step.retrying",
        /// The step succeeded.
        StepSucceeded = "step.succeeded",
        /// The step received its callback.
        StepReceived = "step.received",
        /// The step failed, and there will be no other attempt.
        StepFailed = "step.failed",
        /// The step timed out.
        StepTimeout = "step.timeout",
        /// The step was skipped; `data.reason` is `condition_false`, `needs_not_successful` or `other_branch`.
        StepSkipped = "step.skipped",
        /// An operator, `actor`, decided about the step: `data.verb` is `skip`, `result` or `run_now`.
        StepOverridden = "step.overridden",
        /// The run ended before the step did.
        StepCancelled = "step.cancelled",
        /// A worker saved its progress, or it is alive, which is recorded at most once a minute or when it reports through another node.
        StepHeartbeat = "step.heartbeat",
        /// A worker sent log lines.
        StepLog = "step.log",
        /// The signal `data.name` arrived, and is kept until a step reads it.
        SignalReceived = "signal.received",
        /// The step read the signal that arrived with event `data.signal`.
        SignalConsumed = "signal.consumed",
        /// The step started the run `data.run_id` of another workflow.
        ChildStarted = "child.started",
        /// That run ended with `data.status`; without one, it exists, and the step does not wait for its end.
        ChildEnded = "child.ended",
        /// The run was cancelled by `actor`, and ends when the runs that it started have.
        RunCancelling = "run.cancelling",
        /// The run undoes what it did, the latest first, and then ends with `data.status`.
        RunCompensating = "run.compensating",
        /// The run had failed or timed out, and goes on: `actor` retried it, for `data.reason`. The steps in `data.steps` run again.
        RunRetried = "run.retried",
        /// The run goes on with another version of its workflow, `data.version`: `actor` moved it, for `data.reason`.
        RunMoved = "run.moved",
        /// The run is a fork: it takes over how the step ended in the run that it was forked from, or the result that
        /// the caller gave.
        StepCopied = "step.copied",
        /// What the step did is being undone.
        CompensationStarted = "compensation.started",
        /// What the step did is undone.
        CompensationSucceeded = "compensation.succeeded",
        /// What the step did could not be undone, because of `data.error`. The rest is undone all the same.
        CompensationFailed = "compensation.failed",
        /// The step waits for an approval until `data.deadline`.
        ApprovalRequested = "approval.requested",
        /// The step was approved by `actor`, or its deadline passed and the default is to approve.
        ApprovalApproved = "approval.approved",
        /// The step was denied by `actor`, or its deadline passed.
        ApprovalDenied = "approval.denied",
        /// The step sleeps until `data.wake_at`.
        TimerSet = "timer.set",
        /// The step waits until `data.deadline` for what `data.kind` says: a callback (`webhook`), a `signal`, or to be resumed (`pause`). Without a step, the run was paused.
        WaitOpened = "wait.opened",
        /// A callback arrived before the run reached its step, and is kept. With `data.kind` `pause`, the step or the run was resumed.
        WaitClosed = "wait.closed",
        /// A result arrived too late. It changes nothing, except that a step which turns out to have succeeded is undone with its run.
        LateResult = "late_result",
    }
}

impl EventType {
    /// The type of an event of a step that undoes another one.
    pub fn of_undo(self) -> EventType {
        match self {
            EventType::StepOpened => EventType::CompensationStarted,
            EventType::StepSucceeded => EventType::CompensationSucceeded,
            EventType::StepFailed | EventType::StepTimeout => EventType::CompensationFailed,
            other => other,
        }
    }
}

impl Event {
    /// The public name; `None` for an event of a later release.
    pub fn name(&self) -> Option<&'static str> {
        self.event_type().map(EventType::as_str)
    }

    /// `None` for an event of a later release.
    pub fn event_type(&self) -> Option<EventType> {
        Some(match self {
            Event::Created { .. } => EventType::RunCreated,
            Event::RunWaiting {} | Event::Queued { .. } => EventType::RunWaiting,
            Event::RunResumed {} | Event::Admitted {} => EventType::RunResumed,
            Event::RunCompleted {} | Event::RunFinished { .. } => EventType::RunCompleted,
            Event::Opened { .. } => EventType::StepOpened,
            Event::GroupStarted { .. } | Event::LoopStarted { .. } => EventType::StepStarted,
            Event::RunFailed { .. } => EventType::RunFailed,
            Event::RunCancelled { .. } => EventType::RunCancelled,
            Event::RunTimeout {} => EventType::RunTimeout,
            Event::Scheduled { .. } => EventType::StepScheduled,
            Event::Leased { .. } => EventType::StepLeased,
            Event::Started { .. } => EventType::StepStarted,
            Event::Retrying { .. } | Event::RetryDue { .. } | Event::HeldBack { .. } => EventType::StepRetrying,
            Event::Succeeded { .. } | Event::Woken { .. } => EventType::StepSucceeded,
            Event::Received { .. } => EventType::StepReceived,
            Event::Failed { .. } => EventType::StepFailed,
            Event::TimedOut { .. } => EventType::StepTimeout,
            Event::Skipped { .. } => EventType::StepSkipped,
            Event::Overridden { .. } => EventType::StepOverridden,
            Event::Cancelled { .. } => EventType::StepCancelled,
            Event::TimerSet { .. } => EventType::TimerSet,
            Event::WaitOpened { .. } | Event::Paused { .. } => EventType::WaitOpened,
            Event::WaitClosed { .. } | Event::Unpaused { .. } | Event::Continued { .. } => EventType::WaitClosed,
            Event::SignalReceived { .. } => EventType::SignalReceived,
            Event::ChildStarted { .. } => EventType::ChildStarted,
            Event::ChildEnded { .. } => EventType::ChildEnded,
            Event::RunCancelling { .. } => EventType::RunCancelling,
            Event::RunCompensating { .. } => EventType::RunCompensating,
            Event::RunRetried { .. } => EventType::RunRetried,
            Event::Copied { .. } => EventType::StepCopied,
            Event::Moved { .. } => EventType::RunMoved,
            Event::SignalConsumed { .. } => EventType::SignalConsumed,
            Event::ApprovalRequested { .. } => EventType::ApprovalRequested,
            Event::ApprovalDecided { decision: Decision::Approved, .. } => EventType::ApprovalApproved,
            Event::ApprovalDecided { decision: Decision::Denied, .. } => EventType::ApprovalDenied,
            Event::LateResult { .. } | Event::Returned { .. } => EventType::LateResult,
            Event::Progress { .. } | Event::Kept { .. } => EventType::StepHeartbeat,
            Event::Logged { .. } => EventType::StepLog,
            Event::Unknown { .. } => return None,
        })
    }

    /// Whether the run ends with this event.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Event::RunCompleted {}
                | Event::RunFinished { .. }
                | Event::RunFailed { .. }
                | Event::RunCancelled { .. }
                | Event::RunTimeout {}
        )
    }

    /// The step it is about.
    pub fn step(&self) -> Option<u32> {
        match self {
            Event::Scheduled { step, .. }
            | Event::Leased { step, .. }
            | Event::Started { step, .. }
            | Event::Retrying { step, .. }
            | Event::Succeeded { step, .. }
            | Event::Received { step, .. }
            | Event::Failed { step, .. }
            | Event::TimedOut { step, .. }
            | Event::Skipped { step, .. }
            | Event::Cancelled { step, .. }
            | Event::TimerSet { step, .. }
            | Event::WaitOpened { step, .. }
            | Event::WaitClosed { step, .. }
            | Event::LateResult { step, .. }
            | Event::Woken { step }
            | Event::RetryDue { step, .. }
            | Event::Progress { step, .. }
            | Event::Kept { step, .. }
            | Event::HeldBack { step, .. }
            | Event::Opened { step, .. }
            | Event::GroupStarted { step, .. }
            | Event::LoopStarted { step, .. }
            | Event::SignalConsumed { step, .. }
            | Event::ApprovalRequested { step, .. }
            | Event::ApprovalDecided { step, .. }
            | Event::Continued { step, .. }
            | Event::ChildStarted { step, .. }
            | Event::ChildEnded { step, .. }
            | Event::Returned { step, .. }
            | Event::Overridden { step, .. }
            | Event::Copied { step, .. }
            | Event::Logged { step, .. } => Some(*step),
            Event::RunFailed { step, .. } => *step,
            Event::Created { .. }
            | Event::RunWaiting {}
            | Event::RunResumed {}
            | Event::RunCompleted {}
            | Event::RunFinished { .. }
            | Event::RunCancelled { .. }
            | Event::RunTimeout {}
            | Event::SignalReceived { .. }
            | Event::RunCancelling { .. }
            | Event::RunCompensating { .. }
            | Event::RunRetried { .. }
            | Event::Moved { .. }
            | Event::Queued { .. }
            | Event::Admitted {}
            | Event::Paused { .. }
            | Event::Unpaused { .. }
            | Event::Unknown { .. } => None,
        }
    }

    /// The attempt it is about.
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Event::Scheduled { attempt, .. }
            | Event::Leased { attempt, .. }
            | Event::Started { attempt, .. }
            | Event::Retrying { attempt, .. }
            | Event::Succeeded { attempt, .. }
            | Event::Failed { attempt, .. }
            | Event::TimedOut { attempt, .. }
            | Event::Progress { attempt, .. }
            | Event::Kept { attempt, .. }
            | Event::Logged { attempt, .. }
            | Event::ChildStarted { attempt, .. }
            | Event::ChildEnded { attempt, .. }
            | Event::Returned { attempt, .. }
            | Event::LateResult { attempt, .. } => Some(*attempt).filter(|a| *a > 0),
            _ => None,
        }
    }
}
