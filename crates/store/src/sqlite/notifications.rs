//! Notifications of the ends of runs that are not delivered yet.

use super::columns::{count, int, limit, org, run_id, sql};
use super::errors::Failure;
use super::lists::many;
use crate::Result;
use crate::rows::{NotificationKey, NotificationRow};
use kernel::{OrgId, RunId};
use rusqlite::{Connection, Row, params};

pub(super) fn notifications(
    connection: &Connection,
    after: Option<NotificationKey>,
    page: usize,
) -> Result<Vec<NotificationRow>> {
    let (org, run, number) = after.map_or((0, [0; 16], -1), |(org, run, number)| (org.0, run.0, int(number)));
    many(connection, sql!("notifications"), params![org, run, number, limit(page)], notification_row)
}

pub(super) fn run_notifications(connection: &Connection, org: OrgId, run: RunId) -> Result<Vec<NotificationRow>> {
    many(connection, sql!("notifications_of_run"), params![org.0, run.0], notification_row)
}

pub(super) fn record_notification_error(
    connection: &Connection,
    notification: &NotificationRow,
) -> std::result::Result<(), Failure> {
    let row = params![notification.error, notification.org.0, notification.run.0, int(notification.number)];
    connection.prepare_cached(sql!("notification_error"))?.execute(row)?;
    Ok(())
}

fn notification_row(row: &Row<'_>) -> rusqlite::Result<NotificationRow> {
    Ok(NotificationRow { org: org(row, 0)?, run: run_id(row, 1)?, number: count(row, 2)?, error: row.get(3)? })
}
