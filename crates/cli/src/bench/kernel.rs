//! The kernel alone: nanoseconds to decide one step of a chain and encode the record, without store, mailbox and
//! threads. The rest of the engine's time is spent outside the kernel.

use super::{Figures, flow};
use ::kernel::advance::TaskResult;
use ::kernel::event::Origin;
use ::kernel::{Admission, Context, Effect, Input, Payload, Payloads, Run, RunId, Span, Timestamp, advance};
use std::time::{Duration, Instant};

pub fn advances(steps: usize, seconds: u64) -> Result<Figures, String> {
    let plan = flow::compile(&flow::chain(steps))?.plan;
    let (wait_url, none) = (|_: &str| String::new(), Payloads::new());
    let context = Context {
        run: RunId([7; 16]),
        now: Timestamp::from_millis(1_800_000_000_000),
        epoch: 1,
        is_draining: false,
        wait_url: &wait_url,
        payloads: &none,
        offer: &|_| None,
        hold: &|_| None,
    };
    let origin = Origin { body: Payload::json(r#"{"order_id":123}"#), ..Default::default() };
    let (began, until) = (Instant::now(), Instant::now() + Duration::from_secs(seconds));
    let (mut count, mut bytes) = (0u64, 0u64);
    let mut ok = true;
    while Instant::now() < until {
        for _ in 0..1_000 {
            let mut run = Run::default();
            let mut input =
                Input::Start { origin: Box::new(origin.clone()), admission: Admission::Open, copied: Vec::new() };
            for _ in 0..=steps {
                let advanced = advance(&plan, &mut run, vec![input], &context);
                count += 1;
                bytes += advanced.record.map_or(0, |record| record.seal().len() as u64);
                match advanced.effects.first() {
                    Some(Effect::Execute { step, fence, .. }) => {
                        let result = TaskResult::Done { body: None, took: Span(0) };
                        input = Input::Finished { step: *step, fence: *fence, result, digest: 0 };
                    }
                    _ => break,
                }
            }
            ok &= run.status() == ::kernel::RunStatus::Completed;
        }
    }
    let elapsed = began.elapsed();
    Ok(Figures {
        rate_per_s: Some(count as f64 / elapsed.as_secs_f64()),
        unit: Some("advances/s"),
        ns_per_advance: Some(elapsed.as_nanos() as f64 / count as f64),
        record_bytes: Some(bytes as f64 / count as f64),
        ok,
        ..Default::default()
    })
}
