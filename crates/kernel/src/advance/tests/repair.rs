//! M9, M28, M29: a run that failed or timed out goes on in place.

use super::undo::undoable;
use super::*;
use crate::event::Queue;

impl Story {
    fn retry(&mut self, from: Option<&str>) -> Answer {
        let from = from.map(|key| self.run.find(&self.plan, key).expect(key));
        self.reopen(from, false, Admission::Open)
    }

    fn reopen(&mut self, from: Option<u32>, allow_irreversible: bool, admission: Admission) -> Answer {
        let (actor, reason) = ("ada".to_owned(), "fixed".to_owned());
        self.give(Input::Reopen { from, allow_irreversible, actor, reason, admission })
    }

    /// What a retry would run, and which of that it would repeat.
    fn repair(&self, from: Option<&str>) -> (String, String) {
        let from = from.map(|key| self.run.find(&self.plan, key).expect(key));
        let repair = repair(&self.plan, &self.run, from.as_slice());
        let keys = |steps: Vec<u32>| {
            let keys: Vec<String> = steps.into_iter().map(|step| self.run.key(&self.plan, step).into_owned()).collect();
            keys.join(" ")
        };
        (keys(repair.steps), keys(repair.repeated))
    }

    /// The last part of the idempotency keys of what was sent, from this number on.
    pub(super) fn keys_from(&self, first: usize) -> Vec<String> {
        let prefix = format!("{}:", self.id);
        self.keys[first..].iter().map(|key| key.strip_prefix(&prefix).expect("of this run").to_owned()).collect()
    }
}

#[test]
fn m28_a_failed_run_goes_on_and_nothing_that_succeeded_runs_again() {
    let mut story = Story::of("a; b: a; c: b; d: c; x: b if tasks.b.ok");
    story.answers("a=200 b=404");
    assert_eq!(story.statuses(), "a=success b=failed c=skipped d=skipped x=skipped run=failed");
    assert_eq!(story.repair(None), ("b c d x".to_owned(), String::new()));
    assert_eq!(story.retry(None), Answer::Applied);
    assert_eq!(story.statuses(), "a=success b=running c=pending d=pending x=pending run=running");
    assert_eq!((story.run.state.culprit, story.run.state.failure.clone()), (None, None));
    story.answers("b=200 c=200 d=200 x=200");
    assert_eq!(story.statuses(), "a=success b=success c=success d=success x=success run=completed");
    assert_eq!(story.keys_from(0), ["a", "b", "b", "c", "x", "d"], "m29: a step that failed keeps its key");
    assert_eq!(story.sent.iter().map(|(_, attempt, _)| *attempt).collect::<Vec<_>>(), [1, 1, 2, 1, 1, 1]);
}

#[test]
fn m28_a_failure_that_was_handled_stays() {
    let mut story = Story::of("a; b: a if tasks.a.failed; c; d: c");
    story.answers("a=404 b=200 c=404");
    assert_eq!(story.repair(None).0, "c d");
    story.retry(None);
    story.answers("c=200 d=200");
    assert_eq!(story.statuses(), "a=failed b=success c=success d=success run=completed");
}

#[test]
fn m28_what_was_skipped_for_another_reason_stays_skipped() {
    let mut story = Story::of("a; b if trigger.body.id == 0; c: a, b; d: b");
    story.answers("a=404");
    // `c` needs the failed `a`, too.
    assert_eq!(story.repair(None).0, "a c");
    story.retry(None);
    story.answers("a=200");
    assert_eq!(story.statuses(), "a=success b=skipped c=skipped d=skipped run=completed");
}

#[test]
fn m28_only_failed_and_timed_out_runs_go_on() {
    let mut story = Story::of("a; b: a");
    assert_eq!(story.retry(None), Answer::Repeated, "it is open: the caller who asks looks again");
    story.answers("a=200 b=200");
    assert_eq!(story.retry(None), Answer::Ended(RunStatus::Completed));
    let mut story = Story::of("a");
    story.cancel();
    assert_eq!(story.retry(None), Answer::Ended(RunStatus::Cancelled));

    let mut story = Story::of("a; n@wait=x: a; z: n");
    story.answers("a=200").after("30d");
    assert_eq!(story.statuses(), "a=success n=cancelled z=cancelled run=timeout");
    assert_eq!(story.retry(None), Answer::Applied);
    assert_eq!(story.run.state.origin.expires_at, story.now.after(Span::from_days(30)), "m29");
    assert_eq!(story.statuses(), "a=success n=waiting z=pending run=waiting");
    assert_eq!(story.callback("n", "{}"), Answer::Applied);
    assert_eq!(story.answers("z=200").run.status(), RunStatus::Completed);
}

#[test]
fn m28_from_runs_a_step_again_with_all_that_depends_on_it() {
    let mut story = Story::of("a; b: a; c: b; d: a; e: c, d");
    story.answers("a=200 b=200 d=200 c=404");
    assert_eq!(story.repair(Some("b")), ("b c e".to_owned(), "b".to_owned()));
    assert_eq!(story.retry(Some("b")), Answer::Applied);
    let sent = story.keys.len() - 1;
    story.answers("b=200 c=200 e=200");
    assert_eq!(story.keys_from(sent), ["b:r1", "c", "e"], "m29: only what had succeeded gets another key");
    assert_eq!(story.statuses(), "a=success b=success c=success d=success e=success run=completed");
}

#[test]
fn m29_attempts_go_on_and_what_was_charged_starts_over() {
    let mut story = Story::of("a@http; b: a");
    story.exhaust("a", "503");
    assert_eq!((story.run.step(0).attempt, story.run.step(0).charged), (3, 3));
    story.retry(None);
    assert_eq!((story.run.step(0).attempt, story.run.step(0).charged), (4, 1));
    story.exhaust("a", "503");
    assert_eq!((story.run.step(0).attempt, story.run.status()), (6, RunStatus::Failed), "all of its attempts again");
    story.retry(None);
    story.answers("a=200 b=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert!(story.keys.iter().all(|key| !key.contains(":r")), "{:?}", story.keys);
}

#[test]
fn m29_a_wait_takes_one_new_payload_and_keeps_one_that_no_step_has_read() {
    let mut story = Story::of("w@wait; v@wait; z: w, v; y@wait: z");
    assert_eq!(story.callback("v", "1"), Answer::Applied);
    assert_eq!(story.callback("y", "9"), Answer::Applied, "before the run has reached it");
    story.after("60s");
    assert_eq!(story.statuses(), "w=timeout v=received z=skipped y=skipped run=failed");
    story.retry(None);
    assert_eq!(story.callback("v", "1"), Answer::Repeated);
    assert_eq!([story.callback("w", "2"), story.callback("w", "2")], [Answer::Applied, Answer::Repeated]);
    story.answers("z=200");
    assert_eq!(story.statuses(), "w=received v=received z=success y=received run=completed");
    assert_eq!(story.body("y"), json!(9));
}

#[test]
fn m29_a_late_report_of_the_attempt_before_is_refused() {
    let mut story = Story::of("t@task; z@wait=x");
    let offer = Offer { worker: "w".into(), lease: Span::from_secs(30), ..Default::default() };
    assert_eq!(story.give(Input::Claim { step: 0, offer: offer.clone() }), Answer::Applied);
    let fence = story.leases[&0];
    story.after("30d");
    assert_eq!(story.run.status(), RunStatus::Timeout);
    story.retry(None);
    let result = TaskResult::Done { body: None, took: Span(1) };
    assert_eq!(story.give(Input::Finished { step: 0, fence, result, digest: 3 }), Answer::Stale);
    assert_eq!(story.give(Input::Claim { step: 0, offer }), Answer::Applied);
    assert_eq!(story.assignments.last().map(|granted| (granted.attempt, granted.task.repeats)), Some((2, 0)));
}

#[test]
fn m20_m29_unread_signals_survive_and_read_ones_stay_read() {
    let mut story = Story::of("s@signal=go; f: s; t@signal=go: f");
    let signal = |n: u64| {
        Input::Signal(Box::new(IncomingSignal {
            name: "go".into(),
            body: Payload::json(n.to_string()),
            actor: String::new(),
            key: Bytes::new(),
            fingerprint: Bytes::new(),
        }))
    };
    story.give(signal(1));
    story.give(signal(2));
    story.answers("f=404");
    assert_eq!(story.run.state.signals.len(), 1);
    story.retry(None);
    story.answers("f=200");
    assert_eq!((story.body("s"), story.body("t")), (json!(1), json!(2)));
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m28_a_group_goes_on_where_it_was() {
    let groups = [("", "g@group; z: g"), ("g", "a; b: a; c: b; s")];
    let mut story = Story::nested(&groups, json!({}));
    story.answers("g/a=200 g/b=404");
    assert_eq!(story.statuses(), "g=failed z=skipped g/a=success g/b=failed g/c=cancelled g/s=cancelled run=failed");
    assert_eq!(story.repair(None), ("z g/b g/c g/s".to_owned(), String::new()));
    story.retry(None);
    assert_eq!(story.statuses(), "g=running z=pending g/a=success g/b=running g/c=pending g/s=running run=running");
    story.answers("g/b=200 g/s=200 g/c=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.keys_from(0), ["g/a", "g/s", "g/b", "g/b", "g/s", "g/c", "z"]);
}

#[test]
fn m28_from_inside_a_group_runs_again_what_depends_on_the_group() {
    let groups = [("", "g@group; y: g; z: y"), ("g", "a; b: a; c")];
    let mut story = Story::nested(&groups, json!({}));
    story.answers("g/a=200 g/c=200 g/b=200 y=200 z=404");
    assert_eq!(story.repair(Some("g/a")), ("y z g/a g/b".to_owned(), "y g/a g/b".to_owned()));
    story.retry(Some("g/a"));
    let sent = story.keys.len() - 1;
    story.answers("g/a=200 g/b=200 y=200 z=200");
    assert_eq!(story.keys_from(sent), ["g/a:r1", "g/b:r1", "y:r1", "z"]);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m28_a_group_that_depends_on_a_step_starts_from_scratch() {
    let groups = [("", "a; g@group: a; z: g"), ("g", "b; c: b")];
    let mut story = Story::nested(&groups, json!({}));
    story.answers("a=200 g/b=200 g/c=200 z=404");
    assert_eq!(story.repair(Some("a")), ("a g z".to_owned(), "a g".to_owned()));
    let old = story.run.find(&story.plan, "g/b").expect("g/b");
    story.retry(Some("a"));
    assert!(story.run.has_left(old));
    story.answers("a=200");
    assert_eq!(story.run.find(&story.plan, "g/b"), Some(story.run.next_step() - 2), "with a new number");
    story.answers("g/b=200 g/c=404");
    assert_eq!(story.run.status(), RunStatus::Failed);
    story.retry(Some("g"));
    let sent = story.keys.len() - 1;
    story.answers("g/b=200 g/c=200 z=200");
    assert_eq!(story.keys_from(sent), ["g/b:r2", "g/c:r2", "z"], "no key is used for two runs of a step");
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m28_a_loop_goes_on_with_the_iterations_that_failed_or_were_cancelled() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x; y@http={{item}} {{tasks.x.body.n}}: x")];
    let mut story = Story::nested(&groups, json!({ "list": ["p", "q", "r"] }));
    story.answers("l[0]/x=200 l[0]/y=200 l[1]/x=200 l[1]/y=404");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.repair(None), ("z l[1]/y".to_owned(), String::new()));
    story.retry(None);
    story.answers("l[1]/y=200 l[2]/x=200 l[2]/y=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    let sent: Vec<&str> = story.sent.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!(sent, ["l[0]/x", "l[0]/y", "l[1]/x", "l[1]/y", "l[1]/y", "l[2]/x", "l[2]/y", "z"]);
    assert_eq!(story.body("l"), json!([{ "n": 7 }, { "n": 7 }, { "n": 7 }]));
}

#[test]
fn m28_iterations_beside_the_one_that_failed_go_on_too() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x; y: x")];
    let mut story = Story::changed(&groups, json!({ "list": [1, 2, 3] }), |layout| {
        let Some(Body::Loop { repeat }) = &mut layout.nodes[0].body else { panic!("a loop") };
        repeat.concurrency = 2;
    });
    story.answers("l[0]/x=200 l[1]/x=404");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.repair(None).0, "z l[0]/y l[1]/x l[1]/y");
    story.retry(None);
    story.answers("l[0]/y=200 l[1]/x=200 l[1]/y=200 l[2]/x=200 l[2]/y=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m28_a_loop_named_by_from_starts_from_scratch_and_one_that_goes_on_keeps_its_failures() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x")];
    let mut story = Story::changed(&groups, json!({ "list": [1, 2] }), |layout| {
        let Some(Body::Loop { repeat }) = &mut layout.nodes[0].body else { panic!("a loop") };
        repeat.body.on_error = OnError::Continue;
    });
    story.answers("l[0]/x=404 l[1]/x=200 z=404");
    assert_eq!(story.repair(None).0, "z");
    assert_eq!(story.repair(Some("l")), ("l z".to_owned(), "l".to_owned()));
    story.retry(Some("l"));
    let sent = story.keys.len() - 1;
    story.answers("l[0]/x=200 l[1]/x=200 z=200");
    assert_eq!(story.keys_from(sent), ["l[0]/x:r1", "l[1]/x:r1", "z"]);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m28_a_step_that_was_undone_runs_again_with_its_dependents() {
    let groups = [("", "a; b: a; c; d: b, c")];
    let origin = Origin { body: Payload::json("{}"), ..Default::default() };
    let mut story = Story::start(undoable(&groups, "a! c!"), origin, Admission::Open, Vec::new());
    story.answers("a=200 b=200 c=200 d=404 c/compensate=404 a/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    // The undo of `c` failed: what it did still counts.
    assert_eq!(story.repair(None), ("a b d".to_owned(), "a b".to_owned()));
    story.retry(None);
    assert!(story.run.find(&story.plan, "a/compensate").is_none());
    let sent = story.keys.len() - 1;
    story.answers("a=200 b=200 d=404");
    assert_eq!(story.run.status(), RunStatus::Compensating, "{}", story.statuses());
    story.answers("a/compensate=200");
    assert_eq!(story.keys_from(sent), ["a:r1", "b:r1", "d", "a/compensate:r1"]);
    assert_eq!(story.run.status(), RunStatus::Failed);
    story.retry(None);
    story.answers("a=200 b=200 d=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.keys.last().map(|key| key.ends_with(":d")), Some(true));
}

#[test]
fn m28_undone_steps_of_iterations_run_again() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x; y: x")];
    let origin = Origin { body: Payload::json(r#"{"list":["p","q"]}"#), ..Default::default() };
    let mut story = Story::start(undoable(&groups, "y!"), origin, Admission::Open, Vec::new());
    story.answers("l[0]/x=200 l[0]/y=200 l[1]/x=200 l[1]/y=200 z=400");
    story.answers("l[1]/y/compensate=200 l[0]/y/compensate=200");
    assert_eq!(story.repair(None), ("z l[0]/y l[1]/y".to_owned(), "l[0]/y l[1]/y".to_owned()));
    story.retry(None);
    story.answers("l[0]/y=200 l[1]/y=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m28_an_irreversible_step_runs_again_only_if_that_is_allowed() {
    let mut story = Story::of("a; b: a; c: b").with_layout(|layout| layout.nodes[1].is_irreversible = true);
    story.answers("a=200 b=200 c=404");
    let before = story.run.state.clone();
    assert_eq!(story.retry(Some("a")), Answer::Unsafe);
    assert_eq!(story.run.state, before, "a refusal changes nothing");
    assert_eq!(repair(&story.plan, &story.run, &[0]).irreversible, [1]);
    assert_eq!(repair(&story.plan, &story.run, &[]).irreversible, Vec::<u32>::new());
    assert_eq!(story.reopen(Some(0), true, Admission::Open), Answer::Applied);
    assert_eq!(story.answers("a=200 b=200 c=200").run.status(), RunStatus::Completed);

    // A failed one is what the retry is for.
    let mut story = Story::of("a").with_layout(|layout| layout.nodes[0].is_irreversible = true);
    story.answers("a=404");
    assert_eq!(story.retry(None), Answer::Applied);
}

#[test]
fn m29_the_concurrency_group_is_asked_again() {
    let mut story = Story::of("a");
    story.answers("a=404");
    assert_eq!(story.reopen(None, false, Admission::Refuse), Answer::NoRoom);
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.reopen(None, false, Admission::Queue(Queue::Limit)), Answer::Applied);
    assert_eq!(story.statuses(), "a=pending run=pending");
    assert_eq!(story.give(Input::Admit), Answer::Applied);
    assert_eq!(story.answers("a=200").run.status(), RunStatus::Completed);
}

#[test]
fn m28_a_run_whose_output_failed_only_computes_it_again() {
    let mut story = Story::of("a").with_layout(|layout| {
        let mut resolve = |raw: &path::RawPath<'_>| Ok(reference(raw, &|_| 0, ""));
        let parts = template::parse_text("{{tasks.a.body.nope}}", &mut resolve).expect("a template");
        layout.output = Some(Template::from_parts(parts));
    });
    story.answers("a=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.repair(None), (String::new(), String::new()));
    assert_eq!(story.retry(None), Answer::Applied);
    assert_eq!((story.run.status(), story.sent.len()), (RunStatus::Failed, 1));
    assert_eq!(
        story.events().iter().filter(|event| event.starts_with("run.")).collect::<Vec<_>>(),
        ["run.created", "run.failed", "run.retried", "run.failed"]
    );
}

#[test]
fn m17_the_retry_of_a_parent_starts_the_next_child() {
    let mut story = Story::of("c@child=other; z: c");
    let first = story.run.step(0).child.clone().expect("a child").run;
    let outcome = || {
        let failure = Some(Failure::new("step_failed", "no"));
        Box::new(crate::inbox::ChildOutcome { status: RunStatus::Failed, failure, ..Default::default() })
    };
    assert_eq!(story.give(Input::ChildEnded { step: 0, attempt: 1, outcome: outcome() }), Answer::Applied);
    assert_eq!(story.run.status(), RunStatus::Failed);
    story.retry(None);
    let child = story.run.step(0).child.clone().expect("a child");
    assert_ne!(child.run, first);
    assert_eq!(story.run.step(0).attempt, 2);
    assert_eq!(story.give(Input::ChildEnded { step: 0, attempt: 1, outcome: outcome() }), Answer::Gone, "of the first");
}

/// An earlier release let the steps go that had succeeded in an iteration that failed.
#[test]
fn m28_a_loop_whose_steps_have_left_the_state_starts_from_scratch() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x; y: x")];
    let mut story = Story::changed(&groups, json!({ "list": [1, 2] }), |layout| {
        let x = layout.nodes.iter_mut().find(|node| node.key == "x").expect("x");
        x.is_irreversible = true;
    });
    story.answers("l[0]/x=200 l[0]/y=200 l[1]/x=200 l[1]/y=404");
    assert_eq!(story.repair(None).0, "z l[1]/y");
    let mut state = story.run.state.clone();
    state.inner.remove(&story.run.find(&story.plan, "l[1]/x").expect("x"));
    let old = Run::load(&story.plan, Some(&wire::seal(&state)), &[]).expect("a snapshot");
    let repair = repair(&story.plan, &old, &[]);
    assert_eq!((repair.steps, repair.around, repair.repeated), (vec![0, 1], vec![], vec![0]));
    assert_eq!(repair.irreversible, [0], "what its iterations did is not known any more");
}

#[test]
fn m28_while_loops_go_on_and_a_repeated_iteration_repeats_those_after_it() {
    let groups = [("", "l@while=index < 3; z: l"), ("l", "x")];
    let mut story = Story::nested(&groups, json!({}));
    story.answers("l[0]/x=200 l[1]/x=404");
    assert_eq!(story.repair(None).0, "z l[1]/x");
    story.retry(None);
    story.answers("l[1]/x=200 l[2]/x=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);

    let origin = Origin { body: Payload::json("{}"), ..Default::default() };
    let mut story = Story::start(undoable(&groups, "x!"), origin, Admission::Open, Vec::new());
    story.answers("l[0]/x=200 l[1]/x=404 l[0]/x/compensate=200");
    assert_eq!(story.repair(None), ("l z".to_owned(), "l".to_owned()));
    story.retry(None);
    story.answers("l[0]/x=200 l[1]/x=200 l[2]/x=200 z=200");
    assert_eq!(story.keys_from(3), ["l[0]/x:r1", "l[1]/x:r1", "l[2]/x:r1", "z"]);
}

/// A group that a later step handled is opened again by the undo inside of it: then its failures count, too.
#[test]
fn m28_a_handled_group_with_an_undone_step_goes_on_with_what_failed_in_it() {
    let groups = [("", "g@group; h: g if tasks.g.failed; z: h"), ("g", "a; b")];
    let origin = Origin { body: Payload::json("{}"), ..Default::default() };
    let mut story = Story::start(undoable(&groups, "a!"), origin, Admission::Open, Vec::new());
    story.answers("g/a=200 g/b=404 h=200 z=404 g/a/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.repair(None), ("h z g/a g/b".to_owned(), "h g/a".to_owned()));
    story.retry(None);
    story.answers("g/a=200 g/b=200");
    assert_eq!(story.statuses(), "g=success h=skipped z=skipped g/a=success g/b=success run=completed");
}

#[test]
fn m30_the_number_of_a_notification_says_which_end_it_is_about() {
    let number = NotificationNumber::stored(7, 2);
    assert_eq!(NotificationNumber::read(number), NotificationNumber { end: Some(7), index: 2 });
    assert_eq!(NotificationNumber::read(2), NotificationNumber { end: None, index: 2 }, "of an earlier release");
}

#[test]
fn m25_m28_a_group_that_is_at_work_again_is_undone_for_its_second_end() {
    let mut story = Story::start(
        undoable(&[("", "g@group; z: g"), ("g", "x; y: x")], "g!"),
        Origin::default(),
        Admission::Open,
        Vec::new(),
    );
    story.answers("g/x=200 g/y=200 z=400 g/compensate=400");
    assert_eq!(story.run.status(), RunStatus::Failed, "the undo of `g` failed, so what `g` did still counts");
    assert_eq!(story.retry(Some("g/y")), Answer::Applied);
    assert_eq!(story.run.undos(), [], "what `g` did is not known yet");
    story.answers("g/y=200 z=400 g/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    assert_eq!(story.run.undos().len(), 1);
}
