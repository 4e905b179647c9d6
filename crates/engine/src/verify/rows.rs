//! Compares the rows of a run with the state that its records fold to: no row is missing, and none is left over.

use super::Code;
use super::definitions::hex;
use super::run::{Case, Folded};
use crate::services::outbox;
use crate::services::tasks::RELEASE;
use kernel::advance::{FailedSteps, NotificationNumber};
use kernel::plan::{Form, Node};
use kernel::run::{ReadyTask, WaitKind};
use kernel::{Plan, Run, RunStatus, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use store::{Error, QueueKey, QueuePosition, ReadyRow};

pub(super) fn check(case: &mut Case<'_>, plan: &Plan, folded: &Folded) -> Result<(), Error> {
    origin(case, plan, &folded.run);
    row(case, plan, folded);
    timers(case, folded);
    ready(case, plan, folded);
    tokens(case, folded);
    open_waits(case, plan, folded);
    notifications(case, folded)?;
    payloads(case, folded);
    keys(case, plan, folded);
    Ok(())
}

/// What a run pins when it is created, or moved.
fn origin(case: &mut Case<'_>, plan: &Plan, run: &Run) {
    let origin = &run.state.origin;
    let row = &case.stored.row;
    let mut differences = Vec::new();
    if origin.workflow != row.workflow {
        differences.push(format!("of the workflow {}, its row says {}", origin.workflow, row.workflow));
    }
    if origin.workflow_name != row.workflow_name {
        differences.push(format!("as `{}`, its row says `{}`", origin.workflow_name, row.workflow_name));
    }
    let (version, hash, lowering) = run.version();
    if version != row.version {
        differences.push(format!("with version {version}, its row says {}", row.version));
    }
    if lowering != row.lowering {
        differences.push(format!("with lowering {lowering}, its row says {}", row.lowering));
    }
    if hash != &row.hash[..] {
        differences.push(format!("with another definition than its row's, {}", hex(&row.hash)));
    }
    if plan.layout().form != row.form {
        differences.push(format!("in the form `{}`, its row says `{}`", plan.layout().form, row.form));
    }
    for what in differences {
        case.say(Code::OriginDiffers, format!("it was created {what}"));
    }
    let wanted: BTreeSet<(&str, &str)> = origin.labels.iter().map(|l| (l.name.as_str(), l.value.as_str())).collect();
    let stored: BTreeSet<(&str, &str)> = case.stored.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    if wanted != stored {
        case.say(Code::LabelsDiffer, format!("it was created with {wanted:?}, the rows have {stored:?}"));
    }
}

/// Does the row say that the run is evicted? For ended runs the column has no meaning.
fn is_evicted(case: &Case<'_>, run: &Run) -> bool {
    case.stored.row.evicted && !run.is_terminal()
}

/// A waiting run is always evicted. A running one may be, if its only remaining work is tasks for workers; any other
/// evicted run would never be woken.
fn may_be_evicted(run: &Run, plan: &Plan) -> bool {
    let waits_outside = run.waits_for_others(plan) && run.claimable(plan).next().is_some();
    let waits_in_undo = run.status() == RunStatus::Compensating && run.is_idle();
    run.status().is_evicted() || waits_in_undo || run.status().may_have_tasks() && waits_outside
}

/// The row is written whenever the status changes or the run is evicted, so all columns but the last record's position
/// are exact. The position may lag behind while a run is neither evicted nor ended.
fn row(case: &mut Case<'_>, plan: &Plan, folded: &Folded) {
    let (run, state, row) = (&folded.run, &folded.run.state, &case.stored.row);
    let is_evicted = is_evicted(case, run);
    let waiting = run.waiting_for(plan).iter().filter(|_| is_evicted).fold(0, |mask, w| mask | 1 << w.kind as u32);
    let mut differences = Vec::new();
    let mut compare = |field: &str, stored: &dyn Debug, folded: &dyn Debug| {
        let (stored, folded) = (format!("{stored:?}"), format!("{folded:?}"));
        if stored != folded {
            differences.push(format!("`{field}` is {stored}, its records say {folded}"));
        }
    };
    compare("status", &row.status.as_str(), &state.status.as_str());
    compare("waiting", &row.waiting, &waiting);
    compare("wake_at", &row.wake_at, &run.next_due().filter(|_| is_evicted));
    compare("created_at", &row.created_at, &state.created_at);
    compare("expires_at", &row.expires_at, &state.origin.expires_at);
    compare("finished_at", &row.finished_at, &state.finished_at);
    // A run that ended before this column existed has none.
    let failed_steps = state.status.is_terminal().then(|| FailedSteps::of(plan, run).to_string());
    if row.failed_steps.is_some() {
        compare("failed_steps", &row.failed_steps, &failed_steps);
    }
    compare("error_code", &row.error_code.as_deref(), &state.failure.as_ref().map(|f| f.code.as_str()));
    let must_be_evicted = state.status.is_evicted() || is_evicted && may_be_evicted(run, plan);
    compare("parked", &is_evicted, &must_be_evicted);
    if is_evicted || state.status.is_terminal() {
        compare("seq", &case.stored.row_seq, &(case.stored.records.len() as u64));
    }
    if row.deleted_at.is_some() && !state.status.is_terminal() {
        differences.push("`deleted_at` is set, but the run has not ended".to_owned());
    }
    for what in differences {
        case.say(Code::RowDiffers, what);
    }
}

/// An evicted run has exactly one timer row, for its next due time, if it has one. Every other run has none.
fn timers(case: &mut Case<'_>, folded: &Folded) {
    let due = folded.run.next_due().filter(|_| is_evicted(case, &folded.run));
    let timers: &[Timestamp] = &case.stored.timers;
    if let Some(due) = due.filter(|due| !timers.contains(due)) {
        case.say(Code::TimerMissing, format!("it waits until {} µs and has the timers {timers:?}", due.0));
    }
    for at in timers.iter().filter(|at| Some(**at) != due) {
        let status = folded.run.status();
        case.say(Code::TimerStray, format!("a timer at {} µs, while the run is {status}", at.0));
    }
}

/// A run that was evicted while running has a `ready` row for exactly the tasks that workers may claim, each at its
/// position. On a shared store this holds for every run.
fn ready(case: &mut Case<'_>, plan: &Plan, folded: &Folded) {
    let (stored, run) = (case.stored, &folded.run);
    let is_shared = !case.inspection.has_single_writer();
    let has_rows = is_shared || is_evicted(case, run) && run.status().may_have_tasks();
    let mut wanted: Vec<ReadyRow> = Vec::new();
    for ReadyTask { step, name, key, priority } in run.ready_tasks(plan).filter(|_| has_rows) {
        let queue = QueueKey { org: stored.row.org, name, key };
        wanted.push(ReadyRow { queue, position: QueuePosition { priority, run: stored.row.id, step } });
    }
    for row in wanted.iter().filter(|row| !stored.ready.contains(row)) {
        case.say_step(Code::ReadyMissing, row.position.step, format!("the task is not in the queue {}", position(row)));
    }
    for row in stored.ready.iter().filter(|row| !wanted.contains(row)) {
        case.say_step(Code::ReadyStray, row.position.step, format!("the task is in the queue {}", position(row)));
    }
}

fn position(ReadyRow { queue, position }: &ReadyRow) -> String {
    format!("of `{}` with the key `{}` and priority {}", queue.name, queue.key, position.priority)
}

/// Every callback step that was ever opened has a token, as long as the run exists.
fn tokens(case: &mut Case<'_>, folded: &Folded) {
    let stored = case.stored;
    let mut left = folded.callbacks.clone();
    for wait in &stored.waits {
        if wait.kind != "webhook" || !left.remove(&wait.step) {
            let message = format!("a row of kind `{}` that the plan does not ask for", wait.kind);
            case.say_step(Code::WaitStray, wait.step, message);
        }
    }
    for step in left {
        case.say_step(Code::WaitMissing, step, "its callback URL is unknown to the server");
    }
}

/// Every open wait has a row, and nothing else has.
fn open_waits(case: &mut Case<'_>, plan: &Plan, folded: &Folded) {
    let stored = case.stored;
    let wanted = crate::mailbox::open_waits(plan, &folded.run, stored.row.org, stored.row.id);
    for row in wanted.values().filter(|row| !stored.open_waits.contains(row)) {
        // A run that waited before these rows existed gets them when it is advanced.
        if row.kind != WaitKind::Webhook {
            case.say_step(Code::OpenWaitMissing, row.step, format!("it waits ({}), and no list shows it", row.kind));
        }
    }
    for row in stored.open_waits.iter().filter(|row| wanted.get(&row.step) != Some(row)) {
        case.say_step(Code::OpenWaitStray, row.step, format!("a row says that it waits ({})", row.kind));
    }
}

/// I38, M30: what a run sends when it has ended waits in a row until another run delivers it. The key of that run stays.
fn notifications(case: &mut Case<'_>, folded: &Folded) -> Result<(), Error> {
    let stored = case.stored;
    let mut expected: BTreeSet<u64> = BTreeSet::new();
    for (place, (end, count)) in folded.ends.iter().enumerate() {
        for index in 0..*count {
            // A release that knew no retry counted the notifications of the only end.
            let own = [NotificationNumber::stored(*end, index), index];
            let own = if place == 0 { &own[..] } else { &own[..1] };
            expected.extend(own);
            let mut is_there = own.iter().any(|number| stored.notifications.contains(number));
            for number in own {
                let key = outbox::idempotency(stored.row.id, *number);
                let scope = key.scope.as_deref().unwrap_or_default();
                is_there = is_there || case.inspection.has_key(stored.row.org, scope, &key.key)?;
            }
            if !is_there {
                let message = format!("notification {index} of {count} about its end with event {end} is lost");
                case.say(Code::NotificationMissing, message);
            }
        }
    }
    for number in stored.notifications.iter().filter(|number| !expected.contains(number)) {
        let NotificationNumber { end, index } = NotificationNumber::read(*number);
        let ends: Vec<u64> = folded.ends.iter().map(|(end, _)| *end).collect();
        let message =
            format!("notification {index} about an end with event {end:?} waits, the run ended with {ends:?}");
        case.say(Code::NotificationStray, message);
    }
    Ok(())
}

fn payloads(case: &mut Case<'_>, folded: &Folded) {
    let mut rows: BTreeMap<u32, u64> = case.stored.payloads.iter().copied().collect();
    // A group or an iteration passes on the result of its last step: two events refer to the same payload.
    let recorded: BTreeSet<(u32, u64)> = folded.payloads.iter().copied().collect();
    for (number, length) in &recorded {
        match rows.remove(number) {
            Some(stored) if stored == *length => {}
            Some(stored) => {
                let message = format!("payload {number} has {stored} bytes, {length} were recorded");
                case.say(Code::PayloadMissing, message);
            }
            None => case.say(Code::PayloadMissing, format!("payload {number} of {length} bytes is missing")),
        }
    }
    for number in rows.into_keys() {
        case.say(Code::PayloadStray, format!("no event refers to payload {number}"));
    }
}

/// A run is created by one request. The scope of its key is its workflow, its type, the trigger that started it, the
/// notification it delivers or, for the retry of a failed task, that task.
fn keys(case: &mut Case<'_>, plan: &Plan, folded: &Folded) {
    let stored = case.stored;
    let own = stored.row.workflow.to_string();
    let trigger = folded.run.state.origin.trigger_id.map(|id| id.to_string());
    let task = plan.nodes().first().and_then(Node::task).filter(|_| plan.layout().form == Form::Task);
    let released = folded.run.state.origin.replayed_from.map(|id| id.to_string());
    let is_own = |(scope, key): &&(String, String)| {
        let scope = scope.as_str();
        scope == own
            || scope == "notice"
            || Some(scope) == trigger.as_deref()
            || scope == RELEASE && Some(key) == released.as_ref()
            || task.is_some_and(|task| scope.strip_prefix("type:") == Some(&task.name))
    };
    for (scope, key) in stored.keys.iter().filter(|pair| !is_own(pair)) {
        case.say(Code::KeyWrong, format!("the key `{key}` is within `{scope}`, the run is of {own}"));
    }
    if stored.keys.len() > 1 {
        case.say(Code::KeyWrong, format!("the run has {} keys", stored.keys.len()));
    }
}
