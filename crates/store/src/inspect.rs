//! Everything a store holds, in one consistent view: what `onward verify` judges.
//!
//! ```text
//!   database ──▶ what the database says of itself
//!   catalog  ──▶ workflows, versions, definitions, triggers
//!   walk     ──▶ every run with all that belongs to it, then every record in the order it was written
//! ```
//!
//! An inspection only reads, needs no lock, and hands out one run at a time, so its memory does not grow
//! with the store. It says what is there and what contradicts the shape of the tables; whether a run's
//! history makes sense is the judge's business. The rule that keeps it right: whatever cannot be read
//! is an [`Anomaly`], never passed over.

use crate::Result;
use crate::rows::{Definition, ReadyRow, RunRow, Wait};
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Timestamp, TriggerId, WorkflowId};

pub trait Inspection {
    /// The database's own checks, its schema and its settings. False when what follows makes no sense to
    /// read (another schema, or none yet).
    fn database(&self, each: &mut dyn FnMut(Anomaly)) -> Result<bool>;

    fn catalog(&self, each: &mut dyn FnMut(Catalogued)) -> Result<()>;

    /// Every run in the order of its id, then every record in the order of the journal.
    fn walk(&self, each: &mut dyn FnMut(Seen)) -> Result<()>;

    fn definition(&self, org: OrgId, hash: &[u8; 32]) -> Result<Option<Definition>>;

    fn payload(&self, org: OrgId, run: RunId, number: u32) -> Result<Option<Bytes>>;

    fn setting(&self, name: &str) -> Result<Option<String>>;

    /// Was it written by one process at a time? Then the records of all runs are in the order of their times.
    fn is_of_one_writer(&self) -> bool;

    /// Called last: is what was read one moment of the store?
    fn finish(&self) -> Result<()>;
}

/// One thing met on a walk.
pub enum Seen {
    Run(Box<StoredRun>),
    Record { pos: i64, org: OrgId, run: RunId, body: Bytes },
    Anomaly(Anomaly),
}

pub enum Catalogued {
    Workflow { org: OrgId, id: WorkflowId, version: u32, hash: [u8; 32] },
    Version { org: OrgId, workflow: WorkflowId, number: u32, hash: [u8; 32] },
    Definition { org: OrgId, definition: Definition },
    Trigger(Box<TriggerSeen>),
    Anomaly(Anomaly),
}

/// What the judge needs of a trigger.
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

/// A run with every row that names it.
#[derive(Debug)]
pub struct StoredRun {
    pub row: RunRow,
    /// Position of each record, oldest first, and its bytes. (Where records are found by their numbers, that is it.)
    pub records: Vec<(i64, Bytes)>,
    /// Why the chain of records could not be followed to its beginning.
    pub broken: Option<String>,
    /// Number of the last record as the row has it; exact for parked and ended runs. (Where rows do not have it, the
    /// number of records.)
    pub row_seq: u64,
    /// The hash `versions` has for the run's workflow and version.
    pub version: Option<[u8; 32]>,
    pub snapshots: Vec<SnapshotRow>,
    pub timers: Vec<Timestamp>,
    pub waits: Vec<Wait>,
    /// Its tasks where workers find them.
    pub ready: Vec<ReadyRow>,
    /// Numbers and lengths of stored payloads.
    pub payloads: Vec<(u32, u64)>,
    pub labels: Vec<(String, String)>,
    /// Scopes and names of the idempotency keys that made it.
    pub keys: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct SnapshotRow {
    pub seq: u64,
    pub pos: i64,
    pub body: Bytes,
}

/// Something that cannot be right whatever the runs mean.
#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: AnomalyKind,
    pub org: Option<OrgId>,
    pub run: Option<RunId>,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnomalyKind {
    /// The database's own check found damage.
    Database,
    ForeignKey,
    /// The schema is not the one this release knows.
    Schema,
    /// A column does not hold what it should.
    Unreadable,
    /// A row names a run or workflow that does not exist.
    Dangling,
    /// … but another organisation has it.
    OtherOrganisation,
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
