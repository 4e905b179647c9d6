//! The services behind [`Engine`](crate::Engine). Each has its own state and handles on the services it needs.
//!
//! ```text
//!   tasks ─────────┐                         ┌──▶ engine_loop ──▶ mailbox ──▶ store
//!   triggers ◀─┬── webhooks                  │
//!       │      └── scheduler ◀── virtual_clock
//!       ▼                                    │
//!      runs ◀── outbox, retention, children  │
//!       ▼                                    │
//!    workflows ◀── subscriptions             │
//!       ▼                                    │
//!    cluster ──▶ core (store, clock, inbox) ─┘
//! ```
//!
//! A change to a run goes through the inbox to the engine loop. Reads go to the store, on the caller's async task.

pub mod children;
pub mod clock_skew;
pub mod cluster;
mod cluster_events;
pub mod core;
pub mod deferred_inputs;
pub mod engine_loop;
pub mod explanations;
mod fork;
pub mod id_generator;
mod input_check;
pub mod outbox;
mod overrides;
mod pause;
mod relocation;
mod repair;
pub mod replay;
mod reply_channel;
pub mod retention;
mod run_bulk;
pub mod run_history;
pub mod run_queries;
pub mod runs;
pub mod scheduler;
pub mod subscriptions;
pub mod tasks;
mod timer_reader;
pub mod triggers;
pub mod virtual_clock;
mod waits;
pub mod webhooks;
pub mod workflow_edits;
pub mod workflows;

pub use explanations::{WaitGroup, WaitSummary};
pub use fork::ForkRun;
pub use outbox::{NOTIFIER, NOTIFIER_NAME, RETRY_EVERY, idempotency};
pub use relocation::MoveRun;
pub use repair::{Rehearsal, RetryRun};
pub use run_bulk::{RunBulk, RunBulkDone, RunBulkOrder};
pub use run_history::RunHistory;
pub use run_queries::{Reading, Recovery, StoredEvent, UnreadableRun};
pub use runs::{CancelRun, StartedRun};
pub use subscriptions::{RunEvent, RunEvents, RunSubscription};
pub use tasks::{
    Bulk, BulkDone, Heartbeat, HeartbeatReply, NewTask, RELEASE, ReportOutcome, Reported, Retried, TaskFilter, TaskKey,
    TaskPage, TaskReading, TaskReport, TypeChange, TypeView, WorkReply, WorkRequest, status_of, type_id,
};
pub use triggers::{Key, PREVIEW_MAX};
pub use waits::{DecisionRequest, Judged, OpenApproval, OpenApprovals, SignalRequest};
pub use webhooks::{Delivered, Effect, WebhookEndpoint};
pub use workflow_edits::Chosen;
pub use workflows::Resolved;
