//! `onward test`: cases beside a definition, run by the real engine in this process, on a store in memory,
//! with a clock that stands still until it is moved. No server, no network, nothing on disk.
//!
//! ```text
//!   files ──▶ lang::suite ──▶ play (engine, desk, clock) ──▶ Story ──▶ judge ──▶ report
//! ```
//!
//! The same file gives the same result every time: each case has an engine of its own, ids and jitter are
//! drawn from a fixed seed, and what happens at one moment happens in a fixed order.

mod coverage;
mod files;
mod judge;
mod play;
mod report;
mod worker;

use coverage::Coverage;
use files::Loaded;
use judge::Mismatch;
use kernel::Timestamp;
use lang::suite::Case;
use play::Story;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Arguments {
    /// Test files, or folders to look for `*.test.yaml`, `*.test.yml` and `*.test.json` in
    #[arg(default_value = ".")]
    paths: Vec<PathBuf>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print one JSON object per case instead of words
    #[arg(long)]
    json: bool,
    /// Write a JUnit report to this file, too
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Say which steps no case ran, and which conditions never were false
    #[arg(long)]
    coverage: bool,
    /// Show every event and request of every case
    #[arg(short, long)]
    verbose: bool,
}

const FAILED: u8 = 1;

/// What the clock says in a file that does not say it.
const NOW: Timestamp = Timestamp::from_millis(1_893_456_000_000); // 2030-01-01T00:00:00Z

/// What became of one case.
struct Outcome {
    case: Case,
    mismatches: Vec<Mismatch>,
    /// Not there when the run could not even be started.
    story: Option<Story>,
    /// How long that took here.
    took: Duration,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let begun = Instant::now();
    let mut report = Report::new(arguments.json, arguments.verbose);
    let found = match files::find(&arguments.paths) {
        Ok(found) => found,
        Err(message) => return wrong(&message),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return wrong(&error.to_string()),
    };
    let mut coverage = Coverage::default();
    for path in &found {
        let loaded = match files::load(path) {
            Ok(loaded) => loaded,
            Err(trouble) => {
                report.broken(&trouble);
                continue;
            }
        };
        let wanted = |case: &&Case| arguments.filter.as_ref().is_none_or(|text| case.name.contains(text));
        let cases: Vec<Case> = loaded.suite.cases.iter().filter(wanted).cloned().collect();
        report.begin(&loaded, cases.len());
        for case in cases {
            let outcome = runtime.block_on(judged(&loaded, case));
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
        return wrong(&format!("cannot write {}: {error}", path.display()));
    }
    match (report.broken, report.passed, report.failed) {
        (1.., _, _) => crate::EXIT_USAGE.into(),
        (0, 0, 0) => wrong("no case has a name like that, so nothing was tested"),
        (0, _, 0) => ExitCode::SUCCESS,
        (0, _, 1..) => FAILED.into(),
    }
}

async fn judged(loaded: &Loaded, case: Case) -> Outcome {
    let begun = Instant::now();
    let played = play::play(&loaded.compiled, loaded.suite.now.unwrap_or(NOW), &case.given).await;
    let (mismatches, story) = match played {
        Err(why) => (vec![Mismatch::trouble(why)], None),
        Ok(story) => (judge::judge(&loaded.compiled.plan, &case, &story), Some(story)),
    };
    Outcome { case, mismatches, story, took: begun.elapsed() }
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("error: {message}");
    crate::EXIT_USAGE.into()
}
