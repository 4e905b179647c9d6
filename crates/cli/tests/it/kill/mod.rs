//! The kill −9 loop. Clients write to a server that dies at random moments, also while it recovers,
//! and write down what they asked and what they were told. When the killing is over and every run has
//! ended, what is left must agree with what was told, and with what an upstream saw.
//!
//! `ONWARD_KILLS` says how often (default 30), `ONWARD_SEED` where the random numbers begin.

mod checker;
mod driver;
mod journal;

use crate::harness::{Act, Upstream};
use driver::Driver;
use std::time::Duration;

#[test]
fn p1_p2_p3_p9_nothing_is_lost_or_doubled_however_often_it_is_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("ONWARD_KILLS").unwrap_or(30);
    let seed = number("ONWARD_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let upstream = Upstream::start();
    upstream.on("/flaky", [Act::FailFirst]);
    // Requests that take a while are what a kill interrupts.
    for (path, millis) in [("/a", 60), ("/join", 30), ("/before", 100), ("/ask", 20)] {
        upstream.on(path, [Act::Slow(Duration::from_millis(millis))]);
    }
    let mut driver = Driver::new(&upstream, seed);
    driver.kill_again_and_again(kills);
    let (server, journal) = driver.finish();
    let summary = checker::check(&server, &upstream, &journal);
    println!("seed {seed}: {kills} kills, {summary}");
}
