//! Commands that call a server. Each noun has a file. This one has what they share: where the server is, how an answer
//! is printed, and how an error becomes an exit code.
//!
//! ```text
//!   arguments ─▶ Client ─▶ answer ─▶ table or JSON on standard output     exit 0, or 1: the answer is no
//!                   └────▶ Error ──▶ text on standard error              exit 1 refused, 3 not reachable
//! ```
//!
//! Data goes to standard output, messages to standard error. With `--json`, a refusal is data too.

pub mod approvals;
pub mod follow;
pub mod runs;
pub mod style;
pub mod table;
pub mod tasks;
pub mod trigger;
pub mod triggers;
pub mod types;
pub mod workers;
pub mod workflows;

use crate::exit;
use crate::problems::{self, Shown};
use api::Problem;
use client::{Client, Error};
use serde::Serialize;
use serde_json::json;
use std::future::Future;
use std::io::Write;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Connection {
    /// The server's URL
    #[arg(long, global = true, env = "ONWARD_URL", default_value = "http://127.0.0.1:7420", value_name = "URL")]
    url: String,
    /// Print JSON instead of text and tables
    #[arg(long, global = true)]
    pub json: bool,
}

/// Which page of a list.
#[derive(clap::Args)]
pub struct PageOptions {
    /// Maximum number of entries
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print every entry
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Continue where an earlier list ended
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

/// Why a command failed.
pub enum Failure {
    Client(Error),
    /// The server refused a document, and its problems can be shown in the source text.
    InSource {
        name: String,
        source: String,
        problem: Box<Problem>,
    },
    /// Wrong arguments.
    Usage(String),
    /// The answer is no, for example a run that failed; everything has been printed already.
    No,
    /// The reader of standard output has closed it.
    OutputClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Client(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(_: std::io::Error) -> Failure {
        Failure::OutputClosed
    }
}

pub type Outcome = Result<(), Failure>;

/// Connects to the server, runs the command, and prints an error if it fails.
pub fn run<F, R>(connection: Connection, act: F) -> ExitCode
where
    F: FnOnce(CommandContext) -> R,
    R: Future<Output = Outcome>,
{
    let json = connection.json;
    let key = std::env::var("ONWARD_API_KEY").ok().filter(|key| !key.is_empty());
    let outcome = match Client::new(&connection.url, key.as_deref()) {
        Ok(client) => match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(act(CommandContext { client, json })),
            Err(error) => Err(Failure::Usage(format!("cannot start: {error}"))),
        },
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => print_failure(failure, json).into(),
    }
}

/// What every command gets: the client, and whether to print JSON.
pub struct CommandContext {
    pub client: Client,
    pub json: bool,
}

impl CommandContext {
    /// Prints one value: as JSON, or as the text that `to_text` makes of it.
    pub fn print<T: Serialize>(&self, value: &T, to_text: impl FnOnce(&T) -> String) -> Outcome {
        write(if self.json { pretty(value) } else { to_text(value) }.trim_end())
    }

    /// Prints a remark for people to standard error; scripts that want JSON do not get it.
    pub fn say(&self, text: &str) {
        if !self.json {
            eprintln!("{text}");
        }
    }
}

/// Writes a line to standard output.
fn write(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn print_failure(failure: Failure, json: bool) -> u8 {
    match failure {
        Failure::No => exit::NO,
        Failure::OutputClosed => exit::NO,
        Failure::Usage(message) => {
            eprintln!("error: {message}");
            exit::USAGE
        }
        Failure::InSource { name, source, problem } if !json => {
            print_in_source(&name, &source, &problem);
            exit::NO
        }
        Failure::Client(Error::Refused { problem, .. }) | Failure::InSource { problem, .. } => {
            if json {
                // On one line, because lines of JSON may come before it.
                let _ = write(&json!({ "error": problem }).to_string());
            } else {
                print_refusal(&problem);
            }
            exit::NO
        }
        Failure::Client(error @ Error::Unusable(_)) => {
            eprintln!("error: {error}");
            exit::USAGE
        }
        Failure::Client(error) => {
            eprintln!("error: {error}");
            eprintln!("help: `onward dev` starts a server; set its address with `--url` or `ONWARD_URL`");
            exit::UNREACHABLE
        }
    }
}

/// Prints the refusal of a request.
fn print_refusal(problem: &Problem) {
    let one = |problem: &Problem| {
        eprintln!("error[{}]: {}", style::clean(&problem.code), style::clean(&problem.message));
        if let Some(at) = problem.at.as_ref().filter(|at| !at.path.is_empty()) {
            eprintln!("  at: {}", style::clean(&at.path));
        }
        if let Some(hint) = &problem.hint {
            eprintln!("  help: {}", style::clean(hint));
        }
    };
    match problem.problems.as_deref() {
        Some(problems) if problems.len() > 1 => problems.iter().for_each(one),
        _ => one(problem),
    }
}

/// Prints the refusal of a document, with each problem shown in the source text.
fn print_in_source(name: &str, source: &str, problem: &Problem) {
    let alone = std::slice::from_ref(problem);
    let listed = problem.problems.as_deref().filter(|list| !list.is_empty()).unwrap_or(alone);
    if !show_in_source(name, source, listed) {
        print_refusal(problem);
    }
}

/// Shows problems in the source text; false if a problem has no position.
fn show_in_source(name: &str, source: &str, listed: &[Problem]) -> bool {
    let shown: Option<Vec<Shown>> = listed
        .iter()
        .map(|problem| {
            let at = problem.at.as_ref()?;
            Some(Shown {
                is_warning: problem.severity.as_deref() == Some("warning"),
                code: problem.code.clone(),
                message: problem.message.clone(),
                hint: problem.hint.clone(),
                path: at.path.clone(),
                span: problems::span_at(source, at.line?, at.column?),
            })
        })
        .collect();
    if let Some(shown) = &shown {
        problems::show(name, source, shown);
    }
    shown.is_some()
}
