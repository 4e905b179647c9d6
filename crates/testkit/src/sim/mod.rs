//! Simulates a whole cluster in one thread, on a virtual clock, from one seed.
//!
//! ```text
//!   seed ─▶ random streams ─▶ workflows, clients, faults     one heap of (time, tie-break) ─▶ next event
//!                                                               │
//!   clients ──request──▶ processes (a real Driver each) ──commit──▶ one MemoryStore
//!      ▲  replies            │ dispatch ▲ results                     │ after every commit
//!      └─ client log         └▶ upstreams                             └▶ checker, models
//! ```
//!
//! The kernel, the mailbox, its driver and the store are the real ones. The simulator replaces everything around them:
//! threads, executors, workers, clients, crashes, clocks that disagree, and a store that fails on
//! purpose. It does not simulate HTTP or SQLite.
//!
//! A simulation has two phases. In the safety phase anything may fail, and the checker verifies that no
//! invariant breaks. In the liveness phase faults have stopped, and every run must end. Invariant: every
//! decision is drawn from the seed, so the seed alone reproduces a failure.
//!
//! Read in this order: [`world`] (virtual time and the event heap), [`process`] (what drives a mailbox),
//! [`shared_store`] (several nodes), [`inbox`], [`fault_injection`] (crashes and pauses), [`clock`],
//! [`faulty_store`], [`client`], [`operators`], [`catalog`], [`schedules`], [`workers`]; then what is checked:
//! [`checker`], [`run_model`], [`task_model`], [`wait_model`], [`group_model`], [`undo_model`], [`override_model`],
//! [`repair_model`], [`family_model`], [`oracle`], [`concurrency_model`], [`lease_model`], [`idempotency_model`],
//! [`notification_model`], [`client_log`], [`verification`]; then [`shrink`], which reduces a failing simulation.

pub mod catalog;
pub mod checker;
pub mod client;
pub mod client_log;
pub mod clock;
pub mod concurrency_model;
pub mod condition;
pub mod family_model;
pub mod fault_injection;
pub mod fault_plan;
pub mod faulty_store;
pub mod group_model;
pub mod idempotency_model;
pub mod inbox;
pub mod lease_model;
pub mod notification_model;
pub mod operators;
pub mod oracle;
pub mod override_model;
pub mod process;
pub mod random;
pub mod repair_model;
pub mod run_model;
pub mod schedules;
pub mod shared_store;
pub mod shrink;
pub mod task_model;
pub mod trace;
pub mod trigger;
pub mod undo_generator;
pub mod undo_model;
pub mod upstream;
pub mod verification;
pub mod violation;
pub mod wait_model;
pub mod workers;
pub mod workflow_generator;
pub mod world;

use fault_plan::Fault;
use trace::Marks;
use violation::Violation;
use workflow_generator::STEPS_MAX;
use world::World;

/// The size of a simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most runs that clients start. Repeated starts with the same idempotency key do not count.
    pub runs_max: u64,
    /// The most steps of a workflow. Below [`STEPS_MAX`] there are no extreme workflows.
    pub steps_max: u64,
    pub hosts_max: u64,
    /// Kinds of faults to leave out.
    pub without: Vec<Fault>,
    /// A simulation with more events than this counts as stuck.
    pub events_max: u64,
    /// Print each trace line as it is written.
    pub is_printing: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            runs_max: 24,
            steps_max: STEPS_MAX,
            hosts_max: 5,
            without: Vec::new(),
            events_max: 200_000,
            is_printing: false,
        }
    }
}

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationReport {
    pub seed: u64,
    /// Hash over all trace lines. Equal seeds give equal hashes.
    pub hash: u64,
    pub events: u64,
    pub commits: u64,
    /// How often each coverage mark was hit.
    pub marks: Marks,
    /// The first broken invariant, if there is one.
    pub violation: Option<Violation>,
    /// The last lines of the trace.
    pub trace_lines: Vec<String>,
}

impl SimulationReport {
    /// The trace and the violation as text.
    pub fn dump(&self) -> String {
        let what = self.violation.as_ref().map_or("no violation".to_owned(), Violation::to_string);
        format!("{}\nseed {}: {what}", self.trace_lines.join("\n"), self.seed)
    }
}

/// Runs the simulation of one seed.
pub fn run(seed: u64, options: &Options) -> SimulationReport {
    let mut world = World::new(seed, options);
    let violation = world.run().err();
    let (events, commits) = (world.events, world.checker.commits);
    let mut marks = std::mem::take(&mut world.trace.marks);
    marks.append(&mut world.checker.events);
    SimulationReport {
        seed,
        hash: world.trace.hash(),
        events,
        commits,
        marks,
        violation,
        trace_lines: world.trace.into_lines(),
    }
}

/// Like [`run`], and prints every trace line.
pub fn replay(seed: u64, options: &Options) -> SimulationReport {
    let report = run(seed, &Options { is_printing: true, ..options.clone() });
    println!("seed {seed}: {}", report.violation.as_ref().map_or("no violation".into(), Violation::to_string));
    report
}
