//! Triggers and their log, in memory.

use super::Contents;
use crate::Error;
use crate::triggers::*;
use kernel::{OrgId, Timestamp, TriggerId, WorkflowId};

impl Contents {
    pub(super) fn create_trigger(&mut self, new: &NewTrigger) -> crate::Result<Result<(), TriggerTaken>> {
        let NewTrigger { row, idempotency } = new;
        let key = idempotency.as_ref().map(|k| ((row.org, k.scope.clone(), k.key.clone()), k.fingerprint));
        if let Some((made, fingerprint)) = key.as_ref().and_then(|(key, _)| self.idempotency.get(key)).copied() {
            return Ok(Err(TriggerTaken::Key { trigger: TriggerId(made), fingerprint }));
        }
        if self.triggers.contains_key(&(row.org, row.id)) {
            return Err(Error::Refused(format!("the trigger {} exists already", row.id)));
        }
        if !self.has_workflow(row) {
            return Ok(Err(TriggerTaken::Workflow));
        }
        if self.is_path_taken(row) {
            return Ok(Err(TriggerTaken::Path));
        }
        self.triggers.insert((row.org, row.id), row.clone());
        if let Some((key, fingerprint)) = key {
            self.idempotency.insert(key, (row.id.0, fingerprint));
        }
        Ok(Ok(()))
    }

    pub(super) fn change_trigger(&mut self, change: &TriggerChange) -> Changed {
        let row = &change.row;
        if !self.has_workflow(row) {
            return Changed::NoWorkflow;
        }
        if self.is_path_taken(row) {
            return Changed::PathTaken;
        }
        if self.update(row, change.restarts) { Changed::Done } else { Changed::Stale }
    }

    fn has_workflow(&self, row: &TriggerRow) -> bool {
        self.workflows.get(&(row.org, row.workflow)).is_some_and(|workflow| workflow.deleted_at.is_none())
    }

    fn update(&mut self, to: &TriggerRow, restarts: bool) -> bool {
        let Some(row) = self.triggers.get_mut(&(to.org, to.id)).filter(|row| row.revision + 1 == to.revision) else {
            return false;
        };
        let (cursor, next_at) = if restarts { (to.cursor, to.next_at) } else { (row.cursor, row.next_at) };
        let TriggerRow { name, workflow, enabled, note, config, path, revision, updated_at, .. } = to.clone();
        *row = TriggerRow {
            name,
            workflow,
            enabled,
            note,
            config,
            path,
            revision,
            updated_at,
            cursor,
            next_at,
            ..row.clone()
        };
        true
    }

    pub(super) fn delete_trigger(&mut self, org: OrgId, id: TriggerId) -> bool {
        self.deliveries.retain(|(of, trigger, _), _| (*of, *trigger) != (org, id));
        self.triggers.remove(&(org, id)).is_some()
    }

    /// See `catalog_rules::put_owned_trigger`.
    pub(super) fn put_owned(&mut self, org: OrgId, workflow: WorkflowId, wanted: Option<&TriggerRow>) -> bool {
        let mut found = self.owned_trigger(org, workflow);
        let replaced = found.take_if(|old| wanted.is_none_or(|new| new.kind != old.kind));
        let row = wanted.map(|wanted| owned(found.as_ref(), wanted));
        if row.as_ref().is_some_and(|row| self.is_path_taken(row)) {
            return false;
        }
        if let Some(old) = replaced {
            self.delete_trigger(org, old.id);
        }
        match (row, found) {
            (None, _) => {}
            (Some(row), None) => drop(self.triggers.insert((row.org, row.id), row)),
            (Some(row), Some(old)) if old.config == row.config && old.name == row.name => {}
            (Some(row), Some(old)) => drop(self.update(&row, old.config != row.config)),
        }
        true
    }

    /// Deletes every trigger of a workflow that is being deleted.
    pub(super) fn delete_triggers_of(&mut self, org: OrgId, workflow: WorkflowId) {
        let of = |t: &&TriggerRow| (t.org, t.workflow) == (org, workflow);
        let ids: Vec<TriggerId> = self.triggers.values().filter(of).map(|t| t.id).collect();
        for id in ids {
            self.delete_trigger(org, id);
        }
    }

    fn is_path_taken(&self, row: &TriggerRow) -> bool {
        let mut others = self.triggers.values().filter(|t| (t.org, t.id) != (row.org, row.id));
        row.path.is_some() && others.any(|t| t.path == row.path)
    }

    pub(super) fn owned_trigger(&self, org: OrgId, workflow: WorkflowId) -> Option<TriggerRow> {
        self.triggers.values().find(|t| t.org == org && t.workflow == workflow && t.is_owned).cloned()
    }

    pub(super) fn list_triggers(&self, org: OrgId, filter: &TriggerFilter) -> Vec<TriggerRow> {
        let matches = |t: &&TriggerRow| {
            t.org == org
                && filter.before.is_none_or(|before| t.id < before)
                && filter.kind.is_none_or(|kind| t.kind == kind)
                && filter.workflow.is_none_or(|workflow| t.workflow == workflow)
        };
        self.triggers.values().rev().filter(matches).take(filter.limit).cloned().collect()
    }

    pub(super) fn due_triggers(&self, until: Timestamp, limit: usize) -> Vec<TriggerRow> {
        let mut due: Vec<&TriggerRow> =
            self.triggers.values().filter(|t| t.next_at.is_some_and(|at| at <= until)).collect();
        due.sort_by_key(|t| (t.next_at, t.org, t.id));
        due.into_iter().take(limit).cloned().collect()
    }

    pub(super) fn log_deliveries(&mut self, log: &TriggerLog) -> bool {
        let is_current = match log.advance {
            Some(to) => self.advance(log.org, log.trigger, to),
            None => self.triggers.contains_key(&(log.org, log.trigger)),
        };
        if !is_current {
            return false;
        }
        for row in &log.rows {
            self.put_delivery(row);
        }
        true
    }

    /// Advances a schedule; false if the trigger was deleted or changed meanwhile.
    pub(super) fn advance(&mut self, org: OrgId, trigger: TriggerId, to: ScheduleAdvance) -> bool {
        let found = self.triggers.get_mut(&(org, trigger)).filter(|row| row.revision == to.revision);
        found.map(|row| (row.cursor, row.next_at) = (to.cursor, to.next_at)).is_some()
    }

    pub(super) fn log_of(&self, org: OrgId, trigger: TriggerId) -> impl DoubleEndedIterator<Item = &DeliveryRow> {
        self.deliveries.range((org, trigger, 0)..=(org, trigger, u64::MAX)).map(|(_, row)| row)
    }

    pub(super) fn put_delivery(&mut self, row: &DeliveryRow) {
        let (org, trigger) = (row.org, row.trigger);
        if !self.triggers.contains_key(&(org, trigger)) {
            return;
        }
        let known = self.log_of(org, trigger).find(|other| other.id == row.id).cloned();
        if known.as_ref().is_some_and(|known| known.outcome == DeliveryOutcome::Started) {
            return;
        }
        let newest = self.log_of(org, trigger).next_back().map_or(0, |last| last.seq);
        let seq = known.as_ref().map_or(newest + 1, |known| known.seq);
        let request = row.request.clone().or(known.and_then(|known| known.request));
        self.deliveries.insert((org, trigger, seq), DeliveryRow { seq, request, ..row.clone() });
        if row.request.is_some() {
            let old = (org, trigger, 0)..=(org, trigger, seq.saturating_sub(REQUESTS_KEPT));
            self.deliveries.range_mut(old).for_each(|(_, row)| row.request = None);
        }
        let last = seq.saturating_sub(DELIVERIES_KEPT);
        self.deliveries.retain(|(of, by, number), line| {
            (*of, *by) != (org, trigger) || *number > last || line.outcome == DeliveryOutcome::Queued
        });
        if let (Some(run), Some(of)) = (row.run, self.triggers.get_mut(&(org, trigger))) {
            (of.last_run, of.last_run_at) = (Some(run), Some(row.at));
        }
    }
}

#[cfg(test)]
impl super::MemoryStore {
    pub(crate) fn put_owned_trigger(&self, org: OrgId, workflow: WorkflowId, wanted: Option<&TriggerRow>) -> bool {
        self.contents().put_owned(org, workflow, wanted)
    }

    pub(crate) fn owned_trigger_now(&self, org: OrgId, workflow: WorkflowId) -> Option<TriggerRow> {
        self.contents().owned_trigger(org, workflow)
    }
}
