//! Tasks for producers and operators: submit, list, show, cancel, retry, delete.

use super::runs::{WAIT, WAIT_MAX, notes};
use super::workflows::{KEY_MAX, LABELS_MAX, callback_url, idempotency_key};
use super::{answer, page, page_of_runs};
use crate::contract::{Param, ResponseShape, Route, delete as delete_route, get, params, post};
use crate::error::problem_of;
use crate::query::{LABEL, PAST, Query, is_label, parse_past};
use crate::views::tasks as views;
use crate::{Answer, App, Path, Refusal, State, body, spelling};
use api::{
    At, BulkAction, BulkRequest, BulkView, CancelRequest, Code, EventView, Object, Problem, ReleasedView,
    ResumeRequest, RetriedView, SubmittedView, SubmittedViews, TaskRequest, TaskRequests, TaskStatusView, TaskView,
    parse_rfc3339,
};
use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use engine::services::{
    Bulk, CancelRun, NewTask, Retried, StartedRun, TaskFilter, TaskKey, TaskPage, TaskReading, status_of,
};
use kernel::{Answer as Judged, RunId, RunStatus, TaskStatus, Timestamp};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const ITEMS_MAX: usize = 10_000;
/// Size limit of a list of tasks.
const LIST_MAX: usize = 32 * 1024 * 1024;
const PRIORITY_MAX: u32 = 1_000_000;
pub const NAME_MAX: usize = 200;

const TYPE: Param =
    Param::new("type", "a type; with `%` at the end, every type with this prefix", || json!({ "type": "string" }));
const STATUS: Param = Param::new(
    "status",
    "only tasks with this status",
    || json!({ "type": "string", "enum": TaskStatus::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>() }),
);

pub fn routes() -> Vec<Route> {
    vec![
        post("/api/v1/tasks", submit, "submit_tasks", "Submit a task, or many at once")
            .takes::<TaskRequests>()
            .idempotent()
            .one_write()
            .answers::<SubmittedViews>(201, "the task is durable and waits for a worker")
            .answers::<SubmittedViews>(200, "the task that an earlier request with this key submitted")
            .refuses(&[Code::TypeDisabled]),
        get("/api/v1/tasks", list, "list_tasks", "List tasks, newest first")
            .query(&[TYPE, STATUS, params::LABEL, params::SINCE, params::UNTIL])
            .pages_of_runs::<TaskView>(),
        post("/api/v1/tasks/bulk", bulk, "change_tasks", "Cancel, retry or delete the tasks that match a filter")
            .takes::<BulkRequest>()
            .answers::<BulkView>(200, "how many tasks, and the ids of the first")
            .refuses(&[Code::InvalidParameter]),
        get("/api/v1/tasks/{task}", show, "show_task", "Show a task")
            .query(&[WAIT])
            .answers::<TaskView>(200, "the task"),
        delete_route("/api/v1/tasks/{task}", delete, "delete_task", "Delete a task; an open one is cancelled")
            .shaped(204, "deleted", ResponseShape::Nothing)
            .refuses(&[Code::RunNotEnded, Code::TaskState]),
        get("/api/v1/tasks/{task}/events", events, "list_task_events", "List the events of a task, in order").shaped(
            200,
            "all events",
            ResponseShape::Page(|g| g.subschema_for::<EventView>()),
        ),
        post("/api/v1/tasks/{task}/cancel", cancel, "cancel_task", "Cancel a task")
            .may_take::<CancelRequest>()
            .answers::<TaskStatusView>(200, "the task is cancelled, now or earlier")
            .refuses(&[Code::RunEnded]),
        post(
            "/api/v1/tasks/{task}/retry",
            retry,
            "retry_task",
            "Start the next attempt now, or submit a failed task again",
        )
        .may_take::<ResumeRequest>()
        .answers::<RetriedView>(201, "a new task with the content of the failed one")
        .answers::<RetriedView>(200, "the next attempt is due, or an earlier request submitted the task again")
        .refuses(&[Code::TaskState, Code::TypeDisabled, Code::RunDeleted, Code::WorkflowDisabled])
        .refuses(&[Code::ConcurrencyKeyUnresolved, Code::IdempotencyKeyReused]),
    ]
}

/// A task id from a path.
pub fn task_key(text: &str) -> Result<TaskKey, Refusal> {
    TaskKey::parse(text).ok_or_else(|| {
        let text: String = text.chars().take(80).collect();
        Refusal::new(Code::MalformedId, format!("`{text}` is not a task id"))
            .hint("task ids look like task_01jz8k3w9mz6xq4v7n5t2c0b1d")
    })
}

async fn submit(app: State, headers: HeaderMap, body: Body) -> Answer {
    let bytes = body::payload_of(&headers, body, LIST_MAX).await?;
    let key = idempotency_key(&headers)?;
    let (requests, is_list) = read(&bytes)?;
    if is_list && key.is_some() {
        let refusal =
            Refusal::new(Code::InvalidHeader, "a list has an `idempotency_key` for each task instead of the header");
        return Err(refusal.at("Idempotency-Key"));
    }
    let is_too_large =
        |request: &TaskRequest| request.payload.as_ref().is_some_and(|p| p.get().len() > body::PAYLOAD_MAX);
    if let Some(index) = requests.iter().position(is_too_large) {
        let place = ItemPosition { index: is_list.then_some(index) };
        let message = format!("the payload is larger than {} bytes", body::PAYLOAD_MAX);
        let refusal = Refusal::new(Code::TooLarge, message).hint("store the data elsewhere and send its address");
        return Err(refusal.at(place.path("payload")));
    }
    let now = app.engine.now();
    let mut problems = Vec::new();
    let mut tasks = Vec::with_capacity(requests.len());
    for (index, request) in requests.into_iter().enumerate() {
        let place = ItemPosition { index: is_list.then_some(index) };
        tasks.extend(check_task(request, key.as_deref(), now, &place, &mut problems));
    }
    if !problems.is_empty() {
        return Err(Refusal::of_problems(Code::InvalidBody, problems));
    }
    let submitted = app.engine.tasks.submit(app.org(), tasks).await.map_err(|error| match error {
        // The error of a single task needs no index.
        engine::Error::Items(mut items) if !is_list && items.len() == 1 => items.remove(0).1.into(),
        other => Refusal::from(other),
    })?;
    let mut views: Vec<SubmittedView> = submitted.into_iter().map(submitted_view).collect();
    let status = if views.iter().all(|view| view.deduplicated) { 200 } else { 201 };
    Ok(match views.pop() {
        Some(only) if !is_list => answer(status, SubmittedViews::One(only)),
        Some(last) => {
            views.push(last);
            answer(status, SubmittedViews::Many(views))
        }
        None => answer(status, SubmittedViews::Many(views)),
    })
}

fn submitted_view(item: StartedRun) -> SubmittedView {
    let status = match item.status {
        None => "deleted",
        Some(RunStatus::Completed) => TaskStatus::Succeeded.as_str(),
        Some(RunStatus::Failed) => TaskStatus::Failed.as_str(),
        Some(RunStatus::Cancelled | RunStatus::Timeout) => TaskStatus::Cancelled.as_str(),
        Some(_) => TaskStatus::Pending.as_str(),
    };
    SubmittedView {
        task_id: TaskKey::plain(item.run).to_string(),
        run_id: item.run.to_string(),
        status: status.into(),
        deduplicated: item.deduplicated,
    }
}

/// Reads one task or a list.
fn read(bytes: &Bytes) -> Result<(Vec<TaskRequest>, bool), Refusal> {
    parse(bytes).or_else(|refusal| match spelling::corrected::<TaskRequests>(bytes)? {
        Some(corrected) => parse(&corrected),
        None => Err(refusal),
    })
}

fn parse(bytes: &Bytes) -> Result<(Vec<TaskRequest>, bool), Refusal> {
    let is_list = bytes.trim_ascii_start().first() == Some(&b'[');
    if !is_list {
        let one: TaskRequest = serde_json::from_slice(bytes).map_err(|error| wrong(&error, ""))?;
        return Ok((vec![one], false));
    }
    let many: Vec<Object<TaskRequest>> = serde_json::from_slice(bytes).map_err(|error| {
        // Parse each item alone to find the invalid one.
        let items: Vec<&RawValue> = serde_json::from_slice(bytes).unwrap_or_default();
        let mut refusals = items.iter().enumerate().filter_map(|(i, raw)| {
            let error = serde_json::from_str::<Object<TaskRequest>>(raw.get()).err()?;
            Some(wrong(&error, &format!("[{i}]")))
        });
        refusals.next().unwrap_or_else(|| wrong(&error, ""))
    })?;
    if many.is_empty() || many.len() > ITEMS_MAX {
        let message = format!("there are {} tasks, expected 1 to {ITEMS_MAX}", many.len());
        return Err(Refusal::new(Code::InvalidBody, message));
    }
    Ok((many.into_iter().map(|Object(one)| one).collect(), true))
}

fn wrong(error: &serde_json::Error, at: &str) -> Refusal {
    let message = error.to_string();
    let message: String = message.split(" at line ").next().unwrap_or_default().chars().take(300).collect();
    let hint = "expected `{\"type\": text, \"payload\"?: any JSON, …}` or a list of these";
    let refusal = Refusal::new(Code::InvalidBody, message).hint(hint);
    if at.is_empty() { refusal } else { refusal.at(at) }
}

/// The position of a task in its request.
struct ItemPosition {
    index: Option<usize>,
}

impl ItemPosition {
    fn of(&self, field: &str) -> Option<At> {
        Some(At { path: self.path(field), line: None, column: None })
    }

    fn path(&self, field: &str) -> String {
        match (self.index, field) {
            (None, field) => field.to_owned(),
            (Some(i), "") => format!("[{i}]"),
            (Some(i), field) => format!("[{i}].{field}"),
        }
    }
}

/// Checks one task and adds its problems to those of the other tasks.
fn check_task(
    request: TaskRequest,
    header: Option<&str>,
    now: Timestamp,
    place: &ItemPosition,
    problems: &mut Vec<Problem>,
) -> Option<NewTask> {
    let before = problems.len();
    let mut add_problem = |field: &str, message: String| {
        let code = Code::InvalidBody.as_str().to_owned();
        problems.push(Problem { code, message, at: place.of(field), ..Default::default() });
    };
    let key = request.idempotency_key.as_deref().or(header);
    if key.is_some_and(|key| !(1..=KEY_MAX).contains(&key.len()) || !key.bytes().all(|b| b.is_ascii_graphic())) {
        add_problem("idempotency_key", format!("a key has 1 to {KEY_MAX} visible ASCII characters"));
    }
    if request.idempotency_key.is_some() && header.is_some_and(|header| Some(header) != key) {
        add_problem("idempotency_key", "`idempotency_key` differs from the header `Idempotency-Key`".into());
    }
    let fingerprint = key.map(|_| fingerprint(&request));
    let payload = match &request.payload {
        None => Bytes::from_static(b"null"),
        Some(raw) => Bytes::copy_from_slice(raw.get().as_bytes()),
    };
    if request.priority.is_some_and(|priority| priority > PRIORITY_MAX) {
        add_problem("priority", format!("a priority is a number from 0 to {PRIORITY_MAX}"));
    }
    let run_at = match (&request.run_at, &request.delay) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            add_problem("delay", "`run_at` and `delay` cannot both be given".into());
            None
        }
        (Some(text), None) => parse_rfc3339(text).or_else(|| {
            add_problem("run_at", format!("`{text}` is not a time such as 2026-11-15T09:00:00Z"));
            None
        }),
        (None, Some(value)) => match body::span(value).filter(|span| *span <= lang::DURATION_MAX) {
            Some(span) => Some(now.after(span)),
            None => {
                add_problem("delay", format!("expected a duration of at most {}, such as `30s`", lang::DURATION_MAX));
                None
            }
        },
    };
    if request.labels.len() > LABELS_MAX {
        add_problem("labels", format!("a task has at most {LABELS_MAX} labels"));
    }
    for (key, value) in &request.labels {
        if !is_label(key, value) {
            add_problem(&format!("labels.{key}"), format!("a label is {LABEL}"));
        }
    }
    let callback = request.callback_url.as_deref().unwrap_or_default();
    if !callback.is_empty() && callback_url(callback).is_none() {
        add_problem("callback_url", "expected an http or https address without user name and password".into());
    }
    let concurrency_key = request.concurrency_key.clone().unwrap_or_default();
    if concurrency_key.len() > NAME_MAX || concurrency_key.chars().any(char::is_control) {
        add_problem("concurrency_key", format!("a key has at most {NAME_MAX} bytes and no control characters"));
    }
    if let Err(problem) = lang::task::check_type(&request.name) {
        problems.push(Problem { at: place.of("type"), ..problem_of(&problem) });
    }
    let settings = settings(&request, place, problems);
    if problems.len() > before {
        return None;
    }
    Some(NewTask {
        settings: settings?,
        payload,
        priority: request.priority,
        run_at: run_at.filter(|at| *at > now),
        key: concurrency_key,
        labels: request.labels.into_iter().collect(),
        callback_url: request.callback_url.unwrap_or_default(),
        idempotency: key.map(str::to_owned).zip(fingerprint),
        name: request.name,
    })
}

fn settings(
    request: &TaskRequest,
    place: &ItemPosition,
    problems: &mut Vec<Problem>,
) -> Option<lang::task::TaskSettings> {
    let given = [("max_attempts", &request.max_attempts), ("retry", &request.retry), ("timeouts", &request.timeouts)];
    let fields: Map<String, Value> =
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
    match lang::task::settings(&fields) {
        Ok(settings) => Some(settings),
        Err(wrong) => {
            problems.extend(wrong.iter().map(|problem| {
                let mut problem_here = problem_of(problem);
                problem_here.at = place.of(&problem.path);
                problem_here
            }));
            None
        }
    }
}

/// Two requests are the same task if everything but the idempotency key is equal.
fn fingerprint(request: &TaskRequest) -> [u8; 32] {
    let request = TaskRequest { idempotency_key: None, ..request.clone() };
    let text = serde_json::to_vec(&request).unwrap_or_default();
    let canonical = lang::read(&text, lang::Syntax::Json).map(|tree| lang::canonical_json(&tree));
    let mut hash = Sha256::new();
    hash.update(b"task\0");
    hash.update(canonical.map_or(text, String::into_bytes));
    hash.finalize().into()
}

async fn list(app: State, query: Query) -> Answer {
    let limit = query.limit()?;
    let status = query.read("status", "pending, leased, succeeded, failed or cancelled", TaskStatus::parse)?;
    let now = app.engine.now();
    let filter = TaskFilter {
        name: query.get("type").map(str::to_owned),
        status,
        labels: query.labels()?,
        since: query.past("since", now)?,
        until: query.past("until", now)?,
        before: query.read("cursor", "`next` of the previous page", RunId::parse)?,
        limit,
    };
    let TaskPage { tasks, unreadable, next } = app.engine.tasks.list(app.org(), &filter).await?;
    Ok(page_of_runs(tasks.iter().map(views::task).collect(), next.map(|id| id.to_string()), &unreadable))
}

async fn find(app: &App, text: &str) -> Result<TaskReading, Refusal> {
    let found = app.engine.tasks.get(app.org(), task_key(text)?).await?;
    found.ok_or_else(|| Refusal::not_found("task", text))
}

async fn show(app: State, query: Query, Path(task): Path<String>) -> Answer {
    let wait = query.span("wait", WAIT_MAX)?;
    let mut found = find(&app, &task).await?;
    if let Some(wait) = wait.filter(|_| !found.reading.run.is_terminal()) {
        let limit = std::time::Duration::from_micros(wait.0);
        app.engine.runs.wait(app.org(), found.key.run, limit).await?;
        found = find(&app, &task).await?;
    }
    Ok(answer(200, views::task(&found)))
}

async fn events(app: State, Path(task): Path<String>) -> Answer {
    let found = find(&app, &task).await?;
    let history = app.engine.runs.history(app.org(), found.key.run).await?.unwrap_or_default();
    let versions = &found.reading.versions;
    let is_its_own =
        |stored: &&engine::services::StoredEvent| found.key.step.is_none() || stored.event.step() == found.key.step;
    let events = history.iter().filter(is_its_own);
    Ok(page(events.map(|stored| crate::views::event(&versions.at(stored.seq).plan, stored)).collect(), None))
}

async fn cancel(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let CancelRequest { actor, reason, compensate } =
        body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let found = find(&app, &task).await?;
    let (judged, status) =
        app.engine.runs.cancel(app.org(), found.key.run, CancelRun { actor, reason, compensate }).await?;
    match judged {
        Judged::Ended(_) => {
            Err(Refusal::new(Code::RunEnded, format!("the task has ended already: its run is {status}"))
                .hint("nothing was changed"))
        }
        _ => Ok(answer(200, TaskStatusView { task_id: task, status: TaskStatus::Cancelled.as_str().into() })),
    }
}

async fn retry(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let ResumeRequest { actor } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor] = notes([("actor", actor)])?;
    let key = task_key(&task)?;
    match app.engine.tasks.retry(app.org(), key, actor).await {
        Ok(Retried::Due) => {
            let found = find(&app, &task).await?;
            let status = status_of(&found.reading, found.step).as_str().into();
            Ok(answer(200, RetriedView::Due(TaskStatusView { task_id: task, status })))
        }
        Ok(Retried::Released(run, is_repeat)) => {
            let (task_id, run_id) = (TaskKey::plain(run).to_string(), run.to_string());
            let view = ReleasedView { task_id, run_id, replayed_from: key.run.to_string() };
            Ok(answer(if is_repeat { 200 } else { 201 }, RetriedView::Released(view)))
        }
        Err(engine::Error::TaskState(status)) => {
            let message = format!("the task is {status}: it neither failed nor waits for its next attempt");
            Err(Refusal::new(Code::TaskState, message))
        }
        Err(error) => Err(error.into()),
    }
}

async fn delete(app: State, Path(task): Path<String>) -> Answer {
    let key = task_key(&task)?;
    if key.step.is_some() {
        find(&app, &task).await?;
        let refusal = Refusal::new(Code::TaskState, "the task is a step of a run and cannot be deleted alone");
        return Err(refusal.hint("delete or cancel its run"));
    }
    app.engine.tasks.delete(app.org(), key, String::new()).await?;
    Ok(axum::response::IntoResponse::into_response(axum::http::StatusCode::NO_CONTENT))
}

async fn bulk(app: State, headers: HeaderMap, body: Body) -> Answer {
    let BulkRequest { action, filter, dry_run, actor } = body::json(&headers, body).await?;
    let [actor] = notes([("actor", actor)])?;
    let wrong = |field: &str, expected: &str| {
        Refusal::new(Code::InvalidBody, format!("expected {expected}")).at(format!("filter.{field}"))
    };
    let now = app.engine.now();
    let time = |field: &str, text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => parse_past(text, now).map(Some).ok_or_else(|| wrong(field, PAST)),
    };
    let status = match &filter.status {
        None => None,
        Some(text) => Some(TaskStatus::parse(text).ok_or_else(|| wrong("status", "a status such as `failed`"))?),
    };
    let label = filter.label.as_deref().map(|text| {
        let pair = text.split_once(':').filter(|(key, value)| is_label(key, value));
        pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| wrong("label", LABEL))
    });
    let filter = TaskFilter {
        name: filter.name.clone(),
        status,
        labels: label.transpose()?.into_iter().collect(),
        since: time("since", &filter.since)?,
        until: time("until", &filter.until)?,
        ..TaskFilter::default()
    };
    let action = match action {
        BulkAction::Cancel => Bulk::Cancel,
        BulkAction::Retry => Bulk::Retry,
        BulkAction::Delete => Bulk::Delete,
    };
    let done = app.engine.tasks.bulk(app.org(), action, filter, dry_run, &actor).await?;
    let tasks = done.tasks.iter().map(TaskKey::to_string).collect();
    let unreadable = done.unreadable.iter().map(crate::views::unreadable).collect();
    Ok(answer(200, BulkView { matched: done.matched, changed: done.changed, tasks, unreadable, more: done.more }))
}
