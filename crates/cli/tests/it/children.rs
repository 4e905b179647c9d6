//! Workflows that call workflows, as users write and see them (M17–M19, M5).

use crate::harness::{Act, Server, Upstream, eventually, json, status};
use serde_json::{Value, json};

/// Defines a workflow and returns its name.
fn define(server: &Server, name: &str, rest: &str) {
    server.define(&format!("name: {name}\n{rest}"));
}

fn child_of(view: &Value, step: &str) -> String {
    view["tasks"][step]["child"]["run_id"].as_str().unwrap_or_else(|| panic!("no child: {view:#}")).to_owned()
}

#[test]
fn m17_m18_a_step_runs_a_workflow_and_gets_its_output() {
    let server = Server::start();
    define(
        &server,
        "double",
        "output: { twice: '{{tasks.sum.body.n}}' }\ntasks: { sum: { set: { n: '{{trigger.body.n}}' } } }",
    );
    define(
        &server,
        "caller",
        "output: '{{tasks.end.body}}'
tasks:
  call: { subworkflow: { workflow: double, input: { n: '{{trigger.body.n}}' } } }
  end: { needs: [call], set: { got: '{{tasks.call.body.twice}}' } }",
    );
    let run = server.trigger("caller", &json!({ "n": 21 }));
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["output"]), (&json!("completed"), &json!({ "got": 21 })), "{view:#}");
    let child = child_of(&view, "call");
    assert_eq!(
        view["tasks"]["call"]["child"],
        json!({ "run_id": child, "workflow": "double", "detached": false, "status": "completed" })
    );
    let child = server.run(&child);
    assert_eq!(child["trigger"]["type"], "subworkflow");
    assert_eq!(
        child["parent"],
        json!({ "run_id": run, "workflow": "caller", "step": "call", "attempt": 1, "depth": 1, "detached": false })
    );
    let names: Vec<String> =
        server.events(&run).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        names.iter().filter(|name| name.starts_with("child.")).collect::<Vec<_>>(),
        ["child.started", "child.ended"]
    );
    server.verify();
}

#[test]
fn m17_one_child_an_attempt_whatever_is_killed() {
    let upstream = Upstream::start();
    upstream.on("/work", (0..200).map(|_| json(200, json!({}))));
    let mut server = Server::start();
    define(&server, "leaf", &upstream.fill("tasks: { work: { url: $UP/work } }"));
    define(
        &server,
        "fan",
        "tasks: { each: { loop: { items: trigger.body, concurrency: 8, tasks: { call: { subworkflow: { workflow: leaf, input: '{{item}}' } } } } } }",
    );
    let run = server.trigger("fan", &json!((0..40).collect::<Vec<u32>>()));
    for count in [2, 9, 17, 30] {
        upstream.wait_for("/work", count);
        server.crash_and_restart();
    }
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    let keys: std::collections::BTreeSet<String> =
        upstream.effects_on("/work").iter().map(|effect| effect.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys.len(), 40, "one child for each item");
    let page = server.get("/api/v1/runs?workflow=leaf&limit=500").json();
    assert_eq!(page["data"].as_array().unwrap().len(), 40);
    server.verify();
}

#[test]
fn m18_a_child_that_fails_fails_the_step_and_a_retry_starts_the_next_child() {
    let upstream = Upstream::start();
    upstream.on("/work", [status(400), json(200, json!("fine"))]);
    upstream.on("/bad", [status(400)]);
    let server = Server::start();
    define(&server, "flaky", &upstream.fill("output: '{{tasks.work.body}}'\ntasks: { work: { url: $UP/work } }"));
    define(&server, "bad", &upstream.fill("tasks: { work: { url: $UP/bad } }"));
    let view = server.play(
        "call: { subworkflow: flaky, retry: { max_attempts: 2, backoff: { type: fixed, min: 10ms } } }",
        &json!({}),
    );
    assert_eq!((&view["status"], &view["tasks"]["call"]["body"]), (&json!("completed"), &json!("fine")), "{view:#}");
    let steps = server.list(&format!("/api/v1/runs/{}/steps", view["id"].as_str().unwrap()));
    let attempts = steps[0]["attempts"].as_array().unwrap();
    assert_eq!((attempts.len(), &attempts[0]["error"]["code"]), (2, &json!("child_failed")));
    assert_ne!(attempts[0]["run_id"], attempts[1]["run_id"]);

    let view = server.play("call: { subworkflow: bad }", &json!({}));
    assert_eq!((&view["status"], &view["tasks"]["call"]["error"]["code"]), (&json!("failed"), &json!("child_failed")));
    let body = &view["tasks"]["call"]["body"];
    assert_eq!((&body["status"], &body["error"]["code"]), (&json!("failed"), &json!("step_failed")), "{view:#}");
    let child = server.run(&child_of(&view, "call"));
    assert_eq!(child["failed_steps"], json!(["work"]));
    let retry = |run: &Value| server.post(&format!("/api/v1/runs/{}/retry", run["id"].as_str().unwrap()), &json!({}));
    assert_eq!(retry(&child).refusal(409), "has_parent");

    let view = server.play("call: { subworkflow: no-such-workflow }", &json!({}));
    let call = &view["tasks"]["call"];
    assert_eq!((&view["status"], &call["error"]["code"]), (&json!("failed"), &json!("unknown_workflow")));
    assert!(call["error"]["message"].as_str().unwrap().contains("no-such-workflow"), "{view:#}");
    assert_eq!((&call["child"], &call["body"]["run_id"]), (&Value::Null, &Value::Null), "no run has existed: {view:#}");
    let steps = server.list(&format!("/api/v1/runs/{}/steps", view["id"].as_str().unwrap()));
    assert_eq!(steps[0]["attempts"][0]["run_id"], Value::Null, "{steps:?}");
    server.post("/api/v1/workflows/bad/disable", &json!({})).data(200);
    let view = server.play("call: { subworkflow: bad }", &json!({}));
    assert_eq!(view["tasks"]["call"]["error"]["code"], "workflow_disabled", "{view:#}");

    // A child that is cancelled by itself, and one that times out.
    define(&server, "waits", "max_duration: 1h\ntasks: { w: { wait_for_signal: { name: go } } }");
    let workflow = server.workflow("call: { subworkflow: waits, allow_failure: true }");
    let run = server.trigger(&workflow, &json!({}));
    let child = child_of(&server.when(&run, "call", "waiting"), "call");
    eventually("the child exists", || (server.get(&format!("/api/v1/runs/{child}")).status == 200).then_some(()));
    server.cancel(&child);
    let view = server.finished(&run);
    assert_eq!(
        (&view["status"], &view["tasks"]["call"]["error"]["code"]),
        (&json!("completed"), &json!("child_cancelled"))
    );
    server.verify();
}

#[test]
fn m18_a_child_that_times_out_is_told_as_such_across_kills() {
    let mut server = Server::with_virtual_clock();
    define(&server, "slow", "max_duration: 1h\ntasks: { w: { wait_for_signal: { name: never } } }");
    let workflow = server.workflow(
        "call: { subworkflow: slow }\nafter: { needs: [call], if: tasks.call.failed, set: { code: '{{tasks.call.error.code}}', of: '{{tasks.call.body.status}}' } }",
    );
    let run = server.trigger(&workflow, &json!({}));
    let child = child_of(&server.when(&run, "call", "waiting"), "call");
    eventually("the child waits", || {
        let answer = server.get(&format!("/api/v1/runs/{child}"));
        (answer.status == 200 && answer.json()["data"]["status"] == "waiting").then_some(())
    });
    server.crash_and_restart();
    server.advance("59m");
    assert_eq!(server.run(&run)["tasks"]["call"]["status"], "waiting", "not before its time");
    server.crash_and_restart();
    server.advance("2m");
    let view = server.finished(&run);
    assert_eq!(server.run(&child)["status"], "timeout");
    let call = &view["tasks"]["call"];
    assert_eq!((&call["status"], &call["error"]["code"]), (&json!("failed"), &json!("child_timeout")), "{view:#}");
    assert_eq!((&call["child"]["run_id"], &call["child"]["status"]), (&json!(child), &json!("timeout")));
    // The failure is handled, and the child's own ending stands inside of it.
    let told = json!({ "code": "child_timeout", "of": "timeout" });
    assert_eq!((&view["status"], &view["tasks"]["after"]["body"]), (&json!("completed"), &told), "{view:#}");
    server.crash_and_restart();
    assert_eq!(server.run(&run), view);
    server.verify();
}

#[test]
fn m18_m17_the_next_attempt_runs_the_current_version_in_a_new_child_across_kills() {
    let upstream = Upstream::start();
    upstream.on("/bad", [status(400)]);
    let mut server = Server::with_virtual_clock();
    let version =
        |step: &str| upstream.fill(&format!("name: inner\noutput: '{{{{tasks.a.body}}}}'\ntasks: {{ a: {step} }}"));
    server.define(&version("{ url: $UP/bad, retries: 0 }"));
    let workflow =
        server.workflow("call: { subworkflow: inner, retry: { max_attempts: 2, backoff: { type: fixed, min: 1h } } }");
    let run = server.trigger(&workflow, &json!({}));
    let view = server.when(&run, "call", "retrying");
    let first = child_of(&view, "call");
    assert_eq!(view["tasks"]["call"]["error"]["code"], "child_failed", "{view:#}");
    let yaml = version("{ set: { fine: true } }");
    let put = server.send("PUT", "/api/v1/workflows/inner", &[("content-type", "application/yaml")], yaml.as_bytes());
    assert_eq!(put.status, 200, "{}", put.text());
    server.crash_and_restart();
    server.advance("3h");
    let view = server.finished(&run);
    assert_eq!(
        (&view["status"], &view["tasks"]["call"]["body"]),
        (&json!("completed"), &json!({ "fine": true })),
        "{view:#}"
    );
    let second = child_of(&view, "call");
    let of = |child: &str| {
        let child = server.run(child);
        (child["version"].as_u64(), child["parent"]["attempt"].as_u64(), child["status"].as_str().map(str::to_owned))
    };
    assert_eq!(of(&first), (Some(1), Some(1), Some("failed".into())));
    assert_eq!(of(&second), (Some(2), Some(2), Some("completed".into())));
    assert_eq!(server.list("/api/v1/runs?workflow=inner").len(), 2, "one child an attempt");
    server.verify();
}

#[test]
fn m19_a_cancelled_parent_cancels_children_and_grandchildren() {
    let upstream = Upstream::start();
    upstream.on("/hang", [Act::Hang, Act::Hang]);
    let mut server = Server::start();
    define(&server, "leaf", &upstream.fill("tasks: { work: { url: $UP/hang } }"));
    define(&server, "middle", "tasks: { call: { subworkflow: leaf } }");
    define(&server, "top", "tasks: { one: { subworkflow: middle }, two: { subworkflow: middle } }");
    let run = server.trigger("top", &json!({}));
    upstream.wait_for("/hang", 2);
    let view = server.run(&run);
    let middles = [child_of(&view, "one"), child_of(&view, "two")];
    let leaves = middles.clone().map(|middle| child_of(&server.run(&middle), "call"));
    let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    assert_eq!(
        (&explained["reason"], &explained["details"]["run_id"]),
        (&json!("waiting_for_child"), &json!(middles[0]))
    );
    assert_eq!(server.cancel(&run).status, 200);
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["status"], "cancelled", "{view:#}");
    for child in middles.iter().chain(&leaves) {
        let child = server.run(child);
        assert_eq!(child["status"], "cancelled", "a parent ends after its children: {child:#}");
    }
    assert_eq!(server.cancel(&run).status, 200, "again");
    server.verify();
}

#[test]
fn m19_detached_children_go_on_or_are_cancelled_with_their_parent() {
    let server = Server::start();
    define(&server, "waits", "tasks: { w: { wait_for_signal: { name: go } } }");
    define(
        &server,
        "spawner",
        "tasks:
  left: { subworkflow: { workflow: waits, detached: true } }
  closed: { subworkflow: { workflow: waits, detached: true, on_parent_close: cancel } }
  end: { needs: [left, closed], set: { left: '{{tasks.left.body.run_id}}' } }",
    );
    let run = server.trigger("spawner", &json!({}));
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    let (left, closed) = (child_of(&view, "left"), child_of(&view, "closed"));
    assert_eq!(view["tasks"]["end"]["body"], json!({ "left": left }));
    assert_eq!(server.finished(&closed)["status"], "cancelled");
    let open = server.run(&left);
    assert_eq!((&open["status"], &open["parent"]["detached"]), (&json!("waiting"), &json!(true)));
    server.post(&format!("/api/v1/runs/{left}/signals/go"), &json!({})).data(200);
    assert_eq!(server.finished(&left)["status"], "completed");
    server.verify();
}

#[test]
fn m17_a_run_is_deleted_only_when_its_children_and_its_parent_know_of_its_end() {
    let server = Server::start();
    define(&server, "quick", "tasks: { a: { noop: {} } }");
    let view = server.play("call: { subworkflow: quick }", &json!({}));
    let (run, child) = (view["id"].as_str().unwrap().to_owned(), child_of(&view, "call"));
    assert_eq!(server.delete(&format!("/api/v1/runs/{child}")).status, 204);
    assert_eq!(
        server.get(&format!("/api/v1/runs/{run}")).data(200)["tasks"]["call"]["child"]["run_id"],
        child.as_str()
    );
    assert_eq!(server.delete(&format!("/api/v1/runs/{run}")).status, 204);
    // A parent that closes a child which was deleted leaves nothing behind.
    define(
        &server,
        "closer",
        "tasks: { call: { subworkflow: { workflow: quick, detached: true, on_parent_close: cancel } }, nap: { needs: [call], wait_for_signal: { name: go } } }",
    );
    let run = server.trigger("closer", &json!({}));
    let view = server.when(&run, "nap", "waiting");
    let child = child_of(&view, "call");
    server.finished(&child);
    eventually("the child can be deleted", || {
        (server.delete(&format!("/api/v1/runs/{child}")).status == 204).then_some(())
    });
    server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!({})).data(200);
    server.finished(&run);
    eventually("nothing is left over", || (server.delete(&format!("/api/v1/runs/{run}")).status == 204).then_some(()));
    server.verify();
}

#[test]
fn m5_workflows_that_call_themselves_stop_at_eight_across_a_kill() {
    let mut server = Server::start();
    define(&server, "again", "tasks: { nap: { sleep: 20ms }, call: { needs: [nap], subworkflow: again } }");
    let run = server.trigger("again", &json!({}));
    eventually("some of them exist", || (server.list("/api/v1/runs").len() >= 3).then_some(()));
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["status"], "failed");
    let mut id = run;
    let mut depth = 0;
    let deepest = loop {
        let view = server.run(&id);
        match view["tasks"]["call"]["child"]["run_id"].as_str() {
            Some(child) => (id, depth) = (child.to_owned(), depth + 1),
            None => break view,
        }
    };
    let error = &deepest["tasks"]["call"]["error"];
    assert_eq!((depth, &error["code"]), (8, &json!("too_deep")), "{deepest:#}");
    assert_eq!(error["message"], "workflows call each other at most 8 deep");
    assert_eq!(server.list("/api/v1/runs").len(), 9);
    server.verify();
}

#[test]
fn a_workflow_from_a_template_is_limited_to_the_declared_ones() {
    let server = Server::start();
    define(&server, "one", "output: 1\ntasks: { a: { noop: {} } }");
    define(&server, "two", "output: 2\ntasks: { a: { noop: {} } }");
    let steps = "call: { subworkflow: { workflow: '{{trigger.body.which}}', allow: [one, two] } }";
    assert_eq!(server.play(steps, &json!({ "which": "two" }))["tasks"]["call"]["body"], 2);
    let view = server.play(steps, &json!({ "which": "three" }));
    assert_eq!(
        (&view["status"], &view["tasks"]["call"]["error"]["code"]),
        (&json!("failed"), &json!("workflow_not_allowed")),
        "{view:#}"
    );
    server.verify();
}
