//! Staying awake for a moment after an answer.
//!
//! A client that asks one thing after the other is back within tens of microseconds. A thread that went to sleep meanwhile
//! has to be woken, and where an idle processor is switched off, as in most virtual machines, that takes as long as
//! deciding does. So a thread keeps looking for a moment, but only if the last question came as quickly: whoever takes their time
//! costs nothing. If it came more quickly than anybody can ask again, there are several who ask, and they and the engine have
//! better use for the processor.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a question is waited for, and how soon the last one must have come.
const PATIENCE: Duration = Duration::from_micros(100);
/// Nobody hears an answer and asks again as soon as this.
const AT_ONCE: Duration = Duration::from_micros(8);

/// Of one thread that serves connections.
#[derive(Default)]
pub struct Linger {
    pace: Mutex<Pace>,
    begun: Notify,
}

#[derive(Default)]
struct Pace {
    /// When the last answer was given, until somebody asks again.
    answered: Option<Instant>,
    /// The last question came soon after the answer before it, and from somebody who had heard that.
    is_quick: bool,
}

impl Pace {
    fn asked(&mut self, now: Instant) {
        if let Some(answered) = self.answered.take() {
            self.is_quick = (AT_ONCE..PATIENCE).contains(&(now - answered));
        }
    }

    fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    fn is_worth_waiting(&self, now: Instant) -> bool {
        self.is_quick && self.answered.is_some_and(|answered| now - answered < PATIENCE)
    }
}

impl Linger {
    /// A request came.
    pub fn asked(&self) {
        self.pace().asked(Instant::now());
    }

    /// A request is answered, and hardly anything else is going on.
    pub fn answered(&self) {
        let mut pace = self.pace();
        pace.answered(Instant::now());
        if pace.is_quick {
            self.begun.notify_one();
        }
    }

    /// Keeps the thread awake whenever that pays.
    pub async fn stay_awake(&self) {
        loop {
            self.begun.notified().await;
            while self.pace().is_worth_waiting(Instant::now()) {
                // The runtime looks at its connections in between.
                tokio::task::yield_now().await;
            }
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_is_back_at_once_is_waited_for() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut after = |span: Duration| {
            now += span;
            now
        };
        pace.asked(after(PATIENCE));
        pace.answered(after(PATIENCE));
        assert!(!pace.is_worth_waiting(after(Duration::ZERO)), "nobody knows yet how quick it is");
        pace.asked(after(PATIENCE / 2));
        assert!(!pace.is_worth_waiting(after(Duration::ZERO)), "it is being answered");
        pace.answered(after(PATIENCE * 5));
        assert!(pace.is_worth_waiting(after(PATIENCE / 2)));
        assert!(!pace.is_worth_waiting(after(PATIENCE / 2)), "not for ever");
        pace.asked(after(PATIENCE));
        pace.answered(after(PATIENCE));
        assert!(!pace.is_worth_waiting(after(Duration::ZERO)), "it took its time");
        pace.asked(after(AT_ONCE / 2));
        pace.answered(after(PATIENCE));
        assert!(!pace.is_worth_waiting(after(Duration::ZERO)), "there are two of them");
    }
}
