//! What seed 002 promises about retries, waits, decisions and repair, in the words of this product (S17–S22, S28–S34).

use crate::harness::{Server, Upstream, names, status};
use serde_json::{Value, json};

const RETRY: &str = "retry: { max_attempts: 3, backoff: { type: fixed, min: 1ms } }";

#[test]
fn s17_what_handles_a_failure_runs_once_the_retries_are_used_up_and_otherwise_the_run_fails() {
    let upstream = Upstream::start();
    upstream.on("/pay", [status(503)]);
    upstream.on("/ship", [status(503)]);
    let mut server = Server::start();
    let steps = format!(
        "pay: {{ url: $UP/pay, {RETRY} }}\ncredit: {{ needs: [pay], if: tasks.pay.failed, url: $UP/credit }}\n\
         ship: {{ needs: [credit], url: $UP/ship, {RETRY} }}\nmail: {{ needs: [ship], url: $UP/mail }}"
    );
    let run = server.trigger(&server.workflow(&upstream.fill(&steps)), &json!({}));
    upstream.wait_for("/pay", 1);
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["error"]["step"]), (&json!("failed"), &json!("ship")), "{view:#}");
    assert_eq!(view["unhandled_steps"], json!(["ship"]));
    let effects = upstream.effects();
    let at = |path: &str| effects.iter().position(|effect| effect.path == path).expect(path);
    let last_of_pay = effects.iter().rposition(|effect| effect.path == "/pay").unwrap();
    assert!(at("/credit") > last_of_pay, "after the last attempt");
    assert_eq!(upstream.effects_on("/mail").len(), 0);
    server.verify();
}

#[test]
fn s18_a_run_that_sleeps_occupies_no_worker() {
    let server = Server::start();
    server.put("/api/v1/types/mail.v1", &json!({ "concurrency": { "limit": 1 } })).data(200);
    let name = server.workflow(
        "first: { task: mail.v1 }\nnap: { needs: [first], sleep: 10d }\nsecond: { needs: [nap], task: mail.v1 }",
    );
    let runs: Vec<String> = (0..3).map(|_| server.trigger(&name, &json!({}))).collect();
    for _ in &runs {
        server.claim_one("only", "mail.v1").complete(json!({}));
    }
    for run in &runs {
        let view = server.when(run, "nap", "sleeping");
        assert_eq!((&view["status"], &view["waiting_for"][0]["kind"]), (&json!("waiting"), &json!("sleep")));
    }
    assert_eq!(server.claim("only", &["mail.v1"], 1).len(), 0);
    server.verify();
}

#[test]
fn s19_s20_s22_decisions_have_an_actor_and_are_read_by_what_comes_next() {
    let upstream = Upstream::start();
    let mut server = Server::start();
    let steps = "
review: { approval: { prompt: 'Charge {{trigger.body.sum}}?' } }
charge: { needs: [review], url: $UP/charge, body: '{{tasks.review.body}}' }
hold: { needs: [charge], pause: {} }
second: { needs: [hold], approval: { prompt: Ship? } }
ship: { needs: [second], url: $UP/ship }
keep: { needs: [second], if: tasks.second.failed, url: $UP/keep, body: '{{tasks.second.body}}' }";
    let run = server.trigger(&server.workflow(&upstream.fill(steps)), &json!({ "sum": 40 }));
    let view = server.when(&run, "review", "waiting");
    assert_eq!((&view["status"], &view["waiting_for"][0]["kind"]), (&json!("waiting"), &json!("approval")));
    let path = |verb: &str| format!("/api/v1/runs/{run}/{verb}");
    assert_eq!(server.post(&path("approve"), &json!({})).refusal(422), "invalid_body", "s22: nothing says who decides");
    server.crash_and_restart();
    server.post(&path("approve"), &json!({ "actor": "ada", "comment": "fine" })).data(200);
    let record = upstream.wait_for("/charge", 1)[0].json();
    assert_eq!(
        (&record["decision"], &record["actor"], &record["comment"]),
        (&json!("approved"), &json!("ada"), &json!("fine"))
    );
    assert!(record["at"].is_string(), "{record:#}");
    let view = server.when(&run, "hold", "waiting");
    assert_eq!(view["waiting_for"][0]["kind"], "pause");
    server.crash_and_restart();
    server.post(&path("resume"), &json!({ "actor": "ada" })).data(200);
    server.when(&run, "second", "waiting");
    server.post(&path("reject"), &json!({ "actor": "bob" })).data(200);
    let view = server.finished(&run);
    assert_eq!(
        (&view["status"], &view["tasks"]["ship"]["status"]),
        (&json!("completed"), &json!("skipped")),
        "{view:#}"
    );
    let record = upstream.effects_on("/keep")[0].json();
    assert_eq!((&record["decision"], &record["actor"]), (&json!("denied"), &json!("bob")), "the error route reads it");
    server.verify();
}

#[test]
fn s21_a_deploy_changes_nothing_for_a_run_that_waits() {
    let upstream = Upstream::start();
    let mut server = Server::start();
    let yaml = |url: &str| {
        let tasks = format!("gate: {{ approval: {{ prompt: Go? }} }}, next: {{ needs: [gate], url: '{url}' }}");
        upstream.fill(&format!("name: deployed\ntasks: {{ {tasks} }}"))
    };
    server.define(&yaml("$UP/old"));
    let run = server.trigger("deployed", &json!({}));
    server.when(&run, "gate", "waiting");
    let path = "/api/v1/workflows/deployed";
    server.send("PUT", path, &[("Content-Type", "application/yaml")], yaml("$UP/new").as_bytes()).data(200);
    server.crash_and_restart();
    server.post(&format!("/api/v1/runs/{run}/approve"), &json!({ "actor": "ada" })).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(["/old", "/new"].map(|path| upstream.effects_on(path).len()), [1, 0]);
    server.verify();
}

#[test]
fn s26_s27_s28_an_undo_gets_what_its_step_had_is_not_repeated_by_a_kill_and_its_error_is_shown() {
    let upstream = Upstream::start();
    upstream.on("/ship", [status(400)]);
    let mut server = Server::start();
    let steps = "
book: { task: book.v1, input: { seats: 2 }, compensate: { task: unbook.v1 } }
charge: { needs: [book], task: charge.v1, compensate: { task: refund.v1, retry: never } }
ship: { needs: [charge], url: $UP/ship, compensate: { url: $UP/never } }";
    let run = server.trigger(&server.workflow(&upstream.fill(steps)), &json!({ "order": 7 }));
    server.claim_one("w", "book.v1").complete(json!({ "booking": "b1" }));
    server.claim_one("w", "charge.v1").complete(json!({ "receipt": "r1" }));
    let refund = server.claim_one("w", "refund.v1");
    assert_eq!(refund.view["input"]["step"]["output"], json!({ "receipt": "r1" }), "{:#}", refund.view["input"]);
    assert_eq!(
        (&refund.view["input"]["payload"], &refund.view["input"]["failure"]["step"]),
        (&json!({ "order": 7 }), &json!("ship"))
    );
    server.crash_and_restart();
    let failed = json!({ "claim_token": refund.token(), "error": { "message": "the bank is closed" } });
    server.post(&format!("/api/v1/tasks/{}/fail", refund.id()), &failed).data(200);
    server.crash_and_restart();
    let unbook = server.claim_one("w", "unbook.v1");
    assert_eq!(unbook.view["input"]["step"]["input"], json!({ "seats": 2 }));
    unbook.complete(json!({}));
    let view = server.finished(&run);
    let undone = view["recovery"]["steps"].as_array().unwrap();
    let told: Vec<(&Value, &Value)> = undone.iter().map(|step| (&step["step"], &step["status"])).collect();
    assert_eq!(told, [(&json!("charge"), &json!("failed")), (&json!("book"), &json!("success"))], "{view:#}");
    assert_eq!(undone[0]["error"]["message"], "the bank is closed");
    assert_eq!(upstream.effects_on("/never").len(), 0, "what failed is not undone");
    server.verify();
}

#[test]
fn s30_s31_a_replay_is_another_run_and_repeats_nothing_irreversible_unless_that_is_allowed() {
    let upstream = Upstream::start();
    let server = Server::start();
    let steps =
        "pay: { url: $UP/pay, irreversible: true }\nmail: { needs: [pay], url: $UP/mail, body: '{{trigger.body}}' }";
    let run = server.trigger(&server.workflow(&upstream.fill(steps)), &json!({ "order": 7 }));
    let before = server.finished(&run);
    let path = format!("/api/v1/runs/{run}/replay");
    let refused = server.post(&path, &json!({}));
    assert_eq!(refused.refusal(409), "unsafe_replay");
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("`pay`"), "{:#}", refused.json());
    assert_eq!(
        server.post(&path, &json!({ "allow_irreversible": "yes" })).refusal(422),
        "invalid_body",
        "exactly true"
    );
    let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    assert_eq!(explained["details"]["replay"]["required_override"], "allow_irreversible");
    assert!(explained["next_actions"].as_array().unwrap().iter().all(|action| action["action"] != "replay"));
    let replayed = server.post(&path, &json!({ "allow_irreversible": true })).data(201);
    let view = server.finished(replayed["run_id"].as_str().unwrap());
    assert_eq!((&view["replayed_from"], &view["input"]), (&json!(run), &json!({ "order": 7 })));
    assert_eq!(server.run(&run), before, "the source is as it was");
    assert_eq!(upstream.effects_on("/pay").len(), 2);
    server.verify();
}

#[test]
fn s32_s34_a_run_shows_its_attempts_graph_and_decisions_and_unknown_ids_are_told_apart() {
    let upstream = Upstream::start();
    upstream.on("/pay", [status(503), status(200)]);
    let server = Server::start();
    let steps = format!(
        "pay: {{ url: $UP/pay, {RETRY}, compensate: {{ url: $UP/back }} }}\n\
         gate: {{ needs: [pay], approval: {{ prompt: Go? }} }}\nhold: {{ needs: [gate], pause: {{}} }}"
    );
    let run = server.trigger(&server.workflow(&upstream.fill(&steps)), &json!({}));
    server.when(&run, "gate", "waiting");
    server.post(&format!("/api/v1/runs/{run}/approve"), &json!({ "actor": "ada" })).data(200);
    server.when(&run, "hold", "waiting");
    let steps = server.list(&format!("/api/v1/runs/{run}/steps"));
    let attempts: Vec<&Value> = steps[0]["attempts"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!((&steps[0]["step"], attempts), (&json!("pay"), vec![&json!("failed"), &json!("success")]));
    assert_eq!(steps[1]["needs"], json!(["pay"]));
    let graph = server.get(&format!("/api/v1/runs/{run}/graph")).data(200);
    assert_eq!(graph["edges"][0], json!({ "from": "pay", "to": "gate", "on": "ok" }));
    let shown: Vec<&Value> = graph["nodes"].as_array().unwrap().iter().take(3).map(|node| &node["status"]).collect();
    assert_eq!(shown, [&json!("success"), &json!("success"), &json!("waiting")]);
    let events = server.events(&run);
    for name in ["step.retrying", "approval.requested", "approval.approved", "wait.opened"] {
        assert!(names(&events).contains(&name), "{name}: {:?}", names(&events));
    }
    server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "actor": "ada" })).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
    assert_eq!(server.get("/api/v1/runs/run_00000000000000000000000000").refusal(404), "not_found");
    assert_eq!(server.get("/api/v1/runs/nonsense").refusal(400), "malformed_id");
    server.verify();
}
