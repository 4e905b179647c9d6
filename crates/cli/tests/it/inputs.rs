//! The `input` schema of a workflow: a body that does not fit starts nothing, wherever runs start, and the answer has
//! every problem.

use crate::harness::{Answer, Server, onward};
use serde_json::{Value, json};

const ORDER: &str = "name: order
input:
  type: object
  required: [id, amount]
  properties:
    id: { type: integer }
    amount: { type: number, exclusiveMinimum: 0 }
    note: { type: string, maxLength: 5 }
  additionalProperties: false
tasks: { a: { set: { id: '{{trigger.body.id}}' } } }";

/// The JSON pointers and messages of a refused request.
#[track_caller]
fn problems(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.refusal(422), "invalid_input");
    let problem = |problem: &Value| {
        assert_eq!(problem["code"], "invalid_input");
        format!("{}: {}", problem["at"]["path"].as_str().unwrap(), problem["message"].as_str().unwrap())
    };
    answer.json()["error"]["problems"].as_array().unwrap().iter().map(problem).collect()
}

#[track_caller]
fn assert_no_run(server: &Server) {
    assert_eq!(server.list("/api/v1/runs").len(), 0, "nothing was created");
}

#[test]
fn a_body_that_does_not_fit_is_refused_with_every_problem() {
    let mut server = Server::start();
    server.define(ORDER);
    let path = "/api/v1/workflows/order/trigger";
    let refused = server.post(path, &json!({ "id": "7", "amount": 0, "note": "much too long", "x": 1 }));
    let mut found = problems(&refused);
    found.sort();
    let expected = [
        "/amount: `/amount` is 0, and must be more than 0",
        "/id: `/id` must be a whole number, found a text",
        "/note: `/note` has 13 characters, the most is 5",
        ": the body must not have a field `x`",
    ];
    assert_eq!(found, expected);
    assert!(refused.json()["error"]["message"].as_str().unwrap().ends_with("(and 3 more)"));
    let nothing = server.send("POST", path, &[], b"");
    assert_eq!(problems(&nothing), [": the body must be an object, found null"]);
    let waited = server.post(&format!("{path}?wait=5s"), &json!({}));
    assert_eq!(problems(&waited).len(), 2);
    let manual = server.post("/api/v1/triggers/manual/run", &json!({ "workflow": "order", "variables": { "id": 1 } }));
    assert_eq!(problems(&manual), [": the body needs a field `amount`"]);
    assert_no_run(&server);
    // The schema is part of the stored version.
    server.crash_and_restart();
    assert_eq!(problems(&server.post(path, &json!({ "id": 1 }))), [": the body needs a field `amount`"]);
    assert_no_run(&server);
    let run = server.trigger("order", &json!({ "id": 7, "amount": 1.5 }));
    assert_eq!(server.finished(&run)["status"], "completed");
    server.verify();
}

#[test]
fn an_invalid_schema_is_refused_with_its_place() {
    let server = Server::start();
    let yaml = "name: w\ninput:\n  properties:\n    id: { type: strin }\n    at: { $ref: 'https://example.com/time' }\n\
                tasks: { a: { noop: {} } }";
    let answer = server.send("POST", "/api/v1/workflows", &[("Content-Type", "application/yaml")], yaml.as_bytes());
    assert_eq!(answer.refusal(422), "invalid_schema");
    let problems = answer.json()["error"]["problems"].clone();
    let problem = |i: usize| {
        let problem = &problems[i];
        (
            problem["code"].clone(),
            problem["at"]["line"].clone(),
            problem["at"]["column"].clone(),
            problem["hint"].clone(),
        )
    };
    assert_eq!(problem(0), (json!("invalid_schema"), json!(4), json!(17), json!("did you mean `string`?")));
    assert_eq!((&problem(1).0, &problem(1).1, &problem(1).2), (&json!("unsupported_schema"), &json!(5), &json!(17)));
    assert!(server.list("/api/v1/workflows").is_empty());
}

/// Decision 11: a repeat is answered as the first request, although the workflow has another schema by now.
#[test]
fn a_repeated_request_gets_the_first_answer_after_the_schema_has_changed() {
    let server = Server::start();
    let before = "name: order\ninput: { type: object }\ntasks: { a: { noop: {} } }";
    server.define(before);
    let path = "/api/v1/workflows/order/trigger";
    let key = [("Idempotency-Key", "k1")];
    let first = server.post_with(path, &key, &json!({ "n": 1 })).data(201);
    let batch = json!({ "items": [{ "body": { "n": 2 }, "idempotency_key": "k2" }] });
    let batched = server.post("/api/v1/workflows/order/trigger-batch", &batch).data(201);
    let after = before.replace("{ type: object }", "{ type: object, required: [id] }");
    let put = server.send("PUT", "/api/v1/workflows/order", &[("Content-Type", "application/yaml")], after.as_bytes());
    put.data(200);
    let repeated = server.post_with(path, &key, &json!({ "n": 1 })).data(200);
    assert_eq!((&repeated["run_id"], &repeated["deduplicated"]), (&first["run_id"], &json!(true)));
    let waited = server.post_with(&format!("{path}?wait=5s"), &key, &json!({ "n": 1 })).data(200);
    assert_eq!((&waited["id"], &waited["status"]), (&first["run_id"], &json!("completed")));
    assert_eq!(server.post_with(path, &key, &json!({ "n": 9 })).refusal(422), "idempotency_key_reused");
    assert_eq!(problems(&server.post_with(path, &[("Idempotency-Key", "k9")], &json!({ "n": 1 }))).len(), 1);
    let again = server.post("/api/v1/workflows/order/trigger-batch", &batch).data(200);
    assert_eq!(again[0]["run_id"], batched[0]["run_id"]);
    let mixed = json!({ "items": [{ "body": { "id": 1 } }, { "body": { "n": 2 }, "idempotency_key": "k2" }] });
    let mixed = server.post("/api/v1/workflows/order/trigger-batch", &mixed).data(201);
    assert_eq!((&mixed[1]["run_id"], &mixed[1]["deduplicated"]), (&batched[0]["run_id"], &json!(true)));
    assert_eq!(server.list("/api/v1/runs").len(), 3);
    // A replay keeps the version of its run, and may take the current one.
    let replay = format!("/api/v1/runs/{}/replay", first["run_id"].as_str().unwrap());
    server.post(&replay, &json!({})).data(201);
    assert_eq!(problems(&server.post(&replay, &json!({ "version": "latest" }))), [": the body needs a field `id`"]);
    assert_eq!(server.list("/api/v1/runs").len(), 4);
}

#[test]
fn a_batch_is_refused_as_a_whole_with_the_problems_of_every_item() {
    let server = Server::start();
    server.define(ORDER);
    let items = json!({ "items": [{ "body": { "id": 1, "amount": 1 } }, { "body": { "id": "1", "amount": 0 } }, { "body": null }] });
    let found = problems(&server.post("/api/v1/workflows/order/trigger-batch", &items));
    assert_eq!(
        found,
        [
            "items[1].body/id: `/id` must be a whole number, found a text",
            "items[1].body/amount: `/amount` is 0, and must be more than 0",
            "items[2].body: the body must be an object, found null",
        ]
    );
    assert_no_run(&server);
}

#[test]
fn a_delivery_that_does_not_fit_is_in_the_log_of_its_trigger() {
    let server = Server::start();
    server.define(ORDER);
    let hook =
        json!({ "name": "h", "type": "webhook", "workflow": "order", "config": { "path": "hook", "unsigned": true } });
    let hook = server.post("/api/v1/triggers", &hook).data(201)["id"].as_str().unwrap().to_owned();
    let json_body = [("Content-Type", "application/json"), ("X-Request-Id", "d1")];
    let refused = server.send("POST", "/webhooks/hook", &json_body, br#"{"id": 1}"#);
    assert_eq!(problems(&refused), [": the body needs a field `amount`"]);
    let log = server.list(&format!("/api/v1/triggers/{hook}/deliveries"));
    assert_eq!(
        (&log[0]["outcome"], &log[0]["reason"]),
        (&json!("rejected"), &json!("invalid_input: the body needs a field `amount`"))
    );
    assert_no_run(&server);
    // A refused request does not use up its id.
    let sent = server.send("POST", "/webhooks/hook", &json_body, br#"{"id": 1, "amount": 2}"#).data(202);
    assert_eq!(sent["delivery_id"], "d1");
    let fired = server.post(&format!("/api/v1/triggers/{hook}/run"), &json!({ "variables": { "id": 1 } }));
    assert_eq!(problems(&fired), [": the body needs a field `amount`"]);
    assert_eq!(server.list("/api/v1/runs").len(), 1);
}

#[test]
fn a_fire_time_whose_body_does_not_fit_is_skipped_and_logged() {
    let server = Server::with(&["--clock", "virtual", "--clock-start", "2027-01-01T08:59:00Z"]);
    // A schedule of the definition itself is refused with the definition.
    let own = format!("{ORDER}\ntrigger: cron\ncron: '0 9 * * *'\nschedule: {{ input: {{ id: 1 }} }}");
    let refused = server.send("POST", "/api/v1/workflows", &[("Content-Type", "application/yaml")], own.as_bytes());
    assert_eq!(refused.refusal(422), "input_mismatch");
    server.define(ORDER);
    let made = json!({ "name": "s", "type": "schedule", "workflow": "order", "config": { "cron": "0 * * * *" }, "input": { "id": 1 } });
    let trigger = server.post("/api/v1/triggers", &made).data(201)["id"].as_str().unwrap().to_owned();
    server.advance("2h");
    let log = server.list(&format!("/api/v1/triggers/{trigger}/deliveries"));
    assert_eq!(log.len(), 2);
    for line in &log {
        assert_eq!(
            (&line["outcome"], &line["reason"]),
            (&json!("skipped"), &json!("invalid_input: the body needs a field `amount`"))
        );
    }
    assert_no_run(&server);
    let patched = server.send(
        "PATCH",
        &format!("/api/v1/triggers/{trigger}"),
        &[("Content-Type", "application/json")],
        br#"{"input": {"id": 1, "amount": 5}}"#,
    );
    patched.data(200);
    server.advance("1h");
    assert_eq!(server.list("/api/v1/runs").len(), 1);
    server.verify();
}

#[test]
fn a_child_whose_body_does_not_fit_fails_the_step_at_once() {
    let server = Server::start();
    server.define(ORDER);
    let view = server.play(
        "call: { subworkflow: { workflow: order, input: { id: '{{trigger.body.id}}', amount: 0 } }, retry: { max_attempts: 5 } }",
        &json!({ "id": "seven" }),
    );
    let step = &view["tasks"]["call"];
    assert_eq!((&view["status"], &step["error"]["code"]), (&json!("failed"), &json!("invalid_input")), "{view:#}");
    assert_eq!(
        step["error"]["message"],
        "`/id` must be a whole number, found a text; `/amount` is 0, and must be more than 0"
    );
    assert_eq!(step["attempt"], 1, "another attempt would send the same body");
    assert_eq!(server.list("/api/v1/runs?workflow=order").len(), 0);
    server.verify();
}

#[test]
fn the_command_line_shows_every_problem() {
    let server = Server::start();
    server.define(ORDER);
    let url = format!("http://{}", server.nodes()[0]);
    let output = onward(&["trigger", "order", "--input", r#"{"id": "7"}"#, "--url", &url]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    for part in ["invalid_input", "`/id` must be a whole number, found a text", "the body needs a field `amount`"] {
        assert!(told.contains(part), "{told}");
    }
}
