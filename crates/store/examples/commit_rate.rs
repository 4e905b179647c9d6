//! Measures how many records per second the SQLite store commits:
//! `cargo run --release --example commit_rate [directory]`.
//!
//! Runs of ten steps, one record of each run per batch, every batch durable before the next. It measures the store
//! alone, without the kernel, so the result is an upper bound for the engine.

use kernel::RunStatus;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::prelude::*;
use store::{Batch, RunWrite, SqliteStore};
use testkit::conformance::fixtures::{ORG, append, at, row, run};
use testkit::now;

const STEPS: u64 = 10;
const RECORD_BYTES: usize = 127;

fn main() {
    let directory = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    for in_flight in [1, 64, 256, 1024] {
        let place = tempfile::TempDir::new_in(&directory).expect("a directory to write in");
        measure(&SqliteStore::open(&place.path().join("onward.db")).expect("a new database"), in_flight);
    }
}

fn measure(store: &SqliteStore, in_flight: u64) {
    let started = Instant::now();
    let (mut slowest, mut first) = (Duration::ZERO, 0);
    while started.elapsed() < Duration::from_secs(4) {
        for step in 0..STEPS {
            let runs = (first..first + in_flight).map(|n| write(n, step)).collect();
            let batch = Batch { at: at(1), epoch: 1, runs };
            let sent = Instant::now();
            now(store.commit(&batch)).expect("a commit");
            slowest = slowest.max(sent.elapsed());
        }
        first += in_flight;
    }
    let (spent, counters) = (started.elapsed().as_secs_f64(), store.counters());
    let rate = counters.records as f64 / spent / 1_000.0;
    let wal_bytes = counters.wal_bytes / counters.records;
    println!("{in_flight:5} in flight: {rate:7.1}k records/s, {wal_bytes:5} B of log each, slowest commit {slowest:?}");
}

fn write(n: u64, step: u64) -> RunWrite {
    let status = if step == 0 { Some(RunStatus::Running) } else { (step == STEPS - 1).then_some(RunStatus::Completed) };
    let row = status.map(|status| row(ORG, run(n), status));
    RunWrite { row, record: vec![7; RECORD_BYTES].into(), ..append(run(n), step) }
}
