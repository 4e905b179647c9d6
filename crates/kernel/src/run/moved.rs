//! Applying `run.moved`: an open run goes on with another version of its workflow (M32).
//!
//! Steps keep their numbers: callback URLs, tasks and requests on their way name them. From the move on, every step says
//! itself which node it has, also those of the root group, whose numbers were those of their nodes until then.

use super::{LoadError, MovedTo, Place, Run};
use crate::plan::Plan;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The plans that a run had, in order.
pub struct Plans<'a>(Vec<(u64, &'a Plan)>);

impl<'a> Plans<'a> {
    /// Each with the number of the first event that belongs to it.
    pub fn new(plans: Vec<(u64, &'a Plan)>) -> Plans<'a> {
        debug_assert!(plans.first().is_some_and(|(seq, _)| *seq <= 1), "a run has a plan from its first event on");
        Plans(plans)
    }

    /// Of a run that was never moved.
    pub fn only(plan: &'a Plan) -> Plans<'a> {
        Plans(vec![(0, plan)])
    }

    /// The plan with which an event is applied.
    pub fn at(&self, seq: u64) -> &'a Plan {
        let after = self.0.partition_point(|(first, _)| *first <= seq);
        self.0[after.saturating_sub(1)].1
    }
}

impl Run {
    /// Whether the steps of the run are steps of this plan.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        let is_there = |node: u32| (node as usize) < plan.nodes().len();
        let mut places = self.steps().filter_map(|(_, step)| step.place.as_ref());
        let is_whole = !self.state.moves.is_empty() || self.state.steps.len() == plan.root().len();
        is_whole && places.all(|place| is_there(place.node))
    }

    /// `plan` is that of the new version.
    pub(super) fn move_to(
        &mut self,
        plan: &Plan,
        (version, hash, lowering): (u32, &Bytes, u32),
        nodes: &BTreeMap<u32, u32>,
    ) -> Result<(), LoadError> {
        let steps: Vec<u32> = self.steps().map(|(step, _)| step).collect();
        for step in steps {
            let node = nodes.get(&step).copied().filter(|node| (*node as usize) < plan.nodes().len());
            let Some(node) = node else {
                return Err(LoadError::Damaged(format!("a move does not say which node step {step} has")));
            };
            let state = self.step_mut(step);
            match &mut state.place {
                Some(place) => place.node = node,
                None => state.place = Some(Box::new(Place { node, parent: Place::ROOT, ..Default::default() })),
            }
            // What the new version cannot undo is not undone; what only it can undo was done before it was asked to.
            if plan.node_at(node).undo.is_none() {
                state.done_with = 0;
            }
        }
        let (seq, hash) = (self.state.seq, hash.clone());
        self.state.moves.push(MovedTo { seq, version, hash, lowering, ..Default::default() });
        self.reindex(plan);
        Ok(())
    }
}
