//! Verification: does what is stored keep the promises? The oracle of every crash test.
//!
//! ```text
//!   Inspection ──▶ database, catalog ──▶ definitions: hashes, plans, the line of versions
//!              ──▶ each run ───────────▶ run: chain, fold, snapshot, row, what it waits for
//!              │                          └─ history: was each event allowed where it stands?
//!              └─▶ the journal ────────▶ journal: time, conservation
//! ```
//!
//! Pure over what an [`Inspection`] yields, and independent of any engine that may be running: nothing
//! in memory is believed. Memory holds one run, a few plans and the report. The rule that keeps it
//! right: a problem of one run never hides another's.

mod codes;
mod definitions;
mod history;
mod journal;
mod report;
mod rows;
mod run;

pub use codes::Code;
pub use report::{Counts, Problem, Report};

use definitions::Plans;
use journal::Passage;
use store::Error;
use store::inspect::{Anomaly, AnomalyKind, Inspection, Seen};

/// Looks at everything. `limit` problems are kept, all are counted; `progress` is told now and then. An
/// error means that the store could not be read; damage to it is a problem like any other.
pub fn verify(inspection: &dyn Inspection, limit: usize, progress: &mut dyn FnMut(&Counts)) -> Result<Report, Error> {
    let mut report = Report::new(limit);
    match look(inspection, &mut report, progress) {
        Err(Error::Corrupt(what)) => {
            report.say(Code::DatabaseDamaged, None, format!("{what}; what comes after it was not checked"));
        }
        other => other?,
    }
    inspection.finish()?;
    Ok(report)
}

fn look(inspection: &dyn Inspection, report: &mut Report, progress: &mut dyn FnMut(&Counts)) -> Result<(), Error> {
    if !inspection.database(&mut |anomaly| report.add(anomaly.into()))? {
        return Ok(());
    }
    definitions::check(inspection, report)?;
    let mut plans = Plans::new(inspection);
    let mut passage = Passage::new(inspection.is_of_one_writer());
    let mut failed = None;
    inspection.walk(&mut |seen| {
        match seen {
            Seen::Anomaly(anomaly) => report.add(anomaly.into()),
            Seen::Run(stored) => {
                passage.expect(&stored.row);
                if let Err(error) = run::check(inspection, &mut plans, &stored, report) {
                    failed.get_or_insert(error);
                }
            }
            Seen::Record { pos, org, run, body } => passage.record(pos, (org, run), &body, report),
        }
        progress(&report.counts);
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
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
            AnomalyKind::Orphan => Code::JournalOrphan,
            AnomalyKind::Gap => Code::JournalGap,
            AnomalyKind::Setting => Code::SettingDamaged,
        };
        Problem { code, org: anomaly.org, run: anomaly.run, step: None, message: anomaly.what }
    }
}
