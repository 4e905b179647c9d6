//! One node among those that share a store: it renews its lease, learns which other nodes there are, and takes over the
//! runs of a node that is gone. A store that is not shared has one node, which need not say anything.
//!
//! What other nodes change is in [`cluster_events`](super::cluster_events).
//!
//! The rule that keeps it right: a node that was fenced forgets everything before it writes again, under a new epoch.

use super::cluster_events::CacheRevision;
use super::core::Core;
use super::subscriptions::Subscribers;
use super::tasks::TypeCache;
use super::workflows::WorkflowCache;
use crate::error::Error;
use crate::mailbox::Command;
use crate::nodes::{LEASE, Nodes};
use kernel::{OrgId, RunId, Span};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use store::{ClusterEvent, QueueKey, Store};
use tokio::sync::Notify;

/// How often a node says that it is there.
const RENEWED_EVERY: Duration = Duration::from_millis(1_000);
/// How often what is in memory is compared with the store. Whatever was missed is found then.
const SWEPT_EVERY: Duration = Duration::from_secs(4);

/// Key queues read at a time.
const QUEUES_PAGE: usize = 1_000;
/// For how long the counts of other nodes' tasks and workers are believed.
const COUNTS_FRESH: Duration = Duration::from_millis(250);

pub struct Cluster {
    pub(super) core: Arc<Core>,
    name: String,
    nodes: RwLock<Nodes>,
    has_left: AtomicBool,
    /// Has the node renew its lease at once.
    pub(super) renewal: Notify,
    pub(super) cache_revision: CacheRevision,
    pub(super) caches: Caches,
    /// When the counts of other nodes' tasks and workers were last read.
    counts_read: tokio::sync::Mutex<Option<Instant>>,
}

/// What this node remembers of what other nodes may change.
pub struct Caches {
    pub workflows: Arc<WorkflowCache>,
    pub types: Arc<TypeCache>,
    pub subscribers: Arc<Subscribers>,
}

impl Cluster {
    /// `is_greedy`: see [`Nodes`].
    pub async fn join(core: Arc<Core>, name: String, is_greedy: bool, caches: Caches) -> Result<Cluster, Error> {
        let nodes = enter(&*core.store, &name).await?.looking_after(is_greedy);
        Ok(Cluster {
            core,
            name,
            nodes: RwLock::new(nodes),
            has_left: AtomicBool::new(false),
            renewal: Notify::new(),
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

    /// Takes note of who is there; the view before, if that is news.
    fn note_nodes(&self, there: &[(u64, Span)]) -> Option<(Nodes, Nodes)> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let now = Nodes::of(nodes.own(), there).looking_after(nodes.is_greedy());
        (now != *nodes).then(|| (std::mem::replace(&mut *nodes, now.clone()), now))
    }
}

/// Becomes one of those that share the store, with an epoch of its own.
async fn enter(store: &dyn Store, name: &str) -> store::Result<Nodes> {
    let epoch = store.join(name).await?;
    let there = store.renew(epoch, LEASE).await?;
    store.broadcast(ClusterEvent::NodesChanged);
    Ok(Nodes::of(epoch, &there))
}

/// What a node has to look at in the store, the least first. Owed until it has been done, however often the store fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Catchup {
    Nothing,
    /// What nobody told.
    Look,
    /// What a node that is gone had in memory.
    Recovery,
    /// All of it: nothing is in memory.
    Everything,
}

impl Cluster {
    /// Renews the node's lease as long as the engine runs, and takes over what other nodes leave.
    pub async fn run(self: Arc<Self>) {
        if !self.core.store.is_shared() {
            return;
        }
        let (mut catchup, mut looked) = (Catchup::Nothing, Instant::now());
        loop {
            let _ = tokio::time::timeout(RENEWED_EVERY, self.renewal.notified()).await;
            if self.core.inbox.is_closed() || self.has_left.load(Relaxed) {
                return;
            }
            let heard = match self.core.store.renew(self.nodes().own(), LEASE).await {
                Ok(there) => Ok(self.nodes_changed(&there)),
                Err(store::Error::Fenced) => self.restart().await.map(|()| Catchup::Everything),
                Err(error) => Err(error.into()),
            };
            let done = match heard {
                Ok(news) => {
                    let is_time = looked.elapsed() >= SWEPT_EVERY;
                    catchup = catchup.max(news).max(if is_time { Catchup::Look } else { Catchup::Nothing });
                    self.catch_up_with(catchup).await
                }
                Err(error) => Err(error),
            };
            match done {
                Ok(()) if catchup > Catchup::Nothing => (catchup, looked) = (Catchup::Nothing, Instant::now()),
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "this node cannot renew its lease or take over what others left"),
            }
        }
    }
}

impl Cluster {
    /// Takes note of who is there; answers what has to be looked at for that.
    fn nodes_changed(&self, there: &[(u64, Span)]) -> Catchup {
        let Some((before, now)) = self.note_nodes(there) else { return Catchup::Nothing };
        let catchup = if now.lost_since(&before) { Catchup::Recovery } else { Catchup::Look };
        tracing::info!(nodes = ?now, "the nodes that share the store have changed");
        self.core.inbox.send(Command::Nodes(now));
        catchup
    }

    async fn catch_up_with(&self, catchup: Catchup) -> Result<(), Error> {
        match catchup {
            Catchup::Nothing => Ok(()),
            Catchup::Everything => self.restore().await,
            Catchup::Look | Catchup::Recovery => {
                self.read_concurrency_groups().await?;
                self.sweep(catchup == Catchup::Recovery).await
            }
        }
    }

    /// Has the mailbox compare what it has with what is open.
    async fn sweep(&self, is_recovery: bool) -> Result<(), Error> {
        let since = self.core.now();
        let open = self.core.store.active_runs().await?;
        self.core.inbox.send(Command::Sweep { open, since, is_recovery });
        Ok(())
    }

    /// Hands the engine loop what is stored: groups, ready tasks, and the runs that a node that is gone had in memory.
    pub async fn restore(&self) -> Result<(), Error> {
        self.read_concurrency_groups().await?;
        self.restore_task_queue().await?;
        self.sweep(true).await
    }

    /// What the last process left: backlogs, types and workers.
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

    /// Where other nodes have tasks and workers too: reads what the store knows of them, and who holds the limit slots
    /// of this type.
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

    /// Other nodes have taken over: nothing in memory is true any more.
    async fn restart(&self) -> Result<(), Error> {
        tracing::error!("other nodes took this one for dead and have taken over its work; it starts again");
        let is_greedy = self.nodes().is_greedy();
        let nodes = enter(&*self.core.store, &self.name).await?.looking_after(is_greedy);
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = nodes.clone();
        self.core.restart(nodes).await
    }

    /// The other nodes need not wait until its lease has ended.
    pub async fn leave(&self) {
        if !self.core.store.is_shared() {
            return;
        }
        self.has_left.store(true, Relaxed);
        match self.core.store.leave(self.nodes().own()).await {
            Ok(()) => self.core.store.broadcast(ClusterEvent::NodesChanged),
            Err(error) => tracing::warn!(%error, "the other nodes were not told that this one leaves"),
        }
    }
}
