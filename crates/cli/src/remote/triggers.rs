//! `onward triggers`: schedules, webhooks, and what came through them.

use super::style::{clean, time};
use super::table::{fields, list, table};
use super::workflows::{called, definition};
use super::{Asking, Connection, Failure, Outcome, Part, trigger};
use crate::validate;
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
        part: Part,
    },
    /// Show a trigger
    Show { trigger: String },
    /// Create a trigger
    Create {
        /// JSON or YAML: name, type, workflow, config; `-` is standard input
        file: PathBuf,
    },
    /// Let a trigger start runs again
    Enable {
        trigger: String,
        /// What others should know
        #[arg(long)]
        note: Option<String>,
    },
    /// Keep a trigger from starting runs
    Disable {
        trigger: String,
        /// What others should know
        #[arg(long)]
        note: Option<String>,
    },
    /// Start a run through a trigger now
    Run {
        trigger: String,
        /// What the run gets as `trigger.body`: JSON, `@file`, or `-` for standard input
        #[arg(long, value_name = "JSON")]
        input: Option<String>,
    },
    /// Print when a schedule fires next
    Preview {
        trigger: String,
        /// How many times
        #[arg(long, value_name = "N")]
        count: Option<u32>,
    },
    /// List what came through a trigger, newest first
    Deliveries {
        trigger: String,
        #[command(flatten)]
        part: Part,
    },
    /// Start a run with what came in an earlier delivery
    Redeliver { trigger: String, delivery: String },
    /// Delete a trigger
    Delete { trigger: String },
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &Asking, verb: Verb) -> Outcome {
    let client = &asking.client;
    match verb {
        Verb::List { workflow, kind, part } => {
            let (workflow, kind) = (workflow.as_deref(), kind.as_deref());
            let fetch = async |limit, cursor: Option<String>| {
                client.triggers(workflow, kind, Some(limit), cursor.as_deref()).await
            };
            list(asking, &part, &["ID", "NAME", "TYPE", "STATUS", "NEXT", "WORKFLOW"], row, fetch).await
        }
        Verb::Show { trigger } => asking.print(&client.trigger_of(&trigger).await?, words),
        Verb::Create { file } => create(asking, &file).await,
        Verb::Enable { trigger, note } => {
            asking.print(&client.switch_trigger(&trigger, true, note.as_deref()).await?, short)
        }
        Verb::Disable { trigger, note } => {
            asking.print(&client.switch_trigger(&trigger, false, note.as_deref()).await?, short)
        }
        Verb::Run { trigger, input } => {
            let variables = input.as_deref().map(parse).transpose()?;
            let started = client.run_trigger(&trigger, variables.as_ref()).await?;
            asking.print(&started, |started| started.run_id.clone())
        }
        Verb::Preview { trigger, count } => {
            let moments = client.preview_trigger(&trigger, count).await?;
            asking.print(&json!({ "data": moments, "next": null }), |_| {
                let rows: Vec<Vec<String>> = moments.iter().map(moment).collect();
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
            asking.print(&client.redeliver(&trigger, &delivery).await?, |started| text(started, "run_id"))
        }
        Verb::Delete { trigger } => {
            client.delete_trigger(&trigger).await?;
            asking.print(&json!({ "id": trigger, "deleted": true }), |_| format!("{} is deleted", clean(&trigger)))
        }
    }
}

async fn create(asking: &Asking, file: &Path) -> Outcome {
    let source =
        validate::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))?;
    match asking.client.create_trigger(&definition(file, &source)).await {
        Ok(trigger) => asking.print(&trigger, words),
        Err(client::Error::Refused { problem, .. }) => {
            let source = String::from_utf8_lossy(&source).into_owned();
            Err(Failure::InSource { name: called(file), source, problem })
        }
        Err(error) => Err(error.into()),
    }
}

/// It is put together here, so it has to be understood here.
fn parse(input: &str) -> Result<Value, Failure> {
    let bytes = trigger::read(input)?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::Usage(format!("`{input}` is not JSON: {error}")))
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn state(trigger: &Value) -> &'static str {
    if trigger["enabled"] == false { "disabled" } else { "enabled" }
}

fn row(trigger: &Value) -> Vec<String> {
    vec![
        text(trigger, "id"),
        text(trigger, "name"),
        text(trigger, "type"),
        state(trigger).into(),
        time(&text(trigger, "next_at")),
        text(trigger, "workflow_id"),
    ]
}

fn moment(moment: &Value) -> Vec<String> {
    vec![time(&text(moment, "at")), text(moment, "local"), time(&text(moment, "starts_at"))]
}

fn delivery(delivery: &Value) -> Vec<String> {
    vec![
        text(delivery, "id"),
        time(&text(delivery, "at")),
        text(delivery, "outcome"),
        text(delivery, "run_id"),
        text(delivery, "reason"),
    ]
}

fn short(trigger: &Value) -> String {
    let name = Some(text(trigger, "name")).filter(|name| !name.is_empty());
    format!("{} is {}", clean(&name.unwrap_or_else(|| text(trigger, "id"))), state(trigger))
}

/// Every field there is: triggers differ.
fn words(trigger: &Value) -> String {
    let shown = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let all: Vec<(&str, Option<String>)> =
        trigger.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), shown(value))).collect();
    fields(&all)
}
