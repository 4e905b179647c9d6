//! A model of concurrency limits: which runs of a group are open, which are queued, and which were refused.
//!
//! It reads only the journals ([`ConcurrencyEvent`]) and none of the engine's own state. The rules: a group
//! never has more open runs than its limit. Queued runs are admitted in order. No run is refused while there
//! is room. No run is cancelled for a run that does not exist. No run is admitted while its workflow is
//! paused.
//!
//! With a local store, one process keeps the groups in its memory. If another process writes meanwhile, the
//! counts of the first are wrong and it cannot know that. So only a process that has been the only writer
//! since its start is held to the limit ([`BatchWriter`]). An outdated process is restarted in the end, and
//! the new one must follow all rules.

use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::ConcurrencyLimit;
use kernel::event::OnConflict;
use kernel::{RunId, Timestamp, WorkflowId};
use std::collections::{BTreeMap, BTreeSet};

/// What a record says about a run and its concurrency group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyEvent {
    /// The run was created and is open.
    Entered,
    /// The run was created and is queued.
    Queued,
    /// The run was created and refused.
    Refused,
    Admitted,
    /// The run had ended and goes on: it is open again, or queued.
    Reentered,
    Requeued,
    /// The run was cancelled to make room.
    Superseded,
    /// The run was queued although its policy is `skip`, and then the group was found full. That happens if
    /// two processes admit runs at once.
    TurnedAway,
    Ended,
}

/// What the process knew that wrote a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchWriter {
    /// No other process has written since it started.
    pub is_only_writer: bool,
    /// It knows the outcome of all its commits.
    pub knows_all_commits: bool,
    /// It starts nothing new.
    pub is_draining: bool,
    /// It decided this batch before it knew the outcome of the previous one.
    pub is_decided_ahead: bool,
    /// Its clock may differ from that of the clients, so the id of a child may be later than that of a younger run.
    pub has_own_clock: bool,
}

/// Runs with the same key share a limit: the workflow and the group of the trigger.
type GroupKey = (WorkflowId, u64);

#[derive(Default)]
pub struct ConcurrencyModel {
    runs: BTreeMap<RunId, (GroupKey, ConcurrencyLimit)>,
    groups: BTreeMap<GroupKey, GroupModel>,
    /// Runs that were requested while their workflow was paused, until it is resumed.
    held: BTreeMap<RunId, WorkflowId>,
    /// How many batches were applied.
    batches: u64,
}

#[derive(Clone, Default)]
struct GroupModel {
    /// The largest limit of any of its runs.
    largest_limit: u32,
    open: BTreeSet<RunId>,
    waiting: BTreeMap<RunId, Timestamp>,
    /// Those that had ended before: they may be queued behind younger runs that are about to be admitted.
    requeued: BTreeSet<RunId>,
    /// The newest run ever for which older runs are cancelled.
    newest_replacer: Option<RunId>,
    /// The last batch in which runs ended: its number, how many ended, and whether one of them was queued.
    departed: (u64, usize, bool),
    /// When a run last ended.
    departed_at: Timestamp,
}

/// What one batch did to a group.
#[derive(Default)]
struct GroupChange {
    /// How many runs were open or queued before.
    before: usize,
    /// How many runs ended in the previous batch, if its outcome was unknown when this one was decided.
    departed_before: usize,
    had_queue: bool,
    /// Runs that the batch created and did not refuse.
    created: usize,
    queued: usize,
    /// Runs that the batch should have created but did not.
    not_created: usize,
    admitted: Vec<RunId>,
    superseded: Vec<RunId>,
}

impl GroupModel {
    /// The number of queued runs that are older than this one. Ids from the same millisecond have no order.
    /// Without those that were queued after `decided_by`, if that is given.
    fn waiting_before(&self, run: RunId, decided_by: Option<Timestamp>) -> usize {
        let is_known = |since: Timestamp| decided_by.is_none_or(|at| since < at);
        let is_older = |(other, since): &(&RunId, &Timestamp)| {
            other.0[..6] < run.0[..6] && !self.requeued.contains(*other) && is_known(**since)
        };
        self.waiting.iter().filter(is_older).count()
    }
}

impl ConcurrencyModel {
    /// Registers a run before it is requested, or with the version that it got.
    pub fn expect_run(&mut self, run: RunId, workflow: WorkflowId, group_number: u64, limit: Option<ConcurrencyLimit>) {
        let Some(limit) = limit else {
            self.runs.remove(&run);
            return;
        };
        let key = (workflow, group_number);
        self.runs.insert(run, (key, limit));
        let group = self.groups.entry(key).or_default();
        group.largest_limit = group.largest_limit.max(limit.max_runs);
    }

    /// The run is requested while its workflow is paused.
    pub fn run_held(&mut self, run: RunId, workflow: WorkflowId) {
        self.held.insert(run, workflow);
    }

    /// The workflow is not paused any more.
    pub fn workflow_resumed(&mut self, workflow: WorkflowId) {
        self.held.retain(|_, of| *of != workflow);
    }

    /// Applies a batch. `failed` are runs that the batch should have created but did not.
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
            // Runs that ended in the previous batch may still have been open when this one was decided.
            let (batch, count, had_waited) = group.departed;
            let is_known = !writer.is_decided_ahead || batch + 1 != self.batches;
            let (departed_before, had_queue) = if is_known { (0, had_queue) } else { (count, had_queue || had_waited) };
            let change =
                changes.entry(*key).or_insert(GroupChange { before, departed_before, had_queue, ..Default::default() });
            change.not_created += usize::from(failed.contains(run));
        }
        for (run, event) in events {
            let is_admitted =
                matches!(event, ConcurrencyEvent::Entered | ConcurrencyEvent::Reentered | ConcurrencyEvent::Admitted);
            // A process that does not know of the end of a run has it in its group still.
            let may_be_unknown = *event == ConcurrencyEvent::Reentered && !writer.is_only_writer;
            ViolationKind::Early.unless(!is_admitted || may_be_unknown || !self.held.contains_key(run), || {
                format!("{run} is admitted although its workflow is paused")
            })?;
            let Some((key, limit)) = self.runs.get(run) else {
                require(*event != ConcurrencyEvent::Refused, || format!("{run} is refused although it has no limit"))?;
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

    /// Checks that older runs have made room for a run that replaces them, if it has been queued since before
    /// `since`.
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

impl GroupModel {
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
            ConcurrencyEvent::Entered | ConcurrencyEvent::Reentered => {
                self.open.insert(run);
                change.created += 1;
                let has_room = taken < limit.max_runs as usize;
                ViolationKind::Duplicated.unless(has_room || !writer.is_only_writer, || {
                    format!("{run} is admitted behind {taken} runs, the limit is {}", limit.max_runs)
                })
            }
            ConcurrencyEvent::Queued | ConcurrencyEvent::Requeued => {
                self.waiting.insert(run, at);
                if event == ConcurrencyEvent::Requeued {
                    self.requeued.insert(run);
                }
                (change.created, change.queued) = (change.created + 1, change.queued + 1);
                Ok(())
            }
            ConcurrencyEvent::Refused => {
                let is_full = taken + change.departed_before + change.not_created >= limit.max_runs as usize
                    || change.had_queue
                    || change.queued > 0;
                let is_accountable = writer.is_only_writer && writer.knows_all_commits;
                require(is_full || !is_accountable, || {
                    format!("{run} is refused although only {taken} of {} runs are open or queued", limit.max_runs)
                })
            }
            ConcurrencyEvent::Admitted => {
                self.waiting.remove(&run);
                self.requeued.remove(&run);
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
                    format!("{run} is turned away although only {others} of {} runs are open or queued", limit.max_runs)
                })
            }
            ConcurrencyEvent::Ended => {
                self.requeued.remove(&run);
                let (was_in, had_waited) = (self.open.remove(&run), self.waiting.remove(&run).is_some());
                self.departed_at = at;
                self.departed.1 += usize::from(was_in || had_waited);
                self.departed.2 |= had_waited;
                Ok(())
            }
        }
    }

    /// Checks the group after a batch. A queued run that is older than an admitted one has been admitted too,
    /// and only its own record is not committed yet.
    fn check_after_batch(&self, change: &GroupChange, writer: BatchWriter) -> CheckResult {
        for run in change.admitted.iter().filter(|run| writer.is_only_writer && self.open.contains(run)) {
            // A run that was queued after the latest end may have come after the admission, whatever its id.
            let decided_by = writer.has_own_clock.then_some(self.departed_at);
            let (open, ahead) = (self.open.len(), self.waiting_before(*run, decided_by));
            ViolationKind::Duplicated.unless(open + ahead <= self.largest_limit as usize, || {
                format!(
                    "{run} is admitted: {open} are open, {ahead} were queued earlier, the limit is {}",
                    self.largest_limit
                )
            })?;
        }
        for run in &change.superseded {
            ViolationKind::Lost.unless(self.newest_replacer > Some(*run), || {
                format!("{run} was cancelled to make room, but no newer run needs it")
            })?;
        }
        Ok(())
    }
}
