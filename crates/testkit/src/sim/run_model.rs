//! A model of one run that checks every event. It shares no code with the kernel.
//!
//! It is naive on purpose: it has no index and no frontier, and looks up every rule in the [`TestWorkflow`]
//! for each event. It rejects what a correct run never does (I6–I9, I11, I19, I21, I28). At the end of a run
//! it asks the [`oracle`](super::oracle) for the expected outcome. It knows only the events: no store, no
//! node, no clock.

use super::condition::Facts;
use super::oracle;
use super::trigger::Trigger;
use super::undo_model::UndoModel;
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::{ConcurrencyLimit, GeneratedStep, StepKind, TestWorkflow, TriggerPart, WorkerTask};
use engine::mailbox::Dispatch;
use engine::task_queue::ClaimedTask;
use kernel::advance::Work;
use kernel::event::{Because, ConcurrencyGroup, Event, Failure, OnConflict, Override, Queue};
use kernel::{RunStatus, Span, Timestamp};
use std::rc::Rc;

pub struct RunModel {
    pub(super) workflow: Rc<TestWorkflow>,
    /// A large trigger is a separate payload in the store, so a decision may wait for a read.
    pub(super) trigger: Trigger,
    pub(super) steps: Vec<StepModel>,
    status: Option<RunStatus>,
    /// Signals that no step has read, oldest first: the number of each and its name.
    pub(super) unread: Vec<(u64, String)>,
    pub(super) expires_at: Timestamp,
    /// Nothing may start while the run is paused or queued.
    is_paused: bool,
    is_queued: bool,
    /// It is queued until its start time.
    is_delayed: bool,
    /// `Created` was the last event.
    is_new: bool,
    /// Nodes share the store: one that does not own a concurrency group queues its runs, whatever the policy says.
    is_shared: bool,
    /// Steps are being cancelled: only the end of the run may follow.
    pub(super) is_cancelling: bool,
    pub(super) undo: UndoModel,
    /// The step that made the run fail.
    pub(super) culprit: Option<usize>,
}

/// What the events say about one step.
#[derive(Clone, Default)]
pub(super) struct StepModel {
    pub(super) phase: ModelPhase,
    /// Its place in the workflow. An iteration has that of its loop.
    pub(super) node: usize,
    /// The step that it is inside of.
    pub(super) parent: Option<usize>,
    /// The number of an iteration.
    pub(super) iteration: Option<u32>,
    /// How many iterations a loop has opened.
    pub(super) opened: u32,
    /// It fails: what is at work inside of it is being cancelled.
    pub(super) is_closing: bool,
    pub(super) attempts: u32,
    pub(super) charged: u32,
    pub(super) code: Option<u16>,
    pub(super) has_callback: bool,
    /// When a task entered its phase, and when it was first ready or leased.
    pub(super) phase_since: Timestamp,
    pub(super) ready_at: Option<Timestamp>,
    /// How many leases ended because their worker was silent.
    pub(super) leases_lost: u32,
    /// The event with which it began to wait.
    pub(super) waits_since: u64,
    /// It failed because it was not approved.
    pub(super) is_denied: bool,
    /// A group or a loop that has started, or an iteration.
    pub(super) is_begun: bool,
    /// The length of its latest lease.
    pub(super) lease: Span,
    /// The event that counts as its completion, if it can be undone.
    pub(super) done_with: Option<u64>,
    /// The step that it undoes, and the one that undoes it.
    pub(super) undoes: Option<usize>,
    pub(super) undo: Option<usize>,
    pub(super) is_undone: bool,
    /// An operator is about to decide, or has decided, how it ends.
    pub(super) overriding: Option<Override>,
    pub(super) overridden: Option<Override>,
    /// The needs because of which it was skipped, if it was not because of its condition.
    pub(super) skipped_for: Option<Vec<u32>>,
    /// A retry of the run has started what is around it from scratch.
    pub(super) is_gone: bool,
    /// It had settled when the run was retried, and stays as it is.
    pub(super) is_kept: bool,
    /// An iteration whose steps have all stayed in the state when it ended.
    pub(super) is_whole: bool,
    /// How often it began again, and how often although it was done.
    pub(super) rounds: u32,
    pub(super) generation: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum ModelPhase {
    #[default]
    Idle,
    /// It may start, but waits for a worker or for a process that is not draining.
    Ready,
    Running,
    /// A worker has it.
    Leased,
    Retrying(Timestamp),
    Sleeping(Timestamp),
    Waiting(Timestamp),
    /// A group, a loop or an iteration is at work.
    Open,
    /// It waits for a run that it has started.
    Child,
    /// That run has ended with this status, or exists if the step does not wait for its end.
    ChildEnded(Option<RunStatus>),
    /// It was approved or denied, or has read a signal: its end follows.
    Decided(Decided),
    Done(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Decided {
    Approved,
    Denied { is_late: bool },
    Signal,
}

impl RunModel {
    pub fn new(workflow: Rc<TestWorkflow>, trigger: Trigger, is_shared: bool) -> RunModel {
        let steps = (0..workflow.roots()).map(|node| StepModel { node, ..Default::default() }).collect();
        RunModel {
            workflow,
            trigger,
            steps,
            status: None,
            unread: Vec::new(),
            expires_at: Timestamp::NEVER,
            is_paused: false,
            is_queued: false,
            is_delayed: false,
            is_new: false,
            is_shared,
            is_cancelling: false,
            undo: UndoModel::default(),
            culprit: None,
        }
    }

    pub fn is_over(&self) -> bool {
        self.status.is_some_and(|s| s.is_terminal())
    }

    pub(super) fn status(&self) -> Option<RunStatus> {
        self.status
    }

    /// How it ended, if it has.
    pub fn end_status(&self) -> Option<RunStatus> {
        self.status.filter(|status| status.is_terminal())
    }

    pub(super) fn is_held(&self) -> bool {
        self.held_because().is_some()
    }

    /// The run undoes what it did. That may be paused again.
    pub(super) fn begin_compensating(&mut self) {
        self.status = Some(RunStatus::Compensating);
        (self.is_paused, self.is_queued, self.is_delayed) = (false, false, false);
    }

    /// The run goes on after its end.
    pub(super) fn go_on(&mut self, expires_at: Timestamp) {
        (self.status, self.expires_at, self.culprit) = (Some(RunStatus::Running), expires_at, None);
        (self.is_paused, self.is_queued, self.is_delayed, self.is_cancelling) = (false, false, false, false);
        (self.undo, self.is_new) = (UndoModel::default(), true);
    }

    /// Why nothing may start, if nothing may.
    fn held_because(&self) -> Option<&'static str> {
        if self.is_paused {
            return Some("the run is paused");
        }
        self.is_queued.then_some("the run is queued")
    }

    /// When time alone advances the run. While the run is paused or queued, retries are not due.
    pub fn due(&self) -> Timestamp {
        let turn = self.trigger.run_at.filter(|_| self.is_delayed).unwrap_or(Timestamp::NEVER);
        let due = (0..self.steps.len()).filter_map(|i| self.step_due(i));
        let expires_at = if self.is_undoing() { Timestamp::NEVER } else { self.expires_at };
        due.fold(expires_at.min(turn).min(self.called_off_due()), Timestamp::min)
    }

    fn step_due(&self, i: usize) -> Option<Timestamp> {
        if self.steps[i].is_gone {
            return None;
        }
        let own = match self.steps[i].phase {
            ModelPhase::Retrying(_) if self.held_because().is_some() => return None,
            ModelPhase::Retrying(at) | ModelPhase::Sleeping(at) | ModelPhase::Waiting(at) => Some(at),
            ModelPhase::Ready => self.timeout_at(i, |task| task.queue),
            ModelPhase::Leased => self.timeout_at(i, |task| task.attempt),
            ModelPhase::Idle
            | ModelPhase::Running
            | ModelPhase::Open
            | ModelPhase::Child
            | ModelPhase::ChildEnded(_)
            | ModelPhase::Decided(_)
            | ModelPhase::Done(_) => return None,
        };
        own.into_iter().chain(self.total_timeout_at(i)).min()
    }

    /// How many notifications the run sends if it has ended.
    pub fn notifications_expected(&self, has_listener: bool) -> u32 {
        let has_failed = matches!(self.status, Some(RunStatus::Failed | RunStatus::Timeout));
        let own = self.workflow.notifications.iter().filter(|one| has_failed || !one.only_failures).count();
        if self.is_over() { own as u32 + u32::from(has_listener) } else { 0 }
    }

    /// What a step is in the workflow.
    pub(super) fn step(&self, i: usize) -> &GeneratedStep {
        &self.workflow.steps[self.steps[i].node]
    }

    /// The kind of a step; `None` if no such step was opened, and for an iteration.
    pub fn kind(&self, step: u32) -> Option<StepKind> {
        let seen = self.steps.get(step as usize).filter(|seen| seen.iteration.is_none())?;
        Some(self.workflow.steps[seen.node].kind)
    }

    /// Is the step inside of another one?
    pub fn is_inner(&self, step: u32) -> bool {
        self.steps.get(step as usize).is_some_and(|seen| seen.parent.is_some())
    }

    /// How many steps were opened.
    pub fn opened(&self) -> u32 {
        self.steps.len() as u32
    }

    /// The step of this node in the same group, or in the same iteration.
    pub(super) fn sibling(&self, parent: Option<usize>, node: usize) -> Option<usize> {
        let Some(parent) = parent else { return Some(node) };
        let is_sibling = |i: &usize| {
            let other = &self.steps[*i];
            !other.is_gone && other.parent == Some(parent) && other.node == node && other.iteration.is_none()
        };
        (parent..self.steps.len()).find(is_sibling)
    }

    /// The steps that a step needs. They are opened together with it.
    fn needs_of(&self, i: usize) -> impl Iterator<Item = usize> + '_ {
        let parent = self.steps[i].parent;
        self.step(i).needs.iter().filter_map(move |node| self.sibling(parent, *node))
    }

    /// What conditions of a step refer to.
    fn scope_of(&self, i: usize) -> GroupScope<'_> {
        GroupScope { model: self, parent: self.steps[i].parent }
    }

    /// Has the completion of the step been recorded?
    pub fn is_done(&self, step: u32) -> bool {
        self.steps.get(step as usize).is_some_and(|seen| matches!(seen.phase, ModelPhase::Done(_)))
    }

    /// I8, I35: checks the number of effects. A step that succeeded through an executor or a worker had at
    /// least one, and no step had more effects than attempts.
    pub fn check_effects(&self, step: u32, effects: u32) -> CheckResult {
        let (seen, step_definition) = (&self.steps[step as usize], self.step(step as usize));
        let is_task = step_definition.kind.task().is_some();
        let is_executed = (is_task || step_definition.kind.is_executed()) && seen.overridden.is_none();
        let needs_effect = is_executed && seen.phase == ModelPhase::Done("success") && !seen.is_kept;
        ViolationKind::Lost.unless(!needs_effect || effects > 0, || format!("s{step} succeeded without an effect"))?;
        let is_once = step_definition.retry.never && !is_task;
        let most = if is_once { seen.attempts.min(1 + seen.rounds) } else { seen.attempts };
        ViolationKind::Duplicated
            .unless(effects <= most, || format!("s{step} had {effects} effects, at most {most} are allowed"))
    }

    /// Checks that a step of this kind can end this way.
    pub fn check_outcome(&self, step: u32) -> CheckResult {
        let ModelPhase::Done(status) = self.steps[step as usize].phase else { return Ok(()) };
        let definition = self.step(step as usize);
        let is_allowed = match (status, definition.kind) {
            _ if self.steps[step as usize].overridden.is_some() => true,
            ("skipped" | "cancelled", _) => true,
            ("template_error", kind) => kind == StepKind::Set { is_broken: true } || kind.inner().is_some(),
            ("success", kind) => kind != StepKind::Set { is_broken: true },
            ("failed", StepKind::Http(_) | StepKind::Task(_)) => true,
            // Whether it ran is unknown, and it may run only once.
            ("failed", StepKind::Noop) => definition.retry.never,
            ("timeout", StepKind::Task(WorkerTask { queue, attempt, total, .. })) => {
                queue.or(attempt).or(total).is_some()
            }
            ("failed", StepKind::Child(_) | StepKind::Approval(_) | StepKind::Group(_) | StepKind::Loop { .. }) => true,
            ("timeout", kind) => {
                matches!(kind, StepKind::Http(_) | StepKind::Wait(_) | StepKind::Signal(..) | StepKind::Pause(_))
            }
            _ => false,
        };
        require(is_allowed, || format!("s{step} of kind {:?} ended as {status}", definition.kind))
    }

    /// T8: a request is what the template of the step says, filled in once.
    pub fn check_request(&self, dispatch: &Dispatch) -> CheckResult {
        let is_right = match self.step(dispatch.step as usize).kind {
            StepKind::Http(reads) => self.trigger.matches_request(reads, &dispatch.work),
            kind => kind.is_executed() && dispatch.work == Work::Noop,
        };
        require(is_right, || {
            format!("the request of s{} does not match its template: {:?}", dispatch.step, dispatch.work)
        })
    }

    /// The input of a task is what its template says, filled in once.
    pub fn check_task(&self, task: &ClaimedTask) -> CheckResult {
        let Some(expected) = self.step(task.step as usize).kind.task() else {
            return Err(format!("s{} is not a task", task.step).into());
        };
        let is_input = match self.steps[task.step as usize].undoes {
            Some(undone) if expected.reads == TriggerPart::Nothing => self.is_undo_input(undone as u32, task),
            _ => self.trigger.task_input(expected.reads) == task.input,
        };
        let is_right = expected.name == task.name && is_input;
        require(is_right, || format!("a worker gets a task that does not match its template: {task:?}"))
    }

    /// Applies one event, or says why it is illegal. `retry` is what the client asked for that retries the run.
    pub fn observe(&mut self, event: &Event, number: u64, at: Timestamp, retry: (Option<u32>, bool)) -> CheckResult {
        if matches!(event, Event::RunRetried { .. }) {
            return self.retry(event, retry, at);
        }
        if self.is_over() {
            let is_note = matches!(event, Event::LateResult { .. });
            return ViolationKind::Duplicated.unless(is_note, || "an event follows the end of the run".into());
        }
        require(self.status.is_some() == !matches!(event, Event::Created { .. }), || {
            "`Created` must be the first event, and only the first".into()
        })?;
        let ends = matches!(
            event,
            Event::Cancelled { .. } | Event::ChildEnded { .. } | Event::RunCancelled { .. } | Event::RunTimeout {}
        );
        // While it waits for its children, a run keeps a callback for a step that never comes, and notes late results.
        let is_kept = matches!(event, Event::WaitClosed { .. } | Event::LateResult { .. })
            && self.status == Some(RunStatus::Cancelling)
            || matches!(event, Event::Returned { .. });
        let is_late = matches!(event, Event::LateResult { .. });
        require(!is_late || is_kept, || "a late result of a run that goes on".into())?;
        require(!self.is_cancelling || ends || is_kept, || format!("{:?} after a step was cancelled", event.name()))?;
        let is_new = std::mem::take(&mut self.is_new);
        match event {
            Event::Created { origin } => {
                self.expires_at = origin.expires_at;
                self.status = Some(RunStatus::Running);
                self.is_new = true;
                self.check_concurrency_limit(origin.concurrency_group.as_ref())
            }
            Event::Queued { reason } => {
                (self.is_queued, self.status) = (true, Some(RunStatus::Pending));
                self.is_delayed = *reason == Queue::Later;
                let may_wait = match reason {
                    Queue::Limit => {
                        let may_wait =
                            |limit: ConcurrencyLimit| self.is_shared || limit.on_conflict != OnConflict::Skip;
                        self.workflow.concurrency.is_some_and(may_wait)
                    }
                    Queue::WorkflowPaused => true,
                    Queue::Later => self.trigger.run_at.is_some_and(|run_at| run_at > at),
                };
                require(is_new && may_wait, || "the run must not be queued".into())
            }
            Event::Admitted {} => {
                let was_queued = std::mem::take(&mut self.is_queued);
                require(was_queued, || "the run was admitted but not queued".into())?;
                let is_time = !std::mem::take(&mut self.is_delayed) || self.trigger.run_at.is_some_and(|due| at >= due);
                ViolationKind::Early.unless(is_time, || "the run was admitted before its start time".into())?;
                self.change_status(RunStatus::Pending, RunStatus::Running)
            }
            Event::Paused { .. } => {
                let was_paused = std::mem::replace(&mut self.is_paused, true);
                require(!was_paused, || "the run was paused while paused".into())
            }
            Event::Unpaused { .. } => {
                let was_paused = std::mem::take(&mut self.is_paused);
                require(was_paused, || "the run was resumed while not paused".into())
            }
            Event::RunWaiting {} => self.change_status(RunStatus::Running, RunStatus::Waiting),
            Event::RunResumed {} => self.change_status(RunStatus::Waiting, RunStatus::Running),
            Event::RunCompleted {} => self.finish(RunStatus::Completed),
            Event::RunFailed { step, .. } => {
                self.culprit = step.map(|step| step as usize);
                match self.is_undoing() {
                    true => self.status = Some(RunStatus::Failed),
                    false => self.finish(RunStatus::Failed)?,
                }
                self.check_undone(RunStatus::Failed, *step)
            }
            Event::RunCompensating { end } => self.begin_undo(end, at),
            Event::Returned { .. } => self.returned(event, number, at),
            Event::RunCancelled { actor, reason } => {
                self.status = Some(RunStatus::Cancelled);
                if let Some(end) = self.undo.end.clone() {
                    require((&end.actor, &end.reason) == (actor, reason), || {
                        format!("the run is cancelled by {actor}, and {end:?} was planned")
                    })?;
                    return self.check_undone(RunStatus::Cancelled, None);
                }
                let policy = self.workflow.concurrency.map(|limit| limit.on_conflict);
                let is_explained = match reason.as_str() {
                    "approval_denied" | "approval_timeout" if actor == "onward" => {
                        self.check_end(RunStatus::Cancelled)?;
                        return self.check_undone(RunStatus::Cancelled, None);
                    }
                    _ if actor != "onward" => true,
                    "concurrency_limit" => (is_new || self.is_queued) && policy == Some(OnConflict::Skip),
                    // A later version of the workflow may have caused it; the concurrency model checks that.
                    "superseded" => policy.is_some(),
                    _ => false,
                };
                require(is_explained, || format!("the run was cancelled by {actor}: {reason}"))
            }
            Event::RunCancelling { .. } => {
                (self.is_cancelling, self.status) = (true, Some(RunStatus::Cancelling));
                let waits = self.steps.iter().any(|step| step.phase == ModelPhase::Child);
                require(waits, || "the run waits for children that it does not have".into())
            }
            Event::SignalReceived { name, .. } => {
                self.unread.push((number, name.clone()));
                Ok(())
            }
            Event::RunTimeout {} => {
                self.status = Some(RunStatus::Timeout);
                ViolationKind::Early.unless(at >= self.expires_at, || "the run expired early".into())?;
                self.check_undone(RunStatus::Timeout, None)
            }
            Event::LateResult { .. } => Ok(()),
            _ => match event.step() {
                Some(step) if matches!(event, Event::Opened { .. }) => self.open_step(step as usize, event),
                Some(step) if (step as usize) < self.steps.len() => {
                    let was_done = self.is_done(step);
                    self.observe_step(step as usize, event, number, at)?;
                    if !was_done && self.is_done(step) {
                        self.note_done(step as usize, event, number);
                    }
                    Ok(())
                }
                step => Err(format!("step {step:?} does not exist in this plan").into()),
            },
        }
    }

    /// Checks what must hold between two records.
    pub fn check_between_records(&self) -> CheckResult {
        if self.is_over() {
            return Ok(());
        }
        if self.status == Some(RunStatus::Cancelling) {
            let is_waiting = |s: &StepModel| s.phase == ModelPhase::Child;
            return ViolationKind::Stuck
                .unless(self.steps.iter().any(is_waiting), || "the run waits for no child, and does not end".into());
        }
        if self.status == Some(RunStatus::Compensating) {
            return self.check_undo_goes_on();
        }
        let is_held = self.held_because().is_some();
        let is_active = |s: &StepModel| {
            matches!(s.phase, ModelPhase::Running | ModelPhase::Leased) || s.phase == ModelPhase::Ready && !is_held
        };
        let is_running = self.steps.iter().any(is_active);
        let is_unfinished = self
            .steps
            .iter()
            .any(|s| matches!(s.phase, ModelPhase::Decided(_) | ModelPhase::ChildEnded(_)) || s.overriding.is_some());
        require(!is_unfinished, || "a step was decided, but did not end".into())?;
        let waiting = (0..self.steps.len()).filter(|i| matches!(self.steps[*i].phase, ModelPhase::Waiting(_)));
        for (i, name) in waiting.filter_map(|i| self.step(i).kind.signal().map(|name| (i, name))) {
            let is_read = !self.unread.iter().any(|(_, unread)| unread == name);
            ViolationKind::Lost.unless(is_read, || format!("s{i} waits for {name}, which is there"))?;
        }
        let is_undecided = |i: &usize| {
            let step = &self.steps[*i];
            !is_held && !step.is_gone && step.phase == ModelPhase::Idle && self.may_be_decided(*i)
        };
        let undecided = (0..self.steps.len()).find(is_undecided);
        if let (Some(step), false) = (undecided, self.trigger.is_large) {
            return Err(format!("s{step} could be decided but was not").into());
        }
        let is_closing = |s: &StepModel| s.is_closing && s.phase == ModelPhase::Open;
        require(!self.steps.iter().any(is_closing), || "a group was to fail, but did not end".into())?;
        let groups = (0..self.steps.len()).filter(|i| self.steps[*i].phase == ModelPhase::Open);
        // Its result may need a payload first.
        let is_stalled = groups.clone().any(|i| self.has_settled_inside(i));
        if !is_held && !self.trigger.is_large {
            for i in groups {
                let is_due = self.may_open_iteration(i) && !self.has_failed_inside(i);
                require(!is_due, || format!("the loop s{i} could open an iteration but did not"))?;
            }
        }
        if self.is_queued {
            return require(self.status == Some(RunStatus::Pending), || {
                format!("the run is {:?} while queued", self.status)
            });
        }
        let is_waiting = !is_running && undecided.is_none();
        let agrees = is_waiting == (self.status == Some(RunStatus::Waiting))
            || (self.trigger.is_large || is_stalled) && !is_running;
        require(agrees, || format!("the run is {:?}, step running: {is_running}", self.status))
    }

    fn change_status(&mut self, from: RunStatus, to: RunStatus) -> CheckResult {
        let was = self.status.replace(to);
        require(was == Some(from), || format!("the status changes from {was:?} to {to}"))
    }

    fn finish(&mut self, status: RunStatus) -> CheckResult {
        self.status = Some(status);
        self.check_end(status)
    }

    /// Checks the end of a run whose steps have all settled.
    pub(super) fn check_end(&self, status: RunStatus) -> CheckResult {
        // A group that fails at once leaves steps behind that were never decided.
        let has_ended = |s: &StepModel| s.is_gone || s.phase == ModelPhase::Idle && s.parent.is_some();
        require(self.steps.iter().all(|s| matches!(s.phase, ModelPhase::Done(_)) || has_ended(s)), || {
            "the run ended before all its steps".into()
        })?;
        let states = self.predict(None)?;
        let culprits = oracle::culprits(&self.workflow, 0, &states);
        // A denial that nothing handles cancels the run, unless something failed for another reason.
        let expected = match culprits.iter().all(|i| self.steps[*i].is_denied) {
            _ if culprits.is_empty() => RunStatus::Completed,
            true => RunStatus::Cancelled,
            false => RunStatus::Failed,
        };
        require(status == expected, || format!("the run ended as {status}, its steps imply {expected}"))
    }

    fn observe_step(&mut self, i: usize, event: &Event, number: u64, at: Timestamp) -> CheckResult {
        require(!self.steps[i].is_gone, || format!("{} for s{i}, which is gone", event.name().unwrap_or("?")))?;
        if let Event::Overridden { verb, .. } = event {
            return self.override_step(i, *verb, at);
        }
        if self.carry_out_override(i, event, at)? {
            return Ok(());
        }
        let is_forward = self.steps[i].undoes.is_none();
        let may_follow = matches!(event, Event::Cancelled { .. } | Event::ChildEnded { .. } | Event::WaitClosed { .. });
        require(!self.is_undoing() || !is_forward || may_follow, || {
            format!("{} for s{i} while the run undoes what it did", event.name().unwrap_or("?"))
        })?;
        if matches!(event, Event::ChildEnded { .. }) && self.is_called_off(i as u32) {
            return Ok(());
        }
        if matches!(event, Event::Cancelled { .. }) {
            self.call_off(i, at);
        }
        let is_closing = self.steps[i].parent.is_some_and(|parent| self.steps[parent].is_closing);
        let ends = matches!(event, Event::Cancelled { .. } | Event::ChildEnded { .. });
        require(!is_closing || ends, || format!("{} for s{i} in a group that fails", event.name().unwrap_or("?")))?;
        let workflow = self.workflow.clone();
        let GeneratedStep { kind, retry, .. } = &workflow.steps[self.steps[i].node];
        if let StepKind::Task(task) = kind {
            return self.observe_task(i, task, event, at);
        }
        if kind.inner().is_some() {
            return self.observe_group(i, event);
        }
        if let StepKind::Child(call) = kind {
            return self.observe_child(i, call, event, at);
        }
        if matches!(kind, StepKind::Signal(..) | StepKind::Approval(_) | StepKind::Pause(_)) {
            return self.observe_wait(i, event, number, at);
        }
        let phase = self.steps[i].phase;
        let matches_attempt = event.attempt().is_none_or(|a| a == self.steps[i].attempts);
        let is_running = phase == ModelPhase::Running && matches_attempt;
        let illegal = || format!("{} for s{i} in phase {phase:?}", event.name().unwrap_or("?"));
        match event {
            Event::Scheduled { attempt, .. } => {
                self.check_may_attempt(i, at)?;
                self.steps[i].phase = ModelPhase::Ready;
                require(kind.is_executed() && *attempt == self.steps[i].attempts + 1, illegal)
            }
            Event::RetryDue { .. } => {
                self.check_not_held(i)?;
                self.steps[i].phase = ModelPhase::Retrying(at);
                require(matches!(phase, ModelPhase::Retrying(_)), illegal)
            }
            Event::HeldBack { until, .. } => {
                match phase {
                    ModelPhase::Ready => self.check_not_held(i)?,
                    _ => self.check_may_attempt(i, at)?,
                }
                self.steps[i].phase = ModelPhase::Retrying(*until);
                require(matches!(kind, StepKind::Http(_)) && *until > at, illegal)
            }
            Event::Started { attempt, .. } => {
                match phase {
                    ModelPhase::Ready => self.check_not_held(i)?,
                    _ => self.check_may_attempt(i, at)?,
                }
                require(kind.is_executed(), illegal)?;
                let seen = &mut self.steps[i];
                (seen.attempts, seen.charged, seen.phase) = (seen.attempts + 1, seen.charged + 1, ModelPhase::Running);
                require(*attempt == seen.attempts, || format!("s{i}: attempt {attempt} has number {}", seen.attempts))?;
                let most = if retry.never { 1 } else { retry.max_attempts };
                require(seen.charged <= most, || format!("s{i}: attempt {} of {most}", seen.charged))
            }
            Event::Retrying { next, charged, failure, .. } => {
                // An attempt that was handed back sent nothing, so it may run later even with `retry: never`.
                let is_allowed = !retry.never || (!charged && failure.code == "server_stopping");
                require(is_running && is_allowed && *next >= at, illegal)?;
                self.steps[i].charged -= u32::from(!charged);
                self.steps[i].phase = ModelPhase::Retrying(*next);
                Ok(())
            }
            Event::Succeeded { response, .. } => {
                match kind {
                    StepKind::Set { is_broken: false } => self.check_may_begin(i)?,
                    _ => require(is_running, illegal)?,
                }
                self.steps[i].code = response.status_code;
                self.settle(i, "success")
            }
            Event::Failed { failure: Failure { code, .. }, response, .. } => {
                match kind {
                    StepKind::Set { is_broken: true } => self.check_may_begin(i)?,
                    _ => require(is_running && code != "template_error", illegal)?,
                }
                self.steps[i].code = response.as_ref().and_then(|r| r.status_code);
                self.settle(i, if code == "template_error" { "template_error" } else { "failed" })
            }
            Event::TimedOut { .. } => {
                match phase {
                    ModelPhase::Waiting(deadline) => {
                        ViolationKind::Early.unless(at >= deadline, || format!("s{i} timed out early"))?
                    }
                    _ => require(is_running, illegal)?,
                }
                self.settle(i, "timeout")
            }
            Event::Skipped { because, .. } => self.skip(i, because),
            Event::Cancelled { .. } => {
                require(!matches!(phase, ModelPhase::Idle | ModelPhase::Done(_)), illegal)?;
                self.cancelled(i);
                self.settle(i, "cancelled")
            }
            Event::TimerSet { at: until, .. } => {
                let StepKind::Sleep(span) = kind else { return Err(illegal().into()) };
                self.check_may_begin(i)?;
                self.steps[i].phase = ModelPhase::Sleeping(*until);
                require(*until == at.after(*span), || format!("s{i} sleeps until {until:?}"))
            }
            Event::Woken { .. } => {
                let ModelPhase::Sleeping(until) = phase else { return Err(illegal().into()) };
                ViolationKind::Early.unless(at >= until, || format!("s{i} woke early"))?;
                self.settle(i, "success")
            }
            Event::WaitOpened { deadline, .. } => {
                let StepKind::Wait(timeout) = kind else { return Err(illegal().into()) };
                self.check_may_begin(i)?;
                self.steps[i].phase = ModelPhase::Waiting(*deadline);
                let is_right = *deadline == timeout.map_or(self.expires_at, |t| at.after(t));
                require(is_right && !self.steps[i].has_callback, illegal)
            }
            Event::WaitClosed { .. } => {
                let is_early_callback =
                    phase == ModelPhase::Idle && matches!(kind, StepKind::Wait(_)) && !self.steps[i].has_callback;
                self.steps[i].has_callback = true;
                require(is_early_callback, illegal)
            }
            Event::Received { callback, .. } => {
                match (callback, phase) {
                    (Some(_), ModelPhase::Waiting(deadline)) => require(at < deadline, illegal)?,
                    (None, ModelPhase::Idle) if self.steps[i].has_callback => self.check_may_begin(i)?,
                    _ => return Err(illegal().into()),
                }
                self.settle(i, "success")
            }
            _ => Err(illegal().into()),
        }
    }

    pub(super) fn settle(&mut self, i: usize, status: &'static str) -> CheckResult {
        self.steps[i].phase = ModelPhase::Done(status);
        Ok(())
    }

    pub(super) fn skip(&mut self, i: usize, because: &Because) -> CheckResult {
        let step = self.step(i);
        require(self.steps[i].phase == ModelPhase::Idle && self.needs_settled(i), || {
            format!("s{i} is skipped too early")
        })?;
        self.check_not_held(i)?;
        let unsuccessful = self.unsuccessful_needs(i);
        let is_right = match because {
            Because::Needs { steps } => {
                !unsuccessful.is_empty()
                    && steps.len() == unsuccessful.len()
                    && unsuccessful.iter().all(|d| steps.contains(d))
            }
            Because::Condition { .. } => {
                unsuccessful.is_empty() && step.guard.as_ref().is_some_and(|g| !g.holds(&self.scope_of(i)))
            }
            Because::Operator { .. } | Because::Unknown { .. } => false,
        };
        if let Because::Needs { steps } = because {
            self.steps[i].skipped_for = Some(steps.clone());
        }
        require(is_right, || {
            format!("s{i} is skipped because {because:?}; unsuccessful needs in the model: {unsuccessful:?}")
        })?;
        self.settle(i, "skipped")
    }

    /// Checks that the concurrency limit of the run is the one in its definition.
    fn check_concurrency_limit(&self, concurrency_group: Option<&ConcurrencyGroup>) -> CheckResult {
        let seen = concurrency_group
            .map(|g| (g.key.clone(), ConcurrencyLimit { max_runs: g.limit, on_conflict: g.on_conflict }));
        let written = self.workflow.concurrency.map(|limit| (self.trigger.group_key(), limit));
        require(seen == written, || format!("the run has the limit {seen:?}, the definition says {written:?}"))
    }

    /// Nothing may start in a run that is paused or queued.
    pub(super) fn check_not_held(&self, i: usize) -> CheckResult {
        ViolationKind::Early.unless(self.held_because().is_none(), || {
            format!("s{i} advances although {}", self.held_because().unwrap_or("?"))
        })
    }

    /// Checks that the next attempt may begin, which may be the first.
    pub(super) fn check_may_attempt(&self, i: usize, at: Timestamp) -> CheckResult {
        match self.steps[i].phase {
            ModelPhase::Retrying(due) => {
                self.check_not_held(i)?;
                ViolationKind::Early.unless(at >= due, || format!("s{i} is retried early"))
            }
            _ => self.check_may_begin(i),
        }
    }

    pub(super) fn check_may_begin(&self, i: usize) -> CheckResult {
        self.check_not_held(i)?;
        let guard = &self.step(i).guard;
        require(self.steps[i].phase == ModelPhase::Idle, || format!("s{i} begins in phase {:?}", self.steps[i].phase))?;
        require(self.needs_settled(i), || format!("s{i} begins before its needs have settled"))?;
        require(self.unsuccessful_needs(i).is_empty(), || format!("s{i} begins although its needs failed"))?;
        require(guard.as_ref().is_none_or(|g| g.holds(&self.scope_of(i))), || {
            format!("s{i} begins although its condition is false")
        })
    }

    fn needs_settled(&self, i: usize) -> bool {
        self.starts_at_first(i) || self.needs_of(i).all(|need| matches!(self.steps[need].phase, ModelPhase::Done(_)))
    }

    /// A first-join with a need that succeeded does not wait for the others.
    fn starts_at_first(&self, i: usize) -> bool {
        self.step(i).is_first_join && self.needs_of(i).any(|need| self.status_of(need) == "success")
    }

    /// Have its needs settled, and is its group at work?
    fn may_be_decided(&self, i: usize) -> bool {
        let is_at_work = |parent: usize| self.steps[parent].phase == ModelPhase::Open && !self.steps[parent].is_closing;
        self.steps[i].parent.is_none_or(is_at_work) && self.needs_settled(i)
    }

    /// Needs that did not succeed. They do not matter for a step with a condition, which accepts every
    /// outcome.
    fn unsuccessful_needs(&self, i: usize) -> Vec<u32> {
        if self.starts_at_first(i) || self.step(i).guard.is_some() {
            return Vec::new();
        }
        self.needs_of(i).filter(|need| self.status_of(*need) != "success").map(|need| need as u32).collect()
    }

    pub(super) fn status_of(&self, i: usize) -> &'static str {
        match self.steps[i].phase {
            ModelPhase::Done(status) => status,
            _ => "open",
        }
    }
}

/// What conditions inside of a group refer to: the steps of the same group.
struct GroupScope<'a> {
    model: &'a RunModel,
    parent: Option<usize>,
}

impl Facts for GroupScope<'_> {
    fn step_status(&self, node: usize) -> &'static str {
        self.model.sibling(self.parent, node).map_or("open", |i| self.model.status_of(i))
    }
    fn status_code(&self, node: usize) -> Option<u16> {
        self.model.steps[self.model.sibling(self.parent, node)?].code
    }
    fn flag(&self) -> bool {
        self.model.trigger.flag
    }
}
