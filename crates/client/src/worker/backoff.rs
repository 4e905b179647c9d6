//! How long to wait before the next request to a server that cannot be reached: exponentially longer, with full jitter,
//! so that a thousand workers do not reconnect at the same time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST_BOUND: Duration = Duration::from_millis(100);
const MAX_BOUND: Duration = Duration::from_secs(5);

pub struct ReconnectBackoff {
    failures: u32,
    max: Duration,
}

impl Default for ReconnectBackoff {
    fn default() -> ReconnectBackoff {
        ReconnectBackoff { failures: 0, max: MAX_BOUND }
    }
}

impl ReconnectBackoff {
    /// For a worker that holds leases: the server starts them anew when it is back, so the worker must reconnect before
    /// they expire.
    pub fn within(lease: Duration) -> ReconnectBackoff {
        ReconnectBackoff { failures: 0, max: MAX_BOUND.min(lease / 3) }
    }

    pub fn next(&mut self) -> Duration {
        self.failures += 1;
        // A hasher with random keys is random enough for jitter.
        jittered(self.failures, self.max, RandomState::new().hash_one(self.failures))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A random delay between zero and a bound that doubles with every failure.
fn jittered(failures: u32, max: Duration, random: u64) -> Duration {
    let bound = FIRST_BOUND.saturating_mul(1 << (failures.saturating_sub(1)).min(20)).min(max);
    bound.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_differ() {
        for (failures, bound) in [(1, 100), (2, 200), (4, 800), (7, 5_000), (1_000, 5_000)] {
            assert_eq!(jittered(failures, MAX_BOUND, 0), Duration::ZERO);
            let max = jittered(failures, MAX_BOUND, u64::MAX).as_micros() as f64 / 1_000.0;
            assert!((max - bound as f64).abs() < 0.01, "{failures}: {max}");
        }
        assert!(ReconnectBackoff::within(Duration::from_secs(2)).max < Duration::from_secs(1));
        let mut backoff = ReconnectBackoff::default();
        let delays: std::collections::HashSet<Duration> = (0..20).map(|_| backoff.next()).collect();
        assert!(delays.len() > 15);
    }
}
