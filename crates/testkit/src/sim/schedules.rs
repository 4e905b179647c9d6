//! Schedules: what a process does about fire times, and what must become of each (I22, I23).
//!
//! ```text
//!   Poll ──due rows──▶ a round per schedule: fire_times::due ──▶ skip │ start a run ──answer──▶ the next fire time
//!                                                                └──── log entries and the new position, in one write
//! ```
//!
//! It does what `engine/src/services/scheduler.rs` does, with the engine's own [`fire_times`]. The model knows only
//! that the fire times of a generated schedule are the multiples of its period. Invariants: each of them up to the
//! stored cursor has exactly one run or one skip, whatever crashes, and no more missed ones run than the policy allows.

use super::client_log::ClientRequest;
use super::process::ProcessEvent;
use super::random::Random;
use super::trigger::Trigger;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use super::world::{NOTIFIER, SimEvent, World, ready};
use engine::Reply;
use engine::catalog::Resolved;
use engine::mailbox::Command;
use engine::triggers::fire_times::{self, Due, FireTime, LATE, MissedRange, Position};
use kernel::event::TriggerKind;
use kernel::{OrgId, RunId, Span, Timestamp, TriggerId};
use lang::trigger::{Missed, Overlap, Schedule, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use store::prelude::*;
use store::{
    DELIVERIES_KEPT, DeliveryOutcome, DeliveryRow, IdempotencyKey, MemoryStore, NewTrigger, ScheduleAdvance,
    TriggerChange, TriggerLog, TriggerRow,
};

/// How often a process looks for due schedules: when one is near, after an error, and otherwise.
const POLL: Span = Span::from_millis(1_000);
const POLL_IDLE: Span = Span::from_secs(30);
const PAGE: usize = 1_000;

/// What one process does about schedules.
#[derive(Default)]
pub struct SimulatedSchedules {
    /// The first fire time of each schedule that failed while the process was running.
    delayed_since: BTreeMap<TriggerId, Timestamp>,
    /// Schedules that are due, and the one at work.
    waiting: Vec<TriggerRow>,
    round: Option<Round>,
}

/// The due fire times of one schedule.
struct Round {
    row: TriggerRow,
    schedule: Rc<Schedule>,
    due: Due,
    handled: usize,
    last_run: Option<RunId>,
    /// Log entries that are not written yet.
    log: Vec<DeliveryRow>,
    /// The stored position includes what was handled.
    is_moved: bool,
}

#[derive(Default)]
pub struct ScheduleModel {
    schedules: BTreeMap<TriggerId, KnownSchedule>,
    /// The fire times of runs that may come to exist.
    requested: BTreeMap<RunId, (TriggerId, Timestamp)>,
    /// The first fire time of each log entry that stands for several.
    ranges: BTreeMap<String, Timestamp>,
}

struct KnownSchedule {
    schedule: Rc<Schedule>,
    /// Its fire times are the multiples of this.
    period: Span,
    /// Fire times count from here on.
    since: Timestamp,
    /// The run of each fire time.
    runs: BTreeMap<Timestamp, RunId>,
    /// The processes that decided about each fire time.
    deciders: BTreeMap<Timestamp, BTreeSet<usize>>,
    /// It was switched off, or deleted with its workflow.
    is_over: bool,
}

impl KnownSchedule {
    fn is_fire_time(&self, at: Timestamp) -> bool {
        at > self.since && at.0 % self.period.0 as i64 == 0
    }

    /// The fire times after `after`, up to `until`.
    fn between(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> + use<> {
        let period = self.period.0 as i64;
        let first = (after.max(self.since).0.div_euclid(period) + 1) * period;
        (first..=until.0).step_by(period as usize).map(Timestamp)
    }
}

impl ScheduleModel {
    /// The fire time for which a run was requested.
    pub fn fire_time_of(&self, run: RunId) -> Option<(TriggerId, Timestamp)> {
        self.requested.get(&run).copied()
    }

    /// A run was created.
    pub fn run_created(&mut self, run: RunId) -> CheckResult {
        let Some((trigger, nominal)) = self.fire_time_of(run) else { return Ok(()) };
        let Some(known) = self.schedules.get_mut(&trigger) else { return Ok(()) };
        let other = known.runs.insert(nominal, run);
        ViolationKind::Duplicated
            .unless(other.is_none(), || format!("{run} and {other:?} are runs of the same fire time {nominal:?}"))
    }

    /// Checks the stored position and log of every schedule against the runs.
    fn check(&mut self, store: &MemoryStore) -> CheckResult {
        for (id, known) in self.schedules.iter_mut().filter(|(_, known)| !known.is_over) {
            let Some(row) = ready(store.trigger(OrgId::DEFAULT, *id)).expect("the memory store answers") else {
                known.is_over = true;
                continue;
            };
            let limit = DELIVERIES_KEPT as usize;
            let log = ready(store.deliveries(OrgId::DEFAULT, *id, None, limit)).expect("the memory store answers");
            known.check(&row, &log, &self.ranges).map_err(|violation| violation.about(format!("schedule {id}")))?;
        }
        Ok(())
    }
}

impl KnownSchedule {
    fn check(&self, row: &TriggerRow, log: &[DeliveryRow], ranges: &BTreeMap<String, Timestamp>) -> CheckResult {
        let mut skipped: BTreeSet<Timestamp> = BTreeSet::new();
        for entry in log {
            let nominal = entry.nominal.ok_or("an entry in its log has no fire time")?;
            require(self.is_fire_time(nominal), || format!("{nominal:?} is not one of its fire times"))?;
            match entry.outcome {
                DeliveryOutcome::Started => {
                    let is_right = entry.run.is_some() && entry.run == self.runs.get(&nominal).copied();
                    ViolationKind::Lost
                        .unless(is_right, || format!("{entry:?}, the run is {:?}", self.runs.get(&nominal)))?;
                }
                DeliveryOutcome::Skipped => {
                    let first = ranges.get(&entry.id).copied().unwrap_or(nominal);
                    skipped.extend(self.between(Timestamp(first.0 - 1), nominal));
                }
                _ => return Err(format!("{entry:?}").into()),
            }
        }
        let cursor = row.cursor.ok_or("it has no cursor")?;
        // The log keeps only its newest entries.
        let oldest = log.iter().filter_map(|entry| entry.nominal).min().filter(|_| log.len() as u64 >= DELIVERIES_KEPT);
        for nominal in self.between(oldest.unwrap_or(self.since), cursor) {
            let (has_run, is_skipped) = (self.runs.contains_key(&nominal), skipped.contains(&nominal));
            // Nodes whose clocks differ may decide differently at the same time. The entry of a run replaces that of a
            // single skip, but not one for several skips.
            let is_contested = self.deciders.get(&nominal).is_some_and(|deciders| deciders.len() > 1);
            ViolationKind::Duplicated.unless(!(has_run && is_skipped) || is_contested, || {
                format!("{nominal:?} has a run, and was skipped")
            })?;
            ViolationKind::Lost
                .unless(has_run || is_skipped, || format!("{nominal:?} has neither a run nor a skip"))?;
        }
        let Some(next_at) = row.next_at else { return require(!row.enabled, || "it will never fire again".into()) };
        let nominal = self.between(cursor, Timestamp(cursor.0 + self.period.0 as i64)).next();
        let is_right =
            nominal.is_some_and(|nominal| next_at >= nominal && next_at <= nominal.after(self.schedule.jitter));
        ViolationKind::Lost.unless(is_right, || format!("it is due at {next_at:?}, its next fire time is {nominal:?}"))
    }

    /// I23: what one round does about missed fire times follows the policy.
    fn check_due(&self, from: Timestamp, now: Timestamp, due: &Due, delayed_since: Option<Timestamp>) -> CheckResult {
        let Schedule { missed, missed_window, missed_max, jitter, .. } = &*self.schedule;
        let mut expected = self.between(from, now);
        let mut next = || expected.next().ok_or("a fire time is due that does not exist");
        if let Some(MissedRange { first, last, count }) = due.gone {
            for n in 0..count {
                let nominal = next()?;
                let is_right = (n > 0 || nominal == first) && (n + 1 < count || nominal == last);
                require(is_right, || format!("{first:?} to {last:?} are not {count} fire times"))?;
                let is_old = now.since(nominal) > *missed_window && now.since(nominal.after(*jitter)) > LATE;
                require(is_old, || format!("{nominal:?} is given up at {now:?}"))?;
            }
        }
        let newest = due.fire_times.last().map(|fire_time| fire_time.nominal);
        let mut caught_up = 0;
        for FireTime { nominal, at, is_skipped } in &due.fire_times {
            let found = next()?;
            require(found == *nominal, || format!("{nominal:?} is due, the next fire time is {found:?}"))?;
            let is_in_time = *at >= *nominal && *at <= nominal.after(*jitter) && *at <= now;
            ViolationKind::Early.unless(is_in_time, || format!("{nominal:?} is handled at {now:?}"))?;
            let is_missed = now.since(*at) > LATE && delayed_since.is_none_or(|since| *nominal < since);
            let is_in_window = now.since(*nominal) <= *missed_window;
            let may_catch_up = match missed {
                Missed::Skip => false,
                Missed::Latest => is_in_window && Some(*nominal) == newest,
                Missed::All => is_in_window,
            };
            require(!is_skipped || is_missed, || format!("{nominal:?} is skipped at {now:?}, in time"))?;
            require(*is_skipped || !is_missed || may_catch_up, || format!("{nominal:?} runs at {now:?}, missed"))?;
            caught_up += u32::from(is_missed && !is_skipped);
        }
        let most = if *missed == Missed::All { missed_max.unwrap_or(u32::MAX) } else { 1 };
        require(caught_up <= most, || format!("{caught_up} missed fire times run, at most {most} may"))?;
        // What is left is not due so far, because of its jitter.
        let is_left = |nominal: Timestamp| nominal.after(*jitter) <= now;
        let left = expected.find(|nominal| is_left(*nominal));
        ViolationKind::Lost.unless(left.is_none(), || format!("{left:?} is due at {now:?}, and nothing handles it"))
    }
}

/// The settings of a schedule, and its period.
fn draw_schedule(random: &mut Random) -> (String, Span) {
    let (cron, minutes) = random.pick(&[("* * * * *", 1), ("*/2 * * * *", 2), ("*/5 * * * *", 5), ("0 * * * *", 60)]);
    let (missed, window) = (random.pick(&["skip", "latest", "all"]), random.pick(&["0s", "2m", "10m", "1h"]));
    let (overlap, jitter) = (random.pick(&["allow", "skip"]), random.pick(&["0s", "0s", "30s", "3m"]));
    let most = if missed == "all" { format!(r#","missed_max":{}"#, random.between(1, 3)) } else { String::new() };
    let config = format!(
        r#"{{"cron":"{cron}","missed":"{missed}","missed_window":"{window}","overlap":"{overlap}","jitter":"{jitter}"{most}}}"#
    );
    (config, Span::from_secs(60 * minutes))
}

impl World {
    /// Creates schedules for some of the workflows.
    pub fn create_schedules(&mut self) -> CheckResult {
        let mut random = self.limits_random.clone();
        let versions = self.catalog.versions().iter();
        let versions = versions.filter(|known| known.version.name != NOTIFIER && !known.workflow.is_single_task);
        let workflows: Vec<_> = versions.map(|known| (known.version.workflow, known.version.name.clone())).collect();
        for _ in 0..random.between(1, 2) {
            let (workflow, name) = workflows[random.below(workflows.len() as u64) as usize].clone();
            let (id, (config, period)) = (TriggerId(random.bytes()), draw_schedule(&mut random));
            let Some(Spec::Schedule(schedule)) = lang::trigger::stored(TriggerKind::Schedule, &config) else {
                return Err(format!("{config} is not a schedule").into());
            };
            let now = self.now;
            let row = TriggerRow {
                org: OrgId::DEFAULT,
                id,
                name,
                kind: TriggerKind::Schedule,
                workflow,
                enabled: true,
                note: None,
                config,
                path: None,
                is_owned: false,
                revision: 1,
                cursor: Some(now),
                next_at: fire_times::next(id, &schedule, now).map(|(_, at)| at),
                created_at: now,
                updated_at: now,
                last_run_at: None,
                last_run: None,
            };
            let created = ready(self.store.create_trigger(&NewTrigger { row, idempotency: None }));
            created.expect("the memory store answers").map_err(|taken| format!("a schedule is taken: {taken:?}"))?;
            let (schedule, runs, deciders) = (Rc::new(*schedule), BTreeMap::new(), BTreeMap::new());
            let known = KnownSchedule { schedule, period, since: now, runs, deciders, is_over: false };
            self.checker.schedules.schedules.insert(id, known);
        }
        self.limits_random = random;
        Ok(())
    }

    pub fn check_schedules(&mut self) -> CheckResult {
        self.checker.schedules.check(&self.store)
    }

    /// In the liveness phase, schedules are switched off once no process finds anything due. True if all are.
    pub fn end_schedules(&mut self) -> Result<bool, Violation> {
        let mut is_over = true;
        let open = self.checker.schedules.schedules.iter().filter(|(_, known)| !known.is_over);
        for id in open.map(|(id, _)| *id).collect::<Vec<_>>() {
            let up = (0..self.processes.len()).filter(|process| self.processes[*process].is_up());
            let latest = up.map(|process| self.engine_time(process)).max().unwrap_or(Timestamp::NEVER);
            let row = ready(self.store.trigger(OrgId::DEFAULT, id)).expect("the memory store answers");
            match row {
                Some(row) if row.next_at.is_some_and(|at| at <= latest) => is_over = false,
                Some(row) => {
                    let revision = row.revision + 1;
                    let row = TriggerRow { enabled: false, next_at: None, revision, updated_at: self.now, ..row };
                    let change = TriggerChange { row, restarts: true };
                    ready(self.store.change_trigger(&change)).expect("the memory store answers");
                    self.check_schedules()?;
                }
                None => {}
            }
            let known = self.checker.schedules.schedules.get_mut(&id);
            known.into_iter().for_each(|known| known.is_over = is_over);
        }
        Ok(is_over)
    }

    /// Looks for schedules that are due.
    pub fn poll_schedules(&mut self, process: usize) -> CheckResult {
        let this = &self.processes[process];
        let is_idle = this.scheduler.round.is_none();
        let may_fire = is_idle && !this.is_draining && !this.membership.is_suspended();
        let mut pause = POLL;
        if may_fire && self.try_read().is_ok() {
            let now = self.engine_time(process);
            let due = ready(self.store.due_triggers(now, PAGE)).expect("the memory store answers");
            if due.is_empty() {
                let next = ready(self.store.next_trigger()).expect("the memory store answers");
                pause = next.map_or(POLL_IDLE, |at| at.since(now)).clamp(POLL, POLL_IDLE);
            }
            self.processes[process].scheduler.waiting = due;
            self.next_round(process)?;
        }
        self.push(pause, SimEvent::Process(process, ProcessEvent::PollSchedules));
        Ok(())
    }

    /// Begins with the next schedule that is due.
    fn next_round(&mut self, process: usize) -> CheckResult {
        let now = self.engine_time(process);
        let scheduler = &mut self.processes[process].scheduler;
        scheduler.round = None;
        let Some(row) = scheduler.waiting.pop() else { return Ok(()) };
        let delayed_since = scheduler.delayed_since.get(&row.id).copied();
        let known = self.checker.schedules.schedules.get(&row.id).ok_or("an unknown schedule is due")?;
        let (schedule, cursor) = (known.schedule.clone(), row.cursor.unwrap_or(now));
        let due = fire_times::due(row.id, &schedule, cursor, now, delayed_since);
        let judged = known.check_due(cursor, now, &due, delayed_since);
        judged.map_err(|violation| violation.about(format!("schedule {}", row.id)))?;
        if let Some(known) = self.checker.schedules.schedules.get_mut(&row.id) {
            for nominal in known.between(cursor, now) {
                known.deciders.entry(nominal).or_default().insert(process);
            }
        }
        self.trace.mark("several fire times were due at once", due.fire_times.len() > 1);
        self.trace.mark("a missed fire time was caught up", {
            due.fire_times.iter().any(|fire_time| !fire_time.is_skipped && now.since(fire_time.at) > LATE)
        });
        self.trace.mark("a missed fire time was skipped", due.fire_times.iter().any(|fire_time| fire_time.is_skipped));
        self.trace.mark("fire times were given up", due.gone.is_some());
        let log: Vec<DeliveryRow> = due.gone.map(|gone| summary(&row, gone, now)).into_iter().collect();
        let ranges = log.iter().zip(due.gone).map(|(entry, gone)| (entry.id.clone(), gone.first));
        self.checker.schedules.ranges.extend(ranges);
        let (handled, last_run, is_moved) = (0, row.last_run, false);
        self.processes[process].scheduler.round = Some(Round { row, schedule, due, handled, last_run, log, is_moved });
        self.go_on(process)
    }

    /// Handles fire times until one starts a run, or all are handled.
    fn go_on(&mut self, process: usize) -> CheckResult {
        while let Some(mut round) = self.processes[process].scheduler.round.take() {
            let Some(fire_time) = round.due.fire_times.get(round.handled).copied() else {
                self.processes[process].scheduler.delayed_since.remove(&round.row.id);
                let (is_moved, end) = (round.is_moved, round.due.end);
                if is_moved || self.move_on(process, &mut round, end)?.is_some() {
                    return self.next_round(process);
                }
                return Ok(());
            };
            let name = round.row.name.clone();
            let found = self.resolve(process, &name)?;
            let is_open = round.last_run.is_some_and(|run| {
                let row = ready(self.store.run(OrgId::DEFAULT, run)).expect("the memory store answers");
                row.is_some_and(|row| !row.status.is_terminal())
            });
            let skip = match &found {
                _ if fire_time.is_skipped => Some("missed"),
                None => Some("workflow_deleted"),
                Some(_) if round.schedule.overlap == Overlap::Skip && is_open => Some("overlap"),
                Some(_) => None,
            };
            if let Some(reason) = skip {
                self.trace.mark("a fire time was skipped because of its run before", reason == "overlap");
                let outcome = DeliveryOutcome::Skipped;
                let entry = self.log_entry(process, &round.row, fire_time.nominal, reason);
                round.log.push(DeliveryRow { outcome, ..entry });
                (round.handled, round.is_moved) = (round.handled + 1, false);
                self.processes[process].scheduler.round = Some(round);
                continue;
            }
            let (before, after) = (round.due.position(round.handled), round.due.position(round.handled + 1));
            let written = if round.log.is_empty() { Some(true) } else { self.move_on(process, &mut round, before)? };
            if written != Some(true) {
                let scheduler = &mut self.processes[process].scheduler;
                if written.is_none() {
                    scheduler.delayed_since.entry(round.row.id).or_insert(fire_time.nominal);
                }
                return self.next_round(process);
            }
            if let Some(found) = found {
                self.fire(process, &round.row, fire_time.nominal, after, &found)?;
            }
            self.processes[process].scheduler.round = Some(round);
            return Ok(());
        }
        Ok(())
    }

    /// Starts the run of a fire time: the run, its log entry and the new position of the schedule are one commit.
    fn fire(
        &mut self,
        process: usize,
        row: &TriggerRow,
        nominal: Timestamp,
        after: Position,
        found: &Arc<Resolved>,
    ) -> CheckResult {
        let mut random = self.limits_random.clone();
        let (group, run) = (random.below(2), RunId::new(self.now, random.bytes()));
        let trigger = Trigger::draw(&mut random, group);
        self.limits_random = random;
        let body = self.expect_run(run, trigger, &row.name, false);
        self.checker.schedules.requested.insert(run, (row.id, nominal));
        let request = ClientRequest::Fire { run, trigger: row.id, nominal };
        let request_id = self.client_log.record(request.clone(), process);
        self.note(format!("request {request_id} by process {process} itself: {request:?}"));
        let mut start = self.start_request(process, run, found, None, body);
        (start.origin.trigger, start.origin.trigger_id) = (TriggerKind::Schedule, Some(row.id));
        start.origin.nominal = Some(nominal);
        let entry = self.log_entry(process, row, nominal, "");
        start.run_insert.idempotency = Some(IdempotencyKey {
            scope: row.id.to_string(),
            key: entry.id.clone(),
            fingerprint: [0; 32],
            created_at: self.now,
        });
        start.run_insert.delivery = Some(DeliveryRow { run: Some(run), ..entry });
        start.run_insert.advance = Some(advance(row, after));
        self.trace.mark("a schedule started a run", true);
        self.deliver(process, Command::Start { start: Box::new(start), reply_to: request_id, ended: None });
        Ok(())
    }

    /// A request to start the run of a fire time was answered.
    pub fn fire_answered(&mut self, process: usize, run: RunId, nominal: Timestamp, reply: &Reply) -> CheckResult {
        let scheduler = &mut self.processes[process].scheduler;
        let Some(round) = &mut scheduler.round else { return Ok(()) };
        match reply {
            Reply::Answer { .. } => (round.last_run, round.is_moved) = (Some(run), true),
            Reply::KeyTaken { run, .. } => (round.last_run, round.is_moved) = (Some(*run), false),
            _ => {
                // The process was running and tried, so the fire time is late and not missed.
                scheduler.delayed_since.entry(round.row.id).or_insert(nominal);
                self.trace.mark("a fire time was delayed", true);
                return self.next_round(process);
            }
        }
        self.trace.mark("a fire time had its run already", matches!(reply, Reply::KeyTaken { .. }));
        round.handled += 1;
        self.go_on(process)
    }

    /// Writes the log entries of a round and the new position: false if the schedule was changed meanwhile, `None` if the
    /// store did not answer.
    fn move_on(&mut self, process: usize, round: &mut Round, to: Position) -> Result<Option<bool>, Violation> {
        let (row, rows) = (&round.row, std::mem::take(&mut round.log));
        if self.is_store_down() {
            return Ok(None);
        }
        let is_unknown = !self.is_liveness_phase && self.fault_random.chance(self.faults.unknown_commit);
        let mut is_current = None;
        if !is_unknown || self.fault_random.coin() {
            let log = TriggerLog { org: row.org, trigger: row.id, rows, advance: Some(advance(row, to)) };
            is_current = Some(ready(self.store.log_deliveries(&log)).expect("the memory store answers"));
            self.note(format!("process {process} moves schedule {} to {to:?}: {is_current:?}", row.id));
            self.check_schedules()?;
        }
        if is_unknown && !self.faults.is_shared {
            self.crash(self.processes[process].host);
        }
        Ok(is_current.filter(|_| !is_unknown))
    }

    fn log_entry(&self, process: usize, row: &TriggerRow, nominal: Timestamp, reason: &str) -> DeliveryRow {
        DeliveryRow {
            org: row.org,
            trigger: row.id,
            seq: 0,
            id: engine::triggers::rfc3339(nominal),
            at: self.engine_time(process),
            outcome: DeliveryOutcome::Started,
            reason: reason.to_owned(),
            run: None,
            nominal: Some(nominal),
            request: None,
        }
    }
}

fn advance(row: &TriggerRow, to: Position) -> ScheduleAdvance {
    ScheduleAdvance { revision: row.revision, cursor: Some(to.cursor), next_at: to.next_at }
}

/// One log entry for many missed fire times.
fn summary(row: &TriggerRow, gone: MissedRange, now: Timestamp) -> DeliveryRow {
    DeliveryRow {
        org: row.org,
        trigger: row.id,
        seq: 0,
        id: format!("{}..{}", engine::triggers::rfc3339(gone.first), engine::triggers::rfc3339(gone.last)),
        at: now,
        outcome: DeliveryOutcome::Skipped,
        reason: format!("missed {} fire times", gone.count),
        run: None,
        nominal: Some(gone.last),
        request: None,
    }
}
