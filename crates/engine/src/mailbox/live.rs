//! A run in memory, and the rows that go with its next record.

use super::units::Unit;
use crate::version::Version;
use bytes::Bytes;
use kernel::advance::notices;
use kernel::{OrgId, Payloads, Run, RunId, RunStatus, Timestamp};
use std::sync::Arc;
use store::{
    Birth, Lane, Place, ReadyChange, ReadyRow, RunRow, RunWrite, Seat, SeatChange, SeatOf, SeatRow, TimerChange,
};

/// A snapshot is written at the latest after this many records…
const SNAPSHOT_RECORDS: u32 = 32;
/// …or this many bytes of them; a run that parks writes one if it has at least this many records.
const SNAPSHOT_BYTES: usize = 64 * 1024;
const SNAPSHOT_PARK_RECORDS: u32 = 16;

/// Does a run that only waits for workers leave memory?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    No,
    Now,
    /// And rows stand for whatever of any run can be claimed, so that any node can hand it out.
    Always,
}

pub(super) struct Live {
    pub version: Arc<Version>,
    pub run: Run,
    /// Number of the last durable record; 0 for a run that is being created.
    pub seq: u64,
    pub created: Option<Box<Birth>>,
    /// The runs it is created with.
    pub unit: Option<Unit>,
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
    pub seats: Vec<SeatRow>,
    /// When it was last read or written.
    pub touched: Timestamp,
    /// Another node may have it in memory, too.
    pub is_borrowed: bool,
}

impl Live {
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
        leave: Leave,
        take: Vec<SeatRow>,
    ) -> RunWrite {
        let state = &self.run.state;
        let status = state.status;
        let tasks = self.tasks(org, run);
        let waits_outside =
            status == RunStatus::Running && !tasks.is_empty() && self.run.is_up_to_others(&self.version.plan);
        let parked = status.is_parked() || waits_outside && (leave != Leave::No || self.row.parked);
        let wake = self.run.next_due().filter(|_| parked);
        let leaves = parked || status.is_terminal();
        let is_news = status != self.row.status || parked != self.row.parked;
        let row = (self.seq == 0 || leaves || is_news).then(|| RunRow {
            status,
            parked,
            waiting: self.waiting_mask(parked),
            wake_at: wake,
            created_at: state.created_at,
            expires_at: state.origin.expires_at,
            finished_at: state.finished_at,
            error_code: state.failure.as_ref().map(|f| f.code.clone()),
            ..self.row.clone()
        });
        let has_rows = parked && waits_outside || leave == Leave::Always;
        let rows = if has_rows { tasks } else { Vec::new() };
        let ready = ReadyChange {
            remove: self.stored.iter().filter(|row| !rows.contains(row)).cloned().collect(),
            insert: rows.iter().filter(|row| !self.stored.contains(row)).cloned().collect(),
        };
        let has_ended = status.is_terminal() && !self.row.status.is_terminal();
        let notices = if has_ended { notices(&self.version.plan, &self.run).len() as u32 } else { 0 };
        let records = self.records + 1;
        let is_long = records >= SNAPSHOT_RECORDS || self.bytes + record.len() >= SNAPSHOT_BYTES;
        let wants_snapshot = is_long || parked && records >= SNAPSHOT_PARK_RECORDS;
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
            seats: SeatChange { free: self.seats_given_up(org, run), take },
            notices,
            birth: self.created.clone().filter(|_| self.seq == 0),
            unit: self.unit.filter(|_| self.seq == 0).map(|unit| unit.number),
        }
    }

    /// Takes note of the seats a commit took and freed. Those of rates are free by themselves.
    pub fn keep_seats(&mut self, change: &SeatChange) {
        self.seats.retain(|row| !change.free.contains(row));
        self.seats.extend(change.take.iter().filter(|row| row.until == SeatRow::FREED).cloned());
    }

    /// Takes note of what a commit did to the rows of its tasks.
    pub fn keep_rows(&mut self, change: &ReadyChange) {
        self.stored.retain(|row| !change.remove.contains(row));
        self.stored.extend(change.insert.iter().cloned());
    }

    /// What its leased tasks have of limits.
    pub fn seats(&self, org: OrgId, run: RunId) -> Vec<SeatRow> {
        let mut rows = Vec::new();
        for lease in self.run.leased() {
            let (step, task) = (self.run.step(lease.step), self.version.plan.node(lease.step).task());
            for (of, key, seat) in [(SeatOf::Type, "", step.seat), (SeatOf::Key, step.key.as_str(), step.key_seat)] {
                if let Some((task, number)) = task.zip(seat.checked_sub(1)) {
                    let seat = Seat { org, name: task.name.clone(), of, key: key.to_owned(), number };
                    rows.push(SeatRow { seat, run, step: lease.step, until: SeatRow::FREED });
                }
            }
        }
        rows
    }

    fn seats_given_up(&self, org: OrgId, run: RunId) -> Vec<SeatRow> {
        if self.seats.is_empty() {
            return Vec::new();
        }
        let kept = self.seats(org, run);
        self.seats.iter().filter(|row| !kept.contains(row)).cloned().collect()
    }

    /// Its tasks that may be claimed, as rows.
    pub fn tasks(&self, org: OrgId, run: RunId) -> Vec<ReadyRow> {
        self.run.claimable(&self.version.plan).map(|step| self.card(org, run, step)).collect()
    }

    /// Where the board has a task of this run.
    pub fn card(&self, org: OrgId, run: RunId, step: u32) -> ReadyRow {
        let plan = &self.version.plan;
        let name = plan.node(step).task().map(|task| task.name.clone()).unwrap_or_default();
        let key = self.run.step(step).key.clone();
        let place = Place { priority: self.run.priority(plan, step), run, step };
        ReadyRow { lane: Lane { org, name, key }, place }
    }

    fn waiting_mask(&self, parked: bool) -> u32 {
        if !parked {
            return 0;
        }
        self.run.waiting_for(&self.version.plan).iter().fold(0, |mask, w| mask | 1 << w.kind as u32)
    }
}
