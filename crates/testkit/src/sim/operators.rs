//! Simulated operators: they retry runs that failed or timed out, skip steps, give their results, and let what waits go
//! on at once; at random moments, right after a commit, and more than once.
//!
//! They ask for what `engine/src/services/repair.rs` and `overrides.rs` let through, and choose steps among those that
//! the run has when the request is sent. The module also has what the [`checker`](super::checker) checks about them.

use super::checker::{Checker, TrackedRun};
use super::client::PlannedRequest;
use super::client_log::{ClientLog, ClientRequest, Ticket};
use super::random::Random;
use super::violation::{CheckResult, ViolationKind, require};
use super::world::{SimEvent, World};
use kernel::advance::StepOverride;
use kernel::event::{Event, Override};
use kernel::run::{Phase, Step};
use kernel::{Admission, Input, Payload, RunId, RunStatus, Timestamp};

/// The most retries of one run.
const RETRIES_MAX: u32 = 4;
/// How many commits of a thousand an operator reacts to.
const DECISIONS: u32 = 60;
const RETRIES: u32 = 600;
/// How many runs of a thousand are cancelled early, after undoing what they did.
const CANCELLATIONS: u32 = 250;

/// What an operator does; the step is chosen when the request is sent.
#[derive(Clone, Copy, Debug)]
pub enum OperatorPlan {
    Decide { verb: Override, choice: u64 },
    Retry { choice: u64 },
}

fn draw_decision(random: &mut Random) -> OperatorPlan {
    let verb = random.pick(&[Override::Skip, Override::Result, Override::RunNow]);
    OperatorPlan::Decide { verb, choice: random.draw() }
}

impl World {
    /// Draws what operators do with a run that starts at `at`, apart from what they do when they see it change.
    pub fn draw_operators(&mut self, run: RunId, at: Timestamp) -> Vec<(Timestamp, PlannedRequest)> {
        let mut planned = Vec::new();
        let random = &mut self.operator_random;
        if self.faults.has_undo && random.chance(CANCELLATIONS) {
            let request = PlannedRequest::new(ClientRequest::Cancel { run, compensate: true });
            planned.push((at.after(random.log_millis(1, 60_000)), request));
        }
        if self.faults.has_overrides {
            for _ in 0..random.below(4) {
                let plan = draw_decision(random);
                planned.push((at.after(random.log_millis(1, 120_000)), PlannedRequest::by_operator(run, plan)));
            }
        }
        if self.faults.has_retries {
            for _ in 0..random.below(3) {
                let plan = OperatorPlan::Retry { choice: random.draw() };
                planned.push((at.after(random.log_millis(100, 240_000)), PlannedRequest::by_operator(run, plan)));
            }
        }
        planned
    }

    /// A run has just changed: sometimes an operator acts on that at once.
    pub fn operators_see(&mut self, run: RunId) {
        let Some(state) = self.checker.stored(run) else { return };
        let has_failed = matches!(state.status(), RunStatus::Failed | RunStatus::Timeout);
        let has_child = state.steps().any(|(_, step)| matches!(step.phase, Phase::Child {}));
        let (is_open, is_undoing) = (!state.is_terminal(), state.status() == RunStatus::Compensating);
        if self.faults.has_retries && has_failed && self.operator_random.chance(RETRIES) {
            for _ in 0..self.operator_random.between(1, 2) {
                let plan = OperatorPlan::Retry { choice: self.operator_random.draw() };
                let delay = self.operator_random.log_millis(1, 20_000);
                self.push(delay, SimEvent::ClientRequest(PlannedRequest::by_operator(run, plan)));
            }
        }
        if is_undoing && self.faults.has_user_pauses && !self.is_liveness_phase && self.operator_random.coin() {
            let (pause, resume) = (ClientRequest::Pause { run }, ClientRequest::Resume { run });
            let delay = self.operator_random.log_millis(1, 2_000);
            self.push(delay, SimEvent::ClientRequest(PlannedRequest::new(pause)));
            let delay = self.operator_random.log_millis(1, 60_000);
            self.push(delay, SimEvent::ClientRequest(PlannedRequest::new(resume)));
        }
        if has_child && self.faults.has_undo && !self.is_liveness_phase && self.operator_random.chance(DECISIONS) {
            let cancel = PlannedRequest::new(ClientRequest::Cancel { run, compensate: true });
            let delay = self.operator_random.log_millis(1, 5_000);
            self.push(delay, SimEvent::ClientRequest(cancel));
        }
        let may_decide = self.faults.has_overrides && is_open && !self.is_liveness_phase;
        if may_decide && self.operator_random.chance(DECISIONS) {
            for _ in 0..self.operator_random.between(1, 2) {
                let plan = draw_decision(&mut self.operator_random);
                let delay = self.operator_random.log_millis(1, 5_000);
                self.push(delay, SimEvent::ClientRequest(PlannedRequest::by_operator(run, plan)));
            }
        }
    }

    /// The request that an operator sends now, if there is one that makes sense.
    pub fn operator_request(&mut self, run: RunId, plan: OperatorPlan) -> Option<ClientRequest> {
        let state = self.checker.stored(run)?;
        let pick = |steps: Vec<u32>, choice: u64| (!steps.is_empty()).then(|| steps[choice as usize % steps.len()]);
        match plan {
            OperatorPlan::Decide { verb, choice } => {
                let may_be_chosen = |(number, step): &(u32, &Step)| {
                    let is_due_later = matches!(step.phase, Phase::Sleeping { .. } | Phase::Retrying { .. });
                    state.iteration(*number).is_none() && (verb != Override::RunNow || is_due_later)
                };
                let open = state.steps().filter(may_be_chosen).filter(|(_, step)| step.outcome().is_none());
                let open: Vec<u32> = open.map(|(number, _)| number).collect();
                let all = state.steps().map(|(number, _)| number).collect();
                let step = if choice % 10 == 0 { pick(all, choice / 10) } else { pick(open, choice / 10) };
                Some(ClientRequest::Override { run, step: step?, verb })
            }
            OperatorPlan::Retry { choice } => {
                let has_failed = matches!(state.status(), RunStatus::Failed | RunStatus::Timeout);
                let is_attached = state.state.origin.parent.as_ref().is_some_and(|parent| !parent.is_detached);
                if is_attached || state.state.retries >= RETRIES_MAX {
                    return None;
                }
                let plan = &self.checker.definition(run)?.version.plan;
                let may_be_named = |step: &u32| state.undoes(plan, *step).is_none();
                let steps = state.steps().map(|(number, _)| number).filter(may_be_named).collect();
                let from = pick(steps, choice / 100).filter(|_| has_failed && choice % 100 < 35);
                Some(ClientRequest::Retry { run, from, allow_irreversible: choice % 2 == 0 })
            }
        }
    }

    /// The input that a request of an operator leads to.
    pub fn operator_input(&mut self, request: &ClientRequest, request_id: Ticket) -> Option<Input> {
        let (actor, reason) = (ClientLog::actor(request_id), "asked for".to_owned());
        match request {
            ClientRequest::Override { step, verb, .. } => {
                let body = (*verb == Override::Result).then(|| given_result(request_id));
                let decision = Box::new(StepOverride { verb: *verb, body, actor, reason });
                Some(Input::Override { step: *step, decision })
            }
            ClientRequest::Retry { run, from, allow_irreversible } => {
                let is_open = self.checker.stored(*run).is_some_and(|run| !run.is_terminal());
                if is_open && from.is_none() {
                    return Some(Input::RetryNow { step: None, actor });
                }
                let (from, allow_irreversible) = (*from, *allow_irreversible);
                self.checker.expect_retry(*run, actor.clone(), from, allow_irreversible);
                Some(Input::Reopen { from, allow_irreversible, actor, reason, admission: Admission::Open })
            }
            _ => None,
        }
    }
}

/// The result that the operator of a request gives.
fn given_result(request_id: Ticket) -> Payload {
    Payload::json(format!("{{\"given\":{request_id}}}"))
}

impl Checker {
    /// The version that a run is pinned to.
    pub fn definition(&self, run: RunId) -> Option<&super::checker::KnownVersion> {
        self.tracked(run).map(|tracked| &tracked.definition)
    }
}

impl TrackedRun {
    /// What a run is told by operators, and its ends.
    pub(super) fn note_operator_event(&mut self, event: &Event, number: u64) {
        if let Some(mark) = self.operator_mark(event) {
            self.operator_marks.push(mark);
        }
        match event {
            Event::RunRetried { actor, steps, .. } => {
                self.actors.insert(actor.clone());
                for step in steps {
                    self.settled_by.remove(step);
                }
                self.given_results.retain(|step, _| self.model.was_overridden(*step));
            }
            Event::Overridden { step, verb, actor, .. } => {
                self.actors.insert(actor.clone());
                if *verb == Override::Result {
                    let request_id = actor.rsplit(' ').next().and_then(|id| id.parse().ok()).unwrap_or_default();
                    self.given_results.insert(*step, given_result(request_id));
                }
            }
            Event::Received { step, callback: Some(callback) } | Event::WaitClosed { step, callback } => {
                self.callbacks.insert((*step, callback.digest.clone()));
            }
            _ => {}
        }
        if event.is_end() {
            self.ends.extend(self.model.end_status());
            self.last_end = number;
        }
    }

    /// The coverage mark of an event, if it depends on the run.
    fn operator_mark(&self, event: &Event) -> Option<&'static str> {
        match event {
            Event::Paused { .. } if self.model.is_undoing() => Some("a run was paused while it undid what it did"),
            Event::Overridden { step, .. } if self.model.is_undo(*step) => Some("an operator decided about an undo"),
            Event::RunRetried { actor, .. } => {
                let from = self.retries.get(actor).and_then(|(from, _)| *from)?;
                let is_inner = self.model.is_inner(from);
                Some(if is_inner { "a retry began inside of a group" } else { "a retry began at a step" })
            }
            _ => None,
        }
    }

    /// The result that an operator gave stays, whatever the attempt reports that was called off.
    pub(super) fn check_given_results(&self) -> CheckResult {
        let Some(run) = &self.run else { return Ok(()) };
        for (step, given) in &self.given_results {
            let Some(state) = run.get(*step).filter(|state| state.outcome().is_some()) else { continue };
            let is_kept = state.body().is_some_and(|body| body.inline == given.inline);
            ViolationKind::Duplicated.unless(is_kept, || {
                format!("an operator gave s{step} the result {:?}, and it is {:?}", given.inline, state.body())
            })?;
        }
        Ok(())
    }

    /// The recovery of the run agrees with what was undone.
    pub(super) fn check_recovery(&self, run: &kernel::Run) -> CheckResult {
        let plan = &self.definition.version.plan;
        if !plan.can_undo() {
            return Ok(());
        }
        let status = |step: u32| match run.step(step).outcome() {
            Some(_) => run.step(step).status().as_str(),
            None => "open",
        };
        let recorded: Vec<(u32, u32, &str)> =
            run.undos().into_iter().map(|(undone, undo)| (undone, undo, status(undo))).collect();
        let expected = self.model.recovery();
        require(recorded == expected, || format!("the recovery is {recorded:?}, expected {expected:?}"))
    }

    /// Checks the idempotency key of an attempt that is given to an executor or to a worker.
    pub(super) fn check_key(&mut self, step: u32, fence: u64, key: &str, repeats: u32) -> CheckResult {
        self.model.check_key(step, key)?;
        let Some(work) = self.works.get(&fence) else { return Ok(()) };
        self.idempotency.attempted(*work, format!("{key}:r{repeats}"))
    }
}
