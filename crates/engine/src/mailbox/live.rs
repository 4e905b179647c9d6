//! A run in memory, and the rows that go with its next record.

use super::units::Unit;
use crate::version::Version;
use bytes::Bytes;
use kernel::advance::notices;
use kernel::{OrgId, Payloads, Run, RunId, Timestamp};
use std::sync::Arc;
use store::{Birth, RunRow, RunWrite, TimerChange};

/// A snapshot is written at the latest after this many records…
const SNAPSHOT_RECORDS: u32 = 32;
/// …or this many bytes of them; a run that parks writes one if it has at least this many records.
const SNAPSHOT_BYTES: usize = 64 * 1024;
const SNAPSHOT_PARK_RECORDS: u32 = 16;

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
}

impl Live {
    /// The rows that go with a record. The `runs` row is written when its status changes, and whenever
    /// the run is parked or over after it: then nothing in memory knows its head.
    pub fn write(&self, org: OrgId, run: RunId, record: Bytes, payloads: Vec<(u32, Bytes)>) -> RunWrite {
        let state = &self.run.state;
        let status = state.status;
        let wake = self.run.next_due().filter(|_| status.is_parked());
        let leaves = status.is_parked() || status.is_terminal();
        let row = (self.seq == 0 || leaves || status != self.row.status).then(|| RunRow {
            status,
            waiting: self.waiting_mask(),
            wake_at: wake,
            created_at: state.created_at,
            expires_at: state.origin.expires_at,
            finished_at: state.finished_at,
            error_code: state.failure.as_ref().map(|f| f.code.clone()),
            ..self.row.clone()
        });
        let has_ended = status.is_terminal() && !self.row.status.is_terminal();
        let notices = if has_ended { notices(&self.version.plan, &self.run).len() as u32 } else { 0 };
        let records = self.records + 1;
        let is_long = records >= SNAPSHOT_RECORDS || self.bytes + record.len() >= SNAPSHOT_BYTES;
        let wants_snapshot = is_long || status.is_parked() && records >= SNAPSHOT_PARK_RECORDS;
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
            grants: Vec::new(),
            notices,
            birth: self.created.clone().filter(|_| self.seq == 0),
            unit: self.unit.filter(|_| self.seq == 0).map(|unit| unit.number),
        }
    }

    fn waiting_mask(&self) -> u32 {
        if !self.run.status().is_parked() {
            return 0;
        }
        self.run.waiting_for(&self.version.plan).iter().fold(0, |mask, w| mask | 1 << w.kind as u32)
    }
}
