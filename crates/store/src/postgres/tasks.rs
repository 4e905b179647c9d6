//! Ready tasks of evicted runs, limit slots, task types and workers.
//!
//! The rows of `ready` are written and removed with the records of their runs. This module only reads them, always in
//! the order of the primary key.

use super::catalog;
use super::columns::{
    Attempted, EscapedText, Id, count, get, int, limit, number, number_or_none, org, org_of, run_id, sql, text,
    text_or_none, time, time_or_none,
};
use super::session::Session;
use crate::rows::{
    LimitScope, LimitSlot, LimitSlotRow, QueueKey, QueuePosition, Rate, StoredDefinition, TypePause, TypeRow, WorkerRow,
};
use kernel::{OrgId, Span, Timestamp};
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub(super) async fn key_queues(
    session: &Session,
    after: Option<&QueueKey>,
    most: usize,
) -> Attempted<Vec<(QueueKey, u64)>> {
    let (from, name, key) = after.map_or((i32::MIN, "", ""), |queue| (org_of(queue.org), &*queue.name, &*queue.key));
    let params: [&(dyn ToSql + Sync); 4] = [&from, &EscapedText::of(name), &EscapedText::of(key), &limit(most)];
    let rows = session.query(sql!("ready_queues"), &params).await?;
    let read =
        |row: &Row| Ok((QueueKey { org: org(row, 0)?, name: text(row, 1)?, key: text(row, 2)? }, count(row, 3)?));
    rows.iter().map(read).collect()
}

pub(super) async fn ready_types(session: &Session) -> Attempted<Vec<(OrgId, String)>> {
    let rows = session.query(sql!("postgres/ready_types"), &[]).await?;
    rows.iter().map(|row| Ok((org(row, 0)?, text(row, 1)?))).collect()
}

pub(super) async fn ready_counts(session: &Session) -> Attempted<Vec<(OrgId, String, u64)>> {
    let rows = session.query(sql!("ready_counts"), &[]).await?;
    rows.iter().map(|row| Ok((org(row, 0)?, text(row, 1)?, count(row, 2)?))).collect()
}

pub(super) async fn ready_keys(
    session: &Session,
    org: OrgId,
    name: &str,
    after: Option<&str>,
    most: usize,
) -> Attempted<Vec<String>> {
    let params: [&(dyn ToSql + Sync); 4] =
        [&org_of(org), &EscapedText::of(name), &EscapedText::maybe(after), &limit(most)];
    session.query(sql!("postgres/ready_keys"), &params).await?.iter().map(|row| text(row, 0)).collect()
}

pub(super) async fn ready(
    session: &Session,
    queue: &QueueKey,
    after: Option<QueuePosition>,
    most: usize,
) -> Attempted<Vec<QueuePosition>> {
    let (priority, run, step) =
        after.map_or((-1, Id([0; 16]), -1), |at| (i64::from(at.priority), Id(at.run.0), i64::from(at.step)));
    let (name, key) = (EscapedText::of(&queue.name), EscapedText::of(&queue.key));
    let params: [&(dyn ToSql + Sync); 7] = [&org_of(queue.org), &name, &key, &priority, &run, &step, &limit(most)];
    let rows = session.query(sql!("ready"), &params).await?;
    rows.iter()
        .map(|row| Ok(QueuePosition { priority: number(row, 0)?, run: run_id(row, 1)?, step: number(row, 2)? }))
        .collect()
}

pub(super) async fn limit_slots(session: &Session, org: OrgId, name: &str) -> Attempted<Vec<LimitSlotRow>> {
    let rows = session.query(sql!("slots"), &[&org_of(org), &EscapedText::of(name)]).await?;
    let read = |row: &Row| {
        let of = LimitScope::stored(get(row, 2)?);
        let slot = LimitSlot {
            org: super::columns::org(row, 0)?,
            name: text(row, 1)?,
            of,
            key: text(row, 3)?,
            number: number(row, 4)?,
        };
        let (run, step, until) = (run_id(row, 5)?, number(row, 6)?, time(row, 7)?);
        Ok(LimitSlotRow { slot, run, step, until })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn delete_expired_limit_slots(session: &Session, until: Timestamp) -> Attempted<()> {
    session.execute(sql!("slots_forget"), &[&until.0]).await.map(drop)
}

pub(super) async fn ensure_type(
    session: &Session,
    row: &TypeRow,
    definition: Option<&StoredDefinition>,
) -> Attempted<()> {
    write_type(session, sql!("type_insert"), row).await?;
    match definition {
        Some(definition) => catalog::put_definition(session, row.org, definition).await,
        None => Ok(()),
    }
}

pub(super) async fn put_type(session: &Session, row: &TypeRow) -> Attempted<()> {
    write_type(session, sql!("type_put"), row).await
}

async fn write_type(session: &Session, statement: &'static str, row: &TypeRow) -> Attempted<()> {
    let (pause, rate) = (row.paused.as_ref(), row.rate.as_ref());
    let params: [&(dyn ToSql + Sync); 15] = [
        &org_of(row.org),
        &EscapedText::of(&row.name),
        &EscapedText::maybe(row.runtime.as_deref()),
        &EscapedText::maybe(row.description.as_deref()),
        &row.enabled,
        &pause.map(|pause| pause.at.0),
        &pause.map(|pause| EscapedText::of(&pause.actor)),
        &pause.map(|pause| EscapedText::of(&pause.note)),
        &row.limit.map(i64::from),
        &row.limit_per_key.map(i64::from),
        &rate.map(|rate| i64::from(rate.limit)),
        &rate.map(|rate| int(rate.per.0)),
        &rate.map(|rate| rate.per_key),
        &row.created_at.0,
        &row.updated_at.0,
    ];
    session.execute(statement, &params).await.map(drop)
}

pub(super) async fn task_type(session: &Session, org: OrgId, name: &str) -> Attempted<Option<TypeRow>> {
    let found = session.first(sql!("type"), &[&org_of(org), &EscapedText::of(name)]).await?;
    found.as_ref().map(type_row).transpose()
}

pub(super) async fn types(
    session: &Session,
    org: OrgId,
    prefix: &str,
    after: Option<&str>,
    most: usize,
) -> Attempted<Vec<TypeRow>> {
    let from = after.map_or(prefix, |after| after.max(prefix));
    let params: [&(dyn ToSql + Sync); 4] =
        [&org_of(org), &EscapedText::of(from), &EscapedText::maybe(after), &limit(most)];
    let rows = session.query(sql!("types"), &params).await?;
    let mut rows: Vec<TypeRow> = rows.iter().map(type_row).collect::<Attempted<_>>()?;
    // Names with the same prefix are adjacent in the order of the names.
    let end = rows.iter().position(|row| !row.name.starts_with(prefix)).unwrap_or(rows.len());
    rows.truncate(end);
    Ok(rows)
}

pub(super) async fn configured_types(session: &Session) -> Attempted<Vec<TypeRow>> {
    session.query(sql!("types_configured"), &[]).await?.iter().map(type_row).collect()
}

fn type_row(row: &Row) -> Attempted<TypeRow> {
    let paused = match time_or_none(row, 5)? {
        None => None,
        Some(at) => Some(TypePause { at, actor: text(row, 6)?, note: text(row, 7)? }),
    };
    let rate = match number_or_none(row, 10)? {
        None => None,
        Some(limit) => Some(Rate { limit, per: Span(count(row, 11)?), per_key: get(row, 12)? }),
    };
    Ok(TypeRow {
        org: org(row, 0)?,
        name: text(row, 1)?,
        runtime: text_or_none(row, 2)?,
        description: text_or_none(row, 3)?,
        enabled: get(row, 4)?,
        paused,
        limit: number_or_none(row, 8)?,
        limit_per_key: number_or_none(row, 9)?,
        rate,
        created_at: time(row, 13)?,
        updated_at: time(row, 14)?,
    })
}

pub(super) async fn put_workers(session: &Session, workers: &[WorkerRow], since: Timestamp) -> Attempted<()> {
    // If a worker is in the list twice, the last row wins.
    let rows: BTreeMap<(OrgId, &str), &WorkerRow> = workers.iter().map(|row| ((row.org, &*row.id), row)).collect();
    let rows: Vec<&WorkerRow> = rows.into_values().collect();
    fn list<T>(rows: &[&WorkerRow], column: impl Fn(&WorkerRow) -> T) -> Vec<T> {
        rows.iter().map(|row| column(row)).collect()
    }
    if !rows.is_empty() {
        let params: [&(dyn ToSql + Sync); 8] = [
            &list(&rows, |row| org_of(row.org)),
            &list(&rows, |row| EscapedText::of(&row.id)),
            &list(&rows, |row| EscapedText::of(&row.types)),
            &list(&rows, |row| EscapedText::maybe(row.runtime.as_deref())),
            &list(&rows, |row| EscapedText::maybe(row.version.as_deref())),
            &list(&rows, |row| row.slots.map(i64::from)),
            &list(&rows, |row| row.first_seen.0),
            &list(&rows, |row| row.last_seen.0),
        ];
        session.execute(sql!("postgres/workers_put"), &params).await?;
    }
    session.execute(sql!("workers_forget"), &[&since.0]).await.map(drop)
}

pub(super) async fn workers(session: &Session) -> Attempted<Vec<WorkerRow>> {
    let read = |row: &Row| {
        Ok(WorkerRow {
            org: org(row, 0)?,
            id: text(row, 1)?,
            types: text(row, 2)?,
            runtime: text_or_none(row, 3)?,
            version: text_or_none(row, 4)?,
            slots: number_or_none(row, 5)?,
            first_seen: time(row, 6)?,
            last_seen: time(row, 7)?,
        })
    };
    session.query(sql!("workers"), &[]).await?.iter().map(read).collect()
}
