//! The report of a verification: the problems found, and the counts of what was checked.

use super::codes::Code;
use kernel::{OrgId, RunId, RunStatus};
use std::collections::BTreeMap;

/// One problem.
#[derive(Clone, Debug)]
pub struct Problem {
    pub code: Code,
    pub org: Option<OrgId>,
    pub run: Option<RunId>,
    /// The step's key.
    pub step: Option<String>,
    pub message: String,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first problems, up to the caller's limit.
    pub problems: Vec<Problem>,
    /// How many problems there are of each kind, also beyond the limit.
    pub found: BTreeMap<Code, u64>,
    pub counts: Counts,
    limit: usize,
}

/// How many rows of each kind were checked.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub workflows: u64,
    pub versions: u64,
    pub definitions: u64,
    pub triggers: u64,
    pub runs: u64,
    pub statuses: BTreeMap<RunStatus, u64>,
    /// Records and events reached from their runs.
    pub records: u64,
    pub events: u64,
    pub snapshots: u64,
    pub timers: u64,
    pub waits: u64,
    pub ready: u64,
    pub payloads: u64,
    pub labels: u64,
    pub keys: u64,
    /// Records read in the order of the journal.
    pub journal: u64,
}

impl Report {
    pub(super) fn new(limit: usize) -> Report {
        Report { limit, ..Report::default() }
    }

    pub fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    /// The number of all problems, also beyond the limit.
    pub fn total(&self) -> u64 {
        self.found.values().sum()
    }

    pub(super) fn add(&mut self, problem: Problem) {
        *self.found.entry(problem.code).or_default() += 1;
        if self.problems.len() < self.limit {
            self.problems.push(problem);
        }
    }

    pub(super) fn say(&mut self, code: Code, org: Option<OrgId>, message: impl Into<String>) {
        self.add(Problem { code, org, run: None, step: None, message: message.into() });
    }
}

impl Counts {
    /// Names and numbers, in the order they are printed.
    pub fn list(&self) -> [(&'static str, u64); 14] {
        [
            ("workflows", self.workflows),
            ("versions", self.versions),
            ("definitions", self.definitions),
            ("triggers", self.triggers),
            ("runs", self.runs),
            ("records", self.records),
            ("events", self.events),
            ("snapshots", self.snapshots),
            ("timers", self.timers),
            ("waits", self.waits),
            ("ready", self.ready),
            ("payloads", self.payloads),
            ("labels", self.labels),
            ("idempotency_keys", self.keys),
        ]
    }
}
