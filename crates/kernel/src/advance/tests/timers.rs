//! Sleeps, callbacks and their deadlines, the expiry of a run, and cancel.

use super::*;

#[test]
fn r31_a_sleep_ends_at_its_time_and_not_before() {
    let mut story = Story::of("nap@sleep=13d; b: nap");
    assert_eq!(story.statuses(), "nap=sleeping b=pending run=waiting");
    assert_eq!(story.run.next_due(), Some(START.after(Span::from_days(13))));
    story.now = START.after(Span::from_days(13));
    story.now.0 -= 1;
    story.give(Input::Wake);
    assert_eq!(story.statuses(), "nap=sleeping b=pending run=waiting");
    story.now.0 += 1;
    story.give(Input::Wake);
    assert_eq!(story.statuses(), "nap=success b=running run=running");
    assert_eq!(Story::of("nap@sleep=0s; b: nap").statuses(), "nap=success b=running run=running");
}

#[test]
fn r33_decision_7_callbacks() {
    let mut story = Story::of("a; w@wait: a; b: w if tasks.w.body.status == 'paid'");
    story.answers("a=200");
    assert_eq!(story.statuses(), "a=success w=waiting b=pending run=waiting");
    assert_eq!(story.callback("w", r#"{"status":"paid"}"#), Answer::Applied);
    assert_eq!(story.statuses(), "a=success w=received b=running run=running");
    assert_eq!(story.callback("w", r#"{"status":"paid"}"#), Answer::Repeated);
    assert_eq!(story.callback("w", r#"{"status":"open"}"#), Answer::Conflict);
    story.answers("b=200");
    assert_eq!(story.callback("w", r#"{"status":"paid"}"#), Answer::Repeated, "also after the run ended");
    assert_eq!(story.callback("w", r#"{"status":"open"}"#), Answer::Gone);
}

#[test]
fn p13_an_early_callback_is_kept() {
    let mut story = Story::of("a; w@wait: a");
    assert_eq!(story.callback("w", "hello"), Answer::Applied);
    assert_eq!(story.callback("w", "hello"), Answer::Repeated);
    assert_eq!(story.callback("w", "other"), Answer::Conflict);
    assert_eq!(story.answers("a=200").statuses(), "a=success w=received run=completed");
    assert_eq!(
        story.run.step(1).body().unwrap().value(&Payloads::new()),
        Ok(json!("hello")),
        "not JSON: kept as a string"
    );
}

#[test]
fn r34_decision_7_a_wait_that_timed_out_refuses_callbacks() {
    let mut story = Story::of("w@wait; h: w if tasks.w.status == 'timeout'");
    story.after("60s");
    assert_eq!(story.statuses(), "w=timeout h=running run=running");
    assert_eq!(story.callback("w", "{}"), Answer::Gone);
    let mut skipped = Story::of("a; w@wait: a if false");
    skipped.answers("a=200");
    assert_eq!(skipped.callback("w", "{}"), Answer::Gone);
    let mut exact = Story::of("w@wait");
    exact.now = START.after(Span::from_secs(60));
    assert_eq!(exact.callback("w", "{}"), Answer::Gone, "at the deadline the deadline wins");
}

#[test]
fn r30_a_run_expires() {
    let mut story = Story::of("a; nap@sleep=40d; w@wait=forever; z: a");
    story.after("29d").after("1d");
    assert_eq!(story.statuses(), "a=cancelled nap=cancelled w=cancelled z=cancelled run=timeout");
    assert_eq!(story.aborted, ["a"]);
    assert_eq!(story.run.next_due(), None);
}

#[test]
fn r16_p10_cancel_ends_everything_and_late_results_change_nothing() {
    let mut story = Story::of("a; nap@sleep; b: a");
    let late = story.result("a", response(200, json!(1)));
    assert_eq!(story.cancel(), Answer::Applied);
    assert_eq!(story.statuses(), "a=cancelled nap=cancelled b=cancelled run=cancelled");
    assert_eq!(story.aborted, ["a"]);
    assert_eq!(story.cancel(), Answer::Repeated);
    assert_eq!(story.give(late.clone()), Answer::Ended(RunStatus::Cancelled));
    assert_eq!(story.give(late), Answer::Ended(RunStatus::Cancelled));
    assert_eq!(story.statuses(), "a=cancelled nap=cancelled b=cancelled run=cancelled");
    assert_eq!(story.events().iter().filter(|e| *e == "late_result a").count(), 1);
    let mut done = Story::of("a");
    assert_eq!(done.answers("a=200").cancel(), Answer::Ended(RunStatus::Completed));
}
