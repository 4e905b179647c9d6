//! Concurrency limits, pausing runs and workflows, retrying now, and notifications at the end of a run.

use crate::harness::{Act, Server, Upstream, eventually, json as answer_json, status};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

/// Answers only after the path is released.
fn held() -> Act {
    Act::Held(Box::new(status(200)))
}

/// A workflow with a concurrency limit whose runs call `/work`.
fn limited(server: &Server, upstream: &Upstream, concurrency: &str) -> String {
    let yaml = upstream.fill(&format!(
        "name: limited\nconcurrency: {concurrency}\ntasks:\n  work: {{ url: $UP/work, body: {{ n: '{{{{trigger.body.n}}}}' }} }}\n"
    ));
    server.define(&yaml)["id"].as_str().expect("an id").to_owned()
}

fn statuses(server: &Server, runs: &[String]) -> Vec<String> {
    runs.iter().map(|run| server.run(run)["status"].as_str().expect("a status").to_owned()).collect()
}

fn explain(server: &Server, run: &str) -> Value {
    server.get(&format!("/api/v1/runs/{run}/explain")).data(200)
}

#[test]
fn a_limit_queues_runs_in_order_also_across_kill_9() {
    let upstream = Upstream::start();
    // Two runs are open and call `/work`, and again after the crash.
    upstream.on("/work", [held(), held(), status(200), held(), held(), status(200)]);
    let mut server = Server::start();
    let workflow = limited(&server, &upstream, "{ key: 'c-{{trigger.body.customer}}', limit: 2 }");
    let start = |server: &Server, n: u32| server.trigger(&workflow, &json!({ "customer": 7, "n": n }));
    let runs: Vec<String> = (0..5).map(|n| start(&server, n)).collect();
    assert_eq!(statuses(&server, &runs), ["running", "running", "pending", "pending", "pending"]);
    let other = server.trigger(&workflow, &json!({ "customer": 8, "n": 9 }));
    assert_eq!(server.finished(&other)["status"], "completed", "the limit counts each key on its own");
    let explanation = explain(&server, &runs[4]);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["queued_before"]),
        (&json!("queued_by_limit"), &json!(2))
    );
    assert_eq!(explanation["details"]["held_by"], json!([runs[0], runs[1]]));
    assert_eq!(server.run(&runs[4])["concurrency_key"], "c-7");
    server.crash_and_restart();
    let still = statuses(&server, &runs);
    assert_eq!(still[2..], ["pending", "pending", "pending"], "a crash does not let queued runs begin");
    upstream.release("/work");
    for run in &runs {
        assert_eq!(server.finished(run)["status"], "completed");
    }
    let begun = |run: &String| {
        let events = server.events(run);
        let begun = events.iter().find(|e| e["type"] == "step.started").expect("a start")["at"].clone();
        begun.as_str().expect("a time").to_owned()
    };
    let order: Vec<String> = runs.iter().map(begun).collect();
    assert!(order[2..].is_sorted(), "first come, first served: {order:?}");
}

#[test]
fn a_cancelled_open_run_lets_the_next_begin_and_a_cancelled_queued_run_does_not() {
    let upstream = Upstream::start();
    upstream.on("/work", [held(), status(200)]);
    let server = Server::start();
    let workflow = limited(&server, &upstream, "{}");
    let runs: Vec<String> = (0..3).map(|n| server.trigger(&workflow, &json!({ "n": n }))).collect();
    assert_eq!(statuses(&server, &runs), ["running", "pending", "pending"]);
    assert_eq!(server.cancel(&runs[1]).data(200)["status"], "cancelled");
    assert_eq!(statuses(&server, &runs), ["running", "cancelled", "pending"]);
    assert_eq!(server.cancel(&runs[0]).data(200)["status"], "cancelled");
    assert_eq!(server.finished(&runs[2])["status"], "completed");
    assert_eq!(upstream.effects_on("/work").len(), 2);
}

#[test]
fn a_run_over_the_limit_can_be_skipped() {
    let upstream = Upstream::start();
    upstream.on("/work", [held(), status(200)]);
    let server = Server::start();
    let workflow = limited(&server, &upstream, "{ on_conflict: skip }");
    let first = server.trigger(&workflow, &json!({ "n": 1 }));
    let second = server.post(&format!("/api/v1/workflows/{workflow}/trigger"), &json!({ "n": 2 })).data(201);
    assert_eq!(second["status"], "cancelled", "it is recorded, and the answer says so");
    let explanation = explain(&server, second["run_id"].as_str().expect("an id"));
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["reason"]),
        (&json!("cancelled"), &json!("concurrency_limit"))
    );
    upstream.release("/work");
    assert_eq!(server.finished(&first)["status"], "completed");
    let third = server.trigger(&workflow, &json!({ "n": 3 }));
    assert_eq!(server.finished(&third)["status"], "completed");
    assert_eq!(upstream.effects_on("/work").len(), 2);
}

#[test]
fn a_newer_run_can_replace_the_oldest_but_its_repeated_request_replaces_none() {
    let upstream = Upstream::start();
    upstream.on("/work", [held(), held(), status(200)]);
    let server = Server::start();
    let workflow = limited(&server, &upstream, "{ on_conflict: cancel_running }");
    let path = format!("/api/v1/workflows/{workflow}/trigger");
    let first = server.trigger(&workflow, &json!({ "n": 1 }));
    let ask = || server.post_with(&path, &[("Idempotency-Key", "k")], &json!({ "n": 2 }));
    let second = ask().data(201)["run_id"].as_str().expect("an id").to_owned();
    assert_eq!(server.finished(&first)["status"], "cancelled");
    assert_eq!(explain(&server, &first)["details"]["reason"], "superseded");
    eventually("the newer one runs", || Some(()).filter(|()| server.run(&second)["status"] == "running"));
    assert_eq!(ask().data(200)["run_id"], json!(second), "the same request again");
    assert_eq!(server.run(&second)["status"], "running", "a repeated request does not replace its own run");
    upstream.release("/work");
    assert_eq!(server.finished(&second)["status"], "completed");
}

#[test]
fn a_limit_whose_key_is_missing_refuses_the_run() {
    let upstream = Upstream::start();
    let server = Server::start();
    let workflow = limited(&server, &upstream, "{ key: '{{trigger.body.customer}}' }");
    let refused = server.post(&format!("/api/v1/workflows/{workflow}/trigger"), &json!({ "n": 1 }));
    assert_eq!(refused.refusal(422), "concurrency_key_unresolved");
    assert!(refused.text().contains("Failed to resolve {{trigger.body.customer}}"), "{}", refused.text());
    assert!(server.list("/api/v1/runs").is_empty(), "nothing was created");
}

#[test]
fn a_paused_workflow_accepts_runs_and_starts_them_when_it_is_resumed() {
    let mut server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let path = |verb: &str| format!("/api/v1/workflows/{workflow}/{verb}");
    let paused = server.post(&path("pause"), &json!({ "actor": "ada", "note": "deploying" })).data(200);
    assert_eq!((&paused["paused"]["by"], &paused["paused"]["note"]), (&json!("ada"), &json!("deploying")));
    let runs: Vec<String> = (0..3).map(|_| server.trigger(&workflow, &json!(null))).collect();
    assert_eq!(statuses(&server, &runs), ["pending", "pending", "pending"]);
    server.crash_and_restart();
    assert_eq!(statuses(&server, &runs), ["pending", "pending", "pending"], "also after a crash");
    let explanation = explain(&server, &runs[0]);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["target"]),
        (&json!("paused_for_manual_action"), &json!("workflow"))
    );
    let resume = &explanation["next_actions"][0];
    assert_eq!(resume["action"], "resume");
    server.post(resume["path"].as_str().expect("a path"), &json!(null)).data(200);
    for run in &runs {
        assert_eq!(server.finished(run)["status"], "completed");
    }
    assert!(server.get(&format!("/api/v1/workflows/{workflow}")).data(200).get("paused").is_none());
    server.post(&path("resume"), &json!(null)).data(200);
}

#[test]
fn a_paused_run_starts_nothing_until_it_is_resumed_also_after_kill_9() {
    let upstream = Upstream::start();
    upstream.on("/a", [held(), status(200)]);
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill("a: { url: $UP/a }\nb: { url: $UP/b, needs: [a] }"));
    let run = server.trigger(&workflow, &json!(null));
    upstream.wait_for("/a", 1);
    let act =
        |server: &Server, verb: &str| server.post(&format!("/api/v1/runs/{run}/{verb}"), &json!({ "actor": "ada" }));
    assert_eq!(act(&server, "pause").data(200)["status"], "running", "running steps may finish");
    assert_eq!(explain(&server, &run)["details"]["still_running"], json!(["a"]));
    upstream.release("/a");
    eventually("it waits", || Some(()).filter(|()| server.run(&run)["status"] == "waiting"));
    let view = server.run(&run);
    assert_eq!((&view["waiting_for"], &view["paused"]["by"]), (&json!([{ "kind": "pause" }]), &json!("ada")));
    server.crash_and_restart();
    assert_eq!(server.run(&run)["status"], "waiting");
    assert_eq!(upstream.effects_on("/b").len(), 0);
    let explanation = explain(&server, &run);
    assert_eq!(
        (&explanation["reason"], &explanation["next_actions"][0]["action"]),
        (&json!("paused_for_manual_action"), &json!("resume"))
    );
    act(&server, "resume").data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(act(&server, "pause").refusal(409), "run_ended");
    assert_eq!(
        server.post("/api/v1/runs/run_00000000000000000000000000/pause", &json!(null)).refusal(404),
        "not_found"
    );
    let names: Vec<Value> = server.events(&run).iter().map(|e| e["type"].clone()).collect();
    assert!(names.contains(&json!("wait.opened")) && names.contains(&json!("wait.closed")), "{names:?}");
}

#[test]
fn a_waiting_retry_can_be_made_now() {
    let upstream = Upstream::start();
    upstream.on("/a", [status(503), status(200)]);
    let server = Server::start();
    let workflow = server
        .workflow(&upstream.fill("a: { url: $UP/a, retry: { max_attempts: 3, backoff: { type: fixed, min: 1h } } }"));
    let run = server.trigger(&workflow, &json!(null));
    server.when(&run, "a", "retrying");
    let retry = |body: &Value| server.post(&format!("/api/v1/runs/{run}/retry"), body);
    assert_eq!(retry(&json!({ "step": "nope" })).refusal(422), "invalid_body");
    let explanation = explain(&server, &run);
    let action = explanation["next_actions"].as_array().expect("a list").iter().find(|a| a["action"] == "retry_now");
    retry(&action.expect("the action")["body"]).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(retry(&json!(null)).refusal(409), "run_ended");
    let sleeper = server.trigger(&server.workflow("z: { sleep: 1d }"), &json!(null));
    server.when(&sleeper, "z", "sleeping");
    assert_eq!(server.post(&format!("/api/v1/runs/{sleeper}/retry"), &json!(null)).refusal(409), "nothing_to_retry");
}

#[test]
fn callbacks_and_failure_workflows_are_notified_when_a_run_ends() {
    let upstream = Upstream::start();
    upstream.on("/notified", [status(503), answer_json(200, json!({}))]);
    upstream.on("/broken", [status(400)]);
    let server = Server::with_virtual_clock();
    server.define("name: alarm\ntasks:\n  log: { set: { seen: '{{trigger.body.run_id}}' } }\n");
    let yaml = upstream.fill(
        "name: fragile\ncallback_url: $UP/ended\non_failure: { workflow: alarm }\ntasks:\n  a: { url: '$UP/{{trigger.body.path}}' }\n",
    );
    let workflow = server.define(&yaml)["id"].as_str().expect("an id").to_owned();
    let url = upstream.fill("$UP/notified");
    let path = format!("/api/v1/workflows/{workflow}/trigger?callback_url={url}");
    let good = server.post(&path, &json!({ "path": "fine" })).data(201)["run_id"].clone();
    let bad = server.trigger(&workflow, &json!({ "path": "broken" }));
    server.finished(&bad);
    server.advance("1m");
    let sent = upstream.wait_for("/notified", 2);
    assert_eq!(
        (sent[0].json()["run_id"].clone(), sent[0].attempt(), sent[1].attempt()),
        (good.clone(), 1, 2),
        "retried"
    );
    assert_eq!(sent[1].json()["event"], "run.completed");
    let ended = upstream.wait_for("/ended", 2);
    let mut about: Vec<Value> = ended.iter().map(|e| e.json()["run_id"].clone()).collect();
    about.sort_by_key(Value::to_string);
    let mut expected = vec![good, json!(bad)];
    expected.sort_by_key(Value::to_string);
    assert_eq!(about, expected, "each once");
    let failed = ended.iter().map(|e| e.json()).find(|body| body["status"] == "failed").expect("the failed one");
    assert_eq!((&failed["error"]["step"], &failed["failed_steps"]), (&json!("a"), &json!(["a"])));
    let alarms = eventually("the alarm", || Some(server.list("/api/v1/runs?workflow=alarm")).filter(|l| !l.is_empty()));
    assert_eq!(alarms.len(), 1, "only for the failure");
    let alarm = server.finished(alarms[0]["id"].as_str().expect("an id"));
    assert_eq!(alarm["tasks"]["log"]["body"]["seen"], json!(bad));
    let names: Vec<Value> = server.list("/api/v1/workflows").iter().map(|w| w["name"].clone()).collect();
    assert_eq!(names, [json!("fragile"), json!("alarm")], "the engine's own workflow is not listed");
    assert_eq!(server.list("/api/v1/runs").len(), 3, "nor are its runs");
    assert_eq!(server.list("/api/v1/runs?workflow=onward.notify").len(), 3, "but they can be listed by its name");
    let refused = server.post(&format!("/api/v1/workflows/{workflow}/trigger?callback_url=ftp://x/"), &json!(null));
    assert_eq!(refused.refusal(422), "invalid_parameter");
}

#[test]
fn a_notification_is_signed() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "a signing secret\n").expect("a file");
    let server = Server::with(&["--signing-secret-file", file.to_str().expect("a path")]);
    let yaml = upstream.fill("name: signed\ncallback_url: $UP/ended\ntasks:\n  a: { noop: {} }\n");
    server.define(&yaml);
    server.trigger("signed", &json!({}));
    let sent = upstream.wait_for("/ended", 1);
    let mut mac = Hmac::<Sha256>::new_from_slice(b"a signing secret").expect("a key");
    mac.update(&sent[0].body);
    let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sent[0].header("x-onward-signature"), format!("sha256={expected}"));
}

#[test]
fn a_pending_notification_survives_a_crash() {
    let upstream = Upstream::start();
    let mut server = Server::start();
    let yaml =
        "name: fragile\non_failure: { workflow: alarm }\ntasks:\n  a: { url: 'http://127.0.0.1:1/', retry: never }\n";
    let workflow = server.define(yaml)["id"].as_str().expect("an id").to_owned();
    let run = server.trigger(&workflow, &json!(null));
    server.finished(&run);
    let pending = eventually("the error is recorded", || {
        Some(explain(&server, &run))
            .filter(|explanation| explanation["details"]["notices_pending"][0]["error"].is_string())
    });
    assert_eq!(pending["details"]["notices_pending"][0]["error"], "there is no workflow `alarm`");
    server.define(&upstream.fill("name: alarm\ntasks:\n  call: { url: $UP/alarm, body: '{{trigger.body}}' }\n"));
    server.crash_and_restart();
    let sent = upstream.wait_for("/alarm", 1);
    assert_eq!(sent[0].json()["run_id"], json!(run));
    eventually("no notification is pending", || {
        Some(()).filter(|()| explain(&server, &run)["details"].get("notices_pending").is_none())
    });
}
