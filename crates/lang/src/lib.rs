//! Compiles a workflow definition to a plan, or reports every problem in it.
//!
//! ```text
//!   bytes ──read──▶ Tree ──compile──▶ Compiled { meta, plan, hash, … }
//!             │               └─────▶ every problem at once, each with its position
//!             └─────▶ Malformed: not a JSON or YAML document
//! ```
//!
//! JSON and YAML become the same `tree`, so each rule is written once and points at the right line in both.
//! `document` reads what all forms of workflow share (name, trigger, limits). The module of the form reads the rest:
//! `graph` for `tasks`, `list` for `steps`. Another form is another module beside it, which also returns nodes or problems. A single step
//! is the same in every form: `step` reads it. `input` reads the schema of trigger bodies. `task` defines single tasks, which have no document. `suite` reads the
//! test files of workflows.
//!
//! The crate is pure: the same bytes always give the same result. A setting that this release cannot honour is
//! refused, never ignored.

mod canonical;
pub mod codes;
pub mod cron;
mod diagnostic;
mod document;
mod fields;
mod graph;
mod input;
mod json;
mod list;
mod settings;
mod spelling;
mod step;
mod suggest;
pub mod suite;
pub mod task;
#[cfg(test)]
mod testing;
mod tree;
pub mod trigger;
mod yaml;

/// The number of the present lowering: it counts up when the same definition becomes another plan than before. Runs keep
/// the plan they began with, so plans are stored by hash and lowering. Golden plans show every lowering.
pub const LOWERING: u32 = 2;

pub use canonical::{canonical_json, content_hash};
pub use diagnostic::{Diagnostic, Severity, normalized};
pub use document::{Compiled, Meta, MetaChange, OTHER_FORMS, compile, describe, has_steps};
pub use fields::DURATION_MAX;
pub use input::{Budget, InputProblem, InputSchema};
pub use json::check_json;
pub use kernel::plan::Form;
pub use list::types as list_types;
pub use spelling::field_name;
pub use step::{BASH_TYPE, LATER_KINDS, kinds};
pub use suggest::nearest;
pub use tree::{DEFINITION_MAX, DEPTH_MAX, Malformed, Syntax, Tree, read};
