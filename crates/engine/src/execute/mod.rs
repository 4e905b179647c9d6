//! Built-in executors: they get work after its commit is durable, and report results. `noop` and `log` finish at once.
//! `http` runs beside the engine loop: an attempt starts unless its host is down ([`host_backoff`]); its request waits in
//! the [`http_queue`] until its organisation has its turn ([`fair_queue`]), and is sent redirect by redirect ([`hop`],
//! [`http`]). In tests, a [`fake_network`] takes the requests instead.

mod fair_queue;
pub mod fake_network;
mod hop;
mod host_backoff;
mod http;
mod http_queue;

pub use fair_queue::HttpQueuePosition;
pub use http_queue::{HttpOptions, HttpQueue};

use crate::clock::Clock;
use crate::mailbox::{Dispatch, HoldRequest};
use fake_network::FakeNetwork;
use http_queue::HttpSender;
use kernel::advance::{TaskResult, Work};
use kernel::plan::Level;
use kernel::{RunId, Span};
use std::sync::Arc;

/// Receives the results of HTTP attempts.
pub type Sink = Arc<dyn Fn(&Dispatch, TaskResult) + Send + Sync>;

pub struct Executors {
    way: HttpRoute,
    queue: Arc<HttpQueue>,
}

/// Where HTTP work goes.
enum HttpRoute {
    Out(Arc<HttpSender>),
    FakeNetwork(Arc<FakeNetwork>),
}

impl Executors {
    /// `queue` is where HTTP work waits; `explain` reads positions from it.
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
                HttpRoute::FakeNetwork(fake_network)
            }
            None => HttpRoute::Out(HttpSender::new(runtime, options, queue.clone(), clock, sink)?),
        };
        Ok(Executors { way, queue })
    }

    /// Executes a step. Work that takes no time answers at once; HTTP work answers later, through the [`Sink`].
    pub fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        match &dispatch.work {
            Work::Noop => Some((dispatch, TaskResult::Done { body: None, took: Span(0) })),
            Work::Log { level, message } => {
                write_log(*level, &dispatch, message);
                let body = kernel::Payload::json(serde_json::Value::from(message.as_str()).to_string());
                Some((dispatch, TaskResult::Done { body: Some(body), took: Span(0) }))
            }
            Work::Http(_) => match &self.way {
                HttpRoute::Out(http_queue) => http_queue.enter(dispatch),
                HttpRoute::FakeNetwork(fake_network) => fake_network.put(dispatch),
            },
        }
    }

    /// Decides whether the request of an attempt must wait because of its host.
    pub fn hold(&self) -> HoldRequest {
        match &self.way {
            HttpRoute::Out(http_queue) => http_queue.hold(),
            HttpRoute::FakeNetwork(_) => Arc::new(|_, _, _, _| None),
        }
    }

    /// Attempts that wait for a test to answer them on the fake network.
    pub fn held(&self) -> usize {
        match &self.way {
            HttpRoute::Out(_) => 0,
            HttpRoute::FakeNetwork(fake_network) => fake_network.len(),
        }
    }

    /// Drops an attempt whose result is no longer needed.
    pub fn abort(&self, run: RunId, fence: u64) {
        match &self.way {
            HttpRoute::Out(http_queue) => http_queue.abort(run, fence),
            HttpRoute::FakeNetwork(fake_network) => fake_network.abort(run, fence),
        }
    }
}

/// Without the engine loop no result would be recorded, so no further request is sent.
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
