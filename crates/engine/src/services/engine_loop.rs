//! The engine loop: take the inbox, advance the runs, commit the batch, release what the commit allows, and repeat.
//!
//! ```text
//!   inbox ──take──▶ Driver::decide ──▶ batch ──▶ commit ──▶ Driver::settle ──▶ replies, executors, cluster events
//! ```
//!
//! The [`driver`](crate::driver) says what comes next; this module has the threads, the clock and the store. One thread
//! owns the driver and its mailbox, so there are no locks around runs. The inbox is swapped out whole, so a busy loop takes
//! one lock a round. The thread commits small batches itself; a large one goes to the writer thread, and the loop
//! decides the next batch meanwhile (ADR 0024).

use super::children::{self, ChildQueue};
use super::cluster::Cluster;
use super::core::Core;
use super::deferred_inputs::DeferralQueue;
use super::outbox::OutboxQueue;
use super::reply_channel::ReplyChannel;
use super::run_queries::load_all;
use super::subscriptions::Subscribers;
use super::workflows::Workflows;
use crate::driver::{self, Afterwards, CommitResult, Driver, QueueRead, RETRY_PAUSE, Reads, SettledCounts, Shell};
use crate::error::Error;
use crate::execute::{Executors, HttpQueue};
use crate::mailbox::{Command, DeferredInput, Dispatch, LoadFailure, Mailbox, Reply};
use crate::nodes::Nodes;
use crate::task_queue;
use kernel::advance::TaskResult;
use kernel::{OrgId, RunId, Timestamp};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use store::crash::{self, Point};
use store::{Batch, ClusterEvent, ConsumedRow, InboxKey, InboxRow};
use tokio::sync::oneshot;

/// How often an idle loop wakes up.
const IDLE: Duration = Duration::from_millis(1_000);
/// How often watchers whose caller hung up are dropped.
const WATCHERS_SWEPT_EVERY: Duration = Duration::from_secs(5);
/// Runs loaded before they are sent to the mailbox.
const LOADS_PAGE: usize = 64;

/// A batch with this many runs goes to the writer thread, and the loop decides the next batch meanwhile. With fewer
/// runs, two small batches would cost more than one.
const LARGE: usize = 256;
/// While a batch is written, commands that arrive within this time are taken together.
const GATHERING: Duration = Duration::from_millis(1);
/// Runs decided while a batch is written, before the loop waits for the writer.
const DECIDED_MAX: usize = 8_192;

/// The state of the loop, for health checks and for tests that wait until it is idle.
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

/// A request to the loop itself rather than to the mailbox.
enum Control {
    Probe(oneshot::Sender<Probe>),
    /// Other nodes have taken over this node's runs: drop all memory and continue under a new epoch.
    Restart(Nodes, oneshot::Sender<()>),
}

impl Inbox {
    /// False when the loop has ended.
    pub fn send(&self, command: Command<ReplyChannel>) -> bool {
        self.put(|state| state.commands.push(command))
    }

    /// Sends commands that the mailbox must see in the same turn.
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

    pub fn backlog(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.arrived.notify_one();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Wakes the loop, so that it reads the clock again.
    pub fn poke(&self) {
        self.lock().is_poked = true;
        self.arrived.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn take(&self) -> (Vec<Command<ReplyChannel>>, Vec<Control>) {
        let mut state = self.lock();
        self.len.store(0, Ordering::Relaxed);
        (std::mem::take(&mut state.commands), std::mem::take(&mut state.controls))
    }

    /// Sleeps until something arrives, at most `patience`; true when the loop has to stop.
    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        let is_idle = |s: &mut State| s.commands.is_empty() && s.controls.is_empty() && !s.is_stopping && !s.is_poked;
        if !patience.is_zero() {
            state = self.arrived.wait_timeout_while(state, patience, is_idle).unwrap_or_else(|e| e.into_inner()).0;
        }
        state.is_poked = false;
        state.is_stopping
    }

    /// Lets commands accumulate for `time`, or until [`poke`](Self::poke).
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

    /// Makes the loop drop its memory and continue as one of `nodes`; see [`Control::Restart`].
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
}

/// The services that the loop uses.
#[derive(Clone)]
pub struct LoopServices {
    pub core: Arc<Core>,
    pub workflows: Arc<Workflows>,
    pub cluster: Arc<Cluster>,
    pub subscribers: Arc<Subscribers>,
    pub outbox: Arc<OutboxQueue>,
    pub deferrals: Arc<DeferralQueue>,
    pub children: Arc<ChildQueue>,
    pub http_queue: Arc<HttpQueue>,
}

/// Runs and payloads that a turn needs from the store. One message for all of them: a reader woken by the first of a
/// thousand runs would load that one alone.
struct LoadRequests {
    runs: Vec<(OrgId, RunId)>,
    payloads: Vec<(OrgId, RunId, Vec<u32>)>,
}

/// Starts the loop and its readers: one thread for runs and payloads, one for key queues, so that a claim does not
/// wait behind many loads, and an async task for due timers.
pub fn spawn(services: LoopServices, mailbox: Mailbox<ReplyChannel>, executors: Executors) {
    let (load_requests, todo) = mpsc::channel();
    let (queue_reads, queue_todo) = mpsc::channel();
    let writer = WriterThread::start(&services.core);
    let watchers_swept = Instant::now();
    let engine_loop = EngineLoop {
        driver: Driver::new(mailbox, services.core.store.reads_are_durable()),
        executors,
        load_requests,
        queue_reads,
        writer,
        controls: Vec::new(),
        watchers_swept,
        paused_until: None,
        is_over: false,
    };
    let reader = services.clone();
    start_thread("reader", move || load_runs(&reader, &todo));
    let queue_reader = services.core.clone();
    start_thread("queues", move || read_queues(&queue_reader, &queue_todo));
    tokio::runtime::Handle::current().spawn(services.cluster.clone().read_timers_forever());
    let looping = move || {
        let guard = CloseOnExit(services.core.clone());
        engine_loop.run(&services);
        drop(guard);
    };
    start_thread("mailbox", looping);
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(work) {
        // The engine cannot work without it: requests are not answered, and the readiness check fails.
        tracing::error!(%error, name, "a thread of the engine cannot be started");
    }
}

/// Closes the inbox however the loop ends, also by a panic, so that no caller waits forever.
struct CloseOnExit(Arc<Core>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.health.give_up("a bug stopped the engine loop".into());
        }
        let mut state = self.0.inbox.lock();
        state.is_closed = true;
        state.commands.clear();
        state.controls.clear();
    }
}

/// The driver, and the threads that read and write for it.
pub struct EngineLoop {
    driver: Driver<ReplyChannel>,
    executors: Executors,
    load_requests: mpsc::Sender<LoadRequests>,
    /// Reads for the task queue, those of one turn in one message.
    queue_reads: mpsc::Sender<Vec<QueueRead>>,
    writer: WriterThread,
    /// Taken from the inbox, and handled between two rounds.
    controls: Vec<Control>,
    watchers_swept: Instant,
    /// The store refused a commit: the next attempt is not before this.
    paused_until: Option<Instant>,
    /// A fatal error: the loop ends.
    is_over: bool,
}

/// A thread that writes large batches.
struct WriterThread {
    batches: mpsc::Sender<Batch>,
    outcomes: mpsc::Receiver<(Batch, CommitResult)>,
    finished: Option<(Batch, CommitResult)>,
}

impl WriterThread {
    fn start(core: &Arc<Core>) -> WriterThread {
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
        WriterThread { batches, outcomes, finished: None }
    }

    /// Starts writing a batch; if the thread is gone, writes it here.
    fn begin(&mut self, batch: Batch, core: &Core) {
        if let Err(mpsc::SendError(batch)) = self.batches.send(batch) {
            let outcome = commit(core, &batch);
            self.finished = Some((batch, outcome));
        }
    }

    /// Is the batch written, or has the thread ended?
    fn has_finished(&mut self) -> bool {
        match self.outcomes.try_recv() {
            Ok(finished) => self.finished = Some(finished),
            Err(mpsc::TryRecvError::Empty) => return self.finished.is_some(),
            Err(mpsc::TryRecvError::Disconnected) => {}
        }
        true
    }

    /// Waits for the batch that was begun.
    fn finish(&mut self) -> (Batch, CommitResult) {
        let finished = self.finished.take().or_else(|| self.outcomes.recv().ok());
        // The outcome is unknown, so the engine stops.
        let gone = || (Batch::default(), Err(store::Error::Refused("a bug stopped the writer thread".into())));
        finished.unwrap_or_else(gone)
    }
}

/// Makes a batch durable, on this thread.
fn commit(core: &Core, batch: &Batch) -> CommitResult {
    core.metrics.turns_total.add(1);
    wait_for(core.store.commit(batch))
}

/// Carries out what the driver asks for.
struct LoopShell<'a> {
    services: &'a LoopServices,
    executors: &'a mut Executors,
}

impl Shell<ReplyChannel> for LoopShell<'_> {
    fn batch_written(&mut self, batch: &Batch, result: &CommitResult) {
        let LoopServices { core, subscribers, .. } = self.services;
        core.health.is_refused.store(result.is_err(), Ordering::Relaxed);
        let Ok(verdicts) = result else { return };
        crash::point(Point::BeforeSettle);
        let conflicts = verdicts.iter().filter(|v| **v == store::WriteVerdict::Conflict);
        core.metrics.conflicts_total.add(conflicts.count() as u64);
        subscribers.announce(batch, verdicts);
    }

    fn reply(&mut self, reply_to: ReplyChannel, reply: Reply) -> Result<(), Reply> {
        reply_to.send(reply)
    }

    fn abort(&mut self, run: RunId, fence: u64) {
        self.executors.abort(run, fence);
    }

    fn broadcast(&mut self, event: ClusterEvent) {
        self.services.core.store.broadcast(event);
    }

    fn notify(&mut self, org: OrgId, run: RunId, number: u64) {
        self.services.outbox.put((org, run, number));
    }

    fn defer(&mut self, inputs: Vec<DeferredInput<ReplyChannel>>) {
        self.services.deferrals.write(inputs);
    }

    fn answer_inbox(&mut self, answers: Vec<ConsumedRow>) {
        self.services.deferrals.answer(answers);
    }

    fn start_children(&mut self, rows: Vec<InboxRow>) {
        crash::point(Point::BeforeChild);
        rows.into_iter().for_each(|row| self.ask_for_child(children::ChildWork::Start(row)));
    }

    fn close_children(&mut self, keys: Vec<InboxKey>) {
        crash::point(Point::BeforeClosing);
        keys.into_iter().for_each(|key| self.ask_for_child(children::ChildWork::Close(key)));
    }

    fn read_inbox(&mut self) {
        self.services.cluster.inbox_written.notify_one();
    }

    fn execute(&mut self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        crash::point(Point::BeforeDispatch);
        let finished = self.executors.execute(dispatch)?;
        self.services.core.metrics.steps_finished_total.add(1);
        Some(finished)
    }

    fn count(&mut self, counts: &SettledCounts) {
        let metrics = &self.services.core.metrics;
        metrics.runs_started_total.add(counts.started);
        metrics.runs_ended_total.add(counts.ended);
        metrics.steps_started_total.add(counts.steps);
        metrics.tasks_leased_total.add(counts.leased);
    }
}

impl LoopShell<'_> {
    fn ask_for_child(&self, request: children::ChildWork) {
        if !self.services.children.put(request) {
            self.services.cluster.children_wanted.notify_one();
        }
    }
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
            // A command that arrives does not end a pause.
            if is_paused {
                std::thread::sleep(patience);
            }
            if services.core.inbox.wait(if is_paused { Duration::ZERO } else { patience }) {
                return;
            }
        }
    }

    /// Takes the inbox, advances, commits and releases. While the writer thread commits a large batch, the loop decides
    /// the next one from the commands that arrive meanwhile.
    fn round(&mut self, services: &LoopServices) {
        self.decide(services);
        let mut is_writing = self.begin_large(services);
        while is_writing {
            while !self.writer.has_finished() && self.driver.decided() < DECIDED_MAX {
                services.core.inbox.gather(GATHERING);
                if services.core.inbox.backlog() > 0 {
                    self.decide(services);
                }
            }
            let (batch, result) = self.writer.finish();
            self.driver.written(batch, result);
            // Start the next batch before the callers of this one are answered.
            is_writing = self.begin_large(services);
            self.settle(services);
        }
        if let Some(batch) = self.driver.begin() {
            let result = commit(&services.core, &batch);
            self.driver.written(batch, result);
        }
        self.settle(services);
        self.handle_controls(services);
    }

    /// Gives a batch to the writer thread if that pays: the batch is large, and the next inputs come from outside.
    /// Steps that this process executes are better decided together, after the commit. Controls are handled when no
    /// batch is being written, so a control ends the series.
    fn begin_large(&mut self, services: &LoopServices) -> bool {
        if !self.controls.is_empty() || self.driver.decided() < LARGE || self.driver.starts_local_steps() {
            return false;
        }
        let batch = self.driver.begin();
        let has_begun = batch.is_some();
        batch.into_iter().for_each(|batch| self.writer.begin(batch, &services.core));
        has_begun
    }

    /// Takes the inbox, advances the runs, and sends the reads they need to the reader threads.
    fn decide(&mut self, services: &LoopServices) {
        let EngineLoop { driver, load_requests, queue_reads, .. } = self;
        if self.watchers_swept.elapsed() > WATCHERS_SWEPT_EVERY {
            self.watchers_swept = Instant::now();
            driver.retain_watchers(|reply_to| !reply_to.is_closed());
        }
        let (commands, controls) = services.core.inbox.take();
        self.controls.extend(controls);
        let Reads { runs, payloads, queues } = driver.decide(commands, services.core.clock.now());
        if !runs.is_empty() || !payloads.is_empty() {
            let _ = load_requests.send(LoadRequests { runs, payloads });
        }
        if !queues.is_empty() {
            let _ = queue_reads.send(queues);
        }
    }

    /// Settles what was written: carries out the effects of what is durable now, and rolls back what is not.
    fn settle(&mut self, services: &LoopServices) {
        let EngineLoop { driver, executors, .. } = self;
        let mut shell = LoopShell { services, executors };
        while let Some(next) = driver.settle(services.core.clock.now(), &mut shell) {
            let error = match &next {
                Afterwards::Continue => continue,
                Afterwards::Pause(error) | Afterwards::Fenced(error) | Afterwards::Stop(error) => error,
            };
            services.core.metrics.store_errors_total.add(1);
            tracing::error!(%error, "a commit failed");
            self.paused_until = Some(Instant::now() + Duration::from_micros(RETRY_PAUSE.0));
            match next {
                Afterwards::Stop(fatal) => {
                    self.is_over = true;
                    services.core.health.give_up(fatal.to_string());
                }
                Afterwards::Fenced(_) => services.cluster.renewal.notify_one(),
                Afterwards::Pause(_) | Afterwards::Continue => {}
            }
        }
        let (metrics, mailbox) = (&services.core.metrics, driver.mailbox());
        metrics.runs_in_memory.set(mailbox.resident() as u64);
        metrics.runs_busy.set(mailbox.busy() as u64);
        metrics.http_steps_queued.set(services.http_queue.waiting() as u64);
        metrics.attempts_executing.set(mailbox.executing() as u64);
    }

    fn handle_controls(&mut self, services: &LoopServices) {
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
        let (mailbox, metrics) = (self.driver.mailbox(), &services.core.metrics);
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

    /// Other nodes own this node's runs now: it continues as a node that has just joined.
    fn restart(&mut self, nodes: Nodes) {
        let (replies, attempts) = self.driver.abandon(nodes);
        replies.into_iter().for_each(|(reply_to, reply)| drop(reply_to.send(reply)));
        attempts.into_iter().for_each(|(run, fence)| self.executors.abort(run, fence));
        self.paused_until = None;
    }

    fn is_paused(&mut self) -> bool {
        self.paused_until = self.paused_until.filter(|until| *until > Instant::now());
        self.paused_until.is_some()
    }

    /// How long the loop may sleep if nothing arrives.
    fn patience(&self, services: &LoopServices) -> Duration {
        if let Some(until) = self.paused_until {
            return until.saturating_duration_since(Instant::now());
        }
        let now = services.core.clock.now();
        self.driver.wake_at(now).map_or(IDLE, |at| Duration::from_micros(at.since(now).0).min(IDLE))
    }
}

/// Reads runs and payloads for the mailbox, all pending requests together. It has a thread of its own, so that a local
/// store reads right here, without a thread switch for each of a hundred thousand sleeping runs.
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
        for runs in runs.chunks(LOADS_PAGE) {
            core.metrics.runs_loaded_total.add(runs.len() as u64);
            let loaded = wait_for(load_all(workflows, runs));
            crash::point(Point::RunLoaded);
            let commands = runs.iter().zip(loaded).map(|((_, run), result)| driver::loaded(*run, result));
            if !core.inbox.send_all(commands.collect()) {
                return;
            }
        }
    }
}

/// Reads key queues and limit slots for the task queue. The results of one request arrive together, see
/// [`Reads::queues`].
fn read_queues(core: &Core, todo: &mpsc::Receiver<Vec<QueueRead>>) {
    for queue_reads in todo {
        let read = |queue_read: QueueRead| wait_for(queue_read.carry_out(&*core.store, task_queue::PAGE));
        if !core.inbox.send_all(queue_reads.into_iter().map(read).collect()) {
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
