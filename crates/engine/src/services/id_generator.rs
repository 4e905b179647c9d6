//! Where the random part of an id comes from: the system, or a seed when everything must happen the same way again.

use crate::error::Error;
use kernel::{RunId, Timestamp};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long one looks for an id that is this node's own; any other is as good, only further away.
const ID_TRIES_MAX: u32 = 256;

type RandomBytes = [u8; 10];

/// Rolls asked of the system together: one at a time, asking costs more than the rest of an id.
const TOGETHER: usize = 64;

pub struct IdGenerator(Mutex<State>);

struct State {
    source: RandomSource,
    last: RunId,
}

enum RandomSource {
    /// What is left of the last question.
    System(Vec<RandomBytes>),
    Seed {
        seed: u64,
        drawn: u64,
    },
}

impl IdGenerator {
    pub fn new(seed: Option<u64>) -> IdGenerator {
        let source = seed.map_or(RandomSource::System(Vec::new()), |seed| RandomSource::Seed { seed, drawn: 0 });
        IdGenerator(Mutex::new(State { source, last: RunId::default() }))
    }

    /// Larger than every one before, so that of two runs the one that was asked for first is the older one, also
    /// within a millisecond.
    ///
    /// One of those that this node looks after, so that it keeps what it starts.
    pub fn run_id(&self, now: Timestamp, is_mine: impl Fn(RunId) -> bool) -> Result<RunId, Error> {
        let State { source, last } = &mut *self.state();
        let random = source.random_bytes()?;
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

    pub fn random_bytes(&self) -> Result<RandomBytes, Error> {
        self.state().source.random_bytes()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RandomSource {
    fn random_bytes(&mut self) -> Result<RandomBytes, Error> {
        match self {
            RandomSource::System(left) => {
                if left.is_empty() {
                    *left = random::<{ TOGETHER * size_of::<RandomBytes>() }>()?.as_chunks().0.to_vec();
                }
                left.pop().ok_or_else(|| Error::Unavailable("no randomness".into()))
            }
            RandomSource::Seed { seed, drawn } => {
                let hash = Sha256::digest([seed.to_be_bytes(), drawn.to_be_bytes()].concat());
                *drawn += 1;
                Ok(std::array::from_fn(|at| hash[at]))
            }
        }
    }
}

pub fn random<const N: usize>() -> Result<[u8; N], Error> {
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
        let ids = IdGenerator::new(None);
        let rolls: BTreeSet<RandomBytes> = (0..TOGETHER * 5 / 2).map(|_| ids.random_bytes().unwrap()).collect();
        assert_eq!(rolls.len(), TOGETHER * 5 / 2);
    }

    #[test]
    fn a_seed_gives_the_same_rolls_again() {
        let rolls =
            |seed| (0..5).map(|_| ()).scan(IdGenerator::new(Some(seed)), |ids, ()| ids.random_bytes().ok()).collect();
        let (first, again, other): (Vec<RandomBytes>, Vec<RandomBytes>, Vec<RandomBytes>) =
            (rolls(7), rolls(7), rolls(8));
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}
