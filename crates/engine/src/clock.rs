//! The one clock. Every timer, deadline, retry and timestamp reads it; nothing else tells the time.
//!
//! Engine time never runs backwards, also across restarts: it starts at the later of the reference and the newest
//! record, and then follows the monotonic clock. The reference is the wall clock of the machine, corrected by the clock
//! of the database where nodes share one, so that all nodes agree. When the reference is more than a second ahead (the
//! machine slept, or its clock was set), engine time steps forward. When the reference is behind, engine time runs at
//! half speed until the reference has caught up. A virtual clock adds an offset that only grows and that is stored
//! before it is used.
//!
//! ```text
//!   wall ──less skew──▶ reference ──follow──▶ EngineTime ──▶ now
//! ```

use kernel::{Span, Timestamp};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    Real,
    /// The real time plus the advances that clients asked for.
    Virtual,
    /// Stands still until it is advanced, so that a test reads the same times on every run.
    Stepped,
}

impl ClockMode {
    pub fn as_str(self) -> &'static str {
        match self {
            ClockMode::Real => "real",
            ClockMode::Virtual | ClockMode::Stepped => "virtual",
        }
    }

    /// Can clients advance it?
    pub fn is_virtual(self) -> bool {
        self != ClockMode::Real
    }
}

/// If the newest record is further ahead of the reference than this, one of the two is wrong.
pub const AHEAD_MAX: Span = Span::from_secs(3_600);
/// A reference that is ahead by more than this is followed at once.
const STEP_MIN: i64 = 1_000_000;
/// A reference that is behind by less than this is not worth slowing down for: the measurement itself may be wrong by
/// as much.
const SLEW_MIN: i64 = 50_000;
/// A larger difference between this machine's clock and the database's is reported.
pub const SKEW_REPORTED: Span = Span::from_secs(2);
/// With a larger difference, the node fires no timer and leases no task.
pub const SKEW_MAX: Span = Span::from_secs(30);
/// A reference that falls behind by more than this is reported.
const SETBACK_REPORTED: i64 = 5_000_000;

/// Engine time as a function of the monotonic clock. All times are in microseconds. Pure, so that the simulator uses it
/// as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineTime {
    /// Engine time when the monotonic clock showed `since`.
    base: i64,
    since: i64,
    is_slow: bool,
}

/// How [`EngineTime`] reacted to its reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    None,
    /// It stepped forward.
    Stepped,
    /// It slows down because it is ahead by this many microseconds.
    SlowedDown(i64),
    /// It runs at normal speed again.
    CaughtUp,
}

impl EngineTime {
    pub fn starting_at(base: Timestamp, monotonic: i64) -> EngineTime {
        EngineTime { base: base.0, since: monotonic, is_slow: false }
    }

    pub fn at(&self, monotonic: i64) -> Timestamp {
        let elapsed = monotonic - self.since;
        Timestamp(self.base.saturating_add(if self.is_slow { elapsed / 2 } else { elapsed }))
    }

    /// The reading of the monotonic clock at which engine time is `due`, at the present speed.
    pub fn reached_at(&self, due: Timestamp) -> i64 {
        let left = due.0.saturating_sub(self.base);
        self.since.saturating_add(if self.is_slow { left.saturating_mul(2) } else { left })
    }

    /// Compares engine time with the reference.
    pub fn follow(&mut self, monotonic: i64, reference: Timestamp) -> Correction {
        let now = self.at(monotonic);
        let ahead = now.0.saturating_sub(reference.0);
        let was_slow = self.is_slow;
        let is_slow = ahead > if was_slow { 0 } else { SLEW_MIN };
        let is_step = -ahead > STEP_MIN;
        *self = EngineTime { base: if is_step { reference.0 } else { now.0 }, since: monotonic, is_slow };
        match (is_step, was_slow, is_slow) {
            (true, ..) => Correction::Stepped,
            (_, false, true) => Correction::SlowedDown(ahead),
            (_, true, false) => Correction::CaughtUp,
            _ => Correction::None,
        }
    }

    fn advance(&mut self, by: Span) {
        self.base = self.base.saturating_add_unsigned(by.0);
    }
}

pub struct Clock {
    mode: ClockMode,
    started: Instant,
    time: Mutex<EngineTime>,
    /// How far the wall clock is ahead of the database's clock, in microseconds; 0 where there is no such clock.
    skew: AtomicI64,
}

impl Clock {
    /// A clock that begins at `start`. `skew` is how far the wall clock is ahead of the database's clock.
    pub fn new(mode: ClockMode, start: Timestamp, skew: i64) -> Clock {
        let time = Mutex::new(EngineTime::starting_at(start, 0));
        Clock { mode, started: Instant::now(), time, skew: AtomicI64::new(skew) }
    }

    pub fn mode(&self) -> ClockMode {
        self.mode
    }

    pub fn now(&self) -> Timestamp {
        let time = self.time();
        time.at(self.monotonic())
    }

    /// The present time by the reference, if that is earlier than engine time. A time on the calendar, such as the fire
    /// time of a schedule, has not come before it has come by this.
    pub fn calendar_now(&self) -> Timestamp {
        match self.mode {
            ClockMode::Real => self.now().min(self.reference()),
            ClockMode::Virtual | ClockMode::Stepped => self.now(),
        }
    }

    /// Follows the reference. Call it about once a second.
    pub fn follow_reference(&self) {
        if self.mode != ClockMode::Real {
            return;
        }
        let reference = self.reference();
        let mut time = self.time();
        let correction = time.follow(self.monotonic(), reference);
        drop(time);
        match correction {
            Correction::SlowedDown(ahead) if ahead > SETBACK_REPORTED => {
                let ahead = Span(ahead.unsigned_abs());
                tracing::warn!(
                    "the clock is {ahead} behind engine time: it was set back, or it was wrong before. Engine time runs \
                     at half speed until the clock has caught up"
                );
            }
            Correction::CaughtUp => tracing::info!("the clock has caught up with engine time"),
            _ => {}
        }
    }

    /// How far engine time is ahead of the reference.
    pub fn ahead(&self) -> Span {
        if self.mode == ClockMode::Real { self.now().since(self.reference()) } else { Span(0) }
    }

    /// Records how far the wall clock is ahead of the database's clock, in microseconds.
    pub fn set_skew(&self, skew: i64) {
        self.skew.store(skew, Ordering::Relaxed);
    }

    /// How far the wall clock is ahead of the database's clock, in microseconds.
    pub fn skew(&self) -> i64 {
        self.skew.load(Ordering::Relaxed)
    }

    /// Is the machine's clock too wrong for this node to fire timers and lease tasks?
    pub fn is_too_skewed(&self) -> bool {
        Span(self.skew().unsigned_abs()) > SKEW_MAX
    }

    /// Says how wrong the machine's clock is, if that is worth reporting.
    pub fn skew_report(&self) -> Option<String> {
        let skew = self.skew();
        let span = Span(skew.unsigned_abs());
        let direction = if skew > 0 { "ahead of" } else { "behind" };
        (span > SKEW_REPORTED).then(|| format!("this machine's clock is {span} {direction} the database's clock"))
    }

    /// Moves a virtual clock forward.
    pub fn advance(&self, by: Span) {
        debug_assert!(self.mode.is_virtual());
        self.time().advance(by);
    }

    fn reference(&self) -> Timestamp {
        Timestamp(wall().0.saturating_sub(self.skew()))
    }

    fn time(&self) -> MutexGuard<'_, EngineTime> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn monotonic(&self) -> i64 {
        match self.mode {
            ClockMode::Stepped => 0,
            _ => i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
        }
    }
}

/// The wall clock of the machine. Only [`Clock`] and the measurement of its skew read it.
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    Timestamp(wall.saturating_add(store::crash::wall_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const MINUTE: i64 = 60 * SECOND;

    #[test]
    fn p15_engine_time_runs_at_half_speed_until_the_reference_has_caught_up() {
        let mut time = EngineTime::starting_at(Timestamp(50 * MINUTE), 0);
        assert_eq!(time.follow(0, Timestamp(0)), Correction::SlowedDown(50 * MINUTE));
        let mut last = time.at(0);
        for second in 1..=100 * 60 {
            let monotonic = second * SECOND;
            assert_eq!(time.at(monotonic).0 - last.0, SECOND / 2, "second {second}");
            last = time.at(monotonic);
            let expected = if second < 100 * 60 { Correction::None } else { Correction::CaughtUp };
            assert_eq!(time.follow(monotonic, Timestamp(monotonic)), expected, "second {second}");
        }
        assert_eq!(time.at(101 * MINUTE), Timestamp(101 * MINUTE), "as fast as the reference again");
    }

    #[test]
    fn p15_engine_time_steps_forward_and_never_back() {
        let mut time = EngineTime::starting_at(Timestamp(0), 0);
        assert_eq!(time.follow(SECOND, Timestamp(2 * SECOND)), Correction::None, "one second is not worth a step");
        assert_eq!(time.follow(SECOND, Timestamp(2 * SECOND + 1)), Correction::Stepped);
        assert_eq!(time.at(SECOND), Timestamp(2 * SECOND + 1));
        assert_eq!(time.follow(SECOND, Timestamp(2 * SECOND - 20_000)), Correction::None, "within the measurement");
        assert_eq!(time.follow(SECOND, Timestamp(-MINUTE)), Correction::SlowedDown(62 * SECOND + 1));
        assert_eq!(time.at(SECOND), Timestamp(2 * SECOND + 1));
        assert_eq!(time.follow(2 * SECOND, Timestamp(MINUTE)), Correction::Stepped, "also out of a slow phase");
        assert_eq!(time.at(3 * SECOND), Timestamp(MINUTE + SECOND));
    }

    #[test]
    fn a_due_time_is_reached_when_it_says() {
        let mut time = EngineTime::starting_at(Timestamp(MINUTE), 7);
        assert_eq!(time.at(time.reached_at(Timestamp(2 * MINUTE))), Timestamp(2 * MINUTE));
        time.follow(7, Timestamp(0));
        assert_eq!(time.reached_at(Timestamp(2 * MINUTE)), 7 + 2 * MINUTE);
        assert_eq!(time.at(time.reached_at(Timestamp(2 * MINUTE))), Timestamp(2 * MINUTE));
    }

    #[test]
    fn p15_the_reference_of_a_node_is_the_clock_of_the_database() {
        let clock = Clock::new(ClockMode::Real, wall(), 0);
        assert_eq!((clock.skew_report(), clock.is_too_skewed()), (None, false));
        // The wall clock turns out to be 20 s ahead, so engine time began 20 s ahead of the database's clock.
        clock.set_skew(20 * SECOND);
        clock.follow_reference();
        assert!(clock.ahead() > Span::from_secs(19) && clock.calendar_now() < wall());
        assert_eq!(clock.skew_report().unwrap(), "this machine's clock is 20s ahead of the database's clock");
        assert!(!clock.is_too_skewed());
        clock.set_skew(-31 * SECOND);
        clock.follow_reference();
        assert!(clock.now() >= wall().after(Span::from_secs(30)), "it stepped to the database's time");
        assert_eq!(clock.skew_report().unwrap(), "this machine's clock is 31s behind the database's clock");
        assert!(clock.is_too_skewed());
    }

    #[test]
    fn a_stepped_clock_moves_only_when_advanced() {
        let clock = Clock::new(ClockMode::Stepped, Timestamp(7), 0);
        clock.follow_reference();
        assert_eq!(clock.now(), Timestamp(7));
        clock.advance(Span(5));
        assert_eq!((clock.now(), clock.calendar_now()), (Timestamp(12), Timestamp(12)));
    }

    #[test]
    fn a_virtual_clock_keeps_its_advances() {
        let before = wall();
        let clock = Clock::new(ClockMode::Virtual, before.after(Span::from_days(2)), 0);
        clock.follow_reference();
        clock.advance(Span::from_days(13));
        assert!(clock.now() >= before.after(Span::from_days(15)));
    }
}
