//! Signals, approvals and pauses: rules M20 and M22.

use super::*;
use crate::run::{SIGNALS_MAX, WaitKind};

fn signal(name: &str, body: Value, key: &str) -> Input {
    let fingerprint = Bytes::from(format!("{name}{body}"));
    let (name, body) = (name.to_owned(), Payload::json(body.to_string()));
    let key = Bytes::copy_from_slice(key.as_bytes());
    Input::Signal(Box::new(IncomingSignal { name, body, actor: "ada".into(), key, fingerprint }))
}

fn decide(step: Option<u32>, decision: Decision, actor: &str) -> Input {
    let (actor, comment, shown) = (actor.to_owned(), "looked at it".to_owned(), "abc".to_owned());
    Input::Decide { step, verdict: ApprovalDecision { decision, actor, comment, shown } }
}

impl Story {
    fn waits_for(&self) -> Vec<WaitKind> {
        self.run.waiting_for(&self.plan).iter().map(|waiting| waiting.kind).collect()
    }
}

#[test]
fn m20_a_signal_ends_the_wait_that_has_waited_longest() {
    let mut story = Story::of("a@signal=paid; n@sleep=5s; b@signal=paid: n; z: a, b");
    assert_eq!(story.statuses(), "a=waiting n=sleeping b=pending z=pending run=waiting");
    assert_eq!(story.waits_for(), [WaitKind::Signal, WaitKind::Sleep]);
    story.after("5s");
    assert_eq!(story.give(signal("paid", json!({ "n": 1 }), "")), Answer::Applied);
    assert_eq!(story.give(signal("other", json!({ "n": 9 }), "")), Answer::Applied);
    assert_eq!(story.statuses(), "a=received n=success b=waiting z=pending run=waiting");
    assert_eq!(story.give(signal("paid", json!({ "n": 2 }), "")), Answer::Applied);
    assert_eq!((story.body("a"), story.body("b")), (json!({ "n": 1 }), json!({ "n": 2 })));
    story.answers("z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.run.state.signals.len(), 1, "the other signal stays unread");
}

#[test]
fn m20_signals_that_arrive_early_are_kept_in_order_and_each_is_read_once() {
    let mut story = Story::of("first; a@signal=go: first; b@signal=go: a; c@signal=go: b");
    for n in 1..=2 {
        assert_eq!(story.give(signal("go", json!(n), "")), Answer::Applied);
    }
    story.answers("first=200");
    assert_eq!(story.statuses(), "first=success a=received b=received c=waiting run=waiting");
    assert_eq!((story.body("a"), story.body("b")), (json!(1), json!(2)));
    let consumed = story.events().iter().filter(|event| event.starts_with("signal.consumed")).count();
    assert_eq!(consumed, 2);
}

#[test]
fn m20_signals_are_accepted_while_the_run_is_pending_and_not_after_its_end() {
    let mut story = Story::admitted("a@signal=go", Admission::Queue(Queue::Limit));
    assert_eq!(story.give(signal("go", json!(1), "k")), Answer::Applied);
    assert_eq!(story.run.status(), RunStatus::Pending);
    story.give(Input::Admit);
    assert_eq!(story.statuses(), "a=received run=completed");
    assert_eq!(story.give(signal("go", json!(2), "")), Answer::Ended(RunStatus::Completed));
    assert_eq!(story.give(signal("go", json!(1), "k")), Answer::Repeated, "the repeat of an accepted one");
}

#[test]
fn m20_a_key_makes_repeats_of_a_signal_harmless() {
    let mut story = Story::of("a@signal=go; b@signal=go");
    assert_eq!(story.give(signal("go", json!(1), "k1")), Answer::Applied);
    assert_eq!(story.give(signal("go", json!(1), "k1")), Answer::Repeated);
    assert_eq!(story.give(signal("go", json!(2), "k1")), Answer::Conflict);
    assert_eq!(story.statuses(), "a=received b=waiting run=waiting");
    assert_eq!(story.give(signal("go", json!(1), "k2")), Answer::Applied);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m20_unread_signals_are_limited() {
    let mut story = Story::of("a@sleep");
    for n in 0..SIGNALS_MAX {
        let answer = story.give(signal("go", json!(n), ""));
        assert_eq!(answer, Answer::Applied, "{n}");
        story.journal.truncate(usize::MAX);
        if n == 3 {
            // The checks of the harness fold the whole journal: go on without them.
            let unread = story.run.state.signals[0].clone();
            story.run.state.signals.extend(std::iter::repeat_n(unread, SIGNALS_MAX - 4));
            break;
        }
    }
    let mut run = story.run.clone();
    let (payloads, wait_url) = (Payloads::new(), |_: &str| String::new());
    let context = Context {
        run: story.id,
        now: story.now,
        epoch: 1,
        is_draining: false,
        wait_url: &wait_url,
        payloads: &payloads,
        offer: &|_| None,
        hold: &|_| None,
    };
    let answers = advance(&story.plan, &mut run, vec![signal("go", json!(0), "")], &context).answers;
    assert_eq!(answers, [Answer::Full]);
}

#[test]
fn m20_a_deadline_at_the_same_instant_wins() {
    let mut story = Story::of("a@signal=go; z: a if tasks.a.failed");
    story.now = story.now.after(Span::from_secs(60));
    assert_eq!(story.give(signal("go", json!(1), "")), Answer::Applied);
    story.answers("z=200");
    assert_eq!(story.statuses(), "a=timeout z=success run=completed");
    assert_eq!(story.run.state.signals.len(), 1, "and the signal stays unread");
}

#[test]
fn m20_large_signals_are_stored_beside_the_record() {
    let mut story = Story::of("a@signal=go; z@set={{tasks.a.body.n}}: a");
    let long = "x".repeat(10_000);
    story.give(signal("go", json!({ "n": 7, "long": long }), ""));
    assert_eq!(story.payloads.len(), 1);
    story.resident = story.payloads.clone();
    story.give(Input::Wake);
    assert_eq!(story.statuses(), "a=received z=success run=completed");
    assert_eq!(story.body("z"), json!(7));
}

#[test]
fn m22_an_approval_settles_the_step_with_the_decision() {
    let mut story = Story::of("a@approval=charge {{trigger.body.id}}?; z: a");
    assert_eq!(story.waits_for(), [WaitKind::Approval]);
    let step = story.run.step(0);
    assert_eq!(step.approval.as_ref().unwrap().prompt, "charge 5?");
    assert_eq!(story.give(decide(None, Decision::Approved, "ada")), Answer::Applied);
    story.answers("z=200");
    assert_eq!(story.statuses(), "a=success z=success run=completed");
    let at = START.to_string();
    let record =
        json!({ "decision": "approved", "actor": "ada", "at": at, "comment": "looked at it", "shown_hash": "abc" });
    assert_eq!(story.body("a"), record);
    assert_eq!(story.events()[1..4], ["approval.requested a", "run.waiting", "approval.approved a"]);
}

#[test]
fn m22_the_first_decision_counts() {
    let mut story = Story::of("a@approval=ok?; z@sleep");
    assert_eq!(story.give(decide(Some(0), Decision::Approved, "ada")), Answer::Applied);
    assert_eq!(story.give(decide(Some(0), Decision::Approved, "bob")), Answer::Repeated);
    assert_eq!(story.give(decide(Some(0), Decision::Denied, "bob")), Answer::Conflict);
    assert_eq!(story.give(decide(None, Decision::Approved, "bob")), Answer::Unknown, "none is open");
    assert_eq!(story.give(decide(Some(1), Decision::Approved, "bob")), Answer::Unknown, "not an approval");
}

#[test]
fn m22_without_a_step_there_must_be_one_open_approval() {
    let mut story = Story::of("a@approval=a?; b@approval=b?");
    assert_eq!(story.give(decide(None, Decision::Approved, "ada")), Answer::Ambiguous);
    assert_eq!(story.give(decide(Some(1), Decision::Approved, "ada")), Answer::Applied);
    assert_eq!(story.give(decide(None, Decision::Approved, "ada")), Answer::Applied);
    assert_eq!(story.run.status(), RunStatus::Completed);
}

#[test]
fn m22_an_unhandled_denial_cancels_the_run_after_the_other_branches() {
    let mut story = Story::of("a@approval=ok?; next: a; other");
    assert_eq!(story.give(decide(None, Decision::Denied, "ada")), Answer::Applied);
    assert_eq!(story.statuses(), "a=failed next=skipped other=running run=running");
    story.answers("other=200");
    assert_eq!(story.statuses(), "a=failed next=skipped other=success run=cancelled");
    assert_eq!(story.run.state.cancel_reason, APPROVAL_DENIED);
    assert_eq!(story.run.step(0).failure.as_ref().unwrap().message, "denied by ada: looked at it");
    assert_eq!(story.body("a")["decision"], "denied");
}

#[test]
fn m22_a_denial_can_be_handled_and_another_failure_counts_more() {
    let mut story = Story::of("a@approval=ok?; refund: a if tasks.a.error.code == 'approval_denied'");
    story.give(decide(None, Decision::Denied, "ada"));
    story.answers("refund=200");
    assert_eq!(story.run.status(), RunStatus::Completed);

    let mut story = Story::of("a@approval=ok?; b");
    story.give(decide(None, Decision::Denied, "ada"));
    story.answers("b=404");
    assert_eq!(story.run.status(), RunStatus::Failed, "a failure is worse than a denial");
}

#[test]
fn m22_a_denial_inside_a_group_cancels_the_run() {
    let mut story = Story::nested(&[("", "g@group"), ("g", "a@approval=ok?; b: a")], json!({}));
    let step = story.run.find(&story.plan, "g/a");
    story.give(decide(step, Decision::Denied, "ada"));
    assert_eq!(story.run.status(), RunStatus::Cancelled);
    assert_eq!(story.run.state.cancel_reason, APPROVAL_DENIED);
}

/// A worker chooses the code of its failure freely.
#[test]
fn m22_a_failure_that_calls_itself_a_denial_is_a_failure() {
    let in_loop = &[("", "l@each=trigger.body.list"), ("l", "a@task")][..];
    for (groups, key) in [
        (&[("", "a@task")][..], "a"),
        (&[("", "g@group"), ("g", "h@group"), ("h", "a@task")][..], "g/h/a"),
        (in_loop, "l[0]/a"),
    ] {
        for code in [APPROVAL_DENIED, APPROVAL_TIMEOUT, "template_error"] {
            let mut story = Story::nested(groups, json!({ "list": [1] }));
            let step = story.run.find(&story.plan, key).unwrap();
            let offer = Offer { worker: "w1".into(), lease: Span::from_secs(30), ..Default::default() };
            story.give(Input::Claim { step, offer });
            let failure = Failure::new(code, "says the worker");
            let result = TaskResult::Failed { failure, retryable: false, retry_after: None, took: Span(1) };
            let fence = story.leases[&step];
            assert_eq!(story.give(Input::Finished { step, fence, result, digest: 1 }), Answer::Applied);
            assert_eq!(story.run.status(), RunStatus::Failed, "{key} {code}");
            let is_failed = |(_, step): (u32, &crate::run::Step)| step.status() == StepStatus::Failed;
            assert!(story.run.steps().all(is_failed), "{code}: {}", story.statuses());
            assert_eq!(story.run.step(step).failure.as_ref().unwrap().code, code, "the step keeps its code");
        }
    }
}

#[test]
fn m22_a_denial_inside_a_loop_cancels_the_run() {
    let groups = &[("", "l@each=trigger.body.list"), ("l", "g@group"), ("g", "a@approval=ok?")];
    let mut story = Story::nested(groups, json!({ "list": [1, 2] }));
    story.give(decide(None, Decision::Denied, "ada"));
    assert_eq!(story.run.status(), RunStatus::Cancelled, "{}", story.statuses());
    assert_eq!(story.run.state.cancel_reason, APPROVAL_DENIED);
}

#[test]
fn m22_answers_to_a_step_can_be_repeated_after_its_iteration_has_settled() {
    let started = |kind: &str| {
        let story = Story::nested(&[("", "l@each=trigger.body.list"), ("l", kind)], json!({ "list": [1, 2] }));
        let step = story.run.find(&story.plan, "l[0]/a").unwrap();
        (story, step)
    };
    let callback = |step: u32, body: &'static str| Input::Callback {
        step,
        body: Payload::sniff(body.to_owned()),
        digest: Bytes::from(body),
    };
    let (mut story, step) = started("a@wait");
    assert_eq!(story.give(callback(step, "1")), Answer::Applied);
    assert!(story.run.has_left(step));
    assert_eq!(story.give(callback(step, "1")), Answer::Repeated);
    assert_eq!(story.give(callback(step, "2")), Answer::Conflict);
    story.cancel();
    assert_eq!(story.give(callback(step, "1")), Answer::Repeated);
    assert_eq!(story.give(callback(step, "2")), Answer::Gone);

    let (mut story, step) = started("a@approval=ok?");
    assert_eq!(story.give(decide(Some(step), Decision::Approved, "ada")), Answer::Applied);
    assert!(story.run.has_left(step));
    assert_eq!(story.give(decide(Some(step), Decision::Approved, "ada")), Answer::Repeated);
    assert_eq!(story.give(decide(Some(step), Decision::Denied, "ada")), Answer::Conflict);

    let (mut story, step) = started("a@pause");
    let resume = || Input::Continue { step: Some(step), actor: "ada".into() };
    assert_eq!(story.give(resume()), Answer::Applied);
    assert!(story.run.has_left(step));
    assert_eq!(story.give(resume()), Answer::Repeated);

    let (mut story, step) = started("a@sleep=5s");
    story.after("5s");
    assert!(story.run.has_left(step));
    assert_eq!(story.give(callback(step, "1")), Answer::Gone, "it was no such step");
    assert_eq!(story.give(decide(Some(step), Decision::Approved, "ada")), Answer::Gone);
}

#[test]
fn m22_deadlines_take_the_default_or_deny() {
    let with = |default: Option<Decision>| {
        let change = |layout: &mut Layout| {
            if let Some(Body::Approval { approval }) = &mut layout.nodes[0].body {
                approval.default = default;
            }
        };
        let mut story = Story::changed(&[("", "a@approval=ok?")], json!({}), change);
        story.after("60s");
        story
    };
    let story = with(Some(Decision::Approved));
    assert_eq!((story.run.status(), &story.body("a")["actor"]), (RunStatus::Completed, &Value::Null));
    for (default, code) in [(Some(Decision::Denied), APPROVAL_DENIED), (None, APPROVAL_TIMEOUT)] {
        let story = with(default);
        assert_eq!(story.statuses(), "a=failed run=cancelled");
        assert_eq!(story.run.step(0).failure.as_ref().unwrap().code, code);
        assert_eq!(story.run.state.cancel_reason, code);
    }
}

#[test]
fn m22_only_approvers_decide_and_not_the_initiator_where_that_is_excluded() {
    let change = |layout: &mut Layout| {
        if let Some(Body::Approval { approval }) = &mut layout.nodes[0].body {
            approval.approvers = vec!["ada".into(), "eve".into()];
            approval.exclude_initiator = true;
        }
    };
    let mut layout = plan_of("a@approval=ok?").layout().clone();
    change(&mut layout);
    let origin = Origin { actor: "eve".into(), body: Payload::json("{}"), ..Default::default() };
    let mut story = Story::start(Plan::new(layout).unwrap(), origin, Admission::Open, Vec::new());
    assert_eq!(story.give(decide(None, Decision::Approved, "bob")), Answer::Forbidden);
    assert_eq!(story.give(decide(None, Decision::Approved, "eve")), Answer::Forbidden);
    assert_eq!(story.give(decide(None, Decision::Approved, "ada")), Answer::Applied);
}

#[test]
fn a_pause_step_ends_when_it_is_resumed_or_times_out() {
    let resume = |step| Input::Continue { step, actor: "ada".into() };
    let mut story = Story::of("a@pause; z: a");
    assert_eq!(story.waits_for(), [WaitKind::Pause]);
    assert_eq!(story.give(resume(None)), Answer::Applied);
    assert_eq!(story.give(resume(Some(0))), Answer::Repeated);
    assert_eq!(story.give(resume(None)), Answer::Unknown);
    story.answers("z=200");
    assert_eq!(story.statuses(), "a=success z=success run=completed");

    let mut story = Story::of("a@pause; b@pause");
    assert_eq!(story.give(resume(None)), Answer::Ambiguous);
    assert_eq!(story.give(resume(Some(0))), Answer::Applied);
    story.after("60s");
    assert_eq!(story.statuses(), "a=success b=timeout run=failed");
    assert_eq!(story.give(resume(Some(1))), Answer::Ended(RunStatus::Failed), "it was too late");
}

#[test]
fn waits_end_with_their_run() {
    let mut story = Story::of("a@signal=go; b@approval=ok?; c@pause");
    story.give(Input::Cancel { actor: "ada".into(), reason: String::new(), compensate: false });
    assert_eq!(story.statuses(), "a=cancelled b=cancelled c=cancelled run=cancelled");
    assert_eq!(story.give(decide(Some(1), Decision::Approved, "ada")), Answer::Gone);
    let resume = Input::Continue { step: Some(2), actor: "ada".into() };
    assert_eq!(story.give(resume), Answer::Ended(RunStatus::Cancelled), "it was not resumed before");
}
