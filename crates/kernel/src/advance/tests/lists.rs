//! What step lists add: alternatives, outputs that steps write, variables with defaults, and a limit on steps.

use super::*;
use crate::plan::Decision;

/// Changes the layout as a step list lowers to it: `writes` are the steps that write output 0, 1, … `alternatives` are
/// pairs of steps of which the second comes instead of the first; the group around them has alternatives.
fn list(layout: &mut Layout, writes: &[(&str, u32)], alternatives: &[(&str, &str)]) {
    let find = |layout: &Layout, key: &str| layout.nodes.iter().position(|node| node.key == key).expect(key);
    for (key, output) in writes {
        let at = find(layout, key);
        layout.nodes[at].writes.push(*output);
    }
    let count = writes.iter().map(|(_, output)| output + 1).max().unwrap_or(0);
    let name = |number: u32| OutputName { name: format!("o{number}"), ..Default::default() };
    layout.outputs = (0..count).map(name).collect();
    for (first, second) in alternatives {
        let (from, at) = (find(layout, first) as u32, find(layout, second));
        layout.nodes[at].links = vec![Link { from, on: Outcomes::SKIPPED, ..Default::default() }];
        let group = layout.nodes[at].group;
        for node in &mut layout.nodes {
            if let Some(Body::Group { group: inner }) = &mut node.body
                && inner.group == group
            {
                (inner.kind, inner.on_error) = (GroupKind::Conditional, OnError::Finish);
            }
        }
    }
}

/// `outputs.0.x` reads output 0, `outputs.x` all of them.
pub fn output_path(names: &[&str], text: String) -> path::Ref {
    let keys = |n: usize| names[n..].iter().map(|name| (*name).to_owned()).collect();
    match names.get(1).map(|name| name.parse()) {
        Some(Ok(node)) => path::Ref { root: path::Root::Output, node, keys: keys(2), text, ..Default::default() },
        _ => path::Ref { root: path::Root::Outputs, keys: keys(1), text, ..Default::default() },
    }
}

fn output(story: &Story, number: u32) -> Value {
    let body = story.run.output(number).and_then(|(_, body)| body.cloned());
    body.map_or(Value::Null, |body| body.value(&story.payloads).unwrap())
}

/// `c` holds: if `trigger.body.ok`, `a` and then `b`; else `x`. `z` comes after it.
const CHOICE: &[(&str, &str)] =
    &[("", "c@group; z@set={{tasks.c.body.n}}: c"), ("c", "a@set={{trigger.body}} if trigger.body.ok; b: a; x")];

#[test]
fn a27_one_branch_runs_and_the_other_is_skipped() {
    let choice = |ok: bool| {
        let lower = |layout: &mut Layout| list(layout, &[], &[("a", "x")]);
        Story::changed(CHOICE, json!({ "ok": ok, "n": 1 }), lower)
    };
    let mut story = choice(true);
    assert_eq!(story.statuses(), "c=running z=pending c/a=success c/b=running c/x=skipped run=running");
    story.answers("c/b=200");
    assert_eq!(story.statuses(), "c=success z=success c/a=success c/b=success c/x=skipped run=completed");
    assert_eq!(story.body("z"), json!(7), "the result of the branch that ran");
    let mut story = choice(false);
    assert_eq!(story.statuses(), "c=running z=pending c/a=skipped c/b=skipped c/x=running run=running");
    story.answers("c/x=200");
    assert_eq!(story.statuses(), "c=success z=success c/a=skipped c/b=skipped c/x=success run=completed");
    assert_eq!(story.body("z"), json!(7));
}

#[test]
fn a27_the_result_is_that_of_the_branch_that_ran_also_with_one_step_each() {
    let groups = &[("", "c@group"), ("c", "a@set=left if trigger.body.ok; x@set=right")];
    for (ok, result) in [(true, "left"), (false, "right")] {
        let lower = |layout: &mut Layout| list(layout, &[], &[("a", "x")]);
        assert_eq!(Story::changed(groups, json!({ "ok": ok }), lower).body("c"), json!(result));
    }
}

#[test]
fn a27_the_condition_is_evaluated_once() {
    // What `a` writes makes its own condition false.
    let groups = &[("", "c@group"), ("c", "a@set=done if outputs.0 != 'done'; x")];
    let story = Story::changed(groups, json!({}), |layout| list(layout, &[("a", 0)], &[("a", "x")]));
    assert_eq!(story.statuses(), "c=success c/a=success c/x=skipped run=completed");
    assert_eq!(output(&story, 0), json!("done"));
}

#[test]
fn a27_a_step_that_an_operator_skips_does_not_start_the_other_branch() {
    let groups = &[("", "c@group; z: c"), ("c", "a@wait if trigger.body.ok; x")];
    let mut story = Story::changed(groups, json!({ "ok": true }), |layout| list(layout, &[], &[("a", "x")]));
    let step = story.run.find(&story.plan, "c/a").unwrap();
    let decision =
        StepOverride { verb: crate::event::Override::Skip, body: None, actor: "ada".into(), reason: String::new() };
    assert_eq!(story.give(Input::Override { step, decision: Box::new(decision) }), Answer::Applied);
    assert_eq!(story.statuses(), "c=success z=running c/a=skipped c/x=skipped run=running");
}

#[test]
fn a27_nested_alternatives_and_a_failure_in_one() {
    let groups =
        &[("", "c@group; z: c"), ("c", "a@noop if trigger.body.ok; d@group"), ("d", "e@noop if trigger.body.ok; f")];
    let lower = |layout: &mut Layout| list(layout, &[], &[("a", "d"), ("e", "f")]);
    let mut story = Story::changed(groups, json!({ "ok": false }), lower);
    assert_eq!(story.statuses(), "c=running z=pending c/a=skipped c/d=running c/d/e=skipped c/d/f=running run=running");
    story.answers("c/d/f=404");
    assert_eq!(story.statuses(), "c=failed z=skipped c/a=skipped c/d=failed c/d/e=skipped c/d/f=failed run=failed");
}

#[test]
fn a28_all_branches_end_before_the_failure_of_one_counts() {
    let groups = &[("", "p@group; z: p"), ("p", "a; b")];
    let lower = |layout: &mut Layout| match &mut layout.nodes[0].body {
        Some(Body::Group { group }) => group.on_error = OnError::Finish,
        other => panic!("{other:?}"),
    };
    let mut story = Story::changed(groups, json!({}), lower);
    story.answers("p/a=404");
    assert_eq!(story.statuses(), "p=running z=pending p/a=failed p/b=running run=running");
    story.answers("p/b=200");
    assert_eq!(story.statuses(), "p=failed z=skipped p/a=failed p/b=success run=failed");
}

#[test]
fn a33_a_denial_inside_of_a_branch_cancels_the_run() {
    let groups = &[("", "c@group; z: c"), ("c", "a@approval=Go? if trigger.body.ok; x")];
    let mut story = Story::changed(groups, json!({ "ok": true }), |layout| list(layout, &[], &[("a", "x")]));
    let verdict = ApprovalDecision {
        decision: Decision::Denied,
        actor: "ada".into(),
        comment: String::new(),
        shown: String::new(),
    };
    assert_eq!(story.give(Input::Decide { step: None, verdict }), Answer::Applied);
    assert_eq!(story.statuses(), "c=failed z=skipped c/a=failed c/x=skipped run=cancelled");
    assert_eq!(story.run.state.cancel_reason, APPROVAL_DENIED);
}

#[test]
fn a31_outputs_are_written_in_the_order_of_events_also_from_iterations() {
    let groups = &[("", "l@each=trigger.body.l; z@set={{outputs}}: l"), ("l", "a; b@set={{item}}: a")];
    let lower = |layout: &mut Layout| {
        list(layout, &[("b", 0)], &[]);
        match &mut layout.nodes[0].body {
            Some(Body::Loop { repeat }) => repeat.concurrency = 3,
            other => panic!("{other:?}"),
        }
    };
    let mut story = Story::changed(groups, json!({ "l": [10, 11, 12] }), lower);
    for (key, last) in [("l[1]/a", 11), ("l[2]/a", 12), ("l[0]/a", 10)] {
        story.answers(&format!("{key}=200"));
        assert_eq!(output(&story, 0), json!(last), "after {key}");
    }
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.body("z"), json!({ "o0": 10 }));
    assert!(story.run.state.inner.is_empty(), "the steps of the iterations have left the state");
}

#[test]
fn a31_an_output_is_the_result_of_the_last_step_that_succeeded() {
    let text = "a@set={{trigger.body.x}}; b: a; c@set={{outputs.0}}: b if true";
    let with = |answer: &str| {
        let write = |layout: &mut Layout| list(layout, &[("a", 0), ("b", 0)], &[]);
        let mut story = Story::changed(&[("", text)], json!({ "x": 5 }), write);
        story.answers(answer);
        story.body("c")
    };
    assert_eq!(with("b=200"), json!({ "n": 7 }));
    assert_eq!(with("b=404"), json!(5), "a failed step writes nothing");
}

#[test]
fn a31_variables_are_the_body_of_the_trigger_over_the_defaults() {
    let groups = &[("", "a@set={{variables}}; b@set={{variables.who}}-{{variables.at.h ?? 'none'}}")];
    let lower = |layout: &mut Layout| layout.variables = r#"{"who":"ada","at":{"h":9}}"#.into();
    let bodies = |body: Value| {
        let story = Story::changed(groups, body, lower);
        (story.body("a"), story.body("b"))
    };
    assert_eq!(bodies(json!({})), (json!({ "who": "ada", "at": { "h": 9 } }), json!("ada-9")));
    assert_eq!(bodies(json!("text")), (json!({ "who": "ada", "at": { "h": 9 } }), json!("ada-9")));
    assert_eq!(
        bodies(json!({ "who": "bob", "at": {}, "x": 1 })),
        (json!({ "who": "bob", "at": {}, "x": 1 }), json!("bob-none"))
    );
}

#[test]
fn a24_a_run_begins_no_more_steps_than_its_limit() {
    let limit = |layout: &mut Layout| layout.max_steps = 3;
    let mut story = Story::changed(&[("", "a; b: a; c: b")], json!({}), limit);
    story.answers("a=200 b=200 c=200");
    assert_eq!(story.statuses(), "a=success b=success c=success run=completed", "as many as the limit are fine");
    let groups = &[("", "w; l@each=trigger.body.l"), ("l", "g@group"), ("g", "a if item < 9")];
    let mut story = Story::changed(groups, json!({ "l": [1, 10, 2, 3, 4] }), limit);
    story.answers("l[0]/g/a=200");
    assert_eq!(story.run.state.begun, 3, "neither groups nor skipped steps count");
    story.answers("l[2]/g/a=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.run.state.failure.as_ref().unwrap().code, "max_steps_exceeded:3");
    assert_eq!(story.aborted, ["w"], "what is at work is called off");
}

#[test]
fn a24_a_run_that_reached_its_limit_undoes_what_it_did_and_counts_anew_when_it_is_retried() {
    let mut layout = plan_of("a; b: a; c: b").layout().clone();
    layout.max_steps = 2;
    let start = |layout: &Layout| {
        let mut story =
            Story::start(Plan::new(layout.clone()).unwrap(), Origin::default(), Admission::Open, Vec::new());
        story.answers("a=200 b=200");
        story
    };
    let mut story = start(&layout);
    assert_eq!(story.statuses(), "a=success b=success c=cancelled run=failed");
    let reopen = Input::Reopen {
        from: None,
        allow_irreversible: false,
        actor: "ada".into(),
        reason: String::new(),
        admission: Admission::Open,
    };
    assert_eq!(story.give(reopen), Answer::Applied);
    story.answers("c=200");
    assert_eq!(story.statuses(), "a=success b=success c=success run=completed");

    let undo = Node { key: crate::run::UNDO_NAME.into(), body: Some(Body::Noop {}), ..layout.nodes[0].clone() };
    layout.nodes[0].undo = Some(3);
    layout.nodes.push(undo);
    let mut story = start(&layout);
    assert_eq!(story.run.status(), RunStatus::Compensating);
    story.answers("a/compensate=done");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.run.state.failure.as_ref().unwrap().code, "max_steps_exceeded:2");
}

#[test]
fn a5_keys_with_brackets_are_found() {
    let groups = &[("", "a@each=trigger.body.l; b"), ("a", "c")];
    let mut story = Story::changed(groups, json!({ "l": [1, 2] }), |layout| {
        for (node, key) in layout.nodes.iter_mut().zip(["step[0]", "step[1]", "step[0].steps[0]"]) {
            node.key = key.into();
        }
    });
    let key = "step[0][0]/step[0].steps[0]";
    let step = story.run.find(&story.plan, key).unwrap();
    assert_eq!(story.run.key(&story.plan, step), key);
    assert_eq!(story.run.find(&story.plan, "step[1]"), Some(1));
    story.answers(&format!("{key}=200 step[0][1]/step[0].steps[0]=200 step[1]=200"));
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn decision_6_three_deaths_of_a_server_quarantine_a_command_that_may_be_tried_once() {
    let mut layout = plan_of("a@task").layout().clone();
    if let Some(Body::Task { task }) = &mut layout.nodes[0].body {
        task.kind = TaskKind::Bash;
    }
    layout.nodes[0].retry.max_attempts = 1;
    let mut story = Story::start(Plan::new(layout).unwrap(), Origin::default(), Admission::Open, Vec::new());
    for death in 1..=3 {
        assert_eq!(story.run.step(0).charged, 0);
        let offer = Offer { worker: "w".into(), lease: Span::from_secs(30), ..Default::default() };
        assert_eq!(story.give(Input::Claim { step: 0, offer }), Answer::Applied);
        let fence = story.leases[&0];
        assert_eq!(story.give(Input::Lost { step: 0, fence }), Answer::Applied);
        assert_eq!(story.run.step(0).deaths, death.min(2));
    }
    assert_eq!(story.run.step(0).failure.as_ref().unwrap().code, "quarantined");
}

#[test]
fn a31_a_step_that_runs_again_has_not_written_yet() {
    let mut layout = plan_of("a; b: a").layout().clone();
    list(&mut layout, &[("a", 0)], &[]);
    let mut story = Story::start(Plan::new(layout).unwrap(), Origin::default(), Admission::Open, Vec::new());
    story.answers("a=200 b=404");
    assert_eq!(output(&story, 0), json!({ "n": 7 }));
    let reopen = Input::Reopen {
        from: Some(0),
        allow_irreversible: false,
        actor: "ada".into(),
        reason: String::new(),
        admission: Admission::Open,
    };
    assert_eq!(story.give(reopen), Answer::Applied);
    assert_eq!(story.run.output(0), None);
    story.answers("a=200 b=200");
    assert_eq!(output(&story, 0), json!({ "n": 7 }));
}

/// The values of outputs 0 and 1.
fn outputs(story: &Story) -> [Value; 2] {
    [output(story, 0), output(story, 1)]
}

#[test]
fn m31_a_fork_takes_over_what_copied_steps_and_those_inside_of_them_wrote() {
    let groups = &[("", "a@set=1; c@group: a; z: c; y: z"), ("c", "b@set={{trigger.body}}")];
    let writes = [("a", 0), ("b", 1)];
    let mut story = Story::changed(groups, json!({ "big": "x".repeat(9_000) }), |layout| list(layout, &writes, &[]));
    story.answers("z=200 y=200");
    let written = outputs(&story);
    assert_eq!(written[0], json!("1"));
    let forked = story.fork("z", &[]);
    assert_eq!(outputs(&forked), written, "also what was inside of a group");
    assert_eq!(outputs(&forked.fork_when_ended("y")), written, "and once more");
    let given = story.fork("c", &[("a", json!(7))]);
    assert_eq!(output(&given, 0), json!(7));
    let again = story.fork("c", &[]);
    assert_eq!(output(&again, 0), json!("1"));
}

#[test]
fn m32_a_moved_run_keeps_its_outputs_under_their_names() {
    let groups = &[("", "a@set=1; l@each=trigger.body.list; w@wait: a, l; z: w"), ("l", "b@set={{item}}")];
    let named = |layout: &mut Layout| list(layout, &[("a", 0), ("b", 1)], &[]);
    let mut story = Story::changed(groups, json!({ "list": [1, 2] }), named);
    let written = outputs(&story);
    assert_eq!(written, [json!("1"), json!(2)]);
    let groups = &[("", "z: w; w@wait: a, l; l@each=trigger.body.list; a@set=1"), ("l", "n; b@set={{item}}: n")];
    let mut layout = nested_plan(groups).layout().clone();
    list(&mut layout, &[("b", 0), ("a", 1)], &[]);
    layout.outputs.swap(0, 1);
    assert_eq!(story.move_to(&Plan::new(layout).unwrap()), Answer::Applied);
    assert_eq!(outputs(&story), [written[1].clone(), written[0].clone()], "`o1` comes first now");
}
