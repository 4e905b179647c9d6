//! The store in memory, without persistence: ordered maps behind one lock.
//!
//! It is a full implementation, not a mock. The simulator runs whole clusters on it, so it must behave exactly as the
//! durable stores do, and `testkit::conformance` checks that. It never fails; the simulator wraps it to inject lost
//! acknowledgements and crashes.
//!
//! Invariant: a write is checked completely before anything is changed, so a single run never needs a rollback.

mod catalog;
mod inbox;
mod tasks;
mod triggers;

use crate::rows::*;
use crate::triggers::*;
use crate::write_validation::{is_same_group, is_valid, undo_group};
use crate::{Call, CatalogStore, ClusterStore, Error, JournalStore, QueueStore, Result, TriggerStore};
use bytes::Bytes;
use kernel::plan::Form;
use kernel::planted_bugs::{self, Bug};
use kernel::run::WaitKind;
use kernel::{OrgId, Record, RunId, RunStatus, Timestamp, TriggerId, WorkflowId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub struct MemoryStore {
    contents: Mutex<Contents>,
}

/// Everything stored about one run.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRun {
    pub row: RunRow,
    /// Record `n` is at `n - 1`.
    pub records: Vec<Bytes>,
    pub snapshot: Option<(u64, Bytes)>,
    pub payloads: BTreeMap<u32, Bytes>,
    /// The timer rows: at most one, unless a writer forgot to remove the old one.
    pub timers: BTreeSet<Timestamp>,
    pub labels: BTreeSet<(String, String)>,
}

/// The id of what was created with an idempotency key, and the fingerprint of the request.
type IdempotencyEntry = ([u8; 16], [u8; 32]);

/// Runs are behind an `Arc`, so that forks share them until one of the forks writes.
#[derive(Clone, Default)]
struct Contents {
    runs: BTreeMap<(OrgId, RunId), Arc<MemoryRun>>,
    timers: BTreeSet<Timer>,
    ready: BTreeSet<ReadyRow>,
    limit_slots: BTreeMap<LimitSlot, LimitSlotRow>,
    waits: BTreeMap<[u8; 32], Wait>,
    open_waits: BTreeSet<OpenWait>,
    idempotency: BTreeMap<(OrgId, String, String), IdempotencyEntry>,
    workflows: BTreeMap<(OrgId, WorkflowId), WorkflowRow>,
    versions: BTreeMap<(OrgId, WorkflowId, u32), VersionRow>,
    /// By workflow and version: the definition as its author wrote it.
    version_sources: BTreeMap<(OrgId, WorkflowId, u32), Bytes>,
    definitions: BTreeMap<(OrgId, [u8; 32], u32), StoredDefinition>,
    types: BTreeMap<(OrgId, String), TypeRow>,
    workers: BTreeMap<(OrgId, String), WorkerRow>,
    triggers: BTreeMap<(OrgId, TriggerId), TriggerRow>,
    deliveries: BTreeMap<(OrgId, TriggerId, u64), DeliveryRow>,
    /// Index `n` is position `n + 1`: the run and the number of the record there; `None` once the run was deleted.
    journal: Vec<Option<(OrgId, RunId, u64)>>,
    pauses: BTreeMap<(OrgId, WorkflowId), WorkflowPause>,
    /// Undelivered notifications, each with the error of its last delivery attempt.
    notifications: BTreeMap<(OrgId, RunId, u64), String>,
    /// Rows of the inbox, each with its answer once it has one.
    inbox: BTreeMap<InboxKey, (InboxRow, Option<Bytes>)>,
    settings: BTreeMap<String, String>,
    /// The newest record.
    newest: Option<Bytes>,
    counters: Counters,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// A copy of the store; later writes to either one do not affect the other.
    pub fn fork(&self) -> MemoryStore {
        MemoryStore { contents: Mutex::new(self.contents().clone()) }
    }

    /// Everything stored about every run, by organisation and id, for invariant checks.
    pub fn stored_runs(&self) -> Vec<Arc<MemoryRun>> {
        self.contents().runs.values().cloned().collect()
    }

    pub fn stored_run(&self, org: OrgId, run: RunId) -> Option<Arc<MemoryRun>> {
        self.contents().runs.get(&(org, run)).cloned()
    }

    /// Every timer row, earliest first.
    pub fn stored_timers(&self) -> Vec<Timer> {
        self.contents().timers.iter().copied().collect()
    }

    /// Every ready task of an evicted run.
    pub fn stored_ready(&self) -> Vec<ReadyRow> {
        self.contents().ready.iter().cloned().collect()
    }

    /// No method panics in the middle of a change, so the contents behind a poisoned lock are consistent.
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `read` only when the call is awaited, as the stores that do I/O do.
    fn answer<'a, T>(&'a self, read: impl FnOnce(&mut Contents) -> T + Send + 'a) -> Call<'a, T> {
        Box::pin(async move { Ok(read(&mut self.contents())) })
    }
}

impl Contents {
    fn write(&mut self, write: &RunWrite, at: Timestamp) -> WriteVerdict {
        match self.refusal(write, at) {
            Some(verdict) => verdict,
            None => {
                self.apply(write);
                WriteVerdict::Committed
            }
        }
    }

    /// Writes all runs of an atomic group or none. A group of one is a single write.
    fn write_group(&mut self, atomic_group: &[RunWrite], at: Timestamp) -> Vec<WriteVerdict> {
        let [write] = atomic_group else {
            let before = self.clone();
            let mut verdicts = Vec::with_capacity(atomic_group.len());
            for write in atomic_group {
                verdicts.push(self.write(write, at));
                if verdicts.last() == Some(&WriteVerdict::Conflict) {
                    break;
                }
            }
            if undo_group(atomic_group, &mut verdicts) {
                *self = before;
            }
            return verdicts;
        };
        vec![self.write(write, at)]
    }

    /// Why the write is refused, checked in the same order as in SQLite.
    fn refusal(&self, write: &RunWrite, at: Timestamp) -> Option<WriteVerdict> {
        if !is_valid(write) {
            return Some(WriteVerdict::Conflict);
        }
        if let Some(key) = write.run_insert.as_ref().and_then(|b| b.idempotency.as_ref())
            && let Some((made, fingerprint)) =
                self.idempotency.get(&(write.org, key.scope.clone(), key.key.clone())).copied()
        {
            return Some(WriteVerdict::KeyTaken { run: RunId(made), fingerprint });
        }
        if let Some(key) = write.run_insert.as_ref().and_then(|b| b.idempotency.as_ref())
            && planted_bugs::is(Bug::KeyIsGlobal)
            && let Some((_, (made, fingerprint))) = self.idempotency.iter().find(|((_, _, other), _)| *other == key.key)
        {
            return Some(WriteVerdict::KeyTaken { run: RunId(*made), fingerprint: *fingerprint });
        }
        let stored = self.runs.get(&(write.org, write.run));
        let seq = stored.map_or(0, |s| s.records.len() as u64);
        let mut numbers: BTreeSet<u32> = stored.iter().flat_map(|s| s.payloads.keys().copied()).collect();
        let mut hashes = BTreeSet::new();
        if seq != write.after {
            return Some(WriteVerdict::Conflict);
        }
        if self.is_full(&write.limit_slots, at) {
            return Some(WriteVerdict::Full);
        }
        let is_unanswered = |key: &InboxKey| matches!(self.inbox.get(key), Some((_, None)));
        let is_fine = write.payloads.iter().all(|(number, _)| numbers.insert(*number))
            && write.consumed.iter().all(|row| is_unanswered(&row.key))
            && write
                .tokens
                .iter()
                .all(|token| !self.waits.contains_key(&token.token_hash) && hashes.insert(token.token_hash));
        if is_fine { None } else { Some(WriteVerdict::Conflict) }
    }

    fn apply(&mut self, write: &RunWrite) {
        let key = (write.org, write.run);
        if let Some(row) = write.row.as_ref().filter(|_| write.after == 0) {
            self.runs.insert(key, Arc::new(MemoryRun::new(row.clone())));
        }
        let Some(run) = self.runs.get_mut(&key).map(Arc::make_mut) else { return };
        if let Some(row) = &write.row {
            run.update(row);
            if write.is_moved {
                (run.row.version, run.row.hash, run.row.lowering) = (row.version, row.hash, row.lowering);
            }
        }
        run.records.push(write.record.clone());
        self.journal.push(Some((write.org, write.run, write.after + 1)));
        run.labels.extend(write.run_insert.iter().flat_map(|run_insert| run_insert.labels.iter().cloned()));
        if let Some(state) = &write.snapshot {
            run.snapshot = Some((write.after + 1, state.clone()));
        }
        run.payloads.extend(write.payloads.iter().cloned());
        if let Some(at) = write.timer.remove {
            run.timers.remove(&at);
            self.timers.remove(&Timer { at, org: write.org, run: write.run });
        }
        if let Some(at) = write.timer.insert {
            run.timers.insert(at);
            self.timers.insert(Timer { at, org: write.org, run: write.run });
        }
        self.change_ready(&write.ready);
        self.change_limit_slots(&write.limit_slots);
        self.waits.extend(write.tokens.iter().map(|token| (token.token_hash, token.clone())));
        for wait in &write.waits.remove {
            self.open_waits.remove(wait);
        }
        self.open_waits.extend(write.waits.insert.iter().cloned());
        for row in &write.consumed {
            self.consume(row);
        }
        for row in &write.outgoing {
            self.inbox.entry(row.key).or_insert_with(|| (row.clone(), None));
        }
        for number in &write.notifications {
            self.notifications.entry((write.org, write.run, *number)).or_default();
        }
        if let Some(run_insert) = &write.run_insert {
            if let Some((of, number)) = run_insert.notification {
                self.notifications.remove(&(write.org, of, number));
            }
            if let Some(key) = &run_insert.idempotency {
                self.idempotency
                    .insert((write.org, key.scope.clone(), key.key.clone()), (write.run.0, key.fingerprint));
            }
            if let Some(delivery) = &run_insert.delivery {
                self.put_delivery(delivery);
                if let Some(to) = run_insert.advance {
                    self.advance(delivery.org, delivery.trigger, to);
                }
            }
        }
        self.newest = Some(write.record.clone());
        self.counters.records += 1;
    }

    fn load(&mut self, key: (OrgId, RunId)) -> Option<Loaded> {
        self.counters.loads += 1;
        let stored = self.visible_run(key)?;
        let from = stored.snapshot.as_ref().map_or(0, |(seq, _)| *seq as usize);
        Some(Loaded {
            snapshot: stored.snapshot.clone(),
            records: stored.records[from..].to_vec(),
            seq: stored.records.len() as u64,
            row: stored.row.clone(),
        })
    }

    /// A run that exists and is not hidden.
    fn visible_run(&self, key: (OrgId, RunId)) -> Option<&Arc<MemoryRun>> {
        self.runs.get(&key).filter(|stored| stored.is_visible())
    }

    /// Workflows of an organisation that are not deleted.
    fn live_workflows(&self, org: OrgId) -> impl DoubleEndedIterator<Item = &WorkflowRow> {
        self.workflows.values().filter(move |w| w.org == org && w.deleted_at.is_none())
    }

    /// Why a run cannot be deleted or hidden, if it cannot.
    fn deletion_refusal(&self, key: (OrgId, RunId)) -> Option<Erased> {
        match self.runs.get(&key) {
            None => Some(Erased::NotFound),
            Some(stored) if !stored.row.status.is_terminal() => Some(Erased::NotEnded),
            Some(_) => {
                let mut notifications = self.notifications.range((key.0, key.1, 0)..=(key.0, key.1, u64::MAX));
                let is_notified = notifications.next().is_none();
                let concerns = |row: &InboxRow| row.key.0 == key.0 && (row.key.1 == key.1 || row.sender == Some(key.1));
                let is_empty = !self.inbox.values().any(|(row, answer)| answer.is_none() && concerns(row));
                match (is_notified, is_empty || planted_bugs::is(Bug::ErasedUnderRows)) {
                    (false, _) => Some(Erased::NotificationsPending),
                    (true, false) => Some(Erased::InboxPending),
                    (true, true) => None,
                }
            }
        }
    }

    fn hide(&mut self, key: (OrgId, RunId), at: Timestamp) -> Erased {
        match self.deletion_refusal(key) {
            Some(why) => why,
            None if self.visible_run(key).is_none() => Erased::NotFound,
            None => {
                let run = self.runs.get_mut(&key).map(Arc::make_mut);
                run.into_iter().for_each(|run| run.row.deleted_at = Some(at));
                Erased::Done
            }
        }
    }

    fn erase(&mut self, erasure: &Erasure) -> Erased {
        let key = (erasure.org, erasure.run);
        if let Some(why) = self.deletion_refusal(key) {
            return why;
        }
        if self.runs.get(&key).is_some_and(|run| run.records.len() as u64 != erasure.seq) {
            return Erased::Changed;
        }
        self.runs.remove(&key);
        self.timers.retain(|timer| (timer.org, timer.run) != key);
        self.waits.retain(|_, wait| (wait.org, wait.run) != key);
        for entry in self.journal.iter_mut() {
            entry.take_if(|(org, run, _)| (*org, *run) == key);
        }
        Erased::Done
    }

    fn journal_page(&self, org: OrgId, after: Option<u64>, limit: usize) -> JournalPage {
        let newest = self.journal.len() as u64;
        let from = after.unwrap_or(newest).min(newest);
        let positions = (from + 1..=newest).take(limit);
        let end = positions.clone().last().unwrap_or(from);
        let record = |pos: u64| {
            let (owner, run, seq) = self.journal[pos as usize - 1]?;
            let stored = self.visible_run((owner, run)).filter(|_| owner == org)?;
            Some(JournalEntry { pos, run, record: stored.records.get(seq as usize - 1)?.clone() })
        };
        JournalPage { records: positions.filter_map(record).collect(), end }
    }
}

fn notification_row((&(org, run, number), error): (&(OrgId, RunId, u64), &String)) -> NotificationRow {
    NotificationRow { org, run, number, error: error.clone() }
}

impl MemoryRun {
    fn new(row: RunRow) -> MemoryRun {
        MemoryRun {
            row: RunRow { deleted_at: None, ..row },
            records: Vec::new(),
            snapshot: None,
            payloads: BTreeMap::new(),
            timers: BTreeSet::new(),
            labels: BTreeSet::new(),
        }
    }

    /// Leaves out the columns that are fixed when a run is created.
    fn update(&mut self, to: &RunRow) {
        let row = &mut self.row;
        (row.status, row.waiting, row.wake_at) = (to.status, to.waiting, to.wake_at);
        (row.expires_at, row.finished_at) = (to.expires_at, to.finished_at);
        row.error_code.clone_from(&to.error_code);
        row.failed_steps.clone_from(&to.failed_steps);
        row.evicted = to.evicted;
    }

    fn matches(&self, filter: &RunFilter) -> bool {
        let row = &self.row;
        self.is_visible()
            && (filter.statuses.is_empty() || filter.statuses.contains(&row.status))
            && filter.workflow.is_none_or(|workflow| workflow == row.workflow)
            && filter.except.is_none_or(|except| except != row.workflow || filter.workflow == Some(except))
            && (filter.forms.is_empty() || filter.forms.contains(&row.form))
            && filter.labels.iter().all(|label| self.labels.contains(label))
            && filter.since.is_none_or(|since| row.created_at >= since)
            && filter.until.is_none_or(|until| row.created_at < until)
            && filter.before.is_none_or(|before| row.id < before)
    }

    fn is_active(&self) -> bool {
        !self.row.evicted && !self.row.status.is_terminal()
    }

    fn is_visible(&self) -> bool {
        self.row.deleted_at.is_none()
    }
}

impl JournalStore for MemoryStore {
    fn commit<'a>(&'a self, batch: &'a Batch) -> Call<'a, Vec<WriteVerdict>> {
        self.answer(move |c| {
            let before = planted_bugs::is(Bug::BatchAborted).then(|| c.clone());
            let groups = batch.runs.chunk_by(is_same_group);
            let verdicts: Vec<WriteVerdict> = groups.flat_map(|group| c.write_group(group, batch.at)).collect();
            if let Some(before) = before.filter(|_| verdicts.iter().any(|v| *v != WriteVerdict::Committed)) {
                *c = before;
            }
            c.counters.commits += u64::from(verdicts.contains(&WriteVerdict::Committed));
            verdicts
        })
    }

    fn load(&self, org: OrgId, run: RunId) -> Call<'_, Option<Loaded>> {
        self.answer(move |c| c.load((org, run)))
    }

    fn load_all<'a>(&'a self, runs: &'a [(OrgId, RunId)]) -> Call<'a, Vec<Result<Option<Loaded>>>> {
        self.answer(move |c| runs.iter().map(|key| Ok(c.load(*key))).collect())
    }

    fn history(&self, org: OrgId, run: RunId, after: u64, limit: usize) -> Call<'_, Option<Vec<Bytes>>> {
        self.answer(move |c| {
            c.counters.loads += 1;
            let after = usize::try_from(after).unwrap_or(usize::MAX);
            c.visible_run((org, run)).map(|stored| stored.records.iter().skip(after).take(limit).cloned().collect())
        })
    }

    fn journal_page(&self, org: OrgId, after: Option<u64>, limit: usize) -> Call<'_, JournalPage> {
        self.answer(move |c| c.journal_page(org, after, limit))
    }

    fn payloads<'a>(&'a self, org: OrgId, run: RunId, numbers: &'a [u32]) -> Call<'a, Vec<(u32, Bytes)>> {
        self.answer(move |c| {
            c.counters.loads += 1;
            let Some(stored) = c.visible_run((org, run)) else { return Vec::new() };
            numbers.iter().filter_map(|n| stored.payloads.get(n).map(|body| (*n, body.clone()))).collect()
        })
    }

    fn run(&self, org: OrgId, run: RunId) -> Call<'_, Option<RunRow>> {
        self.answer(move |c| c.visible_run((org, run)).map(|stored| stored.row.clone()))
    }

    fn runs<'a>(&'a self, org: OrgId, filter: &'a RunFilter) -> Call<'a, Vec<ListedRun>> {
        self.answer(move |c| {
            let of_org = c.runs.range((org, RunId([0; 16]))..=(org, RunId([255; 16]))).rev();
            of_org
                .map(|(_, stored)| stored)
                .filter(|stored| stored.matches(filter))
                .take(filter.limit)
                .map(|stored| Ok(stored.row.clone()))
                .collect()
        })
    }

    fn active_runs(&self) -> Call<'_, Vec<(OrgId, RunId)>> {
        self.answer(move |c| c.runs.iter().filter(|(_, stored)| stored.is_active()).map(|(key, _)| *key).collect())
    }

    fn wait<'a>(&'a self, token_hash: &'a [u8; 32]) -> Call<'a, Option<Wait>> {
        self.answer(move |c| {
            let wait = c.waits.get(token_hash);
            wait.filter(|wait| c.visible_run((wait.org, wait.run)).is_some()).cloned()
        })
    }

    fn open_waits<'a>(
        &'a self,
        org: OrgId,
        kind: WaitKind,
        name: &'a str,
        after: Option<(RunId, u32)>,
        limit: usize,
    ) -> Call<'a, Vec<OpenWait>> {
        self.answer(move |c| {
            let is_it = |wait: &&OpenWait| (wait.org, wait.kind, wait.name.as_str()) == (org, kind, name);
            let is_later = |wait: &&OpenWait| after.is_none_or(|after| (wait.run, wait.step) > after);
            c.open_waits.iter().filter(is_it).filter(is_later).take(limit).cloned().collect()
        })
    }

    fn timers(&self, until: Timestamp, after: Option<Timer>, limit: usize) -> Call<'_, Vec<Timer>> {
        self.answer(move |c| {
            let rest = c.timers.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
            let due: Vec<Timer> = rest.take_while(|timer| timer.at <= until).take(limit).copied().collect();
            if planted_bugs::is(Bug::TimerTakenEarly) {
                c.timers.retain(|timer| !due.contains(timer));
            }
            due
        })
    }

    fn next_timer(&self) -> Call<'_, Option<Timestamp>> {
        self.answer(move |c| c.timers.first().map(|timer| timer.at))
    }

    fn idempotency_record<'a>(
        &'a self,
        org: OrgId,
        scope: &'a str,
        key: &'a str,
    ) -> Call<'a, Option<IdempotencyEntry>> {
        self.answer(move |c| c.idempotency.get(&(org, scope.to_owned(), key.to_owned())).copied())
    }

    fn erase<'a>(&'a self, erasure: &'a Erasure) -> Call<'a, Erased> {
        self.answer(move |c| c.erase(erasure))
    }

    fn hide(&self, org: OrgId, run: RunId, at: Timestamp) -> Call<'_, Erased> {
        self.answer(move |c| c.hide((org, run), at))
    }

    fn grouped_runs(&self) -> Call<'_, Vec<GroupedRun>> {
        self.answer(move |c| {
            let open = c.runs.values().map(|stored| &stored.row).filter(|row| row.finished_at.is_none());
            let mut grouped_runs: Vec<GroupedRun> = open
                .filter(|row| {
                    row.form != Form::Task && (row.concurrency_group.is_some() || row.status == RunStatus::Pending)
                })
                .map(|row| GroupedRun {
                    org: row.org,
                    run: row.id,
                    workflow: row.workflow,
                    concurrency_group: row.concurrency_group.clone(),
                    is_queued: row.status == RunStatus::Pending,
                })
                .collect();
            grouped_runs.sort_by_key(|run| (run.run, run.org));
            grouped_runs
        })
    }

    fn notifications(&self, after: Option<NotificationKey>, limit: usize) -> Call<'_, Vec<NotificationRow>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.answer(move |c| {
            let rows = c.notifications.range((from, Bound::Unbounded)).take(limit).map(notification_row).collect();
            if planted_bugs::is(Bug::NotificationLost) {
                c.notifications.clear();
            }
            rows
        })
    }

    fn run_notifications(&self, org: OrgId, run: RunId) -> Call<'_, Vec<NotificationRow>> {
        self.answer(move |c| {
            c.notifications.range((org, run, 0)..=(org, run, u64::MAX)).map(notification_row).collect()
        })
    }

    fn record_notification_error<'a>(&'a self, notification: &'a NotificationRow) -> Call<'a, ()> {
        self.answer(move |c| {
            if let Some(error) = c.notifications.get_mut(&(notification.org, notification.run, notification.number)) {
                error.clone_from(&notification.error);
            }
        })
    }
}

impl QueueStore for MemoryStore {
    fn key_queues<'a>(&'a self, after: Option<&'a QueueKey>, limit: usize) -> Call<'a, Vec<(QueueKey, u64)>> {
        self.answer(move |c| c.key_queues(after, limit))
    }

    fn ready_tasks<'a>(
        &'a self,
        queue: &'a QueueKey,
        after: Option<QueuePosition>,
        limit: usize,
    ) -> Call<'a, Vec<QueuePosition>> {
        self.answer(move |c| c.ready_in(queue, after, limit))
    }

    fn ready_types(&self) -> Call<'_, Vec<(OrgId, String)>> {
        self.answer(|c| c.ready_counts().into_keys().collect())
    }

    fn ready_counts(&self) -> Call<'_, Vec<(OrgId, String, u64)>> {
        self.answer(|c| c.ready_counts().into_iter().map(|((org, name), count)| (org, name, count)).collect())
    }

    fn ready_keys<'a>(
        &'a self,
        org: OrgId,
        name: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<String>> {
        self.answer(move |c| c.ready_keys(org, name, after, limit))
    }

    fn limit_slots<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Vec<LimitSlotRow>> {
        self.answer(move |c| c.limit_slots_of(org, name))
    }

    fn delete_expired_limit_slots(&self, until: Timestamp) -> Call<'_, ()> {
        self.answer(move |c| c.limit_slots.retain(|_, row| row.until > until))
    }

    fn put_workers<'a>(&'a self, workers: &'a [WorkerRow], since: Timestamp) -> Call<'a, ()> {
        self.answer(move |c| c.put_workers(workers, since))
    }

    fn workers(&self) -> Call<'_, Vec<WorkerRow>> {
        self.answer(|c| c.workers.values().cloned().collect())
    }
}

impl CatalogStore for MemoryStore {
    fn create_workflow<'a>(&'a self, new: &'a NewWorkflow) -> Call<'a, std::result::Result<(), NameTaken>> {
        Box::pin(async move { self.contents().create_workflow(new) })
    }

    fn edit_workflow<'a>(&'a self, edit: &'a WorkflowEdit) -> Call<'a, Edited> {
        self.answer(move |c| c.edit_workflow(edit))
    }

    fn workflow<'a>(&'a self, org: OrgId, by: &'a WorkflowKey) -> Call<'a, Option<WorkflowRow>> {
        self.answer(move |c| {
            match by {
                WorkflowKey::Id(id) => c.workflows.get(&(org, *id)).filter(|w| w.deleted_at.is_none()),
                WorkflowKey::Name(name) => {
                    let by_name = c.live_workflows(org).find(|w| w.name == *name);
                    by_name.or_else(|| c.live_workflows(org).find(|w| w.slug == *name))
                }
                WorkflowKey::IdOrDeleted(id) => c.workflows.get(&(org, *id)),
            }
            .cloned()
        })
    }

    fn workflows<'a>(&'a self, org: OrgId, filter: &'a WorkflowFilter) -> Call<'a, Vec<WorkflowRow>> {
        self.answer(move |c| {
            let matches =
                |w: &&WorkflowRow| w.name.starts_with(&filter.name) && filter.before.is_none_or(|before| w.id < before);
            c.live_workflows(org).rev().filter(matches).take(filter.limit).cloned().collect()
        })
    }

    fn versions(&self, org: OrgId, id: WorkflowId, before: Option<u32>, limit: usize) -> Call<'_, Vec<VersionRow>> {
        self.answer(move |c| {
            let all = c.versions.range((org, id, 0)..(org, id, before.unwrap_or(u32::MAX))).rev();
            all.take(limit).map(|(_, version)| version.clone()).collect()
        })
    }

    fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Call<'_, Option<VersionRow>> {
        self.answer(move |c| {
            let is_it = |version: &VersionRow| match by {
                VersionKey::Number(number) => version.number == number,
                VersionKey::Hash(hash) => version.hash == hash,
            };
            let mut all = c.versions.range((org, id, 0)..=(org, id, u32::MAX)).rev();
            all.find(|(_, version)| is_it(version)).map(|(_, version)| version.clone())
        })
    }

    fn version_source(&self, org: OrgId, id: WorkflowId, number: u32) -> Call<'_, Option<Bytes>> {
        self.answer(move |c| c.version_sources.get(&(org, id, number)).cloned())
    }

    fn definition(&self, org: OrgId, hash: [u8; 32], lowering: Option<u32>) -> Call<'_, Option<StoredDefinition>> {
        let (first, last) = (lowering.unwrap_or(0), lowering.unwrap_or(u32::MAX));
        let latest = move |c: &mut Contents| {
            let found = c.definitions.range((org, hash, first)..=(org, hash, last)).next_back();
            found.map(|(_, definition)| definition.clone())
        };
        self.answer(latest)
    }

    fn pause_workflow<'a>(&'a self, pause: &'a WorkflowPause) -> Call<'a, ()> {
        self.answer(move |c| {
            c.pauses.entry((pause.org, pause.workflow)).or_insert_with(|| pause.clone());
        })
    }

    fn resume_workflow(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, ()> {
        self.answer(move |c| {
            c.pauses.remove(&(org, workflow));
        })
    }

    fn workflow_pause(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<WorkflowPause>> {
        self.answer(move |c| c.pauses.get(&(org, workflow)).cloned())
    }

    fn workflow_pauses(&self) -> Call<'_, Vec<WorkflowPause>> {
        self.answer(move |c| c.pauses.values().cloned().collect())
    }

    fn ensure_type<'a>(&'a self, row: &'a TypeRow, definition: Option<&'a StoredDefinition>) -> Call<'a, ()> {
        self.answer(move |c| c.ensure_type(row, definition))
    }

    fn put_type<'a>(&'a self, row: &'a TypeRow) -> Call<'a, ()> {
        self.answer(move |c| {
            c.types.insert((row.org, row.name.clone()), row.clone());
        })
    }

    fn task_type<'a>(&'a self, org: OrgId, name: &'a str) -> Call<'a, Option<TypeRow>> {
        self.answer(move |c| c.types.get(&(org, name.to_owned())).cloned())
    }

    fn task_types<'a>(
        &'a self,
        org: OrgId,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> Call<'a, Vec<TypeRow>> {
        self.answer(move |c| c.task_types(org, prefix, after, limit))
    }

    fn configured_types(&self) -> Call<'_, Vec<TypeRow>> {
        self.answer(|c| c.configured_types())
    }
}

impl TriggerStore for MemoryStore {
    fn create_trigger<'a>(&'a self, new: &'a NewTrigger) -> Call<'a, std::result::Result<(), TriggerTaken>> {
        Box::pin(async move { self.contents().create_trigger(new) })
    }

    fn change_trigger<'a>(&'a self, change: &'a TriggerChange) -> Call<'a, Changed> {
        self.answer(move |c| c.change_trigger(change))
    }

    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, bool> {
        self.answer(move |c| c.delete_trigger(org, id))
    }

    fn trigger(&self, org: OrgId, id: TriggerId) -> Call<'_, Option<TriggerRow>> {
        self.answer(move |c| c.triggers.get(&(org, id)).cloned())
    }

    fn trigger_at<'a>(&'a self, path: &'a str) -> Call<'a, Option<TriggerRow>> {
        self.answer(move |c| c.triggers.values().find(|t| t.path.as_deref() == Some(path)).cloned())
    }

    fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Call<'_, Option<TriggerRow>> {
        self.answer(move |c| c.owned_trigger(org, workflow))
    }

    fn triggers<'a>(&'a self, org: OrgId, filter: &'a TriggerFilter) -> Call<'a, Vec<TriggerRow>> {
        self.answer(move |c| c.list_triggers(org, filter))
    }

    fn due_triggers(&self, until: Timestamp, limit: usize) -> Call<'_, Vec<TriggerRow>> {
        self.answer(move |c| c.due_triggers(until, limit))
    }

    fn next_trigger(&self) -> Call<'_, Option<Timestamp>> {
        self.answer(move |c| c.triggers.values().filter_map(|t| t.next_at).min())
    }

    fn log_deliveries<'a>(&'a self, log: &'a TriggerLog) -> Call<'a, bool> {
        self.answer(move |c| c.log_deliveries(log))
    }

    fn deliveries(
        &self,
        org: OrgId,
        trigger: TriggerId,
        before: Option<u64>,
        limit: usize,
    ) -> Call<'_, Vec<DeliveryRow>> {
        self.answer(move |c| {
            let below = (org, trigger, before.unwrap_or(u64::MAX));
            let of_trigger = c.deliveries.range((org, trigger, 0)..below).rev().take(limit);
            of_trigger.map(|(_, row)| DeliveryRow { request: None, ..row.clone() }).collect()
        })
    }

    fn delivery<'a>(&'a self, org: OrgId, trigger: TriggerId, id: &'a str) -> Call<'a, Option<DeliveryRow>> {
        self.answer(move |c| c.log_of(org, trigger).find(|row| row.id == id).cloned())
    }

    fn queued_deliveries(&self, of: Option<(OrgId, TriggerId)>, limit: usize) -> Call<'_, Vec<DeliveryRow>> {
        self.answer(move |c| {
            let queued = c.deliveries.values().filter(|row| row.outcome == DeliveryOutcome::Queued);
            let queued = queued.filter(|row| of.is_none_or(|of| of == (row.org, row.trigger)));
            queued.take(limit).map(|row| DeliveryRow { request: None, ..row.clone() }).collect()
        })
    }
}

impl ClusterStore for MemoryStore {
    fn next_epoch(&self) -> Call<'_, u64> {
        self.answer(move |c| {
            let last: u64 = c.settings.get("epoch").and_then(|text| text.parse().ok()).unwrap_or(0);
            c.settings.insert("epoch".to_owned(), (last + 1).to_string());
            last + 1
        })
    }

    fn setting<'a>(&'a self, name: &'a str) -> Call<'a, Option<String>> {
        self.answer(move |c| c.settings.get(name).cloned())
    }

    fn set_setting<'a>(&'a self, name: &'a str, value: &'a str) -> Call<'a, ()> {
        self.answer(move |c| {
            c.settings.insert(name.to_owned(), value.to_owned());
        })
    }

    fn high_water(&self) -> Call<'_, Option<Timestamp>> {
        Box::pin(async move {
            let newest = self.contents().newest.clone();
            let at = newest.map(|body| Record::open(&body).map(|record| record.at)).transpose();
            at.map_err(|e| Error::Corrupt(e.to_string()))
        })
    }

    fn check(&self) -> Call<'_, ()> {
        self.answer(|_| ())
    }

    fn reads_are_durable(&self) -> bool {
        true
    }

    fn counters(&self) -> Counters {
        self.contents().counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_to_a_fork_do_not_affect_the_original() {
        let store = MemoryStore::new();
        store.contents().settings.insert("a".into(), "1".into());
        let fork = store.fork();
        fork.contents().settings.insert("a".into(), "2".into());
        assert_eq!(store.contents().settings["a"], "1");
        assert!(fork.stored_runs().is_empty() && fork.stored_timers().is_empty());
    }
}
