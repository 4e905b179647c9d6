//! A run as it was right after any of its events.
//!
//! The state follows from the records alone. A snapshot says what a run was later, and its row what it is now; only what
//! never changes is read from the row: the workflow, the version and the hash.

use super::run_queries::{Reading, StoredEvent, events_in, events_of};
use super::runs::Runs;
use crate::error::Error;
use crate::mailbox::LoadFailure;
use crate::version::Version;
use bytes::Bytes;
use kernel::{OrgId, Payloads, Run, RunId};
use std::sync::Arc;
use store::RunRow;

/// A run with all its records.
pub struct RunHistory {
    pub row: RunRow,
    pub version: Arc<Version>,
    records: Vec<Bytes>,
    /// The number of the last event.
    pub last_seq: u64,
}

impl RunHistory {
    /// At most `limit` events after the one with the number `after`.
    pub fn events_after(&self, after: u64, limit: usize) -> Result<Vec<StoredEvent>, Error> {
        events_in(&self.records, after, limit)
    }

    /// The event with this number, if the run has one.
    pub fn event(&self, seq: u64) -> Result<Option<StoredEvent>, Error> {
        Ok(self.events_after(seq.saturating_sub(1), 1)?.pop().filter(|stored| stored.seq == seq))
    }
}

impl Runs {
    /// A run with all its records; `None` if there is no such run.
    pub async fn run_history(&self, org: OrgId, run: RunId) -> Result<Option<RunHistory>, Error> {
        let Some(row) = self.core.store.run(org, run).await? else { return Ok(None) };
        let Some(records) = self.core.store.history(org, run, 0, usize::MAX).await? else { return Ok(None) };
        let version = self.workflows.catalog().version_of(&row).await?;
        let last_seq = match records.last() {
            Some(record) => events_of(record)?.last().map_or(0, |stored| stored.seq),
            None => 0,
        };
        Ok(Some(RunHistory { row, version, records, last_seq }))
    }

    /// What [`read`](Self::read) would have returned right after this event.
    pub async fn read_at(&self, org: OrgId, history: &RunHistory, seq: u64) -> Result<Reading, Error> {
        let RunHistory { row, version, records, .. } = history;
        let run = Run::load_at(&version.plan, records, seq).map_err(LoadFailure::from)?;
        self.with_payloads(org, row.clone(), version.clone(), run).await
    }

    /// The same, with every step that it had opened. Of the stored payloads it has only the output.
    pub async fn read_whole_at(&self, org: OrgId, history: &RunHistory, seq: u64) -> Result<Reading, Error> {
        let RunHistory { row, version, records, .. } = history;
        let run = Run::load_whole_at(&version.plan, records, seq).map_err(LoadFailure::from)?;
        let output = run.state.output.clone();
        let mut whole = Reading { row: row.clone(), version: version.clone(), run, payloads: Payloads::new() };
        self.fetch(org, &mut whole, output).await?;
        Ok(whole)
    }
}
