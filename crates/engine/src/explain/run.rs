//! A run as a whole, in every state.

use super::{Action, Case, Explanation, INSIDE_MAX, error, link, names, paused_by};
use kernel::event::{Because, Queue};
use kernel::run::{Phase, Step};
use kernel::{Reason, RunStatus, StepStatus};
use serde_json::{Value, json};
use std::borrow::Cow;

impl Case<'_> {
    pub(super) fn run(&self) -> Explanation {
        let state = &self.reading.run.state;
        match state.status {
            RunStatus::Pending => self.queued(state.queued.unwrap_or(Queue::Limit)),
            RunStatus::Running | RunStatus::Waiting | RunStatus::Compensating => self.open(),
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
}
