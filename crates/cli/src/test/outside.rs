//! The services, workers, people and callers around the engine: what they do next, and when.

use super::children::{ChildEnd, ScriptScope, node_of};
use super::play::{ACTOR, ORG, Unscripted};
use super::worker;
use engine::secret::Secret;
use engine::services::{CancelRun, DecisionRequest, Judged, Reading, SignalRequest};
use engine::task_queue::ClaimedTask;
use engine::{Engine, FakeNetwork, FakeResponse, PendingCall};
use kernel::plan::{Body, Decision};
use kernel::run::Phase;
use kernel::{Answer, Plan, RunId, Span, Timestamp};
use lang::suite::{Given, GivenReport, Reply, Scripted, When, WorkerAttempt};
use std::collections::{BTreeMap, BTreeSet};

pub struct Outside {
    /// Actions to come, earliest first; those of the same time in the order of [`ScriptedAction`].
    acts: BTreeSet<(Timestamp, ScriptedAction)>,
    pub calls: Vec<(PendingCall, Scripted)>,
    pub tasks: Vec<(ClaimedTask, TaskEnd)>,
    waits: Vec<WaitInput>,
    /// Waits whose input is scheduled, or that get none.
    seen: BTreeSet<(RunId, u32)>,
    /// Runs whose inputs at fixed times are scheduled.
    begun: BTreeSet<RunId>,
    /// How many waits for a signal there were, by run and name.
    signal_waits: BTreeMap<(RunId, String), usize>,
    pub inputs: Vec<(Timestamp, String, String)>,
    pub forbidden: Vec<(String, String)>,
}

/// What becomes of a task that was claimed.
pub enum TaskEnd {
    Report(WorkerAttempt),
    /// It stands for a child: its run is cancelled.
    Cancel,
    /// It stands for a child that times out.
    Never,
}

/// Something that a waiting step gets.
struct WaitInput {
    run: RunId,
    /// The key of the step; of a signal that came early, its name.
    key: String,
    what: WaitKindInput,
}

enum WaitKindInput {
    Callback(Vec<u8>),
    Signal(String, serde_json::Value),
    Decide { approves: bool, actor: String, comment: String },
    Resume,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ScriptedAction {
    /// A heartbeat for the nth of `tasks`.
    Beat(usize),
    /// The answer to the nth of `calls`.
    Reply(usize),
    /// The end of the nth of `tasks`.
    Report(usize),
    /// The nth of `waits`.
    Give(usize),
    Cancel,
}

impl Outside {
    pub fn new(run: RunId, given: &Given, plan: &Plan, start: Timestamp) -> Outside {
        let mut outside = Outside {
            acts: BTreeSet::new(),
            calls: Vec::new(),
            tasks: Vec::new(),
            waits: Vec::new(),
            seen: BTreeSet::new(),
            begun: BTreeSet::new(),
            signal_waits: BTreeMap::new(),
            inputs: Vec::new(),
            forbidden: Vec::new(),
        };
        outside.acts.extend(given.cancel_after.map(|span| (start.after(span), ScriptedAction::Cancel)));
        outside.begin(run, given, plan, start);
        outside
    }

    /// Schedules what a run gets at fixed times, whether or not it waits then.
    fn begin(&mut self, run: RunId, given: &Given, plan: &Plan, start: Timestamp) {
        if !self.begun.insert(run) {
            return;
        }
        for (node, callback) in given.callbacks.nodes() {
            if let When::At(span) = callback.when {
                let key = plan.node_at(node).key.clone();
                self.give(start.after(span), run, key, WaitKindInput::Callback(callback.body.clone()));
            }
        }
        for (name, signals) in &given.signals {
            for signal in signals {
                if let When::At(span) = signal.when {
                    let what = WaitKindInput::Signal(name.clone(), signal.body.clone());
                    self.give(start.after(span), run, name.clone(), what);
                }
            }
        }
    }

    fn give(&mut self, at: Timestamp, run: RunId, key: String, what: WaitKindInput) {
        self.acts.insert((at, ScriptedAction::Give(self.waits.len())));
        self.waits.push(WaitInput { run, key, what });
    }

    /// A request arrives. Returns it if the script has no answer for it.
    pub fn take(&mut self, call: PendingCall, scope: &ScriptScope<'_>, now: Timestamp) -> Option<PendingCall> {
        let attempts = node_of(scope.plan, &call.step).and_then(|node| scope.given.http.get(node, &call.step));
        let Some(scripted) = attempts.and_then(|attempts| nth(attempts, call.attempt)) else { return Some(call) };
        let took = time_of(scripted, &call);
        self.acts.insert((now.after(took), ScriptedAction::Reply(self.calls.len())));
        self.calls.push((call, scripted.clone()));
        None
    }

    /// A task was claimed. Returns it if the script has no answer for it.
    pub fn take_task(&mut self, task: ClaimedTask, scope: &ScriptScope<'_>, now: Timestamp) -> Option<ClaimedTask> {
        let attempts = node_of(scope.plan, &task.step_key).and_then(|node| scope.given.tasks.get(node, &task.step_key));
        let Some(worked) = attempts.and_then(|attempts| nth(attempts, task.attempt)) else { return Some(task) };
        let (index, took) = (self.tasks.len(), worked.took);
        self.acts.insert((now.after(took), ScriptedAction::Report(index)));
        self.acts
            .extend(worker::heartbeat_interval(&task, took).map(|span| (now.after(span), ScriptedAction::Beat(index))));
        self.tasks.push((task, TaskEnd::Report(worked.clone())));
        None
    }

    /// The task that stands for a child was claimed.
    pub fn take_child(&mut self, task: ClaimedTask, end: &ChildEnd, now: Timestamp) -> Option<Unscripted> {
        let report = |report| TaskEnd::Report(WorkerAttempt { report, took: end.took() });
        let (what, took) = match end {
            ChildEnd::Completed { output, took } => (report(GivenReport::Result(output.clone())), *took),
            ChildEnd::Failed { error, took } => {
                let (message, code) = (error.clone(), None);
                (report(GivenReport::Error { message, code, is_final: true, retry_after: None }), *took)
            }
            ChildEnd::Cancelled { took } => (TaskEnd::Cancel, *took),
            ChildEnd::TimedOut => (TaskEnd::Never, Span(0)),
        };
        self.acts.insert((now.after(took), ScriptedAction::Report(self.tasks.len())));
        self.tasks.push((task, what));
        None
    }

    /// Schedules what the steps of a run get that have begun to wait.
    pub fn watch(&mut self, reading: &Reading, scope: &ScriptScope<'_>, now: Timestamp) {
        let run = reading.row.id;
        self.begin(run, scope.given, scope.plan, reading.run.state.created_at);
        for (step, state) in reading.run.steps() {
            if !matches!(state.phase, Phase::Waiting { .. }) || !self.seen.insert((run, step)) {
                continue;
            }
            let key = reading.key(step).into_owned();
            let Some(node) = node_of(scope.plan, &key) else { continue };
            let (when, what) = match &scope.plan.node_at(node).body {
                Some(Body::Webhook { .. }) => {
                    let Some(callback) = scope.given.callbacks.get(node, &key) else { continue };
                    (callback.when, WaitKindInput::Callback(callback.body.clone()))
                }
                Some(Body::Signal { name, .. }) => {
                    let count = self.signal_waits.entry((run, name.clone())).or_default();
                    *count += 1;
                    let signal = scope.given.signals.get(name).and_then(|signals| nth(signals, *count as u32));
                    let Some(signal) = signal else { continue };
                    (signal.when, WaitKindInput::Signal(name.clone(), signal.body.clone()))
                }
                Some(Body::Approval { approval }) => {
                    let Some(given) = scope.given.approvals.get(node, &key) else { continue };
                    let actor = given.actor.as_ref().or(approval.approvers.first()).map_or(ACTOR, String::as_str);
                    let (actor, comment) = (actor.to_owned(), given.comment.clone());
                    (given.when, WaitKindInput::Decide { approves: given.approves, actor, comment })
                }
                Some(Body::Pause { .. }) => {
                    let Some(resume) = scope.given.pauses.get(node, &key) else { continue };
                    (resume.when, WaitKindInput::Resume)
                }
                _ => continue,
            };
            if let When::After(span) = when {
                self.give(now.after(span), run, key, what);
            }
        }
    }

    pub fn next(&self) -> Option<Timestamp> {
        self.acts.first().map(|(at, _)| *at)
    }

    /// Takes the next action. `run` is the run of the case.
    pub async fn act(
        &mut self,
        engine: &Engine,
        fake_network: &FakeNetwork,
        secret: &Secret,
        run: RunId,
    ) -> Result<(), engine::Error> {
        match self.acts.pop_first() {
            Some((_, ScriptedAction::Reply(index))) => {
                let (call, scripted) = &self.calls[index];
                let took = time_of(scripted, call);
                let reached = match &scripted.reply {
                    _ if took >= call.timeout => FakeResponse::Nothing,
                    Reply::Nothing => FakeResponse::Nothing,
                    Reply::Network(why) => FakeResponse::Network(why.clone()),
                    Reply::Response { status, headers, body } => {
                        FakeResponse::Response { status: *status, headers: headers.clone(), body: body.clone().into() }
                    }
                };
                // The step may have ended already; then the answer is dropped.
                fake_network.answer(call.number, reached, took);
            }
            Some((at, ScriptedAction::Beat(index))) => {
                let (task, _) = &self.tasks[index];
                worker::send_heartbeat(engine, task).await?;
                let next = at.after(Span(task.lease.0 / 2));
                if self.acts.iter().any(|(due, act)| *act == ScriptedAction::Report(index) && *due > next) {
                    self.acts.insert((next, ScriptedAction::Beat(index)));
                }
            }
            Some((_, ScriptedAction::Report(index))) => match &self.tasks[index] {
                (task, TaskEnd::Report(worked)) => worker::report(engine, task, worked).await?,
                (task, TaskEnd::Cancel) => {
                    engine.runs.cancel(ORG, task.run, CancelRun::plain(ACTOR, "as the test file says")).await?;
                }
                (_, TaskEnd::Never) => {}
            },
            Some((at, ScriptedAction::Give(index))) => self.give_now(engine, secret, at, index).await?,
            Some((_, ScriptedAction::Cancel)) => {
                engine.runs.cancel(ORG, run, CancelRun::plain(ACTOR, "cancel_after")).await?;
            }
            None => {}
        }
        Ok(())
    }

    async fn give_now(
        &mut self,
        engine: &Engine,
        secret: &Secret,
        at: Timestamp,
        index: usize,
    ) -> Result<(), engine::Error> {
        let WaitInput { run, key, what } = &self.waits[index];
        let run = *run;
        let (line, answer) = match what {
            WaitKindInput::Callback(body) => {
                let answer = engine.runs.callback(&secret.token(run, key), body.clone().into()).await;
                (format!("{key} was called"), answer)
            }
            WaitKindInput::Signal(name, body) => {
                let (name, body) = (name.clone(), body.to_string().into());
                let request = SignalRequest { name: name.clone(), body, actor: ACTOR.into(), key: None };
                let answer = engine.runs.signal(ORG, run, request).await;
                (format!("the signal {name} was sent"), answer.map(|(answer, _)| answer))
            }
            WaitKindInput::Decide { approves, actor, comment } => {
                let decision = if *approves { Decision::Approved } else { Decision::Denied };
                let (actor, comment, step) = (actor.clone(), comment.clone(), Some(key.clone()));
                let request =
                    DecisionRequest { decision, actor: actor.clone(), comment, step, token: None, shown_hash: None };
                let answer = engine.runs.decide(ORG, run, request).await.map(|Judged { answer, .. }| answer);
                if matches!(answer, Ok(Answer::Forbidden)) {
                    self.forbidden.push((key.clone(), actor.clone()));
                }
                (format!("{key} was {} by {actor}", decision.as_str()), answer)
            }
            WaitKindInput::Resume => {
                let answer = engine.runs.resume_any(ORG, run, Some(key), ACTOR.into()).await;
                (format!("{key} was resumed"), answer.map(|Judged { answer, .. }| answer))
            }
        };
        let answer = match answer {
            Ok(answer) => format!("{answer:?}").to_lowercase(),
            // It came too late, as it may in production.
            Err(error @ (engine::Error::Ended(_) | engine::Error::NothingWaits(_) | engine::Error::NoStep(_))) => {
                error.to_string()
            }
            Err(error) => return Err(error),
        };
        self.inputs.push((at, line, answer));
        Ok(())
    }
}

/// What an attempt, counted from 1, meets: the last entry repeats.
pub fn nth<T>(entries: &[T], attempt: u32) -> Option<&T> {
    entries.get(attempt.saturating_sub(1) as usize).or(entries.last())
}

/// How long the attempt takes: as long as the script says, but at most the attempt's timeout.
fn time_of(scripted: &Scripted, call: &PendingCall) -> Span {
    match scripted.reply {
        Reply::Nothing => call.timeout,
        _ => scripted.took.min(call.timeout),
    }
}
