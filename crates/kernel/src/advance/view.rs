//! The values of a run that conditions and templates can read.

use super::Context;
use crate::event::{Origin, Pair};
use crate::path::{Ref, Root, TaskField};
use crate::payload::{Payload, Payloads};
use crate::plan::Plan;
use crate::run::Run;
use crate::scope::{Scope, Unresolved};
use crate::status::Outcome;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

pub struct View<'a> {
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub context: &'a Context<'a>,
    /// Payloads that arrived in the current advance.
    pub fresh: Option<&'a Payloads>,
}

impl Scope for View<'_> {
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved> {
        let value = match path.root {
            Root::TriggerBody => take(self.value(&self.run.state.origin.body)?, &path.keys),
            Root::TriggerHeaders => header(&self.run.state.origin.headers, &path.keys),
            Root::TriggerScheduledFor => fire_time(&self.run.state.origin),
            Root::WaitUrl => Some(Value::String((self.context.wait_url)(&self.plan.node(path.node).key))),
            Root::Task => self.task(path)?,
        };
        Ok(value.map(Cow::Owned))
    }
}

/// The values that exist before the run does: the body and headers of the trigger.
pub struct TriggerScope<'a>(pub &'a Origin);

impl Scope for TriggerScope<'_> {
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved> {
        let value = match path.root {
            Root::TriggerBody => take(self.0.body.value(&Payloads::new()).map_err(Unresolved::Stored)?, &path.keys),
            Root::TriggerHeaders => header(&self.0.headers, &path.keys),
            Root::TriggerScheduledFor => fire_time(self.0),
            Root::WaitUrl | Root::Task => None,
        };
        Ok(value.map(Cow::Owned))
    }
}

impl View<'_> {
    fn task(&self, path: &Ref) -> Result<Option<Value>, Unresolved> {
        let step = self.run.step(path.node);
        Ok(match path.field {
            TaskField::Status => Some(json!(step.status().as_str())),
            TaskField::Ok => Some(json!(step.outcome() == Some(Outcome::Ok))),
            TaskField::Failed => Some(json!(matches!(step.outcome(), Some(Outcome::Failed | Outcome::TimedOut)))),
            TaskField::StatusCode => Some(json!(step.response.as_ref().and_then(|r| r.status_code))),
            TaskField::Headers => header(step.response.as_ref().map_or(&[], |r| &r.headers), &path.keys),
            TaskField::Error => {
                let error = step.failure.as_ref().map(|f| json!({ "code": f.code, "message": f.message }));
                take(error.unwrap_or(Value::Null), &path.keys)
            }
            TaskField::Body => match step.body() {
                None => take(Value::Null, &path.keys),
                Some(body) if body.truncated => {
                    let keys =
                        ["body"].into_iter().chain(path.keys.iter().map(String::as_str)).collect::<Vec<_>>().join(".");
                    return Err(Unresolved::Truncated { step: self.plan.node(path.node).key.clone(), keys });
                }
                Some(body) => take(self.value(body)?, &path.keys),
            },
        })
    }

    fn value(&self, payload: &Payload) -> Result<Value, Unresolved> {
        let fresh = self.fresh.filter(|fresh| payload.stored.is_some_and(|n| fresh.contains_key(&n)));
        payload.value(fresh.unwrap_or(self.context.payloads)).map_err(Unresolved::Stored)
    }
}

/// Follows `keys` into a value. Moves parts out instead of copying them.
fn take(mut value: Value, keys: &[String]) -> Option<Value> {
    for key in keys {
        value = match value {
            Value::Object(mut map) => map.swap_remove(key)?,
            Value::Array(mut list) => {
                let index = key.parse::<usize>().ok().filter(|i| *i < list.len())?;
                list.swap_remove(index)
            }
            _ => return None,
        };
    }
    Some(value)
}

/// The fire time of the schedule that started the run, if a schedule did.
fn fire_time(origin: &Origin) -> Option<Value> {
    origin.nominal.map(|at| json!(at.to_string()))
}

/// All headers, or the header with this name, ignoring case.
fn header(headers: &[Pair], keys: &[String]) -> Option<Value> {
    match keys {
        [] => Some(Value::Object(headers.iter().map(|h| (h.name.clone(), json!(h.value))).collect::<Map<_, _>>())),
        [name] => headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| json!(h.value)),
        _ => None,
    }
}
