//! The commands of the mailbox and its replies.

use super::{InboxInput, InboxSource, StoredBytes};
use crate::concurrency_groups::QueueStatus;
use crate::nodes::Nodes;
use crate::task_queue::{ClaimReply, ClaimRequest, ClaimStatus};
use crate::version::Version;
use bytes::Bytes;
use kernel::event::{CopiedStep, Origin};
use kernel::inbox::StoredAnswer;
use kernel::run::LoadError;
use kernel::{Answer, Input, OrgId, Run, RunId, RunStatus, Span, Timestamp, WorkflowId};
use std::sync::Arc;
use store::{
    ConcurrencyGroupRow, GroupedRun, LimitSlotRow, QueueKey, QueuePosition, RunInsert, RunRow, Timer, TypeRow,
    WorkerRow,
};

/// A command for the mailbox. `T` is the reply channel: what the caller needs to route the reply.
pub enum Command<T> {
    /// Answers `reply_to` when the run exists, and `ended`, if given, when it has ended.
    Start {
        start: Box<StartRun>,
        reply_to: T,
        ended: Option<T>,
    },
    /// Creates an atomic group of runs, all of them or none; answers every `reply_to`.
    StartAll(Vec<(StartRun, T)>),
    /// An input from a caller, or without a `reply_to` from the engine itself.
    Give {
        org: OrgId,
        run: RunId,
        input: Input,
        reply_to: Option<T>,
    },
    /// Inputs that were read from the inbox, perhaps not for the first time.
    GiveInbox(Vec<InboxInput>),
    /// Answers when the run has ended.
    Watch {
        org: OrgId,
        run: RunId,
        reply_to: T,
    },
    /// A run was in memory when the last process died: reads it again.
    Recover {
        org: OrgId,
        run: RunId,
    },
    /// The nodes that share the store.
    Nodes(Nodes),
    /// All runs that were neither evicted nor ended at some time after `since`. Another node has advanced the runs in
    /// memory that are not among them. Of the runs that this node owns, it recovers those that no node has in memory:
    /// all that it does not have if another node is gone (`is_recovery`), else those missing for many sweeps.
    Sweep {
        open: Vec<(OrgId, RunId)>,
        since: Timestamp,
        is_recovery: bool,
    },
    /// Another node has advanced this run: reads it again.
    Reread(RunId),
    /// Timers of evicted runs that are due soon.
    Timers(Vec<Timer>),
    Loaded {
        run: RunId,
        result: Result<Option<Box<Resumed>>, LoadFailure>,
    },
    Fetched {
        run: RunId,
        result: Result<Vec<(u32, Bytes)>, LoadFailure>,
    },
    /// The stored state of concurrency groups: paused workflows, and runs that are in a group or wait for one.
    ConcurrencyGroups {
        paused: Vec<WorkflowId>,
        runs: Vec<GroupedRun>,
    },
    /// New runs of a workflow are queued until it is resumed.
    PauseWorkflow(WorkflowId),
    ResumeWorkflow(WorkflowId),
    /// Answers why a run is queued.
    QueueStatus {
        run: RunId,
        reply_to: T,
    },
    /// A worker claims tasks; answered with [`Reply::Claimed`].
    Claim(Box<ClaimRequest<T>>),
    /// The waiting time of an open claim is over.
    WithdrawClaim(u64),
    /// A heartbeat of the holder of `fence`; answered with [`Reply::Lease`].
    Extend {
        org: OrgId,
        run: RunId,
        step: u32,
        fence: u64,
        by: Option<Span>,
        reply_to: T,
    },
    /// The stored workers, types and ready tasks of the last process.
    RestoreTaskQueue {
        queues: Vec<(QueueKey, u64)>,
        types: Vec<TypeRow>,
        workers: Vec<WorkerRow>,
    },
    /// The registration of a type has changed.
    TypeChanged(Box<TypeRow>),
    /// Rows that were read for a key queue; `None` if the read failed.
    Refilled {
        queue: QueueKey,
        rows: Option<Vec<QueuePosition>>,
    },
    /// Another node has a ready task for this key queue that no claim there takes, or freed a limit slot of it.
    TaskReadyElsewhere(QueueKey),
    /// The workers of all nodes, and the number of ready tasks of each type, from the store.
    ClusterCounts {
        workers: Vec<WorkerRow>,
        ready: Vec<(OrgId, String, u64)>,
    },
    /// Types with ready tasks in the store.
    TypesWithTasks(Vec<(OrgId, String)>),
    /// The taken limit slots of a type; `None` if the read failed.
    LimitSlots {
        org: OrgId,
        name: String,
        rows: Option<Vec<LimitSlotRow>>,
    },
    /// Keys of a type that have ready tasks; `None` if the read failed.
    KeysRead {
        org: OrgId,
        name: String,
        keys: Option<Vec<String>>,
    },
    /// Answers a question about the task queue.
    Query(QueueQuery, T),
    /// Starts nothing from now on. Attempts under way may finish; the next process does the rest.
    Drain,
    /// The node's clock is too wrong to fire timers and lease tasks, or is right again.
    Suspend(bool),
}

/// A question about tasks and workers.
#[derive(Clone, Debug)]
pub enum QueueQuery {
    /// Why does no worker have this ready task?
    ClaimStatus(QueueKey),
    /// Until when are these leased?
    Leases(Vec<(RunId, u32)>),
    /// How many ready tasks, leases and workers do these types have?
    Types(OrgId, Vec<String>),
    Workers(OrgId),
    /// Which workers are to be stored? Forgets those that sent nothing since.
    ChangedWorkers {
        all: bool,
        since: Timestamp,
    },
}

/// A run to create.
pub struct StartRun {
    pub org: OrgId,
    pub run: RunId,
    pub version: Arc<Version>,
    pub origin: Origin,
    /// How steps ended in the run that this one is a fork of.
    pub copied: Vec<(u32, CopiedStep)>,
    /// The row of `origin.concurrency_group`.
    pub concurrency_group: Option<ConcurrencyGroupRow>,
    pub run_insert: RunInsert,
    /// The rows of the inbox that ask for it.
    pub source: Option<Box<InboxSource>>,
}

/// A run that was read from the store, folded from its records.
pub struct Resumed {
    pub version: Arc<Version>,
    pub run: Run,
    pub seq: u64,
    pub row: RunRow,
    pub stored_bytes: StoredBytes,
}

/// Why a run could not be read.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadFailure {
    /// The store did not answer; a later read may succeed.
    Store(String),
    /// It needs a newer release.
    Newer,
    /// The stored records cannot be folded.
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
    /// The kernel's answer to an input. Its effects are durable.
    Answer {
        answer: Answer,
        status: RunStatus,
        created_at: Timestamp,
    },
    /// The watched run has ended.
    Ended(RunStatus),
    QueueStatus(Option<QueueStatus>),
    Claimed(Box<ClaimReply>),
    /// The new deadline of the lease; `None` if the task queue has no such lease.
    Lease(Option<Timestamp>),
    ClaimStatus(Box<ClaimStatus>),
    Leases(Vec<Option<Timestamp>>),
    /// Ready tasks, leased tasks and present workers of each type.
    Types(Vec<(u64, u32, u32)>),
    /// Workers, each with the number of tasks it holds.
    Workers(Vec<(WorkerRow, u32)>),
    /// The idempotency key belongs to another run.
    KeyTaken {
        run: RunId,
        fingerprint: [u8; 32],
    },
    /// Another run of the same atomic group was refused, so this one was not created.
    Undone,
    NotFound,
    /// Nothing was written.
    Unavailable(String),
    /// It may or may not have been written.
    Unknown(String),
    LoadFailure(LoadFailure),
}

impl Reply {
    /// The reply that a stored answer stands for.
    pub fn stored(answer: &[u8]) -> Reply {
        match StoredAnswer::open(answer) {
            Ok(StoredAnswer::Run { answer, ended, status, created_at }) => {
                Reply::Answer { answer: answer.answer(ended), status, created_at }
            }
            Ok(StoredAnswer::NotFound {}) => Reply::NotFound,
            Ok(StoredAnswer::Unknown { .. }) => Reply::Unknown("the answer is of a later release".into()),
            Err(error) => Reply::Unknown(error.to_string()),
        }
    }
}
