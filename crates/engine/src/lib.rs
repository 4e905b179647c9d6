//! The engine acts: it reads runs, lets the kernel decide, commits, leases tasks, executes steps and fires timers.
//! Loops, clocks, sockets and spawned tasks live here and in no crate below.
//!
//! Read in this order: [`mailbox`] (the state machine that owns runs in memory) with its [`task_queue`] and
//! [`concurrency_groups`], [`driver`] (what happens around its turns), [`services`] (the loop that drives it, and what the server calls), then [`clock`],
//! [`secret`], [`execute`] and [`triggers`].

pub mod bash_worker;
pub mod catalog;
pub mod child_rows;
pub mod clock;
pub mod concurrency_groups;
pub mod driver;
pub mod engine;
pub mod error;
pub mod execute;
pub mod explain;
pub mod mailbox;
pub mod metrics;
pub mod nodes;
pub mod run_diff;
pub mod secret;
pub mod services;
pub mod task_queue;
pub mod triggers;
pub mod verify;
pub mod version;

pub use bash_worker::{BashOptions, BashWorker};
pub use catalog::WorkflowChange;
pub use clock::{Clock, ClockMode};
pub use engine::{Engine, Options};
pub use error::{CannotMove, Error};
pub use execute::fake_network::{FakeNetwork, FakeResponse, PendingCall};
pub use execute::{HttpOptions, HttpQueuePosition};
pub use mailbox::Reply;
pub use services::replay::Edition;
pub use services::runs::{Idempotency, Source, StartRequest, Started};
pub use version::Version;

use kernel::Span;

/// Timers due within this span are in memory; later ones are only rows.
pub const TIMER_READ_AHEAD: Span = Span::from_secs(5);
