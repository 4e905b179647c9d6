//! What keeps a new run pending: the other runs of its concurrency group, and a paused workflow.

use super::columns::{concurrency_group, org, run_id, sql, time};
use super::errors::Failure;
use super::lists::many;
use crate::Result;
use crate::rows::{GroupedRun, WorkflowPause};
use kernel::{OrgId, WorkflowId};
use rusqlite::{Connection, Row, params};

pub(super) fn grouped_runs(connection: &Connection) -> Result<Vec<GroupedRun>> {
    many(connection, sql!("runs_in_groups"), [], |row| {
        Ok(GroupedRun {
            org: org(row, 0)?,
            run: run_id(row, 1)?,
            workflow: WorkflowId(row.get(2)?),
            concurrency_group: concurrency_group(row, 3)?,
            is_queued: row.get(4)?,
        })
    })
}

pub(super) fn pause_workflow(connection: &Connection, pause: &WorkflowPause) -> std::result::Result<(), Failure> {
    let row = params![pause.org.0, pause.workflow.0, pause.at.0, pause.actor, pause.note];
    connection.prepare_cached(sql!("workflow_pause_put"))?.execute(row)?;
    Ok(())
}

pub(super) fn resume_workflow(
    connection: &Connection,
    org: OrgId,
    workflow: WorkflowId,
) -> std::result::Result<(), Failure> {
    connection.prepare_cached(sql!("workflow_pause_delete"))?.execute(params![org.0, workflow.0])?;
    Ok(())
}

pub(super) fn workflow_pause(
    connection: &Connection,
    org: OrgId,
    workflow: WorkflowId,
) -> Result<Option<WorkflowPause>> {
    let found = many(connection, sql!("workflow_pause"), params![org.0, workflow.0], pause_row)?;
    Ok(found.into_iter().next())
}

pub(super) fn workflow_pauses(connection: &Connection) -> Result<Vec<WorkflowPause>> {
    many(connection, sql!("workflow_pauses"), [], pause_row)
}

fn pause_row(row: &Row<'_>) -> rusqlite::Result<WorkflowPause> {
    let workflow = WorkflowId(row.get(1)?);
    Ok(WorkflowPause { org: org(row, 0)?, workflow, at: time(row, 2)?, actor: row.get(3)?, note: row.get(4)? })
}
