//! Executors that live in this process: they are given work after it is durable, and bring back what
//! happened. `noop` and `log` are done on the spot; `http` goes [out](outgoing) beside the mailbox: in turn
//! ([`lanes`]), not to a host that is down ([`hosts`]), hop by hop ([`hop`], [`http`]), or it is laid on a
//! [`desk`] for somebody who plays the part of the network.

pub mod desk;
mod hop;
mod hosts;
mod http;
mod lanes;
mod outgoing;

pub use lanes::Place;
pub use outgoing::{HttpOptions, Line};

use crate::clock::Clock;
use crate::mailbox::Dispatch;
use desk::Desk;
use kernel::advance::{TaskResult, Work};
use kernel::plan::Level;
use kernel::{RunId, Span};
use outgoing::Outgoing;
use std::sync::Arc;

/// Where results go.
pub type Sink = Arc<dyn Fn(&Dispatch, TaskResult) + Send + Sync>;

pub struct Executors {
    way: Way,
    line: Arc<Line>,
}

/// Where HTTP work goes.
enum Way {
    Out(Arc<Outgoing>),
    Desk(Arc<Desk>),
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
        let way = match options.desk.clone() {
            Some(desk) => {
                desk.open(clock, sink);
                Way::Desk(desk)
            }
            None => Way::Out(Outgoing::new(runtime, options, line.clone(), clock, sink)?),
        };
        Ok(Executors { way, line })
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
            Work::Http(_) => match &self.way {
                Way::Out(outgoing) => outgoing.enter(dispatch),
                Way::Desk(desk) => desk.lay(dispatch),
            },
        }
    }

    /// Attempts that nothing will come of unless somebody outside says so.
    pub fn held(&self) -> usize {
        match &self.way {
            Way::Out(_) => 0,
            Way::Desk(desk) => desk.len(),
        }
    }

    /// Nobody wants the result of an attempt any more.
    pub fn abort(&self, run: RunId, fence: u64) {
        match &self.way {
            Way::Out(outgoing) => outgoing.call_off(run, fence),
            Way::Desk(desk) => desk.call_off(run, fence),
        }
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
