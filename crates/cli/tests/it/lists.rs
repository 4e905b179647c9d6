//! What lists show and how they are filtered, and how requests name what they mean.

use crate::cli::Shell;
use crate::harness::{Server, Upstream, eventually, one_node_only, status};
use serde_json::{Value, json};

fn ids(list: &[Value]) -> Vec<&str> {
    list.iter().map(|item| item["id"].as_str().expect("an id")).collect()
}

#[test]
fn runs_are_listed_by_form_and_the_command_leaves_tasks_out() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}");
    let run = server.trigger(&workflow, &json!(null));
    let task = server.submit("form.v1", json!(1)).replace("task_", "run_");
    assert_eq!(ids(&server.list("/api/v1/runs")).len(), 2, "the API lists every form");
    assert_eq!(ids(&server.list("/api/v1/runs?form=graph")), [run.as_str()]);
    assert_eq!(ids(&server.list("/api/v1/runs?form=task")), [task.as_str()]);
    assert_eq!(server.list("/api/v1/runs?form=script,task&form=graph").len(), 2);
    assert_eq!(server.get("/api/v1/runs?form=tasks").refusal(422), "invalid_parameter");
    let shell = Shell::new(&server);
    let listed = |flags: &[&str]| {
        let said = shell.run_with(&[&["runs", "list"], flags].concat(), "");
        assert_eq!(said.code, 0, "{said:?}");
        (said.out.contains(&run), said.out.contains(&task))
    };
    assert_eq!(listed(&[]), (true, false));
    assert_eq!(listed(&["--tasks"]), (false, true));
    assert_eq!(listed(&["--form", "graph,task"]), (true, true));
}

#[test]
fn a_list_is_filtered_by_how_long_ago() {
    let server = Server::with_virtual_clock();
    let workflow = server.workflow("a: {noop: {}}");
    let old = server.trigger(&workflow, &json!(null));
    let old_task = server.submit("ago.v1", json!(1));
    server.advance("2h");
    let new = server.trigger(&workflow, &json!(null));
    let new_task = server.submit("ago.v1", json!(2));
    assert_eq!(ids(&server.list("/api/v1/runs?form=graph&since=1h")), [new.as_str()]);
    assert_eq!(ids(&server.list("/api/v1/runs?form=graph&until=1h")), [old.as_str()]);
    assert_eq!(ids(&server.list(&format!("/api/v1/workflows/{workflow}/runs?since=90m"))), [new.as_str()]);
    assert_eq!(ids(&server.list("/api/v1/tasks?since=1h")), [new_task.as_str()]);
    let request = json!({ "action": "cancel", "filter": { "until": "1h" }, "dry_run": true });
    assert_eq!(server.post("/api/v1/tasks/bulk", &request).data(200)["tasks"], json!([old_task]));
    for bad in ["soon", "1w", "-1h"] {
        assert_eq!(server.get(&format!("/api/v1/runs?since={bad}")).refusal(422), "invalid_parameter", "{bad}");
    }
}

/// A21: each attempt at a step is listed once, and a later one does not replace an earlier one.
#[test]
fn a21_the_steps_of_a_run_show_every_attempt() {
    let upstream = Upstream::start();
    upstream.on("/flaky", [status(503), status(500), status(200)]);
    let server = Server::start();
    let retry = "retry: {max_attempts: 5, backoff: {type: fixed, min: 1ms}}";
    let call = format!("call: {{url: {}, {retry}}}", upstream.fill("$UP/flaky"));
    let workflow =
        server.workflow(&format!("{call}\nwork: {{needs: [call], task: attempt.v1, {retry}}}\nnap: {{sleep: 1h}}"));
    let run = server.trigger(&workflow, &json!(null));
    server.claim_one("ann", "attempt.v1").fail("no paper");
    server.claim_one("bob", "attempt.v1");
    let steps = || server.get(&format!("/api/v1/runs/{run}/steps")).data(200);
    let column = |step: &Value, name: &str| -> Vec<Value> {
        step["attempts"].as_array().into_iter().flatten().map(|one| one[name].clone()).collect()
    };
    let seen = steps();
    assert_eq!(column(&seen[0], "attempt"), [1, 2, 3]);
    assert_eq!(column(&seen[0], "status"), ["failed", "failed", "success"]);
    assert_eq!(column(&seen[0], "status_code"), [503, 500, 200]);
    assert_eq!(seen[0]["attempts"][1]["error"]["code"], "http_status");
    assert!(column(&seen[0], "started_at").iter().chain(&column(&seen[0], "finished_at")).all(Value::is_string));
    assert_eq!(column(&seen[1], "worker"), ["ann", "bob"]);
    assert_eq!(column(&seen[1], "status"), ["failed", "running"]);
    assert_eq!(seen[1]["attempts"][0]["error"]["message"], "no paper");
    assert_eq!(seen[2].get("attempts"), None, "a sleep has no attempts");
    assert_eq!(server.cancel(&run).status, 200);
    let seen = steps();
    assert_eq!(column(&seen[1], "status"), ["failed", "cancelled"]);
    assert_eq!(seen[1]["attempts"][1]["finished_at"], seen[1]["finished_at"]);
}

#[test]
fn types_show_counts_tasks_that_wait_for_a_retry() {
    let server = Server::start();
    for n in 0..3 {
        server.submit_with(&json!({ "type": "retry.count.v1", "payload": n,
            "retry": { "max_attempts": 3, "backoff": { "type": "fixed", "min": "1h" } } }));
    }
    for claimed in server.claim("w", &["retry.count.v1"], 2) {
        assert_eq!(claimed.fail("no").status, 200);
    }
    eventually("the retries are counted", || {
        let view = server.get("/api/v1/types/retry.count.v1").data(200);
        (view["retrying"] == 2 && view["ready"] == 1 && view["leased"] == 0).then_some(())
    });
    assert_eq!(server.list("/api/v1/types")[0].get("retrying"), None);
    let said = Shell::new(&server).run_with(&["types", "show", "retry.count.v1"], "");
    assert!(said.out.contains("retrying  2"), "{said:?}");
}

#[test]
fn triggers_are_listed_with_the_names_of_their_workflows() {
    let server = Server::start();
    server.define("name: Nightly report\ntrigger: cron\ncron: 0 3 * * *\ntasks: {a: {noop: {}}}");
    let listed = server.list("/api/v1/triggers");
    assert_eq!(listed[0]["workflow"], "Nightly report");
    let said = Shell::new(&server).run_with(&["triggers", "list"], "");
    assert!(said.out.lines().nth(1).is_some_and(|line| line.ends_with("Nightly report")), "{said:?}");
}

#[test]
fn a_misspelt_workflow_gets_a_suggestion() {
    let server = Server::start();
    server.define("name: Order Processing\ntasks: {a: {noop: {}}}");
    for (method, path) in [
        ("GET", "/api/v1/workflows/order-procesing"),
        ("GET", "/api/v1/runs?workflow=order-procesing"),
        ("POST", "/api/v1/workflows/order-procesing/trigger"),
        ("DELETE", "/api/v1/workflows/order-procesing"),
    ] {
        let answer = server.send(method, path, &[], b"");
        assert_eq!(answer.refusal(404), "not_found", "{path}");
        assert_eq!(answer.json()["error"]["hint"], "did you mean `order-processing`?", "{path}");
    }
    let trigger = json!({ "name": "t", "type": "manual", "workflow": "Order Procesing" });
    let refused = server.post("/api/v1/triggers", &trigger);
    assert_eq!(refused.refusal(422), "unknown_workflow");
    assert_eq!(refused.json()["error"]["hint"], "did you mean `Order Processing`?");
    assert_eq!(server.get("/api/v1/workflows/unlike").json()["error"].get("hint"), None);
    let said = Shell::new(&server).run_with(&["trigger", "Order Procesing"], "");
    assert!(said.code == 1 && said.err.contains("did you mean `Order Processing`?"), "{said:?}");
}

#[test]
fn a_name_and_a_slug_never_mean_two_workflows() {
    let server = Server::start();
    server.define("name: Order Processing\ntasks: {a: {noop: {}}}");
    let post = |body: Value| server.post("/api/v1/workflows", &body);
    let named = post(json!({ "name": "order-processing", "tasks": { "a": { "noop": {} } } }));
    assert_eq!(named.refusal(409), "name_taken");
    assert_eq!(named.json()["error"]["message"], "this name is the slug of another workflow");
    let slugged = post(json!({ "name": "x", "slug": "x", "tasks": { "a": { "noop": {} } } }));
    assert_eq!(slugged.status, 201);
    let renamed = server.put("/api/v1/workflows/x", &json!({ "name": "order-processing" }));
    assert_eq!(renamed.refusal(409), "name_taken");
    let slugged = post(json!({ "name": "y", "slug": "x", "tasks": { "a": { "noop": {} } } }));
    assert_eq!(slugged.refusal(409), "slug_taken");
}

/// T18: a name is found however its accents are written, and no second workflow can look the same.
#[test]
fn t18_names_that_look_the_same_are_one_name() {
    let server = Server::start();
    let definition = |name: &str| json!({ "name": name, "tasks": { "a": { "noop": {} } } });
    let first = server.post("/api/v1/workflows", &definition("Cafe\u{301}")).data(201);
    assert_eq!(first["name"], "Caf\u{e9}");
    assert_eq!(server.post("/api/v1/workflows", &definition("Caf\u{e9}")).refusal(409), "name_taken");
    for key in ["Cafe%CC%81", "Caf%C3%A9"] {
        assert_eq!(server.get(&format!("/api/v1/workflows/{key}")).data(200)["id"], first["id"], "{key}");
    }
    for hidden in ["pay\u{200b}ment", "pay\u{202e}ment", "pay\u{feff}ment"] {
        assert_eq!(server.post("/api/v1/workflows", &definition(hidden)).refusal(422), "invalid_name");
        let trigger = json!({ "name": hidden, "type": "manual", "workflow": first["id"] });
        assert_eq!(server.post("/api/v1/triggers", &trigger).refusal(422), "invalid_name");
    }
}

#[test]
fn two_host_headers_are_refused() {
    let server = Server::start();
    for path in ["/api/v1/runs", "/wh/token", "/healthz"] {
        let host = server.address;
        let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(server.raw(text.as_bytes()).unwrap().refusal(400), "missing_host", "{path}");
    }
}

#[test]
fn a_pattern_of_too_many_types_is_the_callers_mistake() {
    if one_node_only("types that another node made take a moment to be known here") {
        return;
    }
    let server = Server::start();
    let tasks: Vec<Value> = (0..1_001).map(|n| json!({ "type": format!("many.n{n}.v1") })).collect();
    assert_eq!(server.post("/api/v1/tasks", &json!(tasks)).status, 201);
    assert_eq!(server.get("/api/v1/tasks?type=many.%25").refusal(422), "invalid_parameter");
    let request = json!({ "action": "cancel", "filter": { "type": "many.%" } });
    assert_eq!(server.post("/api/v1/tasks/bulk", &request).refusal(422), "invalid_parameter");
    assert_eq!(server.get("/api/v1/tasks?type=many.n1.%25").data(200).as_array().map(Vec::len), Some(1));
}
