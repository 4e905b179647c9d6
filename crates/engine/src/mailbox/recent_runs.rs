//! Runs that were evicted a moment ago. A run that waits for its children, or for a callback that comes at once, gets an
//! input soon after it was evicted, and to read a large run for every input would cost as much as the run is large.
//!
//! Only a node that is alone keeps them: no other node advances its runs, so what memory holds is what the store holds.
//! To lose one costs a read and nothing else.

use super::Resumed;
use kernel::RunId;
use std::collections::BTreeMap;
use store::IdMap;

/// All of them together have at most as many stored bytes. Decoded, they take a few times as much.
pub(super) const BYTES_MAX: usize = 8 << 20;

#[derive(Default)]
pub(super) struct RecentRuns {
    /// With the number of their eviction.
    runs: IdMap<RunId, (u64, Box<Resumed>)>,
    order: BTreeMap<u64, RunId>,
    evictions: u64,
    bytes: usize,
}

impl RecentRuns {
    /// Keeps a run, unless it is larger than the room for all. Those evicted longest ago make room for it.
    pub fn put(&mut self, run: RunId, resumed: Resumed) {
        self.take(run);
        if resumed.stored_bytes.sum() > BYTES_MAX {
            return;
        }
        self.bytes += resumed.stored_bytes.sum();
        self.runs.insert(run, (self.evictions, Box::new(resumed)));
        self.order.insert(self.evictions, run);
        self.evictions += 1;
        while self.bytes > BYTES_MAX
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.take(*oldest);
        }
    }

    pub fn take(&mut self, run: RunId) -> Option<Box<Resumed>> {
        let (eviction, resumed) = self.runs.remove(&run)?;
        self.order.remove(&eviction);
        self.bytes -= resumed.stored_bytes.sum();
        Some(resumed)
    }

    pub fn clear(&mut self) {
        *self = RecentRuns::default();
    }
}
