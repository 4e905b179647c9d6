//! Lines and lanes: which task of a type goes next, and what keeps it.
//!
//! Lower priorities first; among equals the lane that was served longest ago, so that one key cannot starve the
//! others; inside a lane the oldest. A line keeps the lanes that can be served in that order, so finding the next
//! one costs the same with one lane as with ten thousand.
//!
//! Where several nodes share a store, rows come and go without this one. What it has read of a lane it believes for a
//! moment; then, or when it hears of something new, it reads again. While another node works off the same lane, it takes
//! of equal priorities tasks of its own runs first, so that they seldom reach for the same one.

use super::leases::BlockedReason;
use super::limit_slots::{AcquiredSlots, LimitSlots};
use crate::nodes::Nodes;
use kernel::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use store::{LimitScope, LimitSlotRow, QueuePosition, Rate, TypeRow};

/// Rows asked for at once.
pub const PAGE: usize = 2_048;
/// Lanes that are read at once for one poll.
const READS_AT_ONCE: usize = 16;
/// For how long rows that others may take are believed to be there.
const FRESH: Span = Span::from_millis(250);
/// So many tasks of another node that come first are left to it, as long as there are more; but not always, for it may
/// have nobody to give them to.
const SPARED: usize = 128;
const SPARED_EXCEPT_EVERY: u64 = 8;

#[derive(Debug, Default)]
pub struct TypeQueue {
    pub rules: TypeRules,
    pub key_queues: BTreeMap<Arc<str>, KeyQueue>,
    /// Lanes that can be served: first card's priority, when last served, key.
    order: BTreeSet<(u32, u64, Arc<str>)>,
    /// Lanes of which more should be read.
    short: BTreeSet<Arc<str>>,
    /// A rate of the type as a whole keeps all lanes.
    is_rate_limited: bool,
    /// Hand-overs that are under way and grants.
    pub held: u32,
    /// Tasks that wait, in memory or not.
    pub ready: u64,
    /// Who has what of its limits, where other nodes have some of it.
    pub limit_slots: Option<LimitSlots>,
    /// There may be lanes that are not known.
    pub is_behind: bool,
    /// They are being read…
    pub is_asking: bool,
    /// …after this key, because there are many.
    pub asked_after: Option<String>,
}

/// What a type's registration says, as far as handing out goes.
#[derive(Debug, Default)]
pub struct TypeRules {
    pub runtime: Option<String>,
    /// Of a type that is disabled or paused.
    pub stop: Option<BlockedReason>,
    pub limit: Option<u32>,
    pub limit_per_key: Option<u32>,
    rate: Option<Rate>,
    /// Hand-overs within the last stretch of the rate, of all keys or of each.
    handed: BTreeMap<Arc<str>, VecDeque<Timestamp>>,
}

/// One lane.
#[derive(Debug, Default)]
pub struct KeyQueue {
    /// True for those whose run is in memory.
    pub tasks: BTreeMap<QueuePosition, bool>,
    pub horizon: Horizon,
    pub held: u32,
    served: u64,
    /// While rows are being read: the horizon they begin at.
    reading: Option<Horizon>,
    /// Rows that were written meanwhile, which the reading may have missed.
    late: Vec<QueuePosition>,
    /// The last reading failed; not before it is released.
    is_backing_off: bool,
    /// Its entry among those that can be served.
    entry: Option<(u32, u64)>,
    evicted: usize,
    /// When what is known of its rows was last right.
    read_at: Timestamp,
    /// Something came while rows were being read, which they may not show.
    is_overtaken: bool,
}

/// Up to where the rows of a lane are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Horizon {
    #[default]
    All,
    Upto(QueuePosition),
    Nothing,
}

impl TypeRules {
    /// What was handed out before this process began is not known. It goes on as if that had been as much as allowed,
    /// evenly, so that a restart is no way around a rate.
    pub fn of(row: &TypeRow, handed: BTreeMap<Arc<str>, VecDeque<Timestamp>>, began: Option<Timestamp>) -> TypeRules {
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
            handed,
        };
        if let Some((now, rate)) = began.zip(rules.rate).filter(|(_, rate)| !rate.per_key) {
            let apart = rate.per.0 / u64::from(rate.limit.max(1));
            let stamp = |n: u32| Timestamp(now.0.saturating_sub_unsigned(apart.saturating_mul(n.into())));
            rules.handed.insert("".into(), (0..rate.limit).rev().map(stamp).collect());
        }
        rules
    }

    pub fn take_rates(&mut self) -> BTreeMap<Arc<str>, VecDeque<Timestamp>> {
        std::mem::take(&mut self.handed)
    }

    /// May a worker of this runtime have the type's tasks?
    pub fn suits(&self, runtime: Option<&str>) -> bool {
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

    /// Until when the rate keeps a key.
    fn rate_limited_until(&mut self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let rate = self.rate?;
        let key = self.bucket(key);
        let handed = self.handed.get_mut(key)?;
        while handed.front().is_some_and(|at| now.since(*at) >= rate.per) {
            handed.pop_front();
        }
        if handed.is_empty() {
            self.handed.remove(key);
            return None;
        }
        let over = handed.len().checked_sub(rate.limit as usize)?;
        handed.get(over).map(|at| at.after(rate.per))
    }

    fn note(&mut self, key: &str, now: Timestamp) {
        if self.rate.is_some() {
            let key = self.bucket(key);
            self.handed.entry(key.into()).or_default().push_back(now);
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
        (self.rules, self.is_rate_limited) = (TypeRules::of(row, self.rules.take_rates(), began), false);
    }

    /// What keeps a task of this key from being handed out, whoever asks.
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

    /// Are as many leased as may be?
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

    /// Takes seats for a hand-over, where there are any; nothing when one is missing.
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

    /// The time of a rate begins when a hand-over is recorded. Since its seat was taken the run may have had to be read.
    pub fn restart_rate_slots(&mut self, taken: &mut AcquiredSlots, now: Timestamp) {
        let (Some(limit_slots), Some(rate)) = (&mut self.limit_slots, self.rules.rate) else { return };
        for (of, key, number, until) in taken.iter_mut().filter(|slot| slot.0 == LimitScope::Rate) {
            *until = now.after(rate.per);
            limit_slots.take(*of, key, *number, *until);
        }
    }

    /// It did not come to the hand-over.
    pub fn release_slots(&mut self, taken: &AcquiredSlots) {
        let Some(limit_slots) = &mut self.limit_slots else { return };
        taken.iter().for_each(|(of, key, number, _)| limit_slots.free(*of, key, *number));
    }

    /// Rows of it, or who has its seats, are being read.
    pub fn is_reading(&self) -> bool {
        let are_seats_read = self.limit_slots.as_ref().is_some_and(|limit_slots| limit_slots.is_reading);
        self.is_asking || are_seats_read || self.key_queues.values().any(|key_queue| key_queue.is_reading())
    }

    /// Is there something about it that all nodes have to keep to together?
    pub fn is_limited(&self) -> bool {
        self.limit_slots.is_some() && self.rules.is_limited()
    }

    /// The lane whose turn it is, and its next card.
    pub fn first(&self, contenders: Option<&Nodes>) -> Option<(Arc<str>, QueuePosition)> {
        if self.is_stopped() {
            return None;
        }
        let (_, _, key) = self.order.first()?;
        let key_queue = self.key_queues.get(key)?;
        // Where all nodes share a limit, the oldest goes first whoever has it.
        Some((key.clone(), key_queue.pick(contenders.filter(|_| !self.is_limited()))?))
    }

    fn is_stopped(&self) -> bool {
        let is_unsure = self.limit_slots.as_ref().is_some_and(|limit_slots| limit_slots.is_unsure);
        self.is_rate_limited || is_unsure || self.rules.stop.is_some() || self.is_full()
    }

    /// What others may have left is being looked for, or is to be.
    pub fn is_unread(&self) -> bool {
        let is_known = self.short.is_empty() && !self.key_queues.values().any(|key_queue| key_queue.is_reading());
        let are_seats_known = !self.is_limited() || self.limit_slots.as_ref().is_none_or(LimitSlots::are_known);
        self.is_behind || self.is_asking || !is_known || !are_seats_known
    }

    pub fn can_serve(&self) -> bool {
        !self.is_stopped() && !self.order.is_empty() || !self.short.is_empty() || self.is_behind
    }

    /// These keys have tasks that wait, and, when `is_all`, no others.
    pub fn keys_read(&mut self, keys: &[String], is_all: bool, low: usize) {
        for key in keys {
            self.key_queue(key).distrust_rows(low);
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
                self.short.remove(&key);
                self.key_queues.remove(&key);
            }
        }
    }

    /// A hand-over begins.
    pub fn serve(&mut self, key: &str, served: u64, now: Timestamp) {
        self.held += 1;
        if self.limit_slots.is_none() {
            self.rules.note(key, now);
        }
        let key_queue = self.key_queue(key);
        key_queue.held += 1;
        key_queue.served = served;
    }

    /// Works out whether a lane can be served, and when it can again if a rate keeps it.
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
        match key_queue.is_short(low) {
            true => self.short.insert(key.clone()),
            false => self.short.remove(&key),
        };
        let waits =
            !key_queue.tasks.is_empty() || key_queue.horizon != Horizon::All || is_shared && !self.order.is_empty();
        if key_queue.is_unused() {
            self.key_queues.remove(&key);
        }
        rate_limited_until.filter(|_| waits)
    }

    /// Lanes of which more should be read.
    pub fn short(&self) -> impl Iterator<Item = Arc<str>> {
        self.short.iter().take(READS_AT_ONCE).cloned()
    }
}

impl KeyQueue {
    /// The first card that nothing unknown comes before.
    fn head(&self) -> Option<QueuePosition> {
        let (first, _) = self.tasks.first_key_value()?;
        Some(*first).filter(|first| self.is_known(*first))
    }

    /// The card to be handed out next: the first, or, while others reach for it too, of those with its priority one of
    /// this node's own.
    fn pick(&self, contenders: Option<&Nodes>) -> Option<QueuePosition> {
        let head = self.head()?;
        let is_anybodys = self.served.is_multiple_of(SPARED_EXCEPT_EVERY);
        let Some(nodes) = contenders.filter(|nodes| !nodes.is_alone() && !is_anybodys) else { return Some(head) };
        let is_equal = |task: &&QueuePosition| task.priority == head.priority && self.is_known(**task);
        let mut foreign = head;
        for (n, task) in self.tasks.keys().take_while(is_equal).take(2 * SPARED).enumerate() {
            if nodes.is_mine(task.run) {
                return Some(*task);
            }
            if n == SPARED {
                foreign = *task;
            }
        }
        Some(foreign)
    }

    /// Others may have taken what is known of its rows.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.evicted > 0 && now.since(self.read_at) > FRESH
    }

    /// There may be rows that are not known. A lane that has plenty is read again soon anyway.
    pub fn distrust_rows(&mut self, low: usize) {
        match self.reading {
            Some(_) => self.is_overtaken = true,
            None if self.evicted < low => self.forget_rows(),
            None => {}
        }
    }

    /// Nothing waits, nobody works, nothing is to be remembered.
    fn is_unused(&self) -> bool {
        self.tasks.is_empty() && self.held == 0 && self.horizon == Horizon::All && self.reading.is_none()
    }

    /// Few of its rows are known. (Cards whose runs are in memory do not count: they may be beyond the horizon.)
    fn is_short(&self, low: usize) -> bool {
        self.horizon != Horizon::All && self.reading.is_none() && !self.is_backing_off && self.evicted < low
    }

    /// After what to read on; nothing if that is being done.
    pub fn ask(&mut self, low: usize) -> Option<Option<QueuePosition>> {
        if !self.is_short(low) {
            return None;
        }
        self.reading = Some(self.horizon);
        match self.horizon {
            Horizon::Upto(known) => Some(Some(known)),
            Horizon::All | Horizon::Nothing => Some(None),
        }
    }

    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    pub fn refilled(&mut self, rows: Option<Vec<QueuePosition>>, limit: usize, now: Timestamp) {
        // The horizon may have moved meanwhile: rows that begin elsewhere would leave a gap.
        let began = self.horizon;
        let is_wanted = self.reading.take() == Some(began);
        let is_overtaken = std::mem::take(&mut self.is_overtaken);
        let late = std::mem::take(&mut self.late);
        let Some(rows) = rows else {
            self.is_backing_off = true;
            return;
        };
        if !is_wanted {
            return;
        }
        self.horizon = match rows.last() {
            Some(last) if rows.len() >= limit || is_overtaken => Horizon::Upto(*last),
            None if is_overtaken => began,
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

    /// It may be read again.
    pub fn resume_reading(&mut self) {
        self.is_backing_off = false;
    }

    /// Shows a card whose run is in memory; true if it was not one before.
    pub fn make_ready(&mut self, position: QueuePosition) -> bool {
        let was = self.tasks.insert(position, true);
        self.evicted -= usize::from(was == Some(false));
        was != Some(true)
    }

    /// A card that was taken away is there again; the store has its row, which is enough beyond the horizon.
    pub fn put_back(&mut self, position: QueuePosition) {
        if self.is_known(position) && !self.tasks.contains_key(&position) {
            self.tasks.insert(position, false);
            self.evicted += 1;
        }
    }

    /// Is its row among those that are known?
    fn is_known(&self, position: QueuePosition) -> bool {
        match self.horizon {
            Horizon::All => true,
            Horizon::Upto(known) => position <= known,
            Horizon::Nothing => false,
        }
    }

    /// The rows of the store that are known are to be read again.
    pub fn forget_rows(&mut self) {
        self.tasks.retain(|_, is_resident| *is_resident);
        (self.evicted, self.horizon) = (0, Horizon::Nothing);
    }

    /// Not before it is released.
    pub fn back_off(&mut self) {
        self.is_backing_off = true;
    }

    /// Takes a card away; true if its run is in memory.
    pub fn take(&mut self, position: QueuePosition) -> bool {
        let was = self.tasks.remove(&position);
        self.evicted -= usize::from(was == Some(false));
        was == Some(true)
    }

    /// The run of a card left memory. Beyond the window the store's row is enough.
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

    /// Lets go of the half of the parked cards that comes last.
    fn forget_last(&mut self) {
        let evicted: Vec<QueuePosition> =
            self.tasks.iter().filter(|(_, resident)| !**resident).map(|(p, _)| *p).collect();
        let keep = evicted.len() / 2;
        for position in &evicted[keep..] {
            self.tasks.remove(position);
        }
        self.horizon = evicted.get(keep.wrapping_sub(1)).map_or(Horizon::Nothing, |last| Horizon::Upto(*last));
        self.evicted = keep;
    }
}
