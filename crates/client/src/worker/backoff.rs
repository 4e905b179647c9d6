//! How long to leave a server alone that cannot be reached: exponentially longer, with full jitter, so that a
//! thousand workers do not come back at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

pub struct Backoff {
    failures: u32,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { failures: 0, longest: LONGEST }
    }
}

impl Backoff {
    /// For who has leases to keep: they begin anew when the server is back, and must not end before it is found again.
    pub fn within(lease: Duration) -> Backoff {
        Backoff { failures: 0, longest: LONGEST.min(lease / 3) }
    }

    pub fn next(&mut self) -> Duration {
        self.failures += 1;
        // A hasher with random keys is all the randomness that is needed.
        jittered(self.failures, self.longest, RandomState::new().hash_one(self.failures))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Somewhere between nothing and twice the last bound.
fn jittered(failures: u32, longest: Duration, random: u64) -> Duration {
    let bound = FIRST.saturating_mul(1 << (failures.saturating_sub(1)).min(20)).min(longest);
    bound.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for (failures, bound) in [(1, 100), (2, 200), (4, 800), (7, 5_000), (1_000, 5_000)] {
            assert_eq!(jittered(failures, LONGEST, 0), Duration::ZERO);
            let longest = jittered(failures, LONGEST, u64::MAX).as_micros() as f64 / 1_000.0;
            assert!((longest - bound as f64).abs() < 0.01, "{failures}: {longest}");
        }
        assert!(Backoff::within(Duration::from_secs(2)).longest < Duration::from_secs(1));
        let mut backoff = Backoff::default();
        let many: std::collections::HashSet<Duration> = (0..20).map(|_| backoff.next()).collect();
        assert!(many.len() > 15);
    }
}
