//! What is asked of the mailbox, and what it answers.

use crate::concurrency_groups::QueueStatus;
use crate::nodes::Nodes;
use crate::task_queue::{ClaimReply, ClaimRequest, ClaimStatus};
use crate::version::Version;
use bytes::Bytes;
use kernel::event::Origin;
use kernel::run::LoadError;
use kernel::{Answer, Input, OrgId, Run, RunId, RunStatus, Span, Timestamp, WorkflowId};
use std::sync::Arc;
use store::{
    ConcurrencyGroupRow, GroupedRun, LimitSlotRow, QueueKey, QueuePosition, RunInsert, RunRow, Timer, TypeRow,
    WorkerRow,
};

/// What is asked of the mailbox. `T` is the caller's reply_to: whatever it needs to route the reply.
pub enum Command<T> {
    /// Answers `reply_to` when the run exists, and `ended`, if given, when it has ended.
    Start {
        start: Box<Start>,
        reply_to: T,
        ended: Option<T>,
    },
    /// Creates runs in one durable write, all of them or none; answers every reply_to.
    StartAll(Vec<(Start, T)>),
    /// An input from outside (with a reply_to) or from inside (without).
    Give {
        org: OrgId,
        run: RunId,
        input: Input,
        reply_to: Option<T>,
    },
    /// Answers when the run has ended.
    Watch {
        org: OrgId,
        run: RunId,
        reply_to: T,
    },
    /// A run was in memory when the last process died: take it up again.
    Recover {
        org: OrgId,
        run: RunId,
    },
    /// Who shares the store.
    Nodes(Nodes),
    /// All runs that were neither parked nor over at some moment after `since`. What is in memory and not among them has
    /// been moved on by another node. Of those that are this node's it takes up what nobody sees to: all that it
    /// has not if another node is gone (`is_recovery`), or what it has missed for long.
    Sweep {
        open: Vec<(OrgId, RunId)>,
        since: Timestamp,
        is_recovery: bool,
    },
    /// Another node has moved this run on.
    Reread(RunId),
    /// Timers of parked runs that are due soon.
    Timers(Vec<Timer>),
    Loaded {
        run: RunId,
        result: Result<Option<Box<Resumed>>, LoadFailure>,
    },
    Fetched {
        run: RunId,
        result: Result<Vec<(u32, Bytes)>, LoadFailure>,
    },
    /// What the last process left of gates: paused workflows, and runs that hold a place or wait for one.
    ConcurrencyGroups {
        paused: Vec<WorkflowId>,
        runs: Vec<GroupedRun>,
    },
    /// New runs of a workflow wait for their turn, until it is resumed.
    PauseWorkflow(WorkflowId),
    ResumeWorkflow(WorkflowId),
    /// Answers who stands between a run and its turn.
    QueueStatus {
        run: RunId,
        reply_to: T,
    },
    /// A worker asks for tasks; answered with [`Reply::Claimed`].
    Claim(Box<ClaimRequest<T>>),
    /// The time of a worker's question is up.
    WithdrawClaim(u64),
    /// The holder of `fence` is alive; answered with [`Reply::Lease`].
    Extend {
        org: OrgId,
        run: RunId,
        step: u32,
        fence: u64,
        by: Option<Span>,
        reply_to: T,
    },
    /// What the last process left of workers, types and tasks that wait.
    RestoreTaskQueue {
        queues: Vec<(QueueKey, u64)>,
        types: Vec<TypeRow>,
        workers: Vec<WorkerRow>,
    },
    /// What is known about a type has changed.
    TypeChanged(Box<TypeRow>),
    /// Tasks of a lane that wait while their runs are parked; nothing if they could not be read.
    Refilled {
        queue: QueueKey,
        rows: Option<Vec<QueuePosition>>,
    },
    /// Another node has a task for this lane that nobody there takes, or room for one.
    TaskReadyElsewhere(QueueKey),
    /// What the store says of workers, and of how many tasks of each type wait.
    ClusterCounts {
        workers: Vec<WorkerRow>,
        ready: Vec<(OrgId, String, u64)>,
    },
    /// Types with tasks that wait.
    TypesWithTasks(Vec<(OrgId, String)>),
    /// Who has which seats of a type; nothing if they could not be read.
    LimitSlots {
        org: OrgId,
        name: String,
        rows: Option<Vec<LimitSlotRow>>,
    },
    /// Keys of a type that have tasks which wait; nothing if they could not be read.
    KeysRead {
        org: OrgId,
        name: String,
        keys: Option<Vec<String>>,
    },
    /// Answers what the board knows.
    Query(Query, T),
    /// Starts nothing from now on: what is under way may finish, the rest is for the next process.
    Drain,
}

/// A question about tasks and workers.
#[derive(Clone, Debug)]
pub enum Query {
    /// Why does a task that waits have nobody?
    ClaimStatus(QueueKey),
    /// Until when are these leased?
    Leases(Vec<(RunId, u32)>),
    /// What is going on in these types?
    Types(OrgId, Vec<String>),
    Workers(OrgId),
    /// Workers of which something is to be stored; forgets those not heard of since.
    ChangedWorkers {
        all: bool,
        since: Timestamp,
    },
}

/// A run to be created.
pub struct Start {
    pub org: OrgId,
    pub run: RunId,
    pub version: Arc<Version>,
    pub origin: Origin,
    /// The row of `origin.concurrency_group`.
    pub concurrency_group: Option<ConcurrencyGroupRow>,
    pub run_insert: RunInsert,
}

/// A stored run, folded and ready to go on.
pub struct Resumed {
    pub version: Arc<Version>,
    pub run: Run,
    pub seq: u64,
    pub row: RunRow,
    /// Records folded after the snapshot.
    pub records: u32,
}

/// Why a run could not be read.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadFailure {
    /// Later, perhaps.
    Store(String),
    /// It needs a newer release.
    Newer,
    /// What is stored makes no sense.
    Damaged(String),
}

impl From<LoadError> for LoadFailure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Newer => LoadFailure::Newer,
            LoadError::Damaged(what) => LoadFailure::Damaged(what),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The input was judged, and whatever it changed is durable.
    Answer {
        answer: Answer,
        status: RunStatus,
        created_at: Timestamp,
    },
    /// The watched run has ended.
    Ended(RunStatus),
    QueueStatus(Option<QueueStatus>),
    Claimed(Box<ClaimReply>),
    /// Until when the holder has the task now; nothing if the board does not know it as a holder.
    Lease(Option<Timestamp>),
    ClaimStatus(Box<ClaimStatus>),
    Leases(Vec<Option<Timestamp>>),
    /// Waiting, leased and workers that are there.
    Types(Vec<(u64, u32, u32)>),
    /// With the tasks each has.
    Workers(Vec<(WorkerRow, u32)>),
    /// The idempotency key belongs to another run.
    KeyTaken {
        run: RunId,
        fingerprint: [u8; 32],
    },
    /// Another run of the same unit was refused, so this one was not created.
    Undone,
    NotFound,
    /// Nothing was written.
    Unavailable(String),
    /// It may or may not have been written.
    Unknown(String),
    LoadFailure(LoadFailure),
}
