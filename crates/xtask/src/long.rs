//! The long test tier: the same tests with larger numbers, and on Postgres. It takes more than an hour on two cores;
//! run it before a release.

use anyhow::{Result, bail};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

type Environment = &'static [(&'static str, &'static str)];
/// Name, cargo arguments, environment.
type Stage = (&'static str, &'static [&'static str], Environment);

const STAGES: &[Stage] = &[
    ("the whole fast tier", &["test", "--workspace", "--quiet"], &[]),
    (
        "simulator, 20,000 seeds",
        &["test", "--release", "--package", "onward-testkit", "--test", "sim", "--", "--nocapture"],
        &[("ONWARD_SIM_SEEDS", "20000")],
    ),
    (
        "100,000 graphs",
        &["test", "--release", "--package", "onward-testkit", "--test", "graphs", "--", "--nocapture"],
        &[("ONWARD_GRAPHS", "100000")],
    ),
    (
        "1,000,000 mutated inputs for each parser",
        &["test", "--release", "--package", "onward-testkit", "--test", "fuzz", "--", "--nocapture"],
        &[("ONWARD_FUZZ", "1000000")],
    ),
    (
        "20,000 schedules against a search of every minute",
        &["test", "--release", "--package", "onward-lang", "--test", "it", "p12", "--", "--nocapture"],
        &[("ONWARD_CRONS", "20000")],
    ),
    (
        "stores, 500 sequences of 100 operations",
        &["test", "--package", "onward-store", "--test", "it", "random_sequences"],
        &[("ONWARD_SEQUENCES", "500"), ("ONWARD_OPERATIONS", "100")],
    ),
    (
        "kill -9, 1,000 times",
        &["test", "--package", "onward", "--test", "it", "kill", "--", "--nocapture"],
        &[("ONWARD_KILLS", "1000")],
    ),
    (
        "kill -9 on Postgres, 300 times",
        &["test", "--package", "onward", "--test", "it", "kill", "--", "--nocapture"],
        &[("ONWARD_KILLS", "300"), ("ONWARD_TEST_STORE", "postgres")],
    ),
    (
        "power cuts, 300 times",
        &["test", "--package", "onward", "--test", "it", "a_power_cut", "--", "--nocapture"],
        &[("ONWARD_POWER_CUTS", "300")],
    ),
    (
        "10,000 sequences of requests against a model",
        &["test", "--package", "onward", "--test", "it", "api_model", "--", "--nocapture"],
        &[("ONWARD_API_CASES", "10000")],
    ),
    (
        "more runs than the server can hold",
        &["test", "--package", "onward", "--test", "it", "overload", "--", "--nocapture"],
        &[("ONWARD_LONG", "1")],
    ),
    (
        "10,000 overdue timers after a crash",
        &["test", "--release", "--package", "onward", "--test", "it", "p4_p9"],
        &[("ONWARD_LONG", "1")],
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
        &["test", "--package", "onward", "--test", "it", "any_faults", "--", "--nocapture"],
        &[("ONWARD_LONG", "1")],
    ),
    (
        "joins of 64 on two nodes, 100 times",
        &["test", "--package", "onward-testkit", "--test", "nodes", "a_join_of"],
        &[("ONWARD_LONG", "1")],
    ),
];

/// The newest commit whose plans, records and snapshots are all of format 1.
const PREVIOUS: &str = "bcadb21fb6479b7518587674a1b6636b6d159b8a";

/// With the program of [`PREVIOUS`] beside this one.
const UPGRADES: &[Stage] = &[
    (
        "the stores of an earlier release",
        &["test", "--package", "onward", "--test", "it", "upgrades", "--", "--nocapture"],
        &[],
    ),
    (
        "the stores of an earlier release, and a node of it, on Postgres",
        &["test", "--package", "onward", "--test", "it", "upgrades", "--", "--nocapture"],
        &[("ONWARD_TEST_STORE", "postgres")],
    ),
];

/// Name, script, environment.
const SCRIPTS: &[(&str, &str, Environment)] = &[(
    "requests that the OpenAPI document calls valid are accepted",
    "scripts/api-test",
    &[("ACCEPTANCE", "true"), ("PATIENCE", "1200")],
)];

pub fn run(root: &Path) -> Result<()> {
    let mut summary = Vec::new();
    let mut has_failed = false;
    let previous = build_previous(root)?;
    for (name, arguments, environment) in STAGES.iter().chain(UPGRADES) {
        let started = Instant::now();
        println!("== {name}");
        let mut command = Command::new("cargo");
        command.args(*arguments).envs(environment.iter().copied()).current_dir(root);
        command.env("ONWARD_PREVIOUS", &previous);
        let (is_success, passed) = run_stage(command)?;
        // A filter that matches no test any more would pass.
        let verdict = if is_success && passed > 0 { "passed" } else { "FAILED" };
        has_failed |= verdict == "FAILED";
        summary.push(format!("{verdict}  {name}  ({passed} tests, {} s)", started.elapsed().as_secs()));
    }
    for (name, script, environment) in SCRIPTS {
        let started = Instant::now();
        println!("== {name}");
        let status = Command::new(root.join(script)).envs(environment.iter().copied()).status()?;
        let verdict = if status.success() { "passed" } else { "FAILED" };
        has_failed |= !status.success();
        summary.push(format!("{verdict}  {name}  ({} s)", started.elapsed().as_secs()));
    }
    println!("\n{}", summary.join("\n"));
    if has_failed {
        bail!("the long tier failed");
    }
    Ok(())
}

/// Checks the earlier release out below `target`, builds it there, and returns the path of its program.
fn build_previous(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/previous");
    if !folder.exists() {
        let mut checkout = Command::new("git");
        checkout.args(["worktree", "add", "--detach"]).arg(&folder).arg(PREVIOUS).current_dir(root);
        if !checkout.status()?.success() {
            bail!("the commit {PREVIOUS} cannot be checked out; a shallow clone does not have it");
        }
    }
    let mut build = Command::new("cargo");
    build.args(["build", "--locked", "--quiet", "--package", "onward"]).current_dir(&folder);
    build.env("CARGO_TARGET_DIR", folder.join("target"));
    if !build.status()?.success() {
        bail!("the commit {PREVIOUS} cannot be built");
    }
    Ok(folder.join("target/debug/onward"))
}

/// Prints the output of a command as it arrives; returns whether it succeeded, and how many tests passed.
fn run_stage(mut command: Command) -> Result<(bool, u64)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut passed = 0;
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line?;
        passed += passed_in(&line);
        println!("{line}");
    }
    Ok((child.wait()?.success(), passed))
}

/// The count in a line such as `test result: ok. 12 passed; 0 failed; …`.
fn passed_in(line: &str) -> u64 {
    let rest = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "));
    rest.and_then(|(_, counts)| counts.split_once(" passed")?.0.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_passed_are_counted() {
        assert_eq!(passed_in("test result: ok. 12 passed; 0 failed; 0 ignored"), 12);
        assert_eq!(passed_in("test result: FAILED. 3 passed; 1 failed"), 3);
        assert_eq!(passed_in("running 3 tests"), 0);
    }
}
