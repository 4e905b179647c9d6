//! `onward serve`: any address, and every request needs the admin key.

use crate::harness::{Answer, Api, Starting, eventually, onward};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const KEY: &str = "a-key-of-these-tests-0123456789";
const LOCAL: &[&str] = &["--listen", "127.0.0.1:0"];

/// A server that is ready, and its API.
fn serve(data: &Path, flags: &[&str], environment: &[(&str, &str)]) -> (Starting, Api) {
    let mut process = Starting::serving(data, flags, environment);
    let address = process.ready().unwrap_or_else(|| panic!("not ready: {}", process.log()));
    (process, Api::new(&[SocketAddr::from(([127, 0, 0, 1], address.port()))]))
}

fn with_key(api: &Api, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    api.send(method, path, &headers, body.to_string().as_bytes())
}

#[test]
fn requests_without_the_key_are_refused() {
    let data = TempDir::new().unwrap();
    let (process, api) = serve(data.path(), LOCAL, &[("ONWARD_ADMIN_KEY", KEY)]);
    for path in ["/api/v1/runs", "/api/v1/version", "/api/v1/openapi.json", "/metrics", "/nowhere", "/api/v1/dev/clock"]
    {
        let refused = api.get(path);
        assert_eq!(refused.refusal(401), "key_required", "{path}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"), "{path}");
        let hint = refused.json()["error"]["hint"].as_str().unwrap_or_default().to_owned();
        assert!(hint.contains("Authorization"), "the hint names the header: {hint}");
        assert_eq!(with_key(&api, &KEY[1..], "GET", path, &Value::Null).refusal(401), "key_invalid", "{path}");
    }
    let workflow = json!({ "name": "w", "tasks": { "a": { "noop": {} } } });
    assert_eq!(api.post("/api/v1/workflows", &workflow).refusal(401), "key_required");
    assert_eq!(
        with_key(&api, KEY, "GET", "/api/v1/workflows", &Value::Null).json()["data"],
        json!([]),
        "a refused request changes nothing"
    );
    assert_eq!(with_key(&api, KEY, "POST", "/api/v1/workflows", &workflow).status, 201);
    assert_eq!(with_key(&api, KEY, "GET", "/metrics", &Value::Null).status, 200);
    let moved = with_key(&api, KEY, "POST", "/api/v1/dev/clock", &json!({ "advance": "1h" }));
    assert_eq!(moved.refusal(409), "clock_is_real");
    assert!(!process.log().contains(KEY), "the key is in the log");
}

#[test]
fn health_dashboard_files_callbacks_and_webhooks_need_no_key() {
    let data = TempDir::new().unwrap();
    let (_process, api) = serve(data.path(), LOCAL, &[("ONWARD_ADMIN_KEY", KEY)]);
    for path in ["/healthz", "/readyz", "/"] {
        assert_eq!(api.get(path).status, 200, "{path}");
    }
    let dashboard = api.send("GET", "/", &[("Accept", "text/html")], b"").text();
    let script = dashboard
        .split('"')
        .find(|text| text.ends_with("src/app.js"))
        .expect("the dashboard loads a script")
        .to_owned();
    assert_eq!(api.get(&format!("/{script}")).status, 200);
    let make = |path: &str, body: Value| with_key(&api, KEY, "POST", path, &body).data(201);
    let tasks = json!({ "ask": { "wait_for_webhook": {} }, "tell": { "set": { "url": "{{wait.ask.url}}" } } });
    make("/api/v1/workflows", json!({ "name": "door", "tasks": tasks }));
    make(
        "/api/v1/triggers",
        json!({ "name": "door", "type": "webhook", "workflow": "door", "config": { "path": "door", "unsigned": true } }),
    );
    let started = api.post("/webhooks/door", &json!({ "from": "a stranger" }));
    assert_eq!(started.status, 202, "{}", started.text());
    let run = started.json()["data"]["run_id"].as_str().expect("a run").to_owned();
    let view = || with_key(&api, KEY, "GET", &format!("/api/v1/runs/{run}"), &Value::Null).data(200);
    let url = eventually("the run shows its callback URL", || {
        view()["tasks"]["tell"]["body"]["url"].as_str().map(str::to_owned)
    });
    assert_eq!(api.call_back(&url, b"{}").status, 200);
    eventually("it ends", || (view()["status"] == "completed").then_some(()));
}

#[test]
fn with_the_key_any_address_host_and_origin_is_accepted() {
    let data = TempDir::new().unwrap();
    let (process, api) = serve(data.path(), &["--listen", "0.0.0.0:0"], &[("ONWARD_ADMIN_KEY", KEY)]);
    let bearer = format!("Bearer {KEY}");
    let headers =
        [("Authorization", bearer.as_str()), ("Host", "onward.example"), ("Origin", "https://onward.example")];
    assert_eq!(api.send("GET", "/api/v1/runs", &headers, b"").status, 200);
    eventually("it warns that callbacks need `--public-url`", || process.log().contains("--public-url").then_some(()));
}

#[test]
fn a_key_is_made_once_printed_once_and_stored_as_a_hash() {
    let data = TempDir::new().unwrap();
    let (mut process, api) = serve(data.path(), LOCAL, &[]);
    let key = eventually("a key is printed", || {
        process.log().lines().find_map(|line| line.strip_prefix("admin key: ").map(str::to_owned))
    });
    assert_eq!(with_key(&api, &key, "GET", "/api/v1/runs", &Value::Null).status, 200);
    let file = data.path().join("admin.key");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&key));
    process.kill();
    let (mut process, api) = serve(data.path(), LOCAL, &[]);
    assert!(!process.log().contains("admin key"), "{}", process.log());
    assert_eq!(
        with_key(&api, &key, "GET", "/api/v1/runs", &Value::Null).status,
        200,
        "the key is valid after a restart"
    );
    process.kill();
    let (mut process, api) = serve(data.path(), LOCAL, &[("ONWARD_ADMIN_KEY", KEY)]);
    assert_eq!(with_key(&api, KEY, "GET", "/api/v1/runs", &Value::Null).status, 200, "`ONWARD_ADMIN_KEY` wins");
    assert_eq!(with_key(&api, &key, "GET", "/api/v1/runs", &Value::Null).refusal(401), "key_invalid");
    process.kill();
    std::fs::write(&file, "what is this").unwrap();
    let mut process = Starting::serving(data.path(), LOCAL, &[]);
    assert_eq!(process.ready(), None);
    eventually("the message names the file", || process.log().contains("admin.key").then_some(()));
}

#[test]
fn a_key_that_is_too_short_or_not_ascii_is_refused() {
    let data = TempDir::new().unwrap();
    for (key, why) in [("", "0 characters"), ("too-short", "9 characters"), ("with spaces in between", "ASCII")] {
        let mut process = Starting::serving(data.path(), LOCAL, &[("ONWARD_ADMIN_KEY", key)]);
        assert_eq!(process.ready(), None);
        eventually(why, || process.log().contains(why).then_some(()));
    }
    assert_eq!(onward(&["serve", "--clock", "virtual"]).status.code(), Some(2), "`serve` has no virtual clock");
}

#[test]
fn the_command_line_sends_the_key() {
    let data = TempDir::new().unwrap();
    let (_process, api) = serve(data.path(), LOCAL, &[("ONWARD_ADMIN_KEY", KEY)]);
    let list = |key: Option<&str>| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onward"));
        command.args(["runs", "list", "--url", &format!("http://{}", api.address)]).env_remove("ONWARD_API_KEY");
        command.envs(key.map(|key| ("ONWARD_API_KEY", key))).output().unwrap()
    };
    assert_eq!(list(Some(KEY)).status.code(), Some(0));
    let refused = list(None);
    assert_eq!(refused.status.code(), Some(1));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("key_required"), "{words}");
}

#[test]
fn the_password_of_a_database_is_not_shown() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().to_str().unwrap();
    const STORE: &str = "postgres://ada:hunter2@127.0.0.1:1/onward";
    for (arguments, code) in [
        (&["dev", "--listen", "127.0.0.1:0", "--data", data][..], 74),
        (&["serve", "--listen", "127.0.0.1:0", "--data", data], 74),
        (&["verify", "--data", data], 74),
        (&["dev", "--help"], 0),
        (&["verify", "--help"], 0),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onward"));
        let output = command.args(arguments).env("ONWARD_STORE", STORE).env("ONWARD_ADMIN_KEY", KEY).output().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
        assert!(!printed.contains("hunter2"), "{arguments:?}: {printed}");
    }
}
