//! A pool of a few read-only connections, opened when first needed and shared by all calls.
//!
//! Reads and writes never wait for each other: each read sees the database as it was when the read began. When all
//! connections are in use, further calls wait for one to be returned.

use super::open;
use crate::Result;
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const CONNECTIONS_MAX: usize = 4;

pub(super) struct Readers {
    path: PathBuf,
    pool: Mutex<ReaderPool>,
    returned: Condvar,
}

#[derive(Default)]
struct ReaderPool {
    idle: Vec<Connection>,
    in_use: usize,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Readers {
        Readers { path, pool: Mutex::default(), returned: Condvar::new() }
    }

    /// Calls `read` with a connection. A connection that was in use during a panic is closed, not reused.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let _permit = self.acquire();
        let idle = self.pool().idle.pop();
        let connection = idle.map_or_else(|| open::reader(&self.path), Ok)?;
        let answer = read(&connection);
        self.pool().idle.push(connection);
        answer
    }

    fn acquire(&self) -> ReaderPermit<'_> {
        let pool = self.pool();
        let waited = self.returned.wait_while(pool, |pool| pool.in_use >= CONNECTIONS_MAX);
        waited.unwrap_or_else(PoisonError::into_inner).in_use += 1;
        ReaderPermit(self)
    }

    fn pool(&self) -> MutexGuard<'_, ReaderPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to use one connection.
struct ReaderPermit<'a>(&'a Readers);

impl Drop for ReaderPermit<'_> {
    fn drop(&mut self) {
        self.0.pool().in_use -= 1;
        self.0.returned.notify_one();
    }
}
