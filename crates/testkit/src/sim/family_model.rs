//! Parents and children: what they must tell each other, whatever crashes (M17 to M19).
//!
//! ```text
//!   ChildStarted + row ──▶ the child's first record − row        the child's end + row ──▶ ChildEnded − row
//! ```
//!
//! Invariant: from the record that causes it to the record that consumes it, every message is a row of the inbox.

use super::checker::Checker;
use super::trigger::Trigger;
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::{ChildCall, StepKind};
use super::world::ready;
use kernel::event::{Event, Override, Parent};
use kernel::inbox::InboxKind;
use kernel::{OrgId, RunId, RunStatus};
use std::collections::{BTreeMap, BTreeSet};
use store::prelude::*;
use store::{InboxRow, MemoryStore};

/// What is known about the step of an event after it.
#[derive(Clone, Copy)]
pub struct AboutStep {
    pub kind: Option<StepKind>,
    /// Its attempt was called off, and the run waits for the end of it.
    pub is_called_off: bool,
}

#[derive(Default)]
pub struct FamilyModel {
    children: BTreeMap<RunId, Child>,
    /// Runs that end or have ended since the last check, and those of them that have ended.
    closing: BTreeSet<RunId>,
    ended: BTreeSet<RunId>,
    /// Children whose step was cancelled since the last check.
    called_off: BTreeSet<RunId>,
    /// Children whose workflow was not there when a process looked for it.
    refused: BTreeSet<RunId>,
    /// Children that no run was registered for.
    new: Vec<(RunId, ChildCall, Trigger)>,
}

struct Child {
    parent: RunId,
    step: u32,
    attempt: u32,
    call: ChildCall,
    exists: bool,
    /// The step still waits for it.
    is_awaited: bool,
    /// The step does not, but its run does: what the child did may have to be undone.
    is_called_off: bool,
}

impl FamilyModel {
    /// An event of a run, which may be a child or have children.
    pub fn observe(&mut self, run: RunId, event: &Event, about: AboutStep, trigger: &Trigger) -> CheckResult {
        let kind = about.kind;
        if event.is_end() {
            let awaited = self.children.values_mut().filter(|child| child.parent == run && child.is_called_off);
            awaited.for_each(|child| child.is_awaited = false);
        }
        match event {
            Event::Created { origin } => match (&origin.parent, self.children.get_mut(&run)) {
                (None, None) => {}
                (Some(parent), Some(child)) => {
                    let Parent { run: by, step, attempt, is_detached, .. } = &**parent;
                    let is_right = (*by, *step, *attempt) == (child.parent, child.step, child.attempt);
                    require(is_right && *is_detached == child.call.is_detached, || {
                        format!("{run} has parent {parent:?}")
                    })?;
                    child.exists = true;
                }
                (parent, _) => return Err(format!("{run} was started by {parent:?}, which did not ask for it").into()),
            },
            Event::ChildStarted { step, attempt, child, .. } => {
                let Some(StepKind::Child(call)) = kind else {
                    return Err(format!("s{step} of {run} starts a child").into());
                };
                let (exists, is_awaited, is_called_off) = (false, true, false);
                let entry =
                    Child { parent: run, step: *step, attempt: *attempt, call, exists, is_awaited, is_called_off };
                let other = self.children.insert(*child, entry);
                ViolationKind::Duplicated.unless(other.is_none(), || format!("two steps start {child}"))?;
                self.new.push((*child, call, trigger.of_child()));
            }
            Event::ChildEnded { child, .. } => {
                let known = self.children.get_mut(child).filter(|child| child.parent == run && child.is_awaited);
                let known = known.ok_or_else(|| format!("the end of {child} is told twice, or to the wrong run"))?;
                known.is_awaited = false;
            }
            // A group or a loop around it fails with the same code.
            Event::Failed { step, failure, .. }
                if failure.code == "unknown_workflow" && matches!(kind, Some(StepKind::Child(_))) =>
            {
                let mut own = self.children.iter().filter(|(_, child)| child.parent == run && child.step == *step);
                let is_right = own.any(|(id, child)| !child.exists && self.refused.contains(id));
                require(is_right, || format!("s{step} of {run} failed, but the workflow of its child is there"))?;
            }
            Event::Cancelled { step } | Event::Overridden { step, verb: Override::Skip | Override::Result, .. } => {
                let own = self.children.iter_mut().filter(|(_, child)| child.parent == run && child.step == *step);
                for (id, child) in own.filter(|(_, child)| child.is_awaited && !child.is_called_off) {
                    (child.is_awaited, child.is_called_off) = (about.is_called_off, about.is_called_off);
                    self.called_off.insert(*id);
                }
            }
            Event::RunCancelling { .. } => drop(self.closing.insert(run)),
            Event::RunCompleted {}
            | Event::RunFinished { .. }
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. }
            | Event::RunTimeout {} => {
                self.closing.insert(run);
                self.ended.insert(run);
            }
            _ => {}
        }
        Ok(())
    }

    /// A process found no workflow for this child.
    pub fn refused(&mut self, child: RunId) {
        self.refused.insert(child);
    }

    /// The messages that no run has read: to whom, of which kind, and from whom.
    pub fn left(&self, store: &MemoryStore) -> Vec<(RunId, InboxKind, Option<RunId>)> {
        all_rows(store).into_iter().map(|row| (row.key.1, row.kind, row.sender)).collect()
    }

    /// Was the run started by a step of another one?
    pub fn is_child(&self, run: RunId) -> bool {
        self.children.contains_key(&run)
    }

    /// The parent of a run, if the run ends with it.
    pub fn closed_by(&self, run: RunId) -> Option<RunId> {
        self.children.get(&run).filter(|child| child.call.is_closed_with_parent).map(|child| child.parent)
    }

    /// A run was deleted: no message to it or from it is left.
    pub fn run_erased(&self, run: RunId, store: &MemoryStore) -> CheckResult {
        let concerns = |row: &InboxRow| row.key.1 == run || row.sender == Some(run);
        ViolationKind::Lost.unless(!all_rows(store).iter().any(concerns), || {
            format!("{run} was deleted, and messages to it or from it are left")
        })
    }
}

fn all_rows(store: &MemoryStore) -> Vec<InboxRow> {
    let rows = |kind| ready(store.inbox(kind, None, usize::MAX)).expect("the memory store answers");
    rows(InboxKind::StartChild).into_iter().chain(rows(InboxKind::Input)).collect()
}

impl Checker {
    pub fn take_new_children(&mut self) -> Vec<(RunId, ChildCall, Trigger)> {
        std::mem::take(&mut self.families.new)
    }

    /// Checks the rows of the inbox against what runs owe each other.
    pub fn check_families(&mut self, store: &MemoryStore) -> CheckResult {
        if self.families.children.is_empty() {
            self.families.closing.clear();
            self.families.ended.clear();
            return Ok(());
        }
        let rows = all_rows(store);
        let is_written = |to: RunId, kind: InboxKind, sender: RunId| {
            rows.iter()
                .any(|row| row.key == (OrgId::DEFAULT, to, row.key.2) && row.kind == kind && row.sender == Some(sender))
        };
        for (id, child) in &self.families.children {
            let parent = child.parent;
            let asks = is_written(*id, InboxKind::StartChild, parent);
            ViolationKind::Duplicated
                .unless(!(asks && child.exists), || format!("{id} exists, and {parent} still asks for it"))?;
            if self.needs_upgrade(parent) || self.needs_upgrade(*id) {
                continue;
            }
            let has_ended = self.stored(*id).is_some_and(|run| run.is_terminal()) || self.is_erased(*id);
            let is_waiting = child.is_awaited && self.stored(parent).is_some_and(|run| !run.is_terminal());
            if is_waiting && !child.exists {
                ViolationKind::Lost.unless(asks, || format!("{parent} waits for {id}, and nothing starts it"))?;
            } else if is_waiting && (has_ended || child.call.is_detached) {
                let is_told = is_written(parent, InboxKind::Input, *id);
                ViolationKind::Lost
                    .unless(is_told, || format!("{parent} waits for {id}, and is not told what became of it"))?;
            }
            let is_ending = self
                .stored(*id)
                .is_some_and(|run| matches!(run.status(), RunStatus::Cancelling | RunStatus::Compensating));
            // A run that waits for some children tells those that it does not wait for when it has ended.
            let is_over = self.families.closing.contains(&parent) && child.is_awaited
                || self.families.ended.contains(&parent) && child.call.is_detached && child.exists;
            let is_called_off = self.families.called_off.contains(id) && !is_ending;
            if child.call.is_closed_with_parent && !has_ended && (is_over || is_called_off) {
                let is_told = is_written(*id, InboxKind::Input, parent);
                ViolationKind::Lost.unless(is_told, || format!("{parent} ends, and its child {id} is not told"))?;
            }
        }
        self.families.closing.clear();
        self.families.ended.clear();
        self.families.called_off.clear();
        Ok(())
    }
}
