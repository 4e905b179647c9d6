//! The Rust SDK: a client with a method for every operation of the HTTP API, in the types of [`api`], and a [`Worker`]
//! that does tasks.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use onward_client::{Client, Task, Worker, worker::Context};
//! use std::time::Duration;
//!
//! let client = Client::from_env()?;
//! let task = client.tasks().submit(Task::new("billing.invoice.v1", &7).priority(1)).await?;
//! let ended = client.tasks().wait(&task.task_id, Duration::from_secs(30)).await?;
//! println!("{}", ended.result);
//!
//! // Elsewhere:
//! let invoice = |order: u64, _: Context| async move { Ok(format!("invoice {order}")) };
//! Worker::new(client).handle("billing.invoice.v1", invoice).run().await?;
//! # Ok(()) }
//! ```
//!
//! A client does not retry requests: whether a request is safe to send again depends on its idempotency key. There are
//! three exceptions. Streams reconnect, because their events have numbers. Waiting for a run or a task continues,
//! because it only reads. Workers report again, because the server accepts a repeated report.

mod environment;
mod runs;
mod stream;
mod tasks;
pub mod testing;
mod triggers;
mod types;
mod waits;
pub mod worker;
mod workflows;

pub use api;
pub use runs::RunQuery;
pub use stream::Events;
pub use tasks::{Task, TaskQuery, Tasks};
pub use types::Types;
pub use worker::Worker;
pub use workflows::{Definition, Start};

use api::{Page, Problem};
use bytes::Bytes;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server did not respond, or the response was cut off.
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The server responded with an error.
    #[error("{}", .problem.message)]
    Refused { status: u16, problem: Box<Problem> },
    /// The response is not one of this API: another server or a proxy may have sent it.
    #[error("{url} does not answer like an Onward server: {reason}")]
    UnexpectedResponse { url: String, reason: String },
    /// The address, the key or the input of the caller is invalid; nothing was sent.
    #[error("{0}")]
    Unusable(String),
    /// The run or the task did not end within the timeout.
    #[error("`{what}` is still {status}")]
    Late { what: String, status: String },
    /// The run did not complete, or the task ended without a result.
    #[error("`{what}` is {status}: {message}")]
    Ended { what: String, status: String, code: String, message: String },
}

impl Error {
    /// Whether the server responded with this error code.
    pub fn is(&self, code: api::Code) -> bool {
        matches!(self, Error::Refused { problem, .. } if problem.code == code.as_str())
    }

    /// Whether the same request may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::UnexpectedResponse { .. } => true,
            Error::Refused { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Error::Unusable(_) | Error::Late { .. } | Error::Ended { .. } => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Longer than the longest `wait`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
/// The server waits up to a minute. Some proxies close a request after 60 s, so this is a little less.
const WAIT_MAX: Duration = Duration::from_secs(50);
const RETRY_AFTER: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// A request to the API.
struct RequestBuilder {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Option<(&'static str, Bytes)>,
    timeout: Duration,
}

impl RequestBuilder {
    /// `path` is relative to `/api/v1`. Names and ids must go through [`segment`].
    fn new(method: Method, path: String) -> RequestBuilder {
        RequestBuilder { method, path, query: Vec::new(), headers: Vec::new(), body: None, timeout: REQUEST_TIMEOUT }
    }

    fn get(path: String) -> RequestBuilder {
        RequestBuilder::new(Method::GET, path)
    }

    fn post(path: String) -> RequestBuilder {
        RequestBuilder::new(Method::POST, path)
    }

    fn query(mut self, name: &'static str, value: Option<impl ToString>) -> RequestBuilder {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    fn header(mut self, name: &'static str, value: Option<&str>) -> RequestBuilder {
        self.headers.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    fn json(mut self, value: &impl serde::Serialize) -> RequestBuilder {
        let bytes = serde_json::to_vec(value).expect("types of `api` serialize to JSON");
        self.body = Some(("application/json", bytes.into()));
        self
    }
}

/// A duration in the syntax of the API, rounded up to milliseconds.
fn span(duration: Duration) -> Value {
    Value::String(format!("{}ms", duration.as_micros().div_ceil(1_000)))
}

/// A name or an id, percent-encoded as one segment of a path.
fn segment(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(byte as char),
            // The segments `.` and `..` would change the path.
            b'.' if text.bytes().any(|b| b != b'.') => out.push('.'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Client {
    /// `base` is the URL of the server without `/api/v1`. `key` is sent as a bearer token.
    pub fn new(base: &str, key: Option<&str>) -> Result<Client> {
        let unusable = |reason: String| Error::Unusable(format!("`{base}` is not the address of a server: {reason}"));
        let url = reqwest::Url::parse(base).map_err(|e| unusable(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(unusable("it must begin with http:// or https://".into()));
        }
        if key.is_some_and(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Error::Unusable("the API key may only contain visible ASCII characters".into()));
        }
        // A request to this machine must not go through a proxy.
        let is_local = url.host_str().is_some_and(|h| matches!(h, "localhost" | "127.0.0.1" | "[::1]"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            let builder = reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .user_agent(concat!("onward-client/", env!("CARGO_PKG_VERSION")));
            if is_local { builder.no_proxy() } else { builder }
        };
        // Machines without a certificate store use the built-in root certificates.
        let http = builder().build().or_else(|_| builder().tls_backend_preconfigured(built_in_roots()).build());
        let http = http.map_err(|e| Error::Unusable(root_cause(&e)))?;
        Ok(Client { http, base: base.trim_end_matches('/').to_owned(), key: key.map(str::to_owned) })
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// The name and version of the server.
    pub async fn version(&self) -> Result<api::VersionView> {
        self.data(RequestBuilder::get("/version".into())).await
    }

    /// Sends any request below `/api/v1`, for routes without a method of their own. Returns `data` of the response.
    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let method = method.parse().map_err(|_| Error::Unusable(format!("`{method}` is not an HTTP method")))?;
        let mut request = RequestBuilder::new(method, path.trim_start_matches("/api/v1").to_owned());
        if let Some(body) = body {
            request = request.json(body);
        }
        self.data(request).await
    }

    /// Sends a worker's reports, heartbeats and claim. The response is parsed directly into its type, without a
    /// `Value` in between, because most of it is payloads.
    async fn work(&self, body: Bytes, timeout: Duration) -> Result<api::WorkView> {
        let mut request = RequestBuilder::post("/work".into());
        (request.body, request.timeout) = (Some(("application/json", body)), timeout);
        let bytes = self.send(request).await?;
        let response: api::Data<api::WorkView> =
            serde_json::from_slice(&bytes).map_err(|e| self.unexpected(format!("{e}")))?;
        Ok(response.data)
    }

    /// Reads a run or a task until it has ended. `open_status` returns its status while it is open.
    async fn wait<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        timeout: Duration,
        open_status: impl Fn(&T) -> Option<String>,
    ) -> Result<T> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = span(left.min(WAIT_MAX));
            let response = self.data::<T>(RequestBuilder::get(path.to_owned()).query("wait", wait.as_str())).await;
            match response.map(|view| (open_status(&view), view)) {
                Ok((None, view)) => return Ok(view),
                Ok((Some(status), _)) if left.is_zero() => {
                    return Err(Error::Late { what: what.to_owned(), status });
                }
                Err(error) if !error.is_transient() || left.is_zero() => return Err(error),
                Ok(_) => {}
                Err(_) => tokio::time::sleep(RETRY_AFTER.min(left)).await,
            }
        }
    }

    async fn data<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let mut value = self.send_for_json(request).await?;
        self.read(value.get_mut("data").map(Value::take).unwrap_or_default())
    }

    async fn page<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<Page<T>> {
        let value = self.send_for_json(request).await?;
        self.read(value)
    }

    fn read<T: DeserializeOwned>(&self, value: Value) -> Result<T> {
        serde_json::from_value(value).map_err(|e| self.unexpected(format!("{e}")))
    }

    /// The body of the response; an empty body is `null`.
    async fn send_for_json(&self, request: RequestBuilder) -> Result<Value> {
        let bytes = self.send(request).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|e| self.unexpected(format!("{e}")))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Bytes> {
        let timeout = request.timeout;
        let response = self.http_request(request).timeout(timeout).send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        if status.is_success() { Ok(bytes) } else { Err(self.refusal(status, &bytes)) }
    }

    fn http_request(&self, request: RequestBuilder) -> reqwest::RequestBuilder {
        let RequestBuilder { method, path, query, headers, body, .. } = request;
        let mut url = format!("{}/api/v1{path}", self.base);
        for (i, (name, value)) in query.iter().enumerate() {
            url.push_str(&format!("{}{name}={}", if i == 0 { '?' } else { '&' }, segment(value)));
        }
        let mut request = self.http.request(method, url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        match body {
            Some((media, bytes)) => request.header("content-type", media).body(bytes),
            None => request,
        }
    }

    fn refusal(&self, status: StatusCode, bytes: &[u8]) -> Error {
        match serde_json::from_slice::<api::ErrorBody>(bytes) {
            Ok(body) => Error::Refused { status: status.as_u16(), problem: Box::new(body.error) },
            Err(_) => self.unexpected(format!("status {status} without an `error` in the body")),
        }
    }

    fn unexpected(&self, reason: String) -> Error {
        Error::UnexpectedResponse { url: self.base.clone(), reason }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        if error.is_builder() {
            return Error::Unusable(root_cause(error));
        }
        Error::Unreachable { url: self.base.clone(), reason: root_cause(error) }
    }
}

fn built_in_roots() -> rustls::ClientConfig {
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// The message of the innermost error: the outer ones only say that a request failed.
fn root_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".into();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_segment_of_a_path() {
        for (name, expected) in [
            ("order-processing", "order-processing"),
            ("a/b", "a%2Fb"),
            ("a b?c#d%", "a%20b%3Fc%23d%25"),
            ("..", "%2E%2E"),
            ("v1.2", "v1.2"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(segment(name), expected);
        }
    }

    #[test]
    fn an_invalid_address_or_key_is_refused_before_anything_is_sent() {
        for base in ["", "localhost:7420", "ftp://x", "http://"] {
            assert!(matches!(Client::new(base, None), Err(Error::Unusable(_))), "{base}");
        }
        assert!(matches!(Client::new("http://127.0.0.1:1", Some("a\nb")), Err(Error::Unusable(_))));
        assert_eq!(Client::new("http://127.0.0.1:1/", None).unwrap().base(), "http://127.0.0.1:1");
    }
}
