//! The suite that makes several stores one: named [`cases`] with fixed answers, and random
//! [`lockstep`] sequences that several stores must answer alike.
//!
//! It knows the contract and no implementation. A new store plugs in with a function that makes an
//! empty one (for the cases) and a [`Subject`](lockstep::Subject) (for the sequences); both are async,
//! so whoever runs them brings the runtime. What only one store has (files, locks, migrations) is
//! tested beside it.

mod cases;
mod edits_and_erasure;
pub mod fixtures;
mod limit_slots;
pub mod lockstep;
mod tasks;
mod triggers;

pub use lockstep::{Subject, lockstep};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use store::Store;

/// All of them.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    cases::CASES
        .iter()
        .chain(edits_and_erasure::CASES)
        .chain(limit_slots::CASES)
        .chain(tasks::CASES)
        .chain(triggers::CASES)
}

/// One thing every store does. It is given an empty store and panics when it finds fault.
pub struct Case {
    pub name: &'static str,
    pub run: fn(Arc<dyn Store>) -> Trial,
}

/// A case in progress.
pub type Trial = Pin<Box<dyn Future<Output = ()> + Send>>;
