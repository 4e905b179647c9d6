//! The part of the [`run_model`](super::run_model) that knows what a retry of a run that has ended opens again (M28, M29).
//!
//! It searches the generated workflow and what the events said, without the kernel: what was lost runs again, and so
//! does what depends on a step whose work does not count any more. Invariant: nothing else runs again.

use super::oracle::{self, StepOutcome, StepState};
use super::run_model::{ModelPhase, RunModel, StepModel};
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::StepKind;
use kernel::event::Event;
use kernel::plan::OnError;
use kernel::{RunStatus, Timestamp};
use std::collections::BTreeSet;

/// What a retry opens again.
struct RepairSearch<'a> {
    run: &'a RunModel,
    /// Steps that are pending again.
    steps: BTreeSet<usize>,
    /// Groups, loops and iterations that are at work again.
    around: BTreeSet<usize>,
    /// Steps whose dependents run again, too.
    changed: BTreeSet<usize>,
}

fn has_failed(status: &str) -> bool {
    matches!(status, "failed" | "timeout" | "template_error")
}

impl RepairSearch<'_> {
    /// The members of a group or an iteration, or the iterations of a loop; of the root group without a step.
    fn members(&self, group: Option<usize>) -> Vec<usize> {
        match group {
            None => (0..self.run.workflow.roots()).collect(),
            Some(_) => {
                let is_member = |(_, step): &(usize, &StepModel)| step.parent == group && !step.is_gone;
                self.run.steps.iter().enumerate().filter(is_member).map(|(i, _)| i).collect()
            }
        }
    }

    fn dependents(&self, step: usize) -> Vec<usize> {
        let (group, node) = (self.run.steps[step].parent, self.run.steps[step].node);
        let mut members = self.members(group);
        members
            .retain(|other| self.run.step(*other).needs.contains(&node) && self.run.steps[*other].iteration.is_none());
        members
    }

    /// The failures in a group that nothing in it has handled.
    fn unhandled(&self, group: Option<usize>) -> Vec<usize> {
        let members = self.members(group);
        let state = |i: &usize| match self.run.status_at_end(*i) {
            "skipped" => StepState::Skipped(Vec::new()),
            status => StepState::Settled(StepOutcome { status, code: None }),
        };
        let states: Vec<StepState> = members.iter().map(state).collect();
        let number = group.and_then(|group| self.run.step(group).kind.inner()).map_or(0, |inner| inner.group);
        oracle::unhandled(&self.run.workflow, number, &states).into_iter().map(|place| members[place]).collect()
    }

    fn is_loop(&self, step: usize) -> bool {
        matches!(self.run.step(step).kind, StepKind::Loop { .. }) && self.run.steps[step].iteration.is_none()
    }

    fn goes_on(&self, step: usize) -> bool {
        self.run.step(step).kind.inner().is_some_and(|inner| inner.on_error == OnError::Continue)
    }

    fn reopen_lost(&mut self, group: Option<usize>) {
        let unhandled = match group.is_some_and(|group| self.goes_on(group)) {
            true => Vec::new(),
            false => self.unhandled(group),
        };
        for step in self.members(group) {
            if self.run.status_at_end(step) == "cancelled" || unhandled.contains(&step) {
                self.reopen(step);
            }
        }
    }

    fn reopen(&mut self, step: usize) {
        match self.run.steps[step].is_begun {
            true => self.enter(step),
            false => drop(self.steps.insert(step)),
        }
    }

    /// Have steps of this group or iteration left the state, because an iteration around them has ended?
    fn has_lost_steps(&self, step: usize) -> bool {
        let has_left = |at: usize| {
            let seen = &self.run.steps[at];
            let can_go_on =
                self.run.status_of(at) == "success" || self.goes_on(at) && has_failed(self.run.status_of(at));
            seen.iteration.is_some() && can_go_on && !seen.is_whole
        };
        let mut around = std::iter::successors(Some(step), |at| self.run.steps[*at].parent);
        let has_left = around.any(has_left);
        has_left && !self.is_loop(step) && !self.members(Some(step)).into_iter().all(|member| self.has_failure(member))
    }

    /// Did this step fail, or one inside of it? Such a step stays in the state.
    fn has_failure(&self, step: usize) -> bool {
        let is_own = self.run.steps[step].iteration.is_none() && has_failed(self.run.status_of(step));
        is_own || self.members(Some(step)).into_iter().any(|inner| self.has_failure(inner))
    }

    /// A group, loop or iteration is at work again, and what was lost in it is opened.
    fn enter(&mut self, step: usize) {
        if self.has_lost_steps(step) {
            return self.redo(match self.run.steps[step].iteration {
                Some(_) => self.run.steps[step].parent.unwrap_or(step),
                None => step,
            });
        }
        if !self.around.insert(step) {
            return;
        }
        if !self.is_loop(step) {
            return self.reopen_lost(Some(step));
        }
        let goes_on = self.goes_on(step);
        for iteration in self.members(Some(step)) {
            let status = self.run.status_at_end(iteration);
            if status == "cancelled" || has_failed(status) && !goes_on {
                self.enter(iteration);
            }
        }
    }

    /// A step runs again, and everything that depends on it.
    fn redo(&mut self, step: usize) {
        if self.run.steps[step].iteration.is_some() {
            return self.members(Some(step)).into_iter().for_each(|inner| self.redo(inner));
        }
        let is_new = self.steps.insert(step);
        if self.changed.insert(step) || is_new {
            self.result_changes(step);
        }
    }

    /// What depends on a step runs again, and what is around it has another result.
    fn result_changes(&mut self, step: usize) {
        self.dependents(step).into_iter().for_each(|dependent| self.redo(dependent));
        let Some(around) = self.run.steps[step].parent else { return };
        self.enter(around);
        if self.changed.insert(around) {
            self.result_changes(around);
        }
    }

    /// What was skipped because of a step that runs again is decided again.
    fn reopen_skipped(&mut self) {
        let mut open: Vec<usize> = self.steps.union(&self.around).copied().collect();
        while let Some(step) = open.pop() {
            if self.run.steps[step].iteration.is_some() {
                continue;
            }
            for dependent in self.dependents(step) {
                let seen = &self.run.steps[dependent];
                let is_because = match &seen.skipped_for {
                    Some(needs) => needs.contains(&(step as u32)),
                    None => seen.overridden.is_none(),
                };
                let is_skipped = self.run.status_at_end(dependent) == "skipped";
                if is_skipped && is_because && self.steps.insert(dependent) {
                    open.push(dependent);
                }
            }
        }
    }

    /// The steps that run again and what is around them, without what is inside of a group that starts from scratch.
    fn finish(self) -> (Vec<u32>, Vec<u32>) {
        let RepairSearch { run, steps, around, .. } = self;
        let is_outermost = |step: &&usize| {
            std::iter::successors(run.steps[**step].parent, |step| run.steps[*step].parent)
                .all(|around| !steps.contains(&around))
        };
        let around = around.iter().filter(|step| !steps.contains(step)).filter(is_outermost);
        let around = around.map(|step| *step as u32).collect();
        (steps.iter().filter(is_outermost).map(|step| *step as u32).collect(), around)
    }
}

impl RunModel {
    /// The status of a step when its run has ended: what had not settled was cancelled.
    fn status_at_end(&self, i: usize) -> &'static str {
        match self.status_of(i) {
            "open" => "cancelled",
            status => status,
        }
    }

    /// What a retry must open again that begins with these steps.
    fn expected_repair(&self, from: Option<usize>) -> (Vec<u32>, Vec<u32>) {
        let (steps, around, changed) = Default::default();
        let mut search = RepairSearch { run: self, steps, around, changed };
        search.reopen_lost(None);
        if let Some(culprit) = self.culprit.filter(|culprit| has_failed(self.status_of(*culprit))) {
            search.reopen(culprit);
        }
        for i in 0..self.steps.len() {
            if self.steps[i].is_undone && !self.steps[i].is_gone {
                search.redo(i);
            }
        }
        from.into_iter().for_each(|step| search.redo(step));
        search.reopen_skipped();
        search.finish()
    }

    /// The irreversible steps that are done among these and those inside of them.
    fn irreversible_among(&self, steps: &[u32]) -> Option<usize> {
        let is_inside = |i: usize| {
            let mut around = std::iter::successors(Some(i), |i| self.steps[*i].parent);
            around.any(|around| steps.contains(&(around as u32)))
        };
        let is_done = |i: usize| self.step(i).undo.is_irreversible && self.status_of(i) == "success";
        (0..self.steps.len())
            .find(|i| !self.steps[*i].is_gone && self.steps[*i].iteration.is_none() && is_done(*i) && is_inside(*i))
    }

    /// A run that had failed or timed out goes on. `from` is the step that the client named, and `may_repeat` whether it
    /// allowed that irreversible steps run again.
    pub(super) fn retry(
        &mut self,
        event: &Event,
        (from, may_repeat): (Option<u32>, bool),
        at: Timestamp,
    ) -> CheckResult {
        let Event::RunRetried { steps, around, expires_at, .. } = event else { return Ok(()) };
        let may_go_on = matches!(self.status(), Some(RunStatus::Failed | RunStatus::Timeout));
        ViolationKind::Duplicated.unless(may_go_on, || format!("a run that is {:?} goes on", self.status()))?;
        let expected = self.expected_repair(from.map(|step| step as usize));
        let repeated =
            steps.iter().find(|step| self.status_of(**step as usize) == "success" && !expected.0.contains(step));
        ViolationKind::Duplicated
            .unless(repeated.is_none(), || format!("{repeated:?} succeeded, and a retry runs it again"))?;
        require((steps, around) == (&expected.0, &expected.1), || {
            format!(
                "a retry from {from:?} opens {steps:?} in {around:?}, expected {:?} in {:?}",
                expected.0, expected.1
            )
        })?;
        let irreversible = self.irreversible_among(steps);
        ViolationKind::Duplicated.unless(may_repeat || irreversible.is_none(), || {
            format!("a retry runs {irreversible:?} again, which is irreversible")
        })?;
        require(*expires_at == at.after(self.workflow.max_duration), || format!("the run expires at {expires_at:?}"))?;
        let kept = (0..self.steps.len()).filter(|i| matches!(self.steps[*i].phase, ModelPhase::Done(_)));
        for i in kept.collect::<Vec<_>>() {
            self.steps[i].is_kept = true;
        }
        steps.iter().for_each(|step| self.begin_again(*step as usize));
        for i in around.iter().map(|step| *step as usize) {
            if let Some(undo) = self.steps[i].undo.take() {
                self.steps[undo].is_gone = true;
            }
            let seen = &mut self.steps[i];
            (seen.phase, seen.code, seen.is_closing, seen.is_denied) = (ModelPhase::Open, None, false, false);
            (seen.is_kept, seen.overridden, seen.done_with) = (false, None, None);
        }
        self.go_on(*expires_at);
        Ok(())
    }

    /// A step is pending again. What was inside of it is gone, and so is what has undone it.
    fn begin_again(&mut self, i: usize) {
        let is_inside =
            |at: usize| std::iter::successors(self.steps[at].parent, |at| self.steps[*at].parent).any(|at| at == i);
        let is_its_undo = |at: usize| self.steps[at].undoes.is_some_and(|undone| undone == i || is_inside(undone));
        let gone: Vec<usize> = (0..self.steps.len()).filter(|at| is_inside(*at) || is_its_undo(*at)).collect();
        gone.into_iter().for_each(|at| self.steps[at].is_gone = true);
        let was_unread = matches!(self.status_at_end(i), "skipped" | "cancelled");
        let was_done = self.steps[i].is_begun || self.status_of(i) == "success" || self.steps[i].is_undone;
        let old = std::mem::take(&mut self.steps[i]);
        self.steps[i] = StepModel {
            node: old.node,
            parent: old.parent,
            attempts: old.attempts,
            has_callback: old.has_callback && was_unread,
            rounds: old.rounds + 1,
            generation: old.generation + u32::from(was_done),
            ..Default::default()
        };
    }
}
