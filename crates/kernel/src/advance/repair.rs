//! Retry of a run that failed or timed out, in place (M28).
//!
//! ```text
//!   failed, timeout ──RunRetried──▶ running, or queued
//! ```
//!
//! [`repair`] is a pure function of the plan and the run: it says which steps would run again, and which of them had
//! succeeded. The dry run shows its answer; the retry records it. Two things send a step back:
//!
//! - It failed and nothing handled that, or it was cancelled by the end of the run or of its group. Then it runs again,
//!   and so does what was skipped because of it.
//! - What it did no longer counts: it was undone, or the caller named it. Then everything that depends on it runs
//!   again, too, whatever became of that.
//!
//! A group, loop or iteration with such a step inside of it is at work again, and what succeeded in it stays. One that
//! itself depends on such a step starts from scratch. Invariant: a step that succeeded runs again only for the second
//! reason.

use super::{Admission, AdvanceState, Answer};
use crate::event::{Because, Event};
use crate::plan::{GroupBody, OnError, Plan};
use crate::planner::unhandled_at_end;
use crate::planted_bugs::{self, Bug};
use crate::run::Run;
use crate::status::{Outcome, RunStatus};
use std::collections::BTreeSet;

/// What a retry of a run opens again. Steps by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// The steps that are pending again. A group or loop among them starts from scratch.
    pub steps: Vec<u32>,
    /// The groups, loops and iterations around them, which are at work again.
    pub around: Vec<u32>,
    /// Those of `steps` that had succeeded, or in which something had.
    pub repeated: Vec<u32>,
    /// The irreversible steps that had succeeded and would run again. For iterations that have left the state, their loop.
    pub irreversible: Vec<u32>,
}

/// What a retry of a run that has ended opens again: with `from`, also those steps and what depends on them.
pub fn repair(plan: &Plan, run: &Run, from: &[u32]) -> Repair {
    let mut search = Search { plan, run, steps: BTreeSet::new(), around: BTreeSet::new(), changed: BTreeSet::new() };
    search.reopen_lost(None);
    // With `fail_when: blocked`, a run may fail because of a failure that was handled.
    let has_failed = |step: &u32| {
        let outcome = run.get(*step).and_then(|state| state.outcome());
        matches!(outcome, Some(Outcome::Failed | Outcome::TimedOut))
    };
    let culprit = run.state.culprit.filter(has_failed);
    culprit.into_iter().for_each(|step| search.reopen(step));
    for (undone, undo) in run.undos() {
        if run.step(undo).outcome() == Some(Outcome::Ok) {
            search.redo(undone);
        }
    }
    from.iter().for_each(|step| search.redo(*step));
    search.reopen_skipped();
    search.finish()
}

struct Search<'a> {
    plan: &'a Plan,
    run: &'a Run,
    steps: BTreeSet<u32>,
    around: BTreeSet<u32>,
    /// Steps whose dependents run again, too.
    changed: BTreeSet<u32>,
}

impl<'a> Search<'a> {
    /// Opens again what was cancelled in a group, and what failed unhandled.
    fn reopen_lost(&mut self, group: Option<u32>) {
        let body = group.and_then(|group| self.run.group_body(self.plan, group));
        let goes_on = body.is_some_and(|body| body.on_error == OnError::Continue);
        let unhandled = if goes_on { Vec::new() } else { unhandled_at_end(self.plan, self.run, group) };
        for step in self.members(group) {
            let outcome = self.run.step(step).outcome();
            let is_repeated = outcome == Some(Outcome::Ok) && planted_bugs::is(Bug::RetryRepeatsAll);
            if outcome == Some(Outcome::Cancelled) || unhandled.contains(&step) || is_repeated {
                self.reopen(step);
            }
        }
    }

    fn members(&self, group: Option<u32>) -> Vec<u32> {
        match group {
            None => self.run.roots().collect(),
            Some(group) => self.run.children(group).collect(),
        }
    }

    fn reopen(&mut self, step: u32) {
        match self.is_begun_container(step) {
            true => self.enter(step),
            false => drop(self.steps.insert(step)),
        }
    }

    /// Whether steps inside of this one were opened.
    fn is_begun_container(&self, step: u32) -> bool {
        self.run.step(step).iterations.is_some() || self.run.children(step).next().is_some()
    }

    /// A group, loop or iteration is at work again, and what was lost in it is opened.
    fn enter(&mut self, step: u32) {
        if self.is_incomplete(step) {
            return self.redo(self.run.iteration(step).map_or(step, |(of, _)| of));
        }
        if !self.around.insert(step) {
            return;
        }
        if self.run.group_body(self.plan, step).is_some() {
            return self.reopen_lost(Some(step));
        }
        let goes_on = self.goes_on(step);
        for iteration in self.members(Some(step)) {
            match self.run.step(iteration).outcome() {
                Some(Outcome::Cancelled) => self.enter(iteration),
                Some(Outcome::Failed | Outcome::TimedOut) if !goes_on => self.enter(iteration),
                _ => {}
            }
        }
    }

    fn goes_on(&self, step: u32) -> bool {
        self.run.node(self.plan, step).inner().is_some_and(|body| body.on_error == OnError::Continue)
    }

    /// Whether steps that would be needed again have left the state. Only an earlier release let them go.
    fn is_incomplete(&self, step: u32) -> bool {
        match (self.run.group_body(self.plan, step), &self.run.step(step).iterations) {
            (Some(body), _) => self.run.children(step).count() < self.plan.group(body).len(),
            (None, Some(iterations)) if !self.goes_on(step) => {
                let here: BTreeSet<u32> =
                    self.run.children(step).filter_map(|step| Some(self.run.iteration(step)?.1)).collect();
                let has_failed = |status: Option<Outcome>| matches!(status, Some(Outcome::Failed | Outcome::TimedOut));
                let mut settled = iterations.settled.iter();
                settled.any(|(index, one)| has_failed(one.status.outcome()) && !here.contains(index))
            }
            _ => false,
        }
    }

    /// Runs a step again, and everything that depends on it.
    fn redo(&mut self, step: u32) {
        if self.run.iteration(step).is_some() {
            // An iteration never waits: its steps do.
            self.members(Some(step)).into_iter().for_each(|inner| self.redo(inner));
            return;
        }
        if self.changed.insert(step) || !self.steps.contains(&step) {
            self.steps.insert(step);
            self.redo_dependents(step);
        }
    }

    /// What depends on a step runs again. What is around it is at work again, and has another result.
    fn redo_dependents(&mut self, step: u32) {
        let group = self.run.parent(step);
        for node in self.plan.dependents(self.run.node_number(step)) {
            self.run.step_in(group, *node).into_iter().for_each(|dependent| self.redo(dependent));
        }
        let Some(around) = group else { return };
        self.enter(around);
        if !self.changed.insert(around) {
            return;
        }
        match self.run.iteration(around) {
            // The next iteration of a loop with a condition reads the result of this one.
            Some((of, _)) if self.run.node(self.plan, of).repeat().is_some_and(|it| it.condition.is_some()) => {
                self.redo(of);
            }
            Some((of, _)) => {
                self.enter(of);
                if self.changed.insert(of) {
                    self.redo_dependents(of);
                }
            }
            None => self.redo_dependents(around),
        }
    }

    /// Opens again what was skipped because of a step that is opened again.
    fn reopen_skipped(&mut self) {
        let mut open: Vec<u32> = self.steps.union(&self.around).copied().collect();
        while let Some(step) = open.pop() {
            if self.run.iteration(step).is_some() {
                continue;
            }
            let group = self.run.parent(step);
            for node in self.plan.dependents(self.run.node_number(step)) {
                let Some(dependent) = self.run.step_in(group, *node) else { continue };
                let state = self.run.step(dependent);
                let is_because = match state.because.as_deref() {
                    Some(Because::Needs { steps }) => steps.contains(&step),
                    Some(Because::Condition { .. } | Because::Unknown { .. }) | None => true,
                    // The operator's decision stays.
                    Some(Because::Operator { .. }) => false,
                };
                if state.outcome() == Some(Outcome::Skipped) && is_because && self.steps.insert(dependent) {
                    open.push(dependent);
                }
            }
        }
    }

    /// Leaves out what is inside of a group or loop that starts from scratch.
    fn finish(self) -> Repair {
        let Search { plan, run, steps, around, .. } = self;
        let is_outermost = |step: &u32| {
            std::iter::successors(run.parent(*step), |step| run.parent(*step)).all(|around| !steps.contains(&around))
        };
        let around = around.iter().copied().filter(|step| !steps.contains(step) && is_outermost(step)).collect();
        let steps: Vec<u32> = steps.iter().copied().filter(is_outermost).collect();
        let has_run = |step: &u32| is_done(run, *step) || run.descendants(*step).iter().any(|step| is_done(run, *step));
        let repeated = steps.iter().copied().filter(has_run).collect();
        let irreversible = steps.iter().flat_map(|step| irreversible_in(plan, run, *step)).collect();
        Repair { steps, around, repeated, irreversible }
    }
}

/// Whether a step has done its work, also if its run no longer waited for that.
fn is_done(run: &Run, step: u32) -> bool {
    let state = run.step(step);
    let has_settled = state.iterations.as_ref().is_some_and(|iterations| !iterations.settled.is_empty());
    match state.outcome() {
        Some(Outcome::Ok) => true,
        Some(Outcome::Cancelled) => state.late && state.response.is_some() || has_settled,
        _ => has_settled,
    }
}

/// The irreversible steps in the state that are done: this one, or those inside of it.
fn irreversible_in(plan: &Plan, run: &Run, step: u32) -> Vec<u32> {
    let all = std::iter::once(step).chain(run.descendants(step));
    let is_lost = |step: u32| {
        // Iterations that have left the state may have done what cannot be repeated.
        let Some(iterations) = &run.step(step).iterations else { return false };
        let left = iterations.opened as usize > run.children(step).count();
        left && run.node(plan, step).repeat().is_some_and(|repeat| has_irreversible(plan, &repeat.body))
    };
    all.filter(|step| run.node(plan, *step).is_irreversible && is_done(run, *step) || is_lost(*step)).collect()
}

fn has_irreversible(plan: &Plan, body: &GroupBody) -> bool {
    plan.group(body).iter().any(|node| {
        let node = plan.node_at(*node);
        node.is_irreversible || node.inner().is_some_and(|inner| has_irreversible(plan, inner))
    })
}

impl AdvanceState<'_> {
    /// Goes on with a run that failed or timed out. `Repeated` for one that is open: the caller looks again.
    pub(super) fn reopen(
        &mut self,
        from: Option<u32>,
        allow_irreversible: bool,
        (actor, reason): (String, String),
        admission: Admission,
    ) -> Answer {
        // An end in this same advance is not durable: no node has seen it.
        if !self.run.is_terminal() || self.events.iter().any(Event::is_end) {
            return Answer::Repeated;
        }
        if !matches!(self.run.status(), RunStatus::Failed | RunStatus::Timeout) {
            return Answer::Ended(self.run.status());
        }
        if from.is_some_and(|step| self.run.get(step).is_none() || self.run.undoes(self.plan, step).is_some()) {
            return Answer::Unknown;
        }
        let Repair { steps, around, irreversible, .. } = repair(self.plan, self.run, from.as_slice());
        if !irreversible.is_empty() && !allow_irreversible {
            return Answer::Unsafe;
        }
        if admission == Admission::Refuse {
            return Answer::NoRoom;
        }
        let expires_at = self.context.now.after(self.plan.layout().max_duration);
        self.parsed = Default::default();
        self.emit(Event::RunRetried { actor, reason, steps, expires_at, around });
        if let Admission::Queue(reason) = admission {
            self.emit(Event::Queued { reason });
        }
        Answer::Applied
    }
}
