//! `onward test`: runs the test cases beside a definition. The real engine runs in this process, on a store in memory,
//! with a virtual clock and a fake network. There is no server, and nothing is written to disk.
//!
//! ```text
//!   files ──▶ lang::suite ──▶ play (engine, fake network, clock) ──▶ Story ──▶ judge ──▶ report
//! ```
//!
//! The same file gives the same result every time: each case has its own engine, ids and jitter come from a fixed seed,
//! and events that are due at the same time happen in a fixed order.

mod children;
mod coverage;
mod files;
mod judge;
mod outside;
mod play;
mod report;
mod worker;

use crate::exit;
use coverage::Coverage;
use files::LoadedSuite;
use judge::Mismatch;
use kernel::Timestamp;
use lang::suite::Case;
use play::Story;
use report::TestReport;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Arguments {
    /// Test files, or folders in which to look for `*.test.yaml`, `*.test.yml` and `*.test.json`
    #[arg(default_value = ".")]
    paths: Vec<PathBuf>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print one JSON object per case instead of text
    #[arg(long)]
    json: bool,
    /// Also write a JUnit report to this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print which steps no case ran, and which conditions were never false
    #[arg(long)]
    coverage: bool,
    /// Show every event and request of every case
    #[arg(short, long)]
    verbose: bool,
}

/// The time at which a case begins if its file does not set one.
const NOW: Timestamp = Timestamp::from_millis(1_893_456_000_000); // 2030-01-01T00:00:00Z

/// The outcome of one case.
struct CaseOutcome {
    case: Case,
    mismatches: Vec<Mismatch>,
    /// None if the run could not be started.
    story: Option<Story>,
    /// How long the case took in real time.
    took: Duration,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let begun = Instant::now();
    let mut report = TestReport::new(arguments.json, arguments.verbose);
    let found = match files::find(&arguments.paths) {
        Ok(found) => found,
        Err(message) => return usage_error(&message),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return usage_error(&error.to_string()),
    };
    let mut coverage = Coverage::default();
    for path in &found {
        let loaded = match files::load(path) {
            Ok(loaded) => loaded,
            Err(failure) => {
                report.broken(&failure);
                continue;
            }
        };
        let wanted = |case: &&Case| arguments.filter.as_ref().is_none_or(|text| case.name.contains(text));
        let cases: Vec<Case> = loaded.suite.cases.iter().filter(wanted).cloned().collect();
        report.begin(&loaded, cases.len());
        for case in cases {
            let outcome = runtime.block_on(run_case(&loaded, case));
            coverage.add(&loaded, outcome.story.as_ref());
            report.add(&loaded, outcome);
        }
    }
    runtime.shutdown_timeout(Duration::ZERO);
    if arguments.coverage {
        report.cover(&coverage);
    }
    report.end(begun.elapsed());
    if let Some(path) = &arguments.junit
        && let Err(error) = std::fs::write(path, report.junit())
    {
        return usage_error(&format!("cannot write {}: {error}", path.display()));
    }
    match (report.broken, report.passed, report.failed) {
        (1.., _, _) => exit::USAGE.into(),
        (0, 0, 0) => usage_error("no case matches `--filter`, so nothing was tested"),
        (0, _, 0) => ExitCode::SUCCESS,
        (0, _, 1..) => exit::NO.into(),
    }
}

async fn run_case(loaded: &LoadedSuite, case: Case) -> CaseOutcome {
    let begun = Instant::now();
    let played = play::play(loaded, loaded.suite.now.unwrap_or(NOW), &case.given).await;
    let (mismatches, story) = match played {
        Err(why) => (judge::judge_refusal(&case, &why).into_iter().collect(), None),
        Ok(story) => (judge::judge(&loaded.compiled.plan, &case, &story), Some(story)),
    };
    CaseOutcome { case, mismatches, story, took: begun.elapsed() }
}

fn usage_error(message: &str) -> ExitCode {
    eprintln!("error: {message}");
    exit::USAGE.into()
}
