//! The store remembers. It decides nothing: it writes what the kernel decided, guarded by what must
//! still be true, and answers what was written.
//!
//! One contract ([`Store`]), implemented in memory (for the simulator and tests), on SQLite (one process) and on
//! Postgres (any number); the conformance suite in `testkit` holds them equal.
//!
//! The rule that keeps it right: **all of a run's rows land or none, and one run's trouble never hurts
//! another's.** A run's rows land only if its last record is still the one the caller saw.

mod catalog_rules;
mod contract;
pub mod crash;
mod id_map;
pub mod inspect;
mod location;
pub mod memory;
mod migration;
pub mod postgres;
pub mod rows;
pub mod sqlite;
mod triggers;
mod write_validation;

pub use contract::{CatalogStore, ClusterStore, JournalStore, QueueStore, Store, TriggerStore};
pub use id_map::{IdMap, IdSet};
pub use location::Location;
pub use memory::MemoryStore;
pub use postgres::{PostgresInspection, PostgresStore};
pub use rows::*;
pub use sqlite::{SqliteInspection, SqliteStore};
pub use triggers::*;

use std::future::Future;
use std::pin::Pin;

/// The traits, for code that calls a store of a certain kind.
pub mod prelude {
    pub use crate::contract::{CatalogStore, ClusterStore, JournalStore, QueueStore, Store, TriggerStore};
}

/// What went wrong with a whole call. The variant says what to do.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Nothing was written: full, locked, read-only. Try again later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A commit's fate is not known. Reload before deciding anything.
    #[error("the outcome of a write is unknown: {0}")]
    Unknown(String),
    /// What is stored cannot be understood.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store cannot be opened as asked (in use, newer than this release, another clock).
    #[error("{0}")]
    Refused(String),
    /// Others took this node for dead and have taken over its work, or the store lost what this node knows. It has to
    /// begin anew, with another epoch.
    #[error("this node was barred: it has to read everything again")]
    Fenced,
    /// Another process has it open.
    #[error("the data directory is in use by another process: {0}")]
    InUse(String),
}

pub type Result<T> = std::result::Result<T, Error>;

/// A store call in progress.
pub type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
