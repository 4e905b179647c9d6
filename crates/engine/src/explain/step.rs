//! One step, in every state.

use super::{
    Action, Case, Cause, ChainLink, INSIDE_MAX, Urgency, enable_type, error, link, names, paused_by, remaining, saw,
};
use crate::execute::HttpQueuePosition;
use crate::secret;
use crate::task_queue::{BlockedReason, ClaimStatus};
use kernel::event::Because;
use kernel::plan::Body;
use kernel::run::{Phase, Step};
use kernel::status::Outcome;
use kernel::{Reason, StepStatus, Timestamp};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The actor in the body of an action, for steps that name no approvers. The sender puts its own name there.
const ACTOR: &str = "operator";

impl Case<'_> {
    pub(super) fn step(&self, index: u32) -> Cause {
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
        // What the chain has after the step.
        let mut causes: Vec<ChainLink> = Vec::new();
        let mut root = None;
        let (reason, summary) = match &step.phase {
            Phase::Pending {} | Phase::Unknown { .. } if self.reading.run.is_terminal() => {
                (Reason::Cancelled, format!("the run ended before `{key}` began"))
            }
            Phase::Pending {} | Phase::Unknown { .. } => {
                let run = &self.reading.run;
                let needs: Vec<u32> =
                    node.links.iter().filter_map(|link| run.step_in(run.parent(index), link.from)).collect();
                let statuses = self.statuses(&needs);
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
            Phase::Ready {} | Phase::Retrying { .. } if self.reading.run.state.paused.is_some() => {
                actions.insert(0, self.action("resume", "resume", None));
                add(json!({ "target": "run" }));
                (Reason::PausedForManualAction, format!("`{key}` starts when the run is resumed"))
            }
            Phase::Ready {} => match node.task() {
                Some(_) => {
                    let (reason, summary, cause, action) = self.unclaimed(index, &mut add);
                    causes.push(cause);
                    actions.splice(0..0, action);
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
                let next = format!("next try in {}", remaining(self.around.now, *at));
                let summary = match last.is_some_and(|failure| failure.code == "host_backoff") {
                    true => format!("`{key}` is held back: {message}; {next}"),
                    false => format!("{}; {next}", self.failures(index, step.attempt, message)),
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
                    let mut summary = format!("`{key}` waits for the {what} of {id}, a run of `{workflow}`");
                    match self.child(index) {
                        Some(cause) => {
                            summary += &format!(": {}", cause.root());
                            root = Some(cause.root().to_owned());
                            causes.extend(cause.chain.iter().cloned());
                            let remedies = cause.next_actions.iter().filter(|action| !is_general(action));
                            actions.splice(0..0, remedies.cloned());
                        }
                        None => {
                            causes.push(link("run", &id, Reason::WaitingForChild, format!("a run of `{workflow}`")))
                        }
                    }
                    let path = format!("/api/v1/runs/{id}/explain");
                    actions.push(Action { action: "explain_child", method: "GET", path, body: None });
                    (Reason::WaitingForChild, summary)
                }
                None => (Reason::WaitingForChild, format!("`{key}` waits for a run that it started")),
            },
            Phase::Open {} => {
                let (summary, at_work) = self.inside(index);
                add(json!({ "at_work": at_work }));
                (Reason::StepRunning, summary)
            }
            Phase::Done { status } => {
                if matches!(status.outcome(), Some(Outcome::Failed | Outcome::TimedOut)) {
                    match self.child(index) {
                        Some(cause) => causes.extend(cause.chain.iter().cloned()),
                        None => causes.extend(self.failure_inside(index)),
                    }
                }
                self.done(index, *status, &mut add)
            }
        };
        let mut summary = summary;
        if let Some(report) = self.around.clock.as_ref().filter(|_| self.needs_clock(index)) {
            summary += &format!("; this node fires no timers and leases no tasks: {report}");
            add(json!({ "clock": report }));
            causes.push(link("clock", "clock", reason, report.clone()));
        }
        let chain = std::iter::once(link("step", &key, reason, summary.clone())).chain(causes).collect();
        Cause {
            reason,
            chain,
            summary,
            step: Some(key.into_owned()),
            details: Value::Object(details),
            next_actions: actions,
            urgency: self.urgency(index, step).unwrap_or(Urgency::AtWork),
            root,
        }
    }

    /// The first cause of the run that the step started, if it was read.
    fn child(&self, step: u32) -> Option<&Cause> {
        let child = self.reading.run.step(step).child.as_deref()?;
        self.around.children?.get(&child.run)
    }

    /// Whether the step goes on only by a timer or a lease of this node.
    fn needs_clock(&self, index: u32) -> bool {
        match &self.reading.run.step(index).phase {
            Phase::Retrying { .. } | Phase::Sleeping { .. } | Phase::Waiting { .. } => true,
            Phase::Ready {} => self.reading.run.node(self.plan, index).task().is_some(),
            _ => false,
        }
    }

    /// That the step has failed, how often, and how it did last.
    fn failures(&self, index: u32, times: u32, message: &str) -> String {
        let key = self.key(index);
        let host = self.host(index).filter(|host| !message.contains(host));
        let host = host.map_or_else(String::new, |host| format!(" ({host})"));
        match times {
            0 | 1 => format!("`{key}` failed: {message}{host}"),
            times => format!("`{key}` failed {times} times, last: {message}{host}"),
        }
    }

    /// The host that an HTTP step calls, unless a template forms it.
    fn host(&self, index: u32) -> Option<String> {
        let Some(Body::Http { request }) = &self.reading.run.node(self.plan, index).body else { return None };
        let (first, rest) = request.url.split_first()?;
        // Before the path, a placeholder could still be a part of the host.
        let is_whole = rest.is_empty() || first.text.splitn(4, '/').count() == 4;
        let url = url::Url::parse(&first.text).ok().filter(|_| is_whole && first.path.is_none())?;
        url.host_str().map(str::to_owned)
    }

    /// A step that waits for something from outside: the reason, a sentence, and what ends the wait.
    fn waiting(&self, index: u32, deadline: Timestamp, add: &mut dyn FnMut(Value)) -> (Reason, String, Vec<Action>) {
        let (run, key) = (&self.reading.run, self.key(index));
        let node = run.node(self.plan, index);
        let at = deadline.to_string();
        add(json!({ "deadline": at }));
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
                let is_excluded = |actor: &&String| approval.exclude_initiator && **actor == run.state.origin.actor;
                let actor = approval.approvers.iter().find(|actor| !is_excluded(actor)).map_or(ACTOR, String::as_str);
                let decide = |verb| self.action(verb, verb, Some(json!({ "step": key, "actor": actor })));
                let summary = format!("`{key}` waits for an approval until {at}: {prompt}");
                (Reason::PausedForApproval, summary, vec![decide("approve"), decide("reject")])
            }
            Some(Body::Pause { .. }) => {
                add(json!({ "target": "step" }));
                let action = self.action("resume", "resume", Some(json!({ "step": key })));
                (Reason::PausedForManualAction, format!("`{key}` waits to be resumed until {at}"), vec![action])
            }
            _ => {
                let url_key = self.reading.run.callback_key(self.plan, index);
                let url = self.around.wait_url.map(|url| url(&url_key));
                add(json!({ "url": url }));
                let call = |path| Action { action: "call_webhook", method: "POST", path, body: Some(json!({})) };
                let actions = url.map(call).into_iter().collect();
                (Reason::WaitingForWebhook, format!("`{key}` waits for a call to its URL until {at}"), actions)
            }
        }
    }

    pub(super) fn claim_status(&self, step: u32) -> Option<&ClaimStatus> {
        let task = self.reading.run.ready_task(self.plan, step);
        self.around.claim_statuses?.get(&(task.name, task.key))
    }

    /// A task that no worker has claimed: the reason, a sentence, the cause, and what ends the wait.
    fn unclaimed(&self, index: u32, add: &mut dyn FnMut(Value)) -> (Reason, String, ChainLink, Option<Action>) {
        let (key, name) = (self.key(index), self.reading.run.type_of(self.plan, index));
        add(json!({ "type": name }));
        let Some(ClaimStatus { workers, last_seen, blocked_reason }) = self.claim_status(index) else {
            let cause = link("type", name, Reason::WaitingForWorker, format!("workers that claim `{name}` do it"));
            return (Reason::WaitingForWorker, format!("`{key}` waits for a worker that claims `{name}`"), cause, None);
        };
        add(json!({ "workers_seen": workers, "last_seen": last_seen.map(|at| at.to_string()) }));
        if let Some(blocked) = blocked_reason {
            let (limit, allowed, why) = match blocked {
                BlockedReason::Disabled => ("type_disabled", None, format!("the type `{name}` is disabled")),
                BlockedReason::Paused { note, .. } if note.is_empty() => {
                    ("type_paused", None, format!("the type `{name}` is paused"))
                }
                BlockedReason::Paused { note, .. } => {
                    ("type_paused", None, format!("the type `{name}` is paused ({note})"))
                }
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
            let action = match blocked {
                BlockedReason::Disabled => Some(enable_type(name)),
                BlockedReason::Paused { .. } => {
                    let path = format!("/api/v1/types/{name}/resume");
                    Some(Action { action: "resume_type", method: "POST", path, body: None })
                }
                BlockedReason::Limit(_) | BlockedReason::KeyLimit(_) | BlockedReason::Rate(_) => None,
            };
            let cause = link("type", name, Reason::QueuedByLimit, why.clone());
            return (Reason::QueuedByLimit, format!("`{key}` waits for room: {why}"), cause, action);
        }
        let seen = match (workers, last_seen) {
            (0, _) if name == lang::BASH_TYPE => {
                "no server runs the commands of bash steps; start one with `onward serve --bash`".to_owned()
            }
            (0, None) => format!("no worker claims `{name}`, and none ever did"),
            (0, Some(at)) => format!("no worker claims `{name}`; one was last seen at {at}"),
            (1, _) => format!("1 worker claims `{name}` and is busy"),
            (n, _) => format!("{n} workers claim `{name}` and are busy"),
        };
        let cause = link("type", name, Reason::WaitingForWorker, seen.clone());
        (Reason::WaitingForWorker, format!("`{key}` waits for a worker: {seen}"), cause, None)
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
            StepStatus::Failed if step.failure.as_ref().is_some_and(|failure| failure.code == "quarantined") => {
                (Reason::StepFailed, format!("`{key}` is quarantined: {message}"))
            }
            StepStatus::Failed => {
                let attempts = node.retry.max_attempts;
                match attempts > 1 && step.charged >= attempts {
                    true => {
                        add(json!({ "attempts": step.attempt, "max_attempts": attempts }));
                        (Reason::RetryExhausted, self.failures(index, step.charged, message))
                    }
                    false => (Reason::StepFailed, self.failures(index, 1, message)),
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
                Some(Because::Needs { steps }) if node.is_alternative() => {
                    add(json!({ "needs": self.statuses(steps) }));
                    let summary = format!("`{key}` was skipped: the other branch of its `conditional` was taken");
                    (Reason::SkippedByCondition, summary)
                }
                Some(Because::Needs { steps }) => {
                    let words: Vec<String> =
                        steps.iter().map(|s| format!("`{}` is {}", self.key(*s), self.status(*s))).collect();
                    add(json!({ "needs": self.statuses(steps) }));
                    let summary =
                        format!("`{key}` was skipped: it runs only if its needs succeed, and {}", words.join(" and "));
                    (Reason::SkippedByNeeds, summary)
                }
                Some(Because::Operator { actor, reason }) => {
                    add(json!({ "by": actor, "reason": reason }));
                    (Reason::Skipped, format!("`{key}` was skipped{}", paused_by(actor, reason)))
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
    pub(super) fn queue_position(&self, step: &Step) -> Option<HttpQueuePosition> {
        match step.phase {
            Phase::Running { fence, .. } => self.around.queued.and_then(|queued| queued(fence)),
            _ => None,
        }
    }

    /// From a group or a loop that failed to the step inside of it that made it fail.
    pub(super) fn failure_inside(&self, step: u32) -> Vec<ChainLink> {
        let run = &self.reading.run;
        let has_failed =
            |status: StepStatus| matches!(status, StepStatus::Failed | StepStatus::Timeout | StepStatus::TemplateError);
        if let Some(iterations) = &run.step(step).iterations {
            // The steps of an iteration that has settled are no longer in the state. The loop keeps the failure.
            let failed = iterations.settled.iter().find(|(_, iteration)| has_failed(iteration.status));
            let Some((index, iteration)) = failed else { return Vec::new() };
            let message = iteration.failure.as_ref().map_or("", |failure| failure.message.as_str());
            let iteration_key = format!("{}[{index}]", self.key(step));
            let key = match iteration.culprit.as_str() {
                "" => iteration_key,
                culprit => format!("{iteration_key}/{culprit}"),
            };
            return vec![link("step", &key, Reason::StepFailed, format!("`{key}` failed: {message}"))];
        }
        let failed = run.children(step).find(|inner| has_failed(run.step(*inner).status()));
        failed.map(|inner| self.step(inner).chain).unwrap_or_default()
    }
}

/// Whether the action is no remedy for a cause, but possible with every run.
fn is_general(action: &Action) -> bool {
    matches!(action.action, "wait" | "cancel" | "replay" | "replay_latest" | "explain_child")
}
