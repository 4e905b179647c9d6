//! One process: the loop that the engine runs around a mailbox, taken apart into happenings so that
//! anything can come between any two of them.
//!
//! ```text
//!   Turn ──▶ Commit ──▶ Settle ──▶ Turn …       Read ─▶ Arrive       Poll ─▶ Poll …
//! ```
//!
//! It must do what `engine::drive` does and nothing more: one commit at a time, replies and work after
//! it, timers read a horizon ahead.

use super::check::fold;
use super::ledger::Ticket;
use super::upstream;
use super::world::{Event, Judgement, World, ready};
use engine::mailbox::{Command, Dispatch, Mailbox, Released, Resumed, Trouble, Turn};
use engine::{HORIZON, Reply};
use kernel::advance::TaskResult;
use kernel::{Input, OrgId, RunId, Span, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Store, Verdict};

/// As in the engine: how often timers are read, and the pause after a refused commit.
const POLL: Span = Span::from_millis(1_000);
const RETRY_PAUSE: Span = Span::from_millis(200);
/// With no timer near, the simulator saves itself most polls.
const POLL_LAZILY: Span = Span::from_secs(30);
const TIMERS_PAGE: usize = 10_000;

pub enum Happening {
    Turn,
    Commit,
    Settle,
    /// A run or some payloads are read.
    Read {
        run: RunId,
        payloads: Option<Vec<u32>>,
    },
    Arrive(Command<Ticket>),
    /// An executor reports.
    Report {
        run: RunId,
        step: u32,
        fence: u64,
        result: TaskResult,
    },
    Poll,
    Resume,
}

pub struct Process {
    pub host: usize,
    pub epoch: u64,
    state: State,
    mailbox: Mailbox<Ticket>,
    /// What arrived since the last turn.
    inbox: Vec<Command<Ticket>>,
    busy: Option<Busy>,
    /// The turn that is coming; others in the heap are outdated.
    turn_at: Option<Timestamp>,
    /// Attempts that were called off.
    aborted: BTreeSet<(RunId, u64)>,
}

enum State {
    Up,
    /// What would have happened meanwhile.
    Paused(Vec<Happening>),
    Dead,
}

/// A turn on its way to the store and back.
struct Busy {
    turn: Turn<Ticket>,
    result: Option<store::Result<Vec<Verdict>>>,
}

impl Process {
    pub fn new(host: usize, epoch: u64) -> Process {
        Process {
            host,
            epoch,
            state: State::Up,
            mailbox: mailbox(epoch),
            inbox: Vec::new(),
            busy: None,
            turn_at: None,
            aborted: BTreeSet::new(),
        }
    }

    pub fn is_alive(&self) -> bool {
        !matches!(self.state, State::Dead)
    }

    pub fn pause(&mut self) {
        if matches!(self.state, State::Up) {
            self.state = State::Paused(Vec::new());
        }
    }

    /// Forgets everything; false if it was dead already.
    pub fn kill(&mut self) -> bool {
        let was_alive = self.is_alive();
        *self = Process { state: State::Dead, ..Process::new(self.host, self.epoch) };
        was_alive
    }
}

fn mailbox(epoch: u64) -> Mailbox<Ticket> {
    Mailbox::new(epoch, Arc::new(|run, step| format!("http://engine/wh/{run}/{step}")))
}

impl World {
    pub fn happen(&mut self, process: usize, happening: Happening) -> Judgement {
        match (&mut self.processes[process].state, happening) {
            (State::Dead, _) => {}
            (State::Paused(_), Happening::Resume) => self.resume(process),
            (State::Up, Happening::Resume) => {}
            (State::Paused(held), happening) => held.push(happening),
            (State::Up, Happening::Turn) => self.turn(process)?,
            (State::Up, Happening::Commit) => self.commit(process)?,
            (State::Up, Happening::Settle) => self.settle(process)?,
            (State::Up, Happening::Read { run, payloads }) => self.read(process, run, payloads),
            (State::Up, Happening::Arrive(command)) => self.deliver(process, command),
            (State::Up, Happening::Report { run, step, fence, result }) => {
                // A connection that was dropped in time brings nothing; one that was not, a late result.
                if self.processes[process].aborted.contains(&(run, fence)) && self.schedule.coin() {
                    return Ok(());
                }
                let input = Input::Finished { step, fence, result };
                self.deliver(process, Command::Give { org: OrgId::DEFAULT, run, input, ticket: None });
            }
            (State::Up, Happening::Poll) => self.poll(process),
        }
        Ok(())
    }

    /// Puts a command before the process.
    pub fn deliver(&mut self, process: usize, command: Command<Ticket>) {
        self.processes[process].inbox.push(command);
        self.wake(process, self.now);
    }

    fn resume(&mut self, process: usize) {
        self.note(format!("process {process} goes on"));
        let state = std::mem::replace(&mut self.processes[process].state, State::Up);
        if let State::Paused(held) = state {
            for happening in held {
                self.push(Span(0), Event::Process(process, happening));
            }
        }
        self.processes[process].turn_at = None;
        self.wake(process, self.now);
    }

    /// Makes sure of a turn soon after `at`.
    fn wake(&mut self, process: usize, at: Timestamp) {
        let at = at.max(self.now).after(self.schedule.millis(0, 2));
        let this = &mut self.processes[process];
        if this.busy.is_none() && this.turn_at.is_none_or(|planned| at < planned) {
            this.turn_at = Some(at);
            self.push_at(at, Event::Process(process, Happening::Turn));
        }
    }

    fn turn(&mut self, process: usize) -> Judgement {
        let now = self.now;
        let this = &mut self.processes[process];
        if this.busy.is_some() || this.turn_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        this.turn_at = None;
        for command in std::mem::take(&mut this.inbox) {
            this.mailbox.accept(command);
        }
        let mut turn = this.mailbox.turn(now);
        for (_, run) in std::mem::take(&mut turn.loads) {
            self.ask_store(process, run, None);
        }
        for (_, run, numbers) in std::mem::take(&mut turn.fetches) {
            self.ask_store(process, run, Some(numbers));
        }
        let is_empty = turn.batch.runs.is_empty();
        let result = is_empty.then(|| Ok(Vec::new()));
        self.processes[process].busy = Some(Busy { turn, result });
        if is_empty {
            return self.settle(process);
        }
        let delay = self.schedule.log_millis(1, 20);
        self.push(delay, Event::Process(process, Happening::Commit));
        Ok(())
    }

    fn ask_store(&mut self, process: usize, run: RunId, payloads: Option<Vec<u32>>) {
        let delay = Span(self.chance.between(0, self.faults.read_delay.0));
        self.push(delay, Event::Process(process, Happening::Read { run, payloads }));
    }

    /// Asks the store, which may fail; then holds what is stored against every invariant.
    fn commit(&mut self, process: usize) -> Judgement {
        let crashes = !self.is_calm && self.chance.chance(self.faults.crash_at_commit);
        if crashes && self.chance.coin() {
            self.crash(self.processes[process].host);
            return Ok(());
        }
        let is_down = self.is_store_down();
        let is_unknown = !self.is_calm && !is_down && self.chance.chance(self.faults.unknown);
        let lands = !is_down && (!is_unknown || self.chance.coin());
        let Some(busy) = self.processes[process].busy.as_mut() else { return Ok(()) };
        let batch = &busy.turn.batch;
        let verdicts = if lands { ready(self.store.commit(batch)) } else { Ok(Vec::new()) };
        let has = |verdict| matches!(&verdicts, Ok(list) if list.contains(&verdict));
        let (has_conflict, has_landed) = (has(Verdict::Conflict), has(Verdict::Committed));
        let line = format!(
            "process {process} commits {} runs: {verdicts:?}, down {is_down}, unknown {is_unknown}",
            batch.runs.len()
        );
        let runs: Vec<RunId> = batch.runs.iter().map(|write| write.run).collect();
        busy.result = Some(match (is_down, is_unknown) {
            (true, _) => Err(store::Error::Unavailable("away".into())),
            (_, true) => Err(store::Error::Unknown("no answer".into())),
            _ => verdicts,
        });
        self.note(line);
        let is_newest = self.is_newest(process);
        let trace = &mut self.trace;
        trace.mark("a commit met a conflict", has_conflict);
        trace.mark("a commit was refused", is_down);
        trace.mark("a commit landed and nobody learned", is_unknown && lands);
        trace.mark("a commit did not land and nobody learned", is_unknown && !lands);
        trace.mark("a replaced process committed", has_landed && !is_newest);
        trace.mark("a crash came between commit and release", crashes);
        for run in runs {
            if let Some(stored) = self.store.stored_run(OrgId::DEFAULT, run) {
                self.checker.committed(&stored).map_err(|what| format!("{run}: {what}"))?;
                let seq = self.checker.stored(run).map_or(0, |run| run.state.seq);
                self.note(format!("  {run} is {} at event {seq}", stored.row.status));
            }
        }
        if crashes {
            self.crash(self.processes[process].host);
            return Ok(());
        }
        let delay = self.schedule.log_millis(1, 5);
        self.push(delay, Event::Process(process, Happening::Settle));
        Ok(())
    }

    fn settle(&mut self, process: usize) -> Judgement {
        let this = &mut self.processes[process];
        let Some(Busy { turn, result: Some(result) }) = this.busy.take() else { return Ok(()) };
        let error = result.as_ref().err().cloned();
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
                    self.wake(process, due);
                }
            }
        }
        Ok(())
    }

    /// Carries out what a commit allowed.
    fn release(&mut self, process: usize, released: Released<Ticket>) -> Judgement {
        for (ticket, reply) in released.replies {
            self.note(format!("request {ticket}: {reply:?}"));
            self.trace.mark("a key was taken", matches!(reply, Reply::KeyTaken { .. }));
            self.trace.mark("a watcher was told the end", matches!(reply, Reply::Ended(_)));
            let is_refused = matches!(reply, Reply::Unavailable(_) | Reply::Unknown(_));
            let ask = self.ledger.answered(ticket, reply, &self.checker)?.clone();
            if is_refused {
                self.unanswered(ask);
            }
        }
        self.processes[process].aborted.extend(released.aborts);
        let is_newest = self.is_newest(process);
        for dispatch in released.dispatch {
            let Dispatch { run, step, attempt, .. } = &dispatch;
            self.note(format!("process {process} executes s{step} of {run}, attempt {attempt}"));
            self.checker.executed(&dispatch, is_newest)?;
            self.execute(process, dispatch);
        }
        Ok(())
    }

    /// Has no later process been started?
    fn is_newest(&self, process: usize) -> bool {
        self.processes.iter().all(|p| p.epoch <= self.processes[process].epoch)
    }

    fn execute(&mut self, process: usize, dispatch: Dispatch) {
        if self.is_calm {
            return self.report(process, &dispatch, Span::from_millis(3), upstream::well(&dispatch));
        }
        let reports = upstream::reports(&dispatch, &mut self.workload, &self.faults);
        if reports.is_empty() {
            self.silent.push((process, dispatch));
            return;
        }
        for (delay, result) in reports {
            self.report(process, &dispatch, delay, result);
        }
    }

    /// An executor of `process` will report.
    pub fn report(&mut self, process: usize, dispatch: &Dispatch, after: Span, result: TaskResult) {
        let Dispatch { run, step, fence, .. } = *dispatch;
        self.push(after, Event::Process(process, Happening::Report { run, step, fence, result }));
    }

    fn read(&mut self, process: usize, run: RunId, payloads: Option<Vec<u32>>) {
        let fails = self.is_store_down() || !self.is_calm && self.chance.chance(self.faults.read_failure);
        let trouble = || Trouble::Store("away".into());
        self.trace.mark("a read failed", fails);
        self.trace.mark("a payload was fetched", !fails && payloads.is_some());
        let command = match payloads {
            Some(_) if fails => Command::Fetched { run, result: Err(trouble()) },
            Some(numbers) => {
                let result = ready(self.store.payloads(OrgId::DEFAULT, run, &numbers));
                Command::Fetched { run, result: result.map_err(|_| trouble()) }
            }
            None if fails => Command::Loaded { run, result: Err(trouble()) },
            None => Command::Loaded { run, result: self.load(run).map(|found| found.map(Box::new)) },
        };
        self.note(format!("process {process} reads {run}{}", if fails { ", in vain" } else { "" }));
        let delay = self.schedule.log_millis(1, 5);
        self.push(delay, Event::Process(process, Happening::Arrive(command)));
    }

    fn load(&mut self, run: RunId) -> Result<Option<Resumed>, Trouble> {
        let loaded = ready(self.store.load(OrgId::DEFAULT, run)).map_err(|e| Trouble::Store(e.to_string()))?;
        let Some(loaded) = loaded else { return Ok(None) };
        self.trace.mark("a snapshot was read", loaded.snapshot.is_some());
        let definition = &self.definitions[self.pinned[&run]];
        let snapshot = loaded.snapshot.as_ref().map(|(_, bytes)| bytes);
        let folded = fold(definition, snapshot, &loaded.records).map_err(Trouble::Damaged)?;
        let records = loaded.records.len() as u32;
        let version = definition.version.clone();
        Ok(Some(Resumed { version, run: folded, seq: loaded.seq, row: loaded.row, records }))
    }

    fn poll(&mut self, process: usize) {
        let mut pause = POLL;
        if !self.is_store_down() {
            let timers = ready(self.store.timers(self.now.after(HORIZON), TIMERS_PAGE)).unwrap_or_default();
            if timers.is_empty() {
                let next = ready(self.store.next_timer()).ok().flatten().unwrap_or(Timestamp::NEVER);
                pause = Span(next.since(self.now).0.saturating_sub(HORIZON.0)).clamp(POLL, POLL_LAZILY);
            } else {
                self.deliver(process, Command::Timers(timers));
            }
        }
        self.push(pause, Event::Process(process, Happening::Poll));
    }
}
