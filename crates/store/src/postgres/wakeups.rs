//! What wakes a run that is not in memory: its timer, or what one of its steps waits for.

use super::columns::{Attempted, EscapedText, Id, get, limit, number, org, org_of, run_id, sql, text, time};
use super::session::Session;
use crate::rows::{OpenWait, Timer, Wait};
use kernel::run::WaitKind;
use kernel::{OrgId, RunId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

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

pub(super) async fn open_waits(
    session: &Session,
    org: OrgId,
    kind: WaitKind,
    name: &str,
    after: Option<(RunId, u32)>,
    count: usize,
) -> Attempted<Vec<OpenWait>> {
    // No run has the id 0.
    let (run_after, step_after) = after.map_or((Id([0; 16]), -1), |(run, step)| (Id(run.0), i64::from(step)));
    let escaped = EscapedText::of(name);
    let params: [&(dyn ToSql + Sync); 6] =
        [&org_of(org), &kind.as_str(), &escaped, &run_after, &step_after, &limit(count)];
    let rows = session.query(sql!("open_waits"), &params).await?;
    let read = |row: &Row| {
        let (run, step, deadline) = (run_id(row, 0)?, number(row, 1)?, time(row, 2)?);
        Ok(OpenWait { org, kind, name: name.to_owned(), run, step, deadline })
    };
    rows.iter().map(read).collect()
}
