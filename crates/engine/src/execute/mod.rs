//! Built-in executors: they get work after its commit is durable, and report results. Each kind of work has its
//! [`Executor`]; [`Executors`] is the table of them.
//!
//! `noop` and `log` finish at once. `http` runs beside the engine loop: an attempt starts unless its host is down
//! ([`host_backoff`]); its request waits in the [`http_queue`] until its organisation has its turn ([`fair_queue`]), and is
//! sent redirect by redirect ([`hop`], [`http`]). In tests, a [`fake_network`] takes the requests instead.

mod fair_queue;
pub mod fake_network;
mod hop;
mod host_backoff;
mod http;
mod http_queue;
mod instant;

pub use fair_queue::HttpQueuePosition;
pub use http_queue::{HttpOptions, HttpQueue};

use crate::clock::Clock;
use crate::mailbox::{Dispatch, HoldRequest};
use http_queue::HttpSender;
use kernel::RunId;
use kernel::advance::{TaskResult, Work};
use std::sync::Arc;

/// Receives the results of HTTP attempts.
pub type Sink = Arc<dyn Fn(&Dispatch, TaskResult) + Send + Sync>;

/// Executes one kind of work.
pub trait Executor: Send + Sync {
    /// Work that takes no time answers at once; other work answers later, through a [`Sink`].
    fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)>;

    /// Drops an attempt whose result is no longer needed.
    fn abort(&self, _run: RunId, _fence: u64) {}

    /// Attempts that wait for a test to answer them.
    fn held(&self) -> usize {
        0
    }
}

pub struct Executors {
    http: Box<dyn Executor>,
    hold: HoldRequest,
    queue: Arc<HttpQueue>,
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
        let (http, hold): (Box<dyn Executor>, HoldRequest) = match options.fake_network.clone() {
            Some(fake_network) => {
                fake_network.open(clock, sink);
                (Box::new(fake_network), Arc::new(|_, _, _, _| None))
            }
            None => {
                let sender = HttpSender::new(runtime, options, queue.clone(), clock, sink)?;
                let hold = sender.hold();
                (Box::new(sender), hold)
            }
        };
        Ok(Executors { http, hold, queue })
    }

    /// Which executor does which work.
    fn of(&self, work: &Work) -> &dyn Executor {
        match work {
            Work::Noop => &instant::NoopExecutor,
            Work::Log { .. } => &instant::LogExecutor,
            Work::Http(_) => &*self.http,
        }
    }

    /// Executes a step. Work that takes no time answers at once.
    pub fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        self.of(&dispatch.work).execute(dispatch)
    }

    /// Decides whether the request of an attempt must wait because of its host.
    pub fn hold(&self) -> HoldRequest {
        self.hold.clone()
    }

    /// Attempts that wait for a test to answer them on the fake network.
    pub fn held(&self) -> usize {
        self.http.held()
    }

    /// Drops an attempt whose result is no longer needed.
    pub fn abort(&self, run: RunId, fence: u64) {
        self.http.abort(run, fence);
    }
}

/// Without the engine loop no result would be recorded, so no further request is sent.
impl Drop for Executors {
    fn drop(&mut self) {
        drop(self.queue.close());
    }
}
