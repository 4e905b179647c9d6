//! Cron schedules with five fields and a time zone: parsing, and the next fire time.
//!
//! ```text
//!   ┌ minute 0-59   ┌ hour 0-23   ┌ day of month 1-31   ┌ month 1-12   ┌ day of week 0-7
//!  "30              2             *                     *              1-5"
//! ```
//!
//! Each field is `*`, a value, a range, or a list of these; `*` and ranges may have a `/step`. When both day fields
//! are given, a day matches if either field matches, as in every cron. A day field is given if it does not begin with
//! `*`.
//!
//! When clocks change, there are two kinds of schedules. If minute and hour are both fixed, the schedule means local
//! times: a time that the day skips fires at the first instant after the gap, and a time that occurs twice fires only
//! the first time. If minute or hour has a `*`, the schedule means elapsed time: it is matched against every minute
//! that passes. (Vixie cron decides the same way.)
//!
//! The time zone database is compiled in, so every machine computes the same fire times.

use crate::codes;
use jiff::civil::{Date, DateTime, date};
use jiff::tz::{AmbiguousOffset, TimeZone};
use kernel::Timestamp;
use kernel::path::Problem;

/// The search for the next fire time ends after this many years. (29 February on a given day of the week comes every
/// 28 years, and after up to 40 years around a century.)
const YEARS_MAX: i16 = 100;

/// A parsed schedule that can fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    /// Bit `n` stands for the value `n`.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Neither minute nor hour has a star.
    is_fixed: bool,
    days_given: bool,
    weekdays_given: bool,
}

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

struct CronField {
    name: &'static str,
    from: u32,
    to: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [CronField; 5] = [
    CronField { name: "minute", from: 0, to: 59, names: &[] },
    CronField { name: "hour", from: 0, to: 23, names: &[] },
    CronField { name: "day of month", from: 1, to: 31, names: &[] },
    CronField { name: "month", from: 1, to: 12, names: MONTHS },
    CronField { name: "day of week", from: 0, to: 7, names: WEEKDAYS },
];
/// The most days that each month can have.
const MONTH_DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

impl Zone {
    pub const UTC: &'static str = "Etc/UTC";

    /// A zone of the IANA database, by its exact name.
    pub fn get(name: &str) -> Option<Zone> {
        let zone = TimeZone::get(name).ok()?;
        (zone.iana_name() == Some(name)).then_some(Zone(zone))
    }

    /// An instant in local time, with the UTC offset.
    pub fn local(&self, at: Timestamp) -> String {
        let shown = |at: jiff::Timestamp| at.display_with_offset(self.0.to_offset(at)).to_string();
        jiff::Timestamp::from_microsecond(at.0).map_or_else(|_| at.0.to_string(), shown)
    }

    /// Every time zone name.
    pub(crate) fn names() -> Vec<String> {
        jiff::tz::db().available().map(|name| name.to_string()).collect()
    }
}

impl Cron {
    /// Parses five fields, or reports the problems of all fields.
    pub fn parse(text: &str) -> Result<Cron, Vec<Problem>> {
        let fields: Vec<(usize, &str)> = words(text);
        if fields.len() != FIELDS.len() {
            let message = format!("a schedule has 5 fields, found {}", fields.len());
            let hint = match fields.len() {
                1 if text.trim().starts_with('@') => "write the fields, such as `0 0 * * *` for every midnight",
                6 => "minute, hour, day of month, month, day of week; there are no seconds",
                _ => "minute, hour, day of month, month, day of week",
            };
            return Err(vec![Problem::new(codes::INVALID_CRON, message, 0, text.len()).hint(hint)]);
        }
        let mut problems = Vec::new();
        let mut sets = [0u64; 5];
        for ((field, (at, word)), set) in FIELDS.iter().zip(&fields).zip(&mut sets) {
            *set = field.read(word, *at, &mut problems);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let [minutes, hours, days, months, weekdays] = sets;
        let has_star = |i: usize| fields[i].1.starts_with('*');
        let any_star = |i: usize| fields[i].1.contains('*');
        let cron = Cron {
            minutes,
            hours,
            days,
            months,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
            is_fixed: !any_star(0) && !any_star(1),
            days_given: !has_star(2),
            weekdays_given: !has_star(4),
        };
        let longest = (1..=12).filter(|m| has(months, *m)).map(|m| MONTH_DAYS[m as usize - 1]).max().unwrap_or(0);
        if days.trailing_zeros() > longest && !cron.weekdays_given {
            let (at, word) = fields[2];
            let message = format!("no month of this schedule has a day {}", days.trailing_zeros());
            return Err(vec![Problem::new(codes::IMPOSSIBLE_SCHEDULE, message, at, word.len())]);
        }
        Ok(cron)
    }

    /// The first fire time later than `after`.
    pub fn next_after(&self, after: Timestamp, zone: &Zone) -> Option<Timestamp> {
        let from = jiff::Timestamp::from_microsecond(after.0).ok()?;
        let next = if self.is_fixed { self.next_fixed(from, &zone.0) } else { self.next_elapsed(from, &zone.0) }?;
        Some(Timestamp(next.as_microsecond()))
    }

    /// Iterates over local days and converts each of their local times to an instant.
    fn next_fixed(&self, after: jiff::Timestamp, zone: &TimeZone) -> Option<jiff::Timestamp> {
        let start = zone.to_datetime(after).date();
        // Start two days earlier: a clock that was set back may already have shown the next day, and a gap is at most
        // a day long.
        let mut day = start.yesterday().ok()?.yesterday().ok()?;
        while day.year() <= start.year() + YEARS_MAX {
            if !self.has_day(day) {
                day = self.later_day(day)?;
                continue;
            }
            for hour in (0..24).filter(|hour| has(self.hours, *hour)) {
                for minute in (0..60).filter(|minute| has(self.minutes, *minute)) {
                    let at = instant(day.at(hour as i8, minute as i8, 0, 0), zone)?;
                    if at > after {
                        return Some(at);
                    }
                }
            }
            day = day.tomorrow().ok()?;
        }
        None
    }

    /// Iterates over the minutes that pass, and skips hours and days without a match.
    fn next_elapsed(&self, after: jiff::Timestamp, zone: &TimeZone) -> Option<jiff::Timestamp> {
        let mut at = whole_minute(after.as_second() + 1)?;
        let last = zone.to_datetime(after).year() + YEARS_MAX;
        loop {
            let local = zone.to_datetime(at);
            if local.year() > last {
                return None;
            }
            let next = if !self.has_day(local.date()) {
                instant(self.later_day(local.date())?.at(0, 0, 0, 0), zone)?.as_second()
            } else if !has(self.hours, local.hour() as u32) {
                at.as_second() + 60 * (60 - i64::from(local.minute()))
            } else if !has(self.minutes, local.minute() as u32) {
                at.as_second() + 60
            } else {
                return Some(at);
            };
            // Clocks may change at any minute, also back to a day or an hour that matches. The first occurrence of a
            // midnight that comes twice may have passed.
            let change = zone.following(at).next().map_or(next, |change| change.timestamp().as_second());
            at = whole_minute(next.min(change).max(at.as_second() + 1))?;
        }
    }

    fn has_day(&self, day: Date) -> bool {
        let by_month = has(self.days, day.day() as u32);
        let by_week = has(self.weekdays, day.weekday().to_sunday_zero_offset() as u32);
        let is_day = if self.days_given && self.weekdays_given { by_month || by_week } else { by_month && by_week };
        is_day && has(self.months, day.month() as u32)
    }

    /// The next candidate: tomorrow, or the first of the next month if the schedule excludes this month.
    fn later_day(&self, day: Date) -> Option<Date> {
        if has(self.months, day.month() as u32) {
            return day.tomorrow().ok();
        }
        match day.month() {
            12 => Date::new(day.year() + 1, 1, 1).ok(),
            month => Some(date(day.year(), month + 1, 1)),
        }
    }
}

/// The instant of a local time: its first occurrence, or the end of the gap that skips it.
fn instant(local: DateTime, zone: &TimeZone) -> Option<jiff::Timestamp> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(local).ok()
        }
        AmbiguousOffset::Gap { after, .. } => {
            let before_the_change = after.to_timestamp(local).ok()?;
            // `following` is exclusive, and a change at exactly that instant is the one to find.
            let behind = jiff::Timestamp::from_second(before_the_change.as_second() - 1).ok()?;
            zone.following(behind).next().map(|change| change.timestamp())
        }
    }
}

/// The first whole minute at or after a second.
fn whole_minute(second: i64) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_second((second + 59).div_euclid(60) * 60).ok()
}

fn has(set: u64, value: u32) -> bool {
    set >> value & 1 == 1
}

/// The words of a text with their byte offsets.
fn words(text: &str) -> Vec<(usize, &str)> {
    let place = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split([' ', '\t']).filter(|word| !word.is_empty()).map(|word| (place(word), word)).collect()
}

impl CronField {
    /// The values of a field as bits. A part with a problem is reported and left out.
    fn read(&self, word: &str, at: usize, problems: &mut Vec<Problem>) -> u64 {
        let mut set = 0;
        let mut place = at;
        for part in word.split(',') {
            match self.part(part) {
                Ok(values) => set |= values,
                Err((message, hint)) => {
                    let problem = Problem::new(codes::INVALID_CRON, message, place, part.len());
                    problems.push(Problem { hint, ..problem });
                }
            }
            place += part.len() + 1;
        }
        set
    }

    fn part(&self, part: &str) -> Result<u64, (String, Option<String>)> {
        let CronField { name, from, to, .. } = self;
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (low, high) = match range.split_once('-') {
            _ if range == "*" => (*from, if *to == 7 { 6 } else { *to }),
            Some((low, high)) => (self.value(low)?, self.value(high)?),
            None if step.is_some() => {
                let value = self.value(range)?;
                let hint = format!("write `{value}-{to}/{}`", step.unwrap_or_default());
                return Err((format!("a step in `{name}` needs a range or `*` before it"), Some(hint)));
            }
            None => (self.value(range)?, self.value(range)?),
        };
        if low > high {
            let hint = format!("write `{low}-{to},{from}-{high}`");
            return Err((format!("`{range}` in `{name}` runs backwards"), Some(hint)));
        }
        let step = match step {
            None => 1,
            Some(text) => number(text).filter(|step| (1..=to - from).contains(step)).ok_or_else(|| {
                (format!("`{}` is not a step in `{name}`", cut(text)), Some(format!("allowed is 1 to {}", to - from)))
            })?,
        };
        Ok((low..=high).step_by(step as usize).fold(0, |set, value| set | 1 << value))
    }

    fn value(&self, text: &str) -> Result<u32, (String, Option<String>)> {
        let CronField { name, from, to, names } = self;
        let named = names.iter().position(|known| known.eq_ignore_ascii_case(text)).map(|i| i as u32 + from);
        let value = named.or_else(|| number(text)).filter(|value| (*from..=*to).contains(value));
        value.ok_or_else(|| {
            let names = names.first().map(|first| format!(", or a name such as `{first}`")).unwrap_or_default();
            let hint = format!("allowed is {from} to {to}{names}");
            (format!("`{}` is not a value of `{name}`", cut(text)), Some(hint))
        })
    }
}

/// Digits only: `parse` alone would also accept a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !crate::diagnostic::is_hostile(*c)).take(20).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        Timestamp(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
    }

    /// The fire times of a schedule after `from`.
    fn fire_times(cron: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let (cron, zone) = (Cron::parse(cron).unwrap(), Zone::get(zone).unwrap());
        let next = |at: &Timestamp| cron.next_after(*at, &zone);
        let all = std::iter::successors(next(&time(from)), next).take(count);
        all.map(|at| jiff::Timestamp::from_microsecond(at.0).unwrap().to_string()).collect()
    }

    fn matches(cron: &str, local: &str) -> bool {
        let at = time(&format!("{local}:00Z"));
        Cron::parse(cron).unwrap().next_after(Timestamp(at.0 - 1), &Zone::get("Etc/UTC").unwrap()) == Some(at)
    }

    #[test]
    fn a5_schedules_match_the_times_they_name() {
        // 2026-11-16 is a Monday.
        for (cron, yes, no) in [
            ("* * * * *", &["2026-11-16T00:00", "2026-11-16T12:34"][..], &[][..]),
            (
                "*/15 * * * *",
                &["2026-11-16T10:00", "2026-11-16T10:15", "2026-11-16T10:30", "2026-11-16T10:45"],
                &["2026-11-16T10:20"],
            ),
            ("0 9 * * 1-5", &["2026-11-16T09:00"], &["2026-11-21T09:00", "2026-11-16T09:01"]),
            ("0 10,14,18 * * *", &["2026-11-16T14:00"], &["2026-11-16T15:00"]),
            (
                "10-20/5 * * * *",
                &["2026-11-16T01:10", "2026-11-16T01:15", "2026-11-16T01:20"],
                &["2026-11-16T01:12", "2026-11-16T01:25"],
            ),
            ("0 0 * * 0", &["2026-11-15T00:00"], &["2026-11-16T00:00"]),
            ("0 0 * * 7", &["2026-11-15T00:00"], &["2026-11-16T00:00"]),
            ("0 0 * * SUN", &["2026-11-15T00:00"], &["2026-11-16T00:00"]),
            ("0 0 * * 5-7", &["2026-11-15T00:00", "2026-11-20T00:00"], &["2026-11-16T00:00"]),
            ("0 0 1 * 1", &["2026-11-16T00:00", "2026-12-01T00:00"], &["2026-11-17T00:00"]),
            ("0 0 */2 * 1", &["2026-11-23T00:00"], &["2026-11-16T00:00", "2026-11-17T00:00"]),
            ("5 4 29 feb *", &["2028-02-29T04:05"], &["2027-02-28T04:05"]),
            ("0\t0  1 jan,JUL *", &["2027-01-01T00:00", "2027-07-01T00:00"], &["2027-02-01T00:00"]),
        ] {
            for time in yes {
                assert!(matches(cron, time), "{cron} at {time}");
            }
            for time in no {
                assert!(!matches(cron, time), "{cron} not at {time}");
            }
        }
    }

    #[test]
    fn a5_invalid_and_impossible_schedules_are_refused() {
        let problem = |text: &str| {
            let problems = Cron::parse(text).expect_err(text);
            problems.iter().map(|p| format!("{} {}", p.code, p.message)).collect::<Vec<_>>().join("; ")
        };
        for (text, expected) in [
            ("*/0 * * * *", "invalid_cron `0` is not a step in `minute`"),
            ("60 * * * *", "invalid_cron `60` is not a value of `minute`"),
            ("5-1 * * * *", "invalid_cron `5-1` in `minute` runs backwards"),
            ("* * * *", "invalid_cron a schedule has 5 fields, found 4"),
            ("0 * * * * *", "invalid_cron a schedule has 5 fields, found 6"),
            ("", "invalid_cron a schedule has 5 fields, found 0"),
            ("@daily", "invalid_cron a schedule has 5 fields, found 1"),
            ("5/15 * * * *", "invalid_cron a step in `minute` needs a range or `*` before it"),
            ("*/90 * * * *", "invalid_cron `90` is not a step in `minute`"),
            ("+5 * * * *", "invalid_cron `+5` is not a value of `minute`"),
            ("1,,2 * * * *", "invalid_cron `` is not a value of `minute`"),
            (
                "a 24 0 13 8",
                "invalid_cron `a` is not a value of `minute`; invalid_cron `24` is not a value of `hour`; invalid_cron `0` is not a value of `day of month`; invalid_cron `13` is not a value of `month`; invalid_cron `8` is not a value of `day of week`",
            ),
            ("0 0 30 2 *", "impossible_schedule no month of this schedule has a day 30"),
            ("0 0 31 4,6,9,11 *", "impossible_schedule no month of this schedule has a day 31"),
            ("0 0 30 2 */2", "impossible_schedule no month of this schedule has a day 30"),
            ("99999999999999999999 * * * *", "invalid_cron `99999999999999999999` is not a value of `minute`"),
        ] {
            assert_eq!(problem(text), expected, "{text}");
        }
        for fine in ["0 0 30 2 1", "0 0 31 2,3 *", "0 0 29 2 */3", "*/59 * * * *"] {
            let cron = Cron::parse(fine).unwrap();
            assert!(cron.next_after(time("2026-01-01T00:00:00Z"), &Zone::get("Etc/UTC").unwrap()).is_some(), "{fine}");
        }
    }

    #[test]
    fn decision_15_fixed_times_fire_once_on_days_when_clocks_change() {
        let berlin = |cron, from, count| fire_times(cron, "Europe/Berlin", from, count);
        assert_eq!(
            berlin("30 2 * * *", "2027-03-26T12:00:00Z", 3),
            ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]
        );
        assert_eq!(
            berlin("30 2 * * *", "2027-10-29T12:00:00Z", 3),
            ["2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"]
        );
        // All times in one gap fire at one instant, together with a time that falls on that instant anyway.
        assert_eq!(
            berlin("0,30 2,3 * * *", "2027-03-28T00:00:00Z", 3),
            ["2027-03-28T01:00:00Z", "2027-03-28T01:30:00Z", "2027-03-29T00:00:00Z"]
        );
        // From the middle of the repeated hour.
        assert_eq!(berlin("30 2 * * *", "2027-10-31T00:30:00Z", 1), ["2027-11-01T01:30:00Z"]);
        assert_eq!(berlin("30 2 * * *", "2027-10-31T01:15:00Z", 1), ["2027-11-01T01:30:00Z"]);
        // A day that was skipped, and a midnight that is skipped.
        assert_eq!(
            fire_times("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", 1),
            ["2011-12-30T10:00:00Z"],
            "the first instant after the gap"
        );
        assert_eq!(fire_times("0 0 * * *", "Africa/Cairo", "2027-04-29T12:00:00Z", 1), ["2027-04-29T22:00:00Z"]);
    }

    #[test]
    fn decision_15_stars_follow_elapsed_time() {
        let berlin = |cron, from, count| fire_times(cron, "Europe/Berlin", from, count);
        assert_eq!(
            berlin("30 * * * *", "2027-03-28T00:00:00Z", 3),
            ["2027-03-28T00:30:00Z", "2027-03-28T01:30:00Z", "2027-03-28T02:30:00Z"]
        );
        assert_eq!(
            berlin("30 * * * *", "2027-10-31T00:00:00Z", 3),
            ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-10-31T02:30:00Z"],
            "the repeated hour passes twice"
        );
        assert_eq!(
            berlin("*/30 2 * * *", "2027-10-30T22:00:00Z", 5),
            [
                "2027-10-31T00:00:00Z",
                "2027-10-31T00:30:00Z",
                "2027-10-31T01:00:00Z",
                "2027-10-31T01:30:00Z",
                "2027-11-01T01:00:00Z"
            ]
        );
        assert_eq!(berlin("*/30 2 * * *", "2027-03-27T22:00:00Z", 1), ["2027-03-29T00:00:00Z"]);
        assert_eq!(fire_times("0 * * * *", "Asia/Kathmandu", "2027-01-01T00:00:00Z", 1), ["2027-01-01T00:15:00Z"]);
        assert_eq!(
            fire_times("0 9-17 * * 1-5", "Australia/Lord_Howe", "2027-01-01T12:00:00Z", 1),
            ["2027-01-03T22:00:00Z"]
        );
        // Clocks may change at any minute, and back into the day before.
        let newfoundland = |cron, from| fire_times(cron, "America/St_Johns", from, 1);
        assert_eq!(newfoundland("*/5 1 * * *", "2011-03-13T03:00:00Z"), ["2011-03-13T03:35:00Z"]);
        assert_eq!(newfoundland("*/30 23 * * 6", "2010-11-07T02:00:00Z"), ["2010-11-07T03:00:00Z"]);
    }

    #[test]
    fn zones_are_found_by_their_exact_names() {
        assert!(Zone::get("Europe/Berlin").is_some() && Zone::get("Etc/UTC").is_some() && Zone::get("UTC").is_some());
        for bad in ["europe/berlin", "Europe/Atlantis", "", "+02:00", "Local"] {
            assert!(Zone::get(bad).is_none(), "{bad}");
        }
        assert!(Zone::names().len() > 400);
    }
}
