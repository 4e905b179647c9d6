//! Runs that undo what they did (M24–M26, P16, I29, S26–S28).

use crate::cli::Shell;
use crate::harness::{Act, Server, Upstream, eventually, json, status};
use serde_json::{Value, json};

/// An order whose `ship` fails.
const ORDER: &str = "
reserve: { url: $UP/reserve, compensate: { url: '$UP/release', body: { of: '{{tasks.reserve.body.id}}' } } }
charge:
  needs: [reserve]
  url: $UP/charge
  compensate: { url: '$UP/refund', body: { of: '{{tasks.charge.body.id}}', order: '{{trigger.body.order}}' } }
label: { needs: [charge], url: $UP/label, compensate: { url: $UP/void } }
ship: { needs: [label], url: $UP/ship, compensate: { url: $UP/never } }";

fn order(upstream: &Upstream) {
    upstream.on("/reserve", [json(200, json!({ "id": "r1" }))]);
    upstream.on("/charge", [json(200, json!({ "id": "c1" }))]);
    upstream.on("/ship", [status(400)]);
}

/// An answer that is held until it is released.
fn held() -> Act {
    Act::Held(Box::new(json(200, json!({}))))
}

/// The paths of the requests that undo something, in order.
fn undone(upstream: &Upstream) -> Vec<String> {
    let paths = upstream.effects().into_iter().map(|effect| effect.path);
    paths.filter(|path| ["/release", "/refund", "/void", "/never"].contains(&path.as_str())).collect()
}

fn types(events: &[Value]) -> Vec<String> {
    let of_undo = |event: &&Value| {
        let kind = event["type"].as_str().unwrap_or_default();
        kind.starts_with("compensation.") || kind == "run.compensating" || kind == "run.failed"
    };
    let name = |event: &Value| match event["step"].as_str() {
        Some(step) => format!("{} {step}", event["type"].as_str().unwrap_or_default()),
        None => event["type"].as_str().unwrap_or_default().to_owned(),
    };
    events.iter().filter(of_undo).map(name).collect()
}

fn explain(server: &Server, run: &str) -> Value {
    server.get(&format!("/api/v1/runs/{run}/explain")).data(200)
}

#[test]
fn m25_s26_s28_completed_steps_are_undone_in_reverse_order_and_the_result_is_shown() {
    let upstream = Upstream::start();
    order(&upstream);
    upstream.on("/void", [status(503), json(200, json!({ "void": true }))]);
    upstream.on("/refund", [status(400)]);
    let server = Server::start();
    let name = server.workflow(&upstream.fill(ORDER).replace(
        "compensate: { url: ",
        "compensate: { retry: { max_attempts: 2, backoff: { type: fixed, min: 1ms } }, url: ",
    ));
    let path = format!("/api/v1/workflows/{name}/trigger?callback_url={}", upstream.fill("$UP/ended"));
    let run = server.post(&path, &json!({ "order": 7 })).data(201)["run_id"].as_str().expect("an id").to_owned();
    let view = server.finished(&run);
    assert_eq!(view["status"], "failed", "{view:#}");
    assert_eq!(undone(&upstream), ["/void", "/void", "/refund", "/release"]);
    let refund = &upstream.effects_on("/refund")[0];
    assert_eq!(refund.json(), json!({ "of": "c1", "order": 7 }), "an undo reads the result of its step");
    assert_eq!(refund.header("idempotency-key"), format!("{run}:charge/compensate"));
    let recovery = &view["recovery"];
    assert_eq!((&recovery["status"], &recovery["remaining"]), (&json!("failed"), &json!([])), "{recovery:#}");
    let steps: Vec<(&Value, &Value, &Value)> = recovery["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| (&step["step"], &step["status"], &step["attempt"]))
        .collect();
    assert_eq!(
        json!(steps),
        json!([["label", "success", 2], ["charge", "failed", 1], ["reserve", "success", 1]]),
        "{recovery:#}"
    );
    assert_eq!(recovery["steps"][0]["output"], json!({ "void": true }));
    assert_eq!(recovery["steps"][1]["error"]["code"], "http_status");
    assert_eq!((&view["failed_steps"], &view["error"]["step"]), (&json!(["ship"]), &json!("ship")));
    assert_eq!(
        types(&server.events(&run)),
        [
            "run.compensating",
            "compensation.started label/compensate",
            "compensation.succeeded label/compensate",
            "compensation.started charge/compensate",
            "compensation.failed charge/compensate",
            "compensation.started reserve/compensate",
            "compensation.succeeded reserve/compensate",
            "run.failed ship",
        ]
    );
    let ended = upstream.wait_for("/ended", 1);
    assert_eq!(ended[0].json()["recovery"]["status"], "failed", "a notification says what was not undone");
    assert_eq!(ended[0].json()["recovery"]["steps"][1]["error"]["code"], "http_status");
    server.verify();
}

#[test]
fn m25_p16_a_kill_between_any_two_undos_repeats_none_that_was_recorded() {
    let upstream = Upstream::start();
    order(&upstream);
    // Each undo hangs first, so that the server dies while it is out.
    for path in ["/void", "/refund", "/release"] {
        upstream.on(path, [Act::Hang, json(200, json!({}))]);
    }
    let mut server = Server::start();
    let name = server.workflow(&upstream.fill(ORDER));
    let run = server.trigger(&name, &json!({ "order": 7 }));
    for path in ["/void", "/refund", "/release"] {
        upstream.wait_for(path, 1);
        let view = server.run(&run);
        assert_eq!((&view["status"], &view["recovery"]["status"]), (&json!("compensating"), &json!("running")));
        server.crash_and_restart();
    }
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["recovery"]["status"]), (&json!("failed"), &json!("completed")), "{view:#}");
    assert_eq!(undone(&upstream), ["/void", "/void", "/refund", "/refund", "/release", "/release"]);
    for (path, step) in [("/void", "label"), ("/refund", "charge"), ("/release", "reserve")] {
        for effect in upstream.effects_on(path) {
            assert_eq!(effect.header("idempotency-key"), format!("{run}:{step}/compensate"));
        }
    }
    let done = types(&server.events(&run)).into_iter().filter(|event| event.starts_with("compensation.succeeded"));
    assert_eq!(done.count(), 3, "each is recorded once");
    server.verify();
}

#[test]
fn m24_s27_an_undo_waits_for_a_worker_that_was_called_off_and_gets_what_there_is_to_know() {
    let upstream = Upstream::start();
    upstream.on("/bad", [status(400)]);
    let server = Server::start();
    let steps = "
first: { task: first.v1, input: { n: 1 }, compensate: { task: undo.v1 } }
both:
  needs: [first]
  group:
    tasks:
      slow: { task: slow.v1, input: { n: '{{trigger.body.n}}' }, compensate: { task: undo.v1 } }
      wait: { wait_for_signal: { name: go } }
      bad: { needs: [wait], url: $UP/bad }";
    let name = server.workflow(&upstream.fill(steps));
    let run = server.trigger(&name, &json!({ "n": 2 }));
    server.claim_one("w", "first.v1").complete(json!({ "id": "f" }));
    let slow = server.claim_one("w", "slow.v1");
    server.post(&format!("/api/v1/runs/{run}/signals/go"), &json!({})).data(200);
    let view = eventually("the run undoes what it did", || {
        Some(server.run(&run)).filter(|view| view["status"] == "compensating")
    });
    assert_eq!(view["recovery"]["steps"], json!([]), "not beside an attempt at work");
    let why = explain(&server, &run);
    assert_eq!(
        (&why["reason"], &why["details"]["waits_for"]),
        (&json!("compensating"), &json!(["both/slow"])),
        "{why:#}"
    );
    assert_eq!(slow.complete(json!({ "id": "s" })).status, 200, "its result counts: it must be undone, too");
    let undo = server.claim_one("w", "undo.v1");
    let input = &undo.view["input"];
    assert_eq!(input["step"], json!({ "key": "both/slow", "input": { "n": 2 }, "output": { "id": "s" } }), "{input:#}");
    assert_eq!((&input["payload"], &input["context"]["run_id"]), (&json!({ "n": 2 }), &json!(run)));
    assert_eq!(input["failure"]["step"], "both", "{input:#}");
    undo.complete(json!({}));
    let undo = server.claim_one("w", "undo.v1");
    assert_eq!(undo.view["input"]["step"]["key"], "first");
    undo.complete(json!({}));
    assert_eq!(server.finished(&run)["status"], "failed");
    server.verify();
}

#[test]
fn m26_a_cancellation_undoes_when_it_asks_for_it_and_is_not_cut_short() {
    let upstream = Upstream::start();
    upstream.on("/undo", [held()]);
    let server = Server::start();
    let steps = upstream.fill("a: { noop: {} }\nb: { url: $UP/do, compensate: { url: $UP/undo } }\nc: { needs: [b], wait_for_signal: { name: go } }");
    let name = server.workflow(&steps);
    let runs: Vec<String> = (0..2).map(|_| server.trigger(&name, &json!({}))).collect();
    runs.iter().for_each(|run| drop(server.when(run, "c", "waiting")));
    assert_eq!(server.cancel(&runs[0]).data(200)["status"], "cancelled", "without being asked, nothing is undone");
    assert_eq!(upstream.effects_on("/undo").len(), 0);

    let shell = Shell::new(&server);
    let said = shell.run_with(&["runs", "cancel", &runs[1], "--compensate", "--reason", "wrong address"], "");
    assert!(said.out.contains("compensating"), "{}", said.out);
    upstream.wait_for("/undo", 1);
    let path = |verb: &str| format!("/api/v1/runs/{}/{verb}", runs[1]);
    assert_eq!(server.cancel(&runs[1]).status, 200, "it is being cancelled already");
    assert_eq!(server.post(&path("signals/go"), &json!({})).refusal(409), "run_ended");
    server.post(&path("pause"), &json!({ "actor": "ada" })).data(200);
    upstream.release("/undo");
    let why = eventually("the pause holds the end of the run", || {
        Some(explain(&server, &runs[1])).filter(|why| why["details"]["step"].is_null())
    });
    assert_eq!(
        (&why["reason"], &why["next_actions"][0]["action"]),
        (&json!("compensating"), &json!("resume")),
        "{why:#}"
    );
    server.post(&path("resume"), &json!({ "actor": "ada" })).data(200);
    let view = server.finished(&runs[1]);
    assert_eq!((&view["status"], &view["recovery"]["status"]), (&json!("cancelled"), &json!("completed")), "{view:#}");
    server.verify();
}

#[test]
fn m26_a_failure_cannot_be_turned_into_a_cancellation_while_it_is_undone() {
    let upstream = Upstream::start();
    order(&upstream);
    upstream.on("/void", [held()]);
    let server = Server::start();
    let run = server.trigger(&server.workflow(&upstream.fill(ORDER)), &json!({}));
    upstream.wait_for("/void", 1);
    assert_eq!(server.cancel(&run).refusal(409), "run_ended");
    upstream.release("/void");
    assert_eq!(server.finished(&run)["status"], "failed");
}

#[test]
fn m19_m26_a_cancellation_that_undoes_goes_down_to_the_children_first() {
    let upstream = Upstream::start();
    let mut server = Server::start();
    let child = "name: leaf\ntasks:\n  do: { url: $UP/do, compensate: { url: $UP/undo-child } }\n  hold: { needs: [do], wait_for_signal: { name: go } }";
    server.define(&upstream.fill(child));
    let name = server.workflow(&upstream.fill(
        "mine: { url: $UP/mine, compensate: { url: $UP/undo-mine } }\ncall: { needs: [mine], subworkflow: leaf }",
    ));
    let run = server.trigger(&name, &json!({}));
    let view = server.when(&run, "call", "waiting");
    let child = view["tasks"]["call"]["child"]["run_id"].as_str().expect("a child").to_owned();
    eventually("the child waits", || {
        let answer = server.get(&format!("/api/v1/runs/{child}"));
        (answer.status == 200 && answer.data(200)["status"] == "waiting").then_some(())
    });
    let cancel = json!({ "actor": "ada", "compensate": true });
    server.post(&format!("/api/v1/runs/{run}/cancel"), &cancel).data(200);
    server.crash_and_restart();
    assert_eq!(server.finished(&run)["status"], "cancelled");
    assert_eq!(server.run(&child)["status"], "cancelled");
    let paths: Vec<String> = upstream.effects().into_iter().map(|effect| effect.path).collect();
    let undos: Vec<&String> = paths.iter().filter(|path| path.starts_with("/undo")).collect();
    assert_eq!(undos.first().map(|path| path.as_str()), Some("/undo-child"), "{paths:?}");
    assert_eq!(undos.last().map(|path| path.as_str()), Some("/undo-mine"), "{paths:?}");
    server.verify();
}

#[test]
fn m26_an_attempt_with_an_unknown_outcome_is_undone_if_the_step_says_so() {
    let server = Server::with_virtual_clock();
    for (setting, undos) in [("", 0), (", compensate_on_unknown: true", 1)] {
        let name =
            server.workflow(&format!("a: {{ task: a.v1, retry: never, compensate: {{ task: undo.v1 }}{setting} }}"));
        let run = server.trigger(&name, &json!({}));
        server.claim_one("w", "a.v1");
        server.advance("2m");
        if undos > 0 {
            server.claim_one("w", "undo.v1").complete(json!({}));
        }
        let view = server.finished(&run);
        assert_eq!(
            (&view["status"], &view["tasks"]["a"]["error"]["code"]),
            (&json!("failed"), &json!("outcome_unknown"))
        );
        assert_eq!(view["recovery"]["steps"].as_array().map_or(0, Vec::len), undos, "{view:#}");
    }
    server.verify();
}

#[test]
fn m27_s31_a_replay_that_would_repeat_what_is_irreversible_is_refused() {
    let upstream = Upstream::start();
    let server = Server::start();
    let name = server.workflow(&upstream.fill(
        "pay: { url: $UP/pay, irreversible: true }\ntell: { needs: [pay], url: $UP/tell, compensatable: false }",
    ));
    let run = server.trigger(&name, &json!({}));
    server.finished(&run);
    let path = format!("/api/v1/runs/{run}/replay");
    let refused = server.post(&path, &json!({}));
    assert_eq!(refused.refusal(409), "unsafe_replay");
    assert!(refused.text().contains("`pay`, `tell`"), "{}", refused.text());
    let why = explain(&server, &run);
    assert_eq!(why["details"]["replay"]["required_override"], "allow_irreversible", "{why:#}");
    assert_eq!(
        why["details"]["replay"]["blocked_by"][0],
        json!({ "step": "pay", "irreversible": true, "compensatable": false })
    );
    assert_eq!(why["next_actions"], json!([]), "only what is safe is offered");
    for almost in [json!("true"), json!(1), json!(null)] {
        let answer = server.post(&path, &json!({ "allow_irreversible": almost }));
        assert!(matches!(answer.status, 409 | 422), "{}", answer.text());
    }
    assert_eq!(upstream.effects_on("/pay").len(), 1);
    server.post(&path, &json!({ "allow_irreversible": true })).data(201);
    upstream.wait_for("/pay", 2);
}
