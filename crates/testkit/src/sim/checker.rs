//! What must hold after every commit, read from the store and from nowhere else.
//!
//! The checker keeps what it saw of each run and compares: records only grow (I4), the rows are the
//! fold of the records (I5), the events are legal (see [`model`](super::run_model)), an unchanged run stays
//! as it is (I10), a run that is not over has something to wake it (I12), and no effect happens before
//! its intent is durable or after its step is done (I7, I8, I35). A run in which a later release has
//! written what this one cannot read stays exactly as that release left it.

use super::concurrency_model::{BatchWriter, ConcurrencyEvent, ConcurrencyModel};
use super::lease_model::{self, LeaseChange, LeaseModel};
use super::notification_model::NotificationModel;
use super::run_model::RunModel;
use super::trace::Marks;
use super::trigger::Trigger;
use super::upstream;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use super::workflow_generator::{ConcurrencyLimit, TestWorkflow};
use bytes::Bytes;
use engine::Version;
use engine::board::Task;
use engine::mailbox::Dispatch;
use kernel::event::{Event, Queue};
use kernel::run::LoadError;
use kernel::{Context, Input, OrgId, Payload, Payloads, Record, Run, RunId, RunStatus, Timestamp, advance};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use store::memory::StoredRun;
use store::{MemoryStore, ReadyRow};

/// One edition of a workflow, as both sides know it.
#[derive(Clone)]
pub struct Definition {
    pub workflow: Rc<TestWorkflow>,
    pub version: Arc<Version>,
}

#[derive(Default)]
pub struct Checker {
    /// Runs that may come to exist.
    runs: BTreeMap<RunId, TrackedRun>,
    /// Attempts that reached an executor.
    executed: BTreeSet<(RunId, u64)>,
    pub concurrency: ConcurrencyModel,
    pub notifications: NotificationModel,
    pub leases: LeaseModel,
    /// What the batch that is being read did to leases.
    lease_changes: Vec<LeaseChange>,
    /// What the batch that is being read did to places.
    concurrency_events: Vec<(RunId, ConcurrencyEvent)>,
    /// All clocks show the same, so time goes forward in every run, whoever writes.
    has_one_clock: bool,
    pub commits: u64,
    /// How often each event was read.
    pub events: Marks,
}

struct TrackedRun {
    definition: Definition,
    model: RunModel,
    trigger: Trigger,
    /// Somebody who asked for it wants to be told of its end.
    has_listener: bool,
    /// Whoever paused or resumed it, or would not wait for a retry.
    actors: BTreeSet<String>,
    records: Vec<Bytes>,
    /// The latest fold; `None` until the run exists.
    run: Option<Run>,
    /// When the last record was written, as its writer saw the time.
    newest_at: Timestamp,
    /// A later release wrote the last record.
    needs_upgrade: bool,
    /// The last record is of a process that starts nothing any more.
    is_left_by_draining_process: bool,
    /// The snapshot that was compared last.
    snapshot: u64,
    /// Dispatch intents: step and attempt by fence.
    intents: BTreeMap<u64, (u32, u32)>,
    /// The process that each step was last given to.
    executing_process: BTreeMap<u32, u64>,
    /// The process that settled each step.
    settled_by: BTreeMap<u32, u64>,
    /// How often each step reached an executor or a worker.
    effects: BTreeMap<u32, u32>,
    /// Leases: the worker, by fence.
    lease_holders: BTreeMap<u64, String>,
    /// What workers said in the end and that counted, by fence.
    accepted_reports: BTreeMap<u64, u64>,
    /// The fence under which each step is leased, while it is.
    current_lease: BTreeMap<u32, u64>,
}

impl Checker {
    pub fn new(has_one_clock: bool) -> Checker {
        Checker { has_one_clock, ..Default::default() }
    }

    /// Somebody is about to ask for this run.
    pub fn expect_run(&mut self, run: RunId, definition: Definition, trigger: Trigger, has_listener: bool) {
        if let Some(limit) = definition.workflow.concurrency {
            self.concurrency.expect_run(run, definition.version.workflow, trigger.group, limit);
        }
        let model = RunModel::new(definition.workflow.clone(), trigger.clone());
        let tracked = TrackedRun {
            definition,
            model,
            trigger,
            has_listener,
            actors: BTreeSet::new(),
            records: Vec::new(),
            run: None,
            newest_at: Timestamp::default(),
            needs_upgrade: false,
            is_left_by_draining_process: false,
            snapshot: 0,
            intents: BTreeMap::new(),
            executing_process: BTreeMap::new(),
            settled_by: BTreeMap::new(),
            effects: BTreeMap::new(),
            lease_holders: BTreeMap::new(),
            accepted_reports: BTreeMap::new(),
            current_lease: BTreeMap::new(),
        };
        self.runs.insert(run, tracked);
    }

    /// The run as it is stored, if it is.
    pub fn stored(&self, run: RunId) -> Option<&Run> {
        self.runs.get(&run)?.run.as_ref()
    }

    /// Runs that exist and should go on.
    pub fn open(&self) -> impl Iterator<Item = (RunId, &Definition, &Run)> {
        let known = self.runs.iter().filter(|(_, f)| !f.needs_upgrade);
        let existing = known.filter_map(|(id, f)| Some((*id, &f.definition, f.run.as_ref()?)));
        existing.filter(|(.., run)| !run.is_terminal())
    }

    /// What a run that somebody asked for was given, and whether somebody wants to hear of its end.
    pub fn group_and_listener(&self, run: RunId) -> (u64, bool) {
        self.runs.get(&run).map_or((0, false), |f| (f.trigger.group, f.has_listener))
    }

    /// What the holder of a fence said in the end, if that counted.
    pub fn accepted_report(&self, run: RunId, fence: u64) -> Option<u64> {
        self.runs.get(&run)?.accepted_reports.get(&fence).copied()
    }

    /// What a run was given.
    pub fn trigger(&self, run: RunId) -> Option<&Trigger> {
        self.runs.get(&run).map(|f| &f.trigger)
    }

    /// Do the records say that this actor paused it, resumed it or would not wait?
    pub fn has_acted(&self, run: RunId, actor: &str) -> bool {
        self.runs.get(&run).is_some_and(|f| f.actors.contains(actor))
    }

    /// Did a later release write to this run?
    pub fn needs_upgrade(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|f| f.needs_upgrade)
    }

    /// Number of the last event anybody can read, and when it was written.
    pub fn last_event(&self, run: RunId) -> (u64, Timestamp) {
        let tracked = self.runs.get(&run);
        let seq = tracked.and_then(|f| f.run.as_ref()).map_or(0, |run| run.state.seq);
        (seq, tracked.map_or(Timestamp::default(), |f| f.newest_at))
    }

    /// The end of the story: everything that was ever seen is still there, and adds up.
    pub fn check_all(&self, store: &MemoryStore) -> CheckResult {
        for (id, tracked) in &self.runs {
            let stored = store.stored_run(OrgId::DEFAULT, *id);
            let records = stored.as_ref().map_or(&[][..], |s| &s.records);
            ViolationKind::Lost.unless(records == tracked.records, || format!("{id} is not what it was"))?;
            if let Some(stored) = stored.filter(|_| tracked.needs_upgrade) {
                let is_intact =
                    !stored.row.status.is_terminal() && stored.timers.first().copied() == stored.row.wake_at;
                ViolationKind::Lost.unless(is_intact, || format!("{id} will not be there after the upgrade"))?;
            }
            for step in 0..tracked.definition.workflow.steps.len() as u32 {
                let effects = tracked.effects.get(&step).copied().unwrap_or_default();
                let about = |failure: Violation| failure.about(id);
                tracked.model.check_effects(step, effects).map_err(about)?;
                tracked.model.check_outcome(step).map_err(about)?;
            }
        }
        Ok(())
    }

    /// A commit by process `writer` may have touched this run.
    pub fn run_committed(
        &mut self,
        stored: &StoredRun,
        ready: &[ReadyRow],
        writer: u64,
        is_draining: bool,
    ) -> CheckResult {
        self.commits += 1;
        let tracked = self.runs.get_mut(&stored.row.id).ok_or("nobody asked for this run")?;
        let begun = self.concurrency_events.len();
        if stored.records.len() > tracked.records.len() {
            tracked.is_left_by_draining_process = is_draining;
        }
        let observations = Observations {
            events: &mut self.events,
            concurrency_events: &mut self.concurrency_events,
            lease_changes: &mut self.lease_changes,
        };
        tracked.read_new_records(stored, writer, self.has_one_clock, observations)?;
        if tracked.needs_upgrade {
            self.leases.forget_run(stored.row.id);
            let is_open = !stored.row.status.is_terminal();
            return ViolationKind::Lost.unless(is_open, || "a run that needs a later release was ended".into());
        }
        if !tracked.model.is_over() {
            let concurrency_events = &self.concurrency_events[begun..];
            require(!concurrency_events.iter().any(|(_, event)| *event == ConcurrencyEvent::Ended), || {
                "it ended and goes on".into()
            })?;
        }
        tracked.check_rows(stored, ready)
    }

    /// All runs of a batch were read: what follows for places and notices.
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
        // An end comes before whoever tells of it, even if one batch holds both.
        for (run, _) in concurrency_events
            .iter()
            .filter(|(_, event)| matches!(event, ConcurrencyEvent::Ended | ConcurrencyEvent::Refused))
        {
            let tracked = &self.runs[run];
            let is_notification_run = self.notifications.sent_by(*run).is_some();
            let expected =
                if is_notification_run { 0 } else { tracked.model.notifications_expected(tracked.has_listener) };
            self.notifications.run_ended(*run, expected, store)?;
        }
        let is_creation = |event: &ConcurrencyEvent| {
            matches!(event, ConcurrencyEvent::Entered | ConcurrencyEvent::Queued | ConcurrencyEvent::Refused)
        };
        concurrency_events
            .iter()
            .filter(|(_, event)| is_creation(event))
            .try_for_each(|(run, _)| self.notifications.run_created(*run, store))
    }

    /// An executor of process `holder` is being given work. Between the intent and this moment others
    /// may have ended the step, and nobody could know; whoever ended it itself must.
    pub fn executed(&mut self, dispatch: &Dispatch, holder: u64) -> CheckResult {
        let Dispatch { run, step, attempt, fence, .. } = dispatch;
        let tracked = self.runs.get_mut(run).ok_or("work for a run nobody asked for")?;
        let intent = tracked.intents.get(fence);
        require(intent == Some(&(*step, *attempt)), || format!("work for s{step} without a durable intent"))?;
        ViolationKind::Duplicated.unless(self.executed.insert((*run, *fence)), || {
            format!("attempt {attempt} of s{step} was handed out twice")
        })?;
        let is_done = tracked.settled_by.get(step) == Some(&holder);
        ViolationKind::Duplicated.unless(!is_done, || format!("s{step} is executed again after its completion"))?;
        *tracked.effects.entry(*step).or_default() += 1;
        tracked.model.check_request(dispatch)
    }

    /// A worker is given a task by process `holder`, if that is one that knows what became of all it wrote; or it would
    /// have been, had it not hung up.
    pub fn task_delivered(
        &mut self,
        task: &Task,
        worker: &str,
        has_disconnected: bool,
        holder: Option<u64>,
    ) -> CheckResult {
        let Task { run, step, attempt, fence, .. } = task;
        let tracked = self.runs.get_mut(run).ok_or("a task of a run nobody asked for")?;
        let is_durable = tracked.intents.get(fence) == Some(&(*step, *attempt))
            && tracked.lease_holders.get(fence).map(String::as_str) == Some(worker);
        ViolationKind::Lost
            .unless(is_durable, || format!("{worker} is given s{step} of {run}, and nobody will remember"))?;
        ViolationKind::Duplicated.unless(self.executed.insert((*run, *fence)), || {
            format!("attempt {attempt} of s{step} was handed out twice")
        })?;
        let is_done = holder.is_some() && tracked.settled_by.get(step).copied() == holder;
        ViolationKind::Duplicated.unless(!is_done, || format!("s{step} of {run} is handed out after its end"))?;
        *tracked.effects.entry(*step).or_default() += u32::from(!has_disconnected);
        tracked.model.check_task(task)
    }

    /// Its executor had the work and sent nothing.
    pub fn held_back(&mut self, dispatch: &Dispatch) {
        let effects = self.runs.get_mut(&dispatch.run).and_then(|tracked| tracked.effects.get_mut(&dispatch.step));
        if let Some(effects) = effects {
            *effects -= 1;
        }
    }
}

/// What is noted while records are read.
struct Observations<'a> {
    events: &'a mut Marks,
    concurrency_events: &'a mut Vec<(RunId, ConcurrencyEvent)>,
    lease_changes: &'a mut Vec<LeaseChange>,
}

impl TrackedRun {
    /// Takes in the records that are new.
    fn read_new_records(
        &mut self,
        stored: &StoredRun,
        writer: u64,
        has_one_clock: bool,
        observations: Observations<'_>,
    ) -> CheckResult {
        let known = self.records.len();
        let is_prefix = stored.records.get(..known) == Some(&self.records[..]);
        ViolationKind::Lost.unless(is_prefix, || "a record was changed or removed".into())?;
        for bytes in &stored.records[known..] {
            require(!self.needs_upgrade, || "a run that needs a later release went on".into())?;
            let record = Record::open(bytes).map_err(|e| format!("a record cannot be read: {e}"))?;
            let seq = self.run.as_ref().map_or(0, |run| run.state.seq);
            require(record.first == seq + 1, || format!("event {} follows event {seq}", record.first))?;
            require(!record.events.is_empty(), || "a record says nothing".into())?;
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
                self.observe(event, number, record.at, stored, writer)?;
                *observations.events.entry(coverage_mark(event)).or_default() += 1;
                observations.lease_changes.extend(self.lease_change(event, number, stored.row.id));
            }
            observations
                .concurrency_events
                .extend(concurrency_events_in(&record.events).into_iter().map(|event| (stored.row.id, event)));
            self.model.check_between_records()?;
        }
        Ok(())
    }

    fn observe(&mut self, event: &Event, number: u64, at: Timestamp, stored: &StoredRun, writer: u64) -> CheckResult {
        self.model.observe(event, at)?;
        if let Event::Paused { actor, .. } | Event::Unpaused { actor } | Event::RetryDue { actor, .. } = event {
            self.actors.insert(actor.clone());
        }
        self.check_fence(event, stored)?;
        self.check_ownership(event, writer)?;
        if let Event::Leased { step, attempt, worker, .. } = event {
            self.intents.insert(number, (*step, *attempt));
            self.lease_holders.insert(number, worker.clone());
            self.current_lease.insert(*step, number);
        } else if let Some(step) = event.step().filter(|_| lease_model::ends_lease(event)) {
            self.current_lease.remove(&step);
        }
        if let Event::Started { step, attempt, epoch, .. } = event {
            self.intents.insert(number, (*step, *attempt));
            self.executing_process.insert(*step, *epoch);
        }
        if let Some(step) = event.step().filter(|step| self.model.is_done(*step)) {
            self.settled_by.entry(step).or_insert(writer);
        }
        let run = self.run.get_or_insert_default();
        run.apply(&self.definition.version.plan, event, at).map_err(|e| format!("it does not fold: {e:?}").into())
    }

    /// What an event does to a lease.
    fn lease_change(&self, event: &Event, number: u64, run: RunId) -> Option<LeaseChange> {
        let step = event.step()?;
        let task_settings = self.definition.workflow.steps.get(step as usize)?.kind.task()?;
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

    /// I14: a process gives work to itself, and takes it only from those before it.
    fn check_ownership(&self, event: &Event, writer: u64) -> CheckResult {
        match event {
            Event::Started { step, epoch, .. } => {
                require(*epoch == writer, || format!("process {writer} gives s{step} to process {epoch}"))
            }
            Event::Retrying { step, charged: false, .. } => {
                let holder = self.executing_process.get(step).copied().unwrap_or_default();
                require(holder <= writer, || format!("process {writer} takes s{step} from its successor {holder}"))
            }
            _ => Ok(()),
        }
    }

    /// I7, I15: what an upstream answered counts for the attempt it was asked in, and for no other.
    fn check_fence(&mut self, event: &Event, stored: &StoredRun) -> CheckResult {
        if let Some(step) = event.step().filter(|s| self.definition.workflow.steps[*s as usize].kind.task().is_some()) {
            return self.check_lease(step, event, stored);
        }
        let (step, attempt, response) = match event {
            Event::Succeeded { step, attempt, response, .. } => (step, attempt, Some(response)),
            Event::Failed { step, attempt, response, .. } => (step, attempt, response.as_ref()),
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
            format!("attempt {attempt} of s{step} ends with another's answer")
        })
    }

    /// The same for a worker: it has the lease, and whatever it says names the fence it was given.
    fn check_lease(&mut self, step: u32, event: &Event, stored: &StoredRun) -> CheckResult {
        let (said, digest) = match event {
            Event::Succeeded { response, digest, .. } => (response.body.as_ref(), *digest),
            Event::Progress { progress, .. } => (Some(progress), 0),
            Event::Failed { digest, .. } | Event::Retrying { digest, .. } => (None, *digest),
            _ => return Ok(()),
        };
        let message = match event {
            Event::Failed { failure, .. } | Event::Retrying { failure, .. } if digest > 0 => failure.message.as_bytes(),
            Event::Failed { .. } | Event::Retrying { .. } => return Ok(()),
            _ => &[],
        };
        let bytes = match said {
            Some(Payload { stored: Some(number), .. }) => {
                stored.payloads.get(number).ok_or("a payload is not stored with its event")?
            }
            Some(body) => &body.inline,
            None => message,
        };
        let (fence, current_lease) = (upstream::fence_in(bytes), self.current_lease.get(&step).copied());
        ViolationKind::Duplicated.unless(fence == current_lease && fence.is_some(), || {
            format!("s{step} is leased under fence {current_lease:?}, and whoever has {fence:?} was heard")
        })?;
        if let Some(fence) = fence.filter(|_| digest > 0) {
            self.accepted_reports.insert(fence, digest);
        }
        Ok(())
    }

    /// The rows against the records.
    fn check_rows(&mut self, stored: &StoredRun, ready: &[ReadyRow]) -> CheckResult {
        let run = self.run.as_ref().ok_or("a run without records")?;
        // What was compared once goes on by the same records as the run itself.
        if let Some((seq, snapshot)) = stored.snapshot.as_ref().filter(|(seq, _)| *seq != self.snapshot) {
            let tail = fold(&self.definition, Some(snapshot), &self.records[*seq as usize..]);
            let is_same = tail.is_ok_and(|tail| tail.state == run.state);
            ViolationKind::Lost.unless(is_same, || "the snapshot and the records disagree".into())?;
            self.snapshot = *seq;
        }
        if run.is_terminal() {
            let whole = fold(&self.definition, None, &self.records);
            require(whole.is_ok_and(|whole| whole.state == run.state), || "read again it is another run".into())?;
        }
        for payload in payloads(run) {
            let bytes = payload.stored.map_or(Some(&payload.inline), |number| stored.payloads.get(&number));
            let is_whole = bytes.is_some_and(|bytes| bytes.len() as u64 == payload.len);
            ViolationKind::Lost.unless(is_whole, || format!("a payload of {} bytes is lost", payload.len))?;
        }
        let plan = &self.definition.version.plan;
        require(run.index_is_true(plan), || "the index is not what the state says".into())?;
        let (row, status) = (&stored.row, run.status());
        require(row.status == status, || format!("the row says {}, the records {status}", row.status))?;
        require(row.finished_at == run.state.finished_at, || "the row has another end than the records".into())?;
        let due = run.next_due().filter(|_| row.parked);
        let claimable = run.claimable(plan).count();
        let may_park = status.is_parked() || status == RunStatus::Running && claimable > 0 && run.is_up_to_others(plan);
        require(row.parked == status.is_parked() || may_park, || format!("a run that is {status} has left memory"))?;
        let mut rows: Vec<u32> = ready.iter().map(|row| row.place.step).collect();
        rows.sort_unstable();
        let is_same =
            run.claimable(plan).filter(|_| row.parked && status == RunStatus::Running).eq(rows.iter().copied());
        ViolationKind::Lost.unless(is_same, || format!("rows stand for tasks {rows:?}, {claimable} may be claimed"))?;
        require(row.wake_at == due, || format!("the row wakes at {:?}, the run is due at {due:?}", row.wake_at))?;
        let is_right = due.is_none_or(|due| due == self.model.due());
        require(is_right, || format!("it wakes at {due:?}, by the model at {:?}", self.model.due()))?;
        let limit =
            row.gate.as_ref().map(|gate| ConcurrencyLimit { max_runs: gate.limit, on_conflict: gate.on_conflict });
        require(limit == self.definition.workflow.concurrency, || format!("the row has the limit {limit:?}"))?;
        let timers: Vec<Timestamp> = stored.timers.iter().copied().collect();
        require(timers == Vec::from_iter(due), || format!("timer rows {timers:?} for a run that is due at {due:?}"))?;
        let is_held = !run.running().is_empty() || run.leased().next().is_some();
        let is_held = is_held || run.state.paused.is_some();
        let has_wakeup = status.is_terminal() || due.is_some() || is_held || run.has_undecided();
        let is_fetching = run.next_due().is_some_and(|at| at <= self.newest_at);
        ViolationKind::Stuck.unless(has_wakeup || is_fetching, || "nothing will ever wake this run".into())?;
        self.check_idempotent(run)
    }

    /// I10: with nothing new, nothing happens.
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
        };
        let again = advance(&self.definition.version.plan, &mut run.clone(), vec![Input::Wake], &context);
        require(again.record.is_none(), || format!("an unchanged run went on: {:?}", again.record))
    }
}

/// What a record says about the run's place.
fn concurrency_events_in(events: &[Event]) -> Vec<ConcurrencyEvent> {
    let mut concurrency_events = Vec::new();
    for event in events {
        match event {
            Event::Created { .. } => concurrency_events.push(ConcurrencyEvent::Entered),
            Event::Queued { .. } => concurrency_events = vec![ConcurrencyEvent::Queued],
            Event::Admitted {} => concurrency_events.push(ConcurrencyEvent::Admitted),
            Event::RunCancelled { actor, .. }
                if actor == "onward" && concurrency_events == [ConcurrencyEvent::Entered] =>
            {
                concurrency_events = vec![ConcurrencyEvent::Refused];
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

/// The situation an event is.
fn coverage_mark(event: &Event) -> &'static str {
    match event {
        Event::Queued { reason: Queue::Later } => "a run waited for its time",
        Event::Queued { .. } => "a run waited for its turn",
        Event::Admitted {} => "the turn of a run came",
        Event::Paused { .. } => "a run was paused",
        Event::Unpaused { .. } => "a run was resumed",
        Event::RetryDue { .. } => "a retry was not waited for",
        Event::Retrying { died: true, .. } => "a lease was lost",
        Event::Retrying { failure, .. } if failure.code == "snoozed" => "a task was snoozed",
        Event::Retrying { failure, .. } if failure.code == "not_delivered" => "a task was handed back",
        Event::Failed { failure, .. } if failure.code == "quarantined" => "a task was put aside",
        Event::TimedOut { failure, .. } if failure.code == "queue_timeout" => "nobody claimed a task in time",
        Event::TimedOut { failure, .. } if failure.code == "total_timeout" => "a task took too long altogether",
        Event::RunCancelled { actor, reason } if actor == "onward" => match reason.as_str() {
            "superseded" => "a run made room for a newer one",
            _ => "a run found no room and was refused",
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

pub fn fold(definition: &Definition, snapshot: Option<&Bytes>, records: &[Bytes]) -> Result<Run, LoadError> {
    Run::load(&definition.version.plan, snapshot.map(|s| &s[..]), records)
}
