//! Groups, loops, first-joins and outputs, as users write and see them (M1–M16).

use crate::harness::{Server, Upstream, json, status};
use serde_json::{Value, json};

const ORDERS: &str = r#"
name: orders
output: { charged: "{{tasks.each.body}}", failed: "{{tasks.each.errors}}" }
tasks:
  fetch: { url: $UP/orders }
  each:
    needs: [fetch]
    loop:
      items: tasks.fetch.body
      as: order
      concurrency: 2
      on_error: continue
      tasks:
        charge: { url: "$UP/charge", body: { id: "{{order.id}}", at: "{{index}}" }, retries: 0 }
        mail: { needs: [charge], url: $UP/mail, body: "{{order.name}}" }
      output: "{{tasks.charge.body.receipt}}"
"#;

#[test]
fn m2_m6_m13_m15_a_loop_over_a_list() {
    let upstream = Upstream::start();
    upstream.on(
        "/orders",
        [json(200, json!([{ "id": 1, "name": "a" }, { "id": 2, "name": "b" }, { "id": 3, "name": "c" }]))],
    );
    upstream.on("/charge", [json(200, json!({ "receipt": "r" })), status(400), json(200, json!({ "receipt": "r" }))]);
    let server = Server::start();
    server.define(&upstream.fill(ORDERS));
    let run = server.trigger("orders", &json!({}));
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    let each = &view["tasks"]["each"];
    assert_eq!((&each["type"], &each["status"]), (&json!("loop"), &json!("success")));
    assert_eq!(each["counts"], json!({ "success": 2, "failed": 1 }));
    let charged = view["output"]["charged"].as_array().expect("a list");
    assert_eq!(charged.iter().filter(|one| **one == json!("r")).count(), 2);
    let failed = charged.iter().position(Value::is_null).expect("the failed one is null");
    assert_eq!(view["output"]["failed"][0]["index"], failed);
    assert_eq!(view["output"]["failed"][0]["step"], "charge");
    assert_eq!(each["errors"], view["output"]["failed"]);

    let keys: std::collections::BTreeSet<String> =
        upstream.effects_on("/charge").iter().map(|effect| effect.header("idempotency-key").to_owned()).collect();
    let expected = (0..3).map(|index| format!("{run}:each[{index}]/charge"));
    assert_eq!(keys, expected.collect(), "each iteration has keys of its own");

    let steps = |under: &str| server.list(&format!("/api/v1/runs/{run}/steps?under={under}"));
    let name = |step: &Value| step["step"].as_str().unwrap_or_default().to_owned();
    let iterations = steps("each");
    assert_eq!(iterations.iter().map(name).collect::<Vec<_>>(), ["each[0]", "each[1]", "each[2]"]);
    assert_eq!(iterations[failed]["error"]["step"], "charge");
    let page = server.get(&format!("/api/v1/runs/{run}/steps?under=each&limit=2")).json();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["next"]), (2, &json!("2")), "{page:#}");
    for index in 0..3 {
        let inside = steps(&format!("each%5B{index}%5D"));
        let statuses: Vec<&Value> = inside.iter().map(|step| &step["status"]).collect();
        let (first, second) = if index == failed { ("failed", "skipped") } else { ("success", "success") };
        assert_eq!(name(&inside[1]), format!("each[{index}]/mail"));
        assert_eq!(statuses[0], first, "{inside:#?}");
        assert!(statuses[1] == second || statuses[1] == "cancelled", "{inside:#?}");
        assert_eq!(inside[0]["attempts"].as_array().unwrap().len(), 1);
    }
    server.get(&format!("/api/v1/runs/{run}/steps?under=fetch")).refusal(422);

    let events = server.events(&run);
    let opened = |event: &&Value| event["type"] == "step.opened" && event["step"] == "each[1]/charge";
    let opened = events.iter().find(opened).expect("the step was opened");
    assert_eq!(opened["data"]["parent"], "each[1]");
    let ended: Vec<&Value> = events.iter().filter(|e| e["step"] == "each[0]/charge").collect();
    assert!(ended.len() >= 3, "{ended:#?}");
    let graph = server.get(&format!("/api/v1/runs/{run}/graph")).data(200);
    let node =
        |name: &str| graph["nodes"].as_array().unwrap().iter().find(|node| node["step"] == name).unwrap().clone();
    assert_eq!((&node("charge")["parent"], &node("each")["counts"]["success"]), (&json!("each"), &json!(2)));
    server.verify();
}

#[test]
fn m4_p1_a_loop_goes_on_after_a_kill() {
    let upstream = Upstream::start();
    upstream.on("/work", (0..40).map(|i| json(200, json!({ "i": i }))));
    let mut server = Server::start();
    let steps = upstream.fill(
        "
l:
  loop:
    items: trigger.body.list
    tasks:
      a: { url: $UP/work, body: '{{item}}' }
      g: { needs: [a], group: { tasks: { b: { set: { n: '{{tasks.a.body.i}}', of: '{{item}}' } } } } }
end: { needs: [l], set: { count: '{{tasks.l.body}}' } }",
    );
    let workflow = server.workflow(&steps);
    let run = server.trigger(&workflow, &json!({ "list": (0..20).collect::<Vec<u32>>() }));
    for count in [3, 9, 14] {
        upstream.wait_for("/work", count);
        server.crash_and_restart();
    }
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    let results = view["tasks"]["l"]["body"].as_array().unwrap();
    let of: Vec<&Value> = results.iter().map(|result| &result["of"]).collect();
    assert_eq!(of, (0..20).map(Value::from).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    assert_eq!(view["tasks"]["l"]["counts"], json!({ "success": 20 }));
    server.verify();
}

#[test]
fn m10_m16_groups_and_first_joins() {
    let upstream = Upstream::start();
    upstream.on("/bad", [status(400)]);
    upstream.on("/slow", [crate::harness::Act::Hang]);
    let server = Server::start();
    let view = server.play(
        &upstream.fill(
            "
g: { group: { tasks: { bad: { url: $UP/bad, retries: 0 }, slow: { url: $UP/slow, timeout: 1h } } } }
after: { needs: [g], if: tasks.g.failed, set: { code: '{{tasks.g.error.code}}' } }",
        ),
        &json!({}),
    );
    assert_eq!((&view["status"], &view["tasks"]["g"]["status"]), (&json!("completed"), &json!("failed")), "{view:#}");
    assert_eq!(view["tasks"]["g"]["counts"], json!({ "failed": 1, "cancelled": 1 }));
    assert_eq!(view["tasks"]["after"]["body"]["code"], "http_status");
    assert_eq!(view["failed_steps"], json!(["g", "g/bad"]));
    upstream.wait_for_hangup();
    let view = server.play(
        &upstream.fill("a: { url: $UP/bad, retries: 0 }\nb: { sleep: 1ms }\nc: { needs: { any: [a, b] }, noop: {} }"),
        &json!({}),
    );
    assert_eq!(view["status"], "completed", "{view:#}");
    server.verify();
}

#[test]
fn m5_m13_m14_loops_that_fail() {
    let server = Server::start();
    for (inside, body, code) in [
        ("items: trigger.body.list", json!({ "list": { "a": 1 } }), "not_a_list"),
        ("items: trigger.body.list, max_iterations: 2", json!({ "list": [1, 2, 3] }), "max_iterations"),
        ("while: 'index >= 0', max_iterations: 5", json!({}), "max_iterations"),
    ] {
        let view = server.play(&format!("l: {{loop: {{{inside}, tasks: {{a: {{noop: {{}}}}}}}}}}"), &body);
        assert_eq!(
            (&view["status"], &view["tasks"]["l"]["error"]["code"]),
            (&json!("failed"), &json!(code)),
            "{view:#}"
        );
    }
    server.verify();
}

#[test]
fn m13_a_task_in_a_loop_is_claimed_and_completed() {
    let server = Server::start();
    let workflow =
        server.workflow("l: {loop: {items: trigger.body.list, tasks: {t: {task: nest.v1, input: {of: '{{item}}'}}}}}");
    let run = server.trigger(&workflow, &json!({ "list": ["x", "y"] }));
    for (index, item) in ["x", "y"].iter().enumerate() {
        let claimed = server.claim_one("w1", "nest.v1");
        assert_eq!(claimed.view["step"], format!("l[{index}]/t"));
        assert_eq!(claimed.view["input"]["of"], *item);
        claimed.complete(json!({ "done": item })).data(200);
        // The step has left the state; the same report is still recognised, and the task is still found.
        claimed.complete(json!({ "done": item })).data(200);
        assert_eq!(server.task(claimed.id())["status"], "succeeded");
    }
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["l"]["body"], json!([{ "done": "x" }, { "done": "y" }]));
    server.verify();
}
