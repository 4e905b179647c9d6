//! A store that fails on purpose: unavailable for a while, unknown commit outcomes, spurious conflicts,
//! failed reads.
//!
//! A fault affects a whole call: like a transaction, a batch is applied or it is not. After every write the
//! checker examines what is stored, whatever the writer was told.

use super::concurrency_model::BatchWriter;
use super::violation::{CheckResult, ViolationKind};
use super::world::{World, completed, ready};
use bytes::Bytes;
use engine::catalog::Catalog;
use engine::mailbox::{LoadFailure, Resumed};
use kernel::run::Phase;
use kernel::{OrgId, Record, Run, RunId, event};
use store::prelude::*;
use store::{Batch, Error, ReadyRow, Result, RunWrite, TimerChange, WriteVerdict};

/// How many writes of a thousand begin a series of conflicts, where there are conflicts, and how long it is. After fewer
/// conflicts, the engine writes the inputs of a run to its inbox.
const CONTENDED: u32 = 5;
const CONFLICTS_IN_A_ROW: u32 = 10;

impl World {
    /// Does the store refuse all reads and writes?
    pub fn is_store_down(&self) -> bool {
        !self.is_liveness_phase && self.now < self.store_down_until
    }

    pub fn commit_with_faults(&mut self, batch: &Batch) -> Result<Vec<WriteVerdict>> {
        let is_down = self.is_store_down();
        self.trace.mark("a commit was refused", is_down);
        if is_down {
            return Err(Error::Unavailable("unavailable".into()));
        }
        if self.checker.nodes.is_fenced(batch.epoch) {
            self.trace.mark("a batch of a fenced node was refused", true);
            return Err(Error::Fenced);
        }
        let is_unknown = !self.is_liveness_phase && self.fault_random.chance(self.faults.unknown_commit);
        let is_applied = !is_unknown || self.fault_random.coin();
        let result = if is_applied { self.commit_with_conflicts(batch) } else { Ok(Vec::new()) };
        let has_conflict = matches!(&result, Ok(verdicts) if verdicts.contains(&WriteVerdict::Conflict));
        self.trace.mark("a commit had a conflict", has_conflict);
        self.trace.mark("an unknown commit was applied", is_unknown && is_applied);
        self.trace.mark("an unknown commit was not applied", is_unknown && !is_applied);
        if is_unknown { Err(Error::Unknown(format!("no answer, applied: {is_applied}"))) } else { result }
    }

    /// Commits a batch and refuses some of its writes with a spurious conflict, as if a competing write had
    /// been undone. A new run never gets one, because no other process can have its id.
    fn commit_with_conflicts(&mut self, batch: &Batch) -> Result<Vec<WriteVerdict>> {
        let refused: Vec<bool> = batch.runs.iter().map(|write| self.has_spurious_conflict(write)).collect();
        if !refused.contains(&true) {
            return ready(self.store.commit(batch));
        }
        self.trace.mark("a spurious conflict was injected", true);
        let attempted = batch.runs.iter().zip(&refused).filter(|(_, is_refused)| !**is_refused).map(|(w, _)| w.clone());
        let mut verdicts = ready(self.store.commit(&Batch { runs: attempted.collect(), ..*batch }))?.into_iter();
        let verdict = |is_refused| if is_refused { Some(WriteVerdict::Conflict) } else { verdicts.next() };
        Ok(refused.into_iter().filter_map(verdict).collect())
    }

    /// Sometimes a run has conflicts again and again, as if other nodes were always first.
    fn has_spurious_conflict(&mut self, write: &RunWrite) -> bool {
        let rate = self.faults.spurious_conflict;
        if write.after == 0 || self.is_liveness_phase || rate == 0 {
            return false;
        }
        if self.fault_random.chance(CONTENDED) {
            self.contended.insert(write.run, CONFLICTS_IN_A_ROW);
        }
        if let Some(left) = self.contended.get_mut(&write.run).filter(|left| **left > 0) {
            *left -= 1;
            return true;
        }
        self.fault_random.chance(rate)
    }

    /// Writes an event that this release cannot read, as a node of a later release would.
    pub fn write_as_later_release(&mut self) -> CheckResult {
        // Not to a run in a concurrency group: runs that are queued behind it would need the upgrade too.
        let free = self.checker.open().filter(|(_, definition, _)| definition.workflow.concurrency.is_none());
        // Nor to one with tasks on a shared store: a lease would keep its limit slots, and claims would find its ready
        // tasks again and again.
        let is_shared = self.faults.is_shared;
        let has_tasks =
            |run: &Run| run.steps().any(|(_, step)| matches!(step.phase, Phase::Ready { .. } | Phase::Leased { .. }));
        let open: Vec<RunId> = free
            .filter(|(id, _, run)| (!is_shared || !has_tasks(run)) && !self.checker.families.is_child(*id))
            .map(|(run, ..)| run)
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        let run = self.fault_random.pick(&open);
        let Some(stored) = self.store.stored_run(OrgId::DEFAULT, run) else { return Ok(()) };
        let (seq, at) = self.checker.last_event(run);
        let events = vec![event::Event::Unknown { number: 77, bytes: Bytes::new() }];
        let record = Record { at, first: seq + 1, events, ..Default::default() };
        let write = RunWrite {
            org: OrgId::DEFAULT,
            run,
            after: stored.records.len() as u64,
            record: record.seal(),
            row: None,
            is_moved: false,
            snapshot: None,
            timer: TimerChange::default(),
            payloads: Vec::new(),
            ready: store::ReadyChange::default(),
            limit_slots: store::LimitSlotChange::default(),
            notifications: Vec::new(),
            tokens: Vec::new(),
            waits: store::WaitChange::default(),
            consumed: Vec::new(),
            outgoing: Vec::new(),
            run_insert: None,
            atomic_group: None,
        };
        self.note(format!("a later release writes to {run}"));
        let batch = Batch { at, epoch: 0, runs: vec![write] };
        let written = ready(self.store.commit(&batch));
        debug_assert_eq!(written, Ok(vec![WriteVerdict::Committed]));
        self.check_batch(&batch, (None, BatchWriter::default()))
    }

    /// Checks all invariants on every run of a batch.
    pub fn check_batch(&mut self, batch: &Batch, (process, writer): (Option<usize>, BatchWriter)) -> CheckResult {
        let mut not_created = Vec::new();
        let ready = self.store.stored_ready();
        for run in batch.runs.iter().map(|write| write.run) {
            let Some(stored) = self.store.stored_run(OrgId::DEFAULT, run) else {
                not_created.extend(Some(run).filter(|run| !self.checker.is_erased(*run)));
                continue;
            };
            let rows: Vec<ReadyRow> = ready.iter().filter(|row| row.position.run == run).cloned().collect();
            let judged = self.checker.run_committed(&stored, &rows, batch.epoch, writer.is_draining);
            judged.map_err(|violation| violation.about(run))?;
            self.expect_children();
            let seq = self.checker.stored(run).map_or(0, |run| run.state.seq);
            let last = stored.records.last().and_then(|bytes| Record::open(bytes).ok()).unwrap_or_default();
            let name = |event: &event::Event| match event.step() {
                Some(step) => format!("{} s{step}", event.name().unwrap_or("?")),
                None => event.name().unwrap_or("?").to_owned(),
            };
            let names: Vec<String> = last.events.iter().map(name).collect();
            self.note(format!("  {run} is {} at event {seq}: {}", stored.row.status, names.join(", ")));
        }
        for (run, other_run) in &self.started_together {
            let [first, second] = [run, other_run].map(|run| self.checker.stored(*run).is_some());
            let has_key = self.client_log.has_key(*run);
            let is_whole = first == second || second && has_key;
            ViolationKind::Lost
                .unless(is_whole, || format!("{run} and {other_run} were started together, but only one exists"))?;
        }
        self.checker.check_families(&self.store)?;
        self.checker.batch_committed(&not_created, self.now, (process, writer), &self.store)?;
        if batch.runs.iter().any(|write| write.run_insert.as_ref().is_some_and(|insert| insert.delivery.is_some())) {
            self.check_schedules()?;
        }
        self.check_room_was_made()
    }

    /// A stored run, as a process reads it.
    pub fn load(&mut self, process: usize, run: RunId) -> std::result::Result<Option<Resumed>, LoadFailure> {
        self.try_read()?;
        let loaded = ready(self.store.load(OrgId::DEFAULT, run));
        let has_snapshot = matches!(&loaded, Ok(Some(loaded)) if loaded.snapshot.is_some());
        self.trace.mark("a snapshot was read", has_snapshot);
        if let Ok(Some(loaded)) = &loaded {
            let current = self.catalog.current(&loaded.row.workflow_name).map(|known| known.version.hash);
            self.trace.mark("a run of a deleted workflow was read", current.is_none());
            self.trace
                .mark("a run of an earlier version was read", current.is_some_and(|hash| hash != loaded.row.hash));
        }
        let catalog = Catalog { store: &self.store, cache: &self.processes[process].cache };
        completed(catalog.resumed(loaded))
    }

    pub fn fetch(&mut self, run: RunId, numbers: &[u32]) -> std::result::Result<Vec<(u32, Bytes)>, LoadFailure> {
        self.try_read()?;
        self.trace.mark("a payload was fetched", true);
        ready(self.store.payloads(OrgId::DEFAULT, run, numbers)).map_err(unreadable)
    }

    pub fn try_read(&mut self) -> std::result::Result<(), LoadFailure> {
        let fails =
            self.is_store_down() || !self.is_liveness_phase && self.fault_random.chance(self.faults.read_failure);
        self.trace.mark("a read failed", fails);
        if fails { Err(LoadFailure::Store("unavailable".into())) } else { Ok(()) }
    }
}

fn unreadable(error: Error) -> LoadFailure {
    LoadFailure::Store(error.to_string())
}
