//! What triggers decide, without a clock, a socket or a store: which moments of a schedule are due and
//! what becomes of each ([`fire_times`]), and whether a request may come in, as what ([`webhook`]).
//!
//! Whatever they decide starts runs through [`Engine::start`](crate::Engine::start) like everything
//! else. The rule that keeps them right: each moment and each delivery has a name, and the name is the
//! idempotency key of its run within the trigger, so that doing it twice is doing it once.

pub mod fire_times;
pub mod webhook;

use kernel::Timestamp;

/// An instant as ids and logs have it.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.0).map_or_else(|_| at.0.to_string(), |at| at.to_string())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
