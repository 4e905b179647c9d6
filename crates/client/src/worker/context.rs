//! What a handler can read about its task, and what it can send while it runs: heartbeats, progress, log lines.

use super::outcome::cut;
use super::session::WorkerSession;
use super::worker_state::StopReason;
use api::{ClaimedView, LogLine};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How many log lines wait to be sent. Further lines are counted and dropped.
const LINES_MAX: usize = 1_000;
/// Limits of the server: lines in one request, bytes in one line.
pub(super) const LINES_PER_CALL: usize = 100;
const LINE_MAX: usize = 4 * 1024;
const PROGRESS_MAX: usize = 4 * 1024;
/// How long lines are collected before they are sent.
const LOGS_EVERY: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Info,
    Warning,
    Error,
}

impl LogLevel {
    fn as_str(self) -> &'static str {
        match self {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warning => "warning",
            LogLevel::Error => "error",
        }
    }
}

/// The handler should stop: the task was cancelled, its lease was lost, or the worker is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was cancelled, its lease was lost, or the worker is stopping")]
pub struct Cancelled;

/// One attempt at a task. A clone that outlives the attempt is harmless: its calls have no effect.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    /// Without the input, which the handler owns.
    task: ClaimedView,
    session: Arc<WorkerSession>,
    stop: watch::Receiver<Option<StopReason>>,
    lines: Mutex<LogBuffer>,
    has_lines: Notify,
}

#[derive(Default)]
struct LogBuffer {
    waiting: VecDeque<LogLine>,
    dropped: usize,
}

impl LogBuffer {
    /// Adds a line that says how many were dropped.
    fn add_drop_notice(&mut self) {
        if self.dropped > 0 {
            let message = format!("{} lines were left out here", std::mem::take(&mut self.dropped));
            self.waiting.push_back(LogLine { level: Some("warning".into()), message });
        }
    }
}

impl Context {
    pub(super) fn new(
        task: ClaimedView,
        session: Arc<WorkerSession>,
        stop: watch::Receiver<Option<StopReason>>,
    ) -> Context {
        let (lines, has_lines) = (Mutex::default(), Notify::new());
        Context { inner: Arc::new(Inner { task, session, stop, lines, has_lines }) }
    }

    pub fn task_id(&self) -> &str {
        &self.inner.task.task_id
    }

    /// The type of the task; a handler may be registered for several.
    pub fn task_type(&self) -> &str {
        &self.inner.task.task_type
    }

    pub fn run_id(&self) -> &str {
        &self.inner.task.run_id
    }

    /// The workflow that the step belongs to; `None` for a single task.
    pub fn workflow(&self) -> Option<&str> {
        self.inner.task.workflow.as_deref()
    }

    pub fn step(&self) -> &str {
        &self.inner.task.step
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.task.attempt
    }

    pub fn max_attempts(&self) -> u32 {
        self.inner.task.max_attempts
    }

    /// The same for every attempt: pass it to services that must not do the work twice.
    pub fn idempotency_key(&self) -> &str {
        &self.inner.task.idempotency_key
    }

    /// What an earlier attempt saved with [`progress`](Context::progress); `None` if there is nothing, or if it does
    /// not fit the type.
    pub fn saved<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.inner.task.progress.as_ref()?.get()).ok()
    }

    /// Saves progress for the next attempt, and for the task's history: any JSON up to 4 KB. It is sent in the
    /// background, at the latest before a failure of the attempt is reported.
    pub fn progress(&self, value: &impl Serialize) -> super::Result<()> {
        let raw = serde_json::value::to_raw_value(value)?;
        if raw.get().len() > PROGRESS_MAX {
            let message = format!("progress is at most {PROGRESS_MAX} bytes of JSON, this is {}", raw.get().len());
            return Err(super::Error::fail(message).code("progress_too_large"));
        }
        self.inner.session.progress(&self.inner.task.claim_token, raw);
        Ok(())
    }

    /// Extends the lease now, sends progress that was not sent yet, and waits for the response. The worker extends
    /// leases by itself; call this before a side effect that only the holder of the lease may cause.
    pub async fn heartbeat(&self) -> Result<(), Cancelled> {
        match self.inner.session.heartbeat(&self.inner.task.claim_token) {
            None => Err(Cancelled),
            Some(response) => tokio::select! {
                is_held = response => if is_held == Ok(true) { Ok(()) } else { Err(Cancelled) },
                () = self.cancelled() => Err(Cancelled),
            },
        }
    }

    /// Adds a line to the task's history.
    pub fn log(&self, message: impl Into<String>) {
        self.log_at(LogLevel::Info, message);
    }

    pub fn log_at(&self, level: LogLevel, message: impl Into<String>) {
        let mut lines = self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.waiting.len() >= LINES_MAX {
            lines.dropped += 1;
            return;
        }
        lines.add_drop_notice();
        let message = cut(&message.into(), LINE_MAX);
        lines.waiting.push_back(LogLine { level: Some(level.as_str().into()), message });
        drop(lines);
        self.inner.has_lines.notify_one();
    }

    /// Whether the handler should stop. If it does not, it is dropped after a grace period.
    pub fn is_cancelled(&self) -> bool {
        self.inner.stop.borrow().is_some()
    }

    /// Resolves when the handler should stop.
    pub async fn cancelled(&self) {
        self.stopped().await;
    }

    pub(super) async fn stopped(&self) -> StopReason {
        let mut stop = self.inner.stop.clone();
        // The sender was dropped together with the job.
        stop.wait_for(Option::is_some).await.map_or(StopReason::Cancelled, |stop| stop.unwrap_or(StopReason::Cancelled))
    }

    pub(super) fn stop(&self) -> Option<StopReason> {
        *self.inner.stop.borrow()
    }

    /// Sends log lines in batches; returns when all lines are sent and `closing` is true.
    pub(super) async fn send_lines(&self, mut closing: watch::Receiver<bool>) {
        loop {
            let next: Vec<LogLine> = {
                let mut lines = self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.waiting.len() < LINES_MAX {
                    lines.add_drop_notice();
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
