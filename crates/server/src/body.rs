//! Reads request bodies: only the supported media types, size limits before parsing, each body parsed once.

use crate::{Refusal, spelling};
use api::Code;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kernel::Span;
use lang::Syntax;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Size limit of a definition.
pub const DEFINITION_MAX: usize = 1024 * 1024;
/// Size limit of a trigger body, a callback or a result.
pub const PAYLOAD_MAX: usize = 256 * 1024;
/// Size limit of a batch of trigger bodies.
pub const BATCH_MAX: usize = 8 * 1024 * 1024;

/// Reads a body of at most `limit` bytes.
pub async fn collect(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(Refusal::new(Code::TooLarge, format!("the body is larger than {limit} bytes")))
        }
        Err(_) => Err(Refusal::new(Code::MalformedJson, "the body ended before it was complete")),
    }
}

/// The syntax that `Content-Type` names. Media types that an HTML form can send are refused, see
/// [`guard`](crate::guard).
pub fn syntax(headers: &HeaderMap) -> Result<Syntax, Refusal> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING).filter(|v| *v != "identity") {
        let encoding = encoding.to_str().unwrap_or("?");
        let message = format!("bodies with `Content-Encoding: {encoding}` are not supported");
        return Err(unsupported(message).hint("send it uncompressed"));
    }
    let given = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => Ok(Syntax::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" => Ok(Syntax::Yaml),
        "" => Err(unsupported("the body has no `Content-Type`".into())),
        other => Err(unsupported(format!(
            "this route does not accept bodies of type `{}`",
            other.chars().take(80).collect::<String>()
        ))),
    }
}

fn unsupported(message: String) -> Refusal {
    Refusal::new(Code::UnsupportedMediaType, message)
        .hint("send `Content-Type: application/json`, or `application/yaml` for a definition")
}

/// A definition in either syntax.
pub async fn definition(headers: &HeaderMap, body: Body) -> Result<lang::Tree, Refusal> {
    let syntax = syntax(headers)?;
    let bytes = collect(body, DEFINITION_MAX).await?;
    lang::read(&bytes, syntax).map_err(|malformed| Refusal::of_definition(400, &malformed.0))
}

/// A JSON payload; an empty body is `null`.
pub async fn payload(headers: &HeaderMap, body: Body) -> Result<Bytes, Refusal> {
    payload_of(headers, body, PAYLOAD_MAX).await
}

/// JSON of at most `limit` bytes; an empty body is `null`.
pub async fn payload_of(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let bytes = collect(body, limit).await?;
    if bytes.is_empty() {
        return Ok(Bytes::from_static(b"null"));
    }
    if syntax(headers)? != Syntax::Json {
        return Err(unsupported("this body must be JSON".into()));
    }
    lang::check_json(&bytes).map_err(|problem| Refusal::of_definition(400, &[problem]))?;
    Ok(bytes)
}

/// A JSON body as a type of `api`. As an `Option`, an empty body is `None`.
pub async fn json<T: DeserializeOwned + JsonSchema>(headers: &HeaderMap, body: Body) -> Result<T, Refusal> {
    parse(&payload(headers, body).await?)
}

/// Parses JSON that was already collected and checked.
pub fn parse<T: DeserializeOwned + JsonSchema>(bytes: &[u8]) -> Result<T, Refusal> {
    // Derived deserializers would also fill a struct from a list, field by field.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Refusal::new(Code::InvalidBody, "the body must be an object"));
    }
    let parsed = match serde_json::from_slice(bytes) {
        Ok(parsed) => return Ok(parsed),
        Err(error) => match spelling::corrected::<T>(bytes)? {
            Some(corrected) => serde_json::from_slice(&corrected),
            None => Err(error),
        },
    };
    parsed.map_err(|error| {
        // Line and column do not help with a body that a program wrote.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        Refusal::new(Code::InvalidBody, message.chars().take(200).collect::<String>())
    })
}

/// A duration: text such as `30s`, or a whole number of seconds.
pub fn span(value: &Value) -> Option<Span> {
    match value {
        Value::String(text) => Span::parse(text),
        Value::Number(seconds) => Some(Span(seconds.as_u64()?.checked_mul(1_000_000)?)),
        _ => None,
    }
}
