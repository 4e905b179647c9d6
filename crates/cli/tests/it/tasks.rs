//! Tasks, as producers and operators see them: submitting, listing, retrying, cancelling, deleting, waiting.

use crate::harness::{Answer, Server, eventually, micros, names};
use serde_json::{Value, json};
use std::collections::HashSet;

fn get(server: &Server, query: &str) -> Vec<String> {
    let tasks = server.list(&format!("/api/v1/tasks?{query}"));
    tasks.iter().map(|task| task["id"].as_str().expect("an id").to_owned()).collect()
}

/// Claims the next task of a type and reports a failure.
fn fail_once(server: &Server, name: &str, how: Value) {
    server.claim_one("w", name).report("fail", how).data(200);
}

#[test]
fn w1_w3_a_task_is_accepted_without_any_worker() {
    let mut server = Server::start();
    let seen = server.post("/api/v1/tasks", &json!({ "type": "unclaimed.this.v1", "payload": { "n": 1 } }));
    let seen = seen.data(201);
    let id = seen["task_id"].as_str().expect("an id").to_owned();
    assert_eq!((&seen["status"], &seen["deduplicated"]), (&json!("pending"), &json!(false)));
    assert_eq!(seen["run_id"], json!(id.replace("task_", "run_")), "a plain task and its run share the same id");
    // Accepted means durable.
    server.crash_and_restart();
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["input"]), (&json!("pending"), &json!({ "n": 1 })));
    // A worker that connects later does the task (W2). Producer and worker only know the server (W3).
    let claimed = server.claim_one("late", "unclaimed.%");
    assert_eq!((claimed.id(), &claimed.view["input"]), (id.as_str(), &json!({ "n": 1 })));
    claimed.complete(json!("done")).data(200);
    assert_eq!(server.task(&id)["status"], "succeeded");
}

#[test]
fn w4_w5_a_task_has_all_its_fields_in_every_state() {
    let server = Server::with_virtual_clock();
    let request = json!({ "type": "fields.v1", "payload": [1, { "a": null }], "priority": 7, "max_attempts": 2,
        "labels": { "team": "billing" }, "concurrency_key": "acme", "idempotency_key": "k-1" });
    let id = server.submit_with(&request);
    let pending = server.task(&id);
    let expected = json!({ "type": "fields.v1", "input": [1, { "a": null }], "priority": 7, "max_attempts": 2,
        "labels": { "team": "billing" }, "concurrency_key": "acme", "attempt": 0, "result": null, "error": null,
        "leased_by": null, "lease_until": null, "started_at": null, "finished_at": null, "status": "pending",
        "progress": null, "workflow": null, "released_as": null, "next_attempt_at": null, "run_at": null });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&pending[field], value, "{field}");
    }
    let claimed = server.claim_one("w", "fields.v1");
    assert_eq!((&claimed.view["attempt"], &claimed.view["max_attempts"]), (&json!(1), &json!(2)));
    let leased = server.task(&id);
    assert_eq!(
        (&leased["status"], &leased["attempt"], &leased["leased_by"]),
        (&"leased".into(), &1.into(), &"w".into())
    );
    claimed.fail("the printer is on fire").data(200);
    let again = server.task(&id);
    assert_eq!((&again["status"], &again["error"]["message"]), (&"pending".into(), &"the printer is on fire".into()));
    assert_eq!((&again["error"]["code"], &again["leased_by"]), (&"worker_error".into(), &Value::Null));
    server.advance("2m");
    server.claim_one("w", "fields.v1").fail("still").data(200);
    assert_eq!(server.task(&id)["status"], "failed");
    let other = server.submit("fields.v1", Value::Null);
    assert_eq!((&server.task(&other)["priority"], &server.task(&other)["max_attempts"]), (&json!(100), &json!(3)));
    server.post(&format!("/api/v1/tasks/{other}/cancel"), &json!({})).data(200);
    assert_eq!(server.task(&other)["status"], "cancelled");
}

#[test]
fn w6_old_versions_of_a_type_stay_executable() {
    let server = Server::start();
    let old = server.submit("billing.invoice.v1", json!("old"));
    let new = server.submit("billing.invoice.v2", json!("new"));
    assert_eq!(server.claim_one("new", "billing.invoice.v2").id(), new);
    assert!(server.claim("new", &["billing.invoice.v2"], 5).is_empty(), "it never sees the other version");
    assert_eq!(server.claim_one("old", "billing.invoice.v1").id(), old);
}

/// Worker tasks: attempt² minutes plus up to 10 %, three executions.
#[test]
fn w12_w13_a_task_is_retried_after_one_minute_then_four_then_fails() {
    let server = Server::with_virtual_clock();
    let mut waits = Vec::new();
    for n in 0..8 {
        let id = server.submit("retry.v1", json!(n));
        for (failures, from, to) in [(1, 60, 66), (2, 240, 264)] {
            fail_once(&server, "retry.v1", json!({ "error": { "message": format!("no {failures}") } }));
            let task = server.task(&id);
            assert_eq!((&task["status"], &task["attempt"]), (&json!("pending"), &json!(failures)), "{task:#}");
            let events = server.task_events(&id);
            let retried = events.iter().rev().find(|e| e["type"] == "step.retrying").expect("an event");
            let wait = micros(&task["next_attempt_at"]) - micros(&retried["at"]);
            assert!((from * 1_000_000..=to * 1_000_000).contains(&wait), "after failure {failures}: {wait} µs");
            waits.push(wait / failures / failures);
            server.advance(&format!("{}s", from - 2));
            assert!(server.claim("w", &["retry.v1"], 1).is_empty(), "not before its time");
            server.advance(&format!("{}s", to - from + 3));
        }
        fail_once(&server, "retry.v1", json!({ "error": { "message": "no 3", "code": "printer" } }));
        let task = server.task(&id);
        assert_eq!((&task["status"], &task["attempt"]), (&json!("failed"), &json!(3)), "{task:#}");
        assert_eq!(task["error"], json!({ "code": "printer", "message": "no 3" }));
        server.advance("1d");
        assert!(server.claim("w", &["retry.v1"], 1).is_empty());
        let events = server.task_events(&id);
        let types = names(&events);
        assert_eq!(types.iter().filter(|name| **name == "step.leased").count(), 3, "{types:?}");
        assert_eq!(types.last(), Some(&"run.failed"));
    }
    let different: HashSet<i64> = waits.iter().copied().collect();
    assert!(different.len() > 8, "jitter: {waits:?}");
}

#[test]
fn w12_a_retry_policy_of_its_own_is_kept() {
    let server = Server::with_virtual_clock();
    let retry =
        json!({ "max_attempts": 4, "backoff": { "type": "exponential", "min": "10s", "max": "30s", "jitter": 0 } });
    let id = server.submit_with(&json!({ "type": "policy.v1", "retry": retry }));
    for seconds in [10, 20, 30] {
        fail_once(&server, "policy.v1", json!({ "error": { "message": "no" } }));
        let events = server.task_events(&id);
        let retried = events.iter().rev().find(|e| e["type"] == "step.retrying").expect("an event");
        let wait = micros(&server.task(&id)["next_attempt_at"]) - micros(&retried["at"]);
        assert_eq!(wait / 1_000_000, seconds);
        server.advance(&format!("{}s", seconds + 1));
    }
    fail_once(&server, "policy.v1", json!({ "error": { "message": "no" } }));
    assert_eq!(server.task(&id)["status"], "failed");
    // A whole number that does not fit into 64 bits would change on its way.
    let body = br#"{"type": "policy.v1", "payload": {"id": 123456789012345678901234567890}}"#;
    let refused = server.send("POST", "/api/v1/tasks", &[("Content-Type", "application/json")], body);
    assert_eq!(refused.refusal(400), "number_too_large");
    assert_eq!(
        (&refused.json()["error"]["at"]["column"], &refused.json()["error"]["hint"]),
        (&json!(41), &json!("send it as a string"))
    );
    // The worker's `retry_after` overrides the policy.
    let id = server.submit("policy.v1", json!(1));
    fail_once(&server, "policy.v1", json!({ "error": { "message": "no" }, "retry_after": "5s" }));
    server.advance("6s");
    fail_once(&server, "policy.v1", json!({ "error": { "message": "no" }, "final": true }));
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["attempt"]), (&json!("failed"), &json!(2)), "{task:#}");
    let id = server.submit_with(&json!({ "type": "policy.v1", "retry": "never" }));
    fail_once(&server, "policy.v1", json!({ "error": { "message": "no" } }));
    assert_eq!(server.task(&id)["status"], "failed");
}

#[test]
fn w12_a_waiting_attempt_can_be_made_now() {
    let server = Server::with_virtual_clock();
    let id = server.submit("now.v1", json!(1));
    assert_eq!(server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).refusal(409), "task_state");
    fail_once(&server, "now.v1", json!({ "error": { "message": "no" } }));
    let due = server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).data(200);
    assert_eq!(due, json!({ "task_id": id, "status": "pending" }));
    let claimed = server.claim_one("w", "now.v1");
    assert_eq!(claimed.attempt(), 2);
    assert_eq!(server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).refusal(409), "task_state");
    claimed.complete(json!(1)).data(200);
    assert_eq!(server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).refusal(409), "task_state");
}

#[test]
fn w15_a_key_makes_one_task() {
    let mut server = Server::start();
    let request = json!({ "type": "key.v1", "payload": { "a": 1, "b": 2 }, "idempotency_key": "order-1" });
    let first = server.post("/api/v1/tasks", &request).data(201);
    // The same request in another spelling, with the key in the header or in the body.
    let same = br#"{"idempotency_key":"order-1","payload":{"b":2,"a":1},"type":"key.v1"}"#;
    let again = server.send("POST", "/api/v1/tasks", &[("Content-Type", "application/json")], same).data(200);
    assert_eq!((&again["task_id"], &again["deduplicated"]), (&first["task_id"], &json!(true)));
    let plain = json!({ "type": "key.v1", "payload": { "a": 1, "b": 2 } });
    let again = server.post_with("/api/v1/tasks", &[("Idempotency-Key", "order-1")], &plain).data(200);
    assert_eq!(again["task_id"], first["task_id"]);
    // Another request under the same key.
    for other in [
        json!({ "type": "key.v1", "payload": { "a": 1, "b": 3 }, "idempotency_key": "order-1" }),
        json!({ "type": "key.v1", "payload": { "a": 1, "b": 2 }, "priority": 1, "idempotency_key": "order-1" }),
        json!({ "type": "key.v1", "idempotency_key": "order-1" }),
    ] {
        assert_eq!(server.post("/api/v1/tasks", &other).refusal(422), "idempotency_key_reused");
    }
    // Keys are separate for each type.
    let mut other = request.clone();
    other["type"] = "key.v2".into();
    assert_ne!(server.post("/api/v1/tasks", &other).data(201)["task_id"], first["task_id"]);
    server.crash_and_restart();
    server.claim_one("w", "key.v1").complete(json!("once")).data(200);
    let again = server.post("/api/v1/tasks", &request).data(200);
    assert_eq!(
        (&again["task_id"], &again["status"]),
        (&first["task_id"], &json!("succeeded")),
        "the answer has the current status"
    );
    assert!(server.claim("w", &["key.v1"], 5).is_empty());
    assert_eq!(get(&server, "type=key.v1").len(), 1);
}

#[test]
fn w15_twenty_requests_at_once_with_one_key_make_one_task() {
    let server = Server::start();
    let api = *server;
    let request = json!({ "type": "race.v1", "payload": 1, "idempotency_key": "same" });
    let racers: Vec<_> = (0..20)
        .map(|i| {
            let request = if i % 2 == 0 { request.clone() } else { json!([request.clone()]) };
            std::thread::spawn(move || api.post("/api/v1/tasks", &request))
        })
        .collect();
    let answers: Vec<Answer> = racers.into_iter().map(|racer| racer.join().expect("an answer")).collect();
    let view = |answer: &Answer| match answer.json()["data"].clone() {
        Value::Array(mut all) => all.remove(0),
        one => one,
    };
    assert!(answers.iter().all(|a| matches!(a.status, 200 | 201)), "{answers:?}");
    assert_eq!(answers.iter().filter(|a| view(a)["deduplicated"] == false).count(), 1);
    let ids: HashSet<String> = answers.iter().map(|a| view(a)["task_id"].to_string()).collect();
    assert_eq!((ids.len(), get(&server, "type=race.v1").len()), (1, 1));
}

#[test]
fn w15_a_key_may_occur_twice_in_a_bulk_request() {
    let server = Server::start();
    let item = |payload: u32, key: &str| json!({ "type": "list.v1", "payload": payload, "idempotency_key": key });
    let seen = server.post("/api/v1/tasks", &json!([item(1, "a"), item(2, "b"), item(1, "a")])).data(201);
    assert_eq!(seen[0]["task_id"], seen[2]["task_id"]);
    assert_eq!(seen[2]["deduplicated"], true);
    let refused = server.post("/api/v1/tasks", &json!([item(3, "c"), item(2, "a"), item(4, "d")]));
    assert_eq!(refused.status, 422, "{}", refused.text());
    let error = refused.json()["error"].to_string();
    assert!(error.contains("idempotency_key_reused") && error.contains("[1]"), "{error}");
    assert_eq!(get(&server, "type=list.v1").len(), 2, "all tasks of a request or none");
}

#[test]
fn w16_a_task_starts_at_its_run_at_or_after_its_delay() {
    let mut server = Server::with_virtual_clock();
    let now = server.get("/api/v1/dev/clock").data(200)["now"].clone();
    let at = api::rfc3339(kernel_time(micros(&now) + 7_200_000_000));
    let timed = server.submit_with(&json!({ "type": "later.v1", "payload": "timed", "run_at": at }));
    let delayed = server.submit_with(&json!({ "type": "later.v1", "payload": "delayed", "delay": "1h" }));
    let past = server.submit_with(&json!({ "type": "later.v1", "run_at": "2001-01-01T00:00:00Z" }));
    let claimed = server.claim("w", &["later.v1"], 5);
    assert_eq!(claimed.iter().map(|c| c.id()).collect::<Vec<_>>(), [past]);
    claimed[0].complete(json!(1)).data(200);
    assert_eq!((&server.task(&timed)["status"], &server.task(&timed)["run_at"]), (&json!("pending"), &json!(at)));
    let explanation = server.get(&format!("/api/v1/runs/{}/explain", timed.replace("task_", "run_"))).data(200);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["run_at"]),
        (&json!("scheduled_for_later"), &json!(at)),
        "{explanation:#}"
    );
    server.crash_and_restart();
    server.advance("59m");
    assert!(server.claim("w", &["later.v1"], 5).is_empty());
    server.advance("2m");
    let claimed = server.claim_one("w", "later.v1");
    assert_eq!(claimed.id(), delayed);
    claimed.complete(json!(1)).data(200);
    server.advance("58m");
    assert!(server.claim("w", &["later.v1"], 5).is_empty());
    server.advance("2m");
    let claimed = server.claim_one("w", "later.v1");
    assert_eq!(claimed.id(), timed);
    claimed.complete(json!(1)).data(200);
    for delay in [json!("367d"), json!("213503982d"), json!(u64::MAX / 1_000_000)] {
        let refused = server.post("/api/v1/tasks", &json!({ "type": "later.v1", "delay": delay }));
        assert_eq!(refused.refusal(422), "invalid_body", "{delay}");
        assert_eq!(refused.json()["error"]["at"]["path"], "delay");
    }
    // A task that is cancelled before its time never starts (W11).
    let gone = server.submit_with(&json!({ "type": "later.v1", "delay": "1h" }));
    server.post(&format!("/api/v1/tasks/{gone}/cancel"), &json!({})).data(200);
    server.advance("2h");
    assert!(server.claim("w", &["later.v1"], 5).is_empty());
}

fn kernel_time(micros: i64) -> kernel::Timestamp {
    kernel::Timestamp(micros)
}

/// An open claim gets a task as soon as it is due.
#[test]
fn w16_a_waiting_worker_gets_a_delayed_task_in_time() {
    let server = Server::start();
    let id = server.submit_with(&json!({ "type": "soon.v1", "delay": "700ms" }));
    let (answer, took) =
        server.claim_later(json!({ "worker_id": "w", "types": ["soon.v1"], "wait": "20s" })).join().expect("an answer");
    assert_eq!(answer.data(200)[0]["task_id"], json!(id));
    assert!(took.as_millis() < 2_000, "{took:?}");
}

#[test]
fn w17_the_events_of_a_task_are_complete() {
    let server = Server::with_virtual_clock();
    let id = server.submit("trail.v1", json!(1));
    let claimed = server.claim_one("w1", "trail.v1");
    claimed.report("heartbeat", json!({ "progress": { "n": 1 } })).data(200);
    claimed.fail("once").data(200);
    server.advance("2m");
    server.claim_one("w2", "trail.v1").complete(json!({ "ok": true })).data(200);
    let events = server.task_events(&id);
    let types = names(&events);
    assert_eq!(types.first(), Some(&"run.created"));
    assert_eq!(types.last(), Some(&"run.completed"));
    let steps: Vec<&str> = types.iter().copied().filter(|name| name.starts_with("step.")).collect();
    let leased = ["step.leased", "step.heartbeat", "step.retrying"];
    let position = |name: &str| steps.iter().position(|s| *s == name).unwrap_or_else(|| panic!("{name}: {steps:?}"));
    assert!(leased.windows(2).all(|pair| position(pair[0]) < position(pair[1])), "{steps:?}");
    assert_eq!(steps.iter().filter(|name| **name == "step.leased").count(), 2, "{steps:?}");
    assert_eq!(steps.last(), Some(&"step.succeeded"));
    for event in &events {
        micros(&event["at"]);
        if event["type"] == "step.leased" {
            assert!(event.to_string().contains("\"w"), "the event names the worker: {event}");
        }
    }
    let cancelled = server.submit("trail.v1", json!(2));
    server.post(&format!("/api/v1/tasks/{cancelled}/cancel"), &json!({ "reason": "a typo" })).data(200);
    let events = server.task_events(&cancelled);
    assert!(names(&events).contains(&"run.cancelled") && events.iter().any(|e| e.to_string().contains("a typo")));
}

#[test]
fn w11_cancel() {
    let server = Server::start();
    let cancel = |id: &str| server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({}));
    // 5c: an unknown task is no server error.
    assert_eq!(cancel("task_01jz8k3w9mz6xq4v7n5t2c0b1d").refusal(404), "not_found");
    assert_eq!(cancel("task_nonsense").refusal(400), "malformed_id");
    assert_eq!(cancel("run_01jz8k3w9mz6xq4v7n5t2c0b1d").refusal(400), "malformed_id");
    let pending = server.submit("stop.v1", json!(1));
    assert_eq!(cancel(&pending).data(200)["status"], "cancelled");
    assert_eq!(cancel(&pending).data(200)["status"], "cancelled", "again: the same");
    assert!(server.claim("w", &["stop.v1"], 1).is_empty(), "a cancelled task is never executed");
    let done = server.submit("stop.v1", json!(2));
    server.claim_one("w", "stop.v1").complete(json!(1)).data(200);
    assert_eq!(cancel(&done).refusal(409), "run_ended");
    assert_eq!(server.task(&done)["status"], "succeeded");
    let failed = server.submit("stop.v1", json!(3));
    fail_once(&server, "stop.v1", json!({ "error": { "message": "no" }, "final": true }));
    assert_eq!(cancel(&failed).refusal(409), "run_ended");
    // A task that waits for its next attempt.
    let waits = server.submit("stop.v1", json!(4));
    fail_once(&server, "stop.v1", json!({ "error": { "message": "no" } }));
    assert_eq!(cancel(&waits).data(200)["status"], "cancelled");
}

#[test]
fn w19_a_deleted_task_is_never_claimed_and_never_listed() {
    let mut server = Server::start();
    let ids: Vec<String> = (0..4).map(|n| server.submit("gone.v1", json!(n))).collect();
    let delete = |server: &Server, id: &str| server.delete(&format!("/api/v1/tasks/{id}"));
    let claimed = server.claim_one("w", "gone.v1");
    assert_eq!(claimed.id(), ids[0]);
    for id in &ids[..3] {
        assert_eq!(delete(&server, id).status, 204);
        assert_eq!(delete(&server, id).status, 404, "there is nothing left to delete");
    }
    for _ in 0..2 {
        assert_eq!(get(&server, "type=gone.v1"), [ids[3].clone()]);
        assert_eq!(get(&server, ""), [ids[3].clone()]);
        for id in &ids[..3] {
            for path in ["", "/events"] {
                assert_eq!(server.get(&format!("/api/v1/tasks/{id}{path}")).refusal(404), "not_found");
            }
            assert_eq!(server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).refusal(404), "not_found");
            assert_eq!(server.post(&format!("/api/v1/tasks/{id}/cancel"), &json!({})).refusal(404), "not_found");
        }
        let before = server.claim("w2", &["gone.v1"], 5);
        assert!(before.iter().all(|c| c.id() == ids[3]), "{before:?}");
        for claimed in before {
            claimed.report("snooze", json!({ "for": "0s" })).data(200);
        }
        server.crash_and_restart();
    }
    let late = crate::harness::Claimed { api: *server, ..claimed };
    let refused = late.complete(json!("late"));
    assert!(matches!(refused.status, 404 | 409), "{}", refused.text());
}

#[test]
fn w20_results_are_json_of_any_kind() {
    let server = Server::start();
    for result in [
        json!(null),
        json!(true),
        json!(1.5),
        json!("text"),
        json!([]),
        json!({}),
        json!({ "deep": [[[{ "a": [1, 2, { "b": "ü\u{0}" }] }]]] }),
        json!(9_007_199_254_740_993_i64),
    ] {
        let id = server.submit("json.v1", result.clone());
        let claimed = server.claim_one("w", "json.v1");
        assert_eq!(claimed.view["input"], result);
        claimed.complete(result.clone()).data(200);
        assert_eq!(server.task(&id)["result"], result);
    }
    // No result is null.
    let id = server.submit_with(&json!({ "type": "json.v1" }));
    let claimed = server.claim_one("w", "json.v1");
    assert_eq!(claimed.view["input"], Value::Null);
    claimed.report("complete", json!({})).data(200);
    assert_eq!((&server.task(&id)["status"], &server.task(&id)["result"]), (&json!("succeeded"), &Value::Null));
}

#[test]
fn w20_large_payloads_and_results_come_back_whole() {
    let mut server = Server::start();
    let large = json!({ "text": "ö".repeat(100_000) });
    let id = server.submit("large.v1", large.clone());
    let list: Vec<Value> = (0..40).map(|_| json!({ "type": "large.v1", "payload": large })).collect();
    server.post("/api/v1/tasks", &json!(list)).data(201);
    server.crash_and_restart();
    let claimed = server.claim_one("w", "large.v1");
    assert_eq!((claimed.id(), &claimed.view["input"]), (id.as_str(), &large));
    claimed.complete(large.clone()).data(200);
    server.crash_and_restart();
    let task = server.task(&id);
    assert_eq!((&task["result"], &task["input"]), (&large, &large));
    let rest = server.claim("w", &["large.v1"], 100);
    assert_eq!(rest.len(), 40);
    let done: Vec<Value> =
        rest.iter().map(|c| json!({ "task_id": c.id(), "claim_token": c.token(), "result": large })).collect();
    let work = json!({ "worker_id": "w", "types": ["large.v1"], "credits": 0, "done": done });
    let acks = server.post("/api/v1/work", &work).data(200)["acks"].clone();
    assert!(acks.as_array().expect("a list").iter().all(|ack| ack["status"] == "recorded"), "{acks}");
    // A report that is too large is refused and changes nothing.
    let huge = json!("x".repeat(300 * 1024));
    let large = json!({ "type": "large.v1", "payload": huge });
    for (request, place) in [(large.clone(), "payload"), (json!([{ "type": "large.v1" }, large]), "[1].payload")] {
        let refused = server.post("/api/v1/tasks", &request);
        assert_eq!(refused.refusal(413), "too_large");
        assert_eq!(refused.json()["error"]["at"]["path"], place);
    }
    let id = server.submit("large.v1", json!(1));
    let claimed = server.claim_one("w", "large.v1");
    let refused = claimed.complete(huge);
    assert!(matches!(refused.status, 413 | 422), "{}", refused.status);
    assert_eq!(server.task(&id)["status"], "leased");
}

#[test]
fn w21_a_notification_is_just_a_type() {
    let server = Server::start();
    let id = server.submit("notify.email.v1", json!({ "to": "ops@example.com", "subject": "hello" }));
    let claimed = server.claim_one("mailer", "notify.%");
    assert_eq!((claimed.id(), &claimed.view["type"]), (id.as_str(), &json!("notify.email.v1")));
    claimed.complete(json!({ "sent": true })).data(200);
}

#[test]
fn a_bulk_request_is_stored_whole_or_not_at_all() {
    let server = Server::start();
    let wrong = json!([
        { "type": "list.v1" },
        { "type": "no spaces" },
        { "type": "list.v1", "priority": 2_000_000, "max_attempts": 0, "run_at": "tomorrow" },
        { "type": "list.v1", "retry": { "max_attempts": "many" }, "labels": { "": "x" } },
        { "type": "list.v1", "delay": "soon", "timeouts": { "total": "never", "bogus": 1 } },
    ]);
    let refused = server.post("/api/v1/tasks", &wrong);
    refused.refusal(422);
    let problems = refused.json()["error"]["problems"].clone();
    let places: Vec<&str> =
        problems.as_array().expect("a list").iter().map(|p| p["at"]["path"].as_str().unwrap_or("?")).collect();
    for place in [
        "[1].type",
        "[2].priority",
        "[2].max_attempts",
        "[2].run_at",
        "[3].retry",
        "[3].labels",
        "[4].delay",
        "[4].timeouts",
    ] {
        assert!(places.iter().any(|at| at.starts_with(place)), "{place}: {places:?}");
    }
    assert!(places.iter().all(|at| !at.starts_with("[0]")), "{places:?}");
    assert!(get(&server, "").is_empty());
    let mistyped = json!([{ "type": "list.v1" }, { "type": 7 }]);
    let refused = server.post("/api/v1/tasks", &mistyped);
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("[1]"), "{}", refused.text());
    assert_eq!(server.post("/api/v1/tasks", &json!([])).refusal(422), "invalid_body");
    let many: Vec<Value> = (0..10_001).map(|_| json!({ "type": "list.v1" })).collect();
    assert_eq!(server.post("/api/v1/tasks", &json!(many)).refusal(422), "invalid_body");
    assert!(get(&server, "").is_empty());
    let most = &many[..2_000];
    let seen = server.post("/api/v1/tasks", &json!(most)).data(201);
    let ids: HashSet<String> = seen.as_array().expect("a list").iter().map(|v| v["task_id"].to_string()).collect();
    assert_eq!(ids.len(), 2_000);
    assert_eq!(server.get("/api/v1/types/list.v1").data(200)["ready"], 2_000);
}

/// An invalid request is refused with a reason and changes nothing.
#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let server = Server::start();
    let id = server.submit("good.v1", json!(1));
    let claimed = server.claim_one("w", "good.v1");
    let before = (server.task(&id), server.task_events(&id), server.list("/api/v1/runs").len());
    let garbage = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(""),
        json!("\u{0}"),
        json!("%"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({ "a": {} }),
        json!("x".repeat(5_000)),
    ];
    // Each field in turn gets each invalid value; some of the values are valid for some fields.
    let fine = |field: &str, value: &Value| match field {
        "payload" | "result" | "progress" => true,
        // Null or empty counts as absent.
        "priority" | "run_at" | "delay" | "max_attempts" | "retry" | "timeouts" | "concurrency_key"
        | "idempotency_key" | "callback_url" | "max" | "lease" | "wait" | "runtime" | "version" | "slots"
        | "retry_after" | "extend" | "code" | "level" | "result?"
            if value.is_null() =>
        {
            true
        }
        "labels" | "retry" | "timeouts" | "done" | "heartbeats" if *value == json!({}) || *value == json!([]) => true,
        "concurrency_key" | "callback_url" | "message" => {
            *value == json!("") || *value == json!("%") || field == "message"
        }
        "idempotency_key" => *value == json!("%"),
        "worker_id" | "runtime" | "version" | "code" => *value == json!("%"),
        "delay" | "retry_after" | "wait" => *value == json!(1.5),
        "for" | "lease" | "extend" | "timeouts.total" => *value == json!(1.5),
        "final" => value.is_boolean(),
        _ => false,
    };
    let task = |field: &str, value: &Value| {
        let mut body = json!({ "type": "bad.v1" });
        body[field] = value.clone();
        body
    };
    for value in &garbage {
        for field in [
            "type",
            "priority",
            "run_at",
            "delay",
            "max_attempts",
            "retry",
            "timeouts",
            "concurrency_key",
            "labels",
            "idempotency_key",
            "callback_url",
            "bogus",
        ] {
            if fine(field, value) {
                continue;
            }
            let answer = server.post("/api/v1/tasks", &task(field, value));
            assert!(matches!(answer.status, 400 | 422), "{field} = {value}: {} {}", answer.status, answer.text());
        }
        for field in ["worker_id", "types", "max", "lease", "wait", "runtime", "version", "slots", "bogus"] {
            let mut body = json!({ "worker_id": "g", "types": ["none.v1"], "wait": "0s" });
            body[field] = value.clone();
            if fine(field, value) {
                continue;
            }
            let answer = server.post("/api/v1/tasks/claim", &body);
            assert!(matches!(answer.status, 400 | 422), "claim {field} = {value}: {} {}", answer.status, answer.text());
        }
        for field in ["worker_id", "types", "credits", "lease", "wait", "done", "heartbeats", "bogus"] {
            let mut body = json!({ "worker_id": "g", "types": ["none.v1"], "credits": 1, "wait": "0s" });
            body[field] = value.clone();
            if fine(field, value) {
                continue;
            }
            let answer = server.post("/api/v1/work", &body);
            assert!(matches!(answer.status, 400 | 422), "work {field} = {value}: {} {}", answer.status, answer.text());
        }
        for (what, field) in [
            ("complete", "claim_token"),
            ("complete", "bogus"),
            ("fail", "claim_token"),
            ("fail", "error"),
            ("fail", "final"),
            ("fail", "retry_after"),
            ("snooze", "claim_token"),
            ("snooze", "for"),
            ("heartbeat", "claim_token"),
            ("heartbeat", "extend"),
            ("logs", "claim_token"),
            ("logs", "lines"),
        ] {
            if fine(field, value) {
                continue;
            }
            let mut body = match what {
                "fail" => json!({ "error": { "message": "g" } }),
                "snooze" => json!({ "for": "1s" }),
                "logs" => json!({ "lines": [{ "message": "g" }] }),
                _ => json!({}),
            };
            body["claim_token"] = claimed.token().into();
            body[field] = value.clone();
            let answer = server.post(&format!("/api/v1/tasks/{id}/{what}"), &body);
            assert!((400..=422).contains(&answer.status), "{what} {field} = {value}: {}", answer.status);
        }
        for field in ["action", "filter", "dry_run", "actor", "bogus"] {
            let mut body = json!({ "action": "delete", "filter": { "type": "none.v1" }, "dry_run": true });
            body[field] = value.clone();
            if field == "filter" && *value == json!({})
                || field == "dry_run" && *value == json!(true)
                || field == "actor" && matches!(value.as_str(), Some("" | "%" | "\u{0}"))
            {
                continue;
            }
            let answer = server.post("/api/v1/tasks/bulk", &body);
            assert!(matches!(answer.status, 400 | 422), "bulk {field} = {value}: {} {}", answer.status, answer.text());
        }
        for field in ["runtime", "enabled", "description", "concurrency", "rate", "bogus"] {
            let is_fine = match field {
                "runtime" => matches!(value, Value::Null) || *value == json!("%"),
                "description" => value.is_null() || value.as_str().is_some_and(|text| text.len() < 2_000),
                "concurrency" => value.is_null() || *value == json!({}),
                "rate" => value.is_null(),
                "enabled" => value.is_boolean() || value.is_null(),
                _ => false,
            };
            if is_fine {
                continue;
            }
            let answer = server.put("/api/v1/types/bad.v1", &json!({ field: value }));
            assert!(matches!(answer.status, 400 | 422), "type {field} = {value}: {} {}", answer.status, answer.text());
        }
    }
    for id in [
        "x",
        "task_",
        "task_x",
        "%00",
        "task_01jz8k3w9mz6xq4v7n5t2c0b1d-9",
        "..",
        "task_01jz8k3w9mz6xq4v7n5t2c0b1d-99999999999",
    ] {
        for (method, path) in [("GET", ""), ("DELETE", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")]
        {
            let answer = server.send(method, &format!("/api/v1/tasks/{id}{path}"), &[], b"");
            assert!((400..=405).contains(&answer.status), "{method} {id}{path}: {}", answer.status);
        }
    }
    for query in ["status=open", "type=", "label=x", "since=yesterday", "limit=0", "limit=x", "cursor=x", "bogus=1"] {
        let answer = server.get(&format!("/api/v1/tasks?{query}"));
        assert!(matches!(answer.status, 400 | 422) || query == "type=", "{query}: {} {}", answer.status, answer.text());
    }
    for bytes in [&b""[..], b"{", b"[", b"nonsense", b"[{]", b"{\"type\":\"a.v1\",\"type\":\"b.v1\"}", b"\xff\xfe"] {
        for path in ["/tasks", "/tasks/claim", "/work", "/tasks/bulk"] {
            let headers = [("Content-Type", "application/json")];
            let answer = server.send("POST", &format!("/api/v1{path}"), &headers, bytes);
            assert!(matches!(answer.status, 400 | 422), "{path} {bytes:?}: {} {}", answer.status, answer.text());
        }
    }
    let after = (server.task(&id), server.task_events(&id), server.list("/api/v1/runs").len());
    assert_eq!(after, before);
    assert_eq!(server.get("/api/v1/types/bad.v1").status, 404, "no type was created");
}

#[test]
fn dead_letters_are_listed_with_evidence_and_released_by_one_call() {
    let mut server = Server::with_virtual_clock();
    let ids: Vec<String> = (0..3)
        .map(|n| {
            server.submit_with(&json!({ "type": "dead.v1", "payload": { "n": n }, "labels": { "n": n.to_string() } }))
        })
        .collect();
    for _ in 0..2 {
        fail_once(
            &server,
            "dead.v1",
            json!({ "error": { "message": "out of paper", "code": "printer" }, "final": true }),
        );
    }
    server.submit("fine.v1", json!(1));
    let dead = server.list("/api/v1/tasks?status=failed");
    assert_eq!(dead.iter().map(|t| t["id"].as_str().unwrap()).collect::<Vec<_>>(), [&ids[1], &ids[0]], "newest first");
    assert_eq!(dead[0]["error"], json!({ "code": "printer", "message": "out of paper" }));
    assert_eq!(dead[0]["released_as"], Value::Null);
    let events = server.task_events(&ids[0]);
    assert!(events.iter().any(|e| e["type"] == "step.failed" && e.to_string().contains("out of paper")));
    let release = |server: &Server| server.post(&format!("/api/v1/tasks/{}/retry", ids[0]), &json!({}));
    let new = release(&server).data(201);
    assert_eq!(new["replayed_from"], json!(ids[0].replace("task_", "run_")));
    let id = new["task_id"].as_str().expect("an id").to_owned();
    assert_eq!(release(&server).data(200), new, "again: the same task");
    server.crash_and_restart();
    assert_eq!(release(&server).data(200)["task_id"], json!(id));
    assert_eq!(server.task(&ids[0])["released_as"], json!(id));
    let task = server.task(&id);
    assert_eq!((&task["input"], &task["labels"]), (&json!({ "n": 0 }), &json!({ "n": "0" })), "the same content");
    assert_eq!((&task["attempt"], &task["status"]), (&json!(0), &json!("pending")));
    // Both the new task and the third one are ready.
    let claimed = server.claim("w", &["dead.v1"], 5);
    let got: HashSet<&str> = claimed.iter().map(|c| c.id()).collect();
    assert_eq!(got, HashSet::from([ids[2].as_str(), id.as_str()]));
    for claimed in &claimed {
        claimed.complete(json!("now it works")).data(200);
    }
    // Also with concurrent requests.
    let api = *server;
    let path = format!("/api/v1/tasks/{}/retry", ids[1]);
    let racers: Vec<_> = (0..10)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || api.post(&path, &json!({})).json()["data"]["task_id"].to_string())
        })
        .collect();
    let made: HashSet<String> = racers.into_iter().map(|racer| racer.join().expect("an answer")).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(get(&server, "type=dead.v1").len(), 5);
}

#[test]
fn bulk_changes_the_tasks_that_a_dry_run_listed() {
    let server = Server::with_virtual_clock();
    let bulk = |action: &str, filter: Value, dry: bool| {
        server.post("/api/v1/tasks/bulk", &json!({ "action": action, "filter": filter, "dry_run": dry })).data(200)
    };
    let many: Vec<Value> = (0..250)
        .map(|n| {
            json!({ "type": format!("bulk.{}.v1", n % 2), "payload": n,
        "labels": { "half": if n < 125 { "first" } else { "second" } } })
        })
        .collect();
    server.post("/api/v1/tasks", &json!(many)).data(201);
    server.submit("other.v1", json!(1));
    let counts = |status: &str| get(&server, &format!("type=bulk.%25&status={status}")).len();
    let dry = bulk("cancel", json!({ "type": "bulk.0.v1" }), true);
    assert_eq!((&dry["matched"], &dry["changed"], &dry["more"]), (&json!(125), &json!(0), &json!(false)), "{dry:#}");
    assert_eq!(dry["tasks"].as_array().expect("a list").len(), 100);
    assert_eq!(counts("pending"), 250, "a dry run changes nothing");
    let done = bulk("cancel", json!({ "type": "bulk.0.v1" }), false);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(125), &json!(125)));
    assert_eq!((counts("pending"), counts("cancelled")), (125, 125));
    assert_eq!(bulk("cancel", json!({ "type": "bulk.0.v1" }), false)["matched"], 0, "again: nothing to do");
    // Failed tasks are each released once.
    for _ in 0..30 {
        fail_once(&server, "bulk.1.v1", json!({ "error": { "message": "no" }, "final": true }));
    }
    for _ in 0..5 {
        fail_once(&server, "bulk.1.v1", json!({ "error": { "message": "no" } }));
    }
    assert_eq!(bulk("retry", json!({ "type": "bulk.%" }), true)["matched"], 35);
    let done = bulk("retry", json!({ "type": "bulk.%" }), false);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(35), &json!(35)));
    assert_eq!(bulk("retry", json!({ "type": "bulk.%" }), false)["matched"], 0);
    assert_eq!((counts("failed"), counts("pending")), (30, 125));
    assert_eq!(bulk("delete", json!({ "status": "failed" }), false)["changed"], 30);
    let labelled = bulk("delete", json!({ "type": "bulk.%", "label": "half:first" }), false);
    assert!(labelled["changed"].as_u64() > Some(100), "{labelled}");
    assert!(get(&server, "type=bulk.%25&label=half:first").is_empty());
    assert_eq!(bulk("delete", json!({ "since": "2100-01-01T00:00:00Z" }), true)["matched"], 0);
    assert_eq!(get(&server, "type=other.v1").len(), 1);
    assert_eq!(bulk("delete", json!({}), false)["more"], false);
    assert!(get(&server, "").is_empty());
    assert!(server.claim("w", &["%"], 5).is_empty());
}

#[test]
fn lists_are_filtered_and_paged() {
    let server = Server::with_virtual_clock();
    let mut ids = Vec::new();
    for n in 0..30 {
        let labels = json!({ "n": (n % 3).to_string(), "team": "a" });
        ids.push(server.submit_with(&json!({ "type": format!("page.{}.v1", n % 2), "payload": n, "labels": labels })));
    }
    let newest: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(get(&server, ""), newest);
    for limit in [1, 7, 29, 30, 31] {
        let mut seen = Vec::new();
        let mut cursor = String::new();
        for _ in 0..40 {
            let page = server.get(&format!("/api/v1/tasks?limit={limit}{cursor}")).json();
            let tasks = page["data"].as_array().expect("a list");
            assert!(tasks.len() <= limit);
            seen.extend(tasks.iter().map(|t| t["id"].as_str().expect("an id").to_owned()));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, newest, "pages of {limit}");
    }
    let even: Vec<String> = newest.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(get(&server, "type=page.0.v1"), even);
    assert_eq!(get(&server, "type=page.%25"), newest);
    // 5c: in a filter, too, `_` matches itself and `%` is a wildcard only at the end.
    for nothing in ["type=page_0.v1", "type=page_%25", "type=%25.v1", "type=page.%25.v1", "type=page"] {
        assert!(get(&server, nothing).is_empty(), "{nothing}");
    }
    assert_eq!(get(&server, "label=n:1").len(), 10);
    assert_eq!(get(&server, "label=n:1&label=team:a&type=page.1.v1").len(), 5);
    let claimed = server.claim("w", &["page.0.v1"], 4);
    assert_eq!(get(&server, "status=leased").len(), 4);
    claimed[0].complete(json!(1)).data(200);
    claimed[1].report("fail", json!({ "error": { "message": "x" }, "final": true })).data(200);
    claimed[2].fail("again").data(200);
    assert_eq!(get(&server, "status=leased"), [claimed[3].id()]);
    assert_eq!(get(&server, "status=succeeded"), [claimed[0].id()]);
    assert_eq!(get(&server, "status=failed"), [claimed[1].id()]);
    assert_eq!(get(&server, "status=pending").len(), 27);
    let middle = server.task(&ids[15])["created_at"].as_str().expect("a time").to_owned();
    let (since, until) = (get(&server, &format!("since={middle}")), get(&server, &format!("until={middle}")));
    assert_eq!(since.len() + until.len(), 30, "each on one side");
    assert!(since.contains(&ids[15]) && !until.contains(&ids[15]));
}

#[test]
fn a_request_can_wait_for_the_end_of_a_task() {
    let server = Server::start();
    let id = server.submit("wait.v1", json!(1));
    let early = server.get(&format!("/api/v1/tasks/{id}?wait=50ms")).data(200);
    assert_eq!(early["status"], "pending");
    let (api, path) = (*server, format!("/api/v1/tasks/{id}?wait=20s"));
    let waiting = std::thread::spawn(move || api.get(&path).data(200));
    server.claim_one("w", "wait.v1").complete(json!({ "sum": 3 })).data(200);
    assert_eq!(waiting.join().expect("an answer")["result"], json!({ "sum": 3 }));
}

#[test]
fn a_callback_url_is_called_when_a_task_ends() {
    let upstream = crate::harness::Upstream::start();
    let server = Server::start();
    let request = json!({ "type": "callback.v1", "payload": 1, "callback_url": upstream.fill("$UP/ended") });
    server.submit_with(&request);
    server.claim_one("w", "callback.v1").complete(json!({ "sum": 3 })).data(200);
    let calls = upstream.wait_for("/ended", 1);
    assert!(calls[0].json().to_string().contains("completed"), "{}", calls[0].json());
}

/// No acknowledged task is lost, whatever requests are open when the server is killed.
#[test]
fn w1_w2_acknowledged_tasks_survive_kill_9() {
    let mut server = Server::start();
    let mut acked = Vec::new();
    for round in 0..5 {
        let api = *server;
        let producers: Vec<_> = (0..4)
            .map(|p| {
                std::thread::spawn(move || {
                    let mut mine = Vec::new();
                    for n in 0..1_000 {
                        let body = json!({ "type": "keep.v1", "payload": [round, p, n] }).to_string();
                        match api.write("/api/v1/tasks", &[], body.as_bytes()) {
                            Ok(answer) if answer.status == 201 => {
                                mine.push(answer.json()["data"]["task_id"].as_str().expect("an id").to_owned());
                            }
                            _ => return mine,
                        }
                    }
                    mine
                })
            })
            .collect();
        eventually("some were recorded", || {
            let kind = server.get("/api/v1/types/keep.v1").json();
            (kind["data"]["ready"].as_u64() >= Some(20 * (round + 1))).then_some(())
        });
        server.kill();
        for producer in producers {
            acked.extend(producer.join().expect("a producer"));
        }
        server.start_again();
    }
    assert!(acked.len() > 50, "{}", acked.len());
    let mut left: HashSet<String> = acked.into_iter().collect();
    eventually("every acknowledged task is claimed", || {
        let claimed = server.claim("w", &["keep.v1"], 100);
        let done: Vec<Value> =
            claimed.iter().map(|c| json!({ "task_id": c.id(), "claim_token": c.token(), "result": 1 })).collect();
        server.post("/api/v1/work", &json!({ "worker_id": "w", "types": ["none.v1"], "credits": 0, "done": done }));
        claimed.iter().for_each(|c| _ = left.remove(c.id()));
        claimed.is_empty().then_some(())
    });
    assert!(left.is_empty(), "{left:?}");
    assert!(get(&server, "status=pending").is_empty());
}
