//! The values of a run that conditions and templates can read.

use super::Context;
use crate::event::{Origin, Pair};
use crate::path::{Ref, Root, TaskField};
use crate::payload::{Payload, Payloads};
use crate::plan::Plan;
use crate::run::Run;
use crate::scope::{Scope, Unresolved, walk};
use crate::status::Outcome;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bodies of this many bytes together stay parsed during an advance: a parsed body takes several times its bytes.
const PARSED_MAX: u64 = 4 * 1024 * 1024;

pub struct View<'a> {
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub context: &'a Context<'a>,
    /// Payloads that arrived in the current advance.
    pub fresh: Option<&'a Payloads>,
    pub parsed: &'a ParsedBodies,
}

/// The bodies that one advance has parsed. However many placeholders read a body, it is parsed once.
#[derive(Default)]
pub struct ParsedBodies(RefCell<Parsed>);

#[derive(Default)]
struct Parsed {
    /// By step; `None` is the body of the trigger.
    values: BTreeMap<Option<u32>, Rc<Value>>,
    /// Their length before parsing.
    bytes: u64,
}

impl ParsedBodies {
    fn get_or_parse(
        &self,
        of: Option<u32>,
        bytes: u64,
        parse: impl FnOnce() -> Result<Value, u32>,
    ) -> Result<Rc<Value>, u32> {
        let mut parsed = self.0.borrow_mut();
        if let Some(value) = parsed.values.get(&of) {
            return Ok(value.clone());
        }
        let value = Rc::new(parse()?);
        if parsed.bytes + bytes > PARSED_MAX {
            *parsed = Parsed::default();
        }
        parsed.bytes += bytes;
        parsed.values.insert(of, value.clone());
        Ok(value)
    }

    /// An event may have given the step another body.
    pub(super) fn forget(&mut self, step: u32) {
        self.0.get_mut().values.remove(&Some(step));
    }
}

impl Scope for View<'_> {
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved> {
        let value = match path.root {
            Root::TriggerBody => self.read(None, &self.run.state.origin.body, &path.keys)?,
            Root::TriggerHeaders => header(&self.run.state.origin.headers, &path.keys),
            Root::TriggerScheduledFor => fire_time(&self.run.state.origin),
            Root::WaitUrl => Some(Value::String((self.context.wait_url)(&self.plan.node(path.node).key))),
            Root::Task => self.task(path)?,
        };
        Ok(value.map(Cow::Owned))
    }
}

/// The values that exist before the run does: the body and headers of the trigger.
pub struct TriggerScope<'a> {
    origin: &'a Origin,
    body: OnceCell<Value>,
}

impl<'a> TriggerScope<'a> {
    pub fn new(origin: &'a Origin) -> Self {
        TriggerScope { origin, body: OnceCell::new() }
    }
}

impl Scope for TriggerScope<'_> {
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved> {
        let value = match path.root {
            Root::TriggerBody => {
                let none = Payloads::new();
                let bytes = self.origin.body.bytes(&none).map_err(Unresolved::Stored)?;
                let body = self.body.get_or_init(|| self.origin.body.interpret(bytes));
                return Ok(walk(body, &path.keys).map(Cow::Borrowed));
            }
            Root::TriggerHeaders => header(&self.origin.headers, &path.keys),
            Root::TriggerScheduledFor => fire_time(self.origin),
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
                walk(&error.unwrap_or(Value::Null), &path.keys).cloned()
            }
            TaskField::Body => match step.body() {
                None => walk(&Value::Null, &path.keys).cloned(),
                Some(body) if body.truncated => {
                    let keys =
                        ["body"].into_iter().chain(path.keys.iter().map(String::as_str)).collect::<Vec<_>>().join(".");
                    return Err(Unresolved::Truncated { step: self.plan.node(path.node).key.clone(), keys });
                }
                Some(body) => self.read(Some(path.node), body, &path.keys)?,
            },
        })
    }

    /// Reads inside the body of a step, or of the trigger.
    fn read(&self, of: Option<u32>, body: &Payload, keys: &[String]) -> Result<Option<Value>, Unresolved> {
        let fresh = self.fresh.filter(|fresh| body.stored.is_some_and(|n| fresh.contains_key(&n)));
        let parse = || body.value(fresh.unwrap_or(self.context.payloads));
        let value = self.parsed.get_or_parse(of, body.len, parse).map_err(Unresolved::Stored)?;
        Ok(walk(&value, keys).cloned())
    }
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
