//! Refusals: a stable code, what is wrong, what to do, and where.

use crate::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    pub error: Problem,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<At>,
    /// Set when the fate of a write is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Word>,
    /// Every problem found; always there when the status is 422.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problems: Option<Vec<Problem>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct At {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

macro_rules! codes {
    ($($name:ident = $status:literal $code:literal,)*) => {
        /// Errors of requests. (Problems of definitions have codes of their own, see `lang::codes`.)
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $($name),* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name),*];
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code),* }
            }
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status),* }
            }
        }
    };
}

codes! {
    MalformedJson = 400 "malformed_json",
    MalformedId = 400 "malformed_id",
    MalformedPath = 400 "malformed_path",
    MissingHost = 400 "missing_host",
    KeyRequired = 401 "key_required",
    KeyInvalid = 401 "key_invalid",
    SignatureMissing = 401 "signature_missing",
    SignatureInvalid = 401 "signature_invalid",
    TimestampMissing = 401 "timestamp_missing",
    TimestampOutOfWindow = 401 "timestamp_out_of_window",
    HeaderRequired = 401 "header_required",
    HostNotAllowed = 403 "host_not_allowed",
    ForeignOrigin = 403 "foreign_origin",
    NotFound = 404 "not_found",
    UnknownRoute = 404 "unknown_route",
    MethodNotAllowed = 405 "method_not_allowed",
    NameTaken = 409 "name_taken",
    SlugTaken = 409 "slug_taken",
    PathTaken = 409 "path_taken",
    TriggerDisabled = 409 "trigger_disabled",
    TriggerOwned = 409 "trigger_owned",
    RequestNotKept = 409 "request_not_kept",
    WorkflowDisabled = 409 "workflow_disabled",
    RunEnded = 409 "run_ended",
    RunNotEnded = 409 "run_not_ended",
    RunDeleted = 409 "run_deleted",
    BuiltInWorkflow = 409 "built_in_workflow",
    CallbackConflict = 409 "callback_conflict",
    ClockIsReal = 409 "clock_is_real",
    StaleClaim = 409 "stale_claim",
    RunCancelled = 409 "run_cancelled",
    TypeDisabled = 409 "type_disabled",
    TaskState = 409 "task_state",
    CallbackGone = 410 "callback_gone",
    VersionMismatch = 412 "version_mismatch",
    TooLarge = 413 "too_large",
    UnsupportedMediaType = 415 "unsupported_media_type",
    NothingToRetry = 409 "nothing_to_retry",
    ConcurrencyKeyUnresolved = 422 "concurrency_key_unresolved",
    IdempotencyKeyReused = 422 "idempotency_key_reused",
    DeliveryIdReused = 422 "delivery_id_reused",
    UnknownWorkflow = 422 "unknown_workflow",
    SecretMissing = 422 "secret_missing",
    InvalidParameter = 422 "invalid_parameter",
    UnknownParameter = 422 "unknown_parameter",
    InvalidHeader = 422 "invalid_header",
    InvalidBody = 422 "invalid_body",
    Internal = 500 "internal",
    RunDamaged = 500 "run_damaged",
    RunNeedsUpgrade = 503 "run_needs_upgrade",
    StorageUnavailable = 503 "storage_unavailable",
    OutcomeUnknown = 503 "outcome_unknown",
    StoreRollbackDetected = 503 "store_rollback_detected",
    Overloaded = 503 "overloaded",
    TooManyStreams = 503 "too_many_streams",
    ShuttingDown = 503 "shutting_down",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_snake_case_and_distinct() {
        for (i, code) in Code::ALL.iter().enumerate() {
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{code:?}");
            assert!(Code::ALL[..i].iter().all(|other| other.as_str() != code.as_str()), "{code:?}");
            assert!((400..=599).contains(&code.status()));
        }
    }
}
