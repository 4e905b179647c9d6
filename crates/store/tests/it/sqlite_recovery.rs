//! What is there after the process was killed, and how little a start has to read to know it.

use crate::support::{Place, commit, suffixed};
use kernel::RunStatus;
use store::sqlite::Options;
use store::{Error, ReadyChange, RunFilter, RunRow, RunWrite, SqliteStore, Store, Verdict};
use testkit::conformance::fixtures::*;
use testkit::now;

fn recovery_pos(place: &Place) -> u64 {
    let stored: Result<String, _> =
        place.raw().query_row("SELECT value FROM settings WHERE name = 'recovery_pos'", [], |row| row.get(0));
    stored.map_or(0, |text| text.parse().unwrap())
}

/// Three kinds of runs: unparked with many records, parked, ended.
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
        assert_eq!(commit(store, [append(run(n), seq - 1)]), [Verdict::Conflict]);
        assert_eq!(commit(store, [append(run(n), seq)]), [Verdict::Committed]);
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

/// Of these runs, those that are in no index but the primary key.
fn unlisted(place: &Place, runs: std::ops::Range<u64>) -> Vec<u64> {
    let raw = place.raw();
    let mut listed = raw.prepare("SELECT listed FROM runs WHERE id = $1").unwrap();
    runs.filter(|n| !listed.query_row([run(*n).0], |row| row.get::<_, bool>(0)).unwrap()).collect()
}

#[test]
fn a_new_run_is_listed_when_its_row_changes_or_many_came_after_it() {
    let place = Place::new();
    let store = place.open_with(Options { unlisted_max: 4, ..Options::default() });
    commit(&store, [start(run(1)), start(run(2)), start(run(3)), start(run(4))]);
    commit(&store, [append(run(1), 1)]);
    assert_eq!(unlisted(&place, 1..5), [1, 2, 3, 4], "a record changes no row");
    commit(
        &store,
        [turn(run(1), 2, RunStatus::Cancelling), park(run(2), 1, at(5)), turn(run(3), 1, RunStatus::Failed)],
    );
    assert_eq!(unlisted(&place, 1..5), [4]);
    commit(&store, [start(run(5))]);
    assert_eq!(unlisted(&place, 1..6), [5], "the rest made room, together");
    commit(&store, [start(run(6)), turn(run(6), 1, RunStatus::Completed)]);
    assert_eq!(unlisted(&place, 1..7), [5], "made and ended by one batch");
}

#[test]
fn a_run_that_is_parked_from_the_beginning_is_listed_later_too() {
    let place = Place::new();
    let store = place.open_with(Options { unlisted_max: 4, ..Options::default() });
    commit(&store, [1, 2, 3, 4].map(|n| offer(run(n), 0, vec![task(run(n), 0, "mail", 0)])));
    commit(&store, [append(run(1), 1)]);
    assert_eq!(unlisted(&place, 1..5), [1, 2, 3, 4], "a record that changes nothing of the row but its head");
    commit(&store, [turn(run(2), 1, RunStatus::Running), turn(run(3), 1, RunStatus::Completed)]);
    assert_eq!(unlisted(&place, 1..5), [1, 2, 4], "taking one up does not change its row");
    commit(&store, [offer(run(5), 0, Vec::new())]);
    assert_eq!(unlisted(&place, 1..6), [5], "the rest made room, together");
    commit(&store, [append(run(4), 1), turn(run(1), 2, RunStatus::Failed), append(run(2), 2)]);
    assert_eq!(unlisted(&place, 1..6), [5]);
    let again = place.killed();
    again.open();
    assert!(unlisted(&again, 1..6).is_empty());
    commit(&store, (100..108).map(|n| offer(run(n), 0, Vec::new())).collect::<Vec<_>>());
    assert!(unlisted(&place, 100..108).is_empty(), "many together");
}

#[test]
fn runs_that_are_parked_from_the_beginning_are_listed_when_the_recovery_position_moves() {
    let place = Place::new();
    let store = place.open_with(Options { recovery_records: 4, ..Options::default() });
    for n in 1..4 {
        commit(&store, [offer(run(n), 0, Vec::new())]);
    }
    assert_eq!((recovery_pos(&place), unlisted(&place, 1..4)), (0, vec![1, 2, 3]));
    commit(&store, [offer(run(4), 0, Vec::new())]);
    assert_eq!((recovery_pos(&place), unlisted(&place, 1..5)), (4, vec![]), "the one that moved it, too");
}

#[test]
fn a_start_lists_what_was_not_and_finds_it() {
    for recovery_records in [3, 4, 100_000] {
        let place = Place::new();
        let options = Options { recovery_records, ..Options::default() };
        let store = place.open_with(options.clone());
        for n in 1..8 {
            commit(&store, [start(run(n))]);
        }
        let killed = place.killed();
        assert!(!unlisted(&killed, 1..8).is_empty());
        let again = killed.open_with(options);
        assert!(unlisted(&killed, 1..8).is_empty());
        assert_eq!(now(again.active_runs()), Ok((1..8).map(|n| (ORG, run(n))).collect()));
    }
}

/// Number of the last record and whether it is parked, as the run's row has it.
fn row_says(place: &Place, n: u64) -> (i64, bool) {
    let raw = place.raw();
    raw.query_row("SELECT seq, parked FROM runs WHERE id = $1", [run(n).0], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
}

/// Takes up a run that waited to be claimed, as a claim does.
fn take(n: u64, after: u64) -> RunWrite {
    let remove = vec![task(run(n), 0, "mail", 0)];
    RunWrite { ready: ReadyChange { remove, insert: vec![] }, ..turn(run(n), after, RunStatus::Running) }
}

/// Run 1 waits, 2 and 3 were taken up (3 has a record more), 4 has ended since, 5 waits again, 6 was taken up and is cancelling.
fn take_some(store: &dyn Store) {
    let offered = |n: u64, after| offer(run(n), after, vec![task(run(n), 0, "mail", 0)]);
    for n in 1..7 {
        assert_eq!(commit(store, [offered(n, 0)]), [Verdict::Committed]);
    }
    assert_eq!(commit(store, [2, 3, 4, 5, 6].map(|n| take(n, 1))), [const { Verdict::Committed }; 5]);
    let more = [append(run(3), 2), turn(run(4), 2, RunStatus::Completed), offered(5, 2)];
    assert_eq!(commit(store, more), [const { Verdict::Committed }; 3]);
    assert_eq!(commit(store, [turn(run(6), 2, RunStatus::Cancelling)]), [Verdict::Committed]);
}

fn check_taken(store: &dyn Store) {
    assert_eq!(now(store.active_runs()), Ok([2, 3, 6].map(|n| (ORG, run(n))).to_vec()));
    let waiting = now(store.ready(&queue(ORG, "mail", ""), None, 10)).unwrap();
    assert_eq!(waiting.iter().map(|row| row.run).collect::<Vec<_>>(), [run(1), run(5)]);
    let open = RunFilter { statuses: vec![RunStatus::Running], limit: 10, ..RunFilter::default() };
    let listed = now(store.runs(ORG, &open)).unwrap();
    let evicted: Vec<_> = listed.iter().map(|row| (row.id, row.evicted)).collect();
    assert_eq!(evicted, [(run(5), true), (run(3), false), (run(2), false), (run(1), true)]);
    for (n, seq, is_evicted) in [(1, 1, true), (2, 2, false), (3, 3, false), (4, 3, false), (5, 3, true), (6, 3, false)]
    {
        let loaded = now(store.load(ORG, run(n))).unwrap().unwrap();
        assert_eq!((loaded.seq, loaded.row.evicted), (seq, is_evicted), "run {n}");
        assert_eq!(now(store.run(ORG, run(n))).unwrap().unwrap(), loaded.row, "run {n}");
        assert_eq!(commit(store, [append(run(n), seq - 1)]), [Verdict::Conflict]);
    }
}

#[test]
fn taking_up_what_waited_is_not_written_to_its_row() {
    let place = Place::new();
    let store = place.open();
    take_some(&store);
    let rows: Vec<_> = (1..7).map(|n| row_says(&place, n)).collect();
    assert_eq!(rows, [(1, true), (1, true), (1, true), (3, false), (3, true), (3, false)]);
    check_taken(&store);
    assert_eq!(
        commit(&store, [turn(run(2), 2, RunStatus::Failed), append(run(5), 3)]),
        [const { Verdict::Committed }; 2]
    );
    assert_eq!((row_says(&place, 2), row_says(&place, 5)), ((3, false), (4, true)));
}

#[test]
fn a_kill_forgets_nothing_of_what_was_taken_up() {
    for recovery_records in (1..16).chain([100_000]) {
        let place = Place::new();
        let options = Options { recovery_records, ..Options::default() };
        let store = place.open_with(options.clone());
        take_some(&store);
        check_taken(&store);
        let killed = place.killed();
        let again = killed.open_with(options);
        for n in [2, 3] {
            assert!(!row_says(&killed, n).1, "run {n} with {recovery_records}: a start writes it");
        }
        check_taken(&again);
        assert_eq!(commit(&again, [turn(run(2), 2, RunStatus::Completed)]), [Verdict::Committed]);
        assert_eq!(now(killed.killed().open().active_runs()), Ok([3, 6].map(|n| (ORG, run(n))).to_vec()));
    }
}

#[test]
fn what_was_taken_up_with_news_is_written_to_its_row() {
    let place = Place::new();
    let store = place.open();
    for n in 1..4 {
        commit(&store, [offer(run(n), 0, vec![])]);
    }
    let taken = |n: u64| row(ORG, run(n), RunStatus::Running);
    let expires_at = at(9_000);
    let rows = [
        RunRow { expires_at, ..taken(1) },
        RunRow { error_code: Some("odd".into()), ..taken(2) },
        RunRow { waiting: 4, ..taken(3) },
    ];
    for row in rows {
        assert_eq!(commit(&store, [RunWrite { row: Some(row.clone()), ..append(row.id, 1) }]), [Verdict::Committed]);
        assert_eq!(now(store.run(ORG, row.id)), Ok(Some(row)));
    }
    assert_eq!([1, 2, 3].map(|n| row_says(&place, n)), [(2, false); 3]);
}

#[test]
fn bytes_move_the_recovery_position_too() {
    let place = Place::new();
    let store = place.open_with(Options { recovery_bytes: 60, ..Options::default() });
    populate(&store);
    assert!(recovery_pos(&place) > 30);
}

#[test]
fn a_start_reads_only_the_tail() {
    let place = Place::new();
    let store = place.open_with(Options { recovery_records: 10, ..Options::default() });
    populate(&store);
    let killed = place.killed();
    // Records before the recovery position may be unreadable for all a start cares.
    killed.raw().execute("UPDATE journal SET run = x'00' WHERE pos < 10", []).unwrap();
    let again = killed.open();
    assert_eq!(now(again.active_runs()), Ok(vec![(ORG, run(1)), (ORG, run(4))]));
    assert!(
        matches!(now(again.history(ORG, run(1), 0, usize::MAX)), Err(Error::Corrupt(_))),
        "but a reader of them says so"
    );
    assert_eq!(commit(&again, [append(run(1), 31)]), [Verdict::Committed]);
}

#[test]
fn a_checkpoint_at_every_commit_loses_nothing() {
    let place = Place::new();
    let store = place.open_with(Options { restart_bytes: 1, ..Options::default() });
    populate(&store);
    check_populated(&place.killed().open());
}

#[test]
fn the_helper_copies_the_log_while_commits_go_on() {
    let place = Place::new();
    let store = place.open_with(Options { passive_bytes: 1, restart_bytes: 200_000, ..Options::default() });
    populate(&store);
    assert!(store.counters().wal_bytes > 0);
    drop(store);
    check_populated(&place.open());
}

#[test]
fn the_helper_copies_everything_although_the_writer_keeps_its_view() {
    let place = Place::new();
    let store = place.open_with(Options { passive_bytes: 1, ..Options::default() });
    for n in 1..50 {
        commit(&store, [start(run(n))]);
    }
    let is_copied = || {
        let copy = Place::new();
        std::fs::copy(place.database(), copy.database()).unwrap();
        copy.raw().query_row("SELECT count(*) FROM journal", [], |row| row.get::<_, i64>(0)).is_ok_and(|n| n >= 48)
    };
    // What was there when the helper was asked, if it does not just look for views that are kept; so it is asked again.
    let is_copied_soon = (0..500).any(|n| {
        commit(&store, [append(run(1), n + 1)]);
        std::thread::sleep(std::time::Duration::from_millis(10));
        is_copied()
    });
    assert!(is_copied_soon);
}

#[test]
fn the_log_starts_over_although_the_writer_keeps_its_view() {
    let place = Place::new();
    let store = place.open_with(Options { restart_bytes: 100_000, ..Options::default() });
    // The log of a new database begins with its tables.
    let length_max = 400_000;
    for n in 1..200 {
        commit(&store, [start(run(n))]);
    }
    let written = store.counters().wal_bytes;
    let length = suffixed(&place.database(), "-wal").metadata().unwrap().len();
    assert!(written > 3 * length_max && length < length_max, "{written} bytes in a log of {length}");
}

#[test]
fn the_writer_goes_on_after_somebody_else_wrote() {
    let place = Place::new();
    let store = place.open();
    commit(&store, [start(run(1))]);
    place.raw().execute("UPDATE runs SET created_at = 7", []).unwrap();
    assert_eq!(commit(&store, [append(run(1), 1), start(run(2))]), [Verdict::Committed, Verdict::Committed]);
}

#[test]
fn a_log_that_grows_is_filled_ahead_and_read_to_its_end() {
    let place = Place::new();
    let store = place.open_with(Options { restart_bytes: 2 << 20, ..Options::default() });
    let length = || suffixed(&place.database(), "-wal").metadata().unwrap().len();
    populate(&store);
    assert!(length() < 1 << 20, "nothing is filled for a few records");
    let large = RunWrite { payloads: vec![(0, vec![7; 1 << 20].into())], ..turn(run(50), 0, RunStatus::Completed) };
    commit(&store, [large]);
    commit(&store, [turn(run(51), 0, RunStatus::Completed)]);
    assert_eq!(length(), 2 << 20, "up to where it starts over");
    let killed = place.killed();
    let again = killed.open();
    check_populated(&again);
    assert_eq!(now(again.payloads(ORG, run(50), &[0])).unwrap()[0].1.len(), 1 << 20);
    assert_eq!(now(again.load(ORG, run(51))).unwrap().unwrap().seq, 1, "the last that was written");
}

#[test]
fn damage_is_said_and_never_a_panic() {
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
fn a_journal_with_a_hole_in_its_tail_does_not_open() {
    let place = Place::new();
    let store = place.open();
    populate(&store);
    let killed = place.killed();
    killed.raw().execute("DELETE FROM journal WHERE pos = 20", []).unwrap();
    assert!(matches!(SqliteStore::open(&killed.database()), Err(Error::Corrupt(_))));
}

/// Damage met in the middle of a commit: nobody can say what became of it, so nothing is written after.
#[test]
fn after_an_unknown_outcome_nothing_is_written_until_it_is_opened_anew() {
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
    assert_eq!(now(store.load(ORG, run(4))).unwrap().map(|loaded| loaded.seq), Some(1), "reads go on");
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
