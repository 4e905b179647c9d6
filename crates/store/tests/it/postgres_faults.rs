//! Faults of the Postgres server: crashes, restarts, lost sessions, lost writes. After each fault every acknowledged
//! write must exist, and no refused write may exist.

use crate::postgres::{Database, open, runtime};
use bytes::Bytes;
use kernel::RunId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::prelude::*;
use store::{Error, PostgresStore, WriteVerdict};
use testkit::conformance::fixtures::{ORG, append, at, batch, record, run, start};
use testkit::postgres::{PostgresCluster, name_in, shared};

const WRITERS: u64 = 4;
/// Runs in each batch.
const RUNS: u64 = 5;

/// Writers that continue through every fault, until the test stops them.
struct Load {
    store: Arc<PostgresStore>,
    is_over: AtomicBool,
    /// Batches that were acknowledged, refused, or had an unknown outcome.
    acknowledged: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
}

impl Load {
    fn new(store: PostgresStore) -> Arc<Load> {
        Arc::new(Load {
            store: Arc::new(store),
            is_over: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        })
    }

    /// Appends to the runs of one writer. A refused batch was not written, so a retry must succeed; a batch with an
    /// unknown outcome was written for all of its runs or for none.
    async fn write(self: Arc<Load>, writer: u64) -> u64 {
        let runs: Vec<u64> = (0..RUNS).map(|n| writer * 100 + n).collect();
        let mut seq = 0;
        while !self.is_over.load(Relaxed) {
            let writes: Vec<_> =
                runs.iter().map(|n| if seq == 0 { start(run(*n)) } else { append(run(*n), seq) }).collect();
            match self.store.commit(&batch(writes)).await {
                Ok(verdicts) => {
                    assert_eq!(verdicts, vec![WriteVerdict::Committed; runs.len()], "writer {writer} after {seq}");
                    self.acknowledged.fetch_add(1, Relaxed);
                    seq += 1;
                }
                Err(Error::Unavailable(_)) => {
                    self.refused.fetch_add(1, Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(Error::Unknown(_)) => {
                    self.unknown.fetch_add(1, Relaxed);
                    seq = self.last_seq(&runs).await;
                }
                Err(other) => panic!("{other}"),
            }
        }
        seq
    }

    /// Number of the last record, which must be the same for all runs.
    async fn last_seq(&self, runs: &[u64]) -> u64 {
        let mut seqs = Vec::new();
        while seqs.len() < runs.len() {
            match self.store.load(ORG, run(runs[seqs.len()])).await {
                Ok(found) => seqs.push(found.map_or(0, |loaded| loaded.seq)),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        assert!(seqs.iter().all(|seq| *seq == seqs[0]), "a batch is written as a whole or not at all: {seqs:?}");
        seqs[0]
    }

    /// Runs the writers while `disturb` injects faults, then compares the acknowledged records with the stored ones.
    fn survive(self: &Arc<Load>, disturb: impl FnOnce()) {
        let writers: Vec<_> = (0..WRITERS).map(|writer| runtime().spawn(Arc::clone(self).write(writer))).collect();
        disturb();
        self.is_over.store(true, Relaxed);
        let mut records = 0;
        for (writer, acknowledged) in (0..WRITERS).zip(writers) {
            let seq = runtime().block_on(acknowledged).unwrap();
            for n in 0..RUNS {
                let id = run(writer * 100 + n);
                let history = self.history(id);
                assert!(
                    history.into_iter().eq((1..=seq).map(|seq| record(id, seq, at(1_000)))),
                    "run {n} of writer {writer}"
                );
                records += seq;
            }
        }
        let end = runtime().block_on(self.store.journal_page(ORG, None, 1)).unwrap().end;
        assert_eq!(end, records, "every record has one position");
    }

    /// The records of a run. The first reads may meet a session that was terminated a moment ago.
    fn history(&self, id: RunId) -> Vec<Bytes> {
        for _ in 0..20 {
            match runtime().block_on(self.store.history(ORG, id, 0, usize::MAX)) {
                Err(Error::Unavailable(_)) => std::thread::sleep(Duration::from_millis(50)),
                read => return read.unwrap().unwrap_or_default(),
            }
        }
        panic!("the store is not available");
    }

    /// Waits until this many more batches were acknowledged, which shows that the store has recovered.
    fn wait_for(&self, more: u64) {
        let (from, until) = (self.acknowledged.load(Relaxed), Instant::now() + Duration::from_secs(60));
        while self.acknowledged.load(Relaxed) < from + more {
            assert!(Instant::now() < until, "no batch was acknowledged for 60 seconds");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn p18_terminated_backends_lose_nothing_and_double_nothing() {
    let database = Database::new();
    let load = Load::new(open(&database.url));
    let name = name_in(&database.url);
    let terminate = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    );
    let mut terminated = 0;
    load.survive(|| {
        load.wait_for(10);
        for _ in 0..40 {
            terminated += shared().sql(name, &terminate).parse::<u32>().unwrap();
            load.wait_for(2);
        }
    });
    assert!(terminated >= 40, "{terminated}");
    assert_eq!(load.unknown.load(Relaxed), 0, "the server was up, so every outcome could be found out");
}

#[test]
fn p18_a_killed_or_stopped_server_loses_nothing() {
    let mut cluster = PostgresCluster::start(&[]);
    let url = cluster.database();
    let load = Load::new(open(&url));
    load.survive(|| {
        for is_kill in [true, false, true] {
            load.wait_for(10);
            cluster.stop(is_kill);
            let called = Instant::now();
            let down = runtime().block_on(load.store.check());
            assert!(matches!(down, Err(Error::Unavailable(_))), "{down:?}");
            assert!(called.elapsed() < Duration::from_secs(2), "it fails fast");
            cluster.start_again();
        }
        load.wait_for(10);
    });
    // The server becomes read-only for a while, also for open sessions.
    let is_writable = |is| {
        cluster.sql(
            "postgres",
            &format!("ALTER SYSTEM SET default_transaction_read_only = {}", if is { "off" } else { "on" }),
        );
        cluster.sql("postgres", "SELECT pg_reload_conf()");
    };
    let store = &load.store;
    let write = || runtime().block_on(store.commit(&batch([start(run(9_000))])));
    is_writable(false);
    let until = Instant::now() + Duration::from_secs(20);
    let mut n = 9_001;
    while runtime().block_on(store.commit(&batch([start(run(n))]))).is_ok() {
        assert!(Instant::now() < until, "the setting takes effect");
        n += 1;
    }
    assert!(matches!(write(), Err(Error::Unavailable(_))));
    assert!(matches!(runtime().block_on(store.check()), Err(Error::Unavailable(_))));
    assert!(runtime().block_on(store.load(ORG, run(0))).unwrap().is_some(), "reads go on");
    is_writable(true);
    while runtime().block_on(store.check()).is_err() {
        assert!(Instant::now() < until, "the setting takes effect");
    }
    assert_eq!(write(), Ok(vec![WriteVerdict::Committed]));
}

#[test]
fn a_transaction_whose_session_is_terminated_is_written_once() {
    let database = Database::new();
    let store = Arc::new(open(&database.url));
    let name = name_in(&database.url);
    runtime().block_on(store.commit(&batch([start(run(1))]))).unwrap();
    // Another session locks the table that every batch writes to last.
    let blocker = std::thread::spawn({
        let name = name.to_owned();
        move || {
            let hold = "BEGIN; LOCK TABLE onward.arrivals IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60); COMMIT";
            shared().psql(&name, hold)
        }
    });
    let of = |what: &str| format!("FROM pg_stat_activity WHERE datname = '{name}' AND {what}");
    let (blocked, waiting) =
        (of("wait_event = 'PgSleep'"), of("application_name = 'onward' AND wait_event_type = 'Lock'"));
    let until = Instant::now() + Duration::from_secs(40);
    let wait = |what: &str| {
        while shared().sql(name, &format!("SELECT count(*) {what}")) == "0" {
            assert!(Instant::now() < until);
        }
    };
    wait(&blocked);
    let commit = runtime().spawn({
        let store = Arc::clone(&store);
        async move {
            loop {
                match store.commit(&batch([append(run(1), 1), start(run(2))])).await {
                    // A commit waits only until its lock timeout.
                    Err(Error::Unavailable(_)) => {}
                    answer => return answer,
                }
            }
        }
    });
    for _ in 0..3 {
        wait(&waiting);
        shared().sql(name, &format!("SELECT pg_terminate_backend(pid) {waiting}"));
    }
    shared().sql(name, &format!("SELECT pg_terminate_backend(pid) {blocked}"));
    assert_eq!(runtime().block_on(commit).unwrap(), Ok(vec![WriteVerdict::Committed; 2]));
    blocker.join().unwrap();
    assert_eq!(runtime().block_on(store.load(ORG, run(1))).unwrap().unwrap().seq, 2);
}

#[test]
fn a_server_without_durable_settings_is_refused() {
    for setting in ["fsync", "full_page_writes"] {
        let cluster = PostgresCluster::start(&[(setting, "off")]);
        let refused = runtime().block_on(PostgresStore::open(&cluster.url("postgres"))).err();
        assert!(matches!(&refused, Some(Error::Refused(why)) if why.contains(setting)), "{refused:?}");
        assert_eq!(cluster.sql("postgres", "SELECT to_regnamespace('onward') IS NULL"), "t", "nothing was written");
    }
}

#[test]
fn a_server_that_lost_acknowledged_writes_is_detected_and_fences_the_node() {
    let mut cluster = PostgresCluster::start(&[]);
    let url = cluster.database();
    let store = open(&url);
    let wait = |call: &dyn Fn() -> store::Result<Vec<WriteVerdict>>| {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match call() {
                Err(Error::Unavailable(_)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
                other => break other,
            }
        }
    };
    let commit = |writes: Vec<store::RunWrite>| wait(&|| runtime().block_on(store.commit(&batch(writes.clone()))));
    let before = runtime().block_on(store.join("before")).unwrap();
    assert_eq!(commit(vec![start(run(1))]), Ok(vec![WriteVerdict::Committed]));
    cluster.back_up();
    assert_eq!(commit(vec![append(run(1), 1)]), Ok(vec![WriteVerdict::Committed]), "a restart loses nothing");
    assert_eq!(commit(vec![append(run(1), 2)]), Ok(vec![WriteVerdict::Committed]));
    let lost = runtime().block_on(store.join("lost")).unwrap();
    assert_eq!(store.counters().rollbacks, 0);
    cluster.restore();
    // Another node writes a different record under the same number.
    let other = open(&url);
    assert_eq!(runtime().block_on(other.commit(&batch([append(run(1), 1)]))), Ok(vec![WriteVerdict::Committed]));
    assert_eq!(commit(vec![append(run(1), 2)]), Err(Error::Fenced), "the number alone would match");
    assert_eq!(store.counters().rollbacks, 1);
    let until = Instant::now() + Duration::from_secs(30);
    let renewed = loop {
        match runtime().block_on(store.renew(before, kernel::Span::from_secs(10))) {
            Err(Error::Unavailable(_)) if Instant::now() < until => {}
            other => break other,
        }
    };
    assert_eq!(renewed, Err(Error::Fenced), "even if the node's row still exists");
    let rejoined = runtime().block_on(store.join("rejoined")).unwrap();
    assert!(rejoined > lost, "epoch {rejoined} after {lost}");
    let found = runtime().block_on(store.load(ORG, run(1))).unwrap().unwrap();
    assert_eq!(found.seq, 2);
    assert_eq!(commit(vec![append(run(1), 2)]), Ok(vec![WriteVerdict::Committed]));
    assert_eq!((store.counters().rollbacks, other.counters().rollbacks), (1, 0));
}

#[test]
fn deleted_records_are_not_taken_for_lost_writes() {
    let database = Database::new();
    let store = open(&database.url);
    assert_eq!(runtime().block_on(store.commit(&batch([start(run(1)), start(run(2))]))).unwrap().len(), 2);
    let name = name_in(&database.url);
    let end_all = || {
        shared().sql(
            name,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
        let until = Instant::now() + Duration::from_secs(30);
        while runtime().block_on(store.load(ORG, run(1))).is_err() {
            assert!(Instant::now() < until);
        }
    };
    // As if another process deleted the runs.
    shared().sql(
        name,
        "BEGIN; DELETE FROM onward.journal; DELETE FROM onward.runs;
         INSERT INTO onward.settings VALUES ('erased_until_us', '9000000000000000000'); COMMIT",
    );
    end_all();
    assert_eq!(store.counters().rollbacks, 0, "its key is in `arrivals`");
    let _ = runtime().block_on(store.journal_page(ORG, None, 1)).unwrap();
    end_all();
    assert_eq!(store.counters().rollbacks, 0, "its key is in `positions`");
    shared().sql(name, "DELETE FROM onward.positions; DELETE FROM onward.arrivals");
    end_all();
    assert_eq!(store.counters().rollbacks, 1, "its key does not exist any more");
}

#[test]
fn a_row_that_cannot_be_read_does_not_hide_the_others() {
    let database = Database::new();
    let store = open(&database.url);
    runtime().block_on(store.commit(&batch([start(run(1)), start(run(2)), start(run(3))]))).unwrap();
    shared()
        .sql(name_in(&database.url), &format!("UPDATE onward.runs SET hash = '\\x00' WHERE id = '{}'", uuid(run(2))));
    let filter = store::RunFilter { limit: 9, ..Default::default() };
    for filter in [filter.clone(), store::RunFilter { statuses: vec![kernel::RunStatus::Running], ..filter }] {
        let listed = runtime().block_on(store.runs(ORG, &filter)).unwrap();
        assert_eq!(listed.iter().map(store::listed_id).collect::<Vec<_>>(), [run(3), run(2), run(1)]);
        assert_eq!(listed.iter().map(|one| one.is_ok()).collect::<Vec<_>>(), [true, false, true]);
    }
}

/// An id as Postgres writes it.
fn uuid(id: kernel::RunId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}
