//! Cluster events between the processes that share a database: `NOTIFY` on one channel.
//!
//! ```text
//!   broadcast ──▶ a set of pending events ──at most every 10 ms──▶ pg_notify ──▶ listeners of other processes
//! ```
//!
//! One dedicated session sends and listens; it is opened by the first broadcast or the first listener. Batches never
//! use it: a transaction that notifies holds a lock of the whole server while it commits.
//!
//! Correctness does not depend on these events. Where events are lost, listeners get [`ClusterEvent::Missed`]: too many
//! events at once, an event that is too long, a session that ended.

mod wire;

use super::Inner;
use super::session::Session;
use super::target::NotificationListener;
use crate::rows::ClusterEvent;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

const CHANNEL: &str = "onward";
const NOTIFY: &str = "SELECT pg_notify('onward', payload) FROM unnest($1::text[]) AS payload";
/// Pause after sending, so that the events of the next 10 ms are sent together.
const PAUSE: Duration = Duration::from_millis(10);
/// How often an idle session is checked.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long the server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Most events that wait to be sent.
const PENDING_MAX: usize = 4_096;
/// Most events that wait to be received by one listener.
const UNRECEIVED_MAX: usize = 4_096;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

pub(super) struct ClusterEventBus {
    /// A random id of this process, sent with every message so that the process can ignore its own.
    sender: u64,
    is_open: AtomicBool,
    is_closed: AtomicBool,
    pub is_mute: AtomicBool,
    pending: Mutex<BTreeSet<ClusterEvent>>,
    listeners: Mutex<Vec<Listener>>,
    /// Notified when there are events to send, or the session has ended.
    wake: Notify,
}

struct Listener {
    to: mpsc::Sender<ClusterEvent>,
    /// The channel was full: further events are dropped until `Missed` has been sent.
    is_behind: Arc<AtomicBool>,
}

impl ClusterEventBus {
    pub(super) fn new() -> Arc<ClusterEventBus> {
        Arc::new(ClusterEventBus {
            sender: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8),
            is_open: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            pending: Mutex::default(),
            listeners: Mutex::default(),
            wake: Notify::new(),
        })
    }

    pub(super) fn broadcast(self: &Arc<ClusterEventBus>, inner: &Arc<Inner>, event: ClusterEvent) {
        if self.is_mute.load(SeqCst) {
            return;
        }
        {
            let mut pending = lock(&self.pending);
            if pending.len() < PENDING_MAX {
                pending.insert(event);
            } else if !pending.contains(&event) {
                // A receiver of `Missed` reads everything again, which covers the dropped events.
                *pending = BTreeSet::from([ClusterEvent::Missed]);
            }
        }
        self.open(inner);
        self.wake.notify_one();
    }

    pub(super) fn listen(self: &Arc<ClusterEventBus>, inner: &Arc<Inner>) -> mpsc::Receiver<ClusterEvent> {
        let (to, events) = mpsc::channel(UNRECEIVED_MAX);
        lock(&self.listeners).push(Listener { to, is_behind: Arc::default() });
        self.open(inner);
        events
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, SeqCst);
        self.wake.notify_one();
    }

    fn open(self: &Arc<ClusterEventBus>, inner: &Arc<Inner>) {
        if !self.is_open.swap(true, SeqCst) {
            inner.runtime.spawn(keep_session(Arc::clone(self), Arc::downgrade(inner)));
        }
    }

    /// Sends an event to every listener in this process.
    fn deliver(&self, event: &ClusterEvent) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| !listener.to.is_closed());
        for Listener { to, is_behind } in &*listeners {
            if is_behind.load(SeqCst) || to.try_send(event.clone()).is_ok() {
                continue;
            }
            is_behind.store(true, SeqCst);
            let (to, is_behind) = (to.clone(), Arc::clone(is_behind));
            tokio::spawn(async move {
                if let Ok(permit) = to.reserve().await {
                    // In this order: an event that is dropped after this sets the flag again, and another `Missed`
                    // follows.
                    is_behind.store(false, SeqCst);
                    permit.send(ClusterEvent::Missed);
                }
            });
        }
    }
}

impl NotificationListener for ClusterEventBus {
    fn on_notification(&self, payload: &str) {
        match wire::read(payload) {
            Some((sender, _)) if sender == self.sender => {}
            Some((_, received)) => received.iter().for_each(|event| self.deliver(event)),
            None => self.deliver(&ClusterEvent::Missed),
        }
    }

    fn on_close(&self) {
        self.wake.notify_one();
    }
}

/// Keeps a session open that listens and sends, until the store is closed.
async fn keep_session(exchange: Arc<ClusterEventBus>, inner: Weak<Inner>) {
    let mut retry = RETRY_MIN;
    let mut is_outage = false;
    while !exchange.is_closed.load(SeqCst) {
        let Some(connector) = inner.upgrade().map(|inner| Arc::clone(&inner.connector)) else { return };
        let session = match connector.connect_listening(Arc::clone(&exchange) as Arc<dyn NotificationListener>).await {
            Ok(session) => listening(session).await,
            Err(error) => Err(error),
        };
        let over = match session {
            Ok(session) => {
                (retry, is_outage) = (RETRY_MIN, false);
                // Events may have been sent while there was no session.
                exchange.deliver(&ClusterEvent::Missed);
                serve(&exchange, &session).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = over else { return };
        if !std::mem::replace(&mut is_outage, true) {
            tracing::warn!(%error, "cannot receive cluster events of other nodes; trying to reconnect");
        }
        tokio::time::sleep(super::pool::jittered(retry)).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

async fn listening(session: Session) -> Result<Session> {
    answered(session.batch(&format!("LISTEN {CHANNEL}"))).await?;
    Ok(session)
}

/// Sends the pending events. Returns `Ok` when the store is closed.
async fn serve(exchange: &ClusterEventBus, session: &Session) -> Result<()> {
    while !exchange.is_closed.load(SeqCst) {
        let is_idle = tokio::time::timeout(PROBE_EVERY, exchange.wake.notified()).await.is_err();
        if session.is_closed() {
            return Err(Error::Unavailable("the connection is closed".into()));
        }
        let events = take(&mut *lock(&exchange.pending));
        if events.is_empty() {
            if is_idle {
                answered(session.batch("SELECT")).await?;
            }
            continue;
        }
        let messages = wire::write(exchange.sender, &events);
        if let Err(error) = answered(session.execute(NOTIFY, &[&messages])).await {
            *lock(&exchange.pending) = BTreeSet::from([ClusterEvent::Missed]);
            exchange.wake.notify_one();
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
