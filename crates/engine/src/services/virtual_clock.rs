//! The clock's persistence, and walking a virtual one from due time to due time.

use super::core::Core;
use super::engine_loop::Probe;
use super::outbox::OutboxQueue;
use super::scheduler::Scheduler;
use crate::clock::{Clock, ClockMode, wall};
use crate::engine::Options;
use crate::error::Error;
use kernel::{Span, Timestamp};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Store;
use store::crash::{self, Point};
use tokio::sync::Notify;

const MODE: &str = "clock";
const OFFSET: &str = "clock_offset_us";
/// An advance that is not done by then is reported instead of waited for.
const WALK_MAX: Duration = Duration::from_secs(300);
/// Looks at the loop, one right after the other, before looking becomes waiting.
const QUICK_LOOKS: u32 = 20;

/// Opens the clock a store was used with. A store that has lived in virtual time stays there: its
/// records may lie in the future.
pub async fn open_clock(store: &dyn Store, options: &Options) -> Result<Clock, Error> {
    if options.clock == ClockMode::Stepped {
        let start = options.clock_start.unwrap_or_default();
        return Ok(Clock::stepped(start.max(store.high_water().await?.unwrap_or_default())));
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
    let mut offset = 0;
    if options.clock == ClockMode::Virtual {
        let kept = store.setting(OFFSET).await?.and_then(|text| text.parse::<i64>().ok());
        offset = match (kept, options.clock_start) {
            (Some(kept), _) => kept,
            (None, Some(start)) => start.0 - wall().0,
            (None, None) => 0,
        };
        offset = offset.saturating_add(i64::try_from(options.clock_advance.0).unwrap_or(i64::MAX));
        store.set_setting(OFFSET, &offset.to_string()).await?;
    }
    Clock::new(options.clock, high_water, offset).map_err(Error::Refused)
}

/// Moves a virtual clock.
pub struct VirtualClock {
    core: Arc<Core>,
    scheduler: Arc<Scheduler>,
    outbox: Arc<OutboxQueue>,
    /// Whatever waits for a time of its own has to look at the clock again.
    moved: Vec<Arc<Notify>>,
}

impl VirtualClock {
    pub fn new(
        core: Arc<Core>,
        scheduler: Arc<Scheduler>,
        outbox: Arc<OutboxQueue>,
        moved: Vec<Arc<Notify>>,
    ) -> VirtualClock {
        VirtualClock { core, scheduler, outbox, moved }
    }

    /// Moves a virtual clock forward, stopping at every due time until what it sets off is done. Answers
    /// the new time and how many wake-ups came due.
    pub async fn advance(&self, by: Span) -> Result<(Timestamp, u64), Error> {
        let core = &self.core;
        if !core.clock.mode().is_virtual() {
            return Err(Error::Refused("the clock is real; start with `--clock virtual` to move it".into()));
        }
        let target = self.core.now().after(by);
        let give_up = Instant::now() + WALK_MAX;
        let before = self.quieten(give_up).await?.fired;
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
        let after = self.quieten(give_up).await?.fired;
        // Some of the moments may have been dealt with by the loop of the schedules.
        let fire_times = core.metrics.schedule_ticks_total.get() - fire_times;
        Ok((self.core.now(), after - before + fire_times))
    }

    /// Waits until nothing is under way and no schedule has anything to do now.
    async fn quieten(&self, give_up: Instant) -> Result<Probe, Error> {
        loop {
            let probe = self.settle(give_up).await?;
            if self.scheduler.fire_due().await? == 0 {
                return Ok(probe);
            }
        }
    }

    /// Waits until nothing happens by itself any more; answers when something is due, which may be never.
    pub async fn settled(&self) -> Result<Timestamp, Error> {
        self.due(Instant::now() + WALK_MAX).await
    }

    async fn due(&self, give_up: Instant) -> Result<Timestamp, Error> {
        let probe = self.quieten(give_up).await?;
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
        core.read_timers().await?;
        core.inbox.poke();
        core.clock_moved.notify_one();
        self.moved.iter().for_each(|moved| moved.notify_one());
        Ok(())
    }

    /// Waits until nothing is under way: no input, no commit, no read, no in-process step but those that lie
    /// on a desk.
    async fn settle(&self, give_up: Instant) -> Result<Probe, Error> {
        let mut looks = 0;
        loop {
            // Twice in a row, so that what the first look set in motion is seen by the second.
            let first = self.core.probe().await?;
            let second = self.core.probe().await?;
            let is_due = second.next_due.is_some_and(|at| at <= self.core.now());
            if first.is_quiet && second.is_quiet && !is_due && self.outbox.is_empty() {
                return Ok(second);
            }
            if Instant::now() > give_up {
                return Err(Error::Unavailable("steps are still running; ask again".into()));
            }
            // A run that is read from memory is there at once; a request that is under way takes its time.
            match looks < QUICK_LOOKS {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(Duration::from_millis(1)).await,
            }
            looks += 1;
        }
    }
}
