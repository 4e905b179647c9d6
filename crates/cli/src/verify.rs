//! `onward verify`: checks a store against every promise. It reads a store, stopped or in use, and writes nothing.
//!
//! The problems and the counts go to standard output; progress and errors go to standard error.

use crate::exit;
use crate::node::location;
use engine::verify::{Counts, Problem, Report, verify};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use store::Location;

#[derive(clap::Args)]
pub struct Arguments {
    /// The data folder of the server
    #[arg(long, env = "ONWARD_DATA", default_value = "./.onward")]
    data: PathBuf,
    /// Where runs are stored: `sqlite:PATH` or `postgres://…` (default: a file in the data folder)
    #[arg(long, env = "ONWARD_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Show at most this many problems; all are counted
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

/// The time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(2);
/// How many runs or records are checked between two reads of the clock.
const CLOCK_INTERVAL: u64 = 1_024;

pub fn run(arguments: Arguments) -> ExitCode {
    let location = match location(&arguments.data, arguments.store.as_deref()) {
        Ok(location) => location,
        Err(message) => {
            eprintln!("error: {message}");
            return exit::USAGE.into();
        }
    };
    let outcome = location.inspect().and_then(|store| verify(&*store, arguments.limit, &mut Progress::start().print()));
    let report = match outcome {
        Ok(report) => report,
        Err(error) => {
            eprintln!("error: {error}");
            return exit::INPUT_OUTPUT.into();
        }
    };
    let text = match arguments.json {
        true => format!("{}\n", as_json(&report)),
        false => as_text(&location, &report),
    };
    // A closed pipe is no error: the reader, such as `head`, has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    if report.is_clean() { ExitCode::SUCCESS } else { exit::NO.into() }
}

struct Progress {
    calls: u64,
    next: Instant,
}

impl Progress {
    fn start() -> Progress {
        Progress { calls: 0, next: Instant::now() + PROGRESS }
    }

    fn print(mut self) -> impl FnMut(&Counts) {
        move |counts| {
            self.calls += 1;
            if self.calls.is_multiple_of(CLOCK_INTERVAL) && Instant::now() >= self.next {
                self.next = Instant::now() + PROGRESS;
                eprintln!("{} runs, {} of their records, journal {}", counts.runs, counts.records, counts.journal);
            }
        }
    }
}

fn as_text(location: &Location, report: &Report) -> String {
    let mut out = String::new();
    for problem in &report.problems {
        let _ = writeln!(out, "{}", line(problem));
    }
    let total = report.total();
    let hidden = total - report.problems.len() as u64;
    if hidden > 0 {
        let _ = writeln!(out, "… and {hidden} more");
    }
    if total > 0 {
        let _ = writeln!(out);
    }
    let _ = match location {
        Location::Sqlite(path) => writeln!(out, "checked {}", path.display()),
        Location::Postgres(_) => writeln!(out, "checked {location}"),
    };
    for (name, count) in report.counts.list().iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(out, "{count:>12} {}", name.replace('_', " "));
        if *name == "runs" {
            let statuses = report.counts.statuses.iter().map(|(status, count)| format!("{count} {status}"));
            let _ = writeln!(out, "{:>12} {}", "", statuses.collect::<Vec<_>>().join(", "));
        }
    }
    let _ = match total {
        0 => writeln!(out, "no problems"),
        1 => writeln!(out, "1 problem"),
        _ => writeln!(out, "{total} problems"),
    };
    out
}

/// `code run step: message`
fn line(problem: &Problem) -> String {
    let mut line = problem.code.as_str().to_owned();
    if let Some(run) = problem.run {
        let _ = write!(line, " {run}");
    }
    if let Some(step) = &problem.step {
        let _ = write!(line, " `{step}`");
    }
    line + ": " + &problem.message
}

fn as_json(report: &Report) -> Value {
    let problem = |problem: &Problem| {
        json!({
            "code": problem.code.as_str(),
            "promise": problem.code.promise(),
            "org": problem.org.map(|org| org.0),
            "run": problem.run.map(|run| run.to_string()),
            "step": problem.step,
            "message": problem.message,
        })
    };
    let checked: serde_json::Map<String, Value> =
        report.counts.list().iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
    let statuses: serde_json::Map<String, Value> =
        report.counts.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
    let found: serde_json::Map<String, Value> =
        report.found.iter().map(|(code, count)| (code.as_str().to_owned(), json!(count))).collect();
    json!({
        "clean": report.is_clean(),
        "total": report.total(),
        "found": found,
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
        "checked": checked,
        "statuses": statuses,
    })
}
