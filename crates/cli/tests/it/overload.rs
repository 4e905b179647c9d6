//! More work than the server can hold: it refuses new runs, and finishes those that it has accepted.

use crate::harness::{Act, Server, Upstream, WAIT_MAX, status};
use serde_json::{Value, json};
use std::time::Instant;

/// Runs in a request, the most that are allowed.
const BATCH: usize = 1_000;

/// In the long tier (`ONWARD_LONG`) until the server refuses, otherwise with a small part of what it can hold.
#[test]
fn p22_starts_beyond_capacity_are_refused_and_every_accepted_run_completes() {
    let is_long = std::env::var_os("ONWARD_LONG").is_some();
    let upstream = Upstream::start();
    upstream.on("/slow", [Act::Held(Box::new(status(200)))]);
    let server = Server::alone(&[]);
    let workflow = server.workflow(&upstream.fill("call: { url: $UP/slow }"));
    let path = |what: &str| format!("/api/v1/workflows/{workflow}/{what}");
    let batch = json!({ "items": vec![json!({ "body": {} }); BATCH] });

    let mut accepted = 0;
    let refused = (0..if is_long { 100 } else { 2 }).find_map(|_| {
        let answer = server.post(&path("trigger-batch"), &batch);
        if answer.status == 201 {
            accepted += answer.data(201).as_array().map_or(0, Vec::len);
            return None;
        }
        Some(answer)
    });
    assert_eq!(refused.is_some(), is_long, "{accepted} runs were accepted");
    if let Some(answer) = refused {
        assert_eq!(answer.refusal(503), "overloaded");
        assert!(answer.header("retry-after").is_some(), "it says when to try again");
        // What is under way can still be read and stopped.
        let run = server.get(&path("runs?limit=1")).json()["data"][0]["id"].clone();
        assert_eq!(server.run(run.as_str().expect("an id"))["status"], "running");
    }
    assert_eq!(server.list(&path("runs")).len(), accepted, "a refused batch creates nothing");

    upstream.release("/slow");
    let (mut called, mut since) = (0, Instant::now());
    loop {
        let open = server.get(&path("runs?status=pending,running,waiting&limit=1")).json();
        if open["data"].as_array().is_some_and(Vec::is_empty) {
            break;
        }
        let calls = upstream.effects_on("/slow").len();
        if calls > called {
            (called, since) = (calls, Instant::now());
        }
        assert!(since.elapsed() < WAIT_MAX, "no progress after {called} calls");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let completed: Vec<Value> = server.list(&path("runs?status=completed"));
    assert_eq!(completed.len(), accepted, "every accepted run completes");
    server.post(&path("trigger?wait=30s"), &json!({})).data(201);
    println!("{accepted} runs were accepted and completed");
}
