//! What the model knows: workflows, runs, tasks and triggers, and the keys of requests.

use crate::harness::Claimed;
use serde_json::{Value, json};

/// What the only step of a workflow does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The run completes by itself.
    Ends,
    /// The run fails by itself: a template has no value.
    Fails,
    /// The run waits for a callback that never comes.
    Waits,
    /// A worker does the step.
    Works,
}

pub const KINDS: [Kind; 4] = [Kind::Ends, Kind::Fails, Kind::Waits, Kind::Works];

impl Kind {
    pub fn step(self, task_type: &str) -> Value {
        match self {
            Kind::Ends => json!({ "log": { "message": "hello" } }),
            Kind::Fails => json!({ "set": { "x": "{{trigger.body.missing}}" } }),
            Kind::Waits => json!({ "wait_for_webhook": { "timeout": "1h" } }),
            Kind::Works => json!({ "task": task_type, "input": { "n": "{{trigger.body.n}}" } }),
        }
    }
}

#[derive(Debug)]
pub struct Workflow {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    pub version: u64,
    pub is_enabled: bool,
    pub is_paused: bool,
    pub is_deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Its workflow is paused.
    Queued,
    Open,
    Completed,
    Failed,
    Cancelled,
}

impl RunState {
    pub fn is_ended(self) -> bool {
        !matches!(self, RunState::Queued | RunState::Open)
    }

    /// The statuses that the API may show.
    pub fn statuses(self) -> &'static [&'static str] {
        match self {
            RunState::Queued => &["pending"],
            RunState::Open => &["running", "waiting"],
            RunState::Completed => &["completed"],
            RunState::Failed => &["failed"],
            RunState::Cancelled => &["cancelled"],
        }
    }
}

#[derive(Debug)]
pub struct Run {
    pub id: String,
    /// `None` for a task without a workflow.
    pub workflow: Option<usize>,
    pub kind: Kind,
    pub version: u64,
    pub state: RunState,
    pub is_paused: bool,
    pub is_deleted: bool,
    pub n: u64,
    pub label: Option<&'static str>,
    /// The lease of the worker that does its step.
    pub lease: Option<Claimed>,
}

impl Run {
    /// Whether a worker can claim its step.
    pub fn is_claimable(&self) -> bool {
        let is_free = self.lease.is_none() && !self.is_paused && !self.is_deleted;
        self.kind == Kind::Works && self.state == RunState::Open && is_free
    }
}

/// What a request with a key said, and the run that it created.
#[derive(Clone, Debug)]
pub struct Keyed {
    pub n: u64,
    pub label: Option<&'static str>,
    pub run: usize,
}

#[derive(Debug)]
pub struct Trigger {
    pub id: String,
    pub workflow: usize,
    pub is_enabled: bool,
}
