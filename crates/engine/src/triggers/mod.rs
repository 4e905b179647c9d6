//! The decisions of triggers, as pure functions: which fire times of a schedule are due and which are skipped
//! ([`fire_times`]), and whether a webhook request is accepted and what payload it becomes ([`webhook`]).
//!
//! The services start the runs, through `Runs::start`. Each fire time and each delivery has an id, which is the
//! idempotency key of its run within the trigger, so handling it twice starts one run.

pub mod fire_times;
pub mod webhook;

use kernel::Timestamp;

/// A time as it appears in delivery ids and logs.
pub fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.0).map_or_else(|_| at.0.to_string(), |at| at.to_string())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
