//! `onward runs`: lists, shows, follows and changes runs.

mod bulk;

use super::style::{self, clean, span, time};
use super::table::{fields, list, table};
use super::workflows::WorkflowArgument;
use super::{CommandContext, Connection, Failure, Outcome, PageOptions, follow, trigger};
use api::{
    CancelRequest, DecidedView, DecisionRequest, DryRunView, EventRefView, ExplainView, ForkRequest, MoveRequest,
    OverriddenView, OverrideRequest, PauseRequest, RecoveryView, ReplayRequest, ReplayVersion, ResultRequest,
    ResumeRunRequest, RetryRequest, RunDiffView, RunForkView, RunMomentView, RunMoveView, RunRetryView, RunStatusView,
    RunSummary, RunView, StepChangeView, StepMomentView, StepView, UndoneStepView, WaitGroupView, WaitSummaryView,
};
use client::RunQuery;
use kernel::plan::Form;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct OverrideArguments {
    #[command(flatten)]
    by: WorkflowArgument,
    /// Why, for the history
    #[arg(long, default_value_t)]
    reason: String,
    /// Change nothing, and print what would follow
    #[arg(long)]
    dry_run: bool,
}

impl OverrideArguments {
    fn request(self) -> OverrideRequest {
        OverrideRequest { actor: self.by.actor, reason: self.reason, dry_run: self.dry_run }
    }
}

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List runs, newest first
    List {
        /// Only of this workflow: id, name or slug
        #[arg(long)]
        workflow: Option<String>,
        /// Only with this status, or one of several: failed,timeout
        #[arg(long)]
        status: Option<String>,
        /// Only of this form, or one of several: graph,script (default: every form but task)
        #[arg(long)]
        form: Option<String>,
        /// Runs of single tasks, the same as --form task
        #[arg(long, conflicts_with = "form")]
        tasks: bool,
        /// Only with this label
        #[arg(long, value_name = "KEY=VALUE", value_parser = trigger::label)]
        label: Option<(String, String)>,
        /// Only those created at this time or later: 2026-11-15T09:00:00Z, or 1h for an hour ago
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Only those created before this time
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Show a run and its steps
    Show {
        run: String,
        /// As it was right after the event with this number
        #[arg(long, value_name = "NUMBER")]
        at: Option<u64>,
    },
    /// Show what changed in a run between two events
    Diff {
        run: String,
        /// The number of the earlier event
        #[arg(long, value_name = "NUMBER")]
        from: u64,
        /// The number of the later event (default: the last one)
        #[arg(long, value_name = "NUMBER")]
        to: Option<u64>,
    },
    /// List the steps of a run, or what is inside of one
    Steps {
        run: String,
        /// The iterations of this loop, or the steps of this group or iteration, such as `orders[3]`
        #[arg(long, value_name = "KEY")]
        under: Option<String>,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Print the events of a run, past and future, until it ends
    Tail {
        run: String,
        /// Only events after this number
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
    },
    /// Say why a run, or one of its steps, is where it is, and what can be done
    Explain {
        #[arg(required_unless_present = "workflow")]
        run: Option<String>,
        #[arg(long, requires = "run")]
        step: Option<String>,
        /// Sum up what all open runs of this workflow wait for: id, name or slug
        #[arg(long, conflicts_with = "run")]
        workflow: Option<String>,
    },
    /// Cancel runs
    Cancel {
        #[arg(required = true)]
        runs: Vec<String>,
        #[command(flatten)]
        by: WorkflowArgument,
        /// Why, for the history
        #[arg(long, default_value_t)]
        reason: String,
        /// Undo first what the runs did: their steps with `compensate`, the latest first
        #[arg(long)]
        compensate: bool,
    },
    /// Start nothing new in a run until it is resumed
    Pause {
        run: String,
        #[command(flatten)]
        by: WorkflowArgument,
        /// A note for others
        #[arg(long, default_value_t)]
        note: String,
    },
    /// Let a paused run, or a pause step of it, continue
    Resume {
        run: String,
        /// Which pause step, if several wait
        #[arg(long)]
        step: Option<String>,
        #[command(flatten)]
        by: WorkflowArgument,
    },
    /// Send a signal to a run
    Signal {
        run: String,
        name: String,
        /// What the step that reads it gets as its body: JSON, `@file`, or `-` for standard input
        #[arg(long, value_name = "JSON")]
        input: Option<String>,
        /// A second request with the same key sends nothing
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Approve a step that waits for an approval
    Approve {
        run: String,
        #[command(flatten)]
        decision: DecisionArguments,
    },
    /// Reject a step that waits for an approval
    Reject {
        run: String,
        #[command(flatten)]
        decision: DecisionArguments,
    },
    /// Go on with a run that failed or timed out; in an open one, make attempts that wait for their retry time now
    Retry {
        run: String,
        /// Of an open run: only this step
        #[arg(long, conflicts_with = "from")]
        step: Option<String>,
        /// Of a run that has ended: run this step again, too, with what depends on it
        #[arg(long, value_name = "STEP")]
        from: Option<String>,
        /// Irreversible steps that succeeded may run again
        #[arg(long)]
        allow_irreversible: bool,
        /// Print which steps would run, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Why, for the history
        #[arg(long, default_value_t)]
        reason: String,
        #[command(flatten)]
        by: WorkflowArgument,
    },
    /// Skip a step of an open run; what needs it follows
    Skip {
        run: String,
        step: String,
        #[command(flatten)]
        decision: OverrideArguments,
    },
    /// Let a step of an open run succeed with a result
    SetResult {
        run: String,
        step: String,
        /// What the step has as its body: JSON, `@file`, or `-` for standard input
        #[arg(value_name = "JSON")]
        result: String,
        #[command(flatten)]
        decision: OverrideArguments,
    },
    /// End the sleep of a step, or the time before its next attempt
    RunNow {
        run: String,
        step: String,
        #[command(flatten)]
        decision: OverrideArguments,
    },
    /// Start a new run with the same input
    Replay {
        run: String,
        /// Use the current version of the workflow, not the one of the old run
        #[arg(long)]
        latest: bool,
        /// Repeat also what can be neither undone nor repeated
        #[arg(long)]
        allow_irreversible: bool,
        /// Watch its steps until it ends; exit 0 only if it completed
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        by: WorkflowArgument,
    },
    /// Start a new run that takes over the results of one that has ended, up to a step
    Fork {
        run: String,
        /// The first step that runs again
        #[arg(long, value_name = "STEP")]
        from: String,
        /// The input of the new run: JSON, `@file`, or `-` for standard input
        #[arg(long, value_name = "JSON")]
        input: Option<String>,
        /// The result of a step that is not to run
        #[arg(long = "result", value_name = "STEP=JSON", value_parser = given_result)]
        results: Vec<(String, Value)>,
        /// Repeat also what can be neither undone nor repeated
        #[arg(long)]
        allow_irreversible: bool,
        /// Watch its steps until it ends; exit 0 only if it completed
        #[arg(long, conflicts_with = "dry_run")]
        follow: bool,
        #[command(flatten)]
        decision: OverrideArguments,
    },
    /// Go on with another version of the workflow
    Move {
        run: String,
        /// The number of the version (default: the current one)
        #[arg(long, value_name = "NUMBER")]
        version: Option<u32>,
        #[command(flatten)]
        decision: OverrideArguments,
    },
    /// Cancel, retry or replay every run that matches a filter
    Bulk(bulk::Arguments),
    /// Delete runs that have ended
    Delete {
        #[arg(required = true)]
        runs: Vec<String>,
    },
}

#[derive(clap::Args)]
struct DecisionArguments {
    /// Who decides
    #[arg(long)]
    actor: String,
    /// Which step, if several wait for an approval
    #[arg(long)]
    step: Option<String>,
    /// Why, for the history and for later steps
    #[arg(long, default_value_t)]
    comment: String,
    /// Decide only if the approval still shows this
    #[arg(long, value_name = "HASH")]
    shown_hash: Option<String>,
}

impl From<DecisionArguments> for DecisionRequest {
    fn from(arguments: DecisionArguments) -> DecisionRequest {
        let DecisionArguments { actor, step, comment, shown_hash } = arguments;
        DecisionRequest { actor, step, comment, shown_hash, ..DecisionRequest::default() }
    }
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &CommandContext, verb: Verb) -> Outcome {
    let client = &asking.client;
    match verb {
        Verb::List { workflow, status, form, tasks, label, since, until, part } => {
            const HEADER: &[&str] = &["ID", "WORKFLOW", "STATUS", "STARTED", "TOOK", "DETAIL"];
            let label = label.map(|(key, value)| format!("{key}:{value}"));
            let form =
                if tasks { Some(Form::Task.as_str().to_owned()) } else { form.or_else(|| Some(workflow_forms())) };
            let query = RunQuery { status, workflow, form, label, since, until, limit: None, cursor: None };
            let fetch = async |limit, cursor| {
                let query = RunQuery { limit: Some(limit), cursor, ..query.clone() };
                client.runs(&query).await
            };
            list(asking, &part, HEADER, row, fetch).await
        }
        Verb::Show { run, at: None } => asking.print(&client.run(&run).await?, as_text),
        Verb::Show { run, at: Some(seq) } => asking.print(&client.run_at(&run, seq).await?, as_text),
        Verb::Diff { run, from, to } => asking.print(&client.run_diff(&run, from, to).await?, changes),
        Verb::Steps { run, under, part } => {
            let fetch = async |limit, cursor| client.steps_under(&run, under.as_deref(), Some(limit), cursor).await;
            list(asking, &part, STEPS, |step| step_row(step.step.as_deref().unwrap_or_default(), step), fetch).await
        }
        Verb::Tail { run, after } => {
            let mut events = client.follow(&run, after).await?;
            while let Some(event) = events.next().await? {
                follow::print(asking, &event)?;
            }
            Ok(())
        }
        Verb::Explain { workflow: Some(workflow), .. } => {
            let summary = client.explain_workflow(&workflow).await?;
            if summary.truncated {
                asking.say(&format!("only the newest {} open runs were read", summary.runs));
            }
            if summary.data.is_empty() {
                asking.say("no open runs");
            }
            asking.print(&summary, waits)
        }
        Verb::Explain { run, step, .. } => {
            asking.print(&client.explain(&run.unwrap_or_default(), step.as_deref()).await?, explained)
        }
        Verb::Cancel { runs, by, reason, compensate } => {
            let request = CancelRequest { actor: by.actor, reason, compensate };
            each(asking, &runs, async |run| asking.print(&client.cancel(run, &request).await?, status)).await
        }
        Verb::Pause { run, by, note } => asking
            .print(&client.pause(&run, &PauseRequest { actor: by.actor, note }).await?, |view| {
                format!("{} is paused", view.id)
            }),
        Verb::Resume { run, step, by } => {
            asking.print(&client.resume(&run, &ResumeRunRequest { actor: by.actor, step }).await?, status)
        }
        Verb::Signal { run, name, input, idempotency_key } => {
            let body = input.as_deref().map(trigger::read).transpose()?;
            let payload: Value = match &body {
                Some(bytes) => serde_json::from_slice(bytes)
                    .map_err(|error| Failure::Usage(format!("`--input` is not JSON: {error}")))?,
                None => Value::Null,
            };
            let sent = client.signal(&run, &name, &payload, idempotency_key.as_deref()).await?;
            if sent.deduplicated {
                asking.say("sent before with this key");
            }
            asking.print(&sent, |sent| {
                format!("{} has the signal {} and is {}", sent.run_id, clean(&sent.name), sent.status)
            })
        }
        Verb::Approve { run, decision } => asking.print(&client.approve(&run, &decision.into()).await?, decided),
        Verb::Reject { run, decision } => asking.print(&client.reject(&run, &decision.into()).await?, decided),
        Verb::Retry { run, step, from, allow_irreversible, dry_run, reason, by } => {
            let request = RetryRequest { actor: by.actor, reason, step, from, allow_irreversible, dry_run };
            asking.print(&client.retry(&run, &request).await?, retried)
        }
        Verb::Skip { run, step, decision } => {
            asking.print(&client.skip_step(&run, &step, &decision.request()).await?, overridden)
        }
        Verb::SetResult { run, step, result, decision } => {
            let bytes = trigger::read(&result)?;
            let result = serde_json::from_slice(&bytes)
                .map_err(|error| Failure::Usage(format!("the result is not JSON: {error}")))?;
            let OverrideRequest { actor, reason, dry_run } = decision.request();
            let request = ResultRequest { result, actor, reason, dry_run };
            asking.print(&client.set_step_result(&run, &step, &request).await?, overridden)
        }
        Verb::RunNow { run, step, decision } => {
            asking.print(&client.run_step_now(&run, &step, &decision.request()).await?, overridden)
        }
        Verb::Replay { run, latest, allow_irreversible, follow: is_followed, by } => {
            let version = if latest { ReplayVersion::Latest } else { ReplayVersion::Pinned };
            let replayed = client.replay(&run, &ReplayRequest { version, allow_irreversible, actor: by.actor }).await?;
            let id = replayed.run_id.clone();
            if is_followed {
                asking.say(&format!("{id} started"));
                return if follow::follow(asking, &id).await? { Ok(()) } else { Err(Failure::No) };
            }
            asking.print(&replayed, |_| id)
        }
        Verb::Fork { run, from, input, results, allow_irreversible, follow: is_followed, decision } => {
            let read = |input: String| {
                let bytes = trigger::read(&input)?;
                let wrong = |error| Failure::Usage(format!("`--input` is not JSON: {error}"));
                serde_json::from_slice(&bytes).map_err(wrong)
            };
            let input = input.map(read).transpose()?;
            let OverrideRequest { actor, reason, dry_run } = decision.request();
            let results = results.into_iter().collect();
            let request = ForkRequest { from, input, results, allow_irreversible, dry_run, actor, reason };
            let forked = client.fork(&run, &request).await?;
            match &forked {
                RunForkView::Forked(view) if is_followed => {
                    asking.say(&format!("{} started", view.run_id));
                    if follow::follow(asking, &view.run_id).await? { Ok(()) } else { Err(Failure::No) }
                }
                _ => asking.print(&forked, |forked| match forked {
                    RunForkView::Forked(view) => view.run_id.clone(),
                    RunForkView::Planned(plan) => planned(plan),
                }),
            }
        }
        Verb::Move { run, version, decision } => {
            let OverrideRequest { actor, reason, dry_run } = decision.request();
            let request = MoveRequest { version, dry_run, actor, reason };
            asking.print(&client.move_run(&run, &request).await?, |moved| match moved {
                RunMoveView::Moved(view) => format!("{} has version {} and is {}", view.id, view.version, view.status),
                RunMoveView::Planned(plan) => planned(plan),
            })
        }
        Verb::Bulk(arguments) => bulk::run(asking, arguments).await,
        Verb::Delete { runs } => {
            each(asking, &runs, async |run| {
                client.delete_run(run).await?;
                asking.print(&json!({ "id": run, "deleted": true }), |_| format!("{} is deleted", clean(run)))
            })
            .await
        }
    }
}

/// Every form but that of single tasks.
fn workflow_forms() -> String {
    let forms = Form::ALL.iter().filter(|form| **form != Form::Task);
    forms.map(|form| form.as_str()).collect::<Vec<_>>().join(",")
}

/// Runs the command for each id. After a refusal it goes on with the next id.
pub async fn each(asking: &CommandContext, ids: &[String], act: impl AsyncFn(&str) -> Outcome) -> Outcome {
    let mut is_refused = false;
    for id in ids {
        match act(id).await {
            Err(Failure::Client(error @ client::Error::Refused { .. })) if ids.len() > 1 => {
                is_refused = true;
                super::print_failure(Failure::Client(error), asking.json);
            }
            other => other?,
        }
    }
    if is_refused { Err(Failure::No) } else { Ok(()) }
}

fn decided(view: &DecidedView) -> String {
    let before = if view.repeated { " (it was before)" } else { "" };
    format!("{} of {} is {}{before}; the run is {}", clean(&view.step), view.id, view.decision, view.status)
}

fn retried(view: &RunRetryView) -> String {
    match view {
        RunRetryView::Retried(view) => status(view),
        RunRetryView::Planned(plan) => planned(plan),
    }
}

fn planned(DryRunView { would_run, would_repeat }: &DryRunView) -> String {
    let list = |steps: &[String]| match steps {
        [] => "none".to_owned(),
        steps => steps.iter().map(|step| clean(step)).collect::<Vec<_>>().join(", "),
    };
    fields(&[("would run", Some(list(would_run))), ("would repeat", Some(list(would_repeat)))])
}

/// `step=JSON`.
fn given_result(text: &str) -> Result<(String, Value), String> {
    let (step, json) = text.split_once('=').ok_or("expected STEP=JSON")?;
    let value = serde_json::from_str(json).map_err(|error| format!("the result of `{step}` is not JSON: {error}"))?;
    Ok((step.to_owned(), value))
}

fn status(view: &RunStatusView) -> String {
    format!("{} is {}", view.id, view.status)
}

fn row(run: &RunSummary) -> Vec<String> {
    let detail = match (&run.error_code, &run.unhandled_steps[..]) {
        (Some(code), []) => code.clone(),
        (Some(code), steps) => format!("{code}: {}", steps.join(", ")),
        (None, _) => run.waiting_for.join(", "),
    };
    let took = style::between(Some(&run.started_at), run.finished_at.as_deref()).map(span);
    vec![
        run.id.clone(),
        run.workflow.clone(),
        run.status.to_string(),
        time(&run.started_at),
        took.unwrap_or_default(),
        detail,
    ]
}

/// A run as text: its fields, then a table of its steps.
pub fn as_text(run: &RunView) -> String {
    let took = style::between(Some(&run.started_at), run.finished_at.as_deref()).map(span);
    let waiting: Vec<String> = run
        .waiting_for
        .iter()
        .map(|w| {
            let step = w.step.as_ref().map(|step| format!(" of {step}")).unwrap_or_default();
            let until = w.until.as_ref().map(|until| format!(" until {}", time(until))).unwrap_or_default();
            format!("{}{step}{until}", w.kind)
        })
        .collect();
    let labels: Vec<String> =
        run.labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    let mut text = fields(&[
        ("id", Some(run.id.clone())),
        ("as of", run.as_of.as_ref().map(|as_of| format!("{}, of {} events", event(&as_of.event), as_of.last_seq))),
        ("workflow", Some(format!("{} version {}", run.workflow, run.version))),
        ("status", Some(run.status.to_string())),
        ("error", run.error.as_ref().map(|e| format!("{}: {}", e.code, e.message))),
        ("undone", run.recovery.as_ref().map(undone)),
        ("waiting for", Some(waiting.join(", ")).filter(|text| !text.is_empty())),
        ("cancelled by", run.cancelled_by.clone()),
        ("started", Some(format!("{} by {}", time(&run.started_at), run.trigger.kind))),
        ("parent", run.parent.as_ref().map(|p| format!("{} of {} ({})", p.step, p.run_id, p.workflow))),
        ("took", took),
        ("expires", Some(time(&run.expires_at)).filter(|_| run.finished_at.is_none())),
        ("labels", Some(labels.join(", ")).filter(|text| !text.is_empty())),
        ("input", Some(style::cut(&run.input.to_string(), 200)).filter(|_| !run.input.is_null())),
        ("output", Some(style::cut(&run.output.to_string(), 200)).filter(|_| !run.output.is_null())),
    ]);
    let row = |(name, step): (&String, &Value)| match serde_json::from_value::<StepView>(step.clone()) {
        Ok(step) => step_row(name, &step),
        Err(_) => vec![name.to_owned(), String::new(), "?".into(), String::new(), String::new(), String::new()],
    };
    let rows: Vec<Vec<String>> = run.tasks.iter().map(row).collect();
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table(STEPS, &rows));
    }
    text
}

/// An event in one line: its number, type, step and time.
fn event(event: &EventRefView) -> String {
    let step = event.step.as_ref().map(|step| format!(" of {step}")).unwrap_or_default();
    format!("event {} ({}{step}) at {}", event.seq, event.kind, time(&event.at))
}

/// What changed in a run as text: both events, then a table of the steps.
fn changes(diff: &RunDiffView) -> String {
    let moment = |moment: &RunMomentView| format!("{}, the run is {}", event(&moment.event), moment.status);
    let error = diff.to.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
    let output = diff.to.output.as_ref().map(|output| style::cut(&output.to_string(), 200));
    let mut text = fields(&[
        ("run", Some(diff.run_id.clone())),
        ("from", Some(moment(&diff.from))),
        ("to", Some(moment(&diff.to))),
        ("events", Some(diff.event_count.to_string())),
        ("error", error),
        ("output", output),
    ]);
    if !diff.steps.is_empty() {
        text.push('\n');
        text.push_str(&table(CHANGES, &diff.steps.iter().map(change).collect::<Vec<_>>()));
    }
    let more = diff.changed_steps.saturating_sub(diff.steps.len());
    if more > 0 {
        text.push_str(&format!("and {more} more steps\n"));
    }
    text
}

/// What was decided about a step, or what would follow.
fn overridden(view: &OverriddenView) -> String {
    let list = |steps: &Option<Vec<String>>| steps.as_ref().map(|steps| steps.join(", ")).unwrap_or_default();
    match &view.status {
        Some(status) => format!("{} of {} is decided, the run is {status}", view.step, view.run_id),
        None => {
            let (starts, repeats) = (list(&view.would_run), list(&view.would_repeat));
            let or_none = |text: &str| if text.is_empty() { "nothing".to_owned() } else { text.to_owned() };
            format!("would start: {}; of these ran before: {}", or_none(&starts), or_none(&repeats))
        }
    }
}

/// What was undone, in order, what could not be, and what is left.
fn undone(recovery: &RecoveryView) -> String {
    let name = |step: &UndoneStepView| match &*step.status {
        "success" => step.step.clone(),
        status => format!("{} ({status})", step.step),
    };
    let mut text = recovery.steps.iter().map(name).collect::<Vec<_>>().join(", ");
    if !recovery.remaining.is_empty() {
        text += &format!("; still to undo: {}", recovery.remaining.join(", "));
    }
    text
}

const CHANGES: &[&str] = &["STEP", "BEFORE", "STATUS", "TRIES", "DETAIL"];

fn change(change: &StepChangeView) -> Vec<String> {
    let StepMomentView { status, attempt, status_code, until, error, .. } = &change.to;
    let mut detail = Vec::new();
    detail.extend(status_code.map(|code| format!("status {code}")));
    detail.extend(error.as_ref().map(|error| error.message.clone()));
    detail.extend(until.as_ref().map(|until| format!("until {}", time(until))));
    let before = change.from.as_ref().map_or("-", |before| &before.status);
    vec![change.step.clone(), before.to_owned(), status.to_string(), attempt.to_string(), detail.join(", ")]
}

const STEPS: &[&str] = &["STEP", "TYPE", "STATUS", "TRIES", "TOOK", "DETAIL"];

fn step_row(name: &str, step: &StepView) -> Vec<String> {
    let detail = detail(step);
    vec![
        name.to_owned(),
        step.kind.to_string(),
        step.status.to_string(),
        step.attempt.to_string(),
        step.duration_ms.filter(|_| step.started_at.is_some()).map(span).unwrap_or_default(),
        detail,
    ]
}

fn detail(step: &StepView) -> String {
    let mut parts = Vec::new();
    // The message of an `http_status` error names the status already.
    let code = step.status_code.filter(|_| step.error.as_ref().is_none_or(|error| error.code != "http_status"));
    parts.extend(code.map(|code| format!("status {code}")));
    parts.extend(step.error.as_ref().map(|error| error.message.clone()));
    for (at, word) in [(&step.wake_at, "until"), (&step.deadline, "until"), (&step.next_attempt_at, "again at")] {
        parts.extend(at.as_ref().map(|at| format!("{word} {}", time(at))));
    }
    if let Some(counts) = &step.counts {
        let counts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
        parts.push(counts.join(", "));
    }
    parts.extend(step.child.as_ref().map(|child| format!("{} of {}", child.run_id, child.workflow)));
    if let Some(skip) = &step.skipped_because {
        let saw = skip.saw.iter().flatten().map(|(path, value)| format!("{path} was {value}"));
        let needs =
            skip.steps.iter().flatten().map(|(step, status)| format!("{step} {}", status.as_str().unwrap_or("?")));
        let evidence: Vec<String> = saw.chain(needs).collect();
        let condition = skip.condition.as_ref().map(|c| format!("`{c}`: ")).unwrap_or_default();
        parts.push(format!("{condition}{}", evidence.join(", ")));
    }
    parts.join(", ")
}

fn explained(view: &ExplainView) -> String {
    let first = &view.first;
    let subject = first.step.as_ref().map_or_else(|| view.run_id.clone(), |step| format!("{step} of {}", view.run_id));
    // An explanation of a step carries the step's own status.
    let of_step = first.step.as_ref().and_then(|_| first.details["status"].as_str());
    let status = of_step.unwrap_or(&view.status);
    let mut text = format!("{} is {}: {}\n", clean(&subject), clean(status), first.reason.replace('_', " "));
    text.push_str(&format!("{}\n", clean(&first.summary)));
    if first.chain.len() > 1 {
        text.push_str("\nbecause\n");
        for link in &first.chain {
            text.push_str(&format!("  {} {}: {}\n", link.what, clean(&link.name), clean(&link.summary)));
        }
    }
    if view.causes.len() > 1 {
        text.push_str("\nand also\n");
        for cause in &view.causes[1..] {
            text.push_str(&format!("  {}\n", clean(&cause.summary)));
        }
        if view.more_causes > 0 {
            text.push_str(&format!("  and {} more\n", view.more_causes));
        }
    }
    if !first.next_actions.is_empty() {
        text.push_str("\nwhat can be done\n");
        for action in &first.next_actions {
            let body = action.body.as_ref().map(|body| format!(" {body}")).unwrap_or_default();
            text.push_str(&format!(
                "  {:<12} {} {}{}\n",
                clean(&action.action),
                clean(&action.method),
                clean(&action.path),
                clean(&body)
            ));
        }
    }
    text
}

fn waits(summary: &WaitSummaryView) -> String {
    let row = |group: &WaitGroupView| {
        let step = group.step.clone().unwrap_or_else(|| "-".into());
        vec![group.count.to_string(), group.reason.replace('_', " "), step, group.example_run.clone()]
    };
    let rows: Vec<Vec<String>> = summary.data.iter().map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["RUNS", "REASON", "STEP", "EXAMPLE"], &rows) }
}
