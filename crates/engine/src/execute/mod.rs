//! Executors that live in this process: they are given work after it is durable, and bring back what
//! happened. `noop` and `log` are done on the spot; `http` goes [out](outgoing) beside the mailbox: in turn
//! ([`lanes`]), not to a host that is down ([`hosts`]), hop by hop ([`hop`], [`http`]).

mod hop;
mod hosts;
mod http;
mod lanes;
mod outgoing;

pub use lanes::Place;
pub use outgoing::{HttpOptions, Line};

use crate::clock::Clock;
use crate::mailbox::Dispatch;
use kernel::advance::{TaskResult, Work};
use kernel::plan::Level;
use kernel::{RunId, Span};
use outgoing::Outgoing;
use std::sync::Arc;

/// Where results go.
pub type Sink = Arc<dyn Fn(&Dispatch, TaskResult) + Send + Sync>;

pub struct Executors {
    outgoing: Arc<Outgoing>,
    line: Arc<Line>,
}

impl Executors {
    /// `line` is where HTTP work will wait, for others to look at.
    pub fn new(
        runtime: tokio::runtime::Handle,
        options: HttpOptions,
        line: Arc<Line>,
        clock: Arc<Clock>,
        sink: Sink,
    ) -> Result<Executors, String> {
        Ok(Executors { outgoing: Outgoing::new(runtime, options, line.clone(), clock, sink)?, line })
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
            Work::Http(_) => self.outgoing.enter(dispatch),
        }
    }

    /// Nobody wants the result of an attempt any more.
    pub fn abort(&self, run: RunId, fence: u64) {
        self.outgoing.call_off(run, fence);
    }
}

/// Once the loop is gone, nobody would record what comes back, so nothing more is sent.
impl Drop for Executors {
    fn drop(&mut self) {
        drop(self.line.close());
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
