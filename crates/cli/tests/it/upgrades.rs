//! This release on what an earlier one stored, and beside a node of it. `ONWARD_PREVIOUS` names the earlier program;
//! without it these tests are skipped. `cargo xtask long` builds it and sets the variable.

use crate::harness::{Act, Server, Upstream, eventually, is_terminal, json, place, postgres_only};
use serde_json::{Value, json};
use tempfile::TempDir;

fn previous() -> Option<String> {
    let binary = std::env::var("ONWARD_PREVIOUS").ok();
    if binary.is_none() {
        println!("skipped, because `ONWARD_PREVIOUS` does not name the program of an earlier release");
    }
    binary
}

#[test]
fn m3_m7_what_an_earlier_release_stored_runs_on() {
    let Some(previous) = previous() else { return };
    let upstream = Upstream::start();
    upstream.on("/work", [Act::Hang, json(200, json!({ "n": 1 }))]);
    upstream.on("/flaky", [crate::harness::status(500), json(200, json!({}))]);
    // What steps send must not change with the port.
    let flags = ["--public-url", "http://hooks.test"];
    let mut server = Server::of_release(&previous, &flags, TempDir::new().expect("a folder"));
    let workflow = |steps: &str| server.workflow(&upstream.fill(steps));
    let start = |workflow: &str| server.trigger(workflow, &json!({ "n": 7, "text": "x".repeat(6_000) }));
    let done = workflow("a: { noop: {} }\nb: { needs: [a], set: { x: '{{trigger.body.n}}' } }");
    let join =
        workflow("a: { url: $UP/work }\nb: { noop: {} }\njoin: { needs: [a, b], set: { n: '{{tasks.a.body.n}}' } }");
    let nap = workflow("nap: { sleep: 3s }\nend: { needs: [nap], log: { message: 'awake {{trigger.body.n}}' } }");
    let door =
        workflow("door: { wait_for_webhook: {} }\nend: { needs: [door], set: { got: '{{tasks.door.body.n}}' } }");
    let task = workflow("work: { task: upgrade.v1, input: { n: '{{trigger.body.n}}' } }");
    let retry = workflow("a: { url: $UP/flaky, retry: { max_attempts: 3, backoff: { type: fixed, min: 2s } } }");
    let chain: String = (1..60).map(|n| format!("\ns{n}: {{ needs: [s{}], noop: {{}} }}", n - 1)).collect();
    let long = workflow(&format!("s0: {{ noop: {{}} }}{chain}\nnap: {{ needs: [s59], sleep: 2s }}"));
    let queued = server.define("name: queued\nconcurrency: { key: k, limit: 1 }\ntasks: { nap: { sleep: 1s } }");
    let queued = queued["id"].as_str().expect("an id");
    let ended = start(&done);
    let ended_view = server.finished(&ended);
    let runs: Vec<String> = [&join, &nap, &door, &task, &retry, &long, queued, queued].map(start).into();
    let plain = server.submit("plain.v1", json!({ "n": 1 }));
    upstream.wait_for("/work", 1);
    upstream.wait_for("/flaky", 1);
    server.when(&runs[2], "door", "waiting");
    let url = server.run(&runs[2])["tasks"]["door"]["callback_url"].clone();
    let histories: Vec<Vec<Value>> = runs.iter().map(|run| server.events(run)).collect();

    server.upgrade();
    assert_eq!(server.run(&ended)["tasks"], ended_view["tasks"], "an ended run is what it was");
    for (run, before) in runs.iter().zip(&histories) {
        let after = server.events(run);
        let types = |events: &[Value]| -> Vec<Value> { events.iter().map(|event| event["type"].clone()).collect() };
        assert_eq!(types(&after)[..before.len()], types(before), "{run}: its history is what it was");
    }
    let explained = server.get(&format!("/api/v1/runs/{}/explain?step=door", runs[2])).data(200);
    let url = url.as_str().or(explained["details"]["callback_url"].as_str()).or(explained["details"]["url"].as_str());
    server.call_back(url.unwrap_or_else(|| panic!("no URL: {explained:#}")), br#"{"n": 5}"#).data(200);
    server.claim_one("w1", "upgrade.v1").complete(json!({ "done": true })).data(200);
    server.claim_one("w1", "plain.v1").complete(json!({})).data(200);
    for run in &runs {
        let view = server.finished(run);
        assert_eq!(view["status"], "completed", "{view:#}");
    }
    assert_eq!(server.run(&runs[0])["tasks"]["join"]["body"]["n"], 1);
    assert_eq!(server.run(&runs[2])["tasks"]["end"]["body"]["got"], 5);
    assert_eq!(server.task(&plain)["status"], "succeeded");
    // An old workflow starts new runs, and an unchanged definition is the same version.
    assert_eq!(server.finished(&start_on(&server, &done))["status"], "completed");
    server.crash_and_restart();
    server.verify();
}

fn start_on(server: &Server, workflow: &str) -> String {
    server.trigger(workflow, &json!({ "n": 7 }))
}

#[test]
fn m3_a_node_of_an_earlier_release_lets_runs_wait_that_it_cannot_read() {
    if postgres_only("nodes of two releases share a database") {
        return;
    }
    let Some(previous) = previous() else { return };
    let cluster = testkit::postgres::shared();
    let url = cluster.database();
    let [first, second] = [(); 2].map(|()| TempDir::new().expect("a folder"));
    for data in [&first, &second] {
        place::put(data.path(), &url);
    }
    let secret = second.path().join("secret.key");
    let mut old = Server::of_release(&previous, &[], first);
    std::fs::copy(old.data().join("secret.key"), secret).expect("both have the same secret");
    let mut new = Server::of_release(env!("CARGO_BIN_EXE_onward"), &[], second);
    let plain = old.workflow("a: { noop: {} }\nnap: { needs: [a], sleep: 300ms }");
    new.define("name: child\ntasks: { nap: { sleep: 2s } }");
    let nested = new.workflow(
        "each: { loop: { items: [1, 2, 3], concurrency: 3, tasks: { nap: { sleep: 2s }, ask: { needs: [nap], wait_for_signal: { name: go } } } } }\ncall: { subworkflow: child }",
    );
    let runs: Vec<String> = (0..20).map(|_| start_on(&new, &nested)).collect();
    let plain_runs: Vec<String> = (0..20).map(|n| start_on(if n % 2 == 0 { &old } else { &new }, &plain)).collect();
    for run in &plain_runs {
        assert_eq!(old.finished(run)["status"], "completed", "plain runs go on beside them");
    }
    // Now the old node is alone with runs of a later format, and their timers become due.
    new.kill_at_once();
    let more: Vec<String> = (0..10).map(|_| start_on(&old, &plain)).collect();
    for run in &more {
        assert_eq!(old.finished(run)["status"], "completed", "they do not keep it from its work");
    }
    std::thread::sleep(std::time::Duration::from_secs(4));
    // It says of each that it needs an upgrade: neither damaged nor failed, and nothing is guessed.
    for run in &runs {
        for path in [format!("/api/v1/runs/{run}"), format!("/api/v1/runs/{run}/explain")] {
            let answer = old.get(&path);
            assert_eq!(answer.refusal(503), "run_needs_upgrade", "{path}: {}", answer.text());
        }
    }
    let listed = old.get("/api/v1/runs?limit=500").json();
    let of_nested = |list: &Value| -> usize {
        let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
        rows.iter()
            .filter(|row| runs.iter().any(|run| row["id"] == run.as_str() || row["run_id"] == run.as_str()))
            .count()
    };
    assert_eq!(of_nested(&listed["data"]) + of_nested(&listed["unreadable"]), runs.len(), "its list still has them");
    let history = |server: &Server| runs.iter().map(|run| server.events(run)).collect::<Vec<_>>();

    // Its share of the runs waits as long as it is there. Then it is killed, in the middle of other work.
    new.start_again();
    let before = history(&new);
    let last: Vec<String> = (0..10).map(|_| start_on(&old, &plain)).collect();
    old.kill_at_once();
    for (events, before) in history(&new).iter().zip(&before) {
        assert_eq!(events[..before.len()], before[..], "what is recorded stays");
    }
    for run in &last {
        assert_eq!(new.finished(run)["status"], "completed", "the new node takes over what the old one had begun");
    }
    let open = || runs.iter().filter(|run| !is_terminal(&new.run(run))).cloned().collect::<Vec<_>>();
    eventually("every run ends", || {
        for run in open() {
            let waiting = new.run(&run)["waiting_for"].as_array().expect("a list").clone();
            for _ in waiting.iter().filter(|wait| wait["kind"] == "signal") {
                new.post(&format!("/api/v1/runs/{run}/signals/go"), &json!({}));
            }
        }
        open().is_empty().then_some(())
    });
    for run in &runs {
        assert_eq!(new.run(run)["status"], "completed");
        assert_eq!(new.run(run)["tasks"]["each"]["counts"], json!({ "success": 3 }));
    }
    new.verify();
}
