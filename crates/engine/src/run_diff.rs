//! What changed in the steps of a run between two of its events: a pure function of both states.

use kernel::event::Failure;
use kernel::run::{Phase, Step};
use kernel::{Run, StepStatus, Timestamp};

/// A step that is not the same at both events.
#[derive(Debug, PartialEq)]
pub struct StepChange<'r> {
    pub step: u32,
    /// `None` if the step did not exist yet: it is inside of another one.
    pub from: Option<StepMoment<'r>>,
    pub to: StepMoment<'r>,
}

/// What a comparison looks at of a step. Not its body: a step with another one also has another status or attempt.
#[derive(Debug, PartialEq)]
pub struct StepMoment<'r> {
    pub status: StepStatus,
    pub attempt: u32,
    pub status_code: Option<u16>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// When a step that sleeps, waits or retries goes on by itself.
    pub until: Option<Timestamp>,
    pub failure: Option<&'r Failure>,
}

impl<'r> StepMoment<'r> {
    fn of(step: &'r Step) -> StepMoment<'r> {
        StepMoment {
            status: step.status(),
            attempt: step.attempt,
            status_code: step.response.as_ref().and_then(|response| response.status_code),
            started_at: step.started_at,
            finished_at: step.finished_at,
            until: match &step.phase {
                Phase::Sleeping { until: at } | Phase::Waiting { deadline: at } | Phase::Retrying { at } => Some(*at),
                Phase::Pending {}
                | Phase::Ready {}
                | Phase::Running { .. }
                | Phase::Leased { .. }
                | Phase::Open {}
                | Phase::Child {}
                | Phase::Done { .. }
                | Phase::Unknown { .. } => None,
            },
            failure: step.failure.as_deref(),
        }
    }
}

/// The steps that changed: those of the root group in this order, then inner steps by number. `from` is not later than
/// `to`, and both runs have every step that they opened (see [`Run::load_whole_at`]).
pub fn changed_steps<'r>(from: &'r Run, to: &'r Run, order: &[u32]) -> Vec<StepChange<'r>> {
    let inner = to.state.inner.keys();
    let change = |step: &u32| {
        let (before, after) = (from.get(*step).map(StepMoment::of), StepMoment::of(to.step(*step)));
        (before.as_ref() != Some(&after)).then_some(StepChange { step: *step, from: before, to: after })
    };
    order.iter().chain(inner).filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::event::{Origin, Response};
    use kernel::{Event, Plan};

    fn plan() -> Plan {
        let source = r#"{ "name": "w", "tasks": { "a": { "url": "http://h/" }, "b": { "needs": ["a"], "sleep": "1h" },
            "g": { "needs": ["a"], "group": { "tasks": { "c": { "noop": {} } } } } } }"#;
        let tree = lang::read(source.as_bytes(), lang::Syntax::Json).expect("JSON");
        lang::compile(&tree).expect("a workflow").plan
    }

    /// The run after each of these events, one second apart.
    fn states(plan: &Plan, events: Vec<Event>) -> Vec<Run> {
        let mut run = Run::default();
        let apply = |(second, event): (usize, Event)| {
            run.apply(plan, &event, Timestamp(second as i64 * 1_000_000)).expect("it fits");
            run.clone()
        };
        events.into_iter().enumerate().map(apply).collect()
    }

    /// `"a pending→running(1) g/c -→pending(0)"`
    fn shown(plan: &Plan, from: &Run, to: &Run) -> String {
        let change = |change: &StepChange<'_>| {
            let before = change.from.as_ref().map_or("-", |before| before.status.as_str());
            let key = to.key(plan, change.step).into_owned();
            format!("{key} {before}→{}({})", change.to.status.as_str(), change.to.attempt)
        };
        let order: Vec<u32> = ["g", "b", "a"].map(|name| plan.find(name).expect(name)).into();
        changed_steps(from, to, &order).iter().map(change).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn steps_that_changed_are_listed_in_order_and_no_others() {
        let plan = plan();
        let [a, b, g, c] = ["a", "b", "g", "c"].map(|name| plan.find(name).expect(name));
        let failure = Failure::new("http_status", "503");
        let retrying =
            |next: i64| Event::HeldBack { step: a, until: Timestamp(next), failure: failure.clone(), seen: Vec::new() };
        let inner = plan.root().len() as u32;
        let ok = Response { status_code: Some(200), ..Default::default() };
        let states = states(
            &plan,
            vec![
                Event::Created { origin: Box::new(Origin::default()) },
                Event::Started { step: a, attempt: 1, epoch: 1, seen: Vec::new() },
                retrying(7_000_000),
                retrying(9_000_000),
                Event::Started { step: a, attempt: 2, epoch: 1, seen: Vec::new() },
                Event::Succeeded { step: a, attempt: 2, response: ok, seen: Vec::new(), digest: 0 },
                Event::TimerSet { step: b, at: Timestamp(99_000_000), seen: Vec::new() },
                Event::GroupStarted { step: g, seen: Vec::new() },
                Event::Opened { step: inner, node: c, parent: g, index: 0 },
                Event::RunWaiting {},
                Event::RunCancelled { actor: String::new(), reason: String::new() },
            ],
        );
        let between = |from: usize, to: usize| shown(&plan, &states[from - 1], &states[to - 1]);
        for (from, to, expected) in [
            (1, 1, ""),
            (1, 2, "a pending→running(1)"),
            (2, 3, "a running→retrying(1)"),
            (3, 4, "a retrying→retrying(1)"),
            (4, 5, "a retrying→running(2)"),
            (1, 6, "a pending→success(2)"),
            (5, 7, "b pending→sleeping(0) a running→success(2)"),
            (7, 8, "g pending→running(0)"),
            (8, 9, "g/c -→pending(0)"),
            (9, 10, ""),
            (10, 11, "g running→cancelled(0) b sleeping→cancelled(0) g/c pending→cancelled(0)"),
        ] {
            assert_eq!(between(from, to), expected, "{from} to {to}");
        }
        let held = changed_steps(&states[2], &states[3], &[a]).remove(0);
        let until = |moment: &StepMoment<'_>| (moment.until, moment.failure.map(|why| why.code.clone()));
        assert_eq!(held.from.as_ref().map(until), Some((Some(Timestamp(7_000_000)), Some("http_status".into()))));
        assert_eq!(until(&held.to), (Some(Timestamp(9_000_000)), Some("http_status".into())));
        let ended = changed_steps(&states[4], &states[5], &[a]).remove(0).to;
        assert_eq!(
            (ended.status_code, ended.finished_at, ended.failure),
            (Some(200), Some(Timestamp(5_000_000)), None)
        );
    }
}
