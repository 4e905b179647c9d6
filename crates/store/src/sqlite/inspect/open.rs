//! Opening a database for inspection, without creating or changing a file or blocking a server.
//!
//! | files | what that means | opened |
//! |---|---|---|
//! | no `-wal` | closed cleanly: the file is complete | immutable: no locks, no other files |
//! | `-wal` and `-shm` | in use, or its process was killed | read-only, with or without a server |
//! | `-wal` without `-shm` | a copy | exclusive: the index of the log is in memory |
//!
//! The `-shm` file is a shared memory index of the log and holds nothing durable. In the last case a read-only
//! connection would have to create it. A connection in exclusive locking mode keeps the index in its own memory. It
//! could write, but `query_only` prevents that, and it leaves the log unchanged when it closes.

use super::super::errors::on_read;
use super::super::open::{STATEMENTS_MAX, with_suffix};
use crate::{Error, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// Long enough for a server that is starting or stopping to release its lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenMode {
    Immutable,
    ReadOnly,
    Exclusive,
}

impl OpenMode {
    fn of(path: &Path) -> OpenMode {
        let exists = |suffix| with_suffix(path, suffix).exists();
        match (exists("-wal"), exists("-shm")) {
            (false, _) => OpenMode::Immutable,
            (true, true) => OpenMode::ReadOnly,
            (true, false) => OpenMode::Exclusive,
        }
    }

    /// False if the file may have changed while it was read. A connection that takes part in locking has a stable
    /// snapshot. An immutable one has not, but a server that started meanwhile has created a log.
    pub(super) fn still_holds(self, path: &Path) -> bool {
        self != OpenMode::Immutable || OpenMode::of(path) == OpenMode::Immutable
    }
}

pub(super) fn open(path: &Path) -> Result<(Connection, OpenMode)> {
    let refused = |why: String| Error::Refused(format!("cannot open `{}`: {why}", path.display()));
    let file = std::fs::metadata(path).map_err(|e| refused(e.to_string()))?;
    if !file.is_file() {
        return Err(refused("it is not a file".into()));
    }
    let manner = OpenMode::of(path);
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match manner {
        OpenMode::Immutable => {
            Connection::open_with_flags(uri(path, "immutable=1"), read_only | OpenFlags::SQLITE_OPEN_URI)
        }
        OpenMode::ReadOnly => Connection::open_with_flags(path, read_only),
        OpenMode::Exclusive => exclusive(path),
    };
    let connection = opened.map_err(|e| refused(e.to_string()))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(on_read)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok((connection, manner))
}

fn exclusive(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(()))?;
    Ok(connection)
}

/// The path as SQLite reads it in a URI.
fn uri(path: &Path, query: &str) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            other => uri.push_str(&format!("%{other:02x}")),
        }
    }
    uri + "?" + query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_path_are_escaped_in_the_uri() {
        assert_eq!(uri(Path::new("/a b/ü?#%.db"), "immutable=1"), "file:/a%20b/%c3%bc%3f%23%25.db?immutable=1");
    }
}
