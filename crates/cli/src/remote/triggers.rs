//! `onward triggers`: schedules, webhooks, and their deliveries.

use super::style::{clean, time};
use super::table::{fields, list, table};
use super::workflows::{WorkflowArgument, definition, display_name};
use super::{CommandContext, Connection, Failure, Outcome, PageOptions, trigger};
use crate::validate;
use api::{DeliveryView, FireRequest, FireTimeView, SwitchRequest, TriggerDetail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
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
    /// List triggers, newest first
    List {
        /// Only of this workflow: id, name or slug
        #[arg(long)]
        workflow: Option<String>,
        /// Only of this type: schedule, webhook or manual
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<String>,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Show a trigger
    Show { trigger: String },
    /// Create a trigger
    Create {
        /// JSON or YAML: name, type, workflow, config, input; `-` is standard input
        file: PathBuf,
    },
    /// Let a trigger start runs again
    Enable {
        trigger: String,
        /// A note for others
        #[arg(long)]
        note: Option<String>,
    },
    /// Keep a trigger from starting runs
    Disable {
        trigger: String,
        /// A note for others
        #[arg(long)]
        note: Option<String>,
    },
    /// Start a run of a trigger now, as the trigger would
    Run {
        trigger: String,
        /// What the run gets as `trigger.body`, over the input of the trigger: JSON, `@file`, or `-` for standard input
        #[arg(long, value_name = "JSON")]
        input: Option<String>,
        #[command(flatten)]
        by: WorkflowArgument,
    },
    /// Print when a schedule fires next
    Preview {
        trigger: String,
        /// How many times
        #[arg(long, value_name = "N")]
        count: Option<u32>,
    },
    /// List the deliveries of a trigger, newest first
    Deliveries {
        trigger: String,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Start a run with the payload of an earlier delivery
    Redeliver { trigger: String, delivery: String },
    /// Delete a trigger
    Delete { trigger: String },
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &CommandContext, verb: Verb) -> Outcome {
    let client = &asking.client;
    match verb {
        Verb::List { workflow, kind, part } => {
            let (workflow, kind) = (workflow.as_deref(), kind.as_deref());
            let fetch = async |limit, cursor: Option<String>| {
                client.triggers(workflow, kind, Some(limit), cursor.as_deref()).await
            };
            list(asking, &part, &["ID", "NAME", "TYPE", "STATUS", "NEXT", "WORKFLOW"], row, fetch).await
        }
        Verb::Show { trigger } => asking.print(&client.show_trigger(&trigger).await?, as_text),
        Verb::Create { file } => create(asking, &file).await,
        Verb::Enable { trigger, note } => {
            asking.print(&client.switch_trigger(&trigger, true, &SwitchRequest { note }).await?, short)
        }
        Verb::Disable { trigger, note } => {
            asking.print(&client.switch_trigger(&trigger, false, &SwitchRequest { note }).await?, short)
        }
        Verb::Run { trigger, input, by } => {
            let variables = input.as_deref().map(parse).transpose()?;
            let started = client.run_trigger(&trigger, &FireRequest { variables, actor: by.actor }).await?;
            asking.print(&started, |started| started.run_id.clone())
        }
        Verb::Preview { trigger, count } => {
            let fire_times = client.preview_trigger(&trigger, count).await?;
            asking.print(&json!({ "data": fire_times, "next": null }), |_| {
                let rows: Vec<Vec<String>> = fire_times.iter().map(fire_time).collect();
                table(&["AT", "LOCAL", "STARTS"], &rows)
            })
        }
        Verb::Deliveries { trigger, part } => {
            let trigger = trigger.as_str();
            let fetch =
                async |limit, cursor: Option<String>| client.deliveries(trigger, Some(limit), cursor.as_deref()).await;
            list(asking, &part, &["ID", "AT", "OUTCOME", "RUN", "REASON"], delivery, fetch).await
        }
        Verb::Redeliver { trigger, delivery } => {
            asking.print(&client.redeliver(&trigger, &delivery).await?, |done| match (&done.run_id, done.signalled) {
                (Some(run), _) => run.clone(),
                (None, count) => format!("{} open runs got the signal", count.unwrap_or(0)),
            })
        }
        Verb::Delete { trigger } => {
            client.delete_trigger(&trigger).await?;
            asking.print(&json!({ "id": trigger, "deleted": true }), |_| format!("{} is deleted", clean(&trigger)))
        }
    }
}

async fn create(asking: &CommandContext, file: &Path) -> Outcome {
    let source =
        validate::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))?;
    match asking.client.create_trigger(&definition(file, &source)).await {
        Ok(trigger) => asking.print(&trigger, as_text),
        Err(client::Error::Refused { problem, .. }) => {
            let source = String::from_utf8_lossy(&source).into_owned();
            Err(Failure::InSource { name: display_name(file), source, problem })
        }
        Err(error) => Err(error.into()),
    }
}

/// The input becomes a field of the request, so it must be valid JSON.
fn parse(input: &str) -> Result<Value, Failure> {
    let bytes = trigger::read(input)?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::Usage(format!("`{input}` is not JSON: {error}")))
}

fn state(trigger: &TriggerDetail) -> &'static str {
    if trigger.enabled { "enabled" } else { "disabled" }
}

fn row(trigger: &TriggerDetail) -> Vec<String> {
    vec![
        trigger.id.clone(),
        trigger.name.clone(),
        trigger.kind.to_string(),
        state(trigger).into(),
        trigger.next_at.as_deref().map(time).unwrap_or_default(),
        trigger.workflow.clone(),
    ]
}

fn fire_time(fire_time: &FireTimeView) -> Vec<String> {
    vec![time(&fire_time.at), fire_time.local.clone().unwrap_or_default(), time(&fire_time.starts_at)]
}

fn delivery(delivery: &DeliveryView) -> Vec<String> {
    vec![
        delivery.id.clone(),
        time(&delivery.at),
        delivery.outcome.to_string(),
        delivery.run_id.clone().unwrap_or_default(),
        delivery.reason.clone().unwrap_or_default(),
    ]
}

fn short(trigger: &TriggerDetail) -> String {
    format!("{} is {}", clean(&trigger.name), state(trigger))
}

fn as_text(trigger: &TriggerDetail) -> String {
    // The fields of the configuration depend on the trigger's type.
    let config = trigger.config.as_object().into_iter().flatten();
    let settings: Vec<(&str, Option<String>)> = config
        .map(|(name, value)| (name.as_str(), Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))))
        .collect();
    let last = trigger.last_run_at.as_ref().zip(trigger.last_run_id.as_ref());
    let mut shown = vec![
        ("id", Some(trigger.id.clone())),
        ("name", Some(trigger.name.clone())),
        ("type", Some(trigger.kind.to_string())),
        ("workflow", Some(trigger.workflow.clone())),
        ("status", Some(state(trigger).into())),
        ("note", trigger.note.clone()),
        ("url", trigger.webhook_url.clone()),
        ("next", trigger.next_at.as_deref().map(time)),
        ("last run", last.map(|(at, run)| format!("{run} at {}", time(at)))),
        ("variables", trigger.variable_mapping.as_ref().map(Value::to_string)),
        ("input", trigger.input.as_ref().map(Value::to_string)),
    ];
    shown.extend(settings);
    fields(&shown)
}
