//! The planner of graphs: groups of nodes with links, nested and repeated.
//!
//! A node whose links are decided starts or is skipped; its end decides the links of others. A group ends when its
//! nodes have; an iteration is a group; a loop opens iterations until its list is done or its condition is false. An
//! unhandled failure ends its group at once, unless the group goes on after errors.

use super::outcome::{self, unhandled_in};
use super::{Finish, Move, Next, Planner, Settlement, StartTarget};
use crate::advance::{APPROVAL_DENIED, APPROVAL_TIMEOUT, STATE_MAX, Stop, View, is_denial};
use crate::event::{Because, Failure};
use crate::expr::{self, Seen};
use crate::payload::Payload;
use crate::plan::{GroupBody, Guard, Join, Link, Node, OnError, Plan, Repeat, distinct_parents};
use crate::planted_bugs::{self, Bug};
use crate::run::{LastStep, Phase, Run, STEPS_MAX};
use crate::status::{Outcome, StepStatus};
use crate::template;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default)]
pub struct GraphPlanner {
    /// For each root step, what its links still wait for.
    root_left: Vec<u32>,
    /// The same for inner steps.
    inner_left: BTreeMap<u32, u32>,
    root_unsettled: u32,
    /// Pending steps that can be decided, by number.
    frontier: BTreeSet<u32>,
    /// Groups, loops and iterations at work.
    open: BTreeMap<u32, OpenGroup>,
    /// Those of them that may be able to end, or to go on.
    changed: BTreeSet<u32>,
    /// Decisions that need a payload first, or that wait until the run is resumed.
    stalled: BTreeSet<u32>,
    /// The output of the run needs a payload first.
    is_finish_stalled: bool,
    has_ended: bool,
}

/// What is known of a group, loop or iteration at work.
#[derive(Clone, Debug, Default)]
struct OpenGroup {
    /// Its inner steps that have not settled; of a loop, the open iterations.
    unsettled: u32,
    /// The steps at work in a group with a limit.
    working: BTreeSet<u32>,
    /// Steps that could be decided if the limit allowed it.
    blocked: BTreeSet<u32>,
    has_failures: bool,
}

impl Planner for GraphPlanner {
    fn tidy(&mut self, plan: &Plan, run: &Run) {
        for step in std::mem::take(&mut self.frontier) {
            if !self.is_blocked(plan, run, step) {
                self.frontier.insert(step);
            }
        }
        let open = &self.open;
        self.changed.retain(|step| {
            let progress = &open[step];
            let ends_at_failures = run.node(plan, *step).inner().is_some_and(|group| group.on_error == OnError::Fail);
            let has_failed = || match run.group_body(plan, *step) {
                Some(_) => !unhandled_in(plan, run, Some(*step)).is_empty(),
                None => true,
            };
            progress.unsettled == 0
                || progress.has_failures && ends_at_failures && has_failed()
                || can_open_more(plan, run, *step, progress)
        });
    }

    fn rebuild(&mut self, plan: &Plan, run: &Run) {
        *self = GraphPlanner { root_left: vec![0; run.state.steps.len()], ..GraphPlanner::default() };
        if run.is_terminal() {
            return self.ended();
        }
        for (step, state) in run.steps() {
            let is_settled = state.outcome().is_some();
            if !is_settled {
                match run.parent(step) {
                    None => self.root_unsettled += 1,
                    Some(parent) => self.open.entry(parent).or_default().unsettled += 1,
                }
            }
            if matches!(state.phase, Phase::Open {}) {
                self.open.entry(step).or_default();
                self.changed.insert(step);
            }
            if matches!(state.outcome(), Some(Outcome::Failed | Outcome::TimedOut))
                && let Some(parent) = run.parent(step).filter(|parent| run.step(*parent).outcome().is_none())
            {
                self.open.entry(parent).or_default().has_failures = true;
            }
            if run.iteration(step).is_some() {
                continue;
            }
            // Of a failed iteration only the steps that failed are left, and not what they needed.
            if !is_settled || (step as usize) < self.root_left.len() {
                self.watch(plan, run, step);
            }
            if !is_settled && !matches!(state.phase, Phase::Pending {}) {
                self.note_working(plan, run, step);
            }
        }
        for (step, progress) in &mut self.open {
            let settled = run.step(*step).iterations.iter().flat_map(|iterations| iterations.settled.values());
            progress.has_failures |= settled.filter(|iteration| has_failed(iteration.status)).count() > 0;
        }
        self.tidy(plan, run);
    }

    fn opened(&mut self, plan: &Plan, run: &Run, step: u32) {
        if self.has_ended {
            return;
        }
        match run.parent(step) {
            Some(parent) => self.open.entry(parent).or_default().unsettled += 1,
            None => self.root_unsettled += 1,
        }
        match run.iteration(step) {
            Some((of, _)) => {
                self.open.entry(step).or_default();
                self.changed.insert(of);
            }
            None => self.watch(plan, run, step),
        }
    }

    fn begun(&mut self, plan: &Plan, run: &Run, step: u32) {
        if self.has_ended {
            return;
        }
        self.frontier.remove(&step);
        self.note_working(plan, run, step);
    }

    fn started(&mut self, plan: &Plan, run: &Run, step: u32) {
        if self.has_ended {
            return;
        }
        self.open.entry(step).or_default();
        if run.node(plan, step).repeat().is_some() {
            self.changed.insert(step);
        }
    }

    fn settled(&mut self, plan: &Plan, run: &Run, step: u32) {
        if self.has_ended {
            return;
        }
        self.frontier.remove(&step);
        self.inner_left.remove(&step);
        self.stalled.remove(&step);
        self.open.remove(&step);
        self.changed.remove(&step);
        let parent = run.parent(step);
        if run.iteration(step).is_none() {
            self.decide_links_from(plan, run, step, parent);
        }
        let Some(parent) = parent else {
            self.root_unsettled -= 1;
            return;
        };
        let Some(progress) = self.open.get_mut(&parent) else { return };
        progress.unsettled -= 1;
        progress.has_failures |= has_failed(run.step(step).status());
        if progress.working.remove(&step) {
            self.frontier.append(&mut progress.blocked);
        }
        progress.blocked.remove(&step);
        let is_loop = run.group_body(plan, parent).is_none();
        if progress.unsettled == 0 || progress.has_failures || is_loop {
            self.changed.insert(parent);
        }
    }

    fn left(&mut self, step: u32) {
        self.inner_left.remove(&step);
    }

    fn ended(&mut self) {
        *self = GraphPlanner { has_ended: true, ..GraphPlanner::default() };
    }

    fn next(&mut self, view: &View<'_>, is_held: bool) -> Next {
        while let Some(step) = self.changed.pop_last() {
            match self.look(view, step, is_held) {
                Ok(Next::Nothing) => {}
                Ok(next) => return next,
                Err(stop) => return self.stop(step, stop, Vec::new()),
            }
        }
        if is_held {
            return self.finish(view);
        }
        while let Some(step) = self.frontier.pop_first() {
            if self.is_blocked(view.plan, view.run, step) {
                continue;
            }
            return self.decide(view, step);
        }
        self.finish(view)
    }

    fn stalled(&mut self, step: u32) {
        self.stalled.insert(step);
    }

    fn unstall(&mut self) {
        self.is_finish_stalled = false;
        for step in std::mem::take(&mut self.stalled) {
            match self.open.contains_key(&step) {
                true => self.changed.insert(step),
                false => self.frontier.insert(step),
            };
        }
    }

    fn has_moves(&self) -> bool {
        let can_finish = self.root_unsettled == 0 && !self.has_ended;
        can_finish || !self.frontier.is_empty() || !self.changed.is_empty() || !self.stalled.is_empty()
    }

    fn boxed(&self) -> Box<dyn Planner> {
        Box::new(self.clone())
    }
}

fn has_failed(status: StepStatus) -> bool {
    matches!(status.outcome(), Some(Outcome::Failed | Outcome::TimedOut))
}

impl GraphPlanner {
    /// Counts what the links of a step wait for, and notes the step if it can be decided.
    fn watch(&mut self, plan: &Plan, run: &Run, step: u32) {
        let (node, group) = (run.node(plan, step), run.parent(step));
        let from = |link: &Link| run.step_in(group, link.from).map(|from| run.step(from));
        let left = match node.join {
            Join::All => {
                let mut settled: Vec<u32> = node
                    .links
                    .iter()
                    .filter(|link| from(link).is_some_and(|step| step.outcome().is_some()))
                    .map(|link| link.from)
                    .collect();
                settled.sort_unstable();
                settled.dedup();
                distinct_parents(node) - settled.len()
            }
            Join::Any => any_left(node, |link| from(link).and_then(|step| step.outcome())),
        };
        match self.root_left.get_mut(step as usize) {
            Some(slot) => *slot = left as u32,
            None => drop(self.inner_left.insert(step, left as u32)),
        }
        if left == 0 {
            self.note_decidable(plan, run, step);
        }
    }

    fn note_decidable(&mut self, plan: &Plan, run: &Run, step: u32) {
        let is_buggy = planted_bugs::is(Bug::FirstJoinTwice) && run.node(plan, step).join == Join::Any;
        let is_pending = matches!(run.step(step).phase, Phase::Pending {}) || is_buggy;
        if is_pending && plan.is_known(run.node_number(step)) {
            self.frontier.insert(step);
        }
    }

    fn decide_links_from(&mut self, plan: &Plan, run: &Run, step: u32, group: Option<u32>) {
        for dependent in plan.dependents(run.node_number(step)) {
            let Some(dependent) = run.step_in(group, *dependent) else { continue };
            let node = run.node(plan, dependent);
            let left = match self.root_left.get_mut(dependent as usize) {
                Some(left) => left,
                None if run.step(dependent).outcome().is_some() => continue,
                None => self.inner_left.entry(dependent).or_default(),
            };
            match node.join {
                Join::All => *left -= 1,
                Join::Any => {
                    let outcome = |from: u32| run.step_in(group, from).and_then(|from| run.step(from).outcome());
                    *left = any_left(node, |link| outcome(link.from)) as u32;
                }
            }
            if *left == 0 || planted_bugs::is(Bug::JoinPerParent) {
                self.note_decidable(plan, run, dependent);
            }
        }
    }

    /// Sets a step aside if its group works at as many steps as it may.
    fn is_blocked(&mut self, plan: &Plan, run: &Run, step: u32) -> bool {
        let Some((parent, group)) = limited(plan, run, step) else { return false };
        let Some(progress) = self.open.get_mut(&parent) else { return false };
        let is_full = progress.working.len() as u32 >= group.concurrency;
        if is_full {
            progress.blocked.insert(step);
        }
        is_full
    }

    fn note_working(&mut self, plan: &Plan, run: &Run, step: u32) {
        if let Some((parent, _)) = limited(plan, run, step)
            && let Some(progress) = self.open.get_mut(&parent)
        {
            progress.working.insert(step);
        }
    }

    fn stop(&mut self, step: u32, stop: Stop, seen: Vec<Seen>) -> Next {
        match stop {
            Stop::Missing(numbers) => {
                self.stalled.insert(step);
                Next::Missing(numbers)
            }
            Stop::Failed(failure) => {
                Next::Move(Move::Settle { step, settlement: Settlement::Failed { failure, seen } })
            }
        }
    }

    /// Decides a pending step whose links are decided.
    fn decide(&mut self, view: &View<'_>, step: u32) -> Next {
        let (plan, run) = (view.plan, view.run);
        let (node, group) = (run.node(plan, step), run.parent(step));
        let outcome = |from: u32| run.step_in(group, from).and_then(|from| run.step(from).outcome());
        let mut dead: Vec<u32> = Vec::new();
        for link in &node.links {
            let is_taken = outcome::is_taken(run, group, link);
            let is_buggy = planted_bugs::is(Bug::CascadeIgnoresIf) && outcome(link.from) != Some(Outcome::Ok);
            if (!is_taken || is_buggy) && !dead.contains(&link.from) {
                dead.push(link.from);
            }
        }
        let is_dead = match node.join {
            Join::All => !dead.is_empty(),
            Join::Any => dead.len() == distinct_parents(node) && node.guard.is_none(),
        };
        if is_dead {
            let steps = dead.into_iter().filter_map(|node| run.step_in(group, node)).collect();
            return Next::Move(Move::Settle { step, settlement: Settlement::Skipped(Because::Needs { steps }) });
        }
        let mut seen = Vec::new();
        let condition = match &node.guard {
            Some(Guard { expr: Some(expr), .. }) => expr::truth(expr, &view.of(step), &mut seen).map_err(Stop::from),
            _ => Ok(true),
        };
        match condition {
            Ok(true) if self.exceeds_limit(plan, run, node) => {
                self.has_ended = true;
                let limit = plan.layout().max_steps;
                let message = format!("`{}` would be step {} of this run", node.key, limit + 1);
                let failure = Failure::new(&format!("max_steps_exceeded:{limit}"), message);
                Next::Move(Move::Finish(Finish::Stopped { failure }))
            }
            Ok(true) => Next::Move(Move::Start { target: StartTarget::Opened(step), seen }),
            Ok(false) => {
                Next::Move(Move::Settle { step, settlement: Settlement::Skipped(Because::Condition { seen }) })
            }
            Err(stop) => self.stop(step, stop, seen),
        }
    }

    /// Whether the run has begun as many steps as it may, and this would be another one.
    fn exceeds_limit(&self, plan: &Plan, run: &Run, node: &Node) -> bool {
        let limit = plan.layout().max_steps;
        limit > 0 && run.state.begun >= limit && node.inner().is_none()
    }

    /// What follows for a group, loop or iteration at work.
    fn look(&mut self, view: &View<'_>, step: u32, is_held: bool) -> Result<Next, Stop> {
        let Some(progress) = self.open.get(&step) else { return Ok(Next::Nothing) };
        match view.run.group_body(view.plan, step) {
            Some(group) => {
                let (is_done, has_failures) = (progress.unsettled == 0, progress.has_failures);
                self.look_at_group(view, step, group, is_done, has_failures)
            }
            None => {
                let Some(repeat) = view.run.node(view.plan, step).repeat() else { return Ok(Next::Nothing) };
                let progress = progress.clone();
                self.look_at_loop(view, step, repeat, &progress, is_held)
            }
        }
    }

    fn look_at_group(
        &mut self,
        view: &View<'_>,
        step: u32,
        group: &GroupBody,
        is_done: bool,
        has_failures: bool,
    ) -> Result<Next, Stop> {
        let (plan, run) = (view.plan, view.run);
        let ends_at_failures = group.on_error == OnError::Fail && has_failures;
        if !is_done && !ends_at_failures {
            return Ok(Next::Nothing);
        }
        // An iteration fails by itself in every kind of loop: the loop decides what that means.
        let goes_on = group.on_error == OnError::Continue && run.iteration(step).is_none();
        let culprit = unhandled_in(plan, run, Some(step)).first().copied().filter(|_| has_failures && !goes_on);
        match culprit {
            Some(culprit) => Ok(self.fail(run, step, failure_of(plan, run, culprit))),
            None if is_done => {
                let body = result_of_group(view, step, group)?;
                Ok(Next::Move(Move::Settle { step, settlement: Settlement::Ok { body, seen: Vec::new() } }))
            }
            None => Ok(Next::Nothing),
        }
    }

    fn look_at_loop(
        &mut self,
        view: &View<'_>,
        step: u32,
        repeat: &Repeat,
        progress: &OpenGroup,
        is_held: bool,
    ) -> Result<Next, Stop> {
        let (plan, run) = (view.plan, view.run);
        let Some(iterations) = &run.step(step).iterations else { return Ok(Next::Nothing) };
        let failed = || iterations.settled.iter().find(|(_, iteration)| has_failed(iteration.status));
        let failure = |index: u32| {
            let failure = iterations.settled.get(&index).and_then(|iteration| iteration.failure.as_ref());
            let (code, message) = failure.map_or(("step_failed", ""), |f| (f.code.as_str(), f.message.as_str()));
            Failure::new(code, expr::cut(format!("iteration {index}: {message}")))
        };
        let has_failures = progress.has_failures && repeat.body.on_error != OnError::Continue;
        if has_failures
            && repeat.body.on_error == OnError::Fail
            && let Some((index, _)) = failed()
        {
            return Ok(self.fail(run, step, failure(*index)));
        }
        let mut seen = Vec::new();
        let has_room = progress.unsettled < repeat.concurrency.max(1);
        if is_held && has_room && can_open_more(plan, run, step, progress) {
            self.stalled.insert(step);
            return Ok(Next::Nothing);
        }
        let may_open = has_room && !is_held;
        if may_open && has_more(view, step, repeat, &mut seen)? {
            let index = match planted_bugs::is(Bug::IterationReused) {
                true => iterations.settled.len() as u32,
                false => iterations.opened,
            };
            let nodes = plan.group(&repeat.body).len() as u32;
            if repeat.condition.is_some() && index >= repeat.max_iterations {
                let message = format!("the condition still holds after {index} iterations");
                return Ok(self.fail(run, step, Failure::new("max_iterations", message)));
            }
            if run.next_step().saturating_add(nodes + 1) > STEPS_MAX {
                let message = "the run would have more than 100,000 steps";
                return Ok(self.fail(run, step, Failure::new("too_many_steps", message)));
            }
            // Opening it puts the loop back into `changed`.
            let node = run.node_number(step);
            return Ok(Next::Move(Move::Start { target: StartTarget::New { node, parent: step, index }, seen }));
        }
        let is_over = progress.unsettled == 0 && (may_open || iterations.count == Some(iterations.opened));
        if !is_over {
            return Ok(Next::Nothing);
        }
        if has_failures && let Some((index, _)) = failed() {
            return Ok(self.fail(run, step, failure(*index)));
        }
        let body = Some(result_of_loop(view, step)?);
        Ok(Next::Move(Move::Settle { step, settlement: Settlement::Ok { body, seen } }))
    }

    /// Fails a group or loop: first what is at work inside of it is cancelled, one after the other.
    fn fail(&mut self, run: &Run, step: u32, failure: Failure) -> Next {
        let is_at_work = |inner: &u32| {
            let state = run.step(*inner);
            state.outcome().is_none() && !matches!(state.phase, Phase::Pending {})
        };
        match run.children(step).find(is_at_work) {
            Some(inner) => {
                self.changed.insert(step);
                Next::Move(Move::Cancel { step: inner })
            }
            None => Next::Move(Move::Settle { step, settlement: Settlement::Failed { failure, seen: Vec::new() } }),
        }
    }

    /// Ends the run when its root group has.
    fn finish(&mut self, view: &View<'_>) -> Next {
        if self.root_unsettled > 0 || self.has_ended || self.is_finish_stalled {
            return Next::Nothing;
        }
        let finish = match outcome::verdict(view.plan, view.run) {
            // M22: a denial that nothing handled cancels the run.
            Some((step, _)) if is_denial(view.run, step) => {
                let reason = view.run.step(step).failure.as_ref().map(|failure| failure.code.clone());
                Finish::Cancelled { actor: "onward".to_owned(), reason: reason.unwrap_or_default() }
            }
            Some((step, failure)) => Finish::Failed { failure, step: Some(step) },
            None => match output(view) {
                Ok(output) => Finish::Completed { output },
                Err(Stop::Missing(numbers)) => {
                    self.is_finish_stalled = true;
                    return Next::Missing(numbers);
                }
                Err(Stop::Failed(failure)) => {
                    let failure = Failure::new("output_failed", format!("the output: {}", failure.message));
                    Finish::Failed { failure, step: None }
                }
            },
        };
        self.has_ended = true;
        Next::Move(Move::Finish(finish))
    }
}

/// What a first-join still waits for: nothing once a link is taken or all are decided.
fn any_left(node: &Node, outcome: impl Fn(&Link) -> Option<Outcome>) -> usize {
    let outcomes = || node.links.iter().map(|link| (link, outcome(link)));
    let is_taken = outcomes().any(|(link, outcome)| outcome.is_some_and(|outcome| link.on.contains(outcome)));
    if is_taken { 0 } else { outcomes().filter(|(_, outcome)| outcome.is_none()).count() }
}

/// The step's group, if that has a limit.
fn limited<'p>(plan: &'p Plan, run: &Run, step: u32) -> Option<(u32, &'p GroupBody)> {
    let parent = run.parent(step)?;
    let group = run.group_body(plan, parent)?;
    (group.concurrency > 0).then_some((parent, group))
}

/// Whether a loop could open an iteration, as far as can be said without evaluating its condition.
fn can_open_more(plan: &Plan, run: &Run, step: u32, progress: &OpenGroup) -> bool {
    let Some(repeat) = run.node(plan, step).repeat().filter(|_| run.iteration(step).is_none()) else { return false };
    let Some(iterations) = &run.step(step).iterations else { return false };
    progress.unsettled < repeat.concurrency.max(1) && iterations.count.is_none_or(|count| iterations.opened < count)
}

/// Whether a loop has another iteration to open.
fn has_more(view: &View<'_>, step: u32, repeat: &Repeat, seen: &mut Vec<Seen>) -> Result<bool, Stop> {
    let Some(iterations) = &view.run.step(step).iterations else { return Ok(false) };
    match (iterations.count, &repeat.condition) {
        (Some(count), _) => Ok(iterations.opened < count),
        (None, Some(Guard { expr: Some(condition), .. })) => {
            Ok(expr::truth(condition, &view.before_iteration(step, iterations.opened), seen)?)
        }
        (None, _) => Ok(false),
    }
}

/// The failure of a group in which this step failed.
fn failure_of(plan: &Plan, run: &Run, culprit: u32) -> Failure {
    let state = run.step(culprit);
    let (code, message) = state.failure.as_ref().map_or(("step_failed", ""), |f| (f.code.as_str(), f.message.as_str()));
    // These codes mean something for what is around the group. Of a worker, which may choose any code, they do not.
    let code = match code {
        APPROVAL_DENIED | APPROVAL_TIMEOUT if !is_denial(run, culprit) => "step_failed",
        "template_error" if state.status() != StepStatus::TemplateError => "step_failed",
        code => code,
    };
    let name = &run.node(plan, culprit).key;
    Failure::new(code, expr::cut(format!("`{name}` {}: {message}", state.status())))
}

/// M11: the `output` of a group; otherwise the body of its only last step, or an object of its last steps.
fn result_of_group(view: &View<'_>, step: u32, group: &GroupBody) -> Result<Option<Payload>, Stop> {
    if let Some(output) = &group.output {
        let value = template::render(output, &view.inside(step))?;
        return view.checked(Payload::json(value.to_string())).map(Some);
    }
    if let LastStep::Only(only) = view.run.last_step(view.plan, step) {
        return Ok(only.and_then(|only| view.run.step(only).body().cloned()));
    }
    let mut missing = Vec::new();
    let mut text = String::from("{");
    for node in view.plan.last_nodes(group) {
        let of = view.run.step_in(Some(step), node).map(|step| view.run.step(step));
        if text.len() > 1 {
            text.push(',');
        }
        text += &serde_json::Value::from(view.plan.node_at(node).key.as_str()).to_string();
        text.push(':');
        view.append_json(of.and_then(|step| step.body()), &mut text, &mut missing)?;
    }
    text.push('}');
    if missing.is_empty() { view.checked(Payload::json(text)).map(Some) } else { Err(Stop::Missing(missing)) }
}

/// The results of all iterations, in order.
fn result_of_loop(view: &View<'_>, step: u32) -> Result<Payload, Stop> {
    let Some(iterations) = &view.run.step(step).iterations else { return Ok(Payload::json("[]")) };
    let total: u64 =
        iterations.settled.values().filter_map(|iteration| iteration.body.as_ref()).map(|body| body.len).sum();
    if view.run.state.bytes.saturating_add(total) > STATE_MAX {
        return Err(Stop::Failed(crate::advance::over_size_failure()));
    }
    let mut missing = Vec::new();
    let mut text = String::from("[");
    for index in 0..iterations.opened {
        if index > 0 {
            text.push(',');
        }
        let ok = iterations.settled.get(&index).filter(|iteration| !has_failed(iteration.status));
        view.append_json(ok.and_then(|iteration| iteration.body.as_ref()), &mut text, &mut missing)?;
    }
    text.push(']');
    if missing.is_empty() { view.checked(Payload::json(text)) } else { Err(Stop::Missing(missing)) }
}

fn output(view: &View<'_>) -> Result<Option<Payload>, Stop> {
    let Some(output) = &view.plan.layout().output else { return Ok(None) };
    let value = template::render(output, view)?;
    view.checked(Payload::json(value.to_string())).map(Some)
}
