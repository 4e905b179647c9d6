//! `onward workflows`: what can be run.

use super::style::{self, time};
use super::table::{fields, list};
use super::{Asking, Connection, Failure, Outcome, Part};
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
        part: Part,
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
    /// Let new runs of a workflow wait for their turn
    Pause {
        /// Id, name or slug
        workflow: String,
        #[command(flatten)]
        who: Who,
        /// What others should know
        #[arg(long, default_value_t)]
        note: String,
    },
    /// Let the runs that wait begin
    Resume {
        /// Id, name or slug
        workflow: String,
        #[command(flatten)]
        who: Who,
    },
    /// List the versions of a workflow, newest first
    History {
        /// Id, name or slug
        workflow: String,
        #[command(flatten)]
        part: Part,
    },
    /// Show what differs between two versions
    Diff {
        /// Id, name or slug
        workflow: String,
        /// A version's number or hash; the one before by default
        #[arg(long, value_name = "VERSION")]
        from: Option<String>,
        /// A version's number or hash; the present one by default
        #[arg(long, value_name = "VERSION")]
        to: Option<String>,
    },
}

#[derive(clap::Args)]
pub struct Who {
    /// Who does it, for the history
    #[arg(long, default_value_t)]
    pub actor: String,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb } = arguments;
    super::run(connection, async |asking| act(&asking, verb).await)
}

async fn act(asking: &Asking, verb: Verb) -> Outcome {
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
        Verb::Show { workflow, .. } => asking.print(&client.workflow(&workflow).await?, words),
        Verb::Apply { files } => apply(asking, &files).await,
        Verb::Delete { workflow } => {
            client.delete_workflow(&workflow).await?;
            asking.print(&json!({ "workflow": workflow, "deleted": true }), |_| {
                format!("deleted {}", style::clean(&workflow))
            })
        }
        Verb::Enable { workflow } => asking.print(&client.switch_workflow(&workflow, "enable").await?, short),
        Verb::Disable { workflow } => asking.print(&client.switch_workflow(&workflow, "disable").await?, short),
        Verb::Pause { workflow, who, note } => {
            let request = PauseRequest { actor: who.actor, note };
            asking.print(&client.pause_workflow(&workflow, &request).await?, short)
        }
        Verb::Resume { workflow, who } => {
            let request = ResumeRequest { actor: who.actor };
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

fn words(workflow: &WorkflowView) -> String {
    let paused = workflow.paused.as_ref().map(|pause| {
        let by = pause.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let note = pause.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        format!("since {}{by}{note}", time(&pause.at))
    });
    let tags: Vec<&str> = workflow.tags.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let steps = workflow.definition.as_ref().and_then(|d| d["tasks"].as_object());
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
        ("steps", steps.map(|steps| steps.keys().cloned().collect::<Vec<_>>().join(", "))),
    ])
}

/// Each file on its own: one that is wrong does not keep the others from being applied.
async fn apply(asking: &Asking, files: &[PathBuf]) -> Outcome {
    let mut sources = Vec::new();
    for file in files {
        let source =
            validate::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))?;
        sources.push((file, source));
    }
    let (mut applied, mut is_refused) = (Vec::new(), false);
    for (file, source) in sources {
        let name = called(file);
        match apply_one(asking, file, &source).await {
            Ok((workflow, what)) => {
                if !asking.json {
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
                    super::tell(Failure::InSource { name, source, problem }, false);
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

/// In the syntax its file's name or its first character promises.
pub fn definition(file: &Path, source: &[u8]) -> Definition {
    match validate::guess(file, source) {
        Syntax::Json => Definition::Json(source.to_vec().into()),
        Syntax::Yaml => Definition::Yaml(source.to_vec().into()),
    }
}

/// How a file is called when something is wrong in it.
pub fn called(file: &Path) -> String {
    if file.as_os_str() == "-" { "<stdin>".to_owned() } else { file.display().to_string() }
}

/// Whoever has the name already gets a new version.
async fn apply_one(asking: &Asking, file: &Path, source: &[u8]) -> Result<(WorkflowView, &'static str), Error> {
    let definition = definition(file, source);
    let taken = match asking.client.create_workflow(&definition).await {
        Ok(workflow) => return Ok((workflow, "created")),
        Err(error) if error.is(Code::NameTaken) => error,
        Err(error) => return Err(error),
    };
    // Only a definition the server has understood gets here, so it has a name.
    let compiled =
        lang::read(source, validate::guess(file, source)).map_err(|m| m.0).and_then(|tree| lang::compile(&tree));
    let Ok(compiled) = compiled else { return Err(taken) };
    let before = asking.client.workflow(&compiled.meta.name).await?;
    let workflow = asking.client.replace_workflow(&compiled.meta.name, &definition).await?;
    let what = match () {
        () if workflow.version != before.version => "replaced",
        // Its description, its tags or whether it may be started.
        () if workflow.updated_at != before.updated_at => "updated",
        () => "unchanged",
    };
    Ok((workflow, what))
}
