//! Doing tasks: one function for each type, and everything around it.
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
//!             return Err(Error::fail("nothing to bill").code("amount_zero")); // not tried again
//!         }
//!         std::fs::read("template.html")?; // any error: tried again as the task's policy says
//!         ctx.log(format!("attempt {} of {}", ctx.attempt(), ctx.max_attempts()));
//!         Ok(Receipt { number: format!("R-{}", invoice.order) })
//!     })
//!     .run()
//!     .await
//! # }
//! ```
//!
//! The worker keeps leases alive, reports in batches, finds a server that was away again and says once more what it could
//! not say, and on SIGTERM finishes what it holds. Handlers are plain async functions; what blocks a thread for long belongs
//! into `tokio::task::spawn_blocking`, because heartbeats need the runtime, too.

mod backoff;
mod context;
mod input_errors;
mod outcome;
mod session;
mod worker_state;

pub use context::{Cancelled, Context, Level};
pub use outcome::{Error, Result};

use crate::Client;
use outcome::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

type Handled = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Handler = Arc<dyn Fn(Box<RawValue>, Context) -> Handled + Send + Sync>;
type Watcher = Arc<dyn Fn(&Notice<'_>) + Send + Sync>;

/// What a worker would tell somebody who watches it.
#[non_exhaustive]
pub enum Notice<'a> {
    Started {
        context: &'a Context,
    },
    Ended {
        context: &'a Context,
        outcome: &'a str,
        took: Duration,
    },
    /// A report came too late: `stale_claim`, `cancelled`.
    NotCounted {
        task_id: &'a str,
        why: &'a str,
    },
    Unreachable {
        reason: &'a str,
        again_in: Duration,
    },
    Reachable,
    /// Nothing more is taken on; what is under way finishes.
    Draining,
}

struct Settings {
    id: String,
    slots: usize,
    lease: Duration,
    wait: Duration,
    drain: Duration,
    cancel_grace: Duration,
    runtime: String,
    version: Option<String>,
    /// By type, or by the beginning of types with a `%` after it.
    handlers: Vec<(String, Handler)>,
    watcher: Option<Watcher>,
}

impl Settings {
    fn notice(&self, notice: Notice<'_>) {
        if let Some(watcher) = &self.watcher {
            watcher(&notice);
        }
    }

    /// The type itself goes before a beginning, and a longer beginning before a shorter one.
    fn handler(&self, name: &str) -> Option<Handler> {
        let fits = |pattern: &str| match pattern.strip_suffix('%') {
            Some(prefix) => name.starts_with(prefix).then_some(prefix.len()),
            None => (pattern == name).then_some(usize::MAX),
        };
        let all = self.handlers.iter().filter_map(|(pattern, handler)| Some((fits(pattern)?, handler)));
        all.max_by_key(|(length, _)| *length).map(|(_, handler)| handler.clone())
    }
}

/// Claims tasks by their types and does them. See the [module](self).
pub struct Worker {
    client: Client,
    settings: Settings,
}

impl Worker {
    pub fn new(client: Client) -> Worker {
        let settings = Settings {
            id: some_id(),
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

    /// How it is called; the name of the machine, the process and something random if nothing is said. No two workers
    /// at a time may have the same.
    pub fn id(mut self, id: impl Into<String>) -> Worker {
        self.settings.id = id.into();
        self
    }

    /// How many tasks at once; 16 if nothing is said.
    pub fn slots(mut self, slots: usize) -> Worker {
        self.settings.slots = slots.max(1);
        self
    }

    /// How long the server waits for a sign of life before it gives a task to somebody else; 30 s if nothing is said. One is
    /// given every third of it.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.settings.lease = lease;
        self
    }

    /// How long tasks under way get to finish when the worker is stopped; 25 s if nothing is said. What has not finished
    /// then is handed back, uncharged.
    pub fn drain(mut self, drain: Duration) -> Worker {
        self.settings.drain = drain;
        self
    }

    /// How long a handler may go on after it was cancelled, before it is dropped; 1 s if nothing is said.
    pub fn cancel_grace(mut self, grace: Duration) -> Worker {
        self.settings.cancel_grace = grace;
        self
    }

    /// What it is written in, for types that are bound to a runtime; `rust` if nothing is said.
    pub fn runtime(mut self, runtime: impl Into<String>) -> Worker {
        self.settings.runtime = runtime.into();
        self
    }

    /// Of the code, for whoever looks at the workers.
    pub fn version(mut self, version: impl Into<String>) -> Worker {
        self.settings.version = Some(version.into());
        self
    }

    /// Called with what happens to the worker, from wherever it happens: it should not take long.
    pub fn watch(mut self, watcher: impl Fn(&Notice<'_>) + Send + Sync + 'static) -> Worker {
        self.settings.watcher = Some(Arc::new(watcher));
        self
    }

    /// Does tasks of this type (or, with a `%` at the end, of all that begin like this) with a function: from the input,
    /// as a type of yours, to a result. Input that does not fit fails the task for good with `invalid_input`.
    pub fn handle<I, T, F, R>(mut self, name: impl Into<String>, handler: F) -> Worker
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
                    Err(error) => return Outcome::Not(error),
                };
                drop(raw);
                Outcome::of(handler(input, context).await)
            })
        };
        let name = name.into();
        self.settings.handlers.retain(|(other, _)| *other != name);
        self.settings.handlers.push((name, Arc::new(call)));
        self
    }

    /// Works until SIGTERM or Ctrl-C, then finishes what is under way; a second one hands it back at once.
    pub async fn run(self) -> crate::Result<()> {
        let signals = signals()?;
        let (mut first, mut second) = (signals.clone(), signals);
        let count = async |signals: &mut tokio::sync::watch::Receiver<u32>, n: u32| {
            if signals.wait_for(|count| *count >= n).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        session::run(self.client, self.settings, count(&mut first, 1), count(&mut second, 2)).await
    }

    /// Works until `shutdown` ends, then finishes what is under way. It comes back with an error only if the server
    /// says that there is no way it can work, or if the last words could not be delivered.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> crate::Result<()> {
        session::run(self.client, self.settings, shutdown, std::future::pending()).await
    }
}

/// How many times the process was asked to stop.
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

/// An id that no other worker has.
fn some_id() -> String {
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
    fn the_closest_handler_does_a_task() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let named = |worker: Worker, name: &str| {
            worker.handle(name.to_owned(), |_: serde_json::Value, _: Context| async move { Ok(()) })
        };
        let worker = ["a.%", "a.b.%", "a.b.v1", "%"].iter().fold(Worker::new(client), |w, name| named(w, name));
        let same = |name: &str, pattern: &str| {
            let found = worker.settings.handler(name).unwrap();
            let (_, expected) = worker.settings.handlers.iter().find(|(p, _)| p == pattern).unwrap();
            assert!(Arc::ptr_eq(&found, expected), "{name} is for {pattern}");
        };
        for (name, pattern) in [("a.x", "a.%"), ("a.b.v2", "a.b.%"), ("a.b.v1", "a.b.v1"), ("z", "%"), ("a", "%")] {
            same(name, pattern);
        }
    }

    #[test]
    fn two_workers_are_not_called_the_same() {
        assert_ne!(some_id(), some_id());
    }
}
