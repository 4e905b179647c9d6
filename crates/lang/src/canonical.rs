//! Canonical JSON, and the content hash that identifies a version.
//!
//! As in RFC 8785, keys are sorted by their UTF-16 code units, there are no spaces, and numbers have the shortest
//! form that parses to the same number. So the order of keys, white space and the choice of JSON or YAML do not
//! change the hash; everything else does.

use crate::list;
use crate::tree::{Entry, TreeNode, Value};
use sha2::{Digest, Sha256};

/// Descriptive fields: they do not change what a version does.
const NOT_HASHED: &[&str] = &["name", "slug", "description", "tags", "enabled", "version"];

/// SHA-256 of the canonical JSON of a definition, without its descriptive fields and without the secret of its
/// webhook: hashes are public, and a new secret does not make a new version.
pub(crate) fn hash(root: &TreeNode) -> [u8; 32] {
    let mut out = String::new();
    match &root.value {
        Value::Object(entries) => {
            let hashed = entries.iter().filter(|e| !NOT_HASHED.contains(&&*e.key));
            write_object(&mut out, hashed, |entry, out| match &entry.value.value {
                Value::Object(webhook) if entry.key == "webhook" => {
                    let public = webhook.iter().filter(|e| !crate::trigger::is_secret(&e.key));
                    write_object(out, public, |entry, out| write(&entry.value, out));
                }
                Value::List(_) if entry.key == "steps" => write_steps(&entry.value, "step", out),
                _ => write(&entry.value, out),
            });
        }
        _ => write(root, &mut out),
    }
    Sha256::digest(out.as_bytes()).into()
}

/// The steps of a step list, each with its id: where it is, if the author gave it none (A6).
fn write_steps(list: &TreeNode, path: &str, out: &mut String) {
    let Value::List(items) = &list.value else { return write(list, out) };
    out.push('[');
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        let path = list::path_id(path, place);
        let Value::Object(entries) = &item.value else {
            write(item, out);
            continue;
        };
        let span = item.span.clone();
        let id = TreeNode { span: span.clone(), value: Value::Text(path.clone()) };
        let id = Entry { key: "id".to_owned(), key_span: span, value: id };
        let id = list::id_of(item).is_none().then_some(&id);
        let is_given = |entry: &&Entry| id.is_none() || entry.key != "id";
        write_object(out, entries.iter().filter(is_given).chain(id), |entry, out| {
            match list::BRANCHES.contains(&entry.key.as_str()) {
                true => write_steps(&entry.value, &format!("{path}.{}", entry.key), out),
                false => write(&entry.value, out),
            }
        });
    }
    out.push(']');
}

/// The hash that [`compile`](crate::compile) would return for a document, whether or not this release accepts the
/// document.
pub fn content_hash(tree: &crate::Tree) -> [u8; 32] {
    hash(tree.root())
}

/// The canonical JSON of a whole document.
pub fn canonical_json(tree: &crate::Tree) -> String {
    let mut out = String::new();
    write(tree.root(), &mut out);
    out
}

fn write(node: &TreeNode, out: &mut String) {
    match &node.value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(n) => out.push_str(&n.to_string()),
        Value::Real(n) => out.push_str(&number(*n)),
        Value::Text(text) => write_text(text, out),
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(entries) => write_object(out, entries.iter(), |entry, out| write(&entry.value, out)),
    }
}

fn write_object<'t>(
    out: &mut String,
    entries: impl Iterator<Item = &'t Entry>,
    write_value: impl Fn(&Entry, &mut String),
) {
    let mut entries: Vec<&Entry> = entries.collect();
    entries.sort_by(|a, b| a.key.encode_utf16().cmp(b.key.encode_utf16()));
    out.push('{');
    for (i, entry) in entries.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(&entry.key, out);
        out.push(':');
        write_value(entry, out);
    }
    out.push('}');
}

fn write_text(text: &str, out: &mut String) {
    // serde_json escapes exactly as RFC 8785 requires: `"`, `\` and control characters, with a short escape where
    // one exists and lower-case hex otherwise.
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// A number as ECMAScript prints it: the shortest digits, without an exponent between 1e-6 and 1e21.
fn number(n: f64) -> String {
    let scientific = format!("{:e}", n.abs());
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits = digits.replace('.', "");
    let sign = if n < 0.0 { "-" } else { "" };
    let point = exponent + 1;
    let count = digits.len() as i32;
    let body = match point {
        _ if n == 0.0 => "0".to_owned(),
        -5..=0 => format!("0.{}{digits}", "0".repeat(-point as usize)),
        1..=21 if count <= point => format!("{digits}{}", "0".repeat((point - count) as usize)),
        1..=21 => format!("{}.{}", &digits[..point as usize], &digits[point as usize..]),
        _ => {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            format!("{first}{dot}{rest}e{}{exponent}", if exponent > 0 { "+" } else { "" })
        }
    };
    format!("{sign}{body}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Syntax, read};

    fn canonical(json: &str) -> String {
        canonical_json(&read(json.as_bytes(), Syntax::Json).unwrap())
    }

    #[test]
    fn a6_the_hash_of_a_step_list_has_the_ids_of_all_steps() {
        let hash = |json: &str| {
            let found = crate::content_hash(&read(json.as_bytes(), Syntax::Json).unwrap());
            found.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let known = "0b7ac746efed1f1f45f6a7e2ec6309d05fb41f8e5326586428fae1997bb1b5f7";
        assert_eq!(hash(r#"{"steps":[{"id":"a","type":"bash","command":"echo hi"}]}"#), known);
        assert_eq!(hash(r#"{"name":"w","steps":[{"command":"echo hi","type":"bash","id":"a"}],"version":"2"}"#), known);
        let bare = r#"{"steps":[{"type":"x"},{"type":"conditional","then":[{"type":"y"},{"type":"z","id":"b"}]}]}"#;
        let with_ids = r#"{"steps":[{"type":"x","id":"step[0]"},{"id":"step[1]","type":"conditional",
            "then":[{"id":"step[1].then[0]","type":"y"},{"type":"z","id":"b"}]}]}"#;
        assert_eq!(hash(bare), hash(with_ids));
        assert_ne!(hash(bare), hash(&bare.replace("\"b\"", "\"c\"")));
    }

    #[test]
    fn numbers_have_one_canonical_form() {
        for (n, text) in [
            (0.1, "0.1"),
            (-1.5, "-1.5"),
            (0.000001, "0.000001"),
            (0.0000001, "1e-7"),
            (1.25e-9, "1.25e-9"),
            (1e21, "1e+21"),
            (1e20, "100000000000000000000"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (123456.789, "123456.789"),
        ] {
            assert_eq!(number(n), text);
        }
        assert_eq!(canonical("[1, 1.0, 1e0, 10e-1, -0, -0.0, 1.50]"), "[1,1,1,1,0,0,1.5]");
    }

    #[test]
    fn keys_are_sorted_by_utf16_and_text_is_escaped_once() {
        assert_eq!(canonical(r#"{"b": 1, "a": {"z": 1, "y": [ ]}}"#), r#"{"a":{"y":[],"z":1},"b":1}"#);
        // U+1F600 is written with surrogates, which sort before U+FB33.
        assert_eq!(canonical("{\"\u{fb33}\":1,\"\u{1f600}\":2}"), "{\"\u{1f600}\":2,\"\u{fb33}\":1}");
        assert_eq!(canonical(r#"["\u0041\/\n\u001f\"é"]"#), r#"["A/\n\u001f\"é"]"#);
    }
}
