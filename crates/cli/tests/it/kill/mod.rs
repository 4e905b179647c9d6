//! The kill −9 loop. Clients send requests to a server that is killed at random times, also while it recovers and while
//! it drains, and that is sometimes stopped with SIGSTOP. They log every request and its answer. When the kills are
//! over and every run has ended, the stored runs must agree with that log and with the requests that an upstream
//! received.
//!
//! `ONWARD_KILLS` sets the number of kills (default 50), `ONWARD_SEED` the random numbers.

pub mod checker;
pub mod driver;
mod journal;

use crate::harness::{Server, Upstream};
use checker::Load;
use driver::Driver;
use std::time::Instant;

#[test]
fn p1_p2_p3_p9_nothing_is_lost_or_doubled_however_often_it_is_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("ONWARD_KILLS").unwrap_or(50);
    let seed = number("ONWARD_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let begun = Instant::now();
    let upstream = Upstream::start();
    let flags = driver::flags(&[]);
    let server = Server::with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut driver = Driver::new(server, &upstream, seed);
    driver.kill_again_and_again(kills);
    let (server, journal) = driver.finish();
    let summary = checker::check(&server, &upstream, &journal, &Load { acked: 50, interrupted: 1, is_time_real: true });
    println!("seed {seed}: {kills} kills, {summary}, {} s", begun.elapsed().as_secs());
}
