//! Runs being read into memory, and runs that cannot be read.

use super::live_run::{LiveRun, open_waits};
use super::task_work;
use super::{LoadFailure, Mailbox, Phase, QueuedInput, READ_PAUSE, Reply, Resumed};
use bytes::Bytes;
use kernel::inbox::StoredAnswer;
use kernel::planted_bugs::{self, Bug};
use kernel::{Input, Payloads, RunId};
use std::collections::{BTreeMap, BTreeSet};

impl<T> Mailbox<T> {
    pub(super) fn loaded(&mut self, run: RunId, result: Result<Option<Box<Resumed>>, LoadFailure>) {
        let Some(entry) = self.runs.get_mut(&run).filter(|entry| matches!(entry.phase, Phase::Loading)) else { return };
        let resumed = match result {
            Ok(Some(resumed)) if resumed.row.org == entry.org => resumed,
            Ok(_) => return self.give_up_on(run, Reply::NotFound),
            Err(failure @ LoadFailure::Store(_)) if planted_bugs::is(Bug::RecoverySwallowsUnavailable) => {
                return self.give_up_on(run, Reply::LoadFailure(failure));
            }
            Err(failure @ LoadFailure::Store(_)) => return self.stall(run, &Reply::LoadFailure(failure)),
            Err(failure) => return self.give_up_on(run, Reply::LoadFailure(failure)),
        };
        let Resumed { version, run: state, seq, row, stored_bytes } = *resumed;
        // Attempts of a node that is gone have no executor. Nor have attempts of this node whose record was committed
        // with an unknown outcome. An attempt whose result is already in the inbox is not lost.
        let reported = entry.inbox.iter().filter_map(|item| match item.input {
            Input::Finished { fence, .. } => Some(fence),
            _ => None,
        });
        let reported: BTreeSet<u64> = reported.collect();
        let is_lost = |(_, fence, epoch): &(u32, u64, u64)| {
            let is_under_way = self.executing.contains(&(run, *fence)) || reported.contains(fence);
            self.nodes.is_gone(*epoch) || *epoch == self.nodes.own() && !is_under_way
        };
        if !planted_bugs::is(Bug::OrphanForgotten) {
            let lost = state.running().into_iter().filter(is_lost);
            let lost = lost.map(|(step, fence, _)| QueuedInput::internal(Input::Lost { step, fence }));
            entry.inbox.splice(0..0, lost);
        }
        let is_shared_copy = !self.nodes.is_alone() && !row.evicted;
        if !self.nodes.is_alone() {
            let wanted: BTreeSet<u64> = state.running().into_iter().map(|(_, fence, _)| fence).collect();
            let of_run = (run, 0)..=(run, u64::MAX);
            self.aborts.extend(self.executing.extract_if(of_run, |(_, fence)| !wanted.contains(fence)));
        }
        let mut live = LiveRun {
            version,
            run: state,
            seq,
            created: None,
            open_waits: BTreeMap::new(),
            atomic_group: None,
            row,
            stored_bytes,
            armed: None,
            payloads: Payloads::new(),
            fetching: Vec::new(),
            stored: BTreeSet::new(),
            limit_slots: BTreeSet::new(),
            updated_at: self.now,
            is_shared_copy,
            is_moving: false,
        };
        live.open_waits = open_waits(&live.version.plan, &live.run, entry.org, run);
        entry.inbox.iter_mut().for_each(|item| item.is_checked = true);
        let lost = task_work::restore_tasks(&mut self.task_queue, &self.nodes, entry.org, run, &mut live, self.now);
        entry.inbox.splice(0..0, lost.into_iter().map(QueuedInput::internal));
        entry.live = Some(Box::new(live));
        entry.phase = Phase::Resident;
        entry.is_queued = true;
        self.queue.push_back(run);
        self.recovered(run);
        // It may have been created by a commit whose outcome was unknown.
        self.supersede(self.concurrency_groups.supersedes(run));
    }

    pub(super) fn fetched(&mut self, run: RunId, result: Result<Vec<(u32, Bytes)>, LoadFailure>) {
        let Some(live) = self.runs.get_mut(&run).and_then(|s| s.live.as_mut()) else { return };
        let wanted = std::mem::take(&mut live.fetching);
        match result {
            Ok(payloads) => {
                live.payloads.extend(payloads);
                if let Some(number) = wanted.iter().find(|n| !live.payloads.contains_key(n)) {
                    let what = format!("its payload {number} is missing");
                    return self.give_up_on(run, Reply::LoadFailure(LoadFailure::Damaged(what)));
                }
            }
            Err(LoadFailure::Store(_)) => {
                self.due_times.insert((self.now.after(READ_PAUSE), run));
                return;
            }
            Err(failure) => return self.give_up_on(run, Reply::LoadFailure(failure)),
        }
        let org = self.runs[&run].org;
        self.push(org, run, QueuedInput::wake());
    }

    /// The store did not answer. Callers get an error. Internal inputs stay, and the run is read again later: no row of
    /// the store would bring back the result of an executor, or a run that is being recovered.
    fn stall(&mut self, run: RunId, reply: &Reply) {
        let Some(entry) = self.runs.get_mut(&run) else { return };
        let claims: Vec<Input> = entry.inbox.extract_if(.., |item| item.is_claim()).map(|item| item.input).collect();
        let (external, mut kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut entry.inbox).into_iter().partition(|item| item.reply_to.is_some());
        let is_needed = !kept.is_empty();
        kept.retain(|item| !matches!(item.input, Input::Wake));
        entry.inbox = kept;
        entry.phase = Phase::Stalled;
        let watchers = self.watchers.remove(&run).unwrap_or_default();
        let reply_channels = external.into_iter().filter_map(|item| item.reply_to).chain(watchers);
        self.replies.extend(reply_channels.map(|reply_to| (reply_to, reply.clone())));
        if is_needed {
            self.due_times.insert((self.now.after(READ_PAUSE), run));
        } else {
            self.runs.remove(&run);
        }
        self.drop_claims(claims, false);
    }

    /// Drops a run that cannot be advanced and answers every caller. A run that does not exist or is damaged also
    /// leaves its concurrency group.
    pub(super) fn give_up_on(&mut self, run: RunId, reply: Reply) {
        if matches!(reply, Reply::NotFound | Reply::LoadFailure(LoadFailure::Damaged(_))) {
            self.leave_group(run);
        }
        self.recovered(run);
        if let Some(mut entry) = self.runs.remove(&run) {
            self.task_queue.forget_run(entry.org, run, self.now);
            let claims = entry.inbox.extract_if(.., |item| item.is_claim()).map(|item| item.input).collect();
            self.drop_claims(claims, true);
            for item in &entry.inbox {
                match reply {
                    Reply::NotFound => self.inbox_rows.answer(item, &StoredAnswer::NotFound {}),
                    // The row stays, and is given to the run again later.
                    _ => self.inbox_rows.forget(item),
                }
            }
            let reply_channels = entry.inbox.into_iter().filter_map(|item| item.reply_to);
            let watchers = self.watchers.remove(&run).unwrap_or_default();
            self.replies.extend(reply_channels.chain(watchers).map(|reply_to| (reply_to, reply.clone())));
            if let Some(at) = entry.live.and_then(|live| live.armed) {
                self.due_times.remove(&(at, run));
            }
        }
    }
}
