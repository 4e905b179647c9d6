//! What operators decide about the steps of open runs, and what a decision would lead to.

use super::repair::Rehearsal;
use super::run_queries::Reading;
use super::runs::Runs;
use crate::error::Error;
use kernel::advance::{Context, StepOverride};
use kernel::run::{Phase, Run, Step};
use kernel::status::Outcome;
use kernel::{Answer, Input, OrgId, RunId, RunStatus, Timestamp, advance};

impl Runs {
    /// Decides about a step that has not settled.
    pub async fn override_step(
        &self,
        org: OrgId,
        run: RunId,
        step: &str,
        decision: StepOverride,
    ) -> Result<(Answer, RunStatus), Error> {
        let (_, step) = self.find_step(org, run, step).await?;
        self.give(org, run, Input::Override { step, decision: Box::new(decision) }).await
    }

    /// What the decision would lead to. The answer is what the decision would get.
    pub async fn rehearse_override(
        &self,
        org: OrgId,
        run: RunId,
        step: &str,
        decision: StepOverride,
    ) -> Result<(Answer, Rehearsal), Error> {
        let (reading, step) = self.find_step(org, run, step).await?;
        Ok(rehearse(&reading, self.core.now(), Input::Override { step, decision: Box::new(decision) }))
    }

    async fn find_step(&self, org: OrgId, run: RunId, key: &str) -> Result<(Reading, u32), Error> {
        let reading = self.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        let reading = self.with_step(org, reading, key).await?;
        let step = reading.run.find(&reading.version.plan, key).ok_or_else(|| Error::NoStep(key.to_owned()))?;
        Ok((reading, step))
    }
}

/// Decides on a copy of the run, and after a move once more with the new plan. Callback URLs in what it decides are not real, and no worker takes a task.
pub(super) fn rehearse(reading: &Reading, now: Timestamp, input: Input) -> (Answer, Rehearsal) {
    let (before, plan) = (&reading.run, &reading.version.plan);
    let mut after = before.clone();
    let context = Context {
        run: reading.row.id,
        now: now.max(before.state.at),
        epoch: 0,
        is_draining: false,
        wait_url: &|_| String::new(),
        payloads: &reading.payloads,
        offer: &|_| None,
        hold: &|_| None,
    };
    let to = match &input {
        Input::Move(order) => Some(order.plan.clone()),
        _ => None,
    };
    let decided = advance(plan, &mut after, vec![input], &context);
    let plan = match &to {
        Some(new) if decided.record.is_some() => {
            advance(new, &mut after, vec![Input::Wake], &context);
            new
        }
        _ => plan,
    };
    let started = after.steps().filter(|(step, state)| has_begun(state) && !before.get(*step).is_some_and(has_begun));
    let started: Vec<u32> = started.map(|(step, _)| step).collect();
    let keys = |steps: &mut dyn Iterator<Item = u32>| steps.map(|step| after.key(plan, step).into_owned()).collect();
    let would_run = keys(&mut started.iter().copied());
    let would_repeat = keys(&mut started.iter().copied().filter(|step| ran_before(before, *step)));
    (decided.answers[0], Rehearsal { would_run, would_repeat })
}

/// Whether the step does or did something.
fn has_begun(step: &Step) -> bool {
    let is_pending = matches!(step.phase, Phase::Pending {});
    !is_pending && !matches!(step.outcome(), Some(Outcome::Skipped | Outcome::Cancelled))
}

fn ran_before(run: &Run, step: u32) -> bool {
    run.get(step).is_some_and(|state| state.attempt > 0)
}
