//! Move: an open run goes on with another version of its workflow (M32).
//!
//! Allowed while nothing is at work, and if the new version has every step of the run: under the same key and inside of
//! the same groups, and of the same kind if the step has begun. Then `run.moved` says which node each step has from now
//! on. Steps that only the new version has are opened with it, in the root group and in the groups that are open. What
//! follows is decided in the next advance, with the new plan.

use super::{Advance, AdvanceState, Answer, Context, Effect};
use crate::event::{Event, MovedOutput};
use crate::plan::Plan;
use crate::run::{Output, Phase, Place, Run, Step};
use crate::status::RunStatus;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The version that a run goes on with, and who wants that.
#[derive(Clone, Debug)]
pub struct MoveOrder {
    pub plan: Arc<Plan>,
    pub version: u32,
    pub hash: Bytes,
    pub lowering: u32,
    pub actor: String,
    pub reason: String,
}

/// Why a run cannot go on with a version. Steps by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It has ended, or is about to.
    Ended(RunStatus),
    /// The version has another form.
    Form,
    /// Attempts or child runs of these steps are under way.
    Busy(Vec<u32>),
    /// The version does not have these steps, or not inside of the same groups.
    Missing(Vec<u32>),
    /// These steps have begun, and are of another kind in the version.
    Changed(Vec<u32>),
}

/// Why the run cannot go on with this plan; `None` if it can.
pub fn misfit(plan: &Plan, run: &Run, new: &Plan) -> Option<Misfit> {
    if run.is_terminal() || matches!(run.status(), RunStatus::Cancelling | RunStatus::Compensating) {
        return Some(Misfit::Ended(run.status()));
    }
    if plan.layout().form != new.layout().form {
        return Some(Misfit::Form);
    }
    let is_at_work =
        |state: &Step| matches!(state.phase, Phase::Running { .. } | Phase::Leased { .. } | Phase::Child {});
    let mut busy: Vec<u32> = run.steps().filter(|(_, state)| is_at_work(state)).map(|(step, _)| step).collect();
    busy.extend(run.state.called_off.keys());
    if !busy.is_empty() {
        return Some(Misfit::Busy(busy));
    }
    let (mut missing, mut changed) = (Vec::new(), Vec::new());
    for (step, state) in run.steps() {
        match counterpart(plan, new, run.node_number(step)) {
            None => missing.push(step),
            Some(node) => {
                let has_begun = !matches!(state.phase, Phase::Pending {}) || state.callback.is_some();
                if has_begun && kind(plan, run.node_number(step)) != kind(new, node) {
                    changed.push(step);
                }
            }
        }
    }
    match (missing.is_empty(), changed.is_empty()) {
        (false, _) => Some(Misfit::Missing(missing)),
        (true, false) => Some(Misfit::Changed(changed)),
        (true, true) => None,
    }
}

/// The node with the same name in another plan, if it is inside of the same groups.
fn counterpart(plan: &Plan, new: &Plan, node: u32) -> Option<u32> {
    let found = new.find(&plan.node_at(node).key)?;
    let is_same = match (plan.around(node), new.around(found)) {
        (None, None) => true,
        (Some(group), Some(other)) => counterpart(plan, new, group) == Some(other),
        _ => false,
    };
    is_same.then_some(found)
}

/// The kind of a step. A loop over a list knows its items, so it cannot go on with a condition.
fn kind(plan: &Plan, node: u32) -> (&'static str, bool) {
    let node = plan.node_at(node);
    let is_while = node.repeat().is_some_and(|repeat| repeat.condition.is_some());
    (node.body.as_ref().map_or("", |body| body.kind()), is_while)
}

/// Moves a run. The answer is `Repeated` if it has this version already, and `Conflict` if it does not fit.
pub(super) fn relocate(plan: &Plan, run: &mut Run, order: &MoveOrder, context: &Context<'_>) -> Advance {
    let answered = |answer: Answer| Advance { answers: vec![answer], ..Advance::default() };
    if run.state.seq == 0 {
        return answered(Answer::Unknown);
    }
    let new = &*order.plan;
    match misfit(plan, run, new) {
        Some(Misfit::Ended(status)) => return answered(Answer::Ended(status)),
        Some(_) => return answered(Answer::Conflict),
        None if run.version() == (order.version, &order.hash, order.lowering) => return answered(Answer::Repeated),
        None => {}
    }
    let node_of = |step: u32| Some((step, counterpart(plan, new, run.node_number(step))?));
    let nodes: BTreeMap<u32, u32> = run.steps().filter_map(|(step, _)| node_of(step)).collect();
    let outputs = moved_outputs(plan, run, new);
    let dequeued: Vec<Effect> = run.ready_tasks(plan).map(|task| Effect::Dequeue { task }).collect();
    let MoveOrder { version, hash, lowering, actor, reason, .. } = order.clone();
    let mut state = AdvanceState::new(new, run, context);
    state.out.effects.extend(dequeued);
    state.emit(Event::Moved { actor, reason, version, hash, lowering, nodes, outputs });
    state.open_new_steps();
    if state.run.status() == RunStatus::Waiting {
        // It may have something to do now. A run that runs is found after a crash.
        state.emit(Event::RunResumed {});
    }
    let tasks = state.run.ready_tasks(new).map(|task| Effect::Enqueue { task });
    state.out.effects.extend(tasks);
    state.out.answers.push(Answer::Applied);
    state.done()
}

/// Where the outputs of the run are in another plan. One whose step is not there belongs to what was around it.
fn moved_outputs(plan: &Plan, run: &Run, new: &Plan) -> Vec<MovedOutput> {
    let place = |from: u32| {
        let name = &plan.layout().outputs.get(from as usize)?.name;
        new.layout().outputs.iter().position(|output| output.name == *name)
    };
    let node_of = |node: u32| {
        std::iter::successors(Some(node), |node| plan.around(*node)).find_map(|node| counterpart(plan, new, node))
    };
    let moved = |(from, output): (&u32, &Output)| {
        let (to, node) = (place(*from)? as u32, node_of(output.node)?);
        Some(MovedOutput { from: *from, to, node, ..Default::default() })
    };
    run.state.outputs.iter().filter_map(moved).collect()
}

impl AdvanceState<'_> {
    /// Opens the steps of the root group, and of groups at work, that do not exist yet.
    fn open_new_steps(&mut self) {
        let plan = self.plan;
        for node in 0..plan.root().len() as u32 {
            if self.run.step_in(None, node).is_none() {
                self.emit(Event::Opened { step: self.run.next_step(), node, parent: Place::ROOT, index: 0 });
            }
        }
        let at_work = self.run.steps().filter(|(_, state)| matches!(state.phase, Phase::Open {}));
        let groups: Vec<u32> = at_work.map(|(step, _)| step).collect();
        for group in groups {
            let Some(body) = self.run.group_body(plan, group) else { continue };
            for node in plan.group(body) {
                if self.run.step_in(Some(group), *node).is_none() {
                    self.emit(Event::Opened { step: self.run.next_step(), node: *node, parent: group, index: 0 });
                }
            }
        }
    }
}
