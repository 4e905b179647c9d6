//! Step lists from outside: ids and hashes, order, branches, loops, outputs, approvals and the limit on steps (seed 001).

use crate::harness::{Server, Upstream, eventually, json as answer, onward, status};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};

/// A workflow of these steps under a new name; other fields of the definition replace the defaults.
fn define(server: &Server, steps: Value, more: Value) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let mut definition = json!({ "name": format!("list-{}", NEXT.fetch_add(1, Ordering::Relaxed)), "steps": steps });
    for (name, value) in more.as_object().expect("an object") {
        definition[name] = value.clone();
    }
    let view = server.post("/api/v1/workflows", &definition).data(201);
    assert_eq!(view["form"], "steps");
    view["id"].as_str().expect("an id").to_owned()
}

fn play(server: &Server, steps: Value, body: &Value) -> Value {
    server.finished(&server.trigger(&define(server, steps, json!({})), body))
}

/// The steps of a run, those inside of one with `under`.
fn steps(server: &Server, run: &Value, under: &str) -> Vec<Value> {
    let id = run["id"].as_str().expect("an id");
    let under = under.replace('[', "%5B").replace(']', "%5D").replace('/', "%2F");
    server.list(&format!("/api/v1/runs/{id}/steps?under={under}"))
}

fn statuses(steps: &[Value]) -> Vec<String> {
    let word = |value: &Value| value.as_str().expect("a text").to_owned();
    steps.iter().map(|step| format!("{}={}", word(&step["step"]), word(&step["status"]))).collect()
}

#[test]
fn a5_steps_without_an_id_are_called_by_their_place() {
    let server = Server::start();
    let run = play(
        &server,
        json!([
            { "type": "noop" },
            { "type": "conditional", "condition": true, "then": [{ "type": "noop", "id": "named" }, { "type": "noop" }] },
        ]),
        &json!({}),
    );
    assert_eq!((&run["status"], &run["form"]), (&json!("completed"), &json!("steps")));
    assert_eq!(run["tasks"].as_object().unwrap().keys().collect::<Vec<_>>(), ["step[0]", "step[1]"]);
    assert_eq!(
        statuses(&steps(&server, &run, "step[1]")),
        ["step[1]/named=success", "step[1]/step[1].then[1]=success"]
    );
    let id = run["id"].as_str().unwrap();
    let one = server.get(&format!("/api/v1/runs/{id}/explain?step=step%5B1%5D%2Fstep%5B1%5D.then%5B1%5D")).data(200);
    assert_eq!(one["step"], "step[1]/step[1].then[1]");
    let graph = server.get(&format!("/api/v1/runs/{id}/graph")).data(200);
    assert_eq!(graph["nodes"][1]["kind"], "conditional");
    server.verify();
}

#[test]
fn a6_the_hash_covers_the_ids_and_not_the_order_of_keys() {
    let server = Server::start();
    let hash = |definition: &str| {
        let sent = server.send(
            "POST",
            "/api/v1/workflows/validate",
            &[("Content-Type", "application/json")],
            definition.as_bytes(),
        );
        let report = sent.data(200);
        assert_eq!(report["valid"], true, "{report:#}");
        report["hash"].as_str().expect("a hash").to_owned()
    };
    let known = "sha256:0b7ac746efed1f1f45f6a7e2ec6309d05fb41f8e5326586428fae1997bb1b5f7";
    assert_eq!(hash(r#"{"name": "a", "steps":[{"id":"a","type":"bash","command":"echo hi"}]}"#), known);
    assert_eq!(hash(r#"{"steps":[{"command":"echo hi","type":"bash","id":"a"}],"tags":["x"],"name":"b"}"#), known);
    let bare = hash(r#"{"name":"a","steps":[{"type":"noop"},{"type":"group","steps":[{"type":"noop"}]}]}"#);
    let filled = r#"{"name":"a","steps":[{"id":"step[0]","type":"noop"},
        {"type":"group","id":"step[1]","steps":[{"type":"noop","id":"step[1].steps[0]"}]}]}"#;
    assert_eq!(hash(filled), bare);
}

#[test]
fn a3_every_problem_of_a_list_is_reported_at_once_with_its_place() {
    let server = Server::start();
    let text = "{\"name\": \"x\", \"steps\": [\n  {\"type\": \"bsh\"},\n  {\"type\": \"agent_message\", \"await_timeout_ms\": 5},\n  {\"type\": \"conditional\", \"condition\": true, \"then\": [\n    {\"type\": \"bash\", \"command\": \"echo {{variables.x}}\"}]},\n  {\"command\": \"ls\"}]}";
    let sent = server.send("POST", "/api/v1/workflows", &[("Content-Type", "application/json")], text.as_bytes());
    assert_eq!(sent.status, 422, "{}", sent.text());
    let error = sent.json()["error"].clone();
    let problems: Vec<(String, String, u64)> = error["problems"]
        .as_array()
        .expect("problems")
        .iter()
        .map(|problem| {
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            (text(&problem["code"]), text(&problem["at"]["path"]), problem["at"]["line"].as_u64().expect("a line"))
        })
        .collect();
    let expected = [
        ("invalid_value", "steps[0].type", 2),
        ("missing_field", "steps[1].type", 3),
        ("out_of_range", "steps[1].await_timeout_ms", 3),
        ("template_in_command", "steps[2].then[0].command", 5),
        ("no_step_kind", "steps[3]", 6),
    ];
    assert_eq!(problems, expected.map(|(code, path, line)| (code.to_owned(), path.to_owned(), line)));
    assert_eq!(server.list("/api/v1/workflows").len(), 0, "nothing was stored");
    for (body, code) in [
        (json!({ "name": "x", "steps": [] }), "out_of_range"),
        (json!({ "name": "x", "steps": [5] }), "wrong_type"),
        (json!({ "name": "x", "steps": "x" }), "wrong_type"),
        (json!({ "name": "x", "steps": [{ "type": "noop" }], "tasks": { "a": { "noop": {} } } }), "exclusive_fields"),
        (json!({ "name": "x", "steps": { "a": { "task": "t" } } }), "unsupported_form"),
        (json!({ "name": "x", "steps": [{ "type": "task", "task": "onward.bash" }] }), "invalid_type"),
        (
            json!({ "name": "x", "steps": [{ "type": "noop" }], "runtime": { "policy": { "maxSteps": 0 } } }),
            "out_of_range",
        ),
    ] {
        assert_eq!(server.post("/api/v1/workflows", &body).refusal(422), code, "{body}");
    }
}

#[test]
fn a24_a_run_begins_at_most_max_steps_steps() {
    let server = Server::start();
    let list = json!([{ "type": "loop", "items": "variables.list", "steps": [{ "type": "noop" }] }]);
    let run = |count: usize, more: Value| {
        let workflow = define(&server, list.clone(), more);
        server.finished(&server.trigger(&workflow, &json!({ "list": vec![0; count] })))
    };
    assert_eq!(run(50, json!({}))["status"], "completed");
    let failed = run(51, json!({}));
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("max_steps_exceeded:50")));
    assert_eq!(failed["tasks"]["step[0]"]["status"], "cancelled");
    let limit = json!({ "runtime": { "policy": { "maxSteps": 3 } } });
    assert_eq!(run(3, limit.clone())["status"], "completed");
    assert_eq!(run(4, limit)["error"]["code"], "max_steps_exceeded:3");
    server.verify();
}

#[test]
fn a24_the_first_failure_ends_the_list_unless_the_step_may_fail() {
    let server = Server::start();
    let bad = json!({ "id": "bad", "type": "set", "values": { "x": "{{variables.missing}}" } });
    let mut allowed = bad.clone();
    allowed["allowFailure"] = json!(true);
    let after = json!({ "id": "after", "type": "set", "values": { "was": "{{tasks.bad.status}}" } });
    let run = play(&server, json!([bad, after]), &json!({}));
    assert_eq!((&run["status"], &run["tasks"]["after"]["status"]), (&json!("failed"), &json!("skipped")));
    let run = play(&server, json!([allowed, after]), &json!({}));
    assert_eq!(
        (&run["status"], &run["tasks"]["after"]["body"]["was"]),
        (&json!("completed"), &json!("template_error"))
    );
    server.verify();
}

#[test]
fn a27_a_conditional_runs_one_branch_and_skips_the_other() {
    let server = Server::start();
    let choice = json!([
        { "id": "pick", "type": "conditional", "condition": { "variable": "plan", "equals": "pro" },
          "then": [{ "id": "a", "type": "set", "values": { "price": 20 } }],
          "else": [{ "id": "b", "type": "conditional", "condition": "variables.plan == 'team'",
                     "then": [{ "type": "set", "values": { "price": 50 } }],
                     "else": [{ "type": "set", "values": { "price": 0 } }] }] },
        { "id": "end", "type": "set", "values": { "price": "{{outputs.pick.price}}" } },
    ]);
    let workflow = define(&server, choice, json!({ "variables": { "plan": "free" } }));
    for (body, price, inside) in [
        (json!({ "plan": "pro" }), 20, ["pick/a=success", "pick/b=skipped"]),
        (json!({ "plan": "team" }), 50, ["pick/a=skipped", "pick/b=success"]),
        (json!({}), 0, ["pick/a=skipped", "pick/b=success"]),
    ] {
        let run = server.finished(&server.trigger(&workflow, &body));
        assert_eq!((&run["status"], &run["tasks"]["end"]["body"]["price"]), (&json!("completed"), &json!(price)));
        assert_eq!(run["tasks"]["pick"]["type"], "conditional");
        let steps = steps(&server, &run, "pick");
        assert_eq!(statuses(&steps), inside, "{body}");
        let skipped = steps.iter().find(|step| step["status"] == "skipped").expect("one is skipped");
        let expected = if price == 20 { "other_branch" } else { "condition_false" };
        assert_eq!(skipped["skipped_because"]["reason"], expected);
    }
    server.verify();
}

#[test]
fn a27_a_failure_in_a_branch_is_seen_by_what_holds_the_branch() {
    let server = Server::start();
    let run = play(
        &server,
        json!([
            { "id": "outer", "type": "conditional", "condition": true, "then": [
                { "id": "inner", "type": "conditional", "condition": false, "else": [
                    { "id": "bad", "type": "set", "values": { "x": "{{variables.missing}}" } }, { "type": "noop" }] }] },
            { "id": "after", "type": "noop" },
        ]),
        &json!({}),
    );
    assert_eq!(run["status"], "failed");
    assert_eq!(
        (&run["tasks"]["outer"]["status"], &run["tasks"]["after"]["status"]),
        (&json!("template_error"), &json!("skipped"))
    );
    assert_eq!(
        statuses(&steps(&server, &run, "outer/inner")),
        ["outer/inner/bad=template_error", "outer/inner/step[0].then[0].else[1]=skipped"]
    );
    server.verify();
}

#[test]
fn a28_branches_run_at_the_same_time_and_all_end_before_a_failure_counts() {
    let upstream = Upstream::start();
    upstream.on("/bad", [status(400)]);
    upstream.on("/slow", [crate::harness::Act::Held(Box::new(answer(200, json!({ "ok": true }))))]);
    let server = Server::start();
    let text = upstream.fill(
        r#"[{"id": "p", "type": "parallel", "steps": [
            {"id": "bad", "type": "http", "url": "$UP/bad"},
            {"id": "slow", "type": "group", "steps": [{"id": "call", "type": "http", "url": "$UP/slow"}, {"id": "next", "type": "noop"}]}]},
          {"id": "after", "type": "noop"}]"#,
    );
    let run = server.trigger(&define(&server, serde_json::from_str(&text).expect("JSON"), json!({})), &json!({}));
    eventually("the failure is recorded", || {
        let counts = server.run(&run)["tasks"]["p"]["counts"].clone();
        (counts["failed"] == 1).then_some(())
    });
    assert_eq!(server.run(&run)["tasks"]["p"]["status"], "running", "the other branch goes on");
    upstream.release("/slow");
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["tasks"]["after"]["status"]), (&json!("failed"), &json!("skipped")));
    assert_eq!(statuses(&steps(&server, &view, "p")), ["p/bad=failed", "p/slow=success"]);
    server.verify();
}

#[test]
fn a30_loops_and_subworkflows_are_executed() {
    let server = Server::start();
    let child = json!([{ "type": "set", "values": { "hello": "{{variables.name}}" }, "outputVariable": "greeting" }]);
    let workflow = define(&server, child, json!({ "name": "greet" }));
    assert!(workflow.starts_with("wf_"));
    let run = play(
        &server,
        json!([
            { "id": "each", "type": "loop", "items": "variables.users", "as": "user", "maxConcurrency": 5, "steps": [
                { "id": "call", "type": "subworkflow", "workflow": "greet", "input": { "name": "{{user.name}}" }, "detached": false },
                { "type": "set", "values": { "text": "{{outputs.call.greeting.hello}} {{index}}" } }] },
            { "id": "poll", "type": "loop", "while": "outputs.count.n ?? 0 < 3", "maxIterations": 9,
              "steps": [{ "type": "set", "values": { "n": "{{index}}" }, "outputVariable": "count" }] },
        ]),
        &json!({ "users": [{ "name": "ada" }, { "name": "bob" }] }),
    );
    assert_eq!(run["status"], "completed", "{run:#}");
    assert_eq!(run["tasks"]["each"]["body"], json!([{ "text": "ada 0" }, { "text": "bob 1" }]));
    assert_eq!(run["tasks"]["poll"]["body"].as_array().unwrap().len(), 4, "until it has written 3");
    assert_eq!(run["output"], json!({ "count": { "n": 3 } }));
    server.verify();
}

#[test]
fn a31_outputs_survive_a_crash_and_reach_the_whole_run() {
    let upstream = Upstream::start();
    upstream.on("/big", [answer(200, json!({ "text": "x".repeat(20_000) })), answer(200, json!({ "text": "last" }))]);
    let mut server = Server::start();
    let text = upstream.fill(
        r#"[{"id": "each", "type": "loop", "items": "variables.list", "steps": [
              {"id": "call", "type": "http", "url": "$UP/big", "body": "{{item}}", "outputVariable": "page"}]},
            {"id": "gate", "type": "approval", "prompt": "Go on?"},
            {"id": "end", "type": "set", "values": {"text": "{{outputs.page.text}}", "by": "{{outputs.gate.actor}}", "call": "{{outputs.call.text}}"}}]"#,
    );
    let workflow = define(&server, serde_json::from_str(&text).expect("JSON"), json!({}));
    let run = server.trigger(&workflow, &json!({ "list": [1, 2] }));
    server.when(&run, "gate", "waiting");
    server.crash_and_restart();
    server.post(&format!("/api/v1/runs/{run}/approve"), &json!({ "actor": "ada" })).data(200);
    let view = server.finished(&run);
    assert_eq!(view["tasks"]["end"]["body"], json!({ "text": "last", "by": "ada", "call": "last" }), "{view:#}");
    assert_eq!(view["output"], json!({ "page": { "text": "last" } }));
    server.verify();
}

#[test]
fn a33_a_denial_in_a_branch_cancels_the_run_unless_the_step_may_fail() {
    let server = Server::start();
    let with = |allowed: bool| {
        let gate =
            json!({ "id": "gate", "type": "approval", "prompt": "Go?", "timeoutMs": 60_000, "allow_failure": allowed });
        let list = json!([
            { "id": "c", "type": "conditional", "condition": true, "then": [gate, { "id": "x", "type": "noop" }] },
            { "id": "after", "type": "noop" },
        ]);
        let run = server.trigger(&define(&server, list, json!({})), &json!({}));
        eventually("it waits", || (server.run(&run)["status"] == "waiting").then_some(()));
        server.post(&format!("/api/v1/runs/{run}/reject"), &json!({ "actor": "ada" })).data(200);
        server.finished(&run)
    };
    let denied = with(false);
    assert_eq!(denied["status"], "cancelled", "{denied:#}");
    assert_eq!(denied["tasks"]["c"]["error"]["code"], "approval_denied");
    assert_eq!(with(true)["status"], "completed");
    server.verify();
}

#[test]
fn a26_commands_tools_and_agents_are_tasks_and_a_wildcard_takes_no_command() {
    let server = Server::start();
    let list = json!([{ "type": "parallel", "steps": [
        { "id": "sh", "type": "bash", "command": "wc -l", "env": { "N": "{{variables.n}}" }, "stdin": "{{variables}}", "timeoutMs": 5000 },
        { "id": "tool", "type": "tool", "tool": "web.search", "arguments": { "q": "{{variables.n}}" } },
        { "id": "agent", "type": "agent", "goal": "Sum up {{variables.n}}", "budget": { "turns": 2 } },
        { "id": "say", "type": "agent_message", "message": "hi", "awaitResponse": true, "awaitTimeoutMs": 1000 },
    ] }]);
    let run = server.trigger(&define(&server, list, json!({})), &json!({ "n": 7 }));
    let mut claimed: Vec<(String, Value)> = Vec::new();
    eventually("three tasks are claimed", || {
        for task in server.claim("w", &["%"], 10) {
            claimed.push((task.view["type"].as_str().expect("a type").to_owned(), task.view["input"].clone()));
            task.complete(json!({ "ok": true }));
        }
        (claimed.len() == 3).then_some(())
    });
    claimed.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        claimed,
        [
            ("agent".to_owned(), json!({ "goal": "Sum up 7", "budget": { "turns": 2 } })),
            (
                "agent_message".to_owned(),
                json!({ "content": "hi", "interrupt": false, "await_response": true, "await_timeout_ms": 1000 })
            ),
            ("tool.web.search".to_owned(), json!({ "q": 7 })),
        ]
    );
    let refused = json!({ "worker_id": "w", "types": ["onward.bash"], "wait": "0s" });
    assert_eq!(server.post("/api/v1/tasks/claim", &refused).status, 422);
    assert_eq!(server.post("/api/v1/tasks", &json!({ "type": "onward.bash", "payload": {} })).status, 422);
    let kinds: Vec<Value> = steps(&server, &server.run(&run), "step[0]").iter().map(|s| s["type"].clone()).collect();
    assert_eq!(kinds, ["bash", "tool", "agent", "agent_message"]);
    server.cancel(&run).data(200);
}

#[test]
fn the_commands_that_read_definitions_take_step_lists() {
    const LIST: &str = "
name: list
steps:
  - { id: sh, type: bash, command: date, env: { A: '{{variables.a}}' }, outputVariable: out }
  - { type: log, message: '{{outputs.out.stdout}}' }
  - { type: group, steps: [{ type: task, task: a.v1 }] }
";
    const CASES: &str = "
workflow: list.yaml
input: { a: 7 }
cases:
  - name: it ends
    tasks: { sh: { result: { exit_code: 0, stdout: noon } }, 'step[2]/step[2].steps[0]': { result: 1 } }
    expect:
      status: completed
      output: { out: { stdout: noon } }
      steps:
        sh: { input: { command: date, env: { A: '7' }, stdin: null, timeout_ms: 120000 } }
        'step[1]': { body: noon }
        'step[2].steps[0]': success
";
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text.trim_start()).expect("a file");
        file.to_str().expect("a path").to_owned()
    };
    let said = |arguments: &[&str]| {
        let output = onward(arguments);
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}");
        text.into_owned()
    };
    let list = write("list.yaml", LIST);
    assert!(said(&["validate", &list]).contains("steps, 4 steps"));
    said(&["test", &write("list.test.yaml", CASES)]);
}

#[test]
fn a12_variables_of_a_manual_run_go_over_the_defaults() {
    let server = Server::start();
    let list = json!([{ "id": "a", "type": "set", "values": { "all": "{{variables}}" } }]);
    let workflow = define(&server, list, json!({ "variables": { "x": 1, "y": { "z": 2 } } }));
    let request = json!({ "workflowId": workflow, "variables": { "x": 5 } });
    let started = server.post("/api/v1/triggers/manual/run", &request);
    assert!([200, 201, 202].contains(&started.status), "{}", started.text());
    let run = started.json()["data"]["run_id"].as_str().expect("a run").to_owned();
    assert_eq!(server.finished(&run)["tasks"]["a"]["body"]["all"], json!({ "x": 5, "y": { "z": 2 } }));
}

#[test]
fn m28_a_list_that_failed_in_a_branch_is_retried_where_it_failed() {
    let upstream = Upstream::start();
    upstream.on("/pay", [status(400), answer(200, json!({ "paid": true }))]);
    let server = Server::start();
    let text = upstream.fill(
        r#"[{"id": "c", "type": "conditional", "condition": "variables.n > 1", "then": [
              {"id": "first", "type": "set", "values": {"n": 1}, "outputVariable": "first"},
              {"id": "pay", "type": "http", "url": "$UP/pay"}], "else": [{"id": "other", "type": "noop"}]},
            {"id": "end", "type": "set", "values": {"paid": "{{outputs.pay.paid}}", "n": "{{outputs.first.n}}"}}]"#,
    );
    let workflow = define(&server, serde_json::from_str(&text).expect("JSON"), json!({}));
    let run = server.trigger(&workflow, &json!({ "n": 2 }));
    assert_eq!(server.finished(&run)["status"], "failed");
    server.post(&format!("/api/v1/runs/{run}/retry"), &json!({ "actor": "ada" })).data(200);
    let view = eventually("it completes", || Some(server.run(&run)).filter(|view| view["status"] == "completed"));
    assert_eq!(view["tasks"]["end"]["body"], json!({ "paid": true, "n": 1 }));
    assert_eq!(statuses(&steps(&server, &view, "c")), ["c/first=success", "c/pay=success", "c/other=skipped"]);
    assert_eq!(upstream.effects_on("/pay").len(), 2);
    server.verify();
}
