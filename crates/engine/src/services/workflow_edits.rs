//! Editing and deleting workflows, and reading their versions.
//!
//! An edit starts from the row it read, and is written only if that row is unchanged, so concurrent edits never mix. An
//! edit that lost such a race is tried again from the new row. Runs are not affected: each pinned its version when it
//! was created.

use super::outbox::NOTIFIER;
use super::workflows::Workflows;
use crate::catalog::{self, WorkflowChange};
use crate::error::Error;
use crate::mailbox::Command;
use crate::version::Version;
use kernel::{OrgId, WorkflowId};
use std::sync::Arc;
use store::{Edited, VersionKey, VersionRow, WorkflowKey, WorkflowRow};

/// Attempts at an edit before it gives up, when other writers are always first.
const TRIES: usize = 16;

/// A version with its source.
pub struct Chosen {
    pub version: VersionRow,
    /// The author's own `version` in the definition.
    pub label: Option<String>,
    /// JSON in its author's order.
    pub source: bytes::Bytes,
}

impl Workflows {
    /// Changes a workflow; runs that start after the answer use the change. With `expected`, only if that is the hash
    /// of its present definition.
    pub async fn edit(
        &self,
        org: OrgId,
        key: &str,
        change: &WorkflowChange<'_>,
        expected: Option<[u8; 32]>,
    ) -> Result<WorkflowRow, Error> {
        for _ in 0..TRIES {
            let seen = self.get(org, key).await?.ok_or(Error::NotFound("workflow"))?;
            if expected.is_some_and(|hash| hash != seen.hash) {
                return Err(Error::OtherVersion(seen.hash));
            }
            if seen.id == NOTIFIER {
                return Err(Error::BuiltIn);
            }
            let own = self.core.store.owned_trigger(org, seen.id).await?;
            let edit = catalog::edited(seen, change, own.as_ref(), self.core.now())?;
            let outcome = self.core.written(self.core.store.edit_workflow(&edit).await);
            // Also when the outcome is unknown: the cache may be wrong.
            self.cache.forget_all();
            match outcome? {
                Edited::Done => {
                    self.schedule_changed.notify_one();
                    if matches!(change, WorkflowChange::Delete) {
                        // A deleted workflow cannot be resumed, so the store has ended its pause.
                        self.announce_pause(Command::ResumeWorkflow(edit.row.id)).await;
                    }
                    return Ok(edit.row);
                }
                Edited::Taken(taken) => return Err(Error::Taken(taken)),
                Edited::Changed => {}
            }
        }
        Err(Error::Unavailable("the workflow is changing too fast".into()))
    }

    /// A workflow's versions, newest first.
    pub async fn versions(
        &self,
        org: OrgId,
        id: WorkflowId,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Vec<VersionRow>, Error> {
        Ok(self.core.store.versions(org, id, before, limit).await?)
    }

    /// One version of a workflow with its source.
    pub async fn version(&self, org: OrgId, id: WorkflowId, by: VersionKey) -> Result<Option<Chosen>, Error> {
        let Some(version) = self.core.store.version(org, id, by).await? else { return Ok(None) };
        let own = self.core.store.version_source(org, id, version.number).await?;
        let label = own.as_deref().and_then(label);
        let source = match own {
            Some(source) => Some(source),
            None => self.source(org, &version.hash).await?,
        };
        let source = source.ok_or_else(|| Error::Damaged("the definition of a version is missing".into()))?;
        Ok(Some(Chosen { version, source, label }))
    }

    /// A version with its plan.
    pub async fn version_with_plan(&self, row: &WorkflowRow, version: &VersionRow) -> Result<Arc<Version>, Error> {
        Ok(self.catalog().pinned(row.org, row.id, version.number, &row.name, (version.hash, None)).await?)
    }

    /// The workflow of a run, even if it was deleted.
    pub(super) async fn workflow_of(&self, org: OrgId, id: WorkflowId) -> Result<WorkflowRow, Error> {
        let found = self.core.store.workflow(org, &WorkflowKey::IdOrDeleted(id)).await?;
        found.ok_or_else(|| Error::Damaged("its workflow is missing".into()))
    }
}

/// The author's own `version` in a definition.
fn label(source: &[u8]) -> Option<String> {
    let source: serde_json::Value = serde_json::from_slice(source).ok()?;
    source["version"].as_str().map(str::to_owned)
}
