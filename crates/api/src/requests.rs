//! Request bodies, except definitions and payloads of the caller.

use crate::{object, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Cancels a run or a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// The person or program that cancels, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Undo first what the run did: the steps with `compensate`, the latest first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compensate: bool,
}

/// Decides about a step of an open run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverrideRequest {
    /// The person or program that decides, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Change nothing, and answer what would follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Gives the result of a step of an open run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultRequest {
    /// What the step has as its body.
    pub result: Value,
    /// The person or program that decides, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Change nothing, and answer what would follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Pauses a run, a workflow or a task type.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// The person or program that pauses it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why it is paused, or what others should know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub note: String,
}

/// Resumes a run, a workflow or a task type, or retries a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// The person or program that resumes or retries it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
}

/// Retries a run. An open one starts the next attempts of its retrying steps now; one that failed or timed out goes on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// The person or program that retries, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history of a run that goes on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Of an open run, the step to retry; without it, every step that waits for its next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Of a run that failed or timed out, a step that runs again, too, with what depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Steps with `irreversible: true` that succeeded may run again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_irreversible: bool,
    /// Changes nothing, and answers which steps would run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Starts a new run from the input of an earlier one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    #[serde(default)]
    pub version: ReplayVersion,
    /// Repeat also what the steps did that are marked `irreversible` or `compensatable: false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_irreversible: bool,
    /// The person or program that starts the run. An approval can exclude the initiator of its run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
}

/// Starts a new run that takes over results of one that has ended, and goes on from one of its steps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// The first step that runs again. It is not inside a group or loop: name that.
    pub from: String,
    /// The input of the new run, if it is not that of the old one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object::value")]
    pub input: Option<Value>,
    /// Results of steps, by key. These steps do not run; what depends on them runs again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub results: BTreeMap<String, Value>,
    /// Repeat also what the steps did that are marked `irreversible` or `compensatable: false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_irreversible: bool,
    /// Starts no run, and answers which steps would run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The person or program that starts the run. An approval can exclude the initiator of its run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// Moves an open run to another version of its workflow.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The number of the version; without it, the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Changes nothing, and answers what would run at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The person or program that moves it, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// Cancels, retries or replays every run of a workflow form that matches a filter, at most 1,000 in one request. Single
/// tasks have a request of their own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunBulkRequest {
    pub action: RunBulkAction,
    #[serde(deserialize_with = "object::one")]
    pub filter: RunBulkFilter,
    /// Report what would change, and change nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// For `cancel`: the runs undo first what they did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compensate: bool,
    /// For `retry` and `replay`: also what the steps did that cannot be undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_irreversible: bool,
    /// For `replay`: the version of the new runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReplayVersion>,
    /// Go on after this run: `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The person or program that asks, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// What to do with the runs that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunBulkAction {
    /// Cancel those that are open.
    Cancel,
    /// Go on with those that failed or timed out.
    Retry,
    /// Start a new run from the input of each that has ended.
    Replay,
}

/// Selects runs. A run must match every field that is given; an empty filter selects all runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunBulkFilter {
    /// The id, slug or name of a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// A status, or several with commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// The version of the workflow that a replay runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayVersion {
    /// The version of the earlier run.
    #[default]
    Pinned,
    /// The current version of the workflow.
    Latest,
}

/// Runs to start together: all of them or none.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    #[schemars(length(min = 1, max = 1000))]
    pub items: Vec<BatchItem>,
}

/// One run of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchItem {
    /// The run's `trigger.body`.
    pub body: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^[\\x21-\\x7e]{1,255}$"))]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
}

/// Changes a workflow without changing its definition. A field that is left out keeps its value.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowChange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    /// An empty text removes the description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Moves a virtual clock forward.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdvanceRequest {
    #[schemars(schema_with = "schema::duration")]
    pub advance: Value,
}

/// A new trigger. The fields of `config` depend on the type.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRequest {
    #[schemars(length(min = 1, max = 80))]
    pub name: String,
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::trigger_type")]
    pub trigger_type: String,
    /// The id, name or slug of the workflow.
    pub workflow: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Map<String, Value>")]
    pub config: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable_mapping: Option<BTreeMap<String, String>>,
    /// The run's `trigger.body` when nothing arrives; fields of a body that arrives go over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Webhooks: give a signal to open runs, instead of starting one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SignalTarget")]
    pub signal: Option<Value>,
}

/// Which open runs of a webhook's workflow get a signal.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalTarget {
    /// The name of the signal.
    pub name: String,
    /// Where the value that finds the runs is in the payload, such as `$.order_id`.
    pub correlate: String,
    /// The runs get the signal whose label of this name has that value.
    pub label: String,
}

/// Changes a trigger. A field that is left out keeps its value, also in `config`; `null` removes a field of `config`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeTriggerRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 80))]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub workflow: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Map<String, Value>")]
    pub config: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable_mapping: Option<BTreeMap<String, String>>,
    /// The run's `trigger.body` when nothing arrives; fields of a body that arrives go over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Webhooks: give a signal to open runs, instead of starting one; `null` starts runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<SignalTarget>")]
    pub signal: Option<Value>,
}

/// Enables or disables a trigger.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchRequest {
    /// Why, for people who look at the trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub note: Option<String>,
}

/// Fires a trigger now.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FireRequest {
    /// The run's `trigger.body`, over the trigger's `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<Value>,
    /// The person or program that starts the run. An approval can exclude the initiator of its run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
}

/// Starts a run without a trigger.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManualRunRequest {
    /// The id, name or slug of the workflow.
    pub workflow: String,
    /// The run's `trigger.body`; by default an empty object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<Value>,
    /// An id of the caller: the same request sent again with the same id starts no second run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub client_request_id: Option<String>,
    /// The person or program that starts the run. An approval can exclude the initiator of its run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub actor: String,
}
