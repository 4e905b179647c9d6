//! Timers and waits, runs of concurrency groups, paused workflows, and undelivered notifications.

use super::columns::{
    Attempted, EscapedText, Id, concurrency_group, get, id, limit, number, org, org_of, run_id, sql, text, time,
};
use super::session::Session;
use crate::rows::{GroupedRun, NotificationKey, NotificationRow, Timer, Wait, WorkflowPause};
use kernel::{OrgId, RunId, Timestamp, WorkflowId};
use tokio_postgres::Row;

pub(super) async fn timers(
    session: &Session,
    until: Timestamp,
    after: Option<Timer>,
    count: usize,
) -> Attempted<Vec<Timer>> {
    let after = after.unwrap_or(Timer::FIRST);
    let (org_after, run_after) = (org_of(after.org), Id(after.run.0));
    let rows =
        session.query(sql!("timers_due"), &[&until.0, &after.at.0, &org_after, &run_after, &limit(count)]).await?;
    rows.iter().map(|row| Ok(Timer { at: time(row, 0)?, org: org(row, 1)?, run: run_id(row, 2)? })).collect()
}

/// The time that a statement returns, if it returns one.
pub(super) async fn earliest(session: &Session, statement: &'static str) -> Attempted<Option<Timestamp>> {
    let found = session.first(statement, &[]).await?;
    let at: Option<i64> = found.map_or(Ok(None), |row| get(&row, 0))?;
    Ok(at.map(Timestamp))
}

pub(super) async fn wait(session: &Session, token_hash: [u8; 32]) -> Attempted<Option<Wait>> {
    let found = session.first(sql!("wait"), &[&&token_hash[..]]).await?;
    let read = |row: &Row| {
        let (org, run, step) = (org(row, 0)?, run_id(row, 1)?, number(row, 2)?);
        Ok(Wait { org, run, step, token_hash, kind: text(row, 3)? })
    };
    found.as_ref().map(read).transpose()
}

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

pub(super) async fn notifications(
    session: &Session,
    after: Option<NotificationKey>,
    count: usize,
) -> Attempted<Vec<NotificationRow>> {
    let (org, run, number) =
        after.map_or((i32::MIN, Id([0; 16]), -1), |(org, run, number)| (org_of(org), Id(run.0), i64::from(number)));
    let rows = session.query(sql!("notifications"), &[&org, &run, &number, &limit(count)]).await?;
    rows.iter().map(notification_row).collect()
}

pub(super) async fn run_notifications(session: &Session, org: OrgId, run: RunId) -> Attempted<Vec<NotificationRow>> {
    session
        .query(sql!("notifications_of_run"), &[&org_of(org), &Id(run.0)])
        .await?
        .iter()
        .map(notification_row)
        .collect()
}

pub(super) async fn record_notification_error(session: &Session, notification: &NotificationRow) -> Attempted<()> {
    let (error, run, number) =
        (EscapedText::of(&notification.error), Id(notification.run.0), i64::from(notification.number));
    session.execute(sql!("notification_error"), &[&error, &org_of(notification.org), &run, &number]).await.map(drop)
}

fn notification_row(row: &Row) -> Attempted<NotificationRow> {
    Ok(NotificationRow { org: org(row, 0)?, run: run_id(row, 1)?, number: number(row, 2)?, error: text(row, 3)? })
}
