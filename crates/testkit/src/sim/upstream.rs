//! The HTTP services that steps call. They answer late, with errors, twice, or not at all; some requests are
//! held back before their attempt starts, and some are handed back unsent. Every answer contains the fence of its attempt, so the checker can tell
//! which answer was accepted.

use super::fault_plan::FaultPlan;
use super::random::Random;
use engine::mailbox::Dispatch;
use kernel::advance::{HeldBack, NextRequest, TaskResult, Work};
use kernel::event::Failure;
use kernel::payload::INLINE_MAX;
use kernel::{Payload, RunId, Span, Timestamp};

/// What an executor will report, and when: nothing, one result, or two.
pub fn reports(
    dispatch: &Dispatch,
    random: &mut Random,
    faults: &FaultPlan,
    now: Timestamp,
) -> Vec<(Span, TaskResult)> {
    if !matches!(dispatch.work, Work::Http(_)) {
        return vec![(random.millis(0, 1), TaskResult::Done { body: None, took: Span(0) })];
    }
    if random.chance(faults.upstream_silence) {
        return Vec::new();
    }
    if random.chance(50) {
        // A process that drains hands back what it has not sent. Sometimes the run hears of it after that time has passed.
        let until = now.after(random.log_millis(1, 60_000));
        let failure = Failure::new("server_stopping", "nothing was sent");
        return vec![(random.millis(0, 2), TaskResult::Blocked { until, failure })];
    }
    let took = random.log_millis(1, 30_000);
    let first = (took, draw_response(dispatch, random, took));
    if !random.chance(faults.double_result) {
        return vec![first];
    }
    let again = took.0 + random.log_millis(1, 60_000).0;
    let second = if random.coin() { first.1.clone() } else { draw_response(dispatch, random, took) };
    vec![first, (Span(again), second)]
}

/// Some hosts are down for a while. The same attempt always gets the same answer.
pub fn held_back(run: RunId, next: NextRequest<'_>, now: Timestamp) -> Option<HeldBack> {
    let draw = kernel::retry::seed(&run.0, next.step, next.fence as u32);
    let until = now.after(Span::from_millis(1 + draw / 20 % 60_000));
    draw.is_multiple_of(20).then(|| HeldBack { until, failure: Failure::new("host_backoff", "the host is down") })
}

/// The answer of a healthy upstream.
pub fn success(dispatch: &Dispatch) -> TaskResult {
    match dispatch.work {
        Work::Http(_) => respond(dispatch, 200, None, 0),
        Work::Noop | Work::Log { .. } => TaskResult::Done { body: None, took: Span(0) },
    }
}

/// The fence in an answer.
pub fn fence_in(body: &[u8]) -> Option<u64> {
    let digits = body.strip_prefix(b"{\"fence\":")?.split(|b| !b.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn draw_response(dispatch: &Dispatch, random: &mut Random, took: Span) -> TaskResult {
    let pad = if random.chance(100) { INLINE_MAX } else { 0 };
    match random.below(20) {
        0..12 => respond(dispatch, random.pick(&[200, 200, 201, 204]), None, pad),
        12..14 => respond(dispatch, random.pick(&[301, 400, 404]), None, pad),
        14..16 => respond(dispatch, random.pick(&[500, 503]), None, pad),
        16 => respond(dispatch, 429, random.coin().then(|| random.log_millis(1, 60_000)), pad),
        17..19 => {
            let failure = Failure::new("network", "connection reset");
            TaskResult::Failed { failure, retryable: random.chance(800), retry_after: None, took }
        }
        _ => TaskResult::TimedOut { message: "no answer within 30s".into(), took },
    }
}

fn respond(dispatch: &Dispatch, status: u16, retry_after: Option<Span>, pad: usize) -> TaskResult {
    let body = Payload::json(format!("{{\"fence\":{},\"pad\":\"{}\"}}", dispatch.fence, "x".repeat(pad)));
    TaskResult::Response { status, headers: Vec::new(), body, retry_after, took: Span(1_000) }
}
