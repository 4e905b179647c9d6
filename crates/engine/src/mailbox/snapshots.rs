//! When a run writes a snapshot: once reading its records again would cost as much as reading a snapshot.
//!
//! A snapshot of a large run is written after as many bytes of records as the last one has, so that all snapshots of a
//! run together stay in proportion to its records, however large the run becomes.

use bytes::Bytes;

/// The records after a snapshot have at least this many bytes before the next one is written.
const RECORDS_MIN: usize = 64 * 1024;
/// A record counts as at least this many bytes: to find a record costs more than to read a short one.
const RECORD_MIN: usize = 2 * 1024;

/// What a store reads to load a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBytes {
    /// Of the last snapshot.
    snapshot: usize,
    /// Of the records after it.
    records: usize,
}

impl StoredBytes {
    pub fn new(snapshot: Option<&Bytes>, records: &[Bytes]) -> Self {
        let snapshot = snapshot.map_or(0, Bytes::len);
        records.iter().fold(StoredBytes { snapshot, records: 0 }, |stored, record| stored.with_record(record))
    }

    pub fn sum(self) -> usize {
        self.snapshot + self.records
    }

    pub fn with_record(self, record: &Bytes) -> Self {
        StoredBytes { records: self.records + record.len().max(RECORD_MIN), ..self }
    }

    /// A run that leaves memory, and so will be read again, writes its snapshot earlier.
    pub fn wants_snapshot(&self, is_evicted: bool) -> bool {
        let enough = self.snapshot.max(RECORDS_MIN);
        self.records >= if is_evicted { enough / 2 } else { enough }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `count` records of `size` bytes, and snapshots of a state that grows by as much. Returns the bytes of all
    /// snapshots, and the most bytes of records that a load would read.
    fn written(count: usize, size: usize, is_evicted: bool, is_reloaded: bool) -> (usize, usize) {
        let record = Bytes::from(vec![0; size]);
        let (mut snapshot, mut records) = (None, Vec::new());
        let (mut stored, mut sum, mut longest) = (StoredBytes::default(), 0, 0);
        for n in 1..=count {
            stored = stored.with_record(&record);
            records.push(record.clone());
            if stored.wants_snapshot(is_evicted) {
                sum += n * size;
                (snapshot, records) = (Some(Bytes::from(vec![0; n * size])), Vec::new());
                stored = StoredBytes::new(snapshot.as_ref(), &[]);
            }
            longest = longest.max(records.len() * size);
            if is_reloaded {
                stored = StoredBytes::new(snapshot.as_ref(), &records);
            }
        }
        (sum, longest)
    }

    #[test]
    fn m4_all_snapshots_of_a_growing_run_stay_in_proportion_to_its_records() {
        for (size, is_evicted, is_reloaded) in
            [(4_000, false, false), (4_000, true, true), (4_000, false, true), (70_000, false, true)]
        {
            let count = 8_000_000 / size;
            let (sum, longest) = written(count, size, is_evicted, is_reloaded);
            let journal = count * size;
            assert!(sum <= 4 * journal, "{sum} bytes of snapshots for {journal} of records of {size}");
            assert!(longest <= journal / 2, "a load reads {longest} bytes of records");
        }
    }

    #[test]
    fn a_small_run_writes_a_snapshot_every_32_records_and_when_evicted_after_16() {
        let record = Bytes::from_static(&[0; 100]);
        let after = |n: usize| StoredBytes::new(Some(&record), &vec![record.clone(); n]);
        assert_eq!([31, 32].map(|n| after(n).wants_snapshot(false)), [false, true]);
        assert_eq!([15, 16].map(|n| after(n).wants_snapshot(true)), [false, true]);
    }
}
