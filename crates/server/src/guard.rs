//! Checks every request before it reaches a route.
//!
//! `dev` requires no key, so a malicious web page in the developer's browser must not be able to use the API. Requests
//! that are addressed to another host (DNS rebinding) or come from another origin are refused, and
//! [`body`](crate::body) accepts no body that an HTML form can send. `serve` requires the key, which other web pages do
//! not have, and accepts any host name.
//!
//! Callback URLs and webhooks are exempt: other systems call them, through any host name, and authenticate with a token
//! or a signature.

use crate::access::{Access, is_open};
use crate::{App, Refusal};
use api::Code;
use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;

pub async fn check(app: &App, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_for_other_systems = path.starts_with("/wh/") || path.starts_with("/webhooks/");
    let admitted = match &app.access {
        // A proxy in front of this server may have looked at the other one.
        _ if request.headers().get_all(HOST).iter().nth(1).is_some() => {
            Err(Refusal::new(Code::MissingHost, "the request has more than one `Host` header"))
        }
        _ if is_for_other_systems => Ok(()),
        Access::Local { hosts } => admit(hosts, request.uri().host(), request.headers()),
        Access::Key(_) if is_open(path) => Ok(()),
        Access::Key(key) => key.admit(request.headers()),
    };
    let lacks_key = admitted.as_ref().is_err_and(Refusal::lacks_key);
    let mut response = match admitted {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    if lacks_key {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    headers.insert(HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer"));
    response
}

fn admit(hosts: &[String], uri_host: Option<&str>, headers: &HeaderMap) -> Result<(), Refusal> {
    let header = headers.get(HOST).and_then(|v| v.to_str().ok());
    let host = uri_host
        .or(header.map(host_of))
        .ok_or_else(|| Refusal::new(Code::MissingHost, "the request has no readable `Host` header"))?;
    if !is_loopback(host) && !hosts.iter().any(|h| h.eq_ignore_ascii_case(host)) {
        return Err(Refusal::new(
            Code::HostNotAllowed,
            format!("this server does not answer for host `{}`", cut(host)),
        )
        .hint("use 127.0.0.1 or localhost, or start with `--public-url`"));
    }
    match headers.get(ORIGIN).map(|v| v.to_str().unwrap_or("")) {
        None => Ok(()),
        Some(origin) if is_same_origin(origin, header.unwrap_or(host)) => Ok(()),
        Some(origin) => {
            Err(Refusal::new(Code::ForeignOrigin, format!("requests from origin `{}` are refused", cut(origin))))
        }
    }
}

/// `host:port` without the port.
fn host_of(header: &str) -> &str {
    match header.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => &header[..end + 2],
        None => header.rsplit_once(':').map_or(header, |(host, _)| host),
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Whether this server sent the web page that makes the request.
fn is_same_origin(origin: &str, host_header: &str) -> bool {
    let rest = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host_header))
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_loopback_is_recognised() {
        for (header, expected) in [
            ("127.0.0.1:7420", true),
            ("localhost:7420", true),
            ("LOCALHOST", true),
            ("[::1]:7420", true),
            ("127.9.9.9", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("example.com", false),
            ("127.0.0.1.example.com", false),
            ("192.168.0.2:7420", false),
            ("localhost.evil.test", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host_of(header)), expected, "{header}");
        }
    }

    #[test]
    fn an_origin_must_be_this_server() {
        assert!(is_same_origin("http://127.0.0.1:7420", "127.0.0.1:7420"));
        for origin in ["http://127.0.0.1:9", "https://evil.test", "null", "", "127.0.0.1:7420"] {
            assert!(!is_same_origin(origin, "127.0.0.1:7420"), "{origin}");
        }
    }
}
