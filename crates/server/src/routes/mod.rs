//! The handlers by area. Each area lists its routes with their contracts.

pub mod batch;
pub mod callbacks;
pub mod overrides;
pub mod repair;
pub mod runs;
pub mod streams;
pub mod system;
pub mod tasks;
pub mod triggers;
pub mod types;
pub mod versions;
pub mod waits;
pub mod webhooks;
pub mod work;
pub mod workflows;

use crate::contract::Route;
use crate::{Refusal, views};
use api::{Code, Data, StartedView, rfc3339};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::services::UnreadableRun;
use kernel::RunId;
use serde::Serialize;

/// Every route by area: the name of the area, its description for the OpenAPI document, its routes.
pub fn areas() -> Vec<(&'static str, &'static str, Vec<Route>)> {
    vec![
        ("workflows", "Create, edit and start workflows", workflows::routes()),
        ("versions", "Versions of workflows and their differences", versions::routes()),
        ("batches", "Start many runs with one request", batch::routes()),
        ("runs", "List, inspect and control runs", runs::routes()),
        ("repair", "Retry, replay, fork and move runs", repair::routes()),
        ("waits", "Signals, approvals and pauses", waits::routes()),
        ("overrides", "Decisions about steps", overrides::routes()),
        ("tasks", "Submit and manage tasks", tasks::routes()),
        ("workers", "Claim tasks and report their outcomes", work::routes()),
        ("types", "Task types and the workers that claim them", types::routes()),
        ("triggers", "Schedules, webhooks and manual triggers", triggers::routes()),
        ("webhooks", "Requests from other systems that start runs", webhooks::routes()),
        ("streams", "Live streams of events", streams::routes()),
        ("callbacks", "Callbacks for steps that wait", callbacks::routes()),
        ("system", "Health, metrics, version and clock of the server", system::routes()),
        ("dashboard", "The dashboard and its files", crate::ui::routes()),
    ]
}

fn answer(status: u16, data: impl Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    (status, Json(Data { data })).into_response()
}

fn page<T: Serialize>(data: Vec<T>, next: Option<String>) -> Response {
    page_of_runs(data, next, &[])
}

/// A page of runs or tasks, without those that cannot be read.
fn page_of_runs<T: Serialize>(data: Vec<T>, next: Option<String>, unreadable: &[UnreadableRun]) -> Response {
    Json(api::Page { data, next, unreadable: unreadable.iter().map(views::unreadable).collect() }).into_response()
}

/// A run id from a path. Text that is not an id is a malformed request, not a missing run.
fn run_id(text: &str) -> Result<RunId, Refusal> {
    RunId::parse(text).ok_or_else(|| {
        let text: String = text.chars().take(80).collect();
        Refusal::new(Code::MalformedId, format!("`{text}` is not a run id"))
            .hint("run ids look like run_01jz8k3w9mz6xq4v7n5t2c0b1d")
    })
}

fn started_view(started: &engine::Started) -> StartedView {
    StartedView {
        run_id: started.run.to_string(),
        workflow_id: started.workflow.to_string(),
        status: started.status.as_str().into(),
        started_at: rfc3339(started.started_at),
        deduplicated: started.deduplicated,
    }
}
