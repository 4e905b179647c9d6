//! Rows of the inbox. A commit answers them itself, with the record that consumes them.

use super::columns::{Attempted, Blob, Id, blob, get, id, limit, named, org, org_of, run_id, sql, time};
use super::session::Session;
use crate::rows::{ConsumedRow, InboxKey, InboxRow};
use bytes::Bytes;
use kernel::inbox::InboxKind;
use kernel::{InboxId, OrgId, RunId, Timestamp};
use tokio_postgres::Row;

pub(super) async fn put(session: &Session, rows: &[InboxRow]) -> Attempted<()> {
    for InboxRow { key: (org, run, id), kind, body, written_at, sender } in rows {
        let (org, run, id, body) = (org_of(*org), Id(run.0), Id(id.0), Blob(body.clone()));
        let sender = sender.map(|sender| Id(sender.0));
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&org, &run, &id, &kind.as_str(), &body, &written_at.0, &sender];
        session.execute(sql!("inbox_insert"), &row).await?;
    }
    Ok(())
}

pub(super) async fn read(
    session: &Session,
    kind: InboxKind,
    after: Option<InboxKey>,
    count: usize,
) -> Attempted<Vec<InboxRow>> {
    let (org, run, id) =
        after.map_or((i32::MIN, Id([0; 16]), Id([0; 16])), |(org, run, id)| (org_of(org), Id(run.0), Id(id.0)));
    let rows = session.query(sql!("inbox"), &[&kind.as_str(), &org, &run, &id, &limit(count)]).await?;
    rows.iter().map(|row| inbox_row(row, kind)).collect()
}

/// The rows of a run that have no answer.
pub(super) async fn of_run(session: &Session, (org, run): (OrgId, RunId), count: usize) -> Attempted<Vec<InboxRow>> {
    let rows = session.query(sql!("inbox_of"), &[&org_of(org), &Id(run.0), &limit(count)]).await?;
    rows.iter().map(|row| inbox_row(row, named(row, 6, InboxKind::parse)?)).collect()
}

fn inbox_row(row: &Row, kind: InboxKind) -> Attempted<InboxRow> {
    let sender: Option<Id> = get(row, 5)?;
    let sender = sender.map(|sender| RunId(sender.0));
    Ok(InboxRow { key: key(row)?, kind, body: blob(row, 3)?, written_at: time(row, 4)?, sender })
}

/// Answers or deletes rows without a record. A row that is gone or has an answer stays as it is.
pub(super) async fn answer(session: &Session, rows: &[ConsumedRow]) -> Attempted<()> {
    for ConsumedRow { key: (org, run, id), answer } in rows {
        let (org, run, id) = (org_of(*org), Id(run.0), Id(id.0));
        match answer {
            Some(answer) => {
                session.execute(sql!("inbox_answer"), &[&Blob(answer.clone()), &org, &run, &id]).await?;
            }
            None => drop(session.execute(sql!("inbox_delete"), &[&org, &run, &id]).await?),
        }
    }
    Ok(())
}

/// In the order of the keys given.
pub(super) async fn take_answers(session: &Session, keys: &[InboxKey]) -> Attempted<Vec<(InboxKey, Bytes)>> {
    let (orgs, runs, ids) = columns(keys.iter().copied());
    let rows = session.query(sql!("postgres/inbox_take"), &[&orgs, &runs, &ids]).await?;
    let mut answers = rows.iter().map(|row| Ok((key(row)?, blob(row, 3)?))).collect::<Attempted<Vec<_>>>()?;
    answers.sort_by_key(|(found, _)| keys.iter().position(|key| key == found));
    Ok(answers)
}

pub(super) async fn delete_answered(session: &Session, before: Timestamp) -> Attempted<()> {
    session.execute(sql!("inbox_forget"), &[&before.0]).await.map(drop)
}

/// Keys as columns.
pub(super) fn columns(keys: impl Iterator<Item = InboxKey>) -> (Vec<i32>, Vec<Id>, Vec<Id>) {
    let (mut orgs, mut runs, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for (org, run, id) in keys {
        orgs.push(org_of(org));
        runs.push(Id(run.0));
        ids.push(Id(id.0));
    }
    (orgs, runs, ids)
}

/// The key in the first three columns.
pub(super) fn key(row: &Row) -> Attempted<InboxKey> {
    Ok((org(row, 0)?, run_id(row, 1)?, InboxId(id(row, 2)?)))
}
