//! The database's own checks, its schema and settings, and the tables of workflows and triggers.

use super::super::catalog::{self, EPOCH};
use super::super::columns::{named, org, run_id, sql, time_or_none};
use super::super::errors::on_read;
use super::super::migrations;
use super::super::run_heads::RECOVERY_POS;
use super::cursor::{raw_key, unreadable};
use crate::inspect::{Anomaly, AnomalyKind, Catalogued, TriggerSeen};
use crate::rows::StoredDefinition;
use crate::{Error, Result};
use kernel::event::TriggerKind;
use kernel::{TriggerId, WorkflowId};
use rusqlite::{Connection, Row};

/// Most findings that SQLite's integrity check reports.
const FINDINGS_MAX: u32 = 100;

pub(super) fn database(connection: &Connection, each: &mut dyn FnMut(Anomaly)) -> Result<bool> {
    let mut check = connection.prepare(&format!("PRAGMA integrity_check({FINDINGS_MAX})")).map_err(on_read)?;
    let mut findings = check.query([]).map_err(on_read)?;
    while let Some(row) = findings.next().map_err(on_read)? {
        let finding: String = row.get(0).map_err(on_read)?;
        if finding != "ok" {
            each(Anomaly::new(AnomalyKind::Database, finding));
        }
    }
    let mut check = connection.prepare("PRAGMA foreign_key_check").map_err(on_read)?;
    let mut findings = check.query([]).map_err(on_read)?;
    while let Some(row) = findings.next().map_err(on_read)? {
        let (table, parent): (String, String) = (row.get(0).map_err(on_read)?, row.get(2).map_err(on_read)?);
        let what = format!("a row of `{table}` refers to a row of `{parent}` that is not there");
        each(Anomaly::new(AnomalyKind::ForeignKey, what));
    }
    match migrations::pending(connection) {
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
    settings(connection, each)?;
    Ok(true)
}

/// Checks the settings that a start relies on.
fn settings(connection: &Connection, each: &mut dyn FnMut(Anomaly)) -> Result<()> {
    let newest: Option<i64> =
        catalog::value(connection, "SELECT max(pos) FROM journal", []).map_err(on_read)?.flatten();
    for (name, most) in [(RECOVERY_POS, newest.unwrap_or(0)), (EPOCH, i64::MAX)] {
        let Some(text) = catalog::setting(connection, name)? else { continue };
        if !text.parse::<i64>().is_ok_and(|number| (0..=most).contains(&number)) {
            let what = format!("the setting `{name}` is `{text}`, expected a number up to {most}");
            each(Anomaly::new(AnomalyKind::Setting, what));
        }
    }
    Ok(())
}

pub(super) fn catalog(connection: &Connection, each: &mut dyn FnMut(Catalogued)) -> Result<()> {
    table(connection, "workflows", sql!("inspect_workflows"), workflow, each)?;
    table(connection, "versions", sql!("inspect_versions"), version, each)?;
    table(connection, "definitions", sql!("inspect_definitions"), definition, each)?;
    table(connection, "triggers", sql!("inspect_triggers"), trigger, each)?;
    table(connection, "deliveries", sql!("inspect_deliveries"), dangling_delivery, each)?;
    table(connection, "idempotency", sql!("inspect_workflow_keys"), dangling_key, each)?;
    table(connection, "inbox", sql!("inspect_inbox"), stray_inbox, each)
}

fn table(
    connection: &Connection,
    name: &str,
    statement: &str,
    read: fn(&Row<'_>) -> rusqlite::Result<Catalogued>,
    each: &mut dyn FnMut(Catalogued),
) -> Result<()> {
    let mut statement = connection.prepare(statement).map_err(on_read)?;
    let mut rows = statement.query([]).map_err(on_read)?;
    while let Some(row) = rows.next().map_err(on_read)? {
        let read = read(row).or_else(|error| {
            let (org, _) = raw_key(row, 0)?;
            Ok(Catalogued::Anomaly(unreadable(name, &(org, Vec::new()), &error)))
        });
        each(read.map_err(on_read)?);
    }
    Ok(())
}

fn workflow(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    let (org, id) = (org(row, 0)?, WorkflowId(row.get(1)?));
    Ok(Catalogued::Workflow { org, id, version: row.get(2)?, hash: row.get(3)? })
}

fn version(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    let (org, workflow) = (org(row, 0)?, WorkflowId(row.get(1)?));
    let source: Option<Vec<u8>> = row.get(4)?;
    Ok(Catalogued::Version { org, workflow, number: row.get(2)?, hash: row.get(3)?, source: source.map(Into::into) })
}

fn definition(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    let (source, plan): (Vec<u8>, Vec<u8>) = (row.get(3)?, row.get(4)?);
    let (hash, lowering) = (row.get(1)?, row.get(2)?);
    let definition = StoredDefinition { hash, lowering, source: source.into(), plan: plan.into() };
    Ok(Catalogued::Definition { org: org(row, 0)?, definition })
}

fn trigger(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    Ok(Catalogued::Trigger(Box::new(TriggerSeen {
        org: org(row, 0)?,
        id: TriggerId(row.get(1)?),
        workflow: WorkflowId(row.get(2)?),
        kind: named(row, 3, TriggerKind::parse)?,
        config: row.get(4)?,
        enabled: row.get(5)?,
        next_at: time_or_none(row, 6)?,
    })))
}

/// The statement returns only deliveries whose trigger does not exist.
fn dangling_delivery(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    let (org, id): (_, String) = (org(row, 0)?, row.get(2)?);
    let what = format!("the delivery `{id}` is of a trigger that does not exist");
    Ok(Catalogued::Anomaly(Anomaly::new(AnomalyKind::Dangling, what).of(Some(org), None)))
}

/// The statement returns only keys whose workflow does not exist.
fn dangling_key(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    let (org, key): (_, String) = (org(row, 0)?, row.get(2)?);
    let what = format!("the idempotency key `{key}` made a workflow that does not exist");
    Ok(Catalogued::Anomaly(Anomaly::new(AnomalyKind::Dangling, what).of(Some(org), None)))
}

/// The statement returns only rows whose run does not exist.
fn stray_inbox(row: &Row<'_>) -> rusqlite::Result<Catalogued> {
    let (org, run, kind): (_, _, String) = (org(row, 0)?, run_id(row, 1)?, row.get(2)?);
    let what = format!("an inbox row of the kind `{kind}`");
    Ok(Catalogued::Anomaly(Anomaly::new(AnomalyKind::InboxStray, what).of(Some(org), Some(run))))
}
