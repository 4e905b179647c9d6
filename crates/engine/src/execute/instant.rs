//! Work that takes no time.

use super::Executor;
use crate::mailbox::Dispatch;
use kernel::advance::{TaskResult, Work};
use kernel::plan::Level;
use kernel::{Payload, Span};

pub struct NoopExecutor;

impl Executor for NoopExecutor {
    fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        Some((dispatch, TaskResult::Done { body: None, took: Span(0) }))
    }
}

/// Writes a line to the log of the process. The message is the body of the step.
pub struct LogExecutor;

impl Executor for LogExecutor {
    fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        let Work::Log { level, message } = &dispatch.work else { return None };
        let (run, step) = (dispatch.run, dispatch.key.as_str());
        match level {
            Level::Debug => tracing::debug!(%run, step, "{message}"),
            Level::Info => tracing::info!(%run, step, "{message}"),
            Level::Warning => tracing::warn!(%run, step, "{message}"),
            Level::Error => tracing::error!(%run, step, "{message}"),
        }
        let body = Payload::json(serde_json::Value::from(message.as_str()).to_string());
        Some((dispatch, TaskResult::Done { body: Some(body), took: Span(0) }))
    }
}
