//! Sessions that are kept open: a few that write, a few that read.
//!
//! A call takes one, and brings it back unless something went wrong on it. While the server cannot be
//! reached, calls fail at once and somebody looks again now and then, ever more rarely.

use super::columns::Attempted;
use super::rollback_detector::RollbackDetector;
use super::session::Session;
use super::target::{Ear, Target};
use crate::{Error, Result};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long connecting may take, introductions included.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a call waits for its turn.
const TURN_MAX: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Opens sessions, and remembers when that did not work.
pub(super) struct Connector {
    target: Target,
    outage: Mutex<Option<Outage>>,
    pub rollback_detector: RollbackDetector,
}

struct Outage {
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

    /// A session that hears what others say.
    pub(super) async fn connect_listening(&self, ear: Arc<dyn Ear>) -> Result<Session> {
        self.connect_for(Some(ear)).await
    }

    async fn connect_for(&self, ear: Option<Arc<dyn Ear>>) -> Result<Session> {
        if let Some(outage) = &*self.outage()
            && outage.until > Instant::now()
        {
            return Err(outage.why.clone());
        }
        let opened = match tokio::time::timeout(CONNECT_MAX, Session::open_with(&self.target, ear)).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::Unavailable("the database does not answer".into())),
        };
        // Nobody uses it before it was asked.
        let opened = match opened {
            Ok(session) => self.rollback_detector.question(&session).await.map(|()| session),
            Err(error) => Err(error),
        };
        let mut outage = self.outage();
        match &opened {
            Ok(_) => *outage = None,
            Err(why) => {
                let pause = outage.as_ref().map_or(PAUSE_MIN, |outage| (outage.pause * 2).min(PAUSE_MAX));
                *outage = Some(Outage { until: Instant::now() + jittered(pause), pause, why: why.clone() });
            }
        }
        opened
    }

    /// Keeps trying, for things that are worth waiting for.
    pub(super) async fn connect_within(&self, patience: Duration) -> Result<Session> {
        let until = Instant::now() + patience;
        loop {
            match self.connect().await {
                Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE_MIN).await,
                other => return other.map_err(passing),
            }
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What keeps a store from being opened is no reason to end one that is: somebody may put it right.
fn passing(error: Error) -> Error {
    match error {
        Error::Refused(why) => Error::Unavailable(why),
        other => other,
    }
}

/// Between half of it and all: many nodes that lost the same server do not come back at once.
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
        let permit = tokio::time::timeout(TURN_MAX, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Error::Unavailable("every connection to the database is busy".into()));
        };
        let session = match self.open_one() {
            Some(session) => session,
            None => self.connector.connect().await.map_err(passing)?,
        };
        Ok(PooledSession { session: Some(session), pool: Arc::clone(self), _permit: permit })
    }

    /// One that is idle and not closed.
    fn open_one(&self) -> Option<Session> {
        let mut idle = self.idle();
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session in use. Dropped, it is closed; [`PooledSession::bring_back`] keeps it.
pub(super) struct PooledSession {
    session: Option<Session>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl PooledSession {
    pub(super) fn bring_back(mut self) {
        if let Some(session) = self.session.take().filter(|session| !session.is_closed()) {
            self.pool.idle().push(session);
        }
    }

    /// Brings it back if all went well.
    pub(super) fn end<T>(self, outcome: Attempted<T>) -> Result<T> {
        let answer = outcome.map_err(super::errors::Failure::unwritten)?;
        self.bring_back();
        Ok(answer)
    }
}

impl Deref for PooledSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session.as_ref().expect("a lease has its session until it ends")
    }
}
