//! When a run fails (decision 2, M7, M8): a failure that no step handled is never hidden.

use crate::cli::Shell;
use crate::harness::{Act, Server, Upstream, json, onward_with_input};
use serde_json::{Value, json};

/// A shop's order flow. The author of the refund looked for one bad ending of `ship` only.
const ORDER: &str = r#"
name: order
tasks:
  pay: { wait_for_webhook: { timeout: 1h } }
  reserve: { needs: [pay], url: $UP/reserve, retry: { max_attempts: 2, backoff: { type: fixed, min: 1ms } } }
  ship: { needs: [reserve], url: $UP/ship, body: { address: "{{tasks.pay.body.address}}" } }
  thank: { needs: [ship], url: $UP/mail }
  refund: { needs: [ship], if: "CONDITION", url: $UP/refund }
"#;

fn order(server: &Server, upstream: &Upstream, condition: &str, payment: Value) -> Value {
    server.define(&upstream.fill(&ORDER.replace("CONDITION", condition)));
    let run = server.trigger("order", &json!({}));
    let waiting = server.when(&run, "pay", "waiting");
    let explained = server.get(&format!("/api/v1/runs/{}/explain", waiting["id"].as_str().unwrap())).data(200);
    let url = explained["details"]["url"].as_str().expect("the payment's callback");
    server.post(&url[url.find("/wh/").unwrap()..], &payment).data(200);
    server.finished(&run)
}

#[test]
fn m8_an_order_whose_shipping_failed_is_never_green() {
    let upstream = Upstream::start();
    upstream.on("/reserve", [json(503, json!({})), json(200, json!({}))]);
    // The payment has no address: `ship` ends with a template error, which the refund does not look for.
    let server = Server::start();
    let view = order(&server, &upstream, "tasks.ship.status == 'failed'", json!({ "paid": true }));
    assert_eq!(view["status"], "failed", "{view:#}");
    assert_eq!(view["tasks"]["ship"]["status"], "template_error");
    assert_eq!((&view["failed_steps"], &view["unhandled_steps"]), (&json!(["ship"]), &json!(["ship"])));
    assert_eq!(view["error"]["step"], "ship");
    let listed = &server.list("/api/v1/runs")[0];
    assert_eq!((&listed["failed_steps"], &listed["unhandled_steps"]), (&json!(["ship"]), &json!(["ship"])));
    let run = view["id"].as_str().unwrap();
    let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    let summary = explained["summary"].as_str().unwrap();
    assert!(summary.contains("`ship`") && summary.ends_with("no step handled it"), "{summary}");
    assert_eq!(explained["details"]["unhandled_steps"], json!(["ship"]));
    assert_eq!(upstream.effects_on("/refund").len(), 0);
}

#[test]
fn m8_a_condition_on_failed_sees_every_bad_ending() {
    let upstream = Upstream::start();
    let server = Server::start();
    let view = order(&server, &upstream, "tasks.ship.failed", json!({ "paid": true }));
    assert_eq!((&view["status"], &view["tasks"]["refund"]["status"]), (&json!("completed"), &json!("success")));
    assert_eq!((&view["failed_steps"], &view["unhandled_steps"]), (&json!(["ship"]), &json!([])));
    let run = view["id"].as_str().unwrap();
    let explained = server.get(&format!("/api/v1/runs/{run}/explain")).data(200);
    assert!(explained["summary"].as_str().unwrap().contains("`ship` failed, which `refund` handled"), "{explained:#}");
    assert_eq!(upstream.effects_on("/refund").len(), 1);
}

#[test]
fn m8_fail_when_blocked_and_allow_failure() {
    let upstream = Upstream::start();
    upstream.on("/bad", [json(400, json!({}))]);
    let server = Server::start();
    let run = |name: &str, settings: &str, step: &str| {
        let text = format!(
            "name: {name}\n{settings}\ntasks:\n  a: {{ noop: {{}} }}\n  b: {{ needs: [a], url: $UP/bad{step} }}"
        );
        server.define(&upstream.fill(&text));
        server.finished(&server.trigger(name, &json!({})))
    };
    let summary = |view: &Value| {
        let path = format!("/api/v1/runs/{}/explain", view["id"].as_str().unwrap());
        server.get(&path).data(200)["summary"].as_str().unwrap().to_owned()
    };
    let view = run("plain", "", "");
    assert_eq!((&view["status"], &view["unhandled_steps"]), (&json!("failed"), &json!(["b"])));
    assert!(summary(&view).ends_with("no step handled it"));
    for (name, settings) in [("blocked", "fail_when: blocked"), ("older", "on_failure: blocked")] {
        let view = run(name, settings, "");
        assert_eq!((&view["status"], &view["unhandled_steps"]), (&json!("completed"), &json!(["b"])), "{name}");
        assert!(summary(&view).contains("`b` failed, which no step handled"), "{}", summary(&view));
    }
    let view = run("allowed", "", ", allow_failure: true");
    assert_eq!((&view["status"], &view["failed_steps"]), (&json!("completed"), &json!(["b"])));
    assert_eq!(view["unhandled_steps"], json!([]));
    assert!(summary(&view).contains("`b` failed, which was handled"), "{}", summary(&view));
}

#[test]
fn warnings_are_answered_with_success() {
    let server = Server::start();
    let text = "name: warned\ntasks:\n  a: { url: 'http://127.0.0.1:9/' }\n  \
                b: { noop: {}, needs: [a], if: \"tasks.a.status == 'failed'\" }\n";
    let send = |method: &str, path: &str, text: &str| {
        server.send(method, path, &[("Content-Type", "application/yaml")], text.as_bytes())
    };
    let is_warning = |view: &Value| {
        let problem = &view["problems"][0];
        assert_eq!((&problem["severity"], &problem["code"]), (&json!("warning"), &json!("one_bad_ending")), "{view:#}");
        assert_eq!((&problem["at"]["path"], &problem["at"]["line"]), (&json!("tasks.b.if"), &json!(4)));
    };
    let validated = send("POST", "/api/v1/workflows/validate", text).data(200);
    assert_eq!(validated["valid"], true);
    is_warning(&validated);
    is_warning(&send("POST", "/api/v1/workflows", text).data(201));
    is_warning(&send("PUT", "/api/v1/workflows/warned", text).data(200));
    assert_eq!(server.get("/api/v1/workflows/warned").data(200).get("problems"), None);
    let fixed = text.replace("tasks.a.status == 'failed'", "tasks.a.failed");
    assert_eq!(send("PUT", "/api/v1/workflows/warned", &fixed).data(200).get("problems"), None);
    // An invalid definition shows its warnings too.
    let invalid = send("POST", "/api/v1/workflows/validate", &text.replace("noop", "nope")).data(200);
    assert_eq!(invalid["valid"], false);
    let severities: Vec<&str> =
        invalid["problems"].as_array().unwrap().iter().map(|p| p["severity"].as_str().unwrap()).collect();
    assert!(severities.contains(&"error") && severities.contains(&"warning"), "{invalid:#}");
    // A refusal is for the error, also where a warning stands before it in the text.
    let refused = send("POST", "/api/v1/workflows", &format!("{text}  z: {{ noop: {{}}, needs: [gone] }}\n"));
    assert_eq!(refused.refusal(422), "needs_unknown_step", "{}", refused.text());
    assert_eq!(refused.json()["error"]["problems"].as_array().unwrap().len(), 2);
    // The command line shows them in the source, and succeeds.
    let shell = Shell::new(&server);
    let applied = shell.run_with(&["workflows", "apply", "-"], text);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert!(applied.err.contains("warning[one_bad_ending]") && applied.err.contains("1 warning"), "{applied:?}");
    let checked = onward_with_input(&["validate", "-"], text);
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success(), "{said}");
    assert!(said.contains("warning[one_bad_ending]") && said.contains("valid graph"), "{said}");
}

#[test]
fn decision_10_a_small_bare_timeout_is_refused_with_both_spellings() {
    let server = Server::start();
    let text = |timeout: &str| format!("name: t{timeout}\ntasks: {{ a: {{ url: 'http://h/', timeout: {timeout} }} }}");
    let refused =
        server.send("POST", "/api/v1/workflows", &[("Content-Type", "application/yaml")], text("30").as_bytes());
    refused.refusal(422);
    let error = &refused.json()["error"];
    assert_eq!(
        (&error["problems"][0]["code"], &error["problems"][0]["hint"]),
        (&json!("invalid_duration"), &json!("write `30s` or `30ms`"))
    );
    for fine in ["1000", "5000", "30s", "30ms"] {
        server.define(&text(fine));
    }
}

/// Each workflow fails in `bad` before the kill and decides about that failure after it: `hold` is answered only then.
#[test]
fn m8_whether_a_failure_is_handled_does_not_change_with_a_kill() {
    let upstream = Upstream::start();
    upstream.on("/bad", [json(400, json!({}))]);
    let cases = [
        ("unhandled", "bad: { url: $UP/bad }\nhold: { url: $UP/HOLD }\nend: { needs: [hold], noop: {} }", "failed"),
        (
            "by-if",
            "bad: { url: $UP/bad }\nhold: { url: $UP/HOLD }\nundo: { needs: [bad, hold], if: tasks.bad.failed, noop: {} }",
            "completed",
        ),
        (
            "through-skipped",
            "bad: { url: $UP/bad }\nnext: { needs: [bad], noop: {} }\nhold: { url: $UP/HOLD }\nundo: { needs: [next, hold], if: tasks.bad.failed, noop: {} }",
            "completed",
        ),
        (
            "if-false",
            "bad: { url: $UP/bad }\nhold: { url: $UP/HOLD }\nundo: { needs: [bad, hold], if: tasks.bad.ok, noop: {} }",
            "failed",
        ),
        ("allowed", "bad: { url: $UP/bad, allow_failure: true }\nhold: { url: $UP/HOLD }", "completed"),
        (
            "first-join",
            "bad: { url: $UP/bad }\nhold: { url: $UP/HOLD }\nwon: { needs: { any: [bad, hold] }, noop: {} }",
            "completed",
        ),
        (
            "goes-on",
            "box: { group: { on_error: continue, tasks: { bad: { url: $UP/bad }, hold: { url: $UP/HOLD } } } }",
            "completed",
        ),
        (
            "finishes",
            "box: { group: { on_error: finish, tasks: { bad: { url: $UP/bad }, hold: { url: $UP/HOLD } } } }",
            "failed",
        ),
    ];
    let mut server = Server::start();
    let started = cases.map(|(name, steps, status)| {
        upstream.on(&format!("/hold-{name}"), [Act::Hang, json(200, json!({}))]);
        let workflow = server.workflow(&upstream.fill(&steps.replace("HOLD", &format!("hold-{name}"))));
        (name, server.trigger(&workflow, &json!({})), status)
    });
    let failed = |server: &Server, run: &str| -> Vec<Value> {
        server.events(run).into_iter().filter(|event| event["type"] == "step.failed").collect()
    };
    let before = started.each_ref().map(|(name, run, _)| {
        upstream.wait_for(&format!("/hold-{name}"), 1);
        crate::harness::eventually("`bad` fails", || Some(failed(&server, run)).filter(|events| !events.is_empty()))
    });
    server.crash_and_restart();
    for ((name, run, status), before) in started.iter().zip(before) {
        let view = server.finished(run);
        assert_eq!(view["status"], *status, "{name}: {view:#}");
        let unhandled = view["unhandled_steps"].as_array().expect("a list");
        assert_eq!(unhandled.is_empty(), *status == "completed", "{name}: {unhandled:?}");
        let names: Vec<&str> =
            view["failed_steps"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert!(names.iter().any(|step| step.ends_with("bad")), "{name}: {names:?}");
        assert_eq!(failed(&server, run)[..before.len()], before, "{name}: the failure itself is what it was");
        let listed = server.list("/api/v1/runs");
        let row = listed.iter().find(|row| row["id"] == run.as_str()).expect("it is listed");
        // A list leaves out what is empty.
        let listed = |field: &str| row.get(field).cloned().unwrap_or_else(|| json!([]));
        assert_eq!(
            (listed("failed_steps"), listed("unhandled_steps")),
            (view["failed_steps"].clone(), view["unhandled_steps"].clone()),
            "{name}: the list says the same"
        );
    }
    let views = started.each_ref().map(|(_, run, _)| server.run(run));
    server.crash_and_restart();
    assert_eq!(started.each_ref().map(|(_, run, _)| server.run(run)), views, "and they stay as they ended");
    server.verify();
}
