//! `onward run` and `onward resume`: a definition runs to its end, or to an approval, without a server to start.
//!
//! A server of this process alone does the work, on a free port of loopback, and ends with the command. Its store in the
//! data folder stays: a run that was interrupted goes on with the next command, and one that waits for an approval with
//! `resume`. One JSON document goes to standard output; the events of the run go to standard error, one line each, while
//! it runs.

use crate::bash_steps::{self, CommandFlags};
use crate::node::{self, AccessMode};
use crate::remote::trigger;
use crate::{exit, validate};
use api::{DecisionRequest, RunView, StepView};
use client::{Client, Definition, Error, Start};
use lang::Syntax;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub struct RunArguments {
    /// The file with the definition, or `-` for standard input
    #[arg(default_value = "-", conflicts_with = "workflow_path")]
    file: PathBuf,
    /// The same as FILE
    #[arg(long, value_name = "FILE", visible_alias = "workflow-json")]
    workflow_path: Option<PathBuf>,
    /// The trigger body, or the variables of a step list: JSON, or `@file`
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Refuse to run a definition with another hash
    #[arg(long, value_name = "HASH")]
    workflow_hash: Option<String>,
    /// A second command with the same id goes on with the same run
    #[arg(long, value_name = "ID")]
    execution_id: Option<String>,
    #[command(flatten)]
    shared: SharedArguments,
}

#[derive(clap::Args)]
pub struct ResumeArguments {
    /// The run: the `execution_id` that `run` printed, or the one it was given
    #[arg(long, value_name = "ID")]
    execution_id: String,
    /// What to decide about the step that waits
    #[arg(long, value_enum)]
    decision: ResumeDecision,
    /// Decide only about the approval with this token
    #[arg(long, value_name = "TOKEN")]
    resume_token: Option<String>,
    /// Who decides
    #[arg(long, env = "USER", default_value = "operator")]
    actor: String,
    /// Why, for the history and for later steps
    #[arg(long, default_value_t)]
    comment: String,
    #[command(flatten)]
    shared: SharedArguments,
}

#[derive(clap::Args)]
struct SharedArguments {
    /// Folder for everything that must survive
    #[arg(long, env = "ONWARD_RUN_DATA", default_value = "./.onward/run")]
    data: PathBuf,
    #[command(flatten)]
    bash: CommandFlags,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ResumeDecision {
    Approve,
    Deny,
}

/// The exit code and what is printed.
type Finished = (u8, Value);

pub fn run(arguments: RunArguments) -> ExitCode {
    let file = arguments.workflow_path.clone().unwrap_or_else(|| arguments.file.clone());
    let input = arguments.input.as_deref().map(trigger::read).transpose();
    let finished = match (read(&file), input) {
        (Ok(definition), Ok(input)) => match &arguments.workflow_hash {
            Some(wanted) if !is_same_hash(wanted, &definition.hash) => {
                let message = format!("the definition has the hash {}, not {wanted}", definition.hash);
                (exit::VALIDATE_USAGE, refused("hash_mismatch", &message))
            }
            _ => with_client(arguments.shared, async |client| {
                start(&client, definition, input, arguments.execution_id).await
            }),
        },
        (Err(finished), _) => finished,
        (_, Err(_)) => (exit::INVALID, refused("invalid_input", "the input cannot be read")),
    };
    print(finished)
}

pub fn resume(arguments: ResumeArguments) -> ExitCode {
    let ResumeArguments { execution_id, decision, resume_token, actor, comment, shared } = arguments;
    let request = DecisionRequest { actor, token: resume_token, comment, ..DecisionRequest::default() };
    print(with_client(shared, async |client| decide(&client, &execution_id, decision, &request).await))
}

fn print((code, document): Finished) -> ExitCode {
    println!("{}", serde_json::to_string_pretty(&document).unwrap_or_default());
    code.into()
}

fn refused(code: &str, message: &str) -> Value {
    json!({ "ok": false, "status": "refused", "error": { "code": code, "message": message } })
}

/// Does `work` with a client of a server in this process.
fn with_client(shared: SharedArguments, work: impl AsyncFnOnce(Client) -> Result<Finished, Error>) -> Finished {
    let bash = match bash_steps::of_dev(shared.bash) {
        Ok(bash) => bash,
        Err(message) => return (exit::VALIDATE_USAGE, refused("invalid_flag", &message)),
    };
    node::start_logging("error");
    let done = node::with_server(
        node::private(shared.data, bash),
        |_| Ok(AccessMode::Local),
        async |url| {
            let client = Client::new(&url, None)?;
            work(client).await
        },
    );
    match done {
        Ok(Ok(finished)) => finished,
        Ok(Err(Error::Refused { problem, .. })) => {
            (exit::INVALID, json!({ "ok": false, "status": "refused", "error": problem }))
        }
        Ok(Err(error)) => (exit::INPUT_OUTPUT, refused("unavailable", &error.to_string())),
        Err((code, message)) => (code, refused("unavailable", &message)),
    }
}

/// A definition that can be stored.
struct NamedDefinition {
    name: String,
    hash: String,
    json: Value,
}

/// Reads and checks a definition. One without a name is called after its file.
fn read(file: &std::path::Path) -> Result<NamedDefinition, Finished> {
    let source = validate::read(file).map_err(|error| {
        let message = format!("cannot read {}: {error}", file.display());
        (exit::INVALID, refused("unreadable_file", &message))
    })?;
    let invalid = |problems: Vec<lang::Diagnostic>| {
        let problems: Vec<Value> = problems.iter().map(validate::problem_json).collect();
        (exit::INVALID, json!({ "ok": false, "status": "invalid", "problems": problems }))
    };
    let tree = lang::read(&source, validate::guess(file, &source)).map_err(|malformed| invalid(malformed.0))?;
    let mut json = tree.to_json();
    if let Some(fields) = json.as_object_mut() {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-").unwrap_or("run");
        fields.entry("name").or_insert_with(|| json!(stem));
    }
    // Checked as it was written, so that problems have their places there.
    let is_named = tree.to_json().get("name").is_some();
    let compiled = match is_named {
        true => lang::compile(&tree).map_err(invalid)?,
        false => {
            let named =
                lang::read(json.to_string().as_bytes(), Syntax::Json).map_err(|malformed| invalid(malformed.0))?;
            lang::compile(&named).map_err(invalid)?
        }
    };
    Ok(NamedDefinition { name: compiled.meta.name.clone(), hash: validate::hash(&compiled.hash), json })
}

fn is_same_hash(wanted: &str, hash: &str) -> bool {
    wanted.trim_start_matches("sha256:") == hash.trim_start_matches("sha256:")
}

/// Stores the definition and starts a run of it, or finds the one of an earlier command.
async fn start(
    client: &Client,
    definition: NamedDefinition,
    input: Option<Vec<u8>>,
    execution_id: Option<String>,
) -> Result<Finished, Error> {
    let NamedDefinition { name, json, .. } = definition;
    let definition = Definition::Json(json.to_string().into());
    match client.create_workflow(&definition).await {
        Err(error) if error.is(api::Code::NameTaken) => client.replace_workflow(&name, &definition).await?,
        other => other?,
    };
    let start = Start { body: input.map(Into::into), idempotency_key: execution_id, ..Start::default() };
    let started = client.trigger(&name, &start).await?;
    follow(client, &started.run_id, 0).await
}

async fn decide(
    client: &Client,
    execution_id: &str,
    decision: ResumeDecision,
    request: &DecisionRequest,
) -> Result<Finished, Error> {
    let run = match execution_id.starts_with("run_") {
        true => client.run(execution_id).await?,
        false => {
            return Ok((exit::INVALID, refused("not_found", "name the run by the `execution_id` that `run` printed")));
        }
    };
    let after = client.run_diff(&run.id, 1, None).await?.last_seq;
    let decided = match decision {
        ResumeDecision::Approve => client.approve(&run.id, request).await,
        ResumeDecision::Deny => client.reject(&run.id, request).await,
    };
    match decided {
        Err(Error::Refused { problem, .. }) => {
            Ok((exit::VALIDATE_USAGE, json!({ "ok": false, "status": "refused", "error": problem })))
        }
        Err(error) => Err(error),
        Ok(_) => {
            let (code, document) = follow(client, &run.id, after).await?;
            // A denial that no step handles cancels the run, as it was asked to.
            let is_denied = matches!(decision, ResumeDecision::Deny) && document["status"] == "cancelled";
            Ok((if is_denied { exit::OK } else { code }, document))
        }
    }
}

/// Prints the events of a run to standard error until it has ended, or until only others can go on with it.
async fn follow(client: &Client, run: &str, after: u64) -> Result<Finished, Error> {
    let mut events = client.follow(run, after).await?;
    let mut idle = Duration::ZERO;
    loop {
        match tokio::time::timeout(STILL, events.next()).await {
            Ok(Ok(Some(received))) => {
                eprintln!("{}", serde_json::to_string(&received).unwrap_or_default());
                idle = Duration::ZERO;
            }
            Ok(Ok(None)) => return envelope(client, client.run(run).await?).await,
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                idle += STILL;
                let view = client.run(run).await?;
                if waits_for_others(&view, idle) {
                    return envelope(client, view).await;
                }
            }
        }
    }
}

/// After this time without an event, a run may stand still.
const STILL: Duration = Duration::from_millis(100);
/// A task may wait for a free worker of this process; after this time it waits for another one.
const NO_WORKER: Duration = Duration::from_secs(30);

/// Whether nothing goes on by itself: what the run waits for comes from outside of this process.
fn waits_for_others(view: &RunView, idle: Duration) -> bool {
    let is_outside = |kind: &str| match kind {
        "approval" | "pause" | "signal" | "webhook" => true,
        "worker" => idle >= NO_WORKER,
        _ => false,
    };
    let is_open = matches!(&*view.status, "waiting" | "running");
    is_open && !view.waiting_for.is_empty() && view.waiting_for.iter().all(|wait| is_outside(&wait.kind))
}

/// What is printed about a run.
async fn envelope(client: &Client, view: RunView) -> Result<Finished, Error> {
    let steps = client.steps(&view.id).await?;
    let approval = steps.iter().find(|step| step.status == "waiting" && step.approval.is_some());
    let requires = approval.and_then(|step| {
        let asked = step.approval.as_ref()?;
        Some(json!({ "step_id": step.step, "prompt": asked.prompt, "items": asked.items, "resume_token": asked.token }))
    });
    let (code, status) = match (&*view.status, &requires) {
        ("completed", _) => (exit::OK, "ok"),
        ("cancelled", _) => (exit::NOT_COMPLETED, "cancelled"),
        ("failed" | "timeout", _) => (exit::NOT_COMPLETED, "failed"),
        (_, Some(_)) => (exit::OK, "needs_approval"),
        _ => (exit::OK, "waiting"),
    };
    let document = json!({
        "ok": code == exit::OK,
        "status": status,
        "execution_id": view.id,
        "workflow": view.workflow,
        "workflow_hash": view.hash,
        "output": view.output,
        "steps": steps.iter().map(summary).collect::<Vec<_>>(),
        "requires_approval": requires,
        "waiting_for": view.waiting_for,
        "error": view.error,
    });
    Ok((code, document))
}

fn summary(step: &StepView) -> Value {
    json!({
        "id": step.step, "type": step.kind, "status": step.status, "attempt": step.attempt,
        "duration_ms": step.duration_ms, "output": step.body, "error": step.error,
    })
}
