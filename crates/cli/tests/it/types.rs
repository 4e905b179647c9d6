//! Task types: which workers may claim a type's tasks, how many at once, and how many per time.

use crate::harness::{Claimed, Server};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn put(server: &Server, name: &str, rules: Value) -> Value {
    server.put(&format!("/api/v1/types/{name}"), &rules).data(200)
}

fn claim(server: &Server, worker: &str, name: &str) -> Vec<Claimed> {
    server.claim_with(&json!({ "worker_id": worker, "types": [name], "max": 100, "lease": "1h", "wait": "0s" }))
}

fn explain(server: &Server, task: &str) -> Value {
    server.get(&format!("/api/v1/runs/{}/explain", task.replace("task_", "run_"))).data(200)
}

#[test]
fn w18_a_type_can_be_shown_changed_and_listed() {
    let mut server = Server::start();
    assert_eq!(server.get("/api/v1/types/known.v1").refusal(404), "not_found");
    server.submit("known.v1", json!(1));
    let seen = server.get("/api/v1/types/known.v1").data(200);
    assert_eq!((&seen["enabled"], &seen["ready"], &seen["leased"]), (&json!(true), &json!(1), &json!(0)), "{seen:#}");
    let rules = json!({ "runtime": "python", "description": "Sends invoices", "concurrency": { "limit": 3, "per_key": 1 },
        "rate": { "limit": 10, "per": "1m", "per_key": true } });
    let kept = put(&server, "known.v1", rules.clone());
    for (field, value) in rules.as_object().expect("an object") {
        assert_eq!(&kept[field], value, "{field}");
    }
    // A field that is not named stays, null removes it.
    let changed = put(&server, "known.v1", json!({ "runtime": null, "description": "x" }));
    assert_eq!((&changed["runtime"], &changed["description"]), (&Value::Null, &json!("x")));
    assert_eq!(changed["rate"], rules["rate"]);
    server.crash_and_restart();
    let again = server.get("/api/v1/types/known.v1").data(200);
    assert_eq!((&again["rate"], &again["concurrency"]), (&rules["rate"], &rules["concurrency"]));
    for name in ["a.v1", "b.v1", "c_v1", "c.v1"] {
        put(&server, name, json!({}));
    }
    let names = |query: &str| -> Vec<String> {
        server
            .list(&format!("/api/v1/types?{query}"))
            .iter()
            .map(|t| t["name"].as_str().or(t["type"].as_str()).expect("a name").to_owned())
            .collect()
    };
    assert_eq!(names(""), ["a.v1", "b.v1", "c.v1", "c_v1", "known.v1"]);
    assert_eq!(names("prefix=c."), ["c.v1"]);
    assert_eq!(names("prefix=c_"), ["c_v1"], "5c: `_` matches itself");
    assert!(names("prefix=%25").is_empty());
    let page = server.get("/api/v1/types?limit=2").json();
    assert_eq!(page["next"], "b.v1");
    for wrong in [
        json!({ "concurrency": { "limit": 0 } }),
        json!({ "rate": { "limit": 1, "per": "0s" } }),
        json!({ "rate": { "limit": 0, "per": "1s" } }),
        json!({ "runtime": "" }),
    ] {
        assert_eq!(server.put("/api/v1/types/known.v1", &wrong).refusal(422), "invalid_body", "{wrong}");
    }
    assert_eq!(server.put("/api/v1/types/no%20name", &json!({})).refusal(422), "invalid_body");
}

#[test]
fn w18_only_workers_of_its_runtime_can_claim_a_type() {
    let server = Server::start();
    put(&server, "run.v1", json!({ "runtime": "python" }));
    let id = server.submit("run.v1", json!(1));
    let claim = |runtime: Value| {
        server.claim_with(&json!({ "worker_id": "w", "types": ["run.v1"], "runtime": runtime, "wait": "0s" }))
    };
    assert!(claim(json!("go")).is_empty());
    // An open claim of another runtime does not get it either.
    let open = server.claim_later(json!({ "worker_id": "go", "types": ["run.%"], "runtime": "go", "wait": "800ms" }));
    server.worker_when_seen("go");
    let second = server.submit("run.v1", json!(2));
    assert_eq!(open.join().expect("an answer").0.data(200), json!([]));
    assert_eq!(claim(json!("python"))[0].id(), id);
    assert_eq!(claim(Value::Null)[0].id(), second, "a worker without a runtime");
    let third = server.submit("run.v1", json!(3));
    assert!(claim(json!("go")).is_empty());
    put(&server, "run.v1", json!({ "runtime": "go" }));
    assert!(claim(json!("python")).is_empty(), "one runtime at a time");
    assert_eq!(claim(json!("go"))[0].id(), third);
}

/// Workers of another runtime do not count as busy workers.
#[test]
fn w18_explain_says_that_no_worker_has_the_runtime() {
    let server = Server::start();
    put(&server, "run.v1", json!({ "runtime": "python" }));
    server.claim_with(&json!({ "worker_id": "go", "types": ["run.v1"], "runtime": "go", "wait": "0s" }));
    let id = server.submit("run.v1", json!(1));
    let explanation = explain(&server, &id);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["workers_seen"]),
        (&json!("waiting_for_worker"), &json!(0)),
        "{explanation:#}"
    );
    assert_eq!(server.get("/api/v1/types/run.v1").data(200)["workers"], 0);
}

#[test]
fn w18_a_disabled_type_accepts_and_leases_nothing() {
    let mut server = Server::start();
    let id = server.submit("off.v1", json!(1));
    put(&server, "off.v1", json!({ "enabled": false }));
    assert_eq!(server.post("/api/v1/tasks", &json!({ "type": "off.v1" })).refusal(409), "type_disabled");
    // A repeated request for a task that was accepted before still succeeds.
    let keyed = json!({ "type": "keyed.v1", "idempotency_key": "k" });
    let first = server.submit_with(&keyed);
    put(&server, "keyed.v1", json!({ "enabled": false }));
    assert_eq!(server.post("/api/v1/tasks", &keyed).data(200)["task_id"], json!(first));
    let other = json!({ "type": "keyed.v1", "idempotency_key": "other" });
    assert_eq!(server.post("/api/v1/tasks", &other).refusal(409), "type_disabled");
    server.delete(&format!("/api/v1/tasks/{first}"));
    let list = json!([{ "type": "on.v1" }, { "type": "off.v1" }]);
    assert!(matches!(server.post("/api/v1/tasks", &list).status, 409 | 422));
    assert_eq!(server.list("/api/v1/tasks").len(), 1, "all tasks of a request or none");
    for _ in 0..2 {
        assert!(claim(&server, "w", "off.v1").is_empty());
        let explanation = explain(&server, &id);
        assert_eq!(
            (&explanation["reason"], &explanation["details"]["limit"]),
            (&json!("queued_by_limit"), &json!("type_disabled")),
            "{explanation:#}"
        );
        server.crash_and_restart();
    }
    let open = server.claim_later(json!({ "worker_id": "w", "types": ["off.%"], "wait": "30s" }));
    server.worker_when_seen("w");
    put(&server, "off.v1", json!({ "enabled": true }));
    assert_eq!(open.join().expect("an answer").0.data(200)[0]["task_id"], json!(id), "at once when it is enabled");
    server.submit("off.v1", json!(2));
}

#[test]
fn w18_a_paused_type_accepts_tasks_and_leases_none() {
    let mut server = Server::start();
    assert_eq!(server.post("/api/v1/types/none.v1/pause", &json!({})).refusal(404), "not_found");
    let id = server.submit("rest.v1", json!(1));
    let paused = server.post("/api/v1/types/rest.v1/pause", &json!({ "note": "the mailer is down" })).data(200);
    assert_eq!(paused["paused"]["note"], "the mailer is down");
    server.post("/api/v1/types/rest.v1/pause", &json!({ "note": "other" })).data(200);
    let second = server.submit("rest.v1", json!(2));
    server.crash_and_restart();
    assert!(claim(&server, "w", "rest.v1").is_empty());
    let explanation = explain(&server, &id);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["limit"]),
        (&json!("queued_by_limit"), &json!("type_paused")),
        "{explanation:#}"
    );
    assert!(explanation["summary"].as_str().expect("a text").contains("the mailer is down"), "{explanation:#}");
    let resumed = server.post("/api/v1/types/rest.v1/resume", &json!({})).data(200);
    assert_eq!(resumed["paused"], Value::Null);
    assert_eq!(claim(&server, "w", "rest.v1").iter().map(Claimed::id).collect::<Vec<_>>(), [&id, &second]);
}

#[test]
fn a_types_concurrency_bounds_what_is_leased() {
    let server = Server::start();
    put(&server, "few.v1", json!({ "concurrency": { "limit": 2 } }));
    let made: Vec<String> = (0..5).map(|n| server.submit("few.v1", json!(n))).collect();
    let held = claim(&server, "w", "few.v1");
    assert_eq!(held.len(), 2);
    assert!(claim(&server, "other", "few.%").is_empty());
    let explanation = explain(&server, &made[2]);
    assert_eq!(explanation["reason"], "queued_by_limit", "{explanation:#}");
    assert_eq!(
        (&explanation["details"]["limit"], &explanation["details"]["allowed"]),
        (&json!("type_concurrency"), &json!(2))
    );
    // Each way to end a lease frees one slot.
    let ends: [&dyn Fn(&Claimed); 4] = [
        &|c| drop(c.complete(json!(1)).data(200)),
        &|c| drop(c.report("fail", json!({ "error": { "message": "no" }, "final": true })).data(200)),
        &|c| drop(c.report("snooze", json!({ "for": "1h" })).data(200)),
        &|c| drop(server.post(&format!("/api/v1/tasks/{}/cancel", c.id()), &json!({})).data(200)),
    ];
    let mut held = held;
    for (n, end) in ends.iter().enumerate() {
        server.submit("few.v1", json!(n));
        end(&held.remove(0));
        held.extend(claim(&server, "w", "few.v1"));
        assert_eq!(held.len(), 2, "end {n}");
    }
    // An open claim gets a task as soon as a slot is free; a higher limit frees slots at once.
    let open = server.claim_later(json!({ "worker_id": "open", "types": ["few.v1"], "wait": "30s" }));
    server.worker_when_seen("open");
    put(&server, "few.v1", json!({ "concurrency": { "limit": 3 } }));
    assert_eq!(open.join().expect("an answer").0.data(200).as_array().expect("a list").len(), 1);
}

#[test]
fn a_keys_concurrency_bounds_its_own_tasks_only() {
    let mut server = Server::start();
    put(&server, "keys.v1", json!({ "concurrency": { "per_key": 1 } }));
    let submit = |key: &str| server.submit_with(&json!({ "type": "keys.v1", "concurrency_key": key }));
    let made: Vec<String> = ["a", "a", "b", "a", "b", "c"].iter().map(|key| submit(key)).collect();
    let held = claim(&server, "w", "keys.v1");
    assert_eq!(held.iter().map(Claimed::id).collect::<Vec<_>>(), [&made[0], &made[2], &made[5]], "one of each");
    let explanation = explain(&server, &made[1]);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["limit"]),
        (&json!("queued_by_limit"), &json!("key_concurrency")),
        "{explanation:#}"
    );
    server.crash_and_restart();
    assert!(claim(&server, "w", "keys.v1").is_empty(), "after a restart, too");
    Claimed { api: *server, ..held[1].clone() }.complete(json!(1)).data(200);
    assert_eq!(
        claim(&server, "w", "keys.v1").iter().map(Claimed::id).collect::<Vec<_>>(),
        [&made[4]],
        "the next of `b`"
    );
}

#[test]
fn a_rate_limits_how_many_tasks_are_leased() {
    let server = Server::with_virtual_clock();
    put(&server, "fast.v1", json!({ "rate": { "limit": 3, "per": "1m" } }));
    let made: Vec<String> = (0..8).map(|n| server.submit("fast.v1", json!(n))).collect();
    let mut claimed = claim(&server, "w", "fast.v1");
    assert_eq!(claimed.len(), 3);
    claimed.iter().for_each(|c| drop(c.complete(json!(1)).data(200)));
    assert!(claim(&server, "w", "fast.v1").is_empty(), "finished tasks count, too");
    let explanation = explain(&server, &made[3]);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["limit"]),
        (&json!("queued_by_limit"), &json!("type_rate")),
        "{explanation:#}"
    );
    server.advance("58s");
    assert!(claim(&server, "w", "fast.v1").is_empty());
    server.advance("3s");
    claimed = claim(&server, "w", "fast.v1");
    assert_eq!(claimed.iter().map(Claimed::id).collect::<Vec<_>>(), made[3..6].iter().collect::<Vec<_>>());
    assert!(claim(&server, "w", "fast.v1").is_empty());
    // A rate per concurrency key.
    put(&server, "each.v1", json!({ "rate": { "limit": 1, "per": "1m", "per_key": true } }));
    for key in ["a", "a", "b", "b"] {
        server.submit_with(&json!({ "type": "each.v1", "concurrency_key": key }));
    }
    assert_eq!(claim(&server, "w", "each.v1").len(), 2);
    assert!(claim(&server, "w", "each.v1").is_empty());
    server.advance("61s");
    assert_eq!(claim(&server, "w", "each.v1").len(), 2);
}

/// An open claim gets the next task when the rate allows it, on the real clock.
#[test]
fn an_open_claim_gets_a_task_when_the_rate_allows_it() {
    let server = Server::start();
    put(&server, "tick.v1", json!({ "rate": { "limit": 1, "per": "800ms" } }));
    for n in 0..3 {
        server.submit("tick.v1", json!(n));
    }
    let begun = std::time::Instant::now();
    for _ in 0..3 {
        server.claim_one("w", "tick.v1").complete(json!(1)).data(200);
    }
    let took = begun.elapsed().as_millis();
    assert!((1_600..4_000).contains(&took), "{took} ms");
}

/// One key cannot starve the others, however much it submits.
#[test]
fn keys_are_served_in_turn() {
    let mut server = Server::start();
    let task = |key: &str, n: u32| json!({ "type": "fair.v1", "payload": [key, n], "concurrency_key": key });
    let mut many: Vec<Value> = (0..100).map(|n| task("loud", n)).collect();
    many.extend((0..10).flat_map(|n| [task("quiet", n), task("silent", n)]));
    server.post("/api/v1/tasks", &json!(many)).data(201);
    for _ in 0..2 {
        let claimed = server.claim("w", &["fair.%"], 15);
        let mut counts = BTreeMap::new();
        for claimed in &claimed {
            *counts.entry(claimed.view["input"][0].as_str().expect("a key").to_owned()).or_insert(0) += 1;
        }
        assert_eq!(counts, BTreeMap::from([("loud".into(), 5), ("quiet".into(), 5), ("silent".into(), 5)]));
        server.crash_and_restart();
    }
    let mut rest = 0;
    while rest < 90 {
        let claimed = server.claim("w", &["fair.%"], 100).len();
        assert!(claimed > 0, "a key was left out: {rest} of 90");
        rest += claimed;
    }
}

#[test]
fn explain_says_why_no_worker_has_a_task() {
    // Other nodes learn of a worker only after a while.
    let server = Server::alone(&["--clock", "virtual"]);
    let id = server.submit("alone.v1", json!(1));
    let explanation = explain(&server, &id);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["workers_seen"]),
        (&json!("waiting_for_worker"), &json!(0)),
        "{explanation:#}"
    );
    assert!(
        explanation["summary"].as_str().expect("a text").contains("no worker claims `alone.v1`"),
        "{explanation:#}"
    );
    assert!(explanation["chain"].as_array().expect("a list").iter().any(|link| link["reason"] == "waiting_for_worker"));
    server.claim("w", &["alone.v1"], 1);
    let busy = server.submit("alone.v1", json!(2));
    let explanation = explain(&server, &busy);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["workers_seen"]),
        (&json!("waiting_for_worker"), &json!(1)),
        "{explanation:#}"
    );
    let explanation = explain(&server, &id);
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["worker"]),
        (&json!("step_running"), &json!("w")),
        "{explanation:#}"
    );
    server.advance("10m");
    let explanation = explain(&server, &busy);
    assert_eq!(explanation["details"]["workers_seen"], 0, "{explanation:#}");
    assert!(explanation["details"]["last_seen"].is_string(), "{explanation:#}");
    let delayed = server.submit_with(&json!({ "type": "alone.v1", "delay": "1h" }));
    assert_eq!(explain(&server, &delayed)["reason"], "scheduled_for_later");
    for action in explanation["next_actions"].as_array().expect("a list") {
        if action["action"] == "cancel" {
            let path = action["path"].as_str().expect("a path");
            assert_eq!(server.send(action["method"].as_str().expect("a method"), path, &[], b"").status, 200);
        }
    }
    assert_eq!(server.task(&busy)["status"], "cancelled");
}
