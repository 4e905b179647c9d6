//! Triggers and their log. Writes run inside a transaction of the single writer.
//!
//! The checks before a change are in [`catalog_rules`](crate::catalog_rules).

use super::catalog::value;
use super::columns::{AFTER_EVERY_ID, count, int, limit, named, org, run_id, sql, time, time_or_none};
use super::errors::{Attempted, on_read};
use super::lists::many;
use crate::Result;
use crate::triggers::*;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Timestamp, TriggerId, WorkflowId};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

/// True if the trigger existed.
pub(super) fn delete(connection: &Connection, org: OrgId, id: TriggerId) -> Attempted<bool> {
    let key = params![org.0, id.0];
    connection.prepare_cached(sql!("trigger_requests_delete"))?.execute(key)?;
    connection.prepare_cached(sql!("trigger_deliveries_delete"))?.execute(key)?;
    Ok(connection.prepare_cached(sql!("trigger_delete"))?.execute(key)? > 0)
}

/// Deletes every trigger of a workflow that is being deleted.
pub(super) fn delete_of_workflow(connection: &Connection, org: OrgId, workflow: WorkflowId) -> Attempted<()> {
    let mut statement = connection.prepare_cached(sql!("trigger_ids_of_workflow"))?;
    let ids: Vec<[u8; 16]> =
        statement.query_map(params![org.0, workflow.0], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in ids {
        delete(connection, org, TriggerId(id))?;
    }
    Ok(())
}

/// False if nothing was written: the trigger was deleted, or changed after its fire times were computed.
pub(super) fn log(connection: &Connection, log: &TriggerLog) -> Attempted<bool> {
    let (org, trigger) = (log.org.0, log.trigger.0);
    if let Some(to) = log.advance {
        if !advance(connection, (log.org, log.trigger), to)? {
            return Ok(false);
        }
    } else if !connection.prepare_cached(sql!("trigger"))?.exists(params![org, trigger])? {
        return Ok(false);
    }
    for row in &log.rows {
        put_delivery(connection, row)?;
    }
    Ok(true)
}

/// Advances a schedule; false if the trigger was deleted or changed meanwhile.
pub(super) fn advance(
    connection: &Connection,
    (org, trigger): (OrgId, TriggerId),
    to: ScheduleAdvance,
) -> Attempted<bool> {
    let ScheduleAdvance { revision, cursor, next_at } = to;
    let row = params![cursor.map(|at| at.0), next_at.map(|at| at.0), org.0, trigger.0, revision];
    Ok(connection.prepare_cached(sql!("trigger_advance"))?.execute(row)? > 0)
}

/// Writes a line of the log and deletes the oldest lines. Does nothing if the trigger was deleted, or if the line says
/// already that a run was started.
pub(super) fn put_delivery(connection: &Connection, row: &DeliveryRow) -> Attempted<()> {
    let (org, trigger) = (row.org.0, row.trigger.0);
    let (run, nominal) = (row.run.map(|run| run.0), row.nominal.map(|at| at.0));
    let line = params![org, trigger, row.id, row.at.0, row.outcome.as_str(), row.reason, run, nominal];
    let written: Option<i64> = value(connection, sql!("delivery_put"), line)?;
    let Some(seq) = written else { return Ok(()) };
    if let Some(request) = &row.request {
        let body = params![org, trigger, seq, &**request];
        connection.prepare_cached(sql!("delivery_request_put"))?.execute(body)?;
        let old = params![org, trigger, seq - int(REQUESTS_KEPT)];
        connection.prepare_cached(sql!("delivery_request_prune"))?.execute(old)?;
    }
    let old = params![org, trigger, seq - int(DELIVERIES_KEPT)];
    connection.prepare_cached(sql!("delivery_prune"))?.execute(old)?;
    if let Some(run) = row.run {
        let ran = params![run.0, row.at.0, org, trigger];
        connection.prepare_cached(sql!("trigger_ran"))?.execute(ran)?;
    }
    Ok(())
}

pub(super) fn insert(connection: &Connection, row: &TriggerRow) -> Attempted<()> {
    connection.prepare_cached(sql!("trigger_insert"))?.execute(params![
        row.org.0,
        row.id.0,
        row.name,
        row.kind.as_str(),
        row.workflow.0,
        row.enabled,
        row.note,
        row.config,
        row.path,
        row.is_owned,
        row.revision,
        row.cursor.map(|at| at.0),
        row.next_at.map(|at| at.0),
        row.created_at.0,
        row.updated_at.0,
        row.last_run_at.map(|at| at.0),
        row.last_run.map(|run| run.0),
    ])?;
    Ok(())
}

pub(super) fn update(connection: &Connection, row: &TriggerRow, restarts: bool) -> Attempted<bool> {
    let changed = connection.prepare_cached(sql!("trigger_update"))?.execute(params![
        row.revision,
        row.name,
        row.workflow.0,
        row.enabled,
        row.note,
        row.config,
        row.path,
        row.updated_at.0,
        restarts,
        row.cursor.map(|at| at.0),
        row.next_at.map(|at| at.0),
        row.org.0,
        row.id.0,
    ])?;
    Ok(changed > 0)
}

pub(super) fn get(connection: &Connection, org: OrgId, id: TriggerId) -> Result<Option<TriggerRow>> {
    one(connection, sql!("trigger"), params![org.0, id.0])
}

pub(super) fn by_path(connection: &Connection, path: &str) -> Result<Option<TriggerRow>> {
    one(connection, sql!("trigger_by_path"), [path])
}

pub(super) fn owned_by(connection: &Connection, org: OrgId, workflow: WorkflowId) -> Result<Option<TriggerRow>> {
    one(connection, sql!("trigger_owned"), params![org.0, workflow.0])
}

fn one(connection: &Connection, statement: &str, params: impl Params) -> Result<Option<TriggerRow>> {
    let mut statement = connection.prepare_cached(statement).map_err(on_read)?;
    statement.query_row(params, trigger_row).optional().map_err(on_read)
}

pub(super) fn list(connection: &Connection, org: OrgId, filter: &TriggerFilter) -> Result<Vec<TriggerRow>> {
    let before: &[u8] = filter.before.as_ref().map_or(&AFTER_EVERY_ID, |id| &id.0);
    let (kind, workflow) = (filter.kind.map(|kind| kind.as_str()), filter.workflow.map(|workflow| workflow.0));
    many(connection, sql!("triggers"), params![org.0, before, kind, workflow, limit(filter.limit)], trigger_row)
}

pub(super) fn due(connection: &Connection, until: Timestamp, count: usize) -> Result<Vec<TriggerRow>> {
    many(connection, sql!("triggers_due"), params![until.0, limit(count)], trigger_row)
}

pub(super) fn next(connection: &Connection) -> Result<Option<Timestamp>> {
    let at: Option<Option<i64>> = value(connection, sql!("trigger_next"), []).map_err(on_read)?;
    Ok(at.flatten().map(Timestamp))
}

pub(super) fn deliveries(
    connection: &Connection,
    (org, trigger): (OrgId, TriggerId),
    before: Option<u64>,
    count: usize,
) -> Result<Vec<DeliveryRow>> {
    let before = before.map_or(i64::MAX, int);
    many(connection, sql!("deliveries"), params![org.0, trigger.0, before, limit(count)], delivery_row)
}

pub(super) fn delivery(
    connection: &Connection,
    (org, trigger): (OrgId, TriggerId),
    id: &str,
) -> Result<Option<DeliveryRow>> {
    let mut statement = connection.prepare_cached(sql!("delivery")).map_err(on_read)?;
    statement.query_row(params![org.0, trigger.0, id], delivery_row).optional().map_err(on_read)
}

pub(super) fn queued(
    connection: &Connection,
    of: Option<(OrgId, TriggerId)>,
    count: usize,
) -> Result<Vec<DeliveryRow>> {
    match of {
        None => many(connection, sql!("deliveries_queued"), [limit(count)], delivery_row),
        Some((org, trigger)) => {
            let params = params![org.0, trigger.0, limit(count)];
            many(connection, sql!("deliveries_queued_of"), params, delivery_row)
        }
    }
}

fn trigger_row(row: &Row<'_>) -> rusqlite::Result<TriggerRow> {
    Ok(TriggerRow {
        org: org(row, 0)?,
        id: TriggerId(row.get(1)?),
        name: row.get(2)?,
        kind: named(row, 3, TriggerKind::parse)?,
        workflow: WorkflowId(row.get(4)?),
        enabled: row.get(5)?,
        note: row.get(6)?,
        config: row.get(7)?,
        path: row.get(8)?,
        is_owned: row.get(9)?,
        revision: row.get(10)?,
        cursor: time_or_none(row, 11)?,
        next_at: time_or_none(row, 12)?,
        created_at: time(row, 13)?,
        updated_at: time(row, 14)?,
        last_run_at: time_or_none(row, 15)?,
        last_run: row.get::<_, Option<[u8; 16]>>(16)?.map(RunId),
    })
}

fn delivery_row(row: &Row<'_>) -> rusqlite::Result<DeliveryRow> {
    let is_run = row.get_ref(7)? != rusqlite::types::ValueRef::Null;
    Ok(DeliveryRow {
        org: org(row, 0)?,
        trigger: TriggerId(row.get(1)?),
        seq: count(row, 2)?,
        id: row.get(3)?,
        at: time(row, 4)?,
        outcome: named(row, 5, DeliveryOutcome::parse)?,
        reason: row.get(6)?,
        run: if is_run { Some(run_id(row, 7)?) } else { None },
        nominal: time_or_none(row, 8)?,
        request: row.get::<_, Option<Vec<u8>>>(9)?.map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::super::catalog::Rows;
    use super::super::immediate;
    use super::*;
    use crate::catalog_rules::put_owned_trigger;
    use crate::memory::MemoryStore;

    const ORG: OrgId = OrgId::DEFAULT;
    const WORKFLOW: WorkflowId = WorkflowId([1; 16]);

    fn own(id: u8, kind: TriggerKind, config: &str, path: Option<&str>) -> TriggerRow {
        TriggerRow {
            org: ORG,
            id: TriggerId([id; 16]),
            name: "own".into(),
            kind,
            workflow: WORKFLOW,
            enabled: true,
            note: None,
            config: config.into(),
            path: path.map(str::to_owned),
            is_owned: true,
            revision: 1,
            cursor: Some(Timestamp(i64::from(id))),
            next_at: Some(Timestamp(i64::from(id) + 1)),
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            last_run_at: None,
            last_run: None,
        }
    }

    fn put_owned(c: &Connection, org: OrgId, workflow: WorkflowId, wanted: Option<&TriggerRow>) -> Attempted<bool> {
        immediate(put_owned_trigger(&Rows(c), org, workflow, wanted))
    }

    /// Checks SQLite and the memory store at once.
    #[test]
    fn an_owned_trigger_changes_with_its_workflow() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, sqlite) = (MemoryStore::new(), SqliteStore::open(&folder.path().join("db")).unwrap());
        let now = |wanted: Option<&TriggerRow>| {
            let put = sqlite.inner.writer().unwrap().transact(|c| put_owned(c, ORG, WORKFLOW, wanted)).unwrap();
            assert_eq!(memory.put_owned_trigger(ORG, WORKFLOW, wanted), put);
            let of_sqlite = sqlite.inner.readers.with(|c| owned_by(c, ORG, WORKFLOW)).unwrap();
            assert_eq!(memory.owned_trigger_now(ORG, WORKFLOW), of_sqlite);
            (put, of_sqlite)
        };
        let schedule = |id, config| own(id, TriggerKind::Schedule, config, None);
        assert_eq!(now(None), (true, None));
        assert_eq!(now(Some(&schedule(1, "a"))), (true, Some(schedule(1, "a"))));
        assert_eq!(
            now(Some(&schedule(2, "a"))),
            (true, Some(schedule(1, "a"))),
            "an unchanged trigger keeps its fire times"
        );
        let changed = now(Some(&schedule(3, "b"))).1.unwrap();
        assert_eq!((changed.id, changed.revision, changed.cursor), (TriggerId([1; 16]), 2, Some(Timestamp(3))));
        let other = own(9, TriggerKind::Webhook, "w", Some("taken"));
        let other = TriggerRow { workflow: WorkflowId([2; 16]), ..other };
        sqlite.inner.writer().unwrap().transact(|c| put_owned(c, ORG, other.workflow, Some(&other))).unwrap();
        memory.put_owned_trigger(ORG, other.workflow, Some(&other));
        let taken = own(4, TriggerKind::Webhook, "w", Some("taken"));
        assert_eq!(now(Some(&taken)), (false, Some(changed)), "a taken path must not delete the old trigger");
        let hook = own(4, TriggerKind::Webhook, "w", Some("free"));
        assert_eq!(now(Some(&hook)), (true, Some(hook)), "a trigger of another kind replaces the old one");
        assert_eq!(now(None), (true, None));
        let gone = |c: &Connection| delete_of_workflow(c, ORG, other.workflow);
        sqlite.inner.writer().unwrap().transact(gone).unwrap();
        assert_eq!(sqlite.inner.readers.with(|c| by_path(c, "taken")), Ok(None));
    }
}
