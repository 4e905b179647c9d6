//! A worker: it claims tasks, calls one handler function for each task type, and reports the outcomes.
//!
//! ```no_run
//! use onward_client::{Client, Worker, worker::{Context, Error}};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize)]
//! struct Invoice { order: u64, amount: u64 }
//! #[derive(Serialize)]
//! struct Receipt { number: String }
//!
//! # async fn example() -> Result<(), onward_client::Error> {
//! Worker::new(Client::from_env()?)
//!     .slots(16)
//!     .handle("billing.invoice.v1", |invoice: Invoice, ctx: Context| async move {
//!         if invoice.amount == 0 {
//!             return Err(Error::fail("nothing to bill").code("amount_zero")); // not retried
//!         }
//!         std::fs::read("template.html")?; // any error: retried according to the task's policy
//!         ctx.log(format!("attempt {} of {}", ctx.attempt(), ctx.max_attempts()));
//!         Ok(Receipt { number: format!("R-{}", invoice.order) })
//!     })
//!     .run()
//!     .await
//! # }
//! ```
//!
//! The worker extends leases, reports in batches, and reconnects to a server that was unreachable, where it sends again
//! what was not acknowledged. On SIGTERM it finishes the tasks it holds. Handlers are plain async functions. Code that
//! blocks a thread for long belongs into `tokio::task::spawn_blocking`, because heartbeats need the runtime, too.

mod backoff;
mod context;
mod input_errors;
mod outcome;
mod session;
mod worker_state;

pub use context::{Cancelled, Context, LogLevel};
pub use outcome::{Error, Result};

use crate::Client;
use outcome::HandlerOutcome;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

type Handled = Pin<Box<dyn Future<Output = HandlerOutcome> + Send>>;
type Handler = Arc<dyn Fn(Box<RawValue>, Context) -> Handled + Send + Sync>;
type Watcher = Arc<dyn Fn(&WorkerEvent<'_>) + Send + Sync>;

/// Something that happened to a worker, for logs and monitoring.
#[non_exhaustive]
pub enum WorkerEvent<'a> {
    Started {
        context: &'a Context,
    },
    Ended {
        context: &'a Context,
        outcome: &'a str,
        took: Duration,
    },
    /// The server did not accept a report; `why` is `stale_claim`, `cancelled` or its error message.
    NotCounted {
        task_id: &'a str,
        why: &'a str,
    },
    Unreachable {
        reason: &'a str,
        again_in: Duration,
    },
    Reachable,
    /// The worker is stopping: it claims no more tasks and finishes those it holds.
    Draining,
}

struct WorkerSettings {
    id: String,
    slots: usize,
    lease: Duration,
    wait: Duration,
    drain: Duration,
    cancel_grace: Duration,
    runtime: String,
    version: Option<String>,
    /// By task type, or by a prefix of types followed by `%`.
    handlers: Vec<(String, Handler)>,
    watcher: Option<Watcher>,
}

impl WorkerSettings {
    fn notify(&self, notice: WorkerEvent<'_>) {
        if let Some(watcher) = &self.watcher {
            watcher(&notice);
        }
    }

    /// The most specific handler: one for the exact type, then the one with the longest prefix.
    fn handler(&self, task_type: &str) -> Option<Handler> {
        let match_length = |pattern: &str| match pattern.strip_suffix('%') {
            Some(prefix) => task_type.starts_with(prefix).then_some(prefix.len()),
            None => (pattern == task_type).then_some(usize::MAX),
        };
        let matching = self.handlers.iter().filter_map(|(pattern, handler)| Some((match_length(pattern)?, handler)));
        matching.max_by_key(|(length, _)| *length).map(|(_, handler)| handler.clone())
    }
}

/// Claims tasks by type and runs their handlers. See the [module](self).
pub struct Worker {
    client: Client,
    settings: WorkerSettings,
}

impl Worker {
    pub fn new(client: Client) -> Worker {
        let settings = WorkerSettings {
            id: random_id(),
            slots: 16,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(20),
            drain: Duration::from_secs(25),
            cancel_grace: Duration::from_secs(1),
            runtime: "rust".into(),
            version: None,
            handlers: Vec::new(),
            watcher: None,
        };
        Worker { client, settings }
    }

    /// The id of the worker; by default the host name, the process id and random digits. Two workers must not have the
    /// same id at the same time.
    pub fn id(mut self, id: impl Into<String>) -> Worker {
        self.settings.id = id.into();
        self
    }

    /// How many tasks run at once; by default 16.
    pub fn slots(mut self, slots: usize) -> Worker {
        self.settings.slots = slots.max(1);
        self
    }

    /// How long the server waits for a heartbeat before it gives the task to another worker; by default 30 s. The
    /// worker sends one every third of this time.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.settings.lease = lease;
        self
    }

    /// How long a stopping worker waits for its tasks to finish; by default 25 s. Tasks that have not finished by then
    /// go back to the server, without being charged as an attempt.
    pub fn drain(mut self, drain: Duration) -> Worker {
        self.settings.drain = drain;
        self
    }

    /// How long a handler may continue after it was told to stop, before it is dropped; by default 1 s.
    pub fn cancel_grace(mut self, grace: Duration) -> Worker {
        self.settings.cancel_grace = grace;
        self
    }

    /// The runtime of the worker, for types that are bound to one; by default `rust`.
    pub fn runtime(mut self, runtime: impl Into<String>) -> Worker {
        self.settings.runtime = runtime.into();
        self
    }

    /// The version of your code, shown in the list of workers.
    pub fn version(mut self, version: impl Into<String>) -> Worker {
        self.settings.version = Some(version.into());
        self
    }

    /// Called for every [`Notice`], from the worker's own tasks: it must not block.
    pub fn watch(mut self, watcher: impl Fn(&WorkerEvent<'_>) + Send + Sync + 'static) -> Worker {
        self.settings.watcher = Some(Arc::new(watcher));
        self
    }

    /// Registers the handler of a task type, or with `%` at the end of every type with this prefix. The handler gets
    /// the input as a type of yours and returns a result. Input that does not fit the type fails the task with
    /// `invalid_input`, without a retry.
    pub fn handle<I, T, F, R>(mut self, task_type: impl Into<String>, handler: F) -> Worker
    where
        I: DeserializeOwned + Send + 'static,
        T: Serialize + 'static,
        F: Fn(I, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let call = move |raw: Box<RawValue>, context: Context| -> Handled {
            let handler = handler.clone();
            Box::pin(async move {
                let input = match outcome::input::<I>(&raw) {
                    Ok(input) => input,
                    Err(error) => return HandlerOutcome::Error(error),
                };
                drop(raw);
                HandlerOutcome::of(handler(input, context).await)
            })
        };
        let task_type = task_type.into();
        self.settings.handlers.retain(|(other, _)| *other != task_type);
        self.settings.handlers.push((task_type, Arc::new(call)));
        self
    }

    /// Runs until SIGTERM or Ctrl-C, then finishes the tasks it holds. A second signal gives them back to the server at
    /// once.
    pub async fn run(self) -> crate::Result<()> {
        let signals = signals()?;
        let (mut first, mut second) = (signals.clone(), signals);
        let nth_signal = async |signals: &mut tokio::sync::watch::Receiver<u32>, n: u32| {
            if signals.wait_for(|count| *count >= n).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        session::run(self.client, self.settings, nth_signal(&mut first, 1), nth_signal(&mut second, 2)).await
    }

    /// Runs until `shutdown` resolves, then finishes the tasks it holds. Returns an error only if the server refuses
    /// the worker for good (a wrong key, for example), or if the last reports could not be delivered.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> crate::Result<()> {
        session::run(self.client, self.settings, shutdown, std::future::pending()).await
    }
}

/// Counts the signals that ask the process to stop.
fn signals() -> crate::Result<tokio::sync::watch::Receiver<u32>> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(|e| crate::Error::Unusable(format!("cannot listen for signals: {e}")));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let (send, count) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = send.closed() => return,
            }
            send.send_modify(|count| *count += 1);
        }
    });
    Ok(count)
}

/// An id that no other worker has, most likely.
fn random_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = outcome::cut(host.trim(), 100);
    let host = if host.is_empty() { "worker" } else { &host };
    let random = RandomState::new().hash_one(std::process::id());
    format!("{host}-{}-{:04x}", std::process::id(), random & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_handler_runs_a_task() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let with_handler = |worker: Worker, name: &str| {
            worker.handle(name.to_owned(), |_: serde_json::Value, _: Context| async move { Ok(()) })
        };
        let worker = ["a.%", "a.b.%", "a.b.v1", "%"].iter().fold(Worker::new(client), |w, name| with_handler(w, name));
        let check = |name: &str, pattern: &str| {
            let found = worker.settings.handler(name).unwrap();
            let (_, expected) = worker.settings.handlers.iter().find(|(p, _)| p == pattern).unwrap();
            assert!(Arc::ptr_eq(&found, expected), "{name} belongs to {pattern}");
        };
        for (name, pattern) in [("a.x", "a.%"), ("a.b.v2", "a.b.%"), ("a.b.v1", "a.b.v1"), ("z", "%"), ("a", "%")] {
            check(name, pattern);
        }
    }

    #[test]
    fn two_workers_have_different_ids() {
        assert_ne!(random_id(), random_id());
    }
}
