//! A second planner: `advance` does not know which planner it asks.

use super::*;
use crate::planner::{Finish, Move, Next, Planner, Settlement, StartTarget};
use crate::run::Phase;

/// Starts the steps in the opposite order of the plan, one after the other, and fails at the first failure. Links and
/// conditions mean nothing to it. It keeps no index: it looks at the run.
#[derive(Clone, Debug, Default)]
struct Backwards {
    is_stalled: bool,
    has_ended: bool,
}

impl Planner for Backwards {
    fn rebuild(&mut self, _: &Plan, run: &Run) {
        *self = Backwards { has_ended: run.is_terminal(), ..Backwards::default() };
    }
    fn opened(&mut self, _: &Plan, _: &Run, _: u32) {}
    fn begun(&mut self, _: &Plan, _: &Run, _: u32) {}
    fn tidy(&mut self, _: &Plan, _: &Run) {}
    fn started(&mut self, _: &Plan, _: &Run, _: u32) {}
    fn settled(&mut self, _: &Plan, _: &Run, _: u32) {}
    fn left(&mut self, _: u32) {}
    fn ended(&mut self) {
        self.has_ended = true;
    }

    fn next(&mut self, view: &View<'_>, is_held: bool) -> Next {
        if self.has_ended || self.is_stalled {
            return Next::Nothing;
        }
        let run = view.run;
        let is_pending = |step: &u32| matches!(run.step(*step).phase, Phase::Pending {});
        let unfinished = run.steps().rev().find(|(_, step)| step.outcome() != Some(crate::status::Outcome::Ok));
        match unfinished {
            None => Next::Move(Move::Finish(Finish::Completed { output: Some(Payload::json("\"backwards\"")) })),
            Some((step, state)) if state.status() == StepStatus::Failed => {
                match run.steps().map(|(step, _)| step).find(is_pending) {
                    Some(step) => {
                        let because = crate::event::Because::Needs { steps: vec![step] };
                        Next::Move(Move::Settle { step, settlement: Settlement::Skipped(because) })
                    }
                    None => {
                        let failure = Failure::new("backwards", "a step failed");
                        Next::Move(Move::Finish(Finish::Failed { failure, step: Some(step) }))
                    }
                }
            }
            Some((step, _)) if is_pending(&step) && !is_held => {
                Next::Move(Move::Start { target: StartTarget::Opened(step), seen: Vec::new() })
            }
            Some(_) => Next::Nothing,
        }
    }

    fn stalled(&mut self, _: u32) {
        self.is_stalled = true;
    }
    fn unstall(&mut self) {
        self.is_stalled = false;
    }
    fn has_moves(&self) -> bool {
        false
    }
    fn boxed(&self) -> Box<dyn Planner> {
        Box::new(self.clone())
    }
}

fn story(text: &str) -> Story {
    let plan = plan_of(text).with_planner(|| Box::<Backwards>::default());
    Story::start(plan, Origin { body: Payload::json("{}"), ..Default::default() }, Admission::Open, Vec::new())
}

#[test]
fn advance_makes_the_moves_of_any_planner() {
    let mut story = story("a; b: a; c@sleep=5s: b");
    assert_eq!(story.statuses(), "a=pending b=pending c=sleeping run=waiting");
    story.after("5s").exhaust("b", "503");
    assert_eq!(story.statuses(), "a=skipped b=failed c=success run=failed", "with its retries, timers and fences");
    assert_eq!(story.run.state.failure.as_ref().unwrap().code, "backwards");
}

#[test]
fn another_planner_ends_a_run_with_an_output() {
    let mut story = story("a; b; t@task");
    assert_eq!(story.statuses(), "a=pending b=pending t=pending run=running");
    let step = story.run.find(&story.plan, "t").unwrap();
    let offer = Offer { worker: "w1".into(), lease: Span::from_secs(30), ..Default::default() };
    story.give(Input::Claim { step, offer });
    let fence = story.leases[&step];
    let result = TaskResult::Done { body: None, took: Span(1) };
    story.give(Input::Finished { step, fence, result, digest: 1 });
    story.answers("b=200 a=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.run.state.output, Some(Payload::json("\"backwards\"")));
}
