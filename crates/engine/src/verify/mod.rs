//! Verification: checks everything a store holds against the invariants of the engine. `onward verify` runs it, and so
//! does every crash test.
//!
//! ```text
//!   Inspection ──▶ database, catalog ──▶ definitions: hashes, plans, version numbers
//!              ──▶ each run ───────────▶ run: records, fold, snapshots, rows
//!              │                          ├─ history: was each event allowed in the state before it?
//!              │                          └─ families: do parents and children agree?
//!              └─▶ the journal ────────▶ journal: time, conservation
//! ```
//!
//! It depends only on what an [`Inspection`] yields, never on the memory of a running engine. It holds one run, a few
//! plans and the report in memory. Invariant: a problem of one run never hides another's.

mod codes;
mod definitions;
mod families;
mod history;
mod journal;
mod report;
mod rows;
mod run;

pub use codes::Code;
pub use report::{Counts, Problem, Report};

use definitions::PlanCache;
use families::Families;
use journal::JournalPass;
use store::Error;
use store::inspect::{Anomaly, AnomalyKind, InspectedRow, Inspection};

/// Checks the whole store. The report keeps `limit` problems and counts all. `progress` is called after every row. An
/// error means that the store cannot be read; damage is reported as a problem.
pub fn verify(inspection: &dyn Inspection, limit: usize, progress: &mut dyn FnMut(&Counts)) -> Result<Report, Error> {
    let mut report = Report::new(limit);
    match check_all(inspection, &mut report, progress) {
        Err(Error::Corrupt(what)) => {
            report.say(Code::DatabaseDamaged, None, format!("{what}; the rest of the store was not checked"));
        }
        other => other?,
    }
    inspection.finish()?;
    Ok(report)
}

fn check_all(inspection: &dyn Inspection, report: &mut Report, progress: &mut dyn FnMut(&Counts)) -> Result<(), Error> {
    if !inspection.database(&mut |anomaly| report.add(anomaly.into()))? {
        return Ok(());
    }
    definitions::check(inspection, report)?;
    let mut plans = PlanCache::new(inspection);
    let mut passage = JournalPass::new(inspection)?;
    let mut families = Families::default();
    let mut failed = None;
    inspection.walk(&mut |seen| {
        match seen {
            InspectedRow::Anomaly(anomaly) => report.add(anomaly.into()),
            InspectedRow::Run(stored) => {
                passage.expect(&stored.row);
                if let Err(error) = run::check(inspection, &mut plans, &stored, &mut families, report) {
                    failed.get_or_insert(error);
                }
            }
            InspectedRow::Record { pos, org, run, body } => passage.record(pos, (org, run), &body, report),
        }
        progress(&report.counts);
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    families.end(report);
    passage.end(inspection, report)
}

impl From<Anomaly> for Problem {
    fn from(anomaly: Anomaly) -> Problem {
        let code = match anomaly.kind {
            AnomalyKind::Database => Code::DatabaseDamaged,
            AnomalyKind::ForeignKey => Code::ForeignKey,
            AnomalyKind::Schema => Code::SchemaUnknown,
            AnomalyKind::Unreadable => Code::RowUnreadable,
            AnomalyKind::Dangling => Code::Dangling,
            AnomalyKind::OtherOrganisation => Code::OtherOrganisation,
            AnomalyKind::InboxStray => Code::InboxStray,
            AnomalyKind::Orphan => Code::JournalOrphan,
            AnomalyKind::Gap => Code::JournalGap,
            AnomalyKind::Setting => Code::SettingDamaged,
        };
        Problem { code, org: anomaly.org, run: anomaly.run, step: None, message: anomaly.what }
    }
}
