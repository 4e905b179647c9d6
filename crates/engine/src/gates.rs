//! Gates: which runs may be open at once, and whose turn is next.
//!
//! ```text
//!   enter ──room──▶ holding ──────ended──────▶ gone
//!     │                ▲                        ▲
//!     ├──full──▶ queued ┘ (oldest first) ───────┤
//!     └──workflow paused──▶ held ──resumed──▶ queued or holding
//! ```
//!
//! Pure bookkeeping of the mailbox: no clock, no store. Nothing here is a counter that could drift: a
//! place is held by a run that is open, and after a restart the places are read from the rows of the open
//! runs. Ids are ordered by time, so the order of a queue is the order in which its runs were created.

use kernel::event::{OnConflict, Queue};
use kernel::planted::{self, Bug};
use kernel::{Admission, OrgId, RunId, WorkflowId};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use store::{GateRow, GatedRun};

/// Runs of one workflow whose keys are equal share a limit.
pub fn id(workflow: WorkflowId, key: &str) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(workflow.0);
    hash.update(key.as_bytes());
    let hash: [u8; 32] = hash.finalize().into();
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    id
}

/// What follows from the places the last process left.
#[derive(Debug, PartialEq)]
pub struct Restored {
    /// Whose turn has come.
    pub admitted: Vec<(OrgId, RunId)>,
    /// Who has to make room.
    pub superseded: Vec<(OrgId, RunId)>,
    /// Who came to a full gate and does not wait.
    pub refused: Vec<(OrgId, RunId)>,
}

#[derive(Default)]
pub struct Gates {
    places: HashMap<RunId, Place>,
    gates: HashMap<[u8; 16], Gate>,
    paused: BTreeMap<WorkflowId, BTreeSet<RunId>>,
}

struct Place {
    org: OrgId,
    workflow: WorkflowId,
    gate: Option<[u8; 16]>,
    /// Others make room for it, rather than it waits.
    is_replacing: bool,
    /// It does not wait either.
    is_hasty: bool,
}

impl Place {
    fn new(org: OrgId, workflow: WorkflowId, gate: Option<&GateRow>) -> Place {
        let on_conflict = gate.map(|gate| gate.on_conflict);
        let is_replacing = on_conflict == Some(OnConflict::CancelRunning);
        let is_hasty = on_conflict == Some(OnConflict::Skip);
        Place { org, workflow, gate: gate.map(|gate| gate.id), is_replacing, is_hasty }
    }
}

#[derive(Default)]
struct Gate {
    workflow: WorkflowId,
    /// As the newest run said: a new version may have changed it.
    limit: u32,
    holders: BTreeSet<RunId>,
    queue: BTreeSet<RunId>,
}

impl Gate {
    fn has_room(&self) -> bool {
        (self.holders.len() as u32) < self.limit
    }

    /// The oldest runs that must go so that this one, which waits, would fit.
    fn surplus(&self, run: RunId) -> Vec<RunId> {
        let ahead = self.queue.range(..run);
        let others = self.holders.len() + ahead.clone().count();
        let surplus = (others + 1).saturating_sub(self.limit as usize);
        self.holders.iter().chain(ahead).copied().filter(|other| *other < run).take(surplus).collect()
    }
}

/// What a gate looks like from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crowd {
    pub limit: u32,
    /// A few of those who hold a place, oldest first.
    pub holders: Vec<RunId>,
    /// Runs queued before the one that asks.
    pub ahead: usize,
    pub is_paused: bool,
}

impl Gates {
    /// As they are stored.
    pub fn stored(paused: Vec<WorkflowId>, runs: Vec<GatedRun>) -> Gates {
        let paused = paused.into_iter().map(|workflow| (workflow, BTreeSet::new())).collect();
        let mut gates = Gates { paused, ..Gates::default() };
        for row in runs {
            let gate = row.gate.as_ref().map(|gate| gate.id);
            gates.places.insert(row.run, Place::new(row.org, row.workflow, row.gate.as_ref()));
            if let Some(said) = &row.gate {
                let gate = gates.gate(said, row.workflow);
                if !row.is_queued && !planted::is(Bug::GateCountsForgotten) {
                    gate.holders.insert(row.run);
                }
            }
            if row.is_queued {
                gates.queue(row.run, row.workflow, gate);
            }
        }
        gates
    }

    /// Forgets everything and takes up what is stored: open runs with a gate, runs whose turn had not come, paused
    /// workflows. Answers who may go on, and who may not.
    pub fn restore(&mut self, paused: Vec<WorkflowId>, runs: Vec<GatedRun>) -> Restored {
        let queued: Vec<RunId> = runs.iter().filter(|row| row.is_queued).map(|row| row.run).collect();
        *self = Gates::stored(paused, runs);
        let mut admitted = Vec::new();
        let gates: BTreeSet<[u8; 16]> = self.gates.keys().copied().collect();
        let superseded: BTreeSet<(OrgId, RunId)> = queued.into_iter().flat_map(|run| self.supersedes(run)).collect();
        for gate in gates {
            self.admit(gate, &mut admitted);
        }
        let ungated = |(run, place): (&RunId, &Place)| (place.gate.is_none()).then_some((*run, place.workflow));
        let ungated: BTreeSet<(RunId, WorkflowId)> = self.places.iter().filter_map(ungated).collect();
        for (run, workflow) in ungated {
            if !self.paused.contains_key(&workflow) {
                admitted.extend(self.places.remove(&run).map(|place| (place.org, run)));
            }
        }
        let left = self.gates.values().flat_map(|gate| gate.queue.iter());
        let hasty = |run: &RunId| self.places.get(run).filter(|place| place.is_hasty && !self.is_paused(place));
        let refused: BTreeSet<(OrgId, RunId)> =
            left.filter_map(|run| hasty(run).map(|place| (place.org, *run))).collect();
        let (superseded, refused) = (superseded.into_iter().collect(), refused.into_iter().collect());
        Restored { admitted, superseded, refused }
    }

    /// A new run comes with a limit of its own, which may be a higher one: answers whose turn has come by it.
    pub fn widen(&mut self, workflow: WorkflowId, said: &GateRow) -> Vec<(OrgId, RunId)> {
        self.gate(said, workflow);
        let mut admitted = Vec::new();
        self.admit(said.id, &mut admitted);
        admitted
    }

    /// A new run is at the door. It has its place from now on, until it leaves.
    pub fn enter(&mut self, org: OrgId, run: RunId, workflow: WorkflowId, gate: Option<&GateRow>) -> Admission {
        let is_paused = self.paused.contains_key(&workflow);
        let Some(said) = gate else {
            if !is_paused {
                return Admission::Open;
            }
            self.places.insert(run, Place::new(org, workflow, None));
            self.queue(run, workflow, None);
            return Admission::Queue(Queue::WorkflowPaused);
        };
        let id = said.id;
        let gate = self.gate(said, workflow);
        // Those who wait only for their workflow to be resumed have a claim too.
        let is_full = gate.holders.len() + gate.queue.len() >= gate.limit as usize;
        if is_full && said.on_conflict == OnConflict::Skip {
            return Admission::Refuse;
        }
        self.places.insert(run, Place::new(org, workflow, Some(said)));
        if is_paused || is_full {
            self.queue(run, workflow, Some(id));
        } else if let Some(gate) = self.gates.get_mut(&id) {
            gate.holders.insert(run);
        }
        match (is_paused, is_full) {
            (true, _) => Admission::Queue(Queue::WorkflowPaused),
            (false, true) => Admission::Queue(Queue::Limit),
            (false, false) => Admission::Open,
        }
    }

    /// Who has to make room for this run, if it waits and is not meant to.
    pub fn supersedes(&self, run: RunId) -> Vec<(OrgId, RunId)> {
        let place = self.places.get(&run).filter(|place| place.is_replacing);
        let gate = place.and_then(|place| self.gates.get(&place.gate?));
        let surplus = gate.filter(|gate| gate.queue.contains(&run)).map(|gate| gate.surplus(run));
        let with_org = |run: RunId| self.places.get(&run).map(|place| (place.org, run));
        surplus.unwrap_or_default().into_iter().filter_map(with_org).collect()
    }

    /// A run is over, or never came to be. Answers whose turn has come.
    pub fn leave(&mut self, run: RunId) -> Vec<(OrgId, RunId)> {
        let mut admitted = Vec::new();
        let Some(place) = self.places.remove(&run) else { return admitted };
        if let Some(held) = self.paused.get_mut(&place.workflow) {
            held.remove(&run);
        }
        if let Some(id) = place.gate
            && let Some(gate) = self.gates.get_mut(&id)
        {
            gate.holders.remove(&run);
            gate.queue.remove(&run);
            if gate.holders.is_empty() && gate.queue.is_empty() {
                self.gates.remove(&id);
            } else {
                self.admit(id, &mut admitted);
            }
        }
        admitted
    }

    /// Runs of this workflow wait for their turn from now on, whatever their limits say.
    pub fn pause(&mut self, workflow: WorkflowId) {
        self.paused.entry(workflow).or_default();
    }

    /// Answers whose turn has come.
    pub fn resume(&mut self, workflow: WorkflowId) -> Vec<(OrgId, RunId)> {
        let mut admitted = Vec::new();
        for run in self.paused.remove(&workflow).unwrap_or_default() {
            // It has no limit to obey: once it is let in, nothing needs to know of it any more.
            admitted.extend(self.places.remove(&run).map(|place| (place.org, run)));
        }
        let gates = self.gates.iter().filter(|(_, gate)| gate.workflow == workflow).map(|(id, _)| *id);
        let gates: BTreeSet<[u8; 16]> = gates.collect();
        for gate in gates {
            self.admit(gate, &mut admitted);
        }
        admitted
    }

    /// Who stands between this run and its turn; `None` if it is not known here.
    pub fn crowd(&self, run: RunId) -> Option<Crowd> {
        let place = self.places.get(&run)?;
        let is_paused = self.paused.contains_key(&place.workflow);
        let gate = place.gate.and_then(|id| self.gates.get(&id));
        let limit = gate.map_or(0, |gate| gate.limit);
        let holders = gate.map(|gate| gate.holders.iter().take(8).copied().collect()).unwrap_or_default();
        let ahead = gate.map_or(0, |gate| gate.queue.range(..run).count());
        Some(Crowd { limit, holders, ahead, is_paused })
    }

    fn is_paused(&self, place: &Place) -> bool {
        self.paused.contains_key(&place.workflow)
    }

    /// Does this run have a place, or wait for one?
    pub fn is_known(&self, run: RunId) -> bool {
        self.places.contains_key(&run)
    }

    /// Does this run wait for its turn?
    pub fn is_queued(&self, run: RunId) -> bool {
        self.places.get(&run).is_some_and(|place| match place.gate.and_then(|id| self.gates.get(&id)) {
            Some(gate) => gate.queue.contains(&run),
            None => true,
        })
    }

    fn gate(&mut self, said: &GateRow, workflow: WorkflowId) -> &mut Gate {
        let gate = self.gates.entry(said.id).or_default();
        gate.workflow = workflow;
        gate.limit = said.limit;
        gate
    }

    fn queue(&mut self, run: RunId, workflow: WorkflowId, gate: Option<[u8; 16]>) {
        match gate.and_then(|id| self.gates.get_mut(&id)) {
            Some(gate) => drop(gate.queue.insert(run)),
            None => drop(self.paused.get_mut(&workflow).map(|held| held.insert(run))),
        }
    }

    /// Lets in the oldest that wait, as long as there is room.
    fn admit(&mut self, id: [u8; 16], admitted: &mut Vec<(OrgId, RunId)>) {
        let Some(gate) = self.gates.get_mut(&id) else { return };
        if self.paused.contains_key(&gate.workflow) {
            return;
        }
        while gate.has_room() {
            let Some(run) = gate.queue.pop_first() else { break };
            gate.holders.insert(run);
            admitted.extend(self.places.get(&run).map(|place| (place.org, run)));
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

    fn gate(limit: u32, on_conflict: OnConflict) -> GateRow {
        GateRow { id: [1; 16], limit, on_conflict }
    }

    fn enter(gates: &mut Gates, n: u8, gate: &GateRow) -> Admission {
        gates.enter(ORG, run(n), WORKFLOW, Some(gate))
    }

    #[test]
    fn a_queue_is_first_come_first_served_and_never_over_its_limit() {
        let (mut gates, two) = (Gates::default(), gate(2, OnConflict::Queue));
        assert_eq!(enter(&mut gates, 1, &two), Admission::Open);
        assert_eq!(enter(&mut gates, 2, &two), Admission::Open);
        for n in 3..6 {
            assert_eq!(enter(&mut gates, n, &two), Admission::Queue(Queue::Limit));
        }
        assert_eq!(gates.crowd(run(5)).unwrap().ahead, 2);
        assert_eq!(gates.leave(run(2)), [(ORG, run(3))]);
        assert_eq!(gates.leave(run(4)), [], "it had not come in: nobody gets its place");
        assert_eq!(gates.leave(run(1)), [(ORG, run(5))]);
        assert_eq!(gates.leave(run(1)), [], "nobody leaves twice");
        assert_eq!((gates.leave(run(3)), gates.leave(run(5))), (vec![], vec![]));
        assert!(gates.places.is_empty() && gates.gates.is_empty(), "nothing stays behind");
    }

    #[test]
    fn a_run_that_finds_no_room_can_be_refused_or_replace_the_oldest() {
        let (mut gates, one) = (Gates::default(), gate(1, OnConflict::Skip));
        assert_eq!(enter(&mut gates, 1, &one), Admission::Open);
        assert_eq!(enter(&mut gates, 2, &one), Admission::Refuse);
        assert_eq!(gates.leave(run(2)), []);
        let newest = gate(1, OnConflict::CancelRunning);
        assert_eq!(enter(&mut gates, 3, &newest), Admission::Queue(Queue::Limit));
        assert_eq!(gates.supersedes(run(3)), [(ORG, run(1))]);
        assert_eq!(enter(&mut gates, 4, &newest), Admission::Queue(Queue::Limit));
        assert_eq!(gates.supersedes(run(4)), [(ORG, run(1)), (ORG, run(3))], "those before it are out of date too");
        assert_eq!(gates.supersedes(run(1)), [], "it does not wait");
        assert_eq!(gates.leave(run(3)), []);
        assert_eq!(gates.leave(run(1)), [(ORG, run(4))]);
    }

    #[test]
    fn a_paused_workflow_lets_nobody_in_until_it_is_resumed() {
        let (mut gates, one) = (Gates::default(), gate(1, OnConflict::Queue));
        assert_eq!(enter(&mut gates, 1, &one), Admission::Open);
        gates.pause(WORKFLOW);
        assert_eq!(enter(&mut gates, 2, &one), Admission::Queue(Queue::WorkflowPaused));
        assert_eq!(gates.enter(ORG, run(3), WORKFLOW, None), Admission::Queue(Queue::WorkflowPaused));
        assert_eq!(gates.enter(ORG, run(4), WorkflowId([8; 16]), None), Admission::Open);
        assert_eq!(gates.leave(run(1)), [], "there is room, but nobody may use it");
        assert_eq!(gates.resume(WORKFLOW), [(ORG, run(3)), (ORG, run(2))]);
        assert_eq!(enter(&mut gates, 5, &one), Admission::Queue(Queue::Limit));
    }

    #[test]
    fn a_pause_fills_the_places_but_makes_no_fewer() {
        let (mut gates, two) = (Gates::default(), gate(2, OnConflict::Skip));
        gates.pause(WORKFLOW);
        let door = |gates: &mut Gates, n| gates.enter(ORG, run(n), WORKFLOW, Some(&two));
        assert_eq!(door(&mut gates, 1), Admission::Queue(Queue::WorkflowPaused));
        assert_eq!(door(&mut gates, 2), Admission::Queue(Queue::WorkflowPaused), "there is room for both");
        assert_eq!(door(&mut gates, 3), Admission::Refuse);
        assert_eq!(gates.resume(WORKFLOW), [(ORG, run(1)), (ORG, run(2))]);
    }

    #[test]
    fn a_higher_limit_lets_in_those_who_wait_before_the_run_that_brought_it() {
        let (mut gates, one, three) = (Gates::default(), gate(1, OnConflict::Queue), gate(3, OnConflict::Queue));
        for n in 1..4 {
            gates.enter(ORG, run(n), WORKFLOW, Some(&one));
        }
        assert_eq!(gates.widen(WORKFLOW, &three), [(ORG, run(2)), (ORG, run(3))]);
        assert_eq!(gates.enter(ORG, run(4), WORKFLOW, Some(&three)), Admission::Queue(Queue::Limit));
        assert_eq!(gates.widen(WORKFLOW, &three), []);
    }

    #[test]
    fn places_come_back_from_the_rows_of_open_runs() {
        let gated = |n: u8, gate: Option<GateRow>, is_queued| GatedRun {
            org: ORG,
            run: run(n),
            workflow: WORKFLOW,
            gate,
            is_queued,
        };
        let two = || Some(gate(2, OnConflict::Queue));
        let rows = || vec![gated(1, two(), false), gated(2, two(), true), gated(3, two(), true), gated(4, None, true)];
        let mut gates = Gates::default();
        let restored = gates.restore(Vec::new(), rows());
        assert_eq!(
            restored,
            Restored { refused: vec![], admitted: vec![(ORG, run(2)), (ORG, run(4))], superseded: vec![] }
        );
        assert_eq!(gates.leave(run(1)), [(ORG, run(3))]);
        let mut gates = Gates::default();
        assert_eq!(gates.restore(vec![WORKFLOW], rows()).admitted, []);
        assert_eq!(gates.resume(WORKFLOW), [(ORG, run(4)), (ORG, run(2))]);
        let newest = || Some(gate(1, OnConflict::CancelRunning));
        let left = vec![gated(1, newest(), false), gated(2, newest(), true)];
        let restored = Gates::default().restore(Vec::new(), left);
        let expected = Restored { refused: vec![], admitted: vec![], superseded: vec![(ORG, run(1))] };
        assert_eq!(restored, expected, "a crash does not save the replaced run");
        let left =
            vec![gated(1, newest(), false), gated(2, newest(), true), gated(3, two(), true), gated(4, two(), true)];
        let restored = Gates::default().restore(Vec::new(), left);
        let expected = Restored { refused: vec![], admitted: vec![(ORG, run(2))], superseded: vec![] };
        assert_eq!(restored, expected, "the newest limit is 2, and nobody makes room for runs that only queue");
    }
}
