//! What travels in and out of a store. Plain data; every row knows its organisation.

use crate::triggers::{DeliveryRow, ScheduleAdvance, TriggerRow};
use bytes::Bytes;
use kernel::event::OnConflict;
use kernel::plan::Form;
use kernel::{OrgId, RunId, RunStatus, Span, Timestamp, WorkflowId};
use std::num::NonZeroU32;

/// Records of many runs, to be made durable together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Engine time of the batch.
    pub at: Timestamp,
    /// The node that wrote it.
    pub epoch: u64,
    pub runs: Vec<RunWrite>,
}

/// One record of one run and the rows that go with it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunWrite {
    pub org: OrgId,
    pub run: RunId,
    /// Number of the run's last record as the writer saw it; 0 for a run that does not exist yet. The
    /// new record gets the next number.
    pub after: u64,
    pub record: Bytes,
    /// The `runs` row, when it is new or its status changes. Required when `after` is 0.
    pub row: Option<RunRow>,
    /// State after this record.
    pub snapshot: Option<Bytes>,
    /// The timer row a parked run has.
    pub timer: TimerChange,
    /// Payloads too large for the record.
    pub payloads: Vec<(u32, Bytes)>,
    /// Its tasks that wait to be claimed, of which rows stand for those others may claim.
    pub ready: ReadyChange,
    /// What its tasks that workers have take up of limits.
    pub limit_slots: LimitSlotChange,
    /// How many are to be told that the run has ended; only with its last record.
    pub notifications: u32,
    /// Only with the first record.
    pub run_insert: Option<Box<RunInsert>>,
    /// Neighbours in a batch with the same mark land together or not at all.
    pub atomic_group: Option<NonZeroU32>,
}

/// Rows written once, with a run's first record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInsert {
    pub waits: Vec<Wait>,
    pub labels: Vec<(String, String)>,
    pub idempotency: Option<IdempotencyKey>,
    /// The line in the log of the trigger that started it…
    pub delivery: Option<DeliveryRow>,
    /// … and how far its schedule is with it.
    pub advance: Option<ScheduleAdvance>,
    /// The notice this run hands over: the run that ended, and the notice's number. It is removed.
    pub notification: Option<(RunId, u32)>,
}

/// How a run's rows of tasks that wait to be claimed change. Removing comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyChange {
    pub remove: Vec<ReadyRow>,
    pub insert: Vec<ReadyRow>,
}

/// A task that waits to be claimed although its run has left memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadyRow {
    pub queue: QueueKey,
    pub position: QueuePosition,
}

/// How the seats change that a run's tasks have. Freeing comes first. A seat that somebody has, whose time is not over at
/// the time of the batch, refuses the write ([`Verdict::Full`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSlotChange {
    pub free: Vec<LimitSlotRow>,
    pub take: Vec<LimitSlotRow>,
}

/// One of as many as a limit of a type allows. What is numbered cannot be had twice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitSlot {
    pub org: OrgId,
    /// The type.
    pub name: String,
    pub of: LimitScope,
    /// Empty for what all keys share.
    pub key: String,
    pub number: u32,
}

/// Which limit a seat is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitScope {
    /// Of all that are leased at once…
    Type = 0,
    /// …and of those of one key.
    Key = 1,
    /// Of all that are handed out in a stretch of time, or those of one key.
    Rate = 2,
}

impl LimitScope {
    /// The way back from its number.
    pub(crate) fn stored(number: i16) -> LimitScope {
        match number {
            0 => LimitScope::Type,
            1 => LimitScope::Key,
            _ => LimitScope::Rate,
        }
    }
}

/// A seat that somebody has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitSlotRow {
    pub slot: LimitSlot,
    pub run: RunId,
    pub step: u32,
    /// It is free again from then on, whether or not anybody frees it.
    pub until: Timestamp,
}

impl LimitSlotRow {
    /// Until somebody frees it.
    pub const FREED: Timestamp = Timestamp(i64::MAX);
}

/// Tasks of one type that share the limits of one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    pub org: OrgId,
    /// The type.
    pub name: String,
    /// Empty for the many without.
    pub key: String,
}

/// Where a task stands in its lane: lower priorities first, then older runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition {
    pub priority: u32,
    pub run: RunId,
    pub step: u32,
}

/// What is known about a type of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeRow {
    pub org: OrgId,
    pub name: String,
    /// Workers that say they are of another one do not get its tasks.
    pub runtime: Option<String>,
    pub description: Option<String>,
    /// Otherwise new tasks are refused and none is handed out.
    pub enabled: bool,
    /// Since when none is handed out, by whom and why.
    pub paused: Option<TypePause>,
    /// How many may be leased at once, of all and of one key.
    pub limit: Option<u32>,
    pub limit_per_key: Option<u32>,
    pub rate: Option<Rate>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypePause {
    pub at: Timestamp,
    pub actor: String,
    pub note: String,
}

/// How many tasks may be handed out in any stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub limit: u32,
    pub per: Span,
    /// Of each key, rather than of all.
    pub per_key: bool,
}

/// A worker as it last introduced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    pub org: OrgId,
    pub id: String,
    /// What it claims, as a JSON list.
    pub types: String,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
}

/// How a run's one timer row changes: the old one (if any) is removed, the new one (if any) inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerChange {
    pub remove: Option<Timestamp>,
    pub insert: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Committed,
    /// The run's last record is another one than the writer saw (or the run exists already, or does
    /// not). Nothing of this run was written.
    Conflict,
    /// The idempotency key is taken. Nothing of this run was written.
    KeyTaken {
        run: RunId,
        fingerprint: [u8; 32],
    },
    /// A seat it wants is taken. Nothing of this run was written.
    Full,
    /// Another write of its unit was refused. Nothing of this run was written.
    Undone,
}

impl Verdict {
    /// Does it leave the other writes of the unit alone? A key that the same request used before means
    /// that this part of it has been done.
    pub(crate) fn lets_group_commit(&self, write: &RunWrite) -> bool {
        let wanted = write.run_insert.as_ref().and_then(|run_insert| run_insert.idempotency.as_ref());
        match self {
            Verdict::Committed => true,
            Verdict::KeyTaken { fingerprint, .. } => wanted.is_some_and(|key| key.fingerprint == *fingerprint),
            Verdict::Conflict | Verdict::Full | Verdict::Undone => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// State at record `snapshot.0`, if there is a snapshot.
    pub snapshot: Option<(u64, Bytes)>,
    /// Records after the snapshot, oldest first; the last one is number `seq`.
    pub records: Vec<Bytes>,
    pub seq: u64,
    pub row: RunRow,
}

/// What lists, filters and recovery see of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRow {
    pub org: OrgId,
    pub id: RunId,
    pub workflow: WorkflowId,
    /// The workflow's name when the run was created.
    pub workflow_name: String,
    pub version: u32,
    pub hash: [u8; 32],
    pub form: Form,
    pub status: RunStatus,
    /// What a waiting run waits for: bit `1 << kind` for each.
    pub waiting: u32,
    /// Due time of the run's timer row, while it is parked with one.
    pub wake_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub error_code: Option<String>,
    /// What it shares a limit with.
    pub concurrency_group: Option<ConcurrencyGroupRow>,
    /// It is not in memory: nothing but an input, its timer or a worker brings it back. Of ended runs this says
    /// nothing.
    pub evicted: bool,
    /// Since when no list shows it.
    pub deleted_at: Option<Timestamp>,
}

/// A limit, as the rows of the runs under it say. Equal ids share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyGroupRow {
    pub id: [u8; 16],
    pub limit: u32,
    pub on_conflict: OnConflict,
}

/// An open run that holds a place, or waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedRun {
    pub org: OrgId,
    pub run: RunId,
    pub workflow: WorkflowId,
    pub concurrency_group: Option<ConcurrencyGroupRow>,
    /// It is `pending`.
    pub is_queued: bool,
}

/// A workflow whose runs wait for their turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowPause {
    pub org: OrgId,
    pub workflow: WorkflowId,
    pub at: Timestamp,
    pub actor: String,
    pub note: String,
}

/// Which notice: in this order they are listed.
pub type NotificationKey = (OrgId, RunId, u32);

/// Somebody has yet to be told that a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationRow {
    pub org: OrgId,
    pub run: RunId,
    pub number: u32,
    /// Why it could not be handed over yet; empty before the first try.
    pub error: String,
}

/// A parked run to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    pub at: Timestamp,
    pub org: OrgId,
    pub run: RunId,
}

/// A door through which the outside can reach a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    pub token_hash: [u8; 32],
    /// `webhook`; later also `approval`, `signal`.
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// What the key is unique within: a workflow's id, a task type, or `workflows` for workflows.
    pub scope: String,
    pub key: String,
    pub fingerprint: [u8; 32],
    pub created_at: Timestamp,
}

/// Ids carry the time they were made at, which is when a run was asked for; so a list need not look at ids
/// older than this before the runs it wants.
pub const ID_LAG: Span = Span::from_days(1);

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Any of these; empty means all.
    pub statuses: Vec<RunStatus>,
    pub workflow: Option<WorkflowId>,
    /// Not of this one, unless it is asked for by `workflow`.
    pub except: Option<WorkflowId>,
    /// Only runs written this way.
    pub form: Option<Form>,
    /// All of these.
    pub labels: Vec<(String, String)>,
    /// Created at or after. A run's id may be made [`ID_LAG`] before the run, not more.
    pub since: Option<Timestamp>,
    /// Created before.
    pub until: Option<Timestamp>,
    /// Only runs older than this one: the cursor.
    pub before: Option<RunId>,
    pub limit: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WorkflowRow {
    pub org: OrgId,
    pub id: WorkflowId,
    pub name: String,
    pub slug: String,
    pub description: Option<String>,
    /// A JSON list of strings.
    pub tags: String,
    pub form: Form,
    /// `api`, `manual`, `cron` or `webhook`.
    pub trigger: String,
    pub steps: u32,
    pub enabled: bool,
    /// Counts up from 1 with every new definition.
    pub version: u32,
    pub hash: [u8; 32],
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
}

/// A definition and what it was lowered to. Immutable and stored once per hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub hash: [u8; 32],
    /// JSON, in the author's order.
    pub source: Bytes,
    /// A sealed plan.
    pub plan: Bytes,
}

#[derive(Clone, Debug)]
pub struct NewWorkflow {
    pub row: WorkflowRow,
    pub definition: Definition,
    /// The author chose the slug, so a clash is an error. Otherwise a free one is made by counting up.
    pub slug_is_given: bool,
    pub idempotency: Option<IdempotencyKey>,
    /// The schedule or webhook its definition asks for.
    pub trigger: Option<TriggerRow>,
}

/// Why a workflow cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Name,
    Slug,
    /// The path of its webhook.
    Path,
    /// The idempotency key made this workflow before.
    Key {
        workflow: WorkflowId,
        fingerprint: [u8; 32],
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkflowKey {
    Id(WorkflowId),
    /// A name, or else a slug.
    Name(String),
    /// An id, also of a workflow that was deleted.
    Ever(WorkflowId),
}

#[derive(Clone, Debug, Default)]
pub struct WorkflowFilter {
    /// Names that begin like this.
    pub name: String,
    /// Only workflows older than this one: the cursor.
    pub before: Option<WorkflowId>,
    pub limit: usize,
}

/// A workflow's row as it was read and as it shall be. What was pinned at birth stays.
#[derive(Clone, Debug)]
pub struct WorkflowEdit {
    pub seen: WorkflowRow,
    pub row: WorkflowRow,
    /// Given with a new version, which `row` then has: what it was lowered to, and where it came from.
    pub version: Option<(Definition, &'static str)>,
    pub trigger: OwnTrigger,
}

/// What becomes of the trigger that a workflow's definition made. One of a workflow that is deleted goes
/// with every other.
#[derive(Clone, Debug, Default)]
pub enum OwnTrigger {
    #[default]
    Keep,
    Put(Box<TriggerRow>),
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    Done,
    /// The row is another one than the writer saw, or there is none (any more). Nothing was written.
    Changed,
    /// Nothing was written.
    Taken(Taken),
}

/// One edition of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRow {
    pub number: u32,
    pub hash: [u8; 32],
    /// `create` or `update`.
    pub source: String,
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionKey {
    Number(u32),
    /// The latest with this hash.
    Hash([u8; 32]),
}

/// A run to be removed with all that names it. What cannot be found by the run alone is named here.
#[derive(Clone, Debug)]
pub struct Erasure {
    pub org: OrgId,
    pub run: RunId,
    pub labels: Vec<(String, String)>,
    /// Hashes of its callback tokens.
    pub waits: Vec<[u8; 32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    Done,
    /// Nothing was changed.
    NotEnded,
    /// Somebody has yet to be told that it ended. Nothing was changed.
    NotTold,
    NotFound,
}

/// A stretch of the journal as one organisation sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalPage {
    pub records: Vec<JournalEntry>,
    /// The position up to which was looked; the next stretch begins after it.
    pub end: u64,
}

/// A record with its place among all.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    pub pos: u64,
    pub run: RunId,
    pub record: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions made durable by `commit`.
    pub commits: u64,
    /// Records written by them.
    pub records: u64,
    /// SQL reads made by `commit` itself.
    pub commit_reads: u64,
    /// Calls of `load`, `history` and `payloads`.
    pub loads: u64,
    /// Bytes written to the write-ahead log, as far as known.
    pub wal_bytes: u64,
    /// How often the server turned out to have lost what it had acknowledged to this process.
    pub rollbacks: u64,
}

/// What one process tells the others that share a store with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClusterEvent {
    /// A task of this lane waits, and nobody there takes it.
    TaskReady(QueueKey),
    /// A run was written that another process may have in memory.
    RunAdvanced(OrgId, RunId),
    /// What is known about a type has changed.
    TypeChanged(OrgId, String),
    /// A workflow was paused or resumed.
    PausesChanged,
    /// A run came to a gate that another node keeps, or left it.
    GroupsChanged,
    /// Nodes came or went.
    NodesChanged,
    /// Some of it was missed: anything may have happened.
    Missed,
}
