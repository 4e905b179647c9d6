//! Reads the timers of evicted runs shortly before they come due.

use super::cluster::Cluster;
use crate::mailbox::Command;
use crate::nodes::own_timers;
use std::sync::Arc;
use std::time::Duration;

/// How often the timer rows are read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The pause after a read that may have left some out.
const READ_SOON: Duration = Duration::from_millis(20);
/// Rows per read, and the most timers that go to the mailbox together.
const PAGE: usize = 10_000;

impl Cluster {
    /// Reads the timers that come due within [`TIMER_READ_AHEAD`](crate::TIMER_READ_AHEAD), again and again. A row stays until the record it
    /// caused is durable, so reading it twice is harmless. At worst a timer is read late.
    pub async fn read_timers_forever(self: Arc<Self>) {
        let core = &self.core;
        loop {
            core.clock.follow_reference();
            core.metrics.clock_ahead_ms.set(core.clock.ahead().millis());
            let are_more = self.read_timers().await.unwrap_or_else(|error| {
                tracing::warn!(%error, "the timers cannot be read");
                false
            });
            if core.inbox.is_closed() {
                return;
            }
            let pause = if are_more { READ_SOON } else { READ_EVERY };
            let _ = tokio::time::timeout(pause, core.clock_moved.notified()).await;
        }
    }

    /// Sends the mailbox the timers due within [`TIMER_READ_AHEAD`](crate::TIMER_READ_AHEAD). True if there may be more.
    pub(super) async fn read_timers(&self) -> store::Result<bool> {
        let timers = own_timers(&*self.core.store, &self.nodes(), self.core.now(), PAGE).await?;
        let are_more = timers.len() >= PAGE;
        if !timers.is_empty() {
            self.core.inbox.send(Command::Timers(timers));
        }
        Ok(are_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{LEASE, Nodes};
    use kernel::{OrgId, RunId, RunStatus, Span, Timestamp};
    use store::{Batch, RunRow, RunWrite, TimerChange};

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    /// A new run that sleeps until `at`.
    fn sleeping(run: RunId, at: Timestamp) -> RunWrite {
        let row = RunRow {
            org: OrgId::DEFAULT,
            id: run,
            workflow: kernel::WorkflowId([1; 16]),
            workflow_name: "nap".into(),
            version: 1,
            hash: [0; 32],
            lowering: 1,
            form: kernel::plan::Form::Graph,
            status: RunStatus::Waiting,
            waiting: 0,
            wake_at: Some(at),
            created_at: NOW,
            expires_at: Timestamp::NEVER,
            finished_at: None,
            error_code: None,
            failed_steps: None,
            concurrency_group: None,
            evicted: true,
            deleted_at: None,
        };
        RunWrite {
            org: OrgId::DEFAULT,
            run,
            after: 0,
            record: bytes::Bytes::from_static(b"record"),
            row: Some(row),
            is_moved: false,
            snapshot: None,
            timer: TimerChange { remove: None, insert: Some(at) },
            payloads: Vec::new(),
            ready: Default::default(),
            limit_slots: Default::default(),
            notifications: Vec::new(),
            tokens: Vec::new(),
            waits: Default::default(),
            consumed: Vec::new(),
            outgoing: Vec::new(),
            run_insert: Some(Default::default()),
            atomic_group: None,
        }
    }

    fn run(n: u16) -> RunId {
        let mut id = [0; 16];
        id[14..].copy_from_slice(&n.to_be_bytes());
        RunId(id)
    }

    #[tokio::test]
    async fn due_timers_of_a_slow_node_do_not_hide_those_of_others() {
        let nodes = Nodes::of(3, &[(3, Span::from_secs(60)), (8, Span::from_secs(60))]);
        let (own, foreign): (Vec<RunId>, Vec<RunId>) = (1..2_000).map(run).partition(|run| nodes.is_mine(*run));
        let memory = store::MemoryStore::default();
        let early = foreign[..500].iter().map(|run| sleeping(*run, NOW));
        let late = own[..25].iter().map(|run| sleeping(*run, NOW.after(Span::from_secs(1))));
        let batch = Batch { at: NOW, epoch: 3, runs: early.chain(late).collect() };
        let verdicts = store::prelude::JournalStore::commit(&memory, &batch).await.expect("it commits");
        assert!(verdicts.iter().all(|verdict| *verdict == store::WriteVerdict::Committed), "{verdicts:?}");

        let read = async |now: Timestamp, page: usize| {
            let timers = own_timers(&memory, &nodes, now, page).await.expect("it reads");
            timers.into_iter().map(|timer| timer.run).collect::<Vec<_>>()
        };
        assert_eq!(read(NOW, 100).await, own[..25]);
        assert_eq!(read(NOW, 10).await.len(), 10, "no more than a page goes to the mailbox");
        let overdue = NOW.after(LEASE).after(Span::from_millis(1));
        assert_eq!(read(overdue, 1_000).await.len(), 525, "any node handles what its owner left overdue for long");
    }
}
