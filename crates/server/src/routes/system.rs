//! Health, metrics, version, the virtual clock, and responses for unknown routes.

use super::answer;
use crate::contract::{ResponseShape, Route, get, post};
use crate::{Answer, Refusal, State, body};
use api::{AdvanceRequest, BashFeatureView, BashView, ClockView, Code, VersionView, rfc3339};
use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kernel::Span;
use std::fmt::Write;
use std::sync::OnceLock;

/// One advance of the virtual clock is at most this long.
const ADVANCE_MAX: Span = Span::from_days(3_660);

pub fn routes() -> Vec<Route> {
    const TEXT: ResponseShape = ResponseShape::Plain("text/plain");
    vec![
        get("/api/v1/version", version, "version", "Show the name and version of the server")
            .plain()
            .answers::<VersionView>(200, "the version"),
        get("/api/v1/openapi.json", document, "openapi", "Get this document").plain().shaped(
            200,
            "an OpenAPI 3.1 document",
            ResponseShape::Plain("application/json"),
        ),
        get("/api/v1/dev/clock", clock, "read_clock", "Show the time of the engine")
            .answers::<ClockView>(200, "the time"),
        post("/api/v1/dev/clock", advance_clock, "advance_clock", "Move a virtual clock forward")
            .takes::<AdvanceRequest>()
            .answers::<ClockView>(200, "the new time")
            .refuses(&[Code::ClockIsReal]),
        get("/healthz", healthz, "healthz", "Check that the process is alive").plain().shaped(
            200,
            "the process is alive",
            TEXT,
        ),
        get("/readyz", readyz, "readyz", "Check that the engine responds and the store accepts writes")
            .shaped(200, "both are true", TEXT)
            .refuses(&[Code::StoreRollbackDetected]),
        get("/metrics", metrics, "metrics", "Get metrics in the Prometheus text format").plain().shaped(
            200,
            "the metrics",
            TEXT,
        ),
    ]
}

/// Generated once: it does not change while the process runs.
pub async fn document() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| crate::openapi::document().to_string()).as_str();
    ([("content-type", "application/json")], text).into_response()
}

pub fn hello() -> Response {
    answer(200, version_view())
}

pub async fn version(app: State) -> Answer {
    Ok(answer(200, VersionView { bash: Some(bash_view(&app).await), ..version_view() }))
}

async fn bash_view(app: &crate::App) -> BashView {
    let off = BashView {
        enabled: false,
        level: None,
        required: None,
        network: None,
        slots: None,
        features: vec![],
        error: None,
    };
    let Some(worker) = &app.engine.bash else { return off };
    let on = BashView {
        enabled: true,
        required: Some(worker.required().into()),
        network: Some(worker.allows_network()),
        slots: Some(worker.slots()),
        ..off
    };
    match &*worker.isolation().await {
        Ok(isolation) => BashView {
            level: Some(isolation.level.word().into()),
            features: isolation.features.iter().map(feature_view).collect(),
            ..on
        },
        Err(why) => BashView { level: Some("none".into()), error: Some(why.clone()), ..on },
    }
}

fn feature_view(feature: &engine::bash_worker::Feature) -> BashFeatureView {
    BashFeatureView { name: feature.name.word().into(), available: feature.available, why: feature.why.clone() }
}

fn version_view() -> VersionView {
    VersionView { name: "onward".into(), version: env!("CARGO_PKG_VERSION").into(), api: "/api/v1".into(), bash: None }
}

pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Checks that the store accepts writes and that the engine loop responds.
pub async fn readyz(app: State) -> Answer {
    if app.is_draining() {
        return Err(Refusal::new(Code::ShuttingDown, "the server is shutting down"));
    }
    app.engine.check().await?;
    let report = app.engine.clock_report().map_or_else(String::new, |report| format!("{report}\n"));
    Ok(format!("ready\n{report}").into_response())
}

pub async fn metrics(app: State) -> Response {
    let store = app.engine.store().counters();
    let stored = [
        ("store_commits_total", "counter", "Transactions made durable for runs.", store.commits),
        ("store_records_total", "counter", "Journal records written.", store.records),
        ("store_commit_reads_total", "counter", "SQL reads made while committing.", store.commit_reads),
        ("store_loads_total", "counter", "Reads of runs, histories and payloads.", store.loads),
        ("store_wal_bytes_total", "counter", "Bytes written to the write-ahead log.", store.wal_bytes),
        ("store_rollbacks_total", "counter", "Times the store lost commits that it had acknowledged.", store.rollbacks),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in app.engine.metrics_now().await.each().into_iter().chain(stored) {
        let _ = write!(text, "# HELP onward_{name} {help}\n# TYPE onward_{name} {kind}\nonward_{name} {value}\n");
    }
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}

pub async fn clock(app: State) -> Answer {
    Ok(answer(200, clock_view(&app, None)))
}

fn clock_view(app: &crate::App, fired: Option<u64>) -> ClockView {
    let clock = app.engine.clock_mode().as_str().into();
    ClockView { now: rfc3339(app.engine.now()), clock, fired }
}

pub async fn advance_clock(app: State, headers: HeaderMap, body: Body) -> Answer {
    let request: AdvanceRequest = body::json(&headers, body).await?;
    let by = match &request.advance {
        serde_json::Value::String(text) => Span::parse(text),
        serde_json::Value::Number(n) => n.as_u64().and_then(|n| n.checked_mul(1_000_000)).map(Span),
        _ => None,
    };
    let wrong = || {
        Refusal::new(Code::InvalidBody, "`advance` is not a duration")
            .hint(format!("a duration is a number of seconds or text such as 90s or 13d, at most {ADVANCE_MAX}"))
            .at("advance")
    };
    let by = by.filter(|by| *by <= ADVANCE_MAX).ok_or_else(wrong)?;
    if !app.engine.clock_mode().is_virtual() {
        return Err(Refusal::new(Code::ClockIsReal, "the clock is real and cannot be moved")
            .hint("start with `--clock virtual`"));
    }
    let (_, fired) = app.engine.virtual_clock.advance(by).await?;
    Ok(answer(200, clock_view(&app, Some(fired))))
}

pub async fn unknown_route(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(120).collect();
    Refusal::new(Code::UnknownRoute, format!("there is no route {method} {path}"))
        .hint("the API begins at /api/v1")
        .into_response()
}

pub async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(120).collect();
    let response = Refusal::new(Code::MethodNotAllowed, format!("{method} is not allowed on {path}")).into_response();
    debug_assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    response
}
