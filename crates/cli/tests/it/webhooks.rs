//! Webhooks: which requests start a run, deduplication, and what the run can read (A10, A13, A18, A.4).

use crate::harness::{Answer, Server};
use base64::Engine as _;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

const SECRET: &str = "a very shared secret";

/// A server with one webhook at `/webhooks/hook`.
struct Hook {
    server: Server,
    trigger: String,
}

impl Hook {
    fn new(config: Value) -> Hook {
        Hook::on(Server::start(), config)
    }

    fn on(server: Server, mut config: Value) -> Hook {
        let workflow = server.workflow("a: { noop: {} }");
        config["path"] = json!("hook");
        let mapping = config.as_object_mut().unwrap().remove("mapping").unwrap_or_else(|| json!({}));
        let made = json!({ "name": "h", "type": "webhook", "workflow": workflow, "config": config, "variable_mapping": mapping });
        let trigger = server.post("/api/v1/triggers", &made).data(201)["id"].as_str().expect("an id").to_owned();
        Hook { server, trigger }
    }

    #[track_caller]
    fn send(&self, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.server.send("POST", "/webhooks/hook", headers, body)
    }

    #[track_caller]
    fn signed(&self, headers: &[(&str, &str)], body: &str) -> Answer {
        let signature = sign(SECRET.as_bytes(), body);
        let headers: Vec<(&str, &str)> =
            headers.iter().copied().chain([("X-Webhook-Signature", &*signature)]).collect();
        self.send(&headers, body.as_bytes())
    }

    /// The run that an answer names.
    #[track_caller]
    fn run(&self, answer: &Answer) -> Value {
        self.server.finished(answer.data(202)["run_id"].as_str().expect("a run"))
    }

    #[track_caller]
    fn log(&self) -> Vec<Value> {
        self.server.list(&format!("/api/v1/triggers/{}/deliveries", self.trigger))
    }

    #[track_caller]
    fn runs(&self) -> usize {
        self.server.list("/api/v1/runs").len()
    }
}

fn sign(key: &[u8], text: &str) -> String {
    let bytes = hmac(key, text);
    format!("sha256={}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("an HMAC key may have any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

#[test]
fn a13_a_signed_request_starts_a_run() {
    let hook = Hook::new(json!({ "secret": SECRET }));
    let body = r#"{"order": {"id": 7}}"#;
    let headers = [
        ("Content-Type", "application/json"),
        ("X-Webhook-Id", "d1"),
        ("X-Shop", "north"),
        ("Authorization", "Bearer x"),
    ];
    let answer = hook.signed(&headers, body);
    let delivered = answer.data(202);
    assert_eq!((&delivered["delivery_id"], &delivered["status"]), (&json!("d1"), &json!("running")));
    let run = hook.run(&answer);
    let trigger = &run["trigger"];
    assert_eq!(
        (&trigger["type"], &trigger["body"], &trigger["id"]),
        (&json!("webhook"), &json!({ "order": { "id": 7 } }), &json!(hook.trigger))
    );
    assert_eq!(trigger["delivery_id"], "d1");
    assert_eq!(trigger["headers"]["x-shop"], "north");
    for secret in ["authorization", "x-webhook-signature"] {
        assert_eq!(trigger["headers"][secret], Value::Null, "{secret} is not kept");
    }
    // The headers that GitHub sends.
    let signature = sign(SECRET.as_bytes(), "{}");
    let github = hook.send(
        &[("X-Hub-Signature-256", &signature), ("X-GitHub-Delivery", "g1"), ("User-Agent", "GitHub-Hookshot")],
        b"{}",
    );
    assert_eq!(github.data(202)["delivery_id"], "g1");
    let log = hook.log();
    assert_eq!((log.len(), &log[0]["id"], &log[0]["outcome"]), (2, &json!("g1"), &json!("started")));
    let trigger = hook.server.get(&format!("/api/v1/triggers/{}", hook.trigger)).data(200);
    assert_eq!(trigger["last_run_id"], github.data(202)["run_id"]);
}

#[test]
fn a13_forged_tampered_and_bare_requests_start_nothing() {
    let hook = Hook::new(json!({ "secret": SECRET }));
    let body = r#"{"pay": 1}"#;
    assert_eq!(hook.send(&[], body.as_bytes()).refusal(401), "signature_missing");
    let forged = sign(b"another secret", body);
    let right = sign(SECRET.as_bytes(), body);
    for header in ["X-Webhook-Signature", "X-Hub-Signature-256"] {
        assert_eq!(hook.send(&[(header, &forged)], body.as_bytes()).refusal(401), "signature_invalid");
        assert_eq!(hook.send(&[(header, &right)], br#"{"pay": 100}"#).refusal(401), "signature_invalid");
        assert_eq!(hook.send(&[(header, "sha256=")], body.as_bytes()).refusal(401), "signature_invalid");
        assert_eq!(hook.send(&[(header, &right[7..])], body.as_bytes()).refusal(401), "signature_invalid");
    }
    assert_eq!(hook.runs(), 0);
    let log = hook.log();
    assert!((1..=9).contains(&log.len()) && log.iter().all(|line| line["outcome"] == "rejected"), "{log:?}");
    // A rejected request does not use up its delivery id.
    assert_eq!(hook.send(&[("X-Webhook-Id", "d1"), ("X-Webhook-Signature", &forged)], body.as_bytes()).status, 401);
    assert_eq!(hook.signed(&[("X-Webhook-Id", "d1")], body).status, 202);
    let line = hook.log().into_iter().find(|line| line["outcome"] == "rejected").expect("a line");
    let again = format!("/api/v1/triggers/{}/deliveries/{}/redeliver", hook.trigger, line["id"].as_str().unwrap());
    assert_eq!(hook.server.send("POST", &again, &[], b"").refusal(409), "request_not_kept");
}

#[test]
fn a13_an_old_request_cannot_be_replayed() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-01-01T00:00:00Z"]);
    let key = b"0123456789abcdef";
    let secret = format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(key));
    let hook = Hook::on(server, json!({ "secret": secret }));
    let time = "1798761600"; // 2027-01-01T00:00:00Z
    let signature =
        format!("v1,{}", base64::engine::general_purpose::STANDARD.encode(hmac(key, &format!("msg_1.{time}.{{}}"))));
    let send = |id: &str, time: &str| {
        hook.send(&[("webhook-id", id), ("webhook-timestamp", time), ("webhook-signature", &signature)], b"{}")
    };
    assert_eq!(send("msg_1", time).data(202)["delivery_id"], "msg_1");
    assert_eq!(send("msg_1", time).data(200)["deduplicated"], true);
    assert_eq!(send("msg_2", time).refusal(401), "signature_invalid", "the id is signed too");
    hook.server.advance("6m");
    assert_eq!(send("msg_1", time).refusal(401), "timestamp_out_of_window");
    assert_eq!(send("msg_1", "1798761960").refusal(401), "signature_invalid", "and so is the time");
    let plain = sign(key, "{}");
    assert_eq!(hook.send(&[("X-Webhook-Signature", &plain)], b"{}").refusal(401), "signature_missing");
    assert_eq!(hook.runs(), 1);
}

#[test]
fn a13_a_plain_signature_may_have_a_time_or_must() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-01-01T00:00:00Z"]);
    let hook = Hook::on(server, json!({ "secret": SECRET, "require_timestamp": true }));
    let send = |time: &str| {
        let signature = sign(SECRET.as_bytes(), &format!("{time}.{{}}"));
        hook.send(&[("X-Webhook-Timestamp", time), ("X-Webhook-Signature", &signature)], b"{}")
    };
    assert_eq!(send("1798761600").status, 202);
    assert_eq!(send("1798761000").refusal(401), "timestamp_out_of_window");
    assert_eq!(hook.signed(&[], "{}").refusal(401), "timestamp_missing");
}

#[test]
fn a13_unknown_paths_wrong_methods_and_large_bodies_are_refused() {
    let hook = Hook::new(json!({ "unsigned": true, "method": "PUT" }));
    let server = &hook.server;
    for path in ["/webhooks/other", "/webhooks/hook/more", "/webhooks/HOOK", "/webhooks/%ff"] {
        let status = server.send("POST", path, &[], b"{}").status;
        assert!(matches!(status, 404 | 400), "{path}: {status}");
    }
    assert_eq!(server.send("POST", "/webhooks/missing", &[], b"{}").refusal(404), "not_found");
    for method in ["POST", "GET", "DELETE"] {
        let answer = server.send(method, "/webhooks/hook", &[], b"");
        assert_eq!(answer.refusal(405), "method_not_allowed");
        assert_eq!(answer.header("allow"), Some("PUT"));
    }
    let large = vec![b'x'; 256 * 1024 + 1];
    assert_eq!(server.send("PUT", "/webhooks/hook", &[], &large).refusal(413), "too_large");
    assert_eq!(hook.runs(), 0);
    // Any host, origin and content type.
    let headers = [("Host", "hooks.example.com"), ("Origin", "https://example.com"), ("Content-Type", "text/csv")];
    let answer = server.send("PUT", "/webhooks/hook", &headers, &large[1..]);
    assert_eq!(hook.run(&answer)["input"].as_str().map(str::len), Some(256 * 1024));
    server.post(&format!("/api/v1/triggers/{}/disable", hook.trigger), &json!({})).data(200);
    assert_eq!(
        server.send("PUT", "/webhooks/hook", &[], b"{}").refusal(404),
        "not_found",
        "as if the webhook did not exist"
    );
}

#[test]
fn a18_a_delivery_counts_once() {
    let hook = Hook::new(json!({ "secret": SECRET }));
    let first = hook.signed(&[("X-Request-Id", "r1")], r#"{"n":1}"#).data(202);
    let again = hook.signed(&[("X-Request-Id", "r1")], r#"{"n":1}"#).data(200);
    assert_eq!(
        (&again["run_id"], &again["deduplicated"], &again["delivery_id"]),
        (&first["run_id"], &json!(true), &json!("r1"))
    );
    assert_eq!(hook.signed(&[("X-Request-Id", "r1")], r#"{"n":2}"#).refusal(422), "delivery_id_reused");
    // Without a delivery id, the request's content identifies it.
    let bare = hook.signed(&[], r#"{"n":3}"#).data(202);
    assert!(bare["delivery_id"].as_str().is_some_and(|id| id.starts_with("sha256-")));
    assert_eq!(hook.signed(&[], r#"{"n":3}"#).data(200)["run_id"], bare["run_id"]);
    assert_eq!(hook.signed(&[], r#"{"n":4}"#).status, 202);
    assert_eq!(hook.runs(), 3);
}

#[test]
fn a18_equal_requests_without_an_id_are_one_delivery_within_the_window() {
    let hook = Hook::on(Server::with_virtual_clock(), json!({ "unsigned": true, "dedup_window": "10m" }));
    let first = hook.send(&[], b"{}").data(202);
    // Nine minutes later wherever the window began, then twelve after the first.
    for (by, status) in [("5m", 200), ("4m", 200), ("3m", 202), ("9m", 200), ("2m", 202)] {
        hook.server.advance(by);
        let answer = hook.send(&[], b"{}");
        assert_eq!(answer.status, status, "after another {by}: {}", answer.text());
    }
    assert_ne!(hook.log()[0]["run_id"], first["run_id"]);
    assert_eq!((hook.runs(), hook.log().len()), (3, 3));
    // An id that the sender gives is good for ever.
    let given = [("X-Request-Id", "r")];
    assert_eq!(hook.send(&given, b"{}").status, 202);
    hook.server.advance("1d");
    assert_eq!(hook.send(&given, b"{}").status, 200);
}

#[test]
fn a18_twenty_duplicates_at_once_are_one_run() {
    let mut hook = Hook::new(json!({ "unsigned": true }));
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let api = *hook.server;
        let send = move || api.send("POST", "/webhooks/hook", &[("X-GitHub-Delivery", "g")], b"{}");
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(send)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let runs: std::collections::BTreeSet<String> =
        answers.iter().map(|answer| answer.json()["data"]["run_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 19);
    assert_eq!((hook.runs(), hook.log().len()), (1, 1));
    hook.server.crash_and_restart();
    let again = hook.send(&[("X-GitHub-Delivery", "g")], b"{}").data(200);
    assert_eq!(again["run_id"].as_str(), runs.first().map(String::as_str), "also after a crash");
}

#[test]
fn a18_dedup_can_be_narrowed_or_switched_off() {
    let hook = Hook::new(json!({ "unsigned": true, "dedup": "delivery_id" }));
    assert_eq!((hook.send(&[], b"{}").status, hook.send(&[], b"{}").status), (202, 202));
    assert_eq!(hook.send(&[("X-Request-Id", "r")], b"{}").status, 202);
    assert_eq!(hook.send(&[("X-Request-Id", "r")], b"{}").status, 200);
    let hook = Hook::new(json!({ "unsigned": true, "dedup": "none" }));
    assert_eq!(hook.send(&[("X-Request-Id", "r")], b"{}").status, 202);
    assert_eq!(hook.send(&[("X-Request-Id", "r")], b"{}").status, 202);
    assert_eq!((hook.runs(), hook.log().len()), (2, 2));
}

#[test]
fn a4_a13_query_and_mapping_make_the_body() {
    let hook = Hook::new(json!({ "unsigned": true, "dedup": "none" }));
    let body = br#"{"a":{"b":{"c":7}},"list":[1]}"#;
    let sent = |hook: &Hook, query: &str, headers: &[(&str, &str)], body: &[u8]| {
        hook.run(&hook.server.send("POST", &format!("/webhooks/hook{query}"), headers, body))["input"].clone()
    };
    assert_eq!(sent(&hook, "?q=z", &[], body), json!({ "a": { "b": { "c": 7 } }, "list": [1], "query": { "q": "z" } }));
    assert_eq!(sent(&hook, "", &[], b"plain words"), json!("plain words"));
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(sent(&hook, "", &form, b"name=Ada&tag=x&tag=y"), json!({ "name": "Ada", "tag": ["x", "y"] }));
    assert_eq!(sent(&hook, "", &[], b""), Value::Null);
    let mapping = json!({ "c": "$.a.b.c", "q": "$.query.q", "x": "$.a.x" });
    let hook = Hook::new(json!({ "unsigned": true, "mapping": mapping }));
    assert_eq!(sent(&hook, "?q=z", &[], body), json!({ "c": 7, "q": "z" }));
    let shown = hook.server.get(&format!("/api/v1/triggers/{}", hook.trigger)).data(200);
    assert_eq!(shown["variable_mapping"], mapping);
}

#[test]
fn a10_a_header_can_be_required() {
    let hook = Hook::new(json!({ "unsigned": true, "headers": { "X-Token": "let me in" } }));
    assert_eq!(hook.send(&[], b"{}").refusal(401), "header_required");
    assert_eq!(hook.send(&[("X-Token", "let me out")], b"{}").refusal(401), "header_required");
    let run = hook.run(&hook.send(&[("X-Token", "let me in"), ("X-Other", "kept")], b"{}"));
    assert_eq!(
        (&run["trigger"]["headers"]["x-token"], &run["trigger"]["headers"]["x-other"]),
        (&Value::Null, &json!("kept"))
    );
}

#[test]
fn a_delivery_can_be_delivered_again() {
    let hook = Hook::new(json!({ "secret": SECRET }));
    let first = hook.signed(&[("X-Webhook-Id", "d1"), ("X-Shop", "north")], r#"{"n":1}"#);
    let first = hook.run(&first);
    let path = format!("/api/v1/triggers/{}/deliveries", hook.trigger);
    let again = hook.server.send("POST", &format!("{path}/d1/redeliver"), &[], b"").data(201);
    assert_ne!(again["run_id"], first["id"]);
    let second = hook.server.finished(again["run_id"].as_str().unwrap());
    assert_eq!((&second["input"], &second["trigger"]["headers"]), (&first["input"], &first["trigger"]["headers"]));
    let log = hook.log();
    assert_eq!((log.len(), &log[0]["reason"], &log[0]["id"]), (2, &json!("redelivered"), &again["delivery_id"]));
    // A redelivery uses the trigger's current configuration.
    let patch = json!({ "variable_mapping": { "number": "$.n" } }).to_string();
    let json_type = [("Content-Type", "application/json")];
    assert_eq!(
        hook.server.send("PATCH", &format!("/api/v1/triggers/{}", hook.trigger), &json_type, patch.as_bytes()).status,
        200
    );
    let keyed = || hook.server.send("POST", &format!("{path}/d1/redeliver"), &[("Idempotency-Key", "k")], b"");
    let third = keyed().data(201);
    assert_eq!(hook.server.finished(third["run_id"].as_str().unwrap())["input"], json!({ "number": 1 }));
    assert_eq!(keyed().data(200)["run_id"], third["run_id"]);
    assert_eq!(hook.server.send("POST", &format!("{path}/nope/redeliver"), &[], b"").refusal(404), "not_found");
}

#[test]
fn r10_a_webhook_workflow_has_its_own_path() {
    let server = Server::start();
    let definition = format!(
        "name: w\ntrigger: webhook\nwebhook: {{ path: orders/paid, secret: {SECRET} }}\ntasks: {{a: {{set: {{got: '{{{{trigger.body.n}}}}'}}}}}}"
    );
    let made = server.define(&definition);
    let signature = sign(SECRET.as_bytes(), r#"{"n":5}"#);
    let answer = server.send("POST", "/webhooks/orders/paid", &[("X-Webhook-Signature", &signature)], br#"{"n":5}"#);
    let run = server.finished(answer.data(202)["run_id"].as_str().unwrap());
    assert_eq!((&run["workflow"], &run["tasks"]["a"]["body"]["got"]), (&json!("w"), &json!(5)));
    let shown = server.get("/api/v1/workflows/w").data(200);
    assert_eq!(shown["definition"]["webhook"], json!({ "path": "orders/paid", "has_secret": true }));
    assert_eq!(shown["hash"], made["hash"]);
    let trigger = &server.list("/api/v1/triggers")[0];
    assert_eq!((&trigger["is_owned"], &trigger["workflow_id"]), (&json!(true), &made["id"]));
}

#[test]
fn a_disabled_workflow_takes_no_deliveries() {
    let server = Server::start();
    server.define(
        "name: w\nenabled: false\ntrigger: webhook\nwebhook: { path: p, unsigned: true }\ntasks: {a: {noop: {}}}",
    );
    assert_eq!(server.send("POST", "/webhooks/p", &[("X-Request-Id", "r")], b"{}").refusal(409), "workflow_disabled");
    let trigger = server.list("/api/v1/triggers")[0]["id"].as_str().unwrap().to_owned();
    let log = server.list(&format!("/api/v1/triggers/{trigger}/deliveries"));
    assert_eq!((&log[0]["outcome"], &log[0]["reason"]), (&json!("rejected"), &json!("workflow_disabled")));
}

#[test]
fn t_a_secret_is_never_shown_again() {
    let token = "open-sesame-header";
    let mut hook = Hook::new(json!({ "secret": SECRET, "headers": { "X-Token": token } }));
    let definition =
        format!("name: w\ntrigger: webhook\nwebhook: {{ path: own, secret: {SECRET} }}\ntasks: {{a: {{noop: {{}}}}}}");
    let mut shown_texts = vec![
        hook.server
            .send("POST", "/api/v1/workflows", &[("Content-Type", "application/yaml")], definition.as_bytes())
            .text(),
    ];
    let delivered = hook.signed(&[("X-Token", token), ("X-Webhook-Id", "d1")], "{}");
    let run = delivered.data(202)["run_id"].as_str().unwrap().to_owned();
    hook.server.finished(&run);
    hook.send(&[("X-Token", token)], b"{}");
    let id = hook.trigger.clone();
    for path in [
        "/api/v1/triggers".to_owned(),
        format!("/api/v1/triggers/{id}"),
        format!("/api/v1/triggers/{id}/deliveries"),
        "/api/v1/workflows".to_owned(),
        "/api/v1/workflows/w".to_owned(),
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/events"),
        "/metrics".to_owned(),
    ] {
        shown_texts.push(hook.server.get(&path).text());
    }
    let patch = json!({ "config": { "secret": "x" } }).to_string();
    let json_type = [("Content-Type", "application/json")];
    shown_texts.push(hook.server.send("PATCH", &format!("/api/v1/triggers/{id}"), &json_type, patch.as_bytes()).text());
    let wrong = json!({ "name": "t", "type": "webhook", "workflow": "w", "config": { "secret": SECRET, "path": "/" } });
    shown_texts.push(hook.server.post("/api/v1/triggers", &wrong).text());
    shown_texts.push(hook.server.log());
    hook.server.crash_and_restart();
    shown_texts.push(hook.server.log());
    for text in shown_texts {
        assert!(!text.contains(SECRET) && !text.contains(token), "{text}");
    }
}
