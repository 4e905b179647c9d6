//! Reading the journal: a run's own records, and the order in which all were written.
//!
//! The order is made by whoever looks at it. A batch leaves the names of its records in `arrivals`, in its own
//! transaction; a look takes what has arrived, in the order of its ids, and gives it the next positions, one at a
//! time under a lock. So a position is only ever given to what is committed, the next look begins where this one
//! ended, and nothing can appear before a position that somebody has seen. Positions have no gaps, nobody waits
//! for transactions of others (which may stay open for hours), and when nobody looks it costs 24 bytes a record.
//!
//! The rule that keeps it right: of two batches that wrote to the same run, the later one has the larger id. It
//! could only follow a record that was committed, its `arrivals` row is the last thing it writes, and ids are given
//! out in order.

use super::batch_columns::{NAME_BYTES, named};
use super::columns::{Attempted, Blob, Id, blob, get, id, limit, org, org_of, run_id, run_row, seq, sql};
use super::errors::Failure;
use super::session::{Params, Session};
use crate::rows::{JournalEntry, JournalPage, Loaded};
use crate::{Error, Result};
use bytes::Bytes;
use kernel::{OrgId, Record, RunId, Timestamp};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tokio_postgres::Row;

/// Everybody who orders arrivals holds this lock meanwhile.
const ORDER_LOCK: i64 = 0x6f6e_7761_7264_0002;
/// Arrivals ordered in one transaction, and rows of positions read together.
const ARRIVALS_MAX: i64 = 4_096;
const PAGE: i64 = 256;
/// Transactions of ours do not live as long as this, sessions having their timeouts. One that does (it waits for a
/// standby that is gone) gets its positions when somebody looks from the beginning, as every node does now and then.
const OPEN_MAX: Duration = Duration::from_secs(120);

/// The setting that holds the time of the newest record that was ever erased: engine time stays ahead of
/// it, whatever is left in the journal.
pub(super) const ERASED_UNTIL: &str = "erased_until_us";

pub(super) async fn load(session: &Session, owner: OrgId, run: RunId) -> Attempted<Option<Loaded>> {
    let loaded = load_all(session, &[(owner, run)]).await?.pop();
    loaded.unwrap_or(Ok(None)).map_err(Failure::Other)
}

/// Several runs as they were at one moment, in one round trip.
pub(super) async fn load_all(session: &Session, runs: &[(OrgId, RunId)]) -> Attempted<Vec<Result<Option<Loaded>>>> {
    let keys: Vec<_> = runs.iter().map(|(org, run)| (org_of(*org), Id(run.0))).collect();
    let mut reads: Vec<(&'static str, Params<'_>)> = Vec::with_capacity(2 * runs.len());
    for (org, id) in &keys {
        reads.push((sql!("postgres/run_snapshot"), vec![org, id]));
        reads.push((sql!("postgres/journal_after_snapshot"), vec![org, id]));
    }
    let answers = session.view(reads).await?;
    let found = runs.iter().zip(answers.chunks_exact(2));
    found
        .map(|((_, run), answer)| match loaded(*run, &answer[0], &answer[1]) {
            // What is wrong with one run is no concern of the others.
            Err(Failure::Other(error)) => Ok(Err(error)),
            answer => answer.map(Ok),
        })
        .collect()
}

fn loaded(run: RunId, row: &[Row], rest: &[Row]) -> Attempted<Option<Loaded>> {
    let Some(found) = row.first() else { return Ok(None) };
    let row = run_row(found)?;
    if row.deleted_at.is_some() {
        return Ok(None);
    }
    let snapshot = match get::<Option<i32>>(found, 17)? {
        None => None,
        Some(_) => Some((seq(found, 17)?, blob(found, 18)?)),
    };
    let base = snapshot.as_ref().map_or(0, |(seq, _)| *seq);
    let records = in_a_row(rest, run, base)?;
    Ok(Some(Loaded { snapshot, seq: base + records.len() as u64, records, row }))
}

pub(super) async fn history(
    session: &Session,
    owner: OrgId,
    run: RunId,
    after: u64,
    count: usize,
) -> Attempted<Option<Vec<Bytes>>> {
    let (org, id) = (org_of(owner), Id(run.0));
    let (after, limit) = (i32::try_from(after).unwrap_or(i32::MAX), limit(count));
    let reads: Vec<(&'static str, Params<'_>)> =
        vec![(sql!("postgres/run"), vec![&org, &id]), (sql!("postgres/journal_page"), vec![&org, &id, &after, &limit])];
    let mut answers = session.view(reads).await?.into_iter();
    let (row, rest) = (answers.next().unwrap_or_default().into_iter().next(), answers.next().unwrap_or_default());
    let Some(row) = row.map(|row| run_row(&row)).transpose()? else { return Ok(None) };
    if row.deleted_at.is_some() {
        return Ok(None);
    }
    in_a_row(&rest, run, u64::from(after.cast_unsigned())).map(Some)
}

/// Records that follow number `after` without a gap.
fn in_a_row(rows: &[Row], run: RunId, after: u64) -> Attempted<Vec<Bytes>> {
    let mut records = Vec::with_capacity(rows.len());
    for (row, expected) in rows.iter().zip(after + 1..) {
        if seq(row, 0)? != expected {
            return Err(Failure::Other(Error::Corrupt(format!(
                "record {expected} of {run} is not where it should be"
            ))));
        }
        records.push(blob(row, 1)?);
    }
    Ok(records)
}

/// How far arrivals have been looked through: those up to there are ordered, or are not expected any more. So a look
/// does not pass over all that was ordered before, which the server cannot clear away while somebody's old
/// transaction is open.
#[derive(Default)]
pub(super) struct Floor(Mutex<Passed>);

#[derive(Default)]
struct Passed {
    floor: i64,
    /// The largest id that was ordered, and since when.
    next: Option<(i64, Instant)>,
}

impl Floor {
    fn get(&self) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).floor
    }

    /// The ids may begin anew.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Passed::default();
    }

    /// What was in flight when this id was ordered is over after a while; then it need not be looked at again.
    fn saw(&self, id: i64) {
        let mut passed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match passed.next {
            Some((next, since)) if since.elapsed() > OPEN_MAX => {
                passed.floor = next;
                passed.next = Some((id, Instant::now()));
            }
            Some(_) => {}
            None => passed.next = Some((id, Instant::now())),
        }
    }
}

/// Gives positions to what has arrived. A transaction of its own, for as long as there is more.
pub(super) async fn order(session: &Session, floor: &Floor) -> Attempted<()> {
    loop {
        let from = floor.get();
        let any = session.first(sql!("postgres/arrivals_any"), &[&from]).await?;
        if !any.map_or(Ok(false), |row| get(&row, 0))? {
            return Ok(());
        }
        session.batch("BEGIN; SET LOCAL lock_timeout = '10s'").await?;
        session.query("SELECT pg_advisory_xact_lock($1)", &[&ORDER_LOCK]).await?;
        let mut arrived = Vec::new();
        for row in session.query(sql!("postgres/arrivals_take"), &[&from, &ARRIVALS_MAX]).await? {
            arrived.push((get::<i64>(&row, 0)?, blob(&row, 1)?));
        }
        arrived.sort_by_key(|(id, _)| *id);
        let mut next = end(session).await? + 1;
        let (mut firsts, mut records) = (Vec::with_capacity(arrived.len()), Vec::with_capacity(arrived.len()));
        for (_, names) in &arrived {
            firsts.push(next);
            next += (names.len() / NAME_BYTES) as i64;
            records.push(Blob(names.clone()));
        }
        session.execute(sql!("postgres/positions_insert"), &[&firsts, &records]).await?;
        session.batch("COMMIT").await?;
        if let Some((id, _)) = arrived.last() {
            floor.saw(*id);
        }
        if (arrived.len() as i64) < ARRIVALS_MAX {
            return Ok(());
        }
    }
}

/// The last position that was given.
async fn end(session: &Session) -> Attempted<i64> {
    session.first(sql!("postgres/positions_end"), &[]).await?.map_or(Ok(0), |row| get(&row, 0))
}

/// What was written after position `after`, whoever it belongs to, in at most `limit` places. What has arrived must
/// be ordered.
pub(super) async fn journal_page(
    session: &Session,
    owner: OrgId,
    after: Option<u64>,
    limit: usize,
) -> Attempted<JournalPage> {
    let newest = end(session).await?;
    let after = after.and_then(|after| i64::try_from(after).ok()).unwrap_or(newest).min(newest);
    let mut found = JournalPage { records: Vec::new(), end: after.cast_unsigned() };
    let last = i64::try_from(limit).ok().and_then(|limit| after.checked_add(limit)).unwrap_or(newest).min(newest);
    while (found.end as i64) < last {
        let (from, page) = (found.end.cast_signed() + 1, PAGE);
        let (mut places, mut runs, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        for row in session.query(sql!("postgres/positions_after"), &[&from, &page]).await? {
            let first: i64 = get(&row, 0)?;
            for (pos, (org, run, seq)) in (first..).zip(named(get(&row, 1)?)) {
                if pos >= from && pos <= last {
                    found.end = pos.cast_unsigned();
                    if org == owner {
                        places.push(pos);
                        runs.push(Id(run.0));
                        seqs.push(seq);
                    }
                }
            }
        }
        if found.end.cast_signed() < from {
            return Err(Failure::Other(Error::Corrupt(format!("position {from} of the journal is missing"))));
        }
        let orgs = vec![org_of(owner); places.len()];
        let by_place: std::collections::HashMap<i64, Id> = places.iter().copied().zip(runs.iter().copied()).collect();
        for row in session.query(sql!("postgres/journal_of"), &[&places, &orgs, &runs, &seqs]).await? {
            let pos: i64 = get(&row, 0)?;
            let Some(run) = by_place.get(&pos) else { continue };
            found.records.push(JournalEntry { pos: pos.cast_unsigned(), run: RunId(run.0), record: blob(&row, 1)? });
        }
    }
    found.records.sort_by_key(|written| written.pos);
    Ok(found)
}

/// Time of the newest record. What has arrived must be ordered.
pub(super) async fn high_water(session: &Session) -> Attempted<Option<Timestamp>> {
    let erased = session.first(sql!("setting"), &[&ERASED_UNTIL]).await?;
    let erased = erased.map(|row| super::columns::text(&row, 0)).transpose()?;
    let damaged = |text: &String| Failure::Other(Error::Corrupt(format!("the setting `{ERASED_UNTIL}` is `{text}`")));
    let erased = erased.map(|text| text.parse().map(Timestamp).map_err(|_| damaged(&text))).transpose()?;
    let mut before = i64::MAX;
    loop {
        let rows = session.query(sql!("postgres/positions_before"), &[&before, &1i64]).await?;
        let Some(row) = rows.first() else { return Ok(erased) };
        before = get(row, 0)?;
        // The records of a run that was erased are not there any more.
        for (org, run, seq) in named(get(row, 1)?).rev() {
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&org_of(org), &Id(run.0), &seq];
            if let Some(found) = session.first(sql!("postgres/journal_record"), &params).await? {
                let record = Record::open(&blob(&found, 0)?);
                let newest = record.map_err(|e| Failure::Other(Error::Corrupt(e.to_string())))?.at;
                return Ok(erased.max(Some(newest)));
            }
        }
    }
}

/// The given payloads, in the order asked.
pub(super) async fn payloads(
    session: &Session,
    owner: OrgId,
    run: RunId,
    numbers: &[u32],
) -> Attempted<Vec<(u32, Bytes)>> {
    let wanted: Vec<i64> = numbers.iter().copied().map(i64::from).collect();
    let mut found = std::collections::HashMap::new();
    for row in session.query(sql!("postgres/payloads"), &[&org_of(owner), &Id(run.0), &wanted]).await? {
        found.insert(super::columns::number(&row, 0)?, blob(&row, 1)?);
    }
    Ok(numbers.iter().filter_map(|number| Some((*number, found.get(number)?.clone()))).collect())
}

/// What an idempotency key made, and for which request.
pub(super) async fn holder(
    session: &Session,
    owner: OrgId,
    scope: &str,
    key: &str,
) -> Attempted<Option<([u8; 16], [u8; 32])>> {
    let (scope, key) = (super::columns::Words::of(scope), super::columns::Words::of(key));
    let found = session.first(sql!("idempotency"), &[&org_of(owner), &scope, &key]).await?;
    found.map(|row| Ok((id(&row, 0)?, super::columns::hash(&row, 1)?))).transpose()
}

pub(super) async fn active_runs(session: &Session) -> Attempted<Vec<(OrgId, RunId)>> {
    let rows = session.query(sql!("postgres/runs_unparked"), &[]).await?;
    let mut runs = rows.iter().map(|row| Ok((org(row, 0)?, run_id(row, 1)?))).collect::<Attempted<Vec<_>>>()?;
    runs.sort_unstable();
    Ok(runs)
}

/// The last record of a run.
pub(super) async fn last(session: &Session, owner: OrgId, run: RunId) -> Attempted<Option<Bytes>> {
    let found = session.first(sql!("postgres/journal_last"), &[&org_of(owner), &Id(run.0)]).await?;
    found.map(|row| blob(&row, 1)).transpose()
}
