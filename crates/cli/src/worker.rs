//! `onward worker`: runs a command for each task. The command gets the task's input on standard input and prints the
//! result to standard output; its exit code says how the attempt ended.
//!
//! The SDK does leases, heartbeats, reports and draining; [`exec`] runs the process.

mod exec;

use crate::node::DRAIN_MAX;
use crate::remote::{self, Connection, style::clean};
use client::Worker;
use client::worker::{Context, WorkerEvent};
use kernel::Span;
use serde_json::json;
use serde_json::value::RawValue;
use std::io::Write;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Types to claim, repeatable; a `%` at the end matches anything: 'notify.%'
    #[arg(long, required = true, value_name = "TYPE")]
    types: Vec<String>,
    /// The command, run by `sh -c` for each task
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// How many tasks run at once
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    slots: u16,
    /// How long the server waits for a heartbeat before it gives a task to another worker, 1s to 1h
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = lease)]
    lease: Duration,
    /// How long one process may take; a process that is stopped for it may be retried
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    timeout: Option<Duration>,
    /// The worker's id (default: host name, process id and random characters)
    #[arg(long)]
    id: Option<String>,
    /// The worker's runtime, for types that are bound to one
    #[arg(long, default_value = "exec", value_name = "NAME")]
    runtime: String,
    /// How long processes get to finish after SIGTERM; tasks that are left are given back to the server
    #[arg(long, default_value = "25s", value_name = "DURATION", value_parser = drain_grace)]
    drain_grace: Duration,
}

fn lease(text: &str) -> Result<Duration, String> {
    duration(text, Span::from_secs(1)..=Span::from_secs(3_600))
}

fn timeout(text: &str) -> Result<Duration, String> {
    duration(text, Span::from_millis(1)..=lang::DURATION_MAX)
}

fn drain_grace(text: &str) -> Result<Duration, String> {
    duration(text, Span(0)..=DRAIN_MAX)
}

fn duration(text: &str, range: RangeInclusive<Span>) -> Result<Duration, String> {
    let span = Span::parse(text).ok_or("expected a duration such as 30s")?;
    match range.contains(&span) {
        true => Ok(Duration::from_micros(span.0)),
        false => Err(format!("allowed is {} to {}", range.start(), range.end())),
    }
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, types, exec, slots, lease, timeout, id, runtime, drain_grace } = arguments;
    remote::run(connection, async |asking| {
        let json = asking.json;
        asking.say(&format!("claiming {} from {}", clean(&types.join(", ")), clean(asking.client.base())));
        let command = Arc::new(exec::Command { line: exec, timeout, url: asking.client.base().to_owned() });
        let worker = Worker::new(asking.client)
            .slots(slots.into())
            .lease(lease)
            .drain(drain_grace)
            // Longer than the time that the process gets between SIGTERM and SIGKILL.
            .cancel_grace(exec::KILL_AFTER + Duration::from_secs(2))
            .runtime(runtime)
            .watch(move |notice| print_notice(notice, json));
        let worker = match id {
            Some(id) => worker.id(id),
            None => worker,
        };
        let worker = types.into_iter().fold(worker, |worker, name| {
            let command = command.clone();
            worker.handle(name, move |input: Box<RawValue>, context: Context| {
                let command = command.clone();
                async move { command.attempt(&input, &context).await }
            })
        });
        Ok(worker.run().await?)
    })
}

/// One line a notice. The worker goes on when its output is closed.
fn print_notice(notice: &WorkerEvent<'_>, json: bool) {
    let line = match notice {
        WorkerEvent::Started { .. } => return,
        WorkerEvent::Ended { context, outcome, took } => {
            let ms = took.as_millis() as u64;
            match json {
                true => json!({
                    "event": "ended", "task_id": context.task_id(), "type": context.task_type(),
                    "attempt": context.attempt(), "outcome": outcome, "duration_ms": ms,
                })
                .to_string(),
                false => {
                    let last = outcome.lines().last().unwrap_or_default();
                    let (id, name) = (clean(context.task_id()), clean(context.task_type()));
                    let took = remote::style::span(ms);
                    format!("{id}  {name} #{}  {took}  {}", context.attempt(), clean(last))
                }
            }
        }
        WorkerEvent::NotCounted { task_id, why } if json => {
            json!({ "event": "not_counted", "task_id": task_id, "reason": why }).to_string()
        }
        WorkerEvent::NotCounted { task_id, why } => format!("{}  report not counted: {}", clean(task_id), clean(why)),
        WorkerEvent::Unreachable { reason, .. } if json => {
            json!({ "event": "unreachable", "reason": reason }).to_string()
        }
        WorkerEvent::Unreachable { reason, again_in } => {
            format!("{}; retrying in {}", clean(reason), remote::style::span(again_in.as_millis() as u64))
        }
        WorkerEvent::Reachable if json => json!({ "event": "reachable" }).to_string(),
        WorkerEvent::Reachable => "reconnected".to_owned(),
        WorkerEvent::Draining if json => json!({ "event": "draining" }).to_string(),
        WorkerEvent::Draining => "draining: waiting for running tasks; a second signal gives them back".to_owned(),
        _ => return,
    };
    let _ = match json {
        true => writeln!(std::io::stdout(), "{line}"),
        false => writeln!(std::io::stderr(), "{line}"),
    };
}
