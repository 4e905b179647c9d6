//! `onward tasks`: submits, lists, shows and changes tasks.

use super::style::{self, clean, span, time};
use super::table::{self, fields, list};
use super::workflows::WorkflowArgument;
use super::{CommandContext, Connection, Failure, Outcome, PageOptions, follow, runs, trigger};
use api::{
    BulkFilter, BulkRequest, BulkView, CancelRequest, ResumeRequest, RetriedView, TaskRequest, TaskStatusView, TaskView,
};
use client::{Task, TaskQuery};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Submit a task, and optionally wait for its end
    Submit(Box<Submit>),
    /// List tasks, newest first
    List {
        #[command(flatten)]
        which: TaskFilterArguments,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Show a task
    Show {
        task: String,
        /// Print its events until it ends, then the task; exit 0 only if it succeeded
        #[arg(long)]
        follow: bool,
    },
    /// Print the events of a task
    Events { task: String },
    /// Cancel tasks
    Cancel {
        #[arg(required = true)]
        tasks: Vec<String>,
        #[command(flatten)]
        by: WorkflowArgument,
        /// Why, for the history
        #[arg(long, default_value_t)]
        reason: String,
    },
    /// Make the next attempt due now, or release a failed task as a new one
    Retry {
        #[arg(required = true)]
        tasks: Vec<String>,
        #[command(flatten)]
        by: WorkflowArgument,
    },
    /// Delete tasks; open ones are cancelled first
    Delete {
        #[arg(required = true)]
        tasks: Vec<String>,
    },
    /// Cancel, retry or delete all tasks that match a filter
    Bulk {
        action: BulkAction,
        #[command(flatten)]
        which: TaskFilterArguments,
        /// Act on all tasks: required when there is no filter
        #[arg(long)]
        all: bool,
        /// Only print what would be changed
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        by: WorkflowArgument,
    },
}

#[derive(clap::Args)]
struct Submit {
    /// The type, a dotted name such as billing.invoice.v1
    #[arg(value_name = "TYPE", required_unless_present = "from")]
    name: Option<String>,
    /// What the worker gets: JSON, `@file`, or `-` for standard input
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Lower goes first (default: 100)
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// How long to wait before the task may start
    #[arg(long, value_name = "DURATION", conflicts_with = "run_at")]
    delay: Option<String>,
    /// The time before which the task may not start, such as 2026-11-15T09:00:00Z
    #[arg(long, value_name = "TIME")]
    run_at: Option<String>,
    /// Maximum number of attempts (default: 3)
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// A retry policy, as on a graph's step: '{"max_attempts": 5, "backoff": {"type": "fixed", "min": "10s"}}'
    #[arg(long, value_name = "JSON")]
    retry: Option<String>,
    /// Time limits: '{"queue": "1h", "attempt": "5m", "heartbeat": "30s", "total": "1d"}', each optional
    #[arg(long, value_name = "JSON")]
    timeouts: Option<String>,
    /// Tasks with the same key share the type's limits per key
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// A label, repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = trigger::label)]
    labels: Vec<(String, String)>,
    /// A second request with the same key returns the first task instead of submitting another
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// A URL that is called when the task has ended
    #[arg(long, value_name = "URL")]
    callback_url: Option<String>,
    /// A JSON list of tasks instead, as POST /tasks takes it: all are recorded, or none
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "name", "payload", "priority", "delay", "run_at", "max_attempts", "retry", "timeouts", "concurrency_key", "labels",
        "idempotency_key", "callback_url", "wait", "follow",
    ])]
    from: Option<String>,
    /// Answer when the task has ended, at most this long (up to 60s); exit 0 only if it succeeded
    #[arg(long, value_name = "DURATION", conflicts_with = "follow")]
    wait: Option<String>,
    /// Print its events until it ends, then the task; exit 0 only if it succeeded
    #[arg(long)]
    follow: bool,
}

#[derive(clap::Args)]
struct TaskFilterArguments {
    /// Only of this type, or of all that begin alike: 'billing.%'
    #[arg(long = "type", value_name = "TYPE")]
    name: Option<String>,
    /// Only with this status: pending, leased, succeeded, failed or cancelled
    #[arg(long)]
    status: Option<String>,
    /// Only with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = trigger::label)]
    label: Option<(String, String)>,
    /// Only those recorded at this time or later: 2026-11-15T09:00:00Z, or 1h for an hour ago
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those recorded before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BulkAction {
    Cancel,
    Retry,
    Delete,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &CommandContext, verb: Verb) -> Outcome {
    let tasks = asking.client.tasks();
    match verb {
        Verb::Submit(submit) => record(asking, *submit).await,
        Verb::List { which, part } => {
            const HEADER: &[&str] = &["ID", "TYPE", "STATUS", "TRIES", "CREATED", "DETAIL"];
            let TaskFilterArguments { name, status, label, since, until } = which;
            let label = label.map(|(key, value)| format!("{key}:{value}"));
            let query = TaskQuery { name, status, label, since, until, limit: None, cursor: None };
            let fetch = async |limit, cursor| {
                let query = TaskQuery { limit: Some(limit), cursor, ..query.clone() };
                tasks.list(&query).await
            };
            list(asking, &part, HEADER, row, fetch).await
        }
        Verb::Show { task, follow: true } => watch(asking, &task).await,
        Verb::Show { task, follow: false } => asking.print(&tasks.get(&task).await?, as_text),
        Verb::Events { task } => {
            let events = tasks.events(&task).await?;
            asking.print(&json!({ "data": events, "next": null }), |_| {
                events.iter().map(|event| follow::line(event) + "\n").collect()
            })
        }
        Verb::Cancel { tasks: ids, by, reason } => {
            let request = CancelRequest { actor: by.actor, reason, compensate: false };
            runs::each(asking, &ids, async |id| asking.print(&tasks.cancel(id, &request).await?, status)).await
        }
        Verb::Retry { tasks: ids, by } => {
            let request = ResumeRequest { actor: by.actor };
            runs::each(asking, &ids, async |id| asking.print(&tasks.retry(id, &request).await?, retried)).await
        }
        Verb::Delete { tasks: ids } => {
            runs::each(asking, &ids, async |id| {
                tasks.delete(id).await?;
                asking.print(&json!({ "id": id, "deleted": true }), |_| format!("{} is deleted", clean(id)))
            })
            .await
        }
        Verb::Bulk { action, which, all, dry_run, by } => bulk(asking, action, which, all, dry_run, by).await,
    }
}

async fn record(asking: &CommandContext, submit: Submit) -> Outcome {
    if let Some(file) = &submit.from {
        let text = std::fs::read(file).map_err(|e| Failure::Usage(format!("cannot read `{file}`: {e}")))?;
        let requests: Vec<TaskRequest> = serde_json::from_slice(&text)
            .map_err(|e| Failure::Usage(format!("`{file}` is not a list of tasks: {e}")))?;
        let made = asking.client.tasks().submit_all(requests.into_iter().map(Task::from)).await?;
        return asking
            .print(&json!({ "data": made }), |_| made.iter().map(|task| task.task_id.clone() + "\n").collect());
    }
    let (wait, is_followed) = (submit.wait.clone(), submit.follow);
    let made = asking.client.tasks().submit(request(submit)?.into()).await?;
    if made.deduplicated {
        asking.say(&format!("recorded before with this key; it is {}", made.status));
    }
    if is_followed {
        asking.say(&format!("{} recorded", made.task_id));
        return watch(asking, &made.task_id).await;
    }
    match wait {
        Some(wait) => ended(asking, asking.client.tasks().get_after(&made.task_id, &wait).await?),
        None => asking.print(&made, |made| made.task_id.clone()),
    }
}

fn request(submit: Submit) -> Result<TaskRequest, Failure> {
    let payload = submit.payload.as_deref().map(|input| {
        let bytes = trigger::read(input)?;
        serde_json::from_slice::<Box<RawValue>>(&bytes)
            .map_err(|e| Failure::Usage(format!("the payload is not JSON: {e}")))
    });
    let json = |name: &str, text: &str| {
        // A policy may be a single word, such as `never`, which needs no JSON quotes here.
        let word = text.chars().all(|c| c.is_ascii_alphabetic()).then(|| Value::String(text.to_owned()));
        let read = word.map_or_else(|| serde_json::from_str(text), Ok);
        read.map_err(|e| Failure::Usage(format!("`--{name}` is not JSON: {e}")))
    };
    Ok(TaskRequest {
        name: submit.name.unwrap_or_default(),
        payload: payload.transpose()?,
        priority: submit.priority,
        run_at: submit.run_at,
        delay: submit.delay.map(Value::String),
        max_attempts: submit.max_attempts.map(Value::from),
        retry: submit.retry.as_deref().map(|text| json("retry", text)).transpose()?,
        timeouts: submit.timeouts.as_deref().map(|text| json("timeouts", text)).transpose()?,
        concurrency_key: submit.concurrency_key,
        labels: submit.labels.into_iter().collect(),
        idempotency_key: submit.idempotency_key,
        callback_url: submit.callback_url,
    })
}

/// Events that end a step.
const ENDS: [&str; 5] = ["step.succeeded", "step.failed", "step.timeout", "step.cancelled", "step.skipped"];

/// Prints the task's events until it has ended, then the task.
async fn watch(asking: &CommandContext, id: &str) -> Outcome {
    let client = &asking.client;
    let task = client.tasks().get(id).await?;
    let mut events = client.follow(&task.run_id, 0).await?;
    // A task that is a step of a workflow ends before its run does, so the stream goes on after it.
    while let Some(received) = events.next().await? {
        let is_its_own = received.event.step.as_ref() == Some(&task.step);
        if task.workflow.is_none() || is_its_own {
            follow::print(asking, &received)?;
        }
        if task.workflow.is_some() && is_its_own && ENDS.contains(&received.event.kind.as_str()) {
            break;
        }
    }
    let task = client.tasks().get(id).await?;
    match asking.json {
        // On one line, because the events before it are lines of JSON.
        true => super::write(&serde_json::to_string(&task).unwrap_or_default())?,
        false => asking.print(&task, as_text)?,
    }
    if task.status == "succeeded" { Ok(()) } else { Err(Failure::No) }
}

fn has_ended(task: &TaskView) -> bool {
    matches!(&*task.status, "succeeded" | "failed" | "cancelled")
}

fn ended(asking: &CommandContext, task: TaskView) -> Outcome {
    let has_succeeded = task.status == "succeeded";
    asking.print(&task, as_text)?;
    if has_succeeded { Ok(()) } else { Err(Failure::No) }
}

async fn bulk(
    asking: &CommandContext,
    action: BulkAction,
    which: TaskFilterArguments,
    all: bool,
    dry_run: bool,
    by: WorkflowArgument,
) -> Outcome {
    let TaskFilterArguments { name, status, label, since, until } = which;
    let label = label.map(|(key, value)| format!("{key}:{value}"));
    let filter = BulkFilter { name, status, label, since, until };
    let fields = [&filter.name, &filter.status, &filter.label, &filter.since, &filter.until];
    if !all && fields.iter().all(|field| field.is_none()) {
        return Err(Failure::Usage("no filter: select tasks with a flag such as `--status`, or use `--all`".into()));
    }
    let (api, past) = match action {
        BulkAction::Cancel => (api::BulkAction::Cancel, "cancelled"),
        BulkAction::Retry => (api::BulkAction::Retry, "retried"),
        BulkAction::Delete => (api::BulkAction::Delete, "deleted"),
    };
    let request = BulkRequest { action: api, filter, dry_run, actor: by.actor };
    let mut sum = BulkView { matched: 0, changed: 0, tasks: Vec::new(), unreadable: Vec::new(), more: false };
    loop {
        let part = asking.client.tasks().bulk(&request).await?;
        sum.matched += part.matched;
        sum.changed += part.changed;
        sum.tasks.extend(part.tasks);
        // Tasks that cannot be read still match in the next call.
        sum.unreadable = part.unreadable;
        sum.more = part.more;
        // Changed tasks no longer match the filter. If nothing changed, the next answer would be the same.
        if !part.more || part.changed == 0 {
            break;
        }
    }
    table::say_unreadable(asking, &sum.unreadable);
    asking.print(&sum, |sum| {
        let more = if sum.more { ", and there are more" } else { "" };
        match dry_run {
            true => {
                let ids: String = sum.tasks.iter().map(|id| format!("{id}\n")).collect();
                format!("{ids}{} would be {past}{more}", tasks_of(sum.matched))
            }
            false => format!("{} {past}{more}", tasks_of(sum.changed)),
        }
    })
}

fn tasks_of(count: usize) -> String {
    format!("{count} task{}", if count == 1 { "" } else { "s" })
}

fn status(view: &TaskStatusView) -> String {
    format!("{} is {}", view.task_id, view.status)
}

fn retried(view: &RetriedView) -> String {
    match view {
        RetriedView::Due(view) => format!("{} is due now", view.task_id),
        RetriedView::Released(view) => view.task_id.clone(),
    }
}

fn row(task: &TaskView) -> Vec<String> {
    let tries = format!("{}/{}", task.attempt, task.max_attempts);
    vec![task.id.clone(), task.name.clone(), task.status.to_string(), tries, time(&task.created_at), detail(task)]
}

fn detail(task: &TaskView) -> String {
    let mut parts = Vec::new();
    parts.extend(task.leased_by.as_ref().map(|worker| format!("by {worker}")));
    parts.extend(task.error.as_ref().filter(|_| task.status != "succeeded").map(|e| e.message.clone()));
    parts.extend(task.next_attempt_at.as_ref().map(|at| format!("again at {}", time(at))));
    parts.extend(task.released_as.as_ref().map(|id| format!("released as {id}")));
    parts.join(", ").replace('\n', " ")
}

fn as_text(task: &TaskView) -> String {
    let took = style::between(task.started_at.as_deref(), task.finished_at.as_deref()).map(span);
    let labels: Vec<String> = task.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let json = |value: &Value| Some(style::cut(&value.to_string(), 1_000)).filter(|_| !value.is_null());
    let is_open = !has_ended(task);
    fields(&[
        ("id", Some(task.id.clone())),
        ("type", Some(task.name.clone())),
        ("status", Some(task.status.to_string())),
        ("error", task.error.as_ref().map(|e| format!("{}: {}", e.code, e.message))),
        ("tries", Some(format!("{} of {}", task.attempt, task.max_attempts))),
        ("leased by", task.leased_by.clone()),
        ("lease until", task.lease_until.as_deref().map(time)),
        ("again at", task.next_attempt_at.as_deref().map(time)),
        ("not before", task.run_at.as_deref().map(time).filter(|_| is_open)),
        ("released as", task.released_as.clone()),
        ("workflow", task.workflow.as_ref().map(|name| format!("{name}, step {}", task.step))),
        ("run", Some(task.run_id.clone())),
        ("created", Some(time(&task.created_at))),
        ("took", took),
        ("labels", Some(labels.join(", ")).filter(|text| !text.is_empty())),
        ("key", task.concurrency_key.clone()),
        ("progress", json(&task.progress)),
        ("input", json(&task.input)),
        ("result", json(&task.result)),
    ])
}
