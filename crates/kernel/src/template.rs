//! Templates: JSON values whose string leaves may contain placeholders, `{{path}}` or `{{path ?? default}}`.
//!
//! A leaf that is exactly one placeholder takes the value with its type; inside a longer text the value is printed.
//! Filling in is structural: a value can never break out of its leaf, and it is never read as a template again. A
//! placeholder that cannot be filled in is an error that names it; nothing is left half-filled.
//!
//! A default is a literal or another path, and there may be several. It takes the place of a value that is missing or
//! null; the last one counts as if it stood alone, so `{{a ?? b}}` is null if `b` is, and an error if `b` is missing.

use crate::expr::{self, Expr};
use crate::path::{self, Problem, Ref, Resolve};
use crate::planted_bugs::{self, Bug};
use crate::scope::{Scope, Unresolved};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The longest string leaf with placeholders, in bytes.
pub const LEN_MAX: usize = 4 * 1024;
/// The longest filled-in template, in bytes of JSON.
pub const EXPANDED_MAX: usize = 64 * 1024;

choice! {
    pub enum Template {
        /// JSON without placeholders.
        1 => Literal { 1 => json: Bytes },
        /// Exactly one placeholder: the value itself.
        2 => Value { 1 => path: Ref },
        3 => Text { 1 => parts: Vec<Part> },
        4 => List { 1 => items: Vec<Template> },
        5 => Object { 1 => entries: Vec<TemplateEntry> },
        /// Exactly one placeholder, with defaults.
        6 => ValueOr { 1 => path: Ref, 2 => defaults: Vec<Template> },
    }
}

message! {
    /// A part of a text: literal text, or a placeholder.
    pub struct Part {
        1 => text: String,
        2 => path: Option<Ref>,
        /// In a URL, a placeholder that may form the part before the path, because the step lists `allow_hosts`.
        3 => raw: bool,
        /// What takes the place of a missing or null value, in this order: each a `Literal` or a `Value`.
        4 => defaults: Vec<Template>,
    }
}

message! {
    pub struct TemplateEntry {
        1 => key: String,
        2 => value: Option<Template>,
    }
}

/// Why a template could not be filled in.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// Fetch these payloads and try again.
    Stored(Vec<u32>),
    /// The step ends as `template_error` with this message.
    Message(String),
}

/// Splits a string leaf into its parts. Text without `{{` is one literal part.
pub fn parse_text(text: &str, resolve: &mut Resolve<'_>) -> Result<Vec<Part>, Vec<Problem>> {
    let mut parts = Vec::new();
    let mut problems = Vec::new();
    let mut pos = 0;
    if text.contains("{{") && text.len() > LEN_MAX {
        let message = format!("this template has {} bytes, the limit is {LEN_MAX}", text.len());
        return Err(vec![Problem::new("template_too_long", message, 0, text.len())]);
    }
    while let Some(open) = text[pos..].find("{{").map(|i| pos + i) {
        if open > pos {
            parts.push(Part { text: text[pos..open].to_owned(), ..Default::default() });
        }
        let Some(close) = text[open..].find("}}").map(|i| open + i) else {
            problems.push(Problem::new("template_syntax", "this `{{` is not closed", open, 2));
            return Err(problems);
        };
        match parse_placeholder(text, open + 2, resolve) {
            Ok((part, end)) => {
                parts.push(part);
                pos = end;
            }
            Err(found) => {
                problems.extend(found);
                pos = close + 2;
            }
        }
    }
    if pos < text.len() || parts.is_empty() {
        parts.push(Part { text: text[pos..].to_owned(), ..Default::default() });
    }
    if problems.is_empty() { Ok(parts) } else { Err(problems) }
}

/// Parses the placeholder whose `{{` ends at `from`. Returns it with the offset after its `}}`.
fn parse_placeholder(text: &str, from: usize, resolve: &mut Resolve<'_>) -> Result<(Part, usize), Vec<Problem>> {
    let syntax = |message: &str, at, len| Problem::new("template_syntax", message, at, len);
    let mut parser = expr::Parser::new(text, from, resolve);
    if parser.eat("}}") {
        let problem = syntax("`{{}}` names nothing", from - 2, parser.pos + 2 - from);
        return Err(vec![problem.hint("write a path such as `{{trigger.body.id}}`")]);
    }
    let mut part = Part::default();
    let read = loop {
        let at = parser.pos;
        match parser.plain(0) {
            Ok(Expr::Path { path }) if part.path.is_none() => part.path = Some(path),
            Ok(Expr::Path { path }) => part.defaults.push(Template::Value { path }),
            // The parser has noted a path that it could not resolve.
            Ok(_) if !parser.problems.is_empty() => {}
            Ok(_) if part.path.is_none() => {
                break Err(syntax("a template begins with a path", at, parser.pos - at)
                    .hint("a literal is written without `{{` and `}}`, or as a default after `??`"));
            }
            Ok(literal) => part.defaults.push(Template::literal(&literal.to_json())),
            Err(problem) if problem.code == "expression_syntax" => {
                break Err(Problem { code: "template_syntax", ..problem });
            }
            Err(problem) => break Err(problem),
        }
        if parser.eat("}}") {
            break Ok(parser.pos);
        }
        if !parser.eat("??") {
            let len = text[parser.pos..].find("}}").unwrap_or(1);
            break Err(syntax("a template holds one path, and defaults after `??`", parser.pos, len)
                .hint("compute values in the service that is called"));
        }
        parser.space();
        if !text[parser.pos..].starts_with(expr::starts_plain) {
            break Err(syntax("expected a default after `??`", parser.pos, 1)
                .hint("write a path, a number, a text in quotes, true, false or null"));
        }
    };
    let mut problems = parser.problems;
    match read {
        Ok(end) if problems.is_empty() => return Ok((part, end)),
        Ok(_) => {}
        Err(problem) => problems.push(problem),
    }
    Err(problems)
}

impl Template {
    pub fn literal(value: &Value) -> Template {
        Template::Literal { json: Bytes::from(value.to_string()) }
    }

    /// A text leaf: a literal, the value itself, or text with placeholders.
    pub fn from_parts(mut parts: Vec<Part>) -> Template {
        match parts.as_mut_slice() {
            [Part { path: None, text, .. }] => Template::literal(&Value::from(std::mem::take(text))),
            [Part { path: Some(path), defaults, .. }] => match (std::mem::take(path), std::mem::take(defaults)) {
                (path, defaults) if defaults.is_empty() => Template::Value { path },
                (path, defaults) => Template::ValueOr { path, defaults },
            },
            _ => Template::Text { parts },
        }
    }

    /// Calls `f` for every path in it.
    pub fn each_path(&self, f: &mut dyn FnMut(&Ref)) {
        match self {
            Template::Literal { .. } | Template::Unknown { .. } => {}
            Template::Value { path } => f(path),
            Template::ValueOr { path, defaults } => {
                f(path);
                defaults.iter().for_each(|t| t.each_path(f));
            }
            Template::Text { parts } => {
                for part in parts {
                    part.path.iter().for_each(&mut *f);
                    part.defaults.iter().for_each(|t| t.each_path(f));
                }
            }
            Template::List { items } => items.iter().for_each(|t| t.each_path(f)),
            Template::Object { entries } => {
                entries.iter().filter_map(|e| e.value.as_ref()).for_each(|t| t.each_path(f))
            }
        }
    }
}

/// Fills in a template.
pub fn render(template: &Template, scope: &dyn Scope) -> Result<Value, Failure> {
    let value = fill(template, scope)?;
    // Only placeholders can make a template grow; the size limit of definitions covers long literals.
    let is_one = matches!(template, Template::Literal { .. } | Template::Value { .. } | Template::ValueOr { .. });
    if !is_one && value.to_string().len() > EXPANDED_MAX {
        return Err(Failure::Message(format!("the filled template is longer than {EXPANDED_MAX} bytes")));
    }
    Ok(value)
}

fn fill(template: &Template, scope: &dyn Scope) -> Result<Value, Failure> {
    Ok(match template {
        Template::Literal { json } => serde_json::from_slice(json).unwrap_or(Value::Null),
        Template::Value { path } => lookup(path, &[], scope)?,
        Template::ValueOr { path, defaults } => lookup(path, defaults, scope)?,
        Template::Text { parts } => Value::String(text(parts, scope)?),
        Template::List { items } => Value::Array(all(items.iter().map(|t| fill(t, scope)))?),
        Template::Object { entries } => {
            let fill_entry = |TemplateEntry { key, value, .. }: &TemplateEntry| {
                let value = value.as_ref().map_or(Ok(Value::Null), |t| fill(t, scope))?;
                Ok((key.clone(), value))
            };
            Value::Object(all(entries.iter().map(fill_entry))?.into_iter().collect::<Map<_, _>>())
        }
        Template::Unknown { .. } => {
            return Err(Failure::Message("this template needs a newer release".into()));
        }
    })
}

/// All parts, or what keeps them from being filled in: the first error, or the payloads that are missing before it. To
/// fetch one payload at a time would fill in the template again for each.
fn all<T>(parts: impl Iterator<Item = Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let (mut filled, mut missing) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Ok(part) => filled.push(part),
            Err(Failure::Stored(numbers)) => missing.extend(numbers),
            // A missing payload comes first: the message must not depend on which payloads are in memory.
            Err(Failure::Message(_)) if !missing.is_empty() => break,
            Err(failure) => return Err(failure),
        }
    }
    if missing.is_empty() { Ok(filled) } else { Err(Failure::Stored(missing)) }
}

/// Fills in a plain text, such as a log message.
pub fn render_text(parts: &[Part], scope: &dyn Scope) -> Result<String, Failure> {
    limited(text(parts, scope)?)
}

/// Fills in a header value. CR, LF and NUL would start another header, so they are refused.
pub fn render_header(name: &str, parts: &[Part], scope: &dyn Scope) -> Result<String, Failure> {
    let value = limited(text(parts, scope)?)?;
    if value.contains(['\r', '\n', '\0']) {
        return Err(Failure::Message(format!("the value of header `{name}` contains a line break or NUL")));
    }
    Ok(value)
}

/// Fills in a URL. A value fills one path segment or one query value: every character with a meaning in URLs is
/// percent-encoded, and the value may not turn its segment into `.` or `..`.
pub fn render_url(parts: &[Part], scope: &dyn Scope) -> Result<String, Failure> {
    let mut url = String::new();
    let mut filled = Vec::new();
    for part in parts {
        match &part.path {
            None => url.push_str(&part.text),
            Some(path) => {
                let value = printed(lookup(path, &part.defaults, scope)?);
                if part.raw {
                    url.push_str(&value);
                } else {
                    let start = url.len();
                    percent_encode(&value, &mut url);
                    filled.push((start, url.len(), path));
                }
            }
        }
    }
    let path_end = url.find(['?', '#']).unwrap_or(url.len());
    for (start, end, path) in filled {
        let from = url[..start].rfind('/').map_or(0, |i| i + 1);
        let to = url[end..path_end.max(end)].find('/').map_or(path_end.max(end), |i| end + i);
        if start <= path_end && matches!(url[from..to].to_lowercase().replace("%2e", ".").as_str(), "." | "..") {
            let message = format!("{{{{{}}}}} would make the path segment `{}`", path.text, &url[from..to]);
            return Err(Failure::Message(message));
        }
    }
    limited(url)
}

/// Fills in an object and encodes it as `name=value&…`, for a query or a form. A list repeats its name, null omits
/// it, and an object is refused. `what` is the name of the field, for the message.
pub fn render_pairs(what: &str, template: &Template, scope: &dyn Scope) -> Result<String, Failure> {
    let mut out = String::new();
    let Value::Object(fields) = render(template, scope)? else {
        return Err(Failure::Message(format!("`{what}` is not an object")));
    };
    for (name, value) in fields {
        let values = match value {
            Value::Array(items) => items,
            one => vec![one],
        };
        for value in values {
            match value {
                Value::Null => continue,
                Value::Array(_) | Value::Object(_) => {
                    let message =
                        format!("`{what}.{name}` holds more than a text, a number, true, false or a list of these");
                    return Err(Failure::Message(message));
                }
                plain => {
                    if !out.is_empty() {
                        out.push('&');
                    }
                    percent_encode(&name, &mut out);
                    out.push('=');
                    percent_encode(&printed(plain), &mut out);
                }
            }
        }
    }
    Ok(out)
}

/// Appends a query to a url that may already have one, before its fragment.
pub fn add_query(mut url: String, query: &str) -> Result<String, Failure> {
    if query.is_empty() {
        return Ok(url);
    }
    let end = url.find('#').unwrap_or(url.len());
    let glue = match url[..end].find('?') {
        None => "?",
        Some(at) if at + 1 == end || url[..end].ends_with('&') => "",
        Some(_) => "&",
    };
    url.insert_str(end, &format!("{glue}{query}"));
    limited(url)
}

fn limited(text: String) -> Result<String, Failure> {
    if text.len() > EXPANDED_MAX {
        return Err(Failure::Message(format!("the filled template is longer than {EXPANDED_MAX} bytes")));
    }
    Ok(text)
}

fn text(parts: &[Part], scope: &dyn Scope) -> Result<String, Failure> {
    let filled = parts.iter().map(|part| match &part.path {
        None => Ok(Cow::Borrowed(part.text.as_str())),
        Some(path) => Ok(Cow::Owned(printed(lookup(path, &part.defaults, scope)?))),
    });
    Ok(all(filled)?.concat())
}

/// Prints a value inside text: a string without quotes, everything else as JSON.
fn printed(value: Value) -> String {
    match value {
        Value::String(s) => s,
        other => other.to_string(),
    }
}

/// The value of a placeholder.
fn lookup(path: &Ref, defaults: &[Template], scope: &dyn Scope) -> Result<Value, Failure> {
    let mut found = find(path, scope)?;
    for default in defaults {
        if found.as_ref().is_some_and(|value| !value.is_null()) {
            break;
        }
        found = match default {
            Template::Value { path } => find(path, scope)?,
            literal => Some(fill(literal, scope)?),
        };
    }
    found.ok_or_else(|| {
        let mut text = path.text.clone();
        defaults.iter().for_each(|t| t.each_path(&mut |path| text.extend([" ?? ", &path.text])));
        Failure::Message(format!("Failed to resolve {{{{{text}}}}}"))
    })
}

fn find(path: &Ref, scope: &dyn Scope) -> Result<Option<Value>, Failure> {
    match scope.get(path) {
        Ok(Some(value)) if planted_bugs::is(Bug::TemplateTwice) => fill_again(value.into_owned(), scope).map(Some),
        Ok(found) => Ok(found.map(Cow::into_owned)),
        Err(Unresolved::Stored(number)) => Err(Failure::Stored(vec![number])),
        Err(Unresolved::Truncated { step, keys }) => Err(Failure::Message(format!(
            "Cannot read '{keys}' because the response from '{step}' exceeded the 256KB limit and was truncated"
        ))),
    }
}

/// The planted bug [`Bug::TemplateTwice`]: reads a value as a template.
fn fill_again(value: Value, scope: &dyn Scope) -> Result<Value, Failure> {
    let mut trigger = |raw: &path::RawPath<'_>| {
        let keys = raw.segments.iter().skip(2).map(|s| s.name.clone()).collect();
        Ok(Ref { root: path::Root::TriggerBody, keys, text: raw.text.to_owned(), ..Default::default() })
    };
    match value.as_str().and_then(|inner| parse_text(inner, &mut trigger).ok()) {
        Some(parts) if parts.iter().any(|p| p.path.is_some()) => Ok(Value::String(text(&parts, scope)?)),
        _ => Ok(value),
    }
}

fn percent_encode(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.extend(['%', HEX[usize::from(byte >> 4)] as char, HEX[usize::from(byte & 15)] as char]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::tests::{fixture, resolve};
    use crate::wire::Message;
    use serde_json::json;

    fn parsed(text: &str) -> Result<Vec<Part>, Vec<Problem>> {
        parse_text(text, &mut resolve)
    }

    fn rendered(text: &str) -> Result<Value, Failure> {
        let template = Template::from_parts(parsed(text).expect(text));
        assert_eq!(Template::decode(&template.encode()), Ok(template.clone()), "stored form of {text}");
        render(&template, &fixture())
    }

    #[test]
    fn a3_values_keep_their_type_and_text_is_printed() {
        for (text, expected) in [
            ("{{trigger.body.id}}", json!(5)),
            ("id-{{trigger.body.id}}", json!("id-5")),
            ("{{ trigger.body.t }}", json!("x")),
            ("{{trigger.body.o.k}}", json!([1, 2])),
            ("o={{trigger.body.o.k}}", json!("o=[1,2]")),
            ("{{trigger.body.o.k.1}}", json!(2)),
            ("{{trigger.body.o.k[1]}}", json!(2)),
            ("{{trigger.headers.x-a}}", json!("b")),
            ("{{trigger.headers.X-A}}", json!("b")),
            ("{{tasks.a.body.z}}", json!(null)),
            ("{{tasks.a.status}}", json!("success")),
            ("{{wait.a.url}}", json!("http://h/wh/a")),
            ("plain", json!("plain")),
            ("", json!("")),
            ("a } }} b", json!("a } }} b")),
            ("{{trigger.body.id}}{{trigger.body.t}}", json!("5x")),
        ] {
            assert_eq!(rendered(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn r40_r41_a3_a_placeholder_that_cannot_be_filled_is_named() {
        for (text, message) in [
            ("{{trigger.body.missing}}", "Failed to resolve {{trigger.body.missing}}"),
            ("{{tasks.sk.body.x}}", "Failed to resolve {{tasks.sk.body.x}}"),
            ("{{trigger.body.one}} {{trigger.body.two}}", "Failed to resolve {{trigger.body.one}}"),
            ("{{tasks.a.body.s.deeper}}", "Failed to resolve {{tasks.a.body.s.deeper}}"),
            (
                "{{tasks.big.body.amount}}",
                "Cannot read 'body.amount' because the response from 'big' exceeded the 256KB limit and was truncated",
            ),
        ] {
            assert_eq!(rendered(text), Err(Failure::Message(message.into())), "{text}");
        }
    }

    #[test]
    fn a3_a_default_takes_the_place_of_a_missing_or_null_value() {
        for (text, expected) in [
            ("{{trigger.body.missing ?? 'ops@example.com'}}", json!("ops@example.com")),
            ("{{trigger.body.t ?? 'ops@example.com'}}", json!("x")),
            ("{{tasks.a.body.z ?? 7}}", json!(7)),
            ("{{trigger.body.missing ?? -1.5e0}}", json!(-1.5)),
            ("{{trigger.body.missing ?? true}}", json!(true)),
            ("{{trigger.body.missing ?? null}}", json!(null)),
            ("{{tasks.sk.body.x??trigger.body.missing??trigger.body.o.k}}", json!([1, 2])),
            ("{{trigger.body.missing ?? tasks.a.body.z}}", json!(null)),
            ("{{trigger.body.missing ?? null ?? \"it's\"}}", json!("it's")),
            ("{{trigger.body.missing ?? '}}'}}", json!("}}")),
            ("to {{ trigger.body.missing ?? 'a' }}, {{trigger.body.t ?? 'b'}}", json!("to a, x")),
            ("n={{trigger.body.missing ?? 10}}", json!("n=10")),
            ("{{trigger.body.missing ?? '{{trigger.body.id}}'}}", json!("{{trigger.body.id}}")),
        ] {
            assert_eq!(rendered(text), Ok(expected), "{text}");
        }
        let missing = "{{trigger.body.one ?? tasks.sk.body.x}}";
        assert_eq!(rendered(missing), Err(Failure::Message(format!("Failed to resolve {missing}"))));
        let cut = rendered("{{tasks.big.body.amount ?? 1}}");
        assert!(matches!(cut, Err(Failure::Message(m)) if m.contains("was truncated")), "unknown is not missing");
        let url = render_url(&parsed("https://h/{{trigger.body.missing ?? 'a/b'}}").unwrap(), &fixture());
        assert_eq!(url, Ok("https://h/a%2Fb".into()));
        let mut paths = Vec::new();
        let template = Template::from_parts(parsed("{{trigger.body.a ?? tasks.a.body.b ?? 1}}").unwrap());
        template.each_path(&mut |path| paths.push(path.text.clone()));
        assert_eq!(paths, ["trigger.body.a", "tasks.a.body.b"]);
    }

    #[test]
    fn a3_a_bad_default_is_refused_at_its_place() {
        for (text, code, at) in [
            ("{{trigger.body.a ?? }}", "template_syntax", 20),
            ("{{trigger.body.a ?? (1)}}", "template_syntax", 20),
            ("{{trigger.body.a ?? 'x}}", "template_syntax", 20),
            ("{{trigger.body.a ?? 1.2.3}}", "template_syntax", 20),
            ("{{trigger.body.a ?? 9007199254740993}}", "number_too_large", 20),
            ("{{trigger.body.a ?? tasks.nope.body}}", "unknown_step", 26),
            ("{{trigger.body.a ?? 1 + 2}}", "template_syntax", 22),
            ("{{trigger.body.a ? 1}}", "template_syntax", 17),
            ("{{'x' ?? trigger.body.a}}", "template_syntax", 2),
            ("{{?? 1}}", "template_syntax", 2),
        ] {
            let problems = parsed(text).expect_err(text);
            assert_eq!(problems.iter().map(|p| (p.code, p.at)).collect::<Vec<_>>(), [(code, at)], "{text}");
        }
        let all = parsed("{{tasks.nope.body ?? tasks.none.body}} {{trigger.body.a ?? }}").unwrap_err();
        assert_eq!(all.len(), 3, "all problems at once");
    }

    #[test]
    fn a3_broken_templates_are_refused() {
        for text in [
            "{{unknown.x}}",
            "{{}}",
            "{{  }}",
            "{{trigger.body.id",
            "{{trigger.body.id + 1}}",
            "{{trigger..x}}",
            "{{a}} {{",
            "{{'x'}}",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
        assert_eq!(parsed("{{nope.a}} and {{nope.b}}").unwrap_err().len(), 2, "all problems at once");
        assert!(parsed(&format!("{{{{trigger.body.id}}}}{}", "x".repeat(LEN_MAX))).is_err());
    }

    #[test]
    fn t7_t8_data_is_never_read_as_a_template() {
        assert_eq!(rendered("{{trigger.body.inject}}"), Ok(json!("{{trigger.body.id}}")));
        assert_eq!(rendered("a{{trigger.body.inject}}"), Ok(json!("a{{trigger.body.id}}")));
        assert_eq!(rendered("{{trigger.body.quote}}"), Ok(json!("\"},{\"")));
    }

    #[test]
    fn t9_a_header_cannot_be_broken_out_of() {
        let header = |text: &str| render_header("X", &parsed(text).unwrap(), &fixture());
        assert_eq!(header("t {{trigger.body.t}}"), Ok("t x".into()));
        assert!(matches!(header("{{trigger.body.crlf}}"), Err(Failure::Message(m)) if m.contains("`X`")));
    }

    #[test]
    fn t10_a_value_in_a_url_stays_one_component() {
        let url = |text: &str| render_url(&parsed(text).unwrap(), &fixture());
        assert_eq!(url("https://h/{{trigger.body.slash}}/y"), Ok("https://h/a%2Fb%3Fc/y".into()));
        assert_eq!(url("https://h/?q={{trigger.body.slash}}&r=1"), Ok("https://h/?q=a%2Fb%3Fc&r=1".into()));
        assert_eq!(url("https://h/?q={{trigger.body.dots}}"), Ok("https://h/?q=..".into()));
        assert_eq!(url("https://h/v{{trigger.body.dots}}/x"), Ok("https://h/v../x".into()));
        for text in [
            "https://h/{{trigger.body.dots}}/x",
            "https://h/{{trigger.body.dots}}",
            "https://h/{{trigger.body.dots}}?x=1",
        ] {
            assert!(url(text).is_err(), "{text}");
        }
        assert_eq!(url("https://h/{{trigger.body.crlf}}"), Ok("https://h/a%0D%0Ab".into()));
    }

    #[test]
    fn t10_values_of_a_query_or_a_form_stay_values() {
        let pairs = |fields: &[(&str, &str)]| {
            let entry = |(key, text): &(&str, &str)| {
                let value = Some(Template::from_parts(parsed(text).unwrap()));
                TemplateEntry { key: (*key).to_owned(), value, ..Default::default() }
            };
            render_pairs("query", &Template::Object { entries: fields.iter().map(entry).collect() }, &fixture())
        };
        for (fields, expected) in [
            (vec![("q", "{{trigger.body.slash}}"), ("a b&", "c=d é")], "q=a%2Fb%3Fc&a%20b%26=c%3Dd%20%C3%A9"),
            (vec![("ids", "{{trigger.body.o.k}}")], "ids=1&ids=2"),
            (vec![("z", "{{tasks.a.body.z}}"), ("id", "{{trigger.body.id}}")], "id=5"),
            (vec![("crlf", "{{trigger.body.crlf}}")], "crlf=a%0D%0Ab"),
            (vec![], ""),
        ] {
            assert_eq!(pairs(&fields), Ok(expected.to_owned()), "{fields:?}");
        }
        let message = "`query.o` holds more than a text, a number, true, false or a list of these";
        assert_eq!(pairs(&[("o", "{{trigger.body.o}}")]), Err(Failure::Message(message.into())));
        assert!(pairs(&[("o", "{{trigger.body.missing}}")]).is_err());
    }

    #[test]
    fn a_query_is_appended_to_an_existing_one() {
        for (url, expected) in [
            ("https://h", "https://h?a=1"),
            ("https://h/x", "https://h/x?a=1"),
            ("https://h/x?b=2", "https://h/x?b=2&a=1"),
            ("https://h/x?", "https://h/x?a=1"),
            ("https://h/x?b=2&", "https://h/x?b=2&a=1"),
            ("https://h/x#part?", "https://h/x?a=1#part?"),
            ("https://h/x?b=2#part", "https://h/x?b=2&a=1#part"),
        ] {
            assert_eq!(add_query(url.into(), "a=1"), Ok(expected.into()));
            assert_eq!(add_query(url.into(), ""), Ok(url.into()));
        }
        assert!(add_query("https://h".into(), &"a".repeat(EXPANDED_MAX)).is_err());
    }

    #[test]
    fn a_filled_template_has_a_limit() {
        let parts = parsed("{{trigger.body.long}}x").unwrap();
        let many = Template::List { items: vec![Template::Text { parts }; 200] };
        assert!(matches!(render(&many, &fixture()), Err(Failure::Message(m)) if m.contains("longer than")));
    }
}
