//! The rules of a run's history: was each event allowed in the state before it?
//!
//! The kernel produces events; this module checks recorded events. It is written separately on purpose: a checker that
//! called the code it checks would agree with its mistakes. It uses the kernel only for the verdict of a run and the
//! value of a condition, on the recorded values.

use super::Code;
use super::run::{Case, context};
use kernel::advance::{ParsedBodies, View, is_taken, unhandled_in_group};
use kernel::event::{Because, Failure, Override, Queue, StepPlace};
use kernel::payload::Payloads;
use kernel::plan::{Body, Guard, Join, Link, Node, OnError};
use kernel::run::{Phase, Place, Run, Step, WaitKind};
use kernel::scope::Unresolved;
use kernel::{Event, Input, Plan, RunStatus, StepStatus, Timestamp, advance, expr};
use std::collections::{BTreeMap, BTreeSet};
use store::Error;

/// An event, and the state of its run before it.
pub(super) struct EventInContext<'a> {
    /// The plan that the event belongs to, and the one that the event before it belonged to.
    pub plan: &'a Plan,
    pub before: &'a Plan,
    /// Before the event.
    pub run: &'a Run,
    pub event: &'a Event,
    pub at: Timestamp,
    /// The events after it in the same record.
    pub later: &'a [Event],
}

/// Checks one event. False when the event cannot be applied, so that the rest of the history cannot be checked.
pub(super) fn check_event(case: &mut Case<'_>, moment: &EventInContext<'_>) -> Result<bool, Error> {
    let EventInContext { run, event, at, .. } = moment;
    let name = event.name().unwrap_or("an event of a later release");
    let is_first = run.state.seq == 0;
    if is_first != matches!(event, Event::Created { .. }) {
        let number = run.state.seq + 1;
        case.say(
            Code::EventOutOfPlace,
            format!("event {number} is `{name}`; a history begins with `run.created`, once"),
        );
        return Ok(false);
    }
    let is_opened = matches!(event, Event::Opened { .. });
    if let Some(step) = event.step().filter(|step| !is_opened && run.get(*step).is_none()) {
        case.say(Code::EventOutOfPlace, format!("`{name}` names step {step}, which the run does not have"));
        return Ok(false);
    }
    let is_fine = match event {
        Event::RunRetried { steps, around, .. } => {
            let is_fine = may_go_on(moment, steps, around);
            if !is_fine {
                case.say(
                    Code::EventOutOfPlace,
                    format!("`{name}` of a run that is {}, of steps {steps:?}", run.status()),
                );
            }
            return Ok(is_fine);
        }
        _ if run.is_terminal() => {
            let is_fine = is_late_result(run, event);
            if !is_fine {
                case.say(Code::EventAfterEnd, format!("`{name}` after the run was {}", run.status()));
            }
            return Ok(is_fine);
        }
        Event::RunWaiting {} => run.status() == RunStatus::Running,
        Event::RunResumed {} => run.status() == RunStatus::Waiting,
        Event::Queued { .. } => is_new(run) || run.state.seq == run.state.retried,
        Event::Copied { step, ended } => {
            let is_root = (*step as usize) < run.state.steps.len() && run.step(*step).copied.is_none();
            run.state.origin.forked_from.is_some() && is_new(run) && is_root && ended.status.outcome().is_some()
        }
        Event::Admitted {} => {
            if let (Some(Queue::Later), Some(due)) = (run.state.queued, run.state.origin.run_at) {
                not_before(case, None, *at, due);
            }
            run.state.queued.is_some()
        }
        Event::Paused { .. } => run.state.paused.is_none(),
        Event::Unpaused { .. } => run.state.paused.is_some(),
        Event::RunFailed { .. } | Event::RunCancelled { .. } | Event::RunTimeout {} if is_undoing(run) => {
            has_undone_all(moment)
        }
        Event::Created { .. } | Event::RunCancelled { .. } | Event::Unknown { .. } => true,
        Event::RunFailed { failure, step: None } if is_limit(failure) => has_reached_limit(moment),
        Event::RunCompleted {} | Event::RunFinished { .. } | Event::RunFailed { .. } => {
            check_end(case, moment)?;
            true
        }
        Event::RunCompensating { end } if end.failure.as_ref().is_some_and(is_limit) => {
            has_reached_limit(moment) && !is_undoing(run)
        }
        Event::RunCompensating { end } => {
            match end.status {
                RunStatus::Timeout => not_before(case, None, *at, run.state.origin.expires_at),
                RunStatus::Cancelled if end.undoes_children => {}
                _ => check_end(case, moment)?,
            }
            !is_undoing(run)
        }
        Event::RunTimeout {} => {
            let due = run.state.origin.expires_at;
            not_before(case, None, *at, due);
            true
        }
        Event::RunCancelling { .. } => {
            run.status() != RunStatus::Cancelling && run.steps().any(|(_, step)| matches!(step.phase, Phase::Child {}))
        }
        Event::SignalReceived { .. } => run.status() != RunStatus::Cancelling && !is_undoing(run),
        Event::Moved { nodes, .. } => may_move(moment, nodes),
        Event::Opened { step, node, parent, index } => may_open(moment, *step, *node, *parent, *index),
        // Only allowed after the run's end, and while it waits for its children to end.
        Event::LateResult { .. } => run.status() == RunStatus::Cancelling && is_late_result(run, event),
        _ => return check_step_event(case, moment, name),
    };
    if !is_fine {
        case.say(Code::EventOutOfPlace, format!("`{name}` while the run is {}", run.status()));
    }
    Ok(is_fine)
}

/// Whether the run has only been created, as a fork with what it took over.
fn is_new(run: &Run) -> bool {
    let copied = run.steps().filter(|(_, step)| step.copied.is_some()).count() as u64;
    run.state.seq == 1 + copied
}

/// Whether this notes a result that came too late, the first one of its step.
fn is_late_result(run: &Run, event: &Event) -> bool {
    matches!(event, Event::LateResult { step, attempt, .. }
        if run.get(*step).is_some_and(|state| !state.late && *attempt > 0 && *attempt == state.attempt))
}

/// M9, M28: only a run that failed or timed out goes on. Of the steps that had succeeded, those run again that depend on
/// another one that does. What is around a step that runs again is at work again, and each step is named once.
fn may_go_on(moment: &EventInContext<'_>, steps: &[u32], around: &[u32]) -> bool {
    let run = moment.run;
    let all: BTreeSet<u32> = steps.iter().chain(around).copied().collect();
    let is_there = |step: &u32| run.get(*step).is_some() && run.undoes(moment.plan, *step).is_none();
    matches!(run.status(), RunStatus::Failed | RunStatus::Timeout)
        && all.len() == steps.len() + around.len()
        && all.iter().all(|step| is_there(step) && run.parent(*step).is_none_or(|parent| around.contains(&parent)))
        && around.iter().all(|step| run.node(moment.plan, *step).inner().is_some())
        && steps.iter().all(|step| run.iteration(*step).is_none())
}

/// Whether a run failed because it would have begun too many steps.
fn is_limit(failure: &Failure) -> bool {
    failure.code.starts_with("max_steps_exceeded:")
}

/// A24: such a run has begun as many steps as it may.
fn has_reached_limit(moment: &EventInContext<'_>) -> bool {
    let limit = moment.plan.layout().max_steps;
    limit > 0 && moment.run.state.begun >= limit
}

fn is_undoing(run: &Run) -> bool {
    run.status() == RunStatus::Compensating
}

/// A run that undoes what it did ends when nothing is left to undo, as it said it would.
fn has_undone_all(moment: &EventInContext<'_>) -> bool {
    let run = moment.run;
    let Some(end) = &run.state.compensating else { return false };
    let is_as_said = match moment.event {
        Event::RunFailed { step, .. } => end.status == RunStatus::Failed && end.step == *step,
        Event::RunCancelled { .. } => end.status == RunStatus::Cancelled,
        _ => end.status == RunStatus::Timeout,
    };
    let has_open_undo = run.undos().iter().any(|(_, undo)| run.step(*undo).outcome().is_none());
    is_as_said && run.still_to_undo().next().is_none() && run.state.called_off.is_empty() && !has_open_undo
}

/// Undo goes backwards, one step at a time, beside no attempt.
fn may_undo(moment: &EventInContext<'_>, node: u32, undone: u32) -> bool {
    let run = moment.run;
    let has_open_undo = run.undos().iter().any(|(_, undo)| run.step(*undo).outcome().is_none());
    let is_its_undo = run.get(undone).is_some() && run.node(moment.plan, undone).undo == Some(node);
    let is_last = run.still_to_undo().next() == Some(undone);
    is_undoing(run) && is_its_undo && is_last && run.state.called_off.is_empty() && !has_open_undo
}

/// A run ends when every step has settled, with the kernel's verdict.
fn check_end(case: &mut Case<'_>, moment: &EventInContext<'_>) -> Result<(), Error> {
    let mut payloads = Payloads::new();
    let decided = loop {
        let context = context(case.stored, moment.at, &payloads);
        let decided = advance(moment.plan, &mut moment.run.clone(), vec![Input::Wake], &context);
        let Some(missing) = decided.missing.first().copied() else { break decided };
        // A payload that is missing is reported elsewhere.
        let Some(body) = case.payload(missing)? else { return Ok(()) };
        payloads.insert(missing, body);
    };
    let events = decided.record.map(|record| record.events).unwrap_or_default();
    let is_same = match (events.as_slice(), moment.event) {
        ([Event::RunCompleted {}], Event::RunCompleted {}) => true,
        ([Event::RunFinished { output: decided }], Event::RunFinished { output }) => decided == output,
        ([Event::RunFailed { step: decided, .. }], Event::RunFailed { step, .. }) => decided == step,
        ([Event::RunCancelled { .. }], Event::RunCancelled { .. }) => true,
        ([Event::RunCompensating { end: decided }, ..], Event::RunCompensating { end }) => {
            (decided.status, decided.step) == (end.status, end.step)
        }
        _ => false,
    };
    if !is_same {
        let names: Vec<&str> = events.iter().filter_map(Event::name).collect();
        let name = moment.event.name().unwrap_or_default();
        case.say(Code::WrongEnd, format!("`{name}`, where its steps lead to [{}]", names.join(", ")));
    }
    Ok(())
}

/// M32: a run moves while nothing is at work, and every step keeps its key and, once it has begun, its kind.
fn may_move(moment: &EventInContext<'_>, nodes: &BTreeMap<u32, u32>) -> bool {
    let EventInContext { plan, before, run, .. } = moment;
    let is_at_work = |step: &Step| matches!(step.phase, Phase::Running { .. } | Phase::Leased { .. } | Phase::Child {});
    let is_same = |(step, state): (u32, &Step)| {
        let Some(node) = nodes.get(&step).filter(|node| (**node as usize) < plan.nodes().len()) else { return false };
        let place = StepPlace { node: *node, ..run.place(step) };
        let kind = |node: &Node| node.body.as_ref().map(Body::kind);
        let has_begun = !matches!(state.phase, Phase::Pending {});
        plan.key(&place) == run.key(before, step)
            && (!has_begun || kind(run.node(before, step)) == kind(plan.node_at(*node)))
    };
    !is_undoing(run)
        && run.status() != RunStatus::Cancelling
        && run.state.called_off.is_empty()
        && !run.steps().any(|(_, step)| is_at_work(step))
        && run.steps().all(is_same)
}

/// Whether an inner step may be opened now: it belongs into the step around it, and is not there yet.
fn may_open(moment: &EventInContext<'_>, step: u32, node: u32, parent: u32, index: u32) -> bool {
    let EventInContext { plan, run, .. } = moment;
    let is_next = run.steps().all(|(number, _)| number < step) && !run.has_left(step);
    if plan.undoes(node).is_some() {
        return is_next && may_undo(moment, node, parent);
    }
    if parent == Place::ROOT {
        let is_root = (node as usize) < plan.root().len() && run.step_in(None, node).is_none();
        return is_next && is_root && !run.state.moves.is_empty();
    }
    let Some(Phase::Open {}) = run.get(parent).map(|around| &around.phase) else { return false };
    if run.node_number(parent) != node {
        return is_next
            && plan.around(node) == Some(run.node_number(parent))
            && run.step_in(Some(parent), node).is_none();
    }
    let (Some(repeat), Some(iterations)) = (plan.node_at(node).repeat(), &run.step(parent).iterations) else {
        return false;
    };
    let open = run.children(parent).filter(|step| run.step(*step).outcome().is_none()).count() as u32;
    let is_in_list = iterations.count.is_none_or(|count| index < count);
    is_next && is_in_list && index == iterations.opened && open < repeat.concurrency.max(1)
}

/// Whether a group, an iteration or a loop may end as it does: nothing is at work inside of it, and it fails exactly if
/// a failure inside of it is not handled.
fn may_close(moment: &EventInContext<'_>, step: u32, failure: Option<&Failure>) -> bool {
    let EventInContext { plan, run, .. } = moment;
    let node = run.node(plan, step);
    let Some(group) = node.inner() else { return false };
    let is_pending = |step: &u32| matches!(run.step(*step).phase, Phase::Pending {});
    let is_at_work = |step: &u32| run.step(*step).outcome().is_none() && !is_pending(step);
    if run.children(step).any(|step| is_at_work(&step)) {
        return false;
    }
    let is_own = |failure: &Failure| matches!(failure.code.as_str(), "template_error" | "state_limit");
    let (has_failed, is_done) = match &run.step(step).iterations {
        Some(iterations) => {
            let has_failed = iterations.settled.values().any(|one| !matches!(one.status, StepStatus::Success));
            (has_failed, iterations.count.is_none_or(|count| iterations.opened == count))
        }
        None => {
            let is_done = run.children(step).count() == plan.group(group).len();
            (!unhandled_in_group(plan, run, step).is_empty(), is_done && !run.children(step).any(|s| is_pending(&s)))
        }
    };
    let goes_on = group.on_error == OnError::Continue && run.iteration(step).is_none();
    match failure {
        None => is_done && (!has_failed || goes_on),
        // Its own, or that of a step inside of it, which has the same code.
        Some(failure) if is_own(failure) && is_done => true,
        Some(failure)
            if node.repeat().is_some() && matches!(failure.code.as_str(), "max_iterations" | "too_many_steps") =>
        {
            true
        }
        Some(_) => has_failed && !goes_on && (is_done || group.on_error != OnError::Finish),
    }
}

fn check_step_event(case: &mut Case<'_>, moment: &EventInContext<'_>, name: &str) -> Result<bool, Error> {
    let EventInContext { run, event, at, .. } = moment;
    let Some(step) = event.step() else { return Ok(true) };
    let state = run.step(step);
    let kind = run.node(moment.plan, step).wait_kind();
    let starts = matches!(
        event,
        Event::Scheduled { .. }
            | Event::Leased { .. }
            | Event::Started { .. }
            | Event::GroupStarted { .. }
            | Event::LoopStarted { .. }
            | Event::TimerSet { .. }
            | Event::WaitOpened { .. }
            | Event::ApprovalRequested { .. }
            | Event::ChildStarted { .. }
    );
    let is_fine = match (&state.phase, event) {
        (
            Phase::Done { .. }
            | Phase::Running { .. }
            | Phase::Leased { .. }
            | Phase::Sleeping { .. }
            | Phase::Waiting { .. }
            | Phase::Open {}
            | Phase::Child {},
            _,
        ) if starts => {
            case.say_step(Code::StartedTwice, step, format!("`{name}` while the step is {}", state.status()));
            return Ok(false);
        }
        // What an operator decided follows at once.
        (phase, Event::Overridden { .. }) => {
            return Ok(!matches!(phase, Phase::Done { .. }) && !moment.later.is_empty());
        }
        (_, Event::Skipped { because: Because::Operator { .. }, .. }) => state.overridden == Some(Override::Skip),
        (_, Event::Succeeded { .. }) if state.overridden == Some(Override::Result) => true,
        // An attempt that was called off with its step comes to its end.
        // What an operator decided about the step may be the next event.
        (_, Event::Returned { attempt, .. }) | (Phase::Done { .. }, Event::ChildEnded { attempt, .. })
            if run.state.called_off.get(&step).is_some_and(|called_off| called_off.attempt == *attempt) =>
        {
            true
        }
        (Phase::Done { status }, event) if !matches!(event, Event::WaitClosed { .. }) => {
            case.say_step(Code::SettledTwice, step, format!("`{name}` after the step was {status}"));
            return Ok(false);
        }
        // One callback that arrives before its wait opens is kept.
        (Phase::Pending {}, Event::WaitClosed { .. }) => {
            state.callback.is_none() && is_webhook(moment.run.node(moment.plan, step))
        }
        (
            Phase::Pending {},
            Event::Scheduled { .. }
            | Event::Leased { .. }
            | Event::Started { .. }
            | Event::GroupStarted { .. }
            | Event::LoopStarted { .. }
            | Event::TimerSet { .. }
            | Event::HeldBack { .. }
            | Event::WaitOpened { .. }
            | Event::ApprovalRequested { .. }
            | Event::ChildStarted { .. }
            | Event::SignalConsumed { .. }
            | Event::Succeeded { .. }
            | Event::Received { callback: None, .. }
            | Event::Failed { .. }
            | Event::Skipped { .. },
        ) => {
            check_decision(case, moment, step)?;
            true
        }
        // Workers lease tasks; this process starts every other kind of step.
        (Phase::Ready {} | Phase::Retrying { .. }, Event::Leased { .. } | Event::Started { .. })
            if is_task(moment.run.node(moment.plan, step)) != matches!(event, Event::Leased { .. }) =>
        {
            false
        }
        (Phase::Ready {}, Event::Leased { .. } | Event::Started { .. } | Event::Failed { .. }) => true,
        (Phase::Ready {} | Phase::Retrying { .. }, Event::HeldBack { .. })
            if moment.run.node(moment.plan, step).http().is_none() =>
        {
            false
        }
        (Phase::Ready {}, Event::HeldBack { .. }) => true,
        (
            Phase::Retrying { at: due },
            Event::Leased { .. }
            | Event::Started { .. }
            | Event::Scheduled { .. }
            | Event::HeldBack { .. }
            | Event::ChildStarted { .. },
        ) => {
            not_before(case, Some(step), *at, *due);
            true
        }
        (Phase::Ready {} | Phase::Leased { .. } | Phase::Retrying { .. }, Event::TimedOut { failure, .. })
            if is_task(moment.run.node(moment.plan, step)) =>
        {
            check_timeout(case, moment, step, failure)
        }
        (Phase::Retrying { .. }, Event::Failed { .. } | Event::RetryDue { .. }) => true,
        (Phase::Running { .. } | Phase::Leased { .. }, Event::Retrying { next, .. }) => {
            not_before(case, Some(step), *next, *at);
            true
        }
        (Phase::Running { .. }, Event::Succeeded { .. } | Event::Failed { .. } | Event::TimedOut { .. }) => true,
        (
            Phase::Leased { .. },
            Event::Succeeded { .. }
            | Event::Failed { .. }
            | Event::Progress { .. }
            | Event::Logged { .. }
            | Event::Kept { .. },
        ) => true,
        (Phase::Sleeping { .. }, Event::Woken { .. }) if state.overridden == Some(Override::RunNow) => true,
        (Phase::Sleeping { until: due }, Event::Woken { .. })
        | (Phase::Waiting { deadline: due }, Event::TimedOut { .. }) => {
            not_before(case, Some(step), *at, *due);
            true
        }
        (Phase::Waiting { deadline: due }, Event::Received { callback: Some(_), .. }) => {
            in_time(case, step, *at, *due);
            state.callback.is_none() && kind == Some(WaitKind::Webhook)
        }
        (Phase::Waiting { deadline: due }, Event::SignalConsumed { signal, .. }) => {
            in_time(case, step, *at, *due);
            kind == Some(WaitKind::Signal) && is_unread(run, *signal)
        }
        // The signal that it has just read.
        (Phase::Waiting { .. }, Event::Received { callback: None, .. }) => {
            kind == Some(WaitKind::Signal) && state.callback.is_some()
        }
        (Phase::Waiting { deadline: due }, Event::Continued { .. }) => {
            in_time(case, step, *at, *due);
            kind == Some(WaitKind::Pause)
        }
        (Phase::Waiting { deadline: due }, Event::ApprovalDecided { actor, .. }) => {
            // Without an actor, the deadline has decided.
            match actor.is_empty() {
                true => not_before(case, Some(step), *at, *due),
                false => in_time(case, step, *at, *due),
            }
            kind == Some(WaitKind::Approval) && state.approval.as_ref().is_some_and(|it| it.decision.is_none())
        }
        // The decision is an event of its own.
        (Phase::Waiting { .. }, Event::Succeeded { .. } | Event::Failed { .. }) => {
            kind == Some(WaitKind::Approval) && state.approval.as_ref().is_some_and(|it| it.decision.is_some())
        }
        (Phase::Child {}, Event::ChildEnded { child, .. }) => {
            state.child.as_ref().is_some_and(|link| link.run == *child && link.status.is_none())
        }
        // The end of the child is an event of its own, and this one is in the same record.
        (Phase::Child {}, Event::Succeeded { .. } | Event::Failed { .. }) => true,
        (Phase::Child {}, Event::Retrying { next, .. }) => {
            not_before(case, Some(step), *next, *at);
            true
        }
        (Phase::Open {}, Event::Succeeded { .. }) => may_close(moment, step, None),
        (Phase::Open {}, Event::Failed { failure, .. }) => may_close(moment, step, Some(failure)),
        // Steps are cancelled together with their run or with a step around them, in the same record.
        (
            Phase::Ready {}
            | Phase::Running { .. }
            | Phase::Leased { .. }
            | Phase::Retrying { .. }
            | Phase::Sleeping { .. }
            | Phase::Waiting { .. }
            | Phase::Child {}
            | Phase::Open {},
            Event::Cancelled { .. },
        ) => {
            let around: Vec<u32> = std::iter::successors(run.parent(step), |step| run.parent(*step)).collect();
            let is_ending = matches!(run.status(), RunStatus::Cancelling | RunStatus::Compensating);
            is_ending
                || moment.later.iter().any(|event| match event {
                    Event::RunCancelled { .. } | Event::RunTimeout {} => true,
                    Event::RunFailed { failure, step: None } => is_limit(failure),
                    Event::Failed { step, .. } | Event::Cancelled { step } | Event::Overridden { step, .. } => {
                        around.contains(step)
                    }
                    _ => false,
                })
        }
        _ => false,
    };
    match is_fine {
        true => check_attempt(case, moment, step),
        false => case.say_step(Code::EventOutOfPlace, step, format!("`{name}` while the step is {}", state.status())),
    }
    Ok(is_fine)
}

/// A step may time out only by a limit that it has, and not before that limit has passed. False when it has no such
/// limit.
fn check_timeout(case: &mut Case<'_>, moment: &EventInContext<'_>, step: u32, failure: &Failure) -> bool {
    let state = moment.run.step(step);
    let Some(task) = moment.run.node(moment.plan, step).task() else { return false };
    let (since, limit) = match (&state.phase, failure.code.as_str()) {
        (Phase::Ready {}, "queue_timeout") => (Some(state.since), task.queue),
        (Phase::Leased { .. }, "timeout") => (Some(state.since), task.attempt),
        (_, "total_timeout") => (state.ready_at, task.total),
        _ => return false,
    };
    let (Some(since), Some(limit)) = (since, limit) else { return false };
    not_before(case, Some(step), moment.at, since.after(limit));
    true
}

/// Attempts are numbered from 1, results name the attempt under way, and no more attempts are charged than the retry
/// policy allows.
fn check_attempt(case: &mut Case<'_>, moment: &EventInContext<'_>, step: u32) {
    let state = moment.run.step(step);
    let retry = &moment.run.node(moment.plan, step).retry;
    let expected = match moment.event {
        Event::Started { .. } | Event::Leased { .. } | Event::ChildStarted { .. } => {
            let most = if retry.never { 1 } else { retry.max_attempts.max(1) };
            if state.charged >= most {
                let message =
                    format!("attempt {} is charged attempt {} of {most}", state.attempt + 1, state.charged + 1);
                case.say_step(Code::AttemptsOverPolicy, step, message);
            }
            state.attempt + 1
        }
        // Not an attempt yet, but the event carries the number of the next one.
        Event::Scheduled { .. } => state.attempt + 1,
        // The result of an operator counts as an attempt if there was none.
        Event::Succeeded { .. } if state.overridden == Some(Override::Result) => state.attempt.max(1),
        // The kernel executes the step itself, in one attempt.
        Event::Succeeded { .. } | Event::Failed { .. } if matches!(state.phase, Phase::Waiting { .. }) => 1,
        Event::Succeeded { .. } if matches!(state.phase, Phase::Pending {} | Phase::Open {}) => 1,
        _ => state.attempt,
    };
    if let Some(attempt) = moment.event.attempt().filter(|attempt| *attempt != expected) {
        case.say_step(Code::AttemptNumbers, step, format!("attempt {attempt} where {expected} is due"));
    }
}

fn not_before(case: &mut Case<'_>, step: Option<u32>, at: Timestamp, due: Timestamp) {
    if at < due {
        let message = format!("{} before its time", due.since(at));
        match step {
            Some(step) => case.say_step(Code::TimerEarly, step, message),
            None => case.say(Code::TimerEarly, message),
        }
    }
}

/// What a wait accepts must arrive before its deadline: at the deadline itself, the deadline wins (M20, M22).
fn in_time(case: &mut Case<'_>, step: u32, at: Timestamp, deadline: Timestamp) {
    if at >= deadline {
        case.say_step(Code::AcceptedLate, step, format!("{} after the deadline of its wait", at.since(deadline)));
    }
}

/// The right decision about a step whose parents have settled.
enum StepDecision {
    /// These parents did not end as the step needs.
    Skip(Vec<u32>),
    /// Its condition is false.
    Refuse,
    Start,
    /// Its condition reads a truncated value.
    Fail,
    /// A payload that the condition reads is missing, which is reported elsewhere.
    Unclear,
}

fn check_decision(case: &mut Case<'_>, moment: &EventInContext<'_>, step: u32) -> Result<(), Error> {
    let EventInContext { plan, run, event, at, .. } = moment;
    let node = run.node(plan, step);
    let outcome = |link: &Link| run.step(run.step_in(run.parent(step), link.from)?).outcome();
    let is_early = node.join == Join::Any && node.links.iter().any(|link| is_taken(run, run.parent(step), link));
    if let Some(link) = node.links.iter().find(|link| outcome(link).is_none() && !is_early) {
        let parent = &plan.node_at(link.from).key;
        case.say_step(Code::StartedTooSoon, step, format!("`{parent}` had not ended"));
        return Ok(());
    }
    let is_right = match (decide(case, moment, step)?, event) {
        (StepDecision::Unclear, _) => true,
        (StepDecision::Skip(dead), Event::Skipped { because: Because::Needs { steps }, .. }) => dead == *steps,
        (StepDecision::Refuse, Event::Skipped { because: Because::Condition { .. }, .. }) => true,
        (StepDecision::Fail, Event::Failed { failure, .. }) => failure.code == "template_error",
        (StepDecision::Start, event) => is_start_of(node, run, step, event),
        (StepDecision::Skip(_) | StepDecision::Refuse | StepDecision::Fail, _) => false,
    };
    if !is_right {
        let name = event.name().unwrap_or_default();
        case.say_step(Code::WrongDecision, step, format!("`{name}` is not what its needs and its condition lead to"));
    }
    // A timer's due time is computed when it is set.
    let times = match (event, &node.body) {
        (Event::TimerSet { at: set, .. }, Some(Body::Sleep { span })) => Some((*set, at.after(*span))),
        (Event::WaitOpened { deadline, .. }, Some(Body::Webhook { timeout })) => {
            Some((*deadline, timeout.map_or(run.state.origin.expires_at, |timeout| at.after(timeout))))
        }
        _ => None,
    };
    if let Some((set, due)) = times.filter(|(set, due)| set != due) {
        case.say_step(Code::TimerEarly, step, format!("set for {} µs, due at {} µs", set.0, due.0));
    }
    Ok(())
}

fn decide(case: &Case<'_>, moment: &EventInContext<'_>, step: u32) -> Result<StepDecision, Error> {
    let EventInContext { plan, run, at, .. } = moment;
    let node = run.node(plan, step);
    let mut dead: Vec<u32> = Vec::new();
    let mut has_taken = false;
    for link in &node.links {
        let Some(from) = run.step_in(run.parent(step), link.from) else { continue };
        let is_taken = is_taken(run, run.parent(step), link);
        has_taken |= is_taken;
        if !is_taken && !dead.contains(&from) {
            dead.push(from);
        }
    }
    let is_dead = match node.join {
        Join::All => !dead.is_empty(),
        Join::Any => !has_taken && node.guard.is_none(),
    };
    if is_dead {
        return Ok(StepDecision::Skip(dead));
    }
    let Some(Guard { expr: Some(expr), .. }) = &node.guard else { return Ok(StepDecision::Start) };
    let (mut payloads, parsed) = (Payloads::new(), ParsedBodies::default());
    loop {
        let context = context(case.stored, *at, &payloads);
        let view = View::new(plan, run, &context, &parsed);
        let missing = match expr::truth(expr, &view.of(step), &mut Vec::new()) {
            Ok(true) => return Ok(StepDecision::Start),
            Ok(false) => return Ok(StepDecision::Refuse),
            Err(Unresolved::Truncated { .. }) => return Ok(StepDecision::Fail),
            Err(Unresolved::Stored(number)) => number,
        };
        let Some(body) = case.payload(missing)? else { return Ok(StepDecision::Unclear) };
        payloads.insert(missing, body);
    }
}

/// Does the event start or execute the node's body?
fn is_start_of(node: &Node, run: &Run, step: u32, event: &Event) -> bool {
    let failed = |codes: &[&str]| matches!(event, Event::Failed { failure: Failure { code, .. }, .. } if codes.contains(&code.as_str()));
    match &node.body {
        Some(Body::Http { .. } | Body::Log { .. } | Body::Noop {}) => {
            let is_held = matches!(event, Event::HeldBack { .. }) && node.http().is_some();
            is_held || matches!(event, Event::Scheduled { .. } | Event::Started { .. }) || failed(&["template_error"])
        }
        Some(Body::Task { task }) => {
            let is_refused = !task.of_type.is_empty() && failed(&["type_not_allowed"]);
            matches!(event, Event::Scheduled { .. } | Event::Leased { .. }) || failed(&["template_error"]) || is_refused
        }
        Some(Body::Set { .. }) => {
            matches!(event, Event::Succeeded { .. }) || failed(&["template_error", "state_limit"])
        }
        Some(Body::Sleep { .. }) => matches!(event, Event::TimerSet { .. }),
        Some(Body::Webhook { .. }) => match run.step(step).callback {
            Some(_) => matches!(event, Event::Received { callback: None, .. }),
            None => matches!(event, Event::WaitOpened { .. }),
        },
        Some(Body::Signal { .. }) => match event {
            Event::SignalConsumed { signal, .. } => is_unread(run, *signal),
            Event::Received { callback: None, .. } => run.step(step).callback.is_some(),
            Event::WaitOpened { .. } => true,
            _ => false,
        },
        Some(Body::Approval { .. }) => {
            matches!(event, Event::ApprovalRequested { .. }) || failed(&["template_error", "state_limit"])
        }
        Some(Body::Pause { .. }) => matches!(event, Event::WaitOpened { .. }),
        Some(Body::Child { .. }) => {
            let own = ["template_error", "workflow_not_allowed", "too_deep", "too_many_children", "input_too_large"];
            matches!(event, Event::ChildStarted { .. }) || failed(&own)
        }
        Some(Body::Group { .. }) => matches!(event, Event::GroupStarted { .. }) || failed(&["too_many_steps"]),
        Some(Body::Loop { .. }) => {
            let own = ["template_error", "not_a_list", "max_iterations", "state_limit"];
            matches!(event, Event::LoopStarted { .. }) || failed(&own)
        }
        // A step kind of a later release is never started.
        Some(Body::Unknown { .. }) | None => false,
    }
}

/// Whether no step has read the signal that arrived with this event.
fn is_unread(run: &Run, signal: u64) -> bool {
    run.state.signals.iter().any(|unread| unread.number == signal)
}

fn is_task(node: &Node) -> bool {
    node.task().is_some()
}

fn is_webhook(node: &Node) -> bool {
    matches!(node.body, Some(Body::Webhook { .. }))
}
