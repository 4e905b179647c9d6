//! What a caller of the engine can be told instead of an answer.

use crate::mailbox::LoadFailure;
use crate::triggers::webhook::Rejection;
use kernel::{RunId, TaskStatus};

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Nothing was written.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It may have been written; asking again with the same idempotency key is safe.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// For whoever asks whether all is well: it is not, although work goes on from what is stored.
    #[error("the store has lost what it had acknowledged")]
    RolledBack,
    #[error("too much is waiting already")]
    Overloaded,
    #[error("the server is shutting down")]
    Stopping,
    #[error("this run needs a newer release")]
    Newer,
    #[error("what is stored of this run is damaged: {0}")]
    Damaged(String),
    #[error("the name is taken")]
    Taken(store::Taken),
    #[error("the workflow is disabled")]
    Disabled,
    /// The key of a workflow's `concurrency` cannot be worked out from what the trigger brought.
    #[error("{0}")]
    InvalidConcurrencyKey(String),
    #[error("this idempotency key was used for another request")]
    KeyReused,
    #[error("there is no workflow `{0}`")]
    NoWorkflow(String),
    #[error("the webhook path is taken")]
    PathTaken,
    #[error("there is no secret to keep")]
    NoSecret,
    #[error("the trigger is disabled")]
    TriggerDisabled,
    /// It is part of its workflow's definition.
    #[error("the trigger belongs to its workflow")]
    Owned,
    #[error("the request of this delivery is not kept")]
    NotKept,
    /// A webhook turned a request away.
    #[error("the request was turned away: {}", .0.as_str())]
    Rejected(Rejection),
    /// The key's run was deleted since.
    #[error("this idempotency key was used for a run that has been deleted")]
    RunDeleted(RunId),
    #[error("{0}")]
    RunOpen(String),
    /// Another part of the same request was refused; nothing was changed.
    #[error("another part of this request was refused")]
    Undone,
    #[error("this workflow is part of the engine and cannot be changed")]
    BuiltIn,
    /// The workflow is not at the version the caller had in mind, but at this one.
    #[error("the workflow has another definition by now")]
    OtherVersion([u8; 32]),
    /// What was wrong with which items of a request for several things; nothing was changed.
    #[error("{} of the items cannot be done", .0.len())]
    Items(Vec<(usize, Error)>),
    #[error("the type `{0}` is disabled")]
    TypeDisabled(String),
    /// What was asked for does not fit the state a task is in.
    #[error("the task is {}", .0.as_str())]
    TaskState(TaskStatus),
    #[error("{0}")]
    Refused(String),
    /// Another process has the store.
    #[error("{0}")]
    InUse(String),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(why) => Error::Unavailable(why),
            store::Error::Unknown(why) => Error::OutcomeUnknown(why),
            store::Error::Corrupt(what) => Error::Damaged(what),
            store::Error::Refused(why) => Error::Refused(why),
            store::Error::InUse(why) => Error::InUse(why),
            fenced @ store::Error::Fenced => Error::Unavailable(fenced.to_string()),
        }
    }
}

impl From<LoadFailure> for Error {
    fn from(trouble: LoadFailure) -> Self {
        match trouble {
            LoadFailure::Store(why) => Error::Unavailable(why),
            LoadFailure::Newer => Error::Newer,
            LoadFailure::Damaged(what) => Error::Damaged(what),
        }
    }
}
