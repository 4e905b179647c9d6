//! The built-in worker for `bash` steps. It claims tasks of the type `onward.bash` in process, runs each command with the
//! [`bash`] library, keeps the lease with heartbeats, and reports how the command ended.
//!
//! ```text
//!   claim loop ──tasks──▶ attempt: command ∥ heartbeats ──▶ report ──▶ Tasks
//!       ▲  └─cancellations──▶ stop        (a lost lease stops the command, too)
//!       └───── a slot is free ◀──────────────────┘
//! ```
//!
//! To the rest of the engine it is a worker like any other: it knows nothing of runs and decides no retry. The rule: no
//! command runs on while its lease may belong to another attempt, and a command that has ended keeps its lease until its
//! end is recorded, because a lost lease means that it runs again.

mod attempt;

use crate::services::tasks::{
    Heartbeat, HeartbeatReply, ReportOutcome, Reported, TaskKey, TaskReport, Tasks, WorkRequest,
};
use crate::task_queue::ClaimedTask;
pub use bash::Feature;
use bash::{FileAccess, IsolationLevel, IsolationReport, NetworkAccess, Program, Sandbox};
use kernel::event::Failure;
use kernel::{OrgId, Span};
use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The type of the tasks that the worker claims.
pub use lang::BASH_TYPE as TYPE;

/// After a server was killed, its commands run again when their leases have ended. Shorter than for workers elsewhere:
/// there is no network between this worker and the engine.
const LEASE: Span = Span::from_secs(15);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(4);
/// How long a claim waits. Shorter than the silence after which a worker counts as absent.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// The time between two tries after an error of the engine, which is busy, full or stopping.
const PAUSE: Duration = Duration::from_millis(250);
/// How long stopped commands get to be reported at the end of a drain.
const HAND_BACK: Duration = Duration::from_secs(5);

/// What commands are allowed, and how they are contained.
#[derive(Clone, Debug)]
pub struct BashOptions {
    pub program: Program,
    /// Steps are refused if this machine offers less.
    pub required: IsolationLevel,
    pub network: NetworkAccess,
    pub files: FileAccess,
    /// How many commands run at once.
    pub slots: u32,
    /// An existing folder that all commands work in; without it, each one gets a private folder.
    pub workspace: Option<PathBuf>,
    /// Where private folders are made.
    pub scratch: PathBuf,
    /// Files and folders that no command may read, as far as this machine can prevent it.
    pub protected: Vec<PathBuf>,
}

/// What the probe of this machine found, or why it failed.
type Probed = Result<IsolationReport, String>;

/// How to stop each attempt, by its task and fence.
type Stops = HashMap<(TaskKey, u64), watch::Sender<Option<StopCause>>>;

pub struct BashWorker {
    options: BashOptions,
    name: String,
    probed: watch::Sender<Option<Arc<Probed>>>,
    is_draining: watch::Sender<bool>,
    /// How many tasks it holds.
    held: watch::Sender<u32>,
    stops: Mutex<Stops>,
}

/// Why a command has to end before it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopCause {
    /// The run needs no result any more. An undo may wait to hear that the command has ended.
    CalledOff,
    /// The lease has ended, or may have: another attempt may be under way.
    Lost,
    /// The server stops: the task is handed back.
    Draining,
}

impl BashWorker {
    /// `node` is the name of this node; empty if the store has no others.
    pub fn new(options: BashOptions, node: &str) -> BashWorker {
        let name = if node.is_empty() { "bash".to_owned() } else { format!("bash-{node}") };
        let (probed, is_draining, held) = (watch::Sender::new(None), watch::Sender::new(false), watch::Sender::new(0));
        BashWorker { options, name, probed, is_draining, held, stops: Mutex::default() }
    }

    /// The word for the level below which steps are refused.
    pub fn required(&self) -> &'static str {
        self.options.required.word()
    }

    pub fn allows_network(&self) -> bool {
        self.options.network == NetworkAccess::On
    }

    pub fn slots(&self) -> u32 {
        self.options.slots
    }

    /// What this machine offers to contain commands. Waits for the probe, which takes a moment after the start.
    pub async fn isolation(&self) -> Arc<Probed> {
        let mut probed = self.probed.subscribe();
        let found = probed.wait_for(Option::is_some).await;
        found.ok().and_then(|found| found.clone()).unwrap_or_else(|| Arc::new(Err("the probe was stopped".into())))
    }

    /// Claims and runs tasks until the engine drains or stops.
    pub async fn run(self: Arc<Self>, tasks: Arc<Tasks>) {
        let sandbox = match self.prepare().await {
            Ok(isolation) => {
                let options = &self.options;
                let sandbox = Sandbox::new(options.program.clone(), isolation, options.required, &options.scratch);
                Ok(options.protected.iter().fold(sandbox, Sandbox::protect))
            }
            Err(why) => Err(why),
        };
        let sandbox = Arc::new(sandbox);
        let mut is_draining = self.is_draining.subscribe();
        let mut held = self.held.subscribe();
        while !*is_draining.borrow() {
            let free = self.options.slots.saturating_sub(*held.borrow_and_update());
            let claim = tasks.work(OrgId::DEFAULT, self.claim(free));
            let claimed = tokio::select! {
                claimed = claim => claimed,
                // A claim without credits waits for cancellations only.
                Ok(()) = held.changed(), if free == 0 => continue,
                Ok(_) = is_draining.wait_for(|is_draining| *is_draining) => return,
            };
            match claimed {
                Ok(reply) => {
                    for (run, step) in reply.claimed.cancellations {
                        self.stop(|task| *task == TaskKey { run, step }, StopCause::CalledOff);
                    }
                    for task in reply.claimed.tasks {
                        self.held.send_modify(|held| *held += 1);
                        tokio::spawn(self.clone().attempt(tasks.clone(), sandbox.clone(), task));
                    }
                }
                Err(error) => {
                    tracing::debug!("no commands can be claimed: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn claim(&self, credits: u32) -> WorkRequest {
        WorkRequest {
            worker: self.name.clone(),
            types: vec![TYPE.to_owned()],
            runtime: None,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            slots: Some(self.options.slots),
            credits,
            lease: LEASE,
            wait: CLAIM_WAIT,
            reports: Vec::new(),
            heartbeats: Vec::new(),
        }
    }

    /// Removes what earlier processes left behind, and asks this machine what it offers.
    async fn prepare(&self) -> Probed {
        let (program, scratch) = (self.options.program.clone(), self.options.scratch.clone());
        let probing = tokio::task::spawn_blocking(move || {
            match bash::remove_leftovers(&scratch) {
                Ok((0, problems)) if problems.is_empty() => {}
                Ok((count, problems)) => {
                    tracing::info!(
                        ?problems,
                        "removed {count} folders that commands of an earlier process left behind"
                    );
                }
                Err(error) => tracing::warn!("cannot read the folder for commands {}: {error}", scratch.display()),
            }
            bash::probe(&program).map_err(|error| error.to_string())
        });
        let probed = probing.await.unwrap_or_else(|_| Err("the probe of this machine panicked".into()));
        let required = self.options.required;
        match &probed {
            Ok(isolation) if isolation.level < required.max(IsolationLevel::Supervised) => tracing::warn!(
                "bash steps are refused as `sandbox_unavailable`: isolation level `{required}` is required; {isolation}"
            ),
            Ok(isolation) => tracing::info!("bash steps run on this server (`{required}` is required): {isolation}"),
            Err(why) => tracing::warn!("bash steps are refused as `sandbox_unavailable`: {why}"),
        }
        self.probed.send_replace(Some(Arc::new(probed.clone())));
        probed
    }

    /// Runs one command to its end and reports it.
    async fn attempt(self: Arc<Self>, tasks: Arc<Tasks>, sandbox: Arc<Result<Sandbox, String>>, task: ClaimedTask) {
        let key = TaskKey { run: task.run, step: (!task.is_plain).then_some(task.step) };
        let lease = TaskLease { tasks: &tasks, org: task.org, key, fence: task.fence };
        let stop = watch::Sender::new(self.is_draining.borrow().then_some(StopCause::Draining));
        self.stops().insert((key, task.fence), stop.clone());
        {
            let work = async {
                let is_stopped = stop.borrow().is_some();
                let outcome = match is_stopped {
                    true => Some(ReportOutcome::Snoozed(Span(0))),
                    false => self.outcome(&sandbox, &task, &stop).await,
                };
                if let Some(outcome) = outcome {
                    lease.report(outcome).await;
                }
            };
            let mut work = pin!(work);
            tokio::select! {
                () = &mut work => {}
                why = lease.keep() => {
                    stop.send_if_modified(|stop| stop.is_none() && stop.replace(why).is_none());
                    // Until the processes are gone.
                    work.await;
                }
            }
        }
        self.stops().remove(&(key, task.fence));
        self.held.send_modify(|held| *held -= 1);
    }

    /// Runs the command of a task. `None` if the task is not this worker's any more.
    async fn outcome(
        &self,
        sandbox: &Result<Sandbox, String>,
        task: &ClaimedTask,
        stop: &watch::Sender<Option<StopCause>>,
    ) -> Option<ReportOutcome> {
        let sandbox = match sandbox {
            Ok(sandbox) => sandbox,
            Err(why) => return Some(attempt::refused(&bash::Error::SandboxUnavailable { message: why.clone() })),
        };
        let command = match attempt::command(&task.input, &self.options) {
            Ok(command) => command,
            Err(refused) => return Some(refused),
        };
        let mut stopped = stop.subscribe();
        let cancelled = async { drop(stopped.wait_for(Option::is_some).await) };
        match sandbox.run(command, cancelled).await {
            Ok(finished) => {
                if let Some(problem) = &finished.left_behind {
                    tracing::warn!(run = %task.run, step = task.step_key, "the folder of a command: {problem}");
                }
                attempt::ended(&finished).or_else(|| match *stop.borrow() {
                    Some(StopCause::Draining) => Some(ReportOutcome::Snoozed(Span(0))),
                    Some(StopCause::CalledOff) => Some(attempt::called_off()),
                    Some(StopCause::Lost) | None => None,
                })
            }
            Err(error) => {
                tracing::warn!(run = %task.run, step = task.step_key, "a command was not run: {error}");
                Some(attempt::refused(&error))
            }
        }
    }

    /// Claims no more, waits for the commands that run, and stops them when the time is over: their tasks are handed
    /// back, and the attempts are not charged.
    pub async fn drain(&self, grace: Duration) {
        self.is_draining.send_replace(true);
        let mut held = self.held.subscribe();
        let mut idle = async |limit| tokio::time::timeout(limit, held.wait_for(|held| *held == 0)).await.is_ok();
        if !idle(grace).await {
            self.stop(|_| true, StopCause::Draining);
            idle(HAND_BACK).await;
        }
    }

    fn stop(&self, which: impl Fn(&TaskKey) -> bool, why: StopCause) {
        for (_, stop) in self.stops().iter().filter(|((task, _), _)| which(task)) {
            stop.send_if_modified(|stop| stop.is_none() && stop.replace(why).is_none());
        }
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lease of one attempt.
struct TaskLease<'a> {
    tasks: &'a Tasks,
    org: OrgId,
    key: TaskKey,
    fence: u64,
}

impl TaskLease<'_> {
    /// Sends heartbeats. Ends when the task is called off, or when the lease is lost or may be, because the engine has
    /// not answered for as long.
    async fn keep(&self) -> StopCause {
        let mut kept = Instant::now();
        loop {
            let beat = async {
                tokio::time::sleep(HEARTBEAT_EVERY).await;
                let sent = Instant::now();
                let heartbeat = Heartbeat { task: self.key, fence: Some(self.fence), extend: None, progress: None };
                (sent, self.tasks.heartbeat(self.org, heartbeat).await)
            };
            let left = Duration::from_micros(LEASE.0).saturating_sub(kept.elapsed());
            match tokio::time::timeout(left, beat).await {
                Ok((sent, Ok(HeartbeatReply::Until(_) | HeartbeatReply::TooLarge(_)))) => kept = sent,
                Ok((_, Ok(HeartbeatReply::Cancelled))) => return StopCause::CalledOff,
                Ok((_, Ok(HeartbeatReply::Stale | HeartbeatReply::NotFound))) | Err(_) => return StopCause::Lost,
                Ok((_, Err(error))) => tracing::debug!("no answer to a heartbeat of a command: {error}"),
            }
        }
    }

    /// Reports until the engine answers.
    async fn report(&self, outcome: ReportOutcome) {
        let mut outcome = outcome;
        loop {
            let report = TaskReport { task: self.key, fence: Some(self.fence), outcome: outcome.clone() };
            match self.tasks.report(self.org, report).await {
                Ok(Reported::TooLarge) => {
                    let failure = Failure::new("result_too_large", "its output would make the run larger than 16 MiB");
                    outcome = ReportOutcome::Failed { failure, is_final: true, retry_after: None };
                }
                Ok(Reported::Recorded) => return,
                Ok(Reported::Stale | Reported::Cancelled | Reported::NotFound) => {
                    tracing::debug!(task = %self.key, "the end of a command came too late to count");
                    return;
                }
                Err(error) => {
                    tracing::debug!("no answer to the report of a command: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
