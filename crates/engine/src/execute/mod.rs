//! Executors that live in this process: they are given work after it is durable, and bring back what
//! happened. `noop` and `log` are done on the spot; `http` runs beside the mailbox, bounded in number.

mod http;

use crate::mailbox::Dispatch;
use kernel::advance::{TaskResult, Work};
use kernel::plan::Level;
use kernel::{RunId, Span};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use store::crash::{self, Point};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// HTTP requests under way at once; more wait their turn.
const HTTP_MAX: usize = 512;

/// Where results go.
pub type Sink = Arc<dyn Fn(&Dispatch, TaskResult) + Send + Sync>;

pub struct Executors {
    runtime: tokio::runtime::Handle,
    client: reqwest::Client,
    slots: Arc<Semaphore>,
    running: Arc<Mutex<HashMap<(RunId, u64), AbortHandle>>>,
    sink: Sink,
}

impl Executors {
    pub fn new(runtime: tokio::runtime::Handle, sink: Sink) -> Result<Executors, String> {
        let slots = Arc::new(Semaphore::new(HTTP_MAX));
        Ok(Executors { runtime, client: http::client()?, slots, running: Default::default(), sink })
    }

    /// Does the work, or sends it on its way. Work that takes no time is answered at once.
    pub fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        match &dispatch.work {
            Work::Noop => Some((dispatch, TaskResult::Done { body: None, took: Span(0) })),
            Work::Log { level, message } => {
                write_log(*level, &dispatch, message);
                let body = kernel::Payload::json(serde_json::Value::from(message.as_str()).to_string());
                Some((dispatch, TaskResult::Done { body: Some(body), took: Span(0) }))
            }
            Work::Http(_) => {
                self.spawn_http(dispatch);
                None
            }
        }
    }

    fn spawn_http(&self, dispatch: Dispatch) {
        let id = (dispatch.run, dispatch.fence);
        let (client, slots, sink, running) =
            (self.client.clone(), self.slots.clone(), self.sink.clone(), self.running.clone());
        let mut table = self.running.lock().unwrap_or_else(|e| e.into_inner());
        let task = self.runtime.spawn(async move {
            // The semaphore is never closed.
            let _slot = slots.acquire_owned().await;
            crash::point(Point::BeforeEffect);
            let result = http::perform(&client, &dispatch).await;
            crash::point(Point::AfterEffect);
            running.lock().unwrap_or_else(|e| e.into_inner()).remove(&id);
            sink(&dispatch, result);
        });
        // Held until here, so that the task cannot take itself out before it is in.
        table.insert(id, task.abort_handle());
    }

    /// Drops the connection of an attempt nobody wants any more.
    pub fn abort(&self, run: RunId, fence: u64) {
        if let Some(task) = self.running.lock().unwrap_or_else(|e| e.into_inner()).remove(&(run, fence)) {
            task.abort();
        }
    }
}

fn write_log(level: Level, dispatch: &Dispatch, message: &str) {
    let (run, step) = (dispatch.run, dispatch.key.as_str());
    match level {
        Level::Debug => tracing::debug!(%run, step, "{message}"),
        Level::Info => tracing::info!(%run, step, "{message}"),
        Level::Warning => tracing::warn!(%run, step, "{message}"),
        Level::Error => tracing::error!(%run, step, "{message}"),
    }
}
