//! What every test needs: the server, a client, an upstream that remembers, and patience.

mod api;
mod http;
mod place;
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

/// Long enough for a busy machine; no test waits this long unless it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("waited {PATIENCE:?} in vain: {what}");
}
