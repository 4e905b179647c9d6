//! What other nodes change, as this one learns of it.
//!
//! ```text
//!   store.listen ──▶ a run was moved ─────────────▶ read again, followers told
//!                    a gate, the nodes ───────────▶ looked at again
//!                    a type, a pause, no idea ──┐
//!   every second ───────────────────────────────┼──▶ freshen ──▶ names, types and pauses, if they changed
//!   whoever is about to rely on one of them ────┘
//! ```
//!
//! News only save time. The rule that keeps it right: **before a name, a type or a pause is relied on, the store is asked
//! whether any of them has changed** ([`Inner::refresh_caches`]), so what was changed through one node holds on every other as
//! soon as it was answered. The question is one number, and is asked once for all who wait for the answer.

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

/// How often it is asked although nobody said anything.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// Time between two questions: under load, whoever comes in between shares the next one.
const APART: Duration = Duration::from_millis(1);
/// Least time between two looks at all gates.
const GROUPS_APART: Duration = Duration::from_millis(20);

/// What is remembered of workflows, types and pauses holds as of some revision of the store.
#[derive(Default)]
pub struct CacheRevision {
    arrivals: AtomicU64,
    known: tokio::sync::Mutex<Known>,
    /// Held from reading the gates until the mailbox has them: what was read later is told later.
    concurrency_groups: tokio::sync::Mutex<()>,
    is_stale: Notify,
    are_groups_stale: Notify,
}

#[derive(Default)]
struct Known {
    /// Whoever came before this one has the outcome of the latest question.
    asked: u64,
    outcome: Option<Error>,
    at: Option<Instant>,
    /// Nothing before the first answer, and when the mailbox has to be told everything again.
    revision: Option<u64>,
    paused: BTreeSet<WorkflowId>,
    types: HashMap<(OrgId, String), TypeRow>,
}

impl CacheRevision {
    /// The mailbox may have been told something older than what is known: it is told all of it again.
    pub(super) async fn invalidate(&self) {
        self.known.lock().await.revision = None;
    }
}

impl Cluster {
    /// Makes sure that what is remembered is no older than this call. Costs nothing where there is only one node.
    pub(super) async fn refresh_caches(&self) -> Result<(), Error> {
        if !self.core.store.is_shared() {
            return Ok(());
        }
        let cache_revision = &self.cache_revision;
        let arrived = cache_revision.arrivals.fetch_add(1, SeqCst);
        let mut known = cache_revision.known.lock().await;
        if known.asked <= arrived {
            if let Some(at) = known.at {
                tokio::time::sleep((at + APART).saturating_duration_since(Instant::now())).await;
            }
            let (asked, at) = (cache_revision.arrivals.fetch_add(1, SeqCst), Instant::now());
            let outcome = self.compare_revision(&mut known).await.err();
            (known.asked, known.at, known.outcome) = (asked, Some(at), outcome);
        }
        known.outcome.clone().map_or(Ok(()), Err)
    }

    /// The same after a change that was made here and is durable, whatever comes of it.
    pub(super) async fn broadcast_change(&self, news: ClusterEvent) {
        self.core.store.broadcast(news);
        if let Err(error) = self.refresh_caches().await {
            tracing::warn!(%error, "a change takes effect a little later");
        }
    }

    async fn compare_revision(&self, known: &mut Known) -> Result<(), Error> {
        let revision = self.core.store.revision().await?;
        if known.revision == Some(revision) {
            return Ok(());
        }
        let is_new = known.revision.is_none();
        // First of all, and in any case: whoever reads from now on reads what is there now.
        self.caches.workflows.forget_names();
        self.caches.types.forget_all();
        let paused: BTreeSet<WorkflowId> =
            self.core.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        if is_new || paused != known.paused {
            self.read_concurrency_groups().await?;
        }
        let rows = self.core.store.configured_types().await?;
        let types: HashMap<_, _> = rows.into_iter().map(|row| ((row.org, row.name.clone()), row)).collect();
        // Those that say nothing but their name any more.
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

    /// Reads who holds places at gates, who waits, and what is paused.
    pub(super) async fn read_concurrency_groups(&self) -> Result<(), Error> {
        let _in_order = self.cache_revision.concurrency_groups.lock().await;
        let paused = self.core.store.workflow_pauses().await?.into_iter().map(|pause| pause.workflow).collect();
        let runs = self.core.store.grouped_runs().await?;
        self.core.inbox.send(Command::ConcurrencyGroups { paused, runs });
        Ok(())
    }
}

impl Cluster {
    /// Listens to other nodes, and looks for changes now and then, as long as the engine runs.
    pub fn listen(self: &Arc<Self>) {
        if !self.core.store.is_shared() {
            return;
        }
        if let Some(events) = self.core.store.listen() {
            tokio::spawn(self.clone().hear(events));
        }
        tokio::spawn(self.clone().watch_revision());
        tokio::spawn(self.clone().watch_concurrency_groups());
    }

    async fn hear(self: Arc<Self>, mut events: mpsc::Receiver<ClusterEvent>) {
        while !self.core.inbox.is_closed() {
            match tokio::time::timeout(ASKED_EVERY, events.recv()).await {
                Ok(Some(event)) => self.react(event),
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    async fn watch_revision(self: Arc<Self>) {
        while !self.core.inbox.is_closed() {
            if let Err(error) = self.refresh_caches().await {
                tracing::debug!(%error, "what other nodes have changed cannot be read");
            }
            let _ = tokio::time::timeout(ASKED_EVERY, self.cache_revision.is_stale.notified()).await;
        }
    }

    /// Reads the concurrency groups when another node says that a run joined or left one. Otherwise
    /// [`run`](Self::run) reads them now and then.
    async fn watch_concurrency_groups(self: Arc<Self>) {
        while !self.core.inbox.is_closed() {
            let is_stale = self.cache_revision.are_groups_stale.notified();
            if tokio::time::timeout(ASKED_EVERY, is_stale).await.is_err() {
                continue;
            }
            let began = Instant::now();
            if let Err(error) = self.read_concurrency_groups().await {
                tracing::debug!(%error, "the concurrency groups cannot be read");
            }
            // With many runs in groups that is work; it must not become all there is.
            tokio::time::sleep(GROUPS_APART.max(began.elapsed() * 4)).await;
        }
    }

    fn react(&self, news: ClusterEvent) {
        match news {
            ClusterEvent::RunAdvanced(_, run) => {
                self.core.inbox.send(Command::Reread(run));
                self.caches.subscribers.changed(run);
            }
            ClusterEvent::TaskReady(queue) => drop(self.core.inbox.send(Command::TaskReadyElsewhere(queue))),
            ClusterEvent::TypeChanged(..) | ClusterEvent::PausesChanged => self.cache_revision.is_stale.notify_one(),
            ClusterEvent::GroupsChanged => self.cache_revision.are_groups_stale.notify_one(),
            ClusterEvent::NodesChanged => self.renewal.notify_one(),
            ClusterEvent::Missed => {
                self.cache_revision.is_stale.notify_one();
                self.cache_revision.are_groups_stale.notify_one();
                self.renewal.notify_one();
                self.caches.subscribers.all_changed();
            }
        }
    }
}
