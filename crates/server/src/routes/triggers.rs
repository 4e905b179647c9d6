//! Triggers: create, show, change, enable, disable, fire; their deliveries and their next fire times.

use super::runs::notes;
use super::workflows::{find, idempotency_key};
use super::{answer, page, started_view, webhooks};
use crate::contract::{Param, ResponseShape, Route, delete as delete_at, get, params, patch, post};
use crate::error::problem_of;
use crate::query::{Query, invalid};
use crate::{Answer, App, Path, Refusal, State, body, views};
use api::{
    At, ChangeTriggerRequest, Code, DeliveredView, DeliveryView, FireRequest, FireTimeView, ManualRunRequest,
    StartedView, SwitchRequest, TriggerDetail, TriggerRequest, rfc3339,
};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use engine::services::{Key, PREVIEW_MAX};
use kernel::event::TriggerKind;
use kernel::{Timestamp, TriggerId};
use lang::cron::{Cron, Zone};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use store::{TriggerFilter, TriggerRow};

const PREVIEW: usize = 5;
const NOTE_MAX: usize = 1_024;
const REQUEST_ID_MAX: usize = 200;

const TYPE: Param = Param::new(
    "type",
    "only triggers of this type",
    || json!({ "type": "string", "enum": ["schedule", "cron", "webhook", "manual"] }),
);
const COUNT: Param = Param::new(
    "count",
    "how many fire times",
    || json!({ "type": "integer", "minimum": 1, "maximum": PREVIEW_MAX, "default": PREVIEW }),
);
const FROM: Param = Param::new(
    "from",
    "only fire times after this time; by default now",
    || json!({ "type": "string", "format": "date-time" }),
);
const CRON: Param = Param::new(
    "cron",
    "five fields: minute, hour, day of month, month, day of week",
    || json!({ "type": "string", "examples": ["30 2 * * *"] }),
)
.required();
const TIMEZONE: Param = Param::new(
    "timezone",
    "a time zone of the IANA database",
    || json!({ "type": "string", "default": "Etc/UTC", "examples": ["Europe/Berlin"] }),
);

pub fn routes() -> Vec<Route> {
    const ALL: &str = "/api/v1/triggers";
    const ONE: &str = "/api/v1/triggers/{trigger}";
    /// Errors of routes with a trigger in the path.
    const OF_ONE: &[Code] = &[Code::MalformedId, Code::RunDamaged];
    const STARTS: &[Code] = &[
        Code::TriggerDisabled,
        Code::WorkflowDisabled,
        Code::RunDeleted,
        Code::ConcurrencyKeyUnresolved,
        Code::InvalidInput,
        Code::RunDamaged,
        Code::RunNeedsUpgrade,
    ];
    vec![
        get(ALL, list, "list_triggers", "List triggers, newest first")
            .query(&[TYPE, params::WORKFLOW])
            .pages::<TriggerDetail>(params::TRIGGER_CURSOR)
            .refuses(&[Code::NotFound]),
        post(ALL, create, "create_trigger", "Create a schedule, a webhook or a manual trigger")
            .takes::<TriggerRequest>()
            .idempotent()
            .answers::<TriggerDetail>(201, "the new trigger")
            .answers::<TriggerDetail>(200, "the trigger that an earlier request with this key created")
            .refuses(&[Code::PathTaken, Code::UnknownWorkflow, Code::SecretMissing, Code::NotFound]),
        get(
            "/api/v1/triggers/preview",
            preview_of,
            "preview_schedule",
            "Preview the fire times of a schedule that does not exist yet",
        )
        .query(&[CRON, TIMEZONE, COUNT, FROM])
        .shaped(200, "the fire times", ResponseShape::Page(|g| g.subschema_for::<FireTimeView>())),
        post("/api/v1/triggers/manual/run", run_by_hand, "run_manually", "Start a run without a trigger")
            .one_write()
            .takes::<ManualRunRequest>()
            .idempotent()
            .answers::<StartedView>(201, "the new run")
            .answers::<StartedView>(200, "the run that an earlier request with this key or id started")
            .refuses(&[Code::UnknownWorkflow])
            .refuses(STARTS),
        get(ONE, show, "show_trigger", "Show a trigger").answers::<TriggerDetail>(200, "the trigger").refuses(OF_ONE),
        patch(ONE, change, "change_trigger", "Change a trigger")
            .takes::<ChangeTriggerRequest>()
            .answers::<TriggerDetail>(200, "the changed trigger")
            .refuses(&[Code::PathTaken, Code::UnknownWorkflow, Code::SecretMissing, Code::TriggerOwned])
            .refuses(OF_ONE),
        delete_at(ONE, delete, "delete_trigger", "Delete a trigger and its log")
            .shaped(204, "deleted", ResponseShape::Nothing)
            .refuses(&[Code::TriggerOwned])
            .refuses(OF_ONE),
        post("/api/v1/triggers/{trigger}/enable", enable, "enable_trigger", "Enable a trigger: it fires from now on")
            .may_take::<SwitchRequest>()
            .answers::<TriggerDetail>(200, "the trigger is enabled, now or earlier")
            .refuses(OF_ONE),
        post("/api/v1/triggers/{trigger}/disable", disable, "disable_trigger", "Disable a trigger: it does not fire")
            .may_take::<SwitchRequest>()
            .answers::<TriggerDetail>(200, "the trigger is disabled, now or earlier")
            .refuses(OF_ONE),
        post("/api/v1/triggers/{trigger}/run", run, "fire_trigger", "Fire a trigger now")
            .one_write()
            .may_take::<FireRequest>()
            .idempotent()
            .answers::<StartedView>(201, "the new run")
            .answers::<StartedView>(200, "the run that an earlier request with this key started")
            .refuses(STARTS)
            .refuses(OF_ONE),
        get(
            "/api/v1/triggers/{trigger}/preview",
            preview,
            "preview_trigger",
            "Preview the next fire times of a trigger",
        )
        .query(&[COUNT, FROM])
        .shaped(200, "the fire times", ResponseShape::Page(|g| g.subschema_for::<FireTimeView>()))
        .refuses(OF_ONE),
        get(
            "/api/v1/triggers/{trigger}/deliveries",
            deliveries,
            "list_deliveries",
            "List the deliveries of a trigger, newest first",
        )
        .pages::<DeliveryView>(params::NUMBER_CURSOR)
        .refuses(OF_ONE),
        post(
            "/api/v1/triggers/{trigger}/deliveries/{delivery}/redeliver",
            redeliver,
            "redeliver",
            "Start another run from a stored webhook delivery",
        )
        .one_write()
        .idempotent()
        .answers::<DeliveredView>(201, "the new run")
        .answers::<DeliveredView>(200, "the run that an earlier request with this key started")
        .refuses(&[Code::RequestNotKept, Code::RunFull])
        .refuses(STARTS)
        .refuses(OF_ONE),
    ]
}

pub async fn create(app: State, headers: HeaderMap, body: Body) -> Answer {
    let tree = body::definition(&headers, body).await?;
    let request = lang::trigger::request(&tree).map_err(|problems| Refusal::of_definition(422, &problems))?;
    let key = key(&headers, "create", lang::canonical_json(&tree).as_bytes())?;
    let (row, is_repeat) = app.engine.triggers.create(app.org(), request, key).await?;
    let view = TriggerDetail { deduplicated: is_repeat, ..viewed(&app, &row).await? };
    Ok(answer(if is_repeat { 200 } else { 201 }, view))
}

pub async fn list(app: State, query: Query) -> Answer {
    let trigger_types = "schedule, webhook or manual";
    let kind = query.read("type", trigger_types, |word| match word {
        "cron" => Some(TriggerKind::Schedule),
        word => TriggerKind::parse(word).filter(|kind| *kind != TriggerKind::Api),
    })?;
    let workflow = match query.get("workflow") {
        Some(key) => Some(find(&app, key).await?.id),
        None => None,
    };
    let limit = query.limit()?;
    let before = query.read("cursor", "`next` of the previous page", TriggerId::parse)?;
    let filter = TriggerFilter { kind, workflow, before, limit: limit + 1 };
    let mut rows = app.engine.triggers.list(app.org(), &filter).await?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].id.to_string());
    rows.truncate(limit);
    let mut names = HashMap::new();
    let mut details = Vec::with_capacity(rows.len());
    for row in &rows {
        let name = match names.get(&row.workflow) {
            Some(name) => String::clone(name),
            None => workflow_name(&app, row).await?,
        };
        names.insert(row.workflow, name.clone());
        details.push(views::trigger(&app.engine, row, name));
    }
    Ok(page(details, next))
}

async fn viewed(app: &App, row: &TriggerRow) -> Result<TriggerDetail, Refusal> {
    Ok(views::trigger(&app.engine, row, workflow_name(app, row).await?))
}

/// The name of the workflow of a trigger. A workflow is deleted with its triggers, so it is missing only for a moment.
async fn workflow_name(app: &App, row: &TriggerRow) -> Result<String, Refusal> {
    let found = app.engine.workflows.get_or_deleted(app.org(), &row.workflow.to_string()).await?;
    Ok(found.map_or_else(|| row.workflow.to_string(), |workflow| workflow.name))
}

pub async fn show(app: State, Path(id): Path<String>) -> Answer {
    Ok(answer(200, viewed(&app, &one(&app, &id).await?).await?))
}

pub async fn change(app: State, Path(id): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = trigger_id(&id)?;
    let tree = body::definition(&headers, body).await?;
    let row = app.engine.triggers.change(app.org(), id, &tree).await?.map_err(|problems| {
        // The problems are about the merged trigger, so lines and columns of the request do not apply.
        let without_lines = problems.iter().map(|problem| {
            let mut problem = problem_of(problem);
            problem.at = problem.at.map(|at| At { line: None, column: None, ..at });
            problem
        });
        Refusal::of_problems(Code::InvalidBody, without_lines.collect())
    })?;
    Ok(answer(200, viewed(&app, &row).await?))
}

pub async fn delete(app: State, Path(id): Path<String>) -> Answer {
    app.engine.triggers.delete(app.org(), trigger_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn enable(app: State, path: Path<String>, headers: HeaderMap, body: Body) -> Answer {
    switch(app, path, headers, body, true).await
}

pub async fn disable(app: State, path: Path<String>, headers: HeaderMap, body: Body) -> Answer {
    switch(app, path, headers, body, false).await
}

async fn switch(app: State, Path(id): Path<String>, headers: HeaderMap, body: Body, enabled: bool) -> Answer {
    let id = trigger_id(&id)?;
    let SwitchRequest { note } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    if note.as_ref().is_some_and(|note| note.len() > NOTE_MAX) {
        return Err(wrong("note", &format!("a text of at most {NOTE_MAX} bytes")));
    }
    let row = app.engine.triggers.switch(app.org(), id, enabled, note).await?;
    Ok(answer(200, viewed(&app, &row).await?))
}

pub async fn run(app: State, Path(id): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = trigger_id(&id)?;
    let given: FireRequest = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let key = key(&headers, "run", &variables(given.variables.clone()))?;
    let [actor] = notes([("actor", given.actor)])?;
    let started = app.engine.triggers.run(app.org(), id, given.variables, actor, key).await?;
    Ok(answer(if started.deduplicated { 200 } else { 201 }, started_view(&started)))
}

pub async fn run_by_hand(app: State, headers: HeaderMap, body: Body) -> Answer {
    let request: ManualRunRequest = body::json(&headers, body).await?;
    let ManualRunRequest { workflow, variables: given, client_request_id: id, actor } = request;
    let [actor] = notes([("actor", actor)])?;
    if id.as_ref().is_some_and(|id| !(1..=REQUEST_ID_MAX).contains(&id.len())) {
        return Err(wrong("client_request_id", &format!("a text of 1 to {REQUEST_ID_MAX} bytes")));
    }
    let key = idempotency_key(&headers)?;
    if id.is_some() && key.is_some() && id != key {
        return Err(wrong("client_request_id", "the same as the header `Idempotency-Key`, or left out"));
    }
    let key = id.or(key);
    let manual = app.engine.triggers.run_by_hand(app.org(), &workflow, variables(given), actor, key.as_deref());
    let started = manual.await?;
    Ok(answer(if started.deduplicated { 200 } else { 201 }, started_view(&started)))
}

pub async fn preview(app: State, query: Query, Path(id): Path<String>) -> Answer {
    let (count, from) = (count(&query)?, query.time("from")?.unwrap_or_else(|| app.engine.now()));
    let row = one(&app, &id).await?;
    let fire_times = app.engine.triggers.preview(&row, from, count)?.ok_or_else(|| {
        Refusal::new(Code::InvalidParameter, format!("a {} trigger has no schedule", row.kind.as_str())).at("trigger")
    })?;
    let config: Value = serde_json::from_str(&row.config).unwrap_or_default();
    let zone = config["timezone"].as_str().and_then(Zone::get);
    let view = |(nominal, at): (Timestamp, Timestamp)| FireTimeView {
        at: rfc3339(nominal),
        local: zone.as_ref().map(|zone| zone.local(nominal)),
        starts_at: rfc3339(at),
    };
    Ok(page(fire_times.into_iter().map(view).collect(), None))
}

pub async fn preview_of(app: State, query: Query) -> Answer {
    let (count, from) = (count(&query)?, query.time("from")?.unwrap_or_else(|| app.engine.now()));
    let text = query.get("cron").ok_or_else(|| invalid("cron", "", "five fields such as `30 2 * * *`"))?;
    let cron = Cron::parse(text).map_err(|problems| {
        let problem = problems.into_iter().next();
        let (message, hint) = problem.map(|problem| (problem.message, problem.hint)).unwrap_or_default();
        Refusal::new(Code::InvalidParameter, message).hint(hint.unwrap_or_default()).at("cron")
    })?;
    let name = query.get("timezone").unwrap_or(Zone::UTC);
    let zone = Zone::get(name).ok_or_else(|| invalid("timezone", name, "a name such as Europe/Berlin"))?;
    let fire_times = std::iter::successors(cron.next_after(from, &zone), |at| cron.next_after(*at, &zone));
    let view = |at: Timestamp| FireTimeView { at: rfc3339(at), local: Some(zone.local(at)), starts_at: rfc3339(at) };
    Ok(page(fire_times.take(count).map(view).collect(), None))
}

fn count(query: &Query) -> Result<usize, Refusal> {
    let read = |text: &str| text.parse().ok().filter(|n| (1..=PREVIEW_MAX).contains(n));
    Ok(query.read("count", &format!("a number from 1 to {PREVIEW_MAX}"), read)?.unwrap_or(PREVIEW))
}

pub async fn deliveries(app: State, query: Query, Path(id): Path<String>) -> Answer {
    let limit = query.limit()?;
    let before = query.number("cursor", "`next` of the previous page")?;
    let row = one(&app, &id).await?;
    let mut rows = app.engine.triggers.deliveries(app.org(), row.id, before, limit + 1).await?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].seq.to_string());
    rows.truncate(limit);
    Ok(page(rows.iter().map(views::delivery).collect(), next))
}

pub async fn redeliver(app: State, Path((id, delivery)): Path<(String, String)>, headers: HeaderMap) -> Answer {
    let id = trigger_id(&id)?;
    let key = key(&headers, "redeliver", delivery.as_bytes())?;
    let delivered = app.engine.webhooks.redeliver(app.org(), id, &delivery, key).await?;
    Ok(answer(if delivered.effect.is_repeated() { 200 } else { 201 }, webhooks::view(&delivered)))
}

async fn one(app: &App, id: &str) -> Result<TriggerRow, Refusal> {
    let found = app.engine.triggers.get(app.org(), trigger_id(id)?).await?;
    found.ok_or_else(|| Refusal::not_found("trigger", id))
}

fn trigger_id(text: &str) -> Result<TriggerId, Refusal> {
    TriggerId::parse(text).ok_or_else(|| {
        let text: String = text.chars().take(80).collect();
        Refusal::new(Code::MalformedId, format!("`{text}` is not a trigger id"))
            .hint("trigger ids look like trg_01jz8k3w9mz6xq4v7n5t2c0b1d")
    })
}

/// The idempotency key of the request, and a hash of the request.
fn key(headers: &HeaderMap, what: &str, content: &[u8]) -> Result<Option<Key>, Refusal> {
    let fingerprint = || Sha256::new().chain_update(what).chain_update(b"\0").chain_update(content).finalize().into();
    Ok(idempotency_key(headers)?.map(|key| (key, fingerprint())))
}

fn wrong(field: &str, expected: &str) -> Refusal {
    Refusal::new(Code::InvalidBody, format!("`{field}` must be {expected}")).at(field)
}

fn variables(given: Option<Value>) -> Bytes {
    given.unwrap_or_else(|| json!({})).to_string().into()
}
