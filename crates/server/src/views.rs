//! Converts what the engine returns into the types of the API.

pub mod attempts;
pub mod graph;
pub mod history;
pub mod tasks;

use crate::Refusal;
use api::{
    ActionView, ApprovalStepView, CauseView, ChainLinkView, ChildView, DeliveryView, EventView, ExplainView,
    FailureView, ForkPointView, ParentView, PauseView, RecoveryView, RunSummary, RunView, SkipView, StepView,
    TriggerDetail, TriggerView, UndoneStepView, UnreadableView, WaitGroupView, WaitSummaryView, WaitingView,
    WorkflowView, rfc3339,
};
use engine::Engine;
use engine::explain::Explanation;
use engine::secret::approval_token;
use engine::services::{Reading, Recovery, StoredEvent, UnreadableRun, WaitGroup, WaitSummary};
use kernel::advance::FailedSteps;
use kernel::event::{Because, EventType, Failure, Pair};
use kernel::plan::{Node, OnError};
use kernel::run::{ApprovalRequest, ChildLink, Iteration, Phase, Place, Step, WaitKind};
use kernel::{Event, Payload, Plan, StepStatus, Timestamp};
use lang::trigger::{Spec, WebhookSignal};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use store::{DeliveryRow, RunRow, TriggerRow, WorkflowPause, WorkflowRow};

/// The type of an iteration of a loop among steps.
const ITERATION: &str = "iteration";
/// The most things a run waits for that its view lists (M6).
const WAITING_MAX: usize = 100;

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
        signal: match &spec {
            Some(Spec::Webhook(webhook)) => webhook.signal.as_ref().map(WebhookSignal::shown),
            _ => None,
        },
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
    let key = |step: u32| reading.key(step).into_owned();
    let body = value(reading, &state.origin.body);
    let waiting = run.waiting_for(plan).into_iter().take(WAITING_MAX).map(|w| WaitingView {
        kind: w.kind.as_str().into(),
        step: w.step.map(key),
        until: w.until.map(rfc3339),
    });
    let roots = version.order.iter().filter_map(|node| run.step_in(None, *node));
    let tasks = roots.map(|i| {
        let view = step(reading, i, false);
        (key(i), serde_json::to_value(view).unwrap_or_default())
    });
    RunView {
        id: row.id.to_string(),
        workflow: row.workflow_name.clone(),
        workflow_id: row.workflow.to_string(),
        form: row.form.as_str().into(),
        version: version.number,
        hash: hash(&version.hash),
        status: state.status.as_str().into(),
        waiting_for: if run.is_terminal() { Vec::new() } else { waiting.collect() },
        trigger: TriggerView {
            kind: state.origin.trigger.as_str().into(),
            body: body.clone(),
            headers: pairs(&state.origin.headers),
            id: state.origin.trigger_id.map(|id| id.to_string()),
            scheduled_for: state.origin.nominal.map(rfc3339),
            delivery_id: Some(state.origin.delivery.clone()).filter(|id| !id.is_empty()),
            actor: Some(state.origin.actor.clone()).filter(|actor| !actor.is_empty()),
        },
        input: body,
        output: output(reading),
        error: error(reading),
        failed_steps: reading.failed_steps(),
        unhandled_steps: reading.unhandled_steps(),
        recovery: reading.recovery().map(|found| recovery(reading, &found)),
        labels: pairs(&state.origin.labels),
        tasks: tasks.collect(),
        started_at: rfc3339(state.created_at),
        finished_at: state.finished_at.map(rfc3339),
        expires_at: rfc3339(state.origin.expires_at),
        replayed_from: state.origin.replayed_from.map(|run| run.to_string()),
        forked_from: state.origin.forked_from.as_deref().map(|point| ForkPointView {
            run_id: point.run.to_string(),
            step: point.step.clone(),
            reason: point.reason.clone(),
        }),
        parent: state.origin.parent.as_deref().map(|parent| ParentView {
            run_id: parent.run.to_string(),
            workflow: parent.workflow.clone(),
            step: parent.key.clone(),
            attempt: parent.attempt,
            depth: parent.depth,
            detached: parent.is_detached,
        }),
        unread_signals: state.signals.iter().fold(BTreeMap::new(), |mut counts, signal| {
            *counts.entry(signal.name.clone()).or_insert(0) += 1;
            counts
        }),
        paused: state.paused.as_ref().map(|pause| pause_view(&pause.actor, &pause.note, pause.at)),
        concurrency_key: state.origin.concurrency_group.as_ref().map(|concurrency_group| concurrency_group.key.clone()),
        cancelled_by: Some(state.cancelled_by.clone()).filter(|by| !by.is_empty()),
        as_of: None,
    }
}

fn output(reading: &Reading) -> Value {
    reading.run.state.output.as_ref().map_or(Value::Null, |output| value(reading, output))
}

/// Why the run failed, or why it undoes what it did.
fn error(reading: &Reading) -> Option<FailureView> {
    let state = &reading.run.state;
    let key = |step: u32| reading.key(step).into_owned();
    let ended = state.failure.as_ref().map(|why| failure(why, state.culprit.map(key)));
    let end = state.compensating.as_ref();
    ended.or_else(|| end.and_then(|end| Some(failure(end.failure.as_ref()?, end.step.map(key)))))
}

fn recovery(reading: &Reading, recovery: &Recovery) -> RecoveryView {
    let undone = |(undone, undo): &(u32, u32)| {
        let undo = step(reading, *undo, false);
        UndoneStepView {
            step: reading.key(*undone).into_owned(),
            kind: undo.kind,
            status: undo.status,
            attempt: undo.attempt,
            started_at: undo.started_at,
            finished_at: undo.finished_at,
            output: undo.body,
            error: undo.error,
        }
    };
    RecoveryView {
        status: recovery.status.into(),
        steps: recovery.steps.iter().map(undone).collect(),
        remaining: recovery.remaining.iter().map(|step| reading.key(*step).into_owned()).collect(),
    }
}

pub fn explanation(reading: &Reading, explanation: Explanation) -> ExplainView {
    let causes: Vec<CauseView> = explanation.causes.into_iter().map(cause).collect();
    ExplainView {
        run_id: reading.row.id.to_string(),
        status: reading.run.status().as_str().into(),
        first: causes[0].clone(), // never empty
        causes,
        more_causes: explanation.omitted as u64,
    }
}

fn cause(cause: engine::explain::Cause) -> CauseView {
    let action = |a: engine::explain::Action| ActionView {
        action: a.action.into(),
        method: a.method.into(),
        path: a.path,
        body: a.body,
    };
    let link = |l: engine::explain::ChainLink| ChainLinkView {
        what: l.what.into(),
        name: l.name,
        reason: l.reason.as_str().into(),
        summary: l.summary,
    };
    CauseView {
        reason: cause.reason.as_str().into(),
        summary: cause.summary,
        step: cause.step,
        details: cause.details,
        next_actions: cause.next_actions.into_iter().map(action).collect(),
        chain: cause.chain.into_iter().map(link).collect(),
    }
}

pub fn waits(summary: WaitSummary) -> WaitSummaryView {
    let group = |group: WaitGroup| WaitGroupView {
        reason: group.reason.as_str().into(),
        count: group.count as u64,
        step: group.step,
        example_run: group.example.to_string(),
    };
    WaitSummaryView {
        data: summary.groups.into_iter().map(group).collect(),
        runs: summary.runs as u64,
        truncated: summary.is_truncated,
    }
}

/// Steps of a run, each with its attempts.
pub fn steps(reading: &Reading, steps: &[u32], history: &[StoredEvent]) -> Vec<StepView> {
    let mut attempts = attempts::attempts(reading, steps, history);
    let view = |number: &u32| {
        let attempts = attempts.remove(number).unwrap_or_default();
        StepView { attempts, ..step(reading, *number, true) }
    };
    steps.iter().map(view).collect()
}

/// An iteration that has settled, as its loop keeps it.
pub fn iteration(reading: &Reading, of: u32, index: u32, iteration: &Iteration) -> StepView {
    StepView {
        step: Some(format!("{}[{index}]", reading.key(of))),
        kind: ITERATION.into(),
        status: iteration.status.as_str().into(),
        duration_ms: Some(iteration.finished_at.since(iteration.started_at).millis()),
        started_at: Some(rfc3339(iteration.started_at)),
        finished_at: Some(rfc3339(iteration.finished_at)),
        body: iteration.body.as_ref().map(|body| value(reading, body)),
        error: iteration
            .failure
            .as_ref()
            .map(|why| failure(why, Some(iteration.culprit.clone()).filter(|name| !name.is_empty()))),
        ..StepView::default()
    }
}

/// An iteration that has not settled.
pub fn open_iteration(reading: &Reading, of: u32, index: u32) -> StepView {
    let key = format!("{}[{index}]", reading.key(of));
    let open = reading.run.find(&reading.version.plan, &key).map(|number| step(reading, number, true));
    open.unwrap_or_else(|| StepView { step: Some(key), kind: ITERATION.into(), ..StepView::default() })
}

/// How many inner steps, or iterations, there are by status.
fn counts(reading: &Reading, step: u32) -> Option<BTreeMap<String, u32>> {
    let run = &reading.run;
    let state = run.step(step);
    let inner = run.node(&reading.version.plan, step).inner()?;
    if matches!(state.phase, Phase::Pending {}) || state.status() == StepStatus::Skipped {
        return None;
    }
    let mut counts = BTreeMap::new();
    let mut count = |status: StepStatus| *counts.entry(status.as_str().to_owned()).or_insert(0) += 1;
    let settled = state.iterations.iter().flat_map(|iterations| iterations.settled.values());
    settled.for_each(|iteration| count(iteration.status));
    let is_counted = |step: &u32| run.iteration(*step).is_none() || run.step(*step).outcome().is_none();
    run.children(step).filter(is_counted).for_each(|step| count(run.step(step).status()));
    Some(counts).filter(|counts| !counts.is_empty() || inner.group > 0)
}

/// A step; in a list also its name, needs and condition.
fn step(reading: &Reading, index: u32, in_list: bool) -> StepView {
    let plan = &*reading.version.plan;
    let (node, state) = (reading.run.node(plan, index), reading.run.step(index));
    let is_iteration = reading.run.iteration(index).is_some();
    let response = state.response.as_deref();
    let body = state.body();
    let at = |phase: &Phase| match phase {
        Phase::Sleeping { until } => (Some(rfc3339(*until)), None, None),
        Phase::Waiting { deadline } => (None, Some(rfc3339(*deadline)), None),
        Phase::Retrying { at } => (None, None, Some(rfc3339(*at))),
        _ => (None, None, None),
    };
    let (wake_at, deadline, next_attempt_at) = at(&state.phase);
    let needs = || match is_iteration {
        true => Vec::new(),
        false => node.links.iter().map(|link| plan.node_at(link.from).key.clone()).collect(),
    };
    StepView {
        step: in_list.then(|| reading.key(index).into_owned()),
        kind: if is_iteration { ITERATION } else { node.body.as_ref().map_or("unknown", |b| b.kind()) }.into(),
        status: state.status().as_str().into(),
        needs: in_list.then(needs),
        condition: node.guard.as_ref().filter(|_| in_list && !is_iteration).map(|g| g.text.clone()),
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
        counts: counts(reading, index),
        errors: errors_inside(reading, index),
        child: state.child.as_deref().map(child),
        approval: state.approval.as_deref().map(|request| approval(reading, node, index, request)),
        copied: state.copied.as_ref().map(|copied| if copied.is_given { "given" } else { "copied" }.into()),
        attempts: Vec::new(),
    }
}

/// What failed inside a group or a loop that went on all the same (M15).
fn errors_inside(reading: &Reading, step: u32) -> Option<Value> {
    let inner = reading.run.node(&reading.version.plan, step).inner()?;
    let goes_on = inner.on_error == OnError::Continue && reading.run.iteration(step).is_none();
    let copied = reading.run.step(step).copied.as_ref().and_then(|copied| copied.errors.as_ref());
    if let Some(errors) = copied {
        return Some(value(reading, errors));
    }
    goes_on.then(|| kernel::advance::errors(&reading.version.plan, &reading.run, step))
}

fn child(link: &ChildLink) -> ChildView {
    ChildView {
        run_id: link.run.to_string(),
        workflow: link.workflow.clone(),
        detached: link.is_detached,
        status: link.status.map(|status| status.as_str().into()),
    }
}

fn approval(reading: &Reading, node: &Node, step: u32, request: &ApprovalRequest) -> ApprovalStepView {
    ApprovalStepView {
        prompt: request.prompt.clone(),
        items: request.items.as_ref().map_or(Value::Null, |items| value(reading, items)),
        approvers: node.approval().map_or_else(Vec::new, |gate| gate.approvers.clone()),
        token: approval_token(reading.row.id, &reading.key(step)),
        decision: request.decision.map(|decision| decision.as_str().into()),
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

/// Why a step was skipped because of what it needs.
fn skip_reason(node: &Node) -> &'static str {
    if node.is_alternative() { "other_branch" } else { "needs_not_successful" }
}

fn skip(reading: &Reading, node: &Node, because: &Because) -> SkipView {
    match because {
        Because::Condition { seen } => SkipView {
            reason: "condition_false".into(),
            condition: node.guard.as_ref().map(|g| g.text.clone()),
            saw: Some(seen.iter().map(|s| (s.path.clone(), seen_value(&s.value))).collect()),
            steps: None,
        },
        Because::Needs { steps } => SkipView {
            reason: skip_reason(node).into(),
            condition: None,
            saw: None,
            steps: Some(
                steps
                    .iter()
                    .map(|s| (reading.key(*s).into_owned(), json!(reading.run.step(*s).status().as_str())))
                    .collect(),
            ),
        },
        Because::Operator { .. } => SkipView { reason: "operator".into(), condition: None, saw: None, steps: None },
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

pub fn event(plan: &Plan, stored: &StoredEvent) -> EventView {
    let StoredEvent { seq, at, event, .. } = stored;
    let actor = match event {
        Event::RunCancelled { actor, .. }
        | Event::Paused { actor, .. }
        | Event::Unpaused { actor }
        | Event::RunCancelling { actor, .. }
        | Event::RunRetried { actor, .. }
        | Event::SignalReceived { actor, .. }
        | Event::ApprovalDecided { actor, .. }
        | Event::Continued { actor, .. }
        | Event::RetryDue { actor, .. } => Some(actor),
        Event::Created { origin } => Some(&origin.actor),
        Event::RunCompensating { end } => Some(&end.actor),
        Event::Overridden { actor, .. } | Event::Moved { actor, .. } => Some(actor),
        _ => None,
    };
    let actor = actor.filter(|actor| !actor.is_empty()).cloned();
    EventView {
        seq: *seq,
        at: rfc3339(*at),
        kind: event_type(plan, stored).map_or("unknown", EventType::as_str).to_owned(),
        step: stored.step_key(plan).map(Cow::into_owned),
        attempt: event.attempt(),
        actor,
        data: data(plan, stored),
    }
}

/// The type of an event. The steps that undo others have types of their own.
fn event_type(plan: &Plan, stored: &StoredEvent) -> Option<EventType> {
    let kind = stored.event.event_type()?;
    let is_undo = stored.event.step().is_some_and(|step| plan.undoes(stored.place(step).node).is_some());
    Some(if is_undo { kind.of_undo() } else { kind })
}

/// The details of an event. Payloads are not repeated here; the run has them.
fn data(plan: &Plan, stored: &StoredEvent) -> Value {
    let failure = |f: &kernel::event::Failure| json!({ "code": f.code, "message": f.message });
    let saw = |seen: &[kernel::expr::Seen]| -> Map<String, Value> {
        seen.iter().map(|s| (s.path.clone(), seen_value(&s.value))).collect()
    };
    let response = |r: &kernel::event::Response| json!({ "status_code": r.status_code, "duration_ms": r.took.millis(), "body_bytes": r.body.as_ref().map(|b| b.len) });
    match &stored.event {
        Event::Created { origin } => json!({
            "workflow": origin.workflow_name, "version": origin.version, "trigger": origin.trigger.as_str(),
            "body_bytes": origin.body.len, "expires_at": rfc3339(origin.expires_at),
        }),
        Event::RunFailed { failure: f, .. } => json!({ "error": failure(f) }),
        Event::RunCancelled { reason, .. } | Event::RunCancelling { reason, .. } => json!({ "reason": reason }),
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
        Event::Skipped { step, because } => match because {
            Because::Condition { seen } => json!({ "reason": "condition_false", "saw": saw(seen) }),
            Because::Needs { steps } => {
                let steps: Vec<Cow<'_, str>> = steps.iter().map(|step| stored.key(plan, *step)).collect();
                let reason = skip_reason(plan.node_at(stored.place(*step).node));
                json!({ "reason": reason, "steps": steps })
            }
            Because::Operator { actor, reason } => json!({ "reason": "operator", "by": actor, "note": reason }),
            Because::Unknown { .. } => json!({}),
        },
        Event::TimerSet { at, .. } => json!({ "wake_at": rfc3339(*at) }),
        Event::WaitOpened { step, deadline, seen } => {
            let kind = plan.node_at(stored.place(*step).node).wait_kind().map(WaitKind::as_str);
            json!({ "kind": kind, "deadline": rfc3339(*deadline), "saw": saw(seen) })
        }
        Event::SignalReceived { name, body, .. } => json!({ "name": name, "body_bytes": body.len }),
        Event::SignalConsumed { signal, .. } => json!({ "signal": signal }),
        Event::ApprovalRequested { deadline, prompt, seen, .. } => {
            json!({ "deadline": rfc3339(*deadline), "prompt": prompt, "saw": saw(seen) })
        }
        Event::ApprovalDecided { comment, .. } => json!({ "comment": comment }),
        Event::Continued { .. } => json!({ "kind": "pause" }),
        Event::ChildStarted { child, workflow, is_detached, seen, .. } => {
            let run = child.to_string();
            json!({ "run_id": run, "workflow": workflow, "detached": is_detached, "saw": saw(seen) })
        }
        Event::ChildEnded { child, status, .. } => {
            json!({ "run_id": child.to_string(), "status": status.map(|status| status.as_str()) })
        }
        Event::WaitClosed { callback, .. } => json!({ "early": true, "body_bytes": callback.body.len }),
        Event::LateResult { summary, .. } => json!({ "summary": summary }),
        Event::Returned { response: r, failure: f, .. } => {
            json!({ "response": r.as_ref().map(response), "error": f.as_ref().map(failure) })
        }
        Event::Overridden { verb, reason, .. } => json!({ "verb": verb.as_str(), "reason": reason }),
        Event::RunCompensating { end } => {
            let step = end.step.map(|step| stored.key(plan, step));
            json!({ "status": end.status.as_str(), "error": end.failure.as_ref().map(failure), "step": step })
        }
        Event::RunRetried { reason, steps, expires_at, .. } => {
            let steps: Vec<Cow<'_, str>> = steps.iter().map(|step| stored.key(plan, *step)).collect();
            json!({ "reason": reason, "steps": steps, "expires_at": rfc3339(*expires_at) })
        }
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
        Event::Opened { step, parent, index, .. } => {
            if *parent == Place::ROOT {
                return json!({ "parent": null, "index": null });
            }
            let is_iteration = stored.place(*step).indices.len() > stored.place(*parent).indices.len();
            json!({ "parent": stored.key(plan, *parent), "index": is_iteration.then_some(index) })
        }
        Event::GroupStarted { seen, .. } => json!({ "saw": saw(seen) }),
        Event::LoopStarted { seen, count, .. } => json!({ "saw": saw(seen), "count": count }),
        Event::Moved { reason, version, hash, .. } => {
            let hash = <[u8; 32]>::try_from(&hash[..]).map(|bytes| self::hash(&bytes));
            json!({ "reason": reason, "version": version, "hash": hash.unwrap_or_default() })
        }
        Event::Copied { ended, .. } => json!({
            "status": ended.status.as_str(), "given": ended.is_given,
            "error": ended.failure.as_ref().map(failure), "response": ended.response.as_ref().map(response),
        }),
        Event::RunFinished { output } => json!({ "output_bytes": output.len }),
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
