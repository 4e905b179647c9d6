//! The nodes that share a store, as one of them sees them, and what is whose.
//!
//! Nothing is lost or done twice because two nodes disagree about this: whatever they do is a record, and of two
//! records with the same number the store takes one. Whose a run is says who looks after it when its time comes or when
//! the node that had it is gone; whoever gets an input for it serves that.
//!
//! Every node works out the same from the same list: each of 64 parts belongs to the node with the largest hash of both,
//! so when one comes or goes only its own parts move.

use kernel::{RunId, Span};

/// For how long a node is taken to be there after it was heard of.
pub const LEASE: Span = Span::from_secs(4);

/// Others have learned of a node by then, or are gone: from then on they leave to it what only one may keep. It waits a
/// little longer itself.
const SETTLED: Span = LEASE;
const SETTLED_ITSELF: Span = Span::from_secs(6);

const PARTS: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    own: u64,
    /// Sorted; never empty.
    there: Vec<u64>,
    /// Those of them that keep what only one may keep; never empty.
    keepers: Vec<u64>,
    /// It looks after everything: where every node has a time of its own, each has to see to what is due by its own.
    is_greedy: bool,
}

impl Nodes {
    pub fn alone(own: u64) -> Nodes {
        Nodes { own, there: vec![own], keepers: vec![own], is_greedy: false }
    }

    /// As the store said: who is there, and since when.
    pub fn of(own: u64, there: &[(u64, Span)]) -> Nodes {
        let is_settled = |(epoch, age): &&(u64, Span)| *age >= if *epoch == own { SETTLED_ITSELF } else { SETTLED };
        let mut keepers: Vec<u64> = there.iter().filter(is_settled).map(|(epoch, _)| *epoch).collect();
        let mut there: Vec<u64> = there.iter().map(|(epoch, _)| *epoch).chain([own]).collect();
        there.sort_unstable();
        there.dedup();
        // Before anybody is, whoever came first.
        keepers.extend(there.first().filter(|_| keepers.is_empty()));
        Nodes { own, there, keepers, is_greedy: false }
    }

    /// … everything, if it `is_greedy`.
    pub fn looking_after(self, is_greedy: bool) -> Nodes {
        Nodes { is_greedy, ..self }
    }

    pub fn is_greedy(&self) -> bool {
        self.is_greedy
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    pub fn is_alone(&self) -> bool {
        self.there.len() == 1
    }

    /// Whatever that node had begun will not be finished by it. (One that came later than what is known here is not gone.)
    pub fn is_gone(&self, epoch: u64) -> bool {
        let newest = self.there.last().copied().unwrap_or_default();
        epoch < newest && self.there.binary_search(&epoch).is_err()
    }

    /// Those that were there before, and are not now.
    pub fn lost_since(&self, before: &Nodes) -> bool {
        before.there.iter().any(|epoch| self.is_gone(*epoch))
    }

    pub fn is_mine(&self, run: RunId) -> bool {
        self.is_greedy || self.is_alone() || owner(&self.there, &run.0) == Some(self.own)
    }

    /// May this node, and no other, decide whose turn it is at this gate?
    pub fn keeps(&self, concurrency_group: &[u8; 16]) -> bool {
        owner(&self.keepers, concurrency_group) == Some(self.own)
    }
}

/// Whose of these nodes something is.
fn owner(nodes: &[u64], what: &[u8; 16]) -> Option<u64> {
    let part = mix(u128::from_be_bytes(*what) as u64) % PARTS;
    nodes.iter().copied().max_by_key(|epoch| mix(mix(*epoch) ^ part))
}

/// Spreads numbers that are close to each other (the finalizer of SplitMix64).
fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Span = Span::from_secs(3600);

    fn nodes(own: u64, there: &[u64]) -> Nodes {
        Nodes::of(own, &there.iter().map(|epoch| (*epoch, LONG)).collect::<Vec<_>>())
    }

    /// Who has what, of many things.
    fn owners(there: &[u64]) -> Vec<u64> {
        let of = |n: u8| there.iter().copied().filter(|own| nodes(*own, there).is_mine(RunId([n; 16]))).collect();
        let one = |owners: Vec<u64>| {
            assert_eq!(owners.len(), 1, "everything has one owner");
            owners[0]
        };
        (0..=255).map(|n| one(of(n))).collect()
    }

    #[test]
    fn everything_has_one_owner_and_only_what_a_node_has_moves_when_it_comes_or_goes() {
        let (two, three) = (owners(&[3, 8]), owners(&[3, 8, 9]));
        for there in [&two, &three] {
            for node in [3, 8] {
                let share = there.iter().filter(|owner| **owner == node).count();
                assert!((40..216).contains(&share), "node {node} has {share} of 256");
            }
        }
        for (before, after) in two.iter().zip(&three) {
            assert!(before == after || *after == 9, "something went from {before} to {after}");
        }
    }

    #[test]
    fn who_is_gone_and_who_is_only_unknown() {
        let now = nodes(5, &[3, 8]);
        for (epoch, is_gone) in [(0, true), (3, false), (4, true), (5, false), (7, true), (8, false), (9, false)] {
            assert_eq!(now.is_gone(epoch), is_gone, "{epoch}");
        }
        assert!(now.lost_since(&nodes(5, &[3, 4, 8])));
        assert!(!now.lost_since(&nodes(5, &[3])));
        let alone = Nodes::alone(5);
        assert!(alone.is_gone(4) && !alone.is_gone(5) && !alone.is_gone(6));
        assert!(alone.is_mine(RunId([7; 16])) && alone.keeps(&[7; 16]));
    }

    /// At every moment, whatever each has heard, at most one keeps a gate.
    #[test]
    fn a_node_that_has_just_come_keeps_no_gates_before_others_have_let_go_of_them() {
        for (own_age, seen_age) in [(0, 0), (3, 2), (5, 4), (6, 5), (7, 6), (9, 9)] {
            let at = |secs| Span::from_secs(secs);
            let old = Nodes::of(3, &[(3, LONG), (8, at(seen_age))]);
            let new = Nodes::of(8, &[(3, LONG), (8, at(own_age))]);
            let kept = |nodes: &Nodes| (0..200u8).filter(|n| nodes.keeps(&[*n; 16])).count();
            assert!((0..200u8).all(|n| !(old.keeps(&[n; 16]) && new.keeps(&[n; 16]))), "{own_age}");
            assert_eq!(kept(&new) > 0, own_age >= 6);
            assert_eq!(kept(&old) < 200, seen_age >= 4);
        }
        let (first, second) =
            (Nodes::of(3, &[(3, Span(0)), (8, Span(0))]), Nodes::of(8, &[(3, Span(0)), (8, Span(0))]));
        assert!((0..200u8).all(|n| first.keeps(&[n; 16]) && !second.keeps(&[n; 16])), "whoever came first");
    }
}
