//! Runs as they were at an earlier event, and what changed since.

use crate::{FailureView, Word, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One event of a run, without its details.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventRefView {
    /// The number of the event, from 1 without gaps.
    pub seq: u64,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::event_type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// The event that a run is shown right after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AsOfView {
    #[serde(flatten)]
    pub event: EventRefView,
    /// The number of the run's last event so far.
    pub last_seq: u64,
}

/// What changed in a run between two of its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunDiffView {
    pub run_id: String,
    /// The run right after the earlier event.
    pub from: RunMomentView,
    /// The run right after the later event.
    pub to: RunMomentView,
    /// The number of the run's last event so far.
    pub last_seq: u64,
    /// The steps that are not the same at both events; at most 1,000.
    pub steps: Vec<StepChangeView>,
    /// How many steps are not the same, also beyond those in `steps`.
    pub changed_steps: usize,
    /// The events after `from`, up to and including `to`; the first 100 of them.
    pub events: Vec<EventRefView>,
    /// How many events these are, also beyond those in `events`.
    pub event_count: u64,
}

/// A run right after one of its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunMomentView {
    #[serde(flatten)]
    pub event: EventRefView,
    #[schemars(schema_with = "schema::run_status")]
    pub status: Word,
    /// The output of the run; only if there is one, and it is not the same at the other event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why the run failed; only if it had, and that is not the same at the other event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
}

/// A step that is not the same at two events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepChangeView {
    pub step: String,
    /// `null` if the step did not exist yet: it is inside a group or a loop.
    pub from: Option<StepMomentView>,
    pub to: StepMomentView,
}

/// A step right after an event of its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepMomentView {
    #[schemars(schema_with = "schema::step_status")]
    pub status: Word,
    pub attempt: u32,
    /// The status of the HTTP response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub finished_at: Option<String>,
    /// When a step that sleeps, waits or retries goes on by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureView>,
}
