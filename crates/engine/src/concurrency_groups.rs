//! Concurrency groups: how many runs of a group may be open at once, and which queued run is next.
//!
//! ```text
//!   enter ──below limit──▶ open ──────────ended──────────▶ gone
//!     │                     ▲                               ▲
//!     ├──at limit──▶ queued ┘ (oldest first) ──cancelled────┤
//!     └──workflow paused──▶ queued ──resumed──▶ queued or open
//! ```
//!
//! Bookkeeping of the mailbox, without a clock or a store. No counter can drift: a group counts the open runs that are
//! in it, and after a restart they are read from the rows of the open runs. Run ids are ordered by time, so a queue is
//! in the order in which its runs were created.

use kernel::event::{OnConflict, Queue};
use kernel::planted_bugs::{self, Bug};
use kernel::{Admission, OrgId, RunId, WorkflowId};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use store::{ConcurrencyGroupRow, GroupedRun};

/// The id of the group of runs of one workflow with the same key.
pub fn id(workflow: WorkflowId, key: &str) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(workflow.0);
    hash.update(key.as_bytes());
    let hash: [u8; 32] = hash.finalize().into();
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    id
}

/// The decisions that follow from the stored state.
#[derive(Debug, PartialEq)]
pub struct Restored {
    /// Queued runs that may begin.
    pub admitted: Vec<(OrgId, RunId)>,
    /// Runs to cancel, to make room for a newer one.
    pub superseded: Vec<(OrgId, RunId)>,
    /// Runs that found their group full and do not queue.
    pub refused: Vec<(OrgId, RunId)>,
}

#[derive(Default)]
pub struct ConcurrencyGroups {
    members: HashMap<RunId, GroupMember>,
    concurrency_groups: HashMap<[u8; 16], GroupState>,
    paused: BTreeMap<WorkflowId, BTreeSet<RunId>>,
}

struct GroupMember {
    org: OrgId,
    workflow: WorkflowId,
    concurrency_group: Option<[u8; 16]>,
    /// Older runs are cancelled to make room for it.
    is_replacing: bool,
    /// It is refused, rather than queued, if the group is full.
    is_refused_when_full: bool,
}

impl GroupMember {
    fn new(org: OrgId, workflow: WorkflowId, concurrency_group: Option<&ConcurrencyGroupRow>) -> GroupMember {
        let on_conflict = concurrency_group.map(|concurrency_group| concurrency_group.on_conflict);
        let is_replacing = on_conflict == Some(OnConflict::CancelRunning);
        let is_refused_when_full = on_conflict == Some(OnConflict::Skip);
        GroupMember {
            org,
            workflow,
            concurrency_group: concurrency_group.map(|concurrency_group| concurrency_group.id),
            is_replacing,
            is_refused_when_full,
        }
    }
}

#[derive(Default)]
struct GroupState {
    workflow: WorkflowId,
    /// The limit of the newest run: a new version may have changed it.
    limit: u32,
    holders: BTreeSet<RunId>,
    queue: BTreeSet<RunId>,
}

impl GroupState {
    fn has_room(&self) -> bool {
        (self.holders.len() as u32) < self.limit
    }

    /// The oldest runs that must end so that this queued run may begin.
    fn surplus(&self, run: RunId) -> Vec<RunId> {
        let ahead = self.queue.range(..run);
        let others = self.holders.len() + ahead.clone().count();
        let surplus = (others + 1).saturating_sub(self.limit as usize);
        self.holders.iter().chain(ahead).copied().filter(|other| *other < run).take(surplus).collect()
    }
}

/// Why a run is queued, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStatus {
    pub limit: u32,
    /// A few of the open runs of the group, oldest first.
    pub holders: Vec<RunId>,
    /// Runs queued before this one.
    pub ahead: usize,
    pub is_paused: bool,
}

impl ConcurrencyGroups {
    /// The groups as they are stored.
    pub fn stored(paused: Vec<WorkflowId>, runs: Vec<GroupedRun>) -> ConcurrencyGroups {
        let paused = paused.into_iter().map(|workflow| (workflow, BTreeSet::new())).collect();
        let mut concurrency_groups = ConcurrencyGroups { paused, ..ConcurrencyGroups::default() };
        for row in runs {
            let concurrency_group = row.concurrency_group.as_ref().map(|concurrency_group| concurrency_group.id);
            concurrency_groups
                .members
                .insert(row.run, GroupMember::new(row.org, row.workflow, row.concurrency_group.as_ref()));
            if let Some(group_row) = &row.concurrency_group {
                let concurrency_group = concurrency_groups.concurrency_group(group_row, row.workflow);
                if !row.is_queued && !planted_bugs::is(Bug::GroupCountsForgotten) {
                    concurrency_group.holders.insert(row.run);
                }
            }
            if row.is_queued {
                concurrency_groups.queue(row.run, row.workflow, concurrency_group);
            }
        }
        concurrency_groups
    }

    /// Replaces everything with the stored state: open runs with a group, queued runs and paused workflows. Returns the
    /// decisions that follow.
    /// Runs that are `new` are not durable: they replace no run before they are.
    pub fn restore(&mut self, paused: Vec<WorkflowId>, runs: Vec<GroupedRun>, new: &HashSet<RunId>) -> Restored {
        let is_replacing = |row: &&GroupedRun| row.is_queued && !new.contains(&row.run);
        let queued: Vec<RunId> = runs.iter().filter(is_replacing).map(|row| row.run).collect();
        *self = ConcurrencyGroups::stored(paused, runs);
        let mut admitted = Vec::new();
        let concurrency_groups: BTreeSet<[u8; 16]> = self.concurrency_groups.keys().copied().collect();
        let superseded: BTreeSet<(OrgId, RunId)> = queued.into_iter().flat_map(|run| self.supersedes(run)).collect();
        for concurrency_group in concurrency_groups {
            self.admit(concurrency_group, &mut admitted);
        }
        let ungrouped = |(run, member): (&RunId, &GroupMember)| {
            (member.concurrency_group.is_none()).then_some((*run, member.workflow))
        };
        let ungrouped: BTreeSet<(RunId, WorkflowId)> = self.members.iter().filter_map(ungrouped).collect();
        for (run, workflow) in ungrouped {
            if !self.paused.contains_key(&workflow) {
                admitted.extend(self.members.remove(&run).map(|member| (member.org, run)));
            }
        }
        let still_queued =
            self.concurrency_groups.values().flat_map(|concurrency_group| concurrency_group.queue.iter());
        let is_refused = |member: &&GroupMember| member.is_refused_when_full && !self.is_paused(member);
        let refused: BTreeSet<(OrgId, RunId)> = still_queued
            .filter_map(|run| self.members.get(run).filter(is_refused).map(|member| (member.org, *run)))
            .collect();
        let (superseded, refused) = (superseded.into_iter().collect(), refused.into_iter().collect());
        Restored { admitted, superseded, refused }
    }

    /// Applies the limit of a new run. Returns the queued runs that a higher limit admits.
    pub fn raise_limit(&mut self, workflow: WorkflowId, row: &ConcurrencyGroupRow) -> Vec<(OrgId, RunId)> {
        self.concurrency_group(row, workflow);
        let mut admitted = Vec::new();
        self.admit(row.id, &mut admitted);
        admitted
    }

    /// A new run enters its group, and stays in it until [`leave`](Self::leave).
    pub fn enter(
        &mut self,
        org: OrgId,
        run: RunId,
        workflow: WorkflowId,
        concurrency_group: Option<&ConcurrencyGroupRow>,
    ) -> Admission {
        let is_paused = self.paused.contains_key(&workflow);
        let Some(row) = concurrency_group else {
            if !is_paused {
                return Admission::Open;
            }
            self.members.insert(run, GroupMember::new(org, workflow, None));
            self.queue(run, workflow, None);
            return Admission::Queue(Queue::WorkflowPaused);
        };
        let id = row.id;
        let concurrency_group = self.concurrency_group(row, workflow);
        // Runs that are queued only because their workflow is paused count too.
        let is_full =
            concurrency_group.holders.len() + concurrency_group.queue.len() >= concurrency_group.limit as usize;
        if is_full && row.on_conflict == OnConflict::Skip {
            return Admission::Refuse;
        }
        self.members.insert(run, GroupMember::new(org, workflow, Some(row)));
        if is_paused || is_full {
            self.queue(run, workflow, Some(id));
        } else if let Some(concurrency_group) = self.concurrency_groups.get_mut(&id) {
            concurrency_group.holders.insert(run);
        }
        match (is_paused, is_full) {
            (true, _) => Admission::Queue(Queue::WorkflowPaused),
            (false, true) => Admission::Queue(Queue::Limit),
            (false, false) => Admission::Open,
        }
    }

    /// A run that had ended goes on. It queues only if new runs of its group do, and it replaces no other run.
    pub fn reenter(
        &mut self,
        org: OrgId,
        run: RunId,
        workflow: WorkflowId,
        concurrency_group: Option<&ConcurrencyGroupRow>,
    ) -> Admission {
        if self.members.contains_key(&run) {
            // The record with which it came back before was not committed.
            return match self.is_queued(run) {
                true if self.paused.contains_key(&workflow) => Admission::Queue(Queue::WorkflowPaused),
                true => Admission::Queue(Queue::Limit),
                false => Admission::Open,
            };
        }
        let queues = concurrency_group.is_none_or(|row| row.on_conflict == OnConflict::Queue);
        if !queues && concurrency_group.is_some_and(|row| self.is_full(row)) {
            return Admission::Refuse;
        }
        self.enter(org, run, workflow, concurrency_group)
    }

    /// Has the group no room for another run?
    pub fn is_full(&self, row: &ConcurrencyGroupRow) -> bool {
        let group = self.concurrency_groups.get(&row.id);
        group.is_some_and(|group| group.holders.len() + group.queue.len() >= group.limit as usize)
    }

    /// The runs to cancel for this run, if it is queued and replaces older ones.
    pub fn supersedes(&self, run: RunId) -> Vec<(OrgId, RunId)> {
        let member = self.members.get(&run).filter(|member| member.is_replacing);
        let concurrency_group = member.and_then(|member| self.concurrency_groups.get(&member.concurrency_group?));
        let surplus = concurrency_group
            .filter(|concurrency_group| concurrency_group.queue.contains(&run))
            .map(|concurrency_group| concurrency_group.surplus(run));
        let with_org = |run: RunId| self.members.get(&run).map(|member| (member.org, run));
        surplus.unwrap_or_default().into_iter().filter_map(with_org).collect()
    }

    /// A run has ended or was never created. Returns the queued runs that may begin.
    pub fn leave(&mut self, run: RunId) -> Vec<(OrgId, RunId)> {
        let mut admitted = Vec::new();
        let Some(member) = self.members.remove(&run) else { return admitted };
        if let Some(queued) = self.paused.get_mut(&member.workflow) {
            queued.remove(&run);
        }
        if let Some(id) = member.concurrency_group
            && let Some(concurrency_group) = self.concurrency_groups.get_mut(&id)
        {
            concurrency_group.holders.remove(&run);
            concurrency_group.queue.remove(&run);
            if concurrency_group.holders.is_empty() && concurrency_group.queue.is_empty() {
                self.concurrency_groups.remove(&id);
            } else {
                self.admit(id, &mut admitted);
            }
        }
        admitted
    }

    /// Queues new runs of this workflow from now on, even below their limits.
    pub fn pause(&mut self, workflow: WorkflowId) {
        self.paused.entry(workflow).or_default();
    }

    /// Returns the queued runs that may begin.
    pub fn resume(&mut self, workflow: WorkflowId) -> Vec<(OrgId, RunId)> {
        let mut admitted = Vec::new();
        for run in self.paused.remove(&workflow).unwrap_or_default() {
            // It has no group: once admitted, it needs no bookkeeping any more.
            admitted.extend(self.members.remove(&run).map(|member| (member.org, run)));
        }
        let concurrency_groups = self
            .concurrency_groups
            .iter()
            .filter(|(_, concurrency_group)| concurrency_group.workflow == workflow)
            .map(|(id, _)| *id);
        let concurrency_groups: BTreeSet<[u8; 16]> = concurrency_groups.collect();
        for concurrency_group in concurrency_groups {
            self.admit(concurrency_group, &mut admitted);
        }
        admitted
    }

    /// Why this run is queued; `None` if it is not known here.
    pub fn queue_status(&self, run: RunId) -> Option<QueueStatus> {
        let member = self.members.get(&run)?;
        let is_paused = self.paused.contains_key(&member.workflow);
        let concurrency_group = member.concurrency_group.and_then(|id| self.concurrency_groups.get(&id));
        let limit = concurrency_group.map_or(0, |concurrency_group| concurrency_group.limit);
        let holders = concurrency_group
            .map(|concurrency_group| concurrency_group.holders.iter().take(8).copied().collect())
            .unwrap_or_default();
        let ahead = concurrency_group.map_or(0, |concurrency_group| concurrency_group.queue.range(..run).count());
        Some(QueueStatus { limit, holders, ahead, is_paused })
    }

    /// Would this queued run be admitted now?
    pub fn is_next(&self, run: RunId) -> bool {
        let Some(member) = self.members.get(&run).filter(|member| !self.is_paused(member)) else { return false };
        member.concurrency_group.and_then(|id| self.concurrency_groups.get(&id)).is_some_and(|concurrency_group| {
            let ahead = concurrency_group.holders.len() + concurrency_group.queue.range(..run).count();
            concurrency_group.queue.contains(&run) && ahead < concurrency_group.limit as usize
        })
    }

    fn is_paused(&self, member: &GroupMember) -> bool {
        self.paused.contains_key(&member.workflow)
    }

    /// Is this run in a group, or queued?
    pub fn is_known(&self, run: RunId) -> bool {
        self.members.contains_key(&run)
    }

    pub fn is_queued(&self, run: RunId) -> bool {
        self.members.get(&run).is_some_and(|member| {
            match member.concurrency_group.and_then(|id| self.concurrency_groups.get(&id)) {
                Some(concurrency_group) => concurrency_group.queue.contains(&run),
                None => true,
            }
        })
    }

    fn concurrency_group(&mut self, row: &ConcurrencyGroupRow, workflow: WorkflowId) -> &mut GroupState {
        let concurrency_group = self.concurrency_groups.entry(row.id).or_default();
        concurrency_group.workflow = workflow;
        concurrency_group.limit = row.limit;
        concurrency_group
    }

    fn queue(&mut self, run: RunId, workflow: WorkflowId, concurrency_group: Option<[u8; 16]>) {
        match concurrency_group.and_then(|id| self.concurrency_groups.get_mut(&id)) {
            Some(concurrency_group) => drop(concurrency_group.queue.insert(run)),
            None => drop(self.paused.get_mut(&workflow).map(|queued| queued.insert(run))),
        }
    }

    /// Admits the oldest queued runs while the group is below its limit.
    fn admit(&mut self, id: [u8; 16], admitted: &mut Vec<(OrgId, RunId)>) {
        let Some(concurrency_group) = self.concurrency_groups.get_mut(&id) else { return };
        if self.paused.contains_key(&concurrency_group.workflow) {
            return;
        }
        while concurrency_group.has_room() {
            let Some(run) = concurrency_group.queue.pop_first() else { break };
            concurrency_group.holders.insert(run);
            admitted.extend(self.members.get(&run).map(|member| (member.org, run)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORG: OrgId = OrgId::DEFAULT;
    const WORKFLOW: WorkflowId = WorkflowId([9; 16]);

    fn run(n: u8) -> RunId {
        RunId([n; 16])
    }

    fn concurrency_group(limit: u32, on_conflict: OnConflict) -> ConcurrencyGroupRow {
        ConcurrencyGroupRow { id: [1; 16], limit, on_conflict }
    }

    fn enter(concurrency_groups: &mut ConcurrencyGroups, n: u8, concurrency_group: &ConcurrencyGroupRow) -> Admission {
        concurrency_groups.enter(ORG, run(n), WORKFLOW, Some(concurrency_group))
    }

    #[test]
    fn a_queue_is_first_come_first_served_and_never_over_its_limit() {
        let (mut concurrency_groups, two) = (ConcurrencyGroups::default(), concurrency_group(2, OnConflict::Queue));
        assert_eq!(enter(&mut concurrency_groups, 1, &two), Admission::Open);
        assert_eq!(enter(&mut concurrency_groups, 2, &two), Admission::Open);
        for n in 3..6 {
            assert_eq!(enter(&mut concurrency_groups, n, &two), Admission::Queue(Queue::Limit));
        }
        assert_eq!(concurrency_groups.queue_status(run(5)).unwrap().ahead, 2);
        assert_eq!(concurrency_groups.leave(run(2)), [(ORG, run(3))]);
        assert_eq!(concurrency_groups.leave(run(4)), [], "it was only queued: no run is admitted");
        assert_eq!(concurrency_groups.leave(run(1)), [(ORG, run(5))]);
        assert_eq!(concurrency_groups.leave(run(1)), [], "a run leaves once");
        assert_eq!((concurrency_groups.leave(run(3)), concurrency_groups.leave(run(5))), (vec![], vec![]));
        assert!(
            concurrency_groups.members.is_empty() && concurrency_groups.concurrency_groups.is_empty(),
            "no bookkeeping stays behind"
        );
    }

    #[test]
    fn a_run_in_a_full_group_is_refused_or_replaces_the_oldest() {
        let (mut concurrency_groups, one) = (ConcurrencyGroups::default(), concurrency_group(1, OnConflict::Skip));
        assert_eq!(enter(&mut concurrency_groups, 1, &one), Admission::Open);
        assert_eq!(enter(&mut concurrency_groups, 2, &one), Admission::Refuse);
        assert_eq!(concurrency_groups.leave(run(2)), []);
        let newest = concurrency_group(1, OnConflict::CancelRunning);
        assert_eq!(enter(&mut concurrency_groups, 3, &newest), Admission::Queue(Queue::Limit));
        assert_eq!(concurrency_groups.supersedes(run(3)), [(ORG, run(1))]);
        assert_eq!(enter(&mut concurrency_groups, 4, &newest), Admission::Queue(Queue::Limit));
        assert_eq!(
            concurrency_groups.supersedes(run(4)),
            [(ORG, run(1)), (ORG, run(3))],
            "queued runs before it are superseded too"
        );
        assert_eq!(concurrency_groups.supersedes(run(1)), [], "it is not queued");
        assert_eq!(concurrency_groups.leave(run(3)), []);
        assert_eq!(concurrency_groups.leave(run(1)), [(ORG, run(4))]);
    }

    #[test]
    fn m29_a_run_that_comes_back_queues_or_is_refused_and_replaces_no_other() {
        for (on_conflict, expected) in [
            (OnConflict::Queue, Admission::Queue(Queue::Limit)),
            (OnConflict::Skip, Admission::Refuse),
            (OnConflict::CancelRunning, Admission::Refuse),
        ] {
            let (mut groups, one) = (ConcurrencyGroups::default(), concurrency_group(1, on_conflict));
            enter(&mut groups, 2, &one);
            assert_eq!(groups.reenter(ORG, run(1), WORKFLOW, Some(&one)), expected);
            assert_eq!(groups.supersedes(run(1)), []);
            if expected != Admission::Refuse {
                assert_eq!(groups.reenter(ORG, run(1), WORKFLOW, Some(&one)), expected, "asked again after a conflict");
                assert_eq!(groups.leave(run(2)), [(ORG, run(1))]);
                assert_eq!(groups.reenter(ORG, run(1), WORKFLOW, Some(&one)), Admission::Open);
            } else {
                assert_eq!(groups.leave(run(2)), []);
                assert_eq!(groups.reenter(ORG, run(1), WORKFLOW, Some(&one)), Admission::Open);
            }
        }
    }

    #[test]
    fn a_paused_workflow_admits_no_run_until_it_is_resumed() {
        let (mut concurrency_groups, one) = (ConcurrencyGroups::default(), concurrency_group(1, OnConflict::Queue));
        assert_eq!(enter(&mut concurrency_groups, 1, &one), Admission::Open);
        concurrency_groups.pause(WORKFLOW);
        assert_eq!(enter(&mut concurrency_groups, 2, &one), Admission::Queue(Queue::WorkflowPaused));
        assert_eq!(concurrency_groups.enter(ORG, run(3), WORKFLOW, None), Admission::Queue(Queue::WorkflowPaused));
        assert_eq!(concurrency_groups.enter(ORG, run(4), WorkflowId([8; 16]), None), Admission::Open);
        assert_eq!(concurrency_groups.leave(run(1)), [], "there is room, but the workflow is paused");
        assert_eq!(concurrency_groups.resume(WORKFLOW), [(ORG, run(3)), (ORG, run(2))]);
        assert_eq!(enter(&mut concurrency_groups, 5, &one), Admission::Queue(Queue::Limit));
    }

    #[test]
    fn runs_queued_by_a_pause_count_against_the_limit() {
        let (mut concurrency_groups, two) = (ConcurrencyGroups::default(), concurrency_group(2, OnConflict::Skip));
        concurrency_groups.pause(WORKFLOW);
        let enter =
            |concurrency_groups: &mut ConcurrencyGroups, n| concurrency_groups.enter(ORG, run(n), WORKFLOW, Some(&two));
        assert_eq!(enter(&mut concurrency_groups, 1), Admission::Queue(Queue::WorkflowPaused));
        assert_eq!(
            enter(&mut concurrency_groups, 2),
            Admission::Queue(Queue::WorkflowPaused),
            "there is room for both"
        );
        assert_eq!(enter(&mut concurrency_groups, 3), Admission::Refuse);
        assert_eq!(concurrency_groups.resume(WORKFLOW), [(ORG, run(1)), (ORG, run(2))]);
    }

    #[test]
    fn a_higher_limit_admits_queued_runs_before_the_run_that_brought_it() {
        let (mut concurrency_groups, one, three) = (
            ConcurrencyGroups::default(),
            concurrency_group(1, OnConflict::Queue),
            concurrency_group(3, OnConflict::Queue),
        );
        for n in 1..4 {
            concurrency_groups.enter(ORG, run(n), WORKFLOW, Some(&one));
        }
        assert_eq!(concurrency_groups.raise_limit(WORKFLOW, &three), [(ORG, run(2)), (ORG, run(3))]);
        assert_eq!(concurrency_groups.enter(ORG, run(4), WORKFLOW, Some(&three)), Admission::Queue(Queue::Limit));
        assert_eq!(concurrency_groups.raise_limit(WORKFLOW, &three), []);
    }

    #[test]
    fn groups_are_restored_from_the_rows_of_open_runs() {
        let grouped_run = |n: u8, concurrency_group: Option<ConcurrencyGroupRow>, is_queued| GroupedRun {
            org: ORG,
            run: run(n),
            workflow: WORKFLOW,
            concurrency_group,
            is_queued,
        };
        let two = || Some(concurrency_group(2, OnConflict::Queue));
        let rows = || {
            vec![
                grouped_run(1, two(), false),
                grouped_run(2, two(), true),
                grouped_run(3, two(), true),
                grouped_run(4, None, true),
            ]
        };
        let mut concurrency_groups = ConcurrencyGroups::default();
        let restored = concurrency_groups.restore(Vec::new(), rows(), &HashSet::new());
        assert_eq!(
            restored,
            Restored { refused: vec![], admitted: vec![(ORG, run(2)), (ORG, run(4))], superseded: vec![] }
        );
        assert_eq!(concurrency_groups.leave(run(1)), [(ORG, run(3))]);
        let mut concurrency_groups = ConcurrencyGroups::default();
        assert_eq!(concurrency_groups.restore(vec![WORKFLOW], rows(), &HashSet::new()).admitted, []);
        assert_eq!(concurrency_groups.resume(WORKFLOW), [(ORG, run(4)), (ORG, run(2))]);
        let newest = || Some(concurrency_group(1, OnConflict::CancelRunning));
        let left = vec![grouped_run(1, newest(), false), grouped_run(2, newest(), true)];
        let restored = ConcurrencyGroups::default().restore(Vec::new(), left, &HashSet::new());
        let expected = Restored { refused: vec![], admitted: vec![], superseded: vec![(ORG, run(1))] };
        assert_eq!(restored, expected, "a crash does not save the superseded run");
        let left = vec![grouped_run(1, newest(), false), grouped_run(2, newest(), true)];
        let restored = ConcurrencyGroups::default().restore(Vec::new(), left, &HashSet::from([run(2)]));
        assert_eq!(restored.superseded, [], "a run that is not durable yet replaces no run");
        let left = vec![
            grouped_run(1, newest(), false),
            grouped_run(2, newest(), true),
            grouped_run(3, two(), true),
            grouped_run(4, two(), true),
        ];
        let restored = ConcurrencyGroups::default().restore(Vec::new(), left, &HashSet::new());
        let expected = Restored { refused: vec![], admitted: vec![(ORG, run(2))], superseded: vec![] };
        assert_eq!(restored, expected, "the newest limit is 2, and no run is cancelled for runs that only queue");
    }
}
