//! Tasks, the workers that do them and the types that both go by.

use crate::{Word, object, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A task to be recorded. Only `type` is needed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// The dotted name workers claim by, as in `billing.invoice.v1`.
    #[serde(rename = "type")]
    #[schemars(extend("pattern" = "^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$"), length(min = 1, max = 200))]
    pub name: String,
    /// What the worker gets as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub payload: Option<Box<RawValue>>,
    /// Lower goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub priority: Option<u32>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub run_at: Option<String>,
    /// The same, from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub delay: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_attempts")]
    pub max_attempts: Option<Value>,
    /// As on a graph's step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Value>,
    /// `queue`, `attempt`, `heartbeat` and `total`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Value>,
    /// Tasks with the same key share the type's limits per key, and keys are served in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub concurrency_key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[\\x21-\\x7e]{1,255}$"))]
    pub idempotency_key: Option<String>,
    /// Called when the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
}

/// One task, or many that are recorded together.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TaskRequests {
    Many(#[schemars(length(min = 1, max = 10_000))] Vec<TaskRequest>),
    One(Box<TaskRequest>),
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SubmittedView {
    pub task_id: String,
    pub run_id: String,
    #[schemars(schema_with = "schema::submitted_status")]
    pub status: Word,
    pub deduplicated: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SubmittedViews {
    Many(Vec<SubmittedView>),
    One(SubmittedView),
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskError {
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    pub id: String,
    pub run_id: String,
    pub step: String,
    #[serde(rename = "type")]
    pub name: String,
    #[schemars(schema_with = "schema::task_status")]
    pub status: Word,
    /// Of a plain task; what a graph gives to a step is worked out when it is claimed.
    pub input: Value,
    pub result: Value,
    /// Of the latest attempt that failed, or of the task.
    pub error: Option<TaskError>,
    pub attempt: u32,
    pub max_attempts: u32,
    pub priority: u32,
    pub concurrency_key: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub run_at: Option<String>,
    pub leased_by: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub next_attempt_at: Option<String>,
    pub progress: Value,
    pub labels: BTreeMap<String, String>,
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// Whose step it is; nothing for a plain task.
    pub workflow: Option<String>,
    /// The task that took the place of this one, which failed.
    pub released_as: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatusView {
    pub task_id: String,
    #[schemars(schema_with = "schema::task_status")]
    pub status: Word,
}

/// The same work again, as a new task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReleasedView {
    pub task_id: String,
    pub run_id: String,
    pub replayed_from: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RetriedView {
    Released(ReleasedView),
    Due(TaskStatusView),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    Cancel,
    Retry,
    Delete,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkFilter {
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_task_status")]
    pub status: Option<String>,
    /// `key:value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub since: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub until: Option<String>,
}

/// The same for many tasks. An empty filter means all of them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    pub action: BulkAction,
    #[serde(deserialize_with = "object::one")]
    pub filter: BulkFilter,
    /// Only say what would be changed.
    #[serde(default)]
    pub dry_run: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BulkView {
    pub matched: usize,
    pub changed: usize,
    /// The first of them.
    pub tasks: Vec<String>,
    /// There are more; call again.
    pub more: bool,
}

/// What a worker would do.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    #[schemars(length(min = 1, max = 200))]
    pub worker_id: String,
    /// Names of types; a `%` at the end stands for anything.
    #[schemars(length(min = 1, max = 100))]
    pub types: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub lease: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub wait: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub runtime: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// A task in a worker's hands.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedView {
    pub task_id: String,
    #[serde(rename = "type")]
    pub name: String,
    #[schemars(with = "Value")]
    pub input: Box<RawValue>,
    pub attempt: u32,
    pub max_attempts: u32,
    /// Shown with every report; nobody else has it.
    pub claim_token: String,
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: String,
    pub lease_ms: u64,
    pub run_id: String,
    pub step: String,
    /// Whose step it is; nothing for a plain task.
    pub workflow: Option<String>,
    /// What an earlier attempt saved.
    #[schemars(with = "Value")]
    pub progress: Option<Box<RawValue>>,
    /// The same for every attempt: for whoever must not do something twice.
    pub idempotency_key: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedViews {
    pub data: Vec<ClaimedView>,
    /// Tasks this worker has and nobody wants any more.
    pub cancelled: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    pub claim_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub result: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerError {
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    pub claim_token: String,
    #[serde(deserialize_with = "object::one")]
    pub error: WorkerError,
    /// It will not work next time either.
    #[serde(default, rename = "final")]
    pub is_final: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub retry_after: Option<Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnoozeRequest {
    pub claim_token: String,
    #[serde(rename = "for")]
    #[schemars(schema_with = "schema::duration")]
    pub span: Value,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    pub claim_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub extend: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub progress: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HeartbeatView {
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: String,
    /// Nobody wants the result any more.
    pub cancel: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    pub message: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsRequest {
    pub claim_token: String,
    #[serde(deserialize_with = "object::many")]
    #[schemars(length(min = 1, max = 100))]
    pub lines: Vec<LogLine>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReportedView {
    pub task_id: String,
    #[schemars(schema_with = "schema::ack")]
    pub status: Word,
}

/// How one attempt ended: with a `result`, an `error`, or a wish to `snooze`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoneItem {
    pub task_id: String,
    pub claim_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub result: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "object::maybe", skip_serializing_if = "Option::is_none")]
    pub error: Option<WorkerError>,
    #[serde(default, rename = "final")]
    pub is_final: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub retry_after: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub snooze: Option<Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatItem {
    pub task_id: String,
    pub claim_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub extend: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub progress: Option<Box<RawValue>>,
}

/// Everything a worker has to say and to ask, in one round trip.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkRequest {
    #[schemars(length(min = 1, max = 200))]
    pub worker_id: String,
    #[schemars(length(min = 1, max = 100))]
    pub types: Vec<String>,
    /// How many more tasks it would take.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub credits: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub lease: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub wait: Option<Value>,
    #[serde(default, deserialize_with = "object::many", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_000))]
    pub done: Vec<DoneItem>,
    #[serde(default, deserialize_with = "object::many", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_000))]
    pub heartbeats: Vec<HeartbeatItem>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub runtime: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeaseView {
    pub task_id: String,
    /// Nothing when it is this worker's no longer.
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: Option<String>,
    pub cancel: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkView {
    /// In the order of `done`.
    pub acks: Vec<ReportedView>,
    /// In the order of `heartbeats`; then what was cancelled meanwhile.
    pub leases: Vec<LeaseView>,
    pub tasks: Vec<ClaimedView>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeLimits {
    /// How many tasks may be leased at once…
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub limit: Option<u32>,
    /// …and how many of one concurrency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub per_key: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeRate {
    /// How many tasks are handed out…
    #[schemars(range(min = 1, max = 100_000))]
    pub limit: u32,
    /// …in any stretch of this length…
    #[schemars(schema_with = "schema::duration")]
    pub per: Value,
    /// …of the type, or of each concurrency key.
    #[serde(default)]
    pub per_key: bool,
}

/// What is to be known about a type. What is left out stays; `null` takes it away.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeRequest {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 200))]
    pub runtime: Option<Option<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 2_000))]
    pub description: Option<Option<String>>,
    #[serde(default, deserialize_with = "object::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TypeLimits>")]
    pub concurrency: Option<Option<TypeLimits>>,
    #[serde(default, deserialize_with = "object::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TypeRate>")]
    pub rate: Option<Option<TypeRate>>,
}

/// Tells `null` from nothing.
fn given<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TypePauseView {
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    pub by: String,
    pub note: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TypeView {
    #[serde(rename = "type")]
    pub name: String,
    pub runtime: Option<String>,
    pub description: Option<String>,
    pub enabled: bool,
    pub paused: Option<TypePauseView>,
    pub concurrency: Option<TypeLimits>,
    pub rate: Option<TypeRate>,
    /// Tasks that wait to be claimed.
    pub ready: u64,
    /// Tasks that workers have.
    pub leased: u32,
    /// Workers that claim it and were heard of lately.
    pub workers: u32,
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    pub id: String,
    /// What it claims.
    pub types: Vec<String>,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    /// Tasks it has.
    pub leased: u32,
    #[schemars(extend("format" = "date-time"))]
    pub first_seen: String,
    #[schemars(extend("format" = "date-time"))]
    pub last_seen: String,
}
