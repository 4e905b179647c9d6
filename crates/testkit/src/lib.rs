//! What tests share: the suite every store must pass, the simulator, and the small tools they are made
//! of.
//!
//! A dev-dependency only. Nothing here reads a clock or the system's randomness: a failure names the
//! seed that shows it again.

pub mod conformance;
pub mod postgres;
pub mod rng;
pub mod sim;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The answer of a future that never has to wait, which a local store's calls outside a runtime are.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a future that should not wait did"),
    }
}
