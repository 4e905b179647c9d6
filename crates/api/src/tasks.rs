//! Tasks, workers and task types.

use crate::{Word, object, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A task to submit. Only `type` is required.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// The dotted name by which workers claim the task, such as `billing.invoice.v1`.
    #[serde(rename = "type")]
    #[schemars(extend("pattern" = "^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$"), length(min = 1, max = 200))]
    pub name: String,
    /// The input of the task, any JSON; by default `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub payload: Option<Box<RawValue>>,
    /// Tasks with a lower number go first; by default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub priority: Option<u32>,
    /// No worker gets the task before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub run_at: Option<String>,
    /// No worker gets the task before this long from now. Cannot be combined with `run_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_duration")]
    pub delay: Option<Value>,
    /// How often the task is attempted; by default 3. The same as `retry.max_attempts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_attempts")]
    pub max_attempts: Option<Value>,
    /// The retry policy, as on a step of a graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Value>,
    /// Any of `queue`, `attempt`, `heartbeat` and `total`, each a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Value>,
    /// Tasks with the same key share the limits per key of their type, and keys are served in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub concurrency_key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// A task with a key that was used before for this type is not created again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[\\x21-\\x7e]{1,255}$"))]
    pub idempotency_key: Option<String>,
    /// A URL that is called when the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
}

/// One task, or a list that is stored as a whole or not at all.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TaskRequests {
    Many(#[schemars(length(min = 1, max = 10_000))] Vec<TaskRequest>),
    One(Box<TaskRequest>),
}

/// A task that was submitted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SubmittedView {
    pub task_id: String,
    pub run_id: String,
    /// `deleted` if the task with the same idempotency key has been deleted.
    #[schemars(schema_with = "schema::submitted_status")]
    pub status: Word,
    /// An earlier request with the same idempotency key created the task.
    pub deduplicated: bool,
}

/// The submitted task, or a list in the order of the request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SubmittedViews {
    Many(Vec<SubmittedView>),
    One(SubmittedView),
}

/// Why a task, or one of its attempts, failed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskError {
    pub code: String,
    pub message: String,
}

/// A task and its state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    pub id: String,
    /// The run that the task belongs to.
    pub run_id: String,
    pub step: String,
    #[serde(rename = "type")]
    pub name: String,
    #[schemars(schema_with = "schema::task_status")]
    pub status: Word,
    /// The input of a single task; `null` for a step of a graph, whose input is computed when a worker claims it.
    pub input: Value,
    pub result: Value,
    /// The error of the task, or of its latest attempt that failed.
    pub error: Option<TaskError>,
    pub attempt: u32,
    pub max_attempts: u32,
    pub priority: u32,
    pub concurrency_key: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub run_at: Option<String>,
    /// The id of the worker that holds the task.
    pub leased_by: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub next_attempt_at: Option<String>,
    /// What a worker saved last.
    pub progress: Value,
    pub labels: BTreeMap<String, String>,
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// The workflow that the step belongs to; `null` for a single task.
    pub workflow: Option<String>,
    /// The new task that a retry of this failed task created.
    pub released_as: Option<String>,
}

/// The status of a task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatusView {
    pub task_id: String,
    #[schemars(schema_with = "schema::task_status")]
    pub status: Word,
}

/// A new task with the content of a failed one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReleasedView {
    pub task_id: String,
    pub run_id: String,
    /// The run of the failed task.
    pub replayed_from: String,
}

/// The new task if the task had failed, otherwise the task, whose next attempt is due now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RetriedView {
    Released(ReleasedView),
    Due(TaskStatusView),
}

/// What to do with the tasks that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    Cancel,
    Retry,
    Delete,
}

/// Selects tasks. A task must match every field that is given; an empty filter selects all tasks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkFilter {
    /// A type; with `%` at the end, every type with this prefix.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_task_status")]
    pub status: Option<String>,
    /// `key:value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_label")]
    pub label: Option<String>,
    /// Created at or after this time: an instant, or how long ago, such as `1h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Created before this time: an instant, or how long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Cancels, retries or deletes every task that matches a filter, at most 10,000 in one request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    pub action: BulkAction,
    #[serde(deserialize_with = "object::one")]
    pub filter: BulkFilter,
    /// Report what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The person or program that changes the tasks, for their history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
}

/// How many tasks a bulk request matched and changed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BulkView {
    pub matched: usize,
    pub changed: usize,
    /// The ids of the first 100 tasks.
    pub tasks: Vec<String>,
    /// The first 100 tasks that were left out because they cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<crate::UnreadableView>,
    /// More tasks match: send the request again.
    pub more: bool,
}

/// A worker's claim: which tasks it takes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    #[schemars(schema_with = "schema::name")]
    pub worker_id: String,
    /// The task types it claims; a type with `%` at the end stands for every type with this prefix.
    #[schemars(schema_with = "schema::type_patterns")]
    pub types: Vec<String>,
    /// How many tasks it takes at most; by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max: Option<u32>,
    /// How long it may keep a task without a heartbeat: 1s to 1h, by default 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_lease")]
    pub lease: Option<Value>,
    /// How long the server waits for a task before it responds with none: up to 60s, by default 20s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_wait")]
    pub wait: Option<Value>,
    /// The runtime of the worker, such as `python`. A type that is bound to another runtime is not claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_name")]
    pub runtime: Option<String>,
    /// The version of the worker's code, shown in the list of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_name")]
    pub version: Option<String>,
    /// How many tasks the worker can do at once, shown in the list of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub slots: Option<u32>,
}

/// A task that a worker has claimed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedView {
    pub task_id: String,
    #[serde(rename = "type")]
    pub task_type: String,
    #[schemars(with = "Value")]
    pub input: Box<RawValue>,
    pub attempt: u32,
    pub max_attempts: u32,
    /// Proves, in every report and heartbeat, that this worker holds the task.
    pub claim_token: String,
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: String,
    pub lease_ms: u64,
    pub run_id: String,
    pub step: String,
    /// The workflow that the step belongs to; `null` for a single task.
    pub workflow: Option<String>,
    /// The progress that an earlier attempt saved.
    #[schemars(with = "Value")]
    pub progress: Option<Box<RawValue>>,
    /// The same for every attempt: pass it to services that must not do the work twice.
    pub idempotency_key: String,
}

/// The tasks that a worker gets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedViews {
    pub data: Vec<ClaimedView>,
    /// Ids of tasks that this worker holds and that were cancelled: it should stop working on them.
    pub cancelled: Vec<String>,
}

/// Reports that an attempt succeeded.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    pub claim_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub result: Option<Box<RawValue>>,
}

/// Why an attempt failed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerError {
    pub message: String,
    /// A short name for programs, such as `card_declined`; by default `worker_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_code")]
    pub code: Option<String>,
}

/// Reports that an attempt failed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    pub claim_token: String,
    #[serde(deserialize_with = "object::one")]
    pub error: WorkerError,
    /// Another attempt would fail, too: the task fails now.
    #[serde(default, rename = "final")]
    pub is_final: bool,
    /// How long until the next attempt, instead of the delay of the retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_delay")]
    pub retry_after: Option<Value>,
}

/// Gives a task back. It can be claimed again later, and no attempt is charged.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnoozeRequest {
    pub claim_token: String,
    /// How long the task cannot be claimed: up to 30 days.
    #[serde(rename = "for")]
    #[schemars(schema_with = "schema::delay")]
    pub span: Value,
}

/// Extends a lease and saves progress.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    pub claim_token: String,
    /// How long the lease lasts from now; by default as long as when the task was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_lease")]
    pub extend: Option<Value>,
    /// Progress to save for the next attempt: any JSON up to 4 KB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub progress: Option<Box<RawValue>>,
}

/// The lease after a heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HeartbeatView {
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: String,
    /// The task was cancelled: the worker should stop.
    pub cancel: bool,
}

/// A line for the history of a task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// `debug`, `info`, `warning` or `error`; by default `info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_log_level")]
    pub level: Option<String>,
    pub message: String,
}

/// Adds lines to the history of a task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsRequest {
    pub claim_token: String,
    #[serde(deserialize_with = "object::many")]
    #[schemars(length(min = 1, max = 100))]
    pub lines: Vec<LogLine>,
}

/// How the server took a report.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReportedView {
    pub task_id: String,
    #[schemars(schema_with = "schema::ack")]
    pub status: Word,
}

/// How an attempt ended: with one of `result`, `error` and `snooze`; with none of them, the result is `null`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoneItem {
    #[schemars(schema_with = "schema::task_id")]
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
    #[schemars(schema_with = "schema::optional_delay")]
    pub retry_after: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_delay")]
    pub snooze: Option<Value>,
}

/// A heartbeat for one task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatItem {
    #[schemars(schema_with = "schema::task_id")]
    pub task_id: String,
    pub claim_token: String,
    /// How long the lease lasts from now; by default as long as when the task was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_lease")]
    pub extend: Option<Value>,
    /// Progress to save for the next attempt: any JSON up to 4 KB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub progress: Option<Box<RawValue>>,
}

/// A worker's reports, heartbeats and claim in one request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkRequest {
    #[schemars(schema_with = "schema::name")]
    pub worker_id: String,
    /// The task types it claims; a type with `%` at the end stands for every type with this prefix.
    #[schemars(schema_with = "schema::type_patterns")]
    pub types: Vec<String>,
    /// How many more tasks the worker takes. With 0, the server waits only for cancellations.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub credits: u32,
    /// How long the worker may keep a task without a heartbeat: 1s to 1h, by default 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_lease")]
    pub lease: Option<Value>,
    /// How long the server waits for a task before it responds with none: up to 60s, by default 20s. With `done`, it
    /// does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_wait")]
    pub wait: Option<Value>,
    /// Attempts that have ended.
    #[serde(default, deserialize_with = "object::many", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_000))]
    pub done: Vec<DoneItem>,
    /// Leases to extend.
    #[serde(default, deserialize_with = "object::many", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1_000))]
    pub heartbeats: Vec<HeartbeatItem>,
    /// The runtime of the worker, such as `python`. A type that is bound to another runtime is not claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_name")]
    pub runtime: Option<String>,
    /// The version of the worker's code, shown in the list of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_name")]
    pub version: Option<String>,
    /// How many tasks the worker can do at once, shown in the list of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4_294_967_295_u32))]
    pub slots: Option<u32>,
}

/// The lease of one task.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeaseView {
    pub task_id: String,
    /// `null` if this worker no longer holds the task.
    #[schemars(extend("format" = "date-time"))]
    pub lease_until: Option<String>,
    /// The task was cancelled or its lease was lost: the worker should stop.
    pub cancel: bool,
    /// `too_large`: the progress was not saved. The lease was extended all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Word>,
}

/// The response to a worker's reports, heartbeats and claim.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkView {
    /// How the server took each report, in the order of `done`.
    pub acks: Vec<ReportedView>,
    /// The leases in the order of `heartbeats`, then the other tasks of this worker that were cancelled.
    pub leases: Vec<LeaseView>,
    /// New tasks.
    pub tasks: Vec<ClaimedView>,
}

/// How many tasks of a type may be leased at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeLimits {
    /// How many of the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub limit: Option<u32>,
    /// How many with the same concurrency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub per_key: Option<u32>,
}

/// How many tasks of a type are given to workers in a period of time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeRate {
    /// How many tasks.
    #[schemars(range(min = 1, max = 100_000))]
    pub limit: u32,
    /// The length of the period; the limit holds for every period of this length.
    #[schemars(schema_with = "schema::period")]
    pub per: Value,
    /// Whether the limit is for each concurrency key instead of for the type.
    #[serde(default)]
    pub per_key: bool,
}

/// Registers or changes a task type. A field that is left out keeps its value; `null` removes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeRequest {
    /// Only workers of this runtime, or of none, get tasks of the type.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_name")]
    pub runtime: Option<Option<String>>,
    /// Whether tasks of the type can be submitted and claimed.
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

/// Distinguishes `null` (`Some(None)`) from a missing field (`None`).
fn given<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// The pause of a task type: when it began, and the `actor` and `note` of the request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TypePauseView {
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    pub by: String,
    pub note: String,
}

/// A task type.
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
    /// How many tasks wait to be claimed.
    pub ready: u64,
    /// How many tasks workers hold.
    pub leased: u32,
    /// How many workers claimed the type recently.
    pub workers: u32,
    /// How many single tasks wait for their next attempt; only in the response for a single type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrying: Option<u64>,
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
}

/// A worker that was seen in the last day.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    pub id: String,
    /// The task types it claims.
    pub types: Vec<String>,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    /// How many tasks it holds.
    pub leased: u32,
    #[schemars(extend("format" = "date-time"))]
    pub first_seen: String,
    #[schemars(extend("format" = "date-time"))]
    pub last_seen: String,
}
