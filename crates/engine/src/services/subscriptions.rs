//! Following what happens, while it happens.
//!
//! A follower registers first, then reads what is stored after its cursor, then waits to be told that
//! there is more. Whatever is committed after the registration is announced and whatever was committed
//! before it is read, so nothing falls between. An announcement carries nothing: the store is read again,
//! a page at a time and only when the last page has been taken, so a slow follower costs no memory.
//!
//! The rule that keeps the hot path free: the loop looks at one number, and at nothing else while it is 0.

use super::core::Core;
use super::run_queries::events_of;
use super::workflows::{Workflows, lock};
use crate::error::Error;
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
const JOURNAL_PAGE: usize = 256;
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
pub struct Subscribers {
    count: AtomicUsize,
    runs: Mutex<HashMap<RunId, (usize, watch::Sender<()>)>>,
    all: watch::Sender<()>,
}

impl Subscribers {
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
        for (_, changed) in committed.filter_map(|(write, _)| runs.get(&write.run)) {
            changed.send_replace(());
        }
    }
}

impl Subscribers {
    /// Another node has moved this run.
    pub(super) fn changed(&self, run: RunId) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.all.send_replace(());
        if let Some((_, changed)) = lock(&self.runs).get(&run) {
            changed.send_replace(());
        }
    }

    /// Other nodes may have moved any run.
    pub(super) fn all_changed(&self) {
        self.all.send_replace(());
        for (_, changed) in lock(&self.runs).values() {
            changed.send_replace(());
        }
    }
}

/// A place among the followers, given back when it is dropped.
struct Subscription {
    core: Arc<Core>,
    workflows: Arc<Workflows>,
    subscribers: Arc<Subscribers>,
    run: Option<RunId>,
    changed: watch::Receiver<()>,
    /// For how long it waits to be told.
    patience: Duration,
}

impl Subscription {
    fn take(from: &Subscriptions, run: Option<RunId>) -> Subscription {
        let subscribers = from.subscribers.clone();
        subscribers.count.fetch_add(1, Ordering::SeqCst);
        let changed = match run {
            None => subscribers.all.subscribe(),
            Some(run) => {
                let mut runs = lock(&subscribers.runs);
                let (count, sender) = runs.entry(run).or_insert_with(|| (0, watch::Sender::new(())));
                *count += 1;
                sender.subscribe()
            }
        };
        let (core, workflows) = (from.core.clone(), from.workflows.clone());
        Subscription { core, workflows, subscribers, run, changed, patience: LOOK_MIN }
    }

    /// Nothing that is announced from now on is missed by [`more`](Self::more).
    fn begin(&mut self) {
        self.changed.borrow_and_update();
    }

    /// Something has happened, so more may.
    fn stir(&mut self) {
        self.patience = LOOK_MIN;
    }

    async fn more(&mut self) {
        let patience = if self.core.store.is_shared() { self.patience } else { RECHECK };
        self.patience = (self.patience * 2).min(LOOK_MAX);
        let _ = tokio::time::timeout(patience, self.changed.changed()).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let subscribers = &self.subscribers;
        if let Some(run) = self.run {
            let mut runs = lock(&subscribers.runs);
            if let Some((count, _)) = runs.get_mut(&run) {
                *count -= 1;
                if *count == 0 {
                    runs.remove(&run);
                }
            }
        }
        subscribers.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Something that happened to a run.
pub struct RunEvent {
    pub seq: u64,
    pub at: Timestamp,
    pub event: Event,
    pub run: RunId,
    /// The workflow's name when the run was created.
    pub workflow: Arc<str>,
    pub version: Arc<Version>,
}

/// Follows one run from an event on, to its end.
pub struct RunSubscription {
    subscription: Subscription,
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

impl RunSubscription {
    /// What comes next, at least one event; `None` once the run has ended and all of it was told, or is gone.
    pub async fn next(&mut self) -> Result<Option<Vec<RunEvent>>, Error> {
        self.subscription.stir();
        loop {
            self.subscription.begin();
            let store = self.subscription.core.store.clone();
            let Some(page) = store.history(self.org, self.run, self.records, PAGE).await? else { return Ok(None) };
            self.records += page.len() as u64;
            let mut happened = Vec::new();
            for record in &page {
                for (seq, at, event) in events_of(record)? {
                    self.has_ended |= event.is_end();
                    if seq > self.after {
                        let (run, workflow, version) = (self.run, self.workflow.clone(), self.version.clone());
                        happened.push(RunEvent { seq, at, event, run, workflow, version });
                    }
                }
            }
            self.after = happened.last().map_or(self.after, |last| last.seq);
            match (happened.is_empty(), page.is_empty()) {
                (false, _) => return Ok(Some(happened)),
                (true, false) => {}
                (true, true) if self.has_ended => return Ok(None),
                (true, true) => self.subscription.more().await,
            }
        }
    }
}

/// Follows every run of an organisation from a position of the journal on.
pub struct RunEvents {
    subscription: Subscription,
    org: OrgId,
    after: u64,
    names: HashMap<RunId, (Arc<str>, Arc<Version>)>,
}

impl RunEvents {
    /// The position up to which everything was told.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// What was written next, record by record with the position of each, and how far it has looked.
    pub async fn next(&mut self) -> Result<(Vec<(u64, Vec<RunEvent>)>, u64), Error> {
        self.subscription.stir();
        loop {
            self.subscription.begin();
            let store = self.subscription.core.store.clone();
            let journal_page = store.journal_page(self.org, Some(self.after), JOURNAL_PAGE).await?;
            if journal_page.end <= self.after {
                self.subscription.more().await;
                continue;
            }
            let mut written = Vec::with_capacity(journal_page.records.len());
            for record in journal_page.records {
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
                    RunEvent { seq, at, event, run, workflow, version }
                };
                written.push((record.pos, events.map(happening).collect()));
            }
            self.after = journal_page.end;
            return Ok((written, journal_page.end));
        }
    }

    async fn name(&mut self, run: RunId) -> Result<Option<(Arc<str>, Arc<Version>)>, Error> {
        if let Some(known) = self.names.get(&run) {
            return Ok(Some(known.clone()));
        }
        let Subscription { core, workflows, .. } = &self.subscription;
        let Some(row) = core.store.run(self.org, run).await? else { return Ok(None) };
        let known: (Arc<str>, Arc<Version>) = (row.workflow_name.as_str().into(), workflows.version_of(&row).await?);
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(run, known.clone());
        Ok(Some(known))
    }
}

/// Follows runs, for clients that watch them.
pub struct Subscriptions {
    core: Arc<Core>,
    workflows: Arc<Workflows>,
    subscribers: Arc<Subscribers>,
}

impl Subscriptions {
    pub fn new(core: Arc<Core>, workflows: Arc<Workflows>, subscribers: Arc<Subscribers>) -> Subscriptions {
        Subscriptions { core, workflows, subscribers }
    }

    /// Follows a run; events up to number `after` are left out. `None` if there is no such run.
    pub async fn run(&self, org: OrgId, run: RunId, after: u64) -> Result<Option<RunSubscription>, Error> {
        let subscription = Subscription::take(self, Some(run));
        let Some(row): Option<RunRow> = self.core.store.run(org, run).await? else { return Ok(None) };
        let version = self.workflows.version_of(&row).await?;
        let workflow = row.workflow_name.as_str().into();
        Ok(Some(RunSubscription { subscription, org, run, workflow, version, after, records: 0, has_ended: false }))
    }

    /// Follows everything that is written after position `after` of the journal, or from now on.
    pub async fn all(&self, org: OrgId, after: Option<u64>) -> Result<RunEvents, Error> {
        let subscription = Subscription::take(self, None);
        let now = self.core.store.journal_page(org, None, 1).await?.end;
        let after = after.unwrap_or(now).min(now);
        Ok(RunEvents { subscription, org, after, names: HashMap::new() })
    }
}
