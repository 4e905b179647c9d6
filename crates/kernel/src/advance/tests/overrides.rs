//! M32: what operators decide about steps.

use super::*;
use crate::event::Override;

impl Story {
    fn decide(&mut self, key: &str, verb: Override) -> Answer {
        let step = self.run.find(&self.plan, key).expect(key);
        let body = (verb == Override::Result).then(|| Payload::json(r#"{"by":"hand"}"#));
        let decision = StepOverride { verb, body, actor: "ada".into(), reason: "stuck".into() };
        self.give(Input::Override { step, decision: Box::new(decision) })
    }
}

#[test]
fn m32_a_skipped_step_cascades_like_any_other() {
    let mut story = Story::of("a; b: a; c: a if tasks.a.status == 'skipped'");
    assert_eq!(story.decide("a", Override::Skip), Answer::Applied);
    assert_eq!(story.aborted, ["a"]);
    assert_eq!(story.statuses(), "a=skipped b=skipped c=running run=running");
    assert_eq!(story.decide("a", Override::Skip), Answer::Gone, "it has settled");
    assert_eq!(story.answers("c=200").statuses(), "a=skipped b=skipped c=success run=completed");
    assert_eq!(story.decide("b", Override::Skip), Answer::Ended(RunStatus::Completed));
}

#[test]
fn m32_a_step_that_has_not_begun_can_be_skipped_or_given_a_result() {
    let mut story = Story::of("a; b: a; c: b; d: c");
    assert_eq!(story.decide("b", Override::Result), Answer::Applied);
    assert_eq!(story.statuses(), "a=running b=success c=running d=pending run=running");
    assert_eq!(story.body("b"), json!({ "by": "hand" }));
    assert_eq!(story.decide("d", Override::Skip), Answer::Applied);
    assert_eq!(story.answers("a=200 c=200").run.status(), RunStatus::Completed);
}

#[test]
fn m32_a_result_calls_off_the_attempt_of_a_worker() {
    let mut story = Story::of("a@task; b: a");
    let step = 0;
    let offer = Offer { worker: "w".into(), lease: Span::from_secs(30), ..Default::default() };
    assert_eq!(story.give(Input::Claim { step, offer }), Answer::Applied);
    let fence = story.leases[&step];
    assert_eq!(story.decide("a", Override::Result), Answer::Applied);
    assert_eq!((story.aborted.as_slice(), story.leases.len()), (&["a".to_owned()][..], 0));
    let late = TaskResult::Done { body: Some(Payload::json("1")), took: Span(1) };
    assert_eq!(story.give(Input::Finished { step, fence, result: late, digest: 5 }), Answer::Stale);
    assert_eq!(story.body("a"), json!({ "by": "hand" }));
}

#[test]
fn m32_what_is_inside_of_a_skipped_group_or_loop_is_called_off() {
    let groups = [("", "g@group; l@each=trigger.body.list; z: g, l"), ("g", "a; b: a"), ("l", "x")];
    let mut story = Story::nested(&groups, json!({ "list": [1, 2] }));
    assert_eq!(story.decide("l[0]", Override::Skip), Answer::Unknown, "an iteration is decided by its steps");
    assert_eq!(story.decide("g", Override::Result), Answer::Applied);
    assert_eq!(story.decide("l", Override::Skip), Answer::Applied);
    assert_eq!(story.aborted, ["g/a", "l[0]/x"]);
    assert!(story.statuses().ends_with("run=completed"), "{}", story.statuses());
}

#[test]
fn m32_run_now_ends_a_sleep_and_the_time_before_a_retry() {
    let mut story = Story::of("nap@sleep=1h; a; b: nap");
    story.answers("a=503");
    assert_eq!(story.statuses(), "nap=sleeping a=retrying b=pending run=waiting");
    assert_eq!(story.decide("nap", Override::RunNow), Answer::Applied);
    assert_eq!(story.decide("a", Override::RunNow), Answer::Applied);
    assert_eq!(story.decide("a", Override::RunNow), Answer::Conflict, "it runs already");
    assert_eq!(story.answers("a=200 b=200").run.status(), RunStatus::Completed);
}

#[test]
fn m32_a_wait_and_a_child_can_be_skipped() {
    let mut story = Story::of("w@wait=x; c@child=other; z: w, c");
    assert_eq!(story.decide("w", Override::Skip), Answer::Applied);
    story.outgoing.clear();
    assert_eq!(story.decide("c", Override::Result), Answer::Applied);
    assert_eq!(story.callback("w", "1"), Answer::Gone);
    assert_eq!(story.statuses(), "w=skipped c=success z=skipped run=completed");
}

#[test]
fn m32_a_step_that_is_decided_while_its_worker_waits_for_a_payload_needs_it_no_more() {
    let body = json!({ "pad": "x".repeat(INLINE_MAX) }).to_string();
    let origin = Origin { body: Payload::json(body), ..Default::default() };
    let mut story = Story::start(plan_of("a@task; nap@sleep=1h"), origin, Admission::Open, Vec::new());
    let offer = Offer { worker: "w".into(), lease: Span::from_secs(30), ..Default::default() };
    let (actor, reason, body) = ("ada".into(), String::new(), Some(Payload::json("1")));
    let decision = Box::new(StepOverride { verb: Override::Result, body, actor, reason });
    let answers = story.give_all(vec![Input::Claim { step: 0, offer }, Input::Override { step: 0, decision }]);
    assert_eq!(answers, [Answer::Later, Answer::Applied]);
    assert_eq!((story.statuses().as_str(), story.missing.len()), ("a=success nap=sleeping run=waiting", 0));
}
