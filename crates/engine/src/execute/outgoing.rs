//! HTTP work on its way out: it stands in [`Line`] until there is room, is held back while its host is down,
//! and is then sent beside the loop. Everything that waits here is durable as a `Started` event without an
//! outcome, so losing this memory loses nothing.

use super::Sink;
use super::desk::Desk;
use super::hop::Hop;
use super::hosts::{Blocked, Hosts, Key, Met, Sender, Why};
use super::http;
use super::lanes::{Lanes, Place};
use crate::clock::Clock;
use crate::mailbox::Dispatch;
use crate::secret::Signer;
use kernel::advance::{TaskResult, Work};
use kernel::event::Failure;
use kernel::{OrgId, RunId, Span, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use store::crash::{self, Point};
use tokio::sync::oneshot;

/// HTTP requests under way at once; more wait their turn.
const TOTAL_MAX: usize = 512;

/// How requests are sent.
#[derive(Clone, Default)]
pub struct HttpOptions {
    /// Signs every request.
    pub signer: Option<Signer>,
    /// Requests of one organisation under way at once; `None` for no limit but the one all share.
    pub per_organisation: Option<usize>,
    /// Nothing is sent: requests are laid here instead. They do not stand in line, are not held back for
    /// hosts that are down, are not signed and follow no redirects.
    pub desk: Option<Arc<Desk>>,
}

/// An attempt: the run and its fence.
type Id = (RunId, u64);

/// HTTP attempts that wait for room, and those that have it.
pub struct Line(Mutex<State>);

struct State {
    lanes: Lanes<Id, Dispatch>,
    /// Dropping the sender calls the attempt off.
    going: HashMap<Id, oneshot::Sender<()>>,
    is_sending: bool,
    /// Nothing is sent any more.
    is_closed: bool,
}

impl Line {
    pub fn new(options: &HttpOptions) -> Line {
        let lanes = Lanes::new(TOTAL_MAX, options.per_organisation.unwrap_or(TOTAL_MAX));
        Line(Mutex::new(State { lanes, going: HashMap::new(), is_sending: false, is_closed: false }))
    }

    /// Nothing is sent from now on. What has not been sent is handed back, for another process to send.
    pub fn close(&self) -> Vec<(Dispatch, TaskResult)> {
        let mut state = self.lock();
        state.is_closed = true;
        state.lanes.withdraw_all().into_iter().map(hand_back).collect()
    }

    /// Where an attempt waits for room; `None` when it does not.
    pub fn place(&self, run: RunId, fence: u64) -> Option<Place> {
        self.lock().lanes.place((run, fence))
    }

    /// How many wait for room.
    pub fn waiting(&self) -> usize {
        self.lock().lanes.waiting()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

pub struct Outgoing {
    runtime: tokio::runtime::Handle,
    client: reqwest::Client,
    signer: Option<Signer>,
    clock: Arc<Clock>,
    line: Arc<Line>,
    hosts: Mutex<Hosts>,
    sink: Sink,
}

impl Outgoing {
    pub fn new(
        runtime: tokio::runtime::Handle,
        options: HttpOptions,
        line: Arc<Line>,
        clock: Arc<Clock>,
        sink: Sink,
    ) -> Result<Arc<Outgoing>, String> {
        let client = http::client()?;
        Ok(Arc::new(Outgoing { runtime, client, signer: options.signer, clock, line, hosts: Default::default(), sink }))
    }

    /// Takes a place in the line, or hands the work back when the line is closed.
    pub fn enter(self: &Arc<Self>, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        {
            let mut state = self.line.lock();
            if state.is_closed {
                return Some(hand_back(dispatch));
            }
            state.lanes.enter(dispatch.org, (dispatch.run, dispatch.fence), dispatch);
        }
        self.send_next();
        None
    }

    /// Nobody wants the result any more: it leaves the line, or its connection is dropped.
    pub fn call_off(&self, run: RunId, fence: u64) {
        let mut state = self.line.lock();
        if !state.lanes.withdraw((run, fence)) {
            state.going.remove(&(run, fence));
        }
    }

    /// Sends whatever there is room for. Only one call does so at a time, and never inside itself: a
    /// runtime that shuts down drops what it is given at once, which makes room for the next, and so on.
    fn send_next(self: &Arc<Self>) {
        if std::mem::replace(&mut self.line.lock().is_sending, true) {
            return;
        }
        loop {
            let mut state = self.line.lock();
            let Some((id, dispatch)) = state.lanes.next() else {
                state.is_sending = false;
                return;
            };
            let (call_off, called_off) = oneshot::channel();
            state.going.insert(id, call_off);
            drop(state);
            let room = Room { of: self.clone(), org: dispatch.org, id };
            self.runtime.spawn(self.clone().attempt(room, dispatch, called_off));
        }
    }

    async fn attempt(self: Arc<Self>, room: Room, dispatch: Dispatch, called_off: oneshot::Receiver<()>) {
        crash::point(Point::BeforeEffect);
        let result = tokio::select! {
            _ = called_off => return,
            result = self.perform(&dispatch) => result,
        };
        crash::point(Point::AfterEffect);
        drop(room);
        (self.sink)(&dispatch, result);
    }

    async fn perform(&self, dispatch: &Dispatch) -> TaskResult {
        let Work::Http(request) = &dispatch.work else {
            unreachable!("only HTTP work is sent here, see `Executors::execute`")
        };
        let first = match Hop::first(request, dispatch) {
            Ok(first) => first,
            Err(failure) => return TaskResult::Failed { failure, retryable: false, retry_after: None, took: Span(0) },
        };
        let Dispatch { org, run, step, fence, .. } = *dispatch;
        let sender = Sender { run, step, fence };
        let key = (org, first.origin());
        if let Err(blocked) = self.hosts().admit(&key, sender, self.clock.now()) {
            let failure = Failure::new("host_backoff", explain(&key.1, blocked));
            return TaskResult::Blocked { until: blocked.until, failure };
        }
        let _visit = Visit { of: self, key, sender };
        let met = |origin: &str, met: Met| self.hosts().met(&(org, origin.to_owned()), sender, met, self.clock.now());
        http::perform(&self.client, self.signer.as_ref(), request, first, &met).await
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn hand_back(dispatch: Dispatch) -> (Dispatch, TaskResult) {
    let failure = Failure::new("server_stopping", "the server is being stopped, so nothing was sent");
    (dispatch, TaskResult::Blocked { until: Timestamp::default(), failure })
}

fn explain(origin: &str, blocked: Blocked) -> String {
    match blocked.why {
        Why::Down { failures } => {
            format!("`{origin}` seems to be down ({failures} failures in a row), so nothing was sent")
        }
        Why::AskedToWait => format!("`{origin}` asked for a pause, so nothing was sent"),
    }
}

/// Room for one request, given back however its attempt ends.
struct Room {
    of: Arc<Outgoing>,
    org: OrgId,
    id: Id,
}

impl Drop for Room {
    fn drop(&mut self) {
        {
            let mut state = self.of.line.lock();
            state.lanes.leave(self.org);
            state.going.remove(&self.id);
        }
        self.of.send_next();
    }
}

/// An admitted request. One that ends without having met anything was given up.
struct Visit<'a> {
    of: &'a Outgoing,
    key: Key,
    sender: Sender,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.of.hosts().given_up(&self.key, self.sender);
    }
}
