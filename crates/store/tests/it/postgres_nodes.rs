//! Several nodes on one database, each with its own store as in its own process.

use crate::postgres::{Database, open, runtime};
use kernel::{RunStatus, Span};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::WriteVerdict::{Committed, Conflict, KeyTaken, Undone};
use store::prelude::*;
use store::{Batch, Error, PostgresStore, RunInsert, RunWrite, WriteVerdict};
use testkit::conformance::fixtures::{ORG, append, atomic_group, batch, born, key, run, start, turn};
use testkit::postgres::{name_in, shared};

fn commit(store: &PostgresStore, runs: impl Into<Vec<RunWrite>>) -> Vec<WriteVerdict> {
    runtime().block_on(store.commit(&batch(runs))).unwrap()
}

const LONG: Span = Span::from_secs(3600);

#[test]
fn one_node_writes_the_next_record_and_other_runs_are_not_affected() {
    let database = Database::new();
    let nodes: Vec<Arc<PostgresStore>> = (0..4).map(|_| Arc::new(open(&database.url))).collect();
    const CONTESTED: u64 = 3;
    commit(&nodes[0], (0..CONTESTED).map(|n| start(run(n))).collect::<Vec<_>>());
    let mut own = vec![0u64; nodes.len()];
    for seq in 1..40 {
        // All nodes append to the same record of the same runs, and each also has one run of its own.
        let tasks: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(node, store)| {
                let mut writes: Vec<RunWrite> = (0..CONTESTED).map(|n| append(run(n), seq)).collect();
                let id = run(100 + node as u64);
                writes.insert(1, if own[node] == 0 { start(id) } else { append(id, own[node]) });
                let store = Arc::clone(store);
                runtime().spawn(async move { store.commit(&batch(writes)).await.unwrap() })
            })
            .collect();
        let mut winners = vec![0; CONTESTED as usize];
        for (node, task) in tasks.into_iter().enumerate() {
            let mut verdicts = runtime().block_on(task).unwrap();
            assert_eq!(verdicts.remove(1), Committed, "the node's own run is not affected");
            own[node] += 1;
            for (count, verdict) in winners.iter_mut().zip(verdicts) {
                assert!(matches!(verdict, Committed | Conflict));
                *count += u32::from(verdict == Committed);
            }
        }
        assert_eq!(winners, [1; CONTESTED as usize], "record {seq}");
    }
}

#[test]
fn a_node_that_stopped_in_the_middle_of_a_batch_blocks_only_its_runs() {
    let database = Database::new();
    let store = open(&database.url);
    commit(&store, [start(run(1)), start(run(2))]);
    // Such a node leaves a record that is neither committed nor rolled back.
    let (name, id) = (name_in(&database.url).to_owned(), hex(run(1).0));
    let stopped = std::thread::spawn(move || {
        shared().sql(
            &name,
            &format!("BEGIN; INSERT INTO onward.journal VALUES (1, '{id}', 2, ''); SELECT pg_sleep(4); ROLLBACK"),
        )
    });
    let name = name_in(&database.url);
    let holds = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
    let until = Instant::now() + Duration::from_secs(20);
    while shared().sql(name, holds) == "0" {
        assert!(Instant::now() < until);
    }
    let sent = Instant::now();
    assert_eq!(commit(&store, [append(run(1), 1), append(run(2), 1), start(run(3))]), [Conflict, Committed, Committed]);
    assert!(sent.elapsed() < Duration::from_secs(3), "{:?}", sent.elapsed());
    stopped.join().unwrap();
    assert_eq!(commit(&store, [append(run(1), 1)]), [Committed]);
}

fn hex(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_key_starts_one_run_on_any_number_of_nodes() {
    let database = Database::new();
    let nodes: Vec<Arc<PostgresStore>> = (0..4).map(|_| Arc::new(open(&database.url))).collect();
    for round in 0..20u64 {
        let keyed = |n: u64| {
            let run_insert = RunInsert { idempotency: Some(key(&format!("k{round}"), 1)), ..Default::default() };
            born(start(run(round * 100 + n)), run_insert)
        };
        let tasks: Vec<_> = (0..8u64)
            .map(|n| {
                let (store, write) = (Arc::clone(&nodes[n as usize % nodes.len()]), keyed(n));
                runtime().spawn(async move {
                    store.commit(&batch([write, start(run(round * 100 + 50 + n))])).await.unwrap()
                })
            })
            .collect();
        let verdicts: Vec<Vec<WriteVerdict>> =
            tasks.into_iter().map(|task| runtime().block_on(task).unwrap()).collect();
        let winner = verdicts.iter().position(|v| v[0] == Committed).expect("one of them") as u64;
        let taken = KeyTaken { run: run(round * 100 + winner), fingerprint: [1; 32] };
        for (n, verdict) in (0..).zip(&verdicts) {
            assert_eq!(verdict[0], if n == winner { Committed } else { taken.clone() });
            assert_eq!(verdict[1], Committed, "the other run of the batch starts anyway");
        }
    }
}

#[test]
fn a_fenced_node_cannot_write() {
    let database = Database::new();
    let (old, new) = (open(&database.url), open(&database.url));
    let epoch = runtime().block_on(old.next_epoch()).unwrap();
    let next = runtime().block_on(new.next_epoch()).unwrap();
    assert!(next > epoch);
    let write = |store: &PostgresStore, epoch, n| {
        let batch = Batch { epoch, ..batch([start(run(n))]) };
        runtime().block_on(store.commit(&batch))
    };
    assert_eq!(write(&old, epoch, 1), Ok(vec![Committed]));
    runtime().block_on(new.leave(epoch)).unwrap();
    let refused = write(&old, epoch, 2);
    assert_eq!(refused, Err(Error::Fenced));
    assert_eq!(runtime().block_on(old.renew(epoch, LONG)), Err(Error::Fenced));
    assert_eq!(runtime().block_on(old.run(ORG, run(2))), Ok(None));
    assert_eq!(write(&old, next, 2), Ok(vec![Committed]));
    assert!(runtime().block_on(new.next_epoch()).unwrap() > next);
}

#[test]
fn a_node_whose_lease_expired_is_fenced_by_live_nodes() {
    let database = Database::new();
    let store = open(&database.url);
    let join = |name: &str| runtime().block_on(store.join(name)).unwrap();
    let renew = |epoch, lease| {
        let live = runtime().block_on(store.renew(epoch, lease))?;
        Ok(live.into_iter().map(|(epoch, _)| epoch).collect::<Vec<u64>>())
    };
    let (ada, bob) = (join("ada"), join("bob"));
    assert_eq!(renew(ada, LONG), Ok(vec![ada, bob]));
    // The lease expires at once; but a node whose own lease has expired does not fence others.
    assert_eq!(renew(bob, Span(0)), Ok(vec![ada, bob]));
    let cat = join("cat");
    assert_eq!(renew(cat, Span(0)), Ok(vec![ada, cat]), "the new node fences bob");
    assert_eq!(renew(bob, LONG), Err(Error::Fenced));
    let dog = join("dog");
    assert_eq!(renew(dog, Span(0)), Ok(vec![ada, dog]));
    assert_eq!(renew(dog, LONG), Ok(vec![ada, dog]), "its lease expired, and no other node has fenced it yet");
    // A node that joins again fences its earlier epoch.
    let again = join("ada");
    assert_eq!(renew(again, LONG), Ok(vec![dog, again]));
    assert_eq!(renew(ada, LONG), Err(Error::Fenced));
    runtime().block_on(store.leave(dog)).unwrap();
    assert_eq!(renew(again, LONG), Ok(vec![again]));
}

#[test]
fn a_row_that_the_table_refuses_affects_only_its_atomic_group() {
    let database = Database::new();
    let store = open(&database.url);
    // Too long for an index, which only Postgres refuses.
    let mut rng = testkit::rng::Rng::new(1);
    let noise: String = (0..9_000).map(|_| char::from(b'!' + rng.below(90) as u8)).collect();
    let odd =
        |n: u64| born(start(run(n)), RunInsert { labels: vec![(noise.clone(), "v".into())], ..Default::default() });
    let mut writes = vec![start(run(1)), odd(2), start(run(3))];
    writes.extend(atomic_group(1, [start(run(4)), odd(5), start(run(6))]));
    writes.extend(atomic_group(2, [start(run(7)), start(run(8))]));
    let verdicts = commit(&store, writes);
    assert_eq!(verdicts[..3], [Committed, Conflict, Committed]);
    assert!(verdicts[3..6].iter().all(|v| matches!(v, Conflict | Undone)), "{verdicts:?}");
    assert_eq!(verdicts[6..], [Committed, Committed]);
    let existing =
        (1..9).filter(|n| runtime().block_on(store.run(ORG, run(*n))).unwrap().is_some()).collect::<Vec<u64>>();
    assert_eq!(existing, [1, 3, 7, 8]);
}

#[test]
fn a_reader_of_the_journal_misses_no_record() {
    let database = Database::new();
    let nodes: Vec<Arc<PostgresStore>> = (0..3).map(|_| Arc::new(open(&database.url))).collect();
    const RECORDS: u64 = 60;
    const RUNS: u64 = 6;
    // A transaction of another program, open all the time, with an id lower than those of all batches.
    let name = name_in(&database.url).to_owned();
    let stranger = std::thread::spawn(move || {
        shared().sql(&name, "CREATE TABLE IF NOT EXISTS strange (x int); BEGIN; INSERT INTO strange VALUES (1); SELECT pg_sleep(3); COMMIT")
    });
    let writers: Vec<_> = (0..RUNS)
        .map(|n| {
            let nodes = nodes.clone();
            runtime().spawn(async move {
                for seq in 0..RECORDS {
                    // Each record is written by another node.
                    let store = &nodes[(n + seq) as usize % nodes.len()];
                    let write = if seq == 0 { start(run(n)) } else { append(run(n), seq) };
                    assert_eq!(store.commit(&batch([write])).await, Ok(vec![Committed]));
                }
            })
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(60);
    let readers: Vec<_> = nodes
        .iter()
        .map(|store| {
            let store = Arc::clone(store);
            runtime().spawn(async move {
                let (mut after, mut seen) = (0, Vec::new());
                while (seen.len() as u64) < RUNS * RECORDS {
                    assert!(Instant::now() < until, "a record was missed: {} seen", seen.len());
                    let journal_page = store.journal_page(ORG, Some(after), 7).await.unwrap();
                    seen.extend(
                        journal_page.records.into_iter().map(|written| (written.pos, written.run, written.record)),
                    );
                    after = journal_page.end;
                }
                seen
            })
        })
        .collect();
    let seen: Vec<_> = readers.into_iter().map(|task| runtime().block_on(task).unwrap()).collect();
    for writer in writers {
        runtime().block_on(writer).unwrap();
    }
    assert!(seen.iter().all(|other| *other == seen[0]), "the same order for every reader");
    assert!(seen[0].iter().map(|(pos, ..)| *pos).eq(1..=RUNS * RECORDS), "each once, without gaps");
    let mut next = BTreeMap::new();
    for (_, id, body) in &seen[0] {
        let seq = next.entry(*id).or_insert(0);
        *seq += 1;
        assert_eq!(*body, testkit::conformance::fixtures::record(*id, *seq, testkit::conformance::fixtures::at(1_000)));
    }
    stranger.join().unwrap();
    shared().sql(name_in(&database.url), "DROP TABLE strange");
}

#[test]
fn a_deleted_run_is_not_recreated_by_a_change_of_its_row() {
    let database = Database::new();
    let store = open(&database.url);
    commit(&store, [start(run(1)), start(run(2))]);
    // The state in which a node appends a record while another deletes the run: the previous record exists, and the
    // row does not.
    shared().sql(name_in(&database.url), &format!("DELETE FROM onward.runs WHERE id = '{}'", hex(run(1).0)));
    let verdicts = commit(&store, [turn(run(1), 1, RunStatus::Failed), turn(run(2), 1, RunStatus::Failed)]);
    assert_eq!(verdicts, [Conflict, Committed]);
    assert_eq!(runtime().block_on(store.run(ORG, run(1))), Ok(None));
    assert_eq!(commit(&store, [append(run(2), 2)]), [Committed]);
}
