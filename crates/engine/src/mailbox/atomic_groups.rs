//! Runs that are created together: one neighbourhood of a batch, which the store lands as a whole.

use super::{Mailbox, Reply, Turn};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use store::RunWrite;

/// Runs that are created together.
#[derive(Clone, Copy)]
pub(super) struct AtomicGroup {
    pub number: NonZeroU32,
    pub size: usize,
}

impl<T> Mailbox<T> {
    pub(super) fn next_atomic_group(&mut self, size: usize) -> AtomicGroup {
        self.atomic_groups = self.atomic_groups.wrapping_add(1);
        AtomicGroup { number: NonZeroU32::new(self.atomic_groups).unwrap_or(NonZeroU32::MAX), size }
    }

    /// A unit one of whose runs could not even be begun (a bug stopped it) is not begun at all.
    ///
    /// Those before `begin` are none of its business: they are there as a whole.
    pub(super) fn drop_partial_groups(&mut self, begin: usize, turn: &mut Turn<T>) {
        let size = |write: &RunWrite| {
            write.atomic_group?;
            self.slots.get(&write.run)?.live.as_ref()?.atomic_group
        };
        let mut counts: BTreeMap<NonZeroU32, (usize, usize)> = BTreeMap::new();
        for atomic_group in turn.batch.runs[begin..].iter().filter_map(size) {
            counts.entry(atomic_group.number).or_insert((atomic_group.size, 0)).1 += 1;
        }
        counts.retain(|_, (size, found)| size != found);
        if counts.is_empty() {
            return;
        }
        let (writes, pending) = (turn.batch.runs.split_off(begin), turn.pending.split_off(begin));
        for (write, pending) in writes.into_iter().zip(pending) {
            if write.atomic_group.is_some_and(|atomic_group| counts.contains_key(&atomic_group)) {
                let reply = Reply::Unavailable("another run of the same request could not be begun".into());
                self.reject(write.run, pending.items, &reply, &mut turn.ready);
            } else {
                turn.batch.runs.push(write);
                turn.pending.push(pending);
            }
        }
    }
}
