//! The I/O of a worker: a loop that claims tasks and waits for them, a loop that reports at once, and the handlers.
//!
//! ```text
//!   claim_loop ──▶ POST /work (waits) ──tasks──▶ handlers ──outcomes──▶ WorkerState
//!   report_loop ─▶ POST /work (at once) ◀───── done, heartbeats ───────────┘
//!                     └──tasks──▶ handlers
//! ```
//!
//! [`worker_state`](super::worker_state) makes every decision. The code here waits for sockets, clocks and handlers.

use super::backoff::ReconnectBackoff;
use super::context::Context;
use super::outcome::HandlerOutcome;
use super::worker_state::{NextClaim, StartTask, StopReason, WorkerBatch, WorkerState};
use super::{Handler, WorkerEvent, WorkerSettings};
use crate::{Client, Error, RequestBuilder, Result, segment, span};
use api::{LogLine, LogsRequest, WorkRequest, WorkView};
use serde_json::Value;
use serde_json::value::RawValue;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll as Polled;
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a response may take in addition to the `wait` of its request.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(15);
/// A younger claim may be about to return tasks. An older one waits for new tasks and can be dropped.
const CLAIM_SETTLES: Duration = Duration::from_millis(250);
/// How long a stopping worker tries to send its last reports, and an ended task its last log lines.
const FINAL_REPORTS_TIMEOUT: Duration = Duration::from_secs(10);
const FINAL_LINES_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct WorkerSession {
    client: Client,
    settings: WorkerSettings,
    worker_state: Mutex<WorkerState>,
    claim_wakes: Notify,
    report_wakes: Notify,
    handlers: Mutex<JoinSet<()>>,
    /// The latest error, while the server cannot be reached.
    last_error: Mutex<Option<Error>>,
}

/// Stops the handlers when the session ends, also when its future is dropped.
struct Ending(Arc<WorkerSession>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.handlers).abort_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until `shutdown` resolves, then finishes the tasks it holds; `hurry` ends the time for that early.
pub async fn run(
    client: Client,
    settings: WorkerSettings,
    shutdown: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> Result<()> {
    let (drain, grace) = (settings.drain, settings.cancel_grace);
    let session = Arc::new(WorkerSession {
        worker_state: Mutex::new(WorkerState::new(settings.slots, Instant::now())),
        client,
        settings,
        claim_wakes: Notify::new(),
        report_wakes: Notify::new(),
        handlers: Mutex::default(),
        last_error: Mutex::default(),
    });
    let _ending = Ending(session.clone());
    let mut work = pin!(async { tokio::try_join!(session.claim_loop(), session.report_loop()).map(drop) });
    tokio::select! {
        ended = &mut work => return ended,
        () = shutdown => {}
    }
    session.settings.notify(WorkerEvent::Draining);
    session.update(WorkerState::stop_claiming);
    tokio::select! {
        ended = &mut work => return ended,
        () = sleep(drain) => {}
        () = hurry => {}
    }
    session.update(WorkerState::stop_handlers);
    match timeout(grace + FINAL_REPORTS_TIMEOUT, work).await {
        Ok(ended) => ended,
        Err(_) => Err(lock(&session.last_error).take().unwrap_or_else(|| {
            let reason = "the last reports could not be delivered in time".to_owned();
            Error::Unreachable { url: session.client.base().to_owned(), reason }
        })),
    }
}

impl WorkerSession {
    /// Changes the state and wakes both loops, which may wait for the change.
    fn update<T>(&self, update: impl FnOnce(&mut WorkerState) -> T) -> T {
        let updated = update(&mut lock(&self.worker_state));
        self.claim_wakes.notify_one();
        self.report_wakes.notify_one();
        updated
    }

    pub fn progress(&self, claim_token: &str, raw: Box<RawValue>) {
        self.update(|worker_state| worker_state.progress(claim_token, raw, Instant::now()));
    }

    pub fn heartbeat(&self, claim_token: &str) -> Option<oneshot::Receiver<bool>> {
        self.update(|worker_state| worker_state.heartbeat(claim_token, Instant::now()))
    }

    /// Claims tasks while a slot is free.
    async fn claim_loop(self: &Arc<WorkerSession>) -> Result<()> {
        let mut backoff = ReconnectBackoff::default();
        loop {
            let next = lock(&self.worker_state).next_claim(Instant::now());
            let credits = match next {
                NextClaim::Now(credits) => credits,
                NextClaim::NotBefore(at) => {
                    tokio::select! { () = sleep_until(at) => {} () = self.claim_wakes.notified() => {} }
                    continue;
                }
                NextClaim::Later => {
                    self.claim_wakes.notified().await;
                    continue;
                }
                NextClaim::Never => return Ok(()),
            };
            let request = self.request(credits, self.settings.wait, None);
            let response = tokio::select! {
                response = self.send(&request, self.settings.wait) => Some(response),
                () = self.claim_is_outdated(Instant::now()) => None,
            };
            self.update(|worker_state| worker_state.claim_ended(Instant::now()));
            match response {
                None => {}
                Some(Ok(view)) => {
                    backoff.reset();
                    self.mark_reachable();
                    self.update(|worker_state| worker_state.leases(&[], view.leases));
                    self.start(view.tasks);
                }
                Some(Err(error)) if error.is_transient() => {
                    let delay = backoff.next();
                    self.mark_unreachable(error, delay);
                    self.wait_to_reconnect(delay).await;
                }
                Some(Err(error)) => return Err(error),
            }
        }
    }

    /// Resolves when the open claim should be dropped: it does not offer the free slots, or the worker is stopping.
    async fn claim_is_outdated(&self, since: Instant) {
        loop {
            let (should_claim_more, is_claiming) = {
                let worker_state = lock(&self.worker_state);
                (worker_state.should_claim_more(), worker_state.is_claiming())
            };
            if should_claim_more {
                return;
            }
            if !is_claiming {
                return sleep_until(since + CLAIM_SETTLES).await;
            }
            self.claim_wakes.notified().await;
        }
    }

    /// Waits for the delay, or until the worker is stopping.
    async fn wait_to_reconnect(&self, delay: Duration) {
        let mut delayed = pin!(sleep(delay));
        loop {
            if !lock(&self.worker_state).is_claiming() {
                return;
            }
            tokio::select! {
                () = &mut delayed => return,
                () = self.claim_wakes.notified() => {}
            }
        }
    }

    /// Sends reports and heartbeats as soon as they are due.
    async fn report_loop(self: &Arc<WorkerSession>) -> Result<()> {
        let mut backoff = ReconnectBackoff::within(self.settings.lease);
        loop {
            let (batch, due_at, is_done) = {
                let mut worker_state = lock(&self.worker_state);
                (worker_state.batch(Instant::now()), worker_state.due_at(), worker_state.is_done())
            };
            let Some(mut batch) = batch else {
                if is_done {
                    return Ok(());
                }
                let due = async {
                    match due_at {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! { () = due => {} () = self.report_wakes.notified() => {} }
                continue;
            };
            let request = self.request(batch.credits, Duration::ZERO, Some(&mut batch));
            let response = self.send(&request, Duration::ZERO).await;
            (batch.done, batch.heartbeats) = (request.done, request.heartbeats);
            let now = Instant::now();
            match response {
                Ok(WorkView { acks, leases, tasks }) => {
                    backoff.reset();
                    self.mark_reachable();
                    let claim_tokens = batch.heartbeat_tokens();
                    let rejected = self.update(|worker_state| {
                        let rejected = worker_state.acknowledge(batch, acks, now);
                        worker_state.leases(&claim_tokens, leases);
                        rejected
                    });
                    self.notify_rejected(rejected);
                    self.start(tasks);
                }
                Err(error) if error.is_transient() => {
                    self.update(|worker_state| worker_state.requeue(batch, now));
                    let delay = backoff.next();
                    self.mark_unreachable(error, delay);
                    sleep(delay).await;
                }
                // Only these statuses are about the content of the batch. Others, such as a wrong key, end the session.
                Err(Error::Refused { status: 400 | 413 | 422, problem }) => {
                    let rejected = self.update(|worker_state| worker_state.rejected(batch, &problem.message, now));
                    self.notify_rejected(rejected);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn request(&self, credits: u32, wait: Duration, batch: Option<&mut WorkerBatch>) -> WorkRequest {
        let (done, heartbeats) = batch.map_or_else(Default::default, |batch| {
            (std::mem::take(&mut batch.done), std::mem::take(&mut batch.heartbeats))
        });
        let settings = &self.settings;
        WorkRequest {
            worker_id: settings.id.clone(),
            types: settings.handlers.iter().map(|(name, _)| name.clone()).collect(),
            credits,
            lease: Some(span(settings.lease)),
            wait: Some(span(wait)),
            done,
            heartbeats,
            runtime: Some(settings.runtime.clone()),
            version: settings.version.clone(),
            slots: u32::try_from(settings.slots).ok(),
        }
    }

    async fn send(&self, request: &WorkRequest, wait: Duration) -> Result<WorkView> {
        let body = serde_json::to_vec(request).map_err(|e| Error::Unusable(e.to_string()))?;
        self.client.work(body.into(), wait + TIMEOUT_MARGIN).await
    }

    fn mark_reachable(&self) {
        if lock(&self.last_error).take().is_some() {
            self.settings.notify(WorkerEvent::Reachable);
        }
    }

    fn mark_unreachable(&self, error: Error, delay: Duration) {
        self.settings.notify(WorkerEvent::Unreachable { reason: &error.to_string(), again_in: delay });
        *lock(&self.last_error) = Some(error);
    }

    fn notify_rejected(&self, rejected: Vec<(String, String)>) {
        for (task_id, why) in rejected {
            self.settings.notify(WorkerEvent::NotCounted { task_id: &task_id, why: &why });
        }
    }

    fn start(self: &Arc<WorkerSession>, tasks: Vec<api::ClaimedView>) {
        if tasks.is_empty() {
            return;
        }
        let starts = self.update(|worker_state| worker_state.accept_tasks(tasks, Instant::now()));
        let mut handlers = lock(&self.handlers);
        while handlers.try_join_next().is_some() {}
        for StartTask { mut task, stop } in starts {
            let input = std::mem::replace(&mut task.input, RawValue::NULL.to_owned());
            let claim_token = task.claim_token.clone();
            match self.settings.handler(&task.task_type) {
                Some(handler) => {
                    let context = Context::new(task, self.clone(), stop);
                    handlers.spawn(self.clone().handle(handler, input, context, claim_token));
                }
                None => {
                    let message = format!("this worker has no handler for `{}`", task.task_type);
                    let outcome = HandlerOutcome::Error(super::Error::retry(message).code("no_handler"));
                    self.update(|worker_state| worker_state.finish(&claim_token, Some(outcome)));
                }
            }
        }
    }

    /// Runs the handler of one attempt and queues the report of its outcome.
    async fn handle(
        self: Arc<WorkerSession>,
        handler: Handler,
        input: Box<RawValue>,
        context: Context,
        claim_token: String,
    ) {
        self.settings.notify(WorkerEvent::Started { context: &context });
        let began = Instant::now();
        let (close, closing) = watch::channel(false);
        let mut lines = pin!(context.send_lines(closing));
        let outcome = {
            let called = context.clone();
            let mut attempt: Pin<Box<_>> = Box::pin(catch_panic(async move { handler(input, called).await }));
            let stopped = async {
                context.stopped().await;
                sleep(self.settings.cancel_grace).await;
            };
            tokio::select! {
                outcome = &mut attempt => Some(outcome),
                () = stopped => None,
                // Never happens here: the sender of lines returns only after `close`.
                () = &mut lines => None,
            }
        };
        _ = close.send(true);
        let reported = match (outcome, context.stop()) {
            (Some(outcome), None) => Some(outcome),
            // A result is reported although the handler was told to stop; an error is not.
            (Some(done @ HandlerOutcome::Done(_)), Some(_)) => Some(done),
            (_, Some(StopReason::Draining)) => Some(HandlerOutcome::Error(super::Error::snooze(Duration::ZERO))),
            (_, Some(StopReason::Cancelled)) | (None, None) => None,
        };
        _ = timeout(FINAL_LINES_TIMEOUT, lines).await;
        self.settings.notify(WorkerEvent::Ended {
            context: &context,
            outcome: &outcome_text(&reported),
            took: began.elapsed(),
        });
        self.update(|worker_state| worker_state.finish(&claim_token, reported));
    }

    /// Sends log lines of a task. Lines are dropped if the server refuses them, or with this future.
    pub async fn send_lines(&self, task: &str, claim_token: &str, lines: Vec<LogLine>) {
        let body = LogsRequest { claim_token: claim_token.to_owned(), lines };
        let mut backoff = ReconnectBackoff::default();
        loop {
            let request = RequestBuilder::post(format!("/tasks/{}/logs", segment(task))).json(&body);
            match self.client.data::<Value>(request).await {
                Err(error) if error.is_transient() => sleep(backoff.next()).await,
                _ => return,
            }
        }
    }
}

/// The outcome in a few words, for the watcher.
fn outcome_text(outcome: &Option<HandlerOutcome>) -> String {
    match outcome {
        Some(HandlerOutcome::Done(_)) => "done".to_owned(),
        Some(HandlerOutcome::Error(error)) => error.to_string(),
        None => "stopped".to_owned(),
    }
}

/// A panic ends only the attempt.
async fn catch_panic(attempt: impl Future<Output = HandlerOutcome>) -> HandlerOutcome {
    let mut attempt = pin!(attempt);
    std::future::poll_fn(|task| match catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(task))) {
        Ok(polled) => polled,
        Err(payload) => Polled::Ready(HandlerOutcome::panicked(&*payload)),
    })
    .await
}
