//! Staying awake for a moment after an answer.
//!
//! A client that asks one thing after the other is back within tens of microseconds. A thread that went to sleep meanwhile
//! has to be woken, and where an idle processor is switched off, as in most virtual machines, that takes as long as
//! deciding does. So a thread keeps looking for a moment, but only if the last question came as quickly: whoever takes their time
//! costs nothing. If it came more quickly than anybody can ask again, there are several who ask, and they and the engine have
//! better use for the processor.

use crate::awake::Awake;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a question is waited for, and how soon the last one must have come.
const PATIENCE: Duration = Duration::from_micros(100);
/// Nobody hears an answer and asks again as soon as this.
const AT_ONCE: Duration = Duration::from_micros(8);

/// Quick questions in a row after which more are expected, and the processors are kept awake for them.
const SURE: u32 = 16;

/// Of one thread that serves connections.
pub struct Linger {
    pace: Mutex<Pace>,
    begun: Notify,
    awake: Arc<Awake>,
}

#[derive(Default)]
struct Pace {
    /// When the last answer was given, until somebody asks again.
    answered: Option<Instant>,
    /// Questions in a row that came soon after the answer before them, and from somebody who had heard that.
    quick: u32,
}

impl Pace {
    fn asked(&mut self, now: Instant) {
        let is_quick = self.answered.take().is_some_and(|answered| (AT_ONCE..PATIENCE).contains(&(now - answered)));
        self.quick = if is_quick { self.quick.saturating_add(1) } else { 0 };
    }

    fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    fn is_worth_waiting(&self, now: Instant) -> bool {
        self.quick > 0 && self.answered.is_some_and(|answered| now - answered < PATIENCE)
    }

    fn is_steady(&self) -> bool {
        self.quick >= SURE
    }
}

impl Linger {
    pub fn new(awake: Arc<Awake>) -> Linger {
        Linger { pace: Mutex::default(), begun: Notify::new(), awake }
    }

    /// A request came.
    pub fn asked(&self) {
        let mut pace = self.pace();
        pace.asked(Instant::now());
        if pace.is_steady() {
            self.awake.keep();
        }
    }

    /// A request is answered, and hardly anything else is going on.
    pub fn answered(&self) {
        if self.awake.is_off() {
            return;
        }
        let mut pace = self.pace();
        pace.answered(Instant::now());
        if pace.quick > 0 {
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

    #[test]
    fn processors_are_kept_awake_only_for_many_quick_questions_in_a_row() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut serve = |pace: &mut Pace, is_calm: bool| {
            now += PATIENCE / 2;
            pace.asked(now);
            if is_calm {
                pace.answered(now);
            }
            pace.is_steady()
        };
        let steady: Vec<bool> = (0..=SURE).map(|_| serve(&mut pace, true)).collect();
        assert_eq!(steady.iter().position(|is_steady| *is_steady), Some(SURE as usize));
        assert!(serve(&mut pace, false), "much is going on when it is answered");
        assert!(!serve(&mut pace, true), "which is known at the next one");
        assert!(!serve(&mut pace, true), "and it begins anew");
    }
}
