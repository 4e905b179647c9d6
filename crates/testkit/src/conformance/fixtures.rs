//! Rows and writes with every field filled in, so that a case names only the fields it is about.

use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::inbox::InboxKind;
use kernel::plan::Form;
use kernel::{InboxId, OrgId, Record, RunId, RunStatus, Timestamp, TriggerId, WorkflowId};
use std::num::NonZeroU32;
use store::{
    Batch, ConsumedRow, DeliveryOutcome, DeliveryRow, IdempotencyKey, InboxKey, InboxRow, LimitSlotChange, NewWorkflow,
    QueueKey, QueuePosition, ReadyChange, ReadyRow, RunInsert, RunRow, RunWrite, StoredDefinition, TimerChange,
    TriggerRow, TypeRow, Wait, WaitChange, WorkerRow, WorkflowRow,
};

pub const ORG: OrgId = OrgId::DEFAULT;
pub const OTHER_ORG: OrgId = OrgId(2);

/// The id of run number `n`; larger numbers are newer.
pub fn run(n: u64) -> RunId {
    let mut random = [7; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    RunId::new(Timestamp::from_millis(1_000 + n as i64), random)
}

pub fn workflow_id(n: u64) -> WorkflowId {
    WorkflowId(run(n).0)
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

/// A valid, sealed record; different for every run, number and time.
pub fn record(run: RunId, seq: u64, at: Timestamp) -> Bytes {
    let tag = u64::from_be_bytes(run.0[8..].try_into().unwrap_or_default());
    Record { at, first: seq << 32 | tag & 0xffff_ffff, ..Default::default() }.seal()
}

pub fn row(org: OrgId, id: RunId, status: RunStatus) -> RunRow {
    RunRow {
        org,
        id,
        workflow: workflow_id(u64::from(id.0[15] % 3)),
        workflow_name: "order \u{0} ünïcode".into(),
        version: 3,
        hash: [9; 32],
        lowering: 3,
        form: Form::Graph,
        status,
        waiting: if status == RunStatus::Waiting { 0b110 } else { 0 },
        wake_at: None,
        created_at: at(100 + i64::from(id.0[15])),
        expires_at: Timestamp::NEVER,
        finished_at: status.is_terminal().then(|| at(500)),
        error_code: (status == RunStatus::Failed).then(|| "step_failed".into()),
        failed_steps: status
            .is_terminal()
            .then(|| if status == RunStatus::Failed { "a!".into() } else { String::new() }),
        concurrency_group: None,
        evicted: status.is_evicted(),
        deleted_at: None,
    }
}

/// The first record of a run, which creates it.
pub fn start(id: RunId) -> RunWrite {
    start_in(ORG, id)
}

pub fn start_in(org: OrgId, id: RunId) -> RunWrite {
    RunWrite { row: Some(row(org, id, RunStatus::Running)), ..append_in(org, id, 0) }
}

/// A record after number `after`, and nothing else.
pub fn append(id: RunId, after: u64) -> RunWrite {
    append_in(ORG, id, after)
}

pub fn append_in(org: OrgId, id: RunId, after: u64) -> RunWrite {
    RunWrite {
        org,
        run: id,
        after,
        record: record(id, after + 1, at(1_000)),
        row: None,
        is_moved: false,
        snapshot: None,
        timer: TimerChange::default(),
        payloads: Vec::new(),
        ready: ReadyChange::default(),
        limit_slots: LimitSlotChange::default(),
        notifications: Vec::new(),
        tokens: Vec::new(),
        waits: WaitChange::default(),
        consumed: Vec::new(),
        outgoing: Vec::new(),
        run_insert: None,
        atomic_group: None,
    }
}

/// A record that changes the status of the run.
pub fn turn(id: RunId, after: u64, status: RunStatus) -> RunWrite {
    RunWrite { row: Some(row(ORG, id, status)), ..append(id, after) }
}

/// Evicts the run, with a timer at `wake`.
pub fn park(id: RunId, after: u64, wake: Timestamp) -> RunWrite {
    let row = RunRow { wake_at: Some(wake), ..row(ORG, id, RunStatus::Waiting) };
    RunWrite {
        row: Some(row),
        snapshot: Some(state(id, after + 1)),
        timer: TimerChange { remove: None, insert: Some(wake) },
        ..append(id, after)
    }
}

pub fn inbox_key(org: OrgId, id: RunId, n: u8) -> InboxKey {
    (org, id, InboxId([n; 16]))
}

/// Row number `n` of the run's inbox; larger numbers were written later.
pub fn inbox_row(org: OrgId, id: RunId, n: u8) -> InboxRow {
    let body = Bytes::from(vec![n, 0, 255]);
    let (key, written_at) = (inbox_key(org, id, n), at(100 + i64::from(n)));
    InboxRow { key, kind: InboxKind::Input, body, written_at, sender: None }
}

/// The answer that [`consume`] gives to row number `n`.
pub fn inbox_answer(n: u8) -> Bytes {
    Bytes::from(vec![0, n])
}

/// A row that is consumed with an answer.
pub fn answered_row(key: InboxKey, answer: Bytes) -> ConsumedRow {
    ConsumedRow { key, answer: Some(answer) }
}

/// Consumes rows of the run's inbox.
pub fn consume(write: RunWrite, rows: &[u8]) -> RunWrite {
    let consumed = rows.iter().map(|n| answered_row(inbox_key(write.org, write.run, *n), inbox_answer(*n)));
    RunWrite { consumed: consumed.collect(), ..write }
}

pub fn queue(org: OrgId, name: &str, key: &str) -> QueueKey {
    QueueKey { org, name: name.into(), key: key.into() }
}

/// A ready task of the run, in the queue of its type without a key.
pub fn task(id: RunId, step: u32, name: &str, priority: u32) -> ReadyRow {
    ReadyRow { queue: queue(ORG, name, ""), position: QueuePosition { priority, run: id, step } }
}

/// Evicts a running run, with ready tasks that workers can claim.
pub fn offer(id: RunId, after: u64, insert: Vec<ReadyRow>) -> RunWrite {
    let row = RunRow { evicted: true, ..row(ORG, id, RunStatus::Running) };
    RunWrite { row: Some(row), ready: ReadyChange { remove: Vec::new(), insert }, ..append(id, after) }
}

/// A type without any settings.
pub fn plain_type(org: OrgId, name: &str) -> TypeRow {
    TypeRow {
        org,
        name: name.into(),
        runtime: None,
        description: None,
        enabled: true,
        paused: None,
        limit: None,
        limit_per_key: None,
        rate: None,
        created_at: at(1),
        updated_at: at(1),
    }
}

pub fn worker(org: OrgId, id: &str, last_seen: Timestamp) -> WorkerRow {
    WorkerRow {
        org,
        id: id.into(),
        types: r#"["mail.%"]"#.into(),
        runtime: None,
        version: Some("1.2".into()),
        slots: Some(4),
        first_seen: at(1),
        last_seen,
    }
}

pub fn state(id: RunId, seq: u64) -> Bytes {
    Bytes::from(format!("state of {id} at {seq}"))
}

pub fn wait(org: OrgId, run: RunId, step: u32, token: u8) -> Wait {
    Wait { org, run, step, token_hash: [token; 32], kind: "webhook".into() }
}

pub fn key(name: &str, fingerprint: u8) -> IdempotencyKey {
    IdempotencyKey { scope: "order".into(), key: name.into(), fingerprint: [fingerprint; 32], created_at: at(1) }
}

pub fn born(write: RunWrite, run_insert: RunInsert) -> RunWrite {
    RunWrite { run_insert: Some(Box::new(run_insert)), ..write }
}

pub fn batch(runs: impl Into<Vec<RunWrite>>) -> Batch {
    Batch { at: at(1_000), epoch: 1, runs: runs.into() }
}

/// Puts writes into one atomic group: all of them are committed, or none.
pub fn atomic_group(mark: u32, runs: impl IntoIterator<Item = RunWrite>) -> Vec<RunWrite> {
    runs.into_iter().map(|write| RunWrite { atomic_group: NonZeroU32::new(mark), ..write }).collect()
}

pub fn new_workflow(n: u64, name: &str, slug: &str) -> NewWorkflow {
    let hash = [n as u8; 32];
    let row = WorkflowRow {
        org: ORG,
        id: workflow_id(n),
        name: name.into(),
        slug: slug.into(),
        description: n.is_multiple_of(2).then(|| "what it is for".into()),
        tags: r#"["a","b"]"#.into(),
        form: Form::Steps,
        trigger: "api".into(),
        steps: 4,
        enabled: !n.is_multiple_of(3),
        version: 1,
        hash,
        lowering: 0,
        created_at: at(n as i64),
        updated_at: at(n as i64 + 1),
        deleted_at: None,
    };
    let definition = StoredDefinition {
        hash,
        lowering: 0,
        source: Bytes::from(format!("{{\"n\":{n}}}")),
        plan: Bytes::from_static(b"plan"),
    };
    NewWorkflow { row, definition, slug_is_given: true, idempotency: None, trigger: None }
}

pub fn trigger_id(n: u64) -> TriggerId {
    TriggerId(run(n).0)
}

/// A schedule of workflow number `workflow`.
pub fn trigger(n: u64, workflow: u64) -> TriggerRow {
    TriggerRow {
        org: ORG,
        id: trigger_id(n),
        name: format!("trigger {n}"),
        kind: TriggerKind::Schedule,
        workflow: workflow_id(workflow),
        enabled: true,
        note: None,
        config: r#"{"cron":"* * * * *"}"#.into(),
        path: None,
        is_owned: false,
        revision: 1,
        cursor: Some(at(60)),
        next_at: Some(at(120)),
        created_at: at(5),
        updated_at: at(6),
        last_run_at: None,
        last_run: None,
    }
}

pub fn hook(n: u64, workflow: u64, path: &str) -> TriggerRow {
    let config = format!(r#"{{"path":"{path}"}}"#);
    let (kind, path) = (TriggerKind::Webhook, Some(path.to_owned()));
    TriggerRow { kind, config, path, cursor: None, next_at: None, ..trigger(n, workflow) }
}

pub fn delivery(n: u64, id: &str, outcome: DeliveryOutcome) -> DeliveryRow {
    DeliveryRow {
        org: ORG,
        trigger: trigger_id(n),
        seq: 0,
        id: id.into(),
        at: at(200),
        outcome,
        reason: "why".into(),
        run: None,
        nominal: Some(at(180)),
        request: None,
    }
}
