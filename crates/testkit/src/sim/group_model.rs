//! The part of the [`run_model`](super::run_model) that knows groups, loops and iterations: when they open what, and which
//! end of theirs the oracle predicts.

use super::oracle::{self, StepOutcome, StepState};
use super::run_model::{ModelPhase, RunModel, StepModel};
use super::violation::{CheckResult, Violation, ViolationKind, require};
use super::workflow_generator::{Inner, StepKind};
use kernel::event::Event;
use kernel::plan::OnError;

fn is_failed(step: &StepModel) -> bool {
    matches!(step.phase, ModelPhase::Done("failed" | "timeout" | "template_error"))
}

impl RunModel {
    /// A step inside of another one exists from now on. Its number is the next one, and so is that of an iteration.
    pub(super) fn open_step(&mut self, step: usize, event: &Event) -> CheckResult {
        let Event::Opened { node, parent, index, .. } = event else { return Ok(()) };
        let (node, parent) = (*node as usize, *parent as usize);
        if self.workflow.steps.get(node).is_some_and(|step| step.undo.undoes.is_some()) {
            return self.open_undo(step, node, parent);
        }
        ViolationKind::Duplicated.unless(step == self.steps.len(), || {
            format!("s{step} is opened, the next number is {}", self.steps.len())
        })?;
        let illegal = || format!("s{step}, node {node}, is opened inside of s{parent}");
        let around = self.steps.get(parent).ok_or_else(illegal)?;
        require(around.phase == ModelPhase::Open && !around.is_closing, illegal)?;
        let is_loop = matches!(self.step(parent).kind, StepKind::Loop { .. }) && around.iteration.is_none();
        let (mut phase, mut iteration) = (ModelPhase::Idle, None);
        if is_loop {
            require(node == around.node, illegal)?;
            ViolationKind::Duplicated.unless(*index == around.opened, || {
                format!("iteration {index} of s{parent} is opened, the next one is {}", around.opened)
            })?;
            require(self.may_open_iteration(parent), || format!("s{parent} opens too many iterations"))?;
            (phase, iteration) = (ModelPhase::Open, Some(*index));
            self.steps[parent].opened += 1;
        } else {
            let inner = self.step(parent).kind.inner().ok_or_else(illegal)?;
            require(self.workflow.groups[inner.group].contains(&node), illegal)?;
            let is_new = self.sibling(Some(parent), node).is_none();
            ViolationKind::Duplicated.unless(is_new, || format!("{}, which has it already", illegal()))?;
        }
        let is_begun = iteration.is_some();
        self.steps.push(StepModel { phase, node, parent: Some(parent), iteration, is_begun, ..Default::default() });
        Ok(())
    }

    /// Applies an event of a group, a loop or an iteration.
    pub(super) fn observe_group(&mut self, i: usize, event: &Event) -> CheckResult {
        let (kind, phase) = (self.step(i).kind, self.steps[i].phase);
        let illegal = || format!("{} for s{i} in phase {phase:?}", event.name().unwrap_or("?"));
        match (event, kind) {
            (Event::GroupStarted { .. }, StepKind::Group(_)) => {
                self.check_may_begin(i)?;
                (self.steps[i].phase, self.steps[i].is_begun) = (ModelPhase::Open, true);
                Ok(())
            }
            (Event::LoopStarted { count, .. }, StepKind::Loop { count: written, .. }) => {
                require(self.steps[i].iteration.is_none() && *count == Some(written), illegal)?;
                self.check_may_begin(i)?;
                (self.steps[i].phase, self.steps[i].is_begun) = (ModelPhase::Open, true);
                Ok(())
            }
            (Event::Succeeded { .. }, _) => {
                require(phase == ModelPhase::Open && !self.steps[i].is_closing, illegal)?;
                self.check_group_end(i, true)?;
                self.note_end_of_iteration(i);
                self.settle(i, "success")
            }
            (Event::Failed { failure, .. }, _) => {
                require(phase == ModelPhase::Open, illegal)?;
                self.check_group_end(i, false)?;
                // The failure of a group is that of a step inside of it.
                let is_denied = failure.code.starts_with("approval_");
                let is_broken = failure.code == "template_error";
                let is_same = |step: &StepModel| {
                    step.is_denied == is_denied && (step.phase == ModelPhase::Done("template_error")) == is_broken
                };
                let has_cause = self.inside(i).any(|step| is_failed(step) && is_same(step));
                require(has_cause, || format!("s{i} failed with {}, and nothing inside of it did", failure.code))?;
                self.steps[i].is_denied = is_denied;
                self.note_end_of_iteration(i);
                self.settle(i, if is_broken { "template_error" } else { "failed" })
            }
            (Event::Skipped { because, .. }, _) => self.skip(i, because),
            (Event::Cancelled { .. }, _) => {
                require(!matches!(phase, ModelPhase::Idle | ModelPhase::Done(_)), illegal)?;
                self.cancelled(i);
                self.settle(i, "cancelled")
            }
            _ => Err(illegal().into()),
        }
    }

    /// M4: the steps of an iteration that has ended leave the state, unless they failed, or may have to be undone.
    fn note_end_of_iteration(&mut self, i: usize) {
        let is_inside =
            |at: usize| std::iter::successors(self.steps[at].parent, |at| self.steps[*at].parent).any(|at| at == i);
        let is_needed = |at: usize| self.steps[at].done_with.is_some() || self.is_called_off(at as u32);
        let is_whole = (i..self.steps.len()).any(|at| is_inside(at) && !self.steps[at].is_gone && is_needed(at));
        self.steps[i].is_whole = is_whole;
    }

    /// A step is cancelled: because its group fails, or because the run ends.
    pub(super) fn cancelled(&mut self, i: usize) {
        match self.steps[i].parent {
            Some(parent) => self.steps[parent].is_closing = true,
            None => self.is_cancelling = !self.is_undoing(),
        }
    }

    /// The steps right inside of a step.
    fn inside(&self, i: usize) -> impl Iterator<Item = &StepModel> + '_ {
        self.steps.iter().filter(move |step| step.parent == Some(i) && !step.is_gone)
    }

    fn is_loop(&self, i: usize) -> bool {
        matches!(self.step(i).kind, StepKind::Loop { .. }) && self.steps[i].iteration.is_none()
    }

    /// Has everything inside of a group, a loop or an iteration settled, and will it open no more?
    pub(super) fn has_settled_inside(&self, i: usize) -> bool {
        let is_all_there = match self.step(i).kind {
            StepKind::Loop { count, .. } if self.steps[i].iteration.is_none() => self.steps[i].opened == count,
            _ => true,
        };
        is_all_there && self.inside(i).all(|step| matches!(step.phase, ModelPhase::Done(_)))
    }

    pub(super) fn has_failed_inside(&self, i: usize) -> bool {
        self.inside(i).any(is_failed)
    }

    pub(super) fn may_open_iteration(&self, i: usize) -> bool {
        let StepKind::Loop { count, concurrency, .. } = self.step(i).kind else { return false };
        let at_work = self.inside(i).filter(|step| !matches!(step.phase, ModelPhase::Done(_))).count();
        self.is_loop(i) && self.steps[i].opened < count && at_work < concurrency as usize
    }

    /// M10: a group fails when a failure in it is unhandled; at once, at its end or never.
    fn check_group_end(&self, i: usize, is_ok: bool) -> CheckResult {
        let Some(Inner { on_error, .. }) = self.step(i).kind.inner() else { return Ok(()) };
        let is_settled = self.has_settled_inside(i);
        let fails = match self.is_loop(i) {
            true => self.has_failed_inside(i) && on_error != OnError::Continue,
            false => {
                let states = self.predict(Some(i))?;
                let group = self.step(i).kind.inner().map_or(0, |inner| inner.group);
                // The loop decides what the failure of an iteration means.
                let goes_on = on_error == OnError::Continue && self.steps[i].iteration.is_none();
                !goes_on && !oracle::culprits(&self.workflow, group, &states).is_empty()
            }
        };
        let may_be_open = !is_ok && on_error == OnError::Fail;
        require(is_settled || may_be_open, || format!("s{i} ends before everything inside of it has"))?;
        require(fails != is_ok, || format!("s{i} ended, ok: {is_ok}, but its steps imply that it fails: {fails}"))
    }

    /// What the oracle says about the steps of a group, which must not contradict what is recorded.
    pub(super) fn predict(&self, parent: Option<usize>) -> Result<Vec<StepState>, Violation> {
        let group = parent.and_then(|parent| self.step(parent).kind.inner()).map_or(0, |inner| inner.group);
        let members: Vec<usize> =
            self.workflow.groups[group].iter().filter_map(|node| self.sibling(parent, *node)).collect();
        let outcome = |i: &usize| match (self.steps[*i].phase, self.step(*i).kind) {
            (ModelPhase::Done(status), kind) if status != "skipped" && !matches!(kind, StepKind::Set { .. }) => {
                Some(StepOutcome { status, code: self.steps[*i].code })
            }
            _ => None,
        };
        let outcomes: Vec<Option<StepOutcome>> = members.iter().map(outcome).collect();
        // What an operator decided, or what was decided before the run was retried, does not follow from other steps.
        let decided = |place: usize| {
            let seen = &self.steps[members[place]];
            let needs = seen.skipped_for.iter().flatten().map(|need| self.steps[*need as usize].node).collect();
            match seen.phase {
                _ if seen.overridden.is_none() && !seen.is_kept => None,
                ModelPhase::Done("skipped") => Some(StepState::Skipped(needs)),
                ModelPhase::Done(status) => Some(StepState::Settled(StepOutcome { status, code: seen.code })),
                _ => None,
            }
        };
        let states = oracle::evaluate(&self.workflow, group, self.trigger.flag, &outcomes, &decided);
        for (i, state) in members.iter().zip(&states) {
            let predicted = match state {
                StepState::Settled(outcome) => outcome.status,
                StepState::Skipped(_) => "skipped",
                StepState::Blocked | StepState::Ready => "open",
            };
            let status = self.status_of(*i);
            // What is still open may be about to be decided when its group fails.
            let is_open = parent.is_some() && status == "open";
            require(predicted == status || is_open, || format!("s{i} ended as {status}, the oracle says {predicted}"))?;
        }
        Ok(states)
    }
}
