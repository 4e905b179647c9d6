//! Seeded random numbers that are the same on every machine, forever (SplitMix64).
//!
//! A seed is split into streams, one per concern, so that one more draw in one stream does not shift the
//! others. Invariant: every decision of the simulator is drawn here.

use kernel::Span;

#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream named `concern` of `seed`. Renaming a stream changes every number in it.
    pub fn stream(seed: u64, concern: &str) -> Random {
        let mixed = concern.bytes().fold(seed, |n, byte| mix(n ^ u64::from(byte)));
        Random { state: mixed }
    }

    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`, which must not be zero. The bias of the modulus is negligible here.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// A number between the two, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub fn coin(&mut self) -> bool {
        self.draw() & 1 == 1
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1_000) < u64::from(permille)
    }

    pub fn millis(&mut self, least: u64, most: u64) -> Span {
        Span(self.between(least * 1_000, most * 1_000))
    }

    /// A log-uniform duration: the order of magnitude is drawn first.
    pub fn log_millis(&mut self, least: u64, most: u64) -> Span {
        let (low, high) = (least.max(1).ilog2(), most.max(1).ilog2());
        let magnitude = 1 << self.between(u64::from(low), u64::from(high));
        self.millis(magnitude.clamp(least, most), (2 * magnitude).clamp(least, most))
    }

    /// Picks one item; `list` must not be empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.draw() as u8)
    }
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_each_time_and_differs_from_the_others() {
        let draw = |seed, concern| Random::stream(seed, concern).draw();
        assert_eq!(draw(7, "faults"), draw(7, "faults"));
        assert_ne!(draw(7, "faults"), draw(7, "workload"));
        assert_ne!(draw(7, "faults"), draw(8, "faults"));
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::stream(1, "bounds");
        for _ in 0..1_000 {
            assert!((3..=9).contains(&random.between(3, 9)));
            assert!((5_000..=70_000).contains(&random.log_millis(5, 70).0));
        }
    }
}
