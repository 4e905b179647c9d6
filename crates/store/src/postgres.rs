//! The store on Postgres, for any number of processes.
//!
//! ```text
//!   commit ─────▶ one transaction per batch, sent in one go ──▶ journal (a partition per month), runs, …
//!                    │ a row was refused, or no answer came
//!                    └──▶ commit.rs, sift.rs, fate.rs
//!   load, lists ──▶ Pool of sessions ──▶ the same server: never a replica
//! ```
//!
//! Nothing about a run is remembered here between two calls: whether a record may follow is asked of the journal's
//! primary key, in the statement that writes it. All sessions are alike ([`session`]) and are kept in two pools, so
//! that readers cannot keep writers from working.
//!
//! Calls may be made from any thread; they run on the runtime the store was opened in, and go on to their end when
//! the caller has stopped waiting.

mod around;
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
mod inspect;
mod journal;
mod lists;
mod migrations;
mod nodes;
mod partitions;
mod pool;
mod rollback_detector;
mod session;
mod target;
mod tasks;
mod tls;
mod triggers;

pub use bench_database::BenchDatabase;
pub use inspect::PostgresInspection;

use crate::catalog_rules;
use crate::rows::*;
use crate::triggers::*;
use crate::{Call, CatalogStore, ClusterStore, Error, JournalStore, QueueStore, Result, TriggerStore};
use bytes::Bytes;
use cluster_events::Exchange;
use columns::{Attempted, sql};
use errors::Failure;
use journal::Floor;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId, WorkflowId};
use pool::{Connector, Pool, PooledSession};
use session::Session;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use target::Target;

/// Sessions that write, and sessions that read.
const WRITERS: usize = 4;
const READERS: usize = 6;
/// How often what has arrived in the journal is put in order, if nobody looks at it; and after how many times of
/// that its months are tended.
const ORDERED_EVERY: Duration = Duration::from_secs(60);
const TENDED_EVERY: u64 = 6 * 60;

pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    connector: Arc<Connector>,
    writers: Arc<Pool>,
    readers: Arc<Pool>,
    floor: Floor,
    exchange: Arc<Exchange>,
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

/// Something done with a session.
type Work<'s, T> = Pin<Box<dyn Future<Output = Attempted<T>> + Send + 's>>;

impl PostgresStore {
    /// Opens the database at `postgres://user:password@host:port/database?sslmode=…`, making its schema if need be.
    /// The runtime this is called in carries out everything the store does.
    pub async fn open(url: &str) -> Result<PostgresStore> {
        PostgresStore::open_partly(url, usize::MAX).await
    }

    /// Can an address be understood?
    pub fn check_address(url: &str) -> Result<()> {
        Target::parse(url).map(drop)
    }

    /// Gives up after so many statements of migrations: how tests crash in the middle of one.
    #[doc(hidden)]
    pub async fn open_partly(url: &str, statements_max: usize) -> Result<PostgresStore> {
        let connector = Arc::new(Connector::new(Target::parse(url)?));
        let session = connector.connect().await?;
        migrations::run(&session, statements_max).await?;
        // Migrations wait as long as they must; everything else has its patience again.
        let session = connector.connect().await?;
        partitions::tend(&session).await.map_err(Failure::unwritten)?;
        let inner = Arc::new(Inner {
            writers: Pool::new(Arc::clone(&connector), WRITERS),
            readers: Pool::new(Arc::clone(&connector), READERS),
            connector,
            floor: Floor::default(),
            exchange: Exchange::new(),
            tally: Tally::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        tokio::spawn(keep_tidy(Arc::downgrade(&inner)));
        Ok(PostgresStore { inner })
    }

    /// Tells others nothing from now on: how tests swallow news.
    #[doc(hidden)]
    pub fn mute(&self) {
        self.inner.exchange.is_mute.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Does something on the store's runtime; `stopped` is said when that ends before.
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
                let lease = inner.readers.take().await?;
                let answer = read(&lease).await;
                lease.end(answer)
            })
        })
    }

    /// What has arrived in the journal is put in order first.
    fn read_in_order<T: Send + 'static>(
        &self,
        read: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.call(Error::Unavailable, |inner| {
            Box::pin(async move {
                let lease = inner.readers.take().await?;
                let answer = match journal::order(&lease, &inner.floor).await {
                    Ok(()) => read(&lease).await,
                    Err(failure) => Err(failure),
                };
                lease.end(answer)
            })
        })
    }

    /// A transaction about something other than batches.
    fn write<T: Send + 'static>(
        &self,
        write: impl for<'s> FnOnce(&'s Session) -> Work<'s, T> + Send + 'static,
    ) -> Call<'_, T> {
        self.transact(None, write)
    }

    /// … that changes something others may remember.
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

    /// … in which what was read stays as it was, because everybody who changes it waits.
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
                let lease = inner.writers.take().await?;
                let begun = async {
                    lease.batch("BEGIN; SET LOCAL lock_timeout = '10s'").await?;
                    if let Some(lock) = lock {
                        lease.query("SELECT pg_advisory_xact_lock($1)", &[&lock]).await?;
                    }
                    let answer = write(&lease).await?;
                    let own = lease.first("SELECT pg_current_xact_id_if_assigned()::text", &[]).await?;
                    let own: Option<String> = own.map_or(Ok(None), |row| columns::get(&row, 0))?;
                    Ok::<_, Failure>((answer, own))
                };
                match begun.await {
                    Ok::<_, Failure>((answer, own)) => end(&inner, lease, own).await.map(|()| answer),
                    Err(failure) => {
                        if lease.batch("ROLLBACK").await.is_ok() {
                            lease.bring_back();
                        }
                        Err(failure.unwritten())
                    }
                }
            })
        })
    }
}

/// Commits; `own` is the transaction's number, if it wrote anything.
async fn end(inner: &Inner, lease: PooledSession, own: Option<String>) -> Result<()> {
    let why = match (lease.batch("COMMIT").await, &own) {
        (Ok(()), _) => {
            lease.bring_back();
            return Ok(());
        }
        (Err(_), None) => return Ok(()),
        (Err(Failure::Lost(why)), Some(_)) => why,
        (Err(failure), Some(_)) => return Err(failure.unwritten()),
    };
    match commit_outcome::is_committed(inner, lease, own.as_deref().unwrap_or_default()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Unavailable(why)),
        Err(unsure) => Err(Error::Unknown(format!("{why}; and then: {unsure}"))),
    }
}

/// Does what nobody asks for, as long as the store is open. What does not work is left for the next time.
async fn keep_tidy(inner: Weak<Inner>) {
    for turn in 1.. {
        tokio::time::sleep(ORDERED_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let Ok(lease) = inner.writers.take().await else { continue };
        let tidied = async {
            // From the beginning, for what came later than it should have.
            journal::order(&lease, &Floor::default()).await?;
            if u64::is_multiple_of(turn, TENDED_EVERY) { partitions::tend(&lease).await } else { Ok(()) }
        };
        match tidied.await {
            Ok(()) => lease.bring_back(),
            Err(failure) => tracing::warn!(?failure, "the journal could not be tidied"),
        }
    }
}

/// `on!(self.read(|s| function(s, …)))`: a call of an async function with a session.
macro_rules! on {
    ($store:ident . $method:ident ( |$s:ident| $work:expr )) => {
        $store.$method(move |$s| Box::pin(async move { $work.await }))
    };
}

impl JournalStore for PostgresStore {
    fn commit<'a>(&'a self, batch: &'a Batch) -> Call<'a, Vec<Verdict>> {
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

    fn runs<'a>(&'a self, org: OrgId, filter: &'a RunFilter) -> Call<'a, Vec<RunRow>> {
        let filter = filter.clone();
        on!(self.read(|s| lists::runs(s, org, &filter)))
    }

    fn active_runs(&self) -> Call<'_, Vec<(OrgId, RunId)>> {
        on!(self.read(|s| journal::active_runs(s)))
    }

    fn wait<'a>(&'a self, token_hash: &'a [u8; 32]) -> Call<'a, Option<Wait>> {
        let token_hash = *token_hash;
        on!(self.read(|s| around::wait(s, token_hash)))
    }

    fn timers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<Timer>> {
        on!(self.read(|s| around::timers(s, until, limit)))
    }

    fn next_timer(&self) -> Call<'_, Option<Timestamp>> {
        on!(self.read(|s| around::earliest(s, sql!("timer_next"))))
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
        on!(self.write(|s| deletion::deletion(s, &erasure)))
    }

    fn hide(&self, org: OrgId, run: RunId, at: Timestamp) -> Call<'_, Erased> {
        on!(self.write(|s| deletion::hide(s, org, run, at)))
    }

    fn grouped_runs(&self) -> Call<'_, Vec<GroupedRun>> {
        on!(self.read(|s| around::grouped_runs(s)))
    }

    fn notifications(&self, after: Option<NotificationKey>, limit: usize) -> Call<'_, Vec<NotificationRow>> {
        on!(self.read(|s| around::notifications(s, after, limit)))
    }

    fn run_notifications(&self, org: OrgId, run: RunId) -> Call<'_, Vec<NotificationRow>> {
        on!(self.read(|s| around::run_notifications(s, org, run)))
    }

    fn record_notification_error<'a>(&'a self, notification: &'a NotificationRow) -> Call<'a, ()> {
        let notification = notification.clone();
        on!(self.write(|s| around::record_notification_error(s, &notification)))
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
    fn create_workflow<'a>(&'a self, new: &'a NewWorkflow) -> Call<'a, std::result::Result<(), Taken>> {
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

    fn definition<'a>(&'a self, org: OrgId, hash: &'a [u8; 32]) -> Call<'a, Option<Definition>> {
        let hash = *hash;
        on!(self.read(|s| catalog::definition(s, org, hash)))
    }

    fn pause_workflow<'a>(&'a self, pause: &'a WorkflowPause) -> Call<'a, ()> {
        let pause = pause.clone();
        self.revise(None, move |s| Box::pin(async move { around::pause_workflow(s, &pause).await }))
    }

    fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, ()> {
        self.revise(None, move |s| Box::pin(around::resume_workflow(s, org, workflow)))
    }

    fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<WorkflowPause>> {
        on!(self.read(|s| around::workflow_pause(s, org, workflow)))
    }

    fn workflow_pauses(&self) -> Call<'_, Vec<WorkflowPause>> {
        on!(self.read(|s| around::workflow_pauses(s)))
    }

    fn ensure_type<'a>(&'a self, row: &'a TypeRow, definition: Option<&'a Definition>) -> Call<'a, ()> {
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
        on!(self.read(|s| around::earliest(s, sql!("trigger_next"))))
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
            // Also when nothing was lost: then it is only looked at once more.
            self.inner.floor.forget();
            rollback_detector.joined(epoch);
            Ok(epoch)
        })
    }

    fn renew(&self, epoch: u64, lease: Span) -> Call<'_, Vec<(u64, Span)>> {
        let renewed = self.write_locked(move |s| Box::pin(nodes::renew(s, epoch, lease)));
        Box::pin(async move {
            let there = renewed.await?;
            self.inner.connector.rollback_detector.admit().map(|()| there)
        })
    }

    fn leave(&self, epoch: u64) -> Call<'_, ()> {
        self.write_locked(move |s| Box::pin(nodes::leave(s, epoch)))
    }

    fn revision(&self) -> Call<'_, u64> {
        on!(self.read(|s| catalog::revision(s)))
    }

    fn broadcast(&self, cluster_events: ClusterEvent) {
        self.inner.exchange.broadcast(&self.inner, cluster_events);
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
