//! Workflows: storing definitions, and resolving a name to its current version. Versions never change, so cached ones
//! stay valid. A name may resolve to another version later, so every write of a definition clears the cached names.

use super::cluster::Cluster;
use super::core::Core;
use super::outbox::NOTIFIER;
use super::triggers::owned_trigger;
use crate::error::Error;
use crate::mailbox::LoadFailure;
use crate::version::{InputCheck, Version};
use kernel::{OrgId, Plan, WorkflowId};
use lang::Compiled;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use store::{
    IdempotencyKey, NameTaken, NewWorkflow, RunRow, StoredDefinition, WorkflowFilter, WorkflowKey, WorkflowRow,
};
use tokio::sync::Notify;

/// Entries in each cache; when it is full, it is cleared.
const CACHE_MAX: usize = 1_024;
/// Workflows that a suggestion for a misspelt name is chosen from.
const SUGGESTED_FROM: usize = 1_000;

/// A workflow and its current version.
pub struct Resolved {
    pub row: WorkflowRow,
    pub version: Arc<Version>,
}

/// Identifies a version. The versions of a task type differ by their hash only.
type VersionKey = (OrgId, WorkflowId, u32, [u8; 32], u32);

#[derive(Default)]
pub struct WorkflowCache {
    names: Mutex<Names>,
    versions: Mutex<HashMap<VersionKey, Arc<Version>>>,
}

#[derive(Default)]
struct Names {
    resolved: HashMap<(OrgId, String), Arc<Resolved>>,
    /// Counts the writes: a read that began before the latest write must not enter the cache.
    writes: u64,
}

impl WorkflowCache {
    /// Called when a write is durable, before its caller is answered.
    pub(super) fn forget_names(&self) {
        let mut names = lock(&self.names);
        names.writes += 1;
        names.resolved.clear();
    }

    /// Called when a workflow was edited: the author's text of a version may have changed, and with it the order of its
    /// steps.
    pub(super) fn forget_all(&self) {
        lock(&self.versions).clear();
        self.forget_names();
    }
}

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
        let Compiled { meta, plan, hash, form, source, trigger, .. } = compiled;
        let now = self.core.now();
        let row = WorkflowRow {
            org,
            id: WorkflowId::new(now, self.core.ids.random_bytes()?),
            slug: meta.slug.clone().unwrap_or_else(|| derive_slug(&meta.name)),
            name: meta.name.clone(),
            description: meta.description.clone(),
            tags: serde_json::to_string(&meta.tags).unwrap_or_default(),
            form: *form,
            trigger: meta.trigger.clone(),
            steps: plan.nodes().len() as u32,
            enabled: meta.enabled,
            version: 1,
            hash: *hash,
            lowering: lang::LOWERING,
            created_at: now,
            updated_at: now,
            deleted_at: None,
        };
        let (source, plan) = (source.to_string().into(), plan.encode().into());
        let definition = StoredDefinition { hash: *hash, lowering: lang::LOWERING, source, plan };
        let idempotency = idempotency.map(|(key, fingerprint)| IdempotencyKey {
            scope: "workflows".into(),
            key,
            fingerprint,
            created_at: now,
        });
        let trigger = owned_trigger(&row, trigger.as_ref(), None, now)?;
        let new = NewWorkflow { row, definition, slug_is_given: meta.slug.is_some(), idempotency, trigger };
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

    /// The workflow of a key and its current version; cached, so that a start costs no read.
    pub async fn resolve(&self, org: OrgId, key: &str) -> Result<Option<Arc<Resolved>>, Error> {
        self.cluster.refresh_caches().await?;
        let name = (org, key.to_owned());
        let writes = {
            let names = lock(&self.cache.names);
            if let Some(found) = names.resolved.get(&name) {
                return Ok(Some(found.clone()));
            }
            names.writes
        };
        let Some(row) = self.core.store.workflow(org, &workflow_key(key)).await? else { return Ok(None) };
        let version = self.pinned(org, row.id, row.version, &row.name, (row.hash, Some(row.lowering))).await?;
        let resolved = Arc::new(Resolved { row, version });
        let mut names = lock(&self.cache.names);
        if names.writes == writes {
            keep(&mut names.resolved, name, resolved.clone());
        }
        Ok(Some(resolved))
    }

    /// The version a run is pinned to.
    pub(super) async fn version_of(&self, row: &RunRow) -> Result<Arc<Version>, LoadFailure> {
        let plan = (row.hash, Some(row.lowering));
        self.pinned(row.org, row.workflow, row.version, &row.workflow_name, plan).await
    }

    /// A version by number, hash and lowering, cached. Without a lowering, the latest that is stored.
    pub(super) async fn pinned(
        &self,
        org: OrgId,
        workflow: WorkflowId,
        number: u32,
        name: &str,
        (hash, lowering): ([u8; 32], Option<u32>),
    ) -> Result<Arc<Version>, LoadFailure> {
        // The latest lowering may change.
        let key = lowering.map(|lowering| (org, workflow, number, hash, lowering));
        if let Some(found) = key.and_then(|key| lock(&self.cache.versions).get(&key).cloned()) {
            return Ok(found);
        }
        let found =
            self.core.store.definition(org, hash, lowering).await.map_err(|e| LoadFailure::Store(e.to_string()))?;
        let definition = found.ok_or_else(|| LoadFailure::Damaged("its definition is missing".into()))?;
        let plan = Plan::decode(&definition.plan).map_err(|e| LoadFailure::from(kernel::run::LoadError::from(e)))?;
        let source = self.core.store.version_source(org, workflow, number).await;
        let source = source.map_err(|e| LoadFailure::Store(e.to_string()))?;
        let order = Version::order(&plan, source.as_deref());
        let (name, lowering, plan) = (name.to_owned(), definition.lowering, Arc::new(plan));
        let input = InputCheck::of(&definition.source);
        let version = Arc::new(Version { org, workflow, name, number, hash, lowering, plan, order, input });
        if let Some(key) = key {
            keep(&mut lock(&self.cache.versions), key, version.clone());
        }
        Ok(version)
    }
}

pub(super) fn workflow_key(key: &str) -> WorkflowKey {
    WorkflowId::parse(key).map_or_else(|| WorkflowKey::Name(lang::normalized(key)), WorkflowKey::Id)
}

fn keep<K: std::hash::Hash + Eq, V>(table: &mut HashMap<K, V>, key: K, value: V) {
    if table.len() >= CACHE_MAX {
        table.clear();
    }
    table.insert(key, value);
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// `Order Processing!` → `order-processing`.
fn derive_slug(name: &str) -> String {
    let mut slug = String::new();
    for c in name.chars() {
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '_') => slug.push(c),
            _ if !slug.is_empty() && !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
    }
    slug.truncate(80);
    let slug = slug.trim_matches(['-', '_']);
    if slug.is_empty() { "workflow".to_owned() } else { slug.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_16_a_slug_is_derived_from_the_name() {
        for (name, slug) in [
            ("order-processing", "order-processing"),
            ("Order  Processing!", "order-processing"),
            ("日本", "workflow"),
            ("_a", "a"),
        ] {
            assert_eq!(derive_slug(name), slug);
        }
        assert_eq!(derive_slug(&"x".repeat(200)).len(), 80);
    }
}
