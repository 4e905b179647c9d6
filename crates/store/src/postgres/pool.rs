//! Pools of open sessions.
//!
//! A call takes a session, and returns it to the pool unless an error occurred on it. While the server cannot be
//! reached, calls fail at once, except for one that tries to connect after a pause; the pause grows exponentially.

use super::columns::Attempted;
use super::rollback_detector::RollbackDetector;
use super::session::Session;
use super::target::{NotificationListener, Target};
use crate::{Error, Result};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long connecting may take, including the settings and checks of a new session.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a call waits for a session.
const SESSION_WAIT_MAX: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Opens sessions, and pauses after failures.
pub(super) struct Connector {
    target: Target,
    outage: Mutex<Option<ServerOutage>>,
    pub rollback_detector: RollbackDetector,
}

struct ServerOutage {
    until: Instant,
    pause: Duration,
    why: Error,
}

impl Connector {
    pub(super) fn new(target: Target) -> Connector {
        Connector { target, outage: Mutex::default(), rollback_detector: RollbackDetector::default() }
    }

    pub(super) async fn connect(&self) -> Result<Session> {
        self.connect_for(None).await
    }

    /// A session that passes notifications to the listener.
    pub(super) async fn connect_listening(&self, listener: Arc<dyn NotificationListener>) -> Result<Session> {
        self.connect_for(Some(listener)).await
    }

    async fn connect_for(&self, listener: Option<Arc<dyn NotificationListener>>) -> Result<Session> {
        if let Some(outage) = &*self.outage()
            && outage.until > Instant::now()
        {
            return Err(outage.why.clone());
        }
        let opened = match tokio::time::timeout(CONNECT_MAX, Session::open_with(&self.target, listener)).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::Unavailable("the database does not answer".into())),
        };
        // The session must not be used before the check for lost writes.
        let opened = match opened {
            Ok(session) => self.rollback_detector.check(&session).await.map(|()| session),
            Err(error) => Err(error),
        };
        let mut outage = self.outage();
        match &opened {
            Ok(_) => *outage = None,
            Err(why) => {
                let pause = outage.as_ref().map_or(PAUSE_MIN, |outage| (outage.pause * 2).min(PAUSE_MAX));
                *outage = Some(ServerOutage { until: Instant::now() + jittered(pause), pause, why: why.clone() });
            }
        }
        opened
    }

    /// Retries until the timeout.
    pub(super) async fn connect_within(&self, timeout: Duration) -> Result<Session> {
        let until = Instant::now() + timeout;
        loop {
            match self.connect().await {
                Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE_MIN).await,
                other => return other.map_err(as_unavailable),
            }
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<ServerOutage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error that prevents a store from being opened must not stop a store that is open, because an operator may fix the
/// cause.
fn as_unavailable(error: Error) -> Error {
    match error {
        Error::Refused(why) => Error::Unavailable(why),
        other => other,
    }
}

/// A random time between half of the pause and the whole pause, so that many nodes do not reconnect at once.
pub(super) fn jittered(pause: Duration) -> Duration {
    let salt = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8);
    pause / 2 + pause / 2 * (salt % 256) as u32 / 255
}

pub(super) struct Pool {
    connector: Arc<Connector>,
    idle: Mutex<Vec<Session>>,
    permits: Arc<Semaphore>,
}

impl Pool {
    pub(super) fn new(connector: Arc<Connector>, size: usize) -> Arc<Pool> {
        Arc::new(Pool { connector, idle: Mutex::default(), permits: Arc::new(Semaphore::new(size)) })
    }

    pub(super) async fn take(self: &Arc<Pool>) -> Result<PooledSession> {
        let permit = tokio::time::timeout(SESSION_WAIT_MAX, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Error::Unavailable("every connection to the database is busy".into()));
        };
        let session = match self.idle_session() {
            Some(session) => session,
            None => self.connector.connect().await.map_err(as_unavailable)?,
        };
        Ok(PooledSession { session: Some(session), pool: Arc::clone(self), _permit: permit })
    }

    /// An idle session that is not closed.
    fn idle_session(&self) -> Option<Session> {
        let mut idle = self.idle();
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session in use. Dropping it closes the session; [`PooledSession::return_to_pool`] keeps it open.
pub(super) struct PooledSession {
    session: Option<Session>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl PooledSession {
    pub(super) fn return_to_pool(mut self) {
        if let Some(session) = self.session.take().filter(|session| !session.is_closed()) {
            self.pool.idle().push(session);
        }
    }

    /// Returns the session to the pool if the call succeeded.
    pub(super) fn end<T>(self, outcome: Attempted<T>) -> Result<T> {
        let answer = outcome.map_err(super::errors::Failure::unwritten)?;
        self.return_to_pool();
        Ok(answer)
    }
}

impl Deref for PooledSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session.as_ref().expect("the session is taken only by `return_to_pool`")
    }
}
