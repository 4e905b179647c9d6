//! Shared test tools: the conformance suite for stores, the simulator, and Postgres fixtures.
//!
//! A dev-dependency only. The conformance suite and the simulator read no clock and no system randomness, so
//! a failure names the seed that reproduces it.

pub mod conformance;
pub mod postgres;
pub mod rng;
pub mod sim;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// How much a test does: the number in an environment variable, which the long tier sets, or the one of the fast tier.
pub fn number_from_env(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{variable}: {e}")))
}

/// Polls a future once and returns its result. Calls to a local store outside a runtime never wait.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the future is pending, expected it to be ready at once"),
    }
}
