//! The engine loop: take what arrived, advance, commit, release, and again.
//!
//! ```text
//!   inbox ──take──▶ Mailbox::turn ──▶ batch ──▶ commit ──▶ Mailbox::settle ──▶ replies, executors, cluster events
//! ```
//!
//! One thread owns the mailbox, so there are no locks around runs. The inbox is swapped out whole, so a busy loop takes
//! one lock a round. The thread commits small batches itself; a large one goes to the writer thread, and the loop decides
//! the next batch meanwhile (ADR 0024).

use super::cluster::Cluster;
use super::core::Core;
use super::outbox::OutboxQueue;
use super::reply_channel::ReplyChannel;
use super::run_queries::load_all;
use super::subscriptions::Subscribers;
use super::workflows::Workflows;
use crate::HORIZON;
use crate::error::Error;
use crate::execute::{Executors, HttpQueue};
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

/// Runs in a batch that takes long enough to write for the next one to be decided meanwhile. With fewer there would be two
/// small batches for one, which cost more than they gain.
const LARGE: usize = 256;
/// What arrives while a batch is written is taken together for as long.
const GATHERING: Duration = Duration::from_millis(1);
/// Runs that are decided while others are written, before that is waited for.
const DECIDED_MAX: usize = 8_192;

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
    controls: Vec<Control>,
    is_stopping: bool,
    is_closed: bool,
    is_poked: bool,
}

/// What is asked of the loop itself rather than of the mailbox.
enum Control {
    Probe(oneshot::Sender<Probe>),
    /// Other nodes have taken over this node's work: forget everything, and go on as the node of another epoch.
    Restart(Nodes, oneshot::Sender<()>),
}

impl Inbox {
    /// False when the loop has ended.
    pub fn send(&self, command: Command<ReplyChannel>) -> bool {
        self.put(|state| state.commands.push(command))
    }

    /// Commands that the mailbox is to see together.
    pub fn send_all(&self, more: Vec<Command<ReplyChannel>>) -> bool {
        self.put(|state| state.commands.extend(more))
    }

    fn put(&self, add: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        if state.is_closed {
            return false;
        }
        add(&mut state);
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

    /// Takes everything that is there.
    fn take(&self) -> (Vec<Command<ReplyChannel>>, Vec<Control>) {
        let mut state = self.lock();
        self.len.store(0, Ordering::Relaxed);
        (std::mem::take(&mut state.commands), std::mem::take(&mut state.controls))
    }

    /// Sleeps until something is there, at most `patience`; true when it is time to stop.
    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        let is_idle = |s: &mut State| s.commands.is_empty() && s.controls.is_empty() && !s.is_stopping && !s.is_poked;
        if !patience.is_zero() {
            state = self.arrived.wait_timeout_while(state, patience, is_idle).unwrap_or_else(|e| e.into_inner()).0;
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
}

impl Core {
    pub async fn probe(&self) -> Result<Probe, Error> {
        self.control(Control::Probe).await
    }

    /// Has the loop forget everything and go on as one of `nodes`; see [`Control::Restart`].
    pub async fn restart(&self, nodes: Nodes) -> Result<(), Error> {
        self.control(|done| Control::Restart(nodes, done)).await
    }

    async fn control<T>(&self, control: impl FnOnce(oneshot::Sender<T>) -> Control) -> Result<T, Error> {
        let has_stopped = || Error::Unavailable("the engine has stopped".into());
        let (done, reply) = oneshot::channel();
        match self.inbox.put(|state| state.controls.push(control(done))) {
            true => reply.await.map_err(|_| has_stopped()),
            false => Err(has_stopped()),
        }
    }

    /// Hands the mailbox the timers due within the horizon; answers how many.
    pub(super) async fn read_timers(&self) -> Result<usize, store::Error> {
        let timers = self.store.timers(self.now().after(HORIZON), TIMERS_PAGE).await?;
        let count = timers.len();
        if count > 0 {
            self.inbox.send(Command::Timers(timers));
        }
        Ok(count)
    }
}

/// What the loop works with, beside the mailbox.
#[derive(Clone)]
pub struct LoopServices {
    pub core: Arc<Core>,
    pub workflows: Arc<Workflows>,
    pub cluster: Arc<Cluster>,
    pub subscribers: Arc<Subscribers>,
    pub outbox: Arc<OutboxQueue>,
    pub http_queue: Arc<HttpQueue>,
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
pub fn spawn(services: LoopServices, mailbox: Mailbox<ReplyChannel>, executors: Executors) {
    let (load_requests, todo) = mpsc::channel();
    let (queue_reads, to_see) = mpsc::channel();
    let writer = Writer::start(&services.core);
    let tidied = Instant::now();
    let engine_loop = EngineLoop {
        mailbox,
        executors,
        load_requests,
        queue_reads,
        writer,
        controls: Vec::new(),
        tidied,
        paused_until: None,
        is_over: false,
    };
    let reader = services.clone();
    start_thread("reader", move || load_runs(&reader, &todo));
    let looker = services.core.clone();
    start_thread("lanes", move || read_queues(&looker, &to_see));
    tokio::runtime::Handle::current().spawn(read_timers_forever(services.core.clone()));
    let looping = move || {
        let guard = CloseOnExit(services.core.clone());
        engine_loop.run(&services);
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
struct CloseOnExit(Arc<Core>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.health.give_up("a bug stopped the engine's loop".into());
        }
        let mut state = self.0.inbox.lock();
        state.is_closed = true;
        state.commands.clear();
        state.controls.clear();
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
    /// Taken from the inbox, and to be seen to between two rounds.
    controls: Vec<Control>,
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
    fn start(core: &Arc<Core>) -> Writer {
        let (batches, todo) = mpsc::channel::<Batch>();
        let (done, outcomes) = mpsc::channel();
        let core = core.clone();
        start_thread("writer", move || {
            for batch in todo {
                let outcome = commit(&core, &batch);
                if done.send((batch, outcome)).is_err() {
                    return;
                }
                core.inbox.poke();
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
fn commit(core: &Core, batch: &Batch) -> CommitResult {
    core.metrics.turns_total.add(1);
    wait_for(core.store.commit(batch))
}

impl EngineLoop {
    /// Runs until the engine stops.
    fn run(mut self, services: &LoopServices) {
        loop {
            let is_paused = self.is_paused();
            if !is_paused {
                self.round(services);
            }
            if self.is_over {
                return;
            }
            let patience = self.patience(services);
            // What arrives does not end a pause.
            if is_paused {
                std::thread::sleep(patience);
            }
            if services.core.inbox.wait(if is_paused { Duration::ZERO } else { patience }) {
                return;
            }
        }
    }

    /// Takes what arrived, advances, commits and releases. The writer thread commits a large batch, and the loop decides
    /// what arrives meanwhile for the next one. The two have no run in common: a run whose record is on its way is left
    /// alone until that is settled.
    fn round(&mut self, services: &LoopServices) {
        let mut turn = Turn::default();
        self.decide(services, &mut turn);
        let mut written = None;
        // After a batch that could not be written nothing is tried: what it would meet is not known.
        let mut is_refused = false;
        // Controls are seen to when nothing is on its way, so they end the series.
        let is_free = |this: &Self| this.controls.is_empty();
        while !is_refused && (written.is_some() || is_free(self) && self.writer.begin(&mut turn)) {
            let mut before = written.take().unwrap_or_else(|| std::mem::take(&mut turn));
            while !self.writer.has_finished() && turn.batch.runs.len() < DECIDED_MAX {
                services.core.inbox.gather(GATHERING);
                if services.core.inbox.len() > 0 {
                    self.decide(services, &mut turn);
                }
            }
            let result = self.writer.finish(&mut before);
            let is_written = result.is_ok();
            // The writer need not wait until every caller is answered.
            if is_written && is_free(self) && self.writer.begin(&mut turn) {
                written = Some(std::mem::take(&mut turn));
            }
            self.release(services, before, result);
            is_refused = !is_written;
        }
        let result = match turn.batch.runs.is_empty() {
            true => Ok(Vec::new()),
            false if is_refused => Err(store::Error::Unavailable("the batch before it could not be written".into())),
            false => commit(&services.core, &turn.batch),
        };
        self.release(services, turn, result);
        self.see_to_controls(services);
    }

    /// Takes what arrived and advances.
    fn decide(&mut self, services: &LoopServices, turn: &mut Turn<ReplyChannel>) {
        let EngineLoop { mailbox, load_requests, queue_reads, .. } = self;
        if self.tidied.elapsed() > TIDY {
            self.tidied = Instant::now();
            mailbox.retain_watchers(|reply_to| !reply_to.is_closed());
        }
        let (commands, controls) = services.core.inbox.take();
        self.controls.extend(controls);
        mailbox.tick(services.core.clock.now());
        for command in commands {
            mailbox.accept(command);
        }
        mailbox.turn(services.core.clock.now(), turn);
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
    fn release(&mut self, services: &LoopServices, turn: Turn<ReplyChannel>, result: CommitResult) {
        let EngineLoop { mailbox, executors, .. } = self;
        if matches!(&result, Ok(verdicts) if !verdicts.is_empty()) {
            crash::point(Point::BeforeSettle);
        }
        let trouble = result.as_ref().err().cloned();
        if !turn.batch.runs.is_empty() {
            services.core.health.is_refused.store(trouble.is_some(), Ordering::Relaxed);
        }
        if let Ok(verdicts) = &result {
            services
                .core
                .metrics
                .conflicts_total
                .add(verdicts.iter().filter(|v| **v == store::Verdict::Conflict).count() as u64);
            services.subscribers.announce(&turn.batch, verdicts);
        }
        let released = mailbox.settle(turn, result);
        for (reply_to, reply) in released.replies {
            // Whoever asked may have hung up; that is no concern of the run, unless it was given something.
            if let Err(Reply::Claimed(handed)) = reply_to.send(reply) {
                let now = services.core.clock.now();
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
            services.core.store.broadcast(ClusterEvent::TaskReady(queue));
        }
        for notification in released.notifications {
            services.outbox.put(notification);
        }
        for (org, run) in released.moved {
            services.core.store.broadcast(store::ClusterEvent::RunAdvanced(org, run));
        }
        if released.touches_remote_group {
            services.core.store.broadcast(store::ClusterEvent::GroupsChanged);
        }
        for dispatch in released.dispatch {
            if let Some((dispatch, result)) = executors.execute(dispatch) {
                services.core.metrics.steps_finished_total.add(1);
                mailbox.accept(finished(&dispatch, result));
            }
        }
        let metrics = &services.core.metrics;
        metrics.runs_started_total.add(released.started);
        metrics.runs_ended_total.add(released.ended);
        metrics.steps_started_total.add(released.steps);
        metrics.runs_in_memory.set(mailbox.resident() as u64);
        metrics.runs_busy.set(mailbox.busy() as u64);
        metrics.tasks_leased_total.add(released.leased);
        metrics.http_steps_queued.set(services.http_queue.waiting() as u64);
        metrics.attempts_executing.set(mailbox.executing() as u64);
        if let Some(error) = trouble {
            metrics.store_errors_total.add(1);
            tracing::error!(%error, "a commit failed");
            match error {
                store::Error::Unavailable(_) => self.paused_until = Some(Instant::now() + RETRY_PAUSE),
                // Its runs are read again before anything is decided about them.
                store::Error::Unknown(_) if services.core.store.reads_are_durable() => {
                    self.paused_until = Some(Instant::now() + RETRY_PAUSE);
                }
                store::Error::Fenced => {
                    self.paused_until = Some(Instant::now() + RETRY_PAUSE);
                    services.cluster.renewal.notify_one();
                }
                fatal => {
                    self.is_over = true;
                    services.core.health.give_up(fatal.to_string());
                }
            }
        }
    }

    fn see_to_controls(&mut self, services: &LoopServices) {
        for control in std::mem::take(&mut self.controls) {
            match control {
                Control::Probe(reply_to) => drop(reply_to.send(self.probe(services))),
                Control::Restart(nodes, done) => {
                    self.restart(nodes);
                    let _ = done.send(());
                }
            }
        }
    }

    fn probe(&self, services: &LoopServices) -> Probe {
        let (mailbox, metrics) = (&self.mailbox, &services.core.metrics);
        let (ready, leased, unserved) = mailbox.tasks();
        metrics.tasks_ready.set(ready);
        metrics.tasks_leased.set(leased as u64);
        metrics.types_without_worker.set(unserved);
        Probe {
            is_quiet: mailbox.is_quiet(self.executors.held()),
            next_due: mailbox.next_due(),
            fired: mailbox.fired(),
            executing: mailbox.executing(),
        }
    }

    /// Other nodes have this node's work now: it starts again, as one that has just joined.
    fn restart(&mut self, nodes: Nodes) {
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
    fn patience(&self, services: &LoopServices) -> Duration {
        if let Some(until) = self.paused_until {
            return until.saturating_duration_since(Instant::now());
        }
        if self.mailbox.has_work() {
            return Duration::ZERO;
        }
        let now = services.core.clock.now();
        self.mailbox.next_due().map_or(IDLE, |at| Duration::from_micros(at.since(now).0).min(IDLE))
    }
}

/// Reads runs and payloads for the mailbox, runs together as far as they were asked for together. A thread of its own: a local store
/// then reads right here, without a hop to another thread for each of a hundred thousand sleepers.
fn load_runs(LoopServices { core, workflows, .. }: &LoopServices, todo: &mpsc::Receiver<LoadRequests>) {
    while let Ok(LoadRequests { mut runs, mut payloads }) = todo.recv() {
        for more in todo.try_iter() {
            runs.extend(more.runs);
            payloads.extend(more.payloads);
        }
        for (org, run, numbers) in payloads {
            let result = wait_for(core.store.payloads(org, run, &numbers));
            let result = result.map_err(|e| LoadFailure::Store(e.to_string()));
            if !core.inbox.send(Command::Fetched { run, result }) {
                return;
            }
        }
        for runs in runs.chunks(ERRANDS_AT_ONCE) {
            core.metrics.runs_loaded_total.add(runs.len() as u64);
            let loaded = wait_for(load_all(workflows, runs));
            crash::point(Point::RunLoaded);
            let told = |(&(_, run), result): (&(OrgId, RunId), Result<Option<Resumed>, LoadFailure>)| Command::Loaded {
                run,
                result: result.map(|found| found.map(Box::new)),
            };
            if !core.inbox.send_all(runs.iter().zip(loaded).map(told).collect()) {
                return;
            }
        }
    }
}

/// Reads lanes for the mailbox, which hears of those it asked for together at once: a worker that would take tasks of several is not
/// given one of the first that was read, though others come before it.
fn read_queues(core: &Core, todo: &mpsc::Receiver<Vec<QueueRead>>) {
    for queue_reads in todo {
        let look = |look: QueueRead| match look {
            QueueRead::Refill(queue, after) => {
                let rows = wait_for(core.store.ready_tasks(&queue, after, task_queue::PAGE)).ok();
                Command::Refilled { queue, rows }
            }
            QueueRead::Keys(org, name, after) => {
                let keys = wait_for(core.store.ready_keys(org, &name, after.as_deref(), task_queue::PAGE)).ok();
                Command::KeysRead { org, name, keys }
            }
            QueueRead::LimitSlots(org, name) => {
                let rows = wait_for(core.store.limit_slots(org, &name)).ok();
                Command::LimitSlots { org, name, rows }
            }
        };
        if !core.inbox.send_all(queue_reads.into_iter().map(look).collect()) {
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
async fn read_timers_forever(core: Arc<Core>) {
    loop {
        core.clock.follow_wall();
        let is_full = match core.read_timers().await {
            Ok(count) => count == TIMERS_PAGE,
            Err(error) => {
                tracing::warn!(%error, "the timers cannot be read");
                false
            }
        };
        if core.inbox.is_closed() {
            return;
        }
        let pause = if is_full { Duration::from_millis(20) } else { IDLE };
        let _ = tokio::time::timeout(pause, core.clock_moved.notified()).await;
    }
}
