//! The mailbox: single-threaded owner of every run that is in memory.
//!
//! ```text
//!   accept(command) ──▶ inboxes ──turn(now)──▶ Turn { batch, loads, … }
//!                                                 │ the caller commits the batch
//!   Released { replies, dispatch, … } ◀──settle(turn, result)
//! ```
//!
//! It is a state machine too: no clock, no threads, no I/O. The engine's loop drives it against a real
//! store, the simulator against one that fails on purpose. The rule that keeps it right: **nothing
//! leaves before the commit that caused it** — replies and work come out of `settle`, never of `turn`,
//! and a run whose record was refused is forgotten and read again.

mod admission;
mod commands;
mod live;
mod loading;
mod sharing;
#[cfg(test)]
mod tests;
mod units;
mod work;

use crate::board::{Board, Sizes};
use crate::gates::Gates;
use crate::nodes::{LEASE, Nodes};
pub use commands::{Command, Look, Reply, Resumed, Start, Trouble};
use kernel::advance::{Wanted, Work};
use kernel::event::Queue;
use kernel::plan::Form;
use kernel::planted::{self, Bug};
use kernel::{
    Admission, Answer, Context, Effect, Input, OrgId, Payloads, Run, RunId, RunStatus, Span, Timestamp, advance,
};
use live::Live;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use store::{Batch, IdMap, IdSet, Lane, Place, RunRow, RunWrite, Timer, Verdict};
use units::Unit;
use work::Counter;

/// Pause before what could not be read is asked for again.
const READ_PAUSE: Span = Span::from_millis(200);
/// An input that meets this many conflicts in a row is given up as unavailable.
const CONFLICTS_MAX: u32 = 8;
/// Writes whose memory is kept from one batch to the next.
const ROOM_MAX: usize = 4_096;

/// Work for an executor of this process.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    pub key: String,
    pub attempt: u32,
    pub fence: u64,
    pub work: Work,
}

/// One round: what to commit, and what to do when it is durable.
pub struct Turn<T> {
    pub batch: Batch,
    /// Runs to be read; answer each with [`Command::Loaded`].
    pub loads: Vec<(OrgId, RunId)>,
    /// Payloads to be read; answer each with [`Command::Fetched`].
    pub fetches: Vec<(OrgId, RunId, Vec<u32>)>,
    /// Lanes to be read on after a place; answer each with [`Command::Refilled`].
    pub refills: Vec<(Lane, Option<Place>)>,
    /// Types whose lanes are to be read, those after a key; answer each with [`Command::Keys`].
    pub asks: Vec<(OrgId, String, Option<String>)>,
    /// Types whose seats are to be read; answer each with [`Command::Seats`].
    pub seat_asks: Vec<(OrgId, String)>,
    /// Parallel to `batch.runs`.
    pending: Vec<Pending<T>>,
    /// Replies that depend on nothing new.
    ready: Vec<(T, Reply)>,
}

impl<T> Default for Turn<T> {
    fn default() -> Self {
        Turn {
            batch: Batch::default(),
            loads: Vec::new(),
            fetches: Vec::new(),
            refills: Vec::new(),
            asks: Vec::new(),
            seat_asks: Vec::new(),
            pending: Vec::new(),
            ready: Vec::new(),
        }
    }
}

impl<T> Turn<T> {
    /// Does any of its runs go on in this process at once?
    pub fn goes_on_here(&self) -> bool {
        let executes = |effect: &Effect| matches!(effect, Effect::Execute { .. });
        self.pending.iter().any(|pending| pending.effects.iter().any(executes))
    }
}

struct Pending<T> {
    items: Vec<Item<T>>,
    answers: Vec<Answer>,
    effects: Vec<Effect>,
}

/// What may leave after a commit.
pub struct Released<T> {
    pub replies: Vec<(T, Reply)>,
    pub dispatch: Vec<Dispatch>,
    /// Attempts nobody wants any more.
    pub aborts: Vec<(RunId, u64)>,
    /// Somebody is to be told that a run ended: the run and the notice's number.
    pub notices: Vec<(OrgId, RunId, u32)>,
    pub started: u64,
    pub ended: u64,
    pub steps: u64,
    /// Tasks handed to workers.
    pub leased: u64,
    /// Lanes with something new that nobody here takes.
    pub posted: BTreeSet<Lane>,
    /// Somebody came to a gate that another node keeps, or left it.
    pub is_at_gate: bool,
    /// Runs that another node may have in memory, and were moved on here.
    pub moved: Vec<(OrgId, RunId)>,
}

impl<T> Default for Released<T> {
    fn default() -> Self {
        let (replies, dispatch, aborts, notices) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Released {
            replies,
            dispatch,
            aborts,
            notices,
            started: 0,
            ended: 0,
            steps: 0,
            leased: 0,
            posted: BTreeSet::new(),
            is_at_gate: false,
            moved: Vec::new(),
        }
    }
}

/// One input with whoever waits for its answer.
struct Item<T> {
    input: Input,
    ticket: Option<T>,
    conflicts: u32,
    /// The run was read since it came.
    is_checked: bool,
}

enum Phase {
    /// Asked for; not here yet.
    Loading,
    /// Could not be read, and somebody inside needs it: asked for again when its wake-up comes.
    Stalled,
    Resident,
    /// Its record is on its way to the store: inputs wait.
    InFlight,
}

struct Slot<T> {
    org: OrgId,
    phase: Phase,
    inbox: Vec<Item<T>>,
    is_queued: bool,
    /// A timer of it went off and no record has followed yet.
    is_due: bool,
    /// `None` exactly while loading or stalled.
    live: Option<Box<Live>>,
}

/// Attempts of executors, by run and fence.
pub type Attempts = Vec<(RunId, u64)>;

/// How a mailbox knows callback URLs without knowing secrets.
pub type WaitUrl = Arc<dyn Fn(RunId, &str) -> String + Send + Sync>;

pub struct Mailbox<T> {
    nodes: Nodes,
    /// Time of the latest turn.
    now: Timestamp,
    wait_url: WaitUrl,
    slots: IdMap<RunId, Slot<T>>,
    /// Runs with something in their inbox, in the order it came.
    queue: VecDeque<RunId>,
    /// Due times of runs in memory, and of parked ones due soon.
    wheel: BTreeSet<(Timestamp, RunId)>,
    /// Organisations of parked runs in the wheel.
    parked: IdMap<RunId, OrgId>,
    watchers: BTreeMap<RunId, Vec<T>>,
    loads: Vec<(OrgId, RunId)>,
    fetches: Vec<(OrgId, RunId, Vec<u32>)>,
    replies: Vec<(T, Reply)>,
    /// In-process attempts under way.
    executing: IdSet<(RunId, u64)>,
    /// Attempts under way that another node has called off.
    aborts: Vec<(RunId, u64)>,
    gates: Gates,
    board: Board<T>,
    /// Runs that gave up their place at a gate a moment ago.
    left: IdMap<RunId, Timestamp>,
    /// Open runs of this node that it does not have, and for how many looks.
    missed: IdMap<RunId, u8>,
    /// Runs of the last process that have not been read yet.
    recovering: IdSet<RunId>,
    is_draining: bool,
    fired: u64,
    /// Units so far: those of one batch have different numbers.
    units: u32,
    /// Empty; the batch before last left it for the next one to grow into.
    room: Vec<RunWrite>,
}

impl<T> Mailbox<T> {
    pub fn new(epoch: u64, wait_url: WaitUrl) -> Self {
        Mailbox::sized(epoch, wait_url, Sizes::default())
    }

    /// One that keeps so much of what waits for workers.
    pub fn sized(epoch: u64, wait_url: WaitUrl, sizes: Sizes) -> Self {
        Mailbox {
            nodes: Nodes::alone(epoch),
            now: Timestamp::default(),
            wait_url,
            slots: IdMap::default(),
            queue: VecDeque::new(),
            wheel: BTreeSet::new(),
            parked: IdMap::default(),
            watchers: BTreeMap::new(),
            loads: Vec::new(),
            fetches: Vec::new(),
            replies: Vec::new(),
            executing: IdSet::default(),
            aborts: Vec::new(),
            gates: Gates::default(),
            board: Board::new(sizes),
            left: IdMap::default(),
            missed: IdMap::default(),
            recovering: IdSet::default(),
            is_draining: false,
            fired: 0,
            units: 0,
            room: Vec::new(),
        }
    }

    /// One whose store other nodes may share.
    pub fn sharing(mut self) -> Self {
        self.board.share(self.nodes.clone());
        self
    }

    /// When it next has something to do on its own.
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.is_draining {
            return None;
        }
        self.wheel.first().map(|(at, _)| *at).into_iter().chain(self.board.next_due()).min()
    }

    /// Runs in memory.
    pub fn resident(&self) -> usize {
        self.slots.len()
    }

    /// Attempts that executors of this process are working on.
    pub fn executing(&self) -> usize {
        self.executing.len()
    }

    /// Tasks that wait, that workers have, and types whose tasks nobody would take.
    pub fn tasks(&self) -> (u64, usize, u64) {
        (self.board.ready(), self.board.leased(), self.board.unserved(self.now))
    }

    /// Runs in memory that something is being done for here, rather than waited for.
    pub fn busy(&self) -> usize {
        self.slots.len().saturating_sub(self.board.resident() + self.board.leased())
    }

    /// Forgets watchers and workers' questions nobody is behind any more.
    pub fn retain_watchers(&mut self, keep: impl Fn(&T) -> bool) {
        self.board.retain(&keep);
        self.watchers.retain(|_, tickets| {
            tickets.retain(&keep);
            !tickets.is_empty()
        });
    }

    /// Runs that went on because a time came, ever.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Is there nothing to do until something arrives or time passes? (`held` attempts end only from outside.)
    pub fn is_quiet(&self, held: usize) -> bool {
        self.queue.is_empty()
            && self.executing.len() == held
            && !self.slots.values().any(|s| matches!(s.phase, Phase::Loading | Phase::InFlight))
    }

    /// Is there something to do right now?
    pub fn has_work(&self) -> bool {
        let has_errands = !self.loads.is_empty() || !self.fetches.is_empty();
        let has_errands = has_errands || !self.replies.is_empty() || !self.aborts.is_empty();
        !self.queue.is_empty() || has_errands || self.board.has_work()
    }

    /// It is this late: what arrives now is judged by it.
    pub fn tick(&mut self, now: Timestamp) {
        self.now = now;
    }

    pub fn accept(&mut self, command: Command<T>) {
        match command {
            Command::Start { start, ticket, ended } => {
                if let Some(ended) = ended {
                    self.watchers.entry(start.run).or_default().push(ended);
                }
                self.start(*start, ticket, None);
            }
            Command::StartAll(starts) => {
                let unit = self.next_unit(starts.len());
                starts.into_iter().for_each(|(start, ticket)| self.start(start, ticket, Some(unit)));
            }
            Command::Give { org, run, input, ticket } => {
                if let Input::Finished { fence, .. } = &input {
                    self.executing.remove(&(run, *fence));
                }
                self.push(org, run, Item { input, ticket, conflicts: 0, is_checked: false });
            }
            Command::Watch { org, run, ticket } => {
                self.watchers.entry(run).or_default().push(ticket);
                // One that is not here is another's, or has left memory: whoever asks looks into the store, too.
                if self.nodes.is_alone() || self.slots.contains_key(&run) {
                    self.push(org, run, Item::wake());
                }
            }
            Command::Recover { org, run } => self.recover(org, run),
            Command::Nodes(nodes) => {
                if self.board.is_shared() {
                    self.board.share(nodes.clone());
                }
                self.nodes = nodes;
            }
            Command::Sweep { open, since, is_recovery } => self.sweep(open, since, is_recovery),
            Command::Reread(run) => self.reread(run),
            Command::Timers(timers) => {
                // One that nobody has seen to for long is everybody's.
                let (nodes, now) = (&self.nodes, self.now);
                let is_ours = |timer: &Timer| nodes.is_mine(timer.run) || now.since(timer.at) > LEASE;
                for timer in timers.into_iter().filter(is_ours) {
                    self.wheel.insert((timer.at, timer.run));
                    self.parked.insert(timer.run, timer.org);
                }
            }
            Command::Loaded { run, result } => self.loaded(run, result),
            Command::Fetched { run, result } => self.fetched(run, result),
            Command::Gates { paused, runs } => {
                self.restore_gates(paused, runs);
            }
            Command::PauseWorkflow(workflow) => self.gates.pause(workflow),
            Command::ResumeWorkflow(workflow) => {
                let admitted = self.gates.resume(workflow);
                self.admit(admitted);
            }
            Command::Crowd { run, ticket } => self.replies.push((ticket, Reply::Crowd(self.gates.crowd(run)))),
            Command::Drain => {
                self.is_draining = true;
                self.board.withdraw_all();
            }
            Command::Ask(ask) => self.ask(*ask),
            Command::Withdraw(place) => self.board.withdraw(place),
            Command::Extend { org, run, step, fence, by, ticket } => {
                let until = self.board.extend(org, (run, step), fence, by, self.now);
                self.replies.push((ticket, Reply::Lease(until)));
            }
            Command::Board { lanes, types, workers } => {
                self.board.remember(workers);
                types.iter().for_each(|row| self.board.rule(row, Some(self.now), self.now));
                self.board.restore(lanes, self.now);
            }
            Command::Rule(row) => self.board.rule(&row, None, self.now),
            Command::Posted(lane) => self.board.posted(&lane, self.now),
            Command::Known { workers, ready } => {
                self.board.remember(workers);
                self.board.count(ready);
            }
            Command::Waiting(types) => self.board.behind(types),
            Command::Seats { org, name, rows } => self.board.seated(org, &name, rows.as_deref(), self.now),
            Command::Keys { org, name, keys } => self.board.heard_of(org, &name, keys, self.now),
            Command::Refilled { lane, rows } => self.board.refilled(&lane, rows, self.now),
            Command::Look(look, ticket) => {
                let reply = self.look(look);
                self.replies.push((ticket, reply));
            }
        }
    }

    fn recover(&mut self, org: OrgId, run: RunId) {
        if self.slots.get(&run).is_none_or(|slot| slot.live.is_none()) {
            self.recovering.insert(run);
            self.board.recovers(true);
        }
        self.push(org, run, Item::wake());
    }

    /// What workers hold of a run is known, or never will be.
    fn recovered(&mut self, run: RunId) {
        if self.recovering.remove(&run) && self.recovering.is_empty() {
            self.board.recovers(false);
        }
    }

    fn start(&mut self, start: Start, ticket: T, unit: Option<Unit>) {
        let Start { org, run, version, origin, gate, birth } = start;
        // Whose turn it is at a gate is decided by the node that keeps it, which will find this run waiting.
        let is_kept_elsewhere = gate.as_ref().is_some_and(|gate| !self.nodes.keeps(&gate.id));
        if let Some(said) = gate.as_ref().filter(|_| !is_kept_elsewhere) {
            let admitted = self.gates.widen(origin.workflow, said);
            self.admit(admitted);
        }
        let admission = match is_kept_elsewhere {
            true => Admission::Queue(Queue::Limit),
            false => self.gates.enter(org, run, origin.workflow, gate.as_ref()),
        };
        if planted::is(Bug::SupersedeBeforeCommit) {
            self.supersede(self.gates.supersedes(run));
        }
        let row = RunRow {
            org,
            id: run,
            workflow: origin.workflow,
            workflow_name: origin.workflow_name.clone(),
            version: origin.version,
            hash: version.hash,
            form: version.plan.layout().form,
            status: RunStatus::Running,
            waiting: 0,
            wake_at: None,
            created_at: Timestamp::default(),
            expires_at: origin.expires_at,
            finished_at: None,
            error_code: None,
            gate,
            parked: false,
            deleted_at: None,
        };
        let live = Live {
            version,
            run: Run::default(),
            seq: 0,
            created: Some(Box::new(birth)),
            unit,
            row,
            records: 0,
            bytes: 0,
            armed: None,
            payloads: Payloads::new(),
            fetching: Vec::new(),
            stored: Vec::new(),
            seats: Vec::new(),
            touched: self.now,
            is_borrowed: false,
        };
        let input = Input::Start(Box::new(origin), admission);
        let item = Item { input, ticket: Some(ticket), conflicts: 0, is_checked: true };
        let slot = Slot {
            org,
            phase: Phase::Resident,
            inbox: vec![item],
            is_queued: true,
            is_due: false,
            live: Some(Box::new(live)),
        };
        self.slots.insert(run, slot);
        self.queue.push_back(run);
    }

    /// Puts an item into a run's inbox, asking for the run if it is not in memory.
    fn push(&mut self, org: OrgId, run: RunId, item: Item<T>) {
        let loads = &mut self.loads;
        let slot = self.slots.entry(run).or_insert_with(|| {
            loads.push((org, run));
            Slot { org, phase: Phase::Loading, inbox: Vec::new(), is_queued: false, is_due: false, live: None }
        });
        if slot.org != org {
            // Another organisation's run does not exist.
            if let Some(ticket) = item.ticket {
                self.replies.push((ticket, Reply::NotFound));
            }
            return;
        }
        if slot.inbox.capacity() == 0 {
            // Hardly ever more.
            slot.inbox.reserve_exact(1);
        }
        slot.inbox.push(item);
        if matches!(slot.phase, Phase::Stalled) {
            // Whatever becomes of this item, somebody inside still needs the run.
            slot.inbox.push(Item::wake());
            slot.phase = Phase::Loading;
            self.loads.push((org, run));
        }
        if matches!(slot.phase, Phase::Resident) && !slot.is_queued {
            slot.is_queued = true;
            self.queue.push_back(run);
        }
    }

    /// Advances every run that has something waiting, all its inputs at once. What is to be committed and answered is added
    /// to what a turn already has of it.
    pub fn turn(&mut self, now: Timestamp, turn: &mut Turn<T>) {
        self.now = now;
        self.wake_due(now);
        self.lose_leases(now);
        (turn.batch.at, turn.batch.epoch) = (now, self.nodes.own());
        if turn.batch.runs.capacity() == 0 {
            turn.batch.runs = std::mem::take(&mut self.room);
        }
        let before = turn.batch.runs.len();
        // What is done may make room for what waits, and what becomes ready goes to whoever was just free.
        loop {
            for run in std::mem::take(&mut self.queue) {
                self.advance(run, now, turn);
            }
            if !self.hand_out(now) {
                break;
            }
        }
        self.drop_partial_units(before, turn);
        (turn.refills, turn.asks, turn.seat_asks) = (self.board.refills(), self.board.asks(), self.board.seat_asks());
        turn.loads = std::mem::take(&mut self.loads);
        turn.fetches = std::mem::take(&mut self.fetches);
        turn.ready.append(&mut self.replies);
    }

    fn wake_due(&mut self, now: Timestamp) {
        if self.is_draining {
            return;
        }
        while let Some(&(at, run)) = self.wheel.first().filter(|(at, _)| *at <= now) {
            self.wheel.remove(&(at, run));
            let parked = self.parked.remove(&run);
            if let Some(live) = self.slots.get_mut(&run).and_then(|s| s.live.as_mut()).filter(|l| l.armed == Some(at)) {
                live.armed = None;
            }
            if let Some(org) = self.slots.get(&run).map(|s| s.org).or(parked) {
                self.push(org, run, Item::wake());
                if let Some(slot) = self.slots.get_mut(&run) {
                    slot.is_due = true;
                }
            }
        }
    }

    fn advance(&mut self, id: RunId, now: Timestamp, turn: &mut Turn<T>) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.is_queued = false;
        let (Phase::Resident, Some(live)) = (&slot.phase, slot.live.as_mut()) else { return };
        // Another node's clock may be ahead of this one's.
        let now = now.max(live.run.state.at);
        let mut items = std::mem::take(&mut slot.inbox);
        let inputs = items.iter().map(|item| item.input.clone()).collect();
        let wait_url = |key: &str| (self.wait_url)(id, key);
        let (epoch, is_draining, payloads) = (self.nodes.own(), self.is_draining, &live.payloads);
        let counter = Counter::new(&mut self.board, slot.org, &live.run, &items, now);
        let offer = |wanted: Wanted<'_>| counter.offer(wanted);
        let context = Context { run: id, now, epoch, is_draining, wait_url: &wait_url, payloads, offer: &offer };
        // A bug that one run meets must not stop the others.
        let decided = || advance(&live.version.plan, &mut live.run, inputs, &context);
        let decided = std::panic::catch_unwind(std::panic::AssertUnwindSafe(decided));
        counter.close(&items, decided.as_ref().ok(), now);
        let Ok(advanced) = decided else {
            slot.inbox = items;
            let what = "a bug in the engine stopped this run; its records are untouched";
            return self.dismiss(id, Reply::Trouble(Trouble::Damaged(what.into())));
        };
        if !advanced.missing.is_empty() && live.fetching.is_empty() {
            live.fetching = advanced.missing.clone();
            self.fetches.push((slot.org, id, advanced.missing));
        }
        let mut answers = advanced.answers;
        work::keep_waiting(&mut items, &mut answers, &mut slot.inbox);
        let Some(record) = advanced.record else {
            let is_unsure = |item: &Item<T>| item.ticket.is_some() && !item.is_checked;
            if !self.nodes.is_alone() && live.seq > 0 && items.iter().any(is_unsure) {
                // Another node may have moved it on: nobody is refused because of what only this one remembers.
                slot.inbox.extend(items.into_iter().filter(|item| !item.is_claim()));
                return self.reread(id);
            }
            let is_beaten = !self.nodes.is_alone() && live.seq > 0 && items.iter().any(Item::is_claim);
            // Nothing new: the answers rest on what is durable already.
            let (status, created_at) = (live.run.status(), live.run.state.created_at);
            for (item, answer) in items.drain(..).zip(answers) {
                if let Some(ticket) = item.ticket {
                    turn.ready.push((ticket, Reply::Answer { answer, status, created_at }));
                }
            }
            if live.run.state.seq == 0 {
                return self.dismiss(id, Reply::NotFound);
            }
            self.rest(id, &mut turn.ready);
            if is_beaten {
                self.let_go(id);
            }
            return;
        };
        live.payloads.clear();
        slot.phase = Phase::InFlight;
        let leave = work::leave(&self.board);
        let take = work::seats(&mut self.board, slot.org, id, &advanced.effects, now);
        turn.batch.runs.push(live.write(slot.org, id, record.seal(), advanced.payloads, leave, take));
        turn.pending.push(Pending { items, answers, effects: advanced.effects });
        if planted::is(Bug::GrantBeforeCommit) {
            self.hand_early(id, turn);
        }
    }

    /// Releases what a commit allows and takes back what it refused.
    pub fn settle(&mut self, turn: Turn<T>, result: Result<Vec<Verdict>, store::Error>) -> Released<T> {
        let aborts = std::mem::take(&mut self.aborts);
        let mut released = Released { replies: turn.ready, aborts, ..Default::default() };
        if planted::is(Bug::NoticeBeforeCommit) {
            let all = turn.batch.runs.iter().flat_map(|w| (0..w.notices).map(|number| (w.org, w.run, number)));
            released.notices.extend(all);
        }
        let result = match result {
            Err(store::Error::Unknown(_)) if planted::is(Bug::UnknownIsSuccess) => {
                Ok(vec![Verdict::Committed; turn.batch.runs.len()])
            }
            Err(store::Error::Unknown(why)) if planted::is(Bug::UnknownIsFailed) => Err(store::Error::Unavailable(why)),
            result => result,
        };
        match result {
            Ok(verdicts) => {
                for ((write, pending), verdict) in turn.batch.runs.iter().zip(turn.pending).zip(verdicts) {
                    if verdict != Verdict::Committed {
                        self.take_back(&pending.effects);
                    }
                    match verdict {
                        Verdict::Committed => self.committed(write, pending, &mut released),
                        Verdict::Conflict if write.unit.is_some() => {
                            let reply = Reply::Unavailable("a run of this id exists".into());
                            self.forgo(write.run, pending.items, &reply, &mut released.replies);
                        }
                        Verdict::Conflict => self.retake(write, pending.items, None, &mut released),
                        Verdict::Full => {
                            write.seats.take.iter().for_each(|row| self.board.contested(&row.seat));
                            self.retake(write, pending.items, None, &mut released);
                        }
                        Verdict::KeyTaken { run, fingerprint } => {
                            let taken = Reply::KeyTaken { run, fingerprint };
                            self.forgo(write.run, pending.items, &taken, &mut released.replies);
                        }
                        Verdict::Undone => self.forgo(write.run, pending.items, &Reply::Undone, &mut released.replies),
                    }
                }
            }
            Err(error) => {
                let reply = match &error {
                    store::Error::Unknown(why) => Reply::Unknown(why.clone()),
                    other => Reply::Unavailable(other.to_string()),
                };
                for (write, pending) in turn.batch.runs.iter().zip(turn.pending) {
                    self.take_back(&pending.effects);
                    self.retake(write, pending.items, Some(&reply), &mut released);
                }
            }
        }
        self.answer_workers(&mut released.replies);
        self.room = turn.batch.runs;
        self.room.clear();
        self.room.shrink_to(ROOM_MAX);
        released
    }

    /// A run that will never be: whoever asked for it hears why, whoever wanted something of it that it is
    /// not there.
    fn forgo(&mut self, run: RunId, items: Vec<Item<T>>, why: &Reply, replies: &mut Vec<(T, Reply)>) {
        let later = self.slots.remove(&run).map(|slot| slot.inbox).unwrap_or_default();
        for item in items.into_iter().chain(later) {
            let reply = if matches!(item.input, Input::Start(..)) { why.clone() } else { Reply::NotFound };
            replies.extend(item.ticket.map(|ticket| (ticket, reply)));
        }
        self.leave(run);
        self.forget_watchers(run, replies);
    }

    fn committed(&mut self, write: &RunWrite, pending: Pending<T>, released: &mut Released<T>) {
        let run = write.run;
        let Some(slot) = self.slots.get_mut(&run) else { return };
        let Some(live) = slot.live.as_mut() else { return };
        slot.phase = Phase::Resident;
        self.fired += u64::from(std::mem::take(&mut slot.is_due));
        live.seq += 1;
        live.touched = self.now;
        live.bytes += write.record.len();
        live.records += 1;
        if write.snapshot.is_some() {
            (live.records, live.bytes) = (0, 0);
        }
        released.moved.extend(live.is_borrowed.then_some((slot.org, run)));
        let has_ended = live.run.is_terminal() && !live.row.status.is_terminal();
        released.ended += u64::from(has_ended);
        if write.after == 0 || has_ended {
            released.is_at_gate |= live.row.gate.as_ref().is_some_and(|gate| !self.nodes.keeps(&gate.id));
        }
        released.notices.extend((0..write.notices).map(|number| (slot.org, run, number)));
        if let Some(row) = &write.row {
            live.row = row.clone();
        }
        live.keep_rows(&write.ready);
        live.keep_seats(&write.seats);
        released.posted.extend(work::freed(&mut self.board, &write.seats.free, self.now));
        released.started += u64::from(write.after == 0);
        let (status, created_at) = (live.run.status(), live.run.state.created_at);
        for (item, answer) in pending.items.into_iter().zip(pending.answers) {
            if let Some(ticket) = item.ticket {
                released.replies.push((ticket, Reply::Answer { answer, status, created_at }));
            }
        }
        let (org, plan) = (slot.org, live.version.clone());
        for effect in pending.effects {
            match effect {
                Effect::Grant { .. } | Effect::Post { .. } | Effect::Unpost { .. } | Effect::Ended { .. } => {
                    released.leased += u64::from(matches!(effect, Effect::Grant { .. }));
                    released.posted.extend(work::unwanted(&mut self.board, org, run, live, &effect, self.now));
                    work::carry_out(&mut self.board, org, run, live, effect, self.now);
                }
                Effect::Abort { step, fence } if plan.plan.node(step).task().is_some() => {
                    let is_plain = plan.plan.layout().form == Form::Task;
                    self.board.call_off(run, step, fence, is_plain);
                }
                Effect::Keep => work::keep_leases(&mut self.board, &self.nodes, org, run, live, self.now),
                Effect::Execute { step, attempt, fence, work } => {
                    released.steps += 1;
                    self.executing.insert((run, fence));
                    let key = live.version.plan.node(step).key.clone();
                    released.dispatch.push(Dispatch { org: slot.org, run, step, key, attempt, fence, work });
                }
                Effect::Abort { fence, .. } => {
                    self.executing.remove(&(run, fence));
                    released.aborts.push((run, fence));
                }
            }
        }
        if !slot.inbox.is_empty() && !slot.is_queued {
            slot.is_queued = true;
            self.queue.push_back(run);
        }
        self.rest(run, &mut released.replies);
        if write.after == 0 {
            self.supersede(self.gates.supersedes(run));
        }
    }

    /// Arms a run's timer, answers its watchers and frees its place if it has ended (whoever ended it, and
    /// whether or not that was learned at once), and lets it leave memory when it is parked or over and
    /// nobody has anything for it.
    fn rest(&mut self, id: RunId, replies: &mut Vec<(T, Reply)>) {
        let Some(status) = self.slots.get(&id).and_then(|s| s.live.as_ref()).map(|live| live.run.status()) else {
            return;
        };
        if status.is_terminal() && !(planted::is(Bug::GateNotFreed) && status == RunStatus::Cancelled) {
            self.leave(id);
        }
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let Some(live) = slot.live.as_mut() else { return };
        // A retry that waits for its payload is past due: its arrival wakes the run, not the wheel.
        let due = live.run.next_due().filter(|at| live.fetching.is_empty() || *at > self.now);
        if live.armed != due {
            if let Some(at) = live.armed {
                self.wheel.remove(&(at, id));
            }
            if let Some(at) = due {
                self.wheel.insert((at, id));
            }
            live.armed = due;
        }
        if status.is_terminal() {
            let watchers = self.watchers.remove(&id).unwrap_or_default();
            replies.extend(watchers.into_iter().map(|ticket| (ticket, Reply::Ended(status))));
        }
        if !(status.is_terminal() || live.row.parked) || !slot.inbox.is_empty() || !live.fetching.is_empty() {
            return;
        }
        // Its timer row will bring it back; the wheel keeps only what the horizon poll would miss.
        match due {
            Some(at) if at <= self.now.after(crate::HORIZON) => drop(self.parked.insert(id, slot.org)),
            Some(at) => drop(self.wheel.remove(&(at, id))),
            None => {}
        }
        let left = self.slots.remove(&id).and_then(|slot| slot.live);
        if let Some(live) = left {
            live.stored.iter().for_each(|row| self.board.park(&row.lane, row.place, self.now));
        }
    }

    /// Tells whoever waits for the end of a run that there is no such run.
    fn forget_watchers(&mut self, run: RunId, replies: &mut Vec<(T, Reply)>) {
        let tickets = self.watchers.remove(&run).unwrap_or_default();
        replies.extend(tickets.into_iter().map(|ticket| (ticket, Reply::NotFound)));
    }

    /// The record did not land (or nobody knows): what is in memory is not the truth any more. Forget
    /// it and read it again; inputs from inside, and those that only met a conflict, are given again.
    fn retake(&mut self, write: &RunWrite, items: Vec<Item<T>>, reply: Option<&Reply>, released: &mut Released<T>) {
        let (org, run) = (write.org, write.run);
        let mut again = Vec::new();
        // Claims were taken back; the run says again what can be claimed when it has been read.
        // So it does of what was lost, which somebody may have been heard of since.
        for mut item in items.into_iter().filter(|item| !item.is_claim() && !item.is_loss()) {
            item.conflicts += 1;
            let given_up = Reply::Unavailable("the run is changing too fast".into());
            let reply = reply.or((item.conflicts > CONFLICTS_MAX).then_some(&given_up));
            match (item.ticket.take(), reply) {
                (Some(ticket), Some(reply)) => released.replies.push((ticket, reply.clone())),
                (ticket, _) => again.push(Item { ticket, ..item }),
            }
        }
        let old = self.slots.remove(&run);
        self.withhold(old.as_ref().and_then(|slot| slot.live.as_deref()));
        if let Some(at) = old.as_ref().and_then(|slot| slot.live.as_ref()).and_then(|live| live.armed) {
            self.wheel.remove(&(at, run));
        }
        again.extend(old.map(|slot| slot.inbox).unwrap_or_default());
        if write.after > 0 || reply.is_none_or(|r| matches!(r, Reply::Unknown(_))) {
            // Read it again even if nothing is left to give: it may have timers, or work to start over.
            again.push(Item::wake());
        } else {
            self.forget_watchers(run, &mut released.replies);
            self.leave(run);
        }
        for item in again {
            self.push(org, run, item);
        }
    }
}

impl<T> Item<T> {
    fn wake() -> Self {
        Item::inside(Input::Wake)
    }

    /// One that nobody waits for.
    fn inside(input: Input) -> Self {
        Item { input, ticket: None, conflicts: 0, is_checked: false }
    }
}
