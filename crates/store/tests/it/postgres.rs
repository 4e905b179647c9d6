//! Databases for tests, on the Postgres server of this process.

use std::sync::{Arc, Mutex, OnceLock};
use store::PostgresStore;
use store::prelude::*;
use testkit::postgres::{PostgresCluster, name_in, shared};
use tokio::runtime::Runtime;

/// One runtime for all tests, because sessions outlive the test that opened them.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap())
}

pub fn open(url: &str) -> PostgresStore {
    runtime().block_on(PostgresStore::open(url)).unwrap()
}

/// A database with the schema and no rows, which is reused after it is dropped.
pub struct Database {
    pub url: String,
}

static EMPTY: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Database {
    pub fn new() -> Database {
        if let Some(url) = EMPTY.lock().unwrap().pop() {
            empty(shared(), &url);
            return Database { url };
        }
        let url = shared().database();
        drop(open(&url));
        Database { url }
    }

    pub fn open(&self) -> Arc<dyn Store> {
        Arc::new(open(&self.url))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            EMPTY.lock().unwrap().push(std::mem::take(&mut self.url));
        }
    }
}

/// Deletes all rows, which is much faster than a new database.
fn empty(cluster: &PostgresCluster, url: &str) {
    const TABLES: &[&str] = &[
        "journal",
        "arrivals",
        "positions",
        "nodes",
        "runs",
        "snapshots",
        "timers",
        "seats",
        "waits",
        "payloads",
        "labels",
        "idempotency",
        "workflows",
        "versions",
        "definitions",
        "settings",
        "workflow_pauses",
        "notices",
        "inbox",
        "triggers",
        "deliveries",
        "delivery_requests",
        "ready",
        "types",
        "workers",
    ];
    let statements: String = TABLES.iter().map(|table| format!("DELETE FROM onward.{table};")).collect();
    cluster.sql(name_in(url), &format!("BEGIN; {statements} COMMIT"));
}
