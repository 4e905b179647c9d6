//! A run as a whole, in every state but those in between, which are in [`open`](super::open).

use super::{Action, CAUSES_MAX, Case, Cause, Explanation, INSIDE_MAX, Urgency, error, link, names, paused_by};
use kernel::advance::handled_by;
use kernel::event::{Because, Queue};
use kernel::run::Phase;
use kernel::{Reason, RunStatus, StepStatus};
use serde_json::{Value, json};
use std::borrow::Cow;

impl Case<'_> {
    /// The run with its `max` most urgent causes.
    pub(super) fn run(&self, max: usize) -> Explanation {
        let state = &self.reading.run.state;
        match state.status {
            RunStatus::Pending => Explanation::of(self.queued(state.queued.unwrap_or(Queue::Limit))),
            RunStatus::Running | RunStatus::Waiting => self.open(max),
            RunStatus::Compensating => Explanation::of(self.compensating()),
            RunStatus::Cancelling => Explanation::of(self.cancelling()),
            RunStatus::Completed => Explanation::of(self.completed()),
            RunStatus::Failed => self.failed(),
            RunStatus::Cancelled => Explanation::of(self.cancelled()),
            RunStatus::Timeout => Explanation::of(self.expired()),
        }
    }

    /// A run that has not started: it is scheduled for later, paused, or queued by its concurrency group.
    fn queued(&self, reason: Queue) -> Cause {
        let state = &self.reading.run.state;
        if let Some(at) = state.origin.run_at.filter(|_| reason == Queue::Later) {
            let summary = format!("the run is scheduled for {at}");
            let details = json!({ "run_at": at.to_string() });
            return self.run_cause(Urgency::Until(at), Reason::ScheduledForLater, summary, details);
        }
        let queue_status = self.around.queue_status.as_ref();
        if self.around.pause.is_some() || queue_status.is_some_and(|queue_status| queue_status.is_paused) {
            return self.workflow_paused();
        }
        let workflow = &self.reading.row.workflow_name;
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
        let mut cause = self.run_cause(Urgency::AtWork, Reason::QueuedByLimit, summary, details);
        let holding = |run: &String| link("run", run, Reason::StepRunning, "it counts towards the limit".into());
        cause.chain.extend(holders.iter().map(holding));
        cause
    }

    fn workflow_paused(&self) -> Cause {
        let workflow = &self.reading.row.workflow_name;
        let pause = self.around.pause.as_ref();
        let by = pause.map_or_else(String::new, |p| paused_by(&p.actor, &p.note));
        let summary = format!("the workflow `{workflow}` is paused{by}; this run starts when it is resumed");
        let details = json!({
            "target": "workflow", "workflow": workflow,
            "paused_by": pause.map(|p| &p.actor), "note": pause.map(|p| &p.note),
            "paused_at": pause.map(|p| p.at.to_string()),
        });
        let mut cause = self.run_cause(Urgency::Blocked, Reason::PausedForManualAction, summary, details);
        let path = format!("/api/v1/workflows/{}/resume", self.reading.row.workflow);
        cause.next_actions.insert(0, Action { action: "resume", method: "POST", path, body: None });
        cause.chain.push(link("workflow", workflow, Reason::PausedForManualAction, "it is paused".into()));
        cause
    }

    /// A run that was cancelled, while runs that it started are still open.
    fn cancelling(&self) -> Cause {
        let run = &self.reading.run;
        let open = run.steps().filter(|(_, step)| matches!(step.phase, Phase::Child {}));
        let children: Vec<String> =
            open.filter_map(|(_, step)| Some(step.child.as_deref()?.run.to_string())).take(INSIDE_MAX).collect();
        let summary = match children.as_slice() {
            [only] => format!("the run was cancelled, and ends when {only} has"),
            _ => format!("the run was cancelled, and ends when {} runs that it started have", children.len()),
        };
        let details = json!({ "by": run.state.cancelled_by, "reason": run.state.cancel_reason, "children": children });
        let mut cause = self.run_cause(Urgency::AtWork, Reason::Cancelling, summary, details);
        cause.next_actions = vec![self.wait()];
        let told = |child: &String| link("run", child, Reason::Cancelling, "it is told to end".into());
        cause.chain.extend(children.iter().map(told));
        cause
    }

    /// A run that undoes what it did.
    fn compensating(&self) -> Cause {
        let run = &self.reading.run;
        let left: Vec<Cow<'_, str>> = run.still_to_undo().take(INSIDE_MAX).map(|step| self.key(step)).collect();
        let called_off: Vec<Cow<'_, str>> = run.state.called_off.keys().map(|step| self.key(*step)).collect();
        let undoing = run.undos().into_iter().find(|(_, undo)| self.is_open(*undo));
        let is_paused = run.state.paused.is_some();
        let summary = match (undoing, called_off.as_slice()) {
            _ if is_paused => "the run is paused while it undoes what it did".to_owned(),
            (Some((undone, _)), _) => format!("the run undoes `{}`, {} are left", self.key(undone), left.len()),
            (None, []) => "the run is about to undo what it did".to_owned(),
            (None, attempts) => format!("before it undoes what it did, the run waits for {}", names(attempts)),
        };
        let details = json!({
            "step": undoing.map(|(undone, _)| self.key(undone)), "remaining": left, "waits_for": called_off,
            "ends_as": run.state.compensating.as_ref().map(|end| end.status.as_str()),
        });
        let urgency = if is_paused { Urgency::Blocked } else { Urgency::AtWork };
        let mut cause = self.run_cause(urgency, Reason::Compensating, summary, details);
        cause.next_actions = vec![self.wait()];
        if is_paused {
            cause.next_actions.insert(0, self.action("resume", "resume", None));
        } else if let Some((_, undo)) = undoing {
            cause.chain.extend(self.step(undo).chain);
        }
        cause
    }

    fn completed(&self) -> Cause {
        let run = &self.reading.run;
        let count = |status: StepStatus| run.roots().filter(|step| run.step(*step).status() == status).count();
        let skipped = count(StepStatus::Skipped);
        let unhandled = self.reading.unhandled_steps();
        let mut summary = match run.roots().count() {
            1 => "its only step has settled".to_owned(),
            count => format!("all {count} steps have settled"),
        };
        if skipped > 0 {
            summary += &format!(", {skipped} of them skipped");
        }
        let handled = self.handled_failures(&unhandled);
        match handled.as_slice() {
            [] => {}
            [(step, Some(by))] => summary += &format!("; `{step}` failed, which `{by}` handled"),
            more => {
                let steps: Vec<&String> = more.iter().map(|(step, _)| step).collect();
                summary += &format!("; {} failed, which was handled", names(&steps));
            }
        }
        if !unhandled.is_empty() {
            summary += &format!(
                "; {} failed, which no step handled; by `fail_when: blocked` the run completes all the same",
                names(&unhandled)
            );
        }
        let mut cause = self.run_cause(Urgency::AtWork, Reason::Completed, summary, json!({ "skipped": skipped }));
        self.add_failures(&mut cause);
        cause
    }

    /// The failures that something handled, each with the step that did so, if it was a step.
    fn handled_failures(&self, unhandled: &[String]) -> Vec<(String, Option<String>)> {
        let run = &self.reading.run;
        let failed = kernel::advance::failed_steps(self.plan, run).into_iter().take(INSIDE_MAX);
        let by = |step: u32| handled_by(self.plan, run, step).map(|by| self.key(by).into_owned());
        let handled = failed.map(|step| (step, self.key(step).into_owned()));
        handled.filter(|(_, key)| !unhandled.contains(key)).map(|(step, key)| (key, by(step))).collect()
    }

    /// Adds to the details which steps of an ended run failed, and what handled them.
    fn add_failures(&self, cause: &mut Cause) {
        let unhandled = self.reading.unhandled_steps();
        let handled: Vec<Value> =
            self.handled_failures(&unhandled).into_iter().map(|(step, by)| json!({ "step": step, "by": by })).collect();
        cause.add("failed_steps", json!(self.reading.failed_steps()));
        cause.add("unhandled_steps", json!(unhandled));
        if !handled.is_empty() {
            cause.add("handled", json!(handled));
        }
    }

    /// A failed run: first the step that made it fail, then the other failures that nothing handled.
    fn failed(&self) -> Explanation {
        let (run, state) = (&self.reading.run, &self.reading.run.state);
        let Some(culprit) = state.culprit else {
            let failure = state.failure.as_ref();
            let summary = failure.map_or_else(String::new, |f| f.message.clone());
            let details = json!({ "error": failure.map(error) });
            return Explanation::of(self.run_cause(Urgency::AtWork, Reason::StepFailed, summary, details));
        };
        let mut causes = vec![self.fatal(culprit)];
        let unhandled = kernel::advance::unhandled_steps(self.plan, run);
        // The failure of a step inside the culprit is the same failure.
        let is_inside =
            |step: u32| std::iter::successors(Some(step), |step| run.parent(*step)).any(|step| step == culprit);
        let others: Vec<u32> = unhandled.into_iter().filter(|step| !is_inside(*step)).collect();
        let omitted = others.len().saturating_sub(CAUSES_MAX - 1);
        causes.extend(others.into_iter().take(CAUSES_MAX - 1).map(|step| {
            let mut cause = self.step(step);
            cause.chain.insert(0, self.link_to_run(cause.reason));
            cause
        }));
        self.add_run_details(&mut causes[0].details);
        self.add_failures(&mut causes[0]);
        Explanation { causes, omitted }
    }

    /// The failure that made the run fail.
    fn fatal(&self, culprit: u32) -> Cause {
        // The chain goes from a step that was skipped because of the failure to the failed step.
        let blocked = self.reading.run.steps().find_map(|(number, step)| match step.because.as_deref() {
            Some(Because::Needs { steps }) if steps.contains(&culprit) => Some(number),
            _ => None,
        });
        let mut cause = self.step(culprit);
        if self.plan.nodes().len() > 1 && self.reading.unhandled_steps().iter().any(|step| *step == self.key(culprit)) {
            cause.summary += "; no step handled it";
        }
        if let Some(step) = blocked {
            let summary = format!("`{}` was skipped because it needs `{}`", self.key(step), self.key(culprit));
            cause.chain.insert(0, link("step", &self.key(step), Reason::SkippedByNeeds, summary));
        }
        cause.chain.insert(0, self.link_to_run(cause.reason));
        cause
    }

    fn cancelled(&self) -> Cause {
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
        let details = json!({ "by": state.cancelled_by, "reason": state.cancel_reason });
        self.run_cause(Urgency::AtWork, Reason::Cancelled, summary, details)
    }

    fn expired(&self) -> Cause {
        let state = &self.reading.run.state;
        let steps = self.reading.run.steps();
        let open: Vec<Cow<'_, str>> =
            steps.filter(|(_, step)| step.status() == StepStatus::Cancelled).map(|(i, _)| self.key(i)).collect();
        let at = state.origin.expires_at;
        let summary = format!("the run had not ended at {at}, when its time limit expired");
        let details = json!({ "expires_at": at.to_string(), "unfinished_steps": open });
        self.run_cause(Urgency::AtWork, Reason::Expired, summary, details)
    }
}
