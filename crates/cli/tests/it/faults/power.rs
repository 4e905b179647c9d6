//! A power cut: what a disk has when the power goes in the middle of the work.
//!
//! Until a file is synced, a disk may keep its writes in any order, in part, or not at all. The shim logs every change
//! to the database and its log, and every sync. After a kill this module replays that: a change is certain once a sync
//! has ended that began after it, and of all others it draws what is left. The server then has to start on that.
//!
//! `ONWARD_POWER_CUTS` sets the number of cuts (default 30), `ONWARD_SEED` the random numbers.

use super::DISK;
use super::disk::Disk;
use crate::harness::{Server, Upstream, sqlite_only};
use crate::kill::checker::{self, Load};
use crate::kill::driver::{self, Driver};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::rng::Rng;

/// What a disk writes at once or not at all.
const SECTOR: usize = 512;

/// The index in shared memory (`-shm`) is none of them: the first process after a power cut makes it anew.
const FILES: [&str; 3] = ["onward.db", "onward.db-wal", "onward.db-journal"];

/// A change that was made and perhaps not synced.
struct Change {
    file: String,
    what: What,
}

enum What {
    Write { at: usize, bytes: Vec<u8> },
    Truncate(usize),
}

/// The files as a disk has them for certain, and what else it was told.
#[derive(Default)]
struct Model {
    files: BTreeMap<String, Vec<u8>>,
    /// In the order in which they were made.
    uncertain: Vec<Change>,
    syncs: usize,
}

/// Which of the uncertain changes are left.
#[derive(Clone, Copy, Debug)]
enum Left {
    Nothing,
    /// All until some instant, the last of them torn.
    Prefix,
    /// Each with a probability of one half, whatever was before it.
    Some,
    /// Each sector of each with a probability of one half.
    Sectors,
    /// As after a kill of the process alone.
    Everything,
}

const WAYS: [Left; 5] = [Left::Nothing, Left::Prefix, Left::Some, Left::Sectors, Left::Everything];

impl Model {
    /// The files that a server will start on.
    fn of(folder: &Path) -> Model {
        let read = |name: &&str| Some(((*name).to_owned(), std::fs::read(folder.join(name)).ok()?));
        Model { files: FILES.iter().filter_map(read).collect(), ..Default::default() }
    }

    /// Replays the log of the shim. Its last entry may be cut off.
    fn replay(&mut self, mut log: &[u8]) {
        let mut begun: BTreeMap<u64, usize> = BTreeMap::new();
        // The number of each uncertain change.
        let mut order: Vec<usize> = Vec::new();
        let mut next = 0;
        while let Some((head, rest)) = log.split_at_checked(24) {
            let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
            let length = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
            let Some((name, rest)) = rest.split_at_checked(usize::from(head[1])) else { break };
            let Some((bytes, rest)) = rest.split_at_checked(length) else { break };
            let (file, at, id) = (String::from_utf8(name.to_vec()).expect("a name"), number(8), number(16));
            log = rest;
            let what = match head[0] {
                b'W' => What::Write { at: at as usize, bytes: bytes.to_vec() },
                b'T' => What::Truncate(at as usize),
                b'B' => {
                    begun.insert(id, next);
                    continue;
                }
                b'E' => {
                    let before = begun.remove(&id).expect("it began");
                    let changes = std::mem::take(&mut self.uncertain).into_iter().zip(std::mem::take(&mut order));
                    for (change, number) in changes {
                        match change.file == file && number < before {
                            true => self.apply(&change, |_| true),
                            false => {
                                self.uncertain.push(change);
                                order.push(number);
                            }
                        }
                    }
                    self.syncs += 1;
                    continue;
                }
                b'U' => {
                    // Certain at once: the database removes a file only when nothing depends on it any more.
                    let changes = std::mem::take(&mut self.uncertain).into_iter().zip(std::mem::take(&mut order));
                    (self.uncertain, order) = changes.filter(|(change, _)| change.file != file).unzip();
                    self.files.remove(&file);
                    continue;
                }
                other => panic!("no such entry: {other}"),
            };
            self.uncertain.push(Change { file, what });
            order.push(next);
            next += 1;
        }
    }

    /// Makes a change, or the sectors of it that `is_left` names.
    fn apply(&mut self, change: &Change, mut is_left: impl FnMut(usize) -> bool) {
        let file = self.files.entry(change.file.clone()).or_default();
        match &change.what {
            What::Truncate(length) => file.resize(*length, 0),
            What::Write { at, bytes } => {
                let end = at + bytes.len();
                // The length of a file may be on the disk before its content is.
                if file.len() < end {
                    file.resize(end, 0);
                }
                let mut from = *at;
                while from < end {
                    let to = ((from / SECTOR + 1) * SECTOR).min(end);
                    if is_left(from / SECTOR) {
                        file[from..to].copy_from_slice(&bytes[from - at..to - at]);
                    }
                    from = to;
                }
            }
        }
    }

    /// Cuts the power: the files as they are found afterwards.
    fn cut(mut self, left: Left, rng: &mut Rng) -> BTreeMap<String, Vec<u8>> {
        let changes = std::mem::take(&mut self.uncertain);
        let last = rng.below(changes.len() as u64 + 1) as usize;
        for (number, change) in changes.iter().enumerate() {
            match left {
                Left::Nothing => {}
                Left::Prefix if number < last => self.apply(change, |_| true),
                Left::Prefix if number == last => self.apply(change, |_| rng.one_in(2)),
                Left::Prefix => {}
                Left::Some if rng.one_in(2) => self.apply(change, |_| true),
                Left::Some => {}
                Left::Sectors => self.apply(change, |_| rng.one_in(2)),
                Left::Everything => self.apply(change, |_| true),
            }
        }
        self.files
    }
}

/// Replaces the files of a killed server with what a power cut would have left of them. Returns how many changes were
/// uncertain and how many syncs there had been.
fn cut_power(disk: &Disk, server: &Server, before: Model, rng: &mut Rng) -> (usize, usize) {
    let mut model = before;
    let log = std::fs::read(disk.power_log()).expect("the log of the shim");
    std::fs::remove_file(disk.power_log()).expect("the log of the shim");
    model.replay(&log);
    let counts = (model.uncertain.len(), model.syncs);
    let left = rng.pick(&WAYS);
    let files = model.cut(left, rng);
    for name in FILES {
        let path = server.data().join(name);
        match files.get(name) {
            Some(bytes) => std::fs::write(path, bytes).expect("the file is replaced"),
            None => drop(std::fs::remove_file(path)),
        }
    }
    counts
}

#[test]
fn p1_p9_i36_a_power_cut_loses_nothing_that_was_acknowledged() {
    if sqlite_only(DISK) {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let cuts = number("ONWARD_POWER_CUTS").unwrap_or(30);
    let seed = number("ONWARD_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    let begun = Instant::now();
    let mut rng = Rng::new(seed ^ 0xc07);
    let upstream = Upstream::start();
    let flags = driver::flags(&[]);
    let (disk, server) = Disk::with_power_cuts(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut driver = Driver::new(server, &upstream, seed);
    // The first process began on an empty folder.
    let mut before = Model::default();
    let (mut uncertain, mut syncs) = (0, 0);
    for _ in 0..cuts {
        driver.live(Duration::from_millis(300));
        driver.kill_and(|server| {
            let counts = cut_power(&disk, server, std::mem::take(&mut before), &mut rng);
            uncertain += counts.0;
            syncs += counts.1;
        });
        before = Model::of(driver.server().data());
        driver.start_again();
    }
    let (server, journal) = driver.finish();
    let expected = Load { acked: 50, interrupted: 1, is_time_real: true };
    let summary = checker::check(&server, &upstream, &journal, &expected);
    assert!(uncertain as u64 > cuts, "only {uncertain} changes were not synced when the power was cut");
    println!(
        "seed {seed}: {cuts} power cuts, {uncertain} changes not synced, {syncs} syncs, {summary}, {} s",
        begun.elapsed().as_secs()
    );
}

/// The model itself: what was synced stays, and what was not may be lost, in any order.
#[test]
fn a_power_cut_keeps_what_was_synced_and_draws_the_rest() {
    let entry = |what: u8, file: &str, at: u64, id: u64, bytes: &[u8]| {
        let mut entry = vec![what, file.len() as u8, 0, 0];
        entry.extend((bytes.len() as u32).to_le_bytes());
        entry.extend(at.to_le_bytes());
        entry.extend(id.to_le_bytes());
        [entry, file.as_bytes().to_vec(), bytes.to_vec()].concat()
    };
    let log = [
        entry(b'W', "a", 0, 0, &[1; 600]),
        entry(b'B', "a", 0, 1, &[]),
        // After the sync began, so it does not count for this one.
        entry(b'W', "a", 0, 0, &[2; 1]),
        entry(b'W', "b", 0, 0, &[3; 4]),
        entry(b'E', "a", 0, 1, &[]),
        entry(b'T', "a", 2, 0, &[]),
        entry(b'W', "c", 0, 0, &[4; 4]),
        entry(b'U', "c", 0, 0, &[]),
        vec![b'W', 1],
    ]
    .concat();
    let model = || {
        let mut model = Model::default();
        model.replay(&log);
        model
    };
    assert_eq!((model().uncertain.len(), model().syncs), (3, 1));
    let mut rng = Rng::new(1);
    let nothing = model().cut(Left::Nothing, &mut rng);
    assert_eq!(nothing, BTreeMap::from([("a".to_owned(), vec![1; 600])]), "what was synced, and nothing else");
    let everything = model().cut(Left::Everything, &mut rng);
    assert_eq!(everything, BTreeMap::from([("a".to_owned(), vec![2, 1]), ("b".to_owned(), vec![3; 4])]));
    let mut found = std::collections::BTreeSet::new();
    for left in [Left::Prefix, Left::Some, Left::Sectors] {
        found.extend((0..50).map(|_| model().cut(left, &mut rng)));
    }
    // `b` was written last but one, and may be there although the write before it is lost.
    let reordered = |files: &&BTreeMap<String, Vec<u8>>| files["a"].first() == Some(&1) && files.contains_key("b");
    assert!(found.iter().any(|files| reordered(&files)), "{found:?}");
    assert!(found.iter().all(|files| files["a"].len() == 600 || files["a"].len() == 2));
}
