//! `onward worker`: a worker made of a command. Each task is one process: its input on standard input, its result on
//! standard output, and its exit code decides.
//!
//! Leases, heartbeats, reports and draining are the SDK's; the process is [`exec`]'s.

mod exec;

use crate::remote::{self, Connection, style::clean};
use client::Worker;
use client::worker::{Context, Notice};
use kernel::Span;
use serde_json::json;
use serde_json::value::RawValue;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Types to claim, as often as wanted; a `%` at the end stands for anything: 'notify.%'
    #[arg(long, required = true, value_name = "TYPE")]
    types: Vec<String>,
    /// The command, run by `sh -c` for each task
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// Tasks at once
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    slots: u16,
    /// How long the server waits for a sign of life before it gives a task to somebody else, 1s to 1h
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    lease: Duration,
    /// How long one process may take; one that is stopped for it may be tried again
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// What the worker is called (default: machine, process and something random)
    #[arg(long)]
    id: Option<String>,
    /// For types that are bound to a runtime
    #[arg(long, default_value = "exec", value_name = "NAME")]
    runtime: String,
    /// How long processes get to finish after SIGTERM; what is left then is handed back
    #[arg(long, default_value = "25s", value_name = "DURATION", value_parser = duration)]
    drain_grace: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    let span = Span::parse(text).ok_or("expected a duration such as 30s")?;
    Ok(Duration::from_micros(span.0))
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, types, exec, slots, lease, timeout, id, runtime, drain_grace } = arguments;
    remote::run(connection, async |asking| {
        let json = asking.json;
        asking.say(&format!("claims {} at {}", clean(&types.join(", ")), clean(asking.client.base())));
        let command = Arc::new(exec::Command { line: exec, timeout, url: asking.client.base().to_owned() });
        let worker = Worker::new(asking.client)
            .slots(slots.into())
            .lease(lease)
            .drain(drain_grace)
            // The process gets its time after SIGTERM within this.
            .cancel_grace(exec::KILL_AFTER + Duration::from_secs(2))
            .runtime(runtime)
            .watch(move |notice| tell(notice, json));
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

/// One line for whoever watches. Nobody reads it? The worker works on.
fn tell(notice: &Notice<'_>, json: bool) {
    let line = match notice {
        Notice::Started { .. } => return,
        Notice::Ended { context, outcome, took } => {
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
        Notice::NotCounted { task_id, why } if json => {
            json!({ "event": "not_counted", "task_id": task_id, "reason": why }).to_string()
        }
        Notice::NotCounted { task_id, why } => format!("{}  came too late: {}", clean(task_id), clean(why)),
        Notice::Unreachable { reason, .. } if json => json!({ "event": "unreachable", "reason": reason }).to_string(),
        Notice::Unreachable { reason, again_in } => {
            format!("{}; again in {}", clean(reason), remote::style::span(again_in.as_millis() as u64))
        }
        Notice::Reachable if json => json!({ "event": "reachable" }).to_string(),
        Notice::Reachable => "connected again".to_owned(),
        Notice::Draining if json => json!({ "event": "draining" }).to_string(),
        Notice::Draining => "finishing what is under way; once more to hand it back".to_owned(),
        _ => return,
    };
    let _ = match json {
        true => writeln!(std::io::stdout(), "{line}"),
        false => writeln!(std::io::stderr(), "{line}"),
    };
}
