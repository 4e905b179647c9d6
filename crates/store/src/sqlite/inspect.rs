//! Read-only inspection of a database file, whether or not a server uses it.
//!
//! See [`crate::inspect`] for what an inspection reads. It reads everything in one transaction, so it sees each
//! commit of a running server completely or not at all. [`open`] opens the file without changing it; [`walk`] reads
//! the runs and the journal, [`tables`] the other tables.

mod cursor;
mod open;
mod tables;
mod walk;

use super::catalog;
use super::columns::sql;
use super::errors::on_read;
use super::inbox;
use crate::inspect::{Anomaly, Catalogued, InspectedRow, Inspection, RELATIVE_ROWS_MAX, Relative};
use crate::rows::StoredDefinition;
use crate::{Error, Result};
use bytes::Bytes;
use kernel::{OrgId, RunId, RunStatus};
use open::OpenMode;
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

pub struct SqliteInspection {
    connection: Connection,
    path: PathBuf,
    manner: OpenMode,
}

impl SqliteInspection {
    /// Opens the file for reading and begins the read transaction.
    pub fn open(path: &Path) -> Result<SqliteInspection> {
        let (connection, manner) = open::open(path)?;
        connection.execute_batch("BEGIN").map_err(on_read)?;
        // SQLite takes its snapshot with the first read.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())).map_err(on_read)?;
        Ok(SqliteInspection { connection, path: path.to_owned(), manner })
    }
}

impl Inspection for SqliteInspection {
    fn database(&self, each: &mut dyn FnMut(Anomaly)) -> Result<bool> {
        tables::database(&self.connection, each)
    }

    fn catalog(&self, each: &mut dyn FnMut(Catalogued)) -> Result<()> {
        tables::catalog(&self.connection, each)
    }

    fn walk(&self, each: &mut dyn FnMut(InspectedRow)) -> Result<()> {
        walk::walk(&self.connection, each)
    }

    fn definition(&self, org: OrgId, hash: &[u8; 32], lowering: Option<u32>) -> Result<Option<StoredDefinition>> {
        catalog::definition(&self.connection, org, hash, lowering)
    }

    fn payload(&self, org: OrgId, run: RunId, number: u32) -> Result<Option<Bytes>> {
        let body: Option<Vec<u8>> =
            catalog::value(&self.connection, sql!("payload"), params![org.0, run.0, number]).map_err(on_read)?;
        Ok(body.map(Bytes::from))
    }

    fn has_key(&self, org: OrgId, scope: &str, key: &str) -> Result<bool> {
        let mut statement = self.connection.prepare_cached(sql!("idempotency")).map_err(on_read)?;
        statement.exists(params![org.0, scope, key]).map_err(on_read)
    }

    fn relative(&self, org: OrgId, run: RunId) -> Result<Relative> {
        let status: Option<String> =
            catalog::value(&self.connection, sql!("inspect_run_status"), params![org.0, run.0]).map_err(on_read)?;
        let inbox = inbox::of_run(&self.connection, (org, run), RELATIVE_ROWS_MAX)?;
        Ok(Relative { status: status.and_then(|status| RunStatus::parse(&status)), inbox })
    }

    fn setting(&self, name: &str) -> Result<Option<String>> {
        catalog::setting(&self.connection, name)
    }

    fn has_single_writer(&self) -> bool {
        true
    }

    fn finish(&self) -> Result<()> {
        match self.manner.still_holds(&self.path) {
            true => Ok(()),
            false => Err(Error::Unavailable("a server started while the store was being read; try again".into())),
        }
    }
}
