//! `onward types`: task types, their limits and rates, pausing and resuming them.

use super::style::{clean, time};
use super::table::{fields, list};
use super::workflows::WorkflowArgument;
use super::{CommandContext, Connection, Outcome, PageOptions};
use api::{Code, PauseRequest, ResumeRequest, TypeLimits, TypeRate, TypeRequest, TypeView};
use serde_json::Value;
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
    /// List types, by name
    List {
        /// Only types that begin with this
        #[arg(long)]
        prefix: Option<String>,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Show a type
    Show {
        #[arg(value_name = "TYPE")]
        name: String,
    },
    /// Create or change a type; settings that are not named stay, `none` removes one
    Put {
        #[arg(value_name = "TYPE")]
        name: String,
        #[command(flatten)]
        change: TypeArguments,
    },
    /// Accept tasks of a type, but lease none until it is resumed
    Pause {
        #[arg(value_name = "TYPE")]
        name: String,
        #[command(flatten)]
        by: WorkflowArgument,
        /// A note for others
        #[arg(long, default_value_t)]
        note: String,
    },
    /// Lease tasks of a type again
    Resume {
        #[arg(value_name = "TYPE")]
        name: String,
        #[command(flatten)]
        by: WorkflowArgument,
    },
}

#[derive(clap::Args)]
struct TypeArguments {
    /// Only workers with this runtime may claim its tasks
    #[arg(long, value_name = "NAME|none", value_parser = or_none)]
    runtime: Option<Clearable<String>>,
    /// A description for people
    #[arg(long, value_name = "TEXT|none", value_parser = or_none)]
    description: Option<Clearable<String>>,
    /// How many tasks may be leased at once
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    concurrency: Option<Clearable<u32>>,
    /// How many tasks with the same concurrency key may be leased at once
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    concurrency_per_key: Option<Clearable<u32>>,
    /// How many tasks may be leased per duration, such as 100/1m
    #[arg(long, value_name = "N/DURATION|none", value_parser = rate_or_none)]
    rate: Option<Clearable<(u32, String)>>,
    /// Count the rate for each concurrency key on its own
    #[arg(long, requires = "rate")]
    rate_per_key: bool,
    /// Accept tasks of this type
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Refuse new tasks of this type, and lease none
    #[arg(long)]
    disable: bool,
}

/// A new value, or `none` to remove the present one.
#[derive(Clone)]
struct Clearable<T>(Option<T>);

fn or_none(text: &str) -> Result<Clearable<String>, String> {
    Ok(Clearable(Some(text.to_owned()).filter(|text| text != "none")))
}

fn number_or_none(text: &str) -> Result<Clearable<u32>, String> {
    match text {
        "none" => Ok(Clearable(None)),
        _ => text.parse().map(|n| Clearable(Some(n))).map_err(|_| "expected a number or `none`".into()),
    }
}

fn rate_or_none(text: &str) -> Result<Clearable<(u32, String)>, String> {
    if text == "none" {
        return Ok(Clearable(None));
    }
    let parts = text.split_once('/').and_then(|(limit, per)| Some((limit.parse().ok()?, per.to_owned())));
    parts.map(|parts| Clearable(Some(parts))).ok_or_else(|| "expected a rate such as 100/1m, or `none`".into())
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &CommandContext, verb: Verb) -> Outcome {
    let types = asking.client.types();
    match verb {
        Verb::List { prefix, part } => {
            let prefix = prefix.as_deref();
            let fetch = async |limit, cursor: Option<String>| types.list(prefix, Some(limit), cursor.as_deref()).await;
            list(asking, &part, &["TYPE", "STATUS", "READY", "LEASED", "WORKERS", "LIMITS"], row, fetch).await
        }
        Verb::Show { name } => asking.print(&types.get(&name).await?, as_text),
        Verb::Put { name, change } => put(asking, &name, change).await,
        Verb::Pause { name, by, note } => {
            asking.print(&types.pause(&name, &PauseRequest { actor: by.actor, note }).await?, short)
        }
        Verb::Resume { name, by } => {
            asking.print(&types.resume(&name, &ResumeRequest { actor: by.actor }).await?, short)
        }
    }
}

async fn put(asking: &CommandContext, name: &str, change: TypeArguments) -> Outcome {
    let types = asking.client.types();
    let concurrency = match (change.concurrency, change.concurrency_per_key) {
        (None, None) => None,
        // The API sets both limits together, so the one that was not given must be read first.
        (limit, per_key) => {
            let present = match types.get(name).await {
                Ok(view) => view.concurrency.unwrap_or_default(),
                Err(error) if error.is(Code::NotFound) => TypeLimits::default(),
                Err(error) => return Err(error.into()),
            };
            let limits = TypeLimits {
                limit: limit.map_or(present.limit, |given| given.0),
                per_key: per_key.map_or(present.per_key, |given| given.0),
            };
            Some(Some(limits).filter(|limits| limits.limit.is_some() || limits.per_key.is_some()))
        }
    };
    let rate = |(limit, per): (u32, String)| TypeRate { limit, per: Value::String(per), per_key: change.rate_per_key };
    let request = TypeRequest {
        runtime: change.runtime.map(|given| given.0),
        enabled: (change.enable || change.disable).then_some(change.enable),
        description: change.description.map(|given| given.0),
        concurrency,
        rate: change.rate.map(|given| given.0.map(rate)),
    };
    asking.print(&types.put(name, &request).await?, as_text)
}

fn status(view: &TypeView) -> &'static str {
    match view {
        TypeView { enabled: false, .. } => "disabled",
        TypeView { paused: Some(_), .. } => "paused",
        _ => "enabled",
    }
}

/// `4 at once, 1 per key, 100 per 1m`
fn limits(view: &TypeView) -> String {
    let concurrency = view.concurrency.clone().unwrap_or_default();
    let mut parts = Vec::new();
    parts.extend(concurrency.limit.map(|n| format!("{n} at once")));
    parts.extend(concurrency.per_key.map(|n| format!("{n} of a key at once")));
    parts.extend(view.rate.as_ref().map(|rate| {
        let per = rate.per.as_str().map_or_else(|| rate.per.to_string(), str::to_owned);
        format!("{} per {per}{}", rate.limit, if rate.per_key { " and key" } else { "" })
    }));
    parts.join(", ")
}

fn row(view: &TypeView) -> Vec<String> {
    vec![
        view.name.clone(),
        status(view).into(),
        view.ready.to_string(),
        view.leased.to_string(),
        view.workers.to_string(),
        limits(view),
    ]
}

fn short(view: &TypeView) -> String {
    format!("{} is {}", clean(&view.name), status(view))
}

fn as_text(view: &TypeView) -> String {
    let paused = view.paused.as_ref().map(|pause| {
        let by = Some(&pause.by).filter(|by| !by.is_empty()).map(|by| format!(" by {by}")).unwrap_or_default();
        let note = Some(&pause.note).filter(|note| !note.is_empty()).map(|n| format!(": {n}")).unwrap_or_default();
        format!("since {}{by}{note}", time(&pause.at))
    });
    let workers = match view.workers {
        0 if view.ready > 0 => "none: no worker claims this type".to_owned(),
        count => count.to_string(),
    };
    fields(&[
        ("type", Some(view.name.clone())),
        ("description", view.description.clone()),
        ("status", Some(status(view).into())),
        ("paused", paused),
        ("runtime", view.runtime.clone()),
        ("limits", Some(limits(view)).filter(|text| !text.is_empty())),
        ("ready", Some(view.ready.to_string())),
        ("leased", Some(view.leased.to_string())),
        ("retrying", view.retrying.map(|count| count.to_string())),
        ("workers", Some(workers)),
        ("created", Some(time(&view.created_at))),
    ])
}
