//! Opening the file: one process at a time, the right SQLite, the settings everything else relies on.
//!
//! This is the only place that knows a pragma's name, checkpoints aside. The order matters: the lock
//! comes before the first byte is read, the schema is judged before the first byte is written.

use super::errors::on_read;
use super::migrations;
use crate::{Error, Result};
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Earlier releases can corrupt a database whose log is reset while another connection checkpoints it,
/// which is how we use it.
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// How long a statement waits for another connection. Short: the engine's thread waits with it.
const BUSY_TIMEOUT: Duration = Duration::from_millis(250);

/// Every statement we have stays prepared.
pub(super) const STATEMENTS_MAX: usize = 128;

pub(super) const PAGE_BYTES: u64 = 4_096;

/// Proof that no other process has the database open, for as long as it lives.
#[derive(Debug)]
pub(super) struct Lock {
    /// The system drops the lock with the file, also when the process is killed.
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

/// A connection that reads. The writer must be open: it is the one that keeps the log usable.
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
    // What is written here comes from the lists the checks repeat, and checking costs as much as writing. They are for
    // whoever else opens the file; `verify` reads every status too.
    connection.pragma_update(None, "ignore_check_constraints", true)?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |_| Ok(()))
}

/// Are bytes overwritten when rows go? It costs writes, so only where somebody asked for them to be gone.
pub(super) fn set_secure_delete(connection: &Connection, is_on: bool) -> Result<()> {
    connection.pragma_update_and_check(None, "secure_delete", is_on, |_| Ok(())).map_err(on_read)
}

/// Does the file system refuse to open files for writing? Asked of the lock file: closing the database
/// would take the locks of every other connection with it.
pub(super) fn is_read_only(connection: &Connection) -> bool {
    let Some(path) = connection.path() else { return false };
    let opened = OpenOptions::new().write(true).open(with_suffix(Path::new(path), ".lock"));
    opened.is_err_and(|e| e.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
}

/// A file whose name is not durable is lost with everything in it.
fn sync_directory_of(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|e| Error::Unavailable(format!("cannot sync `{}`: {e}", directory.display())))
}
