//! Rows of triggers and of their delivery log.

use crate::rows::IdempotencyKey;
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Timestamp, TriggerId, WorkflowId};

/// How many deliveries the log of each trigger keeps.
pub const DELIVERIES_KEPT: u64 = 1_000;
/// How many of them, the newest, keep their request and can be redelivered.
pub const REQUESTS_KEPT: u64 = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct TriggerRow {
    pub org: OrgId,
    pub id: TriggerId,
    pub name: String,
    pub kind: TriggerKind,
    pub workflow: WorkflowId,
    pub enabled: bool,
    pub note: Option<String>,
    /// Validated JSON, secrets included.
    pub config: String,
    /// Webhooks only; unique among all organisations.
    pub path: Option<String>,
    /// Created by the workflow's definition, and changed only with it.
    pub is_owned: bool,
    /// Incremented by every change through the API.
    pub revision: u32,
    /// Schedules only: the last fire time that was handled.
    pub cursor: Option<Timestamp>,
    /// Enabled schedules only: when to check for due fire times again.
    pub next_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub last_run_at: Option<Timestamp>,
    pub last_run: Option<RunId>,
}

#[derive(Clone, Debug)]
pub struct NewTrigger {
    pub row: TriggerRow,
    pub idempotency: Option<IdempotencyKey>,
}

/// Why a trigger cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerTaken {
    Path,
    /// The workflow does not exist (any more).
    Workflow,
    /// An earlier request with the idempotency key created this trigger.
    Key {
        trigger: TriggerId,
        fingerprint: [u8; 32],
    },
}

/// A change of a trigger.
#[derive(Clone, Debug)]
pub struct TriggerChange {
    /// The new row. Its revision is one more than the one the caller read.
    pub row: TriggerRow,
    /// The fire times are computed anew: `cursor` and `next_at` are taken from the row. Otherwise they keep their
    /// stored values.
    pub restarts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// The trigger is not the one the caller read, or it does not exist.
    Stale,
    PathTaken,
    /// The workflow does not exist (any more).
    NoWorkflow,
}

#[derive(Clone, Debug, Default)]
pub struct TriggerFilter {
    pub kind: Option<TriggerKind>,
    pub workflow: Option<WorkflowId>,
    /// The cursor: only triggers older than this one.
    pub before: Option<TriggerId>,
    pub limit: usize,
}

/// One line of a trigger's log: a fire time of its schedule, or a request it received.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveryRow {
    pub org: OrgId,
    pub trigger: TriggerId,
    /// Assigned by the store: counts up per trigger.
    pub seq: u64,
    /// Unique within the trigger. A delivery that is written again keeps its number.
    pub id: String,
    pub at: Timestamp,
    pub outcome: DeliveryOutcome,
    pub reason: String,
    pub run: Option<RunId>,
    pub nominal: Option<Timestamp>,
    /// The request as received. Lists leave it out.
    pub request: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Started,
    Queued,
    Skipped,
    Rejected,
    /// Open runs got a signal.
    Signalled,
}

impl DeliveryOutcome {
    pub const ALL: &'static [DeliveryOutcome] = &[
        DeliveryOutcome::Started,
        DeliveryOutcome::Queued,
        DeliveryOutcome::Skipped,
        DeliveryOutcome::Rejected,
        DeliveryOutcome::Signalled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryOutcome::Started => "started",
            DeliveryOutcome::Queued => "queued",
            DeliveryOutcome::Skipped => "skipped",
            DeliveryOutcome::Rejected => "rejected",
            DeliveryOutcome::Signalled => "signalled",
        }
    }

    pub fn parse(text: &str) -> Option<DeliveryOutcome> {
        DeliveryOutcome::ALL.iter().copied().find(|outcome| outcome.as_str() == text)
    }
}

/// Lines for a trigger's log and the new position of its schedule, written together or not at all.
#[derive(Clone, Debug)]
pub struct TriggerLog {
    pub org: OrgId,
    pub trigger: TriggerId,
    pub rows: Vec<DeliveryRow>,
    pub advance: Option<ScheduleAdvance>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleAdvance {
    /// The revision of the trigger when its fire times were computed. A trigger that changed since is not advanced.
    pub revision: u32,
    pub cursor: Option<Timestamp>,
    pub next_at: Option<Timestamp>,
}

/// The new row of an owned trigger: `wanted`, with the id, the `enabled` flag, the note and the history of the trigger
/// that exists.
pub(crate) fn owned(found: Option<&TriggerRow>, wanted: &TriggerRow) -> TriggerRow {
    let Some(old) = found else { return wanted.clone() };
    TriggerRow {
        id: old.id,
        enabled: old.enabled,
        note: old.note.clone(),
        revision: old.revision + 1,
        next_at: wanted.next_at.filter(|_| old.enabled),
        created_at: old.created_at,
        last_run: old.last_run,
        last_run_at: old.last_run_at,
        ..wanted.clone()
    }
}
