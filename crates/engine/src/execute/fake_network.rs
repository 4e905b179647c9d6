//! A fake network for tests: it keeps HTTP requests instead of sending them. The test reads each request as it would be
//! sent, and decides what the answer is and when it arrives.
//!
//! ```text
//!   engine ──put──▶ fake network ──pending_calls──▶ test
//!          ◀─sink──              ◀─────answer──────
//! ```
//!
//! Everything before and after the wire is real: URLs and hosts are checked, headers added, bodies cut, `Retry-After`
//! read. The engine counts as idle while requests wait here, so `VirtualClock::settled` does not wait for them.

use super::hop::Hop;
use super::http;
use super::{Executor, Sink};
use crate::clock::Clock;
use crate::mailbox::Dispatch;
use bytes::Bytes;
use kernel::advance::{TaskResult, Work};
use kernel::event::{Failure, Pair};
use kernel::{RunId, Span};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A request as it would be sent.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// Identifies the call in [`FakeNetwork::answer`]; later calls have larger numbers.
    pub number: u64,
    pub run: RunId,
    /// The step's index in the plan, and its key.
    pub index: u32,
    pub step: String,
    pub attempt: u32,
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Bytes>,
    /// How long the attempt may take.
    pub timeout: Span,
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub enum FakeResponse {
    Response {
        status: u16,
        headers: Vec<(String, String)>,
        body: Bytes,
    },
    /// The network failed with this message.
    Network(String),
    /// There was no answer within the attempt's timeout.
    Nothing,
}

/// The fake network of one engine.
#[derive(Default)]
pub struct FakeNetwork(Mutex<State>);

#[derive(Default)]
struct State {
    pending: BTreeMap<u64, (Dispatch, PendingCall)>,
    /// The test has seen the calls up to this number.
    shown: u64,
    last: u64,
    /// Set once an engine uses this network.
    engine: Option<(Arc<Clock>, Sink)>,
}

impl Executor for Arc<FakeNetwork> {
    /// Takes a request; answers at once if it is invalid and could not be sent.
    fn execute(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        let Work::Http(request) = &dispatch.work else {
            unreachable!("only HTTP work comes here, see `Executors::execute`")
        };
        let hop = match Hop::first(request, &dispatch) {
            Ok(hop) => hop,
            Err(failure) => {
                return Some((
                    dispatch,
                    TaskResult::Failed { failure, retryable: false, retry_after: None, took: Span(0) },
                ));
            }
        };
        let mut state = self.lock();
        state.last += 1;
        let call = PendingCall {
            number: state.last,
            run: dispatch.run,
            index: dispatch.step,
            step: dispatch.key.clone(),
            attempt: dispatch.attempt,
            method: hop.method.to_string(),
            url: hop.url.to_string(),
            headers: hop.headers,
            body: hop.body,
            timeout: request.timeout,
        };
        state.pending.insert(call.number, (dispatch, call));
        None
    }

    fn abort(&self, run: RunId, fence: u64) {
        self.lock().pending.retain(|_, (dispatch, _)| (dispatch.run, dispatch.fence) != (run, fence));
    }

    fn held(&self) -> usize {
        self.lock().pending.len()
    }
}

impl FakeNetwork {
    /// Requests that arrived since the last call, in order.
    pub fn pending_calls(&self) -> Vec<PendingCall> {
        let mut state = self.lock();
        let last = state.last;
        let shown = std::mem::replace(&mut state.shown, last);
        state.pending.range(shown + 1..).map(|(_, (_, call))| call.clone()).collect()
    }

    /// Answers a call as if that took `took`. False when the engine no longer waits for it.
    pub fn answer(&self, number: u64, reached: FakeResponse, took: Span) -> bool {
        let mut state = self.lock();
        let Some((clock, sink)) = state.engine.clone() else { return false };
        let Some((dispatch, call)) = state.pending.remove(&number) else { return false };
        drop(state);
        let result = match reached {
            FakeResponse::Network(why) => {
                TaskResult::Failed { failure: Failure::new("network", why), retryable: true, retry_after: None, took }
            }
            FakeResponse::Nothing => TaskResult::TimedOut { message: http::no_answer(call.timeout), took },
            FakeResponse::Response { status, headers, body } => {
                let retry_after = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
                let retry_after = retry_after.and_then(|(_, text)| http::parse_retry_after(text, clock.now()));
                let pair = |(name, value): (String, String)| Pair {
                    name: name.to_ascii_lowercase(),
                    value,
                    ..Default::default()
                };
                let headers = headers.into_iter().map(pair).collect();
                TaskResult::Response { status, headers, body: http::kept(body), retry_after, took }
            }
        };
        sink(&dispatch, result);
        true
    }

    /// Connects the network to an engine.
    pub(super) fn open(&self, clock: Arc<Clock>, sink: Sink) {
        self.lock().engine = Some((clock, sink));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}
