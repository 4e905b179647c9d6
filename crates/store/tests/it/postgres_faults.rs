//! A server that goes away, comes back, and changes its mind. The question is always the same: was anything
//! acknowledged that is not there, or refused that is?

use crate::postgres::{Database, open, runtime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use store::prelude::*;
use store::{Error, PostgresStore, Verdict};
use testkit::conformance::fixtures::{ORG, append, at, batch, record, run, start};
use testkit::postgres::{Cluster, name_in, shared};

const LANES: u64 = 4;
/// Runs in each batch.
const RUNS: u64 = 5;

/// Writers that go on whatever happens, until they are told to stop.
struct Load {
    store: Arc<PostgresStore>,
    is_over: AtomicBool,
    /// Batches that were acknowledged, refused, and of which nobody could tell.
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

    /// Appends to runs of its own. What is refused was not written, so the same again must succeed; what is
    /// unknown was written for all runs of the batch or for none.
    async fn queue(self: Arc<Load>, queue: u64) -> u64 {
        let runs: Vec<u64> = (0..RUNS).map(|n| queue * 100 + n).collect();
        let mut seq = 0;
        while !self.is_over.load(Relaxed) {
            let writes: Vec<_> =
                runs.iter().map(|n| if seq == 0 { start(run(*n)) } else { append(run(*n), seq) }).collect();
            match self.store.commit(&batch(writes)).await {
                Ok(verdicts) => {
                    assert_eq!(verdicts, vec![Verdict::Committed; runs.len()], "lane {queue} after {seq}");
                    self.acknowledged.fetch_add(1, Relaxed);
                    seq += 1;
                }
                Err(Error::Unavailable(_)) => {
                    self.refused.fetch_add(1, Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(Error::Unknown(_)) => {
                    self.unknown.fetch_add(1, Relaxed);
                    seq = self.look(&runs).await;
                }
                Err(other) => panic!("{other}"),
            }
        }
        seq
    }

    /// Number of the last record, which is the same for all.
    async fn look(&self, runs: &[u64]) -> u64 {
        let mut seqs = Vec::new();
        while seqs.len() < runs.len() {
            match self.store.load(ORG, run(runs[seqs.len()])).await {
                Ok(found) => seqs.push(found.map_or(0, |loaded| loaded.seq)),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        assert!(seqs.iter().all(|seq| *seq == seqs[0]), "a batch is there or not: {seqs:?}");
        seqs[0]
    }

    /// Lets the writers work while `disturb` does its worst, then compares what they were told with what is there.
    fn survive(self: &Arc<Load>, disturb: impl FnOnce()) {
        let key_queues: Vec<_> = (0..LANES).map(|queue| runtime().spawn(Arc::clone(self).queue(queue))).collect();
        disturb();
        self.is_over.store(true, Relaxed);
        let mut records = 0;
        for (queue, told) in (0..LANES).zip(key_queues) {
            let seq = runtime().block_on(told).unwrap();
            for n in 0..RUNS {
                let id = run(queue * 100 + n);
                let history =
                    runtime().block_on(self.store.history(ORG, id, 0, usize::MAX)).unwrap().unwrap_or_default();
                assert!(
                    history.into_iter().eq((1..=seq).map(|seq| record(id, seq, at(1_000)))),
                    "run {n} of lane {queue}"
                );
                records += seq;
            }
        }
        let end = runtime().block_on(self.store.journal_page(ORG, None, 1)).unwrap().end;
        assert_eq!(end, records, "every record has one position");
    }

    /// Waits until so many more batches were acknowledged: the store has recovered.
    fn wait_for(&self, more: u64) {
        let (from, until) = (self.acknowledged.load(Relaxed), Instant::now() + Duration::from_secs(60));
        while self.acknowledged.load(Relaxed) < from + more {
            assert!(Instant::now() < until, "nothing gets through any more");
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
    assert_eq!(load.unknown.load(Relaxed), 0, "the server was there to be asked");
}

#[test]
fn p18_a_server_that_dies_or_rests_loses_nothing() {
    let mut cluster = Cluster::start(&[]);
    let url = cluster.database();
    let load = Load::new(open(&url));
    load.survive(|| {
        for is_kill in [true, false, true] {
            load.wait_for(10);
            cluster.stop(is_kill);
            let asked = Instant::now();
            let down = runtime().block_on(load.store.check());
            assert!(matches!(down, Err(Error::Unavailable(_))), "{down:?}");
            assert!(asked.elapsed() < Duration::from_secs(2), "it fails fast");
            cluster.start_again();
        }
        load.wait_for(10);
    });
    // For a while the server takes no writes, and says so to sessions that are open.
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
        assert!(Instant::now() < until, "the setting arrives");
        n += 1;
    }
    assert!(matches!(write(), Err(Error::Unavailable(_))));
    assert!(matches!(runtime().block_on(store.check()), Err(Error::Unavailable(_))));
    assert!(runtime().block_on(store.load(ORG, run(0))).unwrap().is_some(), "reads go on");
    is_writable(true);
    while runtime().block_on(store.check()).is_err() {
        assert!(Instant::now() < until, "the setting arrives");
    }
    assert_eq!(write(), Ok(vec![Verdict::Committed]));
}

#[test]
fn a_transaction_whose_session_is_ended_under_way_is_written_once() {
    let database = Database::new();
    let store = Arc::new(open(&database.url));
    let name = name_in(&database.url);
    runtime().block_on(store.commit(&batch([start(run(1))]))).unwrap();
    // Somebody holds what the end of every batch needs.
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
                    // It waits for a while only.
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
    assert_eq!(runtime().block_on(commit).unwrap(), Ok(vec![Verdict::Committed; 2]));
    blocker.join().unwrap();
    assert_eq!(runtime().block_on(store.load(ORG, run(1))).unwrap().unwrap().seq, 2);
}

#[test]
fn a_server_without_durable_settings_is_refused() {
    for setting in ["fsync", "full_page_writes"] {
        let cluster = Cluster::start(&[(setting, "off")]);
        let refused = runtime().block_on(PostgresStore::open(&cluster.url("postgres"))).err();
        assert!(matches!(&refused, Some(Error::Refused(why)) if why.contains(setting)), "{refused:?}");
        assert_eq!(cluster.sql("postgres", "SELECT to_regnamespace('onward') IS NULL"), "t", "nothing was written");
    }
}

#[test]
fn a_server_that_lost_what_it_acknowledged_is_noticed_and_nobody_goes_on_as_if_nothing_had_happened() {
    let mut cluster = Cluster::start(&[]);
    let url = cluster.database();
    let store = open(&url);
    let wait = |call: &dyn Fn() -> store::Result<Vec<Verdict>>| {
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
    assert_eq!(commit(vec![start(run(1))]), Ok(vec![Verdict::Committed]));
    cluster.back_up();
    assert_eq!(commit(vec![append(run(1), 1)]), Ok(vec![Verdict::Committed]), "a restart loses nothing");
    assert_eq!(commit(vec![append(run(1), 2)]), Ok(vec![Verdict::Committed]));
    let lost = runtime().block_on(store.join("lost")).unwrap();
    assert_eq!(store.counters().rollbacks, 0);
    cluster.restore();
    // Another one writes what has another meaning now, under the same number.
    let other = open(&url);
    assert_eq!(runtime().block_on(other.commit(&batch([append(run(1), 1)]))), Ok(vec![Verdict::Committed]));
    assert_eq!(commit(vec![append(run(1), 2)]), Err(Error::Fenced), "it would fit, by its number");
    assert_eq!(store.counters().rollbacks, 1);
    let until = Instant::now() + Duration::from_secs(30);
    let renewed = loop {
        match runtime().block_on(store.renew(before, kernel::Span::from_secs(10))) {
            Err(Error::Unavailable(_)) if Instant::now() < until => {}
            other => break other,
        }
    };
    assert_eq!(renewed, Err(Error::Fenced), "its row may be there as if nothing had happened");
    let anew = runtime().block_on(store.join("anew")).unwrap();
    assert!(anew > lost, "epoch {anew} after {lost}");
    let found = runtime().block_on(store.load(ORG, run(1))).unwrap().unwrap();
    assert_eq!(found.seq, 2);
    assert_eq!(commit(vec![append(run(1), 2)]), Ok(vec![Verdict::Committed]));
    assert_eq!((store.counters().rollbacks, other.counters().rollbacks), (1, 0));
}

#[test]
fn what_was_erased_is_not_taken_for_lost() {
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
    // As another process would erase it.
    shared().sql(
        name,
        "BEGIN; DELETE FROM onward.journal; DELETE FROM onward.runs;
         INSERT INTO onward.settings VALUES ('erased_until_us', '9000000000000000000'); COMMIT",
    );
    end_all();
    assert_eq!(store.counters().rollbacks, 0, "its name among what has arrived");
    let _ = runtime().block_on(store.journal_page(ORG, None, 1)).unwrap();
    end_all();
    assert_eq!(store.counters().rollbacks, 0, "its name among what has a position");
    shared().sql(name, "DELETE FROM onward.positions; DELETE FROM onward.arrivals");
    end_all();
    assert_eq!(store.counters().rollbacks, 1, "there is no trace of it");
}
