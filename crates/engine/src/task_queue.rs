//! The task queue: ready tasks, the open claims of workers, and leases with their deadlines.
//!
//! ```text
//!   enqueue(task) ─▶ type queues ─ key queues ─ ready tasks ─┐
//!                                                            ├─pair()─▶ Claim ─▶ (kernel, commit) ─▶ lease ─▶ reply
//!   open_claim(request) ─▶ open claims ──────────────────────┘
//! ```
//!
//! A *type queue* holds the ready tasks of one type, split into one *key queue* per task key. Like the mailbox that
//! owns it, the task queue is a state machine without a clock and without I/O. It holds no truth of its own:
//! ready tasks follow from runs with a ready step, and leases from runs with a leased step. So recovery finds all of
//! it again after a crash, and limits count leases that exist.
//!
//! Ready tasks of evicted runs are rows of the store. The queue knows the rows of each key queue up to its *read
//! position*, and it leases nothing beyond that position before it has read the rows in between. Where nodes share a
//! store, every ready task is such a row. The queue then reads rows again when another node may have changed them
//! (`nodes` is set).

mod claim_index;
mod claims;
mod leases;
mod limit_slots;
mod rate_window;
#[cfg(test)]
mod tests;
mod type_queue;

pub use claims::{Cancellation, ClaimReply, ClaimRequest, ClaimedTask, Pattern};
pub use leases::{BlockedReason, ClaimStatus, HeldLease, RecordedLease};
pub use type_queue::{PAGE, TypeQueue, TypeRules};

use crate::nodes::Nodes;
use claim_index::ClaimIndex;
use claims::{OpenClaim, WorkerRecord};
use kernel::advance::{Offer, OfferedTask};
use kernel::{OrgId, RunId, Timestamp};
use limit_slots::{AcquiredSlots, LimitSlots};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use store::{IdMap, LimitScope, LimitSlot, LimitSlotRow, QueueKey, QueuePosition, TypeRow, WorkerRow};
use type_queue::Horizon;

/// How many ready tasks the queue keeps in memory.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Ready tasks whose runs stay in memory. Beyond this number, runs with new ready tasks are evicted at once.
    pub resident: usize,
    /// Rows per read.
    pub page: usize,
    /// The most rows of a key queue in memory.
    pub window: usize,
    /// A key queue with fewer rows than this reads more.
    pub low: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { resident: 16_384, page: PAGE, window: 3 * PAGE, low: PAGE }
    }
}

/// The pause after a failed read of rows.
const READ_PAUSE: kernel::Span = kernel::Span::from_millis(200);
/// How long a node that lost a task to another node prefers tasks of its own runs.
const CONTENTION: kernel::Span = kernel::Span::from_secs(10);
/// A worker that sent nothing for this long does not count as present.
pub const ABSENT: kernel::Span = kernel::Span::from_secs(90);

/// A type of an organisation.
type TypeKey = (OrgId, Arc<str>);
/// A worker of an organisation.
type WorkerKey = (OrgId, String);

pub struct TaskQueue<T> {
    sizes: Sizes,
    /// The nodes that share the store; `None` if the store cannot be shared.
    nodes: Option<Nodes>,
    /// Until then the queue assumes that other nodes claim the same tasks, because it lost one to them.
    contended_until: Timestamp,
    type_queues: BTreeMap<TypeKey, TypeQueue>,
    open_claims: BTreeMap<u64, OpenClaim<T>>,
    claim_index: ClaimIndex,
    /// Open claims to answer as soon as none of their leases is pending.
    urgent: BTreeSet<u64>,
    /// Leases that are not durable yet, by offer id.
    pending_leases: IdMap<u64, PendingLease>,
    leases: BTreeMap<(RunId, u32), HeldLease>,
    /// The number of leases of each worker that has any.
    held_by: HashMap<WorkerKey, u32>,
    /// Tasks with a durable lease that no reply has delivered yet, because other leases of the claim are pending.
    undelivered: IdMap<(RunId, u32), u64>,
    expiries: BTreeSet<(Timestamp, RunId, u32)>,
    /// Key queues that wait for a rate limit or after a failed read, by the end of the wait.
    rate_releases: BTreeSet<(Timestamp, QueueKey)>,
    workers: BTreeMap<WorkerKey, WorkerRecord>,
    /// Cancelled tasks, until the workers that hold them know.
    cancellations: HashMap<WorkerKey, Vec<PendingCancellation>>,
    /// Types that may have a task for an open claim since the last pairing.
    changed_types: BTreeSet<TypeKey>,
    /// Key queues to read rows of, and the position to read after.
    refills: Vec<(QueueKey, Option<QueuePosition>)>,
    /// Types to read the keys of, and the key to read after.
    key_reads: Vec<(OrgId, String, Option<String>)>,
    /// Types to read the limit slots of.
    slot_reads: Vec<(OrgId, String)>,
    /// Ready tasks whose runs are in memory.
    resident: usize,
    /// Counts leases, so that key queues are served in turn.
    served: u64,
    /// Recovery has not yet found every ready task and every lease. Until it has, the queue leases nothing: the task
    /// might not be the first, or the lease might exceed a limit.
    is_recovering: bool,
}

/// A worker can stop working on a task. The worker is told twice, because a reply can get lost without a trace.
#[derive(Clone, Copy)]
struct PendingCancellation {
    run: RunId,
    step: u32,
    fence: u64,
    is_plain: bool,
    /// When the lease would have expired anyway.
    until: Timestamp,
    is_delivered: bool,
}

/// A lease that is not durable yet.
struct PendingLease {
    claim: u64,
    type_key: TypeKey,
    key: Arc<str>,
    /// The ready task it was, and whether its run is in memory. `None` for a task that was never queued.
    task: Option<(QueuePosition, bool)>,
    limit_slots: AcquiredSlots,
}

/// A ready task and the worker that gets it.
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
            urgent: BTreeSet::new(),
            pending_leases: IdMap::default(),
            leases: BTreeMap::new(),
            held_by: HashMap::new(),
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
            is_recovering: false,
        }
    }
}

impl<T> TaskQueue<T> {
    pub fn new(sizes: Sizes) -> Self {
        TaskQueue { sizes, ..Default::default() }
    }

    /// Sets the nodes that share the store.
    pub fn share(&mut self, nodes: Nodes) {
        self.nodes = Some(nodes);
    }

    pub fn is_shared(&self) -> bool {
        self.nodes.is_some()
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The reply channels of open claims, when the engine stops.
    pub fn into_reply_channels(self) -> impl Iterator<Item = T> {
        self.open_claims.into_values().map(|claim| claim.reply_to)
    }

    /// The next time at which a lease expires or a key queue's wait ends.
    pub fn next_due(&self) -> Option<Timestamp> {
        let lease = self.expiries.first().map(|(at, ..)| *at);
        let release = self.rate_releases.first().map(|(at, _)| *at);
        lease.into_iter().chain(release).min()
    }

    /// Is there something to read or to answer right now, or to pair, if claims are paired with tasks at the moment?
    pub fn has_work(&self, pairs_claims: bool) -> bool {
        pairs_claims && !self.changed_types.is_empty()
            || !self.refills.is_empty()
            || !self.key_reads.is_empty()
            || !self.slot_reads.is_empty()
            || self.has_answers()
    }

    /// Should a run that only waits for workers be evicted? Yes if too many ready tasks are in memory, and always on a
    /// shared store, where the next claim may come to another node.
    pub fn should_evict(&self) -> bool {
        // A crash test reaches eviction with one task, not with thousands.
        self.is_shared() || self.resident >= if store::crash::is_armed() { 1 } else { self.sizes.resident }
    }

    /// Ready tasks whose runs are in memory.
    pub fn resident(&self) -> usize {
        self.resident
    }

    /// Leased tasks.
    pub fn leased(&self) -> usize {
        self.leases.len()
    }

    /// Ready tasks, in memory or not.
    pub fn ready(&self) -> u64 {
        self.type_queues.values().map(|type_queue| type_queue.ready).sum()
    }

    /// Types with ready tasks and no present worker that claims them.
    pub fn unserved(&self, now: Timestamp) -> u64 {
        let is_unserved = |(key, type_queue): &(&TypeKey, &TypeQueue)| {
            type_queue.ready > 0 && self.workers_for(key.0, &key.1, now).0 == 0
        };
        self.type_queues.iter().filter(is_unserved).count() as u64
    }

    /// Applies the registration of a type. `began` is the start of this process, if the type is older than that.
    pub fn apply_type(&mut self, row: &TypeRow, began: Option<Timestamp>, now: Timestamp) {
        let key: TypeKey = (row.org, Arc::from(row.name.as_str()));
        let type_queue = self.type_queue(key.clone());
        type_queue.apply_type(row, began);
        self.refresh_type(&key, now);
    }

    /// Takes over the ready tasks that the last process left in the store.
    pub fn restore(&mut self, queues: Vec<(QueueKey, u64)>, now: Timestamp) {
        for (queue, count) in queues {
            let key: TypeKey = (queue.org, queue.name.as_str().into());
            let type_queue = self.type_queue(key.clone());
            type_queue.ready += count;
            type_queue.key_queue(&queue.key).read_position = Horizon::Nothing;
            self.refresh(&key, &queue.key, now);
        }
    }

    /// Recovery of the runs that the last process had in memory has begun, or is complete.
    pub fn set_recovering(&mut self, is_recovering: bool) {
        if self.is_recovering && !is_recovering {
            self.changed_types.extend(self.type_queues.keys().cloned());
        }
        self.is_recovering = is_recovering;
    }

    /// A task has become ready.
    pub fn enqueue(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key = (queue.org, Arc::from(queue.name.as_str()));
        self.type_queue(key.clone()).ready += 1;
        self.make_ready(queue, position, now);
    }

    /// A ready task's run is in memory. The task may have been in the queue before.
    pub fn make_ready(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key = (queue.org, Arc::from(queue.name.as_str()));
        self.resident += usize::from(self.type_queue(key.clone()).key_queue(&queue.key).make_ready(position));
        self.refresh(&key, &queue.key, now);
    }

    /// The same for a run that was read from the store. A task without a row may be new to the queue.
    pub fn restore_ready(&mut self, queue: &QueueKey, position: QueuePosition, is_stored: bool, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let is_known = self.type_queue(key).key_queue(&queue.key).tasks.contains_key(&position);
        match is_known || is_stored {
            true => self.make_ready(queue, position, now),
            false => self.enqueue(queue, position, now),
        }
    }

    /// A ready task's run has left memory; the store has a row for the task.
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

    /// A task is no longer ready: a worker has it, or its run does not need it any more.
    pub fn dequeue(&mut self, queue: &QueueKey, position: QueuePosition, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let type_queue = self.type_queue(key.clone());
        type_queue.ready = type_queue.ready.saturating_sub(1);
        self.resident -= usize::from(type_queue.key_queue(&queue.key).take(position));
        self.refresh(&key, &queue.key, now);
    }

    /// Takes at most a page of rows that were read for a key queue. `None` if the read failed.
    pub fn refilled(&mut self, queue: &QueueKey, rows: Option<Vec<QueuePosition>>, now: Timestamp) {
        let limit = self.sizes.page;
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        if rows.is_none() {
            self.rate_releases.insert((now.after(READ_PAUSE), queue.clone()));
        }
        self.type_queue(key.clone()).refilled(&queue.key, rows, limit, now);
        self.refresh(&key, &queue.key, now);
        self.changed_types.insert(key);
    }

    /// Sets the number of ready tasks of every type, as counted by the store.
    pub fn set_ready_counts(&mut self, ready: Vec<(OrgId, String, u64)>) {
        self.type_queues.values_mut().for_each(|type_queue| type_queue.ready = 0);
        for (org, name, count) in ready {
            self.type_queue((org, name.into())).ready = count;
        }
    }

    /// Another node has a ready task for this key queue that no claim there takes, or freed a limit slot of it.
    pub fn ready_elsewhere(&mut self, queue: &QueueKey, now: Timestamp) {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        let (is_wanted, low) = (self.next_claim(&key).is_some(), self.sizes.low);
        let type_queue = self.type_queue(key.clone());
        if let Some(limit_slots) = &mut type_queue.limit_slots {
            limit_slots.is_outdated = true;
        }
        type_queue.has_unread_keys |= !is_wanted || type_queue.is_reading_keys;
        if !is_wanted {
            return;
        }
        type_queue.key_queue(&queue.key).invalidate_rows(low);
        if type_queue.blocked_reason(&queue.key, now).is_some() {
            self.read_limit_slots(&key);
        }
        self.refresh(&key, &queue.key, now);
        self.changed_types.insert(key);
    }

    /// These types have ready tasks in the store. Their keys are read when a worker claims one of them.
    pub fn mark_unread_keys(&mut self, types: Vec<(OrgId, String)>) {
        for (org, name) in types {
            let key: TypeKey = (org, name.into());
            let type_queue = self.type_queue(key.clone());
            type_queue.has_unread_keys = true;
            if let Some(limit_slots) = &mut type_queue.limit_slots {
                limit_slots.is_outdated = true;
            }
            if self.next_claim(&key).is_some() {
                self.read_limit_slots(&key);
                self.changed_types.insert(key);
            }
        }
    }

    /// Requests a read of a type's limit slots, unless the type has no limits.
    fn read_limit_slots(&mut self, key: &TypeKey) {
        let type_queue = self.type_queue(key.clone());
        let is_limited = type_queue.is_limited();
        let Some(limit_slots) =
            type_queue.limit_slots.as_mut().filter(|limit_slots| is_limited && !limit_slots.is_reading)
        else {
            return;
        };
        (limit_slots.is_reading, limit_slots.is_outdated) = (true, false);
        self.slot_reads.push((key.0, key.1.to_string()));
    }

    /// Takes the types to read the limit slots of.
    pub fn slot_reads(&mut self) -> Vec<(OrgId, String)> {
        std::mem::take(&mut self.slot_reads)
    }

    /// Takes the limit slots of a type that were read. `None` if the read failed: the next claim, or the periodic look
    /// at types with ready tasks, requests it again.
    pub fn limit_slots_read(&mut self, org: OrgId, name: &str, rows: Option<&[LimitSlotRow]>, now: Timestamp) {
        let key: TypeKey = (org, Arc::from(name));
        let pending: Vec<AcquiredSlots> = self
            .pending_leases
            .values()
            .filter(|lease| lease.type_key == key)
            .map(|lease| lease.limit_slots.clone())
            .collect();
        let Some(limit_slots) = &mut self.type_queue(key.clone()).limit_slots else { return };
        limit_slots.is_reading = false;
        let Some(rows) = rows else {
            limit_slots.is_outdated = true;
            return;
        };
        limit_slots.replace(rows, pending.into_iter());
        limit_slots.is_contested = false;
        self.refresh_type(&key, now);
        self.changed_types.insert(key);
    }

    /// A limit slot that this node wanted to take belongs to another lease.
    pub fn slot_contested(&mut self, slot: &LimitSlot) {
        let key: TypeKey = (slot.org, Arc::from(slot.name.as_str()));
        if let Some(limit_slots) = &mut self.type_queue(key.clone()).limit_slots {
            (limit_slots.is_contested, limit_slots.is_outdated) = (true, true);
        }
        self.read_limit_slots(&key);
    }

    /// A limit slot is free again.
    pub fn slot_freed(&mut self, slot: &LimitSlot, now: Timestamp) {
        let key: TypeKey = (slot.org, Arc::from(slot.name.as_str()));
        if let Some(limit_slots) = &mut self.type_queue(key.clone()).limit_slots {
            limit_slots.free(slot.of, &slot.key, slot.number);
        }
        self.refresh(&key, &slot.key, now);
        self.changed_types.insert(key);
    }

    /// The limit slots that a pending lease takes, as rows for the record that grants it.
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

    /// Takes the types to read the keys of.
    pub fn key_reads(&mut self) -> Vec<(OrgId, String, Option<String>)> {
        std::mem::take(&mut self.key_reads)
    }

    /// Takes at most a page of keys of a type that have ready tasks. `None` if the read failed.
    pub fn keys_read(&mut self, org: OrgId, name: &str, keys: Option<Vec<String>>, now: Timestamp) {
        let key: TypeKey = (org, Arc::from(name));
        let (low, page) = (self.sizes.low, self.sizes.page);
        let type_queue = self.type_queue(key.clone());
        type_queue.is_reading_keys = false;
        // The periodic look at types with ready tasks requests the read again.
        let Some(keys) = keys else { return };
        let is_first = type_queue.keys_after.is_none();
        // A task became ready during the read, which may not have seen it: its key stays, and all are read again.
        let has_news = type_queue.has_unread_keys;
        type_queue.keys_after = keys.last().cloned().filter(|_| keys.len() >= page && !has_news);
        type_queue.has_unread_keys = has_news || type_queue.keys_after.is_some();
        type_queue.keys_read(&keys, is_first && !type_queue.has_unread_keys, low);
        for key_queue in keys {
            self.refresh(&key, &key_queue, now);
        }
        self.changed_types.insert(key);
    }

    /// Hides a ready task whose run is out of date. The run makes it ready again once it has been read.
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

    /// Would an open claim on this node take a task of this key queue?
    pub fn has_claim_for(&mut self, queue: &QueueKey, now: Timestamp) -> bool {
        let key: TypeKey = (queue.org, Arc::from(queue.name.as_str()));
        self.next_claim(&key).is_some() && self.type_queue(key).blocked_reason(&queue.key, now).is_none()
    }

    /// Takes the key queues to read rows of.
    pub fn refills(&mut self) -> Vec<(QueueKey, Option<QueuePosition>)> {
        std::mem::take(&mut self.refills)
    }

    /// Ends waits that are over and returns the leases that have expired.
    pub fn advance_time(&mut self, now: Timestamp) -> Vec<(OrgId, RunId, u32, u64)> {
        while let Some((at, queue)) = self.rate_releases.first().cloned().filter(|(at, _)| *at <= now) {
            self.rate_releases.remove(&(at, queue.clone()));
            let key: TypeKey = (queue.org, queue.name.as_str().into());
            self.type_queue(key.clone()).key_queue(&queue.key).resume_reading();
            self.refresh(&key, &queue.key, now);
        }
        self.expire(now)
    }

    /// Matches open claims with ready tasks. The claims it returns go to the kernel, which may refuse them.
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

    /// Offers a task that has just become ready to an open claim: one of the worker that just finished a step of the
    /// same run, else the oldest. Returns `None` if a task with precedence is waiting.
    pub fn offer(
        &mut self,
        org: OrgId,
        wanted: &OfferedTask<'_>,
        worker: Option<&str>,
        is_new: bool,
        now: Timestamp,
    ) -> Option<Offer> {
        let key: TypeKey = (org, Arc::from(wanted.name));
        let is_recovering = self.is_recovering;
        let type_queue = self.type_queue(key.clone());
        let key_queue = type_queue.key_queue(wanted.key);
        let has_others = is_new && (!key_queue.tasks.is_empty() || key_queue.read_position != Horizon::All);
        // A contested limit slot must not prevent the creation of a run.
        let is_at_risk = is_new && type_queue.is_limited();
        if has_others || is_at_risk || is_recovering || type_queue.blocked_reason(wanted.key, now).is_some() {
            return None;
        }
        let claim_id = self.claim_for(&key, worker)?;
        let may_pass = |task_queue: &Self| {
            task_queue.best(claim_id, now).is_none_or(|(_, best, _)| best.priority >= wanted.priority)
        };
        if !may_pass(self) {
            return None;
        }
        self.begin_lease(claim_id, &key, wanted.key, None, now)
    }

    /// A pending lease did not become durable, for no fault of the task: the task is ready again.
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

    /// The run refused the claim: the task is not ready.
    pub fn refuse(&mut self, offer_id: u64, now: Timestamp) {
        if let Some(PendingLease { type_key, key, .. }) = self.drop_pending_lease(offer_id, now) {
            self.refresh(&type_key, &key, now);
        }
    }

    /// The run could not be read: the key queue reads its rows again after a pause.
    pub fn retry_later(&mut self, offer_id: u64, now: Timestamp) {
        let Some(PendingLease { type_key, key, .. }) = self.drop_pending_lease(offer_id, now) else { return };
        let key_queue = self.type_queue(type_key.clone()).key_queue(&key);
        key_queue.forget_rows();
        key_queue.back_off();
        let (org, name) = (type_key.0, type_key.1.to_string());
        self.rate_releases.insert((now.after(READ_PAUSE), QueueKey { org, name, key: key.to_string() }));
        self.refresh(&type_key, &key, now);
    }

    /// Frees the limit slots of a pending lease and returns the credit to its claim.
    fn drop_pending_lease(&mut self, offer_id: u64, now: Timestamp) -> Option<PendingLease> {
        let lease = self.pending_leases.remove(&offer_id)?;
        self.contended_until = now.after(CONTENTION);
        let type_queue = self.type_queue(lease.type_key.clone());
        type_queue.release_slots(&lease.limit_slots);
        type_queue.held = type_queue.held.saturating_sub(1);
        let key_queue = type_queue.key_queue(&lease.key);
        key_queue.held = key_queue.held.saturating_sub(1);
        self.change_claim(lease.claim, |claim| {
            claim.pending -= 1;
            claim.credits += 1;
        });
        self.claim_index.mark_new(lease.claim);
        self.changed_types.insert(lease.type_key.clone());
        Some(lease)
    }

    fn type_queue(&mut self, key: TypeKey) -> &mut TypeQueue {
        let is_shared = self.nodes.is_some();
        self.type_queues.entry(key).or_insert_with(|| TypeQueue::new(is_shared))
    }

    /// Updates the place of a key queue in the order of its type queue.
    fn refresh(&mut self, key: &TypeKey, key_queue: &str, now: Timestamp) {
        let Some(type_queue) = self.type_queues.get_mut(key) else { return };
        let release = type_queue.refresh(key_queue, self.sizes.low, now);
        // A claim that comes later looks at all its types anyway.
        if !self.open_claims.is_empty() && type_queue.can_serve() {
            self.changed_types.insert(key.clone());
        }
        if let Some(at) = release {
            self.rate_releases
                .insert((at, QueueKey { org: key.0, name: key.1.to_string(), key: key_queue.to_owned() }));
        }
    }

    fn refresh_type(&mut self, key: &TypeKey, now: Timestamp) {
        let Some(type_queue) = self.type_queues.get(key) else { return };
        let key_queues: Vec<Arc<str>> = type_queue.key_queues.keys().cloned().collect();
        for key_queue in key_queues {
            self.refresh(key, &key_queue, now);
        }
    }

    /// The task a claim should get next: its type, its position and its key.
    fn best(&self, claim_id: u64, now: Timestamp) -> Option<(TypeKey, QueuePosition, Arc<str>)> {
        let claim = self.open_claims.get(&claim_id).filter(|_| !self.is_recovering)?;
        let contenders = self.nodes.as_ref().filter(|_| now < self.contended_until && !claim.is_strict);
        let mut best: Option<(TypeKey, QueuePosition, Arc<str>)> = None;
        for pattern in &claim.patterns {
            for (key, type_queue) in pattern.range(&self.type_queues, claim.org) {
                let is_accepted = type_queue.rules.accepts_runtime(claim.runtime.as_deref());
                if !is_accepted || claim.is_strict && type_queue.is_incomplete() {
                    continue;
                }
                let Some((key_queue, first)) = type_queue.next_task(contenders) else { continue };
                if best.as_ref().is_none_or(|(_, than, _)| first < *than) {
                    best = Some((key.clone(), first, key_queue));
                }
            }
        }
        best
    }

    /// Gives a claim as many tasks as it takes, and requests reads where there may be more.
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
            let Some(offer) = self.begin_lease(claim_id, &key, &key_queue, Some((task, is_resident)), now) else {
                self.restore_task(&key, &key_queue, (task, is_resident), now);
                break;
            };
            claims.push(Claim { org: key.0, run: task.run, step: task.step, offer });
        }
        self.request_reads(claim_id);
        let Some(claim) = self.open_claims.get(&claim_id) else { return };
        if claim.is_immediate {
            self.urgent.insert(claim_id);
        }
        // One that is about to be answered with nothing gets nothing more.
        let is_open = !claim.is_immediate || claim.pending > 0 || self.may_get_more(claim);
        let is_waiting = claim.takes_more() && is_open;
        if let Some(claim) = self.open_claims.get_mut(&claim_id) {
            self.claim_index.set_waiting(claim, is_waiting);
        }
    }

    /// Begins a lease: takes a credit from the claim and limit slots from the type. `None` if a slot is missing.
    fn begin_lease(
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
        self.change_claim(claim_id, |claim| {
            claim.credits -= 1;
            claim.pending += 1;
        });
        let claim = self.open_claims.get(&claim_id)?;
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

    /// Requests reads of the key queues that a claim may get tasks from and that are known only in part.
    fn request_reads(&mut self, claim_id: u64) {
        let Some(claim) = self.open_claims.get(&claim_id) else { return };
        let mut to_read: Vec<(TypeKey, Arc<str>)> = Vec::new();
        let (mut unread, mut outdated): (Vec<TypeKey>, Vec<TypeKey>) = Default::default();
        for pattern in &claim.patterns {
            for (key, type_queue) in pattern.range(&self.type_queues, claim.org) {
                to_read.extend(type_queue.keys_to_read().map(|key_queue| (key.clone(), key_queue)));
                unread.extend((type_queue.has_unread_keys && !type_queue.is_reading_keys).then(|| key.clone()));
                outdated.extend(
                    type_queue.limit_slots.as_ref().filter(|limit_slots| limit_slots.is_outdated).map(|_| key.clone()),
                );
            }
        }
        outdated.iter().for_each(|key| self.read_limit_slots(key));
        for key in unread {
            let type_queue = self.type_queue(key.clone());
            (type_queue.has_unread_keys, type_queue.is_reading_keys) = (false, true);
            let after = type_queue.keys_after.clone();
            self.key_reads.push((key.0, key.1.to_string(), after));
        }
        let low = self.sizes.low;
        for (key, key_queue) in to_read {
            if let Some(after) = self.type_queue(key.clone()).begin_read(&key_queue, low) {
                self.refills
                    .push((QueueKey { org: key.0, name: key.1.to_string(), key: key_queue.to_string() }, after));
            }
        }
    }

    /// The number of present workers that claim a type, and when one of them last sent something.
    fn workers_for(&self, org: OrgId, name: &str, now: Timestamp) -> (u32, Option<Timestamp>) {
        let rules = self.type_queues.get(&(org, Arc::from(name))).map(|type_queue| &type_queue.rules);
        let claims = |worker: &&WorkerRecord| {
            let accepts = rules.is_none_or(|rules| rules.accepts_runtime(worker.row.runtime.as_deref()));
            accepts && worker.patterns.iter().any(|pattern| pattern.matches(name))
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

    /// Every worker with the number of tasks it holds.
    pub fn workers(&self, org: OrgId) -> Vec<(WorkerRow, u32)> {
        let of_org = self.workers.range((org, String::new())..).take_while(|((o, _), _)| *o == org).map(|(_, w)| w);
        let held = |row: &WorkerRow| self.held_by.get(&(org, row.id.clone())).copied().unwrap_or(0);
        of_org.map(|worker| (worker.row.clone(), held(&worker.row))).collect()
    }

    /// Counts of a type: ready tasks, leased tasks, present workers.
    pub fn tally(&self, org: OrgId, name: &str, now: Timestamp) -> (u64, u32, u32) {
        let type_queue = self.type_queues.get(&(org, Arc::from(name)));
        let leased =
            |type_queue: &TypeQueue| type_queue.limit_slots.as_ref().map_or(0, LimitSlots::leased).max(type_queue.held);
        let (ready, leased) = type_queue.map_or((0, 0), |type_queue| (type_queue.ready, leased(type_queue)));
        (ready, leased, self.workers_for(org, name, now).0)
    }

    /// Why no worker has a ready task.
    pub fn claim_status(&mut self, queue: &QueueKey, now: Timestamp) -> ClaimStatus {
        let key: TypeKey = (queue.org, queue.name.as_str().into());
        let (workers, last_seen) = self.workers_for(queue.org, &queue.name, now);
        let blocked_reason = self.type_queue(key).blocked_reason(&queue.key, now);
        ClaimStatus { workers, last_seen, blocked_reason }
    }
}

#[cfg(test)]
thread_local! {
    /// How many claims, runtimes and types this thread has looked at to match claims with tasks.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
