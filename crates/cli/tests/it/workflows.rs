//! Definitions over HTTP (R1–R9), and invalid requests, which change nothing.

use crate::harness::{Answer, Server, eventually};
use serde_json::{Value, json};

const WORKFLOWS: &str = "/api/v1/workflows";

#[test]
fn r1_r9_a_new_workflow_has_an_id_and_the_defaults() {
    let server = Server::start();
    let definition = json!({ "name": "order-processing", "tasks": {
        "b": { "url": "https://example.com/x" }, "a": { "sleep": 45, "needs": ["b"] } } });
    let view = server.post(WORKFLOWS, &definition).data(201);
    let id = view["id"].as_str().unwrap();
    assert!(id.starts_with("wf_") && id.len() == 3 + 26, "{id}");
    for (field, expected) in [
        ("name", json!("order-processing")),
        ("trigger", json!("api")),
        ("task_count", json!(2)),
        ("enabled", json!(true)),
        ("version", json!(1)),
        ("slug", json!("order-processing")),
        ("form", json!("graph")),
    ] {
        assert_eq!(view[field], expected, "{field}");
    }
    crate::harness::micros(&view["inserted_at"]);
    assert_eq!(view["hash"].as_str().unwrap().len(), "sha256:".len() + 64);
    for key in [id, "order-processing"] {
        let shown = server.get(&format!("{WORKFLOWS}/{key}")).data(200);
        assert_eq!(shown["definition"], definition, "as it was written");
        assert_eq!(shown["id"], view["id"]);
        let steps: Vec<&String> = shown["definition"]["tasks"].as_object().unwrap().keys().collect();
        assert_eq!(steps, ["b", "a"], "R9: in the author's order");
    }
}

/// Definitions that parse and are wrong: the content of `tasks`, the code, the place.
const BAD_STEPS: &[(&str, &str, &str, u64)] = &[
    // R2, R3: one kind, its own fields, nothing else.
    (r#""a": {"url": "http://h/", "sleep": "1s"}"#, "two_step_kinds", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "1s", "wait_for_webhook": {}}"#, "two_step_kinds", "tasks.a.wait_for_webhook", 2),
    (r#""a": {}"#, "no_step_kind", "tasks.a", 2),
    (r#""a": {"method": "GET"}"#, "no_step_kind", "tasks.a", 2),
    (r#""a": {"sleep": "1s", "method": "GET"}"#, "field_not_for_kind", "tasks.a.method", 2),
    (r#""a": {"wait_for_webhook": {}, "body": 1}"#, "field_not_for_kind", "tasks.a.body", 2),
    (r#""a": {"url": "http://h/", "uhl": 1}"#, "unknown_field", "tasks.a.uhl", 2),
    (r#""a": {"url": ""}"#, "invalid_url", "tasks.a.url", 2),
    (r#""a": {"url": "ftp://h/"}"#, "invalid_url", "tasks.a.url", 2),
    (r#""a": {"url": "http://u:p@h/"}"#, "userinfo_in_url", "tasks.a.url", 2),
    (r#""a": {"bash": "./bill.sh"}"#, "wrong_type", "tasks.a.bash", 2),
    (r#""a": {"script": "x"}"#, "unsupported_step_kind", "tasks.a.script", 2),
    // R4, table A.1.
    (r#""a": {"sleep": -1}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "-5s"}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "5"}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "3w"}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "1.5h"}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": ""}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "5 m"}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": true}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": null}"#, "invalid_duration", "tasks.a.sleep", 2),
    (r#""a": {"sleep": "400d"}"#, "out_of_range", "tasks.a.sleep", 2),
    // R5, R6.
    (r#""a": {"noop": {}, "needs": ["a"]}"#, "needs_itself", "tasks.a.needs[0]", 2),
    (
        "\"a\": {\"noop\": {}, \"needs\": [\"b\"]},\n\"b\": {\"noop\": {}, \"needs\": [\"a\"]}",
        "dependency_cycle",
        "tasks.a.needs[0]",
        2,
    ),
    (
        "\"charge\": {\"noop\": {}},\n\"receipt\": {\"noop\": {},\n\"needs\": [\"chrage\"]}",
        "needs_unknown_step",
        "tasks.receipt.needs[0]",
        4,
    ),
    (r#""a": {"noop": {}}, "b": {"noop": {}, "needs": ["a", "a"]}"#, "duplicate_need", "tasks.b.needs[1]", 2),
    // R7: a step can read only steps that must have ended before it.
    (r#""a": {"noop": {}}, "b": {"url": "http://h/{{tasks.a.body}}"}"#, "not_an_ancestor", "tasks.b.url", 2),
    (
        r#""a": {"noop": {}}, "b": {"noop": {}, "if": "tasks.a.status == 'success'"}"#,
        "not_an_ancestor",
        "tasks.b.if",
        2,
    ),
    (r#""a": {"url": "http://h/{{tasks.nope.body}}"}"#, "unknown_step", "tasks.a.url", 2),
    (r#""a": {"noop": {}, "if": "tasks.nope.status == 'x'"}"#, "unknown_step", "tasks.a.if", 2),
    (r#""a": {"url": "http://h/{{wait.a.url}}"}"#, "not_a_wait", "tasks.a.url", 2),
    // Tables A.2 and A.3: what is refused at creation.
    (r#""a": {"noop": {}, "if": "trigger.body.x == "}"#, "expression_syntax", "tasks.a.if", 2),
    (r#""a": {"noop": {}, "if": "trigger..b == 1"}"#, "expression_syntax", "tasks.a.if", 2),
    (r#""a": {"noop": {}, "if": "== 200"}"#, "expression_syntax", "tasks.a.if", 2),
    (r#""a": {"noop": {}, "if": "{{trigger.body.x}} == 1"}"#, "template_in_condition", "tasks.a.if", 2),
    (r#""a": {"url": "http://h/", "body": "{{unknown.x}}"}"#, "unknown_root", "tasks.a.body", 2),
    (r#""a": {"url": "http://h/", "body": "{{}}"}"#, "template_syntax", "tasks.a.body", 2),
    (r#""a": {"url": "http://h/", "body": {"x": ["{{trigger.body.id"]}}"#, "template_syntax", "tasks.a.body.x[0]", 2),
    // T10: data must not choose the host. T18: hostile names.
    (r#""a": {"url": "http://{{trigger.body.h}}/"}"#, "template_in_host", "tasks.a.url", 2),
    (r#""a": {"url": "{{trigger.body.u}}"}"#, "template_in_host", "tasks.a.url", 2),
    (r#""": {"noop": {}}"#, "invalid_step_name", r#"tasks[""]"#, 2),
    (r#""a.b": {"noop": {}}"#, "invalid_step_name", r#"tasks["a.b"]"#, 2),
    (r#""__proto__": {"noop": {}}"#, "invalid_step_name", "tasks.__proto__", 2),
    ("\"a\\u202eb\": {\"noop\": {}}", "invalid_step_name", r#"tasks["ab"]"#, 2),
    // The other fields of a step.
    (r#""a": {"url": "http://h/", "retries": 1, "retry": "never"}"#, "exclusive_fields", "tasks.a.retry", 2),
    (r#""a": {"url": "http://h/", "retries": -1}"#, "out_of_range", "tasks.a.retries", 2),
    (r#""a": {"url": "http://h/", "method": "FETCH"}"#, "invalid_value", "tasks.a.method", 2),
    (r#""a": {"url": "http://h/", "headers": {"Host": "x"}}"#, "reserved_header", "tasks.a.headers.Host", 2),
    (r#""a": {"url": "http://h/", "headers": {"X-A": "a\r\nb: c"}}"#, "invalid_header", "tasks.a.headers.X-A", 2),
    (r#""a": {"url": "http://h/", "expected_status": "2x"}"#, "invalid_status", "tasks.a.expected_status", 2),
    (r#""a": {"url": "http://h/", "body": 9007199254740993}"#, "number_too_large", "tasks.a.body", 2),
];

/// Whole definitions that parse and are wrong.
const BAD_DEFINITIONS: &[(&str, &str, &str)] = &[
    (r#"{"tasks": {"a": {"noop": {}}}}"#, "missing_field", ""),
    (r#"{"name": "x"}"#, "missing_field", ""),
    (r#"{"name": "", "tasks": {"a": {"noop": {}}}}"#, "invalid_name", "name"),
    (r#"{"name": 5, "tasks": {"a": {"noop": {}}}}"#, "wrong_type", "name"),
    (r#"{"name": "x", "tasks": []}"#, "wrong_type", "tasks"),
    (r#"[]"#, "wrong_type", ""),
    (r#"{"name": "x", "trigger": "cron", "tasks": {"a": {"noop": {}}}}"#, "missing_field", "trigger"),
    (r#"{"name": "x", "trigger": "smoke", "tasks": {"a": {"noop": {}}}}"#, "invalid_value", "trigger"),
    (r#"{"name": "x", "slug": "A b", "tasks": {"a": {"noop": {}}}}"#, "invalid_slug", "slug"),
    (r#"{"name": "x", "taks": {}, "tasks": {"a": {"noop": {}}}}"#, "unknown_field", "taks"),
    (r#"{"name": "x", "steps": []}"#, "out_of_range", "steps"),
    (r#"{"name": "x", "steps": {}}"#, "unsupported_form", "steps"),
    (r#"{"name": "x", "max_duration": "400d", "tasks": {"a": {"noop": {}}}}"#, "out_of_range", "max_duration"),
];

#[test]
fn r2_to_r7_a_wrong_definition_is_refused_with_code_and_place() {
    let server = Server::start();
    let long_name = format!(r#"{{"name": "{}", "tasks": {{"a": {{"noop": {{}}}}}}}}"#, "n".repeat(81));
    let whole = BAD_DEFINITIONS.iter().map(|(text, code, path)| ((*text).to_owned(), *code, *path, 1));
    let steps = BAD_STEPS.iter().map(|(steps, code, path, line)| {
        (format!("{{\"name\": \"x\", \"tasks\": {{\n{steps}\n}}}}"), *code, *path, *line)
    });
    for (text, code, path, line) in whole.chain(steps).chain([(long_name, "invalid_name", "name", 1)]) {
        let answer = create(&server, text.as_bytes());
        assert_eq!(answer.refusal(422), code, "{text}\n{}", answer.text());
        let at = &answer.json()["error"]["at"];
        assert_eq!((at["path"].as_str(), at["line"].as_u64()), (Some(path), Some(line)), "{text}\n{}", answer.text());
        assert!(at["column"].as_u64() >= Some(1), "{text}");
    }
    assert_eq!(server.list(WORKFLOWS), Vec::<Value>::new(), "nothing was created");
}

#[test]
fn r4_durations_are_counts_with_a_unit_or_seconds() {
    let server = Server::start();
    for good in [r#""500ms""#, r#""30s""#, r#""5m""#, r#""2h""#, r#""1d""#, r#""13d""#, "45", r#""0s""#, "0"] {
        let text = format!(r#"{{"name": "x", "tasks": {{"a": {{"sleep": {good}}}}}}}"#);
        let answer = server.send("POST", &format!("{WORKFLOWS}/validate"), &[JSON], text.as_bytes());
        assert_eq!(answer.data(200)["valid"], true, "{good}");
    }
}

#[test]
fn every_problem_is_reported_at_once_with_a_hint() {
    let server = Server::start();
    let text = "{\n\"name\": \"x\",\n\"tasks\": {\n\"charge\": {\"url\": \"ftp://h\"},\n\"b\": {\"noop\": {}, \"needs\": [\"chrage\"]},\n\"c\": {\"sleep\": \"3w\"}\n}}";
    let answer = create(&server, text.as_bytes());
    answer.refusal(422);
    let problems = answer.json()["error"]["problems"].as_array().unwrap().clone();
    let found: Vec<(&str, u64)> =
        problems.iter().map(|p| (p["code"].as_str().unwrap(), p["at"]["line"].as_u64().unwrap())).collect();
    assert_eq!(found, [("invalid_url", 4), ("needs_unknown_step", 5), ("invalid_duration", 6)]);
    assert!(problems[1]["message"].as_str().unwrap().contains("chrage"), "R6: the message names the typo");
    assert_eq!(problems[1]["hint"], "did you mean `charge`?");
    let validated = server.send("POST", &format!("{WORKFLOWS}/validate"), &[JSON], text.as_bytes()).data(200);
    assert_eq!((validated["valid"].as_bool(), &validated["hash"]), (Some(false), &Value::Null));
    assert_eq!(validated["problems"], Value::from(problems), "validate says the same");
}

#[test]
fn r8_a_name_is_unique() {
    let server = Server::start();
    let definition = json!({ "name": "taken", "tasks": { "a": { "noop": {} } } });
    server.post(WORKFLOWS, &definition).data(201);
    let before = server.list(WORKFLOWS);
    assert_eq!(server.post(WORKFLOWS, &definition).refusal(409), "name_taken");
    let other = json!({ "name": "other", "slug": "taken", "tasks": { "a": { "noop": {} } } });
    assert_eq!(server.post(WORKFLOWS, &other).refusal(409), "slug_taken");
    assert_eq!(server.list(WORKFLOWS), before);
}

#[test]
fn p11_of_many_creations_of_one_name_one_wins() {
    let server = Server::start();
    let definition = json!({ "name": "race", "tasks": { "a": { "noop": {} } } });
    let api = *server;
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..10).map(|_| scope.spawn(|| api.post(WORKFLOWS, &definition).status)).collect();
        callers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|s| **s == 201).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|s| matches!(s, 201 | 409)), "{statuses:?}");
}

#[test]
fn yaml_and_json_mean_the_same() {
    let server = Server::start();
    let yaml = "name: y\ntasks:\n  a: {url: 'http://h/', method: GET}\n  b:\n    sleep: 30s\n    needs: [a]\n";
    let from_yaml = server.define(yaml);
    let json = json!({ "tasks": { "b": { "needs": ["a"], "sleep": "30s" }, "a": { "method": "GET", "url": "http://h/" } }, "name": "j" });
    let from_json = server.post(WORKFLOWS, &json).data(201);
    assert_eq!(from_yaml["hash"], from_json["hash"], "decision 9: order and name are not part of it");
    for (yaml, status, code) in [
        ("a: &x 1\nb: *x\n", 400, "yaml_anchor"),
        ("a: 1\na: 2\n", 400, "duplicate_key"),
        ("a: [1\n", 400, "malformed_yaml"),
        ("name: x\ntasks: {a: {sleep: 3w}}\n", 422, "invalid_duration"),
    ] {
        let answer = server.send("POST", WORKFLOWS, &[("Content-Type", "application/yaml")], yaml.as_bytes());
        assert_eq!(answer.refusal(status), code, "{yaml}");
    }
}

#[test]
fn r13_workflows_are_listed_newest_first_page_by_page() {
    let server = Server::start();
    for i in 0..7 {
        server.post(WORKFLOWS, &json!({ "name": format!("w{i}"), "tasks": { "a": { "noop": {} } } })).data(201);
    }
    let mut names = Vec::new();
    let mut path = format!("{WORKFLOWS}?limit=3");
    let mut pages = 0;
    loop {
        let page = server.get(&path).json();
        pages += 1;
        names.extend(page["data"].as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => path = format!("{WORKFLOWS}?limit=3&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((pages, names), (3, (0..7).rev().map(|i| format!("w{i}")).collect()));
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn create(server: &Server, text: &[u8]) -> Answer {
    server.send("POST", WORKFLOWS, &[JSON], text)
}

#[test]
fn p23_t37_invalid_requests_are_refused_in_one_shape_and_change_nothing() {
    let server = Server::start();
    let id = server.workflow("a: { noop: {} }");
    let run = server.trigger(&id, &json!(null));
    server.finished(&run);
    let state = || (server.list(WORKFLOWS), server.list("/api/v1/runs"), server.events(&run));
    let before = state();
    let trigger = format!("{WORKFLOWS}/{id}/trigger");
    let cancel = format!("/api/v1/runs/{run}/cancel");
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n)).into_bytes();
    let good = br#"{"name": "good", "tasks": {"a": {"noop": {}}}}"#;
    let big = |n: usize| [&b"{\"name\": \""[..], &vec![b'x'; n], b"\"}"].concat();
    let yaml = ("Content-Type", "application/yaml");
    let text = ("Content-Type", "text/plain");
    type Case<'a> = (&'a str, &'a str, Vec<(&'a str, &'a str)>, Vec<u8>, u16, &'a str);
    let cases: Vec<Case<'_>> = vec![
        // Bytes that do not parse.
        ("POST", WORKFLOWS, vec![JSON], b"{".to_vec(), 400, "malformed_json"),
        ("POST", WORKFLOWS, vec![JSON], b"".to_vec(), 400, "malformed_json"),
        ("POST", WORKFLOWS, vec![JSON], b"{\"name\": \"x\",}".to_vec(), 400, "malformed_json"),
        ("POST", WORKFLOWS, vec![JSON], b"NaN".to_vec(), 400, "malformed_json"),
        ("POST", WORKFLOWS, vec![JSON], b"\xff\xfe".to_vec(), 400, "not_utf8"),
        ("POST", WORKFLOWS, vec![JSON], br#"{"name": "a", "name": "b"}"#.to_vec(), 400, "duplicate_key"),
        ("POST", WORKFLOWS, vec![JSON], deep(65), 400, "too_deep"),
        ("POST", WORKFLOWS, vec![JSON], deep(400_000), 400, "too_deep"),
        ("POST", &trigger, vec![JSON], b"{\"a\": 1".to_vec(), 400, "malformed_json"),
        ("POST", &trigger, vec![JSON], br#"{"a": {"b": 1, "b": 1}}"#.to_vec(), 400, "duplicate_key"),
        ("POST", &trigger, vec![JSON], deep(65), 400, "too_deep"),
        // Too large.
        ("POST", WORKFLOWS, vec![JSON], big(1024 * 1024), 413, "too_large"),
        ("POST", WORKFLOWS, vec![JSON], big(3 * 1024 * 1024), 413, "too_large"),
        ("POST", &trigger, vec![JSON], big(256 * 1024), 413, "too_large"),
        ("POST", "/wh/some-token", vec![JSON], big(256 * 1024), 413, "too_large"),
        // Media types.
        ("POST", WORKFLOWS, vec![], good.to_vec(), 415, "unsupported_media_type"),
        ("POST", WORKFLOWS, vec![text], good.to_vec(), 415, "unsupported_media_type"),
        (
            "POST",
            WORKFLOWS,
            vec![("Content-Type", "application/x-www-form-urlencoded")],
            good.to_vec(),
            415,
            "unsupported_media_type",
        ),
        (
            "POST",
            WORKFLOWS,
            vec![("Content-Type", "multipart/form-data; boundary=x")],
            good.to_vec(),
            415,
            "unsupported_media_type",
        ),
        ("POST", WORKFLOWS, vec![JSON, ("Content-Encoding", "gzip")], good.to_vec(), 415, "unsupported_media_type"),
        ("POST", &trigger, vec![yaml], b"a: 1".to_vec(), 415, "unsupported_media_type"),
        ("POST", &trigger, vec![text], b"1".to_vec(), 415, "unsupported_media_type"),
        // Routes and methods.
        ("GET", "/api/v1/nothing", vec![], vec![], 404, "unknown_route"),
        ("GET", "/api/v2/workflows", vec![], vec![], 404, "unknown_route"),
        ("GET", "/nothing", vec![], vec![], 404, "unknown_route"),
        ("POST", "/api/v1/runs", vec![JSON], b"{}".to_vec(), 405, "method_not_allowed"),
        ("PATCH", WORKFLOWS, vec![JSON], b"{}".to_vec(), 405, "method_not_allowed"),
        ("GET", &trigger, vec![], vec![], 405, "method_not_allowed"),
        ("GET", "/wh/some-token", vec![], vec![], 405, "method_not_allowed"),
        // Parameters and headers.
        ("GET", "/api/v1/workflows?limt=5", vec![], vec![], 422, "unknown_parameter"),
        ("GET", "/api/v1/workflows?limit=0", vec![], vec![], 422, "invalid_parameter"),
        ("GET", "/api/v1/workflows?limit=501", vec![], vec![], 422, "invalid_parameter"),
        ("GET", "/api/v1/workflows?cursor=x", vec![], vec![], 422, "invalid_parameter"),
        ("GET", "/api/v1/runs?status=paused", vec![], vec![], 422, "invalid_parameter"),
        ("GET", "/api/v1/runs?since=yesterday", vec![], vec![], 422, "invalid_parameter"),
        ("GET", "/api/v1/runs?label=novalue", vec![], vec![], 422, "invalid_parameter"),
        ("POST", &trigger, vec![JSON, ("Idempotency-Key", "")], b"1".to_vec(), 422, "invalid_header"),
        ("POST", &cancel, vec![JSON], br#"{"why": 1}"#.to_vec(), 422, "invalid_body"),
        ("POST", &trigger, vec![JSON, ("Idempotency-Key", "two words")], b"1".to_vec(), 422, "invalid_header"),
        ("POST", "/api/v1/runs/run_00000000000000000000000000/cancel?why=1", vec![], vec![], 422, "unknown_parameter"),
        ("POST", &cancel, vec![JSON], br#"["ada", "duplicate"]"#.to_vec(), 422, "invalid_body"),
        ("POST", &cancel, vec![JSON], b"[]".to_vec(), 422, "invalid_body"),
        ("POST", "/api/v1/dev/clock", vec![JSON], br#"{"advance": "1s", "x": 1}"#.to_vec(), 422, "invalid_body"),
        ("POST", "/api/v1/dev/clock", vec![JSON], br#"{"advance": "1s"}"#.to_vec(), 409, "clock_is_real"),
        ("POST", "/api/v1/dev/clock", vec![JSON], br#"["1s"]"#.to_vec(), 422, "invalid_body"),
        (
            "POST",
            "/api/v1/dev/clock",
            vec![JSON],
            br#"{"advance": 18446744073709551615}"#.to_vec(),
            422,
            "invalid_body",
        ),
        // Ids and paths.
        ("GET", "/api/v1/runs/17", vec![], vec![], 400, "malformed_id"),
        ("GET", "/api/v1/runs/run_UPPER", vec![], vec![], 400, "malformed_id"),
        ("GET", "/api/v1/runs/..%2f..%2fetc", vec![], vec![], 400, "malformed_id"),
        ("GET", "/api/v1/runs/%ff%fe", vec![], vec![], 400, "malformed_path"),
        ("POST", "/api/v1/runs/run_x/cancel", vec![], vec![], 400, "malformed_id"),
        ("GET", "/api/v1/runs/run_00000000000000000000000000", vec![], vec![], 404, "not_found"),
        ("GET", "/api/v1/runs/run_00000000000000000000000000/events", vec![], vec![], 404, "not_found"),
        ("POST", "/api/v1/runs/run_00000000000000000000000000/cancel", vec![], vec![], 404, "not_found"),
        ("GET", "/api/v1/workflows/missing", vec![], vec![], 404, "not_found"),
        ("GET", "/api/v1/workflows/wf_00000000000000000000000000", vec![], vec![], 404, "not_found"),
        ("POST", "/api/v1/workflows/missing/trigger", vec![JSON], b"1".to_vec(), 404, "not_found"),
        ("POST", "/wh/some-token", vec![JSON], b"1".to_vec(), 404, "not_found"),
        ("GET", "/api/v1/workflows/%27%20OR%201=1%20--", vec![], vec![], 404, "not_found"),
        ("GET", "/api/v1/workflows/a%00b", vec![], vec![], 404, "not_found"),
    ];
    for (method, path, headers, body, status, code) in cases {
        let answer = server.send(method, path, &headers, &body);
        assert_eq!(answer.refusal(status), code, "{method} {path}: {}", answer.text());
        if status == 405 {
            let allow = answer.header("allow").unwrap_or_else(|| panic!("405 says what is allowed: {method} {path}"));
            assert!(!allow.contains(method), "{allow}");
        }
    }
    assert_eq!(before, state(), "nothing has changed");
}

#[test]
fn bytes_that_are_no_http_request_do_not_disturb_the_server() {
    let server = Server::start();
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(300_000));
    let header = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(700_000));
    let cases: [&[u8]; 8] = [
        b"\0\0\0\0\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /api/v1/workflows HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        long.as_bytes(),
        header.as_bytes(),
    ];
    for bytes in cases {
        if let Ok(answer) = server.raw(bytes) {
            assert!((400..500).contains(&answer.status), "{} {}", answer.status, answer.text());
        }
        assert_eq!(server.get("/healthz").status, 200);
    }
    assert_eq!(server.list(WORKFLOWS), Vec::<Value>::new());
}

#[test]
fn the_server_shows_its_version_and_health() {
    let server = Server::start();
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(server.get("/api/v1/version").data(200)["name"], "onward");
    let metrics = server.get("/metrics").text();
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    assert!(lines.clone().count() > 5 && lines.clone().all(|line| line.starts_with("onward_")), "{metrics}");
}

#[test]
fn decision_11_an_idempotency_key_makes_one_workflow() {
    let server = Server::start();
    let key = [("idempotency-key", "make-it-once")];
    let definition = json!({ "name": "once", "tasks": { "a": { "noop": {} } } });
    let invalid = json!({ "name": "once", "tasks": {} });
    assert_eq!(server.post_with("/api/v1/workflows", &key, &invalid).status, 422);
    let first = server.post_with("/api/v1/workflows", &key, &definition).data(201);
    let again = server.post_with("/api/v1/workflows", &key, &definition).data(200);
    assert_eq!(first["id"], again["id"]);
    assert_eq!((&first["deduplicated"], &again["deduplicated"]), (&json!(null), &json!(true)));
    let other = json!({ "name": "other", "tasks": { "a": { "noop": {} } } });
    assert_eq!(server.post_with("/api/v1/workflows", &key, &other).refusal(422), "idempotency_key_reused");
    assert_eq!(server.post("/api/v1/workflows", &definition).refusal(409), "name_taken", "without the key");
    assert_eq!(server.list("/api/v1/workflows").len(), 1);
}

#[test]
fn r9_each_version_keeps_its_own_order_of_steps_and_its_label() {
    let server = Server::start();
    let text = |name: &str, version: &str, steps: [&str; 3]| {
        let steps: String = steps.iter().map(|step| format!("  {step}: {{ noop: {{}} }}\n")).collect();
        format!("name: {name}\nversion: \"{version}\"\ntasks:\n{steps}")
    };
    let (first, second) = (["b", "c", "a"], ["c", "a", "b"]);
    server.define(&text("one", "1.0", first));
    server.define(&text("two", "2.4-beta", second));
    let shown = |name: &str| {
        let workflow = server.get(&format!("/api/v1/workflows/{name}")).data(200);
        let run = server.finished(&server.trigger(name, &json!({})));
        let graph = server.get(&format!("/api/v1/runs/{}/graph", run["id"].as_str().expect("an id"))).data(200);
        let names = |steps: &Value| steps.as_object().expect("steps").keys().cloned().collect::<Vec<_>>();
        let nodes = graph["nodes"].as_array().expect("nodes");
        let nodes: Vec<String> = nodes.iter().map(|node| node["step"].as_str().expect("a name").to_owned()).collect();
        assert_eq!(names(&workflow["definition"]["tasks"]), names(&run["tasks"]));
        assert_eq!(nodes, names(&run["tasks"]));
        assert_eq!(workflow["definition"]["version"], workflow["version_label"]);
        (workflow["hash"].clone(), workflow["version_label"].clone(), nodes.join(" "))
    };
    let (one, two) = (shown("one"), shown("two"));
    assert_eq!(one.0, two.0, "equal but for their order and their names");
    assert_eq!((one.1, one.2.as_str()), (json!("1.0"), "b c a"));
    assert_eq!((two.1, two.2.as_str()), (json!("2.4-beta"), "c a b"));
    // The same definition in another order is no new version, but is shown as it was last written.
    let yaml = text("two", "2.4", ["a", "b", "c"]);
    let changed = server.send("PUT", "/api/v1/workflows/two", &[("Content-Type", "application/yaml")], yaml.as_bytes());
    assert_eq!(changed.data(200)["version"], 1);
    assert_eq!(server.get("/api/v1/workflows/two").data(200)["version_label"], "2.4");
    let run = server.finished(&server.trigger("two", &json!({})));
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"));
    // Another node may show the order that it remembers, for a moment.
    eventually("every node shows the new order", || {
        let tasks = server.get(&path).data(200)["tasks"].clone();
        (tasks.as_object()?.keys().map(String::as_str).collect::<Vec<_>>() == ["a", "b", "c"]).then_some(())
    });
}
