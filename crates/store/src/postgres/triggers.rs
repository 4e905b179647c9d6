//! Triggers and their log. Changes are made under the lock of the [`catalog`](super::catalog).
//!
//! The checks before a change are in [`catalog_rules`](crate::catalog_rules).

use super::batch_columns::delivery_params;
use super::columns::{
    Attempted, EscapedText, Id, count, get, id, int, limit, named, number, org, org_of, sql, text, text_or_none, time,
    time_or_none,
};
use super::session::Session;
use crate::triggers::*;
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Timestamp, TriggerId, WorkflowId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// True if the trigger existed. Its row is deleted first, so that no other transaction adds to its log.
pub(super) async fn delete(session: &Session, org: OrgId, id: TriggerId) -> Attempted<bool> {
    let key: [&(dyn ToSql + Sync); 2] = [&org_of(org), &Id(id.0)];
    let existed = session.execute(sql!("trigger_delete"), &key).await? > 0;
    session.execute(sql!("trigger_requests_delete"), &key).await?;
    session.execute(sql!("trigger_deliveries_delete"), &key).await?;
    Ok(existed)
}

/// Deletes every trigger of a workflow that is being deleted.
pub(super) async fn delete_of_workflow(session: &Session, org: OrgId, workflow: WorkflowId) -> Attempted<()> {
    for row in session.query(sql!("trigger_ids_of_workflow"), &[&org_of(org), &Id(workflow.0)]).await? {
        delete(session, org, TriggerId(id(&row, 0)?)).await?;
    }
    Ok(())
}

/// False if nothing was written: the trigger was deleted, or changed after its fire times were computed.
pub(super) async fn log(session: &Session, log: &TriggerLog) -> Attempted<bool> {
    let (org, trigger) = (org_of(log.org), Id(log.trigger.0));
    let locked = session.query(sql!("postgres/triggers_lock"), &[&vec![org], &vec![trigger]]).await?;
    if locked.is_empty() {
        return Ok(false);
    }
    if let Some(ScheduleAdvance { revision, cursor, next_at }) = log.advance {
        let (cursor, next_at) = (cursor.map(|at| at.0), next_at.map(|at| at.0));
        let params: [&(dyn ToSql + Sync); 5] = [&cursor, &next_at, &org, &trigger, &i64::from(revision)];
        if session.execute(sql!("trigger_advance"), &params).await? == 0 {
            return Ok(false);
        }
    }
    for row in &log.rows {
        let params = delivery_params(row);
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| -> &(dyn ToSql + Sync) { &**param }).collect();
        session.execute(sql!("postgres/delivery_put"), &params).await?;
    }
    Ok(true)
}

pub(super) async fn insert(session: &Session, row: &TriggerRow) -> Attempted<()> {
    let params: [&(dyn ToSql + Sync); 17] = [
        &org_of(row.org),
        &Id(row.id.0),
        &EscapedText::of(&row.name),
        &row.kind.as_str(),
        &Id(row.workflow.0),
        &row.enabled,
        &EscapedText::maybe(row.note.as_deref()),
        &EscapedText::of(&row.config),
        &EscapedText::maybe(row.path.as_deref()),
        &row.is_owned,
        &i64::from(row.revision),
        &row.cursor.map(|at| at.0),
        &row.next_at.map(|at| at.0),
        &row.created_at.0,
        &row.updated_at.0,
        &row.last_run_at.map(|at| at.0),
        &row.last_run.map(|run| Id(run.0)),
    ];
    session.execute(sql!("trigger_insert"), &params).await.map(drop)
}

pub(super) async fn update(session: &Session, row: &TriggerRow, restarts: bool) -> Attempted<bool> {
    let params: [&(dyn ToSql + Sync); 13] = [
        &i64::from(row.revision),
        &EscapedText::of(&row.name),
        &Id(row.workflow.0),
        &row.enabled,
        &EscapedText::maybe(row.note.as_deref()),
        &EscapedText::of(&row.config),
        &EscapedText::maybe(row.path.as_deref()),
        &row.updated_at.0,
        &restarts,
        &row.cursor.map(|at| at.0),
        &row.next_at.map(|at| at.0),
        &org_of(row.org),
        &Id(row.id.0),
    ];
    Ok(session.execute(sql!("trigger_update"), &params).await? > 0)
}

pub(super) async fn trigger(session: &Session, org: OrgId, id: TriggerId) -> Attempted<Option<TriggerRow>> {
    session.first(sql!("trigger"), &[&org_of(org), &Id(id.0)]).await?.as_ref().map(trigger_row).transpose()
}

pub(super) async fn by_path(session: &Session, path: &str) -> Attempted<Option<TriggerRow>> {
    session.first(sql!("trigger_by_path"), &[&EscapedText::of(path)]).await?.as_ref().map(trigger_row).transpose()
}

pub(super) async fn owned_by(session: &Session, org: OrgId, workflow: WorkflowId) -> Attempted<Option<TriggerRow>> {
    let found = session.first(sql!("postgres/trigger_owned"), &[&org_of(org), &Id(workflow.0)]).await?;
    found.as_ref().map(trigger_row).transpose()
}

pub(super) async fn list(session: &Session, org: OrgId, filter: &TriggerFilter) -> Attempted<Vec<TriggerRow>> {
    let last = match filter.before {
        None => Some(Id::LAST),
        Some(before) => Id::before(before.0),
    };
    let Some(last) = last else { return Ok(Vec::new()) };
    let (kind, workflow) = (filter.kind.map(|kind| kind.as_str()), filter.workflow.map(|workflow| Id(workflow.0)));
    let params: [&(dyn ToSql + Sync); 5] = [&org_of(org), &last, &kind, &workflow, &limit(filter.limit)];
    session.query(sql!("postgres/triggers"), &params).await?.iter().map(trigger_row).collect()
}

pub(super) async fn due(session: &Session, until: Timestamp, most: usize) -> Attempted<Vec<TriggerRow>> {
    session.query(sql!("triggers_due"), &[&until.0, &limit(most)]).await?.iter().map(trigger_row).collect()
}

pub(super) async fn deliveries(
    session: &Session,
    (org, trigger): (OrgId, TriggerId),
    before: Option<u64>,
    most: usize,
) -> Attempted<Vec<DeliveryRow>> {
    let before = before.map_or(i64::MAX, int);
    let params: [&(dyn ToSql + Sync); 4] = [&org_of(org), &Id(trigger.0), &before, &limit(most)];
    session.query(sql!("postgres/deliveries"), &params).await?.iter().map(delivery_row).collect()
}

pub(super) async fn delivery(
    session: &Session,
    (org, trigger): (OrgId, TriggerId),
    id: &str,
) -> Attempted<Option<DeliveryRow>> {
    let found = session.first(sql!("delivery"), &[&org_of(org), &Id(trigger.0), &EscapedText::of(id)]).await?;
    found.as_ref().map(delivery_row).transpose()
}

pub(super) async fn queued(
    session: &Session,
    of: Option<(OrgId, TriggerId)>,
    most: usize,
) -> Attempted<Vec<DeliveryRow>> {
    let rows = match of {
        None => session.query(sql!("postgres/deliveries_queued"), &[&limit(most)]).await?,
        Some((org, trigger)) => {
            let params: [&(dyn ToSql + Sync); 3] = [&org_of(org), &Id(trigger.0), &limit(most)];
            session.query(sql!("postgres/deliveries_queued_of"), &params).await?
        }
    };
    rows.iter().map(delivery_row).collect()
}

fn trigger_row(row: &Row) -> Attempted<TriggerRow> {
    Ok(TriggerRow {
        org: org(row, 0)?,
        id: TriggerId(id(row, 1)?),
        name: text(row, 2)?,
        kind: named(row, 3, TriggerKind::parse)?,
        workflow: WorkflowId(id(row, 4)?),
        enabled: get(row, 5)?,
        note: text_or_none(row, 6)?,
        config: text(row, 7)?,
        path: text_or_none(row, 8)?,
        is_owned: get(row, 9)?,
        revision: number(row, 10)?,
        cursor: time_or_none(row, 11)?,
        next_at: time_or_none(row, 12)?,
        created_at: time(row, 13)?,
        updated_at: time(row, 14)?,
        last_run_at: time_or_none(row, 15)?,
        last_run: get::<Option<Id>>(row, 16)?.map(|run| RunId(run.0)),
    })
}

fn delivery_row(row: &Row) -> Attempted<DeliveryRow> {
    Ok(DeliveryRow {
        org: org(row, 0)?,
        trigger: TriggerId(id(row, 1)?),
        seq: count(row, 2)?,
        id: text(row, 3)?,
        at: time(row, 4)?,
        outcome: named(row, 5, DeliveryOutcome::parse)?,
        reason: text(row, 6)?,
        run: get::<Option<Id>>(row, 7)?.map(|run| RunId(run.0)),
        nominal: time_or_none(row, 8)?,
        request: get::<Option<&[u8]>>(row, 9)?.map(Bytes::copy_from_slice),
    })
}
