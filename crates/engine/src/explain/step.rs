//! One step, in every state.

use super::{Action, Case, Cause, Explanation, INSIDE_MAX, error, link, names, saw};
use crate::execute::HttpQueuePosition;
use crate::secret;
use crate::task_queue::BlockedReason;
use kernel::event::Because;
use kernel::plan::Body;
use kernel::run::{Phase, Step};
use kernel::{Reason, StepStatus, Timestamp};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

impl Case<'_> {
    /// One step, in any state.
    pub(super) fn step(&self, index: u32) -> Explanation {
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
                let url = self.around.wait_url.map(|url| url(&key));
                add(json!({ "url": url }));
                let call = |path| Action { action: "call_webhook", method: "POST", path, body: Some(json!({})) };
                let actions = url.map(call).into_iter().collect();
                (Reason::WaitingForWebhook, format!("`{key}` waits for a call to its URL until {at}"), actions)
            }
        }
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
    pub(super) fn queue_position(&self, step: &Step) -> Option<HttpQueuePosition> {
        match step.phase {
            Phase::Running { fence, .. } => self.around.queued.and_then(|queued| queued(fence)),
            _ => None,
        }
    }
}
