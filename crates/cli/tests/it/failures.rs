//! When a run fails (decision 2, M7, M8): a failure that no step handled is never hidden.

use crate::harness::{Server, Upstream, json};
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
    assert!(explained["summary"].as_str().unwrap().contains("`ship` failed, which was handled"), "{explained:#}");
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
