//! Runs that share a limit, judged from outside: who is in, who waits, who was sent away.
//!
//! It reads what the journals say of each run ([`Move`]s) and nothing of the engine's own books. The rules:
//! never more in than the limit, first come first served, nobody is sent away while there is room, nobody
//! makes room for a run that does not exist, and nobody is let in while the workflow is paused.
//!
//! Places are kept by the one process that has the store. A process that somebody else has written behind
//! its back counts wrongly and cannot know it, so only one that has been alone since it started is held to
//! the limit ([`Writer`]); it is started anew in the end, and then nothing may be forgotten.

use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::ConcurrencyLimit;
use kernel::event::OnConflict;
use kernel::{RunId, Timestamp, WorkflowId};
use std::collections::{BTreeMap, BTreeSet};

/// What a record says about a run's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyEvent {
    /// It was created and may go on.
    Entered,
    /// It was created and waits for its turn.
    Queued,
    /// It was created and is not to run.
    Refused,
    Admitted,
    /// It was cancelled to make room.
    Superseded,
    /// It waited, is not meant to, and whoever keeps the gate found it full: two processes had let runs in at once.
    TurnedAway,
    Ended,
}

/// What can be asked of the process that wrote a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchWriter {
    /// Nobody else has written since it started.
    pub is_alone: bool,
    /// It knows what became of everything it wrote.
    pub is_sure: bool,
    /// It starts nothing any more.
    pub is_draining: bool,
    /// It had not learned yet what became of the batch before.
    pub is_ahead: bool,
}

/// What runs have in common that share a limit.
type GroupKey = (WorkflowId, u64);

#[derive(Default)]
pub struct ConcurrencyModel {
    members: BTreeMap<RunId, (GroupKey, ConcurrencyLimit)>,
    gates: BTreeMap<GroupKey, Group>,
    /// Runs asked for while their workflow was paused, until it is resumed.
    held: BTreeMap<RunId, WorkflowId>,
    /// Batches so far.
    batches: u64,
}

#[derive(Clone, Default)]
struct Group {
    /// The largest limit that any of its runs names.
    most: u32,
    inside: BTreeSet<RunId>,
    waiting: BTreeMap<RunId, Timestamp>,
    /// The newest run there ever was for which others make room.
    replacer: Option<RunId>,
    /// The last batch with which runs left: its number, how many did, and whether somebody had waited.
    left: (u64, usize, bool),
}

/// What one batch did to a gate.
#[derive(Default)]
struct GroupChange {
    /// How many were in or waiting before.
    before: usize,
    /// How many had left with the batch before, if that was not known when this one was decided.
    left: usize,
    had_queue: bool,
    /// Runs that came with the batch and were not refused.
    came: usize,
    queued: usize,
    /// Runs that were to come and did not.
    phantoms: usize,
    admitted: Vec<RunId>,
    superseded: Vec<RunId>,
}

impl Group {
    /// Runs that wait and came before this one. Within a millisecond ids are in no order.
    fn ahead_of(&self, run: RunId) -> usize {
        self.waiting.keys().filter(|other| other.0[..6] < run.0[..6]).count()
    }
}

impl ConcurrencyModel {
    /// Somebody is about to ask for this run.
    pub fn expect(&mut self, run: RunId, workflow: WorkflowId, lane: u64, limit: ConcurrencyLimit) {
        let key = (workflow, lane);
        self.members.insert(run, (key, limit));
        let gate = self.gates.entry(key).or_default();
        gate.most = gate.most.max(limit.most);
    }

    /// The run is asked for while its workflow is paused.
    pub fn hold(&mut self, run: RunId, workflow: WorkflowId) {
        self.held.insert(run, workflow);
    }

    /// The workflow is not paused any more.
    pub fn release(&mut self, workflow: WorkflowId) {
        self.held.retain(|_, of| *of != workflow);
    }

    /// Takes in what a batch did. `failed` are runs that it was to create and did not.
    pub fn judge(
        &mut self,
        moves: &[(RunId, ConcurrencyEvent)],
        failed: &[RunId],
        at: Timestamp,
        writer: BatchWriter,
    ) -> CheckResult {
        let mut changes: BTreeMap<GroupKey, GroupChange> = BTreeMap::new();
        self.batches += 1;
        for run in moves.iter().map(|(run, _)| run).chain(failed) {
            let Some((key, _)) = self.members.get(run) else { continue };
            let gate = &self.gates[key];
            let (before, had_queue) = (gate.inside.len() + gate.waiting.len(), !gate.waiting.is_empty());
            // They may have been there still when this was decided.
            let (batch, count, had_waited) = gate.left;
            let is_known = !writer.is_ahead || batch + 1 != self.batches;
            let (left, had_queue) = if is_known { (0, had_queue) } else { (count, had_queue || had_waited) };
            let change = changes.entry(*key).or_insert(GroupChange { before, left, had_queue, ..Default::default() });
            change.phantoms += usize::from(failed.contains(run));
        }
        for (run, step) in moves {
            let is_let_in = matches!(step, ConcurrencyEvent::Entered | ConcurrencyEvent::Admitted);
            ViolationKind::Early.unless(!is_let_in || !self.held.contains_key(run), || {
                format!("{run} is let in although its workflow is paused")
            })?;
            let Some((key, limit)) = self.members.get(run) else {
                require(*step != ConcurrencyEvent::Refused, || format!("{run} is refused, and there is no limit"))?;
                continue;
            };
            let (gate, change) = (self.gates.entry(*key).or_default(), changes.entry(*key).or_default());
            if *step == ConcurrencyEvent::Ended && gate.left.0 != self.batches {
                gate.left = (self.batches, 0, false);
            }
            gate.take(*run, *step, limit, at, change, writer)?;
        }
        for (key, change) in changes {
            self.gates[&key].settle(&change, writer)?;
        }
        Ok(())
    }

    /// A run for which others must make room, and they have had time since `since`.
    pub fn is_made_room_for(&self, since: Timestamp) -> CheckResult {
        for gate in self.gates.values() {
            let Some(replacer) = gate.replacer.filter(|run| gate.waiting.get(run).is_some_and(|at| *at < since)) else {
                continue;
            };
            let older = gate.inside.iter().chain(gate.waiting.keys()).filter(|run| **run < replacer).count();
            ViolationKind::Stuck.unless(older < gate.most as usize, || {
                format!("{older} older runs do not make room for {replacer}: {:?}", gate.inside)
            })?;
        }
        Ok(())
    }
}

impl Group {
    fn take(
        &mut self,
        run: RunId,
        step: ConcurrencyEvent,
        limit: &ConcurrencyLimit,
        at: Timestamp,
        change: &mut GroupChange,
        writer: BatchWriter,
    ) -> CheckResult {
        if matches!(step, ConcurrencyEvent::Entered | ConcurrencyEvent::Queued)
            && limit.on_conflict == OnConflict::CancelRunning
        {
            self.replacer = self.replacer.max(Some(run));
        }
        let taken = change.before + change.came;
        match step {
            ConcurrencyEvent::Entered => {
                self.inside.insert(run);
                change.came += 1;
                let has_room = taken < limit.most as usize;
                ViolationKind::Duplicated.unless(has_room || !writer.is_alone, || {
                    format!("{run} is let in where {taken} are before it, of {} allowed", limit.most)
                })
            }
            ConcurrencyEvent::Queued => {
                self.waiting.insert(run, at);
                (change.came, change.queued) = (change.came + 1, change.queued + 1);
                Ok(())
            }
            ConcurrencyEvent::Refused => {
                let is_full = taken + change.left + change.phantoms >= limit.most as usize
                    || change.had_queue
                    || change.queued > 0;
                let is_judged = writer.is_alone && writer.is_sure;
                require(is_full || !is_judged, || format!("{run} is refused, {taken} of {} are there", limit.most))
            }
            ConcurrencyEvent::Admitted => {
                self.waiting.remove(&run);
                self.inside.insert(run);
                change.admitted.push(run);
                Ok(())
            }
            ConcurrencyEvent::Superseded => {
                change.superseded.push(run);
                Ok(())
            }
            ConcurrencyEvent::TurnedAway => {
                let others = (change.before + change.left).saturating_sub(1);
                let is_right = self.waiting.contains_key(&run) && limit.on_conflict == OnConflict::Skip;
                let is_judged = writer.is_alone && writer.is_sure;
                require(is_right && (others >= limit.most as usize || !is_judged), || {
                    format!("{run} is turned away, {others} of {} are there", limit.most)
                })
            }
            ConcurrencyEvent::Ended => {
                let (was_in, had_waited) = (self.inside.remove(&run), self.waiting.remove(&run).is_some());
                self.left.1 += usize::from(was_in || had_waited);
                self.left.2 |= had_waited;
                Ok(())
            }
        }
    }

    /// What must hold once a batch has landed. Whoever waits and came before one that was let in has a
    /// place already, and only its own record is still on its way.
    fn settle(&self, change: &GroupChange, writer: BatchWriter) -> CheckResult {
        for run in change.admitted.iter().filter(|run| writer.is_alone && self.inside.contains(run)) {
            let (inside, ahead) = (self.inside.len(), self.ahead_of(*run));
            ViolationKind::Duplicated.unless(inside + ahead <= self.most as usize, || {
                format!("{run} is let in: {inside} are in, {ahead} waited longer, {} may", self.most)
            })?;
        }
        for run in &change.superseded {
            ViolationKind::Lost.unless(self.replacer > Some(*run), || format!("{run} made room for nobody"))?;
        }
        Ok(())
    }
}
