//! The store persists runs, tasks, workflows and triggers. It makes no decisions: it writes what the kernel decided,
//! provided that the rows it depends on have not changed, and reads it back.
//!
//! There is one contract ([`Store`]) with three implementations: in memory (for the simulator and tests), on SQLite
//! (one process) and on Postgres (any number of processes). The conformance suite in `testkit` keeps them equivalent.
//!
//! Invariant: **a commit writes all rows of a run or none, and a failure of one run does not affect the other runs of
//! the batch.** The rows of a run are written only if its last record is still the one the caller saw.

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

pub use contract::{CatalogStore, ClusterStore, InboxStore, JournalStore, QueueStore, Store, TriggerStore};
pub use id_map::{IdMap, IdSet};
pub use location::Location;
pub use memory::MemoryStore;
pub use postgres::{PostgresInspection, PostgresStore};
pub use rows::*;
pub use sqlite::{SqliteInspection, SqliteStore};
pub use triggers::*;

use std::future::Future;
use std::pin::Pin;

/// The store traits, for code that calls methods of a concrete store.
pub mod prelude {
    pub use crate::contract::{CatalogStore, ClusterStore, InboxStore, JournalStore, QueueStore, Store, TriggerStore};
}

/// Why a whole call failed. The variant says what the caller should do.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Nothing was written: the disk is full, the database is locked or read-only. Try again later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Whether the commit took place is unknown. Reload before deciding anything.
    #[error("the outcome of a write is unknown: {0}")]
    Unknown(String),
    /// The stored data cannot be read.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store cannot be opened this way: its schema is newer than this release, or it uses another clock.
    #[error("{0}")]
    Refused(String),
    /// The other nodes took this node for dead and took over its runs, or the server lost writes that it had
    /// acknowledged. The node has to start again with a new epoch.
    #[error("this node was fenced; it has to read everything again with a new epoch")]
    Fenced,
    /// Another process has the database open.
    #[error("the data directory is in use by another process: {0}")]
    InUse(String),
}

pub type Result<T> = std::result::Result<T, Error>;

/// A store call in progress.
pub type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
