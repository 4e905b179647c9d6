//! The location of a store: `sqlite:PATH`, or `postgres://user:password@host:port/database`.

use crate::inspect::Inspection;
use crate::{Error, PostgresInspection, PostgresStore, Result, SqliteInspection, SqliteStore, Store};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// Path of the database file.
    Sqlite(PathBuf),
    /// A connection URL, as libpq reads it.
    Postgres(String),
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Location> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(Location::Sqlite(path.into())),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                PostgresStore::check_address(text)?;
                Ok(Location::Postgres(text.to_owned()))
            }
            _ => {
                Err(Error::Refused("a store is `sqlite:PATH` or `postgres://user:password@host:port/database`".into()))
            }
        }
    }
}

/// Without secrets: of a Postgres URL, only the host and the database.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Location::Postgres(url) => {
                let plain = url.split('?').next().unwrap_or_default();
                let (scheme, rest) = plain.split_once("//").unwrap_or(("postgres:", plain));
                write!(f, "{scheme}//{}", rest.rsplit('@').next().unwrap_or_default())
            }
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Location {
    /// Opens the store, creating it if need be. A Postgres store uses the Tokio runtime of the caller.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(match self {
            Location::Sqlite(path) => Arc::new(SqliteStore::open(path)?),
            Location::Postgres(url) => Arc::new(PostgresStore::open(url).await?),
        })
    }

    /// Opens the store for reading, without changing anything. On Postgres the calls of the inspection block, so do not
    /// call them inside a Tokio runtime.
    pub fn inspect(&self) -> Result<Box<dyn Inspection>> {
        Ok(match self {
            Location::Sqlite(path) => Box::new(SqliteInspection::open(path)?),
            Location::Postgres(url) => Box::new(PostgresInspection::open(url)?),
        })
    }

    /// The name of the database system.
    pub fn kind(&self) -> &'static str {
        match self {
            Location::Sqlite(_) => "sqlite",
            Location::Postgres(_) => "postgres",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_parsed_and_displayed_without_its_secrets() {
        for (text, shown) in [
            ("sqlite:data/onward.db", "sqlite:data/onward.db"),
            ("postgres://ada:s%40cret@db:5432/onward?sslmode=require&password=x", "postgres://db:5432/onward"),
            ("postgresql://%2Frun%2Fpg/onward", "postgresql://%2Frun%2Fpg/onward"),
        ] {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), shown);
        }
        for bad in ["", "sqlite:", "mysql://x", "postgres:x", "data/onward.db"] {
            assert!(matches!(bad.parse::<Location>(), Err(Error::Refused(_))), "{bad}");
        }
    }
}
