//! Databases in temporary directories, and copies of them as a kill would leave them.

use std::path::{Path, PathBuf};
use store::prelude::*;
use store::sqlite::Options;
use store::{RunWrite, SqliteStore, WriteVerdict};
use tempfile::TempDir;
use testkit::conformance::fixtures;
use testkit::now;

/// A temporary directory with one database, removed when dropped.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { directory: TempDir::new().unwrap() }
    }

    pub fn database(&self) -> PathBuf {
        self.directory.path().join("onward.db")
    }

    pub fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.database()).unwrap()
    }

    pub fn open_with(&self, options: Options) -> SqliteStore {
        SqliteStore::open_with(&self.database(), options).unwrap()
    }

    /// A copy of the files as a `kill -9` would leave them now, without a clean close. The checkpoint thread must be
    /// idle, or the copied files are inconsistent.
    pub fn killed(&self) -> Place {
        let copy = Place::new();
        for suffix in ["", "-wal"] {
            let from = suffixed(&self.database(), suffix);
            if from.exists() {
                std::fs::copy(from, suffixed(&copy.database(), suffix)).unwrap();
            }
        }
        copy
    }

    /// Names of the files in the directory.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A connection beside the store, as another program would have.
    pub fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.database()).unwrap()
    }
}

pub fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub fn commit(store: &dyn Store, runs: impl Into<Vec<RunWrite>>) -> Vec<WriteVerdict> {
    now(store.commit(&fixtures::batch(runs))).unwrap()
}
