//! The engine as the server sees it: calls that answer once what they changed is durable.
//!
//! Behind it runs one loop on its own thread (see [`drive`](self::drive)) that owns the mailbox: take
//! what arrived, let the mailbox advance, commit, release. The commit's fsync is the batching window;
//! there is no other delay. Reads of runs that left memory, and their payloads, happen on the side.

mod cluster_events;
mod definitions;
mod engine_loop;
mod id_generator;
mod membership;
mod outbox;
mod pause;
mod replay;
mod reply_channel;
mod retention;
mod run_queries;
mod scheduler;
mod subscriptions;
mod tasks;
mod triggers;
mod virtual_time;
mod webhooks;
mod workflow_edits;

pub use definitions::Resolved;
pub use outbox::{NOTIFIER, NOTIFIER_NAME, RETRY_EVERY, idempotency};
pub use replay::Edition;
pub use run_queries::Reading;
pub use subscriptions::{RunEvent, RunEvents, RunSubscription};
pub use tasks::{
    Alive, Bulk, BulkDone, Heartbeat, NewTask, Outcome, RELEASE, Report, Reported, Retried, TaskFilter, TaskKey,
    TaskReading, TypeChange, TypeView, WorkReply, WorkRequest, status_of, type_id,
};
pub use triggers::{Key, PREVIEW_MAX};
pub use webhooks::{Delivered, WebhookEndpoint};
pub use workflow_edits::{Change, Chosen};

use crate::clock::{Clock, ClockMode};
use crate::concurrency_groups;
use crate::execute::{Executors, HttpOptions, HttpQueue, HttpQueuePosition};
use crate::mailbox::{Command, LoadFailure, Mailbox, Reply, Start, WaitUrl};
use crate::metrics::Metrics;
use crate::secret::{self, Secret};
use crate::triggers::webhook::Rejection;
use bytes::Bytes;
use engine_loop::Inbox;
use id_generator::{IdGenerator, random};
use kernel::advance::TaskResult;
use kernel::event::{Origin, Pair, TriggerKind};
use kernel::plan::{Body, Node};
use kernel::{Answer, Input, OrgId, Payload, RunId, RunStatus, Span, TaskStatus, Timestamp, TriggerId, WorkflowId};
use reply_channel::ReplyChannel;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use store::crash::{self, Point};
use store::{Advance, ConcurrencyGroupRow, DeliveryRow, IdempotencyKey, RunInsert, Store, Wait};
use tokio::sync::oneshot;

/// How long whoever asks for metrics waits for the loop to count.
const METRICS_PATIENCE: Duration = Duration::from_secs(1);
/// Commands that may wait for the mailbox before starts are refused.
const MAILBOX_MAX: usize = 65_536;
/// How often the store is asked about the end of a run that another node may move.
const END_POLL_MIN: Duration = Duration::from_millis(20);
const END_POLL_MAX: Duration = Duration::from_millis(250);
/// … that no other node is there to move; one may have come meanwhile.
const END_POLL_ALONE: Duration = Duration::from_secs(1);
/// Runs that are being worked on here before starts are refused. (A run that waits is not, also for a worker.)
const ACTIVE_MAX: u64 = 65_536;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Nothing was written.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It may have been written; asking again with the same idempotency key is safe.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// For whoever asks whether all is well: it is not, although work goes on from what is stored.
    #[error("the store has lost what it had acknowledged")]
    RolledBack,
    #[error("too much is waiting already")]
    Overloaded,
    #[error("the server is shutting down")]
    Stopping,
    #[error("this run needs a newer release")]
    Newer,
    #[error("what is stored of this run is damaged: {0}")]
    Damaged(String),
    #[error("the name is taken")]
    Taken(store::Taken),
    #[error("the workflow is disabled")]
    Disabled,
    /// The key of a workflow's `concurrency` cannot be worked out from what the trigger brought.
    #[error("{0}")]
    InvalidConcurrencyKey(String),
    #[error("this idempotency key was used for another request")]
    KeyReused,
    #[error("there is no workflow `{0}`")]
    NoWorkflow(String),
    #[error("the webhook path is taken")]
    PathTaken,
    #[error("there is no secret to keep")]
    NoSecret,
    #[error("the trigger is disabled")]
    TriggerDisabled,
    /// It is part of its workflow's definition.
    #[error("the trigger belongs to its workflow")]
    Owned,
    #[error("the request of this delivery is not kept")]
    NotKept,
    /// A webhook turned a request away.
    #[error("the request was turned away: {}", .0.as_str())]
    Rejected(Rejection),
    /// The key's run was deleted since.
    #[error("this idempotency key was used for a run that has been deleted")]
    RunDeleted(RunId),
    #[error("{0}")]
    RunOpen(String),
    /// Another part of the same request was refused; nothing was changed.
    #[error("another part of this request was refused")]
    Undone,
    #[error("this workflow is part of the engine and cannot be changed")]
    BuiltIn,
    /// The workflow is not at the version the caller had in mind, but at this one.
    #[error("the workflow has another definition by now")]
    OtherVersion([u8; 32]),
    /// What was wrong with which items of a request for several things; nothing was changed.
    #[error("{} of the items cannot be done", .0.len())]
    Items(Vec<(usize, Error)>),
    #[error("the type `{0}` is disabled")]
    TypeDisabled(String),
    /// What was asked for does not fit the state a task is in.
    #[error("the task is {}", .0.as_str())]
    TaskState(TaskStatus),
    #[error("{0}")]
    Refused(String),
    /// Another process has the store.
    #[error("{0}")]
    InUse(String),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(why) => Error::Unavailable(why),
            store::Error::Unknown(why) => Error::OutcomeUnknown(why),
            store::Error::Corrupt(what) => Error::Damaged(what),
            store::Error::Refused(why) => Error::Refused(why),
            store::Error::InUse(why) => Error::InUse(why),
            fenced @ store::Error::Fenced => Error::Unavailable(fenced.to_string()),
        }
    }
}

impl From<LoadFailure> for Error {
    fn from(trouble: LoadFailure) -> Self {
        match trouble {
            LoadFailure::Store(why) => Error::Unavailable(why),
            LoadFailure::Newer => Error::Newer,
            LoadFailure::Damaged(what) => Error::Damaged(what),
        }
    }
}

pub struct Options {
    pub secret: Secret,
    /// What callback URLs begin with, without a slash at the end.
    pub public_url: String,
    pub clock: ClockMode,
    /// Where a new virtual clock begins.
    pub clock_start: Option<Timestamp>,
    /// How far a virtual clock jumps before anything else happens: as if nobody had been there for so long.
    pub clock_advance: Span,
    pub http: HttpOptions,
    /// Ids, and the jitter drawn from them, are the same every time; for stories that are told again.
    pub seed: Option<u64>,
    /// What this node is called among those that share the store; the same after a restart. Nothing if it has no name.
    pub node: String,
    /// For how long runs that have ended are kept; for ever if nothing is said.
    pub retention: Option<Span>,
}

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
    pub advance: Option<Advance>,
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

#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<Clock>,
    inbox: Inbox,
    outbox: outbox::Outbox,
    secret: Secret,
    public_url: String,
    definitions: definitions::Cache,
    ids: IdGenerator,
    metrics: Metrics,
    /// Where HTTP steps wait for room.
    http_queue: Arc<HttpQueue>,
    is_draining: AtomicBool,
    /// The last commit was refused by the store.
    is_refused: AtomicBool,
    /// Why the engine had to stop, once it had to.
    fatal: RwLock<Option<String>>,
    fatal_signal: tokio::sync::Notify,
    /// Tells the timekeeper that the clock moved.
    clock_moved: tokio::sync::Notify,
    /// Tells the loop of the schedules that one of them, or the clock, moved.
    triggers_moved: tokio::sync::Notify,
    /// Held by whoever deals with due schedules.
    schedule_lock: tokio::sync::Mutex<()>,
    /// Moments that could not be dealt with although somebody was there: since when, by trigger.
    delayed_since: Mutex<HashMap<TriggerId, Timestamp>>,
    rejections: webhooks::Rejections,
    subscriptions: subscriptions::Subscriptions,
    type_cache: tasks::TypeCache,
    /// Held by whoever changes a type.
    changing_types: tokio::sync::Mutex<()>,
    /// When what other nodes know of tasks and workers was last read.
    caught_up: tokio::sync::Mutex<Option<Instant>>,
    /// Counts the questions of workers.
    claim_ids: AtomicU64,
    membership: membership::Membership,
    cache_revision: cluster_events::CacheRevision,
    /// Has the node say at once that it is there.
    renewal: tokio::sync::Notify,
    /// Has it looked at once for what may be deleted.
    retention_moved: tokio::sync::Notify,
}

impl Engine {
    /// Opens the engine on a store and starts its loop. Must be called inside a tokio runtime.
    pub async fn open(store: Arc<dyn Store>, options: Options) -> Result<Engine, Error> {
        let clock = Arc::new(virtual_time::open_clock(&*store, &options).await?);
        let http_queue = Arc::new(HttpQueue::new(&options.http));
        let membership = membership::Membership::join(&*store, options.node, options.clock != ClockMode::Real).await?;
        let nodes = membership.nodes();
        crash::point(Point::EpochClaimed);
        let (outbox, notifications) = outbox::Outbox::new();
        let inner = Arc::new(Inner {
            store,
            clock: clock.clone(),
            inbox: Inbox::default(),
            outbox,
            secret: options.secret,
            public_url: options.public_url,
            definitions: Default::default(),
            ids: IdGenerator::new(options.seed),
            metrics: Metrics::default(),
            http_queue: http_queue.clone(),
            is_draining: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            fatal: RwLock::new(None),
            fatal_signal: tokio::sync::Notify::new(),
            clock_moved: tokio::sync::Notify::new(),
            triggers_moved: tokio::sync::Notify::new(),
            schedule_lock: tokio::sync::Mutex::new(()),
            delayed_since: Default::default(),
            rejections: Default::default(),
            subscriptions: Default::default(),
            type_cache: Default::default(),
            changing_types: Default::default(),
            caught_up: Default::default(),
            claim_ids: AtomicU64::new(0),
            membership,
            cache_revision: Default::default(),
            renewal: tokio::sync::Notify::new(),
            retention_moved: tokio::sync::Notify::new(),
        });
        let (secret, base) = (inner.secret.clone(), inner.public_url.clone());
        let wait_url: WaitUrl = Arc::new(move |run, step| callback_url(&base, &secret, run, step));
        let sink_to = Arc::downgrade(&inner);
        let sink = Arc::new(move |dispatch: &crate::mailbox::Dispatch, result| {
            if let Some(inner) = sink_to.upgrade() {
                inner.metrics.steps_finished_total.add(1);
                inner.metrics.http_steps_held_back_total.add(matches!(result, TaskResult::Blocked { .. }).into());
                inner.inbox.send(engine_loop::finished(dispatch, result));
            }
        });
        let runtime = tokio::runtime::Handle::current();
        let executors = Executors::new(runtime, options.http, http_queue, clock, sink).map_err(Error::Refused)?;
        let engine = Engine { inner: inner.clone() };
        inner.inbox.send(Command::Nodes(nodes.clone()));
        engine.restore().await?;
        let mailbox = Mailbox::new(nodes.own(), wait_url);
        let mailbox = if inner.store.is_shared() { mailbox.sharing() } else { mailbox };
        engine_loop::spawn(inner, mailbox, executors);
        tokio::spawn(membership::keep(engine.clone()));
        cluster_events::keep(&engine);
        if let Some(span) = options.retention {
            tokio::spawn(retention::keep(engine.clone(), span));
        }
        tokio::spawn(tasks::store_workers(engine.clone()));
        tokio::spawn(tasks::watch_ready_types(engine.clone()));
        tokio::spawn(scheduler::keep(engine.clone()));
        tokio::spawn(outbox::deliver(engine.clone(), notifications));
        Ok(engine)
    }

    /// Tells the mailbox what is stored: what waits, and what a node that is gone had in memory.
    async fn restore(&self) -> Result<(), Error> {
        self.inner.read_concurrency_groups().await?;
        self.restore_task_queue().await?;
        self.sweep(true).await
    }

    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    pub fn clock_mode(&self) -> ClockMode {
        self.inner.clock.mode()
    }

    /// Where a running HTTP step waits for room, by the fence of its attempt; `None` when it does not wait.
    pub fn http_queue_position(&self, run: RunId, fence: u64) -> Option<HttpQueuePosition> {
        self.inner.http_queue.position(run, fence)
    }

    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The same, counted anew where that is done on demand; as they were when the loop does not answer.
    pub async fn metrics_now(&self) -> &Metrics {
        let _ = tokio::time::timeout(METRICS_PATIENCE, self.catch_up(None)).await;
        let _ = tokio::time::timeout(METRICS_PATIENCE, self.inner.probe()).await;
        &self.inner.metrics
    }

    pub fn store(&self) -> &dyn Store {
        &*self.inner.store
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
        let pause = if self.inner.store.is_shared() { self.next_poll(Duration::ZERO) } else { limit };
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
        let (reply_channel, replies) = reply_channel::reply_channel(starts.len());
        let mut asked = Vec::with_capacity(starts.len());
        let told = |(start, fingerprint): &(Start, _)| (start.org, start.run, start.version.workflow, *fingerprint);
        asked.extend(starts.iter().map(told));
        let starts = starts.into_iter().map(|(start, _)| start).zip(reply_channel).collect();
        if !self.inner.inbox.send(Command::StartAll(starts)) {
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
        let inner = &self.inner;
        if inner.is_draining.load(Ordering::Relaxed) {
            return Err(Error::Stopping);
        }
        if inner.inbox.len() + count > MAILBOX_MAX || inner.metrics.runs_busy.get() + count as u64 > ACTIVE_MAX {
            inner.metrics.requests_refused_total.add(count as u64);
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
            .filter(|concurrency_group| !self.inner.membership.nodes().keeps(&concurrency_group.id));
        let reply = self.inner.send(|reply_to| Command::Start { start: Box::new(start), reply_to, ended })?;
        Ok(PendingStart { org, run, workflow, fingerprint, concurrency_group, reply })
    }

    /// Everything of a new run that is known before it exists, and the fingerprint of its request.
    fn prepare(&self, request: StartRequest) -> Result<(Start, Option<[u8; 32]>), Error> {
        let inner = &self.inner;
        if !request.workflow.row.enabled {
            return Err(Error::Disabled);
        }
        let version = request.workflow.version.clone();
        let (org, workflow) = (request.org, version.workflow);
        let now = self.now();
        let run = inner.ids.run_id(now, |run| inner.membership.is_mine(run))?;
        let is_wait = |node: &Node| matches!(node.body, Some(Body::Webhook { .. }));
        let waits = version.plan.nodes().iter().enumerate().filter(|(_, node)| is_wait(node));
        let wait = |(step, node): (usize, &Node)| Wait {
            org,
            run,
            step: step as u32,
            token_hash: secret::token_hash(&inner.secret.token(run, &node.key)),
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
                let row = self.inner.store.run(org, run).await?.ok_or(Error::RunDeleted(run))?;
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
        let found = self.inner.store.wait(&secret::token_hash(token)).await?;
        let wait = found.ok_or(Error::NotFound("callback"))?;
        let digest = Bytes::copy_from_slice(&Sha256::digest(&body));
        let input = Input::Callback { step: wait.step, body: Payload::sniff(body), digest };
        self.give(wait.org, wait.run, input).await.map(|(answer, _)| answer)
    }

    async fn give(&self, org: OrgId, run: RunId, input: Input) -> Result<(Answer, RunStatus), Error> {
        match self.inner.ask(|reply_to| Command::Give { org, run, input, reply_to: Some(reply_to) }).await? {
            Reply::Answer { answer, status, .. } => Ok((answer, status)),
            other => Err(refusal(other, "run")),
        }
    }

    /// Waits until the run has ended, at most `limit`; true if it has.
    pub async fn wait(&self, org: OrgId, run: RunId, limit: Duration) -> Result<bool, Error> {
        let end = self.inner.send(|reply_to| Command::Watch { org, run, reply_to })?;
        let pause = if self.inner.store.is_shared() { Duration::ZERO } else { limit };
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
        let (is_shared, is_known) = (self.inner.store.is_shared(), pause.is_zero());
        let mut is_told = true;
        loop {
            let patience = pause.min(until.saturating_duration_since(Instant::now()));
            match is_told {
                false => tokio::time::sleep(patience).await,
                true => match tokio::time::timeout(patience, &mut end).await {
                    Err(_) => {}
                    // This node begins anew; the run goes on.
                    Ok(Ok(Reply::Unavailable(_)) | Err(_)) if is_shared && !self.inner.inbox.is_closed() => {
                        is_told = false;
                    }
                    Ok(reply) => return reply.map_err(|_| stopped()).map(Some),
                },
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            match self.inner.store.run(org, run).await {
                Ok(Some(row)) if row.status.is_terminal() => return Ok(Some(Reply::Ended(row.status))),
                Ok(None) if is_known || !is_told => return Ok(Some(Reply::NotFound)),
                _ => {}
            }
            pause = self.next_poll(pause);
        }
    }

    /// When the store is next asked about the end of a run, after it was `pause` ago.
    fn next_poll(&self, pause: Duration) -> Duration {
        match self.inner.membership.is_alone() {
            true => END_POLL_ALONE,
            false => (pause * 2).clamp(END_POLL_MIN, END_POLL_MAX),
        }
    }

    /// Is the store writable and the loop alive? For readiness.
    pub async fn check(&self) -> Result<(), Error> {
        if let Some(why) = self.inner.fatal_reason() {
            return Err(Error::OutcomeUnknown(why));
        }
        self.inner.written(self.inner.store.check().await)?;
        if self.inner.store.counters().rollbacks > 0 {
            return Err(Error::RolledBack);
        }
        if self.inner.is_refused.load(Ordering::Relaxed) {
            // The last commit found no room. Only a write can tell whether there is some again.
            let now = self.now().0.to_string();
            self.inner.written(self.inner.store.set_setting("probed_at_us", &now).await)?;
            self.inner.is_refused.store(false, Ordering::Relaxed);
        }
        self.inner.probe().await.map(drop)
    }

    /// Ends when the engine cannot go on, with the reason.
    pub async fn failed(&self) -> String {
        loop {
            let signal = self.inner.fatal_signal.notified();
            if let Some(why) = self.inner.fatal_reason() {
                return why;
            }
            signal.await;
        }
    }

    /// Refuses new runs and starts no more steps; attempts under way get `grace` to finish and be
    /// recorded. What is left, and what was only waiting for room, is taken up by the next process, uncharged.
    pub async fn drain(&self, grace: Duration) {
        self.inner.is_draining.store(true, Ordering::Relaxed);
        self.inner.inbox.send(Command::Drain);
        for (dispatch, result) in self.inner.http_queue.close() {
            self.inner.inbox.send(engine_loop::finished(&dispatch, result));
        }
        let give_up = Instant::now() + grace;
        while Instant::now() < give_up {
            match self.inner.probe().await {
                Ok(probe) if probe.executing > 0 => {
                    crash::point(Point::Draining);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                _ => break,
            }
        }
        self.leave().await;
    }

    /// Stops the loop after what it is doing. Whatever was in flight is taken up at the next start.
    pub async fn stop(&self) {
        self.inner.inbox.stop();
        // The loop closes the inbox when it has let go of the mailbox.
        while !self.inner.inbox.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Inner {
    async fn ask(&self, command: impl FnOnce(ReplyChannel) -> Command<ReplyChannel>) -> Result<Reply, Error> {
        answered(self.send(command)?).await
    }

    fn send(
        &self,
        command: impl FnOnce(ReplyChannel) -> Command<ReplyChannel>,
    ) -> Result<oneshot::Receiver<Reply>, Error> {
        let (reply_to, reply) = oneshot::channel();
        match self.inbox.send(command(ReplyChannel::One(reply_to))) {
            true => Ok(reply),
            false => Err(Error::Unavailable("the engine is stopping".into())),
        }
    }

    fn wait_url(&self, run: RunId, step: &str) -> String {
        callback_url(&self.public_url, &self.secret, run, step)
    }

    fn fatal_reason(&self) -> Option<String> {
        self.fatal.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The answer to a write outside the loop. One whose outcome nobody knows ends the engine, like one of
    /// the loop's own, unless reading again tells.
    fn written<T>(&self, result: Result<T, store::Error>) -> Result<T, Error> {
        if let Err(error @ store::Error::Unknown(_)) = &result
            && !self.store.reads_are_durable()
        {
            self.give_up(error.to_string());
        }
        Ok(result?)
    }

    pub(crate) fn give_up(&self, why: String) {
        *self.fatal.write().unwrap_or_else(|e| e.into_inner()) = Some(why);
        self.fatal_signal.notify_waiters();
    }
}

fn callback_url(base: &str, secret: &Secret, run: RunId, step: &str) -> String {
    format!("{base}/wh/{}", secret.token(run, step))
}

/// The loop answers every ticket; a dropped one means it stopped in between.
async fn answered(reply: oneshot::Receiver<Reply>) -> Result<Reply, Error> {
    reply.await.map_err(|_| stopped())
}

fn stopped() -> Error {
    Error::OutcomeUnknown("the engine stopped before it could answer".into())
}

fn refusal(reply: Reply, what: &'static str) -> Error {
    match reply {
        Reply::NotFound => Error::NotFound(what),
        Reply::Undone => Error::Undone,
        Reply::Unavailable(why) => Error::Unavailable(why),
        Reply::Unknown(why) => Error::OutcomeUnknown(why),
        Reply::LoadFailure(trouble) => trouble.into(),
        unexpected => Error::Unavailable(format!("an unexpected answer: {unexpected:?}")),
    }
}

fn pairs(list: Vec<(String, String)>) -> Vec<Pair> {
    list.into_iter().map(|(name, value)| Pair { name, value, ..Default::default() }).collect()
}
