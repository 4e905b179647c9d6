//! Following what happens, while it happens.
//!
//! A follower registers first, then reads what is stored after its cursor, then waits to be told that
//! there is more. Whatever is committed after the registration is announced and whatever was committed
//! before it is read, so nothing falls between. An announcement carries nothing: the store is read again,
//! a page at a time and only when the last page has been taken, so a slow follower costs no memory.
//!
//! The rule that keeps the hot path free: the loop looks at one number, and at nothing else while it is 0.

use super::definitions::lock;
use super::reading::events_of;
use super::{Engine, Error};
use crate::version::Version;
use kernel::{Event, OrgId, RunId, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Batch, RunRow, Verdict};
use tokio::sync::watch;

/// Records of one run read at a time.
const PAGE: usize = 128;
/// Places of the journal read at a time.
const STRETCH: usize = 256;
/// Reads again although nothing was announced: should an announcement ever be lost, this is the worst.
const RECHECK: Duration = Duration::from_secs(5);
/// The same where other nodes write too, which announce only some of it: soon after something happened, then ever more
/// rarely.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(400);
/// Runs a follower of everything remembers the names of.
const NAMES_MAX: usize = 1_024;

/// Who wants to hear of commits.
#[derive(Default)]
pub(super) struct Followers {
    count: AtomicUsize,
    runs: Mutex<HashMap<RunId, (usize, watch::Sender<()>)>>,
    all: watch::Sender<()>,
}

impl Followers {
    /// Called by the loop after every commit.
    pub(super) fn announce(&self, batch: &Batch, verdicts: &[Verdict]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.all.send_replace(());
        let runs = lock(&self.runs);
        if runs.is_empty() {
            return;
        }
        let committed = batch.runs.iter().zip(verdicts).filter(|(_, verdict)| **verdict == Verdict::Committed);
        for (_, told) in committed.filter_map(|(write, _)| runs.get(&write.run)) {
            told.send_replace(());
        }
    }
}

impl Followers {
    /// Another node has moved this run.
    pub(super) fn told(&self, run: RunId) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.all.send_replace(());
        if let Some((_, told)) = lock(&self.runs).get(&run) {
            told.send_replace(());
        }
    }

    /// Other nodes may have moved any run.
    pub(super) fn all_told(&self) {
        self.all.send_replace(());
        for (_, told) in lock(&self.runs).values() {
            told.send_replace(());
        }
    }
}

/// A place among the followers, given back when it is dropped.
struct Place {
    engine: Engine,
    run: Option<RunId>,
    told: watch::Receiver<()>,
    /// For how long it waits to be told.
    patience: Duration,
}

impl Place {
    fn take(engine: &Engine, run: Option<RunId>) -> Place {
        let followers = &engine.inner.followers;
        followers.count.fetch_add(1, Ordering::SeqCst);
        let told = match run {
            None => followers.all.subscribe(),
            Some(run) => {
                let mut runs = lock(&followers.runs);
                let (count, sender) = runs.entry(run).or_insert_with(|| (0, watch::Sender::new(())));
                *count += 1;
                sender.subscribe()
            }
        };
        Place { engine: engine.clone(), run, told, patience: LOOK_MIN }
    }

    /// Nothing that is announced from now on is missed by [`more`](Self::more).
    fn begin(&mut self) {
        self.told.borrow_and_update();
    }

    /// Something has happened, so more may.
    fn stir(&mut self) {
        self.patience = LOOK_MIN;
    }

    async fn more(&mut self) {
        let patience = if self.engine.inner.store.is_shared() { self.patience } else { RECHECK };
        self.patience = (self.patience * 2).min(LOOK_MAX);
        let _ = tokio::time::timeout(patience, self.told.changed()).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let followers = &self.engine.inner.followers;
        if let Some(run) = self.run {
            let mut runs = lock(&followers.runs);
            if let Some((count, _)) = runs.get_mut(&run) {
                *count -= 1;
                if *count == 0 {
                    runs.remove(&run);
                }
            }
        }
        followers.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Something that happened to a run.
pub struct Happening {
    pub seq: u64,
    pub at: Timestamp,
    pub event: Event,
    pub run: RunId,
    /// The workflow's name when the run was created.
    pub workflow: Arc<str>,
    pub version: Arc<Version>,
}

/// Follows one run from an event on, to its end.
pub struct Follower {
    place: Place,
    org: OrgId,
    run: RunId,
    workflow: Arc<str>,
    version: Arc<Version>,
    /// Events up to this number are known to whoever follows.
    after: u64,
    /// Records read.
    records: u64,
    has_ended: bool,
}

impl Follower {
    /// What comes next, at least one event; `None` once the run has ended and all of it was told, or is gone.
    pub async fn next(&mut self) -> Result<Option<Vec<Happening>>, Error> {
        self.place.stir();
        loop {
            self.place.begin();
            let store = self.place.engine.inner.store.clone();
            let Some(page) = store.history(self.org, self.run, self.records, PAGE).await? else { return Ok(None) };
            self.records += page.len() as u64;
            let mut happened = Vec::new();
            for record in &page {
                for (seq, at, event) in events_of(record)? {
                    self.has_ended |= event.is_end();
                    if seq > self.after {
                        let (run, workflow, version) = (self.run, self.workflow.clone(), self.version.clone());
                        happened.push(Happening { seq, at, event, run, workflow, version });
                    }
                }
            }
            self.after = happened.last().map_or(self.after, |last| last.seq);
            match (happened.is_empty(), page.is_empty()) {
                (false, _) => return Ok(Some(happened)),
                (true, false) => {}
                (true, true) if self.has_ended => return Ok(None),
                (true, true) => self.place.more().await,
            }
        }
    }
}

/// Follows every run of an organisation from a position of the journal on.
pub struct Happenings {
    place: Place,
    org: OrgId,
    after: u64,
    names: HashMap<RunId, (Arc<str>, Arc<Version>)>,
}

impl Happenings {
    /// The position up to which everything was told.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// What was written next, record by record with the position of each, and how far it has looked.
    pub async fn next(&mut self) -> Result<(Vec<(u64, Vec<Happening>)>, u64), Error> {
        self.place.stir();
        loop {
            self.place.begin();
            let store = self.place.engine.inner.store.clone();
            let stretch = store.stretch(self.org, Some(self.after), STRETCH).await?;
            if stretch.end <= self.after {
                self.place.more().await;
                continue;
            }
            let mut written = Vec::with_capacity(stretch.records.len());
            for record in stretch.records {
                let run = record.run;
                // Deleted between the two reads: there is nobody it could be about.
                let (workflow, version) = match self.name(run).await {
                    Ok(Some(known)) => known,
                    Ok(None) | Err(Error::Damaged(_) | Error::Newer) => continue,
                    Err(error) => return Err(error),
                };
                // What nobody can read must not keep everybody from reading on; the run itself says what is wrong.
                let Ok(events) = events_of(&record.record) else { continue };
                let happening = |(seq, at, event)| {
                    let (workflow, version) = (workflow.clone(), version.clone());
                    Happening { seq, at, event, run, workflow, version }
                };
                written.push((record.pos, events.map(happening).collect()));
            }
            self.after = stretch.end;
            return Ok((written, stretch.end));
        }
    }

    async fn name(&mut self, run: RunId) -> Result<Option<(Arc<str>, Arc<Version>)>, Error> {
        if let Some(known) = self.names.get(&run) {
            return Ok(Some(known.clone()));
        }
        let inner = &self.place.engine.inner;
        let Some(row) = inner.store.run(self.org, run).await? else { return Ok(None) };
        let known: (Arc<str>, Arc<Version>) = (row.workflow_name.as_str().into(), inner.version_of(&row).await?);
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(run, known.clone());
        Ok(Some(known))
    }
}

impl Engine {
    /// Follows a run; events up to number `after` are left out. `None` if there is no such run.
    pub async fn follow(&self, org: OrgId, run: RunId, after: u64) -> Result<Option<Follower>, Error> {
        let place = Place::take(self, Some(run));
        let Some(row): Option<RunRow> = self.inner.store.run(org, run).await? else { return Ok(None) };
        let version = self.inner.version_of(&row).await?;
        let workflow = row.workflow_name.as_str().into();
        Ok(Some(Follower { place, org, run, workflow, version, after, records: 0, has_ended: false }))
    }

    /// Follows everything that is written after position `after` of the journal, or from now on.
    pub async fn follow_all(&self, org: OrgId, after: Option<u64>) -> Result<Happenings, Error> {
        let place = Place::take(self, None);
        let now = self.inner.store.stretch(org, None, 1).await?.end;
        let after = after.unwrap_or(now).min(now);
        Ok(Happenings { place, org, after, names: HashMap::new() })
    }
}
