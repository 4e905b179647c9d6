//! Ready tasks of evicted runs, limit slots, task types and workers.
//!
//! The rows of `ready` are written and removed with the records of their runs (see [`commit`](super::commit)). This
//! module only reads them, always in the order of the primary key: a claim never sorts, and never reads tasks of
//! another key queue. Only the count per key queue, once at start, reads all rows.

use super::columns::{self, int, int_back, limit, org, run_id, sql, time, time_or_none};
use super::errors::Attempted;
use super::lists::many;
use crate::Result;
use crate::rows::{
    LimitScope, LimitSlot, LimitSlotRow, QueueKey, QueuePosition, Rate, StoredDefinition, TypePause, TypeRow, WorkerRow,
};
use kernel::{OrgId, Span, Timestamp};
use rusqlite::{Connection, Row, params};

pub(super) fn key_queues(
    connection: &Connection,
    after: Option<&QueueKey>,
    count: usize,
) -> Result<Vec<(QueueKey, u64)>> {
    let (org, name, key) = after.map_or((-1, "", ""), |queue| (i64::from(queue.org.0), &*queue.name, &*queue.key));
    many(connection, sql!("ready_queues"), params![org, name, key, limit(count)], |row| {
        let queue = QueueKey { org: columns::org(row, 0)?, name: row.get(1)?, key: row.get(2)? };
        Ok((queue, columns::count(row, 3)?))
    })
}

pub(super) fn ready_types(connection: &Connection) -> Result<Vec<(OrgId, String)>> {
    many(connection, sql!("ready_types"), params![], |row| Ok((org(row, 0)?, row.get(1)?)))
}

pub(super) fn ready_counts(connection: &Connection) -> Result<Vec<(OrgId, String, u64)>> {
    many(connection, sql!("ready_counts"), params![], |row| Ok((org(row, 0)?, row.get(1)?, columns::count(row, 2)?)))
}

pub(super) fn ready_keys(
    connection: &Connection,
    org: OrgId,
    name: &str,
    after: Option<&str>,
    count: usize,
) -> Result<Vec<String>> {
    many(connection, sql!("ready_keys"), params![org.0, name, after, limit(count)], |row| row.get(0))
}

pub(super) fn ready(
    connection: &Connection,
    queue: &QueueKey,
    after: Option<QueuePosition>,
    count: usize,
) -> Result<Vec<QueuePosition>> {
    let (priority, run, step) = after
        .map_or((-1, [0; 16], -1), |position| (i64::from(position.priority), position.run.0, i64::from(position.step)));
    let params = params![queue.org.0, queue.name, queue.key, priority, run, step, limit(count)];
    many(connection, sql!("ready"), params, |row| {
        Ok(QueuePosition { priority: row.get(0)?, run: run_id(row, 1)?, step: row.get(2)? })
    })
}

pub(super) fn limit_slots(connection: &Connection, org: OrgId, name: &str) -> Result<Vec<LimitSlotRow>> {
    many(connection, sql!("slots"), params![org.0, name], |row| {
        let of = LimitScope::stored(row.get(2)?);
        let slot =
            LimitSlot { org: columns::org(row, 0)?, name: row.get(1)?, of, key: row.get(3)?, number: row.get(4)? };
        let (run, step, until) = (run_id(row, 5)?, row.get(6)?, time(row, 7)?);
        Ok(LimitSlotRow { slot, run, step, until })
    })
}

pub(super) fn delete_expired_limit_slots(connection: &Connection, until: Timestamp) -> Attempted<()> {
    connection.prepare_cached(sql!("slots_forget"))?.execute(params![until.0])?;
    Ok(())
}

pub(super) fn ensure_type(
    connection: &Connection,
    row: &TypeRow,
    definition: Option<&StoredDefinition>,
) -> Attempted<()> {
    write_type(connection, sql!("type_insert"), row)?;
    if let Some(definition) = definition {
        super::catalog::put_definition(connection, row.org, definition)?;
    }
    Ok(())
}

pub(super) fn put_type(connection: &Connection, row: &TypeRow) -> Attempted<()> {
    write_type(connection, sql!("type_put"), row)
}

fn write_type(connection: &Connection, statement: &str, row: &TypeRow) -> Attempted<()> {
    let (pause, rate) = (row.paused.as_ref(), row.rate.as_ref());
    connection.prepare_cached(statement)?.execute(params![
        row.org.0,
        row.name,
        row.runtime,
        row.description,
        row.enabled,
        pause.map(|pause| pause.at.0),
        pause.map(|pause| &pause.actor),
        pause.map(|pause| &pause.note),
        row.limit,
        row.limit_per_key,
        rate.map(|rate| rate.limit),
        rate.map(|rate| int(rate.per.0)),
        rate.map(|rate| rate.per_key),
        row.created_at.0,
        row.updated_at.0,
    ])?;
    Ok(())
}

pub(super) fn get(connection: &Connection, org: OrgId, name: &str) -> Result<Option<TypeRow>> {
    let found = many(connection, sql!("type"), params![org.0, name], type_row)?;
    Ok(found.into_iter().next())
}

pub(super) fn types(
    connection: &Connection,
    org: OrgId,
    prefix: &str,
    after: Option<&str>,
    count: usize,
) -> Result<Vec<TypeRow>> {
    let from = after.map_or(prefix, |after| after.max(prefix));
    let mut rows = many(connection, sql!("types"), params![org.0, from, after, limit(count)], type_row)?;
    // Names with the same prefix are adjacent in the order of the names.
    let end = rows.iter().position(|row| !row.name.starts_with(prefix)).unwrap_or(rows.len());
    rows.truncate(end);
    Ok(rows)
}

pub(super) fn configured_types(connection: &Connection) -> Result<Vec<TypeRow>> {
    many(connection, sql!("types_configured"), [], type_row)
}

fn type_row(row: &Row<'_>) -> rusqlite::Result<TypeRow> {
    let paused = match time_or_none(row, 5)? {
        None => None,
        Some(at) => Some(TypePause { at, actor: row.get(6)?, note: row.get(7)? }),
    };
    let rate = match row.get(10)? {
        None => None,
        Some(limit) => Some(Rate { limit, per: Span(int_back(row.get(11)?)), per_key: row.get(12)? }),
    };
    Ok(TypeRow {
        org: org(row, 0)?,
        name: row.get(1)?,
        runtime: row.get(2)?,
        description: row.get(3)?,
        enabled: row.get(4)?,
        paused,
        limit: row.get(8)?,
        limit_per_key: row.get(9)?,
        rate,
        created_at: time(row, 13)?,
        updated_at: time(row, 14)?,
    })
}

pub(super) fn put_workers(connection: &Connection, workers: &[WorkerRow], since: Timestamp) -> Attempted<()> {
    let mut put = connection.prepare_cached(sql!("worker_put"))?;
    for row in workers {
        put.execute(params![
            row.org.0,
            row.id,
            row.types,
            row.runtime,
            row.version,
            row.slots,
            row.first_seen.0,
            row.last_seen.0,
        ])?;
    }
    connection.prepare_cached(sql!("workers_forget"))?.execute([since.0])?;
    Ok(())
}

pub(super) fn workers(connection: &Connection) -> Result<Vec<WorkerRow>> {
    many(connection, sql!("workers"), [], |row| {
        Ok(WorkerRow {
            org: org(row, 0)?,
            id: row.get(1)?,
            types: row.get(2)?,
            runtime: row.get(3)?,
            version: row.get(4)?,
            slots: row.get(5)?,
            first_seen: time(row, 6)?,
            last_seen: time(row, 7)?,
        })
    })
}
