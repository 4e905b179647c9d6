//! The mailbox: the single-threaded owner of every run in memory.
//!
//! ```text
//!   accept(command) ──▶ inboxes ──turn(now)──▶ Turn { batch, loads, … }
//!                                                 │ the caller commits the batch
//!   Released { replies, dispatch, … } ◀──settle(turn, result)
//! ```
//!
//! The mailbox is a state machine without a clock, threads or I/O. The engine loop runs it against a real store, and
//! the simulator against a store that fails on purpose. Its one rule: **nothing leaves before the commit that caused
//! it**. Replies and work come out of `settle`, never out of `turn`, and a run whose record was refused is dropped
//! from memory and read again.

mod admission;
mod atomic_groups;
mod commands;
mod inbox_rows;
mod live_run;
mod loading;
mod recent_runs;
mod shared_runs;
mod snapshots;
mod starts;
mod task_work;
#[cfg(test)]
pub(crate) mod tests;
mod turn;

use crate::concurrency_groups::ConcurrencyGroups;
use crate::nodes::Nodes;
use crate::secret;
use crate::task_queue::{Sizes, TaskQueue};
use atomic_groups::AtomicGroup;
pub use commands::{Command, LoadFailure, QueueQuery, Reply, Resumed, StartRun};
use inbox_rows::InboxRows;
pub use inbox_rows::{DeferredInput, InboxInput, InboxSource};
use kernel::advance::{HeldBack, NextRequest, OfferedTask, Work};
use kernel::event::Queue;
use kernel::inbox::{StoredAnswer, StoredInput};
use kernel::plan::Form;
use kernel::planted_bugs::{self, Bug};
use kernel::{Admission, Context, Effect, Input, OrgId, Payloads, Run, RunId, RunStatus, Span, Timestamp, advance};
use live_run::LiveRun;
pub(crate) use live_run::open_waits;
use recent_runs::RecentRuns;
pub use snapshots::StoredBytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use store::{IdMap, IdSet, RunRow, RunWrite, Wait, WriteVerdict};
use task_work::ClaimOffers;
use turn::{PendingRun, StatusChange};
pub use turn::{Released, Turn};

/// The pause after a failed read of a run or a payload.
const READ_PAUSE: Span = Span::from_millis(200);
/// An input that meets more conflicts in a row than this is written to the inbox of its run.
const CONFLICTS_MAX: u32 = 8;
/// The most writes whose memory is reused for the next batch.
const SPARE_WRITES_MAX: usize = 4_096;

/// Work for an executor of this process.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    pub key: String,
    pub attempt: u32,
    /// Part of its idempotency key.
    pub repeats: u32,
    pub fence: u64,
    pub work: Work,
}

/// One input and the reply channel of the caller that waits for its answer.
struct QueuedInput<T> {
    input: Input,
    reply_to: Option<T>,
    /// The rows of the inbox that it came from.
    source: Option<Box<InboxSource>>,
    conflicts: u32,
    /// The run was read from the store after the input arrived.
    is_checked: bool,
}

enum Phase {
    /// Being read from the store.
    Loading,
    /// Could not be read, and the engine itself needs it: read again when its entry in `due_times` is due.
    Stalled,
    Resident,
    /// Its record is being committed: inputs wait.
    InFlight,
}

struct RunEntry<T> {
    org: OrgId,
    phase: Phase,
    inbox: Vec<QueuedInput<T>>,
    is_queued: bool,
    /// One of its timers is due, and no record has followed yet.
    is_due: bool,
    /// `None` exactly while loading or stalled.
    live: Option<Box<LiveRun>>,
}

/// Attempts of executors, by run and fence.
pub type Attempts = Vec<(RunId, u64)>;

/// Makes callback URLs, so that the mailbox needs no secret.
pub type WaitUrl = Arc<dyn Fn(RunId, &str) -> String + Send + Sync>;

/// Says whether a request that is about to be sent must wait because of its host.
pub type HoldRequest = Arc<dyn Fn(OrgId, RunId, NextRequest<'_>, Timestamp) -> Option<HeldBack> + Send + Sync>;

pub struct Mailbox<T> {
    nodes: Nodes,
    /// The engine time of the latest turn or tick.
    now: Timestamp,
    wait_url: WaitUrl,
    hold: HoldRequest,
    runs: IdMap<RunId, RunEntry<T>>,
    /// Runs with inputs, in order of arrival.
    queue: VecDeque<RunId>,
    /// Next due times of runs in memory, and of evicted runs that are due soon.
    due_times: BTreeSet<(Timestamp, RunId)>,
    /// Organisations of the evicted runs in `due_times`.
    evicted: IdMap<RunId, OrgId>,
    recent: RecentRuns,
    /// Reply channels of callers that wait for the end of a run.
    watchers: BTreeMap<RunId, Vec<T>>,
    loads: Vec<(OrgId, RunId)>,
    fetches: Vec<(OrgId, RunId, Vec<u32>)>,
    replies: Vec<(T, Reply)>,
    /// Attempts that executors of this process are working on.
    executing: BTreeSet<(RunId, u64)>,
    /// Attempts of this process that another node has cancelled.
    aborts: Vec<(RunId, u64)>,
    concurrency_groups: ConcurrencyGroups,
    task_queue: TaskQueue<T>,
    inbox_rows: InboxRows,
    /// Runs that left their concurrency group recently, and when.
    recently_left: IdMap<RunId, Timestamp>,
    /// Open runs that this node owns and does not have in memory, and for how many sweeps.
    missed: IdMap<RunId, u8>,
    /// Runs of the last process that have not been read yet.
    recovering: IdSet<RunId>,
    is_draining: bool,
    /// The node's clock is too wrong: it fires no timers and leases no tasks.
    is_suspended: bool,
    fired: u64,
    /// Counts atomic groups: those of one batch have different numbers.
    atomic_groups: u32,
    /// Empty; keeps the memory of an earlier batch for the next one.
    spare_writes: Vec<RunWrite>,
}

impl<T> Mailbox<T> {
    pub fn new(epoch: u64, wait_url: WaitUrl) -> Self {
        Mailbox::sized(epoch, wait_url, Sizes::default())
    }

    /// A mailbox whose task queue has these sizes.
    pub fn sized(epoch: u64, wait_url: WaitUrl, sizes: Sizes) -> Self {
        Mailbox {
            nodes: Nodes::alone(epoch),
            now: Timestamp::default(),
            wait_url,
            hold: Arc::new(|_, _, _, _| None),
            runs: IdMap::default(),
            queue: VecDeque::new(),
            due_times: BTreeSet::new(),
            evicted: IdMap::default(),
            recent: RecentRuns::default(),
            watchers: BTreeMap::new(),
            loads: Vec::new(),
            fetches: Vec::new(),
            replies: Vec::new(),
            executing: BTreeSet::new(),
            aborts: Vec::new(),
            concurrency_groups: ConcurrencyGroups::default(),
            task_queue: TaskQueue::new(sizes),
            inbox_rows: InboxRows::default(),
            recently_left: IdMap::default(),
            missed: IdMap::default(),
            recovering: IdSet::default(),
            is_draining: false,
            is_suspended: false,
            fired: 0,
            atomic_groups: 0,
            spare_writes: Vec::new(),
        }
    }

    /// Asks `hold` before each request.
    pub fn holding(mut self, hold: HoldRequest) -> Self {
        self.hold = hold;
        self
    }

    /// Says that other nodes may share the store.
    pub fn sharing(mut self) -> Self {
        self.task_queue.share(self.nodes.clone());
        self
    }

    /// The next time at which a timer is due or the task queue has work.
    pub fn next_due(&self) -> Option<Timestamp> {
        if self.is_draining || self.is_suspended {
            return None;
        }
        self.due_times.first().map(|(at, _)| *at).into_iter().chain(self.task_queue.next_due()).min()
    }

    /// Runs in memory.
    pub fn resident(&self) -> usize {
        self.runs.len()
    }

    /// Attempts that executors of this process are working on.
    pub fn executing(&self) -> usize {
        self.executing.len()
    }

    /// Counts: ready tasks, leased tasks, and types with ready tasks and no worker.
    pub fn tasks(&self) -> (u64, usize, u64) {
        (self.task_queue.ready(), self.task_queue.leased(), self.task_queue.unserved(self.now))
    }

    /// Runs in memory that this process works on: they wait neither for a claim nor for a worker.
    pub fn busy(&self) -> usize {
        self.runs.len().saturating_sub(self.task_queue.resident() + self.task_queue.leased())
    }

    /// Forgets watchers and open claims whose callers are gone.
    pub fn retain_watchers(&mut self, keep: impl Fn(&T) -> bool) {
        self.task_queue.retain_claims(&keep);
        self.watchers.retain(|_, reply_channels| {
            reply_channels.retain(&keep);
            !reply_channels.is_empty()
        });
    }

    /// Counts runs that advanced because a timer was due.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Is there nothing to do until something arrives or time passes? (`held` attempts end only from outside.)
    pub fn is_quiet(&self, held: usize) -> bool {
        self.queue.is_empty()
            && self.executing.len() == held
            && !self.runs.values().any(|s| matches!(s.phase, Phase::Loading | Phase::InFlight))
    }

    /// Is there something to do right now?
    pub fn has_work(&self) -> bool {
        let has_reads = !self.loads.is_empty() || !self.fetches.is_empty();
        let has_output = !self.replies.is_empty() || !self.aborts.is_empty() || self.inbox_rows.has_answers();
        // Tasks that no worker may claim at the moment must not keep the engine loop busy.
        let pairs_claims = !self.is_draining && !self.is_suspended;
        !self.queue.is_empty() || has_reads || has_output || self.task_queue.has_work(pairs_claims)
    }

    /// Sets the engine time for the commands that follow.
    pub fn tick(&mut self, now: Timestamp) {
        self.now = now;
    }

    pub fn accept(&mut self, command: Command<T>) {
        match command {
            Command::Start { start, reply_to, ended } => {
                if let Some(ended) = ended {
                    self.watchers.entry(start.run).or_default().push(ended);
                }
                self.start(*start, reply_to, None);
            }
            Command::StartAll(starts) => {
                let atomic_group = self.next_atomic_group(starts.len());
                starts.into_iter().for_each(|(start, reply_to)| self.start(start, reply_to, Some(atomic_group)));
            }
            Command::Give { org, run, input, reply_to } => {
                if let Input::Finished { fence, .. } = &input {
                    self.executing.remove(&(run, *fence));
                }
                self.push(org, run, QueuedInput { reply_to, ..QueuedInput::internal(input) });
            }
            Command::GiveInbox(inputs) => self.give_inbox(inputs),
            Command::Watch { org, run, reply_to } => {
                self.watchers.entry(run).or_default().push(reply_to);
                // A run that is not in memory is evicted or advanced by another node: the caller reads the store, too.
                if self.nodes.is_alone() || self.runs.contains_key(&run) {
                    self.push(org, run, QueuedInput::wake());
                }
            }
            Command::Recover { org, run } => self.recover(org, run),
            Command::Nodes(nodes) => {
                if self.task_queue.is_shared() {
                    self.task_queue.share(nodes.clone());
                }
                if !nodes.is_alone() {
                    self.recent.clear();
                }
                self.nodes = nodes;
            }
            Command::Sweep { open, since, is_recovery } => self.sweep(open, since, is_recovery),
            Command::Reread(run) => self.reread(run),
            Command::Timers(timers) => {
                for timer in timers.into_iter().filter(|timer| self.nodes.handles_timer(timer, self.now)) {
                    self.due_times.insert((timer.at, timer.run));
                    self.evicted.insert(timer.run, timer.org);
                }
            }
            Command::Loaded { run, result } => self.loaded(run, result),
            Command::Fetched { run, result } => self.fetched(run, result),
            Command::ConcurrencyGroups { paused, runs } => {
                self.restore_concurrency_groups(paused, runs);
            }
            Command::PauseWorkflow(workflow) => self.concurrency_groups.pause(workflow),
            Command::ResumeWorkflow(workflow) => {
                let admitted = self.concurrency_groups.resume(workflow);
                self.admit(admitted);
            }
            Command::QueueStatus { run, reply_to } => {
                self.replies.push((reply_to, Reply::QueueStatus(self.concurrency_groups.queue_status(run))))
            }
            Command::Drain => {
                self.is_draining = true;
                self.task_queue.withdraw_all();
            }
            Command::Suspend(is_suspended) => {
                self.is_suspended = is_suspended;
                if is_suspended {
                    self.task_queue.answer_all();
                }
            }
            Command::Claim(request) => self.open_claim(*request),
            Command::WithdrawClaim(claim) => self.task_queue.withdraw(claim),
            Command::Extend { org, run, step, fence, by, reply_to } => {
                let until = self.task_queue.extend(org, (run, step), fence, by, self.now);
                self.replies.push((reply_to, Reply::Lease(until)));
                if until.is_some() && self.task_queue.is_note_due(run, step, self.now) {
                    self.push(org, run, QueuedInput::internal(Input::StillAlive { step, fence }));
                }
            }
            Command::RestoreTaskQueue { queues, types, workers } => {
                self.task_queue.merge_workers(workers);
                types.iter().for_each(|row| self.task_queue.apply_type(row, Some(self.now), self.now));
                self.task_queue.restore(queues, self.now);
            }
            Command::TypeChanged(row) => self.task_queue.apply_type(&row, None, self.now),
            Command::TaskReadyElsewhere(queue) => self.task_queue.ready_elsewhere(&queue, self.now),
            Command::ClusterCounts { workers, ready } => {
                self.task_queue.merge_workers(workers);
                self.task_queue.set_ready_counts(ready);
            }
            Command::TypesWithTasks(types) => self.task_queue.mark_unread_keys(types),
            Command::LimitSlots { org, name, rows } => {
                self.task_queue.limit_slots_read(org, &name, rows.as_deref(), self.now)
            }
            Command::KeysRead { org, name, keys } => self.task_queue.keys_read(org, &name, keys, self.now),
            Command::Refilled { queue, rows } => self.task_queue.refilled(&queue, rows, self.now),
            Command::Query(query, reply_to) => {
                let reply = self.query(query);
                self.replies.push((reply_to, reply));
            }
        }
    }

    fn recover(&mut self, org: OrgId, run: RunId) {
        if self.runs.get(&run).is_none_or(|entry| entry.live.is_none()) {
            self.recovering.insert(run);
            self.task_queue.set_recovering(true);
        }
        self.push(org, run, QueuedInput::wake());
    }

    /// The leases of a run are known, or never will be.
    fn recovered(&mut self, run: RunId) {
        if self.recovering.remove(&run) && self.recovering.is_empty() {
            self.task_queue.set_recovering(false);
        }
    }

    /// Puts an item into a run's inbox, asking for the run if it is not in memory.
    fn push(&mut self, org: OrgId, run: RunId, item: QueuedInput<T>) {
        let (loads, recent) = (&mut self.loads, &mut self.recent);
        let mut known = None;
        let entry = self.runs.entry(run).or_insert_with(|| {
            known = recent.take(run);
            if known.is_none() {
                loads.push((org, run));
            }
            RunEntry { org, phase: Phase::Loading, inbox: Vec::new(), is_queued: false, is_due: false, live: None }
        });
        if entry.org != org {
            // Another organisation's run does not exist.
            self.inbox_rows.answer(&item, &StoredAnswer::NotFound {});
            if let Some(reply_to) = item.reply_to {
                self.replies.push((reply_to, Reply::NotFound));
            }
            return;
        }
        if entry.inbox.capacity() == 0 {
            // Most inboxes never hold more than one input.
            entry.inbox.reserve_exact(1);
        }
        entry.inbox.push(item);
        if matches!(entry.phase, Phase::Stalled) {
            // Even if this item is answered with an error, the engine itself still needs the run.
            entry.inbox.push(QueuedInput::wake());
            entry.phase = Phase::Loading;
            self.loads.push((org, run));
        }
        if matches!(entry.phase, Phase::Resident) && !entry.is_queued {
            entry.is_queued = true;
            self.queue.push_back(run);
        }
        if known.is_some() {
            self.loaded(run, Ok(known));
            // This copy was in memory, so it may be as old as any.
            let entry = self.runs.get_mut(&run).filter(|_| self.task_queue.is_shared());
            let items = entry.into_iter().flat_map(|entry| &mut entry.inbox).filter(|item| item.source.is_some());
            items.for_each(|item| item.is_checked = false);
        }
    }

    /// Advances every run that has inputs, with all of them at once. Adds the writes and replies to those that the turn
    /// already has.
    pub fn turn(&mut self, now: Timestamp, turn: &mut Turn<T>) {
        self.now = now;
        self.wake_due(now);
        self.expire_leases(now);
        (turn.batch.at, turn.batch.epoch) = (now, self.nodes.own());
        if turn.batch.runs.capacity() == 0 {
            turn.batch.runs = std::mem::take(&mut self.spare_writes);
        }
        let before = turn.batch.runs.len();
        // A finished task may free a limit for a ready one, and a new ready task may go to an open claim.
        loop {
            for run in std::mem::take(&mut self.queue) {
                self.advance(run, now, turn);
            }
            if !self.match_claims(now) {
                break;
            }
        }
        self.drop_partial_groups(before, turn);
        (turn.refills, turn.key_reads, turn.slot_reads) =
            (self.task_queue.refills(), self.task_queue.key_reads(), self.task_queue.slot_reads());
        turn.loads = std::mem::take(&mut self.loads);
        turn.fetches = std::mem::take(&mut self.fetches);
        turn.ready.append(&mut self.replies);
    }

    fn wake_due(&mut self, now: Timestamp) {
        if self.is_draining || self.is_suspended {
            return;
        }
        while let Some(&(at, run)) = self.due_times.first().filter(|(at, _)| *at <= now) {
            self.due_times.remove(&(at, run));
            let evicted = self.evicted.remove(&run);
            if let Some(live) = self.runs.get_mut(&run).and_then(|s| s.live.as_mut()).filter(|l| l.armed == Some(at)) {
                live.armed = None;
            }
            if let Some(org) = self.runs.get(&run).map(|s| s.org).or(evicted) {
                self.push(org, run, QueuedInput::wake());
                if let Some(entry) = self.runs.get_mut(&run) {
                    entry.is_due = true;
                }
            }
        }
    }

    fn advance(&mut self, id: RunId, now: Timestamp, turn: &mut Turn<T>) {
        let Some(entry) = self.runs.get_mut(&id) else { return };
        entry.is_queued = false;
        let (Phase::Resident, Some(live)) = (&entry.phase, entry.live.as_mut()) else { return };
        // Another node's clock may be ahead of this one's.
        let now = now.max(live.run.state.at);
        let mut items = std::mem::take(&mut entry.inbox);
        // A move changes the plan, so it is decided alone.
        if let Some(place) = items.iter().position(|item| matches!(item.input, Input::Move(_))) {
            entry.inbox = items.split_off(place.max(1));
        }
        let has_more = !entry.inbox.is_empty();
        let readmission = match items.iter().any(|item| matches!(item.input, Input::Reopen { .. })) {
            true => admission::readmit(&mut self.concurrency_groups, &self.nodes, &mut self.recently_left, id, live),
            false => Admission::Open,
        };
        let inputs = items.iter().map(|item| admission::admitted(item.input.clone(), readmission)).collect();
        let wait_url = |key: &str| (self.wait_url)(id, key);
        let (epoch, is_draining, payloads) = (self.nodes.own(), self.is_draining, &live.payloads);
        let offers = ClaimOffers::new(&mut self.task_queue, entry.org, &live.run, &items, now);
        let is_suspended = self.is_suspended;
        let offer = |wanted: OfferedTask<'_>| offers.offer(wanted).filter(|_| !is_suspended);
        let (hold, org) = (&self.hold, entry.org);
        let hold = |next: NextRequest<'_>| hold(org, id, next, now);
        let context =
            Context { run: id, now, epoch, is_draining, wait_url: &wait_url, payloads, offer: &offer, hold: &hold };
        // A bug that one run meets must not stop the others.
        let decided = || advance(&live.version.plan, &mut live.run, inputs, &context);
        let decided = std::panic::catch_unwind(std::panic::AssertUnwindSafe(decided));
        offers.close(&items, decided.as_ref().ok(), now);
        let Ok(advanced) = decided else {
            entry.inbox = items;
            let what = "a bug in the engine stopped this run; its records are unchanged";
            return self.give_up_on(id, Reply::LoadFailure(LoadFailure::Damaged(what.into())));
        };
        if !advanced.missing.is_empty() && live.fetching.is_empty() {
            live.fetching = advanced.missing.clone();
            self.fetches.push((entry.org, id, advanced.missing));
        }
        let mut answers = advanced.answers;
        task_work::defer_claims(&mut items, &mut answers, &mut entry.inbox);
        let Some(record) = advanced.record else {
            // Another node may have advanced it: no caller is refused because of an old copy in memory. A row of the inbox
            // would be lost for good, so it is checked even if no other node is known: one may have joined just now.
            let (is_shared, is_alone) = (self.task_queue.is_shared(), self.nodes.is_alone());
            let needs_check = |item: &QueuedInput<T>| {
                !item.is_checked && (item.reply_to.is_some() && !is_alone || item.source.is_some() && is_shared)
            };
            if live.seq > 0 && items.iter().any(needs_check) {
                entry.inbox.extend(items.into_iter().filter(|item| !item.is_claim()));
                return self.reread(id);
            }
            let has_lost_claim = !self.nodes.is_alone() && live.seq > 0 && items.iter().any(QueuedInput::is_claim);
            // No record: the answers depend only on what is already durable.
            let (status, created_at) = (live.run.status(), live.run.state.created_at);
            for (item, answer) in items.drain(..).zip(answers) {
                self.inbox_rows.answer(&item, &StoredAnswer::of(answer, status, created_at));
                if let Some(reply_to) = item.reply_to {
                    turn.ready.push((reply_to, Reply::Answer { answer, status, created_at }));
                }
            }
            if live.run.state.seq == 0 {
                return self.give_up_on(id, Reply::NotFound);
            }
            if has_more {
                entry.is_queued = true;
                self.queue.push_back(id);
            }
            self.arm_or_remove(id, &mut turn.ready);
            if has_lost_claim {
                self.release_shared(id);
            }
            return;
        };
        if let [QueuedInput { input: Input::Move(order), .. }] = items.as_slice() {
            live.move_to(order);
            // What the new plan has to do comes next.
            entry.inbox.insert(0, QueuedInput::wake());
        }
        live.payloads.clear();
        entry.phase = Phase::InFlight;
        let evict_policy = task_work::evict_policy(&self.task_queue);
        let take = task_work::limit_slots(&mut self.task_queue, entry.org, id, &advanced.effects, now);
        let consumed = inbox_rows::consumed(&items, &answers, &live.run);
        let change = StatusChange::of(&record);
        let write = live.write((entry.org, id), record.seal(), change.end, advanced.payloads, evict_policy, take);
        let outgoing = advanced.outgoing.into_iter().map(|row| inbox_rows::outgoing(entry.org, id, row, now)).collect();
        let waits = live.wait_change(entry.org, id, &record.events);
        let tokens = live.new_callbacks(&record.events);
        let tokens =
            tokens.map(|step| token(entry.org, id, step, &wait_url(&live.run.callback_key(&live.version.plan, step))));
        let tokens = tokens.collect();
        turn.batch.runs.push(RunWrite { consumed, outgoing, waits, tokens, ..write });
        turn.pending.push(PendingRun { items, answers, effects: advanced.effects, change });
        if planted_bugs::is(Bug::LeaseBeforeCommit) {
            self.deliver_early(id, turn);
        }
    }

    /// Releases what a commit allows and takes back what it refused.
    pub fn settle(&mut self, turn: Turn<T>, result: Result<Vec<WriteVerdict>, store::Error>) -> Released<T> {
        let aborts = std::mem::take(&mut self.aborts);
        let inbox_answers = self.inbox_rows.take_answers();
        let closed_children = self.inbox_rows.take_closings();
        let mut released =
            Released { replies: turn.ready, aborts, inbox_answers, closed_children, ..Default::default() };
        if planted_bugs::is(Bug::NotificationBeforeCommit) {
            for write in &turn.batch.runs {
                released.notifications.extend(write.notifications.iter().map(|number| (write.org, write.run, *number)));
            }
        }
        let result = match result {
            Err(store::Error::Unknown(_)) if planted_bugs::is(Bug::UnknownIsSuccess) => {
                Ok(vec![WriteVerdict::Committed; turn.batch.runs.len()])
            }
            Err(store::Error::Unknown(why)) if planted_bugs::is(Bug::UnknownIsFailed) => {
                Err(store::Error::Unavailable(why))
            }
            result => result,
        };
        match result {
            Ok(verdicts) => {
                for ((write, pending), verdict) in turn.batch.runs.iter().zip(turn.pending).zip(verdicts) {
                    if verdict != WriteVerdict::Committed {
                        self.undo_leases(&pending.effects);
                    }
                    match verdict {
                        WriteVerdict::Committed => self.committed(write, pending, &mut released),
                        WriteVerdict::Conflict if write.atomic_group.is_some() => {
                            let reply = Reply::Unavailable("a run with this id already exists".into());
                            self.reject(write.run, pending.items, &reply, &mut released.replies);
                        }
                        WriteVerdict::Conflict => self.retry_or_reject(write, pending.items, None, &mut released),
                        WriteVerdict::Full => {
                            write.limit_slots.take.iter().for_each(|row| self.task_queue.slot_contested(&row.slot));
                            self.retry_or_reject(write, pending.items, None, &mut released);
                        }
                        WriteVerdict::KeyTaken { run, fingerprint } => {
                            let taken = Reply::KeyTaken { run, fingerprint };
                            self.reject(write.run, pending.items, &taken, &mut released.replies);
                        }
                        WriteVerdict::Undone => {
                            self.reject(write.run, pending.items, &Reply::Undone, &mut released.replies)
                        }
                    }
                }
            }
            Err(error) => {
                let reply = match &error {
                    store::Error::Unknown(why) => Reply::Unknown(why.clone()),
                    other => Reply::Unavailable(other.to_string()),
                };
                for (write, pending) in turn.batch.runs.iter().zip(turn.pending) {
                    self.undo_leases(&pending.effects);
                    self.retry_or_reject(write, pending.items, Some(&reply), &mut released);
                }
            }
        }
        self.answer_workers(&mut released.replies);
        self.spare_writes = turn.batch.runs;
        self.spare_writes.clear();
        self.spare_writes.shrink_to(SPARE_WRITES_MAX);
        released
    }

    /// Drops a run that was not created. Its creator gets the reason, every other caller `NotFound`.
    fn reject(&mut self, run: RunId, items: Vec<QueuedInput<T>>, why: &Reply, replies: &mut Vec<(T, Reply)>) {
        let later = self.runs.remove(&run).map(|entry| entry.inbox).unwrap_or_default();
        for item in items.into_iter().chain(later) {
            self.inbox_rows.forget(&item);
            let reply = if matches!(item.input, Input::Start { .. }) { why.clone() } else { Reply::NotFound };
            replies.extend(item.reply_to.map(|reply_to| (reply_to, reply)));
        }
        self.leave_group(run);
        self.forget_watchers(run, replies);
    }

    fn committed(&mut self, write: &RunWrite, pending: PendingRun<T>, released: &mut Released<T>) {
        let run = write.run;
        let Some(entry) = self.runs.get_mut(&run) else { return };
        let Some(live) = entry.live.as_mut() else { return };
        entry.phase = Phase::Resident;
        self.fired += u64::from(std::mem::take(&mut entry.is_due));
        live.seq += 1;
        live.updated_at = self.now;
        live.is_moving = false;
        live.stored_bytes = match &write.snapshot {
            Some(snapshot) => StoredBytes::new(Some(snapshot), &[]),
            None => live.stored_bytes.with_record(&write.record),
        };
        released.moved.extend(live.is_shared_copy.then_some((entry.org, run)));
        let StatusChange { end, is_reopened } = pending.change;
        released.ended += u64::from(end.is_some());
        if write.after == 0 || end.is_some() || is_reopened {
            released.touches_remote_group |= live
                .row
                .concurrency_group
                .as_ref()
                .is_some_and(|concurrency_group| !self.nodes.keeps(&concurrency_group.id));
        }
        released.notifications.extend(write.notifications.iter().map(|number| (entry.org, run, *number)));
        if let Some(row) = &write.row {
            live.row = row.clone();
        }
        live.update_rows(&write.ready);
        live.update_waits(&write.waits);
        live.update_slots(&write.limit_slots);
        released.posted.extend(task_work::free_slots(&mut self.task_queue, &write.limit_slots.free, self.now));
        released.started += u64::from(write.after == 0);
        let (status, created_at) = (live.run.status(), live.run.state.created_at);
        for (item, answer) in pending.items.into_iter().zip(pending.answers) {
            self.inbox_rows.forget(&item);
            if let Some(reply_to) = item.reply_to {
                released.replies.push((reply_to, Reply::Answer { answer, status, created_at }));
            }
        }
        let (org, plan) = (entry.org, live.version.clone());
        for effect in pending.effects {
            match effect {
                Effect::LeaseTask { .. }
                | Effect::Enqueue { .. }
                | Effect::Dequeue { .. }
                | Effect::LeaseEnded { .. } => {
                    released.leased += u64::from(matches!(effect, Effect::LeaseTask { .. }));
                    released.posted.extend(task_work::queue_without_claim(
                        &mut self.task_queue,
                        org,
                        &effect,
                        self.now,
                    ));
                    task_work::apply_effect(&mut self.task_queue, org, run, live, effect, self.now);
                }
                Effect::Abort { step, fence, is_leased: true } => {
                    let is_plain = plan.plan.layout().form == Form::Task;
                    self.task_queue.cancel_lease(run, step, fence, is_plain);
                }
                Effect::AdoptLease => {
                    task_work::adopt_leases(&mut self.task_queue, &self.nodes, org, run, live, self.now)
                }
                Effect::Execute { step, key, attempt, repeats, fence, work } => {
                    released.steps += 1;
                    self.executing.insert((run, fence));
                    let org = entry.org;
                    released.dispatch.push(Dispatch { org, run, step, key, attempt, repeats, fence, work });
                }
                Effect::Abort { fence, .. } => {
                    self.executing.remove(&(run, fence));
                    released.aborts.push((run, fence));
                }
            }
        }
        if !entry.inbox.is_empty() && !entry.is_queued {
            entry.is_queued = true;
            self.queue.push_back(run);
        }
        self.arm_or_remove(run, &mut released.replies);
        if write.after == 0 {
            self.supersede(self.concurrency_groups.supersedes(run));
        }
        self.send_rows(&write.outgoing, released);
    }

    /// Arms the timer of a run. If the run has ended, on whichever node, answers its watchers and leaves its
    /// concurrency group. Removes the run from memory if it is evicted or has ended and has no inputs.
    fn arm_or_remove(&mut self, id: RunId, replies: &mut Vec<(T, Reply)>) {
        let Some(status) = self.runs.get(&id).and_then(|s| s.live.as_ref()).map(|live| live.run.status()) else {
            return;
        };
        if status.is_terminal() && !(planted_bugs::is(Bug::GroupNotFreed) && status == RunStatus::Cancelled) {
            self.leave_group(id);
        }
        let Some(entry) = self.runs.get_mut(&id) else { return };
        let Some(live) = entry.live.as_mut() else { return };
        // A retry that waits for its payload is past due: the payload wakes the run, not its due time.
        let due = live.run.next_due().filter(|at| live.fetching.is_empty() || *at > self.now);
        if live.armed != due {
            if let Some(at) = live.armed {
                self.due_times.remove(&(at, id));
            }
            if let Some(at) = due {
                self.due_times.insert((at, id));
            }
            live.armed = due;
        }
        if status.is_terminal() {
            let watchers = self.watchers.remove(&id).unwrap_or_default();
            replies.extend(watchers.into_iter().map(|reply_to| (reply_to, Reply::Ended(status))));
        }
        if !(status.is_terminal() || live.row.evicted) || !entry.inbox.is_empty() || !live.fetching.is_empty() {
            return;
        }
        // Its timer row brings it back. `due_times` keeps only what the next read of timer rows would miss.
        match due {
            Some(at) if at <= self.now.after(crate::TIMER_READ_AHEAD) => drop(self.evicted.insert(id, entry.org)),
            Some(at) => drop(self.due_times.remove(&(at, id))),
            None => {}
        }
        let left = self.runs.remove(&id).and_then(|entry| entry.live);
        if let Some(live) = left {
            live.stored.iter().for_each(|row| self.task_queue.evict(&row.queue, row.position, self.now));
            if !status.is_terminal() && self.nodes.is_alone() {
                let LiveRun { version, run, seq, row, stored_bytes, .. } = *live;
                self.recent.put(id, Resumed { version, run, seq, row, stored_bytes });
            }
        }
    }

    /// Answers the watchers of a run that does not exist.
    fn forget_watchers(&mut self, run: RunId, replies: &mut Vec<(T, Reply)>) {
        let reply_channels = self.watchers.remove(&run).unwrap_or_default();
        replies.extend(reply_channels.into_iter().map(|reply_to| (reply_to, Reply::NotFound)));
    }

    /// The record was not committed, or its outcome is unknown, so the copy in memory is out of date. Drops it and
    /// reads the run again. Internal inputs, and inputs that only met a conflict, are given to the run again. When a
    /// caller's input has met too many conflicts, all inputs of callers go to the inbox, so that they stay in order.
    fn retry_or_reject(
        &mut self,
        write: &RunWrite,
        items: Vec<QueuedInput<T>>,
        reply: Option<&Reply>,
        released: &mut Released<T>,
    ) {
        let (org, run) = (write.org, write.run);
        let mut again = Vec::new();
        let most = if store::crash::is_armed() { 0 } else { CONFLICTS_MAX };
        let has_lost_too_often = |item: &QueuedInput<T>| item.reply_to.is_some() && item.conflicts >= most;
        let is_deferred = reply.is_none() && items.iter().any(has_lost_too_often);
        // Claims were revoked: the run makes its tasks ready again once it has been read. Expired leases are also found
        // again then, and a heartbeat may have arrived since.
        for mut item in items.into_iter().filter(|item| !item.is_claim() && !item.is_loss()) {
            if item.source.is_some() && item.reply_to.is_none() {
                // Another node may have consumed the row.
                self.inbox_rows.forget(&item);
                released.reads_inbox = true;
                continue;
            }
            item.conflicts += 1;
            match (item.reply_to.take(), reply) {
                (Some(reply_to), Some(reply)) => released.replies.push((reply_to, reply.clone())),
                (Some(reply_to), None) if is_deferred => match StoredInput::of(item.input) {
                    Some(input) => released.deferred.push(DeferredInput { org, run, body: input.seal(), reply_to }),
                    None => {
                        let reply = Reply::Unavailable("the run is changing too fast".into());
                        released.replies.push((reply_to, reply));
                    }
                },
                (reply_to, _) => again.push(QueuedInput { reply_to, ..item }),
            }
        }
        let old = self.runs.remove(&run);
        self.hide_tasks(old.as_ref().and_then(|entry| entry.live.as_deref()));
        if let Some(at) = old.as_ref().and_then(|entry| entry.live.as_ref()).and_then(|live| live.armed) {
            self.due_times.remove(&(at, run));
        }
        again.extend(old.map(|entry| entry.inbox).unwrap_or_default());
        if write.after > 0 || reply.is_none_or(|r| matches!(r, Reply::Unknown(_))) {
            // Read it again even without inputs: it may have timers, or attempts to start over.
            again.push(QueuedInput::wake());
        } else {
            self.forget_watchers(run, &mut released.replies);
            self.leave_group(run);
        }
        for item in again {
            self.push(org, run, item);
        }
    }
}

/// The row of a callback token. The token is the last part of the callback URL.
fn token(org: OrgId, run: RunId, step: u32, url: &str) -> Wait {
    let token = url.rsplit('/').next().unwrap_or_default();
    Wait { org, run, step, token_hash: secret::token_hash(token), kind: "webhook".into() }
}

impl<T> QueuedInput<T> {
    fn wake() -> Self {
        QueuedInput::internal(Input::Wake)
    }

    /// An input of the engine itself, without a caller that waits for the answer.
    fn internal(input: Input) -> Self {
        QueuedInput { input, reply_to: None, source: None, conflicts: 0, is_checked: false }
    }
}
