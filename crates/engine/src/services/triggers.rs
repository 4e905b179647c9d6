//! Triggers: creating, changing, switching and deleting them, and running them by hand. [`scheduler`](super::scheduler)
//! fires schedules, and [`webhooks`](super::webhooks) handles requests at webhooks.

use super::core::Core;
use super::id_generator::random;
use super::runs::{Idempotency, Runs, Source, StartRequest, Started};
use super::workflows::Workflows;
use crate::error::Error;
use crate::triggers::{fire_times, hex, rfc3339};
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, Timestamp, TriggerId, WorkflowId};
use lang::trigger::{Spec, TriggerRequest};
use lang::{Diagnostic, InputProblem};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use store::{
    Changed, DeliveryOutcome, DeliveryRow, IdempotencyKey, NewTrigger, ScheduleAdvance, TriggerChange, TriggerFilter,
    TriggerLog, TriggerRow, TriggerTaken, WorkflowRow,
};
use tokio::sync::Notify;

/// How often a change is tried again because another writer changed the trigger first.
const CHANGES_MAX: usize = 8;
/// Characters of a problem in the log of a trigger.
const REASON_MAX: usize = 200;
/// The most fire times a preview shows.
pub const PREVIEW_MAX: usize = 1_000;

/// A caller's idempotency key with the fingerprint of its request.
pub type Key = (String, [u8; 32]);

pub struct Triggers {
    core: Arc<Core>,
    runs: Arc<Runs>,
    workflows: Arc<Workflows>,
    /// Wakes the scheduler.
    schedule_changed: Arc<Notify>,
}

impl Triggers {
    pub fn new(core: Arc<Core>, runs: Arc<Runs>, workflows: Arc<Workflows>, schedule_changed: Arc<Notify>) -> Triggers {
        Triggers { core, runs, workflows, schedule_changed }
    }

    /// Stores a new trigger; true if an earlier request with the idempotency key created it.
    pub async fn create(
        &self,
        org: OrgId,
        request: TriggerRequest,
        idempotency: Option<Key>,
    ) -> Result<(TriggerRow, bool), Error> {
        let workflow = self.workflows.expect(org, &request.workflow).await?;
        let now = self.core.now();
        let spec = complete(request.spec, None)?;
        let new = TriggerRow { note: request.note, ..new_row(org, workflow.id, request.name, &spec, now)? };
        let row = restarted(TriggerRow { enabled: request.enabled, ..new }, &spec, now);
        let idempotency = idempotency.map(|(key, fingerprint)| IdempotencyKey {
            scope: "triggers".into(),
            key,
            fingerprint,
            created_at: now,
        });
        let new = NewTrigger { row, idempotency };
        match self.core.written(self.core.store.create_trigger(&new).await)? {
            Ok(()) => {}
            Err(TriggerTaken::Key { trigger, fingerprint }) => {
                if new.idempotency.is_none_or(|key| key.fingerprint != fingerprint) {
                    return Err(Error::KeyReused);
                }
                return Ok((self.found(org, trigger).await?, true));
            }
            Err(TriggerTaken::Path) => return Err(Error::PathTaken),
            Err(TriggerTaken::Workflow) => return Err(Error::NoWorkflow { key: workflow.name, nearest: None }),
        }
        self.schedule_changed.notify_one();
        Ok((new.row, false))
    }

    pub async fn get(&self, org: OrgId, id: TriggerId) -> Result<Option<TriggerRow>, Error> {
        Ok(self.core.store.trigger(org, id).await?)
    }

    pub async fn list(&self, org: OrgId, filter: &TriggerFilter) -> Result<Vec<TriggerRow>, Error> {
        Ok(self.core.store.triggers(org, filter).await?)
    }

    pub async fn deliveries(
        &self,
        org: OrgId,
        id: TriggerId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, Error> {
        Ok(self.core.store.deliveries(org, id, before, limit).await?)
    }

    /// Applies a partial change to a trigger; the inner error lists what is wrong with the change.
    pub async fn change(
        &self,
        org: OrgId,
        id: TriggerId,
        tree: &lang::Tree,
    ) -> Result<Result<TriggerRow, Vec<Diagnostic>>, Error> {
        for _ in 0..CHANGES_MAX {
            let row = self.found(org, id).await?;
            let workflow = row.workflow.to_string();
            let current = lang::trigger::CurrentTrigger {
                name: &row.name,
                kind: row.kind,
                workflow: &workflow,
                enabled: row.enabled,
                note: row.note.as_deref(),
                config: &row.config,
            };
            let request = match lang::trigger::change(tree, &current) {
                Ok(request) => request,
                Err(problems) => return Ok(Err(problems)),
            };
            let to = self.workflows.expect(org, &request.workflow).await?;
            let spec = complete(request.spec, Some(&row))?;
            let config = spec.config().to_string();
            if row.is_owned && (request.name != row.name || to.id != row.workflow || config != row.config) {
                return Err(Error::Owned);
            }
            let changed = TriggerRow {
                name: request.name,
                workflow: to.id,
                enabled: request.enabled,
                note: request.note,
                path: path(&spec),
                config,
                ..row.clone()
            };
            if let Some(row) = self.put(row, changed, &spec).await? {
                return Ok(Ok(row));
            }
        }
        Err(Error::Unavailable("the trigger is changing too fast".into()))
    }

    /// Enables or disables a trigger. A schedule that is enabled again starts from now: it does not catch up.
    pub async fn switch(
        &self,
        org: OrgId,
        id: TriggerId,
        enabled: bool,
        note: Option<String>,
    ) -> Result<TriggerRow, Error> {
        for _ in 0..CHANGES_MAX {
            let row = self.found(org, id).await?;
            let spec = spec(&row)?;
            // The note says why the trigger is disabled, so enabling it drops the note.
            let note = note.clone().or_else(|| row.note.clone().filter(|_| !enabled));
            let changed = TriggerRow { enabled, note, ..row.clone() };
            if let Some(row) = self.put(row, changed, &spec).await? {
                return Ok(row);
            }
        }
        Err(Error::Unavailable("the trigger is changing too fast".into()))
    }

    /// Writes a change; `None` when another writer changed the trigger first.
    async fn put(&self, old: TriggerRow, new: TriggerRow, spec: &Spec) -> Result<Option<TriggerRow>, Error> {
        if old == new {
            return Ok(Some(old));
        }
        let now = self.core.now();
        let restarts = old.enabled != new.enabled || old.config != new.config;
        let row = TriggerRow { revision: old.revision + 1, updated_at: now, ..new };
        let row = if restarts { restarted(row, spec, now) } else { row };
        let change = TriggerChange { row, restarts };
        match self.core.written(self.core.store.change_trigger(&change).await)? {
            Changed::Stale => return Ok(None),
            Changed::PathTaken => return Err(Error::PathTaken),
            Changed::NoWorkflow => {
                return Err(Error::NoWorkflow { key: change.row.workflow.to_string(), nearest: None });
            }
            Changed::Done => {}
        }
        if !change.row.enabled {
            self.skip_queued(&change.row, "trigger_disabled", now).await?;
        }
        self.schedule_changed.notify_one();
        Ok(Some(self.found(old.org, old.id).await?))
    }

    pub async fn delete(&self, org: OrgId, id: TriggerId) -> Result<(), Error> {
        if self.found(org, id).await?.is_owned {
            return Err(Error::Owned);
        }
        let deleted = self.core.written(self.core.store.delete_trigger(org, id).await)?;
        if deleted { Ok(()) } else { Err(Error::NotFound("trigger")) }
    }

    /// Starts a run of a trigger now, as the trigger itself would: with its input, under `variables` if any. A schedule
    /// counts now as the fire time.
    pub async fn run(
        &self,
        org: OrgId,
        id: TriggerId,
        variables: Option<serde_json::Value>,
        actor: String,
        key: Option<Key>,
    ) -> Result<Started, Error> {
        let row = self.found(org, id).await?;
        if !row.enabled {
            return Err(Error::TriggerDisabled);
        }
        let workflow =
            self.workflows.resolve(org, &row.workflow.to_string()).await?.ok_or(Error::NotFound("workflow"))?;
        let delivery = format!("run-{}", hex(&random::<8>()?));
        let nominal = (row.kind == TriggerKind::Schedule).then(|| self.core.now());
        let entry = DeliveryRow { nominal, ..self.delivery(&row, delivery.clone(), "run_now") };
        let source = Source { kind: row.kind, trigger: Some(id), nominal, delivery, actor, ..Default::default() };
        let body = Bytes::from(lang::trigger::body(spec(&row)?.input(), variables).to_string());
        let idempotency = key.map(|(key, fingerprint)| {
            let scope = Some(id.to_string());
            Idempotency { scope, key: format!("run:{key}"), fingerprint }
        });
        let request =
            StartRequest { source, idempotency, delivery: Some(entry), ..StartRequest::new(org, workflow, body) };
        self.runs.start(request).await
    }

    /// Starts a run by hand, without a trigger.
    pub async fn run_by_hand(
        &self,
        org: OrgId,
        workflow: &str,
        variables: Bytes,
        actor: String,
        key: Option<&str>,
    ) -> Result<Started, Error> {
        let workflow = match self.workflows.resolve(org, workflow).await? {
            Some(found) => found,
            None => return Err(self.workflows.unknown(org, workflow).await),
        };
        let id = workflow.row.id;
        let idempotency = key.map(|given| {
            let fingerprint = Sha256::new().chain_update(b"manual\0").chain_update(id.0);
            let canonical = lang::read(&variables, lang::Syntax::Json).map(|tree| lang::canonical_json(&tree));
            let fingerprint = match canonical {
                Ok(text) => fingerprint.chain_update(text),
                Err(_) => fingerprint.chain_update(&variables),
            };
            Idempotency { scope: None, key: format!("manual:{id}:{given}"), fingerprint: fingerprint.finalize().into() }
        });
        let source = Source { kind: TriggerKind::Manual, actor, ..Default::default() };
        self.runs.start(StartRequest { source, idempotency, ..StartRequest::new(org, workflow, variables) }).await
    }

    /// The fire times of a schedule after `from`: the nominal time, and when each is due.
    pub fn preview(
        &self,
        row: &TriggerRow,
        from: Timestamp,
        count: usize,
    ) -> Result<Option<Vec<(Timestamp, Timestamp)>>, Error> {
        let Spec::Schedule(schedule) = spec(row)? else { return Ok(None) };
        let next = |after: Timestamp| fire_times::next(row.id, &schedule, after);
        let all = std::iter::successors(next(from), |(nominal, _)| next(*nominal));
        Ok(Some(all.take(count.min(PREVIEW_MAX)).collect()))
    }

    pub(super) async fn found(&self, org: OrgId, id: TriggerId) -> Result<TriggerRow, Error> {
        self.core.store.trigger(org, id).await?.ok_or(Error::NotFound("trigger"))
    }

    /// A log entry for a run that a trigger starts now.
    pub(super) fn delivery(&self, row: &TriggerRow, id: String, reason: &str) -> DeliveryRow {
        DeliveryRow {
            org: row.org,
            trigger: row.id,
            seq: 0,
            id,
            at: self.core.now(),
            outcome: DeliveryOutcome::Started,
            reason: reason.to_owned(),
            run: None,
            nominal: None,
            request: None,
        }
    }

    /// Adds entries to a trigger's log, and moves its schedule on; false when the schedule was changed meanwhile.
    pub(super) async fn log(
        &self,
        row: &TriggerRow,
        rows: Vec<DeliveryRow>,
        advance: Option<ScheduleAdvance>,
    ) -> Result<bool, Error> {
        let log = TriggerLog { org: row.org, trigger: row.id, rows, advance };
        self.core.written(self.core.store.log_deliveries(&log).await)
    }

    /// Marks all queued fire times of a trigger as skipped.
    pub(super) async fn skip_queued(&self, row: &TriggerRow, reason: &str, now: Timestamp) -> Result<(), Error> {
        let queued = self.core.store.queued_deliveries(Some((row.org, row.id)), usize::MAX).await?;
        if queued.is_empty() {
            return Ok(());
        }
        let skipped = |entry: DeliveryRow| DeliveryRow {
            outcome: DeliveryOutcome::Skipped,
            reason: reason.to_owned(),
            at: now,
            ..entry
        };
        let rows = queued.into_iter().map(skipped).collect();
        let log = TriggerLog { org: row.org, trigger: row.id, rows, advance: None };
        self.core.written(self.core.store.log_deliveries(&log).await).map(drop)
    }
}

/// The row of the trigger that a definition declares, to be stored with its workflow. `existing` is the workflow's
/// present trigger: its secret and path are kept where the definition does not give them.
pub(crate) fn owned_trigger(
    workflow: &WorkflowRow,
    spec: Option<&Spec>,
    existing: Option<&TriggerRow>,
    now: Timestamp,
) -> Result<Option<TriggerRow>, Error> {
    let Some(spec) = spec else { return Ok(None) };
    let existing = existing.filter(|row| row.kind == spec.kind());
    let spec = complete(spec.clone(), existing)?;
    let row = new_row(workflow.org, workflow.id, workflow.name.clone(), &spec, now)?;
    Ok(Some(restarted(TriggerRow { is_owned: true, ..row }, &spec, now)))
}

/// The parsed settings of a stored trigger.
pub(super) fn spec(row: &TriggerRow) -> Result<Spec, Error> {
    let spec = lang::trigger::stored(row.kind, &row.config);
    spec.ok_or_else(|| Error::Damaged(format!("the settings of {} cannot be read", row.id)))
}

/// Fills in what the request left to the engine: a generated path, and the secret of `existing` if it is to be kept.
fn complete(spec: Spec, existing: Option<&TriggerRow>) -> Result<Spec, Error> {
    let Spec::Webhook(mut webhook) = spec else { return Ok(spec) };
    if webhook.keeps_secret {
        let old = existing.map(self::spec).transpose()?;
        let Some(Spec::Webhook(old)) = old else { return Err(Error::NoSecret) };
        webhook.secret = Some(old.secret.ok_or(Error::NoSecret)?);
        webhook.keeps_secret = false;
    }
    if webhook.path.is_none() {
        let made = || random::<16>().map(|bytes| hex(&bytes));
        webhook.path = Some(existing.and_then(|row| row.path.clone()).map_or_else(made, Ok)?);
    }
    Ok(Spec::Webhook(webhook))
}

fn path(spec: &Spec) -> Option<String> {
    if let Spec::Webhook(webhook) = spec { webhook.path.clone() } else { None }
}

fn new_row(org: OrgId, workflow: WorkflowId, name: String, spec: &Spec, now: Timestamp) -> Result<TriggerRow, Error> {
    Ok(TriggerRow {
        org,
        id: TriggerId::new(now, random()?),
        name,
        kind: spec.kind(),
        workflow,
        enabled: true,
        note: None,
        config: spec.config().to_string(),
        path: path(spec),
        is_owned: false,
        revision: 1,
        cursor: None,
        next_at: None,
        created_at: now,
        updated_at: now,
        last_run_at: None,
        last_run: None,
    })
}

/// Restarts a schedule: its fire times count from now.
fn restarted(row: TriggerRow, spec: &Spec, now: Timestamp) -> TriggerRow {
    let Spec::Schedule(schedule) = spec else { return row };
    let next_at = fire_times::next(row.id, schedule, now).map(|(_, at)| at).filter(|_| row.enabled);
    TriggerRow { cursor: Some(now), next_at, ..row }
}

/// What the log of a trigger says about a body that does not fit the workflow: the first problem.
pub(super) fn invalid_input(problems: &[InputProblem]) -> String {
    let first = problems.first().map_or("", |problem| problem.message.as_str());
    let first: String = first.chars().take(REASON_MAX).collect();
    match problems.len() {
        0 | 1 => format!("invalid_input: {first}"),
        count => format!("invalid_input: {first} (and {} more)", count - 1),
    }
}

/// The id of a fire time in the trigger's log, which is also the idempotency key of its run.
pub(super) fn delivery_id(nominal: Timestamp) -> String {
    rfc3339(nominal)
}
