//! Runs: list, look at, follow, cancel. The routes below a workflow answer only for its own runs.

use super::workflows::{LABELS_MAX, find_ever, idempotency_key};
use super::{answer, page, run_id};
use crate::query::{Query, invalid};
use crate::{Answer, App, Path, Refusal, State, body, views};
use api::{Code, ReplayedView, RunStatusView, rfc3339};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use engine::engine::Reading;
use engine::{Edition, Idempotency};
use kernel::{Answer as Judged, RunId, RunStatus, WorkflowId};
use sha2::{Digest, Sha256};
use store::RunFilter;

const LIST: &[&str] = &["status", "workflow", "label", "since", "until", "limit", "cursor"];

pub async fn list(app: State, uri: Uri) -> Answer {
    let query = Query::parse(uri.query(), LIST)?;
    let workflow = match query.get("workflow") {
        Some(key) => Some(find_ever(&app, key).await?.id),
        None => None,
    };
    runs(&app, &query, workflow).await
}

pub async fn list_of_workflow(app: State, uri: Uri, Path(workflow): Path<String>) -> Answer {
    let query = Query::parse(uri.query(), &["status", "label", "since", "until", "limit", "cursor"])?;
    let workflow = find_ever(&app, &workflow).await?.id;
    runs(&app, &query, Some(workflow)).await
}

async fn runs(app: &App, query: &Query, workflow: Option<WorkflowId>) -> Answer {
    let limit = query.limit()?;
    let labels = query.labels()?;
    if labels.len() > LABELS_MAX {
        return Err(Refusal::new(Code::InvalidParameter, format!("a run has at most {LABELS_MAX} labels")).at("label"));
    }
    let filter = RunFilter {
        statuses: statuses(query)?,
        workflow,
        labels,
        since: query.time("since")?,
        until: query.time("until")?,
        before: query.read("cursor", "the `next` of an earlier page", RunId::parse)?,
        limit: limit + 1,
    };
    let mut rows = app.engine.store().runs(app.org(), &filter).await.map_err(engine::Error::from)?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].id.to_string());
    rows.truncate(limit);
    Ok(page(rows.iter().map(views::summary).collect(), next))
}

/// `status=failed,timeout`. The words people use for success all mean `completed`.
fn statuses(query: &Query) -> Result<Vec<RunStatus>, Refusal> {
    let words = query.all("status").flat_map(|list| list.split(','));
    let read = |word: &str| match word {
        "success" | "succeeded" | "received" => Some(RunStatus::Completed),
        word => RunStatus::parse(word),
    };
    let expected = || RunStatus::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ");
    words.map(|word| read(word).ok_or_else(|| invalid("status", word, &format!("one of {}", expected())))).collect()
}

pub async fn show(app: State, uri: Uri, Path(run): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    Ok(answer(200, views::run(&read(&app, &run).await?)))
}

pub async fn show_of_workflow(app: State, uri: Uri, Path((workflow, run)): Path<(String, String)>) -> Answer {
    Query::parse(uri.query(), &[])?;
    let id = member(&app, &workflow, &run).await?;
    Ok(answer(200, views::run(&read(&app, &id.to_string()).await?)))
}

pub async fn steps(app: State, uri: Uri, Path(run): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    Ok(page(views::steps(&read(&app, &run).await?), None))
}

pub async fn events(app: State, uri: Uri, Path(run): Path<String>) -> Answer {
    let query = Query::parse(uri.query(), &["cursor", "limit"])?;
    let limit = query.limit()?;
    let after = query.read("cursor", "the number of an event", |text| text.parse::<u64>().ok())?.unwrap_or(0);
    let id = run_id(&run)?;
    let missing = || Refusal::not_found("run", &run);
    let plan = app.engine.read(app.org(), id).await?.ok_or_else(missing)?.version.plan.clone();
    let history = app.engine.history(app.org(), id).await?.ok_or_else(missing)?;
    let mut rest = history.into_iter().filter(|(seq, ..)| *seq > after);
    let events: Vec<_> = rest.by_ref().take(limit).collect();
    let next = rest.next().and(events.last()).map(|(seq, ..)| seq.to_string());
    Ok(page(events.iter().map(|(seq, at, event)| views::event(&plan, *seq, *at, event)).collect(), next))
}

pub async fn graph(app: State, uri: Uri, Path(run): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    Ok(answer(200, views::graph::of_run(&read(&app, &run).await?)))
}

pub async fn delete(app: State, uri: Uri, Path(run): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    app.engine.delete_run(app.org(), run_id(&run)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A new run from the input of this one.
pub async fn replay(app: State, uri: Uri, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let id = run_id(&run)?;
    let key = idempotency_key(&headers)?;
    let [version] = body::texts(&body::payload(&headers, body).await?, ["version"])?;
    let edition = match version.as_str() {
        "" | "pinned" => Edition::Pinned,
        "latest" => Edition::Latest,
        _ => {
            let refusal = Refusal::new(Code::InvalidBody, "`version` is `pinned` or `latest`");
            return Err(refusal.at("version"));
        }
    };
    let fingerprint = || {
        let hash = Sha256::new().chain_update(b"replay\0").chain_update(id.0);
        hash.chain_update([edition as u8]).finalize().into()
    };
    let idempotency = key.map(|key| Idempotency { scope: None, key, fingerprint: fingerprint() });
    let started = app.engine.replay(app.org(), id, edition, idempotency).await?;
    let view = ReplayedView {
        run_id: started.run.to_string(),
        replayed_from: id.to_string(),
        workflow_id: started.workflow.to_string(),
        status: started.status.as_str(),
        started_at: rfc3339(started.started_at),
        deduplicated: started.deduplicated,
    };
    Ok(answer(if started.deduplicated { 200 } else { 201 }, view))
}

pub async fn cancel(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    cancel_run(&app, id, &headers, body).await
}

pub async fn cancel_of_workflow(
    app: State,
    Path((workflow, run)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let id = member(&app, &workflow, &run).await?;
    cancel_run(&app, id, &headers, body).await
}

async fn cancel_run(app: &App, run: RunId, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let [actor, reason] = body::texts(&body::payload(headers, body).await?, ["actor", "reason"])?;
    let (judged, status) = app.engine.cancel(app.org(), run, actor, reason).await?;
    held(run, (judged, status))
}

pub async fn explain(app: State, uri: Uri, Path(run): Path<String>) -> Answer {
    let query = Query::parse(uri.query(), &["step"])?;
    let step = query.read("step", "the name of a step", |text| Some(text.to_owned()))?;
    let found = app.engine.explain(app.org(), run_id(&run)?, step.as_deref()).await?;
    let (reading, told) = found.ok_or_else(|| Refusal::not_found("run", &run))?;
    let told = told.ok_or_else(|| {
        let message = format!("`{}` is not a step of this run", step.unwrap_or_default());
        Refusal::new(Code::InvalidParameter, message).at("step")
    })?;
    Ok(answer(200, views::explanation(&reading, told)))
}

pub async fn pause(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let [actor, note] = body::texts(&body::payload(&headers, body).await?, ["actor", "note"])?;
    held(id, app.engine.pause(app.org(), id, actor, note).await?)
}

pub async fn resume(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let [actor] = body::texts(&body::payload(&headers, body).await?, ["actor"])?;
    held(id, app.engine.resume(app.org(), id, actor).await?)
}

/// Starts attempts that wait for their time at once.
pub async fn retry(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let [actor, step] = body::texts(&body::payload(&headers, body).await?, ["actor", "step"])?;
    let reading = read(&app, &run).await?;
    let step = match step.as_str() {
        "" => None,
        name => Some(reading.version.plan.step(name).ok_or_else(|| {
            Refusal::new(Code::InvalidBody, format!("`{name}` is not a step of this run")).at("step")
        })?),
    };
    let (judged, status) = app.engine.retry_now(app.org(), id, step, actor).await?;
    if judged == Judged::Unknown {
        let refusal = Refusal::new(Code::NothingToRetry, "no step waits for its next attempt, or the run is held");
        return Err(refusal.hint("`GET /runs/{run}/explain` says what the run waits for"));
    }
    held(id, (judged, status))
}

fn held(run: RunId, (judged, status): (Judged, RunStatus)) -> Answer {
    match judged {
        Judged::Ended(ended) => Err(Refusal::new(Code::RunEnded, format!("the run has ended already: it is {ended}"))),
        _ => Ok(answer(200, RunStatusView { id: run.to_string(), status: status.as_str() })),
    }
}

async fn read(app: &App, run: &str) -> Result<Reading, Refusal> {
    let id = run_id(run)?;
    app.engine.read(app.org(), id).await?.ok_or_else(|| Refusal::not_found("run", run))
}

/// The id of a run that belongs to a workflow (also to one that was deleted since).
async fn member(app: &App, workflow: &str, run: &str) -> Result<RunId, Refusal> {
    let id = run_id(run)?;
    let workflow = find_ever(app, workflow).await?;
    let row = app.engine.store().run(app.org(), id).await.map_err(engine::Error::from)?;
    match row.filter(|row| row.workflow == workflow.id) {
        Some(_) => Ok(id),
        None => Err(Refusal::not_found("run", run)),
    }
}
