//! Converts what the engine returns into the types of the API.

pub mod attempts;
pub mod graph;
pub mod tasks;

use crate::Refusal;
use api::{
    ActionView, CauseView, DeliveryView, EventView, ExplainView, FailureView, PauseView, RunSummary, RunView, SkipView,
    StepView, TriggerDetail, TriggerView, UnreadableView, WaitingView, WorkflowView, rfc3339,
};
use engine::Engine;
use engine::explain::Explanation;
use engine::services::{Reading, UnreadableRun};
use kernel::advance::FailedSteps;
use kernel::event::{Because, Failure, Pair};
use kernel::plan::Node;
use kernel::run::{Phase, Step, WaitKind};
use kernel::{Event, Payload, Plan, Timestamp};
use lang::trigger::Spec;
use serde_json::{Map, Value, json};
use store::{DeliveryRow, RunRow, TriggerRow, WorkflowPause, WorkflowRow};

/// `sha256:<hex>`.
pub fn hash(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::from("sha256:"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A definition with the names of the workflow that is shown. The stored definition may have been written for another
/// workflow with the same steps, because definitions are stored by content hash.
pub fn definition(row: &WorkflowRow, label: Option<&str>, source: Value) -> Value {
    let Value::Object(fields) = source else { return source };
    let mut named = Map::new();
    named.insert("name".into(), json!(row.name));
    if let Some(description) = &row.description {
        named.insert("description".into(), json!(description));
    }
    if row.tags != "[]" {
        named.insert("tags".into(), serde_json::from_str(&row.tags).unwrap_or_default());
    }
    if let Some(label) = label {
        named.insert("version".into(), json!(label));
    }
    const NAMES: &[&str] = &["name", "slug", "description", "tags", "enabled", "version"];
    named.extend(fields.into_iter().filter(|(name, _)| !NAMES.contains(&name.as_str())));
    Value::Object(named)
}

pub fn workflow(row: &WorkflowRow, definition: Option<Value>, pause: Option<&WorkflowPause>) -> WorkflowView {
    WorkflowView {
        id: row.id.to_string(),
        name: row.name.clone(),
        slug: row.slug.clone(),
        description: row.description.clone(),
        tags: serde_json::from_str(&row.tags).unwrap_or_else(|_| json!([])),
        form: row.form.as_str().into(),
        trigger: row.trigger.clone(),
        task_count: row.steps,
        enabled: row.enabled,
        paused: pause.map(|pause| pause_view(&pause.actor, &pause.note, pause.at)),
        version: row.version,
        version_label: None,
        hash: hash(&row.hash),
        inserted_at: rfc3339(row.created_at),
        updated_at: rfc3339(row.updated_at),
        deleted_at: row.deleted_at.map(rfc3339),
        definition,
        problems: Vec::new(),
        deduplicated: false,
    }
}

pub fn trigger(engine: &Engine, row: &TriggerRow, workflow: String) -> TriggerDetail {
    // A config that cannot be parsed is not shown: it may contain a secret.
    let spec = lang::trigger::stored(row.kind, &row.config);
    let mapping = match &spec {
        Some(Spec::Webhook(webhook)) if !webhook.mapping.is_empty() => Some(webhook.variable_mapping()),
        _ => None,
    };
    TriggerDetail {
        id: row.id.to_string(),
        name: row.name.clone(),
        kind: row.kind.as_str().into(),
        workflow,
        workflow_id: row.workflow.to_string(),
        enabled: row.enabled,
        note: row.note.clone(),
        config: spec.as_ref().map_or(Value::Null, Spec::shown),
        variable_mapping: mapping,
        input: spec.as_ref().and_then(Spec::input).cloned(),
        is_owned: row.is_owned,
        webhook_url: row.path.as_ref().map(|path| format!("{}/webhooks/{path}", engine.public_url())),
        next_at: row.next_at.map(rfc3339),
        last_run_at: row.last_run_at.map(rfc3339),
        last_run_id: row.last_run.map(|run| run.to_string()),
        inserted_at: rfc3339(row.created_at),
        updated_at: rfc3339(row.updated_at),
        deduplicated: false,
    }
}

pub fn delivery(row: &DeliveryRow) -> DeliveryView {
    DeliveryView {
        id: row.id.clone(),
        at: rfc3339(row.at),
        outcome: row.outcome.as_str().into(),
        reason: Some(row.reason.clone()).filter(|reason| !reason.is_empty()),
        run_id: row.run.map(|run| run.to_string()),
        scheduled_for: row.nominal.map(rfc3339),
    }
}

fn pause_view(by: &str, note: &str, at: Timestamp) -> PauseView {
    let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    PauseView { by: non_empty(by), note: non_empty(note), at: rfc3339(at) }
}

pub fn summary(row: &RunRow) -> RunSummary {
    let kinds = WaitKind::ALL.iter().filter(|kind| row.waiting & 1 << **kind as u32 != 0);
    let FailedSteps { failed, unhandled } = FailedSteps::parse(row.failed_steps.as_deref().unwrap_or_default());
    RunSummary {
        id: row.id.to_string(),
        workflow: row.workflow_name.clone(),
        workflow_id: row.workflow.to_string(),
        form: row.form.as_str().into(),
        version: row.version,
        status: row.status.as_str().into(),
        waiting_for: kinds.map(|kind| kind.as_str().into()).collect(),
        started_at: rfc3339(row.created_at),
        finished_at: row.finished_at.map(rfc3339),
        expires_at: rfc3339(row.expires_at),
        error_code: row.error_code.clone(),
        failed_steps: failed,
        unhandled_steps: unhandled,
    }
}

pub fn unreadable(left_out: &UnreadableRun) -> UnreadableView {
    let problem = Refusal::from(left_out.error.clone()).into_problem();
    UnreadableView { run_id: left_out.run.to_string(), code: problem.code, message: problem.message }
}

pub fn run(reading: &Reading) -> RunView {
    let Reading { row, version, run, .. } = reading;
    let state = &run.state;
    let plan = &*version.plan;
    let key = |step: u32| plan.node(step).key.clone();
    let body = value(reading, &state.origin.body);
    let waiting = run.waiting_for(plan).into_iter().map(|w| WaitingView {
        kind: w.kind.as_str().into(),
        step: w.step.map(key),
        until: w.until.map(rfc3339),
    });
    let tasks = version.order.iter().map(|i| {
        let view = step(reading, *i, false);
        (key(*i), serde_json::to_value(view).unwrap_or_default())
    });
    RunView {
        id: row.id.to_string(),
        workflow: row.workflow_name.clone(),
        workflow_id: row.workflow.to_string(),
        form: row.form.as_str().into(),
        version: row.version,
        hash: hash(&row.hash),
        status: state.status.as_str().into(),
        waiting_for: if run.is_terminal() { Vec::new() } else { waiting.collect() },
        trigger: TriggerView {
            kind: state.origin.trigger.as_str().into(),
            body: body.clone(),
            headers: pairs(&state.origin.headers),
            id: state.origin.trigger_id.map(|id| id.to_string()),
            scheduled_for: state.origin.nominal.map(rfc3339),
            delivery_id: Some(state.origin.delivery.clone()).filter(|id| !id.is_empty()),
        },
        input: body,
        output: Value::Null,
        error: state.failure.as_ref().map(|f| failure(f, state.culprit.map(key))),
        failed_steps: reading.failed_steps(),
        unhandled_steps: reading.unhandled_steps(),
        labels: pairs(&state.origin.labels),
        tasks: tasks.collect(),
        started_at: rfc3339(state.created_at),
        finished_at: state.finished_at.map(rfc3339),
        expires_at: rfc3339(state.origin.expires_at),
        replayed_from: state.origin.replayed_from.map(|run| run.to_string()),
        paused: state.paused.as_ref().map(|pause| pause_view(&pause.actor, &pause.note, pause.at)),
        concurrency_key: state.origin.concurrency_group.as_ref().map(|concurrency_group| concurrency_group.key.clone()),
        cancelled_by: Some(state.cancelled_by.clone()).filter(|by| !by.is_empty()),
    }
}

pub fn explanation(reading: &Reading, explanation: Explanation) -> ExplainView {
    let action = |a: engine::explain::Action| ActionView {
        action: a.action.into(),
        method: a.method.into(),
        path: a.path,
        body: a.body,
    };
    let cause = |l: engine::explain::Cause| CauseView {
        what: l.what.into(),
        name: l.name,
        reason: l.reason.as_str().into(),
        summary: l.summary,
    };
    ExplainView {
        run_id: reading.row.id.to_string(),
        status: reading.run.status().as_str().into(),
        reason: explanation.reason.as_str().into(),
        summary: explanation.summary,
        step: explanation.step,
        details: explanation.details,
        next_actions: explanation.next_actions.into_iter().map(action).collect(),
        chain: explanation.chain.into_iter().map(cause).collect(),
    }
}

/// The steps of a run in the order of the definition, each with its attempts.
pub fn steps(reading: &Reading, history: &[(u64, Timestamp, Event)]) -> Vec<StepView> {
    let attempts = attempts::attempts(reading, history).into_iter().enumerate();
    attempts.map(|(i, attempts)| StepView { attempts, ..step(reading, i as u32, true) }).collect()
}

/// A step; in a list also its name, needs and condition.
fn step(reading: &Reading, index: u32, in_list: bool) -> StepView {
    let plan = &*reading.version.plan;
    let (node, state) = (plan.node(index), reading.run.step(index));
    let response = state.response.as_deref();
    let body = state.body();
    let at = |phase: &Phase| match phase {
        Phase::Sleeping { until } => (Some(rfc3339(*until)), None, None),
        Phase::Waiting { deadline } => (None, Some(rfc3339(*deadline)), None),
        Phase::Retrying { at } => (None, None, Some(rfc3339(*at))),
        _ => (None, None, None),
    };
    let (wake_at, deadline, next_attempt_at) = at(&state.phase);
    let needs = || node.links.iter().map(|link| plan.node(link.from).key.clone()).collect();
    StepView {
        step: in_list.then(|| node.key.clone()),
        kind: node.body.as_ref().map_or("unknown", |b| b.kind()).into(),
        status: state.status().as_str().into(),
        needs: in_list.then(needs),
        condition: node.guard.as_ref().filter(|_| in_list).map(|g| g.text.clone()),
        status_code: response.and_then(|r| r.status_code),
        attempt: state.attempt,
        duration_ms: duration(state),
        started_at: state.started_at.map(rfc3339),
        finished_at: state.finished_at.map(rfc3339),
        wake_at,
        deadline,
        next_attempt_at,
        headers: response.map(|r| pairs(&r.headers)).filter(|h| !h.is_empty()),
        body: body.map(|payload| value(reading, payload)),
        is_truncated: body.is_some_and(|payload| payload.truncated),
        error: state.failure.as_ref().map(|f| failure(f, None)),
        skipped_because: state.because.as_deref().map(|because| skip(reading, node, because)),
        attempts: Vec::new(),
    }
}

fn failure(why: &Failure, step: Option<String>) -> FailureView {
    FailureView { code: why.code.clone(), message: why.message.clone(), step }
}

/// The time that the executor measured, otherwise the time between start and end.
fn duration(state: &Step) -> Option<u64> {
    let measured = state.response.as_ref().map(|r| r.took).filter(|took| took.0 > 0);
    let between = || Some(state.finished_at?.since(state.started_at?));
    measured.or_else(between).map(|span| span.millis())
}

fn skip(reading: &Reading, node: &Node, because: &Because) -> SkipView {
    let plan = &*reading.version.plan;
    match because {
        Because::Condition { seen } => SkipView {
            reason: "condition_false".into(),
            condition: node.guard.as_ref().map(|g| g.text.clone()),
            saw: Some(seen.iter().map(|s| (s.path.clone(), seen_value(&s.value))).collect()),
            steps: None,
        },
        Because::Needs { steps } => SkipView {
            reason: "needs_not_successful".into(),
            condition: None,
            saw: None,
            steps: Some(
                steps
                    .iter()
                    .map(|s| (plan.node(*s).key.clone(), json!(reading.run.step(*s).status().as_str())))
                    .collect(),
            ),
        },
        Because::Unknown { .. } => SkipView { reason: "unknown".into(), condition: None, saw: None, steps: None },
    }
}

/// A value that an expression read. A truncated value is no longer JSON and is shown as text.
fn seen_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

fn value(reading: &Reading, payload: &Payload) -> Value {
    payload.value(&reading.payloads).unwrap_or(Value::Null)
}

fn pairs(list: &[Pair]) -> Map<String, Value> {
    list.iter().map(|pair| (pair.name.clone(), Value::from(pair.value.as_str()))).collect()
}

pub fn event(plan: &Plan, seq: u64, at: Timestamp, event: &Event) -> EventView {
    let key = |step: u32| plan.nodes().get(step as usize).map_or_else(|| format!("#{step}"), |n| n.key.clone());
    let actor = match event {
        Event::RunCancelled { actor, .. }
        | Event::Paused { actor, .. }
        | Event::Unpaused { actor }
        | Event::RetryDue { actor, .. } => Some(actor),
        Event::Created { origin } => Some(&origin.actor),
        _ => None,
    };
    let actor = actor.filter(|actor| !actor.is_empty()).cloned();
    EventView {
        seq,
        at: rfc3339(at),
        kind: event.name().unwrap_or("unknown").to_owned(),
        step: event.step().map(key),
        attempt: event.attempt(),
        actor,
        data: data(plan, event),
    }
}

/// The details of an event. Payloads are not repeated here; the run has them.
fn data(plan: &Plan, event: &Event) -> Value {
    let failure = |f: &kernel::event::Failure| json!({ "code": f.code, "message": f.message });
    let saw = |seen: &[kernel::expr::Seen]| -> Map<String, Value> {
        seen.iter().map(|s| (s.path.clone(), seen_value(&s.value))).collect()
    };
    let response = |r: &kernel::event::Response| json!({ "status_code": r.status_code, "duration_ms": r.took.millis(), "body_bytes": r.body.as_ref().map(|b| b.len) });
    match event {
        Event::Created { origin } => json!({
            "workflow": origin.workflow_name, "version": origin.version, "trigger": origin.trigger.as_str(),
            "body_bytes": origin.body.len, "expires_at": rfc3339(origin.expires_at),
        }),
        Event::RunFailed { failure: f, .. } => json!({ "error": failure(f) }),
        Event::RunCancelled { reason, .. } => json!({ "reason": reason }),
        Event::Leased { worker, lease, seen, .. } => {
            json!({ "worker": worker, "lease": lease.to_string(), "saw": saw(seen) })
        }
        Event::Started { seen, .. } => json!({ "saw": saw(seen) }),
        Event::Retrying { next, failure: f, charged, status_code, .. } => {
            json!({ "next_attempt_at": rfc3339(*next), "error": failure(f), "charged": charged, "status_code": status_code })
        }
        Event::Succeeded { response: r, .. } => response(r),
        Event::Received { callback, .. } => json!({ "body_bytes": callback.as_ref().map(|c| c.body.len) }),
        Event::Failed { failure: f, response: r, .. } => {
            json!({ "error": failure(f), "response": r.as_ref().map(response) })
        }
        Event::TimedOut { failure: f, .. } => json!({ "error": failure(f) }),
        Event::Skipped { because, .. } => match because {
            Because::Condition { seen } => json!({ "reason": "condition_false", "saw": saw(seen) }),
            Because::Needs { steps } => {
                let steps: Vec<&str> =
                    steps.iter().filter_map(|s| Some(plan.nodes().get(*s as usize)?.key.as_str())).collect();
                json!({ "reason": "needs_not_successful", "steps": steps })
            }
            Because::Unknown { .. } => json!({}),
        },
        Event::TimerSet { at, .. } => json!({ "wake_at": rfc3339(*at) }),
        Event::WaitOpened { deadline, .. } => json!({ "deadline": rfc3339(*deadline) }),
        Event::WaitClosed { callback, .. } => json!({ "early": true, "body_bytes": callback.body.len }),
        Event::LateResult { summary, .. } => json!({ "summary": summary }),
        Event::Queued { reason } => json!({ "reason": reason.as_str() }),
        Event::Paused { note, .. } => json!({ "kind": "pause", "note": note }),
        Event::Unpaused { .. } => json!({ "kind": "pause" }),
        Event::Progress { progress, .. } => json!({ "progress": progress.interpret(&progress.inline) }),
        Event::Kept { epoch, .. } => json!({ "node": epoch }),
        Event::Logged { lines, .. } => {
            let line = |line: &kernel::event::LogLine| json!({ "level": line.level.as_str(), "message": line.message });
            json!({ "lines": lines.iter().map(line).collect::<Vec<Value>>() })
        }
        Event::RetryDue { .. } => json!({ "reason": "retry_now" }),
        Event::HeldBack { until, failure: f, seen, .. } => {
            json!({ "reason": "host_backoff", "next_attempt_at": rfc3339(*until), "error": failure(f), "saw": saw(seen) })
        }
        Event::RunWaiting {}
        | Event::RunResumed {}
        | Event::Admitted {}
        | Event::RunCompleted {}
        | Event::RunTimeout {}
        | Event::Scheduled { .. }
        | Event::Cancelled { .. }
        | Event::Woken { .. }
        | Event::Unknown { .. } => json!({}),
    }
}
