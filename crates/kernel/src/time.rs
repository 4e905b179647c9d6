//! Instants and durations in whole microseconds.

use crate::wire::{self, Raw};

/// An instant on the engine's clock: microseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// A duration in microseconds. (`std::time::Duration` is twice as large.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub u64);

impl Timestamp {
    pub const NEVER: Timestamp = Timestamp(i64::MAX);

    pub const fn from_millis(ms: i64) -> Self {
        Timestamp(ms * 1_000)
    }
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }
    /// The instant `span` later; saturates instead of wrapping.
    pub fn after(self, span: Span) -> Self {
        Timestamp(self.0.saturating_add(i64::try_from(span.0).unwrap_or(i64::MAX)))
    }
    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Span {
        Span(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// RFC 3339 in UTC, to the microsecond, without trailing zeros.
impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (days, rest) = (self.0.div_euclid(86_400_000_000), self.0.rem_euclid(86_400_000_000));
        // The civil calendar in eras of 400 years that begin on 1 March, so that the leap day comes last.
        let shifted = days + 719_468;
        let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + i64::from(month <= 2);
        if !(0..=9_999).contains(&year) {
            return f.write_str("9999-12-31T23:59:59Z");
        }
        let seconds = rest / 1_000_000;
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match rest % 1_000_000 {
            0 => f.write_str("Z"),
            micros => write!(f, ".{}Z", format!("{micros:06}").trim_end_matches('0')),
        }
    }
}

impl Span {
    pub const fn from_millis(ms: u64) -> Self {
        Span(ms.saturating_mul(1_000))
    }
    pub const fn from_secs(s: u64) -> Self {
        Span::from_millis(s.saturating_mul(1_000))
    }
    pub const fn from_days(d: u64) -> Self {
        Span::from_secs(d.saturating_mul(86_400))
    }
    pub const fn millis(self) -> u64 {
        self.0 / 1_000
    }

    /// Parses `^[0-9]+(ms|s|m|h|d)$`: no spaces, signs, fractions, weeks or bare numbers.
    pub fn parse(text: &str) -> Option<Span> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = text.split_at(digits);
        let unit = match unit {
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        };
        count.parse::<u64>().ok()?.checked_mul(unit).map(Span)
    }
}

impl Span {
    /// For people: `980 ms`, `32 s`, `1.5 s`, `3 m 12 s`, `1 d 4 h`. The largest unit and the next one, rounded down.
    pub fn readable(self) -> String {
        let ms = self.millis();
        let secs = ms / 1_000;
        let two = |large: u64, unit: &str, small: u64, next: &str| match small {
            0 => format!("{large} {unit}"),
            small => format!("{large} {unit} {small} {next}"),
        };
        match secs {
            _ if ms < 1_000 => format!("{ms} ms"),
            0..60 if ms % 1_000 >= 100 => format!("{secs}.{} s", ms % 1_000 / 100),
            0..60 => format!("{secs} s"),
            60..3_600 => two(secs / 60, "m", secs % 60, "s"),
            3_600..86_400 => two(secs / 3_600, "h", secs / 60 % 60, "m"),
            _ => two(secs / 86_400, "d", secs / 3_600 % 24, "h"),
        }
    }
}

/// The shortest text that [`Span::parse`] accepts, rounded to milliseconds.
impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = self.millis();
        for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
            if ms >= unit && ms.is_multiple_of(unit) {
                return write!(f, "{}{name}", ms / unit);
            }
        }
        write!(f, "{ms}ms")
    }
}

impl wire::Value for Timestamp {
    fn put(&self, number: u32, out: &mut wire::Writer) {
        self.0.put(number, out);
    }
    fn take(raw: Raw<'_>, depth: u32) -> Result<Self, wire::Error> {
        i64::take(raw, depth).map(Timestamp)
    }
}

impl wire::Value for Span {
    fn put(&self, number: u32, out: &mut wire::Writer) {
        self.0.put(number, out);
    }
    fn take(raw: Raw<'_>, depth: u32) -> Result<Self, wire::Error> {
        u64::take(raw, depth).map(Span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_durations_are_a_count_and_a_unit() {
        for (text, seconds) in [
            ("500ms", 0.5),
            ("30s", 30.0),
            ("5m", 300.0),
            ("2h", 7_200.0),
            ("1d", 86_400.0),
            ("13d", 1_123_200.0),
            ("0s", 0.0),
        ] {
            assert_eq!(Span::parse(text).map(|s| s.0 as f64 / 1e6), Some(seconds), "{text}");
        }
        for text in ["-5s", "5", "3w", "1.5h", "", "5 m", "s", "1h30m", "١s", "99999999999999999999d", "400000000000d"]
        {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_span_reads_as_its_two_largest_units() {
        for (ms, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_450, "1.4 s"),
            (32_000, "32 s"),
            (59_999, "59.9 s"),
            (60_000, "1 m"),
            (192_000, "3 m 12 s"),
            (7_500_000, "2 h 5 m"),
            (100_800_000, "1 d 4 h"),
            (1_209_600_000, "14 d"),
        ] {
            assert_eq!(Span::from_millis(ms).readable(), expected);
        }
    }

    #[test]
    fn a_span_prints_as_it_is_written() {
        for text in ["500ms", "30s", "5m", "2h", "13d", "90s", "0ms"] {
            assert_eq!(Span::parse(text).unwrap().to_string(), text);
        }
    }
}
