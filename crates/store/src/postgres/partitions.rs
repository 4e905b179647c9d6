//! The monthly partitions of the journal.
//!
//! A run's id begins with the time at which it was generated, so the runs of a month are a range of ids. Partitions
//! are created some months ahead, by every node at its start and again every few hours. Records outside of every
//! month go to the default partition, which works as well but is never dropped. A month whose runs have all been
//! deleted is dropped as a whole.

use super::columns::{Attempted, get, text};
use super::errors::Failure;
use super::lists::first_id;
use super::migrations;
use super::session::Session;
use kernel::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// For how many months ahead partitions are created.
const AHEAD: i64 = 2;
/// How many past months are not dropped even if they are empty, for runs that were requested and are not created yet.
const BEHIND: i64 = 2;

/// A month, counted from the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Month(i64);

impl Month {
    fn of(at: Timestamp) -> Month {
        // `2026-11-15T…`; years have four digits until 9999.
        let text = at.to_string();
        let (year, month) = (text[..4].parse().unwrap_or(1970), text[5..7].parse().unwrap_or(1));
        Month(year * 12 + month - 1)
    }

    fn now() -> Month {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        Month::of(Timestamp(i64::try_from(now).unwrap_or(0)))
    }

    fn plus(self, months: i64) -> Month {
        Month(self.0 + months)
    }

    fn begin(self) -> Timestamp {
        // Days of the Gregorian calendar in eras of 400 years that begin on 1 March.
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12) + 1);
        let year = if month <= 2 { year - 1 } else { year };
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let day = (153 * ((month + 9) % 12) + 2) / 5;
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day - 719_468;
        Timestamp(days * 86_400_000_000)
    }

    fn table(self) -> String {
        format!("journal_{:04}_{:02}", self.0.div_euclid(12), self.0.rem_euclid(12) + 1)
    }

    fn parse(table: &str) -> Option<Month> {
        let (year, month) = table.strip_prefix("journal_")?.split_once('_')?;
        let month = Month(year.parse::<i64>().ok()? * 12 + month.parse::<i64>().ok()? - 1);
        (month.table() == table).then_some(month)
    }
}

/// Creates missing partitions and drops empty ones of past months. A failure is only logged: the journal works without
/// the change, and the next call retries.
pub(super) async fn maintain(session: &Session) -> Attempted<()> {
    const EXISTING: &str = "
        SELECT child.relname::text FROM pg_inherits
        JOIN pg_class AS child ON child.oid = inhrelid
        WHERE inhparent = 'onward.journal'::regclass";
    let mut existing = Vec::new();
    for row in session.query(EXISTING, &[]).await? {
        existing.extend(Month::parse(&text(&row, 0)?));
    }
    let now = Month::now();
    for month in (0..=AHEAD).map(|months| now.plus(months)).filter(|month| !existing.contains(month)) {
        if let Err(failure) = begin(session, &format!("{}; COMMIT", creation(month))).await {
            tracing::warn!(
                month = month.table(),
                ?failure,
                "cannot create a partition of the journal; trying again later"
            );
        }
    }
    for month in existing.iter().filter(|month| month.plus(BEHIND) < now) {
        if is_empty(session, *month).await?
            && let Err(failure) = drop_empty(session, *month).await
        {
            tracing::warn!(
                month = month.table(),
                ?failure,
                "cannot drop an empty partition of the journal; trying again later"
            );
        }
    }
    Ok(())
}

/// Drops the partition of a month, unless a record was written to it meanwhile.
async fn drop_empty(session: &Session, month: Month) -> Attempted<()> {
    begin(session, &format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", month.table())).await?;
    let dropped = match is_empty(session, month).await {
        Ok(true) => session.batch(&format!("DROP TABLE {}; COMMIT", month.table())).await,
        Ok(false) => session.batch("ROLLBACK").await,
        Err(failure) => Err(failure),
    };
    roll_back_if_failed(session, dropped).await
}

async fn is_empty(session: &Session, month: Month) -> Attempted<bool> {
    let from = uuid(first_id(month.begin()));
    let to = uuid(first_id(month.plus(1).begin()));
    const ANY: &str = "SELECT NOT EXISTS (SELECT FROM journal WHERE run >= $1::text::uuid AND run < $2::text::uuid)";
    session.first(ANY, &[&from, &to]).await?.map_or(Ok(false), |row| get(&row, 0))
}

fn creation(month: Month) -> String {
    let (from, to) = (uuid(first_id(month.begin())), uuid(first_id(month.plus(1).begin())));
    format!("CREATE TABLE IF NOT EXISTS {} PARTITION OF journal FOR VALUES FROM ('{from}') TO ('{to}')", month.table())
}

/// Begins a change of the schema with its first statements. It blocks all writes meanwhile, so it fails after the lock
/// timeout instead of waiting longer.
async fn begin(session: &Session, statements: &str) -> Attempted<()> {
    let lock = migrations::LOCK;
    let begun = session.batch(&format!("BEGIN; SELECT pg_advisory_xact_lock({lock}); {statements}")).await;
    roll_back_if_failed(session, begun).await
}

/// Rolls back a transaction that failed.
async fn roll_back_if_failed(session: &Session, outcome: Attempted<()>) -> Attempted<()> {
    if let Err(failure) = outcome {
        if !matches!(failure, Failure::Lost(_)) {
            session.batch("ROLLBACK").await?;
        }
        return Err(failure);
    }
    Ok(())
}

fn uuid(id: [u8; 16]) -> String {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_on_their_first_day() {
        for (table, begins) in [
            ("journal_1970_01", "1970-01-01T00:00:00Z"),
            ("journal_2024_02", "2024-02-01T00:00:00Z"),
            ("journal_2024_03", "2024-03-01T00:00:00Z"),
            ("journal_2026_12", "2026-12-01T00:00:00Z"),
            ("journal_2100_03", "2100-03-01T00:00:00Z"),
        ] {
            let month = Month::parse(table).unwrap();
            assert_eq!(month.begin().to_string(), begins);
            assert_eq!(Month::of(month.begin()), month);
            assert_eq!(Month::of(Timestamp(month.begin().0 - 1)), month.plus(-1));
        }
        assert_eq!(Month::parse("journal_rest"), None);
        assert_eq!(Month::parse("journal_2026_1"), None);
    }

    #[test]
    fn a_partition_is_a_range_of_ids() {
        let month = Month::parse("journal_2026_11").unwrap();
        let range = "FROM ('01a19467-e800-0000-0000-000000000000') TO ('01a22ee6-b000-0000-0000-000000000000')";
        assert!(creation(month).ends_with(range), "{}", creation(month));
    }
}
