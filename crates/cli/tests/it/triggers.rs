//! Triggers as API objects (A10–A12): creating, changing, enabling, disabling and firing them.

use crate::harness::{Answer, Server};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn patch(server: &Server, id: &str, body: Value) -> Answer {
    server.send("PATCH", &format!("/api/v1/triggers/{id}"), &[JSON], body.to_string().as_bytes())
}

fn id(view: &Value) -> String {
    view["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a10_a11_a_trigger_is_created_shown_changed_and_deleted() {
    let server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let config = json!({ "path": "orders/new", "secret": "very secret" });
    let made = server
        .post(
            "/api/v1/triggers",
            &json!({ "name": "orders", "type": "webhook", "workflow": workflow, "config": config }),
        )
        .data(201);
    let trigger = id(&made);
    assert!(trigger.starts_with("trg_"));
    assert_eq!(made["webhook_url"], format!("http://{}/webhooks/orders/new", server.address));
    assert_eq!(
        made["config"],
        json!({ "path": "orders/new", "method": "POST", "dedup": "auto", "dedup_window": "10m", "has_secret": true })
    );
    let path = format!("/api/v1/triggers/{trigger}");
    assert_eq!(server.get(&path).data(200), made);
    assert_eq!(server.list("/api/v1/triggers"), vec![made.clone()]);
    assert_eq!(server.list(&format!("/api/v1/triggers?type=schedule&workflow={workflow}")), Vec::<Value>::new());
    let changed = patch(&server, &trigger, json!({ "name": "new orders", "config": { "path": "orders" } })).data(200);
    assert_eq!((&changed["name"], &changed["config"]["path"]), (&json!("new orders"), &json!("orders")));
    assert_eq!(changed["config"]["has_secret"], true, "a field that is not named stays");
    assert_eq!(server.send("DELETE", &path, &[], b"").status, 204);
    assert_eq!(server.send("DELETE", &path, &[], b"").refusal(404), "not_found");
    assert_eq!(server.get(&path).refusal(404), "not_found");
    assert_eq!(server.get("/api/v1/triggers/nonsense").refusal(400), "malformed_id");
}

#[test]
fn a10_every_problem_of_a_trigger_is_reported_at_once() {
    let server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let refused = |body: Value| {
        let answer = server.post("/api/v1/triggers", &body);
        let code = answer.refusal(422);
        (code, answer.json()["error"].clone())
    };
    let (_, error) = refused(json!({ "nmae": "x", "type": "schedul", "workflow": 5 }));
    let codes: Vec<&str> = error["problems"].as_array().unwrap().iter().filter_map(|p| p["code"].as_str()).collect();
    assert_eq!(codes, ["missing_field", "unknown_field", "invalid_value", "wrong_type"]);
    assert_eq!(error["problems"][1]["hint"], "did you mean `name`?");
    let make = |kind: &str, config: Value| json!({ "name": "t", "type": kind, "workflow": workflow, "config": config });
    for (body, code) in [
        (make("schedule", json!({ "cron": "*/0 * * * *" })), "invalid_cron"),
        (make("schedule", json!({ "cron": "0 0 30 2 *" })), "impossible_schedule"),
        (make("schedule", json!({ "cron": "* * * * *", "timezone": "Europe/Berlim" })), "unknown_timezone"),
        (make("webhook", json!({ "path": "p" })), "secret_required"),
        (make("webhook", json!({ "path": "p", "secret": "short" })), "invalid_secret"),
        (make("webhook", json!({ "path": "P", "unsigned": true })), "invalid_webhook_path"),
        (make("webhook", json!({ "has_secret": true })), "secret_missing"),
        (json!({ "name": "t", "type": "manual", "workflow": "missing" }), "unknown_workflow"),
    ] {
        assert_eq!(refused(body.clone()).0, code, "{body}");
    }
    assert_eq!(server.post("/api/v1/triggers", &make("webhook", json!({ "path": "p", "unsigned": true }))).status, 201);
    let taken = make("webhook", json!({ "path": "p", "unsigned": true }));
    assert_eq!(server.post("/api/v1/triggers", &taken).refusal(409), "path_taken");
    let definition = "name: other\ntrigger: webhook\nwebhook: { path: p, unsigned: true }\ntasks: {a: {noop: {}}}";
    let answer =
        server.send("POST", "/api/v1/workflows", &[("Content-Type", "application/yaml")], definition.as_bytes());
    assert_eq!(answer.refusal(409), "path_taken");
    assert_eq!(server.list("/api/v1/workflows").len(), 1, "no workflow was created");
    assert_eq!(server.list("/api/v1/triggers").len(), 1);
}

#[test]
fn decision_11_a_key_makes_one_trigger() {
    let server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let body = |name: &str| json!({ "name": name, "type": "manual", "workflow": workflow });
    let make = |name| server.post_with("/api/v1/triggers", &[("Idempotency-Key", "k1")], &body(name));
    let first = make("one").data(201);
    let again = make("one").data(200);
    assert_eq!((&again["id"], &again["deduplicated"]), (&first["id"], &json!(true)));
    assert_eq!(first["deduplicated"], Value::Null);
    assert_eq!(make("two").refusal(422), "idempotency_key_reused");
    assert_eq!(server.list("/api/v1/triggers").len(), 1);
}

#[test]
fn a11_a_trigger_is_fired_by_hand() {
    let server = Server::start();
    let workflow = server.workflow("a: { set: { got: \"{{trigger.body}}\" } }");
    let made = json!({ "name": "door", "type": "manual", "workflow": workflow });
    let trigger = id(&server.post("/api/v1/triggers", &made).data(201));
    let path = format!("/api/v1/triggers/{trigger}");
    let fired = server.post(&format!("{path}/run"), &json!({ "variables": { "n": 1 } })).data(201);
    let run = server.finished(fired["run_id"].as_str().unwrap());
    assert_eq!(
        (&run["trigger"]["type"], &run["trigger"]["id"], &run["input"]),
        (&json!("manual"), &json!(trigger), &json!({ "n": 1 }))
    );
    assert_eq!(server.send("POST", &format!("{path}/run"), &[], b"").status, 201, "a body is not required");
    let change = json!({ "input": { "n": 5, "m": 6 } });
    assert_eq!(patch(&server, &trigger, change.clone()).data(200)["input"], change["input"]);
    let fired = server.post(&format!("{path}/run"), &json!({ "variables": { "n": 1 } })).data(201);
    let run = server.finished(fired["run_id"].as_str().unwrap());
    assert_eq!(run["input"], json!({ "n": 1, "m": 6 }));
    let keyed = || server.post_with(&format!("{path}/run"), &[("Idempotency-Key", "k")], &json!({}));
    let (one, again) = (keyed().data(201), keyed().data(200));
    assert_eq!((&one["run_id"], &again["deduplicated"]), (&again["run_id"], &json!(true)));
    let lines = server.list(&format!("{path}/deliveries"));
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["outcome"] == "started" && line["reason"] == "run_now"));
    assert_eq!(server.get(&path).data(200)["last_run_id"], one["run_id"]);
    assert_eq!(server.post(&format!("{path}/run"), &json!({ "variabels": 1 })).refusal(422), "invalid_body");
    server.post(&format!("{path}/disable"), &json!(null)).data(200);
    assert_eq!(server.send("POST", &format!("{path}/run"), &[], b"").refusal(409), "trigger_disabled");
    assert_eq!(server.get(&format!("{path}/preview")).refusal(422), "invalid_parameter");
}

#[test]
fn a12_a18_a_workflow_is_run_by_hand_without_a_trigger() {
    let server = Server::start();
    server.define("name: by hand\nslug: by-hand\ntasks: {a: {noop: {}}}");
    let run = |body: &Value| server.post("/api/v1/triggers/manual/run", body);
    let body = json!({ "workflow": "by-hand", "variables": { "n": 1 }, "client_request_id": "r1" });
    let first = run(&body).data(201);
    let again = run(&body).data(200);
    assert_eq!((&again["run_id"], &again["deduplicated"]), (&first["run_id"], &json!(true)));
    let other = json!({ "workflow": "by hand", "variables": { "n": 2 }, "clientRequestId": "r1" });
    assert_eq!(run(&other).refusal(422), "idempotency_key_reused");
    let view = server.finished(first["run_id"].as_str().unwrap());
    assert_eq!((&view["trigger"]["type"], &view["input"]), (&json!("manual"), &json!({ "n": 1 })));
    let keyed =
        |key: &str, body: &Value| server.post_with("/api/v1/triggers/manual/run", &[("Idempotency-Key", key)], body);
    let by_key = json!({ "workflowId": "by-hand", "variables": { "n": 3 } });
    let once = keyed("k1", &by_key).data(201);
    let twice = keyed("k1", &by_key).data(200);
    assert_eq!((&twice["run_id"], &twice["deduplicated"]), (&once["run_id"], &json!(true)));
    assert_eq!(keyed("k1", &json!({ "workflow": "by-hand" })).refusal(422), "idempotency_key_reused");
    assert_eq!(keyed("k1", &body).refusal(422), "invalid_body", "two different keys");
    assert_eq!(keyed("r1", &body).data(200)["run_id"], first["run_id"], "the same key twice");
    assert_eq!(run(&json!({ "workflow": "missing" })).refusal(422), "unknown_workflow");
    assert_eq!(run(&json!({})).refusal(422), "invalid_body");
    assert_eq!(run(&json!({ "workflow": "by-hand", "client_request_id": "" })).refusal(422), "invalid_body");
    assert_eq!(run(&json!({ "workflow": "by-hand" })).data(201)["deduplicated"], Value::Null);
    assert_eq!(server.list("/api/v1/runs").len(), 3);
}

#[test]
fn r10_an_own_trigger_changes_only_with_its_workflow() {
    let server = Server::start();
    server.define("name: c\ntrigger: cron\ncron: '0 9 * * *'\ntasks: {a: {noop: {}}}");
    let trigger = id(&server.list("/api/v1/triggers")[0]);
    let path = format!("/api/v1/triggers/{trigger}");
    assert_eq!(patch(&server, &trigger, json!({ "config": { "cron": "0 10 * * *" } })).refusal(409), "trigger_owned");
    assert_eq!(patch(&server, &trigger, json!({ "name": "other" })).refusal(409), "trigger_owned");
    assert_eq!(server.send("DELETE", &path, &[], b"").refusal(409), "trigger_owned");
    let noted = patch(&server, &trigger, json!({ "note": "as is", "enabled": false })).data(200);
    assert_eq!((&noted["note"], &noted["enabled"], &noted["next_at"]), (&json!("as is"), &json!(false), &Value::Null));
}

#[test]
fn p1_triggers_survive_a_crash() {
    let mut server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    for n in 0..5 {
        let config = json!({ "path": format!("p{n}"), "secret": "very secret" });
        let made = json!({ "name": format!("t{n}"), "type": "webhook", "workflow": workflow, "config": config });
        server.post("/api/v1/triggers", &made).data(201);
    }
    let shown = |server: &Server| {
        let mut all = server.list("/api/v1/triggers");
        // The port differs after a restart.
        all.iter_mut().for_each(|trigger| drop(trigger["webhook_url"].take()));
        all
    };
    let before = shown(&server);
    server.crash_and_restart();
    assert_eq!(shown(&server), before);
    let page = server.get("/api/v1/triggers?limit=2").json();
    assert_eq!(page["data"].as_array().unwrap().len(), 2);
    assert_eq!(page["next"], page["data"][1]["id"]);
}

#[test]
fn r11_an_own_trigger_is_replaced_with_its_workflow() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-01-01T00:30:00Z"]);
    let yaml = [("Content-Type", "application/yaml")];
    let put = |lines: &str| {
        let body = format!("name: w\n{lines}\ntasks: {{a: {{noop: {{}}}}}}");
        server.send("PUT", "/api/v1/workflows/w", &yaml, body.as_bytes())
    };
    let own = || server.list("/api/v1/triggers");
    server.define("name: w\ntrigger: cron\ncron: '0 9 * * *'\ntasks: {a: {noop: {}}}");
    let first = id(&own()[0]);
    assert_eq!(put("trigger: cron\ncron: '0 9 * * *'\ndescription: as before").status, 200);
    assert_eq!((id(&own()[0]), own()[0]["next_at"].clone()), (first.clone(), json!("2027-01-01T09:00:00Z")));
    assert_eq!(put("trigger: cron\ncron: '0 10 * * *'").data(200)["version"], 2);
    assert_eq!((id(&own()[0]), own()[0]["next_at"].clone()), (first.clone(), json!("2027-01-01T10:00:00Z")));
    // A trigger of another type is a new trigger. A secret is kept when the definition that was shown is sent back.
    let hook = "trigger: webhook\nwebhook: { path: p, ";
    assert_eq!(put(&format!("{hook} has_secret: true }}")).refusal(422), "secret_missing");
    assert_eq!(id(&own()[0]), first, "nothing was changed");
    assert_eq!(put(&format!("{hook} secret: very secret }}")).data(200)["version"], 3);
    let second = own();
    assert_eq!(
        (second.len(), &second[0]["type"], &second[0]["config"]["has_secret"]),
        (1, &json!("webhook"), &json!(true))
    );
    assert_ne!(id(&second[0]), first);
    assert_eq!(server.send("POST", "/webhooks/p", &[], b"{}").refusal(401), "signature_missing");
    let shown = server.get("/api/v1/workflows/w").data(200)["definition"].clone();
    let back = server.send("PUT", "/api/v1/workflows/w", &[JSON], shown.to_string().as_bytes());
    assert_eq!(back.data(200)["version"], 3, "the definition is the same");
    assert_eq!(server.send("POST", "/webhooks/p", &[], b"{}").refusal(401), "signature_missing", "still signed");
    assert_eq!(put(&format!("{hook} unsigned: true }}")).data(200)["version"], 4);
    assert_eq!(server.send("POST", "/webhooks/p", &[], b"{}").status, 202);
    assert_eq!(put("trigger: api").data(200)["trigger"], "api");
    assert_eq!(own().len(), 0);
    assert_eq!(server.send("POST", "/webhooks/p", &[], b"{}").refusal(404), "not_found");
}

#[test]
fn r12_deleting_a_workflow_deletes_its_triggers() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-01-01T00:30:00Z"]);
    server.define("name: w\ntrigger: webhook\nwebhook: { path: own, unsigned: true }\ntasks: {a: {noop: {}}}");
    let other = json!({ "name": "t", "type": "schedule", "workflow": "w", "config": { "cron": "0 * * * *" } });
    server.post("/api/v1/triggers", &other).data(201);
    server.advance("1h");
    assert_eq!(server.list("/api/v1/runs").len(), 1);
    assert_eq!(server.send("DELETE", "/api/v1/workflows/w", &[], b"").status, 204);
    assert_eq!(server.list("/api/v1/triggers").len(), 0);
    assert_eq!(server.send("POST", "/webhooks/own", &[], b"{}").refusal(404), "not_found");
    server.advance("3h");
    assert_eq!(server.list("/api/v1/runs").len(), 1, "old runs stay, no run is added");
    // The name and the path can be used again.
    server.define("name: w\ntrigger: webhook\nwebhook: { path: own, unsigned: true }\ntasks: {a: {noop: {}}}");
    assert_eq!(server.send("POST", "/webhooks/own", &[], b"{}").status, 202);
}

#[test]
fn a14_the_schedule_of_a_disabled_workflow_records_skips() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-01-01T00:30:00Z"]);
    server.define("name: w\ntrigger: cron\ncron: '0 * * * *'\ntasks: {a: {noop: {}}}");
    let trigger = id(&server.list("/api/v1/triggers")[0]);
    for (switch, hours) in [("disable", "2h"), ("enable", "1h")] {
        assert_eq!(server.send("POST", &format!("/api/v1/workflows/w/{switch}"), &[], b"").status, 200);
        server.advance(hours);
    }
    let mut lines = server.list(&format!("/api/v1/triggers/{trigger}/deliveries"));
    lines.reverse();
    let outcomes: Vec<&str> = lines.iter().filter_map(|line| line["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["skipped", "skipped", "started"]);
}
