//! The store on one SQLite file, for one process.
//!
//! ```text
//!   commit ─────▶ StoreWriter (one connection, one transaction per batch) ──▶ WAL ◀── CheckpointThread (checkpoints)
//!                    │ publishes                                          │
//!   load, lists ──▶ Heads ──▶ Readers (read-only connections) ◀───────────┘
//! ```
//!
//! The journal is append-only and has no index besides the position. Each record of a run points to the one before it,
//! and [`run_heads`] holds the position of the last record of every active run. `commit` runs on the caller's thread;
//! the other calls run on the blocking threads of the caller's runtime.
//!
//! Invariant: one process and one writer. The lock file ensures the first and the mutex around the writer the second;
//! every check-then-write below relies on both.

mod admission;
mod catalog;
mod checkpoints;
mod columns;
mod commit;
mod deletion;
mod errors;
mod inbox;
mod inspect;
mod journal;
mod lists;
mod migrations;
mod notifications;
mod open;
mod readers;
mod run_heads;
mod tasks;
mod triggers;
mod writer;

pub use inspect::SqliteInspection;

use crate::catalog_rules;
use crate::crash::{self, Point};
use crate::rows::*;
use crate::triggers::*;
use crate::{Call, CatalogStore, ClusterStore, Error, InboxStore, JournalStore, QueueStore, Result, TriggerStore};
use bytes::Bytes;
use checkpoints::{CheckpointThread, Log};
use columns::{limit, org, run_id, run_row, sql, time};
use errors::on_read;
use kernel::inbox::InboxKind;
use kernel::run::WaitKind;
use kernel::{OrgId, Record, RunId, Timestamp, TriggerId, WorkflowId};
use readers::Readers;
use run_heads::Heads;
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use writer::StoreWriter;

pub struct SqliteStore {
    inner: Arc<Inner>,
}

/// Fields are dropped in this order: the writer's connection closes last, so that it cleans up the write-ahead log, and
/// the lock is released when nothing is open any more.
struct Inner {
    _helper: CheckpointThread,
    readers: Readers,
    writer: Mutex<StoreWriter>,
    heads: Arc<Heads>,
    tally: Arc<Tally>,
    _lock: open::Lock,
}

#[derive(Default)]
struct Tally {
    commits: AtomicU64,
    records: AtomicU64,
    commit_reads: AtomicU64,
    loads: AtomicU64,
    wal_bytes: AtomicU64,
}

/// Thresholds. Not user settings: tests make them small.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Options {
    /// How many records or bytes after the recovery position make the writer move it.
    pub recovery_records: u64,
    pub recovery_bytes: u64,
    /// Growth of the write-ahead log after which the checkpoint thread copies it.
    pub passive_bytes: u64,
    /// Length of the write-ahead log at which the writer restarts it: the next commits then overwrite it, which syncs
    /// faster than appending to it.
    pub restart_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        if crash::is_armed() {
            // The two are close together, so that sometimes the checkpoint thread and sometimes the writer is first.
            let (passive_bytes, restart_bytes) = (160 << 10, 176 << 10);
            return Options { recovery_records: 20, recovery_bytes: 32 << 20, passive_bytes, restart_bytes };
        }
        Options { recovery_records: 100_000, recovery_bytes: 32 << 20, passive_bytes: 4 << 20, restart_bytes: 16 << 20 }
    }
}

impl SqliteStore {
    /// Opens the database file at `path`, creating it if need be. Its directory must exist.
    pub fn open(path: &Path) -> Result<SqliteStore> {
        SqliteStore::open_with(path, Options::default())
    }

    #[doc(hidden)]
    pub fn open_with(path: &Path, options: Options) -> Result<SqliteStore> {
        let lock = open::Lock::take(path)?;
        let mut connection = open::writer(path)?;
        let (heads, tail) = run_heads::recover(&connection)?;
        crash::point(Point::HeadsRecovered);
        let (heads, tally) = (Arc::new(heads), Arc::new(Tally::default()));
        let helper = CheckpointThread::start(path)?;
        let log = Log::watch(&mut connection, &helper, Arc::clone(&tally), &options).map_err(on_read)?;
        let writer = StoreWriter::new(connection, log, (Arc::clone(&heads), tail), options, Arc::clone(&tally));
        let readers = Readers::new(path.to_owned());
        let inner = Inner { _helper: helper, readers, writer: Mutex::new(writer), heads, tally, _lock: lock };
        Ok(SqliteStore { inner: Arc::new(inner) })
    }

    /// Limits the database to this many pages, so that tests can simulate a full disk.
    #[doc(hidden)]
    pub fn set_page_count_max(&self, pages: u32) -> Result<()> {
        self.inner.writer()?.set_page_count_max(pages)
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, &Inner) -> Result<T> + Send + 'static,
    ) -> Call<'_, T> {
        let inner = Arc::clone(&self.inner);
        Box::pin(off_thread(move || inner.readers.with(|connection| read(connection, &inner))))
    }

    fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut StoreWriter) -> Result<T> + Send + 'static,
    ) -> Call<'_, T> {
        let inner = Arc::clone(&self.inner);
        Box::pin(off_thread(move || write(&mut *inner.writer()?)))
    }
}

impl Inner {
    fn writer(&self) -> Result<MutexGuard<'_, StoreWriter>> {
        // A panic may have left a transaction open, and it is unknown how much of it was done.
        self.writer.lock().map_err(|_| Error::Unknown("a write panicked".into()))
    }
}

/// The result of rules on SQLite's rows, whose futures are always ready.
fn immediate<T>(rules: impl Future<Output = T>) -> T {
    let mut rules = std::pin::pin!(rules);
    match rules.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("SQLite's rows never wait"),
    }
}

/// SQLite calls block. Inside a Tokio runtime they run on its blocking threads, otherwise on the caller's thread.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if tokio::runtime::Handle::try_current().is_err() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Unavailable("the runtime is shutting down".into())),
        },
    }
}

impl JournalStore for SqliteStore {
    fn commit<'a>(&'a self, batch: &'a Batch) -> Call<'a, Vec<WriteVerdict>> {
        Box::pin(async move { self.inner.writer()?.commit(batch) })
    }

    fn load(&self, org: OrgId, run: RunId) -> Call<'_, Option<Loaded>> {
        self.read(move |connection, inner| {
            inner.tally.loads.fetch_add(1, Relaxed);
            journal::load(connection, &inner.heads, (org, run))
        })
    }

    fn load_all<'a>(&'a self, runs: &'a [(OrgId, RunId)]) -> Call<'a, Vec<Result<Option<Loaded>>>> {
        let keys = runs.to_vec();
        self.read(move |connection, inner| {
            inner.tally.loads.fetch_add(keys.len() as u64, Relaxed);
            journal::load_all(connection, &inner.heads, &keys)
        })
    }

    fn history(&self, org: OrgId, run: RunId, after: u64, limit: usize) -> Call<'_, Option<Vec<Bytes>>> {
        self.read(move |connection, inner| {
            inner.tally.loads.fetch_add(1, Relaxed);
            journal::history(connection, &inner.heads, (org, run), after, limit)
        })
    }

    fn journal_page(&self, org: OrgId, after: Option<u64>, limit: usize) -> Call<'_, JournalPage> {
        self.read(move |connection, _| journal::journal_page(connection, org, after, limit))
    }

    fn payloads<'a>(&'a self, org: OrgId, run: RunId, numbers: &'a [u32]) -> Call<'a, Vec<(u32, Bytes)>> {
        let numbers = numbers.to_vec();
        self.read(move |connection, inner| {
            inner.tally.loads.fetch_add(1, Relaxed);
            let mut found = Vec::with_capacity(numbers.len());
            if journal::is_hidden(connection, (org, run))? {
                return Ok(found);
            }
            for number in numbers {
                let body: Option<Vec<u8>> =
                    catalog::value(connection, sql!("payload"), params![org.0, run.0, number]).map_err(on_read)?;
                found.extend(body.map(|body| (number, Bytes::from(body))));
            }
            Ok(found)
        })
    }

    fn run(&self, org: OrgId, run: RunId) -> Call<'_, Option<RunRow>> {
        self.read(move |connection, _| {
            let mut statement = connection.prepare_cached(sql!("run")).map_err(on_read)?;
            let row = statement.query_row((org.0, run.0), run_row).optional().map_err(on_read)?;
            Ok(row.filter(|row| row.deleted_at.is_none()))
        })
    }

    fn runs<'a>(&'a self, org: OrgId, filter: &'a RunFilter) -> Call<'a, Vec<ListedRun>> {
        let filter = filter.clone();
        self.read(move |connection, _| lists::runs(connection, org, &filter))
    }

    fn active_runs(&self) -> Call<'_, Vec<(OrgId, RunId)>> {
        Box::pin(async move { Ok(self.inner.heads.keys()) })
    }

    fn wait<'a>(&'a self, token_hash: &'a [u8; 32]) -> Call<'a, Option<Wait>> {
        let token_hash = *token_hash;
        self.read(move |connection, _| {
            let mut statement = connection.prepare_cached(sql!("wait")).map_err(on_read)?;
            let read = |row: &rusqlite::Row<'_>| {
                Ok(Wait { org: org(row, 0)?, run: run_id(row, 1)?, step: row.get(2)?, token_hash, kind: row.get(3)? })
            };
            statement.query_row([token_hash], read).optional().map_err(on_read)
        })
    }

    fn open_waits<'a>(
        &'a self,
        org: OrgId,
        kind: WaitKind,
        name: &'a str,
        after: Option<(RunId, u32)>,
        count: usize,
    ) -> Call<'a, Vec<OpenWait>> {
        let name = name.to_owned();
        self.read(move |connection, _| lists::open_waits(connection, org, kind, &name, after, count))
    }

    fn timers(&self, until: Timestamp, after: Option<Timer>, count: usize) -> Call<'_, Vec<Timer>> {
        let after = after.unwrap_or(Timer::FIRST);
        self.read(move |connection, _| {
            let mut statement = connection.prepare_cached(sql!("timers_due")).map_err(on_read)?;
            let rows = statement
                .query_map(params![until.0, after.at.0, after.org.0, after.run.0, limit(count)], |row| {
                    Ok(Timer { at: time(row, 0)?, org: org(row, 1)?, run: run_id(row, 2)? })
                });
            rows.and_then(Iterator::collect).map_err(on_read)
        })
    }

    fn next_timer(&self) -> Call<'_, Option<Timestamp>> {
        self.read(|connection, _| {
            let at: Option<Option<i64>> = catalog::value(connection, sql!("timer_next"), []).map_err(on_read)?;
            Ok(at.flatten().map(Timestamp))
        })
    }

    fn idempotency_record<'a>(
        &'a self,
        org: OrgId,
        scope: &'a str,
        key: &'a str,
    ) -> Call<'a, Option<([u8; 16], [u8; 32])>> {
        let (scope, key) = (scope.to_owned(), key.to_owned());
        self.read(move |connection, _| catalog::holder(connection, org, &scope, &key).map_err(on_read))
    }

    fn erase<'a>(&'a self, erasure: &'a Erasure) -> Call<'a, Erased> {
        let erasure = erasure.clone();
        self.write(move |writer| writer.transact_with_secure_delete(|connection| deletion::erase(connection, &erasure)))
    }

    fn hide(&self, org: OrgId, run: RunId, at: Timestamp) -> Call<'_, Erased> {
        self.write(move |writer| writer.transact(|connection| deletion::hide(connection, (org, run), at)))
    }

    fn grouped_runs(&self) -> Call<'_, Vec<GroupedRun>> {
        self.read(|connection, _| admission::grouped_runs(connection))
    }

    fn notifications(&self, after: Option<NotificationKey>, count: usize) -> Call<'_, Vec<NotificationRow>> {
        self.read(move |connection, _| notifications::notifications(connection, after, count))
    }

    fn run_notifications(&self, org: OrgId, run: RunId) -> Call<'_, Vec<NotificationRow>> {
        self.read(move |connection, _| notifications::run_notifications(connection, org, run))
    }

    fn record_notification_error<'a>(&'a self, notification: &'a NotificationRow) -> Call<'a, ()> {
        let notification = notification.clone();
        self.write(move |writer| {
            writer.transact(|connection| notifications::record_notification_error(connection, &notification))
        })
    }
}

impl InboxStore for SqliteStore {
    fn put_inbox<'a>(&'a self, rows: &'a [InboxRow]) -> Call<'a, ()> {
        let rows = rows.to_vec();
        self.write(move |writer| writer.transact(|connection| inbox::put(connection, &rows)))
    }

    fn inbox(&self, kind: InboxKind, after: Option<InboxKey>, limit: usize) -> Call<'_, Vec<InboxRow>> {
        self.read(move |connection, _| inbox::read(connection, kind, after, limit))
    }

    fn inbox_of(&self, org: OrgId, run: RunId, limit: usize) -> Call<'_, Vec<InboxRow>> {
        self.read(move |connection, _| inbox::of_run(connection, (org, run), limit))
    }

    fn answer_inbox<'a>(&'a self, answers: &'a [ConsumedRow]) -> Call<'a, ()> {
        let answers = answers.to_vec();
        self.write(move |writer| writer.transact(|connection| inbox::answer(connection, &answers)))
    }

    fn take_inbox_answers<'a>(&'a self, keys: &'a [InboxKey]) -> Call<'a, Vec<(InboxKey, Bytes)>> {
        let keys = keys.to_vec();
        self.write(move |writer| writer.transact(|connection| inbox::take_answers(connection, &keys)))
    }

    fn delete_inbox_answers(&self, before: Timestamp) -> Call<'_, ()> {
        self.write(move |writer| writer.transact(|connection| inbox::delete_answered(connection, before)))
    }
}

impl QueueStore for SqliteStore {
    fn key_queues<'a>(&'a self, after: Option<&'a QueueKey>, limit: usize) -> Call<'a, Vec<(QueueKey, u64)>> {
        let after = after.cloned();
        self.read(move |connection, _| tasks::key_queues(connection, after.as_ref(), limit))
    }

    fn ready_tasks<'a>(
        &'a self,
        queue: &'a QueueKey,
        after: Option<QueuePosition>,
        limit: usize,
    ) -> Call<'a, Vec<QueuePosition>> {
        let queue = queue.clone();
        self.read(move |connection, _| tasks::ready(connection, &queue, after, limit))
    }

    fn ready_types(&self) -> Call<'_, Vec<(OrgId, String)>> {
        self.read(|connection, _| tasks::ready_types(connection))
    }

    fn ready_counts(&self) -> Call<'_, Vec<(OrgId, String, u64)>> {
        self.read(|connection, _| tasks::ready_counts(connection))
    }

    fn ready_keys<'a>(
        &'a self,
        org: OrgId,
        name: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<String>> {
        let (name, after) = (name.to_owned(), after.map(str::to_owned));
        self.read(move |connection, _| tasks::ready_keys(connection, org, &name, after.as_deref(), limit))
    }

    fn limit_slots<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Vec<LimitSlotRow>> {
        let name = name.to_owned();
        self.read(move |connection, _| tasks::limit_slots(connection, org, &name))
    }

    fn delete_expired_limit_slots(&self, until: Timestamp) -> Call<'_, ()> {
        self.write(move |writer| {
            writer.transact(move |connection| tasks::delete_expired_limit_slots(connection, until))
        })
    }

    fn put_workers<'a>(&'a self, workers: &'a [WorkerRow], since: Timestamp) -> Call<'a, ()> {
        let workers = workers.to_vec();
        self.write(move |writer| writer.transact(|connection| tasks::put_workers(connection, &workers, since)))
    }

    fn workers(&self) -> Call<'_, Vec<WorkerRow>> {
        self.read(|connection, _| tasks::workers(connection))
    }
}

impl CatalogStore for SqliteStore {
    fn create_workflow<'a>(&'a self, new: &'a NewWorkflow) -> Call<'a, std::result::Result<(), NameTaken>> {
        let new = new.clone();
        self.write(move |writer| {
            writer.transact(|connection| immediate(catalog_rules::create_workflow(&catalog::Rows(connection), &new)))
        })
    }

    fn edit_workflow<'a>(&'a self, edit: &'a WorkflowEdit) -> Call<'a, Edited> {
        let edit = edit.clone();
        self.write(move |writer| {
            writer.transact(|connection| immediate(catalog_rules::edit_workflow(&catalog::Rows(connection), &edit)))
        })
    }

    fn workflow<'a>(&'a self, org: OrgId, by: &'a WorkflowKey) -> Call<'a, Option<WorkflowRow>> {
        let by = by.clone();
        self.read(move |connection, _| catalog::workflow(connection, org, &by))
    }

    fn workflows<'a>(&'a self, org: OrgId, filter: &'a WorkflowFilter) -> Call<'a, Vec<WorkflowRow>> {
        let filter = filter.clone();
        self.read(move |connection, _| catalog::workflows(connection, org, &filter))
    }

    fn versions(&self, org: OrgId, id: WorkflowId, before: Option<u32>, limit: usize) -> Call<'_, Vec<VersionRow>> {
        self.read(move |connection, _| catalog::versions(connection, org, id, before, limit))
    }

    fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Call<'_, Option<VersionRow>> {
        self.read(move |connection, _| catalog::version(connection, org, id, by))
    }

    fn version_source(&self, org: OrgId, id: WorkflowId, number: u32) -> Call<'_, Option<Bytes>> {
        self.read(move |connection, _| catalog::version_source(connection, org, id, number))
    }

    fn definition(&self, org: OrgId, hash: [u8; 32], lowering: Option<u32>) -> Call<'_, Option<StoredDefinition>> {
        self.read(move |connection, _| catalog::definition(connection, org, &hash, lowering))
    }

    fn pause_workflow<'a>(&'a self, pause: &'a WorkflowPause) -> Call<'a, ()> {
        let pause = pause.clone();
        self.write(move |writer| writer.transact(|connection| admission::pause_workflow(connection, &pause)))
    }

    fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, ()> {
        self.write(move |writer| writer.transact(|connection| admission::resume_workflow(connection, org, workflow)))
    }

    fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<WorkflowPause>> {
        self.read(move |connection, _| admission::workflow_pause(connection, org, workflow))
    }

    fn workflow_pauses(&self) -> Call<'_, Vec<WorkflowPause>> {
        self.read(|connection, _| admission::workflow_pauses(connection))
    }

    fn ensure_type<'a>(&'a self, row: &'a TypeRow, definition: Option<&'a StoredDefinition>) -> Call<'a, ()> {
        let (row, definition) = (row.clone(), definition.cloned());
        let ensure_type = move |connection: &Connection| tasks::ensure_type(connection, &row, definition.as_ref());
        self.write(move |writer| writer.transact(ensure_type))
    }

    fn put_type<'a>(&'a self, row: &'a TypeRow) -> Call<'a, ()> {
        let row = row.clone();
        self.write(move |writer| writer.transact(|connection| tasks::put_type(connection, &row)))
    }

    fn task_type<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Option<TypeRow>> {
        let name = name.to_owned();
        self.read(move |connection, _| tasks::get(connection, org, &name))
    }

    fn task_types<'a>(
        &'a self,
        org: OrgId,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<TypeRow>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.read(move |connection, _| tasks::types(connection, org, &prefix, after.as_deref(), limit))
    }

    fn configured_types(&self) -> Call<'_, Vec<TypeRow>> {
        self.read(|connection, _| tasks::configured_types(connection))
    }
}

impl TriggerStore for SqliteStore {
    fn create_trigger<'a>(&'a self, new: &'a NewTrigger) -> Call<'a, std::result::Result<(), TriggerTaken>> {
        let new = new.clone();
        self.write(move |writer| {
            writer.transact(|connection| immediate(catalog_rules::create_trigger(&catalog::Rows(connection), &new)))
        })
    }

    fn change_trigger<'a>(&'a self, change: &'a TriggerChange) -> Call<'a, Changed> {
        let change = change.clone();
        self.write(move |writer| {
            writer.transact(|connection| immediate(catalog_rules::change_trigger(&catalog::Rows(connection), &change)))
        })
    }

    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, bool> {
        self.write(move |writer| writer.transact(|connection| triggers::delete(connection, org, id)))
    }

    fn trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, Option<TriggerRow>> {
        self.read(move |connection, _| triggers::get(connection, org, id))
    }

    fn trigger_at<'a>(&'a self, path: &'a str) -> Call<'a, Option<TriggerRow>> {
        let path = path.to_owned();
        self.read(move |connection, _| triggers::by_path(connection, &path))
    }

    fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<TriggerRow>> {
        self.read(move |connection, _| triggers::owned_by(connection, org, workflow))
    }

    fn triggers<'a>(&'a self, org: OrgId, filter: &'a TriggerFilter) -> Call<'a, Vec<TriggerRow>> {
        let filter = filter.clone();
        self.read(move |connection, _| triggers::list(connection, org, &filter))
    }

    fn due_triggers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<TriggerRow>> {
        self.read(move |connection, _| triggers::due(connection, until, limit))
    }

    fn next_trigger(&self) -> Call<'_, Option<Timestamp>> {
        self.read(|connection, _| triggers::next(connection))
    }

    fn log_deliveries<'a>(&'a self, log: &'a TriggerLog) -> Call<'a, bool> {
        let log = log.clone();
        self.write(move |writer| writer.transact(|connection| triggers::log(connection, &log)))
    }

    fn deliveries(
        &self,
        org: OrgId,
        trigger: TriggerId,
        before: Option<u64>,
        limit: usize,
    ) -> Call<'_, Vec<DeliveryRow>> {
        self.read(move |connection, _| triggers::deliveries(connection, (org, trigger), before, limit))
    }

    fn delivery<'a>(&'a self, org: OrgId, trigger: TriggerId, id: &'a str) -> Call<'a, Option<DeliveryRow>> {
        let id = id.to_owned();
        self.read(move |connection, _| triggers::delivery(connection, (org, trigger), &id))
    }

    fn queued_deliveries(&self, of: Option<(OrgId, TriggerId)>, limit: usize) -> Call<'_, Vec<DeliveryRow>> {
        self.read(move |connection, _| triggers::queued(connection, of, limit))
    }
}

impl ClusterStore for SqliteStore {
    fn next_epoch(&self) -> Call<'_, u64> {
        self.write(|writer| writer.transact(catalog::next_epoch))
    }

    fn setting<'a>(&'a self, name: &'a str) -> Call<'a, Option<String>> {
        let name = name.to_owned();
        self.read(move |connection, _| catalog::setting(connection, &name))
    }

    fn set_setting<'a>(&'a self, name: &'a str, value: &'a str) -> Call<'a, ()> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.write(move |writer| writer.transact(|connection| catalog::set_setting(connection, &name, &value)))
    }

    fn high_water(&self) -> Call<'_, Option<Timestamp>> {
        self.read(|connection, _| {
            let newest: Option<Vec<u8>> = catalog::value(connection, sql!("journal_newest"), []).map_err(on_read)?;
            let record = newest.map(|body| Record::open(&body)).transpose();
            let newest = record.map_err(|e| Error::Corrupt(e.to_string()))?.map(|record| record.at);
            Ok(newest.max(deletion::high_water(connection)?))
        })
    }

    fn check(&self) -> Call<'_, ()> {
        self.write(StoreWriter::check)
    }

    fn reads_are_durable(&self) -> bool {
        false
    }

    fn counters(&self) -> Counters {
        let tally = &self.inner.tally;
        Counters {
            commits: tally.commits.load(Relaxed),
            records: tally.records.load(Relaxed),
            commit_reads: tally.commit_reads.load(Relaxed),
            loads: tally.loads.load(Relaxed),
            wal_bytes: tally.wal_bytes.load(Relaxed),
            rollbacks: 0,
        }
    }
}
