//! The contract of every store, one trait per noun. [`Store`] combines them: code with a `&dyn Store` can call any
//! method.

use crate::rows::*;
use crate::triggers::*;
use crate::{Call, Result};
use bytes::Bytes;
use kernel::inbox::InboxKind;
use kernel::run::WaitKind;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId, WorkflowId};

/// Runs: their records in the journal, and the rows that lists, timers and recovery read.
pub trait JournalStore: Send + Sync + 'static {
    /// Appends the record of each run and the rows that go with it, in one durable transaction. The verdicts are in
    /// the order of the batch; an error concerns the whole batch.
    fn commit<'a>(&'a self, batch: &'a Batch) -> Call<'a, Vec<WriteVerdict>>;

    /// A run as the kernel needs it: the latest snapshot and the records after it.
    fn load(&self, org: OrgId, run: RunId) -> Call<'_, Option<Loaded>>;

    /// What `load` returns for each of these runs, in the same order, at little more than the cost of one `load`.
    fn load_all<'a>(&'a self, runs: &'a [(OrgId, RunId)]) -> Call<'a, Vec<Result<Option<Loaded>>>>;

    /// The records of a run after number `after`, oldest first, at most `limit`.
    fn history(&self, org: OrgId, run: RunId, after: u64, limit: usize) -> Call<'_, Option<Vec<Bytes>>>;

    /// Records of all runs of an organisation in the order they were written. Reads `limit` positions of the journal
    /// after `after`; without `after`, returns only the end of the journal.
    fn journal_page(&self, org: OrgId, after: Option<u64>, limit: usize) -> Call<'_, JournalPage>;

    /// The stored payloads of a run with these numbers; numbers that do not exist are left out.
    fn payloads<'a>(&'a self, org: OrgId, run: RunId, numbers: &'a [u32]) -> Call<'a, Vec<(u32, Bytes)>>;

    fn run(&self, org: OrgId, run: RunId) -> Call<'_, Option<RunRow>>;

    /// Runs, newest first. A row that cannot be read stands in the list as such.
    fn runs<'a>(&'a self, org: OrgId, filter: &'a RunFilter) -> Call<'a, Vec<ListedRun>>;

    /// Runs that were neither evicted nor ended when the store was last used. Read once at start.
    fn active_runs(&self) -> Call<'_, Vec<(OrgId, RunId)>>;

    /// The wait that a callback token belongs to, by the SHA-256 of the token. It takes no organisation: the token
    /// alone authorises the caller.
    fn wait<'a>(&'a self, token_hash: &'a [u8; 32]) -> Call<'a, Option<Wait>>;

    /// Open waits of a kind and name, by run and step, those after `after`.
    fn open_waits<'a>(
        &'a self,
        org: OrgId,
        kind: WaitKind,
        name: &'a str,
        after: Option<(RunId, u32)>,
        limit: usize,
    ) -> Call<'a, Vec<OpenWait>>;

    /// Timers of evicted runs due at or before `until`, in the order of [`Timer`], from the one after `after`.
    fn timers(&self, until: Timestamp, after: Option<Timer>, limit: usize) -> Call<'_, Vec<Timer>>;

    /// Due time of the earliest timer.
    fn next_timer(&self) -> Call<'_, Option<Timestamp>>;

    /// The id of what was created with an idempotency key, and the fingerprint of that request.
    fn idempotency_record<'a>(
        &'a self,
        org: OrgId,
        scope: &'a str,
        key: &'a str,
    ) -> Call<'a, Option<([u8; 16], [u8; 32])>>;

    /// Deletes a run that has ended, with all of its rows. Its positions in the journal stay, without content, and its
    /// idempotency key stays taken.
    fn erase<'a>(&'a self, erasure: &'a Erasure) -> Call<'a, Erased>;

    /// Hides a run that has ended from every list and every read. Its records stay.
    fn hide(&self, org: OrgId, run: RunId, at: Timestamp) -> Call<'_, Erased>;

    /// Open runs of concurrency groups and runs that are still pending, oldest first. Read once at start.
    fn grouped_runs(&self) -> Call<'_, Vec<GroupedRun>>;

    /// Undelivered notifications of all runs, those after `after`.
    fn notifications(&self, after: Option<NotificationKey>, limit: usize) -> Call<'_, Vec<NotificationRow>>;

    fn run_notifications(&self, org: OrgId, run: RunId) -> Call<'_, Vec<NotificationRow>>;

    /// Stores why a notification could not be delivered. Does nothing if the notification was removed meanwhile.
    fn record_notification_error<'a>(&'a self, notification: &'a NotificationRow) -> Call<'a, ()>;
}

/// The inbox: rows that a run has yet to consume, written without a record of the run.
///
/// ```text
///   put_inbox ──▶ inbox ──▶ a record of the run ──▶ the row has its answer ──▶ take_inbox_answers
///                                                                         └──▶ delete_inbox_answers
/// ```
pub trait InboxStore: Send + Sync + 'static {
    /// Writes rows. A row that exists already stays as it is.
    fn put_inbox<'a>(&'a self, rows: &'a [InboxRow]) -> Call<'a, ()>;

    /// Rows of a kind that have no answer, of every run, those after `after`.
    fn inbox(&self, kind: InboxKind, after: Option<InboxKey>, limit: usize) -> Call<'_, Vec<InboxRow>>;

    /// Rows of a run that have no answer, of every kind, in the order of arrival.
    fn inbox_of(&self, org: OrgId, run: RunId, limit: usize) -> Call<'_, Vec<InboxRow>>;

    /// Answers or deletes rows that no record has to consume. A row that is gone or has an answer stays as it is.
    fn answer_inbox<'a>(&'a self, answers: &'a [ConsumedRow]) -> Call<'a, ()>;

    /// Deletes those of these rows that have an answer, and returns the answers in the order of the keys.
    fn take_inbox_answers<'a>(&'a self, keys: &'a [InboxKey]) -> Call<'a, Vec<(InboxKey, Bytes)>>;

    /// Deletes rows with an answer that were written before this time: the node that wrote them is gone.
    fn delete_inbox_answers(&self, before: Timestamp) -> Call<'_, ()>;
}

/// Ready tasks of evicted runs, the limit slots of leased tasks, and the workers.
pub trait QueueStore: Send + Sync + 'static {
    /// Key queues with ready tasks of evicted runs, in order, those after `after`, with the number of such tasks.
    fn key_queues<'a>(&'a self, after: Option<&'a QueueKey>, limit: usize) -> Call<'a, Vec<(QueueKey, u64)>>;

    /// Ready tasks of evicted runs in one key queue, in queue order, those after `after`.
    fn ready_tasks<'a>(
        &'a self,
        queue: &'a QueueKey,
        after: Option<QueuePosition>,
        limit: usize,
    ) -> Call<'a, Vec<QueuePosition>>;

    /// Types of every organisation that have rows in `ready`, in order.
    fn ready_types(&self) -> Call<'_, Vec<(OrgId, String)>>;

    /// Those types with their number of rows in `ready`. Reads every row.
    fn ready_counts(&self) -> Call<'_, Vec<(OrgId, String, u64)>>;

    /// Keys of a type that have rows in `ready`, in order, those after `after`.
    fn ready_keys<'a>(
        &'a self,
        org: OrgId,
        name: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<String>>;

    /// The limit slots of a type that are taken, in order. Slots of rate limits may have expired.
    fn limit_slots<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Vec<LimitSlotRow>>;

    /// Deletes limit slots of all organisations that expired at or before `until`.
    fn delete_expired_limit_slots(&self, until: Timestamp) -> Call<'_, ()>;

    /// Stores workers, and deletes workers of all organisations last seen before `since`.
    fn put_workers<'a>(&'a self, workers: &'a [WorkerRow], since: Timestamp) -> Call<'a, ()>;

    /// Workers of every organisation, by id. Read once at start.
    fn workers(&self) -> Call<'_, Vec<WorkerRow>>;
}

/// Workflows with their versions and pauses, and task types.
pub trait CatalogStore: Send + Sync + 'static {
    /// Stores a workflow with its first version. `Ok(Err(taken))` when its name, slug or idempotency
    /// key is in use.
    fn create_workflow<'a>(&'a self, new: &'a NewWorkflow) -> Call<'a, std::result::Result<(), NameTaken>>;

    /// Changes a workflow, if its row is still the one the caller saw.
    fn edit_workflow<'a>(&'a self, edit: &'a WorkflowEdit) -> Call<'a, Edited>;

    /// A workflow that is not deleted, by id, else by name, else by slug.
    fn workflow<'a>(&'a self, org: OrgId, by: &'a WorkflowKey) -> Call<'a, Option<WorkflowRow>>;

    /// Workflows that are not deleted, newest first.
    fn workflows<'a>(&'a self, org: OrgId, filter: &'a WorkflowFilter) -> Call<'a, Vec<WorkflowRow>>;

    /// Versions of a workflow numbered below `before`, newest first. Also those of a deleted workflow.
    fn versions(&self, org: OrgId, id: WorkflowId, before: Option<u32>, limit: usize) -> Call<'_, Vec<VersionRow>>;

    fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Call<'_, Option<VersionRow>>;

    /// The definition as the author of a version wrote it; `None` for versions stored before it was kept.
    fn version_source(&self, org: OrgId, id: WorkflowId, number: u32) -> Call<'_, Option<Bytes>>;

    /// A definition by its hash.
    fn definition(&self, org: OrgId, hash: [u8; 32], lowering: Option<u32>) -> Call<'_, Option<StoredDefinition>>;

    /// Pauses a workflow that is not paused.
    fn pause_workflow<'a>(&'a self, pause: &'a WorkflowPause) -> Call<'a, ()>;

    fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, ()>;

    fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<WorkflowPause>>;

    /// Every paused workflow. Read once at start.
    fn workflow_pauses(&self) -> Call<'_, Vec<WorkflowPause>>;

    /// Inserts a type that does not exist yet, and the definition of its tasks unless it is stored already.
    fn ensure_type<'a>(&'a self, row: &'a TypeRow, definition: Option<&'a StoredDefinition>) -> Call<'a, ()>;

    /// Inserts or replaces the row of a type.
    fn put_type<'a>(&'a self, row: &'a TypeRow) -> Call<'a, ()>;

    fn task_type<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Option<TypeRow>>;

    /// Types whose names begin with `prefix`, in the order of their names, those after `after`.
    fn task_types<'a>(
        &'a self,
        org: OrgId,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<TypeRow>>;

    /// Types of every organisation with at least one setting that is not the default. Read once at start.
    fn configured_types(&self) -> Call<'_, Vec<TypeRow>>;
}

/// Schedules and webhooks, and the delivery log of each.
pub trait TriggerStore: Send + Sync + 'static {
    /// Stores a trigger. `Ok(Err(taken))` when its path or idempotency key is in use, or its workflow does not exist.
    fn create_trigger<'a>(&'a self, new: &'a NewTrigger) -> Call<'a, std::result::Result<(), TriggerTaken>>;

    /// Changes a trigger, if its row is still the one the caller read.
    fn change_trigger<'a>(&'a self, change: &'a TriggerChange) -> Call<'a, Changed>;

    /// Deletes a trigger and its log; true if it existed.
    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, bool>;

    fn trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, Option<TriggerRow>>;

    /// The webhook at a path. It takes no organisation: a request carries only the path.
    fn trigger_at<'a>(&'a self, path: &'a str) -> Call<'a, Option<TriggerRow>>;

    /// The trigger that a workflow's definition created.
    fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<TriggerRow>>;

    /// Triggers, newest first.
    fn triggers<'a>(&'a self, org: OrgId, filter: &'a TriggerFilter) -> Call<'a, Vec<TriggerRow>>;

    /// Schedules of every organisation with `next_at` at or before `until`, earliest first.
    fn due_triggers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<TriggerRow>>;

    /// The earliest `next_at` of all schedules.
    fn next_trigger(&self) -> Call<'_, Option<Timestamp>>;

    /// Adds lines to a trigger's log and advances its schedule. False if nothing was written, because the trigger was
    /// deleted or changed.
    fn log_deliveries<'a>(&'a self, log: &'a TriggerLog) -> Call<'a, bool>;

    /// Lines of a trigger's log numbered below `before`, newest first.
    fn deliveries(
        &self,
        org: OrgId,
        trigger: TriggerId,
        before: Option<u64>,
        limit: usize,
    ) -> Call<'_, Vec<DeliveryRow>>;

    fn delivery<'a>(&'a self, org: OrgId, trigger: TriggerId, id: &'a str) -> Call<'a, Option<DeliveryRow>>;

    /// Queued deliveries of one trigger or of all triggers; those of each trigger oldest first.
    fn queued_deliveries(&self, of: Option<(OrgId, TriggerId)>, limit: usize) -> Call<'_, Vec<DeliveryRow>>;
}

/// The installation as a whole: the nodes that share it, its settings, its health.
pub trait ClusterStore: Send + Sync + 'static {
    /// May other processes use the store at the same time? If so, cached rows may be out of date.
    fn is_shared(&self) -> bool {
        false
    }

    /// Claims the next node epoch: larger than every earlier one, and durable before this call returns.
    fn next_epoch(&self) -> Call<'_, u64>;

    /// Claims the next epoch for the node of this name, and fences its earlier epochs.
    fn join<'a>(&'a self, _name: &'a str) -> Call<'a, u64> {
        self.next_epoch()
    }

    /// Renews the lease of the node of this epoch for `lease` from now on, and fences the nodes whose lease expired.
    /// Returns the live nodes, this one included, and for how long each has been live;
    /// [`Error::Fenced`](crate::Error::Fenced) when this node was fenced.
    fn renew(&self, epoch: u64, _lease: Span) -> Call<'_, Vec<(u64, Span)>> {
        Box::pin(async move { Ok(vec![(epoch, Span(0))]) })
    }

    /// Ends the lease of a node that stops, so that the other nodes need not wait until it expires.
    fn leave(&self, _epoch: u64) -> Call<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The cache revision: a number that changes in the same transaction as a workflow, a type or a pause. While it is
    /// unchanged, cached rows of these are up to date. Only useful where [`ClusterStore::is_shared`].
    fn revision(&self) -> Call<'_, u64> {
        Box::pin(async { Ok(0) })
    }

    /// Sends an event to the other processes, soon but not reliably: a process that depends on the event also polls
    /// for it.
    fn broadcast(&self, _event: ClusterEvent) {}

    /// Receives what other processes broadcast from now on, each event at least once. A receiver that falls behind gets
    /// [`ClusterEvent::Missed`]. `None` when there can be no other processes.
    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<ClusterEvent>> {
        None
    }

    /// A setting of the installation, by name.
    fn setting<'a>(&'a self, name: &'a str) -> Call<'a, Option<String>>;

    fn set_setting<'a>(&'a self, name: &'a str, value: &'a str) -> Call<'a, ()>;

    /// Time of the newest record: engine time never falls behind it.
    fn high_water(&self) -> Call<'_, Option<Timestamp>>;

    /// The present time by the clock that all processes of a shared store can ask; `None` where there is none.
    fn clock(&self) -> Call<'_, Option<Timestamp>> {
        Box::pin(async { Ok(None) })
    }

    /// Is the store reachable and writable? For the readiness check.
    fn check(&self) -> Call<'_, ()>;

    /// Is everything that can be read durable? If so, reading again shows the outcome of a write that ended with
    /// [`Error::Unknown`](crate::Error::Unknown). If not, as with a file whose sync failed, a read may return data that
    /// a crash would lose.
    fn reads_are_durable(&self) -> bool;

    /// Counters since the store was opened, for `/metrics`.
    fn counters(&self) -> Counters;
}

/// All traits of a store.
pub trait Store: JournalStore + InboxStore + QueueStore + CatalogStore + TriggerStore + ClusterStore {}

impl<T: JournalStore + InboxStore + QueueStore + CatalogStore + TriggerStore + ClusterStore> Store for T {}
