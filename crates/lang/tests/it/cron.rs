//! Fire times compared with a search of every minute of two years.
//!
//! The search shares no code with `lang::cron`: a schedule is drawn together with the values that it means, and the
//! only question to the time zone database is the offset at an instant. `ONWARD_CRONS=20000` compares more schedules;
//! a failure names the number of the schedule, and `ONWARD_CRON=number` beside it compares that one alone.

use jiff::civil::{Date, date};
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use lang::cron::{Cron, Zone};
use std::ops::RangeInclusive;
use testkit::number_from_env;
use testkit::rng::Rng;

const CRONS: u64 = 96;
const DAY: i64 = 24 * 60;
const MINUTE_MICROS: i64 = 60_000_000;

/// Zones and the first of the two years. Clocks change by an hour, by half an hour, by two hours, by a day; at
/// midnight, at a minute past midnight, back into the day before; never; and twice within a month.
const WINDOWS: [(&str, i16); 16] = [
    ("Europe/Berlin", 2026),
    ("America/New_York", 2027),
    ("America/St_Johns", 2010),
    ("Australia/Lord_Howe", 2026),
    ("Pacific/Apia", 2011),
    ("Africa/Cairo", 2026),
    ("Africa/Casablanca", 2026),
    ("America/Nuuk", 2026),
    ("Antarctica/Troll", 2026),
    ("Asia/Gaza", 2026),
    ("America/Havana", 2027),
    ("Asia/Kathmandu", 2026),
    ("Asia/Pyongyang", 2015),
    ("America/Caracas", 2015),
    ("Pacific/Chatham", 2027),
    ("Etc/UTC", 2027),
];

/// What local clocks show in every minute of two years, and of a few days before.
struct Window {
    zone: Zone,
    /// The instant of the first minute, in minutes since 1970.
    start: i64,
    /// The local time in minutes since 1970, one for each minute that passes.
    locals: Vec<i64>,
    /// Minutes at which the clocks have just changed.
    changes: Vec<usize>,
}

impl Window {
    fn new(name: &str, year: i16) -> Window {
        let zone = TimeZone::get(name).unwrap();
        let utc = |at: Date| at.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second() / 60;
        let (start, end) = (utc(date(year, 1, 1)) - 3 * DAY, utc(date(year + 2, 1, 1)));
        let local = |minute: i64| {
            let offset = zone.to_offset(Timestamp::from_second(minute * 60).unwrap());
            assert_eq!(offset.seconds() % 60, 0, "an offset of whole minutes");
            minute + i64::from(offset.seconds() / 60)
        };
        let locals: Vec<i64> = (start..end).map(local).collect();
        let changes = (1..locals.len()).filter(|i| locals[*i] != locals[i - 1] + 1).collect();
        Window { zone: Zone::get(name).unwrap(), start, locals, changes }
    }

    /// Every minute at which a schedule fires, as indices of `locals`.
    fn fire_times(&self, schedule: &Schedule) -> Vec<usize> {
        let first = self.locals[0] / DAY;
        let count = self.locals.len() as i64 / DAY + 3;
        let date_of = |day: i64| date(1970, 1, 1).checked_add(day.days()).unwrap();
        let days: Vec<bool> = (first..first + count).map(|day| schedule.has_day(date_of(day))).collect();
        let matches = |local: i64| {
            let (day, hour, minute) = (local / DAY - first, local % DAY / 60, local % 60);
            schedule.minutes[minute as usize] && schedule.hours[hour as usize] && days[day as usize]
        };
        // The latest local time that the clock has shown.
        let mut latest = self.locals[0] - 1;
        let mut fires = |local: i64| {
            let (from, is_new) = (latest + 1, local > latest);
            latest = latest.max(local);
            if schedule.is_fixed { is_new && (from..=local).any(matches) } else { matches(local) }
        };
        (0..self.locals.len()).filter(|i| fires(self.locals[*i])).collect()
    }

    fn micros(&self, index: usize) -> i64 {
        (self.start + index as i64) * MINUTE_MICROS
    }
}

/// The values of a field: `values[n]` says whether `n` is one.
type Values = [bool; 60];

/// A schedule and what it means.
struct Schedule {
    text: String,
    minutes: Values,
    hours: Values,
    days: Values,
    months: Values,
    weekdays: Values,
    is_fixed: bool,
    is_either_day: bool,
}

impl Schedule {
    fn draw(rng: &mut Rng) -> Schedule {
        // Days are mostly any day, so that schedules fire on the days when clocks change.
        let (minute, minutes) = field(rng, 0..=59, 1);
        let (hour, hours) = field(rng, 0..=23, 1);
        let (day, days) = field(rng, 1..=31, 3);
        let (month, months) = field(rng, 1..=12, 3);
        let (weekday, weekdays) = field(rng, 0..=7, 3);
        Schedule {
            is_fixed: !minute.contains('*') && !hour.contains('*'),
            is_either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            text: [minute, hour, day, month, weekday].join(" "),
            weekdays: std::array::from_fn(|day| weekdays[day] || day == 0 && weekdays[7]),
            minutes,
            hours,
            days,
            months,
        }
    }

    fn has_day(&self, day: Date) -> bool {
        let by_month = self.days[day.day() as usize];
        let by_week = self.weekdays[day.weekday().to_sunday_zero_offset() as usize];
        let is_day = if self.is_either_day { by_month || by_week } else { by_month && by_week };
        is_day && self.months[day.month() as usize]
    }
}

/// One field and its values; it is a plain star `plain` times in four.
fn field(rng: &mut Rng, range: RangeInclusive<u64>, plain: u64) -> (String, Values) {
    let (from, to) = (*range.start(), *range.end());
    // `*` in the day of the week is Sunday to Saturday; only a range can also end with 7.
    let all = from..=if to == 7 { 6 } else { to };
    if rng.below(4) < plain {
        return ("*".to_owned(), std::array::from_fn(|n| all.contains(&(n as u64))));
    }
    let (mut texts, mut values) = (Vec::new(), [false; 60]);
    for _ in 0..if rng.one_in(3) { 1 + rng.below(3) } else { 1 } {
        let (a, b) = (from + rng.below(to - from + 1), from + rng.below(to - from + 1));
        let (low, high, step) = (a.min(b), a.max(b), 1 + rng.below(to - from));
        let (text, range, step) = match rng.below(6) {
            0 => (format!("*/{step}"), all.clone(), step),
            1 => (format!("{low}-{high}"), low..=high, 1),
            2 => (format!("{low}-{high}/{step}"), low..=high, step),
            _ => (a.to_string(), a..=a, 1),
        };
        texts.push(text);
        range.step_by(step as usize).for_each(|n| values[n as usize] = true);
    }
    (texts.join(","), values)
}

/// Compares one schedule at random instants and around every change of the clocks. Returns how often it fires.
fn check(number: u64, window: &Window) -> usize {
    let mut rng = Rng::new(number);
    let schedule = Schedule::draw(&mut rng);
    let fire_times = window.fire_times(&schedule);
    let Ok(cron) = Cron::parse(&schedule.text) else {
        assert!(fire_times.is_empty(), "schedule {number}: `{}` is refused, but it fires", schedule.text);
        return 0;
    };
    let end = window.locals.len();
    let random: Vec<usize> = (0..24).map(|_| rng.below(end as u64) as usize).collect();
    let before = window.changes.iter().flat_map(|change| [180, 61, 60, 31, 30, 1].map(|m| change.saturating_sub(m)));
    let behind = window.changes.iter().flat_map(|change| [0, 1, 14, 59, 60, 120].map(|m| change + m));
    for index in random.into_iter().chain(before).chain(behind).filter(|index| (3 * DAY as usize..end).contains(index))
    {
        let micros = rng.pick(&[0, 0, 1, MINUTE_MICROS - 1]);
        let at = kernel::Timestamp(window.micros(index) + micros);
        let expected = fire_times[fire_times.partition_point(|i| *i <= index)..].first();
        let found = cron.next_after(at, &window.zone);
        let is_equal = match expected {
            Some(index) => found == Some(kernel::Timestamp(window.micros(*index))),
            None => found.is_none_or(|found| found.0 >= window.micros(end)),
        };
        let shown = |at: kernel::Timestamp| window.zone.local(at);
        assert!(
            is_equal,
            "schedule {number}: `{}` after {} fires at {}, found {}",
            schedule.text,
            shown(at),
            expected.map_or("no time".into(), |i| shown(kernel::Timestamp(window.micros(*i)))),
            found.map_or("none".into(), shown)
        );
    }
    fire_times.len()
}

#[test]
fn p12_fire_times_equal_a_search_of_every_minute() {
    let alone = std::env::var("ONWARD_CRON").ok().map(|text| text.parse::<u64>().expect("ONWARD_CRON"));
    let count = number_from_env("ONWARD_CRONS", CRONS);
    let mut checked = 0;
    for (place, (zone, year)) in (0..).zip(WINDOWS) {
        let is_chosen = |number: &u64| alone.is_none_or(|alone| alone == *number);
        let numbers: Vec<u64> = (place..count).step_by(WINDOWS.len()).filter(is_chosen).collect();
        if numbers.is_empty() {
            continue;
        }
        let window = Window::new(zone, year);
        let times: usize = numbers.iter().map(|number| check(*number, &window)).sum();
        println!("{zone}: {} schedules, {times} fire times", numbers.len());
        checked += numbers.len();
    }
    assert!(checked > 0);
}
