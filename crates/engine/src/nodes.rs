//! The nodes that share a store, and which of them owns which run and which concurrency group.
//!
//! Ownership is not needed for safety: whatever two nodes do is a record, and of two records with the same number the
//! store accepts one. The owner of a run handles its timers, and recovers it when the node that had it is gone. Any
//! node that gets an input for a run serves it.
//!
//! Every node computes the same owners from the same list of nodes: each of 64 parts belongs to the node with the
//! largest hash of node and part. So when a node joins or leaves, only its own parts move.

use crate::TIMER_READ_AHEAD;
use kernel::{RunId, Span, Timestamp};
use std::time::Duration;
use store::{Store, Timer};

/// How often a node renews its lease.
pub const RENEWED_EVERY: Duration = Duration::from_millis(1_000);
/// How often memory is compared with the store, which finds changes whose cluster event was lost.
pub const SWEPT_EVERY: Duration = Duration::from_secs(4);

/// How long a node counts as live after its last renewal.
pub const LEASE: Span = Span::from_secs(4);

/// At this age a node becomes an owner of concurrency groups for the others, which all know of it by then or are gone.
/// The node itself waits a little longer, so that no group has two owners.
const SETTLED: Span = LEASE;
const SETTLED_ITSELF: Span = Span::from_secs(6);

const PARTS: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    own: u64,
    /// Sorted; never empty.
    live: Vec<u64>,
    /// The largest epoch in this list or an earlier one.
    newest: u64,
    /// The nodes that can own concurrency groups; never empty.
    group_owners: Vec<u64>,
    /// It owns every run. Virtual clocks of nodes disagree, so each node handles what is due by its own clock.
    owns_every_run: bool,
}

impl Nodes {
    pub fn alone(own: u64) -> Nodes {
        Nodes { own, live: vec![own], newest: own, group_owners: vec![own], owns_every_run: false }
    }

    /// From the list of live nodes in the store, each with its age.
    pub fn of(own: u64, live: &[(u64, Span)]) -> Nodes {
        let is_settled = |(epoch, age): &&(u64, Span)| *age >= if *epoch == own { SETTLED_ITSELF } else { SETTLED };
        let mut group_owners: Vec<u64> = live.iter().filter(is_settled).map(|(epoch, _)| *epoch).collect();
        let mut live: Vec<u64> = live.iter().map(|(epoch, _)| *epoch).chain([own]).collect();
        live.sort_unstable();
        live.dedup();
        // As long as no node is old enough, the first one owns all groups.
        group_owners.extend(live.first().filter(|_| group_owners.is_empty()));
        let newest = live.last().copied().unwrap_or(own);
        Nodes { own, live, newest, group_owners, owns_every_run: false }
    }

    /// Sets whether this node owns every run.
    pub fn owning_every_run(self, owns_every_run: bool) -> Nodes {
        Nodes { owns_every_run, ..self }
    }

    /// Remembers the nodes of an earlier list, so that those which are missing now are gone.
    pub fn following(self, before: &Nodes) -> Nodes {
        Nodes { newest: self.newest.max(before.newest), ..self }
    }

    pub fn owns_every_run(&self) -> bool {
        self.owns_every_run
    }

    pub fn own(&self) -> u64 {
        self.own
    }

    pub fn is_alone(&self) -> bool {
        self.live.len() == 1
    }

    /// Is that node gone, so that it will not finish what it began? A node newer than all lists so far is not gone.
    pub fn is_gone(&self, epoch: u64) -> bool {
        epoch <= self.newest && self.live.binary_search(&epoch).is_err()
    }

    /// Is a node that was live before gone now?
    pub fn lost_since(&self, before: &Nodes) -> bool {
        before.live.iter().any(|epoch| self.is_gone(*epoch))
    }

    pub fn is_mine(&self, run: RunId) -> bool {
        self.owns_every_run || self.is_alone() || owner(&self.live, &run.0) == Some(self.own)
    }

    /// Does this node wake the run of this timer? It does so for its own runs, and for others that have been due for
    /// long: their owner may be slow or gone.
    pub fn handles_timer(&self, timer: &Timer, now: Timestamp) -> bool {
        self.is_mine(timer.run) || now.since(timer.at) > LEASE
    }

    /// Does this node, and no other, admit the runs of this concurrency group?
    pub fn keeps(&self, concurrency_group: &[u8; 16]) -> bool {
        owner(&self.group_owners, concurrency_group) == Some(self.own)
    }
}

/// The timers that this node handles, at least `page` of them if there are as many. Timers of other nodes are passed
/// over, however many a slow node has left.
pub async fn own_timers(store: &dyn Store, nodes: &Nodes, now: Timestamp, page: usize) -> store::Result<Vec<Timer>> {
    let mut own = Vec::new();
    let mut after = None;
    loop {
        let timers = store.timers(now.after(TIMER_READ_AHEAD), after, page).await?;
        after = timers.last().copied().filter(|_| timers.len() >= page);
        own.extend(timers.into_iter().filter(|timer| nodes.handles_timer(timer, now)));
        if after.is_none() || own.len() >= page {
            return Ok(own);
        }
    }
}

/// What a node still has to read from the store, ordered from least to most. It stays due until it succeeded, however
/// often the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Catchup {
    Nothing,
    /// Changes whose cluster event was lost.
    Missed,
    /// Also the runs that a dead node had in memory.
    Recovery,
    /// Everything: memory is empty.
    Everything,
}

/// One read of a [`Catchup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchupRead {
    ConcurrencyGroups,
    /// Key queues, types and workers.
    TaskQueue,
    /// The open runs, to compare with the runs in memory.
    OpenRuns {
        is_recovery: bool,
    },
    /// The inputs in the inboxes of this node's runs.
    Inbox,
    /// Deletes answers whose callers are gone.
    OldAnswers,
}

impl Catchup {
    /// What a changed list of nodes makes necessary.
    pub fn after(before: &Nodes, now: &Nodes) -> Catchup {
        if now.lost_since(before) { Catchup::Recovery } else { Catchup::Missed }
    }

    /// The reads, in this order: a node learns which runs are open in its groups before it advances any of them.
    pub fn reads(self) -> &'static [CatchupRead] {
        use CatchupRead::*;
        match self {
            Catchup::Nothing => &[],
            Catchup::Missed => &[ConcurrencyGroups, OpenRuns { is_recovery: false }, Inbox, OldAnswers],
            Catchup::Recovery => &[ConcurrencyGroups, OpenRuns { is_recovery: true }, Inbox, OldAnswers],
            Catchup::Everything => &[ConcurrencyGroups, TaskQueue, OpenRuns { is_recovery: true }, Inbox],
        }
    }
}

/// The owner of an id among these nodes.
fn owner(nodes: &[u64], id: &[u8; 16]) -> Option<u64> {
    let part = mix(u128::from_be_bytes(*id) as u64) % PARTS;
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

    fn nodes(own: u64, live: &[u64]) -> Nodes {
        Nodes::of(own, &live.iter().map(|epoch| (*epoch, LONG)).collect::<Vec<_>>())
    }

    /// The owners of 256 runs.
    fn owners(live: &[u64]) -> Vec<u64> {
        let of = |n: u8| live.iter().copied().filter(|own| nodes(*own, live).is_mine(RunId([n; 16]))).collect();
        let one = |owners: Vec<u64>| {
            assert_eq!(owners.len(), 1, "every run has one owner");
            owners[0]
        };
        (0..=255).map(|n| one(of(n))).collect()
    }

    #[test]
    fn every_run_has_one_owner_and_only_runs_of_a_joining_node_move() {
        let (two, three) = (owners(&[3, 8]), owners(&[3, 8, 9]));
        for live in [&two, &three] {
            for node in [3, 8] {
                let share = live.iter().filter(|owner| **owner == node).count();
                assert!((40..216).contains(&share), "node {node} has {share} of 256");
            }
        }
        for (before, after) in two.iter().zip(&three) {
            assert!(before == after || *after == 9, "a run moved from {before} to {after}");
        }
    }

    #[test]
    fn a_missing_node_is_gone_unless_it_is_newer_than_the_list() {
        let now = nodes(5, &[3, 8]);
        for (epoch, is_gone) in [(0, true), (3, false), (4, true), (5, false), (7, true), (8, false), (9, false)] {
            assert_eq!(now.is_gone(epoch), is_gone, "{epoch}");
        }
        assert!(now.lost_since(&nodes(5, &[3, 4, 8])));
        assert!(!now.lost_since(&nodes(5, &[3])));
        let survivor = nodes(3, &[3]).following(&nodes(3, &[3, 8]));
        assert!(survivor.is_gone(8) && survivor.lost_since(&nodes(3, &[3, 8])), "the newest node is gone");
        assert!(survivor.is_gone(7) && !survivor.is_gone(9));
        assert!(nodes(3, &[3, 9]).following(&survivor).is_gone(8));
        let alone = Nodes::alone(5);
        assert!(alone.is_gone(4) && !alone.is_gone(5) && !alone.is_gone(6));
        assert!(alone.is_mine(RunId([7; 16])) && alone.keeps(&[7; 16]));
    }

    /// At every time, whatever each node knows, at most one owns a group.
    #[test]
    fn a_new_node_owns_no_group_before_the_others_have_released_it() {
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
        assert!((0..200u8).all(|n| first.keeps(&[n; 16]) && !second.keeps(&[n; 16])), "the first node owns all groups");
    }
}
