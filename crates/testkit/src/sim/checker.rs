//! Invariants that hold after every commit. The checker reads only the store.
//!
//! It keeps what it saw of each run and compares. Records are only appended (I4). The rows are the fold of
//! the records (I5). The events are legal (see [`run_model`](super::run_model)). An unchanged run stays as it
//! is (I10). An open run has something that wakes it (I12). No effect happens before its intent is durable or
//! after its step is done (I7, I8, I35). A run with an event of a later release stays exactly as that release
//! left it.

use super::concurrency_model::{BatchWriter, ConcurrencyEvent, ConcurrencyModel};
use super::family_model::{AboutStep, FamilyModel};
use super::idempotency_model::{IdempotencyModel, WorkId};
use super::lease_model::{self, LeaseChange, LeaseModel};
use super::notification_model::NotificationModel;
use super::run_model::RunModel;
use super::schedules::ScheduleModel;
use super::shared_store::NodeTable;
use super::trace::Marks;
use super::trigger::Trigger;
use super::upstream;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use super::workflow_generator::{ConcurrencyLimit, StepKind, TestWorkflow};
use bytes::Bytes;
use engine::Version;
use engine::mailbox::Dispatch;
use engine::task_queue::ClaimedTask;
use kernel::event::{Event, Override, Queue};
use kernel::run::{LoadError, Phase};
use kernel::{Context, Input, OrgId, Payload, Payloads, Record, Run, RunId, RunStatus, Timestamp, advance};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use store::memory::MemoryRun;
use store::{MemoryStore, ReadyRow, RunRow};

/// One version of a workflow, as the simulator and the engine know it.
#[derive(Clone)]
pub struct KnownVersion {
    pub workflow: Rc<TestWorkflow>,
    pub version: Arc<Version>,
}

#[derive(Default)]
pub struct Checker {
    /// Runs that were requested, whether they exist or not.
    runs: BTreeMap<RunId, TrackedRun>,
    /// Attempts that reached an executor or a worker: run and fence.
    executed: BTreeSet<(RunId, u64)>,
    pub concurrency: ConcurrencyModel,
    pub notifications: NotificationModel,
    pub leases: LeaseModel,
    /// The nodes of a shared store.
    pub nodes: NodeTable,
    pub families: FamilyModel,
    pub schedules: ScheduleModel,
    /// Lease changes in the batch that is being checked.
    lease_changes: Vec<LeaseChange>,
    /// Concurrency events in the batch that is being checked.
    concurrency_events: Vec<(RunId, ConcurrencyEvent)>,
    /// All clocks show the same time, so the records of a run have ascending times even if several processes
    /// write.
    has_one_clock: bool,
    /// Several nodes share the store.
    is_shared: bool,
    pub commits: u64,
    /// How often each kind of event was read.
    pub events: Marks,
}

pub(super) struct TrackedRun {
    /// The version that it is pinned to; before it exists, the one that was found last.
    pub(super) definition: KnownVersion,
    /// The versions that processes found for requests to start it.
    found: Vec<KnownVersion>,
    pub(super) model: RunModel,
    trigger: Trigger,
    /// The start request has a notification URL.
    has_listener: bool,
    /// Clients that paused or resumed the run, skipped a retry delay, or did something else that an event names them for.
    pub(super) actors: BTreeSet<String>,
    /// What clients asked for that may retry the run: the step to begin with, and whether irreversible steps may run again.
    pub(super) retries: BTreeMap<String, (Option<u32>, bool)>,
    /// The statuses with which it ended, and the last event that ended it.
    pub(super) ends: Vec<RunStatus>,
    pub(super) last_end: u64,
    pub(super) idempotency: IdempotencyModel,
    /// What an attempt does, by fence.
    pub(super) works: BTreeMap<u64, WorkId>,
    /// Accepted callbacks: their digests, by step.
    pub(super) callbacks: BTreeSet<(u32, Bytes)>,
    /// Coverage marks that are not counted yet.
    pub(super) operator_marks: Vec<&'static str>,
    /// The results that operators gave.
    pub(super) given_results: BTreeMap<u32, Payload>,
    records: Vec<Bytes>,
    /// The fold of all records; `None` until the run exists.
    pub(super) run: Option<Run>,
    /// Engine time of the last record, by the clock of its writer.
    newest_at: Timestamp,
    /// A later release wrote the last record.
    needs_upgrade: bool,
    /// It was deleted long after its end.
    is_erased: bool,
    /// The process that wrote the last record was draining.
    is_left_by_draining_process: bool,
    /// The sequence number of the last snapshot that was checked.
    snapshot: u64,
    /// Dispatch intents: step and attempt by fence.
    intents: BTreeMap<u64, (u32, u32)>,
    /// Which process, by epoch, last started each step.
    executing_process: BTreeMap<u32, u64>,
    /// Which process, by epoch, settled each step.
    pub(super) settled_by: BTreeMap<u32, u64>,
    /// How often each step reached an executor or a worker.
    effects: BTreeMap<u32, u32>,
    /// The worker that got each lease, by fence.
    lease_holders: BTreeMap<u64, String>,
    /// Digests of accepted final reports, by fence.
    accepted_reports: BTreeMap<u64, u64>,
    /// The fence of the current lease of each step.
    current_lease: BTreeMap<u32, u64>,
    /// The fence of the latest lease of each step that has ended.
    called_off_lease: BTreeMap<u32, u64>,
}

impl Checker {
    pub fn new(has_one_clock: bool, is_shared: bool) -> Checker {
        Checker { has_one_clock, is_shared, ..Default::default() }
    }

    /// Registers a run before it is requested.
    pub fn expect_run(&mut self, run: RunId, definition: KnownVersion, trigger: Trigger, has_listener: bool) {
        self.concurrency.expect_run(run, definition.version.workflow, trigger.group, definition.workflow.concurrency);
        let model = RunModel::new(definition.workflow.clone(), trigger.clone(), self.is_shared);
        let tracked = TrackedRun {
            definition,
            found: Vec::new(),
            model,
            trigger,
            has_listener,
            actors: BTreeSet::new(),
            retries: BTreeMap::new(),
            ends: Vec::new(),
            last_end: 0,
            idempotency: IdempotencyModel::default(),
            works: BTreeMap::new(),
            callbacks: BTreeSet::new(),
            operator_marks: Vec::new(),
            given_results: BTreeMap::new(),
            records: Vec::new(),
            run: None,
            newest_at: Timestamp::default(),
            needs_upgrade: false,
            is_erased: false,
            is_left_by_draining_process: false,
            snapshot: 0,
            intents: BTreeMap::new(),
            executing_process: BTreeMap::new(),
            settled_by: BTreeMap::new(),
            effects: BTreeMap::new(),
            lease_holders: BTreeMap::new(),
            accepted_reports: BTreeMap::new(),
            current_lease: BTreeMap::new(),
            called_off_lease: BTreeMap::new(),
        };
        self.runs.insert(run, tracked);
    }

    /// A process found this version for a request to start the run.
    pub fn version_found(&mut self, run: RunId, found: KnownVersion) {
        let Some(tracked) = self.runs.get_mut(&run) else { return };
        if tracked.run.is_none() {
            let (workflow, limit) = (found.version.workflow, found.workflow.concurrency);
            self.concurrency.expect_run(run, workflow, tracked.trigger.group, limit);
            tracked.pin(found.clone(), self.is_shared);
        }
        tracked.found.push(found);
    }

    /// Do several nodes share the store?
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The run as it is stored, if it exists.
    pub fn stored(&self, run: RunId) -> Option<&Run> {
        self.runs.get(&run)?.run.as_ref()
    }

    /// Runs that exist, have not ended and can be read.
    pub fn open(&self) -> impl Iterator<Item = (RunId, &KnownVersion, &Run)> {
        let known = self.runs.iter().filter(|(_, f)| !f.needs_upgrade);
        let existing = known.filter_map(|(id, f)| Some((*id, &f.definition, f.run.as_ref()?)));
        existing.filter(|(.., run)| !run.is_terminal())
    }

    /// The concurrency group of a requested run, and whether it has a notification URL.
    pub fn group_and_listener(&self, run: RunId) -> (u64, bool) {
        self.runs.get(&run).map_or((0, false), |f| (f.trigger.group, f.has_listener))
    }

    /// The digest of the accepted final report under a fence.
    pub fn accepted_report(&self, run: RunId, fence: u64) -> Option<u64> {
        self.runs.get(&run)?.accepted_reports.get(&fence).copied()
    }

    /// The trigger of a requested run.
    pub fn trigger(&self, run: RunId) -> Option<&Trigger> {
        self.runs.get(&run).map(|f| &f.trigger)
    }

    /// Do the records say that this client paused or resumed the run, or skipped a retry delay?
    pub fn has_acted(&self, run: RunId, actor: &str) -> bool {
        self.runs.get(&run).is_some_and(|f| f.actors.contains(actor))
    }

    pub(super) fn tracked(&self, run: RunId) -> Option<&TrackedRun> {
        self.runs.get(&run)
    }

    /// A client asks for a retry of a run.
    pub fn expect_retry(&mut self, run: RunId, actor: String, from: Option<u32>, allow_irreversible: bool) {
        if let Some(tracked) = self.runs.get_mut(&run) {
            tracked.retries.insert(actor, (from, allow_irreversible));
        }
    }

    /// Has the run this status, or had it when it last ended, or does it only end with it?
    pub fn has_become(&self, run: RunId, status: RunStatus) -> bool {
        let Some(tracked) = self.runs.get(&run) else { return false };
        let is_passing = matches!(status, RunStatus::Cancelling | RunStatus::Compensating);
        let now = tracked.run.as_ref().map(Run::status);
        now == Some(status) || tracked.ends.contains(&status) || is_passing && !tracked.ends.is_empty()
    }

    /// How often has the run gone on after its end?
    pub fn times_retried(&self, run: RunId) -> u32 {
        self.stored(run).map_or(0, |run| run.state.retries)
    }

    /// Was a callback with this digest accepted for the step?
    pub fn has_accepted_callback(&self, run: RunId, step: u32, digest: &Bytes) -> bool {
        self.runs.get(&run).is_some_and(|tracked| tracked.callbacks.contains(&(step, digest.clone())))
    }

    /// The run as it was after this event.
    pub fn as_it_was(&self, run: RunId, event: u64) -> Option<Run> {
        let tracked = self.runs.get(&run)?;
        let is_later = |bytes: &&Bytes| Record::open(bytes).is_ok_and(|record| record.first > event);
        let last = tracked.records.iter().position(|bytes| is_later(&bytes)).unwrap_or(tracked.records.len());
        fold(&tracked.definition, None, &tracked.records[..last]).ok()
    }

    /// Did a later release write to this run?
    pub fn needs_upgrade(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|f| f.needs_upgrade)
    }

    /// Was the run deleted after its end?
    pub fn is_erased(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|f| f.is_erased)
    }

    /// Runs that have ended and were not deleted.
    pub fn ended(&self) -> impl Iterator<Item = RunId> {
        let ended = self.runs.iter().filter(|(_, f)| !f.is_erased && f.run.as_ref().is_some_and(Run::is_terminal));
        ended.map(|(run, _)| *run)
    }

    /// A run was deleted: it had ended, and nothing that it owes to others is left.
    pub fn run_erased(&mut self, run: RunId, store: &MemoryStore) -> CheckResult {
        let tracked = self.runs.get_mut(&run).ok_or("a run was deleted that was never requested")?;
        tracked.is_erased = true;
        ViolationKind::Lost.unless(tracked.model.is_over(), || "an open run was deleted".into())?;
        self.notifications.check_none_lost(store)?;
        self.families.run_erased(run, store)?;
        self.check_families(store)
    }

    /// The kind of a step of a run.
    pub fn kind(&self, run: RunId, step: u32) -> Option<StepKind> {
        self.runs.get(&run)?.model.kind(step)
    }

    /// The steps of a run that wait for something from outside, have done so or may do so, inner ones included.
    pub fn waits(&self, run: RunId) -> Vec<(u32, StepKind)> {
        let Some(tracked) = self.runs.get(&run) else { return Vec::new() };
        let kinds = (0..tracked.model.opened()).filter_map(|step| Some((step, tracked.model.kind(step)?)));
        kinds.filter(|(_, kind)| kind.waits_for_client()).collect()
    }

    /// Is the step inside of a group, a loop or an iteration?
    pub fn is_inner(&self, run: RunId, step: u32) -> bool {
        self.runs.get(&run).is_some_and(|tracked| tracked.model.is_inner(step))
    }

    /// The steps of a run that wait for something from outside.
    pub fn open_waits(&self, run: RunId) -> Vec<(u32, StepKind)> {
        let Some(tracked) = self.runs.get(&run) else { return Vec::new() };
        let Some(state) = &tracked.run else { return Vec::new() };
        let waiting = state.steps().filter(|(_, step)| matches!(step.phase, Phase::Waiting { .. }));
        let kinds = waiting.filter_map(|(step, _)| Some((step, tracked.model.kind(step)?)));
        kinds.filter(|(_, kind)| kind.waits_for_client()).collect()
    }

    /// The number of the last readable event, and the time of the last record.
    pub fn last_event(&self, run: RunId) -> (u64, Timestamp) {
        let tracked = self.runs.get(&run);
        let seq = tracked.and_then(|f| f.run.as_ref()).map_or(0, |run| run.state.seq);
        (seq, tracked.map_or(Timestamp::default(), |f| f.newest_at))
    }

    /// At the end of a simulation: all records that were ever seen are still stored and consistent.
    pub fn check_all(&self, store: &MemoryStore) -> CheckResult {
        for (id, tracked) in &self.runs {
            let stored = store.stored_run(OrgId::DEFAULT, *id);
            let records = stored.as_ref().map_or(&[][..], |s| &s.records);
            let is_same = if tracked.is_erased { stored.is_none() } else { records == tracked.records };
            ViolationKind::Lost.unless(is_same, || format!("the records of {id} changed"))?;
            if let Some(stored) = stored.filter(|_| tracked.needs_upgrade) {
                let is_intact =
                    !stored.row.status.is_terminal() && stored.timers.first().copied() == stored.row.wake_at;
                ViolationKind::Lost.unless(is_intact, || {
                    format!("{id} lost its open status or its timer while it waits for an upgrade")
                })?;
            }
            for step in 0..tracked.model.opened() {
                let effects = tracked.effects.get(&step).copied().unwrap_or_default();
                let about = |failure: Violation| failure.about(id);
                tracked.model.check_effects(step, effects).map_err(about)?;
                tracked.model.check_outcome(step).map_err(about)?;
            }
        }
        Ok(())
    }

    /// A commit by the process with epoch `writer` may have changed this run.
    pub fn run_committed(
        &mut self,
        stored: &MemoryRun,
        ready: &[ReadyRow],
        writer: u64,
        is_draining: bool,
    ) -> CheckResult {
        self.commits += 1;
        let tracked = self.runs.get_mut(&stored.row.id).ok_or("the run was never requested")?;
        let begun = self.concurrency_events.len();
        if stored.records.len() > tracked.records.len() {
            tracked.is_left_by_draining_process = is_draining;
        }
        let observations = Observations {
            events: &mut self.events,
            concurrency_events: &mut self.concurrency_events,
            lease_changes: &mut self.lease_changes,
            nodes: &self.nodes,
            families: &mut self.families,
        };
        if tracked.run.is_none() {
            tracked.pin_to_created(stored, self.is_shared)?;
            let KnownVersion { workflow, version } = &tracked.definition;
            let limit = workflow.concurrency;
            self.concurrency.expect_run(stored.row.id, version.workflow, tracked.trigger.group, limit);
        }
        tracked.read_new_records(stored, writer, self.has_one_clock, observations)?;
        if tracked.needs_upgrade {
            self.leases.forget_run(stored.row.id);
            let is_open = !stored.row.status.is_terminal();
            return ViolationKind::Lost.unless(is_open, || "a run that needs a later release was ended".into());
        }
        if !tracked.model.is_over() {
            let concurrency_events = &self.concurrency_events[begun..];
            require(!concurrency_events.iter().any(|(_, event)| *event == ConcurrencyEvent::Ended), || {
                "the run continues after its end".into()
            })?;
        }
        tracked.check_rows(stored, ready, self.is_shared)
    }

    /// All runs of a batch were checked one by one; now checks leases, concurrency and notifications.
    pub fn batch_committed(
        &mut self,
        failed: &[RunId],
        at: Timestamp,
        (process, writer): (Option<usize>, BatchWriter),
        store: &MemoryStore,
    ) -> CheckResult {
        let concurrency_events = std::mem::take(&mut self.concurrency_events);
        self.leases.apply_batch(std::mem::take(&mut self.lease_changes), process, writer, at)?;
        self.concurrency.apply_batch(&concurrency_events, failed, at, writer)?;
        // Ends come before the runs that send their notifications, even if one batch has both.
        for (run, _) in concurrency_events
            .iter()
            .filter(|(_, event)| matches!(event, ConcurrencyEvent::Ended | ConcurrencyEvent::Refused))
        {
            let tracked = &self.runs[run];
            let is_notification_run = self.notifications.sent_by(*run).is_some();
            let expected =
                if is_notification_run { 0 } else { tracked.model.notifications_expected(tracked.has_listener) };
            self.notifications.run_ended(*run, tracked.last_end, expected, store)?;
        }
        let is_creation = |event: &ConcurrencyEvent| {
            matches!(event, ConcurrencyEvent::Entered | ConcurrencyEvent::Queued | ConcurrencyEvent::Refused)
        };
        for (run, _) in concurrency_events.iter().filter(|(_, event)| is_creation(event)) {
            self.notifications.run_created(*run, store)?;
            self.schedules.run_created(*run)?;
        }
        Ok(())
    }

    /// Process `holder` gives work to an executor. Another process may have settled the step since the intent
    /// was written, and `holder` cannot know that. If `holder` itself settled the step, this is a violation.
    pub fn executed(&mut self, dispatch: &Dispatch, holder: u64) -> CheckResult {
        let Dispatch { run, step, attempt, fence, .. } = dispatch;
        let tracked = self.runs.get_mut(run).ok_or("work for a run that was never requested")?;
        let intent = tracked.intents.get(fence);
        require(intent == Some(&(*step, *attempt)), || format!("work for s{step} without a durable intent"))?;
        ViolationKind::Duplicated.unless(self.executed.insert((*run, *fence)), || {
            format!("attempt {attempt} of s{step} was started twice")
        })?;
        let is_done = tracked.settled_by.get(step) == Some(&holder);
        ViolationKind::Duplicated.unless(!is_done, || format!("s{step} is executed again after its completion"))?;
        *tracked.effects.entry(*step).or_default() += 1;
        tracked.check_key(*step, *fence, &dispatch.key, dispatch.repeats)?;
        tracked.model.check_request(dispatch)
    }

    /// A worker gets a task, or would have got it if it had not disconnected. `holder` is the process, if it
    /// knows the outcome of all its commits.
    pub fn task_delivered(
        &mut self,
        task: &ClaimedTask,
        worker: &str,
        has_disconnected: bool,
        holder: Option<u64>,
    ) -> CheckResult {
        let ClaimedTask { run, step, attempt, fence, .. } = task;
        let tracked = self.runs.get_mut(run).ok_or("a task of a run that was never requested")?;
        let is_durable = tracked.intents.get(fence) == Some(&(*step, *attempt))
            && tracked.lease_holders.get(fence).map(String::as_str) == Some(worker);
        ViolationKind::Lost
            .unless(is_durable, || format!("{worker} gets s{step} of {run}, but the lease is not durable"))?;
        ViolationKind::Duplicated.unless(self.executed.insert((*run, *fence)), || {
            format!("attempt {attempt} of s{step} was given out twice")
        })?;
        let is_done = holder.is_some() && tracked.settled_by.get(step).copied() == holder;
        ViolationKind::Duplicated.unless(!is_done, || format!("s{step} of {run} is given out after its end"))?;
        *tracked.effects.entry(*step).or_default() += u32::from(!has_disconnected);
        tracked.check_key(*step, *fence, &task.step_key, task.repeats)?;
        tracked.model.check_task(task)
    }

    /// The executor got the work but did not send the request.
    pub fn attempt_handed_back(&mut self, dispatch: &Dispatch) {
        let effects = self.runs.get_mut(&dispatch.run).and_then(|tracked| tracked.effects.get_mut(&dispatch.step));
        if let Some(effects) = effects {
            *effects -= 1;
        }
    }
}

/// What the checker collects while it reads records.
struct Observations<'a> {
    events: &'a mut Marks,
    concurrency_events: &'a mut Vec<(RunId, ConcurrencyEvent)>,
    lease_changes: &'a mut Vec<LeaseChange>,
    nodes: &'a NodeTable,
    families: &'a mut FamilyModel,
}

impl TrackedRun {
    fn pin(&mut self, definition: KnownVersion, is_shared: bool) {
        self.model = RunModel::new(definition.workflow.clone(), self.trigger.clone(), is_shared);
        self.definition = definition;
    }

    /// The run exists from now on. Several requests may have asked for it, and its workflow may have been edited in
    /// between: its first record says which of them has created it.
    fn pin_to_created(&mut self, stored: &MemoryRun, is_shared: bool) -> CheckResult {
        let first = stored.records.first().ok_or("the run has no records")?;
        let record = Record::open(first).map_err(|e| format!("a record cannot be read: {e}"))?;
        let Some(Event::Created { origin }) = record.events.first() else { return Ok(()) };
        let found = self.found.iter().find(|known| known.version.hash[..] == origin.hash[..]).cloned();
        let found = found.ok_or_else(|| {
            format!("the run got version {} of {}, which no request found", origin.version, origin.workflow_name)
        })?;
        self.pin(found, is_shared);
        let version = &self.definition.version;
        let is_same = (origin.workflow, origin.version, origin.lowering, &origin.workflow_name)
            == (version.workflow, version.number, version.lowering, &version.name);
        require(is_same, || {
            format!("the run says that it is of version {} of {}", origin.version, origin.workflow_name)
        })
    }

    /// I30: the row names the version that the run got, whatever became of the workflow.
    fn check_version(&self, row: &RunRow) -> CheckResult {
        let version = &self.definition.version;
        let is_same = (row.workflow, row.version, row.hash, row.lowering, &row.workflow_name)
            == (version.workflow, version.number, version.hash, version.lowering, &version.name);
        require(is_same, || format!("the run got version {}, its row says {row:?}", version.number))
    }

    /// Reads and checks the records that are new.
    fn read_new_records(
        &mut self,
        stored: &MemoryRun,
        writer: u64,
        has_one_clock: bool,
        observations: Observations<'_>,
    ) -> CheckResult {
        let known = self.records.len();
        let is_prefix = stored.records.get(..known) == Some(&self.records[..]);
        ViolationKind::Lost.unless(is_prefix, || "a record was changed or removed".into())?;
        for bytes in &stored.records[known..] {
            require(!self.needs_upgrade, || "a run that needs a later release has a new record".into())?;
            let record = Record::open(bytes).map_err(|e| format!("a record cannot be read: {e}"))?;
            let seq = self.run.as_ref().map_or(0, |run| run.state.seq);
            require(record.first == seq + 1, || format!("event {} follows event {seq}", record.first))?;
            require(!record.events.is_empty(), || "a record has no events".into())?;
            let is_later = record.at >= self.newest_at || !has_one_clock;
            ViolationKind::Early.unless(is_later, || "time ran backwards".into())?;
            self.newest_at = record.at;
            self.records.push(bytes.clone());
            if record.events.iter().any(|event| event.name().is_none()) {
                self.needs_upgrade = true;
                *observations.events.entry("an event of a later release").or_default() += 1;
                continue;
            }
            for (event, number) in record.events.iter().zip(record.first..) {
                self.observe((event, number), record.at, stored, (writer, observations.nodes))?;
                for mark in self.operator_marks.drain(..).chain([coverage_mark(event)]) {
                    *observations.events.entry(mark).or_default() += 1;
                }
                let kind = event.step().and_then(|step| self.model.kind(step));
                let is_called_off = event.step().is_some_and(|step| self.model.is_called_off(step));
                observations.families.observe(
                    stored.row.id,
                    event,
                    AboutStep { kind, is_called_off },
                    &self.trigger,
                )?;
                observations.lease_changes.extend(self.lease_change(event, number, stored.row.id));
            }
            observations
                .concurrency_events
                .extend(concurrency_events_in(&record.events).into_iter().map(|event| (stored.row.id, event)));
            self.model.check_between_records()?;
        }
        Ok(())
    }

    fn observe(
        &mut self,
        (event, number): (&Event, u64),
        at: Timestamp,
        stored: &MemoryRun,
        (writer, nodes): (u64, &NodeTable),
    ) -> CheckResult {
        let retry = match event {
            Event::RunRetried { actor, .. } => self.retries.get(actor).copied().ok_or("a retry that no client sent")?,
            _ => (None, false),
        };
        self.model.observe(event, number, at, retry)?;
        self.note_operator_event(event, number);
        if let Event::SignalReceived { actor, .. }
        | Event::ApprovalDecided { actor, .. }
        | Event::Continued { actor, .. } = event
        {
            self.actors.insert(actor.clone());
        }
        if let Event::Paused { actor, .. } | Event::Unpaused { actor } | Event::RetryDue { actor, .. } = event {
            self.actors.insert(actor.clone());
        }
        self.check_fence(event, stored)?;
        self.check_ownership(event, writer, nodes)?;
        if let Event::Leased { step, attempt, worker, .. } = event {
            self.intents.insert(number, (*step, *attempt));
            self.works.insert(number, self.model.work_of(*step));
            self.lease_holders.insert(number, worker.clone());
            self.current_lease.insert(*step, number);
        } else if let Some(step) = event.step().filter(|_| lease_model::ends_lease(event))
            && let Some(fence) = self.current_lease.remove(&step)
        {
            self.called_off_lease.insert(step, fence);
        }
        if let Event::Started { step, attempt, epoch, .. } = event {
            self.intents.insert(number, (*step, *attempt));
            self.works.insert(number, self.model.work_of(*step));
            self.executing_process.insert(*step, *epoch);
        }
        if let Some(step) = event.step().filter(|step| self.model.is_done(*step)) {
            self.settled_by.entry(step).or_insert(writer);
        }
        let run = self.run.get_or_insert_default();
        run.apply(&self.definition.version.plan, event, at).map_err(|e| format!("the event does not fold: {e:?}"))?;
        self.check_given_results()
    }

    /// The effect of an event on a lease.
    fn lease_change(&self, event: &Event, number: u64, run: RunId) -> Option<LeaseChange> {
        let step = event.step()?;
        let kind = self.model.kind(step)?;
        let task_settings = kind.task()?;
        match event {
            Event::Leased { key, .. } => Some(LeaseChange::Granted {
                task: (run, step),
                fence: number,
                name: task_settings.name,
                key: key.clone(),
            }),
            _ => lease_model::ends_lease(event).then_some(LeaseChange::Ended { task: (run, step) }),
        }
    }

    /// I14: a process starts work only for itself, and takes work over only from earlier processes, or on a shared store
    /// from nodes that are fenced.
    fn check_ownership(&self, event: &Event, writer: u64, nodes: &NodeTable) -> CheckResult {
        match event {
            Event::Started { step, epoch, .. } => {
                require(*epoch == writer, || format!("process {writer} starts s{step} for process {epoch}"))
            }
            Event::Retrying { step, charged: false, .. } => {
                let holder = self.executing_process.get(step).copied().unwrap_or(writer);
                let is_free = if nodes.is_empty() { holder <= writer } else { nodes.is_fenced(holder) };
                require(holder == writer || is_free, || format!("process {writer} takes s{step} from process {holder}"))
            }
            _ => Ok(()),
        }
    }

    /// I7, I15: the answer of an upstream counts only for the attempt that asked for it.
    fn check_fence(&mut self, event: &Event, stored: &MemoryRun) -> CheckResult {
        if let Some(step) = event.step().filter(|s| self.model.kind(*s).is_some_and(|kind| kind.task().is_some())) {
            return self.check_lease(step, event, stored);
        }
        let (step, attempt, response) = match event {
            Event::Succeeded { step, attempt, response, .. } => (step, attempt, Some(response)),
            Event::Failed { step, attempt, response, .. } | Event::Returned { step, attempt, response, .. } => {
                (step, attempt, response.as_ref())
            }
            _ => return Ok(()),
        };
        let Some(body) = response.filter(|r| r.status_code.is_some()).and_then(|r| r.body.as_ref()) else {
            return Ok(());
        };
        let bytes = match body.stored {
            None => &body.inline,
            Some(number) => stored.payloads.get(&number).ok_or("a payload is not stored with its event")?,
        };
        let intent = upstream::fence_in(bytes).and_then(|fence| self.intents.get(&fence));
        require(intent == Some(&(*step, *attempt)), || {
            format!("attempt {attempt} of s{step} ends with the answer to another attempt")
        })
    }

    /// The same for workers: a message counts only if its fence is the current lease.
    fn check_lease(&mut self, step: u32, event: &Event, stored: &MemoryRun) -> CheckResult {
        let (message_body, digest) = match event {
            Event::Succeeded { response, digest, .. } => (response.body.as_ref(), *digest),
            Event::Progress { progress, .. } => (Some(progress), 0),
            Event::Returned { response: Some(response), digest, .. } => (response.body.as_ref(), *digest),
            Event::Failed { digest, .. } | Event::Retrying { digest, .. } | Event::Returned { digest, .. } => {
                (None, *digest)
            }
            _ => return Ok(()),
        };
        let message = match event {
            // What an operator gives is no message of a worker.
            Event::Succeeded { .. } if self.given_results.contains_key(&step) => return Ok(()),
            Event::Failed { failure, .. }
            | Event::Retrying { failure, .. }
            | Event::Returned { failure: Some(failure), .. }
                if digest > 0 =>
            {
                failure.message.as_bytes()
            }
            Event::Failed { .. } | Event::Retrying { .. } | Event::Returned { response: None, .. } => return Ok(()),
            _ => &[],
        };
        // The engine itself hands back what no worker got.
        if matches!(event, Event::Retrying { failure, .. } if failure.code == "not_delivered") {
            return Ok(());
        }
        let bytes = match message_body {
            Some(Payload { stored: Some(number), .. }) => {
                stored.payloads.get(number).ok_or("a payload is not stored with its event")?
            }
            Some(body) => &body.inline,
            None => message,
        };
        let leases = match event {
            Event::Returned { .. } => &self.called_off_lease,
            _ => &self.current_lease,
        };
        let (fence, current_lease) = (upstream::fence_in(bytes), leases.get(&step).copied());
        ViolationKind::Duplicated.unless(fence == current_lease && fence.is_some(), || {
            format!("s{step} is leased under fence {current_lease:?}, but a message under {fence:?} was accepted")
        })?;
        if let Some(fence) = fence.filter(|_| digest > 0) {
            self.accepted_reports.insert(fence, digest);
        }
        Ok(())
    }

    /// Compares the rows with the records.
    fn check_rows(&mut self, stored: &MemoryRun, ready: &[ReadyRow], is_shared: bool) -> CheckResult {
        let run = self.run.as_ref().ok_or("the run has no records")?;
        // A snapshot needs to be compared only once, because later records apply to it and to the run alike.
        if let Some((seq, snapshot)) = stored.snapshot.as_ref().filter(|(seq, _)| *seq != self.snapshot) {
            let tail = fold(&self.definition, Some(snapshot), &self.records[*seq as usize..]);
            let is_same = tail.is_ok_and(|tail| tail.state == run.state);
            ViolationKind::Lost.unless(is_same, || "the snapshot and the records disagree".into())?;
            self.snapshot = *seq;
        }
        if run.is_terminal() {
            let whole = fold(&self.definition, None, &self.records);
            require(whole.is_ok_and(|whole| whole.state == run.state), || {
                "the fold of all records differs from the run".into()
            })?;
        }
        for payload in payloads(run) {
            let bytes = payload.stored.map_or(Some(&payload.inline), |number| stored.payloads.get(&number));
            let is_whole = bytes.is_some_and(|bytes| bytes.len() as u64 == payload.len);
            ViolationKind::Lost.unless(is_whole, || format!("a payload of {} bytes is missing", payload.len))?;
        }
        let plan = &self.definition.version.plan;
        require(run.index_matches_state(plan), || "the index of the run differs from its state".into())?;
        let tidied = (self.definition.workflow.groups.len() > 1).then(|| run.tidied(plan));
        let run = tidied.as_ref().unwrap_or(run);
        let (row, status) = (&stored.row, run.status());
        self.check_version(row)?;
        require(row.status == status, || format!("the row has status {}, the records say {status}", row.status))?;
        require(row.finished_at == run.state.finished_at, || {
            "the row and the records have different finish times".into()
        })?;
        let due = run.next_due().filter(|_| row.evicted);
        let claimable = run.claimable(plan).count();
        let has_tasks = matches!(status, RunStatus::Running | RunStatus::Compensating);
        let may_park = status.is_evicted() || has_tasks && claimable > 0 && run.waits_for_others(plan);
        let is_evicted = status.is_evicted() || self.model.waits_in_undo();
        require(row.evicted == is_evicted || may_park, || format!("the run was evicted with status {status}"))?;
        let mut rows: Vec<u32> = ready.iter().map(|row| row.position.step).collect();
        rows.sort_unstable();
        // On a shared store every node must find every ready task.
        let has_rows = is_shared || row.evicted && has_tasks;
        let is_same = run.claimable(plan).filter(|_| has_rows).eq(rows.iter().copied());
        ViolationKind::Lost
            .unless(is_same, || format!("ready rows for steps {rows:?}, but {claimable} can be claimed"))?;
        require(row.wake_at == due, || format!("the row wakes at {:?}, but the run is due at {due:?}", row.wake_at))?;
        let is_right = due.is_none_or(|due| due == self.model.due());
        require(is_right, || format!("the run wakes at {due:?}, the model says {:?}", self.model.due()))?;
        let limit = row.concurrency_group.as_ref().map(|concurrency_group| ConcurrencyLimit {
            max_runs: concurrency_group.limit,
            on_conflict: concurrency_group.on_conflict,
        });
        require(limit == self.definition.workflow.concurrency, || {
            format!("the row has the concurrency limit {limit:?}")
        })?;
        let timers: Vec<Timestamp> = stored.timers.iter().copied().collect();
        require(timers == Vec::from_iter(due), || format!("timer rows {timers:?} for a run that is due at {due:?}"))?;
        let is_held = !run.running().is_empty() || run.leased().next().is_some();
        let is_held = is_held || run.state.paused.is_some() || self.model.awaits_called_off_child();
        self.check_recovery(run)?;
        let has_wakeup = status.is_terminal() || due.is_some() || is_held || run.has_undecided();
        let is_fetching = run.next_due().is_some_and(|at| at <= self.newest_at);
        ViolationKind::Stuck.unless(has_wakeup || is_fetching, || {
            let phases: Vec<_> = run.steps().map(|(step, state)| (step, &state.phase)).collect();
            format!("nothing will wake this run, which is {status}, evicted: {}: {phases:?}", row.evicted)
        })?;
        self.check_idempotent(run)
    }

    /// I10: advancing a run without new input changes nothing.
    fn check_idempotent(&self, run: &Run) -> CheckResult {
        let wait_url = |key: &str| key.to_owned();
        let context = Context {
            run: RunId::default(),
            now: self.newest_at,
            epoch: u64::MAX,
            is_draining: self.is_left_by_draining_process,
            wait_url: &wait_url,
            payloads: &Payloads::new(),
            offer: &|_| None,
            hold: &|_| None,
        };
        let again = advance(&self.definition.version.plan, &mut run.clone(), vec![Input::Wake], &context);
        require(again.record.is_none(), || format!("an unchanged run advanced: {:?}", again.record))
    }
}

/// The concurrency events of a record.
fn concurrency_events_in(events: &[Event]) -> Vec<ConcurrencyEvent> {
    let mut concurrency_events = Vec::new();
    for event in events {
        match event {
            Event::Created { .. } => concurrency_events.push(ConcurrencyEvent::Entered),
            Event::RunRetried { .. } => concurrency_events.push(ConcurrencyEvent::Reentered),
            Event::Queued { .. } if concurrency_events == [ConcurrencyEvent::Reentered] => {
                concurrency_events = vec![ConcurrencyEvent::Requeued];
            }
            Event::Queued { .. } => concurrency_events = vec![ConcurrencyEvent::Queued],
            Event::Admitted {} => concurrency_events.push(ConcurrencyEvent::Admitted),
            Event::RunCancelled { actor, .. }
                if actor == "onward" && concurrency_events == [ConcurrencyEvent::Entered] =>
            {
                concurrency_events = vec![ConcurrencyEvent::Refused];
            }
            Event::RunCancelled { actor, reason } if actor == "onward" && reason.starts_with("approval") => {
                concurrency_events.push(ConcurrencyEvent::Ended);
            }
            Event::RunCancelled { actor, reason } if actor == "onward" => {
                let is_full = reason.as_str() == Queue::Limit.as_str();
                concurrency_events.extend([
                    if is_full { ConcurrencyEvent::TurnedAway } else { ConcurrencyEvent::Superseded },
                    ConcurrencyEvent::Ended,
                ]);
            }
            Event::RunCompleted {} | Event::RunFailed { .. } | Event::RunCancelled { .. } | Event::RunTimeout {} => {
                concurrency_events.push(ConcurrencyEvent::Ended);
            }
            _ => {}
        }
    }
    concurrency_events
}

/// The coverage mark of an event.
fn coverage_mark(event: &Event) -> &'static str {
    match event {
        Event::Queued { reason: Queue::Later } => "a run waited for its start time",
        Event::Queued { .. } => "a run was queued",
        Event::RunRetried { .. } => "a run was retried after its end",
        Event::RunCompensating { end } => match end.status {
            RunStatus::Cancelled if end.actor.starts_with("run_") => "a child undid what it did with its parent",
            RunStatus::Cancelled if end.undoes_children => "a cancellation undid what was done",
            RunStatus::Cancelled => "a denial undid what was done",
            RunStatus::Timeout => "a timeout undid what was done",
            _ => "a failure undid what was done",
        },
        Event::Returned { response: Some(_), .. } => "an attempt that was called off succeeded",
        Event::Returned { failure: Some(failure), .. } if failure.code == "outcome_unknown" => {
            "an attempt that was called off was given up"
        }
        Event::Returned { .. } => "an attempt that was called off did nothing",
        Event::Overridden { verb, .. } => match verb {
            Override::Skip => "an operator skipped a step",
            Override::Result => "an operator gave the result of a step",
            Override::RunNow => "an operator let a step go on at once",
        },
        Event::Admitted {} => "a queued run was admitted",
        Event::Paused { .. } => "a run was paused",
        Event::Unpaused { .. } => "a run was resumed",
        Event::HeldBack { .. } => "an attempt was held back",
        Event::RetryDue { .. } => "a client skipped a retry delay",
        Event::Retrying { died: true, .. } => "a lease was lost",
        Event::Retrying { failure, .. } if failure.code == "snoozed" => "a task was snoozed",
        Event::Retrying { failure, .. } if failure.code == "not_delivered" => "an undelivered task was handed back",
        Event::Failed { failure, .. } if failure.code == "quarantined" => "a task was quarantined",
        Event::TimedOut { failure, .. } if failure.code == "queue_timeout" => "a task hit its queue timeout",
        Event::TimedOut { failure, .. } if failure.code == "total_timeout" => "a task hit its total timeout",
        Event::RunCancelled { actor, reason } if actor == "onward" => match reason.as_str() {
            "superseded" => "a run was cancelled for a newer run",
            "approval_denied" | "approval_timeout" => "a denial cancelled a run",
            _ => "a run was refused by its concurrency limit",
        },
        _ => event.name().unwrap_or_default(),
    }
}

fn payloads(run: &Run) -> impl Iterator<Item = &Payload> {
    let steps = || run.state.steps.iter();
    let responses = steps().filter_map(|step| step.response.as_ref()?.body.as_ref());
    let callbacks = steps().filter_map(|step| Some(&step.callback.as_ref()?.body));
    std::iter::once(&run.state.origin.body).chain(responses).chain(callbacks)
}

pub fn fold(definition: &KnownVersion, snapshot: Option<&Bytes>, records: &[Bytes]) -> Result<Run, LoadError> {
    Run::load(&definition.version.plan, snapshot.map(|s| &s[..]), records)
}
