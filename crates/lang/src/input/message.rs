//! What is wrong with a value, for people.

use super::InputProblem;
use crate::diagnostic::{one_of, printable, quoted};
use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use serde_json::Value as Json;

/// Values that a message lists.
const LISTED_MAX: usize = 10;

pub fn problem(error: &ValidationError<'_>) -> InputProblem {
    let pointer = error.instance_path().as_str().to_owned();
    InputProblem { message: of(error, &name(&pointer)), hint: nearest(error), pointer }
}

fn name(pointer: &str) -> String {
    if pointer.is_empty() { "the body".into() } else { quoted(pointer) }
}

/// The message of an error, about the value that is called `name`.
pub fn of(error: &ValidationError<'_>, name: &str) -> String {
    let value: &Json = error.instance();
    let count = |what: &str| {
        let count = match value {
            Json::Array(items) => items.len(),
            Json::Object(fields) => fields.len(),
            Json::String(text) => text.chars().count(),
            _ => 0,
        };
        format!("{count} {what}{}", if count == 1 { "" } else { "s" })
    };
    let shown = shown(value);
    match error.kind() {
        Kind::Type { kind } => {
            let expected = match kind {
                TypeKind::Single(kind) => word(kind.as_str()).to_owned(),
                TypeKind::Multiple(kinds) => {
                    let words: Vec<&str> = kinds.iter().map(|kind| word(kind.as_str())).collect();
                    words.join(" or ")
                }
            };
            format!("{name} must be {expected}, found {}", kind_of(value))
        }
        Kind::Required { property } => format!("{name} needs a field {}", quoted_text(property)),
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            format!("{name} must not have {}", fields(unexpected))
        }
        Kind::AdditionalItems { limit } => format!("{name} has {}, the most is {limit}", count("item")),
        Kind::UnevaluatedItems { .. } => format!("{name} has items that the schema does not describe"),
        Kind::Enum { options } => format!("{name} is {shown}, allowed is {}", list(options)),
        Kind::Constant { expected_value } => {
            format!("{name} is {shown}, allowed is only {}", self::shown(expected_value))
        }
        Kind::Minimum { limit } => format!("{name} is {shown}, the least is {limit}"),
        Kind::Maximum { limit } => format!("{name} is {shown}, the most is {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("{name} is {shown}, and must be more than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("{name} is {shown}, and must be less than {limit}"),
        Kind::MultipleOf { multiple_of } => format!("{name} is {shown}, which is not a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("{name} has {}, the least is {limit}", count("character")),
        Kind::MaxLength { limit } => format!("{name} has {}, the most is {limit}", count("character")),
        Kind::MinItems { limit } => format!("{name} has {}, the least is {limit}", count("item")),
        Kind::MaxItems { limit } => format!("{name} has {}, the most is {limit}", count("item")),
        Kind::MinProperties { limit } => format!("{name} has {}, the least is {limit}", count("field")),
        Kind::MaxProperties { limit } => format!("{name} has {}, the most is {limit}", count("field")),
        Kind::UniqueItems => format!("{name} has an item twice"),
        Kind::Contains => format!("{name} has not as many items that fit `contains` as it must"),
        Kind::Pattern { pattern } => format!("{name} is {shown}, which does not match {}", quoted(pattern)),
        Kind::Format { format } => format!("{name} is {shown}, which does not have the format {}", quoted(format)),
        Kind::PropertyNames { error } => {
            format!("{name} has a field whose name does not fit: {}", of(error, &quoted_text(error.instance())))
        }
        Kind::AnyOf { .. } => format!("{name} fits none of the alternatives of `anyOf`"),
        Kind::OneOfNotValid { .. } => format!("{name} fits none of the alternatives of `oneOf`"),
        Kind::OneOfMultipleValid { .. } => format!("{name} fits several alternatives of `oneOf`, and must fit one"),
        Kind::Not { .. } => format!("{name} fits what `not` excludes"),
        Kind::FalseSchema => format!("{name} must not be there"),
        _ => format!("{name}: {}", error.masked()),
    }
}

/// Of several alternatives, the one that the value misses least is probably meant.
fn nearest(error: &ValidationError<'_>) -> Option<String> {
    let (Kind::AnyOf { context } | Kind::OneOfNotValid { context }) = error.kind() else { return None };
    let (index, errors) = context.iter().enumerate().min_by_key(|(_, errors)| errors.len())?;
    let error = errors.first()?;
    Some(format!("of alternative {}: {}", index + 1, of(error, &name(error.instance_path().as_str()))))
}

/// The type of JSON Schema as this documentation calls it.
fn word(kind: &str) -> &'static str {
    match kind {
        "null" => "null",
        "boolean" => "a boolean",
        "object" => "an object",
        "array" => "a list",
        "number" => "a number",
        "integer" => "a whole number",
        _ => "a text",
    }
}

fn kind_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// A value in a message: a short one as it is, another by its type.
fn shown(value: &Json) -> String {
    match value {
        Json::String(text) => quoted(text),
        Json::Array(_) | Json::Object(_) => kind_of(value).to_owned(),
        plain => plain.to_string(),
    }
}

fn quoted_text(value: &Json) -> String {
    match value {
        Json::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

fn list(options: &Json) -> String {
    let Json::Array(options) = options else { return shown(options) };
    let mut listed: Vec<String> = options.iter().take(LISTED_MAX).map(shown).collect();
    if options.len() > LISTED_MAX {
        listed.push(format!("{} more", options.len() - LISTED_MAX));
    }
    match listed.as_slice() {
        [head @ .., last] if !head.is_empty() => format!("{} or {last}", head.join(", ")),
        _ => listed.concat(),
    }
}

fn fields(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED_MAX).map(|name| printable(name)).collect();
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    match names.len() {
        1 => format!("a field {}", one_of(&shown)),
        count if count > LISTED_MAX => format!("the fields {} and {} others", one_of(&shown), count - LISTED_MAX),
        _ => format!("the fields {}", one_of(&shown)),
    }
}
