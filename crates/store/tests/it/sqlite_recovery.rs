//! Recovery after the process was killed, and how much of the journal a start reads.

use crate::support::{Place, commit};
use kernel::RunStatus;
use store::prelude::*;
use store::sqlite::Options;
use store::{Error, RunWrite, SqliteStore, WriteVerdict};
use testkit::conformance::fixtures::*;
use testkit::now;

fn recovery_pos(place: &Place) -> u64 {
    let stored: Result<String, _> =
        place.raw().query_row("SELECT value FROM settings WHERE name = 'recovery_pos'", [], |row| row.get(0));
    stored.map_or(0, |text| text.parse().unwrap())
}

/// Three kinds of runs: active with many records, evicted, ended.
fn populate(store: &dyn Store) {
    commit(store, [start(run(1)), start(run(2)), start(run(3)), start(run(4))]);
    for after in 1..30 {
        commit(store, [append(run(1), after)]);
    }
    commit(store, [park(run(2), 1, at(5)), turn(run(3), 1, RunStatus::Failed)]);
    commit(store, [append(run(2), 2), append(run(3), 2), append(run(1), 30)]);
}

fn check_populated(store: &dyn Store) {
    assert_eq!(now(store.active_runs()), Ok(vec![(ORG, run(1)), (ORG, run(4))]));
    for (n, seq) in [(1, 31), (2, 3), (3, 3), (4, 1)] {
        let history = now(store.history(ORG, run(n), 0, usize::MAX)).unwrap().unwrap();
        assert!(history.into_iter().eq((1..=seq).map(|seq| record(run(n), seq, at(1_000)))), "run {n}");
        assert_eq!(now(store.load(ORG, run(n))).unwrap().unwrap().seq, seq);
        assert_eq!(commit(store, [append(run(n), seq - 1)]), [WriteVerdict::Conflict]);
        assert_eq!(commit(store, [append(run(n), seq)]), [WriteVerdict::Committed]);
    }
    assert_eq!(now(store.next_timer()), Ok(Some(at(5))));
}

#[test]
fn everything_committed_is_there_after_a_kill() {
    let place = Place::new();
    let store = place.open();
    populate(&store);
    now(store.next_epoch()).unwrap();
    let killed = place.killed();
    let again = killed.open();
    check_populated(&again);
    assert_eq!(now(again.next_epoch()), Ok(2));
    assert_eq!(now(again.high_water()), Ok(Some(at(1_000))));
}

#[test]
fn a_kill_at_any_recovery_position_loses_nothing() {
    for recovery_records in 1..12 {
        let place = Place::new();
        let options = Options { recovery_records, ..Options::default() };
        let store = place.open_with(options.clone());
        populate(&store);
        let killed = place.killed();
        assert!(recovery_pos(&killed) > 38 - 2 * recovery_records, "{recovery_records}");
        check_populated(&killed.open_with(options));
    }
}

#[test]
fn bytes_move_the_recovery_position_too() {
    let place = Place::new();
    let store = place.open_with(Options { recovery_bytes: 60, ..Options::default() });
    populate(&store);
    assert!(recovery_pos(&place) > 30);
}

#[test]
fn a_start_reads_only_the_journal_after_the_recovery_position() {
    let place = Place::new();
    let store = place.open_with(Options { recovery_records: 10, ..Options::default() });
    populate(&store);
    let killed = place.killed();
    // A start does not read the records before the recovery position, so they may be unreadable.
    killed.raw().execute("UPDATE journal SET run = x'00' WHERE pos < 10", []).unwrap();
    let again = killed.open();
    assert_eq!(now(again.active_runs()), Ok(vec![(ORG, run(1)), (ORG, run(4))]));
    assert!(matches!(now(again.history(ORG, run(1), 0, usize::MAX)), Err(Error::Corrupt(_))), "but reading them fails");
    assert_eq!(commit(&again, [append(run(1), 31)]), [WriteVerdict::Committed]);
}

#[test]
fn a_checkpoint_at_every_commit_loses_nothing() {
    let place = Place::new();
    let store = place.open_with(Options { restart_bytes: 1, ..Options::default() });
    populate(&store);
    check_populated(&place.killed().open());
}

#[test]
fn the_checkpoint_thread_copies_the_log_during_commits() {
    let place = Place::new();
    let store = place.open_with(Options { passive_bytes: 1, restart_bytes: 200_000, ..Options::default() });
    populate(&store);
    assert!(store.counters().wal_bytes > 0);
    drop(store);
    check_populated(&place.open());
}

#[test]
fn damage_is_reported_and_never_panics() {
    for damage in [
        "DELETE FROM journal WHERE pos = 20",
        "UPDATE journal SET seq = seq + 1 WHERE pos = 20",
        "UPDATE journal SET prev = pos WHERE pos = 20",
        "UPDATE journal SET prev = 0 WHERE pos = 20",
        "UPDATE journal SET org = 2 WHERE pos = 20",
        "UPDATE journal SET run = x'0011' WHERE pos = 20",
        "UPDATE journal SET prev = 3 WHERE pos = 1",
        "UPDATE runs SET form = 'riddle'",
        "UPDATE runs SET seq = -1, head = 500",
    ] {
        let place = Place::new();
        let store = place.open_with(Options { recovery_records: 1, ..Options::default() });
        populate(&store);
        place.raw().execute(damage, []).unwrap();
        assert!(matches!(now(store.history(ORG, run(1), 0, usize::MAX)), Err(Error::Corrupt(_))), "{damage}");
        commit(&store, [start(run(50))]);
    }
}

#[test]
fn a_journal_with_a_missing_record_after_the_recovery_position_does_not_open() {
    let place = Place::new();
    let store = place.open();
    populate(&store);
    let killed = place.killed();
    killed.raw().execute("DELETE FROM journal WHERE pos = 20", []).unwrap();
    assert!(matches!(SqliteStore::open(&killed.database()), Err(Error::Corrupt(_))));
}

/// A commit that finds damage has an unknown outcome, so the store refuses all further writes.
#[test]
fn after_an_unknown_outcome_nothing_is_written_until_the_store_is_reopened() {
    let place = Place::new();
    let store = place.open();
    populate(&store);
    drop(store);
    let root: u32 = place
        .raw()
        .query_row("SELECT rootpage FROM sqlite_master WHERE name = 'payloads'", [], |row| row.get(0))
        .unwrap();
    let mut file = std::fs::read(place.database()).unwrap();
    file[(root as usize - 1) * 4096..root as usize * 4096].fill(0xee);
    std::fs::write(place.database(), file).unwrap();

    let store = place.open();
    let bad = RunWrite { payloads: vec![(1, vec![1].into())], ..append(run(1), 31) };
    assert!(matches!(now(store.commit(&batch([append(run(4), 1), bad]))), Err(Error::Unknown(_))));
    assert!(matches!(now(store.commit(&batch([append(run(4), 1)]))), Err(Error::Unknown(_))));
    assert!(matches!(now(store.check()), Err(Error::Unknown(_))));
    assert_eq!(now(store.load(ORG, run(4))).unwrap().map(|loaded| loaded.seq), Some(1), "reads still work");
    drop(store);
    check_populated(&place.open());
}

#[test]
fn a_woken_run_costs_one_read_and_an_active_one_none() {
    let place = Place::new();
    let store = place.open();
    commit(&store, [start(run(1)), start(run(2))]);
    commit(&store, [append(run(1), 1), park(run(2), 1, at(5))]);
    assert_eq!(store.counters().commit_reads, 0);
    commit(&store, [turn(run(2), 2, RunStatus::Running)]);
    assert_eq!(store.counters().commit_reads, 1);
    commit(&store, [append(run(2), 3), append(run(1), 2)]);
    assert_eq!(store.counters().commit_reads, 1);
}
