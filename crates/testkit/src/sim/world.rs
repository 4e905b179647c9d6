//! Time, and everything that is going to happen: one heap, ordered by virtual time and then by a drawn
//! number, because nothing may rely on the order of simultaneous things.

use super::Options;
use super::checker::{Checker, Definition};
use super::client::{self, Errand};
use super::client_log::{Ask, Ledger};
use super::fault_injection::{Host, Weather};
use super::fault_plan::Faults;
use super::process::{Happening, Process};
use super::random::Random;
use super::trace::Trace;
use super::upstream;
use super::violation::{Failure, Harm, Judgement};
use super::workers::{Crew, Deed};
use super::workflow_generator::{Extreme, Limit, STEPS_MAX, Shape, Tell};
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

pub enum Event {
    Process(usize, Happening),
    Weather(Weather),
    Client(Errand),
    Crew(Deed),
    /// Somebody pauses (true) or resumes the workflow of a definition.
    Hold(usize, bool),
    /// The first phase is over.
    Calm,
    /// The second phase, again and again.
    Tick,
}

pub struct World {
    pub now: Timestamp,
    heap: BTreeMap<(Timestamp, u64), Event>,
    /// How many of those clients are going to do.
    errands: u64,
    pub happenings: u64,
    happenings_max: u64,
    pub trace: Trace,

    /// Streams: what the outside does, what fails, and how long things take.
    pub workload: Random,
    pub chance: Random,
    pub schedule: Random,
    /// Limits, pauses and notices.
    pub around: Random,
    pub crew: Crew,

    pub faults: Faults,
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
    pub ledger: Ledger,
    pub checker: Checker,
    calm_at: Timestamp,
}

impl World {
    pub fn new(seed: u64, options: &Options) -> World {
        let mut topology = Random::stream(seed, "topology");
        let mut workload = Random::stream(seed, "workload");
        let mut chance = Random::stream(seed, "faults");
        let mut workers = Random::stream(seed, "workers");
        let faults = Faults::draw(&mut chance, &mut workers, &options.without);
        let mut around = Random::stream(seed, "around");
        // Places are kept by the one process that has the store, and so are pauses of workflows.
        let hosts_max = if faults.has_gates { 1 } else { options.hosts_max };
        let hosts = topology.pick(&[1, 1, 1, 2, 2, 3, 4, 5]).min(hosts_max);
        let calm_at = START.after(topology.millis(20_000, 240_000));
        let extreme = topology.chance(EXTREME).then(|| topology.pick(&Extreme::ALL));
        let count = if extreme.is_some() { 1 } else { workload.between(1, 3) };
        let shape = |random: &mut Random| match extreme.filter(|_| options.steps_max >= STEPS_MAX) {
            Some(extreme) => Shape::extreme(random, extreme),
            None => Shape::draw(random, options.steps_max),
        };
        let shapes: Vec<Shape> = (0..count).map(|_| shape(&mut workload)).collect();
        let mut shapes = shapes;
        if faults.has_tasks {
            shapes.iter_mut().for_each(|shape| shape.outsource(&mut workers));
            let plain = if extreme.is_some() { 0 } else { workers.between(0, 3) };
            shapes.extend((0..plain).map(|_| Shape::plain(&mut workers)));
        }
        let crew = Crew::draw(workers, faults.is_cramped);
        let definitions = define(shapes, &mut around, &faults, extreme.is_some());
        let runs_max = if extreme.is_some() { options.runs_max.min(2) } else { options.runs_max };
        let checker = Checker::new(faults.has_one_clock());
        let mut world = World {
            now: START,
            heap: BTreeMap::new(),
            errands: 0,
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
            ledger: Ledger::default(),
            checker,
            calm_at,
        };
        if let Some(extreme) = extreme {
            world.trace.mark(extreme.mark(), true);
        }
        world.forecast(hosts as usize);
        for (at, errand) in client::draw(&mut world, runs_max, calm_at) {
            world.push_at(at, Event::Client(errand));
        }
        if world.faults.has_holds && hosts == 1 {
            for (at, definition, is_paused) in client::holds(&mut world, calm_at) {
                world.push_at(at, Event::Hold(definition, is_paused));
            }
        }
        if world.faults.has_tasks {
            world.muster(calm_at);
        }
        world.push_at(calm_at, Event::Calm);
        world
    }

    /// Lives until every run is over, or something is wrong.
    pub fn live(&mut self) -> Judgement {
        while let Some(((at, _), event)) = self.heap.pop_first() {
            self.now = at;
            self.happenings += 1;
            if self.happenings > self.happenings_max || at > self.calm_at.after(PATIENCE) {
                return Err(Failure { harm: Harm::Stuck, what: self.stuck() });
            }
            match event {
                Event::Process(process, happening) => self.happen(process, happening)?,
                Event::Weather(weather) => self.change(weather)?,
                Event::Client(errand) => {
                    self.errands -= 1;
                    self.send(errand);
                }
                Event::Crew(deed) => self.work(deed),
                Event::Hold(_, true) if self.is_calm => {}
                Event::Hold(definition, is_paused) => self.hold(definition, is_paused),
                Event::Calm => self.calm_down(),
                Event::Tick if self.is_over() => {
                    self.checker.check_all(&self.store)?;
                    self.checker.news.check(&self.store)?;
                    return self.ledger.check_all(&self.checker);
                }
                Event::Tick => {
                    self.checker.news.check(&self.store)?;
                    self.checker.leases.check(self.now)?;
                    self.make_room()?;
                    self.help();
                    if self.faults.has_tasks {
                        self.claim_all();
                    }
                    self.push(TICK, Event::Tick);
                }
            }
        }
        Err("nothing is left to happen".into())
    }

    pub fn push(&mut self, after: Span, event: Event) {
        self.push_at(self.now.after(after), event);
    }

    pub fn push_at(&mut self, at: Timestamp, event: Event) {
        self.errands += u64::from(matches!(event, Event::Client(_)));
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
        self.push(TICK, Event::Tick);
    }

    /// Whoever must make room for another has done so, where one process has had the time to see to it.
    pub fn make_room(&self) -> Judgement {
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
        is_quiet && self.errands == 0 && self.hosts.iter().all(|h| h.is_up())
    }

    /// Requests that must be answered yet. A watcher need not be where its process is not the one that
    /// ends the run: engines do not tell each other.
    fn unanswered_asks(&self) -> Vec<&Ask> {
        let is_alone = self.hosts.len() == 1 && self.faults.pause_mean.is_none() && self.faults.swizzle_mean.is_none();
        let is_owed = |ask: &&Ask| match ask {
            Ask::Watch { run } => is_alone && !self.checker.needs_upgrade(*run),
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
fn define(shapes: Vec<Shape>, random: &mut Random, faults: &Faults, is_extreme: bool) -> Vec<Definition> {
    let mut definitions: Vec<Definition> = Vec::new();
    for (n, mut shape) in shapes.into_iter().enumerate() {
        shape.gate = (faults.has_gates && random.chance(800)).then(|| Limit::draw(random)).filter(|_| !shape.is_plain);
        for _ in 0..if faults.has_notices && !shape.is_plain { random.below(3) } else { 0 } {
            let name = format!("workflow {}", random.below(n as u64 + 1));
            let workflow = (!is_extreme && random.chance(300)).then_some(name);
            shape.tells.push(Tell { only_failures: random.chance(300), workflow });
        }
        definitions.push(edition(shape, WorkflowId(random.bytes()), format!("workflow {n}"), 1, random));
    }
    if faults.has_gates && !is_extreme && random.chance(300) {
        let mut shape = Shape::draw(random, 6);
        shape.gate = Some(Limit::draw(random));
        let Version { workflow, name, .. } = &*definitions[0].version;
        definitions.push(edition(shape, *workflow, name.clone(), 2, random));
    }
    if faults.has_notices {
        let mut shape = Shape::teller(random);
        shape.gate = (faults.has_gates && random.chance(300)).then(|| Limit::draw(random));
        definitions.push(edition(shape, WorkflowId(random.bytes()), TELLER.into(), 1, random));
    }
    definitions
}

fn edition(shape: Shape, workflow: WorkflowId, name: String, number: u32, random: &mut Random) -> Definition {
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
