//! Planners: what comes next in a run.
//!
//! A planner answers one question, *what next?*, with one [`Move`] at a time. It knows why a step exists and what
//! follows from its end. It does not know attempts, leases, timers or payloads: [`advance`](mod@crate::advance) makes
//! the moves, and does not know which planner asked for them.
//!
//! A planner may keep an index of the run, so that an answer costs no more than what changed. [`Run`] tells it what
//! changed, and can build the index from the state at any time: it is never stored.

mod graph;
mod outcome;

use crate::advance::View;
use crate::event::{Because, Failure};
use crate::expr::Seen;
use crate::payload::Payload;
use crate::plan::Plan;
use crate::run::Run;
pub(crate) use graph::GraphPlanner;
pub use outcome::{FailedSteps, failed_steps, handled_by, is_taken, lost_steps, unhandled_in_group, unhandled_steps};
pub(crate) use outcome::{unhandled_at_end, unhandled_in};
use std::fmt::Debug;

pub trait Planner: Debug + Send + Sync {
    /// Sets aside what is noted and cannot be decided now, so that two indexes of the same run compare equal.
    fn tidy(&mut self, plan: &Plan, run: &Run);
    /// Forgets everything and reads the whole run.
    fn rebuild(&mut self, plan: &Plan, run: &Run);
    /// An inner step exists now.
    fn opened(&mut self, plan: &Plan, run: &Run, step: u32);
    /// A step was pending and is at work now, or waits for its next attempt.
    fn begun(&mut self, plan: &Plan, run: &Run, step: u32);
    /// A group or a loop is at work now.
    fn started(&mut self, plan: &Plan, run: &Run, step: u32);
    fn settled(&mut self, plan: &Plan, run: &Run, step: u32);
    /// A settled step leaves the state.
    fn left(&mut self, step: u32);
    /// The run has ended: nothing more is decided.
    fn ended(&mut self);

    /// What next? The planner is asked again until it answers `Nothing`. While the run is held, no step may start.
    fn next(&mut self, view: &View<'_>, is_held: bool) -> Next;
    /// A step that was to start needs a payload first: it is decided again in the next advance.
    fn stalled(&mut self, step: u32);
    /// The advance is over: what was stalled in it can be decided again.
    fn unstall(&mut self);
    /// Is there anything to decide?
    fn has_moves(&self) -> bool;

    fn boxed(&self) -> Box<dyn Planner>;
}

/// A planner's answer.
#[derive(Debug)]
pub enum Next {
    Move(Move),
    /// A decision needs these payloads first. It is made in another advance; others may follow in this one.
    Missing(Vec<u32>),
    Nothing,
}

#[derive(Debug)]
pub enum Move {
    /// Start the work of a step, because its condition held with the values `seen`.
    Start { target: StartTarget, seen: Vec<Seen> },
    /// End a step that does no work itself, or not any more.
    Settle { step: u32, settlement: Settlement },
    /// Call off a step, and everything inside of it.
    Cancel { step: u32 },
    /// End the run.
    Finish(Finish),
}

/// The step to start.
#[derive(Debug)]
pub enum StartTarget {
    /// A step that is pending.
    Opened(u32),
    /// A step that does not exist yet.
    New { node: u32, parent: u32, index: u32 },
}

#[derive(Debug)]
pub enum Settlement {
    /// Succeeded, with this body.
    Ok {
        body: Option<Payload>,
        seen: Vec<Seen>,
    },
    Failed {
        failure: Failure,
        seen: Vec<Seen>,
    },
    Skipped(Because),
}

#[derive(Debug)]
pub enum Finish {
    Completed {
        output: Option<Payload>,
    },
    /// Failed, because of this step if it was one.
    Failed {
        failure: Failure,
        step: Option<u32>,
    },
    /// Failed at once: what is at work is called off.
    Stopped {
        failure: Failure,
    },
    Cancelled {
        actor: String,
        reason: String,
    },
}
