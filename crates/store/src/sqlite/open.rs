//! Opening the database file: the lock file, the version of SQLite, and the pragmas that the store relies on.
//!
//! Checkpoints aside, all pragmas are set here. The order matters: the process takes the lock before it reads the first
//! byte, and checks the schema before it writes the first byte.

use super::errors::on_read;
use super::migrations;
use crate::{Error, Result};
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Earlier releases can corrupt a database whose log is reset while another connection checkpoints it, which this store
/// does.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// How long a statement waits for another connection. Short, because the engine loop waits too.
const BUSY_TIMEOUT: Duration = Duration::from_millis(250);

/// Large enough to keep every statement of the store prepared.
pub(super) const STATEMENTS_MAX: usize = 128;

pub(super) const PAGE_BYTES: u64 = 4_096;

/// The lock on the database. While this value lives, no other process has the database open.
#[derive(Debug)]
pub(super) struct Lock {
    /// The operating system releases the lock when the file is closed, also when the process is killed.
    _file: File,
}

impl Lock {
    pub(super) fn take(database: &Path) -> Result<Lock> {
        let path = with_suffix(database, ".lock");
        let refused = |e: std::io::Error| Error::Refused(format!("cannot open `{}`: {e}", path.display()));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(refused)?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse(database.display().to_string())),
            Err(TryLockError::Error(e)) => Err(refused(e)),
        }
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The connection that writes, with the schema brought up to date.
pub(super) fn writer(path: &Path) -> Result<Connection> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(Error::Refused(format!("SQLite {} is too old", rusqlite::version())));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)
        .map_err(|e| Error::Refused(format!("cannot open `{}`: {e}", path.display())))?;
    common(&connection).map_err(on_read)?;
    let pending = migrations::pending(&connection)?;
    durable(&connection).map_err(on_read)?;
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(on_read)?;
    if mode != "wal" {
        return Err(Error::Refused(format!("`{}` is on a file system without shared memory", path.display())));
    }
    for migration in pending {
        migrations::apply(&mut connection, migration)?;
    }
    sync_directory_of(path)?;
    Ok(connection)
}

/// A connection that checkpoints and does nothing else.
pub(super) fn checkpointer(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(on_read)?;
    common(&connection).and_then(|()| durable(&connection)).map_err(on_read)?;
    Ok(connection)
}

/// A connection that reads. The writer must be open, because a read-only connection cannot recover the log.
pub(super) fn reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(on_read)?;
    common(&connection).map_err(on_read)?;
    Ok(connection)
}

fn common(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "foreign_keys", true)
}

/// Page size and vacuum mode take effect only before the first table exists; WAL is part of the file.
fn durable(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "page_size", PAGE_BYTES as i64)?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The CHECK constraints repeat lists from which this store takes its values, and checking costs as much as writing.
    // The constraints are for other programs that write to the file; `verify` checks every status too.
    connection.pragma_update(None, "ignore_check_constraints", true)?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |_| Ok(()))
}

/// Sets whether SQLite overwrites the bytes of deleted rows. This costs writes, so it is on only while a run is
/// deleted.
pub(super) fn set_secure_delete(connection: &Connection, is_on: bool) -> Result<()> {
    connection.pragma_update_and_check(None, "secure_delete", is_on, |_| Ok(())).map_err(on_read)
}

/// Does the file system refuse to open files for writing? The lock file is opened, not the database: closing another
/// descriptor of the database would release the locks of every connection of the process.
pub(super) fn is_read_only(connection: &Connection) -> bool {
    let Some(path) = connection.path() else { return false };
    let opened = OpenOptions::new().write(true).open(with_suffix(Path::new(path), ".lock"));
    opened.is_err_and(|e| e.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
}

/// Makes the directory entry durable: without it a crash can lose a new file with all of its contents.
fn sync_directory_of(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|e| Error::Unavailable(format!("cannot sync `{}`: {e}", directory.display())))
}
