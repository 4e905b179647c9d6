//! Counters and gauges of the engine, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident: $kind:literal, $help:literal;)*) => {
        #[derive(Default)]
        pub struct Metrics { $($(#[$meta])* pub $name: Counter,)* }

        impl Metrics {
            /// Name, kind, help text and value of each metric.
            pub fn each(&self) -> Vec<(&'static str, &'static str, &'static str, u64)> {
                vec![$((stringify!($name), $kind, $help, self.$name.get())),*]
            }
        }
    };
}

counters! {
    runs_started_total: "counter", "Runs created.";
    runs_ended_total: "counter", "Runs that reached a terminal status.";
    steps_started_total: "counter", "Attempts started by an executor of this process.";
    steps_finished_total: "counter", "Attempts that an executor of this process finished.";
    turns_total: "counter", "Turns of the engine loop that had something to commit.";
    conflicts_total: "counter", "Records refused because the run had changed.";
    inputs_deferred_total: "counter", "Inputs written to the inbox because their run changed too fast.";
    store_errors_total: "counter", "Commits that failed as a whole.";
    runs_loaded_total: "counter", "Runs read back into memory.";
    runs_in_memory: "gauge", "Runs in memory now.";
    runs_busy: "gauge", "Runs in memory that wait neither for a worker to claim a task nor for one to finish it.";
    tasks_leased_total: "counter", "Tasks leased to workers.";
    tasks_ready: "gauge", "Tasks that wait to be claimed.";
    tasks_leased: "gauge", "Tasks that workers hold now.";
    types_without_worker: "gauge", "Types with ready tasks and no worker that claims them.";
    attempts_executing: "gauge", "Attempts executing in this process now.";
    http_steps_queued: "gauge", "HTTP attempts waiting for room now.";
    http_steps_held_back_total: "counter", "HTTP attempts not sent because their host is down or asked for a pause.";
    schedule_ticks_total: "counter", "Schedule fire times handled: started, queued or skipped.";
    schedule_ticks_skipped_total: "counter", "Schedule fire times recorded as skipped.";
    webhook_deliveries_total: "counter", "Webhook requests that started a run.";
    webhook_deliveries_repeated_total: "counter", "Webhook requests that repeated an earlier delivery.";
    webhook_deliveries_rejected_total: "counter", "Webhook requests that were rejected.";
    clock_skew_ms: "gauge", "Difference between this machine's clock and the database's clock, in milliseconds.";
    clock_ahead_ms: "gauge", "How far engine time is ahead of the clock, in milliseconds.";
    requests_refused_total: "counter", "Starts refused because the engine was overloaded.";
}

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
