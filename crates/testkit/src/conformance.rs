//! The conformance suite: every store must behave the same. It has named [`cases`] with fixed answers, and
//! random [`lockstep`] sequences that several stores must answer alike.
//!
//! It knows the contract and no implementation. A new store plugs in with a function that creates an empty
//! store (for the cases) and a [`Subject`](lockstep::Subject) (for the sequences). Both are async, so the
//! caller provides the runtime. What only one store has (files, locks, migrations) is tested beside that
//! store.

mod cases;
mod edits_and_erasure;
pub mod fixtures;
mod inbox;
mod limit_slots;
pub mod lockstep;
mod tasks;
mod triggers;

pub use lockstep::{Subject, lockstep};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use store::Store;

/// All named cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    cases::CASES
        .iter()
        .chain(edits_and_erasure::CASES)
        .chain(inbox::CASES)
        .chain(limit_slots::CASES)
        .chain(tasks::CASES)
        .chain(triggers::CASES)
}

/// One rule that every store follows. The case gets an empty store and panics if the rule is broken.
pub struct Case {
    pub name: &'static str,
    pub run: fn(Arc<dyn Store>) -> Trial,
}

/// The future of a case.
pub type Trial = Pin<Box<dyn Future<Output = ()> + Send>>;
