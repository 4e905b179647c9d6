//! The real binary over real HTTP. Nothing here knows how Onward works inside: tests start a process,
//! speak to it, look at what an upstream of their own received, and kill it.
//!
//! Names carry the numbers of the promises they hold (`R…`, `P…`, `T…`, `I…`). Each test has its own
//! server, data folder and upstream, so they run side by side; what takes time is polled for with a
//! deadline, never slept for.

// The SDK under the name its users have for it.
extern crate client as onward_client;

mod harness;

mod batch;
mod chaos;
mod cli;
mod crash;
mod deletion;
mod editing;
mod explain;
#[cfg(target_os = "linux")]
mod faults;
mod holding;
mod http;
mod kill;
mod large;
mod leases;
mod openapi;
mod page;
mod postgres;
mod promises;
mod readme;
mod restart;
mod runs;
mod rust_sdk;
mod schedules;
mod security;
mod serve;
mod streams;
mod task_steps;
mod tasks;
mod testing;
mod triggers;
mod types;
mod verify;
mod waits;
mod webhooks;
mod worker_cli;
mod workers;
mod workflows;
