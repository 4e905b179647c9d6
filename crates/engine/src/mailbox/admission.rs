//! Between runs and concurrency groups: each decision of a group becomes an input of a run.

use super::live_run::LiveRun;
use super::{Mailbox, QueuedInput};
use crate::concurrency_groups::ConcurrencyGroups;
use crate::nodes::{LEASE, Nodes};
use kernel::event::Queue;
use kernel::{Admission, Input, OrgId, RunId, RunStatus, Span, Timestamp, WorkflowId};
use std::collections::HashSet;
use store::{GroupedRun, IdMap};

/// How long a run that left its group is remembered: longer than a read of all groups takes.
const LEFT_KEPT: Span = Span::from_secs(30);

impl<T> Mailbox<T> {
    /// Takes over the groups that this node owns, and the runs that wait for a paused workflow.
    pub(super) fn restore_concurrency_groups(&mut self, paused: Vec<WorkflowId>, mut runs: Vec<GroupedRun>) {
        runs.retain(|row| match &row.concurrency_group {
            Some(concurrency_group) => self.nodes.keeps(&concurrency_group.id),
            None => self.nodes.is_mine(row.run),
        });
        // The rows are a moment old. A run that has left its group since must not come back, and a run that was created
        // since may be missing.
        self.recently_left.retain(|_, at| self.now.since(*at) < LEFT_KEPT);
        runs.retain(|row| !self.recently_left.contains_key(&row.run));
        let known: HashSet<RunId> = runs.iter().map(|row| row.run).collect();
        let mut new = HashSet::new();
        for (run, entry) in &self.runs {
            let Some(live) = entry.live.as_ref().filter(|_| !known.contains(run)) else { continue };
            if live.run.is_terminal() || live.seq > 0 && self.now.since(live.updated_at) > LEASE {
                continue;
            }
            if live.seq == 0 {
                new.insert(*run);
            }
            let is_queued =
                if live.seq == 0 { self.concurrency_groups.is_queued(*run) } else { live.run.state.queued.is_some() };
            let concurrency_group = live.row.concurrency_group.clone();
            if is_queued && concurrency_group.is_none()
                || concurrency_group.as_ref().is_some_and(|concurrency_group| self.nodes.keeps(&concurrency_group.id))
            {
                runs.push(GroupedRun {
                    org: entry.org,
                    run: *run,
                    workflow: live.row.workflow,
                    concurrency_group,
                    is_queued,
                });
            }
        }
        runs.sort_unstable_by_key(|row| row.run);
        let restored = self.concurrency_groups.restore(paused, runs, &new);
        self.admit(restored.admitted);
        self.supersede(restored.superseded);
        for (org, run) in restored.refused {
            // Read again, its group may have no room for a run that was to be admitted a moment ago.
            if let Some(entry) = self.runs.get_mut(&run) {
                entry.inbox.retain(|item| !matches!(item.input, Input::Admit));
            }
            let input =
                Input::Cancel { actor: "onward".into(), reason: Queue::Limit.as_str().into(), compensate: false };
            self.push(org, run, QueuedInput::internal(input));
        }
    }

    /// Lets these runs begin.
    pub(super) fn admit(&mut self, runs: Vec<(OrgId, RunId)>) {
        for (org, run) in runs {
            self.push(org, run, QueuedInput::internal(Input::Admit));
        }
    }

    /// Cancels these runs to make room for a newer one.
    pub(super) fn supersede(&mut self, runs: Vec<(OrgId, RunId)>) {
        for (org, run) in runs {
            let input = Input::Cancel { actor: "onward".into(), reason: "superseded".into(), compensate: false };
            self.push(org, run, QueuedInput::internal(input));
        }
    }

    /// A run has ended or was never created: removes it from its group and admits the next runs.
    pub(super) fn leave_group(&mut self, run: RunId) {
        if !self.nodes.is_alone() && self.concurrency_groups.is_known(run) {
            self.recently_left.insert(run, self.now);
        }
        let admitted = self.concurrency_groups.leave(run);
        self.admit(admitted);
    }
}

/// Asks the concurrency group of a run that failed or timed out whether the run may go on. If the run ends all the same,
/// or does not go on, it leaves its group like any run that has ended.
pub(super) fn readmit(
    groups: &mut ConcurrencyGroups,
    nodes: &Nodes,
    recently_left: &mut IdMap<RunId, Timestamp>,
    run: RunId,
    live: &LiveRun,
) -> Admission {
    if !matches!(live.run.status(), RunStatus::Failed | RunStatus::Timeout) {
        return Admission::Open;
    }
    let row = &live.row;
    match &row.concurrency_group {
        // The node that owns the group finds the run in its queue.
        Some(group) if !nodes.keeps(&group.id) => Admission::Queue(Queue::Limit),
        group => {
            recently_left.remove(&run);
            groups.reenter(row.org, run, row.workflow, group.as_ref())
        }
    }
}

/// An input, with the answer of the concurrency group if it needs one.
pub(super) fn admitted(input: Input, answer: Admission) -> Input {
    match input {
        Input::Reopen { from, allow_irreversible, actor, reason, admission: _ } => {
            Input::Reopen { from, allow_irreversible, actor, reason, admission: answer }
        }
        other => other,
    }
}
