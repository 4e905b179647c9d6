//! What a turn of the mailbox produces: what to commit and to read, and what may leave afterwards.

use super::{DeferredInput, Dispatch, QueuedInput, Reply};
use kernel::{Answer, Effect, Event, OrgId, Record, RunId};
use std::collections::BTreeSet;
use store::{Batch, ConsumedRow, InboxKey, InboxRow, QueueKey, QueuePosition};

/// One turn: what to commit, and what to do once it is durable.
pub struct Turn<T> {
    pub batch: Batch,
    /// Runs to read; answer each with [`Command::Loaded`].
    pub loads: Vec<(OrgId, RunId)>,
    /// Payloads to read; answer each with [`Command::Fetched`].
    pub fetches: Vec<(OrgId, RunId, Vec<u32>)>,
    /// Key queues to read rows of, after a position; answer each with [`Command::Refilled`].
    pub refills: Vec<(QueueKey, Option<QueuePosition>)>,
    /// Types to read the keys of, after a key; answer each with [`Command::KeysRead`].
    pub key_reads: Vec<(OrgId, String, Option<String>)>,
    /// Types to read the limit slots of; answer each with [`Command::LimitSlots`].
    pub slot_reads: Vec<(OrgId, String)>,
    /// Parallel to `batch.runs`.
    pub(super) pending: Vec<PendingRun<T>>,
    /// Replies that depend only on what is already durable.
    pub(super) ready: Vec<(T, Reply)>,
}

impl<T> Default for Turn<T> {
    fn default() -> Self {
        Turn {
            batch: Batch::default(),
            loads: Vec::new(),
            fetches: Vec::new(),
            refills: Vec::new(),
            key_reads: Vec::new(),
            slot_reads: Vec::new(),
            pending: Vec::new(),
            ready: Vec::new(),
        }
    }
}

impl<T> Turn<T> {
    /// Does the commit of this turn start a step in this process?
    pub fn starts_local_steps(&self) -> bool {
        let executes = |effect: &Effect| matches!(effect, Effect::Execute { .. });
        self.pending.iter().any(|pending| pending.effects.iter().any(executes))
    }
}

pub(super) struct PendingRun<T> {
    pub items: Vec<QueuedInput<T>>,
    pub answers: Vec<Answer>,
    pub effects: Vec<Effect>,
    pub change: StatusChange,
}

/// Whether a run ends with a record, or goes on after it had ended. Both are possible with one record.
#[derive(Clone, Copy, Default)]
pub(super) struct StatusChange {
    /// The event with which it ends.
    pub end: Option<u64>,
    pub is_reopened: bool,
}

impl StatusChange {
    pub fn of(record: &Record) -> StatusChange {
        let end = record.events.iter().zip(record.first..).find(|(event, _)| event.is_end()).map(|(_, number)| number);
        let is_reopened = record.events.iter().any(|event| matches!(event, Event::RunRetried { .. }));
        StatusChange { end, is_reopened }
    }
}

/// What may leave after a commit.
pub struct Released<T> {
    pub replies: Vec<(T, Reply)>,
    pub dispatch: Vec<Dispatch>,
    /// Attempts to abort: their runs do not need them any more.
    pub aborts: Vec<(RunId, u64)>,
    /// Notifications to send because a run ended: the run and the notification's number.
    pub notifications: Vec<(OrgId, RunId, u64)>,
    pub started: u64,
    pub ended: u64,
    pub steps: u64,
    /// Tasks leased to workers.
    pub leased: u64,
    /// Key queues with a new ready task or a free limit slot that no open claim on this node takes.
    pub posted: BTreeSet<QueueKey>,
    /// A run entered or left a concurrency group that another node owns.
    pub touches_remote_group: bool,
    /// Runs that another node may have in memory and that this node has advanced.
    pub moved: Vec<(OrgId, RunId)>,
    /// Inputs to write to the inbox; their callers are answered from there.
    pub deferred: Vec<DeferredInput<T>>,
    /// Answers to rows of the inbox that no record consumes.
    pub inbox_answers: Vec<ConsumedRow>,
    /// Rows that ask for runs which this node is to start.
    pub children: Vec<InboxRow>,
    /// Rows with which parents close children that do not exist.
    pub closed_children: Vec<InboxKey>,
    /// Rows were written for runs that other nodes own.
    pub informs_other_nodes: bool,
    /// The record that was to consume rows of the inbox was refused: read the inbox again.
    pub reads_inbox: bool,
}

impl<T> Default for Released<T> {
    fn default() -> Self {
        let (replies, dispatch, aborts, notifications) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Released {
            replies,
            dispatch,
            aborts,
            notifications,
            started: 0,
            ended: 0,
            steps: 0,
            leased: 0,
            posted: BTreeSet::new(),
            touches_remote_group: false,
            moved: Vec::new(),
            deferred: Vec::new(),
            inbox_answers: Vec::new(),
            children: Vec::new(),
            closed_children: Vec::new(),
            informs_other_nodes: false,
            reads_inbox: false,
        }
    }
}
