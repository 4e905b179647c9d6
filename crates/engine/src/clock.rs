//! The one clock. Every timer, deadline, retry and timestamp reads it; nothing else tells the time.
//!
//! Engine time never runs backwards, also across restarts: it starts at the later of the wall clock and the newest
//! record, and then follows the monotonic clock. When the wall clock is more than a second ahead, engine time steps
//! forward; when the wall clock is behind, engine time waits for it. A virtual clock adds an offset that only grows and
//! that is stored before it is used.

use kernel::{Span, Timestamp};
use std::sync::atomic::{AtomicI64, Ordering};
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

pub struct Clock {
    mode: ClockMode,
    base: Timestamp,
    started: Instant,
    /// Steps forward and virtual advances, in microseconds; added to `base` and the elapsed time.
    offset: AtomicI64,
}

/// If the newest record is further ahead of the wall clock than this, the wall clock is wrong.
const AHEAD_MAX: Span = Span::from_secs(3_600);
const STEP: Span = Span::from_secs(1);

impl Clock {
    /// `offset`, in microseconds, is how far a virtual clock was ahead of the wall clock when it was last used.
    pub fn new(mode: ClockMode, high_water: Option<Timestamp>, offset: i64) -> Result<Clock, String> {
        let wall = Timestamp(wall().0.saturating_add(offset));
        let base = wall.max(high_water.unwrap_or_default());
        if mode == ClockMode::Real && base.since(wall) > AHEAD_MAX {
            return Err(format!(
                "the newest record is {} ahead of this machine's clock; set the clock right, or wait",
                base.since(wall)
            ));
        }
        Ok(Clock { mode, base, started: Instant::now(), offset: AtomicI64::new(0) })
    }

    /// A clock that stands at `start`.
    pub fn stepped(start: Timestamp) -> Clock {
        Clock { mode: ClockMode::Stepped, base: start, started: Instant::now(), offset: AtomicI64::new(0) }
    }

    pub fn mode(&self) -> ClockMode {
        self.mode
    }

    pub fn now(&self) -> Timestamp {
        let elapsed = match self.mode {
            ClockMode::Stepped => 0,
            _ => i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
        };
        Timestamp(self.base.0.saturating_add(elapsed).saturating_add(self.offset.load(Ordering::Relaxed)))
    }

    /// Steps a real clock forward when the wall clock is ahead (the machine slept, or its clock was set).
    pub fn follow_wall(&self) {
        let ahead = wall().since(self.now());
        if self.mode == ClockMode::Real && ahead > STEP {
            self.offset.fetch_add(ahead.0 as i64, Ordering::Relaxed);
        }
    }

    /// Moves a virtual clock forward.
    pub fn advance(&self, by: Span) {
        debug_assert!(self.mode.is_virtual());
        self.offset.fetch_add(i64::try_from(by.0).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

/// The wall clock of the machine. Only [`Clock`] reads it.
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p15_engine_time_never_runs_backwards() {
        let ahead = wall().after(Span::from_secs(600));
        let clock = Clock::new(ClockMode::Real, Some(ahead), 0).unwrap();
        assert!(clock.now() >= ahead);
        clock.follow_wall();
        assert!(clock.now() < ahead.after(Span::from_secs(60)), "engine time waits for a wall clock that is behind");
        assert!(Clock::new(ClockMode::Real, Some(wall().after(Span::from_days(1))), 0).is_err());
    }

    #[test]
    fn a_stepped_clock_moves_only_when_advanced() {
        let clock = Clock::stepped(Timestamp(7));
        clock.follow_wall();
        assert_eq!(clock.now(), Timestamp(7));
        clock.advance(Span(5));
        assert_eq!(clock.now(), Timestamp(12));
    }

    #[test]
    fn a_virtual_clock_keeps_its_advances() {
        let before = wall();
        let clock = Clock::new(ClockMode::Virtual, None, Span::from_days(2).0 as i64).unwrap();
        assert!(clock.now() >= before.after(Span::from_days(2)));
        clock.advance(Span::from_days(13));
        assert!(clock.now() >= before.after(Span::from_days(15)));
    }
}
