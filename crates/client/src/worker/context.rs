//! What a handler knows about its task, and what it can say while it works.

use super::outcome::cut;
use super::session::Session;
use super::worker_state::Stop;
use api::{ClaimedView, LogLine};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Lines that wait to be sent; more are counted, not kept.
const LINES_MAX: usize = 1_000;
/// The server takes no more at once, and no longer ones.
pub(super) const LINES_PER_CALL: usize = 100;
const LINE_MAX: usize = 4 * 1024;
const PROGRESS_MAX: usize = 4 * 1024;
/// Lines are sent together.
const LOGS_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// Nobody wants the result any more: the task was cancelled, its lease was lost, or the worker leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody wants the result any more")]
pub struct Cancelled;

/// One attempt of one task. It may be cloned and kept; once the attempt has ended, nothing said to it counts.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    /// Without its input, which is the handler's.
    task: ClaimedView,
    session: Arc<Session>,
    stop: watch::Receiver<Option<Stop>>,
    lines: Mutex<Lines>,
    has_lines: Notify,
}

#[derive(Default)]
struct Lines {
    waiting: VecDeque<LogLine>,
    left_out: usize,
}

impl Lines {
    /// Says that there would have been more.
    fn confess(&mut self) {
        if self.left_out > 0 {
            let message = format!("{} lines were left out here", std::mem::take(&mut self.left_out));
            self.waiting.push_back(LogLine { level: Some("warning".into()), message });
        }
    }
}

impl Context {
    pub(super) fn new(task: ClaimedView, session: Arc<Session>, stop: watch::Receiver<Option<Stop>>) -> Context {
        let (lines, has_lines) = (Mutex::default(), Notify::new());
        Context { inner: Arc::new(Inner { task, session, stop, lines, has_lines }) }
    }

    pub fn task_id(&self) -> &str {
        &self.inner.task.task_id
    }

    /// The task's type, also if the handler takes several.
    pub fn task_type(&self) -> &str {
        &self.inner.task.name
    }

    pub fn run_id(&self) -> &str {
        &self.inner.task.run_id
    }

    /// Whose step it is; nothing for a plain task.
    pub fn workflow(&self) -> Option<&str> {
        self.inner.task.workflow.as_deref()
    }

    pub fn step(&self) -> &str {
        &self.inner.task.step
    }

    /// From 1.
    pub fn attempt(&self) -> u32 {
        self.inner.task.attempt
    }

    pub fn max_attempts(&self) -> u32 {
        self.inner.task.max_attempts
    }

    /// The same for every attempt: give it to whatever must not be done twice.
    pub fn idempotency_key(&self) -> &str {
        &self.inner.task.idempotency_key
    }

    /// What an earlier attempt saved with [`progress`](Context::progress); nothing if there is none, or it is of
    /// another shape.
    pub fn saved<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.inner.task.progress.as_ref()?.get()).ok()
    }

    /// Saves how far it is, for the next attempt and for whoever looks: any JSON up to 4 KB. It is sent in the
    /// background, at the latest before the attempt ends as a failure.
    pub fn progress(&self, value: &impl Serialize) -> super::Result<()> {
        let raw = serde_json::value::to_raw_value(value)?;
        if raw.get().len() > PROGRESS_MAX {
            let message = format!("progress is at most {PROGRESS_MAX} bytes of JSON, this is {}", raw.get().len());
            return Err(super::Error::fail(message).code("progress_too_large"));
        }
        self.inner.session.progress(&self.inner.task.claim_token, raw);
        Ok(())
    }

    /// Extends the lease now, with the progress that was not sent yet, and waits until the server has taken it down. The
    /// worker extends leases by itself; this is for who has to be sure before going on.
    pub async fn heartbeat(&self) -> Result<(), Cancelled> {
        match self.inner.session.beat(&self.inner.task.claim_token) {
            None => Err(Cancelled),
            Some(told) => tokio::select! {
                told = told => if told == Ok(true) { Ok(()) } else { Err(Cancelled) },
                () = self.cancelled() => Err(Cancelled),
            },
        }
    }

    /// Adds a line to the task's history.
    pub fn log(&self, message: impl Into<String>) {
        self.log_at(Level::Info, message);
    }

    pub fn log_at(&self, level: Level, message: impl Into<String>) {
        let mut lines = self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.waiting.len() >= LINES_MAX {
            lines.left_out += 1;
            return;
        }
        lines.confess();
        let message = cut(&message.into(), LINE_MAX);
        lines.waiting.push_back(LogLine { level: Some(level.as_str().into()), message });
        drop(lines);
        self.inner.has_lines.notify_one();
    }

    /// Does nobody want the result any more? Then the handler should stop soon, or it will be stopped.
    pub fn is_cancelled(&self) -> bool {
        self.inner.stop.borrow().is_some()
    }

    /// Ends when nobody wants the result any more.
    pub async fn cancelled(&self) {
        self.stopped().await;
    }

    pub(super) async fn stopped(&self) -> Stop {
        let mut stop = self.inner.stop.clone();
        // Whoever would tell is gone together with the job.
        stop.wait_for(Option::is_some).await.map_or(Stop::Unwanted, |stop| stop.unwrap_or(Stop::Unwanted))
    }

    pub(super) fn stop(&self) -> Option<Stop> {
        *self.inner.stop.borrow()
    }

    /// Sends lines as they come, together; ends when there is nothing left after `closing`.
    pub(super) async fn send_lines(&self, mut closing: watch::Receiver<bool>) {
        loop {
            let next: Vec<LogLine> = {
                let mut lines = self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.waiting.len() < LINES_MAX {
                    lines.confess();
                }
                let count = lines.waiting.len().min(LINES_PER_CALL);
                lines.waiting.drain(..count).collect()
            };
            if !next.is_empty() {
                let task = &self.inner.task;
                self.inner.session.send_lines(&task.task_id, &task.claim_token, next).await;
                continue;
            }
            if *closing.borrow_and_update() {
                return;
            }
            let collected = async {
                self.inner.has_lines.notified().await;
                tokio::time::sleep(LOGS_EVERY).await;
            };
            tokio::select! {
                () = collected => {}
                _ = closing.changed() => {}
            }
        }
    }
}
