//! Rows of triggers and of what they did.

use crate::rows::IdempotencyKey;
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Timestamp, TriggerId, WorkflowId};

/// Deliveries kept of each trigger.
pub const DELIVERIES_KEPT: u64 = 1_000;
/// … of which the newest can be delivered again.
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
    /// Checked JSON, secrets included.
    pub config: String,
    /// Of webhooks; unique among all organisations.
    pub path: Option<String>,
    /// Made by the workflow's own definition, and changed only with it.
    pub is_owned: bool,
    /// Counts the changes people made.
    pub revision: u32,
    /// Of schedules: the last nominal moment that is dealt with.
    pub cursor: Option<Timestamp>,
    /// Of schedules that are enabled: when to look again.
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

/// Why a trigger cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerTaken {
    Path,
    /// There is no such workflow (any more).
    Workflow,
    /// The idempotency key made this trigger before.
    Key {
        trigger: TriggerId,
        fingerprint: [u8; 32],
    },
}

/// A trigger as it is to be from now on.
#[derive(Clone, Debug)]
pub struct TriggerChange {
    /// Its revision is one more than the one that was read.
    pub row: TriggerRow,
    /// Its moments are counted anew: `cursor` and `next_at` are taken from the row. Otherwise they stay as
    /// the schedule has them by now.
    pub restarts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// It is not as it was read, or not there.
    Stale,
    PathTaken,
    /// There is no such workflow (any more).
    NoWorkflow,
}

#[derive(Clone, Debug, Default)]
pub struct TriggerFilter {
    pub kind: Option<TriggerKind>,
    pub workflow: Option<WorkflowId>,
    /// Only triggers older than this one: the cursor.
    pub before: Option<TriggerId>,
    pub limit: usize,
}

/// One thing a trigger did: a moment of its schedule, or a request it was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveryRow {
    pub org: OrgId,
    pub trigger: TriggerId,
    /// Given by the store: counts up per trigger.
    pub seq: u64,
    /// Unique within the trigger. One that is written again keeps its number.
    pub id: String,
    pub at: Timestamp,
    pub outcome: DeliveryOutcome,
    pub reason: String,
    pub run: Option<RunId>,
    pub nominal: Option<Timestamp>,
    /// The request as it came. Lists leave it out.
    pub request: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Started,
    Queued,
    Skipped,
    Rejected,
}

impl DeliveryOutcome {
    pub const ALL: &'static [DeliveryOutcome] =
        &[DeliveryOutcome::Started, DeliveryOutcome::Queued, DeliveryOutcome::Skipped, DeliveryOutcome::Rejected];

    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryOutcome::Started => "started",
            DeliveryOutcome::Queued => "queued",
            DeliveryOutcome::Skipped => "skipped",
            DeliveryOutcome::Rejected => "rejected",
        }
    }

    pub fn parse(text: &str) -> Option<DeliveryOutcome> {
        DeliveryOutcome::ALL.iter().copied().find(|outcome| outcome.as_str() == text)
    }
}

/// Lines for a trigger's log, and how far its schedule is with them; all or nothing.
#[derive(Clone, Debug)]
pub struct TriggerLog {
    pub org: OrgId,
    pub trigger: TriggerId,
    pub rows: Vec<DeliveryRow>,
    pub advance: Option<ScheduleAdvance>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleAdvance {
    /// Of the trigger whose moments were counted; one that was changed since is not moved.
    pub revision: u32,
    pub cursor: Option<Timestamp>,
    pub next_at: Option<Timestamp>,
}

/// What an owned trigger becomes: the wish, under the id and switches of the one that is there.
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
