//! Whose turn it is: what the gates decide becomes inputs of runs.

use super::{Mailbox, QueuedInput};
use crate::nodes::LEASE;
use kernel::event::Queue;
use kernel::{Input, OrgId, RunId, Span, WorkflowId};
use std::collections::HashSet;
use store::GroupedRun;

/// For how long a run that left its gate is remembered: longer than reading all gates takes.
const LEFT_KEPT: Span = Span::from_secs(30);

impl<T> Mailbox<T> {
    /// Takes up the gates this node keeps, and those who wait for a workflow that is paused.
    pub(super) fn restore_concurrency_groups(&mut self, paused: Vec<WorkflowId>, mut runs: Vec<GroupedRun>) {
        runs.retain(|row| match &row.concurrency_group {
            Some(concurrency_group) => self.nodes.keeps(&concurrency_group.id),
            None => self.nodes.is_mine(row.run),
        });
        // What was read is a moment old. Who has left since does not come back; who is being created, or has just been,
        // may not be among them.
        self.left.retain(|_, at| self.now.since(*at) < LEFT_KEPT);
        runs.retain(|row| !self.left.contains_key(&row.run));
        let known: HashSet<RunId> = runs.iter().map(|row| row.run).collect();
        for (run, slot) in &self.slots {
            let Some(live) = slot.live.as_ref().filter(|_| !known.contains(run)) else { continue };
            if live.run.is_terminal() || live.seq > 0 && self.now.since(live.updated_at) > LEASE {
                continue;
            }
            let is_queued =
                if live.seq == 0 { self.concurrency_groups.is_queued(*run) } else { live.run.state.queued.is_some() };
            let concurrency_group = live.row.concurrency_group.clone();
            if is_queued && concurrency_group.is_none()
                || concurrency_group.as_ref().is_some_and(|concurrency_group| self.nodes.keeps(&concurrency_group.id))
            {
                runs.push(GroupedRun {
                    org: slot.org,
                    run: *run,
                    workflow: live.row.workflow,
                    concurrency_group,
                    is_queued,
                });
            }
        }
        runs.sort_unstable_by_key(|row| row.run);
        let restored = self.concurrency_groups.restore(paused, runs);
        self.admit(restored.admitted);
        self.supersede(restored.superseded);
        for (org, run) in restored.refused {
            let input = Input::Cancel { actor: "onward".into(), reason: Queue::Limit.as_str().into() };
            self.push(org, run, QueuedInput::inside(input));
        }
    }

    /// The turn of these runs has come.
    pub(super) fn admit(&mut self, runs: Vec<(OrgId, RunId)>) {
        for (org, run) in runs {
            self.push(org, run, QueuedInput::inside(Input::Admit));
        }
    }

    /// These runs make room for a newer one.
    pub(super) fn supersede(&mut self, runs: Vec<(OrgId, RunId)>) {
        for (org, run) in runs {
            let input = Input::Cancel { actor: "onward".into(), reason: "superseded".into() };
            self.push(org, run, QueuedInput::inside(input));
        }
    }

    /// A run is over or never came to be: whoever waited for its place may have it.
    pub(super) fn leave(&mut self, run: RunId) {
        if !self.nodes.is_alone() && self.concurrency_groups.is_known(run) {
            self.left.insert(run, self.now);
        }
        let admitted = self.concurrency_groups.leave(run);
        self.admit(admitted);
    }
}
