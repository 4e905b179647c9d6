//! The contract of every store, one trait a noun. [`Store`] is all of them; code that takes `&dyn Store` calls any method.

use crate::rows::*;
use crate::triggers::*;
use crate::{Call, Result};
use bytes::Bytes;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId, WorkflowId};

/// Runs: the journal of their records, and the rows that lists, timers and recovery read.
pub trait JournalStore: Send + Sync + 'static {
    /// Appends one record per run with its side rows, in one transaction made durable once. The
    /// verdicts come in the order of the batch; an error is about all of it.
    fn commit<'a>(&'a self, batch: &'a Batch) -> Call<'a, Vec<Verdict>>;

    /// A run as the kernel needs it: the latest snapshot and the records after it.
    fn load(&self, org: OrgId, run: RunId) -> Call<'_, Option<Loaded>>;

    /// Several of them at the cost of little more than one: what `load` would answer for each, in the order asked.
    fn load_all<'a>(&'a self, runs: &'a [(OrgId, RunId)]) -> Call<'a, Vec<Result<Option<Loaded>>>>;

    /// The records of a run after number `after`, oldest first, at most `limit`.
    fn history(&self, org: OrgId, run: RunId, after: u64, limit: usize) -> Call<'_, Option<Vec<Bytes>>>;

    /// Records of all runs of an organisation in the order they were written: looks at `limit` positions of
    /// the journal after `after`, or only where it ends.
    fn journal_page(&self, org: OrgId, after: Option<u64>, limit: usize) -> Call<'_, JournalPage>;

    /// The given stored payloads of a run; numbers that do not exist are left out.
    fn payloads<'a>(&'a self, org: OrgId, run: RunId, numbers: &'a [u32]) -> Call<'a, Vec<(u32, Bytes)>>;

    fn run(&self, org: OrgId, run: RunId) -> Call<'_, Option<RunRow>>;

    /// Runs newest first.
    fn runs<'a>(&'a self, org: OrgId, filter: &'a RunFilter) -> Call<'a, Vec<RunRow>>;

    /// Runs that were neither parked nor ended when the store was last used. Read once at start.
    fn active_runs(&self) -> Call<'_, Vec<(OrgId, RunId)>>;

    /// Whom a callback token (by its SHA-256) belongs to. The only call without an organisation: the
    /// token is the authority.
    fn wait<'a>(&'a self, token_hash: &'a [u8; 32]) -> Call<'a, Option<Wait>>;

    /// Timers of parked runs due at or before `until`, earliest first.
    fn timers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<Timer>>;

    /// Due time of the earliest timer of all.
    fn next_timer(&self) -> Call<'_, Option<Timestamp>>;

    /// What an idempotency key brought about, and the fingerprint of what was asked.
    fn idempotency_record<'a>(
        &'a self,
        org: OrgId,
        scope: &'a str,
        key: &'a str,
    ) -> Call<'a, Option<([u8; 16], [u8; 32])>>;

    /// Removes a run that has ended: everything it holds goes, its places in the journal stay, empty, and
    /// its idempotency key stays taken.
    fn erase<'a>(&'a self, erasure: &'a Erasure) -> Call<'a, Erased>;

    /// Hides a run that has ended from every list and every reader. Its records stay.
    fn hide(&self, org: OrgId, run: RunId, at: Timestamp) -> Call<'_, Erased>;

    /// Open runs that hold a place at a gate, and runs whose turn has not come, oldest first. Read once at
    /// start.
    fn grouped_runs(&self) -> Call<'_, Vec<GroupedRun>>;

    /// Notices that have not been handed over, of all runs or of one.
    fn notifications(&self, after: Option<NotificationKey>, limit: usize) -> Call<'_, Vec<NotificationRow>>;

    fn run_notifications(&self, org: OrgId, run: RunId) -> Call<'_, Vec<NotificationRow>>;

    /// Notes why a notice could not be handed over. One that is gone stays gone.
    fn record_notification_error<'a>(&'a self, notification: &'a NotificationRow) -> Call<'a, ()>;
}

/// Tasks that wait for a worker while their runs are evicted, the limit slots of those that are leased, and the
/// workers.
pub trait QueueStore: Send + Sync + 'static {
    /// Lanes with tasks that wait while their runs are parked, in order, those after `after`, and how many do.
    fn key_queues<'a>(&'a self, after: Option<&'a QueueKey>, limit: usize) -> Call<'a, Vec<(QueueKey, u64)>>;

    /// The tasks of a lane that wait while their runs are parked, in their order, those after `after`.
    fn ready_tasks<'a>(
        &'a self,
        queue: &'a QueueKey,
        after: Option<QueuePosition>,
        limit: usize,
    ) -> Call<'a, Vec<QueuePosition>>;

    /// Types of every organisation with tasks that have a row of their own, in order.
    fn ready_types(&self) -> Call<'_, Vec<(OrgId, String)>>;

    /// The same with how many. Looks at every one of them.
    fn ready_counts(&self) -> Call<'_, Vec<(OrgId, String, u64)>>;

    /// Keys of a type with such tasks, in order, those after `after`.
    fn ready_keys<'a>(
        &'a self,
        org: OrgId,
        name: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<String>>;

    /// Who has what of a type's limits, in order. Rates may be over.
    fn limit_slots<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Vec<LimitSlotRow>>;

    /// Forgets seats of all organisations whose time was over by then.
    fn delete_expired_limit_slots(&self, until: Timestamp) -> Call<'_, ()>;

    /// Remembers workers, and forgets those of all organisations last seen before `since`.
    fn put_workers<'a>(&'a self, workers: &'a [WorkerRow], since: Timestamp) -> Call<'a, ()>;

    /// Workers of every organisation, by id. Read once at start.
    fn workers(&self) -> Call<'_, Vec<WorkerRow>>;
}

/// What people define: workflows with their versions and pauses, and types of tasks.
pub trait CatalogStore: Send + Sync + 'static {
    /// Stores a workflow with its first version. `Ok(Err(taken))` when its name, slug or idempotency
    /// key is in use.
    fn create_workflow<'a>(&'a self, new: &'a NewWorkflow) -> Call<'a, std::result::Result<(), Taken>>;

    /// Changes a workflow, if its row is still the one the caller saw.
    fn edit_workflow<'a>(&'a self, edit: &'a WorkflowEdit) -> Call<'a, Edited>;

    /// A workflow that is not deleted, by id, else by name, else by slug.
    fn workflow<'a>(&'a self, org: OrgId, by: &'a WorkflowKey) -> Call<'a, Option<WorkflowRow>>;

    /// Workflows that are not deleted, newest first.
    fn workflows<'a>(&'a self, org: OrgId, filter: &'a WorkflowFilter) -> Call<'a, Vec<WorkflowRow>>;

    /// Its versions, newest first: those numbered below `before`. Also of a deleted workflow.
    fn versions(&self, org: OrgId, id: WorkflowId, before: Option<u32>, limit: usize) -> Call<'_, Vec<VersionRow>>;

    fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Call<'_, Option<VersionRow>>;

    /// A definition by its hash.
    fn definition<'a>(&'a self, org: OrgId, hash: &'a [u8; 32]) -> Call<'a, Option<Definition>>;

    /// Pauses a workflow that is not paused.
    fn pause_workflow<'a>(&'a self, pause: &'a WorkflowPause) -> Call<'a, ()>;

    fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, ()>;

    fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<WorkflowPause>>;

    /// Every paused workflow. Read once at start.
    fn workflow_pauses(&self) -> Call<'_, Vec<WorkflowPause>>;

    /// Makes a type known that is not, and stores the definition of its tasks if that is not stored.
    fn ensure_type<'a>(&'a self, row: &'a TypeRow, definition: Option<&'a Definition>) -> Call<'a, ()>;

    /// Writes what is known about a type.
    fn put_type<'a>(&'a self, row: &'a TypeRow) -> Call<'a, ()>;

    fn task_type<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Option<TypeRow>>;

    /// Types that begin with `prefix`, by name, those after `after`.
    fn task_types<'a>(
        &'a self,
        org: OrgId,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<TypeRow>>;

    /// Types of every organisation that say more than their name. Read once at start.
    fn configured_types(&self) -> Call<'_, Vec<TypeRow>>;
}

/// Schedules and webhooks, and the log of what each did.
pub trait TriggerStore: Send + Sync + 'static {
    /// Stores a trigger. `Ok(Err(taken))` when its path or idempotency key is in use, or its workflow gone.
    fn create_trigger<'a>(&'a self, new: &'a NewTrigger) -> Call<'a, std::result::Result<(), TriggerTaken>>;

    /// Changes a trigger that is still as it was read.
    fn change_trigger<'a>(&'a self, change: &'a TriggerChange) -> Call<'a, Changed>;

    /// Removes a trigger and its log; true if there was one.
    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, bool>;

    fn trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, Option<TriggerRow>>;

    /// The webhook at a path. Without an organisation: the path is all a request has.
    fn trigger_at<'a>(&'a self, path: &'a str) -> Call<'a, Option<TriggerRow>>;

    /// The trigger that a workflow's definition made.
    fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<TriggerRow>>;

    /// Triggers newest first.
    fn triggers<'a>(&'a self, org: OrgId, filter: &'a TriggerFilter) -> Call<'a, Vec<TriggerRow>>;

    /// Schedules of every organisation with something to do at or before `until`, earliest first.
    fn due_triggers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<TriggerRow>>;

    /// When the first schedule of all has something to do.
    fn next_trigger(&self) -> Call<'_, Option<Timestamp>>;

    /// Adds to a trigger's log and moves its schedule on. False if nothing was written, because the trigger
    /// is gone or was changed.
    fn log_deliveries<'a>(&'a self, log: &'a TriggerLog) -> Call<'a, bool>;

    /// A trigger's log, newest first, those numbered below `before`.
    fn deliveries(
        &self,
        org: OrgId,
        trigger: TriggerId,
        before: Option<u64>,
        limit: usize,
    ) -> Call<'_, Vec<DeliveryRow>>;

    fn delivery<'a>(&'a self, org: OrgId, trigger: TriggerId, id: &'a str) -> Call<'a, Option<DeliveryRow>>;

    /// What waits for its turn, of one trigger or of all; each trigger's oldest first.
    fn queued_deliveries(&self, of: Option<(OrgId, TriggerId)>, limit: usize) -> Call<'_, Vec<DeliveryRow>>;
}

/// The installation as a whole: the nodes that share it, its settings, and whether all is well.
pub trait ClusterStore: Send + Sync + 'static {
    /// May other processes work on it at the same time? Then what one remembers may be out of date.
    fn is_shared(&self) -> bool {
        false
    }

    /// Claims the next node epoch: larger than every one before, durable before it is answered.
    fn next_epoch(&self) -> Call<'_, u64>;

    /// Claims the next epoch for the node of this name. Earlier ones it had are over: it is no longer what it was.
    fn join<'a>(&'a self, _name: &'a str) -> Call<'a, u64> {
        self.next_epoch()
    }

    /// Says that the node of this epoch is there for `lease` from now on, and bars those whose time is over. Answers
    /// who is there and since when, itself among them; [`Error::Fenced`](crate::Error::Fenced) when it was barred itself.
    fn renew(&self, epoch: u64, _lease: Span) -> Call<'_, Vec<(u64, Span)>> {
        Box::pin(async move { Ok(vec![(epoch, Span(0))]) })
    }

    /// The node goes: nobody has to wait until its time is over.
    fn leave(&self, _epoch: u64) -> Call<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// A number that changes with every change of a workflow, a type or a pause, and becomes visible with it: as long as
    /// it is the same, what was read of these still holds. Only of use where [`ClusterStore::is_shared`].
    fn revision(&self) -> Call<'_, u64> {
        Box::pin(async { Ok(0) })
    }

    /// Tells the other processes, in a moment and perhaps never: whoever depends on it looks for itself now and then.
    fn broadcast(&self, _news: ClusterEvent) {}

    /// What other processes tell from now on, each thing once or more often; whoever does not keep up hears
    /// [`ClusterEvent::Missed`]. Nothing when there can be no others.
    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<ClusterEvent>> {
        None
    }

    /// Small facts about the installation, by name.
    fn setting<'a>(&'a self, name: &'a str) -> Call<'a, Option<String>>;

    fn set_setting<'a>(&'a self, name: &'a str, value: &'a str) -> Call<'a, ()>;

    /// Time of the newest record: engine time never runs behind it.
    fn high_water(&self) -> Call<'_, Option<Timestamp>>;

    /// Is it reachable and writable? For readiness.
    fn check(&self) -> Call<'_, ()>;

    /// Is everything it reads durable? Then reading again tells what became of a write whose outcome is unknown. A file
    /// whose sync failed may show what no crash will leave.
    fn reads_are_durable(&self) -> bool;

    /// What it has done since it was opened, for `/metrics`.
    fn counters(&self) -> Counters;
}

/// Everything a store does.
pub trait Store: JournalStore + QueueStore + CatalogStore + TriggerStore + ClusterStore {}

impl<T: JournalStore + QueueStore + CatalogStore + TriggerStore + ClusterStore> Store for T {}
