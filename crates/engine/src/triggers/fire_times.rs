//! The fire times of a schedule: which are due, and which of those are skipped.
//!
//! A fire time has a *nominal* time (what the cron expression says) and is *due* a little later, by its jitter. A fire
//! time that is handled more than a minute after it was due counts as missed: no process was running.

use kernel::planted_bugs::{self, Bug};
use kernel::{Span, Timestamp, TriggerId};
use lang::trigger::{Missed, Schedule};
use sha2::{Digest, Sha256};

/// A fire time that is handled later than this was missed.
pub const LATE: Span = Span::from_secs(60);
/// Fire times outside the window are counted up to this many.
const COUNTED_MAX: u32 = 10_000;

/// The fire times that are due, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Fire times outside the schedule's missed window, which are skipped together.
    pub gone: Option<MissedRange>,
    pub fire_times: Vec<FireTime>,
    /// The schedule's cursor before the first of `fire_times`.
    pub cursor: Timestamp,
    /// Its position after the last of them.
    pub end: Position,
}

/// Where a schedule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The last nominal time that was handled.
    pub cursor: Timestamp,
    /// When the schedule is due next.
    pub next_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedRange {
    pub first: Timestamp,
    pub last: Timestamp,
    /// At least this many.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FireTime {
    pub nominal: Timestamp,
    /// When it was due.
    pub at: Timestamp,
    /// It was missed, and the schedule's policy does not catch up on it.
    pub is_skipped: bool,
}

impl Due {
    /// The position of the schedule when this many of `fire_times` are handled. It follows from nominal times alone: one
    /// that is computed from the present skips what came due meanwhile.
    pub fn position(&self, handled: usize) -> Position {
        let Some(next) = self.fire_times.get(handled) else { return self.end };
        let last = handled.checked_sub(1).map(|last| self.fire_times[last].nominal);
        Position { cursor: last.unwrap_or(self.cursor), next_at: Some(next.at) }
    }
}

/// The first fire time later than `after`, and when it is due.
pub fn next(trigger: TriggerId, schedule: &Schedule, after: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let nominal = schedule.cron.next_after(after, &schedule.zone)?;
    Some((nominal, nominal.after(jitter(trigger, schedule.jitter, nominal))))
}

/// What has come due since `cursor`, the last fire time handled. Fire times from `delayed_since` on were not missed:
/// a process was running and failed to start them.
pub fn due(
    trigger: TriggerId,
    schedule: &Schedule,
    cursor: Timestamp,
    now: Timestamp,
    delayed_since: Option<Timestamp>,
) -> Due {
    let back = schedule.missed_window.max(Span(LATE.0 + schedule.jitter.0));
    let window_start = Timestamp(now.0.saturating_sub(back.0 as i64)).min(delayed_since.unwrap_or(Timestamp::NEVER));
    let (gone, cursor) = gone(schedule, cursor, window_start);
    let mut fire_times: Vec<FireTime> = Vec::new();
    let next_at = loop {
        match next(trigger, schedule, fire_times.last().map_or(cursor, |fire_time| fire_time.nominal)) {
            Some((nominal, at)) if at <= now => fire_times.push(FireTime { nominal, at, is_skipped: false }),
            other => break other.map(|(_, at)| at),
        }
    };
    let newest = fire_times.last().map(|fire_time| fire_time.nominal);
    let mut caught_up = 0;
    for fire_time in fire_times.iter_mut().rev() {
        let is_outside = now.since(fire_time.nominal) > schedule.missed_window;
        let is_missed = now.since(fire_time.at) > LATE && delayed_since.is_none_or(|since| fire_time.nominal < since);
        fire_time.is_skipped = is_missed
            && match schedule.missed {
                Missed::Skip => true,
                Missed::Latest => is_outside || Some(fire_time.nominal) != newest,
                Missed::All => is_outside || schedule.missed_max.is_some_and(|most| caught_up >= most),
            };
        caught_up += u32::from(is_missed && !fire_time.is_skipped);
    }
    let end = Position { cursor: newest.unwrap_or(cursor), next_at };
    if planted_bugs::is(Bug::NextFireTimeFromNow) && !fire_times.is_empty() {
        fire_times.truncate(1);
        let end = Position { cursor: now, next_at: next(trigger, schedule, now).map(|(_, at)| at) };
        return Due { gone, fire_times, cursor, end };
    }
    Due { gone, fire_times, cursor, end }
}

/// The fire times before `window_start` as one range, and the cursor after them.
fn gone(schedule: &Schedule, cursor: Timestamp, window_start: Timestamp) -> (Option<MissedRange>, Timestamp) {
    let next = |after| schedule.cron.next_after(after, &schedule.zone).filter(|at| *at < window_start);
    let Some(first) = next(cursor) else { return (None, cursor) };
    let mut gone = MissedRange { first, last: first, count: 1 };
    while let Some(last) = next(gone.last).filter(|_| gone.count < COUNTED_MAX) {
        gone = MissedRange { last, count: gone.count + 1, ..gone };
    }
    // A fire time at exactly the start of the window is inside it.
    (Some(gone), Timestamp(window_start.0 - 1))
}

/// Between zero and `most`, always the same for the same fire time.
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

    /// Due fire times as `HH:MM`, skipped ones in brackets.
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
    fn each_policy_catches_up_on_three_missed_hours() {
        let hourly = |more: &str| {
            come_due(&format!(r#"{{"cron":"0 * * * *"{more}}}"#), "2027-01-01T09:00:00Z", "2027-01-01T12:30:00Z")
        };
        assert_eq!(hourly(r#","missed":"skip""#), "(10:00) (11:00) (12:00)");
        assert_eq!(hourly(""), "(10:00) (11:00) 12:00");
        assert_eq!(hourly(r#","missed":"all""#), "10:00 11:00 12:00");
        assert_eq!(hourly(r#","missed":"all","missed_max":2"#), "(10:00) 11:00 12:00", "p12: the latest ones");
        assert_eq!(hourly(r#","missed":"all","missed_window":"2h""#), "1 gone 11:00 12:00");
        assert_eq!(hourly(r#","missed_window":"10m""#), "3 gone", "even the newest is too old");
        assert_eq!(hourly(r#","missed":"all","missed_window":"0s""#), "3 gone");
    }

    #[test]
    fn a_fire_time_is_missed_after_a_minute() {
        let at =
            |now: &str, more: &str| come_due(&format!(r#"{{"cron":"0 * * * *"{more}}}"#), "2027-01-01T09:30:00Z", now);
        assert_eq!(at("2027-01-01T09:59:59Z", ""), "");
        assert_eq!(at("2027-01-01T10:00:00Z", r#","missed":"skip""#), "10:00");
        assert_eq!(at("2027-01-01T10:01:00Z", r#","missed":"skip","missed_window":"0s""#), "10:00");
        assert_eq!(at("2027-01-01T10:01:01Z", r#","missed":"skip""#), "(10:00)");
    }

    #[test]
    fn the_latest_of_several_missed_minutes_runs() {
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
        assert_eq!(all.end.next_at, Some(time("2027-01-01T00:01:00Z")));
    }

    #[test]
    fn p12_each_position_follows_from_nominal_times() {
        let schedule = schedule(r#"{"cron":"0 * * * *","missed":"all"}"#);
        let (cursor, now) = (time("2027-01-01T09:10:00Z"), time("2027-01-01T11:30:00Z"));
        let due = due(TriggerId([1; 16]), &schedule, cursor, now, None);
        let position = |handled| {
            let Position { cursor, next_at } = due.position(handled);
            [cursor, next_at.unwrap()].map(|at| crate::triggers::rfc3339(at)[11..16].to_owned()).join(" ")
        };
        assert_eq!([0, 1, 2].map(position), ["09:10 10:00", "10:00 11:00", "11:00 12:00"]);
    }

    #[test]
    fn a_delayed_fire_time_is_not_missed() {
        let schedule = schedule(r#"{"cron":"0 * * * *","missed":"skip","missed_window":"0s"}"#);
        let (cursor, now) = (time("2027-01-01T08:30:00Z"), time("2027-01-01T11:30:00Z"));
        let due = due(TriggerId([1; 16]), &schedule, cursor, now, Some(time("2027-01-01T10:00:00Z")));
        assert_eq!(due.gone.map(|gone| gone.count), Some(1));
        assert_eq!(due.fire_times.iter().map(|fire_time| fire_time.is_skipped).collect::<Vec<_>>(), [false, false]);
    }

    #[test]
    fn jitter_is_deterministic_and_leaves_the_nominal_time_alone() {
        let schedule = schedule(r#"{"cron":"0 * * * *","jitter":"10m","missed":"skip"}"#);
        let mut after = time("2027-01-01T00:00:00Z");
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let (nominal, at) = next(TriggerId([1; 16]), &schedule, after).unwrap();
            assert_eq!(next(TriggerId([1; 16]), &schedule, after), Some((nominal, at)));
            assert!(at >= nominal && at <= nominal.after(Span::from_secs(600)));
            // A fire time that is handled when it is due was not missed, however large the jitter.
            let due = due(TriggerId([1; 16]), &schedule, after, at, None);
            assert_eq!(due.fire_times, [FireTime { nominal, at, is_skipped: false }]);
            seen.insert(at.since(nominal));
            after = nominal;
        }
        assert!(seen.len() > 90, "spread out");
    }
}
