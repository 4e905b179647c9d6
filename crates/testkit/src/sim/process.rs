//! One server process: the engine's own driver, called by events so that any other event can happen between two of its
//! steps.
//!
//! ```text
//!   Turn ──▶ Commit ──▶ Settle ──▶ Turn …       Read ─▶ CommandArrived       PollTimers ─▶ PollTimers …
//!        └──▶ DecideAhead ─▶ Commit ──▶ Settle …
//! ```
//!
//! The [`Driver`] decides what is written and what leaves, and when. This module has what the engine loop has around
//! it: the commits, the reads, the timers, and an [`EngineClock`] from which all time comes.

use super::client_log::{ClientRequest, Ticket};
use super::clock::EngineClock;
use super::concurrency_model::BatchWriter;
use super::fault_plan::FaultPlan;
use super::inbox::InboxEvent;
use super::schedules::SimulatedSchedules;
use super::shared_store::Membership;
use super::upstream;
use super::violation::{CheckResult, ViolationKind};
use super::world::{SimEvent, World, completed, ready};
use engine::catalog::WorkflowCache;
use engine::clock::Correction;
use engine::driver::{self, Afterwards, CommitResult, Driver, QueueRead, RETRY_PAUSE, Reads, Shell};
use engine::mailbox::{Command, DeferredInput, Dispatch, Mailbox};
use engine::nodes::{Nodes, own_timers};
use engine::task_queue::Sizes;
use engine::{Reply, TIMER_READ_AHEAD};
use kernel::advance::TaskResult;
use kernel::{Answer, Input, OrgId, RunId, Span, Timestamp, WorkflowId};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::prelude::*;
use store::{Batch, ClusterEvent, ConsumedRow, InboxKey, InboxRow, WriteVerdict};

/// As in the engine: how often timers are read.
const POLL: Span = Span::from_millis(1_000);
/// The poll interval when no timer is near. It keeps simulations short.
const POLL_IDLE: Span = Span::from_secs(30);
const TIMERS_PAGE: usize = 10_000;

pub enum ProcessEvent {
    Turn,
    /// Decides the next batch while one is in flight.
    DecideAhead,
    Commit,
    Settle,
    /// Reads a run, or some of its payloads.
    Read {
        run: RunId,
        payloads: Option<Vec<u32>>,
    },
    /// Carries out the reads for the task queue of one turn.
    ReadQueues(Vec<QueueRead>),
    CommandArrived(Command<Ticket>),
    /// An executor reports a result.
    ExecutorReport {
        run: RunId,
        step: u32,
        fence: u64,
        result: TaskResult,
    },
    PollTimers,
    /// Renews the node's lease on a shared store; a regular renewal is followed by another.
    Renew {
        is_regular: bool,
    },
    /// Reads what is due because of changed nodes or lost events.
    CatchUp,
    /// Another node says that something has changed.
    Heard(ClusterEvent),
    /// Reads which types have ready tasks.
    ReadReadyTypes,
    /// The outbox scans the stored notifications.
    ScanOutbox,
    /// The outbox sends one notification by starting a run.
    Notify {
        run: RunId,
        number: u64,
    },
    /// Looks for schedules that are due.
    PollSchedules,
    /// Carries out a row of the inbox.
    Inbox(InboxEvent),
    Resume,
}

pub struct Process {
    pub host: usize,
    pub epoch: u64,
    /// The nodes that it knows of.
    pub nodes: Nodes,
    pub membership: Membership,
    clock: EngineClock,
    /// The latest engine time it saw, initially the time of the newest record (I39).
    latest_time: Timestamp,
    state: State,
    /// `None` while it settles a batch.
    pub driver: Option<Box<Driver<Ticket>>>,
    /// Commands that arrived since the last turn.
    inbox: Vec<Command<Ticket>>,
    /// The batch that was begun and is not settled.
    in_flight: Option<PendingBatch>,
    /// What is known about the batch that is begun next.
    decided: BatchOrigin,
    /// When the next turn is due. Other turns in the heap are obsolete.
    next_turn_at: Option<Timestamp>,
    /// Attempts that were cancelled: run and fence.
    pub aborted: BTreeSet<(RunId, u64)>,
    /// When it started, or resumed after a pause.
    pub up_since: Timestamp,
    /// It starts nothing any more and stops soon.
    pub is_draining: bool,
    /// Workflows that it knows are paused.
    pub paused: BTreeSet<WorkflowId>,
    pub scheduler: SimulatedSchedules,
    /// Workflows and versions that it has read.
    pub cache: WorkflowCache,
    /// The revision of the catalog that the cache belongs to, on a shared store.
    pub cache_revision: u64,
    /// Another process has written since this one started.
    pub is_outdated: bool,
    /// It continued after a commit with unknown outcome.
    pub has_unknown_commit: bool,
}

enum State {
    Up,
    /// Events that became due during the pause.
    Paused(Vec<ProcessEvent>),
    Dead,
}

/// A batch between its beginning and its settling.
struct PendingBatch {
    batch: Batch,
    decided: BatchOrigin,
    result: Option<CommitResult>,
}

/// How a batch was decided.
#[derive(Clone, Copy, Default)]
struct BatchOrigin {
    /// The process was draining all the time.
    is_draining: bool,
    /// Another batch was in flight.
    is_ahead: bool,
}

impl Process {
    pub fn new(
        host: usize,
        nodes: Nodes,
        clock: EngineClock,
        high_water: Option<Timestamp>,
        driver: Option<Driver<Ticket>>,
    ) -> Process {
        Process {
            host,
            epoch: nodes.own(),
            nodes,
            membership: Membership::default(),
            clock,
            latest_time: high_water.unwrap_or_default(),
            state: State::Up,
            driver: driver.map(Box::new),
            inbox: Vec::new(),
            in_flight: None,
            decided: BatchOrigin::default(),
            next_turn_at: None,
            aborted: BTreeSet::new(),
            up_since: Timestamp::default(),
            is_draining: false,
            paused: BTreeSet::new(),
            scheduler: SimulatedSchedules::default(),
            cache: WorkflowCache::default(),
            cache_revision: 0,
            is_outdated: false,
            has_unknown_commit: false,
        }
    }

    pub fn is_alive(&self) -> bool {
        !matches!(self.state, State::Dead)
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Is a batch decided and not settled?
    pub fn has_batch(&self) -> bool {
        self.in_flight.is_some()
    }

    pub fn pause(&mut self) {
        if matches!(self.state, State::Up) {
            self.state = State::Paused(Vec::new());
        }
    }

    /// Drops all of its memory. Returns false if it was dead already.
    pub fn kill(&mut self) -> bool {
        let was_alive = self.is_alive();
        *self = Process {
            state: State::Dead,
            ..Process::new(self.host, self.nodes.clone(), self.clock.clone(), None, None)
        };
        was_alive
    }
}

/// The driver of a process that has just started.
pub fn new_driver(epoch: u64, sizes: Sizes, faults: &FaultPlan) -> Driver<Ticket> {
    let mailbox = mailbox(epoch, sizes);
    let mailbox = if faults.is_shared { mailbox.sharing() } else { mailbox };
    Driver::new(mailbox, !faults.stops_on_unknown)
}

fn mailbox(epoch: u64, sizes: Sizes) -> Mailbox<Ticket> {
    // The last part of a callback URL is its token: no two steps may have the same.
    let wait_url = |run, step: &str| format!("http://engine/wh/{run}.{}", step.replace('/', "."));
    Mailbox::sized(epoch, Arc::new(wait_url), sizes)
        .holding(Arc::new(|_, run, next, now| upstream::held_back(run, next, now)))
}

impl World {
    pub fn handle_process_event(&mut self, process: usize, event: ProcessEvent) -> CheckResult {
        match (&mut self.processes[process].state, event) {
            (State::Dead, _) => {}
            (State::Paused(_), ProcessEvent::Resume) => self.resume(process),
            (State::Up, ProcessEvent::Resume) => {}
            (State::Paused(deferred), event) => deferred.push(event),
            (State::Up, ProcessEvent::Turn) => self.turn(process)?,
            (State::Up, ProcessEvent::DecideAhead) => self.decide_ahead(process)?,
            (State::Up, ProcessEvent::Commit) => self.commit(process)?,
            (State::Up, ProcessEvent::Settle) => self.settle(process)?,
            (State::Up, ProcessEvent::Read { run, payloads }) => self.read_from_store(process, run, payloads),
            (State::Up, ProcessEvent::ReadQueues(reads)) => self.read_queues(process, reads),
            (State::Up, ProcessEvent::CommandArrived(command)) => self.deliver(process, command),
            (State::Up, ProcessEvent::ExecutorReport { run, step, fence, result }) => {
                // An aborted attempt either reports nothing or reports a late result.
                if self.processes[process].aborted.contains(&(run, fence)) && self.timing_random.coin() {
                    return Ok(());
                }
                let input = Input::Finished { step, fence, result, digest: 0 };
                self.deliver(process, Command::Give { org: OrgId::DEFAULT, run, input, reply_to: None });
            }
            (State::Up, ProcessEvent::PollTimers) => self.poll_timers(process),
            (State::Up, ProcessEvent::Renew { is_regular }) => self.renew(process, is_regular)?,
            (State::Up, ProcessEvent::CatchUp) => self.carry_out_catchup(process),
            (State::Up, ProcessEvent::Heard(event)) => self.hear(process, event)?,
            (State::Up, ProcessEvent::ReadReadyTypes) => self.read_ready_types(process),
            (State::Up, ProcessEvent::ScanOutbox) => self.scan_outbox(process),
            (State::Up, ProcessEvent::Notify { run, number }) => self.notify(process, run, number)?,
            (State::Up, ProcessEvent::PollSchedules) => self.poll_schedules(process)?,
            (State::Up, ProcessEvent::Inbox(event)) => self.handle_inbox_event(process, event)?,
        }
        Ok(())
    }

    /// Puts a command into the inbox of the process.
    pub fn deliver(&mut self, process: usize, command: Command<Ticket>) {
        self.processes[process].inbox.push(command);
        self.wake(process, self.now);
    }

    /// Schedules an event of the process a few milliseconds from now.
    pub fn push_soon(&mut self, process: usize, event: ProcessEvent) {
        let delay = self.timing_random.log_millis(1, 20);
        self.push(delay, SimEvent::Process(process, event));
    }

    fn resume(&mut self, process: usize) {
        self.note(format!("process {process} resumes"));
        let state = std::mem::replace(&mut self.processes[process].state, State::Up);
        if let State::Paused(deferred) = state {
            for event in deferred {
                self.push(Span(0), SimEvent::Process(process, event));
            }
        }
        let this = &mut self.processes[process];
        (this.next_turn_at, this.up_since) = (None, self.now);
        self.follow_wall_clock(process);
        self.wake(process, self.now);
    }

    /// The engine time of the process now.
    pub fn engine_time(&self, process: usize) -> Timestamp {
        let Process { host, clock, .. } = &self.processes[process];
        clock.read(&self.hosts[*host].wall, self.now)
    }

    /// The true time at which the engine time of the process is `due`.
    pub fn true_time_of(&self, process: usize, due: Timestamp) -> Timestamp {
        let Process { host, clock, .. } = &self.processes[process];
        clock.reached_at(&self.hosts[*host].wall, due, self.now)
    }

    /// Corrects the engine clock. After a step or a change of speed, timers may be due.
    pub fn follow_wall_clock(&mut self, process: usize) {
        let Process { host, clock, .. } = &mut self.processes[process];
        let correction = clock.follow_wall(&self.hosts[*host].wall, self.now);
        if correction == Correction::None {
            return;
        }
        self.note(format!("process {process} follows its wall clock: {correction:?}"));
        self.trace.mark("an engine clock jumped forward", correction == Correction::Stepped);
        self.trace.mark("an engine clock slowed down", matches!(correction, Correction::SlowedDown(_)));
        self.wake(process, self.now);
    }

    /// Schedules a turn soon after `at`.
    fn wake(&mut self, process: usize, at: Timestamp) {
        let at = at.max(self.now).after(self.timing_random.millis(0, 2));
        let this = &mut self.processes[process];
        if this.in_flight.is_none() && this.next_turn_at.is_none_or(|planned| at < planned) {
            this.next_turn_at = Some(at);
            self.push_at(at, SimEvent::Process(process, ProcessEvent::Turn));
        }
    }

    fn turn(&mut self, process: usize) -> CheckResult {
        let this = &self.processes[process];
        if this.in_flight.is_some() || this.next_turn_at.is_none_or(|at| at > self.now) {
            return Ok(());
        }
        self.decide(process)?;
        if !self.begin(process) {
            return self.settle_all(process);
        }
        self.push_soon(process, ProcessEvent::Commit);
        if self.timing_random.coin() {
            self.push_soon(process, ProcessEvent::DecideAhead);
        }
        Ok(())
    }

    /// Decides the next turn although the previous one is not settled. Runs of the previous turn have to
    /// wait; other runs can advance.
    fn decide_ahead(&mut self, process: usize) -> CheckResult {
        let this = &self.processes[process];
        let has_work = this.driver.as_ref().is_some_and(|driver| driver.mailbox().has_work());
        if this.in_flight.is_none() || this.inbox.is_empty() && !has_work {
            return Ok(());
        }
        self.decide(process)?;
        self.trace.mark("a batch was decided while another was in flight", true);
        if self.timing_random.coin() {
            self.push_soon(process, ProcessEvent::DecideAhead);
        }
        Ok(())
    }

    /// Accepts the inbox and advances runs.
    fn decide(&mut self, process: usize) -> CheckResult {
        let now = self.engine_time(process);
        let this = &mut self.processes[process];
        ViolationKind::Early.unless(now >= this.latest_time, || {
            format!("engine time ran backwards in process {process}, from {:?} to {now:?}", this.latest_time)
        })?;
        (this.next_turn_at, this.latest_time) = (None, now);
        let commands = std::mem::take(&mut this.inbox);
        commands.iter().for_each(|command| self.command_accepted(process, command, now));
        let this = &mut self.processes[process];
        let Some(driver) = this.driver.as_mut() else { return Ok(()) };
        let is_first = driver.decided() == 0;
        let Reads { runs, payloads, queues } = driver.decide(commands, now);
        this.decided = BatchOrigin {
            is_draining: this.is_draining && (is_first || this.decided.is_draining),
            is_ahead: this.in_flight.is_some(),
        };
        if !queues.is_empty() {
            let delay = Span(self.fault_random.between(0, self.faults.read_delay.0));
            self.push(delay, SimEvent::Process(process, ProcessEvent::ReadQueues(queues)));
        }
        for (_, run) in runs {
            self.checker.leases.run_wanted(process, run);
            self.schedule_read(process, run, None);
        }
        for (_, run, numbers) in payloads {
            self.schedule_read(process, run, Some(numbers));
        }
        Ok(())
    }

    /// Begins the next batch, if there is one.
    fn begin(&mut self, process: usize) -> bool {
        let this = &mut self.processes[process];
        let Some(batch) = this.driver.as_mut().and_then(|driver| driver.begin()) else { return false };
        this.in_flight = Some(PendingBatch { batch, decided: this.decided, result: None });
        true
    }

    fn schedule_read(&mut self, process: usize, run: RunId, payloads: Option<Vec<u32>>) {
        let delay = Span(self.fault_random.between(0, self.faults.read_delay.0));
        self.push(delay, SimEvent::Process(process, ProcessEvent::Read { run, payloads }));
    }

    /// Commits the batch in flight, possibly with a fault, and then checks all invariants on the stored data.
    fn commit(&mut self, process: usize) -> CheckResult {
        let host = self.processes[process].host;
        let crashes = !self.is_liveness_phase && self.fault_random.chance(self.faults.crash_at_commit);
        if crashes && self.fault_random.coin() {
            self.crash(host);
            return Ok(());
        }
        let Some(mut in_flight) = self.processes[process].in_flight.take() else { return Ok(()) };
        let result = self.commit_with_faults(&in_flight.batch);
        self.note(format!("process {process} commits {} runs: {result:?}", in_flight.batch.runs.len()));
        let is_committed = matches!(&result, Ok(verdicts) if verdicts.contains(&WriteVerdict::Committed));
        self.trace.mark("a replaced process committed", is_committed && !self.is_latest_process(process));
        self.trace.mark("a process crashed between commit and release", crashes);
        if is_committed || matches!(result, Err(store::Error::Unknown(_))) {
            let others = self.processes.iter_mut().enumerate().filter(|(other, p)| *other != process && p.is_alive());
            others.for_each(|(_, other)| other.is_outdated = true);
        }
        let Process { is_outdated, has_unknown_commit, .. } = self.processes[process];
        let writer = BatchWriter {
            is_only_writer: !is_outdated && !self.faults.is_shared,
            knows_all_commits: !has_unknown_commit,
            is_draining: in_flight.decided.is_draining,
            is_decided_ahead: in_flight.decided.is_ahead,
            has_own_clock: !self.faults.has_one_clock(),
        };
        self.check_batch(&in_flight.batch, (Some(process), writer))?;
        for run in in_flight.batch.runs.iter().map(|write| write.run) {
            if !self.is_liveness_phase && self.fault_random.chance(self.faults.deadline_race) {
                self.aim_at_deadline(run, process);
            }
        }
        for run in in_flight.batch.runs.iter().map(|write| write.run).filter(|_| is_committed) {
            self.operators_see(run);
        }
        in_flight.result = Some(result);
        self.processes[process].in_flight = Some(in_flight);
        if crashes {
            self.crash(host);
            return Ok(());
        }
        let delay = self.timing_random.log_millis(1, 5);
        self.push(delay, SimEvent::Process(process, ProcessEvent::Settle));
        Ok(())
    }

    /// The process learns what became of its batch. If another one was decided meanwhile, it is begun, and sometimes
    /// written before this one is settled.
    fn settle(&mut self, process: usize) -> CheckResult {
        let this = &mut self.processes[process];
        let Some(PendingBatch { batch, result: Some(result), .. }) =
            this.in_flight.take_if(|in_flight| in_flight.result.is_some())
        else {
            return Ok(());
        };
        this.has_unknown_commit |= matches!(result, Err(store::Error::Unknown(_)));
        let Some(driver) = this.driver.as_mut() else { return Ok(()) };
        driver.written(batch, result);
        if self.begin(process) {
            if self.timing_random.coin() {
                self.push_soon(process, ProcessEvent::Commit);
            } else {
                self.trace.mark("a batch was written before the previous one was settled", true);
                self.commit(process)?;
            }
        }
        self.settle_all(process)
    }

    /// Settles what can be settled, and says when the next turn is.
    fn settle_all(&mut self, process: usize) -> CheckResult {
        let now = self.engine_time(process);
        // Killed at its commit, it has no driver.
        while let Some(mut driver) = self.processes[process].driver.take() {
            let mut shell = SimShell { world: self, process, outcome: Ok(()) };
            let next = driver.settle(now, &mut shell);
            shell.outcome?;
            if !self.processes[process].is_alive() {
                return Ok(());
            }
            let wake_at = driver.wake_at(now);
            let this = &mut self.processes[process];
            this.driver = Some(driver);
            let has_commands = !this.inbox.is_empty();
            match next {
                None => return Ok(()),
                Some(Afterwards::Continue) if has_commands => self.wake(process, self.now),
                Some(Afterwards::Continue) => {
                    if let Some(at) = wake_at {
                        self.wake(process, self.true_time_of(process, at));
                    }
                }
                Some(Afterwards::Pause(_) | Afterwards::Fenced(_)) => self.wake(process, self.now.after(RETRY_PAUSE)),
                Some(Afterwards::Stop(_)) => {
                    self.crash(self.processes[process].host);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A caller gets the reply to its request.
    pub fn reply(&mut self, process: usize, request_id: Ticket, reply: Reply) -> CheckResult {
        match &reply {
            Reply::Claimed(claimed) => {
                self.note(format!("request {request_id}: {} tasks, {:?}", claimed.tasks.len(), claimed.cancellations));
            }
            _ => self.note(format!("request {request_id}: {reply:?}")),
        }
        self.trace.mark("an idempotency key was taken", matches!(reply, Reply::KeyTaken { .. }));
        if let Reply::Answer { answer, .. } = &reply {
            self.trace.mark("a retry was refused because a step is irreversible", *answer == Answer::Unsafe);
            self.trace.mark("a retry was refused by a concurrency limit", *answer == Answer::NoRoom);
        }
        let was_sent_before = matches!(reply, Reply::KeyTaken { .. }) && self.client_log.is_notification(request_id);
        self.trace.mark("a notification had already been sent", was_sent_before);
        self.trace.mark("a watcher was told that its run ended", matches!(reply, Reply::Ended(_)));
        let is_refused = matches!(reply, Reply::Unavailable(_) | Reply::Unknown(_));
        if self.workers.disconnected.contains(&request_id) {
            let request = self.client_log.request(request_id).clone();
            return self.worker_answered(process, request_id, &request, &reply);
        }
        let request = self.client_log.answered(request_id, reply.clone(), &self.checker)?.clone();
        self.worker_answered(process, request_id, &request, &reply)?;
        if let ClientRequest::StartChild { run, .. } = request {
            self.child_answered(process, run, &reply);
        }
        if let ClientRequest::Fire { run, nominal, .. } = request {
            self.fire_answered(process, run, nominal, &reply)?;
        }
        if is_refused {
            self.unanswered(request);
        }
        Ok(())
    }

    /// Is this the most recently started process?
    fn is_latest_process(&self, process: usize) -> bool {
        self.processes.iter().all(|p| p.epoch <= self.processes[process].epoch)
    }

    fn execute(&mut self, process: usize, dispatch: Dispatch) {
        if self.is_liveness_phase {
            return self.schedule_report(process, &dispatch, Span::from_millis(3), upstream::success(&dispatch));
        }
        let now = self.engine_time(process);
        let reports = upstream::reports(&dispatch, &mut self.workload_random, &self.faults, now);
        let is_handed_back = matches!(reports.as_slice(), [(_, TaskResult::Blocked { .. })]);
        if is_handed_back {
            self.trace.mark("an attempt was handed back", true);
            self.checker.attempt_handed_back(&dispatch);
        }
        if reports.is_empty() {
            self.silent_dispatches.push((process, dispatch));
            return;
        }
        for (delay, result) in reports {
            self.schedule_report(process, &dispatch, delay, result);
        }
    }

    /// Schedules the report of an executor of `process`.
    pub fn schedule_report(&mut self, process: usize, dispatch: &Dispatch, after: Span, result: TaskResult) {
        let Dispatch { run, step, fence, .. } = *dispatch;
        self.push(after, SimEvent::Process(process, ProcessEvent::ExecutorReport { run, step, fence, result }));
    }

    fn read_from_store(&mut self, process: usize, run: RunId, payloads: Option<Vec<u32>>) {
        let command = match payloads {
            Some(numbers) => Command::Fetched { run, result: self.fetch(run, &numbers) },
            None => driver::loaded(run, self.load(process, run)),
        };
        self.note(format!("process {process} reads {run}"));
        let delay = self.timing_random.log_millis(1, 5);
        self.push(delay, SimEvent::Process(process, ProcessEvent::CommandArrived(command)));
    }

    fn poll_timers(&mut self, process: usize) {
        self.follow_wall_clock(process);
        let gone = &self.workers.disconnected;
        if let Some(driver) = &mut self.processes[process].driver {
            driver.retain_watchers(|request_id| !gone.contains(request_id));
        }
        let mut pause = POLL;
        if !self.is_store_down() {
            let now = self.engine_time(process);
            let nodes = &self.processes[process].nodes;
            let timers = completed(own_timers(&self.store, nodes, now, TIMERS_PAGE)).unwrap_or_default();
            // A run that needs an upgrade stays due. Polling for it every second would test nothing.
            if timers.iter().all(|timer| self.checker.needs_upgrade(timer.run)) {
                let next = ready(self.store.next_timer()).ok().flatten().filter(|_| timers.is_empty());
                let left = next.map_or(POLL_IDLE, |at| Span(at.since(now).0.saturating_sub(TIMER_READ_AHEAD.0)));
                pause = left.clamp(POLL, POLL_IDLE);
            }
            if !timers.is_empty() {
                self.deliver(process, Command::Timers(timers));
            }
        }
        self.push(pause, SimEvent::Process(process, ProcessEvent::PollTimers));
    }
}

/// Carries out what the driver asks for.
struct SimShell<'a> {
    world: &'a mut World,
    process: usize,
    /// The first violation.
    outcome: CheckResult,
}

impl SimShell<'_> {
    fn check(&mut self, what: impl FnOnce(&mut World) -> CheckResult) {
        if self.outcome.is_ok() {
            self.outcome = what(self.world);
        }
    }
}

impl Shell<Ticket> for SimShell<'_> {
    fn batch_written(&mut self, batch: &Batch, result: &CommitResult) {
        let Ok(verdicts) = result else { return };
        let process = self.process;
        self.check(|world| {
            let times = (world.processes[process].latest_time, world.now);
            world.checker.leases.batch_settled(process, batch, verdicts, times)
        });
    }

    fn reply(&mut self, reply_to: Ticket, reply: Reply) -> Result<(), Reply> {
        let process = self.process;
        let has_hung_up = self.world.workers.disconnected.contains(&reply_to);
        self.check(|world| world.reply(process, reply_to, reply.clone()));
        if has_hung_up { Err(reply) } else { Ok(()) }
    }

    fn abort(&mut self, run: RunId, fence: u64) {
        self.world.processes[self.process].aborted.insert((run, fence));
    }

    fn broadcast(&mut self, event: ClusterEvent) {
        if self.world.faults.is_shared {
            self.world.tell_others(self.process, &event);
        }
    }

    fn notify(&mut self, _org: OrgId, run: RunId, number: u64) {
        self.world.push_soon(self.process, ProcessEvent::Notify { run, number });
    }

    fn defer(&mut self, inputs: Vec<DeferredInput<Ticket>>) {
        self.world.trace.mark("an input was written to the inbox", true);
        self.world.push_inbox_soon(self.process, InboxEvent::Write(inputs));
    }

    fn answer_inbox(&mut self, answers: Vec<ConsumedRow>) {
        self.world.push_inbox_soon(self.process, InboxEvent::Answer(answers));
    }

    fn start_children(&mut self, rows: Vec<InboxRow>) {
        for row in rows {
            self.world.push_inbox_soon(self.process, InboxEvent::StartChild(row));
        }
    }

    fn close_children(&mut self, keys: Vec<InboxKey>) {
        for key in keys {
            self.world.push_inbox_soon(self.process, InboxEvent::CloseChild(key));
        }
    }

    fn read_inbox(&mut self) {
        self.world.push_inbox_soon(self.process, InboxEvent::Read);
    }

    fn execute(&mut self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        let Dispatch { run, step, attempt, .. } = &dispatch;
        let process = self.process;
        self.world.note(format!("process {process} executes s{step} of {run}, attempt {attempt}"));
        self.check(|world| world.checker.executed(&dispatch, world.processes[process].epoch));
        self.world.execute(process, dispatch);
        None
    }
}
