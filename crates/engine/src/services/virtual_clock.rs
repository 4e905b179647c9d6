//! The stored clock mode and offset, and advancing a virtual clock from due time to due time.

use super::children::ChildQueue;
use super::clock_skew;
use super::cluster::Cluster;
use super::core::Core;
use super::engine_loop::Probe;
use super::outbox::OutboxQueue;
use super::scheduler::Scheduler;
use crate::clock::{AHEAD_MAX, Clock, ClockMode, wall};
use crate::engine::Options;
use crate::error::Error;
use crate::mailbox::{Command, QueueQuery, Reply};
use kernel::{OrgId, Span, Timestamp};
use lang::BASH_TYPE;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::crash::{self, Point};
use store::{QueueKey, Store};
use tokio::sync::Notify;

const MODE: &str = "clock";
const OFFSET: &str = "clock_offset_us";
/// The newest record of the future that an operator has accepted.
pub const ACCEPTED: &str = "accepted_record_us";
/// An advance that takes longer than this answers with an error.
const ADVANCE_MAX: Duration = Duration::from_secs(300);
/// Probes of the engine loop in quick succession, before each further one waits a millisecond.
const QUICK_PROBES: u32 = 20;

/// Opens the clock a store was used with. A store that was used with a virtual clock keeps it: its records may lie in
/// the future.
pub async fn open_clock(store: &dyn Store, options: &Options) -> Result<Clock, Error> {
    if options.clock == ClockMode::Stepped {
        let start = options.clock_start.unwrap_or_default();
        let start = start.max(store.high_water().await?.unwrap_or_default());
        return Ok(Clock::new(ClockMode::Stepped, start, 0));
    }
    let high_water = store.high_water().await?;
    let used = store.setting(MODE).await?;
    match (used.as_deref(), options.clock) {
        (Some("virtual"), ClockMode::Real) => {
            return Err(Error::Refused(
                "this store was used with a virtual clock; start with `--clock virtual`".into(),
            ));
        }
        (Some("real"), ClockMode::Virtual) if high_water.is_some() => {
            return Err(Error::Refused(
                "this store was used with the real clock; use another `--data` folder for a virtual one".into(),
            ));
        }
        _ => {}
    }
    store.set_setting(MODE, options.clock.as_str()).await?;
    if options.clock == ClockMode::Real {
        return open_real(store, high_water, options.accept_clock).await;
    }
    let kept = store.setting(OFFSET).await?.and_then(|text| text.parse::<i64>().ok());
    let offset = match (kept, options.clock_start) {
        (Some(kept), _) => kept,
        (None, Some(start)) => start.0 - wall().0,
        (None, None) => 0,
    };
    let offset = offset.saturating_add(i64::try_from(options.clock_advance.0).unwrap_or(i64::MAX));
    store.set_setting(OFFSET, &offset.to_string()).await?;
    let start = Timestamp(wall().0.saturating_add(offset)).max(high_water.unwrap_or_default());
    Ok(Clock::new(ClockMode::Virtual, start, 0))
}

/// Starts at the later of the reference and the newest record. A record of the future that an operator has accepted no
/// longer counts.
async fn open_real(store: &dyn Store, newest: Option<Timestamp>, accept: bool) -> Result<Clock, Error> {
    let skew = clock_skew::measure(store).await?.unwrap_or(0);
    let reference = Timestamp(wall().0.saturating_sub(skew));
    let accepted = store.setting(ACCEPTED).await?.and_then(|text| text.parse::<i64>().ok()).map(Timestamp);
    let newest = newest.filter(|newest| Some(*newest) > accepted).unwrap_or_default();
    let ahead = newest.since(reference);
    if accept && ahead > Span(0) {
        store.set_setting(ACCEPTED, &newest.0.to_string()).await?;
        tracing::warn!("the newest record is {ahead} ahead of the clock; engine time starts at the clock, as asked");
        return Ok(Clock::new(ClockMode::Real, reference, skew));
    }
    if ahead > AHEAD_MAX {
        return Err(Error::Refused(format!(
            "the newest record is {ahead} ahead of the clock. If the clock is wrong, set it right. If the clock that \
             wrote the record was wrong, start with `--accept-clock`, and engine time starts at the present clock"
        )));
    }
    Ok(Clock::new(ClockMode::Real, newest.max(reference), skew))
}

/// Moves a virtual clock.
pub struct VirtualClock {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    scheduler: Arc<Scheduler>,
    outbox: Arc<OutboxQueue>,
    children: Arc<ChildQueue>,
    /// This process runs the commands of `bash` steps.
    runs_commands: bool,
    /// Wakes the services that sleep until a time, so that they read the clock again.
    moved: Vec<Arc<Notify>>,
}

impl VirtualClock {
    pub fn new(
        cluster: Arc<Cluster>,
        scheduler: Arc<Scheduler>,
        outbox: Arc<OutboxQueue>,
        children: Arc<ChildQueue>,
        runs_commands: bool,
        moved: Vec<Arc<Notify>>,
    ) -> VirtualClock {
        VirtualClock { core: cluster.core.clone(), cluster, scheduler, outbox, children, runs_commands, moved }
    }

    /// Moves a virtual clock forward. Stops at every due time until the work it causes is done. Answers the new time
    /// and how many timers and fire times came due.
    pub async fn advance(&self, by: Span) -> Result<(Timestamp, u64), Error> {
        let core = &self.core;
        if !core.clock.mode().is_virtual() {
            return Err(Error::Refused("the clock is real; start with `--clock virtual` to move it".into()));
        }
        let target = self.core.now().after(by);
        let give_up = Instant::now() + ADVANCE_MAX;
        let before = self.wait_until_idle(give_up).await?.fired;
        let fire_times = core.metrics.schedule_ticks_total.get();
        loop {
            let next = self.due(give_up).await?;
            if next > target {
                break;
            }
            if Instant::now() > give_up {
                return Err(Error::Unavailable("there is more to do; ask again".into()));
            }
            self.jump(next.since(self.core.now())).await?;
        }
        self.jump(target.since(self.core.now())).await?;
        let after = self.wait_until_idle(give_up).await?.fired;
        // The scheduler's own loop may have handled some of the fire times, so the metric is compared.
        let fire_times = core.metrics.schedule_ticks_total.get() - fire_times;
        Ok((self.core.now(), after - before + fire_times))
    }

    /// Waits until nothing is under way and no schedule is due.
    async fn wait_until_idle(&self, give_up: Instant) -> Result<Probe, Error> {
        loop {
            let probe = self.settle(give_up).await?;
            if self.scheduler.fire_due().await? == 0 {
                return Ok(probe);
            }
        }
    }

    /// Waits until the engine is idle; answers when the next timer or schedule is due, which may be never.
    pub async fn settled(&self) -> Result<Timestamp, Error> {
        self.due(Instant::now() + ADVANCE_MAX).await
    }

    async fn due(&self, give_up: Instant) -> Result<Timestamp, Error> {
        let probe = self.wait_until_idle(give_up).await?;
        let timers = self.core.store.next_timer().await?.unwrap_or(Timestamp::NEVER);
        let schedules = self.core.store.next_trigger().await?.unwrap_or(Timestamp::NEVER);
        Ok(timers.min(schedules).min(probe.next_due.unwrap_or(Timestamp::NEVER)))
    }

    /// Stores the new offset, then moves.
    async fn jump(&self, by: Span) -> Result<(), Error> {
        let core = &self.core;
        if by > Span(0) {
            let offset = self.core.now().after(by).0 - wall().0;
            core.written(core.store.set_setting(OFFSET, &offset.to_string()).await)?;
            crash::point(Point::OffsetStored);
            core.clock.advance(by);
        }
        self.cluster.read_timers().await?;
        core.inbox.poke();
        core.clock_moved.notify_one();
        self.moved.iter().for_each(|moved| moved.notify_one());
        Ok(())
    }

    /// Does a command run, or will one start without anything else happening?
    async fn has_commands(&self) -> Result<bool, Error> {
        if !self.runs_commands {
            return Ok(false);
        }
        let (org, name) = (OrgId::DEFAULT, BASH_TYPE);
        let query = QueueQuery::Types(org, vec![name.into()]);
        let Reply::Types(counts) = self.core.ask(|reply_to| Command::Query(query, reply_to)).await? else {
            return Ok(false);
        };
        let (ready, leased, _) = counts.first().copied().unwrap_or_default();
        if leased > 0 || ready == 0 {
            return Ok(leased > 0);
        }
        let queue = QueueKey { org, name: name.into(), key: String::new() };
        let status = self.core.ask(|reply_to| Command::Query(QueueQuery::ClaimStatus(queue), reply_to)).await?;
        Ok(matches!(status, Reply::ClaimStatus(status) if status.blocked_reason.is_none()))
    }

    /// Waits until nothing is under way: no input, no commit, no read, no in-process step but those that wait for an
    /// answer of a fake network.
    async fn settle(&self, give_up: Instant) -> Result<Probe, Error> {
        let mut probes = 0;
        loop {
            // Twice in a row, so that the second probe sees work that the first one caused.
            let first = self.core.probe().await?;
            let second = self.core.probe().await?;
            let is_due = second.next_due.is_some_and(|at| at <= self.core.now());
            let is_quiet = first.is_quiet && second.is_quiet && !is_due;
            if is_quiet && self.outbox.is_empty() && self.children.is_empty() && !self.has_commands().await? {
                return Ok(second);
            }
            if Instant::now() > give_up {
                return Err(Error::Unavailable("steps are still running; ask again".into()));
            }
            // Most work ends within a few probes; an HTTP request under way takes longer.
            match probes < QUICK_PROBES {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(Duration::from_millis(1)).await,
            }
            probes += 1;
        }
    }
}
