//! Runs that other nodes have too: what is in memory may not be the truth any more.

use super::{Attempts, Mailbox, Phase, QueuedInput, Reply, RunEntry};
use crate::nodes::Nodes;
use kernel::{OrgId, RunId, Timestamp};
use std::collections::HashSet;
use store::IdMap;

/// A run of this node that is open, and not in its memory, for so many looks is taken up: whoever has it may have it
/// all the same.
const SWEEPS_MISSED_MAX: u8 = 8;

impl<T> Mailbox<T> {
    /// What is in memory of a run is not the truth any more, or may not be: it is read again when nothing is under way.
    pub(super) fn reread(&mut self, run: RunId) {
        let Some(slot) = self.slots.get_mut(&run).filter(|slot| matches!(slot.phase, Phase::Resident)) else { return };
        let Some(live) = slot.live.take_if(|live| live.seq > 0) else { return };
        // Whatever it says of leases that ended comes again.
        slot.inbox.retain(|item| !item.is_loss());
        if let Some(at) = live.armed {
            self.wheel.remove(&(at, run));
        }
        slot.phase = Phase::Loading;
        slot.inbox.push(QueuedInput::wake());
        self.loads.push((slot.org, run));
        self.hide_tasks(Some(&live));
    }

    /// Another node was faster, so it has the run: what was read of it here is soon not true any more. Unless something of
    /// it is seen to here, it need not stay.
    pub(super) fn release_shared(&mut self, run: RunId) {
        let Some(slot) = self.slots.get(&run).filter(|slot| slot.inbox.is_empty()) else { return };
        let Some(live) = slot.live.as_ref().filter(|live| live.is_shared_copy) else { return };
        let has_attempts = live.run.running().iter().any(|(_, fence, _)| self.executing.contains(&(run, *fence)));
        if has_attempts || self.task_queue.keeps(run) || self.watchers.contains_key(&run) {
            return self.reread(run);
        }
        if let Some(at) = live.armed {
            self.wheel.remove(&(at, run));
        }
        let left = self.slots.remove(&run).and_then(|slot| slot.live);
        if let Some(live) = left {
            live.stored.iter().for_each(|row| self.task_queue.evict(&row.queue, row.position, self.now));
        }
    }

    /// Compares what is in memory with what the store says is open, see [`Command::Sweep`](super::Command::Sweep).
    pub(super) fn sweep(&mut self, open: Vec<(OrgId, RunId)>, since: Timestamp, is_recovery: bool) {
        let is_open: HashSet<RunId> = open.iter().map(|(_, run)| *run).collect();
        let is_left = |(run, slot): (&RunId, &RunEntry<T>)| {
            let live = slot.live.as_ref().filter(|live| live.updated_at < since && !is_open.contains(run))?;
            (!live.row.evicted).then_some(*run)
        };
        let left: Vec<RunId> = self.slots.iter().filter_map(is_left).collect();
        left.into_iter().for_each(|run| self.reread(run));
        let mut missed = IdMap::default();
        for (org, run) in open {
            if !self.nodes.is_mine(run) {
                continue;
            }
            match self.slots.get(&run) {
                // What it remembers may be what a node that is gone has changed since.
                Some(_) if is_recovery => self.reread(run),
                Some(_) => {}
                None if is_recovery => self.recover(org, run),
                None => match self.missed.get(&run).map_or(1, |times| times + 1) {
                    SWEEPS_MISSED_MAX => self.recover(org, run),
                    times => drop(missed.insert(run, times)),
                },
            }
        }
        self.missed = missed;
    }

    /// Everything is left to others: whoever waits for something is told so. The attempts that were under way.
    pub fn abandon(&mut self, nodes: Nodes) -> (Vec<(T, Reply)>, Attempts) {
        let sizes = self.task_queue.sizes();
        let mut new = Mailbox::sized(nodes.own(), self.wait_url.clone(), sizes);
        if self.task_queue.is_shared() {
            new.task_queue.share(nodes.clone());
        }
        let (now, is_draining) = (self.now, self.is_draining);
        let old = std::mem::replace(self, Mailbox { nodes, now, is_draining, ..new });
        let items = old.slots.into_values().flat_map(|slot| slot.inbox).filter_map(|item| item.reply_to);
        let gone = || Reply::Unavailable("others have taken over this node's work; try again".into());
        let mut replies: Vec<_> = items.chain(old.watchers.into_values().flatten()).map(|t| (t, gone())).collect();
        replies.extend(old.replies);
        replies.extend(old.task_queue.into_reply_channels().map(|reply_to| (reply_to, Reply::Claimed(Box::default()))));
        (replies, old.executing.into_iter().collect())
    }
}
