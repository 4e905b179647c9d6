//! Starting runs, giving them inputs, waiting for their end, deleting them. A call answers once its change is durable.

use super::cluster::Cluster;
use super::core::{Core, answered, refusal, stopped};
use super::reply_channel::{self, ReplyChannel};
use super::workflows::{Resolved, Workflows};
use crate::concurrency_groups;
use crate::error::Error;
use crate::execute::HttpQueue;
use crate::mailbox::{Command, InboxSource, Reply, StartRun};
use crate::secret;
use bytes::Bytes;
use kernel::event::{CopiedStep, ForkPoint, Origin, Pair, Parent, TriggerKind};
use kernel::{Answer, Input, OrgId, Payload, RunId, RunStatus, Timestamp, TriggerId, WorkflowId};
use lang::Budget;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::{ConcurrencyGroupRow, DeliveryRow, Erased, Erasure, IdempotencyKey, RunInsert, ScheduleAdvance};
use tokio::sync::oneshot;

/// Commands in the inbox before starts are refused.
const MAILBOX_MAX: usize = 65_536;
/// How often a caller that waits for a run's end reads the store, where another node may end the run.
const END_POLL_MIN: Duration = Duration::from_millis(20);
const END_POLL_MAX: Duration = Duration::from_millis(250);
/// The same while this is the only node; another may join meanwhile.
const END_POLL_ALONE: Duration = Duration::from_secs(1);
/// Busy runs in memory before starts are refused. (A run that waits, also for a worker, is not busy.)
const ACTIVE_MAX: u64 = 65_536;

pub struct StartRequest {
    pub org: OrgId,
    pub workflow: Arc<Resolved>,
    /// Well-formed JSON.
    pub body: Bytes,
    pub headers: Vec<(String, String)>,
    pub labels: Vec<(String, String)>,
    pub source: Source,
    pub idempotency: Option<Idempotency>,
    /// The entry for the trigger's log, written in the same commit as the run.
    pub delivery: Option<DeliveryRow>,
    /// The new position of that trigger's schedule, written in the same commit.
    pub advance: Option<ScheduleAdvance>,
    /// How steps ended in the run that this one is a fork of.
    pub copied: Vec<(u32, CopiedStep)>,
}

impl StartRequest {
    pub fn new(org: OrgId, workflow: Arc<Resolved>, body: Bytes) -> StartRequest {
        let (headers, labels) = (Vec::new(), Vec::new());
        StartRequest {
            org,
            workflow,
            body,
            headers,
            labels,
            source: Source::default(),
            idempotency: None,
            delivery: None,
            advance: None,
            copied: Vec::new(),
        }
    }
}

/// What a run comes from, beside the request itself.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub kind: TriggerKind,
    pub trigger: Option<TriggerId>,
    pub nominal: Option<Timestamp>,
    pub delivery: String,
    pub replayed_from: Option<RunId>,
    pub forked_from: Option<Box<ForkPoint>>,
    pub caused_by: Option<RunId>,
    pub actor: String,
    pub callback_url: String,
    /// The notification that this run delivers.
    pub notification: Option<(RunId, u64)>,
    /// For a single task: its priority, the earliest start, and the key that per-key limits count by.
    pub priority: Option<u32>,
    pub run_at: Option<Timestamp>,
    pub key: String,
    /// The step that starts it, the id that follows from that, and the row of the inbox that asks for it.
    pub parent: Option<Box<Parent>>,
    pub child: Option<RunId>,
    pub inbox: Option<InboxSource>,
}

/// The caller's idempotency key and the fingerprint of its request.
#[derive(Clone, Debug)]
pub struct Idempotency {
    /// What the key is unique within; `None` for the workflow.
    pub scope: Option<String>,
    pub key: String,
    pub fingerprint: [u8; 32],
}

pub struct Started {
    pub run: RunId,
    pub workflow: WorkflowId,
    pub status: RunStatus,
    pub started_at: Timestamp,
    /// The key was used for the same request before; this is the run it started.
    pub deduplicated: bool,
}

/// Cancels a run.
#[derive(Clone, Debug, Default)]
pub struct CancelRun {
    pub actor: String,
    pub reason: String,
    /// The run undoes first what it did.
    pub compensate: bool,
}

impl CancelRun {
    /// Without undoing anything.
    pub fn plain(actor: impl Into<String>, reason: impl Into<String>) -> CancelRun {
        CancelRun { actor: actor.into(), reason: reason.into(), compensate: false }
    }
}

/// One of several runs that were requested together.
pub struct StartedRun {
    pub run: RunId,
    /// `None` if the run was deleted.
    pub status: Option<RunStatus>,
    pub deduplicated: bool,
}

/// A start that was sent and is not answered yet.
struct PendingStart {
    org: OrgId,
    run: RunId,
    workflow: WorkflowId,
    fingerprint: Option<[u8; 32]>,
    /// The run's concurrency group, if another node keeps it.
    concurrency_group: Option<ConcurrencyGroupRow>,
    reply: oneshot::Receiver<Reply>,
}

pub struct Runs {
    pub(super) core: Arc<Core>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) workflows: Arc<Workflows>,
    /// Knows the position of HTTP steps that wait to be sent.
    pub(super) http_queue: Arc<HttpQueue>,
}

impl Runs {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>, workflows: Arc<Workflows>, http_queue: Arc<HttpQueue>) -> Runs {
        Runs { core, cluster, workflows, http_queue }
    }

    /// Creates a run; answers once that is durable.
    pub async fn start(&self, request: StartRequest) -> Result<Started, Error> {
        if let Some(earlier) = self.check_input(&request, &mut Budget::default()).await? {
            return Ok(earlier);
        }
        let pending = self.send_start(request, None)?;
        self.started(pending).await
    }

    /// Creates a run and waits for its end, at most `limit`; true if it has ended. The caller is woken once, at the
    /// end, and not also when the start is durable.
    pub async fn run(&self, request: StartRequest, limit: Duration) -> Result<(Started, bool), Error> {
        let org = request.org;
        let give_up = Instant::now() + limit;
        if let Some(earlier) = self.check_input(&request, &mut Budget::default()).await? {
            let has_ended = self.wait(org, earlier.run, limit).await?;
            return Ok((earlier, has_ended));
        }
        let (ended, end) = oneshot::channel();
        let pending = self.send_start(request, Some(ReplyChannel::One(ended)))?;
        let pause = if self.core.store.is_shared() { self.next_poll(Duration::ZERO) } else { limit };
        let end = self.await_end(org, pending.run, end, limit, pause).await;
        let has_ended = matches!(end, Ok(Some(Reply::Ended(_))));
        let started = self.started(pending).await?;
        if started.deduplicated {
            let left = give_up.saturating_duration_since(Instant::now());
            let has_ended = self.wait(org, started.run, left).await?;
            return Ok((started, has_ended));
        }
        Ok((started, has_ended))
    }

    /// Creates several runs in one durable write, all of them or none; answers in their order. An item whose
    /// key was used for the same request before counts as done.
    pub async fn start_all(&self, requests: Vec<StartRequest>) -> Result<Vec<StartedRun>, Error> {
        self.admit(requests.len())?;
        let mut started: Vec<Option<StartedRun>> = requests.iter().map(|_| None).collect();
        let mut starts = Vec::with_capacity(requests.len());
        let mut pending = Vec::with_capacity(requests.len());
        let mut wrong = Vec::new();
        let mut budget = Budget::of_batch();
        for (index, request) in requests.into_iter().enumerate() {
            match self.check_input(&request, &mut budget).await {
                Ok(None) => {}
                Ok(Some(Started { run, status, .. })) => {
                    started[index] = Some(StartedRun { run, status: Some(status), deduplicated: true });
                    continue;
                }
                Err(Error::RunDeleted(run)) => {
                    started[index] = Some(StartedRun { run, status: None, deduplicated: true });
                    continue;
                }
                Err(error @ (Error::InvalidInput(_) | Error::KeyReused)) => {
                    wrong.push((index, error));
                    continue;
                }
                Err(error) => return Err(error),
            }
            match self.prepare(request) {
                Ok((start, fingerprint)) => {
                    pending.push((index, start.org, start.run, start.version.workflow, fingerprint));
                    starts.push(start);
                }
                Err(error @ Error::InvalidConcurrencyKey(_)) => wrong.push((index, error)),
                Err(error) => return Err(error),
            }
        }
        if !wrong.is_empty() {
            return Err(Error::Items(wrong));
        }
        if starts.is_empty() {
            return Ok(started.into_iter().flatten().collect());
        }
        let (channels, replies) = reply_channel::shared(starts.len());
        let starts = starts.into_iter().zip(channels).collect();
        if !self.core.inbox.send(Command::StartAll(starts)) {
            return Err(Error::Unavailable("the engine is stopping".into()));
        }
        let replies = replies.await.map_err(|_| stopped())?;
        let mut other = None;
        for ((index, org, run, workflow, fingerprint), reply) in pending.into_iter().zip(replies) {
            let reply = reply.ok_or_else(stopped)?;
            match self.judge_start(org, run, workflow, fingerprint, reply).await {
                Ok(Started { run, status, deduplicated, .. }) => {
                    started[index] = Some(StartedRun { run, status: Some(status), deduplicated });
                }
                Err(Error::RunDeleted(run)) => {
                    started[index] = Some(StartedRun { run, status: None, deduplicated: true });
                }
                Err(error @ Error::KeyReused) => wrong.push((index, error)),
                // When an atomic group is refused, the reply to one of its members says why.
                Err(Error::Undone) => {}
                Err(error) => drop(other.get_or_insert(error)),
            }
        }
        match other {
            Some(error) => Err(error),
            None if wrong.is_empty() => Ok(started.into_iter().flatten().collect()),
            None => Err(Error::Items(wrong)),
        }
    }

    /// Refuses starts while the engine stops or is overloaded.
    fn admit(&self, count: usize) -> Result<(), Error> {
        let core = &self.core;
        if core.health.is_draining.load(Ordering::Relaxed) {
            return Err(Error::Stopping);
        }
        if core.inbox.backlog() + count > MAILBOX_MAX || core.metrics.runs_busy.get() + count as u64 > ACTIVE_MAX {
            core.metrics.requests_refused_total.add(count as u64);
            return Err(Error::Overloaded);
        }
        Ok(())
    }

    fn send_start(&self, request: StartRequest, ended: Option<ReplyChannel>) -> Result<PendingStart, Error> {
        self.admit(1)?;
        let (start, fingerprint) = self.prepare(request)?;
        let (org, run, workflow) = (start.org, start.run, start.version.workflow);
        let concurrency_group = start
            .concurrency_group
            .clone()
            .filter(|concurrency_group| !self.cluster.nodes().keeps(&concurrency_group.id));
        let reply = self.core.send(|reply_to| Command::Start { start: Box::new(start), reply_to, ended })?;
        Ok(PendingStart { org, run, workflow, fingerprint, concurrency_group, reply })
    }

    /// Everything of a new run that is known before it exists, and the fingerprint of its request.
    fn prepare(&self, request: StartRequest) -> Result<(StartRun, Option<[u8; 32]>), Error> {
        let core = &self.core;
        if !request.workflow.row.enabled {
            return Err(Error::Disabled);
        }
        let version = request.workflow.version.clone();
        let (org, workflow) = (request.org, version.workflow);
        let now = self.core.now();
        let run = match request.source.child {
            Some(child) => child,
            None => core.ids.run_id(now, |run| self.cluster.is_mine(run))?,
        };
        let fingerprint = request.idempotency.as_ref().map(|idempotency| idempotency.fingerprint);
        let run_insert = RunInsert {
            labels: request.labels.clone(),
            idempotency: request.idempotency.map(|idempotency| IdempotencyKey {
                scope: idempotency.scope.unwrap_or_else(|| workflow.to_string()),
                key: idempotency.key,
                fingerprint: idempotency.fingerprint,
                created_at: now,
            }),
            delivery: request.delivery.map(|row| DeliveryRow { run: Some(run), ..row }),
            advance: request.advance,
            notification: request.source.notification,
        };
        let source = request.source;
        let mut origin = Origin {
            workflow,
            workflow_name: request.workflow.row.name.clone(),
            version: version.number,
            hash: Bytes::copy_from_slice(&version.hash),
            lowering: version.lowering,
            trigger: source.kind,
            body: Payload::json(request.body),
            headers: pairs(request.headers),
            labels: pairs(request.labels),
            trigger_id: source.trigger,
            nominal: source.nominal,
            delivery: source.delivery,
            replayed_from: source.replayed_from,
            caused_by: source.caused_by,
            actor: source.actor,
            callback_url: source.callback_url,
            priority: source.priority,
            run_at: source.run_at,
            key: source.key,
            parent: source.parent,
            forked_from: source.forked_from,
            ..Default::default()
        };
        origin.concurrency_group =
            kernel::advance::concurrency_group(&version.plan, &origin).map_err(Error::InvalidConcurrencyKey)?;
        let concurrency_group = origin.concurrency_group.as_ref().map(|concurrency_group| ConcurrencyGroupRow {
            id: concurrency_groups::id(workflow, &concurrency_group.key),
            limit: concurrency_group.limit,
            on_conflict: concurrency_group.on_conflict,
        });
        let source = source.inbox.map(Box::new);
        let copied = request.copied;
        Ok((StartRun { org, run, version, origin, copied, concurrency_group, run_insert, source }, fingerprint))
    }

    async fn started(&self, pending: PendingStart) -> Result<Started, Error> {
        let PendingStart { org, run, workflow, fingerprint, concurrency_group, reply } = pending;
        let reply = answered(reply).await?;
        let started = self.judge_start(org, run, workflow, fingerprint, reply).await?;
        match concurrency_group {
            Some(concurrency_group) if started.status == RunStatus::Pending && !started.deduplicated => {
                Ok(Started { status: self.await_remote_admission(org, run, &concurrency_group).await, ..started })
            }
            _ => Ok(started),
        }
    }

    /// Turns the mailbox's reply to a start into the caller's answer.
    async fn judge_start(
        &self,
        org: OrgId,
        run: RunId,
        workflow: WorkflowId,
        fingerprint: Option<[u8; 32]>,
        reply: Reply,
    ) -> Result<Started, Error> {
        match reply {
            Reply::Answer { status, created_at, .. } => {
                Ok(Started { run, workflow, status, started_at: created_at, deduplicated: false })
            }
            Reply::KeyTaken { run, fingerprint: other } if Some(other) == fingerprint => {
                self.repeated(org, run, workflow).await
            }
            Reply::KeyTaken { .. } => Err(Error::KeyReused),
            other => Err(refusal(other, "run")),
        }
    }

    /// The answer to a request that was sent before and created this run.
    pub(super) async fn repeated(&self, org: OrgId, run: RunId, workflow: WorkflowId) -> Result<Started, Error> {
        let row = self.core.store.run(org, run).await?.ok_or(Error::RunDeleted(run))?;
        Ok(Started { run, workflow, status: row.status, started_at: row.created_at, deduplicated: true })
    }

    pub async fn cancel(&self, org: OrgId, run: RunId, cancel: CancelRun) -> Result<(Answer, RunStatus), Error> {
        let CancelRun { actor, reason, compensate } = cancel;
        self.give(org, run, Input::Cancel { actor, reason, compensate }).await
    }

    /// Handles a call to a callback URL.
    pub async fn callback(&self, token: &str, body: Bytes) -> Result<Answer, Error> {
        let found = self.core.store.wait(&secret::token_hash(token)).await?;
        let wait = found.ok_or(Error::NotFound("callback"))?;
        let digest = Bytes::copy_from_slice(&Sha256::digest(&body));
        let input = Input::Callback { step: wait.step, body: Payload::sniff(body), digest };
        self.give(wait.org, wait.run, input).await.map(|(answer, _)| answer)
    }

    pub(super) async fn give(&self, org: OrgId, run: RunId, input: Input) -> Result<(Answer, RunStatus), Error> {
        match self.core.ask(|reply_to| Command::Give { org, run, input, reply_to: Some(reply_to) }).await? {
            Reply::Answer { answer, status, .. } => Ok((answer, status)),
            other => Err(refusal(other, "run")),
        }
    }

    /// Waits until the run has ended, at most `limit`; true if it has.
    pub async fn wait(&self, org: OrgId, run: RunId, limit: Duration) -> Result<bool, Error> {
        let end = self.core.send(|reply_to| Command::Watch { org, run, reply_to })?;
        let pause = if self.core.store.is_shared() { Duration::ZERO } else { limit };
        match self.await_end(org, run, end, limit, pause).await? {
            None => Ok(false),
            Some(Reply::Ended(_)) => Ok(true),
            Some(other) => Err(refusal(other, "run")),
        }
    }

    /// Waits for the end of a run: the engine loop reports it, or the store shows it if another node ends the run.
    /// `None` after `limit`. The store is first read after `pause`.
    async fn await_end(
        &self,
        org: OrgId,
        run: RunId,
        mut end: oneshot::Receiver<Reply>,
        limit: Duration,
        mut pause: Duration,
    ) -> Result<Option<Reply>, Error> {
        let until = Instant::now() + limit;
        let (is_shared, is_known) = (self.core.store.is_shared(), pause.is_zero());
        let mut is_watched = true;
        loop {
            let patience = pause.min(until.saturating_duration_since(Instant::now()));
            match is_watched {
                false => tokio::time::sleep(patience).await,
                true => match tokio::time::timeout(patience, &mut end).await {
                    Err(_) => {}
                    // This node restarts and dropped its watchers; the run continues on another node.
                    Ok(Ok(Reply::Unavailable(_)) | Err(_)) if is_shared && !self.core.inbox.is_closed() => {
                        is_watched = false;
                    }
                    Ok(reply) => return reply.map_err(|_| stopped()).map(Some),
                },
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            match self.core.store.run(org, run).await {
                Ok(Some(row)) if row.status.is_terminal() => return Ok(Some(Reply::Ended(row.status))),
                Ok(None) if is_known || !is_watched => return Ok(Some(Reply::NotFound)),
                _ => {}
            }
            pause = self.next_poll(pause);
        }
    }

    /// How long to wait before the next read of the store, after a wait of `pause`.
    fn next_poll(&self, pause: Duration) -> Duration {
        match self.cluster.is_alone() {
            true => END_POLL_ALONE,
            false => (pause * 2).clamp(END_POLL_MIN, END_POLL_MAX),
        }
    }

    /// Deletes a run that has ended, with all its rows.
    pub async fn delete(&self, org: OrgId, run: RunId) -> Result<(), Error> {
        self.delete_ended(org, run, Timestamp::NEVER).await
    }

    /// Deletes a run that ended before `cutoff`, with all its rows. M30: it is deleted as it was read; one that was
    /// retried meanwhile stays.
    pub async fn delete_ended(&self, org: OrgId, run: RunId, cutoff: Timestamp) -> Result<(), Error> {
        // A late result changes a run that has ended, once.
        match self.try_delete(org, run, cutoff).await {
            Ok(false) => self.try_delete(org, run, cutoff).await,
            other => other,
        }
        .and_then(|is_done| match is_done {
            true => Ok(()),
            false => Err(Error::RunOpen("the run has changed meanwhile".into())),
        })
    }

    /// False if the run has changed meanwhile.
    async fn try_delete(&self, org: OrgId, run: RunId, cutoff: Timestamp) -> Result<bool, Error> {
        let resumed = self.load(org, run).await?.ok_or(Error::NotFound("run"))?;
        if resumed.run.state.finished_at.is_some_and(|at| at >= cutoff) {
            return Err(Error::RunOpen("the run ended a moment ago".into()));
        }
        let labels = resumed.run.state.origin.labels.iter();
        let labels = labels.map(|pair| (pair.name.clone(), pair.value.clone())).collect();
        let erasure = Erasure { org, run, seq: resumed.seq, labels };
        match self.core.written(self.core.store.erase(&erasure).await)? {
            Erased::Done => Ok(true),
            Erased::Changed => Ok(false),
            Erased::NotFound => Err(Error::NotFound("run")),
            Erased::NotEnded => Err(Error::RunOpen(format!("the run has not ended: it is {}", resumed.row.status))),
            Erased::NotificationsPending => {
                Err(Error::RunOpen("a notification of the run's end is not delivered yet".into()))
            }
            Erased::InboxPending => Err(Error::RunOpen("a request to the run is not applied yet".into())),
        }
    }
}

fn pairs(list: Vec<(String, String)>) -> Vec<Pair> {
    list.into_iter().map(|(name, value)| Pair { name, value, ..Default::default() }).collect()
}
