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

const PARTS: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    own: u64,
    /// Sorted; never empty.
    there: Vec<u64>,
    /// Others have had time to learn that this one is there. Before that it keeps nothing that only one may keep.
    pub is_settled: bool,
}

impl Nodes {
    pub fn alone(own: u64) -> Nodes {
        Nodes { own, there: vec![own], is_settled: true }
    }

    /// As the store said.
    pub fn of(own: u64, mut there: Vec<u64>, is_settled: bool) -> Nodes {
        there.push(own);
        there.sort_unstable();
        there.dedup();
        Nodes { own, is_settled: is_settled || there.len() == 1, there }
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
        self.is_alone() || self.owner(mix(u128::from_be_bytes(run.0) as u64) % PARTS) == self.own
    }

    /// May this node, and no other, decide whose turn it is at this gate?
    pub fn keeps(&self, gate: &[u8; 16]) -> bool {
        self.is_alone() || self.is_settled && self.owner(mix(u128::from_be_bytes(*gate) as u64) % PARTS) == self.own
    }

    fn owner(&self, part: u64) -> u64 {
        self.there.iter().copied().max_by_key(|epoch| mix(mix(*epoch) ^ part)).unwrap_or(self.own)
    }
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

    fn owners(there: &[u64]) -> Vec<u64> {
        (0..PARTS).map(|part| Nodes::of(there[0], there.to_vec(), true).owner(part)).collect()
    }

    #[test]
    fn every_part_has_one_owner_and_only_those_of_a_node_that_comes_or_goes_move() {
        let (two, three) = (owners(&[3, 8]), owners(&[3, 8, 9]));
        for there in [&two, &three] {
            for node in [3, 8] {
                let share = there.iter().filter(|owner| **owner == node).count();
                assert!((10..55).contains(&share), "node {node} has {share} of {PARTS}");
            }
        }
        for (before, after) in two.iter().zip(&three) {
            assert!(before == after || *after == 9, "a part went from {before} to {after}");
        }
        assert_eq!(owners(&[8, 9, 3]), three, "whoever asks");
    }

    #[test]
    fn who_is_gone_and_who_is_only_unknown() {
        let nodes = Nodes::of(5, vec![3, 8], false);
        for (epoch, is_gone) in [(0, true), (3, false), (4, true), (5, false), (7, true), (8, false), (9, false)] {
            assert_eq!(nodes.is_gone(epoch), is_gone, "{epoch}");
        }
        assert!(nodes.lost_since(&Nodes::of(5, vec![3, 4, 8], true)));
        assert!(!nodes.lost_since(&Nodes::of(5, vec![3], true)));
        let alone = Nodes::alone(5);
        assert!(alone.is_gone(4) && !alone.is_gone(5) && !alone.is_gone(6));
        assert!(alone.is_mine(RunId([7; 16])) && alone.keeps(&[7; 16]));
    }

    #[test]
    fn one_that_has_just_come_keeps_no_gates() {
        let fresh = Nodes::of(8, vec![3], false);
        let settled = Nodes::of(8, vec![3], true);
        let other = Nodes::of(3, vec![8], true);
        for n in 0..200u8 {
            let gate = [n; 16];
            assert!(!fresh.keeps(&gate));
            assert!(settled.keeps(&gate) != other.keeps(&gate), "one of the two keeps {n}");
        }
    }
}
