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
    /// While its new runs wait for their turn; only where one workflow is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseView>,
    pub version: u32,
    /// `sha256:<hex>` of the canonical definition.
    pub hash: String,
    pub inserted_at: String,
    pub updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<String>,
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

#[derive(Serialize)]
pub struct PauseView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub at: String,
}

#[derive(Serialize)]
pub struct WaitingView {
    pub kind: &'static str,
    /// Absent when the run as a whole waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

#[derive(Serialize)]
pub struct TriggerView {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub body: Value,
    pub headers: Map<String, Value>,
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
pub struct RunStatusView {
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

/// Why a run, or one of its steps, is where it is.
#[derive(Serialize)]
pub struct ExplainView {
    pub run_id: String,
    pub status: &'static str,
    /// One of the words of the reference, such as `waiting_for_retry`.
    pub reason: &'static str,
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

#[derive(Serialize)]
pub struct ActionView {
    pub action: &'static str,
    pub method: &'static str,
    /// A path of this server, or the address to call.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

#[derive(Serialize)]
pub struct CauseView {
    /// `run`, `step`, `workflow` or `host`.
    pub what: &'static str,
    pub name: String,
    pub reason: &'static str,
    pub summary: String,
}

/// One edition of a workflow.
#[derive(Serialize)]
pub struct VersionEntryView {
    pub number: u32,
    pub hash: String,
    /// What made it: `create` or `update`.
    pub source: String,
    pub at: String,
}

/// What differs between two versions.
#[derive(Serialize)]
pub struct DiffView {
    pub from: VersionEntryView,
    pub to: VersionEntryView,
    pub steps: StepsDiffView,
    /// Fields beside the steps.
    pub settings: Vec<FieldDiffView>,
    /// Both as JSON in the author's order, as a unified diff.
    pub text: String,
}

#[derive(Serialize)]
pub struct StepsDiffView {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<StepDiffView>,
}

#[derive(Serialize)]
pub struct StepDiffView {
    pub step: String,
    pub fields: Vec<FieldDiffView>,
}

/// A field that was there and is not, is there and was not, or has another value.
#[derive(Debug, PartialEq, Serialize)]
pub struct FieldDiffView {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

#[derive(Serialize)]
pub struct GraphView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    pub nodes: Vec<GraphNodeView>,
    pub edges: Vec<GraphEdgeView>,
}

#[derive(Serialize)]
pub struct GraphNodeView {
    pub step: String,
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    pub needs: Vec<String>,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// In the order of declaration, from 0.
    pub position: usize,
}

#[derive(Serialize)]
pub struct GraphEdgeView {
    pub from: String,
    pub to: String,
    /// `ok`: taken when the step it comes from succeeds; `any`: whatever becomes of it.
    pub on: &'static str,
}

/// One run of a batch.
#[derive(Serialize)]
pub struct BatchItemView {
    pub run_id: String,
    /// `deleted` if the key's run has been deleted since.
    pub status: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

#[derive(Serialize)]
pub struct ReplayedView {
    pub run_id: String,
    pub replayed_from: String,
    pub workflow_id: String,
    pub status: &'static str,
    pub started_at: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// An event on a stream.
#[derive(Serialize)]
pub struct StreamEventView {
    #[serde(flatten)]
    pub event: EventView,
    pub run_id: String,
    pub workflow: String,
}

/// How a stream of a run ends.
#[derive(Serialize)]
pub struct StreamEndView {
    pub run_id: String,
    /// `deleted` if the run is gone.
    pub status: &'static str,
}
