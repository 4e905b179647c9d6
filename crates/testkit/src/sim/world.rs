//! Time, and everything that is going to happen: one heap, ordered by virtual time and then by a drawn
//! number, because nothing may rely on the order of simultaneous things.

use super::Options;
use super::checker::{Checker, Definition};
use super::client::{self, PlannedRequest};
use super::client_log::{ClientLog, Request};
use super::fault_injection::{FaultEvent, Host};
use super::fault_plan::FaultPlan;
use super::process::{Process, ProcessEvent};
use super::random::Random;
use super::trace::Trace;
use super::upstream;
use super::violation::{CheckResult, Violation, ViolationKind};
use super::workers::{WorkerAction, Workers};
use super::workflow_generator::{ConcurrencyLimit, EndNotification, Extreme, STEPS_MAX, TestWorkflow};
use engine::Version;
use engine::mailbox::Dispatch;
use kernel::event::Record;
use kernel::{OrgId, RunId, Span, Timestamp, WorkflowId};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use store::MemoryStore;

const START: Timestamp = Timestamp(1_700_000_000_000_000);
/// Thousandths of stories that are about one shape at the edge of what is allowed.
const EXTREME: u32 = 50;
/// In good weather, callbacks are delivered and the end is looked for this often…
const TICK: Span = Span::from_secs(5);
/// …and after this long whatever has not ended never will.
const PATIENCE: Span = Span::from_secs(6 * 3_600);

/// Name of the workflow that calls whoever wants to be told of an end.
pub const TELLER: &str = "teller";
/// A run that must make room for another has done so after this long.
const ROOM: Span = Span::from_secs(60);

pub enum SimEvent {
    Process(usize, ProcessEvent),
    Fault(FaultEvent),
    ClientRequest(PlannedRequest),
    Worker(WorkerAction),
    /// Somebody pauses (true) or resumes the workflow of a definition.
    PauseWorkflow(usize, bool),
    /// The first phase is over.
    StartLiveness,
    /// The second phase, again and again.
    Tick,
}

pub struct World {
    pub now: Timestamp,
    heap: BTreeMap<(Timestamp, u64), SimEvent>,
    /// How many of those clients are going to do.
    requests: u64,
    pub happenings: u64,
    happenings_max: u64,
    pub trace: Trace,

    /// Streams: what the outside does, what fails, and how long things take.
    pub workload: Random,
    pub chance: Random,
    pub schedule: Random,
    /// Limits, pauses and notices.
    pub around: Random,
    pub crew: Workers,

    pub faults: FaultPlan,
    pub is_calm: bool,
    pub store: MemoryStore,
    /// Nothing can be read or written before this.
    pub store_down_until: Timestamp,

    pub hosts: Vec<Host>,
    /// Every process there ever was.
    pub processes: Vec<Process>,
    /// Attempts whose upstream does not answer, and the process that waits.
    pub silent: Vec<(usize, Dispatch)>,

    pub definitions: Vec<Definition>,
    /// The definition of each run that was asked for.
    pub pinned: BTreeMap<RunId, usize>,
    /// Runs that were asked for together; of the first one somebody may have had the key before.
    pub pairs: Vec<(RunId, RunId)>,
    pub ledger: ClientLog,
    pub checker: Checker,
    calm_at: Timestamp,
}

impl World {
    pub fn new(seed: u64, options: &Options) -> World {
        let mut topology = Random::stream(seed, "topology");
        let mut workload = Random::stream(seed, "workload");
        let mut chance = Random::stream(seed, "faults");
        let mut workers = Random::stream(seed, "workers");
        let faults = FaultPlan::draw(&mut chance, &mut workers, &options.without);
        let mut around = Random::stream(seed, "around");
        // Places are kept by the one process that has the store, and so are pauses of workflows.
        let hosts_max = if faults.has_concurrency_limits { 1 } else { options.hosts_max };
        let hosts = topology.pick(&[1, 1, 1, 2, 2, 3, 4, 5]).min(hosts_max);
        let calm_at = START.after(topology.millis(20_000, 240_000));
        let extreme = topology.chance(EXTREME).then(|| topology.pick(&Extreme::ALL));
        let count = if extreme.is_some() { 1 } else { workload.between(1, 3) };
        let shape = |random: &mut Random| match extreme.filter(|_| options.steps_max >= STEPS_MAX) {
            Some(extreme) => TestWorkflow::extreme(random, extreme),
            None => TestWorkflow::draw(random, options.steps_max),
        };
        let shapes: Vec<TestWorkflow> = (0..count).map(|_| shape(&mut workload)).collect();
        let mut shapes = shapes;
        if faults.has_tasks {
            shapes.iter_mut().for_each(|shape| shape.outsource(&mut workers));
            let plain = if extreme.is_some() { 0 } else { workers.between(0, 3) };
            shapes.extend((0..plain).map(|_| TestWorkflow::plain(&mut workers)));
        }
        let crew = Workers::draw(workers, faults.has_small_memory);
        let definitions = define(shapes, &mut around, &faults, extreme.is_some());
        let runs_max = if extreme.is_some() { options.runs_max.min(2) } else { options.runs_max };
        let checker = Checker::new(faults.has_one_clock());
        let mut world = World {
            now: START,
            heap: BTreeMap::new(),
            requests: 0,
            happenings: 0,
            happenings_max: options.happenings_max,
            trace: Trace::new(START, options.is_printing),
            workload,
            chance,
            schedule: Random::stream(seed, "schedule"),
            around,
            crew,
            faults,
            is_calm: false,
            store: MemoryStore::new(),
            store_down_until: START,
            hosts: Vec::new(),
            processes: Vec::new(),
            silent: Vec::new(),
            definitions,
            pinned: BTreeMap::new(),
            pairs: Vec::new(),
            ledger: ClientLog::default(),
            checker,
            calm_at,
        };
        if let Some(extreme) = extreme {
            world.trace.mark(extreme.mark(), true);
        }
        world.forecast(hosts as usize);
        for (at, request) in client::draw(&mut world, runs_max, calm_at) {
            world.push_at(at, SimEvent::ClientRequest(request));
        }
        if world.faults.has_user_pauses && hosts == 1 {
            for (at, definition, is_paused) in client::holds(&mut world, calm_at) {
                world.push_at(at, SimEvent::PauseWorkflow(definition, is_paused));
            }
        }
        if world.faults.has_tasks {
            world.muster(calm_at);
        }
        world.push_at(calm_at, SimEvent::StartLiveness);
        world
    }

    /// Lives until every run is over, or something is wrong.
    pub fn live(&mut self) -> CheckResult {
        while let Some(((at, _), event)) = self.heap.pop_first() {
            self.now = at;
            self.happenings += 1;
            if self.happenings > self.happenings_max || at > self.calm_at.after(PATIENCE) {
                return Err(Violation { kind: ViolationKind::Stuck, message: self.stuck() });
            }
            match event {
                SimEvent::Process(process, event) => self.happen(process, event)?,
                SimEvent::Fault(weather) => self.change(weather)?,
                SimEvent::ClientRequest(request) => {
                    self.requests -= 1;
                    self.send(request);
                }
                SimEvent::Worker(deed) => self.work(deed),
                SimEvent::PauseWorkflow(_, true) if self.is_calm => {}
                SimEvent::PauseWorkflow(definition, is_paused) => self.hold(definition, is_paused),
                SimEvent::StartLiveness => self.calm_down(),
                SimEvent::Tick if self.is_over() => {
                    self.checker.check_all(&self.store)?;
                    self.checker.news.check(&self.store)?;
                    return self.ledger.check_all(&self.checker);
                }
                SimEvent::Tick => {
                    self.checker.news.check(&self.store)?;
                    self.checker.leases.check(self.now)?;
                    self.make_room()?;
                    self.help();
                    if self.faults.has_tasks {
                        self.claim_all();
                    }
                    self.push(TICK, SimEvent::Tick);
                }
            }
        }
        Err("nothing is left to happen".into())
    }

    pub fn push(&mut self, after: Span, event: SimEvent) {
        self.push_at(self.now.after(after), event);
    }

    pub fn push_at(&mut self, at: Timestamp, event: SimEvent) {
        self.requests += u64::from(matches!(event, SimEvent::ClientRequest(_)));
        let tie_break = self.schedule.draw();
        self.heap.insert((at, tie_break), event);
    }

    pub fn note(&mut self, what: String) {
        self.trace.note(self.now, what);
    }

    fn calm_down(&mut self) {
        self.note("--- the weather is good from here on".into());
        self.is_calm = true;
        self.clear_up();
        if self.faults.has_tasks {
            self.open_types();
        }
        for (process, dispatch) in std::mem::take(&mut self.silent) {
            self.report(process, &dispatch, Span::from_millis(5), upstream::well(&dispatch));
        }
        self.push(TICK, SimEvent::Tick);
    }

    /// Whoever must make room for another has done so, where one process has had the time to see to it.
    pub fn make_room(&self) -> CheckResult {
        let since = Timestamp(self.now.0 - ROOM.0 as i64);
        let mut alive = self.processes.iter().filter(|p| p.is_alive());
        match (alive.next(), alive.next()) {
            (Some(only), None) if !only.is_outdated && only.up_since.max(self.store_down_until) < since => {
                self.checker.crowd.is_made_room_for(since)
            }
            _ => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        let is_quiet = self.checker.open().next().is_none() && self.unanswered_asks().is_empty();
        let is_quiet = is_quiet && self.checker.news.is_told();
        is_quiet && self.requests == 0 && self.hosts.iter().all(|h| h.is_up())
    }

    /// Requests that must be answered yet. A watcher need not be where its process is not the one that
    /// ends the run: engines do not tell each other.
    fn unanswered_asks(&self) -> Vec<&Request> {
        let is_alone =
            self.hosts.len() == 1 && self.faults.pause_mean.is_none() && self.faults.staggered_pause_mean.is_none();
        let is_owed = |request: &&Request| match request {
            Request::Watch { run } => is_alone && !self.checker.needs_upgrade(*run),
            _ => true,
        };
        self.ledger.open().filter(is_owed).collect()
    }

    /// Says which run does not end, and all that is stored of it.
    fn stuck(&self) -> String {
        let Some((id, definition, run)) = self.checker.open().next() else {
            let is_told = self.checker.news.is_told();
            return format!("never answered: {:?}; everybody is told: {is_told}", self.unanswered_asks());
        };
        let mut text = format!("{id} is {}, due at {:?}\n", run.status(), run.next_due());
        for (i, step) in definition.shape.steps.iter().enumerate() {
            let state = run.step(i as u32);
            text += &format!("  s{i} needs {:?} {:?} {:?}: {:?}\n", step.needs, step.kind, step.retry, state.phase);
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

/// Workflows, with what stands around them: limits, a later edition with another limit, somebody to tell.
fn define(shapes: Vec<TestWorkflow>, random: &mut Random, faults: &FaultPlan, is_extreme: bool) -> Vec<Definition> {
    let mut definitions: Vec<Definition> = Vec::new();
    for (n, mut shape) in shapes.into_iter().enumerate() {
        shape.gate = (faults.has_concurrency_limits && random.chance(800))
            .then(|| ConcurrencyLimit::draw(random))
            .filter(|_| !shape.is_plain);
        for _ in 0..if faults.has_notifications && !shape.is_plain { random.below(3) } else { 0 } {
            let name = format!("workflow {}", random.below(n as u64 + 1));
            let workflow = (!is_extreme && random.chance(300)).then_some(name);
            shape.tells.push(EndNotification { only_failures: random.chance(300), workflow });
        }
        definitions.push(edition(shape, WorkflowId(random.bytes()), format!("workflow {n}"), 1, random));
    }
    if faults.has_concurrency_limits && !is_extreme && random.chance(300) {
        let mut shape = TestWorkflow::draw(random, 6);
        shape.gate = Some(ConcurrencyLimit::draw(random));
        let Version { workflow, name, .. } = &*definitions[0].version;
        definitions.push(edition(shape, *workflow, name.clone(), 2, random));
    }
    if faults.has_notifications {
        let mut shape = TestWorkflow::teller(random);
        shape.gate = (faults.has_concurrency_limits && random.chance(300)).then(|| ConcurrencyLimit::draw(random));
        definitions.push(edition(shape, WorkflowId(random.bytes()), TELLER.into(), 1, random));
    }
    definitions
}

fn edition(shape: TestWorkflow, workflow: WorkflowId, name: String, number: u32, random: &mut Random) -> Definition {
    let shape = Rc::new(shape);
    let plan = Arc::new(shape.plan());
    let version = Version { org: OrgId::DEFAULT, workflow, name, number, hash: random.bytes(), plan };
    Definition { shape, version: Arc::new(version) }
}

/// Calls of the memory store are ready at once.
pub fn ready<T>(call: store::Call<'_, T>) -> store::Result<T> {
    let mut call = call;
    match call.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the memory store never waits"),
    }
}
