//! M32: an open run goes on with another version.

use super::undo::undoable;
use super::*;

impl Story {
    fn order(plan: &Plan, version: u32) -> MoveOrder {
        MoveOrder {
            plan: std::sync::Arc::new(Plan::new(plan.layout().clone()).unwrap()),
            version,
            hash: Bytes::from(vec![version as u8; 32]),
            lowering: 1,
            actor: "ada".into(),
            reason: "a new step".into(),
        }
    }

    pub(super) fn move_to(&mut self, plan: &Plan) -> Answer {
        let version = self.run.version().0 + 1;
        let answer = self.give(Input::Move(Box::new(Story::order(plan, version))));
        self.give(Input::Wake);
        answer
    }

    fn misfit(&self, plan: &Plan) -> Option<Misfit> {
        misfit(&self.plan, &self.run, plan)
    }
}

#[test]
fn m32_a_run_goes_on_with_a_version_in_which_its_steps_have_other_places() {
    let mut story = Story::of("a; w@wait: a; z: w");
    story.answers("a=200");
    // The new version has another order, a new step before the wait, one after it, and one beside everything.
    let plan = plan_of("z: w, y; x; w@wait: a; a; y: w; v: x");
    assert_eq!(story.move_to(&plan), Answer::Applied);
    assert_eq!(
        story.statuses(),
        "a=success w=waiting z=pending x=running y=pending v=pending run=running",
        "steps keep their numbers"
    );
    assert_eq!(story.run.version().0, 1);
    assert_eq!(story.callback("w", "{}"), Answer::Applied);
    story.answers("x=200 v=200 y=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
    assert_eq!(story.body("a"), json!({ "n": 7 }), "results of the earlier version can be read");
    let events = story.events();
    let moved = events.iter().position(|event| event == "run.moved").unwrap();
    assert_eq!(events[moved + 1..moved + 4], ["step.opened x", "step.opened y", "step.opened v"]);
    assert_eq!(story.move_to(&plan), Answer::Ended(RunStatus::Completed));
}

#[test]
fn m32_a_run_moves_while_nothing_is_at_work_and_only_to_a_version_that_has_its_steps() {
    let mut story = Story::of("a; w@wait: a; z: w");
    assert_eq!(story.misfit(&plan_of("a; w@wait: a; z: w")), Some(Misfit::Busy(vec![0])));
    assert_eq!(story.move_to(&plan_of("a; w@wait: a; z: w")), Answer::Conflict);
    story.answers("a=503");
    assert_eq!(story.misfit(&plan_of("a; w@wait: a; z: w")), None, "between two attempts");
    story.after("10s").answers("a=200");
    assert_eq!(story.misfit(&plan_of("a; w@wait: a")), Some(Misfit::Missing(vec![2])));
    assert_eq!(story.misfit(&plan_of("a; w@sleep: a; z: w")), Some(Misfit::Changed(vec![1])));
    assert_eq!(story.misfit(&plan_of("a; w@wait: a; z@sleep: w")), None, "a step that has not begun may change");
    let inside = nested_plan(&[("", "a; g@group: a; z: g"), ("g", "w@wait")]);
    assert_eq!(story.misfit(&inside), Some(Misfit::Missing(vec![1])), "inside of another group");
    assert_eq!(story.run.version().0, 0);
}

#[test]
fn m32_groups_at_work_get_the_new_steps_and_loops_go_on_with_the_new_body() {
    let groups = [("", "g@group; l@each=trigger.body.list; z: g, l"), ("g", "w@wait; b: w"), ("l", "u@wait")];
    let mut story = Story::nested(&groups, json!({ "list": [1, 2] }));
    assert_eq!(
        story.statuses(),
        "g=running l=running z=pending g/w=waiting g/b=pending l[0]=running l[0]/u=waiting run=waiting"
    );
    let groups =
        [("", "z: g, l; l@each=trigger.body.list; g@group"), ("l", "u@wait; t: u"), ("g", "b: w, c; c; w@wait")];
    let plan = nested_plan(&groups);
    assert_eq!(story.move_to(&plan), Answer::Applied);
    story.answers("g/c=200");
    let step = story.run.find(&story.plan, "l[0]/u").unwrap();
    let call = |step: u32, body: &'static str| Input::Callback {
        step,
        body: Payload::sniff(body),
        digest: Bytes::from_static(body.as_bytes()),
    };
    assert_eq!(story.give(call(step, "1")), Answer::Applied);
    story.answers("l[0]/t=200");
    let step = story.run.find(&story.plan, "l[1]/u").unwrap();
    assert_eq!(story.give(call(step, "2")), Answer::Applied);
    story.answers("l[1]/t=200");
    let step = story.run.find(&story.plan, "g/w").unwrap();
    assert_eq!(story.give(call(step, "3")), Answer::Applied);
    story.answers("g/b=200 z=200");
    assert_eq!(story.run.status(), RunStatus::Completed, "{}", story.statuses());
}

#[test]
fn m32_waiting_tasks_are_offered_as_the_new_version_says() {
    let mut story = Story::of("t@task; z: t");
    let types =
        |story: &Story| story.run.ready_tasks(&story.plan).map(|task| (task.step, task.name)).collect::<Vec<_>>();
    let before = types(&story);
    let mut layout = plan_of("y; t@task; z: t, y").layout().clone();
    for node in &mut layout.nodes {
        if let Some(Body::Task { task }) = &mut node.body {
            task.name = "mail.v2".into();
        }
    }
    assert_eq!(story.move_to(&Plan::new(layout).unwrap()), Answer::Applied);
    assert_eq!((before[0].0, types(&story)), (0, vec![(0, "mail.v2".to_owned())]));
    let offer = Offer { worker: "w".into(), lease: Span::from_secs(30), ..Default::default() };
    assert_eq!(story.give(Input::Claim { step: 0, offer }), Answer::Applied);
    let again = Story::order(&story.plan, 2);
    assert_eq!(story.give(Input::Move(Box::new(again))), Answer::Conflict, "a worker has it");
}

#[test]
fn m32_a_step_is_undone_as_the_version_says_that_the_run_has_then() {
    let begin = |names: &str| {
        let origin = Origin { body: Payload::json("{}"), ..Default::default() };
        let mut story =
            Story::start(undoable(&[("", "a; b: a; w@wait: b; z: w")], names), origin, Admission::Open, Vec::new());
        story.answers("a=200 b=200");
        story
    };
    // `a` can no longer be undone; `b` was done before it could be.
    let mut story = begin("a!");
    assert_eq!(story.move_to(&undoable(&[("", "b: a; a; w@wait: b; z: w")], "b!")), Answer::Applied);
    story.callback("w", "{}");
    story.answers("z=404");
    assert_eq!(story.run.status(), RunStatus::Failed, "{}", story.statuses());
    let mut story = begin("a! b!");
    assert_eq!(story.move_to(&undoable(&[("", "b: a; a; w@wait: b; z: w")], "b! a!")), Answer::Applied);
    story.callback("w", "{}");
    story.answers("z=404 b/compensate=200 a/compensate=200");
    assert_eq!(story.run.status(), RunStatus::Failed, "{}", story.statuses());
}

#[test]
fn m32_a_moved_run_fails_is_retried_and_forked_like_any_other() {
    let mut story = Story::of("a; w@wait: a; z: w");
    story.answers("a=200");
    story.move_to(&plan_of("z: w, y; w@wait: a; a; y: w; x: z"));
    story.callback("w", "{}");
    story.answers("y=404");
    assert_eq!(story.run.status(), RunStatus::Failed);
    let keys = |steps: &[u32]| -> Vec<String> {
        steps.iter().map(|step| story.run.key(&story.plan, *step).into_owned()).collect()
    };
    let repair = repair(&story.plan, &story.run, &[]);
    assert_eq!(keys(&repair.steps), ["z", "y", "x"]);
    let fork = fork(&story.plan, &story.run, story.run.find(&story.plan, "y").unwrap(), &BTreeMap::new());
    assert_eq!(keys(&fork.would_run), ["z", "y", "x"]);
    let copied: Vec<&str> = fork.copied.iter().map(|(step, _)| story.plan.node_at(*step).key.as_str()).collect();
    assert_eq!(copied, ["w", "a"], "a new run numbers its steps as the version does");
    let (actor, reason) = (String::new(), String::new());
    let reopen = Input::Reopen { from: None, allow_irreversible: false, actor, reason, admission: Admission::Open };
    assert_eq!(story.give(reopen), Answer::Applied);
    story.answers("y=200 z=200 x=200");
    assert_eq!(story.run.status(), RunStatus::Completed);
}
