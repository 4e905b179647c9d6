//! Runs one case: starts a run on its own engine, and plays the services, workers, people and callers around it from the
//! case's script.
//!
//! The clock jumps from one due time to the next. What the engine does by itself at that time comes first, so a timer
//! beats an input that is due with it. Then the script acts, one action at a time, and after each one the engine runs
//! until it is idle. Actions that are due together happen in a fixed order: HTTP answers in the order of their
//! requests, worker reports in the order of their claims, inputs for waiting steps in the order in which they began to
//! wait, the cancel.

use super::children::{ScriptScopes, StandIns};
use super::files::LoadedSuite;
use super::outside::Outside;
use super::worker;
use engine::secret::Secret;
use engine::services::{Reading, StoredEvent};
use engine::task_queue::ClaimedTask;
use engine::{ClockMode, Engine, FakeNetwork, HttpOptions, Options, PendingCall, StartRequest};
use kernel::{Event, OrgId, RunId, Span, Timestamp};
use lang::suite::Given;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::MemoryStore;

pub const ORG: OrgId = OrgId::DEFAULT;
const SEED: u64 = 1;
/// What callback URLs begin with.
const PUBLIC_URL: &str = "http://onward.test";
pub const ACTOR: &str = "onward test";

/// What happened in a case.
pub struct Story {
    /// The run with all of its steps, also those of iterations that settled long ago.
    pub reading: Reading,
    pub output: Option<Value>,
    pub events: Vec<StoredEvent>,
    pub calls: Vec<PendingCall>,
    /// What waiting steps were given: when, what, and the answer.
    pub inputs: Vec<(Timestamp, String, String)>,
    /// Tasks that the worker claimed.
    pub tasks: Vec<ClaimedTask>,
    /// By step: the body of the trigger of its latest child.
    pub child_inputs: BTreeMap<u32, Value>,
    /// Decisions by actors who may not decide: the step, and the actor.
    pub forbidden: Vec<(String, String)>,
    /// A request, task or child for which the script has no answer; the case ends there.
    pub unscripted: Option<Unscripted>,
    /// Why the run is where it is.
    pub why: String,
}

pub enum Unscripted {
    Call(PendingCall),
    Task(ClaimedTask),
    Child { step: String, workflow: String, input: String, attempt: u32 },
}

/// Why a case could not be run.
pub struct PlayFailure {
    /// The error code, if the run was refused because of its input.
    pub code: Option<&'static str>,
    pub message: String,
}

impl From<engine::Error> for PlayFailure {
    fn from(error: engine::Error) -> PlayFailure {
        let code = match &error {
            engine::Error::InvalidInput(_) => Some("invalid_input"),
            engine::Error::InvalidConcurrencyKey(_) => Some("concurrency_key_unresolved"),
            _ => None,
        };
        PlayFailure { code, message: error.to_string() }
    }
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

    /// The first event of each step that began. Iterations of loops are no steps.
    pub fn began(&self) -> Vec<&StoredEvent> {
        let plan = &self.reading.version.plan;
        let is_iteration = |stored: &StoredEvent| {
            let place = stored.event.step().map(|step| stored.place(step)).unwrap_or_default();
            place.indices.len() > plan.loops_around(place.node).len()
        };
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
                    | Event::ChildStarted { .. }
            );
            if begins
                && event.step().is_some()
                && !is_iteration(stored)
                && !began.iter().any(|earlier| earlier.event.step() == event.step())
            {
                began.push(stored);
            }
        }
        began
    }

    /// The requests a step sent.
    pub fn requests(&self, key: &str) -> Vec<&PendingCall> {
        self.calls.iter().filter(|call| call.run == self.reading.row.id && call.step == key).collect()
    }

    /// The input that the worker or the child got for a step, in its last attempt.
    pub fn input(&self, step: u32) -> Option<Value> {
        if let Some(input) = self.child_inputs.get(&step) {
            return Some(input.clone());
        }
        let task = self.tasks.iter().rev().find(|task| task.run == self.reading.row.id && task.step == step)?;
        serde_json::from_slice(&task.input).ok()
    }
}

pub async fn play(loaded: &LoadedSuite, now: Timestamp, given: &Given) -> Result<Story, PlayFailure> {
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
        bash: None,
    };
    let engine = Engine::open(Arc::new(MemoryStore::default()), options).await?;
    let story = run_script(&engine, &fake_network, &secret, loaded, given).await;
    engine.stop().await;
    story
}

async fn run_script(
    engine: &Engine,
    fake_network: &FakeNetwork,
    secret: &Secret,
    loaded: &LoadedSuite,
    given: &Given,
) -> Result<Story, PlayFailure> {
    let compiled = &loaded.compiled;
    let (row, _) = engine.workflows.create(ORG, compiled, None).await?;
    let stand_ins = StandIns::create(engine, loaded, given).await?;
    let workflow =
        engine.workflows.resolve(ORG, &row.id.to_string()).await?.ok_or(engine::Error::NotFound("workflow"))?;
    let input = given.input.clone().unwrap_or_default().to_string();
    let request = StartRequest::new(ORG, workflow, input.into());
    let request = StartRequest { headers: given.headers.clone().unwrap_or_default(), ..request };
    let run = engine.runs.start(request).await?.run;
    let mut scopes = ScriptScopes::new(engine, loaded, given, (row.id, run));
    let mut outside = Outside::new(run, given, &compiled.plan, engine.now());
    let has_tasks =
        stand_ins.exist() || loaded.plans().any(|plan| plan.nodes().iter().any(|node| node.task().is_some()));
    let unscripted = 'story: loop {
        let due = engine.virtual_clock.settled().await?;
        let now = engine.now();
        for call in fake_network.pending_calls() {
            // Runs that the case does not know deliver notifications, which are not sent.
            let Some(scope) = scopes.of(call.run).await? else { continue };
            if let Some(call) = outside.take(call, &scope, now) {
                break 'story Some(Unscripted::Call(call));
            }
        }
        if engine.store().run(ORG, run).await.map_err(engine::Error::from)?.is_some_and(|row| row.status.is_terminal())
        {
            break None;
        }
        let tasks = if has_tasks { worker::claim(engine, ORG).await? } else { Vec::new() };
        if !tasks.is_empty() {
            for task in tasks {
                let missing = match stand_ins.is_one(&task) {
                    true => match scopes.end_of_stand_in(&task).await? {
                        Ok(end) => outside.take_child(task, &end, now),
                        Err(missing) => Some(missing),
                    },
                    false => match scopes.of(task.run).await? {
                        Some(scope) => outside.take_task(task, &scope, now).map(Unscripted::Task),
                        None => None,
                    },
                };
                if missing.is_some() {
                    break 'story missing;
                }
            }
            // The claims may have set timers, so the due time must be read again.
            continue;
        }
        for (reading, scope) in scopes.waiting().await? {
            outside.watch(&reading, &scope, now);
        }
        match outside.next() {
            Some(at) if at <= now => outside.act(engine, fake_network, secret, run).await?,
            next => {
                let next = next.unwrap_or(Timestamp::NEVER).min(due);
                if next == Timestamp::NEVER {
                    let message = "the run waits, but no timer and no scripted action is left; please report this";
                    return Err(engine::Error::Unavailable(message.into()).into());
                }
                engine.virtual_clock.advance(next.since(now)).await?;
            }
        }
    };
    let (reading, explanation) = engine.runs.explain(ORG, run, None).await?.ok_or(engine::Error::NotFound("run"))?;
    let events = engine.runs.history(ORG, run).await?.unwrap_or_default();
    let why = explanation.map(|explanation| explanation.first().summary.clone()).unwrap_or_default();
    let output = reading.run.state.output.as_ref().and_then(|output| output.value(&reading.payloads).ok());
    let reading = engine.runs.read_whole(ORG, reading).await?;
    let child_inputs = child_inputs(engine, &reading).await?;
    let Outside { calls, tasks, inputs, forbidden, .. } = outside;
    let calls = calls.into_iter().map(|(call, _)| call).collect();
    let tasks = tasks.into_iter().map(|(task, _)| task).filter(|task| !stand_ins.is_one(task)).collect();
    Ok(Story { reading, output, events, calls, tasks, child_inputs, inputs, forbidden, unscripted, why })
}

async fn child_inputs(engine: &Engine, reading: &Reading) -> Result<BTreeMap<u32, Value>, engine::Error> {
    let links = reading.run.steps().filter_map(|(step, state)| Some((step, state.child.as_deref()?.run)));
    let links: Vec<(u32, RunId)> = links.collect();
    let mut inputs = BTreeMap::new();
    for (step, child) in links {
        let Some(child) = engine.runs.read(ORG, child).await? else { continue };
        if let Ok(body) = child.run.state.origin.body.value(&child.payloads) {
            inputs.insert(step, body);
        }
    }
    Ok(inputs)
}
