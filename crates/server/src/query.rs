//! Query parameters. Each route declares which ones it accepts, see [`contract`](crate::contract).

use crate::Refusal;
use api::Code;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use kernel::{Span, Timestamp};
use std::collections::BTreeSet;
use std::convert::Infallible;

pub const LIMIT_DEFAULT: usize = 50;
pub const LIMIT_MAX: usize = 500;
/// The largest number that every JSON client can represent.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;
/// The largest `actor`.
const ACTOR_MAX: usize = 1_024;

/// The parameters of a query. As an extractor it never fails.
pub struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query, Infallible> {
        Ok(Query::parse(parts.uri.query()))
    }
}

/// Refuses parameters that the route does not declare.
pub fn refuse_unknown(query: Option<&str>, known: &[&str]) -> Result<(), Refusal> {
    let query = query.unwrap_or_default();
    let given: BTreeSet<_> = url::form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name).collect();
    let Some(name) = given.iter().find(|name| !known.contains(&&*lang::field_name(name))) else {
        let twice =
            given.iter().find(|name| lang::field_name(name) != **name && given.contains(&lang::field_name(name)));
        return match twice {
            Some(name) => {
                Err(two_spellings(Code::InvalidParameter, &lang::field_name(name), name).at(name.to_string()))
            }
            None => Ok(()),
        };
    };
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let name: String = name.chars().take(80).collect();
    Err(Refusal::new(Code::UnknownParameter, format!("`{name}` is not a parameter of this route"))
        .hint(format!("known parameters: {known}"))
        .at(name))
}

pub fn two_spellings(code: Code, one: &str, other: &str) -> Refusal {
    Refusal::new(code, format!("`{one}` and `{other}` are the same field")).hint("keep one of them")
}

impl Query {
    pub fn parse(query: Option<&str>) -> Query {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Query(pairs.map(|(k, v)| (lang::field_name(&k).into_owned(), v.into_owned())).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Parses a parameter with `read`, or refuses it with what was expected.
    pub fn read<T>(&self, name: &str, expected: &str, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        read(text).map(Some).ok_or_else(|| invalid(name, text, expected))
    }

    /// The person or program that starts a run; empty if the request does not say.
    pub fn actor(&self) -> Result<String, Refusal> {
        let actor = self.read("actor", &format!("at most {ACTOR_MAX} bytes"), |text| {
            (text.len() <= ACTOR_MAX).then(|| text.to_owned())
        })?;
        Ok(actor.unwrap_or_default())
    }

    /// The number of an event, a delivery or a version.
    pub fn number(&self, name: &str, expected: &str) -> Result<Option<u64>, Refusal> {
        self.read(name, expected, |text| text.parse().ok().filter(|number| *number <= NUMBER_MAX))
    }

    pub fn limit(&self) -> Result<usize, Refusal> {
        let expected = format!("a number from 1 to {LIMIT_MAX}");
        let read = |text: &str| text.parse().ok().filter(|n| (1..=LIMIT_MAX).contains(n));
        Ok(self.read("limit", &expected, read)?.unwrap_or(LIMIT_DEFAULT))
    }

    pub fn time(&self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        self.read(name, "a time such as 2026-11-15T09:00:00Z", api::parse_rfc3339)
    }

    /// A time in the past, for filters: see [`parse_past`].
    pub fn past(&self, name: &str, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
        self.read(name, PAST, |text| parse_past(text, now))
    }

    pub fn span(&self, name: &str, max: Span) -> Result<Option<Span>, Refusal> {
        let expected = format!("a duration such as 500ms or 30s, at most {max}");
        self.read(name, &expected, |text| Span::parse(text).filter(|span| *span <= max))
    }

    /// Every `label=key:value`.
    pub fn labels(&self) -> Result<Vec<(String, String)>, Refusal> {
        self.all("label").map(|text| parse_label(text).ok_or_else(|| invalid("label", text, LABEL))).collect()
    }
}

pub const PAST: &str = "a time such as 2026-11-15T09:00:00Z, or how long ago, such as 1h";

/// An instant, or a duration before `now`.
pub fn parse_past(text: &str, now: Timestamp) -> Option<Timestamp> {
    let ago = |span: Span| Timestamp(now.0.saturating_sub_unsigned(span.0));
    api::parse_rfc3339(text).or_else(|| Span::parse(text).map(ago))
}

pub const LABEL: &str =
    "`key:value` with a key of 1 to 64 letters, digits, `.`, `_` or `-` and a value of at most 256 characters";

fn parse_label(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once(':')?;
    is_label(key, value).then(|| (key.to_owned(), value.to_owned()))
}

pub fn is_label(key: &str, value: &str) -> bool {
    let key_ok = (1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let value_ok = value.chars().count() <= 256 && !value.chars().any(char::is_control);
    key_ok && value_ok
}

pub fn invalid(name: &str, text: &str, expected: &str) -> Refusal {
    let text: String = text.chars().take(80).collect();
    Refusal::new(Code::InvalidParameter, format!("`{text}` is not a valid value for `{name}`"))
        .hint(format!("expected {expected}"))
        .at(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_16_a_parameter_may_be_spelt_in_camel_case() {
        let known = &["expected_hash", "workflow"];
        assert!(refuse_unknown(Some("expectedHash=x&workflowId=w"), known).is_ok());
        let query = Query::parse(Some("expectedHash=x&workflowId=w"));
        assert_eq!((query.get("expected_hash"), query.get("workflow")), (Some("x"), Some("w")));
        assert!(refuse_unknown(Some("expectedHash=x&expected_hash=x"), known).is_err());
    }

    #[test]
    fn unknown_parameters_and_bad_values_are_refused() {
        assert!(refuse_unknown(Some("limt=5"), &["limit"]).is_err());
        assert!(refuse_unknown(Some("limit=5&limit=6"), &["limit"]).is_ok());
        for bad in ["0", "501", "x", "-1", ""] {
            assert!(Query::parse(Some(&format!("limit={bad}"))).limit().is_err(), "{bad}");
        }
        assert_eq!(Query::parse(None).limit().unwrap(), LIMIT_DEFAULT);
    }

    #[test]
    fn a_filter_takes_an_instant_or_how_long_ago() {
        let now = api::parse_rfc3339("2026-11-15T09:00:00Z").unwrap();
        let past = |text: &str| parse_past(text, now).map(api::rfc3339);
        assert_eq!(past("1h").as_deref(), Some("2026-11-15T08:00:00Z"));
        assert_eq!(past("2026-11-15T10:00:00+02:00").as_deref(), Some("2026-11-15T08:00:00Z"));
        for bad in ["yesterday", "-1h", "1w", ""] {
            assert_eq!(past(bad), None, "{bad}");
        }
        assert!(past("99999999999d").is_none_or(|at| at.starts_with('-')), "far beyond the first instant");
    }

    #[test]
    fn labels_are_key_and_value() {
        let query = Query::parse(Some("label=a:b&label=team.x:is%3Afine"));
        assert_eq!(
            query.labels().unwrap(),
            [("a".to_owned(), "b".to_owned()), ("team.x".to_owned(), "is:fine".to_owned())]
        );
        for bad in ["nocolon", ":v", "k y:v"] {
            assert!(Query::parse(Some(&format!("label={}", bad.replace(' ', "+")))).labels().is_err(), "{bad}");
        }
    }
}
