//! `onward trigger`: starts a run, and optionally waits for it or watches it.

use super::{Connection, Failure, Outcome, follow, runs};
use client::Start;
use std::io::Read;
use std::process::ExitCode;

/// The server refuses a longer input.
const INPUT_MAX: u64 = 256 * 1024;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Id, name or slug of the workflow
    workflow: String,
    /// What the run gets as `trigger.body`: JSON, `@file`, or `-` for standard input
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// A label for the run, repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A second request with the same key returns the first run instead of starting another
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The person or program that starts the run
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Wait for the end of the run, at most this long (up to 60s); exit 0 only if it completed
    #[arg(long, value_name = "DURATION", conflicts_with = "follow")]
    wait: Option<String>,
    /// Watch its steps until it ends; exit 0 only if it completed
    #[arg(long)]
    follow: bool,
}

/// Parses `key=value`.
pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, workflow, input, labels, idempotency_key, actor, wait, follow } = arguments;
    super::run(connection, async |asking| -> Outcome {
        let body = input.as_deref().map(read).transpose()?;
        let start = Start { body: body.map(Into::into), labels, idempotency_key, actor };
        let refused = |error| match (error, &start.body, &input) {
            // The problem has a place in the input: show it there.
            (client::Error::Refused { problem, .. }, Some(body), Some(input))
                if problem.at.as_ref().is_some_and(|at| at.line.is_some()) =>
            {
                let name = input.strip_prefix('@').unwrap_or("input").to_owned();
                Failure::InSource { name, source: String::from_utf8_lossy(body).into_owned(), problem }
            }
            (error, ..) => error.into(),
        };
        if let Some(wait) = &wait {
            let run = asking.client.trigger_and_wait(&workflow, &start, wait).await.map_err(refused)?;
            let has_completed = run.status == "completed";
            asking.print(&run, runs::as_text)?;
            return if has_completed { Ok(()) } else { Err(Failure::No) };
        }
        let started = asking.client.trigger(&workflow, &start).await.map_err(refused)?;
        if follow {
            asking.say(&format!("{} started", started.run_id));
            return if follow::follow(&asking, &started.run_id).await? { Ok(()) } else { Err(Failure::No) };
        }
        if started.deduplicated {
            asking.say(&format!("started before with this key; it is {}", started.status));
        }
        asking.print(&started, |started| started.run_id.clone())
    })
}

/// Reads the argument itself, the file after `@`, or standard input for `-`.
pub fn read(input: &str) -> Result<Vec<u8>, Failure> {
    let take = |mut from: Box<dyn Read>| {
        let mut bytes = Vec::new();
        from.by_ref().take(INPUT_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let read = match input.strip_prefix('@') {
        _ if input == "-" => take(Box::new(std::io::stdin())),
        Some(file) => std::fs::File::open(file).and_then(|file| take(Box::new(file))),
        None => Ok(input.as_bytes().to_vec()),
    };
    read.map_err(|error| Failure::Usage(format!("cannot read `{input}`: {error}")))
}
