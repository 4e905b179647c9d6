//! Explain: a reason, evidence and working actions for every state that a run can be in.

use crate::harness::{Act, Server, Upstream, eventually, status};
use serde_json::{Value, json};

fn explain(server: &Server, run: &str, step: &str) -> Value {
    let query = if step.is_empty() { String::new() } else { format!("?step={step}") };
    server.get(&format!("/api/v1/runs/{run}/explain{query}")).data(200)
}

/// How to get a run into a state, and what explain says about it there.
struct State {
    name: &'static str,
    steps: &'static str,
    /// Pauses the run once it runs.
    is_paused: bool,
    is_cancelled: bool,
    reason: &'static str,
    /// A part of the summary.
    says: &'static str,
    /// A JSON pointer into the details, and the value there.
    evidence: (&'static str, Value),
    actions: &'static [&'static str],
}

fn states() -> Vec<State> {
    let state = |name, steps, reason, says, evidence, actions| State {
        name,
        steps,
        is_paused: false,
        is_cancelled: false,
        reason,
        says,
        evidence,
        actions,
    };
    let open: &[&str] = &["wait", "cancel"];
    let over: &[&str] = &["replay"];
    let failed: &[&str] = &["retry", "replay"];
    vec![
        state("running", "a: { url: $UP/held }", "step_running", "`a` is on attempt 1", ("/attempt", json!(1)), open),
        state("sleeping", "a: { sleep: 1h }", "sleeping_until", "`a` sleeps until", ("/kind", json!("sleep")), open),
        state(
            "waiting",
            "a: { wait_for_webhook: { timeout: 1h } }",
            "waiting_for_webhook",
            "`a` waits for a call to its URL until",
            ("/status", json!("waiting")),
            &["call_webhook", "wait", "cancel"],
        ),
        state(
            "retrying",
            "a: { url: $UP/down, retry: { max_attempts: 3, backoff: { type: fixed, min: 1h } } }",
            "waiting_for_retry",
            "attempt 1 of `a` failed (the server answered 503)",
            ("/last_error/code", json!("http_status")),
            &["wait", "retry_now", "cancel"],
        ),
        State {
            is_paused: true,
            ..state(
                "paused",
                "a: { sleep: 1h }",
                "paused_for_manual_action",
                "the run was paused by ada",
                ("/target", json!("run")),
                &["resume", "wait", "cancel"],
            )
        },
        state(
            "completed",
            "a: { noop: {} }",
            "completed",
            "its only step has settled",
            ("/replay/allowed", json!(true)),
            over,
        ),
        state(
            "failed",
            "a: { url: $UP/bad }\nb: { noop: {}, needs: [a] }",
            "step_failed",
            "`a` failed: the server answered 400",
            ("/status_code", json!(400)),
            failed,
        ),
        state(
            "exhausted",
            "a: { url: $UP/down, retry: { max_attempts: 2, backoff: { type: fixed, min: 1ms } } }",
            "retry_exhausted",
            "`a` failed 2 times, last: the server answered 503",
            ("/max_attempts", json!(2)),
            failed,
        ),
        state(
            "template",
            "a: { url: $UP/fine, body: '{{trigger.body.nothing}}' }",
            "template_error",
            "Failed to resolve {{trigger.body.nothing}}",
            ("/error/code", json!("template_error")),
            failed,
        ),
        State {
            is_cancelled: true,
            ..state("cancelled", "a: { sleep: 1h }", "cancelled", "ada cancelled the run", ("/by", json!("ada")), over)
        },
    ]
}

fn reach(server: &Server, upstream: &Upstream, state: &State) -> String {
    let workflow = server.workflow(&upstream.fill(state.steps));
    let run = server.trigger(&workflow, &json!({}));
    let act = |verb: &str| server.post(&format!("/api/v1/runs/{run}/{verb}"), &json!({ "actor": "ada" })).data(200);
    if state.is_paused {
        act("pause");
    }
    if state.is_cancelled {
        act("cancel");
    }
    let what = format!("`{}` is explained by {}", state.name, state.reason);
    eventually(&what, || Some(()).filter(|()| explain(server, &run, "")["reason"] == state.reason));
    run
}

fn world() -> (Server, Upstream) {
    let upstream = Upstream::start();
    upstream.on("/held", [Act::Held(Box::new(status(200)))]);
    upstream.on("/down", [status(503)]);
    upstream.on("/bad", [status(400)]);
    (Server::start(), upstream)
}

#[test]
fn every_state_has_a_reason_and_evidence() {
    let (server, upstream) = world();
    for state in states() {
        let run = reach(&server, &upstream, &state);
        let explanation = explain(&server, &run, "");
        let name = state.name;
        assert_eq!(explanation["run_id"], json!(run));
        assert_eq!(explanation["status"], server.run(&run)["status"], "{name}");
        assert!(explanation["summary"].as_str().is_some_and(|s| s.contains(state.says)), "{name}: {explanation}");
        assert_eq!(explanation["details"].pointer(state.evidence.0), Some(&state.evidence.1), "{name}: {explanation}");
        let actions: Vec<&str> = explanation["next_actions"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|a| a["action"].as_str())
            .collect();
        assert_eq!(actions, state.actions, "{name}");
        assert_eq!(
            (&explanation["chain"][0]["what"], &explanation["chain"][0]["name"]),
            (&json!("run"), &json!(run)),
            "{name}"
        );
    }
    upstream.release("/held");
}

#[test]
fn every_action_works_when_it_is_sent_as_printed() {
    let (server, upstream) = world();
    for state in states() {
        for action in state.actions {
            let run = reach(&server, &upstream, &state);
            let explanation = explain(&server, &run, "");
            let found = explanation["next_actions"].as_array().expect("a list").iter().find(|a| a["action"] == *action);
            let found = found.unwrap_or_else(|| panic!("no {action}: {explanation}"));
            let (method, path) = (found["method"].as_str().expect("a method"), found["path"].as_str().expect("a path"));
            let path = path.find("/wh/").map_or(path, |at| &path[at..]);
            let body = found.get("body").map(Value::to_string).unwrap_or_default();
            let headers: &[(&str, &str)] = if body.is_empty() { &[] } else { &[("Content-Type", "application/json")] };
            let answer = server.send(method, path, headers, body.as_bytes());
            assert!(matches!(answer.status, 200 | 201), "{}: {action}: {}", state.name, answer.text());
        }
    }
    upstream.release("/held");
}

#[test]
fn r22_a_skip_names_the_false_condition_and_the_values_it_read() {
    let (server, upstream) = world();
    let workflow = server.workflow(&upstream.fill(
        r#"
charge: { url: $UP/bad }
receipt: { noop: {}, needs: [charge], if: "tasks.charge.status_code == 200 && trigger.body.mail == true" }
archive: { noop: {}, needs: [receipt] }
other: { noop: {} }"#,
    ));
    let run = server.trigger(&workflow, &json!({ "mail": false }));
    server.finished(&run);
    let explanation = explain(&server, &run, "receipt");
    assert_eq!(explanation["reason"], "skipped_by_condition");
    assert_eq!(explanation["details"]["condition"], "tasks.charge.status_code == 200 && trigger.body.mail == true");
    assert_eq!(
        explanation["details"]["saw"],
        json!({ "tasks.charge.status_code": 400 }),
        "only the paths that the condition read"
    );
    let says = "`receipt` was skipped: `tasks.charge.status_code == 200 && trigger.body.mail == true` is false, \
                because tasks.charge.status_code was 400";
    assert_eq!(explanation["summary"], says);
    let explanation = explain(&server, &run, "archive");
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["needs"]),
        (&json!("skipped_by_needs"), &json!({ "receipt": "skipped" }))
    );
    assert_eq!(explain(&server, &run, "other")["reason"], "completed");
    let unknown = server.get(&format!("/api/v1/runs/{run}/explain?step=recipt"));
    assert_eq!(unknown.refusal(422), "invalid_parameter");
}

#[test]
fn a_step_that_waits_for_other_steps_names_them() {
    let (server, upstream) = world();
    let workflow = server.workflow(
        &upstream.fill("a: { url: $UP/held }\nb: { sleep: 1h }\nc: { noop: {} }\njoin: { noop: {}, needs: [a, b, c] }"),
    );
    let run = server.trigger(&workflow, &json!({}));
    server.when(&run, "c", "success");
    let explanation = explain(&server, &run, "join");
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["waiting_on"]),
        (&json!("waiting_for_dependencies"), &json!(["a", "b"]))
    );
    assert_eq!(explanation["details"]["statuses"], json!({ "a": "running", "b": "sleeping", "c": "success" }));
    let explanation = explain(&server, &run, "");
    assert_eq!(
        (&explanation["reason"], &explanation["step"], &explanation["details"]["running"]),
        (&json!("step_running"), &json!("a"), &json!(["a"]))
    );
    assert_eq!(explanation["details"]["waiting_for"][0]["kind"], "sleep");
    upstream.release("/held");
}

#[test]
fn a_failed_run_leads_to_the_step_that_failed() {
    let (server, upstream) = world();
    let workflow = server.workflow(&upstream.fill("pay: { url: $UP/bad }\nship: { noop: {}, needs: [pay] }"));
    let run = server.trigger(&workflow, &json!({}));
    server.finished(&run);
    let explanation = explain(&server, &run, "");
    let chain: Vec<(&str, &str)> = explanation["chain"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|link| (link["name"].as_str().expect("a name"), link["reason"].as_str().expect("a reason")))
        .collect();
    assert_eq!(chain, [(run.as_str(), "step_failed"), ("ship", "skipped_by_needs"), ("pay", "step_failed")]);
}

#[test]
fn r30_an_expired_run_names_its_unfinished_steps() {
    let server = Server::with_virtual_clock();
    let yaml = "name: slow\nmax_duration: 1h\ntasks:\n  nap: { sleep: 1d }\n  after: { noop: {}, needs: [nap] }\n";
    let workflow = server.define(yaml)["id"].as_str().expect("an id").to_owned();
    let run = server.trigger(&workflow, &json!({}));
    server.advance("2h");
    assert_eq!(server.run(&run)["status"], "timeout");
    let explanation = explain(&server, &run, "");
    assert_eq!(
        (&explanation["reason"], &explanation["details"]["unfinished_steps"]),
        (&json!("expired"), &json!(["nap", "after"]))
    );
}
