//! The database file: locking, the schema, migrations, query plans, and a full disk.

use crate::support::{Place, commit, suffixed};
use kernel::{RunId, RunStatus};
use std::path::PathBuf;
use std::sync::Arc;
use store::prelude::*;
use store::{Error, RunFilter, RunWrite, SqliteStore, WorkflowKey, WriteVerdict};
use testkit::conformance::fixtures::*;
use testkit::now;

#[test]
fn a_database_in_use_cannot_be_opened_again() {
    let place = Place::new();
    let store = place.open();
    assert!(matches!(SqliteStore::open(&place.database()), Err(Error::InUse(_))));
    commit(&store, [start(run(1))]);
    drop(store);
    let again = place.open();
    assert_eq!(now(again.active_runs()), Ok(vec![(ORG, run(1))]));
}

#[test]
fn a_clean_close_leaves_one_file_and_its_lock() {
    let place = Place::new();
    let store = place.open();
    commit(&store, [start(run(1))]);
    now(store.load(ORG, run(1))).unwrap();
    drop(store);
    assert!(!suffixed(&place.database(), "-wal").exists());
    assert!(suffixed(&place.database(), ".lock").exists());
}

#[test]
fn a_path_that_cannot_be_opened_is_refused() {
    let place = Place::new();
    let nowhere = place.database().join("below-a-file");
    assert!(matches!(SqliteStore::open(&nowhere), Err(Error::Refused(_))));
    std::fs::write(place.database(), "not a database, but long enough to look at".repeat(100)).unwrap();
    assert!(matches!(SqliteStore::open(&place.database()), Err(Error::Corrupt(_))));
}

#[test]
fn a_database_of_a_later_release_is_refused_untouched() {
    let place = Place::new();
    drop(place.open());
    let raw = place.raw();
    raw.execute("INSERT INTO schema_migrations VALUES (99, 'later', 'hash', 0)", []).unwrap();
    drop(raw);
    let before = std::fs::read(place.database()).unwrap();
    let Err(Error::Refused(why)) = SqliteStore::open(&place.database()) else { panic!("it opened") };
    assert!(why.contains("schema 99"), "{why}");
    assert_eq!(std::fs::read(place.database()).unwrap(), before);
}

#[test]
fn a_database_with_another_form_of_a_migration_is_refused() {
    let place = Place::new();
    drop(place.open());
    place.raw().execute("UPDATE schema_migrations SET sha256 = 'other'", []).unwrap();
    assert!(matches!(SqliteStore::open(&place.database()), Err(Error::Refused(_))));
}

#[test]
fn a_database_of_another_program_is_refused() {
    let place = Place::new();
    place.raw().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(matches!(SqliteStore::open(&place.database()), Err(Error::Refused(_))));
}

#[test]
fn the_file_has_the_required_pragmas() {
    let place = Place::new();
    let _store = place.open();
    let raw = place.raw();
    let pragma =
        |name: &str| raw.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0)).unwrap();
    assert_eq!(pragma("auto_vacuum"), rusqlite::types::Value::Integer(2), "incremental");
    assert_eq!(pragma("journal_mode"), rusqlite::types::Value::Text("wal".into()));
    assert_eq!(pragma("page_size"), rusqlite::types::Value::Integer(4096));
}

/// `UPDATE_GOLDEN=1` rewrites the golden file. A released schema changes only by a new migration.
#[test]
fn the_schema_is_the_golden_one() {
    let place = Place::new();
    drop(place.open());
    let raw = place.raw();
    let mut statement =
        raw.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name").unwrap();
    let parts: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let schema = parts.join(";\n\n") + ";\n";
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sqlite_schema.sql");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &schema).unwrap();
    }
    assert_eq!(schema, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn the_schema_lists_every_status() {
    let place = Place::new();
    drop(place.open());
    let raw = place.raw();
    let runs: String =
        raw.query_row("SELECT sql FROM sqlite_master WHERE name = 'runs'", [], |row| row.get(0)).unwrap();
    let check = &runs[runs.find("CHECK").unwrap()..runs.find("waiting       INTEGER").unwrap()];
    let listed: Vec<&str> = check.split('\'').skip(1).step_by(2).collect();
    assert!(RunStatus::ALL.iter().map(|status| status.as_str()).eq(listed));
}

/// SQLite treats `$1` as a name and numbers parameters by their first appearance, so they must appear in order. Every
/// file must also be a valid statement for the schema.
#[test]
fn every_statement_prepares_and_numbers_its_parameters_in_order() {
    let place = Place::new();
    drop(place.open());
    let raw = place.raw();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sql");
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    for path in entries.filter(|path| path.is_file()) {
        let statement = raw.prepare(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for index in 1..=statement.parameter_count() {
            let expected = format!("${index}");
            assert_eq!(statement.parameter_name(index), Some(expected.as_str()), "{}", path.display());
        }
    }
}

#[test]
fn no_list_or_hot_statement_scans_or_sorts() {
    let place = Place::new();
    drop(place.open());
    let raw = place.raw();
    for (name, index) in [
        ("runs_all", "PRIMARY KEY (org=? AND id>? AND id<?)"),
        ("runs_in_status", "runs_by_status (status=? AND parked=? AND id>? AND id<?)"),
        ("runs_of_workflow", "runs_by_workflow (org=? AND workflow=? AND id>? AND id<?)"),
        ("runs_with_label", "PRIMARY KEY (org=? AND key=? AND value=? AND run>? AND run<?)"),
        ("runs_active", "runs_by_status (status=? AND parked=?)"),
        ("timers_due", "PRIMARY KEY ((at,org,run)>(?,?,?) AND at<?)"),
        ("ready", "PRIMARY KEY (org=? AND name=? AND key=? AND (priority,run,step)>(?,?,?))"),
        ("ready_queues", "PRIMARY KEY ((org,name,key)>(?,?,?))"),
        ("ready_delete", "PRIMARY KEY (org=? AND name=? AND key=? AND priority=? AND run=? AND step=?)"),
        ("types", "PRIMARY KEY (org=? AND name>?)"),
    ] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("sql/{name}.sql"));
        let mut statement =
            raw.prepare(&format!("EXPLAIN QUERY PLAN {}", std::fs::read_to_string(path).unwrap())).unwrap();
        let lines: Vec<String> = statement.raw_query().mapped(|row| row.get(3)).map(Result::unwrap).collect();
        let is_fine = |line: &String| !line.contains("TEMP B-TREE") && !line.starts_with("SCAN runs");
        assert!(lines.iter().all(is_fine), "{name}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains(index)), "{name} should use {index}: {lines:?}");
    }
}

#[test]
fn a_full_disk_changes_nothing_and_writes_resume_afterwards() {
    let place = Place::new();
    let store = place.open();
    commit(&store, [start(run(1))]);
    store.set_page_count_max(1).unwrap();
    let large = |n| RunWrite { payloads: vec![(1, vec![7; 200_000].into())], ..start(run(n)) };
    let batch = batch([append(run(1), 1), large(2)]);
    for _ in 0..3 {
        assert!(matches!(now(store.commit(&batch)), Err(Error::Unavailable(_))));
    }
    assert_eq!(now(store.load(ORG, run(1))).unwrap().map(|loaded| loaded.seq), Some(1));
    assert_eq!(now(store.load(ORG, run(2))), Ok(None));
    assert_eq!(now(store.check()), Ok(()));
    store.set_page_count_max(1_000_000).unwrap();
    assert_eq!(now(store.commit(&batch)), Ok(vec![WriteVerdict::Committed, WriteVerdict::Committed]));
    assert_eq!(now(store.history(ORG, run(1), 0, usize::MAX)).unwrap().map(|records| records.len()), Some(2));
}

#[test]
fn the_write_lock_of_another_program_makes_the_store_unavailable() {
    let place = Place::new();
    let store = place.open();
    let raw = place.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(matches!(now(store.commit(&batch([start(run(1))]))), Err(Error::Unavailable(_))));
    assert!(matches!(now(store.check()), Err(Error::Unavailable(_))));
    assert_eq!(now(store.run(ORG, run(1))), Ok(None), "reads still work");
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(commit(&store, [start(run(1))]), [WriteVerdict::Committed]);
}

#[test]
fn reads_and_commits_at_the_same_time_agree() {
    let place = Place::new();
    let store = Arc::new(place.open());
    commit(&*store, [start(run(1))]);
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                let mut last = 0;
                while last < 300 {
                    let loaded = now(store.load(ORG, run(1))).unwrap().unwrap();
                    let base = loaded.snapshot.as_ref().map_or(0, |(seq, _)| *seq);
                    assert_eq!(base + loaded.records.len() as u64, loaded.seq);
                    assert!(loaded.seq >= last, "a later read sees no less");
                    last = loaded.seq;
                }
            })
        })
        .collect();
    for after in 1..300 {
        let snapshot = (after % 7 == 0).then(|| state(run(1), after + 1));
        let write = match after % 10 {
            3 => turn(run(1), after, RunStatus::Waiting),
            5 => turn(run(1), after, RunStatus::Running),
            _ => append(run(1), after),
        };
        assert_eq!(commit(&*store, [RunWrite { snapshot, ..write }]), [WriteVerdict::Committed]);
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// Takes migration 8 and the later ones back.
const BEFORE_LOWERING: &str = "
    DROP TABLE inbox;
    DROP TABLE open_waits;
    DROP INDEX waits_of_run;
    ALTER TABLE runs DROP COLUMN failed_steps;
    ALTER TABLE versions DROP COLUMN definition;
    ALTER TABLE runs DROP COLUMN lowering;
    ALTER TABLE workflows DROP COLUMN lowering;
    CREATE TABLE before (org INTEGER NOT NULL, hash BLOB NOT NULL, source BLOB NOT NULL, plan BLOB NOT NULL,
                         PRIMARY KEY (org, hash)) STRICT, WITHOUT ROWID;
    INSERT INTO before SELECT org, hash, source, plan FROM definitions;
    DROP TABLE definitions;
    ALTER TABLE before RENAME TO definitions;
    DELETE FROM schema_migrations WHERE version >= 8;";

#[test]
fn m7_a_store_from_before_lowerings_keeps_its_plans() {
    let place = Place::new();
    let store = place.open();
    let new = new_workflow(1, "a", "a");
    now(store.create_workflow(&new)).unwrap().unwrap();
    commit(&store, [start(run(1))]);
    drop(store);
    place.raw().execute_batch(BEFORE_LOWERING).unwrap();
    let again = place.open();
    assert_eq!(now(again.definition(ORG, new.row.hash, Some(0))).unwrap(), Some(new.definition));
    assert_eq!(now(again.run(ORG, run(1))).unwrap().unwrap().lowering, 0);
    assert_eq!(now(again.workflow(ORG, &WorkflowKey::Id(new.row.id))).unwrap().unwrap().lowering, 0);
}

#[test]
fn a_store_from_before_tasks_opens_with_its_runs_as_they_were() {
    let place = Place::new();
    let store = place.open();
    let statuses = RunStatus::ALL.iter().copied();
    for (n, status) in (1..).zip(statuses.clone()) {
        commit(&store, [start(run(n)), turn(run(n), 1, status)]);
    }
    drop(store);
    place
        .raw()
        .execute_batch(&format!(
            "{BEFORE_LOWERING} DELETE FROM schema_migrations WHERE version >= 4; DROP TABLE seats;
             DROP TABLE ready; DROP TABLE types; DROP TABLE workers; DROP INDEX runs_queued; DROP INDEX runs_by_status;
             ALTER TABLE runs DROP COLUMN parked; ALTER TABLE runs DROP COLUMN deleted_at;
             CREATE TABLE grants (org INTEGER);
             CREATE INDEX runs_by_status ON runs (status, id) WHERE status <> 'completed';"
        ))
        .unwrap();
    let again = place.open();
    for (n, status) in (1..).zip(statuses) {
        let found = now(again.run(ORG, run(n))).unwrap().unwrap();
        // A run that cancels its steps was always in memory: it had no children to wait for.
        let is_evicted = status.is_evicted() && status != RunStatus::Cancelling;
        assert_eq!((found.status, found.evicted), (status, is_evicted));
        let is_open = !is_evicted && !status.is_terminal();
        assert_eq!(now(again.active_runs()).unwrap().contains(&(ORG, run(n))), is_open, "{status}");
        assert_eq!(commit(&again, [append(run(n), 2)]), [WriteVerdict::Committed]);
    }
}

/// A database from before migration 7: new runs were in no index, and the row of a run whose task was claimed could
/// still say that the run was evicted.
#[test]
fn a_store_with_unlisted_runs_and_stale_rows_is_corrected_when_opened() {
    let place = Place::new();
    let store = place.open();
    let (claimed, evicted, new) = (run(1), run(2), run(3));
    commit(&store, [start(claimed), start(evicted), start(new)]);
    commit(&store, [append(claimed, 1)]);
    drop(store);
    let file = place.raw();
    file.execute_batch(BEFORE_LOWERING).unwrap();
    file.execute_batch(
        "DELETE FROM schema_migrations WHERE version >= 7;
         DROP INDEX runs_by_status; DROP INDEX runs_by_workflow;
         ALTER TABLE runs ADD COLUMN listed INTEGER NOT NULL DEFAULT 1;
         CREATE INDEX runs_by_status ON runs (status, parked, id) WHERE listed = 1 AND status <> 'completed';
         CREATE INDEX runs_by_workflow ON runs (org, workflow, id) WHERE listed = 1;
         UPDATE runs SET listed = 0;",
    )
    .unwrap();
    // The row of an evicted run has the number of its last record; `claimed` has a later record.
    file.execute("UPDATE runs SET parked = 1, waiting = 256 WHERE id IN ($1, $2)", [claimed.0, evicted.0]).unwrap();
    drop(file);
    let again = place.open();
    assert_eq!(now(again.active_runs()), Ok(vec![(ORG, claimed), (ORG, new)]));
    let is_evicted = |id| now(again.run(ORG, id)).unwrap().unwrap().evicted;
    assert_eq!([claimed, evicted, new].map(is_evicted), [false, true, false]);
    let filter = RunFilter { statuses: vec![RunStatus::Running], limit: 9, ..RunFilter::default() };
    let listed: Vec<RunId> = now(again.runs(ORG, &filter)).unwrap().iter().map(store::listed_id).collect();
    assert_eq!(listed, [new, evicted, claimed]);
    for (id, last) in [(claimed, 2), (evicted, 1), (new, 1)] {
        assert_eq!(commit(&again, [append(id, last)]), [WriteVerdict::Committed]);
    }
}
