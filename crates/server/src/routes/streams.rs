//! Streams of server-sent events.
//!
//! ```text
//!   engine ──page of events──▶ task ──two chunks at most──▶ StreamBody ──▶ the client's socket
//! ```
//!
//! The task reads the next page when the client has received the last one, so a slow client costs two chunks of memory.
//! A stream ends when the client disconnects or the server drains; the stream of a run also ends with the run.

use super::run_id;
use super::workflows::find_or_deleted;
use crate::contract::{Param, ResponseShape, Route, get, params};
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
use store::RunRow;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

/// After this long without an event, a comment is sent, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it reconnects, in milliseconds.
const RETRY: &str = "retry: 1000\n";

const AFTER: Param = Param::new("after", "the same as `Last-Event-ID`", || json!({ "type": "integer", "minimum": 0 }));
const TYPE: Param = Param::new(
    "type",
    "one or more event types, such as `run.completed,run.failed`",
    || json!({ "type": "string", "pattern": "^[a-z._]+(,[a-z._]+)*$" }),
);

pub fn routes() -> Vec<Route> {
    let events = || ResponseShape::Events(|g| g.subschema_for::<StreamEventView>());
    vec![
        get("/api/v1/runs/{run}/stream", of_run, "stream_run", "Stream the events of a run until it ends")
            .query(&[AFTER])
            .header(params::LAST_EVENT_ID)
            .shaped(200, "events, then one named `end`", events())
            .refuses(&[Code::TooManyStreams]),
        get("/api/v1/events/stream", of_all, "stream_events", "Stream the events of all runs")
            .query(&[AFTER, params::WORKFLOW, TYPE])
            .header(params::LAST_EVENT_ID)
            .shaped(200, "events; one may arrive twice, none is lost", events())
            .refuses(&[Code::TooManyStreams, Code::NotFound]),
    ]
}

pub async fn of_run(app: State, query: Query, Path(run): Path<String>, headers: HeaderMap) -> Answer {
    let after = cursor(&query, &headers, "the number of an event")?.unwrap_or(0);
    let id = run_id(&run)?;
    let permit = permit(&app)?;
    let subscription = app.engine.subscriptions.run(app.org(), id, after).await?;
    let mut subscription = subscription.ok_or_else(|| Refusal::not_found("run", &run))?;
    let (mut pipe, response) = StreamSender::open(&app, permit);
    let app = app.0.clone();
    tokio::spawn(async move {
        let mut sent = pipe.send(format!("{RETRY}\n")).await;
        while sent.is_some() {
            sent = match pipe.next(subscription.next()).await {
                Awaited::Idle => pipe.send(":\n\n".into()).await,
                Awaited::Event(Ok(Some(events))) => {
                    let mut text = String::new();
                    events.iter().for_each(|event| write_event(&mut text, event.stored.seq, event));
                    pipe.send(text).await
                }
                Awaited::Event(Ok(None)) => {
                    match end_of(id, app.engine.store().run(app.org(), id).await) {
                        Ok(end) => {
                            let end = serde_json::to_string(&end).unwrap_or_default();
                            pipe.send(format!("event: end\ndata: {end}\n\n")).await;
                        }
                        // Without an `end` the client connects again, and learns how the run ended then.
                        Err(error) => tracing::warn!(%error, run = %id, "a stream ended early"),
                    }
                    None
                }
                Awaited::Event(Err(error)) => {
                    tracing::warn!(%error, run = %id, "a stream ended early");
                    None
                }
                Awaited::Closed => None,
            };
        }
    });
    Ok(response)
}

/// How the run ended. A run is deleted if the store does not have it, and not if the store cannot be read.
fn end_of(run: RunId, row: Result<Option<RunRow>, store::Error>) -> Result<StreamEndView, store::Error> {
    let status = row?.map_or("deleted", |row| row.status.as_str());
    Ok(StreamEndView { run_id: run.to_string(), status: status.into() })
}

/// An event may arrive twice but none is lost: the id of the stream moves only with the last event of a record, because
/// the events of a record share one position.
pub async fn of_all(app: State, query: Query, headers: HeaderMap) -> Answer {
    let after = cursor(&query, &headers, "the `id` of an earlier event")?;
    let workflow = match query.get("workflow") {
        Some(key) => Some(find_or_deleted(&app, key).await?.id),
        None => None,
    };
    let types: Vec<String> = query.all("type").flat_map(|list| list.split(',')).map(str::to_owned).collect();
    let is_type =
        |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b"._".contains(&b));
    if let Some(bad) = types.iter().find(|text| !is_type(text)) {
        return Err(invalid("type", bad, "types of events, such as run.completed,step.failed"));
    }
    let permit = permit(&app)?;
    let mut subscription = app.engine.subscriptions.all(app.org(), after).await?;
    let (mut pipe, response) = StreamSender::open(&app, permit);
    tokio::spawn(async move {
        // The position comes first: a client that is disconnected before the first event resumes from here.
        let mut sent = pipe.send(format!("{RETRY}id: {}\n\n", subscription.position())).await;
        while sent.is_some() {
            sent = match pipe.next(subscription.next()).await {
                Awaited::Idle => pipe.send(":\n\n".into()).await,
                Awaited::Event(Ok((records, end))) => {
                    let mut text = String::new();
                    for (position, events) in &records {
                        let is_wanted = |event: &RunEvent| {
                            workflow.is_none_or(|id| id == event.version.workflow)
                                && (types.is_empty()
                                    || types.iter().any(|t| Some(t.as_str()) == event.stored.event.name()))
                        };
                        for (i, event) in events.iter().enumerate().filter(|(_, event)| is_wanted(event)) {
                            let is_last = i + 1 == events.len();
                            write_event(&mut text, if is_last { *position } else { position - 1 }, event);
                        }
                    }
                    // Moves the position past filtered events, so that a new stream does not read them again.
                    let _ = write!(text, "id: {end}\n\n");
                    pipe.send(text).await
                }
                Awaited::Event(Err(error)) => {
                    tracing::warn!(%error, "a stream ended early");
                    None
                }
                Awaited::Closed => None,
            };
        }
    });
    Ok(response)
}

/// The position from `Last-Event-ID`, which browsers send, otherwise from `?after=`.
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

fn write_event(text: &mut String, id: u64, event: &RunEvent) {
    let (run_id, workflow) = (event.run.to_string(), event.workflow.to_string());
    let event = views::event(&event.version.plan, &event.stored);
    let view = StreamEventView { event, run_id, workflow };
    // serde writes JSON without line breaks, so one `data` line is enough.
    let data = serde_json::to_string(&view).unwrap_or_default();
    let _ = write!(text, "id: {id}\ndata: {data}\n\n");
}

fn permit(app: &App) -> Result<OwnedSemaphorePermit, Refusal> {
    app.streams.clone().try_acquire_owned().map_err(|_| {
        Refusal::new(Code::TooManyStreams, "too many streams are open")
            .hint("close a stream, or read `GET /runs/{run}/events` page by page")
    })
}

/// What a stream waited for.
enum Awaited<T> {
    Event(T),
    Idle,
    /// The client disconnected, or the server is draining.
    Closed,
}

/// The sending end of a stream.
struct StreamSender {
    sender: mpsc::Sender<Bytes>,
    draining: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl StreamSender {
    fn open(app: &App, permit: OwnedSemaphorePermit) -> (StreamSender, Response) {
        let (sender, receiver) = mpsc::channel(1);
        let response = Response::builder()
            .header("content-type", "text/event-stream")
            .header("cache-control", "no-store")
            .header("x-accel-buffering", "no")
            .body(Body::new(StreamBody(receiver)))
            .unwrap_or_default();
        (StreamSender { sender, draining: app.draining.subscribe(), _permit: permit }, response)
    }

    /// Waits until the client has received enough; `None` if the stream is closed.
    async fn send(&mut self, text: String) -> Option<()> {
        if text.is_empty() {
            return Some(());
        }
        tokio::select! {
            sent = self.sender.send(text.into()) => sent.ok(),
            _ = self.draining.wait_for(|is_draining| *is_draining) => None,
        }
    }

    async fn next<T>(&mut self, event: impl Future<Output = T>) -> Awaited<T> {
        tokio::select! {
            biased;
            _ = self.draining.wait_for(|is_draining| *is_draining) => Awaited::Closed,
            () = self.sender.closed() => Awaited::Closed,
            event = event => Awaited::Event(event),
            () = tokio::time::sleep(KEEP_ALIVE) => Awaited::Idle,
        }
    }
}

/// The receiving end of a stream, as a response body.
struct StreamBody(mpsc::Receiver<Bytes>);

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i37_a_run_counts_as_deleted_only_if_the_store_says_that_it_has_none() {
        let run = RunId([1; 16]);
        let end = end_of(run, Ok(None)).expect("the store was read");
        assert_eq!((end.run_id, &*end.status), (run.to_string(), "deleted"));
        for error in [store::Error::Unavailable("the disk is full".into()), store::Error::Fenced] {
            assert!(end_of(run, Err(error)).is_err(), "a failed lookup says nothing about the run");
        }
    }
}
