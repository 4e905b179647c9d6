//! M31: a fork copies what is not downstream of its first step, and runs the rest.

use super::undo::undoable;
use super::*;
use crate::event::{CopiedStep, ForkPoint};
use crate::scope::Scope;

impl Story {
    fn plan_fork(&self, from: &str, given: &[(&str, Value)]) -> Fork {
        let number = |key: &str| self.run.find(&self.plan, key).expect(key);
        let given = given.iter().map(|(key, body)| (number(key), Payload::json(body.to_string()))).collect();
        fork(&self.plan, &self.run, number(from), &given)
    }

    /// What a fork would run, which of that it would repeat, and what of that cannot be repeated.
    fn would(&self, from: &str) -> [String; 3] {
        let fork = self.plan_fork(from, &[]);
        let keys = |steps: &[u32]| -> Vec<String> {
            steps.iter().map(|step| self.run.key(&self.plan, *step).into_owned()).collect()
        };
        let unrepeatable: Vec<String> = fork.unrepeatable.iter().map(|step| step.key.clone()).collect();
        [keys(&fork.would_run).join(" "), keys(&fork.would_repeat).join(" "), unrepeatable.join(" ")]
    }

    /// The fork of a run that is cancelled first.
    pub(super) fn fork_when_ended(mut self, from: &str) -> Story {
        self.cancel();
        self.fork(from, &[])
    }

    /// The fork, as its first record leaves it.
    pub(super) fn fork(&self, from: &str, given: &[(&str, Value)]) -> Story {
        let whole = |mut ended: CopiedStep| {
            for payload in ended.payloads_mut() {
                payload.inline = payload.bytes(&self.payloads).expect("it was stored").clone();
                payload.stored = None;
            }
            ended
        };
        let copied = self.plan_fork(from, given).copied.into_iter().map(|(step, ended)| (step, whole(ended))).collect();
        let point = ForkPoint { run: self.id, step: from.into(), ..Default::default() };
        let body = self.run.state.origin.body.clone();
        let origin = Box::new(Origin { body, forked_from: Some(Box::new(point)), ..Default::default() });
        let mut forked = Story::before_start(Plan::new(self.plan.layout().clone()).unwrap(), Vec::new());
        assert_eq!(forked.give(Input::Start { origin, admission: Admission::Open, copied }), Answer::Applied);
        forked
    }
}

#[test]
fn m31_what_is_not_downstream_is_copied_and_runs_no_more() {
    let mut story = Story::of("a; b: a; c: b; d: a; e: c, d");
    story.answers("a=200 b=200 d=200 c=200 e=200");
    assert_eq!(story.would("b"), ["b c e", "b c e", ""]);
    let mut forked = story.fork("b", &[]);
    assert_eq!(forked.statuses(), "a=success b=running c=pending d=success e=pending run=running");
    assert_eq!(forked.events()[..4], ["run.created", "step.copied a", "step.copied d", "step.started b"]);
    assert_eq!(forked.body("a"), json!({ "n": 7 }));
    forked.answers("b=200 c=200 e=200");
    assert_eq!(forked.keys_from(0), ["b", "c", "e"]);
    assert_eq!(forked.run.status(), RunStatus::Completed);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m31_what_failed_or_was_cancelled_runs_again_with_what_was_skipped_because_of_it() {
    let mut story = Story::of("a; b: a; c: b; d; h: a if tasks.b.failed; n@wait");
    story.answers("a=404 d=200");
    story.cancel();
    assert_eq!(story.statuses(), "a=failed b=skipped c=skipped d=success h=skipped n=cancelled run=cancelled");
    assert_eq!(story.would("d")[..2], ["a b c d h n".to_owned(), "d".to_owned()]);
    let mut story = Story::of("a; h: a if tasks.a.failed; z: h");
    story.answers("a=404 h=200 z=200");
    let mut forked = story.fork("z", &[]);
    assert_eq!(forked.statuses(), "a=failed h=success z=running run=running", "its failure was handled");
    assert_eq!(forked.answers("z=200").run.status(), RunStatus::Completed);
}

#[test]
fn m31_a_given_result_counts_as_the_steps_own_and_what_depends_on_it_runs_again() {
    let mut story = Story::of("a; b: a; c; d: c; e: b, d");
    story.answers("a=404 c=200 d=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    let fork = story.plan_fork("d", &[("a", json!({ "n": 1 }))]);
    assert_eq!(fork.would_run, [1, 3, 4]);
    let mut forked = story.fork("d", &[("a", json!({ "n": 1 }))]);
    assert_eq!(forked.statuses(), "a=success b=running c=success d=running e=pending run=running");
    assert_eq!(forked.body("a"), json!({ "n": 1 }));
    assert!(forked.run.step(0).copied.as_ref().unwrap().is_given);
    forked.answers("b=200 d=200 e=200");
    assert_eq!(forked.run.status(), RunStatus::Completed);
    // Also for a step whose needs run again, and for one downstream.
    let mut forked = story.fork("c", &[("b", json!(1)), ("d", json!(2))]);
    assert_eq!(forked.statuses(), "a=running b=success c=running d=success e=running run=running");
    forked.answers("a=200 c=200 e=200");
    assert_eq!(forked.run.status(), RunStatus::Completed);
}

#[test]
fn m31_a_fork_undoes_what_it_ran_and_no_copied_step() {
    let plan = || undoable(&[("", "a; b: a; c: b; z: c")], "a! b!");
    let origin = || Origin { body: Payload::json(r#"{"id":5}"#), ..Default::default() };
    let mut story = Story::start(plan(), origin(), Admission::Open, Vec::new());
    story.answers("a=200 b=200 c=200 z=200");
    let mut forked = story.fork("b", &[]);
    forked.answers("b=200 c=404");
    assert_eq!(forked.run.status(), RunStatus::Compensating);
    forked.answers("b/compensate=200");
    assert_eq!(forked.run.status(), RunStatus::Failed);
    assert_eq!(forked.run.undos().len(), 1);
    // What a run has undone is no result of it: its fork does that again.
    assert_eq!(forked.would("z"), ["b c z", "b", ""]);
}

#[test]
fn m31_groups_and_loops_are_copied_whole_with_what_failed_in_them() {
    let groups = [("", "l@each=trigger.body.list; g@group; z: l, g; y: z"), ("l", "a"), ("g", "b; c: b")];
    let goes_on = |layout: &mut Layout| {
        for node in &mut layout.nodes {
            if let Some(Body::Loop { repeat }) = &mut node.body {
                repeat.body.on_error = OnError::Continue;
            }
        }
    };
    let mut story = Story::changed(&groups, json!({ "list": [1, 2, 3] }), goes_on);
    story.answers("l[0]/a=200 l[1]/a=404 l[2]/a=200 g/b=200 g/c=200 z=200 y=404");
    assert_eq!(story.run.status(), RunStatus::Failed);
    let forked = story.fork("z", &[]);
    assert_eq!(forked.statuses(), "l=success g=success z=running y=pending run=running");
    assert_eq!(forked.body("l"), story.body("l"));
    let errors = |story: &Story| {
        let context = Context {
            run: story.id,
            now: story.now,
            epoch: 1,
            is_draining: false,
            wait_url: &|_| String::new(),
            payloads: &story.payloads,
            offer: &|_| None,
            hold: &|_| None,
        };
        let parsed = ParsedBodies::default();
        let view = View::new(&story.plan, &story.run, &context, &parsed);
        let path = path::Ref { root: path::Root::Task, node: 0, field: path::TaskField::Errors, ..Default::default() };
        view.get(&path).ok().flatten().map(|value| value.into_owned())
    };
    assert_eq!(errors(&forked), errors(&story));
    assert_eq!(errors(&forked).unwrap()[0]["index"], json!(1));
    // What is inside of a group that failed runs from scratch.
    let mut story = Story::nested(&groups, json!({ "list": [1] }));
    story.answers("l[0]/a=200 g/b=200 g/c=404");
    assert_eq!(story.would("z"), ["g z y", "g", ""]);
}

#[test]
fn s31_a_fork_names_what_it_would_repeat_that_cannot_be() {
    let mut story = Story::of("a; b: a; c: b").with_layout(|layout| {
        layout.nodes[0].is_irreversible = true;
        layout.nodes[1].is_not_compensatable = true;
    });
    story.answers("a=200 b=200 c=200");
    assert_eq!([story.would("a"), story.would("b"), story.would("c")].map(|[.., last]| last), ["a b", "b", ""]);
}

#[test]
fn m31_a_fork_of_a_fork_copies_what_the_first_one_copied() {
    let mut story = Story::of("a; b: a; c: b");
    story.answers("a=200 b=200 c=200");
    let mut forked = story.fork("b", &[("a", json!({ "n": 1 }))]);
    forked.answers("b=200 c=404");
    let again = forked.fork("c", &[]);
    assert_eq!(again.statuses(), "a=success b=success c=running run=running");
    assert_eq!(again.body("a"), json!({ "n": 1 }));
    let is_given = |step: u32| again.run.step(step).copied.as_ref().map(|copied| copied.is_given);
    assert_eq!([is_given(0), is_given(1), is_given(2)], [Some(true), Some(false), None]);
}

#[test]
fn m31_large_results_are_stored_again() {
    let mut story = Story::of("a; b: a; c: b");
    let big = "x".repeat(20_000);
    let answer = response(200, json!({ "n": big }));
    let input = story.result("a", answer);
    story.give(input);
    story.answers("b=200 c=200");
    let forked = story.fork("c", &[]);
    assert_eq!(forked.payloads.len(), 1);
    assert_eq!(forked.body("a"), json!({ "n": big }));
    assert_eq!(forked.run.state.bytes, story.run.state.bytes - 7, "all but what `c` answered");
}
