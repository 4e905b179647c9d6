//! When the last leases of a type began, for its rate. Leases whose period is over are forgotten, so the memory is
//! bounded by the leases of one period, however many keys a type has had.

use kernel::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use store::Rate;

/// A *bucket* is what a rate counts together: the tasks of one key, or all tasks of the type (an empty key).
#[derive(Debug, Default)]
pub struct RateWindow {
    buckets: BTreeMap<Arc<str>, VecDeque<Timestamp>>,
    /// The last lease of each bucket.
    last: BTreeSet<(Timestamp, Arc<str>)>,
}

impl RateWindow {
    /// Counts a lease.
    pub fn add(&mut self, bucket: &str, per: Span, now: Timestamp) {
        self.forget(per, now);
        let bucket: Arc<str> = Arc::from(bucket);
        let times = self.buckets.entry(bucket.clone()).or_default();
        if let Some(last) = times.back() {
            self.last.remove(&(*last, bucket.clone()));
        }
        times.push_back(now);
        self.last.insert((now, bucket));
    }

    /// Until when the rate blocks a bucket.
    pub fn blocked_until(&mut self, bucket: &str, rate: &Rate, now: Timestamp) -> Option<Timestamp> {
        self.forget(rate.per, now);
        let times = self.buckets.get_mut(bucket)?;
        while times.front().is_some_and(|at| now.since(*at) >= rate.per) {
            times.pop_front();
        }
        let over = times.len().checked_sub(rate.limit as usize)?;
        times.get(over).map(|at| at.after(rate.per))
    }

    /// Forgets buckets without a lease in the last period.
    fn forget(&mut self, per: Span, now: Timestamp) {
        while self.last.first().is_some_and(|(at, _)| now.since(*at) >= per) {
            if let Some((_, bucket)) = self.last.pop_first() {
                self.buckets.remove(&bucket);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_whose_period_is_over_are_forgotten() {
        let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: true };
        let at = |seconds: u64| Timestamp(1_000_000).after(Span::from_secs(seconds));
        let mut window = RateWindow::default();
        for n in 0..1_000 {
            window.add(&format!("customer {n}"), rate.per, at(n));
            assert!(window.buckets.len() <= 10 && window.last.len() == window.buckets.len());
        }
        for n in 0..3 {
            window.add("customer 999", rate.per, at(1_000 + n));
        }
        assert_eq!(window.blocked_until("customer 999", &rate, at(1_002)), Some(at(1_011)));
        assert_eq!(window.blocked_until("customer 999", &rate, at(1_011)), None, "one of two");
        assert_eq!(window.blocked_until("another", &rate, at(1_012)), None);
        assert_eq!((window.buckets.len(), window.last.len()), (0, 0));
    }
}
