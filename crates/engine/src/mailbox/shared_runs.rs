//! Runs that other nodes may advance too, so that the copy in memory may be out of date.

use super::{Attempts, Mailbox, Phase, QueuedInput, Reply, RunEntry};
use crate::nodes::Nodes;
use kernel::{OrgId, RunId, Timestamp};
use std::collections::HashSet;
use store::IdMap;

/// An open run that this node owns and does not have in memory for this many sweeps is recovered. If another node has
/// it in memory after all, no harm is done.
const SWEEPS_MISSED_MAX: u8 = 8;

impl<T> Mailbox<T> {
    /// Reads a run again whose copy in memory may be out of date, unless its record is being committed.
    pub(super) fn reread(&mut self, run: RunId) {
        let Some(entry) = self.runs.get_mut(&run).filter(|entry| matches!(entry.phase, Phase::Resident)) else {
            return;
        };
        let Some(live) = entry.live.take_if(|live| live.seq > 0) else { return };
        // Expired leases are found again when the run has been read.
        entry.inbox.retain(|item| !item.is_loss());
        if let Some(at) = live.armed {
            self.due_times.remove(&(at, run));
        }
        entry.phase = Phase::Loading;
        entry.inbox.push(QueuedInput::wake());
        self.loads.push((entry.org, run));
        self.hide_tasks(Some(&live));
    }

    /// Another node claimed a task of this run first and goes on with it, so the copy here is soon out of date. Drops
    /// the copy, unless this node still has attempts, leases or watchers of the run.
    pub(super) fn release_shared(&mut self, run: RunId) {
        let Some(entry) = self.runs.get(&run).filter(|entry| entry.inbox.is_empty()) else { return };
        let Some(live) = entry.live.as_ref().filter(|live| live.is_shared_copy) else { return };
        let has_attempts = live.run.running().iter().any(|(_, fence, _)| self.executing.contains(&(run, *fence)));
        if has_attempts || self.task_queue.has_leases(run) || self.watchers.contains_key(&run) {
            return self.reread(run);
        }
        if let Some(at) = live.armed {
            self.due_times.remove(&(at, run));
        }
        let left = self.runs.remove(&run).and_then(|entry| entry.live);
        if let Some(live) = left {
            live.stored.iter().for_each(|row| self.task_queue.evict(&row.queue, row.position, self.now));
        }
    }

    /// Compares what is in memory with what the store says is open, see [`Command::Sweep`](super::Command::Sweep).
    pub(super) fn sweep(&mut self, open: Vec<(OrgId, RunId)>, since: Timestamp, is_recovery: bool) {
        let is_open: HashSet<RunId> = open.iter().map(|(_, run)| *run).collect();
        let is_left = |(run, entry): (&RunId, &RunEntry<T>)| {
            let live = entry.live.as_ref().filter(|live| live.updated_at < since && !is_open.contains(run))?;
            (!live.row.evicted).then_some(*run)
        };
        let left: Vec<RunId> = self.runs.iter().filter_map(is_left).collect();
        left.into_iter().for_each(|run| self.reread(run));
        let mut missed = IdMap::default();
        for (org, run) in open {
            if !self.nodes.is_mine(run) {
                continue;
            }
            match self.runs.get(&run) {
                // The node that is gone may have advanced it since it was read.
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

    /// Leaves everything to other nodes and begins empty. Returns replies for all callers, and the attempts under way.
    pub fn abandon(&mut self, nodes: Nodes) -> (Vec<(T, Reply)>, Attempts) {
        let sizes = self.task_queue.sizes();
        let mut new = Mailbox::sized(nodes.own(), self.wait_url.clone(), sizes).holding(self.hold.clone());
        if self.task_queue.is_shared() {
            new.task_queue.share(nodes.clone());
        }
        let Mailbox { now, is_draining, is_suspended, .. } = *self;
        let old = std::mem::replace(self, Mailbox { nodes, now, is_draining, is_suspended, ..new });
        let items = old.runs.into_values().flat_map(|entry| entry.inbox).filter_map(|item| item.reply_to);
        let gone = || Reply::Unavailable("other nodes have taken over the runs of this node; try again".into());
        let mut replies: Vec<_> = items.chain(old.watchers.into_values().flatten()).map(|t| (t, gone())).collect();
        replies.extend(old.replies);
        replies.extend(old.task_queue.into_reply_channels().map(|reply_to| (reply_to, Reply::Claimed(Box::default()))));
        (replies, old.executing.into_iter().collect())
    }
}
