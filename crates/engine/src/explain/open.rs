//! A run that has started and not ended: everything that it waits for, is at work at, or has lost, most urgent first.
//!
//! Only steps without inner steps are causes: a group or a loop waits for what is inside of it. Nor is a step that
//! waits for other steps: they are the cause.

use super::{CAUSES_MAX, Case, Cause, Explanation, INSIDE_MAX, Urgency, names, paused_by};
use crate::task_queue::BlockedReason;
use kernel::Reason;
use kernel::advance::lost_steps;
use kernel::plan::Body;
use kernel::run::{Pause, Phase, Step, WaitKind, Waiting};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeSet;

impl Case<'_> {
    pub(super) fn open(&self, max: usize) -> Explanation {
        let run = &self.reading.run;
        let mut causes: Vec<Cause> = run.state.paused.iter().map(|pause| self.paused_by_operator(pause)).collect();
        let (steps, omitted) = self.open_steps(run.steps().map(|(step, _)| step), max - causes.len());
        causes.extend(steps.into_iter().map(|mut cause| {
            cause.chain.insert(0, self.link_to_run(cause.reason));
            cause
        }));
        if causes.is_empty() {
            let summary = "the run is about to go on".into();
            causes.push(self.run_cause(Urgency::AtWork, Reason::PendingDispatch, summary, json!({})));
        }
        let first = &mut causes[0];
        self.add_run_details(&mut first.details);
        first.add("running", json!(self.under_way()));
        first.add("waiting_for", json!(self.waits()));
        Explanation { causes, omitted }
    }

    /// One step, and what is open inside of it.
    pub(super) fn step_and_inside(&self, step: u32) -> Explanation {
        let (inside, omitted) = match self.reading.run.step(step).phase {
            Phase::Open {} => self.open_steps(self.reading.run.descendants(step).into_iter(), CAUSES_MAX - 1),
            _ => (Vec::new(), 0),
        };
        let causes = std::iter::once(self.step(step)).chain(inside).collect();
        Explanation { causes, omitted }
    }

    /// Those of the steps that are causes, most urgent first: at most `max`, and how many more there are.
    fn open_steps(&self, steps: impl Iterator<Item = u32>, max: usize) -> (Vec<Cause>, usize) {
        let run = &self.reading.run;
        // A container failed because of a step inside of it, which is listed, or has left the state.
        let lost: BTreeSet<u32> = lost_steps(self.plan, run).into_iter().collect();
        let is_listed = |step: u32| run.children(step).any(|inner| lost.contains(&inner));
        let mut found: Vec<(Urgency, u32)> = steps
            .filter_map(|number| {
                let step = run.step(number);
                let is_lost = lost.contains(&number) && !is_listed(number);
                let urgency = if is_lost { Some(Urgency::Failed) } else { self.urgency(number, step) };
                Some((urgency?, number))
            })
            .collect();
        found.sort_unstable();
        let omitted = found.len().saturating_sub(max);
        let cause = |(urgency, step): (Urgency, u32)| {
            let mut cause = Cause { urgency, ..self.step(step) };
            if urgency == Urgency::Failed && lost.contains(&step) {
                cause.summary += "; no step handles it";
            }
            cause
        };
        (found.into_iter().take(max).map(cause).collect(), omitted)
    }

    /// How urgent a step is; `None` if it is no cause.
    pub(super) fn urgency(&self, number: u32, step: &Step) -> Option<Urgency> {
        let run = &self.reading.run;
        let timer = |at| if self.around.clock.is_some() { Urgency::Blocked } else { Urgency::Until(at) };
        let is_paused = run.state.paused.is_some();
        match &step.phase {
            Phase::Pending {} | Phase::Unknown { .. } => self.waits_for_upgrade(number).then_some(Urgency::Blocked),
            // While the run is paused, the pause is what they wait for.
            Phase::Ready {} | Phase::Retrying { .. } if is_paused => None,
            Phase::Ready {} => Some(self.urgency_of_ready(number)),
            Phase::Retrying { at } | Phase::Sleeping { until: at } => Some(timer(*at)),
            Phase::Waiting { deadline } => Some(match run.node(self.plan, number).body {
                Some(Body::Approval { .. } | Body::Pause { .. }) => Urgency::Decision,
                _ => timer(*deadline),
            }),
            Phase::Child {} => {
                let child = step.child.as_deref().and_then(|child| self.around.children?.get(&child.run));
                Some(child.map_or(Urgency::AtWork, |cause| cause.urgency))
            }
            Phase::Running { .. } | Phase::Leased { .. } => Some(Urgency::AtWork),
            Phase::Open {} | Phase::Done { .. } => None,
        }
    }

    fn urgency_of_ready(&self, step: u32) -> Urgency {
        if self.reading.run.node(self.plan, step).task().is_none() {
            return Urgency::AtWork;
        }
        if self.around.clock.is_some() {
            return Urgency::Blocked;
        }
        let Some(status) = self.claim_status(step) else { return Urgency::AtWork };
        match &status.blocked_reason {
            Some(BlockedReason::Disabled | BlockedReason::Paused { .. }) => Urgency::Blocked,
            Some(BlockedReason::Rate(until)) => Urgency::Until(*until),
            Some(BlockedReason::Limit(_) | BlockedReason::KeyLimit(_)) => Urgency::AtWork,
            None if status.workers == 0 => Urgency::NoWorker,
            None => Urgency::AtWork,
        }
    }

    fn waits_for_upgrade(&self, step: u32) -> bool {
        let is_one = |waiting: &Waiting| waiting.kind == WaitKind::Upgrade && waiting.step == Some(step);
        !self.plan.is_known(self.reading.run.node_number(step))
            && self.reading.run.waiting_for(self.plan).iter().any(is_one)
    }

    fn paused_by_operator(&self, pause: &Pause) -> Cause {
        let who = paused_by(&pause.actor, &pause.note);
        let under_way = self.under_way();
        let summary = match under_way.is_empty() {
            true => format!("the run was paused{who}; nothing starts until it is resumed"),
            false => format!("the run was paused{who}; {} may still finish", names(&under_way)),
        };
        let details = json!({
            "target": "run", "paused_by": pause.actor, "note": pause.note, "paused_at": pause.at.to_string(),
            "still_running": under_way,
        });
        let mut cause = self.run_cause(Urgency::Blocked, Reason::PausedForManualAction, summary, details);
        cause.next_actions.insert(0, self.action("resume", "resume", None));
        cause
    }

    /// The steps that an executor or a worker works on.
    fn under_way(&self) -> Vec<Cow<'_, str>> {
        let is_under_way = |step: &Step| matches!(step.phase, Phase::Running { .. } | Phase::Leased { .. });
        let steps = self.reading.run.steps().filter(|(_, step)| is_under_way(step));
        steps.map(|(step, _)| self.key(step)).take(INSIDE_MAX).collect()
    }

    fn waits(&self) -> Vec<Value> {
        let waits = self.reading.run.waiting_for(self.plan).into_iter().take(INSIDE_MAX);
        waits
            .map(|wait| {
                let until = wait.until.map(|at| at.to_string());
                json!({ "kind": wait.kind.as_str(), "step": wait.step.map(|step| self.key(step)), "until": until })
            })
            .collect()
    }
}
