//! The trace of a simulation: a hash over all lines, and the last few hundred lines as text.
//!
//! Equal hashes mean equal simulations. A failing seed prints its lines. Coverage marks count interesting
//! situations, so that a batch of seeds cannot pass without covering them.

use kernel::Timestamp;
use std::collections::{BTreeMap, VecDeque};

/// How many lines are kept for printing.
const LINES_MAX: usize = 200;

/// How often each coverage mark was hit.
pub type Marks = BTreeMap<&'static str, u64>;

pub struct Trace {
    start: Timestamp,
    hash: u64,
    lines: VecDeque<String>,
    pub marks: Marks,
    is_printing: bool,
}

impl Trace {
    pub fn new(start: Timestamp, is_printing: bool) -> Trace {
        Trace { start, hash: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new(), marks: Marks::new(), is_printing }
    }

    pub fn note(&mut self, now: Timestamp, what: String) {
        let line = format!("{:>12.6} {what}", now.since(self.start).0 as f64 / 1e6);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.is_printing {
            println!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Counts a coverage mark if `is_met`.
    pub fn mark(&mut self, what: &'static str, is_met: bool) {
        if is_met {
            *self.marks.entry(what).or_default() += 1;
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
