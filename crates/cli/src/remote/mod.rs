//! Commands that ask a server. Each noun has a file; what they share is here: where the server is, how
//! an answer is printed, and what a refusal comes to.
//!
//! ```text
//!   arguments ─▶ Client ─▶ answer ─▶ table or JSON on standard output     exit 0, or 1: the answer is no
//!                   └────▶ Error ──▶ words on standard error             exit 1 refused, 3 not reachable
//! ```
//!
//! The rule: data goes to standard output, words to standard error. With `--json`, a refusal is data too.

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

use crate::problems::{self, Shown};
use api::Problem;
use client::{Client, Error};
use serde::Serialize;
use serde_json::json;
use std::future::Future;
use std::io::Write;
use std::process::ExitCode;

const EXIT_NO: u8 = 1;
const EXIT_UNREACHABLE: u8 = 3;

#[derive(clap::Args)]
pub struct Connection {
    /// Where the server is
    #[arg(long, global = true, env = "ONWARD_URL", default_value = "http://127.0.0.1:7420", value_name = "URL")]
    url: String,
    /// Print JSON instead of words and tables
    #[arg(long, global = true)]
    pub json: bool,
}

/// Which part of a list.
#[derive(clap::Args)]
pub struct Part {
    /// How many at most
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Everything, however much it is
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

/// Why a command did not get what it was asked for.
pub enum Failure {
    Client(Error),
    /// Refused, and there is a source to show it in.
    InSource {
        name: String,
        source: String,
        problem: Box<Problem>,
    },
    /// What was asked for cannot be asked.
    Usage(String),
    /// Everything was said already; the answer is no.
    No,
    /// Whoever reads our output went away.
    Deaf,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Client(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(_: std::io::Error) -> Failure {
        Failure::Deaf
    }
}

pub type Outcome = Result<(), Failure>;

/// Connects, acts, and tells how it went.
pub fn run<F, R>(connection: Connection, act: F) -> ExitCode
where
    F: FnOnce(Asking) -> R,
    R: Future<Output = Outcome>,
{
    let json = connection.json;
    let key = std::env::var("ONWARD_API_KEY").ok().filter(|key| !key.is_empty());
    let outcome = match Client::new(&connection.url, key.as_deref()) {
        Ok(client) => match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(act(Asking { client, json })),
            Err(error) => Err(Failure::Usage(format!("cannot start: {error}"))),
        },
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(failure, json).into(),
    }
}

/// What every command has: somebody to ask, and how to answer.
pub struct Asking {
    pub client: Client,
    pub json: bool,
}

impl Asking {
    /// One thing: as JSON, or as `words` puts it.
    pub fn print<T: Serialize>(&self, value: &T, words: impl FnOnce(&T) -> String) -> Outcome {
        write(if self.json { pretty(value) } else { words(value) }.trim_end())
    }

    /// A remark for people.
    pub fn say(&self, words: &str) {
        if !self.json {
            eprintln!("{words}");
        }
    }
}

/// Text and a line end to standard output, whose reader may have left.
fn write(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn tell(failure: Failure, json: bool) -> u8 {
    match failure {
        Failure::No => EXIT_NO,
        Failure::Deaf => EXIT_NO,
        Failure::Usage(message) => {
            eprintln!("error: {message}");
            crate::EXIT_USAGE
        }
        Failure::InSource { name, source, problem } if !json => {
            in_source(&name, &source, &problem);
            EXIT_NO
        }
        Failure::Client(Error::Refused { problem, .. }) | Failure::InSource { problem, .. } => {
            if json {
                // On one line, as it may follow lines.
                let _ = write(&json!({ "error": problem }).to_string());
            } else {
                refused(&problem);
            }
            EXIT_NO
        }
        Failure::Client(error @ Error::Unusable(_)) => {
            eprintln!("error: {error}");
            crate::EXIT_USAGE
        }
        Failure::Client(error) => {
            eprintln!("error: {error}");
            eprintln!("help: `onward dev` starts a server; `--url` or ONWARD_URL says where it is");
            EXIT_UNREACHABLE
        }
    }
}

/// A refusal of a request.
fn refused(problem: &Problem) {
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

/// A refusal of something that was written, shown where it is wrong.
fn in_source(name: &str, source: &str, problem: &Problem) {
    let alone = std::slice::from_ref(problem);
    let listed = problem.problems.as_deref().filter(|list| !list.is_empty()).unwrap_or(alone);
    let shown: Option<Vec<Shown>> = listed
        .iter()
        .map(|problem| {
            let at = problem.at.as_ref()?;
            Some(Shown {
                code: problem.code.clone(),
                message: problem.message.clone(),
                hint: problem.hint.clone(),
                path: at.path.clone(),
                span: problems::span_at(source, at.line?, at.column?),
            })
        })
        .collect();
    match shown {
        Some(shown) => problems::show(name, source, &shown),
        None => refused(problem),
    }
}
