//! When to attempt a step again: arithmetic over a retry policy.

use crate::plan::{Backoff, Retry};
use crate::time::Span;

/// A longer `Retry-After` header is cut to this: a service that asks for more is not believed. A worker is.
pub const RETRY_AFTER_MAX: Span = Span::from_secs(3_600);

/// The delay after charged attempt `charged` (1 for the first), or `None` when the policy is exhausted. `seed`
/// decides the jitter: the same run, step and attempt always get the same delay.
pub fn delay(policy: &Retry, charged: u32, retry_after: Option<Span>, seed: u64) -> Option<Span> {
    if policy.never || charged >= policy.max_attempts {
        return None;
    }
    if let Some(asked) = retry_after {
        return Some(asked);
    }
    let n = u64::from(charged);
    let factor = match policy.backoff {
        Backoff::Fixed => 1,
        Backoff::Exponential => 1u64.checked_shl(charged - 1).unwrap_or(u64::MAX),
        Backoff::Quadratic => n.saturating_mul(n),
    };
    let base = policy.min.0.saturating_mul(factor);
    let base = if policy.max.0 > 0 { base.min(policy.max.0) } else { base };
    let extra = u128::from(base) * u128::from(policy.jitter) * u128::from(seed % 1_001) / 1_000_000;
    Some(Span(base.saturating_add(extra as u64)))
}

/// Hashes the identity of an attempt.
pub fn seed(run: &[u8; 16], step: u32, attempt: u32) -> u64 {
    let (a, b) = run.split_at(8);
    let word = |half: &[u8]| half.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    mix(word(a) ^ word(b).rotate_left(32) ^ (u64::from(step) << 32 | u64::from(attempt)))
}

/// The finaliser of SplitMix64.
pub(crate) fn mix(z: u64) -> u64 {
    let mut z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(backoff: Backoff, min: u64, max: u64) -> Retry {
        Retry { max_attempts: 9, backoff, min: Span::from_secs(min), max: Span::from_secs(max), ..Default::default() }
    }

    fn delays(policy: &Retry) -> Vec<u64> {
        (1..6).map(|n| delay(policy, n, None, 0).unwrap().millis() / 1_000).collect()
    }

    #[test]
    fn delays_follow_their_backoff_up_to_the_maximum() {
        assert_eq!(delays(&policy(Backoff::Fixed, 3, 0)), [3, 3, 3, 3, 3]);
        assert_eq!(delays(&policy(Backoff::Exponential, 1, 300)), [1, 2, 4, 8, 16]);
        assert_eq!(delays(&policy(Backoff::Exponential, 100, 300)), [100, 200, 300, 300, 300]);
        assert_eq!(delays(&policy(Backoff::Quadratic, 60, 0)), [60, 240, 540, 960, 1500]);
    }

    #[test]
    fn a_policy_is_exhausted_after_its_attempts_and_never_allows_none() {
        let policy = policy(Backoff::Fixed, 1, 0);
        assert!(delay(&policy, 8, None, 0).is_some());
        assert_eq!(delay(&policy, 9, None, 0), None);
        assert_eq!(delay(&Retry { never: true, ..policy }, 1, None, 0), None);
    }

    #[test]
    fn retry_after_replaces_the_delay_up_to_a_maximum() {
        let policy = policy(Backoff::Fixed, 1, 0);
        assert_eq!(delay(&policy, 1, Some(Span::from_secs(9)), 0), Some(Span::from_secs(9)));
        assert_eq!(delay(&policy, 1, Some(Span::from_days(9)), 0), Some(Span::from_days(9)));
    }

    #[test]
    fn jitter_adds_at_most_its_share_and_is_the_same_each_time() {
        let policy = Retry { jitter: 100, ..policy(Backoff::Fixed, 60, 0) };
        let mut least = u64::MAX;
        let mut most = 0;
        for attempt in 0..1_000 {
            let d = delay(&policy, 1, None, seed(&[7; 16], 3, attempt)).unwrap().millis();
            least = least.min(d);
            most = most.max(d);
        }
        assert!((60_000..60_500).contains(&least) && (65_500..=66_000).contains(&most), "{least} {most}");
        assert_eq!(seed(&[7; 16], 3, 4), seed(&[7; 16], 3, 4));
    }

    #[test]
    fn huge_attempt_numbers_do_not_overflow() {
        let policy = Retry { max_attempts: u32::MAX, ..policy(Backoff::Exponential, 1, 300) };
        assert_eq!(delay(&policy, 4_000_000_000, None, 1), Some(Span::from_secs(300)));
    }
}
