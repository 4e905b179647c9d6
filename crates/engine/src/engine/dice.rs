//! Where the random part of an id comes from: the system, or a seed when everything must happen the same way again.

use super::Error;
use kernel::{RunId, Timestamp};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long one looks for an id that is this node's own; any other is as good, only further away.
const ID_TRIES_MAX: u32 = 256;

type Roll = [u8; 10];

/// Rolls asked of the system together: one at a time, asking costs more than the rest of an id.
const TOGETHER: usize = 64;

pub(super) struct Dice(Mutex<State>);

struct State {
    source: Source,
    last: RunId,
}

enum Source {
    /// What is left of the last question.
    System(Vec<Roll>),
    Seed {
        seed: u64,
        rolled: u64,
    },
}

impl Dice {
    pub(super) fn new(seed: Option<u64>) -> Dice {
        let source = seed.map_or(Source::System(Vec::new()), |seed| Source::Seed { seed, rolled: 0 });
        Dice(Mutex::new(State { source, last: RunId::default() }))
    }

    /// Larger than every one before, so that of two runs the one that was asked for first is the older one, also
    /// within a millisecond.
    ///
    /// One of those that this node looks after, so that it keeps what it starts.
    pub(super) fn run_id(&self, now: Timestamp, is_mine: impl Fn(RunId) -> bool) -> Result<RunId, Error> {
        let State { source, last } = &mut *self.state();
        let random = source.roll()?;
        let step = u32::from_be_bytes([random[6], random[7], random[8], random[9]]);
        let fresh = RunId::new(now, random);
        *last = if fresh.0[..6] > last.0[..6] { fresh } else { last.later(step) };
        for _ in 0..ID_TRIES_MAX {
            if is_mine(*last) {
                break;
            }
            *last = last.later(step | 1);
        }
        Ok(*last)
    }

    pub(super) fn roll(&self) -> Result<Roll, Error> {
        self.state().source.roll()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn roll(&mut self) -> Result<Roll, Error> {
        match self {
            Source::System(left) => {
                if left.is_empty() {
                    *left = random::<{ TOGETHER * size_of::<Roll>() }>()?.as_chunks().0.to_vec();
                }
                left.pop().ok_or_else(|| Error::Unavailable("no randomness".into()))
            }
            Source::Seed { seed, rolled } => {
                let hash = Sha256::digest([seed.to_be_bytes(), rolled.to_be_bytes()].concat());
                *rolled += 1;
                Ok(std::array::from_fn(|at| hash[at]))
            }
        }
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| Error::Unavailable(format!("no randomness: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_roll_comes_twice() {
        let dice = Dice::new(None);
        let rolls: BTreeSet<Roll> = (0..TOGETHER * 5 / 2).map(|_| dice.roll().unwrap()).collect();
        assert_eq!(rolls.len(), TOGETHER * 5 / 2);
    }

    #[test]
    fn a_seed_gives_the_same_rolls_again() {
        let rolls = |seed| (0..5).map(|_| ()).scan(Dice::new(Some(seed)), |dice, ()| dice.roll().ok()).collect();
        let (first, again, other): (Vec<Roll>, Vec<Roll>, Vec<Roll>) = (rolls(7), rolls(7), rolls(8));
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}
