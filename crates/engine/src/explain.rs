//! `explain`: why a run or a step is in its state, and what a user can do about it.
//!
//! A pure function of the stored run and a few facts from elsewhere ([`ExplainFacts`]): the same input always gives the same
//! explanation. It covers every state, for the run as a whole or for one step. An explanation has a reason (a fixed
//! word), a sentence, the evidence, and actions that are valid in that state.

use crate::concurrency_groups::QueueStatus;
use crate::execute::HttpQueuePosition;
use crate::secret;
use crate::services::run_queries::Reading;
use crate::task_queue::{BlockedReason, ClaimStatus};
use kernel::advance::{NotificationNumber, repair};
use kernel::event::{Because, Failure, Queue};
use kernel::plan::Body;
use kernel::run::{Phase, Step};
use kernel::{Plan, Reason, RunStatus, StepStatus, Timestamp};
use serde_json::{Map, Value, json};
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
    fn run(&self) -> Explanation {
        let state = &self.reading.run.state;
        match state.status {
            RunStatus::Pending => self.queued(state.queued.unwrap_or(Queue::Limit)),
            RunStatus::Running | RunStatus::Waiting => self.open(),
            RunStatus::Compensating => self.compensating(),
            RunStatus::Cancelling => self.cancelling(),
            RunStatus::Completed => self.completed(),
            RunStatus::Failed => self.failed(),
            RunStatus::Cancelled => self.cancelled(),
            RunStatus::Timeout => self.expired(),
        }
    }

    /// A run that has not started: it is scheduled for later, paused, or queued by its concurrency group.
    fn queued(&self, reason: Queue) -> Explanation {
        let state = &self.reading.run.state;
        let workflow = &self.reading.row.workflow_name;
        if let Some(at) = state.origin.run_at.filter(|_| reason == Queue::Later) {
            let summary = format!("the run is scheduled for {at}");
            return self.run_explanation(Reason::ScheduledForLater, summary, json!({ "run_at": at.to_string() }));
        }
        let queue_status = self.around.queue_status.as_ref();
        if reason == Queue::WorkflowPaused && self.around.pause.is_some()
            || queue_status.is_some_and(|queue_status| queue_status.is_paused)
        {
            let pause = self.around.pause.as_ref();
            let mut explanation = self.run_explanation(
                Reason::PausedForManualAction,
                format!(
                    "the workflow `{workflow}` is paused{}; this run starts when it is resumed",
                    pause.map_or_else(String::new, |p| paused_by(&p.actor, &p.note))
                ),
                json!({
                    "target": "workflow", "workflow": workflow,
                    "paused_by": pause.map(|p| &p.actor), "note": pause.map(|p| &p.note),
                    "paused_at": pause.map(|p| p.at.to_string()),
                }),
            );
            let path = format!("/api/v1/workflows/{}/resume", self.reading.row.workflow);
            explanation.next_actions.insert(0, Action { action: "resume", method: "POST", path, body: None });
            explanation.chain.push(link("workflow", workflow, Reason::PausedForManualAction, "it is paused".into()));
            return explanation;
        }
        let concurrency_group = state.origin.concurrency_group.as_ref();
        let limit = queue_status
            .map_or(concurrency_group.map_or(0, |concurrency_group| concurrency_group.limit), |queue_status| {
                queue_status.limit
            });
        let holders: Vec<String> = queue_status
            .map(|queue_status| queue_status.holders.iter().map(|run| run.to_string()).collect())
            .unwrap_or_default();
        let ahead = queue_status.map_or(0, |queue_status| queue_status.ahead);
        let key = concurrency_group.map_or("", |concurrency_group| concurrency_group.key.as_str());
        let under = if key.is_empty() { String::new() } else { format!(" with the key `{key}`") };
        let summary = format!(
            "`{workflow}` allows {limit} open {}{under}, and {} before this one",
            if limit == 1 { "run" } else { "runs" },
            match ahead {
                0 => "no run queues".to_owned(),
                1 => "1 run queues".to_owned(),
                n => format!("{n} runs queue"),
            }
        );
        let details = json!({
            "limit": "concurrency", "allowed": limit, "key": key, "held_by": holders, "queued_before": ahead,
        });
        let mut explanation = self.run_explanation(Reason::QueuedByLimit, summary, details);
        let holding = |run: &String| link("run", run, Reason::StepRunning, "it counts towards the limit".into());
        explanation.chain.extend(holders.iter().map(holding));
        explanation
    }

    /// A run that has started and not ended: paused, with steps under way, or waiting.
    fn open(&self) -> Explanation {
        let run = &self.reading.run;
        let steps = || run.steps();
        let is_under_way = |step: &Step| matches!(step.phase, Phase::Running { .. } | Phase::Leased { .. });
        let running = || steps().filter(|(_, step)| is_under_way(step));
        if let Some(pause) = run.state.paused.as_ref() {
            let under_way: Vec<Cow<'_, str>> = running().map(|(i, _)| self.key(i)).collect();
            let who = paused_by(&pause.actor, &pause.note);
            let mut explanation = self.run_explanation(
                Reason::PausedForManualAction,
                match under_way.is_empty() {
                    true => format!("the run was paused{who}; nothing starts until it is resumed"),
                    false => format!("the run was paused{who}; {} may still finish", names(&under_way)),
                },
                json!({
                    "target": "run", "paused_by": pause.actor, "note": pause.note, "paused_at": pause.at.to_string(),
                    "still_running": under_way,
                }),
            );
            explanation.next_actions.insert(0, self.action("resume", "resume", None));
            return explanation;
        }
        let is_queued = |step: &Step| self.queue_position(step).is_some();
        let first = running()
            .find(|(_, step)| !is_queued(step))
            .or_else(|| running().next())
            .or_else(|| steps().find(|(_, step)| matches!(step.phase, Phase::Ready {})));
        // First a wait for an outside event, then the earliest timer.
        let waits = steps().filter(|(_, step)| matches!(step.phase, Phase::Waiting { .. }));
        let timed = steps().filter_map(|(i, step)| match step.phase {
            Phase::Sleeping { until: at } | Phase::Retrying { at } => Some((at, i)),
            _ => None,
        });
        let subject = first.map(|(i, _)| i);
        let children = || steps().find(|(_, step)| matches!(step.phase, Phase::Child {}));
        let subject = subject
            .or_else(|| waits.map(|(i, _)| i).next())
            .or_else(|| children().map(|(i, _)| i))
            .or_else(|| timed.min().map(|(_, i)| i));
        let Some(step) = subject else {
            let waiting = run.waiting_for(self.plan);
            if let Some(step) = waiting.iter().find_map(|w| w.step) {
                let mut explanation = self.step(step);
                explanation.chain.insert(0, self.link_to_run(explanation.reason));
                return explanation;
            }
            return self.run_explanation(Reason::PendingDispatch, "the run is about to go on".into(), json!({}));
        };
        let mut explanation = self.step(step);
        explanation.chain.insert(0, self.link_to_run(explanation.reason));
        if let Value::Object(details) = &mut explanation.details {
            let waiting: Vec<Value> = run
                .waiting_for(self.plan)
                .iter()
                .map(|w| {
                    let until = w.until.map(|at| at.to_string());
                    json!({ "kind": w.kind.as_str(), "step": w.step.map(|s| self.key(s)), "until": until })
                })
                .collect();
            let under_way: Vec<Cow<'_, str>> = running().map(|(i, _)| self.key(i)).collect();
            details.insert("running".into(), json!(under_way));
            details.insert("waiting_for".into(), json!(waiting));
        }
        explanation
    }

    fn completed(&self) -> Explanation {
        let run = &self.reading.run;
        let count = |status: StepStatus| run.state.steps.iter().filter(|s| s.status() == status).count();
        let (skipped, failed) = (count(StepStatus::Skipped), self.reading.failed_steps());
        let unhandled = self.reading.unhandled_steps();
        let mut summary = match run.state.steps.len() {
            1 => "its only step has settled".to_owned(),
            count => format!("all {count} steps have settled"),
        };
        if skipped > 0 {
            summary += &format!(", {skipped} of them skipped");
        }
        let handled: Vec<&String> = failed.iter().filter(|f| !unhandled.contains(f)).collect();
        if !handled.is_empty() {
            summary += &format!("; {} failed, which was handled", names(&handled));
        }
        if !unhandled.is_empty() {
            summary += &format!(
                "; {} failed, which no step handled; by `fail_when: blocked` the run completes all the same",
                names(&unhandled)
            );
        }
        let details = json!({ "failed_steps": failed, "unhandled_steps": unhandled, "skipped": skipped });
        self.run_explanation(Reason::Completed, summary, details)
    }

    fn failed(&self) -> Explanation {
        let state = &self.reading.run.state;
        let Some(culprit) = state.culprit else {
            let failure = state.failure.as_ref();
            let summary = failure.map_or_else(String::new, |f| f.message.clone());
            return self.run_explanation(Reason::StepFailed, summary, json!({ "error": failure.map(error) }));
        };
        // The chain goes from a step that was skipped because of the failure to the failed step.
        let blocked = self.reading.run.steps().find_map(|(number, step)| match step.because.as_deref() {
            Some(Because::Needs { steps }) if steps.contains(&culprit) => Some(number),
            _ => None,
        });
        let mut explanation = self.step(culprit);
        let unhandled = self.reading.unhandled_steps();
        if self.plan.nodes().len() > 1 && unhandled.iter().any(|step| *step == self.key(culprit)) {
            explanation.summary += "; no step handled it";
        }
        if let Some(step) = blocked {
            let summary = format!("`{}` was skipped because it needs `{}`", self.key(step), self.key(culprit));
            explanation.chain.insert(0, link("step", &self.key(step), Reason::SkippedByNeeds, summary));
        }
        explanation.chain.insert(0, self.link_to_run(explanation.reason));
        explanation.next_actions = self.actions();
        if let Value::Object(details) = &mut explanation.details {
            details.insert("failed_steps".into(), json!(self.reading.failed_steps()));
            details.insert("unhandled_steps".into(), json!(unhandled));
        }
        self.add_end_details(&mut explanation.details);
        explanation
    }

    fn cancelled(&self) -> Explanation {
        let state = &self.reading.run.state;
        let summary = match state.cancel_reason.as_str() {
            "concurrency_limit" => {
                let limit =
                    state.origin.concurrency_group.as_ref().map_or(0, |concurrency_group| concurrency_group.limit);
                format!("{limit} runs with the same key were open, and the workflow skips runs above its limit")
            }
            "superseded" => "a newer run with the same key took its place".to_owned(),
            _ if state.cancelled_by.is_empty() => "the run was cancelled".to_owned(),
            _ => format!("{} cancelled the run", state.cancelled_by),
        };
        self.run_explanation(
            Reason::Cancelled,
            summary,
            json!({ "by": state.cancelled_by, "reason": state.cancel_reason }),
        )
    }

    fn expired(&self) -> Explanation {
        let state = &self.reading.run.state;
        let steps = self.reading.run.steps();
        let open: Vec<Cow<'_, str>> =
            steps.filter(|(_, step)| step.status() == StepStatus::Cancelled).map(|(i, _)| self.key(i)).collect();
        let at = state.origin.expires_at;
        let summary = format!("the run had not ended at {at}, when its time limit expired");
        self.run_explanation(
            Reason::Expired,
            summary,
            json!({ "expires_at": at.to_string(), "unfinished_steps": open }),
        )
    }

    /// One step, in any state.
    fn step(&self, index: u32) -> Explanation {
        let key = self.key(index);
        let node = self.reading.run.node(self.plan, index);
        let step = self.reading.run.step(index);
        let kind = node.body.as_ref().map_or("unknown", |body| body.kind());
        let mut details = Map::new();
        details.insert("kind".into(), json!(kind));
        details.insert("status".into(), json!(step.status().as_str()));
        if step.attempt > 0 {
            details.insert("attempt".into(), json!(step.attempt));
        }
        if let Some(at) = step.started_at {
            details.insert("started_at".into(), json!(at.to_string()));
        }
        if let (Some(guard), false) = (&node.guard, step.seen.is_empty()) {
            details.insert("condition".into(), json!(guard.text));
            details.insert("saw".into(), saw(&step.seen));
        }
        let mut add = |more: Value| {
            if let Value::Object(more) = more {
                details.extend(more);
            }
        };
        let mut actions = self.actions();
        let mut causes = Vec::new();
        let (reason, summary) = match &step.phase {
            Phase::Pending {} | Phase::Unknown { .. } if self.reading.run.is_terminal() => {
                (Reason::Cancelled, format!("the run ended before `{key}` began"))
            }
            Phase::Pending {} | Phase::Unknown { .. } => {
                let run = &self.reading.run;
                let needs: Vec<u32> =
                    node.links.iter().filter_map(|link| run.step_in(run.parent(index), link.from)).collect();
                let statuses: Map<String, Value> =
                    needs.iter().map(|s| (self.key(*s).into_owned(), json!(self.status(*s)))).collect();
                let open = needs.iter().filter(|step| self.is_open(**step));
                let waiting: Vec<Cow<'_, str>> = open.map(|step| self.key(*step)).collect();
                add(json!({ "waiting_on": waiting, "statuses": statuses }));
                match waiting.is_empty() {
                    false => (Reason::WaitingForDependencies, format!("`{key}` waits for {}", names(&waiting))),
                    true if !self.plan.is_known(run.node_number(index)) => {
                        (Reason::WaitingForUpgrade, format!("`{key}` has settings this release does not know"))
                    }
                    true => (Reason::PendingDispatch, format!("`{key}` is about to start")),
                }
            }
            Phase::Ready {} => match node.task() {
                Some(_) => {
                    let (reason, summary, cause) =
                        self.unclaimed(index, self.reading.run.type_of(self.plan, index), &mut add);
                    causes.extend(cause);
                    (reason, summary)
                }
                None => (Reason::StepScheduled, format!("`{key}` waits for a server that is not stopping")),
            },
            Phase::Leased { worker, .. } => {
                let until = self.around.leases.iter().find(|(of, _)| *of == index).map(|(_, at)| at.to_string());
                add(json!({ "worker": worker, "lease_until": until }));
                (Reason::StepRunning, format!("`{key}` is with worker `{worker}`, on attempt {}", step.attempt))
            }
            Phase::Running { .. } => match self.queue_position(step) {
                Some(HttpQueuePosition { ahead, limit, is_own }) => {
                    let of = if is_own { "organisation" } else { "server" };
                    add(json!({ "limit": "http_requests", "allowed": limit, "of": of, "queued_before": ahead }));
                    let summary = format!(
                        "`{key}` waits to send its request: {limit} of this {of} are under way, and {ahead} go before it"
                    );
                    (Reason::QueuedByLimit, summary)
                }
                None => (Reason::StepRunning, format!("`{key}` is on attempt {}", step.attempt)),
            },
            Phase::Retrying { at } => {
                let last = step.failure.as_deref();
                let policy = &node.retry;
                add(json!({
                    "at": at.to_string(), "next_attempt": step.attempt + 1, "last_error": last.map(error),
                    "charged": step.charged, "max_attempts": policy.max_attempts,
                }));
                let body = json!({ "step": key });
                actions.insert(1.min(actions.len()), self.action("retry_now", "retry", Some(body)));
                let message = last.map_or("", |failure| failure.message.as_str());
                let summary = match last.is_some_and(|failure| failure.code == "host_backoff") {
                    true => format!("`{key}` is held back: {message}; the next attempt is at {at}"),
                    false => format!("attempt {} of `{key}` failed ({message}); the next is at {at}", step.attempt),
                };
                (Reason::WaitingForRetry, summary)
            }
            Phase::Sleeping { until } => {
                add(json!({ "until": until.to_string() }));
                (Reason::SleepingUntil, format!("`{key}` sleeps until {until}"))
            }
            Phase::Waiting { deadline } => {
                let (reason, summary, own) = self.waiting(index, *deadline, &mut add);
                actions.splice(0..0, own);
                (reason, summary)
            }
            Phase::Child {} => match step.child.as_deref() {
                Some(child) => {
                    let (id, workflow) = (child.run.to_string(), &child.workflow);
                    add(json!({ "run_id": id, "workflow": workflow, "detached": child.is_detached }));
                    let what = if child.is_detached { "start" } else { "end" };
                    let path = format!("/api/v1/runs/{id}/explain");
                    actions.insert(0, Action { action: "explain_child", method: "GET", path, body: None });
                    causes.push(link("run", &id, Reason::WaitingForChild, format!("a run of `{workflow}`")));
                    (Reason::WaitingForChild, format!("`{key}` waits for the {what} of {id}, a run of `{workflow}`"))
                }
                None => (Reason::WaitingForChild, format!("`{key}` waits for a run that it started")),
            },
            Phase::Open {} => {
                let (summary, at_work) = self.inside(index);
                add(json!({ "at_work": at_work }));
                (Reason::StepRunning, summary)
            }
            Phase::Done { status } => self.done(index, *status, &mut add),
        };
        let chain = std::iter::once(link("step", &key, reason, summary.clone())).chain(causes).collect();
        Explanation {
            reason,
            chain,
            summary,
            step: Some(key.into_owned()),
            details: Value::Object(details),
            next_actions: actions,
        }
    }

    /// A step that waits for something from outside: the reason, a sentence, and what ends the wait.
    fn waiting(&self, index: u32, deadline: Timestamp, add: &mut dyn FnMut(Value)) -> (Reason, String, Vec<Action>) {
        let (run, key) = (&self.reading.run, self.key(index));
        let node = run.node(self.plan, index);
        let at = deadline.to_string();
        add(json!({ "deadline": at }));
        let for_step = || Some(json!({ "step": key }));
        match &node.body {
            Some(Body::Signal { name, .. }) => {
                add(json!({ "name": name }));
                let action = self.action("send_signal", &format!("signals/{name}"), Some(json!({})));
                (Reason::WaitingForSignal, format!("`{key}` waits for the signal `{name}` until {at}"), vec![action])
            }
            Some(Body::Approval { approval }) => {
                let prompt = run.step(index).approval.as_deref().map_or("", |request| request.prompt.as_str());
                let token = secret::approval_token(self.reading.row.id, &key);
                add(json!({ "prompt": prompt, "token": token, "targets": [key] }));
                if !approval.approvers.is_empty() {
                    add(json!({ "approvers": approval.approvers }));
                }
                let actions =
                    vec![self.action("approve", "approve", for_step()), self.action("reject", "reject", for_step())];
                (Reason::PausedForApproval, format!("`{key}` waits for an approval until {at}: {prompt}"), actions)
            }
            Some(Body::Pause { .. }) => {
                add(json!({ "target": "step" }));
                let action = self.action("resume", "resume", for_step());
                (Reason::PausedForManualAction, format!("`{key}` waits to be resumed until {at}"), vec![action])
            }
            _ => {
                let url_key = self.reading.run.callback_key(&self.reading.version.plan, index);
                let url = self.around.wait_url.map(|url| url(&url_key));
                add(json!({ "url": url }));
                let call = |path| Action { action: "call_webhook", method: "POST", path, body: Some(json!({})) };
                let actions = url.map(call).into_iter().collect();
                (Reason::WaitingForWebhook, format!("`{key}` waits for a call to its URL until {at}"), actions)
            }
        }
    }

    /// A run that undoes what it did.
    fn compensating(&self) -> Explanation {
        let run = &self.reading.run;
        let left: Vec<Cow<'_, str>> = run.still_to_undo().take(INSIDE_MAX).map(|step| self.key(step)).collect();
        let called_off: Vec<Cow<'_, str>> = run.state.called_off.keys().map(|step| self.key(*step)).collect();
        let undoing = run.undos().into_iter().find(|(_, undo)| self.is_open(*undo));
        let summary = match (undoing, called_off.as_slice()) {
            _ if run.state.paused.is_some() => "the run is paused while it undoes what it did".to_owned(),
            (Some((undone, _)), _) => format!("the run undoes `{}`, {} are left", self.key(undone), left.len()),
            (None, []) => "the run is about to undo what it did".to_owned(),
            (None, attempts) => format!("before it undoes what it did, the run waits for {}", names(attempts)),
        };
        let ends_as = run.state.compensating.as_ref().map(|end| end.status.as_str());
        let details = json!({
            "step": undoing.map(|(undone, _)| self.key(undone)), "remaining": left, "waits_for": called_off,
            "ends_as": ends_as,
        });
        let mut explanation = self.run_explanation(Reason::Compensating, summary, details);
        if let Some((_, undo)) = undoing {
            let cause = self.step(undo);
            explanation.chain.extend(cause.chain);
        }
        let path = format!("/api/v1/runs/{}", self.reading.row.id);
        explanation.next_actions = vec![Action { action: "wait", method: "GET", path, body: None }];
        if run.state.paused.is_some() {
            explanation.next_actions.insert(0, self.action("resume", "resume", None));
        }
        explanation
    }

    /// A run that was cancelled, while runs that it started are still open.
    fn cancelling(&self) -> Explanation {
        let run = &self.reading.run;
        let open = run.steps().filter(|(_, step)| matches!(step.phase, Phase::Child {}));
        let children: Vec<String> =
            open.filter_map(|(_, step)| Some(step.child.as_deref()?.run.to_string())).take(INSIDE_MAX).collect();
        let summary = match children.as_slice() {
            [only] => format!("the run was cancelled, and ends when {only} has"),
            _ => format!("the run was cancelled, and ends when {} runs that it started have", children.len()),
        };
        let details = json!({ "by": run.state.cancelled_by, "reason": run.state.cancel_reason, "children": children });
        let mut explanation = self.run_explanation(Reason::Cancelling, summary, details);
        let cause = |child: &String| link("run", child, Reason::Cancelling, "it is told to end".into());
        explanation.chain.extend(children.iter().map(cause));
        explanation
    }

    /// A task that no worker has claimed: the reason, a sentence, and the cause.
    fn unclaimed(&self, index: u32, name: &str, add: &mut dyn FnMut(Value)) -> (Reason, String, Option<Cause>) {
        let key = self.key(index);
        let claim_status =
            self.around.claim_statuses.iter().find(|(of, _)| *of == index).map(|(_, claim_status)| claim_status);
        let last_seen = claim_status.and_then(|claim_status| claim_status.last_seen);
        let workers = claim_status.map_or(0, |claim_status| claim_status.workers);
        add(json!({ "type": name, "workers_seen": workers, "last_seen": last_seen.map(|at| at.to_string()) }));
        let blocked = claim_status.and_then(|claim_status| claim_status.blocked_reason.as_ref());
        if let Some(blocked) = blocked {
            let (limit, allowed, why) = match blocked {
                BlockedReason::Disabled => ("type_disabled", None, "the type is disabled".to_owned()),
                BlockedReason::Paused { note, .. } if note.is_empty() => {
                    ("type_paused", None, "the type is paused".to_owned())
                }
                BlockedReason::Paused { note, .. } => ("type_paused", None, format!("the type is paused ({note})")),
                BlockedReason::Limit(n) => {
                    ("type_concurrency", Some(*n), format!("{n} tasks of the type may be leased at once"))
                }
                BlockedReason::KeyLimit(n) => {
                    ("key_concurrency", Some(*n), format!("{n} tasks with its key may be leased at once"))
                }
                BlockedReason::Rate(until) => {
                    ("type_rate", None, format!("the rate of the type allows the next task at {until}"))
                }
            };
            add(json!({ "limit": limit, "allowed": allowed }));
            let cause = link("type", name, Reason::QueuedByLimit, why.clone());
            return (Reason::QueuedByLimit, format!("`{key}` waits for room: {why}"), Some(cause));
        }
        let seen = match (workers, last_seen) {
            (0, None) => format!("no worker claims `{name}`, and none ever did"),
            (0, Some(at)) => format!("no worker claims `{name}`; one was last seen at {at}"),
            (1, _) => format!("1 worker claims `{name}` and is busy"),
            (n, _) => format!("{n} workers claim `{name}` and are busy"),
        };
        let cause = link("type", name, Reason::WaitingForWorker, seen.clone());
        (Reason::WaitingForWorker, format!("`{key}` waits for a worker: {seen}"), Some(cause))
    }

    /// What is at work inside a group, a loop or an iteration, in a sentence and as a list.
    fn inside(&self, index: u32) -> (String, Vec<Cow<'_, str>>) {
        let run = &self.reading.run;
        let is_at_work = |step: &u32| {
            let state = run.step(*step);
            state.outcome().is_none() && !matches!(state.phase, Phase::Pending {})
        };
        let at_work: Vec<Cow<'_, str>> = run.children(index).filter(is_at_work).map(|step| self.key(step)).collect();
        let key = self.key(index);
        let summary = match (&run.step(index).iterations, at_work.is_empty()) {
            (Some(iterations), _) => {
                let (done, of) = (iterations.settled.len(), iterations.count);
                let of = of.map_or_else(String::new, |count| format!(" of {count}"));
                format!("{done}{of} iterations of `{key}` have ended, {} are at work", at_work.len())
            }
            (None, true) => format!("`{key}` is about to go on"),
            (None, false) => format!("`{key}` is at work at {}", names(&at_work)),
        };
        (summary, at_work.into_iter().take(INSIDE_MAX).collect())
    }

    fn done(&self, index: u32, status: StepStatus, add: &mut dyn FnMut(Value)) -> (Reason, String) {
        let key = self.key(index);
        let node = self.reading.run.node(self.plan, index);
        let step = self.reading.run.step(index);
        let response = step.response.as_ref();
        if let Some(code) = response.and_then(|r| r.status_code) {
            add(json!({ "status_code": code }));
        }
        if let Some(failure) = step.failure.as_deref() {
            add(json!({ "error": error(failure) }));
        }
        let message = step.failure.as_ref().map_or("", |failure| failure.message.as_str());
        match status {
            StepStatus::Success => (Reason::Completed, format!("`{key}` succeeded")),
            StepStatus::Received => (Reason::Completed, format!("`{key}` received its call")),
            StepStatus::TemplateError => (Reason::TemplateError, format!("`{key}` could not be filled in: {message}")),
            StepStatus::Timeout => (Reason::StepTimeout, format!("`{key}` ran out of time: {message}")),
            StepStatus::Failed => {
                let attempts = node.retry.max_attempts;
                match attempts > 1 && step.charged >= attempts {
                    true => {
                        add(json!({ "attempts": step.attempt, "max_attempts": attempts }));
                        (Reason::RetryExhausted, format!("`{key}` failed {} times, last: {message}", step.charged))
                    }
                    false => (Reason::StepFailed, format!("`{key}` failed: {message}")),
                }
            }
            StepStatus::Cancelled => (Reason::Cancelled, format!("`{key}` ended with its run")),
            StepStatus::Skipped => match step.because.as_deref() {
                Some(Because::Condition { seen }) => {
                    let text = node.guard.as_ref().map_or("", |guard| guard.text.as_str());
                    add(json!({ "condition": text, "saw": saw(seen) }));
                    let values: Vec<String> = seen.iter().map(|s| format!("{} was {}", s.path, s.value)).collect();
                    let summary = format!("`{key}` was skipped: `{text}` is false, because {}", values.join(" and "));
                    (Reason::SkippedByCondition, summary)
                }
                Some(Because::Needs { steps }) => {
                    let statuses: Map<String, Value> =
                        steps.iter().map(|s| (self.key(*s).into_owned(), json!(self.status(*s)))).collect();
                    let words: Vec<String> =
                        steps.iter().map(|s| format!("`{}` is {}", self.key(*s), self.status(*s))).collect();
                    add(json!({ "needs": statuses }));
                    let summary =
                        format!("`{key}` was skipped: it runs only if its needs succeed, and {}", words.join(" and "));
                    (Reason::SkippedByNeeds, summary)
                }
                Some(Because::Unknown { .. }) | None => (Reason::Skipped, format!("`{key}` was skipped")),
            },
            // A step that is done never has these statuses.
            StepStatus::Pending
            | StepStatus::Running
            | StepStatus::Retrying
            | StepStatus::Sleeping
            | StepStatus::Waiting => (Reason::PendingDispatch, format!("`{key}` is about to start")),
        }
    }

    /// The queue position of this step's request, if it waits.
    fn queue_position(&self, step: &Step) -> Option<HttpQueuePosition> {
        match step.phase {
            Phase::Running { fence, .. } => self.around.queued.and_then(|queued| queued(fence)),
            _ => None,
        }
    }

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
            .map(|n| (NotificationNumber::read(n.number).index, n))
            .map(|(index, n)| json!({ "number": index, "error": Some(&n.error).filter(|e| !e.is_empty()) }))
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
            true => self.retry().into_iter().chain([self.action("replay", "replay", None)]).collect(),
            false => {
                let path = format!("/api/v1/runs/{}", self.reading.row.id);
                let wait = Action { action: "wait", method: "GET", path, body: None };
                vec![wait, self.action("cancel", "cancel", None)]
            }
        }
    }

    /// Retrying a run that failed or timed out, if nothing irreversible would be done twice.
    fn retry(&self) -> Option<Action> {
        let run = &self.reading.run;
        let is_attached = run.state.origin.parent.as_ref().is_some_and(|parent| !parent.is_detached);
        let can_go_on = matches!(run.status(), RunStatus::Failed | RunStatus::Timeout) && !is_attached;
        let is_safe = || repair(&self.reading.version.plan, run, None).irreversible.is_empty();
        (can_go_on && is_safe()).then(|| self.action("retry", "retry", Some(json!({}))))
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
