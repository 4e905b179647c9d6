//! HTTP work on its way out: it stands in [`HttpQueue`] until there is room, is held back while its host is down,
//! and is then sent beside the loop. Everything that waits here is durable as a `Started` event without an
//! outcome, so losing this memory loses nothing.

use super::Sink;
use super::fair_queue::{FairQueue, HttpQueuePosition};
use super::fake_network::FakeNetwork;
use super::hop::Hop;
use super::host_backoff::{BlockReason, Blocked, HostBackoff, HostKey, Response, Sender};
use super::http;
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
    pub fake_network: Option<Arc<FakeNetwork>>,
}

/// An attempt: the run and its fence.
type Id = (RunId, u64);

/// HTTP attempts that wait for room, and those that have it.
pub struct HttpQueue(Mutex<State>);

struct State {
    fair_queue: FairQueue<Id, Dispatch>,
    /// Dropping the sender calls the attempt off.
    going: HashMap<Id, oneshot::Sender<()>>,
    is_sending: bool,
    /// Nothing is sent any more.
    is_closed: bool,
}

impl HttpQueue {
    pub fn new(options: &HttpOptions) -> HttpQueue {
        let fair_queue = FairQueue::new(TOTAL_MAX, options.per_organisation.unwrap_or(TOTAL_MAX));
        HttpQueue(Mutex::new(State { fair_queue, going: HashMap::new(), is_sending: false, is_closed: false }))
    }

    /// Nothing is sent from now on. What has not been sent is handed back, for another process to send.
    pub fn close(&self) -> Vec<(Dispatch, TaskResult)> {
        let mut state = self.lock();
        state.is_closed = true;
        state.fair_queue.withdraw_all().into_iter().map(hand_back).collect()
    }

    /// Where an attempt waits for room; `None` when it does not.
    pub fn position(&self, run: RunId, fence: u64) -> Option<HttpQueuePosition> {
        self.lock().fair_queue.position((run, fence))
    }

    /// How many wait for room.
    pub fn waiting(&self) -> usize {
        self.lock().fair_queue.waiting()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

pub struct HttpSender {
    runtime: tokio::runtime::Handle,
    client: reqwest::Client,
    signer: Option<Signer>,
    clock: Arc<Clock>,
    queue: Arc<HttpQueue>,
    host_backoff: Mutex<HostBackoff>,
    sink: Sink,
}

impl HttpSender {
    pub fn new(
        runtime: tokio::runtime::Handle,
        options: HttpOptions,
        queue: Arc<HttpQueue>,
        clock: Arc<Clock>,
        sink: Sink,
    ) -> Result<Arc<HttpSender>, String> {
        let client = http::client()?;
        Ok(Arc::new(HttpSender {
            runtime,
            client,
            signer: options.signer,
            clock,
            queue,
            host_backoff: Default::default(),
            sink,
        }))
    }

    /// Takes a place in the line, or hands the work back when the line is closed.
    pub fn enter(self: &Arc<Self>, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        {
            let mut state = self.queue.lock();
            if state.is_closed {
                return Some(hand_back(dispatch));
            }
            state.fair_queue.enter(dispatch.org, (dispatch.run, dispatch.fence), dispatch);
        }
        self.send_next();
        None
    }

    /// Nobody wants the result any more: it leaves the line, or its connection is dropped.
    pub fn abort(&self, run: RunId, fence: u64) {
        let mut state = self.queue.lock();
        if !state.fair_queue.withdraw((run, fence)) {
            state.going.remove(&(run, fence));
        }
    }

    /// Sends whatever there is room for. Only one call does so at a time, and never inside itself: a
    /// runtime that shuts down drops what it is given at once, which makes room for the next, and so on.
    fn send_next(self: &Arc<Self>) {
        if std::mem::replace(&mut self.queue.lock().is_sending, true) {
            return;
        }
        loop {
            let mut state = self.queue.lock();
            let Some((id, dispatch)) = state.fair_queue.next() else {
                state.is_sending = false;
                return;
            };
            let (abort, cancellations) = oneshot::channel();
            state.going.insert(id, abort);
            drop(state);
            let room = Permit { of: self.clone(), org: dispatch.org, id };
            self.runtime.spawn(self.clone().attempt(room, dispatch, cancellations));
        }
    }

    async fn attempt(self: Arc<Self>, room: Permit, dispatch: Dispatch, cancellations: oneshot::Receiver<()>) {
        crash::point(Point::BeforeEffect);
        let result = tokio::select! {
            _ = cancellations => return,
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
        if let Err(blocked) = self.host_backoff().admit(&key, sender, self.clock.now()) {
            let failure = Failure::new("host_backoff", explain(&key.1, blocked));
            return TaskResult::Blocked { until: blocked.until, failure };
        }
        let _visit = HostVisit { of: self, key, sender };
        let met = |origin: &str, met: Response| {
            self.host_backoff().record_response(&(org, origin.to_owned()), sender, met, self.clock.now())
        };
        http::perform(&self.client, self.signer.as_ref(), request, first, &met).await
    }

    fn host_backoff(&self) -> MutexGuard<'_, HostBackoff> {
        self.host_backoff.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn hand_back(dispatch: Dispatch) -> (Dispatch, TaskResult) {
    let failure = Failure::new("server_stopping", "the server is being stopped, so nothing was sent");
    (dispatch, TaskResult::Blocked { until: Timestamp::default(), failure })
}

fn explain(origin: &str, blocked: Blocked) -> String {
    match blocked.why {
        BlockReason::Outage { failures } => {
            format!("`{origin}` seems to be down ({failures} failures in a row), so nothing was sent")
        }
        BlockReason::AskedToWait => format!("`{origin}` asked for a pause, so nothing was sent"),
    }
}

/// Room for one request, given back however its attempt ends.
struct Permit {
    of: Arc<HttpSender>,
    org: OrgId,
    id: Id,
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.of.queue.lock();
            state.fair_queue.leave(self.org);
            state.going.remove(&self.id);
        }
        self.of.send_next();
    }
}

/// An admitted request. One that ends without having met anything was given up.
struct HostVisit<'a> {
    of: &'a HttpSender,
    key: HostKey,
    sender: Sender,
}

impl Drop for HostVisit<'_> {
    fn drop(&mut self) {
        self.of.host_backoff().record_abandoned(&self.key, self.sender);
    }
}
