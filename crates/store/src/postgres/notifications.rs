//! Notifications of the ends of runs that are not delivered yet.

use super::columns::{Attempted, EscapedText, Id, limit, number, org, org_of, run_id, sql, text};
use super::session::Session;
use crate::rows::{NotificationKey, NotificationRow};
use kernel::{OrgId, RunId};
use tokio_postgres::Row;

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
