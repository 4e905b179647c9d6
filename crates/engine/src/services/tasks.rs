//! Tasks from both sides: producers submit them, workers claim and report them. A task is a step of a run like any
//! other, so all of this only prepares commands for the mailbox and reads its answers.

mod task_admin;
mod task_types;

pub use task_admin::{Bulk, BulkDone, RELEASE, Retried, TaskFilter, TaskReading, status_of};
pub(super) use task_types::type_of;
pub use task_types::{TypeCache, TypeChange, TypeView, type_id};

use super::cluster::Cluster;
use super::core::{Core, answered, refusal, stopped};
use super::reply_channel::{self, ReplyChannel};
use super::runs::{Idempotency, Runs, Source, StartRequest, StartedRun};
use crate::error::Error;
use crate::mailbox::{Command, Reply};
use crate::task_queue::{ClaimReply, ClaimRequest, Pattern};
use bytes::Bytes;
use kernel::advance::TaskResult;
use kernel::event::{Failure, Line};
use kernel::{Answer, Input, OrgId, Payload, RunId, RunStatus, Span, Timestamp, retry};
use lang::task::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// A task to be recorded.
pub struct NewTask {
    /// Its type; checked.
    pub name: String,
    pub settings: Settings,
    /// Well-formed JSON.
    pub payload: Bytes,
    pub priority: Option<u32>,
    pub run_at: Option<Timestamp>,
    pub key: String,
    pub labels: Vec<(String, String)>,
    pub callback_url: String,
    /// The key and the fingerprint of what was asked.
    pub idempotency: Option<(String, [u8; 32])>,
}

/// One step of one run, as workers know it: `task_…`, with the step's number unless the run is a plain task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey {
    pub run: RunId,
    /// Nothing for a plain task, whose only step it is.
    pub step: Option<u32>,
}

impl TaskKey {
    const PREFIX: &'static str = "task_";

    pub fn plain(run: RunId) -> TaskKey {
        TaskKey { run, step: None }
    }

    /// Reads what `Display` printed; anything else is `None`.
    pub fn parse(text: &str) -> Option<TaskKey> {
        let rest = text.strip_prefix(Self::PREFIX)?;
        let (id, step) = match rest.split_once('-') {
            None => (rest, None),
            Some((id, step)) => (id, Some(step.parse().ok().filter(|n: &u32| n.to_string() == step)?)),
        };
        let run = RunId::parse(&format!("{}{id}", RunId::PREFIX))?;
        Some(TaskKey { run, step })
    }

    pub fn index(self) -> u32 {
        self.step.unwrap_or(0)
    }

    /// What the holder of a lease shows: the fence, and a few digits that belong to this task, so that a token
    /// that got mixed up with another task's is not taken for its own.
    pub fn token(self, fence: u64) -> String {
        format!("{fence:x}-{:08x}", self.check(fence))
    }

    /// The fence of a token of this task.
    pub fn fence(self, token: &str) -> Option<u64> {
        let (fence, _) = token.split_once('-')?;
        let fence = u64::from_str_radix(fence, 16).ok()?;
        (self.token(fence) == token).then_some(fence)
    }

    fn check(self, fence: u64) -> u32 {
        retry::seed(&self.run.0, self.index(), fence as u32) as u32
    }
}

impl std::fmt::Display for TaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.run.to_string();
        let id = id.strip_prefix(RunId::PREFIX).unwrap_or(&id);
        match self.step {
            None => write!(f, "{}{id}", Self::PREFIX),
            Some(step) => write!(f, "{}{id}-{step}", Self::PREFIX),
        }
    }
}

/// How a worker says an attempt ended.
pub struct TaskReport {
    pub task: TaskKey,
    /// Nothing when its token is none of this task.
    pub fence: Option<u64>,
    pub outcome: ReportOutcome,
}

pub enum ReportOutcome {
    /// With this result, well-formed JSON.
    Done(Bytes),
    Failed {
        failure: Failure,
        is_final: bool,
        retry_after: Option<Span>,
    },
    /// Not now, but after so long.
    Snoozed(Span),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    Recorded,
    /// The token is not the current one, or something else was reported with it before.
    Stale,
    /// The run was cancelled: nobody wants to know.
    Cancelled,
    /// The run would become too large.
    TooLarge,
    NotFound,
}

/// A sign of life for a task.
pub struct Heartbeat {
    pub task: TaskKey,
    pub fence: Option<u64>,
    pub extend: Option<Span>,
    /// Well-formed JSON.
    pub progress: Option<Bytes>,
}

/// What a sign of life comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    Until(Timestamp),
    /// Nobody wants the result any more.
    Cancelled,
    Stale,
    TooLarge,
    NotFound,
}

/// Everything a worker says and asks in one go.
pub struct WorkRequest {
    pub worker: String,
    pub types: Vec<String>,
    pub runtime: Option<String>,
    pub version: Option<String>,
    pub slots: Option<u32>,
    pub credits: u32,
    pub lease: Span,
    pub wait: Duration,
    pub reports: Vec<TaskReport>,
    pub heartbeats: Vec<Heartbeat>,
}

pub struct WorkReply {
    pub acks: Vec<Reported>,
    pub leases: Vec<Alive>,
    pub handed: ClaimReply,
}

impl ReportOutcome {
    fn result(self, now: Timestamp) -> TaskResult {
        let took = Span::default();
        match self {
            ReportOutcome::Done(body) => TaskResult::Done { body: Some(Payload::json(body)), took },
            ReportOutcome::Failed { failure, is_final, retry_after } => {
                TaskResult::Failed { failure, retryable: !is_final, retry_after, took }
            }
            ReportOutcome::Snoozed(span) => TaskResult::snoozed(now.after(span)),
        }
    }

    /// Of what was said; never zero. (FNV-1a: it only tells a repeat from something else.)
    fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            for byte in bytes.iter().chain(&[0xff]) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        match self {
            ReportOutcome::Done(body) => add(body),
            ReportOutcome::Failed { failure, is_final, retry_after } => {
                add(failure.code.as_bytes());
                add(failure.message.as_bytes());
                add(&[u8::from(*is_final)]);
                add(&retry_after.map_or(u64::MAX, |span| span.0).to_be_bytes());
            }
            ReportOutcome::Snoozed(span) => add(&span.0.to_be_bytes()),
        }
        hash | 1
    }
}

pub struct Tasks {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    runs: Arc<Runs>,
    type_cache: Arc<TypeCache>,
    /// Held while a type is changed: one caller at a time.
    changing_types: tokio::sync::Mutex<()>,
    /// Counts the claim requests of workers.
    claim_ids: AtomicU64,
}

impl Tasks {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>, runs: Arc<Runs>, type_cache: Arc<TypeCache>) -> Tasks {
        let (changing_types, claim_ids) = Default::default();
        Tasks { core, cluster, runs, type_cache, changing_types, claim_ids }
    }

    /// Records tasks in one durable write, all of them or none; answers in their order.
    pub async fn submit(&self, org: OrgId, tasks: Vec<NewTask>) -> Result<Vec<StartedRun>, Error> {
        self.cluster.refresh_caches().await?;
        let mut requests = Vec::with_capacity(tasks.len());
        let mut wrong = Vec::new();
        let mut last = None;
        for (index, task) in tasks.into_iter().enumerate() {
            let type_edition = self.type_edition(org, &task.name, &task.settings, &mut last).await?;
            let scope = format!("type:{}", task.name);
            if !type_edition.is_enabled && !self.is_repeat(org, &scope, task.idempotency.as_ref()).await? {
                wrong.push((index, Error::TypeDisabled(task.name)));
                continue;
            }
            let source = Source {
                priority: task.priority,
                run_at: task.run_at,
                key: task.key,
                callback_url: task.callback_url,
                ..Source::default()
            };
            let idempotency =
                task.idempotency.map(|(key, fingerprint)| Idempotency { scope: Some(scope), key, fingerprint });
            let request = StartRequest::new(org, type_edition.resolved.clone(), task.payload);
            requests.push(StartRequest { labels: task.labels, source, idempotency, ..request });
        }
        if !wrong.is_empty() {
            return Err(Error::Items(wrong));
        }
        if requests.len() > 1 {
            return self.runs.start_all(requests).await;
        }
        let Some(request) = requests.pop() else { return Ok(Vec::new()) };
        match self.runs.start(request).await {
            Ok(started) => {
                let (run, status, deduplicated) = (started.run, Some(started.status), started.deduplicated);
                Ok(vec![StartedRun { run, status, deduplicated }])
            }
            Err(Error::RunDeleted(run)) => Ok(vec![StartedRun { run, status: None, deduplicated: true }]),
            Err(error @ Error::KeyReused) => Err(Error::Items(vec![(0, error)])),
            Err(error) => Err(error),
        }
    }

    /// Was this recorded before? Whoever asks again is told so, whatever became of the type since.
    async fn is_repeat(&self, org: OrgId, scope: &str, key: Option<&(String, [u8; 32])>) -> Result<bool, Error> {
        match key {
            Some((key, _)) => Ok(self.core.store.idempotency_record(org, scope, key).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Takes down what a worker has to say, and gives it what there is for it: at once if it reported something or
    /// there is something, else as soon as there is, at most after `wait`.
    pub async fn work(&self, org: OrgId, request: WorkRequest) -> Result<WorkReply, Error> {
        let core = &self.core;
        // A type that was paused through another node is paused. What a worker has to say is heard in any case.
        if request.credits > 0 && self.cluster.refresh_caches().await.is_err() {
            tracing::debug!("tasks are handed out by rules that may have changed");
        }
        let now = self.core.now();
        let patterns: Vec<Pattern> = request.types.iter().filter_map(|text| Pattern::parse(text)).collect();
        let claim_id = self.claim_ids.fetch_add(1, Ordering::Relaxed);
        let has_news = !request.reports.is_empty();
        let (handed_ticket, handed) = oneshot::channel();
        let with_progress = request.heartbeats.iter().filter(|beat| beat.progress.is_some()).count();
        let said = request.reports.len() + request.heartbeats.len() + with_progress;
        let (mut parts, answers) = reply_channel::shared(said);
        let mut commands = Vec::with_capacity(said + 1);
        // How far it got comes before how it ended.
        let mut asked = Vec::with_capacity(request.heartbeats.len());
        for mut heartbeat in request.heartbeats {
            let progress = heartbeat.progress.take();
            commands.extend(extend_command(org, &heartbeat, parts.next().ok_or_else(stopped)?));
            let has_progress = progress.is_some();
            if let Some(progress) = progress {
                let reply_to = parts.next().ok_or_else(stopped)?;
                commands.extend(progress_command(org, &heartbeat, progress, reply_to));
            }
            asked.push((heartbeat, has_progress));
        }
        let reports = request.reports.len();
        for report in request.reports {
            let reply_to = parts.next().ok_or_else(stopped)?;
            commands.extend(report_command(org, report, reply_to, now));
        }
        drop(parts);
        let is_immediate = has_news || request.wait.is_zero();
        // Whoever comes for the first time is not told that there is nothing, nor given what goes later, before this node
        // has looked for what others left.
        let is_strict = !has_news && !self.cluster.nodes().is_alone();
        if is_strict && request.credits > 0 {
            commands.push(Command::TypesWithTasks(core.store.ready_types().await?));
        }
        commands.push(Command::Claim(Box::new(ClaimRequest {
            claim_id,
            reply_to: ReplyChannel::One(handed_ticket),
            org,
            worker: request.worker,
            types: request.types,
            patterns,
            runtime: request.runtime,
            version: request.version,
            slots: request.slots,
            credits: request.credits,
            lease: request.lease,
            is_immediate,
            is_strict,
        })));
        if !core.inbox.send_all(commands) {
            return Err(Error::Unavailable("the engine is stopping".into()));
        }
        let call = ClaimCall { core: &self.core, claim_id };
        let replies = if said > 0 { answers.await.map_err(|_| stopped())? } else { Vec::new() };
        let mut replies = replies.into_iter();
        let mut leases = Vec::with_capacity(asked.len());
        for (heartbeat, has_progress) in asked {
            let extended = replies.next().flatten();
            let saved = if has_progress { Some(replies.next().flatten()) } else { None };
            leases.push(self.alive(org, heartbeat, extended, saved).await?);
        }
        let mut acks = Vec::with_capacity(reports);
        for reply in replies {
            acks.push(reported(reply)?);
        }
        let handed = call.answer(handed, request.wait).await?;
        Ok(WorkReply { acks, leases, handed })
    }

    /// Takes down how one attempt ended.
    pub async fn report(&self, org: OrgId, report: TaskReport) -> Result<Reported, Error> {
        let (reply_to, reply) = oneshot::channel();
        let Some(command) = report_command(org, report, ReplyChannel::One(reply_to), self.core.now()) else {
            return Ok(Reported::Stale);
        };
        if !self.core.inbox.send(command) {
            return Err(Error::Unavailable("the engine is stopping".into()));
        }
        reported(Some(answered(reply).await?))
    }

    pub async fn heartbeat(&self, org: OrgId, mut heartbeat: Heartbeat) -> Result<Alive, Error> {
        let progress = heartbeat.progress.take();
        let (reply_channel, replies) = reply_channel::shared(1 + usize::from(progress.is_some()));
        let mut reply_channel = reply_channel;
        let mut commands = Vec::new();
        commands.extend(extend_command(org, &heartbeat, reply_channel.next().ok_or_else(stopped)?));
        let has_progress = progress.is_some();
        if let Some(progress) = progress {
            commands.extend(progress_command(org, &heartbeat, progress, reply_channel.next().ok_or_else(stopped)?));
        }
        drop(reply_channel);
        if !self.core.inbox.send_all(commands) {
            return Err(Error::Unavailable("the engine is stopping".into()));
        }
        let mut replies = replies.await.map_err(|_| stopped())?.into_iter();
        let extended = replies.next().flatten();
        let saved = has_progress.then(|| replies.next().flatten());
        self.alive(org, heartbeat, extended, saved).await
    }

    /// Keeps what a worker wants to be read.
    pub async fn log(
        &self,
        org: OrgId,
        task: TaskKey,
        fence: Option<u64>,
        lines: Vec<Line>,
    ) -> Result<Reported, Error> {
        let Some(fence) = fence else { return Ok(Reported::Stale) };
        let input = Input::Log { step: task.index(), fence, lines };
        match self.runs.give(org, task.run, input).await {
            Ok((answer, status)) => Ok(judged(answer, status)),
            Err(Error::NotFound(_)) => Ok(Reported::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Another node may have ended a run whose lease is counted here.
    async fn may_be_over(&self, org: OrgId, run: RunId) -> Result<bool, Error> {
        if self.cluster.nodes().is_alone() {
            return Ok(false);
        }
        Ok(self.core.store.run(org, run).await?.is_none_or(|row| row.status.is_terminal()))
    }

    /// What the answers to a sign of life mean: the board's, and the run's if there was progress to save. Where the board
    /// knows of no such lease the run is asked, which may just be on its way back into memory.
    async fn alive(
        &self,
        org: OrgId,
        heartbeat: Heartbeat,
        extended: Option<Reply>,
        saved: Option<Option<Reply>>,
    ) -> Result<Alive, Error> {
        let Heartbeat { task, fence, extend, .. } = heartbeat;
        let Some(fence) = fence else { return Ok(Alive::Stale) };
        let until = match extended {
            Some(Reply::Lease(until)) => until,
            Some(other) => return Err(refusal(other, "task")),
            None => return Err(stopped()),
        };
        let (run, step) = (task.run, task.index());
        let judged = match saved {
            Some(Some(Reply::Answer { answer, .. })) => answer,
            Some(Some(Reply::NotFound)) => return Ok(Alive::NotFound),
            Some(Some(other)) => return Err(refusal(other, "task")),
            Some(None) => return Err(stopped()),
            None if until.is_some() && !self.may_be_over(org, run).await? => Answer::Applied,
            None => match self.runs.give(org, run, Input::Heartbeat { step, fence, progress: None }).await {
                Ok((answer, _)) => answer,
                Err(Error::NotFound(_)) => return Ok(Alive::NotFound),
                Err(error) => return Err(error),
            },
        };
        match judged {
            Answer::Applied => {}
            Answer::Ended(RunStatus::Cancelled | RunStatus::Timeout) => return Ok(Alive::Cancelled),
            Answer::TooLarge => return Ok(Alive::TooLarge),
            _ => return Ok(Alive::Stale),
        }
        if let Some(until) = until {
            return Ok(Alive::Until(until));
        }
        let ask = |reply_to| Command::Extend { org, run, step, fence, by: extend, reply_to };
        match self.core.ask(ask).await? {
            Reply::Lease(Some(until)) => Ok(Alive::Until(until)),
            Reply::Lease(None) => Ok(Alive::Stale),
            other => Err(refusal(other, "task")),
        }
    }
}

/// A worker's question that is open. However it ends, nothing stays promised to nobody.
struct ClaimCall<'a> {
    core: &'a Core,
    claim_id: u64,
}

impl ClaimCall<'_> {
    async fn answer(self, mut handed: oneshot::Receiver<Reply>, wait: Duration) -> Result<ClaimReply, Error> {
        let reply = match tokio::time::timeout(wait.max(Duration::from_millis(1)), &mut handed).await {
            Ok(reply) => reply,
            Err(_) => {
                // What is on its way to it is waited for.
                self.core.inbox.send(Command::WithdrawClaim(self.claim_id));
                handed.await
            }
        };
        match reply.map_err(|_| stopped())? {
            Reply::Claimed(handed) => Ok(*handed),
            other => Err(refusal(other, "task")),
        }
    }
}

impl Drop for ClaimCall<'_> {
    fn drop(&mut self) {
        self.core.inbox.send(Command::WithdrawClaim(self.claim_id));
    }
}

/// Nothing for a token that is none of the task: then the ticket goes, and counts as stale.
fn report_command(
    org: OrgId,
    report: TaskReport,
    reply_to: ReplyChannel,
    now: Timestamp,
) -> Option<Command<ReplyChannel>> {
    let TaskReport { task, fence, outcome } = report;
    let digest = outcome.digest();
    let input = Input::Finished { step: task.index(), fence: fence?, result: outcome.result(now), digest };
    Some(Command::Give { org, run: task.run, input, reply_to: Some(reply_to) })
}

fn extend_command(org: OrgId, heartbeat: &Heartbeat, reply_to: ReplyChannel) -> Option<Command<ReplyChannel>> {
    let Heartbeat { task, fence, extend, .. } = heartbeat;
    Some(Command::Extend { org, run: task.run, step: task.index(), fence: (*fence)?, by: *extend, reply_to })
}

fn progress_command(
    org: OrgId,
    heartbeat: &Heartbeat,
    progress: Bytes,
    reply_to: ReplyChannel,
) -> Option<Command<ReplyChannel>> {
    let Heartbeat { task, fence, .. } = heartbeat;
    let input = Input::Heartbeat { step: task.index(), fence: (*fence)?, progress: Some(Payload::json(progress)) };
    Some(Command::Give { org, run: task.run, input, reply_to: Some(reply_to) })
}

fn reported(reply: Option<Reply>) -> Result<Reported, Error> {
    match reply {
        Some(Reply::Answer { answer, status, .. }) => Ok(judged(answer, status)),
        Some(Reply::NotFound) => Ok(Reported::NotFound),
        Some(other) => Err(refusal(other, "task")),
        None => Ok(Reported::Stale),
    }
}

fn judged(answer: Answer, status: RunStatus) -> Reported {
    match answer {
        Answer::Applied | Answer::Repeated => Reported::Recorded,
        Answer::Ended(_) if matches!(status, RunStatus::Cancelled | RunStatus::Timeout) => Reported::Cancelled,
        Answer::TooLarge => Reported::TooLarge,
        Answer::Unknown => Reported::NotFound,
        _ => Reported::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_id_encodes_run_and_step() {
        let run = RunId::new(Timestamp::from_millis(1), [9; 10]);
        let plain = TaskKey::plain(run);
        let step = TaskKey { run, step: Some(12) };
        assert_eq!(TaskKey::parse(&plain.to_string()), Some(plain));
        assert_eq!(TaskKey::parse(&step.to_string()), Some(step));
        assert_eq!(plain.to_string()[5..], run.to_string()[4..], "a plain task and its run share the same id");
        for bad in [
            "task_",
            "run_x",
            &format!("{plain}-"),
            &format!("{plain}-01"),
            &format!("{plain}-x"),
            &format!("{step}-1"),
        ] {
            assert_eq!(TaskKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_belongs_to_one_task() {
        let run = RunId::new(Timestamp::from_millis(1), [9; 10]);
        let (one, other) = (TaskKey { run, step: Some(1) }, TaskKey { run, step: Some(2) });
        assert_eq!(one.fence(&one.token(300)), Some(300));
        assert_eq!(other.fence(&one.token(300)), None);
        for bad in ["", "-", "12c", "12c-", "012c-00000000", "zz-0"] {
            assert_eq!(one.fence(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_digest_tells_reports_apart() {
        let failed = |is_final| ReportOutcome::Failed { failure: Failure::new("a", "b"), is_final, retry_after: None };
        let all = [
            ReportOutcome::Done("1".into()).digest(),
            ReportOutcome::Done("2".into()).digest(),
            failed(true).digest(),
            failed(false).digest(),
            ReportOutcome::Snoozed(Span(1)).digest(),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(*one != 0 && all[i + 1..].iter().all(|other| other != one));
        }
        assert_eq!(ReportOutcome::Done("1".into()).digest(), ReportOutcome::Done("1".into()).digest());
    }
}
