//! Limit slots: how several nodes keep a limit together.
//!
//! A limit of 3 is three numbered slots. The record that grants a lease also names the slot it takes, the store gives
//! each slot to one lease at a time, and the record that ends the lease frees its slot. So limits count leases that
//! exist, on every node, and no counter can drift. A rate is a set of slots that become free after the rate's period.
//!
//! This node's view of taken slots may be out of date. The view only decides which slot to try: a slot that turns out
//! to be taken costs one attempt, and then the slots are read again.

use kernel::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{LimitScope, LimitSlot, LimitSlotRow};

/// A limit of a type: of which kind, and for which key.
type Limit = (LimitScope, Arc<str>);

/// The taken slots of a type, as far as this node knows.
#[derive(Debug, Default)]
pub struct LimitSlots {
    rows: BTreeMap<Limit, SlotSet>,
    /// The last end of the slots of each limit, to forget a limit whose slots are all free again.
    ends: BTreeSet<(Timestamp, Limit)>,
    /// A slot that this node tried was taken: the type leases nothing before its slots have been read.
    pub is_contested: bool,
    pub is_reading: bool,
    /// Another node has freed slots since they were read.
    pub is_outdated: bool,
}

/// The taken slots of one limit, by number and by end.
#[derive(Debug, Default)]
struct SlotSet {
    taken: BTreeMap<u32, Timestamp>,
    ends: BTreeSet<(Timestamp, u32)>,
}

/// The slots that one lease takes.
pub type AcquiredSlots = Vec<(LimitScope, Arc<str>, u32, Timestamp)>;

impl SlotSet {
    fn take(&mut self, number: u32, until: Timestamp) {
        if let Some(before) = self.taken.insert(number, until) {
            self.ends.remove(&(before, number));
        }
        self.ends.insert((until, number));
    }

    fn free(&mut self, number: u32) {
        if let Some(until) = self.taken.remove(&number) {
            self.ends.remove(&(until, number));
        }
    }

    fn advance_time(&mut self, now: Timestamp) {
        while let Some((until, number)) = self.ends.first().copied().filter(|(until, _)| *until <= now) {
            self.ends.remove(&(until, number));
            self.taken.remove(&number);
        }
    }

    /// How many of the first slots may be used. Slots beyond the limit, taken while it was higher, count against it.
    fn usable(&self, limit: u32) -> u32 {
        limit.saturating_sub(self.taken.range(limit..).count() as u32)
    }

    fn is_full(&self, limit: u32) -> bool {
        let usable = self.usable(limit);
        (self.taken.len() - self.taken.range(usable..).count()) as u32 >= usable
    }

    /// A free slot at or after `from`, which differs between nodes so that they seldom choose the same slot.
    fn find(&self, limit: u32, from: u64) -> Option<u32> {
        let usable = self.usable(limit);
        if self.is_full(limit) {
            return None;
        }
        let from = (from % u64::from(usable)) as u32;
        let gap = |from: u32, to: u32| {
            let mut free = from;
            for number in self.taken.range(from..to).map(|(number, _)| *number) {
                if number != free {
                    break;
                }
                free += 1;
            }
            (free < to).then_some(free)
        };
        gap(from, usable).or_else(|| gap(0, from))
    }
}

impl LimitSlots {
    pub fn are_known(&self) -> bool {
        !self.is_contested && !self.is_reading && !self.is_outdated
    }

    pub fn is_full(&self, of: LimitScope, key: &str, limit: u32) -> bool {
        match self.rows.get(&(of, Arc::from(key))) {
            None => limit == 0,
            Some(slot_set) => slot_set.is_full(limit),
        }
    }

    pub fn find(&self, of: LimitScope, key: &str, limit: u32, from: u64) -> Option<u32> {
        match self.rows.get(&(of, Arc::from(key))) {
            None => (limit > 0).then(|| (from % u64::from(limit.max(1))) as u32),
            Some(slot_set) => slot_set.find(limit, from),
        }
    }

    /// When the next slot of a rate becomes free.
    pub fn next_end(&mut self, of: LimitScope, key: &str, now: Timestamp) -> Option<Timestamp> {
        while self.ends.first().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, limit)) = self.ends.pop_first() {
                self.rows.remove(&limit);
            }
        }
        // Some of its slots are still taken, so it keeps its entry in `ends`.
        let slot_set = self.rows.get_mut(&(of, Arc::from(key)))?;
        slot_set.advance_time(now);
        slot_set.ends.first().map(|(until, _)| *until)
    }

    pub fn take(&mut self, of: LimitScope, key: &Arc<str>, number: u32, until: Timestamp) {
        self.change((of, key.clone()), |slot_set| slot_set.take(number, until));
    }

    pub fn free(&mut self, of: LimitScope, key: &str, number: u32) {
        self.change((of, Arc::from(key)), |slot_set| slot_set.free(number));
    }

    fn change(&mut self, limit: Limit, change: impl FnOnce(&mut SlotSet)) {
        let slot_set = self.rows.entry(limit.clone()).or_default();
        let before = slot_set.ends.last().map(|(until, _)| *until);
        change(slot_set);
        let after = slot_set.ends.last().map(|(until, _)| *until);
        if slot_set.taken.is_empty() {
            self.rows.remove(&limit);
        }
        if before != after {
            before.map(|until| self.ends.remove(&(until, limit.clone())));
            after.map(|until| self.ends.insert((until, limit)));
        }
    }

    /// Replaces the taken slots with the rows that were read and those of pending leases.
    pub fn replace(&mut self, rows: &[LimitSlotRow], pending: impl Iterator<Item = AcquiredSlots>) {
        (self.rows, self.ends) = Default::default();
        for LimitSlotRow { slot: LimitSlot { of, key, number, .. }, until, .. } in rows {
            self.take(*of, &Arc::from(key.as_str()), *number, *until);
        }
        for (of, key, number, until) in pending.flatten() {
            self.take(of, &key, number, until);
        }
    }

    /// Taken slots of the type's limit; 0 if it has none.
    pub fn leased(&self) -> u32 {
        self.rows.get(&(LimitScope::Type, Arc::from(""))).map_or(0, |slot_set| slot_set.taken.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Timestamp = LimitSlotRow::FREED;

    fn limit_slots(taken: &[u32]) -> LimitSlots {
        let mut limit_slots = LimitSlots::default();
        taken.iter().for_each(|number| limit_slots.take(LimitScope::Type, &Arc::from(""), *number, FOREVER));
        limit_slots
    }

    #[test]
    fn find_returns_a_free_slot_from_any_start_and_none_if_all_are_taken() {
        for (taken, limit, free) in [
            (&[][..], 3, &[0, 1, 2][..]),
            (&[1], 3, &[0, 2]),
            (&[0, 1, 2], 3, &[]),
            (&[0, 2, 3], 4, &[1]),
            (&[], 0, &[]),
        ] {
            let limit_slots = limit_slots(taken);
            let mut found: BTreeSet<u32> =
                (0..20).filter_map(|from| limit_slots.find(LimitScope::Type, "", limit, from)).collect();
            assert!(found.iter().all(|number| free.contains(number)), "{taken:?} of {limit}: {found:?}");
            assert_eq!(found.pop_first().is_none(), free.is_empty(), "{taken:?} of {limit}");
            assert_eq!(limit_slots.is_full(LimitScope::Type, "", limit), free.is_empty(), "{taken:?} of {limit}");
        }
    }

    #[test]
    fn slots_beyond_a_lowered_limit_count_against_it() {
        let mut limit_slots = limit_slots(&[0, 5, 7]);
        assert!(limit_slots.is_full(LimitScope::Type, "", 3), "three are leased");
        assert_eq!(
            limit_slots.find(LimitScope::Type, "", 4, 9),
            Some(1),
            "one of four is usable, the same one on every node"
        );
        limit_slots.free(LimitScope::Type, "", 5);
        assert_eq!(limit_slots.find(LimitScope::Type, "", 3, 0), Some(1));
        assert!(!limit_slots.is_full(LimitScope::Type, "", 3));
    }

    #[test]
    fn a_rate_slot_is_free_again_after_its_period() {
        let (mut limit_slots, key) = (LimitSlots::default(), Arc::from(""));
        limit_slots.take(LimitScope::Rate, &key, 0, Timestamp(10));
        limit_slots.take(LimitScope::Rate, &key, 1, Timestamp(20));
        assert_eq!(limit_slots.next_end(LimitScope::Rate, "", Timestamp(9)), Some(Timestamp(10)));
        assert!(limit_slots.is_full(LimitScope::Rate, "", 2));
        assert_eq!(limit_slots.next_end(LimitScope::Rate, "", Timestamp(10)), Some(Timestamp(20)));
        assert!(!limit_slots.is_full(LimitScope::Rate, "", 2));
        limit_slots.replace(&[], std::iter::once(vec![(LimitScope::Rate, key, 1, Timestamp(30))]));
        assert_eq!(limit_slots.find(LimitScope::Rate, "", 2, 1), Some(0), "slots of pending leases stay taken");
    }

    #[test]
    fn keys_whose_rate_slots_are_all_free_again_are_forgotten() {
        let mut limit_slots = LimitSlots::default();
        for n in 0..1_000 {
            let key: Arc<str> = Arc::from(format!("customer {n}"));
            limit_slots.next_end(LimitScope::Rate, &key, Timestamp(n));
            limit_slots.take(LimitScope::Rate, &key, 0, Timestamp(n + 5));
            limit_slots.take(LimitScope::Rate, &key, 1, Timestamp(n + 10));
            assert!(limit_slots.rows.len() <= 11 && limit_slots.ends.len() == limit_slots.rows.len());
        }
        let key: Arc<str> = Arc::from("held");
        limit_slots.take(LimitScope::Key, &key, 3, FOREVER);
        assert_eq!(limit_slots.next_end(LimitScope::Rate, "customer 999", Timestamp(2_000)), None);
        assert_eq!((limit_slots.rows.len(), limit_slots.ends.len()), (1, 1), "a lease that has not ended");
        limit_slots.free(LimitScope::Key, "held", 3);
        assert_eq!((limit_slots.rows.len(), limit_slots.ends.len()), (0, 0));
    }
}
