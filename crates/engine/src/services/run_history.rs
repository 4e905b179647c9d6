//! A run as it was right after any of its events.
//!
//! The state follows from the records alone. A snapshot says what a run was later, and its row what it is now; only the
//! workflow, which never changes, is read from the row.

use super::run_queries::{Reading, StoredEvent, events_in, events_of};
use super::runs::Runs;
use crate::error::Error;
use crate::mailbox::{LoadFailure, Resumed};
use crate::version::RunVersions;
use bytes::Bytes;
use kernel::{OrgId, Payloads, Run, RunId};
use store::RunRow;

/// A run with all its records.
pub struct RunHistory {
    pub row: RunRow,
    pub versions: RunVersions,
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
        // First the records: the run that is read next knows of every move in them.
        let Some(records) = self.core.store.history(org, run, 0, usize::MAX).await? else { return Ok(None) };
        let Some(Resumed { row, run, .. }) = self.load(org, run).await? else { return Ok(None) };
        let versions = self.workflows.catalog().versions_of(&row, &run).await?;
        let last_seq = match records.last() {
            Some(record) => events_of(record)?.last().map_or(0, |stored| stored.seq),
            None => 0,
        };
        Ok(Some(RunHistory { row, versions, records, last_seq }))
    }

    /// What [`read`](Self::read) would have returned right after this event.
    pub async fn read_at(&self, org: OrgId, history: &RunHistory, seq: u64) -> Result<Reading, Error> {
        let RunHistory { row, versions, records, .. } = history;
        let run = Run::load_at(&versions.plans(), records, seq).map_err(LoadFailure::from)?;
        self.with_payloads(org, row.clone(), versions.clone(), run).await
    }

    /// The same, with every step that it had opened. Of the stored payloads it has only the output.
    pub async fn read_whole_at(&self, org: OrgId, history: &RunHistory, seq: u64) -> Result<Reading, Error> {
        let RunHistory { row, versions, records, .. } = history;
        let run = Run::load_whole_at(&versions.plans(), records, seq).map_err(LoadFailure::from)?;
        let (output, version) = (run.state.output.clone(), versions.at(seq).clone());
        let (row, versions) = (row.clone(), versions.clone());
        let mut whole = Reading { row, version, versions, run, payloads: Payloads::new() };
        self.fetch(org, &mut whole, output).await?;
        Ok(whole)
    }
}
