//! Checks of the journal as one sequence: time never runs backwards, the runs created and ended match the rows, and no
//! concurrency group ever had more open runs than its limit.

use super::{Code, Problem, Report};
use crate::concurrency_groups;
use crate::services::virtual_clock::ACCEPTED;
use kernel::{Event, OrgId, Record, RunId, RunStatus, Timestamp};
use std::collections::{BTreeMap, HashMap, HashSet};
use store::inspect::Inspection;
use store::{Error, RunRow};

/// The setting that every process increments before it writes; see `Store::next_epoch`.
const EPOCH: &str = "epoch";

/// The state of a pass over the journal.
#[derive(Default)]
pub(super) struct JournalPass {
    latest: Timestamp,
    created: u64,
    /// By status.
    ended: BTreeMap<&'static str, u64>,
    /// How often a run went on that had failed or timed out.
    retried: u64,
    epoch: u64,
    groups: HashMap<[u8; 16], OpenRuns>,
    /// The concurrency group of each run that has one and may be open again.
    group_of: HashMap<RunId, [u8; 16]>,
    /// Records up to this time were accepted although they were of the future.
    accepted: Timestamp,
    /// With several writers, clocks may disagree, so records of different runs may be out of order.
    has_single_writer: bool,
    /// The number of run rows, and of those that have ended, by status.
    rows: u64,
    rows_ended: BTreeMap<&'static str, u64>,
}

/// The open runs of a concurrency group.
#[derive(Default)]
struct OpenRuns {
    runs: HashSet<RunId>,
    /// The newest run of the group, and its limit, which holds for all.
    newest: (RunId, u32),
}

/// Under which name the runs that ended with a status are counted. A retry does not say with which of the two its run had
/// ended.
fn counted_as(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Failed | RunStatus::Timeout => "failed or timeout",
        other => other.as_str(),
    }
}

impl JournalPass {
    pub(super) fn new(inspection: &dyn Inspection) -> Result<JournalPass, Error> {
        let accepted = inspection.setting(ACCEPTED)?.and_then(|text| text.parse().ok()).map(Timestamp);
        let has_single_writer = inspection.has_single_writer();
        Ok(JournalPass { accepted: accepted.unwrap_or_default(), has_single_writer, ..JournalPass::default() })
    }

    pub(super) fn expect(&mut self, row: &RunRow) {
        self.rows += 1;
        if row.status.is_terminal() {
            *self.rows_ended.entry(counted_as(row.status)).or_default() += 1;
        }
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
            let end = match event {
                Event::Created { .. } => {
                    self.created += 1;
                    None
                }
                Event::RunCompleted {} | Event::RunFinished { .. } => Some(RunStatus::Completed),
                Event::RunFailed { .. } => Some(RunStatus::Failed),
                Event::RunCancelled { .. } => Some(RunStatus::Cancelled),
                Event::RunTimeout {} => Some(RunStatus::Timeout),
                Event::RunRetried { .. } => {
                    self.retried += 1;
                    None
                }
                Event::Started { epoch, .. } => {
                    self.epoch = self.epoch.max(*epoch);
                    None
                }
                _ => None,
            };
            if let Some(status) = end {
                *self.ended.entry(counted_as(status)).or_default() += 1;
            }
        }
        if self.has_single_writer {
            self.check_group((org, run), &record.events, report);
        }
    }

    /// I33: the journal of a single writer shows every group at every moment.
    fn check_group(&mut self, (org, run): (OrgId, RunId), events: &[Event], report: &mut Report) {
        for event in events {
            if let Event::Created { origin } = event
                && let Some(group) = &origin.concurrency_group
            {
                let id = concurrency_groups::id(origin.workflow, &group.key);
                self.group_of.insert(run, id);
                let newest = &mut self.groups.entry(id).or_default().newest;
                *newest = (*newest).max((run, group.limit));
            }
        }
        let Some(group) = self.group_of.get(&run).and_then(|id| self.groups.get_mut(id)) else { return };
        let is = |wanted: fn(&Event) -> bool| events.iter().any(wanted);
        if is(Event::is_end) {
            group.runs.remove(&run);
            if !is(|e| matches!(e, Event::RunFailed { .. } | Event::RunTimeout {})) {
                self.group_of.remove(&run);
            }
            return;
        }
        let begins = is(|e| matches!(e, Event::Created { .. } | Event::RunRetried { .. }))
            && !is(|e| matches!(e, Event::Queued { .. }));
        if !begins && !is(|e| matches!(e, Event::Admitted {})) {
            return;
        }
        group.runs.insert(run);
        let (open, limit) = (group.runs.len(), group.newest.1);
        if open > limit as usize {
            let message = format!("with it, {open} runs of its concurrency group were open; the limit was {limit}");
            report.add(Problem { code: Code::LimitExceeded, org: Some(org), run: Some(run), step: None, message });
        }
    }

    pub(super) fn end(&mut self, inspection: &dyn Inspection, report: &mut Report) -> Result<(), Error> {
        if self.created != self.rows {
            let message = format!("the journal created {} runs, the table has {}", self.created, self.rows);
            report.say(Code::Conservation, None, message);
        }
        if let Some(failed) = self.ended.get_mut(counted_as(RunStatus::Failed)) {
            // The ends before retries no longer count.
            *failed = failed.saturating_sub(self.retried);
        }
        self.ended.retain(|_, count| *count > 0);
        if self.ended != self.rows_ended {
            let message = format!("the journal ended {:?} runs, the table has {:?}", self.ended, self.rows_ended);
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
