//! The store on Postgres, for any number of processes.
//!
//! ```text
//!   commit ─────▶ one transaction per batch, pipelined ──▶ journal (a partition per month), runs, …
//!                    │ a row was refused, or no answer came
//!                    └──▶ commit.rs, conflict_check.rs, commit_outcome.rs
//!   load, lists ──▶ Pool of sessions ──▶ the same server, never a replica
//! ```
//!
//! The store caches nothing about runs between calls: the primary key of the journal decides whether a record may
//! follow, in the statement that writes it. All sessions have the same settings ([`session`]). They are in two pools,
//! so that reads cannot block writes.
//!
//! Any thread may call the store. Calls run on the Tokio runtime in which the store was opened, and run to completion
//! even if the caller stops waiting.

mod admission;
mod batch_columns;
mod bench_database;
mod catalog;
mod cluster_events;
mod columns;
mod commit;
mod commit_outcome;
mod conflict_check;
mod deletion;
mod errors;
mod inbox;
mod inspect;
mod journal;
mod lists;
mod migrations;
mod nodes;
mod notifications;
mod partitions;
mod pool;
mod rollback_detector;
mod session;
mod target;
mod tasks;
mod tls;
mod triggers;
mod wakeups;

pub use bench_database::BenchDatabase;
pub use inspect::PostgresInspection;

use crate::catalog_rules;
use crate::rows::*;
use crate::triggers::*;
use crate::{Call, CatalogStore, ClusterStore, Error, InboxStore, JournalStore, QueueStore, Result, TriggerStore};
use bytes::Bytes;
use cluster_events::ClusterEventBus;
use columns::{Attempted, sql};
use errors::Failure;
use journal::ArrivalFloor;
use kernel::inbox::InboxKind;
use kernel::run::WaitKind;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId, WorkflowId};
use pool::{Connector, Pool, PooledSession};
use session::Session;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use target::Target;

/// Most sessions for writing, and most sessions for reading.
const WRITERS: usize = 4;
const READERS: usize = 6;
/// How often new records get their positions in the journal even if no caller reads the journal.
const ORDER_EVERY: Duration = Duration::from_secs(60);
/// After how many of these intervals the partitions are maintained.
const PARTITIONS_EVERY: u64 = 6 * 60;

pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    connector: Arc<Connector>,
    writers: Arc<Pool>,
    readers: Arc<Pool>,
    floor: ArrivalFloor,
    exchange: Arc<ClusterEventBus>,
    tally: Tally,
    runtime: tokio::runtime::Handle,
}

#[derive(Default)]
struct Tally {
    commits: AtomicU64,
    records: AtomicU64,
    commit_reads: AtomicU64,
    loads: AtomicU64,
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.inner.exchange.close();
    }
}

/// Work on a session.
type Work<'s, T> = Pin<Box<dyn Future<Output = Attempted<T>> + Send + 's>>;

impl PostgresStore {
    /// Opens the database at `postgres://user:password@host:port/database?sslmode=…`, creating its schema if need be.
    /// All calls of the store run on the Tokio runtime of the caller.
    pub async fn open(url: &str) -> Result<PostgresStore> {
        PostgresStore::open_with_statement_limit(url, usize::MAX).await
    }

    /// Fails if the connection URL is invalid.
    pub fn check_address(url: &str) -> Result<()> {
        Target::parse(url).map(drop)
    }

    /// Stops after this many statements of migrations, so that tests can simulate a crash in the middle of one.
    #[doc(hidden)]
    pub async fn open_with_statement_limit(url: &str, statements_max: usize) -> Result<PostgresStore> {
        let connector = Arc::new(Connector::new(Target::parse(url)?));
        let session = connector.connect().await?;
        migrations::run(&session, statements_max).await?;
        // Migrations disable the timeouts of their session; a new session has them again.
        let session = connector.connect().await?;
        partitions::maintain(&session).await.map_err(Failure::unwritten)?;
        let inner = Arc::new(Inner {
            writers: Pool::new(Arc::clone(&connector), WRITERS),
            readers: Pool::new(Arc::clone(&connector), READERS),
            connector,
            floor: ArrivalFloor::default(),
            exchange: ClusterEventBus::new(),
            tally: Tally::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        tokio::spawn(maintain(Arc::downgrade(&inner)));
        Ok(PostgresStore { inner })
    }

    /// Stops broadcasting cluster events, so that tests can simulate lost events.
    #[doc(hidden)]
    pub fn mute(&self) {
        self.inner.exchange.is_mute.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Runs work on the store's runtime; `stopped` makes the error if the runtime shuts down before the work is done.
    fn call<T: Send + 'static>(
        &self,
        stopped: fn(String) -> Error,
        work: impl FnOnce(Arc<Inner>) -> Pin<Box<dyn Future<Output = Result<T>> + Send>>,
    ) -> Call<'_, T> {
        let work = work(Arc::clone(&self.inner));
        Box::pin(async move {
            match self.inner.runtime.spawn(work).await {
                Ok(answer) => answer,
                Err(e) => match e.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(stopped("the runtime is shutting down".into())),
                },
            }
        })
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.call(Error::Unavailable, |inner| {
            Box::pin(async move {
                let session = inner.readers.take().await?;
                let answer = read(&session).await;
                session.end(answer)
            })
        })
    }

    /// Like [`read`](Self::read), after new records got their positions in the journal.
    fn read_in_order<T: Send + 'static>(
        &self,
        read: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.call(Error::Unavailable, |inner| {
            Box::pin(async move {
                let session = inner.readers.take().await?;
                let answer = match journal::order(&session, &inner.floor).await {
                    Ok(()) => read(&session).await,
                    Err(failure) => Err(failure),
                };
                session.end(answer)
            })
        })
    }

    /// A write transaction other than a batch of runs.
    fn write<T: Send + 'static>(
        &self,
        write: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.transact(None, write)
    }

    /// A write transaction that changes rows which other nodes cache: it also increments the cache revision.
    fn revise<T: Send + 'static>(
        &self,
        lock: Option<i64>,
        write: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.transact(lock, move |s| {
            let written = write(s);
            Box::pin(async move {
                let answer = written.await?;
                catalog::revise(s).await?;
                Ok(answer)
            })
        })
    }

    /// A write transaction under the catalog lock: rows of workflows, triggers and nodes do not change between a read
    /// and the write that depends on it.
    fn write_locked<T: Send + 'static>(
        &self,
        write: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.transact(Some(catalog::LOCK), write)
    }

    fn transact<T: Send + 'static>(
        &self,
        lock: Option<i64>,
        write: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.call(Error::Unknown, move |inner| {
            Box::pin(async move {
                let session = inner.writers.take().await?;
                let begun = async {
                    session.batch("BEGIN; SET LOCAL lock_timeout = '10s'").await?;
                    if let Some(lock) = lock {
                        session.query("SELECT pg_advisory_xact_lock($1)", &[&lock]).await?;
                    }
                    let answer = write(&session).await?;
                    let transaction = session.first("SELECT pg_current_xact_id_if_assigned()::text", &[]).await?;
                    let transaction: Option<String> = transaction.map_or(Ok(None), |row| columns::get(&row, 0))?;
                    Ok::<_, Failure>((answer, transaction))
                };
                match begun.await {
                    Ok::<_, Failure>((answer, transaction)) => end(&inner, session, transaction).await.map(|()| answer),
                    Err(failure) => {
                        if session.batch("ROLLBACK").await.is_ok() {
                            session.return_to_pool();
                        }
                        Err(failure.unwritten())
                    }
                }
            })
        })
    }
}

/// Commits; `transaction` is the id of the transaction, if it wrote anything.
async fn end(inner: &Inner, session: PooledSession, transaction: Option<String>) -> Result<()> {
    let why = match (session.batch("COMMIT").await, &transaction) {
        (Ok(()), _) => {
            session.return_to_pool();
            return Ok(());
        }
        (Err(_), None) => return Ok(()),
        (Err(Failure::Lost(why)), Some(_)) => why,
        (Err(failure), Some(_)) => return Err(failure.unwritten()),
    };
    match commit_outcome::is_committed(inner, session, transaction.as_deref().unwrap_or_default()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Unavailable(why)),
        Err(unsure) => Err(Error::Unknown(format!("{why}; and then: {unsure}"))),
    }
}

/// Background maintenance while the store is open. Work that fails is retried at the next interval.
async fn maintain(inner: Weak<Inner>) {
    for turn in 1.. {
        tokio::time::sleep(ORDER_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let Ok(session) = inner.writers.take().await else { continue };
        let tidied = async {
            // From the first arrival on, to include batches that committed unusually late.
            journal::order(&session, &ArrivalFloor::default()).await?;
            if u64::is_multiple_of(turn, PARTITIONS_EVERY) { partitions::maintain(&session).await } else { Ok(()) }
        };
        match tidied.await {
            Ok(()) => session.return_to_pool(),
            Err(failure) => tracing::warn!(?failure, "cannot maintain the journal; trying again later"),
        }
    }
}

/// `on!(self.read(|s| function(s, …)))` calls an async function with a session.
macro_rules! on {
    ($store:ident . $method:ident ( |$s:ident| $work:expr )) => {
        $store.$method(move |$s| Box::pin(async move { $work.await }))
    };
}

impl JournalStore for PostgresStore {
    fn commit<'a>(&'a self, batch: &'a Batch) -> Call<'a, Vec<WriteVerdict>> {
        let batch = batch.clone();
        self.call(Error::Unknown, |inner| Box::pin(async move { commit::commit(&inner, &inner.writers, &batch).await }))
    }

    fn load(&self, org: OrgId, run: RunId) -> Call<'_, Option<Loaded>> {
        self.inner.tally.loads.fetch_add(1, Relaxed);
        on!(self.read(|s| journal::load(s, org, run)))
    }

    fn load_all<'a>(&'a self, runs: &'a [(OrgId, RunId)]) -> Call<'a, Vec<Result<Option<Loaded>>>> {
        self.inner.tally.loads.fetch_add(runs.len() as u64, Relaxed);
        let runs = runs.to_vec();
        self.read(move |s| Box::pin(async move { journal::load_all(s, &runs).await }))
    }

    fn history(&self, org: OrgId, run: RunId, after: u64, limit: usize) -> Call<'_, Option<Vec<Bytes>>> {
        self.inner.tally.loads.fetch_add(1, Relaxed);
        on!(self.read(|s| journal::history(s, org, run, after, limit)))
    }

    fn journal_page(&self, org: OrgId, after: Option<u64>, limit: usize) -> Call<'_, JournalPage> {
        on!(self.read_in_order(|s| journal::journal_page(s, org, after, limit)))
    }

    fn payloads<'a>(&'a self, org: OrgId, run: RunId, numbers: &'a [u32]) -> Call<'a, Vec<(u32, Bytes)>> {
        self.inner.tally.loads.fetch_add(1, Relaxed);
        let numbers = numbers.to_vec();
        on!(self.read(|s| journal::payloads(s, org, run, &numbers)))
    }

    fn run(&self, org: OrgId, run: RunId) -> Call<'_, Option<RunRow>> {
        on!(self.read(|s| lists::run(s, org, run)))
    }

    fn runs<'a>(&'a self, org: OrgId, filter: &'a RunFilter) -> Call<'a, Vec<ListedRun>> {
        let filter = filter.clone();
        on!(self.read(|s| lists::runs(s, org, &filter)))
    }

    fn active_runs(&self) -> Call<'_, Vec<(OrgId, RunId)>> {
        on!(self.read(|s| journal::active_runs(s)))
    }

    fn wait<'a>(&'a self, token_hash: &'a [u8; 32]) -> Call<'a, Option<Wait>> {
        let token_hash = *token_hash;
        on!(self.read(|s| wakeups::wait(s, token_hash)))
    }

    fn open_waits<'a>(
        &'a self,
        org: OrgId,
        kind: WaitKind,
        name: &'a str,
        after: Option<(RunId, u32)>,
        limit: usize,
    ) -> Call<'a, Vec<OpenWait>> {
        let name = name.to_owned();
        on!(self.read(|s| wakeups::open_waits(s, org, kind, &name, after, limit)))
    }

    fn timers(&self, until: Timestamp, after: Option<Timer>, limit: usize) -> Call<'_, Vec<Timer>> {
        on!(self.read(|s| wakeups::timers(s, until, after, limit)))
    }

    fn next_timer(&self) -> Call<'_, Option<Timestamp>> {
        on!(self.read(|s| wakeups::earliest(s, sql!("timer_next"))))
    }

    fn idempotency_record<'a>(
        &'a self,
        org: OrgId,
        scope: &'a str,
        key: &'a str,
    ) -> Call<'a, Option<([u8; 16], [u8; 32])>> {
        let (scope, key) = (scope.to_owned(), key.to_owned());
        on!(self.read(|s| journal::holder(s, org, &scope, &key)))
    }

    fn erase<'a>(&'a self, erasure: &'a Erasure) -> Call<'a, Erased> {
        let erasure = erasure.clone();
        on!(self.write(|s| deletion::erase(s, &erasure)))
    }

    fn hide(&self, org: OrgId, run: RunId, at: Timestamp) -> Call<'_, Erased> {
        on!(self.write(|s| deletion::hide(s, org, run, at)))
    }

    fn grouped_runs(&self) -> Call<'_, Vec<GroupedRun>> {
        on!(self.read(|s| admission::grouped_runs(s)))
    }

    fn notifications(&self, after: Option<NotificationKey>, limit: usize) -> Call<'_, Vec<NotificationRow>> {
        on!(self.read(|s| notifications::notifications(s, after, limit)))
    }

    fn run_notifications(&self, org: OrgId, run: RunId) -> Call<'_, Vec<NotificationRow>> {
        on!(self.read(|s| notifications::run_notifications(s, org, run)))
    }

    fn record_notification_error<'a>(&'a self, notification: &'a NotificationRow) -> Call<'a, ()> {
        let notification = notification.clone();
        on!(self.write(|s| notifications::record_notification_error(s, &notification)))
    }
}

impl InboxStore for PostgresStore {
    fn put_inbox<'a>(&'a self, rows: &'a [InboxRow]) -> Call<'a, ()> {
        let rows = rows.to_vec();
        on!(self.write(|s| inbox::put(s, &rows)))
    }

    fn inbox(&self, kind: InboxKind, after: Option<InboxKey>, limit: usize) -> Call<'_, Vec<InboxRow>> {
        on!(self.read(|s| inbox::read(s, kind, after, limit)))
    }

    fn inbox_of(&self, org: OrgId, run: RunId, limit: usize) -> Call<'_, Vec<InboxRow>> {
        on!(self.read(|s| inbox::of_run(s, (org, run), limit)))
    }

    fn answer_inbox<'a>(&'a self, answers: &'a [ConsumedRow]) -> Call<'a, ()> {
        let answers = answers.to_vec();
        on!(self.write(|s| inbox::answer(s, &answers)))
    }

    fn take_inbox_answers<'a>(&'a self, keys: &'a [InboxKey]) -> Call<'a, Vec<(InboxKey, Bytes)>> {
        let keys = keys.to_vec();
        on!(self.write(|s| inbox::take_answers(s, &keys)))
    }

    fn delete_inbox_answers(&self, before: Timestamp) -> Call<'_, ()> {
        on!(self.write(|s| inbox::delete_answered(s, before)))
    }
}

impl QueueStore for PostgresStore {
    fn key_queues<'a>(&'a self, after: Option<&'a QueueKey>, limit: usize) -> Call<'a, Vec<(QueueKey, u64)>> {
        let after = after.cloned();
        on!(self.read(|s| tasks::key_queues(s, after.as_ref(), limit)))
    }

    fn ready_tasks<'a>(
        &'a self,
        queue: &'a QueueKey,
        after: Option<QueuePosition>,
        limit: usize,
    ) -> Call<'a, Vec<QueuePosition>> {
        let queue = queue.clone();
        on!(self.read(|s| tasks::ready(s, &queue, after, limit)))
    }

    fn ready_types(&self) -> Call<'_, Vec<(OrgId, String)>> {
        on!(self.read(|s| tasks::ready_types(s)))
    }

    fn ready_counts(&self) -> Call<'_, Vec<(OrgId, String, u64)>> {
        on!(self.read(|s| tasks::ready_counts(s)))
    }

    fn ready_keys<'a>(
        &'a self,
        org: OrgId,
        name: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<String>> {
        let (name, after) = (name.to_owned(), after.map(str::to_owned));
        on!(self.read(|s| tasks::ready_keys(s, org, &name, after.as_deref(), limit)))
    }

    fn limit_slots<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Vec<LimitSlotRow>> {
        let name = name.to_owned();
        on!(self.read(|s| tasks::limit_slots(s, org, &name)))
    }

    fn delete_expired_limit_slots(&self, until: Timestamp) -> Call<'_, ()> {
        on!(self.write(|s| tasks::delete_expired_limit_slots(s, until)))
    }

    fn put_workers<'a>(&'a self, workers: &'a [WorkerRow], since: Timestamp) -> Call<'a, ()> {
        let workers = workers.to_vec();
        on!(self.write(|s| tasks::put_workers(s, &workers, since)))
    }

    fn workers(&self) -> Call<'_, Vec<WorkerRow>> {
        on!(self.read(|s| tasks::workers(s)))
    }
}

impl CatalogStore for PostgresStore {
    fn create_workflow<'a>(&'a self, new: &'a NewWorkflow) -> Call<'a, std::result::Result<(), NameTaken>> {
        let new = new.clone();
        self.revise(Some(catalog::LOCK), move |s| {
            Box::pin(async move { catalog_rules::create_workflow(&catalog::Rows(s), &new).await })
        })
    }

    fn edit_workflow<'a>(&'a self, edit: &'a WorkflowEdit) -> Call<'a, Edited> {
        let edit = edit.clone();
        self.revise(Some(catalog::LOCK), move |s| {
            Box::pin(async move { catalog_rules::edit_workflow(&catalog::Rows(s), &edit).await })
        })
    }

    fn workflow<'a>(&'a self, org: OrgId, by: &'a WorkflowKey) -> Call<'a, Option<WorkflowRow>> {
        let by = by.clone();
        on!(self.read(|s| catalog::workflow(s, org, &by)))
    }

    fn workflows<'a>(&'a self, org: OrgId, filter: &'a WorkflowFilter) -> Call<'a, Vec<WorkflowRow>> {
        let filter = filter.clone();
        on!(self.read(|s| catalog::workflows(s, org, &filter)))
    }

    fn versions(&self, org: OrgId, id: WorkflowId, before: Option<u32>, limit: usize) -> Call<'_, Vec<VersionRow>> {
        on!(self.read(|s| catalog::versions(s, org, id, before, limit)))
    }

    fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Call<'_, Option<VersionRow>> {
        on!(self.read(|s| catalog::version(s, org, id, by)))
    }

    fn version_source(&self, org: OrgId, id: WorkflowId, number: u32) -> Call<'_, Option<Bytes>> {
        on!(self.read(|s| catalog::version_source(s, org, id, number)))
    }

    fn definition(&self, org: OrgId, hash: [u8; 32], lowering: Option<u32>) -> Call<'_, Option<StoredDefinition>> {
        on!(self.read(|s| catalog::definition(s, org, hash, lowering)))
    }

    fn pause_workflow<'a>(&'a self, pause: &'a WorkflowPause) -> Call<'a, ()> {
        let pause = pause.clone();
        self.revise(None, move |s| Box::pin(async move { admission::pause_workflow(s, &pause).await }))
    }

    fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, ()> {
        self.revise(None, move |s| Box::pin(admission::resume_workflow(s, org, workflow)))
    }

    fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<WorkflowPause>> {
        on!(self.read(|s| admission::workflow_pause(s, org, workflow)))
    }

    fn workflow_pauses(&self) -> Call<'_, Vec<WorkflowPause>> {
        on!(self.read(|s| admission::workflow_pauses(s)))
    }

    fn ensure_type<'a>(&'a self, row: &'a TypeRow, definition: Option<&'a StoredDefinition>) -> Call<'a, ()> {
        let (row, definition) = (row.clone(), definition.cloned());
        on!(self.write(|s| tasks::ensure_type(s, &row, definition.as_ref())))
    }

    fn put_type<'a>(&'a self, row: &'a TypeRow) -> Call<'a, ()> {
        let row = row.clone();
        self.revise(None, move |s| Box::pin(async move { tasks::put_type(s, &row).await }))
    }

    fn task_type<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Option<TypeRow>> {
        let name = name.to_owned();
        on!(self.read(|s| tasks::task_type(s, org, &name)))
    }

    fn task_types<'a>(
        &'a self,
        org: OrgId,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<TypeRow>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        on!(self.read(|s| tasks::types(s, org, &prefix, after.as_deref(), limit)))
    }

    fn configured_types(&self) -> Call<'_, Vec<TypeRow>> {
        on!(self.read(|s| tasks::configured_types(s)))
    }
}

impl TriggerStore for PostgresStore {
    fn create_trigger<'a>(&'a self, new: &'a NewTrigger) -> Call<'a, std::result::Result<(), TriggerTaken>> {
        let new = new.clone();
        on!(self.write_locked(|s| catalog_rules::create_trigger(&catalog::Rows(s), &new)))
    }

    fn change_trigger<'a>(&'a self, change: &'a TriggerChange) -> Call<'a, Changed> {
        let change = change.clone();
        on!(self.write_locked(|s| catalog_rules::change_trigger(&catalog::Rows(s), &change)))
    }

    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, bool> {
        on!(self.write_locked(|s| triggers::delete(s, org, id)))
    }

    fn trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, Option<TriggerRow>> {
        on!(self.read(|s| triggers::trigger(s, org, id)))
    }

    fn trigger_at<'a>(&'a self, path: &'a str) -> Call<'a, Option<TriggerRow>> {
        let path = path.to_owned();
        on!(self.read(|s| triggers::by_path(s, &path)))
    }

    fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<TriggerRow>> {
        on!(self.read(|s| triggers::owned_by(s, org, workflow)))
    }

    fn triggers<'a>(&'a self, org: OrgId, filter: &'a TriggerFilter) -> Call<'a, Vec<TriggerRow>> {
        let filter = filter.clone();
        on!(self.read(|s| triggers::list(s, org, &filter)))
    }

    fn due_triggers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<TriggerRow>> {
        on!(self.read(|s| triggers::due(s, until, limit)))
    }

    fn next_trigger(&self) -> Call<'_, Option<Timestamp>> {
        on!(self.read(|s| wakeups::earliest(s, sql!("trigger_next"))))
    }

    fn log_deliveries<'a>(&'a self, log: &'a TriggerLog) -> Call<'a, bool> {
        let log = log.clone();
        on!(self.write(|s| triggers::log(s, &log)))
    }

    fn deliveries(
        &self,
        org: OrgId,
        trigger: TriggerId,
        before: Option<u64>,
        limit: usize,
    ) -> Call<'_, Vec<DeliveryRow>> {
        on!(self.read(|s| triggers::deliveries(s, (org, trigger), before, limit)))
    }

    fn delivery<'a>(&'a self, org: OrgId, trigger: TriggerId, id: &'a str) -> Call<'a, Option<DeliveryRow>> {
        let id = id.to_owned();
        on!(self.read(|s| triggers::delivery(s, (org, trigger), &id)))
    }

    fn queued_deliveries(&self, of: Option<(OrgId, TriggerId)>, limit: usize) -> Call<'_, Vec<DeliveryRow>> {
        on!(self.read(|s| triggers::queued(s, of, limit)))
    }
}

impl ClusterStore for PostgresStore {
    fn is_shared(&self) -> bool {
        true
    }

    fn next_epoch(&self) -> Call<'_, u64> {
        self.join("")
    }

    fn join<'a>(&'a self, name: &'a str) -> Call<'a, u64> {
        let name = name.to_owned();
        let rollback_detector = &self.inner.connector.rollback_detector;
        let after = rollback_detector.epoch_after();
        let joined = self.write_locked(move |s| Box::pin(async move { nodes::join(s, &name, after).await }));
        Box::pin(async move {
            let epoch = joined.await?;
            // Needed only if the server lost writes; otherwise it costs one more scan of the arrivals.
            self.inner.floor.reset();
            rollback_detector.joined(epoch);
            Ok(epoch)
        })
    }

    fn renew(&self, epoch: u64, lease: Span) -> Call<'_, Vec<(u64, Span)>> {
        let renewed = self.write_locked(move |s| Box::pin(nodes::renew(s, epoch, lease)));
        Box::pin(async move {
            let live_nodes = renewed.await?;
            self.inner.connector.rollback_detector.check_not_fenced().map(|()| live_nodes)
        })
    }

    fn leave(&self, epoch: u64) -> Call<'_, ()> {
        self.write_locked(move |s| Box::pin(nodes::leave(s, epoch)))
    }

    fn revision(&self) -> Call<'_, u64> {
        on!(self.read(|s| catalog::revision(s)))
    }

    fn broadcast(&self, event: ClusterEvent) {
        self.inner.exchange.broadcast(&self.inner, event);
    }

    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<ClusterEvent>> {
        Some(self.inner.exchange.listen(&self.inner))
    }

    fn setting<'a>(&'a self, name: &'a str) -> Call<'a, Option<String>> {
        let name = name.to_owned();
        on!(self.read(|s| catalog::setting(s, &name)))
    }

    fn set_setting<'a>(&'a self, name: &'a str, value: &'a str) -> Call<'a, ()> {
        let (name, value) = (name.to_owned(), value.to_owned());
        on!(self.write(|s| catalog::set_setting(s, &name, &value)))
    }

    fn high_water(&self) -> Call<'_, Option<Timestamp>> {
        on!(self.read_in_order(|s| journal::high_water(s)))
    }

    fn clock(&self) -> Call<'_, Option<Timestamp>> {
        on!(self.read(|s| nodes::clock(s)))
    }

    fn check(&self) -> Call<'_, ()> {
        on!(self.read(|s| catalog::check(s)))
    }

    fn reads_are_durable(&self) -> bool {
        true
    }

    fn counters(&self) -> Counters {
        let tally = &self.inner.tally;
        Counters {
            commits: tally.commits.load(Relaxed),
            records: tally.records.load(Relaxed),
            commit_reads: tally.commit_reads.load(Relaxed),
            loads: tally.loads.load(Relaxed),
            wal_bytes: 0,
            rollbacks: self.inner.connector.rollback_detector.losses(),
        }
    }
}
