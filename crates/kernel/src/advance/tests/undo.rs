//! M24–M26: a run that cannot complete undoes what it did.

use super::*;
use crate::event::Override;
use crate::run::UNDO_NAME;

/// A plan whose steps `names` can be undone by workers, or by requests if the name ends in `!`.
pub(super) fn undoable(groups: &[(&str, &str)], names: &str) -> Plan {
    let mut layout = nested_plan(groups).layout().clone();
    for name in names.split_whitespace() {
        let (name, is_http) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let number = layout.nodes.len() as u32;
        let node = layout.nodes.iter_mut().find(|node| node.key == name).expect(name);
        node.undo = Some(number);
        let group = node.group;
        let mut resolve = |_: &path::RawPath<'_>| panic!("no paths");
        let retry = Retry { max_attempts: 2, min: Span::from_secs(10), ..Default::default() };
        let body = body_of(if is_http { "http" } else { "task" }, &mut resolve);
        for node in &mut layout.nodes {
            if let Some(Body::Http { request }) = &mut node.body {
                request.timeout = Span::from_secs(30);
            }
        }
        layout.nodes.push(Node { key: UNDO_NAME.into(), group, body: Some(body), retry, ..Default::default() });
    }
    Plan::new(layout).expect("a plan")
}

fn begin(groups: &[(&str, &str)], names: &str) -> Story {
    let origin = Origin { body: Payload::json(r#"{"id":5}"#), ..Default::default() };
    Story::start(undoable(groups, names), origin, Admission::Open, Vec::new())
}

fn offer(worker: &str) -> Offer {
    Offer { worker: worker.into(), lease: Span::from_secs(30), ..Default::default() }
}

impl Story {
    /// A worker claims the only task that waits for one.
    fn claim_only(&mut self) -> (u32, u64) {
        let ready: Vec<u32> = self.run.claimable(&self.plan).collect();
        assert_eq!(ready.len(), 1, "{}", self.statuses());
        assert_eq!(self.give(Input::Claim { step: ready[0], offer: offer("w") }), Answer::Applied);
        (ready[0], self.leases[&ready[0]])
    }

    fn done(&mut self, (step, fence): (u32, u64)) -> Answer {
        let result = TaskResult::Done { body: Some(Payload::json(r#"{"ok":1}"#)), took: Span(1) };
        self.give(Input::Finished { step, fence, result, digest: 7 })
    }

    fn fails(&mut self, (step, fence): (u32, u64)) -> Answer {
        let failure = Failure::new("refused", "it cannot be undone");
        let result = TaskResult::Failed { failure, retryable: false, retry_after: None, took: Span(1) };
        self.give(Input::Finished { step, fence, result, digest: 8 })
    }

    fn cancel_and_undo(&mut self) -> Answer {
        self.give(Input::Cancel { actor: "ada".into(), reason: "changed her mind".into(), compensate: true })
    }

    /// What the only task at work got.
    fn last_input(&self) -> Value {
        serde_json::from_slice(&self.assignments.last().expect("a lease").task.input).expect("JSON")
    }

    fn ends_of_undos(&self) -> Vec<String> {
        self.events().into_iter().filter(|event| event.contains("/compensate")).collect()
    }
}

#[test]
fn m25_s26_what_succeeded_is_undone_in_reverse_order_after_a_failure() {
    let mut story = begin(&[("", "a; b: a; c; d: b, c")], "a! b! c!");
    story.answers("a=200 b=200 c=200 d=400");
    // `c` succeeded last, so it goes first; `d` failed, so there is nothing to undo of it.
    assert_eq!(story.statuses(), "a=success b=success c=success d=failed c/compensate=running run=compensating");
    assert_eq!(story.run.still_to_undo().collect::<Vec<_>>(), [1, 0]);
    story.answers("c/compensate=200 b/compensate=503");
    assert!(story.statuses().ends_with("b/compensate=retrying run=compensating"), "with a retry of its own");
    story.after("10s").answers("b/compensate=200 a/compensate=200");
    assert_eq!(
        story.statuses(),
        "a=success b=success c=success d=failed c/compensate=success b/compensate=success a/compensate=success run=failed"
    );
    assert_eq!(failed_steps(&story.plan, &story.run), [3]);
    assert_eq!(story.run.state.culprit, Some(3));
}

#[test]
fn m25_p16_a_failing_undo_is_recorded_and_the_rest_goes_on() {
    let mut story = begin(&[("", "a; b: a; c: b")], "a b!");
    story.answers("a=200 b=200 c=400 b/compensate=400");
    let lease = story.claim_only();
    assert_eq!(story.last_input()["step"], json!({ "key": "a", "input": null, "output": { "n": 7 } }));
    assert_eq!(story.last_input()["payload"], json!({ "id": 5 }));
    assert_eq!(story.last_input()["failure"]["step"], "c");
    assert_eq!(story.done(lease), Answer::Applied);
    assert!(story.statuses().ends_with("b/compensate=failed a/compensate=success run=failed"), "{}", story.statuses());
    assert_eq!(failed_steps(&story.plan, &story.run), [2], "the failed undo is part of the recovery");
}

#[test]
fn m26_a_run_that_completes_or_handles_its_failures_undoes_nothing() {
    let mut story = begin(&[("", "a; b: a; c: b if tasks.b.failed")], "a!");
    story.answers("a=200 b=400 c=200");
    assert_eq!(story.statuses(), "a=success b=failed c=success run=completed");
    assert_eq!(story.ends_of_undos(), Vec::<String>::new());
    let mut story = begin(&[("", "a; b: a")], "b!");
    assert_eq!(story.answers("a=200 b=400").statuses(), "a=success b=failed run=failed", "there is nothing to undo");
}

#[test]
fn m26_a_timeout_of_the_run_and_a_cancellation_that_asks_for_it_undo() {
    let mut story = begin(&[("", "a; b@wait=x: a")], "a!");
    story.answers("a=200").after("30d");
    assert_eq!(story.statuses(), "a=success b=cancelled a/compensate=running run=compensating");
    assert_eq!(story.answers("a/compensate=200").statuses(), "a=success b=cancelled a/compensate=success run=timeout");

    let mut story = begin(&[("", "a; b@wait=x: a")], "a!");
    story.answers("a=200");
    assert_eq!(story.cancel_and_undo(), Answer::Applied);
    assert_eq!(story.cancel(), Answer::Repeated, "it is being cancelled already");
    assert_eq!(story.answers("a/compensate=200").run.status(), RunStatus::Cancelled);
    assert_eq!(story.run.state.cancel_reason, "changed her mind");

    let mut story = begin(&[("", "a; b@wait=x: a")], "a!");
    story.answers("a=200").cancel();
    assert_eq!(story.statuses(), "a=success b=cancelled run=cancelled", "a plain cancellation undoes nothing");
    let mut story = begin(&[("", "a")], "a!");
    story.cancel_and_undo();
    assert_eq!(story.run.status(), RunStatus::Compensating, "`a` may succeed yet");
}

#[test]
fn m26_undo_is_neither_cut_short_nor_cancelled_and_can_be_paused() {
    let mut story = begin(&[("", "a; b: a")], "a!");
    story.answers("a=200 b=400 a/compensate=503");
    assert_eq!(story.cancel(), Answer::Ended(RunStatus::Compensating));
    assert_eq!(story.cancel_and_undo(), Answer::Ended(RunStatus::Compensating));
    assert_eq!(story.give(Input::Pause { actor: "ada".into(), note: String::new() }), Answer::Applied);
    story.after("40d");
    assert!(story.statuses().ends_with("a/compensate=retrying run=compensating"), "{}", story.statuses());
    assert_eq!(story.give(Input::Resume { actor: "ada".into() }), Answer::Applied);
    assert_eq!(story.answers("a/compensate=200").run.status(), RunStatus::Failed);
}

#[test]
fn m24_undo_waits_for_attempts_that_were_called_off() {
    // A group calls off `slow` when `bad` fails.
    let groups = [("", "a; g@group: a; z: g"), ("g", "bad@task; slow")];
    let mut story = begin(&groups, "a! slow!");
    story.answers("a=200");
    let lease = story.claim_only();
    story.fails(lease);
    assert!(story.aborted.is_empty(), "its result says whether there is anything to undo");
    assert!(story.statuses().contains("g/slow=cancelled"), "{}", story.statuses());
    assert_eq!(story.run.status(), RunStatus::Compensating);
    assert_eq!(story.ends_of_undos(), Vec::<String>::new(), "nothing is undone beside an attempt at work");
    // It succeeds after all, and later than `a`: it is undone first.
    story.answers("g/slow=200");
    assert!(story.statuses().ends_with("g/slow/compensate=running run=compensating"), "{}", story.statuses());
    story.answers("g/slow/compensate=200 a/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
}

#[test]
fn m24_an_attempt_that_never_reports_is_given_up_when_its_lease_has_ended() {
    for (undo_if_unknown, undone) in [(false, 1), (true, 2)] {
        let mut story = begin(&[("", "a; b@task: a")], "a! b!").with_layout(|layout| {
            layout.nodes[1].undo_if_unknown = undo_if_unknown;
        });
        story.answers("a=200");
        let (step, fence) = story.claim_only();
        story.cancel_and_undo();
        assert_eq!(story.aborted, ["b"], "its worker is told");
        story.after("29s");
        assert_eq!(story.run.undos(), []);
        story.after("1s");
        if undo_if_unknown {
            story.answers("b/compensate=200");
        }
        story.answers("a/compensate=200");
        assert_eq!((story.run.undos().len(), story.run.status()), (undone, RunStatus::Cancelled));
        assert_eq!(story.done((step, fence)), Answer::Ended(RunStatus::Cancelled), "what it says now is too late");
    }
}

#[test]
fn m24_a_report_after_the_attempt_was_called_off_is_recorded_once() {
    let mut story = begin(&[("", "a; b@task: a")], "a! b!");
    story.answers("a=200");
    let lease = story.claim_only();
    story.cancel_and_undo();
    assert_eq!([story.done(lease), story.done(lease)], [Answer::Applied, Answer::Repeated]);
    assert_eq!(story.fails(lease), Answer::Stale);
    story.answers("b/compensate=200 a/compensate=200");
    assert_eq!(story.statuses(), "a=success b=cancelled b/compensate=success a/compensate=success run=cancelled");
}

#[test]
fn m25_steps_of_iterations_are_undone_and_read_their_own_item() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x; y: x")];
    let mut layout = undoable(&groups, "y!").layout().clone();
    let number = layout.nodes.iter().position(|node| node.key == "l").expect("l") as u32;
    let mut resolve = |raw: &path::RawPath<'_>| Ok(reference(raw, &|name| if name == "x" { 2 } else { number }, "l"));
    let undo = layout.nodes.last_mut().expect("the undo");
    undo.body = Some(body_of("http={{item}} {{tasks.x.body.n}} {{index}}", &mut resolve));
    let origin = Origin { body: Payload::json(r#"{"list":["p","q"]}"#), ..Default::default() };
    let mut story = Story::start(Plan::new(layout).expect("a plan"), origin, Admission::Open, Vec::new());
    story.answers("l[0]/x=200 l[0]/y=200 l[1]/x=200 l[1]/y=200 z=400");
    story.answers("l[1]/y/compensate=200 l[0]/y/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
    let bodies: Vec<String> = story
        .sent
        .iter()
        .filter(|(key, ..)| key.ends_with("/compensate"))
        .map(|(_, _, work)| match work {
            Work::Http(request) => String::from_utf8(request.body.as_ref().expect("a body").0.to_vec()).expect("text"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bodies, ["q 7 1", "p 7 0"]);
}

#[test]
fn m25_a_loop_is_undone_once_and_not_for_each_of_its_iterations() {
    let groups = [("", "l@each=trigger.body.list; z: l"), ("l", "x")];
    let origin = Origin { body: Payload::json(r#"{"list":["p","q"]}"#), ..Default::default() };
    let mut story = Story::start(undoable(&groups, "l!"), origin, Admission::Open, Vec::new());
    story.answers("l[0]/x=200 l[1]/x=200 z=400");
    assert_eq!(story.run.still_to_undo().count(), 0, "the undo of the loop is the only one, and is at work");
    story.answers("l/compensate=200");
    assert_eq!(story.run.undos().len(), 1);
    assert_eq!(story.run.status(), RunStatus::Failed);
}

#[test]
fn m25_m32_a_step_with_a_given_result_is_undone_once_although_its_attempt_succeeds_too() {
    let mut story = begin(&[("", "a; b@wait=x: a")], "a!");
    let step = story.run.find(&story.plan, "a").expect("a");
    let late = story.result("a", response(200, json!({ "n": 7 })));
    let (actor, reason) = ("ada".to_owned(), String::new());
    let decision = StepOverride { verb: Override::Result, body: Some(Payload::json("1")), actor, reason };
    assert_eq!(story.give(Input::Override { step, decision: Box::new(decision) }), Answer::Applied);
    assert_eq!(story.give(late), Answer::Applied, "the attempt that was called off comes to its end");
    assert_eq!(story.run.step(step).body(), Some(&Payload::json("1")), "and changes nothing");
    let mut other = begin(&[("", "a; b@wait=x: a")], "a!");
    let late = other.result("a", TaskResult::Done { body: None, took: Span(1) });
    let (actor, reason) = ("ada".to_owned(), String::new());
    let decision = StepOverride { verb: Override::Result, body: Some(Payload::json("1")), actor, reason };
    other.give_all(vec![Input::Override { step, decision: Box::new(decision) }, late]);
    assert_eq!(other.body("a"), json!(1), "also without a body");
    story.cancel_and_undo();
    story.answers("a/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Cancelled);
    assert_eq!(story.run.undos().len(), 1);
}

#[test]
fn p9_an_undo_that_needs_a_payload_first_keeps_its_run_awake() {
    let mut layout = undoable(&[("", "a; b: a")], "a!").layout().clone();
    let mut resolve = |raw: &path::RawPath<'_>| Ok(reference(raw, &|_| 0, ""));
    layout.nodes.last_mut().expect("the undo").body = Some(body_of("http={{tasks.a.body.n}}", &mut resolve));
    let mut story = Story::start(Plan::new(layout).expect("a plan"), Origin::default(), Admission::Open, Vec::new());
    let large = story.result("a", response(200, json!({ "n": 7, "pad": "x".repeat(INLINE_MAX) })));
    story.give(large);
    story.answers("b=400");
    assert!(story.statuses().ends_with("a/compensate=pending run=compensating"), "{}", story.statuses());
    assert!(!story.run.is_idle() && story.run.has_undecided(), "after a crash, the run is looked at again");
    story.resident = story.payloads.clone();
    story.after("1s").answers("a/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed);
}

#[test]
fn m26_a_retry_that_needs_a_payload_is_forgotten_when_the_run_expires() {
    let mut layout = undoable(&[("", "a; b")], "a!").layout().clone();
    let mut resolve = |raw: &path::RawPath<'_>| Ok(reference(raw, &|_| 0, ""));
    layout.nodes[1].body = Some(body_of("http={{trigger.body.n}}", &mut resolve));
    layout.nodes[1].retry = Retry { max_attempts: 3, min: Span::from_secs(10), ..Default::default() };
    let origin = Origin {
        body: Payload::json(json!({ "n": 7, "pad": "x".repeat(INLINE_MAX) }).to_string()),
        ..Default::default()
    };
    let mut story = Story::start(Plan::new(layout).expect("a plan"), origin, Admission::Open, Vec::new());
    story.answers("a=200 b=503");
    story.after("30d");
    assert_eq!(story.statuses(), "a=success b=cancelled a/compensate=running run=compensating");
    assert_eq!(story.answers("a/compensate=200").run.status(), RunStatus::Timeout);
}

#[test]
fn m32_the_number_of_a_payload_that_changes_nothing_is_not_given_out_again() {
    let mut story = begin(&[("", "a; b@wait=x: a")], "a!");
    let large = || response(200, json!({ "n": 7, "pad": "x".repeat(INLINE_MAX) }));
    let (step, late) = (story.run.find(&story.plan, "a").expect("a"), story.result("a", large()));
    let (actor, reason) = ("ada".to_owned(), String::new());
    let decision = StepOverride { verb: Override::Result, body: Some(Payload::json("1")), actor, reason };
    story.give(Input::Override { step, decision: Box::new(decision) });
    assert_eq!(story.give(late), Answer::Applied);
    assert_eq!((story.payloads.len(), story.run.state.payloads), (1, 1));
    assert_eq!(story.body("a"), json!(1));
    story.callback("b", &"y".repeat(INLINE_MAX + 1));
    assert_eq!(story.payloads.len(), 2);
}

#[test]
fn m25_an_unhandled_denial_undoes_and_the_run_ends_cancelled() {
    let mut story = begin(&[("", "a; ok@approval=sure: a; b: ok")], "a!");
    story.answers("a=200");
    let verdict = ApprovalDecision {
        decision: Decision::Denied,
        actor: "ada".into(),
        comment: String::new(),
        shown: String::new(),
    };
    story.give(Input::Decide { step: None, verdict });
    assert_eq!(story.run.status(), RunStatus::Compensating);
    assert_eq!(story.answers("a/compensate=200").run.status(), RunStatus::Cancelled);
}

#[test]
fn m19_a_cancellation_that_undoes_goes_down_the_tree_and_waits_for_the_children() {
    let mut story = begin(&[("", "a; c@child=other: a")], "a!").with_layout(|layout| {
        let Some(Body::Child { child }) = &mut layout.nodes[1].body else { panic!("a child") };
        child.on_parent_close = OnParentClose::Cancel;
    });
    story.answers("a=200");
    story.outgoing.clear();
    story.cancel_and_undo();
    let [row] = story.outgoing.as_slice() else { panic!("{:?}", story.outgoing) };
    let input = crate::inbox::StoredInput::open(&row.body).expect("an input");
    assert!(matches!(input, Input::ParentClosed { compensate: true, .. }), "{input:?}");
    assert_eq!(story.run.undos(), [], "the child undoes first what it did");
    let outcome = crate::inbox::ChildOutcome { status: RunStatus::Cancelled, ..Default::default() };
    let outcome = Box::new(outcome);
    assert_eq!(story.give(Input::ChildEnded { step: 1, attempt: 1, outcome }), Answer::Applied);
    assert_eq!(story.answers("a/compensate=200").run.status(), RunStatus::Cancelled);
}

#[test]
fn a_plan_whose_undo_is_linked_or_shared_is_refused() {
    let layout = undoable(&[("", "a; b")], "a!").layout().clone();
    let changed = |change: &dyn Fn(&mut Layout)| {
        let mut layout = layout.clone();
        change(&mut layout);
        Plan::new(layout).is_err()
    };
    assert!(changed(&|layout| layout.nodes[1].undo = Some(2)), "two steps with one undo");
    assert!(changed(&|layout| layout.nodes[1].undo = Some(9)), "an undo that is not there");
    assert!(changed(&|layout| layout.nodes[1].undo = Some(0)), "a step of the graph as an undo");
    assert!(!changed(&|_| ()));
}

#[test]
fn m27_s31_steps_that_cannot_be_repeated_are_those_that_succeeded_or_may_have() {
    use crate::advance::unrepeatable_steps;
    let groups = [("", "a; b: a; l@each=trigger.body.list: b"), ("l", "x")];
    let mark = |layout: &mut Layout| {
        layout.nodes[0].is_irreversible = true;
        layout.nodes[1].is_not_compensatable = true;
        layout.nodes[3].is_irreversible = true;
    };
    let mut story = Story::changed(&groups, json!({ "list": [1, 2] }), mark);
    let keys = |story: &Story| -> Vec<(String, bool)> {
        let steps = unrepeatable_steps(&story.plan, &story.run).into_iter();
        steps.map(|step| (step.key, step.is_irreversible)).collect()
    };
    assert_eq!(keys(&story), [], "nothing has happened yet");
    story.answers("a=200");
    assert_eq!(keys(&story), [("a".into(), true)]);
    story.answers("b=200 l[0]/x=200");
    assert_eq!(keys(&story), [("a".into(), true), ("b".into(), false), ("l/x".into(), true)], "the iteration has left");
    let mut story = Story::changed(&groups, json!({ "list": [1] }), mark);
    story.answers("a=400");
    assert_eq!(keys(&story), [], "it failed, so it did nothing");
    let mut story = Story::changed(&groups, json!({ "list": [1] }), mark);
    story.exhaust("a", "timeout");
    assert_eq!(keys(&story), [("a".into(), true)], "it may have done it");
}

#[test]
fn m17_m32_the_row_that_closes_a_child_is_not_the_one_that_asked_for_it() {
    let origin = Origin { body: Payload::json(r#"{"id":5}"#), ..Default::default() };
    let plan = nested_plan(&[("", "z; c@child=bill")]);
    let mut story = Story::start(plan, origin, Admission::Open, Vec::new());
    let step = story.run.find(&story.plan, "c").expect("c");
    let (actor, reason) = ("ada".to_owned(), String::new());
    let decision = StepOverride { verb: Override::Skip, body: None, actor, reason };
    assert_eq!(story.give(Input::Override { step, decision: Box::new(decision) }), Answer::Applied);
    let ids: BTreeSet<_> = story.outgoing.iter().map(|row| (row.to, row.id)).collect();
    assert_eq!((story.outgoing.len(), ids.len()), (2, 2), "at the same instant, right after the child was asked for");
}
