//! Runs: list, show (also as they were), explain, cancel, pause, delete. The routes below a workflow find only its own
//! runs.

use super::workflows::{LABELS_MAX, find_or_deleted};
use super::{answer, page, page_of_runs, run_id};
use crate::contract::{Param, ResponseShape, Route, delete as delete_route, get, params, post};
use crate::query::{NUMBER_MAX, Query, invalid};
use crate::views::history::{EVENTS_MAX, Moment};
use crate::{Answer, App, Path, Refusal, State, body, views};
use api::{
    AsOfView, CancelRequest, Code, EventView, ExplainView, GraphView, PauseRequest, RunDiffView, RunStatusView,
    RunSummary, RunView, StepView, WaitSummaryView,
};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::services::{CancelRun, NOTIFIER, Reading, RunHistory, StoredEvent, type_id};
use kernel::plan::Form;
use kernel::{Answer as Judged, RunId, RunStatus, Span, WorkflowId};
use serde_json::{Value, json};
use std::time::Duration;
use store::{RunFilter, listed_id};

/// Size limit of an `actor`, a `reason` or a `note`.
const NOTE_MAX: usize = 1_024;

/// Other words for `completed` in `?status=`.
const COMPLETED: &[&str] = &["success", "succeeded", "received"];
const STATUS: Param = Param::new(
    "status",
    "one or more, such as `failed,timeout`; `success`, `succeeded` and `received` mean `completed`",
    || {
        let names: Vec<&str> = RunStatus::ALL.iter().map(|s| s.as_str()).chain(COMPLETED.iter().copied()).collect();
        let any = names.join("|");
        json!({ "type": "string", "pattern": format!("^({any})(,({any}))*$") })
    },
);
const TYPE: Param = Param::new("type", "runs of single tasks of this type", || json!({ "type": "string" }));
const FORM: Param = Param::new(
    "form",
    "one or more forms, such as `graph,script`; runs of single tasks have the form `task`",
    || json!({ "type": "string" }),
);
const FILTERS: &[Param] = &[STATUS, params::LABEL, params::SINCE, params::UNTIL];
const UNDER: Param = Param::new(
    "under",
    "list what is inside this group, loop or iteration, such as `orders[3]`",
    || json!({ "type": "string" }),
);
const AFTER_STEP: Param = Param::new("cursor", "continue after the page that gave this", params::number);
const AFTER: Param = Param::new("cursor", "only events after this number", params::number);

const EVENT_NUMBER: &str = "the number of an event, from 1";

fn event_number_schema() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": NUMBER_MAX })
}

const AT: Param = Param::new("at", "as it was right after the event with this number", event_number_schema);
const FROM: Param = Param::new("from", "the number of the earlier event", event_number_schema).required();
const TO: Param = Param::new("to", "the number of the later event; by default the last one", event_number_schema);

pub fn wait_schema() -> Value {
    json!({ "type": "string", "pattern": "^([0-9]{1,4}ms|[0-5]?[0-9]s|60s|[01]m)$" })
}

/// The longest `?wait=`.
pub const WAIT_MAX: Span = Span::from_secs(60);
pub const WAIT: Param = Param::new("wait", "respond when it has ended, or after this time (up to 60s)", wait_schema);

const STEP: Param = Param::new("step", "explain this step of the run", || json!({ "type": "string" }));

pub fn routes() -> Vec<Route> {
    const OF_WORKFLOW: &str = "/api/v1/workflows/{workflow}/runs/{run}";
    vec![
        get("/api/v1/runs", list, "list_runs", "List runs, newest first")
            .query(&[params::WORKFLOW, TYPE, FORM])
            .query(FILTERS)
            .pages_of_runs::<RunSummary>()
            .refuses(&[Code::NotFound]),
        get("/api/v1/runs/{run}", show, "show_run", "Show a run, now or as it was")
            .query(&[WAIT, AT])
            .answers::<RunView>(200, "the run")
            .refuses(&[Code::UnknownEvent]),
        delete_route("/api/v1/runs/{run}", delete, "delete_run", "Delete a run that has ended, with all its data")
            .shaped(204, "deleted", ResponseShape::Nothing)
            .refuses(&[Code::RunNotEnded]),
        get("/api/v1/runs/{run}/graph", graph, "show_run_graph", "Show the steps of a run as a graph")
            .answers::<GraphView>(200, "nodes and edges"),
        get("/api/v1/runs/{run}/steps", steps, "list_steps", "List the steps of a run with all attempts")
            .query(&[UNDER, AT, AFTER_STEP, params::LIMIT])
            .shaped(
                200,
                "all steps, or one page of those inside another",
                ResponseShape::Page(|g| g.subschema_for::<StepView>()),
            )
            .refuses(&[Code::UnknownEvent]),
        get("/api/v1/runs/{run}/diff", diff, "diff_run", "Show what changed in a run between two events")
            .query(&[FROM, TO])
            .answers::<RunDiffView>(200, "what changed")
            .refuses(&[Code::UnknownEvent]),
        get("/api/v1/runs/{run}/events", events, "list_events", "List the events of a run, in order")
            .query(&[AFTER, params::LIMIT])
            .shaped(200, "one page", ResponseShape::Page(|g| g.subschema_for::<EventView>())),
        post("/api/v1/runs/{run}/cancel", cancel, "cancel_run", "Cancel a run")
            .may_take::<CancelRequest>()
            .answers::<RunStatusView>(200, "the run is cancelled, now or earlier")
            .refuses(&[Code::RunEnded]),
        get("/api/v1/runs/{run}/explain", explain, "explain_run", "Explain why a run or a step is in its state")
            .query(&[STEP])
            .answers::<ExplainView>(200, "the causes, the evidence and possible requests"),
        get(
            "/api/v1/explain",
            explain_workflow,
            "explain_workflow",
            "Sum up what the open runs of a workflow wait for",
        )
        .query(&[params::WORKFLOW.required()])
        .shaped(200, "causes with the number of runs", ResponseShape::Whole(|g| g.subschema_for::<WaitSummaryView>()))
        .refuses(&[Code::NotFound]),
        post("/api/v1/runs/{run}/pause", pause, "pause_run", "Pause a run: no step starts until it is resumed")
            .may_take::<PauseRequest>()
            .answers::<RunStatusView>(200, "the run is paused, now or earlier")
            .refuses(&[Code::RunEnded]),
        get(
            "/api/v1/workflows/{workflow}/runs",
            list_of_workflow,
            "list_runs_of_workflow",
            "List the runs of a workflow, newest first",
        )
        .query(FILTERS)
        .pages_of_runs::<RunSummary>(),
        get(OF_WORKFLOW, show_of_workflow, "show_run_of_workflow", "Show a run of a workflow")
            .answers::<RunView>(200, "the run"),
        post(
            "/api/v1/workflows/{workflow}/runs/{run}/cancel",
            cancel_of_workflow,
            "cancel_run_of_workflow",
            "Cancel a run of a workflow",
        )
        .may_take::<CancelRequest>()
        .answers::<RunStatusView>(200, "the run is cancelled, now or earlier")
        .refuses(&[Code::RunEnded]),
    ]
}

pub async fn list(app: State, query: Query) -> Answer {
    let workflow = match (query.get("workflow"), query.get("type")) {
        (Some(_), Some(_)) => {
            let message = "`workflow` and `type` cannot be combined: a single task has no workflow";
            return Err(Refusal::new(Code::InvalidParameter, message).at("type"));
        }
        (Some(key), None) => Some(find_or_deleted(&app, key).await?.id),
        (None, Some(name)) => Some(type_id(name)),
        (None, None) => None,
    };
    runs(&app, &query, workflow).await
}

pub async fn list_of_workflow(app: State, query: Query, Path(workflow): Path<String>) -> Answer {
    let workflow = find_or_deleted(&app, &workflow).await?.id;
    runs(&app, &query, Some(workflow)).await
}

async fn runs(app: &App, query: &Query, workflow: Option<WorkflowId>) -> Answer {
    let limit = query.limit()?;
    let labels = query.labels()?;
    if labels.len() > LABELS_MAX {
        return Err(Refusal::new(Code::InvalidParameter, format!("a run has at most {LABELS_MAX} labels")).at("label"));
    }
    let now = app.engine.now();
    let filter = RunFilter {
        statuses: statuses(query)?,
        workflow,
        // Runs of the built-in notifier are listed only if the request names its workflow.
        except: Some(NOTIFIER),
        forms: forms(query)?,
        labels,
        since: query.past("since", now)?,
        until: query.past("until", now)?,
        before: query.read("cursor", "`next` of the previous page", RunId::parse)?,
        limit: limit + 1,
    };
    let mut listed = app.engine.store().runs(app.org(), &filter).await.map_err(engine::Error::from)?;
    let next = (listed.len() > limit).then(|| listed_id(&listed[limit - 1]).to_string());
    listed.truncate(limit);
    let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
    for run in listed {
        match run {
            Ok(row) => rows.push(views::summary(&row)),
            Err(row) => unreadable.push(row.into()),
        }
    }
    Ok(page_of_runs(rows, next, &unreadable))
}

/// Parses `form=graph,task`.
fn forms(query: &Query) -> Result<Vec<Form>, Refusal> {
    let words = query.all("form").flat_map(|list| list.split(','));
    let expected = || Form::ALL.iter().map(|form| form.as_str()).collect::<Vec<_>>().join(", ");
    words
        .map(|word| Form::parse(word).ok_or_else(|| invalid("form", word, &format!("one of {}", expected()))))
        .collect()
}

/// Parses `status=failed,timeout`. Other words for success mean `completed`.
fn statuses(query: &Query) -> Result<Vec<RunStatus>, Refusal> {
    let words = query.all("status").flat_map(|list| list.split(','));
    words.map(|word| status(word).ok_or_else(|| invalid("status", word, &expected_statuses()))).collect()
}

pub fn status(word: &str) -> Option<RunStatus> {
    if COMPLETED.contains(&word) { Some(RunStatus::Completed) } else { RunStatus::parse(word) }
}

pub fn expected_statuses() -> String {
    format!("one of {}", RunStatus::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", "))
}

pub async fn show(app: State, query: Query, Path(run): Path<String>) -> Answer {
    let wait = query.span("wait", WAIT_MAX)?;
    if let Some(seq) = event_number(&query, "at")? {
        if wait.is_some() {
            let message = "`at` and `wait` cannot be combined: what a run was does not change";
            return Err(Refusal::new(Code::InvalidParameter, message).at("wait"));
        }
        let (as_of, reading) = read_at(&app, &run, seq).await?;
        return Ok(answer(200, RunView { as_of: Some(as_of), ..views::run(&reading) }));
    }
    let mut reading = read(&app, &run).await?;
    if let Some(wait) = wait.filter(|_| !reading.run.is_terminal()) {
        app.engine.runs.wait(app.org(), reading.row.id, Duration::from_micros(wait.0)).await?;
        reading = read(&app, &run).await?;
    }
    Ok(answer(200, views::run(&reading)))
}

pub async fn show_of_workflow(app: State, Path((workflow, run)): Path<(String, String)>) -> Answer {
    let id = member(&app, &workflow, &run).await?;
    Ok(answer(200, views::run(&read(&app, &id.to_string()).await?)))
}

/// The steps of the root group; with `under`, the iterations of a loop, or the steps of a group or an iteration.
pub async fn steps(app: State, query: Query, Path(run): Path<String>) -> Answer {
    let limit = query.limit()?;
    let after = query.number("cursor", "the number of a step")?.unwrap_or(0) as usize;
    let mut reading = match event_number(&query, "at")? {
        None => read(&app, &run).await?,
        Some(seq) => read_at(&app, &run, seq).await?.1,
    };
    let Some(key) = query.get("under") else {
        let steps: Vec<u32> = reading.run.roots().collect();
        let history = app.engine.runs.history_of(app.org(), &reading, &steps).await?.unwrap_or_default();
        return Ok(page(views::steps(&reading, &steps, &history), None));
    };
    if !reading.has_steps_under(key) {
        reading = app.engine.runs.read_whole(app.org(), reading).await?;
    }
    let under = reading.run.find(&reading.version.plan, key);
    let is_one = |step: &u32| reading.run.node(&reading.version.plan, *step).inner().is_some();
    let Some(under) = under.filter(is_one) else {
        let message = format!("`{key}` is not a group, a loop or an iteration of this run");
        return Err(Refusal::new(Code::InvalidParameter, message).at("under"));
    };
    let next = |shown: usize, of: usize| Some((after + shown).to_string()).filter(|_| after + shown < of);
    if let Some(iterations) = reading.run.step(under).iterations.clone() {
        let wanted: Vec<u32> = (0..iterations.opened).skip(after).take(limit).collect();
        let bodies = wanted.iter().filter_map(|index| iterations.settled.get(index)?.body.as_ref());
        app.engine.runs.fetch(app.org(), &mut reading, bodies.cloned()).await?;
        let views = wanted.iter().map(|index| match iterations.settled.get(index) {
            Some(settled) => views::iteration(&reading, under, *index, settled),
            None => views::open_iteration(&reading, under, *index),
        });
        return Ok(page(views.collect(), next(wanted.len(), iterations.opened as usize)));
    }
    let all: Vec<u32> = reading.run.children(under).collect();
    let wanted: Vec<u32> = all.iter().skip(after).take(limit).copied().collect();
    let history = app.engine.runs.history_of(app.org(), &reading, &wanted).await?.unwrap_or_default();
    Ok(page(views::steps(&reading, &wanted, &history), next(wanted.len(), all.len())))
}

pub async fn diff(app: State, query: Query, Path(run): Path<String>) -> Answer {
    let (from, to) = (event_number(&query, "from")?, event_number(&query, "to")?);
    let from = from.ok_or_else(|| invalid("from", "", EVENT_NUMBER))?;
    let history = read_history(&app, &run).await?;
    let earlier = event_of(&history, "from", from)?;
    let to = to.unwrap_or(history.last_seq);
    let later = event_of(&history, "to", to)?;
    if from > to {
        let message = format!("`from` ({from}) is later than `to` ({to})");
        return Err(Refusal::new(Code::InvalidParameter, message).hint("swap them").at("from"));
    }
    let count = (to - from).min(EVENTS_MAX as u64) as usize;
    let events = history.events_after(from, count)?;
    let runs = &app.engine.runs;
    let from = Moment { event: earlier, reading: runs.read_whole_at(app.org(), &history, from).await? };
    let to = Moment { event: later, reading: runs.read_whole_at(app.org(), &history, to).await? };
    Ok(answer(200, views::history::diff(&history, &from, &to, &events)))
}

pub async fn events(app: State, query: Query, Path(run): Path<String>) -> Answer {
    let limit = query.limit()?;
    let after = query.number("cursor", "the number of an event")?.unwrap_or(0);
    let id = run_id(&run)?;
    let missing = || Refusal::not_found("run", &run);
    let mut events = app.engine.runs.events_after(app.org(), id, after, limit + 1).await?.ok_or_else(missing)?;
    // Read after its events, the run knows of every move in them.
    let versions = app.engine.runs.read(app.org(), id).await?.ok_or_else(missing)?.versions;
    let has_more = events.len() > limit;
    events.truncate(limit);
    let next = events.last().filter(|_| has_more).map(|stored| stored.seq.to_string());
    Ok(page(events.iter().map(|stored| views::event(&versions.at(stored.seq).plan, stored)).collect(), next))
}

pub async fn graph(app: State, Path(run): Path<String>) -> Answer {
    Ok(answer(200, views::graph::of_run(&read(&app, &run).await?)))
}

pub async fn delete(app: State, Path(run): Path<String>) -> Answer {
    app.engine.runs.delete(app.org(), run_id(&run)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
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
    let CancelRequest { actor, reason, compensate } = body::json::<Option<_>>(headers, body).await?.unwrap_or_default();
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let (judged, status) = app.engine.runs.cancel(app.org(), run, CancelRun { actor, reason, compensate }).await?;
    status_response(run, (judged, status))
}

/// Checks the size of texts that are stored in the history. Returns them in the same order.
pub fn notes<const N: usize>(texts: [(&str, String); N]) -> Result<[String; N], Refusal> {
    if let Some((name, _)) = texts.iter().find(|(_, text)| text.len() > NOTE_MAX) {
        return Err(Refusal::new(Code::InvalidBody, format!("`{name}` has more than {NOTE_MAX} bytes")).at(*name));
    }
    Ok(texts.map(|(_, text)| text))
}

pub async fn explain(app: State, query: Query, Path(run): Path<String>) -> Answer {
    let step = query.get("step");
    let found = app.engine.runs.explain(app.org(), run_id(&run)?, step).await?;
    let (reading, explanation) = found.ok_or_else(|| Refusal::not_found("run", &run))?;
    let explanation = explanation.ok_or_else(|| {
        let message = format!("`{}` is not a step of this run", step.unwrap_or_default());
        Refusal::new(Code::InvalidParameter, message).at("step")
    })?;
    Ok(answer(200, views::explanation(&reading, explanation)))
}

pub async fn explain_workflow(app: State, query: Query) -> Answer {
    let key = query.get("workflow").ok_or_else(|| {
        Refusal::new(Code::InvalidParameter, "`workflow` is missing").hint("name one: ?workflow=orders").at("workflow")
    })?;
    let workflow = find_or_deleted(&app, key).await?.id;
    let summary = app.engine.runs.summarise_waits(app.org(), workflow).await?;
    Ok(Json(views::waits(summary)).into_response())
}

pub async fn pause(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let PauseRequest { actor, note } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor, note] = notes([("actor", actor), ("note", note)])?;
    status_response(id, app.engine.runs.pause(app.org(), id, actor, note).await?)
}

fn status_response(run: RunId, (judged, status): (Judged, RunStatus)) -> Answer {
    match judged {
        Judged::Ended(ended) => Err(Refusal::new(Code::RunEnded, format!("the run has ended already: it is {ended}"))),
        _ => Ok(answer(200, RunStatusView { id: run.to_string(), status: status.as_str().into() })),
    }
}

async fn read(app: &App, run: &str) -> Result<Reading, Refusal> {
    let id = run_id(run)?;
    app.engine.runs.read(app.org(), id).await?.ok_or_else(|| Refusal::not_found("run", run))
}

/// The run as it was right after the event that the parameter `at` names.
async fn read_at(app: &App, run: &str, seq: u64) -> Result<(AsOfView, Reading), Refusal> {
    let history = read_history(app, run).await?;
    let event = event_of(&history, "at", seq)?;
    let reading = app.engine.runs.read_at(app.org(), &history, seq).await?;
    Ok((views::history::as_of(&history, &event), reading))
}

async fn read_history(app: &App, run: &str) -> Result<RunHistory, Refusal> {
    let id = run_id(run)?;
    app.engine.runs.run_history(app.org(), id).await?.ok_or_else(|| Refusal::not_found("run", run))
}

/// The number of an event in a parameter.
fn event_number(query: &Query, parameter: &str) -> Result<Option<u64>, Refusal> {
    let is_one = |number: &u64| (1..=NUMBER_MAX).contains(number);
    query.read(parameter, EVENT_NUMBER, |text| text.parse().ok().filter(is_one))
}

/// The event that a parameter names.
fn event_of(history: &RunHistory, parameter: &str, seq: u64) -> Result<StoredEvent, Refusal> {
    history.event(seq)?.ok_or_else(|| {
        Refusal::new(Code::UnknownEvent, format!("the run has no event {seq}"))
            .hint(format!("its last event is {}", history.last_seq))
            .at(parameter)
    })
}

/// The id of a run, if it belongs to the workflow. The workflow may have been deleted.
async fn member(app: &App, workflow: &str, run: &str) -> Result<RunId, Refusal> {
    let id = run_id(run)?;
    let workflow = find_or_deleted(app, workflow).await?;
    let row = app.engine.store().run(app.org(), id).await.map_err(engine::Error::from)?;
    match row.filter(|row| row.workflow == workflow.id) {
        Some(_) => Ok(id),
        None => Err(Refusal::not_found("run", run)),
    }
}
