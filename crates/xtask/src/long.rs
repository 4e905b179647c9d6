//! The long test tier: the same tests with larger numbers, and on Postgres. It takes most of an hour on two cores; run
//! it before a release.

use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Name, cargo arguments, environment.
type Stage = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const STAGES: &[Stage] = &[
    ("the whole fast tier", &["test", "--workspace", "--quiet"], &[]),
    (
        "simulator, 20,000 seeds",
        &["test", "--release", "--package", "onward-testkit", "--test", "sim", "--", "--nocapture"],
        &[("ONWARD_SIM_SEEDS", "20000")],
    ),
    (
        "kill -9, 1,000 times",
        &["test", "--package", "onward", "--test", "it", "kill", "--", "--nocapture"],
        &[("ONWARD_KILLS", "1000")],
    ),
    (
        "end to end on Postgres",
        &["test", "--package", "onward", "--test", "it", "--quiet"],
        &[("ONWARD_TEST_STORE", "postgres")],
    ),
    (
        "end to end on Postgres, two nodes",
        &["test", "--package", "onward", "--test", "it", "--quiet"],
        &[("ONWARD_TEST_STORE", "postgres"), ("ONWARD_TEST_NODES", "2")],
    ),
    (
        "50 workers and 10,000 tasks, killed at random",
        &["test", "--package", "onward", "--test", "it", "chaos", "--", "--nocapture"],
        &[("ONWARD_TASKS", "10000"), ("ONWARD_WORKERS", "50"), ("ONWARD_KILLS", "60")],
    ),
    (
        "two nodes, a minute of faults without cluster events",
        &["test", "--package", "onward", "--test", "it", "any_trouble", "--", "--nocapture"],
        &[("ONWARD_LONG", "1")],
    ),
    (
        "joins of 64 on two nodes, 100 times",
        &["test", "--package", "onward-testkit", "--test", "nodes", "a_join_of"],
        &[("ONWARD_LONG", "1")],
    ),
];

pub fn run(root: &Path) -> Result<()> {
    let mut summary = Vec::new();
    let mut failed = false;
    for (name, arguments, environment) in STAGES {
        let started = Instant::now();
        println!("== {name}");
        let status =
            Command::new("cargo").args(*arguments).envs(environment.iter().copied()).current_dir(root).status()?;
        failed |= !status.success();
        let verdict = if status.success() { "passed" } else { "FAILED" };
        summary.push(format!("{verdict}  {name}  ({} s)", started.elapsed().as_secs()));
    }
    println!("\n{}", summary.join("\n"));
    if failed {
        bail!("the long tier failed");
    }
    Ok(())
}
