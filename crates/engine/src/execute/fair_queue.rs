//! Who goes next: one lane for each organisation, at most so many of a lane at once, at most so many in all.
//! While there is room for everybody, whoever comes goes. When there is not, organisations take turns, so
//! that one with a thousand requests does not keep another with one waiting. Pure bookkeeping: what goes
//! is somebody else's business.

use kernel::OrgId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

pub struct FairQueue<Id, T> {
    /// At once, in all.
    total: usize,
    /// At once, of one organisation.
    each: usize,
    going: usize,
    orgs: HashMap<OrgId, OrgQueue<Id, T>>,
    /// Organisations that have something waiting and room for it, in the order of their turns.
    turns: VecDeque<OrgId>,
    waiting: HashMap<Id, (OrgId, u64)>,
    arrivals: u64,
}

struct OrgQueue<Id, T> {
    going: usize,
    /// By arrival.
    waiting: BTreeMap<u64, (Id, T)>,
    has_turn: bool,
}

/// Where something waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpQueuePosition {
    /// How many of the same organisation go before it.
    pub ahead: usize,
    /// The limit it waits for.
    pub limit: usize,
    /// Is that the organisation's own limit, or the one all share?
    pub is_own: bool,
}

impl<Id: Copy + Eq + Hash, T> FairQueue<Id, T> {
    pub fn new(total: usize, each: usize) -> FairQueue<Id, T> {
        let each = each.min(total);
        let (orgs, turns, waiting) = (HashMap::new(), VecDeque::new(), HashMap::new());
        FairQueue { total, each, going: 0, orgs, turns, waiting, arrivals: 0 }
    }

    pub fn enter(&mut self, org: OrgId, id: Id, item: T) {
        self.arrivals += 1;
        let org_queue =
            self.orgs.entry(org).or_insert_with(|| OrgQueue { going: 0, waiting: BTreeMap::new(), has_turn: false });
        org_queue.waiting.insert(self.arrivals, (id, item));
        self.waiting.insert(id, (org, self.arrivals));
        self.give_turn(org);
    }

    /// The next one that may go; it counts as going until it has [left](Self::leave).
    pub fn next(&mut self) -> Option<(Id, T)> {
        if self.going >= self.total {
            return None;
        }
        let org = self.turns.pop_front()?;
        let org_queue = self.orgs.get_mut(&org)?;
        org_queue.has_turn = false;
        let (_, (id, item)) = org_queue.waiting.pop_first()?;
        org_queue.going += 1;
        self.going += 1;
        self.waiting.remove(&id);
        self.give_turn(org);
        Some((id, item))
    }

    /// One of an organisation's that was going is done.
    pub fn leave(&mut self, org: OrgId) {
        if let Some(org_queue) = self.orgs.get_mut(&org) {
            org_queue.going -= 1;
            self.going -= 1;
            self.give_turn(org);
        }
    }

    /// Takes one out that is still waiting; false if it is not.
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

    /// Takes out everything that is still waiting.
    pub fn withdraw_all(&mut self) -> Vec<T> {
        self.waiting.clear();
        self.turns.clear();
        let mut items = Vec::new();
        self.orgs.retain(|_, org_queue| {
            org_queue.has_turn = false;
            items.extend(std::mem::take(&mut org_queue.waiting).into_values().map(|(_, item)| item));
            org_queue.going > 0
        });
        items
    }

    pub fn position(&self, id: Id) -> Option<HttpQueuePosition> {
        let (org, arrival) = self.waiting.get(&id)?;
        let org_queue = self.orgs.get(org)?;
        let ahead = org_queue.waiting.range(..arrival).count();
        let is_own = org_queue.going >= self.each && self.each < self.total;
        Some(HttpQueuePosition { ahead, limit: if is_own { self.each } else { self.total }, is_own })
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// An organisation gets a turn when it has something waiting and room for it, and is forgotten when it
    /// has nothing at all.
    fn give_turn(&mut self, org: OrgId) {
        let Some(org_queue) = self.orgs.get_mut(&org) else { return };
        if org_queue.waiting.is_empty() && org_queue.going == 0 {
            self.orgs.remove(&org);
        } else if !org_queue.waiting.is_empty() && org_queue.going < self.each && !org_queue.has_turn {
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

    fn go(orgs: &mut FairQueue<u32, ()>) -> Vec<u32> {
        std::iter::from_fn(|| orgs.next().map(|(id, ())| id)).collect()
    }

    #[test]
    fn r48_an_organisation_has_a_limit_of_its_own() {
        let mut orgs = filled(100, 2, &[(A, 1), (A, 2), (A, 3), (A, 4), (B, 5)]);
        assert_eq!(go(&mut orgs), [1, 5, 2]);
        assert_eq!(orgs.position(3), Some(HttpQueuePosition { ahead: 0, limit: 2, is_own: true }));
        assert_eq!(orgs.position(4), Some(HttpQueuePosition { ahead: 1, limit: 2, is_own: true }));
        assert_eq!((orgs.position(1), orgs.waiting()), (None, 2));
        orgs.leave(B);
        assert_eq!(go(&mut orgs), [0; 0], "another's room is not this one's");
        orgs.leave(A);
        assert_eq!(go(&mut orgs), [3]);
    }

    #[test]
    fn when_all_is_full_organisations_take_turns() {
        let many: Vec<(OrgId, u32)> = (0..10).map(|i| (A, i)).chain([(B, 20), (C, 30), (B, 21)]).collect();
        let mut orgs = filled(1, 9, &many);
        assert_eq!(go(&mut orgs), [0]);
        assert_eq!(orgs.position(20), Some(HttpQueuePosition { ahead: 0, limit: 1, is_own: false }));
        let mut order = Vec::new();
        let mut going = A;
        for _ in 0..6 {
            orgs.leave(going);
            let (id, ()) = orgs.next().unwrap();
            going = [A, B, C][(id / 10).saturating_sub(1) as usize];
            order.push(id);
        }
        assert_eq!(order, [20, 30, 1, 21, 2, 3]);
    }

    #[test]
    fn what_is_withdrawn_never_goes() {
        let mut orgs = filled(1, 1, &[(A, 1), (A, 2), (B, 3), (A, 4)]);
        assert_eq!(go(&mut orgs), [1]);
        assert!(orgs.withdraw(2) && orgs.withdraw(3));
        assert!(!orgs.withdraw(2) && !orgs.withdraw(1) && !orgs.withdraw(99));
        orgs.leave(A);
        assert_eq!(go(&mut orgs), [4]);
        orgs.enter(B, 5, ());
        orgs.enter(A, 6, ());
        assert_eq!((orgs.withdraw_all().len(), orgs.waiting()), (2, 0));
        orgs.leave(A);
        assert_eq!(go(&mut orgs), [0; 0]);
        assert!(orgs.orgs.is_empty() && orgs.turns.is_empty() && orgs.waiting.is_empty(), "nothing is kept");
    }

    /// Random arrivals, departures and withdrawals: never over a limit, never idle without reason, and
    /// everything that was not withdrawn goes once.
    #[test]
    fn r48_limits_hold_whatever_happens() {
        let mut seed = 7u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (total, each) = (1 + draw(6) as usize, 1 + draw(4) as usize);
            let mut orgs: FairQueue<u32, ()> = FairQueue::new(total, each);
            let mut going: Vec<(OrgId, u32)> = Vec::new();
            let mut org_of = HashMap::new();
            let mut left = 0;
            for id in 0..100 {
                let org = OrgId(draw(4) as u32);
                org_of.insert(id, org);
                orgs.enter(org, id, ());
                if draw(4) == 0 && orgs.withdraw(draw(u64::from(id) + 1) as u32) {
                    left += 1;
                }
                while draw(3) == 0 && !going.is_empty() {
                    let (org, _) = going.swap_remove(draw(going.len() as u64) as usize);
                    orgs.leave(org);
                    left += 1;
                }
                while let Some((id, ())) = orgs.next() {
                    going.push((org_of[&id], id));
                }
                let of = |org: OrgId| going.iter().filter(|(o, _)| *o == org).count();
                assert!(going.len() <= total && (0..4).all(|org| of(OrgId(org)) <= each));
                let could_go = orgs.waiting.values().any(|(org, _)| of(*org) < each);
                assert!(going.len() == total || !could_go, "somebody waits although there is room");
            }
            while let Some((org, _)) = going.pop() {
                orgs.leave(org);
                left += 1;
                while let Some((id, ())) = orgs.next() {
                    going.push((org_of[&id], id));
                }
            }
            assert_eq!(left, 100);
            assert!(orgs.orgs.is_empty());
        }
    }
}
