//! Which headers of a request are kept with the run it starts.

use axum::http::HeaderMap;

const KEPT_MAX: usize = 64;
const VALUE_MAX: usize = 8 * 1024;

/// What authorises a request is never stored, and what only concerns the connection says nothing.
const DROPPED: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept",
    "accept-encoding",
    "accept-language",
    "te",
    "upgrade",
    "origin",
    "idempotency-key",
];

/// May a run look at a request header of this name, in lowercase? Not at signatures either.
pub fn keeps_header(name: &str) -> bool {
    !DROPPED.contains(&name) && !name.contains("signature")
}

/// Request headers a run may look at.
pub fn kept(headers: &HeaderMap) -> Vec<(String, String)> {
    let kept = text(headers).filter(|(name, value)| keeps_header(name) && value.len() <= VALUE_MAX);
    kept.take(KEPT_MAX).collect()
}

/// Every header whose value is text.
pub fn text(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
}
