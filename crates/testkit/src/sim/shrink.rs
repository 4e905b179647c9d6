//! Makes a failing story small: leaves out whatever it fails without.
//!
//! Kinds of faults first, then hosts, runs and steps. Streams of random numbers are split by concern, so
//! leaving one thing out moves the others little; what remains is the same kind of failure, perhaps by
//! another road. Greedy, so the result is small, not smallest.

use super::fault_plan::Fault;
use super::{Options, Report, run};

/// The smallest options found with which the seed still fails, and how it fails with them; `None` if it
/// does not fail at all.
pub fn shrink(seed: u64, options: &Options) -> Option<(Options, Report)> {
    let fails = |options: &Options| Some(run(seed, options)).filter(|report| report.violation.is_some());
    let mut best = (options.clone(), fails(options)?);
    let attempt = |best: &mut (Options, Report), smaller: Options| {
        if let Some(report) = fails(&smaller) {
            *best = (smaller, report);
        }
    };
    for fault in Fault::ALL {
        let mut smaller = best.0.clone();
        smaller.without.push(fault);
        attempt(&mut best, smaller);
    }
    for hosts_max in 1..best.0.hosts_max {
        if best.0.hosts_max > hosts_max {
            let smaller = Options { hosts_max, ..best.0.clone() };
            attempt(&mut best, smaller);
        }
    }
    for size in [1, 2, 3, 4, 6, 8, 12, 16, 20] {
        if best.0.runs_max > size {
            let smaller = Options { runs_max: size, ..best.0.clone() };
            attempt(&mut best, smaller);
        }
        if best.0.steps_max > size {
            let smaller = Options { steps_max: size, ..best.0.clone() };
            attempt(&mut best, smaller);
        }
    }
    // What a large story could not do without may be of no use in a small one.
    for fault in Fault::ALL {
        if !best.0.without.contains(&fault) {
            let mut smaller = best.0.clone();
            smaller.without.push(fault);
            attempt(&mut best, smaller);
        }
    }
    Some(best)
}

/// The settings that tell this story again, for a command line.
pub fn environment(seed: u64, options: &Options) -> String {
    let without: Vec<String> = options.without.iter().map(|fault| format!("{fault:?}")).collect();
    let Options { runs_max, steps_max, hosts_max, .. } = options;
    format!(
        "ONWARD_SIM_SEED={seed} ONWARD_SIM_WITHOUT={} ONWARD_SIM_HOSTS={hosts_max} ONWARD_SIM_RUNS={runs_max} \
         ONWARD_SIM_STEPS={steps_max}",
        without.join(",")
    )
}
