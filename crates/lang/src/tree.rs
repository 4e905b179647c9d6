//! A document as a tree in which every value knows its position in the source.
//!
//! Both JSON and YAML are parsed to this tree. It keeps the author's order. Ambiguous input (duplicate keys, aliases,
//! other encodings) has been refused before. Invariant: a whole number below 2^53 is a [`Value::Int`] however it was
//! written, so `1`, `1.0` and `1e0` are the same value.

use crate::codes;
use crate::diagnostic::{Diagnostic, Draft, Problems, is_hostile, place_in, printable};
use kernel::expr::{EXACT_BELOW, is_inexact};
use kernel::path::Problem;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

/// A larger definition is refused before it is parsed.
pub const DEFINITION_MAX: usize = 1024 * 1024;
/// Lists and objects nested deeper are refused.
pub const DEPTH_MAX: usize = 64;

/// The syntax of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    Json,
    Yaml,
}

/// A parsed document.
#[derive(Clone, Debug)]
pub struct Tree {
    source: String,
    root: TreeNode,
}

/// Why a document could not be parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Malformed(pub Vec<Diagnostic>);

#[derive(Clone, Debug)]
pub(crate) struct TreeNode {
    pub span: Range<usize>,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// Never a whole number below 2^53; infinite when the number in the source is too large.
    Real(f64),
    Text(String),
    List(Vec<TreeNode>),
    Object(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_span: Range<usize>,
    pub value: TreeNode,
}

/// Parses a document to a tree.
pub fn read(source: &[u8], syntax: Syntax) -> Result<Tree, Malformed> {
    if source.len() > DEFINITION_MAX {
        let message = format!("a definition has at most {DEFINITION_MAX} bytes, this one has {}", source.len());
        return Err(refuse("", Draft::new(codes::TOO_LARGE, 0..0, message)));
    }
    let text = utf8(source).map_err(|(prefix, draft)| refuse(prefix, draft))?;
    let mut problems = Problems::new(text);
    let root = match syntax {
        Syntax::Json => crate::json::read(text, &mut problems),
        Syntax::Yaml => crate::yaml::read(text, &mut problems),
    };
    match root {
        Ok(root) if problems.is_empty() => Ok(Tree { source: text.to_owned(), root }),
        Ok(root) => Err(Malformed(problems.finish(Some(&root)))),
        Err(draft) => {
            problems.push(draft);
            Err(Malformed(problems.finish(None)))
        }
    }
}

fn refuse(source: &str, draft: Draft) -> Malformed {
    Malformed(vec![draft.place(source)])
}

/// The bytes as text. The error has the valid prefix, so that the position can be computed.
pub(crate) fn utf8(source: &[u8]) -> Result<&str, (&str, Draft)> {
    std::str::from_utf8(source).map_err(|error| {
        let at = error.valid_up_to();
        let prefix = std::str::from_utf8(&source[..at]).unwrap_or_default();
        let byte = source.get(at).copied().unwrap_or_default();
        let draft = Draft::new(codes::NOT_UTF8, at..at + 1, format!("the byte 0x{byte:02x} is not UTF-8"));
        (prefix, draft.hint("save the file as UTF-8"))
    })
}

impl Tree {
    pub(crate) fn root(&self) -> &TreeNode {
        &self.root
    }

    /// The text of the document.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The line and column of a byte, both from 1.
    pub fn place(&self, at: usize) -> (u32, u32) {
        place_in(&self.source, at)
    }

    /// The document as plain JSON, in the author's order.
    pub fn to_json(&self) -> serde_json::Value {
        self.root.to_json()
    }
}

/// The value of a number, however it was written.
pub(crate) fn number(n: f64) -> Value {
    if n.fract() == 0.0 && n.abs() < EXACT_BELOW { Value::Int(n as i64) } else { Value::Real(n) }
}

impl Entry {
    /// The name of the field that this is, however it is spelt.
    pub fn name(&self) -> Cow<'_, str> {
        crate::spelling::field_name(&self.key)
    }
}

impl TreeNode {
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(b) => Json::from(*b),
            Value::Int(n) => Json::from(*n),
            Value::Real(n) => Json::from(*n),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(TreeNode::to_json).collect(),
            Value::Object(entries) => entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect(),
        }
    }

    /// The name of the type, for messages.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Real(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Object(_) => "an object",
        }
    }

    /// Reports every number that lost digits.
    pub fn check_numbers(&self, problems: &mut Problems<'_>) {
        match &self.value {
            Value::Real(n) if is_inexact(*n) => {
                let problem = Problem::too_large(0, 0);
                problems.push(Draft::new(problem.code, self.span.clone(), problem.message).maybe_hint(problem.hint));
            }
            Value::List(items) => items.iter().for_each(|item| item.check_numbers(problems)),
            Value::Object(entries) => entries.iter().for_each(|e| e.value.check_numbers(problems)),
            _ => {}
        }
    }

    /// The path of the innermost value or key that contains `span`.
    pub fn path_to(&self, span: &Range<usize>) -> String {
        let contains = |outer: &Range<usize>| outer.start <= span.start && span.end <= outer.end;
        let mut path = String::new();
        let mut node = self;
        loop {
            node = match &node.value {
                // Children are in the order of the text, so only the last one that starts before `span` can contain it.
                Value::Object(entries) => {
                    let after = entries.partition_point(|e| e.key_span.start <= span.start);
                    let Some(entry) = after.checked_sub(1).and_then(|i| entries.get(i)) else { return path };
                    let inside = contains(&entry.value.span);
                    if !inside && !contains(&entry.key_span) {
                        return path;
                    }
                    push_key(&mut path, &entry.key);
                    if !inside {
                        return path;
                    }
                    &entry.value
                }
                Value::List(items) => {
                    let after = items.partition_point(|item| item.span.start <= span.start);
                    match after.checked_sub(1).and_then(|i| items.get(i)) {
                        Some(item) if contains(&item.span) => {
                            let _ = write!(path, "[{}]", after - 1);
                            item
                        }
                        _ => return path,
                    }
                }
                _ => return path,
            }
        }
    }
}

fn push_key(path: &mut String, key: &str) {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    if plain {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(&printable(key));
    } else {
        // Debug formatting escapes quotes; nothing else is left to escape.
        let harmless: String = key.chars().filter(|c| !is_hostile(*c)).take(80).collect();
        let _ = write!(path, "[{harmless:?}]");
    }
}

/// The range of `text[at..at + len]` of a text node in the source. Escapes and folded lines make the source longer than
/// the text; when the two cannot be aligned, the result is the range of the whole node.
pub(crate) fn inside(source: &str, node: &TreeNode, text: &str, at: usize, len: usize) -> Range<usize> {
    let whole = node.span.clone();
    let Some(raw) = source.get(whole.clone()) else { return whole };
    let quote = usize::from(raw.starts_with(['"', '\'']));
    if raw[quote..].starts_with(text) {
        let start = whole.start + quote + at;
        return start..(start + len).min(whole.end).max(start);
    }
    let part = text.get(at..at + len).unwrap_or_default();
    let mut hits = raw.match_indices(part);
    match (hits.next(), hits.next()) {
        (Some((i, _)), None) if !part.is_empty() => whole.start + i..whole.start + i + len,
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_in_the_text_has_a_path() {
        let source = r#"{"tasks": {"a b": {"needs": ["x", {"y": 1}]}}}"#;
        let tree = read(source.as_bytes(), Syntax::Json).unwrap();
        for (part, path) in [
            ("\"tasks\"", "tasks"),
            ("\"a b\"", r#"tasks["a b"]"#),
            ("\"needs\"", r#"tasks["a b"].needs"#),
            ("\"x\"", r#"tasks["a b"].needs[0]"#),
            ("1", r#"tasks["a b"].needs[1].y"#),
        ] {
            let at = source.find(part).unwrap();
            assert_eq!(tree.root().path_to(&(at..at + part.len())), path);
        }
        assert_eq!(tree.root().path_to(&(0..source.len())), "");
    }

    #[test]
    fn t37_too_large_and_invalid_utf8_are_refused_before_parsing() {
        let codes = |bytes: &[u8]| read(bytes, Syntax::Json).unwrap_err().0[0].to_string();
        assert_eq!(
            codes(&vec![b'['; DEFINITION_MAX + 1]),
            "1:1 too_large: a definition has at most 1048576 bytes, this one has 1048577"
        );
        assert_eq!(codes(b"{\n\"a\": \xff}"), "2:6 not_utf8: the byte 0xff is not UTF-8 (save the file as UTF-8)");
    }
}
