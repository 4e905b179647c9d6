//! The engine acts: it loads, lets the kernel decide, commits, hands out work and wakes sleepers.
//! Loops, clocks, sockets and spawned tasks live here and nowhere below.
//!
//! Read in this order: [`mailbox`] (the state machine that owns runs in memory), [`engine`] (the loop
//! around it and the calls the server makes), then [`clock`], [`secret`], [`execute`] and
//! [`triggers`].

pub mod clock;
pub mod concurrency_groups;
pub mod engine;
pub mod execute;
pub mod explain;
pub mod mailbox;
pub mod metrics;
pub mod nodes;
pub mod secret;
pub mod task_queue;
pub mod triggers;
pub mod verify;
pub mod version;

pub use clock::{Clock, ClockMode};
pub use engine::{Change, Edition, Engine, Error, Idempotency, Options, Source, StartRequest, Started};
pub use execute::fake_network::{FakeNetwork, PendingCall, Reached};
pub use execute::{HttpOptions, HttpQueuePosition};
pub use mailbox::Reply;
pub use version::Version;

use kernel::Span;

/// Timers due within this are kept in memory; later ones only as rows.
pub const HORIZON: Span = Span::from_secs(5);
