//! Measures how many records per second the Postgres store commits, and how many bytes of WAL each record costs:
//! `cargo run --release --example postgres_rate [postgres://…]`. Without a URL it starts a server.
//!
//! Runs of ten steps, one record of each run per batch, every batch of a writer durable before its next. It measures
//! the store alone, without the kernel, so the result is an upper bound for the engine.

use kernel::{RunId, RunStatus, Timestamp};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use store::prelude::*;
use store::{Batch, PostgresStore, RunRow, RunWrite};
use testkit::conformance::fixtures::{ORG, append, at, row, run};
use testkit::postgres::{name_in, shared};

const STEPS: u64 = 10;
const RECORD_BYTES: usize = 127;
const WINDOW: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() {
    let given = std::env::args().nth(1);
    let url = given.clone().unwrap_or_else(|| shared().database());
    let log = || given.is_none().then(|| wal_bytes(name_in(&url)));
    for (in_flight, writers) in [(1, 1), (64, 1), (256, 1), (1024, 1), (1024, 2), (1024, 4)] {
        let store = Arc::new(PostgresStore::open(&url).await.expect("the database opens"));
        let before = log();
        let started = Instant::now();
        let tasks = (0..writers).map(|writer| tokio::spawn(measure(store.clone(), in_flight / writers, writer)));
        let mut slowest = Duration::ZERO;
        for writer in tasks.collect::<Vec<_>>() {
            slowest = slowest.max(writer.await.expect("a writer"));
        }
        let (spent, counters) = (started.elapsed().as_secs_f64(), store.counters());
        let rate = counters.records as f64 / spent / 1_000.0;
        let each = log().zip(before).map_or(0, |(after, before)| (after - before) / counters.records);
        println!(
            "{in_flight:5} in flight, {writers} at once: {rate:7.1}k records/s, {each:5} B of log each, slowest commit {slowest:?}"
        );
    }
}

fn wal_bytes(database: &str) -> u64 {
    let bytes = shared().sql(database, "SELECT (pg_current_wal_lsn() - '0/0')::bigint");
    bytes.parse().expect("a number of bytes")
}

async fn measure(store: Arc<PostgresStore>, in_flight: u64, writer: u64) -> Duration {
    let (started, mut slowest, mut first) = (Instant::now(), Duration::ZERO, writer << 40);
    while started.elapsed() < WINDOW {
        let ids: Vec<RunId> = (first..first + in_flight).map(id).collect();
        for step in 0..STEPS {
            let batch = Batch { at: at(1), epoch: 1, runs: ids.iter().map(|id| write(*id, step)).collect() };
            let sent = Instant::now();
            store.commit(&batch).await.expect("a commit");
            slowest = slowest.max(sent.elapsed());
        }
        first += in_flight;
    }
    slowest
}

/// Generated now, so that the records go to the partition of the current month.
fn id(n: u64) -> RunId {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_millis();
    let mut random = [7; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    RunId::new(Timestamp::from_millis(now as i64), random)
}

fn write(id: RunId, step: u64) -> RunWrite {
    let status = if step == 0 { Some(RunStatus::Running) } else { (step == STEPS - 1).then_some(RunStatus::Completed) };
    let row = status.map(|status| RunRow { id, ..row(ORG, run(1), status) });
    RunWrite { row, record: vec![7; RECORD_BYTES].into(), ..append(id, step) }
}
