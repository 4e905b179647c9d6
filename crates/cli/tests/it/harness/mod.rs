//! What every test needs: the server, a client, an upstream that records requests, and polling with a deadline.

mod api;
mod http;
pub mod place;
mod server;
mod sse;
mod tasks;
mod upstream;

pub use api::{Api, is_terminal, micros};
pub use http::Answer;
pub use place::{has_point, holds, one_node_only, postgres_only, sqlite_only};
pub use server::{Server, Starting, onward, onward_with_input};
pub use sse::{Message, Stream};
pub use tasks::{Claimed, names};
pub use upstream::{Act, Effect, Upstream, json, reply, status};

use std::time::{Duration, Instant};

/// How long a test waits for anything. Long enough for a busy machine; only a test that fails waits this long.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Calls `ask` again and again until it returns a value.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not within {WAIT_MAX:?}: {what}");
}
