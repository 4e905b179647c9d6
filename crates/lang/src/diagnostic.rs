//! Diagnostics: a problem of a document, its position and a hint.
//!
//! A check reports a message and a range of bytes ([`Problems::add`]). Path, line and column are computed at the end,
//! in one pass over the source. So a hostile document with a hundred thousand mistakes still takes linear time, and
//! checks need no bookkeeping.

use crate::codes;
use crate::tree::TreeNode;
use kernel::path::Problem;
use std::fmt;
use std::ops::Range;
use unicode_normalization::UnicodeNormalization;

/// The most problems to list; the others are counted.
const LISTED_MAX: usize = 1_000;
/// The most problems that get a `did you mean` hint.
const SUGGESTED_MAX: usize = 50;
/// Names quoted in messages and paths are truncated to this many characters.
const QUOTED_MAX: usize = 80;

/// Whether a problem makes a document invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error,
    /// The document is valid, and probably does not mean what its author thinks.
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// One problem of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    /// The path in the document, such as `tasks.receipt.needs[0]`; empty for the document itself.
    pub path: String,
    /// The byte range in the source.
    pub span: Range<usize>,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.severity == Severity::Warning { "warning " } else { "" };
        write!(f, "{}:{} {mark}{}", self.line, self.column, self.code)?;
        if !self.path.is_empty() {
            write!(f, " {}", self.path)?;
        }
        write!(f, ": {}", self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, " ({hint})"))
    }
}

/// A problem before its path, line and column are known.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub severity: Severity,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    pub span: Range<usize>,
}

impl Draft {
    pub fn new(code: &'static str, span: Range<usize>, message: impl Into<String>) -> Draft {
        Draft { severity: Severity::Error, code, message: message.into(), hint: None, span }
    }
    pub fn hint(mut self, hint: impl Into<String>) -> Draft {
        self.hint = Some(hint.into());
        self
    }
    pub fn maybe_hint(mut self, hint: Option<String>) -> Draft {
        self.hint = hint.or(self.hint);
        self
    }
    /// The diagnostic for a text that has no tree.
    pub fn place(self, source: &str) -> Diagnostic {
        let (line, column) = TextPosition::new(source).move_to(self.span.start);
        self.at(line, column, String::new())
    }
    fn at(self, line: u32, column: u32, path: String) -> Diagnostic {
        let Draft { severity, code, message, hint, span } = self;
        Diagnostic { severity, code, message, hint, path, span, line, column }
    }
}

/// The problems found so far in one text.
pub(crate) struct Problems<'s> {
    source: &'s str,
    drafts: Vec<Draft>,
    warnings: Vec<Draft>,
    beyond: usize,
    suggestions: usize,
}

impl<'s> Problems<'s> {
    pub fn new(source: &'s str) -> Self {
        Problems { source, drafts: Vec::new(), warnings: Vec::new(), beyond: 0, suggestions: 0 }
    }

    pub fn add(&mut self, code: &'static str, span: &Range<usize>, message: impl Into<String>) {
        self.push(Draft::new(code, span.clone(), message));
    }

    pub fn push(&mut self, draft: Draft) {
        // Many more are kept than listed, so that after sorting the listed ones are the first in the text.
        if self.drafts.len() < 100 * LISTED_MAX { self.drafts.push(draft) } else { self.beyond += 1 }
    }

    /// A problem that does not make the document invalid.
    pub fn warn(&mut self, draft: Draft) {
        if self.warnings.len() < LISTED_MAX {
            self.warnings.push(Draft { severity: Severity::Warning, ..draft });
        }
    }

    /// A problem inside a text node, as the kernel's parsers report it.
    pub fn push_inside(&mut self, node: &TreeNode, text: &str, problem: Problem) {
        let span = crate::tree::inside(self.source, node, text, problem.at, problem.len);
        self.push(Draft::new(problem.code, span, problem.message).maybe_hint(problem.hint));
    }

    /// The hint for a misspelt name. Comparing many mistakes with many names would take long, so only the first
    /// mistakes get a hint.
    pub fn suggest<'c>(&mut self, wrong: &str, names: impl IntoIterator<Item = &'c str>) -> Option<String> {
        self.suggestions += 1;
        if self.suggestions > SUGGESTED_MAX { None } else { crate::suggest::hint(wrong, names) }
    }

    /// True if the document is valid; there may be warnings.
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// Computes the position of every problem, in the order of the text. `root` is `None` when the document could not
    /// be parsed.
    pub fn finish(mut self, root: Option<&TreeNode>) -> Vec<Diagnostic> {
        self.drafts.append(&mut self.warnings);
        self.drafts.sort_by(|a, b| (a.span.start, a.code).cmp(&(b.span.start, b.code)));
        let more = self.beyond + self.drafts.len().saturating_sub(LISTED_MAX);
        self.drafts.truncate(LISTED_MAX);
        if more > 0 {
            let end = self.drafts.last().map_or(0, |d| d.span.start);
            let message = format!("there are {more} more problems");
            self.drafts.push(Draft::new(codes::TOO_MANY_PROBLEMS, end..end, message));
        }
        let mut place = TextPosition::new(self.source);
        let placed = self.drafts.into_iter().map(|draft| {
            let (line, column) = place.move_to(draft.span.start);
            let path = root.map_or(String::new(), |root| root.path_to(&draft.span));
            draft.at(line, column, path)
        });
        placed.collect()
    }
}

/// The line and column of a byte, both from 1.
pub(crate) fn place_in(source: &str, at: usize) -> (u32, u32) {
    TextPosition::new(source).move_to(at)
}

/// A position that only moves forward.
struct TextPosition<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    column: u32,
}

impl<'s> TextPosition<'s> {
    fn new(source: &'s str) -> Self {
        TextPosition { source, at: 0, line: 1, column: 1 }
    }

    fn move_to(&mut self, to: usize) -> (u32, u32) {
        let to = (0..=to.min(self.source.len())).rev().find(|i| self.source.is_char_boundary(*i)).unwrap_or(0);
        for c in self.source.get(self.at..to).unwrap_or_default().chars() {
            if c == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        self.at = self.at.max(to);
        (self.line, self.column)
    }
}

/// A name from the document, quoted for a message: in backticks, truncated, and without characters that could
/// rearrange a terminal or a log line.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", printable(name))
}

pub(crate) fn printable(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if i == QUOTED_MAX {
            out.push('…');
            break;
        }
        if is_hostile(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Characters that make a text look like another: control characters, and characters that cannot be seen or change the
/// direction of the text (general category Cf, line and paragraph separators, fillers).
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// A name as it is stored and looked up: composed (NFC), without space around it. So two names that look the same
/// because one has its accents as separate characters are one name.
pub fn normalized(name: &str) -> String {
    name.trim().nfc().collect()
}

/// `a`, `b` or `c`.
pub(crate) fn one_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("`{one}`"),
        [head @ .., last] => {
            let head: Vec<String> = head.iter().map(|n| format!("`{n}`")).collect();
            format!("{} or `{last}`", head.join(", "))
        }
    }
}

/// A number with thousands separators: 2,000.
pub(crate) fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_come_in_the_order_of_the_text_with_columns_in_characters() {
        let mut problems = Problems::new("éb\ncöde");
        problems.add("b", &(7..8), "second");
        problems.add("a", &(2..3), "first");
        let found = problems.finish(None);
        let places: Vec<_> = found.iter().map(|d| (d.code, d.line, d.column)).collect();
        assert_eq!(places, [("a", 1, 2), ("b", 2, 3)]);
    }

    #[test]
    fn t18_names_in_messages_are_truncated_and_escaped() {
        assert_eq!(quoted("a\u{202e}b\n"), "`a\\u{202e}b\\u{a}`");
        assert_eq!(quoted(&"x".repeat(500)).chars().count(), QUOTED_MAX + 3);
        assert_eq!(grouped(2_000), "2,000");
        assert_eq!(grouped(10_001), "10,001");
        assert_eq!(grouped(64), "64");
    }
}
