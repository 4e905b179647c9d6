//! What nodes tell each other: heard by the others, soon, and never missed without a word.

use crate::postgres::{Database, open, runtime};
use kernel::{OrgId, RunId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use store::prelude::*;
use store::{ClusterEvent, PostgresStore, QueueKey};
use testkit::postgres::{name_in, shared};
use tokio::sync::mpsc::Receiver;

const PATIENCE: Duration = Duration::from_secs(20);

fn next(news: &mut Receiver<ClusterEvent>) -> ClusterEvent {
    let heard = async { tokio::time::timeout(PATIENCE, news.recv()).await };
    runtime().block_on(heard).expect("something is said").expect("the store is open")
}

/// A store that listens, and what it hears after it began to.
fn listener(database: &Database) -> (PostgresStore, Receiver<ClusterEvent>) {
    let store = open(&database.url);
    let mut news = store.listen().expect("there may be others");
    assert_eq!(next(&mut news), ClusterEvent::Missed, "whatever was said before");
    (store, news)
}

fn moved(n: u64) -> ClusterEvent {
    ClusterEvent::RunAdvanced(OrgId(1), RunId(u128::from(n).to_be_bytes()))
}

#[test]
fn others_hear_what_one_says_and_nobody_hears_itself() {
    let database = Database::new();
    let ((a, mut to_a), (b, mut to_b)) = (listener(&database), listener(&database));
    let said = [
        ClusterEvent::TaskReady(QueueKey { org: OrgId(1), name: "mail.send".into(), key: "日本\0 'x' \n".into() }),
        ClusterEvent::TaskReady(QueueKey { org: OrgId(1), name: "mail.send".into(), key: "日本 'x' \n".into() }),
        ClusterEvent::TypeChanged(OrgId(2), "mail".into()),
        moved(1),
        moved(1),
        ClusterEvent::PausesChanged,
        ClusterEvent::NodesChanged,
    ];
    said.iter().for_each(|news| a.broadcast(news.clone()));
    let mut heard = BTreeSet::new();
    // What cannot be written down is said to be missing.
    while heard.len() < 6 {
        heard.insert(next(&mut to_b));
    }
    let mut expected: BTreeSet<ClusterEvent> = said.iter().skip(1).cloned().collect();
    expected.insert(ClusterEvent::Missed);
    assert_eq!(heard, expected);
    b.broadcast(moved(2));
    assert_eq!(next(&mut to_a), moved(2), "and nothing of its own before that");
    let began = Instant::now();
    for n in 100..120 {
        a.broadcast(moved(n));
        while next(&mut to_b) != moved(n) {}
    }
    assert!(began.elapsed() < Duration::from_secs(5), "20 there and back took {:?}", began.elapsed());
}

#[test]
fn a_session_that_was_lost_is_opened_again_and_says_so() {
    let database = Database::new();
    let ((a, _), (_b, mut to_b)) = (listener(&database), listener(&database));
    for round in 0..3 {
        let ended = shared().sql(
            name_in(&database.url),
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%onward%'",
        );
        assert_ne!(ended, "0");
        assert_eq!(next(&mut to_b), ClusterEvent::Missed);
        // It may be another's session that comes back later: then what it says is late, or only that something was missed.
        a.broadcast(moved(round));
        let until = Instant::now() + PATIENCE;
        while !matches!(next(&mut to_b), ClusterEvent::RunAdvanced(..) | ClusterEvent::Missed) {
            assert!(Instant::now() < until);
        }
        while to_b.try_recv().is_ok() {}
    }
}

#[test]
fn a_flood_of_news_is_missed_rather_than_kept() {
    let database = Database::new();
    let ((a, _), (_b, mut to_b)) = (listener(&database), listener(&database));
    let began = Instant::now();
    for n in 0..100_000 {
        a.broadcast(moved(n));
    }
    assert!(began.elapsed() < Duration::from_secs(2), "telling waits for nobody: {:?}", began.elapsed());
    a.broadcast(ClusterEvent::PausesChanged);
    // Nobody takes anything for a while; then what waits is bounded, and ends with what was missed.
    std::thread::sleep(Duration::from_millis(300));
    let mut heard = 0;
    let mut is_missed = false;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match runtime().block_on(async { tokio::time::timeout(Duration::from_millis(500), to_b.recv()).await }) {
            Ok(Some(ClusterEvent::Missed)) => is_missed = true,
            Ok(Some(_)) => heard += 1,
            _ => break,
        }
    }
    assert!(is_missed, "after {heard}");
    assert!(heard < 50_000, "{heard} of 100,000 were kept");
    a.broadcast(ClusterEvent::NodesChanged);
    assert_eq!(next(&mut to_b), ClusterEvent::NodesChanged, "it goes on");
}

#[test]
fn a_store_that_is_closed_leaves_no_session() {
    let database = Database::new();
    let count = || {
        let sessions = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'onward'";
        shared().sql(name_in(&database.url), sessions).parse::<u32>().unwrap()
    };
    let (store, news) = listener(&database);
    assert!(count() > 0);
    drop((store, news));
    let until = Instant::now() + PATIENCE;
    while count() > 0 {
        assert!(Instant::now() < until, "{} sessions", count());
    }
}
