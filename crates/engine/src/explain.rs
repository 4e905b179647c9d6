//! `explain`: why a run or a step is in its state, and what a user can do about it.
//!
//! A pure function of the stored run and a few facts from elsewhere ([`ExplainFacts`]): the same input always gives the same
//! explanation. It covers every state, for the run as a whole or for one step. An explanation has a reason (a fixed
//! word), a sentence, the evidence, and actions that are valid in that state.

mod run;
mod step;

use crate::concurrency_groups::QueueStatus;
use crate::execute::HttpQueuePosition;
use crate::services::run_queries::Reading;
use crate::task_queue::ClaimStatus;
use kernel::event::Failure;
use kernel::{Plan, Reason, Timestamp};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt::Display;
use store::{NotificationRow, WorkflowPause};

/// The most inner steps at work that an explanation names.
const INSIDE_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub reason: Reason,
    pub summary: String,
    pub step: Option<String>,
    pub details: Value,
    pub next_actions: Vec<Action>,
    /// From the run to the root cause.
    pub chain: Vec<Cause>,
}

/// An API call that the user can make now.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    pub action: &'static str,
    pub method: &'static str,
    pub path: String,
    pub body: Option<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// `run`, `step`, `workflow` or `type`.
    pub what: &'static str,
    pub name: String,
    pub reason: Reason,
    pub summary: String,
}

/// Facts that are not in the run's own records.
#[derive(Default)]
pub struct ExplainFacts<'a> {
    /// For a queued run: which runs of its concurrency group it waits for.
    pub queue_status: Option<QueueStatus>,
    pub pause: Option<WorkflowPause>,
    /// Notifications of the run's end that are not delivered yet.
    pub notifications: Vec<NotificationRow>,
    /// The position of an attempt's HTTP request in the queue, by the attempt's fence.
    pub queued: Option<&'a dyn Fn(u64) -> Option<HttpQueuePosition>>,
    /// The callback URL of a wait step.
    pub wait_url: Option<&'a dyn Fn(&str) -> String>,
    /// For tasks that wait for a worker: their status in the task queue.
    pub claim_statuses: Vec<(u32, ClaimStatus)>,
    /// For leased tasks: the deadline of the lease.
    pub leases: Vec<(u32, Timestamp)>,
}

/// Explains the run, or one step of it; `None` if it has no such step.
pub fn explain(reading: &Reading, around: &ExplainFacts<'_>, step: Option<&str>) -> Option<Explanation> {
    let case = Case { reading, around, plan: &reading.version.plan };
    match step {
        None => Some(case.run()),
        Some(key) => case.reading.run.find(case.plan, key).map(|step| case.step(step)),
    }
}

struct Case<'a> {
    reading: &'a Reading,
    around: &'a ExplainFacts<'a>,
    plan: &'a Plan,
}

impl Case<'_> {
    /// An explanation of the run as a whole.
    fn run_explanation(&self, reason: Reason, summary: String, mut details: Value) -> Explanation {
        self.add_end_details(&mut details);
        let chain = vec![Cause { summary: summary.clone(), ..self.link_to_run(reason) }];
        Explanation { reason, summary, step: None, details, next_actions: self.actions(), chain }
    }

    /// Adds the details that every ended run has.
    fn add_end_details(&self, details: &mut Value) {
        let Value::Object(details) = details else { return };
        if !self.reading.run.is_terminal() {
            return;
        }
        details.insert("replay".into(), json!({ "allowed": true }));
        let pending: Vec<Value> = self
            .around
            .notifications
            .iter()
            .map(|n| json!({ "number": n.number, "error": Some(&n.error).filter(|e| !e.is_empty()) }))
            .collect();
        if !pending.is_empty() {
            details.insert("notices_pending".into(), json!(pending));
        }
    }

    fn link_to_run(&self, reason: Reason) -> Cause {
        let run = &self.reading.run;
        let name = self.reading.row.id.to_string();
        link("run", &name, reason, format!("the run of `{}` is {}", self.reading.row.workflow_name, run.status()))
    }

    /// The actions that the run's state allows.
    fn actions(&self) -> Vec<Action> {
        match self.reading.run.is_terminal() {
            true => vec![self.action("replay", "replay", None)],
            false => {
                let path = format!("/api/v1/runs/{}", self.reading.row.id);
                let wait = Action { action: "wait", method: "GET", path, body: None };
                vec![wait, self.action("cancel", "cancel", None)]
            }
        }
    }

    fn action(&self, action: &'static str, verb: &str, body: Option<Value>) -> Action {
        let path = format!("/api/v1/runs/{}/{verb}", self.reading.row.id);
        Action { action, method: "POST", path, body }
    }

    fn key(&self, step: u32) -> Cow<'_, str> {
        self.reading.key(step)
    }

    fn status(&self, step: u32) -> &'static str {
        self.reading.run.step(step).status().as_str()
    }

    fn is_open(&self, step: u32) -> bool {
        self.reading.run.step(step).outcome().is_none()
    }
}

fn link(what: &'static str, name: &str, reason: Reason, summary: String) -> Cause {
    Cause { what, name: name.to_owned(), reason, summary }
}

/// The actor and the note of a pause, where they are given.
fn paused_by(actor: &str, note: &str) -> String {
    let who = if actor.is_empty() { String::new() } else { format!(" by {actor}") };
    let why = if note.is_empty() { String::new() } else { format!(" ({note})") };
    who + &why
}

fn error(failure: &Failure) -> Value {
    json!({ "code": failure.code, "message": failure.message })
}

/// The values an expression read; a truncated one is no longer JSON and is shown as text.
fn saw(seen: &[kernel::expr::Seen]) -> Value {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    Value::Object(seen.iter().map(|s| (s.path.clone(), value(&s.value))).collect())
}

fn names(steps: &[impl Display]) -> String {
    let quoted: Vec<String> = steps.iter().take(5).map(|step| format!("`{step}`")).collect();
    let more = steps.len().saturating_sub(5);
    let list = quoted.join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}
