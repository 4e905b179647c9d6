//! The scheduler: reads the schedules that are due, starts or skips a run for each fire time, and moves the cursor on.
//!
//! Each fire time leads to exactly one run or one recorded skip, whatever crashes: the run, its entry in the trigger's
//! log and the schedule's new cursor are one commit, and so are skips. The fire time is also the idempotency key of its
//! run, in case it is handled twice.

use super::core::Core;
use super::runs::{Idempotency, Runs, Source, StartRequest};
use super::triggers::{Triggers, delivery_id, invalid_input, spec};
use super::workflows::{Resolved, Workflows, lock};
use crate::error::Error;
use crate::triggers::fire_times::{self, FireTime, MissedRange, Position};
use bytes::Bytes;
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId};
use lang::trigger::{Overlap, Schedule, Spec};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::crash::{self, Point};
use store::{DELIVERIES_KEPT, DeliveryOutcome, DeliveryRow, ScheduleAdvance, TriggerRow};
use tokio::sync::Notify;

/// How often the scheduler wakes up although nothing is due: a queued fire time waits at most this long after the run
/// before it has ended.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(200);
/// Schedules handled in one round, and queued log entries read in one round.
const PAGE: usize = 1_000;
const QUEUED_PAGE: usize = 10_000;
/// Fire times of one schedule that may queue.
const QUEUE_MAX: usize = 100;
/// Runs of one schedule started in one round, so that other schedules get their turn.
const STARTS_MAX: usize = 500;
/// A schedule that cannot be read is tried again after this.
const UNREADABLE: Span = Span::from_secs(60);

pub struct Scheduler {
    core: Arc<Core>,
    runs: Arc<Runs>,
    workflows: Arc<Workflows>,
    triggers: Arc<Triggers>,
    /// Notified when a schedule changes or a virtual clock moves.
    wake: Arc<Notify>,
    /// Held while due schedules are fired: one caller at a time.
    firing: tokio::sync::Mutex<()>,
    /// By trigger: the first fire time that failed while this process was running. From it on, fire times are late and
    /// not missed.
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
            let fired = match core.health.is_draining.load(Ordering::Relaxed) || core.clock.is_too_skewed() {
                true => Ok(0),
                false => self.fire_due().await,
            };
            let pause = match (&fired, core.store.next_trigger().await) {
                (Ok(_), Ok(next)) => {
                    let until = next.map_or(RECHECK_EVERY, |at| {
                        Duration::from_micros(at.since(core.clock.calendar_now()).0).min(RECHECK_EVERY)
                    });
                    // A schedule that is due and could not be handled must not make a busy loop.
                    if fired.is_ok_and(|count| count == 0) { until.max(Duration::from_millis(1)) } else { until }
                }
                _ => PAUSE,
            };
            let _ = tokio::time::timeout(pause, self.wake.notified()).await;
        }
    }

    /// Handles every fire time that is due, and starts queued ones whose turn it is. Answers how many it handled.
    pub async fn fire_due(&self) -> Result<u64, Error> {
        let _one_at_a_time = self.firing.lock().await;
        let mut handled = 0;
        let mut trouble = None;
        for row in self.core.store.due_triggers(self.core.clock.calendar_now(), PAGE).await? {
            match self.fire_schedule(&row).await {
                Ok(count) => handled += count,
                Err(error) => {
                    tracing::warn!(%error, trigger = %row.id, "a schedule cannot be fired; it is tried again");
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

    async fn fire_schedule(&self, row: &TriggerRow) -> Result<u64, Error> {
        let Ok(Spec::Schedule(schedule)) = spec(row) else {
            tracing::error!(trigger = %row.id, "the settings of a schedule cannot be read");
            let next_at = Some(self.core.now().after(UNREADABLE));
            self.triggers
                .log(row, Vec::new(), Some(ScheduleAdvance { revision: row.revision, cursor: row.cursor, next_at }))
                .await?;
            return Ok(0);
        };
        let now = self.core.clock.calendar_now();
        let delayed_since = lock(&self.delayed_since).get(&row.id).copied();
        let due = fire_times::due(row.id, &schedule, row.cursor.unwrap_or(now), now, delayed_since);
        let fire_times = &due.fire_times;
        let mut round = ScheduleRound {
            scheduler: self,
            row,
            workflow: self.workflows.resolve(row.org, &row.workflow.to_string()).await?,
            last_run: row.last_run,
            queued: None,
            log: Vec::new(),
            started: 0,
        };
        let mut count = 0;
        if let Some(gone) = due.gone {
            round.log.push(summary(row, gone, now));
            count += u64::from(gone.count);
        }
        // The log keeps only `DELIVERIES_KEPT` entries; older skips among these become one entry.
        let skips = fire_times.iter().take_while(|fire_time| fire_time.is_skipped).count();
        let folded = skips.saturating_sub(DELIVERIES_KEPT as usize - 1);
        if let (Some(first), Some(last)) = (fire_times.first(), folded.checked_sub(1).map(|last| &fire_times[last])) {
            let gone = MissedRange { first: first.nominal, last: last.nominal, count: folded as u32 };
            round.log.push(summary(row, gone, now));
            count += folded as u64;
        }
        let mut is_moved = false;
        for (i, fire_time) in fire_times.iter().enumerate().skip(folded) {
            if round.started >= STARTS_MAX {
                // The rest stays due for the next round.
                round.move_on(due.position(i)).await?;
                return Ok(count);
            }
            match round.handle(&schedule, fire_time, due.position(i), due.position(i + 1)).await {
                Ok(Some(moved)) => is_moved = moved,
                Ok(None) => return Ok(count),
                Err(error) => {
                    // This process was running and tried, so the fire time is late and not missed.
                    lock(&self.delayed_since).entry(row.id).or_insert(fire_time.nominal);
                    return Err(error);
                }
            }
            count += 1;
        }
        lock(&self.delayed_since).remove(&row.id);
        if !is_moved {
            round.move_on(due.end).await?;
        }
        Ok(count)
    }

    /// Starts queued fire times, one run a trigger, where the run before has ended.
    async fn start_queued(&self) -> Result<u64, Error> {
        let mut started = 0;
        let mut done: Option<(OrgId, TriggerId)> = None;
        for queued in self.core.store.queued_deliveries(None, QUEUED_PAGE).await? {
            let key = (queued.org, queued.trigger);
            if done == Some(key) {
                continue;
            }
            done = Some(key);
            let Some(row) = self.core.store.trigger(queued.org, queued.trigger).await? else { continue };
            if !row.enabled {
                self.triggers.skip_queued(&row, "trigger_disabled", self.core.now()).await?;
                continue;
            }
            if self.is_open(row.org, row.last_run).await? {
                continue;
            }
            let Spec::Schedule(schedule) = spec(&row)? else { continue };
            let workflow = self.workflows.resolve(row.org, &row.workflow.to_string()).await?;
            let nominal = queued.nominal.unwrap_or(queued.at);
            match self.fire(&row, &schedule, workflow, nominal, None).await? {
                Fired::Run { run, is_known: true } => {
                    let entry = DeliveryRow { outcome: DeliveryOutcome::Started, run: Some(run), ..queued };
                    self.triggers.log(&row, vec![entry], None).await?;
                }
                Fired::Run { .. } => {}
                Fired::Skipped(reason) => {
                    let skipped = self.skipped(&row, nominal, &reason);
                    self.triggers.log(&row, vec![skipped], None).await?;
                }
            }
            started += 1;
        }
        Ok(started)
    }

    /// Starts the run of a fire time, or answers why there is none.
    async fn fire(
        &self,
        row: &TriggerRow,
        schedule: &Schedule,
        workflow: Option<Arc<Resolved>>,
        nominal: Timestamp,
        advance: Option<ScheduleAdvance>,
    ) -> Result<Fired, Error> {
        let Some(workflow) = workflow else { return Ok(Fired::Skipped("workflow_deleted".into())) };
        let body = lang::trigger::body(schedule.input.as_ref(), None).to_string();
        let id = delivery_id(nominal);
        let fingerprint = Sha256::new().chain_update(b"tick\0").chain_update(row.id.0).chain_update(&id).finalize();
        let entry = DeliveryRow { nominal: Some(nominal), ..self.triggers.delivery(row, id.clone(), "") };
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
            delivery: Some(entry),
            advance,
            ..StartRequest::new(row.org, workflow, Bytes::from(body))
        };
        match self.runs.start(request).await {
            Ok(started) => {
                crash::point(Point::TickStarted);
                Ok(Fired::Run { run: started.run, is_known: started.deduplicated })
            }
            Err(Error::RunDeleted(run)) => Ok(Fired::Run { run, is_known: true }),
            Err(Error::Disabled) => Ok(Fired::Skipped("workflow_disabled".into())),
            Err(Error::InvalidConcurrencyKey(_)) => Ok(Fired::Skipped("concurrency_key_unresolved".into())),
            Err(Error::InvalidInput(problems)) => Ok(Fired::Skipped(invalid_input(&problems).into())),
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
    /// `is_known`: the run was there before. Otherwise its log entry was written with it.
    Run {
        run: RunId,
        is_known: bool,
    },
    Skipped(Cow<'static, str>),
}

/// One log entry for many missed fire times.
fn summary(row: &TriggerRow, gone: MissedRange, now: Timestamp) -> DeliveryRow {
    let MissedRange { first, last, count } = gone;
    DeliveryRow {
        org: row.org,
        trigger: row.id,
        seq: 0,
        id: format!("{}..{}", delivery_id(first), delivery_id(last)),
        at: now,
        outcome: DeliveryOutcome::Skipped,
        reason: format!("missed {count} fire times"),
        run: None,
        nominal: Some(last),
        request: None,
    }
}

/// The due fire times of one schedule in one round.
struct ScheduleRound<'a> {
    scheduler: &'a Scheduler,
    row: &'a TriggerRow,
    workflow: Option<Arc<Resolved>>,
    last_run: Option<RunId>,
    /// Fire times of the schedule that are queued, once counted.
    queued: Option<usize>,
    /// Log entries not written yet.
    log: Vec<DeliveryRow>,
    started: usize,
}

impl ScheduleRound<'_> {
    /// Handles one fire time; true if the stored schedule has advanced past it. `None` when the schedule was changed
    /// meanwhile.
    async fn handle(
        &mut self,
        schedule: &Schedule,
        fire_time: &FireTime,
        before: Position,
        after: Position,
    ) -> Result<Option<bool>, Error> {
        let nominal = fire_time.nominal;
        let decision = if fire_time.is_skipped { FireDecision::Skip("missed") } else { self.decide(schedule).await? };
        match decision {
            FireDecision::Skip(reason) => self.log.push(self.scheduler.skipped(self.row, nominal, reason)),
            FireDecision::Queue => {
                let entry = self.scheduler.triggers.delivery(self.row, delivery_id(nominal), "overlap");
                let outcome = DeliveryOutcome::Queued;
                self.log.push(DeliveryRow { outcome, nominal: Some(nominal), ..entry });
            }
            FireDecision::Run => {
                // Entries of earlier fire times come first in the log.
                if !self.log.is_empty() && !self.move_on(before).await? {
                    return Ok(None);
                }
                let advance = advance(self.row, after);
                match self.scheduler.fire(self.row, schedule, self.workflow.clone(), nominal, Some(advance)).await? {
                    Fired::Run { run, is_known } => {
                        self.last_run = Some(run);
                        self.started += 1;
                        return Ok(Some(!is_known));
                    }
                    Fired::Skipped(reason) => self.log.push(self.scheduler.skipped(self.row, nominal, &reason)),
                }
            }
        }
        Ok(Some(false))
    }

    /// Decides whether a fire time starts a run, given the workflow's state and the schedule's overlap policy.
    async fn decide(&mut self, schedule: &Schedule) -> Result<FireDecision, Error> {
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

    /// Writes the log entries and the schedule's new position; false when the schedule was changed meanwhile.
    async fn move_on(&mut self, to: Position) -> Result<bool, Error> {
        let log = std::mem::take(&mut self.log);
        self.scheduler.triggers.log(self.row, log, Some(advance(self.row, to))).await
    }
}

fn advance(row: &TriggerRow, to: Position) -> ScheduleAdvance {
    ScheduleAdvance { revision: row.revision, cursor: Some(to.cursor), next_at: to.next_at }
}

enum FireDecision {
    Run,
    Queue,
    Skip(&'static str),
}
