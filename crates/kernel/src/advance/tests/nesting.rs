//! Groups, loops, first-joins and outputs: rules M8 and M10 to M16.

use super::*;

fn change(layout: &mut Layout, key: &str, how: impl FnOnce(&mut Node)) {
    how(layout.nodes.iter_mut().find(|node| node.key == key).expect(key));
}

fn on_error(layout: &mut Layout, key: &str, on_error: OnError) {
    change(layout, key, |node| match &mut node.body {
        Some(Body::Group { group }) => group.on_error = on_error,
        Some(Body::Loop { repeat }) => repeat.body.on_error = on_error,
        other => panic!("{other:?}"),
    });
}

fn concurrency(layout: &mut Layout, key: &str, most: u32) {
    change(layout, key, |node| match &mut node.body {
        Some(Body::Group { group }) => group.concurrency = most,
        Some(Body::Loop { repeat }) => repeat.concurrency = most,
        other => panic!("{other:?}"),
    });
}

impl Story {
    /// The keys of the steps that executors work on.
    fn at_work(&self) -> Vec<String> {
        self.run.running().into_iter().map(|(step, ..)| self.run.key(&self.plan, step).into_owned()).collect()
    }

    fn failure(&self, key: &str) -> (&str, &str) {
        let step = self.run.step(self.run.find(&self.plan, key).expect(key));
        step.failure.as_ref().map_or(("", ""), |failure| (&failure.code, &failure.message))
    }
}

const PAIR: &[(&str, &str)] = &[("", "g@group; z: g"), ("g", "a; b: a")];

#[test]
fn m1_m2_inner_steps_are_opened_with_the_next_numbers_and_have_keys() {
    let mut story = Story::nested(PAIR, json!({}));
    assert_eq!(story.statuses(), "g=running z=pending g/a=running g/b=pending run=running");
    let opened = ["step.opened g/a", "step.opened g/b"];
    assert_eq!(story.events()[..4], ["run.created", "step.started g", opened[0], opened[1]]);
    story.answers("g/a=200 g/b=200 z=200");
    assert_eq!(story.statuses(), "g=success z=success g/a=success g/b=success run=completed");
    assert_eq!(story.body("g"), json!({ "n": 7 }), "m11: the body of its only last step");
}

#[test]
fn m1_records_without_inner_steps_are_of_format_1() {
    let plain = Story::of("a; b: a");
    assert_eq!((plain.plan.encode()[0], plain.journal[0][0], plain.run.snapshot()[0]), (1, 1, 1));
    let nested = Story::nested(PAIR, json!({}));
    assert_eq!((nested.plan.encode()[0], nested.journal[0][0], nested.run.snapshot()[0]), (2, 2, 2));
}

#[test]
fn m10_an_unhandled_failure_ends_a_group_at_once() {
    let groups = &[("", "g@group; z: g"), ("g", "a; b; c: a")];
    let mut story = Story::nested(groups, json!({}));
    story.answers("g/a=404");
    assert_eq!(
        story.statuses(),
        "g=failed z=skipped g/a=failed g/b=cancelled g/c=cancelled run=failed",
        "what is at work is cancelled"
    );
    assert_eq!(story.aborted, ["g/b"]);
    assert_eq!(story.failure("g").0, "http_status");
    let unhandled = unhandled_steps(&story.plan, &story.run);
    assert_eq!(unhandled.len(), 2, "the group and the step inside of it");
}

#[test]
fn m10_finish_and_continue_let_the_rest_go_on() {
    let groups = &[("", "g@group; z: g"), ("g", "a; b; c: a")];
    for (how, group, end, run) in
        [(OnError::Finish, "failed", "skipped", "failed"), (OnError::Continue, "success", "running", "running")]
    {
        let mut story = Story::changed(groups, json!({}), |layout| on_error(layout, "g", how));
        story.answers("g/a=404");
        assert_eq!(story.statuses(), "g=running z=pending g/a=failed g/b=running g/c=skipped run=running");
        story.answers("g/b=200");
        let expected = format!("g={group} z={end} g/a=failed g/b=success g/c=skipped run={run}");
        assert_eq!(story.statuses(), expected);
        if how == OnError::Continue {
            let errors = errors(&story.plan, &story.run, 0);
            assert_eq!((&errors[0]["step"], &errors[0]["code"]), (&json!("a"), &json!("http_status")));
            assert_eq!(story.body("g"), json!({ "b": { "n": 7 }, "c": null }), "m11: its last steps by name");
            story.answers("z=200");
            assert_eq!(story.run.status(), RunStatus::Completed);
            assert_eq!(unhandled_steps(&story.plan, &story.run), [0; 0]);
        }
    }
}

#[test]
fn m8_a_step_of_the_group_can_handle_a_failure_in_it() {
    let groups = &[("", "g@group"), ("g", "a; h: a if tasks.a.failed")];
    let mut story = Story::nested(groups, json!({}));
    story.answers("g/a=404 g/h=200");
    assert_eq!(story.statuses(), "g=success g/a=failed g/h=success run=completed");
    let allowed = |layout: &mut Layout| change(layout, "a", |node| node.allow_failure = true);
    let mut story = Story::changed(&[("", "g@group"), ("g", "a; b")], json!({}), allowed);
    story.answers("g/a=404 g/b=200");
    assert_eq!(story.statuses(), "g=success g/a=failed g/b=success run=completed");
}

#[test]
fn m8_a_step_can_handle_the_failure_of_a_group() {
    let groups = &[("", "g@group; h: g if tasks.g.failed"), ("g", "a")];
    let mut story = Story::nested(groups, json!({}));
    story.answers("g/a=404 h=200");
    assert_eq!(story.statuses(), "g=failed h=success g/a=failed run=completed");
    assert_eq!(unhandled_steps(&story.plan, &story.run), [0; 0], "the cause inside is handled with it");
}

#[test]
fn m10_a_group_works_at_no_more_steps_than_its_concurrency() {
    let groups = &[("", "g@group"), ("g", "a; b; c; d@sleep=5s")];
    let mut story = Story::changed(groups, json!({}), |layout| concurrency(layout, "g", 2));
    assert_eq!(story.statuses(), "g=running g/a=running g/b=running g/c=pending g/d=pending run=running");
    story.answers("g/b=200");
    assert_eq!(story.statuses(), "g=running g/a=running g/b=success g/c=running g/d=pending run=running");
    story.answers("g/a=200 g/c=200").after("5s");
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m10_an_empty_branch_of_skips_is_ok() {
    let groups = &[("", "g@group; z: g"), ("g", "a if trigger.body.id == 1; b: a")];
    let mut story = Story::nested(groups, json!({ "id": 5 }));
    story.answers("z=200");
    assert_eq!(story.statuses(), "g=success z=success g/a=skipped g/b=skipped run=completed");
    assert_eq!(story.body("g"), Value::Null);
}

#[test]
fn m12_steps_read_those_beside_them_and_those_of_the_groups_around() {
    let groups = &[
        ("", "a; g@group: a; z@set={{tasks.g.body}}: g"),
        ("g", "b@set={{tasks.a.body.n}}; h@group: b"),
        ("h", "c@set={{tasks.b.body}}-{{tasks.a.status}}"),
    ];
    let mut story = Story::nested(groups, json!({}));
    story.answers("a=200");
    assert_eq!(story.body("g/h/c"), json!("7-success"));
    assert_eq!(story.body("z"), json!("7-success"), "the result goes up through both groups");
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m5_m10_cancelling_a_run_cancels_what_is_inside() {
    let groups = &[("", "g@group"), ("g", "h@group; t@task"), ("h", "a; s@sleep=5s")];
    let mut story = Story::nested(groups, json!({}));
    story.cancel();
    let inside = "g/h=cancelled g/t=cancelled g/h/a=cancelled g/h/s=cancelled";
    assert_eq!(story.statuses(), format!("g=cancelled {inside} run=cancelled"));
    assert_eq!(story.aborted, ["g/h/a"]);
}

const EACH: &[(&str, &str)] = &[
    ("", "l@each=trigger.body.list; z@set={{tasks.l.body}}: l"),
    ("l", "a@http={{item}}; b@set={{tasks.a.body.n}}-{{index}}: a"),
];

#[test]
fn m13_a_list_is_worked_through_one_item_after_the_other() {
    let mut story = Story::nested(EACH, json!({ "list": ["x", { "y": 1 }, 3] }));
    for index in 0..3 {
        let key = format!("l[{index}]/a");
        assert_eq!(story.at_work(), [key.as_str()]);
        story.answers(&format!("{key}=200"));
        assert!(story.run.find(&story.plan, &key).is_none(), "m4: the steps of a settled iteration leave the state");
        assert!(story.run.find(&story.plan, &format!("l[{index}]")).is_none());
    }
    assert_eq!(story.body("z"), json!(["7-0", "7-1", "7-2"]));
    let bodies: Vec<String> = story
        .sent
        .iter()
        .map(|(_, _, work)| match work {
            Work::Http(request) => String::from_utf8(request.body.as_ref().unwrap().0.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bodies, ["x", r#"{"y":1}"#, "3"]);
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.run.state.inner.len(), 0);
    // Numbers are never reused.
    assert_eq!(story.run.state.opened, 2 + 3 * 3);
}

#[test]
fn m4_a_reader_can_have_all_steps_of_a_run() {
    let mut story = Story::nested(EACH, json!({ "list": [1, 2] }));
    story.answers("l[0]/a=200 l[1]/a=200");
    let whole = Run::load_whole_at(&story.plans(), &story.journal, u64::MAX).unwrap();
    let keys: Vec<_> = whole.steps().map(|(step, _)| whole.key(&story.plan, step).into_owned()).collect();
    assert_eq!(keys, ["l", "z", "l[0]", "l[0]/a", "l[0]/b", "l[1]", "l[1]/a", "l[1]/b"]);
    assert!(whole.steps().all(|(_, step)| step.status() == StepStatus::Success));
}

#[test]
fn m13_several_items_at_once() {
    let mut story = Story::changed(EACH, json!({ "list": [1, 2, 3, 4, 5] }), |layout| concurrency(layout, "l", 2));
    assert_eq!(story.at_work(), ["l[0]/a", "l[1]/a"]);
    story.answers("l[1]/a=200");
    assert_eq!(story.at_work(), ["l[0]/a", "l[2]/a"]);
    story.answers("l[2]/a=200 l[0]/a=200 l[3]/a=200 l[4]/a=200");
    assert_eq!(story.body("z"), json!(["7-0", "7-1", "7-2", "7-3", "7-4"]), "the results have the order of the list");
}

#[test]
fn m13_lists_that_cannot_be_worked_through() {
    let most = |layout: &mut Layout| {
        change(layout, "l", |node| match &mut node.body {
            Some(Body::Loop { repeat }) => repeat.max_iterations = 2,
            other => panic!("{other:?}"),
        });
    };
    for (list, code) in
        [(json!([1, 2, 3]), "max_iterations"), (json!({ "a": 1 }), "not_a_list"), (Value::Null, "not_a_list")]
    {
        let story = Story::changed(EACH, json!({ "list": list }), most);
        assert_eq!((story.failure("l").0, story.run.status()), (code, RunStatus::Failed), "{list}");
        assert_eq!(story.sent.len(), 0, "it fails before the first iteration");
    }
    let story = Story::changed(EACH, json!({ "list": [] }), most);
    assert_eq!((story.body("z"), story.run.status()), (json!([]), RunStatus::Completed));
}

#[test]
fn m10_m15_a_failed_iteration() {
    for (how, end, run) in [
        (OnError::Fail, "failed", "failed"),
        (OnError::Finish, "failed", "failed"),
        (OnError::Continue, "success", "completed"),
    ] {
        let list = json!({ "list": [1, 2, 3] });
        let mut story = Story::changed(EACH, list, |layout| {
            on_error(layout, "l", how);
            concurrency(layout, "l", 2);
        });
        story.answers("l[0]/a=404");
        match how {
            OnError::Fail => assert_eq!(story.aborted, ["l[1]/a"]),
            _ => drop(story.answers("l[2]/a=200 l[1]/a=200")),
        }
        assert_eq!(story.run.status().as_str(), run, "{how}");
        assert_eq!(story.run.step(0).status().as_str(), end, "{how}");
        let kept: Vec<_> = story.run.steps().skip(2).map(|(step, _)| story.run.key(&story.plan, step)).collect();
        let all: &[&str] = match how {
            OnError::Fail => &["l[0]", "l[0]/a", "l[0]/b", "l[1]", "l[1]/a", "l[1]/b"],
            OnError::Finish => &["l[0]", "l[0]/a", "l[0]/b"],
            OnError::Continue => &["l[0]", "l[0]/a"],
        };
        assert_eq!(kept, all, "m4: what failed stays, with the steps around it, and all that a retry may open again");
        if how == OnError::Continue {
            assert_eq!(story.body("z"), json!([null, "7-1", "7-2"]));
            let errors = errors(&story.plan, &story.run, 0);
            let expected = json!([{ "index": 0, "step": "a", "code": "http_status", "message": errors[0]["message"] }]);
            assert_eq!(errors, expected);
        } else {
            assert!(story.failure("l").1.starts_with("iteration 0: "), "{:?}", story.failure("l"));
        }
    }
}

/// The index that is rebuilt from the state equals the one that followed the events, which `Story` checks.
#[test]
fn m4_what_a_failed_step_needed_leaves_the_state_without_it() {
    let groups = &[("", "l@each=trigger.body.list; z"), ("l", "a; b: a")];
    let list = json!({ "list": [1] });
    let mut story = Story::changed(groups, list, |layout| on_error(layout, "l", OnError::Continue));
    story.answers("l[0]/a=200 l[0]/b=404");
    assert_eq!(story.statuses(), "l=success z=running l[0]=failed l[0]/b=failed run=running");
}

/// What handled a failure leaves the state with its iteration; that it was handled does not.
#[test]
fn m8_a_failure_that_was_handled_inside_an_iteration_stays_handled() {
    let unhandled = |story: &Story| {
        let key = |step: &u32| story.run.key(&story.plan, *step).into_owned();
        unhandled_steps(&story.plan, &story.run).iter().map(key).collect::<Vec<_>>()
    };
    let groups = &[("", "l@each=trigger.body.list"), ("l", "a; h: a if tasks.a.failed")];
    let mut story = Story::nested(groups, json!({ "list": [1, 2] }));
    story.answers("l[0]/a=404 l[0]/h=200 l[1]/a=200");
    assert_eq!(story.statuses(), "l=success l[0]=success l[0]/a=failed run=completed");
    assert_eq!(unhandled(&story), [""; 0]);

    let groups =
        &[("", "l@each=trigger.body.list"), ("l", "a; h: a if tasks.a.failed; g@group; b: g"), ("g", "c; d: any c")];
    let finish = |layout: &mut Layout| on_error(layout, "l", OnError::Finish);
    let mut story = Story::changed(groups, json!({ "list": [1] }), finish);
    story.answers("l[0]/a=404 l[0]/h=200 l[0]/g/c=200 l[0]/g/d=200 l[0]/b=404");
    assert_eq!(
        unhandled(&story),
        ["l", "l[0]", "l[0]/b"],
        "one failure of an iteration was handled, the other was not"
    );

    let groups =
        &[("", "l@each=trigger.body.list"), ("l", "g@group; b: g"), ("g", "c; h: c if tasks.c.failed; i@sleep=5s")];
    let mut story = Story::changed(groups, json!({ "list": [1] }), finish);
    story.answers("l[0]/g/c=404 l[0]/g/h=200").after("5s").answers("l[0]/b=404");
    assert_eq!(unhandled(&story), ["l", "l[0]", "l[0]/b"], "also inside of a group of the iteration");
}

#[test]
fn m14_a_condition_is_evaluated_before_each_iteration() {
    let groups = &[("", "l@while=index < 3; z@set={{tasks.l.body}}: l"), ("l", "a@set={{index}}:{{last}}")];
    let story = Story::nested(groups, json!({}));
    assert_eq!(story.body("z"), json!(["0:null", "1:0:null", "2:1:0:null"]));
    let groups = &[("", "l@while=last.n != 7"), ("l", "a")];
    let mut story = Story::nested(groups, json!({}));
    story.answers("l[0]/a=200");
    assert_eq!(story.body("l"), json!([{ "n": 7 }]));
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m14_a_condition_that_never_becomes_false() {
    let groups = &[("", "l@while=index >= 0"), ("l", "a@set=x")];
    let story = Story::nested(groups, json!({}));
    assert_eq!(story.failure("l"), ("max_iterations", "the condition still holds after 1000 iterations"));
    assert_eq!(story.run.step(0).iterations.as_ref().unwrap().settled.len(), 1_000);
}

#[test]
fn m13_loops_in_loops() {
    let groups = &[("", "l@each=trigger.body.rows"), ("l", "m@each=item"), ("m", "a@set={{item}}/{{index}}")];
    let mut layout = nested_plan(groups).layout().clone();
    // `item` in the list of the inner loop is that of the outer one.
    if let Some(Body::Loop { repeat }) = &mut layout.nodes[1].body {
        repeat.items = Some(expr::parse("item", &mut |raw| Ok(reference(raw, &|_| 0, "l"))).unwrap());
    }
    let origin = Origin { body: Payload::json(r#"{"rows":[["a","b"],[],["c"]]}"#), ..Default::default() };
    let story = Story::start(Plan::new(layout).unwrap(), origin, Admission::Open, Vec::new());
    assert_eq!(story.body("l"), json!([["a/0", "b/1"], [], ["c/0"]]));
}

#[test]
fn m13_a_long_list_is_stored_in_pieces_and_read_piece_by_piece() {
    let list: Vec<String> = (0..200).map(|i| format!("{i:0>100}")).collect();
    let mut story = Story::nested(EACH, json!({ "list": list }));
    // The body of the trigger is stored, so its list is read in another advance.
    for _ in 0..1_000 {
        if story.run.is_terminal() {
            break;
        }
        let missing = std::mem::take(&mut story.missing);
        if !missing.is_empty() {
            story.resident = missing.iter().map(|number| (*number, story.payloads[number].clone())).collect();
            story.give(Input::Wake);
            continue;
        }
        let key = story.at_work().pop().expect("an iteration is at work");
        story.answers(&format!("{key}=200"));
    }
    assert_eq!(story.run.status(), RunStatus::Completed);
    let pages = &story.run.step(0).iterations.as_ref().unwrap().pages;
    assert!(pages.len() > 2, "{}", pages.len());
    assert_eq!(story.sent.len(), 200);
    assert!(matches!(&story.sent[199].2, Work::Http(request) if request.body.as_ref().unwrap().0.ends_with(b"199")));
}

#[test]
fn m13_a_task_in_a_loop_is_leased_and_a_report_can_be_repeated() {
    let groups = &[("", "l@each=trigger.body.list"), ("l", "a@task={{item}}")];
    let mut story = Story::nested(groups, json!({ "list": [1, 2] }));
    let step = story.run.find(&story.plan, "l[0]/a").unwrap();
    let offer = Offer { worker: "w1".into(), lease: Span::from_secs(30), ..Default::default() };
    assert_eq!(story.give(Input::Claim { step, offer }), Answer::Applied);
    assert_eq!(story.assignments[0].key, "l[0]/a");
    let fence = story.leases[&step];
    let report = |digest| Input::Finished {
        step,
        fence,
        result: TaskResult::Done { body: Some(Payload::json("1")), took: Span(1) },
        digest,
    };
    assert_eq!(story.give(report(11)), Answer::Applied);
    assert!(story.run.get(step).is_none(), "its iteration has settled");
    assert_eq!(story.give(report(11)), Answer::Repeated);
    assert_eq!(story.give(report(12)), Answer::Stale);
    assert_eq!(story.give(Input::Heartbeat { step, fence, progress: None }), Answer::Stale);
    assert_eq!(
        story.give(Input::Finished {
            step: 99,
            fence,
            result: TaskResult::Done { body: None, took: Span(1) },
            digest: 1
        }),
        Answer::Unknown
    );
}

#[test]
fn m16_a_first_join_starts_at_the_first_link_that_is_taken() {
    let mut story = Story::of("a; b; c: any a, b; d@set={{tasks.b.body}}!: c");
    story.answers("a=200");
    assert_eq!(story.statuses(), "a=success b=running c=running d=pending run=running");
    story.answers("c=200");
    assert_eq!(story.body("d"), json!("null!"), "what has not ended reads null");
    story.answers("b=200");
    assert_eq!(story.run.status(), RunStatus::Completed);

    let mut story = Story::of("a; b; c: any a, b");
    story.answers("a=404");
    assert_eq!(story.statuses(), "a=failed b=running c=pending run=running");
    story.answers("b=200 c=200");
    assert_eq!(story.run.status(), RunStatus::Completed, "m8: the first-join handles the failure");

    let mut story = Story::of("a; b; c: any a, b");
    story.answers("a=404 b=404");
    assert_eq!(story.statuses(), "a=failed b=failed c=skipped run=failed");
}

#[test]
fn a_pause_stops_loops_and_groups_between_steps() {
    let mut story = Story::nested(EACH, json!({ "list": [1, 2] }));
    story.give(Input::Pause { actor: String::new(), note: String::new() });
    story.answers("l[0]/a=200");
    assert_eq!(story.at_work(), [""; 0]);
    assert_eq!(story.run.status(), RunStatus::Waiting);
    story.give(Input::Resume { actor: String::new() });
    story.answers("l[1]/a=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn a_run_has_an_output() {
    let output = |layout: &mut Layout| {
        let mut resolve = |raw: &path::RawPath<'_>| Ok(reference(raw, &|_| 0, ""));
        let parts = template::parse_text("{{tasks.a.body}}", &mut resolve).unwrap();
        layout.output = Some(Template::from_parts(parts));
    };
    let mut story = Story::changed(&[("", "a")], json!({}), output);
    story.answers("a=200");
    assert_eq!(
        story.run.state.output.as_ref().map(|output| output.value(&story.payloads).unwrap()),
        Some(json!({ "n": 7 }))
    );
    let mut story = Story::changed(&[("", "a")], json!({}), output);
    story.answers("a=404");
    assert_eq!((story.run.status(), &story.run.state.output), (RunStatus::Failed, &None));
}
