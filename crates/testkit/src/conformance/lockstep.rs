//! Random operations from a seed, applied to several stores in lockstep. All stores must give the same
//! answers.
//!
//! The first subject is the reference: its answers decide what is done next. Most operations are valid (they
//! continue from the current record of a run). Some are not, because refusals must agree as well. A subject
//! may also be killed and reopened, which must not change any answer.

use super::fixtures::*;
use crate::rng::Rng;
use bytes::Bytes;
use kernel::event::OnConflict;
use kernel::inbox::InboxKind;
use kernel::plan::Form;
use kernel::{OrgId, RunId, RunStatus, Span, Timestamp};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::sync::Arc;
use store::{
    Batch, Call, ConcurrencyGroupRow, DeliveryOutcome, DeliveryRow, Erased, Erasure, InboxKey, InboxRow, LimitScope,
    LimitSlot, LimitSlotChange, LimitSlotRow, NewTrigger, NewWorkflow, NotificationRow, OwnTrigger, QueueKey,
    QueuePosition, Rate, ReadyChange, ReadyRow, RunFilter, RunInsert, RunRow, RunWrite, ScheduleAdvance, Store,
    StoredDefinition, TimerChange, TriggerChange, TriggerFilter, TriggerLog, TriggerRow, TypePause, TypeRow, Wait,
    WorkerRow, WorkflowEdit, WorkflowFilter, WorkflowKey, WorkflowPause, WorkflowRow,
};

/// A store under test.
pub struct Subject {
    pub name: &'static str,
    pub store: Arc<dyn Store>,
    /// Kills the store and opens it again.
    pub restart: Restart,
}

pub type Restart = Box<dyn FnMut(Arc<dyn Store>) -> Arc<dyn Store> + Send>;

/// Small ranges, so that operations collide.
const RUNS: u64 = 12;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const TOKENS: u64 = 40;
const TRIGGERS: u64 = 5;
const INBOX_ROWS: u64 = 4;
const ORGS: [OrgId; 2] = [ORG, OTHER_ORG];

/// Applies `operations` random operations to all subjects. Panics at the first difference.
pub async fn lockstep(seed: u64, operations: usize, subjects: &mut [Subject]) {
    let mut random = RandomOperations { rng: Rng::new(seed), seed, step: 0, time: 1_000, erased: BTreeSet::new() };
    for step in 0..operations {
        random.step = step;
        random.operate(subjects).await;
    }
    random.compare_everything(subjects).await;
}

/// What the generator knows about a run while it builds a batch.
#[derive(Clone)]
struct KnownRun {
    org: OrgId,
    run: RunId,
    seq: u64,
    wake_at: Option<Timestamp>,
    status: RunStatus,
    ready: Vec<ReadyRow>,
    limit_slots: Vec<LimitSlotRow>,
}

struct RandomOperations {
    rng: Rng,
    seed: u64,
    step: usize,
    time: i64,
    /// Erased runs, which are never created again because real ids are unique.
    erased: BTreeSet<(OrgId, RunId)>,
}

impl RandomOperations {
    async fn operate(&mut self, subjects: &mut [Subject]) {
        let (org, id) = self.any_run();
        match self.rng.below(37) {
            0..=11 => {
                let batch = self.batch(&subjects[0].store).await;
                self.same(subjects, "commit", |store| store.commit(&batch)).await;
            }
            12 | 13 => self.same(subjects, "load", |store| store.load(org, id)).await,
            14 => {
                let (after, limit) = (self.rng.below(6), self.rng.below(6) as usize);
                self.same(subjects, "history", |store| store.history(org, id, after, limit)).await;
                self.same(subjects, "stretch", |store| store.journal_page(org, Some(after * 3), limit)).await;
            }
            15 => {
                let numbers: Vec<u32> = (0..4).map(|_| self.rng.below(6) as u32).collect();
                self.same(subjects, "payloads", |store| store.payloads(org, id, &numbers)).await;
            }
            16 => {
                let (until, limit) = (at(self.rng.below(200) as i64), self.rng.below(5) as usize);
                let after = store::Timer { at: at(self.rng.below(200) as i64), org, run: id };
                let after = (self.rng.below(2) == 0).then_some(after);
                self.same(subjects, "timers", |store| store.timers(until, after, limit)).await;
                self.same(subjects, "next_timer", |store| store.next_timer()).await;
            }
            17 => {
                let hash = [self.rng.below(TOKENS) as u8; 32];
                self.same(subjects, "wait", |store| store.wait(&hash)).await;
            }
            18 | 19 => {
                let filter = self.filter();
                self.same(subjects, "runs", |store| store.runs(org, &filter)).await;
            }
            20 => self.create_workflow(org, subjects).await,
            21 => {
                let (name, value) = (self.rng.pick(&KEYS), self.rng.pick(&KEYS));
                self.same(subjects, "set_setting", |store| store.set_setting(name, value)).await;
                self.same(subjects, "next_epoch", |store| store.next_epoch()).await;
            }
            22 => self.compare_everything(subjects).await,
            23 | 24 => {
                // Names everything that any run may have. Only the rows of this run must be removed.
                let labels = KEYS.iter().flat_map(|key| ["x", "y"].map(|value| ((*key).to_owned(), value.to_owned())));
                // Sometimes the run has changed since it was read.
                let behind = u64::from(self.rng.one_in(6));
                let seq = look_up(&subjects[0].store, org, id).await.seq.saturating_sub(behind);
                let erasure = Erasure { org, run: id, seq, labels: labels.collect() };
                if self.agreed(subjects, "erase", |store| store.erase(&erasure)).await == Ok(Erased::Done) {
                    self.erased.insert((org, id));
                }
            }
            25 => self.edit_workflow(org, subjects).await,
            26 => self.pauses_and_notices(org, id, subjects).await,
            27 | 28 => self.change_trigger(org, subjects).await,
            29 => self.log_deliveries(org, subjects).await,
            30 | 31 => {
                let hidden_at = at(self.time);
                self.same(subjects, "hide", |store| store.hide(org, id, hidden_at)).await;
                let key = self.rng.pick(&KEYS);
                self.same(subjects, "made_by", |store| store.idempotency_record(org, "order", key)).await;
            }
            32 => self.read_ready_tasks(org, subjects).await,
            33 => self.types_and_workers(org, subjects).await,
            34 | 35 => self.use_inbox(org, id, subjects).await,
            _ => {
                for subject in subjects.iter_mut() {
                    subject.store = (subject.restart)(Arc::clone(&subject.store));
                }
                self.compare_everything(subjects).await;
            }
        }
    }

    /// Calls all subjects and compares their answers with the first one's.
    async fn same<'a, T: Debug + PartialEq>(
        &self,
        subjects: &'a [Subject],
        what: &str,
        call: impl Fn(&'a dyn Store) -> Call<'a, T>,
    ) {
        let _agreed = self.agreed(subjects, what, call).await;
    }

    /// Like `same`, and returns the answer.
    async fn agreed<'a, T: Debug + PartialEq>(
        &self,
        subjects: &'a [Subject],
        what: &str,
        call: impl Fn(&'a dyn Store) -> Call<'a, T>,
    ) -> store::Result<T> {
        let (first, others) = subjects.split_first().expect("at least one store");
        let expected = call(&*first.store).await;
        for other in others {
            let (left, right, RandomOperations { seed, step, .. }) = (first.name, other.name, self);
            let answer = call(&*other.store).await;
            assert_eq!(expected, answer, "`{what}` of {left} (left) and {right} (right), seed {seed}, step {step}");
        }
        expected
    }

    async fn compare_everything(&mut self, subjects: &[Subject]) {
        for org in ORGS {
            for n in 0..RUNS {
                self.same(subjects, "load", |store| store.load(org, run(n))).await;
                self.same(subjects, "history", |store| store.history(org, run(n), 0, usize::MAX)).await;
                self.same(subjects, "payloads", |store| store.payloads(org, run(n), &[0, 1, 2, 3, 4, 5])).await;
            }
            let all = RunFilter { limit: 100, ..Default::default() };
            self.same(subjects, "runs", |store| store.runs(org, &all)).await;
            let all = WorkflowFilter { limit: 100, ..Default::default() };
            self.same(subjects, "workflows", |store| store.workflows(org, &all)).await;
            self.same(subjects, "stretch", |store| store.journal_page(org, Some(0), usize::MAX)).await;
            self.same(subjects, "stretch", |store| store.journal_page(org, None, 1)).await;
            let all = TriggerFilter { limit: 100, ..Default::default() };
            self.same(subjects, "triggers", |store| store.triggers(org, &all)).await;
            for n in 0..TRIGGERS {
                self.same(subjects, "deliveries", |store| store.deliveries(org, trigger_id(n), None, 100)).await;
            }
        }
        self.same(subjects, "due_triggers", |store| store.due_triggers(Timestamp::NEVER, 100)).await;
        self.same(subjects, "next_trigger", |store| store.next_trigger()).await;
        self.same(subjects, "queued_deliveries", |store| store.queued_deliveries(None, 100)).await;
        self.same(subjects, "timers", |store| store.timers(Timestamp::NEVER, None, 100)).await;
        self.same(subjects, "unparked", |store| store.active_runs()).await;
        self.same(subjects, "gated", |store| store.grouped_runs()).await;
        self.same(subjects, "workflow_pauses", |store| store.workflow_pauses()).await;
        self.same(subjects, "notices", |store| store.notifications(None, 100)).await;
        let after = self.rng.one_in(2).then(|| (ORG, run(self.rng.below(RUNS)), self.rng.below(2)));
        self.same(subjects, "notices", |store| store.notifications(after, 3)).await;
        self.same(subjects, "inbox", |store| store.inbox(InboxKind::Input, None, 100)).await;
        self.same(subjects, "key queues", |store| store.key_queues(None, 100)).await;
        for (org, name) in ORGS.into_iter().flat_map(|org| KEYS.map(|name| (org, name))) {
            self.same(subjects, "limit slots", |store| store.limit_slots(org, name)).await;
        }
        self.same(subjects, "ruled_types", |store| store.configured_types()).await;
        self.same(subjects, "workers", |store| store.workers()).await;
        self.same(subjects, "high_water", |store| store.high_water()).await;
        for name in KEYS {
            self.same(subjects, "setting", |store| store.setting(name)).await;
        }
    }

    /// Writes, answers or takes rows of a run's inbox.
    async fn use_inbox(&mut self, org: OrgId, run: RunId, subjects: &[Subject]) {
        let rows: Vec<InboxRow> =
            (0..self.rng.below(4)).map(|_| inbox_row(org, run, self.rng.below(INBOX_ROWS) as u8)).collect();
        self.same(subjects, "put_inbox", |store| store.put_inbox(&rows)).await;
        if self.rng.one_in(3) {
            let n = self.rng.below(INBOX_ROWS) as u8;
            let answers = [answered_row(inbox_key(org, run, n), inbox_answer(n))];
            self.same(subjects, "answer_inbox", |store| store.answer_inbox(&answers)).await;
        }
        let keys: Vec<InboxKey> = (0..INBOX_ROWS as u8).map(|n| inbox_key(org, run, n)).collect();
        if self.rng.one_in(3) {
            self.same(subjects, "take_inbox_answers", |store| store.take_inbox_answers(&keys)).await;
        }
        if self.rng.one_in(5) {
            let before = at(100 + self.rng.below(INBOX_ROWS) as i64);
            self.same(subjects, "delete_inbox_answers", |store| store.delete_inbox_answers(before)).await;
        }
        let (after, limit) = (self.rng.one_in(2).then(|| keys[0]), self.rng.below(5) as usize);
        self.same(subjects, "inbox", |store| store.inbox(InboxKind::Input, after, limit)).await;
    }

    async fn create_workflow(&mut self, org: OrgId, subjects: &[Subject]) {
        let n = self.rng.below(30);
        let mut new = new_workflow(n, self.rng.pick(&KEYS), self.rng.pick(&KEYS));
        (new.row.org, new.definition.hash) = (org, [(n % 5) as u8; 32]);
        let new = NewWorkflow { slug_is_given: self.rng.one_in(2), ..new };
        self.same(subjects, "create_workflow", |store| store.create_workflow(&new)).await;
        for by in [WorkflowKey::Id(new.row.id), WorkflowKey::Name(new.row.name.clone())] {
            self.same(subjects, "workflow", |store| store.workflow(org, &by)).await;
        }
        self.same(subjects, "definition", |store| store.definition(org, [1; 32], None)).await;
    }

    /// Creates, changes or deletes a trigger, or creates a workflow with its own trigger.
    async fn change_trigger(&mut self, org: OrgId, subjects: &[Subject]) {
        let (n, workflow) = (self.rng.below(TRIGGERS), self.rng.below(30));
        let row = if self.rng.one_in(2) { trigger(n, workflow) } else { hook(n, workflow, self.rng.pick(&KEYS)) };
        let row = TriggerRow { org, ..row };
        match self.rng.below(4) {
            0 => {
                let idempotency = self.rng.one_in(3).then(|| key(self.rng.pick(&KEYS), self.rng.below(9) as u8));
                let new = NewTrigger { row, idempotency };
                self.same(subjects, "create_trigger", |store| store.create_trigger(&new)).await;
            }
            1 => {
                let found = subjects[0].store.trigger(org, trigger_id(n)).await.expect("the reference answers");
                let Some(found) = found else { return };
                let revision = found.revision + self.rng.below(2) as u32 + u32::from(self.rng.one_in(2));
                let next_at = self.rng.one_in(2).then(|| at(self.rng.below(200) as i64));
                let row = TriggerRow { name: self.rng.pick(&KEYS).into(), revision, next_at, ..found };
                let change = TriggerChange { row, restarts: self.rng.one_in(2) };
                self.same(subjects, "change_trigger", |store| store.change_trigger(&change)).await;
            }
            2 => {
                let mut new = new_workflow(workflow, self.rng.pick(&KEYS), self.rng.pick(&KEYS));
                new.row.org = org;
                new.trigger = Some(TriggerRow { is_owned: true, ..row });
                let is_new =
                    subjects[0].store.trigger(org, trigger_id(n)).await.expect("the reference answers").is_none();
                if is_new {
                    self.same(subjects, "create_workflow", |store| store.create_workflow(&new)).await;
                }
            }
            _ => self.same(subjects, "delete_trigger", |store| store.delete_trigger(org, trigger_id(n))).await,
        }
        self.same(subjects, "owned_trigger", |store| store.owned_trigger(org, workflow_id(workflow))).await;
        let path = self.rng.pick(&KEYS);
        self.same(subjects, "trigger_at", |store| store.trigger_at(path)).await;
    }

    async fn log_deliveries(&mut self, org: OrgId, subjects: &[Subject]) {
        let n = self.rng.below(TRIGGERS);
        let rows = (0..self.rng.below(4)).map(|_| self.delivery(org, n)).collect();
        let advance = self.rng.one_in(2).then(|| self.advance());
        let log = TriggerLog { org, trigger: trigger_id(n), rows, advance };
        self.same(subjects, "log_deliveries", |store| store.log_deliveries(&log)).await;
        let id = self.rng.pick(&KEYS);
        self.same(subjects, "delivery", |store| store.delivery(org, trigger_id(n), id)).await;
    }

    fn advance(&mut self) -> ScheduleAdvance {
        ScheduleAdvance {
            revision: self.rng.below(4) as u32,
            cursor: Some(at(self.rng.below(200) as i64)),
            next_at: self.rng.one_in(2).then(|| at(self.rng.below(200) as i64)),
        }
    }

    fn delivery(&mut self, org: OrgId, n: u64) -> DeliveryRow {
        let row = delivery(n, self.rng.pick(&KEYS), self.rng.pick(DeliveryOutcome::ALL));
        let request = self.rng.one_in(3).then(|| Bytes::from_static(b"request"));
        DeliveryRow { org, request, at: at(self.time), ..row }
    }

    /// Renames, deletes or replaces a workflow, sometimes based on an outdated row.
    async fn edit_workflow(&mut self, org: OrgId, subjects: &[Subject]) {
        let id = workflow_id(self.rng.below(30));
        let found =
            subjects[0].store.workflow(org, &WorkflowKey::IdOrDeleted(id)).await.expect("the reference answers");
        let Some(seen) = found else { return };
        let mut row = WorkflowRow { updated_at: at(self.time), ..seen.clone() };
        let (mut definition, mut version_from) = (None, None);
        match self.rng.below(6) {
            0 => row.name = self.rng.pick(&KEYS).to_owned(),
            1 => row.slug = self.rng.pick(&KEYS).to_owned(),
            2 => row.deleted_at = Some(at(self.time)),
            3 => row.enabled = !row.enabled,
            4 => {
                row.lowering = seen.lowering + 1;
                let (hash, lowering, source) = (row.hash, row.lowering, Bytes::from_static(b"again"));
                definition = Some(StoredDefinition { hash, lowering, source, plan: Bytes::from_static(b"lowered") });
            }
            _ => {
                (row.version, row.hash) = (seen.version + 1, [self.rng.below(5) as u8; 32]);
                let source = Bytes::from(vec![row.version as u8]);
                definition = Some(StoredDefinition { hash: row.hash, lowering: 0, source, plan: Bytes::new() });
                version_from = Some("update");
            }
        }
        let seen = WorkflowRow { enabled: seen.enabled != self.rng.one_in(8), ..seen };
        let trigger = match self.rng.below(4) {
            0 => OwnTrigger::Remove,
            1 => {
                // A unique id, because real ids are random.
                let own = TriggerRow { org, is_owned: true, ..hook(100 + self.time as u64, 0, self.rng.pick(&KEYS)) };
                OwnTrigger::Put(Box::new(TriggerRow { workflow: id, ..own }))
            }
            _ => OwnTrigger::Keep,
        };
        self.time += 1;
        let source = definition.as_ref().map(|definition| definition.source.clone());
        let edit = WorkflowEdit { seen, row, definition, version_from, source, trigger };
        self.same(subjects, "edit_workflow", |store| store.edit_workflow(&edit)).await;
        let (hash, lowering) = (edit.row.hash, edit.row.lowering);
        for lowering in [None, Some(lowering), Some(0)] {
            self.same(subjects, "definition", |store| store.definition(org, hash, lowering)).await;
        }
        let by = WorkflowKey::IdOrDeleted(id);
        self.same(subjects, "workflow", |store| store.workflow(org, &by)).await;
        self.same(subjects, "versions", |store| store.versions(org, id, None, 9)).await;
        let number = edit.row.version;
        self.same(subjects, "version_source", |store| store.version_source(org, id, number)).await;
    }

    async fn batch(&mut self, reference: &Arc<dyn Store>) -> Batch {
        self.time += self.rng.below(5) as i64;
        let mut known: Vec<KnownRun> = Vec::new();
        let mut runs = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let (org, id) = self.any_run();
            let position = known.iter().position(|k| (k.org, k.run) == (org, id));
            let position = match position {
                Some(position) => position,
                None => {
                    known.push(look_up(reference, org, id).await);
                    known.len() - 1
                }
            };
            let (write, after) = self.write(known[position].clone());
            known[position] = after;
            runs.push(write);
        }
        if self.rng.one_in(3) {
            // The first writes form an atomic group; the others are independent.
            let count = self.rng.below(runs.len() as u64 + 1) as usize;
            runs[..count].iter_mut().for_each(|write| write.atomic_group = NonZeroU32::new(1));
        }
        Batch { at: at(self.time), epoch: 1, runs }
    }

    /// A write, and the state of the run if the write is committed.
    fn write(&mut self, known: KnownRun) -> (RunWrite, KnownRun) {
        let KnownRun { org, run, seq, .. } = known.clone();
        let after = match self.rng.below(12) {
            0 => seq + 1,
            1 => seq.saturating_sub(1),
            _ => seq,
        };
        let after = if self.erased.contains(&(org, run)) { after.max(1) } else { after };
        let status = if after == 0 || self.rng.one_in(2) { Some(self.rng.pick(RunStatus::ALL)) } else { None };
        let wake_at = match status {
            Some(RunStatus::Waiting) if !self.rng.one_in(3) => Some(at(self.rng.below(200) as i64)),
            Some(_) => None,
            None => known.wake_at,
        };
        let timer = match status {
            Some(_) => TimerChange { remove: known.wake_at, insert: wake_at },
            None => TimerChange::default(),
        };
        // Mostly as the engine does it: it evicts waiting runs and may evict running ones.
        let evicted = status.is_some_and(|status| status.is_evicted() != self.rng.one_in(4));
        let is_open = status.is_some_and(|status| !status.is_terminal());
        let offers = evicted && is_open && self.rng.one_in(2) || self.rng.one_in(20);
        let ready = ReadyChange {
            remove: if status.is_some() && !self.rng.one_in(6) { known.ready.clone() } else { Vec::new() },
            insert: if offers { (0..self.rng.below(3)).map(|_| self.task(org, run)).collect() } else { Vec::new() },
        };
        let left = known.ready.iter().filter(|row| !ready.remove.contains(row)).chain(&ready.insert).cloned().collect();
        let write = RunWrite {
            record: record(run, after + 1, at(self.time)),
            row: status.map(|status| RunRow {
                wake_at,
                concurrency_group: self.concurrency_group(),
                form: self.form(),
                evicted,
                ..row(org, run, status)
            }),
            snapshot: self.rng.one_in(4).then(|| state(run, after + 1)),
            timer,
            payloads: self.payloads(),
            ready,
            limit_slots: self.limit_slots(org, run, &known.limit_slots),
            notifications: if self.rng.one_in(5) { (0..self.rng.below(3)).collect() } else { Vec::new() },
            run_insert: if after == 0 { Some(Box::new(self.run_insert(org, run))) } else { None },
            tokens: if after == 0 { self.tokens(org, run) } else { Vec::new() },
            ..append_in(org, run, after)
        };
        let write = if self.rng.one_in(6) { consume(write, &[self.rng.below(INBOX_ROWS) as u8]) } else { write };
        (write, KnownRun { seq: after + 1, wake_at, status: status.unwrap_or(known.status), ready: left, ..known })
    }

    fn concurrency_group(&mut self) -> Option<ConcurrencyGroupRow> {
        let on_conflict = self.rng.pick(OnConflict::ALL);
        let concurrency_group = ConcurrencyGroupRow {
            id: [self.rng.below(3) as u8; 16],
            limit: self.rng.below(70_000) as u32,
            on_conflict,
        };
        self.rng.one_in(3).then_some(concurrency_group)
    }

    /// Pauses and resumes workflows, and stores why a notification could not be sent.
    async fn pauses_and_notices(&mut self, org: OrgId, id: RunId, subjects: &[Subject]) {
        let workflow = workflow_id(self.rng.below(3));
        let words = (self.rng.pick(&KEYS).to_owned(), self.rng.pick(&KEYS).to_owned());
        let pause = WorkflowPause { org, workflow, at: at(self.time), actor: words.0, note: words.1.clone() };
        match self.rng.one_in(2) {
            true => self.same(subjects, "pause_workflow", |store| store.pause_workflow(&pause)).await,
            false => self.same(subjects, "resume_workflow", |store| store.resume_workflow(org, workflow)).await,
        }
        let notification = NotificationRow { org, run: id, number: self.rng.below(2), error: words.1 };
        self.same(subjects, "note_notice", |store| store.record_notification_error(&notification)).await;
        self.same(subjects, "notices_of", |store| store.run_notifications(org, id)).await;
        self.same(subjects, "workflow_pause", |store| store.workflow_pause(org, workflow)).await;
    }

    fn payloads(&mut self) -> Vec<(u32, Bytes)> {
        let count = if self.rng.one_in(4) { self.rng.below(3) } else { 0 };
        (0..count).map(|_| (self.rng.below(6) as u32, Bytes::from(vec![1; self.rng.below(9_000) as usize]))).collect()
    }

    fn form(&mut self) -> Form {
        if self.rng.one_in(3) { Form::Task } else { Form::Graph }
    }

    fn queue(&mut self, org: OrgId) -> QueueKey {
        queue(org, self.rng.pick(&KEYS), self.rng.pick(&["", "k"]))
    }

    fn task(&mut self, org: OrgId, run: RunId) -> ReadyRow {
        let position = QueuePosition { priority: self.rng.below(3) as u32, run, step: self.rng.below(3) as u32 };
        ReadyRow { queue: self.queue(org), position }
    }

    /// Frees some limit slots that a run holds, or does not hold, and takes some.
    fn limit_slots(&mut self, org: OrgId, run: RunId, held: &[LimitSlotRow]) -> LimitSlotChange {
        let mut change = LimitSlotChange::default();
        if self.rng.one_in(3) {
            change.free = held.to_vec();
        }
        if self.rng.one_in(6) {
            change.free.push(self.slot(org, run));
        }
        while self.rng.one_in(3) && change.take.len() < 3 {
            change.take.push(self.slot(org, run));
        }
        change
    }

    fn slot(&mut self, org: OrgId, run: RunId) -> LimitSlotRow {
        let of = self.rng.pick(&[LimitScope::Type, LimitScope::Key, LimitScope::Rate]);
        let (key, number) = (self.rng.pick(&["", "k"]).to_owned(), self.rng.below(2) as u32);
        let slot = LimitSlot { org, name: self.rng.pick(&KEYS[..2]).to_owned(), of, key, number };
        let until = match of {
            LimitScope::Rate => at(self.time + self.rng.below(30) as i64),
            _ => LimitSlotRow::FREED,
        };
        LimitSlotRow { slot, run, step: self.rng.below(2) as u32, until }
    }

    /// Reads ready tasks and their queues.
    async fn read_ready_tasks(&mut self, org: OrgId, subjects: &[Subject]) {
        let (of, limit) = (self.queue(org), self.rng.below(4) as usize);
        let behind = self.rng.one_in(2).then(|| self.queue(org));
        self.same(subjects, "key queues", |store| store.key_queues(behind.as_ref(), limit)).await;
        self.same(subjects, "ready", |store| store.ready_tasks(&of, None, 100)).await;
        self.same(subjects, "ready_types", |store| store.ready_types()).await;
        self.same(subjects, "ready_counts", |store| store.ready_counts()).await;
        self.same(subjects, "ready_keys", |store| store.ready_keys(org, &of.name, None, limit)).await;
        self.same(subjects, "ready_keys", |store| store.ready_keys(org, &of.name, Some(&of.key), limit)).await;
        let over = at(self.time - self.rng.below(40) as i64);
        if self.rng.one_in(3) {
            self.same(subjects, "forget_seats", |store| store.delete_expired_limit_slots(over)).await;
        }
        let (_, run) = self.any_run();
        let after = Some(self.task(org, run).position);
        self.same(subjects, "ready", |store| store.ready_tasks(&of, after, limit)).await;
    }

    /// Registers and changes types, and updates when workers were last seen.
    async fn types_and_workers(&mut self, org: OrgId, subjects: &[Subject]) {
        let row = self.type_row(org);
        match self.rng.one_in(2) {
            true => self.same(subjects, "put_type", |store| store.put_type(&row)).await,
            false => {
                let hash = [self.rng.below(5) as u8; 32];
                let definition =
                    StoredDefinition { hash, lowering: 0, source: Bytes::from_static(b"task"), plan: Bytes::new() };
                let definition = self.rng.one_in(2).then_some(definition);
                self.same(subjects, "introduce", |store| store.ensure_type(&row, definition.as_ref())).await;
                self.same(subjects, "definition", |store| store.definition(org, hash, None)).await;
            }
        }
        self.same(subjects, "task_type", |store| store.task_type(org, &row.name)).await;
        let (prefix, after) = (self.rng.pick(&["", "a", "a.b", "b"]), self.rng.pick(&[None, Some("a"), Some("a.b")]));
        let limit = self.rng.below(4) as usize;
        self.same(subjects, "task_types", |store| store.task_types(org, prefix, after, limit)).await;
        let workers: Vec<WorkerRow> = (0..self.rng.below(3))
            .map(|_| WorkerRow { slots: None, ..worker(org, self.rng.pick(&KEYS), at(self.time)) })
            .collect();
        let since = at(self.time - self.rng.below(40) as i64);
        self.same(subjects, "put_workers", |store| store.put_workers(&workers, since)).await;
    }

    fn type_row(&mut self, org: OrgId) -> TypeRow {
        let name = self.rng.pick(&["a", "a.b", "a.c", "ab", "b"]);
        let pause = TypePause { at: at(self.time), actor: "ada".into(), note: String::new() };
        let rate = Rate { limit: 5, per: Span::from_secs(1), per_key: self.rng.one_in(2) };
        TypeRow {
            runtime: self.rng.one_in(4).then(|| "python".to_owned()),
            enabled: !self.rng.one_in(4),
            paused: self.rng.one_in(4).then_some(pause),
            limit: self.rng.one_in(4).then_some(3),
            limit_per_key: self.rng.one_in(4).then_some(0),
            rate: self.rng.one_in(4).then_some(rate),
            ..plain_type(org, name)
        }
    }

    fn run_insert(&mut self, org: OrgId, run: RunId) -> RunInsert {
        let idempotency = self.rng.one_in(3).then(|| key(self.rng.pick(&KEYS), self.rng.below(9) as u8));
        let labels = (0..self.rng.below(3)).map(|_| self.label()).collect();
        let notification = self.rng.one_in(4).then(|| (self.any_run().1, self.rng.below(2)));
        let of = self.rng.below(TRIGGERS);
        let line = self.rng.one_in(3).then(|| self.delivery(org, of));
        let delivery = line.map(|line| DeliveryRow { run: Some(run), ..line });
        let advance = self.rng.one_in(2).then(|| self.advance());
        RunInsert { labels, idempotency, delivery, advance, notification }
    }

    fn tokens(&mut self, org: OrgId, run: RunId) -> Vec<Wait> {
        (0..self.rng.below(3)).map(|step| wait(org, run, step as u32, self.rng.below(TOKENS) as u8)).collect()
    }

    fn filter(&mut self) -> RunFilter {
        let statuses = (0..self.rng.below(4)).map(|_| self.rng.pick(RunStatus::ALL)).collect();
        RunFilter {
            statuses,
            workflow: self.rng.one_in(3).then(|| workflow_id(self.rng.below(3))),
            except: self.rng.one_in(3).then(|| workflow_id(self.rng.below(3))),
            forms: (0..self.rng.below(8).saturating_sub(5)).map(|_| self.form()).collect(),
            labels: (0..self.rng.below(3)).map(|_| self.label()).collect(),
            since: self.rng.one_in(3).then(|| at(100 + self.rng.below(RUNS) as i64)),
            until: self.rng.one_in(3).then(|| at(100 + self.rng.below(RUNS) as i64)),
            before: self.rng.one_in(3).then(|| run(self.rng.below(RUNS))),
            limit: self.rng.below(8) as usize,
        }
    }

    fn label(&mut self) -> (String, String) {
        (self.rng.pick(&KEYS).to_owned(), self.rng.pick(&["x", "y"]).to_owned())
    }

    fn any_run(&mut self) -> (OrgId, RunId) {
        let org = if self.rng.one_in(6) { OTHER_ORG } else { ORG };
        (org, run(self.rng.below(RUNS)))
    }
}

async fn look_up(reference: &Arc<dyn Store>, org: OrgId, run: RunId) -> KnownRun {
    let loaded = reference.load(org, run).await.expect("the reference loads");
    let (seq, row) = loaded.map_or((0, None), |loaded| (loaded.seq, Some(loaded.row)));
    let (wake_at, status) = row.map_or((None, RunStatus::Pending), |row| (row.wake_at, row.status));
    let mut ready = Vec::new();
    for (queue, _) in reference.key_queues(None, usize::MAX).await.expect("the reference answers") {
        let positions = reference.ready_tasks(&queue, None, usize::MAX).await.expect("the reference answers");
        let own = positions.into_iter().filter(|position| (queue.org, position.run) == (org, run));
        ready.extend(own.map(|position| ReadyRow { queue: queue.clone(), position }));
    }
    let mut limit_slots = Vec::new();
    for name in KEYS {
        let rows = reference.limit_slots(org, name).await.expect("the reference answers");
        limit_slots.extend(rows.into_iter().filter(|row| row.run == run));
    }
    KnownRun { org, run, seq, wake_at, status, ready, limit_slots }
}
