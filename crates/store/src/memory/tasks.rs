//! Ready tasks of evicted runs, limit slots, task types and workers, in memory.

use super::Contents;
use crate::rows::*;
use kernel::{OrgId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Does the task that frees the slot hold it?
fn is_held_by(free: &LimitSlotRow, row: &LimitSlotRow) -> bool {
    free.slot == row.slot && (free.run, free.step) == (row.run, row.step)
}

impl Contents {
    pub(super) fn change_ready(&mut self, change: &ReadyChange) {
        for row in &change.remove {
            self.ready.remove(row);
        }
        self.ready.extend(change.insert.iter().cloned());
    }

    /// Is a slot that this change takes held by another task?
    pub(super) fn is_full(&self, change: &LimitSlotChange, at: Timestamp) -> bool {
        let is_freed = |row: &LimitSlotRow| change.free.iter().any(|free| is_held_by(free, row));
        change
            .take
            .iter()
            .any(|want| self.limit_slots.get(&want.slot).is_some_and(|row| row.until > at && !is_freed(row)))
    }

    pub(super) fn change_limit_slots(&mut self, change: &LimitSlotChange) {
        for free in &change.free {
            if self.limit_slots.get(&free.slot).is_some_and(|row| is_held_by(free, row)) {
                self.limit_slots.remove(&free.slot);
            }
        }
        for row in &change.take {
            self.limit_slots.insert(row.slot.clone(), row.clone());
        }
    }

    pub(super) fn limit_slots_of(&self, org: OrgId, name: &str) -> Vec<LimitSlotRow> {
        self.limit_slots.values().filter(|row| row.slot.org == org && row.slot.name == name).cloned().collect()
    }

    pub(super) fn key_queues(&self, after: Option<&QueueKey>, limit: usize) -> Vec<(QueueKey, u64)> {
        let mut key_queues: BTreeMap<&QueueKey, u64> = BTreeMap::new();
        for ReadyRow { queue, .. } in &self.ready {
            *key_queues.entry(queue).or_default() += 1;
        }
        let later = key_queues.into_iter().filter(|(queue, _)| after.is_none_or(|after| *queue > after));
        later.take(limit).map(|(queue, count)| (queue.clone(), count)).collect()
    }

    pub(super) fn ready_counts(&self) -> BTreeMap<(OrgId, String), u64> {
        let mut counts = BTreeMap::new();
        for ReadyRow { queue, .. } in &self.ready {
            *counts.entry((queue.org, queue.name.clone())).or_default() += 1;
        }
        counts
    }

    pub(super) fn ready_keys(&self, org: OrgId, name: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let of_type = self.ready.iter().map(|row| &row.queue).filter(|queue| queue.org == org && queue.name == name);
        let later = of_type.filter(|queue| after.is_none_or(|after| *queue.key > *after));
        let keys: BTreeSet<&String> = later.map(|queue| &queue.key).collect();
        keys.into_iter().take(limit).cloned().collect()
    }

    pub(super) fn ready_in(&self, queue: &QueueKey, after: Option<QueuePosition>, limit: usize) -> Vec<QueuePosition> {
        let row = |position| ReadyRow { queue: queue.clone(), position };
        let first = QueuePosition { priority: 0, run: RunId([0; 16]), step: 0 };
        let from = after.map_or(Bound::Included(row(first)), |after| Bound::Excluded(row(after)));
        let own = self.ready.range((from, Bound::Unbounded)).take_while(|row| row.queue == *queue);
        own.take(limit).map(|row| row.position).collect()
    }

    pub(super) fn ensure_type(&mut self, row: &TypeRow, definition: Option<&StoredDefinition>) {
        self.types.entry((row.org, row.name.clone())).or_insert_with(|| row.clone());
        if let Some(definition) = definition {
            self.put_definition(row.org, definition);
        }
    }

    pub(super) fn task_types(&self, org: OrgId, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TypeRow> {
        let from = after.map_or(prefix, |after| after.max(prefix)).to_owned();
        let rows = self.types.range((Bound::Included((org, from)), Bound::Unbounded)).map(|(_, row)| row);
        let own = rows.take_while(|row| row.org == org && row.name.starts_with(prefix));
        own.filter(|row| Some(row.name.as_str()) != after).take(limit).cloned().collect()
    }

    pub(super) fn configured_types(&self) -> Vec<TypeRow> {
        let is_configured = |row: &&TypeRow| {
            row.runtime.is_some()
                || row.description.is_some()
                || !row.enabled
                || row.paused.is_some()
                || row.limit.is_some()
                || row.limit_per_key.is_some()
                || row.rate.is_some()
        };
        self.types.values().filter(is_configured).cloned().collect()
    }

    pub(super) fn put_workers(&mut self, workers: &[WorkerRow], since: Timestamp) {
        self.workers.extend(workers.iter().map(|row| ((row.org, row.id.clone()), row.clone())));
        self.workers.retain(|_, row| row.last_seen >= since);
    }
}
