//! Cluster events: other nodes receive them soon, and a lost event is always reported as `Missed`.

use crate::postgres::{Database, open, runtime};
use kernel::{OrgId, RunId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use store::prelude::*;
use store::{ClusterEvent, PostgresStore, QueueKey};
use testkit::postgres::{name_in, shared};
use tokio::sync::mpsc::Receiver;

const TIMEOUT: Duration = Duration::from_secs(20);

fn next(events: &mut Receiver<ClusterEvent>) -> ClusterEvent {
    let received = async { tokio::time::timeout(TIMEOUT, events.recv()).await };
    runtime().block_on(received).expect("an event before the timeout").expect("the store is open")
}

/// A store that listens, and the events it receives after its first `Missed`.
fn listener(database: &Database) -> (PostgresStore, Receiver<ClusterEvent>) {
    let store = open(&database.url);
    let mut events = store.listen().expect("the store is shared");
    assert_eq!(next(&mut events), ClusterEvent::Missed, "events before the session began");
    (store, events)
}

fn advanced(n: u64) -> ClusterEvent {
    ClusterEvent::RunAdvanced(OrgId(1), RunId(u128::from(n).to_be_bytes()))
}

#[test]
fn other_nodes_receive_events_and_the_sender_does_not() {
    let database = Database::new();
    let ((a, mut to_a), (b, mut to_b)) = (listener(&database), listener(&database));
    let sent = [
        ClusterEvent::TaskReady(QueueKey { org: OrgId(1), name: "mail.send".into(), key: "日本\0 'x' \n".into() }),
        ClusterEvent::TaskReady(QueueKey { org: OrgId(1), name: "mail.send".into(), key: "日本 'x' \n".into() }),
        ClusterEvent::TypeChanged(OrgId(2), "mail".into()),
        advanced(1),
        advanced(1),
        ClusterEvent::PausesChanged,
        ClusterEvent::NodesChanged,
    ];
    sent.iter().for_each(|event| a.broadcast(event.clone()));
    let mut received = BTreeSet::new();
    // The key with byte 0 cannot be encoded and arrives as `Missed`.
    while received.len() < 6 {
        received.insert(next(&mut to_b));
    }
    let mut expected: BTreeSet<ClusterEvent> = sent.iter().skip(1).cloned().collect();
    expected.insert(ClusterEvent::Missed);
    assert_eq!(received, expected);
    b.broadcast(advanced(2));
    assert_eq!(next(&mut to_a), advanced(2), "no event of its own before that");
    let began = Instant::now();
    for n in 100..120 {
        a.broadcast(advanced(n));
        while next(&mut to_b) != advanced(n) {}
    }
    assert!(began.elapsed() < Duration::from_secs(5), "20 events took {:?}", began.elapsed());
}

#[test]
fn a_lost_session_is_reopened_and_reports_missed_events() {
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
        // It may be another's session that comes back later: then what it says is late, or only that something was
        // missed.
        a.broadcast(advanced(round));
        let until = Instant::now() + TIMEOUT;
        while !matches!(next(&mut to_b), ClusterEvent::RunAdvanced(..) | ClusterEvent::Missed) {
            assert!(Instant::now() < until);
        }
        while to_b.try_recv().is_ok() {}
    }
}

#[test]
fn too_many_events_are_reported_as_missed_instead_of_buffered() {
    let database = Database::new();
    let ((a, _), (_b, mut to_b)) = (listener(&database), listener(&database));
    let began = Instant::now();
    for n in 0..100_000 {
        a.broadcast(advanced(n));
    }
    assert!(began.elapsed() < Duration::from_secs(2), "broadcasting does not block: {:?}", began.elapsed());
    a.broadcast(ClusterEvent::PausesChanged);
    // The listener receives nothing for a while. The buffered events are bounded, and `Missed` follows them.
    std::thread::sleep(Duration::from_millis(300));
    let mut received = 0;
    let mut is_missed = false;
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        match runtime().block_on(async { tokio::time::timeout(Duration::from_millis(500), to_b.recv()).await }) {
            Ok(Some(ClusterEvent::Missed)) => is_missed = true,
            Ok(Some(_)) => received += 1,
            _ => break,
        }
    }
    assert!(is_missed, "after {received}");
    assert!(received < 50_000, "{received} of 100,000 were kept");
    a.broadcast(ClusterEvent::NodesChanged);
    assert_eq!(next(&mut to_b), ClusterEvent::NodesChanged, "later events arrive again");
}

#[test]
fn a_closed_store_leaves_no_session() {
    let database = Database::new();
    let count = || {
        let sessions = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'onward'";
        shared().sql(name_in(&database.url), sessions).parse::<u32>().unwrap()
    };
    let (store, events) = listener(&database);
    assert!(count() > 0);
    drop((store, events));
    let until = Instant::now() + TIMEOUT;
    while count() > 0 {
        assert!(Instant::now() < until, "{} sessions", count());
    }
}
