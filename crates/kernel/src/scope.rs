//! The values that a path can read: the trigger, the results of settled steps, callback URLs.
//!
//! [`Scope`] is the interface between a run and the languages ([`expr`](crate::expr),
//! [`template`](crate::template)): they ask for a [`Ref`] and get a JSON value, wherever it is stored.

use crate::path::Ref;
use serde_json::Value;
use std::borrow::Cow;

pub trait Scope {
    /// `Ok(None)` when there is no such value; a JSON null is `Ok(Some(Null))`.
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved>;
}

/// Why a value cannot be read, although it may exist.
#[derive(Clone, Debug, PartialEq)]
pub enum Unresolved {
    /// The payload is in the store; fetch it and advance again.
    Stored(u32),
    /// The response was truncated, so no part of it can be trusted.
    Truncated { step: String, keys: String },
}

/// Follows `keys` into a value. A number indexes a list, or names a key of an object.
pub fn walk<'v>(mut value: &'v Value, keys: &[String]) -> Option<&'v Value> {
    for key in keys {
        value = match value {
            Value::Object(map) => map.get(key)?,
            Value::Array(list) => list.get(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(value)
}

#[cfg(test)]
pub mod tests {
    //! The context of tables A.2 and A.3.

    use super::*;
    use crate::path::{Problem, RawPath, Root, TaskField};
    use serde_json::json;

    pub struct Fixture(Value);

    pub fn fixture() -> Fixture {
        Fixture(json!({
            "trigger.body": { "id": 5, "o": { "k": [1, 2], "words": ["paid", "open"] }, "t": "x", "slash": "a/b?c", "dots": "..",
                              "crlf": "a\r\nb", "inject": "{{trigger.body.id}}", "quote": "\"},{\"", "long": "y".repeat(400) },
            "trigger.headers": { "x-a": "b" },
            "a": { "status": "success", "status_code": 200,
                   "body": { "approved": true, "n": 7, "s": "paid", "z": null, "list": [{ "k": 1 }] } },
            "sk": { "status": "skipped", "status_code": null, "body": null },
            "big": { "status": "success", "status_code": 200 },
        }))
    }

    impl Scope for Fixture {
        fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved> {
            let step = ["a", "sk", "big"][path.node as usize];
            if step == "big" && path.field == TaskField::Body {
                return Err(Unresolved::Truncated { step: step.into(), keys: format!("body.{}", path.keys.join(".")) });
            }
            Ok(match path.root {
                Root::TriggerBody => walk(&self.0["trigger.body"], &path.keys),
                Root::TriggerHeaders => self.0["trigger.headers"].get(path.keys[0].to_lowercase()),
                Root::TriggerScheduledFor => None,
                Root::Task => walk(&self.0[step][path.field.as_str()], &path.keys),
                Root::WaitUrl => return Ok(Some(Cow::Owned(json!(format!("http://h/wh/{step}"))))),
                _ => None,
            }
            .map(Cow::Borrowed))
        }
    }

    /// A resolver that knows the steps `a`, `sk` and `big`.
    pub fn resolve(raw: &RawPath<'_>) -> Result<Ref, Problem> {
        let names: Vec<&str> = raw.segments.iter().map(|s| s.name.as_str()).collect();
        let keys = |n: usize| names[n..].iter().map(|s| s.to_string()).collect();
        let text = raw.text.to_owned();
        let step = |name: &str| ["a", "sk", "big"].iter().position(|s| *s == name).map(|i| i as u32);
        let unknown = || Problem::new("unknown_step", "no such step", raw.segments.get(1).map_or(raw.at, |s| s.at), 1);
        Ok(match names.as_slice() {
            ["trigger", "body", ..] => Ref { root: Root::TriggerBody, keys: keys(2), text, ..Default::default() },
            ["trigger", "headers", _] => Ref { root: Root::TriggerHeaders, keys: keys(2), text, ..Default::default() },
            ["tasks", name, field, ..] => {
                let field = TaskField::parse(field).ok_or_else(unknown)?;
                Ref {
                    root: Root::Task,
                    node: step(name).ok_or_else(unknown)?,
                    field,
                    keys: keys(3),
                    text,
                    ..Default::default()
                }
            }
            ["wait", name, "url"] => {
                Ref { root: Root::WaitUrl, node: step(name).ok_or_else(unknown)?, text, ..Default::default() }
            }
            _ => return Err(unknown()),
        })
    }
}
