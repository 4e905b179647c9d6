//! Triggers: make, look at, change, switch, fire; their log and what comes next.

use super::workflows::{find, idempotency_key};
use super::{answer, page, started_view, webhooks};
use crate::error::problem_of;
use crate::query::{Query, invalid};
use crate::{Answer, App, Path, Refusal, State, body, views};
use api::{At, Code, MomentView, rfc3339};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use bytes::Bytes;
use engine::engine::{Key, PREVIEW_MAX};
use kernel::event::TriggerKind;
use kernel::{Timestamp, TriggerId};
use lang::cron::{Cron, Zone};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use store::{TriggerFilter, TriggerRow};

const PREVIEW: usize = 5;
const NOTE_MAX: usize = 1_024;
const REQUEST_ID_MAX: usize = 200;

pub async fn create(app: State, uri: Uri, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let tree = body::definition(&headers, body).await?;
    let request = lang::trigger::request(&tree).map_err(|problems| Refusal::of_definition(422, &problems))?;
    let key = key(&headers, "create", lang::canonical_json(&tree).as_bytes())?;
    let (row, is_repeat) = app.engine.create_trigger(app.org(), request, key).await?;
    Ok(answer(if is_repeat { 200 } else { 201 }, views::trigger(&app.engine, &row)))
}

pub async fn list(app: State, uri: Uri) -> Answer {
    let query = Query::parse(uri.query(), &["type", "workflow", "limit", "cursor"])?;
    let kinds = "schedule, webhook or manual";
    let kind = query.read("type", kinds, |word| match word {
        "cron" => Some(TriggerKind::Schedule),
        word => TriggerKind::parse(word).filter(|kind| *kind != TriggerKind::Api),
    })?;
    let workflow = match query.get("workflow") {
        Some(key) => Some(find(&app, key).await?.id),
        None => None,
    };
    let limit = query.limit()?;
    let before = query.read("cursor", "the `next` of an earlier page", TriggerId::parse)?;
    let filter = TriggerFilter { kind, workflow, before, limit: limit + 1 };
    let mut rows = app.engine.triggers(app.org(), &filter).await?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].id.to_string());
    rows.truncate(limit);
    Ok(page(rows.iter().map(|row| views::trigger(&app.engine, row)).collect(), next))
}

pub async fn show(app: State, uri: Uri, Path(id): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    Ok(answer(200, views::trigger(&app.engine, &get(&app, &id).await?)))
}

pub async fn change(app: State, uri: Uri, Path(id): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let id = trigger_id(&id)?;
    let tree = body::definition(&headers, body).await?;
    let row = app.engine.change_trigger(app.org(), id, &tree).await?.map_err(|problems| {
        // They are about the whole that came of it, which has no lines anybody wrote.
        let placeless = problems.iter().map(|problem| {
            let mut problem = problem_of(problem);
            problem.at = problem.at.map(|at| At { line: None, column: None, ..at });
            problem
        });
        Refusal::of_problems(placeless.collect())
    })?;
    Ok(answer(200, views::trigger(&app.engine, &row)))
}

pub async fn delete(app: State, uri: Uri, Path(id): Path<String>) -> Answer {
    Query::parse(uri.query(), &[])?;
    app.engine.delete_trigger(app.org(), trigger_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn enable(app: State, uri: Uri, path: Path<String>, headers: HeaderMap, body: Body) -> Answer {
    switch(app, uri, path, headers, body, true).await
}

pub async fn disable(app: State, uri: Uri, path: Path<String>, headers: HeaderMap, body: Body) -> Answer {
    switch(app, uri, path, headers, body, false).await
}

async fn switch(app: State, uri: Uri, Path(id): Path<String>, headers: HeaderMap, body: Body, enabled: bool) -> Answer {
    Query::parse(uri.query(), &[])?;
    let id = trigger_id(&id)?;
    let mut given = fields(&headers, body, &["note"]).await?;
    let note = match given.remove("note") {
        None | Some(Value::Null) => None,
        Some(Value::String(note)) if note.len() <= NOTE_MAX => Some(note),
        Some(_) => return Err(wrong("note", &format!("a text of at most {NOTE_MAX} bytes"))),
    };
    let row = app.engine.switch_trigger(app.org(), id, enabled, note).await?;
    Ok(answer(200, views::trigger(&app.engine, &row)))
}

/// Fires it now, with `variables` as the run's `trigger.body`.
pub async fn run(app: State, uri: Uri, Path(id): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let id = trigger_id(&id)?;
    let mut given = fields(&headers, body, &["variables"]).await?;
    let variables = variables(&mut given);
    let key = key(&headers, "run", &variables)?;
    let started = app.engine.run_trigger(app.org(), id, variables, key).await?;
    Ok(answer(if started.deduplicated { 200 } else { 201 }, started_view(&started)))
}

/// Starts a run of a workflow by hand, without any trigger.
pub async fn run_by_hand(app: State, uri: Uri, headers: HeaderMap, body: Body) -> Answer {
    Query::parse(uri.query(), &[])?;
    let known = ["workflow", "variables", "client_request_id"];
    let mut given = fields(&headers, body, &known).await?;
    let Some(Value::String(workflow)) = given.remove("workflow") else {
        return Err(wrong("workflow", "the id, name or slug of a workflow"));
    };
    let request_id = match given.remove("client_request_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) if (1..=REQUEST_ID_MAX).contains(&id.len()) => Some(id),
        Some(_) => return Err(wrong("client_request_id", &format!("a text of 1 to {REQUEST_ID_MAX} bytes"))),
    };
    let variables = variables(&mut given);
    let started = app.engine.run_by_hand(app.org(), &workflow, variables, request_id.as_deref()).await?;
    Ok(answer(if started.deduplicated { 200 } else { 201 }, started_view(&started)))
}

pub async fn preview(app: State, uri: Uri, Path(id): Path<String>) -> Answer {
    let query = Query::parse(uri.query(), &["count", "from"])?;
    let (count, from) = (count(&query)?, query.time("from")?.unwrap_or_else(|| app.engine.now()));
    let row = get(&app, &id).await?;
    let moments = app.engine.preview(&row, from, count)?.ok_or_else(|| {
        Refusal::new(Code::InvalidParameter, format!("a {} trigger has no schedule", row.kind.as_str())).at("trigger")
    })?;
    let config: Value = serde_json::from_str(&row.config).unwrap_or_default();
    let zone = config["timezone"].as_str().and_then(Zone::get);
    let moment = |(nominal, at): (Timestamp, Timestamp)| MomentView {
        at: rfc3339(nominal),
        local: zone.as_ref().map(|zone| zone.local(nominal)),
        starts_at: rfc3339(at),
    };
    Ok(page(moments.into_iter().map(moment).collect(), None))
}

/// The same for a schedule that is not there yet.
pub async fn preview_of(app: State, uri: Uri) -> Answer {
    let query = Query::parse(uri.query(), &["cron", "timezone", "count", "from"])?;
    let (count, from) = (count(&query)?, query.time("from")?.unwrap_or_else(|| app.engine.now()));
    let text = query.get("cron").ok_or_else(|| invalid("cron", "", "five fields such as `30 2 * * *`"))?;
    let cron = Cron::parse(text).map_err(|problems| {
        let problem = problems.into_iter().next();
        let (message, hint) = problem.map(|problem| (problem.message, problem.hint)).unwrap_or_default();
        Refusal::new(Code::InvalidParameter, message).hint(hint.unwrap_or_default()).at("cron")
    })?;
    let name = query.get("timezone").unwrap_or(Zone::UTC);
    let zone = Zone::get(name).ok_or_else(|| invalid("timezone", name, "a name such as Europe/Berlin"))?;
    let all = std::iter::successors(cron.next_after(from, &zone), |at| cron.next_after(*at, &zone));
    let moment = |at: Timestamp| MomentView { at: rfc3339(at), local: Some(zone.local(at)), starts_at: rfc3339(at) };
    Ok(page(all.take(count).map(moment).collect(), None))
}

fn count(query: &Query) -> Result<usize, Refusal> {
    let read = |text: &str| text.parse().ok().filter(|n| (1..=PREVIEW_MAX).contains(n));
    Ok(query.read("count", &format!("a number from 1 to {PREVIEW_MAX}"), read)?.unwrap_or(PREVIEW))
}

pub async fn deliveries(app: State, uri: Uri, Path(id): Path<String>) -> Answer {
    let query = Query::parse(uri.query(), &["limit", "cursor"])?;
    let limit = query.limit()?;
    let before = query.read("cursor", "the `next` of an earlier page", |text| text.parse().ok())?;
    let row = get(&app, &id).await?;
    let mut rows = app.engine.deliveries(app.org(), row.id, before, limit + 1).await?;
    let next = (rows.len() > limit).then(|| rows[limit - 1].seq.to_string());
    rows.truncate(limit);
    Ok(page(rows.iter().map(views::delivery).collect(), next))
}

pub async fn redeliver(
    app: State,
    uri: Uri,
    Path((id, delivery)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer {
    Query::parse(uri.query(), &[])?;
    let id = trigger_id(&id)?;
    let key = key(&headers, "redeliver", delivery.as_bytes())?;
    let delivered = app.engine.redeliver(app.org(), id, &delivery, key).await?;
    Ok(answer(if delivered.started.deduplicated { 200 } else { 201 }, webhooks::view(&delivered)))
}

async fn get(app: &App, id: &str) -> Result<TriggerRow, Refusal> {
    let found = app.engine.trigger(app.org(), trigger_id(id)?).await?;
    found.ok_or_else(|| Refusal::not_found("trigger", id))
}

fn trigger_id(text: &str) -> Result<TriggerId, Refusal> {
    TriggerId::parse(text).ok_or_else(|| {
        let text: String = text.chars().take(80).collect();
        Refusal::new(Code::MalformedId, format!("`{text}` is not a trigger id"))
            .hint("trigger ids look like trg_01jz8k3w9mz6xq4v7n5t2c0b1d")
    })
}

/// The caller's key, and what it was used for.
fn key(headers: &HeaderMap, what: &str, content: &[u8]) -> Result<Option<Key>, Refusal> {
    let fingerprint = || Sha256::new().chain_update(what).chain_update(b"\0").chain_update(content).finalize().into();
    Ok(idempotency_key(headers)?.map(|key| (key, fingerprint())))
}

/// The fields of a small body, which may be missing altogether.
async fn fields(headers: &HeaderMap, body: Body, known: &[&str]) -> Result<Map<String, Value>, Refusal> {
    let bytes = body::payload(headers, body).await?;
    let expected = || known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let wrong =
        |message: String| Refusal::new(Code::InvalidBody, message).hint(format!("allowed here: {}", expected()));
    match serde_json::from_slice(&bytes) {
        Ok(Value::Null) => Ok(Map::new()),
        Ok(Value::Object(fields)) => {
            let fields: Map<String, Value> = fields
                .into_iter()
                .map(|(name, value)| {
                    (if name == "clientRequestId" { "client_request_id".to_owned() } else { name }, value)
                })
                .collect();
            match fields.keys().find(|name| !known.contains(&name.as_str())) {
                None => Ok(fields),
                Some(name) => {
                    let name: String = name.chars().take(80).collect();
                    let refusal = wrong(format!("there is no field `{name}`"));
                    let refusal = match lang::suggest(&name, known) {
                        Some(hint) => refusal.hint(hint),
                        None => refusal,
                    };
                    Err(refusal.at(name))
                }
            }
        }
        _ => Err(wrong("the body must be an object".to_owned())),
    }
}

fn wrong(field: &str, expected: &str) -> Refusal {
    Refusal::new(Code::InvalidBody, format!("`{field}` must be {expected}")).at(field)
}

fn variables(given: &mut Map<String, Value>) -> Bytes {
    given.remove("variables").unwrap_or_else(|| json!({})).to_string().into()
}
