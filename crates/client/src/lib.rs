//! The Rust SDK: a client with one method for each thing a program can want of a server, in the types of
//! [`api`], and a [`Worker`] that does tasks.
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
//! It knows the API and nothing of the engine. Nothing a client asks for is retried behind the caller's back: what is
//! safe to send again depends on whether an idempotency key was given. What comes back by itself are streams, because
//! their events have numbers, waiting, because it only reads, and workers, because what they say may be said again.

mod environment;
mod runs;
mod stream;
mod tasks;
pub mod testing;
mod triggers;
mod types;
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

/// Why there is no answer to be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answered, or not completely.
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The server said no.
    #[error("{}", .problem.message)]
    Refused { status: u16, problem: Box<Problem> },
    /// Somebody answered, but not in the words of this API.
    #[error("{url} does not answer like an Onward server: {reason}")]
    Strange { url: String, reason: String },
    /// The address, the key or what was to be sent cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// What was waited for has not ended in time.
    #[error("`{what}` is still {status}")]
    Late { what: String, status: String },
    /// A task or a run that was to give a result ended without one.
    #[error("`{what}` is {status}: {message}")]
    Ended { what: String, status: String, code: String, message: String },
}

impl Error {
    /// Refused with this code?
    pub fn is(&self, code: api::Code) -> bool {
        matches!(self, Error::Refused { problem, .. } if problem.code == code.as_str())
    }

    /// May the same work a little later?
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Strange { .. } => true,
            Error::Refused { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Error::Unusable(_) | Error::Late { .. } | Error::Ended { .. } => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Longer than the longest `wait`.
const PATIENCE: Duration = Duration::from_secs(90);
/// The server waits no longer than a minute; a little less goes through every proxy.
const WAIT_MAX: Duration = Duration::from_secs(50);
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// One request, built piece by piece.
struct Ask {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Option<(&'static str, Bytes)>,
    patience: Duration,
}

impl Ask {
    /// `path` is below `/api/v1`; what people chose goes into it through [`segment`].
    fn new(method: Method, path: String) -> Ask {
        Ask { method, path, query: Vec::new(), headers: Vec::new(), body: None, patience: PATIENCE }
    }

    fn get(path: String) -> Ask {
        Ask::new(Method::GET, path)
    }

    fn post(path: String) -> Ask {
        Ask::new(Method::POST, path)
    }

    fn query(mut self, name: &'static str, value: Option<impl ToString>) -> Ask {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    fn header(mut self, name: &'static str, value: Option<&str>) -> Ask {
        self.headers.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    fn json(mut self, value: &impl serde::Serialize) -> Ask {
        let bytes = serde_json::to_vec(value).expect("our own shapes are JSON");
        self.body = Some(("application/json", bytes.into()));
        self
    }
}

/// As the API writes it; never shorter than asked.
fn span(duration: Duration) -> Value {
    Value::String(format!("{}ms", duration.as_micros().div_ceil(1_000)))
}

/// What a person chose, as one part of a path.
fn segment(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(byte as char),
            // A dot alone, or two, would be a step up or nowhere.
            b'.' if text.bytes().any(|b| b != b'.') => out.push('.'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Client {
    /// `base` is where the server is, without `/api/v1`; `key` is sent as a bearer token.
    pub fn new(base: &str, key: Option<&str>) -> Result<Client> {
        let unusable = |reason: String| Error::Unusable(format!("`{base}` is not the address of a server: {reason}"));
        let url = reqwest::Url::parse(base).map_err(|e| unusable(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(unusable("it must begin with http:// or https://".into()));
        }
        if key.is_some_and(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Error::Unusable("the API key has characters that no key has".into()));
        }
        // Nothing between this machine and itself is a proxy's business.
        let is_local = url.host_str().is_some_and(|h| matches!(h, "localhost" | "127.0.0.1" | "[::1]"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            let builder = reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .user_agent(concat!("onward-client/", env!("CARGO_PKG_VERSION")));
            if is_local { builder.no_proxy() } else { builder }
        };
        // A machine without a certificate store gets the well-known roots.
        let http = builder().build().or_else(|_| builder().tls_backend_preconfigured(known_roots()).build());
        let http = http.map_err(|e| Error::Unusable(reason(&e)))?;
        Ok(Client { http, base: base.trim_end_matches('/').to_owned(), key: key.map(str::to_owned) })
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Name and version of the server.
    pub async fn version(&self) -> Result<api::VersionView> {
        self.data(Ask::get("/version".into())).await
    }

    /// Any request below `/api/v1`, for what has no method of its own; answers with `data`.
    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let method = method.parse().map_err(|_| Error::Unusable(format!("`{method}` is not a method")))?;
        let mut ask = Ask::new(method, path.trim_start_matches("/api/v1").to_owned());
        if let Some(body) = body {
            ask = ask.json(body);
        }
        self.data(ask).await
    }

    /// Everything a worker has to say and to ask, as JSON. Read straight from the bytes: most of them are payloads.
    async fn work(&self, body: Bytes, patience: Duration) -> Result<api::WorkView> {
        let mut ask = Ask::post("/work".into());
        (ask.body, ask.patience) = (Some(("application/json", body)), patience);
        let bytes = self.answer(ask).await?;
        let read: api::Data<api::WorkView> =
            serde_json::from_slice(&bytes).map_err(|e| self.strange(format!("{e}")))?;
        Ok(read.data)
    }

    /// Asks for something until it has ended. `is_open` gives the status of what has not.
    async fn wait<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        timeout: Duration,
        is_open: impl Fn(&T) -> Option<String>,
    ) -> Result<T> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = span(left.min(WAIT_MAX));
            let asked = self.data::<T>(Ask::get(path.to_owned()).query("wait", wait.as_str())).await;
            match asked.map(|view| (is_open(&view), view)) {
                Ok((None, view)) => return Ok(view),
                Ok((Some(status), _)) if left.is_zero() => {
                    return Err(Error::Late { what: what.to_owned(), status });
                }
                Err(error) if !error.is_passing() || left.is_zero() => return Err(error),
                Ok(_) => {}
                Err(_) => tokio::time::sleep(AGAIN_AFTER.min(left)).await,
            }
        }
    }

    async fn data<T: DeserializeOwned>(&self, ask: Ask) -> Result<T> {
        let mut value = self.exchange(ask).await?;
        self.read(value.get_mut("data").map(Value::take).unwrap_or_default())
    }

    async fn page<T: DeserializeOwned>(&self, ask: Ask) -> Result<Page<T>> {
        let value = self.exchange(ask).await?;
        self.read(value)
    }

    fn read<T: DeserializeOwned>(&self, value: Value) -> Result<T> {
        serde_json::from_value(value).map_err(|e| self.strange(format!("{e}")))
    }

    /// The whole answer; nothing at all is null.
    async fn exchange(&self, ask: Ask) -> Result<Value> {
        let bytes = self.answer(ask).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|e| self.strange(format!("{e}")))
    }

    async fn answer(&self, ask: Ask) -> Result<Bytes> {
        let patience = ask.patience;
        let response = self.request(ask).timeout(patience).send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        if status.is_success() { Ok(bytes) } else { Err(self.refusal(status, &bytes)) }
    }

    fn request(&self, ask: Ask) -> reqwest::RequestBuilder {
        let Ask { method, path, query, headers, body, .. } = ask;
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
            Err(_) => self.strange(format!("status {status} without an error of ours")),
        }
    }

    fn strange(&self, reason: String) -> Error {
        Error::Strange { url: self.base.clone(), reason }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        if error.is_builder() {
            return Error::Unusable(reason(error));
        }
        Error::Unreachable { url: self.base.clone(), reason: reason(error) }
    }
}

fn known_roots() -> rustls::ClientConfig {
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// The innermost cause says it best; the layers around it only say that there was one.
fn reason(error: &reqwest::Error) -> String {
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
    fn a_name_stays_one_part_of_a_path() {
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
    fn an_address_or_a_key_that_cannot_work_is_refused_at_once() {
        for base in ["", "localhost:7420", "ftp://x", "http://"] {
            assert!(matches!(Client::new(base, None), Err(Error::Unusable(_))), "{base}");
        }
        assert!(matches!(Client::new("http://127.0.0.1:1", Some("a\nb")), Err(Error::Unusable(_))));
        assert_eq!(Client::new("http://127.0.0.1:1/", None).unwrap().base(), "http://127.0.0.1:1");
    }
}
