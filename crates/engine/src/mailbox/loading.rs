//! Runs on their way into memory, and those that cannot come.

use super::live_run::LiveRun;
use super::task_work;
use super::{LoadFailure, Mailbox, Phase, QueuedInput, READ_PAUSE, Reply, Resumed};
use bytes::Bytes;
use kernel::planted_bugs::{self, Bug};
use kernel::{Input, Payloads, RunId};

impl<T> Mailbox<T> {
    pub(super) fn loaded(&mut self, run: RunId, result: Result<Option<Box<Resumed>>, LoadFailure>) {
        let Some(slot) = self.slots.get_mut(&run) else { return };
        let resumed = match result {
            Ok(Some(resumed)) if resumed.row.org == slot.org => resumed,
            Ok(_) => return self.give_up_on(run, Reply::NotFound),
            Err(failure @ LoadFailure::Store(_)) if planted_bugs::is(Bug::RecoverySwallowsUnavailable) => {
                return self.give_up_on(run, Reply::LoadFailure(failure));
            }
            Err(failure @ LoadFailure::Store(_)) => return self.stall(run, &Reply::LoadFailure(failure)),
            Err(failure) => return self.give_up_on(run, Reply::LoadFailure(failure)),
        };
        let Resumed { version, run: state, seq, row, records } = *resumed;
        // Attempts of a node that is gone, and of this one if their record landed but nobody learned of it,
        // have no executor. One whose result is here already, and only could not be written, is not lost.
        for (step, fence, epoch) in state.running() {
            let is_answer =
                |item: &QueuedInput<T>| matches!(item.input, Input::Finished { fence: of, .. } if of == fence);
            let is_under_way = self.executing.contains(&(run, fence)) || slot.inbox.iter().any(is_answer);
            let is_lost = self.nodes.is_gone(epoch) || epoch == self.nodes.own() && !is_under_way;
            if is_lost && !planted_bugs::is(Bug::OrphanForgotten) {
                slot.inbox.insert(0, QueuedInput::inside(Input::Lost { step, fence }));
            }
        }
        let is_shared_copy = !self.nodes.is_alone() && !row.evicted;
        if !self.nodes.is_alone() {
            let running = state.running();
            let is_wanted = |of: u64| running.iter().any(|(_, fence, _)| *fence == of);
            let gone = self.executing.iter().filter(|(of, fence)| *of == run && !is_wanted(*fence)).copied();
            let gone: Vec<(RunId, u64)> = gone.collect();
            self.executing.retain(|attempt| !gone.contains(attempt));
            self.aborts.extend(gone);
        }
        let mut live = LiveRun {
            version,
            run: state,
            seq,
            created: None,
            atomic_group: None,
            row,
            records,
            bytes: 0,
            armed: None,
            payloads: Payloads::new(),
            fetching: Vec::new(),
            stored: Vec::new(),
            limit_slots: Vec::new(),
            updated_at: self.now,
            is_shared_copy,
        };
        slot.inbox.iter_mut().for_each(|item| item.is_checked = true);
        let lost = task_work::restore_tasks(&mut self.task_queue, &self.nodes, slot.org, run, &mut live, self.now);
        slot.inbox.splice(0..0, lost.into_iter().map(QueuedInput::inside));
        slot.live = Some(Box::new(live));
        slot.phase = Phase::Resident;
        slot.is_queued = true;
        self.queue.push_back(run);
        self.recovered(run);
        // It may have been created without anybody learning of it.
        self.supersede(self.concurrency_groups.supersedes(run));
    }

    pub(super) fn fetched(&mut self, run: RunId, result: Result<Vec<(u32, Bytes)>, LoadFailure>) {
        let Some(live) = self.slots.get_mut(&run).and_then(|s| s.live.as_mut()) else { return };
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
                self.wheel.insert((self.now.after(READ_PAUSE), run));
                return;
            }
            Err(failure) => return self.give_up_on(run, Reply::LoadFailure(failure)),
        }
        let org = self.slots[&run].org;
        self.push(org, run, QueuedInput::wake());
    }

    /// The store did not answer. Whoever asked from outside is told so. Inputs from inside are kept and
    /// the run is asked for again: no row would ever bring back what an executor said, or a run that is
    /// being recovered.
    fn stall(&mut self, run: RunId, reply: &Reply) {
        let Some(slot) = self.slots.get_mut(&run) else { return };
        let claims: Vec<Input> = slot.inbox.extract_if(.., |item| item.is_claim()).map(|item| item.input).collect();
        let (asked, mut kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut slot.inbox).into_iter().partition(|item| item.reply_to.is_some());
        let is_needed = !kept.is_empty();
        kept.retain(|item| !matches!(item.input, Input::Wake));
        slot.inbox = kept;
        slot.phase = Phase::Stalled;
        let watchers = self.watchers.remove(&run).unwrap_or_default();
        let reply_channels = asked.into_iter().filter_map(|item| item.reply_to).chain(watchers);
        self.replies.extend(reply_channels.map(|reply_to| (reply_to, reply.clone())));
        if is_needed {
            self.wheel.insert((self.now.after(READ_PAUSE), run));
        } else {
            self.slots.remove(&run);
        }
        self.drop_claims(claims, false);
    }

    /// Forgets a run that cannot be served, telling everyone who asked. One that is not there, or never
    /// will go on, holds no place.
    pub(super) fn give_up_on(&mut self, run: RunId, reply: Reply) {
        if matches!(reply, Reply::NotFound | Reply::LoadFailure(LoadFailure::Damaged(_))) {
            self.leave(run);
        }
        self.recovered(run);
        if let Some(mut slot) = self.slots.remove(&run) {
            self.task_queue.forget(slot.org, run, self.now);
            let claims = slot.inbox.extract_if(.., |item| item.is_claim()).map(|item| item.input).collect();
            self.drop_claims(claims, true);
            let reply_channels = slot.inbox.into_iter().filter_map(|item| item.reply_to);
            let watchers = self.watchers.remove(&run).unwrap_or_default();
            self.replies.extend(reply_channels.chain(watchers).map(|reply_to| (reply_to, reply.clone())));
            if let Some(at) = slot.live.and_then(|live| live.armed) {
                self.wheel.remove(&(at, run));
            }
        }
    }
}
