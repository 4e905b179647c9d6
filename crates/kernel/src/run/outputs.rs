//! Outputs: the results that steps leave under a name, for all of the run to read.
//!
//! Steps write in the order of the events with which they succeed, whatever group or iteration they are in, and the last
//! one decides. The state names the step; the result itself is where the step keeps it, and moves here when the step
//! leaves the state. So writing an output copies nothing, and no event says twice what a step has done.

use super::{Output, Run};
use crate::event::MovedOutput;
use crate::payload::Payload;
use crate::plan::Plan;
use crate::status::Outcome;
use std::collections::{BTreeMap, BTreeSet};

impl Run {
    /// A step has succeeded: what it writes is its result now.
    pub(super) fn write_outputs(&mut self, plan: &Plan, step: u32) {
        if self.iteration(step).is_some() || self.step(step).outcome() != Some(Outcome::Ok) {
            return;
        }
        let node = self.node_number(step);
        for output in &plan.node_at(node).writes {
            self.state.outputs.insert(*output, Output { step, node, ..Output::default() });
        }
    }

    /// A fork did not run this step: `writes` is its result, and `outputs` what steps inside of it left.
    pub(super) fn copy_outputs(&mut self, step: u32, writes: &[u32], outputs: &BTreeMap<u32, Payload>) {
        let node = self.node_number(step);
        for output in writes {
            self.state.outputs.insert(*output, Output { step, node, ..Output::default() });
        }
        for (output, body) in outputs {
            let body = Some(body.clone());
            self.state.outputs.insert(*output, Output { step, node, body, ..Output::default() });
        }
    }

    /// The run has another version: its outputs have other places. Those that it does not have are lost.
    pub(super) fn move_outputs(&mut self, moved: &[MovedOutput]) {
        let mut before = std::mem::take(&mut self.state.outputs);
        for MovedOutput { from, to, node, .. } in moved {
            if let Some(output) = before.remove(from) {
                self.state.outputs.insert(*to, Output { node: *node, ..output });
            }
        }
    }

    /// A step leaves the state: what it wrote last stays.
    pub(super) fn keep_outputs(&mut self, plan: &Plan, step: u32) {
        if self.iteration(step).is_some() {
            return;
        }
        for output in &self.node(plan, step).writes {
            let body = self.step(step).body().cloned();
            if let Some(kept) = self.state.outputs.get_mut(output).filter(|kept| kept.step == step) {
                kept.body = Some(body.unwrap_or_else(|| Payload::json("null")));
            }
        }
    }

    /// These steps begin again: what they wrote, and what was inside of them, is no longer there to read.
    pub(super) fn forget_outputs(&mut self, plan: &Plan, steps: &[u32]) {
        let nodes: BTreeSet<u32> = steps.iter().map(|step| self.node_number(*step)).collect();
        let is_inside = |node: u32| std::iter::successors(plan.around(node), |node| plan.around(*node));
        self.state.outputs.retain(|_, output| {
            !steps.contains(&output.step) && !is_inside(output.node).any(|around| nodes.contains(&around))
        });
    }

    /// The value of an output, and the step that wrote it. `None` if none has.
    pub fn output(&self, number: u32) -> Option<(u32, Option<&Payload>)> {
        let Output { step, body, .. } = self.state.outputs.get(&number)?;
        Some((*step, body.as_ref().or_else(|| self.get(*step)?.body())))
    }
}
