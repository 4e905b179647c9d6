//! Reads: ways to write a workflow in, one plan and a list of diagnostics out.
//!
//! ```text
//!   bytes ──read──▶ Tree ──compile──▶ Compiled { meta, plan, hash, … }
//!             │               └─────▶ every problem at once, each with its place
//!             └─────▶ Malformed: not even a document
//! ```
//!
//! JSON and YAML become the same `tree`, so a rule is written once and points at the right line in
//! both. `document` reads what all forms share (name, trigger, limits) and hands the rest to the
//! module of the form: `graph` for `tasks`. A step list, transitions or a script will each be one
//! more module beside it that answers the same question: these nodes, or these problems. What a single
//! step says is the same in every form and lives in `step`; `task` makes plain tasks, which have no document.
//! Files that test a workflow are read by `suite`.
//!
//! Nothing here runs anything or knows the time; the same bytes always give the same answer. The rule
//! that keeps it right: whatever cannot be honoured is refused, never ignored.

mod canonical;
pub mod codes;
pub mod cron;
mod diagnostic;
mod document;
mod fields;
mod graph;
mod json;
mod settings;
mod step;
mod suggest;
pub mod suite;
pub mod task;
#[cfg(test)]
mod testing;
mod tree;
pub mod trigger;
mod yaml;

pub use canonical::{canonical_json, content_hash};
pub use diagnostic::Diagnostic;
pub use document::{Compiled, Meta, MetaChange, OTHER_FORMS, compile, describe, has_steps};
pub use json::check_json;
pub use kernel::plan::Form;
pub use step::{LATER_KINDS, kinds};
pub use tree::{DEFINITION_MAX, DEPTH_MAX, Malformed, Syntax, Tree, read};
