//! The handlers, by area. Each area lists its routes with what they promise.

pub mod batch;
pub mod callbacks;
pub mod runs;
pub mod streams;
pub mod system;
pub mod tasks;
pub mod triggers;
pub mod types;
pub mod versions;
pub mod webhooks;
pub mod work;
pub mod workflows;

use crate::Refusal;
use crate::contract::Route;
use api::{Code, Data, StartedView, rfc3339};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kernel::RunId;
use serde::Serialize;

/// Every route there is: name of the area, what it is about, its routes.
pub fn areas() -> Vec<(&'static str, &'static str, Vec<Route>)> {
    vec![
        ("workflows", "What can be run", workflows::routes()),
        ("versions", "What workflows were", versions::routes()),
        ("batches", "Many runs at once", batch::routes()),
        ("runs", "What runs and ran", runs::routes()),
        ("tasks", "Work for whoever claims it", tasks::routes()),
        ("workers", "What workers say and ask", work::routes()),
        ("types", "Types of tasks, and who claims them", types::routes()),
        ("triggers", "What starts runs by itself", triggers::routes()),
        ("webhooks", "Requests from other programs that start runs", webhooks::routes()),
        ("streams", "What happens, while it happens", streams::routes()),
        ("callbacks", "Answers from outside to steps that wait", callbacks::routes()),
        ("system", "The server itself", system::routes()),
        ("page", "What people look at", crate::ui::routes()),
    ]
}

fn answer(status: u16, data: impl Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    (status, Json(Data { data })).into_response()
}

fn page<T: Serialize>(data: Vec<T>, next: Option<String>) -> Response {
    Json(api::Page { data, next }).into_response()
}

/// A run id from a path. What cannot be one is a malformed request, not a missing run.
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
