//! What answers look like.

use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Serialize)]
pub struct WorkflowView {
    pub id: String,
    pub name: String,
    pub slug: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub tags: Value,
    pub form: &'static str,
    pub trigger: String,
    pub task_count: u32,
    pub enabled: bool,
    pub version: u32,
    /// `sha256:<hex>` of the canonical definition.
    pub hash: String,
    pub inserted_at: String,
    pub updated_at: String,
    /// As it was written; only where one workflow is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
}

#[derive(Serialize)]
pub struct ValidationView {
    pub valid: bool,
    pub hash: Option<String>,
    pub form: Option<&'static str>,
    /// Step names in declaration order.
    pub steps: Vec<String>,
    pub problems: Vec<crate::Problem>,
}

#[derive(Serialize)]
pub struct StartedView {
    pub run_id: String,
    pub workflow_id: String,
    pub status: &'static str,
    pub started_at: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

#[derive(Serialize)]
pub struct RunSummary {
    pub id: String,
    pub workflow: String,
    pub workflow_id: String,
    pub form: &'static str,
    pub version: u32,
    pub status: &'static str,
    /// Kinds a waiting run waits for.
    pub waiting_for: Vec<&'static str>,
    pub started_at: String,
    pub finished_at: Option<String>,
    pub expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

#[derive(Serialize)]
pub struct RunView {
    pub id: String,
    pub workflow: String,
    pub workflow_id: String,
    pub form: &'static str,
    pub version: u32,
    pub hash: String,
    pub status: &'static str,
    pub waiting_for: Vec<WaitingView>,
    pub trigger: TriggerView,
    /// What the run was given: the trigger's body.
    pub input: Value,
    pub output: Value,
    pub error: Option<FailureView>,
    pub failed_steps: Vec<String>,
    pub labels: Map<String, Value>,
    /// One entry per step, in declaration order.
    pub tasks: Map<String, Value>,
    pub started_at: String,
    pub finished_at: Option<String>,
    pub expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
}

#[derive(Serialize)]
pub struct WaitingView {
    pub kind: &'static str,
    pub step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// What started a run, and what it was given.
#[derive(Serialize)]
pub struct TriggerView {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub body: Value,
    pub headers: Map<String, Value>,
    /// The trigger it came through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The moment a schedule meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
}

/// A schedule, a webhook or a door to open by hand.
#[derive(Serialize)]
pub struct TriggerDetail {
    pub id: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
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
    pub next_at: Option<String>,
    pub last_run_at: Option<String>,
    pub last_run_id: Option<String>,
    pub inserted_at: String,
    pub updated_at: String,
}

/// One line of a trigger's log.
#[derive(Serialize)]
pub struct DeliveryView {
    pub id: String,
    pub at: String,
    pub outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<String>,
}

/// A moment of a schedule.
#[derive(Serialize)]
pub struct MomentView {
    pub at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// With its jitter.
    pub starts_at: String,
}

#[derive(Serialize)]
pub struct DeliveredView {
    pub run_id: String,
    pub delivery_id: String,
    pub status: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

#[derive(Serialize)]
pub struct FailureView {
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A step of a run. In `tasks` its name is the key; in a list it has `step`.
#[derive(Serialize)]
pub struct StepView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<Vec<String>>,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    pub status_code: Option<u16>,
    pub attempt: u32,
    pub duration_ms: Option<u64>,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_because: Option<SkipView>,
}

/// Why a step was skipped: a condition with the values it saw, or needs that did not succeed.
#[derive(Serialize)]
pub struct SkipView {
    pub reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saw: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Map<String, Value>>,
}

#[derive(Serialize)]
pub struct EventView {
    pub seq: u64,
    pub at: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    pub data: Value,
}

#[derive(Serialize)]
pub struct CancelledView {
    pub id: String,
    pub status: &'static str,
}

#[derive(Serialize)]
pub struct ReceivedView {
    pub received: bool,
}

#[derive(Serialize)]
pub struct ClockView {
    pub now: String,
    pub clock: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fired: Option<u64>,
}

#[derive(Serialize)]
pub struct VersionView {
    pub name: &'static str,
    pub version: &'static str,
    pub api: &'static str,
}
