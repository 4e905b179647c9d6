//! Workflows: create, validate, show, edit, start.

use super::runs::{notes, wait_schema};
use super::{answer, page, started_view, versions};
use crate::contract::{Carries, Param, ResponseShape, Route, delete as delete_route, get, params, post, put};
use crate::error::problem_of;
use crate::query::Query;
use crate::{Answer, Path, Refusal, State, body, headers, views};
use api::{At, Code, PauseRequest, Problem, ResumeRequest, RunView, StartedView, ValidationView, WorkflowView};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use engine::services::Resolved;
use engine::{Idempotency, Source, StartRequest, WorkflowChange};
use kernel::plan::{Node, TaskKind};
use kernel::{Span, WorkflowId};
use lang::Compiled;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use store::WorkflowFilter;

/// The longest `?wait=`.
const WAIT_MAX: Span = Span::from_secs(60);
pub const LABELS_MAX: usize = 16;
pub const KEY_MAX: usize = 255;

const WAIT: Param =
    Param::new("wait", "respond with the whole run when it has ended, or after this time (up to 60s)", wait_schema);

const CALLBACK_URL: Param = Param::new(
    "callback_url",
    "a URL that is called when the run has ended",
    || json!({ "type": "string", "format": "uri", "pattern": "^https?://", "maxLength": 2048 }),
);

const NAME: Param =
    Param::new("name", "only workflows whose name starts with this text", || json!({ "type": "string" }));
const EXPECTED_HASH: Param = Param::new(
    "expected_hash",
    "change the workflow only if its current definition has this hash",
    versions::hash_schema,
);
const IF_MATCH: Param = Param::new(
    "If-Match",
    "the same as `expected_hash`, in quotes",
    || json!({ "type": "string", "pattern": "^(\\*|\"(sha256:)?[0-9a-fA-F]{64}\")$" }),
);

pub fn routes() -> Vec<Route> {
    const ALL: &str = "/api/v1/workflows";
    const ONE: &str = "/api/v1/workflows/{workflow}";
    vec![
        get(ALL, list, "list_workflows", "List workflows, newest first")
            .query(&[NAME])
            .pages::<WorkflowView>(params::WORKFLOW_CURSOR),
        post(ALL, create, "create_workflow", "Create a workflow from a definition")
            .carries(Carries::Definition)
            .idempotent()
            .answers::<WorkflowView>(201, "the new workflow")
            .answers::<WorkflowView>(200, "the workflow that an earlier request with this key created")
            .refuses(&[Code::NameTaken, Code::SlugTaken, Code::PathTaken, Code::SecretMissing]),
        post("/api/v1/workflows/validate", validate, "validate_definition", "Check a definition without storing it")
            .carries(Carries::Definition)
            .answers::<ValidationView>(200, "whether it is valid, and every problem"),
        get(ONE, show, "show_workflow", "Show a workflow with its definition or an earlier one")
            .query(&[versions::VERSION])
            .answers::<WorkflowView>(200, "the workflow")
            .refuses(&[Code::RunDamaged, Code::RunNeedsUpgrade]),
        put(ONE, edit, "edit_workflow", "Replace the definition of a workflow, or change its names")
            .query(&[EXPECTED_HASH])
            .header(IF_MATCH)
            .carries(Carries::Change)
            .answers::<WorkflowView>(200, "the changed workflow")
            .refuses(&[
                Code::NameTaken,
                Code::SlugTaken,
                Code::PathTaken,
                Code::SecretMissing,
                Code::BuiltInWorkflow,
                Code::VersionMismatch,
            ]),
        delete_route(ONE, delete, "delete_workflow", "Delete a workflow; its runs finish and stay")
            .query(&[EXPECTED_HASH])
            .header(IF_MATCH)
            .shaped(204, "deleted", ResponseShape::Nothing)
            .refuses(&[Code::BuiltInWorkflow, Code::VersionMismatch]),
        post("/api/v1/workflows/{workflow}/enable", enable, "enable_workflow", "Allow new runs of a workflow")
            .answers::<WorkflowView>(200, "the workflow is enabled, now or earlier")
            .refuses(&[Code::BuiltInWorkflow]),
        post("/api/v1/workflows/{workflow}/disable", disable, "disable_workflow", "Forbid new runs of a workflow")
            .answers::<WorkflowView>(200, "the workflow is disabled, now or earlier")
            .refuses(&[Code::BuiltInWorkflow]),
        post("/api/v1/workflows/{workflow}/trigger", trigger, "trigger_workflow", "Start a run")
            .one_write()
            .query(&[WAIT, CALLBACK_URL, params::LABEL, params::ACTOR])
            .carries(Carries::Payload)
            .idempotent()
            .answers::<StartedView>(201, "the new run")
            .answers::<RunView>(201, "with `wait`, the whole run")
            .answers::<StartedView>(200, "the run that an earlier request with this key started")
            .answers::<RunView>(200, "with `wait`, the whole run")
            .refuses(&[
                Code::WorkflowDisabled,
                Code::RunDeleted,
                Code::ConcurrencyKeyUnresolved,
                Code::InvalidInput,
                Code::RunDamaged,
                Code::RunNeedsUpgrade,
            ]),
        post(
            "/api/v1/workflows/{workflow}/pause",
            pause,
            "pause_workflow",
            "Pause a workflow: new runs stay `pending`",
        )
        .may_take::<PauseRequest>()
        .answers::<WorkflowView>(200, "the workflow is paused, now or earlier"),
        post("/api/v1/workflows/{workflow}/resume", resume, "resume_workflow", "Resume a workflow: pending runs start")
            .may_take::<ResumeRequest>()
            .answers::<WorkflowView>(200, "the workflow is not paused"),
    ]
}

pub async fn create(app: State, headers: HeaderMap, body: Body) -> Answer {
    let tree = body::definition(&headers, body).await?;
    let compiled = lang::compile(&tree).map_err(|problems| Refusal::of_definition(422, &problems))?;
    let fingerprint =
        || Sha256::new().chain_update(b"create\0").chain_update(lang::canonical_json(&tree)).finalize().into();
    let key = idempotency_key(&headers)?.map(|key| (key, fingerprint()));
    let (row, is_repeat) = app.engine.workflows.create(app.org(), &compiled, key).await?;
    let problems = warnings(&app, &compiled).await;
    let view = WorkflowView { problems, deduplicated: is_repeat, ..views::workflow(&row, None, None) };
    Ok(answer(if is_repeat { 200 } else { 201 }, view))
}

/// Problems that do not make a definition invalid: in it, and in the servers that are to run it.
async fn warnings(app: &crate::App, compiled: &Compiled) -> Vec<Problem> {
    let mut problems: Vec<Problem> = compiled.warnings.iter().map(problem_of).collect();
    let is_command = |node: &&Node| node.task().is_some_and(|task| task.kind == TaskKind::Bash);
    let Some(step) = compiled.plan.nodes().iter().find(is_command) else { return problems };
    // What cannot be found out is no problem of the definition.
    let is_run =
        app.engine.bash.is_some() || app.engine.tasks.has_worker(app.org(), lang::BASH_TYPE).await.unwrap_or(true);
    if !is_run {
        problems.push(Problem {
            code: lang::codes::BASH_DISABLED.into(),
            severity: Some(lang::Severity::Warning.as_str().into()),
            message: format!("`{}` waits: no server runs the commands of bash steps", step.key),
            hint: Some("start a server with `onward serve --bash`".into()),
            // The definition as a whole: the step itself is written correctly.
            at: Some(At { path: String::new(), line: Some(1), column: Some(1) }),
            ..Default::default()
        });
    }
    problems
}

pub async fn validate(app: State, headers: HeaderMap, body: Body) -> Answer {
    let tree = body::definition(&headers, body).await?;
    Ok(answer(
        200,
        match lang::compile(&tree) {
            Ok(compiled) => ValidationView {
                valid: true,
                hash: Some(views::hash(&compiled.hash)),
                form: Some(compiled.form.as_str().into()),
                steps: compiled.plan.nodes().iter().map(|n| n.key.clone()).collect(),
                problems: warnings(&app, &compiled).await,
            },
            Err(problems) => ValidationView {
                valid: false,
                hash: None,
                form: None,
                steps: Vec::new(),
                problems: problems.iter().map(problem_of).collect(),
            },
        },
    ))
}

pub async fn list(app: State, query: Query) -> Answer {
    let limit = query.limit()?;
    let before = query.read("cursor", "`next` of the previous page", WorkflowId::parse)?;
    let filter = WorkflowFilter { name: query.get("name").unwrap_or_default().to_owned(), before, limit: limit + 1 };
    let mut rows = app.engine.workflows.list(app.org(), &filter).await?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].id.to_string());
    rows.truncate(limit);
    Ok(page(rows.iter().map(|row| views::workflow(row, None, None)).collect(), next))
}

pub async fn show(app: State, query: Query, Path(key): Path<String>) -> Answer {
    let mut row = find(&app, &key).await?;
    let chosen = versions::of(&app, &row, &query).await?;
    let source = versions::source(&chosen);
    if chosen.version.number != row.version {
        (row.version, row.hash) = (chosen.version.number, chosen.version.hash);
        row.steps = app.engine.workflows.version_with_plan(&row, &chosen.version).await?.order.len() as u32;
    }
    let definition = Some(views::definition(&row, chosen.label.as_deref(), source));
    let pause = app.engine.workflows.paused(app.org(), row.id).await?;
    let view = views::workflow(&row, definition, pause.as_ref());
    Ok(answer(200, WorkflowView { version_label: chosen.label, ..view }))
}

/// A workflow by id, name or slug.
pub async fn find(app: &crate::App, key: &str) -> Result<store::WorkflowRow, Refusal> {
    match app.engine.workflows.get(app.org(), key).await? {
        Some(row) => Ok(row),
        None => Err(no_workflow(app, key).await),
    }
}

/// A workflow by id, name or slug; by id also if it was deleted.
pub async fn find_or_deleted(app: &crate::App, key: &str) -> Result<store::WorkflowRow, Refusal> {
    match app.engine.workflows.get_or_deleted(app.org(), key).await? {
        Some(row) => Ok(row),
        None => Err(no_workflow(app, key).await),
    }
}

/// A body with steps becomes a new version; a body without steps changes only the names.
pub async fn edit(app: State, query: Query, Path(key): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let expected = expected(&query, &headers)?;
    let tree = body::definition(&headers, body).await?;
    let refused = |problems: Vec<lang::Diagnostic>| Refusal::of_definition(422, &problems);
    if lang::has_steps(&tree) {
        let compiled = lang::compile(&tree).map_err(refused)?;
        change(&app, &key, &WorkflowChange::Replace(&compiled), expected).await
    } else {
        let meta = lang::describe(&tree).map_err(refused)?;
        change(&app, &key, &WorkflowChange::Describe(&meta), expected).await
    }
}

/// The hash that the current definition must have: `If-Match: "sha256:…"` or `?expected_hash=`.
fn expected(query: &Query, headers: &HeaderMap) -> Result<Option<[u8; 32]>, Refusal> {
    let by_query = query.read("expected_hash", "the hash of a version", versions::hash)?;
    let Some(value) = headers.get("if-match") else { return Ok(by_query) };
    let text = value.to_str().unwrap_or("?").trim();
    if text == "*" {
        return Ok(None);
    }
    let hash = versions::hash(text.trim_matches('"'));
    hash.map(Some)
        .ok_or_else(|| Refusal::new(Code::InvalidHeader, "`If-Match` takes one hash in quotes").at("If-Match"))
}

pub async fn enable(app: State, Path(key): Path<String>) -> Answer {
    switch(&app, &key, true).await
}

pub async fn disable(app: State, Path(key): Path<String>) -> Answer {
    switch(&app, &key, false).await
}

async fn switch(app: &crate::App, key: &str, enabled: bool) -> Answer {
    let meta = lang::MetaChange { enabled: Some(enabled), ..Default::default() };
    change(app, key, &WorkflowChange::Describe(&meta), None).await
}

async fn change(app: &crate::App, key: &str, change: &WorkflowChange<'_>, expected: Option<[u8; 32]>) -> Answer {
    let row = match app.engine.workflows.edit(app.org(), key, change, expected).await {
        Ok(row) => row,
        Err(error) => return Err(with_name(app, error, key).await),
    };
    let problems = match change {
        WorkflowChange::Replace(compiled) => warnings(app, compiled).await,
        WorkflowChange::Describe(_) | WorkflowChange::Delete => Vec::new(),
    };
    let pause = app.engine.workflows.paused(app.org(), row.id).await?;
    Ok(answer(200, WorkflowView { problems, ..views::workflow(&row, None, pause.as_ref()) }))
}

pub async fn delete(app: State, query: Query, Path(key): Path<String>, headers: HeaderMap) -> Answer {
    let expected = expected(&query, &headers)?;
    if let Err(error) = app.engine.workflows.edit(app.org(), &key, &WorkflowChange::Delete, expected).await {
        return Err(with_name(&app, error, &key).await);
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn with_name(app: &crate::App, error: engine::Error, key: &str) -> Refusal {
    match error {
        engine::Error::NotFound(_) => no_workflow(app, key).await,
        other => other.into(),
    }
}

/// The workflow that a request starts, and its current version.
pub async fn resolve(app: &crate::App, key: &str) -> Result<Arc<Resolved>, Refusal> {
    match app.engine.workflows.resolve(app.org(), key).await? {
        Some(workflow) => Ok(workflow),
        None => Err(no_workflow(app, key).await),
    }
}

/// There is no such workflow. Suggests the one that a misspelt name probably means.
async fn no_workflow(app: &crate::App, key: &str) -> Refusal {
    let refusal = Refusal::not_found("workflow", &key.chars().take(80).collect::<String>());
    match app.engine.workflows.nearest(app.org(), key).await {
        Ok(Some(name)) => refusal.hint(format!("did you mean `{name}`?")),
        _ => refusal,
    }
}

pub async fn trigger(app: State, query: Query, Path(key): Path<String>, given: HeaderMap, body: Body) -> Answer {
    let callback_url = query.read("callback_url", "an http or https url", callback_url)?.unwrap_or_default();
    let wait = query.span("wait", WAIT_MAX)?;
    let labels = query.labels()?;
    if labels.len() > LABELS_MAX {
        return Err(Refusal::new(Code::InvalidParameter, format!("a run has at most {LABELS_MAX} labels")).at("label"));
    }
    let actor = query.actor()?;
    let idempotency = idempotency_key(&given)?;
    let body = body::payload(&given, body).await?;
    let workflow = resolve(&app, &key).await?;
    let idempotency = idempotency.map(|key| {
        let fingerprint = fingerprint(workflow.row.id, &body, &labels, &callback_url);
        Idempotency { scope: None, key, fingerprint }
    });
    let request = StartRequest {
        headers: headers::kept(&given),
        labels,
        source: Source { callback_url, actor, ..Source::default() },
        idempotency,
        ..StartRequest::new(app.org(), workflow, body)
    };
    if let Some(limit) = wait {
        let (started, _) = app.engine.runs.run(request, Duration::from_micros(limit.0)).await?;
        let status = if started.deduplicated { 200 } else { 201 };
        let reading = app.engine.runs.read(app.org(), started.run).await?;
        let reading = reading.ok_or_else(|| Refusal::not_found("run", &started.run.to_string()))?;
        return Ok(answer(status, views::run(&reading)));
    }
    let started = app.engine.runs.start(request).await?;
    let status = if started.deduplicated { 200 } else { 201 };
    Ok(answer(status, started_view(&started)))
}

pub async fn pause(app: State, Path(key): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let PauseRequest { actor, note } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor, note] = notes([("actor", actor), ("note", note)])?;
    let row = find(&app, &key).await?;
    app.engine.workflows.pause(app.org(), row.id, actor, note).await?;
    workflow_response(&app, &row).await
}

pub async fn resume(app: State, Path(key): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let ResumeRequest { actor } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    notes([("actor", actor)])?;
    let row = find(&app, &key).await?;
    app.engine.workflows.resume(app.org(), row.id).await?;
    workflow_response(&app, &row).await
}

async fn workflow_response(app: &crate::App, row: &store::WorkflowRow) -> Answer {
    let pause = app.engine.workflows.paused(app.org(), row.id).await?;
    Ok(answer(200, views::workflow(row, None, pause.as_ref())))
}

pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let is_visible = |key: &&str| key.bytes().all(|byte| byte.is_ascii_graphic());
    let key = value.to_str().ok().filter(|key| (1..=KEY_MAX).contains(&key.len())).filter(is_visible);
    key.map(|key| Some(key.to_owned())).ok_or_else(|| {
        Refusal::new(Code::InvalidHeader, format!("an idempotency key has 1 to {KEY_MAX} visible ASCII characters"))
            .at("Idempotency-Key")
    })
}

/// A URL that can be called, without a user name and password.
pub fn callback_url(text: &str) -> Option<String> {
    let url = url::Url::parse(text).ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.has_host();
    (matches!(url.scheme(), "http" | "https") && is_plain && text.len() <= 2_048).then(|| text.to_owned())
}

/// Two requests are the same if the workflow, the canonical body, the labels and the callback URL are equal.
pub fn fingerprint(workflow: WorkflowId, body: &[u8], labels: &[(String, String)], callback_url: &str) -> [u8; 32] {
    let canonical = lang::read(body, lang::Syntax::Json).map(|tree| lang::canonical_json(&tree));
    let mut hash = Sha256::new();
    hash.update(b"trigger\0");
    hash.update(workflow.0);
    match &canonical {
        Ok(text) => hash.update(text.as_bytes()),
        Err(_) => hash.update(body),
    }
    let mut labels: Vec<String> = labels.iter().map(|(k, v)| format!("\0{k}:{v}")).collect();
    labels.sort();
    labels.iter().for_each(|label| hash.update(label.as_bytes()));
    if !callback_url.is_empty() {
        hash.update(b"\0\0");
        hash.update(callback_url);
    }
    hash.finalize().into()
}
