//! The limits of a run, each reached and refused with a code and a message, also across kills (M5), and views that stay
//! small however much a run waits for (M6). `children` has the depth of calls, `signals` the number of unread signals.

use crate::harness::{Act, Server, Upstream, json};
use serde_json::{Value, json};

/// Groups around one step, as many as `depth`: `g1`, `g2` and so on.
fn nested(depth: usize) -> String {
    let open: String = (1..=depth).map(|n| format!("g{n}: {{ group: {{ tasks: {{ ")).collect();
    format!("{open}leaf: {{ url: $UP/leaf }}{}", " } } }".repeat(depth))
}

#[test]
fn m5_m2_groups_are_nested_sixteen_deep_and_no_deeper() {
    let upstream = Upstream::start();
    upstream.on("/leaf", [Act::Hang, json(200, json!({ "n": 7 }))]);
    let mut server = Server::start();
    let text = upstream.fill(&format!("name: deeper\ntasks:\n  {}", nested(17)));
    let refused = server.send("POST", "/api/v1/workflows", &[("content-type", "application/yaml")], text.as_bytes());
    assert_eq!(refused.refusal(422), "limit_exceeded");
    let error = &refused.json()["error"];
    assert_eq!(error["message"], "groups and loops may be nested 16 deep", "{error:#}");
    let path = error["at"]["path"].as_str().expect("its place");
    assert!(path.starts_with("tasks.g1.group.tasks.g2") && path.ends_with("g17.group.tasks"), "{path}");

    let workflow = server.workflow(&upstream.fill(&nested(16)));
    let run = server.trigger(&workflow, &json!({}));
    upstream.wait_for("/leaf", 1);
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["tasks"]["g1"]["body"]), (&json!("completed"), &json!({ "n": 7 })), "{view:#}");
    let around: String = (1..=16).map(|n| format!("g{n}/")).collect();
    for effect in upstream.effects() {
        assert_eq!(effect.header("idempotency-key"), format!("{run}:{around}leaf"));
    }
    server.verify();
}

#[test]
fn m5_m13_a_loop_has_at_most_ten_thousand_iterations() {
    let mut server = Server::start();
    let text = "name: long\ntasks: { l: { loop: { items: trigger.body, max_iterations: 10001, tasks: { a: { noop: {} } } } } }";
    let refused = server.send("POST", "/api/v1/workflows", &[("content-type", "application/yaml")], text.as_bytes());
    assert_eq!(refused.refusal(422), "out_of_range");
    let error = &refused.json()["error"];
    assert_eq!(error["at"]["path"], "tasks.l.loop.max_iterations", "{error:#}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("10000")), "{error:#}");

    let workflow = server.workflow(
        "go: { wait_for_signal: { name: go } }\nl: { needs: [go], loop: { items: trigger.body, tasks: { a: { noop: {} } } } }",
    );
    let run = server.trigger(&workflow, &json!(vec![0; 10_001]));
    server.when(&run, "go", "waiting");
    server.crash_and_restart();
    server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!({})).data(200);
    let view = server.finished(&run);
    let error = &view["tasks"]["l"]["error"];
    assert_eq!((&view["status"], &error["code"]), (&json!("failed"), &json!("max_iterations")), "{view:#}");
    assert_eq!(error["message"], "`items` has 10001 items, the limit is 10000");
    let events = server.events(&run);
    assert!(events.iter().all(|event| event["type"] != "step.opened"), "it fails before the first iteration");
    server.crash_and_restart();
    assert_eq!(server.run(&run), view, "and stays as it ended");
    server.verify();
}

#[test]
fn m5_a_run_keeps_at_most_sixteen_mebibytes_across_a_kill() {
    const EACH: usize = 250_000;
    const MOST: usize = 16 * 1024 * 1024 / EACH;
    let upstream = Upstream::start();
    upstream.on("/large", [json(200, json!("x".repeat(EACH - 2)))]);
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill(
        "fill: { loop: { items: trigger.body, tasks: { get: { url: $UP/large } }, output: '{{index}}' }, allow_failure: true }
after: { needs: [fill], if: tasks.fill.failed, wait_for_signal: { name: go } }",
    ));
    let run = server.trigger(&workflow, &json!((0..MOST + 5).collect::<Vec<usize>>()));
    for count in [5, 40] {
        upstream.wait_for("/large", count);
        server.crash_and_restart();
    }
    let view = server.when(&run, "after", "waiting");
    let fill = &view["tasks"]["fill"];
    assert_eq!((&fill["status"], &fill["error"]["code"]), (&json!("failed"), &json!("state_limit")), "{fill:#}");
    let message = fill["error"]["message"].as_str().expect("a message");
    assert!(message.ends_with("this would make the run's payloads larger than 16 MiB together"), "{message}");
    let done = fill["counts"]["success"].as_u64().expect("a number") as usize;
    assert_eq!(done, MOST, "as many as fit");
    // What comes from outside is refused as well, now and after one more kill.
    for _ in 0..2 {
        let large = server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!("x".repeat(EACH)));
        assert_eq!(large.refusal(413), "too_large");
        server.crash_and_restart();
    }
    assert_eq!(server.run(&run)["tasks"]["after"]["status"], "waiting", "a refused signal is not read");
    server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!(1)).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    server.verify();
}

#[test]
fn m6_m23_the_view_of_a_run_with_many_waits_lists_a_hundred_and_counts_all_across_a_kill() {
    const WAITS: usize = 150;
    let mut server = Server::start();
    let workflow = server.workflow(
        "each: { loop: { items: trigger.body, concurrency: 1000, tasks: { w: { wait_for_signal: { name: go, timeout: 1d } } } } }",
    );
    let run = server.trigger(&workflow, &json!((0..WAITS).collect::<Vec<usize>>()));
    let all_wait = |server: &Server| {
        let events = server.events(&run);
        (events.iter().filter(|event| event["type"] == "wait.opened").count() == WAITS).then_some(())
    };
    crate::harness::eventually("every iteration waits", || all_wait(&server));
    let before = server.run(&run);
    let inside = |server: &Server| server.list(&format!("/api/v1/runs/{run}/steps?under=each"));
    let steps = inside(&server);
    server.crash_and_restart();
    let view = server.run(&run);
    assert_eq!(view, before, "the view is the same after the kill");
    let waiting = view["waiting_for"].as_array().expect("a list");
    let of_signals = waiting.iter().filter(|wait| wait["kind"] == "signal" && wait["until"].is_string()).count();
    assert_eq!((waiting.len(), of_signals), (100, 100), "{waiting:#?}");
    assert_eq!(view["tasks"].as_object().expect("steps").keys().collect::<Vec<_>>(), ["each"], "root steps only");
    let counts = view["tasks"]["each"]["counts"].as_object().expect("counts").values();
    assert_eq!(counts.filter_map(Value::as_u64).sum::<u64>(), WAITS as u64, "{view:#}");
    assert_eq!(inside(&server), steps, "and so are its steps");
    assert_eq!(steps.len(), WAITS);
    let page = server.get(&format!("/api/v1/runs/{run}/steps?under=each&limit=100")).json();
    let next = page["next"].as_str().expect("one more page");
    let rest = server.get(&format!("/api/v1/runs/{run}/steps?under=each&limit=100&cursor={next}")).json();
    let count = |page: &Value| page["data"].as_array().map(Vec::len);
    assert_eq!((count(&page), count(&rest), &rest["next"]), (Some(100), Some(50), &Value::Null));
    for n in 0..WAITS {
        server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!(n)).data(200);
    }
    let view = server.finished(&run);
    let expected: Vec<usize> = (0..WAITS).collect();
    assert_eq!(view["tasks"]["each"]["body"], json!(expected), "the wait opened first got the first signal");
    server.verify();
}
