//! `explain`: why a run or a step is in its state, and what a user can do about it.
//!
//! A pure function of the stored run and a few facts from elsewhere ([`ExplainFacts`]): the same input always gives the same
//! explanation. It covers every state, for the run as a whole or for one step. An open run has a cause for each step
//! that is at work or waits, and for each failure that nothing handles; the most urgent cause is the first. A cause has
//! a reason (a fixed word), a sentence, the evidence, and actions that are valid in that state. Its chain leads from the
//! run to the root cause, also through the runs that steps wait for.

mod open;
mod run;
mod step;
#[cfg(test)]
mod tests;

use crate::concurrency_groups::QueueStatus;
use crate::execute::HttpQueuePosition;
use crate::services::run_queries::Reading;
use crate::task_queue::ClaimStatus;
use kernel::advance::{NotificationNumber, UnrepeatableStep, repair, unrepeatable_steps};
use kernel::event::Failure;
use kernel::{Plan, Reason, RunId, RunStatus, Timestamp};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use store::{NotificationRow, WorkflowPause};

/// The most causes of an explanation.
pub const CAUSES_MAX: usize = 100;
/// The most steps that a list in the details names.
const INSIDE_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The most urgent first. Never empty.
    pub causes: Vec<Cause>,
    /// How many causes there are beyond [`CAUSES_MAX`].
    pub omitted: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: Reason,
    pub summary: String,
    pub step: Option<String>,
    pub details: Value,
    pub next_actions: Vec<Action>,
    /// From the run to the root cause.
    pub chain: Vec<ChainLink>,
    pub urgency: Urgency,
    /// The sentence about the root cause, if that is in another run.
    root: Option<String>,
}

/// Which cause comes first: what is broken or needs a person, then what goes on by itself at some time, then what is
/// merely at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A failure that nothing handles.
    Failed,
    /// Something was paused or disabled, or the server cannot go on.
    Blocked,
    NoWorker,
    /// A person decides.
    Decision,
    Until(Timestamp),
    AtWork,
}

/// An API call that the user can make now.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    pub action: &'static str,
    pub method: &'static str,
    pub path: String,
    pub body: Option<Value>,
}

/// One link in the chain of a cause.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainLink {
    /// `run`, `step`, `workflow`, `type` or `clock`.
    pub what: &'static str,
    pub name: String,
    pub reason: Reason,
    pub summary: String,
}

/// Facts that are not in the run's own records.
#[derive(Default)]
pub struct ExplainFacts<'a> {
    pub now: Timestamp,
    /// The workflow, or the type of a single task, as it is now.
    pub definition: Option<Definition>,
    /// For a queued run: which runs of its concurrency group it waits for.
    pub queue_status: Option<QueueStatus>,
    pub pause: Option<WorkflowPause>,
    /// Notifications of the run's end that are not delivered yet.
    pub notifications: Vec<NotificationRow>,
    /// The position of an attempt's HTTP request in the queue, by the attempt's fence.
    pub queued: Option<&'a (dyn Fn(u64) -> Option<HttpQueuePosition> + Sync)>,
    /// The callback URL of a wait step.
    pub wait_url: Option<&'a (dyn Fn(&str) -> String + Sync)>,
    /// For types and keys of tasks that wait for a worker: their status in the task queue.
    pub claim_statuses: Option<&'a ClaimStatuses>,
    /// For leased tasks: the deadline of the lease.
    pub leases: Vec<(u32, Timestamp)>,
    /// The first causes of runs that this one started.
    pub children: Option<&'a BTreeMap<RunId, Cause>>,
    /// Set if this node fires no timers and leases no tasks because its clock is wrong: by how much.
    pub clock: Option<String>,
}

/// By type and key.
pub type ClaimStatuses = BTreeMap<(String, String), ClaimStatus>;

/// What a run was started from, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The current version; `None` if there are no numbered versions, or if the workflow was deleted.
    pub version: Option<u32>,
    /// Whether it accepts new runs.
    pub is_enabled: bool,
}

/// Explains the run, or one step of it; `None` if it has no such step.
pub fn explain(reading: &Reading, around: &ExplainFacts<'_>, step: Option<&str>) -> Option<Explanation> {
    let case = Case { reading, around, plan: &reading.version.plan };
    match step {
        None => Some(case.run(CAUSES_MAX)),
        Some(key) => reading.run.find(case.plan, key).map(|step| case.step_and_inside(step)),
    }
}

/// The most urgent cause of the run's state.
pub fn first_cause(reading: &Reading, around: &ExplainFacts<'_>) -> Option<Cause> {
    let case = Case { reading, around, plan: &reading.version.plan };
    case.run(1).causes.into_iter().next()
}

struct Case<'a> {
    reading: &'a Reading,
    around: &'a ExplainFacts<'a>,
    plan: &'a Plan,
}

impl Case<'_> {
    /// The run as a whole as a cause.
    fn run_cause(&self, urgency: Urgency, reason: Reason, summary: String, mut details: Value) -> Cause {
        self.add_run_details(&mut details);
        let chain = vec![ChainLink { summary: summary.clone(), ..self.link_to_run(reason) }];
        Cause { reason, summary, step: None, details, next_actions: self.actions(), chain, urgency, root: None }
    }

    /// Adds the details that the first cause of every run has.
    fn add_run_details(&self, details: &mut Value) {
        let Value::Object(details) = details else { return };
        if let Some(current) = self.newer_version() {
            details.insert(
                "definition".into(),
                json!({ "version": self.reading.row.version, "current_version": current }),
            );
        }
        if !self.reading.run.is_terminal() {
            return;
        }
        let unrepeatable = self.unrepeatable();
        let replay = match self.replay_refusal() {
            Some(because) => json!({ "allowed": false, "because": because }),
            None if unrepeatable.is_empty() => json!({ "allowed": true }),
            None => json!({
                "allowed": false,
                "because": "it would repeat what can be neither undone nor repeated",
                "required_override": "allow_irreversible",
                "blocked_by": unrepeatable.iter().map(|step| {
                    json!({ "step": step.key, "irreversible": step.is_irreversible, "compensatable": false })
                }).collect::<Vec<Value>>(),
            }),
        };
        details.insert("replay".into(), replay);
        let pending: Vec<Value> = self
            .around
            .notifications
            .iter()
            .map(|n| (NotificationNumber::read(n.number).index, n))
            .map(|(index, n)| json!({ "number": index, "error": Some(&n.error).filter(|e| !e.is_empty()) }))
            .collect();
        if !pending.is_empty() {
            details.insert("notices_pending".into(), json!(pending));
        }
    }

    fn link_to_run(&self, reason: Reason) -> ChainLink {
        let Reading { row, run, .. } = self.reading;
        let version = match self.newer_version() {
            Some(current) => format!(" (version {}; the current one is {current})", row.version),
            None => String::new(),
        };
        let summary = format!("the run of `{}`{version} is {}", row.workflow_name, run.status());
        link("run", &row.id.to_string(), reason, summary)
    }

    /// The current version of the workflow, if the run uses an earlier one.
    fn newer_version(&self) -> Option<u32> {
        self.around.definition?.version.filter(|current| *current > self.reading.row.version)
    }

    /// Why an ended run cannot be replayed; `None` if it can.
    fn replay_refusal(&self) -> Option<String> {
        let name = &self.reading.row.workflow_name;
        match self.around.definition {
            Some(Definition { is_enabled: false, .. }) if self.is_single_task() => {
                Some(format!("the type `{name}` is disabled"))
            }
            Some(Definition { is_enabled: false, .. }) => Some(format!("the workflow `{name}` is disabled")),
            _ => None,
        }
    }

    /// The steps that keep the run from being replayed without an override.
    fn unrepeatable(&self) -> Vec<UnrepeatableStep> {
        unrepeatable_steps(self.plan, &self.reading.run)
    }

    fn is_single_task(&self) -> bool {
        self.reading.row.form == kernel::plan::Form::Task
    }

    /// The actions that the run's state allows.
    fn actions(&self) -> Vec<Action> {
        if !self.reading.run.is_terminal() {
            return vec![self.wait(), self.action("cancel", "cancel", None)];
        }
        if self.replay_refusal().is_some() {
            let enable = match self.is_single_task() {
                true => enable_type(&self.reading.row.workflow_name),
                false => {
                    let path = format!("/api/v1/workflows/{}/enable", self.reading.row.workflow);
                    Action { action: "enable", method: "POST", path, body: None }
                }
            };
            return vec![enable];
        }
        if !self.unrepeatable().is_empty() {
            return self.retry().into_iter().collect();
        }
        let replay = |action, version: Option<&str>| {
            self.action(action, "replay", version.map(|version| json!({ "version": version })))
        };
        let latest = self.newer_version().map(|_| replay("replay_latest", Some("latest")));
        self.retry().into_iter().chain([replay("replay", None)]).chain(latest).collect()
    }

    /// Retrying a run that failed or timed out, if nothing irreversible would be done twice.
    fn retry(&self) -> Option<Action> {
        let run = &self.reading.run;
        let is_attached = run.state.origin.parent.as_ref().is_some_and(|parent| !parent.is_detached);
        let can_go_on = matches!(run.status(), RunStatus::Failed | RunStatus::Timeout) && !is_attached;
        let is_safe = || repair(self.plan, run, &[]).irreversible.is_empty();
        (can_go_on && is_safe()).then(|| self.action("retry", "retry", Some(json!({}))))
    }

    fn wait(&self) -> Action {
        Action { action: "wait", method: "GET", path: format!("/api/v1/runs/{}", self.reading.row.id), body: None }
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

    /// The status of each of these steps, by key.
    fn statuses(&self, steps: &[u32]) -> Map<String, Value> {
        steps.iter().map(|step| (self.key(*step).into_owned(), json!(self.status(*step)))).collect()
    }
}

impl Explanation {
    fn of(cause: Cause) -> Explanation {
        Explanation { causes: vec![cause], omitted: 0 }
    }

    pub fn first(&self) -> &Cause {
        &self.causes[0]
    }
}

impl Cause {
    /// What a run that waits for this one says about the root cause.
    fn root(&self) -> &str {
        self.root.as_deref().unwrap_or(&self.summary)
    }

    fn add(&mut self, name: &str, value: Value) {
        if let Value::Object(details) = &mut self.details {
            details.insert(name.into(), value);
        }
    }
}

fn link(what: &'static str, name: &str, reason: Reason, summary: String) -> ChainLink {
    ChainLink { what, name: name.to_owned(), reason, summary }
}

fn enable_type(name: &str) -> Action {
    let path = format!("/api/v1/types/{name}");
    Action { action: "enable_type", method: "PUT", path, body: Some(json!({ "enabled": true })) }
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

/// How long it is until then, as people say it: `40 s`, `5 min`, `3 h`, `2 days`.
fn remaining(now: Timestamp, at: Timestamp) -> String {
    let seconds = at.since(now).millis().div_ceil(1_000);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
