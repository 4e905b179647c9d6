//! Runs: starting them, giving them inputs, and waiting for their end. Each call answers once what it changed is
//! durable.

use super::cluster::Cluster;
use super::core::{Core, answered, refusal, stopped};
use super::reply_channel::{self, ReplyChannel};
use super::workflows::{Resolved, Workflows};
use crate::concurrency_groups;
use crate::error::Error;
use crate::execute::HttpQueue;
use crate::mailbox::{Command, Reply, Start};
use crate::secret;
use bytes::Bytes;
use kernel::event::{Origin, Pair, TriggerKind};
use kernel::plan::{Body, Node};
use kernel::{Answer, Input, OrgId, Payload, RunId, RunStatus, Timestamp, TriggerId, WorkflowId};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::{ConcurrencyGroupRow, DeliveryRow, Erased, Erasure, IdempotencyKey, RunInsert, ScheduleAdvance, Wait};
use tokio::sync::oneshot;

/// Commands that may wait for the mailbox before starts are refused.
const MAILBOX_MAX: usize = 65_536;
/// How often the store is asked about the end of a run that another node may move.
const END_POLL_MIN: Duration = Duration::from_millis(20);
const END_POLL_MAX: Duration = Duration::from_millis(250);
/// … that no other node is there to move; one may have come meanwhile.
const END_POLL_ALONE: Duration = Duration::from_secs(1);
/// Runs that are being worked on here before starts are refused. (A run that waits is not, also for a worker.)
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
    /// The line for the log of the trigger that starts it, written together with the run.
    pub delivery: Option<DeliveryRow>,
    /// How far the schedule of that trigger is with it.
    pub advance: Option<ScheduleAdvance>,
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
    pub caused_by: Option<RunId>,
    pub actor: String,
    pub callback_url: String,
    /// The notice this run hands over.
    pub notification: Option<(RunId, u32)>,
    /// Of its tasks: before which others, not before when, and what they share limits with.
    pub priority: Option<u32>,
    pub run_at: Option<Timestamp>,
    pub key: String,
}

/// The caller's key and the fingerprint of what it asked for.
#[derive(Clone, Debug)]
pub struct Idempotency {
    /// What the key is unique within; a workflow's id unless something else starts its runs.
    pub scope: Option<String>,
    pub key: String,
    pub fingerprint: [u8; 32],
}

pub struct Started {
    pub run: RunId,
    pub workflow: WorkflowId,
    pub status: RunStatus,
    pub started_at: Timestamp,
    /// The key had been used for the same request: this is its run.
    pub deduplicated: bool,
}

/// One of several runs that were asked for together.
pub struct StartedRun {
    pub run: RunId,
    /// Nothing once the run was deleted.
    pub status: Option<RunStatus>,
    pub deduplicated: bool,
}

/// A start that was sent and is not answered yet.
struct PendingStart {
    org: OrgId,
    run: RunId,
    workflow: WorkflowId,
    fingerprint: Option<[u8; 32]>,
    /// Its gate, if another node keeps it.
    concurrency_group: Option<ConcurrencyGroupRow>,
    reply: oneshot::Receiver<Reply>,
}

pub struct Runs {
    pub(super) core: Arc<Core>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) workflows: Arc<Workflows>,
    /// Where HTTP steps wait for their turn.
    pub(super) http_queue: Arc<HttpQueue>,
}

impl Runs {
    pub fn new(core: Arc<Core>, cluster: Arc<Cluster>, workflows: Arc<Workflows>, http_queue: Arc<HttpQueue>) -> Runs {
        Runs { core, cluster, workflows, http_queue }
    }

    /// Creates a run; answers once that is durable.
    pub async fn start(&self, request: StartRequest) -> Result<Started, Error> {
        let asked = self.send_start(request, None)?;
        self.started(asked).await
    }

    /// Creates a run and waits for its end, at most `limit`; true if it has ended. Whoever is only
    /// interested in the end is woken once.
    pub async fn run(&self, request: StartRequest, limit: Duration) -> Result<(Started, bool), Error> {
        let org = request.org;
        let give_up = Instant::now() + limit;
        let (ended, end) = oneshot::channel();
        let asked = self.send_start(request, Some(ReplyChannel::One(ended)))?;
        let pause = if self.core.store.is_shared() { self.next_poll(Duration::ZERO) } else { limit };
        let end = self.await_end(org, asked.run, end, limit, pause).await;
        let has_ended = matches!(end, Ok(Some(Reply::Ended(_))));
        let started = self.started(asked).await?;
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
        let mut starts = Vec::with_capacity(requests.len());
        let mut wrong = Vec::new();
        for (index, request) in requests.into_iter().enumerate() {
            match self.prepare(request) {
                Ok(prepared) => starts.push(prepared),
                Err(error @ Error::InvalidConcurrencyKey(_)) => wrong.push((index, error)),
                Err(error) => return Err(error),
            }
        }
        if !wrong.is_empty() {
            return Err(Error::Items(wrong));
        }
        if starts.is_empty() {
            return Ok(Vec::new());
        }
        let (reply_channel, replies) = reply_channel::shared(starts.len());
        let mut asked = Vec::with_capacity(starts.len());
        let told = |(start, fingerprint): &(Start, _)| (start.org, start.run, start.version.workflow, *fingerprint);
        asked.extend(starts.iter().map(told));
        let starts = starts.into_iter().map(|(start, _)| start).zip(reply_channel).collect();
        if !self.core.inbox.send(Command::StartAll(starts)) {
            return Err(Error::Unavailable("the engine is stopping".into()));
        }
        let replies = replies.await.map_err(|_| stopped())?;
        let (mut started, mut other) = (Vec::with_capacity(asked.len()), None);
        for (index, ((org, run, workflow, fingerprint), reply)) in asked.into_iter().zip(replies).enumerate() {
            let reply = reply.ok_or_else(stopped)?;
            match self.judge_start(org, run, workflow, fingerprint, reply).await {
                Ok(Started { run, status, deduplicated, .. }) => {
                    started.push(StartedRun { run, status: Some(status), deduplicated });
                }
                Err(Error::RunDeleted(run)) => started.push(StartedRun { run, status: None, deduplicated: true }),
                Err(error @ Error::KeyReused) => wrong.push((index, error)),
                // Of a unit that was refused, one member says why.
                Err(Error::Undone) => {}
                Err(error) => drop(other.get_or_insert(error)),
            }
        }
        match other {
            Some(error) => Err(error),
            None if wrong.is_empty() => Ok(started),
            None => Err(Error::Items(wrong)),
        }
    }

    /// Is there room for this many runs?
    fn admit(&self, count: usize) -> Result<(), Error> {
        let core = &self.core;
        if core.health.is_draining.load(Ordering::Relaxed) {
            return Err(Error::Stopping);
        }
        if core.inbox.len() + count > MAILBOX_MAX || core.metrics.runs_busy.get() + count as u64 > ACTIVE_MAX {
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
    fn prepare(&self, request: StartRequest) -> Result<(Start, Option<[u8; 32]>), Error> {
        let core = &self.core;
        if !request.workflow.row.enabled {
            return Err(Error::Disabled);
        }
        let version = request.workflow.version.clone();
        let (org, workflow) = (request.org, version.workflow);
        let now = self.core.now();
        let run = core.ids.run_id(now, |run| self.cluster.is_mine(run))?;
        let is_wait = |node: &Node| matches!(node.body, Some(Body::Webhook { .. }));
        let waits = version.plan.nodes().iter().enumerate().filter(|(_, node)| is_wait(node));
        let wait = |(step, node): (usize, &Node)| Wait {
            org,
            run,
            step: step as u32,
            token_hash: core.callbacks.token_hash(run, &node.key),
            kind: "webhook".into(),
        };
        let fingerprint = request.idempotency.as_ref().map(|asked| asked.fingerprint);
        let run_insert = RunInsert {
            waits: waits.map(wait).collect(),
            labels: request.labels.clone(),
            idempotency: request.idempotency.map(|asked| IdempotencyKey {
                scope: asked.scope.unwrap_or_else(|| workflow.to_string()),
                key: asked.key,
                fingerprint: asked.fingerprint,
                created_at: now,
            }),
            delivery: request.delivery.map(|line| DeliveryRow { run: Some(run), ..line }),
            advance: request.advance,
            notification: request.source.notification,
        };
        let source = request.source;
        let mut origin = Origin {
            workflow,
            workflow_name: request.workflow.row.name.clone(),
            version: version.number,
            hash: Bytes::copy_from_slice(&version.hash),
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
            ..Default::default()
        };
        origin.concurrency_group =
            kernel::advance::concurrency_group(&version.plan, &origin).map_err(Error::InvalidConcurrencyKey)?;
        let concurrency_group = origin.concurrency_group.as_ref().map(|concurrency_group| ConcurrencyGroupRow {
            id: concurrency_groups::id(workflow, &concurrency_group.key),
            limit: concurrency_group.limit,
            on_conflict: concurrency_group.on_conflict,
        });
        Ok((Start { org, run, version, origin, concurrency_group, run_insert }, fingerprint))
    }

    async fn started(&self, asked: PendingStart) -> Result<Started, Error> {
        let PendingStart { org, run, workflow, fingerprint, concurrency_group, reply } = asked;
        let reply = answered(reply).await?;
        let started = self.judge_start(org, run, workflow, fingerprint, reply).await?;
        match concurrency_group {
            Some(concurrency_group) if started.status == RunStatus::Pending && !started.deduplicated => {
                Ok(Started { status: self.await_remote_admission(org, run, &concurrency_group).await, ..started })
            }
            _ => Ok(started),
        }
    }

    /// What became of a start.
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
                let row = self.core.store.run(org, run).await?.ok_or(Error::RunDeleted(run))?;
                Ok(Started { run, workflow, status: row.status, started_at: row.created_at, deduplicated: true })
            }
            Reply::KeyTaken { .. } => Err(Error::KeyReused),
            other => Err(refusal(other, "run")),
        }
    }

    pub async fn cancel(
        &self,
        org: OrgId,
        run: RunId,
        actor: String,
        reason: String,
    ) -> Result<(Answer, RunStatus), Error> {
        self.give(org, run, Input::Cancel { actor, reason }).await
    }

    /// Somebody called a callback URL.
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

    /// What the loop says about the end of a run, or the store if another node moves it; nothing after `limit`. The
    /// store is first looked at after `pause`.
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
        let mut is_told = true;
        loop {
            let patience = pause.min(until.saturating_duration_since(Instant::now()));
            match is_told {
                false => tokio::time::sleep(patience).await,
                true => match tokio::time::timeout(patience, &mut end).await {
                    Err(_) => {}
                    // This node begins anew; the run goes on.
                    Ok(Ok(Reply::Unavailable(_)) | Err(_)) if is_shared && !self.core.inbox.is_closed() => {
                        is_told = false;
                    }
                    Ok(reply) => return reply.map_err(|_| stopped()).map(Some),
                },
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            match self.core.store.run(org, run).await {
                Ok(Some(row)) if row.status.is_terminal() => return Ok(Some(Reply::Ended(row.status))),
                Ok(None) if is_known || !is_told => return Ok(Some(Reply::NotFound)),
                _ => {}
            }
            pause = self.next_poll(pause);
        }
    }

    /// When the store is next asked about the end of a run, after it was `pause` ago.
    fn next_poll(&self, pause: Duration) -> Duration {
        match self.cluster.is_alone() {
            true => END_POLL_ALONE,
            false => (pause * 2).clamp(END_POLL_MIN, END_POLL_MAX),
        }
    }

    /// Removes a run that has ended, with everything it holds.
    pub async fn delete(&self, org: OrgId, run: RunId) -> Result<(), Error> {
        let resumed = self.load(org, run).await?.ok_or(Error::NotFound("run"))?;
        let is_wait = |body: &Option<Body>| matches!(body, Some(Body::Webhook { .. }));
        let waits = resumed.version.plan.nodes().iter().filter(|node| is_wait(&node.body));
        let labels = resumed.run.state.origin.labels.iter();
        let erasure = Erasure {
            org,
            run,
            labels: labels.map(|pair| (pair.name.clone(), pair.value.clone())).collect(),
            waits: waits.map(|node| self.core.callbacks.token_hash(run, &node.key)).collect(),
        };
        match self.core.written(self.core.store.erase(&erasure).await)? {
            Erased::Done => Ok(()),
            Erased::NotFound => Err(Error::NotFound("run")),
            Erased::NotEnded => Err(Error::RunOpen(format!("the run has not ended: it is {}", resumed.row.status))),
            Erased::NotTold => Err(Error::RunOpen("somebody has yet to be told that the run has ended".into())),
        }
    }
}

fn pairs(list: Vec<(String, String)>) -> Vec<Pair> {
    list.into_iter().map(|(name, value)| Pair { name, value, ..Default::default() }).collect()
}
