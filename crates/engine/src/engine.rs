//! The engine as the server sees it: one handle on all services. A call returns once its changes are durable.
//!
//! Behind it runs one loop on its own thread (see [`engine_loop`]) that owns the mailbox: take the inbox, let the
//! mailbox advance, commit, release. The commit's fsync is the batching window; there is no other delay. Other threads
//! read evicted runs and payloads.

use crate::bash_worker::{BashOptions, BashWorker};
use crate::clock::ClockMode;
use crate::driver;
use crate::error::Error;
use crate::execute::{Executors, HttpOptions, HttpQueue};
use crate::mailbox::{Command, Dispatch, HoldRequest, Mailbox, WaitUrl};
use crate::metrics::Metrics;
use crate::secret::Secret;
use crate::services::children::{ChildQueue, Children};
use crate::services::clock_skew::{self, SkewLevel};
use crate::services::cluster::{Caches, Cluster};
use crate::services::core::{Callbacks, Core, Health};
use crate::services::deferred_inputs::DeferredInputs;
use crate::services::engine_loop::{self, Inbox, LoopServices};
use crate::services::id_generator::IdGenerator;
use crate::services::outbox::{Outbox, OutboxQueue};
use crate::services::retention::Retention;
use crate::services::runs::Runs;
use crate::services::scheduler::Scheduler;
use crate::services::subscriptions::{Subscribers, Subscriptions};
use crate::services::tasks::{Tasks, TypeCache};
use crate::services::triggers::Triggers;
use crate::services::virtual_clock::{VirtualClock, open_clock};
use crate::services::webhooks::Webhooks;
use crate::services::workflows::{WorkflowCache, Workflows};
use kernel::{Span, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::Store;
use store::crash::{self, Point};
use tokio::sync::Notify;

/// How long a request for metrics waits for the loop to update them.
const METRICS_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Options {
    pub secret: Secret,
    /// The base of callback URLs, without a slash at the end.
    pub public_url: String,
    pub clock: ClockMode,
    /// Where a new virtual clock begins.
    pub clock_start: Option<Timestamp>,
    /// Starts at the present time although the store has records of the future.
    pub accept_clock: bool,
    /// How far a virtual clock advances before the engine starts, as if the server had been down for that long.
    pub clock_advance: Span,
    pub http: HttpOptions,
    /// Makes ids, and the jitter drawn from them, the same on every run of a test.
    pub seed: Option<u64>,
    /// The name of this node among those that share the store, the same after a restart; empty if it has none.
    pub node: String,
    /// How long ended runs are kept; `None` for ever.
    pub retention: Option<Span>,
    /// Runs `bash` steps in this process; without it, they wait for another node that does.
    pub bash: Option<BashOptions>,
}

#[derive(Clone)]
pub struct Engine {
    pub runs: Arc<Runs>,
    pub workflows: Arc<Workflows>,
    pub tasks: Arc<Tasks>,
    pub triggers: Arc<Triggers>,
    pub webhooks: Arc<Webhooks>,
    pub subscriptions: Arc<Subscriptions>,
    pub virtual_clock: Arc<VirtualClock>,
    pub bash: Option<Arc<BashWorker>>,
    core: Arc<Core>,
    pub(crate) cluster: Arc<Cluster>,
    http_queue: Arc<HttpQueue>,
}

impl Engine {
    /// Opens the engine on a store and starts its loop. Must be called inside a tokio runtime.
    pub async fn open(store: Arc<dyn Store>, options: Options) -> Result<Engine, Error> {
        let clock = Arc::new(open_clock(&*store, &options).await?);
        let core = Arc::new(Core {
            store,
            clock: clock.clone(),
            clock_moved: Notify::new(),
            inbox: Inbox::default(),
            ids: IdGenerator::new(options.seed),
            metrics: Metrics::default(),
            callbacks: Callbacks { secret: options.secret, public_url: options.public_url },
            health: Health::default(),
        });
        let (workflow_cache, types) = (Arc::new(WorkflowCache::default()), Arc::new(TypeCache::default()));
        let subscribers = Arc::new(Subscribers::default());
        let caches =
            Caches { workflows: workflow_cache.clone(), types: types.clone(), subscribers: subscribers.clone() };
        let owns_every_run = options.clock != ClockMode::Real;
        let bash = options.bash.map(|bash| Arc::new(BashWorker::new(bash, &options.node)));
        let cluster = Arc::new(Cluster::join(core.clone(), options.node, owns_every_run, caches).await?);
        crash::point(Point::EpochClaimed);

        let (schedule_changed, retention_wake) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let http_queue = Arc::new(HttpQueue::new(&options.http));
        let (outbox_queue, released) = OutboxQueue::new();
        let (child_queue, child_requests) = ChildQueue::new();
        let (deferrals, deferred_inputs) = DeferredInputs::new(core.clone(), cluster.clone());
        let workflows =
            Arc::new(Workflows::new(core.clone(), cluster.clone(), workflow_cache, schedule_changed.clone()));
        let runs = Arc::new(Runs::new(core.clone(), cluster.clone(), workflows.clone(), http_queue.clone()));
        let triggers = Arc::new(Triggers::new(core.clone(), runs.clone(), workflows.clone(), schedule_changed.clone()));
        let scheduler = Arc::new(Scheduler::new(
            core.clone(),
            runs.clone(),
            workflows.clone(),
            triggers.clone(),
            schedule_changed.clone(),
        ));
        let moved = vec![schedule_changed, retention_wake.clone()];
        let engine = Engine {
            tasks: Arc::new(Tasks::new(core.clone(), cluster.clone(), runs.clone(), types)),
            webhooks: Arc::new(Webhooks::new(core.clone(), runs.clone(), workflows.clone(), triggers.clone())),
            subscriptions: Arc::new(Subscriptions::new(core.clone(), workflows.clone(), subscribers.clone())),
            virtual_clock: Arc::new(VirtualClock::new(
                cluster.clone(),
                scheduler.clone(),
                outbox_queue.clone(),
                child_queue.clone(),
                bash.is_some(),
                moved,
            )),
            bash: bash.clone(),
            runs: runs.clone(),
            workflows: workflows.clone(),
            triggers,
            core: core.clone(),
            cluster: cluster.clone(),
            http_queue: http_queue.clone(),
        };

        let nodes = cluster.nodes();
        core.inbox.send(Command::Nodes(nodes.clone()));
        clock_skew::report(&core, SkewLevel::Fine);
        cluster.restore().await?;
        let executors = executors(&core, options.http, http_queue.clone())?;
        let mailbox = Mailbox::new(nodes.own(), wait_url(&core)).holding(hold(&core, executors.hold()));
        let mailbox = if core.store.is_shared() { mailbox.sharing() } else { mailbox };
        let services = LoopServices {
            core: core.clone(),
            workflows: workflows.clone(),
            cluster: cluster.clone(),
            subscribers,
            outbox: outbox_queue.clone(),
            deferrals,
            children: child_queue.clone(),
            http_queue,
        };
        engine_loop::spawn(services, mailbox, executors);
        tokio::spawn(cluster.clone().run());
        tokio::spawn(deferred_inputs.run());
        let children = Children::new(core.clone(), cluster.clone(), runs.clone(), workflows.clone(), child_queue);
        tokio::spawn(children.run(child_requests));
        cluster.listen();
        if let Some(span) = options.retention {
            let retention = Retention::new(core.clone(), cluster, runs.clone(), retention_wake);
            tokio::spawn(retention.run(span));
        }
        tokio::spawn(engine.tasks.clone().store_workers());
        tokio::spawn(engine.tasks.clone().watch_ready_types());
        if let Some(bash) = bash {
            tokio::spawn(bash.run(engine.tasks.clone()));
        }
        tokio::spawn(scheduler.run());
        tokio::spawn(Outbox::new(core, runs, workflows, outbox_queue).run(released));
        Ok(engine)
    }

    /// The service that starts children, without its loop.
    #[cfg(test)]
    pub(crate) fn children_for_test(&self) -> Children {
        let (core, cluster) = (self.core.clone(), self.cluster.clone());
        Children::new(core, cluster, self.runs.clone(), self.workflows.clone(), ChildQueue::new().0)
    }

    pub fn now(&self) -> Timestamp {
        self.core.now()
    }

    pub fn clock_mode(&self) -> ClockMode {
        self.core.clock.mode()
    }

    /// Says how wrong this machine's clock is, if that is worth reporting.
    pub fn clock_report(&self) -> Option<String> {
        self.core.clock.skew_report()
    }

    /// The base of the URLs of this server.
    pub fn public_url(&self) -> &str {
        &self.core.callbacks.public_url
    }

    pub fn store(&self) -> &dyn Store {
        &*self.core.store
    }

    pub fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }

    /// The metrics, after an update of the gauges that the loop sets on demand. Old values if the loop does not answer.
    pub async fn metrics_now(&self) -> &Metrics {
        let _ = tokio::time::timeout(METRICS_TIMEOUT, self.cluster.catch_up(None)).await;
        let _ = tokio::time::timeout(METRICS_TIMEOUT, self.core.probe()).await;
        &self.core.metrics
    }

    /// Is the store writable and the loop alive? For readiness.
    pub async fn check(&self) -> Result<(), Error> {
        let (core, health) = (&self.core, &self.core.health);
        if let Some(why) = health.fatal_reason() {
            return Err(Error::OutcomeUnknown(why));
        }
        core.written(core.store.check().await)?;
        if core.clock.is_too_skewed() {
            let report = core.clock.skew_report().unwrap_or_default();
            return Err(Error::Unavailable(format!("{report}, so this node fires no timers and leases no tasks")));
        }
        if core.store.counters().rollbacks > 0 {
            return Err(Error::RolledBack);
        }
        if health.is_refused.load(Ordering::Relaxed) {
            // The store refused the last commit because it was full. Only a write can tell whether it has room again.
            let now = self.now().0.to_string();
            core.written(core.store.set_setting("probed_at_us", &now).await)?;
            health.is_refused.store(false, Ordering::Relaxed);
        }
        core.probe().await.map(drop)
    }

    /// Completes when the engine cannot go on, with the reason.
    pub async fn failed(&self) -> String {
        self.core.health.failed().await
    }

    /// Refuses new runs and starts no more steps. Attempts under way have `grace` to finish and be recorded. The next
    /// process starts the others again, uncharged, and those that were only queued.
    pub async fn drain(&self, grace: Duration) {
        self.core.health.is_draining.store(true, Ordering::Relaxed);
        self.core.inbox.send(Command::Drain);
        for (dispatch, result) in self.http_queue.close() {
            self.core.inbox.send(driver::finished(&dispatch, result));
        }
        tokio::join!(self.finish_attempts(grace), self.finish_commands(grace));
        self.cluster.leave().await;
    }

    async fn finish_attempts(&self, grace: Duration) {
        let give_up = Instant::now() + grace;
        while Instant::now() < give_up {
            match self.core.probe().await {
                Ok(probe) if probe.executing > 0 => {
                    crash::point(Point::Draining);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                _ => break,
            }
        }
    }

    async fn finish_commands(&self, grace: Duration) {
        if let Some(bash) = &self.bash {
            bash.drain(grace).await;
        }
    }

    /// Stops the loop after its current turn. The next start recovers what was in flight.
    pub async fn stop(&self) {
        self.core.inbox.stop();
        // The loop closes the inbox when it has let go of the mailbox.
        while !self.core.inbox.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn wait_url(core: &Arc<Core>) -> WaitUrl {
    let core = Arc::downgrade(core);
    Arc::new(move |run, step| core.upgrade().map(|core| core.callbacks.url(run, step)).unwrap_or_default())
}

/// Counts the attempts that are held back.
fn hold(core: &Arc<Core>, hold: HoldRequest) -> HoldRequest {
    let core = Arc::downgrade(core);
    Arc::new(move |org, run, next, now| {
        let held = hold(org, run, next, now)?;
        if let Some(core) = core.upgrade() {
            core.metrics.http_steps_held_back_total.add(1);
        }
        Some(held)
    })
}

/// Executors that report to the loop.
fn executors(core: &Arc<Core>, http: HttpOptions, http_queue: Arc<HttpQueue>) -> Result<Executors, Error> {
    let report_to = Arc::downgrade(core);
    let sink = Arc::new(move |dispatch: &Dispatch, result| {
        if let Some(core) = report_to.upgrade() {
            core.metrics.steps_finished_total.add(1);
            core.inbox.send(driver::finished(dispatch, result));
        }
    });
    let runtime = tokio::runtime::Handle::current();
    Executors::new(runtime, http, http_queue, core.clock.clone(), sink).map_err(Error::Refused)
}
