//! Notifications of the ends of runs that are not delivered yet.

use super::columns::{Attempted, EscapedText, Id, count, int, limit, org, org_of, run_id, sql, text};
use super::session::Session;
use crate::rows::{NotificationKey, NotificationRow};
use kernel::{OrgId, RunId};
use tokio_postgres::Row;

pub(super) async fn notifications(
    session: &Session,
    after: Option<NotificationKey>,
    page: usize,
) -> Attempted<Vec<NotificationRow>> {
    let (org, run, number) =
        after.map_or((i32::MIN, Id([0; 16]), -1), |(org, run, number)| (org_of(org), Id(run.0), int(number)));
    let rows = session.query(sql!("notifications"), &[&org, &run, &number, &limit(page)]).await?;
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
    let (error, run, number) = (EscapedText::of(&notification.error), Id(notification.run.0), int(notification.number));
    session.execute(sql!("notification_error"), &[&error, &org_of(notification.org), &run, &number]).await.map(drop)
}

fn notification_row(row: &Row) -> Attempted<NotificationRow> {
    Ok(NotificationRow { org: org(row, 0)?, run: run_id(row, 1)?, number: count(row, 2)?, error: text(row, 3)? })
}
