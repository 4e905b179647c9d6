//! The queue of HTTP requests. An attempt waits in [`HttpQueue`] until the limits allow it, and is then sent beside the
//! engine loop. Whether its host is down was asked before the attempt started, see [`HttpSender::hold`]. Each attempt here is durable as a `Started` event
//! without an outcome, so a crash loses none of them.

use super::fair_queue::{FairQueue, HttpQueuePosition};
use super::fake_network::FakeNetwork;
use super::hop::Hop;
use super::host_backoff::{BlockReason, Blocked, HostBackoff, HostKey, HostResponse, Sender};
use super::http;
use super::{Executor, Sink};
use crate::clock::Clock;
use crate::mailbox::{Dispatch, HoldRequest};
use crate::secret::Signer;
use kernel::advance::{HeldBack, NextRequest, TaskResult, Work};
use kernel::event::Failure;
use kernel::{OrgId, RunId, Span, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use store::crash::{self, Point};
use tokio::sync::oneshot;
use url::Url;

/// HTTP requests under way at once; more wait in the queue.
const TOTAL_MAX: usize = 512;

/// How requests are sent.
#[derive(Clone, Default)]
pub struct HttpOptions {
    /// Signs every request.
    pub signer: Option<Signer>,
    /// Requests of one organisation under way at once; `None` for no limit but the total.
    pub per_organisation: Option<usize>,
    /// Requests do not wait for hosts that are down or asked for a pause.
    pub ignore_host_backoff: bool,
    /// For tests: requests go here instead of the network. They do not queue, are not blocked for hosts that are down,
    /// are not signed and follow no redirects.
    pub fake_network: Option<Arc<FakeNetwork>>,
}

/// An attempt: the run and its fence.
type Id = (RunId, u64);

/// HTTP attempts that wait to be sent, and those under way.
pub struct HttpQueue(Mutex<State>);

struct State {
    fair_queue: FairQueue<Id, Dispatch>,
    /// Dropping the sender aborts the attempt.
    under_way: HashMap<Id, oneshot::Sender<()>>,
    is_sending: bool,
    /// No further request is sent.
    is_closed: bool,
}

impl HttpQueue {
    pub fn new(options: &HttpOptions) -> HttpQueue {
        let fair_queue = FairQueue::new(TOTAL_MAX, options.per_organisation.unwrap_or(TOTAL_MAX));
        HttpQueue(Mutex::new(State { fair_queue, under_way: HashMap::new(), is_sending: false, is_closed: false }))
    }

    /// Stops sending. Attempts that were not sent are returned as blocked, so that the next process sends them.
    pub fn close(&self) -> Vec<(Dispatch, TaskResult)> {
        let mut state = self.lock();
        state.is_closed = true;
        state.fair_queue.withdraw_all().into_iter().map(not_sent).collect()
    }

    /// The position of a waiting attempt; `None` if it does not wait.
    pub fn position(&self, run: RunId, fence: u64) -> Option<HttpQueuePosition> {
        self.lock().fair_queue.position((run, fence))
    }

    /// How many attempts wait.
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
    host_backoff: Arc<Mutex<HostBackoff>>,
    ignore_host_backoff: bool,
    sink: Sink,
}

impl Executor for Arc<HttpSender> {
    /// Queues an attempt, or returns it as blocked when the queue is closed.
    fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        {
            let mut state = self.queue.lock();
            if state.is_closed {
                return Some(not_sent(dispatch));
            }
            state.fair_queue.enter(dispatch.org, (dispatch.run, dispatch.fence), dispatch);
        }
        self.send_next();
        None
    }

    /// It leaves the queue, or its connection is closed.
    fn abort(&self, run: RunId, fence: u64) {
        let mut state = self.queue.lock();
        if !state.fair_queue.withdraw((run, fence)) {
            state.under_way.remove(&(run, fence));
        }
    }
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
            ignore_host_backoff: options.ignore_host_backoff,
            sink,
        }))
    }

    /// Sends every attempt that the limits allow. Only one call does so at a time, and it is not recursive: a runtime
    /// that shuts down drops a spawned attempt at once, whose [`Permit`] would call this again, and so on.
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
            let (abort, aborted) = oneshot::channel();
            state.under_way.insert(id, abort);
            drop(state);
            let permit = Permit { of: self.clone(), org: dispatch.org, id };
            self.runtime.spawn(self.clone().attempt(permit, dispatch, aborted));
        }
    }

    async fn attempt(self: Arc<Self>, permit: Permit, dispatch: Dispatch, aborted: oneshot::Receiver<()>) {
        crash::point(Point::BeforeEffect);
        let result = tokio::select! {
            _ = aborted => return,
            result = self.perform(&dispatch) => result,
        };
        crash::point(Point::AfterEffect);
        drop(permit);
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
        let _visit = HostVisit { of: self, key, sender };
        let on_response = |origin: &str, response: HostResponse| {
            self.host_backoff().record_response(&(org, origin.to_owned()), sender, response, self.clock.now())
        };
        http::perform(&self.client, self.signer.as_ref(), request, first, &on_response).await
    }

    /// Decides whether attempts may start. The answer comes from memory, so the engine loop can ask for each attempt.
    pub fn hold(&self) -> HoldRequest {
        if self.ignore_host_backoff {
            return Arc::new(|_, _, _, _| None);
        }
        let hosts = self.host_backoff.clone();
        Arc::new(move |org, run, next, now| {
            let mut hosts = lock(&hosts);
            if hosts.is_empty() {
                return None;
            }
            let NextRequest { step, fence, request } = next;
            // The executor reports a URL that cannot be read.
            let key = (org, Url::parse(&request.url).ok()?.origin().ascii_serialization());
            let blocked = hosts.admit(&key, Sender { run, step, fence }, request.timeout, now).err()?;
            let failure = Failure::new("host_backoff", explain(&key.1, blocked));
            Some(HeldBack { until: blocked.until, failure })
        })
    }

    fn host_backoff(&self) -> MutexGuard<'_, HostBackoff> {
        lock(&self.host_backoff)
    }
}

fn lock(hosts: &Mutex<HostBackoff>) -> MutexGuard<'_, HostBackoff> {
    hosts.lock().unwrap_or_else(|e| e.into_inner())
}

fn not_sent(dispatch: Dispatch) -> (Dispatch, TaskResult) {
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

/// One active request in the limits, released however its attempt ends.
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
            state.under_way.remove(&self.id);
        }
        self.of.send_next();
    }
}

/// A request that is being sent. If it ends without a response, dropping it reports it as abandoned.
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
