//! The errors of the engine.

use crate::mailbox::LoadFailure;
use crate::triggers::webhook::Rejection;
use kernel::advance::UnrepeatableStep;
use kernel::{RunId, RunStatus, TaskStatus};
use lang::InputProblem;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Nothing was written.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It may have been written; repeating the request with the same idempotency key is safe.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// For readiness checks: the database lost commits, for example in a failover. The engine goes on with the rest.
    #[error("the store has lost what it had acknowledged")]
    RolledBack,
    #[error("too much is waiting already")]
    Overloaded,
    #[error("the server is shutting down")]
    Stopping,
    #[error("this run needs a newer release")]
    Newer,
    #[error("the stored run is damaged: {0}")]
    Damaged(String),
    #[error("the name is taken")]
    Taken(store::NameTaken),
    #[error("the workflow is disabled")]
    Disabled,
    /// The `concurrency` key of a workflow cannot be evaluated with the trigger's input.
    #[error("{0}")]
    InvalidConcurrencyKey(String),
    /// The body of a new run does not fit the `input` schema of the workflow.
    #[error("{}", misfit(.0))]
    InvalidInput(Vec<InputProblem>),
    #[error("this idempotency key was used for another request")]
    KeyReused,
    #[error("there is no workflow `{key}`")]
    NoWorkflow {
        key: String,
        /// The name that a misspelt key probably means.
        nearest: Option<String>,
    },
    #[error("the webhook path is taken")]
    PathTaken,
    #[error("the trigger has no secret to keep")]
    NoSecret,
    #[error("the trigger is disabled")]
    TriggerDisabled,
    /// The trigger is part of its workflow's definition and can only change with it.
    #[error("the trigger belongs to its workflow")]
    Owned,
    #[error("the request of this delivery was not stored")]
    NotKept,
    /// A webhook rejected a request.
    #[error("the request was rejected: {}", .0.as_str())]
    Rejected(Rejection),
    /// The signal of a webhook is for so many runs that cannot take it now.
    #[error("{0} of the runs that wait for it can take no more signals now")]
    RunsFull(u32),
    /// The run of the idempotency key has been deleted.
    #[error("this idempotency key was used for a run that has been deleted")]
    RunDeleted(RunId),
    #[error("the run has ended already: it is {0}")]
    Ended(RunStatus),
    #[error("`{0}` is not a step of this run")]
    NoStep(String),
    #[error("no step of this run waits for {0}")]
    NothingWaits(&'static str),
    /// A replay or a fork would repeat what these steps did.
    #[error("{} did something that can be neither undone nor repeated", .0.iter().map(|step| format!("`{}`", step.key)).collect::<Vec<_>>().join(", "))]
    UnsafeReplay(Vec<UnrepeatableStep>),
    /// The request has to name one of these steps.
    #[error("several steps wait: {}", .0.join(", "))]
    SeveralWait(Vec<String>),
    #[error("what is to be approved is not what the actor was shown")]
    ApprovalChanged,
    /// These irreversible steps succeeded and would run again.
    #[error("steps that cannot be repeated would run again: {}", .0.join(", "))]
    UnsafeRetry(Vec<String>),
    /// A step of another run started the run and waited for it.
    #[error("the run is part of {parent}: it runs again when the step `{step}` does")]
    HasParent { parent: RunId, step: String },
    #[error("the run's concurrency group is full")]
    NoRoom,
    #[error("no step waits for its next attempt, or the run is paused")]
    NothingToRetry,
    #[error("{message}")]
    InvalidField { field: &'static str, message: String },
    /// The run cannot go on with a version.
    #[error("{0}")]
    CannotMove(CannotMove),
    #[error("{0}")]
    RunOpen(String),
    /// Another part of the same request was refused; nothing was changed.
    #[error("another part of this request was refused")]
    Undone,
    #[error("this workflow is part of the engine and cannot be changed")]
    BuiltIn,
    /// The workflow is not at the version that the caller expected; its current hash.
    #[error("the workflow has another definition by now")]
    OtherVersion([u8; 32]),
    /// Errors by item of a request for several things; nothing was changed.
    #[error("{} of the items were refused", .0.len())]
    Items(Vec<(usize, Error)>),
    /// More types than a list can merge match this pattern.
    #[error("more types begin with `{0}` than a list can search")]
    TooManyTypes(String),
    #[error("the type `{0}` is disabled")]
    TypeDisabled(String),
    /// The task's status does not allow the request.
    #[error("the task is {}", .0.as_str())]
    TaskState(TaskStatus),
    #[error("{0}")]
    Refused(String),
    /// Another process uses the store.
    #[error("{0}")]
    InUse(String),
}

/// Why a run cannot go on with a version of its workflow. Steps by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CannotMove {
    SingleTask,
    Form,
    /// Attempts or child runs of these are under way.
    Busy(Vec<String>),
    /// The version does not have these, or not inside of the same groups.
    Missing(Vec<String>),
    /// These have begun, and are of another kind in the version.
    Changed(Vec<String>),
}

impl CannotMove {
    pub fn steps(&self) -> &[String] {
        match self {
            CannotMove::SingleTask | CannotMove::Form => &[],
            CannotMove::Busy(steps) | CannotMove::Missing(steps) | CannotMove::Changed(steps) => steps,
        }
    }

    /// What is wrong with one of the steps.
    pub fn of_step(&self, step: &str) -> String {
        match self {
            CannotMove::Busy(_) => format!("`{step}` is being worked on"),
            CannotMove::Missing(_) => format!("the version has no step `{step}` in this place"),
            _ => format!("`{step}` has begun, and is of another kind in the version"),
        }
    }
}

impl std::fmt::Display for CannotMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CannotMove::SingleTask => f.write_str("a single task has no other version"),
            CannotMove::Form => f.write_str("the version has another form than the run"),
            of_steps => {
                let steps: Vec<String> = self.steps().iter().map(|step| of_steps.of_step(step)).collect();
                f.write_str(&steps.join("; "))
            }
        }
    }
}

/// The length of the text that stands for all problems of a body.
const MISFIT_MAX: usize = 2_000;

/// Every problem of a body in one text, for logs and for the error of a step.
fn misfit(problems: &[InputProblem]) -> String {
    let mut text = String::new();
    for (listed, problem) in problems.iter().enumerate() {
        if text.len() + problem.message.len() > MISFIT_MAX && listed > 0 {
            return format!("{text} (and {} more)", problems.len() - listed);
        }
        text = if listed == 0 { problem.message.clone() } else { format!("{text}; {}", problem.message) };
    }
    text
}

impl Error {
    /// The stored run itself cannot be read, so a list goes on without it.
    pub fn is_unreadable_run(&self) -> bool {
        matches!(self, Error::Damaged(_) | Error::Newer)
    }
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
    fn from(failure: LoadFailure) -> Self {
        match failure {
            LoadFailure::Store(why) => Error::Unavailable(why),
            LoadFailure::Newer => Error::Newer,
            LoadFailure::Damaged(what) => Error::Damaged(what),
        }
    }
}
