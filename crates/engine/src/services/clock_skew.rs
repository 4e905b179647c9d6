//! Measures how far this machine's clock is from the clock of the database that nodes share, and reports it. Where
//! there is no such clock, the skew is 0.

use super::core::Core;
use crate::clock::{Clock, SKEW_MAX, wall};
use crate::mailbox::Command;
use store::Store;

/// A round trip that took longer than this (microseconds) says too little.
const ROUND_TRIP_MAX: i64 = 500_000;

/// How far the wall clock is ahead of the store's clock, in microseconds. `None` if the measurement is too inexact.
pub async fn measure(store: &dyn Store) -> store::Result<Option<i64>> {
    let asked = wall();
    let Some(stored) = store.clock().await? else { return Ok(Some(0)) };
    let answered = wall();
    let round_trip = answered.0 - asked.0;
    Ok((0..=ROUND_TRIP_MAX).contains(&round_trip).then(|| asked.0 + round_trip / 2 - stored.0))
}

/// Measures again, reports changes, and suspends or resumes the engine loop.
pub async fn update(core: &Core) -> store::Result<()> {
    if let Some(skew) = measure(&*core.store).await? {
        let before = SkewLevel::of(&core.clock);
        core.clock.set_skew(skew);
        report(core, before);
    }
    Ok(())
}

/// How wrong the clock is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SkewLevel {
    Fine,
    Reported,
    TooMuch,
}

impl SkewLevel {
    fn of(clock: &Clock) -> SkewLevel {
        match (clock.is_too_skewed(), clock.skew_report()) {
            (true, _) => SkewLevel::TooMuch,
            (false, Some(_)) => SkewLevel::Reported,
            (false, None) => SkewLevel::Fine,
        }
    }
}

/// Reports the skew of the clock, if its level has changed.
pub fn report(core: &Core, before: SkewLevel) {
    let (now, report) = (SkewLevel::of(&core.clock), core.clock.skew_report().unwrap_or_default());
    core.metrics.clock_skew_ms.set(core.clock.skew().unsigned_abs() / 1_000);
    if now == before {
        return;
    }
    match now {
        SkewLevel::Fine => tracing::info!("this machine's clock and the database's clock agree again"),
        SkewLevel::Reported => tracing::warn!("{report}"),
        SkewLevel::TooMuch => {
            tracing::error!("{report}. Above {SKEW_MAX}, this node fires no timers and leases no tasks");
        }
    }
    core.inbox.send(Command::Suspend(now == SkewLevel::TooMuch));
}
