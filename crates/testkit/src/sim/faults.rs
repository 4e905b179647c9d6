//! What goes wrong in one story. Each kind of fault is off in about half of the seeds (swarm testing:
//! bugs hide behind faults that mask each other), and has a rate of its own when it is on.

use super::random::Random;
use kernel::Span;

/// Chances are in thousandths; a mean is the average time between two.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A host goes down with every process on it, and comes back.
    pub crash_mean: Option<Span>,
    /// … again, shortly after it came back.
    pub crash_in_recovery: u32,
    /// … just before or just after a commit.
    pub crash_at_commit: u32,
    /// A process stops for a while and goes on with what it remembers.
    pub pause_mean: Option<Span>,
    /// A commit whose fate nobody learns.
    pub unknown: u32,
    /// What a process does then.
    pub stops_on_unknown: bool,
    /// The store refuses everything for a while.
    pub unavailable_mean: Option<Span>,
    /// A read fails.
    pub read_failure: u32,
    /// A read takes up to this long.
    pub read_delay: Span,
    /// An executor reports twice, or something else later.
    pub double_result: u32,
    /// An upstream never answers.
    pub silence: u32,
}

impl Faults {
    pub fn draw(random: &mut Random) -> Faults {
        Faults {
            crash_mean: mean(random),
            crash_in_recovery: rate(random, 500),
            crash_at_commit: rate(random, 60),
            pause_mean: mean(random),
            unknown: rate(random, 100),
            stops_on_unknown: random.coin(),
            unavailable_mean: mean(random),
            read_failure: rate(random, 200),
            read_delay: if random.coin() { Span::from_millis(3) } else { random.log_millis(10, 5_000) },
            double_result: rate(random, 300),
            silence: rate(random, 100),
        }
    }
}

/// Zero in half of the seeds, else log-uniform up to `most`.
fn rate(random: &mut Random, most: u32) -> u32 {
    if random.coin() { 0 } else { (most >> random.below(5)).max(1) }
}

fn mean(random: &mut Random) -> Option<Span> {
    let (is_on, mean) = (random.coin(), random.log_millis(4_000, 120_000));
    is_on.then_some(mean)
}
