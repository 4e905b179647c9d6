//! The values of a run that conditions and templates can read.

use super::start::over_size_failure;
use super::{Context, STATE_MAX, Stop};
use crate::event::{Failure, Origin, Pair};
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

#[derive(Clone, Copy)]
pub struct View<'a> {
    pub plan: &'a Plan,
    pub run: &'a Run,
    pub context: &'a Context<'a>,
    /// Payloads that arrived in the current advance.
    pub fresh: Option<&'a Payloads>,
    pub parsed: &'a ParsedBodies,
    /// The group whose steps a path can read, beside those of the groups around it. `None` for the root group.
    pub group: Option<u32>,
    /// The iteration that is about to be opened: its loop, and its number.
    pub next_iteration: Option<(u32, u32)>,
}

impl<'a> View<'a> {
    /// What the root group can read, of payloads that are stored.
    pub fn new(plan: &'a Plan, run: &'a Run, context: &'a Context<'a>, parsed: &'a ParsedBodies) -> View<'a> {
        View { plan, run, context, fresh: None, parsed, group: None, next_iteration: None }
    }
}

/// The bodies that one advance has parsed. However many placeholders read a body, it is parsed once.
#[derive(Default)]
pub struct ParsedBodies(RefCell<Parsed>);

#[derive(Default)]
struct Parsed {
    values: BTreeMap<BodyOwner, Rc<Value>>,
    /// Their length before parsing.
    bytes: u64,
}

/// What a parsed body belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BodyOwner {
    Trigger,
    /// The defaults of the variables.
    Defaults,
    Step(u32),
    /// What failed inside of a step that a fork did not run.
    CopiedErrors(u32),
    /// A piece of the list of a loop, by its first item.
    Page(u32, u32),
    /// The result of an iteration of a loop.
    Iteration(u32, u32),
}

impl ParsedBodies {
    fn get_or_parse(
        &self,
        of: BodyOwner,
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
        self.0.get_mut().values.remove(&BodyOwner::Step(step));
    }
}

impl Scope for View<'_> {
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, Value>>, Unresolved> {
        let value = match path.root {
            Root::TriggerBody => self.read(BodyOwner::Trigger, &self.run.state.origin.body, &path.keys)?,
            Root::TriggerHeaders => header(&self.run.state.origin.headers, &path.keys),
            Root::TriggerScheduledFor => fire_time(&self.run.state.origin),
            Root::WaitUrl => {
                let url = |step| (self.context.wait_url)(&self.run.callback_key(self.plan, step));
                self.step_of(path.node).map(|step| Value::String(url(step)))
            }
            Root::Task => self.task(path)?,
            Root::Index => self.iteration_of(path.node).map(|(_, index)| json!(index)),
            Root::Item => self.item(path)?,
            Root::Last => self.last_result(path)?,
            Root::Variables => self.variables(path)?,
            Root::Outputs => walk(&self.outputs()?, &path.keys).cloned(),
            Root::Output => self.output(path.node, &path.keys)?,
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
            Root::WaitUrl
            | Root::Task
            | Root::Item
            | Root::Index
            | Root::Last
            | Root::Variables
            | Root::Outputs
            | Root::Output => None,
        };
        Ok(value.map(Cow::Owned))
    }
}

impl<'a> View<'a> {
    /// The whole body of the trigger.
    pub fn trigger_body(&self) -> Result<Value, Unresolved> {
        Ok((*self.parsed(BodyOwner::Trigger, &self.run.state.origin.body)?).clone())
    }

    /// What a step can read: the steps beside it, and those of the groups around it. A step that undoes another one reads
    /// what that one can, and its outcome.
    pub fn of(self, step: u32) -> View<'a> {
        let at = self.run.undoes(self.plan, step).unwrap_or(step);
        View { group: self.run.parent(at), ..self }
    }

    /// What the `output` of a group can read: the steps inside of it, too.
    pub fn inside(self, group: u32) -> View<'a> {
        View { group: Some(group), ..self }
    }

    /// What the condition of a loop can read before it opens an iteration.
    pub fn before_iteration(self, of: u32, index: u32) -> View<'a> {
        View { next_iteration: Some((of, index)), ..self.of(of) }
    }

    /// The group, and those around it.
    fn groups(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.group, |group| self.run.parent(*group))
    }

    /// The step of a node, in the group or the nearest one around it that has one.
    fn step_of(&self, node: u32) -> Option<u32> {
        let inner = || {
            let mut groups = self.groups().filter(|group| self.run.group_body(self.plan, *group).is_some());
            groups.find_map(|group| self.run.step_in(Some(group), node))
        };
        self.run.step_in(None, node).or_else(inner)
    }

    /// The loop with this node that the reader is inside of, and the number of its iteration.
    fn iteration_of(&self, node: u32) -> Option<(u32, u32)> {
        let is_of = |of: u32| self.run.node_number(of) == node;
        let mut around = self.groups().filter_map(|group| self.run.iteration(group));
        self.next_iteration.filter(|(of, _)| is_of(*of)).or_else(|| around.find(|(of, _)| is_of(*of)))
    }

    fn item(&self, path: &Ref) -> Result<Option<Value>, Unresolved> {
        let Some((of, index)) = self.iteration_of(path.node) else { return Ok(None) };
        let Some(iterations) = &self.run.step(of).iterations else { return Ok(None) };
        let Some((first, page)) = iterations.pages.range(..=index).next_back() else { return Ok(None) };
        let list = self.parsed(BodyOwner::Page(of, *first), page)?;
        Ok(list.get((index - first) as usize).and_then(|item| walk(item, &path.keys)).cloned())
    }

    /// What the trigger sent, over the defaults: the fields of its body replace those of the same name.
    fn variables(&self, path: &Ref) -> Result<Option<Value>, Unresolved> {
        let body = self.parsed(BodyOwner::Trigger, &self.run.state.origin.body)?;
        let json = || serde_json::from_slice(&self.plan.layout().variables).unwrap_or(Value::Null);
        let defaults = self.parsed.get_or_parse(BodyOwner::Defaults, 0, || Ok(json())).map_err(Unresolved::Stored)?;
        let [name, keys @ ..] = path.keys.as_slice() else {
            let mut all = defaults.as_object().cloned().unwrap_or_default();
            all.extend(body.as_object().cloned().unwrap_or_default());
            return Ok(Some(Value::Object(all)));
        };
        let given = body.as_object().and_then(|body| body.get(name)).or_else(|| defaults.get(name));
        Ok(given.and_then(|value| walk(value, keys)).cloned())
    }

    /// What was written last under a name.
    fn output(&self, number: u32, keys: &[String]) -> Result<Option<Value>, Unresolved> {
        match self.run.output(number) {
            None => Ok(None),
            Some((_, None)) => Ok(walk(&Value::Null, keys).cloned()),
            Some((_, Some(body))) if body.truncated => {
                let step = self.plan.layout().outputs.get(number as usize).map_or("", |output| output.name.as_str());
                Err(Unresolved::Truncated { step: step.to_owned(), keys: keys.join(".") })
            }
            Some((step, Some(body))) => self.read(BodyOwner::Step(step), body, keys),
        }
    }

    fn outputs(&self) -> Result<Value, Unresolved> {
        let mut all = Map::new();
        for (output, number) in self.plan.layout().outputs.iter().zip(0u32..).filter(|(output, _)| !output.is_internal)
        {
            if let Some(value) = self.output(number, &[])? {
                all.insert(output.name.clone(), value);
            }
        }
        Ok(Value::Object(all))
    }

    /// The result of the iteration before; null at first.
    fn last_result(&self, path: &Ref) -> Result<Option<Value>, Unresolved> {
        let Some((of, index)) = self.iteration_of(path.node) else { return Ok(None) };
        let iterations = self.run.step(of).iterations.as_ref();
        let before = index.checked_sub(1).and_then(|before| iterations?.settled.get(&before)?.body.as_ref());
        match before {
            None => Ok(walk(&Value::Null, &path.keys).cloned()),
            Some(body) if body.truncated => {
                Err(Unresolved::Truncated { step: self.plan.node_at(path.node).key.clone(), keys: path.keys.join(".") })
            }
            Some(body) => Ok(walk(&*self.parsed(BodyOwner::Iteration(of, index), body)?, &path.keys).cloned()),
        }
    }

    /// Appends a body as JSON, null when there is none. Notes the numbers of payloads that must be fetched first.
    pub fn append_json(&self, body: Option<&Payload>, out: &mut String, missing: &mut Vec<u32>) -> Result<(), Stop> {
        let Some(body) = body else {
            out.push_str("null");
            return Ok(());
        };
        if body.truncated {
            let message = "a response exceeded the 256KB limit and was truncated, so it cannot be part of a result";
            return Err(Stop::Failed(Failure::new("template_error", message)));
        }
        match body.bytes(self.payloads_for(body)) {
            Err(number) => missing.push(number),
            Ok(bytes) if body.text => *out += &Value::from(String::from_utf8_lossy(bytes)).to_string(),
            Ok(bytes) => *out += &String::from_utf8_lossy(bytes),
        }
        Ok(())
    }

    /// Refuses a payload that would make the run too large.
    pub fn checked(&self, payload: Payload) -> Result<Payload, Stop> {
        match self.run.state.bytes.saturating_add(payload.len) > STATE_MAX {
            true => Err(Stop::Failed(over_size_failure())),
            false => Ok(payload),
        }
    }

    fn payloads_for(&self, body: &Payload) -> &'a Payloads {
        let fresh = self.fresh.filter(|fresh| body.stored.is_some_and(|n| fresh.contains_key(&n)));
        fresh.unwrap_or(self.context.payloads)
    }

    fn task(&self, path: &Ref) -> Result<Option<Value>, Unresolved> {
        let Some(number) = self.step_of(path.node) else { return Ok(None) };
        let step = self.run.step(number);
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
                    return Err(Unresolved::Truncated { step: self.plan.node_at(path.node).key.clone(), keys });
                }
                Some(body) => self.read(BodyOwner::Step(number), body, &path.keys)?,
            },
            TaskField::Errors => match step.copied.as_ref().and_then(|copied| copied.errors.as_ref()) {
                Some(errors) => self.read(BodyOwner::CopiedErrors(number), errors, &path.keys)?,
                None => walk(&errors(self.plan, self.run, number), &path.keys).cloned(),
            },
        })
    }

    /// Reads inside the body of a step, or of the trigger.
    fn read(&self, of: BodyOwner, body: &Payload, keys: &[String]) -> Result<Option<Value>, Unresolved> {
        Ok(walk(&*self.parsed(of, body)?, keys).cloned())
    }

    fn parsed(&self, of: BodyOwner, body: &Payload) -> Result<Rc<Value>, Unresolved> {
        let parse = || body.value(self.payloads_for(body));
        self.parsed.get_or_parse(of, body.len, parse).map_err(Unresolved::Stored)
    }
}

/// M15: what failed inside a loop or group, with the number of the iteration or without one.
pub fn errors(plan: &Plan, run: &Run, step: u32) -> Value {
    let error = |failure: Option<&Failure>, name: &str| {
        let (code, message) = failure.map_or(("", ""), |f| (f.code.as_str(), f.message.as_str()));
        json!({ "step": name, "code": code, "message": message })
    };
    let state = run.step(step);
    if let Some(iterations) = &state.iterations {
        let failed = iterations.settled.iter().filter(|(_, iteration)| iteration.failure.is_some());
        let list = failed.map(|(index, iteration)| {
            let mut error = error(iteration.failure.as_ref(), &iteration.culprit);
            error["index"] = json!(index);
            error
        });
        return list.collect();
    }
    if run.node(plan, step).inner().is_none() {
        return Value::Null;
    }
    let failed = crate::planner::unhandled_in(plan, run, Some(step));
    failed.into_iter().map(|inner| error(run.step(inner).failure.as_deref(), &run.node(plan, inner).key)).collect()
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
