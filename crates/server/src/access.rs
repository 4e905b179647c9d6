//! Which clients may use this server: every client on the same machine (`dev`), or every client with the admin key
//! (`serve`).
//!
//! Only the SHA-256 of the key is stored. The key is random or long, so its hash reveals nothing. Hashes are compared
//! in constant time.

use crate::Refusal;
use api::Code;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

pub enum Access {
    /// No key; the request must be addressed to a loopback host or to one of these hosts.
    Local { hosts: Vec<String> },
    /// The admin key is required; any host name is accepted.
    Key(KeyHash),
}

/// The SHA-256 of the admin key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    pub fn of(key: &str) -> KeyHash {
        KeyHash(Sha256::digest(key.as_bytes()).into())
    }

    fn is_of(&self, key: &str) -> bool {
        let given = KeyHash::of(key);
        let differing = self.0.iter().zip(given.0).fold(0, |bits, (a, b)| bits | (a ^ b));
        std::hint::black_box(differing) == 0
    }

    /// Refuses a request without the key.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let hint = "send `Authorization: Bearer <key>` with the admin key of this server";
        match bearer(headers) {
            Some(key) if self.is_of(key) => Ok(()),
            Some(_) => Err(Refusal::new(Code::KeyInvalid, "this is not the admin key of this server").hint(hint)),
            None => Err(Refusal::new(Code::KeyRequired, "this server requires its admin key").hint(hint)),
        }
    }
}

/// Whether a path needs no key. Health checks are for monitoring, and the files of the dashboard contain no data.
/// Callbacks and webhooks come from other systems, which authenticate with a token or a signature.
pub(crate) fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz")
        || ["/ui/", "/wh/", "/webhooks/"].iter().any(|folder| path.starts_with(folder))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_the_right_key_is_admitted() {
        let key = KeyHash::of("sk_right");
        for (header, expected) in [
            (Some("Bearer sk_right"), Ok(())),
            (Some("bearer  sk_right "), Ok(())),
            (Some("Bearer sk_wrong"), Err("key_invalid")),
            (Some("Bearer sk_righ"), Err("key_invalid")),
            (Some("Bearer sk_right sk_right"), Err("key_invalid")),
            (Some("Bearer "), Err("key_required")),
            (Some("Bearer"), Err("key_required")),
            (Some("Basic sk_right"), Err("key_required")),
            (Some("sk_right"), Err("key_required")),
            (None, Err("key_required")),
        ] {
            let headers = header.map(|text| (AUTHORIZATION, HeaderValue::from_static(text)));
            let admitted = key.admit(&headers.into_iter().collect());
            let outcome = admitted.map_err(|refusal| refusal.code().map_or("", Code::as_str));
            assert_eq!(outcome, expected, "{header:?}");
        }
    }

    #[test]
    fn only_a_few_paths_need_no_key() {
        for (path, expected) in [
            ("/", true),
            ("/healthz", true),
            ("/readyz", true),
            ("/ui/0123/src/app.js", true),
            ("/wh/token", true),
            ("/webhooks/orders", true),
            ("/metrics", false),
            ("/api/v1/version", false),
            ("/api/v1/openapi.json", false),
            ("/api/v1/runs", false),
            ("//api/v1/runs", false),
            ("/ui", false),
            ("/nowhere", false),
        ] {
            assert_eq!(is_open(path), expected, "{path}");
        }
    }
}
