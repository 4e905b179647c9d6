//! The rows that go in and out of a store. Plain data; every row names its organisation.

use crate::triggers::{DeliveryRow, ScheduleAdvance, TriggerRow};
use bytes::Bytes;
use kernel::event::OnConflict;
use kernel::inbox::InboxKind;
use kernel::plan::Form;
use kernel::run::WaitKind;
use kernel::{InboxId, OrgId, RunId, RunStatus, Span, Timestamp, WorkflowId};
use std::num::NonZeroU32;

/// Records of many runs, committed in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Engine time of the batch.
    pub at: Timestamp,
    /// The epoch of the node that wrote it.
    pub epoch: u64,
    pub runs: Vec<RunWrite>,
}

/// One record of one run and the rows that go with it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunWrite {
    pub org: OrgId,
    pub run: RunId,
    /// Number of the run's last record as the writer saw it; 0 for a run that does not exist yet. The new record gets
    /// the next number.
    pub after: u64,
    pub record: Bytes,
    /// The `runs` row, when it is new or its status changes. Required when `after` is 0.
    pub row: Option<RunRow>,
    /// The record moves the run to another version: the version, hash and lowering of `row` are written, too. They are fixed
    /// otherwise.
    pub is_moved: bool,
    /// State after this record.
    pub snapshot: Option<Bytes>,
    /// The change of the timer row that an evicted run has.
    pub timer: TimerChange,
    /// Payloads too large for the record.
    pub payloads: Vec<(u32, Bytes)>,
    /// The changes of the run's rows in `ready`: tasks that workers can claim while the run is evicted.
    pub ready: ReadyChange,
    /// The changes of the limit slots that the run's leased tasks hold.
    pub limit_slots: LimitSlotChange,
    /// The numbers of the notifications that the end of the run causes; only with the record of an end.
    pub notifications: Vec<u64>,
    /// New callback tokens. They stay valid until the run is erased.
    pub tokens: Vec<Wait>,
    /// The changes of the run's open waits.
    pub waits: WaitChange,
    /// Rows of the inbox that this record consumes. The write is refused (`Conflict`) if one of them is gone or has an
    /// answer already: no row is consumed twice.
    pub consumed: Vec<ConsumedRow>,
    /// Rows for the inboxes of other runs.
    pub outgoing: Vec<InboxRow>,
    /// Only with the first record.
    pub run_insert: Option<Box<RunInsert>>,
    /// Adjacent writes of a batch with the same group number are written together or not at all.
    pub atomic_group: Option<NonZeroU32>,
}

/// Rows written once, with a run's first record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInsert {
    pub labels: Vec<(String, String)>,
    pub idempotency: Option<IdempotencyKey>,
    /// The line in the log of the trigger that started the run.
    pub delivery: Option<DeliveryRow>,
    /// The new position of that trigger's schedule.
    pub advance: Option<ScheduleAdvance>,
    /// The notification that this run delivers, as the run that ended and the number of the notification. The
    /// notification is removed.
    pub notification: Option<(RunId, u64)>,
}

/// Identifies a row of the inbox. Lists are in the order of this key: the rows of a run in the order of arrival.
pub type InboxKey = (OrgId, RunId, InboxId);

/// Something that a run has yet to consume. It is written without a record of the run, so it never conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    pub key: InboxKey,
    pub kind: InboxKind,
    /// The message that the kind says, see [`kernel::inbox`].
    pub body: Bytes,
    pub written_at: Timestamp,
    /// The run whose record wrote it; `None` for a request.
    pub sender: Option<RunId>,
}

/// A row of the inbox that a record consumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumedRow {
    pub key: InboxKey,
    /// The answer, which waits in the row for the node that wrote it. A row without one is deleted: its sender is a run.
    pub answer: Option<Bytes>,
}

/// Changes of a run's open waits. Removals come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitChange {
    pub remove: Vec<OpenWait>,
    pub insert: Vec<OpenWait>,
}

/// A step that waits for something from outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenWait {
    pub org: OrgId,
    pub kind: WaitKind,
    /// The name of the signal; empty for other kinds.
    pub name: String,
    pub run: RunId,
    pub step: u32,
    pub deadline: Timestamp,
}

/// Changes of a run's rows in `ready`. Removals come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyChange {
    pub remove: Vec<ReadyRow>,
    pub insert: Vec<ReadyRow>,
}

/// A ready task of an evicted run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadyRow {
    pub queue: QueueKey,
    pub position: QueuePosition,
}

/// Changes of the limit slots that a run's tasks hold. Slots are freed first. The write is refused
/// ([`WriteVerdict::Full`]) if a slot to take is held by another task and has not expired at the time of the batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSlotChange {
    pub free: Vec<LimitSlotRow>,
    pub take: Vec<LimitSlotRow>,
}

/// One slot of a type's limit. A limit of `n` has `n` numbered slots, and one task at a time can hold a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitSlot {
    pub org: OrgId,
    /// The type.
    pub name: String,
    pub of: LimitScope,
    /// Empty for a limit that all keys share.
    pub key: String,
    pub number: u32,
}

/// Which limit a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitScope {
    /// The tasks of a type leased at once.
    Type = 0,
    /// The tasks of one key leased at once.
    Key = 1,
    /// The tasks of a type, or of one key, leased per unit of time.
    Rate = 2,
}

impl LimitScope {
    /// Converts from the stored number.
    pub(crate) fn stored(number: i16) -> LimitScope {
        match number {
            0 => LimitScope::Type,
            1 => LimitScope::Key,
            _ => LimitScope::Rate,
        }
    }
}

/// A limit slot that a task holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitSlotRow {
    pub slot: LimitSlot,
    pub run: RunId,
    pub step: u32,
    /// When the slot expires: from then on it is free even if it was not released.
    pub until: Timestamp,
}

impl LimitSlotRow {
    /// A slot with this expiry is held until it is released.
    pub const FREED: Timestamp = Timestamp(i64::MAX);
}

/// Names a key queue: the tasks of one type and one key, which share the limits of that key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    pub org: OrgId,
    /// The type.
    pub name: String,
    /// Empty for tasks without a key.
    pub key: String,
}

/// Position of a task in its key queue: lower priority numbers first, then older runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition {
    pub priority: u32,
    pub run: RunId,
    pub step: u32,
}

/// A task type and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeRow {
    pub org: OrgId,
    pub name: String,
    /// Workers that declare another runtime do not get tasks of this type.
    pub runtime: Option<String>,
    pub description: Option<String>,
    /// If not, new tasks are refused and no task is leased.
    pub enabled: bool,
    /// While set, no task is leased.
    pub paused: Option<TypePause>,
    /// How many tasks may be leased at once.
    pub limit: Option<u32>,
    /// How many tasks of each key may be leased at once.
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

/// A rate limit: at most `limit` leases in any period of length `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub limit: u32,
    pub per: Span,
    /// The limit applies to each key rather than to the whole type.
    pub per_key: bool,
}

/// A worker as it last described itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    pub org: OrgId,
    pub id: String,
    /// The types it claims, as a JSON list.
    pub types: String,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
}

/// Change of a run's single timer row: the old one (if any) is removed, the new one (if any) inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerChange {
    pub remove: Option<Timestamp>,
    pub insert: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteVerdict {
    Committed,
    /// The run's last record is not the one the writer saw, or the run exists already, or it does not exist. Nothing of
    /// this run was written.
    Conflict,
    /// The idempotency key is taken. Nothing of this run was written.
    KeyTaken {
        run: RunId,
        fingerprint: [u8; 32],
    },
    /// A limit slot that it takes is held by another task. Nothing of this run was written.
    Full,
    /// Another write of its atomic group was refused. Nothing of this run was written.
    Undone,
}

impl WriteVerdict {
    /// May the other writes of the atomic group commit despite this verdict? An idempotency key taken by the same
    /// request means that this write was committed before.
    pub(crate) fn lets_group_commit(&self, write: &RunWrite) -> bool {
        let wanted = write.run_insert.as_ref().and_then(|run_insert| run_insert.idempotency.as_ref());
        match self {
            WriteVerdict::Committed => true,
            WriteVerdict::KeyTaken { fingerprint, .. } => wanted.is_some_and(|key| key.fingerprint == *fingerprint),
            WriteVerdict::Conflict | WriteVerdict::Full | WriteVerdict::Undone => false,
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

/// The row of a run, for lists, filters and recovery.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRow {
    pub org: OrgId,
    pub id: RunId,
    pub workflow: WorkflowId,
    /// The workflow's name when the run was created.
    pub workflow_name: String,
    pub version: u32,
    pub hash: [u8; 32],
    /// With `hash`, names the plan that the run keeps.
    pub lowering: u32,
    pub form: Form,
    pub status: RunStatus,
    /// The kinds of wait of a waiting run: one bit `1 << kind` for each.
    pub waiting: u32,
    /// Due time of the run's timer row, while the run is evicted and has one.
    pub wake_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub error_code: Option<String>,
    /// Of a run that has ended: its failed steps, see [`kernel::advance::FailedSteps`].
    pub failed_steps: Option<String>,
    /// The concurrency group the run belongs to.
    pub concurrency_group: Option<ConcurrencyGroupRow>,
    /// The run is not in memory: only an input, its timer or a worker brings it back. Meaningless once the run ended.
    pub evicted: bool,
    /// When the run was hidden from lists and reads.
    pub deleted_at: Option<Timestamp>,
}

/// A run in a list. One row that cannot be read does not hide the others.
pub type ListedRun = std::result::Result<RunRow, UnreadableRow>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    pub id: RunId,
    /// What is wrong with it.
    pub what: String,
}

/// The id of a listed run: the cursor behind it.
pub fn listed_id(run: &ListedRun) -> RunId {
    match run {
        Ok(row) => row.id,
        Err(unreadable) => unreadable.id,
    }
}

/// A concurrency group, stored in the row of every run that belongs to it. Runs with equal ids share the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyGroupRow {
    pub id: [u8; 16],
    pub limit: u32,
    pub on_conflict: OnConflict,
}

/// An open run of a concurrency group, or a run that is still pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedRun {
    pub org: OrgId,
    pub run: RunId,
    pub workflow: WorkflowId,
    pub concurrency_group: Option<ConcurrencyGroupRow>,
    /// The run is `pending`.
    pub is_queued: bool,
}

/// A paused workflow: its runs stay pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowPause {
    pub org: OrgId,
    pub workflow: WorkflowId,
    pub at: Timestamp,
    pub actor: String,
    pub note: String,
}

/// Identifies a notification. Lists are in the order of this key.
pub type NotificationKey = (OrgId, RunId, u64);

/// An undelivered notification that a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationRow {
    pub org: OrgId,
    pub run: RunId,
    /// Says which end of the run it is about, see [`kernel::advance::NotificationNumber`].
    pub number: u64,
    /// Why the last attempt to deliver it failed; empty before the first attempt.
    pub error: String,
}

/// A timer that wakes an evicted run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    pub at: Timestamp,
    pub org: OrgId,
    pub run: RunId,
}

impl Timer {
    /// Before every timer that exists.
    pub(crate) const FIRST: Timer = Timer { at: Timestamp(i64::MIN), org: OrgId(0), run: RunId([0; 16]) };
}

/// A step that waits for a callback, found by the hash of its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    pub token_hash: [u8; 32],
    /// `webhook`.
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The scope within which the key is unique: a workflow's id, a task type, or `workflows` for workflows.
    pub scope: String,
    pub key: String,
    pub fingerprint: [u8; 32],
    pub created_at: Timestamp,
}

/// An id contains the time at which it was generated, which is when the run was requested. The run is created at most
/// this much later, so a list by creation time can skip all ids that are older than that.
pub const ID_LAG: Span = Span::from_days(1);

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Runs with any of these statuses; empty means all.
    pub statuses: Vec<RunStatus>,
    pub workflow: Option<WorkflowId>,
    /// No runs of this workflow, unless `workflow` names it.
    pub except: Option<WorkflowId>,
    /// Runs of workflows of any of these forms; empty means all.
    pub forms: Vec<Form>,
    /// Runs with all of these labels.
    pub labels: Vec<(String, String)>,
    /// Created at or after this time. A run's id is generated at most [`ID_LAG`] before the run is created.
    pub since: Option<Timestamp>,
    /// Created before this time.
    pub until: Option<Timestamp>,
    /// The cursor: only runs older than this one.
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
    /// The lowering that new runs are pinned to.
    pub lowering: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
}

/// A definition and the plan that one lowering makes of it. Immutable and stored once per hash and lowering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDefinition {
    pub hash: [u8; 32],
    pub lowering: u32,
    /// JSON, in the author's order.
    pub source: Bytes,
    /// A sealed plan.
    pub plan: Bytes,
}

#[derive(Clone, Debug)]
pub struct NewWorkflow {
    pub row: WorkflowRow,
    pub definition: StoredDefinition,
    /// The author chose the slug, so a conflict is an error. Otherwise the store appends a number to find a free one.
    pub slug_is_given: bool,
    pub idempotency: Option<IdempotencyKey>,
    /// The schedule or webhook its definition asks for.
    pub trigger: Option<TriggerRow>,
}

/// Why a workflow cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameTaken {
    Name,
    Slug,
    /// Another workflow has the name as its slug.
    NameIsSlug,
    /// Another workflow has the slug as its name.
    SlugIsName,
    /// The path of its webhook.
    Path,
    /// An earlier request with the idempotency key created this workflow.
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
    IdOrDeleted(WorkflowId),
}

#[derive(Clone, Debug, Default)]
pub struct WorkflowFilter {
    /// Only workflows whose name begins with this.
    pub name: String,
    /// The cursor: only workflows older than this one.
    pub before: Option<WorkflowId>,
    pub limit: usize,
}

/// A workflow's row as the caller read it (`seen`) and as it should become. Columns fixed at creation do not change.
#[derive(Clone, Debug)]
pub struct WorkflowEdit {
    pub seen: WorkflowRow,
    pub row: WorkflowRow,
    /// Set when `row` has a new version or a new lowering of its version.
    pub definition: Option<StoredDefinition>,
    /// Set when `row` has a new version: the source of that version.
    pub version_from: Option<&'static str>,
    /// The definition as its author wrote it, for the version of `row`. A version with the same hash gets the latest.
    pub source: Option<Bytes>,
    pub trigger: OwnTrigger,
}

/// What to do with the trigger that a workflow's definition created. Deleting a workflow deletes all of its triggers.
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
    /// The row is not the one the writer saw, or the workflow does not exist (any more). Nothing was written.
    Changed,
    /// Nothing was written.
    Taken(NameTaken),
}

/// One version of a workflow.
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
    /// The latest version with this hash.
    Hash([u8; 32]),
}

/// A run to delete with every row that refers to it. Lists the rows that have no index by run.
#[derive(Clone, Debug)]
pub struct Erasure {
    pub org: OrgId,
    pub run: RunId,
    /// The number of the run's last record when the caller decided to delete it.
    pub seq: u64,
    pub labels: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    Done,
    /// Nothing was changed.
    NotEnded,
    /// The run has another last record by now. Nothing was changed.
    Changed,
    /// The run has undelivered notifications. Nothing was changed.
    NotificationsPending,
    /// The run has rows in its inbox that it has not consumed. Nothing was changed.
    InboxPending,
    NotFound,
}

/// One page of the journal: the records of one organisation in a range of positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalPage {
    pub records: Vec<JournalEntry>,
    /// The last position that was read; the next page begins after it.
    pub end: u64,
}

/// A record with its position in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    pub pos: u64,
    pub run: RunId,
    pub record: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Durable transactions made by `commit`.
    pub commits: u64,
    /// Records written by those transactions.
    pub records: u64,
    /// SQL reads made by `commit` itself.
    pub commit_reads: u64,
    /// Calls of `load`, `history` and `payloads`.
    pub loads: u64,
    /// Bytes written to the write-ahead log, as far as known.
    pub wal_bytes: u64,
    /// How often the server was found to have lost writes that it had acknowledged to this process.
    pub rollbacks: u64,
}

/// An event that one process broadcasts to the other processes that share the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClusterEvent {
    /// This key queue has a ready task, and no worker of the sending process claims it.
    TaskReady(QueueKey),
    /// The sender advanced a run that another process may have in memory.
    RunAdvanced(OrgId, RunId),
    /// The row of a type has changed.
    TypeChanged(OrgId, String),
    /// A workflow was paused or resumed.
    PausesChanged,
    /// A run joined or left a concurrency group that another node owns.
    GroupsChanged,
    /// A row was written to the inbox of a run.
    InboxWritten,
    /// Nodes joined or left.
    NodesChanged,
    /// Events were lost: assume that everything has changed.
    Missed,
}
