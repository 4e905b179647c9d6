//! What processes that share a database tell each other: `NOTIFY` on one channel.
//!
//! ```text
//!   tell ──▶ a set, each thing once ──every 10 ms at most──▶ pg_notify … ──▶ the others' listeners
//! ```
//!
//! One session of its own does both, opened when somebody first tells or listens. It is never the session of a batch:
//! whoever notifies holds a lock of the whole server while it commits.
//!
//! Nothing depends on any of it. What cannot be sent, or may not have been heard, is said as [`ClusterEvent::Missed`]: too
//! many things at once, names too long, a session that was lost.

mod wire;

use super::Inner;
use super::session::Session;
use super::target::Ear;
use crate::rows::ClusterEvent;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

const CHANNEL: &str = "onward";
const SPEAK: &str = "SELECT pg_notify('onward', said) FROM unnest($1::text[]) AS said";
/// Pause after something was told, in which the next things gather.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a session on which nothing happens is tried.
const TRIED_EVERY: Duration = Duration::from_secs(10);
/// How long the server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Things that may wait to be told, and to be taken by one listener.
const GATHERED_MAX: usize = 4_096;
const UNHEARD_MAX: usize = 4_096;
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);

pub(super) struct Exchange {
    /// What is told carries it, so that nobody listens to itself.
    own: u64,
    is_open: AtomicBool,
    is_closed: AtomicBool,
    pub is_mute: AtomicBool,
    gathered: Mutex<BTreeSet<ClusterEvent>>,
    listeners: Mutex<Vec<Listener>>,
    /// There is something to tell, or the session is over.
    woken: Notify,
}

struct Listener {
    to: mpsc::Sender<ClusterEvent>,
    /// It did not keep up: what comes now is lost, and it will hear that.
    is_behind: Arc<AtomicBool>,
}

impl Exchange {
    pub(super) fn new() -> Arc<Exchange> {
        Arc::new(Exchange {
            own: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8),
            is_open: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            gathered: Mutex::default(),
            listeners: Mutex::default(),
            woken: Notify::new(),
        })
    }

    pub(super) fn broadcast(self: &Arc<Exchange>, inner: &Arc<Inner>, cluster_events: ClusterEvent) {
        if self.is_mute.load(SeqCst) {
            return;
        }
        {
            let mut gathered = lock(&self.gathered);
            if gathered.len() < GATHERED_MAX {
                gathered.insert(cluster_events);
            } else if !gathered.contains(&cluster_events) {
                // Whoever hears this looks at everything, the rest of it included.
                *gathered = BTreeSet::from([ClusterEvent::Missed]);
            }
        }
        self.open(inner);
        self.woken.notify_one();
    }

    pub(super) fn listen(self: &Arc<Exchange>, inner: &Arc<Inner>) -> mpsc::Receiver<ClusterEvent> {
        let (to, cluster_events) = mpsc::channel(UNHEARD_MAX);
        lock(&self.listeners).push(Listener { to, is_behind: Arc::default() });
        self.open(inner);
        cluster_events
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, SeqCst);
        self.woken.notify_one();
    }

    fn open(self: &Arc<Exchange>, inner: &Arc<Inner>) {
        if !self.is_open.swap(true, SeqCst) {
            inner.runtime.spawn(keep(Arc::clone(self), Arc::downgrade(inner)));
        }
    }

    /// Passes something on to everybody who listens here.
    fn pass_on(&self, cluster_events: &ClusterEvent) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| !listener.to.is_closed());
        for Listener { to, is_behind } in &*listeners {
            if is_behind.load(SeqCst) || to.try_send(cluster_events.clone()).is_ok() {
                continue;
            }
            is_behind.store(true, SeqCst);
            let (to, is_behind) = (to.clone(), Arc::clone(is_behind));
            tokio::spawn(async move {
                if let Ok(position) = to.reserve().await {
                    // In this order: what is lost from now on is lost after it was said.
                    is_behind.store(false, SeqCst);
                    position.send(ClusterEvent::Missed);
                }
            });
        }
    }
}

impl Ear for Exchange {
    fn hear(&self, said: &str) {
        match wire::read(said) {
            Some((from, _)) if from == self.own => {}
            Some((_, cluster_events)) => cluster_events.iter().for_each(|cluster_events| self.pass_on(cluster_events)),
            None => self.pass_on(&ClusterEvent::Missed),
        }
    }

    fn ended(&self) {
        self.woken.notify_one();
    }
}

/// Keeps a session that listens and tells, until the store is closed.
async fn keep(exchange: Arc<Exchange>, inner: Weak<Inner>) {
    let mut again = AGAIN_MIN;
    let mut is_outage = false;
    while !exchange.is_closed.load(SeqCst) {
        let Some(connector) = inner.upgrade().map(|inner| Arc::clone(&inner.connector)) else { return };
        let session = match connector.connect_listening(Arc::clone(&exchange) as Arc<dyn Ear>).await {
            Ok(session) => listening(session).await,
            Err(error) => Err(error),
        };
        let over = match session {
            Ok(session) => {
                (again, is_outage) = (AGAIN_MIN, false);
                // Nobody knows what was said before.
                exchange.pass_on(&ClusterEvent::Missed);
                serve(&exchange, &session).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = over else { return };
        if !std::mem::replace(&mut is_outage, true) {
            tracing::warn!(%error, "what other nodes say is not heard for the time being");
        }
        tokio::time::sleep(super::pool::jittered(again)).await;
        again = (again * 2).min(AGAIN_MAX);
    }
}

async fn listening(session: Session) -> Result<Session> {
    answered(session.batch(&format!("LISTEN {CHANNEL}"))).await?;
    Ok(session)
}

/// Tells what there is to tell. Ends well when the store is closed.
async fn serve(exchange: &Exchange, session: &Session) -> Result<()> {
    while !exchange.is_closed.load(SeqCst) {
        let is_idle = tokio::time::timeout(TRIED_EVERY, exchange.woken.notified()).await.is_err();
        if session.is_closed() {
            return Err(Error::Unavailable("the connection is closed".into()));
        }
        let cluster_events = take(&mut *lock(&exchange.gathered));
        if cluster_events.is_empty() {
            if is_idle {
                answered(session.batch("SELECT")).await?;
            }
            continue;
        }
        let said = wire::write(exchange.own, &cluster_events);
        if let Err(error) = answered(session.execute(SPEAK, &[&said])).await {
            *lock(&exchange.gathered) = BTreeSet::from([ClusterEvent::Missed]);
            exchange.woken.notify_one();
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn answered<T>(work: impl Future<Output = super::Attempted<T>>) -> Result<T> {
    match tokio::time::timeout(ANSWER_MAX, work).await {
        Ok(answer) => answer.map_err(super::Failure::unwritten),
        Err(_) => Err(Error::Unavailable("the database does not answer".into())),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
