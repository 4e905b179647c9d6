//! Events as they happen, as server-sent events.
//!
//! ```text
//!   engine ──page of events──▶ task ──two chunks at most──▶ Feed ──▶ the client's socket
//! ```
//!
//! The task reads the next page when the client has taken the last one, so a slow client costs two chunks
//! and no more. Streams end when the client goes, when the server drains, and a run's when the run is over.

use super::run_id;
use super::workflows::find_ever;
use crate::contract::{Param, Route, Shape, get, params};
use crate::query::{Query, invalid};
use crate::{Answer, App, Path, Refusal, State, views};
use api::{Code, StreamEndView, StreamEventView};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::response::Response;
use engine::services::RunEvent;
use http_body::Frame;
use kernel::RunId;
use serde_json::json;
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

/// A connection nothing was sent on for this long gets a comment, so that nobody takes it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it comes again.
const RETRY: &str = "retry: 1000\n";

const AFTER: Param = Param::new("after", "the same as `Last-Event-ID`", || json!({ "type": "integer", "minimum": 0 }));
const TYPE: Param = Param::new(
    "type",
    "one or several types of events, as in `run.completed,run.failed`",
    || json!({ "type": "string", "pattern": "^[a-z._]+(,[a-z._]+)*$" }),
);

pub fn routes() -> Vec<Route> {
    let events = || Shape::Events(|g| g.subschema_for::<StreamEventView>());
    vec![
        get("/api/v1/runs/{run}/stream", of_run, "stream_run", "Every event of a run as it happens, to its end")
            .query(&[AFTER])
            .header(params::LAST_EVENT_ID)
            .shaped(200, "events, then one named `end`", events())
            .refuses(&[Code::TooManyStreams]),
        get("/api/v1/events/stream", of_all, "stream_events", "Events of all runs as they happen")
            .query(&[AFTER, params::WORKFLOW, TYPE])
            .header(params::LAST_EVENT_ID)
            .shaped(200, "events; one may come twice, none is left out", events())
            .refuses(&[Code::TooManyStreams, Code::NotFound]),
    ]
}

/// Every event of a run from the one after `after` on.
pub async fn of_run(app: State, query: Query, Path(run): Path<String>, headers: HeaderMap) -> Answer {
    let after = cursor(&query, &headers, "the number of an event")?.unwrap_or(0);
    let id = run_id(&run)?;
    let place = place(&app)?;
    let subscription = app.engine.subscriptions.run(app.org(), id, after).await?;
    let mut subscription = subscription.ok_or_else(|| Refusal::not_found("run", &run))?;
    let (mut pipe, response) = Pipe::open(&app, place);
    let app = app.0.clone();
    tokio::spawn(async move {
        let mut begun = pipe.send(format!("{RETRY}\n")).await;
        while begun.is_some() {
            begun = match pipe.next(subscription.next()).await {
                Next::Quiet => pipe.send(":\n\n".into()).await,
                Next::Came(Ok(Some(happened))) => {
                    let mut text = String::new();
                    happened.iter().for_each(|one| write_event(&mut text, one.seq, one));
                    pipe.send(text).await
                }
                Next::Came(Ok(None)) => {
                    let end = serde_json::to_string(&end_of(&app, id).await).unwrap_or_default();
                    pipe.send(format!("event: end\ndata: {end}\n\n")).await;
                    None
                }
                Next::Came(Err(error)) => {
                    tracing::warn!(%error, run = %id, "a stream ends early");
                    None
                }
                Next::Over => None,
            };
        }
    });
    Ok(response)
}

async fn end_of(app: &App, run: RunId) -> StreamEndView {
    let row = app.engine.store().run(app.org(), run).await;
    let status = row.ok().flatten().map_or("deleted", |row| row.status.as_str());
    StreamEndView { run_id: run.to_string(), status: status.into() }
}

/// Every event of every run, from now or from where an earlier stream was left. An event may come twice,
/// none is left out: the cursor only moves on with the last event of a record.
pub async fn of_all(app: State, query: Query, headers: HeaderMap) -> Answer {
    let after = cursor(&query, &headers, "the `id` of an earlier event")?;
    let workflow = match query.get("workflow") {
        Some(key) => Some(find_ever(&app, key).await?.id),
        None => None,
    };
    let types: Vec<String> = query.all("type").flat_map(|list| list.split(',')).map(str::to_owned).collect();
    let is_type =
        |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b"._".contains(&b));
    if let Some(bad) = types.iter().find(|text| !is_type(text)) {
        return Err(invalid("type", bad, "types of events, such as run.completed,step.failed"));
    }
    let place = place(&app)?;
    let mut happenings = app.engine.subscriptions.all(app.org(), after).await?;
    let (mut pipe, response) = Pipe::open(&app, place);
    tokio::spawn(async move {
        // Whoever is cut off before the first event must not begin at a later now.
        let mut begun = pipe.send(format!("{RETRY}id: {}\n\n", happenings.position())).await;
        while begun.is_some() {
            begun = match pipe.next(happenings.next()).await {
                Next::Quiet => pipe.send(":\n\n".into()).await,
                Next::Came(Ok((written, end))) => {
                    let mut text = String::new();
                    for (pos, happened) in &written {
                        let is_wanted = |one: &RunEvent| {
                            workflow.is_none_or(|id| id == one.version.workflow)
                                && (types.is_empty() || types.iter().any(|t| Some(t.as_str()) == one.event.name()))
                        };
                        for (i, one) in happened.iter().enumerate().filter(|(_, one)| is_wanted(one)) {
                            let is_last = i + 1 == happened.len();
                            write_event(&mut text, if is_last { *pos } else { pos - 1 }, one);
                        }
                    }
                    // Also past what was not wanted, so that it is not looked at again.
                    let _ = write!(text, "id: {end}\n\n");
                    pipe.send(text).await
                }
                Next::Came(Err(error)) => {
                    tracing::warn!(%error, "a stream ends early");
                    None
                }
                Next::Over => None,
            };
        }
    });
    Ok(response)
}

/// `Last-Event-ID`, as a browser sends it, else `?after=`.
fn cursor(query: &Query, headers: &HeaderMap, expected: &str) -> Result<Option<u64>, Refusal> {
    if let Some(value) = headers.get("last-event-id") {
        let text = value.to_str().unwrap_or("?");
        let number = text.parse().map_err(|_| {
            let text: String = text.chars().take(80).collect();
            Refusal::new(Code::InvalidHeader, format!("`{text}` is not {expected}")).at("Last-Event-ID")
        })?;
        return Ok(Some(number));
    }
    query.read("after", expected, |text| text.parse().ok())
}

fn write_event(text: &mut String, id: u64, one: &RunEvent) {
    let event = views::event(&one.version.plan, one.seq, one.at, &one.event);
    let view = StreamEventView { event, run_id: one.run.to_string(), workflow: one.workflow.to_string() };
    // JSON as serde writes it has no line breaks, so it is one `data` line.
    let data = serde_json::to_string(&view).unwrap_or_default();
    let _ = write!(text, "id: {id}\ndata: {data}\n\n");
}

fn place(app: &App) -> Result<OwnedSemaphorePermit, Refusal> {
    app.streams.clone().try_acquire_owned().map_err(|_| {
        Refusal::new(Code::TooManyStreams, "too many streams are open")
            .hint("close some, or read `events` page by page")
    })
}

/// What a stream met while it waited.
enum Next<T> {
    Came(T),
    Quiet,
    /// The client went away, or the server is about to.
    Over,
}

/// The task's end of a stream.
struct Pipe {
    sender: mpsc::Sender<Bytes>,
    draining: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Pipe {
    fn open(app: &App, place: OwnedSemaphorePermit) -> (Pipe, Response) {
        let (sender, receiver) = mpsc::channel(1);
        let response = Response::builder()
            .header("content-type", "text/event-stream")
            .header("cache-control", "no-store")
            .header("x-accel-buffering", "no")
            .body(Body::new(Feed(receiver)))
            .unwrap_or_default();
        (Pipe { sender, draining: app.draining.subscribe(), _place: place }, response)
    }

    /// Waits for room; `None` when there is nobody to send to any more.
    async fn send(&mut self, text: String) -> Option<()> {
        if text.is_empty() {
            return Some(());
        }
        tokio::select! {
            sent = self.sender.send(text.into()) => sent.ok(),
            _ = self.draining.wait_for(|is_draining| *is_draining) => None,
        }
    }

    async fn next<T>(&mut self, event: impl Future<Output = T>) -> Next<T> {
        tokio::select! {
            biased;
            _ = self.draining.wait_for(|is_draining| *is_draining) => Next::Over,
            () = self.sender.closed() => Next::Over,
            came = event => Next::Came(came),
            () = tokio::time::sleep(KEEP_ALIVE) => Next::Quiet,
        }
    }
}

/// The client's end: a body that grows as long as somebody sends.
struct Feed(mpsc::Receiver<Bytes>);

impl HttpBody for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}
