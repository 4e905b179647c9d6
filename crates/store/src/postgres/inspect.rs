//! Read-only inspection of a database in one transaction, whether or not nodes use it.
//!
//! See [`crate::inspect`] for what an inspection reads. The transaction sees one snapshot. It takes no locks that
//! block other sessions, but while it is open the server cannot vacuum rows that are deleted meanwhile. [`walk`]
//! reads the runs and the journal; this module reads the other tables.
//!
//! The calls block, so the caller must not run in a Tokio runtime.

mod cursor;
mod walk;

use super::catalog;
use super::columns::{Attempted, Id, blob, get, hash, id, named, number, org, org_of, run_id, sql, text, time_or_none};
use super::errors::Failure;
use super::inbox;
use super::journal::{self, ERASED_UNTIL};
use super::migrations;
use super::session::Session;
use super::target::Target;
use crate::inspect::{
    Anomaly, AnomalyKind, Catalogued, InspectedRow, Inspection, RELATIVE_ROWS_MAX, Relative, TriggerSeen,
};
use crate::rows::StoredDefinition;
use crate::{Error, Result};
use bytes::Bytes;
use cursor::Cursor;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, RunStatus, TriggerId, WorkflowId};
use tokio::runtime::Runtime;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// The setting under which `verify` reads the newest epoch. On Postgres it is computed from the table of nodes.
const EPOCH: &str = "epoch";

/// An inspection sorts and reads whole tables, so it allows the plans and removes the timeouts that other sessions
/// have.
const SETTINGS: &str = "
SET enable_seqscan = on;
SET enable_bitmapscan = on;
SET enable_sort = on;
SET enable_hashjoin = on;
SET enable_mergejoin = on;
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub struct PostgresInspection {
    session: Session,
    runtime: Runtime,
}

impl PostgresInspection {
    /// Connects and begins the read transaction. Must not be called inside a Tokio runtime.
    pub fn open(url: &str) -> Result<PostgresInspection> {
        let target = Target::parse(url)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::Unavailable(e.to_string()))?;
        let session = runtime.block_on(Session::open(&target))?;
        let inspection = PostgresInspection { session, runtime };
        inspection.wait(inspection.session.batch(SETTINGS))?;
        // Postgres takes its snapshot with the first read.
        inspection.query("SELECT 1", &[])?;
        Ok(inspection)
    }

    fn wait<T>(&self, work: impl Future<Output = Attempted<T>>) -> Result<T> {
        self.runtime.block_on(work).map_err(Failure::unwritten)
    }

    fn query(&self, text: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.wait(self.session.query(text, params))
    }

    fn exists(&self, statement: &'static str, org: i32, id: [u8; 16]) -> Result<bool> {
        Ok(!self.query(statement, &[&org, &Id(id)])?.is_empty())
    }

    /// Yields every row of a table of workflows or triggers.
    fn table(&self, name: &'static str, cursor: Cursor<Catalogued>, each: &mut dyn FnMut(Catalogued)) -> Result<()> {
        let mut cursor = cursor;
        while let Some(row) = cursor.next(self)? {
            let owner = org(&row, 0).ok();
            each(
                (cursor.read)(&row)
                    .unwrap_or_else(|failure| Catalogued::Anomaly(unreadable(name, owner, None, failure))),
            );
        }
        Ok(())
    }
}

impl Inspection for PostgresInspection {
    /// Checks the schema and the settings. Postgres has its own tools to check the files of a database.
    fn database(&self, each: &mut dyn FnMut(Anomaly)) -> Result<bool> {
        match self.runtime.block_on(migrations::pending(&self.session)) {
            Ok([]) => {}
            Ok(pending) if pending.len() == migrations::count() => return Ok(false),
            Ok(pending) => {
                let what = format!("{} migrations have not been applied; start the server once", pending.len());
                each(Anomaly::new(AnomalyKind::Schema, what));
                return Ok(false);
            }
            Err(Error::Refused(why) | Error::Corrupt(why)) => {
                each(Anomaly::new(AnomalyKind::Schema, why));
                return Ok(false);
            }
            Err(other) => return Err(other),
        }
        if let Some(text) = self.setting(ERASED_UNTIL)?.filter(|text| text.parse::<i64>().is_err()) {
            let what = format!("the setting `{ERASED_UNTIL}` is `{text}`, expected a time");
            each(Anomaly::new(AnomalyKind::Setting, what));
        }
        Ok(true)
    }

    fn catalog(&self, each: &mut dyn FnMut(Catalogued)) -> Result<()> {
        let open = |name, statement, fetch, read| Cursor::new(self, name, statement, fetch, read);
        use cursor::fetch;
        self.table("workflows", open("workflows", sql!("inspect_workflows"), fetch!("workflows"), workflow)?, each)?;
        self.table("versions", open("versions", sql!("inspect_versions"), fetch!("versions"), version)?, each)?;
        self.table(
            "definitions",
            open("definitions", sql!("inspect_definitions"), fetch!("definitions"), definition)?,
            each,
        )?;
        self.table("triggers", open("triggers", sql!("inspect_triggers"), fetch!("triggers"), trigger)?, each)?;
        let deliveries = open("deliveries", sql!("inspect_deliveries"), fetch!("deliveries"), dangling_delivery)?;
        self.table("deliveries", deliveries, each)?;
        let keys = open("workflow_keys", sql!("inspect_workflow_keys"), fetch!("workflow_keys"), dangling_key)?;
        self.table("idempotency", keys, each)?;
        self.table("inbox", open("inbox", sql!("inspect_inbox"), fetch!("inbox"), stray_inbox)?, each)
    }

    fn walk(&self, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
        walk::walk(self, each)
    }

    fn definition(&self, org: OrgId, hash: &[u8; 32], lowering: Option<u32>) -> Result<Option<StoredDefinition>> {
        self.wait(catalog::definition(&self.session, org, *hash, lowering))
    }

    fn payload(&self, org: OrgId, run: RunId, number: u32) -> Result<Option<Bytes>> {
        Ok(self.wait(journal::payloads(&self.session, org, run, &[number]))?.pop().map(|(_, body)| body))
    }

    fn has_key(&self, org: OrgId, scope: &str, key: &str) -> Result<bool> {
        Ok(!self.query(sql!("idempotency"), &[&org_of(org), &scope, &key])?.is_empty())
    }

    fn relative(&self, org: OrgId, run: RunId) -> Result<Relative> {
        let found = self.query(sql!("inspect_run_status"), &[&org_of(org), &Id(run.0)])?;
        let status =
            found.first().map(|row| named(row, 0, RunStatus::parse)).transpose().map_err(Failure::unwritten)?;
        let inbox = self.wait(inbox::of_run(&self.session, (org, run), RELATIVE_ROWS_MAX))?;
        Ok(Relative { status, inbox })
    }

    fn setting(&self, name: &str) -> Result<Option<String>> {
        if name == EPOCH {
            let newest = self.query(sql!("postgres/node_newest"), &[])?;
            let newest = newest.first().map_or(Ok(None), |row| get::<Option<i64>>(row, 0)).map_err(Failure::unwritten);
            return Ok(newest?.map(|epoch| epoch.to_string()));
        }
        self.wait(catalog::setting(&self.session, name))
    }

    fn has_single_writer(&self) -> bool {
        false
    }

    /// All reads were in one transaction and saw one snapshot, so there is nothing more to check.
    fn finish(&self) -> Result<()> {
        self.wait(self.session.batch("COMMIT"))
    }
}

fn unreadable(table: &str, org: Option<OrgId>, run: Option<RunId>, failure: Failure) -> Anomaly {
    Anomaly::new(AnomalyKind::Unreadable, format!("a row of `{table}`: {}", failure.unwritten())).of(org, run)
}

fn workflow(row: &Row) -> Attempted<Catalogued> {
    let (org, id) = (org(row, 0)?, WorkflowId(id(row, 1)?));
    Ok(Catalogued::Workflow { org, id, version: number(row, 2)?, hash: hash(row, 3)? })
}

fn version(row: &Row) -> Attempted<Catalogued> {
    let (org, workflow) = (org(row, 0)?, WorkflowId(id(row, 1)?));
    let source: Option<Vec<u8>> = get(row, 4)?;
    Ok(Catalogued::Version {
        org,
        workflow,
        number: number(row, 2)?,
        hash: hash(row, 3)?,
        source: source.map(Into::into),
    })
}

fn definition(row: &Row) -> Attempted<Catalogued> {
    let definition =
        StoredDefinition { hash: hash(row, 1)?, lowering: number(row, 2)?, source: blob(row, 3)?, plan: blob(row, 4)? };
    Ok(Catalogued::Definition { org: org(row, 0)?, definition })
}

fn trigger(row: &Row) -> Attempted<Catalogued> {
    Ok(Catalogued::Trigger(Box::new(TriggerSeen {
        org: org(row, 0)?,
        id: TriggerId(id(row, 1)?),
        workflow: WorkflowId(id(row, 2)?),
        kind: named(row, 3, TriggerKind::parse)?,
        config: text(row, 4)?,
        enabled: get(row, 5)?,
        next_at: time_or_none(row, 6)?,
    })))
}

/// The statement returns only deliveries whose trigger does not exist.
fn dangling_delivery(row: &Row) -> Attempted<Catalogued> {
    let what = format!("the delivery `{}` is of a trigger that does not exist", text(row, 2)?);
    Ok(Catalogued::Anomaly(Anomaly::new(AnomalyKind::Dangling, what).of(Some(org(row, 0)?), None)))
}

/// The statement returns only keys whose workflow does not exist.
fn dangling_key(row: &Row) -> Attempted<Catalogued> {
    let what = format!("the idempotency key `{}` made a workflow that does not exist", text(row, 2)?);
    Ok(Catalogued::Anomaly(Anomaly::new(AnomalyKind::Dangling, what).of(Some(org(row, 0)?), None)))
}

/// The statement returns only rows whose run does not exist.
fn stray_inbox(row: &Row) -> Attempted<Catalogued> {
    let what = format!("an inbox row of the kind `{}`", text(row, 2)?);
    let (org, run) = (org(row, 0)?, run_id(row, 1)?);
    Ok(Catalogued::Anomaly(Anomaly::new(AnomalyKind::InboxStray, what).of(Some(org), Some(run))))
}

/// The stored form of an organisation.
fn owner(org: OrgId) -> i32 {
    org_of(org)
}
