//! Deleting runs, replaying them, and listing them by label and time (R13).

use crate::harness::{Answer, Api, Server, eventually};
use serde_json::{Value, json};

fn path(run: &str) -> String {
    format!("/api/v1/runs/{run}")
}

/// Starts a run with labels, an idempotency key, a callback and a large body, that waits.
fn start_waiting_run(server: &Server, workflow: &str, key: &str) -> Answer {
    let body = json!({ "secret": "hunter2", "text": "x".repeat(20_000) });
    let trigger = format!("/api/v1/workflows/{workflow}/trigger?label=team:billing&label=kind:rich");
    server.post_with(&trigger, &[("Idempotency-Key", key), ("X-Kept", "yes")], &body)
}

#[test]
fn a_deleted_run_is_gone_with_everything_it_held() {
    let mut server = Server::start();
    let workflow = server.workflow("wait: {wait_for_webhook: {timeout: 1h}}\nurl: {set: {url: \"{{wait.wait.url}}\"}}");
    let run = start_waiting_run(&server, &workflow, "k1").data(201)["run_id"].as_str().unwrap().to_owned();
    let other = start_waiting_run(&server, &workflow, "k2").data(201)["run_id"].as_str().unwrap().to_owned();
    let url = server.when(&run, "url", "success")["tasks"]["url"]["body"]["url"].as_str().unwrap().to_owned();
    assert_eq!(server.delete(&path(&run)).refusal(409), "run_not_ended");
    assert_eq!(server.cancel(&run).status, 200);
    assert_eq!(server.delete(&path(&run)).status, 204);
    for _ in 0..2 {
        assert_eq!(server.delete(&path(&run)).refusal(404), "not_found");
        for rest in ["", "/steps", "/events", "/graph", "/stream"] {
            assert_eq!(server.get(&format!("{}{rest}", path(&run))).refusal(404), "not_found", "{rest}");
        }
        assert_eq!(server.cancel(&run).refusal(404), "not_found");
        assert_eq!(server.call_back(&url, b"1").refusal(404), "not_found");
        for filter in ["", "?label=team:billing", "?status=cancelled", "?label=team:billing&label=kind:rich"] {
            let found = server.list(&format!("/api/v1/runs{filter}"));
            assert!(found.iter().all(|view| view["id"] != *run), "{filter}");
        }
        assert_eq!(
            start_waiting_run(&server, &workflow, "k1").refusal(409),
            "run_deleted",
            "its idempotency key is still taken"
        );
        server.verify();
        server.crash_and_restart();
    }
    assert_eq!(server.run(&other)["status"], "waiting", "another run is unchanged");
    assert_eq!(server.delete("/api/v1/runs/run_01m7fcn1rjfdmakq3knhwjatdz").refusal(404), "not_found");
    assert_eq!(server.delete("/api/v1/runs/x").refusal(400), "malformed_id");
    server.terminate();
    assert!(holds(&server, b"hunter2"), "the other run still stores it");
    server.start_again();
    server.cancel(&other);
    assert_eq!(server.delete(&path(&other)).status, 204);
    assert!(!holds(&server, b"hunter2"), "the running server still stores it");
    server.terminate();
    assert!(!holds(&server, b"hunter2"), "the stopped server still stores it");
}

/// Whether the server's store contains these bytes.
fn holds(server: &Server, bytes: &[u8]) -> bool {
    crate::harness::holds(server.data(), bytes)
}

#[test]
fn many_runs_are_deleted_while_others_work() {
    let server = Server::start();
    let workflow = server.workflow("a: {noop: {}}\nb: {noop: {}, needs: [a]}");
    let api: Api = *server;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..15 {
                    let run = api.trigger(&workflow, &json!({ "n": n }));
                    api.finished(&run);
                    if n % 3 != 0 {
                        assert_eq!(api.delete(&path(&run)).status, 204);
                    }
                }
            });
        }
        (0..10).for_each(|_| server.verify());
    });
    assert_eq!(server.list("/api/v1/runs").len(), 20);
}

#[test]
fn of_many_deletions_of_a_run_one_succeeds() {
    let server = Server::start();
    let run = server.trigger(&server.workflow("a: {noop: {}}"), &json!({}));
    server.finished(&run);
    let api: Api = *server;
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| api.delete(&path(&run)).status);
        let threads: Vec<_> = (0..8).map(|_| ask()).collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|s| **s == 204).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|s| [204, 404].contains(s)), "{statuses:?}");
}

#[test]
fn a_replay_has_the_input_of_the_old_run_and_leaves_it_alone() {
    let server = Server::start();
    let name = "again";
    let define = |mark: &str| {
        json!({ "name": name, "tasks": { "a": { "set": {
        "version": mark, "size": "{{trigger.body.text}}", "kept": "{{trigger.headers.x-kept}}" } } } })
    };
    server.post("/api/v1/workflows", &define("one")).data(201);
    let old = start_waiting_run(&server, name, "k").data(201)["run_id"].as_str().unwrap().to_owned();
    let before = server.finished(&old);
    server.put(&format!("/api/v1/workflows/{name}"), &define("two")).data(200);
    let replay = |body: &Value| server.post(&format!("{}/replay", path(&old)), body);
    let replayed = replay(&json!(null)).data(201);
    assert_eq!(replayed["replayed_from"], old);
    let new = server.finished(replayed["run_id"].as_str().unwrap());
    assert_eq!((&new["replayed_from"], &new["version"], &new["hash"]), (&json!(old), &json!(1), &before["hash"]));
    for field in ["input", "labels", "status"] {
        assert_eq!(new[field], before[field], "{field}");
    }
    assert_eq!((&new["trigger"], &new["tasks"]["a"]["body"]), (&before["trigger"], &before["tasks"]["a"]["body"]));
    let latest = replay(&json!({ "version": "latest" })).data(201);
    let latest = server.finished(latest["run_id"].as_str().unwrap());
    assert_eq!((&latest["version"], &latest["tasks"]["a"]["body"]["version"]), (&json!(2), &json!("two")));
    assert_eq!(server.run(&old), before);
    assert_eq!(replay(&json!({ "version": "newest" })).refusal(422), "invalid_body");
    assert_eq!(replay(&json!({ "from": "a" })).refusal(422), "invalid_body");
    let missing = "/api/v1/runs/run_01m7fcn1rjfdmakq3knhwjatdz/replay";
    assert_eq!(server.send("POST", missing, &[], b"").refusal(404), "not_found");
}

#[test]
fn decision_11_a_replay_with_a_key_happens_once() {
    let server = Server::start();
    let workflow = server.workflow("a: {wait_for_webhook: {timeout: 1h}}");
    let old = server.trigger(&workflow, &json!({ "n": 1 }));
    let replay = |key: &str, body: &Value| {
        server.post_with(&format!("{}/replay", path(&old)), &[("Idempotency-Key", key)], body)
    };
    let first = replay("k", &json!({ "version": "pinned" })).data(201);
    let again = replay("k", &json!(null)).data(200);
    assert_eq!((&again["run_id"], &again["deduplicated"]), (&first["run_id"], &json!(true)));
    assert_eq!(replay("k", &json!({ "version": "latest" })).refusal(422), "idempotency_key_reused");
    assert_eq!(server.run(first["run_id"].as_str().unwrap())["status"], "waiting", "an open run can be replayed, too");
    let disable = format!("/api/v1/workflows/{workflow}/disable");
    server.post(&disable, &json!({})).data(200);
    assert_eq!(replay("k2", &json!(null)).refusal(409), "workflow_disabled");
    server.post(&disable.replace("disable", "enable"), &json!({})).data(200);
    assert_eq!(server.delete(&format!("/api/v1/workflows/{workflow}")).status, 204);
    replay("k3", &json!(null)).data(201);
    assert_eq!(
        replay("k4", &json!({ "version": "latest" })).refusal(404),
        "not_found",
        "a deleted workflow has no latest version"
    );
}

#[test]
fn r13_runs_are_found_by_labels_and_time() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2026-01-01T00:00:00Z"]);
    let workflow = server.workflow("a: {noop: {}}");
    for n in 0..6 {
        let labels = format!("label=parity:{}&label=all:yes&label=n:{n}", n % 2);
        let run = server.post(&format!("/api/v1/workflows/{workflow}/trigger?{labels}"), &json!({})).data(201);
        server.finished(run["run_id"].as_str().unwrap());
        server.advance("10d");
    }
    let found = |filter: &str| {
        let runs = server.list(&format!("/api/v1/runs?{filter}"));
        runs.iter()
            .map(|run| server.run(run["id"].as_str().unwrap())["labels"]["n"].as_str().unwrap().parse().unwrap())
            .collect::<Vec<u32>>()
    };
    for (filter, expected) in [
        ("label=parity:1", vec![5, 3, 1]),
        ("label=all:yes&label=parity:0", vec![4, 2, 0]),
        ("label=parity:0&label=parity:1", vec![]),
        ("label=parity:1&since=2026-01-20T00:00:00Z", vec![5, 3]),
        ("since=2026-01-10T00:00:00Z&until=2026-01-30T12:00:00Z", vec![2, 1]),
        ("until=2026-01-05T00:00:00Z", vec![0]),
        ("since=2026-02-15T00:00:00Z", vec![5]),
        ("since=2027-01-01T00:00:00Z", vec![]),
        ("until=2025-01-01T00:00:00Z", vec![]),
        ("status=success,failed&label=n:3", vec![3]),
        ("status=failed", vec![]),
    ] {
        assert_eq!(found(filter), expected, "{filter}");
        let own = server.list(&format!("/api/v1/workflows/{workflow}/runs?{filter}"));
        assert_eq!(own.len(), expected.len(), "{filter}");
    }
    let page = server.get("/api/v1/runs?label=all:yes&label=parity:1&limit=2").json();
    assert_eq!(page["data"].as_array().unwrap().len(), 2);
    let cursor = page["next"].as_str().unwrap();
    let page = server.get(&format!("/api/v1/runs?label=all:yes&label=parity:1&limit=2&cursor={cursor}")).json();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["next"]), (1, &Value::Null));
}

/// P24: runs that ended long enough ago are deleted, open runs are not.
#[test]
fn p24_retention_deletes_only_runs_that_ended_long_ago() {
    let mut server = Server::with(&["--clock", "virtual", "--retention", "2d"]);
    let short = server.workflow("a: { noop: {} }");
    let long = server.workflow("nap: { sleep: 10d }");
    let (old, open) = (server.trigger(&short, &json!(1)), server.trigger(&long, &json!(1)));
    server.finished(&old);
    server.advance("1d");
    let young = server.trigger(&short, &json!(2));
    server.finished(&young);
    server.advance("30h");
    eventually("the old run is deleted", || (server.get(&path(&old)).status == 404).then_some(()));
    assert_eq!(server.run(&young)["status"], "completed", "it ended 30 hours ago");
    assert_eq!(server.run(&open)["status"], "waiting", "an open run stays, however old");
    server.kill();
}

#[test]
fn p24_an_invalid_retention_is_refused() {
    for (retention, why) in [("10m", "allowed is 1h to"), ("soon", "is not a duration")] {
        let folder = tempfile::tempdir().unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_onward"))
            .args(["dev", "--listen", "127.0.0.1:0", "--retention", retention, "--data"])
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
}
