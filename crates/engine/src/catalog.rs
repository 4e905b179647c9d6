//! Workflows as requests and runs see them: a name in its current version, a run in the version that it is pinned to,
//! and what a new workflow, an edit or a deletion writes.
//!
//! It needs a store and nothing else of a server, so the simulator reads and writes definitions here, too. Invariant:
//! versions never change, so cached ones stay valid. A name may resolve to another version later, so every write of a
//! definition clears the cached names.

use crate::error::Error;
use crate::mailbox::{LoadFailure, Resumed, StoredBytes};
use crate::services::triggers::owned_trigger;
use crate::version::{InputCheck, RunVersions, Version};
use kernel::event::Origin;
use kernel::planted_bugs::{self, Bug};
use kernel::{OrgId, Plan, Run, Timestamp, WorkflowId};
use lang::{Compiled, MetaChange};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use store::{
    IdempotencyKey, Loaded, NewWorkflow, OwnTrigger, RunRow, Store, StoredDefinition, TriggerRow, WorkflowEdit,
    WorkflowKey, WorkflowRow,
};

/// Entries in each cache; when it is full, it is cleared.
const CACHE_MAX: usize = 1_024;

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
    pub fn forget_names(&self) {
        let mut names = lock(&self.names);
        names.writes += 1;
        names.resolved.clear();
    }

    /// Called when a workflow was edited: the author's text of a version may have changed, and with it the order of its
    /// steps.
    pub fn forget_all(&self) {
        lock(&self.versions).clear();
        self.forget_names();
    }
}

/// The workflows of a store, read through a cache.
#[derive(Clone, Copy)]
pub struct Catalog<'a> {
    pub store: &'a dyn Store,
    pub cache: &'a WorkflowCache,
}

impl Catalog<'_> {
    /// The workflow of a key and its current version; cached, so that a start costs no read.
    pub async fn resolve(&self, org: OrgId, key: &str) -> Result<Option<Arc<Resolved>>, Error> {
        let name = (org, key.to_owned());
        let writes = {
            let names = lock(&self.cache.names);
            if let Some(found) = names.resolved.get(&name) {
                return Ok(Some(found.clone()));
            }
            names.writes
        };
        let Some(row) = self.store.workflow(org, &workflow_key(key)).await? else { return Ok(None) };
        let version = self.pinned(org, row.id, row.version, &row.name, (row.hash, Some(row.lowering))).await?;
        let resolved = Arc::new(Resolved { row, version });
        let mut names = lock(&self.cache.names);
        if names.writes == writes {
            keep(&mut names.resolved, name, resolved.clone());
        }
        Ok(Some(resolved))
    }

    /// The version a run is pinned to.
    pub async fn version_of(&self, row: &RunRow) -> Result<Arc<Version>, LoadFailure> {
        if planted_bugs::is(Bug::VersionNotPinned)
            && let Ok(Some(now)) = self.store.workflow(row.org, &WorkflowKey::IdOrDeleted(row.workflow)).await
        {
            return self.pinned(row.org, now.id, now.version, &now.name, (now.hash, Some(now.lowering))).await;
        }
        let plan = (row.hash, Some(row.lowering));
        self.pinned(row.org, row.workflow, row.version, &row.workflow_name, plan).await
    }

    /// The versions that a run had.
    pub async fn versions_of(&self, row: &RunRow, run: &Run) -> Result<RunVersions, LoadFailure> {
        let origin = &run.state.origin;
        if run.state.moves.is_empty() {
            return self.version_of(row).await.map(RunVersions::only);
        }
        let first = self.named(row, (origin.version, &origin.hash, origin.lowering)).await?;
        let mut moves = Vec::new();
        for to in &run.state.moves {
            moves.push((to.seq, self.named(row, (to.version, &to.hash, to.lowering)).await?));
        }
        Ok(RunVersions::new(first, moves))
    }

    /// The version that a run was created with.
    pub async fn of_origin(&self, org: OrgId, origin: &Origin) -> Result<Arc<Version>, LoadFailure> {
        let hash = <[u8; 32]>::try_from(&origin.hash[..]);
        let hash = hash.map_err(|_| LoadFailure::Damaged("its version has no hash".into()))?;
        let plan = (hash, Some(origin.lowering));
        self.pinned(org, origin.workflow, origin.version, &origin.workflow_name, plan).await
    }

    /// A version of the workflow of a run, as the events of the run name it.
    pub async fn named(
        &self,
        row: &RunRow,
        (number, hash, lowering): (u32, &[u8], u32),
    ) -> Result<Arc<Version>, LoadFailure> {
        let hash = hash.try_into().map_err(|_| LoadFailure::Damaged("a version has no hash".into()))?;
        self.pinned(row.org, row.workflow, number, &row.workflow_name, (hash, Some(lowering))).await
    }

    /// A version by number, hash and lowering, cached. Without a lowering, the latest that is stored.
    pub async fn pinned(
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
        let found = self.store.definition(org, hash, lowering).await.map_err(|e| LoadFailure::Store(e.to_string()))?;
        let definition = found.ok_or_else(|| LoadFailure::Damaged("its definition is missing".into()))?;
        let plan = Plan::decode(&definition.plan).map_err(|e| LoadFailure::from(kernel::run::LoadError::from(e)))?;
        let source = self.store.version_source(org, workflow, number).await;
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

    /// A stored run, folded with the plan of its version.
    pub async fn resumed(&self, loaded: store::Result<Option<Loaded>>) -> Result<Option<Resumed>, LoadFailure> {
        let unreadable = |e: store::Error| match e {
            store::Error::Corrupt(what) => LoadFailure::Damaged(what),
            other => LoadFailure::Store(other.to_string()),
        };
        let Some(loaded) = loaded.map_err(unreadable)? else { return Ok(None) };
        let version = self.version_of(&loaded.row).await?;
        let snapshot = loaded.snapshot.as_ref().map(|(_, bytes)| bytes);
        let folded = Run::load(&version.plan, snapshot.map(|bytes| &bytes[..]), &loaded.records)?;
        let stored_bytes = StoredBytes::new(snapshot, &loaded.records);
        Ok(Some(Resumed { version, run: folded, seq: loaded.seq, row: loaded.row, stored_bytes }))
    }
}

/// A change to a workflow.
pub enum WorkflowChange<'a> {
    /// Another definition, with its name and description; a new version unless the hash is unchanged.
    Replace(&'a Compiled),
    /// Only name, slug, description, tags, and whether it is enabled.
    Describe(&'a MetaChange),
    Delete,
}

/// What a new workflow with its first version writes.
pub fn new_workflow(
    (org, id): (OrgId, WorkflowId),
    compiled: &Compiled,
    idempotency: Option<IdempotencyKey>,
    now: Timestamp,
) -> Result<NewWorkflow, Error> {
    let Compiled { meta, plan, hash, form, source, trigger, .. } = compiled;
    let row = WorkflowRow {
        org,
        id,
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
    let trigger = owned_trigger(&row, trigger.as_ref(), None, now)?;
    Ok(NewWorkflow { row, definition, slug_is_given: meta.slug.is_some(), idempotency, trigger })
}

/// What a change of the workflow `seen` writes. `own` is the trigger that its definition declares now.
pub fn edited(
    seen: WorkflowRow,
    change: &WorkflowChange<'_>,
    own: Option<&TriggerRow>,
    now: Timestamp,
) -> Result<WorkflowEdit, Error> {
    let mut row = WorkflowRow { updated_at: now, ..seen.clone() };
    let (mut definition, mut version_from, mut own_source, mut trigger) = (None, None, None, OwnTrigger::Keep);
    match change {
        WorkflowChange::Replace(compiled) => {
            let Compiled { meta, plan, hash, form, source, trigger: wanted, .. } = compiled;
            row.name.clone_from(&meta.name);
            row.slug = meta.slug.clone().unwrap_or(row.slug);
            row.description.clone_from(&meta.description);
            row.tags = serde_json::to_string(&meta.tags).unwrap_or_default();
            // An edit without `enabled` must not enable a disabled workflow.
            if source.get("enabled").is_some() {
                row.enabled = meta.enabled;
            }
            if *hash != row.hash {
                row.trigger.clone_from(&meta.trigger);
                (row.form, row.steps) = (*form, plan.nodes().len() as u32);
                (row.version, row.hash) = (row.version + 1, *hash);
                version_from = Some("update");
            }
            own_source = Some(bytes::Bytes::from(source.to_string()));
            // M7: the same definition again pins future runs to the lowering of this release.
            if version_from.is_some() || row.lowering != lang::LOWERING {
                row.lowering = lang::LOWERING;
                let (source, plan) = (source.to_string().into(), plan.encode().into());
                definition = Some(StoredDefinition { hash: *hash, lowering: row.lowering, source, plan });
            }
            // Also when the hash is the same: a webhook's secret is not part of the hash.
            trigger = match owned_trigger(&row, wanted.as_ref(), own, now)? {
                Some(row) => OwnTrigger::Put(Box::new(row)),
                None => OwnTrigger::Remove,
            };
        }
        WorkflowChange::Describe(meta) => {
            row.name = meta.name.clone().unwrap_or(row.name);
            row.slug = meta.slug.clone().unwrap_or(row.slug);
            row.description = meta.description.clone().or(row.description).filter(|text| !text.is_empty());
            row.tags = meta.tags.as_ref().map_or(row.tags, |tags| serde_json::to_string(tags).unwrap_or_default());
            row.enabled = meta.enabled.unwrap_or(row.enabled);
        }
        WorkflowChange::Delete => row.deleted_at = Some(now),
    }
    let is_same = WorkflowRow { updated_at: seen.updated_at, ..row.clone() } == seen;
    if is_same {
        row.updated_at = seen.updated_at;
    }
    Ok(WorkflowEdit { seen, row, definition, version_from, source: own_source, trigger })
}

pub(crate) fn workflow_key(key: &str) -> WorkflowKey {
    WorkflowId::parse(key).map_or_else(|| WorkflowKey::Name(lang::normalized(key)), WorkflowKey::Id)
}

fn keep<K: std::hash::Hash + Eq, V>(table: &mut HashMap<K, V>, key: K, value: V) {
    if table.len() >= CACHE_MAX {
        table.clear();
    }
    table.insert(key, value);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
