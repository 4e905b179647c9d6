//! Opening a database to look at it, without creating, changing or locking out anything.
//!
//! | files | what that means | opened |
//! |---|---|---|
//! | no `-wal` | closed cleanly: the file is everything | immutable: no locks, no other files |
//! | `-wal` and `-shm` | in use, or its process was killed | read-only, beside a server or alone |
//! | `-wal` without `-shm` | a copy | the index of the log in memory, under an exclusive lock |
//!
//! The `-shm` file is shared memory with a name; connections meet in it and it holds nothing that lasts.
//! In the last case a read-only connection would have to create one. An exclusive one keeps the index
//! to itself; it could write, but is told not to, and leaves the log as it was when it closes.

use super::super::errors::on_read;
use super::super::open::{STATEMENTS_MAX, with_suffix};
use crate::{Error, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// A server that starts or stops at this moment is done with its lock soon.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Immutable,
    ReadOnly,
    Exclusive,
}

impl Manner {
    fn of(path: &Path) -> Manner {
        let exists = |suffix| with_suffix(path, suffix).exists();
        match (exists("-wal"), exists("-shm")) {
            (false, _) => Manner::Immutable,
            (true, true) => Manner::ReadOnly,
            (true, false) => Manner::Exclusive,
        }
    }

    /// Nobody can have changed the file under a connection that takes part in locking. Under one that
    /// does not, a server that started has made a log.
    pub(super) fn still_holds(self, path: &Path) -> bool {
        self != Manner::Immutable || Manner::of(path) == Manner::Immutable
    }
}

pub(super) fn open(path: &Path) -> Result<(Connection, Manner)> {
    let refused = |why: String| Error::Refused(format!("cannot open `{}`: {why}", path.display()));
    let file = std::fs::metadata(path).map_err(|e| refused(e.to_string()))?;
    if !file.is_file() {
        return Err(refused("it is not a file".into()));
    }
    let manner = Manner::of(path);
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match manner {
        Manner::Immutable => {
            Connection::open_with_flags(uri(path, "immutable=1"), read_only | OpenFlags::SQLITE_OPEN_URI)
        }
        Manner::ReadOnly => Connection::open_with_flags(path, read_only),
        Manner::Exclusive => exclusive(path),
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
    fn a_path_with_odd_letters_survives_as_uri() {
        assert_eq!(uri(Path::new("/a b/ü?#%.db"), "immutable=1"), "file:/a%20b/%c3%bc%3f%23%25.db?immutable=1");
    }
}
