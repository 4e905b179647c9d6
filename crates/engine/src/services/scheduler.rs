//! The loop that fires schedules: look at what is due, start or skip each moment, and move on.
//!
//! Exactly one run or one recorded skip for each moment, whatever crashes: a run, its line in the log and
//! the schedule's step past it are one write, and so are skips. The moment is also the idempotency key
//! of its run, should it ever be looked at twice.

use super::core::Core;
use super::runs::{Idempotency, Runs, Source, StartRequest};
use super::triggers::{Triggers, delivery_id, spec};
use super::workflows::{Resolved, Workflows, lock};
use crate::error::Error;
use crate::triggers::fire_times::{self, Due, FireTime, MissedRange};
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId};
use lang::trigger::{Overlap, Schedule, Spec};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::crash::{self, Point};
use store::{DELIVERIES_KEPT, DeliveryOutcome, DeliveryRow, ScheduleAdvance, TriggerRow};
use tokio::sync::Notify;

/// How often the loop looks although nothing is due: what is queued waits at most this long.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after trouble.
const PAUSE: Duration = Duration::from_millis(200);
/// Schedules looked at in one round, and lines that may wait in all queues.
const PAGE: usize = 1_000;
const QUEUED_PAGE: usize = 10_000;
/// Moments of one schedule that may wait for their turn.
const QUEUE_MAX: usize = 100;
/// Runs of one schedule started in one round: others have moments, too.
const STARTS_MAX: usize = 500;
/// A schedule that cannot be read is looked at again after this.
const UNREADABLE: Span = Span::from_secs(60);

pub struct Scheduler {
    core: Arc<Core>,
    runs: Arc<Runs>,
    workflows: Arc<Workflows>,
    triggers: Arc<Triggers>,
    /// A schedule, or the clock, has changed.
    wake: Arc<Notify>,
    /// Held while due schedules are fired: one caller at a time.
    firing: tokio::sync::Mutex<()>,
    /// Fire times that could not be handled although this process was running: since when, by trigger.
    delayed_since: Mutex<HashMap<TriggerId, Timestamp>>,
}

impl Scheduler {
    pub fn new(
        core: Arc<Core>,
        runs: Arc<Runs>,
        workflows: Arc<Workflows>,
        triggers: Arc<Triggers>,
        wake: Arc<Notify>,
    ) -> Scheduler {
        let (firing, delayed_since) = Default::default();
        Scheduler { core, runs, workflows, triggers, wake, firing, delayed_since }
    }

    /// Fires schedules until the engine stops.
    pub async fn run(self: Arc<Self>) {
        let core = &self.core;
        while !core.inbox.is_closed() {
            let fired = match core.health.is_draining.load(Ordering::Relaxed) {
                true => Ok(0),
                false => self.fire_due().await,
            };
            let pause = match (&fired, core.store.next_trigger().await) {
                (Ok(_), Ok(next)) => {
                    let until = next.map_or(LOOK, |at| Duration::from_micros(at.since(core.now()).0).min(LOOK));
                    // What is due and could not be done is not asked for without end.
                    if fired.is_ok_and(|count| count == 0) { until.max(Duration::from_millis(1)) } else { until }
                }
                _ => PAUSE,
            };
            let _ = tokio::time::timeout(pause, self.wake.notified()).await;
        }
    }

    /// Deals with every moment that has come due, and with every queue whose turn it is. Answers how many
    /// moments that were.
    pub async fn fire_due(&self) -> Result<u64, Error> {
        let _one_at_a_time = self.firing.lock().await;
        let mut handled = 0;
        let mut trouble = None;
        for row in self.core.store.due_triggers(self.core.now(), PAGE).await? {
            match self.fire_time(&row).await {
                Ok(count) => handled += count,
                Err(error) => {
                    tracing::warn!(%error, trigger = %row.id, "a schedule has to wait");
                    trouble = Some(error);
                }
            }
        }
        match self.start_queued().await {
            Ok(count) => handled += count,
            Err(error) => trouble = Some(error),
        }
        self.core.metrics.schedule_ticks_total.add(handled);
        match trouble {
            Some(error) if handled == 0 => Err(error),
            _ => Ok(handled),
        }
    }

    async fn fire_time(&self, row: &TriggerRow) -> Result<u64, Error> {
        let Ok(Spec::Schedule(schedule)) = spec(row) else {
            tracing::error!(trigger = %row.id, "the settings of a schedule cannot be read");
            let next_at = Some(self.core.now().after(UNREADABLE));
            self.triggers
                .log(row, Vec::new(), Some(ScheduleAdvance { revision: row.revision, cursor: row.cursor, next_at }))
                .await?;
            return Ok(0);
        };
        let now = self.core.now();
        let delayed_since = lock(&self.delayed_since).get(&row.id).copied();
        let due = fire_times::due(row.id, &schedule, row.cursor.unwrap_or(now), now, delayed_since);
        let Due { gone, fire_times, cursor, next_at } = due;
        let mut round = ScheduleRound {
            scheduler: self,
            row,
            workflow: self.workflows.resolve(row.org, &row.workflow.to_string()).await?,
            last_run: row.last_run,
            queued: None,
            lines: Vec::new(),
            started: 0,
        };
        let mut count = 0;
        if let Some(gone) = gone {
            round.lines.push(summary(row, gone, now));
            count += u64::from(gone.count);
        }
        // The log keeps only so many lines; older skips among these are one.
        let skips = fire_times.iter().take_while(|fire_time| fire_time.is_skipped).count();
        let folded = skips.saturating_sub(DELIVERIES_KEPT as usize - 1);
        if let (Some(first), Some(last)) = (fire_times.first(), folded.checked_sub(1).map(|last| &fire_times[last])) {
            let gone = MissedRange { first: first.nominal, last: last.nominal, count: folded as u32 };
            round.lines.push(summary(row, gone, now));
            count += folded as u64;
        }
        let mut cursor = fire_times.get(folded.wrapping_sub(1)).map_or(cursor, |fire_time| fire_time.nominal);
        let mut is_moved = false;
        for (i, fire_time) in fire_times.iter().enumerate().skip(folded) {
            if round.started >= STARTS_MAX {
                // The rest is due still, and comes with the next round.
                round.move_on(cursor, Some(fire_time.at)).await?;
                return Ok(count);
            }
            let next_at = fire_times.get(i + 1).map(|next| next.at).or(next_at);
            match round.handle(&schedule, fire_time, cursor, next_at).await {
                Ok(Some(moved)) => is_moved = moved,
                Ok(None) => return Ok(count),
                Err(error) => {
                    // Somebody was here and tried: this moment is late, and not missed.
                    lock(&self.delayed_since).entry(row.id).or_insert(fire_time.nominal);
                    return Err(error);
                }
            }
            cursor = fire_time.nominal;
            count += 1;
        }
        lock(&self.delayed_since).remove(&row.id);
        if !is_moved {
            round.move_on(cursor, next_at).await?;
        }
        Ok(count)
    }

    /// Starts what waits in a queue, one run a trigger, where the run before has ended.
    async fn start_queued(&self) -> Result<u64, Error> {
        let mut started = 0;
        let mut done: Option<(OrgId, TriggerId)> = None;
        for line in self.core.store.queued_deliveries(None, QUEUED_PAGE).await? {
            let key = (line.org, line.trigger);
            if done == Some(key) {
                continue;
            }
            done = Some(key);
            let Some(row) = self.core.store.trigger(line.org, line.trigger).await? else { continue };
            if !row.enabled {
                self.triggers.skip_queued(&row, "trigger_disabled", self.core.now()).await?;
                continue;
            }
            if self.is_open(row.org, row.last_run).await? {
                continue;
            }
            let workflow = self.workflows.resolve(row.org, &row.workflow.to_string()).await?;
            let nominal = line.nominal.unwrap_or(line.at);
            match self.fire(&row, workflow, nominal, None).await? {
                Fired::Run { run, is_known: true } => {
                    let line = DeliveryRow { outcome: DeliveryOutcome::Started, run: Some(run), ..line };
                    self.triggers.log(&row, vec![line], None).await?;
                }
                Fired::Run { .. } => {}
                Fired::Skipped(reason) => {
                    let skipped = self.skipped(&row, nominal, reason);
                    self.triggers.log(&row, vec![skipped], None).await?;
                }
            }
            started += 1;
        }
        Ok(started)
    }

    /// Starts the run of a moment, or says why there is none.
    async fn fire(
        &self,
        row: &TriggerRow,
        workflow: Option<Arc<Resolved>>,
        nominal: Timestamp,
        advance: Option<ScheduleAdvance>,
    ) -> Result<Fired, Error> {
        let Some(workflow) = workflow else { return Ok(Fired::Skipped("workflow_deleted")) };
        let id = delivery_id(nominal);
        let fingerprint = Sha256::new().chain_update(b"tick\0").chain_update(row.id.0).chain_update(&id).finalize();
        let line = DeliveryRow { nominal: Some(nominal), ..self.triggers.delivery(row, id.clone(), "") };
        let request = StartRequest {
            source: Source {
                kind: TriggerKind::Schedule,
                trigger: Some(row.id),
                nominal: Some(nominal),
                delivery: id.clone(),
                ..Default::default()
            },
            idempotency: Some(Idempotency {
                scope: Some(row.id.to_string()),
                key: id,
                fingerprint: fingerprint.into(),
            }),
            delivery: Some(line),
            advance,
            ..StartRequest::new(row.org, workflow, Bytes::from_static(b"{}"))
        };
        match self.runs.start(request).await {
            Ok(started) => {
                crash::point(Point::TickStarted);
                Ok(Fired::Run { run: started.run, is_known: started.deduplicated })
            }
            Err(Error::RunDeleted(run)) => Ok(Fired::Run { run, is_known: true }),
            Err(Error::Disabled) => Ok(Fired::Skipped("workflow_disabled")),
            Err(Error::InvalidConcurrencyKey(_)) => Ok(Fired::Skipped("concurrency_key_unresolved")),
            Err(error) => Err(error),
        }
    }

    async fn is_open(&self, org: OrgId, run: Option<RunId>) -> Result<bool, Error> {
        let Some(run) = run else { return Ok(false) };
        Ok(self.core.store.run(org, run).await?.is_some_and(|row| !row.status.is_terminal()))
    }

    fn skipped(&self, row: &TriggerRow, nominal: Timestamp, reason: &str) -> DeliveryRow {
        self.core.metrics.schedule_ticks_skipped_total.add(1);
        let outcome = DeliveryOutcome::Skipped;
        DeliveryRow { outcome, nominal: Some(nominal), ..self.triggers.delivery(row, delivery_id(nominal), reason) }
    }
}

enum Fired {
    /// Its line was written with it, unless it was there before.
    Run {
        run: RunId,
        is_known: bool,
    },
    Skipped(&'static str),
}

/// Many moments in one line.
fn summary(row: &TriggerRow, gone: MissedRange, now: Timestamp) -> DeliveryRow {
    let MissedRange { first, last, count } = gone;
    DeliveryRow {
        org: row.org,
        trigger: row.id,
        seq: 0,
        id: format!("{}..{}", delivery_id(first), delivery_id(last)),
        at: now,
        outcome: DeliveryOutcome::Skipped,
        reason: format!("missed {count} moments"),
        run: None,
        nominal: Some(last),
        request: None,
    }
}

/// One schedule's moments of one round.
struct ScheduleRound<'a> {
    scheduler: &'a Scheduler,
    row: &'a TriggerRow,
    workflow: Option<Arc<Resolved>>,
    last_run: Option<RunId>,
    /// Lines that wait for their turn, once counted.
    queued: Option<usize>,
    /// Lines not written yet.
    lines: Vec<DeliveryRow>,
    started: usize,
}

impl ScheduleRound<'_> {
    /// Deals with one moment; true if the schedule has moved past it. `None` when the schedule is not the
    /// one it was any more.
    async fn handle(
        &mut self,
        schedule: &Schedule,
        fire_time: &FireTime,
        before: Timestamp,
        next_at: Option<Timestamp>,
    ) -> Result<Option<bool>, Error> {
        let FireTime { nominal, at, .. } = *fire_time;
        let verdict = if fire_time.is_skipped { FireDecision::Skip("missed") } else { self.judge(schedule).await? };
        match verdict {
            FireDecision::Skip(reason) => self.lines.push(self.scheduler.skipped(self.row, nominal, reason)),
            FireDecision::Queue => {
                let line = self.scheduler.triggers.delivery(self.row, delivery_id(nominal), "overlap");
                let outcome = DeliveryOutcome::Queued;
                self.lines.push(DeliveryRow { outcome, nominal: Some(nominal), ..line });
            }
            FireDecision::Run => {
                // Lines of earlier moments come first in the log.
                if !self.lines.is_empty() && !self.move_on(before, Some(at)).await? {
                    return Ok(None);
                }
                let advance = ScheduleAdvance { revision: self.row.revision, cursor: Some(nominal), next_at };
                match self.scheduler.fire(self.row, self.workflow.clone(), nominal, Some(advance)).await? {
                    Fired::Run { run, is_known } => {
                        self.last_run = Some(run);
                        self.started += 1;
                        return Ok(Some(!is_known));
                    }
                    Fired::Skipped(reason) => self.lines.push(self.scheduler.skipped(self.row, nominal, reason)),
                }
            }
        }
        Ok(Some(false))
    }

    /// What the workflow and the runs before say to a moment.
    async fn judge(&mut self, schedule: &Schedule) -> Result<FireDecision, Error> {
        match &self.workflow {
            None => return Ok(FireDecision::Skip("workflow_deleted")),
            Some(workflow) if !workflow.row.enabled => return Ok(FireDecision::Skip("workflow_disabled")),
            Some(_) => {}
        }
        let (org, id) = (self.row.org, self.row.id);
        Ok(match schedule.overlap {
            Overlap::Allow => FireDecision::Run,
            Overlap::Skip if self.scheduler.is_open(org, self.last_run).await? => FireDecision::Skip("overlap"),
            Overlap::Skip => FireDecision::Run,
            Overlap::Queue => {
                let queued = match self.queued {
                    Some(queued) => queued,
                    None => self.scheduler.core.store.queued_deliveries(Some((org, id)), QUEUE_MAX).await?.len(),
                };
                self.queued = Some(queued);
                match queued {
                    0 if !self.scheduler.is_open(org, self.last_run).await? => FireDecision::Run,
                    QUEUE_MAX.. => FireDecision::Skip("queue_full"),
                    _ => {
                        self.queued = Some(queued + 1);
                        FireDecision::Queue
                    }
                }
            }
        })
    }

    async fn move_on(&mut self, cursor: Timestamp, next_at: Option<Timestamp>) -> Result<bool, Error> {
        let lines = std::mem::take(&mut self.lines);
        let advance = ScheduleAdvance { revision: self.row.revision, cursor: Some(cursor), next_at };
        self.scheduler.triggers.log(self.row, lines, Some(advance)).await
    }
}

enum FireDecision {
    Run,
    Queue,
    Skip(&'static str),
}
