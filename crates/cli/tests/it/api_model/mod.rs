//! Random sequences of requests, checked against a small model of what the API promises.
//!
//! Every answer is compared with the model: its status, its error code, and what it says about workflows, runs, tasks
//! and triggers. Cases share one server, and each has names of its own. Case `n` always sends the same requests.
//! `ONWARD_API_CASES=10000` runs more cases; a failure prints the requests of its case, and `ONWARD_API_CASE=n` runs
//! that one alone.

mod case;
mod model;
mod reads;
mod tasks;
mod triggers;
mod workflows;

use crate::harness::Server;
use case::Case;
use std::sync::atomic::{AtomicU64, Ordering};
use testkit::number_from_env;

const CASES: u64 = 300;
const THREADS: u64 = 4;
const OPERATIONS: usize = 30;

#[test]
fn p7_p11_every_answer_is_what_the_model_says() {
    let server = Server::start();
    if let Ok(number) = std::env::var("ONWARD_API_CASE") {
        return Case::new(*server, number.parse().expect("ONWARD_API_CASE")).run(OPERATIONS);
    }
    let cases = number_from_env("ONWARD_API_CASES", CASES);
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (api, sent) = (*server, &sent);
            scope.spawn(move || {
                for number in (thread..cases).step_by(THREADS as usize) {
                    let mut case = Case::new(api, number);
                    case.run(OPERATIONS);
                    sent.fetch_add(case.requests(), Ordering::Relaxed);
                }
            });
        }
    });
    println!("{cases} cases, {} requests", sent.into_inner());
}
