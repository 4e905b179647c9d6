//! Reading runs from the store: back into the mailbox, or for the API: views and history.

use super::core::refusal;
use super::runs::Runs;
use super::workflows::Workflows;
use crate::error::Error;
use crate::mailbox::{Command, LoadFailure, QueueQuery, Reply, Resumed};
use crate::version::{RunVersions, Version};
use bytes::Bytes;
use kernel::event::StepPlace;
use kernel::run::{Lease, Step};
use kernel::status::Outcome;
use kernel::{Event, OrgId, Payload, Payloads, Plan, Record, Run, RunId, Timestamp};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{NotificationRow, RunRow, UnreadableRow};

/// A run with its state, for views.
pub struct Reading {
    pub row: RunRow,
    /// The one that the run has.
    pub version: Arc<Version>,
    /// Those that it had.
    pub versions: RunVersions,
    pub run: Run,
    /// Payloads that are not inline.
    pub payloads: Payloads,
}

/// A run that a list leaves out because it cannot be read.
#[derive(Clone, Debug)]
pub struct UnreadableRun {
    pub run: RunId,
    /// See [`Error::is_unreadable_run`].
    pub error: Error,
}

/// What became of undoing the steps of a run.
pub struct Recovery {
    /// `running`, `completed`, or `failed` if a step could not be undone.
    pub status: &'static str,
    /// The steps that are or were undone, in that order, and the steps that undo them.
    pub steps: Vec<(u32, u32)>,
    /// The steps that are still to be undone, in the order in which they will be.
    pub remaining: Vec<u32>,
}

impl From<Resumed> for Reading {
    /// Without payloads that are not inline, and without the versions that it had before.
    fn from(resumed: Resumed) -> Reading {
        let Resumed { version, run, row, .. } = resumed;
        let versions = RunVersions::only(version.clone());
        Reading { row, version, versions, run, payloads: Payloads::new() }
    }
}

impl From<UnreadableRow> for UnreadableRun {
    fn from(row: UnreadableRow) -> UnreadableRun {
        UnreadableRun { run: row.id, error: Error::Damaged(row.what) }
    }
}

impl Reading {
    /// The keys of the steps that failed, timed out or had a template error.
    pub fn failed_steps(&self) -> Vec<String> {
        self.keys(kernel::advance::failed_steps(&self.version.plan, &self.run))
    }

    /// The keys of the failed steps that nothing handled. None while the run is open: a later step may still do so.
    pub fn unhandled_steps(&self) -> Vec<String> {
        match self.run.is_terminal() {
            true => self.keys(kernel::advance::unhandled_steps(&self.version.plan, &self.run)),
            false => Vec::new(),
        }
    }

    /// What became of undoing the steps of the run; `None` if it undoes nothing.
    pub fn recovery(&self) -> Option<Recovery> {
        self.run.state.compensating.as_ref()?;
        let steps = self.run.undos();
        let has_failed = |undo: u32| matches!(self.run.step(undo).outcome(), Some(Outcome::Failed | Outcome::TimedOut));
        let status = match steps.iter().any(|(_, undo)| has_failed(*undo)) {
            _ if !self.run.is_terminal() => "running",
            true => "failed",
            false => "completed",
        };
        Some(Recovery { status, steps, remaining: self.run.still_to_undo().collect() })
    }

    fn keys(&self, steps: Vec<u32>) -> Vec<String> {
        steps.into_iter().map(|step| self.key(step).into_owned()).collect()
    }

    /// Whether the steps inside of this one are in the state: they leave it when their iteration settles.
    pub fn has_steps_under(&self, key: &str) -> bool {
        let Some(step) = self.run.find(&self.version.plan, key) else { return false };
        let mut around = std::iter::successors(Some(step), |step| self.run.parent(*step));
        !around.any(|step| self.run.iteration(step).is_some() && self.run.step(step).outcome().is_some())
    }

    /// Whether steps have left the state with their iterations.
    pub fn lacks_steps(&self) -> bool {
        self.run.state.opened as usize > self.run.state.steps.len() + self.run.state.inner.len()
    }

    /// The key of a step of the run.
    pub fn key(&self, step: u32) -> Cow<'_, str> {
        self.run.key(&self.version.plan, step)
    }
}

/// Loads several runs; answers in their order.
pub(super) async fn load_all(
    workflows: &Workflows,
    runs: &[(OrgId, RunId)],
) -> Vec<Result<Option<Resumed>, LoadFailure>> {
    let loaded = match workflows.core.store.load_all(runs).await {
        Ok(loaded) => loaded,
        Err(error) => runs.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut folded = Vec::with_capacity(runs.len());
    for one in loaded {
        folded.push(workflows.catalog().resumed(one).await);
    }
    folded
}

impl Runs {
    /// Reads and folds a run.
    pub(super) async fn load(&self, org: OrgId, run: RunId) -> Result<Option<Resumed>, LoadFailure> {
        self.workflows.catalog().resumed(self.core.store.load(org, run).await).await
    }

    /// The run with everything it holds; `None` if there is no such run.
    pub async fn read(&self, org: OrgId, run: RunId) -> Result<Option<Reading>, Error> {
        let Some(resumed) = self.load(org, run).await? else { return Ok(None) };
        let Resumed { run, row, .. } = resumed;
        let versions = self.workflows.catalog().versions_of(&row, &run).await?;
        self.with_payloads(org, row, versions, run).await.map(Some)
    }

    /// A run with the payloads that its view shows.
    pub(super) async fn with_payloads(
        &self,
        org: OrgId,
        row: RunRow,
        versions: RunVersions,
        run: Run,
    ) -> Result<Reading, Error> {
        let numbers: Vec<u32> = stored_payloads(&run).collect();
        let payloads = self.core.store.payloads(org, row.id, &numbers).await?;
        let version = versions.at(run.state.seq).clone();
        Ok(Reading { row, version, versions, run, payloads: payloads.into_iter().collect() })
    }

    /// The run again as of the same event, with the steps of iterations that had settled, from all its records.
    pub async fn read_whole(&self, org: OrgId, reading: Reading) -> Result<Reading, Error> {
        let Reading { row, version, versions, run, .. } = reading;
        let records = self.core.store.history(org, row.id, 0, usize::MAX).await?.ok_or(Error::NotFound("run"))?;
        let run = Run::load_whole_at(&versions.plans(), &records, run.state.seq).map_err(LoadFailure::from)?;
        let mut whole = Reading { row, version, versions, run, payloads: Payloads::new() };
        let shown = |step: &Step| step.approval.as_ref().and_then(|approval| approval.items.clone());
        let bodies: Vec<Payload> =
            whole.run.steps().flat_map(|(_, step)| step.body().cloned().into_iter().chain(shown(step))).collect();
        self.fetch(org, &mut whole, bodies).await?;
        Ok(whole)
    }

    /// The run with the step of this key, also if that has left the state with its iteration.
    pub(super) async fn with_step(&self, org: OrgId, reading: Reading, key: &str) -> Result<Reading, Error> {
        let is_there = reading.run.find(&reading.version.plan, key).is_some();
        if is_there || !reading.lacks_steps() { Ok(reading) } else { self.read_whole(org, reading).await }
    }

    /// The run as it was when it ended with this event; without one, when it first ended. A run may have been retried
    /// since.
    pub async fn read_at_end(&self, org: OrgId, reading: Reading, end: Option<u64>) -> Result<Reading, Error> {
        let state = &reading.run.state;
        if state.retries == 0 || end.is_some_and(|end| end > state.retried) {
            return Ok(reading);
        }
        let Reading { row, versions, .. } = reading;
        let mut records = self.core.store.history(org, row.id, 0, usize::MAX).await?.ok_or(Error::NotFound("run"))?;
        let mut last = records.len();
        for (index, bytes) in records.iter().enumerate() {
            let has_ended = events_of(bytes)?.any(|stored| end.map_or(stored.event.is_end(), |end| stored.seq == end));
            if has_ended {
                last = index + 1;
                break;
            }
        }
        records.truncate(last);
        let run = Run::load_at(&versions.plans(), &records, u64::MAX).map_err(LoadFailure::from)?;
        let version = versions.at(run.state.seq).clone();
        Ok(Reading { row, version, versions, run, payloads: Payloads::new() })
    }

    /// Reads stored payloads of a run that its view needs.
    pub async fn fetch(
        &self,
        org: OrgId,
        reading: &mut Reading,
        bodies: impl IntoIterator<Item = Payload>,
    ) -> Result<(), Error> {
        let numbers: Vec<u32> = bodies.into_iter().filter_map(|body| body.stored).collect();
        if !numbers.is_empty() {
            reading.payloads.extend(self.core.store.payloads(org, reading.row.id, &numbers).await?);
        }
        Ok(())
    }

    /// The deadlines of the run's leases, by step.
    pub async fn leases(&self, reading: &Reading) -> Result<Vec<(u32, Timestamp)>, Error> {
        let nodes = self.cluster.nodes();
        let is_remote = |lease: &Lease<'_>| lease.epoch != nodes.own() && !nodes.is_gone(lease.epoch);
        let (remote, local): (Vec<Lease<'_>>, Vec<Lease<'_>>) = reading.run.leased().partition(is_remote);
        // Another node gets the heartbeats of these. The lease lasts at least as long as it was granted for.
        let remote = remote.iter().map(|lease| (lease.step, reading.run.step(lease.step).since.after(lease.lease)));
        let mut leases: Vec<(u32, Timestamp)> = remote.collect();
        let steps: Vec<u32> = local.iter().map(|lease| lease.step).collect();
        if steps.is_empty() {
            return Ok(leases);
        }
        let tasks = steps.iter().map(|step| (reading.row.id, *step)).collect();
        match self.core.ask(|reply_to| Command::Query(QueueQuery::Leases(tasks), reply_to)).await? {
            Reply::Leases(until) => {
                leases.extend(steps.into_iter().zip(until).filter_map(|(step, at)| Some((step, at?))));
                Ok(leases)
            }
            other => Err(refusal(other, "task")),
        }
    }

    /// Notifications of a run's end that are not delivered yet, each with its last error.
    pub async fn notifications(&self, org: OrgId, run: RunId) -> Result<Vec<NotificationRow>, Error> {
        Ok(self.core.store.run_notifications(org, run).await?)
    }

    /// Every event of a run.
    pub async fn history(&self, org: OrgId, run: RunId) -> Result<Option<Vec<StoredEvent>>, Error> {
        self.events_where(org, run, |_| true).await
    }

    /// The events of some steps, up to the one that the run was read at. The others are not kept in memory: a run can
    /// have hundreds of thousands.
    pub async fn history_of(
        &self,
        org: OrgId,
        reading: &Reading,
        steps: &[u32],
    ) -> Result<Option<Vec<StoredEvent>>, Error> {
        let (steps, last): (BTreeSet<u32>, u64) = (steps.iter().copied().collect(), reading.run.state.seq);
        let is_of_steps = |event: &Event| event.step().is_some_and(|step| steps.contains(&step));
        self.events_where(org, reading.row.id, |stored| stored.seq <= last && is_of_steps(&stored.event)).await
    }

    async fn events_where(
        &self,
        org: OrgId,
        run: RunId,
        is_wanted: impl Fn(&StoredEvent) -> bool,
    ) -> Result<Option<Vec<StoredEvent>>, Error> {
        let Some(records) = self.core.store.history(org, run, 0, usize::MAX).await? else { return Ok(None) };
        let mut events = Vec::new();
        for bytes in records {
            events.extend(events_of(&bytes)?.filter(&is_wanted));
        }
        Ok(Some(events))
    }

    /// At most `limit` events after the one with the number `after`.
    pub async fn events_after(
        &self,
        org: OrgId,
        run: RunId,
        after: u64,
        limit: usize,
    ) -> Result<Option<Vec<StoredEvent>>, Error> {
        let Some(records) = self.core.store.history(org, run, 0, usize::MAX).await? else { return Ok(None) };
        events_in(&records, after, limit).map(Some)
    }
}

/// At most `limit` events of these records after the one with the number `after`.
pub(super) fn events_in(records: &[Bytes], after: u64, limit: usize) -> Result<Vec<StoredEvent>, Error> {
    let begins_after = |bytes: &Bytes| Record::open(bytes).is_ok_and(|record| record.first > after);
    // A record that cannot be read counts as one before, so that reading it says why.
    let first = records.partition_point(|bytes| !begins_after(bytes)).saturating_sub(1);
    let mut events = Vec::new();
    for bytes in &records[first..] {
        let missing = limit - events.len();
        if missing == 0 {
            break;
        }
        events.extend(events_of(bytes)?.filter(|stored| stored.seq > after).take(missing));
    }
    Ok(events)
}

/// An event of a run's history.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub seq: u64,
    pub at: Timestamp,
    pub event: Event,
    /// Where the inner steps are that the events of its record name.
    inner: Arc<BTreeMap<u32, StepPlace>>,
}

impl StoredEvent {
    /// Where a step is that the event names.
    pub fn place(&self, step: u32) -> StepPlace {
        self.inner.get(&step).cloned().unwrap_or_else(|| StepPlace::root(step))
    }

    /// The key of a step that the event names.
    pub fn key<'p>(&self, plan: &'p Plan, step: u32) -> Cow<'p, str> {
        let place = self.place(step);
        match (place.node as usize) < plan.nodes().len() {
            true => plan.key(&place),
            false => Cow::Owned(format!("#{step}")),
        }
    }

    pub fn step_key<'p>(&self, plan: &'p Plan) -> Option<Cow<'p, str>> {
        Some(self.key(plan, self.event.step()?))
    }
}

/// The events of a sealed record.
pub(super) fn events_of(bytes: &[u8]) -> Result<impl Iterator<Item = StoredEvent> + use<>, Error> {
    let record = Record::open(bytes).map_err(|e| Error::Damaged(e.to_string()))?;
    let (first, at, inner) = (record.first, record.at, Arc::new(record.inner));
    let numbered = record.events.into_iter().zip(first..);
    Ok(numbered.map(move |(event, seq)| StoredEvent { seq, at, event, inner: inner.clone() }))
}

fn stored_payloads(run: &Run) -> impl Iterator<Item = u32> {
    let trigger = std::iter::once(&run.state.origin.body);
    let steps = run.steps().filter_map(|(_, step)| step.body());
    let items = run.steps().filter_map(|(_, step)| step.approval.as_ref()?.items.as_ref());
    let errors = run.steps().filter_map(|(_, step)| step.copied.as_ref()?.errors.as_ref());
    trigger
        .chain(steps)
        .chain(items)
        .chain(errors)
        .chain(run.state.outputs.values().filter_map(|output| output.body.as_ref()))
        .chain(&run.state.output)
        .filter_map(|p: &Payload| p.stored)
        .collect::<Vec<_>>()
        .into_iter()
}
