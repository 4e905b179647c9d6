//! Reads a JSON Schema, and refuses what cannot be honoured: unknown keywords, other dialects, references to other
//! documents, patterns that need backtracking.
//!
//! The meta-schema of JSON Schema says which values keywords take. What it cannot say is checked here.

use super::{Count, InputSchema, message};
use crate::codes;
use crate::diagnostic::{Draft, Problems, grouped, one_of, quoted};
use crate::fields;
use crate::tree::{Entry, TreeNode, Value};
use jsonschema::{Draft as Dialect, PatternOptions, ValidationOptions};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::ops::Range;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
const BYTES_MAX: usize = 64 * 1024;
const SUBSCHEMAS_MAX: usize = 1_000;
const PATTERNS_MAX: usize = 100;
/// The memory of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 512 * 1024;
/// Subschemas on top of each other at one value.
const IN_PLACE_MAX: usize = 32;
/// The key that counts evaluations. Users cannot write it: it is no keyword.
const COUNT: &str = "onward-count";

/// What the value of a keyword is.
#[derive(Clone, Copy, PartialEq)]
enum Keyword {
    /// Neither a schema nor a reference.
    Plain,
    Schema(Applies),
    Schemas(Applies),
    /// An object whose values are schemas.
    Named(Applies),
    Reference,
    Anchor,
}

/// To which value a subschema applies.
#[derive(Clone, Copy, PartialEq)]
enum Applies {
    /// To the same one.
    InPlace,
    /// To a part of it.
    Inside,
    /// To none by itself.
    ByReference,
}

use Applies::*;

const KEYWORDS: &[(&str, Keyword)] = &[
    ("type", Keyword::Plain),
    ("properties", Keyword::Named(Inside)),
    ("required", Keyword::Plain),
    ("items", Keyword::Schema(Inside)),
    ("enum", Keyword::Plain),
    ("const", Keyword::Plain),
    ("minimum", Keyword::Plain),
    ("maximum", Keyword::Plain),
    ("exclusiveMinimum", Keyword::Plain),
    ("exclusiveMaximum", Keyword::Plain),
    ("multipleOf", Keyword::Plain),
    ("minLength", Keyword::Plain),
    ("maxLength", Keyword::Plain),
    ("pattern", Keyword::Plain),
    ("format", Keyword::Plain),
    ("minItems", Keyword::Plain),
    ("maxItems", Keyword::Plain),
    ("uniqueItems", Keyword::Plain),
    ("prefixItems", Keyword::Schemas(Inside)),
    ("contains", Keyword::Schema(Inside)),
    ("minContains", Keyword::Plain),
    ("maxContains", Keyword::Plain),
    ("unevaluatedItems", Keyword::Schema(Inside)),
    ("additionalProperties", Keyword::Schema(Inside)),
    ("patternProperties", Keyword::Named(Inside)),
    ("propertyNames", Keyword::Schema(Inside)),
    ("unevaluatedProperties", Keyword::Schema(Inside)),
    ("minProperties", Keyword::Plain),
    ("maxProperties", Keyword::Plain),
    ("dependentRequired", Keyword::Plain),
    ("dependentSchemas", Keyword::Named(InPlace)),
    ("allOf", Keyword::Schemas(InPlace)),
    ("anyOf", Keyword::Schemas(InPlace)),
    ("oneOf", Keyword::Schemas(InPlace)),
    ("not", Keyword::Schema(InPlace)),
    ("if", Keyword::Schema(InPlace)),
    ("then", Keyword::Schema(InPlace)),
    ("else", Keyword::Schema(InPlace)),
    ("$ref", Keyword::Reference),
    ("$dynamicRef", Keyword::Reference),
    ("$defs", Keyword::Named(ByReference)),
    ("definitions", Keyword::Named(ByReference)),
    ("$anchor", Keyword::Anchor),
    ("$dynamicAnchor", Keyword::Anchor),
    ("$schema", Keyword::Plain),
    ("$id", Keyword::Plain),
    ("$comment", Keyword::Plain),
    ("title", Keyword::Plain),
    ("description", Keyword::Plain),
    ("default", Keyword::Plain),
    ("examples", Keyword::Plain),
    ("deprecated", Keyword::Plain),
    ("readOnly", Keyword::Plain),
    ("writeOnly", Keyword::Plain),
    ("contentEncoding", Keyword::Plain),
    ("contentMediaType", Keyword::Plain),
    ("contentSchema", Keyword::Schema(ByReference)),
];

/// Keywords of other dialects, with what to write.
const ELSEWHERE: &[(&str, &str)] = &[
    ("dependencies", "write `dependentRequired` or `dependentSchemas`"),
    ("additionalItems", "write `prefixItems` for the first items and `items` for the others"),
    ("nullable", "write `type: [string, \"null\"]`"),
    ("example", "write `examples: […]`"),
    ("id", "write `$id`"),
    ("$recursiveRef", "write `$ref`"),
    ("$recursiveAnchor", "write `$anchor`"),
];

const TYPES: &[&str] = &["null", "boolean", "object", "array", "number", "integer", "string"];

/// Compiles the schema at `node`, or reports what is wrong with it.
pub(crate) fn read(node: &TreeNode, problems: &mut Problems<'_>) -> Option<InputSchema> {
    fields::object(node, "input", problems)?;
    let bytes = node.to_json().to_string().len();
    if bytes > BYTES_MAX {
        let message = format!("the `input` schema has {} bytes, the limit is {}", grouped(bytes), grouped(BYTES_MAX));
        problems.add(codes::LIMIT_EXCEEDED, &node.span, message);
        return None;
    }
    let mut reader = SchemaReader::default();
    let schema = reader.schema(node, String::new());
    reader.check_limits(node);
    reader.resolve();
    let in_place = reader.in_place(node);
    for error in jsonschema::draft202012::meta::validator().iter_errors(&schema) {
        let at = at(node, error.instance_path().as_str());
        // What was found above is said better there.
        let is_inside = |draft: &Draft| at.span.start <= draft.span.start && draft.span.end <= at.span.end;
        if !reader.found.iter().any(is_inside) {
            let what = message::of(&error, &format!("`{}`", error.instance_path()));
            reader.found.push(Draft::new(codes::INVALID_SCHEMA, at.span.clone(), what));
        }
    }
    if reader.found.is_empty() {
        match options().with_keyword(COUNT, |_, _, _| Ok(Box::new(Count))).build(&schema) {
            Ok(validator) => return Some(InputSchema { validator, in_place }),
            Err(error) => {
                problems.add(codes::INVALID_SCHEMA, &node.span, format!("`input` is not a schema: {}", error.masked()))
            }
        }
    }
    reader.found.into_iter().for_each(|draft| problems.push(draft));
    None
}

/// Nothing is fetched, and patterns are matched in linear time.
fn options<'i>() -> ValidationOptions<'i> {
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    jsonschema::options()
        .with_draft(Dialect::Draft202012)
        .with_pattern_options(patterns)
        .should_validate_formats(true)
        .offline()
}

/// The value at a JSON pointer.
fn at<'t>(root: &'t TreeNode, pointer: &str) -> &'t TreeNode {
    let mut node = root;
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        let next = match &node.value {
            Value::Object(entries) => entries.iter().find(|entry| entry.key == part).map(|entry| &entry.value),
            Value::List(items) => part.parse().ok().and_then(|index: usize| items.get(index)),
            _ => None,
        };
        match next {
            Some(next) => node = next,
            None => return node,
        }
    }
    node
}

#[derive(Default)]
struct SchemaReader<'t> {
    found: Vec<Draft>,
    /// For each subschema, those that apply to the same value.
    in_place: Vec<Vec<usize>>,
    pointers: BTreeMap<String, usize>,
    anchors: BTreeMap<&'t str, usize>,
    references: Vec<(usize, &'t TreeNode, &'t str)>,
    patterns: usize,
}

impl<'t> SchemaReader<'t> {
    fn refuse(&mut self, code: &'static str, span: &Range<usize>, message: String) -> &mut Draft {
        self.found.push(Draft::new(code, span.clone(), message));
        self.found.last_mut().expect("it was just pushed")
    }

    /// Reads a subschema: what the validator is given for it.
    fn schema(&mut self, node: &'t TreeNode, pointer: String) -> Json {
        let index = self.in_place.len();
        self.in_place.push(Vec::new());
        let is_root = pointer.is_empty();
        self.pointers.insert(pointer.clone(), index);
        let Value::Object(entries) = &node.value else { return node.to_json() };
        let mut schema = Map::new();
        for entry in entries {
            let keyword = KEYWORDS.iter().find(|(name, _)| *name == entry.key).map(|(_, keyword)| *keyword);
            let below = format!("{pointer}/{}", escaped(&entry.key));
            let value = match keyword {
                Some(keyword) => self.keyword(entry, keyword, index, below),
                None if entry.key.starts_with("x-") => continue,
                None => {
                    self.unknown(entry);
                    continue;
                }
            };
            match entry.key.as_str() {
                "$id" | "$schema" if is_root => self.identity(entry),
                "$id" => {
                    let draft = self.refuse(
                        codes::UNSUPPORTED_SCHEMA,
                        &entry.key_span,
                        "`$id` may only stand at the top of the schema".into(),
                    );
                    draft.hint = Some("write `$anchor: name`, and refer to it with `$ref: \"#name\"`".into());
                }
                _ => drop(schema.insert(entry.key.clone(), value)),
            }
        }
        schema.insert(COUNT.into(), Json::Bool(true));
        Json::Object(schema)
    }

    fn keyword(&mut self, entry: &'t Entry, keyword: Keyword, index: usize, pointer: String) -> Json {
        let node = &entry.value;
        match (keyword, &node.value) {
            (Keyword::Schema(applies), _) => self.subschema(node, applies, index, pointer),
            (Keyword::Schemas(applies), Value::List(items)) => {
                let items = items.iter().enumerate();
                items.map(|(i, item)| self.subschema(item, applies, index, format!("{pointer}/{i}"))).collect()
            }
            (Keyword::Named(applies), Value::Object(entries)) => {
                let mut named = Map::new();
                for named_entry in entries {
                    if entry.key == "patternProperties" {
                        self.pattern(&named_entry.key, &named_entry.key_span);
                    }
                    let below = format!("{pointer}/{}", escaped(&named_entry.key));
                    named.insert(named_entry.key.clone(), self.subschema(&named_entry.value, applies, index, below));
                }
                Json::Object(named)
            }
            (Keyword::Reference, Value::Text(text)) => {
                self.references.push((index, node, text));
                node.to_json()
            }
            (Keyword::Anchor, Value::Text(name)) => {
                if self.anchors.insert(name, index).is_some() {
                    self.refuse(
                        codes::INVALID_SCHEMA,
                        &node.span,
                        format!("two schemas have the anchor {}", quoted(name)),
                    );
                }
                node.to_json()
            }
            _ => {
                self.plain(entry);
                node.to_json()
            }
        }
    }

    fn subschema(&mut self, node: &'t TreeNode, applies: Applies, parent: usize, pointer: String) -> Json {
        let index = self.in_place.len();
        if applies == InPlace {
            self.in_place[parent].push(index);
        }
        self.schema(node, pointer)
    }

    fn plain(&mut self, entry: &Entry) {
        let node = &entry.value;
        match (entry.key.as_str(), &node.value) {
            ("pattern", Value::Text(text)) => self.pattern(text, &node.span),
            ("format", Value::Text(name)) if !options().is_known_format(Dialect::Draft202012, name) => {
                let message = format!("`format` is {}, and there is no such format here", quoted(name));
                self.refuse(codes::UNSUPPORTED_SCHEMA, &node.span, message).hint =
                    Some("leave it out, or describe the text with `pattern`".into());
            }
            ("type", Value::Text(_)) => self.type_name(node),
            ("type", Value::List(names)) => names.iter().for_each(|name| self.type_name(name)),
            _ => {}
        }
    }

    fn type_name(&mut self, node: &TreeNode) {
        let Value::Text(name) = &node.value else { return };
        if !TYPES.contains(&name.as_str()) {
            let message = format!("`type` is {}, allowed is {}", quoted(name), one_of(TYPES));
            let synonym =
                [("text", "string"), ("list", "array"), ("float", "number"), ("int", "integer"), ("bool", "boolean")];
            let meant = synonym.iter().find(|(theirs, _)| theirs == name).map(|(_, ours)| format!("write `{ours}`"));
            let hint = meant.or_else(|| crate::suggest::hint(name, TYPES.iter().copied()));
            self.refuse(codes::INVALID_SCHEMA, &node.span, message).hint = hint;
        }
    }

    fn pattern(&mut self, text: &str, span: &Range<usize>) {
        self.patterns += 1;
        if self.patterns <= PATTERNS_MAX && options().build(&json!({ "pattern": text })).is_err() {
            let message = format!("{} is not a regular expression that can be matched in linear time", quoted(text));
            self.refuse(codes::UNSUPPORTED_SCHEMA, span, message).hint =
                Some("look-around and backreferences are not supported, and repetitions have to be small".into());
        }
    }

    fn identity(&mut self, entry: &Entry) {
        let Value::Text(text) = &entry.value.value else { return };
        if entry.key == "$schema" && text.trim_end_matches('#') != DIALECT {
            let message = format!("the schema is in the dialect {}", quoted(text));
            self.refuse(codes::UNSUPPORTED_SCHEMA, &entry.value.span, message).hint =
                Some(format!("leave `$schema` out, or write `{DIALECT}`"));
        }
    }

    fn unknown(&mut self, entry: &Entry) {
        let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == entry.key).map(|(_, hint)| (*hint).to_owned());
        // The first ones only: comparing many names takes long.
        let nearest = || match self.found.len() {
            0..50 => crate::suggest::hint(&entry.key, KEYWORDS.iter().map(|(name, _)| *name)),
            _ => None,
        };
        let hint = elsewhere.or_else(nearest);
        let hint =
            hint.unwrap_or_else(|| "fields of your own begin with `x-`; JSON Schema would ignore this one".into());
        let message = format!("JSON Schema 2020-12 has no keyword {}", quoted(&entry.key));
        self.refuse(codes::INVALID_SCHEMA, &entry.key_span, message).hint = Some(hint);
    }

    fn check_limits(&mut self, node: &TreeNode) {
        for (count, max, what) in
            [(self.in_place.len(), SUBSCHEMAS_MAX, "subschemas"), (self.patterns, PATTERNS_MAX, "patterns")]
        {
            if count > max {
                let message =
                    format!("the `input` schema has {} {what}, the limit is {}", grouped(count), grouped(max));
                self.refuse(codes::LIMIT_EXCEEDED, &node.span, message);
            }
        }
    }

    /// A reference applies its target to the same value.
    fn resolve(&mut self) {
        for (from, node, text) in std::mem::take(&mut self.references) {
            let Some(fragment) = text.strip_prefix('#') else {
                let message = format!("`$ref` names {}, and a schema can only refer to its own parts", quoted(text));
                self.refuse(codes::UNSUPPORTED_SCHEMA, &node.span, message).hint =
                    Some("copy that schema into `$defs` and write `#/$defs/name`: nothing is fetched".into());
                continue;
            };
            let target = match unescaped(fragment) {
                Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => self.pointers.get(&pointer),
                Some(name) => self.anchors.get(name.as_str()),
                None => None,
            };
            match target {
                Some(target) => {
                    let target = *target;
                    self.in_place[from].push(target);
                }
                None => {
                    let message = format!("there is no schema at {}", quoted(text));
                    let known = self.pointers.keys().filter(|pointer| pointer.starts_with("/$defs/"));
                    let nearest = crate::suggest::nearest(fragment, known.map(String::as_str));
                    let hint = nearest.map(|pointer| format!("did you mean `#{pointer}`?"));
                    self.refuse(codes::INVALID_SCHEMA, &node.span, message).hint = hint;
                }
            }
        }
    }

    /// The most subschemas on top of each other at one value; refuses those that never get to a part of it.
    fn in_place(&mut self, node: &TreeNode) -> usize {
        let mut levels = vec![InPlaceDepth::Unknown; self.in_place.len()];
        let deepest = (0..self.in_place.len()).map(|index| level(&self.in_place, &mut levels, index)).max();
        match deepest.unwrap_or(Some(0)) {
            // `None` is the smallest, so one cycle could hide behind a sound part.
            _ if levels.iter().any(|level| matches!(level, InPlaceDepth::Cycle)) => {
                let message = "the schema refers to itself for the same value, so a check would never end".to_owned();
                self.refuse(codes::INVALID_SCHEMA, &node.span, message).hint =
                    Some("put the reference below `properties` or `items`".into());
                0
            }
            Some(deepest) if deepest > IN_PLACE_MAX => {
                let message = format!("{deepest} subschemas apply on top of each other, the limit is {IN_PLACE_MAX}");
                self.refuse(codes::LIMIT_EXCEEDED, &node.span, message);
                0
            }
            deepest => deepest.unwrap_or(0),
        }
    }
}

#[derive(Clone, Copy)]
enum InPlaceDepth {
    Unknown,
    Open,
    Cycle,
    Known(usize),
}

/// How many subschemas lie on top of each other from this one on; `None` if one of them leads back.
fn level(in_place: &[Vec<usize>], levels: &mut [InPlaceDepth], index: usize) -> Option<usize> {
    match levels[index] {
        InPlaceDepth::Known(known) => return Some(known),
        InPlaceDepth::Cycle => return None,
        InPlaceDepth::Open => {
            levels[index] = InPlaceDepth::Cycle;
            return None;
        }
        InPlaceDepth::Unknown => levels[index] = InPlaceDepth::Open,
    }
    let mut deepest = 0;
    let mut is_cycle = false;
    for below in &in_place[index] {
        match level(in_place, levels, *below) {
            Some(level) => deepest = deepest.max(level),
            None => is_cycle = true,
        }
    }
    levels[index] = if is_cycle { InPlaceDepth::Cycle } else { InPlaceDepth::Known(deepest + 1) };
    if is_cycle { None } else { Some(deepest + 1) }
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The fragment of a reference without percent-encoding.
fn unescaped(fragment: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}
