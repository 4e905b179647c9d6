//! Black-box tests of the binary over HTTP. They start a server process, send requests, look at what their own upstream
//! server received, and kill the process. None of them uses the engine's internals.
//!
//! A test's name begins with the numbers of the promises it checks (`R…`, `P…`, `T…`, `I…`). Each test has its own
//! server, data folder and upstream, so tests run in parallel. A test that waits polls until a deadline; it does not
//! sleep for a fixed time.

// The SDK, under the name that its users know.
extern crate client as onward_client;

mod harness;

mod api_model;
mod bash;
mod batch;
mod chaos;
mod children;
mod cli;
mod clocks;
mod crash;
mod damaged;
mod dashboard;
mod deletion;
mod editing;
mod explain;
mod explain_situations;
mod failures;
#[cfg(target_os = "linux")]
mod faults;
mod forks;
mod guide_schedules;
mod holding;
mod http;
mod inputs;
mod kill;
mod large;
mod leases;
mod lists;
mod moves;
mod nesting;
mod openapi;
mod overload;
mod overrides;
mod postgres;
mod promises;
mod readme;
mod recovery;
mod repair;
mod restart;
mod run_history;
mod run_limits;
mod run_model;
mod runner;
mod runs;
mod rust_sdk;
mod schedules;
mod security;
mod serve;
mod signals;
mod step_lists;
mod streams;
mod task_steps;
mod tasks;
mod testing;
mod testing_inner;
mod triggers;
mod types;
mod undo;
mod upgrades;
mod verify;
mod waits;
mod webhooks;
mod worker_cli;
mod workers;
mod workflows;
