//! The simulator over many seeds, and the proof that it bites.
//!
//! `ONWARD_SIM_SEEDS=5000` lives through more stories, `ONWARD_SIM_SEED=42` tells one of them; a failure
//! prints the settings of a smaller story that fails too.

use kernel::planted::{self, Bug};
use std::collections::BTreeMap;
use testkit::sim::fault_plan::Fault;
use testkit::sim::shrink::{environment, shrink};
use testkit::sim::trace::Marks;
use testkit::sim::violation::{Violation, ViolationKind};
use testkit::sim::{self, Options, Report};

/// Enough to meet every kind of fault many times, few enough for a debug build in CI.
const SEEDS: u64 = 600;
/// A planted bug that hides longer than this is not found.
const SEEDS_PER_BUG_MAX: u64 = 500;
/// One seed in so many is lived through twice.
const RUN_TWICE_EVERY: u64 = 100;
/// More failures than this need not be collected.
const FAILURES_MAX: usize = 10;

/// Situations that a batch must meet, or it proves little.
const REQUIRED_MARKS: [&str; 73] = [
    "a callback was aimed at a deadline",
    "a cancel was aimed at a deadline",
    "a clock kept a process from starting",
    "a clock leapt forward",
    "a clock was set back",
    "a commit did not land and nobody learned",
    "a commit landed and nobody learned",
    "a commit met a conflict",
    "a commit was refused",
    "a conflict came from nowhere",
    "a crash came between commit and release",
    "a host crashed",
    "a key was taken",
    "a lane was read on",
    "a lease was lost",
    "a payload was fetched",
    "a process drained",
    "a process was replaced while it lives",
    "a read failed",
    "a replaced process committed",
    "a replaced process crashed",
    "a report was recognised",
    "a report was said again",
    "a retry was not waited for",
    "a rule was changed",
    "a run found no room and was refused",
    "a run made room for a newer one",
    "a run waited for its time",
    "a run waited for its turn",
    "a run was paused",
    "a run was recovered",
    "a run was resumed",
    "a snapshot was read",
    "a task took too long altogether",
    "a task was handed back",
    "a task was put aside",
    "a task was snoozed",
    "a thousand steps met in one",
    "a watcher was told the end",
    "a worker died",
    "a worker hung until its lease had ended",
    "a worker said it was alive",
    "a worker that had lost its lease said it was alive",
    "a worker was told that it is too late",
    "a worker was told that nobody wants it",
    "a workflow was paused",
    "an attempt was held back",
    "an event of a later release",
    "everything was skipped",
    "hosts stopped one by one",
    "late_result",
    "nobody claimed a task in time",
    "run.cancelled",
    "run.failed",
    "run.timeout",
    "somebody had been told already",
    "somebody meddled with a retry",
    "step.heartbeat",
    "step.leased",
    "step.received",
    "step.retrying",
    "step.scheduled",
    "step.skipped",
    "step.timeout",
    "tasks waited while nobody was there",
    "the turn of a run came",
    "there was a single step",
    "thirty callbacks were waited for",
    "timer.set",
    "two hundred steps stood in a row",
    "two runs were started together",
    "wait.closed",
    "wait.opened",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect(variable))
}

/// The usual story, or what the environment makes of it.
fn options() -> Options {
    let usual = Options::default();
    let names = std::env::var("ONWARD_SIM_WITHOUT").unwrap_or_default();
    let without = names.split(',').filter(|name| !name.is_empty());
    Options {
        runs_max: number("ONWARD_SIM_RUNS").unwrap_or(usual.runs_max),
        steps_max: number("ONWARD_SIM_STEPS").unwrap_or(usual.steps_max),
        hosts_max: number("ONWARD_SIM_HOSTS").unwrap_or(usual.hosts_max),
        without: without.map(|name| Fault::parse(name).expect("a kind of fault")).collect(),
        ..usual
    }
}

fn assert_passes(seed: u64) -> Report {
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
    fn add(&mut self, report: Report) {
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
        let unknowns = mark("a commit landed and nobody learned") + mark("a commit did not land and nobody learned");
        format!(
            "{} seeds, {} events, {} records, {} crashes, {} zombies, {unknowns} unknowns, lost {}, doubled {}, \
             stuck {}, early {}, wrong {}, {:.0} seeds/s",
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
            assert_eq!(report.hash, sim::run(seed, &options()).hash, "seed {seed} tells two stories");
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
    assert!(seeds < SEEDS || unmet.is_empty(), "never met: {unmet:?}");
}

/// The smallest story like that of a failing seed, and how to hear it again.
fn shrunk_report(seed: u64) -> String {
    let Some((smaller, report)) = shrink(seed, &options()) else { return format!("seed {seed} does not fail again") };
    let command = "cargo test -p onward-testkit --test sim every_story -- --nocapture";
    format!("{}\nto hear it again: {} {command}", report.dump(), environment(seed, &smaller))
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        planted::arm(Some(*bug));
        let found =
            (0..SEEDS_PER_BUG_MAX).map(|seed| sim::run(seed, &Options::default())).find(|r| r.violation.is_some());
        planted::arm(None);
        let report = found.unwrap_or_else(|| panic!("{bug} hides from {SEEDS_PER_BUG_MAX} seeds"));
        let what = report.violation.as_ref().map(Violation::to_string).unwrap_or_default();
        println!("{bug}: found after {} seeds: {}", report.seed + 1, what.lines().next().unwrap_or_default());
        assert_passes(report.seed);
    }
}

#[test]
fn a_failing_seed_is_shrunk() {
    planted::arm(Some(Bug::CascadeIgnoresIf));
    let seed = (0..SEEDS_PER_BUG_MAX).find(|seed| sim::run(*seed, &Options::default()).violation.is_some());
    let (smaller, report) = seed.and_then(|seed| shrink(seed, &Options::default())).expect("it fails");
    planted::arm(None);
    println!("{}: {}", environment(report.seed, &smaller), report.violation.expect("it fails"));
    assert!(smaller.without.len() >= Fault::ALL.len() - 4, "no fault is needed for this one: {:?}", smaller.without);
    assert!(smaller.runs_max <= 8 && smaller.hosts_max == 1);
}
