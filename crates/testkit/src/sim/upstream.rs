//! The services that steps call: they answer late, badly, twice, or not at all.

use super::faults::Faults;
use super::random::Random;
use kernel::advance::{TaskResult, Work};
use kernel::event::Failure;
use kernel::{Payload, Span};

/// What an executor will report, and when: nothing at all, one result, or more than it should.
pub fn reports(work: &Work, random: &mut Random, faults: &Faults) -> Vec<(Span, TaskResult)> {
    if !matches!(work, Work::Http(_)) {
        return vec![(random.millis(0, 1), TaskResult::Done { body: None, took: Span(0) })];
    }
    if random.chance(faults.silence) {
        return Vec::new();
    }
    let took = random.log_millis(1, 30_000);
    let first = (took, draw(random, took));
    if !random.chance(faults.double_result) {
        return vec![first];
    }
    let again = took.0 + random.log_millis(1, 60_000).0;
    let second = if random.coin() { first.1.clone() } else { draw(random, took) };
    vec![first, (Span(again), second)]
}

/// An upstream on a good day.
pub fn well() -> TaskResult {
    respond(200, None, Span(1_000))
}

fn draw(random: &mut Random, took: Span) -> TaskResult {
    match random.below(20) {
        0..12 => respond(random.pick(&[200, 200, 201, 204]), None, took),
        12..14 => respond(random.pick(&[301, 400, 404]), None, took),
        14..16 => respond(random.pick(&[500, 503]), None, took),
        16 => respond(429, random.coin().then(|| random.log_millis(1, 60_000)), took),
        17..19 => {
            let failure = Failure::new("network", "connection reset");
            TaskResult::Failed { failure, retryable: random.chance(800), took }
        }
        _ => TaskResult::TimedOut { message: "no answer within 30s".into(), took },
    }
}

fn respond(status: u16, retry_after: Option<Span>, took: Span) -> TaskResult {
    TaskResult::Response { status, headers: Vec::new(), body: Payload::json("{\"n\":7}"), retry_after, took }
}
