//! Runs one case: starts a run on its own engine, and plays the services, workers and callers around it from the
//! case's script.
//!
//! The clock jumps from one due time to the next. What the engine does by itself at that time comes first, so a timer
//! beats an input that is due with it. Then the script acts, one action at a time, and after each one the engine runs
//! until it is idle. Actions that are due together happen in a fixed order: HTTP answers in the order of their
//! requests, worker reports in the order of their claims, callbacks, the cancel.

use super::worker;
use engine::secret::Secret;
use engine::services::StoredEvent;
use engine::task_queue::ClaimedTask;
use engine::{ClockMode, Engine, FakeNetwork, FakeResponse, HttpOptions, Options, PendingCall, StartRequest};
use kernel::run::Phase;
use kernel::{Answer, Event, OrgId, RunId, Span, Timestamp};
use lang::Compiled;
use lang::suite::{Given, Reply, Scripted, When, WorkerAttempt};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use store::MemoryStore;

const ORG: OrgId = OrgId::DEFAULT;
const SEED: u64 = 1;
/// What callback URLs begin with.
const PUBLIC_URL: &str = "http://onward.test";
const ACTOR: &str = "onward test";

/// What happened in a case.
pub struct Story {
    pub reading: engine::services::Reading,
    pub events: Vec<StoredEvent>,
    pub calls: Vec<PendingCall>,
    /// Callbacks that were sent: when, to which step, and the run's answer.
    pub callbacks: Vec<(Timestamp, u32, Answer)>,
    /// Tasks that the worker claimed.
    pub tasks: Vec<ClaimedTask>,
    /// A request or task for which the script has no answer; the case ends there.
    pub unscripted: Option<Unscripted>,
    /// Why the run is where it is.
    pub why: String,
}

pub enum Unscripted {
    Call(PendingCall),
    Task(ClaimedTask),
}

impl Story {
    /// How long the run took, or has taken so far.
    pub fn took(&self) -> Span {
        let end = self.reading.run.state.finished_at.or(self.events.last().map(|stored| stored.at));
        end.unwrap_or_default().since(self.reading.run.state.created_at)
    }

    /// The keys of the steps that began, in the order in which they did.
    pub fn path(&self) -> Vec<String> {
        self.began()
            .into_iter()
            .filter_map(|stored| stored.step_key(&self.reading.version.plan))
            .map(Cow::into_owned)
            .collect()
    }

    /// The first event of each step that began.
    pub fn began(&self) -> Vec<&StoredEvent> {
        let mut began: Vec<&StoredEvent> = Vec::new();
        for stored in &self.events {
            let event = &stored.event;
            let begins = matches!(
                event,
                Event::Scheduled { .. }
                    | Event::Leased { .. }
                    | Event::Started { .. }
                    | Event::Succeeded { .. }
                    | Event::Received { .. }
                    | Event::Failed { .. }
                    | Event::TimedOut { .. }
                    | Event::TimerSet { .. }
                    | Event::WaitOpened { .. }
                    | Event::GroupStarted { .. }
                    | Event::LoopStarted { .. }
            );
            if begins && event.step().is_some() && !began.iter().any(|earlier| earlier.event.step() == event.step()) {
                began.push(stored);
            }
        }
        began
    }

    /// The requests a step sent.
    pub fn requests(&self, key: &str) -> Vec<&PendingCall> {
        self.calls.iter().filter(|call| call.step == key).collect()
    }

    /// The input that the worker got for a step, in its last attempt.
    pub fn input(&self, step: u32) -> Option<serde_json::Value> {
        let task = self.tasks.iter().rev().find(|task| task.step == step)?;
        serde_json::from_slice(&task.input).ok()
    }
}

pub async fn play(compiled: &Compiled, now: Timestamp, given: &Given) -> Result<Story, String> {
    let fake_network = Arc::new(FakeNetwork::default());
    let secret = Secret::new([7; 32]);
    let options = Options {
        secret: secret.clone(),
        public_url: PUBLIC_URL.into(),
        clock: ClockMode::Stepped,
        clock_start: Some(now),
        clock_advance: Span(0),
        accept_clock: false,
        http: HttpOptions { fake_network: Some(fake_network.clone()), ..HttpOptions::default() },
        seed: Some(SEED),
        node: String::new(),
        retention: None,
    };
    let engine = Engine::open(Arc::new(MemoryStore::default()), options).await.map_err(|e| e.to_string())?;
    let story = run_script(&engine, &fake_network, &secret, compiled, given).await;
    engine.stop().await;
    story.map_err(|error| error.to_string())
}

async fn run_script(
    engine: &Engine,
    fake_network: &FakeNetwork,
    secret: &Secret,
    compiled: &Compiled,
    given: &Given,
) -> Result<Story, engine::Error> {
    let (row, _) = engine.workflows.create(ORG, compiled, None).await?;
    let workflow =
        engine.workflows.resolve(ORG, &row.id.to_string()).await?.ok_or(engine::Error::NotFound("workflow"))?;
    let input = given.input.clone().unwrap_or_default().to_string();
    let request = StartRequest::new(ORG, workflow, input.into());
    let request = StartRequest { headers: given.headers.clone().unwrap_or_default(), ..request };
    let run = engine.runs.start(request).await?.run;
    let mut outside = Outside::new(given, engine.now());
    let has_tasks = compiled.plan.nodes().iter().any(|node| node.task().is_some());
    let unscripted = loop {
        let due = engine.virtual_clock.settled().await?;
        let now = engine.now();
        if let Some(call) =
            fake_network.pending_calls().into_iter().filter(|call| call.run == run).find_map(|c| outside.take(c, now))
        {
            break Some(Unscripted::Call(call));
        }
        if engine.store().run(ORG, run).await?.is_some_and(|row| row.status.is_terminal()) {
            break None;
        }
        let tasks = if has_tasks { worker::claim(engine, ORG).await? } else { Vec::new() };
        if !tasks.is_empty() {
            match tasks.into_iter().find_map(|task| outside.take_task(task, now)) {
                Some(task) => break Some(Unscripted::Task(task)),
                // The claims may have set timers, so the due time must be read again.
                None => continue,
            }
        }
        if outside.is_watching() {
            let reading = engine.runs.read(ORG, run).await?.ok_or(engine::Error::NotFound("run"))?;
            outside.watch(&reading.run, now);
        }
        match outside.next() {
            Some(at) if at <= now => outside.act(engine, fake_network, secret, compiled, run).await?,
            next => {
                let next = next.unwrap_or(Timestamp::NEVER).min(due);
                if next == Timestamp::NEVER {
                    return Err(engine::Error::Unavailable(
                        "the run waits, but no timer and no scripted action is left; please report this".into(),
                    ));
                }
                engine.virtual_clock.advance(next.since(now)).await?;
            }
        }
    };
    let (reading, explanation) = engine.runs.explain(ORG, run, None).await?.ok_or(engine::Error::NotFound("run"))?;
    let events = engine.runs.history(ORG, run).await?.unwrap_or_default();
    let why = explanation.map(|explanation| explanation.summary).unwrap_or_default();
    let Outside { calls, tasks, called, .. } = outside;
    Ok(Story { reading, events, calls, tasks, callbacks: called, unscripted, why })
}

/// The services, workers and callers around the engine.
struct Outside<'a> {
    given: &'a Given,
    /// Actions to come, earliest first; those of the same time in the order of [`Act`].
    acts: BTreeSet<(Timestamp, ScriptedAction)>,
    /// Steps with a callback that have not begun to wait yet.
    expected: BTreeSet<u32>,
    calls: Vec<PendingCall>,
    tasks: Vec<ClaimedTask>,
    called: Vec<(Timestamp, u32, Answer)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ScriptedAction {
    /// A heartbeat for the nth of `tasks`.
    Beat(usize),
    /// The answer to the nth of `calls`.
    Reply(usize),
    /// The report for the nth of `tasks`.
    Report(usize),
    Callback(u32),
    Cancel,
}

impl<'a> Outside<'a> {
    fn new(given: &'a Given, start: Timestamp) -> Outside<'a> {
        let mut acts = BTreeSet::new();
        let mut expected = BTreeSet::new();
        for (step, callback) in &given.callbacks {
            match callback.when {
                When::Never => {}
                When::At(span) => drop(acts.insert((start.after(span), ScriptedAction::Callback(*step)))),
                When::After(_) => drop(expected.insert(*step)),
            }
        }
        acts.extend(given.cancel_after.map(|span| (start.after(span), ScriptedAction::Cancel)));
        Outside { given, acts, expected, calls: Vec::new(), tasks: Vec::new(), called: Vec::new() }
    }

    /// A request arrives. Returns it if the script has no answer for it.
    fn take(&mut self, call: PendingCall, now: Timestamp) -> Option<PendingCall> {
        let Some(scripted) = self.script(&call) else { return Some(call) };
        let took = time_of(scripted, &call);
        self.acts.insert((now.after(took), ScriptedAction::Reply(self.calls.len())));
        self.calls.push(call);
        None
    }

    /// A task was claimed. Returns it if the script has no answer for it.
    fn take_task(&mut self, task: ClaimedTask, now: Timestamp) -> Option<ClaimedTask> {
        let Some(worked) = self.worked(&task) else { return Some(task) };
        let (nth, took) = (self.tasks.len(), worked.took);
        self.acts.insert((now.after(took), ScriptedAction::Report(nth)));
        self.acts
            .extend(worker::heartbeat_interval(&task, took).map(|span| (now.after(span), ScriptedAction::Beat(nth))));
        self.tasks.push(task);
        None
    }

    fn worked(&self, task: &ClaimedTask) -> Option<&'a WorkerAttempt> {
        let attempts = self.given.tasks.get(&task.step)?;
        attempts.get(task.attempt as usize - 1).or(attempts.last())
    }

    fn script(&self, call: &PendingCall) -> Option<&'a Scripted> {
        let attempts = self.given.http.get(&call.index)?;
        attempts.get(call.attempt as usize - 1).or(attempts.last())
    }

    fn is_watching(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Schedules the callbacks of steps that have begun to wait.
    fn watch(&mut self, run: &kernel::Run, now: Timestamp) {
        let given = self.given;
        let acts = &mut self.acts;
        self.expected.retain(|step| match (&run.step(*step).phase, given.callbacks[step].when) {
            (Phase::Waiting { .. }, When::After(span)) => {
                acts.insert((now.after(span), ScriptedAction::Callback(*step)));
                false
            }
            (Phase::Done { .. }, _) => false,
            _ => true,
        });
    }

    fn next(&self) -> Option<Timestamp> {
        self.acts.first().map(|(at, _)| *at)
    }

    /// Takes the next action.
    async fn act(
        &mut self,
        engine: &Engine,
        fake_network: &FakeNetwork,
        secret: &Secret,
        compiled: &Compiled,
        run: RunId,
    ) -> Result<(), engine::Error> {
        match self.acts.pop_first() {
            Some((_, ScriptedAction::Reply(nth))) => {
                let call = &self.calls[nth];
                let Some(scripted) = self.script(call) else { return Ok(()) };
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
            Some((at, ScriptedAction::Beat(nth))) => {
                let task = &self.tasks[nth];
                worker::send_heartbeat(engine, task).await?;
                let next = at.after(Span(task.lease.0 / 2));
                if self.acts.iter().any(|(due, act)| *act == ScriptedAction::Report(nth) && *due > next) {
                    self.acts.insert((next, ScriptedAction::Beat(nth)));
                }
            }
            Some((_, ScriptedAction::Report(nth))) => {
                let task = &self.tasks[nth];
                if let Some(worked) = self.worked(task) {
                    worker::report(engine, task, worked).await?;
                }
            }
            Some((at, ScriptedAction::Callback(step))) => {
                let token = secret.token(run, &compiled.plan.node_at(step).key);
                let answer = engine.runs.callback(&token, self.given.callbacks[&step].body.clone().into()).await?;
                self.called.push((at, step, answer));
            }
            Some((_, ScriptedAction::Cancel)) => {
                engine.runs.cancel(ORG, run, ACTOR.into(), "cancel_after".into()).await?;
            }
            None => {}
        }
        Ok(())
    }
}

/// How long the attempt takes: as long as the script says, but at most the attempt's timeout.
fn time_of(scripted: &Scripted, call: &PendingCall) -> Span {
    match scripted.reply {
        Reply::Nothing => call.timeout,
        _ => scripted.took.min(call.timeout),
    }
}
