//! Changing workflows that have open runs (R8, R11–R13, decisions 9 and 16, A7, A8).

use crate::harness::{Api, Server};
use serde_json::{Value, json};

const WORKFLOWS: &str = "/api/v1/workflows";

fn path(workflow: &str) -> String {
    format!("{WORKFLOWS}/{workflow}")
}

/// A definition whose only step waits; `mark` distinguishes versions.
fn waits(name: &str, mark: &str) -> Value {
    json!({ "name": name, "tasks": {
        "wait": { "wait_for_webhook": { "timeout": "1h" } },
        "mark": { "needs": ["wait"], "set": { "version": mark } },
        "url": { "set": { "url": "{{wait.wait.url}}" } } } })
}

fn go_on(server: &Server, run: &str) -> Value {
    let url = server.when(run, "url", "success")["tasks"]["url"]["body"]["url"].as_str().unwrap().to_owned();
    assert_eq!(server.call_back(&url, b"1").status, 200);
    server.finished(run)
}

#[test]
fn r11_decision_9_a_replaced_workflow_has_a_new_version_and_runs_in_flight_keep_theirs() {
    let server = Server::start();
    let first = server.post(WORKFLOWS, &waits("order", "one")).data(201);
    let id = first["id"].as_str().unwrap();
    let old = server.trigger("order", &json!({}));
    let second = server.put(&path("order"), &waits("order", "two")).data(200);
    assert_eq!((&second["id"], &second["version"], &second["slug"]), (&first["id"], &json!(2), &json!("order")));
    assert_ne!(second["hash"], first["hash"]);
    let new = server.trigger("order", &json!({}));
    for (run, version, mark) in [(&old, 1, "one"), (&new, 2, "two")] {
        let view = go_on(&server, run);
        assert_eq!((&view["version"], &view["tasks"]["mark"]["body"]["version"]), (&json!(version), &json!(mark)));
        assert_eq!(view["hash"], if version == 1 { &first["hash"] } else { &second["hash"] }.clone());
    }
    let shown = server.get(&path(id)).data(200);
    assert_eq!((&shown["version"], &shown["definition"]), (&json!(2), &waits("order", "two")));
    for version in ["1", first["hash"].as_str().unwrap()] {
        let shown = server.get(&format!("{}?version={version}", path(id))).data(200);
        assert_eq!((&shown["version"], &shown["definition"]), (&json!(1), &waits("order", "one")));
    }
    assert_eq!(server.get(&format!("{}?version=3", path(id))).refusal(404), "not_found");
    assert_eq!(server.get(&format!("{}?version=x", path(id))).refusal(422), "invalid_parameter");
}

#[test]
fn r11_a_replacement_is_checked_like_a_new_workflow_and_changes_nothing_if_it_is_wrong() {
    let server = Server::start();
    server.post(WORKFLOWS, &waits("order", "one")).data(201);
    server.post(WORKFLOWS, &waits("other", "one")).data(201);
    let before = server.get(&path("order")).data(200);
    for (body, status, code) in [
        (json!({ "name": "order", "tasks": { "a": { "noop": {}, "needs": ["b"] } } }), 422, "needs_unknown_step"),
        (json!({ "name": "order", "tasks": {} }), 422, ""),
        (json!({ "name": "order", "steps": [] }), 422, "out_of_range"),
        (json!({ "tasks": { "a": { "noop": {} } } }), 422, "missing_field"),
        (waits("other", "two"), 409, "name_taken"),
        (json!({ "name": "other" }), 409, "name_taken"),
        (json!({ "slug": "other" }), 409, "slug_taken"),
        (json!({ "slug": "No Slug" }), 422, "invalid_slug"),
        (json!({ "name": "" }), 422, "invalid_name"),
        (json!({ "enabled": "no" }), 422, "wrong_type"),
        (json!({ "description": 7 }), 422, "wrong_type"),
        (json!({ "max_duration": "1d" }), 422, "unknown_field"),
        (json!({ "title": "x" }), 422, "unknown_field"),
        (json!([]), 422, "wrong_type"),
    ] {
        let answer = server.put(&path("order"), &body);
        let found = answer.refusal(status);
        assert!(code.is_empty() || found == code, "{body}: {}", answer.text());
    }
    assert_eq!(server.put(&path("nothing"), &waits("nothing", "x")).refusal(404), "not_found");
    assert_eq!(server.send("PUT", &path("order"), &[], b"{}").refusal(415), "unsupported_media_type");
    assert_eq!(server.get(&path("order")).data(200), before);
}

#[test]
fn decision_9_names_change_without_a_new_version() {
    let server = Server::start();
    let first = server.post(WORKFLOWS, &waits("order", "one")).data(201);
    let id = first["id"].as_str().unwrap();
    let change = json!({ "name": "Orders", "slug": "orders", "description": "all of them", "tags": ["x"] });
    let changed = server.put(&path("order"), &change).data(200);
    for field in ["name", "slug", "description", "tags"] {
        assert_eq!(changed[field], change[field], "{field}");
    }
    assert_eq!((&changed["version"], &changed["hash"]), (&json!(1), &first["hash"]));
    assert_eq!(server.get(&path("order")).status, 404, "R8: the old name is unknown");
    assert_eq!(server.post(&format!("{}/trigger", path("order")), &json!({})).refusal(404), "not_found");
    let run = server.trigger("Orders", &json!({}));
    assert_eq!(server.run(&run)["workflow"], "Orders");
    // The same definition, in another order and as YAML, is no new version either.
    let yaml = "name: Orders\ntasks:\n  url: {set: {url: '{{wait.wait.url}}'}}\n  wait: {wait_for_webhook: {timeout: 1h}}\n  \
                mark: {set: {version: one}, needs: [wait]}\n";
    let yaml = server.send("PUT", &path(id), &[("Content-Type", "application/yaml")], yaml.as_bytes()).data(200);
    assert_eq!((&yaml["version"], &yaml["hash"], &yaml["slug"]), (&json!(1), &first["hash"], &json!("orders")));
    assert_eq!(
        (&yaml["description"], &yaml["tags"]),
        (&Value::Null, &json!([])),
        "a replacement resets fields that it leaves out"
    );
    assert_eq!(server.list(&format!("{}/history", path(id))).len(), 1);
    // Another workflow may take the old name at once.
    assert_eq!(server.post(WORKFLOWS, &waits("order", "one")).status, 201);
}

#[test]
fn r12_a_disabled_workflow_starts_nothing_until_it_is_enabled() {
    let server = Server::start();
    server.post(WORKFLOWS, &waits("order", "one")).data(201);
    for _ in 0..2 {
        assert_eq!(server.post(&format!("{}/disable", path("order")), &json!({})).data(200)["enabled"], false);
        assert_eq!(server.post(&format!("{}/trigger", path("order")), &json!({})).refusal(409), "workflow_disabled");
    }
    let edited = server.put(&path("order"), &waits("order", "two")).data(200);
    assert_eq!((&edited["enabled"], &edited["version"]), (&json!(false), &json!(2)), "an edit does not switch it on");
    for _ in 0..2 {
        assert_eq!(server.send("POST", &format!("{}/enable", path("order")), &[], b"").data(200)["enabled"], true);
        server.trigger("order", &json!({}));
    }
    assert_eq!(server.put(&path("order"), &json!({ "enabled": false })).data(200)["enabled"], false);
    assert_eq!(server.post(&format!("{}/enable", path("none")), &json!({})).refusal(404), "not_found");
}

#[test]
fn r8_r12_the_waiting_runs_of_a_paused_workflow_start_when_it_is_deleted() {
    let server = Server::start();
    let workflow = server.workflow("say: { log: { message: hello } }");
    server.post(&format!("/api/v1/workflows/{workflow}/pause"), &json!({})).data(200);
    let run = server.trigger(&workflow, &json!({}));
    assert_eq!(server.run(&run)["status"], "pending");
    assert_eq!(server.delete(&format!("/api/v1/workflows/{workflow}")).status, 204);
    assert_eq!(server.finished(&run)["status"], "completed");
}

#[test]
fn r8_r12_a_deleted_workflow_gives_its_name_back_and_its_runs_finish() {
    let mut server = Server::start();
    let first = server.post(WORKFLOWS, &waits("order", "one")).data(201);
    let id = first["id"].as_str().unwrap();
    let run = server.trigger("order", &json!({}));
    server.when(&run, "url", "success");
    assert_eq!(server.delete(&path("order")).status, 204);
    for key in ["order", id] {
        assert_eq!(server.delete(&path(key)).refusal(404), "not_found");
        assert_eq!(server.get(&path(key)).refusal(404), "not_found");
        assert_eq!(server.put(&path(key), &json!({ "enabled": true })).refusal(404), "not_found");
        assert_eq!(server.post(&format!("{}/trigger", path(key)), &json!({})).refusal(404), "not_found");
        assert_eq!(server.post(&format!("{}/enable", path(key)), &json!({})).refusal(404), "not_found");
    }
    assert!(server.list(WORKFLOWS).is_empty());
    let second = server.post(WORKFLOWS, &waits("order", "two")).data(201);
    assert_eq!(second["slug"], "order");
    server.crash_and_restart();
    assert_eq!(go_on(&server, &run)["status"], "completed");
    assert_eq!(server.list(&format!("{}/runs", path(id))).len(), 1, "its runs stay, under its id");
    assert_eq!(server.get(&format!("{}/runs/{run}", path(id))).data(200)["id"], run);
    assert_eq!(
        server.get(&format!("{}/runs/{run}", path("order"))).refusal(404),
        "not_found",
        "the new workflow does not have the old one's runs"
    );
    let history = server.list(&format!("{}/history", path(id)));
    assert_eq!((history.len(), &history[0]["hash"]), (1, &first["hash"]));
    assert_eq!(server.list(&format!("/api/v1/runs?workflow={id}")).len(), 1);
}

#[test]
fn a7_a8_history_lists_every_version_and_diff_shows_the_changes() {
    let server = Server::start();
    let step =
        |sleep: &str| json!({ "name": "w", "tasks": { "a": { "sleep": sleep }, "b": { "noop": {}, "needs": ["a"] } } });
    let id = server.post(WORKFLOWS, &step("1s")).data(201)["id"].as_str().unwrap().to_owned();
    let hashes: Vec<Value> =
        ["2s", "1s", "3s"].iter().map(|sleep| server.put(&path(&id), &step(sleep)).data(200)["hash"].clone()).collect();
    let last = json!({ "name": "w", "max_duration": "2d", "tasks": {
        "a": { "sleep": "3s" }, "c": { "set": { "x": 1 }, "needs": ["a"] } } });
    server.put(&path(&id), &last).data(200);
    let history = server.list(&format!("{}/history", path(&id)));
    let listed: Vec<(u64, &str)> =
        history.iter().map(|v| (v["number"].as_u64().unwrap(), v["source"].as_str().unwrap())).collect();
    assert_eq!(listed, [(5, "update"), (4, "update"), (3, "update"), (2, "update"), (1, "create")]);
    assert_eq!(history[4]["hash"], history[2]["hash"], "versions with the same steps have the same hash");
    assert_eq!(history[3]["hash"], hashes[0]);
    let page = server.get(&format!("{}/history?limit=2", path(&id))).json();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["next"]), (2, &json!("4")));
    let page = server.get(&format!("{}/history?limit=9&cursor=4", path(&id))).json();
    assert_eq!((page["data"][0]["number"].clone(), &page["next"]), (json!(3), &Value::Null));

    let diff = server.get(&format!("{}/diff", path(&id))).data(200);
    assert_eq!((&diff["from"]["number"], &diff["to"]["number"]), (&json!(4), &json!(5)));
    let steps = json!({ "added": ["c"], "removed": ["b"], "changed": [] });
    assert_eq!((&diff["steps"], &diff["settings"]), (&steps, &json!([{ "path": "max_duration", "new": "2d" }])));
    assert!(diff["text"].as_str().unwrap().contains("+  \"max_duration\": \"2d\""), "{}", diff["text"]);
    let diff = server.get(&format!("{}/diff?from=1&to={}", path(&id), hashes[0].as_str().unwrap())).data(200);
    let changed = json!([{ "step": "a", "fields": [{ "path": "sleep", "old": "1s", "new": "2s" }] }]);
    assert_eq!((&diff["steps"]["changed"], &diff["to"]["number"]), (&changed, &json!(2)));
    let same = server.get(&format!("{}/diff?from=1&to=3", path(&id))).data(200);
    assert_eq!((&same["text"], &same["settings"]), (&json!(""), &json!([])));
    assert_eq!(server.get(&format!("{}/diff?from=9", path(&id))).refusal(404), "not_found");
    assert_eq!(server.get(&format!("{}/diff?from=soon", path(&id))).refusal(422), "invalid_parameter");
}

#[test]
fn an_edit_with_an_expected_hash_fails_after_another_edit() {
    let server = Server::start();
    let first = server.post(WORKFLOWS, &waits("order", "one")).data(201);
    let hash = first["hash"].as_str().unwrap();
    let quoted = format!("\"{hash}\"");
    let put = |value: &str, body: &Value| {
        let headers = [("Content-Type", "application/json"), ("If-Match", value)];
        server.send("PUT", &path("order"), &headers, body.to_string().as_bytes())
    };
    put(&quoted, &waits("order", "two")).data(200);
    assert_eq!(put(&quoted, &waits("order", "three")).refusal(412), "version_mismatch");
    assert_eq!(put("nonsense", &waits("order", "three")).refusal(422), "invalid_header");
    let by_query = format!("{}?expected_hash={hash}", path("order"));
    assert_eq!(server.put(&by_query, &json!({ "name": "x" })).refusal(412), "version_mismatch");
    assert_eq!(server.delete(&by_query).refusal(412), "version_mismatch");
    assert_eq!(server.get(&path("order")).data(200)["version"], 2);
}

#[test]
fn r11_edits_at_once_become_versions_one_after_the_other() {
    let server = Server::start();
    server.post(WORKFLOWS, &waits("order", "start")).data(201);
    std::thread::scope(|scope| {
        for editor in 0..4 {
            let server: Api = *server;
            scope.spawn(move || {
                for n in 0..5 {
                    let mark = format!("{editor}-{n}");
                    let version =
                        server.put(&path("order"), &waits("order", &mark)).data(200)["version"].as_u64().unwrap();
                    let run = server.trigger("order", &json!({}));
                    assert!(server.run(&run)["version"].as_u64().unwrap() >= version, "a start sees the answered edit");
                }
            });
        }
    });
    let history = server.list(&format!("{}/history", path("order")));
    let numbers: Vec<u64> = history.iter().map(|v| v["number"].as_u64().unwrap()).collect();
    assert!(numbers.into_iter().eq((1..=21).rev()));
}

#[test]
fn r13_the_graph_of_a_workflow_and_of_a_run() {
    let server = Server::start();
    let definition = json!({ "name": "g", "tasks": {
        "a": { "noop": {} }, "b": { "noop": {}, "needs": ["a"] },
        "c": { "noop": {}, "needs": ["a", "b"], "if": "tasks.a.status == 'failed'" } } });
    server.post(WORKFLOWS, &definition).data(201);
    let graph = server.get(&format!("{}/graph", path("g"))).data(200);
    let edges = json!([{ "from": "a", "to": "b", "on": "ok" }, { "from": "a", "to": "c", "on": "any" },
        { "from": "b", "to": "c", "on": "any" }]);
    assert_eq!(graph["edges"], edges);
    assert_eq!(
        graph["nodes"][2],
        json!({ "step": "c", "kind": "noop", "needs": ["a", "b"],
        "if": "tasks.a.status == 'failed'", "position": 2 })
    );
    let run = server.trigger("g", &json!({}));
    server.finished(&run);
    let drawn = server.get(&format!("/api/v1/runs/{run}/graph")).data(200);
    assert_eq!((&drawn["run_id"], &drawn["status"], &drawn["edges"]), (&json!(run), &json!("completed"), &edges));
    let nodes: Vec<(&str, u64)> = drawn["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| (n["status"].as_str().unwrap(), n["attempt"].as_u64().unwrap()))
        .collect();
    assert_eq!(nodes, [("success", 1), ("success", 1), ("skipped", 0)]);
    server.put(&path("g"), &json!({ "name": "g", "tasks": { "only": { "noop": {} } } })).data(200);
    assert_eq!(server.get(&format!("{}/graph", path("g"))).data(200)["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(server.get(&format!("{}/graph?version=1", path("g"))).data(200)["edges"], edges);
}

#[test]
fn r13_workflows_are_listed_by_name() {
    let server = Server::start();
    for name in ["order-a", "order-b", "other", "%"] {
        server.post(WORKFLOWS, &waits(name, "one")).data(201);
    }
    for (name, count) in [("order", 2), ("o", 3), ("", 4), ("%25", 1), ("nope", 0), ("Order", 0)] {
        assert_eq!(server.list(&format!("{WORKFLOWS}?name={name}")).len(), count, "{name}");
    }
}
