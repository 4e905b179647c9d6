//! The form of step lists: `steps: [{type: …, …}, …]`, which run one after the other.
//!
//! ```text
//!   steps ──rewrite──▶ steps by name, each with its kind as in a graph ──graph::lower──▶ nodes, groups, outputs
//! ```
//!
//! A list says the same as a graph in another spelling: [`rewrite`] changes the spelling and keeps every position, so
//! each kind of step has one reader for all forms, and problems point at what the author wrote. What a list has instead
//! of `needs` is its [`StepOrder`](crate::step::group::StepOrder); what it has instead of `if` is the step `conditional`; and it
//! has `outputs` and `variables`. [`settings`] reads the fields of a definition that only lists have.

mod condition;
mod ids;
mod rewrite;
mod settings;

pub(crate) use ids::{BRANCHES, id_of, is_output_name, path_id};
pub(crate) use rewrite::rewrite;
pub use rewrite::types;
pub(crate) use settings::{FIELDS, ListSettings, settings};

#[cfg(test)]
mod tests;
