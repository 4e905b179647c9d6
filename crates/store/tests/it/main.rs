//! The store's promises, tested from outside: the shared suite on every store, and what is SQLite's and Postgres's own.

mod conformance;
mod postgres;
mod sqlite_files;
mod sqlite_recovery;
mod support;
mod verify;
