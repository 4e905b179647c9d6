//! Workflows, their definitions, and the installation's settings.
//!
//! A transaction that changes workflows or triggers holds one lock until it ends, so no other change can come between a
//! check and the insert that follows it. The unique indexes protect against writes by other tools.

use super::columns::{
    Attempted, Blob, EscapedText, Id, blob, get, limit, number, org_of, sql, text, version_row, workflow_row,
};
use super::errors::Failure;
use super::journal::holder;
use super::session::Session;
use super::{admission, triggers};
use crate::Error;
use crate::catalog_rules::{CatalogRows, Unique};
use crate::rows::{IdempotencyKey, StoredDefinition, VersionKey, VersionRow, WorkflowFilter, WorkflowKey, WorkflowRow};
use crate::triggers::TriggerRow;
use bytes::Bytes;
use kernel::{OrgId, Timestamp, TriggerId, WorkflowId};
use tokio_postgres::types::ToSql;

/// The advisory lock of transactions that change workflows, triggers or nodes.
pub(super) const LOCK: i64 = 0x6f6e_7761_7264_0003;

/// The rows of workflows and triggers, inside a transaction that holds [`LOCK`].
pub(super) struct Rows<'s>(pub &'s Session);

impl CatalogRows for Rows<'_> {
    type Failure = Failure;

    async fn made_with(&self, org: OrgId, key: &IdempotencyKey) -> Attempted<Option<([u8; 16], [u8; 32])>> {
        holder(self.0, org, &key.scope, &key.key).await
    }

    async fn claim_key(&self, org: OrgId, key: &IdempotencyKey, made: [u8; 16]) -> Attempted<()> {
        let (scope, name) = (EscapedText::of(&key.scope), EscapedText::of(&key.key));
        let params: [&(dyn ToSql + Sync); 6] =
            [&org_of(org), &scope, &name, &Id(made), &&key.fingerprint[..], &key.created_at.0];
        match self.0.execute(sql!("idempotency_insert"), &params).await? {
            0 => Err(Failure::Again("the idempotency key was taken meanwhile".into())),
            _ => Ok(()),
        }
    }

    async fn workflow_exists(&self, org: OrgId, id: WorkflowId) -> Attempted<bool> {
        Ok(self.0.first(sql!("workflow_exists"), &[&org_of(org), &Id(id.0)]).await?.is_some())
    }

    async fn workflow(&self, org: OrgId, by: Unique<'_>) -> Attempted<Option<WorkflowRow>> {
        match by {
            Unique::Id(id) => find(self.0, sql!("workflow_by_id"), org, &Id(id.0)).await,
            Unique::Name(name) => find(self.0, sql!("workflow_by_name"), org, &EscapedText::of(name)).await,
            Unique::Slug(slug) => find(self.0, sql!("workflow_by_slug"), org, &EscapedText::of(slug)).await,
        }
    }

    async fn insert_workflow(&self, row: &WorkflowRow) -> Attempted<()> {
        let params: [&(dyn ToSql + Sync); 15] = [
            &org_of(row.org),
            &Id(row.id.0),
            &EscapedText::of(&row.name),
            &EscapedText::of(&row.slug),
            &EscapedText::maybe(row.description.as_deref()),
            &EscapedText::of(&row.tags),
            &row.form.as_str(),
            &EscapedText::of(&row.trigger),
            &i64::from(row.steps),
            &row.enabled,
            &i64::from(row.version),
            &&row.hash[..],
            &row.created_at.0,
            &row.updated_at.0,
            &i64::from(row.lowering),
        ];
        self.0.execute(sql!("workflow_insert"), &params).await.map(drop)
    }

    async fn update_workflow(&self, row: &WorkflowRow) -> Attempted<()> {
        let params: [&(dyn ToSql + Sync); 15] = [
            &EscapedText::of(&row.name),
            &EscapedText::of(&row.slug),
            &EscapedText::maybe(row.description.as_deref()),
            &EscapedText::of(&row.tags),
            &row.form.as_str(),
            &EscapedText::of(&row.trigger),
            &i64::from(row.steps),
            &row.enabled,
            &i64::from(row.version),
            &&row.hash[..],
            &row.updated_at.0,
            &row.deleted_at.map(|at| at.0),
            &i64::from(row.lowering),
            &org_of(row.org),
            &Id(row.id.0),
        ];
        self.0.execute(sql!("workflow_update"), &params).await.map(drop)
    }

    async fn insert_version(
        &self,
        row: &WorkflowRow,
        from: &str,
        at: Timestamp,
        source: Option<&Bytes>,
    ) -> Attempted<()> {
        let source = source.map(|source| &source[..]);
        let params: [&(dyn ToSql + Sync); 7] =
            [&org_of(row.org), &Id(row.id.0), &i64::from(row.version), &&row.hash[..], &from, &at.0, &source];
        self.0.execute(sql!("version_insert"), &params).await.map(drop)
    }

    async fn put_version_source(&self, row: &WorkflowRow, source: &Bytes) -> Attempted<()> {
        let params: [&(dyn ToSql + Sync); 4] = [&&source[..], &org_of(row.org), &Id(row.id.0), &i64::from(row.version)];
        self.0.execute(sql!("version_source_put"), &params).await.map(drop)
    }

    async fn insert_definition(&self, org: OrgId, definition: &StoredDefinition) -> Attempted<()> {
        put_definition(self.0, org, definition).await
    }

    async fn trigger_exists(&self, org: OrgId, id: TriggerId) -> Attempted<bool> {
        Ok(triggers::trigger(self.0, org, id).await?.is_some())
    }

    async fn trigger_at(&self, path: &str) -> Attempted<Option<TriggerRow>> {
        triggers::by_path(self.0, path).await
    }

    async fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Attempted<Option<TriggerRow>> {
        triggers::owned_by(self.0, org, workflow).await
    }

    async fn insert_trigger(&self, row: &TriggerRow) -> Attempted<()> {
        triggers::insert(self.0, row).await
    }

    async fn update_trigger(&self, row: &TriggerRow, restarts: bool) -> Attempted<bool> {
        triggers::update(self.0, row, restarts).await
    }

    async fn delete_trigger(&self, org: OrgId, id: TriggerId) -> Attempted<()> {
        triggers::delete(self.0, org, id).await.map(drop)
    }

    async fn delete_pause_of(&self, org: OrgId, workflow: WorkflowId) -> Attempted<()> {
        admission::resume_workflow(self.0, org, workflow).await
    }

    async fn delete_triggers_of(&self, org: OrgId, workflow: WorkflowId) -> Attempted<()> {
        triggers::delete_of_workflow(self.0, org, workflow).await
    }
}

pub(super) async fn put_definition(session: &Session, org: OrgId, definition: &StoredDefinition) -> Attempted<()> {
    let StoredDefinition { hash, lowering, source, plan } = definition;
    let params: [&(dyn ToSql + Sync); 5] =
        [&org_of(org), &&hash[..], &i64::from(*lowering), &Blob(source.clone()), &Blob(plan.clone())];
    session.execute(sql!("definition_insert"), &params).await.map(drop)
}

/// Finds a workflow by a key that is unique within its organisation.
async fn find(
    session: &Session,
    statement: &'static str,
    org: OrgId,
    by: &(dyn ToSql + Sync),
) -> Attempted<Option<WorkflowRow>> {
    session.first(statement, &[&org_of(org), by]).await?.as_ref().map(workflow_row).transpose()
}

pub(super) async fn workflow(session: &Session, org: OrgId, by: &WorkflowKey) -> Attempted<Option<WorkflowRow>> {
    match by {
        WorkflowKey::Id(id) => find(session, sql!("workflow_by_id"), org, &Id(id.0)).await,
        WorkflowKey::Name(name) => match find(session, sql!("workflow_by_name"), org, &EscapedText::of(name)).await? {
            None => find(session, sql!("workflow_by_slug"), org, &EscapedText::of(name)).await,
            found => Ok(found),
        },
        WorkflowKey::IdOrDeleted(id) => find(session, sql!("workflow_or_deleted"), org, &Id(id.0)).await,
    }
}

pub(super) async fn workflows(session: &Session, org: OrgId, filter: &WorkflowFilter) -> Attempted<Vec<WorkflowRow>> {
    let last = match filter.before {
        None => Some(Id::LAST),
        Some(before) => Id::before(before.0),
    };
    let Some(last) = last else { return Ok(Vec::new()) };
    let params: [&(dyn ToSql + Sync); 4] = [&org_of(org), &last, &EscapedText::of(&filter.name), &limit(filter.limit)];
    session.query(sql!("postgres/workflows"), &params).await?.iter().map(workflow_row).collect()
}

pub(super) async fn versions(
    session: &Session,
    org: OrgId,
    id: WorkflowId,
    before: Option<u32>,
    count: usize,
) -> Attempted<Vec<VersionRow>> {
    let before = i64::from(before.unwrap_or(u32::MAX));
    let rows = session.query(sql!("versions"), &[&org_of(org), &Id(id.0), &before, &limit(count)]).await?;
    rows.iter().map(version_row).collect()
}

pub(super) async fn version(
    session: &Session,
    org: OrgId,
    id: WorkflowId,
    by: VersionKey,
) -> Attempted<Option<VersionRow>> {
    let (org, id) = (org_of(org), Id(id.0));
    let found = match by {
        VersionKey::Number(number) => {
            session.first(sql!("version_by_number"), &[&org, &id, &i64::from(number)]).await?
        }
        VersionKey::Hash(hash) => session.first(sql!("version_by_hash"), &[&org, &id, &&hash[..]]).await?,
    };
    found.as_ref().map(version_row).transpose()
}

/// The definition as the author of a version wrote it.
pub(super) async fn version_source(
    session: &Session,
    org: OrgId,
    id: WorkflowId,
    version: u32,
) -> Attempted<Option<Bytes>> {
    let params: [&(dyn ToSql + Sync); 3] = [&org_of(org), &Id(id.0), &i64::from(version)];
    let found = session.first(sql!("version_source"), &params).await?;
    let source: Option<Vec<u8>> = found.map_or(Ok(None), |row| get(&row, 0))?;
    Ok(source.map(Bytes::from))
}

pub(super) async fn definition(
    session: &Session,
    org: OrgId,
    hash: [u8; 32],
    lowering: Option<u32>,
) -> Attempted<Option<StoredDefinition>> {
    let params: [&(dyn ToSql + Sync); 3] = [&org_of(org), &&hash[..], &lowering.map(i64::from)];
    let read = |row| {
        let (source, plan) = (blob(&row, 1)?, blob(&row, 2)?);
        Ok(StoredDefinition { hash, lowering: number(&row, 0)?, source, plan })
    };
    session.first(sql!("definition"), &params).await?.map(read).transpose()
}

pub(super) async fn setting(session: &Session, name: &str) -> Attempted<Option<String>> {
    let found = session.first(sql!("setting"), &[&EscapedText::of(name)]).await?;
    found.map(|row| text(&row, 0)).transpose()
}

pub(super) async fn set_setting(session: &Session, name: &str, value: &str) -> Attempted<()> {
    session.execute(sql!("setting_put"), &[&EscapedText::of(name), &EscapedText::of(value)]).await.map(drop)
}

/// The cache revision: how often workflows, types and pauses have changed.
pub(super) async fn revision(session: &Session) -> Attempted<u64> {
    let value = setting(session, "catalogue_revision").await?;
    value.map_or(Ok(0), |text| {
        text.parse()
            .map_err(|_| Failure::Other(Error::Corrupt(format!("the setting `catalogue_revision` is `{text}`"))))
    })
}

/// Increments the cache revision, in the transaction of a change.
pub(super) async fn revise(session: &Session) -> Attempted<()> {
    session.execute(sql!("postgres/revision_next"), &[]).await.map(drop)
}

/// Does the server accept writes?
pub(super) async fn check(session: &Session) -> Attempted<()> {
    let row = session.first("SELECT current_setting('transaction_read_only') = 'on'", &[]).await?;
    match row.map_or(Ok(false), |row| get(&row, 0))? {
        true => Err(Failure::Refused("the server is read-only".into())),
        false => Ok(()),
    }
}
