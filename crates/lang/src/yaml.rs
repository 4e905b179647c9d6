//! YAML 1.2 without its ambiguous features.
//!
//! `saphyr-parser` produces events with character positions; this module builds the same tree from them as the JSON
//! parser. Anchors, aliases, tags, merge keys and more than one document are refused. Plain words are strict: only
//! `true` and `false` are booleans, so `no` stays the country code. Nothing here recurses: the open collections are a
//! stack, bounded by the depth limit.

use crate::codes;
use crate::diagnostic::{Draft, Problems, quoted};
use crate::json::{is_json_number, repeats};
use crate::tree::{self, DEPTH_MAX, Entry, TreeNode, Value};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use std::ops::Range;

/// Builds the tree of a definition. Parsing continues after most problems, so that they are reported together.
pub(crate) fn read(text: &str, problems: &mut Problems<'_>) -> Result<TreeNode, Draft> {
    refuse_unprintable(text)?;
    let offsets = Offsets::new(text);
    let mut builder = Builder { open: Vec::new(), root: None, documents: 0, problems };
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.on(event, offsets.range(text, &span))?,
            Err(error) => {
                let at = offsets.byte(error.marker().index());
                return Err(syntax_error(error.info(), at..at));
            }
        }
    }
    builder.root.ok_or_else(|| Draft::new(codes::MALFORMED_YAML, 0..0, "the document is empty"))
}

/// Refuses control characters. YAML does not allow them, and the parser would take NUL for the end of the text.
fn refuse_unprintable(text: &str) -> Result<(), Draft> {
    if text.starts_with('\u{feff}') {
        let draft = Draft::new(codes::MALFORMED_YAML, 0..3, "the text begins with a byte order mark");
        return Err(draft.hint("save the file as UTF-8 without BOM"));
    }
    let found = text.char_indices().find(|(_, c)| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}'));
    found.map_or(Ok(()), |(at, c)| {
        let message = format!("the control character {} is not allowed here", quoted(&c.to_string()));
        Err(Draft::new(codes::MALFORMED_YAML, at..at + c.len_utf8(), message))
    })
}

fn syntax_error(info: &str, span: Range<usize>) -> Draft {
    if info.contains("unknown anchor") {
        return Draft::new(codes::YAML_ALIAS, span, "aliases are not accepted").hint("write the value out");
    }
    if info.contains("recursion limit") {
        return Draft::new(codes::TOO_DEEP, span, format!("nested deeper than {DEPTH_MAX}"));
    }
    Draft::new(codes::MALFORMED_YAML, span, format!("this is not YAML: {}", info.to_lowercase()))
}

/// The byte offsets of characters; empty for ASCII, where byte and character offsets are equal.
struct Offsets(Vec<u32>);

impl Offsets {
    fn new(text: &str) -> Offsets {
        if text.is_ascii() {
            return Offsets(Vec::new());
        }
        let ends = std::iter::once(text.len() as u32);
        Offsets(text.char_indices().map(|(i, _)| i as u32).chain(ends).collect())
    }

    fn byte(&self, index: usize) -> usize {
        match self.0.last() {
            None => index,
            Some(end) => self.0.get(index).copied().unwrap_or(*end) as usize,
        }
    }

    fn range(&self, text: &str, span: &Span) -> Range<usize> {
        let start = self.byte(span.start.index()).min(text.len());
        start..self.byte(span.end.index()).clamp(start, text.len())
    }
}

/// A collection that has begun and not ended.
struct Open {
    start: usize,
    kind: Kind,
}

enum Kind {
    List(Vec<TreeNode>),
    Object { entries: Vec<Entry>, key: Option<(String, Range<usize>)> },
}

struct Builder<'p, 's> {
    open: Vec<Open>,
    root: Option<TreeNode>,
    documents: usize,
    problems: &'p mut Problems<'s>,
}

impl Builder<'_, '_> {
    fn on(&mut self, event: Event<'_>, span: Range<usize>) -> Result<(), Draft> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    let draft = Draft::new(codes::YAML_DOCUMENTS, span, "a second document begins here");
                    return Err(draft.hint("put each workflow into its own file"));
                }
            }
            Event::Alias(_) => {
                let draft = Draft::new(codes::YAML_ALIAS, span.clone(), "aliases are not accepted");
                self.problems.push(draft.hint("write the value out"));
                self.place(TreeNode { span, value: Value::Null });
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.properties(anchor, tag.is_some(), &span);
                self.scalar(text.into_owned(), style, span);
            }
            Event::SequenceStart(anchor, tag) => {
                self.properties(anchor, tag.is_some(), &span);
                self.begin(Kind::List(Vec::new()), span)?;
            }
            Event::MappingStart(anchor, tag) => {
                self.properties(anchor, tag.is_some(), &span);
                self.begin(Kind::Object { entries: Vec::new(), key: None }, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
        }
        Ok(())
    }

    fn properties(&mut self, anchor: usize, tagged: bool, span: &Range<usize>) {
        if anchor != 0 {
            let draft = Draft::new(codes::YAML_ANCHOR, span.clone(), "this value has an anchor");
            self.problems.push(draft.hint("remove `&name` and write the value out where it is used"));
        }
        if tagged {
            let draft = Draft::new(codes::YAML_TAG, span.clone(), "this value has a tag");
            self.problems.push(draft.hint("remove `!…`; quote a value that is meant as text"));
        }
    }

    fn begin(&mut self, kind: Kind, span: Range<usize>) -> Result<(), Draft> {
        if self.open.len() == DEPTH_MAX {
            return Err(Draft::new(codes::TOO_DEEP, span, format!("nested deeper than {DEPTH_MAX}")));
        }
        if let Some(Open { kind: Kind::Object { key: key @ None, .. }, .. }) = self.open.last_mut() {
            self.problems.push(bad_key(&span, "a list or an object"));
            // A placeholder key, so that keys and values still alternate.
            *key = Some((String::new(), span.start..span.start));
            self.open.push(Open { start: usize::MAX, kind });
            return Ok(());
        }
        self.open.push(Open { start: span.start, kind });
        Ok(())
    }

    fn end(&mut self, span: Range<usize>) {
        let Some(Open { start, kind }) = self.open.pop() else { return };
        let (value, last) = match kind {
            Kind::List(items) => {
                let last = items.last().map(|n| n.span.end);
                (Value::List(items), last)
            }
            Kind::Object { entries, .. } => {
                repeats(entries.iter().map(|e| (&*e.key, &e.key_span))).into_iter().for_each(|d| self.problems.push(d));
                let last = entries.last().map(|e| e.value.span.end);
                (Value::Object(entries), last)
            }
        };
        if start == usize::MAX {
            return; // It was used as a key, which has been reported.
        }
        // A block ends where its last entry ends; only a closing bracket has a position of its own.
        let end = if span.is_empty() { last.unwrap_or(span.end) } else { span.end };
        self.place(TreeNode { span: start..end.max(start), value });
    }

    fn scalar(&mut self, text: String, style: ScalarStyle, span: Range<usize>) {
        let is_key = matches!(self.open.last(), Some(Open { kind: Kind::Object { key: None, .. }, .. }));
        let value = match style {
            ScalarStyle::Plain => plain(text).unwrap_or_else(|draft| {
                self.problems.push(Draft { span: span.clone(), ..draft });
                Value::Null
            }),
            _ => Value::Text(text),
        };
        if !is_key {
            return self.place(TreeNode { span, value });
        }
        let key = match value {
            Value::Text(name) => {
                if name == "<<" && style == ScalarStyle::Plain {
                    let draft = Draft::new(codes::YAML_MERGE, span.clone(), "merge keys are not accepted");
                    self.problems.push(draft.hint("write the entries out"));
                }
                (name, span)
            }
            value => {
                let found = TreeNode { span, value };
                self.problems.push(bad_key(&found.span, found.kind()));
                (String::new(), found.span.start..found.span.start)
            }
        };
        if let Some(Open { kind: Kind::Object { key: slot, .. }, .. }) = self.open.last_mut() {
            *slot = Some(key);
        }
    }

    /// Adds a finished value to the innermost open collection.
    fn place(&mut self, mut node: TreeNode) {
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.root = Some(node),
            Some(Kind::List(items)) => items.push(node),
            Some(Kind::Object { entries, key }) => match key.take() {
                // An alias used as a key; reported already.
                None => *key = Some((String::new(), node.span.start..node.span.start)),
                Some((name, key_span)) => {
                    // A missing value has no position of its own: use the end of its key.
                    if node.span.is_empty() {
                        node.span = key_span.end..key_span.end;
                    }
                    // Placeholder keys are dropped, so that they are not reported as duplicates of each other.
                    if !key_span.is_empty() {
                        entries.push(Entry { key: name, key_span, value: node });
                    }
                }
            },
        }
    }
}

fn bad_key(span: &Range<usize>, found: &str) -> Draft {
    Draft::new(codes::YAML_KEY, span.clone(), format!("a key must be a text, found {found}")).hint("quote it")
}

/// The value of a plain word. The draft of an error has no position yet.
fn plain(text: String) -> Result<Value, Draft> {
    match text.as_str() {
        "" | "~" | "null" => return Ok(Value::Null),
        "true" => return Ok(Value::Bool(true)),
        "false" => return Ok(Value::Bool(false)),
        _ => {}
    }
    let ambiguous = |hint: &str| {
        let message = format!("{} could be a number or a text", quoted(&text));
        Err(Draft::new(codes::AMBIGUOUS_NUMBER, 0..0, message).hint(hint))
    };
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    if let ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN" = unsigned {
        return ambiguous("JSON has no such number; quote it if it is text");
    }
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|c| c.is_digit(radix))
        {
            let value =
                digits.chars().fold(0.0, |n, c| n * f64::from(radix) + f64::from(c.to_digit(radix).unwrap_or(0)));
            return Ok(tree::number(value));
        }
    }
    let Some(json) = as_json_number(unsigned) else { return Ok(Value::Text(text)) };
    if !is_json_number(&json) {
        return ambiguous("quote it if it is text, drop the leading zeros if it is a number");
    }
    let value = json.parse::<f64>().unwrap_or(f64::INFINITY);
    Ok(tree::number(if text.starts_with('-') { -value } else { value }))
}

/// A YAML number in JSON syntax (`.5` becomes `0.5`); `None` when the word is not a number.
fn as_json_number(text: &str) -> Option<String> {
    let split = text.find(['e', 'E']).unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at(split);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let power = exponent.get(1..).map(|e| e.strip_prefix(['+', '-']).unwrap_or(e));
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    if power.is_some_and(|p| p.is_empty() || !digits(p)) {
        return None;
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = if fraction.is_empty() { "0" } else { fraction };
    Some(format!("{whole}.{fraction}{exponent}"))
}

#[cfg(test)]
mod tests {
    use crate::{DEFINITION_MAX, Syntax, canonical_json};

    fn outcome(source: &str) -> String {
        match crate::read(source.as_bytes(), Syntax::Yaml) {
            Ok(tree) => canonical_json(&tree),
            Err(problems) => problems.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        }
    }

    #[test]
    fn plain_words_have_one_meaning() {
        for (source, expected) in [
            ("[true, false, yes, no, on, True, y]", r#"[true,false,"yes","no","on","True","y"]"#),
            ("[null, ~, Null]", r#"[null,null,"Null"]"#),
            ("[1, -1, +1, 1.5, .5, 5., 1e3, 0x1f, 0o17, -0]", "[1,-1,1,1.5,0.5,5,1000,31,15,0]"),
            (
                "[1_000, 5m, 12:30:00, 2024-01-02, 1e, e1, '.', 1.2.3]",
                r#"["1_000","5m","12:30:00","2024-01-02","1e","e1",".","1.2.3"]"#,
            ),
            ("a:\nb: ''\nc: '012'\n", r#"{"a":null,"b":"","c":"012"}"#),
            ("no: 1\non: 2", r#"{"no":1,"on":2}"#),
            ("a: |\n  x\n  y\nb: >\n  x\n  y\n", "{\"a\":\"x\\ny\\n\",\"b\":\"x y\\n\"}"),
            ("---\na: {b: [1, {c: d}]}\n...\n", r#"{"a":{"b":[1,{"c":"d"}]}}"#),
            ("{\"a\": [1, \"x\\u0041\"]}", r#"{"a":[1,"xA"]}"#),
        ] {
            assert_eq!(outcome(source), expected, "{source}");
        }
    }

    #[test]
    fn ambiguous_input_is_refused() {
        for (source, expected) in [
            (
                "a: 012",
                "1:4 ambiguous_number a: `012` could be a number or a text (quote it if it is text, drop the leading zeros if it is a number)",
            ),
            (
                "a: -.inf",
                "1:4 ambiguous_number a: `-.inf` could be a number or a text (JSON has no such number; quote it if it is text)",
            ),
            ("a: 1\nb: 2\na: 3", "3:1 duplicate_key a: the key `a` appears a second time"),
            (
                "a: &x 1\nb: *x",
                "1:4 yaml_anchor a: this value has an anchor (remove `&name` and write the value out where it is used)\n2:4 yaml_alias b: aliases are not accepted (write the value out)",
            ),
            ("b: *x", "1:4 yaml_alias: aliases are not accepted (write the value out)"),
            ("a: !!str 1", "1:4 yaml_tag a: this value has a tag (remove `!…`; quote a value that is meant as text)"),
            (
                "a: 1\n---\nb: 2",
                "2:1 yaml_documents: a second document begins here (put each workflow into its own file)",
            ),
            (
                "1: a\ntrue: b\n? [x]\n: c",
                "1:1 yaml_key: a key must be a text, found a number (quote it)\n2:1 yaml_key: a key must be a text, found a boolean (quote it)\n3:3 yaml_key: a key must be a text, found a list or an object (quote it)",
            ),
            ("<<: {a: 1}", "1:1 yaml_merge [\"<<\"]: merge keys are not accepted (write the entries out)"),
            ("", "1:1 malformed_yaml: the document is empty"),
            ("a: 1\0b: 2", "1:5 malformed_yaml: the control character `\\u{0}` is not allowed here"),
            (
                "\u{feff}a: 1",
                "1:1 malformed_yaml: the text begins with a byte order mark (save the file as UTF-8 without BOM)",
            ),
        ] {
            assert_eq!(outcome(source), expected, "{source}");
        }
        for source in ["a: [1, 2", "a: b: c", "a: 'x", "- a\nb: c", "{a: 1", "@x", "a: \"\\q\""] {
            assert!(outcome(source).contains(" malformed_yaml: this is not YAML"), "{source}: {}", outcome(source));
        }
    }

    #[test]
    fn positions_are_right_after_non_ascii_text() {
        assert_eq!(outcome("é: ü\nñ: {ö: 1, ö: 2}"), "2:11 duplicate_key ñ.ö: the key `ö` appears a second time");
    }

    #[test]
    fn t37_hostile_input_is_refused_in_linear_time() {
        for (unit, code) in [
            ("[", "too_deep"),
            ("{", "too_deep"),
            ("{a: ", "too_deep"),
            ("[[],", "too_deep"),
            ("- ", "too_deep"),
            ("? ", "too_deep"),
            ("&a ", "malformed_yaml"),
            ("!t ", "malformed_yaml"),
            ("a: &x [*x]\n", "yaml_alias"),
            ("*a ", "yaml_alias"),
            ("- a\n", "\"a\""),
            ("a\n", "\"a a"),
            ("\n", "malformed_yaml"),
            ("# c\n", "malformed_yaml"),
            ("'", ""),
            ("\"", ""),
            ("---\n", "yaml_documents"),
            ("a: 1\n", "duplicate_key"),
            ("|\n", ""),
            ("%", "malformed_yaml"),
            (":", ""),
            ("a:", ""),
            ("a ", ""),
        ] {
            let source = unit.repeat(DEFINITION_MAX / 4 / unit.len());
            let found = outcome(&source);
            assert!(found.contains(code), "{unit:?}: {}", &found[..found.len().min(200)]);
        }
        for (before, unit) in [
            ("[", "a, "),
            ("{", "a, "),
            ("[", "a: b, "),
            ("[", "\n"),
            ("[", "? "),
            ("a:\n", " - b\n"),
            ("'", "\n"),
            ("\"", "\\\n"),
            ("x: |\n", "  a\n"),
            ("a: ", "b "),
            ("a: ", " "),
            ("[", "[], "),
        ] {
            let _ = outcome(&format!("{before}{}", unit.repeat(DEFINITION_MAX / 4 / unit.len())));
        }
    }
}
