//! Attempts that wait because their host is down.

use super::*;

#[test]
fn decision_6_an_attempt_that_is_held_back_has_not_started() {
    let mut story = Story::of("s@sleep=10s; a: s; b: a");
    for _ in 0..3 {
        story.held_until = Some(story.now.after(Span::from_secs(20)));
        story.after("10s");
        assert_eq!(story.statuses(), "s=success a=retrying b=pending run=waiting");
        assert_eq!((story.run.step(1).attempt, story.run.step(1).charged), (0, 0));
        assert_eq!(story.run.step(1).started_at, None);
    }
    assert!(story.sent.is_empty());
    story.held_until = None;
    story.after("15s");
    assert_eq!(story.sent.iter().map(|(key, attempt, _)| (key.as_str(), *attempt)).collect::<Vec<_>>(), [("a", 1)]);
    assert_eq!(story.answers("a=200").answers("b=200").statuses(), "s=success a=success b=success run=completed");
}

#[test]
fn decision_6_neither_an_operator_nor_a_policy_of_the_author_waits_for_a_host() {
    let mut story = Story::of("s@sleep=10s; a: s; b: s").with_layout(|layout| {
        if let Some(Body::Http { request }) = &mut layout.nodes[2].body {
            request.ignores_host_backoff = true;
        }
    });
    story.held_until = Some(story.now.after(Span::from_days(1)));
    story.after("10s");
    assert_eq!(story.statuses(), "s=success a=retrying b=running run=running");
    assert_eq!(story.give(Input::RetryNow { step: Some(1), actor: "ada".into() }), Answer::Applied);
    assert_eq!(story.statuses(), "s=success a=running b=running run=running");
    story.answers("a=503").after("10m");
    assert_eq!(story.statuses(), "s=success a=retrying b=running run=running", "only that attempt went through");
    assert_eq!(story.run.step(1).attempt, 1);
}
