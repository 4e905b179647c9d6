//! Runs that steps start: rules M17 to M19.

use super::*;
use crate::event::Parent;
use crate::inbox::{ChildOutcome, InboxKind, StartChild, StoredInput};
use crate::run::CHILDREN_MAX;

impl Story {
    /// The children that were asked for since the last call: their ids and what is asked.
    fn children(&mut self) -> Vec<(RunId, StartChild)> {
        let (starts, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.outgoing).into_iter().partition(|row| row.kind == InboxKind::StartChild);
        self.outgoing = others;
        starts.into_iter().map(|row| (row.to, StartChild::open(&row.body).unwrap())).collect()
    }

    /// The inputs for other runs since the last call.
    fn inputs_for_others(&mut self) -> Vec<(RunId, Input)> {
        std::mem::take(&mut self.outgoing)
            .into_iter()
            .map(|row| (row.to, StoredInput::open(&row.body).unwrap()))
            .collect()
    }

    fn child_ended(&mut self, step: u32, attempt: u32, status: RunStatus, output: Value) -> Answer {
        let output = Some(Payload::json(output.to_string()));
        let failure = (status == RunStatus::Failed).then(|| Failure::new("step_failed", "`x` failed"));
        let outcome = Box::new(ChildOutcome { status, output, failure, ..Default::default() });
        self.give(Input::ChildEnded { step, attempt, outcome })
    }
}

fn child_body(layout: &mut Layout, change: impl Fn(&mut ChildBody)) {
    for node in &mut layout.nodes {
        if let Some(Body::Child { child }) = &mut node.body {
            change(child);
        }
    }
}

#[test]
fn m17_a_step_starts_one_child_for_each_attempt() {
    let mut story = Story::of("a; c@child=bill: a; z@set={{tasks.c.body.n}}: c");
    story.answers("a=200");
    assert_eq!(story.statuses(), "a=success c=waiting z=pending run=waiting");
    let children = story.children();
    let [(id, start)] = children.as_slice() else { panic!("{children:?}") };
    let parent = start.parent.as_ref().unwrap();
    assert_eq!((start.workflow.as_str(), parent.run, parent.step, parent.attempt), ("bill", story.id, 1, 1));
    assert_eq!((parent.key.as_str(), parent.depth, parent.is_detached), ("c", 1, false));
    assert_eq!(start.input, Payload::json(r#"{"id":5}"#), "without an input, the body of this run's trigger");
    assert_eq!(story.run.step(1).child.as_ref().unwrap().run, *id);
    assert_eq!(story.child_ended(1, 1, RunStatus::Completed, json!({ "n": 3 })), Answer::Applied);
    assert_eq!(story.statuses(), "a=success c=success z=success run=completed");
    assert_eq!(story.child_ended(1, 1, RunStatus::Completed, json!({ "n": 4 })), Answer::Gone);
}

#[test]
fn m22_a_child_is_started_by_the_person_who_started_its_parent() {
    let origin = Origin { actor: "eve".into(), body: Payload::json("{}"), ..Default::default() };
    let mut story = Story::start(plan_of("c@child=bill"), origin, Admission::Open, Vec::new());
    assert_eq!(story.children()[0].1.parent.as_ref().unwrap().actor, "eve");
}

#[test]
fn m17_ids_of_children_differ_between_runs_created_together() {
    let mut ids = BTreeSet::new();
    for n in 0..20 {
        let plan = plan_of("a@child=x; b@child=x; c@child=x; d@child=x");
        let origin = Origin { body: Payload::json("{}"), ..Default::default() };
        let mut story = Story::start(plan, origin, Admission::Queue(Queue::Limit), Vec::new());
        story.id = RunId([9; 16]).later(n);
        story.give(Input::Admit);
        ids.extend(story.children().into_iter().map(|(id, _)| id));
    }
    assert_eq!(ids.len(), 80);
}

#[test]
fn m18_a_child_that_does_not_complete_fails_the_step_with_its_error() {
    for (status, code) in [
        (RunStatus::Failed, "child_failed"),
        (RunStatus::Timeout, "child_timeout"),
        (RunStatus::Cancelled, "child_cancelled"),
    ] {
        let mut story = Story::of("c@child=bill; z: c");
        story.child_ended(0, 1, status, Value::Null);
        assert_eq!(story.statuses(), "c=failed z=skipped run=failed");
        let step = story.run.step(0);
        assert_eq!(step.failure.as_ref().unwrap().code, code);
        let body = step.body().unwrap().value(&Payloads::new()).unwrap();
        assert_eq!(body["status"], status.as_str());
        let inner = if status == RunStatus::Failed { json!("step_failed") } else { Value::Null };
        assert_eq!(body["error"]["code"], inner);
    }
}

#[test]
fn m18_another_attempt_starts_another_child() {
    let retry = Retry { max_attempts: 2, min: Span::from_secs(10), ..Default::default() };
    let change = |layout: &mut Layout| layout.nodes[0].retry = retry.clone();
    let mut story = Story::changed(&[("", "c@child=bill")], json!({}), change);
    let first = story.children()[0].0;
    story.child_ended(0, 1, RunStatus::Failed, Value::Null);
    assert_eq!(story.statuses(), "c=retrying run=waiting");
    story.after("10s");
    assert_eq!(story.statuses(), "c=waiting run=waiting");
    let again = story.children();
    assert_eq!((again.len(), again[0].1.parent.as_ref().unwrap().attempt), (1, 2));
    assert_ne!(again[0].0, first);
    assert_eq!(story.child_ended(0, 1, RunStatus::Completed, Value::Null), Answer::Gone, "of the first attempt");
    assert_eq!(story.child_ended(0, 2, RunStatus::Completed, Value::Null), Answer::Applied);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m18_a_child_that_is_refused_for_good_gets_one_attempt() {
    let retry = Retry { max_attempts: 5, min: Span::from_secs(10), ..Default::default() };
    let change = |layout: &mut Layout| layout.nodes[0].retry = retry.clone();
    let mut story = Story::changed(&[("", "c@child=bill; z: c")], json!({}), change);
    let failure = Some(Failure::new("invalid_input", "`/n` must be a number, found a text"));
    let outcome = ChildOutcome { status: RunStatus::Failed, failure, is_refused: true, ..Default::default() };
    story.give(Input::ChildEnded { step: 0, attempt: 1, outcome: Box::new(outcome) });
    assert_eq!(story.statuses(), "c=failed z=skipped run=failed");
    let step = story.run.step(0);
    let failure = step.failure.as_ref().unwrap();
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("invalid_input", "`/n` must be a number, found a text")
    );
    let body = step.body().unwrap().value(&Payloads::new()).unwrap();
    assert_eq!((&body["error"]["code"], &body["run_id"]), (&json!("invalid_input"), &Value::Null), "there is no run");
    assert!(step.child.is_none());
}

#[test]
fn m18_a_child_that_could_not_be_started_fails_the_step_with_the_reason() {
    let retry = Retry { max_attempts: 2, min: Span::from_secs(10), ..Default::default() };
    let change = |layout: &mut Layout| layout.nodes[0].retry = retry.clone();
    let mut story = Story::changed(&[("", "c@child=bill; z: c")], json!({}), change);
    let refuse = |story: &mut Story, attempt| {
        let failure = Some(Failure::new("workflow_disabled", "the workflow is disabled"));
        let outcome = ChildOutcome { status: RunStatus::Failed, failure, never_began: true, ..Default::default() };
        story.give(Input::ChildEnded { step: 0, attempt, outcome: Box::new(outcome) });
    };
    refuse(&mut story, 1);
    assert_eq!(story.statuses(), "c=retrying z=pending run=waiting", "the workflow may be enabled by then");
    story.after("10s");
    refuse(&mut story, 2);
    assert_eq!(story.statuses(), "c=failed z=skipped run=failed");
    let step = story.run.step(0);
    assert_eq!(step.failure.as_ref().unwrap().code, "workflow_disabled");
    let body = step.body().unwrap().value(&Payloads::new()).unwrap();
    assert_eq!((&body["error"]["code"], &body["run_id"]), (&json!("workflow_disabled"), &Value::Null));
    assert!(step.child.is_none(), "no run has this id");
}

#[test]
fn m19_a_detached_child_is_not_waited_for() {
    let change = |layout: &mut Layout| {
        child_body(layout, |child| (child.detached, child.on_parent_close) = (true, OnParentClose::Leave));
    };
    let mut story = Story::changed(&[("", "c@child=mail")], json!({}), change);
    let (id, start) = story.children().remove(0);
    assert!(start.parent.unwrap().is_detached);
    assert_eq!(story.run.status(), RunStatus::Waiting, "until the child exists");
    assert_eq!(story.give(Input::ChildBegan { step: 0, attempt: 1 }), Answer::Applied);
    assert_eq!(story.statuses(), "c=success run=completed");
    let body = story.run.step(0).body().unwrap().value(&Payloads::new()).unwrap();
    assert_eq!(body["run_id"], id.to_string());
    assert!(story.outgoing.is_empty(), "the child is left alone");
}

#[test]
fn m19_children_that_close_with_their_parent_are_cancelled_at_every_end_of_it() {
    let change = |layout: &mut Layout| child_body(layout, |child| child.detached = true);
    let mut story = Story::changed(&[("", "c@child=mail; z: c")], json!({}), change);
    let id = story.children()[0].0;
    story.give(Input::ChildBegan { step: 0, attempt: 1 });
    story.answers("z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    let inputs = story.inputs_for_others();
    assert!(
        matches!(inputs.as_slice(), [(to, Input::ParentClosed { parent, .. })] if *to == id && *parent == story.id)
    );
}

#[test]
fn m19_a_cancelled_run_ends_when_its_children_have() {
    let groups = &[("", "a@sleep; g@group"), ("g", "c@child=bill; b@sleep; d@child=ship")];
    let mut story = Story::nested(groups, json!({}));
    let children: Vec<RunId> = story.children().into_iter().map(|(id, _)| id).collect();
    let cancel = || Input::Cancel { actor: "ada".into(), reason: "wrong order".into(), compensate: false };
    assert_eq!(story.give(cancel()), Answer::Applied);
    assert_eq!(story.statuses(), "a=cancelled g=running g/c=waiting g/b=cancelled g/d=waiting run=cancelling");
    let told: Vec<RunId> = story.inputs_for_others().into_iter().map(|(to, _)| to).collect();
    assert_eq!(told, children);
    assert_eq!(story.give(cancel()), Answer::Repeated);
    assert_eq!(
        story.give(Input::Pause { actor: "ada".into(), note: String::new() }),
        Answer::Ended(RunStatus::Cancelling)
    );
    let step = |key: &str| story.run.find(&story.plan, key).unwrap();
    let (c, d) = (step("g/c"), step("g/d"));
    story.child_ended(c, 1, RunStatus::Cancelled, Value::Null);
    assert_eq!(story.run.status(), RunStatus::Cancelling);
    story.child_ended(d, 1, RunStatus::Completed, Value::Null);
    assert_eq!(story.run.status(), RunStatus::Cancelled);
    assert_eq!((story.run.state.cancelled_by.as_str(), story.run.state.cancel_reason.as_str()), ("ada", "wrong order"));
}

/// The worker whose task was called off learns that its run is cancelled, and its result is noted.
#[test]
fn m19_a_result_that_arrives_while_the_run_is_being_cancelled_is_late() {
    let mut story = Story::of("c@child=bill; t@task; h");
    let offer = Offer { worker: "w1".into(), lease: Span::from_secs(30), ..Default::default() };
    story.give(Input::Claim { step: 1, offer });
    let (fence, of_http) = (story.leases[&1], story.executing["h"].1);
    story.cancel();
    assert_eq!(story.statuses(), "c=waiting t=cancelled h=cancelled run=cancelling");
    let done = || TaskResult::Done { body: None, took: Span(1) };
    let ended = Answer::Ended(RunStatus::Cancelling);
    assert_eq!(story.give(Input::Heartbeat { step: 1, fence, progress: None }), ended);
    assert_eq!(story.give(Input::Finished { step: 1, fence, result: done(), digest: 7 }), ended);
    assert_eq!(story.give(Input::Finished { step: 1, fence: fence + 1, result: done(), digest: 7 }), Answer::Stale);
    assert_eq!(story.give(Input::Finished { step: 2, fence: of_http, result: done(), digest: 0 }), ended);
    assert_eq!(story.give(Input::Lost { step: 1, fence }), Answer::Stale);
    let late: Vec<String> = story.events().into_iter().filter(|event| event.starts_with("late_result")).collect();
    assert_eq!(late, ["late_result t", "late_result h"]);
    assert_eq!(story.statuses(), "c=waiting t=cancelled h=cancelled run=cancelling");
}

/// Its output is not needed, so its size does not matter.
#[test]
fn m19_a_run_that_is_being_cancelled_ends_whatever_its_child_returns() {
    let mut story = Story::of("c@child=bill");
    story.give(Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false });
    let output = Some(Payload { len: STATE_MAX, ..Payload::json("1") });
    let outcome = Box::new(ChildOutcome { status: RunStatus::Completed, output, ..Default::default() });
    assert_eq!(story.give(Input::ChildEnded { step: 0, attempt: 1, outcome }), Answer::Applied);
    assert_eq!(story.statuses(), "c=cancelled run=cancelled");
}

#[test]
fn m19_a_run_that_is_being_cancelled_does_not_wait_beyond_its_expiry() {
    let mut story = Story::of("c@child=bill");
    story.give(Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false });
    assert_eq!(story.run.status(), RunStatus::Cancelling);
    story.after("30d");
    assert_eq!(story.run.status(), RunStatus::Cancelled);
}

#[test]
fn m19_a_group_that_fails_cancels_the_children_in_it() {
    let mut story = Story::nested(&[("", "g@group"), ("g", "a; c@child=bill")], json!({}));
    let id = story.children()[0].0;
    story.answers("g/a=404");
    assert_eq!(story.run.status(), RunStatus::Failed);
    let inputs = story.inputs_for_others();
    assert!(matches!(inputs.as_slice(), [(to, Input::ParentClosed { .. })] if *to == id), "{inputs:?}");
}

fn child(is_detached: bool) -> Story {
    let parent = Parent { run: RunId([3; 16]), step: 7, attempt: 2, depth: 1, is_detached, ..Default::default() };
    let origin = Origin { body: Payload::json("{}"), parent: Some(Box::new(parent)), ..Default::default() };
    let mut layout = plan_of("a").layout().clone();
    let mut resolve = |raw: &path::RawPath<'_>| Ok(reference(raw, &|_| 0, ""));
    layout.output = Some(Template::from_parts(template::parse_text("{{tasks.a.body.n}}", &mut resolve).unwrap()));
    Story::start(Plan::new(layout).unwrap(), origin, Admission::Open, Vec::new())
}

#[test]
fn m17_a_child_tells_its_parent_how_it_ended() {
    let mut story = child(false);
    story.answers("a=200");
    let mut inputs = story.inputs_for_others();
    let (to, Input::ChildEnded { step, attempt, outcome }) = inputs.remove(0) else { panic!("{inputs:?}") };
    assert_eq!((to, step, attempt, outcome.status), (RunId([3; 16]), 7, 2, RunStatus::Completed));
    assert_eq!(outcome.output, Some(Payload::json("7")));

    let mut story = child(false);
    story.answers("a=404");
    let (_, Input::ChildEnded { outcome, .. }) = story.inputs_for_others().remove(0) else { panic!() };
    assert_eq!((outcome.status, outcome.failure.unwrap().code.as_str()), (RunStatus::Failed, "step_failed"));
}

#[test]
fn m19_a_detached_child_says_that_it_exists_and_not_how_it_ended() {
    let mut story = child(true);
    let inputs = story.inputs_for_others();
    assert!(matches!(inputs.as_slice(), [(_, Input::ChildBegan { step: 7, attempt: 2 })]), "{inputs:?}");
    story.answers("a=200");
    assert!(story.outgoing.is_empty());
}

#[test]
fn m19_only_the_parent_closes_a_child() {
    let mut story = child(false);
    assert_eq!(story.give(Input::ParentClosed { parent: RunId([4; 16]), compensate: false }), Answer::Unknown);
    assert_eq!(story.give(Input::ParentClosed { parent: RunId([3; 16]), compensate: false }), Answer::Applied);
    assert_eq!(story.run.status(), RunStatus::Cancelled);
    assert_eq!(story.run.state.cancel_reason, "parent_closed");
}

#[test]
fn m5_calls_are_limited_in_depth_and_to_the_listed_workflows() {
    let origin = |depth| {
        let parent = Parent { run: RunId([3; 16]), depth, ..Default::default() };
        Origin { body: Payload::json("{}"), parent: Some(Box::new(parent)), ..Default::default() }
    };
    let code = |story: &Story| story.run.step(0).failure.as_ref().map(|f| f.code.clone());
    let story = Story::start(plan_of("c@child=bill"), origin(CALL_DEPTH_MAX), Admission::Open, Vec::new());
    assert_eq!(code(&story).as_deref(), Some("too_deep"));
    let story = Story::start(plan_of("c@child=bill"), origin(CALL_DEPTH_MAX - 1), Admission::Open, Vec::new());
    assert_eq!(code(&story), None);

    let groups = &[("", "c@child={{trigger.body.kind}}")];
    let change = |layout: &mut Layout| child_body(layout, |child| child.allow = vec!["bill".into()]);
    let mut story = Story::changed(groups, json!({ "kind": "bill" }), change);
    assert_eq!(story.children()[0].1.workflow, "bill");
    let story = Story::changed(groups, json!({ "kind": "drop" }), change);
    assert_eq!(code(&story).as_deref(), Some("workflow_not_allowed"));
}

#[test]
fn m5_a_run_counts_what_its_children_have_started_and_they_what_was_started_above() {
    let code = |story: &Story, step| story.run.step(step).failure.as_ref().map(|f| f.code.clone());
    let mut story = Story::of("c@child=bill; d@child=ship: c");
    assert_eq!(story.children()[0].1.parent.as_ref().unwrap().spent, 1);
    let ended = |descendants| {
        let outcome = ChildOutcome { status: RunStatus::Completed, descendants, ..Default::default() };
        Input::ChildEnded { step: 0, attempt: 1, outcome: Box::new(outcome) }
    };
    story.give(ended(CHILDREN_MAX - 2));
    assert_eq!(story.children()[0].1.parent.as_ref().unwrap().spent, CHILDREN_MAX, "the last one");
    let mut story = Story::of("c@child=bill; d@child=ship: c");
    story.give(ended(CHILDREN_MAX - 1));
    assert_eq!(
        (story.statuses().as_str(), code(&story, 1).as_deref()),
        ("c=success d=failed run=failed", Some("too_many_children"))
    );

    let parent = Parent { run: RunId([3; 16]), depth: 1, spent: CHILDREN_MAX - 1, ..Default::default() };
    let origin = Origin { body: Payload::json("{}"), parent: Some(Box::new(parent)), ..Default::default() };
    let mut story = Story::start(plan_of("c@child=bill; d@child=ship"), origin, Admission::Open, Vec::new());
    assert_eq!((code(&story, 0), code(&story, 1).as_deref()), (None, Some("too_many_children")));
    story.outgoing.clear();
    story.give(ended(0));
    let told = story.inputs_for_others();
    assert!(matches!(&told[0], (_, Input::ChildEnded { outcome, .. }) if outcome.descendants == 1), "{told:?}");
}
