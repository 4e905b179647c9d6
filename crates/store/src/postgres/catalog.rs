//! Workflows, their definitions, and the installation's settings: the rows that are not about runs.
//!
//! Whoever changes workflows or triggers holds one lock for the whole of the transaction, so a check and the
//! insert that follows it cannot be separated; the unique indexes are there for people with other tools.

use super::columns::{Attempted, Blob, Id, Words, blob, get, limit, org_of, sql, text, version_row, workflow_row};
use super::errors::Failure;
use super::journal::holder;
use super::session::Session;
use super::triggers;
use crate::Error;
use crate::rows::{
    Definition, Edited, IdempotencyKey, NewWorkflow, OwnTrigger, Taken, VersionKey, VersionRow, WorkflowEdit,
    WorkflowFilter, WorkflowKey, WorkflowRow,
};
use crate::write_validation::slugs;
use kernel::{OrgId, Timestamp, WorkflowId};
use tokio_postgres::types::ToSql;

/// Held by everybody who changes workflows and triggers.
pub(super) const LOCK: i64 = 0x6f6e_7761_7264_0003;

pub(super) async fn create_workflow(session: &Session, new: &NewWorkflow) -> Attempted<std::result::Result<(), Taken>> {
    let NewWorkflow { row, definition, slug_is_given, idempotency, trigger } = new;
    if let Some(key) = idempotency
        && let Some((made, fingerprint)) = holder(session, row.org, &key.scope, &key.key).await?
    {
        return Ok(Err(Taken::Key { workflow: WorkflowId(made), fingerprint }));
    }
    if session.first(sql!("workflow_exists"), &[&org_of(row.org), &Id(row.id.0)]).await?.is_some() {
        return Err(Failure::Other(Error::Refused(format!("the workflow {} exists already", row.id))));
    }
    if find(session, sql!("workflow_by_name"), row.org, &Words::of(&row.name)).await?.is_some() {
        return Ok(Err(Taken::Name));
    }
    let Some(slug) = free_slug(session, row, *slug_is_given).await? else { return Ok(Err(Taken::Slug)) };
    if !triggers::put_owned(session, row.org, row.id, trigger.as_ref()).await? {
        return Ok(Err(Taken::Path));
    }
    let params: [&(dyn ToSql + Sync); 14] = [
        &org_of(row.org),
        &Id(row.id.0),
        &Words::of(&row.name),
        &Words(slug),
        &Words::maybe(row.description.as_deref()),
        &Words::of(&row.tags),
        &row.form.as_str(),
        &Words::of(&row.trigger),
        &i64::from(row.steps),
        &row.enabled,
        &i64::from(row.version),
        &&row.hash[..],
        &row.created_at.0,
        &row.updated_at.0,
    ];
    session.execute(sql!("workflow_insert"), &params).await?;
    put_version(session, row, definition, "create", row.created_at).await?;
    if let Some(key) = idempotency {
        claim(session, row.org, key, row.id.0).await?;
    }
    Ok(Ok(()))
}

/// Takes a key that is free.
pub(super) async fn claim(session: &Session, org: OrgId, key: &IdempotencyKey, made: [u8; 16]) -> Attempted<()> {
    let (scope, name) = (Words::of(&key.scope), Words::of(&key.key));
    let params: [&(dyn ToSql + Sync); 6] =
        [&org_of(org), &scope, &name, &Id(made), &&key.fingerprint[..], &key.created_at.0];
    match session.execute(sql!("idempotency_insert"), &params).await? {
        0 => Err(Failure::Again("the idempotency key was taken meanwhile".into())),
        _ => Ok(()),
    }
}

async fn put_version(
    session: &Session,
    row: &WorkflowRow,
    definition: &Definition,
    from: &str,
    at: Timestamp,
) -> Attempted<()> {
    let params: [&(dyn ToSql + Sync); 6] =
        [&org_of(row.org), &Id(row.id.0), &i64::from(row.version), &&row.hash[..], &from, &at.0];
    session.execute(sql!("version_insert"), &params).await?;
    put_definition(session, row.org, definition).await
}

pub(super) async fn put_definition(session: &Session, org: OrgId, definition: &Definition) -> Attempted<()> {
    let Definition { hash, source, plan } = definition;
    let params: [&(dyn ToSql + Sync); 4] = [&org_of(org), &&hash[..], &Blob(source.clone()), &Blob(plan.clone())];
    session.execute(sql!("definition_insert"), &params).await.map(drop)
}

pub(super) async fn edit_workflow(session: &Session, edit: &WorkflowEdit) -> Attempted<Edited> {
    let WorkflowEdit { seen, row, version, trigger } = edit;
    let (org, id) = (org_of(seen.org), Id(seen.id.0));
    if find(session, sql!("workflow_by_id"), seen.org, &id).await?.as_ref() != Some(seen) {
        return Ok(Edited::Changed);
    }
    let is_taken = |found: Option<WorkflowRow>| row.deleted_at.is_none() && found.is_some_and(|w| w.id != seen.id);
    if is_taken(find(session, sql!("workflow_by_name"), seen.org, &Words::of(&row.name)).await?) {
        return Ok(Edited::Taken(Taken::Name));
    }
    if is_taken(find(session, sql!("workflow_by_slug"), seen.org, &Words::of(&row.slug)).await?) {
        return Ok(Edited::Taken(Taken::Slug));
    }
    let wanted = match trigger {
        OwnTrigger::Put(wanted) => Some(&**wanted),
        OwnTrigger::Keep | OwnTrigger::Remove => None,
    };
    if row.deleted_at.is_some() {
        triggers::delete_of_workflow(session, seen.org, seen.id).await?;
    } else if !matches!(trigger, OwnTrigger::Keep) && !triggers::put_owned(session, seen.org, seen.id, wanted).await? {
        return Ok(Edited::Taken(Taken::Path));
    }
    let params: [&(dyn ToSql + Sync); 14] = [
        &Words::of(&row.name),
        &Words::of(&row.slug),
        &Words::maybe(row.description.as_deref()),
        &Words::of(&row.tags),
        &row.form.as_str(),
        &Words::of(&row.trigger),
        &i64::from(row.steps),
        &row.enabled,
        &i64::from(row.version),
        &&row.hash[..],
        &row.updated_at.0,
        &row.deleted_at.map(|at| at.0),
        &org,
        &id,
    ];
    session.execute(sql!("workflow_update"), &params).await?;
    if let Some((definition, from)) = version {
        let row = WorkflowRow { org: seen.org, id: seen.id, ..row.clone() };
        put_version(session, &row, definition, from, row.updated_at).await?;
    }
    Ok(Edited::Done)
}

async fn free_slug(session: &Session, row: &WorkflowRow, is_given: bool) -> Attempted<Option<String>> {
    for slug in slugs(&row.slug) {
        let slug = if is_given { row.slug.clone() } else { slug };
        if find(session, sql!("workflow_by_slug"), row.org, &Words::of(&slug)).await?.is_none() {
            return Ok(Some(slug));
        }
        if is_given {
            break;
        }
    }
    Ok(None)
}

/// A workflow by something that is unique within its organisation.
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
        WorkflowKey::Name(name) => match find(session, sql!("workflow_by_name"), org, &Words::of(name)).await? {
            None => find(session, sql!("workflow_by_slug"), org, &Words::of(name)).await,
            found => Ok(found),
        },
        WorkflowKey::Ever(id) => find(session, sql!("workflow_ever"), org, &Id(id.0)).await,
    }
}

pub(super) async fn workflows(session: &Session, org: OrgId, filter: &WorkflowFilter) -> Attempted<Vec<WorkflowRow>> {
    let last = match filter.before {
        None => Some(Id::LAST),
        Some(before) => Id::before(before.0),
    };
    let Some(last) = last else { return Ok(Vec::new()) };
    let params: [&(dyn ToSql + Sync); 4] = [&org_of(org), &last, &Words::of(&filter.name), &limit(filter.limit)];
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

pub(super) async fn definition(session: &Session, org: OrgId, hash: [u8; 32]) -> Attempted<Option<Definition>> {
    let found = session.first(sql!("definition"), &[&org_of(org), &&hash[..]]).await?;
    found.map(|row| Ok(Definition { hash, source: blob(&row, 0)?, plan: blob(&row, 1)? })).transpose()
}

pub(super) async fn setting(session: &Session, name: &str) -> Attempted<Option<String>> {
    let found = session.first(sql!("setting"), &[&Words::of(name)]).await?;
    found.map(|row| text(&row, 0)).transpose()
}

pub(super) async fn set_setting(session: &Session, name: &str, value: &str) -> Attempted<()> {
    session.execute(sql!("setting_put"), &[&Words::of(name), &Words::of(value)]).await.map(drop)
}

/// How often workflows, types and pauses have changed.
pub(super) async fn revision(session: &Session) -> Attempted<u64> {
    let value = setting(session, "catalogue_revision").await?;
    value.map_or(Ok(0), |text| text.parse().map_err(|_| Failure::Other(Error::Corrupt("the revision".into()))))
}

/// Notes that something changed, in the transaction that changes it.
pub(super) async fn revise(session: &Session) -> Attempted<()> {
    session.execute(sql!("postgres/revision_next"), &[]).await.map(drop)
}

/// Does the server take writes?
pub(super) async fn check(session: &Session) -> Attempted<()> {
    let row = session.first("SELECT current_setting('transaction_read_only') = 'on'", &[]).await?;
    match row.map_or(Ok(false), |row| get(&row, 0))? {
        true => Err(Failure::Refused("the server takes no writes at the moment".into())),
        false => Ok(()),
    }
}
