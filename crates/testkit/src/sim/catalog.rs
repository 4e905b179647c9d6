//! Clients that edit, delete and create workflows while runs are open, and processes that look for versions.
//!
//! ```text
//!   EditWorkflow ──edited──▶ store ◀──Catalog::resolve── a start, a child, a notification ──▶ the run's first record
//!                              ▲
//!                              └──Catalog::version_of── a run that is read again
//! ```
//!
//! Processes write and read definitions with the engine's own [`Catalog`]; the [`CatalogModel`] only notes what was
//! written. Invariants: a run gets the version that is current when a process takes its request (M18), and keeps it,
//! whatever happens to the workflow (I30, M7). The [`checker`](super::checker) compares every record and row of a run
//! with the version that it got.

use super::checker::KnownVersion;
use super::random::Random;
use super::violation::{CheckResult, Violation, require};
use super::workflow_generator::{ConcurrencyLimit, TestWorkflow};
use super::world::{NOTIFIER, SimEvent, World, completed, ready};
use engine::catalog::{self, Catalog, Resolved};
use engine::mailbox::Command;
use engine::{Version, WorkflowChange};
use kernel::plan::Form;
use kernel::{OrgId, Span, Timestamp, WorkflowId};
use lang::{Compiled, Meta};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use store::prelude::*;
use store::{Edited, WorkflowKey, WorkflowRow};

/// What the clients have written so far.
#[derive(Default)]
pub struct CatalogModel {
    versions: Vec<KnownVersion>,
    /// The current version of each workflow by its name, as an index; `None` if it was deleted.
    current: BTreeMap<String, Option<usize>>,
    /// Counts the writes. Before a process of a shared store relies on a name, it compares this number with its own.
    revision: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlannedEdit {
    /// Another definition; creates a workflow that was deleted.
    Replace,
    /// The present definition again.
    Repeat,
    Delete,
}

impl CatalogModel {
    /// Every version that was written.
    pub fn versions(&self) -> &[KnownVersion] {
        &self.versions
    }

    pub fn current(&self, name: &str) -> Option<&KnownVersion> {
        self.current.get(name).copied().flatten().map(|version| &self.versions[version])
    }

    /// The version with this name that was written last, even if its workflow was deleted.
    pub fn newest(&self, name: &str) -> Option<&KnownVersion> {
        self.versions.iter().rev().find(|known| known.version.name == name)
    }

    /// The name of a workflow.
    pub fn name_of(&self, workflow: WorkflowId) -> Option<&str> {
        self.versions.iter().find(|known| known.version.workflow == workflow).map(|known| &known.version.name[..])
    }

    fn written(&mut self, known: KnownVersion) {
        self.revision += 1;
        self.current.insert(known.version.name.clone(), Some(self.versions.len()));
        self.versions.push(known);
    }

    fn deleted(&mut self, name: &str) {
        self.revision += 1;
        self.current.insert(name.to_owned(), None);
    }
}

/// A version of a generated workflow.
pub fn version(workflow: TestWorkflow, id: WorkflowId, name: String, number: u32, random: &mut Random) -> KnownVersion {
    let workflow = Rc::new(workflow);
    let plan = Arc::new(workflow.plan());
    let (org, hash, order) = (OrgId::DEFAULT, random.bytes(), Version::order(&plan, None));
    let (lowering, input) = (lang::LOWERING, Default::default());
    let version = Version { org, workflow: id, name, number, hash, lowering, plan, order, input };
    KnownVersion { workflow, version: Arc::new(version) }
}

/// Draws when workflows are edited and deleted before `until`.
pub fn draw_edits(world: &mut World, until: Timestamp) -> Vec<(Timestamp, String, PlannedEdit)> {
    let mut random = world.limits_random.clone();
    let length = until.since(world.now).0;
    let mut edits = Vec::new();
    for name in world.catalog.current.keys().filter(|name| *name != NOTIFIER) {
        for _ in 0..random.below(4) {
            let edit = match random.below(10) {
                0..6 => PlannedEdit::Replace,
                6 => PlannedEdit::Repeat,
                _ => PlannedEdit::Delete,
            };
            edits.push((world.now.after(Span(random.below(length))), name.clone(), edit));
        }
    }
    world.limits_random = random;
    edits
}

/// What a client sends for a version. The hash is drawn, so the source only has to be a document.
fn compiled(known: &KnownVersion) -> Compiled {
    let Version { name, number, hash, plan, .. } = &*known.version;
    let meta = Meta {
        name: name.clone(),
        slug: None,
        description: None,
        tags: Vec::new(),
        enabled: true,
        trigger: "api".into(),
    };
    Compiled {
        meta,
        plan: (**plan).clone(),
        hash: *hash,
        form: Form::default(),
        source: serde_json::json!({ "name": name, "edition": number }),
        trigger: None,
        input: None,
        warnings: Vec::new(),
    }
}

impl World {
    /// Writes the workflows that exist from the beginning.
    pub fn create_workflows(&mut self, versions: Vec<KnownVersion>) {
        for known in versions {
            let created = self.create_workflow(&known);
            created.expect("the names of generated workflows differ");
            self.catalog.written(known);
        }
    }

    fn create_workflow(&mut self, known: &KnownVersion) -> Result<(), Violation> {
        let id = (OrgId::DEFAULT, known.version.workflow);
        let new = catalog::new_workflow(id, &compiled(known), None, self.now);
        let new = new.map_err(|error| format!("{} cannot be created: {error}", known.version.name))?;
        let created = ready(self.store.create_workflow(&new)).expect("the memory store answers");
        created.map_err(|taken| format!("{} cannot be created: {taken:?}", known.version.name).into())
    }

    /// A client edits, deletes or creates a workflow: first in the store, then in one process. If the outcome of the
    /// write is unknown, a process with a store of its own crashes, and one of a shared store reads what is there.
    pub fn edit_workflow(&mut self, name: &str, edit: PlannedEdit) -> CheckResult {
        let Some(process) = self.reachable().filter(|_| !self.is_store_down()) else { return Ok(()) };
        let by_name = WorkflowKey::Name(name.to_owned());
        let seen = ready(self.store.workflow(OrgId::DEFAULT, &by_name)).expect("the memory store answers");
        let current = self.catalog.current(name).cloned();
        require(seen.as_ref().map(|row| row.hash) == current.as_ref().map(|known| known.version.hash), || {
            format!("{name} is stored as {seen:?}")
        })?;
        let is_unknown = !self.is_liveness_phase && self.fault_random.chance(self.faults.unknown_commit);
        let is_applied = !is_unknown || self.fault_random.coin();
        self.note(format!("process {process} applies to {name}: {edit:?}, applied: {is_applied}"));
        let deleted = seen.as_ref().filter(|_| edit == PlannedEdit::Delete).map(|row| row.id);
        if is_applied {
            match (edit, seen, current) {
                (PlannedEdit::Replace, None, _) => {
                    let id = WorkflowId(self.limits_random.bytes());
                    let known = self.draw_version(name, id, 1);
                    self.create_workflow(&known)?;
                    self.trace.mark("a deleted workflow was created again", true);
                    self.catalog.written(known);
                }
                (PlannedEdit::Replace, Some(seen), _) => {
                    let known = self.draw_version(name, seen.id, seen.version + 1);
                    self.write_edit(seen, &WorkflowChange::Replace(&compiled(&known)), known.version.number)?;
                    self.trace.mark("a workflow was edited", true);
                    self.catalog.written(known);
                }
                (PlannedEdit::Repeat, Some(seen), Some(known)) => {
                    let number = seen.version;
                    self.write_edit(seen, &WorkflowChange::Replace(&compiled(&known)), number)?;
                }
                (PlannedEdit::Delete, Some(seen), _) => {
                    let number = seen.version;
                    self.write_edit(seen, &WorkflowChange::Delete, number)?;
                    self.trace.mark("a workflow was deleted", true);
                    self.catalog.deleted(name);
                }
                _ => return Ok(()),
            }
            let others = self.processes.iter_mut().enumerate().filter(|(other, p)| *other != process && p.is_alive());
            others.for_each(|(_, other)| other.is_outdated = true);
        }
        if is_unknown && !self.faults.is_shared {
            self.crash(self.processes[process].host);
            return Ok(());
        }
        self.processes[process].cache.forget_all();
        // A deleted workflow cannot be resumed, so the store has ended its pause.
        if let Some(workflow) = deleted.filter(|_| is_applied) {
            self.processes[process].paused.remove(&workflow);
            self.checker.concurrency.workflow_resumed(workflow);
            self.deliver(process, Command::ResumeWorkflow(workflow));
        }
        Ok(())
    }

    /// Writes a change, which leads to version `number`.
    fn write_edit(&mut self, seen: WorkflowRow, change: &WorkflowChange<'_>, number: u32) -> CheckResult {
        let name = seen.name.clone();
        let edit = catalog::edited(seen, change, None, self.now);
        let edit = edit.map_err(|error| format!("{name} cannot be edited: {error}"))?;
        let written = ready(self.store.edit_workflow(&edit)).expect("the memory store answers");
        require(written == Edited::Done && edit.row.version == number, || {
            format!("{name} is at version {}, expected {number}: {written:?}", edit.row.version)
        })
    }

    /// Another definition for the workflow of this name. It calls only workflows that come before it, as the first did.
    fn draw_version(&mut self, name: &str, id: WorkflowId, number: u32) -> KnownVersion {
        let mut random = self.limits_random.clone();
        let before = self.catalog.newest(name).map(|known| known.workflow.clone());
        let mut workflow = match before.as_ref().is_some_and(|before| before.is_single_task) {
            true => TestWorkflow::single_task(&mut random),
            false => TestWorkflow::draw(&mut random, 8),
        };
        if !workflow.is_single_task {
            if self.faults.has_tasks {
                workflow.assign_steps_to_workers(&mut random);
            }
            let place = name.rsplit(' ').next().and_then(|place| place.parse().ok()).filter(|_| self.calls_others);
            place.into_iter().for_each(|place| workflow.call_others(&mut random, place));
            workflow.concurrency =
                (self.faults.has_concurrency_limits && random.chance(800)).then(|| ConcurrencyLimit::draw(&mut random));
            workflow.notifications = before.map_or(Vec::new(), |before| before.notifications.clone());
        }
        if self.faults.has_undo {
            workflow.add_undos(&mut self.operator_random, self.faults.has_tasks);
        }
        let known = version(workflow, id, name.to_owned(), number, &mut random);
        self.limits_random = random;
        known
    }

    /// Creates the workflows again that were deleted: notifications may need them.
    pub fn restore_workflows(&mut self) -> CheckResult {
        let deleted = self.catalog.current.iter().filter(|(_, current)| current.is_none());
        for name in deleted.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.edit_workflow(&name, PlannedEdit::Replace)?;
        }
        Ok(())
    }

    /// The current version of a workflow, as a process finds it. Some other process may have edited the workflow; only on
    /// a shared store can this one know.
    pub fn resolve(&mut self, process: usize, name: &str) -> Result<Option<Arc<Resolved>>, Violation> {
        let this = &mut self.processes[process];
        if self.faults.is_shared && this.cache_revision != self.catalog.revision {
            this.cache_revision = self.catalog.revision;
            this.cache.forget_all();
        }
        let catalog = Catalog { store: &self.store, cache: &this.cache };
        let found = completed(catalog.resolve(OrgId::DEFAULT, name));
        let found = found.map_err(|error| format!("{name} cannot be read: {error}"))?;
        let is_current = found.as_ref().map(|found| found.version.hash)
            == self.catalog.current(name).map(|known| known.version.hash);
        let may_be_old = !self.faults.is_shared && self.processes[process].is_outdated;
        require(is_current || may_be_old, || {
            let found = found.as_ref().map(|found| found.version.number);
            format!("process {process} finds version {found:?} of {name}, which is not the current one")
        })?;
        Ok(found)
    }

    /// The version that a process found, with its generated workflow.
    pub fn known(&self, found: &Version) -> KnownVersion {
        let is_it = |known: &&KnownVersion| known.version.hash == found.hash;
        self.catalog.versions.iter().find(is_it).cloned().expect("only known versions are stored")
    }

    pub fn schedule_edits(&mut self, until: Timestamp) {
        for (at, name, edit) in draw_edits(self, until) {
            self.push_at(at, SimEvent::EditWorkflow(name, edit));
        }
    }
}
