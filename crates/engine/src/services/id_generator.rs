//! Ids of runs and workflows. Their random part comes from the operating system, or from a seed when a test must be
//! repeatable.

use crate::error::Error;
use kernel::{InboxId, RunId, Timestamp};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Attempts at finding an id that this node owns. Another id works too, but another node then advances the run.
const ID_TRIES_MAX: u32 = 256;

type RandomBytes = [u8; 10];

/// Ids whose random bytes are read from the system together: one read per id would cost more than the rest of it.
const READ_TOGETHER: usize = 64;

pub struct IdGenerator(Mutex<State>);

struct State {
    source: RandomSource,
    last: RunId,
}

enum RandomSource {
    /// Bytes left of the last read.
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

    /// A new run id. It is larger than every id before it, so ids order runs by creation, also within a millisecond.
    /// If possible it is an id that this node owns, so that a node advances the runs it starts.
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

    /// A new id for a row of the inbox. Larger than every id before it, so a run gets the inputs of one node in the order
    /// of their arrival.
    pub fn inbox_id(&self, now: Timestamp) -> Result<InboxId, Error> {
        self.run_id(now, |_| true).map(|id| InboxId(id.0))
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
                    *left = random::<{ READ_TOGETHER * size_of::<RandomBytes>() }>()?.as_chunks().0.to_vec();
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
    fn random_bytes_are_never_repeated() {
        let ids = IdGenerator::new(None);
        let drawn: BTreeSet<RandomBytes> = (0..READ_TOGETHER * 5 / 2).map(|_| ids.random_bytes().unwrap()).collect();
        assert_eq!(drawn.len(), READ_TOGETHER * 5 / 2);
    }

    #[test]
    fn a_seed_gives_the_same_bytes_again() {
        let drawn =
            |seed| (0..5).map(|_| ()).scan(IdGenerator::new(Some(seed)), |ids, ()| ids.random_bytes().ok()).collect();
        let (first, again, other): (Vec<RandomBytes>, Vec<RandomBytes>, Vec<RandomBytes>) =
            (drawn(7), drawn(7), drawn(8));
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}
