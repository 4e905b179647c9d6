//! Pages of runs, newest first.
//!
//! Four fixed statements, one per index worth using; what people ask for only ever arrives as a bound
//! parameter. Which one is used changes the speed of an answer, never the answer: the random
//! sequences of `testkit::conformance` compare them all with a plain filter.

use super::columns::{AFTER_EVERY_ID, limit, run_row, sql};
use super::fault::on_read;
use crate::Result;
use crate::rows::{RunFilter, RunRow};
use kernel::{OrgId, RunStatus, Timestamp};
use rusqlite::{Connection, Params, params};

pub(super) fn runs(connection: &Connection, org: OrgId, filter: &RunFilter) -> Result<Vec<RunRow>> {
    let view = connection.unchecked_transaction().map_err(on_read)?;
    let before: &[u8] = filter.before.as_ref().map_or(&AFTER_EVERY_ID, |run| &run.0);
    let since = filter.since.map_or(i64::MIN, |at| at.0);
    let until = filter.until.unwrap_or(Timestamp::NEVER).0;
    let statuses = name_list(&filter.statuses);
    let limit = limit(filter.limit);
    let workflow = filter.workflow.map(|workflow| workflow.0);

    if let Some((key, value)) = &filter.label {
        let params = params![org.0, before, since, until, statuses, workflow, key, value, limit];
        return page(&view, sql!("runs_with_label"), params);
    }
    if workflow.is_some() {
        return page(&view, sql!("runs_of_workflow"), params![org.0, before, since, until, statuses, workflow, limit]);
    }
    if filter.statuses.is_empty() || filter.statuses.contains(&RunStatus::Completed) {
        return page(&view, sql!("runs_all"), params![org.0, before, since, until, statuses, limit]);
    }
    let mut rows = Vec::new();
    for status in &filter.statuses {
        let params = params![org.0, before, since, until, status.as_str(), limit];
        rows.extend(page(&view, sql!("runs_in_status"), params)?);
    }
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.id));
    rows.dedup_by_key(|row| row.id);
    rows.truncate(filter.limit);
    Ok(rows)
}

fn page(connection: &Connection, statement: &str, params: impl Params) -> Result<Vec<RunRow>> {
    let mut statement = connection.prepare_cached(statement).map_err(on_read)?;
    let rows = statement.query_map(params, run_row).map_err(on_read)?;
    rows.collect::<rusqlite::Result<_>>().map_err(on_read)
}

/// A JSON list for `json_each`; names need no escapes. `None` means any.
fn name_list(statuses: &[RunStatus]) -> Option<String> {
    let names: Vec<String> = statuses.iter().map(|status| format!("\"{status}\"")).collect();
    if names.is_empty() { None } else { Some(format!("[{}]", names.join(","))) }
}
