//! A run as it was right after any of its events, also in the middle of a record.

use super::*;
use crate::run::LoadError;

/// The numbers of the events, and what the run was right after each.
fn moments(story: &Story) -> Vec<String> {
    let last = story.run.state.seq;
    let at = |seq: u64| Run::load_whole_at(&story.plans(), &story.journal, seq).expect("the records fold");
    let events = story.events();
    let moment = |seq: u64| {
        let run = at(seq);
        assert_eq!(run.state.seq, seq);
        let open = run.steps().filter(|(_, step)| step.status() != StepStatus::Pending);
        let open = open.map(|(step, state)| format!("{}={} ", run.key(&story.plan, step), state.status()));
        format!("{} | {}run={}", events[seq as usize - 1], open.collect::<String>(), run.status())
    };
    assert_eq!(at(last + 1).state, at(last).state, "there is nothing after the last event");
    (1..=last).map(moment).collect()
}

#[test]
fn every_event_is_a_moment() {
    let mut story = Story::of("a; nap@sleep=1h: a; b: nap if tasks.a.status == 'failed'");
    story.answers("a=503").after("10s").answers("a=200").after("1h");
    assert!(story.journal.len() < story.events().len(), "some records have several events");
    assert_eq!(
        moments(&story),
        [
            "run.created | run=running",
            "step.started a | a=running run=running",
            "step.retrying a | a=retrying run=running",
            "run.waiting | a=retrying run=waiting",
            "step.started a | a=running run=waiting",
            "run.resumed | a=running run=running",
            "step.succeeded a | a=success run=running",
            "timer.set nap | a=success nap=sleeping run=running",
            "run.waiting | a=success nap=sleeping run=waiting",
            "step.succeeded nap | a=success nap=success run=waiting",
            "step.skipped b | a=success nap=success b=skipped run=waiting",
            "run.completed | a=success nap=success b=skipped run=completed",
        ]
    );
}

#[test]
fn steps_of_settled_iterations_are_there_when_they_are_wanted() {
    let mut story = Story::nested(&[("", "l@each=trigger.body.list"), ("l", "a")], json!({ "list": [1, 2] }));
    story.answers("l[0]/a=200 l[1]/a=200");
    let settled =
        story.events().iter().position(|event| event == "step.succeeded l[0]/a").expect("an event") as u64 + 2;
    let at =
        |load: fn(&Plans<'_>, &[Bytes], u64) -> Result<Run, LoadError>| load(&story.plans(), &story.journal, settled);
    let (lean, whole) = (at(Run::load_at).unwrap(), at(Run::load_whole_at).unwrap());
    assert_eq!(lean.find(&story.plan, "l[0]/a"), None, "as the run itself had it");
    let step = whole.find(&story.plan, "l[0]/a").expect("it is kept");
    assert_eq!(whole.step(step).status(), StepStatus::Success);
    assert_eq!(
        moments(&story).last().unwrap(),
        "run.completed | l=success l[0]=success l[0]/a=success l[1]=success l[1]/a=success run=completed"
    );
}
