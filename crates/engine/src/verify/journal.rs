//! Checks of the journal as one sequence: time never runs backwards, and the runs created and ended match the rows.

use super::{Code, Problem, Report};
use crate::services::virtual_clock::ACCEPTED;
use kernel::{Event, OrgId, Record, RunId, Timestamp};
use store::inspect::Inspection;
use store::{Error, RunRow};

/// The setting that every process increments before it writes; see `Store::next_epoch`.
const EPOCH: &str = "epoch";

/// The state of a pass over the journal.
#[derive(Default)]
pub(super) struct JournalPass {
    latest: Timestamp,
    created: u64,
    ended: u64,
    epoch: u64,
    /// Records up to this time were accepted although they were of the future.
    accepted: Timestamp,
    /// With several writers, clocks may disagree, so records of different runs may be out of order.
    has_single_writer: bool,
    /// The number of run rows, and of those that have ended.
    rows: u64,
    rows_ended: u64,
}

impl JournalPass {
    pub(super) fn new(inspection: &dyn Inspection) -> Result<JournalPass, Error> {
        let accepted = inspection.setting(ACCEPTED)?.and_then(|text| text.parse().ok()).map(Timestamp);
        let has_single_writer = inspection.has_single_writer();
        Ok(JournalPass { accepted: accepted.unwrap_or_default(), has_single_writer, ..JournalPass::default() })
    }

    pub(super) fn expect(&mut self, row: &RunRow) {
        self.rows += 1;
        self.rows_ended += u64::from(row.status.is_terminal());
    }

    pub(super) fn record(&mut self, pos: i64, (org, run): (OrgId, RunId), body: &[u8], report: &mut Report) {
        report.counts.journal += 1;
        // An unreadable record was reported with its run, or as an orphan.
        let Ok(record) = Record::open(body) else { return };
        if record.at < self.latest && self.has_single_writer {
            let back = self.latest.since(record.at);
            let message = format!("the record at position {pos} is {back} older than one before it");
            report.add(Problem { code: Code::TimeBackwards, org: Some(org), run: Some(run), step: None, message });
        }
        if record.at > self.accepted {
            self.latest = self.latest.max(record.at);
        }
        for event in &record.events {
            match event {
                Event::Created { .. } => self.created += 1,
                Event::RunCompleted {}
                | Event::RunFailed { .. }
                | Event::RunCancelled { .. }
                | Event::RunTimeout {} => self.ended += 1,
                Event::Started { epoch, .. } => self.epoch = self.epoch.max(*epoch),
                _ => {}
            }
        }
    }

    pub(super) fn end(&self, inspection: &dyn Inspection, report: &mut Report) -> Result<(), Error> {
        if self.created != self.rows {
            let message = format!("the journal created {} runs, the table has {}", self.created, self.rows);
            report.say(Code::Conservation, None, message);
        }
        if self.ended != self.rows_ended {
            let message = format!("the journal ended {} runs, the table has {} ended", self.ended, self.rows_ended);
            report.say(Code::Conservation, None, message);
        }
        let claimed = inspection.setting(EPOCH)?.map_or(Some(0), |text| text.parse::<u64>().ok());
        if let Some(claimed) = claimed.filter(|claimed| *claimed < self.epoch) {
            let message = format!("a step was started in epoch {}, but the last epoch is {claimed}", self.epoch);
            report.say(Code::SettingDamaged, None, message);
        }
        Ok(())
    }
}
