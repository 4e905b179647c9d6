//! Runs the simulator over many seeds, and proves that it finds planted bugs.
//!
//! `ONWARD_SIM_SEEDS=5000` runs more seeds. `ONWARD_SIM_SEED=42` runs one seed and prints its trace.
//! `ONWARD_SIM_BUG=39` looks for the planted bugs from this number on. A
//! failure prints the settings of a smaller simulation that also fails.

use kernel::planted_bugs::{self, Bug};
use std::collections::BTreeMap;
use testkit::sim::fault_plan::Fault;
use testkit::sim::shrink::{environment, shrink};
use testkit::sim::trace::Marks;
use testkit::sim::violation::{Violation, ViolationKind};
use testkit::sim::{self, Options, SimulationReport};

/// Enough to cover every kind of fault many times, few enough for a debug build in CI.
const SEEDS: u64 = 400;
/// A planted bug must be found within this many seeds, and one of those before nested steps within more.
const SEEDS_PER_BUG_MAX: u64 = 200;
const SEEDS_PER_EARLY_BUG_MAX: u64 = 500;
/// One seed in this many runs twice, to check that it is deterministic.
const RUN_TWICE_EVERY: u64 = 100;
/// Stop after this many failing seeds.
const FAILURES_MAX: usize = 10;

/// Coverage marks that a batch of seeds must hit, or it proves little.
const REQUIRED_MARKS: [&str; 131] = [
    "a batch of a fenced node was refused",
    "a callback was aimed at a deadline",
    "a cancel was aimed at a deadline",
    "a cancellation undid what was done",
    "a child could not be started",
    "a child got a version that was written after its parent began",
    "a child was closed after it was deleted",
    "a child was closed before it existed",
    "a client acted on a retrying step",
    "a client answered a step inside of a group",
    "a client skipped a retry delay",
    "a commit had a conflict",
    "a commit was refused",
    "a deleted workflow was created again",
    "a denial cancelled a run",
    "a denial undid what was done",
    "a failure undid what was done",
    "a fenced node joined again",
    "a fire time had its run already",
    "a fire time was skipped because of its run before",
    "a heartbeat came after its lease was lost",
    "a heartbeat extended a lease",
    "a host crashed",
    "a key queue was read past its first page",
    "a lease was lost",
    "a live process was replaced",
    "a missed fire time was caught up",
    "a missed fire time was skipped",
    "a node took over from another",
    "a node was suspended because of its clock",
    "a notification had already been sent",
    "a notification had to wait for its workflow",
    "a notification was about an end before the last one",
    "a payload was fetched",
    "a process crashed between commit and release",
    "a process drained",
    "a process refused to start because of its clock",
    "a queued run was admitted",
    "a read failed",
    "a repeated report was recognised",
    "a replaced process committed",
    "a replaced process crashed",
    "a report was sent again",
    "a report was too late",
    "a retry began at a step",
    "a retry began inside of a group",
    "a retry was refused because a step is irreversible",
    "a retry was refused by a concurrency limit",
    "a run of a deleted workflow was read",
    "a run of an earlier version was read",
    "a run waited for its start time",
    "a run waited for thirty callbacks",
    "a run was cancelled for a newer run",
    "a run was deleted",
    "a run was kept because of its inbox",
    "a run was paused while it undid what it did",
    "a run was paused",
    "a run was queued",
    "a run was recovered",
    "a run was refused by its concurrency limit",
    "a run was resumed",
    "a run was retried after its end",
    "a schedule started a run",
    "a snapshot was read",
    "a spurious conflict was injected",
    "a start was refused because its workflow was deleted",
    "a step needed a thousand others",
    "a step started a run and did not wait",
    "a step started a run",
    "a task hit its queue timeout",
    "a task hit its total timeout",
    "a task was quarantined",
    "a task was snoozed",
    "a timeout undid what was done",
    "a wall clock was set back",
    "a watcher was told that its run ended",
    "a worker died",
    "a worker hung until its lease ended",
    "a worker was told that its task was cancelled",
    "a workflow had a single step",
    "a workflow was deleted",
    "a workflow was edited",
    "a workflow was paused",
    "an attempt that was called off did nothing",
    "an attempt that was called off succeeded",
    "an attempt that was called off was given up",
    "an attempt was handed back",
    "an attempt was held back",
    "an engine clock jumped forward",
    "an engine clock slowed down",
    "an event of a later release",
    "an idempotency key was taken",
    "an input was found in the inbox",
    "an input was written to the inbox",
    "an operator decided about an undo",
    "an operator gave the result of a step",
    "an operator let a step go on at once",
    "an operator skipped a step",
    "an undelivered task was handed back",
    "an unknown commit was applied",
    "an unknown commit was not applied",
    "approval.approved",
    "approval.denied",
    "approval.requested",
    "child.ended",
    "child.started",
    "every step was skipped",
    "fire times were given up",
    "hosts paused one by one",
    "late_result",
    "ready tasks were found at start-up",
    "run.cancelled",
    "run.failed",
    "run.timeout",
    "several fire times were due at once",
    "signal.consumed",
    "signal.received",
    "step.heartbeat",
    "step.leased",
    "step.opened",
    "step.received",
    "step.retrying",
    "step.scheduled",
    "step.skipped",
    "step.timeout",
    "the settings of a type were changed",
    "timer.set",
    "two hundred steps formed a chain",
    "two runs were started together",
    "wait.closed",
    "wait.opened",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect(variable))
}

/// The default options, with changes from the environment.
fn options() -> Options {
    let usual = Options::default();
    let names = std::env::var("ONWARD_SIM_WITHOUT").unwrap_or_default();
    let without = names.split(',').filter(|name| !name.is_empty());
    Options {
        runs_max: number("ONWARD_SIM_RUNS").unwrap_or(usual.runs_max),
        steps_max: number("ONWARD_SIM_STEPS").unwrap_or(usual.steps_max),
        hosts_max: number("ONWARD_SIM_HOSTS").unwrap_or(usual.hosts_max),
        without: without.map(|name| Fault::parse(name).expect("the name of a `Fault`")).collect(),
        ..usual
    }
}

fn assert_passes(seed: u64) -> SimulationReport {
    let report = sim::run(seed, &options());
    assert!(report.violation.is_none(), "{}", report.dump());
    report
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    events: u64,
    records: u64,
    marks: Marks,
    violations: BTreeMap<ViolationKind, u64>,
    failed: Vec<u64>,
}

impl Totals {
    fn add(&mut self, report: SimulationReport) {
        self.seeds += 1;
        self.events += report.events;
        self.records += report.commits;
        for (what, count) in report.marks {
            *self.marks.entry(what).or_default() += count;
        }
        if let Some(Violation { kind, message }) = report.violation {
            println!("seed {}: {kind:?}: {}", report.seed, message.lines().next().unwrap_or_default());
            *self.violations.entry(kind).or_default() += 1;
            self.failed.push(report.seed);
        }
    }

    fn summary(&self, seconds: f64) -> String {
        let mark = |what| self.marks.get(what).copied().unwrap_or_default();
        let count = |kind| self.violations.get(&kind).copied().unwrap_or_default();
        let unknowns = mark("an unknown commit was applied") + mark("an unknown commit was not applied");
        format!(
            "{} seeds, {} events, {} records, {} crashes, {} zombies, {unknowns} unknowns, lost {}, duplicated {}, \
             stuck {}, early {}, other {}, {:.0} seeds/s",
            self.seeds,
            self.events,
            self.records,
            mark("a host crashed"),
            mark("a replaced process committed"),
            count(ViolationKind::Lost),
            count(ViolationKind::Duplicated),
            count(ViolationKind::Stuck),
            count(ViolationKind::Early),
            count(ViolationKind::Other),
            self.seeds as f64 / seconds
        )
    }
}

#[test]
fn every_story_ends_well() {
    if let Some(seed) = number("ONWARD_SIM_SEED") {
        let report = sim::replay(seed, &options());
        assert!(report.violation.is_none(), "seed {seed}");
        return;
    }
    let seeds = number("ONWARD_SIM_SEEDS").unwrap_or(SEEDS);
    let started = std::time::Instant::now();
    let mut totals = Totals::default();
    for seed in 0..seeds {
        let report = sim::run(seed, &options());
        if seed % RUN_TWICE_EVERY == 0 {
            assert_eq!(report.hash, sim::run(seed, &options()).hash, "seed {seed} is not deterministic");
        }
        totals.add(report);
        if totals.failed.len() >= FAILURES_MAX {
            break;
        }
    }
    println!("{}", totals.summary(started.elapsed().as_secs_f64()));
    for (what, count) in &totals.marks {
        println!("{count:>8} {what}");
    }
    if let Some(seed) = totals.failed.first() {
        panic!("seeds {:?} fail\n{}", totals.failed, shrunk_report(*seed));
    }
    let unmet: Vec<&str> = REQUIRED_MARKS.iter().copied().filter(|what| !totals.marks.contains_key(what)).collect();
    assert!(seeds < SEEDS || unmet.is_empty(), "coverage marks never hit: {unmet:?}");
}

/// The smallest simulation found for a failing seed, and the command that reproduces it.
fn shrunk_report(seed: u64) -> String {
    let Some((smaller, report)) = shrink(seed, &options()) else { return format!("seed {seed} does not fail again") };
    let command = "cargo test -p onward-testkit --test sim every_story -- --nocapture";
    format!("{}\nto reproduce: {} {command}", report.dump(), environment(seed, &smaller))
}

#[test]
fn every_planted_bug_is_found() {
    let first = number("ONWARD_SIM_BUG").unwrap_or_default();
    for bug in Bug::ALL.iter().filter(|bug| **bug as u64 >= first) {
        planted_bugs::arm(Some(*bug));
        let is_early = (*bug as u32) < Bug::EarlySignalLost as u32;
        let most = if is_early { SEEDS_PER_EARLY_BUG_MAX } else { SEEDS_PER_BUG_MAX };
        let found = (0..most).map(|seed| sim::run(seed, &Options::default())).find(|r| r.violation.is_some());
        planted_bugs::arm(None);
        let report = found.unwrap_or_else(|| panic!("{bug} was not found within {most} seeds"));
        let what = report.violation.as_ref().map(Violation::to_string).unwrap_or_default();
        println!("{bug}: found after {} seeds: {}", report.seed + 1, what.lines().next().unwrap_or_default());
        assert_passes(report.seed);
    }
}

#[test]
fn a_failing_seed_is_shrunk() {
    planted_bugs::arm(Some(Bug::CascadeIgnoresIf));
    let seed = (0..SEEDS_PER_BUG_MAX).find(|seed| sim::run(*seed, &Options::default()).violation.is_some());
    let (smaller, report) = seed.and_then(|seed| shrink(seed, &Options::default())).expect("the planted bug is found");
    planted_bugs::arm(None);
    println!("{}: {}", environment(report.seed, &smaller), report.violation.expect("the planted bug is found"));
    assert!(
        smaller.without.len() >= Fault::ALL.len() - 4,
        "this bug needs no fault, but some were kept; left out: {:?}",
        smaller.without
    );
    assert!(smaller.runs_max <= 8 && smaller.hosts_max == 1);
}
