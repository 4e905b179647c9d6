//! Task types (limits, pauses, cache of their definitions), and the workers that claim them.

use super::super::core::{Core, refusal};
use super::super::workflows::{Resolved, lock};
use super::Tasks;
use crate::error::Error;
use crate::mailbox::{Command, QueueQuery, Reply};
use crate::version::Version;
use kernel::plan::Form;
use kernel::run::WaitKind;
use kernel::{OrgId, Plan, RunStatus, Timestamp, WorkflowId};
use lang::task::TaskSettings;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{
    ClusterEvent, Rate, RunFilter, RunRow, StoredDefinition, TypePause, TypeRow, WorkerRow, WorkflowRow, listed_id,
};

/// Types in the cache; when it is full, it is cleared.
const TYPES_MAX: usize = 4_096;
/// Editions of one type in the cache.
const EDITIONS_MAX: usize = 64;
/// Workers that sent no request for this long are deleted.
const WORKERS_KEPT: kernel::Span = kernel::Span::from_days(1);
/// How often changed workers are stored, and every how many times all workers are.
const STORE_EVERY: Duration = Duration::from_secs(5);
const STORE_ALL_EVERY: u32 = 12;
/// Rows of waiting tasks that are read to count those of one type, and how many at a time.
const RETRYING_ROWS_MAX: usize = 100_000;
const PAGE: usize = 1_000;

/// A type with the settings of a submission: one definition that runs can start from.
pub struct TypeEdition {
    settings: TaskSettings,
    pub resolved: Arc<Resolved>,
    pub is_enabled: bool,
}

type Name = (OrgId, String);

/// Cache of type editions, so that a submission costs no read. Every change of a type removes its entry.
#[derive(Default)]
pub struct TypeCache(Mutex<CachedTypes>);

#[derive(Default)]
struct CachedTypes {
    known: HashMap<Name, Vec<Arc<TypeEdition>>>,
    /// Counts the changes: a read that began before the latest change must not enter the cache.
    changes: u64,
}

impl TypeCache {
    fn forget(&self, org: OrgId, name: &str) {
        let mut editions = lock(&self.0);
        editions.changes += 1;
        editions.known.remove(&(org, name.to_owned()));
    }

    pub fn forget_all(&self) {
        let mut editions = lock(&self.0);
        editions.changes += 1;
        editions.known.clear();
    }
}

/// A change to a type's settings. `None` leaves a setting, `Some(None)` removes it.
#[derive(Clone, Debug, Default)]
pub struct TypeChange {
    pub runtime: Option<Option<String>>,
    pub description: Option<Option<String>>,
    pub enabled: Option<bool>,
    pub limit: Option<Option<u32>>,
    pub limit_per_key: Option<Option<u32>>,
    pub rate: Option<Option<Rate>>,
}

/// A type with its current counts.
pub struct TypeView {
    pub row: TypeRow,
    pub ready: u64,
    pub leased: u32,
    pub workers: u32,
    /// Single tasks that wait for their next attempt; only where one type was asked for.
    pub retrying: Option<u64>,
}

/// The workflow id of a type's runs: a hash of the name, with the version bits of a UUIDv8 to tell it from others.
pub fn type_id(name: &str) -> WorkflowId {
    let hash = Sha256::digest([b"type:", name.as_bytes()].concat());
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    WorkflowId(id)
}

impl Tasks {
    /// The definition of a type with these settings; stored if it is new. `last` is the edition of the previous task of
    /// the same request: most requests contain tasks of one type.
    pub(super) async fn type_edition(
        &self,
        org: OrgId,
        name: &str,
        settings: &TaskSettings,
        last: &mut Option<Arc<TypeEdition>>,
    ) -> Result<Arc<TypeEdition>, Error> {
        let fits = |type_edition: &Arc<TypeEdition>| {
            type_edition.resolved.row.name == name && type_edition.settings == *settings
        };
        if let Some(type_edition) = last.as_ref().filter(|type_edition| fits(type_edition)) {
            return Ok(type_edition.clone());
        }
        let known = lock(&self.type_cache.0)
            .known
            .get(&(org, name.to_owned()))
            .and_then(|all| all.iter().find(|k| fits(k)).cloned());
        let type_edition = match known {
            Some(type_edition) => type_edition,
            None => self.ensure_type(org, name, settings).await?,
        };
        *last = Some(type_edition.clone());
        Ok(type_edition)
    }

    async fn ensure_type(&self, org: OrgId, name: &str, settings: &TaskSettings) -> Result<Arc<TypeEdition>, Error> {
        let now = self.core.now();
        let defined = lang::task::define(name, settings);
        let plan = Plan::new(defined.layout).map_err(|why| Error::Refused(why.into()))?;
        let definition = StoredDefinition {
            hash: defined.hash,
            lowering: lang::task::LOWERING,
            source: defined.source.to_string().into(),
            plan: plan.encode().into(),
        };
        self.core.written(self.core.store.ensure_type(&new_type(org, name, now), Some(&definition)).await)?;
        let changes = lock(&self.type_cache.0).changes;
        let row = self.core.store.task_type(org, name).await?.ok_or(Error::NotFound("type"))?;
        let id = type_id(name);
        let version = Version {
            org,
            workflow: id,
            name: name.into(),
            number: 1,
            hash: defined.hash,
            lowering: definition.lowering,
            order: Version::order(&plan, None),
            plan: Arc::new(plan),
            input: Default::default(),
        };
        let workflow = workflow_row(&version, now);
        let resolved = Arc::new(Resolved { row: workflow, version: Arc::new(version) });
        let type_edition = Arc::new(TypeEdition { settings: settings.clone(), resolved, is_enabled: row.enabled });
        let mut type_cache = lock(&self.type_cache.0);
        if type_cache.changes != changes {
            return Ok(type_edition);
        }
        if type_cache.known.len() >= TYPES_MAX {
            type_cache.known.clear();
        }
        let editions = type_cache.known.entry((org, name.to_owned())).or_default();
        editions.truncate(EDITIONS_MAX - 1);
        editions.push(type_edition.clone());
        Ok(type_edition)
    }
}

/// The workflow row from which a task is replayed, if its type is enabled.
pub(in super::super) async fn type_of(core: &Core, version: &Version) -> Result<WorkflowRow, Error> {
    match core.store.task_type(version.org, &version.name).await? {
        Some(row) if !row.enabled => Err(Error::TypeDisabled(version.name.clone())),
        _ => Ok(workflow_row(version, core.now())),
    }
}

/// A type in the shape of a workflow row, which is what runs start from.
fn workflow_row(version: &Version, now: Timestamp) -> WorkflowRow {
    WorkflowRow {
        org: version.org,
        id: version.workflow,
        name: version.name.clone(),
        slug: String::new(),
        description: None,
        tags: "[]".into(),
        form: Form::Task,
        trigger: "api".into(),
        steps: 1,
        enabled: true,
        version: version.number,
        hash: version.hash,
        lowering: version.lowering,
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

fn new_type(org: OrgId, name: &str, now: Timestamp) -> TypeRow {
    TypeRow {
        org,
        name: name.to_owned(),
        runtime: None,
        description: None,
        enabled: true,
        paused: None,
        limit: None,
        limit_per_key: None,
        rate: None,
        created_at: now,
        updated_at: now,
    }
}

impl Tasks {
    pub async fn task_type(&self, org: OrgId, name: &str) -> Result<Option<TypeView>, Error> {
        let Some(row) = self.core.store.task_type(org, name).await? else { return Ok(None) };
        let Some(view) = self.viewed(org, vec![row]).await?.pop() else { return Ok(None) };
        let retrying = Some(self.retrying(org, name).await?);
        Ok(Some(TypeView { retrying, ..view }))
    }

    /// How many single tasks of a type wait for their next attempt. They are neither ready nor in the task queue, so
    /// the rows of waiting runs are counted, up to [`RETRYING_ROWS_MAX`].
    async fn retrying(&self, org: OrgId, name: &str) -> Result<u64, Error> {
        let workflow = type_id(name);
        let waits = |row: &RunRow| row.workflow == workflow && row.waiting & 1 << WaitKind::Retry as u32 != 0;
        let (statuses, forms) = (vec![RunStatus::Waiting], vec![Form::Task]);
        let mut filter = RunFilter { statuses, forms, limit: PAGE, ..Default::default() };
        let mut count = 0;
        for _ in 0..RETRYING_ROWS_MAX / PAGE {
            let page = self.core.store.runs(org, &filter).await?;
            count += page.iter().flatten().filter(|row| waits(row)).count() as u64;
            match page.last().filter(|_| page.len() == PAGE) {
                Some(last) => filter.before = Some(listed_id(last)),
                None => break,
            }
        }
        Ok(count)
    }

    /// Types by name, those after `after`.
    pub async fn task_types(
        &self,
        org: OrgId,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<TypeView>, Error> {
        let rows = self.core.store.task_types(org, prefix, after, limit).await?;
        self.viewed(org, rows).await
    }

    async fn viewed(&self, org: OrgId, rows: Vec<TypeRow>) -> Result<Vec<TypeView>, Error> {
        let names = rows.iter().map(|row| row.name.clone()).collect();
        self.cluster.catch_up(None).await?;
        for row in rows.iter().filter(|row| row.limit.is_some()) {
            self.cluster.read_limit_slots(org, &row.name).await?;
        }
        match self.core.ask(|reply_to| Command::Query(QueueQuery::Types(org, names), reply_to)).await? {
            Reply::Types(tallies) => {
                let view = |(row, (ready, leased, workers))| TypeView { row, ready, leased, workers, retrying: None };
                Ok(rows.into_iter().zip(tallies).map(view).collect())
            }
            other => Err(refusal(other, "type")),
        }
    }

    /// Creates a type, or changes its settings.
    pub async fn put_type(&self, org: OrgId, name: &str, change: TypeChange) -> Result<TypeView, Error> {
        self.change_type(org, name, true, |row| {
            row.runtime = change.runtime.unwrap_or(row.runtime.take());
            row.description = change.description.unwrap_or(row.description.take());
            row.enabled = change.enabled.unwrap_or(row.enabled);
            row.limit = change.limit.unwrap_or(row.limit);
            row.limit_per_key = change.limit_per_key.unwrap_or(row.limit_per_key);
            row.rate = change.rate.unwrap_or(row.rate);
        })
        .await
    }

    /// Pauses a type: workers get no tasks of it until it is resumed.
    pub async fn pause_type(&self, org: OrgId, name: &str, actor: String, note: String) -> Result<TypeView, Error> {
        let at = self.core.now();
        self.change_type(org, name, false, |row| {
            row.paused.get_or_insert(TypePause { at, actor, note });
        })
        .await
    }

    pub async fn resume_type(&self, org: OrgId, name: &str) -> Result<TypeView, Error> {
        self.change_type(org, name, false, |row| row.paused = None).await
    }

    async fn change_type(
        &self,
        org: OrgId,
        name: &str,
        may_be_new: bool,
        change: impl FnOnce(&mut TypeRow),
    ) -> Result<TypeView, Error> {
        let core = &self.core;
        let _turn = self.changing_types.lock().await;
        let now = self.core.now();
        let mut row = match core.store.task_type(org, name).await? {
            Some(row) => row,
            None if may_be_new => new_type(org, name, now),
            None => return Err(Error::NotFound("type")),
        };
        change(&mut row);
        row.updated_at = now;
        core.written(core.store.put_type(&row).await)?;
        self.type_cache.forget(org, name);
        match core.store.is_shared() {
            true => self.cluster.broadcast_change(ClusterEvent::TypeChanged(org, name.to_owned())).await,
            false => drop(core.inbox.send(Command::TypeChanged(Box::new(row.clone())))),
        }
        self.viewed(org, vec![row]).await?.pop().ok_or(Error::NotFound("type"))
    }

    /// Whether a worker of this type was seen lately.
    pub async fn has_worker(&self, org: OrgId, name: &str) -> Result<bool, Error> {
        let query = QueueQuery::Types(org, vec![name.to_owned()]);
        match self.core.ask(|reply_to| Command::Query(query, reply_to)).await? {
            Reply::Types(counts) => Ok(counts.iter().any(|(_, _, workers)| *workers > 0)),
            other => Err(refusal(other, "type")),
        }
    }

    /// Workers that were seen in the last day, with the number of tasks each has leased.
    pub async fn workers(&self, org: OrgId) -> Result<Vec<(WorkerRow, u32)>, Error> {
        self.cluster.catch_up(None).await?;
        match self.core.ask(|reply_to| Command::Query(QueueQuery::Workers(org), reply_to)).await? {
            Reply::Workers(workers) => Ok(workers),
            other => Err(refusal(other, "worker")),
        }
    }
}

/// How often a node of a cluster reads which types have ready tasks, in case a cluster event was lost.
const READY_TYPES_EVERY: Duration = Duration::from_millis(1_000);
/// Every how many of these reads expired limit slots are deleted.
const EXPIRED_SLOTS_EVERY: u32 = 60;

impl Tasks {
    /// Reads which types have ready tasks, where other nodes may add some, until the engine stops.
    pub async fn watch_ready_types(self: Arc<Self>) {
        let core = &self.core;
        let mut round = 0u32;
        while core.store.is_shared() && !core.inbox.is_closed() {
            tokio::time::sleep(READY_TYPES_EVERY).await;
            round = round.wrapping_add(1);
            if round.is_multiple_of(EXPIRED_SLOTS_EVERY)
                && let Err(error) = core.store.delete_expired_limit_slots(core.now()).await
            {
                tracing::warn!(%error, "expired limit slots cannot be deleted");
            }
            match core.store.ready_types().await {
                Ok(types) if types.is_empty() => {}
                Ok(types) => drop(core.inbox.send(Command::TypesWithTasks(types))),
                Err(error) => tracing::warn!(%error, "the ready tasks cannot be read"),
            }
        }
    }

    /// Stores changed workers, until the engine stops.
    pub async fn store_workers(self: Arc<Self>) {
        let core = &self.core;
        let mut round = 0u32;
        while !core.inbox.is_closed() {
            // Other nodes see this node's workers only through these rows.
            let is_shared = core.store.is_shared();
            tokio::time::sleep(if is_shared { READY_TYPES_EVERY } else { STORE_EVERY }).await;
            round = round.wrapping_add(1);
            let since = Timestamp(core.now().0.saturating_sub_unsigned(WORKERS_KEPT.0));
            let all = round.is_multiple_of(if is_shared { EXPIRED_SLOTS_EVERY } else { STORE_ALL_EVERY });
            let query = QueueQuery::ChangedWorkers { all, since };
            let reply = core.ask(|reply_to| Command::Query(query, reply_to)).await;
            let Ok(Reply::Workers(changed)) = reply else { continue };
            if changed.is_empty() {
                continue;
            }
            let rows: Vec<WorkerRow> = changed.into_iter().map(|(row, _)| row).collect();
            if let Err(error) = core.written(core.store.put_workers(&rows, since).await) {
                tracing::warn!(%error, "the workers cannot be stored");
            }
        }
    }
}
