//! Forks (M31), and one action for many runs.

use crate::cli::Shell;
use crate::harness::{Act, Server, Upstream, json, names, status};
use serde_json::{Value, json};

/// `quote` and `stock` are read by `ship`, which fails the first time.
const ORDER: &str = "
quote: { url: $UP/quote }
stock: { url: $UP/stock, body: '{{trigger.body}}' }
pay: { needs: [quote], url: $UP/pay, irreversible: true }
ship: { needs: [stock, pay], url: $UP/ship, body: { price: '{{tasks.quote.body.price}}', paid: '{{tasks.pay.body}}' } }
mail: { needs: [ship], url: $UP/mail }";

fn order(upstream: &Upstream) {
    upstream.on("/quote", [json(200, json!({ "price": 7 }))]);
    upstream.on("/pay", [json(200, json!({ "receipt": "r1" }))]);
    upstream.on("/ship", [status(400), json(200, json!({ "parcel": 1 }))]);
}

fn fork(server: &Server, run: &str, body: Value) -> crate::harness::Answer {
    server.post(&format!("/api/v1/runs/{run}/fork"), &body)
}

fn counts(upstream: &Upstream, paths: &[&str]) -> Vec<usize> {
    paths.iter().map(|path| upstream.effects_on(path).len()).collect()
}

const PATHS: &[&str] = &["/quote", "/stock", "/pay", "/ship", "/mail"];

#[test]
fn m31_a_fork_takes_over_what_is_not_downstream_and_survives_a_kill() {
    let upstream = Upstream::start();
    order(&upstream);
    let mut server = Server::start();
    let name = server.workflow(&upstream.fill(ORDER));
    let run = server.trigger(&name, &json!({ "id": 1 }));
    let failed = server.finished(&run);
    assert_eq!(failed["status"], "failed");
    let before = server.events(&run);

    let plan = fork(&server, &run, json!({ "from": "ship", "dry_run": true })).data(200);
    assert_eq!(plan, json!({ "would_run": ["ship", "mail"], "would_repeat": [] }));
    let plan = fork(&server, &run, json!({ "from": "pay", "dry_run": true })).data(200);
    assert_eq!(plan, json!({ "would_run": ["pay", "ship", "mail"], "would_repeat": ["pay"] }));
    let refused = fork(&server, &run, json!({ "from": "pay" }));
    assert_eq!(refused.refusal(409), "unsafe_replay");

    let body = json!({ "from": "ship", "actor": "ada", "reason": "the carrier is back" });
    let forked = fork(&server, &run, body).data(201);
    assert_eq!(forked["forked_from"], run);
    let fork_id = forked["run_id"].as_str().expect("an id").to_owned();
    server.crash_and_restart();
    let view = server.finished(&fork_id);
    assert_eq!(view["status"], "completed", "{view:#}");
    let point = json!({ "run_id": run, "step": "ship", "reason": "the carrier is back" });
    assert_eq!((&view["forked_from"], &view["trigger"]["actor"]), (&point, &json!("ada")));
    assert_eq!((&view["tasks"]["quote"]["copied"], &view["tasks"]["quote"]["attempt"]), (&json!("copied"), &json!(0)));
    assert_eq!(view["tasks"]["quote"]["body"], json!({ "price": 7 }));
    assert_eq!(view["tasks"]["ship"]["copied"], Value::Null);
    let ship = upstream.effects_on("/ship");
    assert_eq!(ship[1].json(), json!({ "price": 7, "paid": { "receipt": "r1" } }));
    assert_eq!(ship[1].header("idempotency-key"), format!("{fork_id}:ship"));
    let counted = counts(&upstream, PATHS);
    assert_eq!((&counted[..3], counted[4]), ([1, 1, 1].as_slice(), 1), "nothing that it took over ran again");
    let events = server.events(&fork_id);
    assert_eq!(names(&events)[..4], ["run.created", "step.copied", "step.copied", "step.copied"]);
    assert_eq!((server.run(&run), server.events(&run)), (failed, before), "the run that was forked is as it was");
    server.verify();
}

#[test]
fn m31_given_results_and_another_input_replace_those_of_the_run() {
    let upstream = Upstream::start();
    order(&upstream);
    let server = Server::start();
    let name = server.workflow(&upstream.fill(ORDER));
    let run = server.trigger(&name, &json!({ "id": 1 }));
    server.finished(&run);
    let body = json!({ "from": "stock", "input": { "id": 2 }, "results": { "pay": { "receipt": "by hand" } } });
    let forked = fork(&server, &run, body).data(201)["run_id"].as_str().unwrap().to_owned();
    let view = server.finished(&forked);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!((&view["tasks"]["pay"]["copied"], &view["input"]), (&json!("given"), &json!({ "id": 2 })));
    assert_eq!(upstream.effects_on("/stock")[1].json(), json!({ "id": 2 }));
    assert_eq!(upstream.effects_on("/ship")[1].json()["paid"], json!({ "receipt": "by hand" }));
    assert_eq!(counts(&upstream, PATHS), [1, 2, 1, 2, 1]);
    server.verify();
}

#[test]
fn m31_what_cannot_be_forked_is_refused_and_nothing_starts() {
    let upstream = Upstream::start();
    upstream.on("/slow", [Act::Hang]);
    let server = Server::start();
    let name =
        server.workflow(&upstream.fill("a: { noop: {} }\ng: { needs: [a], group: { tasks: { x: { noop: {} } } } }"));
    let run = server.trigger(&name, &json!({}));
    server.finished(&run);
    for (body, field) in [
        (json!({ "from": "nowhere" }), "from"),
        (json!({ "from": "g/x" }), "from"),
        (json!({ "from": "a", "results": { "a": 1 } }), "results"),
        (json!({ "from": "a", "results": { "g/x": 1 } }), "results"),
    ] {
        let answer = fork(&server, &run, body.clone());
        assert_eq!(answer.refusal(422), "invalid_body", "{body}");
        assert_eq!(answer.json()["error"]["at"]["path"], field, "{body}");
    }
    assert_eq!(fork(&server, &run, json!({})).refusal(422), "invalid_body");
    assert_eq!(fork(&server, &run, json!({ "from": "a", "step": "a" })).refusal(422), "invalid_body");
    let unknown = "run_00000000000000000000000000";
    assert_eq!(fork(&server, unknown, json!({ "from": "a" })).refusal(404), "not_found");
    let slow = server.workflow(&upstream.fill("slow: { url: $UP/slow }"));
    let open = server.trigger(&slow, &json!({}));
    upstream.wait_for("/slow", 1);
    assert_eq!(fork(&server, &open, json!({ "from": "slow" })).refusal(409), "run_not_ended");
    assert_eq!(server.get("/api/v1/runs").json()["data"].as_array().map(Vec::len), Some(2));
    // The same request with the same key starts one run.
    let twice = [1, 2].map(|_| {
        let headers = [("idempotency-key", "again")];
        let path = format!("/api/v1/runs/{run}/fork");
        server.post_with(&path, &headers, &json!({ "from": "a" })).json()["data"]["run_id"].clone()
    });
    assert_eq!(twice[0], twice[1]);
    server.verify();
}

#[test]
fn runs_are_cancelled_retried_and_replayed_in_bulk() {
    let upstream = Upstream::start();
    upstream.on("/flaky", (0..3).map(|_| status(400)).chain([json(200, json!({}))]));
    let server = Server::start();
    let flaky = server.workflow(&upstream.fill("a: { url: $UP/flaky }"));
    let waits = server.workflow("w: { wait_for_webhook: {} }");
    let failed: Vec<String> = (0..3).map(|_| server.trigger(&flaky, &json!({}))).collect();
    failed.iter().for_each(|run| assert_eq!(server.finished(run)["status"], "failed"));
    let open = [server.trigger(&waits, &json!({})), server.trigger(&waits, &json!({}))];
    let bulk = |body: Value| server.post("/api/v1/runs/bulk", &body);

    let planned = bulk(json!({ "action": "retry", "filter": { "workflow": flaky }, "dry_run": true })).data(200);
    assert_eq!((&planned["matched"], &planned["changed"]), (&json!(3), &json!(0)), "{planned:#}");
    assert_eq!(planned["runs"].as_array().unwrap().len(), 3);
    let done = bulk(json!({ "action": "retry", "filter": { "workflow": flaky }, "actor": "ada" })).data(200);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(3), &json!(3)), "{done:#}");
    failed.iter().for_each(|run| assert_eq!(server.finished(run)["status"], "completed"));

    let headers = [("idempotency-key", "nightly")];
    let replay = json!({ "action": "replay", "filter": { "workflow": flaky } });
    let replayed = server.post_with("/api/v1/runs/bulk", &headers, &replay).data(200);
    assert_eq!((&replayed["changed"], replayed["started"].as_array().unwrap().len()), (&json!(3), 3));
    for run in replayed["started"].as_array().unwrap() {
        let view = server.finished(run.as_str().unwrap());
        assert!(failed.contains(&view["replayed_from"].as_str().unwrap().to_owned()));
    }
    let cancelled = bulk(json!({ "action": "cancel", "filter": { "workflow": waits, "status": "waiting" } })).data(200);
    assert_eq!(cancelled["changed"], 2, "{cancelled:#}");
    open.iter().for_each(|run| assert_eq!(server.run(run)["status"], "cancelled"));
    let again = bulk(json!({ "action": "cancel", "filter": {} })).data(200);
    assert_eq!((&again["matched"], &again["changed"]), (&json!(0), &json!(0)));

    for (body, at) in [
        (json!({ "action": "cancel", "filter": {}, "allow_irreversible": true }), "allow_irreversible"),
        (json!({ "action": "retry", "filter": {}, "compensate": true }), "compensate"),
        (json!({ "action": "retry", "filter": {}, "version": "latest" }), "version"),
        (json!({ "action": "retry", "filter": { "status": "broken" } }), "filter.status"),
        (json!({ "action": "retry", "filter": { "label": "nocolon" } }), "filter.label"),
        (json!({ "action": "retry", "filter": { "since": "yesterday" } }), "filter.since"),
        (json!({ "action": "retry", "filter": {}, "cursor": "x" }), "cursor"),
    ] {
        let answer = bulk(body.clone());
        assert_eq!(answer.refusal(422), "invalid_body", "{body}");
        assert_eq!(answer.json()["error"]["at"]["path"], at, "{body}");
    }
    assert_eq!(bulk(json!({ "action": "delete", "filter": {} })).refusal(422), "invalid_body");
    assert_eq!(bulk(json!({ "action": "retry" })).refusal(422), "invalid_body");
    assert_eq!(bulk(json!({ "action": "retry", "filter": { "workflow": "nowhere" } })).refusal(404), "not_found");
    server.verify();
}

#[test]
fn a_bulk_retry_names_the_runs_that_refuse_and_goes_on() {
    let upstream = Upstream::start();
    upstream.on("/b", [status(400), status(400), json(200, json!({}))]);
    let server = Server::start();
    let name = server.workflow(&upstream.fill("a: { noop: {} }\nb: { needs: [a], url: $UP/b }"));
    let parent = server.workflow(&format!("child: {{ subworkflow: {{ workflow: {name} }} }}"));
    let alone = server.trigger(&name, &json!({}));
    server.finished(&alone);
    let above = server.finished(&server.trigger(&parent, &json!({})));
    let child = above["tasks"]["child"]["child"]["run_id"].as_str().unwrap().to_owned();
    let filter = json!({ "action": "retry", "filter": { "workflow": name } });
    let done = server.post("/api/v1/runs/bulk", &filter).data(200);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(2), &json!(1)), "{done:#}");
    assert_eq!((&done["refused"][0]["run_id"], &done["refused"][0]["code"]), (&json!(child), &json!("has_parent")));
    assert_eq!(server.finished(&alone)["status"], "completed");
    let shell = Shell::new(&server);
    let said = shell.run(&["runs", "bulk", "retry", "--workflow", &name]);
    assert_eq!((said.code, said.out.trim()), (1, "0 runs retried"), "{said:?}");
    assert!(said.err.contains("is left as it is"), "{said:?}");
    shell.run(&["runs", "bulk", "retry"]).refused(2, &["no filter"]);
    let forked = shell.run(&["runs", "fork", &alone, "--from", "b", "--dry-run"]).ok();
    assert!(forked.contains("would run"), "{forked}");
    let forked = shell.run(&["runs", "fork", &alone, "--from", "b", "--result", "a={\"n\":1}", "--follow"]);
    assert_eq!(forked.code, 0, "{forked:?}");
}
