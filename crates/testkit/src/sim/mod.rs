//! A whole cluster in one thread, on a virtual clock, driven by one number.
//!
//! ```text
//!   seed ─▶ streams ─▶ shapes, clients, faults      one heap of (time, tie-break) ─▶ next thing
//!                                                          │
//!   clients ──ask──▶ processes (a real Mailbox each) ──commit──▶ one MemoryStore
//!      ▲  replies        │ dispatch ▲ results                      │ after every commit
//!      └─ ledger         └▶ upstreams                              └▶ checker, model
//! ```
//!
//! The kernel, the mailbox and the store are the real ones. What is played is everything around them:
//! the loop that drives a mailbox, executors, clients, crashes, clocks that disagree, and a store that
//! fails on purpose. Not played: HTTP, SQLite.
//!
//! A story has two phases. In the first anything may fail, and what must never happen is checked. In
//! the second nothing fails any more, and every run must come to its end. The rule that keeps it right:
//! every decision is drawn from the seed, so a failure is a number.
//!
//! Read in this order: [`world`] (time and the heap), [`process`] (the loop around a mailbox),
//! [`fault_injection`] (crashes), [`clock`], [`faulty_store`], [`client`], [`notification_model`] (the outbox), [`workers`] (workers); then what is checked:
//! [`checker`], [`run_model`], [`oracle`], [`concurrency_model`] (limits on runs),
//! [`lease_model`], [`client_log`]; then [`shrink`], which makes a failing
//! story small.

pub mod checker;
pub mod client;
pub mod client_log;
pub mod clock;
pub mod concurrency_model;
pub mod condition;
pub mod fault_injection;
pub mod fault_plan;
pub mod faulty_store;
pub mod lease_model;
pub mod notification_model;
pub mod oracle;
pub mod process;
pub mod random;
pub mod run_model;
pub mod shrink;
pub mod trace;
pub mod trigger;
pub mod upstream;
pub mod violation;
pub mod workers;
pub mod workflow_generator;
pub mod world;

use fault_plan::Fault;
use trace::Marks;
use violation::Violation;
use workflow_generator::STEPS_MAX;
use world::World;

/// How large a story is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most runs that clients start (retries of a start with its key not counted).
    pub runs_max: u64,
    /// Most steps of a run; with fewer than the usual number there are no extreme shapes.
    pub steps_max: u64,
    pub hosts_max: u64,
    /// Kinds of faults that stay out.
    pub without: Vec<Fault>,
    /// A story that takes more happenings than this is not going to end.
    pub events_max: u64,
    /// Print the story while it happens.
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

/// How a story went.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// Of every line of the story: equal seeds have equal hashes.
    pub hash: u64,
    pub events: u64,
    pub commits: u64,
    /// The situations that were met.
    pub marks: Marks,
    /// What went wrong, if anything did.
    pub violation: Option<Violation>,
    /// The last lines of the story.
    pub trace_lines: Vec<String>,
}

impl Report {
    /// A failure as people want to read it.
    pub fn dump(&self) -> String {
        let what = self.violation.as_ref().map_or("nothing went wrong".to_owned(), Violation::to_string);
        format!("{}\nseed {}: {what}", self.trace_lines.join("\n"), self.seed)
    }
}

/// Lives through the story of one seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut world = World::new(seed, options);
    let violation = world.run().err();
    let (events, commits) = (world.events, world.checker.commits);
    let mut marks = std::mem::take(&mut world.trace.marks);
    marks.append(&mut world.checker.events);
    Report { seed, hash: world.trace.hash(), events, commits, marks, violation, trace_lines: world.trace.into_lines() }
}

/// The same, telling everything as it happens.
pub fn replay(seed: u64, options: &Options) -> Report {
    let report = run(seed, &Options { is_printing: true, ..options.clone() });
    println!("seed {seed}: {}", report.violation.as_ref().map_or("nothing went wrong".into(), Violation::to_string));
    report
}
