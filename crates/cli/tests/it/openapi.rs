//! The OpenAPI document matches the server. (`scripts/api-test` checks every answer.)

use crate::harness::Server;
use serde_json::Value;

#[test]
fn r49_the_document_is_served_as_committed_and_every_operation_in_it_exists() {
    let server = Server::start();
    let served: Value = serde_json::from_str(&server.get("/api/v1/openapi.json").text()).unwrap();
    let committed: Value = serde_json::from_str(include_str!("../../../../docs/reference/openapi.json")).unwrap();
    assert!(served == committed, "run `cargo xtask docs`");
    let mut count = 0;
    for (path, operations) in served["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            // A stream would not end, so an invalid cursor makes the server refuse it.
            let is_stream = operation["responses"]["200"]["content"].get("text/event-stream").is_some();
            let headers: &[(&str, &str)] = if is_stream { &[("Last-Event-ID", "nowhere")] } else { &[] };
            let (method, path) = (method.to_ascii_uppercase(), path.replace('{', "%7B").replace('}', "%7D"));
            let answer = server.send(&method, &path, headers, b"");
            let text = answer.text();
            assert!(!text.contains("unknown_route") && answer.status != 405, "{method} {path}: {text}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}
