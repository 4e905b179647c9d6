//! The simulator over many seeds, and the proof that it bites.
//!
//! `ONWARD_SIM_SEEDS=5000` lives through more stories, `ONWARD_SIM_SEED=42` tells one of them.

use kernel::planted::{self, Bug};
use testkit::sim::trace::Marks;
use testkit::sim::{self, Options, Report};

/// Enough to meet every kind of fault many times, few enough for a debug build in CI.
const SEEDS: u64 = 600;
/// A planted bug that hides longer than this is not found.
const HUNT_MAX: u64 = 300;

/// Situations that a batch must meet, or it proves little.
const MARKS: [&str; 24] = [
    "a commit did not land and nobody learned",
    "a commit landed and nobody learned",
    "a commit met a conflict",
    "a commit was refused",
    "a crash came between commit and release",
    "a key was taken",
    "a payload was fetched",
    "a process was replaced while it lives",
    "a read failed",
    "a replaced process committed",
    "a replaced process crashed",
    "a run was recovered",
    "a snapshot was read",
    "a watcher was told the end",
    "late_result",
    "run.cancelled",
    "run.failed",
    "run.timeout",
    "step.received",
    "step.retrying",
    "step.skipped",
    "step.timeout",
    "timer.set",
    "wait.closed",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect(variable))
}

fn pass(seed: u64) -> Report {
    let report = sim::run(seed, &Options::default());
    assert!(report.failure.is_none(), "{}", report.dump());
    report
}

#[test]
fn every_story_ends_well() {
    if let Some(seed) = number("ONWARD_SIM_SEED") {
        let report = sim::replay(seed, &Options::default());
        assert!(report.failure.is_none(), "seed {seed}");
        return;
    }
    let seeds = number("ONWARD_SIM_SEEDS").unwrap_or(SEEDS);
    let started = std::time::Instant::now();
    let (mut happenings, mut commits, mut marks) = (0, 0, Marks::new());
    for seed in 0..seeds {
        let report = pass(seed);
        happenings += report.happenings;
        commits += report.commits;
        for (what, count) in report.marks {
            *marks.entry(what).or_default() += count;
        }
    }
    let speed = seeds as f64 / started.elapsed().as_secs_f64();
    println!("{seeds} seeds, {happenings} happenings, {commits} records checked, {speed:.0} seeds a second");
    for (what, count) in &marks {
        println!("{count:>8} {what}");
    }
    let unmet: Vec<&str> = MARKS.iter().copied().filter(|what| !marks.contains_key(what)).collect();
    assert!(seeds < SEEDS || unmet.is_empty(), "never met: {unmet:?}");
}

#[test]
fn equal_seeds_tell_equal_stories() {
    for seed in 1_000..1_010 {
        assert_eq!(pass(seed).hash, pass(seed).hash, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        planted::arm(Some(*bug));
        let found = (0..HUNT_MAX).map(|seed| sim::run(seed, &Options::default())).find(|r| r.failure.is_some());
        planted::arm(None);
        let report = found.unwrap_or_else(|| panic!("{bug} hides from {HUNT_MAX} seeds"));
        let what = report.failure.as_deref().and_then(|f| f.lines().next()).unwrap_or_default();
        println!("{bug}: found after {} seeds: {what}", report.seed + 1);
        pass(report.seed);
    }
}
