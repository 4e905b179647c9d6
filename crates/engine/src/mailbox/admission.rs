//! Whose turn it is: what the gates decide becomes inputs of runs.

use super::{Item, Mailbox};
use crate::nodes::LEASE;
use kernel::event::Queue;
use kernel::{Input, OrgId, RunId, Span, WorkflowId};
use std::collections::HashSet;
use store::GatedRun;

/// For how long a run that left its gate is remembered: longer than reading all gates takes.
const LEFT_KEPT: Span = Span::from_secs(30);

impl<T> Mailbox<T> {
    /// Takes up the gates this node keeps, and those who wait for a workflow that is paused.
    pub(super) fn restore_gates(&mut self, paused: Vec<WorkflowId>, mut runs: Vec<GatedRun>) {
        runs.retain(|row| match &row.gate {
            Some(gate) => self.nodes.keeps(&gate.id),
            None => self.nodes.is_mine(row.run),
        });
        // What was read is a moment old. Who has left since does not come back; who is being created, or has just been,
        // may not be among them.
        self.left.retain(|_, at| self.now.since(*at) < LEFT_KEPT);
        runs.retain(|row| !self.left.contains_key(&row.run));
        let known: HashSet<RunId> = runs.iter().map(|row| row.run).collect();
        for (run, slot) in &self.slots {
            let Some(live) = slot.live.as_ref().filter(|_| !known.contains(run)) else { continue };
            if live.run.is_terminal() || live.seq > 0 && self.now.since(live.touched) > LEASE {
                continue;
            }
            let is_queued = if live.seq == 0 { self.gates.is_queued(*run) } else { live.run.state.queued.is_some() };
            let gate = live.row.gate.clone();
            if is_queued && gate.is_none() || gate.as_ref().is_some_and(|gate| self.nodes.keeps(&gate.id)) {
                runs.push(GatedRun { org: slot.org, run: *run, workflow: live.row.workflow, gate, is_queued });
            }
        }
        runs.sort_unstable_by_key(|row| row.run);
        let restored = self.gates.restore(paused, runs);
        self.admit(restored.admitted);
        self.supersede(restored.superseded);
        for (org, run) in restored.refused {
            let input = Input::Cancel { actor: "onward".into(), reason: Queue::Limit.as_str().into() };
            self.push(org, run, Item::inside(input));
        }
    }

    /// The turn of these runs has come.
    pub(super) fn admit(&mut self, runs: Vec<(OrgId, RunId)>) {
        for (org, run) in runs {
            self.push(org, run, Item::inside(Input::Admit));
        }
    }

    /// These runs make room for a newer one.
    pub(super) fn supersede(&mut self, runs: Vec<(OrgId, RunId)>) {
        for (org, run) in runs {
            let input = Input::Cancel { actor: "onward".into(), reason: "superseded".into() };
            self.push(org, run, Item::inside(input));
        }
    }

    /// A run is over or never came to be: whoever waited for its place may have it.
    pub(super) fn leave(&mut self, run: RunId) {
        if !self.nodes.is_alone() && self.gates.is_known(run) {
            self.left.insert(run, self.now);
        }
        let admitted = self.gates.leave(run);
        self.admit(admitted);
    }
}
