//! Clocks that disagree. Each host has a wall clock with an offset and drift that can be set. Each process
//! reads engine time from the engine's own [`EngineTime`], on virtual time.
//!
//! ```text
//!   true time ──offset, drift, steps──▶ WallClock ──start, follow_wall──▶ EngineClock ──▶ engine time
//! ```
//!
//! Invariant: engine time begins at the later of the wall clock and the newest record, and only goes forward.
//! [`process`](super::process) checks what each process sees.

use super::random::Random;
use engine::clock::{AHEAD_MAX, Correction, EngineTime};
use kernel::planted_bugs::{self, Bug};
use kernel::{Span, Timestamp};

/// The largest offset of a wall clock from true time (microseconds).
const OFFSET_MAX: i64 = 2 * 3_600 * 1_000_000;
const MILLION: i64 = 1_000_000;

/// The wall clock of a host.
#[derive(Clone, Debug)]
pub struct WallClock {
    origin: Timestamp,
    /// Microseconds.
    offset: i64,
    /// Parts per million: one percent is 10,000. The monotonic clock of the host has the same drift.
    drift: i64,
}

impl WallClock {
    pub fn exact(origin: Timestamp) -> WallClock {
        WallClock { origin, offset: 0, drift: 0 }
    }

    /// A clock that is off by up to thirty seconds and drifts by up to one percent.
    pub fn draw(random: &mut Random, origin: Timestamp) -> WallClock {
        let within = |random: &mut Random, most: i64| random.between(0, 2 * most as u64) as i64 - most;
        WallClock { origin, offset: within(random, 30 * MILLION), drift: within(random, 10_000) }
    }

    /// The reading of the host's monotonic clock.
    fn monotonic(&self, now: Timestamp) -> i64 {
        let elapsed = now.0 - self.origin.0;
        elapsed + elapsed * self.drift / MILLION
    }

    pub fn read(&self, now: Timestamp) -> Timestamp {
        Timestamp(self.origin.0 + self.monotonic(now) + self.offset)
    }

    /// Sets the clock forward or back.
    pub fn step(&mut self, by: i64) {
        self.offset = (self.offset + by).clamp(-OFFSET_MAX, OFFSET_MAX);
    }

    /// Sets the clock to a time.
    pub fn set(&mut self, now: Timestamp, to: Timestamp) {
        self.offset += to.0 - self.read(now).0;
    }
}

/// The engine clock of one process, with the wall clock of its host as reference.
#[derive(Clone, Debug)]
pub struct EngineClock(EngineTime);

impl EngineClock {
    /// Returns `None` if the newest record is too far ahead of the wall clock.
    pub fn start(wall: &WallClock, now: Timestamp, high_water: Option<Timestamp>) -> Option<EngineClock> {
        let reading = wall.read(now);
        let base = reading.max(high_water.unwrap_or_default());
        (base.since(reading) <= AHEAD_MAX).then(|| EngineClock(EngineTime::starting_at(base, wall.monotonic(now))))
    }

    /// The engine time at true time `now`.
    pub fn read(&self, wall: &WallClock, now: Timestamp) -> Timestamp {
        if planted_bugs::is(Bug::TimeFromWall) {
            return wall.read(now);
        }
        self.0.at(wall.monotonic(now))
    }

    pub fn follow_wall(&mut self, wall: &WallClock, now: Timestamp) -> Correction {
        self.0.follow(wall.monotonic(now), wall.read(now))
    }

    /// The true time at which engine time reaches `due`, if it is not corrected before.
    pub fn reached_at(&self, wall: &WallClock, due: Timestamp, now: Timestamp) -> Timestamp {
        let left = self.0.reached_at(due) - wall.monotonic(now);
        let left = left.clamp(0, Span::from_days(1_000).0 as i64);
        let true_span = i128::from(left) * i128::from(MILLION) / i128::from(MILLION + wall.drift);
        now.after(Span(true_span as u64 + u64::from(left > 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_000_000_000_000);

    #[test]
    fn engine_time_goes_forward_whatever_the_wall_clock_does() {
        let mut random = Random::stream(1, "clock");
        for _ in 0..200 {
            let (mut wall, mut now) = (WallClock::draw(&mut random, START), START);
            let high_water = START.after(random.millis(0, 60_000));
            let mut clock =
                EngineClock::start(&wall, now, Some(high_water)).expect("the wall clock is less than an hour behind");
            let mut last = clock.read(&wall, now);
            assert!(last >= high_water);
            for _ in 0..20 {
                wall.step(random.below(2_000_000_000) as i64 - 1_000_000_000);
                now = now.after(random.log_millis(1, 100_000));
                clock.follow_wall(&wall, now);
                let read = clock.read(&wall, now);
                assert!(read >= last && wall.read(now).0 - read.0 <= MILLION);
                last = read;
            }
            let due = last.after(random.log_millis(1, 1_000_000));
            let seen = clock.read(&wall, clock.reached_at(&wall, due, now));
            assert!(seen >= due && seen.since(due) < Span(1_000), "{seen:?} for {due:?}");
        }
    }

    #[test]
    fn a_process_refuses_to_start_if_its_wall_clock_is_far_behind_the_records() {
        let mut wall = WallClock::exact(START);
        let newest = START.after(Span::from_secs(2 * 3_600));
        assert!(EngineClock::start(&wall, START, Some(newest)).is_none());
        wall.set(START, newest);
        assert!(EngineClock::start(&wall, START, Some(newest)).is_some());
    }
}
