//! Workflows, their definitions, and the installation's settings.
//!
//! Writes run inside a transaction of the single writer, so no other write can come between a check and the insert that
//! follows it. The unique indexes protect against writes by other tools.

use super::columns::{AFTER_EVERY_ID, limit, sql, version_row, workflow_row};
use super::errors::{Attempted, Failure, on_read};
use super::{admission, triggers};
use crate::catalog_rules::{CatalogRows, Unique};
use crate::rows::{IdempotencyKey, StoredDefinition, VersionKey, VersionRow, WorkflowFilter, WorkflowKey, WorkflowRow};
use crate::triggers::TriggerRow;
use crate::{Error, Result};
use bytes::Bytes;
use kernel::{OrgId, Timestamp, TriggerId, WorkflowId};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, params};
use std::future::{Future, ready};

pub(super) const EPOCH: &str = "epoch";

/// The rows of workflows and triggers, inside a transaction of the writer. The futures are always ready.
pub(super) struct Rows<'c>(pub &'c Connection);

impl Rows<'_> {
    /// Returns how many rows changed.
    fn execute(&self, statement: &'static str, params: impl Params) -> Attempted<usize> {
        Ok(self.0.prepare_cached(statement)?.execute(params)?)
    }

    fn find(&self, statement: &'static str, params: impl Params) -> Attempted<Option<WorkflowRow>> {
        Ok(self.0.prepare_cached(statement)?.query_row(params, workflow_row).optional()?)
    }
}

impl CatalogRows for Rows<'_> {
    type Failure = Failure;

    fn made_with(
        &self,
        org: OrgId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Attempted<Option<([u8; 16], [u8; 32])>>> + Send {
        ready(holder(self.0, org, &key.scope, &key.key).map_err(Failure::from))
    }

    fn claim_key(
        &self,
        org: OrgId,
        IdempotencyKey { scope, key, fingerprint, created_at }: &IdempotencyKey,
        made: [u8; 16],
    ) -> impl Future<Output = Attempted<()>> + Send {
        let claim = params![org.0, scope, key, made, fingerprint, created_at.0];
        ready(self.execute(sql!("idempotency_insert"), claim).map(drop))
    }

    fn workflow_exists(&self, org: OrgId, id: WorkflowId) -> impl Future<Output = Attempted<bool>> + Send {
        let exists = |statement| self.0.prepare_cached(statement)?.exists(params![org.0, id.0]);
        ready(exists(sql!("workflow_exists")).map_err(Failure::from))
    }

    fn workflow(&self, org: OrgId, by: Unique<'_>) -> impl Future<Output = Attempted<Option<WorkflowRow>>> + Send {
        ready(match by {
            Unique::Id(id) => self.find(sql!("workflow_by_id"), params![org.0, id.0]),
            Unique::Name(name) => self.find(sql!("workflow_by_name"), params![org.0, name]),
            Unique::Slug(slug) => self.find(sql!("workflow_by_slug"), params![org.0, slug]),
        })
    }

    fn insert_workflow(&self, row: &WorkflowRow) -> impl Future<Output = Attempted<()>> + Send {
        let params = params![
            row.org.0,
            row.id.0,
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
            row.created_at.0,
            row.updated_at.0,
            row.lowering,
        ];
        ready(self.execute(sql!("workflow_insert"), params).map(drop))
    }

    fn update_workflow(&self, row: &WorkflowRow) -> impl Future<Output = Attempted<()>> + Send {
        let params = params![
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
            row.lowering,
            row.org.0,
            row.id.0,
        ];
        ready(self.execute(sql!("workflow_update"), params).map(drop))
    }

    fn insert_version(
        &self,
        row: &WorkflowRow,
        from: &str,
        at: Timestamp,
        source: Option<&Bytes>,
    ) -> impl Future<Output = Attempted<()>> + Send {
        let source = source.map(|source| &source[..]);
        let version = params![row.org.0, row.id.0, row.version, row.hash, from, at.0, source];
        ready(self.execute(sql!("version_insert"), version).map(drop))
    }

    fn put_version_source(&self, row: &WorkflowRow, source: &Bytes) -> impl Future<Output = Attempted<()>> + Send {
        let version = params![&source[..], row.org.0, row.id.0, row.version];
        ready(self.execute(sql!("version_source_put"), version).map(drop))
    }

    fn insert_definition(
        &self,
        org: OrgId,
        definition: &StoredDefinition,
    ) -> impl Future<Output = Attempted<()>> + Send {
        ready(put_definition(self.0, org, definition))
    }

    fn trigger_exists(&self, org: OrgId, id: TriggerId) -> impl Future<Output = Attempted<bool>> + Send {
        ready(triggers::get(self.0, org, id).map(|found| found.is_some()).map_err(Failure::Other))
    }

    fn trigger_at(&self, path: &str) -> impl Future<Output = Attempted<Option<TriggerRow>>> + Send {
        ready(triggers::by_path(self.0, path).map_err(Failure::Other))
    }

    fn owned_trigger(
        &self,
        org: OrgId,
        workflow: WorkflowId,
    ) -> impl Future<Output = Attempted<Option<TriggerRow>>> + Send {
        ready(triggers::owned_by(self.0, org, workflow).map_err(Failure::Other))
    }

    fn insert_trigger(&self, row: &TriggerRow) -> impl Future<Output = Attempted<()>> + Send {
        ready(triggers::insert(self.0, row))
    }

    fn update_trigger(&self, row: &TriggerRow, restarts: bool) -> impl Future<Output = Attempted<bool>> + Send {
        ready(triggers::update(self.0, row, restarts))
    }

    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> impl Future<Output = Attempted<()>> + Send {
        ready(triggers::delete(self.0, org, id).map(drop))
    }

    fn delete_pause_of(&self, org: OrgId, workflow: WorkflowId) -> impl Future<Output = Attempted<()>> + Send {
        ready(admission::resume_workflow(self.0, org, workflow))
    }

    fn delete_triggers_of(&self, org: OrgId, workflow: WorkflowId) -> impl Future<Output = Attempted<()>> + Send {
        ready(triggers::delete_of_workflow(self.0, org, workflow))
    }
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

/// The definition as the author of a version wrote it.
pub(super) fn version_source(
    connection: &Connection,
    org: OrgId,
    id: WorkflowId,
    number: u32,
) -> Result<Option<Bytes>> {
    let find = |statement, params: &[&dyn rusqlite::ToSql]| {
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Option<Vec<u8>>>(0);
        connection.prepare_cached(statement)?.query_row(params, read).optional()
    };
    let found = find(sql!("version_source"), params![org.0, id.0, number]).map_err(on_read)?;
    Ok(found.flatten().map(Bytes::from))
}

/// The id of what was created with an idempotency key, and the fingerprint of that request.
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
        WorkflowKey::IdOrDeleted(id) => find(sql!("workflow_or_deleted"), params![org.0, id.0]),
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

pub(super) fn put_definition(connection: &Connection, org: OrgId, definition: &StoredDefinition) -> Attempted<()> {
    let StoredDefinition { hash, lowering, source, plan } = definition;
    let params = params![org.0, hash, lowering, &**source, &**plan];
    connection.prepare_cached(sql!("definition_insert"))?.execute(params)?;
    Ok(())
}

pub(super) fn definition(
    connection: &Connection,
    org: OrgId,
    hash: &[u8; 32],
    lowering: Option<u32>,
) -> Result<Option<StoredDefinition>> {
    let read = |row: &rusqlite::Row<'_>| {
        let (source, plan) = (row.get::<_, Vec<u8>>(1)?.into(), row.get::<_, Vec<u8>>(2)?.into());
        Ok(StoredDefinition { hash: *hash, lowering: row.get(0)?, source, plan })
    };
    let mut statement = connection.prepare_cached(sql!("definition")).map_err(on_read)?;
    statement.query_row(params![org.0, hash, lowering], read).optional().map_err(on_read)
}

pub(super) fn setting(connection: &Connection, name: &str) -> Result<Option<String>> {
    value(connection, sql!("setting"), [name]).map_err(on_read)
}

pub(super) fn set_setting(connection: &Connection, name: &str, value: &str) -> Attempted<()> {
    connection.prepare_cached(sql!("setting_put"))?.execute([name, value])?;
    Ok(())
}

pub(super) fn next_epoch(connection: &Connection) -> Attempted<u64> {
    let last: Option<String> = value(connection, sql!("setting"), [EPOCH])?;
    let last: u64 = match last {
        None => 0,
        // Starting again from 1 would return epochs that are in use.
        Some(text) => text.parse().map_err(|_| Failure::Other(Error::Corrupt(format!("the epoch is `{text}`"))))?,
    };
    set_setting(connection, EPOCH, &(last + 1).to_string())?;
    Ok(last + 1)
}

/// The first column of the first row.
pub(super) fn value<T: FromSql>(
    connection: &Connection,
    statement: &str,
    params: impl Params,
) -> rusqlite::Result<Option<T>> {
    connection.prepare_cached(statement)?.query_row(params, |row| row.get(0)).optional()
}
