//! A temporary database for benchmarks.

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
    /// Creates a database on the server of another database's URL.
    pub async fn create(server: &str) -> Result<BenchDatabase> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let session = Session::open(&Target::parse(server)?).await?;
        // The name has no special characters, so the statements need no quotes.
        let name = format!(
            "onward_bench_{}_{}_{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            session.standing.key.unsigned_abs() % 1_000_000,
        );
        let url = with_database(server, &name)?;
        let made = session.batch(&format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")).await;
        made.map_err(|failure| match failure {
            Failure::Refused(why) => Error::Refused(format!("cannot create a database for the benchmark: {why}")),
            other => other.unwritten(),
        })?;
        Ok(BenchDatabase { server: server.to_owned(), name, url })
    }

    /// The URL of the new database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many bytes the server has written to its write-ahead log, for all of its databases.
    pub async fn log_bytes(&self) -> Result<u64> {
        let session = Session::open(&Target::parse(&self.server)?).await?;
        let rows = session.query("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint", &[]).await;
        let read = |row: &Row| -> Attempted<i64> { get(row, 0) };
        let bytes = rows.and_then(|rows| rows.first().map_or(Ok(0), read)).map_err(Failure::unwritten)?;
        Ok(bytes.unsigned_abs())
    }

    /// Drops the database, even if it has open connections.
    pub async fn remove(&self) -> Result<()> {
        let session = Session::open(&Target::parse(&self.server)?).await?;
        let removed = session.batch(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).await;
        removed.map_err(Failure::unwritten)
    }
}

/// The URL of another database on the same server.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    if query.split('&').any(|pair| pair.starts_with("dbname=")) {
        return Err(Error::Refused("name the database in the path of its URL, not as `dbname`".into()));
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
    fn only_the_database_of_a_url_changes() {
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
