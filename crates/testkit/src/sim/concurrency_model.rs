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
    pub is_only_writer: bool,
    /// It knows what became of everything it wrote.
    pub knows_all_commits: bool,
    /// It starts nothing any more.
    pub is_draining: bool,
    /// It had not learned yet what became of the batch before.
    pub is_decided_ahead: bool,
}

/// What runs have in common that share a limit.
type GroupKey = (WorkflowId, u64);

#[derive(Default)]
pub struct ConcurrencyModel {
    runs: BTreeMap<RunId, (GroupKey, ConcurrencyLimit)>,
    groups: BTreeMap<GroupKey, Group>,
    /// Runs asked for while their workflow was paused, until it is resumed.
    held: BTreeMap<RunId, WorkflowId>,
    /// Batches so far.
    batches: u64,
}

#[derive(Clone, Default)]
struct Group {
    /// The largest limit that any of its runs names.
    largest_limit: u32,
    open: BTreeSet<RunId>,
    waiting: BTreeMap<RunId, Timestamp>,
    /// The newest run there ever was for which others make room.
    newest_replacer: Option<RunId>,
    /// The last batch with which runs left: its number, how many did, and whether somebody had waited.
    departed: (u64, usize, bool),
}

/// What one batch did to a gate.
#[derive(Default)]
struct GroupChange {
    /// How many were in or waiting before.
    before: usize,
    /// How many had left with the batch before, if that was not known when this one was decided.
    departed_before: usize,
    had_queue: bool,
    /// Runs that came with the batch and were not refused.
    created: usize,
    queued: usize,
    /// Runs that were to come and did not.
    not_created: usize,
    admitted: Vec<RunId>,
    superseded: Vec<RunId>,
}

impl Group {
    /// Runs that wait and came before this one. Within a millisecond ids are in no order.
    fn waiting_before(&self, run: RunId) -> usize {
        self.waiting.keys().filter(|other| other.0[..6] < run.0[..6]).count()
    }
}

impl ConcurrencyModel {
    /// Somebody is about to ask for this run.
    pub fn expect_run(&mut self, run: RunId, workflow: WorkflowId, group_number: u64, limit: ConcurrencyLimit) {
        let key = (workflow, group_number);
        self.runs.insert(run, (key, limit));
        let group = self.groups.entry(key).or_default();
        group.largest_limit = group.largest_limit.max(limit.max_runs);
    }

    /// The run is asked for while its workflow is paused.
    pub fn workflow_paused(&mut self, run: RunId, workflow: WorkflowId) {
        self.held.insert(run, workflow);
    }

    /// The workflow is not paused any more.
    pub fn workflow_resumed(&mut self, workflow: WorkflowId) {
        self.held.retain(|_, of| *of != workflow);
    }

    /// Takes in what a batch did. `failed` are runs that it was to create and did not.
    pub fn apply_batch(
        &mut self,
        events: &[(RunId, ConcurrencyEvent)],
        failed: &[RunId],
        at: Timestamp,
        writer: BatchWriter,
    ) -> CheckResult {
        let mut changes: BTreeMap<GroupKey, GroupChange> = BTreeMap::new();
        self.batches += 1;
        for run in events.iter().map(|(run, _)| run).chain(failed) {
            let Some((key, _)) = self.runs.get(run) else { continue };
            let group = &self.groups[key];
            let (before, had_queue) = (group.open.len() + group.waiting.len(), !group.waiting.is_empty());
            // They may have been there still when this was decided.
            let (batch, count, had_waited) = group.departed;
            let is_known = !writer.is_decided_ahead || batch + 1 != self.batches;
            let (departed_before, had_queue) = if is_known { (0, had_queue) } else { (count, had_queue || had_waited) };
            let change =
                changes.entry(*key).or_insert(GroupChange { before, departed_before, had_queue, ..Default::default() });
            change.not_created += usize::from(failed.contains(run));
        }
        for (run, event) in events {
            let is_admitted = matches!(event, ConcurrencyEvent::Entered | ConcurrencyEvent::Admitted);
            ViolationKind::Early.unless(!is_admitted || !self.held.contains_key(run), || {
                format!("{run} is let in although its workflow is paused")
            })?;
            let Some((key, limit)) = self.runs.get(run) else {
                require(*event != ConcurrencyEvent::Refused, || format!("{run} is refused, and there is no limit"))?;
                continue;
            };
            let (group, change) = (self.groups.entry(*key).or_default(), changes.entry(*key).or_default());
            if *event == ConcurrencyEvent::Ended && group.departed.0 != self.batches {
                group.departed = (self.batches, 0, false);
            }
            group.apply(*run, *event, limit, at, change, writer)?;
        }
        for (key, change) in changes {
            self.groups[&key].check_after_batch(&change, writer)?;
        }
        Ok(())
    }

    /// A run for which others must make room, and they have had time since `since`.
    pub fn check_room_was_made(&self, since: Timestamp) -> CheckResult {
        for group in self.groups.values() {
            let Some(newest_replacer) =
                group.newest_replacer.filter(|run| group.waiting.get(run).is_some_and(|at| *at < since))
            else {
                continue;
            };
            let older = group.open.iter().chain(group.waiting.keys()).filter(|run| **run < newest_replacer).count();
            ViolationKind::Stuck.unless(older < group.largest_limit as usize, || {
                format!("{older} older runs do not make room for {newest_replacer}: {:?}", group.open)
            })?;
        }
        Ok(())
    }
}

impl Group {
    fn apply(
        &mut self,
        run: RunId,
        event: ConcurrencyEvent,
        limit: &ConcurrencyLimit,
        at: Timestamp,
        change: &mut GroupChange,
        writer: BatchWriter,
    ) -> CheckResult {
        if matches!(event, ConcurrencyEvent::Entered | ConcurrencyEvent::Queued)
            && limit.on_conflict == OnConflict::CancelRunning
        {
            self.newest_replacer = self.newest_replacer.max(Some(run));
        }
        let taken = change.before + change.created;
        match event {
            ConcurrencyEvent::Entered => {
                self.open.insert(run);
                change.created += 1;
                let has_room = taken < limit.max_runs as usize;
                ViolationKind::Duplicated.unless(has_room || !writer.is_only_writer, || {
                    format!("{run} is let in where {taken} are before it, of {} allowed", limit.max_runs)
                })
            }
            ConcurrencyEvent::Queued => {
                self.waiting.insert(run, at);
                (change.created, change.queued) = (change.created + 1, change.queued + 1);
                Ok(())
            }
            ConcurrencyEvent::Refused => {
                let is_full = taken + change.departed_before + change.not_created >= limit.max_runs as usize
                    || change.had_queue
                    || change.queued > 0;
                let is_accountable = writer.is_only_writer && writer.knows_all_commits;
                require(is_full || !is_accountable, || {
                    format!("{run} is refused, {taken} of {} are there", limit.max_runs)
                })
            }
            ConcurrencyEvent::Admitted => {
                self.waiting.remove(&run);
                self.open.insert(run);
                change.admitted.push(run);
                Ok(())
            }
            ConcurrencyEvent::Superseded => {
                change.superseded.push(run);
                Ok(())
            }
            ConcurrencyEvent::TurnedAway => {
                let others = (change.before + change.departed_before).saturating_sub(1);
                let is_right = self.waiting.contains_key(&run) && limit.on_conflict == OnConflict::Skip;
                let is_accountable = writer.is_only_writer && writer.knows_all_commits;
                require(is_right && (others >= limit.max_runs as usize || !is_accountable), || {
                    format!("{run} is turned away, {others} of {} are there", limit.max_runs)
                })
            }
            ConcurrencyEvent::Ended => {
                let (was_in, had_waited) = (self.open.remove(&run), self.waiting.remove(&run).is_some());
                self.departed.1 += usize::from(was_in || had_waited);
                self.departed.2 |= had_waited;
                Ok(())
            }
        }
    }

    /// What must hold once a batch has landed. Whoever waits and came before one that was let in has a
    /// place already, and only its own record is still on its way.
    fn check_after_batch(&self, change: &GroupChange, writer: BatchWriter) -> CheckResult {
        for run in change.admitted.iter().filter(|run| writer.is_only_writer && self.open.contains(run)) {
            let (open, ahead) = (self.open.len(), self.waiting_before(*run));
            ViolationKind::Duplicated.unless(open + ahead <= self.largest_limit as usize, || {
                format!("{run} is let in: {open} are in, {ahead} waited longer, {} may", self.largest_limit)
            })?;
        }
        for run in &change.superseded {
            ViolationKind::Lost.unless(self.newest_replacer > Some(*run), || format!("{run} made room for nobody"))?;
        }
        Ok(())
    }
}
