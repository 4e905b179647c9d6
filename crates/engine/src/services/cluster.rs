//! Membership of this node in the cluster: it renews its lease, tracks the other nodes that share the store, and takes
//! over the runs of a node that is gone. A store that is not shared has one node, so none of this happens.
//!
//! [`cluster_events`](super::cluster_events) handles the changes that other nodes make.
//!
//! Invariant: a fenced node drops all in-memory state before it writes again, and writes under a new epoch.

use super::clock_skew;
use super::cluster_events::CacheRevision;
use super::core::Core;
use super::subscriptions::Subscribers;
use super::tasks::TypeCache;
use super::workflows::WorkflowCache;
use crate::error::Error;
use crate::mailbox::Command;
use crate::nodes::{Catchup, CatchupRead, LEASE, Nodes, RENEWED_EVERY, SWEPT_EVERY};
use kernel::{OrgId, RunId, Span};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use store::{ClusterEvent, QueueKey, Store};
use tokio::sync::Notify;

/// Key queues read at a time.
const QUEUES_PAGE: usize = 1_000;
/// How long the counts of other nodes' tasks and workers are used before they are read again.
const COUNTS_FRESH: Duration = Duration::from_millis(250);

pub struct Cluster {
    pub(super) core: Arc<Core>,
    name: String,
    nodes: RwLock<Nodes>,
    has_left: AtomicBool,
    /// Makes the node renew its lease at once.
    pub(super) renewal: Notify,
    /// Makes the node read the inbox at once.
    pub(super) inbox_written: Notify,
    /// Rows may have been written that ask for children, and that are in no queue of this node.
    pub(super) children_wanted: Notify,
    pub(super) cache_revision: CacheRevision,
    pub(super) caches: Caches,
    /// When the counts of other nodes' tasks and workers were last read.
    counts_read: tokio::sync::Mutex<Option<Instant>>,
}

/// In-memory copies of data that other nodes may change.
pub struct Caches {
    pub workflows: Arc<WorkflowCache>,
    pub types: Arc<TypeCache>,
    pub subscribers: Arc<Subscribers>,
}

impl Cluster {
    /// `owns_every_run`: see [`Nodes`].
    pub async fn join(core: Arc<Core>, name: String, owns_every_run: bool, caches: Caches) -> Result<Cluster, Error> {
        let nodes = enter(&*core.store, &name).await?.owning_every_run(owns_every_run);
        Ok(Cluster {
            core,
            name,
            nodes: RwLock::new(nodes),
            has_left: AtomicBool::new(false),
            renewal: Notify::new(),
            inbox_written: Notify::new(),
            children_wanted: Notify::new(),
            cache_revision: CacheRevision::default(),
            caches,
            counts_read: tokio::sync::Mutex::default(),
        })
    }

    pub fn nodes(&self) -> Nodes {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_alone(&self) -> bool {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).is_alone()
    }

    pub fn is_mine(&self, run: RunId) -> bool {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).is_mine(run)
    }

    /// Does this node admit the runs of this concurrency group?
    pub fn keeps(&self, concurrency_group: &[u8; 16]) -> bool {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).keeps(concurrency_group)
    }

    /// Replaces the list of live nodes; answers the old and the new list if they differ.
    fn update_nodes(&self, live: &[(u64, Span)]) -> Option<(Nodes, Nodes)> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let now = Nodes::of(nodes.own(), live).owning_every_run(nodes.owns_every_run()).following(&nodes);
        (now != *nodes).then(|| (std::mem::replace(&mut *nodes, now.clone()), now))
    }
}

/// Joins the cluster under a new epoch.
async fn enter(store: &dyn Store, name: &str) -> store::Result<Nodes> {
    let epoch = store.join(name).await?;
    let live = store.renew(epoch, LEASE).await?;
    store.broadcast(ClusterEvent::NodesChanged);
    Ok(Nodes::of(epoch, &live))
}

impl Cluster {
    /// Renews the node's lease until the engine stops, and takes over the work of nodes that are gone.
    pub async fn run(self: Arc<Self>) {
        if !self.core.store.is_shared() {
            return;
        }
        let (mut catchup, mut swept) = (Catchup::Nothing, Instant::now());
        loop {
            let _ = tokio::time::timeout(RENEWED_EVERY, self.renewal.notified()).await;
            if self.core.inbox.is_closed() || self.has_left.load(Relaxed) {
                return;
            }
            if let Err(error) = clock_skew::update(&self.core).await {
                tracing::warn!(%error, "this machine's clock cannot be compared with the database's");
            }
            if self.core.clock.is_too_skewed() {
                // Without a lease, other nodes take over its runs. It comes back with empty memory.
                continue;
            }
            let renewed = match self.core.store.renew(self.nodes().own(), LEASE).await {
                Ok(live) => Ok(self.nodes_changed(&live)),
                Err(store::Error::Fenced) => self.restart().await.map(|()| Catchup::Everything),
                Err(error) => Err(error.into()),
            };
            let done = match renewed {
                Ok(needed) => {
                    let is_time = swept.elapsed() >= SWEPT_EVERY;
                    catchup = catchup.max(needed).max(if is_time { Catchup::Missed } else { Catchup::Nothing });
                    self.catch_up_with(catchup).await
                }
                Err(error) => Err(error),
            };
            match done {
                Ok(()) if catchup > Catchup::Nothing => (catchup, swept) = (Catchup::Nothing, Instant::now()),
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "this node cannot renew its lease or take over other nodes' runs"),
            }
        }
    }
}

impl Cluster {
    /// Updates the list of live nodes; answers what has to be read because of the change.
    fn nodes_changed(&self, live: &[(u64, Span)]) -> Catchup {
        let Some((before, now)) = self.update_nodes(live) else { return Catchup::Nothing };
        let catchup = Catchup::after(&before, &now);
        tracing::info!(nodes = ?now, "the nodes that share the store have changed");
        self.core.inbox.send(Command::Nodes(now));
        catchup
    }

    async fn catch_up_with(&self, catchup: Catchup) -> Result<(), Error> {
        for read in catchup.reads() {
            match read {
                CatchupRead::ConcurrencyGroups => self.read_concurrency_groups().await?,
                CatchupRead::TaskQueue => self.restore_task_queue().await?,
                CatchupRead::OpenRuns { is_recovery } => self.sweep(*is_recovery).await?,
                CatchupRead::Inbox => self.read_inbox().await?,
                CatchupRead::OldAnswers => self.delete_old_answers().await?,
            }
        }
        Ok(())
    }

    /// Sends the mailbox the list of open runs, to compare with the runs it has in memory.
    async fn sweep(&self, is_recovery: bool) -> Result<(), Error> {
        let since = self.core.now();
        let open = self.core.store.active_runs().await?;
        self.core.inbox.send(Command::Sweep { open, since, is_recovery });
        Ok(())
    }

    /// Sends the engine loop what is stored: concurrency groups, ready tasks, and runs that a dead node had in memory.
    pub async fn restore(&self) -> Result<(), Error> {
        self.catch_up_with(Catchup::Everything).await
    }

    /// Sends the task queue what the last process stored: key queues, types and workers.
    async fn restore_task_queue(&self) -> Result<(), Error> {
        let store = &self.core.store;
        let mut queues: Vec<(QueueKey, u64)> = Vec::new();
        loop {
            let page = store.key_queues(queues.last().map(|(queue, _)| queue), QUEUES_PAGE).await?;
            let is_last = page.len() < QUEUES_PAGE;
            queues.extend(page);
            if is_last {
                break;
            }
        }
        let (types, workers) = (store.configured_types().await?, store.workers().await?);
        self.core.inbox.send(Command::RestoreTaskQueue { queues, types, workers });
        self.cache_revision.invalidate().await;
        Ok(())
    }

    /// On a shared store: reads the counts of other nodes' tasks and workers, and the holders of the limit slots of
    /// this type.
    pub async fn catch_up(&self, of: Option<(OrgId, &str)>) -> Result<(), Error> {
        if !self.core.store.is_shared() {
            return Ok(());
        }
        if let Some((org, name)) = of {
            self.read_limit_slots(org, name).await?;
        }
        let mut counts_read = self.counts_read.lock().await;
        if counts_read.is_some_and(|at| at.elapsed() < COUNTS_FRESH) {
            return Ok(());
        }
        let (workers, ready) = (self.core.store.workers().await?, self.core.store.ready_counts().await?);
        self.core.inbox.send(Command::ClusterCounts { workers, ready });
        *counts_read = Some(Instant::now());
        Ok(())
    }

    pub async fn read_limit_slots(&self, org: OrgId, name: &str) -> Result<(), Error> {
        if self.core.store.is_shared() {
            let rows = Some(self.core.store.limit_slots(org, name).await?);
            self.core.inbox.send(Command::LimitSlots { org, name: name.to_owned(), rows });
        }
        Ok(())
    }

    /// Other nodes have taken over this node's runs, so its memory is out of date and is dropped.
    async fn restart(&self) -> Result<(), Error> {
        tracing::error!("this node's lease expired and other nodes took over its runs; it restarts with empty memory");
        let owns_every_run = self.nodes().owns_every_run();
        let nodes = enter(&*self.core.store, &self.name).await?.owning_every_run(owns_every_run);
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = nodes.clone();
        self.core.restart(nodes).await
    }

    /// Gives up the node's lease, so that other nodes take over without waiting for it to expire.
    pub async fn leave(&self) {
        if !self.core.store.is_shared() {
            return;
        }
        self.has_left.store(true, Relaxed);
        match self.core.store.leave(self.nodes().own()).await {
            Ok(()) => self.core.store.broadcast(ClusterEvent::NodesChanged),
            Err(error) => tracing::warn!(%error, "the lease cannot be given up; other nodes wait until it expires"),
        }
    }
}
