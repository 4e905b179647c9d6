//! Starts many runs with one request: all of them, or none with a list of every problem.

use super::workflows::{KEY_MAX, LABELS_MAX, fingerprint, idempotency_key, resolve};
use crate::contract::{Route, params, post};
use crate::error::problem_of;
use crate::query::{LABEL, Query, is_label};
use crate::{Answer, Path, Refusal, State, body, spelling};
use api::{At, BatchItemView, BatchRequest, Code, Data, Problem};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use engine::{Idempotency, Source, StartRequest};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

const ITEMS_MAX: usize = 1_000;

/// One item of a batch, parsed.
#[derive(Default)]
struct ParsedItem {
    body: Option<Bytes>,
    key: Option<String>,
    labels: Vec<(String, String)>,
}

pub fn routes() -> Vec<Route> {
    const PATH: &str = "/api/v1/workflows/{workflow}/trigger-batch";
    let about = "the runs in the order of the items, started now or by an earlier request with the same key";
    let repeated = "the runs in the order of the items, all of them started by earlier requests with the same keys";
    let batch = post(PATH, trigger, "trigger_batch", "Start many runs, all of them or none")
        .query(&[params::ACTOR])
        .takes::<BatchRequest>()
        .idempotent()
        .answers::<Vec<BatchItemView>>(201, about)
        .answers::<Vec<BatchItemView>>(200, repeated)
        .refuses(&[Code::WorkflowDisabled, Code::ConcurrencyKeyUnresolved, Code::InvalidInput])
        .refuses(&[Code::RunDamaged, Code::RunNeedsUpgrade]);
    vec![batch]
}

pub async fn trigger(app: State, query: Query, Path(key): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let bytes = body::payload_of(&headers, body, body::BATCH_MAX).await?;
    let items = read(&bytes)?;
    let actor = query.actor()?;
    let whole = idempotency_key(&headers)?;
    if whole.is_some() && items.iter().any(|item| item.key.is_some()) {
        let message = "a batch has one key in the header, or keys of its items, not both";
        return Err(Refusal::new(Code::InvalidHeader, message).at("Idempotency-Key"));
    }
    let workflow = resolve(&app, &key).await?;
    let kept = crate::headers::kept(&headers);
    // The key of a batch is a key for each of its runs, and all of them stand for the whole request.
    let whole = whole.map(|key| (key, fingerprint(workflow.row.id, &bytes, &[], "")));
    let requests = items.into_iter().enumerate().map(|(i, item)| {
        let body = item.body.unwrap_or_else(|| Bytes::from_static(b"null"));
        let idempotency = match (item.key, &whole) {
            (Some(key), _) => Some((key, fingerprint(workflow.row.id, &body, &item.labels, ""))),
            (None, Some((key, fingerprint))) => Some((format!("{key}[{i}]"), *fingerprint)),
            (None, None) => None,
        };
        StartRequest {
            idempotency: idempotency.map(|(key, fingerprint)| Idempotency { scope: None, key, fingerprint }),
            headers: kept.clone(),
            labels: item.labels,
            source: Source { actor: actor.clone(), ..Source::default() },
            ..StartRequest::new(app.org(), workflow.clone(), body)
        }
    });
    let started = app.engine.runs.start_all(requests.collect()).await?;
    let view = |item: engine::services::StartedRun| BatchItemView {
        run_id: item.run.to_string(),
        status: item.status.map_or("deleted", |status| status.as_str()).into(),
        deduplicated: item.deduplicated,
    };
    let data: Vec<BatchItemView> = started.into_iter().map(view).collect();
    let is_repeat = data.iter().all(|item| item.deduplicated);
    let status = if is_repeat { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Data { data })).into_response())
}

fn read(bytes: &Bytes) -> Result<Vec<ParsedItem>, Refusal> {
    parse(bytes).or_else(|refusal| match spelling::corrected::<BatchRequest>(bytes)? {
        Some(corrected) => parse(&corrected),
        None => Err(refusal),
    })
}

fn parse(bytes: &Bytes) -> Result<Vec<ParsedItem>, Refusal> {
    let wrong = |message: String, at: &str| {
        let hint =
            "expected {\"items\": [{\"body\": any JSON, \"idempotency_key\"?: text, \"labels\"?: {key: text}}, …]}";
        Refusal::new(Code::InvalidBody, message).hint(hint).at(at)
    };
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_slice(bytes).map_err(|_| wrong("the body must be an object".into(), ""))?;
    if let Some(name) = fields.keys().find(|name| *name != "items") {
        return Err(wrong(format!("the body has no field `{name}`"), name));
    }
    let items = fields.get("items").and_then(|raw| serde_json::from_str::<Vec<&RawValue>>(raw.get()).ok());
    let items = items.ok_or_else(|| wrong("`items` must be a list".into(), "items"))?;
    if items.is_empty() || items.len() > ITEMS_MAX {
        return Err(wrong(format!("there are {} items, expected 1 to {ITEMS_MAX}", items.len()), "items"));
    }
    let mut problems = Vec::new();
    let items: Vec<ParsedItem> = items.iter().enumerate().map(|(i, raw)| item(i, raw, &mut problems)).collect();
    if problems.is_empty() { Ok(items) } else { Err(Refusal::of_problems(Code::InvalidBody, problems)) }
}

/// Parses one item and adds its problems to those of the other items.
fn item(index: usize, raw: &RawValue, problems: &mut Vec<Problem>) -> ParsedItem {
    let mut add_problem = |field: &str, code: Code, message: String| {
        let dot = if field.is_empty() { "" } else { "." };
        let at = Some(At { path: format!("items[{index}]{dot}{field}"), line: None, column: None });
        problems.push(Problem { code: code.as_str().to_owned(), message, at, ..Default::default() });
    };
    let mut item = ParsedItem::default();
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(raw.get()) else {
        add_problem("", Code::InvalidBody, "an item must be an object".into());
        return item;
    };
    if !fields.contains_key("body") {
        add_problem("body", Code::InvalidBody, "an item needs a `body`, which may be `null`".into());
    }
    for (name, raw) in fields {
        let text = raw.get();
        match name.as_str() {
            "body" if text.len() > body::PAYLOAD_MAX => {
                add_problem("body", Code::TooLarge, format!("the body is larger than {} bytes", body::PAYLOAD_MAX));
            }
            "body" => match lang::check_json(text.as_bytes()) {
                Ok(()) => item.body = Some(Bytes::copy_from_slice(text.as_bytes())),
                Err(problem) => add_problem("body", Code::InvalidBody, problem_of(&problem).message),
            },
            "idempotency_key" => match serde_json::from_str::<Option<String>>(text) {
                Ok(None) => {}
                Ok(Some(key)) if (1..=KEY_MAX).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()) => {
                    item.key = Some(key);
                }
                _ => {
                    add_problem(&name, Code::InvalidBody, format!("a key has 1 to {KEY_MAX} visible ASCII characters"))
                }
            },
            "labels" => match serde_json::from_str::<BTreeMap<String, Value>>(text) {
                Ok(labels) if labels.len() > LABELS_MAX => {
                    add_problem("labels", Code::InvalidBody, format!("a run has at most {LABELS_MAX} labels"));
                }
                Ok(labels) => {
                    for (key, value) in labels {
                        match value {
                            Value::String(value) if is_label(&key, &value) => item.labels.push((key, value)),
                            _ => {
                                add_problem(&format!("labels.{key}"), Code::InvalidBody, format!("a label is {LABEL}"))
                            }
                        }
                    }
                }
                Err(_) => {
                    add_problem("labels", Code::InvalidBody, "labels must be an object whose values are texts".into())
                }
            },
            _ => add_problem(&name, Code::InvalidBody, format!("an item has no field `{name}`")),
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(json: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let items: Vec<&RawValue> = serde_json::from_str(json).unwrap();
        for (i, raw) in items.iter().enumerate() {
            item(i, raw, &mut problems);
        }
        problems.into_iter().map(|problem| problem.at.unwrap().path).collect()
    }

    #[test]
    fn every_problem_of_every_item_is_reported_with_its_index() {
        assert!(paths(r#"[{"body": 1, "idempotency_key": null}]"#).is_empty(), "the same as no key");
        assert!(paths(r#"[{"body": 1}, {"body": null, "idempotency_key": "k", "labels": {"a": "b"}}]"#).is_empty());
        let json = r#"[{"body": 1, "x": 1}, 7, {"labels": {"a": 1, "b c": "d"}}, {"body": 2, "idempotency_key": ""}]"#;
        let expected = [
            "items[0].x",
            "items[1]",
            "items[2].body",
            "items[2].labels.a",
            "items[2].labels.b c",
            "items[3].idempotency_key",
        ];
        assert_eq!(paths(json), expected);
    }
}
