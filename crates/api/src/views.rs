//! Responses about workflows, runs, triggers and the server.

use crate::{AsOfView, Word, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A workflow and its current version.
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
    /// The type of its trigger.
    pub trigger: String,
    /// How many steps the definition has.
    pub task_count: u32,
    /// Whether runs can be started.
    pub enabled: bool,
    /// Set while the workflow is paused; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseView>,
    pub version: u32,
    /// The author's own `version`, if the definition has one; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_label: Option<String>,
    /// `sha256:<hex>` of the canonical definition.
    pub hash: String,
    #[schemars(extend("format" = "date-time"))]
    pub inserted_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deleted_at: Option<String>,
    /// The definition as its author wrote it; only in the response for a single workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
    /// Warnings about the definition; only in responses to `POST` and `PUT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<crate::Problem>,
    /// An earlier request with the same idempotency key created it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// Whether a definition is valid, and its problems: errors if it is not, and warnings.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ValidationView {
    pub valid: bool,
    pub hash: Option<String>,
    pub form: Option<Word>,
    /// Step names in declaration order.
    pub steps: Vec<String>,
    pub problems: Vec<crate::Problem>,
}

/// A run that was started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StartedView {
    pub run_id: String,
    pub workflow_id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    /// An earlier request with the same idempotency key started the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// A run in a list.
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
    /// The kinds of things that the run waits for.
    #[schemars(schema_with = "schema::wait_kinds")]
    pub waiting_for: Vec<Word>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// When the run times out.
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Of a run that has ended: steps that failed, timed out or had a template error; at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_steps: Vec<String>,
    /// Those of them that nothing handled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhandled_steps: Vec<String>,
}

/// A run that is not in a list because its stored data cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UnreadableView {
    pub run_id: String,
    /// `run_damaged` or `run_needs_upgrade`.
    pub code: String,
    pub message: String,
}

/// A run with its steps.
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
    /// The input of the run: the same as `trigger.body`.
    pub input: Value,
    /// What the workflow's `output` says, once the run has completed.
    pub output: Value,
    /// Why the run failed.
    pub error: Option<FailureView>,
    /// Steps that failed, timed out or had a template error.
    pub failed_steps: Vec<String>,
    /// Failed steps that nothing handled. Empty while the run is open: a later step may still handle the failure.
    #[serde(default)]
    pub unhandled_steps: Vec<String>,
    /// Set once the run undoes what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryView>,
    #[schemars(with = "BTreeMap<String, String>")]
    pub labels: Map<String, Value>,
    /// One entry for each step, in the order of the definition.
    #[schemars(with = "BTreeMap<String, StepView>")]
    pub tasks: Map<String, Value>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// When the run times out.
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: String,
    /// The run that this one replays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_from: Option<String>,
    /// The run that this one is a fork of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkPointView>,
    /// The step of another run that started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentView>,
    /// Signals that no step has read: how many of each name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unread_signals: BTreeMap<String, u32>,
    /// Set while the run is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseView>,
    /// The run shares the workflow's `concurrency` limit with the runs that have the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// The `actor` of the request that cancelled the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// With `?at=`: the event that the run is shown right after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<AsOfView>,
}

/// What became of undoing the steps of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryView {
    /// `running`, `completed`, or `failed` if a step could not be undone.
    #[schemars(schema_with = "schema::recovery_status")]
    pub status: Word,
    /// The steps that are or were undone, in that order.
    pub steps: Vec<UndoneStepView>,
    /// The steps that are still to be undone, in the order in which they will be.
    pub remaining: Vec<String>,
}

/// A step that is or was undone.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UndoneStepView {
    pub step: String,
    /// The kind of its `compensate`.
    #[serde(rename = "type")]
    pub kind: Word,
    /// The status of its `compensate`.
    #[schemars(schema_with = "schema::step_status")]
    pub status: Word,
    pub attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
}

/// What was decided about a step, or what a decision would lead to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct OverriddenView {
    pub run_id: String,
    pub step: String,
    /// The status of the run; absent for a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::run_status")]
    pub status: Option<Word>,
    /// Of a dry run: the steps that would start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_run: Option<Vec<String>>,
    /// Of a dry run: those of them that ran before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_repeat: Option<Vec<String>>,
}

/// The pause of a run or a workflow.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PauseView {
    /// The `actor` of the request that paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
}

/// Something that a run waits for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitingView {
    #[schemars(schema_with = "schema::wait_kind")]
    pub kind: Word,
    /// The step that waits; absent if the whole run waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub until: Option<String>,
}

/// What started a run, and its input.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TriggerView {
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::trigger_kind")]
    pub kind: Word,
    pub body: Value,
    #[schemars(with = "BTreeMap<String, String>")]
    pub headers: Map<String, Value>,
    /// The id of the schedule, webhook or manual trigger that started the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The fire time of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub scheduled_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
    /// The `actor` of the request that started the run; of a child, the one who started its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
}

/// A trigger: a schedule, a webhook or a manual trigger.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TriggerDetail {
    pub id: String,
    pub name: String,
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::trigger_kind")]
    pub kind: Word,
    /// The name of the workflow that it starts.
    pub workflow: String,
    pub workflow_id: String,
    pub enabled: bool,
    pub note: Option<String>,
    /// The settings of the trigger, without secrets.
    pub config: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable_mapping: Option<Value>,
    /// The run's `trigger.body` when nothing arrives; fields of a body that arrives go over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Of a webhook that gives a signal to open runs: its name, and how it finds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::SignalTarget>")]
    pub signal: Option<Value>,
    /// The definition of the workflow declares the trigger; change it there.
    pub is_owned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// When the schedule fires next.
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
    /// An earlier request with the same idempotency key created it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// An entry in the log of a trigger.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryView {
    pub id: String,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    #[schemars(schema_with = "schema::delivery_outcome")]
    pub outcome: Word,
    /// Why the delivery was skipped, rejected or queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub run_id: Option<String>,
    /// The fire time of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub scheduled_for: Option<String>,
}

/// A fire time of a schedule.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FireTimeView {
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// The same time in the time zone of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub local: Option<String>,
    /// When the run starts: the fire time plus the jitter of the schedule.
    #[schemars(extend("format" = "date-time"))]
    pub starts_at: String,
}

/// What a webhook delivery did: started a run, or gave a signal to open runs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeliveredView {
    /// The run that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub run_id: Option<String>,
    pub delivery_id: String,
    /// The status of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::run_status")]
    pub status: Option<Word>,
    /// How many open runs got the signal; 0 if none matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub signalled: Option<u32>,
    /// An earlier request with the same delivery id or idempotency key did this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// Why a run or a step failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailureView {
    pub code: String,
    pub message: String,
    /// The step that made the run fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// A step of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct StepView {
    /// The name of the step; absent in `tasks` of a run, where the name is the key.
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
    /// The status of the HTTP response.
    pub status_code: Option<u16>,
    pub attempt: u32,
    pub duration_ms: Option<u64>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// When a sleeping step continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub wake_at: Option<String>,
    /// When a waiting step times out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub deadline: Option<String>,
    /// When a retrying step starts its next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The body was longer than 262,144 bytes and was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_because: Option<SkipView>,
    /// Of a group, its steps by status; of a loop, its iterations by status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<BTreeMap<String, u32>>,
    /// Of a group or a loop with `on_error: continue`: what failed inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<Value>,
    /// Of a `subworkflow` step: the run that its latest attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildView>,
    /// Of an `approval` step: what is or was to be approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalStepView>,
    /// In a fork, a step that did not run: `copied` if it ended so in the run that was forked, `given` if the request had
    /// its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["copied", "given"]))]
    pub copied: Option<Word>,
    /// Every attempt at the step, in order; only in `GET /runs/{run}/steps`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptView>,
}

/// The run that a step started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChildView {
    pub run_id: String,
    /// Its workflow, as the step names it.
    pub workflow: String,
    /// The step does not wait for the end of the run.
    pub detached: bool,
    /// How it ended, if the step waited for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::run_status")]
    pub status: Option<Word>,
}

/// The step that started a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ParentView {
    pub run_id: String,
    pub workflow: String,
    pub step: String,
    pub attempt: u32,
    /// How many runs are above this one.
    pub depth: u32,
    /// The step does not wait for the end of the run.
    pub detached: bool,
}

/// What an approval step asks.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalStepView {
    pub prompt: String,
    pub items: Value,
    /// Who may decide; empty if every actor may.
    pub approvers: Vec<String>,
    /// Names this approval in links and logs. Knowing it does not allow anything.
    pub token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::decision")]
    pub decision: Option<Word>,
}

/// One try at a step.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AttemptView {
    /// Its number, from 1 without gaps.
    pub attempt: u32,
    /// `running`, or how the attempt ended.
    #[schemars(schema_with = "schema::step_status")]
    pub status: Word,
    /// Whether the attempt counts against the retry policy of the step.
    pub charged: bool,
    /// The worker that leased the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The run that the attempt of a `subworkflow` step started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The status of the HTTP response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    pub duration_ms: Option<u64>,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
}

/// Why a step was skipped: its condition was false, or a step it needs did not succeed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SkipView {
    /// `condition_false`, `needs_not_successful`, `other_branch` (of a `conditional`) or `unknown`.
    pub reason: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The values that the condition read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saw: Option<Map<String, Value>>,
    /// The steps it needs that did not succeed, with their statuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Map<String, Value>>,
}

/// An event in the history of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventView {
    /// The number of the event, from 1 without gaps.
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
    /// The person or program that caused the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Details, which depend on the type.
    pub data: Value,
}

/// The status of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunStatusView {
    pub id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
}

/// The answer to a retry of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RunRetryView {
    Retried(RunStatusView),
    /// With `dry_run`.
    Planned(DryRunView),
}

/// The answer to a move of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RunMoveView {
    Moved(MovedView),
    /// With `dry_run`.
    Planned(DryRunView),
}

/// The version that a run has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MovedView {
    pub id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    pub version: u32,
}

/// What a request would lead to.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DryRunView {
    /// The steps that would run. A group or loop among them would start from scratch.
    pub would_run: Vec<String>,
    /// Those of them that have succeeded before.
    pub would_repeat: Vec<String>,
}

/// The server has accepted a callback.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReceivedView {
    pub received: bool,
}

/// The time of the engine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClockView {
    #[schemars(extend("format" = "date-time"))]
    pub now: String,
    /// `real` or `virtual`.
    pub clock: Word,
    /// How many runs continued because a time was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fired: Option<u64>,
}

/// The server's name, its version, and the path of its API.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VersionView {
    pub name: Word,
    pub version: Word,
    pub api: Word,
    /// Whether this server runs the commands of bash steps; only in the response to `GET /api/v1/version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bash: Option<BashView>,
}

/// Whether a server runs the commands of bash steps, and how well it contains them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BashView {
    pub enabled: bool,
    /// How well this machine contains commands: `none`, `supervised`, `restricted` or `isolated`. Absent if commands are
    /// not enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Word>,
    /// The level that is required. Below it, every bash step fails as `sandbox_unavailable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<Word>,
    /// Whether commands may use the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<bool>,
    /// How many commands run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// What was tried to find the level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<BashFeatureView>,
    /// Why this machine could not be examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One way to contain a command.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BashFeatureView {
    pub name: Word,
    pub available: bool,
    /// What was found, or why it is missing.
    pub why: String,
}

/// Why a run, or one of its steps, is in its state. The fields of the first cause stand here, too.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExplainView {
    pub run_id: String,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    #[serde(flatten)]
    pub first: CauseView,
    /// Every cause, the most urgent first: what is broken or needs a person, then what goes on by itself at some time,
    /// then what is merely at work.
    pub causes: Vec<CauseView>,
    /// How many causes there are beyond those listed.
    pub more_causes: u64,
}

/// One of the reasons for the state of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CauseView {
    #[schemars(schema_with = "schema::reason")]
    pub reason: Word,
    /// The reason as a sentence.
    pub summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The evidence for the reason.
    pub details: Value,
    /// Requests that are possible now. Send one as it is: `method`, `path` and `body`.
    pub next_actions: Vec<ActionView>,
    /// From the run to the root cause.
    pub chain: Vec<ChainLinkView>,
}

/// A request that is possible in the current state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ActionView {
    pub action: Word,
    pub method: Word,
    /// A path on this server, or the URL to call.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

/// One link in the chain of a cause.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChainLinkView {
    /// What the link is about: `run`, `step`, `workflow`, `type` or `clock`.
    pub what: Word,
    pub name: String,
    #[schemars(schema_with = "schema::reason")]
    pub reason: Word,
    pub summary: String,
}

/// What the open runs of a workflow wait for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitSummaryView {
    /// The most frequent first.
    pub data: Vec<WaitGroupView>,
    /// How many open runs were read.
    pub runs: u64,
    /// There are more open runs: only the newest were read.
    pub truncated: bool,
}

/// Open runs whose most urgent cause is the same.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitGroupView {
    #[schemars(schema_with = "schema::reason")]
    pub reason: Word,
    pub count: u64,
    /// The step, without the numbers of iterations: `each/charge` for `each[3]/charge`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The oldest of these runs.
    pub example_run: String,
}

/// One run of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BatchItemView {
    pub run_id: String,
    /// The status of the run; `deleted` if the run with the same idempotency key has been deleted.
    pub status: Word,
    /// An earlier request with the same idempotency key started the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// The run that a replay started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplayedView {
    pub run_id: String,
    /// The run that was replayed.
    pub replayed_from: String,
    pub workflow_id: String,
    pub status: Word,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    /// An earlier request with the same idempotency key started the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// The answer to a fork of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RunForkView {
    Forked(ForkedView),
    /// With `dry_run`.
    Planned(DryRunView),
}

/// The run that a fork started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ForkedView {
    pub run_id: String,
    /// The run that was forked.
    pub forked_from: String,
    pub workflow_id: String,
    pub status: Word,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    /// An earlier request with the same idempotency key started the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deduplicated: bool,
}

/// The run that a run is a fork of.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ForkPointView {
    pub run_id: String,
    /// The first step that ran again.
    pub step: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// How many runs a bulk request matched and changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunBulkView {
    pub matched: usize,
    pub changed: usize,
    /// The ids of the first 100 runs that matched.
    pub runs: Vec<String>,
    /// The ids of the first 100 runs that a replay started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub started: Vec<String>,
    /// The first 100 runs that were left as they are, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedRunView>,
    /// More runs may match: send the request again with this `cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A run that a bulk request left as it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RefusedRunView {
    pub run_id: String,
    /// The code of the error that a request for this run alone would get.
    pub code: Word,
    pub message: String,
}

/// An event in a stream, with its run and workflow.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StreamEventView {
    #[serde(flatten)]
    pub event: EventView,
    pub run_id: String,
    pub workflow: String,
}

/// The last message in the stream of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StreamEndView {
    pub run_id: String,
    /// The final status of the run; `deleted` if the run has been deleted.
    pub status: Word,
}
