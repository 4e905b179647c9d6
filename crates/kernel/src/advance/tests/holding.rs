//! Paused and queued runs, draining, retries on demand, notifications and concurrency keys.

use super::*;

#[test]
fn p19_a_draining_process_records_results_and_starts_nothing() {
    let mut story = Story::of("a; b: a; nap@sleep; c@once: nap");
    story.is_draining = true;
    story.answers("a=200");
    assert_eq!(story.statuses(), "a=success b=pending nap=sleeping c=pending run=running");
    story.after("60s");
    assert_eq!(story.statuses(), "a=success b=pending nap=success c=pending run=running");
    assert_eq!(story.sent.len(), 1, "nothing but `a` was ever sent");
    assert!(Run::load(&story.plan, None, &story.journal).unwrap().has_undecided(), "the next process finds them");
    story.is_draining = false;
    story.epoch = 2;
    story.give(Input::Wake);
    assert_eq!(story.statuses(), "a=success b=running nap=success c=running run=running");
    let attempts: Vec<u32> = story.sent.iter().map(|(_, attempt, _)| *attempt).collect();
    assert_eq!(attempts, [1, 1, 1], "nothing was charged");
    assert_eq!(story.answers("b=200 c=done").run.status(), RunStatus::Completed);
}

#[test]
fn a_paused_run_starts_nothing_and_continues_when_resumed() {
    let pause = || Input::Pause { actor: "ada".into(), note: "look first".into() };
    let resume = || Input::Resume { actor: "ada".into() };
    let mut story = Story::of("a; z@sleep=1m; b: a; c: z");
    assert_eq!(story.give(pause()), Answer::Applied);
    assert_eq!(story.give(pause()), Answer::Repeated);
    assert_eq!(story.statuses(), "a=running z=sleeping b=pending c=pending run=running", "what runs may finish");
    story.answers("a=503");
    assert_eq!(story.statuses(), "a=retrying z=sleeping b=pending c=pending run=waiting");
    assert_eq!(story.run.waiting_for(&story.plan)[0].kind, crate::run::WaitKind::Pause);
    assert_eq!(story.give(Input::RetryNow { step: None, actor: String::new() }), Answer::Unknown);
    story.after("2m");
    assert_eq!(story.statuses(), "a=retrying z=success b=pending c=pending run=waiting", "time passes, nothing starts");
    assert_eq!(story.run.next_due(), Some(story.run.state.origin.expires_at), "and nothing is due");
    assert_eq!(story.give(resume()), Answer::Applied);
    assert_eq!(story.statuses(), "a=running z=success b=pending c=running run=running");
    assert_eq!(story.give(resume()), Answer::Repeated);
    story.answers("a=200 b=200 c=200");
    assert_eq!(story.give(pause()), Answer::Ended(RunStatus::Completed));
    let pauses = ["wait.opened", "wait.closed"];
    assert_eq!(story.events().iter().filter(|e| pauses.contains(&e.as_str())).count(), 2);
}

#[test]
fn a_paused_run_waits_for_no_payload() {
    let mut story = Story::with("a@http={{trigger.body.id}}", json!({ "id": 5, "pad": "x".repeat(INLINE_MAX) }));
    let (step, fence) = story.executing["a"];
    story.give(Input::Lost { step, fence });
    assert_eq!((story.statuses().as_str(), story.missing.as_slice()), ("a=retrying run=running", &[1][..]));
    story.give(Input::Pause { actor: "ada".into(), note: String::new() });
    assert_eq!((story.statuses().as_str(), story.missing.as_slice()), ("a=retrying run=waiting", &[][..]));
    story.give(Input::Resume { actor: "ada".into() });
    assert_eq!((story.statuses().as_str(), story.missing.as_slice()), ("a=retrying run=running", &[1][..]));
}

#[test]
fn a_paused_run_can_be_cancelled_and_can_expire() {
    let mut story = Story::of("a; b: a");
    story.give(Input::Pause { actor: "ada".into(), note: String::new() });
    story.answers("a=200");
    assert_eq!(story.cancel(), Answer::Applied);
    assert_eq!(story.statuses(), "a=success b=cancelled run=cancelled");
    assert_eq!(story.run.state.paused, None);
    let mut story = Story::of("a; b: a");
    story.give(Input::Pause { actor: "ada".into(), note: String::new() });
    story.now = story.run.state.origin.expires_at;
    story.give(Input::Wake);
    assert_eq!(story.run.status(), RunStatus::Timeout);
}

#[test]
fn a_queued_run_waits_to_be_admitted_and_a_refused_one_ends_at_once() {
    let mut story = Story::admitted("a; b@wait", Admission::Queue(Queue::Limit));
    assert_eq!(story.statuses(), "a=pending b=pending run=pending");
    assert_eq!(story.run.next_due(), Some(story.run.state.origin.expires_at));
    assert_eq!(story.callback("b", "7"), Answer::Applied, "a callback is kept, as for any step that has not begun");
    assert_eq!(story.give(Input::Admit), Answer::Applied);
    assert_eq!(story.give(Input::Admit), Answer::Repeated);
    assert_eq!(story.answers("a=200").statuses(), "a=success b=received run=completed");
    assert_eq!(story.events()[..4], ["run.created", "run.waiting", "wait.closed b", "run.resumed"].map(str::to_owned));
    let mut story = Story::admitted("a", Admission::Queue(Queue::WorkflowPaused));
    assert_eq!(story.cancel(), Answer::Applied);
    assert_eq!(story.give(Input::Admit), Answer::Ended(RunStatus::Cancelled));
    let story = Story::admitted("a", Admission::Refuse);
    assert_eq!(story.statuses(), "a=cancelled run=cancelled");
    assert_eq!(story.run.state.cancel_reason, "concurrency_limit");
    assert!(story.sent.is_empty());
}

#[test]
fn a_retry_can_be_started_now() {
    let mut story = Story::of("a; b");
    story.answers("a=503 b=503");
    let retry = |step| Input::RetryNow { step, actor: "ada".into() };
    assert_eq!(story.give(retry(Some(0))), Answer::Applied);
    assert_eq!(story.statuses(), "a=running b=retrying run=running");
    assert_eq!(story.give(retry(Some(0))), Answer::Unknown, "it is under way");
    assert_eq!(story.give(retry(None)), Answer::Applied);
    assert_eq!(story.answers("a=200 b=200").statuses(), "a=success b=success run=completed");
    assert_eq!(story.run.step(0).attempt, 2);
    assert_eq!(story.give(retry(None)), Answer::Ended(RunStatus::Completed));
}

#[test]
fn notifications_of_a_run_that_ended() {
    let on = |on, url: &str| Notify { on, url: url.into(), ..Default::default() };
    let notified = |end: &str, caused_by: Option<RunId>| -> Vec<String> {
        let mut story = Story::of("a");
        let mut layout = story.plan.layout().clone();
        layout.notify = vec![on(Occasion::Ended, "http://all"), on(Occasion::Failed, "http://failed")];
        story.plan = Plan::new(layout).unwrap();
        story.run.state.origin.caused_by = caused_by;
        story.run.state.origin.callback_url = "http://caller".into();
        assert!(notifications(&story.plan, &story.run).is_empty(), "none before the run has ended");
        let input = story.result("a", response(end.parse().unwrap(), json!(1)));
        let context = Context {
            run: RunId([9; 16]),
            now: START,
            epoch: 1,
            is_draining: false,
            wait_url: &|_| String::new(),
            payloads: &Payloads::new(),
            offer: &|_| None,
            hold: &|_| None,
        };
        advance(&story.plan, &mut story.run, vec![input], &context);
        notifications(&story.plan, &story.run).into_iter().map(|n| n.url).collect()
    };
    assert_eq!(notified("200", None), ["http://all", "http://caller"]);
    assert_eq!(notified("400", None), ["http://all", "http://failed", "http://caller"]);
    assert!(notified("400", Some(RunId([1; 16]))).is_empty(), "a run that a notification started sends none");
}

#[test]
fn a_concurrency_key_is_filled_in_from_the_trigger() {
    let story = Story::of("a");
    let mut layout = story.plan.layout().clone();
    let part = |text: &str, keys: &[&str]| template::Part {
        text: text.into(),
        path: (!keys.is_empty()).then(|| path::Ref {
            root: path::Root::TriggerBody,
            keys: keys.iter().map(|k| k.to_string()).collect(),
            text: format!("trigger.body.{}", keys.join(".")),
            ..Default::default()
        }),
        ..Default::default()
    };
    let key = vec![part("customer-", &[]), part("", &["id"])];
    layout.concurrency =
        Some(Concurrency { key, limit: 2, on_conflict: crate::event::OnConflict::Skip, ..Default::default() });
    let plan = Plan::new(layout).unwrap();
    let origin = |body: Value| Origin { body: Payload::json(body.to_string()), ..Default::default() };
    assert_eq!(concurrency_group(&story.plan, &origin(json!({}))), Ok(None));
    assert_eq!(concurrency_group(&plan, &origin(json!({ "id": 7 }))).unwrap().unwrap().key, "customer-7");
    assert_eq!(concurrency_group(&plan, &origin(json!({}))).unwrap_err(), "Failed to resolve {{trigger.body.id}}");
}
