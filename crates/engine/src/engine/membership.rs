//! One node among those that share a store: it says that it is there, hears who else is, and takes up what a node that
//! is gone has left. A store that is not shared has one node, which need not say anything.
//!
//! The rule that keeps it right: a node that was barred forgets everything before it writes again, under another epoch.

use super::{Engine, Error};
use crate::mailbox::Command;
use crate::nodes::{LEASE, Nodes};
use kernel::{RunId, Span};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};
use store::{ClusterEvent, Store};

/// How often a node says that it is there.
const RENEWED_EVERY: Duration = Duration::from_millis(1_000);
/// How often what is in memory is compared with the store. Whatever was missed is found then.
const SWEPT_EVERY: Duration = Duration::from_secs(4);

pub(super) struct Membership {
    name: String,
    nodes: RwLock<Nodes>,
    has_left: AtomicBool,
}

impl Membership {
    /// `is_greedy`: see [`Nodes`].
    pub async fn join(store: &dyn Store, name: String, is_greedy: bool) -> Result<Membership, Error> {
        let nodes = enter(store, &name).await?.looking_after(is_greedy);
        Ok(Membership { name, nodes: RwLock::new(nodes), has_left: AtomicBool::new(false) })
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
    fn hear(&self, there: &[(u64, Span)]) -> Option<(Nodes, Nodes)> {
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

/// Says that the node is there as long as the engine runs, and looks after what others leave.
pub(super) async fn keep(engine: Engine) {
    let inner = &engine.inner;
    if !inner.store.is_shared() {
        return;
    }
    let (mut catchup, mut looked) = (Catchup::Nothing, Instant::now());
    loop {
        let _ = tokio::time::timeout(RENEWED_EVERY, inner.renewal.notified()).await;
        if inner.inbox.is_closed() || inner.membership.has_left.load(Relaxed) {
            return;
        }
        let heard = match inner.store.renew(inner.membership.nodes().own(), LEASE).await {
            Ok(there) => Ok(engine.heard(&there)),
            Err(store::Error::Fenced) => engine.restart().await.map(|()| Catchup::Everything),
            Err(error) => Err(error.into()),
        };
        let done = match heard {
            Ok(news) => {
                let is_time = looked.elapsed() >= SWEPT_EVERY;
                catchup = catchup.max(news).max(if is_time { Catchup::Look } else { Catchup::Nothing });
                engine.catch_up_with(catchup).await
            }
            Err(error) => Err(error),
        };
        match done {
            Ok(()) if catchup > Catchup::Nothing => (catchup, looked) = (Catchup::Nothing, Instant::now()),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "this node cannot say that it is there, or see to what others left"),
        }
    }
}

impl Engine {
    /// Takes note of who is there; answers what has to be looked at for that.
    fn heard(&self, there: &[(u64, Span)]) -> Catchup {
        let Some((before, now)) = self.inner.membership.hear(there) else { return Catchup::Nothing };
        let catchup = if now.lost_since(&before) { Catchup::Recovery } else { Catchup::Look };
        tracing::info!(nodes = ?now, "the nodes that share the store have changed");
        self.inner.inbox.send(Command::Nodes(now));
        catchup
    }

    async fn catch_up_with(&self, catchup: Catchup) -> Result<(), Error> {
        match catchup {
            Catchup::Nothing => Ok(()),
            Catchup::Everything => self.restore().await,
            Catchup::Look | Catchup::Recovery => {
                self.inner.read_concurrency_groups().await?;
                self.sweep(catchup == Catchup::Recovery).await
            }
        }
    }

    /// Has the mailbox compare what it has with what is open.
    pub(super) async fn sweep(&self, is_recovery: bool) -> Result<(), Error> {
        let since = self.now();
        let open = self.inner.store.active_runs().await?;
        self.inner.inbox.send(Command::Sweep { open, since, is_recovery });
        Ok(())
    }

    /// Others have taken over. Nothing in memory is true any more.
    async fn restart(&self) -> Result<(), Error> {
        let inner = &self.inner;
        tracing::error!("others took this node for dead and have its work; it begins anew");
        let is_greedy = inner.membership.nodes().is_greedy();
        let nodes = enter(&*inner.store, &inner.membership.name).await?.looking_after(is_greedy);
        *inner.membership.nodes.write().unwrap_or_else(PoisonError::into_inner) = nodes.clone();
        inner.restart(nodes).await
    }

    /// Others need not wait to find out.
    pub(super) async fn leave(&self) {
        let inner = &self.inner;
        if !inner.store.is_shared() {
            return;
        }
        inner.membership.has_left.store(true, Relaxed);
        match inner.store.leave(inner.membership.nodes().own()).await {
            Ok(()) => inner.store.broadcast(ClusterEvent::NodesChanged),
            Err(error) => tracing::warn!(%error, "the other nodes were not told that this one goes"),
        }
    }
}
