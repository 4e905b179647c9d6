//! One server process: the engine loop, split into events so that any other event can happen between two of
//! them.
//!
//! ```text
//!   Turn ──▶ Commit ──▶ Settle ──▶ Turn …       Read ─▶ CommandArrived       PollTimers ─▶ PollTimers …
//!        └──▶ DecideAhead ─▶ Commit ──▶ Settle …
//! ```
//!
//! Invariant: it does exactly what `engine::drive` does. It has one commit in flight at a time. It decides
//! the next batch meanwhile, and may begin to write it before the previous batch is settled. It releases
//! replies and work only after their commit. It reads timers up to the horizon. It takes the time from its
//! own [`EngineClock`] and from nowhere else.

use super::client_log::{ClientRequest, Ticket};
use super::clock::EngineClock;
use super::concurrency_model::BatchWriter;
use super::inbox::InboxEvent;
use super::upstream;
use super::violation::{CheckResult, Violation, ViolationKind};
use super::world::{SimEvent, World, ready};
use engine::clock::Correction;
use engine::mailbox::{Command, Dispatch, Mailbox, Released, Turn};
use engine::task_queue::Sizes;
use engine::{Reply, TIMER_READ_AHEAD};
use kernel::advance::TaskResult;
use kernel::{Input, OrgId, RunId, Span, Timestamp, WorkflowId};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::prelude::*;
use store::{QueueKey, QueuePosition, WriteVerdict};

/// As in the engine: how often timers are read, and the pause after a refused commit.
const POLL: Span = Span::from_millis(1_000);
const RETRY_PAUSE: Span = Span::from_millis(200);
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
    /// Reads the next page of a key queue.
    Refill {
        queue: QueueKey,
        after: Option<QueuePosition>,
    },
    CommandArrived(Command<Ticket>),
    /// An executor reports a result.
    ExecutorReport {
        run: RunId,
        step: u32,
        fence: u64,
        result: TaskResult,
    },
    PollTimers,
    /// The outbox scans the stored notifications.
    ScanOutbox,
    /// The outbox sends one notification by starting a run.
    Notify {
        run: RunId,
        number: u32,
    },
    /// Carries out a row of the inbox.
    Inbox(InboxEvent),
    Resume,
}

pub struct Process {
    pub host: usize,
    pub epoch: u64,
    clock: EngineClock,
    /// The latest engine time it saw, initially the time of the newest record (I39).
    latest_time: Timestamp,
    state: State,
    mailbox: Mailbox<Ticket>,
    /// Commands that arrived since the last turn.
    inbox: Vec<Command<Ticket>>,
    in_flight: Option<PendingTurn>,
    /// The turn that was decided while another is in flight. It is written next.
    decided_ahead: Option<PendingTurn>,
    /// When the next turn is due. Other turns in the heap are obsolete.
    next_turn_at: Option<Timestamp>,
    /// Attempts that were cancelled: run and fence.
    aborted: BTreeSet<(RunId, u64)>,
    /// When it started, or resumed after a pause.
    pub up_since: Timestamp,
    /// It starts nothing any more and stops soon.
    pub is_draining: bool,
    /// Workflows that it knows are paused.
    pub paused: BTreeSet<WorkflowId>,
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

/// A turn between its decision and its settling.
struct PendingTurn {
    turn: Turn<Ticket>,
    /// The process was draining when it decided this turn.
    is_draining: bool,
    /// Decided while another turn was in flight.
    is_decided_ahead: bool,
    result: Option<store::Result<Vec<WriteVerdict>>>,
}

impl Process {
    pub fn new(host: usize, epoch: u64, clock: EngineClock, high_water: Option<Timestamp>, sizes: Sizes) -> Process {
        Process {
            host,
            epoch,
            clock,
            latest_time: high_water.unwrap_or_default(),
            state: State::Up,
            mailbox: mailbox(epoch, sizes),
            inbox: Vec::new(),
            in_flight: None,
            decided_ahead: None,
            next_turn_at: None,
            aborted: BTreeSet::new(),
            up_since: Timestamp::default(),
            is_draining: false,
            paused: BTreeSet::new(),
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
            ..Process::new(self.host, self.epoch, self.clock.clone(), None, Sizes::default())
        };
        was_alive
    }
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
            (State::Up, ProcessEvent::Refill { queue, after }) => self.refill(process, queue, after),
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
            (State::Up, ProcessEvent::ScanOutbox) => self.scan_outbox(process),
            (State::Up, ProcessEvent::Notify { run, number }) => self.notify(process, run, number)?,
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
        let in_flight = self.decide(process, Turn::default())?;
        let is_empty = in_flight.result.is_some();
        self.processes[process].in_flight = Some(in_flight);
        if is_empty {
            return self.settle(process);
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
        if this.in_flight.is_none() || this.inbox.is_empty() && !this.mailbox.has_work() {
            return Ok(());
        }
        let before = self.processes[process].decided_ahead.take();
        let was_draining = before.as_ref().is_none_or(|ahead| ahead.is_draining);
        let in_flight = self.decide(process, before.map_or_else(Turn::default, |ahead| ahead.turn))?;
        let is_draining = was_draining && in_flight.is_draining;
        self.processes[process].decided_ahead =
            Some(PendingTurn { is_draining, is_decided_ahead: true, result: None, ..in_flight });
        let is_merged = self.timing_random.coin();
        self.trace.mark("a batch was decided while another was in flight", true);
        if is_merged {
            self.push_soon(process, ProcessEvent::DecideAhead);
        }
        Ok(())
    }

    /// Accepts the inbox and advances runs. The results are added to `turn`.
    fn decide(&mut self, process: usize, mut turn: Turn<Ticket>) -> Result<PendingTurn, Violation> {
        let now = self.engine_time(process);
        let this = &mut self.processes[process];
        ViolationKind::Early.unless(now >= this.latest_time, || {
            format!("engine time ran backwards in process {process}, from {:?} to {now:?}", this.latest_time)
        })?;
        (this.next_turn_at, this.latest_time) = (None, now);
        this.mailbox.tick(now);
        for command in std::mem::take(&mut this.inbox) {
            self.command_accepted(process, &command, now);
            self.processes[process].mailbox.accept(command);
        }
        self.processes[process].mailbox.turn(now, &mut turn);
        for (queue, after) in std::mem::take(&mut turn.refills) {
            let delay = Span(self.fault_random.between(0, self.faults.read_delay.0));
            self.push(delay, SimEvent::Process(process, ProcessEvent::Refill { queue, after }));
        }
        for (_, run) in std::mem::take(&mut turn.loads) {
            self.schedule_read(process, run, None);
        }
        for (_, run, numbers) in std::mem::take(&mut turn.fetches) {
            self.schedule_read(process, run, Some(numbers));
        }
        let result = turn.batch.runs.is_empty().then(|| Ok(Vec::new()));
        Ok(PendingTurn { turn, is_draining: self.processes[process].is_draining, is_decided_ahead: false, result })
    }

    fn schedule_read(&mut self, process: usize, run: RunId, payloads: Option<Vec<u32>>) {
        let delay = Span(self.fault_random.between(0, self.faults.read_delay.0));
        self.push(delay, SimEvent::Process(process, ProcessEvent::Read { run, payloads }));
    }

    /// Commits the turn in flight, possibly with a fault, and then checks all invariants on the stored data.
    fn commit(&mut self, process: usize) -> CheckResult {
        let host = self.processes[process].host;
        let crashes = !self.is_liveness_phase && self.fault_random.chance(self.faults.crash_at_commit);
        if crashes && self.fault_random.coin() {
            self.crash(host);
            return Ok(());
        }
        let Some(mut in_flight) = self.processes[process].in_flight.take() else { return Ok(()) };
        let result = self.commit_with_faults(&in_flight.turn.batch);
        self.note(format!("process {process} commits {} runs: {result:?}", in_flight.turn.batch.runs.len()));
        let is_committed = matches!(&result, Ok(verdicts) if verdicts.contains(&WriteVerdict::Committed));
        self.trace.mark("a replaced process committed", is_committed && !self.is_latest_process(process));
        self.trace.mark("a process crashed between commit and release", crashes);
        if is_committed || matches!(result, Err(store::Error::Unknown(_))) {
            let others = self.processes.iter_mut().enumerate().filter(|(other, p)| *other != process && p.is_alive());
            others.for_each(|(_, other)| other.is_outdated = true);
        }
        let Process { is_outdated, has_unknown_commit, .. } = self.processes[process];
        let writer = BatchWriter {
            is_only_writer: !is_outdated,
            knows_all_commits: !has_unknown_commit,
            is_draining: in_flight.is_draining,
            is_decided_ahead: in_flight.is_decided_ahead,
        };
        self.check_batch(&in_flight.turn.batch, (Some(process), writer))?;
        for run in in_flight.turn.batch.runs.iter().map(|write| write.run) {
            if !self.is_liveness_phase && self.fault_random.chance(self.faults.deadline_race) {
                self.aim_at_deadline(run, process);
            }
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

    /// Tells the mailbox what became of a batch. If another turn was decided meanwhile, it is written next,
    /// sometimes before this batch is settled.
    fn settle(&mut self, process: usize) -> CheckResult {
        let this = &mut self.processes[process];
        let Some(PendingTurn { turn, result: Some(result), .. }) = this.in_flight.take() else { return Ok(()) };
        let not_attempted = match this.decided_ahead.take() {
            Some(ahead) if result.is_ok() => {
                let is_empty = ahead.turn.batch.runs.is_empty();
                this.in_flight = Some(PendingTurn { result: is_empty.then(|| Ok(Vec::new())), ..ahead });
                match (is_empty, self.timing_random.coin()) {
                    (true, _) => self.push_soon(process, ProcessEvent::Settle),
                    (false, true) => self.push_soon(process, ProcessEvent::Commit),
                    (false, false) => {
                        self.trace.mark("a batch was written before the previous one was settled", true);
                        self.commit(process)?;
                    }
                }
                None
            }
            ahead => ahead,
        };
        if !self.processes[process].is_alive() {
            return Ok(());
        }
        self.settle_batch(process, turn, result)?;
        match not_attempted {
            Some(PendingTurn { turn, .. }) if self.processes[process].is_alive() => {
                let error = store::Error::Unavailable("the batch before it could not be written".into());
                self.settle_batch(process, turn, Err(error))
            }
            _ => Ok(()),
        }
    }

    fn settle_batch(
        &mut self,
        process: usize,
        turn: Turn<Ticket>,
        result: store::Result<Vec<WriteVerdict>>,
    ) -> CheckResult {
        let this = &mut self.processes[process];
        let error = result.as_ref().err().cloned();
        this.has_unknown_commit |= matches!(error, Some(store::Error::Unknown(_)));
        if let Ok(verdicts) = &result {
            let times = (this.latest_time, self.now);
            self.checker.leases.batch_settled(process, &turn.batch, verdicts, times)?;
        }
        let released = this.mailbox.settle(turn, result);
        self.release(process, released)?;
        match error {
            Some(store::Error::Unavailable(_)) => self.wake(process, self.now.after(RETRY_PAUSE)),
            Some(_) if self.faults.stops_on_unknown => self.crash(self.processes[process].host),
            _ => {
                let this = &self.processes[process];
                if this.mailbox.has_work() || !this.inbox.is_empty() {
                    self.wake(process, self.now);
                } else if let Some(due) = this.mailbox.next_due() {
                    self.wake(process, self.true_time_of(process, due));
                }
            }
        }
        Ok(())
    }

    /// Performs what a commit allows: replies, notifications and executions.
    fn release(&mut self, process: usize, mut released: Released<Ticket>) -> CheckResult {
        for (request_id, reply) in std::mem::take(&mut released.replies) {
            self.reply(process, request_id, reply)?;
        }
        self.release_rows(process, &mut released);
        for (_, run, number) in released.notifications {
            self.push_soon(process, ProcessEvent::Notify { run, number });
        }
        self.processes[process].aborted.extend(released.aborts);
        let epoch = self.processes[process].epoch;
        for dispatch in released.dispatch {
            let Dispatch { run, step, attempt, .. } = &dispatch;
            self.note(format!("process {process} executes s{step} of {run}, attempt {attempt}"));
            self.checker.executed(&dispatch, epoch)?;
            self.execute(process, dispatch);
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
            None => Command::Loaded { run, result: self.load(run).map(|found| found.map(Box::new)) },
        };
        self.note(format!("process {process} reads {run}"));
        let delay = self.timing_random.log_millis(1, 5);
        self.push(delay, SimEvent::Process(process, ProcessEvent::CommandArrived(command)));
    }

    fn poll_timers(&mut self, process: usize) {
        self.follow_wall_clock(process);
        let gone = &self.workers.disconnected;
        self.processes[process].mailbox.retain_watchers(|request_id| !gone.contains(request_id));
        let mut pause = POLL;
        if !self.is_store_down() {
            let now = self.engine_time(process);
            let timers = ready(self.store.timers(now.after(TIMER_READ_AHEAD), None, TIMERS_PAGE)).unwrap_or_default();
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
