//! Routes for workers: claim tasks, report outcomes, send heartbeats and log lines.

use super::answer;
use super::tasks::{NAME_MAX, task_key};
use crate::contract::{ResponseShape, Route, post};
use crate::views::tasks as views;
use crate::{Answer, Path, Refusal, State, body};
use api::{
    ClaimRequest, ClaimedViews, Code, CompleteRequest, DoneItem, FailRequest, HeartbeatItem, HeartbeatRequest,
    HeartbeatView, LeaseView, LogsRequest, ReportedView, SnoozeRequest, WorkRequest, WorkView, WorkerError, rfc3339,
};
use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use bytes::Bytes;
use engine::services::{Heartbeat, HeartbeatReply, ReportOutcome, Reported, TaskKey, TaskReport};
use engine::task_queue::{Cancellation, Pattern};
use kernel::Span;
use kernel::event::{Failure, LogLine};
use kernel::plan::Level;
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Duration;

/// Size limit of a worker's request with up to a thousand results.
const WORK_MAX: usize = 32 * 1024 * 1024;
const TYPES_MAX: usize = 100;
const CLAIM_MAX: u32 = 100;
const CREDITS_MAX: u32 = 1_000;
const ITEMS_MAX: usize = 1_000;
const LEASE: Span = Span::from_secs(30);
const LEASE_MIN: Span = Span::from_secs(1);
const LEASE_MAX: Span = Span::from_secs(3_600);
const WAIT: Span = Span::from_secs(20);
const WAIT_MAX: Span = Span::from_secs(60);
const SNOOZE_MAX: Span = Span::from_days(30);
const RETRY_AFTER_MAX: Span = Span::from_days(30);
const MESSAGE_MAX: usize = 4 * 1024;
const CODE_MAX: usize = 100;
const PROGRESS_MAX: usize = 4 * 1024;
const LINES_MAX: usize = 100;

pub fn routes() -> Vec<Route> {
    const REPORTS: &[Code] = &[Code::StaleClaim, Code::RunCancelled];
    vec![
        post("/api/v1/tasks/claim", claim, "claim_tasks", "Claim tasks; waits until there are some")
            .takes::<ClaimRequest>()
            .one_write()
            .shaped(
                200,
                "the tasks; none if `wait` is over",
                ResponseShape::Whole(|g| g.subschema_for::<ClaimedViews>()),
            ),
        post("/api/v1/tasks/{task}/complete", complete, "complete_task", "Report that a task is done")
            .takes::<CompleteRequest>()
            .one_write()
            .answers::<ReportedView>(200, "the report is recorded, now or earlier")
            .refuses(REPORTS),
        post("/api/v1/tasks/{task}/fail", fail, "fail_task", "Report that an attempt failed")
            .takes::<FailRequest>()
            .one_write()
            .answers::<ReportedView>(200, "the report is recorded, now or earlier")
            .refuses(REPORTS),
        post(
            "/api/v1/tasks/{task}/snooze",
            snooze,
            "snooze_task",
            "Give a task back until later, without charging an attempt",
        )
        .takes::<SnoozeRequest>()
        .one_write()
        .answers::<ReportedView>(200, "the report is recorded, now or earlier")
        .refuses(REPORTS),
        post(
            "/api/v1/tasks/{task}/heartbeat",
            heartbeat,
            "extend_lease",
            "Extend the lease of a task and save progress",
        )
        .takes::<HeartbeatRequest>()
        .one_write()
        .answers::<HeartbeatView>(200, "the end of the lease, and whether the task was cancelled")
        .refuses(&[Code::StaleClaim]),
        post("/api/v1/tasks/{task}/logs", logs, "log_task", "Add log lines to the history of a task")
            .takes::<LogsRequest>()
            .one_write()
            .answers::<ReportedView>(200, "the lines are recorded")
            .refuses(REPORTS),
        post("/api/v1/work", work, "work", "Report outcomes, send heartbeats and claim tasks in one request")
            .takes::<WorkRequest>()
            .one_write()
            .answers::<WorkView>(200, "the acknowledged reports, the leases and new tasks")
            .refuses(&[Code::MalformedId]),
    ]
}

/// A worker and its claim, checked.
struct CheckedClaim {
    worker: String,
    types: Vec<String>,
    runtime: Option<String>,
    version: Option<String>,
    slots: Option<u32>,
    lease: Span,
    wait: Duration,
}

fn invalid(field: &str, expected: impl Into<String>) -> Refusal {
    Refusal::new(Code::InvalidBody, format!("expected {}", expected.into())).at(field)
}

/// Parses a duration and checks its bounds.
fn span(field: &str, value: Option<&Value>, default: Span, min: Span, max: Span) -> Result<Span, Refusal> {
    let Some(value) = value else { return Ok(default) };
    let read = body::span(value).filter(|span| (min..=max).contains(span));
    read.ok_or_else(|| invalid(field, format!("a duration from {min} to {max}, such as `30s`")))
}

fn check_claim(request: ClaimRequest) -> Result<CheckedClaim, Refusal> {
    let ClaimRequest { worker_id, types, lease, wait, runtime, version, slots, .. } = request;
    let is_name = |text: &str| (1..=NAME_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if !is_name(&worker_id) {
        return Err(invalid("worker_id", format!("1 to {NAME_MAX} bytes without control characters")));
    }
    for (field, text) in [("runtime", &runtime), ("version", &version)] {
        if text.as_deref().is_some_and(|text| !is_name(text)) {
            return Err(invalid(field, format!("1 to {NAME_MAX} bytes without control characters")));
        }
    }
    if types.is_empty() || types.len() > TYPES_MAX {
        return Err(invalid("types", format!("1 to {TYPES_MAX} task types")));
    }
    let is_pattern = |text: &str| match Pattern::parse(text) {
        Some(Pattern::Exact(name)) => lang::task::check_type(&name).is_ok(),
        Some(Pattern::Prefix(prefix)) => prefix.len() <= NAME_MAX && prefix.bytes().all(is_type_byte),
        None => false,
    };
    if let Some(i) = types.iter().position(|text| !is_pattern(text)) {
        let field = format!("types[{i}]");
        return Err(invalid(&field, "a type such as `billing.invoice.v1`, or a prefix with `%` such as `billing.%`"));
    }
    let lease = span("lease", lease.as_ref(), LEASE, LEASE_MIN, LEASE_MAX)?;
    let wait = span("wait", wait.as_ref(), WAIT, Span(0), WAIT_MAX)?;
    Ok(CheckedClaim { worker: worker_id, types, runtime, version, slots, lease, wait: Duration::from_micros(wait.0) })
}

fn is_type_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

impl CheckedClaim {
    fn work_request(
        self,
        credits: u32,
        reports: Vec<TaskReport>,
        heartbeats: Vec<Heartbeat>,
    ) -> engine::services::WorkRequest {
        let CheckedClaim { worker, types, runtime, version, slots, lease, wait } = self;
        engine::services::WorkRequest {
            worker,
            types,
            runtime,
            version,
            slots,
            credits,
            lease,
            wait,
            reports,
            heartbeats,
        }
    }
}

async fn claim(app: State, headers: HeaderMap, body: Body) -> Answer {
    let request: ClaimRequest = body::json(&headers, body).await?;
    let max = request.max.unwrap_or(1);
    if !(1..=CLAIM_MAX).contains(&max) {
        return Err(invalid("max", format!("a number from 1 to {CLAIM_MAX}")));
    }
    let request = check_claim(request)?.work_request(max, Vec::new(), Vec::new());
    let reply = app.engine.tasks.work(app.org(), request).await?;
    let cancelled = reply.claimed.cancellations.iter().map(task_id).collect();
    let data = reply.claimed.tasks.into_iter().map(views::claimed).collect();
    Ok(Json(ClaimedViews { data, cancelled }).into_response())
}

async fn complete(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let key = task_key(&task)?;
    let CompleteRequest { claim_token, result } = body::json(&headers, body).await?;
    let outcome = ReportOutcome::Done(raw(result));
    let report = TaskReport { task: key, fence: key.fence(&claim_token), outcome };
    reported(&task, app.engine.tasks.report(app.org(), report).await?)
}

async fn fail(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let key = task_key(&task)?;
    let FailRequest { claim_token, error, is_final, retry_after } = body::json(&headers, body).await?;
    let outcome = failed("", error, is_final, retry_after.as_ref())?;
    let report = TaskReport { task: key, fence: key.fence(&claim_token), outcome };
    reported(&task, app.engine.tasks.report(app.org(), report).await?)
}

async fn snooze(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let key = task_key(&task)?;
    let SnoozeRequest { claim_token, span: delay } = body::json(&headers, body).await?;
    let span = span("for", Some(&delay), SNOOZE_MAX, Span(0), SNOOZE_MAX)?;
    let report = TaskReport { task: key, fence: key.fence(&claim_token), outcome: ReportOutcome::Snoozed(span) };
    reported(&task, app.engine.tasks.report(app.org(), report).await?)
}

async fn heartbeat(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let key = task_key(&task)?;
    let HeartbeatRequest { claim_token, extend, progress } = body::json(&headers, body).await?;
    let heartbeat = check_heartbeat("", key, &claim_token, extend.as_ref(), progress)?;
    match app.engine.tasks.heartbeat(app.org(), heartbeat).await? {
        HeartbeatReply::Until(at) => Ok(answer(200, HeartbeatView { lease_until: rfc3339(at), cancel: false })),
        HeartbeatReply::Cancelled => {
            Ok(answer(200, HeartbeatView { lease_until: rfc3339(app.engine.now()), cancel: true }))
        }
        HeartbeatReply::Stale => Err(stale()),
        HeartbeatReply::TooLarge(_) => Err(too_large()),
        HeartbeatReply::NotFound => Err(Refusal::not_found("task", &task)),
    }
}

async fn logs(app: State, Path(task): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let key = task_key(&task)?;
    let LogsRequest { claim_token, lines } = body::json(&headers, body).await?;
    if lines.is_empty() || lines.len() > LINES_MAX {
        return Err(invalid("lines", format!("1 to {LINES_MAX} lines")));
    }
    let mut checked = Vec::with_capacity(lines.len());
    for (i, line) in lines.into_iter().enumerate() {
        let level = line.level.as_deref().map_or(Some(Level::Info), Level::parse);
        let level =
            level.ok_or_else(|| invalid(&format!("lines[{i}].level"), "`debug`, `info`, `warning` or `error`"))?;
        if line.message.len() > MESSAGE_MAX {
            return Err(invalid(&format!("lines[{i}].message"), format!("at most {MESSAGE_MAX} bytes")));
        }
        checked.push(LogLine { level, message: line.message, ..Default::default() });
    }
    let fence = key.fence(&claim_token);
    reported(&task, app.engine.tasks.log(app.org(), key, fence, checked).await?)
}

async fn work(app: State, headers: HeaderMap, body: Body) -> Answer {
    let bytes = body::payload_of(&headers, body, WORK_MAX).await?;
    let WorkRequest { worker_id, types, credits, lease, wait, done, heartbeats, runtime, version, slots } =
        body::parse(&bytes)?;
    if credits > CREDITS_MAX {
        return Err(invalid("credits", format!("a number from 0 to {CREDITS_MAX}")));
    }
    for (field, count) in [("done", done.len()), ("heartbeats", heartbeats.len())] {
        if count > ITEMS_MAX {
            return Err(invalid(field, format!("at most {ITEMS_MAX} entries")));
        }
    }
    let claim = check_claim(ClaimRequest { worker_id, types, max: None, lease, wait, runtime, version, slots })?;
    let report_ids: Vec<String> = done.iter().map(|item| item.task_id.clone()).collect();
    let heartbeat_ids: Vec<String> = heartbeats.iter().map(|item| item.task_id.clone()).collect();
    let mut reports = Vec::with_capacity(done.len());
    for (i, item) in done.into_iter().enumerate() {
        reports.push(report(i, item)?);
    }
    let mut checked_heartbeats = Vec::with_capacity(heartbeats.len());
    let mut oversized = Vec::with_capacity(heartbeats.len());
    for (i, item) in heartbeats.into_iter().enumerate() {
        let HeartbeatItem { task_id, claim_token, extend, progress } = item;
        let key = task_key(&task_id).map_err(|r| r.at(format!("heartbeats[{i}].task_id")))?;
        // Only this progress is not saved: the worker keeps the task, and the rest of the request is valid.
        oversized.push(progress.as_deref().is_some_and(is_oversized));
        let progress = progress.filter(|progress| !is_oversized(progress));
        let place = format!("heartbeats[{i}].");
        checked_heartbeats.push(check_heartbeat(&place, key, &claim_token, extend.as_ref(), progress)?);
    }
    let reply = app.engine.tasks.work(app.org(), claim.work_request(credits, reports, checked_heartbeats)).await?;
    let ack = |(task_id, reported): (String, Reported)| ReportedView { task_id, status: ack_status(reported).into() };
    let acks = report_ids.into_iter().zip(reply.acks).map(ack).collect();
    let held = |task_id, until, is_saved: bool| {
        let error = (!is_saved).then(|| Code::TooLarge.as_str().into());
        LeaseView { task_id, lease_until: Some(rfc3339(until)), cancel: false, error }
    };
    let lost = |task_id| LeaseView { task_id, lease_until: None, cancel: true, error: None };
    let lease = |((task_id, is_oversized), alive): ((String, bool), HeartbeatReply)| match alive {
        HeartbeatReply::Until(at) => held(task_id, at, !is_oversized),
        HeartbeatReply::TooLarge(at) => held(task_id, at, false),
        HeartbeatReply::Cancelled | HeartbeatReply::Stale | HeartbeatReply::NotFound => lost(task_id),
    };
    let cancellations = reply.claimed.cancellations.iter().map(|task| lost(task_id(task)));
    let sent = heartbeat_ids.into_iter().zip(oversized);
    let leases = sent.zip(reply.leases).map(lease).chain(cancellations).collect();
    let tasks = reply.claimed.tasks.into_iter().map(views::claimed).collect();
    Ok(answer(200, WorkView { acks, leases, tasks }))
}

fn task_id((run, step): &Cancellation) -> String {
    TaskKey { run: *run, step: *step }.to_string()
}

/// Parses an entry of `done`.
fn report(index: usize, item: DoneItem) -> Result<TaskReport, Refusal> {
    let DoneItem { task_id, claim_token, result, error, is_final, retry_after, snooze } = item;
    let place = format!("done[{index}]");
    let task = task_key(&task_id).map_err(|refusal| refusal.at(format!("{place}.task_id")))?;
    if error.is_none() && (is_final || retry_after.is_some()) {
        return Err(invalid(&place, "`final` and `retry_after` only with an `error`"));
    }
    let outcome = match (result, error, snooze) {
        // Only this task fails: the other reports of the request are valid.
        (Some(result), None, None) if result.get().len() > body::PAYLOAD_MAX => {
            let message = format!("the result is larger than {} bytes", body::PAYLOAD_MAX);
            let failure = Failure::new("result_too_large", message);
            ReportOutcome::Failed { failure, is_final: true, retry_after: None }
        }
        (result, None, None) => ReportOutcome::Done(raw(result)),
        (None, Some(error), None) => failed(&format!("{place}."), error, is_final, retry_after.as_ref())?,
        (None, None, Some(delay)) => {
            ReportOutcome::Snoozed(span(&format!("{place}.snooze"), Some(&delay), SNOOZE_MAX, Span(0), SNOOZE_MAX)?)
        }
        _ => return Err(invalid(&place, "one of `result`, `error` and `snooze`")),
    };
    Ok(TaskReport { task, fence: task.fence(&claim_token), outcome })
}

fn failed(
    place: &str,
    error: WorkerError,
    is_final: bool,
    retry_after: Option<&Value>,
) -> Result<ReportOutcome, Refusal> {
    let WorkerError { message, code } = error;
    let code = code.unwrap_or_else(|| "worker_error".to_owned());
    if code.is_empty() || code.len() > CODE_MAX || code.chars().any(char::is_control) {
        return Err(invalid(
            &format!("{place}error.code"),
            format!("1 to {CODE_MAX} bytes without control characters"),
        ));
    }
    let message: String = match message.len() > MESSAGE_MAX {
        true => message
            .chars()
            .scan(0, |len, c| {
                *len += c.len_utf8();
                (*len <= MESSAGE_MAX).then_some(c)
            })
            .collect(),
        false => message,
    };
    let retry_after = match retry_after {
        None => None,
        given => Some(span(&format!("{place}retry_after"), given, Span(0), Span(0), RETRY_AFTER_MAX)?),
    };
    Ok(ReportOutcome::Failed { failure: Failure::new(&code, message), is_final, retry_after })
}

fn check_heartbeat(
    place: &str,
    task: TaskKey,
    claim_token: &str,
    extend: Option<&Value>,
    progress: Option<Box<RawValue>>,
) -> Result<Heartbeat, Refusal> {
    let extend = match extend {
        None => None,
        given => Some(span(&format!("{place}extend"), given, LEASE, LEASE_MIN, LEASE_MAX)?),
    };
    if progress.as_deref().is_some_and(is_oversized) {
        return Err(invalid(&format!("{place}progress"), format!("at most {PROGRESS_MAX} bytes of JSON")));
    }
    let progress = progress.map(|raw| Bytes::copy_from_slice(raw.get().as_bytes()));
    Ok(Heartbeat { task, fence: task.fence(claim_token), extend, progress })
}

fn is_oversized(progress: &RawValue) -> bool {
    progress.get().len() > PROGRESS_MAX
}

fn raw(value: Option<Box<RawValue>>) -> Bytes {
    value.map_or(Bytes::from_static(b"null"), |raw| Bytes::from(Box::<str>::from(raw).into_string()))
}

fn ack_status(reported: Reported) -> &'static str {
    match reported {
        Reported::Recorded => "recorded",
        Reported::Cancelled => "cancelled",
        Reported::TooLarge => "too_large",
        Reported::Stale | Reported::NotFound => "stale_claim",
    }
}

fn reported(task: &str, reported: Reported) -> Answer {
    match reported {
        Reported::Recorded => {
            Ok(answer(200, ReportedView { task_id: task.to_owned(), status: ack_status(reported).into() }))
        }
        Reported::Stale => Err(stale()),
        Reported::Cancelled => {
            Err(Refusal::new(Code::RunCancelled, "the task was cancelled; the report is recorded and changes nothing"))
        }
        Reported::TooLarge => Err(too_large()),
        Reported::NotFound => Err(Refusal::not_found("task", task)),
    }
}

fn stale() -> Refusal {
    Refusal::new(Code::StaleClaim, "this claim token is not the current one, or another report was sent with it before")
        .hint("stop working on the task: the lease ended, and another worker may hold the task; nothing was changed")
}

fn too_large() -> Refusal {
    Refusal::new(Code::TooLarge, "this would make the run larger than 16 MiB")
}
