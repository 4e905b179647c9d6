//! A run as it was at each of its events, and what changed between two of them.

use crate::cli::Shell;
use crate::harness::{Server, Upstream, eventually, json, status};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Tries again, sleeps, waits for a callback and for a worker, skips, loops, and fails.
const STEPS: &str = r#"
flaky: { url: $UP/flaky, method: POST, body: { url: "{{wait.door.url}}" },
         retry: { max_attempts: 3, backoff: { type: fixed, min: 10s } } }
nap: { needs: [flaky], sleep: 1d }
door: { needs: [nap], wait_for_webhook: { timeout: 5d } }
never: { needs: [nap], noop: {}, if: "tasks.flaky.status_code != 200" }
work: { needs: [door], task: past.v1 }
each: { needs: [work], loop: { items: "trigger.body.list", tasks: { say: { set: { n: "{{item}}" } } } } }
bad: { needs: [each], url: $UP/bad }
after: { needs: [bad], noop: {} }"#;

/// What the events up to one of them say of a run, without the engine.
#[derive(Clone, Default)]
struct Model {
    status: String,
    steps: BTreeMap<String, (String, u64)>,
    /// What each step waits for: the kind, and until when.
    waits: BTreeMap<String, (&'static str, Value)>,
    failed: Vec<String>,
    finished_at: Value,
}

impl Model {
    fn apply(&mut self, event: &Value) {
        let data = &event["data"];
        let ended = match event["type"].as_str().expect("a type") {
            "run.created" | "run.resumed" => return self.status = "running".into(),
            "run.waiting" => return self.status = "waiting".into(),
            "run.completed" => "completed",
            "run.failed" => "failed",
            "run.cancelled" => "cancelled",
            kind => return self.step(kind, event["step"].as_str().expect("a step"), event, data),
        };
        self.status = ended.into();
        self.finished_at = event["at"].clone();
        self.waits.clear();
    }

    fn step(&mut self, kind: &str, step: &str, event: &Value, data: &Value) {
        let (status, wait) = match kind {
            "step.scheduled" => ("pending", Some(("worker", Value::Null))),
            "step.started" | "step.leased" => ("running", None),
            "step.retrying" => ("retrying", Some(("retry", data["next_attempt_at"].clone()))),
            "timer.set" => ("sleeping", Some(("sleep", data["wake_at"].clone()))),
            "wait.opened" => ("waiting", Some(("webhook", data["deadline"].clone()))),
            "step.succeeded" => ("success", None),
            "step.received" => ("received", None),
            "step.failed" => ("failed", None),
            "step.skipped" => ("skipped", None),
            "step.opened" if data["index"].is_number() => ("running", None),
            "step.opened" => ("pending", None),
            other => panic!("{other} is not one of this test's events"),
        };
        let attempt = match kind {
            "step.started" | "step.leased" | "step.succeeded" => event["attempt"].as_u64(),
            _ => None,
        };
        let (now, at) = self.steps.entry(step.into()).or_default();
        *now = status.into();
        *at = attempt.unwrap_or(*at);
        match wait {
            Some(wait) => self.waits.insert(step.into(), wait),
            None => self.waits.remove(step),
        };
        if status == "failed" {
            self.failed.push(step.into());
        }
    }

    fn of_step(&self, step: &str) -> (&str, u64) {
        self.steps.get(step).map_or(("pending", 0), |(status, attempt)| (status.as_str(), *attempt))
    }

    /// Its status and attempt in a comparison. An inner step is not there before it is opened.
    fn moment(&self, step: &str) -> Value {
        if step.contains('[') && !self.steps.contains_key(step) { Value::Null } else { json!(self.of_step(step)) }
    }
}

/// The steps of a run in a view of it or in a list, as the model has them.
fn state(step: &Value) -> (&str, u64) {
    (step["status"].as_str().expect("a status"), step["attempt"].as_u64().expect("an attempt"))
}

struct Story {
    server: Server,
    run: String,
    /// The view of the run while nothing happened, by the number of its last event.
    seen: Vec<(usize, Value)>,
}

impl Story {
    /// Plays the run to its end.
    fn play() -> Story {
        let upstream = Upstream::start();
        upstream.on("/flaky", [status(500), json(200, json!({ "ok": true }))]);
        upstream.on("/bad", [json(400, json!({ "why": "bad" }))]);
        let server = Server::with_virtual_clock();
        let workflow = server.workflow(&upstream.fill(STEPS));
        let run = server.trigger(&workflow, &json!({ "list": ["x", "y"], "text": "x".repeat(5_000) }));
        let mut story = Story { server, run, seen: Vec::new() };
        story.look("flaky", "retrying");
        story.server.advance("10s");
        story.look("nap", "sleeping");
        story.server.advance("1d");
        story.look("door", "waiting");
        let url = upstream.effects_on("/flaky")[0].json()["url"].as_str().expect("a URL").to_owned();
        assert_eq!(story.server.call_back(&url, br#"{"open": true}"#).status, 200);
        story.look("work", "pending");
        let claimed = story.server.claim_one("w", "past.v1");
        story.look("work", "running");
        assert_eq!(claimed.complete(json!({ "done": 1 })).status, 200);
        assert_eq!(story.server.finished(&story.run)["status"], "failed");
        story.look("bad", "failed");
        story
    }

    /// Remembers the run, once this step has this status.
    fn look(&mut self, step: &str, status: &str) {
        self.server.when(&self.run, step, status);
        let seen = eventually("nothing happens while it is read", || {
            let before = self.server.events(&self.run).len();
            let view = self.server.run(&self.run);
            (before == self.server.events(&self.run).len()).then_some((before, view))
        });
        self.seen.push(seen);
    }

    fn get(&self, path: &str) -> Value {
        self.server.get(&format!("/api/v1/runs/{}{path}", self.run)).data(200)
    }

    fn at(&self, seq: usize) -> Value {
        self.get(&format!("?at={seq}"))
    }
}

#[test]
fn every_past_event_of_a_run_can_be_shown() {
    let story = Story::play();
    let events = story.server.events(&story.run);
    let mut model = Model::default();
    for (index, event) in events.iter().enumerate() {
        model.apply(event);
        let mut view = story.at(index + 1);
        let context = format!("after {event}\n{view:#}");
        let mut as_of =
            json!({ "seq": event["seq"], "last_seq": events.len(), "at": event["at"], "type": event["type"] });
        if let Some(step) = event.get("step") {
            as_of["step"] = step.clone();
        }
        assert_eq!(view.as_object_mut().unwrap().remove("as_of"), Some(as_of), "{context}");
        assert_eq!(view["status"], model.status.as_str(), "{context}");
        assert_eq!(view["finished_at"], model.finished_at, "{context}");
        assert_eq!(view["failed_steps"], json!(model.failed), "{context}");
        assert_eq!(view["unhandled_steps"], if model.finished_at.is_null() { json!([]) } else { json!(["bad"]) });
        assert_eq!(view["error"]["step"], if model.finished_at.is_null() { json!(null) } else { json!("bad") });
        for (step, shown) in view["tasks"].as_object().expect("steps") {
            assert_eq!(state(shown), model.of_step(step), "{step} {context}");
        }
        let waits = view["waiting_for"].as_array().expect("a list").iter();
        let waits: BTreeMap<String, (&str, Value)> = waits
            .map(|wait| {
                (wait["step"].as_str().unwrap().into(), (wait["kind"].as_str().unwrap(), wait["until"].clone()))
            })
            .collect();
        assert_eq!(waits, model.waits, "{context}");

        // The same of the inner steps, which have left the state since.
        let steps = story.get(&format!("/steps?at={}", index + 1));
        for shown in steps.as_array().expect("a list") {
            assert_eq!(state(shown), model.of_step(shown["step"].as_str().unwrap()), "{context}");
        }
        let opened = model.steps.contains_key("each[0]");
        let inside = story.server.get(&format!("/api/v1/runs/{}/steps?at={}&under=each[0]", story.run, index + 1));
        match opened {
            false => assert_eq!(inside.refusal(422), "invalid_parameter", "{context}"),
            true => inside.data(200).as_array().expect("a list").iter().for_each(|shown| {
                assert_eq!(state(shown), model.of_step("each[0]/say"), "{context}");
            }),
        }
    }
    // An attempt that went on then is shown as it was, not as it ended.
    let retrying = events.iter().position(|event| event["type"] == "step.retrying").expect("a retry") + 1;
    let attempts = |seq: usize| story.get(&format!("/steps?at={seq}"))[0]["attempts"].clone();
    assert_eq!(attempts(retrying - 1)[0]["status"], "running");
    assert_eq!(attempts(retrying)[0]["status"], "failed");
    assert_eq!(
        (attempts(retrying).as_array().unwrap().len(), attempts(events.len()).as_array().unwrap().len()),
        (1, 2)
    );

    for (seq, seen) in &story.seen {
        let mut view = story.at(*seq);
        assert!(view.as_object_mut().unwrap().remove("as_of").is_some());
        assert_eq!(&view, seen, "after event {seq}, the run is shown as it was shown then");
    }
    assert_eq!(story.seen.last().unwrap().0, events.len(), "also the last event");
    assert_eq!(story.get(&format!("/steps?at={}", events.len())), story.get("/steps"));
}

#[test]
fn a_moment_that_is_not_one_is_refused() {
    let server = Server::start();
    let run = server.play("a: { noop: {} }", &json!(null))["id"].as_str().unwrap().to_owned();
    let last = server.events(&run).len();
    for (query, code, message) in [
        ("?at=0".into(), "invalid_parameter", "`0` is not a valid value for `at`".to_owned()),
        ("?at=-1".into(), "invalid_parameter", "`-1` is not a valid value for `at`".into()),
        ("?at=x".into(), "invalid_parameter", "`x` is not a valid value for `at`".into()),
        ("?at=".into(), "invalid_parameter", "`` is not a valid value for `at`".into()),
        (format!("?at={last}&wait=1s"), "invalid_parameter", "`at` and `wait` cannot be combined".into()),
        (format!("?at={}", last + 1), "unknown_event", format!("the run has no event {}", last + 1)),
        (format!("/steps?at={}", last + 1), "unknown_event", format!("the run has no event {}", last + 1)),
        ("/steps?at=0".into(), "invalid_parameter", "`0` is not a valid value for `at`".into()),
        ("/diff".into(), "invalid_parameter", "`` is not a valid value for `from`".into()),
        ("/diff?from=0".into(), "invalid_parameter", "`0` is not a valid value for `from`".into()),
        ("/diff?from=2&to=1".into(), "invalid_parameter", "`from` (2) is later than `to` (1)".into()),
        (format!("/diff?from={}", last + 1), "unknown_event", format!("the run has no event {}", last + 1)),
        (format!("/diff?from=1&to={}", last + 7), "unknown_event", format!("the run has no event {}", last + 7)),
    ] {
        let answer = server.get(&format!("/api/v1/runs/{run}{query}"));
        assert_eq!(answer.refusal(422), code, "{query}");
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().unwrap().starts_with(&message), "{query}: {error}");
        if code == "unknown_event" {
            assert_eq!(error["hint"], format!("its last event is {last}"));
        }
    }
    let missing = "run_01jz8k3w9mz6xq4v7n5t2c0b1d";
    for query in ["?at=1", "/steps?at=1", "/diff?from=1"] {
        assert_eq!(server.get(&format!("/api/v1/runs/{missing}{query}")).refusal(404), "not_found");
    }
}

#[test]
fn a_comparison_says_what_changed_between_two_events() {
    let story = Story::play();
    let events = story.server.events(&story.run);
    let last = events.len();
    // Between any two events, exactly those steps are listed that the events say have changed.
    let mut models = vec![Model::default()];
    for event in &events {
        let mut model = models[models.len() - 1].clone();
        model.apply(event);
        models.push(model);
    }
    for (from, to) in (1..last).flat_map(|from| [(from, from), (from, from + 1), (from, last)]) {
        let diff = story.get(&format!("/diff?from={from}&to={to}"));
        let (before, after) = (&models[from], &models[to]);
        assert_eq!((&diff["from"]["status"], &diff["to"]["status"]), (&json!(before.status), &json!(after.status)));
        assert_eq!((&diff["from"]["seq"], &diff["to"]["seq"]), (&json!(from), &json!(to)));
        assert_eq!((&diff["last_seq"], &diff["event_count"]), (&json!(last), &json!(to - from)));
        let listed: Vec<Value> = diff["events"].as_array().unwrap().iter().map(|event| event["seq"].clone()).collect();
        assert_eq!(listed, (from + 1..=to).map(Value::from).collect::<Vec<_>>());
        let change = |step: &String| (step.clone(), json!([before.moment(step), after.moment(step)]));
        let changed: BTreeMap<String, Value> =
            after.steps.keys().map(change).filter(|(_, change)| change[0] != change[1]).collect();
        let steps = diff["steps"].as_array().unwrap();
        let moment = |moment: &Value| if moment.is_null() { Value::Null } else { json!(state(moment)) };
        let change = |change: &Value| {
            let moments = json!([moment(&change["from"]), moment(&change["to"])]);
            (change["step"].as_str().unwrap().to_owned(), moments)
        };
        let shown: BTreeMap<String, Value> = steps.iter().map(change).collect();
        assert_eq!(shown, changed, "{from} to {to}");
        assert_eq!(diff["changed_steps"], steps.len());
        assert_eq!(diff["to"]["error"]["step"].is_string(), to == last && from < last, "{diff}");
    }
    let diff = story.get("/diff?from=1");
    let order: Vec<&str> =
        diff["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    let inner = ["each[0]", "each[0]/say", "each[1]", "each[1]/say"];
    assert_eq!(order, [&["flaky", "nap", "door", "never", "work", "each", "bad", "after"], &inner[..]].concat());

    let done = story.server.define("name: told\noutput: { n: 7 }\ntasks: { a: { noop: {} } }");
    let run = story.server.trigger(done["id"].as_str().unwrap(), &json!(null));
    story.server.finished(&run);
    let diff = story.server.get(&format!("/api/v1/runs/{run}/diff?from=1")).data(200);
    assert_eq!((diff["from"].get("output"), &diff["to"]["output"]), (None, &json!({ "n": 7 })));
}

#[test]
fn a_comparison_of_a_large_run_lists_a_part_and_counts_all() {
    let server = Server::start();
    let workflow = server.workflow("each: { loop: { items: trigger.body, tasks: { say: { noop: {} } } } }");
    let run = server.trigger(&workflow, &(0..600).collect());
    server.finished(&run);
    let diff = server.get(&format!("/api/v1/runs/{run}/diff?from=1")).data(200);
    let len = |list: &str| diff[list].as_array().expect("a list").len();
    assert_eq!((len("steps"), &diff["changed_steps"]), (1_000, &json!(1 + 600 * 2)));
    assert_eq!((len("events"), &diff["event_count"]), (100, &json!(server.events(&run).len() - 1)));
    let shown = Shell::new(&server).run(&["runs", "diff", &run, "--from", "1"]).ok();
    assert!(shown.ends_with("and 201 more steps\n"), "{shown}");
}

#[test]
fn the_command_line_shows_a_run_as_it_was() {
    let story = Story::play();
    let (run, last) = (&story.run, story.server.events(&story.run).len());
    let shell = Shell::new(&story.server);
    let nap = story.seen[1].0.to_string();
    let shown = shell.run(&["runs", "show", run, "--at", &nap]).ok();
    assert!(shown.contains(&format!("event {nap} (run.waiting) at")), "{shown}");
    assert!(shown.contains(&format!("of {last} events")) && shown.contains("sleep of nap until"), "{shown}");
    assert!(!shown.contains("took") && !shown.contains("error"), "that came later: {shown}");
    let mut json = shell.run(&["runs", "show", run, "--at", &nap, "--json"]).json();
    json.as_object_mut().expect("an object").remove("as_of");
    assert_eq!(json, story.seen[1].1);

    let changes = shell.run(&["runs", "diff", run, "--from", &nap, "--to", &story.seen[2].0.to_string()]).ok();
    for words in
        ["from    event", "the run is waiting", "nap    sleeping  success  0", "door   pending   waiting  0      until"]
    {
        assert!(changes.contains(words), "{words}: {changes}");
    }
    assert!(!changes.contains("flaky"), "{changes}");
    let json = shell.run(&["runs", "diff", run, "--from", &nap, "--json"]).json();
    assert_eq!(json, story.get(&format!("/diff?from={nap}")));
    shell
        .run(&["runs", "show", run, "--at", "999"])
        .refused(1, &["unknown_event", &format!("its last event is {last}")]);
    shell.run(&["runs", "diff", run]).refused(2, &["--from"]);
}
