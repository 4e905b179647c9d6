//! Workflows: create, validate, look at, trigger.

use super::{answer, page, started_view};
use crate::error::problem_of;
use crate::query::Query;
use crate::{Answer, Path, Refusal, State, body, headers, views};
use api::{Code, ValidationView};
use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use engine::{Idempotency, StartRequest};
use kernel::{Span, WorkflowId};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// `?wait=` is at most this long.
const WAIT_MAX: Span = Span::from_secs(60);
const LABELS_MAX: usize = 16;
const KEY_MAX: usize = 255;

pub async fn create(app: State, uri: Uri, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let tree = body::definition(&headers, body).await?;
    let compiled = lang::compile(&tree).map_err(|problems| Refusal::of_definition(422, &problems))?;
    let fingerprint =
        || Sha256::new().chain_update(b"create\0").chain_update(lang::canonical_json(&tree)).finalize().into();
    let key = idempotency_key(&headers)?.map(|key| (key, fingerprint()));
    let (row, is_repeat) = app.engine.create_workflow(app.org(), &compiled, key).await?;
    Ok(answer(if is_repeat { 200 } else { 201 }, views::workflow(&row, None)))
}

pub async fn validate(uri: Uri, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let tree = body::definition(&headers, body).await?;
    Ok(answer(
        200,
        match lang::compile(&tree) {
            Ok(compiled) => ValidationView {
                valid: true,
                hash: Some(views::hash(&compiled.hash)),
                form: Some(compiled.form.as_str()),
                steps: compiled.plan.nodes().iter().map(|n| n.key.clone()).collect(),
                problems: Vec::new(),
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

pub async fn list(app: State, uri: Uri) -> Answer {
    let query = Query::parse(uri.query(), &["limit", "cursor"])?;
    let limit = query.limit()?;
    let before = query.read("cursor", "the `next` of an earlier page", WorkflowId::parse)?;
    let mut rows = app.engine.workflows(app.org(), before, limit + 1).await?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].id.to_string());
    rows.truncate(limit);
    Ok(page(rows.iter().map(|row| views::workflow(row, None)).collect(), next))
}

pub async fn show(app: State, uri: Uri, Path(key): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    let row = find(&app, &key).await?;
    let source = app.engine.source(app.org(), &row.hash).await?;
    let definition = source.and_then(|bytes| serde_json::from_slice(&bytes).ok()).map(|s| views::definition(&row, s));
    Ok(answer(200, views::workflow(&row, definition)))
}

/// A workflow by id, name or slug.
pub async fn find(app: &crate::App, key: &str) -> Result<store::WorkflowRow, Refusal> {
    let found = app.engine.workflow(app.org(), key).await?;
    found.ok_or_else(|| no_workflow(key))
}

fn no_workflow(key: &str) -> Refusal {
    Refusal::not_found("workflow", &key.chars().take(80).collect::<String>())
}

pub async fn trigger(app: State, uri: Uri, Path(key): Path<String>, given: HeaderMap, body: Body) -> Answer {
    let query = Query::parse(uri.query(), &["wait", "label"])?;
    let wait = query.span("wait", WAIT_MAX)?;
    let labels = query.labels()?;
    if labels.len() > LABELS_MAX {
        return Err(Refusal::new(Code::InvalidParameter, format!("a run has at most {LABELS_MAX} labels")).at("label"));
    }
    let idempotency = idempotency_key(&given)?;
    let body = body::payload(&given, body).await?;
    let workflow = app.engine.resolve(app.org(), &key).await?.ok_or_else(|| no_workflow(&key))?;
    let fingerprint = fingerprint(workflow.row.id, &body, &labels);
    let request = StartRequest {
        headers: headers::kept(&given),
        labels,
        idempotency: idempotency.map(|key| Idempotency { scope: None, key, fingerprint }),
        ..StartRequest::new(app.org(), workflow, body)
    };
    if let Some(limit) = wait {
        let (started, _) = app.engine.run(request, Duration::from_micros(limit.0)).await?;
        let status = if started.deduplicated { 200 } else { 201 };
        let reading = app.engine.read(app.org(), started.run).await?;
        let reading = reading.ok_or_else(|| Refusal::not_found("run", &started.run.to_string()))?;
        return Ok(answer(status, views::run(&reading)));
    }
    let started = app.engine.start(request).await?;
    let status = if started.deduplicated { 200 } else { 201 };
    Ok(answer(status, started_view(&started)))
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=KEY_MAX).contains(&key.len()));
    key.map(|key| Some(key.to_owned())).ok_or_else(|| {
        Refusal::new(Code::InvalidHeader, format!("an idempotency key has 1 to {KEY_MAX} visible ASCII characters"))
            .at("Idempotency-Key")
    })
}

/// What makes two requests the same: the route, the workflow, the canonical body and the labels.
fn fingerprint(workflow: WorkflowId, body: &[u8], labels: &[(String, String)]) -> [u8; 32] {
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
    hash.finalize().into()
}
