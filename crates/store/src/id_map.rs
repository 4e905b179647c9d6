//! Maps in memory by ids.
//!
//! Runs that were made together are asked for together. A hash that scatters them makes every look-up a walk to memory that
//! nobody has touched for a while; this one leaves sixteen in a row next to each other, and scatters the rows.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// By ids, alone or with numbers beside them. Only for ids this system made: whoever could choose them could make them collide.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<Near>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<Near>>;

#[derive(Clone, Copy, Default)]
pub struct Near(u64);

impl Near {
    /// 2^64 divided by the golden ratio: what is multiplied by it differs in its upper bits.
    const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
    /// Places of a row.
    const ROW: u64 = 15;
    /// The bits by which the map tells neighbours apart without looking at them.
    const TAG: u64 = 0x7f << 57;
}

impl Hasher for Near {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = self.0.wrapping_mul(Near::SCATTER).wrapping_add(n);
    }

    fn finish(&self) -> u64 {
        let tag = self.0.wrapping_mul(Near::SCATTER);
        let row = (self.0 | Near::ROW).wrapping_mul(Near::SCATTER).rotate_left(32);
        tag & Near::TAG | row & !(Near::TAG | Near::ROW) | self.0 & Near::ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{OrgId, RunId, Timestamp};
    use std::hash::{BuildHasher, Hash};

    fn hash(key: impl Hash) -> u64 {
        BuildHasherDefault::<Near>::default().hash_one(key)
    }

    fn ids(count: u32) -> impl Iterator<Item = RunId> {
        let first = RunId::new(Timestamp::from_millis(1), [0x5a; 10]);
        (0..count).map(move |n| first.later(n))
    }

    #[test]
    fn neighbours_stay_together_and_rows_do_not() {
        let places: Vec<u64> = ids(65_536).map(|id| hash((OrgId::DEFAULT, id)) & 0xffff).collect();
        let together = places.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(together > 60_000, "{together}");
        let rows: HashSet<u64> = places.iter().map(|place| place >> 4).collect();
        // As many as chance would leave empty, more or less.
        assert!((2_000..=4_096).contains(&rows.len()), "{}", rows.len());
    }

    #[test]
    fn neighbours_are_told_apart_without_being_looked_at() {
        let hashes: Vec<u64> = ids(16_000).map(hash).collect();
        let alike =
            hashes.chunks(16).flat_map(|row| row.windows(2)).filter(|pair| pair[0] >> 57 == pair[1] >> 57).count();
        assert!(alike < 500, "{alike}");
    }

    #[test]
    fn the_steps_of_neighbours_do_not_meet() {
        let hashes: HashSet<u64> = ids(300).flat_map(|id| (0..300u32).map(move |step| hash((id, step)))).collect();
        assert!(hashes.len() > 89_900, "{}", hashes.len());
    }
}
