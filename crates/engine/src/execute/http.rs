//! The HTTP exchange of a step. One deadline covers connecting, waiting, reading and every redirect, so that no server,
//! however slow or broken, takes longer than the step's timeout. The response is reported; the kernel judges it.

use super::hop::{Hop, is_redirect, shown};
use super::host_backoff::HostResponse;
use crate::secret::Signer;
use bytes::{Bytes, BytesMut};
use kernel::advance::{Request, TaskResult};
use kernel::event::{Failure, Pair};
use kernel::{Payload, Span, Timestamp};
use std::time::{Duration, Instant};

/// Longer response bodies are truncated.
pub const BODY_MAX: usize = 262_144;
/// Headers kept of a response, and bytes kept of each.
const HEADERS_MAX: usize = 64;
const HEADER_MAX: usize = 8 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client that all steps share. It follows no redirects, because [`follow`] checks each one, and ignores the proxy
/// variables of the environment.
pub fn client() -> Result<reqwest::Client, String> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("onward/", env!("CARGO_PKG_VERSION")))
    };
    // On a machine without a certificate store the client falls back to the built-in root certificates.
    builder().build().or_else(|_| builder().tls_backend_preconfigured(known_roots()).build()).map_err(|e| e.to_string())
}

fn known_roots() -> rustls::ClientConfig {
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// Sends a step's request, follows its redirects, and answers the result. `on_response` is called for each request that
/// was sent, with its origin.
pub async fn perform(
    client: &reqwest::Client,
    signer: Option<&Signer>,
    request: &Request,
    first: Hop,
    on_response: &(dyn Fn(&str, HostResponse) + Sync),
) -> TaskResult {
    let started = Instant::now();
    let took = || Span(started.elapsed().as_micros() as u64);
    let limit = Duration::from_micros(request.timeout.0);
    let mut origin = first.origin();
    let following = follow(client, signer, request, first, &mut origin, on_response);
    let outcome = tokio::time::timeout(limit, following).await;
    let no_response = HostResponse { is_failure: true, retry_after: None };
    match outcome {
        Err(_) => {
            on_response(&origin, no_response);
            TaskResult::TimedOut { message: no_answer(request.timeout), took: took() }
        }
        Ok(Err(NoResponse::Network(error))) => {
            on_response(&origin, no_response);
            TaskResult::Failed {
                failure: Failure::new("network", reason(&error)),
                retryable: true,
                retry_after: None,
                took: took(),
            }
        }
        Ok(Err(NoResponse::Final(failure))) => {
            TaskResult::Failed { failure, retryable: false, retry_after: None, took: took() }
        }
        Ok(Ok(answer)) => {
            let Answer { status, headers, body, retry_after } = answer;
            on_response(&origin, host_response(status, retry_after));
            TaskResult::Response { status, headers, body, retry_after, took: took() }
        }
    }
}

/// The message for an attempt that ran out of time.
pub fn no_answer(limit: Span) -> String {
    format!("no complete answer within {}", limit.readable())
}

/// Why there is no response.
enum NoResponse {
    Network(reqwest::Error),
    /// A retry would not help.
    Final(Failure),
}

impl From<reqwest::Error> for NoResponse {
    fn from(error: reqwest::Error) -> Self {
        NoResponse::Network(error)
    }
}

/// What a status says about the host. With 502, 503 and 504 a gateway says that it cannot reach the host. Any other
/// status, whatever it means for the step, comes from a host that is up.
fn host_response(status: u16, retry_after: Option<Span>) -> HostResponse {
    HostResponse {
        is_failure: matches!(status, 502..=504),
        retry_after: retry_after.filter(|_| matches!(status, 429 | 503)),
    }
}

/// Sends request after request until a response is not a redirect. `origin` is always that of the current request.
async fn follow(
    client: &reqwest::Client,
    signer: Option<&Signer>,
    request: &Request,
    mut hop: Hop,
    origin: &mut String,
    on_response: &(dyn Fn(&str, HostResponse) + Sync),
) -> Result<Answer, NoResponse> {
    let mut left = request.redirects;
    loop {
        let response = client.execute(build(client, signer, &hop).map_err(NoResponse::Final)?).await?;
        let status = response.status().as_u16();
        let location = response.headers().get("location").filter(|_| request.redirects > 0 && is_redirect(status));
        let Some(location) = location else { return Ok(read(response).await?) };
        let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
        on_response(origin, HostResponse::default());
        if left == 0 {
            let message = format!("more than {} redirects, the last one to `{}`", request.redirects, shown(&location));
            return Err(NoResponse::Final(Failure::new("too_many_redirects", message)));
        }
        left -= 1;
        hop = hop.redirected(status, &location, &request.allow_hosts).map_err(NoResponse::Final)?;
        *origin = hop.origin();
    }
}

fn build(client: &reqwest::Client, signer: Option<&Signer>, hop: &Hop) -> Result<reqwest::Request, Failure> {
    let mut builder = client.request(hop.method.clone(), hop.url.clone());
    for (name, value) in &hop.headers {
        builder = builder.header(name, value);
    }
    if let Some(signer) = signer.filter(|_| !hop.has_left) {
        builder = builder.header("x-onward-signature", signer.sign(hop.body.as_deref().unwrap_or_default()));
    }
    match &hop.body {
        Some(bytes) => builder = builder.body(bytes.clone()),
        // Some servers refuse such a request without a content length.
        None if matches!(hop.method.as_str(), "POST" | "PUT" | "PATCH") => {
            builder = builder.header("content-length", "0");
        }
        None => {}
    }
    builder.build().map_err(|e| Failure::new("invalid_request", reason(&e)))
}

struct Answer {
    status: u16,
    headers: Vec<Pair>,
    body: Payload,
    retry_after: Option<Span>,
}

async fn read(mut response: reqwest::Response) -> Result<Answer, reqwest::Error> {
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").and_then(|v| v.to_str().ok());
    let retry_after = retry_after.and_then(|text| parse_retry_after(text, crate::clock::wall()));
    let headers = response.headers().iter().take(HEADERS_MAX).map(|(name, value)| {
        let mut value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        value.truncate((0..=HEADER_MAX.min(value.len())).rev().find(|i| value.is_char_boundary(*i)).unwrap_or(0));
        Pair { name: name.as_str().to_owned(), value, ..Default::default() }
    });
    let headers = headers.collect();
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_MAX {
            break;
        }
    }
    Ok(Answer { status, headers, body: kept(body.freeze()), retry_after })
}

/// The response body as it is stored: typed, and truncated to [`BODY_MAX`].
pub fn kept(mut body: Bytes) -> Payload {
    if body.len() <= BODY_MAX {
        return Payload::sniff(body);
    }
    body.truncate(BODY_MAX);
    Payload { len: body.len() as u64, inline: body, text: true, truncated: true, ..Default::default() }
}

/// Reads a `Retry-After` header: seconds, or a date.
pub fn parse_retry_after(text: &str, now: Timestamp) -> Option<Span> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(Span::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    Some(Timestamp(date.timestamp().as_microsecond()).since(now))
}

/// The innermost cause is the most useful: "connection refused" rather than "error sending request".
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
        let now = Timestamp::from_millis(1_445_412_470_000);
        assert_eq!(parse_retry_after(" 120 ", now), Some(Span::from_secs(120)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:27:00 GMT", now), Some(Span(0)), "in the past: now");
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now), Some(Span::from_secs(10)));
        assert_eq!(parse_retry_after("soon", now), None);
    }
}
