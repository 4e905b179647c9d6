//! Rules of runs that hold whatever a workflow does, seen from outside and across kills (M1–M3, M7, M9–M12, M14, M16).
//! `nesting`, `children` and `signals` have the rules of their step kinds.

use crate::harness::{Act, Server, Upstream, eventually, json, one_node_only, status};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The requests of each step that sent any, by the key that they carried.
fn requests(upstream: &Upstream) -> BTreeMap<String, usize> {
    let mut requests = BTreeMap::new();
    for effect in upstream.effects() {
        *requests.entry(effect.header("idempotency-key").to_owned()).or_default() += 1;
    }
    requests
}

#[test]
fn m1_m2_m12_inner_steps_keep_their_keys_and_see_what_is_around_them_across_a_kill() {
    let upstream = Upstream::start();
    upstream.on("/hang", [Act::Hang, Act::Hang, json(200, json!({}))]);
    let mut server = Server::start();
    let steps = upstream.fill(
        "
first: { set: { word: outside } }
outer:
  needs: [first]
  loop:
    items: [[1, 2], [3]]
    as: row
    concurrency: 2
    tasks:
      inner: { loop: { items: row, as: cell, tasks: { keep: { set: { of: '{{cell}}', in: '{{index}}' } } } } }
      wrap: { needs: [inner], group: { tasks: { deep: { url: $UP/hang, body: { row: '{{row}}', index: '{{index}}', word: '{{tasks.first.body.word}}', inner: '{{tasks.inner.body}}' } } } } }",
    );
    let workflow = server.workflow(&steps);
    let run = server.trigger(&workflow, &json!({}));
    upstream.wait_for("/hang", 2);
    let opened = |server: &Server| -> Vec<(u64, Value)> {
        let events = server.events(&run);
        let opened = events.iter().filter(|event| event["type"] == "step.opened");
        opened.map(|event| (event["seq"].as_u64().expect("a number"), event["step"].clone())).collect()
    };
    let before = opened(&server);
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(opened(&server)[..before.len()], before, "what was opened stays");
    let expected: BTreeMap<String, usize> =
        [0, 1].map(|row| (format!("{run}:outer[{row}]/wrap/deep"), 2)).into_iter().collect();
    assert_eq!(requests(&upstream), expected, "each attempt before and after the kill has the key of its step");
    let mut bodies: Vec<Value> = upstream.effects().iter().map(|effect| effect.json()).collect();
    bodies.sort_by_key(|body| body["index"].as_u64());
    bodies.dedup();
    let cell = |of: u32, at: u32| json!({ "of": of, "in": at });
    assert_eq!(
        bodies,
        [
            json!({ "row": [1, 2], "index": 0, "word": "outside", "inner": [cell(1, 0), cell(2, 1)] }),
            json!({ "row": [3], "index": 1, "word": "outside", "inner": [cell(3, 0)] }),
        ]
    );
    server.verify();
}

/// Changes one row of a run while no server runs.
fn change(server: &mut Server, run: &str, [sqlite, postgres]: [&str; 2]) {
    server.kill_at_once();
    let id = kernel::RunId::parse(run).expect("a run id");
    match std::fs::read_to_string(server.data().join("postgres.url")) {
        Ok(url) => {
            let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
            let statement = postgres.replace("$1", &format!("'{hex}'"));
            let psql = std::process::Command::new("psql").args([&url, "-c", &statement]).output().expect("psql runs");
            let said = String::from_utf8_lossy(&psql.stdout);
            assert_eq!(said.trim(), "UPDATE 1", "{statement}: {}", String::from_utf8_lossy(&psql.stderr));
        }
        Err(_) => {
            let file = Connection::open(server.data().join("onward.db")).expect("the store");
            assert_eq!(file.execute(sqlite, [id.0]).expect("the statement"), 1, "{sqlite}");
        }
    }
    server.start_again();
}

#[test]
fn m7_a_run_keeps_the_plan_it_began_with_when_its_workflow_changes() {
    let upstream = Upstream::start();
    upstream.on("/old", [Act::Hang, json(200, json!({}))]);
    let mut server = Server::start();
    let definition = |url: &str, list: &str| {
        upstream.fill(&format!(
            "name: changing\ntasks:\n  each: {{ loop: {{ items: {list}, tasks: {{ call: {{ url: $UP/{url} }} }} }} }}"
        ))
    };
    server.define(&definition("old", "[1, 2, 3]"));
    let old = server.trigger("changing", &json!({}));
    upstream.wait_for("/old", 1);
    let put = server.send(
        "PUT",
        "/api/v1/workflows/changing",
        &[("content-type", "application/yaml")],
        definition("new", "[1]").as_bytes(),
    );
    assert_eq!(put.status, 200, "{}", put.text());
    server.crash_and_restart();
    let new = server.trigger("changing", &json!({}));
    for (run, version, path, count) in [(&old, 1, "/old", 3), (&new, 2, "/new", 1)] {
        let view = server.finished(run);
        assert_eq!((&view["status"], &view["version"]), (&json!("completed"), &json!(version)), "{view:#}");
        assert_eq!(view["tasks"]["each"]["counts"], json!({ "success": count }));
        let sent = upstream.effects_on(path).iter().all(|effect| effect.origin().0 == run.as_str());
        assert!(sent, "{path} is called by {run} only");
    }
    server.verify();
}

#[test]
fn m9_a_run_that_has_ended_stays_as_it_ended() {
    let upstream = Upstream::start();
    upstream.on("/bad", [status(400)]);
    let mut server = Server::start();
    let steps =
        upstream.fill("ok: { approval: { prompt: p } }\nhold: { pause: {} }\ngo: { wait_for_signal: { name: go } }");
    let open = server.workflow(&steps);
    let cancelled = server.trigger(&open, &json!({}));
    server.when(&cancelled, "go", "waiting");
    server.cancel(&cancelled);
    let failed = server.play(&upstream.fill("a: { url: $UP/bad, retries: 0 }"), &json!({}));
    let completed = server.play("a: { noop: {} }", &json!({}));
    let id = |view: &Value| view["id"].as_str().expect("an id").to_owned();
    let runs = [cancelled, id(&failed), id(&completed)];
    server.crash_and_restart();
    for run in &runs {
        let before = server.run(run);
        let post = |what: &str, body: Value| server.post(&format!("/api/v1/runs/{run}/{what}"), &body);
        assert_eq!(post("signals/go", json!({})).refusal(409), "run_ended");
        assert_eq!(post("pause", json!({})).refusal(409), "run_ended");
        for (verb, step) in [("approve", "ok"), ("reject", "ok"), ("resume", "hold")] {
            let answer = post(verb, json!({ "actor": "ada", "step": step }));
            assert!(matches!(answer.status, 404 | 409 | 410 | 422), "{verb} of {run}: {}", answer.text());
        }
        let cancel = server.cancel(run);
        assert!(matches!(cancel.status, 200 | 409), "{}", cancel.text());
        assert_eq!(server.run(run), before, "nothing has changed");
    }
    server.verify();
}

#[test]
fn m10_m15_what_a_failure_inside_does_follows_on_error_across_a_kill() {
    for on_error in ["fail", "finish", "continue"] {
        let upstream = Upstream::start();
        upstream.on("/bad", [status(400)]);
        upstream.on("/slow", [Act::Hang, json(200, json!({}))]);
        let mut server = Server::start();
        let workflow = server.workflow(&upstream.fill(&format!(
            "
box:
  group:
    on_error: {on_error}
    tasks: {{ slow: {{ url: $UP/slow }}, wait: {{ sleep: 300ms }}, bad: {{ needs: [wait], url: $UP/bad, retries: 0 }} }}
after: {{ needs: [box], set: {{ errors: '{{{{tasks.box.errors}}}}' }} }}"
        )));
        let run = server.trigger(&workflow, &json!({}));
        upstream.wait_for("/slow", 1);
        server.crash_and_restart();
        let view = server.finished(&run);
        let inside = server.list(&format!("/api/v1/runs/{run}/steps?under=box"));
        let statuses: BTreeMap<&str, &str> = inside
            .iter()
            .map(|step| (step["step"].as_str().expect("a key"), step["status"].as_str().expect("a status")))
            .collect();
        assert_eq!(statuses["box/bad"], "failed");
        // The request that hung is sent again after the kill and answered.
        let is_open_end = on_error == "fail" && statuses["box/slow"] == "cancelled";
        assert!(is_open_end || statuses["box/slow"] == "success", "{on_error}: {statuses:?}");
        let expected = if on_error == "continue" { ("completed", "success") } else { ("failed", "skipped") };
        let found = (view["status"].as_str().expect("it"), view["tasks"]["after"]["status"].as_str().expect("it"));
        assert_eq!(found, expected, "{on_error}: {view:#}");
        if on_error == "continue" {
            let error = &view["tasks"]["after"]["body"]["errors"][0];
            assert_eq!((&error["step"], &error["code"]), (&json!("bad"), &json!("http_status")));
        }
        server.verify();
    }
}

#[test]
fn m11_a_result_is_the_output_or_the_body_of_the_last_steps() {
    let server = Server::start();
    let view = server.play(
        "
one: { group: { tasks: { a: { set: { n: 1 } }, b: { needs: [a], set: { n: 2 } } } } }
several: { group: { tasks: { c: { set: { n: 3 } }, d: { set: { n: 4 } } } } }
said: { group: { tasks: { e: { set: { n: 5 } } }, output: { was: '{{tasks.e.body.n}}' } } }
list: { loop: { items: [7, 8], tasks: { f: { set: { n: '{{item}}' } } } } }
none: { loop: { items: [], tasks: { g: { noop: {} } } } }",
        &json!({}),
    );
    let body = |step: &str| view["tasks"][step]["body"].clone();
    assert_eq!(body("one"), json!({ "n": 2 }), "{view:#}");
    assert_eq!(body("several"), json!({ "c": { "n": 3 }, "d": { "n": 4 } }));
    assert_eq!(body("said"), json!({ "was": 5 }));
    assert_eq!((body("list"), body("none")), (json!([{ "n": 7 }, { "n": 8 }]), json!([])));
    server.verify();
}

#[test]
fn m11_results_are_made_of_what_ended_before_and_after_a_kill() {
    let upstream = Upstream::start();
    upstream.on("/hold", [Act::Hang, json(200, json!({ "n": 9 }))]);
    upstream.on(
        "/item",
        [json(200, json!({ "n": 0 })), json(200, json!({ "n": 1 })), Act::Hang, json(200, json!({ "n": 2 }))],
    );
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill(
        "
several: { group: { tasks: { a: { set: { n: 1 } }, hold: { url: $UP/hold } } } }
said: { group: { tasks: { b: { set: { n: 2 } }, wait: { needs: [b], wait_for_signal: { name: go } } }, output: { was: '{{tasks.b.body.n}}', got: '{{tasks.wait.body}}' } } }
list: { loop: { items: [0, 1, 2], tasks: { item: { url: $UP/item, retries: 0 } } } }
end: { needs: [several, said, list], set: { all: ['{{tasks.several.body}}', '{{tasks.said.body}}', '{{tasks.list.body}}'] } }",
    ));
    let run = server.trigger(&workflow, &json!({}));
    upstream.wait_for("/hold", 1);
    upstream.wait_for("/item", 3);
    server.crash_and_restart();
    let sent = server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!("went")).data(200);
    assert_eq!(sent["name"], "go");
    server.crash_and_restart();
    let view = server.finished(&run);
    let expected = json!([
        { "a": { "n": 1 }, "hold": { "n": 9 } },
        { "was": 2, "got": "went" },
        [{ "n": 0 }, { "n": 1 }, { "n": 2 }],
    ]);
    assert_eq!(view["tasks"]["end"]["body"]["all"], expected, "{view:#}");
    server.crash_and_restart();
    assert_eq!(server.run(&run), view, "read from the store, it is the same");
    server.verify();
}

#[test]
fn m14_a_while_loop_knows_its_last_result_across_kills() {
    let upstream = Upstream::start();
    upstream.on("/state", (0..6).map(|n| json(200, json!({ "left": 5 - n }))));
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill(
        "poll: { loop: { while: 'last.left ?? 9 > 0', tasks: { nap: { sleep: 50ms }, ask: { needs: [nap], url: $UP/state, retries: 0 } }, output: '{{tasks.ask.body}}' } }",
    ));
    let run = server.trigger(&workflow, &json!({}));
    for count in [2, 4] {
        upstream.wait_for("/state", count);
        server.crash_and_restart();
    }
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    let results = view["tasks"]["poll"]["body"].as_array().expect("a list");
    assert_eq!(results.last().expect("a result")["left"], 0);
    let by_key = requests(&upstream);
    let keys: Vec<String> = (0..results.len()).map(|index| format!("{run}:poll[{index}]/ask")).collect();
    assert_eq!(by_key.keys().cloned().collect::<Vec<_>>(), keys, "one iteration after the other, none twice");
    server.verify();
}

#[test]
fn m16_a_first_join_starts_once_across_a_kill() {
    let upstream = Upstream::start();
    upstream.on("/won", [Act::Hang, json(200, json!({}))]);
    let mut server = Server::start();
    let workflow = server.workflow(&upstream.fill(
        "
near: { sleep: 1ms }
far: { wait_for_signal: { name: far } }
won: { needs: { any: [near, far] }, url: $UP/won, body: { far: '{{tasks.far.status}}' } }
lost: { needs: { any: [no, never] }, noop: {} }
no: { if: 'false', noop: {} }
never: { needs: [no], noop: {} }",
    ));
    let run = server.trigger(&workflow, &json!({}));
    upstream.wait_for("/won", 1);
    server.crash_and_restart();
    // The other link settles after both attempts.
    upstream.wait_for("/won", 2);
    server.when(&run, "won", "success");
    server.post(&format!("/api/v1/runs/{run}/signals/far"), &json!({})).data(200);
    let view = server.finished(&run);
    assert_eq!(
        (&view["status"], &view["tasks"]["lost"]["status"]),
        (&json!("completed"), &json!("skipped")),
        "{view:#}"
    );
    let keys: Vec<String> = requests(&upstream).into_keys().collect();
    assert_eq!(keys, [format!("{run}:won")]);
    for effect in upstream.effects() {
        assert_eq!(effect.json(), json!({ "far": "waiting" }), "the others go on");
    }
    let started = server.events(&run);
    let started = started.iter().filter(|event| event["type"] == "step.started" && event["step"] == "won");
    assert_eq!(started.count(), 2, "one attempt before the kill, and one after it");
    server.verify();
}

#[test]
fn m3_a_run_that_a_later_release_wrote_waits_for_it() {
    if one_node_only("the test changes the store while no server runs") {
        return;
    }
    let mut server = Server::start();
    let workflow = server.workflow("l: { loop: { items: [1, 2], tasks: { w: { wait_for_signal: { name: go } } } } }");
    let (run, other) = (server.trigger(&workflow, &json!({})), server.trigger(&workflow, &json!({})));
    for run in [&run, &other] {
        server.when(run, "l", "running");
    }
    let newer = [
        "UPDATE journal SET body = CAST(x'09' || substr(body, 2) AS BLOB) WHERE run = $1 AND seq = 1",
        "UPDATE journal SET body = '\\x09'::bytea || substr(body, 2) WHERE run = $1 AND seq = 1",
    ];
    let again = [
        "UPDATE journal SET body = CAST(x'02' || substr(body, 2) AS BLOB) WHERE run = $1 AND seq = 1",
        "UPDATE journal SET body = '\\x02'::bytea || substr(body, 2) WHERE run = $1 AND seq = 1",
    ];
    change(&mut server, &run, newer);
    let signal = |server: &Server, run: &str| server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!({}));
    assert_eq!(signal(&server, &run).refusal(503), "run_needs_upgrade");
    assert_eq!(server.get(&format!("/api/v1/runs/{run}")).refusal(503), "run_needs_upgrade");
    signal(&server, &other).data(200);
    change(&mut server, &run, again);
    for run in [&run, &other] {
        signal(&server, run);
        eventually("it ends", || {
            signal(&server, run);
            crate::harness::is_terminal(&server.run(run)).then_some(())
        });
        assert_eq!(server.run(run)["status"], "completed");
    }
    server.verify();
}
