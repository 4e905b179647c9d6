//! Large bodies: rows of their own that are fetched on use, and what reading them costs.

use super::*;
use crate::payload::PARSES;

/// The templates and conditions of an advance may name one body in hundreds of places.
#[test]
fn m4_a_body_is_parsed_once_per_advance_however_many_placeholders_read_it() {
    let holes = |path: &str| format!("{{{{{path}}}}}").repeat(150);
    let text = format!(
        "a@set={}; b@set={}: a if trigger.body.n == 1 && trigger.body.n < 2; c; d@set={}: c",
        holes("trigger.body.n"),
        holes("trigger.body.n"),
        holes("tasks.c.body.n"),
    );
    let before = PARSES.get();
    let mut story = Story::with(&text, json!({ "n": 1, "pad": "x".repeat(200_000) }));
    assert_eq!(PARSES.get() - before, 1, "the trigger's body, for two steps and a condition");
    let before = PARSES.get();
    story.answers("c=200");
    assert_eq!(PARSES.get() - before, 1, "the body of `c`, which has just arrived");
    let body = |step: u32| story.run.step(step).body().unwrap().value(&story.payloads).unwrap();
    assert_eq!((body(1), body(3)), (json!("1".repeat(150)), json!("7".repeat(150))));
}

#[test]
fn a_concurrency_key_parses_the_body_once() {
    let plan = plan_of("a");
    let mut layout = plan.layout().clone();
    let path = path::Ref { root: path::Root::TriggerBody, keys: vec!["n".into()], ..Default::default() };
    let hole = template::Part { path: Some(path), ..Default::default() };
    layout.concurrency = Some(Concurrency { key: vec![hole; 50], limit: 1, ..Default::default() });
    let origin = Origin { body: Payload::json(r#"{"n":1}"#), ..Default::default() };
    let before = PARSES.get();
    let group = concurrency_group(&Plan::new(layout).unwrap(), &origin).unwrap().unwrap();
    assert_eq!((group.key, PARSES.get() - before), ("1".repeat(50), 1));
}

#[test]
fn bodies_that_are_large_together_do_not_all_stay_parsed() {
    let body = json!({ "n": 1, "pad": "x".repeat(3_000_000) });
    let mut story = Story::with("a; b@set={{trigger.body.n}}{{tasks.a.body.n}}{{tasks.a.body.n}}: a", body.clone());
    story.resident = story.payloads.clone();
    let before = PARSES.get();
    let input = story.result("a", response(200, body));
    story.give(input);
    assert_eq!(PARSES.get() - before, 2, "each once, one after the other");
    assert_eq!(story.run.step(1).body().unwrap().value(&Payloads::new()), Ok(json!("111")));
}

#[test]
fn m4_a_step_that_reads_many_large_bodies_fetches_them_together() {
    let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
    let holes: String = names.iter().map(|name| format!("{{{{tasks.{name}.body.n}}}}")).collect();
    let text = format!("{}; nap@sleep: {}; b@http={holes}: nap", names.join("; "), names.join(", "));
    let mut story = Story::of(&text);
    for name in &names {
        let input = story.result(name, response(200, json!({ "n": 7, "pad": "x".repeat(INLINE_MAX) })));
        story.give(input);
    }
    story.after("60s");
    assert_eq!(story.missing, (1..=20).collect::<Vec<u32>>());
    story.resident = story.payloads.clone();
    let before = PARSES.get();
    story.give(Input::Wake);
    assert_eq!(PARSES.get() - before, 20);
    assert!(story.sent.iter().any(|(key, ..)| key == "b"));
}

#[test]
fn a_large_payload_is_a_row_and_is_fetched_when_a_path_reads_it() {
    let large = "x".repeat(INLINE_MAX + 1);
    let mut story = Story::with("a; nap@sleep: a; b@http={{tasks.a.body.big}}: nap", json!({ "large": large }));
    assert_eq!(story.payloads.len(), 1, "the trigger body");
    let input = story.result("a", response(200, json!({ "big": large })));
    story.give(input);
    assert!(story.run.snapshot().len() < INLINE_MAX, "it left the state");
    story.after("60s");
    assert_eq!(story.statuses(), "a=success nap=success b=pending run=running");
    assert_eq!(story.missing, [2]);
    assert!(Run::load(&story.plan, None, &story.journal).unwrap().has_undecided(), "a restart finds it");
    story.resident = story.payloads.clone();
    story.give(Input::Wake);
    assert_eq!(story.statuses(), "a=success nap=success b=running run=running");
}

#[test]
fn a_retry_that_waits_for_a_payload_does_not_delay_other_timers() {
    let mut story =
        Story::with("a@http={{trigger.body.id}}; w@wait", json!({ "id": 5, "pad": "x".repeat(INLINE_MAX) }));
    let (step, fence) = story.executing["a"];
    story.give(Input::Lost { step, fence });
    assert_eq!(story.statuses(), "a=retrying w=waiting run=running");
    assert_eq!(story.after("60s").statuses(), "a=retrying w=timeout run=running");
    assert_eq!(story.missing, [1]);
    assert_eq!(story.after("30d").statuses(), "a=cancelled w=timeout run=timeout");
}

#[test]
fn m4_thousands_of_retries_that_wait_for_a_payload_are_each_looked_at_once() {
    let steps: Vec<String> = (0..2_000).map(|n| format!("s{n}@http={{{{trigger.body.id}}}}")).collect();
    let mut story = Story::with(&steps.join("; "), json!({ "id": 5, "pad": "x".repeat(INLINE_MAX) }));
    let lost = story.executing.values().map(|(step, fence)| Input::Lost { step: *step, fence: *fence }).collect();
    story.give_all(lost);
    story.now = story.now.after(Span::from_secs(3_600));
    story.give(Input::Wake);
    assert_eq!((story.missing.as_slice(), story.sent.len()), (&[1][..], 2_000), "the body is not in memory");
    story.resident = story.payloads.clone();
    story.give(Input::Wake);
    assert_eq!(story.sent.len(), 4_000);
}
