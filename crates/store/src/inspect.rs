//! Read-only access to everything a store holds, in one consistent snapshot, for `onward verify`.
//!
//! ```text
//!   database ──▶ the database's own checks
//!   catalog  ──▶ workflows, versions, definitions, triggers
//!   walk     ──▶ every run with all of its rows, then every record in the order it was written
//! ```
//!
//! An inspection takes no lock and yields one run at a time, so its memory does not grow with the store. It reports the
//! rows and the contradictions between tables; `engine::verify` checks whether the history of a run makes sense.
//!
//! Invariant: a row that cannot be read is reported as an [`Anomaly`], never skipped.

use crate::Result;
use crate::rows::{InboxRow, OpenWait, ReadyRow, RunRow, StoredDefinition, Wait};
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, RunStatus, Timestamp, TriggerId, WorkflowId};

/// How many rows of the inbox are read of a run: more than its children can write.
pub(crate) const RELATIVE_ROWS_MAX: usize = 100_000;

pub trait Inspection {
    /// The database's own checks, its schema and its settings. False when the tables cannot be read further, because
    /// the schema is another one or does not exist yet.
    fn database(&self, each: &mut dyn FnMut(Anomaly)) -> Result<bool>;

    fn catalog(&self, each: &mut dyn FnMut(Catalogued)) -> Result<()>;

    /// Every run in the order of its id, then every record in the order of the journal.
    fn walk(&self, each: &mut dyn FnMut(InspectedRow)) -> Result<()>;

    fn definition(&self, org: OrgId, hash: &[u8; 32], lowering: Option<u32>) -> Result<Option<StoredDefinition>>;

    fn payload(&self, org: OrgId, run: RunId, number: u32) -> Result<Option<Bytes>>;

    /// Did a request with this idempotency key create something? Keys outlive what they created.
    fn has_key(&self, org: OrgId, scope: &str, key: &str) -> Result<bool>;

    /// What another run has to know of a run.
    fn relative(&self, org: OrgId, run: RunId) -> Result<Relative>;

    fn setting(&self, name: &str) -> Result<Option<String>>;

    /// Was the store written by one process at a time? If so, the records of all runs are in the order of their times.
    fn has_single_writer(&self) -> bool;

    /// Called last: fails if the store changed while it was read, so that the reads are not one snapshot.
    fn finish(&self) -> Result<()>;
}

/// One item of a walk.
pub enum InspectedRow {
    Run(Box<StoredRun>),
    Record { pos: i64, org: OrgId, run: RunId, body: Bytes },
    Anomaly(Anomaly),
}

pub enum Catalogued {
    Workflow { org: OrgId, id: WorkflowId, version: u32, hash: [u8; 32] },
    Version { org: OrgId, workflow: WorkflowId, number: u32, hash: [u8; 32], source: Option<Bytes> },
    Definition { org: OrgId, definition: StoredDefinition },
    Trigger(Box<TriggerSeen>),
    Anomaly(Anomaly),
}

/// The columns of a trigger that `verify` checks.
#[derive(Debug)]
pub struct TriggerSeen {
    pub org: OrgId,
    pub id: TriggerId,
    pub workflow: WorkflowId,
    pub kind: TriggerKind,
    pub config: String,
    pub enabled: bool,
    pub next_at: Option<Timestamp>,
}

/// A run with every row that refers to it.
#[derive(Debug)]
pub struct StoredRun {
    pub row: RunRow,
    /// Position of each record, oldest first, and its bytes. (On Postgres, its number in the run instead of a
    /// position.)
    pub records: Vec<(i64, Bytes)>,
    /// Why the chain of records could not be followed to its beginning.
    pub broken: Option<String>,
    /// Number of the last record according to the `runs` row; exact for evicted and ended runs. (On Postgres, which has
    /// no such column, the number of records.)
    pub row_seq: u64,
    /// The hash in `versions` of the run's workflow and version.
    pub version: Option<[u8; 32]>,
    pub snapshots: Vec<SnapshotRow>,
    pub timers: Vec<Timestamp>,
    /// Its callback tokens.
    pub waits: Vec<Wait>,
    pub open_waits: Vec<OpenWait>,
    /// Its rows in `ready`.
    pub ready: Vec<ReadyRow>,
    /// The numbers of its notifications that are not delivered yet.
    pub notifications: Vec<u64>,
    /// Numbers and lengths of stored payloads.
    pub payloads: Vec<(u32, u64)>,
    pub labels: Vec<(String, String)>,
    /// Scopes and names of the idempotency keys that created it.
    pub keys: Vec<(String, String)>,
}

/// A run as its parent and its children see it.
#[derive(Debug)]
pub struct Relative {
    /// `None` if there is no such run.
    pub status: Option<RunStatus>,
    /// Its rows of the inbox that no record has consumed.
    pub inbox: Vec<InboxRow>,
}

#[derive(Clone, Debug)]
pub struct SnapshotRow {
    pub seq: u64,
    pub pos: i64,
    pub body: Bytes,
}

/// A contradiction in the stored data that can be seen without decoding any record.
#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: AnomalyKind,
    pub org: Option<OrgId>,
    pub run: Option<RunId>,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnomalyKind {
    /// The database's own checks found damage.
    Database,
    ForeignKey,
    /// The schema is not the one this release knows.
    Schema,
    /// A column has an unexpected value.
    Unreadable,
    /// A row refers to a run or workflow that does not exist.
    Dangling,
    /// A row refers to a run of another organisation.
    OtherOrganisation,
    /// A caller's row of the inbox that no record will consume, because its run does not exist.
    InboxStray,
    /// A record that no run's chain leads to.
    Orphan,
    /// A position in the journal without a record.
    Gap,
    Setting,
}

impl Anomaly {
    pub(crate) fn new(kind: AnomalyKind, what: impl Into<String>) -> Anomaly {
        Anomaly { kind, org: None, run: None, what: what.into() }
    }

    pub(crate) fn of(self, org: Option<OrgId>, run: Option<RunId>) -> Anomaly {
        Anomaly { org, run, ..self }
    }
}
