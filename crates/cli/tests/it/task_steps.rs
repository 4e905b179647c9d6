//! Steps of graphs that are tasks for workers: their input, their results, and the four timeouts.

use crate::harness::{Claimed, Server, micros, names};
use serde_json::{Value, json};

fn claim(server: &Server, name: &str) -> Claimed {
    server.claim_one("w", name)
}

fn explain(server: &Server, run: &str) -> Value {
    server.get(&format!("/api/v1/runs/{run}/explain")).data(200)
}

#[test]
fn a_step_sends_filled_in_templates_and_its_result_is_its_body() {
    let mut server = Server::start();
    let workflow = server.workflow(
        "first: { task: math.add.v1, input: { a: \"{{trigger.body.a}}\", text: \"a is {{trigger.body.a}}\", list: [1, \"{{trigger.body.b}}\"] } }\n\
         second: { task: math.show.v1, needs: [first], input: \"{{tasks.first.body}}\" }\n\
         third: { set: { sum: \"{{tasks.first.body.sum}}\" }, needs: [second], if: \"tasks.second.body.shown == true && tasks.first.status == 'succeeded'\" }\n\
         fourth: { task: math.all.v1, needs: [third] }",
    );
    let trigger = json!({ "a": 1, "b": { "deep": [null] } });
    let run = server.trigger(&workflow, &trigger);
    let first = claim(&server, "math.%");
    assert_eq!(first.view["input"], json!({ "a": 1, "text": "a is 1", "list": [1, { "deep": [null] }] }));
    assert_eq!((&first.view["run_id"], &first.view["step"]), (&json!(run), &json!("first")));
    assert_eq!(first.view["idempotency_key"], json!(format!("{run}:first")));
    assert!(first.view["workflow"].is_string(), "{:#}", first.view);
    let task = server.task(first.id());
    assert_eq!((&task["status"], &task["step"], &task["run_id"]), (&json!("leased"), &json!("first"), &json!(run)));
    server.crash_and_restart();
    Claimed { api: *server, ..first }.complete(json!({ "sum": 3 })).data(200);
    let second = claim(&server, "math.show.v1");
    assert_eq!(second.view["input"], json!({ "sum": 3 }));
    second.complete(json!({ "shown": true })).data(200);
    let fourth = claim(&server, "math.all.v1");
    assert_eq!(fourth.view["input"], json!({}), "without `input`");
    fourth.complete(Value::Null).data(200);
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(
        (&view["tasks"]["first"]["body"], &view["tasks"]["third"]["body"]),
        (&json!({ "sum": 3 }), &json!({ "sum": 3 }))
    );
    // Tasks of graphs are not in the list of tasks, and cannot be changed apart from their run.
    assert!(server.list("/api/v1/tasks").is_empty());
    assert_eq!(server.delete(&format!("/api/v1/tasks/{}", second.id())).refusal(409), "task_state");
    assert_eq!(server.task(second.id())["result"], json!({ "shown": true }));
}

#[test]
fn a_template_that_cannot_be_filled_fails_the_step() {
    let server = Server::start();
    let view = server.play("a: { task: none.v1, input: { x: \"{{trigger.body.missing}}\" } }", &json!({}));
    assert_eq!(
        (&view["status"], &view["tasks"]["a"]["status"]),
        (&json!("failed"), &json!("template_error")),
        "{view:#}"
    );
    assert!(server.claim("w", &["none.v1"], 1).is_empty());
}

#[test]
fn a_failed_step_is_tried_again_and_can_be_handled() {
    let server = Server::with_virtual_clock();
    let workflow = server.workflow(
        "work: { task: try.v1, retry: { max_attempts: 2, backoff: { type: fixed, min: 10s, jitter: 0 } } }\n\
         undo: { task: undo.v1, needs: [work], if: \"tasks.work.status == 'failed'\", input: \"{{tasks.work.error.code}}\" }",
    );
    let run = server.trigger(&workflow, &json!({}));
    claim(&server, "try.v1").fail("no").data(200);
    assert_eq!(server.run(&run)["tasks"]["work"]["status"], "retrying");
    assert_eq!(explain(&server, &run)["reason"], "waiting_for_retry");
    server.advance("11s");
    let second = claim(&server, "try.v1");
    assert_eq!(second.attempt(), 2);
    second.report("fail", json!({ "error": { "message": "never", "code": "out_of_paper" } })).data(200);
    let undo = claim(&server, "undo.v1");
    assert_eq!(undo.view["input"], "out_of_paper");
    undo.complete(json!("undone")).data(200);
    let view = server.finished(&run);
    assert_eq!((&view["status"], &view["failed_steps"]), (&json!("completed"), &json!(["work"])), "{view:#}");
}

#[test]
fn data_chooses_the_type_of_a_task_from_the_list_of_the_step() {
    let mut server = Server::start();
    let workflow = server.workflow(
        "make: { task: \"invoice.{{trigger.body.country}}.v1\", allow: [invoice.de.v1, invoice.fr.v1], input: { id: 7 } }\n\
         other: { needs: [make], if: tasks.make.failed, set: { code: \"{{tasks.make.error.code}}\" } }",
    );
    let french = server.trigger(&workflow, &json!({ "country": "fr" }));
    let german = server.trigger(&workflow, &json!({ "country": "de" }));
    assert!(server.claim("w", &["invoice.de.v1"], 10).len() == 1, "only the German one");
    let explanation = explain(&server, &french);
    assert!(explanation["summary"].as_str().unwrap().contains("no worker claims `invoice.fr.v1`"), "{explanation:#}");
    // The type is part of what is stored: a worker finds the task after a crash.
    server.crash_and_restart();
    let claimed = claim(&server, "invoice.fr.v1");
    assert_eq!((&claimed.view["type"], &claimed.view["input"]), (&json!("invoice.fr.v1"), &json!({ "id": 7 })));
    assert_eq!(server.task(claimed.id())["type"], "invoice.fr.v1");
    claimed.complete(json!(1)).data(200);
    assert_eq!(server.finished(&french)["status"], "completed");
    server.cancel(&german);
    let other = server.finished(&server.trigger(&workflow, &json!({ "country": "../x" })));
    let error = &other["tasks"]["make"]["error"];
    assert_eq!((&other["status"], &error["code"]), (&json!("completed"), &json!("type_not_allowed")), "{other:#}");
    assert_eq!(error["message"], "`invoice.../x.v1` is not one of: invoice.de.v1, invoice.fr.v1");
    assert_eq!(other["tasks"]["other"]["body"]["code"], "type_not_allowed");
    let missing = server.finished(&server.trigger(&workflow, &json!({})));
    assert_eq!(missing["tasks"]["make"]["status"], "template_error");
    server.verify();
}

#[test]
fn a_limit_holds_for_a_type_that_data_chose_also_after_a_restart() {
    let mut server = Server::start();
    server.put("/api/v1/types/invoice.de.v1", &json!({ "concurrency": { "limit": 1 } })).data(200);
    let workflow =
        server.workflow("make: { task: \"invoice.{{trigger.body}}.v1\", allow: [invoice.de.v1, invoice.fr.v1] }");
    let runs = [(); 2].map(|()| server.trigger(&workflow, &json!("de")));
    let claim = |server: &Server| {
        let request = json!({ "worker_id": "w", "types": ["invoice.de.v1"], "max": 10, "lease": "1h", "wait": "0s" });
        server.claim_with(&request)
    };
    let [first] = <[Claimed; 1]>::try_from(claim(&server)).unwrap_or_else(|all| panic!("{} tasks", all.len()));
    for _ in 0..2 {
        server.crash_and_restart();
        assert!(claim(&server).is_empty(), "one worker has a task of this type already");
    }
    Claimed { api: *server, ..first }.complete(json!(1)).data(200);
    let [second] = <[Claimed; 1]>::try_from(claim(&server)).unwrap_or_else(|all| panic!("{} tasks", all.len()));
    second.complete(json!(2)).data(200);
    runs.iter().for_each(|run| assert_eq!(server.finished(run)["status"], "completed"));
    server.verify();
}

#[test]
fn an_unclaimed_step_leaves_its_run_running_and_explain_says_so() {
    // One node: a worker's claims reach only the node of its connection, and other nodes can report a cancel only in
    // the answer to a heartbeat.
    let server = Server::alone(&[]);
    let workflow = server.workflow("a: { task: alone.v1 }\nb: { noop: {}, needs: [a] }");
    let run = server.trigger(&workflow, &json!({}));
    let view = server.run(&run);
    assert_eq!((&view["status"], &view["tasks"]["a"]["status"]), (&json!("running"), &json!("pending")), "{view:#}");
    assert_eq!(view["waiting_for"], json!([{ "kind": "worker", "step": "a" }]), "{view:#}");
    let explanation = explain(&server, &run);
    assert_eq!(
        (&explanation["reason"], &explanation["step"]),
        (&json!("waiting_for_worker"), &json!("a")),
        "{explanation:#}"
    );
    assert!(
        explanation["summary"].as_str().expect("a text").contains("no worker claims `alone.v1`"),
        "{explanation:#}"
    );
    let claimed = claim(&server, "alone.v1");
    assert_eq!(server.run(&run)["tasks"]["a"]["status"], "running");
    // A cancelled run's worker gets the cancel, too.
    let open = server.claim_later(json!({ "worker_id": "w", "types": ["alone.v1"], "wait": "30s" }));
    std::thread::sleep(std::time::Duration::from_millis(150));
    server.cancel(&run);
    let (answer, took) = open.join().expect("an answer");
    assert_eq!(answer.json()["cancelled"], json!([claimed.id()]), "{}", answer.text());
    assert!(took.as_millis() < 2_000, "{took:?}");
    assert_eq!(claimed.complete(json!(1)).refusal(409), "run_cancelled");
    assert_eq!(server.run(&run)["status"], "cancelled");
}

/// Checks how the run shows a step that timed out.
fn timed_out(server: &Server, run: &str, code: &str, after: i64) {
    let view = server.finished(run);
    let step = &view["tasks"]["a"];
    assert_eq!((&step["status"], &step["error"]["code"]), (&json!("timeout"), &json!(code)), "{view:#}");
    let events = server.events(run);
    assert!(names(&events).contains(&"step.timeout"), "{:?}", names(&events));
    let took = (micros(&view["finished_at"]) - micros(&view["started_at"])) / 1_000_000;
    assert!((after..=after + 2).contains(&took), "{took} s instead of {after}");
}

#[test]
fn timeout_queue_ends_a_step_that_no_worker_claims() {
    let mut server = Server::with_virtual_clock();
    let workflow = server.workflow("a: { task: slow.v1, timeouts: { queue: 10m } }");
    let run = server.trigger(&workflow, &json!({}));
    server.advance("5m");
    server.crash_and_restart();
    server.advance("4m");
    assert_eq!(server.run(&run)["tasks"]["a"]["status"], "pending");
    server.advance("1m");
    timed_out(&server, &run, "queue_timeout", 600);
    assert!(server.claim("w", &["slow.v1"], 1).is_empty());
    // A leased task is no longer in the queue.
    let run = server.trigger(&workflow, &json!({}));
    let held = server.claim_with(&json!({ "worker_id": "w", "types": ["slow.v1"], "lease": "1h", "wait": "0s" }));
    server.advance("20m");
    held[0].complete(json!(1)).data(200);
    assert_eq!(server.finished(&run)["status"], "completed");
}

#[test]
fn timeout_attempt_ends_one_attempt_and_cancels_it_at_the_worker() {
    // One node: a worker's claims reach only the node of its connection, and other nodes can report a cancel only in
    // the answer to a heartbeat.
    let server = Server::alone(&["--clock", "virtual"]);
    let workflow = server.workflow(
        "a: { task: slow.v1, timeouts: { attempt: 1m }, retry: { max_attempts: 2, backoff: { type: fixed, min: 1s, jitter: 0 } } }",
    );
    let run = server.trigger(&workflow, &json!({}));
    let take = || server.claim_with(&json!({ "worker_id": "w", "types": ["slow.v1"], "lease": "1h", "wait": "0s" }));
    let first = take().remove(0);
    server.advance("59s");
    first.report("heartbeat", json!({ "extend": "1h" })).data(200);
    server.advance("1s");
    assert_eq!(server.run(&run)["tasks"]["a"]["status"], "retrying", "a heartbeat does not help");
    assert_eq!(first.report("heartbeat", json!({})).refusal(409), "stale_claim");
    assert_eq!(first.complete(json!("late")).refusal(409), "stale_claim");
    let claim_request = json!({ "worker_id": "w", "types": ["none.v1"], "wait": "0s" });
    assert_eq!(
        server.post("/api/v1/tasks/claim", &claim_request).json()["cancelled"],
        json!([first.id()]),
        "the worker gets the cancel"
    );
    server.advance("1s");
    let second = take().remove(0);
    assert_eq!(second.attempt(), 2);
    server.advance("60s");
    timed_out(&server, &run, "timeout", 121);
    assert_eq!(second.complete(json!("late")).refusal(409), "stale_claim");
}

#[test]
fn timeout_heartbeat_ends_a_silent_lease() {
    let server = Server::with_virtual_clock();
    let workflow = server.workflow("a: { task: silent.v1, timeouts: { heartbeat: 5s } }");
    let run = server.trigger(&workflow, &json!({}));
    let take = || server.claim_with(&json!({ "worker_id": "w", "types": ["silent.v1"], "lease": "1h", "wait": "0s" }));
    let first = take().remove(0);
    assert_eq!(first.view["lease_ms"], 5_000, "the lease is never longer");
    for _ in 0..3 {
        server.advance("4s");
        first.report("heartbeat", json!({ "extend": "1h" })).data(200);
    }
    server.advance("4s");
    assert_eq!(server.run(&run)["tasks"]["a"]["status"], "running");
    server.advance("2s");
    assert_eq!(first.complete(json!("late")).refusal(409), "stale_claim");
    for _ in 0..2 {
        take().remove(0);
        server.advance("6s");
    }
    let view = server.finished(&run);
    assert_eq!(
        (&view["tasks"]["a"]["status"], &view["tasks"]["a"]["error"]["code"]),
        (&json!("failed"), &json!("quarantined")),
        "{view:#}"
    );
}

#[test]
fn timeout_total_ends_everything_together() {
    let server = Server::with_virtual_clock();
    let workflow =
        server.workflow("before: { sleep: 1h }\na: { task: long.v1, needs: [before], timeouts: { total: 10m } }");
    let run = server.trigger(&workflow, &json!({}));
    server.advance("1h");
    server.advance("4m");
    claim(&server, "long.v1").fail("not yet").data(200);
    server.advance("3m");
    let second =
        server.claim_with(&json!({ "worker_id": "w", "types": ["long.v1"], "lease": "1h", "wait": "0s" })).remove(0);
    server.advance("3m");
    timed_out(&server, &run, "total_timeout", 4_200);
    assert_eq!(second.complete(json!("late")).refusal(409), "stale_claim");
    // Also while a task waits for its next attempt, and for a plain task.
    let id = server.submit_with(&json!({ "type": "long.v1", "timeouts": { "total": "30s" } }));
    claim(&server, "long.v1").fail("not yet").data(200);
    server.advance("31s");
    let task = server.task(&id);
    assert_eq!((&task["status"], &task["error"]["code"]), (&json!("failed"), &json!("total_timeout")), "{task:#}");
}

#[test]
fn a_fan_out_of_steps_is_done_by_many_workers() {
    let mut server = Server::start();
    let steps: String = (0..40).map(|n| format!("s{n}: {{ task: part.v1, input: {n} }}\n")).collect();
    let needs: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let workflow = server.workflow(&format!("{steps}join: {{ noop: {{}}, needs: [{}] }}", needs.join(", ")));
    let run = server.trigger(&workflow, &json!({}));
    let first = server.claim("one", &["part.%"], 15);
    server.crash_and_restart();
    let second = server.claim("two", &["part.%"], 100);
    assert_eq!((first.len(), second.len()), (15, 25));
    for claimed in first.iter().chain(&second) {
        let claimed = Claimed { api: *server, ..claimed.clone() };
        claimed.complete(claimed.view["input"].clone()).data(200);
    }
    let view = server.finished(&run);
    assert_eq!(view["status"], "completed");
    for n in 0..40 {
        assert_eq!(view["tasks"][format!("s{n}")]["body"], n);
    }
}

/// Every route for runs works for the run of a plain task.
#[test]
fn a_plain_tasks_run_is_a_run_like_any_other() {
    let server = Server::start();
    let id = server.submit("plain.v1", json!({ "n": 1 }));
    let run = id.replace("task_", "run_");
    for path in ["", "/steps", "/events", "/explain", "/graph"] {
        assert_eq!(server.get(&format!("/api/v1/runs/{run}{path}")).status, 200, "{path}");
    }
    claim(&server, "plain.v1").complete(json!({ "ok": true })).data(200);
    let view = server.finished(&run);
    assert_eq!((&view["form"], &view["status"]), (&json!("task"), &json!("completed")), "{view:#}");
    let again = server.post(&format!("/api/v1/runs/{run}/replay"), &json!({}));
    let again = again.data(201)["run_id"].as_str().expect("an id").to_owned();
    let claimed = claim(&server, "plain.v1");
    assert_eq!((&claimed.view["run_id"], &claimed.view["input"]), (&json!(again), &json!({ "n": 1 })));
    assert_eq!(server.list("/api/v1/runs?type=plain.v1").len(), 2);
    server.cancel(&again).data(200);
    assert_eq!(server.task(claimed.id())["status"], "cancelled");
    // The task of a paused run is not leased.
    let id = server.submit("plain.v1", json!({ "n": 2 }));
    let run = id.replace("task_", "run_");
    server.post(&format!("/api/v1/runs/{run}/pause"), &json!({ "actor": "ada" })).data(200);
    assert!(server.claim("w", &["plain.v1"], 1).is_empty());
    server.post(&format!("/api/v1/runs/{run}/resume"), &json!({ "actor": "ada" })).data(200);
    assert_eq!(claim(&server, "plain.v1").id(), id);
}
