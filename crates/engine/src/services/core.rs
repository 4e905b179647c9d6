//! What every service needs: the store, the clock, the inbox of the engine loop, ids, metrics and health.

use super::engine_loop::Inbox;
use super::id_generator::IdGenerator;
use super::reply_channel::ReplyChannel;
use crate::clock::Clock;
use crate::error::Error;
use crate::mailbox::{Command, Reply};
use crate::metrics::Metrics;
use crate::secret::Secret;
use kernel::{RunId, Timestamp};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use store::Store;
use tokio::sync::{Notify, oneshot};

pub struct Core {
    pub store: Arc<dyn Store>,
    pub clock: Arc<Clock>,
    /// Wakes the timer reader when a virtual clock has moved.
    pub clock_moved: Notify,
    pub inbox: Inbox,
    pub ids: IdGenerator,
    pub metrics: Metrics,
    pub callbacks: Callbacks,
    pub health: Health,
}

/// The callback URLs of waiting steps.
pub struct Callbacks {
    pub secret: Secret,
    /// The prefix of every callback URL, without a slash at the end.
    pub public_url: String,
}

/// Whether the engine accepts work, and the reason of a fatal stop.
#[derive(Default)]
pub struct Health {
    pub is_draining: AtomicBool,
    /// The store refused the last commit.
    pub is_refused: AtomicBool,
    fatal: RwLock<Option<String>>,
    fatal_signal: Notify,
}

impl Callbacks {
    pub fn url(&self, run: RunId, step: &str) -> String {
        format!("{}/wh/{}", self.public_url, self.secret.token(run, step))
    }
}

impl Health {
    pub fn fatal_reason(&self) -> Option<String> {
        self.fatal.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves with the reason when the engine has to stop.
    pub async fn failed(&self) -> String {
        loop {
            let signal = self.fatal_signal.notified();
            if let Some(why) = self.fatal_reason() {
                return why;
            }
            signal.await;
        }
    }

    pub fn give_up(&self, why: String) {
        *self.fatal.write().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.fatal_signal.notify_waiters();
    }
}

impl Core {
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Sends the engine loop a command and waits for the reply.
    pub async fn ask(&self, command: impl FnOnce(ReplyChannel) -> Command<ReplyChannel>) -> Result<Reply, Error> {
        answered(self.send(command)?).await
    }

    pub fn send(
        &self,
        command: impl FnOnce(ReplyChannel) -> Command<ReplyChannel>,
    ) -> Result<oneshot::Receiver<Reply>, Error> {
        let (reply_to, reply) = oneshot::channel();
        match self.inbox.send(command(ReplyChannel::One(reply_to))) {
            true => Ok(reply),
            false => Err(Error::Unavailable("the engine is stopping".into())),
        }
    }

    /// Checks the result of a write outside the engine loop. An unknown outcome stops the engine, as it does for the
    /// loop's own commits, unless a later read is known to show the outcome.
    pub fn written<T>(&self, result: Result<T, store::Error>) -> Result<T, Error> {
        if let Err(error @ store::Error::Unknown(_)) = &result
            && !self.store.reads_are_durable()
        {
            self.health.give_up(error.to_string());
        }
        Ok(result?)
    }
}

/// The loop answers every reply channel; a dropped one means that the loop stopped before it could.
pub async fn answered(reply: oneshot::Receiver<Reply>) -> Result<Reply, Error> {
    reply.await.map_err(|_| stopped())
}

pub fn stopped() -> Error {
    Error::OutcomeUnknown("the engine stopped before it could answer".into())
}

/// The error for a reply that is not the expected one. `what` names the thing the caller asked about.
pub fn refusal(reply: Reply, what: &'static str) -> Error {
    match reply {
        Reply::NotFound => Error::NotFound(what),
        Reply::Undone => Error::Undone,
        Reply::Unavailable(why) => Error::Unavailable(why),
        Reply::Unknown(why) => Error::OutcomeUnknown(why),
        Reply::LoadFailure(failure) => failure.into(),
        unexpected => Error::Unavailable(format!("an unexpected answer: {unexpected:?}")),
    }
}
