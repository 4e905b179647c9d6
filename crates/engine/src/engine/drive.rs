//! The loop: take what arrived, advance, commit, release, and again. One thread owns the mailbox, so
//! there are no locks around runs; the inbox is swapped out whole, so a busy loop takes one lock a round.

use super::Inner;
use super::reading::load;
use crate::HORIZON;
use crate::execute::Executors;
use crate::mailbox::{Command, Dispatch, Mailbox, Reply, Trouble};
use kernel::advance::TaskResult;
use kernel::{Input, OrgId, RunId, Timestamp};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use store::crash::{self, Point};
use tokio::sync::oneshot;

pub type Ticket = oneshot::Sender<Reply>;

/// How often the loop looks up although nothing arrived, and the timer rows are read.
const IDLE: Duration = Duration::from_millis(1_000);
/// Timer rows read at a time.
const TIMERS_PAGE: usize = 10_000;
/// How often callers that hung up are forgotten.
const TIDY: Duration = Duration::from_secs(5);
/// Runs read before the mailbox hears of them.
const ERRANDS_AT_ONCE: usize = 64;
/// Pause before a refused commit is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What the loop says about itself.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub is_quiet: bool,
    pub next_due: Option<Timestamp>,
    pub fired: u64,
    pub executing: usize,
}

#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    len: AtomicUsize,
}

#[derive(Default)]
struct State {
    commands: Vec<Command<Ticket>>,
    probes: Vec<oneshot::Sender<Probe>>,
    is_stopping: bool,
    is_closed: bool,
    is_poked: bool,
}

impl Inbox {
    /// False when the loop has ended.
    pub fn send(&self, command: Command<Ticket>) -> bool {
        self.put(|commands| commands.push(command))
    }

    fn send_all(&self, more: Vec<Command<Ticket>>) -> bool {
        self.put(|commands| commands.extend(more))
    }

    fn put(&self, add: impl FnOnce(&mut Vec<Command<Ticket>>)) -> bool {
        let mut state = self.lock();
        if state.is_closed {
            return false;
        }
        add(&mut state.commands);
        self.len.store(state.commands.len(), Ordering::Relaxed);
        drop(state);
        self.arrived.notify_one();
        true
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.arrived.notify_one();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Makes the loop look at the clock.
    pub fn poke(&self) {
        self.lock().is_poked = true;
        self.arrived.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes everything, waiting at most `patience` for something to arrive.
    fn take(&self, patience: Duration) -> (Vec<Command<Ticket>>, Vec<oneshot::Sender<Probe>>, bool) {
        let mut state = self.lock();
        let is_idle = |s: &mut State| s.commands.is_empty() && s.probes.is_empty() && !s.is_stopping && !s.is_poked;
        if !patience.is_zero() {
            state = self.arrived.wait_timeout_while(state, patience, is_idle).unwrap_or_else(|e| e.into_inner()).0;
        }
        state.is_poked = false;
        self.len.store(0, Ordering::Relaxed);
        (std::mem::take(&mut state.commands), std::mem::take(&mut state.probes), state.is_stopping)
    }
}

impl Inner {
    pub(super) async fn probe(&self) -> Result<Probe, super::Error> {
        let (ticket, reply) = oneshot::channel();
        {
            let mut state = self.inbox.lock();
            if state.is_closed {
                return Err(super::Error::Unavailable("the engine has stopped".into()));
            }
            state.probes.push(ticket);
        }
        self.inbox.arrived.notify_one();
        reply.await.map_err(|_| super::Error::Unavailable("the engine has stopped".into()))
    }
}

/// An executor's result as a command.
pub fn finished(dispatch: &Dispatch, result: TaskResult) -> Command<Ticket> {
    let input = Input::Finished { step: dispatch.step, fence: dispatch.fence, result };
    Command::Give { org: dispatch.org, run: dispatch.run, input, ticket: None }
}

enum Errand {
    Load(OrgId, RunId),
    Fetch(OrgId, RunId, Vec<u32>),
}

/// Starts the loop and its two helpers: one reads runs and payloads, one reads due timers.
pub fn spawn(inner: Arc<Inner>, mailbox: Mailbox<Ticket>, executors: Executors) {
    let runtime = tokio::runtime::Handle::current();
    let (errands, todo) = mpsc::channel();
    let reader = inner.clone();
    start_thread("reader", move || run_errands(&reader, &todo));
    runtime.spawn(keep_time(inner.clone()));
    let looping = move || {
        let guard = CloseOnExit(inner.clone());
        drive(&inner, mailbox, &executors, &errands, &runtime);
        drop(guard);
    };
    start_thread("mailbox", looping);
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(work) {
        // Nothing can run without it; requests will not be answered, and readiness says so.
        tracing::error!(%error, name, "a thread of the engine cannot be started");
    }
}

/// However the loop ends, nobody may wait for it forever.
struct CloseOnExit(Arc<Inner>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up("a bug stopped the engine's loop".into());
        }
        let mut state = self.0.inbox.lock();
        state.is_closed = true;
        state.commands.clear();
        state.probes.clear();
    }
}

fn drive(
    inner: &Inner,
    mut mailbox: Mailbox<Ticket>,
    executors: &Executors,
    errands: &mpsc::Sender<Errand>,
    runtime: &tokio::runtime::Handle,
) {
    let mut tidied = Instant::now();
    loop {
        if tidied.elapsed() > TIDY {
            tidied = Instant::now();
            mailbox.retain_watchers(|ticket| !ticket.is_closed());
        }
        let patience = if mailbox.has_work() { Duration::ZERO } else { until(inner, &mailbox) };
        let (commands, probes, is_stopping) = inner.inbox.take(patience);
        if is_stopping {
            return;
        }
        for command in commands {
            mailbox.accept(command);
        }
        let mut turn = mailbox.turn(inner.clock.now());
        for (org, run) in turn.loads.drain(..) {
            let _ = errands.send(Errand::Load(org, run));
        }
        for (org, run, numbers) in turn.fetches.drain(..) {
            let _ = errands.send(Errand::Fetch(org, run, numbers));
        }
        let result = if turn.batch.runs.is_empty() {
            Ok(Vec::new())
        } else {
            inner.metrics.turns_total.add(1);
            runtime.block_on(inner.store.commit(&turn.batch))
        };
        if matches!(&result, Ok(verdicts) if !verdicts.is_empty()) {
            crash::point(Point::BeforeSettle);
        }
        let trouble = result.as_ref().err().cloned();
        if !turn.batch.runs.is_empty() {
            inner.is_refused.store(trouble.is_some(), Ordering::Relaxed);
        }
        if let Ok(verdicts) = &result {
            inner
                .metrics
                .conflicts_total
                .add(verdicts.iter().filter(|v| **v == store::Verdict::Conflict).count() as u64);
            inner.followers.announce(&turn.batch, verdicts);
        }
        let released = mailbox.settle(turn, result);
        for (ticket, reply) in released.replies {
            // Whoever asked may have hung up; that is no concern of the run.
            let _ = ticket.send(reply);
        }
        if !released.dispatch.is_empty() {
            crash::point(Point::BeforeDispatch);
        }
        for (run, fence) in released.aborts {
            executors.abort(run, fence);
        }
        for notice in released.notices {
            inner.outbox.put(notice);
        }
        for dispatch in released.dispatch {
            if let Some((dispatch, result)) = executors.execute(dispatch) {
                inner.metrics.steps_finished_total.add(1);
                mailbox.accept(finished(&dispatch, result));
            }
        }
        let metrics = &inner.metrics;
        metrics.runs_started_total.add(released.started);
        metrics.runs_ended_total.add(released.ended);
        metrics.steps_started_total.add(released.steps);
        metrics.runs_in_memory.set(mailbox.resident() as u64);
        metrics.http_steps_queued.set(inner.line.waiting() as u64);
        metrics.attempts_executing.set(mailbox.executing() as u64);
        if let Some(error) = trouble {
            metrics.store_errors_total.add(1);
            tracing::error!(%error, "a commit failed");
            match error {
                store::Error::Unavailable(_) => std::thread::sleep(RETRY_PAUSE),
                fatal => return inner.give_up(fatal.to_string()),
            }
        }
        for probe in probes {
            let state = Probe {
                is_quiet: mailbox.is_quiet(executors.held()),
                next_due: mailbox.next_due(),
                fired: mailbox.fired(),
                executing: mailbox.executing(),
            };
            let _ = probe.send(state);
        }
    }
}

fn until(inner: &Inner, mailbox: &Mailbox<Ticket>) -> Duration {
    let now = inner.clock.now();
    mailbox.next_due().map_or(IDLE, |at| Duration::from_micros(at.since(now).0).min(IDLE))
}

/// Reads runs and payloads for the mailbox, in the order it asked. A thread of its own: a local store
/// then reads right here, without a hop to another thread for each of a hundred thousand sleepers.
fn run_errands(inner: &Inner, todo: &mpsc::Receiver<Errand>) {
    while let Ok(first) = todo.recv() {
        let asked = std::iter::once(first).chain(todo.try_iter()).take(ERRANDS_AT_ONCE);
        let commands = asked.map(|errand| run_errand(inner, errand)).collect();
        if !inner.inbox.send_all(commands) {
            return;
        }
    }
}

fn run_errand(inner: &Inner, errand: Errand) -> Command<Ticket> {
    match errand {
        Errand::Load(org, run) => {
            inner.metrics.runs_loaded_total.add(1);
            let result = wait_for(load(inner, org, run));
            crash::point(Point::RunLoaded);
            Command::Loaded { run, result: result.map(|found| found.map(Box::new)) }
        }
        Errand::Fetch(org, run, numbers) => {
            let result = wait_for(inner.store.payloads(org, run, &numbers));
            Command::Fetched { run, result: result.map_err(|e| Trouble::Store(e.to_string())) }
        }
    }
}

/// Blocks this thread until a future is done.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        std::thread::park();
    }
}

/// Reads the timers that come due within the horizon, again and again. A row stays until the record it
/// caused is durable, so reading it twice is harmless and reading it late is the worst that can happen.
async fn keep_time(inner: Arc<Inner>) {
    loop {
        inner.clock.follow_wall();
        let is_full = match inner.read_timers().await {
            Ok(count) => count == TIMERS_PAGE,
            Err(error) => {
                tracing::warn!(%error, "the timers cannot be read");
                false
            }
        };
        if inner.inbox.is_closed() {
            return;
        }
        let pause = if is_full { Duration::from_millis(20) } else { IDLE };
        let _ = tokio::time::timeout(pause, inner.clock_moved.notified()).await;
    }
}

impl Inner {
    /// Hands the mailbox the timers due within the horizon; answers how many.
    pub(super) async fn read_timers(&self) -> Result<usize, store::Error> {
        let timers = self.store.timers(self.clock.now().after(HORIZON), TIMERS_PAGE).await?;
        let count = timers.len();
        if count > 0 {
            self.inbox.send(Command::Timers(timers));
        }
        Ok(count)
    }
}
