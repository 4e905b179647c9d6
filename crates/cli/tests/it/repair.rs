//! Runs that failed and go on in place (M9, M28, M29, M30).

use crate::harness::{Act, Server, Upstream, eventually, json, names, onward, status};
use serde_json::{Value, json};

/// A payment whose `ship` fails the first time.
const PAYMENT: &str = "
reserve: { url: $UP/reserve }
charge: { needs: [reserve], url: $UP/charge, irreversible: true }
label: { needs: [charge], url: $UP/label }
ship: { needs: [label], url: $UP/ship, body: { label: '{{tasks.label.body.id}}' } }
mail: { needs: [ship], url: $UP/mail }";

fn payment(upstream: &Upstream) {
    upstream.on("/label", [json(200, json!({ "id": "l1" }))]);
    upstream.on("/ship", [status(400), json(200, json!({ "parcel": 1 }))]);
}

fn retry(server: &Server, run: &str, body: Value) -> crate::harness::Answer {
    server.post(&format!("/api/v1/runs/{run}/retry"), &body)
}

/// How often each path was requested.
fn counts(upstream: &Upstream, paths: &[&str]) -> Vec<usize> {
    paths.iter().map(|path| upstream.effects_on(path).len()).collect()
}

fn keys(upstream: &Upstream, path: &str) -> Vec<String> {
    upstream.effects_on(path).iter().map(|effect| effect.header("idempotency-key").to_owned()).collect()
}

#[test]
fn m28_m29_m30_a_failed_payment_goes_on_and_nothing_is_paid_twice() {
    let upstream = Upstream::start();
    payment(&upstream);
    let server = Server::start();
    let name = server.workflow(&upstream.fill(PAYMENT));
    let path = format!("/api/v1/workflows/{name}/trigger?callback_url={}", upstream.fill("$UP/ended"));
    let run = server.post(&path, &json!({})).data(201)["run_id"].as_str().expect("an id").to_owned();
    let failed = server.finished(&run);
    assert_eq!((&failed["status"], &failed["error"]["step"]), (&json!("failed"), &json!("ship")), "{failed:#}");
    let told = upstream.wait_for("/ended", 1);
    assert_eq!(told[0].json()["status"], "failed");
    let why = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    assert_eq!(why["next_actions"][0]["action"], "retry", "{why:#}");

    let before = server.events(&run);
    let plan = retry(&server, &run, json!({ "dry_run": true })).data(200);
    assert_eq!(plan, json!({ "would_run": ["ship", "mail"], "would_repeat": [] }));
    let plan = retry(&server, &run, json!({ "dry_run": true, "from": "charge" })).data(200);
    let expected = json!({ "would_run": ["charge", "label", "ship", "mail"], "would_repeat": ["charge", "label"] });
    assert_eq!(plan, expected);
    assert_eq!((server.run(&run), server.events(&run)), (failed, before.clone()), "a dry run changes nothing");

    let answer = retry(&server, &run, json!({ "actor": "ada", "reason": "the carrier is back" })).data(200);
    assert_eq!(answer["id"], run);
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!((&view["error"], &view["failed_steps"]), (&Value::Null, &json!([])), "{view:#}");
    assert_eq!(counts(&upstream, &["/reserve", "/charge", "/label", "/ship", "/mail"]), [1, 1, 1, 2, 1]);
    assert_eq!(keys(&upstream, "/ship"), [format!("{run}:ship"), format!("{run}:ship")], "the same key: it had failed");
    let ship = &upstream.effects_on("/ship")[1];
    assert_eq!((ship.attempt(), ship.json()), (2, json!({ "label": "l1" })));
    let told = upstream.wait_for("/ended", 2);
    assert_eq!(told[1].json()["status"], "completed", "each end notifies");
    let events = server.events(&run);
    let retried = &events[before.len()];
    assert_eq!((&retried["type"], &retried["actor"]), (&json!("run.retried"), &json!("ada")));
    assert_eq!(retried["data"]["reason"], "the carrier is back");
    assert_eq!(retried["data"]["steps"], json!(["ship", "mail"]));
    assert_eq!(names(&events).last(), Some(&"run.completed"));
    assert_eq!(retry(&server, &run, json!({})).refusal(409), "run_ended");
    assert_eq!(upstream.effects_on("/ended").len(), 2);
    server.verify();
}

#[test]
fn m28_what_cannot_be_repeated_is_repeated_only_if_that_is_allowed() {
    let upstream = Upstream::start();
    payment(&upstream);
    let server = Server::start();
    let name = server.workflow(&upstream.fill(PAYMENT));
    let run = server.trigger(&name, &json!({}));
    server.finished(&run);
    let answer = retry(&server, &run, json!({ "from": "reserve" }));
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (409, &json!("unsafe_retry")), "{error:#}");
    assert_eq!(error["problems"][0]["at"]["path"], "charge", "{error:#}");
    assert_eq!(retry(&server, &run, json!({ "from": "nowhere" })).refusal(422), "invalid_body");
    assert_eq!(retry(&server, &run, json!({ "step": "ship" })).refusal(422), "invalid_body");
    assert_eq!(server.run(&run)["status"], "failed");
    retry(&server, &run, json!({ "from": "reserve", "allow_irreversible": true })).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(counts(&upstream, &["/reserve", "/charge", "/label", "/ship", "/mail"]), [2, 2, 2, 2, 1]);
    assert_eq!(keys(&upstream, "/charge"), [format!("{run}:charge"), format!("{run}:charge:r1")]);
    assert_eq!(keys(&upstream, "/ship"), [format!("{run}:ship"), format!("{run}:ship")]);

    upstream.on("/slow", [Act::Hang]);
    let name = server.workflow(&upstream.fill("slow: { url: $UP/slow }"));
    let open = server.trigger(&name, &json!({}));
    upstream.wait_for("/slow", 1);
    assert_eq!(retry(&server, &open, json!({ "from": "slow" })).refusal(422), "invalid_body");
    assert_eq!(retry(&server, &open, json!({})).refusal(409), "nothing_to_retry");
    server.cancel(&open).data(200);
    assert_eq!(retry(&server, &open, json!({})).refusal(409), "run_ended");
    server.verify();
}

#[test]
fn m28_a_kill_right_after_a_retry_loses_nothing() {
    let upstream = Upstream::start();
    payment(&upstream);
    let mut server = Server::start();
    let name = server.workflow(&upstream.fill(PAYMENT));
    let run = server.trigger(&name, &json!({}));
    server.finished(&run);
    retry(&server, &run, json!({})).data(200);
    server.crash_and_restart();
    assert_eq!(server.finished(&run)["status"], "completed");
    let counts = counts(&upstream, &["/reserve", "/charge", "/label", "/mail"]);
    assert_eq!(counts, [1, 1, 1, 1], "nothing that succeeded runs again");
    assert_eq!(names(&server.events(&run)).iter().filter(|name| **name == "run.retried").count(), 1);
    assert!(keys(&upstream, "/ship").iter().all(|key| *key == format!("{run}:ship")));
    server.verify();
}

#[test]
fn m29_a_worker_gets_a_new_key_only_for_what_it_had_done() {
    let server = Server::start();
    let name = server.workflow("pay: { task: pay.v1 }\npack: { needs: [pay], task: pack.v1, retry: never }");
    let run = server.trigger(&name, &json!({}));
    let mut seen = Vec::new();
    let claim = |kind: &str, seen: &mut Vec<String>| {
        let claimed = server.claim_one("w", kind);
        seen.push(claimed.view["idempotency_key"].as_str().expect("a key").to_owned());
        claimed
    };
    claim("pay.v1", &mut seen).complete(json!({ "id": 1 })).data(200);
    claim("pack.v1", &mut seen).report("fail", json!({ "error": { "message": "no box" }, "final": true })).data(200);
    assert_eq!(server.finished(&run)["status"], "failed");
    retry(&server, &run, json!({})).data(200);
    let pack = claim("pack.v1", &mut seen);
    assert_eq!(pack.attempt(), 2);
    pack.report("fail", json!({ "error": { "message": "no box" }, "final": true })).data(200);
    assert_eq!(server.finished(&run)["status"], "failed");
    retry(&server, &run, json!({ "from": "pay" })).data(200);
    claim("pay.v1", &mut seen).complete(json!({ "id": 2 })).data(200);
    claim("pack.v1", &mut seen).complete(json!({})).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    let expected = ["pay", "pack", "pack", "pay:r1", "pack"].map(|key| format!("{run}:{key}"));
    assert_eq!(seen, expected);
    server.verify();
}

#[test]
fn m29_a_reopened_wait_takes_a_new_payload_at_the_same_url() {
    let server = Server::with_virtual_clock();
    let steps = "
ask: { wait_for_webhook: { timeout: 1h } }
tell: { set: { url: '{{wait.ask.url}}' } }
use: { needs: [ask], set: { got: '{{tasks.ask.body.n}}' } }";
    let name = server.workflow(steps);
    let run = server.trigger(&name, &json!({}));
    let url = server.when(&run, "tell", "success")["tasks"]["tell"]["body"]["url"].as_str().expect("a URL").to_owned();
    server.advance("2h");
    assert_eq!(server.finished(&run)["status"], "failed");
    assert_eq!(server.call_back(&url, br#"{"n":1}"#).refusal(410), "callback_gone");
    retry(&server, &run, json!({})).data(200);
    server.when(&run, "ask", "waiting");
    server.call_back(&url, br#"{"n":2}"#).data(200);
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["tasks"]["use"]["body"]["got"]), (&json!("completed"), &json!(2)), "{view:#}");
    server.verify();
}

#[test]
fn m28_loops_and_groups_go_on_where_they_were() {
    let upstream = Upstream::start();
    upstream.on("/y", [status(200), status(400), status(200)]);
    let server = Server::start();
    let steps = "
each:
  loop:
    items: 'trigger.body.list'
    tasks:
      x: { url: $UP/x }
      y: { needs: [x], url: $UP/y, body: { item: '{{item}}' } }
end: { needs: [each], url: $UP/end }";
    let name = server.workflow(&upstream.fill(steps));
    let run = server.trigger(&name, &json!({ "list": ["a", "b", "c"] }));
    assert_eq!(server.finished(&run)["status"], "failed");
    retry(&server, &run, json!({})).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(counts(&upstream, &["/x", "/y", "/end"]), [3, 4, 1]);
    let items: Vec<Value> = upstream.effects_on("/y").iter().map(|effect| effect.json()["item"].clone()).collect();
    assert_eq!(items, ["a", "b", "b", "c"]);
    server.verify();
}

#[test]
fn m29_a_run_asks_its_concurrency_group_again() {
    let upstream = Upstream::start();
    let server = Server::start();
    for (policy, waits) in [("queue", true), ("skip", false), ("cancel_running", false)] {
        let path = format!("/work-{policy}");
        upstream.on(&path, [status(400), Act::Held(Box::new(status(200))), status(200)]);
        let yaml = upstream.fill(&format!(
            "name: one-{policy}\nconcurrency: {{ key: all, limit: 1, on_conflict: {policy} }}\ntasks: {{ work: {{ url: $UP{path} }} }}\n"
        ));
        let workflow = server.define(&yaml)["id"].as_str().expect("an id").to_owned();
        let first = server.trigger(&workflow, &json!({}));
        assert_eq!(server.finished(&first)["status"], "failed");
        let second = server.trigger(&workflow, &json!({}));
        server.when(&second, "work", "running");
        match waits {
            true => {
                assert_eq!(retry(&server, &first, json!({})).data(200)["status"], "pending");
                upstream.release(&path);
                assert_eq!(server.finished(&first)["status"], "completed");
            }
            false => {
                assert_eq!(retry(&server, &first, json!({})).refusal(409), "concurrency_limit");
                assert_eq!(server.run(&first)["status"], "failed");
                upstream.release(&path);
                assert_eq!(server.finished(&second)["status"], "completed", "{policy}");
                eventually("there is room", || {
                    let answer = retry(&server, &first, json!({}));
                    (answer.status == 200).then_some(())
                });
                assert_eq!(server.finished(&first)["status"], "completed");
            }
        }
        assert_eq!(server.finished(&second)["status"], "completed", "{policy}: no other run is cancelled for it");
    }
    server.verify();
}

#[test]
fn m18_an_attached_child_goes_on_with_its_parent() {
    let upstream = Upstream::start();
    upstream.on("/inner", [status(400), status(200)]);
    let server = Server::start();
    server.define(&upstream.fill("name: inner\ntasks: { work: { url: $UP/inner } }"));
    let name = server.workflow("call: { subworkflow: { workflow: inner } }");
    let run = server.trigger(&name, &json!({}));
    assert_eq!(server.finished(&run)["status"], "failed");
    let child = |server: &Server| {
        let events = server.events(&run);
        let started = events.iter().rev().find(|event| event["type"] == "child.started").expect("a child");
        started["data"]["run_id"].as_str().expect("an id").to_owned()
    };
    let first = child(&server);
    assert_eq!(retry(&server, &first, json!({})).refusal(409), "has_parent");
    retry(&server, &run, json!({})).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_ne!(child(&server), first);
    server.verify();
}

#[test]
fn m28_a_step_that_was_undone_runs_again() {
    let upstream = Upstream::start();
    upstream.on("/ship", [status(400), status(200)]);
    let server = Server::start();
    let steps = "
book: { url: $UP/book, compensate: { url: $UP/free } }
pay: { needs: [book], url: $UP/pay }
ship: { needs: [pay], url: $UP/ship }";
    let name = server.workflow(&upstream.fill(steps));
    let run = server.trigger(&name, &json!({}));
    let view = server.finished(&run);
    assert_eq!(view["recovery"]["status"], "completed", "{view:#}");
    let plan = retry(&server, &run, json!({ "dry_run": true })).data(200);
    assert_eq!(plan, json!({ "would_run": ["book", "pay", "ship"], "would_repeat": ["book", "pay"] }));
    retry(&server, &run, json!({})).data(200);
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["recovery"]), (&json!("completed"), &Value::Null), "{view:#}");
    assert_eq!(keys(&upstream, "/book"), [format!("{run}:book"), format!("{run}:book:r1")]);
    assert_eq!(counts(&upstream, &["/book", "/pay", "/ship", "/free"]), [2, 2, 2, 1]);
    server.verify();
}

#[test]
fn m28_the_command_line_retries_a_run() {
    let upstream = Upstream::start();
    payment(&upstream);
    let server = Server::start();
    let name = server.workflow(&upstream.fill(PAYMENT));
    let run = server.trigger(&name, &json!({}));
    server.finished(&run);
    let url = format!("http://{}", server.nodes()[0]);
    let runs = |more: &[&str]| {
        let output = onward(&[&["runs", "retry", &run, "--url", &url], more].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = runs(&["--dry-run", "--from", "label"]);
    assert_eq!((code, text.as_str()), (Some(0), "would run     label, ship, mail\nwould repeat  label\n"));
    assert_eq!(runs(&["--from", "charge"]).0, Some(1));
    let (code, text) = runs(&["--reason", "again", "--actor", "ada"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(&format!("{run} is ")), "{text}");
    assert_eq!(server.finished(&run)["status"], "completed");
}
