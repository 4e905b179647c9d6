//! Atomic groups: runs that are created together. Their writes are adjacent in a batch, and the store commits all of
//! them or none.

use super::{Mailbox, Reply, Turn};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use store::RunWrite;

/// The atomic group that a new run belongs to.
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

    /// Rejects every atomic group of which a run could not be started, because a bug in the kernel stopped it. Looks
    /// only at writes from `begin` on: earlier ones were checked by an earlier turn.
    pub(super) fn drop_partial_groups(&mut self, begin: usize, turn: &mut Turn<T>) {
        let size = |write: &RunWrite| {
            write.atomic_group?;
            self.runs.get(&write.run)?.live.as_ref()?.atomic_group
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
                let reply = Reply::Unavailable("another run of the same request could not be started".into());
                self.reject(write.run, pending.items, &reply, &mut turn.ready);
            } else {
                turn.batch.runs.push(write);
                turn.pending.push(pending);
            }
        }
    }
}
