//! A strict JSON parser (RFC 8259): no duplicate keys, no lone surrogates, at most 64 levels deep.
//!
//! One parser serves two callers: [`read`] builds a tree for definitions, and [`check_json`] builds nothing and only
//! checks a body. The depth limit bounds the recursion, so no input can exhaust the stack. Every byte is read a
//! constant number of times; keys are sorted to find duplicates.

use crate::codes;
use crate::diagnostic::{Diagnostic, Draft, Problems, quoted};
use crate::tree::{self, DEPTH_MAX, Entry, TreeNode, Value, utf8};
use std::borrow::Cow;
use std::ops::Range;

/// Builds the tree of a definition. Duplicate keys are reported, and parsing continues.
pub(crate) fn read(text: &str, problems: &mut Problems<'_>) -> Result<TreeNode, Draft> {
    let mut reader = JsonReader { text, pos: 0, depth: 0, repeats: Vec::new() };
    let root = reader.document();
    reader.repeats.into_iter().for_each(|draft| problems.push(draft));
    root
}

/// Checks that `bytes` are one JSON value without duplicate keys, at most 64 levels deep, whose whole numbers fit into
/// 64 bits and whose other numbers fit into a double: larger ones would change on their way.
pub fn check_json(bytes: &[u8]) -> Result<(), Diagnostic> {
    let (text, draft) = match utf8(bytes) {
        Err((prefix, draft)) => (prefix, draft),
        Ok(text) => {
            let mut reader = JsonReader { text, pos: 0, depth: 0, repeats: Vec::new() };
            let found = reader.document::<Checked>();
            let first = reader.repeats.into_iter().min_by_key(|draft| draft.span.start);
            match first.map_or(found.map(|_| ()), Err) {
                Ok(()) => return Ok(()),
                Err(draft) => (text, draft),
            }
        }
    };
    Err(draft.place(text))
}

/// Builds the result of the parser: a tree, or nothing.
trait Build: Sized {
    fn scalar(span: Range<usize>, scalar: Scalar<'_>) -> Result<Self, Draft>;
    fn list(span: Range<usize>, items: Vec<Self>) -> Self;
    fn object(span: Range<usize>, entries: Vec<Member<'_, Self>>) -> Self;
}

enum Scalar<'s> {
    Null,
    Bool(bool),
    /// A number, and how it is written.
    Number(f64, &'s str),
    /// The text between the quotes; its escapes have been checked.
    Text(&'s str),
}

struct Member<'s, B> {
    key: Cow<'s, str>,
    key_span: Range<usize>,
    value: B,
}

/// A value that was checked and not kept.
struct Checked;

impl Build for Checked {
    fn scalar(span: Range<usize>, scalar: Scalar<'_>) -> Result<Self, Draft> {
        match scalar {
            Scalar::Number(n, _) if n.is_infinite() => {
                Err(Draft::new(codes::NUMBER_TOO_LARGE, span, "this number is beyond what JSON readers can hold"))
            }
            Scalar::Number(_, text) if !fits_in_64_bits(text) => {
                let draft = Draft::new(codes::NUMBER_TOO_LARGE, span, "this whole number does not fit into 64 bits");
                Err(draft.hint("send it as a string"))
            }
            _ => Ok(Checked),
        }
    }
    fn list(_: Range<usize>, _: Vec<Self>) -> Self {
        Checked
    }
    fn object(_: Range<usize>, _: Vec<Member<'_, Self>>) -> Self {
        Checked
    }
}

impl Build for TreeNode {
    fn scalar(span: Range<usize>, scalar: Scalar<'_>) -> Result<Self, Draft> {
        let value = match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(b) => Value::Bool(b),
            Scalar::Number(n, _) => tree::number(n),
            Scalar::Text(raw) => Value::Text(decoded(raw).into_owned()),
        };
        Ok(TreeNode { span, value })
    }
    fn list(span: Range<usize>, items: Vec<Self>) -> Self {
        TreeNode { span, value: Value::List(items) }
    }
    fn object(span: Range<usize>, entries: Vec<Member<'_, Self>>) -> Self {
        let entry = |m: Member<'_, TreeNode>| Entry { key: m.key.into_owned(), key_span: m.key_span, value: m.value };
        TreeNode { span, value: Value::Object(entries.into_iter().map(entry).collect()) }
    }
}

struct JsonReader<'s> {
    text: &'s str,
    pos: usize,
    depth: usize,
    repeats: Vec<Draft>,
}

impl<'s> JsonReader<'s> {
    fn document<B: Build>(&mut self) -> Result<B, Draft> {
        if self.text.starts_with('\u{feff}') {
            let draft = Draft::new(codes::MALFORMED_JSON, 0..3, "the text begins with a byte order mark");
            return Err(draft.hint("save the file as UTF-8 without BOM"));
        }
        self.space();
        if self.pos == self.text.len() {
            return Err(self.wrong("the document is empty"));
        }
        let value = self.value()?;
        self.space();
        if self.pos < self.text.len() { Err(self.unexpected("the end of the document")) } else { Ok(value) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.pos += 1;
        }
    }

    fn value<B: Build>(&mut self) -> Result<B, Draft> {
        let start = self.pos;
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::list),
            Some(b'"') => {
                let raw = self.string()?;
                B::scalar(start..self.pos, Scalar::Text(raw))
            }
            Some(b'-' | b'0'..=b'9') => {
                let number = self.number()?;
                B::scalar(start..self.pos, Scalar::Number(number, &self.text[start..self.pos]))
            }
            _ => {
                for (word, scalar) in
                    [("true", Scalar::Bool(true)), ("false", Scalar::Bool(false)), ("null", Scalar::Null)]
                {
                    let rest = &self.text[self.pos..];
                    if rest.starts_with(word) && !rest[word.len()..].starts_with(|c: char| c.is_alphanumeric()) {
                        self.pos += word.len();
                        return B::scalar(start..self.pos, scalar);
                    }
                }
                Err(self.unexpected("a value"))
            }
        }
    }

    /// Reads a list or object one level deeper. The limit here bounds the recursion.
    fn nested<B>(&mut self, read: fn(&mut Self) -> Result<B, Draft>) -> Result<B, Draft> {
        if self.depth == DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX}");
            return Err(Draft::new(codes::TOO_DEEP, self.pos..self.pos + 1, message));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn list<B: Build>(&mut self) -> Result<B, Draft> {
        let start = self.pos;
        let mut items = Vec::new();
        self.pos += 1;
        self.space();
        if self.peek() != Some(b']') {
            loop {
                items.push(self.value()?);
                if !self.comma(b']', "`,` or `]`")? {
                    break;
                }
            }
        }
        self.pos += 1;
        Ok(B::list(start..self.pos, items))
    }

    fn object<B: Build>(&mut self) -> Result<B, Draft> {
        let start = self.pos;
        let mut entries = Vec::new();
        self.pos += 1;
        self.space();
        if self.peek() != Some(b'}') {
            loop {
                let key_start = self.pos;
                if self.peek() != Some(b'"') {
                    return Err(self.unexpected("a key in double quotes"));
                }
                let key = decoded(self.string()?);
                let key_span = key_start..self.pos;
                self.space();
                if self.peek() != Some(b':') {
                    return Err(self.unexpected("`:`"));
                }
                self.pos += 1;
                self.space();
                entries.push(Member { key, key_span, value: self.value()? });
                if !self.comma(b'}', "`,` or `}`")? {
                    break;
                }
            }
        }
        self.pos += 1;
        self.repeats.extend(repeats(entries.iter().map(|m: &Member<'_, B>| (&*m.key, &m.key_span))));
        Ok(B::object(start..self.pos, entries))
    }

    /// After an item: true when another item follows, false at `close`.
    fn comma(&mut self, close: u8, expected: &str) -> Result<bool, Draft> {
        self.space();
        match self.peek() {
            Some(b) if b == close => Ok(false),
            Some(b',') => {
                let comma = self.pos;
                self.pos += 1;
                self.space();
                if self.peek() == Some(close) {
                    let draft = Draft::new(codes::MALFORMED_JSON, comma..comma + 1, "nothing follows this comma");
                    return Err(draft.hint("JSON has no comma after the last entry"));
                }
                Ok(true)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// Reads a string and checks its escapes. Returns the text between the quotes.
    fn string(&mut self) -> Result<&'s str, Draft> {
        let open = self.pos;
        self.pos += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(&self.text[open + 1..self.pos - 1]);
                }
                Some(b'\\') => self.escape()?,
                Some(b'\n' | b'\r') | None => {
                    let message = "this text is not closed";
                    return Err(Draft::new(codes::MALFORMED_JSON, open..open + 1, message)
                        .hint("a line break inside a text is written \\n"));
                }
                Some(b) if b < 0x20 => {
                    return Err(self.wrong(format!("a control character (0x{b:02x}) must be escaped")));
                }
                Some(_) => self.pos += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<(), Draft> {
        let start = self.pos;
        let bad = |message: &str| Err(Draft::new(codes::MALFORMED_JSON, start..start + 2, message));
        self.pos += 2;
        match self.text.as_bytes().get(start + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => match hex(self.text, self.pos) {
                Some(0xd800..=0xdbff) => {
                    self.pos += 4;
                    let low = self.text[self.pos..].starts_with("\\u").then(|| hex(self.text, self.pos + 2)).flatten();
                    self.pos += 6;
                    if matches!(low, Some(0xdc00..=0xdfff)) {
                        Ok(())
                    } else {
                        bad("half of a surrogate pair is missing")
                    }
                }
                Some(0xdc00..=0xdfff) => bad("half of a surrogate pair is missing"),
                Some(_) => {
                    self.pos += 4;
                    Ok(())
                }
                None => bad("\\u needs four hexadecimal digits"),
            },
            _ => bad("unknown escape in this text"),
        }
    }

    fn number(&mut self) -> Result<f64, Draft> {
        let start = self.pos;
        let rest = &self.text[start..];
        let len = rest.bytes().take_while(|b| b.is_ascii_digit() || b"+-.eE".contains(b)).count();
        self.pos += len;
        let number = &rest[..len];
        let value = if is_json_number(number) { number.parse::<f64>().ok() } else { None };
        value.ok_or_else(|| {
            let draft =
                Draft::new(codes::MALFORMED_JSON, start..self.pos, format!("{} is not a number", quoted(number)));
            let zero = number.trim_start_matches('-').starts_with('0');
            if zero { draft.hint("a number has no leading zeros; quote it if it is text") } else { draft }
        })
    }

    fn wrong(&self, message: impl Into<String>) -> Draft {
        let len = self.text[self.pos..].chars().next().map_or(0, char::len_utf8);
        Draft::new(codes::MALFORMED_JSON, self.pos..self.pos + len, message)
    }

    fn unexpected(&self, expected: &str) -> Draft {
        match self.text[self.pos..].chars().next() {
            None => self.wrong(format!("expected {expected}, found the end of the document")),
            Some(c) => {
                let draft = self.wrong(format!("expected {expected}, found {}", quoted(&c.to_string())));
                match c {
                    '\'' => draft.hint("JSON strings use double quotes"),
                    '/' | '#' => draft.hint("JSON has no comments"),
                    _ => draft,
                }
            }
        }
    }
}

/// The four hexadecimal digits at `at`.
fn hex(text: &str, at: usize) -> Option<u32> {
    let digits = text.as_bytes().get(at..at + 4)?;
    digits.iter().try_fold(0, |n, b| Some(n << 4 | char::from(*b).to_digit(16)?))
}

/// False for a whole number, written as one, that is neither an `i64` nor a `u64`.
fn fits_in_64_bits(number: &str) -> bool {
    number.contains(['.', 'e', 'E']) || number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok()
}

/// `-? (0 | [1-9][0-9]*) (\.[0-9]+)? ([eE][+-]?[0-9]+)?`
pub(crate) fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest.starts_with('0')) {
        return false;
    }
    let mut rest = &rest[whole..];
    if let Some(after) = rest.strip_prefix('.') {
        let count = digits(after);
        if count == 0 {
            return false;
        }
        rest = &after[count..];
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(after) => {
            let after = after.strip_prefix(['+', '-']).unwrap_or(after);
            !after.is_empty() && digits(after) == after.len()
        }
    }
}

/// The text between the quotes, with its (checked) escapes decoded.
fn decoded(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(i) = rest.find('\\') {
        out.push_str(&rest[..i]);
        let mut used = i + 2;
        out.push(match rest.as_bytes().get(i + 1) {
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut code = hex(rest, used).unwrap_or_default();
                used += 4;
                if (0xd800..0xdc00).contains(&code) {
                    let low = hex(rest, used + 2).unwrap_or_default();
                    code = 0x10000 + ((code & 0x3ff) << 10) + (low & 0x3ff);
                    used += 6;
                }
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            Some(b) => char::from(*b),
            None => break,
        });
        rest = rest.get(used..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// A problem for the second and each later occurrence of a key.
pub(crate) fn repeats<'k>(keys: impl Iterator<Item = (&'k str, &'k Range<usize>)>) -> Vec<Draft> {
    let mut keys: Vec<(&str, &Range<usize>)> = keys.collect();
    keys.sort_by(|a, b| (a.0, a.1.start).cmp(&(b.0, b.1.start)));
    let pairs = keys.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let draft = |pair: &[(&str, &Range<usize>)]| {
        let (key, span) = pair[1];
        Draft::new(codes::DUPLICATE_KEY, span.clone(), format!("the key {} appears a second time", quoted(key)))
    };
    pairs.map(draft).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Syntax, canonical_json};

    fn check(source: &str, expected: &str) {
        let found = match crate::read(source.as_bytes(), Syntax::Json) {
            Ok(tree) => canonical_json(&tree),
            Err(problems) => problems.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        };
        assert_eq!(found, expected, "{source}");
        let checked = check_json(source.as_bytes()).map_err(|d| d.to_string());
        assert_eq!(checked.is_ok(), !expected.contains(" malformed_json") && !expected.contains(" duplicate_key"));
    }

    #[test]
    fn values_are_read_as_written() {
        for (source, expected) in [
            (" [1 , -2.5e3,true,false , null,\"\"] ", r#"[1,-2500,true,false,null,""]"#),
            (r#"{"a" : {"b":[]} , "é":"\u00e9\ud83d\ude00\\\"\/"}"#, r#"{"a":{"b":[]},"é":"é😀\\\"/"}"#),
            ("\"x\"", "\"x\""),
            ("0", "0"),
            ("\"\\u0000\"", "\"\\u0000\""),
        ] {
            check(source, expected);
        }
    }

    #[test]
    fn t18_duplicate_keys_are_refused_at_any_depth() {
        check(
            r#"{"a": 1, "b": [{"x": 1, "\u0078": 2}], "a": 3}"#,
            "1:25 duplicate_key b[0].x: the key `x` appears a second time\n\
             1:40 duplicate_key a: the key `a` appears a second time",
        );
    }

    #[test]
    fn invalid_json_is_refused_with_its_position() {
        for (source, expected) in [
            ("", "1:1 malformed_json: the document is empty"),
            ("{", "1:2 malformed_json: expected a key in double quotes, found the end of the document"),
            ("[1,]", "1:3 malformed_json: nothing follows this comma (JSON has no comma after the last entry)"),
            (
                "{'a':1}",
                "1:2 malformed_json: expected a key in double quotes, found `'` (JSON strings use double quotes)",
            ),
            ("[1] // x", "1:5 malformed_json: expected the end of the document, found `/` (JSON has no comments)"),
            ("[\n  tru]", "2:3 malformed_json: expected a value, found `t`"),
            ("[nullx]", "1:2 malformed_json: expected a value, found `n`"),
            ("01", "1:1 malformed_json: `01` is not a number (a number has no leading zeros; quote it if it is text)"),
            ("1.", "1:1 malformed_json: `1.` is not a number"),
            ("-", "1:1 malformed_json: `-` is not a number"),
            ("+1", "1:1 malformed_json: expected a value, found `+`"),
            ("NaN", "1:1 malformed_json: expected a value, found `N`"),
            ("{\"a\" 1}", "1:6 malformed_json: expected `:`, found `1`"),
            ("[1 2]", "1:4 malformed_json: expected `,` or `]`, found `2`"),
            ("\"a\nb\"", "1:1 malformed_json: this text is not closed (a line break inside a text is written \\n)"),
            ("\"a\u{1}\"", "1:3 malformed_json: a control character (0x01) must be escaped"),
            ("[\0]", "1:2 malformed_json: expected a value, found `\\u{0}`"),
            ("\"\\q\"", "1:2 malformed_json: unknown escape in this text"),
            ("\"\\", "1:2 malformed_json: unknown escape in this text"),
            ("\"\\u12\"", "1:2 malformed_json: \\u needs four hexadecimal digits"),
            ("\"\\u12é\"", "1:2 malformed_json: \\u needs four hexadecimal digits"),
            ("\"\\ud800\"", "1:2 malformed_json: half of a surrogate pair is missing"),
            ("\"\\udc00\"", "1:2 malformed_json: half of a surrogate pair is missing"),
            ("\"\\ud800\\u0041\"", "1:2 malformed_json: half of a surrogate pair is missing"),
            (
                "\u{feff}{}",
                "1:1 malformed_json: the text begins with a byte order mark (save the file as UTF-8 without BOM)",
            ),
        ] {
            check(source, expected);
        }
    }

    #[test]
    fn t37_deep_input_is_refused_without_deep_recursion() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(check_json(nested(64).as_bytes()).is_ok());
        assert_eq!(check_json(nested(65).as_bytes()).unwrap_err().code, "too_deep");
        for open in ["[", "{\"a\":", "[{\"a\":"] {
            let hostile = open.repeat(10_000_000 / open.len());
            assert_eq!(check_json(hostile.as_bytes()).unwrap_err().code, "too_deep");
        }
    }

    #[test]
    fn t37_wide_input_takes_linear_time() {
        let keys: Vec<String> = (0..200_000).map(|i| format!("\"k{i}\":0")).collect();
        assert!(check_json(format!("{{{}}}", keys.join(",")).as_bytes()).is_ok());
        let repeated = format!("{{{}\"a\":0}}", "\"a\":0,".repeat(200_000));
        assert_eq!(check_json(repeated.as_bytes()).unwrap_err().code, "duplicate_key");
    }

    #[test]
    fn a_number_that_does_not_fit_a_double_is_refused_in_bodies_too() {
        assert_eq!(check_json(b"[1e999]").unwrap_err().code, "number_too_large");
        assert!(check_json(b"[12345678901234567890]").is_ok(), "bodies keep large whole numbers");
        assert!(check_json(b"[18446744073709551615, -9223372036854775808, 1e30, 18446744073709551616.5]").is_ok());
        for number in ["18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"] {
            let problem = check_json(format!("{{\"a\":\n  [{number}]}}").as_bytes()).unwrap_err();
            assert_eq!(
                problem.to_string(),
                "2:4 number_too_large: this whole number does not fit into 64 bits (send it as a string)"
            );
        }
        assert_eq!(check_json(b"\"\xc3\"").unwrap_err().code, "not_utf8");
    }
}
