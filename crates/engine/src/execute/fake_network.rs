//! A desk on which HTTP requests are laid instead of being sent. Whoever plays the part of the network
//! looks at them as they would go out, and says what comes of each, when it likes.
//!
//! ```text
//!   engine ──lay──▶ desk ──calls──▶ somebody
//!          ◀─sink──      ◀─answer──
//! ```
//!
//! Everything before and after the wire is as always: addresses and hosts are checked, headers added,
//! bodies cut, `Retry-After` read. While a request lies here nothing happens by itself, which is what
//! `Engine::settled` waits for.

use super::Sink;
use super::hop::Hop;
use super::http;
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
    /// Names it in [`FakeNetwork::answer`]; later calls have larger numbers.
    pub number: u64,
    pub run: RunId,
    /// The step's place in the plan, and its name.
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

/// What came of a request.
#[derive(Clone, Debug)]
pub enum Reached {
    Response {
        status: u16,
        headers: Vec<(String, String)>,
        body: Bytes,
    },
    /// The network failed, for this reason.
    Network(String),
    /// There was no answer within the attempt's time.
    Nothing,
}

/// Serves one engine.
#[derive(Default)]
pub struct FakeNetwork(Mutex<State>);

#[derive(Default)]
struct State {
    lying: BTreeMap<u64, (Dispatch, PendingCall)>,
    /// Calls up to this number have been shown.
    shown: u64,
    last: u64,
    /// There once an engine has the desk.
    engine: Option<(Arc<Clock>, Sink)>,
}

impl FakeNetwork {
    /// Requests that were laid here since the last look, in order.
    pub fn pending_calls(&self) -> Vec<PendingCall> {
        let mut state = self.lock();
        let last = state.last;
        let shown = std::mem::replace(&mut state.shown, last);
        state.lying.range(shown + 1..).map(|(_, (_, call))| call.clone()).collect()
    }

    /// Says what came of a call after `took`. False when nobody waits for it any more.
    pub fn answer(&self, number: u64, reached: Reached, took: Span) -> bool {
        let mut state = self.lock();
        let Some((clock, sink)) = state.engine.clone() else { return false };
        let Some((dispatch, call)) = state.lying.remove(&number) else { return false };
        drop(state);
        let result = match reached {
            Reached::Network(why) => {
                TaskResult::Failed { failure: Failure::new("network", why), retryable: true, retry_after: None, took }
            }
            Reached::Nothing => TaskResult::TimedOut { message: http::no_answer(call.timeout), took },
            Reached::Response { status, headers, body } => {
                let asked = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
                let retry_after = asked.and_then(|(_, text)| http::parse_retry_after(text, clock.now()));
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

    /// How many lie here.
    pub(super) fn len(&self) -> usize {
        self.lock().lying.len()
    }

    /// Results go to this engine from now on.
    pub(super) fn open(&self, clock: Arc<Clock>, sink: Sink) {
        self.lock().engine = Some((clock, sink));
    }

    /// Takes a request, or hands back what came of one that could not be sent.
    pub(super) fn put(&self, dispatch: Dispatch) -> Option<(Dispatch, TaskResult)> {
        let Work::Http(request) = &dispatch.work else {
            unreachable!("only HTTP work is laid here, see `Executors::execute`")
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
        state.lying.insert(call.number, (dispatch, call));
        None
    }

    pub(super) fn abort(&self, run: RunId, fence: u64) {
        self.lock().lying.retain(|_, (dispatch, _)| (dispatch.run, dispatch.fence) != (run, fence));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}
