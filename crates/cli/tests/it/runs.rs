//! Runs (R14–R30, R38–R46) against an upstream that records every request.

use crate::harness::{Act, Server, Upstream, eventually, json, micros, reply, status};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The status of each step and of the run, on one line: `charge=success ship=skipped run=completed`.
fn outcome(view: &Value) -> String {
    let steps = view["tasks"].as_object().expect("steps").iter();
    let mut words: Vec<String> =
        steps.map(|(name, step)| format!("{name}={}", step["status"].as_str().unwrap())).collect();
    words.push(format!("run={}", view["status"].as_str().unwrap()));
    words.join(" ")
}

/// Runs a graph against an upstream that answers `/ok` with 200 and `/bad` with 400.
struct Bench {
    server: Server,
    upstream: Upstream,
}

impl Bench {
    fn new() -> Bench {
        let upstream = Upstream::start();
        upstream.on("/bad", [json(400, json!({ "why": "bad" }))]);
        Bench { server: Server::start(), upstream }
    }

    #[track_caller]
    fn play(&self, steps: &str, body: Value) -> Value {
        self.server.play(&self.upstream.fill(steps), &body)
    }

    #[track_caller]
    fn check(&self, steps: &str, body: Value, expected: &str) -> Value {
        let view = self.play(steps, body);
        assert_eq!(outcome(&view), expected, "{steps}\n{view:#}");
        view
    }
}

/// The first example of the document, with its addresses pointed at the upstream.
const ORDER: &str = r#"{ "name": "order-processing", "trigger": "api", "tasks": {
    "charge": { "url": "$UP/api/charge", "method": "POST", "body": { "order_id": "{{trigger.body.order_id}}" } },
    "send-receipt": { "needs": ["charge"], "if": "tasks.charge.status_code == 200", "url": "$UP/api/send-receipt", "method": "POST",
        "body": { "order_id": "{{trigger.body.order_id}}", "amount": "{{tasks.charge.body.amount}}" } },
    "notify-warehouse": { "needs": ["charge"], "if": "tasks.charge.status_code == 200", "url": "$UP/api/ship", "method": "POST" },
    "handle-failure": { "needs": ["charge"], "if": "tasks.charge.status_code != 200", "url": "$UP/api/payment-failed", "method": "POST" } } }"#;

#[test]
fn r14_r15_the_order_example_runs_as_printed() {
    let bench = Bench::new();
    bench.upstream.on("/api/charge", [json(200, json!({ "amount": 42 }))]);
    bench.server.define(&bench.upstream.fill(ORDER));
    let started =
        bench.server.post("/api/v1/workflows/order-processing/trigger", &json!({ "order_id": 123 })).data(201);
    assert_eq!(started["status"], "running");
    assert!(started["workflow_id"].as_str().unwrap().starts_with("wf_"));
    let run = started["run_id"].as_str().unwrap();
    let view = bench.server.finished(run);
    assert_eq!(
        outcome(&view),
        "charge=success send-receipt=success notify-warehouse=success handle-failure=skipped run=completed"
    );
    let charge = bench.upstream.effects_on("/api/charge");
    assert_eq!((charge.len(), charge[0].method.as_str(), charge[0].json()), (1, "POST", json!({ "order_id": 123 })));
    assert_eq!(charge[0].header("idempotency-key"), format!("{run}:charge"));
    assert_eq!((charge[0].header("x-onward-run"), charge[0].attempt()), (run, 1));
    assert_eq!(charge[0].header("content-type"), "application/json");
    let receipt = bench.upstream.effects_on("/api/send-receipt");
    assert_eq!(receipt[0].json(), json!({ "order_id": 123, "amount": 42 }), "a whole-value template keeps its type");
    assert_eq!(bench.upstream.effects_on("/api/ship").len(), 1);
    assert_eq!(bench.upstream.effects_on("/api/payment-failed").len(), 0);
    let step = &view["tasks"]["charge"];
    assert_eq!((step["status_code"].as_u64(), step["attempt"].as_u64()), (Some(200), Some(1)));
    assert!(step["duration_ms"].is_u64() && micros(&step["started_at"]) <= micros(&step["finished_at"]), "{step}");
    assert!(micros(&view["started_at"]) <= micros(&view["finished_at"]));
    assert_eq!(micros(&view["expires_at"]) - micros(&view["started_at"]), 2_592_000 * 1_000_000, "R9: 30 days");
    assert_eq!(view["tasks"]["handle-failure"]["skipped_because"]["reason"], "condition_false");
    assert_eq!(view["tasks"]["handle-failure"]["skipped_because"]["saw"]["tasks.charge.status_code"], 200);
    let below = format!("/api/v1/workflows/order-processing/runs/{run}");
    assert_eq!(bench.server.get(&below).data(200), view, "R13: the same below its workflow");
}

#[test]
fn r28_the_order_example_takes_the_failure_path() {
    let bench = Bench::new();
    bench.upstream.on("/api/charge", [json(402, json!({ "error": "card declined" }))]);
    bench.server.define(&bench.upstream.fill(ORDER));
    let run = bench.server.trigger("order-processing", &json!({ "order_id": 5 }));
    let view = bench.server.finished(&run);
    assert_eq!(
        outcome(&view),
        "charge=failed send-receipt=skipped notify-warehouse=skipped handle-failure=success run=completed"
    );
    assert_eq!(view["failed_steps"], json!(["charge"]));
    let charge = &view["tasks"]["charge"];
    assert_eq!((charge["status_code"].as_u64(), &charge["body"]["error"]), (Some(402), &json!("card declined")));
    assert_eq!(bench.upstream.effects_on("/api/charge").len(), 1, "decision 6: other 4xx are final");
}

#[test]
fn r18_to_r22_r28_r29_skips_cascade_and_decide_the_run() {
    let bench = Bench::new();
    for (steps, expected) in [
        ("a: { url: $UP/bad }", "a=failed run=failed"),
        ("a: { url: $UP/bad }\nb: { url: $UP/ok }", "a=failed b=success run=failed"),
        (
            "a: { url: $UP/bad }\nb: { noop: {}, needs: [a] }\nc: { noop: {}, needs: [b] }",
            "a=failed b=skipped c=skipped run=failed",
        ),
        (
            "a: { noop: {} }\nb: { url: $UP/bad, needs: [a] }\nc: { noop: {}, needs: [b] }",
            "a=success b=failed c=skipped run=failed",
        ),
        // R20: a step with `if` is never skipped because its needs were; R21: what it reads of a skipped step.
        (
            "a: { url: $UP/bad }\nb: { noop: {}, needs: [a] }\nc: { noop: {}, needs: [b], if: \"tasks.b.status == 'skipped'\" }",
            "a=failed b=skipped c=success run=completed",
        ),
        (
            "a: { noop: {}, if: 'false' }\nb: { noop: {}, needs: [a], if: tasks.a.status_code == null }\nc: { noop: {}, needs: [a], if: tasks.a.body == null }",
            "a=skipped b=success c=success run=completed",
        ),
        ("a: { noop: {}, if: 'false' }\nb: { noop: {}, needs: [a] }", "a=skipped b=skipped run=completed"),
        // R45.
        (
            "a: { noop: {}, if: 'false' }\nb: { noop: {}, needs: [a], if: tasks.a.status_code == 200 }\nc: { noop: {}, needs: [a], if: tasks.a.status_code != 200 }",
            "a=skipped b=skipped c=success run=completed",
        ),
        // A failure is handled when a step with a condition that needs it ran.
        (
            "a: { url: $UP/bad }\nfix: { noop: {}, needs: [a], if: \"tasks.a.status == 'failed'\" }\nnext: { noop: {}, needs: [a] }",
            "a=failed fix=success next=skipped run=completed",
        ),
        // One failed need among good ones.
        (
            "a: { url: $UP/ok }\nb: { url: $UP/bad }\nc: { noop: {}, needs: [a, b] }",
            "a=success b=failed c=skipped run=failed",
        ),
        // 3xx is a final failure; `expected_status` makes it a success.
        ("a: { url: $UP/moved }", "a=failed run=failed"),
        ("a: { url: $UP/moved, expected_status: [302, 2xx] }", "a=success run=completed"),
        ("a: { url: $UP/ok, expected_status: 201 }", "a=failed run=failed"),
    ] {
        bench.upstream.on("/moved", [reply(302, &[("Location", "/ok")], "")]);
        bench.check(steps, json!(null), expected);
    }
    assert_eq!(bench.upstream.effects_on("/moved").len(), 2, "redirects are not followed and not tried again");
}

/// Table A.2: `a` answered 200 with this body, `sk` was skipped.
#[test]
fn r44_r45_conditions_decide_as_the_table_says() {
    let bench = Bench::new();
    let body = json!({ "approved": true, "n": 7, "s": "paid", "z": null, "list": [{ "k": 1 }], "zero": 0, "empty": "", "words": ["open", "paid"] });
    bench.upstream.on("/a", [json(200, body)]);
    let table = [
        ("tasks.a.status_code == 200", true),
        ("tasks.a.status_code != 200", false),
        ("tasks.a.status_code >= 400", false),
        ("tasks.a.body.approved == true", true),
        ("tasks.a.body.s == 'paid'", true),
        (r#"tasks.a.body.s == "paid""#, true),
        ("tasks.a.body.n > 6", true),
        ("tasks.a.body.n < 7", false),
        ("tasks.a.body.n <= 7", true),
        ("tasks.a.body.list[0].k == 1", true),
        ("tasks.a.body.list.0.k == 1", true),
        ("tasks.sk.status == 'skipped'", true),
        ("tasks.sk.status_code == 200", false),
        ("tasks.sk.status_code != 200", true),
        ("tasks.a.body.missing == 1", false),
        ("tasks.a.body.z == null", true),
        ("tasks.a.body.s > 5", false),
        ("tasks.a.body.n == '7'", false),
        ("tasks.a.status_code == 200 && tasks.a.body.n > 6", true),
        ("(tasks.a.body.n == 7)", true),
        ("200 == tasks.a.status_code", true),
        ("!(tasks.a.body.n == 7) || 'paid' in tasks.a.body.words", true),
        ("tasks.a.body.approved", true),
        ("tasks.a.body.zero", false),
        ("tasks.a.body.empty", false),
        ("tasks.a.body.missing", false),
        ("tasks.a.status == 'succeeded'", true),
        ("tasks.a.status == 'completed'", true),
    ];
    let mut steps = "a: { url: $UP/a }\nsk: { noop: {}, if: 'false' }".to_owned();
    for (i, (condition, _)) in table.iter().enumerate() {
        steps += &format!("\nc{i}: {{ noop: {{}}, needs: [a, sk], if: {} }}", Value::from(*condition));
    }
    let view = bench.play(&steps, json!(null));
    for (i, (condition, expected)) in table.iter().enumerate() {
        let wanted = if *expected { "success" } else { "skipped" };
        assert_eq!(view["tasks"][format!("c{i}")]["status"], wanted, "{condition}");
    }
}

/// Table A.3, as the upstream received it.
#[test]
fn r38_r39_templates_fill_urls_headers_and_bodies() {
    let bench = Bench::new();
    bench.upstream.on("/a", [reply(200, &[("X-Reply", "yes")], r#"{"z": null, "deep": {"er": [10, 20]}}"#)]);
    let steps = r#"
a: { url: $UP/a }
wait: { wait_for_webhook: {}, needs: [b] }
b:
  needs: [a]
  method: PUT
  url: "$UP/b/{{trigger.body.t}}/x?q={{trigger.body.id}}&r={{trigger.body.t}}"
  headers: { X-Id: "id-{{trigger.body.id}}", X-Status: "{{tasks.a.status_code}}", X-Reply: "{{tasks.a.headers.x-reply}}" }
  body:
    number: "{{trigger.body.id}}"
    text: "id-{{trigger.body.id}}"
    spaced: "{{ trigger.body.t }}"
    object: "{{trigger.body.o}}"
    inside: "o={{trigger.body.o}}"
    index: ["{{trigger.body.o.k.1}}", "{{trigger.body.o.k[0]}}", "{{tasks.a.body.deep.er[1]}}"]
    header: "{{trigger.headers.x-a}}"
    "null": "{{tasks.a.body.z}}"
    status: "{{tasks.a.status}}"
    url: "{{wait.wait.url}}"
    literal: [1, 2.5, true, null, "plain"]"#;
    let workflow = bench.server.workflow(&bench.upstream.fill(steps));
    let body = json!({ "id": 5, "o": { "k": [1, 2] }, "t": "x y" });
    let path = format!("/api/v1/workflows/{workflow}/trigger");
    let headers = [("X-A", "b"), ("Authorization", "Bearer canary"), ("Cookie", "canary=1")];
    let started = bench.server.post_with(&path, &headers, &body).data(201);
    let run = started["run_id"].as_str().unwrap();
    let sent = bench.upstream.wait_for("/b/x%20y/x", 1).remove(0);
    assert_eq!((sent.method.as_str(), sent.path.as_str()), ("PUT", "/b/x%20y/x?q=5&r=x%20y"));
    assert_eq!((sent.header("x-id"), sent.header("x-status"), sent.header("x-reply")), ("id-5", "200", "yes"));
    let mut got = sent.json();
    let url = got["url"].take();
    assert!(url.as_str().unwrap().starts_with(&format!("http://{}/wh/", bench.server.address)), "{url}");
    let expected = json!({
        "number": 5, "text": "id-5", "spaced": "x y", "object": { "k": [1, 2] }, "inside": "o={\"k\":[1,2]}", "index": [2, 1, 20],
        "header": "b", "null": null, "status": "success", "url": null, "literal": [1, 2.5, true, null, "plain"] });
    assert_eq!(got, expected);
    let view = bench.server.run(run);
    assert_eq!(view["trigger"]["headers"]["x-a"], "b");
    assert!(!view.to_string().contains("canary"), "authorisation is never stored: {view}");
}

#[test]
fn r40_r41_r42_r43_templates_that_cannot_be_filled_end_the_step_with_the_exact_text() {
    let bench = Bench::new();
    let big = format!(r#"{{"amount": 1, "pad": "{}"}}"#, "x".repeat(262_144));
    bench.upstream.on("/big", [reply(200, &[("Content-Type", "application/json")], big)]);
    bench.upstream.on("/text", [reply(200, &[("Content-Type", "text/plain")], "plain words")]);
    let huge = |b: &str| format!("b: {{ url: $UP/never, needs: [charge], body: {{ x: \"{{{{{b}}}}}\" }} }}");
    let table = [
        (huge("tasks.charge.body.order_id"), "ok", "Failed to resolve {{tasks.charge.body.order_id}}"),
        (
            huge("tasks.charge.body.amount"),
            "big",
            "Cannot read 'body.amount' because the response from 'charge' exceeded the 256KB limit and was truncated",
        ),
        (
            huge("tasks.charge.body"),
            "big",
            "Cannot read 'body' because the response from 'charge' exceeded the 256KB limit and was truncated",
        ),
        (huge("tasks.charge.body.f"), "text", "Failed to resolve {{tasks.charge.body.f}}"),
        (huge("trigger.body.missing"), "ok", "Failed to resolve {{trigger.body.missing}}"),
        (
            "b: { url: \"$UP/never/{{trigger.body.one}}\", needs: [charge], body: \"{{trigger.body.two}}\" }"
                .to_owned(),
            "ok",
            "Failed to resolve {{trigger.body.one}}",
        ),
    ];
    for (step, path, message) in table {
        let steps = format!("charge: {{ url: $UP/{path} }}\n{step}\nc: {{ noop: {{}}, needs: [b] }}");
        let view = bench.check(&steps, json!({}), "charge=success b=template_error c=skipped run=failed");
        assert_eq!(view["tasks"]["b"]["error"]["message"], message);
        assert_eq!(view["tasks"]["charge"]["is_truncated"], if path == "big" { json!(true) } else { Value::Null });
        assert_eq!(view["failed_steps"], json!(["b"]));
    }
    assert_eq!(bench.upstream.effects_on("/never").len(), 0, "nothing is sent");
    // R42: the whole text is there. R43: a step that is skipped fills nothing. R26: one may branch on the error.
    let steps = r#"
a: { url: $UP/text }
b: { url: $UP/b, needs: [a], body: { text: "{{tasks.a.body}}" } }
c: { url: $UP/never, needs: [a], if: 'false', body: "{{tasks.a.body.nope}}" }
d: { url: $UP/never, needs: [a], body: "{{tasks.a.body.nope}}" }
e: { noop: {}, needs: [d], if: "tasks.d.status == 'template_error'" }"#;
    bench.check(steps, json!(null), "a=success b=success c=skipped d=template_error e=success run=completed");
    assert_eq!(bench.upstream.effects_on("/b")[0].json(), json!({ "text": "plain words" }));
}

#[test]
fn r46_a_response_of_exactly_the_limit_is_whole() {
    let bench = Bench::new();
    let pad = |n: usize| format!("\"{}\"", "x".repeat(n - 2));
    bench.upstream.on("/at", [reply(200, &[], pad(262_144))]);
    bench.upstream.on("/over", [reply(200, &[], pad(262_145))]);
    let view = bench.check(
        "at: { url: $UP/at }\nover: { url: $UP/over }",
        json!(null),
        "at=success over=success run=completed",
    );
    assert_eq!(view["tasks"]["at"]["is_truncated"], Value::Null);
    assert_eq!(view["tasks"]["at"]["body"].as_str().unwrap().len(), 262_142, "parsed");
    assert_eq!(view["tasks"]["over"]["is_truncated"], true);
    assert_eq!(view["tasks"]["over"]["body"].as_str().unwrap().len(), 262_144, "cut and not parsed");
}

#[test]
fn r17_r24_parallel_steps_start_together_and_their_join_once() {
    let bench = Bench::new();
    let ok = || Act::Held(Box::new(status(200)));
    bench.upstream.on("/p0", [ok()]);
    bench.upstream.on("/p1", [ok()]);
    let steps = "p0: { url: $UP/p0 }\np1: { url: $UP/p1 }\njoin: { url: $UP/join, needs: [p0, p1] }";
    let workflow = bench.server.workflow(&bench.upstream.fill(steps));
    let runs: Vec<String> = (0..20).map(|_| bench.server.trigger(&workflow, &json!(null))).collect();
    // No request is answered before all have arrived, so all of them run at once (R25).
    bench.upstream.wait_for("/p0", runs.len());
    bench.upstream.wait_for("/p1", runs.len());
    assert_eq!(bench.upstream.effects_on("/join").len(), 0);
    bench.upstream.release("/p0");
    bench.upstream.release("/p1");
    for run in &runs {
        let view = bench.server.finished(run);
        assert_eq!(outcome(&view), "p0=success p1=success join=success run=completed");
        let started =
            bench.server.events(run).iter().filter(|e| e["type"] == "step.started" && e["step"] == "join").count();
        assert_eq!(started, 1, "I11");
    }
    let joins = bench.upstream.effects_on("/join");
    let keys: BTreeSet<&str> = joins.iter().map(|e| e.header("idempotency-key")).collect();
    assert_eq!((joins.len(), keys.len()), (runs.len(), runs.len()));
}

const QUICK: &str = "retry: { max_attempts: 3, backoff: { type: fixed, min: 10ms } }";

#[test]
fn r23_p2_retries_count_up_under_one_key_and_later_steps_see_only_the_outcome() {
    let bench = Bench::new();
    bench.upstream.on("/flaky", [status(503), Act::Reset, json(200, json!({ "ok": 1 }))]);
    let steps = format!("a: {{ url: $UP/flaky, body: {{ x: 1 }}, {QUICK} }}\nb: {{ noop: {{}}, needs: [a] }}");
    let view = bench.check(&steps, json!(null), "a=success b=success run=completed");
    let run = view["id"].as_str().unwrap();
    let effects = bench.upstream.effects_on("/flaky");
    assert_eq!(effects.iter().map(|e| e.attempt()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(effects.iter().all(|e| e.header("idempotency-key") == format!("{run}:a")), "I34");
    assert_eq!(view["tasks"]["a"]["attempt"], 3);
    let events = bench.server.events(run);
    let of_a: Vec<(&str, Option<u64>)> = events
        .iter()
        .filter(|e| e["step"] == "a")
        .map(|e| (e["type"].as_str().unwrap(), e["attempt"].as_u64()))
        .collect();
    assert_eq!(
        of_a,
        [
            ("step.started", Some(1)),
            ("step.retrying", Some(1)),
            ("step.started", Some(2)),
            ("step.retrying", Some(2)),
            ("step.started", Some(3)),
            ("step.succeeded", Some(3)),
        ]
    );
}

#[test]
fn decision_6_which_failures_are_retried() {
    let bench = Bench::new();
    for (code, attempts) in
        [(500, 3), (503, 3), (429, 3), (408, 3), (425, 3), (400, 1), (404, 1), (409, 1), (422, 1), (301, 1)]
    {
        let path = format!("/s{code}");
        bench.upstream.on(&path, [status(code)]);
        let view = bench.check(&format!("a: {{ url: $UP{path}, {QUICK} }}"), json!(null), "a=failed run=failed");
        assert_eq!(bench.upstream.effects_on(&path).len(), attempts, "{code}");
        assert_eq!(view["tasks"]["a"]["status_code"], code);
        assert_eq!(view["tasks"]["a"]["error"]["code"], "http_status");
    }
    bench.upstream.on("/once", [status(503)]);
    bench.check("a: { url: $UP/once, retry: never }", json!(null), "a=failed run=failed");
    bench.check("a: { url: $UP/once, retries: 0 }", json!(null), "a=failed run=failed");
    assert_eq!(bench.upstream.effects_on("/once").len(), 2, "once each");
    // Nothing listens on this port: a network failure has no status.
    let view =
        bench.check(&format!("a: {{ url: 'http://127.0.0.1:1/', {QUICK} }}"), json!(null), "a=failed run=failed");
    assert_eq!((&view["tasks"]["a"]["status_code"], view["tasks"]["a"]["attempt"].as_u64()), (&Value::Null, Some(3)));
}

#[test]
fn decision_6_retry_after_is_honoured() {
    let upstream = Upstream::start();
    let server = Server::with_virtual_clock();
    upstream.on("/busy", [reply(429, &[("Retry-After", "120")], ""), status(200)]);
    let workflow = server.workflow(&upstream.fill(&format!("a: {{ url: $UP/busy, {QUICK} }}")));
    let run = server.trigger(&workflow, &json!(null));
    let view = server.when(&run, "a", "retrying");
    let wait = micros(&view["tasks"]["a"]["next_attempt_at"]) - micros(&view["tasks"]["a"]["started_at"]);
    assert!(
        (120_000_000..180_000_000).contains(&wait),
        "the server's two minutes, not the policy's ten milliseconds: {wait} µs"
    );
    assert_eq!(view["status"], "waiting");
    assert_eq!(view["waiting_for"][0]["kind"], "retry");
    server.advance("60s");
    assert_eq!(upstream.effects_on("/busy").len(), 1, "not early");
    server.advance("120s");
    assert_eq!(outcome(&server.finished(&run)), "a=success run=completed");
    assert_eq!(upstream.effects_on("/busy").len(), 2);
}

#[test]
fn decision_3_an_attempt_cut_by_its_timeout_ends_as_timeout() {
    let bench = Bench::new();
    bench.upstream.on("/slow", [Act::Hang]);
    let steps = "a: { url: $UP/slow, timeout: 100ms, retries: 0 }\nb: { noop: {}, needs: [a], if: \"tasks.a.status == 'timeout'\" }\nc: { noop: {}, needs: [a] }";
    let view = bench.check(steps, json!(null), "a=timeout b=success c=skipped run=completed");
    assert_eq!(view["tasks"]["a"]["status_code"], Value::Null);
    bench.upstream.wait_for_hangup();
    bench.upstream.on("/slow-once", [Act::Hang, status(200)]);
    let view = bench.check(
        &format!("a: {{ url: $UP/slow-once, timeout: 300ms, {QUICK} }}"),
        json!(null),
        "a=success run=completed",
    );
    assert_eq!(view["tasks"]["a"]["attempt"], 2, "a timeout is tried again");
}

#[test]
fn a_trigger_can_wait_for_the_end() {
    let bench = Bench::new();
    bench.upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    let quick = bench.server.workflow("a: { noop: {} }");
    let view = bench.server.post(&format!("/api/v1/workflows/{quick}/trigger?wait=30s"), &json!({ "x": 1 })).data(201);
    assert_eq!((view["status"].as_str(), &view["input"]), (Some("completed"), &json!({ "x": 1 })));
    let slow = bench.server.workflow(&bench.upstream.fill("a: { url: $UP/held }"));
    let view = bench.server.post(&format!("/api/v1/workflows/{slow}/trigger?wait=50ms"), &json!(null)).data(201);
    assert_eq!(outcome(&view), "a=running run=running", "finished or not");
    bench.upstream.release("/held");
    bench.server.finished(view["id"].as_str().unwrap());
    for bad in ["61s", "soon", "-1s", ""] {
        let answer = bench.server.post(&format!("/api/v1/workflows/{quick}/trigger?wait={bad}"), &json!(null));
        assert_eq!(answer.refusal(422), "invalid_parameter", "{bad}");
    }
}

#[test]
fn p11_the_same_key_means_the_same_run() {
    let mut server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let other = server.workflow("a: { noop: {} }");
    let path = |workflow: &str| format!("/api/v1/workflows/{workflow}/trigger");
    let key = [("Idempotency-Key", "order-1")];
    // A refused request does not use up the key.
    assert_eq!(
        server.send("POST", &path(&workflow), &[key[0], ("Content-Type", "application/json")], b"{").refusal(400),
        "malformed_json"
    );
    assert_eq!(
        server.post_with(&format!("{}?label=bad", path(&workflow)), &key, &json!(1)).refusal(422),
        "invalid_parameter"
    );
    assert_eq!(server.post_with(&path("missing"), &key, &json!({ "b": 2, "a": 1 })).status, 404);
    let first = server.post_with(&path(&workflow), &key, &json!({ "b": 2, "a": 1 })).data(201);
    assert_eq!(first["deduplicated"], Value::Null);
    let run = first["run_id"].as_str().unwrap().to_owned();
    server.finished(&run);
    let check = |server: &Server| {
        // The body is compared by meaning, not by bytes.
        let again = server.send(
            "POST",
            &path(&workflow),
            &[key[0], ("Content-Type", "application/json")],
            br#"{ "a": 1, "b": 2 }"#,
        );
        let again = again.data(200);
        assert_eq!((again["run_id"].as_str(), again["deduplicated"].as_bool()), (Some(run.as_str()), Some(true)));
        assert_eq!((again["status"].as_str(), &again["started_at"]), (Some("completed"), &first["started_at"]));
        let differs = server.post_with(&path(&workflow), &key, &json!({ "a": 2 }));
        assert_eq!(differs.refusal(422), "idempotency_key_reused");
        let labelled = server.post_with(&format!("{}?label=a:b", path(&workflow)), &key, &json!({ "b": 2, "a": 1 }));
        assert_eq!(labelled.refusal(422), "idempotency_key_reused");
        assert_eq!(server.list(&format!("/api/v1/runs?workflow={workflow}")).len(), 1);
    };
    check(&server);
    server.crash_and_restart();
    check(&server);
    server.post_with(&path(&other), &key, &json!({ "a": 2 })).data(201);
}

#[test]
fn i24_concurrent_duplicates_are_one_run() {
    let server = Server::start();
    let api = *server;
    let workflow = server.workflow("a: { noop: {} }");
    let path = format!("/api/v1/workflows/{workflow}/trigger");
    for round in 0..5 {
        let key = format!("k{round}");
        let answers: Vec<Value> = std::thread::scope(|scope| {
            let ask = || {
                let answer = api.post_with(&path, &[("Idempotency-Key", &key)], &json!({ "round": round }));
                assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
                answer.data(answer.status)
            };
            let callers: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
            callers.into_iter().map(|c| c.join().unwrap()).collect()
        });
        let runs: BTreeSet<&str> = answers.iter().map(|a| a["run_id"].as_str().unwrap()).collect();
        assert_eq!(runs.len(), 1);
        assert_eq!(answers.iter().filter(|a| a["deduplicated"] != true).count(), 1, "one of them started the run");
    }
    assert_eq!(server.list("/api/v1/runs").len(), 5);
}

#[test]
fn r13_runs_are_filtered_and_listed_page_by_page() {
    let bench = Bench::new();
    let good = bench.server.workflow("a: { noop: {} }");
    let bad = bench.server.workflow(&bench.upstream.fill("a: { url: $UP/bad }"));
    let sleepy = bench.server.workflow("a: { sleep: 1d }");
    let start = |workflow: &str, query: &str| {
        let started =
            bench.server.post(&format!("/api/v1/workflows/{workflow}/trigger{query}"), &json!(null)).data(201);
        started["run_id"].as_str().unwrap().to_owned()
    };
    let mut all: Vec<String> =
        (0..7).map(|i| start(&good, if i % 2 == 0 { "?label=team:red&label=n:1" } else { "" })).collect();
    all.push(start(&bad, "?label=team:blue"));
    all.push(start(&sleepy, ""));
    for run in &all[..8] {
        bench.server.finished(run);
    }
    bench.server.when(&all[8], "a", "sleeping");
    let ids = |query: &str| -> Vec<String> {
        let mut found: Vec<String> = bench
            .server
            .list(&format!("/api/v1/runs{query}"))
            .iter()
            .map(|r| r["id"].as_str().unwrap().to_owned())
            .collect();
        found.sort();
        found
    };
    let sorted = |runs: &[&String]| {
        let mut runs: Vec<String> = runs.iter().map(|r| (*r).clone()).collect();
        runs.sort();
        runs
    };
    let goods: Vec<&String> = all[..7].iter().collect();
    let reds: Vec<&String> = goods.iter().step_by(2).copied().collect();
    for (query, expected) in [
        (String::new(), all.iter().collect()),
        (format!("?workflow={good}"), goods.clone()),
        ("?status=completed".into(), goods.clone()),
        ("?status=success".into(), goods.clone()),
        ("?status=failed".into(), vec![&all[7]]),
        ("?status=failed,waiting".into(), vec![&all[7], &all[8]]),
        ("?status=cancelled".into(), vec![]),
        ("?label=team:red".into(), reds.clone()),
        ("?label=n:1".into(), reds.clone()),
        ("?label=team:blue".into(), vec![&all[7]]),
        ("?label=team:green".into(), vec![]),
        (format!("?label=team:red&workflow={bad}"), vec![]),
        ("?since=2100-01-01T00:00:00Z".into(), vec![]),
        ("?until=2100-01-01T00:00:00Z&since=2020-01-01T00:00:00Z".into(), all.iter().collect()),
    ] {
        assert_eq!(ids(&query), sorted(&expected), "{query}");
    }
    let below = bench.server.list(&format!("/api/v1/workflows/{bad}/runs"));
    assert_eq!(below.iter().map(|r| r["id"].as_str().unwrap()).collect::<Vec<_>>(), [&all[7]]);
    // Small pages give everything once, newest first.
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = bench.server.get(&format!("/api/v1/runs?limit=2{cursor}")).json();
        seen.extend(page["data"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let newest_first: Vec<String> = sorted(&all.iter().collect::<Vec<_>>()).into_iter().rev().collect();
    assert_eq!(seen, newest_first);
    assert_eq!(bench.server.run(&all[0])["labels"], json!({ "team": "red", "n": "1" }));
    let many: String = (0..17).map(|i| format!("&label=l{i}:v")).collect();
    let answer = bench.server.post(&format!("/api/v1/workflows/{good}/trigger?{}", &many[1..]), &json!(null));
    assert_eq!(answer.refusal(422), "invalid_parameter", "at most 16 labels");
}

#[test]
fn a_run_is_found_only_below_its_own_workflow() {
    let server = Server::start();
    let (mine, other) = (server.workflow("a: { sleep: 1d }"), server.workflow("a: { noop: {} }"));
    let run = server.trigger(&mine, &json!(null));
    assert_eq!(server.get(&format!("/api/v1/workflows/{mine}/runs/{run}")).status, 200);
    assert_eq!(server.get(&format!("/api/v1/workflows/{other}/runs/{run}")).refusal(404), "not_found");
    let cancel =
        |workflow: &str| server.send("POST", &format!("/api/v1/workflows/{workflow}/runs/{run}/cancel"), &[], b"");
    assert_eq!(cancel(&other).refusal(404), "not_found");
    server.when(&run, "a", "sleeping");
    assert_eq!(cancel(&mine).data(200)["status"], "cancelled");
}

/// The names `PRODUCT.md` lists.
const EVENTS: &[&str] = &[
    "run.created",
    "run.waiting",
    "run.resumed",
    "run.cancelled",
    "run.completed",
    "run.failed",
    "run.timeout",
    "step.scheduled",
    "step.leased",
    "step.started",
    "step.heartbeat",
    "step.retrying",
    "step.succeeded",
    "step.received",
    "step.failed",
    "step.timeout",
    "step.skipped",
    "step.cancelled",
    "timer.set",
    "wait.opened",
    "wait.closed",
    "late_result",
];

#[test]
fn p3_the_history_has_every_event_in_order() {
    let bench = Bench::new();
    let steps = r#"
a: { url: $UP/a }
nap: { sleep: 20ms, needs: [a] }
wait: { wait_for_webhook: { timeout: 50ms }, needs: [nap] }
skip: { noop: {}, needs: [wait] }
end: { noop: {}, needs: [wait], if: "tasks.wait.status == 'timeout'" }"#;
    let view =
        bench.check(steps, json!(null), "a=success nap=success wait=timeout skip=skipped end=success run=completed");
    let run = view["id"].as_str().unwrap();
    let events = bench.server.events(run);
    let line = |e: &Value| match e["step"].as_str() {
        Some(step) => format!("{} {step}", e["type"].as_str().unwrap()),
        None => e["type"].as_str().unwrap().to_owned(),
    };
    let history: Vec<String> = events.iter().map(line).collect();
    let expected = [
        "run.created",
        "step.started a",
        "step.succeeded a",
        "timer.set nap",
        "run.waiting",
        "step.succeeded nap",
        "wait.opened wait",
        "step.timeout wait",
        "step.skipped skip",
        "step.started end",
        "run.resumed",
        "step.succeeded end",
        "run.completed",
    ];
    assert_eq!(history, expected);
    assert!(events.iter().all(|e| EVENTS.contains(&e["type"].as_str().unwrap())));
    assert!(events.windows(2).all(|w| micros(&w[0]["at"]) <= micros(&w[1]["at"])), "I39");
    let page = bench.server.get(&format!("/api/v1/runs/{run}/events?limit=2&cursor=3")).json();
    assert_eq!(
        (page["data"][0]["seq"].as_u64(), page["data"].as_array().unwrap().len(), &page["next"]),
        (Some(4), 2, &json!("5"))
    );
    let list = bench.server.get(&format!("/api/v1/runs/{run}/steps")).json();
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().map(|s| s["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "nap", "wait", "skip", "end"]);
}

#[test]
fn r16_p10_cancel_stops_the_run_and_its_request() {
    let bench = Bench::new();
    bench.upstream.on("/hang", [Act::Hang]);
    let steps = "a: { url: $UP/hang }\nnap: { sleep: 1d }\nb: { url: $UP/b, needs: [a] }";
    let workflow = bench.server.workflow(&bench.upstream.fill(steps));
    let run = bench.server.trigger(&workflow, &json!(null));
    bench.upstream.wait_for("/hang", 1);
    let body = json!({ "actor": "ada", "reason": "changed her mind" });
    let answer = bench.server.post(&format!("/api/v1/runs/{run}/cancel"), &body).data(200);
    assert_eq!((answer["id"].as_str(), answer["status"].as_str()), (Some(run.as_str()), Some("cancelled")));
    let view = bench.server.run(&run);
    assert_eq!(view["status"], "cancelled", "P7: read your writes");
    assert_eq!(view["cancelled_by"], "ada");
    assert_eq!(view["waiting_for"], json!([]));
    assert_eq!(view["tasks"]["a"]["status"], "cancelled");
    assert_eq!(view["tasks"]["nap"]["status"], "cancelled");
    bench.upstream.wait_for_hangup();
    assert_eq!(bench.server.cancel(&run).data(200)["status"], "cancelled", "again: the same");
    let last = bench.server.events(&run).pop().unwrap();
    assert_eq!((&last["type"], &last["actor"]), (&json!("run.cancelled"), &json!("ada")));
    assert_eq!(bench.upstream.effects_on("/b").len(), 0);
}

#[test]
fn p10_an_answer_after_a_cancel_changes_nothing() {
    let bench = Bench::new();
    bench.upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    let workflow = bench.server.workflow(&bench.upstream.fill("a: { url: $UP/held }\nb: { url: $UP/b, needs: [a] }"));
    let run = bench.server.trigger(&workflow, &json!(null));
    bench.upstream.wait_for("/held", 1);
    bench.server.cancel(&run).data(200);
    bench.upstream.release("/held");
    // Another run completes after the late answer has arrived.
    let later = bench.server.finished(&bench.server.trigger(&workflow, &json!(null)));
    assert_eq!(outcome(&later), "a=success b=success run=completed");
    let view = bench.server.run(&run);
    assert_eq!(
        (view["status"].as_str(), view["tasks"]["a"]["status"].as_str()),
        (Some("cancelled"), Some("cancelled"))
    );
    assert_ne!(view["tasks"]["b"]["status"], "success");
    assert_eq!(bench.upstream.effects_on("/b").len(), 1, "of the other run");
}

#[test]
fn p10_cancel_after_the_end_is_a_conflict() {
    let bench = Bench::new();
    for (steps, status) in [("a: { noop: {} }", "completed"), ("a: { url: $UP/bad }", "failed")] {
        let view = bench.play(steps, json!(null));
        let answer = bench.server.cancel(view["id"].as_str().unwrap());
        assert_eq!(answer.refusal(409), "run_ended");
        assert!(answer.text().contains(status), "the message names the status: {}", answer.text());
        assert_eq!(bench.server.run(view["id"].as_str().unwrap()), view, "nothing changed");
    }
}

#[test]
fn r24_a_thousand_steps_fan_out_and_join() {
    let server = Server::start();
    let middle: String = (0..1_000).map(|i| format!("s{i}: {{ noop: {{}}, needs: [start] }}\n")).collect();
    let names: Vec<String> = (0..1_000).map(|i| format!("s{i}")).collect();
    let steps = format!("start: {{ noop: {{}} }}\n{middle}end: {{ noop: {{}}, needs: [{}] }}", names.join(", "));
    let view = server.play(&steps, &json!(null));
    assert_eq!(view["status"], "completed");
    assert!(view["tasks"].as_object().unwrap().values().all(|s| s["status"] == "success"));
    let events = server.events(view["id"].as_str().unwrap());
    assert_eq!(events.iter().filter(|e| e["type"] == "step.started").count(), 1_002);
    let ended: BTreeSet<&str> =
        events.iter().filter(|e| e["type"] == "step.succeeded").map(|e| e["step"].as_str().unwrap()).collect();
    assert_eq!(ended.len(), 1_002, "each once");
}

#[test]
fn large_payloads_survive_a_sleep_and_a_crash() {
    let upstream = Upstream::start();
    let mut server = Server::with_virtual_clock();
    let large = |word: &str| word.repeat(20_000 / word.len());
    upstream.on("/get", [json(200, json!({ "text": large("response ") }))]);
    let steps = r#"
get: { url: $UP/get }
nap: { sleep: 1h, needs: [get] }
use:
  url: $UP/use
  needs: [get, nap]
  if: "tasks.get.body.text != trigger.body.text"
  body: { trigger: "{{trigger.body.text}}", response: "{{tasks.get.body.text}}" }"#;
    let workflow = server.workflow(&upstream.fill(steps));
    for crash in [false, true] {
        let run = server.trigger(&workflow, &json!({ "text": large("trigger ") }));
        server.when(&run, "nap", "sleeping");
        if crash {
            server.crash_and_restart();
        }
        server.advance("1h");
        assert_eq!(outcome(&server.finished(&run)), "get=success nap=success use=success run=completed");
        let used = upstream.effects_on("/use").pop().unwrap();
        assert_eq!(used.json(), json!({ "trigger": large("trigger "), "response": large("response ") }));
    }
    assert_eq!(upstream.effects_on("/get").len(), 2, "resuming executes nothing again");
}

#[test]
fn set_and_log_steps_need_no_upstream() {
    let server = Server::start();
    let steps = "s: { set: { total: \"{{trigger.body.n}}\", who: \"n={{trigger.body.n}}\" } }\nl: { log: { message: \"total {{tasks.s.body.total}}\", level: warning }, needs: [s] }";
    let view = server.play(steps, &json!({ "n": 3 }));
    assert_eq!(outcome(&view), "s=success l=success run=completed");
    assert_eq!(view["tasks"]["s"]["body"], json!({ "total": 3, "who": "n=3" }));
    eventually("the message is logged", || server.log().contains("total 3").then_some(()));
}

#[test]
fn a_disabled_workflow_starts_nothing() {
    let server = Server::start();
    server.define("name: off\nenabled: false\ntasks: { a: { noop: {} } }");
    assert_eq!(server.post("/api/v1/workflows/off/trigger", &json!(null)).refusal(409), "workflow_disabled");
    assert_eq!(server.list("/api/v1/runs"), Vec::<Value>::new());
}

/// The budget: one durable write for each sequential step, and no read.
#[test]
fn a_sequential_step_costs_one_commit_and_no_read() {
    let server = Server::start();
    let step = |i: usize| {
        if i == 0 { "s0: { noop: {} }\n".into() } else { format!("s{i}: {{ needs: [s{}], noop: {{}} }}\n", i - 1) }
    };
    let workflow = server.workflow(&(0..10).map(step).collect::<String>());
    let counter = |name: &str| -> u64 {
        let text = server.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("onward_store_{name} ")));
        line.expect(name).parse().expect("a number")
    };
    let read = || ["commits_total", "records_total", "commit_reads_total"].map(counter);
    let before = read();
    server.finished(&server.trigger(&workflow, &json!(null)));
    let after = read();
    let spent: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(spent, [11, 11, 0], "commits, records, reads: one to create the run and one for each step");
}
