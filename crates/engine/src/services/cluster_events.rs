//! Changes that other nodes make, and how this node notices them.
//!
//! ```text
//!   store.listen ──▶ a run was advanced ──────────▶ read it again, wake its subscribers
//!                    groups, nodes changed ───────▶ read them again
//!                    an inbox row was written ────▶ read the inbox
//!                    types, pauses, missed ─────┐
//!   every second ───────────────────────────────┼──▶ refresh_caches ──▶ names, types and pauses, if they changed
//!   a caller that needs a name, type or pause ──┘
//! ```
//!
//! Events only save time. Correctness rests on one rule: **before a caller relies on a name, a type or a pause, the
//! node compares the store's revision number with its own** ([`Cluster::refresh_caches`]). So a change made through one
//! node holds on every node as soon as it was answered. Callers that arrive at the same time share one read.

use super::cluster::Cluster;
use crate::error::Error;
use crate::mailbox::Command;
use kernel::{OrgId, WorkflowId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::{ClusterEvent, TypeRow};
use tokio::sync::{Notify, mpsc};

/// How often the revision is read even without an event.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// Least time between two reads of the revision: under load, callers that arrive in between share the next read.
const READS_APART: Duration = Duration::from_millis(1);
/// Least time between two reads of all concurrency groups.
const GROUPS_APART: Duration = Duration::from_millis(20);

/// The revision of the store that the cached workflows, types and pauses belong to.
#[derive(Default)]
pub struct CacheRevision {
    arrivals: AtomicU64,
    known: tokio::sync::Mutex<Known>,
    /// Held from reading the groups until they are sent to the mailbox, so that an older read never arrives later.
    concurrency_groups: tokio::sync::Mutex<()>,
    is_stale: Notify,
    are_groups_stale: Notify,
}

#[derive(Default)]
struct Known {
    /// Callers with a smaller arrival number share `outcome`, the result of the latest read.
    read_at_arrival: u64,
    outcome: Option<Error>,
    at: Option<Instant>,
    /// `None` before the first read, and when everything has to be sent to the mailbox again.
    revision: Option<u64>,
    paused: BTreeSet<WorkflowId>,
    types: HashMap<(OrgId, String), TypeRow>,
}

impl CacheRevision {
    /// The mailbox may have received something older than what is known here: send everything again.
    pub(super) async fn invalidate(&self) {
        self.known.lock().await.revision = None;
    }
}

impl Cluster {
    /// Makes sure that the caches are no older than this call. Free on a store that is not shared.
    pub(super) async fn refresh_caches(&self) -> Result<(), Error> {
        if !self.core.store.is_shared() {
            return Ok(());
        }
        let cache_revision = &self.cache_revision;
        let arrived = cache_revision.arrivals.fetch_add(1, SeqCst);
        let mut known = cache_revision.known.lock().await;
        if known.read_at_arrival <= arrived {
            if let Some(at) = known.at {
                tokio::time::sleep((at + READS_APART).saturating_duration_since(Instant::now())).await;
            }
            let (read_at_arrival, at) = (cache_revision.arrivals.fetch_add(1, SeqCst), Instant::now());
            let outcome = self.compare_revision(&mut known).await.err();
            (known.read_at_arrival, known.at, known.outcome) = (read_at_arrival, Some(at), outcome);
        }
        known.outcome.clone().map_or(Ok(()), Err)
    }

    /// Announces a durable change that was made on this node, and refreshes its own caches. A failed refresh is only
    /// logged: the change itself succeeded.
    pub(super) async fn broadcast_change(&self, event: ClusterEvent) {
        self.core.store.broadcast(event);
        if let Err(error) = self.refresh_caches().await {
            tracing::warn!(%error, "the caches cannot be refreshed; a change takes effect with the next refresh");
        }
    }

    async fn compare_revision(&self, known: &mut Known) -> Result<(), Error> {
        let revision = self.core.store.revision().await?;
        if known.revision == Some(revision) {
            return Ok(());
        }
        let is_new = known.revision.is_none();
        // First, and even if a read below fails: callers from now on read the present rows.
        self.caches.workflows.forget_all();
        self.caches.types.forget_all();
        let paused: BTreeSet<WorkflowId> =
            self.core.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        if is_new || paused != known.paused {
            self.read_concurrency_groups().await?;
        }
        let rows = self.core.store.configured_types().await?;
        let types: HashMap<_, _> = rows.into_iter().map(|row| ((row.org, row.name.clone()), row)).collect();
        // Types that have no settings any more are not among `configured_types`.
        for (org, name) in known.types.keys().filter(|name| !types.contains_key(*name)) {
            if let Some(row) = self.core.store.task_type(*org, name).await? {
                self.core.inbox.send(Command::TypeChanged(Box::new(row)));
            }
        }
        for (name, row) in &types {
            if is_new || known.types.get(name) != Some(row) {
                self.core.inbox.send(Command::TypeChanged(Box::new(row.clone())));
            }
        }
        (known.paused, known.types, known.revision) = (paused, types, Some(revision));
        Ok(())
    }

    /// Sends the mailbox the runs of all concurrency groups, admitted and queued, and the paused workflows.
    pub(super) async fn read_concurrency_groups(&self) -> Result<(), Error> {
        let _in_order = self.cache_revision.concurrency_groups.lock().await;
        let paused = self.core.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        let runs = self.core.store.grouped_runs().await?;
        self.core.inbox.send(Command::ConcurrencyGroups { paused, runs });
        Ok(())
    }
}

impl Cluster {
    /// Starts the tasks that listen to other nodes and recheck for changes, until the engine stops.
    pub fn listen(self: &Arc<Self>) {
        if !self.core.store.is_shared() {
            return;
        }
        if let Some(events) = self.core.store.listen() {
            tokio::spawn(self.clone().receive_events(events));
        }
        tokio::spawn(self.clone().watch_revision());
        tokio::spawn(self.clone().watch_concurrency_groups());
    }

    async fn receive_events(self: Arc<Self>, mut events: mpsc::Receiver<ClusterEvent>) {
        while !self.core.inbox.is_closed() {
            match tokio::time::timeout(RECHECK_EVERY, events.recv()).await {
                Ok(Some(event)) => self.react(event),
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    async fn watch_revision(self: Arc<Self>) {
        while !self.core.inbox.is_closed() {
            if let Err(error) = self.refresh_caches().await {
                tracing::debug!(%error, "the changes of other nodes cannot be read");
            }
            let _ = tokio::time::timeout(RECHECK_EVERY, self.cache_revision.is_stale.notified()).await;
        }
    }

    /// Reads the concurrency groups when another node says that a run joined or left one. Otherwise
    /// [`run`](Self::run) reads them every few seconds.
    async fn watch_concurrency_groups(self: Arc<Self>) {
        while !self.core.inbox.is_closed() {
            let is_stale = self.cache_revision.are_groups_stale.notified();
            if tokio::time::timeout(RECHECK_EVERY, is_stale).await.is_err() {
                continue;
            }
            let began = Instant::now();
            if let Err(error) = self.read_concurrency_groups().await {
                tracing::debug!(%error, "the concurrency groups cannot be read");
            }
            // Reading many runs takes a while; at most a fifth of the time is spent on it.
            tokio::time::sleep(GROUPS_APART.max(began.elapsed() * 4)).await;
        }
    }

    fn react(&self, event: ClusterEvent) {
        match event {
            ClusterEvent::RunAdvanced(_, run) => {
                self.core.inbox.send(Command::Reread(run));
                self.caches.subscribers.changed(run);
            }
            ClusterEvent::TaskReady(queue) => drop(self.core.inbox.send(Command::TaskReadyElsewhere(queue))),
            ClusterEvent::TypeChanged(..) | ClusterEvent::PausesChanged => self.cache_revision.is_stale.notify_one(),
            ClusterEvent::GroupsChanged => self.cache_revision.are_groups_stale.notify_one(),
            ClusterEvent::InboxWritten => {
                self.inbox_written.notify_one();
                self.children_wanted.notify_one();
            }
            ClusterEvent::NodesChanged => self.renewal.notify_one(),
            ClusterEvent::Missed => {
                self.cache_revision.is_stale.notify_one();
                self.cache_revision.are_groups_stale.notify_one();
                self.inbox_written.notify_one();
                self.children_wanted.notify_one();
                self.renewal.notify_one();
                self.caches.subscribers.all_changed();
            }
        }
    }
}
