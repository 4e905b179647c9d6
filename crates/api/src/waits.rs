//! Requests to steps that wait, and their responses: signals, approvals, resuming.

use crate::{Word, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A signal that a run has received.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SignalledView {
    pub run_id: String,
    /// The name of the signal.
    pub name: String,
    /// The status of the run afterwards.
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    /// An earlier request with the same idempotency key sent it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// Approves or rejects a step that waits for an approval.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRequest {
    /// The person that decides. If the step has `approvers`, one of them.
    #[serde(default)]
    #[schemars(required, length(min = 1, max = 1024))]
    pub actor: String,
    /// Which step of the run; not needed if only one waits for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub step: Option<String>,
    /// The same, by the `token` of the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub token: Option<String>,
    /// Why, for the history and for later steps.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub comment: String,
    /// The `shown_hash` of the approval that the person saw; refused if it shows something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub shown_hash: Option<String>,
    /// `false` makes `approve` a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub approve: Option<bool>,
}

/// A decision about an approval.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DecidedView {
    /// The run.
    pub id: String,
    pub step: String,
    #[schemars(schema_with = "schema::decision")]
    pub decision: Word,
    /// The status of the run afterwards.
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    /// The same decision was made before; nothing changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

/// An approval that waits for a decision.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalView {
    pub run_id: String,
    pub workflow: String,
    pub step: String,
    pub prompt: String,
    /// What is shown with the prompt.
    pub items: Value,
    /// Who may decide; empty if every actor may.
    pub approvers: Vec<String>,
    #[schemars(extend("format" = "date-time"))]
    pub requested_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub deadline: String,
    /// Names this approval in links and logs. Knowing it does not allow anything.
    pub token: String,
    /// `sha256:<hex>` of what is shown. A decision that carries it counts only for exactly this.
    pub shown_hash: String,
}

/// Resumes a run that is paused, or a `pause` step.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRunRequest {
    /// The person or program that resumes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// A `pause` step; not needed if only one waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub step: Option<String>,
}
