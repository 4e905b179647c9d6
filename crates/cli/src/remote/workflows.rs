//! `onward workflows`: lists, shows, applies and changes workflows.

use super::style::{self, time};
use super::table::{fields, list};
use super::{CommandContext, Connection, Failure, Outcome, PageOptions};
use crate::validate;
use api::{Code, PauseRequest, ResumeRequest, VersionEntryView, WorkflowView};
use client::{Definition, Error};
use lang::Syntax;
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
    /// List workflows, newest first
    List {
        #[command(flatten)]
        part: PageOptions,
    },
    /// Show a workflow
    Show {
        /// Id, name or slug
        workflow: String,
        /// Only its definition, as JSON
        #[arg(long)]
        definition: bool,
    },
    /// Create workflows from files, or replace those of the same name
    Apply {
        /// Definitions in JSON or YAML; `-` is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Delete a workflow; its runs finish and stay
    Delete {
        /// Id, name or slug
        workflow: String,
    },
    /// Let a workflow be started again
    Enable {
        /// Id, name or slug
        workflow: String,
    },
    /// Refuse to start a workflow
    Disable {
        /// Id, name or slug
        workflow: String,
    },
    /// Accept new runs of a workflow, but begin none until it is resumed
    Pause {
        /// Id, name or slug
        workflow: String,
        #[command(flatten)]
        by: WorkflowArgument,
        /// A note for others
        #[arg(long, default_value_t)]
        note: String,
    },
    /// Begin the runs that were accepted while the workflow was paused
    Resume {
        /// Id, name or slug
        workflow: String,
        #[command(flatten)]
        by: WorkflowArgument,
    },
    /// List the versions of a workflow, newest first
    History {
        /// Id, name or slug
        workflow: String,
        #[command(flatten)]
        part: PageOptions,
    },
    /// Show what differs between two versions
    Diff {
        /// Id, name or slug
        workflow: String,
        /// A version's number or hash (default: the one before)
        #[arg(long, value_name = "VERSION")]
        from: Option<String>,
        /// A version's number or hash (default: the current one)
        #[arg(long, value_name = "VERSION")]
        to: Option<String>,
    },
}

#[derive(clap::Args)]
pub struct WorkflowArgument {
    /// The name that the history shows for this change
    #[arg(long, default_value_t)]
    pub actor: String,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &CommandContext, verb: Verb) -> Outcome {
    let client = &asking.client;
    match verb {
        Verb::List { part } => {
            const HEADER: &[&str] = &["NAME", "STATUS", "VERSION", "STEPS", "TRIGGER", "UPDATED", "ID"];
            let fetch = async |limit, cursor: Option<String>| client.workflows(Some(limit), cursor.as_deref()).await;
            list(asking, &part, HEADER, row, fetch).await
        }
        Verb::Show { workflow, definition: true } => {
            let found = client.workflow(&workflow).await?;
            asking.print(&found.definition, super::pretty)
        }
        Verb::Show { workflow, .. } => asking.print(&client.workflow(&workflow).await?, as_text),
        Verb::Apply { files } => apply(asking, &files).await,
        Verb::Delete { workflow } => {
            client.delete_workflow(&workflow).await?;
            asking.print(&json!({ "workflow": workflow, "deleted": true }), |_| {
                format!("deleted {}", style::clean(&workflow))
            })
        }
        Verb::Enable { workflow } => asking.print(&client.switch_workflow(&workflow, "enable").await?, short),
        Verb::Disable { workflow } => asking.print(&client.switch_workflow(&workflow, "disable").await?, short),
        Verb::Pause { workflow, by, note } => {
            let request = PauseRequest { actor: by.actor, note };
            asking.print(&client.pause_workflow(&workflow, &request).await?, short)
        }
        Verb::Resume { workflow, by } => {
            let request = ResumeRequest { actor: by.actor };
            asking.print(&client.resume_workflow(&workflow, &request).await?, short)
        }
        Verb::History { workflow, part } => {
            let workflow = workflow.as_str();
            let fetch = async |limit, cursor: Option<String>| {
                client.workflow_history(workflow, Some(limit), cursor.as_deref()).await
            };
            list(asking, &part, &["VERSION", "FROM", "AT", "HASH"], version, fetch).await
        }
        Verb::Diff { workflow, from, to } => {
            let diff = client.workflow_diff(&workflow, from.as_deref(), to.as_deref()).await?;
            asking.print(&diff, |diff| match diff.text.as_str() {
                "" => "no difference".into(),
                text => text.lines().map(|line| style::clean(line) + "\n").collect(),
            })
        }
    }
}

fn state(workflow: &WorkflowView) -> &'static str {
    match (workflow.enabled, &workflow.paused) {
        (false, _) => "disabled",
        (true, Some(_)) => "paused",
        (true, None) => "enabled",
    }
}

fn row(workflow: &WorkflowView) -> Vec<String> {
    vec![
        workflow.name.clone(),
        state(workflow).into(),
        workflow.version.to_string(),
        workflow.task_count.to_string(),
        workflow.trigger.clone(),
        time(&workflow.updated_at),
        workflow.id.clone(),
    ]
}

fn version(version: &VersionEntryView) -> Vec<String> {
    vec![version.number.to_string(), version.source.clone(), time(&version.at), version.hash.clone()]
}

fn short(workflow: &WorkflowView) -> String {
    format!("{} is {}", style::clean(&workflow.name), state(workflow))
}

fn as_text(workflow: &WorkflowView) -> String {
    let paused = workflow.paused.as_ref().map(|pause| {
        let by = pause.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let note = pause.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        format!("since {}{by}{note}", time(&pause.at))
    });
    let tags: Vec<&str> = workflow.tags.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let steps = workflow.definition.as_ref().and_then(step_names);
    fields(&[
        ("name", Some(workflow.name.clone())),
        ("id", Some(workflow.id.clone())),
        ("slug", Some(workflow.slug.clone())),
        ("description", workflow.description.clone()),
        ("tags", Some(tags.join(", ")).filter(|tags| !tags.is_empty())),
        ("status", Some(state(workflow).into())),
        ("paused", paused),
        ("form", Some(workflow.form.to_string())),
        ("trigger", Some(workflow.trigger.clone())),
        ("version", Some(workflow.version.to_string())),
        ("hash", Some(workflow.hash.clone())),
        ("created", Some(time(&workflow.inserted_at))),
        ("updated", Some(time(&workflow.updated_at))),
        ("steps", steps.map(|steps| steps.join(", "))),
    ])
}

/// The names of the steps of a graph, or of a step list.
fn step_names(definition: &Value) -> Option<Vec<String>> {
    if let Some(steps) = definition["steps"].as_array() {
        let name = |(place, step): (usize, &Value)| match step["id"].as_str() {
            Some(id) => id.to_owned(),
            None => format!("step[{place}]"),
        };
        return Some(steps.iter().enumerate().map(name).collect());
    }
    Some(definition["tasks"].as_object()?.keys().cloned().collect())
}

/// Applies each file on its own. After a refused file it goes on with the next.
async fn apply(asking: &CommandContext, files: &[PathBuf]) -> Outcome {
    let mut sources = Vec::new();
    for file in files {
        let source =
            validate::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))?;
        sources.push((file, source));
    }
    let (mut applied, mut is_refused) = (Vec::new(), false);
    for (file, source) in sources {
        let name = display_name(file);
        match apply_one(asking, file, &source).await {
            Ok((workflow, what)) => {
                if !asking.json {
                    super::show_in_source(&name, &String::from_utf8_lossy(&source), &workflow.problems);
                    let workflow = format!("{}, version {}", style::clean(&workflow.name), workflow.version);
                    super::write(&format!("{name}: {what} {workflow}"))?;
                }
                applied.push(json!({ "file": name, "did": what, "workflow": workflow }));
            }
            Err(Error::Refused { problem, .. }) => {
                is_refused = true;
                if asking.json {
                    applied.push(json!({ "file": name, "error": problem }));
                } else {
                    let source = String::from_utf8_lossy(&source).into_owned();
                    super::print_failure(Failure::InSource { name, source, problem }, false);
                }
            }
            Err(other) => return Err(other.into()),
        }
    }
    if asking.json {
        asking.print(&json!({ "data": applied, "next": null }), super::pretty)?;
    }
    if is_refused { Err(Failure::No) } else { Ok(()) }
}

/// The definition in the syntax that the file's extension or first character suggests.
pub fn definition(file: &Path, source: &[u8]) -> Definition {
    match validate::guess(file, source) {
        Syntax::Json => Definition::Json(source.to_vec().into()),
        Syntax::Yaml => Definition::Yaml(source.to_vec().into()),
    }
}

/// The file's name for messages.
pub fn display_name(file: &Path) -> String {
    if file.as_os_str() == "-" { "<stdin>".to_owned() } else { file.display().to_string() }
}

/// Creates a workflow, or replaces the one that has the name already.
async fn apply_one(asking: &CommandContext, file: &Path, source: &[u8]) -> Result<(WorkflowView, &'static str), Error> {
    let definition = definition(file, source);
    let taken = match asking.client.create_workflow(&definition).await {
        Ok(workflow) => return Ok((workflow, "created")),
        Err(error) if error.is(Code::NameTaken) => error,
        Err(error) => return Err(error),
    };
    // The server has compiled the definition, so it has a name.
    let compiled =
        lang::read(source, validate::guess(file, source)).map_err(|m| m.0).and_then(|tree| lang::compile(&tree));
    let Ok(compiled) = compiled else { return Err(taken) };
    let before = asking.client.workflow(&compiled.meta.name).await?;
    let workflow = asking.client.replace_workflow(&compiled.meta.name, &definition).await?;
    let what = match () {
        () if workflow.version != before.version => "replaced",
        // A change of description, tags or `enabled` makes no new version.
        () if workflow.updated_at != before.updated_at => "updated",
        () => "unchanged",
    };
    Ok((workflow, what))
}
