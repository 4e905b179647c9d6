//! Shrinks a failing simulation: leaves out everything that the failure does not need.
//!
//! It tries kinds of faults first, then hosts, runs and steps. Random streams are split by concern, so
//! leaving one thing out changes the others little. The remaining simulation may fail in another way than the
//! original. The search is greedy, so the result is small but not minimal.

use super::fault_plan::Fault;
use super::{Options, SimulationReport, run};

/// The smallest options found with which the seed still fails, with their report; `None` if the seed does not
/// fail at all.
pub fn shrink(seed: u64, options: &Options) -> Option<(Options, SimulationReport)> {
    let fails = |options: &Options| Some(run(seed, options)).filter(|report| report.violation.is_some());
    let mut best = (options.clone(), fails(options)?);
    let attempt = |best: &mut (Options, SimulationReport), smaller: Options| {
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
    // A fault that the large simulation needed may be unnecessary in the small one.
    for fault in Fault::ALL {
        if !best.0.without.contains(&fault) {
            let mut smaller = best.0.clone();
            smaller.without.push(fault);
            attempt(&mut best, smaller);
        }
    }
    Some(best)
}

/// The environment variables that reproduce this simulation, for a command line.
pub fn environment(seed: u64, options: &Options) -> String {
    let without: Vec<String> = options.without.iter().map(|fault| format!("{fault:?}")).collect();
    let Options { runs_max, steps_max, hosts_max, .. } = options;
    format!(
        "ONWARD_SIM_SEED={seed} ONWARD_SIM_WITHOUT={} ONWARD_SIM_HOSTS={hosts_max} ONWARD_SIM_RUNS={runs_max} \
         ONWARD_SIM_STEPS={steps_max}",
        without.join(",")
    )
}
