//! Notifications that a run has ended.
//!
//! ```text
//!   last record of the run + notification row   (one commit)
//!        └─▶ first record of the delivering run − notification row   (one commit)
//!               └─▶ attempts, retries, result: like those of any run
//! ```
//!
//! A notification is delivered by starting a run: of the workflow that the definition names, or of a built-in one whose
//! single step calls the URL. So a delivery is retried, signed, explained and survives crashes like any other run. The
//! idempotency key of that run makes starting it twice the same as once.

use super::core::Core;
use super::run_queries::Reading;
use super::runs::{Idempotency, Runs, Source, StartRequest};
use super::workflows::{Resolved, Workflows};
use crate::error::Error;
use kernel::advance::{NotificationNumber, notifications};
use kernel::event::TriggerKind;
use kernel::path::{Ref, Root};
use kernel::plan::{Backoff, Body, Form, Group, Http, Layout, Node, Notify, Retry};
use kernel::planted_bugs::{self, Bug};
use kernel::template::{Part, Template};
use kernel::{OrgId, Plan, RunId, Span, WorkflowId};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{NewWorkflow, NotificationKey, NotificationRow, StoredDefinition, WorkflowKey, WorkflowRow};
use tokio::sync::mpsc;

/// The built-in workflow that calls URLs. Users cannot name a workflow like it: its prefix is reserved.
pub const NOTIFIER: WorkflowId = WorkflowId([0; 16]);
pub const NOTIFIER_NAME: &str = "onward.notify";
/// Its plan is made here, not by `lang`, and has not changed.
const NOTIFIER_LOWERING: u32 = 0;
/// How often the stored notifications that could not be delivered are tried again.
pub const RETRY_EVERY: Span = Span::from_secs(10);
/// Notifications queued in memory and read at a time; the others stay in their rows.
const PAGE: usize = 1_000;

/// Notifications that a commit released and that are not delivered yet.
pub struct OutboxQueue {
    sender: mpsc::Sender<NotificationKey>,
    waiting: AtomicUsize,
}

impl OutboxQueue {
    pub fn new() -> (Arc<OutboxQueue>, mpsc::Receiver<NotificationKey>) {
        let (sender, receiver) = mpsc::channel(PAGE);
        (Arc::new(OutboxQueue { sender, waiting: AtomicUsize::new(0) }), receiver)
    }

    /// Queues a notification. When the queue is full, the next read of the rows finds it.
    pub fn put(&self, notification: NotificationKey) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.try_send(notification).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }
}

/// Delivers notifications.
pub struct Outbox {
    core: Arc<Core>,
    runs: Arc<Runs>,
    workflows: Arc<Workflows>,
    queue: Arc<OutboxQueue>,
}

impl Outbox {
    pub fn new(core: Arc<Core>, runs: Arc<Runs>, workflows: Arc<Workflows>, queue: Arc<OutboxQueue>) -> Outbox {
        Outbox { core, runs, workflows, queue }
    }

    /// Delivers notifications as commits release them, and again from their rows, until the engine stops.
    pub async fn run(self, mut released: mpsc::Receiver<NotificationKey>) {
        while !self.core.inbox.is_closed() {
            if let Err(error) = self.deliver_all().await {
                tracing::warn!(%error, "the notifications cannot be read");
            }
            let pause = tokio::time::sleep(Duration::from_micros(RETRY_EVERY.0));
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    key = released.recv() => {
                        let Some((org, run, number)) = key else { return };
                        self.deliver_one(org, run, number, "").await;
                        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Tries every stored notification once, page by page. Those that cannot be delivered stay.
    async fn deliver_all(&self) -> Result<(), store::Error> {
        let mut after = None;
        loop {
            let rows = self.core.store.notifications(after, PAGE).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((last.org, last.run, last.number));
            for row in &rows {
                self.deliver_one(row.org, row.run, row.number, &row.error).await;
            }
        }
    }

    /// Tries once; an error is stored in the row, where `explain` shows it. `known` is the error stored already.
    async fn deliver_one(&self, org: OrgId, run: RunId, number: u64, known: &str) {
        let Err(error) = self.start_notification(org, run, number).await else { return };
        let error = error.to_string();
        if error == known || self.core.health.fatal_reason().is_some() {
            return;
        }
        tracing::warn!(%run, number, error, "a notification of the run's end cannot be delivered");
        let stored = self.core.store.record_notification_error(&NotificationRow { org, run, number, error }).await;
        if let Err(error) = self.core.written(stored) {
            tracing::warn!(%run, %error, "the error of a notification cannot be stored");
        }
    }

    async fn start_notification(&self, org: OrgId, run: RunId, number: u64) -> Result<(), Error> {
        let reading = self.runs.read(org, run).await?.ok_or(Error::NotFound("run"))?;
        let NotificationNumber { end, index } = NotificationNumber::read(number);
        let reading = self.runs.read_at_end(org, reading, end).await?;
        let listed = notifications(&reading.version.plan, &reading.run);
        let notify =
            listed.get(index as usize).ok_or_else(|| Error::Damaged("the run has no such notification".into()))?;
        let notification_body = notification_body(&reading, notify);
        let (workflow, body) = match notify.url.is_empty() {
            true => {
                let found = self.workflows.resolve(org, &notify.workflow).await?;
                let missing = || Error::Refused(format!("there is no workflow `{}`", notify.workflow));
                (found.ok_or_else(missing)?, notification_body)
            }
            false => (self.notifier(org).await?, json!({ "url": notify.url, "news": notification_body })),
        };
        let idempotency = idempotency(run, number);
        let source = Source {
            kind: TriggerKind::Api,
            caused_by: Some(run),
            notification: Some((run, number)),
            actor: "onward".into(),
            ..Source::default()
        };
        let request = StartRequest::new(org, workflow, body.to_string().into());
        self.runs.start(StartRequest { source, idempotency: Some(idempotency), ..request }).await?;
        Ok(())
    }
}

/// The key that makes delivering a notification twice the same as once. It names the end that the notification is about.
pub fn idempotency(run: RunId, number: u64) -> Idempotency {
    let key = match NotificationNumber::read(number) {
        NotificationNumber { index, .. } if planted_bugs::is(Bug::SecondEndSilent) => format!("{run}:{index}"),
        NotificationNumber { end: Some(end), index } => format!("{run}:{end}:{index}"),
        NotificationNumber { end: None, index } => format!("{run}:{index}"),
    };
    Idempotency { scope: Some("notice".into()), key, fingerprint: [0; 32] }
}

fn notification_body(reading: &Reading, notify: &Notify) -> Value {
    let state = &reading.run.state;
    let key = |step: u32| reading.key(step).into_owned();
    let error = state
        .failure
        .as_ref()
        .map(|failure| json!({ "code": failure.code, "message": failure.message, "step": state.culprit.map(key) }));
    let took = state.finished_at.map(|end| end.since(state.created_at).millis());
    json!({
        "event": format!("run.{}", state.status),
        "on": notify.on.as_str(),
        "run_id": reading.row.id.to_string(),
        "workflow": reading.row.workflow_name,
        "workflow_id": reading.row.workflow.to_string(),
        "version": reading.row.version,
        "status": state.status.as_str(),
        "started_at": state.created_at.to_string(),
        "finished_at": state.finished_at.map(|at| at.to_string()),
        "duration_ms": took,
        "error": error,
        "failed_steps": reading.failed_steps(),
        "unhandled_steps": reading.unhandled_steps(),
        "recovery": recovery(reading),
        "labels": state.origin.labels.iter().map(|l| (l.name.clone(), Value::from(l.value.as_str()))).collect::<serde_json::Map<_, _>>(),
    })
}

/// What became of undoing the steps of the run; null if it undid nothing.
fn recovery(reading: &Reading) -> Value {
    let Some(recovery) = reading.recovery() else { return Value::Null };
    let steps = recovery.steps.iter().map(|(undone, undo)| {
        let state = reading.run.step(*undo);
        let error = state.failure.as_ref().map(|failure| json!({ "code": failure.code, "message": failure.message }));
        json!({ "step": reading.key(*undone), "status": state.status().as_str(), "error": error })
    });
    json!({ "status": recovery.status, "steps": steps.collect::<Vec<Value>>() })
}

impl Outbox {
    /// The built-in workflow that calls a URL; created when it is first needed.
    async fn notifier(&self, org: OrgId) -> Result<Arc<Resolved>, Error> {
        let key = NOTIFIER.to_string();
        if let Some(found) = self.workflows.resolve(org, &key).await? {
            return Ok(found);
        }
        let plan = Plan::new(layout()).map_err(|why| Error::Damaged(why.into()))?;
        let source = json!({
            "name": NOTIFIER_NAME,
            "description": "Calls a URL to notify it that a run has ended.",
            "tasks": { "notify": { "url": "{{trigger.body.url}}", "body": "{{trigger.body.news}}" } },
        });
        let tree = lang::read(source.to_string().as_bytes(), lang::Syntax::Json)
            .map_err(|_| Error::Damaged("the built-in workflow is not a document".into()))?;
        let hash = lang::content_hash(&tree);
        let now = self.core.now();
        let row = WorkflowRow {
            org,
            id: NOTIFIER,
            name: NOTIFIER_NAME.into(),
            slug: "onward-notify".into(),
            description: None,
            tags: "[]".into(),
            form: Form::Graph,
            trigger: "api".into(),
            steps: 1,
            enabled: true,
            version: 1,
            hash,
            lowering: NOTIFIER_LOWERING,
            created_at: now,
            updated_at: now,
            deleted_at: None,
        };
        let (source, plan) = (source.to_string().into(), plan.encode().into());
        let definition = StoredDefinition { hash, lowering: NOTIFIER_LOWERING, source, plan };
        let new = NewWorkflow { row, definition, slug_is_given: false, idempotency: None, trigger: None };
        // Another caller or node may have created it meanwhile; then it is there.
        let _ = self.core.written(self.core.store.create_workflow(&new).await)?;
        let found = self.core.store.workflow(org, &WorkflowKey::Id(NOTIFIER)).await?;
        found.ok_or(Error::NotFound("workflow"))?;
        self.workflows.resolve(org, &key).await?.ok_or(Error::NotFound("workflow"))
    }
}

/// One step that posts the notification to the URL in the run's input. Written as a plan, because a definition may not
/// take a host from a trigger.
fn layout() -> Layout {
    let given = |key: &str| Ref {
        root: Root::TriggerBody,
        keys: vec![key.to_owned()],
        text: format!("trigger.body.{key}"),
        ..Default::default()
    };
    let request = Http {
        method: "POST".into(),
        url: vec![Part { path: Some(given("url")), raw: true, ..Default::default() }],
        body: Some(Template::Value { path: given("news") }),
        timeout: Span::from_secs(30),
        ..Default::default()
    };
    let retry = Retry {
        max_attempts: 10,
        backoff: Backoff::Exponential,
        min: Span::from_secs(1),
        max: Span::from_secs(3_600),
        jitter: 100,
        ..Default::default()
    };
    let body = Some(Body::Http { request: Box::new(request) });
    let node = Node { key: "notify".into(), body, retry, ..Default::default() };
    let group = Group { nodes: vec![0], ..Default::default() };
    let max_duration = Span::from_days(7);
    Layout { form: Form::Graph, groups: vec![group], nodes: vec![node], max_duration, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_plan_is_valid() {
        let plan = Plan::new(layout()).unwrap();
        assert_eq!(Plan::decode(&plan.encode()).unwrap().layout(), plan.layout());
    }
}
