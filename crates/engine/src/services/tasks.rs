//! Tasks: producers submit them, workers claim them, send heartbeats and report results. A task is a step of a run like
//! any other, so this module only builds commands for the mailbox and translates its replies.

mod task_admin;
mod task_types;

pub use task_admin::{Bulk, BulkDone, RELEASE, Retried, TaskFilter, TaskPage, TaskReading, status_of};
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
use kernel::event::{Failure, LogLine};
use kernel::{Answer, Input, OrgId, Payload, RunId, RunStatus, Span, Timestamp, retry};
use lang::task::TaskSettings;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// A task to be submitted.
pub struct NewTask {
    /// Its type; validated by the caller.
    pub name: String,
    pub settings: TaskSettings,
    /// Well-formed JSON.
    pub payload: Bytes,
    pub priority: Option<u32>,
    pub run_at: Option<Timestamp>,
    pub key: String,
    pub labels: Vec<(String, String)>,
    pub callback_url: String,
    /// The idempotency key and the fingerprint of the request.
    pub idempotency: Option<(String, [u8; 32])>,
}

/// The id of a task as workers see it: `task_…`, with the step's number unless the run is a plain task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey {
    pub run: RunId,
    /// `None` for a plain task, whose run has only this step.
    pub step: Option<u32>,
}

impl TaskKey {
    const PREFIX: &'static str = "task_";

    pub fn plain(run: RunId) -> TaskKey {
        TaskKey { run, step: None }
    }

    /// The inverse of `Display`; `None` for any other text.
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

    /// The lease token: the fence, and a checksum over task and fence, so that a worker that mixes up the tokens of
    /// two tasks is refused.
    pub fn token(self, fence: u64) -> String {
        format!("{fence:x}-{:08x}", self.checksum(fence))
    }

    /// The fence in a token; `None` if the token belongs to another task.
    pub fn fence(self, token: &str) -> Option<u64> {
        let (fence, _) = token.split_once('-')?;
        let fence = u64::from_str_radix(fence, 16).ok()?;
        (self.token(fence) == token).then_some(fence)
    }

    fn checksum(self, fence: u64) -> u32 {
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

/// A worker's report of how an attempt ended.
pub struct TaskReport {
    pub task: TaskKey,
    /// `None` if the token belongs to another task.
    pub fence: Option<u64>,
    pub outcome: ReportOutcome,
}

#[derive(Clone)]
pub enum ReportOutcome {
    /// The result, well-formed JSON.
    Done(Bytes),
    Failed {
        failure: Failure,
        is_final: bool,
        retry_after: Option<Span>,
    },
    /// The worker gave the task back, to be claimed again after this time.
    Snoozed(Span),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    Recorded,
    /// The token is not the current one, or another outcome was reported with it before.
    Stale,
    /// The run was cancelled, so the report changes nothing.
    Cancelled,
    /// The run would become too large.
    TooLarge,
    NotFound,
}

/// A worker's heartbeat for one task.
pub struct Heartbeat {
    pub task: TaskKey,
    pub fence: Option<u64>,
    pub extend: Option<Span>,
    /// Well-formed JSON.
    pub progress: Option<Bytes>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// The new deadline of the lease.
    Until(Timestamp),
    /// The run was cancelled: the worker should drop the task.
    Cancelled,
    Stale,
    /// The progress would make the run too large and is not saved. The new deadline of the lease.
    TooLarge(Timestamp),
    NotFound,
}

/// A worker's request: reports and heartbeats for tasks it has, and a claim for `credits` more.
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
    pub leases: Vec<HeartbeatReply>,
    pub claimed: ClaimReply,
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

    /// A hash of the report, never zero. (FNV-1a: it only tells a repeated report from a different one.)
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
    /// Held while a type is changed, so that changes happen one at a time.
    changing_types: tokio::sync::Mutex<()>,
    /// The id of the next claim request.
    claim_ids: AtomicU64,
}

impl Tasks {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>, runs: Arc<Runs>, type_cache: Arc<TypeCache>) -> Tasks {
        let (changing_types, claim_ids) = Default::default();
        Tasks { core, cluster, runs, type_cache, changing_types, claim_ids }
    }

    /// Submits tasks in one durable write, all of them or none; answers in their order.
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

    /// Was this task submitted before? A repeated submission gets the first answer, even if the type is disabled now.
    async fn is_repeat(&self, org: OrgId, scope: &str, key: Option<&(String, [u8; 32])>) -> Result<bool, Error> {
        match key {
            Some((key, _)) => Ok(self.core.store.idempotency_record(org, scope, key).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Records a worker's reports and heartbeats, and claims tasks for it. Answers at once if the request contains
    /// reports or a task is ready; otherwise as soon as a task is ready, at most after `wait`.
    pub async fn work(&self, org: OrgId, request: WorkRequest) -> Result<WorkReply, Error> {
        let core = &self.core;
        if core.clock.is_too_skewed() && request.reports.is_empty() && request.heartbeats.is_empty() {
            // An error, so that workers wait before they ask again.
            return Err(Error::Unavailable(core.clock.skew_report().unwrap_or_default()));
        }
        // A type may have been paused through another node. If the refresh fails, reports are still recorded.
        if request.credits > 0 && self.cluster.refresh_caches().await.is_err() {
            tracing::debug!("the caches cannot be refreshed; tasks are claimed under limits that may have changed");
        }
        let now = self.core.now();
        let patterns: Vec<Pattern> = request.types.iter().filter_map(|text| Pattern::parse(text)).collect();
        let claim_id = self.claim_ids.fetch_add(1, Ordering::Relaxed);
        let has_reports = !request.reports.is_empty();
        let (claim_reply_to, claim_reply) = oneshot::channel();
        let with_progress = request.heartbeats.iter().filter(|beat| beat.progress.is_some()).count();
        let count = request.reports.len() + request.heartbeats.len() + with_progress;
        let (mut channels, answers) = reply_channel::shared(count);
        let mut commands = Vec::with_capacity(count + 1);
        // The progress of an attempt is recorded before its end.
        let mut heartbeats = Vec::with_capacity(request.heartbeats.len());
        for mut heartbeat in request.heartbeats {
            let progress = heartbeat.progress.take();
            commands.extend(extend_command(org, &heartbeat, channels.next().ok_or_else(stopped)?));
            let has_progress = progress.is_some();
            if let Some(progress) = progress {
                let reply_to = channels.next().ok_or_else(stopped)?;
                commands.extend(progress_command(org, &heartbeat, progress, reply_to));
            }
            heartbeats.push((heartbeat, has_progress));
        }
        let reports = request.reports.len();
        for report in request.reports {
            let reply_to = channels.next().ok_or_else(stopped)?;
            commands.extend(report_command(org, report, reply_to, now));
        }
        drop(channels);
        let is_immediate = has_reports || request.wait.is_zero();
        // A worker that only claims must not get an empty answer, or a task of lower priority, before this node has
        // read the ready tasks of other nodes.
        let is_strict = !has_reports && !self.cluster.nodes().is_alone();
        if is_strict && request.credits > 0 {
            commands.push(Command::TypesWithTasks(core.store.ready_types().await?));
        }
        commands.push(Command::Claim(Box::new(ClaimRequest {
            claim_id,
            reply_to: ReplyChannel::One(claim_reply_to),
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
        let replies = if count > 0 { answers.await.map_err(|_| stopped())? } else { Vec::new() };
        let mut replies = replies.into_iter();
        let mut leases = Vec::with_capacity(heartbeats.len());
        for (heartbeat, has_progress) in heartbeats {
            let extended = replies.next().flatten();
            let saved = if has_progress { Some(replies.next().flatten()) } else { None };
            leases.push(self.alive(org, heartbeat, extended, saved).await?);
        }
        let mut acks = Vec::with_capacity(reports);
        for reply in replies {
            acks.push(reported(reply)?);
        }
        let claimed = call.answer(claim_reply, request.wait).await?;
        Ok(WorkReply { acks, leases, claimed })
    }

    /// Records how one attempt ended.
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

    pub async fn heartbeat(&self, org: OrgId, mut heartbeat: Heartbeat) -> Result<HeartbeatReply, Error> {
        let progress = heartbeat.progress.take();
        let (mut channels, replies) = reply_channel::shared(1 + usize::from(progress.is_some()));
        let mut commands = Vec::new();
        commands.extend(extend_command(org, &heartbeat, channels.next().ok_or_else(stopped)?));
        let has_progress = progress.is_some();
        if let Some(progress) = progress {
            commands.extend(progress_command(org, &heartbeat, progress, channels.next().ok_or_else(stopped)?));
        }
        drop(channels);
        if !self.core.inbox.send_all(commands) {
            return Err(Error::Unavailable("the engine is stopping".into()));
        }
        let mut replies = replies.await.map_err(|_| stopped())?.into_iter();
        let extended = replies.next().flatten();
        let saved = has_progress.then(|| replies.next().flatten());
        self.alive(org, heartbeat, extended, saved).await
    }

    /// Records log lines of a worker.
    pub async fn log(
        &self,
        org: OrgId,
        task: TaskKey,
        fence: Option<u64>,
        lines: Vec<LogLine>,
    ) -> Result<Reported, Error> {
        let Some(fence) = fence else { return Ok(Reported::Stale) };
        let input = Input::Log { step: task.index(), fence, lines };
        match self.runs.give(org, task.run, input).await {
            Ok((answer, status)) => Ok(judged(answer, status)),
            Err(Error::NotFound(_)) => Ok(Reported::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Another node may have ended a run while this node still holds the lease of its task.
    async fn may_be_over(&self, org: OrgId, run: RunId) -> Result<bool, Error> {
        if self.cluster.nodes().is_alone() {
            return Ok(false);
        }
        Ok(self.core.store.run(org, run).await?.is_none_or(|row| row.status.is_terminal() || is_called_off(row.status)))
    }

    /// The answer to a heartbeat, from the task queue's reply and, if there was progress to save, the run's. If the
    /// task queue has no such lease, the run decides: it may be about to be loaded back into memory.
    async fn alive(
        &self,
        org: OrgId,
        heartbeat: Heartbeat,
        extended: Option<Reply>,
        saved: Option<Option<Reply>>,
    ) -> Result<HeartbeatReply, Error> {
        let Heartbeat { task, fence, extend, .. } = heartbeat;
        let Some(fence) = fence else { return Ok(HeartbeatReply::Stale) };
        let until = match extended {
            Some(Reply::Lease(until)) => until,
            Some(other) => return Err(refusal(other, "task")),
            None => return Err(stopped()),
        };
        let (run, step) = (task.run, task.index());
        let judged = match saved {
            Some(Some(Reply::Answer { answer, .. })) => answer,
            Some(Some(Reply::NotFound)) => return Ok(HeartbeatReply::NotFound),
            Some(Some(other)) => return Err(refusal(other, "task")),
            Some(None) => return Err(stopped()),
            None if until.is_some() && !self.may_be_over(org, run).await? => Answer::Applied,
            None => match self.runs.give(org, run, Input::Heartbeat { step, fence, progress: None }).await {
                Ok((answer, _)) => answer,
                Err(Error::NotFound(_)) => return Ok(HeartbeatReply::NotFound),
                Err(error) => return Err(error),
            },
        };
        let extended = match judged {
            Answer::Applied => HeartbeatReply::Until,
            // The worker still holds the task, although its progress is not saved.
            Answer::TooLarge => HeartbeatReply::TooLarge,
            Answer::Ended(status) if is_called_off(status) => return Ok(HeartbeatReply::Cancelled),
            _ => return Ok(HeartbeatReply::Stale),
        };
        if let Some(until) = until {
            return Ok(extended(until));
        }
        let extend = |reply_to| Command::Extend { org, run, step, fence, by: extend, reply_to };
        match self.core.ask(extend).await? {
            Reply::Lease(Some(until)) => Ok(extended(until)),
            Reply::Lease(None) => Ok(HeartbeatReply::Stale),
            other => Err(refusal(other, "task")),
        }
    }
}

/// A worker's open claim. Dropping it withdraws the claim, so that no task stays leased to a request that ended.
struct ClaimCall<'a> {
    core: &'a Core,
    claim_id: u64,
}

impl ClaimCall<'_> {
    async fn answer(self, mut claim_reply: oneshot::Receiver<Reply>, wait: Duration) -> Result<ClaimReply, Error> {
        let reply = match tokio::time::timeout(wait.max(Duration::from_millis(1)), &mut claim_reply).await {
            Ok(reply) => reply,
            Err(_) => {
                // A lease may be in a commit that is under way; the reply comes after it.
                self.core.inbox.send(Command::WithdrawClaim(self.claim_id));
                claim_reply.await
            }
        };
        match reply.map_err(|_| stopped())? {
            Reply::Claimed(claimed) => Ok(*claimed),
            other => Err(refusal(other, "task")),
        }
    }
}

impl Drop for ClaimCall<'_> {
    fn drop(&mut self) {
        self.core.inbox.send(Command::WithdrawClaim(self.claim_id));
    }
}

/// `None` for the token of another task: the reply channel is dropped, which the caller reads as stale.
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

/// Whether the run needs no result any more.
fn is_called_off(status: RunStatus) -> bool {
    matches!(status, RunStatus::Cancelling | RunStatus::Cancelled | RunStatus::Timeout)
}

fn judged(answer: Answer, status: RunStatus) -> Reported {
    match answer {
        Answer::Applied | Answer::Repeated => Reported::Recorded,
        Answer::Ended(_) if is_called_off(status) => Reported::Cancelled,
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
