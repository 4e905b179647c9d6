//! Subscriptions: streams of run events, for one run or for all runs of an organisation.
//!
//! A subscriber registers first, then reads the journal after its cursor, then waits for an announcement. Records
//! committed before the registration are read, and later ones are announced, so none is missed. An announcement carries
//! no data: the subscriber reads the next page from the store when it has taken the last one, so a slow subscriber
//! costs no memory.
//!
//! Without subscribers the engine loop reads one counter after each commit, and nothing else.

use super::core::Core;
use super::run_queries::{StoredEvent, events_of};
use super::workflows::{Workflows, lock};
use crate::error::Error;
use crate::version::{RunVersions, Version};
use kernel::{Event, OrgId, RunId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Batch, RunRow, WriteVerdict};
use tokio::sync::watch;

/// Records of one run read at a time.
const PAGE: usize = 128;
/// Journal positions read at a time.
const JOURNAL_PAGE: usize = 256;
/// How often the store is read without an announcement: the longest delay if one is ever lost.
const RECHECK: Duration = Duration::from_secs(5);
/// The same on a shared store, where other nodes announce only some of their commits: soon after an event, then less
/// and less often.
const POLL_MIN: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_millis(400);
/// Runs whose workflow name and version a subscriber of all runs caches.
const NAMES_MAX: usize = 1_024;

/// The registered subscribers, woken after commits.
#[derive(Default)]
pub struct Subscribers {
    count: AtomicUsize,
    runs: Mutex<HashMap<RunId, (usize, watch::Sender<()>)>>,
    all: watch::Sender<()>,
}

impl Subscribers {
    /// Called by the engine loop after every commit.
    pub(super) fn announce(&self, batch: &Batch, verdicts: &[WriteVerdict]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.all.send_replace(());
        let runs = lock(&self.runs);
        if runs.is_empty() {
            return;
        }
        let committed = batch.runs.iter().zip(verdicts).filter(|(_, verdict)| **verdict == WriteVerdict::Committed);
        for (_, changed) in committed.filter_map(|(write, _)| runs.get(&write.run)) {
            changed.send_replace(());
        }
    }
}

impl Subscribers {
    /// Another node has advanced this run.
    pub(super) fn changed(&self, run: RunId) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.all.send_replace(());
        if let Some((_, changed)) = lock(&self.runs).get(&run) {
            changed.send_replace(());
        }
    }

    /// Other nodes may have advanced any run.
    pub(super) fn all_changed(&self) {
        self.all.send_replace(());
        for (_, changed) in lock(&self.runs).values() {
            changed.send_replace(());
        }
    }
}

/// A registration with [`Subscribers`], removed when it is dropped.
struct Subscription {
    core: Arc<Core>,
    workflows: Arc<Workflows>,
    subscribers: Arc<Subscribers>,
    run: Option<RunId>,
    changed: watch::Receiver<()>,
    /// How long to wait for an announcement before the next read.
    patience: Duration,
}

impl Subscription {
    fn register(from: &Subscriptions, run: Option<RunId>) -> Subscription {
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
        Subscription { core, workflows, subscribers, run, changed, patience: POLL_MIN }
    }

    /// Called before a read: [`wait_for_more`](Self::wait_for_more) then misses no announcement from now on.
    fn before_read(&mut self) {
        self.changed.borrow_and_update();
    }

    /// There was an event, so the next one may come soon.
    fn reset_patience(&mut self) {
        self.patience = POLL_MIN;
    }

    async fn wait_for_more(&mut self) {
        let patience = if self.core.store.is_shared() { self.patience } else { RECHECK };
        self.patience = (self.patience * 2).min(POLL_MAX);
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

/// An event with its run, workflow and version.
pub struct RunEvent {
    pub stored: StoredEvent,
    pub run: RunId,
    /// The workflow's name when the run was created.
    pub workflow: Arc<str>,
    pub version: Arc<Version>,
}

/// The events of one run, from a given event number to the run's end.
pub struct RunSubscription {
    subscription: Subscription,
    org: OrgId,
    run: RunId,
    workflow: Arc<str>,
    row: RunRow,
    /// Of the last event that was read.
    version: Arc<Version>,
    /// The client has the events up to this number.
    after: u64,
    /// Records read.
    records: u64,
    has_ended: bool,
}

impl RunSubscription {
    /// The next events, at least one; `None` once the run has ended and all events were returned, or it was deleted.
    pub async fn next(&mut self) -> Result<Option<Vec<RunEvent>>, Error> {
        self.subscription.reset_patience();
        loop {
            self.subscription.before_read();
            let store = self.subscription.core.store.clone();
            let Some(page) = store.history(self.org, self.run, self.records, PAGE).await? else { return Ok(None) };
            self.records += page.len() as u64;
            let mut events = Vec::new();
            for record in &page {
                for stored in events_of(record)? {
                    match stored.event {
                        Event::RunRetried { .. } => self.has_ended = false,
                        _ => self.has_ended |= stored.event.is_end(),
                    }
                    let catalog = self.subscription.workflows.catalog();
                    match &stored.event {
                        Event::Created { origin } => self.version = catalog.of_origin(self.org, origin).await?,
                        Event::Moved { version, hash, lowering, .. } => {
                            self.version = catalog.named(&self.row, (*version, hash, *lowering)).await?;
                        }
                        _ => {}
                    }
                    if stored.seq > self.after {
                        let (run, workflow, version) = (self.run, self.workflow.clone(), self.version.clone());
                        events.push(RunEvent { stored, run, workflow, version });
                    }
                }
            }
            self.after = events.last().map_or(self.after, |last| last.stored.seq);
            match (events.is_empty(), page.is_empty()) {
                (false, _) => return Ok(Some(events)),
                (true, false) => {}
                (true, true) if self.has_ended => return Ok(None),
                (true, true) => self.subscription.wait_for_more().await,
            }
        }
    }
}

/// The events of all runs of an organisation, from a journal position on.
pub struct RunEvents {
    subscription: Subscription,
    org: OrgId,
    after: u64,
    names: HashMap<RunId, (Arc<str>, RunVersions)>,
}

impl RunEvents {
    /// The journal position up to which all events were returned.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// The next records, each with its position and events, and the position up to which the journal was read.
    pub async fn next(&mut self) -> Result<(Vec<(u64, Vec<RunEvent>)>, u64), Error> {
        self.subscription.reset_patience();
        loop {
            self.subscription.before_read();
            let store = self.subscription.core.store.clone();
            let journal_page = store.journal_page(self.org, Some(self.after), JOURNAL_PAGE).await?;
            if journal_page.end <= self.after {
                self.subscription.wait_for_more().await;
                continue;
            }
            let mut written = Vec::with_capacity(journal_page.records.len());
            for record in journal_page.records {
                let run = record.run;
                // An unreadable record must not stop the stream; reading its run reports the damage.
                let Ok(events) = events_of(&record.record) else { continue };
                let events: Vec<StoredEvent> = events.collect();
                // A run that was deleted between the two reads is left out.
                let (workflow, versions) = match self.name(run, &events).await {
                    Ok(Some(known)) => known,
                    Ok(None) | Err(Error::Damaged(_) | Error::Newer) => continue,
                    Err(error) => return Err(error),
                };
                let run_event = |stored: StoredEvent| {
                    let (workflow, version) = (workflow.clone(), versions.at(stored.seq).clone());
                    RunEvent { stored, run, workflow, version }
                };
                written.push((record.pos, events.into_iter().map(run_event).collect()));
            }
            self.after = journal_page.end;
            return Ok((written, journal_page.end));
        }
    }

    /// The workflow of a run, and the versions that it had up to these events.
    async fn name(&mut self, run: RunId, events: &[StoredEvent]) -> Result<Option<(Arc<str>, RunVersions)>, Error> {
        let is_moved = events.iter().any(|stored| matches!(stored.event, Event::Moved { .. }));
        if let Some(known) = self.names.get(&run).filter(|_| !is_moved) {
            return Ok(Some(known.clone()));
        }
        let Subscription { core, workflows, .. } = &self.subscription;
        let catalog = workflows.catalog();
        if let Some(StoredEvent { event: Event::Created { origin }, .. }) = events.first() {
            let version = catalog.of_origin(self.org, origin).await?;
            let known: (Arc<str>, RunVersions) = (origin.workflow_name.as_str().into(), RunVersions::only(version));
            self.keep(run, known.clone());
            return Ok(Some(known));
        }
        let Some(resumed) = catalog.resumed(core.store.load(self.org, run).await).await? else { return Ok(None) };
        let versions = catalog.versions_of(&resumed.row, &resumed.run).await?;
        let known: (Arc<str>, RunVersions) = (resumed.row.workflow_name.as_str().into(), versions);
        self.keep(run, known.clone());
        Ok(Some(known))
    }

    fn keep(&mut self, run: RunId, known: (Arc<str>, RunVersions)) {
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(run, known);
    }
}

/// Opens subscriptions, for clients that stream run events.
pub struct Subscriptions {
    core: Arc<Core>,
    workflows: Arc<Workflows>,
    subscribers: Arc<Subscribers>,
}

impl Subscriptions {
    pub fn new(core: Arc<Core>, workflows: Arc<Workflows>, subscribers: Arc<Subscribers>) -> Subscriptions {
        Subscriptions { core, workflows, subscribers }
    }

    /// Subscribes to a run; events up to number `after` are left out. `None` if there is no such run.
    pub async fn run(&self, org: OrgId, run: RunId, after: u64) -> Result<Option<RunSubscription>, Error> {
        let subscription = Subscription::register(self, Some(run));
        let Some(row): Option<RunRow> = self.core.store.run(org, run).await? else { return Ok(None) };
        let version = self.workflows.catalog().version_of(&row).await?;
        let workflow = row.workflow_name.as_str().into();
        let (records, has_ended) = (0, false);
        Ok(Some(RunSubscription { subscription, org, run, workflow, row, version, after, records, has_ended }))
    }

    /// Subscribes to all runs, from journal position `after`, or from now on.
    pub async fn all(&self, org: OrgId, after: Option<u64>) -> Result<RunEvents, Error> {
        let subscription = Subscription::register(self, None);
        let now = self.core.store.journal_page(org, None, 1).await?.end;
        let after = after.unwrap_or(now).min(now);
        Ok(RunEvents { subscription, org, after, names: HashMap::new() })
    }
}
