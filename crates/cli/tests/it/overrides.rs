//! M32: operators skip a step of an open run, give its result, or end what it waits for.

use crate::cli::Shell;
use crate::harness::{Act, Server, Upstream, eventually, json};
use serde_json::{Value, json};

fn path(run: &str, step: &str, verb: &str) -> String {
    let step = step.replace('/', "%2F").replace('[', "%5B").replace(']', "%5D");
    format!("/api/v1/runs/{run}/steps/{step}/{verb}")
}

#[test]
fn m32_a_skipped_step_and_a_given_result_lead_on_and_survive_a_kill() {
    let upstream = Upstream::start();
    upstream.on("/hang", [Act::Hang]);
    let mut server = Server::start();
    let name = server.workflow(&upstream.fill(
        "
stuck: { url: $UP/hang, retry: never }
after: { needs: [stuck], url: $UP/after, body: { id: '{{tasks.stuck.body.id}}' } }
gate: { wait_for_signal: { name: go } }
open: { needs: [gate], noop: {} }
instead: { needs: [gate], if: \"tasks.gate.status == 'skipped'\", noop: {} }
each: { loop: { items: [1], tasks: { call: { wait_for_signal: { name: never } } } } }",
    ));
    let run = server.trigger(&name, &json!({}));
    upstream.wait_for("/hang", 1);
    server.when(&run, "gate", "waiting");
    let before = server.events(&run).len();
    let rehearsed =
        server.post(&path(&run, "stuck", "result"), &json!({ "result": { "id": 7 }, "dry_run": true })).data(200);
    assert_eq!(rehearsed["would_run"], json!(["after"]), "{rehearsed:#}");
    assert_eq!(rehearsed["would_repeat"], json!([]), "{rehearsed:#}");
    assert_eq!(server.events(&run).len(), before, "a dry run changes nothing");

    let decide = json!({ "result": { "id": 7 }, "actor": "ada", "reason": "called the shop" });
    server.post(&path(&run, "stuck", "result"), &decide).data(200);
    assert_eq!(server.post(&path(&run, "stuck", "result"), &decide).refusal(409), "step_settled");
    server.post(&path(&run, "gate", "skip"), &json!({ "actor": "ada" })).data(200);
    server.post(&path(&run, "each[0]/call", "skip"), &json!({})).data(200);
    server.crash_and_restart();
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    let status = |step: &str| view["tasks"][step]["status"].clone();
    assert_eq!(
        [status("stuck"), status("after"), status("gate"), status("open"), status("instead")],
        ["success", "success", "skipped", "skipped", "success"]
    );
    assert_eq!(view["tasks"]["gate"]["skipped_because"]["reason"], "operator");
    assert_eq!(upstream.effects_on("/after")[0].json(), json!({ "id": 7 }));
    let events = server.events(&run);
    let overridden = events.iter().find(|event| event["type"] == "step.overridden").expect("it is in the history");
    assert_eq!(
        (&overridden["actor"], &overridden["data"]["verb"], &overridden["data"]["reason"]),
        (&json!("ada"), &json!("result"), &json!("called the shop"))
    );
    assert_eq!(server.post(&path(&run, "open", "skip"), &json!({})).refusal(409), "run_ended");
    server.verify();
}

#[test]
fn m32_run_now_ends_a_sleep_and_the_time_before_a_retry() {
    let upstream = Upstream::start();
    upstream.on("/flaky", [crate::harness::status(503), json(200, json!({}))]);
    let server = Server::start();
    let retry = "retry: { max_attempts: 2, backoff: { type: fixed, min: 1h } }";
    let name = server.workflow(&upstream.fill(&format!("nap: {{ sleep: 10d }}\nflaky: {{ url: $UP/flaky, {retry} }}")));
    let run = server.trigger(&name, &json!({}));
    server.when(&run, "flaky", "retrying");
    let shell = Shell::new(&server);
    for step in ["nap", "flaky"] {
        let said = shell.run_with(&["runs", "run-now", &run, step, "--actor", "ada", "--reason", "no time"], "");
        assert_eq!(said.code, 0, "{}", said.err);
    }
    let view = server.finished(&run);
    assert_eq!((&view["status"], upstream.effects_on("/flaky").len()), (&json!("completed"), 2), "{view:#}");
    server.verify();
}

#[test]
fn m32_what_cannot_be_decided_is_refused_and_changes_nothing() {
    let server = Server::start();
    let name = server.workflow(
        "gate: { wait_for_signal: { name: go } }\neach: { loop: { items: [1], tasks: { w: { wait_for_signal: { name: x } } } } }",
    );
    let run = server.trigger(&name, &json!({}));
    server.when(&run, "gate", "waiting");
    eventually("the loop waits", || {
        (server.get(&format!("/api/v1/runs/{run}/steps?under=each")).json()["data"][0]["status"] == "running")
            .then_some(())
    });
    let before = server.events(&run);
    let post = |step: &str, verb: &str, body: Value| server.post(&path(&run, step, verb), &body);
    assert_eq!(post("gate", "run-now", json!({})).refusal(409), "step_settled", "it does not sleep");
    assert_eq!(post("each[0]", "skip", json!({})).refusal(409), "step_settled", "an iteration");
    assert_eq!(post("none", "skip", json!({})).status, 422);
    assert_eq!(post("gate", "result", json!({})).status, 422, "a result is missing");
    assert_eq!(post("gate", "skip", json!({ "why": 1 })).status, 422, "an unknown field");
    let missing = server.post(&path("run_00000000000000000000000000", "gate", "skip"), &json!({}));
    assert_eq!(missing.status, 404);
    assert_eq!(server.events(&run), before);
    server.cancel(&run);
}

#[test]
fn m32_an_undo_that_is_stuck_can_be_skipped() {
    let upstream = Upstream::start();
    upstream.on("/bad", [crate::harness::status(400)]);
    upstream.on("/undo", [Act::Hang]);
    let server = Server::start();
    let name = server
        .workflow(&upstream.fill("a: { url: $UP/do, compensate: { url: $UP/undo } }\nb: { needs: [a], url: $UP/bad }"));
    let run = server.trigger(&name, &json!({}));
    upstream.wait_for("/undo", 1);
    server.post(&path(&run, "a/compensate", "skip"), &json!({ "actor": "ada", "reason": "undone by hand" })).data(200);
    let view = server.finished(&run);
    assert_eq!(
        (&view["status"], &view["recovery"]["steps"][0]["status"]),
        (&json!("failed"), &json!("skipped")),
        "{view:#}"
    );
    server.verify();
}
