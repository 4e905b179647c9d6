//! Rows of the inbox. A commit answers them itself, with the record that consumes them.

use super::columns::{limit, named, org, run_id, sql, time};
use super::errors::Attempted;
use super::lists::many;
use crate::Result;
use crate::rows::{ConsumedRow, InboxKey, InboxRow};
use bytes::Bytes;
use kernel::inbox::InboxKind;
use kernel::{InboxId, OrgId, RunId, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Statement, params};

pub(super) fn put(connection: &Connection, rows: &[InboxRow]) -> Attempted<()> {
    let mut insert = connection.prepare_cached(sql!("inbox_insert"))?;
    for row in rows {
        self::insert(&mut insert, row)?;
    }
    Ok(())
}

/// Writes a row with the statement `inbox_insert`.
pub(super) fn insert(statement: &mut Statement<'_>, row: &InboxRow) -> rusqlite::Result<()> {
    let InboxRow { key: (org, run, id), kind, body, written_at, sender } = row;
    let sender = sender.map(|sender| sender.0);
    statement.execute(params![org.0, run.0, id.0, kind.as_str(), &**body, written_at.0, sender])?;
    Ok(())
}

pub(super) fn read(
    connection: &Connection,
    kind: InboxKind,
    after: Option<InboxKey>,
    count: usize,
) -> Result<Vec<InboxRow>> {
    let (org, run, id) = after.map_or((0, [0; 16], [0; 16]), |(org, run, id)| (org.0, run.0, id.0));
    let rows = many(connection, sql!("inbox"), params![kind.as_str(), org, run, id, limit(count)], inbox_row)?;
    Ok(rows.into_iter().map(|row| InboxRow { kind, ..row }).collect())
}

/// The rows of a run that have no answer.
pub(super) fn of_run(connection: &Connection, (org, run): (OrgId, RunId), count: usize) -> Result<Vec<InboxRow>> {
    many(connection, sql!("inbox_of"), params![org.0, run.0, limit(count)], |row| {
        Ok(InboxRow { kind: named(row, 6, InboxKind::parse)?, ..inbox_row(row)? })
    })
}

/// Answers or deletes rows without a record. A row that is gone or has an answer stays as it is.
pub(super) fn answer(connection: &Connection, rows: &[ConsumedRow]) -> Attempted<()> {
    let mut update = connection.prepare_cached(sql!("inbox_answer"))?;
    let mut delete = connection.prepare_cached(sql!("inbox_delete"))?;
    for ConsumedRow { key: (org, run, id), answer } in rows {
        match answer {
            Some(answer) => update.execute(params![&**answer, org.0, run.0, id.0])?,
            None => delete.execute(params![org.0, run.0, id.0])?,
        };
    }
    Ok(())
}

pub(super) fn take_answers(connection: &Connection, keys: &[InboxKey]) -> Attempted<Vec<(InboxKey, Bytes)>> {
    let mut delete = connection.prepare_cached(sql!("inbox_take"))?;
    let mut answers = Vec::new();
    for key in keys {
        let (org, run, id) = key;
        let answer: Option<Vec<u8>> = delete.query_row(params![org.0, run.0, id.0], |row| row.get(0)).optional()?;
        answers.extend(answer.map(|answer| (*key, answer.into())));
    }
    Ok(answers)
}

pub(super) fn delete_answered(connection: &Connection, before: Timestamp) -> Attempted<()> {
    connection.prepare_cached(sql!("inbox_forget"))?.execute([before.0])?;
    Ok(())
}

/// Has the run rows that no record has consumed yet?
pub(super) fn has_rows(connection: &Connection, (org, run): (OrgId, RunId)) -> Attempted<bool> {
    Ok(connection.prepare_cached(sql!("inbox_of_run"))?.exists(params![org.0, run.0])?)
}

fn inbox_row(row: &Row<'_>) -> rusqlite::Result<InboxRow> {
    let body: Vec<u8> = row.get(3)?;
    let key = (org(row, 0)?, run_id(row, 1)?, InboxId(row.get(2)?));
    let sender: Option<[u8; 16]> = row.get(5)?;
    let (kind, written_at) = (InboxKind::default(), time(row, 4)?);
    Ok(InboxRow { key, kind, body: body.into(), written_at, sender: sender.map(RunId) })
}
