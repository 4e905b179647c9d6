//! The kernel decides what happens next in a run, given its plan, its history, new inputs and the time. It is
//! pure: no async, no I/O, no clock, no randomness.
//!
//! ```text
//!   Plan ──────────────┐
//!   Run (folded events)┤
//!   inputs ────────────┼──▶ advance ──▶ Record (events)  ──apply──▶ Run
//!   now ───────────────┘            └─▶ effects, answers
//! ```
//!
//! Read in this order: [`plan`] (what a workflow lowers to), [`event`] (the history of a run), [`run`] (the
//! state that the events add up to), [`mod@planner`] (what comes next), [`mod@advance`] (how it is done). The central invariant: only
//! [`Run::apply`](run::Run::apply) changes the state of a run, so the state in memory always equals the fold of
//! the journal.

#[macro_use]
pub mod wire;
#[macro_use]
mod words;
pub mod id;
pub mod status;
pub mod time;

pub mod expr;
pub mod path;
pub mod template;

pub mod plan;

pub mod payload;

pub mod event;
pub mod reason;
pub mod run;

pub mod retry;
pub mod scope;

pub mod advance;
pub mod planner;

pub mod inbox;
pub mod planted_bugs;

pub use advance::{Admission, Advance, Answer, Context, Effect, Input, advance};
pub use event::{Event, EventType, Record};
pub use id::{InboxId, OrgId, RunId, TriggerId, WorkflowId};
pub use payload::{Payload, Payloads};
pub use plan::Plan;
pub use reason::Reason;
pub use run::Run;

pub use status::{RunStatus, StepStatus, TaskStatus};
pub use time::{Span, Timestamp};
