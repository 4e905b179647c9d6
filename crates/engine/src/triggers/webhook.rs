//! A request at a webhook: its signature check, its delivery id, and the payload that the run gets.
//!
//! | header | signed, with HMAC-SHA256 | secret |
//! |---|---|---|
//! | `webhook-signature: v1,<base64> …` | `id.timestamp.body` | `whsec_<base64>` |
//! | `x-webhook-signature: sha256=<hex>` | `body`, or `timestamp.body` with `x-webhook-timestamp` | any other |
//! | `x-hub-signature-256: sha256=<hex>` | `body` | any other |
//!
//! The kind of secret decides which headers are read, so a signature of one scheme is never accepted as one of another.
//! The signature covers the bytes as they were received.

use super::hex;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use kernel::{Span, Timestamp, TriggerId};
use lang::trigger::{Dedup, Webhook};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// How far a signed time may be from now, in either direction.
pub const TOLERANCE: Span = Span::from_secs(300);
/// Longer delivery ids are replaced by their hash.
const ID_MAX: usize = 200;
/// Headers in which senders put the id of a delivery; the first that is present counts.
const ID_HEADERS: [&str; 4] = ["webhook-id", "x-github-delivery", "x-request-id", "x-webhook-id"];

/// A request as it was received.
#[derive(Clone, Debug, Default)]
pub struct WebhookRequest {
    pub method: String,
    /// Without the question mark.
    pub query: String,
    /// Every header whose value is text, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Those of them that may be stored.
    pub kept: Vec<(String, String)>,
    pub body: Bytes,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    SignatureMissing,
    SignatureWrong,
    TimestampMissing,
    TimestampOutside,
    HeaderMissing,
}

impl Rejection {
    pub fn as_str(self) -> &'static str {
        match self {
            Rejection::SignatureMissing => "signature_missing",
            Rejection::SignatureWrong => "signature_invalid",
            Rejection::TimestampMissing => "timestamp_missing",
            Rejection::TimestampOutside => "timestamp_out_of_window",
            Rejection::HeaderMissing => "header_required",
        }
    }
}

/// What makes two deliveries the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The sender's id, for good.
    Given(String),
    /// Its content, for the length of the webhook's window.
    Content(String),
    /// Nothing: each delivery is a new one.
    New,
}

impl WebhookRequest {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Checks the headers and the signature that the webhook requires.
    pub fn admit(&self, webhook: &Webhook, now: Timestamp) -> Result<(), Rejection> {
        for (name, expected) in &webhook.headers {
            // Digests are compared, so that the time it takes reveals nothing about the value.
            let is_same = |given: &str| Sha256::digest(given) == Sha256::digest(expected);
            if !self.header(name).is_some_and(is_same) {
                return Err(Rejection::HeaderMissing);
            }
        }
        match (&webhook.secret, webhook.standard_key()) {
            (None, _) => Ok(()),
            (Some(_), Some(key)) => self.check_standard(&key, now),
            (Some(secret), None) => self.check_plain(secret.as_bytes(), webhook.require_timestamp, now),
        }
    }

    fn check_standard(&self, key: &[u8], now: Timestamp) -> Result<(), Rejection> {
        let given = self.header("webhook-signature").ok_or(Rejection::SignatureMissing)?;
        let id = self.header("webhook-id").ok_or(Rejection::SignatureMissing)?;
        let time = self.header("webhook-timestamp").ok_or(Rejection::TimestampMissing)?;
        check_time(time, now)?;
        let mac = mac(key, &[id.as_bytes(), b".", time.as_bytes(), b".", &self.body]);
        let mut signatures = given.split(' ').filter_map(|part| STANDARD.decode(part.strip_prefix("v1,")?).ok());
        let is_right = signatures.any(|signature| mac.clone().verify_slice(&signature).is_ok());
        if is_right { Ok(()) } else { Err(Rejection::SignatureWrong) }
    }

    fn check_plain(&self, key: &[u8], needs_time: bool, now: Timestamp) -> Result<(), Rejection> {
        let (given, time) = match self.header("x-webhook-signature") {
            Some(given) => (given, self.header("x-webhook-timestamp")),
            None => (self.header("x-hub-signature-256").ok_or(Rejection::SignatureMissing)?, None),
        };
        let mac = match time {
            None if needs_time => return Err(Rejection::TimestampMissing),
            None => mac(key, &[&self.body]),
            Some(time) => {
                check_time(time, now)?;
                mac(key, &[time.as_bytes(), b".", &self.body])
            }
        };
        let signature = given.strip_prefix("sha256=").and_then(unhex).ok_or(Rejection::SignatureWrong)?;
        mac.verify_slice(&signature).map_err(|_| Rejection::SignatureWrong)
    }

    /// What makes two deliveries the same one.
    pub fn identity(&self, dedup: Dedup) -> Identity {
        if dedup == Dedup::None {
            return Identity::New;
        }
        let given = ID_HEADERS.iter().find_map(|name| self.header(name)).filter(|id| !id.is_empty());
        match given {
            Some(id) if id.len() <= ID_MAX && id.bytes().all(|b| b.is_ascii_graphic() && b != b'/') => {
                Identity::Given(id.to_owned())
            }
            Some(id) => Identity::Given(format!("sha256-{}", hex(&Sha256::digest(id)))),
            None if dedup == Dedup::Auto => Identity::Content(format!("sha256-{}", hex(&self.digest()))),
            None => Identity::New,
        }
    }

    /// A hash of method, query and body.
    fn digest(&self) -> [u8; 32] {
        let head = Sha256::new().chain_update(&self.method).chain_update(b"\0").chain_update(&self.query);
        head.chain_update(b"\0").chain_update(&self.body).finalize().into()
    }

    /// The fingerprint that two requests with the same delivery id must share.
    pub fn fingerprint(&self, trigger: TriggerId) -> [u8; 32] {
        Sha256::new().chain_update(b"deliver\0").chain_update(trigger.0).chain_update(self.digest()).finalize().into()
    }

    /// The run's `trigger.body`: the payload, or the variables mapped from it, over the trigger's input. A JSON body
    /// that nothing is added to is passed on byte for byte.
    pub fn payload(&self, webhook: &Webhook) -> Bytes {
        let json = lang::check_json(&self.body).is_ok();
        if json && self.query.is_empty() && webhook.mapping.is_empty() && webhook.input.is_none() {
            return self.body.clone();
        }
        let body = if json { serde_json::from_slice(&self.body).ok() } else { None };
        let payload = self.with_query(body.unwrap_or_else(|| self.other_body()));
        let arrived = if webhook.mapping.is_empty() { payload } else { mapped(&payload, webhook) };
        let body = match &webhook.input {
            Some(input) => lang::trigger::body(Some(input), Some(arrived).filter(|arrived| !arrived.is_null())),
            None => arrived,
        };
        body.to_string().into()
    }

    /// A body that is not JSON: empty, a form, or text.
    fn other_body(&self) -> Value {
        let media = self.header("content-type").unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        match () {
            () if self.body.is_empty() => Value::Null,
            () if media.eq_ignore_ascii_case("application/x-www-form-urlencoded") => pairs(&self.body),
            () => Value::String(String::from_utf8_lossy(&self.body).into_owned()),
        }
    }

    /// Adds query parameters as the payload's field `query`. A payload that is not an object moves to the field `body`.
    fn with_query(&self, payload: Value) -> Value {
        if self.query.is_empty() {
            return payload;
        }
        let query = pairs(self.query.as_bytes());
        match payload {
            Value::Object(mut fields) => {
                fields.insert("query".into(), query);
                Value::Object(fields)
            }
            Value::Null => json!({ "query": query }),
            other => json!({ "body": other, "query": query }),
        }
    }

    /// The request as the trigger's log stores it: one line of JSON, then the body. Headers that must not be stored,
    /// and required ones, which may hold secrets, are left out.
    pub fn keep(&self, webhook: &Webhook) -> Bytes {
        let is_required = |name: &str| webhook.headers.iter().any(|(required, _)| required == name);
        let kept: Vec<&(String, String)> = self.kept.iter().filter(|(name, _)| !is_required(name)).collect();
        let line = json!({ "method": self.method, "query": self.query, "headers": kept }).to_string();
        [line.as_bytes(), b"\n", &self.body].concat().into()
    }

    /// Reads what [`keep`](Self::keep) wrote.
    pub fn again(kept: &Bytes) -> Option<WebhookRequest> {
        let end = kept.iter().position(|b| *b == b'\n')?;
        let line: Value = serde_json::from_slice(&kept[..end]).ok()?;
        let headers: Vec<(String, String)> = serde_json::from_value(line["headers"].clone()).ok()?;
        Some(WebhookRequest {
            method: line["method"].as_str()?.to_owned(),
            query: line["query"].as_str()?.to_owned(),
            headers: headers.clone(),
            kept: headers,
            body: kept.slice(end + 1..),
        })
    }
}

fn check_time(text: &str, now: Timestamp) -> Result<(), Rejection> {
    let seconds: i64 = text.parse().map_err(|_| Rejection::TimestampOutside)?;
    let at = Timestamp(seconds.saturating_mul(1_000_000));
    let is_near = at.since(now) <= TOLERANCE && now.since(at) <= TOLERANCE;
    if is_near { Ok(()) } else { Err(Rejection::TimestampOutside) }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|p| p.len() == 2)?, 16).ok();
    if text.bytes().all(|b| b.is_ascii_hexdigit()) { pairs.map(byte).collect() } else { None }
}

/// `a=1&b=2&b=3` as `{"a": "1", "b": ["2", "3"]}`.
fn pairs(encoded: &[u8]) -> Value {
    let mut fields = Map::new();
    for (name, value) in url::form_urlencoded::parse(encoded) {
        let value = Value::String(value.into_owned());
        match fields.get_mut(&*name) {
            None => drop(fields.insert(name.into_owned(), value)),
            Some(Value::Array(list)) => list.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    Value::Object(fields)
}

/// The value at a path.
pub fn child_at<'a>(payload: &'a Value, keys: &[String]) -> Option<&'a Value> {
    keys.iter().try_fold(payload, |value, key| child(value, key))
}

/// The variables that a webhook takes from a payload.
fn mapped(payload: &Value, webhook: &Webhook) -> Value {
    let variables = webhook
        .mapping
        .iter()
        .filter_map(|(name, keys)| child_at(payload, keys).map(|value| (name.clone(), value.clone())));
    Value::Object(variables.collect())
}

fn child<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    match value {
        Value::Object(fields) => fields.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
