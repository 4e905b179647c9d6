//! Changes to what exists: editing and deleting workflows, deleting runs.
//!
//! An edit is made from the row that was read and written only if that row is still there, so edits never
//! mix; one that lost such a race is made again from what is there now. Runs never see any of this: each
//! pinned its version when it was created.

use super::run_queries::load;
use super::{Engine, Error, NOTIFIER};
use crate::secret;
use kernel::plan::Body;
use kernel::{OrgId, RunId, WorkflowId};
use lang::{Compiled, MetaChange};
use store::{
    Definition, Edited, Erased, Erasure, OwnTrigger, TriggerRow, VersionKey, VersionRow, WorkflowEdit, WorkflowKey,
    WorkflowRow,
};

/// Edits lost to others before one gives up.
const TRIES: usize = 16;

/// What shall become of a workflow.
pub enum Change<'a> {
    /// Another definition, with what people call it. A new version unless it does the same as the present one.
    Replace(&'a Compiled),
    /// Only what people call it, and whether it may be started.
    Describe(&'a MetaChange),
    Delete,
}

/// A version somebody asked for.
pub struct Chosen {
    pub version: VersionRow,
    /// JSON in its author's order.
    pub source: bytes::Bytes,
}

impl Engine {
    /// Changes a workflow; what starts after the answer sees the change. With `expected`, only if that is the
    /// hash of its present definition.
    pub async fn edit_workflow(
        &self,
        org: OrgId,
        key: &str,
        change: &Change<'_>,
        expected: Option<[u8; 32]>,
    ) -> Result<WorkflowRow, Error> {
        for _ in 0..TRIES {
            let seen = self.workflow(org, key).await?.ok_or(Error::NotFound("workflow"))?;
            if expected.is_some_and(|hash| hash != seen.hash) {
                return Err(Error::OtherVersion(seen.hash));
            }
            if seen.id == NOTIFIER {
                return Err(Error::BuiltIn);
            }
            let own = self.inner.store.owned_trigger(org, seen.id).await?;
            let edit = self.edit(seen, change, own.as_ref())?;
            let outcome = self.inner.written(self.inner.store.edit_workflow(&edit).await);
            // Also when the outcome is not known: what is remembered may be wrong.
            self.inner.definitions.forget_names();
            match outcome? {
                Edited::Done => {
                    self.inner.triggers_moved.notify_one();
                    return Ok(edit.row);
                }
                Edited::Taken(taken) => return Err(Error::Taken(taken)),
                Edited::Changed => {}
            }
        }
        Err(Error::Unavailable("the workflow is changing too fast".into()))
    }

    fn edit(&self, seen: WorkflowRow, change: &Change<'_>, own: Option<&TriggerRow>) -> Result<WorkflowEdit, Error> {
        let now = self.now();
        let mut row = WorkflowRow { updated_at: now, ..seen.clone() };
        let (mut version, mut trigger) = (None, OwnTrigger::Keep);
        match change {
            Change::Replace(compiled) => {
                let Compiled { meta, plan, hash, form, source, trigger: wanted } = compiled;
                row.name.clone_from(&meta.name);
                row.slug = meta.slug.clone().unwrap_or(row.slug);
                row.description.clone_from(&meta.description);
                row.tags = serde_json::to_string(&meta.tags).unwrap_or_default();
                // An edit that does not mention it must not switch a workflow on.
                if source.get("enabled").is_some() {
                    row.enabled = meta.enabled;
                }
                if *hash != row.hash {
                    row.trigger.clone_from(&meta.trigger);
                    (row.form, row.steps) = (*form, plan.nodes().len() as u32);
                    (row.version, row.hash) = (row.version + 1, *hash);
                    let (source, plan) = (source.to_string().into(), plan.encode().into());
                    version = Some((Definition { hash: *hash, source, plan }, "update"));
                }
                // Also with the same hash: a secret is not part of it.
                trigger = match self.owned_trigger(&row, wanted.as_ref(), own)? {
                    Some(row) => OwnTrigger::Put(Box::new(row)),
                    None => OwnTrigger::Remove,
                };
            }
            Change::Describe(meta) => {
                row.name = meta.name.clone().unwrap_or(row.name);
                row.slug = meta.slug.clone().unwrap_or(row.slug);
                row.description = meta.description.clone().or(row.description).filter(|text| !text.is_empty());
                row.tags = meta.tags.as_ref().map_or(row.tags, |tags| serde_json::to_string(tags).unwrap_or_default());
                row.enabled = meta.enabled.unwrap_or(row.enabled);
            }
            Change::Delete => row.deleted_at = Some(now),
        }
        let is_same = WorkflowRow { updated_at: seen.updated_at, ..row.clone() } == seen;
        if is_same {
            row.updated_at = seen.updated_at;
        }
        Ok(WorkflowEdit { seen, row, version, trigger })
    }

    /// A workflow's versions, newest first.
    pub async fn versions(
        &self,
        org: OrgId,
        id: WorkflowId,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Vec<VersionRow>, Error> {
        Ok(self.inner.store.versions(org, id, before, limit).await?)
    }

    /// One version of a workflow with its source.
    pub async fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Result<Option<Chosen>, Error> {
        let Some(version) = self.inner.store.version(org, id, by).await? else { return Ok(None) };
        let source = self.source(org, &version.hash).await?;
        let source = source.ok_or_else(|| Error::Damaged("the definition of a version is missing".into()))?;
        Ok(Some(Chosen { version, source }))
    }

    /// The plan of a version.
    pub async fn plan(&self, row: &WorkflowRow, version: &VersionRow) -> Result<std::sync::Arc<kernel::Plan>, Error> {
        let found = self.inner.version(row.org, row.id, version.number, &row.name, version.hash).await?;
        Ok(found.plan.clone())
    }

    /// Removes a run that has ended, with everything it holds.
    pub async fn delete_run(&self, org: OrgId, run: RunId) -> Result<(), Error> {
        let resumed = load(&self.inner, org, run).await?.ok_or(Error::NotFound("run"))?;
        let is_wait = |body: &Option<Body>| matches!(body, Some(Body::Webhook { .. }));
        let waits = resumed.version.plan.nodes().iter().filter(|node| is_wait(&node.body));
        let labels = resumed.run.state.origin.labels.iter();
        let erasure = Erasure {
            org,
            run,
            labels: labels.map(|pair| (pair.name.clone(), pair.value.clone())).collect(),
            waits: waits.map(|node| secret::token_hash(&self.inner.secret.token(run, &node.key))).collect(),
        };
        match self.inner.written(self.inner.store.erase(&erasure).await)? {
            Erased::Done => Ok(()),
            Erased::NotFound => Err(Error::NotFound("run")),
            Erased::NotEnded => Err(Error::RunOpen(format!("the run has not ended: it is {}", resumed.row.status))),
            Erased::NotTold => Err(Error::RunOpen("somebody has yet to be told that the run has ended".into())),
        }
    }

    /// The workflow of a run, also when it was deleted.
    pub(super) async fn workflow_of(&self, org: OrgId, id: WorkflowId) -> Result<WorkflowRow, Error> {
        let found = self.inner.store.workflow(org, &WorkflowKey::Ever(id)).await?;
        found.ok_or_else(|| Error::Damaged("its workflow is missing".into()))
    }
}
