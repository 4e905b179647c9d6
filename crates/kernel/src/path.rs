//! Paths: how conditions and templates name a value, such as `tasks.charge.body.items[0].price`.
//!
//! This module parses a path into plain segments ([`RawPath`]). The compiler (`lang`) knows which paths are allowed
//! and which step a name means: it resolves a `RawPath` to a [`Ref`]. Plans store the `Ref`, and a run looks it up.

names! {
    /// The root of a path. Numbers 12 and up are reserved for other forms of workflow.
    pub enum Root {
        TriggerBody = 1 "trigger.body",
        TriggerHeaders = 2 "trigger.headers",
        Task = 3 "tasks",
        WaitUrl = 4 "wait",
        TriggerScheduledFor = 5 "trigger.scheduled_for",
        /// The item of an iteration.
        Item = 6 since 2 "item",
        /// The number of an iteration, from 0.
        Index = 7 since 2 "index",
        /// The result of the iteration before.
        Last = 8 since 2 "last",
        /// The body of the trigger, over the defaults of the definition.
        Variables = 9 since 2 "variables",
        /// All outputs that steps have written, by name.
        Outputs = 10 since 2 "outputs",
        /// One of them.
        Output = 11 since 2 "output",
    }
}

names! {
    /// The field of a step that a path reads.
    pub enum TaskField {
        Status = 1 "status",
        StatusCode = 2 "status_code",
        Body = 3 "body",
        Headers = 4 "headers",
        Error = 5 "error",
        /// Did it succeed?
        Ok = 6 "ok",
        /// Did it fail, time out or have a template error?
        Failed = 7 "failed",
        /// What failed inside a loop or group that goes on after errors.
        Errors = 8 since 2 "errors",
    }
}

message! {
    /// A resolved path: its root exists, and its step is a node of the plan.
    pub struct Ref {
        1 => root: Root,
        /// The node a `tasks` or `wait` path names; for `item`, `index` and `last`, the loop; for an
        /// output, its place in [`Layout::outputs`](crate::plan::Layout).
        2 => node: u32,
        3 => field: TaskField,
        /// What follows the root and field, outermost first. A number indexes a list.
        4 => keys: Vec<String>,
        /// The path as written, for messages.
        5 => text: String,
    }
}

/// A path as written. Every segment knows its position, so that a diagnostic can point at it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawPath<'a> {
    pub text: &'a str,
    /// Byte offset of `text` in the parsed text.
    pub at: usize,
    pub segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub name: String,
    /// Byte offset of the segment in the parsed text.
    pub at: usize,
}

/// A problem in an expression or template, with its position in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    pub at: usize,
    pub len: usize,
}

impl Problem {
    pub fn new(code: &'static str, message: impl Into<String>, at: usize, len: usize) -> Self {
        Problem { code, message: message.into(), hint: None, at, len }
    }
    /// A number that [`is_inexact`](crate::expr::is_inexact).
    pub fn too_large(at: usize, len: usize) -> Self {
        let message = "whole numbers are exact only below 2^53";
        Problem::new("number_too_large", message, at, len).hint("write it as a text, in quotes")
    }
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Resolves a path to a [`Ref`], or reports what is wrong with it. The parsers collect the problems of all paths in
/// a text, not only the first.
pub type Resolve<'r> = dyn FnMut(&RawPath<'_>) -> Result<Ref, Problem> + 'r;

fn is_name_start(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_name(c: char) -> bool {
    is_name_start(c) || c == '-'
}

/// Parses the path at byte `at` of `text`. Returns it with the offset after it. Names may contain `-`, so
/// `tasks.payment-result.body` is one path and never a subtraction.
pub fn read(text: &str, at: usize) -> Result<(RawPath<'_>, usize), Problem> {
    let mut segments = Vec::new();
    let mut pos = at;
    loop {
        let rest = &text[pos..];
        let len: usize = match rest.chars().next() {
            Some(c) if is_name_start(c) => rest.chars().take_while(|c| is_name(*c)).map(char::len_utf8).sum(),
            _ => {
                return Err(Problem::new("expression_syntax", "a name is missing in this path", pos, 1));
            }
        };
        segments.push(Segment { name: rest[..len].to_owned(), at: pos });
        pos += len;
        while text[pos..].starts_with('[') {
            let (segment, next) = read_index(text, pos)?;
            segments.push(segment);
            pos = next;
        }
        if !text[pos..].starts_with('.') {
            break;
        }
        pos += 1;
    }
    Ok((RawPath { text: &text[at..pos], at, segments }, pos))
}

/// Parses `[0]`, `['a name']` or `["a name"]`.
fn read_index(text: &str, at: usize) -> Result<(Segment, usize), Problem> {
    let open = at + 1;
    let bad = || Problem::new("expression_syntax", "expected a number or a quoted name and `]`", open, 1);
    let rest = &text[open..];
    let (name, used) = match rest.chars().next() {
        Some(quote @ ('\'' | '"')) => {
            let end = rest[1..].find(quote).ok_or_else(bad)?;
            (&rest[1..1 + end], end + 2)
        }
        Some(c) if c.is_ascii_digit() => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            (&rest[..end], end)
        }
        _ => return Err(bad()),
    };
    if !rest[used..].starts_with(']') {
        return Err(bad());
    }
    Ok((Segment { name: name.to_owned(), at: open }, open + used + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Option<Vec<String>> {
        let (path, end) = read(text, 0).ok()?;
        (end == text.len()).then(|| path.segments.into_iter().map(|s| s.name).collect())
    }

    #[test]
    fn names_may_hold_hyphens_and_indices_are_segments() {
        assert_eq!(names("tasks.payment-result.body.s").unwrap(), ["tasks", "payment-result", "body", "s"]);
        assert_eq!(names("a.k[1].x").unwrap(), ["a", "k", "1", "x"]);
        assert_eq!(names("a.k.1").unwrap(), ["a", "k", "1"]);
        assert_eq!(names("a['it is'][\"x.y\"]").unwrap(), ["a", "it is", "x.y"]);
    }

    #[test]
    fn broken_paths_are_refused() {
        for text in ["", ".a", "a..b", "a.", "a[", "a[]", "a[1", "a['x]", "a[-1]", "-a"] {
            assert_eq!(names(text), None, "{text}");
        }
    }
}
