//! Reading the journal: the records of a run, and the order in which all records were written.
//!
//! Positions are assigned when the journal is read. A batch inserts the keys of its records into `arrivals`, in its
//! own transaction. A reader of the journal takes these rows in the order of their ids and assigns the next
//! positions; a lock lets one reader at a time do this. So only committed records get a position, the next reader
//! continues where this one ended, and no record can appear before a position that a reader has seen. Positions have
//! no gaps, a reader never waits for open transactions (which may stay open for hours), and an unread record costs 24
//! bytes.
//!
//! Invariant: of two batches that wrote to the same run, the later one has the larger id in `arrivals`. The later batch
//! can only follow a committed record, a batch writes its `arrivals` row last, and ids are assigned in order.

use super::batch_columns::{RECORD_KEY_BYTES, parse_record_keys};
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

/// The advisory lock of the transaction that assigns positions to arrivals.
const ORDER_LOCK: i64 = 0x6f6e_7761_7264_0002;
/// Most arrivals that get their positions in one transaction.
const ARRIVALS_MAX: i64 = 4_096;
/// Rows of `positions` read at once.
const PAGE: i64 = 256;
/// Because of the session timeouts no transaction of a batch takes as long as this, with one exception: a commit that
/// waits for an unreachable standby. Its records get their positions when arrivals are read from the beginning, which
/// every node does regularly.
const OPEN_MAX: Duration = Duration::from_secs(120);

/// The setting that holds the time of the newest deleted record. Engine time stays ahead of it even if the journal has
/// only older records left.
pub(super) const ERASED_UNTIL: &str = "erased_until_us";

pub(super) async fn load(session: &Session, owner: OrgId, run: RunId) -> Attempted<Option<Loaded>> {
    let loaded = load_all(session, &[(owner, run)]).await?.pop();
    loaded.unwrap_or(Ok(None)).map_err(Failure::Other)
}

/// Loads several runs from one snapshot, in one round trip.
pub(super) async fn load_all(session: &Session, runs: &[(OrgId, RunId)]) -> Attempted<Vec<Result<Option<Loaded>>>> {
    let keys: Vec<_> = runs.iter().map(|(org, run)| (org_of(*org), Id(run.0))).collect();
    let mut reads: Vec<(&'static str, Params<'_>)> = Vec::with_capacity(2 * runs.len());
    for (org, id) in &keys {
        reads.push((sql!("postgres/run_snapshot"), vec![org, id]));
        reads.push((sql!("postgres/journal_after_snapshot"), vec![org, id]));
    }
    let answers = session.query_snapshot(reads).await?;
    let found = runs.iter().zip(answers.chunks_exact(2));
    found
        .map(|((_, run), answer)| match loaded(*run, &answer[0], &answer[1]) {
            // A damaged run does not affect the others.
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
    let snapshot = match get::<Option<i32>>(found, 19)? {
        None => None,
        Some(_) => Some((seq(found, 19)?, blob(found, 20)?)),
    };
    let base = snapshot.as_ref().map_or(0, |(seq, _)| *seq);
    let records = contiguous(rest, run, base)?;
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
    let mut answers = session.query_snapshot(reads).await?.into_iter();
    let (row, rest) = (answers.next().unwrap_or_default().into_iter().next(), answers.next().unwrap_or_default());
    let Some(row) = row.map(|row| run_row(&row)).transpose()? else { return Ok(None) };
    if row.deleted_at.is_some() {
        return Ok(None);
    }
    contiguous(&rest, run, u64::from(after.cast_unsigned())).map(Some)
}

/// The records after number `after`, which must have no gap.
fn contiguous(rows: &[Row], run: RunId, after: u64) -> Attempted<Vec<Bytes>> {
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

/// The id up to which all arrivals have their positions. A reader starts there, so that it does not scan the deleted
/// rows before it, which the server cannot vacuum while an old transaction is open.
#[derive(Default)]
pub(super) struct ArrivalFloor(Mutex<ArrivalsPassed>);

#[derive(Default)]
struct ArrivalsPassed {
    floor: i64,
    /// The next value of `floor`: an id that got its position, and when.
    next: Option<(i64, Instant)>,
}

impl ArrivalFloor {
    fn get(&self) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).floor
    }

    /// Starts from the beginning again, because the ids of a server that lost writes may start again.
    pub(super) fn reset(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ArrivalsPassed::default();
    }

    /// Records that this id got its position. Transactions that were open at that time have ended after [`OPEN_MAX`];
    /// the floor then moves up to the id.
    fn ordered(&self, id: i64) {
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

/// Assigns positions to all arrivals, in transactions of at most [`ARRIVALS_MAX`] arrivals.
pub(super) async fn order(session: &Session, floor: &ArrivalFloor) -> Attempted<()> {
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
        for (_, keys) in &arrived {
            firsts.push(next);
            next += (keys.len() / RECORD_KEY_BYTES) as i64;
            records.push(Blob(keys.clone()));
        }
        session.execute(sql!("postgres/positions_insert"), &[&firsts, &records]).await?;
        session.batch("COMMIT").await?;
        if let Some((id, _)) = arrived.last() {
            floor.ordered(*id);
        }
        if (arrived.len() as i64) < ARRIVALS_MAX {
            return Ok(());
        }
    }
}

/// The last position that was assigned.
async fn end(session: &Session) -> Attempted<i64> {
    session.first(sql!("postgres/positions_end"), &[]).await?.map_or(Ok(0), |row| get(&row, 0))
}

/// Reads at most `limit` positions after `after`, and returns the records there that belong to the organisation. The
/// arrivals must have their positions.
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
        let (mut positions, mut runs, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        for row in session.query(sql!("postgres/positions_after"), &[&from, &page]).await? {
            let first: i64 = get(&row, 0)?;
            for (pos, (org, run, seq)) in (first..).zip(parse_record_keys(get(&row, 1)?)) {
                if pos >= from && pos <= last {
                    found.end = pos.cast_unsigned();
                    if org == owner {
                        positions.push(pos);
                        runs.push(Id(run.0));
                        seqs.push(seq);
                    }
                }
            }
        }
        if found.end.cast_signed() < from {
            return Err(Failure::Other(Error::Corrupt(format!("position {from} of the journal is missing"))));
        }
        let orgs = vec![org_of(owner); positions.len()];
        let by_position: std::collections::HashMap<i64, Id> =
            positions.iter().copied().zip(runs.iter().copied()).collect();
        for row in session.query(sql!("postgres/journal_of"), &[&positions, &orgs, &runs, &seqs]).await? {
            let pos: i64 = get(&row, 0)?;
            let Some(run) = by_position.get(&pos) else { continue };
            found.records.push(JournalEntry { pos: pos.cast_unsigned(), run: RunId(run.0), record: blob(&row, 1)? });
        }
    }
    found.records.sort_by_key(|written| written.pos);
    Ok(found)
}

/// Time of the newest record. The arrivals must have their positions.
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
        // The records of a deleted run have positions but do not exist any more.
        for (org, run, seq) in parse_record_keys(get(row, 1)?).rev() {
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&org_of(org), &Id(run.0), &seq];
            if let Some(found) = session.first(sql!("postgres/journal_record"), &params).await? {
                let record = Record::open(&blob(&found, 0)?);
                let newest = record.map_err(|e| Failure::Other(Error::Corrupt(e.to_string())))?.at;
                return Ok(erased.max(Some(newest)));
            }
        }
    }
}

/// The payloads with these numbers, in the same order.
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

/// The id of what was created with an idempotency key, and the fingerprint of that request.
pub(super) async fn holder(
    session: &Session,
    owner: OrgId,
    scope: &str,
    key: &str,
) -> Attempted<Option<([u8; 16], [u8; 32])>> {
    let (scope, key) = (super::columns::EscapedText::of(scope), super::columns::EscapedText::of(key));
    let found = session.first(sql!("idempotency"), &[&org_of(owner), &scope, &key]).await?;
    found.map(|row| Ok((id(&row, 0)?, super::columns::hash(&row, 1)?))).transpose()
}

pub(super) async fn active_runs(session: &Session) -> Attempted<Vec<(OrgId, RunId)>> {
    let rows = session.query(sql!("postgres/runs_active"), &[]).await?;
    let mut runs = rows.iter().map(|row| Ok((org(row, 0)?, run_id(row, 1)?))).collect::<Attempted<Vec<_>>>()?;
    runs.sort_unstable();
    Ok(runs)
}

/// The last record of a run, and its number.
pub(super) async fn last(session: &Session, owner: OrgId, run: RunId) -> Attempted<Option<(u64, Bytes)>> {
    let found = session.first(sql!("postgres/journal_last"), &[&org_of(owner), &Id(run.0)]).await?;
    found.map(|row| Ok((seq(&row, 0)?, blob(&row, 1)?))).transpose()
}
