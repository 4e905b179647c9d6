//! Foreign origins, hostile values and hostile upstreams (T5, T7–T10, T28).

use crate::harness::{Act, Server, Upstream};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn t28_a_foreign_web_page_cannot_call_the_server() {
    let server = Server::alone(&[]);
    let address = server.address.to_string();
    let own = format!("http://{address}");
    let port = server.address.port();
    let path = "/api/v1/workflows";
    for (header, value, expected) in [
        ("Host", "evil.test".to_owned(), Some("host_not_allowed")),
        ("Host", format!("evil.test:{port}"), Some("host_not_allowed")),
        ("Host", "127.0.0.1.evil.test".to_owned(), Some("host_not_allowed")),
        ("Host", "169.254.169.254".to_owned(), Some("host_not_allowed")),
        ("Host", format!("localhost:{port}"), None),
        ("Host", format!("[::1]:{port}"), None),
        ("Origin", "https://evil.test".to_owned(), Some("foreign_origin")),
        ("Origin", "null".to_owned(), Some("foreign_origin")),
        ("Origin", "http://127.0.0.1:1".to_owned(), Some("foreign_origin")),
        ("Origin", own, None),
    ] {
        for (method, body, good) in [("GET", "", 200), ("POST", "{}", 422)] {
            let answer =
                server.send(method, path, &[(header, &value), ("Content-Type", "application/json")], body.as_bytes());
            match expected {
                Some(code) => assert_eq!(answer.refusal(403), code, "{method} {header}: {value}"),
                None => assert_eq!(answer.status, good, "{method} {header}: {value} {}", answer.text()),
            }
        }
    }
    let no_host = server.raw(b"GET /api/v1/workflows HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(no_host.refusal(400), "missing_host");
    let answer = server.get(path);
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
}

#[test]
fn decision_7_a_callback_may_use_any_host_and_origin() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let steps =
        "ask: { url: $UP/ask, body: { url: \"{{wait.door.url}}\" } }\ndoor: { wait_for_webhook: {}, needs: [ask] }";
    let run = server.trigger(&server.workflow(&upstream.fill(steps)), &json!(null));
    let url = upstream.wait_for("/ask", 1)[0].json()["url"].as_str().unwrap().to_owned();
    let path = &url[url.find("/wh/").unwrap()..];
    let headers = [
        ("Host", "hooks.example.com"),
        ("Origin", "https://pay.example"),
        ("Content-Type", "application/x-www-form-urlencoded"),
    ];
    server.send("POST", path, &headers, b"paid=1").data(200);
    assert_eq!(server.finished(&run)["tasks"]["door"]["body"], "paid=1");
}

/// Values that would do harm if they were interpreted as templates, URLs, headers or paths.
const HOSTILE: &[&str] = &[
    r#"", "admin": true, "x": ""#,
    r#"\"}],"#,
    "{{trigger.body.secret}}",
    "{{tasks.a.body}}{{",
    "../../admin",
    "a/b?c=d#e",
    "a&b=c",
    "x@evil.test/",
    "//evil.test",
    "%2e%2e%2fadmin",
    "http://evil.test",
    "é\u{202e}\u{0}\t\\",
    "\u{1f600}",
    "' OR 1=1 --",
    "",
];

#[test]
fn t7_t8_t10_a_value_is_never_interpreted() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let steps = r#"
a:
  url: "$UP/p/{{trigger.body.v}}/end?q={{trigger.body.v}}&last=1"
  body: { whole: "{{trigger.body.v}}", inside: "<{{trigger.body.v}}>", list: ["{{trigger.body.v}}"] }"#;
    let workflow = server.workflow(&upstream.fill(steps));
    for (count, value) in HOSTILE.iter().enumerate() {
        let run = server.trigger(&workflow, &json!({ "v": value, "secret": "canary" }));
        assert_eq!(server.finished(&run)["status"], "completed", "{value:?}");
        let effects = upstream.effects();
        assert_eq!(effects.len(), count + 1, "{value:?}");
        let sent = effects.last().unwrap();
        let expected = json!({ "whole": value, "inside": format!("<{value}>"), "list": [value] });
        assert_eq!(sent.json(), expected, "T7, T8: structural, once");
        let (path, query) = sent.path.split_once('?').unwrap();
        let segments: Vec<&str> = path.split('/').collect();
        assert_eq!((segments.len(), segments[1], segments[3]), (4, "p", "end"), "T10: {}", sent.path);
        assert_eq!(unescape(segments[2]), *value, "T10: {}", sent.path);
        let pairs: Vec<(&str, &str)> = query.split('&').map(|pair| pair.split_once('=').unwrap()).collect();
        assert_eq!((pairs.len(), pairs[0].0, pairs[1]), (2, "q", ("last", "1")), "T10: {}", sent.path);
        assert_eq!(unescape(pairs[0].1), *value, "T10: {}", sent.path);
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
                rest = &tail[2..];
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn t9_t10_a_value_that_cannot_be_sent_safely_is_not_sent() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let header = server.workflow(&upstream.fill("a: { url: $UP/h, headers: { X-V: \"v={{trigger.body.v}}\" } }"));
    let segment = server.workflow(&upstream.fill("a: { url: \"$UP/p/{{trigger.body.v}}/end\" }"));
    for (workflow, value) in [
        (&header, "a\r\nX-Evil: 1"),
        (&header, "a\nb"),
        (&header, "a\rb"),
        (&header, "a\u{0}b"),
        (&segment, ".."),
        (&segment, "."),
    ] {
        let view = server.finished(&server.trigger(workflow, &json!({ "v": value })));
        assert_eq!(view["tasks"]["a"]["status"], "template_error", "{value:?} {view}");
    }
    assert_eq!(upstream.effects().len(), 0, "nothing was sent");
    server.finished(&server.trigger(&header, &json!({ "v": "plain \"words\"" })));
    assert_eq!(upstream.effects_on("/h")[0].header("x-v"), "v=plain \"words\"");
}

#[test]
fn t10_a_template_can_choose_only_hosts_in_allow_hosts() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let workflow = server.workflow("a: { url: \"{{trigger.body.base}}/x\", allow_hosts: [127.0.0.1], retries: 0 }");
    let base = upstream.fill("$UP");
    let play = |base: &str| server.finished(&server.trigger(&workflow, &json!({ "base": base })));
    assert_eq!(play(&base)["tasks"]["a"]["status"], "success");
    for bad in [
        base.replace("127.0.0.1", "localhost"),
        base.replace("http://", "http://user:pass@"),
        base.replace("http://", "http://127.0.0.1@localhost:1/"),
        "http://evil.test".to_owned(),
        "file:///etc/passwd".to_owned(),
        "javascript:alert(1)".to_owned(),
        String::new(),
    ] {
        let view = play(&bad);
        assert!(matches!(view["tasks"]["a"]["status"].as_str(), Some("failed" | "template_error")), "{bad}: {view}");
    }
    assert_eq!(upstream.effects().len(), 1, "only the allowed one");
}

#[test]
fn t5_a_hostile_upstream_takes_no_longer_than_the_steps_timeout() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let cases = [
        ("hang", Act::Hang, &["timeout"][..]),
        ("reset", Act::Reset, &["failed"]),
        ("early", Act::CloseEarly, &["failed"]),
        ("drip", Act::Drip, &["timeout"]),
        ("garbage", Act::GarbageHeaders, &["failed"]),
        ("headers", Act::ManyHeaders, &["failed", "success"]),
        ("chunks", Act::BadChunks, &["failed"]),
        ("endless", Act::Endless, &["success"]),
    ];
    let mut steps = String::new();
    for (name, act, _) in &cases {
        upstream.on(&format!("/{name}"), [act.clone()]);
        steps += &format!("{name}: {{ url: $UP/{name}, timeout: 1000, retries: 0, body: {{ x: 1 }} }}\n");
        steps +=
            &format!("after-{name}: {{ noop: {{}}, needs: [{name}], if: \"tasks.{name}.status != 'pending'\" }}\n");
    }
    let began = Instant::now();
    let view = server.play(&upstream.fill(&steps), &json!(null));
    assert!(began.elapsed() < Duration::from_secs(30), "took {:?}", began.elapsed());
    assert_eq!(view["status"], "completed");
    for (name, _, allowed) in cases {
        let step = &view["tasks"][name];
        assert!(allowed.contains(&step["status"].as_str().unwrap()), "{name}: {step}");
        assert!(step["duration_ms"].as_u64().unwrap_or(0) < 10_000, "{name}: {step}");
        assert_eq!(view["tasks"][format!("after-{name}")]["status"], "success", "{name}");
        let kept = step["headers"].as_object().map_or(0, |h| h.len());
        assert!(kept <= 64, "{name} kept {kept} headers");
    }
    assert_eq!(view["tasks"]["endless"]["is_truncated"], true, "cut at the limit");
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn t18_hostile_bodies_are_returned_unchanged() {
    let server = Server::start();
    let workflow = server.workflow("a: { noop: {} }");
    let body = json!({ "__proto__": { "x": 1 }, "constructor": [], "": "", "\u{202e}": "\u{0}", "<script>": "</script>", "big": 1e300 });
    let run = server.trigger(&workflow, &body);
    assert_eq!(server.finished(&run)["input"], body);
    for text in ["1", "\"x\"", "[1]", "null", "true", "  {\"a\" : 1 }  "] {
        let path = format!("/api/v1/workflows/{workflow}/trigger?wait=30s");
        let view = server.send("POST", &path, &[("Content-Type", "application/json")], text.as_bytes()).data(201);
        assert_eq!(view["trigger"]["body"], serde_json::from_str::<Value>(text).unwrap(), "R14: any JSON body");
    }
    let view = server.send("POST", &format!("/api/v1/workflows/{workflow}/trigger?wait=30s"), &[], b"").data(201);
    assert_eq!(view["trigger"]["body"], Value::Null, "a missing body is null");
}
