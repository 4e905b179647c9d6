//! What answers look like.

use crate::{Word, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkflowView {
    pub id: String,
    pub name: String,
    pub slug: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[schemars(with = "Vec<String>")]
    pub tags: Value,
    #[schemars(schema_with = "schema::form")]
    pub form: Word,
    pub trigger: String,
    pub task_count: u32,
    pub enabled: bool,
    /// While its new runs wait for their turn; only where one workflow is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseView>,
    pub version: u32,
    /// `sha256:<hex>` of the canonical definition.
    pub hash: String,
    #[schemars(extend("format" = "date-time"))]
    pub inserted_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deleted_at: Option<String>,
    /// As it was written; only where one workflow is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ValidationView {
    pub valid: bool,
    pub hash: Option<String>,
    pub form: Option<Word>,
    /// Step names in declaration order.
    pub steps: Vec<String>,
    pub problems: Vec<crate::Problem>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StartedView {
    pub run_id: String,
    pub workflow_id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    pub id: String,
    pub workflow: String,
    pub workflow_id: String,
    #[schemars(schema_with = "schema::form")]
    pub form: Word,
    pub version: u32,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    /// Kinds a waiting run waits for.
    #[schemars(schema_with = "schema::wait_kinds")]
    pub waiting_for: Vec<Word>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    pub id: String,
    pub workflow: String,
    pub workflow_id: String,
    #[schemars(schema_with = "schema::form")]
    pub form: Word,
    pub version: u32,
    pub hash: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    pub waiting_for: Vec<WaitingView>,
    pub trigger: TriggerView,
    /// What the run was given: the trigger's body.
    pub input: Value,
    pub output: Value,
    pub error: Option<FailureView>,
    pub failed_steps: Vec<String>,
    #[schemars(with = "BTreeMap<String, String>")]
    pub labels: Map<String, Value>,
    /// One entry per step, in declaration order.
    #[schemars(with = "BTreeMap<String, StepView>")]
    pub tasks: Map<String, Value>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
    /// The run whose input this one repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_from: Option<String>,
    /// While somebody holds the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseView>,
    /// What it shares its workflow's `concurrency` limit with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PauseView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitingView {
    #[schemars(schema_with = "schema::wait_kind")]
    pub kind: Word,
    /// Absent when the run as a whole waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub until: Option<String>,
}

/// What started a run, and what it was given.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TriggerView {
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::trigger_kind")]
    pub kind: Word,
    pub body: Value,
    #[schemars(with = "BTreeMap<String, String>")]
    pub headers: Map<String, Value>,
    /// The trigger it came through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The moment a schedule meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub scheduled_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
}

/// A schedule, a webhook or a door to open by hand.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TriggerDetail {
    pub id: String,
    pub name: String,
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::trigger_kind")]
    pub kind: Word,
    pub workflow_id: String,
    pub enabled: bool,
    pub note: Option<String>,
    /// Without secrets.
    pub config: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable_mapping: Option<Value>,
    /// Made by the workflow's own definition.
    pub is_owned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub next_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub last_run_at: Option<String>,
    pub last_run_id: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub inserted_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
}

/// One line of a trigger's log.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryView {
    pub id: String,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    #[schemars(schema_with = "schema::delivery_outcome")]
    pub outcome: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub scheduled_for: Option<String>,
}

/// A moment of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MomentView {
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub local: Option<String>,
    /// With its jitter.
    #[schemars(extend("format" = "date-time"))]
    pub starts_at: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeliveredView {
    pub run_id: String,
    pub delivery_id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FailureView {
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A step of a run. In `tasks` its name is the key; in a list it has `step`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StepView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(rename = "type")]
    pub kind: Word,
    #[schemars(schema_with = "schema::step_status")]
    pub status: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<Vec<String>>,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    pub status_code: Option<u16>,
    pub attempt: u32,
    pub duration_ms: Option<u64>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub wake_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_because: Option<SkipView>,
}

/// Why a step was skipped: a condition with the values it saw, or needs that did not succeed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SkipView {
    pub reason: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saw: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventView {
    pub seq: u64,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::event_type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    pub data: Value,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunStatusView {
    pub id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReceivedView {
    pub received: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClockView {
    #[schemars(extend("format" = "date-time"))]
    pub now: String,
    pub clock: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fired: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VersionView {
    pub name: Word,
    pub version: Word,
    pub api: Word,
}

/// Why a run, or one of its steps, is where it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExplainView {
    pub run_id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    #[schemars(schema_with = "schema::reason")]
    pub reason: Word,
    /// The same as a sentence.
    pub summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The evidence.
    pub details: Value,
    /// What can be done now; each works when it is sent as it stands.
    pub next_actions: Vec<ActionView>,
    /// From the run towards the cause.
    pub chain: Vec<CauseView>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ActionView {
    pub action: Word,
    pub method: Word,
    /// A path of this server, or the address to call.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CauseView {
    /// `run`, `step`, `workflow` or `type`.
    pub what: Word,
    pub name: String,
    #[schemars(schema_with = "schema::reason")]
    pub reason: Word,
    pub summary: String,
}

/// One run of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BatchItemView {
    pub run_id: String,
    /// `deleted` if the key's run has been deleted since.
    pub status: Word,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplayedView {
    pub run_id: String,
    pub replayed_from: String,
    pub workflow_id: String,
    pub status: Word,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// An event on a stream.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StreamEventView {
    #[serde(flatten)]
    pub event: EventView,
    pub run_id: String,
    pub workflow: String,
}

/// How a stream of a run ends.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StreamEndView {
    pub run_id: String,
    /// `deleted` if the run is gone.
    pub status: Word,
}
