//! The loop: take what arrived, advance, commit, release, and again. Whoever holds the [`EngineLoop`] drives, so
//! there are no locks around runs; the inbox is swapped out whole, so a busy loop takes one lock a round.
//!
//! A thread of its own drives whenever there is something to do. A caller that finds nobody driving sees to
//! its command itself ([`Inner::send_and_drive`]): on an idle machine that saves handing it to a sleeping
//! thread and being woken by it, which costs more than deciding and half as much as the sync.

use super::Inner;
use super::reply_channel::ReplyChannel;
use super::run_queries::load_all;
use crate::HORIZON;
use crate::execute::Executors;
use crate::mailbox::{Command, Dispatch, LoadFailure, Mailbox, Reply, Resumed, Turn};
use crate::nodes::Nodes;
use crate::task_queue;
use kernel::advance::TaskResult;
use kernel::event::Failure;
use kernel::{Input, OrgId, RunId, Timestamp};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use store::crash::{self, Point};
use store::{Batch, ClusterEvent, QueueKey, QueuePosition};
use tokio::sync::oneshot;

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

/// Callers drive themselves while at most this many runs are being worked on. With more, they would only keep each
/// other from handing the thread a whole batch.
const IDLE_RUNS: u64 = 4;

/// Runs in a batch that takes long enough to write for the next one to be decided meanwhile. With fewer there would be two
/// small batches for one, which cost more than they gain.
const LARGE: usize = 256;
/// What arrives while a batch is written is taken together for as long.
const GATHERING: Duration = Duration::from_millis(1);
/// Runs that are decided while others are written, before that is waited for.
const DECIDED_MAX: usize = 8_192;
/// Batches in a row before whoever waits for the driver gets it.
const AHEAD_MAX: u32 = 16;

/// Commands that a caller sees to itself at most.
const FEW: usize = 8;

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
    commands: Vec<Command<ReplyChannel>>,
    probes: Vec<oneshot::Sender<Probe>>,
    is_stopping: bool,
    is_closed: bool,
    is_poked: bool,
    /// While the thread sleeps: when it will look up by itself.
    wakes_at: Option<Instant>,
}

impl Inbox {
    /// False when the loop has ended.
    pub fn send(&self, command: Command<ReplyChannel>) -> bool {
        self.announced(|commands| commands.push(command))
    }

    fn send_all(&self, more: Vec<Command<ReplyChannel>>) -> bool {
        self.announced(|commands| commands.extend(more))
    }

    fn announced(&self, add: impl FnOnce(&mut Vec<Command<ReplyChannel>>)) -> bool {
        let is_taken = self.put(add);
        self.arrived.notify_one();
        is_taken
    }

    fn put(&self, add: impl FnOnce(&mut Vec<Command<ReplyChannel>>)) -> bool {
        let mut state = self.lock();
        if state.is_closed {
            return false;
        }
        add(&mut state.commands);
        self.len.store(state.commands.len(), Ordering::Relaxed);
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

    /// Takes everything that is there.
    fn take(&self) -> (Vec<Command<ReplyChannel>>, Vec<oneshot::Sender<Probe>>) {
        let mut state = self.lock();
        self.len.store(0, Ordering::Relaxed);
        (std::mem::take(&mut state.commands), std::mem::take(&mut state.probes))
    }

    /// Sleeps until something is there, at most `patience`; true when it is time to stop.
    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        let is_idle = |s: &mut State| s.commands.is_empty() && s.probes.is_empty() && !s.is_stopping && !s.is_poked;
        if !patience.is_zero() {
            state.wakes_at = Some(Instant::now() + patience);
            state = self.arrived.wait_timeout_while(state, patience, is_idle).unwrap_or_else(|e| e.into_inner()).0;
            state.wakes_at = None;
        }
        state.is_poked = false;
        state.is_stopping
    }

    /// Lets things arrive for a while, or until somebody pokes.
    fn gather(&self, time: Duration) {
        let state = self.lock();
        let waited = self.arrived.wait_timeout_while(state, time, |state| !state.is_poked);
        waited.unwrap_or_else(|e| e.into_inner()).0.is_poked = false;
    }

    /// Makes the thread look up within `patience`, or at once if something is left for it.
    fn hand_over(&self, patience: Duration) {
        let mut state = self.lock();
        let oversleeps = state.wakes_at.is_some_and(|at| at > Instant::now() + patience);
        if oversleeps || !state.commands.is_empty() || !state.probes.is_empty() {
            state.is_poked = true;
            self.arrived.notify_one();
        }
    }
}

impl Inner {
    pub(super) async fn probe(&self) -> Result<Probe, super::Error> {
        let (reply_to, reply) = oneshot::channel();
        {
            let mut state = self.inbox.lock();
            if state.is_closed {
                return Err(super::Error::Unavailable("the engine has stopped".into()));
            }
            state.probes.push(reply_to);
        }
        self.inbox.arrived.notify_one();
        reply.await.map_err(|_| super::Error::Unavailable("the engine has stopped".into()))
    }
}

/// An executor's result as a command.
pub fn finished(dispatch: &Dispatch, result: TaskResult) -> Command<ReplyChannel> {
    let input = Input::Finished { step: dispatch.step, fence: dispatch.fence, result, digest: 0 };
    Command::Give { org: dispatch.org, run: dispatch.run, input, reply_to: None }
}

/// A worker that is not there any more gives back what it was to get.
fn undelivered(task: &task_queue::Task, now: Timestamp) -> Command<ReplyChannel> {
    let failure = Failure::new("not_delivered", "the worker hung up before it got the task");
    let result = TaskResult::Blocked { until: now, failure };
    let input = Input::Finished { step: task.step, fence: task.fence, result, digest: 1 };
    Command::Give { org: task.org, run: task.run, input, reply_to: None }
}

/// What a turn wants to have read, in one piece: whoever is woken for the first of a thousand runs would read that one by itself.
struct LoadRequests {
    runs: Vec<(OrgId, RunId)>,
    payloads: Vec<(OrgId, RunId, Vec<u32>)>,
}

/// What the board wants to know of its lanes.
enum QueueRead {
    Refill(QueueKey, Option<QueuePosition>),
    Keys(OrgId, String, Option<String>),
    LimitSlots(OrgId, String),
}

/// Starts the loop and what reads for it: runs and payloads; lanes, so that nobody waits behind a long row of runs to hear what
/// to give out next; due timers.
pub fn spawn(inner: Arc<Inner>, mailbox: Mailbox<ReplyChannel>, executors: Executors) {
    let (load_requests, todo) = mpsc::channel();
    let (queue_reads, to_see) = mpsc::channel();
    let writer = Writer::start(&inner);
    let tidied = Instant::now();
    let engine_loop = EngineLoop {
        mailbox,
        executors,
        load_requests,
        queue_reads,
        writer,
        tidied,
        paused_until: None,
        is_over: false,
    };
    *inner.engine_loop.lock().unwrap_or_else(|e| e.into_inner()) = Some(engine_loop);
    let reader = inner.clone();
    start_thread("reader", move || load_runs(&reader, &todo));
    let looker = inner.clone();
    start_thread("lanes", move || read_queues(&looker, &to_see));
    tokio::runtime::Handle::current().spawn(read_timers_forever(inner.clone()));
    let looping = move || {
        let guard = CloseOnExit(inner.clone());
        run_loop(&inner);
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
        *self.0.engine_loop.lock().unwrap_or_else(|e| e.into_inner()) = None;
        let mut state = self.0.inbox.lock();
        state.is_closed = true;
        state.commands.clear();
        state.probes.clear();
    }
}

/// What the thread does until the engine stops.
fn run_loop(inner: &Inner) {
    loop {
        let (patience, is_paused) = {
            let Ok(mut held) = inner.engine_loop.lock() else {
                return inner.give_up("a bug stopped the engine's loop".into());
            };
            let Some(engine_loop) = held.as_mut() else { return };
            if !engine_loop.is_paused() {
                engine_loop.round(inner, AHEAD_MAX);
            }
            if engine_loop.is_over {
                return;
            }
            (engine_loop.patience(inner), engine_loop.is_paused())
        };
        // What arrives does not end a rest.
        if is_paused {
            std::thread::sleep(patience);
        }
        if inner.inbox.wait(if is_paused { Duration::ZERO } else { patience }) {
            return;
        }
    }
}

/// The mailbox, and what carries out what it decides.
pub struct EngineLoop {
    mailbox: Mailbox<ReplyChannel>,
    executors: Executors,
    /// Runs and payloads to be read.
    load_requests: mpsc::Sender<LoadRequests>,
    /// Lanes to be read, those of one turn together.
    queue_reads: mpsc::Sender<Vec<QueueRead>>,
    writer: Writer,
    tidied: Instant,
    /// The store refused a commit: nothing is tried before then.
    paused_until: Option<Instant>,
    /// It cannot go on.
    is_over: bool,
}

/// A thread that writes large batches.
struct Writer {
    batches: mpsc::Sender<Batch>,
    outcomes: mpsc::Receiver<(Batch, CommitResult)>,
    finished: Option<(Batch, CommitResult)>,
}

type CommitResult = store::Result<Vec<store::Verdict>>;

impl Writer {
    fn start(inner: &Arc<Inner>) -> Writer {
        let (batches, todo) = mpsc::channel::<Batch>();
        let (done, outcomes) = mpsc::channel();
        let inner = inner.clone();
        start_thread("writer", move || {
            for batch in todo {
                let outcome = commit(&inner, &batch);
                if done.send((batch, outcome)).is_err() {
                    return;
                }
                inner.inbox.poke();
            }
        });
        Writer { batches, outcomes, finished: None }
    }

    /// Begins to write a batch, if that pays: it is large, and what follows it comes from outside. Steps that are executed
    /// here are better decided on together when it is settled.
    fn begin(&self, turn: &mut Turn<ReplyChannel>) -> bool {
        if turn.batch.runs.len() < LARGE || turn.goes_on_here() {
            return false;
        }
        let sent = self.batches.send(std::mem::take(&mut turn.batch));
        if let Err(mpsc::SendError(batch)) = sent {
            turn.batch = batch;
            return false;
        }
        true
    }

    /// What was begun has come to its end, or the thread has.
    fn has_finished(&mut self) -> bool {
        match self.outcomes.try_recv() {
            Ok(finished) => self.finished = Some(finished),
            Err(mpsc::TryRecvError::Empty) => return self.finished.is_some(),
            Err(mpsc::TryRecvError::Disconnected) => {}
        }
        true
    }

    /// Waits for what was begun.
    fn finish(&mut self, turn: &mut Turn<ReplyChannel>) -> CommitResult {
        let finished = self.finished.take().or_else(|| self.outcomes.recv().ok());
        // Nobody knows what it did: the engine stops.
        let gone = || (Batch::default(), Err(store::Error::Refused("a bug stopped the thread that writes".into())));
        let (batch, outcome) = finished.unwrap_or_else(gone);
        turn.batch = batch;
        outcome
    }
}

/// Makes a batch durable, on this thread.
fn commit(inner: &Inner, batch: &Batch) -> CommitResult {
    inner.metrics.turns_total.add(1);
    wait_for(inner.store.commit(batch))
}

impl EngineLoop {
    /// Takes what arrived, advances, commits and releases. A large batch is written by a thread of its own, and what arrives
    /// meanwhile is decided for the next one: that has none of its runs, which are left alone until it is settled.
    ///
    /// That goes on for `batches` at most.
    fn round(&mut self, inner: &Inner, batches: u32) {
        let mut probes = Vec::new();
        let mut turn = Turn::default();
        self.decide(inner, &mut turn, &mut probes);
        let mut ahead = 0;
        let mut written = None;
        // After one that could not be written nothing is tried: nobody knows what it would meet.
        let mut is_refused = false;
        while ahead < batches && !is_refused && (written.is_some() || self.writer.begin(&mut turn)) {
            ahead += 1;
            let mut before = written.take().unwrap_or_else(|| std::mem::take(&mut turn));
            while !self.writer.has_finished() && turn.batch.runs.len() < DECIDED_MAX {
                inner.inbox.gather(GATHERING);
                if inner.inbox.len() > 0 {
                    self.decide(inner, &mut turn, &mut probes);
                }
            }
            let result = self.writer.finish(&mut before);
            let is_written = result.is_ok();
            // The thread need not wait until everybody is answered.
            if is_written && ahead < batches && self.writer.begin(&mut turn) {
                written = Some(std::mem::take(&mut turn));
            }
            self.release(inner, before, result);
            is_refused = !is_written;
        }
        let result = match turn.batch.runs.is_empty() {
            true => Ok(Vec::new()),
            false if is_refused => Err(store::Error::Unavailable("the batch before it could not be written".into())),
            false => commit(inner, &turn.batch),
        };
        self.release(inner, turn, result);
        self.answer(inner, probes);
    }

    /// Takes what arrived and advances.
    fn decide(&mut self, inner: &Inner, turn: &mut Turn<ReplyChannel>, probes: &mut Vec<oneshot::Sender<Probe>>) {
        let EngineLoop { mailbox, load_requests, queue_reads, .. } = self;
        if self.tidied.elapsed() > TIDY {
            self.tidied = Instant::now();
            mailbox.retain_watchers(|reply_to| !reply_to.is_closed());
        }
        let (commands, asked) = inner.inbox.take();
        probes.extend(asked);
        mailbox.tick(inner.clock.now());
        for command in commands {
            mailbox.accept(command);
        }
        mailbox.turn(inner.clock.now(), turn);
        if !turn.loads.is_empty() || !turn.fetches.is_empty() {
            let (runs, payloads) = (std::mem::take(&mut turn.loads), std::mem::take(&mut turn.fetches));
            let _ = load_requests.send(LoadRequests { runs, payloads });
        }
        let refills = turn.refills.drain(..).map(|(queue, after)| QueueRead::Refill(queue, after));
        let keys = turn.key_reads.drain(..).map(|(org, name, after)| QueueRead::Keys(org, name, after));
        let limit_slots = turn.slot_reads.drain(..).map(|(org, name)| QueueRead::LimitSlots(org, name));
        let all: Vec<QueueRead> = refills.chain(keys).chain(limit_slots).collect();
        if !all.is_empty() {
            let _ = queue_reads.send(all);
        }
    }

    /// Carries out what is durable now, and takes back what is not.
    fn release(&mut self, inner: &Inner, turn: Turn<ReplyChannel>, result: CommitResult) {
        let EngineLoop { mailbox, executors, .. } = self;
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
            inner.subscriptions.announce(&turn.batch, verdicts);
        }
        let released = mailbox.settle(turn, result);
        for (reply_to, reply) in released.replies {
            // Whoever asked may have hung up; that is no concern of the run, unless it was given something.
            if let Err(Reply::Claimed(handed)) = reply_to.send(reply) {
                let now = inner.clock.now();
                handed.tasks.into_iter().for_each(|task| mailbox.accept(undelivered(&task, now)));
            }
        }
        if !released.dispatch.is_empty() {
            crash::point(Point::BeforeDispatch);
        }
        for (run, fence) in released.aborts {
            executors.abort(run, fence);
        }
        for queue in released.posted {
            inner.store.broadcast(ClusterEvent::TaskReady(queue));
        }
        for notification in released.notifications {
            inner.outbox.put(notification);
        }
        for (org, run) in released.moved {
            inner.store.broadcast(store::ClusterEvent::RunAdvanced(org, run));
        }
        if released.touches_remote_group {
            inner.store.broadcast(store::ClusterEvent::GroupsChanged);
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
        metrics.runs_busy.set(mailbox.busy() as u64);
        metrics.tasks_leased_total.add(released.leased);
        metrics.http_steps_queued.set(inner.http_queue.waiting() as u64);
        metrics.attempts_executing.set(mailbox.executing() as u64);
        if let Some(error) = trouble {
            metrics.store_errors_total.add(1);
            tracing::error!(%error, "a commit failed");
            match error {
                store::Error::Unavailable(_) => self.paused_until = Some(Instant::now() + RETRY_PAUSE),
                // Its runs are read again before anything is decided about them.
                store::Error::Unknown(_) if inner.store.reads_are_durable() => {
                    self.paused_until = Some(Instant::now() + RETRY_PAUSE);
                }
                store::Error::Fenced => {
                    self.paused_until = Some(Instant::now() + RETRY_PAUSE);
                    inner.renewal.notify_one();
                }
                fatal => {
                    self.is_over = true;
                    inner.give_up(fatal.to_string());
                }
            }
        }
    }

    fn answer(&self, inner: &Inner, probes: Vec<oneshot::Sender<Probe>>) {
        let EngineLoop { mailbox, executors, .. } = self;
        let metrics = &inner.metrics;
        for probe in probes {
            let state = Probe {
                is_quiet: mailbox.is_quiet(executors.held()),
                next_due: mailbox.next_due(),
                fired: mailbox.fired(),
                executing: mailbox.executing(),
            };
            let (ready, leased, unserved) = mailbox.tasks();
            metrics.tasks_ready.set(ready);
            metrics.tasks_leased.set(leased as u64);
            metrics.types_without_worker.set(unserved);
            let _ = probe.send(state);
        }
    }

    /// Others have this node's work now: it begins anew, as one that has just come.
    pub(super) fn restart(&mut self, nodes: Nodes) {
        let (replies, attempts) = self.mailbox.abandon(nodes);
        replies.into_iter().for_each(|(reply_to, reply)| drop(reply_to.send(reply)));
        attempts.into_iter().for_each(|(run, fence)| self.executors.abort(run, fence));
        self.paused_until = None;
    }

    fn is_paused(&mut self) -> bool {
        self.paused_until = self.paused_until.filter(|until| *until > Instant::now());
        self.paused_until.is_some()
    }

    /// How long there is nothing to do, as far as it knows.
    fn patience(&self, inner: &Inner) -> Duration {
        if let Some(until) = self.paused_until {
            return until.saturating_duration_since(Instant::now());
        }
        if self.mailbox.has_work() {
            return Duration::ZERO;
        }
        let now = inner.clock.now();
        self.mailbox.next_due().map_or(IDLE, |at| Duration::from_micros(at.since(now).0).min(IDLE))
    }
}

impl Inner {
    /// Sends a command and, if nobody is driving, sees to it right here: at most `rounds` of them, then the
    /// thread goes on. False when the loop has ended.
    pub(super) fn send_and_drive(&self, command: Command<ReplyChannel>, rounds: u32) -> bool {
        self.put_and_drive(|commands| commands.push(command), rounds)
    }

    /// The same for commands that are to be seen together. Many of them are work enough to be worth handing over.
    pub(super) fn send_many_and_drive(&self, more: Vec<Command<ReplyChannel>>) -> bool {
        match more.len() > FEW {
            true => self.inbox.send_all(more),
            false => self.put_and_drive(|commands| commands.extend(more), 1),
        }
    }

    /// Is hardly anything going on?
    pub(super) fn is_calm(&self) -> bool {
        self.metrics.runs_busy.get() <= IDLE_RUNS && self.inbox.len() == 0
    }

    fn put_and_drive(&self, add: impl FnOnce(&mut Vec<Command<ReplyChannel>>), rounds: u32) -> bool {
        if !self.is_calm() || !self.store.commits_in_place() {
            return self.inbox.announced(add);
        }
        if !self.inbox.put(add) {
            return false;
        }
        // Whoever drives looks at the inbox again after letting go, so the command is seen.
        let Ok(mut held) = self.engine_loop.try_lock() else { return true };
        let mut patience = IDLE;
        if let Some(engine_loop) = held.as_mut() {
            for _ in 0..rounds {
                if engine_loop.is_over || engine_loop.is_paused() {
                    break;
                }
                // Whoever has a request to see to does not stay for others.
                engine_loop.round(self, 0);
                if !engine_loop.mailbox.has_work() || self.inbox.len() > 0 {
                    break;
                }
            }
            patience = if engine_loop.is_over { Duration::ZERO } else { engine_loop.patience(self) };
        }
        drop(held);
        self.inbox.hand_over(patience);
        true
    }
}

/// Reads runs and payloads for the mailbox, runs together as far as they were asked for together. A thread of its own: a local store
/// then reads right here, without a hop to another thread for each of a hundred thousand sleepers.
fn load_runs(inner: &Inner, todo: &mpsc::Receiver<LoadRequests>) {
    while let Ok(LoadRequests { mut runs, mut payloads }) = todo.recv() {
        for more in todo.try_iter() {
            runs.extend(more.runs);
            payloads.extend(more.payloads);
        }
        for (org, run, numbers) in payloads {
            let result = wait_for(inner.store.payloads(org, run, &numbers));
            let result = result.map_err(|e| LoadFailure::Store(e.to_string()));
            if !inner.inbox.send(Command::Fetched { run, result }) {
                return;
            }
        }
        for runs in runs.chunks(ERRANDS_AT_ONCE) {
            inner.metrics.runs_loaded_total.add(runs.len() as u64);
            let loaded = wait_for(load_all(inner, runs));
            crash::point(Point::RunLoaded);
            let told = |(&(_, run), result): (&(OrgId, RunId), Result<Option<Resumed>, LoadFailure>)| Command::Loaded {
                run,
                result: result.map(|found| found.map(Box::new)),
            };
            if !inner.inbox.send_all(runs.iter().zip(loaded).map(told).collect()) {
                return;
            }
        }
    }
}

/// Reads lanes for the mailbox, which hears of those it asked for together at once: a worker that would take tasks of several is not
/// given one of the first that was read, though others come before it.
fn read_queues(inner: &Inner, todo: &mpsc::Receiver<Vec<QueueRead>>) {
    for queue_reads in todo {
        let look = |look: QueueRead| match look {
            QueueRead::Refill(queue, after) => {
                let rows = wait_for(inner.store.ready(&queue, after, task_queue::PAGE)).ok();
                Command::Refilled { queue, rows }
            }
            QueueRead::Keys(org, name, after) => {
                let keys = wait_for(inner.store.ready_keys(org, &name, after.as_deref(), task_queue::PAGE)).ok();
                Command::KeysRead { org, name, keys }
            }
            QueueRead::LimitSlots(org, name) => {
                let rows = wait_for(inner.store.limit_slots(org, &name)).ok();
                Command::LimitSlots { org, name, rows }
            }
        };
        if !inner.inbox.send_all(queue_reads.into_iter().map(look).collect()) {
            return;
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
async fn read_timers_forever(inner: Arc<Inner>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Waits as the thread does, while somebody else hands over; answers how long it slept.
    fn slept(before: impl FnOnce(&Inbox), patience: Duration) -> Duration {
        let inbox = Inbox::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| inbox.wait(LONG));
            while inbox.lock().wakes_at.is_none() {
                std::thread::yield_now();
            }
            before(&inbox);
            inbox.hand_over(patience);
            if !sleeper.is_finished() && patience >= LONG && inbox.len() == 0 {
                assert!(!inbox.lock().is_poked, "nothing is left for it, and nothing is due sooner");
                inbox.poke();
            }
            assert_eq!(sleeper.join().ok(), Some(false));
        });
        began.elapsed()
    }

    #[test]
    fn a_caller_that_drove_wakes_the_thread_only_when_it_would_oversleep() {
        assert!(slept(|_| {}, Duration::from_millis(1)) < LONG, "a timer is due before it would look up");
        assert!(slept(|_| {}, LONG * 2) < LONG);
        let left = |inbox: &Inbox| assert!(inbox.put(|commands| commands.push(Command::Drain)));
        assert!(slept(left, LONG * 2) < LONG, "a command that came meanwhile is not left lying");
    }
}
