//! Tests of the store from outside: the shared suite on every store, and what only SQLite or only Postgres does.

mod conformance;
mod postgres;
mod postgres_cluster_events;
mod postgres_faults;
mod postgres_nodes;
mod postgres_schema;
mod sqlite_files;
mod sqlite_recovery;
mod support;
mod verify;
