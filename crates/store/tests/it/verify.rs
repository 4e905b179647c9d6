//! `verify` on real stores: it finds no problem in a good store, and finds every kind of damage.
//!
//! `sample` makes a store with runs in every state, with the real engine; `damage` damages copies of it, one way at a
//! time.

mod damage;
mod lowering;
mod postgres;
mod sample;

use crate::support::{Place, commit, suffixed};
use engine::verify::{Code, Report, verify};
use sample::Sample;
use std::collections::BTreeSet;
use store::{Error, SqliteInspection};
use testkit::conformance::fixtures;

pub fn verify_store(place: &Place) -> Report {
    let inspection = SqliteInspection::open(&place.database()).unwrap();
    verify(&inspection, 1_000, &mut |_| {}).unwrap()
}

#[track_caller]
fn assert_clean(report: &Report) {
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn a_store_with_runs_in_every_state_is_clean() {
    let sample = Sample::get();
    let place = sample.copy();
    let report = verify_store(&place);
    assert_clean(&report);
    let counts = &report.counts;
    let statuses: Vec<&str> = counts.statuses.keys().map(|status| status.as_str()).collect();
    assert_eq!(statuses, ["pending", "running", "waiting", "completed", "failed", "cancelled", "timeout"]);
    for (name, count) in counts.list() {
        assert!(count > 0, "the sample has no {name}");
    }
    assert_eq!(counts.journal, counts.records);
}

#[test]
fn a_store_in_use_is_clean_at_any_moment() {
    sample::while_busy(|place| {
        for _ in 0..5 {
            assert_clean(&verify_store(place));
        }
    });
}

/// The files are copied while the engine runs, as a kill would leave them.
#[test]
fn a_killed_store_is_clean_and_not_changed() {
    let killed = sample::killed();
    let read = |suffix| std::fs::read(suffixed(&killed.database(), suffix)).unwrap();
    let before = (read(""), read("-wal"));
    assert!(!before.1.is_empty(), "the log holds data");
    let report = verify_store(&killed);
    assert_clean(&report);
    assert!(report.counts.runs > 0);
    assert!(before == (read(""), read("-wal")), "it wrote");
    assert_eq!(killed.files(), ["onward.db", "onward.db-wal"], "it created something");
}

#[test]
fn a_closed_store_is_not_changed() {
    let place = Sample::get().copy();
    let before = std::fs::read(place.database()).unwrap();
    assert_clean(&verify_store(&place));
    assert!(before == std::fs::read(place.database()).unwrap());
    assert_eq!(place.files(), ["onward.db"]);
}

#[test]
fn a_store_without_tables_is_clean() {
    let place = Place::new();
    std::fs::write(place.database(), "").unwrap();
    assert_clean(&verify_store(&place));
    drop(place.open());
    assert_clean(&verify_store(&place));
}

#[test]
fn a_file_that_is_no_store_cannot_be_read() {
    let place = Place::new();
    assert!(matches!(SqliteInspection::open(&place.database()), Err(Error::Refused(_))));
    std::fs::create_dir(place.database()).unwrap();
    assert!(matches!(SqliteInspection::open(&place.database()), Err(Error::Refused(_))));
    let place = Place::new();
    std::fs::write(place.database(), "not a database, but long enough to look at".repeat(100)).unwrap();
    assert!(SqliteInspection::open(&place.database()).is_err());
}

#[test]
fn a_server_that_starts_meanwhile_makes_verify_fail() {
    let place = Sample::get().copy();
    let inspection = SqliteInspection::open(&place.database()).unwrap();
    let _store = place.open();
    assert!(matches!(verify(&inspection, 9, &mut |_| {}), Err(Error::Unavailable(_))));
}

#[test]
fn every_problem_is_counted_and_a_limited_number_is_kept() {
    let place = Place::new();
    let store = place.open();
    for n in 1..20 {
        commit(&store, [fixtures::start(fixtures::run(n))]);
    }
    let inspection = SqliteInspection::open(&place.database()).unwrap();
    let report = verify(&inspection, 3, &mut |_| {}).unwrap();
    assert_eq!(report.problems.len(), 3);
    assert!(report.found[&Code::VersionMissing] == 19 && report.total() > 19, "{:?}", report.found);
}

#[test]
fn every_damage_is_found() {
    let sample = Sample::get();
    let mut missing: BTreeSet<Code> = Code::ALL.iter().copied().collect();
    // Only a bug of `verify` itself causes it.
    missing.remove(&Code::CheckFailed);
    let mut overlooked = Vec::new();
    for (code, what, damage) in damage::ALL {
        let place = sample.copy();
        damage(&damage::Patient::new(&place, sample));
        let report = verify_store(&place);
        if !report.found.contains_key(code) {
            overlooked.push(format!("{} ({what}): found {:#?}", code.as_str(), report.problems));
        }
        missing.remove(code);
    }
    assert!(overlooked.is_empty(), "{}", overlooked.join("\n"));
    assert!(missing.is_empty(), "no damage for: {missing:?}");
}

#[test]
fn every_code_is_documented() {
    let manual = include_str!("../../../../docs/reference/cli.md");
    for code in Code::ALL {
        let line = format!("| `{}` | {} |", code.as_str(), code.sentence());
        assert!(manual.contains(&line), "docs/reference/cli.md lacks: {line}");
    }
}
