//! Executors that live in this process: they are given work after it is durable, and bring back what
//! happened. `noop` and `log` are done on the spot; `http` goes [out](outgoing) beside the mailbox: in turn
//! ([`fair_queue`]), not to a host that is down ([`host_backoff`]), hop by hop ([`hop`], [`http`]), or it is laid on a
//! [`fake_network`] for somebody who plays the part of the network.

mod fair_queue;
pub mod fake_network;
mod hop;
mod host_backoff;
mod http;
mod http_queue;

pub use fair_queue::HttpQueuePosition;
pub use http_queue::{HttpOptions, HttpQueue};

use crate::clock::Clock;
use crate::mailbox::Dispatch;
use fake_network::FakeNetwork;
use http_queue::HttpSender;
use kernel::advance::{TaskResult, Work};
use kernel::plan::Level;
use kernel::{RunId, Span};
use std::sync::Arc;

/// Where results go.
pub type Sink = Arc<dyn Fn(&Dispatch, TaskResult) + Send + Sync>;

pub struct Executors {
    way: Way,
    queue: Arc<HttpQueue>,
}

/// Where HTTP work goes.
enum Way {
    Out(Arc<HttpSender>),
    FakeNetwork(Arc<FakeNetwork>),
}

impl Executors {
    /// `queue` is where HTTP work will wait, for others to look at.
    pub fn new(
        runtime: tokio::runtime::Handle,
        options: HttpOptions,
        queue: Arc<HttpQueue>,
        clock: Arc<Clock>,
        sink: Sink,
    ) -> Result<Executors, String> {
        let way = match options.fake_network.clone() {
            Some(fake_network) => {
                fake_network.open(clock, sink);
                Way::FakeNetwork(fake_network)
            }
            None => Way::Out(HttpSender::new(runtime, options, queue.clone(), clock, sink)?),
        };
        Ok(Executors { way, queue })
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
                Way::Out(http_queue) => http_queue.enter(dispatch),
                Way::FakeNetwork(fake_network) => fake_network.put(dispatch),
            },
        }
    }

    /// Attempts that nothing will come of unless somebody outside says so.
    pub fn held(&self) -> usize {
        match &self.way {
            Way::Out(_) => 0,
            Way::FakeNetwork(fake_network) => fake_network.len(),
        }
    }

    /// Nobody wants the result of an attempt any more.
    pub fn abort(&self, run: RunId, fence: u64) {
        match &self.way {
            Way::Out(http_queue) => http_queue.abort(run, fence),
            Way::FakeNetwork(fake_network) => fake_network.abort(run, fence),
        }
    }
}

/// Once the loop is gone, nobody would record what comes back, so nothing more is sent.
impl Drop for Executors {
    fn drop(&mut self) {
        drop(self.queue.close());
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
