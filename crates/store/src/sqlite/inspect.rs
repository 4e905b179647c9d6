//! A look at a database file, stopped or in use, without touching it.
//!
//! See [`crate::inspect`] for what is looked at. Everything is read in one transaction, so a running
//! server's commits are seen whole or not at all. How the file can be opened without a trace is
//! [`open`]'s business; [`walk`] follows the runs and the journal, [`tables`] the rest.

mod cursor;
mod open;
mod tables;
mod walk;

use super::catalog;
use super::columns::sql;
use super::errors::on_read;
use crate::inspect::{Anomaly, Catalogued, Inspection, Seen};
use crate::rows::Definition;
use crate::{Error, Result};
use bytes::Bytes;
use kernel::{OrgId, RunId};
use open::Manner;
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

pub struct SqliteInspection {
    connection: Connection,
    path: PathBuf,
    manner: Manner,
}

impl SqliteInspection {
    /// Opens the file for reading and fixes the moment that is looked at.
    pub fn open(path: &Path) -> Result<SqliteInspection> {
        let (connection, manner) = open::open(path)?;
        connection.execute_batch("BEGIN").map_err(on_read)?;
        // The transaction begins with the first read.
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

    fn walk(&self, each: &mut dyn FnMut(Seen)) -> Result<()> {
        walk::walk(&self.connection, each)
    }

    fn definition(&self, org: OrgId, hash: &[u8; 32]) -> Result<Option<Definition>> {
        catalog::definition(&self.connection, org, hash)
    }

    fn payload(&self, org: OrgId, run: RunId, number: u32) -> Result<Option<Bytes>> {
        let body: Option<Vec<u8>> =
            catalog::value(&self.connection, sql!("payload"), params![org.0, run.0, number]).map_err(on_read)?;
        Ok(body.map(Bytes::from))
    }

    fn setting(&self, name: &str) -> Result<Option<String>> {
        catalog::setting(&self.connection, name)
    }

    fn is_of_one_writer(&self) -> bool {
        true
    }

    fn finish(&self) -> Result<()> {
        match self.manner.still_holds(&self.path) {
            true => Ok(()),
            false => Err(Error::Unavailable("a server started while the store was being read; ask again".into())),
        }
    }
}
