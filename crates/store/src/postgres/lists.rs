//! Pages of runs, newest first.
//!
//! There are four fixed statements, one per useful index, and filters are always bound parameters. The choice of the
//! statement changes the speed, never the result: the random operations of `testkit::conformance` compare all four with
//! a plain filter.

use super::columns::{Attempted, EscapedText, Id, limit, org_of, run_id, run_row, sql};
use super::errors::Failure;
use super::session::{Params, Session};
use crate::Error;
use crate::rows::{ID_LAG, ListedRun, RunFilter, RunRow, UnreadableRow, listed_id};
use kernel::plan::Form;
use kernel::{OrgId, RunId, RunStatus, Timestamp};
use std::collections::HashSet;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Smallest page to read when a filter has more than one label.
const PAGE_MIN: usize = 256;

pub(super) async fn run(session: &Session, org: OrgId, run: RunId) -> Attempted<Option<RunRow>> {
    let found = session.first(sql!("postgres/run"), &[&org_of(org), &Id(run.0)]).await?;
    let row = found.as_ref().map(run_row).transpose()?;
    Ok(row.filter(|row| row.deleted_at.is_none()))
}

pub(super) async fn runs(session: &Session, org: OrgId, filter: &RunFilter) -> Attempted<Vec<ListedRun>> {
    let Some((label, others)) = filter.labels.split_first() else { return list(session, org, filter, None).await };
    // The index of the first label gives the order. The other labels are looked up, one page after another, until there
    // are enough runs.
    let (mut rows, mut filter) = (Vec::new(), filter.clone());
    let wanted = filter.limit;
    filter.limit = wanted.max(PAGE_MIN);
    loop {
        let mut page = list(session, org, &filter, Some(label)).await?;
        let is_last = page.len() < filter.limit;
        filter.before = page.last().map(listed_id).or(filter.before);
        for (key, value) in others {
            let ids: Vec<Id> = page.iter().map(|row| Id(listed_id(row).0)).collect();
            let (key, value) = (EscapedText::of(key), EscapedText::of(value));
            let found = session.query(sql!("postgres/labels_of"), &[&org_of(org), &key, &value, &ids]).await?;
            let labelled: HashSet<RunId> = found.iter().map(|row| run_id(row, 0)).collect::<Attempted<_>>()?;
            page.retain(|row| labelled.contains(&listed_id(row)));
        }
        rows.extend(page);
        if is_last || rows.len() >= wanted {
            rows.truncate(wanted);
            return Ok(rows);
        }
    }
}

async fn list(
    session: &Session,
    org: OrgId,
    filter: &RunFilter,
    label: Option<&(String, String)>,
) -> Attempted<Vec<ListedRun>> {
    let org = org_of(org);
    let since = filter.since.map_or(i64::MIN, |at| at.0);
    let until = filter.until.unwrap_or(Timestamp::NEVER).0;
    // An id is never generated after its run is created, nor long before, so no id outside these bounds can match.
    let (oldest, newest) = (Id(oldest_id(filter.since)), newest_id(filter.until));
    let last = match filter.before {
        None => Some(newest),
        Some(before) => Id::before(before.0).map(|last| last.min(newest)),
    };
    let Some(last) = last else { return Ok(Vec::new()) };
    let statuses: Option<Vec<&str>> =
        (!filter.statuses.is_empty()).then(|| filter.statuses.iter().map(|status| status.as_str()).collect());
    let limit = limit(filter.limit);
    let workflow = filter.workflow.map(|workflow| Id(workflow.0));
    let forms: Option<Vec<&str>> =
        (!filter.forms.is_empty()).then(|| filter.forms.iter().copied().map(Form::as_str).collect());
    let except = filter.except.filter(|except| filter.workflow != Some(*except)).map(|except| Id(except.0));

    if let Some((key, value)) = label {
        let (key, value) = (EscapedText::of(key), EscapedText::of(value));
        let params: [&(dyn ToSql + Sync); 12] =
            [&org, &last, &oldest, &since, &until, &statuses, &workflow, &except, &key, &value, &forms, &limit];
        return page(session, sql!("postgres/runs_with_label"), &params).await;
    }
    if let Some(workflow) = workflow {
        let params: [&(dyn ToSql + Sync); 9] =
            [&org, &last, &oldest, &since, &until, &statuses, &workflow, &forms, &limit];
        return page(session, sql!("postgres/runs_of_workflow"), &params).await;
    }
    if filter.statuses.is_empty() || filter.statuses.contains(&RunStatus::Completed) {
        let params: [&(dyn ToSql + Sync); 9] =
            [&org, &last, &oldest, &since, &until, &statuses, &except, &forms, &limit];
        return page(session, sql!("postgres/runs_all"), &params).await;
    }
    // All in one snapshot, so that a run whose status changes meanwhile is in the list exactly once.
    let statuses: Vec<&str> = filter.statuses.iter().map(|status| status.as_str()).collect();
    let reads = statuses.iter().map(|status| -> (&'static str, Params<'_>) {
        let params = vec![&org as _, &last as _, &oldest as _, &since as _, &until as _, status as _];
        (sql!("postgres/runs_in_status"), [params, vec![&except as _, &forms as _, &limit as _]].concat())
    });
    let answers = session.query_snapshot(reads.collect()).await?;
    let mut rows = answers.iter().flatten().map(listed).collect::<Attempted<Vec<_>>>()?;
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(listed_id(row)));
    rows.dedup_by_key(|row| listed_id(row));
    rows.truncate(filter.limit);
    Ok(rows)
}

async fn page(session: &Session, statement: &'static str, params: &[&(dyn ToSql + Sync)]) -> Attempted<Vec<ListedRun>> {
    session.query(statement, params).await?.iter().map(listed).collect()
}

fn listed(row: &Row) -> Attempted<ListedRun> {
    match run_row(row) {
        Err(Failure::Other(Error::Corrupt(what))) => Ok(Err(UnreadableRow { id: run_id(row, 1)?, what })),
        read => read.map(Ok),
    }
}

/// No run created at or after this time has a smaller id.
fn oldest_id(since: Option<Timestamp>) -> [u8; 16] {
    let Some(since) = since else { return [0; 16] };
    let first = i64::try_from(ID_LAG.0).map_or(i64::MIN, |lag| since.0.saturating_sub(lag));
    first_id(Timestamp(first))
}

/// No run created before this time has a larger id.
fn newest_id(until: Option<Timestamp>) -> Id {
    let next = until.map(|until| Timestamp(until.0.saturating_add(1_000)));
    let next = next.filter(|next| next.millis() < 1 << 48);
    next.and_then(|next| Id::before(first_id(next))).unwrap_or(Id::LAST)
}

/// The smallest id that can be generated in this millisecond.
pub(super) fn first_id(at: Timestamp) -> [u8; 16] {
    let mut id = [0; 16];
    let millis = at.millis().clamp(0, (1 << 48) - 1) as u64;
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id
}
