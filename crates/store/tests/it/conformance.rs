//! The shared conformance suite on every store. Memory runs without a Tokio runtime and SQLite with one, so both ways
//! of waiting are tested.
//!
//! `ONWARD_SEQUENCES=500 ONWARD_OPERATIONS=100` compares more random sequences, and longer ones.

use crate::postgres::{Database, runtime};
use crate::support::Place;
use std::sync::Arc;
use store::MemoryStore;
use store::prelude::*;
use store::sqlite::Options;
use testkit::conformance::{Subject, cases, lockstep};
use testkit::{now, number_from_env};

#[test]
fn memory_passes_every_case() {
    for case in cases() {
        eprintln!("{}", case.name);
        now((case.run)(Arc::new(MemoryStore::new())));
    }
}

#[test]
fn sqlite_passes_every_case() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for case in cases() {
        eprintln!("{}", case.name);
        let place = Place::new();
        runtime.block_on((case.run)(Arc::new(place.open())));
    }
}

#[test]
fn postgres_passes_every_case() {
    for case in cases() {
        eprintln!("{}", case.name);
        let database = Database::new();
        runtime().block_on((case.run)(database.open()));
    }
}

#[test]
fn random_sequences_have_the_same_answers_on_postgres() {
    for_each_sequence(4, 40, |seed, operations| {
        let database = Database::new();
        runtime().block_on(lockstep(seed, operations, &mut [memory(), postgres(&database)]));
    });
}

#[test]
fn random_sequences_have_the_same_answers_on_every_store() {
    for_each_sequence(8, 200, |seed, operations| now(lockstep(seed, operations, &mut [memory(), sqlite(seed)])));
}

/// Compares sequences in several threads, because the test mostly waits for the disk.
fn for_each_sequence(threads: u64, sequences: u64, compare: impl Fn(u64, usize) + Sync) {
    let sequences = number_from_env("ONWARD_SEQUENCES", sequences);
    let operations = number_from_env("ONWARD_OPERATIONS", 60) as usize;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let compare = &compare;
            scope.spawn(move || {
                (thread..sequences).step_by(threads as usize).for_each(|seed| compare(seed, operations))
            });
        }
    });
}

fn memory() -> Subject {
    Subject { name: "memory", store: Arc::new(MemoryStore::new()), restart: Box::new(|store| store) }
}

/// Every second database moves its recovery position after three records. A restart is a `kill -9`.
fn sqlite(seed: u64) -> Subject {
    let options = Options { recovery_records: if seed.is_multiple_of(2) { 3 } else { 100_000 }, ..Options::default() };
    let mut place = Place::new();
    let store: Arc<dyn Store> = Arc::new(place.open_with(options.clone()));
    let restart = move |old: Arc<dyn Store>| {
        let next = place.killed();
        drop(old);
        place = next;
        Arc::new(place.open_with(options.clone())) as Arc<dyn Store>
    };
    Subject { name: "sqlite", store, restart: Box::new(restart) }
}

/// A restart opens the same database again; crashes of the server are tested in `postgres_faults`.
fn postgres(database: &Database) -> Subject {
    let url = database.url.clone();
    let restart = move |old: Arc<dyn Store>| {
        drop(old);
        let opened = std::thread::scope(|scope| scope.spawn(|| crate::postgres::open(&url)).join().unwrap());
        Arc::new(opened) as Arc<dyn Store>
    };
    Subject { name: "postgres", store: database.open(), restart: Box::new(restart) }
}
