//! The moments of a schedule: when each is due, and what becomes of those that are.
//!
//! A moment is *nominal* (what the schedule says) and *due* a little later, by its jitter. One that is
//! looked at more than a minute after it was due was missed: nobody was there.

use kernel::{Span, Timestamp, TriggerId};
use lang::trigger::{Missed, Schedule};
use sha2::{Digest, Sha256};

/// Handled later than this, a moment was missed.
pub const LATE: Span = Span::from_secs(60);
/// Moments outside the window are counted up to here.
const COUNTED_MAX: u32 = 10_000;

/// What is due, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Moments so long ago that each is no longer looked at.
    pub gone: Option<MissedRange>,
    pub fire_times: Vec<FireTime>,
    /// Where the moments before the first of `fire_times` end.
    pub cursor: Timestamp,
    /// When to look again.
    pub next_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedRange {
    pub first: Timestamp,
    pub last: Timestamp,
    /// At least so many.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FireTime {
    pub nominal: Timestamp,
    /// When it was due.
    pub at: Timestamp,
    /// It was missed, and the policy makes up for it no more.
    pub is_skipped: bool,
}

/// The first moment later than `after`, and when it is due.
pub fn next(trigger: TriggerId, schedule: &Schedule, after: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let nominal = schedule.cron.next_after(after, &schedule.zone)?;
    Some((nominal, nominal.after(jitter(trigger, schedule.jitter, nominal))))
}

/// What has come due since `cursor`, the last moment dealt with. Moments from `delayed_since` on were not
/// missed: somebody was there and could not do anything about them.
pub fn due(
    trigger: TriggerId,
    schedule: &Schedule,
    cursor: Timestamp,
    now: Timestamp,
    delayed_since: Option<Timestamp>,
) -> Due {
    let back = schedule.missed_window.max(Span(LATE.0 + schedule.jitter.0));
    let horizon = Timestamp(now.0.saturating_sub(back.0 as i64)).min(delayed_since.unwrap_or(Timestamp::NEVER));
    let (gone, cursor) = gone(schedule, cursor, horizon);
    let mut fire_times: Vec<FireTime> = Vec::new();
    let next_at = loop {
        match next(trigger, schedule, fire_times.last().map_or(cursor, |fire_time| fire_time.nominal)) {
            Some((nominal, at)) if at <= now => fire_times.push(FireTime { nominal, at, is_skipped: false }),
            other => break other.map(|(_, at)| at),
        }
    };
    let newest = fire_times.last().map(|fire_time| fire_time.nominal);
    for fire_time in &mut fire_times {
        let is_outside = now.since(fire_time.nominal) > schedule.missed_window;
        fire_time.is_skipped = now.since(fire_time.at) > LATE
            && delayed_since.is_none_or(|since| fire_time.nominal < since)
            && match schedule.missed {
                Missed::Skip => true,
                Missed::Latest => is_outside || Some(fire_time.nominal) != newest,
                Missed::All => is_outside,
            };
    }
    Due { gone, fire_times, cursor, next_at }
}

/// The moments up to `horizon` as one, and where to go on from.
fn gone(schedule: &Schedule, cursor: Timestamp, horizon: Timestamp) -> (Option<MissedRange>, Timestamp) {
    let moment = |after| schedule.cron.next_after(after, &schedule.zone).filter(|at| *at < horizon);
    let Some(first) = moment(cursor) else { return (None, cursor) };
    let mut gone = MissedRange { first, last: first, count: 1 };
    while let Some(next) = moment(gone.last).filter(|_| gone.count < COUNTED_MAX) {
        gone = MissedRange { last: next, count: gone.count + 1, ..gone };
    }
    // A moment that is exactly the horizon is still looked at.
    (Some(gone), Timestamp(horizon.0 - 1))
}

/// Between nothing and `most`, always the same for the same moment.
fn jitter(trigger: TriggerId, most: Span, nominal: Timestamp) -> Span {
    if most == Span(0) {
        return most;
    }
    let digest = Sha256::new().chain_update(trigger.0).chain_update(nominal.0.to_be_bytes()).finalize();
    let number = digest[..8].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    Span(number % (most.0 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::event::TriggerKind;
    use lang::trigger::{Spec, stored};

    fn schedule(config: &str) -> Schedule {
        match stored(TriggerKind::Schedule, config) {
            Some(Spec::Schedule(schedule)) => *schedule,
            other => panic!("{config}: {other:?}"),
        }
    }

    fn time(text: &str) -> Timestamp {
        Timestamp(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
    }

    /// Due moments as `HH:MM`, those skipped in brackets.
    fn come_due(config: &str, cursor: &str, now: &str) -> String {
        let due = due(TriggerId([1; 16]), &schedule(config), time(cursor), time(now), None);
        let word = |fire_time: &FireTime| {
            let text = crate::triggers::rfc3339(fire_time.nominal)[11..16].to_owned();
            if fire_time.is_skipped { format!("({text})") } else { text }
        };
        let gone = due.gone.map(|gone| format!("{} gone", gone.count));
        gone.into_iter().chain(due.fire_times.iter().map(word)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_policy_makes_up_for_three_hours_as_it_says() {
        let hourly = |more: &str| {
            come_due(&format!(r#"{{"cron":"0 * * * *"{more}}}"#), "2027-01-01T09:00:00Z", "2027-01-01T12:30:00Z")
        };
        assert_eq!(hourly(r#","missed":"skip""#), "(10:00) (11:00) (12:00)");
        assert_eq!(hourly(""), "(10:00) (11:00) 12:00");
        assert_eq!(hourly(r#","missed":"all""#), "10:00 11:00 12:00");
        assert_eq!(hourly(r#","missed":"all","missed_window":"2h""#), "1 gone 11:00 12:00");
        assert_eq!(hourly(r#","missed_window":"10m""#), "3 gone", "even the newest is too old");
        assert_eq!(hourly(r#","missed":"all","missed_window":"0s""#), "3 gone");
    }

    #[test]
    fn a_moment_is_missed_after_a_minute() {
        let at =
            |now: &str, more: &str| come_due(&format!(r#"{{"cron":"0 * * * *"{more}}}"#), "2027-01-01T09:30:00Z", now);
        assert_eq!(at("2027-01-01T09:59:59Z", ""), "");
        assert_eq!(at("2027-01-01T10:00:00Z", r#","missed":"skip""#), "10:00");
        assert_eq!(at("2027-01-01T10:01:00Z", r#","missed":"skip","missed_window":"0s""#), "10:00");
        assert_eq!(at("2027-01-01T10:01:01Z", r#","missed":"skip""#), "(10:00)");
    }

    #[test]
    fn of_minutes_missed_the_fresh_one_is_the_latest() {
        let found = come_due(r#"{"cron":"* * * * *"}"#, "2027-01-01T09:00:00Z", "2027-01-01T09:03:10Z");
        assert_eq!(found, "(09:01) (09:02) 09:03");
        let all = due(
            TriggerId([1; 16]),
            &schedule(r#"{"cron":"* * * * *","missed":"all","missed_window":"1h"}"#),
            time("2026-01-01T00:00:00Z"),
            time("2027-01-01T00:00:30Z"),
            None,
        );
        assert_eq!((all.fire_times.len(), all.gone.map(|gone| gone.count)), (60, Some(COUNTED_MAX)), "bounded");
        assert_eq!(all.next_at, Some(time("2027-01-01T00:01:00Z")));
    }

    #[test]
    fn a_moment_that_was_held_up_was_not_missed() {
        let schedule = schedule(r#"{"cron":"0 * * * *","missed":"skip","missed_window":"0s"}"#);
        let (cursor, now) = (time("2027-01-01T08:30:00Z"), time("2027-01-01T11:30:00Z"));
        let due = due(TriggerId([1; 16]), &schedule, cursor, now, Some(time("2027-01-01T10:00:00Z")));
        assert_eq!(due.gone.map(|gone| gone.count), Some(1));
        assert_eq!(due.fire_times.iter().map(|fire_time| fire_time.is_skipped).collect::<Vec<_>>(), [false, false]);
    }

    #[test]
    fn jitter_is_the_same_every_time_and_leaves_the_moment_alone() {
        let schedule = schedule(r#"{"cron":"0 * * * *","jitter":"10m","missed":"skip"}"#);
        let mut after = time("2027-01-01T00:00:00Z");
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let (nominal, at) = next(TriggerId([1; 16]), &schedule, after).unwrap();
            assert_eq!(next(TriggerId([1; 16]), &schedule, after), Some((nominal, at)));
            assert!(at >= nominal && at <= nominal.after(Span::from_secs(600)));
            // Handled when it is due it was not missed, however large the jitter.
            let due = due(TriggerId([1; 16]), &schedule, after, at, None);
            assert_eq!(due.fire_times, [FireTime { nominal, at, is_skipped: false }]);
            seen.insert(at.since(nominal));
            after = nominal;
        }
        assert!(seen.len() > 90, "spread out");
    }
}
