//! A run in memory, and the rows that go with its next record.

use super::atomic_groups::AtomicGroup;
use crate::version::Version;
use bytes::Bytes;
use kernel::advance::notifications;
use kernel::{OrgId, Payloads, Run, RunId, RunStatus, Timestamp};
use std::sync::Arc;
use store::{
    LimitScope, LimitSlot, LimitSlotChange, LimitSlotRow, QueueKey, QueuePosition, ReadyChange, ReadyRow, RunInsert,
    RunRow, RunWrite, TimerChange,
};

/// A snapshot is written at the latest after this many records…
const SNAPSHOT_RECORDS: u32 = 32;
/// …or this many bytes of them; a run that parks writes one if it has at least this many records.
const SNAPSHOT_BYTES: usize = 64 * 1024;
const SNAPSHOT_PARK_RECORDS: u32 = 16;

/// Does a run that only waits for workers leave memory?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictPolicy {
    No,
    Now,
    /// And rows stand for whatever of any run can be claimed, so that any node can hand it out.
    Always,
}

pub(super) struct LiveRun {
    pub version: Arc<Version>,
    pub run: Run,
    /// Number of the last durable record; 0 for a run that is being created.
    pub seq: u64,
    pub created: Option<Box<RunInsert>>,
    /// The runs it is created with.
    pub atomic_group: Option<AtomicGroup>,
    pub row: RunRow,
    pub records: u32,
    pub bytes: usize,
    /// Its entry in the wheel.
    pub armed: Option<Timestamp>,
    pub payloads: Payloads,
    /// Stored payloads on their way here; what needs them is not decided before.
    pub fetching: Vec<u32>,
    /// Tasks that rows of the store stand for.
    pub stored: Vec<ReadyRow>,
    /// What its leased tasks have of limits, as of its last durable record.
    pub limit_slots: Vec<LimitSlotRow>,
    /// When it was last read or written.
    pub updated_at: Timestamp,
    /// Another node may have it in memory, too.
    pub is_shared_copy: bool,
}

impl LiveRun {
    /// The rows that go with a record. The `runs` row is written when its status changes, and whenever
    /// the run is parked or over after it: then nothing in memory knows its head.
    ///
    /// A run that only waits for workers leaves memory when `leave` says so, and rows of the store stand for its tasks;
    /// one that left it before leaves it again.
    pub fn write(
        &self,
        org: OrgId,
        run: RunId,
        record: Bytes,
        payloads: Vec<(u32, Bytes)>,
        leave: EvictPolicy,
        take: Vec<LimitSlotRow>,
    ) -> RunWrite {
        let state = &self.run.state;
        let status = state.status;
        let tasks = self.tasks(org, run);
        let waits_outside =
            status == RunStatus::Running && !tasks.is_empty() && self.run.is_up_to_others(&self.version.plan);
        let evicted = status.is_evicted() || waits_outside && (leave != EvictPolicy::No || self.row.evicted);
        let wake = self.run.next_due().filter(|_| evicted);
        let leaves = evicted || status.is_terminal();
        let is_news = status != self.row.status || evicted != self.row.evicted;
        let row = (self.seq == 0 || leaves || is_news).then(|| RunRow {
            status,
            evicted,
            waiting: self.waiting_mask(evicted),
            wake_at: wake,
            created_at: state.created_at,
            expires_at: state.origin.expires_at,
            finished_at: state.finished_at,
            error_code: state.failure.as_ref().map(|f| f.code.clone()),
            ..self.row.clone()
        });
        let has_rows = evicted && waits_outside || leave == EvictPolicy::Always;
        let rows = if has_rows { tasks } else { Vec::new() };
        let ready = ReadyChange {
            remove: self.stored.iter().filter(|row| !rows.contains(row)).cloned().collect(),
            insert: rows.iter().filter(|row| !self.stored.contains(row)).cloned().collect(),
        };
        let has_ended = status.is_terminal() && !self.row.status.is_terminal();
        let notifications = if has_ended { notifications(&self.version.plan, &self.run).len() as u32 } else { 0 };
        let records = self.records + 1;
        let is_long = records >= SNAPSHOT_RECORDS || self.bytes + record.len() >= SNAPSHOT_BYTES;
        let wants_snapshot = is_long || evicted && records >= SNAPSHOT_PARK_RECORDS;
        let timer = TimerChange {
            remove: self.row.wake_at.filter(|at| Some(*at) != wake),
            insert: wake.filter(|at| Some(*at) != self.row.wake_at),
        };
        RunWrite {
            org,
            run,
            after: self.seq,
            record,
            row,
            snapshot: (wants_snapshot && !status.is_terminal()).then(|| self.run.snapshot()),
            timer,
            payloads,
            ready,
            limit_slots: LimitSlotChange { free: self.slots_released(org, run), take },
            notifications,
            run_insert: self.created.clone().filter(|_| self.seq == 0),
            atomic_group: self.atomic_group.filter(|_| self.seq == 0).map(|atomic_group| atomic_group.number),
        }
    }

    /// Takes note of the seats a commit took and freed. Those of rates are free by themselves.
    pub fn update_slots(&mut self, change: &LimitSlotChange) {
        self.limit_slots.retain(|row| !change.free.contains(row));
        self.limit_slots.extend(change.take.iter().filter(|row| row.until == LimitSlotRow::FREED).cloned());
    }

    /// Takes note of what a commit did to the rows of its tasks.
    pub fn update_rows(&mut self, change: &ReadyChange) {
        self.stored.retain(|row| !change.remove.contains(row));
        self.stored.extend(change.insert.iter().cloned());
    }

    /// What its leased tasks have of limits.
    pub fn limit_slots(&self, org: OrgId, run: RunId) -> Vec<LimitSlotRow> {
        let mut rows = Vec::new();
        for lease in self.run.leased() {
            let (step, task) = (self.run.step(lease.step), self.version.plan.node(lease.step).task());
            for (of, key, slot) in
                [(LimitScope::Type, "", step.slot), (LimitScope::Key, step.key.as_str(), step.key_slot)]
            {
                if let Some((task, number)) = task.zip(slot.checked_sub(1)) {
                    let slot = LimitSlot { org, name: task.name.clone(), of, key: key.to_owned(), number };
                    rows.push(LimitSlotRow { slot, run, step: lease.step, until: LimitSlotRow::FREED });
                }
            }
        }
        rows
    }

    fn slots_released(&self, org: OrgId, run: RunId) -> Vec<LimitSlotRow> {
        if self.limit_slots.is_empty() {
            return Vec::new();
        }
        let kept = self.limit_slots(org, run);
        self.limit_slots.iter().filter(|row| !kept.contains(row)).cloned().collect()
    }

    /// Its tasks that may be claimed, as rows.
    pub fn tasks(&self, org: OrgId, run: RunId) -> Vec<ReadyRow> {
        self.run.claimable(&self.version.plan).map(|step| self.ready_row(org, run, step)).collect()
    }

    /// Where the board has a task of this run.
    pub fn ready_row(&self, org: OrgId, run: RunId, step: u32) -> ReadyRow {
        let plan = &self.version.plan;
        let name = plan.node(step).task().map(|task| task.name.clone()).unwrap_or_default();
        let key = self.run.step(step).key.clone();
        let position = QueuePosition { priority: self.run.priority(plan, step), run, step };
        ReadyRow { queue: QueueKey { org, name, key }, position }
    }

    fn waiting_mask(&self, evicted: bool) -> u32 {
        if !evicted {
            return 0;
        }
        self.run.waiting_for(&self.version.plan).iter().fold(0, |mask, w| mask | 1 << w.kind as u32)
    }
}
