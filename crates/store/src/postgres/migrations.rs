//! The schema, one numbered file at a time.
//!
//! Each file runs in one transaction that also records it as applied, so a crash leaves a migration done or not
//! begun. Files are immutable once released: the database stores the SHA-256 of each applied file, and it must match.
//! There are no downgrades. Nodes that start at the same time wait for each other.
//!
//! Invariant: [`pending`] only reads, and refuses a database that this release does not know before anything is written
//! to it.

use super::columns::{Attempted, get};
use super::errors::Failure;
use super::session::Session;
use crate::crash::{self, Point};
use crate::migration::{self, Migration};
use crate::{Error, Result};
use std::time::{SystemTime, UNIX_EPOCH};

macro_rules! migration {
    ($version:literal, $number:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/migrations/postgres/",
                $number,
                "_",
                $name,
                ".sql"
            )),
        }
    };
}

const ALL: &[Migration] = &[
    migration!(1, "0001", "init"),
    migration!(2, "0002", "keys_last"),
    migration!(3, "0003", "lowering"),
    migration!(4, "0004", "failed_steps_and_texts"),
    migration!(5, "0005", "inbox"),
    migration!(6, "0006", "waits_and_children"),
    migration!(7, "0007", "signalled_deliveries"),
];

/// The advisory lock of sessions that change the schema: migrations, and the maintenance of partitions.
pub(super) const LOCK: i64 = 0x6f6e_7761_7264_0001;

const BOOKKEEPING: &str = "
CREATE SCHEMA IF NOT EXISTS onward;
CREATE TABLE IF NOT EXISTS onward.schema_migrations (
    version    integer NOT NULL PRIMARY KEY,
    name       text    NOT NULL,
    sha256     text    NOT NULL,
    applied_at bigint  NOT NULL
)";

/// Brings the schema up to date. Tests stop it after `statements_max` statements to simulate a crash.
pub(super) async fn run(session: &Session, statements_max: usize) -> Result<()> {
    if pending(session).await?.is_empty() {
        return Ok(());
    }
    let locked = session.batch("SET statement_timeout = 0; SET lock_timeout = 0").await;
    locked.map_err(Failure::unwritten)?;
    session.query("SELECT pg_advisory_lock($1)", &[&LOCK]).await.map_err(Failure::unwritten)?;
    let mut left = statements_max;
    // Another node may have migrated meanwhile.
    for migration in pending(session).await? {
        let applied = apply(session, migration, &mut left).await;
        applied.map_err(|failure| {
            let why = match failure {
                Failure::Refused(why) | Failure::Row(why) => {
                    return Error::Refused(format!("migration {} (`{}`): {why}", migration.version, migration.name));
                }
                other => other.unwritten(),
            };
            Error::Unavailable(format!("migration {} (`{}`): {why}", migration.version, migration.name))
        })?;
    }
    let unlocked = session.query("SELECT pg_advisory_unlock($1)", &[&LOCK]).await;
    unlocked.map_err(Failure::unwritten).map(drop)
}

pub(super) fn count() -> usize {
    ALL.len()
}

/// The migrations still to be applied, or why this release must not touch the database.
pub(super) async fn pending(session: &Session) -> Result<&'static [Migration]> {
    migration::pending(ALL, &applied(session).await.map_err(Failure::unwritten)?)
}

/// Version, name and hash of the applied migrations, in order.
async fn applied(session: &Session) -> Attempted<Vec<(i32, String, String)>> {
    const TABLES: &str = "
        SELECT to_regclass('onward.schema_migrations') IS NOT NULL,
               EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('onward') AND relkind IN ('r', 'p'))";
    let Some(found) = session.first(TABLES, &[]).await? else { return Ok(Vec::new()) };
    match (get(&found, 0)?, get(&found, 1)?) {
        (false, false) => return Ok(Vec::new()),
        (false, true) => {
            let why = "the schema `onward` of the database belongs to another program";
            return Err(Failure::Other(Error::Refused(why.into())));
        }
        (true, _) => {}
    }
    let rows =
        session.query("SELECT version, name, sha256 FROM onward.schema_migrations ORDER BY version", &[]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?))).collect()
}

/// Applies one migration and records it as applied, in one transaction.
async fn apply(session: &Session, migration: &Migration, left: &mut usize) -> Attempted<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    let mut next = || match left.checked_sub(1) {
        None => Err(Failure::Lost("stopped by the test".into())),
        Some(rest) => {
            *left = rest;
            Ok(())
        }
    };
    session.batch("BEGIN").await?;
    session.batch(BOOKKEEPING).await?;
    for statement in migration.statements() {
        next()?;
        session.batch(statement).await?;
        crash::point(Point::MigrationStatement);
    }
    next()?;
    crash::point(Point::MigrationUnrecorded);
    const RECORD_APPLIED: &str =
        "INSERT INTO onward.schema_migrations (version, name, sha256, applied_at) VALUES ($1, $2, $3, $4)";
    session.execute(RECORD_APPLIED, &[&migration.version, &migration.name, &migration.sha256(), &now]).await?;
    next()?;
    session.batch("COMMIT").await
}

impl Migration {
    /// The statements of the file. A statement ends with a `;` at the end of a line.
    fn statements(&self) -> impl Iterator<Item = &'static str> {
        self.sql.split_inclusive(";\n").filter(|text| text.contains(';'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_from_one_without_gaps() {
        assert!(ALL.iter().map(|m| m.version).eq(1..=ALL.len() as i32));
    }

    #[test]
    fn a_migration_is_split_into_its_statements() {
        for migration in ALL {
            assert_eq!(migration.statements().collect::<String>(), migration.sql);
            assert!(migration.statements().all(|text| text.matches(";\n").count() == 1));
        }
    }
}
