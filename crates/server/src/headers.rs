//! Which headers of a request are stored with the run that it starts.

use axum::http::HeaderMap;

const KEPT_MAX: usize = 64;
const VALUE_MAX: usize = 8 * 1024;

/// Credentials are never stored. Headers of the connection are useless to a run.
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

/// Whether a run can read a request header with this lowercase name. Signatures are excluded, too.
pub fn keeps_header(name: &str) -> bool {
    !DROPPED.contains(&name) && !name.contains("signature")
}

/// The request headers that a run can read.
pub fn kept(headers: &HeaderMap) -> Vec<(String, String)> {
    let kept = text(headers).filter(|(name, value)| keeps_header(name) && value.len() <= VALUE_MAX);
    kept.take(KEPT_MAX).collect()
}

/// Every header whose value is text.
pub fn text(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
}
