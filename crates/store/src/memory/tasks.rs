//! Tasks nobody has claimed, their types, and the workers that claim them, in memory.

use super::Contents;
use crate::rows::*;
use kernel::{OrgId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Does the one who frees it have it?
fn is_same(free: &SeatRow, row: &SeatRow) -> bool {
    free.seat == row.seat && (free.run, free.step) == (row.run, row.step)
}

impl Contents {
    pub(super) fn change_ready(&mut self, change: &ReadyChange) {
        for row in &change.remove {
            self.ready.remove(row);
        }
        self.ready.extend(change.insert.iter().cloned());
    }

    /// Is a seat taken that this wants?
    pub(super) fn is_full(&self, change: &SeatChange, at: Timestamp) -> bool {
        let is_freed = |row: &SeatRow| change.free.iter().any(|free| is_same(free, row));
        change.take.iter().any(|want| self.seats.get(&want.seat).is_some_and(|row| row.until > at && !is_freed(row)))
    }

    pub(super) fn change_seats(&mut self, change: &SeatChange) {
        for free in &change.free {
            if self.seats.get(&free.seat).is_some_and(|row| is_same(free, row)) {
                self.seats.remove(&free.seat);
            }
        }
        for row in &change.take {
            self.seats.insert(row.seat.clone(), row.clone());
        }
    }

    pub(super) fn seats_of(&self, org: OrgId, name: &str) -> Vec<SeatRow> {
        self.seats.values().filter(|row| row.seat.org == org && row.seat.name == name).cloned().collect()
    }

    pub(super) fn lanes(&self, after: Option<&Lane>, limit: usize) -> Vec<(Lane, u64)> {
        let mut lanes: BTreeMap<&Lane, u64> = BTreeMap::new();
        for ReadyRow { lane, .. } in &self.ready {
            *lanes.entry(lane).or_default() += 1;
        }
        let later = lanes.into_iter().filter(|(lane, _)| after.is_none_or(|after| *lane > after));
        later.take(limit).map(|(lane, count)| (lane.clone(), count)).collect()
    }

    pub(super) fn ready_counts(&self) -> BTreeMap<(OrgId, String), u64> {
        let mut counts = BTreeMap::new();
        for ReadyRow { lane, .. } in &self.ready {
            *counts.entry((lane.org, lane.name.clone())).or_default() += 1;
        }
        counts
    }

    pub(super) fn ready_keys(&self, org: OrgId, name: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let of_type = self.ready.iter().map(|row| &row.lane).filter(|lane| lane.org == org && lane.name == name);
        let later = of_type.filter(|lane| after.is_none_or(|after| *lane.key > *after));
        let keys: BTreeSet<&String> = later.map(|lane| &lane.key).collect();
        keys.into_iter().take(limit).cloned().collect()
    }

    pub(super) fn ready_in(&self, lane: &Lane, after: Option<Place>, limit: usize) -> Vec<Place> {
        let row = |place| ReadyRow { lane: lane.clone(), place };
        let first = Place { priority: 0, run: RunId([0; 16]), step: 0 };
        let from = after.map_or(Bound::Included(row(first)), |after| Bound::Excluded(row(after)));
        let own = self.ready.range((from, Bound::Unbounded)).take_while(|row| row.lane == *lane);
        own.take(limit).map(|row| row.place).collect()
    }

    pub(super) fn introduce(&mut self, row: &TypeRow, definition: Option<&Definition>) {
        self.types.entry((row.org, row.name.clone())).or_insert_with(|| row.clone());
        if let Some(definition) = definition {
            self.definitions.entry((row.org, definition.hash)).or_insert_with(|| definition.clone());
        }
    }

    pub(super) fn task_types(&self, org: OrgId, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TypeRow> {
        let from = after.map_or(prefix, |after| after.max(prefix)).to_owned();
        let rows = self.types.range((Bound::Included((org, from)), Bound::Unbounded)).map(|(_, row)| row);
        let own = rows.take_while(|row| row.org == org && row.name.starts_with(prefix));
        own.filter(|row| Some(row.name.as_str()) != after).take(limit).cloned().collect()
    }

    pub(super) fn ruled_types(&self) -> Vec<TypeRow> {
        let says_more = |row: &&TypeRow| {
            row.runtime.is_some()
                || row.description.is_some()
                || !row.enabled
                || row.paused.is_some()
                || row.limit.is_some()
                || row.limit_per_key.is_some()
                || row.rate.is_some()
        };
        self.types.values().filter(says_more).cloned().collect()
    }

    pub(super) fn put_workers(&mut self, workers: &[WorkerRow], since: Timestamp) {
        self.workers.extend(workers.iter().map(|row| ((row.org, row.id.clone()), row.clone())));
        self.workers.retain(|_, row| row.last_seen >= since);
    }
}
