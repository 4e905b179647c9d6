//! Fork (M31): a new run of the same version that goes on from a step of a run that has ended.
//!
//! ```text
//!   ended run ──how steps of its root group ended──▶ `step.copied` right after `run.created` of the new run
//! ```
//!
//! What must run again is what a retry from that step would open, see [`repair`]; everything else that has settled is
//! copied. Groups and loops are copied as a whole or not at all: no other step can read what is inside of them. The new
//! run never undoes a copied step, because the run that did the work may undo it, or may still rely on it.

use super::replay_safety::{UnrepeatableStep, unrepeatable_steps};
use super::view::errors;
use super::{AdvanceState, repair};
use crate::event::{Because, CopiedStep, Event};
use crate::payload::Payload;
use crate::plan::Plan;
use crate::run::Run;
use crate::status::{Outcome, StepStatus};
use std::collections::{BTreeMap, BTreeSet};

/// What a fork copies and what it runs: steps of the root group, by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fork {
    /// With the numbers that the steps have in the new run. Payloads are as the run that is forked has stored them.
    pub copied: Vec<(u32, CopiedStep)>,
    pub would_run: Vec<u32>,
    /// Those of `would_run` that had succeeded, or in which something had.
    pub would_repeat: Vec<u32>,
    /// What those did that can be neither undone nor repeated.
    pub unrepeatable: Vec<UnrepeatableStep>,
}

/// What a fork of a run that has ended does, from a step of the root group. Of the steps in `given`, the caller knows the
/// result: they do not run, and what depends on them runs again.
pub fn fork(plan: &Plan, run: &Run, from: u32, given: &BTreeMap<u32, Payload>) -> Fork {
    let seeds: Vec<u32> = std::iter::once(from).chain(given.keys().copied()).collect();
    let again = repair(plan, run, &seeds);
    let root_of = |step: &u32| std::iter::successors(Some(*step), |step| run.parent(*step)).last().unwrap_or(*step);
    let again: BTreeSet<u32> = again.steps.iter().chain(&again.around).map(root_of).collect();
    let mut found = Fork::default();
    for step in run.roots() {
        let outcome = run.step(step).outcome();
        if let Some(body) = given.get(&step) {
            let writes = run.node(plan, step).writes.clone();
            found.copied.push((run.node_number(step), CopiedStep { writes, ..given_result(body.clone()) }));
        } else if outcome.is_none() || again.contains(&step) {
            found.would_run.push(step);
        } else {
            found.copied.push((run.node_number(step), as_it_ended(plan, run, step)));
        }
    }
    // A given result is later than any other.
    let given: BTreeSet<u32> = given.keys().flat_map(|step| run.node(plan, *step).writes.clone()).collect();
    for (number, output) in run.state.outputs.iter().filter(|(number, _)| !given.contains(number)) {
        let root = std::iter::successors(Some(output.node), |node| plan.around(*node)).last();
        let Some((_, ended)) = found.copied.iter_mut().find(|(copied, _)| Some(*copied) == root) else { continue };
        let is_own_result = output.body.is_none() && run.parent(output.step).is_none();
        match run.output(*number) {
            Some((_, body)) if !is_own_result => {
                ended.outputs.insert(*number, body.cloned().unwrap_or_else(|| Payload::json("null")));
            }
            _ => ended.writes.push(*number),
        }
    }
    let has_succeeded = |step: u32| run.step(step).outcome() == Some(Outcome::Ok);
    let repeats = |step: &u32| has_succeeded(*step) || run.descendants(*step).into_iter().any(has_succeeded);
    found.would_repeat = found.would_run.iter().copied().filter(repeats).collect();
    found.unrepeatable = unrepeatable_steps(plan, run);
    found.unrepeatable.retain(|step| found.would_run.contains(&step.root));
    found
}

fn as_it_ended(plan: &Plan, run: &Run, step: u32) -> CopiedStep {
    let state = run.step(step);
    let errors = match &state.copied {
        Some(copied) => copied.errors.clone(),
        None if run.node(plan, step).inner().is_none() => None,
        None => Some(errors(plan, run, step))
            .filter(|errors| *errors != serde_json::json!([]))
            .map(|errors| Payload::json(errors.to_string())),
    };
    CopiedStep {
        status: state.status(),
        response: state.response.as_deref().cloned(),
        // What arrived for a step that never read it stays with the run that it was sent to.
        callback: state.callback.as_deref().filter(|_| state.status() == StepStatus::Received).cloned(),
        failure: state.failure.as_deref().cloned(),
        because: state.because.as_deref().map(|because| match because {
            Because::Needs { steps } => Because::Needs { steps: steps.iter().map(|s| run.node_number(*s)).collect() },
            other => other.clone(),
        }),
        errors,
        is_given: state.copied.as_ref().is_some_and(|copied| copied.is_given),
        ..Default::default()
    }
}

fn given_result(body: Payload) -> CopiedStep {
    let response = crate::event::Response { body: Some(body), ..Default::default() };
    CopiedStep { status: StepStatus::Success, response: Some(response), is_given: true, ..Default::default() }
}

impl CopiedStep {
    pub fn payloads(&self) -> impl Iterator<Item = &Payload> {
        let body = self.response.as_ref().and_then(|response| response.body.as_ref());
        let callback = self.callback.as_ref().map(|callback| &callback.body);
        body.into_iter().chain(callback).chain(&self.errors).chain(self.outputs.values())
    }

    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload> {
        let body = self.response.as_mut().and_then(|response| response.body.as_mut());
        let callback = self.callback.as_mut().map(|callback| &mut callback.body);
        body.into_iter().chain(callback).chain(&mut self.errors).chain(self.outputs.values_mut())
    }
}

impl AdvanceState<'_> {
    /// The steps that a fork does not run. Their payloads are inline.
    pub(super) fn take_over_copies(&mut self, copied: Vec<(u32, CopiedStep)>) {
        for (step, mut ended) in copied {
            let mut number = self.run.state.payloads;
            for payload in ended.payloads_mut().filter(|payload| payload.inline.len() > crate::payload::INLINE_MAX) {
                number += 1;
                self.store_as(payload, number);
            }
            self.emit(Event::Copied { step, ended: Box::new(ended) });
        }
    }
}
