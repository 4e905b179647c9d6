//! Pages of runs, newest first, and of their open waits.
//!
//! There are four fixed statements, one per useful index, and filters are always bound parameters. The choice of the
//! statement changes the speed, never the result: the random operations of `testkit::conformance` compare all four with
//! a plain filter.

use super::columns::{AFTER_EVERY_ID, limit, run_id, run_row, sql, time};
use super::errors::on_read;
use crate::Result;
use crate::rows::{ID_LAG, ListedRun, OpenWait, RunFilter, UnreadableRow, listed_id};
use kernel::plan::Form;
use kernel::run::WaitKind;
use kernel::{OrgId, RunId, RunStatus, Timestamp};
use rusqlite::{Connection, Params, Row, params};

/// Smallest page to read when a filter has more than one label.
const PAGE_MIN: usize = 256;

pub(super) fn runs(connection: &Connection, org: OrgId, filter: &RunFilter) -> Result<Vec<ListedRun>> {
    let view = connection.unchecked_transaction().map_err(on_read)?;
    let Some((label, others)) = filter.labels.split_first() else { return list(&view, org, filter, None) };
    // The index of the first label gives the order. The other labels are looked up run by run, one page after another,
    // until there are enough runs.
    let (mut rows, mut filter) = (Vec::new(), filter.clone());
    let wanted = filter.limit;
    filter.limit = wanted.max(PAGE_MIN);
    loop {
        let page = list(&view, org, &filter, Some(label))?;
        let is_last = page.len() < filter.limit;
        filter.before = page.last().map(listed_id).or(filter.before);
        for row in page {
            if rows.len() < wanted && has_all(&view, (org, listed_id(&row)), others)? {
                rows.push(row);
            }
        }
        if is_last || rows.len() >= wanted {
            return Ok(rows);
        }
    }
}

fn has_all(view: &Connection, (org, run): (OrgId, RunId), labels: &[(String, String)]) -> Result<bool> {
    let mut statement = view.prepare_cached(sql!("label_exists")).map_err(on_read)?;
    for (key, value) in labels {
        if !statement.exists(params![org.0, key, value, run.0]).map_err(on_read)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn list(view: &Connection, org: OrgId, filter: &RunFilter, label: Option<&(String, String)>) -> Result<Vec<ListedRun>> {
    let since = filter.since.map_or(i64::MIN, |at| at.0);
    let until = filter.until.unwrap_or(Timestamp::NEVER).0;
    // An id is never generated after its run is created, nor long before, so no id outside these bounds can match.
    let (oldest, newest) = (oldest_id(filter.since), newest_id(filter.until));
    let before: &[u8] = filter.before.as_ref().map_or(&newest[..], |run| &run.0[..]).min(&newest);
    let statuses = name_list(filter.statuses.iter().map(|status| status.as_str()));
    let limit = limit(filter.limit);
    let workflow = filter.workflow.map(|workflow| workflow.0);
    let forms = name_list(filter.forms.iter().copied().map(Form::as_str));
    let except = filter.except.filter(|except| filter.workflow != Some(*except)).map(|except| except.0);

    if let Some((key, value)) = label {
        let params = params![org.0, before, oldest, since, until, statuses, workflow, except, key, value, forms, limit];
        return page(view, sql!("runs_with_label"), params);
    }
    if workflow.is_some() {
        let params = params![org.0, before, oldest, since, until, statuses, workflow, forms, limit];
        return page(view, sql!("runs_of_workflow"), params);
    }
    if filter.statuses.is_empty() || filter.statuses.contains(&RunStatus::Completed) {
        let params = params![org.0, before, oldest, since, until, statuses, except, forms, limit];
        return page(view, sql!("runs_all"), params);
    }
    let mut rows = Vec::new();
    for status in &filter.statuses {
        let params = params![org.0, before, oldest, since, until, status.as_str(), except, forms, limit];
        rows.extend(page(view, sql!("runs_in_status"), params)?);
    }
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(listed_id(row)));
    rows.dedup_by_key(|row| listed_id(row));
    rows.truncate(filter.limit);
    Ok(rows)
}

/// No run created at or after this time has a smaller id.
fn oldest_id(since: Option<Timestamp>) -> [u8; 16] {
    let Some(since) = since else { return [0; 16] };
    let first = i64::try_from(ID_LAG.0).map_or(i64::MIN, |lag| since.0.saturating_sub(lag));
    first_id(Timestamp(first))
}

/// Every run created before this time has a smaller id.
fn newest_id(until: Option<Timestamp>) -> Vec<u8> {
    let next = until.map(|until| Timestamp(until.0.saturating_add(1_000)));
    next.filter(|next| next.millis() < 1 << 48).map_or(AFTER_EVERY_ID.to_vec(), |next| first_id(next).to_vec())
}

/// The smallest id that can be generated in this millisecond.
fn first_id(at: Timestamp) -> [u8; 16] {
    let mut id = [0; 16];
    let millis = at.millis().clamp(0, (1 << 48) - 1) as u64;
    id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    id
}

pub(super) fn open_waits(
    connection: &Connection,
    org: OrgId,
    kind: WaitKind,
    name: &str,
    after: Option<(RunId, u32)>,
    count: usize,
) -> Result<Vec<OpenWait>> {
    // No run has the id 0.
    let (run, step) = after.map_or(([0; 16], -1), |(run, step)| (run.0, i64::from(step)));
    let mut statement = connection.prepare_cached(sql!("open_waits")).map_err(on_read)?;
    let read = |row: &Row<'_>| {
        let (run, step, deadline) = (run_id(row, 0)?, row.get(1)?, time(row, 2)?);
        Ok(OpenWait { org, kind, name: name.to_owned(), run, step, deadline })
    };
    let rows = statement.query_map(params![org.0, kind.as_str(), name, run, step, limit(count)], read);
    rows.map_err(on_read)?.collect::<rusqlite::Result<_>>().map_err(on_read)
}

fn page(connection: &Connection, statement: &str, params: impl Params) -> Result<Vec<ListedRun>> {
    many(connection, statement, params, |row| match run_row(row) {
        Ok(read) => Ok(Ok(read)),
        // The error of one row has no SQLite code; any other concerns the whole list.
        Err(error) if error.sqlite_error_code().is_none() => {
            Ok(Err(UnreadableRow { id: run_id(row, 1)?, what: error.to_string() }))
        }
        Err(error) => Err(error),
    })
}

/// Every row that a statement returns.
pub(super) fn many<T>(
    connection: &Connection,
    statement: &str,
    params: impl Params,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>> {
    let mut statement = connection.prepare_cached(statement).map_err(on_read)?;
    let rows = statement.query_map(params, read).map_err(on_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(on_read)
}

/// A JSON list for `json_each`; names need no escapes. `None` means any.
fn name_list<'n>(names: impl Iterator<Item = &'n str>) -> Option<String> {
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    if names.is_empty() { None } else { Some(format!("[{}]", names.join(","))) }
}
