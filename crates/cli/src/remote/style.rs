//! Values as text for people: statuses, times, durations, and text from outside.

use api::parse_rfc3339;
use kernel::Span;
use std::io::IsTerminal;

/// Replaces control characters, so that text from outside cannot control the terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '·' } else { c }).collect()
}

/// At most `max` characters, with an ellipsis for what is missing.
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// `2026-11-15T10:39:37Z`: to the second, to save room in a list.
pub fn time(rfc3339: &str) -> String {
    match rfc3339.split_once('.') {
        Some((whole, _)) => format!("{whole}Z"),
        None => rfc3339.to_owned(),
    }
}

/// `10:39:37.294`: the time of day, to the millisecond.
pub fn clock(rfc3339: &str) -> String {
    let time = rfc3339.split_once('T').map_or(rfc3339, |(_, time)| time).trim_end_matches('Z');
    let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
    format!("{whole}.{:0<3}", fraction.get(..3).unwrap_or(fraction))
}

/// Milliseconds between two times, if both are known.
pub fn between(start: Option<&str>, end: Option<&str>) -> Option<u64> {
    let (start, end) = (parse_rfc3339(start?)?, parse_rfc3339(end?)?);
    Some(end.since(start).millis())
}

/// A number of milliseconds, as [`Span::readable`] writes it.
pub fn span(ms: u64) -> String {
    Span::from_millis(ms).readable()
}

/// Whether to print colours: on a terminal, unless `NO_COLOR` is set.
pub fn has_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// The colour of a status. It only supports the word, which is always printed.
pub fn colour(status: &str) -> &'static str {
    match status {
        "completed" | "success" | "succeeded" | "received" | "enabled" => "32",
        "failed" | "timeout" | "template_error" => "31",
        "running" | "retrying" | "leased" => "36",
        "waiting" | "sleeping" | "paused" => "33",
        _ => "2",
    }
}

pub fn paint(text: &str, colour: &str, is_on: bool) -> String {
    if is_on { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cut_and_control_characters_are_replaced() {
        assert_eq!(time("2026-11-15T10:39:37.294636Z"), "2026-11-15T10:39:37Z");
        assert_eq!(time("2026-11-15T10:39:37Z"), "2026-11-15T10:39:37Z");
        assert_eq!(clock("2026-11-15T10:39:37.294636Z"), "10:39:37.294");
        assert_eq!(clock("2026-11-15T10:39:37Z"), "10:39:37.000");
        assert_eq!(clock("2026-11-15T10:39:37.2Z"), "10:39:37.200");
        assert_eq!(clean("a\u{1b}[2Jb\u{9b}c"), "a·[2Jb·c");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(between(Some("2026-11-15T10:39:37Z"), Some("2026-11-15T10:39:38.5Z")), Some(1_500));
    }
}
