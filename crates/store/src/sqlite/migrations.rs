//! The schema, one numbered file at a time.
//!
//! Each file runs in one transaction that also records it as applied, so a crash leaves a migration done or not
//! begun. Files are immutable once released: the database stores the SHA-256 of each applied file, and it must match.
//! There are no downgrades.
//!
//! Invariant: [`pending`] only reads, and refuses a database that this release does not know before anything is written
//! to it.

use super::errors::on_read;
use crate::crash::{self, Point};
use crate::migration::{self, Migration};
use crate::{Error, Result};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::{Batch, Connection, TransactionBehavior};
use std::time::{SystemTime, UNIX_EPOCH};

macro_rules! migration {
    ($version:literal, $number:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite/", $number, "_", $name, ".sql")),
        }
    };
}

const ALL: &[Migration] = &[
    migration!(1, "0001", "init"),
    migration!(2, "0002", "gates"),
    migration!(3, "0003", "triggers"),
    migration!(4, "0004", "tasks"),
    migration!(5, "0005", "seats"),
    migration!(6, "0006", "listed"),
    migration!(7, "0007", "every_run_listed"),
    migration!(8, "0008", "lowering"),
    migration!(9, "0009", "failed_steps_and_texts"),
    migration!(10, "0010", "inbox"),
    migration!(11, "0011", "waits_and_children"),
    migration!(12, "0012", "signalled_deliveries"),
];

const BOOKKEEPING: &str = "CREATE TABLE IF NOT EXISTS schema_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    sha256     TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT";

/// The migrations still to be applied, or why this release must not touch the database.
pub(super) fn pending(connection: &Connection) -> Result<&'static [Migration]> {
    migration::pending(ALL, &applied(connection)?)
}

/// How many migrations this release has.
pub(super) fn count() -> usize {
    ALL.len()
}

/// Applies one migration and records it as applied, in one transaction.
pub(super) fn apply(connection: &mut Connection, migration: &Migration) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    let mut run = || {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(BOOKKEEPING)?;
        let mut statements = Batch::new(&transaction, migration.sql);
        while let Some(mut statement) = statements.next()? {
            statement.execute([])?;
            crash::point(Point::MigrationStatement);
        }
        crash::point(Point::MigrationUnrecorded);
        transaction.execute(
            "INSERT INTO schema_migrations (version, name, sha256, applied_at) VALUES ($1, $2, $3, $4)",
            (migration.version, migration.name, migration.sha256(), now),
        )?;
        transaction.commit()
    };
    run().map_err(|e: rusqlite::Error| {
        Error::Unavailable(format!("migration {} (`{}`): {e}", migration.version, migration.name))
    })
}

/// Version, name and hash of the applied migrations, in order.
fn applied(connection: &Connection) -> Result<Vec<(i32, String, String)>> {
    let tables: u32 = number(connection, "SELECT count(*) FROM sqlite_master WHERE type = 'table'")?;
    if tables == 0 {
        return Ok(Vec::new());
    }
    if number(connection, "SELECT count(*) FROM sqlite_master WHERE name = 'schema_migrations'")? == 0 {
        return Err(Error::Refused("the file is a database of another program".into()));
    }
    let mut statement =
        connection.prepare("SELECT version, name, sha256 FROM schema_migrations ORDER BY version").map_err(on_read)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(on_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(on_read)
}

fn number(connection: &Connection, statement: &str) -> Result<u32> {
    connection.query_row(statement, [], |row| row.get(0)).map_err(on_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_from_one_without_gaps() {
        assert!(ALL.iter().map(|m| m.version).eq(1..=ALL.len() as i32));
    }

    #[test]
    fn a_migration_that_fails_leaves_nothing_behind() {
        let mut connection = Connection::open_in_memory().unwrap();
        let bad = Migration { version: 1, name: "bad", sql: "CREATE TABLE a (x); CREATE TABLE a (x);" };
        assert!(apply(&mut connection, &bad).is_err());
        assert_eq!(number(&connection, "SELECT count(*) FROM sqlite_master"), Ok(0));
        assert!(apply(&mut connection, &ALL[0]).is_ok());
        assert!(pending(&connection).is_ok_and(|rest| rest.len() == ALL.len() - 1));
    }
}
