//! Conversion between columns and Rust values: one place for every stored type, so that a value reads back as it was
//! written.
//!
//! A column with an unexpected value makes the read fail; it never panics.

use crate::rows::{ConcurrencyGroupRow, RunRow, VersionRow, WorkflowRow};
use kernel::event::OnConflict;
use kernel::plan::Form;
use kernel::{OrgId, RunId, RunStatus, Timestamp, WorkflowId};
use rusqlite::types::Type;
use rusqlite::{Result, Row};

/// The statement in `sql/<name>.sql`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, ".sql"))
    };
}
pub(super) use sql;

/// Larger than every id: the cursor of a list that starts at the newest row.
pub(super) const AFTER_EVERY_ID: [u8; 17] = [255; 17];

/// SQLite's integers are signed. Counters never get near the maximum; a longer duration is stored as the maximum.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The inverse of [`int`]; no stored value is negative.
pub(super) fn int_back(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(super) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A count that was stored by [`int`].
pub(super) fn count(row: &Row<'_>, column: usize) -> Result<u64> {
    let stored: i64 = row.get(column)?;
    u64::try_from(stored).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, stored))
}

pub(super) fn org(row: &Row<'_>, column: usize) -> Result<OrgId> {
    row.get(column).map(OrgId)
}

pub(super) fn run_id(row: &Row<'_>, column: usize) -> Result<RunId> {
    row.get(column).map(RunId)
}

pub(super) fn time(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    row.get(column).map(Timestamp)
}

pub(super) fn time_or_none(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp))
}

/// A text column that must be one of the names of an enum.
pub(super) fn named<T>(row: &Row<'_>, column: usize, parse: fn(&str) -> Option<T>) -> Result<T> {
    let text: String = row.get(column)?;
    parse(&text).ok_or_else(|| {
        let what = format!("`{text}` is not a name this release knows");
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, what.into())
    })
}

/// Reads the first nineteen columns of every statement that returns runs.
pub(super) fn run_row(row: &Row<'_>) -> Result<RunRow> {
    Ok(RunRow {
        org: org(row, 0)?,
        id: run_id(row, 1)?,
        workflow: WorkflowId(row.get(2)?),
        workflow_name: row.get(3)?,
        version: row.get(4)?,
        hash: row.get(5)?,
        form: named(row, 6, Form::parse)?,
        status: named(row, 7, RunStatus::parse)?,
        waiting: row.get(8)?,
        wake_at: time_or_none(row, 9)?,
        created_at: time(row, 10)?,
        expires_at: time(row, 11)?,
        finished_at: time_or_none(row, 12)?,
        error_code: row.get(13)?,
        concurrency_group: concurrency_group(row, 14)?,
        evicted: row.get(15)?,
        deleted_at: time_or_none(row, 16)?,
        lowering: row.get(17)?,
        failed_steps: row.get(18)?,
    })
}

pub(super) fn version_row(row: &Row<'_>) -> Result<VersionRow> {
    Ok(VersionRow { number: row.get(0)?, hash: row.get(1)?, source: row.get(2)?, at: time(row, 3)? })
}

/// The stored form of a concurrency group: see `migrations/sqlite/0002_gates.sql`.
pub(super) fn group_bytes(concurrency_group: &ConcurrencyGroupRow) -> [u8; 21] {
    let mut bytes = [0; 21];
    bytes[..16].copy_from_slice(&concurrency_group.id);
    bytes[16..20].copy_from_slice(&concurrency_group.limit.to_be_bytes());
    bytes[20] = concurrency_group.on_conflict as u8;
    bytes
}

pub(super) fn concurrency_group(row: &Row<'_>, column: usize) -> Result<Option<ConcurrencyGroupRow>> {
    let Some(bytes) = row.get::<_, Option<[u8; 21]>>(column)? else { return Ok(None) };
    let [id @ .., a, b, c, d, policy] = bytes;
    let policy = OnConflict::ALL.iter().find(|known| **known as u8 == policy);
    let on_conflict = *policy.ok_or_else(|| {
        let what = "the concurrency group has a conflict policy this release does not know";
        rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, what.into())
    })?;
    Ok(Some(ConcurrencyGroupRow { id, limit: u32::from_be_bytes([a, b, c, d]), on_conflict }))
}

pub(super) fn workflow_row(row: &Row<'_>) -> Result<WorkflowRow> {
    Ok(WorkflowRow {
        org: org(row, 0)?,
        id: WorkflowId(row.get(1)?),
        name: row.get(2)?,
        slug: row.get(3)?,
        description: row.get(4)?,
        tags: row.get(5)?,
        form: named(row, 6, Form::parse)?,
        trigger: row.get(7)?,
        steps: row.get(8)?,
        enabled: row.get(9)?,
        version: row.get(10)?,
        hash: row.get(11)?,
        created_at: time(row, 12)?,
        updated_at: time(row, 13)?,
        deleted_at: time_or_none(row, 14)?,
        lowering: row.get(15)?,
    })
}
