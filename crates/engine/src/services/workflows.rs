//! Workflows: storing definitions, listing them, and resolving a name to its current version. What is written, and how a
//! name or a version is read, is in [`catalog`].

use super::cluster::Cluster;
use super::core::Core;
use super::outbox::NOTIFIER;
use crate::catalog::{self, Catalog, workflow_key};
use crate::error::Error;
use kernel::{OrgId, WorkflowId};
use lang::Compiled;
use std::sync::{Arc, Mutex};
use store::{IdempotencyKey, NameTaken, WorkflowFilter, WorkflowKey, WorkflowRow};
use tokio::sync::Notify;

pub use crate::catalog::{Resolved, WorkflowCache};

/// Workflows that a suggestion for a misspelt name is chosen from.
const SUGGESTED_FROM: usize = 1_000;

pub struct Workflows {
    pub(super) core: Arc<Core>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) cache: Arc<WorkflowCache>,
    /// Wakes the scheduler: a definition may contain a schedule.
    pub(super) schedule_changed: Arc<Notify>,
}

impl Workflows {
    pub fn new(
        core: Arc<Core>,
        cluster: Arc<Cluster>,
        cache: Arc<WorkflowCache>,
        schedule_changed: Arc<Notify>,
    ) -> Workflows {
        Workflows { core, cluster, cache, schedule_changed }
    }

    /// Stores a new workflow with its first version; true if an earlier request with the idempotency key created it.
    pub async fn create(
        &self,
        org: OrgId,
        compiled: &Compiled,
        idempotency: Option<(String, [u8; 32])>,
    ) -> Result<(WorkflowRow, bool), Error> {
        let now = self.core.now();
        let id = WorkflowId::new(now, self.core.ids.random_bytes()?);
        let idempotency = idempotency.map(|(key, fingerprint)| IdempotencyKey {
            scope: "workflows".into(),
            key,
            fingerprint,
            created_at: now,
        });
        let new = catalog::new_workflow((org, id), compiled, idempotency, now)?;
        let (id, is_repeat) = match self.core.written(self.core.store.create_workflow(&new).await)? {
            Ok(()) => (new.row.id, false),
            Err(NameTaken::Key { workflow, fingerprint }) => {
                let same = new.idempotency.is_some_and(|key| key.fingerprint == fingerprint);
                if same { (workflow, true) } else { return Err(Error::KeyReused) }
            }
            Err(taken) => return Err(Error::Taken(taken)),
        };
        self.cache.forget_names();
        self.schedule_changed.notify_one();
        // Read back: the store may have added a number to the slug to make it unique.
        let row = self.core.store.workflow(org, &WorkflowKey::Id(id)).await?.ok_or(Error::NotFound("workflow"))?;
        Ok((row, is_repeat))
    }

    /// A workflow by id, name or slug.
    pub async fn get(&self, org: OrgId, key: &str) -> Result<Option<WorkflowRow>, Error> {
        Ok(self.core.store.workflow(org, &workflow_key(key)).await?)
    }

    /// A workflow by id, name or slug, or by its id if it was deleted.
    pub async fn get_or_deleted(&self, org: OrgId, key: &str) -> Result<Option<WorkflowRow>, Error> {
        let key = match workflow_key(key) {
            WorkflowKey::Id(id) => WorkflowKey::IdOrDeleted(id),
            other => other,
        };
        Ok(self.core.store.workflow(org, &key).await?)
    }

    /// The name of a workflow that a misspelt key probably means. Looks at the newest workflows only.
    pub async fn nearest(&self, org: OrgId, key: &str) -> Result<Option<String>, Error> {
        let filter = WorkflowFilter { limit: SUGGESTED_FROM, ..Default::default() };
        let rows = self.list(org, &filter).await?;
        let names = rows.iter().flat_map(|row| [row.name.as_str(), row.slug.as_str()]);
        Ok(lang::nearest(key, names).map(str::to_owned))
    }

    /// A workflow that a request names.
    pub(super) async fn expect(&self, org: OrgId, key: &str) -> Result<WorkflowRow, Error> {
        match self.get(org, key).await? {
            Some(row) => Ok(row),
            None => Err(self.unknown(org, key).await),
        }
    }

    /// There is no such workflow, but perhaps one with a similar name.
    pub(super) async fn unknown(&self, org: OrgId, key: &str) -> Error {
        let nearest = self.nearest(org, key).await.ok().flatten();
        Error::NoWorkflow { key: key.to_owned(), nearest }
    }

    /// Workflows without the built-in one. Its id is the smallest possible, so removing it only shortens the last page.
    pub async fn list(&self, org: OrgId, filter: &WorkflowFilter) -> Result<Vec<WorkflowRow>, Error> {
        let mut rows = self.core.store.workflows(org, filter).await?;
        rows.retain(|row| row.id != NOTIFIER);
        Ok(rows)
    }

    /// The source of a definition, JSON in its author's order.
    pub async fn source(&self, org: OrgId, hash: &[u8; 32]) -> Result<Option<bytes::Bytes>, Error> {
        Ok(self.core.store.definition(org, *hash, None).await?.map(|d| d.source))
    }

    /// The workflow of a key and its current version, as of this call.
    pub async fn resolve(&self, org: OrgId, key: &str) -> Result<Option<Arc<Resolved>>, Error> {
        self.cluster.refresh_caches().await?;
        self.catalog().resolve(org, key).await
    }

    pub(super) fn catalog(&self) -> Catalog<'_> {
        Catalog { store: &*self.core.store, cache: &self.cache }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
