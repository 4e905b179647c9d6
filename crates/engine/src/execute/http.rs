//! HTTP steps. One deadline covers connecting, waiting and reading, so that no server, however slow,
//! large or broken, holds a step longer than its timeout. What comes back is reported, not judged.

use crate::mailbox::Dispatch;
use bytes::{Bytes, BytesMut};
use kernel::advance::{Request, TaskResult, Work};
use kernel::event::{Failure, Pair};
use kernel::{Payload, Span};
use std::time::{Duration, Instant};

/// Responses are cut here.
pub const BODY_MAX: usize = 262_144;
/// Headers kept of a response, and bytes kept of each.
const HEADERS_MAX: usize = 64;
const HEADER_MAX: usize = 8 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client every step shares. Redirects are results, proxies of the environment are not ours.
pub fn client() -> Result<reqwest::Client, String> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("onward/", env!("CARGO_PKG_VERSION")))
    };
    // A machine without a certificate store gets the well-known roots instead of no client at all.
    builder().build().or_else(|_| builder().tls_backend_preconfigured(known_roots()).build()).map_err(|e| e.to_string())
}

fn known_roots() -> rustls::ClientConfig {
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

pub async fn perform(client: &reqwest::Client, dispatch: &Dispatch) -> TaskResult {
    let Work::Http(request) = &dispatch.work else {
        unreachable!("only HTTP work is sent here, see `Executors::execute`")
    };
    let started = Instant::now();
    let took = || Span(started.elapsed().as_micros() as u64);
    let request_ready = match prepare(client, request, dispatch) {
        Ok(ready) => ready,
        Err(failure) => return TaskResult::Failed { failure, retryable: false, took: took() },
    };
    let limit = Duration::from_micros(request.timeout.0);
    match tokio::time::timeout(limit, exchange(client, request_ready)).await {
        Err(_) => {
            TaskResult::TimedOut { message: format!("no complete answer within {}", request.timeout), took: took() }
        }
        Ok(Err(error)) => {
            TaskResult::Failed { failure: Failure::new("network", reason(&error)), retryable: true, took: took() }
        }
        Ok(Ok(answer)) => {
            let Answer { status, headers, body, retry_after } = answer;
            TaskResult::Response { status, headers, body, retry_after, took: took() }
        }
    }
}

fn prepare(client: &reqwest::Client, request: &Request, dispatch: &Dispatch) -> Result<reqwest::Request, Failure> {
    let url =
        url::Url::parse(&request.url).map_err(|e| Failure::new("invalid_url", format!("`{}`: {e}", request.url)))?;
    let host = url.host_str().unwrap_or_default();
    if !matches!(url.scheme(), "http" | "https") || host.is_empty() {
        return Err(Failure::new("invalid_url", format!("`{url}` is not an http or https address")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Failure::new("invalid_url", "a user name or password in a URL is not allowed"));
    }
    if !request.allow_hosts.is_empty() && !request.allow_hosts.iter().any(|h| h.eq_ignore_ascii_case(host)) {
        return Err(Failure::new("host_not_allowed", format!("`{host}` is not in the step's `allow_hosts`")));
    }
    let bad = |what: &str| Failure::new("invalid_request", format!("the {what} cannot be sent"));
    let method = request.method.parse::<reqwest::Method>().map_err(|_| bad("method"))?;
    let mut builder = client.request(method, url);
    let mut has_type = false;
    for (name, value) in &request.headers {
        has_type |= name.eq_ignore_ascii_case("content-type");
        builder = builder.header(name, value);
    }
    if let Some((bytes, content_type)) = &request.body {
        if !has_type {
            builder = builder.header("content-type", *content_type);
        }
        builder = builder.body(bytes.clone());
    } else if matches!(request.method.as_str(), "POST" | "PUT" | "PATCH") {
        // Some servers refuse such a request unless it says that nothing follows.
        builder = builder.header("content-length", "0");
    }
    builder
        .header("idempotency-key", format!("{}:{}", dispatch.run, dispatch.key))
        .header("x-onward-run", dispatch.run.to_string())
        .header("x-onward-attempt", dispatch.attempt.to_string())
        .build()
        .map_err(|e| Failure::new("invalid_request", reason(&e)))
}

struct Answer {
    status: u16,
    headers: Vec<Pair>,
    body: Payload,
    retry_after: Option<Span>,
}

async fn exchange(client: &reqwest::Client, request: reqwest::Request) -> Result<Answer, reqwest::Error> {
    let mut response = client.execute(request).await?;
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").and_then(|v| v.to_str().ok()).and_then(parse_retry_after);
    let headers = response.headers().iter().take(HEADERS_MAX).map(|(name, value)| {
        let mut value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        value.truncate((0..=HEADER_MAX.min(value.len())).rev().find(|i| value.is_char_boundary(*i)).unwrap_or(0));
        Pair { name: name.as_str().to_owned(), value, ..Default::default() }
    });
    let headers = headers.collect();
    let mut body = BytesMut::new();
    let mut truncated = false;
    while let Some(chunk) = response.chunk().await? {
        let room = BODY_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            truncated = true;
            break;
        }
    }
    let body = Bytes::from(body);
    let body = if truncated {
        Payload { len: body.len() as u64, inline: body, text: true, truncated, ..Default::default() }
    } else {
        Payload::sniff(body)
    };
    Ok(Answer { status, headers, body, retry_after })
}

/// Seconds, or a date.
fn parse_retry_after(text: &str) -> Option<Span> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(Span::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    let at = kernel::Timestamp(date.timestamp().as_microsecond());
    Some(at.since(crate::clock::wall()))
}

/// The innermost cause says most: "connection refused" rather than "error sending request".
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_6_retry_after_is_seconds_or_a_date() {
        assert_eq!(parse_retry_after(" 120 "), Some(Span::from_secs(120)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Span(0)), "in the past: now");
        let far = parse_retry_after("Wed, 21 Oct 2048 07:28:00 GMT").unwrap();
        assert!(far > Span::from_days(365));
        assert_eq!(parse_retry_after("soon"), None);
    }
}
