//! Retention: deletes runs that ended long ago, a page at a time, through the same call as a client's delete. So an
//! open run stays, and so does a run with an undelivered notification. Each node deletes the runs it owns.

use super::cluster::Cluster;
use super::core::Core;
use super::runs::Runs;
use crate::error::Error;
use kernel::{OrgId, RunId, RunStatus, Span, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use store::{RunFilter, listed_id};
use tokio::sync::Notify;

/// How often expired runs are searched for.
const EVERY: Duration = Duration::from_secs(60);
/// Runs read at a time. The pause between two pages leaves room for other work.
const PAGE: usize = 200;
const PAUSE: Duration = Duration::from_millis(20);

pub struct Retention {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    runs: Arc<Runs>,
    /// Starts the next search at once, because a virtual clock has moved.
    wake: Arc<Notify>,
}

impl Retention {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>, runs: Arc<Runs>, wake: Arc<Notify>) -> Retention {
        Retention { core, cluster, runs, wake }
    }

    /// Deletes runs that ended more than `span` ago, until the engine stops.
    pub async fn run(self, span: Span) {
        while !self.core.inbox.is_closed() {
            let cutoff = Timestamp(self.core.now().0.saturating_sub_unsigned(span.0));
            match self.delete_ended(OrgId::DEFAULT, cutoff).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "expired runs were deleted"),
                Err(error) => tracing::warn!(%error, "expired runs cannot be deleted"),
            }
            let _ = tokio::time::timeout(EVERY, self.wake.notified()).await;
        }
    }

    /// Deletes the runs of this node that ended before `cutoff`; answers how many.
    pub async fn delete_ended(&self, org: OrgId, cutoff: Timestamp) -> Result<u64, Error> {
        let statuses = RunStatus::ALL.iter().copied().filter(|status| status.is_terminal()).collect();
        // An id holds a time no later than its run's creation, so later ids need not be read.
        let before = Some(RunId::new(cutoff, [0xff; 10]));
        let mut filter = RunFilter { statuses, until: Some(cutoff), before, limit: PAGE, ..RunFilter::default() };
        let mut count = 0;
        loop {
            let page = self.core.store.runs(org, &filter).await?;
            let Some(last) = page.last() else { return Ok(count) };
            filter.before = Some(listed_id(last));
            let is_over = |row: &&store::RunRow| row.finished_at.is_some_and(|at| at < cutoff);
            // A row that cannot be read does not say when its run ended.
            for row in page.iter().flatten().filter(is_over).filter(|row| self.cluster.is_mine(row.id)) {
                match self.runs.delete_ended(org, row.id, cutoff).await {
                    Ok(()) => count += 1,
                    Err(Error::NotFound(_) | Error::RunOpen(_)) => {}
                    Err(error) if error.is_unreadable_run() => {
                        tracing::warn!(run = %row.id, %error, "an expired run cannot be deleted");
                    }
                    Err(error) => return Err(error),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
