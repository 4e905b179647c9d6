//! `onward triggers`: schedules, webhooks, and what came through them.

use super::style::{clean, time};
use super::table::{fields, list};
use super::{Asking, Connection, Failure, Outcome, Part, pretty, trigger};
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
    /// List triggers, newest first
    List {
        /// Only of this workflow: id, name or slug
        #[arg(long)]
        workflow: Option<String>,
        #[command(flatten)]
        part: Part,
    },
    /// Show a trigger
    Show { trigger: String },
    /// Create a trigger from JSON: text, `@file`, or `-` for standard input
    Create { json: String },
    /// Let a trigger start runs again
    Enable { trigger: String },
    /// Keep a trigger from starting runs
    Disable { trigger: String },
    /// Start a run through a trigger now
    Run {
        trigger: String,
        /// What the run gets: JSON, `@file`, or `-` for standard input
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
        Verb::List { workflow, part } => {
            let workflow = workflow.as_deref();
            let fetch =
                async |limit, cursor: Option<String>| client.triggers(workflow, Some(limit), cursor.as_deref()).await;
            list(asking, &part, &["ID", "NAME", "TYPE", "WORKFLOW", "STATUS", "NEXT"], row, fetch).await
        }
        Verb::Show { trigger } => asking.print(&client.trigger_of(&trigger).await?, words),
        Verb::Create { json } => asking.print(&client.create_trigger(&parse(&json)?).await?, words),
        Verb::Enable { trigger } => asking.print(&client.change_trigger(&trigger, "enable", None).await?, short),
        Verb::Disable { trigger } => asking.print(&client.change_trigger(&trigger, "disable", None).await?, short),
        Verb::Run { trigger, input } => {
            let body = input.as_deref().map(parse).transpose()?;
            let started = client.change_trigger(&trigger, "run", body.as_ref()).await?;
            asking.print(&started, |started| match started["run_id"].as_str() {
                Some(run) => run.to_owned(),
                None => pretty(started),
            })
        }
        Verb::Preview { trigger, count } => asking.print(&client.preview_trigger(&trigger, count).await?, |value| {
            let times = value.as_array().or(value["times"].as_array()).cloned().unwrap_or_default();
            times.iter().map(|at| format!("{}\n", at.as_str().map_or_else(|| at.to_string(), clean))).collect()
        }),
        Verb::Deliveries { trigger, part } => {
            let trigger = trigger.as_str();
            let fetch =
                async |limit, cursor: Option<String>| client.deliveries(trigger, Some(limit), cursor.as_deref()).await;
            list(asking, &part, &["ID", "AT", "STATUS", "RUN", "DETAIL"], delivery, fetch).await
        }
        Verb::Delete { trigger } => {
            client.delete_trigger(&trigger).await?;
            asking.print(&json!({ "id": trigger, "deleted": true }), |_| format!("{} is deleted", clean(&trigger)))
        }
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
        text(trigger, "workflow"),
        state(trigger).into(),
        time(&text(trigger, "next_at")),
    ]
}

fn delivery(delivery: &Value) -> Vec<String> {
    vec![
        text(delivery, "id"),
        time(&text(delivery, "at")),
        text(delivery, "status"),
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
