//! Readers for values of a known type, which report a value of another type in one way.
//!
//! Each reader returns `None` after it has reported a problem, so the caller can continue and find more problems.
//! `what` is the name of the field, for the message.

use crate::codes;
use crate::diagnostic::{Draft, Problems, one_of, quoted};
use crate::tree::{Entry, TreeNode, Value};
use kernel::time::Span;
use std::collections::BTreeSet;
use std::ops::Range;

/// The longest sleep, wait or run.
pub const DURATION_MAX: Span = Span::from_days(366);

/// The entries of an object.
#[derive(Clone, Default)]
pub(crate) struct Fields<'t> {
    entries: &'t [Entry],
}

/// The fields an object may have.
pub(crate) struct Shape {
    pub known: &'static [&'static str],
    /// Fields that this release knows but cannot honour; they are refused with a message that says so.
    pub later: &'static [&'static str],
    /// Names that other systems use, with the name used here.
    pub synonyms: &'static [(&'static str, &'static str)],
}

impl Shape {
    pub const fn only(known: &'static [&'static str]) -> Shape {
        Shape { known, later: &[], synonyms: &[] }
    }

    /// Reports a field that is not known.
    pub fn refuse(&self, entry: &Entry, problems: &mut Problems<'_>) {
        self.refuse_among(self.known, entry, problems);
    }

    /// The same where the known fields depend on what else is there.
    pub fn refuse_among(&self, known: &[&str], entry: &Entry, problems: &mut Problems<'_>) {
        let name = entry.key.as_str();
        if self.later.contains(&&*entry.name()) {
            let message = format!("{} is not supported in this release", quoted(name));
            return problems.push(
                Draft::new(codes::UNSUPPORTED_SETTING, entry.key_span.clone(), message)
                    .hint("remove it: a setting that cannot be honoured is refused, not ignored"),
            );
        }
        let synonym = self.synonyms.iter().find(|(theirs, _)| *theirs == name);
        let hint = match synonym {
            Some((_, ours)) => Some(format!("write `{ours}`")),
            None => problems.suggest(name, known.iter().copied()),
        };
        let allowed = || match known {
            [] => "no fields are allowed here".to_owned(),
            known => format!("allowed here: {}", one_of(known)),
        };
        let draft =
            Draft::new(codes::UNKNOWN_FIELD, entry.key_span.clone(), format!("there is no field {}", quoted(name)));
        problems.push(draft.hint(hint.unwrap_or_else(allowed)));
    }
}

impl<'t> Fields<'t> {
    pub fn entry(&self, name: &str) -> Option<&'t Entry> {
        self.entries.iter().find(|e| e.name() == name)
    }

    pub fn get(&self, name: &str) -> Option<&'t TreeNode> {
        self.entry(name).map(|e| &e.value)
    }

    pub fn iter(&self) -> std::slice::Iter<'t, Entry> {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reports every field that is not known to `shape`.
    pub fn check(&self, shape: &Shape, problems: &mut Problems<'_>) {
        self.unknown(shape, problems).for_each(|entry| shape.refuse(entry, problems));
    }

    /// The fields that are not known to `shape`, after a report of those that are given in two spellings.
    pub fn unknown<'s>(
        &self,
        shape: &'s Shape,
        problems: &mut Problems<'_>,
    ) -> impl Iterator<Item = &'t Entry> + use<'s, 't> {
        self.check_spellings(problems);
        self.entries.iter().filter(|e| !shape.known.contains(&&*e.name()))
    }

    /// Reports fields that are given twice, in two spellings.
    pub fn check_spellings(&self, problems: &mut Problems<'_>) {
        let keys: BTreeSet<&str> = self.entries.iter().map(|e| e.key.as_str()).collect();
        for entry in self.entries.iter().filter(|e| e.name() != e.key) {
            if let Some(other) = keys.get(&*entry.name()) {
                let message = format!("`{other}` and `{}` are the same field", entry.key);
                let draft = Draft::new(codes::EXCLUSIVE_FIELDS, entry.key_span.clone(), message);
                problems.push(draft.hint("keep one of them"));
            }
        }
    }

    /// Reports two fields of which only one may be given.
    pub fn exclusive(&self, one: &str, other: &str, problems: &mut Problems<'_>) {
        if let (Some(_), Some(second)) = (self.entry(one), self.entry(other)) {
            let message = format!("`{one}` and `{other}` cannot both be given");
            problems
                .push(Draft::new(codes::EXCLUSIVE_FIELDS, second.key_span.clone(), message).hint("keep one of them"));
        }
    }

    /// A required field; `place` is where to report that it is missing.
    pub fn require(
        &self,
        name: &str,
        what: &str,
        place: &Range<usize>,
        problems: &mut Problems<'_>,
    ) -> Option<&'t TreeNode> {
        let found = self.get(name);
        if found.is_none() {
            problems.add(codes::MISSING_FIELD, place, format!("{what} needs a field `{name}`"));
        }
        found
    }
}

pub(crate) fn wrong_type(node: &TreeNode, what: &str, expected: &str) -> Draft {
    let what = if what.contains(' ') { what.to_owned() } else { format!("`{what}`") };
    let message = format!("{what} must be {expected}, found {}", node.kind());
    let draft = Draft::new(codes::WRONG_TYPE, node.span.clone(), message);
    if matches!(node.value, Value::Null) { draft.hint("leave the field out if it has no value") } else { draft }
}

pub(crate) fn object<'t>(node: &'t TreeNode, what: &str, problems: &mut Problems<'_>) -> Option<Fields<'t>> {
    match &node.value {
        Value::Object(entries) => Some(Fields { entries }),
        _ => {
            problems.push(wrong_type(node, what, "an object"));
            None
        }
    }
}

pub(crate) fn list<'t>(node: &'t TreeNode, what: &str, problems: &mut Problems<'_>) -> Option<&'t [TreeNode]> {
    match &node.value {
        Value::List(items) => Some(items),
        _ => {
            problems.push(wrong_type(node, what, "a list"));
            None
        }
    }
}

pub(crate) fn text<'t>(node: &'t TreeNode, what: &str, problems: &mut Problems<'_>) -> Option<&'t str> {
    match &node.value {
        Value::Text(text) => Some(text),
        _ => {
            problems.push(wrong_type(node, what, "a text"));
            None
        }
    }
}

pub(crate) fn boolean(node: &TreeNode, what: &str, problems: &mut Problems<'_>) -> Option<bool> {
    match node.value {
        Value::Bool(b) => Some(b),
        _ => {
            problems.push(wrong_type(node, what, "true or false"));
            None
        }
    }
}

pub(crate) fn whole(
    node: &TreeNode,
    what: &str,
    range: std::ops::RangeInclusive<i64>,
    problems: &mut Problems<'_>,
) -> Option<i64> {
    match node.value {
        Value::Int(n) if range.contains(&n) => Some(n),
        Value::Int(n) => {
            let (from, to) = (range.start(), range.end());
            let message = format!("`{what}` is {n}, allowed is {from} to {to}");
            problems.add(codes::OUT_OF_RANGE, &node.span, message);
            None
        }
        _ => {
            problems.push(wrong_type(node, what, "a whole number"));
            None
        }
    }
}

/// One of a few words.
pub(crate) fn word<T: Copy>(
    node: &TreeNode,
    what: &str,
    words: &[(&str, T)],
    problems: &mut Problems<'_>,
) -> Option<T> {
    let given = text(node, what, problems)?;
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == given) {
        return Some(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let message = format!("`{what}` is {}, allowed is {}", quoted(given), one_of(&names));
    let hint = problems.suggest(given, names);
    problems.push(Draft::new(codes::INVALID_VALUE, node.span.clone(), message).maybe_hint(hint));
    None
}

/// The unit of a bare number.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Seconds,
    Millis,
}

/// A duration from `least` to `most`: a count and a unit, or a bare number.
pub(crate) fn duration(
    node: &TreeNode,
    what: &str,
    unit: Unit,
    (least, most): (Span, Span),
    problems: &mut Problems<'_>,
) -> Option<Span> {
    let span = match &node.value {
        Value::Text(text) => Span::parse(text),
        Value::Int(n) => u64::try_from(*n).ok().map(|n| match unit {
            Unit::Seconds => Span::from_secs(n),
            Unit::Millis => Span::from_millis(n),
        }),
        _ => None,
    };
    let Some(span) = span else {
        let found = match &node.value {
            Value::Text(text) => quoted(text),
            Value::Int(n) => n.to_string(),
            _ => node.kind().to_owned(),
        };
        let bare = match unit {
            Unit::Seconds => "a whole number of seconds",
            Unit::Millis => "a whole number of milliseconds",
        };
        let draft = Draft::new(
            codes::INVALID_DURATION,
            node.span.clone(),
            format!("`{what}` must be a duration, found {found}"),
        );
        problems.push(
            draft.hint(format!("write a count and a unit such as `500ms`, `30s`, `5m`, `2h` or `1d`, or {bare}")),
        );
        return None;
    };
    if span < least || span > most {
        let message = format!("`{what}` is {span}, allowed is {least} to {most}");
        problems.add(codes::OUT_OF_RANGE, &node.span, message);
        return None;
    }
    Some(span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Syntax, read};

    fn parsed(json: &str) -> Result<Span, String> {
        let tree = read(json.as_bytes(), Syntax::Json).unwrap();
        let mut problems = Problems::new(json);
        let range = (Span(0), DURATION_MAX);
        let found = duration(tree.root(), "sleep", Unit::Seconds, range, &mut problems);
        found.ok_or_else(|| problems.finish(None)[0].to_string())
    }

    #[test]
    fn r4_a1_durations_are_a_count_and_a_unit_or_seconds() {
        for (json, millis) in [
            ("\"500ms\"", 500),
            ("\"30s\"", 30_000),
            ("\"5m\"", 300_000),
            ("\"2h\"", 7_200_000),
            ("\"1d\"", 86_400_000),
            ("\"13d\"", 1_123_200_000),
            ("45", 45_000),
            ("45.0", 45_000),
            ("\"0s\"", 0),
            ("0", 0),
            ("\"366d\"", 366 * 86_400_000),
        ] {
            assert_eq!(parsed(json), Ok(Span::from_millis(millis)), "{json}");
        }
        for json in ["-1", "\"-5s\"", "\"5\"", "\"3w\"", "\"1.5h\"", "\"\"", "\"5 m\"", "true", "null", "1.5", "[]"] {
            let problem = parsed(json).unwrap_err();
            assert!(
                problem.contains("invalid_duration: `sleep` must be a duration") && problem.contains("`30s`"),
                "{problem}"
            );
        }
        assert_eq!(parsed("\"367d\"").unwrap_err(), "1:1 out_of_range: `sleep` is 367d, allowed is 0ms to 366d");
        assert_eq!(parsed("9007199254740991").unwrap_err().split(':').nth(1), Some("1 out_of_range"));
    }
}
