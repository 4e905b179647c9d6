//! Workflows, their definitions, and the installation's settings: the rows that are not about runs.
//!
//! Writes run inside a transaction of the one writer, so a check and the insert that follows it cannot
//! be separated; the unique indexes are there for people with other tools.

use super::columns::{AFTER_EVERY_ID, limit, sql, version_row, workflow_row};
use super::errors::{Failure, on_read};
use super::triggers;
use crate::rows::{
    Definition, Edited, IdempotencyKey, NewWorkflow, OwnTrigger, Taken, VersionKey, VersionRow, WorkflowEdit,
    WorkflowFilter, WorkflowKey, WorkflowRow,
};
use crate::write_validation::slugs;
use crate::{Error, Result};
use kernel::{OrgId, Timestamp, WorkflowId};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, params};

pub(super) const EPOCH: &str = "epoch";

pub(super) fn create_workflow(
    connection: &Connection,
    new: &NewWorkflow,
) -> std::result::Result<std::result::Result<(), Taken>, Failure> {
    let NewWorkflow { row, definition, slug_is_given, idempotency, trigger } = new;
    if let Some(key) = idempotency
        && let Some((made, fingerprint)) = holder(connection, row.org, &key.scope, &key.key)?
    {
        return Ok(Err(Taken::Key { workflow: WorkflowId(made), fingerprint }));
    }
    if exists(connection, sql!("workflow_exists"), params![row.org.0, row.id.0])? {
        return Err(Failure::Other(Error::Refused(format!("the workflow {} exists already", row.id))));
    }
    if exists(connection, sql!("workflow_by_name"), params![row.org.0, row.name])? {
        return Ok(Err(Taken::Name));
    }
    let Some(slug) = free_slug(connection, row, *slug_is_given)? else { return Ok(Err(Taken::Slug)) };
    if !triggers::put_owned(connection, row.org, row.id, trigger.as_ref())? {
        return Ok(Err(Taken::Path));
    }
    connection.prepare_cached(sql!("workflow_insert"))?.execute(params![
        row.org.0,
        row.id.0,
        row.name,
        slug,
        row.description,
        row.tags,
        row.form.as_str(),
        row.trigger,
        row.steps,
        row.enabled,
        row.version,
        row.hash,
        row.created_at.0,
        row.updated_at.0,
    ])?;
    put_version(connection, row, definition, "create", row.created_at)?;
    if let Some(IdempotencyKey { scope, key, fingerprint, created_at }) = idempotency {
        let claim = params![row.org.0, scope, key, row.id.0, fingerprint, created_at.0];
        connection.prepare_cached(sql!("idempotency_insert"))?.execute(claim)?;
    }
    Ok(Ok(()))
}

fn put_version(
    connection: &Connection,
    row: &WorkflowRow,
    definition: &Definition,
    from: &str,
    at: Timestamp,
) -> std::result::Result<(), Failure> {
    let version = params![row.org.0, row.id.0, row.version, row.hash, from, at.0];
    connection.prepare_cached(sql!("version_insert"))?.execute(version)?;
    let Definition { hash, source, plan } = definition;
    connection.prepare_cached(sql!("definition_insert"))?.execute(params![row.org.0, hash, &**source, &**plan])?;
    Ok(())
}

pub(super) fn edit_workflow(connection: &Connection, edit: &WorkflowEdit) -> std::result::Result<Edited, Failure> {
    let WorkflowEdit { seen, row, version, trigger } = edit;
    let find = |statement, params: &[&dyn rusqlite::ToSql]| {
        connection.prepare_cached(statement)?.query_row(params, workflow_row).optional()
    };
    let (org, id) = (seen.org.0, seen.id.0);
    if find(sql!("workflow_by_id"), params![org, id])?.as_ref() != Some(seen) {
        return Ok(Edited::Changed);
    }
    let is_taken = |found: Option<WorkflowRow>| row.deleted_at.is_none() && found.is_some_and(|w| w.id != seen.id);
    if is_taken(find(sql!("workflow_by_name"), params![org, row.name])?) {
        return Ok(Edited::Taken(Taken::Name));
    }
    if is_taken(find(sql!("workflow_by_slug"), params![org, row.slug])?) {
        return Ok(Edited::Taken(Taken::Slug));
    }
    let wanted = match trigger {
        OwnTrigger::Put(wanted) => Some(&**wanted),
        OwnTrigger::Keep | OwnTrigger::Remove => None,
    };
    if row.deleted_at.is_some() {
        triggers::delete_of_workflow(connection, seen.org, seen.id)?;
    } else if !matches!(trigger, OwnTrigger::Keep) && !triggers::put_owned(connection, seen.org, seen.id, wanted)? {
        return Ok(Edited::Taken(Taken::Path));
    }
    connection.prepare_cached(sql!("workflow_update"))?.execute(params![
        row.name,
        row.slug,
        row.description,
        row.tags,
        row.form.as_str(),
        row.trigger,
        row.steps,
        row.enabled,
        row.version,
        row.hash,
        row.updated_at.0,
        row.deleted_at.map(|at| at.0),
        org,
        id,
    ])?;
    if let Some((definition, from)) = version {
        let row = WorkflowRow { org: seen.org, id: seen.id, ..row.clone() };
        put_version(connection, &row, definition, from, row.updated_at)?;
    }
    Ok(Edited::Done)
}

pub(super) fn versions(
    connection: &Connection,
    org: OrgId,
    id: WorkflowId,
    before: Option<u32>,
    count: usize,
) -> Result<Vec<VersionRow>> {
    let before = before.unwrap_or(u32::MAX);
    let mut statement = connection.prepare_cached(sql!("versions")).map_err(on_read)?;
    let rows = statement.query_map(params![org.0, id.0, before, limit(count)], version_row).map_err(on_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(on_read)
}

pub(super) fn version(
    connection: &Connection,
    org: OrgId,
    id: WorkflowId,
    by: VersionKey,
) -> Result<Option<VersionRow>> {
    let find = |statement, params: &[&dyn rusqlite::ToSql]| {
        connection.prepare_cached(statement)?.query_row(params, version_row).optional()
    };
    let found = match by {
        VersionKey::Number(number) => find(sql!("version_by_number"), params![org.0, id.0, number]),
        VersionKey::Hash(hash) => find(sql!("version_by_hash"), params![org.0, id.0, hash]),
    };
    found.map_err(on_read)
}

/// What an idempotency key made, and for which request.
pub(super) fn holder(
    connection: &Connection,
    org: OrgId,
    scope: &str,
    key: &str,
) -> rusqlite::Result<Option<([u8; 16], [u8; 32])>> {
    let mut statement = connection.prepare_cached(sql!("idempotency"))?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    statement.query_row(params![org.0, scope, key], read).optional()
}

fn free_slug(
    connection: &Connection,
    row: &WorkflowRow,
    is_given: bool,
) -> std::result::Result<Option<String>, Failure> {
    let is_free =
        |slug: &str| exists(connection, sql!("workflow_by_slug"), params![row.org.0, slug]).map(|is_taken| !is_taken);
    if is_given {
        return Ok(is_free(&row.slug)?.then(|| row.slug.clone()));
    }
    for slug in slugs(&row.slug) {
        if is_free(&slug)? {
            return Ok(Some(slug));
        }
    }
    Ok(None)
}

pub(super) fn workflow(connection: &Connection, org: OrgId, by: &WorkflowKey) -> Result<Option<WorkflowRow>> {
    let find = |statement, params: &[&dyn rusqlite::ToSql]| {
        connection.prepare_cached(statement)?.query_row(params, workflow_row).optional()
    };
    let found = match by {
        WorkflowKey::Id(id) => find(sql!("workflow_by_id"), params![org.0, id.0]),
        WorkflowKey::Name(name) => match find(sql!("workflow_by_name"), params![org.0, name]) {
            Ok(None) => find(sql!("workflow_by_slug"), params![org.0, name]),
            other => other,
        },
        WorkflowKey::Ever(id) => find(sql!("workflow_ever"), params![org.0, id.0]),
    };
    found.map_err(on_read)
}

pub(super) fn workflows(connection: &Connection, org: OrgId, filter: &WorkflowFilter) -> Result<Vec<WorkflowRow>> {
    let before: &[u8] = filter.before.as_ref().map_or(&AFTER_EVERY_ID, |id| &id.0);
    let mut statement = connection.prepare_cached(sql!("workflows")).map_err(on_read)?;
    let params = params![org.0, before, filter.name, limit(filter.limit)];
    let rows = statement.query_map(params, workflow_row).map_err(on_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(on_read)
}

pub(super) fn definition(connection: &Connection, org: OrgId, hash: &[u8; 32]) -> Result<Option<Definition>> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?));
    let mut statement = connection.prepare_cached(sql!("definition")).map_err(on_read)?;
    let found = statement.query_row(params![org.0, hash], read).optional().map_err(on_read)?;
    Ok(found.map(|(source, plan)| Definition { hash: *hash, source: source.into(), plan: plan.into() }))
}

pub(super) fn setting(connection: &Connection, name: &str) -> Result<Option<String>> {
    value(connection, sql!("setting"), [name]).map_err(on_read)
}

pub(super) fn set_setting(connection: &Connection, name: &str, value: &str) -> std::result::Result<(), Failure> {
    connection.prepare_cached(sql!("setting_put"))?.execute([name, value])?;
    Ok(())
}

pub(super) fn next_epoch(connection: &Connection) -> std::result::Result<u64, Failure> {
    let last: Option<String> = value(connection, sql!("setting"), [EPOCH])?;
    let last: u64 = match last {
        None => 0,
        // Starting again from 1 would hand out numbers that are in use.
        Some(text) => text.parse().map_err(|_| Failure::Other(Error::Corrupt(format!("the epoch is `{text}`"))))?,
    };
    set_setting(connection, EPOCH, &(last + 1).to_string())?;
    Ok(last + 1)
}

fn exists(connection: &Connection, statement: &str, params: impl Params) -> rusqlite::Result<bool> {
    connection.prepare_cached(statement)?.exists(params)
}

/// The first column of the first row.
pub(super) fn value<T: FromSql>(
    connection: &Connection,
    statement: &str,
    params: impl Params,
) -> rusqlite::Result<Option<T>> {
    connection.prepare_cached(statement)?.query_row(params, |row| row.get(0)).optional()
}
