//! M32: an open run goes on with another version of its workflow.

use crate::cli::Shell;
use crate::harness::{Act, Server, Upstream, json, names, status};
use serde_json::{Value, json};

const PATH: &str = "/api/v1/workflows/parcel";

/// A parcel is packed, waits, and is sent; with a group of checks beside it.
const FIRST: &str = "
name: parcel
tasks:
  pack: { url: $UP/pack }
  hold: { needs: [pack], wait_for_webhook: {} }
  send: { needs: [hold], url: $UP/send, body: { box: '{{tasks.pack.body.box}}' } }
  checks:
    group:
      tasks:
        papers: { wait_for_webhook: {} }
        weigh: { needs: [papers], url: $UP/weigh }
";

/// Insures before it sends, weighs twice, and tells the customer. `send` has another place and another URL.
const SECOND: &str = "
name: parcel
tasks:
  audit: { needs: [send, checks], url: $UP/audit }
  checks:
    group:
      tasks:
        again: { needs: [weigh], url: $UP/again }
        papers: { wait_for_webhook: {} }
        weigh: { needs: [papers], url: $UP/weigh }
  hold: { needs: [pack], wait_for_webhook: {} }
  insure: { needs: [pack], url: $UP/insure }
  pack: { url: $UP/pack }
  send: { needs: [hold, insure], url: $UP/send-insured, body: { box: '{{tasks.pack.body.box}}' } }
";

/// The workflow in both versions, and a run of the first one that waits.
fn waiting(server: &Server, upstream: &Upstream) -> (String, [String; 2]) {
    upstream.on("/pack", [json(200, json!({ "box": 7 }))]);
    server.define(&upstream.fill(FIRST));
    let run = server.trigger("parcel", &json!({}));
    upstream.wait_for("/pack", 1);
    server.when(&run, "hold", "waiting");
    let urls = ["hold", "papers"].map(|step| callback(server, &run, step));
    let yaml = upstream.fill(SECOND);
    server.send("PUT", PATH, &[("Content-Type", "application/yaml")], yaml.as_bytes()).data(200);
    (run, urls)
}

/// The callback URL of a step of the run.
fn callback(server: &Server, run: &str, step: &str) -> String {
    let key = if step == "papers" { "checks/papers" } else { step };
    let view = server.get(&format!("/api/v1/runs/{run}/explain?step={}", key.replace('/', "%2F"))).data(200);
    view["details"]["url"].as_str().unwrap_or_else(|| panic!("{view:#}")).to_owned()
}

fn move_run(server: &Server, run: &str, body: Value) -> crate::harness::Answer {
    server.post(&format!("/api/v1/runs/{run}/move"), &body)
}

/// The steps that do not fit.
fn misfit(answer: &crate::harness::Answer) -> Value {
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (409, &json!("cannot_move")), "{error:#}");
    error["problems"].clone()
}

#[test]
fn m32_a_waiting_run_moves_survives_a_kill_and_ends_as_the_new_version_says() {
    let upstream = Upstream::start();
    let mut server = Server::start();
    let (run, [hold, papers]) = waiting(&server, &upstream);
    let before = (server.run(&run), server.events(&run));
    assert_eq!(before.0["version"], 1);

    let plan = move_run(&server, &run, json!({ "dry_run": true })).data(200);
    assert_eq!(plan, json!({ "would_run": ["insure"], "would_repeat": [] }));
    assert_eq!((server.run(&run), server.events(&run)), before, "a dry run changes nothing");

    let moved = move_run(&server, &run, json!({ "actor": "ada", "reason": "insurance is due" })).data(200);
    assert_eq!((&moved["id"], &moved["version"]), (&json!(run), &json!(2)));
    server.crash_and_restart();
    upstream.wait_for("/insure", 1);
    assert_eq!(server.call_back(&hold, b"{}").status, 200, "its callback URL is as it was");
    assert_eq!(server.call_back(&papers, b"{}").status, 200);
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["version"]), (&json!("completed"), &json!(2)), "{view:#}");
    assert_ne!(view["hash"], before.0["hash"]);
    let steps: Vec<&String> = view["tasks"].as_object().unwrap().keys().collect();
    assert_eq!(steps, ["audit", "checks", "hold", "insure", "pack", "send"]);
    let counts = ["/pack", "/insure", "/send", "/send-insured", "/weigh", "/again", "/audit"];
    assert_eq!(counts.map(|path| upstream.effects_on(path).len()), [1, 1, 0, 1, 1, 1, 1]);
    assert_eq!(
        upstream.effects_on("/send-insured")[0].json(),
        json!({ "box": 7 }),
        "with a result of the first version"
    );

    // Every event has the key that its step had.
    let events = server.events(&run);
    let at = events.iter().position(|event| event["type"] == "run.moved").expect("it moved");
    assert_eq!((&events[at]["actor"], &events[at]["data"]["version"]), (&json!("ada"), &json!(2)));
    assert_eq!(events[..at].to_vec(), before.1[..at].to_vec());
    let opened: Vec<&Value> =
        events[at..].iter().filter(|event| event["type"] == "step.opened").map(|event| &event["step"]).collect();
    assert_eq!(opened, ["audit", "insure", "checks/again"]);
    let shown = server.get(&format!("/api/v1/runs/{run}?at={at}")).data(200);
    assert_eq!((&shown["version"], shown["tasks"].as_object().unwrap().len()), (&json!(1), 4), "{shown:#}");
    let diff = server.get(&format!("/api/v1/runs/{run}/diff?from={at}")).data(200);
    assert!(diff["steps"].as_array().unwrap().iter().any(|step| step["step"] == "audit"), "{diff:#}");
    let steps = server.get(&format!("/api/v1/runs/{run}/steps")).json();
    assert_eq!(steps["data"].as_array().unwrap().len(), 6);
    server.verify();
}

#[test]
fn m32_a_run_that_does_not_fit_stays_as_it_is() {
    let upstream = Upstream::start();
    upstream.on("/slow", [Act::Hang]);
    let server = Server::start();
    let (run, _) = waiting(&server, &upstream);
    let yaml = "name: parcel\ntasks:\n  pack: { noop: {} }\n  hold: { needs: [pack], wait_for_webhook: {} }";
    server.send("PUT", PATH, &[("Content-Type", "application/yaml")], yaml.as_bytes()).data(200);
    let problems = misfit(&move_run(&server, &run, json!({})));
    let places: Vec<&Value> = problems.as_array().unwrap().iter().map(|problem| &problem["at"]["path"]).collect();
    assert_eq!(places, ["send", "checks", "checks/papers", "checks/weigh"], "{problems:#}");
    let yaml = upstream.fill(FIRST).replace("pack: { url", "pack: { sleep: 1s }\n  other: { url");
    server.send("PUT", PATH, &[("Content-Type", "application/yaml")], yaml.as_bytes()).data(200);
    let problems = misfit(&move_run(&server, &run, json!({ "dry_run": true })));
    assert_eq!((&problems[0]["at"]["path"], problems.as_array().unwrap().len()), (&json!("pack"), 1), "it has begun");
    assert_eq!(move_run(&server, &run, json!({ "version": 9 })).refusal(422), "invalid_body");
    assert_eq!(move_run(&server, &run, json!({ "to": 2 })).refusal(422), "invalid_body");
    assert_eq!(move_run(&server, &run, json!({ "version": 1 })).data(200)["version"], 1, "it has this one");
    assert_eq!(server.run(&run)["version"], 1);
    assert!(!names(&server.events(&run)).contains(&"run.moved"));

    let slow = server.workflow(&upstream.fill("slow: { url: $UP/slow }"));
    let busy = server.trigger(&slow, &json!({}));
    upstream.wait_for("/slow", 1);
    assert_eq!(misfit(&move_run(&server, &busy, json!({})))[0]["at"]["path"], "slow");
    server.cancel(&busy).data(200);
    assert_eq!(move_run(&server, &busy, json!({})).refusal(409), "run_ended");
    let task = server.submit("mail", json!({}));
    let of_task = task.replacen("task_", "run_", 1);
    assert_eq!(move_run(&server, &of_task, json!({})).refusal(409), "cannot_move");
    server.verify();
}

#[test]
fn m32_a_run_moves_back_and_forth_fails_and_is_repaired() {
    let upstream = Upstream::start();
    upstream.on("/send-insured", [status(400), json(200, json!({}))]);
    let mut server = Server::start();
    let (run, [hold, papers]) = waiting(&server, &upstream);
    // Back to a version without the new steps: refused, the run has them now.
    move_run(&server, &run, json!({})).data(200);
    upstream.wait_for("/insure", 1);
    server.when(&run, "insure", "success");
    assert_eq!(misfit(&move_run(&server, &run, json!({ "version": 1 }))).as_array().map(Vec::len), Some(3));
    let third = upstream.fill(SECOND).replace("$UP/audit", "$UP/audit2").replace("/audit }", "/audit-three }");
    server.send("PUT", PATH, &[("Content-Type", "application/yaml")], third.as_bytes()).data(200);
    let shell = Shell::new(&server);
    let said = shell.run(&["runs", "move", &run, "--reason", "the new audit", "--actor", "ada"]).ok();
    assert!(said.contains("has version 3"), "{said}");
    server.call_back(&papers, b"{}");
    server.call_back(&hold, b"{}");
    assert_eq!(server.finished(&run)["status"], "failed");
    server.crash_and_restart();
    server.post(&format!("/api/v1/runs/{run}/retry"), &json!({})).data(200);
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["version"]), (&json!("completed"), &json!(3)), "{view:#}");
    assert_eq!(["/audit", "/audit-three"].map(|path| upstream.effects_on(path).len()), [0, 1]);
    let forked = server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "from": "audit" })).data(201);
    let view = server.finished(forked["run_id"].as_str().unwrap());
    assert_eq!((&view["status"], &view["version"]), (&json!("completed"), &json!(3)), "{view:#}");
    let events = server.events(&run);
    assert_eq!(names(&events).iter().filter(|name| **name == "run.moved").count(), 2);
    let first = events.iter().find(|event| event["type"] == "step.succeeded").unwrap();
    assert_eq!(first["step"], "pack");
    server.verify();
}

#[test]
fn m32_a_stream_names_steps_as_their_version_does() {
    let upstream = Upstream::start();
    let server = Server::start();
    let (run, [hold, papers]) = waiting(&server, &upstream);
    let stream = server.stream(&format!("/api/v1/runs/{run}/stream"), None);
    move_run(&server, &run, json!({})).data(200);
    upstream.wait_for("/insure", 1);
    server.call_back(&papers, b"{}");
    server.call_back(&hold, b"{}");
    server.finished(&run);
    let named = |event: &Value| (event["type"].clone(), event["step"].clone());
    let streamed = stream.rest().into_iter().filter(|message| message.event.is_none());
    let streamed: Vec<(Value, Value)> = streamed.map(|message| named(&message.data)).collect();
    let listed: Vec<(Value, Value)> = server.events(&run).iter().map(named).collect();
    assert_eq!(streamed, listed);
}
