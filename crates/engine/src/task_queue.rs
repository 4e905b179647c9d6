//! The board: tasks that wait to be claimed, workers that wait for tasks, and who has what until when.
//!
//! ```text
//!   post(card) ─▶ lines ─ lanes ─ cards ─┐
//!                                        ├─pair()─▶ claims ─▶ (kernel, commit) ─▶ grants ─▶ answers to polls
//!   open(poll) ─▶ polls ─────────────────┘
//! ```
//!
//! A *line* is a type, a *lane* the tasks of a type that share a key, a *card* one task that waits. It is a state
//! machine like the mailbox that owns it: no clock, no I/O. Nothing on it is the truth: cards follow from runs
//! that have a ready step, grants from runs with a leased one, so all of it is found again after a crash, and
//! limits are counted from grants that exist.
//!
//! Tasks whose runs have left memory are rows of the store. Of each lane the board knows them up to a *horizon*;
//! nothing beyond it is handed out before the rows in between have been read. Where nodes share a store, all tasks are
//! such rows, and what is known of them is read again when it may have changed (`nodes` is given).

mod claims;
mod leases;
mod limit_slots;
#[cfg(test)]
mod tests;
mod type_queue;

pub use claims::{Cancellation, ClaimReply, ClaimRequest, Pattern, Task};
pub use leases::{BlockedReason, ClaimStatus, HeldLease, RecordedLease};
pub use type_queue::{PAGE, TypeQueue, TypeRules};

use crate::nodes::Nodes;
use claims::{ClaimIndex, OpenClaim, Worker};
use kernel::advance::{Offer, Wanted};
use kernel::{OrgId, RunId, Timestamp};
use limit_slots::{AcquiredSlots, LimitSlots};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use store::{IdMap, LimitScope, LimitSlot, LimitSlotRow, QueueKey, QueuePosition, TypeRow, WorkerRow};
use type_queue::Horizon;

/// How much of what waits is kept in memory.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Unclaimed tasks whose runs stay in memory; with more, new ones leave it at once.
    pub resident: usize,
    /// Rows asked for at once.
    pub page: usize,
    /// Rows of a lane that are kept at most…
    pub window: usize,
    /// …and how few are left when more are read.
    pub low: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { resident: 16_384, page: PAGE, window: 3 * PAGE, low: PAGE }
    }
}

/// Pause before rows that could not be read are asked for again.
const READ_PAUSE: kernel::Span = kernel::Span::from_millis(200);
/// For how long a node that lost a task to another one keeps to its own first.
const CONTENTION: kernel::Span = kernel::Span::from_secs(10);
/// A worker that was not heard of for so long does not count as one that is there.
pub const ABSENT: kernel::Span = kernel::Span::from_secs(90);

/// A type of an organisation.
type TypeKey = (OrgId, Arc<str>);
/// A worker of an organisation.
type WorkerKey = (OrgId, String);

pub struct TaskQueue<T> {
    sizes: Sizes,
    /// Those that share the store, if it can be shared.
    nodes: Option<Nodes>,
    /// Until then others are taken to reach for the same tasks, because one was lost to them.
    contended_until: Timestamp,
    type_queues: BTreeMap<TypeKey, TypeQueue>,
    open_claims: BTreeMap<u64, OpenClaim<T>>,
    /// Open polls that want more.
    claim_index: ClaimIndex,
    /// Polls that are to be answered as soon as nothing is on its way to them.
    urgent: Vec<u64>,
    /// Hand-overs that are not durable yet.
    pending_leases: IdMap<u64, PendingLease>,
    leases: BTreeMap<(RunId, u32), HeldLease>,
    /// Tasks that are durable and whose polls have not been answered yet, because more is on its way to them.
    undelivered: IdMap<(RunId, u32), u64>,
    expiries: BTreeSet<(Timestamp, RunId, u32)>,
    /// Lanes held up by a rate, and until when.
    rate_releases: BTreeSet<(Timestamp, QueueKey)>,
    workers: BTreeMap<WorkerKey, Worker>,
    /// What workers hold and nobody wants any more, until they were told.
    cancellations: HashMap<WorkerKey, Vec<PendingCancellation>>,
    /// Lines that may have something for somebody since the last pairing.
    changed_types: BTreeSet<TypeKey>,
    /// Lanes of which more is to be read, and after what.
    refills: Vec<(QueueKey, Option<QueuePosition>)>,
    /// Types whose lanes are to be read, and after what key.
    key_reads: Vec<(OrgId, String, Option<String>)>,
    /// Types whose seats are to be read.
    slot_reads: Vec<(OrgId, String)>,
    /// Cards whose runs are in memory.
    resident: usize,
    /// Counts every hand-over, so that lanes can be served in turn.
    served: u64,
    /// What waits and what workers hold is not known in full. Until it is, nothing is handed out: it might not be
    /// what goes first, or more than a limit allows.
    is_partial: bool,
}

/// A worker need not go on with something. An answer can be lost on its way, and nobody hears of that: it is told twice.
#[derive(Clone, Copy)]
struct PendingCancellation {
    run: RunId,
    step: u32,
    fence: u64,
    is_plain: bool,
    /// When it would have lost it anyway.
    until: Timestamp,
    is_delivered: bool,
}

/// A task on its way to a worker.
struct PendingLease {
    claim: u64,
    type_key: TypeKey,
    key: Arc<str>,
    /// The card it was, unless it never was one; true if its run is in memory.
    task: Option<(QueuePosition, bool)>,
    limit_slots: AcquiredSlots,
}

/// A card and the worker it goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    pub offer: Offer,
}

impl<T> Default for TaskQueue<T> {
    fn default() -> Self {
        TaskQueue {
            sizes: Sizes::default(),
            nodes: None,
            contended_until: Timestamp::default(),
            type_queues: BTreeMap::new(),
            open_claims: BTreeMap::new(),
            claim_index: ClaimIndex::default(),
            urgent: Vec::new(),
            pending_leases: IdMap::default(),
            leases: BTreeMap::new(),
            undelivered: IdMap::default(),
            expiries: BTreeSet::new(),
            rate_releases: BTreeSet::new(),
            workers: BTreeMap::new(),
            cancellations: HashMap::new(),
            changed_types: BTreeSet::new(),
            refills: Vec::new(),
            key_reads: Vec::new(),
            slot_reads: Vec::new(),
            resident: 0,
            served: 0,
            is_partial: false,
        }
    }
}

impl<T> TaskQueue<T> {
    pub fn new(sizes: Sizes) -> Self {
        TaskQueue { sizes, ..Default::default() }
    }

    /// The store is shared by these.
    pub fn share(&mut self, nodes: Nodes) {
        self.nodes = Some(nodes);
    }

    pub fn is_shared(&self) -> bool {
        self.nodes.is_some()
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Those who wait for something, when there will be nothing.
    pub fn into_reply_channels(self) -> impl Iterator<Item = T> {
        self.open_claims.into_values().map(|claim| claim.reply_to)
    }

    /// When it next has something to do on its own.
    pub fn next_due(&self) -> Option<Timestamp> {
        let lease = self.expiries.first().map(|(at, ..)| *at);
        let release = self.rate_releases.first().map(|(at, _)| *at);
        lease.into_iter().chain(release).min()
    }

    /// Is there something to pair or to read right now?
    pub fn has_work(&self) -> bool {
        !self.changed_types.is_empty()
            || !self.refills.is_empty()
            || !self.key_reads.is_empty()
            || !self.slot_reads.is_empty()
            || self.has_answers()
    }

    /// So many tasks wait in memory that the next one should leave it; or whoever comes next may come to another node.
    pub fn is_crowded(&self) -> bool {
        // A test that is after what lies behind it need not make thousands.
        self.is_shared() || self.resident >= if store::crash::is_armed() { 1 } else { self.sizes.resident }
    }

    /// Unclaimed tasks whose runs are in memory.
    pub fn resident(&self) -> usize {
        self.resident
    }

    /// Tasks that workers have.
    pub fn leased(&self) -> usize {
        self.leases.len()
    }

    /// Tasks that wait, in memory or not.
    pub fn ready(&self) -> u64 {
        self.type_queues.values().map(|type_queue| type_queue.ready).sum()
    }

    /// Types with tasks that wait and no worker that would take them.
    pub fn unserved(&self, now: Timestamp) -> u64 {
        let is_unserved = |(key, type_queue): &(&TypeKey, &TypeQueue)| {
            type_queue.ready > 0 && self.workers_for(key.0, &key.1, now).0 == 0
        };
        self.type_queues.iter().filter(is_unserved).count() as u64
    }

    /// Takes over what is known about a type, since when if that was before this process.
    pub fn apply_type(&mut self, row: &TypeRow, began: Option<Timestamp>, now: Timestamp) {
        let key: TypeKey = (row.org, Arc::from(row.name.as_str()));
        let type_queue = self.type_queue(key.clone());
        type_queue.apply_type(row, began);
        self.refresh_line(&key, now);
    }

    /// What the last process left in the store.
    pub fn restore(&mut self, queues: Vec<(QueueKey, u64)>, now: Timestamp) {
        for (queue, count) in queues {
            let key: TypeKey = (queue.org, queue.name.as_str().into());
            let type_queue = self.type_queue(key.clone());
            type_queue.ready += count;
            type_queue.key_queue(&queue.key).horizon = Horizon::Nothing;
            self.refresh(&key, &queue.key, now);
        }
    }

    /// What the last process had in memory is being found again, or all of it has been.
    pub fn set_recovering(&mut self, is_partial: bool) {
        if self.is_partial && !is_partial {
            self.changed_types.extend(self.type_queues.keys().cloned());
        }
        self.is_partial = is_partial;
    }

    /// A task may be claimed from now on.
    pub fn enqueue(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key = (queue.org, Arc::from(queue.name.as_str()));
        self.type_queue(key.clone()).ready += 1;
        self.make_ready(queue, position, now);
    }

    /// A task may be claimed, and its run is in memory. (It may have been there before.)
    pub fn make_ready(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key = (queue.org, Arc::from(queue.name.as_str()));
        self.resident += usize::from(self.type_queue(key.clone()).key_queue(&queue.key).make_ready(position));
        self.refresh(&key, &queue.key, now);
    }

    /// The same for a run that was read: a task the store has no row for may be new to the board.
    pub fn restore_ready(&mut self, queue: &QueueKey, position: QueuePosition, is_stored: bool, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let is_known = self.type_queue(key).key_queue(&queue.key).tasks.contains_key(&position);
        match is_known || is_stored {
            true => self.make_ready(queue, position, now),
            false => self.enqueue(queue, position, now),
        }
    }

    /// Its run has left memory; the store has a row for it.
    pub fn evict(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let window = self.sizes.window;
        let state = self.type_queue(key.clone()).key_queue(&queue.key);
        if state.tasks.get(&position) == Some(&true) {
            state.evict(position, window, now);
            self.resident -= 1;
        }
        self.refresh(&key, &queue.key, now);
    }

    /// A task may not be claimed any more: somebody has it, or nobody needs to.
    pub fn dequeue(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let type_queue = self.type_queue(key.clone());
        type_queue.ready = type_queue.ready.saturating_sub(1);
        self.resident -= usize::from(type_queue.key_queue(&queue.key).take(position));
        self.refresh(&key, &queue.key, now);
    }

    /// Rows of a lane that were read, at most a page; or they could not be read.
    pub fn refilled(&mut self, queue: &QueueKey, rows: Option<Vec<QueuePosition>>, now: Timestamp) {
        let limit = self.sizes.page;
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        if rows.is_none() {
            self.rate_releases.insert((now.after(READ_PAUSE), queue.clone()));
        }
        self.type_queue(key.clone()).key_queue(&queue.key).refilled(rows, limit, now);
        self.refresh(&key, &queue.key, now);
        self.changed_types.insert(key);
    }

    /// How many tasks wait, of every type, as the store says.
    pub fn count(&mut self, ready: Vec<(OrgId, String, u64)>) {
        self.type_queues.values_mut().for_each(|type_queue| type_queue.ready = 0);
        for (org, name, count) in ready {
            self.type_queue((org, name.into())).ready = count;
        }
    }

    /// Another node has a task for this lane that nobody there takes, or room for one.
    pub fn ready_elsewhere(&mut self, queue: &QueueKey, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let (is_wanted, low) = (self.next_claim(&key).is_some(), self.sizes.low);
        let type_queue = self.type_queue(key.clone());
        if let Some(limit_slots) = &mut type_queue.limit_slots {
            limit_slots.is_overtaken = true;
        }
        if !is_wanted {
            type_queue.is_behind = true;
            return;
        }
        type_queue.key_queue(&queue.key).distrust_rows(low);
        if type_queue.blocked_reason(&queue.key, now).is_some() {
            self.read_limit_slots(&key);
        }
        self.refresh(&key, &queue.key, now);
        self.changed_types.insert(key);
    }

    /// There are tasks of these types that wait: their lanes are read when somebody asks for one.
    pub fn mark_behind(&mut self, types: Vec<(OrgId, String)>) {
        for (org, name) in types {
            let key: TypeKey = (org, name.into());
            let type_queue = self.type_queue(key.clone());
            type_queue.is_behind = true;
            if let Some(limit_slots) = &mut type_queue.limit_slots {
                limit_slots.is_overtaken = true;
            }
            if self.next_claim(&key).is_some() {
                self.read_limit_slots(&key);
                self.changed_types.insert(key);
            }
        }
    }

    /// Who has the seats of a type is to be read, unless it has no limits.
    fn read_limit_slots(&mut self, key: &TypeKey) {
        let type_queue = self.type_queue(key.clone());
        let is_limited = type_queue.is_limited();
        let Some(limit_slots) =
            type_queue.limit_slots.as_mut().filter(|limit_slots| is_limited && !limit_slots.is_reading)
        else {
            return;
        };
        (limit_slots.is_reading, limit_slots.is_overtaken) = (true, false);
        self.slot_reads.push((key.0, key.1.to_string()));
    }

    /// Types whose seats are to be read.
    pub fn slot_reads(&mut self) -> Vec<(OrgId, String)> {
        std::mem::take(&mut self.slot_reads)
    }

    /// Who has which seats of a type; or they could not be read, and are read again in a while.
    pub fn limit_slots_read(&mut self, org: OrgId, name: &str, rows: Option<&[LimitSlotRow]>, now: Timestamp) {
        let key: TypeKey = (org, Arc::from(name));
        let under_way: Vec<AcquiredSlots> = self
            .pending_leases
            .values()
            .filter(|lease| lease.type_key == key)
            .map(|lease| lease.limit_slots.clone())
            .collect();
        let Some(limit_slots) = &mut self.type_queue(key.clone()).limit_slots else { return };
        limit_slots.is_reading = false;
        let Some(rows) = rows else { return };
        limit_slots.replace(rows, under_way.into_iter());
        limit_slots.is_unsure = false;
        self.refresh_line(&key, now);
        self.changed_types.insert(key);
    }

    /// A seat that was to be taken is another's.
    pub fn slot_contested(&mut self, slot: &LimitSlot) {
        let key: TypeKey = (slot.org, Arc::from(slot.name.as_str()));
        if let Some(limit_slots) = &mut self.type_queue(key.clone()).limit_slots {
            (limit_slots.is_unsure, limit_slots.is_overtaken) = (true, true);
        }
        self.read_limit_slots(&key);
    }

    /// A seat is nobody's any more.
    pub fn freed(&mut self, slot: &LimitSlot, now: Timestamp) {
        let key: TypeKey = (slot.org, Arc::from(slot.name.as_str()));
        if let Some(limit_slots) = &mut self.type_queue(key.clone()).limit_slots {
            limit_slots.free(slot.of, &slot.key, slot.number);
        }
        self.refresh(&key, &slot.key, now);
        self.changed_types.insert(key);
    }

    /// What a hand-over to this promise takes up, now that it is recorded.
    pub fn slots_of(&mut self, offer_id: u64, org: OrgId, run: RunId, step: u32, now: Timestamp) -> Vec<LimitSlotRow> {
        let Some(PendingLease { type_key, limit_slots, .. }) = self.pending_leases.get_mut(&offer_id) else {
            return Vec::new();
        };
        if let Some(type_queue) = self.type_queues.get_mut(type_key) {
            type_queue.restart_rate_slots(limit_slots, now);
        }
        let row = |(of, key, number, until): &(LimitScope, Arc<str>, u32, Timestamp)| LimitSlotRow {
            slot: LimitSlot { org, name: type_key.1.to_string(), of: *of, key: key.to_string(), number: *number },
            run,
            step,
            until: *until,
        };
        limit_slots.iter().map(row).collect()
    }

    /// Types whose lanes are to be read.
    pub fn key_reads(&mut self) -> Vec<(OrgId, String, Option<String>)> {
        std::mem::take(&mut self.key_reads)
    }

    /// The keys of a type that have tasks, at most a page after the one asked for; or they could not be read.
    pub fn keys_read(&mut self, org: OrgId, name: &str, keys: Option<Vec<String>>, now: Timestamp) {
        let key: TypeKey = (org, Arc::from(name));
        let (low, page) = (self.sizes.low, self.sizes.page);
        let type_queue = self.type_queue(key.clone());
        type_queue.is_asking = false;
        // Whatever went wrong, it is looked at again in a while.
        let Some(keys) = keys else { return };
        let is_first = type_queue.asked_after.is_none();
        type_queue.asked_after = (keys.len() >= page).then(|| keys.last().cloned()).flatten();
        type_queue.is_behind = type_queue.asked_after.is_some();
        type_queue.keys_read(&keys, is_first && type_queue.asked_after.is_none(), low);
        for key_queue in keys {
            self.refresh(&key, &key_queue, now);
        }
        self.changed_types.insert(key);
    }

    /// The run of these cards is not what it was: it says again what can be claimed when it has been read.
    pub fn hide(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let Some(key_queue) =
            self.type_queues.get_mut(&key).and_then(|type_queue| type_queue.key_queues.get_mut(&*queue.key))
        else {
            return;
        };
        self.resident -= usize::from(key_queue.take(position));
        self.refresh(&key, &queue.key, now);
    }

    /// Would somebody who waits here take a task of this lane?
    pub fn is_wanted(&mut self, queue: &QueueKey, now: Timestamp) -> bool {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        self.next_claim(&key).is_some() && self.type_queue(key).blocked_reason(&queue.key, now).is_none()
    }

    /// Lanes to be read on.
    pub fn refills(&mut self) -> Vec<(QueueKey, Option<QueuePosition>)> {
        std::mem::take(&mut self.refills)
    }

    /// Time has passed: answers whose lease has ended, and lets lanes go on that a rate held up.
    pub fn advance_time(&mut self, now: Timestamp) -> Vec<(OrgId, RunId, u32, u64)> {
        while let Some((at, queue)) = self.rate_releases.first().cloned().filter(|(at, _)| *at <= now) {
            self.rate_releases.remove(&(at, queue.clone()));
            let key: TypeKey = (queue.org, queue.name.as_str().into());
            self.type_queue(key.clone()).key_queue(&queue.key).resume_reading();
            self.refresh(&key, &queue.key, now);
        }
        self.expire(now)
    }

    /// Brings workers and cards together. What comes out is on its way to the kernel, which may refuse.
    pub fn pair(&mut self, now: Timestamp) -> Vec<Claim> {
        let mut claims = Vec::new();
        for claim_id in self.claim_index.take_new() {
            self.fill(claim_id, now, &mut claims);
        }
        for key in std::mem::take(&mut self.changed_types) {
            while let Some(claim_id) = self.next_claim(&key) {
                let before = claims.len();
                self.fill(claim_id, now, &mut claims);
                if claims.len() == before {
                    break;
                }
            }
        }
        claims
    }

    /// A poll that would take a task which has just become ready: of the worker that just did something for the
    /// same run, if it asks for more, else of whoever waits longest. Nobody, when it would pass another task by.
    pub fn offer(
        &mut self,
        org: OrgId,
        wanted: &Wanted<'_>,
        worker: Option<&str>,
        is_new: bool,
        now: Timestamp,
    ) -> Option<Offer> {
        let key: TypeKey = (org, Arc::from(wanted.name));
        let is_partial = self.is_partial;
        let type_queue = self.type_queue(key.clone());
        let key_queue = type_queue.key_queue(wanted.key);
        let has_others = is_new && (!key_queue.tasks.is_empty() || key_queue.horizon != Horizon::All);
        // A seat that turns out to be taken must not keep a run from being created.
        let is_at_risk = is_new && type_queue.is_limited();
        if has_others || is_at_risk || is_partial || type_queue.blocked_reason(wanted.key, now).is_some() {
            return None;
        }
        let claim_id = self.claim_for(&key, worker)?;
        let may_pass = |task_queue: &Self| {
            task_queue.best(claim_id, now).is_none_or(|(_, best, _)| best.priority >= wanted.priority)
        };
        if !may_pass(self) {
            return None;
        }
        self.offer_id(claim_id, &key, wanted.key, None, now)
    }

    /// A hand-over did not come about, for no fault of the task: it waits again.
    pub fn revoke(&mut self, offer_id: u64, now: Timestamp) {
        let Some(PendingLease { type_key, key, task, .. }) = self.drop_pending_lease(offer_id, now) else { return };
        match task {
            Some(task) => self.restore_task(&type_key, &key, task, now),
            None => self.refresh(&type_key, &key, now),
        }
    }

    fn restore_task(
        &mut self,
        type_key: &TypeKey,
        key: &str,
        (position, is_resident): (QueuePosition, bool),
        now: Timestamp,
    ) {
        let key_queue = self.type_queue(type_key.clone()).key_queue(key);
        match is_resident {
            true => self.resident += usize::from(key_queue.make_ready(position)),
            false => key_queue.put_back(position),
        }
        self.refresh(type_key, key, now);
    }

    /// The run says that the task is not to be had.
    pub fn refuse(&mut self, offer_id: u64, now: Timestamp) {
        if let Some(PendingLease { type_key, key, .. }) = self.drop_pending_lease(offer_id, now) {
            self.refresh(&type_key, &key, now);
        }
    }

    /// The run cannot be read just now: what is known of its lane's rows is read again, in a while.
    pub fn retry_later(&mut self, offer_id: u64, now: Timestamp) {
        let Some(PendingLease { type_key, key, .. }) = self.drop_pending_lease(offer_id, now) else { return };
        let key_queue = self.type_queue(type_key.clone()).key_queue(&key);
        key_queue.forget_rows();
        key_queue.back_off();
        let (org, name) = (type_key.0, type_key.1.to_string());
        self.rate_releases.insert((now.after(READ_PAUSE), QueueKey { org, name, key: key.to_string() }));
        self.refresh(&type_key, &key, now);
    }

    /// Gives the room back and the poll its credit.
    fn drop_pending_lease(&mut self, offer_id: u64, now: Timestamp) -> Option<PendingLease> {
        let broken = self.pending_leases.remove(&offer_id)?;
        self.contended_until = now.after(CONTENTION);
        let type_queue = self.type_queue(broken.type_key.clone());
        type_queue.release_slots(&broken.limit_slots);
        type_queue.held = type_queue.held.saturating_sub(1);
        let key_queue = type_queue.key_queue(&broken.key);
        key_queue.held = key_queue.held.saturating_sub(1);
        if let Some(claim) = self.open_claims.get_mut(&broken.claim) {
            claim.pending -= 1;
            claim.credits += 1;
            self.claim_index.again(broken.claim);
        }
        self.changed_types.insert(broken.type_key.clone());
        Some(broken)
    }

    fn type_queue(&mut self, key: TypeKey) -> &mut TypeQueue {
        let is_shared = self.nodes.is_some();
        self.type_queues.entry(key).or_insert_with(|| TypeQueue::new(is_shared))
    }

    /// Puts a lane where it belongs among those of its line that can be served.
    fn refresh(&mut self, key: &TypeKey, key_queue: &str, now: Timestamp) {
        let Some(type_queue) = self.type_queues.get_mut(key) else { return };
        let release = type_queue.refresh(key_queue, self.sizes.low, now);
        // Whoever asks later looks for itself.
        if !self.open_claims.is_empty() && type_queue.can_serve() {
            self.changed_types.insert(key.clone());
        }
        if let Some(at) = release {
            self.rate_releases
                .insert((at, QueueKey { org: key.0, name: key.1.to_string(), key: key_queue.to_owned() }));
        }
    }

    fn refresh_line(&mut self, key: &TypeKey, now: Timestamp) {
        let Some(type_queue) = self.type_queues.get(key) else { return };
        let key_queues: Vec<Arc<str>> = type_queue.key_queues.keys().cloned().collect();
        for key_queue in key_queues {
            self.refresh(key, &key_queue, now);
        }
    }

    /// The task a poll should get next: its line, its position and its lane.
    fn best(&self, claim_id: u64, now: Timestamp) -> Option<(TypeKey, QueuePosition, Arc<str>)> {
        let claim = self.open_claims.get(&claim_id).filter(|_| !self.is_partial)?;
        let contenders = self.nodes.as_ref().filter(|_| now < self.contended_until && !claim.is_strict);
        let mut best: Option<(TypeKey, QueuePosition, Arc<str>)> = None;
        for pattern in &claim.patterns {
            for (key, type_queue) in pattern.range(&self.type_queues, claim.org) {
                if !type_queue.rules.suits(claim.runtime.as_deref()) || claim.is_strict && type_queue.is_unread() {
                    continue;
                }
                let Some((key_queue, first)) = type_queue.first(contenders) else { continue };
                if best.as_ref().is_none_or(|(_, than, _)| first < *than) {
                    best = Some((key.clone(), first, key_queue));
                }
            }
        }
        best
    }

    /// Gives a poll as much as it wants and there is; asks for rows where there may be more.
    fn fill(&mut self, claim_id: u64, now: Timestamp, claims: &mut Vec<Claim>) {
        while self.open_claims.get(&claim_id).is_some_and(OpenClaim::takes_more) {
            let Some((key, task, key_queue)) = self.best(claim_id, now) else { break };
            let is_shared = self.nodes.as_ref().is_some_and(|nodes| !nodes.is_alone());
            let Some(type_queue) = self.type_queues.get_mut(&key) else { break };
            if is_shared && type_queue.key_queue(&key_queue).is_stale(now) {
                type_queue.key_queue(&key_queue).forget_rows();
                self.refresh(&key, &key_queue, now);
                continue;
            }
            let is_resident = type_queue.key_queue(&key_queue).take(task);
            self.resident -= usize::from(is_resident);
            let Some(offer) = self.offer_id(claim_id, &key, &key_queue, Some((task, is_resident)), now) else {
                self.restore_task(&key, &key_queue, (task, is_resident), now);
                break;
            };
            claims.push(Claim { org: key.0, run: task.run, step: task.step, offer });
        }
        self.read_on(claim_id);
        let Some(claim) = self.open_claims.get(&claim_id) else { return };
        if claim.is_immediate {
            self.urgent.push(claim_id);
        }
        if claim.credits > 0 && (!claim.is_immediate || self.may_get_more(claim)) {
            self.claim_index.put(claim_id, claim);
        }
    }

    /// A hand-over begins: the poll has one credit less and the lane one room less.
    fn offer_id(
        &mut self,
        claim_id: u64,
        key: &TypeKey,
        key_queue: &str,
        task: Option<(QueuePosition, bool)>,
        now: Timestamp,
    ) -> Option<Offer> {
        let served = self.served + 1;
        let from =
            served ^ self.nodes.as_ref().map_or(0, |nodes| nodes.own().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        let limit_slots = self.type_queue(key.clone()).acquire_slots(key_queue, from, now)?;
        let claim = self.open_claims.get_mut(&claim_id)?;
        claim.credits -= 1;
        claim.pending += 1;
        self.served = served;
        let number = |of: LimitScope| limit_slots.iter().find(|slot| slot.0 == of).map_or(0, |slot| slot.2 + 1);
        let (slot, key_slot) = (number(LimitScope::Type), number(LimitScope::Key));
        let offer = Offer { worker: claim.worker.clone(), lease: claim.lease, offer_id: served, slot, key_slot };
        self.pending_leases.insert(
            served,
            PendingLease { claim: claim_id, type_key: key.clone(), key: key_queue.into(), task, limit_slots },
        );
        self.type_queue(key.clone()).serve(key_queue, served, now);
        self.refresh(key, key_queue, now);
        Some(offer)
    }

    /// Asks for the rows of lanes a poll may get something from and that are known only in part.
    fn read_on(&mut self, claim_id: u64) {
        let Some(claim) = self.open_claims.get(&claim_id) else { return };
        let mut wanted: Vec<(TypeKey, Arc<str>)> = Vec::new();
        let (mut mark_behind, mut overtaken): (Vec<TypeKey>, Vec<TypeKey>) = Default::default();
        for pattern in &claim.patterns {
            for (key, type_queue) in pattern.range(&self.type_queues, claim.org) {
                wanted.extend(type_queue.short().map(|key_queue| (key.clone(), key_queue)));
                mark_behind.extend((type_queue.is_behind && !type_queue.is_asking).then(|| key.clone()));
                overtaken.extend(
                    type_queue.limit_slots.as_ref().filter(|limit_slots| limit_slots.is_overtaken).map(|_| key.clone()),
                );
            }
        }
        overtaken.iter().for_each(|key| self.read_limit_slots(key));
        for key in mark_behind {
            let type_queue = self.type_queue(key.clone());
            (type_queue.is_behind, type_queue.is_asking) = (false, true);
            let after = type_queue.asked_after.clone();
            self.key_reads.push((key.0, key.1.to_string(), after));
        }
        let low = self.sizes.low;
        for (key, key_queue) in wanted {
            if let Some(after) = self.type_queue(key.clone()).key_queue(&key_queue).ask(low) {
                self.refills
                    .push((QueueKey { org: key.0, name: key.1.to_string(), key: key_queue.to_string() }, after));
            }
        }
    }

    /// How many workers that claim a type and may have it are there, and when one was last heard of.
    fn workers_for(&self, org: OrgId, name: &str, now: Timestamp) -> (u32, Option<Timestamp>) {
        let rules = self.type_queues.get(&(org, Arc::from(name))).map(|type_queue| &type_queue.rules);
        let claims = |worker: &&Worker| {
            let suits = rules.is_none_or(|rules| rules.suits(worker.row.runtime.as_deref()));
            suits && worker.patterns.iter().any(|pattern| pattern.matches(name))
        };
        let of_org = self.workers.range((org, String::new())..).take_while(|((o, _), _)| *o == org).map(|(_, w)| w);
        let mut count = 0;
        let mut last = None;
        for worker in of_org.filter(claims) {
            count += u32::from(now.since(worker.row.last_seen) < ABSENT);
            last = last.max(Some(worker.row.last_seen));
        }
        (count, last)
    }

    /// Every worker with the number of tasks it has.
    pub fn workers(&self, org: OrgId) -> Vec<(WorkerRow, u32)> {
        let of_org = self.workers.range((org, String::new())..).take_while(|((o, _), _)| *o == org).map(|(_, w)| w);
        of_org.map(|worker| (worker.row.clone(), worker.leased)).collect()
    }

    /// What is going on in a type: waiting, leased, workers that are there.
    pub fn tally(&self, org: OrgId, name: &str, now: Timestamp) -> (u64, u32, u32) {
        let type_queue = self.type_queues.get(&(org, Arc::from(name)));
        let leased =
            |type_queue: &TypeQueue| type_queue.limit_slots.as_ref().map_or(0, LimitSlots::leased).max(type_queue.held);
        let (ready, leased) = type_queue.map_or((0, 0), |type_queue| (type_queue.ready, leased(type_queue)));
        (ready, leased, self.workers_for(org, name, now).0)
    }

    /// Why a task that waits has nobody.
    pub fn claim_status(&mut self, queue: &QueueKey, now: Timestamp) -> ClaimStatus {
        let key: TypeKey = (queue.org, queue.name.as_str().into());
        let (workers, last_seen) = self.workers_for(queue.org, &queue.name, now);
        let blocked_reason = self.type_queue(key).blocked_reason(&queue.key, now);
        ClaimStatus { workers, last_seen, blocked_reason }
    }
}
