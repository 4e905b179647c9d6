//! A database for the time of a measurement: made on a server, and removed.

use super::columns::{Attempted, get};
use super::errors::Failure;
use super::session::Session;
use super::target::Target;
use crate::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_postgres::Row;

pub struct BenchDatabase {
    server: String,
    name: String,
    url: String,
}

impl BenchDatabase {
    /// Makes a new database on the server that another database's address leads to.
    pub async fn create(server: &str) -> Result<BenchDatabase> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let session = Session::open(&Target::parse(server)?).await?;
        // Names of ours only, so they need no quotes.
        let name = format!(
            "onward_bench_{}_{}_{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            session.standing.key.unsigned_abs() % 1_000_000,
        );
        let url = with_database(server, &name)?;
        let made = session.batch(&format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")).await;
        made.map_err(|failure| match failure {
            Failure::Refused(why) => Error::Refused(format!("a database cannot be made: {why}")),
            other => other.unwritten(),
        })?;
        Ok(BenchDatabase { server: server.to_owned(), name, url })
    }

    /// The address of the new database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many bytes the server has written to its log, for all of its databases.
    pub async fn log_bytes(&self) -> Result<u64> {
        let session = Session::open(&Target::parse(&self.server)?).await?;
        let rows = session.query("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint", &[]).await;
        let read = |row: &Row| -> Attempted<i64> { get(row, 0) };
        let bytes = rows.and_then(|rows| rows.first().map_or(Ok(0), read)).map_err(Failure::unwritten)?;
        Ok(bytes.unsigned_abs())
    }

    /// Removes the database, whoever uses it.
    pub async fn remove(&self) -> Result<()> {
        let session = Session::open(&Target::parse(&self.server)?).await?;
        let removed = session.batch(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).await;
        removed.map_err(Failure::unwritten)
    }
}

/// The address of another database on the same server.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    if query.split('&').any(|pair| pair.starts_with("dbname=")) {
        return Err(Error::Refused("name the database in the path of its address, not as `dbname`".into()));
    }
    let (scheme, rest) = address.split_once("//").unwrap_or(("postgres:", address));
    let host = rest.split('/').next().unwrap_or_default();
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!("{scheme}//{host}/{name}{mark}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_an_address_changes() {
        for (url, expected) in [
            ("postgres://u:p@h:1/d", "postgres://u:p@h:1/x"),
            ("postgres://u:p@h:1", "postgres://u:p@h:1/x"),
            ("postgresql://u@%2Frun/d?sslmode=require", "postgresql://u@%2Frun/x?sslmode=require"),
            ("postgres:///d?host=/run", "postgres:///x?host=/run"),
        ] {
            assert_eq!(with_database(url, "x").unwrap(), expected);
        }
        assert!(with_database("postgres://h/d?dbname=e", "x").is_err());
    }
}
