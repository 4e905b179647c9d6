//! `onward verify` on what a simulation has left behind: the histories that the engine writes must be ones that the
//! rules of [`engine::verify`] allow.
//!
//! Those rules were written apart from the kernel and from the models here, so each of the three checks the others. Only
//! the history of each run, its row, its snapshot and its payloads are compared: hashes are drawn, and the catalog,
//! callback tokens and keys are not what clients have written.

use super::checker::Checker;
use super::violation::{CheckResult, ViolationKind};
use bytes::Bytes;
use engine::verify::{Code, Problem, verify};
use kernel::{OrgId, RunId};
use std::collections::BTreeMap;
use store::inspect::{Anomaly, Catalogued, InspectedRow, Inspection, Relative, SnapshotRow, StoredRun};
use store::{MemoryStore, Result, StoredDefinition};

/// The most problems that are reported.
const PROBLEMS_MAX: usize = 20;

/// What must not be found.
const CHECKED: [Code; 17] = [
    Code::RecordDamaged,
    Code::EventNumbers,
    Code::SnapshotDiffers,
    Code::RowDiffers,
    Code::EventAfterEnd,
    Code::EventOutOfPlace,
    Code::WrongEnd,
    Code::SettledTwice,
    Code::StartedTwice,
    Code::AttemptNumbers,
    Code::AttemptsOverPolicy,
    Code::StartedTooSoon,
    Code::WrongDecision,
    Code::TimerEarly,
    Code::Unfinished,
    Code::PayloadMissing,
    Code::CheckFailed,
];

struct MemoryInspection<'a> {
    store: &'a MemoryStore,
    checker: &'a Checker,
    plans: BTreeMap<[u8; 32], Bytes>,
}

impl Inspection for MemoryInspection<'_> {
    fn database(&self, _: &mut dyn FnMut(Anomaly)) -> Result<bool> {
        Ok(true)
    }

    fn catalog(&self, _: &mut dyn FnMut(Catalogued)) -> Result<()> {
        Ok(())
    }

    fn walk(&self, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
        let runs = self.store.stored_runs().into_iter().filter(|run| !self.checker.needs_upgrade(run.row.id));
        for run in runs {
            let records = (1..).zip(run.records.iter().cloned()).collect();
            let snapshots =
                run.snapshot.iter().map(|(seq, body)| SnapshotRow { seq: *seq, pos: *seq as i64, body: body.clone() });
            each(InspectedRow::Run(Box::new(StoredRun {
                version: Some(run.row.hash),
                records,
                broken: None,
                row_seq: run.records.len() as u64,
                snapshots: snapshots.collect(),
                timers: run.timers.iter().copied().collect(),
                waits: Vec::new(),
                open_waits: Vec::new(),
                ready: Vec::new(),
                notifications: Vec::new(),
                payloads: run.payloads.iter().map(|(number, bytes)| (*number, bytes.len() as u64)).collect(),
                labels: Vec::new(),
                keys: Vec::new(),
                row: run.row.clone(),
            })));
        }
        Ok(())
    }

    fn definition(&self, _: OrgId, hash: &[u8; 32], lowering: Option<u32>) -> Result<Option<StoredDefinition>> {
        let (hash, lowering) = (*hash, lowering.unwrap_or_default());
        let plan = self.plans.get(&hash).cloned();
        Ok(plan.map(|plan| StoredDefinition { hash, lowering, source: Bytes::new(), plan }))
    }

    fn payload(&self, org: OrgId, run: RunId, number: u32) -> Result<Option<Bytes>> {
        Ok(self.store.stored_run(org, run).and_then(|run| run.payloads.get(&number).cloned()))
    }

    fn has_key(&self, _: OrgId, _: &str, _: &str) -> Result<bool> {
        Ok(true)
    }

    fn relative(&self, org: OrgId, run: RunId) -> Result<Relative> {
        let status = self.store.stored_run(org, run).map(|run| run.row.status);
        Ok(Relative { status, inbox: Vec::new() })
    }

    fn setting(&self, _: &str) -> Result<Option<String>> {
        Ok(None)
    }

    fn has_single_writer(&self) -> bool {
        false
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

impl Checker {
    /// Verifies everything that is stored. `plans` are those of all versions, by hash.
    pub fn verify(&self, store: &MemoryStore, plans: BTreeMap<[u8; 32], Bytes>) -> CheckResult {
        let inspection = MemoryInspection { store, checker: self, plans };
        let report =
            verify(&inspection, usize::MAX, &mut |_| ()).map_err(|error| format!("`verify` fails: {error}"))?;
        let found: Vec<&Problem> = report.problems.iter().filter(|problem| CHECKED.contains(&problem.code)).collect();
        let named = |problem: &&Problem| {
            let run = problem.run.map(|run| run.to_string()).unwrap_or_default();
            format!("{} {run} {}: {}", problem.code.as_str(), problem.step.as_deref().unwrap_or(""), problem.message)
        };
        ViolationKind::Other.unless(found.is_empty(), || {
            let lines: Vec<String> = found.iter().take(PROBLEMS_MAX).map(named).collect();
            format!("`verify` finds {} problems: {}", found.len(), lines.join("; "))
        })
    }
}
