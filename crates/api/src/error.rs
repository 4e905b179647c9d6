//! Errors: a stable code, what is wrong, what to do about it, and where.

use crate::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of every error response.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    pub error: Problem,
}

/// What is wrong with a request or with a definition.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A stable name for programs, such as `not_found`.
    pub code: String,
    /// `error`, or `warning` for a problem that does not make a definition invalid; absent outside of definitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<Word>,
    /// What is wrong, for people.
    pub message: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The field, parameter, header or position in the text that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<At>,
    /// `unknown` if the change may have been written or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Word>,
    /// `same_idempotency_key` if the request can be sent again with the same `Idempotency-Key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Word>,
    /// Every problem that was found; present in every response with status 422.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problems: Option<Vec<Problem>>,
}

/// Where a problem is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct At {
    /// The path of a field (`tasks.charge.retry`), or the name of a parameter or a header.
    pub path: String,
    /// Line and column in the text that was sent, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

macro_rules! codes {
    ($(#[doc = $meaning:literal] $name:ident = $status:literal $code:literal,)*) => {
        /// Error codes of requests. (Problems of definitions have their own codes, see `lang::codes`.)
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $(#[doc = $meaning] $name),* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name),*];
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code),* }
            }
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status),* }
            }
            /// The doc comment of the code, for the generated reference.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$name => $meaning.trim_start()),* }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or it ended early.
    MalformedJson = 400 "malformed_json",
    /// The id in the path is not a run, task or trigger id.
    MalformedId = 400 "malformed_id",
    /// The path is not percent-encoded UTF-8.
    MalformedPath = 400 "malformed_path",
    /// The request has no valid `Host` header, or more than one.
    MissingHost = 400 "missing_host",
    /// The server requires its admin key: `Authorization: Bearer <key>`.
    KeyRequired = 401 "key_required",
    /// The admin key is wrong.
    KeyInvalid = 401 "key_invalid",
    /// A webhook request has no signature.
    SignatureMissing = 401 "signature_missing",
    /// The signature of a webhook request is wrong.
    SignatureInvalid = 401 "signature_invalid",
    /// A signed webhook request has no timestamp.
    TimestampMissing = 401 "timestamp_missing",
    /// The timestamp of a webhook request is too far from the current time.
    TimestampOutOfWindow = 401 "timestamp_out_of_window",
    /// A webhook request lacks a header that its trigger requires, or has another value.
    HeaderRequired = 401 "header_required",
    /// The request is addressed to a host name that this server does not serve.
    HostNotAllowed = 403 "host_not_allowed",
    /// A browser sent the request from another origin.
    ForeignOrigin = 403 "foreign_origin",
    /// The actor may not decide about this approval.
    NotAnApprover = 403 "not_an_approver",
    /// There is no such workflow, run, task, type, trigger or callback.
    NotFound = 404 "not_found",
    /// There is no such route.
    UnknownRoute = 404 "unknown_route",
    /// The route does not support this method.
    MethodNotAllowed = 405 "method_not_allowed",
    /// Another workflow has this name.
    NameTaken = 409 "name_taken",
    /// Another workflow has this slug.
    SlugTaken = 409 "slug_taken",
    /// Another trigger has this webhook path.
    PathTaken = 409 "path_taken",
    /// The trigger is disabled and cannot be fired, not even manually.
    TriggerDisabled = 409 "trigger_disabled",
    /// The trigger belongs to a workflow; change the definition of the workflow.
    TriggerOwned = 409 "trigger_owned",
    /// The request of this delivery was not stored, so it cannot be delivered again.
    RequestNotKept = 409 "request_not_kept",
    /// The workflow is disabled.
    WorkflowDisabled = 409 "workflow_disabled",
    /// The run has ended already.
    RunEnded = 409 "run_ended",
    /// Only a run that has ended, and whose notifications are delivered, can be deleted.
    RunNotEnded = 409 "run_not_ended",
    /// The run that this idempotency key created has been deleted.
    RunDeleted = 409 "run_deleted",
    /// The workflow belongs to the engine and cannot be changed or started.
    BuiltInWorkflow = 409 "built_in_workflow",
    /// The callback was accepted before with another payload.
    CallbackConflict = 409 "callback_conflict",
    /// Only a virtual clock can be moved.
    ClockIsReal = 409 "clock_is_real",
    /// The claim token is not the current one, or another report was sent with it before.
    StaleClaim = 409 "stale_claim",
    /// The task was cancelled; the report is recorded and changes nothing.
    RunCancelled = 409 "run_cancelled",
    /// The task type is disabled.
    TypeDisabled = 409 "type_disabled",
    /// The state of the task does not allow this.
    TaskState = 409 "task_state",
    /// The step does not wait for this callback any more.
    CallbackGone = 410 "callback_gone",
    /// The hash of the workflow's current definition is not the expected one.
    VersionMismatch = 412 "version_mismatch",
    /// The request is larger than the route or the run allows.
    TooLarge = 413 "too_large",
    /// The route does not read bodies of this media type.
    UnsupportedMediaType = 415 "unsupported_media_type",
    /// The run has steps that can be neither undone nor repeated, and a replay would repeat them.
    UnsafeReplay = 409 "unsafe_replay",
    /// No step of the run waits for this: an approval, or to be resumed.
    NotWaiting = 409 "not_waiting",
    /// The step has settled, or is in a state in which this has no meaning.
    StepSettled = 409 "step_settled",
    /// Several steps of the run wait for this; the request must name one.
    StepRequired = 409 "step_required",
    /// The approval was decided otherwise before.
    AlreadyDecided = 409 "already_decided",
    /// What is to be approved is not what `shown_hash` stands for.
    ApprovalChanged = 409 "approval_changed",
    /// The run has 1,000 signals that no step has read.
    TooManySignals = 409 "too_many_signals",
    /// No step of the run waits for its next attempt, or the run is paused.
    NothingToRetry = 409 "nothing_to_retry",
    /// Steps with `irreversible: true` that succeeded would run again; `problems` names each.
    UnsafeRetry = 409 "unsafe_retry",
    /// The run cannot go on with that version of its workflow; `problems` names the steps that do not fit.
    CannotMove = 409 "cannot_move",
    /// A step of another run waits for this run, or waited for it: retry that run.
    HasParent = 409 "has_parent",
    /// The run's concurrency group is full, and its runs do not queue.
    ConcurrencyLimit = 409 "concurrency_limit",
    /// The workflow's `concurrency.key` reads a value that the trigger did not provide.
    ConcurrencyKeyUnresolved = 422 "concurrency_key_unresolved",
    /// The idempotency key was used for a different request.
    IdempotencyKeyReused = 422 "idempotency_key_reused",
    /// The delivery id was used for a different request.
    DeliveryIdReused = 422 "delivery_id_reused",
    /// The request names a workflow that does not exist.
    UnknownWorkflow = 422 "unknown_workflow",
    /// The run has no event with this number.
    UnknownEvent = 422 "unknown_event",
    /// The trigger says `has_secret`, but there is no secret to keep.
    SecretMissing = 422 "secret_missing",
    /// A query parameter has an invalid value.
    InvalidParameter = 422 "invalid_parameter",
    /// The route does not know a query parameter.
    UnknownParameter = 422 "unknown_parameter",
    /// A header has an invalid value: `Idempotency-Key`, `If-Match` or `Last-Event-ID`.
    InvalidHeader = 422 "invalid_header",
    /// The body of the trigger does not satisfy the `input` schema of the workflow.
    InvalidInput = 422 "invalid_input",
    /// The body is JSON, but not of the shape that the route expects.
    InvalidBody = 422 "invalid_body",
    /// A bug in the server.
    Internal = 500 "internal",
    /// The stored data of the run is damaged.
    RunDamaged = 500 "run_damaged",
    /// A later release wrote the run; nothing is lost.
    RunNeedsUpgrade = 503 "run_needs_upgrade",
    /// The store takes no writes; nothing was changed.
    StorageUnavailable = 503 "storage_unavailable",
    /// The change may have been written or not. Send the request again with the same `Idempotency-Key`.
    OutcomeUnknown = 503 "outcome_unknown",
    /// Postgres lost commits that it had acknowledged; only `/readyz` answers with this.
    StoreRollbackDetected = 503 "store_rollback_detected",
    /// Too many requests are waiting; nothing was changed.
    Overloaded = 503 "overloaded",
    /// A run that the signal of a webhook is for has 1,000 unread signals or 16 MiB of data. Send the request again.
    RunFull = 503 "run_full",
    /// Too many event streams are open.
    TooManyStreams = 503 "too_many_streams",
    /// The server is shutting down; nothing was changed.
    ShuttingDown = 503 "shutting_down",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_snake_case_distinct_and_explained() {
        for (i, code) in Code::ALL.iter().enumerate() {
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{code:?}");
            assert!(Code::ALL[..i].iter().all(|other| other.as_str() != code.as_str()), "{code:?}");
            assert!((400..=599).contains(&code.status()));
            let meaning = code.meaning();
            assert!(meaning.starts_with(char::is_uppercase) && meaning.ends_with('.'), "{code:?}: {meaning}");
        }
    }
}
