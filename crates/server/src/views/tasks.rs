//! Converts tasks, task types and workers into the types of the API.

use api::{ClaimedView, TaskError, TaskView, TypeLimits, TypePauseView, TypeRate, WorkerView, rfc3339};
use engine::services::{TaskKey, TaskReading, TypeView, status_of};
use engine::task_queue::ClaimedTask;
use kernel::Payload;
use kernel::run::Phase;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use store::WorkerRow;

pub fn task(found: &TaskReading) -> TaskView {
    let TaskReading { key, step, reading, lease_until, released_as } = found;
    let (state, origin) = (&reading.run.state, &reading.run.state.origin);
    let (step_state, node) = (reading.run.step(*step), reading.run.node(&reading.version.plan, *step));
    let is_plain = key.step.is_none();
    let value = |payload: &Payload| payload.value(&reading.payloads).unwrap_or(Value::Null);
    let leased_by = match &step_state.phase {
        Phase::Leased { worker, .. } => Some(worker.clone()),
        _ => None,
    };
    let next_attempt = match step_state.phase {
        Phase::Retrying { at } => Some(rfc3339(at)),
        _ => None,
    };
    let task_error =
        |failure: &kernel::event::Failure| TaskError { code: failure.code.clone(), message: failure.message.clone() };
    TaskView {
        id: key.to_string(),
        run_id: key.run.to_string(),
        step: reading.key(*step).into_owned(),
        name: reading.run.type_of(&reading.version.plan, *step).to_owned(),
        status: status_of(reading, *step).as_str().into(),
        input: if is_plain { value(&origin.body) } else { Value::Null },
        result: step_state.body().map_or(Value::Null, value),
        error: step_state.failure.as_deref().filter(|failure| !is_not_an_error(&failure.code)).map(task_error),
        attempt: step_state.attempt,
        max_attempts: node.retry.max_attempts,
        priority: reading.run.priority(&reading.version.plan, *step),
        concurrency_key: Some(step_state.key.clone())
            .filter(|key| !key.is_empty())
            .or_else(|| Some(origin.key.clone()).filter(|key| !key.is_empty())),
        run_at: origin.run_at.map(rfc3339),
        leased_by,
        lease_until: lease_until.map(rfc3339),
        next_attempt_at: next_attempt,
        progress: step_state.progress.as_deref().map_or(Value::Null, |progress| progress.interpret(&progress.inline)),
        labels: origin.labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect(),
        created_at: rfc3339(state.created_at),
        started_at: step_state.started_at.map(rfc3339),
        finished_at: step_state.finished_at.map(rfc3339),
        workflow: (!is_plain).then(|| reading.row.workflow_name.clone()),
        released_as: released_as.map(|run| TaskKey::plain(run).to_string()),
    }
}

/// Codes of attempts that ended without an error: the worker snoozed the task, or never received it.
fn is_not_an_error(code: &str) -> bool {
    matches!(code, "snoozed" | "not_delivered")
}

/// A task as its worker receives it. An input that is not valid JSON is sent as text.
pub fn claimed(task: ClaimedTask) -> ClaimedView {
    let key = TaskKey { run: task.run, step: (!task.is_plain).then_some(task.step) };
    let raw = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        RawValue::from_string(text.clone())
            .or_else(|_| RawValue::from_string(json!(text).to_string()))
            .unwrap_or_default()
    };
    ClaimedView {
        task_id: key.to_string(),
        claim_token: key.token(task.fence),
        input: raw(&task.input),
        attempt: task.attempt,
        max_attempts: task.max_attempts,
        lease_until: rfc3339(task.until),
        lease_ms: task.lease.millis(),
        idempotency_key: kernel::run::idempotency_key(task.run, &task.step_key, task.repeats),
        run_id: task.run.to_string(),
        step: task.step_key,
        workflow: (!task.is_plain).then_some(task.workflow),
        progress: task.progress.as_deref().map(raw),
        task_type: task.name,
    }
}

pub fn task_type(view: &TypeView) -> api::TypeView {
    let TypeView { row, ready, leased, workers, retrying } = view;
    let limits = TypeLimits { limit: row.limit, per_key: row.limit_per_key };
    api::TypeView {
        name: row.name.clone(),
        runtime: row.runtime.clone(),
        description: row.description.clone(),
        enabled: row.enabled,
        paused: row.paused.as_ref().map(|pause| TypePauseView {
            at: rfc3339(pause.at),
            by: pause.actor.clone(),
            note: pause.note.clone(),
        }),
        concurrency: Some(limits).filter(|limits| limits.limit.is_some() || limits.per_key.is_some()),
        rate: row.rate.map(|rate| TypeRate {
            limit: rate.limit,
            per: json!(rate.per.to_string()),
            per_key: rate.per_key,
        }),
        ready: *ready,
        leased: *leased,
        workers: *workers,
        retrying: *retrying,
        created_at: rfc3339(row.created_at),
        updated_at: rfc3339(row.updated_at),
    }
}

pub fn worker((row, leased): &(WorkerRow, u32)) -> WorkerView {
    WorkerView {
        id: row.id.clone(),
        types: serde_json::from_str(&row.types).unwrap_or_default(),
        runtime: row.runtime.clone(),
        version: row.version.clone(),
        slots: row.slots,
        leased: *leased,
        first_seen: rfc3339(row.first_seen),
        last_seen: rfc3339(row.last_seen),
    }
}
