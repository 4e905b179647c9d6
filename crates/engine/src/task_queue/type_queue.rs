//! The ready tasks of one type: which task is next, and which limit blocks it.
//!
//! Tasks with a lower priority number come first. Among equal priorities the key queue that was served longest ago
//! comes first, so that one key cannot starve the others. Within a key queue the oldest task comes first. A type queue
//! keeps the key queues that can be served in that order, so finding the next one costs the same with one key as with
//! ten thousand.
//!
//! Where several nodes share a store, other nodes add and remove rows. A node trusts the rows it has read for a short
//! time, and reads again after that or when it learns of a new task. While another node claims from the same key
//! queue, a node prefers tasks of its own runs among equal priorities, so that two nodes seldom claim the same task.

use super::leases::BlockedReason;
use super::limit_slots::{AcquiredSlots, LimitSlots};
use super::rate_window::RateWindow;
use crate::nodes::Nodes;
use kernel::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{LimitScope, LimitSlotRow, QueuePosition, Rate, TypeRow};

/// Rows per read.
pub const PAGE: usize = 2_048;
/// Key queues that one claim reads at the same time.
const READS_AT_ONCE: usize = 16;
/// How long rows that other nodes may take count as still there.
const FRESH: Span = Span::from_millis(250);
/// Under contention a node skips this many tasks of another node's runs, if there are more…
const FOREIGN_SKIPPED: usize = 128;
/// …except on every eighth lease, because the other node may have no worker for them.
const TAKE_HEAD_EVERY: u64 = 8;

#[derive(Debug, Default)]
pub struct TypeQueue {
    pub rules: TypeRules,
    pub key_queues: BTreeMap<Arc<str>, KeyQueue>,
    /// Key queues that can be served: priority of the first task, last served, key.
    order: BTreeSet<(u32, u64, Arc<str>)>,
    /// Keys whose key queues need more rows.
    to_read: BTreeSet<Arc<str>>,
    /// Key queues whose rows are being read.
    reads: usize,
    /// The rate limit of the whole type blocks every key queue.
    is_rate_limited: bool,
    /// Pending and durable leases.
    pub held: u32,
    /// Ready tasks, in memory or not.
    pub ready: u64,
    /// The taken limit slots, if nodes share the store.
    pub limit_slots: Option<LimitSlots>,
    /// The store may have ready tasks of keys that this node does not know.
    pub has_unread_keys: bool,
    pub is_reading_keys: bool,
    /// The key to read after, if there are more keys than one page.
    pub keys_after: Option<String>,
}

/// The part of a type's registration that decides whether its tasks can be leased.
#[derive(Debug, Default)]
pub struct TypeRules {
    pub runtime: Option<String>,
    /// Set if the type is disabled or paused.
    pub stop: Option<BlockedReason>,
    pub limit: Option<u32>,
    pub limit_per_key: Option<u32>,
    rate: Option<Rate>,
    /// The leases of this process, unless nodes share the store.
    rate_window: RateWindow,
}

/// The ready tasks of one type that share a key.
#[derive(Debug, Default)]
pub struct KeyQueue {
    /// True if the task's run is in memory.
    pub tasks: BTreeMap<QueuePosition, bool>,
    /// Up to where the rows of the store are known.
    pub read_position: Horizon,
    pub held: u32,
    served: u64,
    /// While rows are being read: the read position they begin at.
    reading: Option<Horizon>,
    /// Rows written while rows were being read, which the read may have missed.
    late: Vec<QueuePosition>,
    /// The last read failed: no other read before the pause is over.
    is_backing_off: bool,
    /// Its entry in [`TypeQueue::order`].
    entry: Option<(u32, u64)>,
    /// Tasks whose runs are evicted.
    evicted: usize,
    /// When the known rows were last complete.
    read_at: Timestamp,
    /// Another node added a task while rows were being read, which the read may have missed.
    is_outdated: bool,
}

/// Up to where the rows of a key queue are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Horizon {
    #[default]
    All,
    Upto(QueuePosition),
    Nothing,
}

impl TypeRules {
    /// The leases of the last process are not known. The new process assumes that they used the whole rate, evenly, so
    /// that a restart cannot exceed a rate.
    fn of(row: &TypeRow, rate_window: RateWindow, began: Option<Timestamp>) -> TypeRules {
        let stop = match (&row.paused, row.enabled) {
            (_, false) => Some(BlockedReason::Disabled),
            (Some(pause), _) => Some(BlockedReason::Paused { since: pause.at, note: pause.note.clone() }),
            (None, true) => None,
        };
        let mut rules = TypeRules {
            runtime: row.runtime.clone(),
            stop,
            limit: row.limit,
            limit_per_key: row.limit_per_key,
            rate: row.rate,
            rate_window,
        };
        if let Some((now, rate)) = began.zip(rules.rate).filter(|(_, rate)| !rate.per_key) {
            let apart = rate.per.0 / u64::from(rate.limit.max(1));
            let stamp = |n: u32| Timestamp(now.0.saturating_sub_unsigned(apart.saturating_mul(n.into())));
            for at in (0..rate.limit).rev().map(stamp) {
                rules.rate_window.add("", rate.per, at);
            }
        }
        rules
    }

    /// May a worker of this runtime claim the type's tasks?
    pub fn accepts_runtime(&self, runtime: Option<&str>) -> bool {
        match (&self.runtime, runtime) {
            (Some(wanted), Some(runtime)) => wanted == runtime,
            _ => true,
        }
    }

    fn is_limited(&self) -> bool {
        self.limit.is_some() || self.limit_per_key.is_some() || self.rate.is_some()
    }

    fn bucket<'a>(&self, key: &'a str) -> &'a str {
        if self.rate.is_some_and(|rate| rate.per_key) { key } else { "" }
    }

    /// Until when the rate blocks a key.
    fn rate_limited_until(&mut self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let rate = self.rate?;
        let bucket = self.bucket(key);
        self.rate_window.blocked_until(bucket, &rate, now)
    }

    fn count_lease(&mut self, key: &str, now: Timestamp) {
        if let Some(rate) = self.rate {
            let bucket = self.bucket(key);
            self.rate_window.add(bucket, rate.per, now);
        }
    }
}

impl TypeQueue {
    pub fn new(is_shared: bool) -> TypeQueue {
        TypeQueue { limit_slots: is_shared.then(LimitSlots::default), ..Default::default() }
    }

    pub fn key_queue(&mut self, key: &str) -> &mut KeyQueue {
        if !self.key_queues.contains_key(key) {
            self.key_queues.insert(key.into(), KeyQueue::default());
        }
        self.key_queues.get_mut(key).unwrap_or_else(|| unreachable!("it was just put there"))
    }

    pub fn apply_type(&mut self, row: &TypeRow, began: Option<Timestamp>) {
        let rate_window = std::mem::take(&mut self.rules.rate_window);
        (self.rules, self.is_rate_limited) = (TypeRules::of(row, rate_window, began), false);
    }

    /// Why a task of this key cannot be leased by any worker; `None` if it can.
    pub fn blocked_reason(&mut self, key: &str, now: Timestamp) -> Option<BlockedReason> {
        if let Some(stop) = &self.rules.stop {
            return Some(stop.clone());
        }
        if let Some(limit) = self.rules.limit.filter(|_| self.is_full()) {
            return Some(BlockedReason::Limit(limit));
        }
        if let Some(limit) = self.rules.limit_per_key.filter(|_| self.is_key_full(key)) {
            return Some(BlockedReason::KeyLimit(limit));
        }
        self.rate_limited_until(key, now).map(BlockedReason::Rate)
    }

    /// Has the type reached its limit?
    fn is_full(&self) -> bool {
        match (&self.limit_slots, self.rules.limit) {
            (_, None) => false,
            (None, Some(limit)) => self.held >= limit,
            (Some(limit_slots), Some(limit)) => limit_slots.is_full(LimitScope::Type, "", limit),
        }
    }

    fn is_key_full(&self, key: &str) -> bool {
        match (&self.limit_slots, self.rules.limit_per_key) {
            (_, None) => false,
            (None, Some(limit)) => self.key_queues.get(key).is_some_and(|key_queue| key_queue.held >= limit),
            (Some(limit_slots), Some(limit)) => limit_slots.is_full(LimitScope::Key, key, limit),
        }
    }

    fn rate_limited_until(&mut self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let (Some(limit_slots), Some(rate)) = (&mut self.limit_slots, self.rules.rate) else {
            return self.rules.rate_limited_until(key, now);
        };
        let end = limit_slots.next_end(LimitScope::Rate, self.rules.bucket(key), now);
        end.filter(|_| limit_slots.is_full(LimitScope::Rate, self.rules.bucket(key), rate.limit))
    }

    /// Takes a slot of every limit of the type for one lease; `None`, and takes none, if one has no free slot.
    pub fn acquire_slots(&mut self, key: &str, from: u64, now: Timestamp) -> Option<AcquiredSlots> {
        let mut taken = AcquiredSlots::new();
        let bucket = self.rules.bucket(key).to_owned();
        let Some(limit_slots) = &mut self.limit_slots else { return Some(taken) };
        let rules = &self.rules;
        let wanted = [
            (LimitScope::Type, "", rules.limit, LimitSlotRow::FREED),
            (LimitScope::Key, key, rules.limit_per_key, LimitSlotRow::FREED),
            (
                LimitScope::Rate,
                &bucket,
                rules.rate.map(|r| r.limit),
                rules.rate.map_or(now, |rate| now.after(rate.per)),
            ),
        ];
        for (of, key, limit, until) in wanted {
            let Some(limit) = limit else { continue };
            taken.push((of, Arc::from(key), limit_slots.find(of, key, limit, from)?, until));
        }
        for (of, key, number, until) in &taken {
            limit_slots.take(*of, key, *number, *until);
        }
        Some(taken)
    }

    /// Restarts the period of the rate slots when the lease is recorded; it may have waited for a read of its run.
    pub fn restart_rate_slots(&mut self, taken: &mut AcquiredSlots, now: Timestamp) {
        let (Some(limit_slots), Some(rate)) = (&mut self.limit_slots, self.rules.rate) else { return };
        for (of, key, number, until) in taken.iter_mut().filter(|slot| slot.0 == LimitScope::Rate) {
            *until = now.after(rate.per);
            limit_slots.take(*of, key, *number, *until);
        }
    }

    /// Frees the slots of a lease that did not become durable.
    pub fn release_slots(&mut self, taken: &AcquiredSlots) {
        let Some(limit_slots) = &mut self.limit_slots else { return };
        taken.iter().for_each(|(of, key, number, _)| limit_slots.free(*of, key, *number));
    }

    /// Are its rows, keys or limit slots being read?
    pub fn is_reading(&self) -> bool {
        let are_slots_read = self.limit_slots.as_ref().is_some_and(|limit_slots| limit_slots.is_reading);
        self.is_reading_keys || are_slots_read || self.reads > 0
    }

    /// Begins a read of a key queue's rows if one is needed; returns the position to read after.
    pub fn begin_read(&mut self, key: &str, low: usize) -> Option<Option<QueuePosition>> {
        let after = self.key_queue(key).next_read(low)?;
        self.reads += 1;
        Some(after)
    }

    /// Takes the rows of a key queue that were read. `None` if the read failed.
    pub fn refilled(&mut self, key: &str, rows: Option<Vec<QueuePosition>>, limit: usize, now: Timestamp) {
        let key_queue = self.key_queue(key);
        let was_reading = key_queue.reading.is_some();
        key_queue.refilled(rows, limit, now);
        self.reads -= usize::from(was_reading);
    }

    /// Does it have a limit that all nodes share?
    pub fn is_limited(&self) -> bool {
        self.limit_slots.is_some() && self.rules.is_limited()
    }

    /// The key queue that is next, and its next task.
    pub fn next_task(&self, contenders: Option<&Nodes>) -> Option<(Arc<str>, QueuePosition)> {
        if self.is_stopped() {
            return None;
        }
        let (_, _, key) = self.order.first()?;
        let key_queue = self.key_queues.get(key)?;
        // Where all nodes share a limit, the oldest task goes first, no matter which node owns its run.
        Some((key.clone(), key_queue.pick(contenders.filter(|_| !self.is_limited()))?))
    }

    fn is_stopped(&self) -> bool {
        let is_contested = self.limit_slots.as_ref().is_some_and(|limit_slots| limit_slots.is_contested);
        self.is_rate_limited || is_contested || self.rules.stop.is_some() || self.is_full()
    }

    /// May the store have ready tasks, or free limit slots, that this node has not read?
    pub fn is_incomplete(&self) -> bool {
        let are_rows_known = self.to_read.is_empty() && self.reads == 0;
        let are_slots_known = !self.is_limited() || self.limit_slots.as_ref().is_none_or(LimitSlots::are_known);
        self.has_unread_keys || self.is_reading_keys || !are_rows_known || !are_slots_known
    }

    pub fn can_serve(&self) -> bool {
        !self.is_stopped() && !self.order.is_empty() || !self.to_read.is_empty() || self.has_unread_keys
    }

    /// These keys have ready tasks in the store and, if `is_all`, no other key has.
    pub fn keys_read(&mut self, keys: &[String], is_all: bool, low: usize) {
        for key in keys {
            self.key_queue(key).invalidate_rows(low);
        }
        if is_all {
            let named: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
            let is_empty = |key: &Arc<str>, key_queue: &KeyQueue| {
                key_queue.tasks.is_empty()
                    && key_queue.held == 0
                    && key_queue.reading.is_none()
                    && !named.contains(&**key)
            };
            let gone: Vec<Arc<str>> = self
                .key_queues
                .iter()
                .filter(|(key, key_queue)| is_empty(key, key_queue))
                .map(|(key, _)| key.clone())
                .collect();
            for key in gone {
                self.to_read.remove(&key);
                self.key_queues.remove(&key);
            }
        }
    }

    /// Counts a lease that begins.
    pub fn serve(&mut self, key: &str, served: u64, now: Timestamp) {
        self.held += 1;
        if self.limit_slots.is_none() {
            self.rules.count_lease(key, now);
        }
        let key_queue = self.key_queue(key);
        key_queue.held += 1;
        key_queue.served = served;
    }

    /// Updates the place of a key queue in the order; returns when a rate that blocks it allows the next lease.
    pub fn refresh(&mut self, key: &str, low: usize, now: Timestamp) -> Option<Timestamp> {
        let rate_limited_until = self.rate_limited_until(key, now);
        let is_key_full = self.is_key_full(key);
        let is_shared = self.rules.rate.is_some_and(|rate| !rate.per_key);
        self.is_rate_limited = is_shared && rate_limited_until.is_some();
        let (key, key_queue) = self.key_queues.get_key_value(key).map(|(key, _)| key.clone()).and_then(|key| {
            let key_queue = self.key_queues.get_mut(&key)?;
            Some((key, key_queue))
        })?;
        let has_room = !is_key_full && (is_shared || rate_limited_until.is_none());
        let entry = key_queue.head().filter(|_| has_room).map(|task| (task.priority, key_queue.served));
        if key_queue.entry != entry {
            if let Some((priority, served)) = key_queue.entry {
                self.order.remove(&(priority, served, key.clone()));
            }
            if let Some((priority, served)) = entry {
                self.order.insert((priority, served, key.clone()));
            }
            key_queue.entry = entry;
        }
        match key_queue.needs_rows(low) {
            true => self.to_read.insert(key.clone()),
            false => self.to_read.remove(&key),
        };
        let waits = !key_queue.tasks.is_empty()
            || key_queue.read_position != Horizon::All
            || is_shared && !self.order.is_empty();
        if key_queue.is_unused() {
            self.key_queues.remove(&key);
        }
        rate_limited_until.filter(|_| waits)
    }

    /// Keys whose key queues need more rows, as many as one claim reads at the same time.
    pub fn keys_to_read(&self) -> impl Iterator<Item = Arc<str>> {
        self.to_read.iter().take(READS_AT_ONCE).cloned()
    }
}

impl KeyQueue {
    /// The first task, if no unknown row can come before it.
    fn head(&self) -> Option<QueuePosition> {
        let (first, _) = self.tasks.first_key_value()?;
        Some(*first).filter(|first| self.is_known(*first))
    }

    /// The task to lease next: the first. Under contention it is the first task of this node's runs with the same
    /// priority.
    fn pick(&self, contenders: Option<&Nodes>) -> Option<QueuePosition> {
        let head = self.head()?;
        let takes_head = self.served.is_multiple_of(TAKE_HEAD_EVERY);
        let Some(nodes) = contenders.filter(|nodes| !nodes.is_alone() && !takes_head) else { return Some(head) };
        let is_equal = |task: &&QueuePosition| task.priority == head.priority && self.is_known(**task);
        let mut foreign = head;
        for (n, task) in self.tasks.keys().take_while(is_equal).take(2 * FOREIGN_SKIPPED).enumerate() {
            if nodes.is_mine(task.run) {
                return Some(*task);
            }
            if n == FOREIGN_SKIPPED {
                foreign = *task;
            }
        }
        Some(foreign)
    }

    /// May other nodes have taken its known rows?
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.evicted > 0 && now.since(self.read_at) > FRESH
    }

    /// Another node may have added rows. A key queue with many known rows is read again soon anyway.
    pub fn invalidate_rows(&mut self, low: usize) {
        match self.reading {
            Some(_) => self.is_outdated = true,
            None if self.evicted < low => self.forget_rows(),
            None => {}
        }
    }

    /// It has no ready task, no lease and nothing left to read.
    fn is_unused(&self) -> bool {
        self.tasks.is_empty() && self.held == 0 && self.read_position == Horizon::All && self.reading.is_none()
    }

    /// Few of its rows are known. Tasks whose runs are in memory do not count: they may be beyond the read position.
    fn needs_rows(&self, low: usize) -> bool {
        self.read_position != Horizon::All && self.reading.is_none() && !self.is_backing_off && self.evicted < low
    }

    /// Begins a read if one is needed; returns the position to read after.
    fn next_read(&mut self, low: usize) -> Option<Option<QueuePosition>> {
        if !self.needs_rows(low) {
            return None;
        }
        self.reading = Some(self.read_position);
        match self.read_position {
            Horizon::Upto(known) => Some(Some(known)),
            Horizon::All | Horizon::Nothing => Some(None),
        }
    }

    fn refilled(&mut self, rows: Option<Vec<QueuePosition>>, limit: usize, now: Timestamp) {
        // If the read position has moved meanwhile, the rows would leave a gap.
        let began = self.read_position;
        let is_wanted = self.reading.take() == Some(began);
        let is_outdated = std::mem::take(&mut self.is_outdated);
        let late = std::mem::take(&mut self.late);
        let Some(rows) = rows else {
            self.is_backing_off = true;
            return;
        };
        if !is_wanted {
            return;
        }
        self.read_position = match rows.last() {
            Some(last) if rows.len() >= limit || is_outdated => Horizon::Upto(*last),
            None if is_outdated => began,
            _ => Horizon::All,
        };
        if self.evicted == 0 {
            self.read_at = now;
        }
        let late = late.into_iter().filter(|position| self.is_known(*position));
        for position in rows.into_iter().chain(late.collect::<Vec<_>>()) {
            self.tasks.entry(position).or_insert_with(|| {
                self.evicted += 1;
                false
            });
        }
    }

    /// Allows reads again after a failed one.
    pub fn resume_reading(&mut self) {
        self.is_backing_off = false;
    }

    /// Adds a task whose run is in memory; true unless it was already there as one.
    pub fn make_ready(&mut self, position: QueuePosition) -> bool {
        let was = self.tasks.insert(position, true);
        self.evicted -= usize::from(was == Some(false));
        was != Some(true)
    }

    /// Adds an evicted task that was taken. Beyond the read position its row in the store is enough.
    pub fn put_back(&mut self, position: QueuePosition) {
        if self.is_known(position) && !self.tasks.contains_key(&position) {
            self.tasks.insert(position, false);
            self.evicted += 1;
        }
    }

    /// Is this position before the read position?
    fn is_known(&self, position: QueuePosition) -> bool {
        match self.read_position {
            Horizon::All => true,
            Horizon::Upto(known) => position <= known,
            Horizon::Nothing => false,
        }
    }

    /// Forgets the known rows, so that they are read again.
    pub fn forget_rows(&mut self) {
        self.tasks.retain(|_, is_resident| *is_resident);
        (self.evicted, self.read_position) = (0, Horizon::Nothing);
    }

    /// Stops reads until [`resume_reading`](Self::resume_reading).
    pub fn back_off(&mut self) {
        self.is_backing_off = true;
    }

    /// Removes a task; true if its run is in memory.
    pub fn take(&mut self, position: QueuePosition) -> bool {
        let was = self.tasks.remove(&position);
        self.evicted -= usize::from(was == Some(false));
        was == Some(true)
    }

    /// A task's run has left memory. Beyond the window its row in the store is enough.
    pub fn evict(&mut self, position: QueuePosition, window: usize, now: Timestamp) {
        if self.evicted == 0 {
            self.read_at = now;
        }
        if !self.is_known(position) {
            self.tasks.remove(&position);
            self.late.extend(self.reading.map(|_| position));
            return;
        }
        self.tasks.insert(position, false);
        self.evicted += 1;
        if self.evicted > window {
            self.forget_last();
        }
    }

    /// Forgets the later half of the evicted tasks.
    fn forget_last(&mut self) {
        let evicted: Vec<QueuePosition> =
            self.tasks.iter().filter(|(_, resident)| !**resident).map(|(p, _)| *p).collect();
        let keep = evicted.len() / 2;
        for position in &evicted[keep..] {
            self.tasks.remove(position);
        }
        self.read_position = evicted.get(keep.wrapping_sub(1)).map_or(Horizon::Nothing, |last| Horizon::Upto(*last));
        self.evicted = keep;
    }
}
