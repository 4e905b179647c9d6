//! Requests at webhooks: accepted or rejected, each with an entry in the trigger's log.

use super::core::Core;
use super::id_generator::random;
use super::runs::{Idempotency, Runs, Source, StartRequest, Started};
use super::triggers::{Key, Triggers, invalid_input, spec};
use super::waits::SignalRequest;
use super::workflows::Workflows;
use crate::error::Error;
use crate::triggers::hex;
use crate::triggers::webhook::{Identity, Rejection, WebhookRequest, child_at};
use kernel::event::TriggerKind;
use kernel::{Answer, OrgId, RunId, RunStatus, Span, Timestamp, TriggerId};
use lang::trigger::{Spec, Webhook, WebhookSignal};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use store::crash::{self, Point};
use store::{DeliveryOutcome, DeliveryRow, RunFilter, TriggerRow, listed_id};

/// At most one rejection per trigger is logged in this time.
const REJECTIONS_EVERY: Span = Span::from_secs(1);
/// Triggers whose last rejection is remembered; when the table is full, it is cleared.
const REMEMBERED_MAX: usize = 1_024;

/// Runs that are listed at a time to find those that get a signal.
const RUNS_PAGE: usize = 500;

/// Handles requests at webhooks.
pub struct Webhooks {
    core: Arc<Core>,
    runs: Arc<Runs>,
    workflows: Arc<Workflows>,
    triggers: Arc<Triggers>,
    /// When each trigger's last rejection was logged.
    rejections: Mutex<HashMap<TriggerId, Timestamp>>,
}

/// An enabled webhook.
pub struct WebhookEndpoint {
    row: TriggerRow,
    webhook: Box<Webhook>,
}

pub struct Delivered {
    pub delivery: String,
    pub effect: Effect,
}

pub enum Effect {
    Started(Started),
    /// So many open runs got the signal.
    Signalled {
        runs: u32,
        /// An earlier delivery with this id did it.
        deduplicated: bool,
    },
}

impl Effect {
    pub fn is_repeated(&self) -> bool {
        match self {
            Effect::Started(started) => started.deduplicated,
            Effect::Signalled { deduplicated, .. } => *deduplicated,
        }
    }
}

impl WebhookEndpoint {
    pub fn method(&self) -> &str {
        &self.webhook.method
    }
}

impl Webhooks {
    pub fn new(core: Arc<Core>, runs: Arc<Runs>, workflows: Arc<Workflows>, triggers: Arc<Triggers>) -> Webhooks {
        Webhooks { core, runs, workflows, triggers, rejections: Mutex::default() }
    }

    /// The webhook at a path; `None` if there is none or it is disabled.
    pub async fn endpoint(&self, path: &str) -> Result<Option<WebhookEndpoint>, Error> {
        let found = self.core.store.trigger_at(path).await?.filter(|row| row.enabled);
        let Some(row) = found else { return Ok(None) };
        match spec(&row)? {
            Spec::Webhook(webhook) => Ok(Some(WebhookEndpoint { row, webhook })),
            _ => Ok(None),
        }
    }

    /// Checks a request and starts its run, once for each delivery.
    pub async fn deliver(
        &self,
        webhook_endpoint: &WebhookEndpoint,
        request: &WebhookRequest,
    ) -> Result<Delivered, Error> {
        let WebhookEndpoint { row, webhook } = webhook_endpoint;
        if let Err(rejection) = request.admit(webhook, self.core.now()) {
            self.reject(row, rejection.as_str()).await;
            return Err(Error::Rejected(rejection));
        }
        let known = match request.identity(webhook.dedup) {
            Identity::Given(id) => Some(id),
            Identity::Content(hash) => Some(self.content_id(row, &hash, webhook.dedup_window).await?),
            Identity::New => None,
        };
        if let Some(signal) = &webhook.signal {
            let result = self.signal_runs(webhook_endpoint, signal, request, known).await;
            if let Ok(delivered) = &result {
                self.count(delivered);
            }
            return result;
        }
        let idempotency = known.as_ref().map(|id| Idempotency {
            scope: Some(row.id.to_string()),
            key: delivery_key(id),
            fingerprint: request.fingerprint(row.id),
        });
        let id = known.map_or_else(|| Ok(format!("delivery-{}", hex(&random::<8>()?))), Ok::<_, Error>)?;
        let result = self.start_delivery(webhook_endpoint, request, id, "", idempotency).await;
        match &result {
            Ok(delivered) => self.count(delivered),
            Err(Error::Disabled) => self.reject(row, "workflow_disabled").await,
            Err(Error::InvalidConcurrencyKey(_)) => self.reject(row, "concurrency_key_unresolved").await,
            Err(Error::KeyReused) => self.reject(row, "delivery_id_reused").await,
            Err(Error::InvalidInput(problems)) => self.reject(row, &invalid_input(problems)).await,
            Err(_) => {}
        }
        result
    }

    fn count(&self, delivered: &Delivered) {
        let metrics = &self.core.metrics;
        match delivered.effect.is_repeated() {
            true => metrics.webhook_deliveries_repeated_total.add(1),
            false => metrics.webhook_deliveries_total.add(1),
        }
    }

    /// M21: gives the signal to every open run of the trigger's workflow whose label has the value in the payload, once
    /// for each delivery id. The line in the log comes last: after a crash before it, the sender repeats the delivery,
    /// and the runs that have the signal already recognise it by its key.
    async fn signal_runs(
        &self,
        WebhookEndpoint { row, webhook }: &WebhookEndpoint,
        signal: &WebhookSignal,
        request: &WebhookRequest,
        known: Option<String>,
    ) -> Result<Delivered, Error> {
        let id = match known {
            Some(id) => id,
            None => format!("delivery-{}", hex(&random::<8>()?)),
        };
        if let Some(earlier) = self.core.store.delivery(row.org, row.id, &id).await? {
            let is_same = earlier
                .request
                .as_ref()
                .and_then(WebhookRequest::again)
                .is_none_or(|earlier| earlier.fingerprint(row.id) == request.fingerprint(row.id));
            if !is_same {
                self.reject(row, "delivery_id_reused").await;
                return Err(Error::KeyReused);
            }
            let runs = earlier.reason.parse().unwrap_or(0);
            return Ok(Delivered { delivery: id, effect: Effect::Signalled { runs, deduplicated: true } });
        }
        let body = request.payload(webhook);
        let value = serde_json::from_slice(&body).ok().and_then(|body: Value| text_at(&body, &signal.correlate));
        let (mut runs, mut full) = (0, 0);
        if let Some(value) = value {
            let mut filter = RunFilter {
                statuses: RunStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect(),
                workflow: Some(row.workflow),
                labels: vec![(signal.label.clone(), value)],
                limit: RUNS_PAGE,
                ..RunFilter::default()
            };
            loop {
                let page = self.core.store.runs(row.org, &filter).await?;
                for run in page.iter().filter_map(|listed| listed.as_ref().ok()) {
                    let request = SignalRequest {
                        name: signal.name.clone(),
                        body: body.clone(),
                        actor: row.name.clone(),
                        key: Some(format!("{}:{id}", row.id)),
                    };
                    match self.runs.signal(row.org, run.id, request).await {
                        Ok((Answer::Applied | Answer::Repeated, _)) => {
                            runs += 1;
                            crash::point(Point::SignalSent);
                        }
                        // The others get theirs.
                        Ok((Answer::Full | Answer::TooLarge, _)) => full += 1,
                        // It ended meanwhile.
                        Ok(_) | Err(Error::NotFound(_)) => {}
                        Err(error) if error.is_unreadable_run() => {}
                        Err(error) => return Err(error),
                    }
                }
                match page.last() {
                    Some(last) if page.len() == RUNS_PAGE => filter.before = Some(listed_id(last)),
                    _ => break,
                }
            }
        }
        if full > 0 {
            // Without a line in the log, the delivery is not done: when the sender repeats it, those runs get the signal
            // that can take it by then, and the others recognise it.
            self.reject(row, "run_full").await;
            return Err(Error::RunsFull(full));
        }
        let entry = match runs {
            0 => {
                DeliveryRow { outcome: DeliveryOutcome::Skipped, ..self.triggers.delivery(row, id.clone(), "no_match") }
            }
            runs => DeliveryRow {
                outcome: DeliveryOutcome::Signalled,
                ..self.triggers.delivery(row, id.clone(), &runs.to_string())
            },
        };
        let entry = DeliveryRow { request: Some(request.keep(webhook)), ..entry };
        self.triggers.log(row, vec![entry], None).await?;
        Ok(Delivered { delivery: id, effect: Effect::Signalled { runs, deduplicated: false } })
    }

    /// The delivery id of a request that has none, which it shares with equal requests within `window` of the first.
    ///
    /// Time is cut into pieces as long as the window, and the number of the piece is part of the id, so equal requests
    /// in one piece share it. If there was one in the piece before, and its window is still open, the id is that one's.
    async fn content_id(&self, row: &TriggerRow, hash: &str, window: Span) -> Result<String, Error> {
        let now = self.core.now();
        let piece = now.0 / window.0 as i64;
        let id = |piece: i64| format!("{hash}-{piece}");
        let before = id(piece - 1);
        let first = match spec(row)? {
            Spec::Webhook(webhook) if webhook.signal.is_some() => {
                self.core.store.delivery(row.org, row.id, &before).await?.map(|earlier| earlier.at)
            }
            _ => {
                let scope = row.id.to_string();
                let record = self.core.store.idempotency_record(row.org, &scope, &delivery_key(&before)).await?;
                record.map(|(run, _)| RunId(run).made_at())
            }
        };
        let is_open = first.is_some_and(|at| now < at.after(window));
        Ok(if is_open { before } else { id(piece) })
    }

    /// Starts another run from a stored delivery, with the trigger's present settings.
    pub async fn redeliver(
        &self,
        org: OrgId,
        trigger: TriggerId,
        delivery: &str,
        key: Option<Key>,
    ) -> Result<Delivered, Error> {
        let row = self.triggers.found(org, trigger).await?;
        if !row.enabled {
            return Err(Error::TriggerDisabled);
        }
        let stored = self.core.store.delivery(org, trigger, delivery).await?.ok_or(Error::NotFound("delivery"))?;
        let request = stored.request.as_ref().and_then(WebhookRequest::again).ok_or(Error::NotKept)?;
        let Spec::Webhook(webhook) = spec(&row)? else { return Err(Error::NotKept) };
        let idempotency = key.map(|(key, fingerprint)| {
            let scope = Some(trigger.to_string());
            Idempotency { scope, key: format!("redeliver:{key}"), fingerprint }
        });
        let id = format!("redelivery-{}", hex(&random::<8>()?));
        if let Some(signal) = &webhook.signal {
            // A key names the delivery, so that a repeat of the request finds it.
            let id = idempotency.map_or(id, |Idempotency { key, .. }| key);
            let endpoint = WebhookEndpoint { webhook: webhook.clone(), row };
            return self.signal_runs(&endpoint, signal, &request, Some(id)).await;
        }
        self.start_delivery(&WebhookEndpoint { row, webhook }, &request, id, "redelivered", idempotency).await
    }

    async fn start_delivery(
        &self,
        WebhookEndpoint { row, webhook }: &WebhookEndpoint,
        request: &WebhookRequest,
        id: String,
        reason: &str,
        idempotency: Option<Idempotency>,
    ) -> Result<Delivered, Error> {
        let workflow =
            self.workflows.resolve(row.org, &row.workflow.to_string()).await?.ok_or(Error::NotFound("webhook"))?;
        let kept = request.keep(webhook);
        let is_required = |name: &str| webhook.headers.iter().any(|(required, _)| required == name);
        let headers = request.kept.iter().filter(|(name, _)| !is_required(name)).cloned().collect();
        let entry = DeliveryRow { request: Some(kept), ..self.triggers.delivery(row, id.clone(), reason) };
        let source =
            Source { kind: TriggerKind::Webhook, trigger: Some(row.id), delivery: id.clone(), ..Default::default() };
        let body = request.payload(webhook);
        let start = StartRequest {
            headers,
            source,
            idempotency,
            delivery: Some(entry),
            ..StartRequest::new(row.org, workflow, body)
        };
        let started = self.runs.start(start).await?;
        Ok(Delivered { delivery: id, effect: Effect::Started(started) })
    }

    /// Logs a rejection, without the body and at a limited rate: anyone can send requests to a webhook.
    async fn reject(&self, row: &TriggerRow, reason: &str) {
        self.core.metrics.webhook_deliveries_rejected_total.add(1);
        let now = self.core.now();
        if !self.may_log_rejection(row.id, now) {
            return;
        }
        let Ok(number) = random::<8>() else { return };
        let entry = self.triggers.delivery(row, format!("rejected-{}", hex(&number)), reason);
        let entry = DeliveryRow { outcome: DeliveryOutcome::Rejected, ..entry };
        if let Err(error) = self.triggers.log(row, vec![entry], None).await {
            tracing::warn!(%error, trigger = %row.id, "a rejected delivery could not be logged");
        }
    }

    fn may_log_rejection(&self, trigger: TriggerId, now: Timestamp) -> bool {
        let mut seen = self.rejections.lock().unwrap_or_else(|e| e.into_inner());
        if seen.get(&trigger).is_some_and(|at| now.since(*at) < REJECTIONS_EVERY) {
            return false;
        }
        if seen.len() >= REMEMBERED_MAX {
            seen.clear();
        }
        seen.insert(trigger, now);
        true
    }
}

/// The value at a path, as a label has it: a text, a number or a truth value.
fn text_at(body: &Value, path: &[String]) -> Option<String> {
    match child_at(body, path)? {
        Value::String(text) => Some(text.clone()),
        value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn delivery_key(id: &str) -> String {
    format!("delivery:{id}")
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Error {
        Error::Rejected(rejection)
    }
}
