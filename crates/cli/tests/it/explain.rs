//! Explain: a reason, evidence and working actions for every state that a run can be in.

use crate::harness::{Act, Server, Upstream, eventually, onward, status};
use serde_json::{Value, json};

fn explain(server: &Server, run: &str, step: &str) -> Value {
    let query = if step.is_empty() { String::new() } else { format!("?step={step}") };
    server.get(&format!("/api/v1/runs/{run}/explain{query}")).data(200)
}

/// The reason and the step of each cause.
fn causes(explanation: &Value) -> Vec<(&str, &str)> {
    let causes = explanation["causes"].as_array().expect("a list").iter();
    causes.map(|cause| (cause["reason"].as_str().expect("a reason"), cause["step"].as_str().unwrap_or("-"))).collect()
}

/// How to get a run into a state, and what explain says about it there.
struct State {
    name: &'static str,
    steps: &'static str,
    /// Pauses the run once it runs.
    is_paused: bool,
    is_cancelled: bool,
    reason: &'static str,
    /// A part of the summary.
    says: &'static str,
    /// A JSON pointer into the details, and the value there.
    evidence: (&'static str, Value),
    actions: &'static [&'static str],
}

fn states() -> Vec<State> {
    let state = |name, steps, reason, says, evidence, actions| State {
        name,
        steps,
        is_paused: false,
        is_cancelled: false,
        reason,
        says,
        evidence,
        actions,
    };
    let open: &[&str] = &["wait", "cancel"];
    let over: &[&str] = &["replay"];
    let failed: &[&str] = &["retry", "replay"];
    vec![
        state("running", "a: { url: $UP/held }", "step_running", "`a` is on attempt 1", ("/attempt", json!(1)), open),
        state("sleeping", "a: { sleep: 1h }", "sleeping_until", "`a` sleeps until", ("/kind", json!("sleep")), open),
        state(
            "waiting",
            "a: { wait_for_webhook: { timeout: 1h } }",
            "waiting_for_webhook",
            "`a` waits for a call to its URL until",
            ("/status", json!("waiting")),
            &["call_webhook", "wait", "cancel"],
        ),
        state(
            "retrying",
            "a: { url: $UP/down, retry: { max_attempts: 3, backoff: { type: fixed, min: 1h } } }",
            "waiting_for_retry",
            "`a` failed: the server answered 503",
            ("/last_error/code", json!("http_status")),
            &["wait", "retry_now", "cancel"],
        ),
        State {
            is_paused: true,
            ..state(
                "paused",
                "a: { sleep: 1h }",
                "paused_for_manual_action",
                "the run was paused by ada",
                ("/target", json!("run")),
                &["resume", "wait", "cancel"],
            )
        },
        state(
            "completed",
            "a: { noop: {} }",
            "completed",
            "its only step has settled",
            ("/replay/allowed", json!(true)),
            over,
        ),
        state(
            "failed",
            "a: { url: $UP/bad }\nb: { noop: {}, needs: [a] }",
            "step_failed",
            "`a` failed: the server answered 400",
            ("/status_code", json!(400)),
            failed,
        ),
        state(
            "exhausted",
            "a: { url: $UP/down, retry: { max_attempts: 2, backoff: { type: fixed, min: 1ms } } }",
            "retry_exhausted",
            "`a` failed 2 times, last: the server answered 503",
            ("/max_attempts", json!(2)),
            failed,
        ),
        state(
            "template",
            "a: { url: $UP/fine, body: '{{trigger.body.nothing}}' }",
            "template_error",
            "Failed to resolve {{trigger.body.nothing}}",
            ("/error/code", json!("template_error")),
            failed,
        ),
        State {
            is_cancelled: true,
            ..state("cancelled", "a: { sleep: 1h }", "cancelled", "ada cancelled the run", ("/by", json!("ada")), over)
        },
    ]
}

fn reach(server: &Server, upstream: &Upstream, state: &State) -> String {
    let workflow = server.workflow(&upstream.fill(state.steps));
    let run = server.trigger(&workflow, &json!({}));
    let act = |verb: &str| server.post(&format!("/api/v1/runs/{run}/{verb}"), &json!({ "actor": "ada" })).data(200);
    if state.is_paused {
        act("pause");
    }
    if state.is_cancelled {
        act("cancel");
    }
    let what = format!("`{}` is explained by {}", state.name, state.reason);
    eventually(&what, || Some(()).filter(|()| explain(server, &run, "")["reason"] == state.reason));
    run
}

fn world() -> (Server, Upstream) {
    let upstream = Upstream::start();
    upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    upstream.on("/down", [status(503)]);
    upstream.on("/bad", [status(400)]);
    (Server::start(), upstream)
}

#[test]
fn every_state_has_a_reason_and_evidence() {
    let (server, upstream) = world();
    for state in states() {
        let run = reach(&server, &upstream, &state);
        let explanation = explain(&server, &run, "");
        let name = state.name;
        assert_eq!(explanation["run_id"], json!(run));
        assert_eq!(explanation["status"], server.run(&run)["status"], "{name}");
        assert!(explanation["summary"].as_str().is_some_and(|s| s.contains(state.says)), "{name}: {explanation}");
        assert_eq!(explanation["details"].pointer(state.evidence.0), Some(&state.evidence.1), "{name}: {explanation}");
        let actions: Vec<&str> = explanation["next_actions"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|a| a["action"].as_str())
            .collect();
        assert_eq!(actions, state.actions, "{name}");
        assert_eq!(
            (&explanation["chain"][0]["what"], &explanation["chain"][0]["name"]),
            (&json!("run"), &json!(run)),
            "{name}"
        );
    }
    upstream.release("/held");
}

#[test]
fn every_action_works_when_it_is_sent_as_printed() {
    let (server, upstream) = world();
    for state in states() {
        for action in state.actions {
            let run = reach(&server, &upstream, &state);
            let explanation = explain(&server, &run, "");
            let found = explanation["next_actions"].as_array().expect("a list").iter().find(|a| a["action"] == *action);
            let found = found.unwrap_or_else(|| panic!("no {action}: {explanation}"));
            let (method, path) = (found["method"].as_str().expect("a method"), found["path"].as_str().expect("a path"));
            let path = path.find("/wh/").map_or(path, |at| &path[at..]);
            let body = found.get("body").map(Value::to_string).unwrap_or_default();
            let headers: &[(&str, &str)] = if body.is_empty() { &[] } else { &[("Content-Type", "application/json")] };
            let answer = server.send(method, path, headers, body.as_bytes());
            assert!(matches!(answer.status, 200 | 201), "{}: {action}: {}", state.name, answer.text());
        }
    }
    upstream.release("/held");
}

#[test]
fn r22_a_skip_names_the_false_condition_and_the_values_it_read() {
    let (server, upstream) = world();
    let workflow = server.workflow(&upstream.fill(
        r#"
charge: { url: $UP/bad }
receipt: { noop: {}, needs: [charge], if: "tasks.charge.status_code == 200 && trigger.body.mail == true" }
archive: { noop: {}, needs: [receipt] }
other: { noop: {} }"#,
    ));
    let run = server.trigger(&workflow, &json!({ "mail": false }));
    server.finished(&run);
    let explanation = explain(&server, &run, "receipt");
    assert_eq!(explanation["reason"], "skipped_by_condition");
    assert_eq!(explanation["details"]["condition"], "tasks.charge.status_code == 200 && trigger.body.mail == true");
    assert_eq!(
        explanation["details"]["saw"],
        json!({ "tasks.charge.status_code": 400 }),
        "only the paths that the condition read"
    );
    let says = "`receipt` was skipped: `tasks.charge.status_code == 200 && trigger.body.mail == true` is false, \
                because tasks.charge.status_code was 400";
    assert_eq!(explanation["summary"], says);
    let explanation = explain(&server, &run, "archive");
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["needs"]),
        (&json!("skipped_by_needs"), &json!({ "receipt": "skipped" }))
    );
    assert_eq!(explain(&server, &run, "other")["reason"], "completed");
    let unknown = server.get(&format!("/api/v1/runs/{run}/explain?step=recipt"));
    assert_eq!(unknown.refusal(422), "invalid_parameter");
}

#[test]
fn a_step_that_waits_for_other_steps_names_them() {
    let (server, upstream) = world();
    let workflow = server.workflow(
        &upstream.fill("a: { url: $UP/held }\nb: { sleep: 1h }\nc: { noop: {} }\njoin: { noop: {}, needs: [a, b, c] }"),
    );
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "c", "success");
    let explanation = explain(&server, &run, "join");
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["waiting_on"]),
        (&json!("waiting_for_dependencies"), &json!(["a", "b"]))
    );
    assert_eq!(explanation["details"]["statuses"], json!({ "a": "running", "b": "sleeping", "c": "success" }));
    let explanation = explain(&server, &run, "");
    assert_eq!(
        causes(&explanation),
        [("sleeping_until", "b"), ("step_running", "a")],
        "what has a deadline comes first"
    );
    assert_eq!(explanation["details"]["running"], json!(["a"]));
    assert_eq!(explanation["details"]["waiting_for"][0]["kind"], "sleep");
    upstream.release("/held");
}

#[test]
fn a_failed_run_leads_to_the_step_that_failed() {
    let (server, upstream) = world();
    let workflow = server.workflow(&upstream.fill("pay: { url: $UP/bad }\nship: { noop: {}, needs: [pay] }"));
    let run = server.trigger(&workflow, &json!({}));
    server.finished(&run);
    let explanation = explain(&server, &run, "");
    let chain: Vec<(&str, &str)> = explanation["chain"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|link| (link["name"].as_str().expect("a name"), link["reason"].as_str().expect("a reason")))
        .collect();
    assert_eq!(chain, [(run.as_str(), "step_failed"), ("ship", "skipped_by_needs"), ("pay", "step_failed")]);
}

#[test]
fn r30_an_expired_run_names_its_unfinished_steps() {
    let server = Server::with_virtual_clock();
    let yaml = "name: slow\nmax_duration: 1h\ntasks:\n  nap: { sleep: 1d }\n  after: { noop: {}, needs: [nap] }\n";
    let workflow = server.define(yaml)["id"].as_str().expect("an id").to_owned();
    let run = server.trigger(&workflow, &json!({}));
    server.advance("2h");
    assert_eq!(server.run(&run)["status"], "timeout");
    let explanation = explain(&server, &run, "");
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["unfinished_steps"]),
        (&json!("expired"), &json!(["nap", "after"]))
    );
}

#[test]
fn an_explanation_lists_at_most_100_waits() {
    let server = Server::start();
    let workflow = server.workflow(
        "each: { loop: { items: trigger.body, concurrency: 200, tasks: { w: { wait_for_signal: { name: go } } } } }",
    );
    let run = server.trigger(&workflow, &json!((0..150).collect::<Vec<u32>>()));
    let explained = eventually("the loop waits", || {
        let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
        (explained["reason"] == "waiting_for_signal").then_some(explained)
    });
    assert_eq!(explained["details"]["waiting_for"].as_array().map(Vec::len), Some(100), "{explained:#}");
    server.cancel(&run);
}

#[test]
fn every_cause_is_listed_and_the_most_urgent_is_first() {
    let upstream = Upstream::start();
    upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    upstream.on("/bad", [status(400)]);
    let server = Server::with_virtual_clock();
    let workflow = server.workflow(&upstream.fill(
        "held: { url: $UP/held }
nap: { sleep: 2d }
signal: { wait_for_signal: { name: go, timeout: 1d } }
gate: { approval: { prompt: 'Go on?' } }
work: { task: unclaimed.v1 }
paused: { task: rests.v1 }
bad: { url: $UP/bad }
each: { loop: { items: [1, 2], concurrency: 2, tasks: { wait: { wait_for_signal: { name: next, timeout: 3d } } } } }
after: { noop: {}, needs: [nap, held] }",
    ));
    server.put("/api/v1/types/rests.v1", &json!({})).data(200);
    server.post("/api/v1/types/rests.v1/pause", &json!({})).data(200);
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "bad", "failed");
    server.when(&run, "gate", "waiting");
    let explanation = eventually("every step has begun", || {
        Some(explain(&server, &run, "")).filter(|explanation| causes(explanation).len() == 9)
    });
    let expected = [
        ("step_failed", "bad"),
        ("queued_by_limit", "paused"),
        ("waiting_for_worker", "work"),
        ("paused_for_approval", "gate"),
        ("waiting_for_signal", "signal"),
        ("sleeping_until", "nap"),
        ("waiting_for_signal", "each[0]/wait"),
        ("waiting_for_signal", "each[1]/wait"),
        ("step_running", "held"),
    ];
    assert_eq!(causes(&explanation), expected);
    let inside = explain(&server, &run, "each");
    assert_eq!(causes(&inside)[1..], [expected[6], expected[7]], "a step with what is inside of it");
    for (reason, step) in expected {
        assert_eq!(explain(&server, &run, &step.replace('[', "%5B").replace(']', "%5D"))["reason"], reason, "{step}");
    }
    // A paused run says so first. What the pause holds back is no cause of its own.
    server.post(&format!("/api/v1/runs/{run}/pause"), &json!({ "actor": "ada" })).data(200);
    let held = explain(&server, &run, "");
    let reasons: Vec<&str> = causes(&held).iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons[..2], ["paused_for_manual_action", "step_failed"]);
    assert!(!reasons.contains(&"waiting_for_worker") && !reasons.contains(&"queued_by_limit"), "{reasons:?}");
    upstream.release("/held");
}

#[test]
fn a_long_list_of_causes_is_cut() {
    let server = Server::start();
    let workflow = server.workflow(
        "each: { loop: { items: trigger.body, concurrency: 100, tasks: { a: { wait_for_signal: { name: go } }, b: { wait_for_signal: { name: go } } } } }",
    );
    let items: Vec<u32> = (0..75).collect();
    let run = server.trigger(&workflow, &json!(items));
    let explanation = eventually("150 steps wait", || {
        Some(explain(&server, &run, "")).filter(|explanation| explanation["more_causes"] == 50)
    });
    assert_eq!(causes(&explanation).len(), 100);
}

#[test]
fn an_edited_workflow_is_mentioned_and_a_failed_run_can_be_replayed_on_the_new_version() {
    let (server, upstream) = world();
    let edit = |path: &str| {
        let yaml = upstream.fill(&format!("name: edited\ntasks: {{ a: {{ url: $UP{path} }} }}"));
        let headers: &[(&str, &str)] = &[("Content-Type", "application/yaml")];
        server.send("PUT", "/api/v1/workflows/edited", headers, yaml.as_bytes()).data(200);
    };
    server.define(&upstream.fill("name: edited\ntasks: { a: { url: $UP/bad } }"));
    let run = server.trigger("edited", &json!({}));
    server.finished(&run);
    assert_eq!(explain(&server, &run, "")["details"].get("definition"), None);
    edit("/fine");
    let explanation = explain(&server, &run, "");
    assert_eq!(explanation["details"]["definition"], json!({ "version": 1, "current_version": 2 }));
    let says = "the run of `edited` (version 1; the current one is 2) is failed";
    assert_eq!(explanation["chain"][0]["summary"], says);
    let latest = &explanation["next_actions"][2];
    assert_eq!(latest["action"], "replay_latest", "{explanation:#}");
    let replayed = server.post(latest["path"].as_str().expect("a path"), &latest["body"]).data(201);
    assert_eq!(server.finished(replayed["run_id"].as_str().expect("an id"))["status"], "completed");
    let open = server.trigger("edited", &json!({}));
    edit("/other");
    server.finished(&open);
    assert_eq!(explain(&server, &open, "")["details"]["definition"], json!({ "version": 2, "current_version": 3 }));
}

#[test]
fn a_replay_that_would_be_refused_is_not_offered() {
    let server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let run = server.trigger(&workflow, &json!({}));
    server.finished(&run);
    server.post(&format!("/api/v1/workflows/{workflow}/disable"), &json!({})).data(200);
    server.submit("off.v1", json!(1));
    let task = server.claim_one("w", "off.v1");
    task.complete(json!(1)).data(200);
    server.put("/api/v1/types/off.v1", &json!({ "enabled": false })).data(200);
    let (task, name) = (task.id().replace("task_", "run_"), server.run(&run)["workflow"].clone());
    for (run, because, enable) in [
        (&run, format!("the workflow `{}` is disabled", name.as_str().expect("a name")), "enable"),
        (&task, "the type `off.v1` is disabled".to_owned(), "enable_type"),
    ] {
        let explanation = explain(&server, run, "");
        assert_eq!(explanation["details"]["replay"], json!({ "allowed": false, "because": because }));
        let actions = explanation["next_actions"].as_array().expect("a list");
        assert_eq!((actions.len(), &actions[0]["action"]), (1, &json!(enable)), "{explanation:#}");
        let (method, path) =
            (actions[0]["method"].as_str().expect("a method"), actions[0]["path"].as_str().expect("a path"));
        let body = actions[0].get("body").map(Value::to_string).unwrap_or_default();
        let answer = server.send(method, path, &[("Content-Type", "application/json")], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let explanation = explain(&server, run, "");
        assert_eq!(explanation["details"]["replay"]["allowed"], true);
        assert_eq!(explanation["next_actions"][0]["action"], "replay");
    }
}

#[test]
fn a_chain_leads_through_children_to_the_root_cause_and_counts_as_urgent_as_that() {
    let server = Server::start();
    server.define("name: bottom\ntasks: { charge: { task: billing.charge.v1 } }");
    server.define("name: middle\ntasks: { call: { subworkflow: bottom } }");
    server.define("name: top\ntasks: { nap: { sleep: 1h }, pay: { subworkflow: middle } }");
    let run = server.trigger("top", &json!({}));
    let explanation = eventually("the last child waits", || {
        let explanation = explain(&server, &run, "");
        let root = explanation["chain"].as_array().expect("a list").last().cloned()?;
        (root["name"] == "billing.charge.v1").then_some(explanation)
    });
    assert_eq!(causes(&explanation), [("waiting_for_child", "pay"), ("sleeping_until", "nap")]);
    let chain = explanation["chain"].as_array().expect("a list").iter();
    let chain: Vec<(&str, &str)> =
        chain.map(|link| (link["what"].as_str().expect("a word"), link["name"].as_str().expect("a name"))).collect();
    let middle = explanation["details"]["run_id"].as_str().expect("a child").to_owned();
    let bottom = server.run(&middle)["tasks"]["call"]["child"]["run_id"].as_str().expect("a child").to_owned();
    let expected = [
        ("run", run.as_str()),
        ("step", "pay"),
        ("run", &middle),
        ("step", "call"),
        ("run", &bottom),
        ("step", "charge"),
        ("type", "billing.charge.v1"),
    ];
    assert_eq!(chain, expected);
    let says = "`charge` waits for a worker: no worker claims `billing.charge.v1`, and none ever did";
    let summary = explanation["summary"].as_str().expect("words");
    assert_eq!(summary, format!("`pay` waits for the end of {middle}, a run of `middle`: {says}"));
    let last = explanation["next_actions"].as_array().expect("a list").last().cloned().expect("an action");
    assert_eq!(last["action"], "explain_child");
    let child = server.get(last["path"].as_str().expect("a path")).data(200);
    assert_eq!(child["run_id"], json!(middle));
}

#[test]
fn the_open_runs_of_a_workflow_are_summed_up_by_cause() {
    let server = Server::start();
    server.define("name: orders\ntasks: { pick: { if: trigger.body.n < 3, task: unclaimed.v1 }, each: { if: trigger.body.n > 4, loop: { items: [1, 2], concurrency: 2, tasks: { gate: { approval: { prompt: 'Go?' } } } } } }");
    let summary = || server.get("/api/v1/explain?workflow=orders").json();
    assert_eq!(summary(), json!({ "data": [], "runs": 0, "truncated": false }));
    let runs: Vec<String> = (0..8).map(|n| server.trigger("orders", &json!({ "n": n }))).collect();
    runs[3..5].iter().for_each(|run| drop(server.finished(run)));
    server.cancel(&runs[7]).data(200);
    server.post("/api/v1/workflows/orders/pause", &json!({})).data(200);
    let later = server.trigger("orders", &json!({ "n": 1 }));
    let expected = json!({
        "data": [
            { "reason": "waiting_for_worker", "count": 3, "step": "pick", "example_run": runs[0] },
            { "reason": "paused_for_approval", "count": 2, "step": "each/gate", "example_run": runs[5] },
            { "reason": "paused_for_manual_action", "count": 1, "example_run": later },
        ],
        "runs": 6, "truncated": false,
    });
    eventually("the runs wait", || (summary() == expected).then_some(()));
    assert_eq!(server.get("/api/v1/explain").refusal(422), "invalid_parameter");
    assert_eq!(server.get("/api/v1/explain?workflow=none").refusal(404), "not_found");
    let flags = ["runs", "explain", "--workflow", "orders", "--url", &format!("http://{}", server.address)];
    let out = onward(&flags);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(0), "{text}");
    for line in ["RUNS  REASON", "3     waiting for worker        pick", "1     paused for manual action  -"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_summary_reads_a_limited_number_of_runs() {
    let server = Server::start();
    server.define("name: many\ntasks: { a: { wait_for_signal: { name: go } } }");
    let items: Vec<Value> = (0..1_000).map(|n| json!({ "body": n })).collect();
    server.post("/api/v1/workflows/many/trigger-batch", &json!({ "items": items })).data(201);
    let summary = || server.get("/api/v1/explain?workflow=many").json();
    let all = eventually("all wait", || Some(summary()).filter(|all| all["data"][0]["count"] == 1_000));
    assert_eq!((&all["runs"], &all["truncated"]), (&json!(1_000), &json!(false)));
    server.trigger("many", &json!({}));
    let all = summary();
    assert_eq!((&all["runs"], &all["truncated"]), (&json!(1_000), &json!(true)));
}
