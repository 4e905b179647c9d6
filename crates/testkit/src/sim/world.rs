//! The state of a simulation: virtual time and one heap of events. The heap is ordered by time and then by a
//! random number, because nothing may rely on the order of simultaneous events.

use super::Options;
use super::catalog::{self, CatalogModel, PlannedEdit};
use super::checker::{Checker, KnownVersion};
use super::client::{self, PlannedRequest};
use super::client_log::{ClientLog, ClientRequest};
use super::fault_injection::{FaultEvent, UnreliableHost};
use super::fault_plan::FaultPlan;
use super::process::{Process, ProcessEvent};
use super::random::Random;
use super::trace::Trace;
use super::upstream;
use super::violation::{CheckResult, Violation, ViolationKind};
use super::workers::{WorkerAction, Workers};
use super::workflow_generator::{ConcurrencyLimit, EndNotification, Extreme, STEPS_MAX, TestWorkflow};
use engine::mailbox::Dispatch;
use kernel::event::Record;
use kernel::{OrgId, RunId, Span, Timestamp, WorkflowId};
use std::collections::BTreeMap;
use std::task::{Poll, Waker};
use store::MemoryStore;
use store::prelude::*;

const START: Timestamp = Timestamp(1_700_000_000_000_000);
/// How many simulations in a thousand use one extreme workflow.
const EXTREME: u32 = 50;
/// In the liveness phase, open waits are answered and the end is checked this often.
const TICK: Span = Span::from_secs(5);
/// A run that has not ended after this much of the liveness phase is stuck.
const LIVENESS_MAX: Span = Span::from_secs(6 * 3_600);

/// Name of the workflow whose runs call a notification URL.
pub const NOTIFIER: &str = "notify";
/// A run that must make room for a newer one has this long to do so.
const MAKE_ROOM_MAX: Span = Span::from_secs(60);

pub enum SimEvent {
    Process(usize, ProcessEvent),
    Fault(FaultEvent),
    ClientRequest(PlannedRequest),
    Worker(WorkerAction),
    /// A client pauses (true) or resumes the workflow of this name.
    PauseWorkflow(String, bool),
    EditWorkflow(String, PlannedEdit),
    /// The safety phase ends and the liveness phase begins.
    StartLiveness,
    /// Repeats throughout the liveness phase.
    Tick,
}

pub struct World {
    pub now: Timestamp,
    heap: BTreeMap<(Timestamp, u64), SimEvent>,
    /// How many client requests are in the heap.
    pending_requests: u64,
    pub events: u64,
    events_max: u64,
    pub trace: Trace,

    /// Random streams, one per concern: what clients and upstreams do, which faults happen, how long things
    /// take.
    pub workload_random: Random,
    pub fault_random: Random,
    pub timing_random: Random,
    /// Concurrency limits, pauses and notifications.
    pub limits_random: Random,
    /// What can be undone, and what operators do: decisions about steps, and retries of runs that have ended.
    pub operator_random: Random,
    pub workers: Workers,

    pub faults: FaultPlan,
    pub is_liveness_phase: bool,
    pub store: MemoryStore,
    /// Until then the store refuses reads and writes.
    pub store_down_until: Timestamp,
    /// How many conflicts in a row the writes of a run still have.
    pub contended: BTreeMap<RunId, u32>,

    pub hosts: Vec<UnreliableHost>,
    /// Every process that was ever started.
    pub processes: Vec<Process>,
    /// Attempts that their upstream never answers, with the process that waits.
    pub silent_dispatches: Vec<(usize, Dispatch)>,

    pub catalog: CatalogModel,
    /// Steps may start runs of other workflows.
    pub calls_others: bool,
    pub has_schedules: bool,
    /// The name of the workflow of each run that was requested.
    pub workflow_of: BTreeMap<RunId, String>,
    /// Pairs of runs that one request starts together. The first may have an idempotency key that is already
    /// taken.
    pub started_together: Vec<(RunId, RunId)>,
    pub client_log: ClientLog,
    pub checker: Checker,
    liveness_starts_at: Timestamp,
}

impl World {
    pub fn new(seed: u64, options: &Options) -> World {
        let mut topology = Random::stream(seed, "topology");
        let mut workload = Random::stream(seed, "workload");
        let mut fault_random = Random::stream(seed, "faults");
        let mut worker_random = Random::stream(seed, "workers");
        let mut operator_random = Random::stream(seed, "operators");
        let faults = FaultPlan::draw(&mut fault_random, &mut worker_random, &mut operator_random, &options.without);
        let mut limits_random = Random::stream(seed, "around");
        // With a local store, one process keeps concurrency groups and workflow pauses in its memory.
        let keeps_limits_alone = faults.has_concurrency_limits && !faults.is_shared;
        let hosts_max = if keeps_limits_alone { 1 } else { options.hosts_max };
        let sizes = if faults.is_shared { [1, 2, 2, 2, 3, 3, 3, 4] } else { [1, 1, 1, 2, 2, 3, 4, 5] };
        let hosts = topology.pick(&sizes).min(hosts_max);
        let liveness_starts_at = START.after(topology.millis(20_000, 240_000));
        let extreme = topology.chance(EXTREME).then(|| topology.pick(&Extreme::ALL));
        let count = if extreme.is_some() { 1 } else { workload.between(1, 3) };
        let workflow = |random: &mut Random| match extreme.filter(|_| options.steps_max >= STEPS_MAX) {
            Some(extreme) => TestWorkflow::extreme(random, extreme),
            None => TestWorkflow::draw(random, options.steps_max),
        };
        let workflows: Vec<TestWorkflow> = (0..count).map(|_| workflow(&mut workload)).collect();
        let mut workflows = workflows;
        if faults.has_tasks {
            workflows.iter_mut().for_each(|workflow| workflow.assign_steps_to_workers(&mut worker_random));
            let single_tasks = if extreme.is_some() { 0 } else { worker_random.between(0, 3) };
            workflows.extend((0..single_tasks).map(|_| TestWorkflow::single_task(&mut worker_random)));
        }
        // Two processes on a store that is not shared answer rows of the inbox from old copies of runs.
        let has_one_process = hosts == 1 && faults.pause_mean.is_none() && faults.staggered_pause_mean.is_none();
        let calls_others = faults.has_children && extreme.is_none() && (faults.is_shared || has_one_process);
        let has_schedules = faults.has_schedules && extreme.is_none() && (faults.is_shared || has_one_process);
        if calls_others {
            let callers = workflows.iter_mut().enumerate().filter(|(_, workflow)| !workflow.is_single_task);
            callers.for_each(|(n, workflow)| workflow.call_others(&mut workload, n));
        }
        if faults.has_undo && extreme.is_none() {
            workflows.iter_mut().for_each(|workflow| workflow.add_undos(&mut operator_random, faults.has_tasks));
        }
        let workers = Workers::draw(worker_random, faults.has_small_memory);
        let definitions = draw_definitions(workflows, &mut limits_random, &faults, extreme.is_some());
        let runs_max = if extreme.is_some() { options.runs_max.min(2) } else { options.runs_max };
        let checker = Checker::new(faults.has_one_clock(), faults.is_shared);
        let mut world = World {
            now: START,
            heap: BTreeMap::new(),
            pending_requests: 0,
            events: 0,
            events_max: options.events_max,
            trace: Trace::new(START, options.is_printing),
            workload_random: workload,
            fault_random,
            timing_random: Random::stream(seed, "schedule"),
            limits_random,
            operator_random,
            workers,
            faults,
            is_liveness_phase: false,
            store: MemoryStore::new(),
            store_down_until: START,
            contended: BTreeMap::new(),
            hosts: Vec::new(),
            processes: Vec::new(),
            silent_dispatches: Vec::new(),
            catalog: CatalogModel::default(),
            calls_others,
            has_schedules,
            workflow_of: BTreeMap::new(),
            started_together: Vec::new(),
            client_log: ClientLog::default(),
            checker,
            liveness_starts_at,
        };
        if let Some(extreme) = extreme {
            world.trace.mark(extreme.mark(), true);
        }
        world.create_workflows(definitions);
        if has_schedules {
            world.create_schedules().expect("the drawn schedules are valid");
        }
        world.set_up_hosts(hosts as usize);
        for (at, request) in client::draw_requests(&mut world, runs_max, liveness_starts_at) {
            world.push_at(at, SimEvent::ClientRequest(request));
        }
        if world.faults.has_user_pauses && hosts == 1 {
            for (at, name, is_paused) in client::draw_workflow_pauses(&mut world, liveness_starts_at) {
                world.push_at(at, SimEvent::PauseWorkflow(name, is_paused));
            }
        }
        if world.faults.has_edits && extreme.is_none() {
            world.schedule_edits(liveness_starts_at);
        }
        if world.faults.has_tasks {
            world.schedule_workers(liveness_starts_at);
        }
        world.push_at(liveness_starts_at, SimEvent::StartLiveness);
        world
    }

    /// Processes events until every run has ended or an invariant breaks.
    pub fn run(&mut self) -> CheckResult {
        while let Some(((at, _), event)) = self.heap.pop_first() {
            self.now = at;
            self.events += 1;
            if self.events > self.events_max || at > self.liveness_starts_at.after(LIVENESS_MAX) {
                return Err(Violation { kind: ViolationKind::Stuck, message: self.describe_stuck_run() });
            }
            match event {
                SimEvent::Process(process, event) => self.handle_process_event(process, event)?,
                SimEvent::Fault(fault) => self.apply_fault(fault)?,
                SimEvent::ClientRequest(request) => {
                    self.pending_requests -= 1;
                    self.send(request)?;
                }
                SimEvent::Worker(action) => self.do_worker_action(action),
                SimEvent::PauseWorkflow(_, true) if self.is_liveness_phase => {}
                SimEvent::PauseWorkflow(name, is_paused) => self.set_workflow_paused(&name, is_paused),
                SimEvent::EditWorkflow(name, edit) => self.edit_workflow(&name, edit)?,
                SimEvent::StartLiveness => self.start_liveness_phase()?,
                SimEvent::Tick if self.end_schedules()? && self.is_over() => {
                    self.checker.check_all(&self.store)?;
                    self.checker.notifications.check_none_lost(&self.store)?;
                    let versions = self.catalog.versions().iter().map(|known| &known.version);
                    let plans = versions.map(|version| (version.hash, version.plan.encode().into())).collect();
                    self.checker.verify(&self.store, plans)?;
                    return self.client_log.check_all(&self.checker);
                }
                SimEvent::Tick => {
                    self.checker.notifications.check_none_lost(&self.store)?;
                    self.checker.leases.check_all_delivered(self.now)?;
                    self.check_room_was_made()?;
                    self.restore_workflows()?;
                    self.answer_waits_and_resume()?;
                    if self.faults.is_shared {
                        self.correct_clocks();
                    }
                    if self.faults.has_tasks {
                        self.claim_from_all();
                    }
                    self.push(TICK, SimEvent::Tick);
                }
            }
        }
        Err("the event heap is empty".into())
    }

    pub fn push(&mut self, after: Span, event: SimEvent) {
        self.push_at(self.now.after(after), event);
    }

    pub fn push_at(&mut self, at: Timestamp, event: SimEvent) {
        self.pending_requests += u64::from(matches!(event, SimEvent::ClientRequest(_)));
        let tie_break = self.timing_random.draw();
        self.heap.insert((at, tie_break), event);
    }

    pub fn note(&mut self, what: String) {
        self.trace.note(self.now, what);
    }

    fn start_liveness_phase(&mut self) -> CheckResult {
        self.note("--- liveness phase: faults stop here".into());
        self.is_liveness_phase = true;
        self.resume_all();
        if self.faults.is_shared {
            self.correct_clocks();
        }
        if self.faults.has_tasks {
            self.enable_all_types();
        }
        for (process, dispatch) in std::mem::take(&mut self.silent_dispatches) {
            self.schedule_report(process, &dispatch, Span::from_millis(5), upstream::success(&dispatch));
        }
        self.push(TICK, SimEvent::Tick);
        Ok(())
    }

    /// Checks that older runs made room for a newer one, if a single process had enough time to do so.
    pub fn check_room_was_made(&self) -> CheckResult {
        let since = Timestamp(self.now.0 - MAKE_ROOM_MAX.0 as i64);
        let mut alive = self.processes.iter().filter(|p| p.is_alive());
        match (alive.next(), alive.next()) {
            (Some(only), None) if !only.is_outdated && only.up_since.max(self.store_down_until) < since => {
                self.checker.concurrency.check_room_was_made(since)
            }
            _ => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        let is_quiet = self.checker.open().next().is_none() && self.unanswered_requests().is_empty();
        let is_quiet = is_quiet && self.checker.notifications.all_sent() && self.is_inbox_empty();
        is_quiet && self.pending_requests == 0 && self.hosts.iter().all(|h| h.is_up())
    }

    /// Requests that still need an answer. A watcher is exempt if another process may end its run, because
    /// the simulated processes do not notify each other.
    fn unanswered_requests(&self) -> Vec<&ClientRequest> {
        let has_one_process =
            self.hosts.len() == 1 && self.faults.pause_mean.is_none() && self.faults.staggered_pause_mean.is_none();
        let needs_answer = |request: &&ClientRequest| match request {
            ClientRequest::Watch { run } => has_one_process && !self.checker.needs_upgrade(*run),
            _ => true,
        };
        self.client_log.open().filter(needs_answer).collect()
    }

    /// Describes the first run that does not end, with everything stored about it.
    fn describe_stuck_run(&self) -> String {
        let Some((id, definition, run)) = self.checker.open().next() else {
            let all_sent = self.checker.notifications.all_sent();
            return format!(
                "requests without an answer: {:?}; all notifications sent: {all_sent}; rows: {:?}",
                self.unanswered_requests(),
                self.checker.families.left(&self.store)
            );
        };
        let mut text = format!("{id} is {}, due at {:?}\n", run.status(), run.next_due());
        let ready_rows = self.store.stored_ready();
        text += &format!("  ready {:?}\n", ready_rows.iter().filter(|row| row.position.run == id).collect::<Vec<_>>());
        for name in super::workflow_generator::TYPES {
            text += &format!("  slots {:?}\n", ready(self.store.limit_slots(OrgId::DEFAULT, name)));
        }
        for (i, step) in definition.workflow.steps.iter().enumerate() {
            text += &format!("  node {i} needs {:?} {:?} {:?}\n", step.needs, step.kind, step.retry);
        }
        for (i, step) in run.steps() {
            text += &format!("  s{i} {:?} {:?}\n", step.place, step.phase);
        }
        if let Some(stored) = self.store.stored_run(OrgId::DEFAULT, id) {
            text += &format!("  row {:?}\n  timers {:?}\n", stored.row, stored.timers);
            for record in stored.records.iter().filter_map(|bytes| Record::open(bytes).ok()) {
                let names = record.events.iter().map(|e| format!("{} {:?}", e.name().unwrap_or("?"), e.step()));
                text += &format!("  {} {:?}\n", record.first, names.collect::<Vec<_>>());
            }
        }
        text
    }
}

/// Draws definitions around the workflows: concurrency limits and notifications.
fn draw_definitions(
    workflows: Vec<TestWorkflow>,
    random: &mut Random,
    faults: &FaultPlan,
    is_extreme: bool,
) -> Vec<KnownVersion> {
    let mut definitions: Vec<KnownVersion> = Vec::new();
    for (n, mut workflow) in workflows.into_iter().enumerate() {
        workflow.concurrency = (faults.has_concurrency_limits && random.chance(800))
            .then(|| ConcurrencyLimit::draw(random))
            .filter(|_| !workflow.is_single_task);
        for _ in 0..if faults.has_notifications && !workflow.is_single_task { random.below(3) } else { 0 } {
            let name = format!("workflow {}", random.below(n as u64 + 1));
            let sender = (!is_extreme && random.chance(300)).then_some(name);
            workflow.notifications.push(EndNotification { only_failures: random.chance(300), workflow: sender });
        }
        definitions.push(catalog::version(workflow, WorkflowId(random.bytes()), format!("workflow {n}"), 1, random));
    }
    if faults.has_notifications {
        let mut workflow = TestWorkflow::notifier(random);
        workflow.concurrency =
            (faults.has_concurrency_limits && random.chance(300)).then(|| ConcurrencyLimit::draw(random));
        definitions.push(catalog::version(workflow, WorkflowId(random.bytes()), NOTIFIER.into(), 1, random));
    }
    definitions
}

/// Calls to the memory store complete at once.
pub fn ready<T>(call: store::Call<'_, T>) -> store::Result<T> {
    completed(call)
}

/// The output of a future that waits for nothing but the memory store.
pub fn completed<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the memory store returned a pending call"),
    }
}
