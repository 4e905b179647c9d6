//! The kernel decides. Given a plan, what happened so far, what just arrived and the time, it says
//! what happens next, and nothing else: no async, no I/O, no clock, no randomness.
//!
//! ```text
//!   Plan ──────────────┐
//!   Run (folded events)┤
//!   inputs ────────────┼──▶ advance ──▶ Record (events)  ──apply──▶ Run
//!   now ───────────────┘            └─▶ effects, answers
//! ```
//!
//! Read in this order: [`plan`] (what a workflow lowers to), [`event`] (the only way a run changes),
//! [`run`] (what the events add up to), [`mod@advance`] (the rules). The rule that keeps it right:
//! state is only ever changed by [`Run::apply`](run::Run::apply) of an event, so whatever is in
//! memory is by construction the fold of the journal.

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
pub mod planted_bugs;

pub use advance::{Admission, Advance, Answer, Context, Effect, Input, advance};
pub use event::{Event, EventType, Record};
pub use id::{OrgId, RunId, TriggerId, WorkflowId};
pub use payload::{Payload, Payloads};
pub use plan::Plan;
pub use reason::Reason;
pub use run::Run;

pub use status::{RunStatus, StepStatus, TaskStatus};
pub use time::{Span, Timestamp};
