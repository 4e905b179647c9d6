//! The checks that SQLite and Postgres share before they change workflows and triggers.
//!
//! A store gives access to its rows inside one open transaction ([`CatalogRows`]), during which no other transaction
//! can change them. The rules read rows, decide, and call the store to write. The memory store implements the same
//! rules separately, and the conformance suite compares the three.

use crate::Error;
use crate::rows::*;
use crate::triggers::*;
use crate::write_validation::slugs;
use bytes::Bytes;
use kernel::{OrgId, Timestamp, TriggerId, WorkflowId};
use std::future::Future;

type Answer<F, T> = std::result::Result<T, F>;

/// The id of what was created with an idempotency key, and the fingerprint of that request.
type Made = ([u8; 16], [u8; 32]);

/// The rows of workflows and triggers, inside one transaction. The futures are `Send` because Postgres calls run on
/// other threads.
pub(crate) trait CatalogRows {
    type Failure: From<Error>;

    fn made_with(
        &self,
        org: OrgId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Answer<Self::Failure, Option<Made>>> + Send;
    fn claim_key(
        &self,
        org: OrgId,
        key: &IdempotencyKey,
        made: [u8; 16],
    ) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;

    /// Does a workflow with this id exist, deleted ones included?
    fn workflow_exists(&self, org: OrgId, id: WorkflowId) -> impl Future<Output = Answer<Self::Failure, bool>> + Send;
    /// A workflow that is not deleted.
    fn workflow(
        &self,
        org: OrgId,
        by: Unique<'_>,
    ) -> impl Future<Output = Answer<Self::Failure, Option<WorkflowRow>>> + Send;
    fn insert_workflow(&self, row: &WorkflowRow) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    fn update_workflow(&self, row: &WorkflowRow) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    /// `source` is the definition as its author wrote it.
    fn insert_version(
        &self,
        row: &WorkflowRow,
        from: &str,
        at: Timestamp,
        source: Option<&Bytes>,
    ) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    /// Replaces the author's own text of the present version.
    fn put_version_source(
        &self,
        row: &WorkflowRow,
        source: &Bytes,
    ) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    /// Keeps the definition that is there already.
    fn insert_definition(
        &self,
        org: OrgId,
        definition: &StoredDefinition,
    ) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;

    fn trigger_exists(&self, org: OrgId, id: TriggerId) -> impl Future<Output = Answer<Self::Failure, bool>> + Send;
    fn trigger_at(&self, path: &str) -> impl Future<Output = Answer<Self::Failure, Option<TriggerRow>>> + Send;
    fn owned_trigger(
        &self,
        org: OrgId,
        workflow: WorkflowId,
    ) -> impl Future<Output = Answer<Self::Failure, Option<TriggerRow>>> + Send;
    fn insert_trigger(&self, row: &TriggerRow) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    /// False if the stored revision is not the one before this row's.
    fn update_trigger(
        &self,
        row: &TriggerRow,
        restarts: bool,
    ) -> impl Future<Output = Answer<Self::Failure, bool>> + Send;
    fn delete_trigger(&self, org: OrgId, id: TriggerId) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    fn delete_triggers_of(
        &self,
        org: OrgId,
        workflow: WorkflowId,
    ) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
    fn delete_pause_of(
        &self,
        org: OrgId,
        workflow: WorkflowId,
    ) -> impl Future<Output = Answer<Self::Failure, ()>> + Send;
}

/// A unique key of a workflow within its organisation.
#[derive(Clone, Copy)]
pub(crate) enum Unique<'a> {
    Id(WorkflowId),
    Name(&'a str),
    Slug(&'a str),
}

pub(crate) async fn create_workflow<R: CatalogRows>(
    rows: &R,
    new: &NewWorkflow,
) -> Answer<R::Failure, Result<(), NameTaken>> {
    let NewWorkflow { row, definition, slug_is_given, idempotency, trigger } = new;
    if let Some(key) = idempotency
        && let Some((made, fingerprint)) = rows.made_with(row.org, key).await?
    {
        return Ok(Err(NameTaken::Key { workflow: WorkflowId(made), fingerprint }));
    }
    if rows.workflow_exists(row.org, row.id).await? {
        return Err(Error::Refused(format!("the workflow {} exists already", row.id)).into());
    }
    if rows.workflow(row.org, Unique::Name(&row.name)).await?.is_some() {
        return Ok(Err(NameTaken::Name));
    }
    if rows.workflow(row.org, Unique::Slug(&row.name)).await?.is_some() {
        return Ok(Err(NameTaken::NameIsSlug));
    }
    let slug = match free_slug(rows, row, *slug_is_given).await? {
        Ok(slug) => slug,
        Err(taken) => return Ok(Err(taken)),
    };
    if !put_owned_trigger(rows, row.org, row.id, trigger.as_ref()).await? {
        return Ok(Err(NameTaken::Path));
    }
    rows.insert_workflow(&WorkflowRow { slug, ..row.clone() }).await?;
    rows.insert_version(row, "create", row.created_at, Some(&definition.source)).await?;
    rows.insert_definition(row.org, definition).await?;
    if let Some(key) = idempotency {
        rows.claim_key(row.org, key, row.id.0).await?;
    }
    Ok(Ok(()))
}

/// The given slug if it is free. If the slug was not given by the author, the first free one in the order of [`slugs`].
async fn free_slug<R: CatalogRows>(
    rows: &R,
    row: &WorkflowRow,
    is_given: bool,
) -> Answer<R::Failure, Result<String, NameTaken>> {
    if is_given {
        return Ok(slug_taken(rows, row.org, &row.slug).await?.map_or(Ok(row.slug.clone()), Err));
    }
    for slug in slugs(&row.slug) {
        if slug_taken(rows, row.org, &slug).await?.is_none() {
            return Ok(Ok(slug));
        }
    }
    Ok(Err(NameTaken::Slug))
}

/// Whether a workflow has this slug, or has it as its name.
async fn slug_taken<R: CatalogRows>(rows: &R, org: OrgId, slug: &str) -> Answer<R::Failure, Option<NameTaken>> {
    if rows.workflow(org, Unique::Slug(slug)).await?.is_some() {
        return Ok(Some(NameTaken::Slug));
    }
    Ok(rows.workflow(org, Unique::Name(slug)).await?.map(|_| NameTaken::SlugIsName))
}

pub(crate) async fn edit_workflow<R: CatalogRows>(rows: &R, edit: &WorkflowEdit) -> Answer<R::Failure, Edited> {
    let WorkflowEdit { seen, row, definition, version_from, source, trigger } = edit;
    if rows.workflow(seen.org, Unique::Id(seen.id)).await?.as_ref() != Some(seen) {
        return Ok(Edited::Changed);
    }
    let is_taken = |found: Option<WorkflowRow>| row.deleted_at.is_none() && found.is_some_and(|w| w.id != seen.id);
    if is_taken(rows.workflow(seen.org, Unique::Name(&row.name)).await?) {
        return Ok(Edited::Taken(NameTaken::Name));
    }
    if is_taken(rows.workflow(seen.org, Unique::Slug(&row.slug)).await?) {
        return Ok(Edited::Taken(NameTaken::Slug));
    }
    // Names that did not change stay, also if they were taken before this was checked.
    if row.name != seen.name && is_taken(rows.workflow(seen.org, Unique::Slug(&row.name)).await?) {
        return Ok(Edited::Taken(NameTaken::NameIsSlug));
    }
    if row.slug != seen.slug && is_taken(rows.workflow(seen.org, Unique::Name(&row.slug)).await?) {
        return Ok(Edited::Taken(NameTaken::SlugIsName));
    }
    let wanted = match trigger {
        OwnTrigger::Put(wanted) => Some(&**wanted),
        OwnTrigger::Keep | OwnTrigger::Remove => None,
    };
    if row.deleted_at.is_some() {
        rows.delete_triggers_of(seen.org, seen.id).await?;
        rows.delete_pause_of(seen.org, seen.id).await?;
    } else if !matches!(trigger, OwnTrigger::Keep) && !put_owned_trigger(rows, seen.org, seen.id, wanted).await? {
        return Ok(Edited::Taken(NameTaken::Path));
    }
    let row = WorkflowRow { org: seen.org, id: seen.id, ..row.clone() };
    rows.update_workflow(&row).await?;
    match (version_from, source) {
        (Some(from), source) => rows.insert_version(&row, from, row.updated_at, source.as_ref()).await?,
        (None, Some(source)) => rows.put_version_source(&row, source).await?,
        (None, None) => {}
    }
    if let Some(definition) = definition {
        rows.insert_definition(row.org, definition).await?;
    }
    Ok(Edited::Done)
}

pub(crate) async fn create_trigger<R: CatalogRows>(
    rows: &R,
    new: &NewTrigger,
) -> Answer<R::Failure, Result<(), TriggerTaken>> {
    let NewTrigger { row, idempotency } = new;
    if let Some(key) = idempotency
        && let Some((made, fingerprint)) = rows.made_with(row.org, key).await?
    {
        return Ok(Err(TriggerTaken::Key { trigger: TriggerId(made), fingerprint }));
    }
    if rows.trigger_exists(row.org, row.id).await? {
        return Err(Error::Refused(format!("the trigger {} exists already", row.id)).into());
    }
    if rows.workflow(row.org, Unique::Id(row.workflow)).await?.is_none() {
        return Ok(Err(TriggerTaken::Workflow));
    }
    if is_path_taken(rows, row).await? {
        return Ok(Err(TriggerTaken::Path));
    }
    rows.insert_trigger(row).await?;
    if let Some(key) = idempotency {
        rows.claim_key(row.org, key, row.id.0).await?;
    }
    Ok(Ok(()))
}

pub(crate) async fn change_trigger<R: CatalogRows>(rows: &R, change: &TriggerChange) -> Answer<R::Failure, Changed> {
    let TriggerChange { row, restarts } = change;
    if rows.workflow(row.org, Unique::Id(row.workflow)).await?.is_none() {
        return Ok(Changed::NoWorkflow);
    }
    if is_path_taken(rows, row).await? {
        return Ok(Changed::PathTaken);
    }
    let changed = rows.update_trigger(row, *restarts).await?;
    Ok(if changed { Changed::Done } else { Changed::Stale })
}

/// Makes the trigger that a workflow owns equal to `wanted`, or deletes it. A trigger of the same kind keeps its id,
/// its log and its `enabled` flag; an unchanged trigger also keeps its fire times. False when another trigger has the
/// path.
pub(crate) async fn put_owned_trigger<R: CatalogRows>(
    rows: &R,
    org: OrgId,
    workflow: WorkflowId,
    wanted: Option<&TriggerRow>,
) -> Answer<R::Failure, bool> {
    let mut found = rows.owned_trigger(org, workflow).await?;
    let replaced = found.take_if(|old| wanted.is_none_or(|new| new.kind != old.kind));
    let row = wanted.map(|wanted| owned(found.as_ref(), wanted));
    if let Some(row) = &row
        && is_path_taken(rows, row).await?
    {
        return Ok(false);
    }
    if let Some(old) = replaced {
        rows.delete_trigger(org, old.id).await?;
    }
    let Some(row) = row else { return Ok(true) };
    match found {
        None => rows.insert_trigger(&row).await?,
        Some(old) if old.config == row.config && old.name == row.name => {}
        Some(old) => drop(rows.update_trigger(&row, old.config != row.config).await?),
    }
    Ok(true)
}

/// Does another trigger have the path of this one?
async fn is_path_taken<R: CatalogRows>(rows: &R, row: &TriggerRow) -> Answer<R::Failure, bool> {
    let Some(path) = &row.path else { return Ok(false) };
    let holder = rows.trigger_at(path).await?;
    Ok(holder.is_some_and(|other| (other.org, other.id) != (row.org, row.id)))
}
