//! A worker at work: one request that waits for tasks while there is room, one that reports at once, and the
//! handlers in between.
//!
//! ```text
//!   poll ───▶ POST /work (waits) ──tasks──▶ handlers ──outcomes──▶ desk
//!   report ─▶ POST /work (at once) ◀──────── done, heartbeats ──────┘
//!                └──tasks──▶ handlers
//! ```
//!
//! All decisions are the [`worker_state`](super::desk)'s; here is what waits for sockets, clocks and handlers.

use super::backoff::Backoff;
use super::context::Context;
use super::outcome::Outcome;
use super::worker_state::{Batch, Poll, Start, Stop, WorkerState};
use super::{Handler, Notice, Settings};
use crate::{Ask, Client, Error, Result, segment, span};
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

/// How long an answer may take beyond what it was asked to wait.
const PATIENCE: Duration = Duration::from_secs(15);
/// A poll this young may be about to bring tasks; an older one waits for some to come, and can be given up.
const POLL_SETTLES: Duration = Duration::from_millis(250);
/// How long the last words get when a worker leaves, and the lines of one task when it has ended.
const LAST_WORDS: Duration = Duration::from_secs(10);
const LAST_LINES: Duration = Duration::from_secs(5);

pub(crate) struct Session {
    client: Client,
    settings: Settings,
    worker_state: Mutex<WorkerState>,
    poll_wakes: Notify,
    report_wakes: Notify,
    handlers: Mutex<JoinSet<()>>,
    /// Why the server could not be reached, as long as it cannot.
    trouble: Mutex<Option<Error>>,
}

/// Handlers end with the session, however it ends.
struct Ending(Arc<Session>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.handlers).abort_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Works until `shutdown`, then finishes what is under way; `hurry` ends the time for that early.
pub async fn run(
    client: Client,
    settings: Settings,
    shutdown: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> Result<()> {
    let (drain, grace) = (settings.drain, settings.cancel_grace);
    let session = Arc::new(Session {
        worker_state: Mutex::new(WorkerState::new(settings.slots, Instant::now())),
        client,
        settings,
        poll_wakes: Notify::new(),
        report_wakes: Notify::new(),
        handlers: Mutex::default(),
        trouble: Mutex::default(),
    });
    let _ending = Ending(session.clone());
    let mut work = pin!(async { tokio::try_join!(session.polls(), session.reports()).map(drop) });
    tokio::select! {
        ended = &mut work => return ended,
        () = shutdown => {}
    }
    session.settings.notice(Notice::Draining);
    session.change(WorkerState::leave);
    tokio::select! {
        ended = &mut work => return ended,
        () = sleep(drain) => {}
        () = hurry => {}
    }
    session.change(WorkerState::hand_back);
    match timeout(grace + LAST_WORDS, work).await {
        Ok(ended) => ended,
        Err(_) => Err(lock(&session.trouble).take().unwrap_or_else(|| {
            let reason = "not everything could be reported in time".to_owned();
            Error::Unreachable { url: session.client.base().to_owned(), reason }
        })),
    }
}

impl Session {
    /// Whatever changes on the desk may be what a loop waits for.
    fn change<T>(&self, change: impl FnOnce(&mut WorkerState) -> T) -> T {
        let changed = change(&mut lock(&self.worker_state));
        self.poll_wakes.notify_one();
        self.report_wakes.notify_one();
        changed
    }

    pub fn progress(&self, token: &str, raw: Box<RawValue>) {
        self.change(|worker_state| worker_state.progress(token, raw, Instant::now()));
    }

    pub fn beat(&self, token: &str) -> Option<oneshot::Receiver<bool>> {
        self.change(|worker_state| worker_state.beat(token, Instant::now()))
    }

    /// Asks for tasks while there is room for some.
    async fn polls(self: &Arc<Session>) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let next = lock(&self.worker_state).poll(Instant::now());
            let credits = match next {
                Poll::Now(credits) => credits,
                Poll::NotBefore(at) => {
                    tokio::select! { () = sleep_until(at) => {} () = self.poll_wakes.notified() => {} }
                    continue;
                }
                Poll::Later => {
                    self.poll_wakes.notified().await;
                    continue;
                }
                Poll::Never => return Ok(()),
            };
            let request = self.request(credits, self.settings.wait, None);
            let asked = tokio::select! {
                asked = self.ask(&request, self.settings.wait) => Some(asked),
                () = self.gives_way(Instant::now()) => None,
            };
            self.change(|worker_state| worker_state.polled(Instant::now()));
            match asked {
                None => {}
                Some(Ok(view)) => {
                    backoff.reset();
                    self.reached();
                    self.change(|worker_state| worker_state.leases(&[], view.leases));
                    self.start(view.tasks);
                }
                Some(Err(error)) if error.is_passing() => {
                    let pause = backoff.next();
                    self.lost(error, pause);
                    self.pause(pause).await;
                }
                Some(Err(error)) => return Err(error),
            }
        }
    }

    /// Ends when the open poll should be given up: there is room it did not ask for, or the worker leaves.
    async fn gives_way(&self, since: Instant) {
        loop {
            let (is_starved, is_taking) = {
                let worker_state = lock(&self.worker_state);
                (worker_state.is_starved(), worker_state.is_taking())
            };
            if is_starved {
                return;
            }
            if !is_taking {
                return sleep_until(since + POLL_SETTLES).await;
            }
            self.poll_wakes.notified().await;
        }
    }

    /// Not longer than until the worker leaves.
    async fn pause(&self, pause: Duration) {
        let mut paused = pin!(sleep(pause));
        loop {
            if !lock(&self.worker_state).is_taking() {
                return;
            }
            tokio::select! {
                () = &mut paused => return,
                () = self.poll_wakes.notified() => {}
            }
        }
    }

    /// Says what is to be said, as soon as there is something.
    async fn reports(self: &Arc<Session>) -> Result<()> {
        let mut backoff = Backoff::within(self.settings.lease);
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
            let asked = self.ask(&request, Duration::ZERO).await;
            (batch.done, batch.heartbeats) = (request.done, request.heartbeats);
            let now = Instant::now();
            match asked {
                Ok(WorkView { acks, leases, tasks }) => {
                    backoff.reset();
                    self.reached();
                    let beaten = batch.beaten();
                    let refused = self.change(|worker_state| {
                        let refused = worker_state.settle(batch, acks, now);
                        worker_state.leases(&beaten, leases);
                        refused
                    });
                    self.not_counted(refused);
                    self.start(tasks);
                }
                Err(error) if error.is_passing() => {
                    self.change(|worker_state| worker_state.put_back(batch, now));
                    let pause = backoff.next();
                    self.lost(error, pause);
                    sleep(pause).await;
                }
                // What a batch says may be wrong; who we are is not its fault.
                Err(Error::Refused { status: 400 | 413 | 422, problem }) => {
                    let refused = self.change(|worker_state| worker_state.refused(batch, &problem.message, now));
                    self.not_counted(refused);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn request(&self, credits: u32, wait: Duration, batch: Option<&mut Batch>) -> WorkRequest {
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

    async fn ask(&self, request: &WorkRequest, wait: Duration) -> Result<WorkView> {
        let body = serde_json::to_vec(request).map_err(|e| Error::Unusable(e.to_string()))?;
        self.client.work(body.into(), wait + PATIENCE).await
    }

    fn reached(&self) {
        if lock(&self.trouble).take().is_some() {
            self.settings.notice(Notice::Reachable);
        }
    }

    fn lost(&self, error: Error, pause: Duration) {
        self.settings.notice(Notice::Unreachable { reason: &error.to_string(), again_in: pause });
        *lock(&self.trouble) = Some(error);
    }

    fn not_counted(&self, refused: Vec<(String, String)>) {
        for (task_id, why) in refused {
            self.settings.notice(Notice::NotCounted { task_id: &task_id, why: &why });
        }
    }

    fn start(self: &Arc<Session>, tasks: Vec<api::ClaimedView>) {
        if tasks.is_empty() {
            return;
        }
        let starts = self.change(|worker_state| worker_state.take(tasks, Instant::now()));
        let mut handlers = lock(&self.handlers);
        while handlers.try_join_next().is_some() {}
        for Start { mut task, stop } in starts {
            let input = std::mem::replace(&mut task.input, RawValue::NULL.to_owned());
            let token = task.claim_token.clone();
            match self.settings.handler(&task.name) {
                Some(handler) => {
                    let context = Context::new(task, self.clone(), stop);
                    handlers.spawn(self.clone().handle(handler, input, context, token));
                }
                None => {
                    let message = format!("this worker has no handler for `{}`", task.name);
                    let outcome = Outcome::Not(super::Error::retry(message).code("no_handler"));
                    self.change(|worker_state| worker_state.finish(&token, Some(outcome)));
                }
            }
        }
    }

    /// One attempt, from its handler's first step until the desk knows how it ended.
    async fn handle(self: Arc<Session>, handler: Handler, input: Box<RawValue>, context: Context, token: String) {
        self.settings.notice(Notice::Started { context: &context });
        let began = Instant::now();
        let (close, closing) = watch::channel(false);
        let mut lines = pin!(context.send_lines(closing));
        let outcome = {
            let called = context.clone();
            let mut attempt: Pin<Box<_>> = Box::pin(caught(async move { handler(input, called).await }));
            let stopped = async {
                context.stopped().await;
                sleep(self.settings.cancel_grace).await;
            };
            tokio::select! {
                outcome = &mut attempt => Some(outcome),
                () = stopped => None,
                // It ends only when it is closed.
                () = &mut lines => None,
            }
        };
        _ = close.send(true);
        let told = match (outcome, context.stop()) {
            (Some(outcome), None) => Some(outcome),
            // What was done all the same is worth knowing; what did not work out is not.
            (Some(done @ Outcome::Done(_)), Some(_)) => Some(done),
            (_, Some(Stop::Leaving)) => Some(Outcome::Not(super::Error::snooze(Duration::ZERO))),
            (_, Some(Stop::Unwanted)) | (None, None) => None,
        };
        _ = timeout(LAST_LINES, lines).await;
        self.settings.notice(Notice::Ended { context: &context, outcome: &told_as(&told), took: began.elapsed() });
        self.change(|worker_state| worker_state.finish(&token, told));
    }

    /// Lines of a task; what cannot be delivered while it matters is dropped.
    pub async fn send_lines(&self, task: &str, token: &str, lines: Vec<LogLine>) {
        let request = LogsRequest { claim_token: token.to_owned(), lines };
        let mut backoff = Backoff::default();
        loop {
            let ask = Ask::post(format!("/tasks/{}/logs", segment(task))).json(&request);
            match self.client.data::<Value>(ask).await {
                Err(error) if error.is_passing() => sleep(backoff.next()).await,
                _ => return,
            }
        }
    }
}

/// In a few words, for whoever watches.
fn told_as(outcome: &Option<Outcome>) -> String {
    match outcome {
        Some(Outcome::Done(_)) => "done".to_owned(),
        Some(Outcome::Not(error)) => error.to_string(),
        None => "stopped".to_owned(),
    }
}

/// A panic ends its attempt and nothing else.
async fn caught(attempt: impl Future<Output = Outcome>) -> Outcome {
    let mut attempt = pin!(attempt);
    std::future::poll_fn(|task| match catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(task))) {
        Ok(polled) => polled,
        Err(payload) => Polled::Ready(Outcome::panicked(&*payload)),
    })
    .await
}
