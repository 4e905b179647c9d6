//! What keeps a new run pending: the other runs of its concurrency group, and a paused workflow.

use super::columns::{Attempted, EscapedText, Id, concurrency_group, get, id, org, org_of, run_id, sql, text, time};
use super::session::Session;
use crate::rows::{GroupedRun, WorkflowPause};
use kernel::{OrgId, WorkflowId};
use tokio_postgres::Row;

pub(super) async fn grouped_runs(session: &Session) -> Attempted<Vec<GroupedRun>> {
    let read = |row: &Row| {
        let (workflow, concurrency_group) = (WorkflowId(id(row, 2)?), concurrency_group(row, 3)?);
        Ok(GroupedRun { org: org(row, 0)?, run: run_id(row, 1)?, workflow, concurrency_group, is_queued: get(row, 4)? })
    };
    let rows = session.query(sql!("postgres/runs_in_groups"), &[]).await?;
    let mut runs = rows.iter().map(read).collect::<Attempted<Vec<_>>>()?;
    runs.sort_unstable_by_key(|run| (run.run, run.org));
    Ok(runs)
}

pub(super) async fn pause_workflow(session: &Session, pause: &WorkflowPause) -> Attempted<()> {
    let (actor, note) = (EscapedText::of(&pause.actor), EscapedText::of(&pause.note));
    let workflow = Id(pause.workflow.0);
    let row: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&org_of(pause.org), &workflow, &pause.at.0, &actor, &note];
    session.execute(sql!("workflow_pause_put"), &row).await.map(drop)
}

pub(super) async fn resume_workflow(session: &Session, org: OrgId, workflow: WorkflowId) -> Attempted<()> {
    session.execute(sql!("workflow_pause_delete"), &[&org_of(org), &Id(workflow.0)]).await.map(drop)
}

pub(super) async fn workflow_pause(
    session: &Session,
    org: OrgId,
    workflow: WorkflowId,
) -> Attempted<Option<WorkflowPause>> {
    let found = session.first(sql!("workflow_pause"), &[&org_of(org), &Id(workflow.0)]).await?;
    found.as_ref().map(pause_row).transpose()
}

pub(super) async fn workflow_pauses(session: &Session) -> Attempted<Vec<WorkflowPause>> {
    session.query(sql!("workflow_pauses"), &[]).await?.iter().map(pause_row).collect()
}

fn pause_row(row: &Row) -> Attempted<WorkflowPause> {
    let workflow = WorkflowId(id(row, 1)?);
    Ok(WorkflowPause { org: org(row, 0)?, workflow, at: time(row, 2)?, actor: text(row, 3)?, note: text(row, 4)? })
}
