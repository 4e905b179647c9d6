//! A fair queue: one queue per organisation, with a limit of active items per organisation and one for all together.
//! Below the limits an item starts at once. At the total limit organisations take turns, so that one with a thousand
//! requests does not delay another with a single one. Pure bookkeeping: the caller starts the items.

use kernel::OrgId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

pub struct FairQueue<Id, T> {
    /// Active items of all organisations, at most.
    total: usize,
    /// Active items of one organisation, at most.
    each: usize,
    active: usize,
    orgs: HashMap<OrgId, OrgQueue<Id, T>>,
    /// Organisations that have waiting items and are below their limit, in the order of their turns.
    turns: VecDeque<OrgId>,
    waiting: HashMap<Id, (OrgId, u64)>,
    arrivals: u64,
}

struct OrgQueue<Id, T> {
    active: usize,
    /// By arrival.
    waiting: BTreeMap<u64, (Id, T)>,
    has_turn: bool,
}

/// The position of a waiting item, and the limit it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpQueuePosition {
    /// How many items of the same organisation go before it.
    pub ahead: usize,
    /// The limit it waits for.
    pub limit: usize,
    /// Is that the organisation's own limit, or the one that all organisations share?
    pub is_own: bool,
}

impl<Id: Copy + Eq + Hash, T> FairQueue<Id, T> {
    pub fn new(total: usize, each: usize) -> FairQueue<Id, T> {
        let each = each.min(total);
        let (orgs, turns, waiting) = (HashMap::new(), VecDeque::new(), HashMap::new());
        FairQueue { total, each, active: 0, orgs, turns, waiting, arrivals: 0 }
    }

    pub fn enter(&mut self, org: OrgId, id: Id, item: T) {
        self.arrivals += 1;
        let org_queue =
            self.orgs.entry(org).or_insert_with(|| OrgQueue { active: 0, waiting: BTreeMap::new(), has_turn: false });
        org_queue.waiting.insert(self.arrivals, (id, item));
        self.waiting.insert(id, (org, self.arrivals));
        self.give_turn(org);
    }

    /// The next item that may start; it counts as active until [`leave`](Self::leave).
    pub fn next(&mut self) -> Option<(Id, T)> {
        if self.active >= self.total {
            return None;
        }
        let org = self.turns.pop_front()?;
        let org_queue = self.orgs.get_mut(&org)?;
        org_queue.has_turn = false;
        let (_, (id, item)) = org_queue.waiting.pop_first()?;
        org_queue.active += 1;
        self.active += 1;
        self.waiting.remove(&id);
        self.give_turn(org);
        Some((id, item))
    }

    /// An active item of an organisation is done.
    pub fn leave(&mut self, org: OrgId) {
        if let Some(org_queue) = self.orgs.get_mut(&org) {
            org_queue.active -= 1;
            self.active -= 1;
            self.give_turn(org);
        }
    }

    /// Removes a waiting item; false if it is not waiting.
    pub fn withdraw(&mut self, id: Id) -> bool {
        let Some((org, arrival)) = self.waiting.remove(&id) else { return false };
        if let Some(org_queue) = self.orgs.get_mut(&org) {
            org_queue.waiting.remove(&arrival);
            if org_queue.waiting.is_empty() && org_queue.has_turn {
                org_queue.has_turn = false;
                self.turns.retain(|turn| *turn != org);
            }
            self.give_turn(org);
        }
        true
    }

    /// Removes all waiting items.
    pub fn withdraw_all(&mut self) -> Vec<T> {
        self.waiting.clear();
        self.turns.clear();
        let mut items = Vec::new();
        self.orgs.retain(|_, org_queue| {
            org_queue.has_turn = false;
            items.extend(std::mem::take(&mut org_queue.waiting).into_values().map(|(_, item)| item));
            org_queue.active > 0
        });
        items
    }

    pub fn position(&self, id: Id) -> Option<HttpQueuePosition> {
        let (org, arrival) = self.waiting.get(&id)?;
        let org_queue = self.orgs.get(org)?;
        let ahead = org_queue.waiting.range(..arrival).count();
        let is_own = org_queue.active >= self.each && self.each < self.total;
        Some(HttpQueuePosition { ahead, limit: if is_own { self.each } else { self.total }, is_own })
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// An organisation gets a turn when it has waiting items and is below its limit. It is removed when it has no items
    /// at all.
    fn give_turn(&mut self, org: OrgId) {
        let Some(org_queue) = self.orgs.get_mut(&org) else { return };
        if org_queue.waiting.is_empty() && org_queue.active == 0 {
            self.orgs.remove(&org);
        } else if !org_queue.waiting.is_empty() && org_queue.active < self.each && !org_queue.has_turn {
            org_queue.has_turn = true;
            self.turns.push_back(org);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: OrgId = OrgId(1);
    const B: OrgId = OrgId(2);
    const C: OrgId = OrgId(3);

    fn filled(total: usize, each: usize, items: &[(OrgId, u32)]) -> FairQueue<u32, ()> {
        let mut orgs = FairQueue::new(total, each);
        items.iter().for_each(|(org, id)| orgs.enter(*org, *id, ()));
        orgs
    }

    fn start_all(orgs: &mut FairQueue<u32, ()>) -> Vec<u32> {
        std::iter::from_fn(|| orgs.next().map(|(id, ())| id)).collect()
    }

    #[test]
    fn r48_an_organisation_has_a_limit_of_its_own() {
        let mut orgs = filled(100, 2, &[(A, 1), (A, 2), (A, 3), (A, 4), (B, 5)]);
        assert_eq!(start_all(&mut orgs), [1, 5, 2]);
        assert_eq!(orgs.position(3), Some(HttpQueuePosition { ahead: 0, limit: 2, is_own: true }));
        assert_eq!(orgs.position(4), Some(HttpQueuePosition { ahead: 1, limit: 2, is_own: true }));
        assert_eq!((orgs.position(1), orgs.waiting()), (None, 2));
        orgs.leave(B);
        assert_eq!(start_all(&mut orgs), [0; 0], "organisation A is still at its own limit");
        orgs.leave(A);
        assert_eq!(start_all(&mut orgs), [3]);
    }

    #[test]
    fn at_the_total_limit_organisations_take_turns() {
        let many: Vec<(OrgId, u32)> = (0..10).map(|i| (A, i)).chain([(B, 20), (C, 30), (B, 21)]).collect();
        let mut orgs = filled(1, 9, &many);
        assert_eq!(start_all(&mut orgs), [0]);
        assert_eq!(orgs.position(20), Some(HttpQueuePosition { ahead: 0, limit: 1, is_own: false }));
        let mut order = Vec::new();
        let mut active = A;
        for _ in 0..6 {
            orgs.leave(active);
            let (id, ()) = orgs.next().unwrap();
            active = [A, B, C][(id / 10).saturating_sub(1) as usize];
            order.push(id);
        }
        assert_eq!(order, [20, 30, 1, 21, 2, 3]);
    }

    #[test]
    fn a_withdrawn_item_never_starts() {
        let mut orgs = filled(1, 1, &[(A, 1), (A, 2), (B, 3), (A, 4)]);
        assert_eq!(start_all(&mut orgs), [1]);
        assert!(orgs.withdraw(2) && orgs.withdraw(3));
        assert!(!orgs.withdraw(2) && !orgs.withdraw(1) && !orgs.withdraw(99));
        orgs.leave(A);
        assert_eq!(start_all(&mut orgs), [4]);
        orgs.enter(B, 5, ());
        orgs.enter(A, 6, ());
        assert_eq!((orgs.withdraw_all().len(), orgs.waiting()), (2, 0));
        orgs.leave(A);
        assert_eq!(start_all(&mut orgs), [0; 0]);
        assert!(orgs.orgs.is_empty() && orgs.turns.is_empty() && orgs.waiting.is_empty(), "nothing is kept");
    }

    /// Random arrivals, departures and withdrawals: never above a limit, never below it while an item could start, and
    /// every item that was not withdrawn starts once.
    #[test]
    fn r48_limits_hold_for_random_sequences() {
        let mut seed = 7u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (total, each) = (1 + draw(6) as usize, 1 + draw(4) as usize);
            let mut orgs: FairQueue<u32, ()> = FairQueue::new(total, each);
            let mut active: Vec<(OrgId, u32)> = Vec::new();
            let mut org_of = HashMap::new();
            let mut left = 0;
            for id in 0..100 {
                let org = OrgId(draw(4) as u32);
                org_of.insert(id, org);
                orgs.enter(org, id, ());
                if draw(4) == 0 && orgs.withdraw(draw(u64::from(id) + 1) as u32) {
                    left += 1;
                }
                while draw(3) == 0 && !active.is_empty() {
                    let (org, _) = active.swap_remove(draw(active.len() as u64) as usize);
                    orgs.leave(org);
                    left += 1;
                }
                while let Some((id, ())) = orgs.next() {
                    active.push((org_of[&id], id));
                }
                let of = |org: OrgId| active.iter().filter(|(o, _)| *o == org).count();
                assert!(active.len() <= total && (0..4).all(|org| of(OrgId(org)) <= each));
                let could_start = orgs.waiting.values().any(|(org, _)| of(*org) < each);
                assert!(active.len() == total || !could_start, "an item waits although no limit is reached");
            }
            while let Some((org, _)) = active.pop() {
                orgs.leave(org);
                left += 1;
                while let Some((id, ())) = orgs.next() {
                    active.push((org_of[&id], id));
                }
            }
            assert_eq!(left, 100);
            assert!(orgs.orgs.is_empty());
        }
    }
}
