//! Conversion between columns and Rust values: one place for every stored type, so that a value reads back as it was
//! written.
//!
//! Text in Postgres cannot contain byte 0. Text is therefore stored through [`Words`], which escapes bytes 0 and 1
//! with a byte 1 in front and leaves all other text unchanged. The escaping preserves the order of texts and their
//! prefixes.
//!
//! A column with an unexpected value makes the read fail; it never panics.

use super::errors::Failure;
use crate::Error;
use crate::rows::{ConcurrencyGroupRow, RunRow, VersionRow, WorkflowRow};
use bytes::{BufMut, Bytes, BytesMut};
use kernel::event::OnConflict;
use kernel::plan::Form;
use kernel::{OrgId, RunId, RunStatus, Timestamp, WorkflowId};
use std::borrow::Cow;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// The statement in `sql/<name>.sql`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $name, ".sql"))
    };
}
pub(super) use sql;

type Stored = std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>>;
pub(super) type Attempted<T> = std::result::Result<T, Failure>;

/// An id as a `uuid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id(pub [u8; 16]);

impl Id {
    pub(super) const LAST: Id = Id([255; 16]);

    /// The largest id before this one; `None` for the first id.
    pub(super) fn before(id: [u8; 16]) -> Option<Id> {
        u128::from_be_bytes(id).checked_sub(1).map(|id| Id(id.to_be_bytes()))
    }
}

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Stored {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }
    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Id, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Id(raw.try_into()?))
    }
    accepts!(UUID);
}

/// Bytes to write, shared with the caller instead of copied.
#[derive(Clone, Debug)]
pub(super) struct Blob(pub Bytes);

impl ToSql for Blob {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Stored {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }
    accepts!(BYTEA);
    to_sql_checked!();
}

/// A text that may contain byte 0, which is escaped in the database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EscapedText(pub String);

impl EscapedText {
    pub(super) fn of(text: &str) -> EscapedText {
        EscapedText(text.to_owned())
    }

    pub(super) fn maybe(text: Option<&str>) -> Option<EscapedText> {
        text.map(EscapedText::of)
    }
}

/// Replaces bytes 0 and 1 with 1 1 and 1 2, which preserves the order of texts and which text is a prefix of which.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte < 2) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\u{1}', "\u{1}\u{2}").replace('\0', "\u{1}\u{1}"))
}

fn unescape(text: &str) -> String {
    if !text.contains('\u{1}') {
        return text.to_owned();
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = rest.next() {
        match c {
            '\u{1}' if rest.next() == Some('\u{1}') => out.push('\0'),
            c => out.push(c),
        }
    }
    out
}

impl ToSql for EscapedText {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Stored {
        out.put_slice(escape(&self.0).as_bytes());
        Ok(IsNull::No)
    }
    accepts!(TEXT);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for EscapedText {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<EscapedText, Box<dyn std::error::Error + Sync + Send>> {
        Ok(EscapedText(unescape(std::str::from_utf8(raw)?)))
    }
    accepts!(TEXT);
}

/// The stored form of an organisation. One-to-one, and in the same order for every id in use.
pub(super) fn org_of(org: OrgId) -> i32 {
    org.0.cast_signed()
}

/// Columns are signed. Counters never get near the maximum; a longer duration is stored as the maximum.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads a column of any type.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Attempted<T> {
    row.try_get(column).map_err(|e| damaged(e.to_string()))
}

fn damaged(what: impl Into<String>) -> Failure {
    Failure::Other(Error::Corrupt(what.into()))
}

/// A count that was stored by [`int`].
pub(super) fn count(row: &Row, column: usize) -> Attempted<u64> {
    let stored: i64 = get(row, column)?;
    u64::try_from(stored).map_err(|_| damaged(format!("a count is {stored}")))
}

/// A number that fits into 32 bits.
pub(super) fn number(row: &Row, column: usize) -> Attempted<u32> {
    let stored: i64 = get(row, column)?;
    u32::try_from(stored).map_err(|_| damaged(format!("a number is {stored}")))
}

pub(super) fn number_or_none(row: &Row, column: usize) -> Attempted<Option<u32>> {
    let stored: Option<i64> = get(row, column)?;
    stored.map(|stored| u32::try_from(stored).map_err(|_| damaged(format!("a number is {stored}")))).transpose()
}

/// The number of a record.
pub(super) fn seq(row: &Row, column: usize) -> Attempted<u64> {
    let stored: i32 = get(row, column)?;
    u64::try_from(stored).map_err(|_| damaged(format!("a record has the number {stored}")))
}

pub(super) fn org(row: &Row, column: usize) -> Attempted<OrgId> {
    get::<i32>(row, column).map(|org| OrgId(org.cast_unsigned()))
}

pub(super) fn id(row: &Row, column: usize) -> Attempted<[u8; 16]> {
    get::<Id>(row, column).map(|id| id.0)
}

pub(super) fn run_id(row: &Row, column: usize) -> Attempted<RunId> {
    id(row, column).map(RunId)
}

pub(super) fn time(row: &Row, column: usize) -> Attempted<Timestamp> {
    get(row, column).map(Timestamp)
}

pub(super) fn time_or_none(row: &Row, column: usize) -> Attempted<Option<Timestamp>> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp))
}

pub(super) fn text(row: &Row, column: usize) -> Attempted<String> {
    get::<EscapedText>(row, column).map(|words| words.0)
}

pub(super) fn text_or_none(row: &Row, column: usize) -> Attempted<Option<String>> {
    Ok(get::<Option<EscapedText>>(row, column)?.map(|words| words.0))
}

pub(super) fn blob(row: &Row, column: usize) -> Attempted<Bytes> {
    get::<&[u8]>(row, column).map(Bytes::copy_from_slice)
}

pub(super) fn hash(row: &Row, column: usize) -> Attempted<[u8; 32]> {
    let stored: &[u8] = get(row, column)?;
    stored.try_into().map_err(|_| damaged(format!("a hash has {} bytes", stored.len())))
}

/// A text column that must be one of the names of an enum.
pub(super) fn named<T>(row: &Row, column: usize, parse: fn(&str) -> Option<T>) -> Attempted<T> {
    let text: &str = get(row, column)?;
    parse(text).ok_or_else(|| damaged(format!("`{text}` is not a name this release knows")))
}

/// Reads the first nineteen columns of every statement that returns runs.
pub(super) fn run_row(row: &Row) -> Attempted<RunRow> {
    Ok(RunRow {
        org: org(row, 0)?,
        id: run_id(row, 1)?,
        workflow: WorkflowId(id(row, 2)?),
        workflow_name: text(row, 3)?,
        version: number(row, 4)?,
        hash: hash(row, 5)?,
        form: named(row, 6, Form::parse)?,
        status: named(row, 7, RunStatus::parse)?,
        waiting: number(row, 8)?,
        wake_at: time_or_none(row, 9)?,
        created_at: time(row, 10)?,
        expires_at: time(row, 11)?,
        finished_at: time_or_none(row, 12)?,
        error_code: text_or_none(row, 13)?,
        concurrency_group: concurrency_group(row, 14)?,
        evicted: get(row, 15)?,
        deleted_at: time_or_none(row, 16)?,
        lowering: number(row, 17)?,
        failed_steps: text_or_none(row, 18)?,
    })
}

pub(super) fn version_row(row: &Row) -> Attempted<VersionRow> {
    Ok(VersionRow { number: number(row, 0)?, hash: hash(row, 1)?, source: text(row, 2)?, at: time(row, 3)? })
}

/// The stored form of a concurrency group: see `migrations/postgres/0001_init.sql`.
pub(super) fn group_bytes(concurrency_group: &ConcurrencyGroupRow) -> Vec<u8> {
    [&concurrency_group.id[..], &concurrency_group.limit.to_be_bytes(), &[concurrency_group.on_conflict as u8]].concat()
}

pub(super) fn concurrency_group(row: &Row, column: usize) -> Attempted<Option<ConcurrencyGroupRow>> {
    let Some(bytes) = get::<Option<&[u8]>>(row, column)? else { return Ok(None) };
    let bytes: [u8; 21] = bytes.try_into().map_err(|_| damaged("a concurrency group does not have 21 bytes"))?;
    let [id @ .., a, b, c, d, policy] = bytes;
    let policy = OnConflict::ALL.iter().find(|known| **known as u8 == policy);
    let on_conflict =
        *policy.ok_or_else(|| damaged("the concurrency group has a conflict policy this release does not know"))?;
    Ok(Some(ConcurrencyGroupRow { id, limit: u32::from_be_bytes([a, b, c, d]), on_conflict }))
}

pub(super) fn workflow_row(row: &Row) -> Attempted<WorkflowRow> {
    Ok(WorkflowRow {
        org: org(row, 0)?,
        id: WorkflowId(id(row, 1)?),
        name: text(row, 2)?,
        slug: text(row, 3)?,
        description: text_or_none(row, 4)?,
        tags: text(row, 5)?,
        form: named(row, 6, Form::parse)?,
        trigger: text(row, 7)?,
        steps: number(row, 8)?,
        enabled: get(row, 9)?,
        version: number(row, 10)?,
        hash: hash(row, 11)?,
        created_at: time(row, 12)?,
        updated_at: time(row, 13)?,
        deleted_at: time_or_none(row, 14)?,
        lowering: number(row, 15)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_is_reversible_and_preserves_order_and_prefixes() {
        let texts =
            ["", "\0", "\0\0", "\0a", "\u{1}", "\u{1}\0", "\u{1}\u{1}", "\u{1}\u{2}", "\u{2}", "a", "a\0", "ab", "é"];
        for (n, text) in texts.iter().enumerate() {
            let escaped = escape(text);
            assert!(!escaped.contains('\0'));
            assert_eq!(unescape(&escaped), **text);
            for other in &texts[n + 1..] {
                assert!(escaped.as_bytes() < escape(other).as_bytes(), "{text:?} < {other:?}");
                assert_eq!(escape(other).starts_with(&*escaped), other.starts_with(text), "{text:?} {other:?}");
            }
        }
    }

    #[test]
    fn the_id_before_an_id_is_one_less() {
        assert_eq!(Id::before([0; 16]), None);
        let mut one = [0; 16];
        one[14] = 1;
        assert_eq!(Id::before(one).map(|id| id.0[15]), Some(255));
    }
}
