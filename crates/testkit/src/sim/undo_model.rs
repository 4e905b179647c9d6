//! The part of the [`run_model`](super::run_model) that knows undo: what a run takes back before it ends, in which order
//! and when (M24 to M26).
//!
//! It keeps one event number for each step that is done, and one entry for each attempt that was called off and may
//! still be at work. From these it predicts each undo, and when the run must not begin one yet.

use super::run_model::{ModelPhase, RunModel, StepModel};
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::StepKind;
use engine::task_queue::ClaimedTask;
use kernel::event::{EndAfterUndo, Event, Failure};
use kernel::{RunStatus, Span, Timestamp};
use serde_json::Value;
use std::collections::BTreeMap;

/// How long a request may take, and what has no limit of its own.
const REQUEST_MAX: Span = Span::from_secs(30);
const EXECUTOR_MAX: Span = Span::from_secs(10);
/// The codes of failures after which it is not known whether the work was done.
const UNKNOWN: [&str; 6] = ["outcome_unknown", "quarantined", "lease_lost", "timeout", "total_timeout", "network"];

#[derive(Default)]
pub(super) struct UndoModel {
    /// Set while the run takes back what it did: how it ends afterwards.
    pub end: Option<EndAfterUndo>,
    /// Attempts that were called off and have not come to their end, by step.
    pub called_off: BTreeMap<usize, LateAttempt>,
    /// The undo at work.
    pub undoing: Option<usize>,
}

#[derive(Clone, Copy)]
pub(super) struct LateAttempt {
    attempt: u32,
    /// When it is given up.
    pub until: Timestamp,
}

fn is_unknown(failure: &Failure) -> bool {
    UNKNOWN.contains(&failure.code.as_str())
}

impl RunModel {
    /// Can this step be undone? An iteration is a part of its loop, which is undone as a whole.
    fn has_undo(&self, i: usize) -> bool {
        self.step(i).undo.by.is_some() && self.steps[i].iteration.is_none()
    }

    /// The steps that are to be undone, with the event that counts as their completion.
    fn to_undo(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let is_left = |(_, step): &(usize, &StepModel)| !step.is_gone && step.undo.is_none();
        self.steps.iter().enumerate().filter(is_left).filter_map(|(i, step)| Some((step.done_with?, i)))
    }

    /// Is there anything to undo, or an attempt at work that may turn out to be?
    fn must_undo(&self) -> bool {
        self.to_undo().next().is_some() || self.undo.called_off.keys().any(|step| self.has_undo(*step))
    }

    /// Must the run undo something before it ends that is stopped now?
    fn must_undo_if_stopped(&self, awaits_children: bool) -> bool {
        let is_at_work =
            |step: &StepModel| matches!(step.phase, ModelPhase::Running | ModelPhase::Leased | ModelPhase::Child);
        let may_be_undone = |i: usize| !self.steps[i].is_gone && is_at_work(&self.steps[i]) && self.has_undo(i);
        let is_awaited = |i: usize| {
            let is_closed = matches!(self.step(i).kind, StepKind::Child(call) if call.is_closed_with_parent);
            awaits_children && is_closed && self.steps[i].phase == ModelPhase::Child
        };
        self.must_undo() || (0..self.steps.len()).any(|i| may_be_undone(i) || is_awaited(i))
    }

    pub(super) fn is_undo(&self, step: u32) -> bool {
        self.steps[step as usize].undoes.is_some()
    }

    pub(super) fn is_undoing(&self) -> bool {
        self.undo.end.is_some()
    }

    /// The run begins to take back what it did.
    pub(super) fn begin_undo(&mut self, end: &EndAfterUndo, at: Timestamp) -> CheckResult {
        require(!self.is_undoing(), || "the run begins to undo twice".into())?;
        let is_denial = end.actor == "onward" && end.reason.starts_with("approval_");
        let must = match end.status {
            RunStatus::Timeout => {
                ViolationKind::Early.unless(at >= self.expires_at, || "the run expired early".into())?;
                self.must_undo_if_stopped(false)
            }
            RunStatus::Cancelled if !is_denial => {
                require(end.undoes_children, || "a cancellation undoes, and the children do not".into())?;
                self.must_undo_if_stopped(true)
            }
            status => {
                self.check_end(status)?;
                self.must_undo()
            }
        };
        require(must, || format!("the run undoes what it did before it is {}, and did nothing", end.status))?;
        self.undo.end = Some(end.clone());
        self.begin_compensating();
        Ok(())
    }

    /// A run ends for this reason without undoing anything, or after it has.
    pub(super) fn check_undone(&mut self, status: RunStatus, culprit: Option<u32>) -> CheckResult {
        let Some(end) = self.undo.end.take() else {
            return ViolationKind::Lost.unless(!self.must_undo(), || {
                format!(
                    "the run is {status} and undoes nothing, although it must: {:?}",
                    self.to_undo().collect::<Vec<_>>()
                )
            });
        };
        require((end.status, end.step) == (status, culprit), || {
            format!("the run is {status} after it undid for {end:?}")
        })?;
        let left: Vec<(u64, usize)> = self.to_undo().collect();
        ViolationKind::Lost.unless(left.is_empty(), || format!("the run ends, and {left:?} are not undone"))?;
        let is_over = self.undo.called_off.is_empty() && self.undo.undoing.is_none();
        ViolationKind::Early.unless(is_over, || "the run ends while an attempt or an undo is at work".into())
    }

    /// Checks what must hold between two records while the run undoes what it did.
    pub(super) fn check_undo_goes_on(&self) -> CheckResult {
        let is_at_work = self.undo.undoing.is_some() || !self.undo.called_off.is_empty() || self.is_held();
        ViolationKind::Stuck.unless(is_at_work, || "the run undoes what it did, and nothing is at work".into())
    }

    /// The undo of a step begins: the latest one that is done comes first, and nothing else is at work.
    pub(super) fn open_undo(&mut self, step: usize, node: usize, undone: usize) -> CheckResult {
        let named = || format!("s{step} is to undo s{undone}");
        ViolationKind::Duplicated
            .unless(step == self.steps.len(), || format!("{}, and the next number is {}", named(), self.steps.len()))?;
        let is_its =
            self.steps.get(undone).is_some_and(|seen| !seen.is_gone) && self.step(undone).undo.by == Some(node);
        require(is_its && self.is_undoing() && !self.is_held(), named)?;
        ViolationKind::Duplicated
            .unless(self.undo.undoing.is_none(), || format!("{} beside s{:?}", named(), self.undo.undoing))?;
        let is_at_work = |step: &StepModel| {
            !step.is_gone && matches!(step.phase, ModelPhase::Running | ModelPhase::Leased | ModelPhase::Child)
        };
        let is_quiet = self.undo.called_off.is_empty() && !self.steps.iter().any(is_at_work);
        ViolationKind::Early.unless(is_quiet, || {
            format!("{}, and attempts are at work: {:?}", named(), self.undo.called_off.keys().collect::<Vec<_>>())
        })?;
        let expected = self.to_undo().max();
        ViolationKind::Duplicated.unless(self.to_undo().any(|(_, i)| i == undone), || {
            format!("{}, which was undone already or did nothing", named())
        })?;
        require(expected.is_some_and(|(_, i)| i == undone), || format!("{}, but next is {expected:?}", named()))?;
        self.steps[undone].undo = Some(step);
        self.undo.undoing = Some(step);
        self.steps.push(StepModel { node, undoes: Some(undone), ..Default::default() });
        Ok(())
    }

    /// An attempt at work is called off with its step. It stays known if anything of the run may have to be undone.
    pub(super) fn call_off(&mut self, i: usize, at: Timestamp) {
        if !self.workflow.can_undo() && !self.is_undoing() {
            return;
        }
        let until = match (self.steps[i].phase, self.step(i).kind) {
            (ModelPhase::Leased, _) => at.after(self.steps[i].lease),
            (ModelPhase::Running, StepKind::Http(_)) => at.after(REQUEST_MAX),
            (ModelPhase::Running, _) => at.after(EXECUTOR_MAX),
            (ModelPhase::Child, _) => Timestamp::NEVER,
            _ => return,
        };
        self.undo.called_off.insert(i, LateAttempt { attempt: self.steps[i].attempts, until });
    }

    /// Does the run wait for a child that no step waits for any more?
    pub fn awaits_called_off_child(&self) -> bool {
        self.is_undoing() && self.undo.called_off.values().any(|called_off| called_off.until == Timestamp::NEVER)
    }

    /// Does the run undo what it did, and wait for a time, a report or a worker?
    pub fn waits_in_undo(&self) -> bool {
        let is_held = self.is_held();
        let is_active = |step: &StepModel| match step.phase {
            ModelPhase::Running | ModelPhase::Leased => true,
            ModelPhase::Ready => !is_held,
            // An undo that needs a payload first.
            ModelPhase::Idle => !is_held && step.undoes.is_some() && !step.is_gone,
            _ => false,
        };
        self.is_undoing() && !self.steps.iter().any(is_active)
    }

    pub fn is_called_off(&self, step: u32) -> bool {
        self.undo.called_off.contains_key(&(step as usize))
    }

    /// When the next attempt that was called off is given up.
    pub(super) fn called_off_due(&self) -> Timestamp {
        self.undo.called_off.values().map(|called_off| called_off.until).min().unwrap_or(Timestamp::NEVER)
    }

    /// An attempt that was called off has come to its end.
    pub(super) fn returned(&mut self, event: &Event, number: u64, at: Timestamp) -> CheckResult {
        let Event::Returned { step, attempt, response, failure, .. } = event else { return Ok(()) };
        let i = *step as usize;
        let called_off = self.undo.called_off.remove(&i);
        let called_off = called_off.filter(|called_off| called_off.attempt == *attempt);
        ViolationKind::Duplicated.unless(called_off.is_some(), || {
            format!("attempt {attempt} of s{step} comes to its end, and was not called off")
        })?;
        let is_given_up = failure.as_ref().is_some_and(|failure| failure.code == "outcome_unknown");
        let is_time = called_off.is_some_and(|called_off| at >= called_off.until);
        ViolationKind::Early.unless(!is_given_up || is_time, || format!("s{step} is given up too early"))?;
        let may_be_done = failure.as_ref().is_some_and(is_unknown) && self.step(i).undo.if_unknown;
        if (response.is_some() || may_be_done) && self.has_undo(i) {
            self.steps[i].done_with = Some(number);
        }
        Ok(())
    }

    /// A step has settled with this event.
    pub(super) fn note_done(&mut self, i: usize, event: &Event, number: u64) {
        if let Some(undone) = self.steps[i].undoes {
            self.undo.undoing.take_if(|undo| *undo == i);
            self.steps[undone].is_undone = self.steps[i].phase == ModelPhase::Done("success");
            return;
        }
        let failure = match event {
            Event::Failed { failure, .. } | Event::TimedOut { failure, .. } => Some(failure),
            _ => None,
        };
        let is_unknown = failure.is_some_and(is_unknown) && self.step(i).undo.if_unknown;
        let is_done = self.steps[i].phase == ModelPhase::Done("success") || is_unknown;
        if is_done && self.has_undo(i) {
            self.steps[i].done_with = Some(number);
        }
    }

    /// S27: what a worker gets that undoes a step and has no input of its own.
    pub(super) fn is_undo_input(&self, undone: u32, task: &ClaimedTask) -> bool {
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
        let input = read(&task.input);
        let (run, key) = (task.run.to_string(), self.key_of(undone));
        input["payload"] == read(&self.trigger.body())
            && input["context"]["run_id"] == run.as_str()
            && input["step"]["key"] == key.as_str()
            && !input["failure"].is_null()
    }

    /// What became of undoing the steps of the run: what each undo undoes, its number, and its status.
    pub fn recovery(&self) -> Vec<(u32, u32, &'static str)> {
        let undos = self.steps.iter().enumerate().filter(|(_, step)| !step.is_gone);
        let undos = undos.filter_map(|(i, step)| Some((step.undoes? as u32, i as u32, self.status_of(i))));
        undos.collect()
    }
}
