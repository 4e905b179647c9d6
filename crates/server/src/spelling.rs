//! Fields of a request in camelCase, which mean the same as ours (decision 16).
//!
//! The schema of a request says where its fields are. What it leaves open (a payload, a result, labels) belongs to the
//! client and stays as it is. A request in our own spelling is never looked at: only one that cannot be read comes here.

use crate::Refusal;
use crate::query::two_spellings;
use api::Code;
use bytes::Bytes;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

/// A request of type `T` in our own spelling, or `None` if there is nothing to respell.
pub fn corrected<T: JsonSchema>(bytes: &[u8]) -> Result<Option<Bytes>, Refusal> {
    let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else { return Ok(None) };
    let schema = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    let root = Respelling { definitions: &schema["$defs"] };
    let is_changed = root.respell(&mut body, &root.alternatives(&schema), "")?;
    Ok(is_changed.then(|| body.to_string().into()))
}

struct Respelling<'s> {
    definitions: &'s Value,
}

impl<'s> Respelling<'s> {
    /// A schema, and every schema that it refers to or offers as a choice.
    fn alternatives(&self, schema: &'s Value) -> Vec<&'s Value> {
        let target = schema["$ref"].as_str().and_then(|path| self.definitions.get(path.rsplit('/').next()?));
        let choices = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema[word].as_array()).flatten();
        let inner = target.into_iter().chain(choices).flat_map(|inner| self.alternatives(inner));
        std::iter::once(schema).chain(inner).collect()
    }

    /// Respells the fields of a value that one of these schemas describes; true if there were any.
    fn respell(&self, value: &mut Value, schemas: &[&'s Value], path: &str) -> Result<bool, Refusal> {
        let mut is_changed = false;
        match value {
            Value::Object(fields) => {
                let of = |name: &str| -> Vec<&'s Value> {
                    let properties = schemas.iter().filter_map(|schema| schema["properties"].get(name));
                    properties.flat_map(|property| self.alternatives(property)).collect()
                };
                let mut respelt = Map::with_capacity(fields.len());
                for (key, mut inner) in std::mem::take(fields) {
                    let known = Some(lang::field_name(&key)).filter(|name| !of(name).is_empty());
                    let name = known.map_or_else(|| key.clone(), |name| name.into_owned());
                    let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    is_changed |= name != key;
                    is_changed |= self.respell(&mut inner, &of(&name), &place)?;
                    if respelt.insert(name.clone(), inner).is_some() {
                        let camel = if name == key { "its camelCase spelling" } else { &key };
                        return Err(two_spellings(Code::InvalidBody, &name, camel).at(place));
                    }
                }
                *fields = respelt;
            }
            Value::Array(items) => {
                let of_items = schemas.iter().filter_map(|schema| schema.get("items"));
                let of_items: Vec<&Value> = of_items.flat_map(|items| self.alternatives(items)).collect();
                for (i, item) in items.iter_mut().enumerate() {
                    is_changed |= self.respell(item, &of_items, &format!("{path}[{i}]"))?;
                }
            }
            _ => {}
        }
        Ok(is_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{BatchRequest, ManualRunRequest, TaskRequests, WorkRequest};
    use serde_json::json;

    fn respelt<T: JsonSchema>(body: Value) -> Option<Value> {
        let corrected = corrected::<T>(body.to_string().as_bytes()).unwrap_or_else(|_| panic!("{body}"));
        corrected.map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn decision_16_fields_are_respelt_and_data_is_not() {
        assert_eq!(
            respelt::<WorkRequest>(json!({
                "workerId": "w", "types": ["a"], "credits": 1,
                "done": [{ "taskId": "t", "claimToken": "c", "result": { "taskId": 1 } },
                         { "task_id": "t", "claimToken": "c", "error": { "message": "m" }, "retryAfter": "1s" }],
                "heartbeats": [{ "taskId": "t", "claimToken": "c", "progress": { "pageNumber": 7 } }],
            })),
            Some(json!({
                "worker_id": "w", "types": ["a"], "credits": 1,
                "done": [{ "task_id": "t", "claim_token": "c", "result": { "taskId": 1 } },
                         { "task_id": "t", "claim_token": "c", "error": { "message": "m" }, "retry_after": "1s" }],
                "heartbeats": [{ "task_id": "t", "claim_token": "c", "progress": { "pageNumber": 7 } }],
            }))
        );
        let task = |key: &str| json!({ "type": "a.v1", "payload": { "runAt": 1 }, "labels": { "runAt": "x" }, key: "2027-01-01T00:00:00Z" });
        assert_eq!(respelt::<TaskRequests>(task("runAt")), Some(task("run_at")));
        assert_eq!(respelt::<TaskRequests>(json!([task("runAt")])), Some(json!([task("run_at")])));
        assert_eq!(
            respelt::<BatchRequest>(json!({ "items": [{ "body": { "aB": 1 }, "idempotencyKey": "k" }] })),
            Some(json!({ "items": [{ "body": { "aB": 1 }, "idempotency_key": "k" }] }))
        );
        assert_eq!(
            respelt::<ManualRunRequest>(json!({ "workflowId": "w", "clientRequestId": "r", "variables": { "aB": 1 } })),
            Some(json!({ "workflow": "w", "client_request_id": "r", "variables": { "aB": 1 } }))
        );
        assert_eq!(respelt::<ManualRunRequest>(json!({ "workflow": "w", "noSuchField": 1 })), None);
    }

    #[test]
    fn decision_16_both_spellings_at_once_are_refused() {
        for body in [
            json!({ "workflow": "w", "workflowId": "w" }),
            json!({ "workflowId": "w", "workflow": "w" }),
            json!({ "workflow": "w", "client_request_id": "r", "clientRequestId": "r" }),
        ] {
            assert!(corrected::<ManualRunRequest>(body.to_string().as_bytes()).is_err(), "{body}");
        }
    }
}
